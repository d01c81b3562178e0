"""The acceptance of a cluster of real hosts, one of which has a slow link, and of each node by itself."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from tests.hosts.network import Hosts
from tests.hosts.slow_hosts import accept, fault
from tests.hosts.slurm import Slurm

pytestmark = pytest.mark.long


@pytest.mark.parametrize("name", ["delay", "rate"])
def test_a_host_with_a_slow_link_is_named_and_no_other(ssh: Hosts, name: str) -> None:
    out = ssh.shared / "slow"
    with fault(ssh, name):
        failed, output = accept(ssh, out)
    assert failed == ["h2"], output
    assert "FAILED: fabric and nodes. H2 is SLOW in two measurements." in output
    assert "Slow: h2" in (out / "report.html").read_text()


def test_no_host_is_named_without_a_slow_link(ssh: Hosts) -> None:
    for _ in range(3):
        failed, output = accept(ssh, ssh.shared / "fine")
        assert not failed, output
        assert "None of 3 hosts differs from the others on its paths to the others." in output


def test_each_node_is_accepted_by_itself_without_mpi(hosts: Hosts, slurm: Slurm) -> None:
    out = hosts.shared / "nodes"
    command = ["meshlab", "acceptance", "--per-node", "--ranks", "2", "--quick", "--out", str(out)]
    done = hosts["login"].run(["srun", "-N2", "-n2", *command])
    lines = done.stdout.splitlines()
    assert {line.split(": ")[0] for line in lines if ": ready" in line or "groups " in line} == {"h1", "h2"}
    assert "0 of 2 nodes accepted" in lines  # on a CPU an acceptance is not decided at best
    suites = ET.parse(out / "junit.xml").getroot()
    assert sorted(str(suite.get("name")).split(":")[0] for suite in suites) == ["h1", "h2"]
    assert all((out / host / "report.html").exists() for host in ("h1", "h2"))


def test_ranks_start_in_a_task_of_srun_without_mpi(hosts: Hosts, slurm: Slurm) -> None:
    out = hosts.shared / "task"
    script = f"meshlab acceptance --ranks 2 --quick --out {out}-$(hostname)"
    done = hosts["login"].run(["srun", "-N2", "-n2", "sh", "-c", script])
    assert done.stdout.count("2 ranks · MPI on this CPU") == 2, done.stderr
