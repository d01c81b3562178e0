"""Runs on two hosts record and name their hosts, and axes that span hosts without need are reported."""

from __future__ import annotations

import pytest

import meshlab as ml
from tests.hosts.network import Hosts
from tests.hosts.slurm import Slurm

pytestmark = pytest.mark.full

SWEEP = ["all_reduce", "--sizes", "1K,64K", "--sampling", "quick", "--mesh", "node=2, local=2"]
WHERE = "4 ranks on 2 hosts · MPI over eth0"
STRADDLE = (
    "groups of local span 2 hosts, but 2 ranks fit on one host: start the ranks host by host "
    '(srun -m block, mpiexec -ppn 2), or use the mesh "local=2, node=2"'
)


def test_the_report_of_a_sweep_over_two_hosts_names_them(hosts: Hosts, slurm: Slurm) -> None:
    out = hosts.shared / "sweep"
    done = hosts["login"].run(["srun", "--mpi=pmi2", "-N2", "-n4", "meshlab", "bench", *SWEEP, "--out", str(out)])
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{WHERE}, MPICH")
    assert "span" not in done.stderr
    run = ml.Run.load(out)
    assert run.where == WHERE
    assert run.ranks["host"].tolist() == ["h1", "h1", "h2", "h2"]
    assert run.ranks["local_rank"].tolist() == [0, 1, 0, 1]
    assert run.ranks["device"].isna().all()
    assert set(run.conditions["host"]) == {"h1", "h2"}
    html = (out / "report.html").read_text()
    assert f'<p class="where">{WHERE}</p>' in html
    assert "<h3>2 hosts, identical</h3>" in html
    assert "on this CPU" not in html
    hidden = run.redacted()
    assert hidden.ranks["host"].nunique() == 2
    assert "h1" not in set(hidden.ranks["host"])
    assert not any(name.endswith(("h1", "h2")) for name in hidden.environment)


def test_ranks_that_take_turns_over_hosts_are_reported_with_better_orders(hosts: Hosts, slurm: Slurm) -> None:
    out = hosts.shared / "cyclic"
    start = ["srun", "--mpi=pmi2", "-m", "cyclic", "-N2", "-n4"]
    done = hosts["login"].run([*start, "meshlab", "bench", *SWEEP, "--out", str(out)])
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines() == [f"meshlab: {STRADDLE}"]
    run = ml.Run.load(out)
    assert run.ranks["host"].tolist() == ["h1", "h2", "h1", "h2"]
    note = f"{STRADDLE[0].upper()}{STRADDLE[1:]}."
    assert run.attrs["note"] == note
    assert any(STRADDLE in line for line in run.log)
    assert "use the mesh" in (out / "report.md").read_text()
    better = [*SWEEP[:-1], "local=2, node=2"]
    done = hosts["login"].run([*start, "meshlab", "bench", *better])
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.long
def test_an_acceptance_gives_the_reason_for_its_mesh(hosts: Hosts, slurm: Slurm) -> None:
    start = ["env", "COLUMNS=300", "srun", "--mpi=pmi2", "-N2", "-n4"]
    done = hosts["login"].run([*start, "meshlab", "acceptance", "--quick"])
    assert "The mesh is node=2, local=2, because there are 2 hosts with 2 ranks each." in done.stdout, done.stderr
    done = hosts["login"].run([*start, "-m", "cyclic", "meshlab", "acceptance", "--quick"])
    assert "The mesh is all_ranks=4, because the ranks of a host are not neighbours (h1, h2, h1, h2, …)" in done.stdout


PROBE = """
import meshlab as ml
engines = ml.engines.join()
if engines is not None:
    with engines:
        cluster = engines.probe()
        print(cluster.n_nodes, *cluster.names)
"""


def test_engines_probe_all_their_hosts(hosts: Hosts, slurm: Slurm) -> None:
    done = hosts["login"].run(["srun", "--mpi=pmi2", "-N2", "-n4", "python", "-c", PROBE])
    assert done.stdout.split() == ["2", "h1", "h2"], done.stderr
