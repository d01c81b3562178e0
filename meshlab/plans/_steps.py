"""Steps: the points of a plan, in the order in which they are measured."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from meshlab.base._collectives import COLLECTIVES
from meshlab.base._errors import BenchError
from meshlab.base._units import format_size
from meshlab.comm._backend import Mode
from meshlab.comm._catalog import find_collective
from meshlab.comm._elements import find_dtype
from meshlab.mesh._groups import Groups
from meshlab.mesh._traffic import ALIGNMENT_BYTES, Bytes, Traffic
from meshlab.plans._options import CONFIGURED, OPTIONS, CallOptions, option_texts, options_of, repr_with_options

if TYPE_CHECKING:
    from meshlab.plans._plan import Plan


Function = Callable[[Any], Any]
"""A user-defined function to time. It takes the rank's `Communicator`, and may return a callable to time instead."""

Grouping = Literal["together", "alone", "pairs"]

GROUPINGS: dict[Grouping, str] = {
    "together": "all groups of an axis at the same time, as in a training step",
    "alone": "one group at a time, with the other ranks idle",
    "pairs": "every two ranks of a group, in rounds of pairs that share no rank",
}
"""The choices for the ranks that are active at the same time, with their descriptions."""

PAIRED = tuple(name for name, collective in COLLECTIVES.items() if collective.is_paired)
"""The collectives that pairs support: one message, or one in each direction at the same time."""


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """A call of a job that a plan measures.

    Parameters
    ----------
    collective, axis, size_bytes, dtype, op
        Values that the plan has for each, see `Step`. The size is 0, and the others are empty, if the call has none.
    per_step : float
        Number of calls of a rank in a step of the job.
    """

    collective: str
    axis: str
    size_bytes: int
    dtype: str
    op: str
    per_step: float


@dataclass(frozen=True, slots=True)
class MeasuredGroup:
    """The ranks that one row of the results describes: a group, or a pair of ranks of a group."""

    name: str  # of the group, also for a pair of its ranks
    ranks: tuple[int, ...]  # global, in group order; the sender of a pair first
    is_pair: bool = False


