"""The table of all formats that are recognised in a pasted text."""

from __future__ import annotations

from meshlab.diagnosis.formats.nccl_log import NCCL_LOG
from meshlab.diagnosis.formats.other_readers import HARDWARE_FILE, MESH_LAYOUT, NCCL_TESTS_LOG
from meshlab.diagnosis.seen import TextFormat

__all__ = ["FORMATS"]

FORMATS: tuple[TextFormat, ...] = (NCCL_LOG, NCCL_TESTS_LOG, HARDWARE_FILE, MESH_LAYOUT)
"""All formats, most specific first."""
