"""The command ``meshlab predict``, called in this process."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

import meshlab as ml
from meshlab.cli._main import main


def test_predict_prints_a_table_and_an_explanation(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split("predict dp=2 tp=8 all_gather --cluster dgx-h100 --axis tp --sizes 1G")) == 0
    text = capsys.readouterr().out
    assert "dp=2, tp=8 on DGX H100, 2 nodes" in text
    assert re.search(r"tp +all_gather +1\sGiB +\S+ Simple", text)
    assert "Published runs:" in text
    assert "Basis: published (measured by others" in text


@pytest.mark.parametrize("suffix", ["csv", "png", "svg"])
def test_predict_writes_the_table_or_the_figure(
    suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"times.{suffix}"
    assert main(["predict", "tp=8", "--cluster", "dgx-h100", "--sizes", "1M:1G", "--out", str(path)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(path)
    start = {"csv": b"axis,groups", "png": b"\x89PNG", "svg": b"<svg"}[suffix]
    assert path.read_bytes().startswith(start)


def test_predict_calibrates_with_results_of_the_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from meshlab.frames._files import frame_to_parquet

    frame_to_parquet(ml.example(), tmp_path / "h200.parquet")
    arguments = shlex.split(f"predict tp=2 --cluster dgx-h200 --sizes 1K --calibration {tmp_path / 'h200.parquet'}")
    assert main([*arguments, "--mode", "graph"]) == 0
    assert "calibrated" in capsys.readouterr().out
    assert main(arguments) == 2
    assert "mix the modes graph, pipelined, isolated; choose one, such as --mode graph" in capsys.readouterr().err
