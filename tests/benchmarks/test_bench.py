"""Whether the benchmark can be trusted: beside a plain mpi4py loop in the same ranks, in turns; and what it costs."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest

import meshlab as ml
from meshlab.plans._sampling import Sampling
from meshlab.runs._recorder import Recorder
from meshlab.runs._rundata import RunData
from meshlab.widgets._live import LiveView

cloudpickle.register_pickle_by_value(sys.modules[__name__])

MESH = ml.DeviceMesh("tp=2")
REPEATS = 5


@pytest.fixture(scope="module")
def two_ranks() -> Iterator[ml.Engines]:
    with ml.launch(2, backend="mpi") as engines:
        yield engines


@pytest.mark.parametrize("size", [1024, 65536, 1 << 20])
def test_isolated_calls_compared_with_an_osu_style_loop(benchmark: Any, two_ranks: ml.Engines, size: int) -> None:
    """OSU's way: a barrier, then one timed call, again and again; here summarised as meshlab does."""
    sampling = Sampling(min_batches=200, max_batches=200, precision=1e9, max_s=30)
    _compare(benchmark, two_ranks, "isolated", size, sampling, _osu_loop)


@pytest.mark.parametrize("size", [1024, 65536, 1 << 20])
def test_pipelined_calls_compared_with_a_plain_loop(benchmark: Any, two_ranks: ml.Engines, size: int) -> None:
    """The way of nccl-tests: calls back to back, the time of all of them divided by their number."""
    sampling = Sampling(min_batches=60, max_batches=60, precision=1e9, max_s=30)
    _compare(benchmark, two_ranks, "pipelined", size, sampling, _back_to_back)


def _compare(benchmark: Any, engines: ml.Engines, mode: str, size: int, sampling: Sampling, loop: Any) -> None:
    loops, ours = [], []
    for _ in range(REPEATS):
        per_rank = np.stack(engines.run(loop, MESH, axis="tp", arguments=(size,))["value"].tolist())
        loops.append(float(np.median(per_rank.max(axis=0))))
        run = ml.bench(engines, MESH, axis="tp", sizes=size, mode=mode, sampling=sampling, check=False)
        ours.append(float(run.wait(60)["time_us"].iloc[0]))
    spread, apart = max(loops) / min(loops) - 1, np.median(ours) / np.median(loops) - 1
    verdict = "no more" if abs(apart) <= spread else "MORE"
    print(
        f"\n    {mode} all_reduce of {size:,} B, median of {REPEATS}: plain loop {np.median(loops):.2f} µs "
        f"({min(loops):.2f} to {max(loops):.2f}), meshlab {np.median(ours):.2f} µs ({min(ours):.2f} to "
        f"{max(ours):.2f}): apart by {apart:+.1%}, the loop from itself by {spread:.1%}: {verdict}"
    )
    benchmark.extra_info |= {"loop_us": loops, "meshlab_us": ours, "apart": apart, "spread": spread}
    benchmark(lambda: None)


