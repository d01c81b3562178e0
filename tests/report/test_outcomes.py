"""The three outcomes, in a table of situations: what was not checked has not passed."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

import meshlab as ml
from meshlab.base._outcome import Outcome, overall
from meshlab.report._correct import judge_results
from meshlab.report._stages import StageResult, Stages

ROWS: dict[str, Any] = {
    "collective": "all_reduce",
    "size_bytes": [1024, 2048, 4096],
    "time_us": [10.0, 11.0, 12.0],
    "n_wrong": [0, 0, 0],
    "status": "ok",
    "axis": "tp",
    "group": "tp_0",
    "n_ranks": 2,
    "dtype": "float32",
    "in_place": False,
    "source": "nccl",
}

RESULTS: dict[str, tuple[dict[str, Any], Outcome]] = {
    "all checked": ({}, "passed"),
    "a wrong element": ({"n_wrong": [0, 3, 0], "status": ["ok", "wrong", "ok"]}, "failed"),
    "wrong without a count": ({"n_wrong": [0, None, 0], "status": ["ok", "wrong", "ok"]}, "failed"),
    "none checked": ({"n_wrong": [None] * 3}, "not decided"),
    "one size not checked": ({"n_wrong": [0, None, 0]}, "not decided"),
    "the other placement was checked": (
        {"size_bytes": 1024, "in_place": [False, True, True], "n_wrong": [0, None, None]},
        "passed",
    ),
    "another collective was checked": (
        {"collective": ["all_reduce", "f", "f"], "n_wrong": [0, None, None]},
        "not decided",
    ),
    "a function": ({"collective": "f", "size_bytes": [None] * 3, "n_wrong": [None] * 3}, "not decided"),
    "a function with an expected result": ({"collective": "f", "size_bytes": [None] * 3}, "passed"),
    "only barriers": ({"collective": "barrier", "size_bytes": [None] * 3, "n_wrong": [None] * 3}, "passed"),
    "a barrier and a checked collective": (
        {"collective": ["barrier", "all_reduce", "all_reduce"], "n_wrong": [None, 0, 0]},
        "passed",
    ),
    "a negative time": ({"time_us": [10.0, -5.0, 12.0]}, "failed"),
    "all times negative": ({"time_us": -5.0}, "failed"),
    "a time that is no number": ({"time_us": [10.0, np.nan, 12.0]}, "failed"),
    "an infinite time": ({"time_us": [10.0, np.inf, 12.0]}, "failed"),
    "a time that was rounded to 0": ({"time_us": [0.0, 11.0, 12.0]}, "passed"),
    "a failed measurement": (
        {"status": ["ok", "failed", "ok"], "time_us": [10.0, np.nan, 12.0], "n_wrong": [0, None, 0]},
        "failed",
    ),
    "a cancelled measurement": (
        {"status": ["ok", "ok", "cancelled"], "time_us": [10.0, 11.0, np.nan], "n_wrong": [0, 0, None]},
        "failed",
    ),
    "one skipped": (
        {"status": ["ok", "ok", "skipped"], "time_us": [10.0, 11.0, np.nan], "n_wrong": [0, 0, None]},
        "passed",
    ),
    "all skipped": ({"status": "skipped", "time_us": np.nan, "n_wrong": [None] * 3}, "not decided"),
    "skipped and not checked": (
        {"status": ["ok", "ok", "skipped"], "time_us": [10.0, 11.0, np.nan], "n_wrong": [None] * 3},
        "not decided",
    ),
    "wrong and not checked": ({"n_wrong": [None, 4, None], "status": ["ok", "wrong", "ok"]}, "failed"),
}


def frame(**changes: Any) -> pd.DataFrame:
    values = pd.DataFrame(ROWS | changes)
    return values.astype({"n_wrong": "Int64", "size_bytes": "Int64"})


@pytest.mark.parametrize("name", list(RESULTS))
def test_results(name: str) -> None:
    changes, outcome = RESULTS[name]
    report = ml.Report(frame(**changes))
    assert judge_results(report.results)[0] == outcome
    assert (report.outcome, report.is_passed) == (outcome, outcome == "passed")
    suite = ET.fromstring(report.junit())[0]
    assert (int(suite.get("failures", "0")) > 0, int(suite.get("errors", "0")) > 0) == {
        "passed": (False, False),
        "failed": (True, False),
        "not decided": (False, True),
    }[outcome]


def test_nothing_was_measured() -> None:
    report = ml.Report(frame().iloc[:0])
    assert (report.outcome, report.is_passed) == ("not decided", False)


LIMIT = '[[limits]]\nmetric = "time_us"\n{}at_most = {}\n'


@pytest.mark.parametrize(
    ("limits", "outcome"),
    [
        (LIMIT.format("", 100), "passed"),
        (LIMIT.format("", 1), "failed"),
        (LIMIT.format('collective = "broadcast"\n', 100), "not decided"),
        (LIMIT.format("", 100) + LIMIT.format('collective = "broadcast"\n', 100), "not decided"),
        (LIMIT.format("", 1) + LIMIT.format('collective = "broadcast"\n', 100), "failed"),
    ],
)
def test_thresholds(limits: str, outcome: Outcome, tmp_path: Any) -> None:
    file = tmp_path / "limits.toml"
    file.write_text(limits)
    report = ml.Report(frame(), thresholds=file)
    assert (report.outcome, report.is_passed) == (outcome, outcome == "passed")


def stage(name: str, outcome: Any) -> StageResult:
    return StageResult(name, outcome, (f"{name}.",))


@pytest.mark.parametrize(
    ("stages", "outcome"),
    [
        ({"sweep": "passed", "reference": "passed"}, "passed"),
        ({"sweep": "passed", "reference": "skipped", "thresholds": "passed"}, "passed"),
        ({"sweep": "passed", "reference": "failed"}, "failed"),
        ({"sweep": "passed", "reference": "skipped", "thresholds": "skipped"}, "not decided"),
        ({"sweep": "skipped", "reference": "skipped", "thresholds": "skipped"}, "not decided"),
        ({"sweep": "passed", "reference": "passed", "thresholds": "not decided"}, "not decided"),
        ({"sweep": "failed", "reference": "skipped", "thresholds": "not decided"}, "failed"),
        ({"groups": "failed", "sweep": "skipped"}, "failed"),
    ],
)
def test_stages_of_an_acceptance(stages: dict[str, str], outcome: Outcome) -> None:
    items = tuple(stage(name, result) for name, result in stages.items())
    both = Stages(items, "sweep", ("reference", "thresholds"))
    assert both.outcome == outcome
    assert both.headline.state == {"passed": "good", "failed": "bad", "not decided": "note"}[outcome]
    assert Stages(items, "sweep", interruption="interrupted").outcome != "passed"


@pytest.mark.parametrize(
    ("change", "outcome"),
    [
        (lambda after: after, "passed"),
        (lambda after: after.assign(time_us=after["time_us"] * 1.5), "failed"),
        (lambda after: after.assign(time_us=after["time_us"] * 0.5), "passed"),
        (lambda after: after.assign(n_wrong=2, status="wrong"), "failed"),
        (lambda after: after.assign(time_us=after["time_us"] * (0.5 + after["launch"] % 2)), "not decided"),
        (lambda after: after[after["size_bytes"] > 1024], "not decided"),
    ],
)
def test_comparisons(change: Callable[[pd.DataFrame], pd.DataFrame], outcome: Outcome) -> None:
    launches = [
        frame().assign(
            run_id="a", launch=launch, process_set=f"p{launch}", time_us=frame()["time_us"] * (1 + 0.001 * (launch % 3))
        )
        for launch in range(6)
    ]
    before = pd.concat(launches, ignore_index=True)
    after = change(before.copy())
    assert ml.compare(before, after).outcome == outcome
    (answer,) = (answer for answer in ml.Report(after, baseline=before).answers if answer.question == "changed")
    assert (answer.state == "good", answer.state == "bad") == (outcome == "passed", outcome == "failed")


def test_the_worst_outcome_decides() -> None:
    assert overall([]) == "not decided"
    assert overall(["passed", "not decided"]) == "not decided"
    assert overall(["passed", "not decided", "failed"]) == "failed"
    assert overall(["passed"]) == "passed"


def test_a_report_with_a_machine_alone_asks_for_the_mesh() -> None:
    report = ml.Report(ml.example().query("collective == 'reduce_scatter'"), cluster="dgx-h200")
    speed = next(answer for answer in report.answers if answer.question == "fast enough")
    assert speed.sentences[0].endswith("because the machine is known, but not the mesh of the results.")
    assert "pass the mesh too" in report.next_step
