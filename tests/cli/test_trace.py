from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from meshlab.cli._main import main
from tests.traces.trace_maker import document, event, kernel_event, write


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    steps = [event("user_annotation", f"ProfilerStep#{number}", 1000.0 * number, 900.0) for number in (1, 2)]
    calls = [[kernel_event(1000.0 * k + late, 400.0 - late) for k in (1, 2)] for late in (0.0, 300.0)]
    return [str(path) for path in write(tmp_path, *(document([*steps, *calls[rank]], rank) for rank in (0, 1)))]


def test_the_time_by_axis_is_printed(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", *files, "--mesh", "dp=2"]) == 0
    printed = capsys.readouterr().out.replace("\N{THIN SPACE}", " ")
    assert "ranks 0 and 1 · 2 calls · profiler trace" in printed
    assert "rank 1 is late in 2 of 2, by 300 µs in the median." in printed
    assert main(["trace", str(Path(files[0]).parent), "--steps"]) == 0
    assert "step" in capsys.readouterr().out


def test_calls_are_compared_with_published_curves(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", *files, "--published", "H100"]) == 0
    assert "of published curves (2 of 2 calls): DigitalOcean" in capsys.readouterr().out
    assert main(["trace", *files, "--published"]) == 2
    assert "does not contain the name of its GPUs" in capsys.readouterr().err


def test_a_report_and_a_table_are_written(files: list[str], tmp_path: Path) -> None:
    assert main(["trace", *files, "-o", str(tmp_path / "job.html")]) == 0
    page = (tmp_path / "job.html").read_text()
    assert page.count("<svg") == 3
    assert "Find out why rank 1 is late" in page
    assert main(["trace", *files, "-o", str(tmp_path / "job.csv")]) == 0
    assert len(pd.read_csv(tmp_path / "job.csv")) == 4


@pytest.mark.parametrize("option", [(), ("--follow",)], ids=["read", "followed"])
def test_a_report_of_another_kind_is_refused_before_the_trace_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: tuple[str, ...]
) -> None:
    assert main(["trace", str(tmp_path / "no folder"), *option, "-o", str(tmp_path / "job.pdf")]) == 2
    assert "job.pdf must end in one of .html, .csv" in capsys.readouterr().err


def test_a_file_without_calls_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (path,) = write(tmp_path, document([]))
    assert main(["trace", str(path)]) == 2
    assert "contains no collective" in capsys.readouterr().err


def test_a_trace_is_replayed(files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "replay.csv"
    assert main(["trace", *files, "--replay", "--gaps", "--backend", "threads", "-o", str(out)]) == 0
    printed = " ".join(capsys.readouterr().out.split())  # lines fit the terminal
    assert "2 calls of 4 MiB were made again in their order. No verdict on times: 2 ranks are threads" in printed
    assert "late ranks cost" in printed
    assert pd.read_csv(out)[["calls", "n_wrong"]].to_numpy().tolist() == [[2, 0]]
    assert main(["trace", *files, "--gaps"]) == 2
    assert "add --replay" in capsys.readouterr().err
    assert main(["trace", *files, "--replay", "--buffers", "symmetric", "--backend", "threads"]) == 2
    assert "threads has only plain buffers" in capsys.readouterr().err
    assert main(["trace", *files, "--replay", "-o", str(tmp_path / "job.html")]) == 2
    assert "must end in .csv with --replay" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--follow", "--replay"], "--follow cannot be combined with --steps, --run, --published, --replay, --gaps or"),
        (["--follow", "--gaps"], "--follow cannot be combined with"),
        (["--follow", "--buffers", "symmetric"], "--follow cannot be combined with"),
        (["--replay", "--steps"], "--replay cannot be combined with --steps, --run or --published; omit one of them"),
        (["--replay", "--run", "folder"], "--replay cannot be combined with"),
        (["--replay", "--published", "H100"], "--replay cannot be combined with"),
    ],
)
def test_options_that_exclude_each_other_are_refused(
    files: list[str], capsys: pytest.CaptureFixture[str], options: list[str], sentence: str
) -> None:
    assert main(["trace", str(Path(files[0]).parent), *options]) == 2
    assert sentence in " ".join(capsys.readouterr().err.split())
