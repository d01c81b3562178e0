"""The live view while a run measures, and the static figure afterwards."""

from __future__ import annotations

import gc
import re
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import meshlab as ml
from meshlab.base._errors import BenchError, EngineError
from meshlab.plans._sampling import Sampling
from meshlab.plots._lines import lines_of
from meshlab.widgets import _following as following
from meshlab.widgets._live import LiveView, static_bundle

MESH = ml.DeviceMesh("dp=2, tp=2")
QUICK = Sampling(max_s=0.02, min_batches=6)


@pytest.fixture(autouse=True)
def no_previous_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "_last", {})


def wait_until(condition: Any, limit_s: float = 60) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_the_curve_has_the_points_of_the_results(thread_engines: ml.Engines) -> None:
    run = ml.bench(thread_engines, MESH, ["all_reduce", "broadcast"], axis="tp", sizes="1K:16K", sampling=QUICK)
    view = LiveView(run)
    results = run.wait(120)
    wait_until(lambda: view._run["has_ended"])
    assert set(view.follower.series) == {"all_reduce", "broadcast"}
    slowest = results.loc[results.groupby("step")["time_us"].idxmax()].set_index(["collective", "size_bytes"])
    for name, line in view.follower.series.items():
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
    wait_until(view.follower.is_over.is_set)
    expected = {line.name: line for line in lines_of(results, "busbw_gbs")}
    assert set(view.follower.series) == set(expected) == {"isolated", "pipelined"}  # launches are one line
    for name, line in view.follower.series.items():
        for column in ("size", "value", "low", "high"):
            assert np.array_equal(getattr(line, column), getattr(expected[name], column), equal_nan=True)


def test_lines_of_a_resumed_run_have_its_old_and_its_new_points(thread_engines: ml.Engines) -> None:
    first = ml.bench(thread_engines, MESH, axis="tp", sizes="1K, 2K", sampling=QUICK)
    first.wait(120)
    plan = ml.Plan("all_reduce", "tp", sizes="1K:8K", sampling=QUICK)
    run = ml.bench(thread_engines, MESH, plan, resume=first)
    view = LiveView(run)
    run.wait(120)
    wait_until(view.follower.is_over.is_set)
    assert {name: line.size.tolist() for name, line in view.follower.series.items()} == {
        "all_reduce": [1024, 2048, 4096, 8192]
    }


def test_lines_are_named_by_the_columns_that_vary(thread_engines: ml.Engines) -> None:
    run = ml.bench(thread_engines, MESH, sizes="1K, 2K", in_place=[False, True], sampling=QUICK)
    view = LiveView(run)
    run.wait(120)
    wait_until(view.follower.is_over.is_set)
    assert set(view.follower.series) == {
        f"{axis} · {place}" for axis in ("dp", "tp") for place in ("in place", "out of place")
    }
    assert view._curve["title"] == "all_reduce · pipelined · 4 ranks · threads in this process"


def test_lines_under_different_loads_have_axis_labels(thread_engines: ml.Engines) -> None:
    run = ml.bench(
        thread_engines, MESH, axis="tp", sizes="1K, 2K", grouping=["together", "alone"],
        concurrent={"dp": "all_reduce"}, sampling=QUICK,
    )  # fmt: skip
    view = LiveView(run)
    run.wait(120)
    wait_until(view.follower.is_over.is_set)
    assert set(view.follower.series) == {
        "tp", "dp", "tp, one group at a time", "tp, while dp runs all_reduce", "dp, while tp runs all_reduce",
    }  # fmt: skip


def test_the_title_of_pairs_has_their_axis_label(thread_engines: ml.Engines) -> None:
    run = ml.bench_pairs(thread_engines, MESH, sizes="1K", sampling=QUICK)
    view = LiveView(run)
    run.wait(120)
    wait_until(view.follower.is_over.is_set)
    assert view._curve["title"].startswith("pairs of all ranks · pipelined · ")
    assert set(view.follower.series) == {"send", "send_recv"}


