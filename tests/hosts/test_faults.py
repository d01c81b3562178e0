"""A host whose network goes away, and a process that is stopped: both are named, and what is whole goes on."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.hosts.network import Host, Hosts, end_tree, wait_until

pytestmark = pytest.mark.full

# Engines on h1 and h2, with a client on login. It measures until a host drops, and attaches again on request.
ATTACHED = """
import sys, time
from pathlib import Path

import ipyparallel
import meshlab as ml
from traitlets.config import Config

deadline_s, *arguments = sys.argv[1:]
config = Config()
config.MPIEngineSetLauncher.mpi_args = ["-launcher", "ssh", "-hosts", "h1,h2", "-ppn", "2"]
arguments += ["--IPController.enable_curve=True"]
cluster = ipyparallel.Cluster(
    engines="mpi", n=4, controller_ip="10.77.0.10", delay=0, config=config, controller_args=arguments
)
with cluster as client:
    client.wait_for_engines(4, timeout=60)
    engines = ml.attach(client, deadline_s=float(deadline_s))
    run = ml.bench(engines, "node=2, local=2", axis="node", sizes="1K:64M", sampling=ml.Sampling(max_s=2))
    while run.progress.done < 1 and run.state == "running":
        time.sleep(0.1)
    print("measuring", flush=True)
    try:
        run.wait(progress=False)
    except ml.MeshlabError as error:
        print(f"{error} ({len(run.results)} rows)".replace("\\n", " "), flush=True)
    while not Path("again").exists():
        time.sleep(0.1)
    try:
        with ml.attach(client) as engines:
            print("sum", engines.run(lambda comm: comm.all_reduce(comm.xp.ones(1)).item())["value"].tolist())
    except ml.MeshlabError as error:
        print(error)
"""


@contextmanager
def running(host: Host, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = host.start(arguments)
    try:
        yield process
    finally:
        end_tree(process)


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        assert process.stderr is not None
        pytest.fail(process.stderr.read())
    return line.strip().replace("\N{THIN SPACE}", " ")


@pytest.mark.parametrize(
    ("arguments", "what", "again"),
    [
        # The deadline, and the 2 s for which a step may be sampled.
        (("10",), "did not respond within 12 s", "call attach() again, which waits for the same processes"),
        pytest.param(
            ("60", "--HeartMonitor.period=500"),
            "disconnected",
            "restart the engines where they were started, and",
            marks=pytest.mark.long,
        ),
    ],
    ids=["deadline", "heartbeat"],
)
def test_a_host_that_drops_is_named_and_attached_again(
    ssh: Hosts, arguments: tuple[str, ...], what: str, again: str
) -> None:
    (ssh.shared / "again").unlink(missing_ok=True)
    with running(ssh["login"], "python", "-c", ATTACHED, *arguments) as client:
        assert line_of(client) == "measuring"
        ssh["h2"].set_link("down")
        error = line_of(client)
        assert f"h2 does not answer: ranks 2, 3 {what} while step" in error
        assert again in error
        rows = re.search(r"\((\d+) rows\)", error)
        assert rows is not None
        assert int(rows[1]) >= 2
        ssh["h2"].set_link("up")
        (ssh.shared / "again").touch()
        if "same processes" in again:
            assert line_of(client) == "sum [4.0, 4.0, 4.0, 4.0]"
        client.wait(60)  # it ends the engines


JOINED = """
import os, signal, sys, time

import meshlab as ml
from meshlab.engines import join


def stop(comm, rank):
    if comm.rank == rank:
        os.kill(os.getpid(), signal.SIGSTOP)
    return comm.all_reduce(comm.xp.ones(1)).item()


engines = join(deadline_s=float(sys.argv[1]))
if engines is not None:
    with engines:
        try:
            if sys.argv[2] == "down":
                while True:
                    engines.run(lambda comm: comm.all_reduce(comm.xp.ones(1)).item())
                    print("ready", flush=True)
            engines.run(stop, arguments=(int(sys.argv[2]),))
        except ml.MeshlabError as error:
            print(error, flush=True)
"""
ON_TWO_HOSTS = ("mpiexec", "-launcher", "ssh", "-hosts", "h1,h2", "-ppn", "2", "-n", "4", "python", "-c", JOINED)


@pytest.mark.parametrize("rank", [1, 3])
def test_a_stopped_rank_of_mpiexec_is_named_alone_on_any_host(ssh: Hosts, rank: int) -> None:
    with running(ssh["h1"], *ON_TWO_HOSTS, "4", str(rank)) as program:
        what = {1: "was stopped by a signal", 3: "did not respond within 4.0 s"}[rank]
        host = {1: "h1", 3: "h2"}[rank]
        assert re.match(
            rf"rank {rank} \(process \d+ on {host}\) {what} while running stop; start the", line_of(program)
        )


def test_a_host_that_drops_is_named_under_mpiexec(ssh: Hosts) -> None:
    with running(ssh["h1"], *ON_TWO_HOSTS, "5", "down") as program:
        assert line_of(program) == "ready"
        ssh["h2"].set_link("down")
        while (line := line_of(program)) == "ready":
            pass
        assert line.startswith("h2 does not answer: ranks 2, 3 did not respond within 5.0 s while running")
    wait_until(lambda: not ssh["h1"].processes("import os, signal"), subject="the end of the ranks of h1")
