"""The section of a report about a tuning."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import meshlab as ml
from meshlab.base._errors import BenchError


def test_a_tuning_has_a_section_in_both_formats(tmp_path: Path) -> None:
    tuning = ml.example("tuning")
    report = ml.Report(tuning)
    html, text = report.html(), report.markdown()
    for shown in (html, text):
        assert shown.index(tuning.verdicts[0][:12]) < shown.index("s tuner plugin")
        assert "Environment for all sizes" in shown
    assert text.startswith("# Tuning of tp=2\n")
    assert "## Tuning" in text
    assert "<h2>Tuning</h2>" in html
    path = report.save(tmp_path / "tuning.html")
    assert ml.Report.read(path).results["time_us"].tolist() == tuning.results["time_us"].tolist()
    report.save(tmp_path / "tuning.md", pictures=True)
    assert (tmp_path / "tuning-tuning.png").stat().st_size > 10_000
    assert "](<tuning-tuning.png>)" in (tmp_path / "tuning.md").read_text()


def test_a_run_with_a_tuning_keeps_its_own_sections() -> None:
    text = ml.Report(ml.example(), tuning=ml.example("tuning")).markdown()
    assert "## Tuning" in text
    assert "All 168 results are correct." in text
    assert "## Tuning" not in ml.Report(ml.example()).markdown()


def test_the_names_of_hosts_in_a_tuning_are_redacted() -> None:
    tuning = replace(
        ml.example("tuning"), system={**ml.example("tuning").system, "hosts": "gpu-7", "note": "gpu-7 is hot"}
    )
    assert "gpu-7" in ml.Report(tuning).markdown()
    assert "gpu-7" not in ml.Report(tuning, redact=True).html()


def test_something_else_is_not_a_tuning() -> None:
    with pytest.raises(BenchError, match=r"tuning must be a Tuning, not str; read a file with Tuning.load"):
        ml.Report(ml.example(), tuning="tuning.json")  # type: ignore[arg-type]
