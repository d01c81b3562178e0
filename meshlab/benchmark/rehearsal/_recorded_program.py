"""The calls of a trace as programs of the ranks: their order, their gaps, and the calls that run at the same time."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from meshlab.base._errors import BenchError
from meshlab.benchmark.on_ranks._training_step import Operation, RecordedStep
from meshlab.plans._steps import Step
from meshlab.traces._call_list import CallList, RecordedCall

Gaps = Literal["none", "recorded", "even"]
"""The computation between the calls: none, that of each rank, or on all ranks the mean of the ranks."""


@dataclass(frozen=True, slots=True)
class RankCall:
    """A call of a rank: its index in the list, its times in µs, and the time before it without a call."""

    index: int
    start: float
    end: float
    gap: float


@dataclass(frozen=True, eq=False)
class RecordedOrder:
    """The calls of each rank in the order in which it makes them."""

    ranks: tuple[tuple[RankCall, ...], ...]
    axis_of: tuple[int, ...]
    """The index of the axis of each call."""
    overlaps: bool
    """Whether calls of different axes can run at the same time."""

    @classmethod
    def of(cls, calls: CallList, axes: Sequence[str], overlaps: bool) -> RecordedOrder:
        """Return the order of the calls of a trace."""
        n = calls.mesh.world_size
        times = [_times(call) for call in calls.calls]
        has_times = all(np.isfinite(span).all() for span in times)
        of_rank: list[list[tuple[float, float, int]]] = [[] for _ in range(n)]
        for index, (call, mean) in enumerate(zip(calls.calls, times, strict=True)):
            for rank in call.ranks:
                start, end = call.spans.get(rank, mean)
                of_rank[rank].append((start, end, index))
        # A rank makes its calls in the order in which it began them. If files are missing, or calls cannot run at the
        # same time, all ranks have the order in which the first rank of each call began it, so that none of them waits
        # for a rank that waits for it.
        follows_rank = has_times and overlaps and not calls.without_file
        axis_of = tuple(axes.index(call.kind.axis) for call in calls.calls)
        # The recording may begin at different times, so the first call of a trace begins at the same time on all ranks.
        is_first = bool(calls.calls) and calls.calls[0].number == 0
        origin = np.inf if is_first else min(start for entries in of_rank for start, _, _ in entries)
        ranks = []
        for entries in of_rank:
            entries.sort(key=lambda entry: entry[2])
            if follows_rank and _keeps_axes(ordered := sorted(entries), axis_of):
                entries = ordered
            ranks.append(tuple(_with_gaps(entries, origin)))
        return cls(tuple(ranks), axis_of, overlaps and has_times)

    @property
    def has_times(self) -> bool:
        """Whether the trace contains the starts of the calls, and so the gaps between them."""
        return all(np.isfinite(call.gap) for calls in self.ranks for call in calls)

    def program(self, steps: Sequence[Step], gaps: Gaps) -> RecordedStep:
        """Return the programs of all ranks, with one step per call. Computation is in µs."""
        even = self._even_gaps() if gaps == "even" else {}
        programs: dict[tuple[Operation, ...], int] = {}
        of_rank = []
        for calls in self.ranks:
            operations = self._operations(calls, steps, gaps, even)
            of_rank.append(programs.setdefault(operations, len(programs)))
        return RecordedStep(tuple(programs), tuple(of_rank))

    def _even_gaps(self) -> Mapping[int, float]:
        values: defaultdict[int, list[float]] = defaultdict(list)
        for calls in self.ranks:
            for call in calls:
                values[call.index].append(call.gap)
        return {index: float(np.mean(gaps)) for index, gaps in values.items()}

    def _operations(
        self, calls: Sequence[RankCall], steps: Sequence[Step], gaps: Gaps, even: Mapping[int, float]
    ) -> tuple[Operation, ...]:
        operations: list[Operation] = []
        flights: dict[int, RankCall] = {}  # calls that are under way, by their index
        axis_of = self.axis_of
        if gaps == "none" and len({axis_of[call.index] for call in calls}) > 1:
            operations.append(
                Operation("compute")
            )  # of no length: the calls of several axes are ordered by computation
        for call, following in itertools.zip_longest(calls, calls[1:]):
            index, axis = call.index, axis_of[call.index]
            for flight in sorted(flights.values(), key=lambda flight: flight.end):
                if flight.end <= call.start:
                    operations.append(Operation("wait", flight.index, axis_of[flight.index]))
                    del flights[flight.index]
            if gaps != "none":
                operations.append(Operation("compute", flops=even.get(index, call.gap)))
            has_next = self.overlaps and following is not None and following.start < call.end
            if not has_next and axis not in {axis_of[number] for number in flights}:
                operations.append(Operation("run", index, axis, steps[index]))
                continue
            operations.append(Operation("start", index, axis, steps[index]))
            flights[index] = call
        operations += [Operation("wait", index, axis_of[index]) for index in flights]
        return tuple(operations)


def check_ranks(calls: CallList, n_engines: int) -> None:
    """Raise unless there is one engine per rank of the trace."""
    if calls.mesh.world_size != n_engines:
        raise BenchError(
            f"the trace is of {calls.mesh.world_size:,} ranks, but there {'is' if n_engines == 1 else 'are'} "
            f"{n_engines:,} engine{'s' * (n_engines != 1)}",
            hint=f"start {calls.mesh.world_size:,} engines",
        )


def _times(call: RecordedCall) -> tuple[float, float]:
    """Return the mean start and end of a call, for ranks without a file."""
    start, end = np.mean(list(call.spans.values()), axis=0)
    return float(start), float(end)


def _keeps_axes(entries: Sequence[tuple[float, float, int]], axis_of: Sequence[int]) -> bool:
    """Return whether the calls of each axis are in the order that all ranks of a group have."""
    latest: dict[int, int] = {}
    for _, _, index in entries:
        if latest.get(axis_of[index], -1) > index:
            return False
        latest[axis_of[index]] = index
    return True


def _with_gaps(entries: Sequence[tuple[float, float, int]], origin: float) -> list[RankCall]:
    """Return the calls of a rank, each with the time since the last event that it can depend on."""
    calls: list[RankCall] = []
    ends: list[float] = []  # of calls that are under way, in ascending order
    latest = min(origin, entries[0][0]) if entries else origin
    for start, end, index in entries:
        while ends and ends[0] <= start:
            latest = max(latest, ends.pop(0))
        calls.append(RankCall(index, start, end, max(start - latest, 0.0)))
        latest = max(latest, start)
        ends.append(end)
        ends.sort()
    return calls
