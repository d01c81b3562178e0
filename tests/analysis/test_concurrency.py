"""Groups together and one at a time, two axes together and in isolation, and pairs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest

import meshlab as ml
from meshlab.analysis._concurrency import contention, interference
from meshlab.analysis._pairs import pair_matrix, pair_table
from meshlab.base._errors import BenchError
from meshlab.comm.backends._threads import ThreadBackend
from meshlab.frames._schema import RESULTS, SAMPLES, conform
from meshlab.plans._sampling import Sampling
from tests.conftest import FULL_ON_MPI

MESH = ml.DeviceMesh("dp=2, tp=2")
QUICK = Sampling(max_s=0.03, min_batches=6)


def rows(*times: tuple[str, str, str, int, float], **columns: Any) -> pd.DataFrame:
    """Return results for tuples of collective, axis, group, step and time, with intervals of 1 %."""
    made = [
        {
            "launch": 0, "collective": collective, "axis": axis, "group": group, "step": step, "time_us": time,
            "time_us_lo": 0.99 * time, "time_us_hi": 1.01 * time, "size_bytes": 1024, "n_ranks": 2, "status": "ok",
            "mode": "pipelined", "dtype": "float32", "grouping": "together", **columns,
        }
        for collective, axis, group, step, time in times
    ]  # fmt: skip
    return conform(pd.DataFrame(made), RESULTS)


def pair_rows(*times: tuple[int, int, float], collective: str = "send_recv", **columns: Any) -> pd.DataFrame:
    """Return results of pairs for tuples of sender, receiver and time."""
    frames = [
        rows((collective, "world", "world", 0, time), grouping="pairs", src_rank=src, dst_rank=dst, **columns)
        for src, dst, time in times
    ]
    return pd.concat(frames, ignore_index=True)


def in_blocks(results: pd.DataFrame, spread: float = 0.01, n_blocks: int = 8) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return results with samples in blocks, whose medians differ by at most `spread`."""
    where = ["run_id", "launch", "step", "axis", "group", "grouping", "concurrent_axis"]
    samples = [
        dict(zip(where, key, strict=True))
        | {"rank": rank, "batch": 5 * block + number, "block": block, "is_warmup": number == 0, "status": "ok"}
        | {"time_us": time * (1 + spread * (block / (n_blocks - 1) - 0.5) * (-1) ** step) * (50 if number == 0 else 1)}
        for *key, step, time in results[[*where, "step", "time_us"]].itertuples(index=False, name=None)
        for rank in (0, 1)
        for block in range(n_blocks)
        for number in range(5)
    ]
    return results, conform(pd.DataFrame(samples), SAMPLES)


