"""The outcome of a check: passed, failed, or not decided. What was not checked has not passed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

Outcome = Literal["passed", "failed", "not decided"]


def overall(outcomes: Iterable[Outcome]) -> Outcome:
    """Return the outcome of several checks: failed if one failed, and not decided if one is, or if there are none."""
    unique = set(outcomes)
    for outcome in ("failed", "not decided", "passed"):
        if outcome in unique:
            return outcome
    return "not decided"
