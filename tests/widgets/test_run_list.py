"""The tab Runs: names, removal, repetition and comparison, as its messages ask for them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import meshlab as ml
from meshlab.analysis._comparison import change_text
from meshlab.plans._sampling import Sampling
from tests.widgets.measure_widget import MeasureWidget

QUICK = Sampling(max_s=0.02, min_batches=6)


def wait_until(condition: Callable[[], Any], limit_s: float = 60) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture
def widget(thread_engines: ml.Engines) -> Iterator[MeasureWidget]:
    made = MeasureWidget()
    made.measuring.engines = thread_engines
    yield made
    made.measuring.close()


def measured(widget: MeasureWidget, n: int) -> list[ml.Run]:
    runs = []
    for _ in range(n):
        runs.append(widget.measuring.start(axis="tp", sizes="1K, 4K", sampling=QUICK))
        runs[-1].wait(60)
    wait_until(lambda: widget._bench["can_start"])
    return runs


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (1.0, "as fast"),
        (1.07, "7\u2009% more time"),
        (0.93, "7\u2009% less time"),
        (2.34, "2.3 times slower"),
        (0.000829, "1,200 times faster"),
        (1206.0, "1,200 times slower"),
        (float("nan"), "–"),
    ],
)
def test_a_ratio_is_told_in_words(ratio: float, text: str) -> None:
    assert change_text(ratio) == text


def test_a_name_of_the_page_reaches_the_folder(widget: MeasureWidget, tmp_path: Path) -> None:
    (run,) = measured(widget, 1)
    run.save(tmp_path / "run")
    other = MeasureWidget()
    other.press("run.folder", folder=str(tmp_path))
    wait_until(lambda: other._runs["rows"])
    (row,) = other._runs["rows"]
    assert (row["name"], row["label"], row["run_id"]) == ("run", "", run.run_id)
    other.press("run.label", key=row["key"], name="first", edit=7)
    other.press("run.label", key=row["key"], notes="a note", edit=8)
    (row,) = other._runs["rows"]
    assert (row["name"], row["notes"], other._runs["edit"]) == ("first", "a note", 8)
    saved = ml.Run.load(tmp_path / "run")
    assert (saved.name, saved.notes) == ("first", "a note")
    other.measuring.close()


def test_deleted_runs_stay_on_the_disk_until_they_are_removed(widget: MeasureWidget, tmp_path: Path) -> None:
    for k, run in enumerate(measured(widget, 2)):
        run.save(tmp_path / f"run{k}")
    other = MeasureWidget()
    other.press("run.folder", folder=str(tmp_path))
    wait_until(lambda: len(other._runs["rows"]) == 2)
    key = other._runs["rows"][0]["key"]
    other.press("run.delete", keys=[key])
    assert (len(other._runs["rows"]), other._runs["on_disk"]) == (1, 1)
    assert other._runs["deleted"] == [Path(key).name]
    other.press("run.undelete")
    assert (len(other._runs["rows"]), other._runs["deleted"]) == (2, [])
    other.press("run.delete", keys=[key])
    assert (Path(key) / "run.json").is_file()
    other.press("run.remove")
    wait_until(lambda: not Path(key).exists())
    assert len(list(tmp_path.iterdir())) == 1
    other.measuring.close()


def test_three_runs_are_compared_with_the_first_in_curves_and_ratios(widget: MeasureWidget) -> None:
    runs = measured(widget, 3)
    for run, name in zip(runs, ("a", "b", "c"), strict=True):
        run.name = name
    widget.press("run.compare", keys=[run.run_id for run in runs])
    wait_until(lambda: "compared" in widget._runs)
    compared = widget._runs["compared"]
    assert [line["name"] for line in compared["curve"]["lines"]] == ["a", "b", "c"]
    assert [compared["of"], *(pair["of"] for pair in compared["others"])] == ["b", "c"]
    assert compared["figure"].startswith("<svg")
    assert compared["text"].startswith("4 rows compared, one launch each: too few for a verdict. Typically, b is ")
    assert not any("launches=" in note for note in compared["notes"])  # a button, not code
    assert compared["repeat"] == [run.run_id for run in runs[:2]]


def test_runs_with_one_launch_are_measured_again_and_compared(widget: MeasureWidget) -> None:
    runs = measured(widget, 2)
    runs[0].name = "first"
    widget.press("run.repeat", keys=[run.run_id for run in runs])
    wait_until(lambda: "compared" in widget._runs, 120)
    again = widget.measuring.runs[2:]
    assert [run.plan.launches for run in again] == [3, 3]
    assert [run.name for run in again] == ["first, 3 launches", f"{runs[1].run_id}, 3 launches"]
    assert widget._runs["compared"]["keys"] == [run.run_id for run in again]
    assert widget._runs["compared"]["repeat"] == []


def test_the_run_before_is_drawn_next_to_a_new_one_with_its_name(widget: MeasureWidget) -> None:
    measured(widget, 1)[0].name = "before"
    measured(widget, 1)
    lines = lambda: [(line["name"], line["kind"]) for line in widget._curve["lines"]]  # noqa: E731
    wait_until(lambda: len(lines()) == 2)
    assert lines() == [("all_reduce", ""), ("before", "overlaid")]
    widget.press("run.overlay", keys=[])
    assert lines() == [("all_reduce", "")]
    assert widget._curve["latency"]["y_unit"] == "µs"


def test_a_report_has_the_earlier_run_as_its_baseline(widget: MeasureWidget, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[dict[str, Any]] = []
    monkeypatch.setattr(widget, "send", lambda content, buffers=None: sent.append(content))
    runs = measured(widget, 2)
    runs[1].name = "after the update"
    widget.press("run.report", keys=[run.run_id for run in runs])
    wait_until(lambda: sent)
    assert sent[0]["name"] == "report-after-the-update.html"
    assert "<title>after the update: collectives on dp=2, tp=2</title>" in sent[0]["text"]