@dataclass(frozen=True, slots=True, repr=False)
class Step(CallOptions):
    """One point of a plan: one collective on the groups of one axis, in one mode.

    The fields have the names of the columns of the results.

    Parameters
    ----------
    index : int
        Position in the plan, from 0.
    collective : str
        Name of the collective or of a user-defined function.
    op, dtype, root, in_place, mode, axis, grouping
        One of the values that `Plan` has for each. None if the call has no such choice: nothing is reduced, there is no
        root, or it is a function or a barrier.
    n_ranks : int
        Number of ranks per group, or 2 for pairs.
    count, size_bytes : int or None
        The count argument of the call, in elements, and the message size in bytes, S of nccl-tests. None for a function
        or a barrier.
    number : int, default 0
        Index of the round of pairs, from 0.
    concurrent_axis : str, optional
        The axis that is busy at the same time.
    concurrent_collective : str, optional
        The collective that runs on the concurrent axis.
    concurrent : Step, optional
        The step to run at the same time. Its own `concurrent` is None.
    matrix : Traffic, optional
        The traffic of an all_to_all_v. None for equal chunks.
    buffers, algorithm, protocol, min_ctas, max_ctas, cta_policy, alignment_bytes, n_aggregated
        The options of the calls, as in `Plan`. None for a function, which makes its own calls, and for an option that
        the library chooses.
    traffic : str, optional
        The name of the traffic of an all_to_all_v.
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
    grouping: Grouping = "together"
    number: int = 0
    concurrent_axis: str | None = None
    concurrent_collective: str | None = None
    concurrent: Step | None = None
    matrix: Traffic | None = None

    __repr__ = repr_with_options

    @property
    def parts(self) -> tuple[Step, ...]:
        """The steps that produce rows: this step, and the concurrent one."""
        return (self,) if self.concurrent is None else (self, self.concurrent)

    @property
    def buffer_bytes(self) -> int:
        """Memory of one rank's buffers, in bytes. 0 for a barrier, and for a function, which allocates its own."""
        if self.count is None or self.dtype is None:
            return 0
        row, counts = find_collective(self.collective), self.chunk_counts
        sizes = [row.elements(side, self.count, self.n_ranks) for side in ("sends", "receives")]
        if counts is not None:
            sizes = [int(counts.sum(axis=axis).max()) for axis in (1, 0)]
        n_bytes = (max(sizes) if self.in_place else sum(sizes)) * find_dtype(self.dtype).itemsize
        n_bytes *= self.n_aggregated or 1  # calls that are issued together have separate buffers
        return n_bytes + (0 if self.concurrent is None else self.concurrent.buffer_bytes)

    @property
    def chunk_counts(self) -> Bytes | None:
        """Elements from row to column of an uneven call: int64 of shape (n_ranks, n_ranks). None for equal chunks."""
        if self.matrix is None or self.count is None or self.dtype is None:
            return None
        return _chunk_counts(self.matrix, self.n_ranks, self.count, find_dtype(self.dtype).itemsize)

    @property
    def all_chunk_counts(self) -> Bytes | None:
        """Elements from row to column of any call with counts, also with equal ones. None for other collectives."""
        if self.traffic is None or self.count is None:
            return None
        counts = self.chunk_counts
        return np.full((self.n_ranks, self.n_ranks), self.count, dtype=np.int64) if counts is None else counts

    @property
    def imbalance(self) -> float | None:
        """The largest number of bytes of a rank divided by the mean. None unless chunks have their own sizes."""
        counts = self.all_chunk_counts
        return (
            None
            if counts is None
            else float(max(counts.sum(axis=0).max(), counts.sum(axis=1).max()) * len(counts) / counts.sum())
        )

    def measured_groups(self, groups: Groups) -> list[MeasuredGroup]:
        """Return one item per row of the results: the groups, or the pairs of this round."""
        if self.grouping != "pairs":
            return [MeasuredGroup(group.name, group.ranks) for group in groups]
        pairs = pairs_of_round(groups.size, self.number)
        return [
            MeasuredGroup(group.name, (group.ranks[a], group.ranks[b]), is_pair=True)
            for group in groups
            for a, b in pairs
        ]

    def __str__(self) -> str:
        size = "" if self.size_bytes is None else f" {format_size(self.size_bytes)} {self.dtype}"
        place = " in place" if self.in_place else ""
        text = f"{self.collective}{size}{place} along {self.axis}"
        if self.grouping == "alone":
            text += ", one group at a time"
        elif self.grouping == "pairs":
            text += f", pairs of round {self.number + 1}"
        if self.concurrent_axis is not None:
            text += f" while {self.concurrent_collective} along {self.concurrent_axis}"
        return ", ".join([text, self.mode, *option_texts(options_of(self))])


@lru_cache(maxsize=8)
def _chunk_counts(traffic: Traffic, n: int, count: int, itemsize: int) -> Bytes:
    counts = traffic.of(n, count * n * itemsize).array // itemsize
    counts.flags.writeable = False
    return counts


def n_rounds(n: int) -> int:
    """Return the number of rounds in which every two of `n` ranks meet once."""
    return 0 if n < 2 else n - 1 + n % 2


