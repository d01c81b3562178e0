"""The acceptance of a cluster of real hosts, one of which has a slow link, and of each node by itself."""

from __future__ import annotations

import re
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.hosts.network import Hosts, wait_until
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


SRUN = ["srun", "--mpi=pmi2", "--nodelist=h1,h2", "-N2", "-n4", "meshlab", "acceptance", "--quick"]


def assert_ended(hosts: Hosts, slurm: Slurm, errors: str, text: str) -> None:
    """Check that one line of meshlab has the reason, and that nothing is left."""
    lines = [line for line in errors.splitlines() if line.startswith("meshlab:")]
    assert len(lines) == 1, errors
    assert re.match(text, lines[0]), errors
    wait_until(lambda: not slurm.jobs(), 40)
    for name in ("h1", "h2"):
        wait_until(lambda host=hosts[name]: not host.processes("meshlab"), 40)  # type: ignore[misc]
        assert "mpich" not in hosts[name].run(["ls", "/dev/shm"], check=True).stdout


def test_a_switch_with_a_smaller_mtu_ends_the_ranks_of_srun(hosts: Hosts, slurm: Slurm) -> None:
    hosts.set_switch_mtu("h2", 600)
    began = time.monotonic()
    done = hosts["login"].run(SRUN)
    assert time.monotonic() - began < 60
    assert done.returncode != 0
    problem = "packets of 1500 bytes do not arrive, although smaller ones do; set the same MTU on all hosts"
    assert_ended(hosts, slurm, done.stderr, f"meshlab: h1 → h2: {problem}")


def test_ranks_of_srun_do_not_wait_for_ever_for_a_host_without_the_environment(hosts: Hosts, slurm: Slurm) -> None:
    empty, prefix = hosts.shared / "empty", Path(sys.executable).parent
    empty.mkdir(exist_ok=True)
    hosts["h2"].run(["mount", "--bind", str(empty), str(prefix)], check=True)
    try:
        done = hosts["login"].run([*SRUN, "--timeout", "30"])
    finally:
        hosts["h2"].run(["umount", str(prefix)], check=True)
    assert done.returncode != 0
    assert_ended(hosts, slurm, done.stderr, "meshlab: h1 has waited 30 s for all 4 processes that srun started; ")
