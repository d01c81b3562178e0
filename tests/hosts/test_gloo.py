"""Gloo between hosts: the interface by the route to the other ranks, although no variable names it."""

from __future__ import annotations

import importlib.util

import pytest

from tests.hosts.network import Hosts
from tests.hosts.slurm import Slurm

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch, for Gloo"),
]

JOIN = """
import meshlab as ml

engines = ml.engines.join(backend="gloo")
if engines is not None:
    with engines:
        print("sums", engines.run(lambda comm: comm.all_reduce(comm.xp.ones(1)).item())["value"].tolist())
        print("interfaces", sorted({info.capabilities.facts["network interface"] for info in engines.ranks}))
"""


@pytest.mark.parametrize("has_name", [True, False], ids=["named", "name of the loopback"])
def test_gloo_needs_neither_a_default_route_nor_a_variable(hosts: Hosts, slurm: Slurm, has_name: bool) -> None:
    names = hosts["h1"].run(["cat", "/etc/hosts"], check=True).stdout
    try:
        if not has_name:  # as Debian's installer writes it
            for name in ("h1", "h2"):
                lines = [f"127.0.1.1 {name}" if line.endswith(f" {name}") else line for line in names.splitlines()]
                (hosts.files / name / "hosts").write_text("\n".join([*lines, ""]))
        done = hosts["login"].run(["srun", "--mpi=pmi2", "-N2", "-n4", "python", "-c", JOIN], timeout_s=180)
    finally:
        for name in ("h1", "h2"):
            (hosts.files / name / "hosts").write_text(names)
    assert "sums [4.0, 4.0, 4.0, 4.0]" in done.stdout, done.stderr
    assert "interfaces ['eth0']" in done.stdout


def test_an_interface_that_does_not_exist_is_named_with_those_that_do(hosts: Hosts, slurm: Slurm) -> None:
    done = hosts["login"].run(
        ["srun", "--mpi=pmi2", "-N2", "-n2", "python", "-c", JOIN], env={"GLOO_SOCKET_IFNAME": "ib9"}, timeout_s=180
    )
    assert done.returncode != 0
    assert "GLOO_SOCKET_IFNAME=ib9: h1 has no such interface with an IPv4 address; choose one of eth0" in done.stderr