def _osu_loop(comm: Any, size: int) -> Any:
    from mpi4py import MPI

    mpi = comm.backend.comm
    send, out = np.zeros(size // 4, "float32"), np.zeros(size // 4, "float32")
    arguments = [send, MPI.FLOAT], [out, MPI.FLOAT], MPI.SUM
    for _ in range(20):
        mpi.Allreduce(*arguments)
    times = np.empty(200)
    for index in range(200):
        mpi.Barrier()
        begin = time.perf_counter_ns()
        mpi.Allreduce(*arguments)
        times[index] = (time.perf_counter_ns() - begin) / 1e3
    return times


def _back_to_back(comm: Any, size: int) -> Any:
    from mpi4py import MPI

    mpi = comm.backend.comm
    send, out = np.zeros(size // 4, "float32"), np.zeros(size // 4, "float32")
    arguments = [send, MPI.FLOAT], [out, MPI.FLOAT], MPI.SUM
    for _ in range(20):
        mpi.Allreduce(*arguments)
    calls = max(1, min(100, (1 << 22) // size))
    times = np.empty(60)
    for index in range(60):
        mpi.Barrier()
        begin = time.perf_counter_ns()
        for _ in range(calls):
            mpi.Allreduce(*arguments)
        times[index] = (time.perf_counter_ns() - begin) / 1e3 / calls
    return times


def test_the_overhead_of_a_step_on_two_ranks(benchmark: Any, two_ranks: ml.Engines) -> None:
    """What a run costs beside its calls: the round, the samples back, the rows."""
    sampling = Sampling(min_batches=6, max_batches=6, warmup_batches=0, batch_us=1, precision=1e9)

    def eight_steps() -> None:
        ml.bench(two_ranks, MESH, axis="tp", sizes="1K:128K", mode="isolated", sampling=sampling).wait(60)

    benchmark.pedantic(eight_steps, rounds=3)


@pytest.mark.parametrize("n_ranks", [2, 8])
def test_a_step_that_is_written_to_the_folder_of_its_run(benchmark: Any, n_ranks: int, tmp_path: Path) -> None:
    """Time of the thread that measures, after each step, with the most batches of the default sampling."""
    sampling = Sampling(min_batches=200, max_batches=200, batch_us=1, precision=1e-9)
    with ml.launch(n_ranks, backend="threads") as engines:
        run = ml.bench(engines, sizes="1K", mode="isolated", sampling=sampling)
        run.wait(60)
    rows, samples = run.since(0, 0)
    data = RunData(run.plan, run.mesh, run_id="written", source="threads", where=run.where)
    recorder = Recorder(data, tmp_path)
    recorder.start()

    def step() -> None:
        data.add(rows, samples)
        recorder.update()

    benchmark(step)
    assert not recorder.problem


def test_one_update_of_the_live_view(benchmark: Any, thread_engines: ml.Engines) -> None:
    """Time in the kernel to draw the last rows of a run. The view draws at most every 0.5 s."""
    mesh = ml.DeviceMesh("dp=2, tp=2")
    run = ml.bench(thread_engines, mesh, sizes="1K:1M", sampling=Sampling(max_s=0.01, min_batches=6))
    follower = LiveView(run).follower
    run.wait(60)

    def update() -> None:
        follower._n_rows -= 2
        follower._draw(run)

    benchmark(update)


def test_results_of_a_thousand_steps(benchmark: Any, make_results: Any) -> None:
    from meshlab.runs._rundata import results_frame, rows_of_results

    rows = 4 * rows_of_results(make_results())
    benchmark.extra_info["rows"] = len(rows)
    benchmark(lambda: results_frame(rows, fixed={}, attrs={}))


def test_a_run_of_a_thousand_ranks_is_saved(benchmark: Any, tmp_path: Path) -> None:
    """27 sizes with 40 batches on 128 groups of 8 ranks: 3,456 rows, and 1.1 million samples."""
    run = _run_of(n_ranks=1024, n_sizes=27, n_batches=40)
    benchmark.extra_info |= {"rows": len(run.results), "samples": len(run.samples)}
    benchmark.pedantic(lambda: run.save(tmp_path / "run"), rounds=3)
    mebibytes = sum(file.stat().st_size for file in (tmp_path / "run").iterdir()) / (1 << 20)
    print(f"\n    {len(run.samples):,} samples: {mebibytes:.0f} MiB")
    assert benchmark.stats.stats.min < 2.0


def _run_of(n_ranks: int, n_sizes: int, n_batches: int) -> RunData:
    """Return a run with random times: an all_reduce in groups of eight ranks."""
    mesh = ml.DeviceMesh(f"dp={n_ranks // 8}, tp=8")
    sampling = Sampling(min_batches=n_batches, max_batches=n_batches)
    run = RunData(ml.Plan("all_reduce", "tp", sampling=sampling), mesh, run_id="large", source="mpi", where="MPI")
    times = np.random.default_rng(0)
    shape = n_ranks, n_batches
    ranks = np.broadcast_to(np.arange(n_ranks)[:, None], shape).ravel()
    call = {"launch": 0, "axis": "tp", "grouping": "together", "status": "ok"}
    for step in range(n_sizes):
        size = {"collective": "all_reduce", "op": "sum", "dtype": "float32", "n_ranks": 8, "size_bytes": 1024 << step}
        rows = [{**call, **size, "step": step, "group": group.name, "time_us": 1.0} for group in mesh["tp"]]
        samples = {
            **{name: np.full(ranks.size, value, dtype=object) for name, value in call.items() if name != "launch"},
            "launch": np.zeros(ranks.size, dtype=np.int64),
            "step": np.full(ranks.size, step),
            "group": np.array([f"tp_{index}" for index in range(n_ranks // 8)], dtype=object)[ranks // 8],
            "rank": ranks,
            "batch": np.broadcast_to(np.arange(n_batches), shape).ravel(),
            "calls": np.ones(ranks.size, dtype=np.int64),
            "time_us": times.uniform(1, 100, ranks.size),
            "is_warmup": np.zeros(ranks.size, dtype=np.bool_),
        }
        run.add(rows, [samples])
    return run
