"""Ranks that Slurm starts on two hosts, and ranks that start on this host although Slurm has given others."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from meshlab.base._version import __version__
from tests.hosts.network import ROOT, Hosts
from tests.hosts.slurm import Slurm

pytestmark = pytest.mark.full

BENCH = ["meshlab", "bench", "all_reduce", "--sizes", "1K", "--sampling", "quick"]

# As in ipyparallel's documentation. With another template, the engines would be one MPI world.
ATTACH = """
import sys
import ipyparallel
import meshlab as ml
from traitlets.config import Config

config = Config()
if len(sys.argv) > 1:
    config.SlurmEngineSetLauncher.batch_template = sys.argv[1]
arguments = sys.argv[2:]
cluster = ipyparallel.Cluster(
    engines="slurm", n=4, controller_ip="10.77.0.10", delay=0, config=config, controller_args=arguments
)
with cluster as client:
    client.wait_for_engines(4, timeout=60)
    try:
        with ml.attach(client) as engines:
            print([(info.rank, info.host) for info in engines.ranks])
            engines.run(lambda comm: print("word-of-rank", comm.rank))
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


@pytest.mark.parametrize(
    "command",
    [
        [*BENCH, "--mesh", "node=2, local=2"],
        pytest.param([*BENCH, "--here", "--mesh", "tp=4"], marks=pytest.mark.long),
        pytest.param(["meshlab", "acceptance"], marks=pytest.mark.long),
    ],
    ids=["bench", "bench --here", "acceptance"],
)
def test_srun_without_pmi_is_reported_once_with_its_cure(hosts: Hosts, slurm: Slurm, command: list[str]) -> None:
    done = hosts["login"].run(["srun", "-N2", "-n4", *command])
    lines = [line for line in done.stderr.splitlines() if line.startswith("meshlab:")]
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("meshlab: srun started 4 processes, but MPICH")
    assert lines[0].endswith("finds only one of them; start them with srun --mpi=pmi2")
    assert done.returncode == 2
    assert not done.stdout


@pytest.mark.long
def test_ranks_of_srun_with_another_version_are_refused(hosts: Hosts, slurm: Slurm) -> None:
    other, target = hosts.shared / "other_version.py", str(ROOT / "meshlab/base/_version.py")
    other.write_text('__version__ = "0.0.7"\n')
    hosts["h2"].run(["mount", "--bind", str(other), target], check=True)
    try:
        done = hosts["login"].run(["srun", "--mpi=pmi2", "--nodelist=h1,h2", "-N2", "-n4", *BENCH])
    finally:
        hosts["h2"].run(["umount", target], check=True)
    text = f"the hosts have different versions of meshlab: {__version__} on h1, 0.0.7 on h2"
    lines = [line for line in done.stderr.splitlines() if line.startswith("meshlab:")]
    assert lines == [f"meshlab: {text}; install the same version on all hosts"], done.stderr
    assert done.returncode == 2
    assert not done.stdout


@pytest.mark.long
def test_a_missing_interface_is_named_before_mpi_ends_the_ranks_of_srun(hosts: Hosts, slurm: Slurm) -> None:
    command = ["srun", "--mpi=pmi2", "--nodelist=h1,h2", "-N2", "-n4", *BENCH]
    done = hosts["login"].run(command, env={"FI_TCP_IFACE": "eth9"})
    lines = [line for line in done.stderr.splitlines() if line.startswith("meshlab:")]
    assert lines == ["meshlab: h1 has no network interface eth9, which FI_TCP_IFACE names"], done.stderr
    assert done.returncode != 0


@pytest.mark.parametrize(
    "begin",
    [
        ("salloc", "-N2", "-n4"),
        pytest.param(("sbatch", "-N2", "-n4", "-W", "-o", "batch.log"), marks=pytest.mark.long),
    ],
    ids=["salloc", "sbatch"],
)
def test_ranks_of_this_host_start_on_this_host_in_an_allocation_of_two(
    hosts: Hosts, slurm: Slurm, begin: tuple[str, ...]
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


@pytest.mark.long
def test_engines_of_slurm_without_pmi_name_the_template(hosts: Hosts, slurm: Slurm) -> None:
    done = hosts["login"].python(ATTACH)
    assert "srun started 4 processes, but MPICH" in done.stdout, done.stderr
    assert "srun --mpi=pmi2; in ipyparallel, that line is in SlurmEngineSetLauncher.batch_template" in done.stdout


@pytest.mark.long
@pytest.mark.parametrize("arguments", [(), ("--IPController.enable_curve=True",)], ids=["clear text", "encrypted"])
def test_engines_of_slurm_with_pmi2_are_attached_and_clear_text_is_reported(
    hosts: Hosts, slurm: Slurm, arguments: tuple[str, ...], tmp_path: Path
) -> None:
    with hosts.capture(tmp_path / "packets", "tcp"):
        done = hosts["login"].python(ATTACH, TEMPLATE, *arguments)
    assert "[(0, 'h1'), (1, 'h1'), (2, 'h2'), (3, 'h2')]" in done.stdout, done.stdout + done.stderr
    is_readable = b"word-of-rank" in (tmp_path / "packets").read_bytes()
    warning = "UserWarning: the controller of the engines listens on 10.77.0.10 without encryption"
    assert is_readable == (not arguments)
    assert (warning in done.stderr) == (not arguments)