def test_the_status_has_step_elapsed_and_remaining_time(
    thread_engines: ml.Engines, hold_runs: Callable[..., threading.Event]
) -> None:
    may_go = hold_runs(after=2)
    run = ml.bench(thread_engines, MESH, axis="tp", sizes="1K:16K", sampling=QUICK)
    view = LiveView(run)
    wait_until(lambda: run.progress.done >= 2)
    expected = ("running · step", "elapsed", "left")
    wait_until(lambda: all(text in view._run["headline"] for text in expected))
    wait_until(lambda: "all_reduce" in view._run["step"])  # no step is named between two steps
    may_go.set()
    run.wait(120)
    wait_until(lambda: view._run["state"] == "done")
    assert (view._run["share"], view._run["step"]) == (1.0, "")
    assert re.match(r"done · (\d+) of \1 steps · ", view._run["headline"])


def press(view: LiveView, action: str) -> None:
    """Send what a button of the front end sends."""
    view._handle_custom_msg({"type": action}, [])


def test_the_buttons_pause_resume_and_stop_after_the_step(
    thread_engines: ml.Engines, hold_runs: Callable[..., threading.Event]
) -> None:
    may_go = hold_runs(after=1)
    run = ml.bench(thread_engines, MESH, axis="tp", sizes="1K:1M", sampling=QUICK)
    view = LiveView(run)
    wait_until(lambda: run.progress.done >= 1)
    press(view, "run.pause")
    assert view._run["is_pausing"]
    assert view._run["headline"].startswith("pausing after this step · step 2 of 11 · ")
    may_go.set()
    wait_until(lambda: view._run["state"] == "paused")
    assert view._run["headline"].startswith("paused · 2 of 11 steps · ")
    may_go.clear()
    press(view, "run.resume")
    wait_until(lambda: view._run["state"] == "running")
    for _ in range(5):
        press(view, "run.stop")
    assert view._run["level"] == 1
    may_go.set()
    run.wait(120)
    assert run.state == "cancelled"
    assert (run.results["status"] == "ok").all()
    wait_until(lambda: view._run["has_ended"])
    assert thread_engines.state == "ready"
    press(view, "run.end")  # too late: nothing is left to end
    press(view, "unknown")
    assert thread_engines.state == "ready"


def test_the_last_button_ends_the_ranks(thread_engines: ml.Engines) -> None:
    endless = Sampling(max_s=1e6, precision=1e-9, max_batches=10**6)
    run = ml.bench(thread_engines, MESH, axis="tp", sizes="1K", sampling=endless, deadline_s=120)
    view = LiveView(run)
    wait_until(lambda: bool(run.progress.step))
    press(view, "run.stop")
    assert view._run["headline"].startswith("stopping after this step · step 1 of 1")
    press(view, "run.end")
    wait_until(view.follower.is_over.is_set)
    assert run.state == "cancelled"
    assert thread_engines.state == "broken"


@pytest.mark.parametrize("state", ["failed", "running"])
def test_a_run_without_engines_has_a_state_but_no_live_view(state: str) -> None:
    run = ml.runs.RunData(
        ml.Plan("all_reduce", "tp", sizes="1K"),
        MESH,
        run_id="a",
        source="mpi",
        where="2 ranks",
        state=state,
        error=EngineError("rank 1 died", rank=1),
    )
    shown = following.run_state(run)
    assert (shown["state"], shown["error"]) == (state, "rank 1 died")
    assert (shown["level"], shown["is_pausing"], shown["can_restart"]) == (0, False, False)
    assert shown["headline"].endswith("estimating") == (state == "running")
    with pytest.raises(BenchError, match="run must be a live Run, not RunData; display a saved run as it is"):
        LiveView(run)


def test_the_previous_run_is_grey(thread_engines: ml.Engines) -> None:
    first = ml.bench(thread_engines, MESH, axis="tp", sizes="1K:4K", sampling=QUICK)
    view = LiveView(first)
    first.wait(120)
    wait_until(view.follower.is_over.is_set)
    second = ml.bench(thread_engines, MESH, axis="tp", sizes="1K:4K", sampling=QUICK)
    again = LiveView(second)
    assert again.follower.earlier["all_reduce"].value.tolist() == view.follower.series["all_reduce"].value.tolist()
    second.wait(120)
    other = ml.bench(thread_engines, ml.DeviceMesh("x=4"), sizes="1K", sampling=QUICK)
    assert LiveView(other).follower.earlier == {}
    other.wait(120)


