"""The table of all formats that are recognised in a pasted text."""

from __future__ import annotations

from meshlab.diagnosis.seen import TextFormat

__all__ = ["FORMATS"]

FORMATS: tuple[TextFormat, ...] = ()
"""All formats, most specific first."""
