"""The command ``meshlab rehearse``, called in this process."""

from __future__ import annotations

import shlex
from pathlib import Path

import pandas as pd
import pytest

from meshlab.cli._main import main


def test_a_rehearsal_compares_layouts_and_writes_its_frame(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "steps.csv"
    options = "--set global_batch=4 --set layers=4 --rounds 1 --steps 1 --scale 0.25 --backend threads"
    assert main(shlex.split(f"rehearse llama3-8b --mesh dp=2,tp=2 --mesh tp=4 {options} --out {out}")) == 0
    printed = capsys.readouterr().out
    assert "No verdict on times: 4 ranks are threads of one process." in printed
    assert "tp (4 ranks, " in printed
    frame = pd.read_csv(out)
    assert frame["layout"].unique().tolist() == ["dp=2, tp=2", "tp=4"]
    assert frame["n_wrong"].dropna().eq(0).all()
