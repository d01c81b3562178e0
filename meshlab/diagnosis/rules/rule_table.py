"""The table of all rules."""

from __future__ import annotations

from meshlab.diagnosis.rules.hangs import HANG_RULES
from meshlab.diagnosis.rules.ras_reports import RAS_RULES
from meshlab.diagnosis.text_findings import Rule

__all__ = ["RULES"]

RULES: tuple[Rule, ...] = (
    *HANG_RULES,
    *RAS_RULES,
)
"""All rules. The order decides only between findings that are equally severe."""
