"""The panels around a run: engines, the form of the next run, the runs, and the monitor. Without a browser."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meshlab as ml
from meshlab.base._errors import BenchError, EngineError, MeshError
from meshlab.plans._sampling import Sampling
from meshlab.plots._lines import Line
from meshlab.widgets import _measuring as measuring
from meshlab.widgets._readings import load_rows
from tests.widgets.measure_widget import MeasureWidget

QUICK = Sampling(max_s=0.02, min_batches=6)


def wait_until(condition: Callable[[], Any], limit_s: float = 60) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture
def widget() -> Iterator[MeasureWidget]:
    made = MeasureWidget()
    yield made
    made.measuring.close()


@pytest.fixture
def with_engines(widget: MeasureWidget, thread_engines: ml.Engines) -> MeasureWidget:
    widget.measuring.engines = thread_engines
    return widget


def fill(widget: MeasureWidget, **form: Any) -> dict[str, Any]:
    widget.press("measure.form", edit=widget._bench["edit"] + 1, form=form)
    return dict(widget._bench)


def test_without_engines_the_form_has_an_estimate_and_says_why_it_cannot_start(widget: MeasureWidget) -> None:
    assert widget._engines["state"] == "none"
    by_backend = {choice["backend"]: choice for choice in widget._engines["choices"]}
    assert (by_backend["mpi"]["label"], by_backend["mpi"]["n"]) == ("4 MPI ranks on this CPU", 4)
    assert by_backend["mpi"]["text"] == "MPI ranks on this CPU"
    assert (widget._bench["can_start"], widget._bench["why"]) == (False, "No engines are running.")
    assert widget._bench["estimate"].startswith("30 steps, about ")  # 15 sizes along two axes
    with pytest.raises(EngineError, match="no engines are running"):
        widget.measuring.start()
    widget.press("measure.start")
    assert widget._engines["problem"].startswith("no engines are running")


def test_engines_start_and_stop_with_a_button(widget: MeasureWidget) -> None:
    widget.press("measure.engines", action="start", n=4, backend="threads")
    widget.press("measure.engines", action="start", n=4, backend="threads")  # a double click starts one set
    wait_until(lambda: widget._bench["can_start"])
    assert [rank[:2] for rank in widget._engines["ranks"]] == [[rank, "idle"] for rank in range(4)]
    assert widget._engines["text"] == "4 ranks · threads in this process"
    engines = widget.measuring.engines
    assert engines is not None
    widget.press("measure.engines", action="close")
    wait_until(lambda: widget._engines["state"] == "none")
    assert engines.state == "closed"


def test_engines_that_are_closing_are_shown_as_such(widget: MeasureWidget) -> None:
    engines = ml.launch(2, backend="threads")
    widget.measuring.engines = engines
    states: list[str] = []

    def close() -> None:  # the ranks of a machine take seconds to end, in which the panels are drawn again
        widget.measuring.show_all()
        states.append(engines.state)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engines._rank_set, "close", close)
        engines.close()
    assert states == ["closing"]
    assert widget._engines["state"] == "closing"
    assert [rank[:2] for rank in widget._engines["ranks"]] == [[0, "closing"], [1, "closing"]]
    assert (widget._bench["can_start"], widget._bench["why"]) == (False, "The engines are closing.")
    engines._rank_set.close()


def test_engines_that_do_not_start_show_the_reason(widget: MeasureWidget, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(n: int, **options: Any) -> None:
        raise EngineError("no mpiexec found", hint="run pip install mpich")

    monkeypatch.setattr(measuring, "launch", fail)
    widget.press("measure.engines", action="start", n=4, backend="mpi")
    wait_until(lambda: widget._engines["problem"] and not widget._engines["doing"])
    assert widget._engines["problem"] == "no mpiexec found; run pip install mpich"


def test_engines_that_the_caller_started_are_not_stopped(with_engines: MeasureWidget, thread_engines: Any) -> None:
    assert not with_engines._engines["is_own"]
    with_engines.press("measure.engines", action="close")
    with_engines.measuring.close()
    assert thread_engines.state == "ready"


@pytest.mark.parametrize(
    ("form", "field", "message"),
    [
        ({"sizes": "1K:banana"}, "sizes", "banana"),
        ({"mode": "graph"}, "mode", "threads does not support mode 'graph'"),
        ({"axis": "ep"}, "axis", "ep"),
        ({"mesh": "dp=3, tp=2"}, "mesh", "dp=3, tp=2 has 6 ranks, but 4 ranks are running"),
        ({"mesh": "dp="}, "mesh", None),
    ],
)
def test_a_field_with_a_misfit_is_marked(
    with_engines: MeasureWidget, form: dict[str, Any], field: str, message: str | None
) -> None:
    bench = fill(with_engines, **form)
    assert list(bench["problems"]) == [field]
    assert message is None or message in bench["problems"][field]
    assert not bench["can_start"]
    assert fill(with_engines, sizes="1K", axis="", mesh="", mode="pipelined")["can_start"]


def test_a_mesh_that_is_too_large_to_measure_here_has_three_near_ones(thread_engines: ml.Engines) -> None:
    widget = MeasureWidget("pp=16, dp=128, tp=8")
    widget.measuring.engines = thread_engines
    assert (widget._bench["mesh"], widget._bench["problems"]) == ("pp=2, dp=2", {})  # that of the ranks
    assert widget._bench["meshes"] == ["pp=4", "pp=2, tp=2"]
    assert widget._bench["groups"] == {"pp": [0, 1, 0, 1], "dp": [0, 0, 1, 1]}
    message = "pp=16, dp=128, tp=8 has 16,384 ranks, but 4 ranks are running"
    with pytest.raises(MeshError, match=message):  # code measures the mesh that it names, or none
        widget.measuring.start(axis="tp")
    assert fill(widget, mesh="pp=16, dp=128, tp=8")["problems"]["mesh"] == message
    bench = fill(widget, mesh="pp=2, tp=2", sizes="1K", sampling="quick")
    assert bench["can_start"]
    assert bench["axes"] == ["pp", "tp"]
    widget.press("measure.start")
    run = widget.measuring.run
    assert run is not None
    run.wait(120)
    assert str(run.mesh) == "pp=2, tp=2"
    widget.measuring.close()


def test_the_form_can_be_filled_with_anything(with_engines: MeasureWidget) -> None:
    strange = {"launches": "many", "collectives": [], "grouping": "?", "sampling": None, "more": 1}
    assert (
        fill(with_engines, **strange)["form"]
        == fill(with_engines, launches=1)["form"]
        == dict(measuring._FORM, collectives=["all_reduce"])
    )
    assert fill(with_engines, launches=1e9)["form"]["launches"] == 99


def test_a_run_of_the_form_is_followed_and_its_buttons_work(
    with_engines: MeasureWidget, hold_runs: Callable[..., threading.Event]
) -> None:
    may_go = hold_runs()
    fill(with_engines, sizes="1K:64K", axis="tp", collectives=["broadcast"], mode="isolated")
    with_engines.press("measure.start")
    run: Any = with_engines.measuring.run
    with_engines.press("run.pause")
    may_go.set()
    wait_until(lambda: with_engines._run["state"] == "paused")
    with_engines.measuring.show_all()
    assert with_engines._engines["ranks"][0][1] == "busy"
    assert with_engines._engines["doing"].startswith("a paused run")
    assert not with_engines._bench["can_start"]
    with_engines.press("run.resume")
    run.wait(120)
    wait_until(lambda: with_engines._run["has_ended"] and with_engines._bench["can_start"])
    assert [line["name"] for line in with_engines._curve["lines"]] == ["broadcast"]
    assert [row["name"] for row in with_engines._runs["rows"]] == [run.run_id]
    may_go.clear()
    with_engines.press("measure.start")
    with_engines.measuring.control("run.stop")
    may_go.set()
    again: Any = with_engines.measuring.run
    again.wait(120)
    assert again.state == "cancelled"
    assert [row["name"] for row in with_engines._runs["rows"]] == [again.run_id, run.run_id]


def test_the_form_measures_contention_and_pairs(with_engines: MeasureWidget) -> None:
    fill(with_engines, sizes="1K", axis="tp", sampling="quick", grouping="together, alone")
    with_engines.press("measure.start")
    run: Any = with_engines.measuring.run
    run.wait(120)
    wait_until(lambda: "contention" in [tab["name"] for tab in with_engines._details])
    fill(with_engines, grouping="pairs", axis="")
    with_engines.press("measure.start")
    pairs: Any = with_engines.measuring.run
    pairs.wait(120)
    wait_until(lambda: "pairs" in [tab["name"] for tab in with_engines._details])
    assert pairs.matrix("send").shape == (4, 4)


def test_a_prediction_is_drawn_with_the_name_of_its_line(with_engines: MeasureWidget) -> None:
    with_engines.measuring.predict = lambda mesh, plan: {"": Line.of([1024, 4096], [1.0, 2.0])}  # the only line
    run = with_engines.measuring.start(axis="tp", sizes="1K, 4K", sampling=QUICK)
    run.wait(120)
    wait_until(lambda: with_engines._run["has_ended"] and len(with_engines._curve["lines"]) == 2)
    assert {(line["name"], line["kind"]) for line in with_engines._curve["lines"]} == {
        ("all_reduce", ""),
        ("all_reduce", "predicted"),
    }


@pytest.mark.full
def test_a_dead_rank_is_one_line_and_a_restart(widget: MeasureWidget, mpi_engines: ml.Engines) -> None:
    widget.measuring.engines = mpi_engines
    run = widget.measuring.start(axis="tp", sizes="1K:64M", sampling=Sampling(max_s=0.5, precision=1e-9))
    wait_until(lambda: run.progress.done)
    os.kill(mpi_engines.ranks[2].pid, signal.SIGKILL)
    with pytest.raises(EngineError):
        run.wait(120)
    wait_until(lambda: widget._run["has_ended"] and widget._engines["state"] == "broken")
    assert "rank 2" in widget._run["error"]
    assert widget._run["can_restart"]
    assert widget._engines["problem"] == ""  # the run says it already
    assert [word for _, word, _ in widget._engines["ranks"]] == ["stopped", "stopped", "dead", "stopped"]
    assert len(run.results) > 0
    widget.press("run.restart")
    wait_until(lambda: widget._engines["state"] == "ready" and not widget._run["can_restart"], 60)
    os.kill(mpi_engines.ranks[1].pid, signal.SIGKILL)  # while nobody uses the engines
    wait_until(lambda: widget._engines["problem"].endswith(" has died"))
    assert widget._engines["state"] == "broken"
    widget.measuring.engines = None
    mpi_engines.restart()


def test_runs_of_a_folder_are_listed_shown_and_compared(with_engines: MeasureWidget, tmp_path: Path) -> None:
    for name in ("first", "second"):
        run = with_engines.measuring.start(axis="tp", sizes="1K, 4K", sampling=QUICK, launches=2)
        run.wait(120)
        run.save(tmp_path / name)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_text("{")
    widget = MeasureWidget()
    widget.press("run.folder", folder=str(tmp_path))
    wait_until(lambda: widget._runs["rows"])
    rows = widget._runs["rows"]
    assert {row["name"] for row in rows} == {"first", "second"}
    assert {row["state"] for row in rows} == {"done"}
    assert all(row["best"].endswith("GB/s") for row in rows)
    widget.press("run.compare", keys=[row["key"] for row in rows])
    wait_until(lambda: "compared" in widget._runs)
    compared = widget._runs["compared"]
    assert compared["text"].startswith("4 rows compared")
    assert len(compared["rows"]) == 4
    widget.press("run.open", key=rows[0]["key"])
    assert widget._run["state"] == "done"
    assert [line["name"] for line in widget._curve["lines"]] == ["all_reduce"]
    assert "spikes" in [tab["name"] for tab in widget._details]
    widget.press("run.folder", folder=str(tmp_path / "none"))
    wait_until(lambda: "problem" in widget._runs)
    assert widget._runs["problem"].endswith("is not a folder")
    widget.measuring.close()


def test_runs_that_cannot_be_compared_say_why(with_engines: MeasureWidget) -> None:
    runs = [
        with_engines.measuring.start(axis="tp", sizes="1K", sampling=QUICK, collective=name) for name in ("all_reduce",)
    ]
    runs[0].wait(120)
    runs.append(with_engines.measuring.start(axis="tp", sizes="1K", sampling=QUICK, collective="broadcast"))
    runs[1].wait(120)
    with_engines.press("run.compare", keys=[run.run_id for run in runs])
    wait_until(lambda: "compared" in with_engines._runs)
    assert "collective" in with_engines._runs["compared"]["problem"]


def test_only_runs_and_engines_are_accepted(widget: MeasureWidget) -> None:
    with pytest.raises(EngineError, match="engines must be Engines or None, not int"):
        widget.measuring.engines = 4  # type: ignore[assignment]
    with pytest.raises(BenchError, match="run must be a run or None, not str"):
        widget.measuring.run = "folder"  # type: ignore[assignment]
    widget.measuring.run = None
    assert widget._run == {}


def test_the_monitor_shows_every_gpu_or_the_processors() -> None:
    host = {"host": "n", "cpu_percent": 25.0, "cores": 2, "load": 1.5, "memory_used_bytes": 1 << 30,
            "memory_bytes": 4 << 30, "devices": []}  # fmt: skip
    (row,) = load_rows(host, {}, False)
    assert (row["name"], row["use"], row["memory"]) == ("CPU · 2 cores", "25 %", "1\u2009GiB of 4\u2009GiB")
    device = {"id": 1, "utilisation_percent": 87.0, "memory_bytes": 80 << 30, "memory_used_bytes": 40 << 30,
              "power_w": 612.4, "power_limit_w": 700.0, "temperature_c": 61.0, "clock_sm_mhz": 1980,
              "clock_memory_mhz": 2619, "throttle": "power cap", "nvlink_tx_gbs": 210.0, "nvlink_rx_gbs": 208.0,
              "pcie_tx_gbs": 1.25, "pcie_rx_gbs": 0.5}  # fmt: skip
    (row,) = load_rows({**host, "devices": [device]}, {("n", 1): "rank 5"}, True)
    assert row["name"] == "n · GPU 1 · rank 5"
    assert (row["share"], row["memory_share"], row["throttle"]) == (0.87, 0.5, "power cap")
    assert dict(row["facts"]) == {
        "power": "612 W of 700 W",
        "temperature": "61 °C",
        "SM clock": "1,980 MHz",
        "memory clock": "2,619 MHz",
        "NVLink": "↑ 210\u2009GB/s ↓ 208\u2009GB/s",
        "PCIe": "↑ 1.25\u2009GB/s ↓ 0.500\u2009GB/s",
    }
    (row,) = load_rows({**host, "devices": [{"id": 0}]}, {}, False)  # a driver that answers nothing
    assert (row["use"], row["memory"], row["facts"]) == ("–", "–", [])


def test_the_monitor_stops_when_it_is_closed_or_nobody_looks(widget: MeasureWidget, monkeypatch: Any) -> None:
    widget.press("monitor.open")
    wait_until(lambda: widget._monitor.get("rows"))
    assert widget._monitor["rows"][0]["history"]
    sampler = widget.measuring._monitor._here._process  # type: ignore[union-attr]
    widget.press("monitor.close")
    assert widget._monitor == {}
    assert sampler.poll() is not None
    monkeypatch.setattr(measuring, "_UNSEEN_S", 0.0)
    widget.press("monitor.open")
    wait_until(lambda: widget._monitor == {})
    assert widget.measuring._monitor is None


def test_fifty_panels_leave_no_thread_and_no_process(thread_engines: ml.Engines) -> None:
    before = {thread.name for thread in threading.enumerate()}
    for _ in range(50):
        widget = MeasureWidget()
        widget.measuring.engines = thread_engines
        widget.measuring.close()
        widget.close()
    wait_until(lambda: {thread.name for thread in threading.enumerate()} <= before)


def test_an_answer_carries_the_number_of_its_edit(with_engines: MeasureWidget) -> None:
    with_engines.press("measure.form", edit=7, form={"sizes": "1K"})
    assert (with_engines._bench["edit"], with_engines._bench["form"]["sizes"]) == (7, "1K")
    assert np.isfinite(len(with_engines._bench["estimate"]))
