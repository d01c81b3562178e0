"""The checks of several hosts, on facts that hosts in namespaces cannot have."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from meshlab.base._errors import EngineError
from meshlab.commissioning._host_checks import _clock_check, _version_check, check_hosts
from meshlab.commissioning._host_probe import describe, network_of


def host(name: str, **facts: Any) -> Any:
    return SimpleNamespace(name=name, offset_s=0.0, uncertainty_s=0.001, **facts)


def test_clocks_minutes_apart_are_named() -> None:
    hosts = [host("a"), SimpleNamespace(name="b", offset_s=-300.04, uncertainty_s=0.01)]
    check = _clock_check(hosts)
    assert (check.verdict, check.text) == ("broken", "the clock of b is 300.0 s behind that of this host")
    assert _clock_check(hosts[:1]).text == "within 1 ms of that of this host"


def test_other_versions_are_named() -> None:
    own = {**describe(0), "packages": {"torch": "2.9"}}
    check = _version_check([host("a", facts=own), host("b", facts={**own, "python": "2.7", "packages": {}})])
    assert check.verdict == "broken"
    assert check.text.startswith("b has Python 2.7, and this host ")
    assert check.text.endswith(", and 1 more")
    assert _version_check([host("a", facts=own)]).verdict == "ok"


@pytest.mark.parametrize(
    ("chosen", "rdma", "names", "network"),
    [
        ("", [], ["docker0", "eth0", "eth1"], "eth0"),
        ("", [], ["eth0", "ib0"], "ib0"),
        ("", ["mlx5_0", "mlx5_1"], ["eth0"], "RDMA mlx5_0, mlx5_1"),
        ("eth1", ["mlx5_0"], ["eth0", "eth1"], "eth1"),
        ("", [], [], "lo"),
    ],
)
def test_the_network_of_nccl_follows_its_rules(chosen: str, rdma: list[str], names: list[str], network: str) -> None:
    interfaces = [[name, "10.0.0.1/24", 1500] for name in names]
    facts = {"chosen": {"nccl": chosen}, "rdma": rdma, "interfaces": interfaces}
    assert network_of("nccl", facts, "") == network


def test_hosts_of_a_scheduler_need_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineError, match=r"hosts='slurm' needs srun, which this host does not have; start it on"):
        check_hosts("slurm --nodes=2")
    with pytest.raises(EngineError, match="the checks of hosts need ssh, which is not installed"):
        check_hosts("node01")


SSH = """#!/bin/sh
while [ "$1" = -o ]; do options="$options $2"; shift 2; done
host=$1; shift
case "$host" in
nologin) exit 1 ;;
noisy) echo Welcome; echo 7; printf 'Nur f\\374r Befugte\\n' >&2 ;; # a banner that is not in UTF-8
dying) sh -c "$*" </dev/null | head -n 1; echo "ssh: Broken pipe" >&2; exit 255 ;;
esac
case "$options" in
*ControlMaster=no*) ;;
*) sleep 20 >/dev/null & ;; # as a master of older releases does, which keeps standard error
esac
exec sh -c "$*"
"""


def test_a_host_that_does_not_answer_any_more_ends_no_other_check(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "ssh").write_text(SSH)
    (tmp_path / "ssh").chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    began = time.monotonic()
    checks = {check.name: check for check in check_hosts("noisy,nologin,dying", tmp_path / "shared")}
    assert time.monotonic() - began < 15  # and not until the process that keeps standard error has ended
    assert checks["ssh noisy"].verdict == "ok"
    assert checks["ssh nologin"].text == "ssh ended without an answer (exit code 1)"
    assert checks["ssh nologin"].fix == "make `ssh nologin true` work without a password"
    assert checks["ssh dying"].text == "Broken pipe"
    assert checks["ssh dying"].fix == "check this host and its network: it answered at first"
    assert checks["paths"].text.endswith("need a second host, and only noisy answers")
    assert checks["clocks"].verdict == checks["folder"].verdict == checks["versions"].verdict == "ok"