def finished(engines: ml.Engines, *, mesh: ml.DeviceMesh = MESH, **choice: Any) -> LiveView:
    run = ml.bench(engines, mesh, **{"axis": "tp", "sizes": "1K:4K", "sampling": QUICK, **choice})
    view = LiveView(run)
    run.wait(120)
    wait_until(view.follower.is_over.is_set)
    view.kept = run  # a view does not keep its run, which the collector of garbage would take
    return view


@pytest.mark.parametrize(
    "other",
    [
        {"mode": "isolated"},
        pytest.param({"axis": "dp"}, marks=pytest.mark.full),
        pytest.param({"dtype": "float64"}, marks=pytest.mark.full),
        pytest.param({"op": "max"}, marks=pytest.mark.full),
        pytest.param({"in_place": True}, marks=pytest.mark.full),
        pytest.param({"collective": "broadcast"}, marks=pytest.mark.full),
        pytest.param({"grouping": "alone"}, marks=pytest.mark.full),
        pytest.param({"collective": "send_recv", "grouping": "pairs"}, marks=pytest.mark.full),
    ],
    ids=lambda other: str([*other][-1]),
)
def test_a_run_with_different_keys_is_not_the_previous_run(thread_engines: ml.Engines, other: dict[str, Any]) -> None:
    finished(thread_engines)
    view = finished(thread_engines, **other)
    assert view.follower.earlier == {}
    assert view.follower.previous is None


def test_a_run_on_a_different_machine_is_not_the_previous_run(thread_engines: ml.Engines, monkeypatch: Any) -> None:
    finished(thread_engines)
    monkeypatch.setattr(following, "_place", lambda run: (run.mesh.fingerprint, "4 ranks · a different machine"))
    assert finished(thread_engines).follower.earlier == {}


def test_only_lines_of_the_previous_run_with_the_same_keys_are_grey(thread_engines: ml.Engines) -> None:
    first = finished(thread_engines, mode=["isolated", "pipelined"])
    second = finished(thread_engines, mode="isolated")
    assert second.follower.earlier["all_reduce"].value.tolist() == first.follower.series["isolated"].value.tolist()
    assert second.follower.previous is not None
    assert set(second.follower.previous["mode"]) == {"isolated"}
    assert second.follower.previous.attrs["where"] == first.run.where


def test_lines_with_a_concurrent_axis_have_only_the_same_load_as_previous(thread_engines: ml.Engines) -> None:
    first = finished(thread_engines, concurrent={"dp": "broadcast"})
    second = finished(thread_engines, concurrent={"dp": "all_gather"})
    assert set(second.follower.earlier) == {"all_reduce · tp"}
    plain = first.follower.series["all_reduce · tp"].value.tolist()
    assert second.follower.earlier["all_reduce · tp"].value.tolist() == plain


def test_only_the_last_few_runs_are_remembered(thread_engines: ml.Engines) -> None:
    for number in range(following._MOST_REMEMBERED + 1):
        finished(thread_engines, mesh=ml.DeviceMesh("tp=4").with_group(f"g{number}", [0, 1]), sizes="1K")
    assert len(following._last) == following._MOST_REMEMBERED


def test_a_run_whose_rank_raises_shows_the_rank_and_the_fix(thread_engines: ml.Engines, monkeypatch: Any) -> None:
    from meshlab.benchmark.on_ranks import _step_calls as step_calls

    honest = step_calls.allocate
    gate = threading.Event()

    def fail(parts: Any) -> Any:
        if any(step.size_bytes == 4096 and comm.world_rank == 1 for comm, step in parts):
            raise ValueError("a bad cable")
        return honest(parts)

    monkeypatch.setattr(step_calls, "allocate", fail)
    run = ml.bench(thread_engines, MESH, axis="tp", sizes="1K:16K", sampling=QUICK)
    view = LiveView(run)
    view.when_over(gate.set)
    assert gate.wait(60)
    assert run.state == "failed"
    assert "rank 1 raised ValueError: a bad cable" in view._run["error"]
    assert "call engines.restart() to start new ranks" in view._run["error"]
    assert view._run["can_restart"]
    page = static_bundle(run)["text/html"]
    assert "rank 1 raised ValueError: a bad cable" in page
    assert "<svg" in page  # of the two steps that were measured


