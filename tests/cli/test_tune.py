"""The command ``meshlab tune``, called in this process."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

import meshlab as ml
from meshlab.analysis.tuning._tuning import Tuning
from meshlab.base._errors import EngineError
from meshlab.cli import _tune as tune_command
from meshlab.cli._main import main
from meshlab.cli._output import BAD_INPUT, FAILED, INTERRUPTED, OK
from tests.analysis.trial_maker import SYSTEM, a_tuning, both, usual_rows

MPI = {"backend": "mpi", "library": "MPICH 5.0.2", "where": "2 ranks · MPI on this CPU", "hosts": "laptop"}
ARGUMENTS = ["tune", "--mesh", "tp=2", "--axis", "tp", "--backend", "threads"]


def test_a_folder_gets_everything_that_programs_use(tmp_path: Path) -> None:
    tuning = a_tuning(usual_rows())
    files = tune_command.write_folder(tuning, tmp_path / "tuned")
    names = ["tuning.json", "tuning.csv", "tuning.html", "tuning.env", "tuned.py", "nccl_tuner.conf"]
    assert [path.name for path in files] == names
    assert sorted(names) == sorted(path.name for path in (tmp_path / "tuned").iterdir())
    assert Tuning.load(files[0]).choices() == tuning.choices()
    assert pd.read_csv(files[1])["gain"].tolist() == pytest.approx(tuning.frame()["gain"].tolist())
    assert files[4].read_text() == tuning.to_python()
    assert files[5].read_text() == str(tuning.to_tuner_config())


def test_a_folder_of_mpi_has_its_variables(tmp_path: Path) -> None:
    rows = [*both({}, 1024, 6.0, 6.0), *both({"setting": "ring"}, 1024, 4.0, 4.0)]
    tuning = a_tuning(rows, settings={"ring": {"MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM": "ring"}}, system=MPI)
    files = tune_command.write_folder(tuning, tmp_path)
    assert [path.name for path in files] == ["tuning.json", "tuning.csv", "tuning.html", "tuning.env"]
    assert "export MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM=ring" in files[3].read_text()


def test_a_folder_has_no_files_of_an_earlier_tuning(tmp_path: Path) -> None:
    tune_command.write_folder(a_tuning(usual_rows()), tmp_path)
    (tmp_path / "mine.py").write_text("mine")
    files = tune_command.write_folder(a_tuning([*both({}, 1024, 6.0, 6.0)], system=MPI), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {*(path.name for path in files), "mine.py"}
    assert not (tmp_path / "tuned.py").exists()


def test_tuning_prints_the_choice_and_writes_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The search itself is tested elsewhere: here a prepared result takes its place."""
    asked = {}

    def search(engines: ml.Engines, mesh: ml.DeviceMesh, collectives: list[str], **arguments: object) -> Tuning:
        asked.update(arguments, mesh=str(mesh), collectives=collectives)
        return a_tuning(usual_rows(), system={**SYSTEM, "hosts": "gpu-7"})

    monkeypatch.setattr("meshlab.benchmark.tuning._tune.tune", search)
    more = ["all_reduce", "broadcast", "--sizes", "1K:8K", "--seconds", "60", "--no-confirm", "--redact"]
    assert main([*ARGUMENTS, *more, "--out", str(tmp_path / "tuned")]) == OK
    out = capsys.readouterr().out
    assert "all_reduce: 22\N{THIN SPACE}% less time than NCCL's default" in out
    assert str(tmp_path / "tuned" / "tuning.json") in out
    assert "gpu-7" not in (tmp_path / "tuned" / "tuning.json").read_text()
    assert asked["collectives"] == ["all_reduce", "broadcast"]
    assert (asked["sizes"], asked["budget_s"], asked["confirm"], asked["mesh"]) == ("1K:8K", 60.0, False, "tp=2")
    assert main([*ARGUMENTS, "--out", str(tmp_path / "tuned")]) == BAD_INPUT
    assert "holds another tuning; choose another folder, or pass --force" in capsys.readouterr().err
    assert main([*ARGUMENTS, "--out", str(tmp_path / "tuned"), "--force"]) == OK


@pytest.mark.parametrize("kind", ["rank", "interrupt"])
def test_what_was_measured_before_a_failure_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    def search(*_: object, **__: object) -> Tuning:
        error = EngineError("rank 1 died", rank=1, host="a", log="") if kind == "rank" else KeyboardInterrupt()
        error.measured = a_tuning(usual_rows())  # type: ignore[union-attr]
        raise error

    monkeypatch.setattr("meshlab.benchmark.tuning._tune.tune", search)
    code = main([*ARGUMENTS, "--out", str(tmp_path / "tuned")])
    assert code == (FAILED if kind == "rank" else INTERRUPTED)
    err = capsys.readouterr().err
    assert ("rank 1 died" if kind == "rank" else "interrupted") in err
    assert Tuning.load(tmp_path / "tuned" / "tuning.json").collectives == ("all_reduce",)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--gpus", "0;1"], "--gpus '0;1' is not a list of integers; write --gpus 0,1"),
        ([], "there is nothing to tune"),
    ],
)
def test_bad_input_is_reported(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    assert main([*ARGUMENTS, *arguments]) == BAD_INPUT
    assert message in capsys.readouterr().err
