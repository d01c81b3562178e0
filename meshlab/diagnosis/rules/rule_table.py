"""The table of all rules."""

from __future__ import annotations

from meshlab.diagnosis.text_findings import Rule

__all__ = ["RULES"]

RULES: tuple[Rule, ...] = ()
"""All rules. The order decides only between findings that are equally severe."""
