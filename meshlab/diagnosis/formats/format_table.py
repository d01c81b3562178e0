"""The table of all formats that are recognised in a pasted text."""

from __future__ import annotations

from meshlab.diagnosis.formats.machine_text import MACHINE_FORMATS
from meshlab.diagnosis.seen import TextFormat

__all__ = ["FORMATS"]

FORMATS: tuple[TextFormat, ...] = (*MACHINE_FORMATS,)
"""All formats, most specific first."""