def drifting(effect: float, *, in_turns: bool = True, n: int = 400) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return `n` pairs of alternatives, the first of which takes `effect` times as long, on a machine that drifts.

    The drifts are up to a factor of two over the run, in both directions, with a random walk on top.
    """
    random = np.random.default_rng(5)
    # The position in time of each block: together, alone, alone, together, and so on, or all blocks of one first.
    at = (
        np.array([[0, 3, 4, 7, 8, 11, 12, 15], [1, 2, 5, 6, 9, 10, 13, 14]])
        if in_turns
        else np.arange(16).reshape(2, 8)
    )
    noise = np.exp(random.normal(0, 0.1, (n, 2, 8, 8)))
    drift = np.exp(
        np.linspace(-0.7, 0.7, n)[:, None] * np.linspace(0, 1, 16) + random.normal(0, 0.03, (n, 16)).cumsum(1)
    )
    times = 10 * noise * drift[:, at][..., None] * np.array([effect, 1.0])[:, None, None]
    names = [f"tp_{number}" for number in range(n)]
    together = rows(*(("all_reduce", "tp", name, 0, float(np.median(times[i, 0]))) for i, name in enumerate(names)))
    alone = rows(
        *(("all_reduce", "tp", name, 1, float(np.median(times[i, 1]))) for i, name in enumerate(names)),
        grouping="alone",
    )
    number, step, block, batch = (index.ravel() for index in np.indices(times.shape))
    samples = pd.DataFrame(
        {
            "launch": 0, "step": step, "axis": "tp", "group": np.array(names)[number], "rank": 0,
            "grouping": np.array(["together", "alone"])[step], "block": block, "batch": 8 * block + batch,
            "time_us": times.ravel(), "is_warmup": False, "status": "ok",
        }
    )  # fmt: skip
    return pd.concat([together, alone], ignore_index=True), conform(samples, SAMPLES)


def test_a_drift_is_not_contention_and_a_threefold_time_is() -> None:
    assert contention(drifting(1.0))["is_clear"].mean() <= 0.05
    found = contention(drifting(3.0))
    assert found["is_clear"].mean() >= 0.95
    assert found["ratio"].median() == pytest.approx(3, rel=0.05)
    # If one alternative is measured after the other, the drift looks like contention.
    assert contention(drifting(1.0, in_turns=False))["is_clear"].mean() > 0.5


def test_a_ratio_is_clear_only_if_it_was_measured_in_enough_blocks() -> None:
    together, alone = (
        rows(("all_reduce", "tp", "tp_0", step, time), grouping=grouping)
        for step, time, grouping in ((0, 30.0, "together"), (1, 10.0, "alone"))
    )
    results = pd.concat([together, alone], ignore_index=True)
    (row,) = contention(in_blocks(results)).to_dict("records")
    assert (row["n_blocks"], row["is_clear"], pd.isna(row["note"])) == (8, True, True)
    (row,) = contention(in_blocks(results, n_blocks=5)).to_dict("records")
    assert (row["n_blocks"], row["is_clear"]) == (5, False)
    assert row["note"] == "only 5 blocks were measured, but an interval needs 6"
    (row,) = contention(results).to_dict("records")
    assert (row["ratio"], row["is_clear"]) == (pytest.approx(3.0), False)
    assert row["note"] == "the samples are missing; pass the run instead of its results"
    _, samples = in_blocks(results)
    (row,) = contention((results, samples.assign(block=pd.array([pd.NA] * len(samples), "Int64")))).to_dict("records")
    assert (row["n_blocks"], row["is_clear"], np.isnan(row["ratio_lo"])) == (0, False, True)
    assert row["note"] == "the alternatives were not measured in turns, so a drift may explain the difference"


def test_a_run_without_both_alternatives_is_an_error_with_the_fix() -> None:
    plain = rows(("all_reduce", "tp", "tp_0", 0, 30.0))
    with pytest.raises(
        BenchError, match="did not measure groups together and alone; measure with grouping='together, "
    ):
        contention(plain)
    with pytest.raises(BenchError, match=r"axes at the same time and in isolation; measure with concurrent=\{'dp': "):
        interference(plain)
    with pytest.raises(BenchError, match="did not measure groups together and alone"):
        contention(plain.assign(grouping="alone"))


def spied(measure: Any, calls: list[str]) -> Any:
    """Return a function that records its calls on the first rank."""

    def spy(comm: Any, *rest: Any, **more: Any) -> Any:
        if comm.world_rank == 0:
            calls.append(measure.__name__.removeprefix("measure_"))
        return measure(comm, *rest, **more)

    return spy


def test_alternatives_take_turns(thread_engines: ml.Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    from meshlab.benchmark import _executor as executor

    calls: list[str] = []
    for name in (
        "measure_together",
        "measure_step",
        "measure_concurrent",
        "measure_function",
        "measure_function_alone",
    ):
        monkeypatch.setattr(executor, name, spied(getattr(executor, name), calls))
    # Blocks of one step that are repeated before a longer run have no turns.
    monkeypatch.setattr(executor, "_PROBED_S", math.inf)

    def own(comm: Any) -> Any:
        x = comm.xp.zeros(8, "float32")
        return lambda: comm.all_reduce(x, x)

    run = ml.bench(
        thread_engines, MESH, ["all_reduce", own], axis="tp", sizes="1K", grouping="together, alone", sampling=QUICK
    )
    run.wait(60)
    assert calls[:16] == 4 * ["together", "step", "step", "together"]
    assert calls[16:] == 4 * ["function", "function_alone", "function_alone", "function"]
    assert run.results[["collective", "grouping"]].drop_duplicates().to_numpy().tolist() == [
        ["all_reduce", "together"], ["all_reduce", "alone"], ["own", "together"], ["own", "alone"],
    ]  # fmt: skip
    found = run.contention()
    assert found["collective"].tolist() == 2 * ["all_reduce"] + 2 * ["own"]
    assert found["n_blocks"].tolist() == 4 * [8]
    assert found["note"].isna().all()
    assert (run.results["n_samples"] >= 6).all()
    calls.clear()
    run = ml.bench(
        thread_engines, MESH, "all_reduce", axis="tp", sizes="1K", concurrent={"dp": "reduce_scatter"}, sampling=QUICK
    )
    run.wait(60)
    assert calls == 4 * ["together", "together", "concurrent", "concurrent", "together", "together"]
    assert run.interference()["n_blocks"].tolist() == 4 * [8]
    with pytest.raises(BenchError, match="did not measure groups together and alone"):
        run.contention()


def test_a_machine_that_becomes_slower_shows_no_contention(
    thread_engines: ml.Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The only group of an axis is the same together and alone, but every call takes longer than the one before."""
    import time

    honest = ThreadBackend.prepare
    n_calls = [0]

    def slower(self: Any, call: Any) -> Any:
        prepared = honest(self, call)
        work = type(prepared).__call__

        class Slower(type(prepared)):  # type: ignore[misc]
            def __call__(self) -> None:
                if self._backend.rank == 0 and call.collective.name == "all_reduce":
                    n_calls[0] += 1
                    time.sleep(1e-4 * 1.03 ** min(n_calls[0], 150))
                work(self)

        prepared.__class__ = Slower
        return prepared

    monkeypatch.setattr(ThreadBackend, "prepare", slower)
    sampling = Sampling(max_s=60, min_batches=16, max_batches=16, warmup_batches=0, precision=1e-9)
    run = ml.bench(
        thread_engines, "x=4", sizes="1K", mode="isolated", grouping="together, alone", sampling=sampling, check=False
    )
    run.wait(60)
    (row,) = run.contention().to_dict("records")
    assert n_calls[0] > 80
    assert row["n_blocks"] == 8
    assert not row["is_clear"]
    assert row["ratio_hi"] - row["ratio_lo"] > 0.1


