from __future__ import annotations

from pathlib import Path

import pytest

import meshlab as ml
from meshlab.base._errors import BenchError


def test_a_report_has_a_section_about_the_job(tmp_path: Path) -> None:
    report = ml.Report(ml.example(), trace=ml.Trace.example())
    page = report.save(tmp_path / "report.html").read_text()
    assert "<h2>Job</h2>" in page
    assert "reach" in page  # the calls on the curves of the run
    text = report.save(tmp_path / "report.md", pictures=True).read_text()
    assert "## Job" in text
    assert (tmp_path / "report-trace-timeline.png").exists()
    assert "<h2>Job</h2>" not in ml.Report(ml.example()).html()


def test_the_mesh_of_another_job_is_not_that_of_the_trace() -> None:
    text = ml.Report(ml.example(), mesh="tp=2", trace=ml.Trace.example()).markdown()
    assert "tp: 8 calls" in text


def test_only_a_trace_is_a_job() -> None:
    with pytest.raises(BenchError, match="trace must be a Trace, not str; read files with"):
        ml.Report(ml.example(), trace="files")  # type: ignore[arg-type]
