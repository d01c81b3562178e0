"""Behaviour of ranks in a run: user-defined functions, stragglers, spikes and warm-up."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

import meshlab as ml
from meshlab.analysis._stragglers import find_spikes, find_stragglers
from meshlab.base._errors import BenchError, EngineError
from meshlab.comm.backends._threads import ThreadBackend
from meshlab.frames._schema import RESULTS, SAMPLES, conform
from meshlab.frames._statistics import leading_warmup, spike_limit
from meshlab.frames._table import results_table
from meshlab.plans._sampling import Sampling
from tests.conftest import FULL_ON_MPI

MESH = ml.DeviceMesh("dp=2, tp=2")
SHORT = Sampling(max_s=0.3, min_batches=12, max_batches=40)
DELAY_S = 0.05  # much longer than a busy machine lets a rank wait for a core


def slow_on_rank_2(comm: Any) -> Any:
    """Compute before the collective, longer on rank 2."""
    x = comm.xp.zeros(256, "float32")

    def step() -> None:
        if comm.world_rank == 2:
            time.sleep(DELAY_S)
        comm.all_reduce(x, x)

    return step


def test_a_function_is_timed_like_a_collective(engines: ml.Engines) -> None:
    def sum_up(comm: Any) -> None:
        comm.all_reduce(comm.xp.ones(8))

    run = ml.bench(engines, MESH, [sum_up, "all_reduce"], axis="tp", sizes="1K", sampling=SHORT)
    results = run.wait(120)
    own = results[results["collective"] == "sum_up"]
    assert own["group"].tolist() == ["tp_0", "tp_1"]
    assert own[["size_bytes", "count", "dtype", "op", "n_wrong", "busbw_gbs"]].isna().all().all()
    assert (own["status"] == "ok").all()
    assert (own["time_us"] > 0).all()
    assert (own["n_samples"] >= 6).all()
    assert set(run.samples.loc[run.samples["step"] == own["step"].iloc[0], "rank"]) == {0, 1, 2, 3}
    run._repr_html_()
    assert "sum_up" in ml.Report(run).markdown()
    assert "sum_up  " in str(results_table(results))


def test_a_callable_that_a_function_returns_is_timed(thread_engines: ml.Engines) -> None:
    made = []

    def prepare(comm: Any) -> Any:
        made.append(comm.rank)
        return comm.prepare("barrier")

    ml.bench(thread_engines, MESH, prepare, axis="tp", mode="isolated", sampling=SHORT).wait(120)
    assert sorted(made) == [0, 0, 1, 1]


@pytest.mark.usefixtures("patient_rounds")
def test_a_function_that_raises_on_all_ranks_is_a_failed_row(thread_engines: ml.Engines) -> None:
    def broken(comm: Any) -> None:
        raise RuntimeError("not today")

    results = ml.bench(thread_engines, MESH, [broken, "all_reduce"], axis="tp", sizes="1K", sampling=SHORT).wait(120)
    assert results["status"].tolist() == ["failed", "failed", "ok", "ok"]
    assert results["stop_reason"].iloc[0].endswith("RuntimeError: not today")


@pytest.mark.parametrize("is_prepared", [False, True])
def test_a_rank_that_returns_before_a_collective_is_named_without_the_calls_of_the_benchmark(
    thread_engines: ml.Engines, is_prepared: bool
) -> None:
    def skip(comm: Any) -> Any:
        def call() -> None:
            if comm.world_rank != 1:
                comm.all_reduce(comm.xp.ones(8))

        return call if is_prepared else call()

    run = ml.bench(thread_engines, None, skip, sampling=SHORT)
    with pytest.raises(BenchError) as caught:
        run.wait(120)
    expected = "rank 1 has returned from skip, but other ranks wait in a collective that it has not called"
    assert expected in str(caught.value)
    assert run.results["stop_reason"].tolist() == [f"{expected}; issue the same calls on every rank"]


def test_a_rank_that_never_returns_from_a_function_is_named(
    thread_engines: ml.Engines, deadline_at: Callable[..., None]
) -> None:
    gate = threading.Event()

    def wait(comm: Any) -> None:
        if comm.world_rank == 1:
            gate.wait(60)

    deadline_at(1, 0, 1, 1)
    run = ml.bench(thread_engines, None, wait, sampling=SHORT, deadline_s=1)
    with pytest.raises(EngineError, match=r"^rank 1 entered 0 .*; rank 1 has not returned from the function"):
        run.wait(120)
    gate.set()


@pytest.mark.parametrize("engines", FULL_ON_MPI, indirect=True)
def test_a_delayed_rank_is_found(engines: ml.Engines) -> None:
    sampling = Sampling(max_s=60, min_batches=24, max_batches=24)
    run = ml.bench(engines, MESH, slow_on_rank_2, axis=["world", "tp"], mode="isolated", sampling=sampling)
    run.wait(60)
    found = run.stragglers()
    late = found[found["is_straggler"]]
    assert sorted(zip(late["group"], late["rank"], strict=True)) == [("tp_1", 2), ("world", 2)]
    assert (late["last_share"] > 0.9).all()
    assert late["late_us"].between(1e6 * DELAY_S / 2, 1e6 * DELAY_S * 25).all()
    # It does not wait for other ranks, so its time inside the collective is the smallest, although the complete call
    # takes the same time on all ranks.
    assert found["rank"].iloc[0] == 2


def test_no_rank_is_a_straggler_below_the_floor(make_samples: Any) -> None:
    """Starts that differ by no more than the exit skew of a barrier are not significant."""
    random = np.random.default_rng(1)
    even = np.array([0.0, 1.0, 2.0, 3.0])[:, None] + random.normal(0, 0.1, (4, 60))
    samples, results = make_samples(starts=even, times=20 - even)
    found = find_stragglers(samples, results)
    assert not found["is_straggler"].any()
    assert (found["floor_us"] > 16).all()  # the time of the collective on the rank that waits least
    late = even.copy()
    late[1] += 50
    samples, results = make_samples(starts=late, times=70 - late)
    found = find_stragglers(samples, results)
    assert found.loc[found["is_straggler"], "rank"].tolist() == [1]
    assert found.loc[found["rank"] == 1, "shortest_share"].item() == 1.0  # the late rank shows the smallest time
    assert found["late_us"].iloc[0] == pytest.approx(50, abs=2)


def test_a_rank_that_nobody_waits_for_has_a_wrong_clock(make_samples: Any) -> None:
    """A clock that runs one percent fast, with batches that take the same time on all ranks."""
    random = np.random.default_rng(1)
    starts = random.normal(0, 0.1, (4, 60))
    starts[1] += 0.01 * 1e3 * np.arange(60)
    samples, results = make_samples(starts=starts, times=np.full((4, 60), 20.0))
    found = find_stragglers(samples, results)
    assert found["late_us"].iloc[0] > 200
    assert not found["is_straggler"].any()
    assert found["floor_us"].iloc[0] > found["late_us"].iloc[0]


def test_a_rank_that_is_late_for_a_part_of_the_step_is_not_a_straggler(make_samples: Any) -> None:
    """A rank that loses its core for a while is the last one in most batches, and late by more than the floor."""
    random = np.random.default_rng(1)
    starts = random.normal(0, 0.5, (4, 60))
    starts[1] += np.where(np.arange(60) < 33, 400, -30)
    times = starts.max(axis=0) - starts + 20
    samples, results = make_samples(starts=starts, times=times)
    worst = find_stragglers(samples, results).iloc[0]
    assert worst["rank"] == 1
    assert worst["last_share"] > 0.5
    assert worst["late_us"] > worst["floor_us"]
    assert not worst["is_straggler"]
    starts[1] += np.where(np.arange(60) < 33, 0, 430)
    samples, results = make_samples(starts=starts, times=starts.max(axis=0) - starts + 20)
    assert find_stragglers(samples, results).query("is_straggler")["rank"].tolist() == [1]


def test_the_starts_of_the_other_groups_raise_the_floor_of_a_function() -> None:
    """Ranks that wake up at different times are not stragglers, even if one is late in most batches of its group."""
    random = np.random.default_rng(4)
    late = {"tp_0": (0, 1), "tp_1": (2, 3)}
    samples, results = [], []
    for group, ranks in late.items():
        where = {"run_id": "r", "launch": 0, "step": 0, "axis": "tp", "group": group, "status": "ok"}
        results.append(where | {"collective": "own", "time_us": 2000.0, "alignment_us": 2.0})
        for batch in range(40):
            offsets = np.array([0.0, random.normal(300, 20)])
            samples += [
                where | {"rank": rank, "batch": batch, "time_us": 2000.0, "is_warmup": False, "start_offset_us": offset}
                for rank, offset in zip(ranks, offsets, strict=True)
            ]
    frames = conform(pd.DataFrame(samples), SAMPLES), conform(pd.DataFrame(results), RESULTS)
    found = find_stragglers(*frames)
    assert found.iloc[0][["last_share", "floor_us"]].tolist() == pytest.approx([1.0, 300.0], abs=10)
    assert found["is_straggler"].sum() <= 1  # the medians of both groups are nearly equal
    frames[0].loc[frames[0]["group"] == "tp_0", "start_offset_us"] /= 100
    assert find_stragglers(*frames).query("is_straggler")["rank"].tolist() == [3]


@pytest.mark.parametrize(("late_us", "expected"), [(2.0, [5.0, 40.0]), (20.0, [20.0, 40.0])])
def test_the_floor_of_a_pair_is_its_own_fastest_message_or_its_alignment(late_us: float, expected: list[float]) -> None:
    random = np.random.default_rng(3)
    results, samples = [], []
    for step, (collective, src, dst, time_us) in enumerate(
        [("send_recv", 0, 1, 5.0), ("send_recv", 0, 2, 40.0), ("send", 0, 2, 1.0)]
    ):
        where = {"run_id": "r", "launch": 0, "step": step, "axis": "world", "group": "world", "grouping": "pairs"}
        where |= {"src_rank": src, "dst_rank": dst, "status": "ok"}
        results.append(where | {"collective": collective, "size_bytes": 1024, "time_us": time_us})
        samples += [
            where
            | {"rank": rank, "batch": batch, "time_us": time_us, "is_warmup": False}
            | {"start_offset_us": abs(random.normal(0, 0.1)) + late_us * (rank != src)}
            for rank in (src, dst)
            for batch in range(20)
        ]
    found = find_stragglers(conform(pd.DataFrame(samples), SAMPLES), conform(pd.DataFrame(results), RESULTS))
    floors = found.groupby(["collective", "dst_rank"])["floor_us"].first()
    # A faster pair and a message in one direction, which nobody waits for, do not lower it.
    late = found.groupby(["collective", "dst_rank"])["late_us"].first()["send_recv"].to_numpy()
    unconfirmed = np.maximum(0, late - [5.0, 40.0])  # the other rank's message took less time than this one is late
    np.testing.assert_allclose(floors["send_recv"] - unconfirmed, expected, atol=0.2)
    assert not found["is_straggler"].any()


@pytest.mark.parametrize("find", [find_stragglers, find_spikes])
def test_results_without_samples_are_rejected_instead_of_looking_clean(find: Any) -> None:
    with pytest.raises(BenchError, match="run has no samples, but the times of each rank are needed; pass the run"):
        find(ml.example())
    assert find(ml.example().head(0)).empty


def test_spikes_are_counted(make_samples: Any) -> None:
    random = np.random.default_rng(2)
    times = 100 + random.normal(0, 1, (4, 90))
    planted = [7, 27, 47, 67, 87]
    times[3, planted] = 160
    samples, results = make_samples(times=times)
    (row,) = find_spikes(samples, results).to_dict("records")
    assert row["batches"] == tuple(planted)
    assert (row["n_spikes"], row["worst_rank"], row["worst_us"]) == (5, 3, 160.0)
    slowest = times.max(axis=0)
    assert row["spike_share"] == pytest.approx(5 * 160 / slowest.sum())
    assert row["collective"] == "all_reduce"


def test_slow_calls_of_a_second_mode_are_not_spikes(make_samples: Any) -> None:
    random = np.random.default_rng(2)
    times = random.normal(100, 2, (4, 100))
    is_slow = random.random(100) < 0.3
    times[2, is_slow] += 80
    samples, results = make_samples(times=times)
    (row,) = find_spikes(samples, results).to_dict("records")
    assert (row["n_modes"], row["n_spikes"]) == (2, 0)
    assert row["slow_share"] == pytest.approx(is_slow.mean())
    assert (row["fast_us"], row["slow_us"]) == pytest.approx((102, 180), abs=2)
    times[1, 50] = 400
    (row,) = find_spikes(*make_samples(times=times)).to_dict("records")
    assert (row["n_modes"], row["batches"]) == (2, (50,))
    (row,) = find_spikes(*make_samples(times=random.normal(100, 2, (4, 100)))).to_dict("records")
    assert (row["n_modes"], np.isnan(row["slow_us"])) == (1, True)


def test_a_delay_in_a_backend_is_a_spike(thread_engines: ml.Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = ThreadBackend.prepare

    def hiccup(self: Any, call: Any) -> Any:
        prepared = honest(self, call)
        work, count = type(prepared).__call__, [0]

        class Hiccup(type(prepared)):  # type: ignore[misc]
            def __call__(self) -> None:
                count[0] += 1
                if call.count == 4096 and self._backend.rank == 1 and count[0] % 12 == 0:
                    time.sleep(0.2)  # much longer than other calls take on a busy machine
                work(self)

        prepared.__class__ = Hiccup
        return prepared

    monkeypatch.setattr(ThreadBackend, "prepare", hiccup)
    sampling = Sampling(max_s=60, precision=1e-9, max_batches=60, min_batches=60)
    run = ml.bench(thread_engines, ml.DeviceMesh("x=4"), sizes="16K", mode="isolated", sampling=sampling)
    run.wait(120)
    spikes = run.spikes().iloc[0]
    times = run.samples.pivot(index="batch", columns="rank", values="time_us").max(axis=1)
    used = run.samples.groupby("batch")["is_warmup"].first()
    planted = set(times.index[(times > 180_000) & ~used.astype(bool)])
    assert len(planted) >= 3
    assert planted <= set(spikes["batches"])


def test_constant_times_have_no_spikes_and_no_warmup() -> None:
    even = np.full(40, 10.0)
    assert spike_limit(even) > 10.0
    assert leading_warmup(even) == 0
    cold = np.concatenate([[90.0, 40.0, 22.0], even])
    assert leading_warmup(cold) == 3
    late_burst = np.concatenate([even, [90.0, 40.0]])
    assert leading_warmup(late_burst) == 0  # only slow batches at the start count
    always_slow_first_half = np.concatenate([np.full(20, 20.0), even])
    assert leading_warmup(always_slow_first_half) == 15  # never more than a quarter


@pytest.mark.full
@pytest.mark.slow
def test_launches_have_new_processes_and_rows_with_their_name() -> None:
    with ml.launch(2, backend="mpi") as engines:
        first = [info.pid for info in engines.ranks]
        run = ml.bench(engines, sizes="1K, 2K", launches=2, sampling=SHORT)
        results = run.wait(120)
        second = [info.pid for info in engines.ranks]
        assert not set(first) & set(second)
        assert results.groupby("launch")["process_set"].nunique().tolist() == [1, 1]
        assert results["process_set"].nunique() == 2
        assert results["process_set"].iloc[-1] == engines.process_set
        assert engines.run(lambda comm: comm.size)["value"].tolist() == [2, 2]
    rows = ml.compare(run, run).frame()
    assert rows[["launches_before", "launches_after"]].to_numpy().tolist() == [[2, 2], [2, 2]]


def test_launches_have_new_communicators_and_separate_rows(thread_engines: ml.Engines) -> None:
    seen = []

    def remember(comm: Any) -> None:
        seen.append(comm)

    run = ml.bench(thread_engines, MESH, remember, axis="tp", launches=3, sampling=SHORT)
    results = run.wait(120)
    assert results["launch"].tolist() == [0, 0, 1, 1, 2, 2]
    assert len({id(comm) for comm in seen}) == 3 * 4
    assert sorted(run.samples["launch"].unique()) == [0, 1, 2]


def test_a_wrong_row_raises_an_alert(thread_engines: ml.Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    from meshlab.benchmark.on_ranks import _step_calls as step_calls
    from meshlab.widgets._live import LiveView

    monkeypatch.setattr(
        step_calls, "count_wrong_elements", lambda comm, *rest, **more: 3 if comm.world_rank == 2 else 0
    )
    run = ml.bench(thread_engines, MESH, axis="tp", sizes="1K", sampling=SHORT)
    view = LiveView(run)
    run.wait(120)
    assert run.alert == "1 of 2 results is WRONG: all_reduce on tp_1 at 1\u2009KiB (3 elements)"
    assert 'class="ml-bad">1 of 2 results is WRONG' in run._repr_html_()
    assert "with WRONG results" in repr(run)
    deadline = time.monotonic() + 60
    while "WRONG" not in view._run["alert"] and time.monotonic() < deadline:
        time.sleep(0.01)
    assert "1 of 2 results is WRONG" in view._run["alert"]
