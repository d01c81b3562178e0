"""The command ``meshlab search``, called in this process."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from meshlab.cli._main import main


def test_search_prints_the_best_layouts_and_writes_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("layouts.csv", "layouts.png", "layouts.svg"):
        out = tmp_path / name
        command = f"search llama3-8b --cluster dgx-h100 --nodes 2 --set recompute=full --tp 1,2 --rows 3 --out '{out}'"
        assert main(shlex.split(command)) == 0
        assert out.stat().st_size > 1000
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:3] == ["place", "mesh", "step"]
    assert sum(line.startswith("    1") for line in lines[:4]) >= 1
    assert any("is first" in line for line in lines)
