"""Tunings on disk: nothing is lost, names can be hashed, and a damaged file is reported."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

import meshlab as ml
from meshlab.analysis.tuning._tuning import Tuning
from meshlab.base._errors import BenchError, ParseError
from tests.analysis.trial_maker import DEFAULT, RING, SYSTEM, a_tuning, both, trial, usual_rows


def test_a_saved_tuning_is_the_same(tmp_path: Path) -> None:
    rows = [*usual_rows(), trial(RING, 512, float("nan"), status="failed", message='no memory on gpu-7, "ring"')]
    rows += both({"setting": "x"}, 1024, 8.0, 8.0)
    tuning = a_tuning(rows, settings={"x": {"NCCL_ALGO": "tree"}}, mesh=ml.DeviceMesh("dp=2, tp=2"))
    again = Tuning.load(tuning.save(tmp_path / "tuning.json"))
    # Times are rounded to five digits.
    pd.testing.assert_frame_equal(again.trials, tuning.trials, rtol=1e-4)
    assert {name: str(dtype) for name, dtype in again.trials.dtypes.items()} == {
        name: str(dtype) for name, dtype in tuning.trials.dtypes.items()
    }
    assert (again.mesh, again.axis, dict(again.system)) == (tuning.mesh, "tp", SYSTEM)
    assert dict(again.settings["x"]) == {"NCCL_ALGO": "tree"}
    assert again.choices() == tuning.choices()
    assert list(tmp_path.iterdir()) == [tmp_path / "tuning.json"]


def test_hashes_replace_the_names_of_hosts(tmp_path: Path) -> None:
    rows = [*usual_rows(), trial(RING, 1024, 9.0, status="failed", message="gpu-7: /home/ada/nccl failed")]
    path = a_tuning(rows).save(tmp_path / "tuning.json", redact=True)
    text = path.read_text()
    assert "gpu-7" not in text
    assert "ada" not in text
    assert "host-" in Tuning.load(path).system["hosts"]


def test_options_that_were_dropped_can_be_left_out() -> None:
    rows = [
        *usual_rows(),
        trial({"max_ctas": 1}, 1024, 99.0, status="dropped"),
        trial(DEFAULT, 512, 5.0, status="dropped"),
    ]
    tuning = a_tuning(rows)
    kept = tuning.without_dropped()
    assert len(kept.trials) == len(tuning.trials) - 1
    assert kept.choices() == tuning.choices()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not valid JSON"),
        ("[]", "the file contains no tuning; pass a file that Tuning.save wrote"),
        ('{"kind": "meshlab tuning", "schema": 99}', "has schema 99, but this version of meshlab reads 1"),
        ('{"kind": "meshlab tuning", "schema": 1}', "incomplete: system is missing"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "tuning.json"
    path.write_text(text)
    with pytest.raises(ParseError, match=message):
        Tuning.load(path)


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    path = a_tuning(usual_rows()).save(tmp_path / "tuning.json")
    for change in (
        lambda trials: trials.pop("time_us"),
        lambda trials: trials["time_us"].pop(),
        lambda trials: trials["size_bytes"]["codes"].append(99),
        lambda trials: trials.update(speed=[1]),
        lambda trials: trials["collective"].update(levels=[]),
    ):
        damaged = json.loads(path.read_text())
        change(damaged["trials"])
        other = tmp_path / "damaged.json"
        other.write_text(json.dumps(damaged))
        with pytest.raises(ParseError, match=r"the tuning is (damaged|incomplete): .*; copy the file again"):
            Tuning.load(other)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ParseError, match="the file is not text"):
        Tuning.load(path)


def test_a_missing_file_and_a_missing_folder_are_reported(tmp_path: Path) -> None:
    with pytest.raises(ParseError, match="cannot read the tuning: No such file or directory; pass a file that"):
        Tuning.load(tmp_path / "none.json")
    with pytest.raises(BenchError, match="cannot write"):
        a_tuning(usual_rows()).save(tmp_path / "none" / "tuning.json")


def test_the_example_is_small_and_complete() -> None:
    path = Path(ml.__file__).parent / "frames" / "examples" / "tuning.json"
    assert path.stat().st_size <= 60_000
    tuning = ml.example("tuning")
    assert set(tuning.collectives) >= {"all_reduce", "all_gather", "reduce_scatter"}
    assert tuning.system["backend"] == "nccl"
    assert "H200" in tuning.where
    assert tuning.mean_gains(largest="16M").max() > 0.1
    assert (tuning.frame()["gain"] >= 0).all()
