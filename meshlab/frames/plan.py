"""Plans as data. A plan is a product of choices, and a step is one point of that product."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from meshlab.comm.backend import BUFFERS, MODES, Buffers, CallConfig, Mode
from meshlab.comm.catalog import CATALOG, find_collective
from meshlab.comm.elements import ReduceOp, find_dtype, find_op
from meshlab.comm.validate import check_config
from meshlab.errors import BenchError, did_you_mean, printable
from meshlab.frames.labels import option_texts, value_label
from meshlab.frames.schema import OPTIONS
from meshlab.mesh.axes import as_integer, short
from meshlab.mesh.groups import Groups
from meshlab.mesh.mesh import DeviceMesh, MeshLike, as_mesh
from meshlab.units import format_size, parse_sizes

if TYPE_CHECKING:
    import pandas as pd

    from meshlab.benchmark.estimate import Estimate

__all__ = [
    "CONFIGURED",
    "GROUPINGS",
    "PAIRED",
    "SLOW_STEP_S",
    "Function",
    "Grouping",
    "MeasuredGroup",
    "Plan",
    "Sampling",
    "Step",
    "block_sampling",
    "expand_steps",
    "n_blocks",
    "n_rounds",
    "pairs_of_round",
    "turns",
]


SLOW_STEP_S = 10.0
"""Time limit in seconds of a step whose calls are too slow to compute an interval within `Sampling.max_s`."""

Grouping = Literal["together", "alone", "pairs"]

GROUPINGS: dict[Grouping, str] = {
    "together": "all groups of an axis at the same time, as in a training step",
    "alone": "one group at a time, with the other ranks idle",
    "pairs": "every two ranks of a group, in rounds of pairs that share no rank",
}
"""The choices for the ranks that are active at the same time, with their descriptions."""

PAIRED = ("send", "send_recv")
"""The collectives that pairs support: one message, or one in each direction at the same time."""

CONFIGURED = tuple(one.name for one in fields(CallConfig))
"""The options of a step that a `CallConfig` has."""


@dataclass(frozen=True, slots=True)
class MeasuredGroup:
    """The ranks that one row of the results describes: a group, or a pair of ranks of a group.

    Parameters
    ----------
    name : str
        Name of the group. For a pair, the group that both ranks belong to.
    ranks : tuple of int
        Global ranks, in group order. For a pair, the sender first.
    is_pair : bool, default False
        True if the ranks are a pair.
    """

    name: str
    ranks: tuple[int, ...]
    is_pair: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """One point of a plan: one collective on the groups of one axis, in one mode.

    The fields have the names of the columns of the results.

    Parameters
    ----------
    index : int
        Position in the plan, from 0.
    collective : str
        Name of the collective or of a user-defined function.
    op : str or None
        The reduce operation. None if nothing is reduced.
    dtype : str or None
        NumPy name of the element type. None for a function or a barrier.
    root : int or None
        The root, as a rank of the group. None for collectives without a root.
    in_place : bool or None
        Whether input and output share memory. None for a function or a barrier.
    mode : {"isolated", "pipelined", "graph"}
        The way to time the calls, see `meshlab.comm.MODES`.
    axis : str
        The axis or group set of the mesh.
    n_ranks : int
        Number of ranks per group, or 2 for pairs.
    count : int or None
        The count argument of the call, in elements. None for a function or a barrier.
    size_bytes : int or None
        Message size in bytes, S of nccl-tests. None for a function or a barrier.
    grouping : {"together", "alone", "pairs"}, default "together"
        The ranks that are active at the same time.
    number : int, default 0
        Index of the round of pairs, from 0.
    concurrent_axis : str, optional
        The axis that is busy at the same time.
    concurrent_collective : str, optional
        The collective that runs on the concurrent axis.
    concurrent : Step, optional
        The step to run at the same time. Its own `concurrent` is None.
    buffers : {"plain", "registered", "symmetric"} or None, default "plain"
        The kind of buffers, see `meshlab.comm.BUFFERS`. None for a function, which allocates its own.
    algorithm, protocol, cta_policy : str, optional
        The algorithm, the protocol and the policy for thread blocks that the calls have to use. By default the library
        chooses.
    min_ctas, max_ctas : int, optional
        Minimum and maximum number of NCCL's thread blocks. By default NCCL chooses.
    alignment_bytes : int or None, default 0
        Distance of the buffers from an aligned address, in bytes. None for a function.
    n_aggregated : int or None, default 1
        Number of calls that are issued together as one group. None for a function.
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
    buffers: Buffers | None = "plain"
    algorithm: str | None = None
    protocol: str | None = None
    min_ctas: int | None = None
    max_ctas: int | None = None
    cta_policy: str | None = None
    alignment_bytes: int | None = 0
    n_aggregated: int | None = 1

    @property
    def parts(self) -> tuple[Step, ...]:
        """The steps that produce rows: this step, and the concurrent one."""
        return (self,) if self.concurrent is None else (self, self.concurrent)

    @property
    def buffer_bytes(self) -> int:
        """Memory of one rank's buffers, in bytes. 0 for a barrier, and for a function, which allocates its own."""
        if self.count is None or self.dtype is None:
            return 0
        row = find_collective(self.collective)
        sizes = [row.elements(side, self.count, self.n_ranks) for side in ("sends", "receives")]
        own = (max(sizes) if self.in_place else sum(sizes)) * find_dtype(self.dtype).itemsize
        own *= self.n_aggregated or 1  # calls that are issued together have separate buffers
        return own + (0 if self.concurrent is None else self.concurrent.buffer_bytes)

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
        return ", ".join([text, self.mode, *option_texts({name: getattr(self, name) for name in OPTIONS})])


