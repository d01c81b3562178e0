"""Comparisons: candidate A and the present design with calls that move as many bytes, their times and the decision."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from meshlab.base._errors import MeshlabError
from meshlab.base._units import parse_size
from meshlab.mesh._mesh import DeviceMesh
from meshlab.prediction._axis_loads import loads
from meshlab.prediction._step_ratio import call_term
from meshlab.topology.placement._axis_keys import AxisCache
from meshlab.topology.placement._loads import Loads
from meshlab.topology.placement._placement import Placement, place
from meshlab.topology.placement._scene import Scene
from meshlab.widgets._decisions import Call, CandidateSide, Decision, decide
from meshlab.widgets._edits import Design
from meshlab.widgets._jobs import JobStep, step_of
from meshlab.widgets._machines import Machine
from meshlab.widgets._prices import price_of

CallOf = Callable[[str], tuple[str, int | str]]


class CandidateComparison(NamedTuple):
    """The decision, and the seconds of the call on every axis of candidate A, by axis."""

    decision: Decision
    times: Mapping[str, float]


def placement_of(machine: Machine | None, mesh: DeviceMesh) -> Placement | None:
    """Return a mesh on a machine, None if it does not fit."""
    if machine is None or not 0 < mesh.world_size <= machine.cluster.n_devices:
        return None
    return place(mesh, machine.cluster)


def equal_call(call_of: CallOf, axis: str, mesh: DeviceMesh, other: DeviceMesh) -> tuple[str, int | str]:
    """Return the call of an axis of another mesh with which all its groups together move as many bytes.

    The data is the same in both, so a mesh with twice as many groups has half of it in each. An axis that only one of
    the meshes has keeps its size.
    """
    collective, size = call_of(axis)
    if axis not in mesh.creation_order or axis not in other.creation_order:
        return collective, size
    scale = len(mesh[axis]) / len(other[axis])
    return collective, size if scale == 1 else max(round(parse_size(size) * scale), 1)


@dataclass(frozen=True, eq=False)
class Drawn:
    """A mesh on a machine with the scene of the machine, and the loads that are known."""

    placement: Placement
    scene: Scene
    known_loads: AxisCache[Loads]

    def loads(self, axis: str, call: tuple[str, int | str]) -> Loads:
        """Return the loads of an axis with a call."""
        collective, size = parsed(call)

        def make() -> Loads:
            return loads(self.placement, axis, collective=collective, size=size, scene=self.scene)

        return self.known_loads.get(self.placement, axis, (axis, collective, size), make)

    def seconds(self, axis: str, call: tuple[str, int | str]) -> float:
        """Return the predicted seconds of a call, or those on the slowest link."""
        try:
            return call_term(self.placement, axis, *parsed(call)).seconds
        except MeshlabError:
            return price_of(self.placement, self.loads(axis, call)).seconds


def compare(
    design: Design, drawn: Drawn | None, other: Drawn | None, step: JobStep, call_of: CallOf
) -> CandidateComparison:
    """Compare the present design with its candidate A, which is drawn as `other`."""
    a, job = design.pinned, design.job
    assert a is not None
    other_job = a.job or job
    experts = a.experts if a.job is not None else design.experts
    has_jobs = other_job is not None and job is not None
    placement = None if other is None else other.placement
    before = step_of(other_job, placement, experts) if other_job is not None and has_jobs else None

    def calls_of_a(axis: str) -> tuple[str, int | str]:
        return equal_call(call_of, axis, design.mesh, a.mesh)

    sides = (
        _side(other, before, a.mesh, calls_of_a),
        _side(drawn, step if has_jobs else None, design.mesh, call_of),
    )
    times = {} if other is None else {axis: other.seconds(axis, calls_of_a(axis)) for axis in a.mesh.axis_names}
    return CandidateComparison(decide(*sides), times)


def _side(drawn: Drawn | None, step: JobStep | None, mesh: DeviceMesh, call_of: CallOf) -> CandidateSide:
    """Return one side with its calls: that of the job on the axis that exposes most, or without a job on all axes."""
    calls: dict[str, Call] = {}
    if step is None:
        sizes = dict(zip(mesh.axis_names, mesh.shape, strict=True))
        calls = {axis: parsed(call_of(axis)) for axis, size in sizes.items() if size > 1}
    elif step.time is not None:
        axes = [axis for axis in step.time.axes if set(axis.axes) <= set(mesh.axis_names)]
        most = max(axes, key=lambda axis: axis.high_s, default=None)
        calls = {} if most is None else {"-".join(most.axes): (most.collective, most.size_bytes)}

    def loads_of(axis: str) -> Loads:
        assert drawn is not None
        return drawn.loads(axis, calls[axis] if axis in calls else call_of(axis))

    return CandidateSide(None if drawn is None else drawn.placement, step, calls, loads_of)


def parsed(call: tuple[str, int | str]) -> Call:
    """Return a call with its size in bytes."""
    return call[0], parse_size(call[1])
