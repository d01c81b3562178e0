"""The live view while a run measures, and the static figure afterwards."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

import meshlab as ml
from meshlab.frames.plan import Sampling
from meshlab.plots.lines import lines_of
from meshlab.widgets import live
from meshlab.widgets.live import LiveView, static_bundle

MESH = ml.DeviceMesh("dp=2, tp=2")
QUICK = Sampling(max_s=0.02, min_batches=6)
SLOW = Sampling(max_s=0.15, precision=1e-9, max_batches=10**6)


@pytest.fixture(autouse=True)
def no_previous_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "_last", {})


def wait_until(condition: Any, limit_s: float = 10) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_the_curve_has_the_points_of_the_results(thread_engines: ml.Engines) -> None:
    run = ml.bench(thread_engines, MESH, ["all_reduce", "broadcast"], axis="tp", sizes="1K:16K", sampling=QUICK)
    view = LiveView(run)
    results = run.wait(30)
    wait_until(lambda: view._end.disabled)
    assert set(view.curve.series) == {"all_reduce", "broadcast"}
    slowest = results.loc[results.groupby("step")["time_us"].idxmax()].set_index(["collective", "size_bytes"])
    for name, line in view.curve.series.items():
        assert line.size.tolist() == [1024, 2048, 4096, 8192, 16384]
        assert line.value == pytest.approx(slowest.loc[name, "busbw_gbs"].to_numpy())
        assert line.has_band
        assert np.all(line.low <= line.value)
        assert np.all(line.value <= line.high)


def test_the_lines_are_those_of_the_plot_of_the_run(thread_engines: ml.Engines) -> None:
    run = ml.bench(
        thread_engines, MESH, "all_reduce", axis="tp", sizes="1K, 2K", mode=["isolated", "pipelined"], launches=3,
        shuffle=True, sampling=QUICK,
    )  # fmt: skip
    view = LiveView(run)
    results = run.wait(60)
    wait_until(view._is_over.is_set)
    expected = {line.name: line for line in lines_of(results, "busbw_gbs")}
    assert set(view.curve.series) == set(expected) == {"isolated", "pipelined"}  # launches are one line
    for name, line in view.curve.series.items():
        for column in ("size", "value", "low", "high"):
            assert np.array_equal(getattr(line, column), getattr(expected[name], column), equal_nan=True)


def test_lines_of_a_resumed_run_have_its_old_and_its_new_points(thread_engines: ml.Engines) -> None:
    first = ml.bench(thread_engines, MESH, axis="tp", sizes="1K, 2K", sampling=QUICK)
    first.wait(30)
    plan = ml.Plan("all_reduce", "tp", sizes="1K:8K", sampling=QUICK)
    run = ml.bench(thread_engines, MESH, plan, resume=first)
    view = LiveView(run)
    run.wait(30)
    wait_until(view._is_over.is_set)
    assert {name: line.size.tolist() for name, line in view.curve.series.items()} == {
        "all_reduce": [1024, 2048, 4096, 8192]
    }


def test_lines_are_named_by_the_columns_that_vary(thread_engines: ml.Engines) -> None:
    run = ml.bench(thread_engines, MESH, sizes="1K, 2K", in_place=[False, True], sampling=QUICK)
    view = LiveView(run)
    run.wait(30)
    assert set(view.curve.series) == {
        f"{axis} · {place}" for axis in ("dp", "tp") for place in ("in place", "out of place")
    }
    assert view.curve.title == "all_reduce · pipelined · 4 ranks · threads in this process"


def test_lines_under_different_loads_have_axis_labels(thread_engines: ml.Engines) -> None:
    run = ml.bench(
        thread_engines, MESH, axis="tp", sizes="1K, 2K", grouping=["together", "alone"],
        concurrent={"dp": "all_reduce"}, sampling=QUICK,
    )  # fmt: skip
    view = LiveView(run)
    run.wait(30)
    wait_until(view._is_over.is_set)
    assert set(view.curve.series) == {
        "tp", "dp", "tp, one group at a time", "tp, while dp runs all_reduce", "dp, while tp runs all_reduce",
    }  # fmt: skip


def test_the_title_of_pairs_has_their_axis_label(thread_engines: ml.Engines) -> None:
    run = ml.bench_pairs(thread_engines, MESH, sizes="1K", sampling=QUICK)
    view = LiveView(run)
    run.wait(30)
    wait_until(view._is_over.is_set)
    assert view.curve.title.startswith("pairs of all ranks · pipelined · ")
    assert set(view.curve.series) == {"send", "send_recv"}


def test_the_status_has_step_elapsed_and_remaining_time(thread_engines: ml.Engines) -> None:
    run = ml.bench(thread_engines, MESH, axis="tp", sizes="1K:16K", sampling=SLOW)
    view = LiveView(run)
    wait_until(lambda: run.progress.done >= 2)
    expected = ("running · step", "elapsed", "left", "all_reduce", 'role="progressbar"')
    wait_until(lambda: all(text in view._status.value for text in expected))  # no step is named between two steps
    run.wait(30)
    wait_until(lambda: "done" in view._status.value)


def test_the_first_button_stops_after_the_step_however_often_it_is_clicked(thread_engines: ml.Engines) -> None:
    run = ml.bench(thread_engines, MESH, axis="tp", sizes="1K:1M", sampling=Sampling(max_s=0.3, precision=1e-9))
    view = LiveView(run)
    assert view._stop.description == "Stop after this step"
    wait_until(lambda: run.progress.done >= 1)
    for _ in range(5):
        view._stop.click()
    wait_until(lambda: view._stop.disabled)
    run.wait(30)
    assert run.state == "cancelled"
    assert (run.results["status"] == "ok").all()
    wait_until(lambda: view._end.disabled)
    assert thread_engines.state == "ready"


def test_the_second_button_ends_the_ranks_after_a_question(thread_engines: ml.Engines) -> None:
    endless = Sampling(max_s=1e6, precision=1e-9, max_batches=10**6)
    run = ml.bench(thread_engines, MESH, axis="tp", sizes="1K", sampling=endless, deadline_s=120)
    view = LiveView(run)
    wait_until(lambda: bool(run.progress.step))
    assert view._question.layout.display == "none"
    view._end.click()
    assert view._question.layout.display == "flex"
    view._keep.click()
    assert (view._question.layout.display, run.cancel_level) == ("none", 0)
    view._stop.click()
    wait_until(lambda: "stopping after this step · step 1 of 1" in view._status.value)
    assert not view._end.disabled
    view._end.click()
    view._really.click()
    wait_until(view._is_over.is_set)
    assert (run.state, view._question.layout.display) == ("cancelled", "none")
    assert thread_engines.state == "broken"


def test_the_previous_run_is_grey(thread_engines: ml.Engines) -> None:
    first = ml.bench(thread_engines, MESH, axis="tp", sizes="1K:4K", sampling=QUICK)
    view = LiveView(first)
    first.wait(30)
    wait_until(view._is_over.is_set)
    second = ml.bench(thread_engines, MESH, axis="tp", sizes="1K:4K", sampling=QUICK)
    again = LiveView(second)
    assert again.curve.previous["all_reduce"].value.tolist() == view.curve.series["all_reduce"].value.tolist()
    second.wait(30)
    other = ml.bench(thread_engines, ml.DeviceMesh("x=4"), sizes="1K", sampling=QUICK)
    assert LiveView(other).curve.previous == {}
    other.wait(30)


def finished(engines: ml.Engines, *, mesh: ml.DeviceMesh = MESH, **choice: Any) -> LiveView:
    run = ml.bench(engines, mesh, **{"axis": "tp", "sizes": "1K:4K", "sampling": QUICK, **choice})
    view = LiveView(run)
    run.wait(30)
    wait_until(view._is_over.is_set)
    return view


@pytest.mark.parametrize(
    "other",
    [
        {"mode": "isolated"},
        {"axis": "dp"},
        {"dtype": "float64"},
        {"op": "max"},
        {"in_place": True},
        {"collective": "broadcast"},
        {"grouping": "alone"},
        {"collective": "send_recv", "grouping": "pairs"},
    ],
    ids=lambda other: str([*other][-1]),
)
def test_a_run_with_different_keys_is_not_the_previous_run(thread_engines: ml.Engines, other: dict[str, Any]) -> None:
    finished(thread_engines)
    view = finished(thread_engines, **other)
    assert view.curve.previous == {}
    assert view.previous is None


def test_a_run_on_a_different_machine_is_not_the_previous_run(thread_engines: ml.Engines, monkeypatch: Any) -> None:
    finished(thread_engines)
    monkeypatch.setattr(live, "_place", lambda run: (run.mesh.fingerprint, "4 ranks · a different machine"))
    assert finished(thread_engines).curve.previous == {}


def test_only_lines_of_the_previous_run_with_the_same_keys_are_grey(thread_engines: ml.Engines) -> None:
    first = finished(thread_engines, mode=["isolated", "pipelined"])
    second = finished(thread_engines, mode="isolated")
    assert second.curve.previous["all_reduce"].value.tolist() == first.curve.series["isolated"].value.tolist()
    assert second.previous is not None
    assert set(second.previous["mode"]) == {"isolated"}
    assert second.previous.attrs["where"] == first.run.where


def test_lines_with_a_concurrent_axis_have_only_the_same_load_as_previous(thread_engines: ml.Engines) -> None:
    first = finished(thread_engines, concurrent={"dp": "broadcast"})
    second = finished(thread_engines, concurrent={"dp": "all_gather"})
    assert set(second.curve.previous) == {"all_reduce · tp"}
    plain = first.curve.series["all_reduce · tp"].value.tolist()
    assert second.curve.previous["all_reduce · tp"].value.tolist() == plain


def test_only_the_last_few_runs_are_remembered(thread_engines: ml.Engines) -> None:
    for number in range(live._MOST_REMEMBERED + 1):
        finished(thread_engines, mesh=ml.DeviceMesh("tp=4").with_group(f"g{number}", [0, 1]), sizes="1K")
    assert len(live._last) == live._MOST_REMEMBERED


def test_a_run_whose_rank_raises_shows_the_rank_and_the_fix(thread_engines: ml.Engines, monkeypatch: Any) -> None:
    from meshlab.benchmark.on_ranks import timing

    honest = timing.allocate
    gate = threading.Event()

    def fail(parts: Any) -> Any:
        if any(step.size_bytes == 4096 and comm.world_rank == 1 for comm, step in parts):
            raise ValueError("a bad cable")
        return honest(parts)

    monkeypatch.setattr(timing, "allocate", fail)
    run = ml.bench(thread_engines, MESH, axis="tp", sizes="1K:16K", sampling=QUICK)
    view = LiveView(run)
    view.when_over(gate.set)
    assert gate.wait(20)
    assert run.state == "failed"
    assert "rank 1 raised ValueError: a bad cable" in view._status.value
    assert "call engines.restart() to start new ranks" in view._status.value
    page = static_bundle(run)["text/html"]
    assert "rank 1 raised ValueError: a bad cable" in page
    assert "<svg" in page  # of the two steps that were measured


def test_every_state_has_a_static_bundle(thread_engines: ml.Engines) -> None:
    run = ml.bench(thread_engines, MESH, axis="tp", sizes="1K:4K", sampling=QUICK)
    early = static_bundle(run)
    assert set(early) >= {"text/plain", "text/html"}
    run.wait(30)
    late = static_bundle(run)
    assert set(late) == {"text/plain", "text/html", "image/png"}
    assert "done · 3 of 3 steps" in late["text/html"]
    assert late["text/html"].count("<tr>") == 1 + 3  # the header and one row per size


def test_lines_are_drawn_on_the_thread_of_the_view_while_the_run_measures(thread_engines: ml.Engines) -> None:
    run = ml.bench(thread_engines, MESH, axis="tp", sizes="1K:64M", sampling=SLOW)
    view = LiveView(run)
    wait_until(lambda: "all_reduce" in view.curve.series)
    assert run.state == "running"
    run.cancel()
    run.wait(30)
    wait_until(view._is_over.is_set)
    assert len(view.curve.series["all_reduce"]) == len(run.results["size_bytes"].unique())
