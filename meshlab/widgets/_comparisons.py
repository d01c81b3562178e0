"""Comparisons: candidate A and the present design with calls that move as many bytes, their times and the decision."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from meshlab.base._units import parse_size
from meshlab.mesh._mesh import DeviceMesh
from meshlab.widgets._decisions import Call as SizedCall
from meshlab.widgets._decisions import CandidateSide, Decision, decide
from meshlab.widgets._drawings import Call, CallOf, Drawing
from meshlab.widgets._edits import Design
from meshlab.widgets._jobs import JobStep, step_of


class CandidateComparison(NamedTuple):
    """The decision, and the seconds of the call on every axis of candidate A, by axis."""

    decision: Decision
    times: Mapping[str, float]


def equal_call(call_of: CallOf, axis: str, mesh: DeviceMesh, other: DeviceMesh) -> Call:
    """Return the call of an axis of another mesh with which all its groups together move as many bytes.

    The data is the same in both, so a mesh with twice as many groups has half of it in each. An axis that only one of
    the meshes has keeps its size.
    """
    collective, size = call_of(axis)
    if axis not in mesh.creation_order or axis not in other.creation_order:
        return collective, size
    scale = len(mesh[axis]) / len(other[axis])
    return collective, size if scale == 1 else max(round(parse_size(size) * scale), 1)


def compare(design: Design, drawing: Drawing, other: Drawing, step: JobStep) -> CandidateComparison:
    """Compare the present design with its candidate A, which is drawn as `other`."""
    a, job = design.pinned, design.job
    assert a is not None
    experts = a.experts if a.job is not None else design.experts
    steps = (None, None) if job is None else (step_of(a.job or job, other.placement, experts), step)
    decision = decide(_side(other, steps[0]), _side(drawing, steps[1]))
    times = {} if other.placement is None else {axis: other.price_of(axis).seconds for axis in a.mesh.axis_names}
    return CandidateComparison(decision, times)


def _side(drawing: Drawing, step: JobStep | None) -> CandidateSide:
    """Return one side with its calls: that of the job on the axis that exposes most, or without a job on all axes."""
    mesh = drawing.mesh
    assert mesh is not None  # of a workbench
    calls: dict[str, SizedCall] = {}
    if step is None:
        sizes = dict(zip(mesh.axis_names, mesh.shape, strict=True))
        calls = {axis: _parsed(drawing.call_of(axis)) for axis, size in sizes.items() if size > 1}
    elif step.time is not None:
        axes = [axis for axis in step.time.axes if set(axis.axes) <= set(mesh.axis_names)]
        most = max(axes, key=lambda axis: axis.high_s, default=None)
        calls = {} if most is None else {"-".join(most.axes): (most.collective, most.size_bytes)}
    return CandidateSide(drawing.placement, step, calls, lambda axis: drawing.loads_of(axis, calls.get(axis)))


def _parsed(call: Call) -> SizedCall:
    return call[0], parse_size(call[1])
