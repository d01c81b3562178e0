"""Ranks that Slurm starts on two hosts, and ranks that start on this host although Slurm has given others."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests.hosts.network import Hosts
from tests.hosts.slurm import Slurm

pytestmark = pytest.mark.full

BENCH = ["meshlab", "bench", "all_reduce", "--sizes", "1K", "--sampling", "quick"]
NO_PMI = "meshlab: srun started 4 processes, but MPICH"

# As in ipyparallel's documentation. With another template, the engines would be one MPI world.
ATTACH = """
import sys
import ipyparallel
import meshlab as ml
from traitlets.config import Config

config = Config()
if len(sys.argv) > 1:
    config.SlurmEngineSetLauncher.batch_template = sys.argv[1]
cluster = ipyparallel.Cluster(engines="slurm", n=4, controller_ip="*", delay=0, config=config)
with cluster as client:
    client.wait_for_engines(4, timeout=60)
    try:
        with ml.attach(client) as engines:
            print([(info.rank, info.host) for info in engines.ranks])
    except ml.errors.EngineError as error:
        print(error)
"""
TEMPLATE = """#!/bin/sh
#SBATCH --nodes=2 --ntasks={n}
srun --mpi=pmi2 {program_and_args}
"""


def test_srun_with_pmi2_starts_one_world_on_two_hosts(hosts: Hosts, slurm: Slurm) -> None:
    done = hosts["login"].run(["srun", "--mpi=pmi2", "-N2", "-n4", *BENCH, "--mesh", "node=2, local=2"])
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("ready in") == 1
    assert "groups verified" in done.stdout


def test_srun_without_pmi_is_reported_once_with_its_cure(hosts: Hosts, slurm: Slurm) -> None:
    login = hosts["login"]
    for command in (
        [*BENCH, "--mesh", "node=2, local=2"],
        [*BENCH, "--here", "--mesh", "tp=4"],
        ["meshlab", "acceptance"],
    ):
        done = login.run(["srun", "-N2", "-n4", *command])
        lines = [line for line in done.stderr.splitlines() if line.startswith("meshlab:")]
        assert len(lines) == 1, done.stderr
        assert lines[0].startswith(NO_PMI)
        assert lines[0].endswith("finds only one of them; start them with srun --mpi=pmi2")
        assert done.returncode == 2
        assert not done.stdout


@pytest.mark.parametrize("begin", [("salloc", "-N2", "-n4"), ("sbatch", "-N2", "-n4", "-W", "-o", "batch.log")])
def test_ranks_of_this_host_start_on_this_host_in_an_allocation_of_two(
    hosts: Hosts, slurm: Slurm, begin: tuple[str, ...], tmp_path: Path
) -> None:
    script = hosts.shared / "ranks.py"
    script.write_text(
        textwrap.dedent(
            """\
            #!/usr/bin/env python3
            import socket
            import meshlab as ml
            with ml.launch(3, backend="mpi") as engines:
                assert {info.host for info in engines.ranks} == {socket.gethostname()}
                print("sum", engines.run(lambda comm: comm.all_reduce(comm.xp.ones(1)))["value"][0])
            """
        )
    )
    script.chmod(0o755)
    program = ["python", str(script)] if begin[0] == "salloc" else [str(script)]
    done = hosts["login"].run([*begin, *program])
    output = done.stdout if begin[0] == "salloc" else (hosts.shared / "batch.log").read_text()
    assert "sum [3.]" in output, done.stderr + output
    assert done.returncode == 0


def test_engines_of_slurm_without_pmi_name_the_template(hosts: Hosts, slurm: Slurm) -> None:
    done = hosts["login"].python(ATTACH)
    assert "srun started 4 processes, but MPICH" in done.stdout, done.stderr
    assert "srun --mpi=pmi2; in ipyparallel, that line is in SlurmEngineSetLauncher.batch_template" in done.stdout


def test_engines_of_slurm_with_pmi2_are_attached(hosts: Hosts, slurm: Slurm) -> None:
    done = hosts["login"].python(ATTACH, TEMPLATE)
    logs = "".join(path.read_text() for path in (hosts.shared / "ipython").glob("profile*/log/*"))
    assert done.stdout.strip() == "[(0, 'h1'), (1, 'h1'), (2, 'h2'), (3, 'h2')]", done.stdout + done.stderr + logs
