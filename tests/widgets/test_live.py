"""The live view: what it shows while a run measures, and the picture that stays."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

import meshlab as ml
from meshlab.frames.plan import Sampling
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
    wait_until(lambda: view._button.disabled)
    assert set(view.curve.series) == {"all_reduce", "broadcast"}
    slowest = results.loc[results.groupby("step")["time_us"].idxmax()].set_index(["collective", "size_bytes"])
    for name, line in view.curve.series.items():
        assert line.x.tolist() == [1024, 2048, 4096, 8192, 16384]
        assert line.y == pytest.approx(slowest.loc[name, "busbw_gbs"].to_numpy())
        assert line.lo is not None
        assert line.hi is not None
        assert np.all(line.lo <= line.y)
        assert np.all(line.y <= line.hi)


def test_lines_are_named_by_what_varies(thread_engines: ml.Engines) -> None:
    run = ml.bench(thread_engines, MESH, sizes="1K, 2K", in_place=[False, True], sampling=QUICK)
    view = LiveView(run)
    run.wait(30)
    assert set(view.curve.series) == {
        f"{axis} · {place}" for axis in ("dp", "tp") for place in ("in place", "out of place")
    }
    assert view.curve.title == "all_reduce · pipelined · 4 ranks · threads in this process"


def test_lines_of_groups_one_at_a_time_and_of_two_axes_at_once_are_named_in_words(thread_engines: ml.Engines) -> None:
    run = ml.bench(
        thread_engines, MESH, axis="tp", sizes="1K, 2K", groups=["together", "alone"], beside={"dp": "all_reduce"},
        sampling=QUICK,
    )  # fmt: skip
    view = LiveView(run)
    run.wait(30)
    assert set(view.curve.series) == {
        "tp", "dp", "tp, one group at a time", "tp, while dp does all_reduce", "dp, while tp does all_reduce",
    }  # fmt: skip


def test_status_says_step_elapsed_and_left(thread_engines: ml.Engines) -> None:
    run = ml.bench(thread_engines, MESH, axis="tp", sizes="1K:16K", sampling=SLOW)
    view = LiveView(run)
    wait_until(lambda: run.progress.done >= 2)
    wait_until(lambda: "left" in view._status.value)
    assert "running · step" in view._status.value
    assert "elapsed" in view._status.value
    assert "all_reduce" in view._status.value
    assert 'role="progressbar"' in view._status.value
    run.wait(30)
    wait_until(lambda: "done" in view._status.value)


def test_the_button_cancels_and_then_says_what_the_next_press_does(thread_engines: ml.Engines) -> None:
    run = ml.bench(
        thread_engines, MESH, axis="tp", sizes="1K:1M", sampling=Sampling(max_s=2, precision=1e-9, max_batches=10**6)
    )
    view = LiveView(run)
    assert view._button.description == "Cancel"
    wait_until(lambda: run.progress.done >= 1)
    view._button.click()
    wait_until(lambda: view._button.description == "Interrupt the ranks")
    assert "inside MPI do not hear it" in view._button.tooltip
    view._button.click()
    wait_until(lambda: view._button.disabled)
    assert run.state == "cancelled"
    assert len(run.results) >= 2


def test_the_previous_run_is_grey(thread_engines: ml.Engines) -> None:
    first = ml.bench(thread_engines, MESH, axis="tp", sizes="1K:4K", sampling=QUICK)
    view = LiveView(first)
    first.wait(30)
    wait_until(view._is_over.is_set)
    second = ml.bench(thread_engines, MESH, axis="tp", sizes="1K:4K", sampling=QUICK)
    again = LiveView(second)
    assert again.curve.previous["all_reduce"].y.tolist() == view.curve.series["all_reduce"].y.tolist()
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
    ],
    ids=lambda other: str(*other),
)
def test_a_run_of_something_else_is_not_the_previous_one(thread_engines: ml.Engines, other: dict[str, Any]) -> None:
    finished(thread_engines)
    view = finished(thread_engines, **other)
    assert view.curve.previous == {}
    assert view.previous is None


def test_a_run_on_another_machine_is_not_the_previous_one(thread_engines: ml.Engines, monkeypatch: Any) -> None:
    finished(thread_engines)
    monkeypatch.setattr(ml.Run, "where", "4 ranks · another machine")
    assert finished(thread_engines).curve.previous == {}


def test_of_a_longer_previous_run_only_the_lines_that_answer_are_grey(thread_engines: ml.Engines) -> None:
    first = finished(thread_engines, mode=["isolated", "pipelined"])
    second = finished(thread_engines, mode="isolated")
    assert second.curve.previous["all_reduce"].y.tolist() == first.curve.series["isolated"].y.tolist()
    assert second.previous is not None
    assert set(second.previous["mode"]) == {"isolated"}
    assert second.previous.attrs["where"] == first.run.where


def test_only_the_last_few_runs_are_remembered(thread_engines: ml.Engines) -> None:
    for number in range(live._MOST_REMEMBERED + 1):
        finished(thread_engines, mesh=ml.DeviceMesh("tp=4").with_group(f"g{number}", [0, 1]), sizes="1K")
    assert len(live._last) == live._MOST_REMEMBERED


def test_a_run_whose_engines_die_shows_the_rank_and_the_cure(thread_engines: ml.Engines, monkeypatch: Any) -> None:
    from meshlab.benchmark.on_ranks import timing

    honest = timing.buffers
    gate = threading.Event()

    def fail(comm: Any, step: Any) -> Any:
        if step.size_bytes == 4096 and comm.world_rank == 1:
            raise ValueError("a bad cable")
        return honest(comm, step)

    monkeypatch.setattr(timing, "buffers", fail)
    run = ml.bench(thread_engines, MESH, axis="tp", sizes="1K:16K", sampling=QUICK)
    view = LiveView(run)
    view.when_over(gate.set)
    assert gate.wait(20)
    assert run.state == "failed"
    assert "rank 1 raised ValueError: a bad cable" in view._status.value
    assert "engines.restart() gives a fresh one" in view._status.value
    page = static_bundle(run)["text/html"]
    assert "rank 1 raised ValueError: a bad cable" in page
    assert "<svg" in page  # of the two steps that were measured


def test_static_pictures_of_every_state(thread_engines: ml.Engines) -> None:
    run = ml.bench(thread_engines, MESH, axis="tp", sizes="1K:4K", sampling=QUICK)
    early = static_bundle(run)
    assert set(early) >= {"text/plain", "text/html"}
    run.wait(30)
    late = static_bundle(run)
    assert set(late) == {"text/plain", "text/html", "image/png"}
    assert "done · 3 of 3 steps" in late["text/html"]
    assert late["text/html"].count("<tr>") == 7


def test_an_update_costs_the_kernel_little(thread_engines: ml.Engines, capsys: pytest.CaptureFixture[str]) -> None:
    run = ml.bench(thread_engines, MESH, axis="tp", sizes="1K:1M", sampling=QUICK)
    run.wait(30)
    view = LiveView(run)
    times = []
    for _ in range(50):
        view._rows_shown = len(run.rows()) - 2
        begin = time.perf_counter()
        view._update(run)
        times.append(1e3 * (time.perf_counter() - begin))
    with capsys.disabled():
        print(f"\n    one update of the live view: median {sorted(times)[25]:.2f} ms, worst {max(times):.2f} ms")
    assert len(view.curve.series["all_reduce"]) == 11 + 50
