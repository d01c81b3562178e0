"""The table of all rules."""

from __future__ import annotations

from meshlab.diagnosis.rules.gpu_faults import GPU_RULES
from meshlab.diagnosis.rules.host_links import LINK_RULES
from meshlab.diagnosis.rules.port_faults import PORT_RULES
from meshlab.diagnosis.text_findings import Rule

__all__ = ["RULES"]

RULES: tuple[Rule, ...] = (
    *GPU_RULES,
    *PORT_RULES,
    *LINK_RULES,
)
"""All rules. The order decides only between findings that are equally severe."""
