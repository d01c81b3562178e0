"""How often two identical runs differ, measured through the command line, alone and beside busy programs."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import meshlab as ml
from meshlab.cli._main import main

PAIRS = 10
BENCH = ["bench", "all_reduce", "--mesh", "dp=2, tp=2", "--sizes", "1K:16K", "--launches", "3", "--seconds", "0.1"]


@contextmanager
def busy_loops(n: int) -> Iterator[None]:
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(n)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


@pytest.mark.long
@pytest.mark.parametrize("n_loops", [0, 2], ids=["quiet", "loaded"])
def test_identical_runs_rarely_differ_and_never_fail_a_check(
    n_loops: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    counts: Counter[str] = Counter()
    codes = []
    with busy_loops(n_loops):
        for number in range(PAIRS):
            folders = [str(tmp_path / f"{number}{side}") for side in "ab"]
            for folder in folders:
                assert main([*BENCH, "--out", folder]) == 0
            codes.append(main(["compare", *folders]))
            counts.update(ml.compare(*folders).counts)
    n_rows = counts.total()
    share = (counts["SLOWER"] + counts["FASTER"]) / n_rows
    with capsys.disabled():
        print(f"\n    {n_loops} busy loops: {n_rows} rows of {PAIRS} pairs: {dict(counts)}, exit codes {codes}")
    assert n_rows >= 200
    assert share <= 0.05
    assert codes == [0] * PAIRS