def test_the_contention_ratio_is_together_over_alone_per_group() -> None:
    together = rows(("all_reduce", "tp", "tp_0", 0, 30.0), ("all_reduce", "tp", "tp_1", 0, 10.05))
    alone = rows(("all_reduce", "tp", "tp_0", 1, 10.0), ("all_reduce", "tp", "tp_1", 1, 10.0), grouping="alone")
    busy = rows(("all_reduce", "tp", "tp_0", 2, 90.0), concurrent_axis="dp", concurrent_collective="broadcast")
    frame = contention(in_blocks(pd.concat([together, alone, busy]), spread=0.02)).set_index("group")
    assert frame["ratio"].tolist() == pytest.approx([3.0, 1.005], rel=1e-3)
    assert frame["is_clear"].tolist() == [True, False]
    assert frame.loc["tp_0", ["ratio_lo", "ratio_hi"]].tolist() == pytest.approx([3 * 0.99 / 1.01, 3 * 1.01 / 0.99])
    assert frame["axis"].tolist() == ["tp", "tp"]


def test_the_interference_ratio_is_concurrent_over_alone_and_names_the_other_axis() -> None:
    plain = rows(("all_reduce", "tp", "tp_0", 0, 10.0), ("reduce_scatter", "dp", "dp_0", 1, 20.0))
    busy = [
        rows(("all_reduce", "tp", "tp_0", 2, 15.0), concurrent_axis="dp", concurrent_collective="reduce_scatter"),
        rows(("reduce_scatter", "dp", "dp_0", 2, 50.0), concurrent_axis="tp", concurrent_collective="all_reduce"),
    ]
    single = rows(("all_reduce", "tp", "tp_0", 3, 1.0), grouping="alone")
    frame = interference(pd.concat([plain, *busy, single]))
    assert frame[["axis", "group", "concurrent_axis", "concurrent_collective"]].to_numpy().tolist() == [
        ["tp", "tp_0", "dp", "reduce_scatter"],
        ["dp", "dp_0", "tp", "all_reduce"],
    ]
    assert frame["ratio"].tolist() == pytest.approx([1.5, 2.5])


