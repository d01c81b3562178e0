"""A step: one point of a plan, laid over the groups of a mesh."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from meshlab.comm.backend import Mode
from meshlab.comm.catalog import find_collective
from meshlab.comm.dtypes import find_dtype
from meshlab.errors import BenchError
from meshlab.mesh.mesh import DeviceMesh
from meshlab.mesh.groups import Groups
from meshlab.units import format_size

if TYPE_CHECKING:
    from meshlab.frames.plan import Plan

__all__ = ["GROUPINGS", "PAIRED", "Grouping", "Party", "Step", "along", "lay_steps", "n_rounds", "pairs_of_round"]

Grouping = Literal["together", "alone", "pairs"]

GROUPINGS: dict[Grouping, str] = {
    "together": "all groups of an axis at once, which is the real load",
    "alone": "one group after the other, the rest idle",
    "pairs": "every two ranks of a group, in rounds of pairs that share no rank",
}
"""Which ranks work at the same time."""

PAIRED = ("send", "send_recv")
"""What pairs can do: one message, or one each way at the same time."""

Party = tuple[str, tuple[int, ...]]
"""Ranks that get a row of their own in the results: their name, and who they are in the world."""


@dataclass(frozen=True, slots=True)
class Step:
    """One point of a plan: one call, on groups of one axis, in one mode.

    Parameters
    ----------
    index : int
        Its place in the plan, from 0.
    collective : str
        What is called; for a function of the user's own, its name.
    op, dtype, root, in_place
        How; None where they have no meaning.
    mode : {"isolated", "pipelined", "graph"}
        See `meshlab.comm.MODES`.
    axis : str
        Where, as the frames say it: ``"tp"``, ``"tp alone"``, ``"tp pairs"``, or ``"tp+dp"`` while ``dp`` is busy too.
    n_ranks : int
        How many ranks each group has, or 2 for pairs.
    count, size_bytes : int or None
        The call's count argument in elements, and S of nccl-tests for it; None for a function.
    along : str
        The group set of the mesh.
    grouping : {"together", "alone", "pairs"}
        Which ranks work at the same time.
    number : int, default 0
        Which round of pairs.
    beside : Step, optional
        What another axis does at the same time.
    """

    index: int
    collective: str
    op: str | None
    dtype: str | None
    root: int | None
    in_place: bool | None
    mode: Mode
    axis: str
    n_ranks: int
    count: int | None
    size_bytes: int | None
    along: str
    grouping: Grouping = "together"
    number: int = 0
    beside: Step | None = None

    @property
    def parts(self) -> tuple[Step, ...]:
        """What gets rows of its own: the step, and what another axis does at the same time."""
        return (self,) if self.beside is None else (self, self.beside)

    @property
    def buffer_bytes(self) -> int:
        """How much memory the buffers of one rank take; 0 for a function, which makes its own."""
        if self.count is None or self.dtype is None:
            return 0
        row = find_collective(self.collective)
        sizes = [row.elements(side, self.count, self.n_ranks) for side in ("sends", "receives")]
        own = (max(sizes) if self.in_place else sum(sizes)) * find_dtype(self.dtype).itemsize
        return own + (0 if self.beside is None else self.beside.buffer_bytes)

    def parties(self, groups: Groups) -> list[Party]:
        """Who gets a row: the groups, or the pairs of this round."""
        if self.grouping != "pairs":
            return [(group.name, group.ranks) for group in groups]
        arrow = "→" if self.collective == "send" else "↔"
        pairs = pairs_of_round(groups.size, self.number)
        return [
            (f"{group.ranks[a]}{arrow}{group.ranks[b]}", (group.ranks[a], group.ranks[b]))
            for group in groups
            for a, b in pairs
        ]

    def __str__(self) -> str:
        size = "" if self.size_bytes is None else f" {format_size(self.size_bytes)} {self.dtype}"
        place = " in place" if self.in_place else ""
        text = f"{self.collective}{size}{place} along {self.along}"
        if self.grouping == "alone":
            text += ", one group at a time"
        elif self.grouping == "pairs":
            text += f", pairs of round {self.number + 1}"
        if self.beside is not None:
            text += f" while {self.beside.collective} along {self.beside.along}"
        return f"{text}, {self.mode}"


def along(axis: str) -> str:
    """The group set of the mesh that the column ``axis`` of a frame is about.

    Examples
    --------
    >>> along("tp"), along("tp alone"), along("dp-cp+tp")
    ('tp', 'tp', 'dp-cp')
    """
    return axis.partition(" ")[0].partition("+")[0]


def n_rounds(n: int) -> int:
    """How many rounds it takes until each of `n` ranks was paired with each other one."""
    return 0 if n < 2 else n - 1 + n % 2


def pairs_of_round(n: int, number: int) -> list[tuple[int, int]]:
    """The pairs of one round: no rank is in two of them, and over all rounds every two ranks meet once.

    The circle method of tournaments: one rank stays, the others go round. Rounds from `n_rounds` on are the same
    pairs the other way round.

    Examples
    --------
    >>> [pairs_of_round(4, number) for number in range(n_rounds(4))]
    [[(0, 3), (1, 2)], [(1, 3), (0, 2)], [(2, 3), (0, 1)]]
    """
    rounds = n_rounds(n)
    turn, is_back = number % rounds, number >= rounds
    others = n - 1 + n % 2
    pairs = [(turn, others)] + [((turn + i) % others, (turn - i) % others) for i in range(1, (others + 1) // 2)]
    there = [(min(pair), max(pair)) for pair in pairs if max(pair) < n]
    return [(b, a) for a, b in there] if is_back else there


def lay_steps(plan: Plan, mesh: DeviceMesh) -> tuple[Step, ...]:
    """Lay a plan over a mesh; `Plan.steps` says how."""
    _check_beside(plan, mesh)
    steps: dict[Step, Step] = {}
    for step in _points(plan, mesh):
        beside = None if step.beside is None else replace(step.beside, index=len(steps))
        steps.setdefault(step, replace(step, index=len(steps), beside=beside))
    return tuple(steps.values())


def _points(plan: Plan, mesh: DeviceMesh) -> Iterator[Step]:
    """All points, also those that come twice, without their numbers."""
    for axis, grouping in itertools.product(plan.axis, plan.groups):
        n = mesh.group_set(axis).size
        if grouping == "pairs" and n < 2:
            raise BenchError(f"the groups of {axis} have one rank, so there are no pairs; choose another axis")
        for number in range(2 * n_rounds(n) if grouping == "pairs" else 1):
            names = [name for name in plan.collective if _fits(name, grouping, number, n)]
            for name, dtype, op, mode, in_place, size in itertools.product(
                names, plan.dtype, plan.op, plan.mode, plan.in_place, plan.sizes
            ):
                if name in plan.functions:
                    if grouping == "together":
                        yield _function(name, axis, n, mode)
                    continue
                if in_place and (grouping == "pairs" or not find_collective(name).in_place):
                    continue
                point = (dtype, op, mode, in_place, size)
                step = _point(plan, name, axis, 2 if grouping == "pairs" else n, *point)
                label = axis if grouping == "together" else f"{axis} {grouping}"
                yield replace(step, axis=label, grouping=grouping, number=number)
                if grouping == "together":
                    yield from _beside(plan, mesh, step, point)


def _check_beside(plan: Plan, mesh: DeviceMesh) -> None:
    """What is to run beside another axis needs one: along its own axis it is left out."""
    for axis, name in plan.beside:
        mesh.group_set(axis)
        if all(other == axis for other in plan.axis):
            others = ", ".join(other for other in mesh.axis_names if other != axis)
            raise BenchError(
                f"{name} along {axis} cannot run beside {axis} itself, the only axis that is measured; "
                + (f"let it run along another: {others}" if others else "leave beside= out")
            )


def _check_same_ranks(mesh: DeviceMesh, axis: str, other: str) -> None:
    """A rank that is in one of two group sets only would be waited for in the other."""
    alone = np.setxor1d(mesh.group_set(axis).array, mesh.group_set(other).array)
    if alone.size:
        raise BenchError(
            f"{axis} and {other} cannot run at the same time: rank {alone[0]} is in the groups of one of them only; "
            "choose two that have the same ranks"
        )


def _fits(name: str, grouping: Grouping, number: int, n: int) -> bool:
    """Whether something is measured in this way; messages both ways are the same in the second half of the rounds."""
    if grouping == "pairs":
        return name in PAIRED and (name == "send" or number < n_rounds(n))
    return name != "send"


def _function(name: str, axis: str, n: int, mode: Mode) -> Step:
    return Step(0, name, None, None, None, None, mode, axis, n, None, None, along=axis)


def _point(
    plan: Plan, name: str, axis: str, n: int, dtype: str, op: str, mode: Mode, in_place: bool, size: int
) -> Step:
    row, itemsize = find_collective(name), find_dtype(dtype).itemsize
    if row.rooted and not 0 <= plan.root < n:
        raise BenchError(f"root {plan.root} is outside the groups of {axis}, whose ranks are 0 to {n - 1}")
    count = row.count_for(size, itemsize, n)
    return Step(
        index=0,
        collective=name,
        op=op if row.reduces else None,
        dtype=dtype,
        root=plan.root if row.rooted else None,
        in_place=in_place,
        mode=mode,
        axis=axis,
        n_ranks=n,
        count=count,
        size_bytes=row.size_bytes(count, itemsize, n),
        along=axis,
    )


def _beside(plan: Plan, mesh: DeviceMesh, step: Step, point: Sequence[object]) -> Iterator[Step]:
    """What the other axis does by itself, and then both at the same time: close together, so that clocks agree."""
    dtype, op, mode, in_place, size = point
    for axis, name in plan.beside:
        if axis == step.along:
            continue
        _check_same_ranks(mesh, step.along, axis)
        may = in_place and find_collective(name).in_place
        other = _point(plan, name, axis, mesh.group_set(axis).size, dtype, op, mode, may, size)  # type: ignore[arg-type]
        yield other
        yield replace(step, axis=f"{step.axis}+{other.axis}", beside=replace(other, axis=f"{other.axis}+{step.axis}"))
