"""Texts that fit the columns of a terminal."""

from __future__ import annotations

import shlex

import pytest

from meshlab.cli._fitting import fitted, terminal_width
from meshlab.cli._main import main

TABLE = """\
axis  collective  size   time     busbw
dp    all_reduce  1 MiB  54.7 µs  19.2 GB/s
tp    all_reduce  1 MiB           65.5 GB/s"""


def test_the_parts_of_a_wide_table_repeat_its_keys() -> None:
    assert fitted(TABLE, 32, keys=2).split("\n") == [
        "axis  collective  size   time",
        "dp    all_reduce  1 MiB  54.7 µs",
        "tp    all_reduce  1 MiB",
        "",
        "axis  collective  busbw",
        "dp    all_reduce  19.2 GB/s",
        "tp    all_reduce  65.5 GB/s",
    ]


def test_text_that_fits_does_not_change() -> None:
    assert fitted(TABLE, 60) == TABLE
    assert fitted(TABLE, None) == TABLE


def test_text_continues_to_the_right_of_its_labels() -> None:
    line = "ok   numpy   2.4.6 at the folder of the packages"
    assert fitted(line, 34).split("\n") == ["ok   numpy   2.4.6 at the folder", "             of the packages"]
    assert fitted("  · one two three", 12).split("\n") == ["  · one two", "    three"]


def test_a_path_is_never_broken() -> None:
    assert fitted(f"see {'/folder' * 12}", 40).split("\n")[-1].strip() == "/folder" * 12


def test_the_width_is_unknown_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert terminal_width() is None


@pytest.mark.parametrize("columns", [60, 100])
@pytest.mark.parametrize(
    "command",
    [
        "predict 'dp=2, tp=8' --cluster dgx-h100 --sizes 1M,1G",
        "search llama3-8b --cluster dgx-h100",
        "bench all_reduce,all_gather,broadcast --mesh dp=2,tp=2 --sizes 1K,1M --seconds 0.02 --backend threads",
    ],
)
def test_what_commands_print_fits(
    command: str, columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(shlex.split(command)) == 0
    # An address or a path is a line that is never broken.
    lines = [line for line in capsys.readouterr().out.splitlines() if len(line.split()) > 1]
    assert max(map(len, lines)) <= columns
