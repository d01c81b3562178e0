"""Which network layer of MPICH is chosen before MPI is initialised."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from meshlab.comm.backends import _mpi as mpi


@pytest.mark.parametrize(
    ("variables", "devices", "network"),
    [
        ({"SLURM_MPI_TYPE": "pmi2"}, [], "ofi"),
        ({"SLURM_MPI_TYPE": "pmi2"}, ["mlx5_0"], None),
        ({"SLURM_MPI_TYPE": "pmi2", "MPIR_CVAR_CH4_NETMOD": "ucx"}, [], "ucx"),
        ({"SLURM_MPI_TYPE": "pmix"}, [], None),
        ({}, [], None),
    ],
)
def test_short_addresses_are_chosen_for_pmi2_without_rdma(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variables: dict[str, str], devices: list[str], network: str | None
) -> None:
    for device in devices:
        (tmp_path / device).mkdir()
    environment = dict(variables)
    monkeypatch.setattr(os, "environ", environment)
    monkeypatch.setattr(mpi, "package_version", lambda name: "5.0.2")
    monkeypatch.delitem(sys.modules, "mpi4py.MPI", raising=False)
    mpi._choose_network(tmp_path)
    assert environment.get("MPIR_CVAR_CH4_NETMOD") == network