def pairs_of_round(n: int, number: int) -> list[tuple[int, int]]:
    """Return the pairs of one round. No rank is in two pairs, and over all rounds every two ranks meet once."""
    # This is the circle method of round-robin tournaments: one rank keeps its position and the others rotate. Rounds
    # from `n_rounds(n)` on have the same pairs in the opposite direction.
    rounds = n_rounds(n)
    turn, is_back = number % rounds, number >= rounds
    # The ranks 0 … m - 1 rotate on a circle of odd length m, and rank m is fixed. Two ranks of the circle meet in the
    # round with a + b = 2·turn (mod m), which leaves the rank a = turn for rank m. Doubling is one-to-one modulo an odd
    # number, so every pair meets in exactly one round. If n is odd, there is no rank m, and its partner is idle.
    m = n - 1 + n % 2
    pairs = [(turn, m)] + [((turn + i) % m, (turn - i) % m) for i in range(1, (m + 1) // 2)]
    forward = [(min(pair), max(pair)) for pair in pairs if max(pair) < n]
    return [(b, a) for a, b in forward] if is_back else forward


def axes_of(plan: Plan) -> list[str]:
    """Return the axes on which a plan runs collectives, each of them once."""
    return list(dict.fromkeys([*plan.axis, *(axis for axis, _ in plan.concurrent)]))


def expand_steps(plan: Plan, groups: Mapping[str, Groups]) -> tuple[Step, ...]:
    """Expand a plan into its steps on the groups of `axes_of`. See `Plan.steps`."""
    # An ordered set of steps without their index, because points may coincide: small sizes round to the same count, and
    # the baselines of a concurrent axis may be in the plan already.
    steps: dict[Step, Step] = {}
    for step in _points(plan, groups):
        concurrent = None if step.concurrent is None else replace(step.concurrent, index=len(steps))
        steps.setdefault(step, replace(step, index=len(steps), concurrent=concurrent))
    return tuple(steps.values())


def _points(plan: Plan, groups: Mapping[str, Groups]) -> Iterator[Step]:
    """Yield all points of the plan, including duplicates. All of them have the index 0."""
    values = plan.dtype, plan.op, plan.mode, plan.in_place, option_combinations(plan), plan.sizes
    choices = [_Choice(*choice) for choice in itertools.product(*values)]
    listed = {(call.collective, call.axis, call.size_bytes, call.dtype) for call in plan.calls}
    for axis, grouping in itertools.product(plan.axis, plan.grouping):
        n = groups[axis].size
        if grouping == "pairs" and n < 2:
            raise BenchError(f"the groups of {axis} have one rank and therefore no pairs; choose a different axis")
        for number in range(2 * n_rounds(n) if grouping == "pairs" else 1):  # every round in both directions
            names = [name for name in plan.collective if _fits(name, grouping, number, n)]
            for name, choice in itertools.product(names, choices):
                if listed and not {(name, axis, choice.size, choice.dtype), (name, axis, 0, "")} & listed:
                    continue
                if name in plan.functions and grouping == "pairs":
                    continue
                if name in plan.functions or not find_collective(name).has_size:
                    yield replace(step_without_size(name, axis, n, choice.mode), grouping=grouping)
                    continue
                if choice.in_place and (grouping == "pairs" or not find_collective(name).in_place):
                    continue
                step = _point(plan, name, axis, 2 if grouping == "pairs" else n, choice)
                yield replace(step, grouping=grouping, number=number)
                if grouping == "together":
                    yield from _with_concurrent(plan, groups, step, choice)


def turns(steps: Sequence[Step]) -> list[tuple[Step, ...]]:
    """Group the steps that are measured in turns: an axis together and alone, or concurrent and isolated."""
    groups: dict[Step, list[Step]] = {}
    for step in steps:
        # A concurrent step joins the groups of its two axes, which may have been separate until then.
        joined: list[Step] = []
        baselines = {_baseline(part) for part in step.parts}
        for group in {
            id(group): group for baseline in baselines if (group := groups.get(baseline)) is not None
        }.values():
            joined += group
        joined.append(step)
        groups |= dict.fromkeys((*baselines, *(_baseline(part) for member in joined for part in member.parts)), joined)
    members = {id(group): tuple(sorted(group, key=lambda step: step.index)) for group in groups.values()}
    return sorted(members.values(), key=lambda group: group[0].index)


def _baseline(step: Step) -> Step:
    """Return the step with which its alternatives are compared. Pairs have no alternatives."""
    if step.grouping == "pairs":
        return step
    baseline = replace(
        step, index=0, grouping="together", concurrent_axis=None, concurrent_collective=None, concurrent=None
    )
    if step.traffic is None or step.count is None or step.dtype is None:
        return baseline
    # Patterns are aligned, and equal chunks are not.
    unit = ALIGNMENT_BYTES // find_dtype(step.dtype).itemsize
    return replace(baseline, traffic=None, matrix=None, size_bytes=None, count=step.count // unit * unit)


def _check_same_ranks(groups: Mapping[str, Groups], axis: str, other: str) -> None:
    """Raise unless two axes have the same ranks: a rank without a group in one of them would block its other group."""
    alone = np.setxor1d(groups[axis].array, groups[other].array)
    if alone.size:
        raise BenchError(
            f"{axis} and {other} cannot run at the same time: rank {alone[0]} is in the groups of only one of them; "
            "choose two axes that have the same ranks"
        )


def _fits(name: str, grouping: Grouping, number: int, n: int) -> bool:
    """Return True if a collective is measured in a round. Only send needs the rounds in the opposite direction."""
    if grouping == "pairs":
        return name in PAIRED and (name == "send" or number < n_rounds(n))
    return name != "send"


def step_without_size(name: str, axis: str, n: int, mode: Mode) -> Step:
    """Return the step of a function or a barrier."""
    nothing: dict[str, Any] = dict.fromkeys(("op", "dtype", "root", "in_place", "count", "size_bytes", *OPTIONS))
    return Step(index=0, collective=name, mode=mode, axis=axis, n_ranks=n, **nothing)


def option_combinations(plan: Plan) -> list[CallOptions]:
    """Return the combinations of the options of a call."""
    names = tuple(None if traffic is None else str(traffic) for traffic in plan.traffic)
    options = {**options_of(plan), "traffic": names}
    several = (values if isinstance(values, tuple) else (values,) for values in options.values())
    combinations = (CallOptions(**dict(zip(OPTIONS, values, strict=True))) for values in itertools.product(*several))
    return [options for options in combinations if (options.min_ctas or 1) <= (options.max_ctas or math.inf)]


class _Choice(NamedTuple):
    """One value of each choice of a plan but its collective and its axis."""

    dtype: str
    op: str
    mode: Mode
    in_place: bool
    options: CallOptions
    size: int


def _point(plan: Plan, name: str, axis: str, n: int, choice: _Choice) -> Step:
    row, itemsize = find_collective(name), find_dtype(choice.dtype).itemsize
    if row.rooted and not 0 <= plan.root < n:
        raise BenchError(f"root={plan.root} is outside the groups of {axis}; choose a rank from 0 to {n - 1}")
    count = row.count_for(choice.size, itemsize, n)
    size_bytes, traffic, matrix = row.size_bytes(count, itemsize, n), None, None
    if row.counted:
        traffic, matrix = choice.options.traffic or "even", _matrix(plan, choice.options.traffic, axis, n)
    if matrix is not None:
        count = _mean_count(matrix, choice.size, itemsize, n)
        counts = _chunk_counts(matrix, n, count, itemsize)
        size_bytes = int(max(counts.sum(axis=0).max(), counts.sum(axis=1).max())) * itemsize
        if not size_bytes:
            raise BenchError(f"traffic {traffic!r} sends nothing, so it cannot be measured")
    return Step(
        index=0,
        collective=name,
        op=choice.op if row.reduces else None,
        dtype=choice.dtype,
        root=plan.root if row.rooted else None,
        in_place=choice.in_place,
        mode=choice.mode,
        axis=axis,
        n_ranks=n,
        count=count,
        size_bytes=size_bytes,
        matrix=matrix,
        **options_of(choice.options)
        | {"traffic": traffic}
        | ({} if row.is_configurable else dict.fromkeys(CONFIGURED)),
    )


def _matrix(plan: Plan, name: str | None, axis: str, n: int) -> Traffic | None:
    """Return the traffic of this name. None for equal chunks, which libraries send as they did before."""
    traffic = next((traffic for traffic in plan.traffic if traffic is not None and str(traffic) == name), None)
    if traffic is None or traffic == Traffic.even():
        return None
    if traffic.n_ranks not in (None, n):
        raise BenchError(
            f"traffic {traffic.name!r} is for {traffic.n_ranks} ranks, but the groups of {axis} have {n}",
            hint=f"choose an axis with groups of {traffic.n_ranks}",
        )
    return traffic


def _mean_count(traffic: Traffic, size_bytes: int, itemsize: int, n: int) -> int:
    """Return the elements of a chunk on average. For a pattern, chunks are aligned as in nccl-tests."""
    if not traffic.is_pattern:
        return max(1, int(traffic.mean_bytes / n) // itemsize)
    return max(1, size_bytes // n // ALIGNMENT_BYTES) * ALIGNMENT_BYTES // itemsize


def _with_concurrent(plan: Plan, groups: Mapping[str, Groups], step: Step, choice: _Choice) -> Iterator[Step]:
    """Yield the other axis in isolation, and then both axes at the same time."""
    for axis, name in plan.concurrent:
        if axis == step.axis:
            continue
        _check_same_ranks(groups, step.axis, axis)
        in_place = choice.in_place and find_collective(name).in_place
        other = _point(plan, name, axis, groups[axis].size, choice._replace(in_place=in_place))
        yield other
        partner = replace(other, concurrent_axis=step.axis, concurrent_collective=step.collective)
        yield replace(step, concurrent_axis=axis, concurrent_collective=name, concurrent=partner)