def n_rounds(n: int) -> int:
    """Return the number of rounds in which every two of `n` ranks meet once."""
    return 0 if n < 2 else n - 1 + n % 2


def pairs_of_round(n: int, number: int) -> list[tuple[int, int]]:
    """Return the pairs of one round. No rank is in two pairs, and over all rounds every two ranks meet once.

    This is the circle method of round-robin tournaments: one rank keeps its position and the others rotate. Rounds from
    ``n_rounds(n)`` on have the same pairs in the opposite direction.

    Examples
    --------
    >>> [pairs_of_round(4, number) for number in range(n_rounds(4))]
    [[(0, 3), (1, 2)], [(1, 3), (0, 2)], [(2, 3), (0, 1)]]
    """
    rounds = n_rounds(n)
    turn, is_back = number % rounds, number >= rounds
    # The ranks 0 … m - 1 rotate on a circle of odd length m, and rank m is fixed. Two ranks of the circle meet in the
    # round with a + b = 2·turn (mod m), which leaves the rank a = turn for rank m. Doubling is one-to-one modulo an odd
    # number, so every pair meets in exactly one round. If n is odd, there is no rank m, and its partner is idle.
    m = n - 1 + n % 2
    pairs = [(turn, m)] + [((turn + i) % m, (turn - i) % m) for i in range(1, (m + 1) // 2)]
    forward = [(min(pair), max(pair)) for pair in pairs if max(pair) < n]
    return [(b, a) for a, b in forward] if is_back else forward


def expand_steps(plan: Plan, mesh: DeviceMesh) -> tuple[Step, ...]:
    """Expand a plan into its steps on a mesh. See `Plan.steps`."""
    _check_concurrent(plan, mesh)
    # An ordered set of steps without their index, because points may coincide: small sizes round to the same count, and
    # the baselines of a concurrent axis may be in the plan already.
    steps: dict[Step, Step] = {}
    for step in _points(plan, mesh):
        concurrent = None if step.concurrent is None else replace(step.concurrent, index=len(steps))
        steps.setdefault(step, replace(step, index=len(steps), concurrent=concurrent))
    return tuple(steps.values())


def _points(plan: Plan, mesh: DeviceMesh) -> Iterator[Step]:
    """Yield all points of the plan, including duplicates. All of them have the index 0."""
    for axis, grouping in itertools.product(plan.axis, plan.grouping):
        n = mesh[axis].size
        if grouping == "pairs" and n < 2:
            raise BenchError(f"the groups of {axis} have one rank and therefore no pairs; choose a different axis")
        for number in range(2 * n_rounds(n) if grouping == "pairs" else 1):  # every round in both directions
            names = [name for name in plan.collective if _fits(name, grouping, number, n)]
            for name, dtype, op, mode, in_place, options, size in itertools.product(
                names, plan.dtype, plan.op, plan.mode, plan.in_place, _options(plan), plan.sizes
            ):
                if name in plan.functions:
                    if grouping != "pairs":
                        yield replace(_without_size(name, axis, n, mode), grouping=grouping)
                    continue
                if not find_collective(name).has_size:
                    yield replace(_without_size(name, axis, n, mode), grouping=grouping)
                    continue
                if in_place and (grouping == "pairs" or not find_collective(name).in_place):
                    continue
                point = (dtype, op, mode, in_place, options, size)
                step = _point(plan, name, axis, 2 if grouping == "pairs" else n, *point)
                yield replace(step, grouping=grouping, number=number)
                if grouping == "together":
                    yield from _with_concurrent(plan, mesh, step, point)


def turns(steps: Sequence[Step]) -> list[tuple[Step, ...]]:
    """Group the steps that are alternatives of one another, and therefore measured in turns.

    These are the groups of an axis together and alone, and concurrent axes with each of them in isolation. A step
    without alternatives is a group of its own.

    Parameters
    ----------
    steps : sequence of Step
        The steps of a plan.

    Returns
    -------
    list of tuple of Step
        Each step once, in the order of the first step of each group.

    Examples
    --------
    >>> import meshlab as ml
    >>> steps = ml.Plan("all_reduce", "tp", sizes="1K, 4K", grouping="together, alone").steps("dp=2, tp=2")
    >>> [[step.index for step in group] for group in turns(steps)]
    [[0, 2], [1, 3]]
    """
    groups: dict[Step, list[Step]] = {}
    for step in steps:
        # A concurrent step joins the groups of its two axes, which may have been separate until then.
        joined: list[Step] = []
        baselines = {_baseline(part) for part in step.parts}
        for group in {id(group): group for one in baselines if (group := groups.get(one)) is not None}.values():
            joined += group
        joined.append(step)
        groups |= dict.fromkeys((*baselines, *(_baseline(part) for one in joined for part in one.parts)), joined)
    found = {id(group): tuple(sorted(group, key=lambda step: step.index)) for group in groups.values()}
    return sorted(found.values(), key=lambda group: group[0].index)


def _baseline(step: Step) -> Step:
    """Return the step with which its alternatives are compared. Pairs have no alternatives."""
    if step.grouping == "pairs":
        return step
    return replace(
        step, index=0, grouping="together", concurrent_axis=None, concurrent_collective=None, concurrent=None
    )


def _check_concurrent(plan: Plan, mesh: DeviceMesh) -> None:
    """Raise unless every concurrent axis exists and has another axis to run next to."""
    for axis, name in plan.concurrent:
        mesh[axis]
        if all(other == axis for other in plan.axis):
            others = ", ".join(other for other in mesh.axis_names if other != axis)
            raise BenchError(
                f"{name} along {axis} cannot run next to {axis} itself, the only axis that is measured",
                hint=f"choose another axis: {others}" if others else "omit concurrent=",
            )


def _check_same_ranks(mesh: DeviceMesh, axis: str, other: str) -> None:
    """Raise unless two axes have the same ranks: a rank without a group in one of them would block its other group."""
    alone = np.setxor1d(mesh[axis].array, mesh[other].array)
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


def _without_size(name: str, axis: str, n: int, mode: Mode) -> Step:
    """Return the step of a function or a barrier."""
    return Step(
        0,
        name,
        None,
        None,
        None,
        None,
        mode,
        axis,
        n,
        None,
        None,
        buffers=None,
        alignment_bytes=None,
        n_aggregated=None,
    )


def _options(plan: Plan) -> list[dict[str, Any]]:
    """Return the combinations of the options of a call, as fields of a step."""
    names = tuple(OPTIONS)
    several = itertools.product(*(np.atleast_1d(np.array(getattr(plan, name), object)) for name in names))
    found = [dict(zip(names, values, strict=True)) for values in several]
    return [one for one in found if (one["min_ctas"] or 1) <= (one["max_ctas"] or math.inf)]


def _point(
    plan: Plan,
    name: str,
    axis: str,
    n: int,
    dtype: str,
    op: str,
    mode: Mode,
    in_place: bool,
    options: Mapping[str, Any],
    size: int,
) -> Step:
    row, itemsize = find_collective(name), find_dtype(dtype).itemsize
    if row.rooted and not 0 <= plan.root < n:
        raise BenchError(f"root={plan.root} is outside the groups of {axis}; choose a rank from 0 to {n - 1}")
    count = row.count_for(size, itemsize, n)
    if not row.is_configurable:
        options = {**options, **dict.fromkeys(CONFIGURED)}
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
        **options,
    )


def _with_concurrent(plan: Plan, mesh: DeviceMesh, step: Step, point: Sequence[object]) -> Iterator[Step]:
    """Yield the other axis in isolation, and then both axes at the same time."""
    dtype, op, mode, in_place, options, size = point
    for axis, name in plan.concurrent:
        if axis == step.axis:
            continue
        _check_same_ranks(mesh, step.axis, axis)
        may = in_place and find_collective(name).in_place
        other = _point(plan, name, axis, mesh[axis].size, dtype, op, mode, may, options, size)  # type: ignore[arg-type]
        yield other
        partner = replace(other, concurrent_axis=step.axis, concurrent_collective=step.collective)
        yield replace(step, concurrent_axis=axis, concurrent_collective=name, concurrent=partner)


Function = Callable[[Any], Any]
"""A user-defined function to time. It takes the rank's `Communicator`, and may return a callable to time instead."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """The number of batches of a step, and the conditions to stop.

    Sampling stops when the 95 % interval of the median is narrow enough, or when the time or the batches run out. All
    ranks decide from the same times, so they stop at the same batch. An interval that is checked repeatedly is
    sometimes narrow by chance, which makes this stopping rule slightly optimistic. `min_batches` limits the effect.

    Parameters
    ----------
    precision : float, default 0.05
        Half-width of the interval, relative to the median, at which sampling stops.
    min_batches : int, default 30
        Minimum number of batches, unless the time runs out first. An interval needs 6.
    max_batches : int, default 200
        Maximum number of batches.
    batch_us : float, default 1000
        Target duration of a pipelined batch, in µs. It determines the number of calls per batch.
    max_calls : int, default 1000
        Maximum number of calls per batch.
    max_s : float, default 0.5
        Maximum duration of a step, in seconds. Slow calls may take up to 10 s if that yields the 6 batches that an
        interval needs. Even slower calls get fewer batches and no interval.
    warmup_batches : int, default 2
        Number of batches that are kept and marked as warm-up, but excluded from the statistics. Slow batches that
        directly follow them are marked too.

    Raises
    ------
    BenchError
        If a number is too small.
        If `min_batches` is larger than `max_batches`.

    Examples
    --------
    >>> import meshlab as ml
    >>> ml.Sampling(max_s=0.05).min_batches
    30
    >>> ml.Sampling.named("thorough").precision
    0.01
    >>> ml.Sampling(min_batches=100, max_batches=50)
    Traceback (most recent call last):
    meshlab.errors.BenchError: min_batches=100 and max_batches=50 must be at least 1, and in order
    """

    precision: float = 0.05
    min_batches: int = 30
    max_batches: int = 200
    batch_us: float = 1000.0
    max_calls: int = 1000
    max_s: float = 0.5
    warmup_batches: int = 2

    def __post_init__(self) -> None:
        for one in fields(self):
            if not isinstance(value := getattr(self, one.name), (int, float, np.number)):
                raise BenchError(f"{one.name}={value!r} must be a number")
        if not 1 <= self.min_batches <= self.max_batches:
            raise BenchError(
                f"min_batches={self.min_batches} and max_batches={self.max_batches} must be at least 1, and in order"
            )
        for name in ("precision", "batch_us", "max_s", "max_calls"):
            if not getattr(self, name) > 0:  # "not >" rather than "<=", to reject NaN as well
                raise BenchError(f"{name}={getattr(self, name)} must be positive")
        if self.warmup_batches < 0:
            raise BenchError(f"warmup_batches={self.warmup_batches} must not be negative")

    @classmethod
    def named(cls, name: str) -> Sampling:
        """Return one of three predefined choices.

        ============  =====================================  ==========  ==========  ==============================
        name          half-width of the median's interval    batches     at most     what it is for
        ============  =====================================  ==========  ==========  ==============================
        ``quick``     10 % of the median                     10 to 40    0.1 s       a first look, without p95
        ``default``   5 %                                    30 to 200   0.5 s       curves, with p95
        ``thorough``  1 %                                    100 to 1000 5 s         comparisons, with p95 and p99
        ============  =====================================  ==========  ==========  ==============================

        A step stops when the interval is narrow enough, at the earliest after the smaller number of batches. If the
        time or the batches run out first, the interval is wider, and ``stop_reason`` says so.

        Raises
        ------
        BenchError
            If the name is unknown.
        """
        if not isinstance(name, str) or name not in _SAMPLINGS:
            raise BenchError(
                f"unknown sampling {name!r}{did_you_mean(name, _SAMPLINGS)}; choose {', '.join(_SAMPLINGS)}, or pass a "
                "Sampling"
            )
        return cls(**_SAMPLINGS[name])


_SAMPLINGS: dict[str, dict[str, Any]] = {
    "quick": {"precision": 0.1, "min_batches": 10, "max_batches": 40, "batch_us": 500.0, "max_s": 0.1},
    "default": {},
    "thorough": {"precision": 0.01, "min_batches": 100, "max_batches": 1000, "max_s": 5.0},
}


# An even number, because half of the rounds have the reverse order. An interval needs six blocks, and would then be
# all above or all below the same value in 3 % of the cases by chance. With eight blocks, this happens in 0.8 %.
_BLOCKS = 8


def n_blocks(sampling: Sampling) -> int:
    """Return the number of blocks into which the batches of a step with alternatives are divided."""
    return min(_BLOCKS, sampling.max_batches)


def block_sampling(sampling: Sampling, n: int) -> Sampling:
    """Return the sampling of one of `n` blocks, which together take about as long as one step."""
    if n == 1:
        return sampling
    return replace(
        sampling,
        min_batches=min(math.ceil(sampling.min_batches / n), sampling.max_batches // n),
        max_batches=sampling.max_batches // n,
        max_s=sampling.max_s / n,
    )


@dataclass(frozen=True, init=False)
class Plan:
    """The choices of a benchmark: collectives, axes, sizes and the way to measure them.

    Collectives, axes, sizes, element types, operations, modes, placements and groupings take one value or several. The
    plan is the product of all values.

    Parameters
    ----------
    collective : str, callable, or sequence of these
        Collectives by name, such as ``"all_reduce"``, or functions that take a `Communicator`.
    axis : str or sequence of str
        Axes of the mesh, or group sets by name: ``"tp"``, ``"dp-cp"``, ``"world"``, or a custom group.
    sizes : str, int or sequence of these, default "1K:16M"
        Message sizes in bytes, in any form that `meshlab.units.parse_sizes` reads: a range of powers of two such as
        ``"1K:64M"``, or a list such as ``"1M, 25M, 40M"``. For gather-like collectives this is the total size.
    dtype : str or sequence of str, default "float32"
        Element types, by their NumPy names.
    op : str, ReduceOp, or sequence of these, default "sum"
        Reduce operations, for example ``"max"`` or ``"pre_mul_sum(0.5)"``.
    mode : str or sequence of str, default "pipelined"
        Ways to time the calls, see `meshlab.comm.MODES`.
    in_place : bool or sequence of bool, default False
        Whether input and output share memory. With both values, collectives that cannot work in place are measured out
        of place only.
    root : int, default 0
        The root, as a rank of the group, for collectives that have one.
    sampling : {"default", "quick", "thorough"} or Sampling, optional
        Number of batches of each step, and when to stop. The names are described in `Sampling.named`.
    check : bool, default True
        Whether to compare the result of each step with the expected result, outside the timed part.
    grouping : str or sequence of str, default "together"
        The ranks that are active at the same time: ``"together"`` (all groups of an axis), ``"alone"`` (one group at a
        time), ``"pairs"`` (every two ranks of a group, with ``"send"`` or ``"send_recv"``). With both ``"together"``
        and ``"alone"``, the two take turns in blocks of batches, so that a drift affects both of them.
    concurrent : mapping of str to str, optional
        Collectives that other axes run at the same time, such as ``{"dp": "reduce_scatter"}``, with the same size and
        mode. Both collectives are also measured in isolation, in turns with the concurrent axes.
    launches : int, default 1
        Number of repetitions of the plan, each with new communicators.
    shuffle : bool, default False
        Whether to measure the steps in random order, so that a drift of the clocks does not bend the curves.
    seed : int, default 0
        Seed of the random order.
    buffers : str or sequence of str, default "plain"
        Kinds of buffers: ``"plain"``, ``"registered"`` or ``"symmetric"``, described in `meshlab.comm.BUFFERS`. Only
        NCCL has others than plain ones.
    algorithm, protocol, cta_policy : str or sequence of str, optional
        The algorithm, the protocol and the policy for thread blocks of the calls, see `Communicator.configured`. By
        default NCCL chooses. Messages and ``all_to_all_v`` have none, and are measured once.
    min_ctas, max_ctas : int or sequence of int, optional
        Minimum and maximum number of NCCL's thread blocks. By default NCCL chooses. Combinations in which the minimum
        is larger than the maximum are omitted.
    alignment_bytes : int, default 0
        Distance of both buffers from an aligned address, in bytes: a multiple of the element size. With ``-u N``,
        nccl-tests moves its buffers by N elements.
    n_aggregated : int, default 1
        Number of calls that are issued together as one group, each with its own buffers, as with ``-m`` of nccl-tests.
        NCCL starts them with one kernel. MPI and threads start all of them and then wait for all. The time is that of
        one call: the time of the group, divided by `n_aggregated`.
    functions : mapping of str to callable, optional
        Functions by name, for names in `collective`. Functions that are passed in `collective` are added.

    Raises
    ------
    BenchError
        If a choice has no value, or an unknown one.
        If collectives, groupings and placements are incompatible.
    CommunicatorError
        If a collective, an element type or an operation is unknown.
    ParseError
        If a size cannot be read.

    Examples
    --------
    >>> import meshlab as ml
    >>> plan = ml.Plan(["all_reduce", "broadcast"], "tp", sizes="1K:4K")
    >>> steps = plan.steps("dp=2, tp=2")
    >>> len(steps), str(steps[0]).replace(chr(0x2009), " ")
    (6, 'all_reduce 1 KiB float32 along tp, pipelined')
    """

    collective: tuple[str, ...]
    axis: tuple[str, ...]
    sizes: tuple[int, ...]
    dtype: tuple[str, ...]
    op: tuple[str, ...]
    mode: tuple[Mode, ...]
    in_place: tuple[bool, ...]
    root: int
    sampling: Sampling
    check: bool
    grouping: tuple[Grouping, ...]
    concurrent: tuple[tuple[str, str], ...]
    launches: int
    shuffle: bool
    seed: int
    buffers: tuple[Buffers, ...]
    algorithm: tuple[str | None, ...]
    protocol: tuple[str | None, ...]
    min_ctas: tuple[int | None, ...]
    max_ctas: tuple[int | None, ...]
    cta_policy: tuple[str | None, ...]
    alignment_bytes: int
    n_aggregated: int
    functions: Mapping[str, Function | None] = field(compare=False, repr=False)

    def __init__(
        self,
        collective: str | Function | Sequence[str | Function],
        axis: str | Sequence[str],
        sizes: str | int | Sequence[int | str] = "1K:16M",
        dtype: str | Sequence[str] = "float32",
        op: str | ReduceOp | Sequence[str | ReduceOp] = "sum",
        mode: str | Sequence[str] = "pipelined",
        in_place: bool | Sequence[bool] = False,
        root: int = 0,
        sampling: Sampling | str | None = None,
        check: bool = True,
        grouping: str | Sequence[str] = "together",
        concurrent: Mapping[str, str] | Sequence[tuple[str, str]] = (),
        launches: int = 1,
        shuffle: bool = False,
        seed: int = 0,
        buffers: str | Sequence[str] = "plain",
        algorithm: str | Sequence[str | None] | None = None,
        protocol: str | Sequence[str | None] | None = None,
        min_ctas: int | Sequence[int | None] | None = None,
        max_ctas: int | Sequence[int | None] | None = None,
        cta_policy: str | Sequence[str | None] | None = None,
        alignment_bytes: int = 0,
        n_aggregated: int = 1,
        functions: Mapping[str, Function | None] | None = None,
    ) -> None:
        named = dict(functions or {})
        choices: dict[str, tuple[object, ...]] = {
            "collective": tuple(_name(one, named) for one in _several(collective)),
            "axis": _several(axis),
            "sizes": parse_sizes(list(sizes) if isinstance(sizes, Iterable) and not isinstance(sizes, str) else sizes),
            "dtype": tuple(find_dtype(name).name for name in _several(dtype)),
            "op": tuple(str(find_op(name)) for name in _several(op)),
            "mode": _several(mode),
            "in_place": _several(in_place),
            "grouping": _several(grouping),
            "buffers": _several(buffers),
            "algorithm": _several(algorithm),
            "protocol": _several(protocol),
            "min_ctas": _several(min_ctas),
            "max_ctas": _several(max_ctas),
            "cta_policy": _several(cta_policy),
        }
        for name, values in choices.items():
            if not values:
                raise BenchError(f"the plan has no {name}; pass at least one")
            object.__setattr__(self, name, tuple(dict.fromkeys(values)))
        pairs = list(concurrent.items() if isinstance(concurrent, Mapping) else _several(concurrent))
        if not all(isinstance(pair, (tuple, list)) and len(pair) == 2 for pair in pairs):
            raise BenchError(
                f"concurrent must map axes to collectives, not {short(concurrent)}", hint='pass {"dp": "all_reduce"}'
            )
        put = object.__setattr__  # the dataclass is frozen
        put(self, "root", _whole("root", root))
        given = "default" if sampling is None else sampling
        put(self, "sampling", given if isinstance(given, Sampling) else Sampling.named(given))
        put(self, "check", check)
        put(self, "concurrent", tuple((str(axis), str(name)) for axis, name in pairs))
        put(self, "launches", _whole("launches", launches))
        put(self, "shuffle", bool(shuffle))
        put(self, "seed", _whole("seed", seed))
        put(self, "alignment_bytes", _whole("alignment_bytes", alignment_bytes))
        put(self, "n_aggregated", _whole("n_aggregated", n_aggregated))
        put(self, "functions", MappingProxyType({name: named[name] for name in self.collective if name in named}))
        self._check()

    def __getstate__(self) -> dict[str, Any]:
        # Like a saved run, a pickle has only the names of functions: they may be lambdas, which cannot be pickled.
        return {**vars(self), "functions": dict.fromkeys(self.functions)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, functions=MappingProxyType(state["functions"]))

    def _check(self) -> None:
        _check_known("mode", self.mode, MODES)
        _check_known("grouping", self.grouping, GROUPINGS)
        _check_known("buffers", self.buffers, BUFFERS)
        for name in (*self.axis, *(name for name, _ in self.concurrent)):
            if not isinstance(name, str) or name != printable(name):  # half of a surrogate pair is no text
                raise BenchError(f"axis must be the name of an axis or a group set, not {short(name)}")
        self._check_options()
        if self.launches < 1:
            raise BenchError(f"launches must be at least 1, not {self.launches}")
        for name in (*self.collective, *(name for _, name in self.concurrent)):
            if name not in self.functions:
                self._check_collective(name)
        if self.concurrent and ("together" not in self.grouping or self.functions):
            raise BenchError(
                "functions and the groupings alone and pairs cannot run next to a concurrent axis",
                hint="measure them in a separate run, without concurrent=",
            )
        for name in (*self.collective, *(name for _, name in self.concurrent)) if self.concurrent else ():
            if not find_collective(name).has_size:
                raise BenchError(
                    f"{name} moves no data, so it cannot run next to a concurrent axis",
                    hint="measure it in a separate run, without concurrent=",
                )

    def _check_options(self) -> None:
        for name in CONFIGURED:
            for value in getattr(self, name):
                check_config(CallConfig(**{name: value}))
        if not _options(self):
            raise BenchError(
                f"min_ctas={min(number or 1 for number in self.min_ctas)} is larger than every max_ctas of the plan"
            )
        if self.n_aggregated < 1:
            raise BenchError(f"n_aggregated must be at least 1, not {self.n_aggregated}")
        measured = self._sized()
        sizes = {name: find_dtype(name).itemsize for name in self.dtype}
        for name, size in sizes.items():
            if self.alignment_bytes < 0 or self.alignment_bytes % size:
                raise BenchError(
                    f"alignment_bytes must be a multiple of the {size} bytes of a {name}, not {self.alignment_bytes}"
                )
        given = [name for name in OPTIONS if getattr(self, name) not in ((OPTIONS[name],), OPTIONS[name])]
        if given and not measured:
            raise BenchError(
                f"{' and '.join(given)} cannot be chosen for functions, which allocate and call what they need",
                hint="use comm.empty(…, symmetric=True) and comm.configured() in the function",
            )
        chosen = [name for name in given if name in CONFIGURED]
        if chosen and not any(find_collective(name).is_configurable for name in measured):
            raise BenchError(
                f"{' and '.join(chosen)} cannot be chosen for {', '.join(measured)}, which NCCL runs as messages",
                hint="omit them, or measure a different collective",
            )

    def _sized(self) -> list[str]:
        """Return the collectives that move data, and so have sizes, dtypes and buffers."""
        return [name for name in self.collective if name not in self.functions and find_collective(name).has_size]

    def _check_collective(self, name: str) -> None:
        row = find_collective(name)
        if name == "send" and "pairs" in self.grouping:
            return
        if row.peers and not row.is_measurable:
            raise BenchError(
                f"{name} is one side of a message",
                hint="measure send_recv, which sends around a ring, or send with grouping='pairs'",
            )
        if not row.in_place and False not in self.in_place:
            raise BenchError(f"{name} cannot work in place", hint="measure it out of place, without in_place=True")
        if self.grouping == ("pairs",) and name not in PAIRED:
            raise BenchError(
                f"pairs of ranks support {' and '.join(PAIRED)}, not {name}",
                hint="choose one of them, or a different grouping",
            )

    def steps(self, mesh: MeshLike) -> tuple[Step, ...]:
        """Expand the plan into its steps on a mesh.

        Sizes that round to the same count on the mesh's groups become one step. Every round of pairs is a step.

        Parameters
        ----------
        mesh : DeviceMesh or str
            The mesh whose groups are measured.

        Returns
        -------
        tuple of Step
            The steps in the order of the plan, with consecutive indices.

        Raises
        ------
        MeshError
            If the mesh has no such axis or group.
        BenchError
            If the root is outside a group.
            If a group has only one rank, and therefore no pairs.
            If two concurrent axes are the same, or have different ranks.

        Examples
        --------
        >>> import meshlab as ml
        >>> [step.size_bytes for step in ml.Plan("all_gather", "tp", sizes="1, 8, 1K").steps("tp=4")]
        [16, 1024]
        """
        return expand_steps(self, as_mesh(mesh))

    def order(self, n: int, launch: int) -> list[int]:
        """Return the order in which a launch measures the `n` steps of the plan.

        Parameters
        ----------
        n : int
            Number of steps.
        launch : int
            Index of the launch, from 0. With ``shuffle=True`` every launch has a different order.

        Returns
        -------
        list of int
            The indices of the steps.

        Examples
        --------
        >>> import meshlab as ml
        >>> ml.Plan("all_reduce", "tp").order(3, launch=0)
        [0, 1, 2]
        """
        if not self.shuffle:
            return list(range(n))
        order: list[int] = np.random.default_rng([self.seed, launch]).permutation(n).tolist()
        return order

    def estimate(self, mesh: MeshLike, *, backend: str = "mpi", results: pd.DataFrame | None = None) -> Estimate:
        """Estimate the duration and the memory of the plan on a mesh, without starting anything.

        Parameters
        ----------
        mesh : DeviceMesh or str
            The mesh whose groups are measured.
        backend : {"mpi", "nccl", "gloo", "threads"}, default "mpi"
            The backend whose typical latency and bandwidth are assumed, for axes for which the mesh names none.
        results : pandas.DataFrame, optional
            Results of an earlier run. Times that it contains replace the assumptions.

        Returns
        -------
        Estimate
            The number of steps, the duration in seconds, and the memory in bytes.

        Examples
        --------
        >>> import meshlab as ml
        >>> estimate = ml.Plan("all_reduce", "tp", sizes="1M").estimate("tp=2")
        >>> estimate.n_steps, estimate.memory_bytes
        (1, 2097152)
        """
        from meshlab.benchmark.estimate import estimate_plan

        return estimate_plan(self, as_mesh(mesh), backend=backend, results=results)

    def __str__(self) -> str:
        sizes = self.sizes
        span = format_size(sizes[0]) + (f" to {format_size(sizes[-1])}" if len(sizes) > 1 else "")
        text = f"{', '.join(self.collective)} along {', '.join(self.axis)}, "
        if self._sized():
            text += f"{span} ({len(sizes)} sizes), {', '.join(self.dtype)}, "
        text += ", ".join(self.mode)
        if self.grouping != ("together",):
            text += f", groups {' and '.join(self.grouping)}"
        for name, default in OPTIONS.items():
            value = getattr(self, name)
            several = value if isinstance(value, tuple) else (value,)
            if several != (default,):
                text += f", {' and '.join(value_label(name, one) for one in several)}"
        text += "".join(f", while {name} runs along {axis}" for axis, name in self.concurrent)
        return text + (f", {self.launches} launches" if self.launches > 1 else "")


def _check_known(what: str, given: Iterable[str], known: Iterable[str]) -> None:
    for name in given:
        if name not in known:
            raise BenchError(f"unknown {what} {name!r}{did_you_mean(name, known)}; choose one of {', '.join(known)}")


def _whole(name: str, value: object) -> int:
    number = as_integer(value)
    if number is None or not -(1 << 63) <= number < 1 << 63:
        raise BenchError(f"{name} must be an integer of at most 64 bits, not {short(value)}")
    return number


def _several(value: Any) -> tuple[Any, ...]:
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    if value is None or isinstance(value, (int, ReduceOp)) or callable(value):
        return (value,)
    if not isinstance(value, Iterable):
        raise BenchError(f"the plan cannot use {short(value)}; pass one value or a list")
    return tuple(value)


def _name(one: str | Function, named: dict[str, Function | None]) -> str:
    """Return the name of a collective or of a function. Add a function to `named`."""
    if isinstance(one, str):
        return one
    if not callable(one):
        raise BenchError(
            f"collective must be the name of a collective or a function that takes a communicator, not {one!r}"
        )
    name = str(getattr(one, "__name__", type(one).__name__))
    if name in CATALOG:
        raise BenchError(
            f"function {name!r} has the name of a collective, so its rows would be ambiguous; rename the function"
        )
    if named.get(name) not in (None, one):
        raise BenchError(f"two functions have the name {name!r}, so their rows would be ambiguous; rename one of them")
    named[name] = one
    return name