def test_the_runs_of_a_list_are_compared_with_themselves_only() -> None:
    runs = [
        pd.concat(
            [
                rows(("all_reduce", "tp", "tp_0", 0, 10.0 * factor)),
                rows(("all_reduce", "tp", "tp_0", 1, 5.0 * factor), grouping="alone"),
                rows(("all_reduce", "tp", "tp_0", 2, 30.0 * factor), concurrent_axis="dp"),
            ],
            ignore_index=True,
        )
        for factor in (1, 100)
    ]
    assert contention(runs)["ratio"].tolist() == pytest.approx([2.0, 2.0])
    assert interference(runs)["ratio"].tolist() == pytest.approx([3.0, 3.0])
    pairs = [pair_rows((0, 1, time), (1, 2, time), (0, 2, time)).assign(busbw_gbs=1 / time) for time in (10.0, 100.0)]
    assert pair_table(pairs)["share"].tolist() == pytest.approx([1.0] * 6)


def test_wrong_rows_have_no_ratio() -> None:
    wrong = rows(("all_reduce", "tp", "tp_0", 0, 30.0), status="wrong")
    right = rows(("all_reduce", "tp", "tp_0", 1, 10.0), grouping="alone")
    with pytest.raises(BenchError, match="cannot compare groups together and alone: results are wrong"):
        contention(pd.concat([wrong, right]))


@pytest.mark.parametrize("engines", FULL_ON_MPI, indirect=True)
def test_groups_are_measured_together_and_in_isolation(engines: ml.Engines) -> None:
    run = ml.bench(engines, MESH, axis="tp", sizes="4K", grouping=["together", "alone"], sampling=QUICK)
    results = run.wait(120)
    assert results[["axis", "grouping", "group", "status", "n_wrong"]].to_numpy().tolist() == [
        ["tp", "together", "tp_0", "ok", 0],
        ["tp", "together", "tp_1", "ok", 0],
        ["tp", "alone", "tp_0", "ok", 0],
        ["tp", "alone", "tp_1", "ok", 0],
    ]
    assert set(run.samples["grouping"]) == {"together", "alone"}
    assert len(run.contention()) == 2
    assert (run.contention()["ratio"] > 0).all()
    assert run.contention()["n_blocks"].tolist() == [8, 8]
    assert (run.samples["block"].nunique(), run.samples["block"].isna().sum()) == (8, 0)


