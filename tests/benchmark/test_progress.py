"""Progress where no bar can be drawn."""

from __future__ import annotations

import pytest

import meshlab as ml
from meshlab.benchmark import _progress
from meshlab.benchmark._progress import move_bar, progress_bar, progress_lines

QUICK = ml.Sampling(max_s=0.05)


def test_long_work_without_a_terminal_writes_a_line_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    seconds = iter([0.0, 59.0, 60.0, 61.0, 150.0])
    monkeypatch.setattr(_progress.time, "monotonic", lambda: next(seconds))
    monkeypatch.delenv("MESHLAB_PROGRESS", raising=False)
    with progress_lines(lines.append), progress_bar(None, unit="round", total=9) as bar:
        for done in range(1, 5):
            move_bar(bar, done, "dp=4")
    assert lines == [
        "2 of 9 rounds after 1\u2009min 0\u2009s, dp=4",
        "4 of 9 rounds after 2\u2009min 30\u2009s, dp=4",
    ]


def test_a_run_writes_its_progress(thread_engines: ml.Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MESHLAB_PROGRESS", raising=False)
    monkeypatch.setattr(_progress, "LINE_EVERY_S", 0.0)
    lines: list[str] = []
    with progress_lines(lines.append):
        ml.bench(thread_engines, sizes="1K:64M", sampling=QUICK).wait()
    assert "of 17 steps after" in lines[0]


@pytest.mark.parametrize("choice", ["environment", "argument"])
def test_progress_can_be_turned_off(choice: str, thread_engines: ml.Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_progress, "LINE_EVERY_S", 0.0)
    monkeypatch.setenv("MESHLAB_PROGRESS", "0" if choice == "environment" else "1")
    lines: list[str] = []
    with progress_lines(lines.append):
        run = ml.bench(thread_engines, sizes="1K:64M", sampling=QUICK)
        run.wait(progress=None if choice == "environment" else False)
    assert lines == []
