"""Real texts with the findings that are due, and those that would be false. Read from the folder in MESHLAB_CASES."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import meshlab as ml
from meshlab.base._errors import ParseError

FOLDER = Path(os.environ.get("MESHLAB_CASES", "")) / "explain"
CASES: dict[str, Any] = (
    json.loads((FOLDER / "expected.json").read_text())["cases"] if (FOLDER / "expected.json").is_file() else {}
)

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not CASES, reason="MESHLAB_CASES names no folder with explained texts"),
]


def codes_found(name: str) -> dict[str, list[str]]:
    """The codes of all findings in a case with their subjects."""
    try:
        subjects: dict[str, list[str]] = {}
        for item in ml.explain(FOLDER / name).findings:
            subjects.setdefault(item.code, []).append(item.subject)
        return subjects
    except ParseError:
        return {}


def due(name: str) -> set[str]:
    """The codes of the errors and warnings that are due; those of infos if there are no others."""
    findings = CASES[name]["findings"]
    return {item["code"] for item in findings if item["severity"] != "info"} or {item["code"] for item in findings}


@pytest.mark.parametrize("name", CASES)
def test_no_finding_that_would_be_false(name: str) -> None:
    assert not {code for code in CASES[name]["must_not"] if code in codes_found(name)}


@pytest.mark.parametrize("name", CASES)
def test_every_finding_that_is_due(name: str) -> None:
    assert due(name) <= set(codes_found(name))