def test_a_group_alone_runs_while_the_others_are_idle(
    thread_engines: ml.Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    from meshlab.benchmark import _executor as executor

    under_way: set[int] = set()
    seen = []
    honest = executor.measure_step

    def watch(comm: Any, *rest: Any) -> Any:
        under_way.add(comm.world_rank)
        comm.barrier()
        seen.append(frozenset(under_way))
        try:
            return honest(comm, *rest)
        finally:
            comm.barrier()
            under_way.discard(comm.world_rank)

    monkeypatch.setattr(executor, "measure_step", watch)
    ml.bench(thread_engines, MESH, axis="tp", sizes="4K", grouping="alone", sampling=QUICK).wait(120)
    assert set(seen) == {frozenset({0, 1}), frozenset({2, 3})}


@pytest.mark.parametrize("engines", FULL_ON_MPI, indirect=True)
def test_two_axes_run_at_the_same_time(engines: ml.Engines) -> None:
    run = ml.bench(
        engines, MESH, "all_reduce", axis="tp", sizes="16K", concurrent={"dp": "reduce_scatter"}, sampling=QUICK
    )
    results = run.wait(60)
    columns = ["axis", "collective", "group", "concurrent_axis", "concurrent_collective"]
    found = results[columns].astype(object)
    assert found.where(found.notna(), None).to_numpy().tolist() == [
        ["tp", "all_reduce", "tp_0", None, None],
        ["tp", "all_reduce", "tp_1", None, None],
        ["dp", "reduce_scatter", "dp_0", None, None],
        ["dp", "reduce_scatter", "dp_1", None, None],
        ["tp", "all_reduce", "tp_0", "dp", "reduce_scatter"],
        ["tp", "all_reduce", "tp_1", "dp", "reduce_scatter"],
        ["dp", "reduce_scatter", "dp_0", "tp", "all_reduce"],
        ["dp", "reduce_scatter", "dp_1", "tp", "all_reduce"],
    ]
    assert (results["status"] == "ok").all()
    assert (results["n_wrong"] == 0).all()
    assert len(run.interference()) == 4
    samples = run.samples
    loads = samples[["axis", "concurrent_axis"]].fillna("").drop_duplicates()
    assert set(loads.itertuples(index=False, name=None)) == {("tp", ""), ("dp", ""), ("tp", "dp"), ("dp", "tp")}


def test_the_concurrent_axis_is_busy_during_all_batches(
    thread_engines: ml.Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A load of 2 ms per call runs whenever the other collective is timed, and slows it down."""
    import threading
    import time

    honest = ThreadBackend.prepare
    loads = [0] * 4
    seen: list[bool] = []

    def watch(self: Any, call: Any) -> Any:
        prepared = honest(self, call)
        work = type(prepared).__call__

        class Watched(type(prepared)):  # type: ignore[misc]
            def __call__(self) -> None:
                is_load = threading.current_thread().name == "meshlab load"
                if is_load:
                    loads[self._backend.rank] += 1
                    time.sleep(0.0005)
                elif call.collective.name == "all_reduce" and call.count == 4096:
                    seen.append(any(thread.name == "meshlab load" for thread in threading.enumerate()))
                work(self)

        prepared.__class__ = Watched
        return prepared

    monkeypatch.setattr(ThreadBackend, "prepare", watch)
    run = ml.bench(
        thread_engines, MESH, "all_reduce", axis="tp", sizes="16K", concurrent={"dp": "reduce_scatter"}, sampling=QUICK
    )
    run.wait(60)
    assert sum(loads) > 0
    assert True in seen  # while both run
    assert False in seen  # while it runs in isolation


@pytest.mark.parametrize("n", [4, 3])
def test_every_pair_is_measured_in_one_and_in_both_directions(n: int) -> None:
    with ml.launch(n, backend="threads") as engines:
        run = ml.bench_pairs(engines, sizes="4K", mode="isolated", sampling=QUICK)
        results = run.wait(60)
    assert len(results) == n * (n - 1) + n * (n - 1) // 2
    assert (results["status"] == "ok").all()
    assert (results["n_wrong"] == 0).all()
    assert (results["n_ranks"] == 2).all()
    both, one = run.matrix(), run.matrix("send")
    assert both.index.tolist() == both.columns.tolist() == list(range(n))
    assert np.array_equal(both, both.T, equal_nan=True)
    assert np.isnan(np.diag(one)).all()
    assert np.isfinite(one.to_numpy()[~np.eye(n, dtype=bool)]).all()
    assert both.attrs["where"] == f"{n} ranks · threads in this process"


def test_pairs_run_over_mpi(mpi_engines: ml.Engines) -> None:
    results = ml.bench_pairs(mpi_engines, MESH, axis="tp", sizes="64K", sampling=QUICK).wait(60)
    found = results[["collective", "group", "src_rank", "dst_rank"]].to_numpy().tolist()
    assert sorted(found) == [
        ["send", "tp_0", 0, 1],
        ["send", "tp_0", 1, 0],
        ["send", "tp_1", 2, 3],
        ["send", "tp_1", 3, 2],
        ["send_recv", "tp_0", 0, 1],
        ["send_recv", "tp_1", 2, 3],
    ]
    assert set(results["axis"]) == {"tp"}
    assert set(results["grouping"]) == {"pairs"}
    assert (results["n_wrong"] == 0).all()


def test_a_corrupted_message_is_counted(thread_engines: ml.Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = ThreadBackend.prepare

    def corrupt(self: Any, call: Any) -> Any:
        prepared = honest(self, call)
        work = type(prepared).__call__

        class Corrupted(type(prepared)):  # type: ignore[misc]
            def __call__(self) -> None:
                work(self)
                if call.collective.name == "recv" and self._backend.rank == 3:
                    call.recv[:2] += 1

        prepared.__class__ = Corrupted
        return prepared

    monkeypatch.setattr(ThreadBackend, "prepare", corrupt)
    run = ml.bench(thread_engines, MESH, "send", axis="world", grouping="pairs", sizes="4K", sampling=QUICK)
    results = run.wait(120)
    wrong = results[results["status"] == "wrong"]
    assert wrong[["src_rank", "dst_rank", "n_wrong"]].sort_values("src_rank").to_numpy().tolist() == [
        [0, 3, 2],
        [1, 3, 2],
        [2, 3, 2],
    ]


def test_a_slow_pair_is_marked() -> None:
    results = pair_rows(*((a, b, 20.0 if (a, b) == (1, 2) else 10.0) for a in range(4) for b in range(a + 1, 4)))
    results["busbw_gbs"] = 1024 / results["time_us"] / 1e3
    table = pair_table(results)
    assert table.loc[table["is_slow"], ["src_rank", "dst_rank"]].to_numpy().tolist() == [[1, 2]]
    assert table["share"].iloc[0] == pytest.approx(0.5)
    assert pair_matrix(results).loc[2, 1] == pytest.approx(1024 / 20 / 1e3)
    with pytest.raises(BenchError, match="no pairs were measured with send;"):
        pair_matrix(results, "send")
    with pytest.raises(BenchError, match="no pairs were measured with send_recv of 4\u2009KiB;"):
        pair_matrix(results, size_bytes=4096)
    with pytest.raises(BenchError, match="unknown value 'speed'; choose one of busbw_gbs"):
        pair_matrix(results, value="speed")


def test_a_matrix_never_mixes_modes_or_element_types() -> None:
    fast = pair_rows((0, 1, 10.0)).assign(busbw_gbs=4.0)
    slow = fast.assign(mode="isolated", busbw_gbs=1.0)
    with pytest.raises(
        BenchError, match="several values of mode: pipelined, isolated; choose one, such as mode='pipel"
    ):
        pair_matrix(pd.concat([fast, slow]))
    matrix = pair_matrix(pd.concat([fast, slow]), mode="isolated")
    assert matrix.loc[0, 1] == 1.0
    assert matrix.attrs["mode"] == "isolated"
    double = fast.assign(dtype="float64", busbw_gbs=3.0)
    with pytest.raises(BenchError, match="several values of dtype: float32, float64"):
        pair_matrix(pd.concat([fast, double]))
    assert pair_matrix(pd.concat([fast, double]), dtype="float64").loc[0, 1] == 3.0
    with pytest.raises(BenchError, match="no pairs were measured with send_recv in graph;"):
        pair_matrix(fast, mode="graph")