def test_every_state_has_a_static_bundle(thread_engines: ml.Engines) -> None:
    run = ml.bench(thread_engines, MESH, axis="tp", sizes="1K:4K", sampling=QUICK)
    early = static_bundle(run)
    assert set(early) >= {"text/plain", "text/html"}
    run.wait(120)
    late = static_bundle(run)
    assert set(late) == {"text/plain", "text/html", "image/png"}
    assert "done · 3 of 3 steps" in late["text/html"]
    assert late["text/html"].count("<tr>") == 1 + 3  # the header and one row per size


def test_lines_are_drawn_on_the_thread_of_the_view_while_the_run_measures(
    thread_engines: ml.Engines, hold_runs: Callable[..., threading.Event]
) -> None:
    may_go = hold_runs(after=3)
    run = ml.bench(thread_engines, MESH, axis="tp", sizes="1K:64M", sampling=QUICK)
    view = LiveView(run)
    wait_until(lambda: "all_reduce" in view.follower.series)
    assert run.state == "running"
    run.cancel()
    may_go.set()
    run.wait(120)
    wait_until(view.follower.is_over.is_set)
    assert len(view.follower.series["all_reduce"]) == len(run.results["size_bytes"].unique())


def test_a_run_has_one_view_which_lets_the_run_go_when_it_ends(thread_engines: ml.Engines) -> None:
    run = ml.bench(thread_engines, MESH, axis="tp", sizes="1K", sampling=QUICK)
    view = run.view
    assert run.view is view
    assert run._display_() is view
    assert {"text/html", "text/plain", "application/vnd.jupyter.widget-view+json"} <= set(run._repr_mimebundle_()[0])
    run.wait(120)
    wait_until(view.follower.is_over.is_set)
    assert view.comm is not None  # Voilà replays the display of a view after its cell, and must find the model
    left = weakref.ref(run)
    del run
    # The threads of the run and of the view hold the run until they end, which on a busy machine is later.
    wait_until(lambda: gc.collect() >= 0 and left() is None)
    assert "done · 1 of 1 steps" in view._repr_mimebundle_()[0]["text/html"]


def test_a_run_that_ended_has_tabs_for_its_analyses(thread_engines: ml.Engines) -> None:
    view = finished(thread_engines, mode="isolated", grouping=["together", "alone"])
    tabs = {tab["name"]: tab for tab in view._details}
    assert list(tabs) == ["late", "contention", "spikes"]
    assert tabs["contention"]["columns"][3:6] == ["alone", "together", "ratio"]
    assert len(tabs["contention"]["rows"]) == 6
    view = finished(thread_engines, collective=["send", "send_recv"], grouping="pairs", axis="world", sizes="1K")
    (pairs,) = [tab for tab in view._details if tab["name"] == "pairs"]
    values = np.frombuffer(pairs["matrix"]["values"], dtype="<f4").reshape(4, 4)
    expected = view.run.matrix("send_recv").to_numpy(dtype=np.float32)
    assert np.array_equal(values, expected, equal_nan=True)


def test_the_strip_shows_when_each_rank_arrived(thread_engines: ml.Engines) -> None:
    view = finished(thread_engines, mode="isolated", sizes="1K")
    late = view._late
    assert late["ranks"] == [0, 1, 2, 3]
    samples = view.run.samples.query("not is_warmup")
    assert late["values"] == pytest.approx(samples.groupby("rank")["start_offset_us"].median().tolist(), rel=1e-6)
    assert late["text"].startswith(f"rank {int(np.argmax(late['values']))} enters last, ")
    assert finished(thread_engines, mode="pipelined")._late == {}  # starts are not aligned


def test_an_update_of_the_curve_takes_few_milliseconds(thread_engines: ml.Engines) -> None:
    mesh = ml.DeviceMesh("dp=2, tp=2")
    run = ml.bench(thread_engines, mesh, sizes="1K:1M", sampling=Sampling(max_s=0.01, min_batches=6))
    run.wait(60)
    rows = run.rows()
    follower = LiveView(run).follower
    times = []
    for end in range(2, len(rows), 2):
        follower._n_rows = end - 2
        run.rows = lambda start, end=end: rows[start:end]  # type: ignore[method-assign]
        begin = time.thread_time()
        follower._draw(run)
        times.append(time.thread_time() - begin)
    assert np.median(times) < 0.005
