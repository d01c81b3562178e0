"""The command ``meshlab demo``, called in this process."""

from __future__ import annotations

from pathlib import Path

import pytest

import meshlab as ml
from meshlab.cli._main import main


@pytest.mark.long  # .ci/run runs the demo too
def test_the_demo_runs_all_steps_over_mpi(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["demo", "--sizes", "1K:16K*4", "--out", str(tmp_path / "demo")]) == 0
    out = capsys.readouterr().out
    assert "4 ranks · MPI on this CPU" in out
    run = ml.Run.load(tmp_path / "demo")
    assert set(run.results["collective"]) == {"all_reduce", "all_gather", "reduce_scatter", "broadcast"}
    assert set(run.results["axis"]) == {"dp", "tp"}
    assert (run.results["n_wrong"] == 0).all()
    assert "MPI on this CPU" in (tmp_path / "demo" / "report.html").read_text()


def test_the_demo_rejects_a_launcher(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", "2")
    monkeypatch.chdir(tmp_path)
    assert main(["demo", "--mesh", "tp=2"]) == 2
    assert "measure on these ranks: mpiexec -n 2 meshlab bench --mesh dp=2" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
