"""A page about the trace of a job, without a benchmark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from meshlab.base._units import format_time_us
from meshlab.mesh._mesh import MeshLike
from meshlab.report._answers import Answer
from meshlab.report._pictures import Pictures
from meshlab.report._report import Content, page
from meshlab.report._trace import trace_pictures, trace_section
from meshlab.traces._sentences import axis_label, records
from meshlab.traces._trace import Trace

_METHOD = (
    "A collective cannot begin before its last rank. The time before that is the wait of the other ranks, and the rest "
    "is the transfer. Clocks are aligned by the ends of the calls."
)


def trace_page(trace: Trace, mesh: MeshLike | None = None, machine: Any = None) -> str:
    """Return a self-contained page: the time by axis, late ranks, the timeline, and the calls on the curve."""
    section = trace_section(trace, mesh, machine)
    first, *_ = section.sentences or ("The trace has no calls.",)
    content = Content(
        title="Collectives of a job",
        where=trace.title,
        headline=Answer("job", "note", (first,)),
        next_step=Answer("next step", "note", (next_step(trace, mesh),)),
        trace=section,
        method=[("Wait and transfer", _METHOD)],
    )
    return page(content, {}, Pictures([], [], [], [], traces=trace_pictures(trace, mesh, machine)))


def next_step(trace: Trace, mesh: MeshLike | None) -> str:
    """Return what to look at first: late ranks, exposed transfers, or the files of the other ranks."""
    rows = records(trace.by_axis(mesh, steps=False))
    if not any(np.isfinite(row["wait_us"]) for row in rows):
        return "Record all ranks of a group: with fewer, waits for late ranks cannot be separated from transfers."
    longest = max(rows, key=lambda row: float(np.nan_to_num(row["wait_us"])))
    exposed = max(rows, key=_exposed_us)
    if longest["wait_us"] > _exposed_us(exposed):
        is_named = isinstance(longest["late_rank"], (int, np.integer))
        who = f"Find out why rank {longest['late_rank']} is late" if is_named else "Find out why ranks differ in time"
        wait = format_time_us(longest["wait_us"])
        return f"{who}: along {axis_label(longest)}, an average rank waits {wait}, which no faster link shortens."
    time = format_time_us(_exposed_us(exposed))
    return f"Hide or shorten the transfers along {axis_label(exposed)}: {time} of them are exposed."


def _exposed_us(row: Mapping[str, Any]) -> float:
    """Return the exposed time of an axis in µs, or all of it if nothing shows what is hidden."""
    return float(np.nan_to_num(row["exposed_us"] if np.isfinite(row["exposed_us"]) else row["transfer_us"]))
