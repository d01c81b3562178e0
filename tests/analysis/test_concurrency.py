"""Groups at once against one at a time, two axes at once against each alone, and pairs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import meshlab as ml
from meshlab.analysis.concurrency import contention, interference
from meshlab.analysis.pairs import pair_matrix, pair_table
from meshlab.comm.backends.threads import ThreadBackend
from meshlab.errors import BenchError
from meshlab.frames.plan import Sampling
from meshlab.frames.schema import RESULTS, conform

MESH = ml.DeviceMesh("dp=2, tp=2")
QUICK = Sampling(max_s=0.03, min_batches=6)


def rows(*times: tuple[str, str, str, int, float], **columns: Any) -> pd.DataFrame:
    """Results with these: collective, axis, group, step, time; intervals of 1 %."""
    told = [
        {
            "launch": 0, "collective": collective, "axis": axis, "group": group, "step": step, "time_us": time,
            "time_us_lo": 0.99 * time, "time_us_hi": 1.01 * time, "size_bytes": 1024, "n_ranks": 2, "status": "ok",
            "mode": "pipelined", "dtype": "float32", **columns,
        }
        for collective, axis, group, step, time in times
    ]  # fmt: skip
    return conform(pd.DataFrame(told), RESULTS)


def test_the_contention_ratio_is_together_over_alone_per_group() -> None:
    frame = contention(
        rows(
            ("all_reduce", "tp", "tp_0", 0, 30.0),
            ("all_reduce", "tp", "tp_1", 0, 10.05),
            ("all_reduce", "tp alone", "tp_0", 1, 10.0),
            ("all_reduce", "tp alone", "tp_1", 1, 10.0),
        )
    ).set_index("group")
    assert frame["ratio"].tolist() == pytest.approx([3.0, 1.005])
    assert frame["is_clear"].tolist() == [True, False]
    assert frame.loc["tp_0", ["ratio_lo", "ratio_hi"]].tolist() == pytest.approx([3 * 0.99 / 1.01, 3 * 1.01 / 0.99])
    assert frame["axis"].tolist() == ["tp", "tp"]


def test_the_interference_ratio_is_beside_over_alone_and_says_beside_what() -> None:
    frame = interference(
        rows(
            ("all_reduce", "tp", "tp_0", 0, 10.0),
            ("reduce_scatter", "dp", "dp_0", 1, 20.0),
            ("all_reduce", "tp+dp", "tp_0", 2, 15.0),
            ("reduce_scatter", "dp+tp", "dp_0", 2, 50.0),
        )
    )
    assert frame[["axis", "group", "beside"]].to_numpy().tolist() == [
        ["tp", "tp_0", "reduce_scatter on dp"],
        ["dp", "dp_0", "all_reduce on tp"],
    ]
    assert frame["ratio"].tolist() == pytest.approx([1.5, 2.5])


def test_wrong_rows_are_in_no_ratio() -> None:
    wrong = rows(("all_reduce", "tp", "tp_0", 0, 30.0), status="wrong")
    right = rows(("all_reduce", "tp alone", "tp_0", 1, 10.0))
    assert contention(pd.concat([wrong, right])).empty


def test_groups_are_measured_together_and_alone(engines: ml.Engines) -> None:
    run = ml.bench(engines, MESH, axis="tp", sizes="4K", groups=["together", "alone"], sampling=QUICK)
    results = run.wait(30)
    assert results[["axis", "group", "status", "n_wrong"]].to_numpy().tolist() == [
        ["tp", "tp_0", "ok", 0],
        ["tp", "tp_1", "ok", 0],
        ["tp alone", "tp_0", "ok", 0],
        ["tp alone", "tp_1", "ok", 0],
    ]
    assert len(run.contention()) == 2
    assert (run.contention()["ratio"] > 0).all()


def test_alone_means_that_the_others_are_idle(thread_engines: ml.Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    from meshlab.benchmark import executor as conductor

    under_way: set[int] = set()
    seen = []
    honest = conductor.measure_step

    def watch(comm: Any, *rest: Any) -> Any:
        under_way.add(comm.world_rank)
        comm.barrier()
        seen.append(frozenset(under_way))
        try:
            return honest(comm, *rest)
        finally:
            comm.barrier()
            under_way.discard(comm.world_rank)

    monkeypatch.setattr(conductor, "measure_step", watch)
    ml.bench(thread_engines, MESH, axis="tp", sizes="4K", groups="alone", sampling=QUICK).wait(30)
    assert set(seen) == {frozenset({0, 1}), frozenset({2, 3})}


def test_two_axes_run_at_the_same_time(engines: ml.Engines) -> None:
    run = ml.bench(engines, MESH, "all_reduce", axis="tp", sizes="16K", beside={"dp": "reduce_scatter"}, sampling=QUICK)
    results = run.wait(60)
    assert results[["axis", "collective", "group"]].to_numpy().tolist() == [
        ["tp", "all_reduce", "tp_0"],
        ["tp", "all_reduce", "tp_1"],
        ["dp", "reduce_scatter", "dp_0"],
        ["dp", "reduce_scatter", "dp_1"],
        ["tp+dp", "all_reduce", "tp_0"],
        ["tp+dp", "all_reduce", "tp_1"],
        ["dp+tp", "reduce_scatter", "dp_0"],
        ["dp+tp", "reduce_scatter", "dp_1"],
    ]
    assert (results["status"] == "ok").all()
    assert (results["n_wrong"] == 0).all()
    assert len(run.interference()) == 4
    samples = run.samples
    assert set(samples["axis"]) == {"tp", "dp", "tp+dp", "dp+tp"}


def test_the_other_axis_is_busy_all_the_time(thread_engines: ml.Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    """A load of 2 ms a call is there whenever the other collective is timed, and slows it down."""
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
        thread_engines, MESH, "all_reduce", axis="tp", sizes="16K", beside={"dp": "reduce_scatter"}, sampling=QUICK
    )
    run.wait(60)
    assert sum(loads) > 0
    assert True in seen  # while both run
    assert False in seen  # while it runs by itself


@pytest.mark.parametrize("n", [4, 3])
def test_every_pair_is_measured_both_ways_and_one_way(n: int) -> None:
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


def test_pairs_run_over_mpi_too(mpi_engines: ml.Engines) -> None:
    results = ml.bench_pairs(mpi_engines, MESH, axis="tp", sizes="64K", sampling=QUICK).wait(60)
    assert sorted(results["group"]) == ["0→1", "0↔1", "1→0", "2→3", "2↔3", "3→2"]
    assert (results["n_wrong"] == 0).all()


def test_a_message_that_arrives_damaged_is_counted(thread_engines: ml.Engines, monkeypatch: pytest.MonkeyPatch) -> None:
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
    run = ml.bench(thread_engines, MESH, "send", axis="world", groups="pairs", sizes="4K", sampling=QUICK)
    results = run.wait(30).set_index("group")
    assert results.loc[results["status"] == "wrong", "n_wrong"].to_dict() == {
        "0→3": 2,
        "1→3": 2,
        "2→3": 2,
    }


def test_a_slow_link_is_named() -> None:
    times = [("send_recv", "world pairs", f"{a}↔{b}", 0, 10.0) for a in range(4) for b in range(a + 1, 4)]
    results = rows(*times)
    results.loc[results["group"] == "1↔2", ["time_us", "time_us_lo", "time_us_hi"]] *= 2
    results["busbw_gbs"] = 1024 / results["time_us"] / 1e3
    table = pair_table(results)
    assert table.loc[table["is_slow"], ["from_rank", "to_rank"]].to_numpy().tolist() == [[1, 2]]
    assert table["share"].iloc[0] == pytest.approx(0.5)
    assert pair_matrix(results).loc[2, 1] == pytest.approx(1024 / 20 / 1e3)
    with pytest.raises(BenchError, match="no pairs with send were measured"):
        pair_matrix(results, "send")
    with pytest.raises(BenchError, match="no pairs with send_recv of 4\u2009KiB were measured"):
        pair_matrix(results, size_bytes=4096)
    with pytest.raises(BenchError, match="value='speed' is nothing that pairs have"):
        pair_matrix(results, value="speed")


def test_a_matrix_never_mixes_modes_or_element_types() -> None:
    fast = rows(("send_recv", "world pairs", "0↔1", 0, 10.0)).assign(busbw_gbs=4.0)
    slow = fast.assign(mode="isolated", busbw_gbs=1.0)
    with pytest.raises(BenchError, match="more than one mode: pipelined, isolated; choose one, such as mode='pipel"):
        pair_matrix(pd.concat([fast, slow]))
    matrix = pair_matrix(pd.concat([fast, slow]), mode="isolated")
    assert matrix.loc[0, 1] == 1.0
    assert matrix.attrs["mode"] == "isolated"
    double = fast.assign(dtype="float64", busbw_gbs=3.0)
    with pytest.raises(BenchError, match="more than one dtype: float32, float64"):
        pair_matrix(pd.concat([fast, double]))
    assert pair_matrix(pd.concat([fast, double]), dtype="float64").loc[0, 1] == 3.0
    with pytest.raises(BenchError, match="no pairs with send_recv in graph were measured"):
        pair_matrix(fast, mode="graph")
