"""Outcomes: the step, the layouts and the comparison with A that follow from a design, each computed once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from meshlab.base._errors import MeshError
from meshlab.topology.placement._view import View
from meshlab.widgets._comparisons import CandidateComparison, compare, equal_call
from meshlab.widgets._drawings import Call, Drawing, view_with
from meshlab.widgets._edits import Design
from meshlab.widgets._jobs import JobStep, Search, find_layouts, job_panel, search_lines, step_lines, step_of
from meshlab.widgets._routing import routing_html

if TYPE_CHECKING:
    from meshlab.prediction._search import Layouts


class Outcomes:
    """The step, the layouts and the comparison of the design that is drawn."""

    def __init__(self) -> None:
        self._step: tuple[object, JobStep] = (None, JobStep(None))
        self._search: Search | None = None
        self._view_of_a: tuple[object, View | None] = (None, None)
        self._comparison: tuple[object, CandidateComparison | None] = (None, None)
        self._routing: tuple[object, str] = (None, "")
        self.shows_routing = False  # whether the page shows it: its figures take longer than all else

    def step(self, design: Design, drawing: Drawing) -> JobStep:
        """Return the step of the job, none without a job."""
        if design.job is None:
            return JobStep(None)
        key = (drawing.placement, design.job, design.experts)
        if self._step[0] != key:
            self._step = key, step_of(design.job, drawing.placement, design.experts)
        return self._step[1]

    def search(self, design: Design) -> Layouts | None:
        """Search the layouts of the job on the machine, and list them."""
        if design.job is None:
            raise MeshError("there is no job", hint="set job, or choose a model")
        self._search = find_layouts(design.job, design.present_machine.cluster, design.mesh.world_size)
        return self._search.layouts

    def listing(self, design: Design) -> Search | None:
        """Return the last search, if it was for this job and machine."""
        listing, cluster = self._search, None if design.machine is None else design.machine.cluster
        return listing if listing is not None and listing.suits(design.job, cluster) else None

    def drawing_of_a(self, design: Design, drawing: Drawing, axis: str) -> Drawing | None:
        """Return candidate A with calls that move as many bytes as those of the present drawing, None without one."""
        a = design.pinned
        if a is None:
            return None
        cluster = None if a.machine is None else a.machine.cluster
        key, (before, view) = (a, axis), self._view_of_a
        if view is None or before != key:
            view = view_with(a.mesh, cluster, axis, view)
            self._view_of_a = key, view

        def call_of(axis: str) -> Call:
            return equal_call(drawing.call_of, axis, design.mesh, a.mesh)

        return Drawing(a.mesh, cluster, view, call_of, drawing.facts)

    def comparison(self, design: Design, drawing: Drawing, axis: str) -> CandidateComparison | None:
        """Return the comparison with candidate A, None without one."""
        if design.pinned is None:
            return None
        calls = tuple((axis, drawing.call_of(axis)) for axis in design.mesh.axis_names)
        key = (design.pinned, drawing.placement, calls, design.job, design.experts)
        if self._comparison[0] != key:
            other = self.drawing_of_a(design, drawing, axis)
            assert other is not None
            self._comparison = key, compare(design, drawing, other, self.step(design, drawing))
        return self._comparison[1]

    def panel(self, design: Design, drawing: Drawing) -> dict[str, Any]:
        """Return the content of the job panel."""
        step = None if design.job is None else self.step(design, drawing)
        return job_panel(
            design.job, design.experts, step, self.listing(design), design.mesh, self._routing_of(design, drawing)
        )

    def _routing_of(self, design: Design, drawing: Drawing) -> str | None:
        """Return the routing of the job as markup, empty if it is not shown, and None for a job without experts."""
        if design.job is None or not design.job.experts:
            return None
        if not self.shows_routing:
            return ""
        key = (drawing.placement, design.job, design.experts)
        if self._routing[0] != key:
            self._routing = key, routing_html(design.job, drawing.placement, design.experts)
        return self._routing[1]

    def lines(self, design: Design, drawing: Drawing) -> list[str]:
        """Return the job with its step and the last search as text, no lines without a job."""
        if design.job is None:
            return []
        listing = self.listing(design)
        step = step_lines(self.step(design, drawing), design.experts)
        return [f"job: {design.job.summary}", *step, *(search_lines(listing) if listing is not None else [])]
