"""The section of a report about the trace of a job, as plain values and figures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from meshlab.base._errors import BenchError, MeshError
from meshlab.mesh._mesh import MeshLike, as_mesh
from meshlab.plots._traces import figure_size, trace_figure
from meshlab.report._pictures import ReportPicture
from meshlab.report._tables import MOST_ROWS, Cell, ReportTable
from meshlab.traces._sentences import axis_rows
from meshlab.traces._trace import Trace

_FIGURES = ("axes", "timeline", "lateness", "curve")


@dataclass(frozen=True, slots=True)
class TraceSection:
    """What the collectives of a job cost."""

    title: str
    sentences: tuple[str, ...]
    tables: tuple[ReportTable, ...]


def usable_mesh(trace: Trace, mesh: MeshLike | None) -> MeshLike | None:
    """Return the mesh of a report if it is of the job, otherwise None, so that the mesh is inferred."""
    if mesh is None:
        return None
    size = as_mesh(mesh, trace.world_size).world_size
    return mesh if trace.world_size in (None, size) else None


def usable_machine(trace: Trace, mesh: MeshLike | None, machine: Any) -> Any:
    """Return the times of a machine if they include some call of the job, otherwise None."""
    if machine is None:
        return None
    for times in (machine, *_by_mode(machine)):
        try:
            if trace.against(times, mesh)["share"].notna().any():
                return times
        except (BenchError, MeshError):
            continue
    return None


def _by_mode(results: Any) -> list[Any]:
    """Return the results of each mode. Kernels in a graph are timed as those of a trace: without the host."""
    is_results = "mode" in getattr(results, "columns", ())
    return [results[results["mode"].eq(mode)] for mode in ("graph", "pipelined", "isolated")] if is_results else []


def trace_section(trace: Trace, mesh: MeshLike | None, machine: Any) -> TraceSection:
    """Return the section about a trace."""
    return TraceSection(trace.title, tuple(trace.sentences(mesh, machine)), tuple(_tables(trace, mesh)))


def _tables(trace: Trace, mesh: MeshLike | None) -> Iterator[ReportTable]:
    table = trace.by_axis(mesh)
    header, *rows = axis_rows(table)
    if table["step"].isna().all():
        rows = [[row[0], *row[2:]] for row in rows]
        header = [header[0], *header[2:]]
    cells = tuple(tuple(Cell(text) for text in row) for row in rows[:MOST_ROWS])
    yield ReportTable("Time by axis, for an average rank", tuple(header), cells, max(0, len(rows) - MOST_ROWS))


def trace_pictures(trace: Trace, mesh: MeshLike | None, machine: Any) -> list[ReportPicture]:
    """Draw the figures of a trace, without those whose times it lacks."""
    pictures = []
    for kind in _FIGURES:
        options = {"machine": machine} if kind == "curve" else {}
        if kind == "curve" and machine is None:
            continue
        try:
            width, height = figure_size(trace, kind, mesh, options)
            figure = Figure((width / 72, height / 72))
            ax = trace_figure(trace, kind, mesh=mesh, ax=figure.add_axes((0.0, 0.0, 1.0, 1.0)), **options)
        except BenchError:
            continue
        pictures.append(ReportPicture(f"trace-{kind}", figure, ax.get_title(loc="left").replace("\n", ". ")))
    return pictures
