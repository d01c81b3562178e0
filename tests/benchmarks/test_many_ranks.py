"""What many ranks cost their client, with engines that are objects: see `tests.engines.stub_engines`."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meshlab as ml
from meshlab.engines._engines import Engines
from meshlab.engines._lease import Lease
from meshlab.engines._processes import AttachedSet, make_cluster
from meshlab.engines._worker import serve
from meshlab.frames._rows import RankSamples, rows_of_step, samples_of_step
from meshlab.runs._rundata import RunData
from tests.engines.stub_engines import StubSet

ROOT = Path(__file__).parents[2]


@pytest.fixture
def connect(tmp_path: Path) -> Iterator[Callable[[int], Any]]:
    """Connects a client to a number of engines that are objects of one process."""
    (tmp_path / "profile").mkdir()
    cluster = make_cluster(tmp_path / "profile", "stubs", "local")
    cluster.start_controller_sync()
    processes: list[subprocess.Popen[bytes]] = []

    def connected(n: int) -> Any:
        client = cluster.connect_client_sync(ipython_dir=str(tmp_path), timeout=60)
        file = cluster.controller.connection_files["engine"]
        command = [sys.executable, "-m", "tests.engines.stub_engines", str(file), str(n)]
        processes.append(subprocess.Popen(command, cwd=ROOT))
        client.wait_for_engines(n, timeout=120, interactive=False)
        return client

    try:
        yield connected
    finally:
        for process in processes:
            process.kill()
            process.wait()
        cluster.stop_cluster_sync()


def nothing(comm: Any) -> None:
    return None


@pytest.mark.parametrize("n_ranks", [64, 1024])
def test_a_round_beside_one_of_plain_ipyparallel(benchmark: Any, connect: Callable[[int], Any], n_ranks: int) -> None:
    """In turns with a direct view. A broadcast view takes longer, because its schedulers are written in Python."""
    client = connect(n_ranks)
    views = {"direct": client[:], "broadcast": client.broadcast_view()}
    with Engines(AttachedSet(client), deadline_s=60, timeout_s=60) as engines, Lease(engines, "a benchmark") as lease:
        rounds: dict[str, Callable[[], object]] = {
            "meshlab": lambda: lease.round(nothing).run(),
            **{name: lambda view=view: view.apply_sync(serve, "status", ()) for name, view in views.items()},
        }
        times = in_turns(rounds, 25 if n_ranks < 100 else 7)
        medians = {name: 1e3 * statistics.median(values) for name, values in times.items()}
        print(f"\n    {n_ranks} ranks: " + ", ".join(f"{name} {median:.0f} ms" for name, median in medians.items()))
        ratio = medians["meshlab"] / medians["direct"]
        benchmark.extra_info |= {**medians, "ratio to the direct view": ratio}
        benchmark.pedantic(rounds["meshlab"], rounds=3)
    assert ratio < 1.3


def in_turns(functions: dict[str, Callable[[], object]], n: int) -> dict[str, list[float]]:
    """Return the times of functions that take turns, after one call of each."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for number in range(n + 1):
        for name, function in functions.items():
            begin = time.perf_counter()
            function()
            if number:
                times[name].append(time.perf_counter() - begin)
    return times


def test_the_client_in_a_step_of_a_thousand_ranks(benchmark: Any) -> None:
    """The round and the rows of an all_reduce in 128 groups, without the messages."""
    n_ranks, n_batches = 1024, 40
    mesh = ml.DeviceMesh(f"dp={n_ranks // 8}, tp=8")
    plan = ml.Plan("all_reduce", "tp", sizes="1K")
    run = RunData(plan, mesh, run_id="large", source="threads", where="threads")
    step, groups = run.steps[0], run.steps[0].measured_groups(mesh["tp"])
    with Engines(StubSet(n_ranks), deadline_s=60, timeout_s=60) as engines, Lease(engines, "a benchmark") as lease:
        hosts = [info.host for info in engines.ranks]

        def measure() -> None:
            replies = lease.round(sampled, mesh, "tp", (n_batches,)).run()
            of_rank = {reply.rank: reply.value for reply in replies}
            rows = rows_of_step(step, groups, of_rank, hosts)
            run.add(rows, samples_of_step(step, groups, of_rank, hosts), launch=0, process_set="0")

        benchmark.pedantic(measure, rounds=7, warmup_rounds=1)
    assert benchmark.stats.stats.median < 0.25


def sampled(comm: Any, n: int) -> RankSamples:
    """Return what a rank returns for a step."""
    times = np.random.default_rng(comm.rank).uniform(10, 20, n)
    return RankSamples(
        time_us=times,
        host_us=times,
        start_us=None,
        calls=np.ones(n, dtype=np.int64),
        is_warmup=np.zeros(n, dtype=np.bool_),
        is_covered=np.ones(n, dtype=np.bool_),
        stop_reason="batches",
        n_wrong=0,
    )
