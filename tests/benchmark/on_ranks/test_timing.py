"""The code on the ranks: buffers, the check of results, and the end of sampling."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import meshlab as ml
from meshlab.benchmark.on_ranks._buffers import allocate
from meshlab.benchmark.on_ranks._checking import count_wrong_elements
from meshlab.benchmark.on_ranks._sampling import group_vote, measure_step, take_batches
from meshlab.benchmark.on_ranks._step_calls import prepare_step
from meshlab.comm._backend import Timings
from meshlab.comm._catalog import CATALOG
from meshlab.comm.backends._threads import ThreadBackend, ThreadWorld
from meshlab.plans._plan import Plan
from meshlab.plans._sampling import Sampling
from tests.conftest import FULL_ON_MPI

MESH = ml.DeviceMesh("tp=4")
MEASURABLE = [name for name, row in CATALOG.items() if row.is_measurable]


def steps(**arguments: Any) -> Any:
    given = {"collective": MEASURABLE, "axis": "tp", "sizes": "64", **arguments}
    return Plan(**given).steps(MESH)


def test_buffers_have_the_sizes_of_the_catalog(thread_engines: ml.Engines) -> None:
    for step in steps(in_place=[True, False]):
        row = CATALOG[step.collective]

        def look(comm: Any, step: Any = step, row: Any = row) -> list[bool]:
            ((send, out),) = allocate([(comm, step)])
            return [
                send.size == row.elements("sends", step.count, comm.size),
                out.size == row.elements("receives", step.count, comm.size),
                np.shares_memory(send, out) == step.in_place,
            ]

        assert thread_engines.run(look, MESH, axis="tp")["value"].tolist() == [[True, True, True]] * 4


@pytest.mark.parametrize("engines", FULL_ON_MPI, indirect=True)
def test_correct_results_have_no_wrong_elements(engines: ml.Engines) -> None:
    for step in steps(in_place=[True, False], dtype=["float32", "bfloat16"], op=["sum", "avg"], root=1):
        frame = engines.run(measure_step, MESH, axis="tp", arguments=(step, Sampling(max_s=0.01, min_batches=6), True))
        assert frame["error"].isna().all(), frame["error"].tolist()
        assert [value.n_wrong for value in frame["value"]] == [0] * 4, step


@pytest.mark.parametrize("collective", MEASURABLE)
def test_a_wrong_element_is_counted(
    thread_engines: ml.Engines, monkeypatch: pytest.MonkeyPatch, collective: str
) -> None:
    honest = ThreadBackend.prepare

    def corrupt(self: ThreadBackend, call: Any) -> Any:
        prepared = honest(self, call)
        work = type(prepared).__call__

        class Corrupted(type(prepared)):  # type: ignore[misc]
            def __call__(self) -> None:
                work(self)
                if self._backend.rank == 2:
                    self._calls[0].recv.reshape(-1)[:3] += 1

        prepared.__class__ = Corrupted
        return prepared

    monkeypatch.setattr(ThreadBackend, "prepare", corrupt)
    (step,) = steps(collective=collective, root=2)

    def count(comm: Any) -> int:
        (buffers,) = allocate([(comm, step)])
        return count_wrong_elements(comm, step, prepare_step(comm, step, buffers), buffers)

    assert thread_engines.run(count, MESH, axis="tp")["value"].tolist() == [0, 0, 3, 0]


def test_all_ranks_stop_at_the_same_batch_with_a_reason(engines: ml.Engines) -> None:
    (step,) = steps(collective="all_reduce")
    cases = {
        "batches": Sampling(precision=1e-9, min_batches=6, max_batches=12, max_s=60),
        "time": Sampling(precision=1e-9, min_batches=6, max_batches=10**6, max_s=0.05),
        "precise": Sampling(precision=1e9, min_batches=12, max_s=60),
    }
    for reason, sampling in cases.items():
        values = engines.run(measure_step, MESH, axis="tp", arguments=(step, sampling, False))["value"]
        batches = list(values)
        assert {one.stop_reason for one in batches} == {reason}
        assert len({len(one.time_us) for one in batches}) == 1
        assert len({tuple(one.calls) for one in batches}) == 1
        assert len({tuple(one.is_warmup) for one in batches}) == 1
        assert {value.n_wrong for value in values} == {None}
        # Three single calls and the batches for warm-up are kept and marked, and possibly some slow batches after them.
        # If a rank waits for a core for longer than the step may take, the time is up before the warm-up ends.
        assert batches[0].is_warmup[: 1 if reason == "time" else 3 + sampling.warmup_batches].all()
        assert batches[0].calls[:3].tolist() == [1, 1, 1]
        assert (~batches[0].is_warmup).sum() >= 6


def test_groups_stop_together_so_that_none_is_measured_next_to_idle_ones() -> None:
    """A call takes 2 ms, or 6 ms while the other group is busy. One group needs more batches than the other."""
    n_calls = {0: 0, 1: 0}
    random = np.random.default_rng(0)

    def work(comm: Any) -> Any:
        group = comm.ranks[0] // 2

        def step() -> None:
            if comm.rank == 0:
                # A group that goes on alone is soon ahead by more calls than there are between two votes.
                n_calls[group] += 1
                is_busy = n_calls[group] - n_calls[1 - group] < 12
                time.sleep((0.006 if is_busy else 0.002) * (random.uniform(0.6, 1.4) if group else 1))
            comm.barrier()

        return step

    with ml.launch(4, backend="threads") as engines:
        sampling = Sampling(max_s=10, min_batches=12, max_batches=120)
        run = ml.bench(engines, ml.DeviceMesh("dp=2, tp=2"), work, axis="tp", mode="isolated", sampling=sampling)
        results = run.wait(60)
    assert results["n_samples"].nunique() == 1
    assert (results["time_us"] > 5000).all(), results["time_us"].tolist()


def test_a_slow_function_is_called_few_times_and_still_has_an_interval() -> None:
    called = []

    def slow(comm: Any) -> None:
        called.append(comm.rank)
        time.sleep(0.2)
        comm.barrier()

    with ml.launch(2, backend="threads", deadline_s=30) as engines:
        results = ml.bench(engines, ml.DeviceMesh("tp=2"), slow, axis="tp", mode="isolated").wait(120)
    assert results["status"].tolist() == ["ok"]
    assert results["n_samples"].tolist() == [6]
    assert results["time_us_lo"].notna().all()
    assert called.count(0) == 1 + 1 + 6  # to determine its return value, one probe, and the batches


@pytest.mark.parametrize(("call_s", "n"), [(1.5, 6), (4.0, 2), (30.0, 1)])
def test_very_slow_calls_are_measured_few_times(monkeypatch: pytest.MonkeyPatch, call_s: float, n: int) -> None:
    now = [0.0]
    monkeypatch.setattr("meshlab.benchmark.on_ranks._sampling.time.perf_counter", lambda: now[0])

    def measure(mode: Any, calls: int, batches: int) -> Timings:
        now[0] += call_s * batches
        times = np.full(batches, call_s * 1e6)
        return Timings(times, times, None)

    comm = ml.Communicator(ThreadWorld(1).backend(0))
    taken = take_batches(measure, group_vote(comm), "pipelined", Sampling())
    assert (~taken.is_warmup).sum() == n
    assert taken.stop_reason == "time"


def test_isolated_calls_are_single_and_have_start_times(engines: ml.Engines) -> None:
    (step,) = steps(collective="all_reduce", mode="isolated")
    values = engines.run(measure_step, MESH, axis="tp", arguments=(step, Sampling(max_s=0.05), False))["value"]
    assert all((value.calls == 1).all() for value in values)
    assert all(len(value.start_us) == len(value.time_us) for value in values)
    (pipelined,) = steps(collective="all_reduce")
    values = engines.run(measure_step, MESH, axis="tp", arguments=(pipelined, Sampling(max_s=0.05), False))["value"]
    assert all(value.start_us is None for value in values)
    assert replace(pipelined, mode="isolated") == step


def test_batches_that_the_load_did_not_cover_are_kept_but_not_counted() -> None:
    """Every third batch is measured without load, and is much faster."""
    taken = []

    def measure(mode: Any, calls: int, batches: int) -> Timings:
        covered = (np.arange(batches) + len(taken)) % 3 > 0
        taken.extend(covered)
        times = np.where(covered, 100.0, 10.0)
        return Timings(times, times, None, covered)

    with ml.launch(1, backend="threads") as engines:
        batches = engines.run(
            lambda comm: take_batches(measure, group_vote(comm), "pipelined", Sampling(min_batches=12))
        )["value"][0]
    assert batches.is_covered.tolist() == taken
    assert batches.is_warmup[~batches.is_covered].all()
    assert (batches.time_us[~batches.is_warmup] == 100).all()
    assert (~batches.is_warmup).sum() >= 12
    assert batches.stop_reason == "precise"


def test_a_load_that_never_covers_a_batch_ends_after_the_maximum_number_of_batches() -> None:
    def measure(mode: Any, calls: int, batches: int) -> Timings:
        times = np.full(batches, 10.0)
        return Timings(times, times, None, np.zeros(batches, dtype=bool))

    with ml.launch(1, backend="threads") as engines:
        batches = engines.run(
            lambda comm: take_batches(measure, group_vote(comm), "pipelined", Sampling(max_batches=60))
        )["value"][0]
    assert batches.stop_reason == "batches"
    assert batches.is_warmup.all()
