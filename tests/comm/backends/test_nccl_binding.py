"""Facts about NCCL that need no GPU."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from meshlab.comm.backends import _nccl_binding as nccl_binding
from meshlab.comm.backends._nccl_binding import sharp_fact

FAILED = """
gpu36:20775:20807 [0] transport.cc:384 NCCL WARN Cannot initialize CollNet, using point-to-point network instead
gpu36:20775:20807 [0] NCCL INFO 3 coll channels, 3 collnet channels, 0 nvls channels, 4 p2p channels
"""
CONNECTED = "gpu36:20775:20807 [0] NCCL INFO rank 3 Connected CollNet\n"
ONE_HOST = "NCCL INFO Communicator has 1 nodes which is less than CollNet node threshold 2, disabling CollNet\n"


@pytest.mark.parametrize(
    ("enabled", "n_lsa_teams", "log", "fact"),
    [
        (None, 2, CONNECTED, "no: NCCL_COLLNET_ENABLE=1 turns it on"),
        ("0", None, "", "no: NCCL_COLLNET_ENABLE=1 turns it on"),
        ("1", 1, "", "no: all ranks access each other's memory"),
        ("1", 2, CONNECTED, "yes"),
        ("1", None, CONNECTED, "yes"),
        ("1", 2, FAILED, "no: NCCL cannot initialize CollNet"),
        ("1", None, ONE_HOST, "no: the group has fewer hosts"),
        ("1", 2, "NCCL INFO 3 coll channels, 3 collnet channels", "unknown"),
        ("1", None, "", "unknown"),
    ],
)
def test_sharp_is_known_where_nccl_shows_it(enabled: str | None, n_lsa_teams: int | None, log: str, fact: str) -> None:
    assert sharp_fact(enabled, n_lsa_teams, lambda: log).startswith(fact)


def test_the_log_of_this_process_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_DEBUG_FILE", str(tmp_path / "nccl-%p.log"))
    assert nccl_binding._debug_log() == ""
    (tmp_path / f"nccl-{os.getpid()}.log").write_text(CONNECTED)
    assert nccl_binding._debug_log() == CONNECTED
    monkeypatch.delenv("NCCL_DEBUG_FILE")
    assert nccl_binding._debug_log() == ""
