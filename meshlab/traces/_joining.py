"""Files of several ranks as one job: its groups, and all calls in columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshlab.base._errors import ParseError
from meshlab.base._units import format_seconds
from meshlab.mesh._axes import format_ranks
from meshlab.traces._rank_trace import COLUMNS, Column, Integers, ProcessGroup, RankTrace

_FARTHEST_US = 60e6  # between the times of ranks whose hosts have the same date


@dataclass(frozen=True, eq=False)
class JoinedRanks:
    """The ranks of a job that have files, its process groups, and all calls of all ranks in columns."""

    ranks: tuple[RankTrace, ...]
    world_size: int | None
    groups: tuple[ProcessGroup, ...]
    columns: dict[str, Column]
    rank: Integers  # of each call, -1 if the file does not contain it
    file: Integers  # index in `ranks` of each call
    origin_us: float  # of the times of the calls

    @property
    def n_calls(self) -> int:
        """Number of rows: one per call and rank."""
        return len(self.rank)


def join_ranks(traces: Sequence[RankTrace]) -> JoinedRanks:
    """Return the files of several ranks as one job. Raise if they are of different jobs."""
    ordered = sorted(traces, key=lambda trace: (trace.rank is None, trace.rank))
    _check(ordered)
    worlds = [trace.world_size for trace in ordered if trace.world_size is not None]
    groups, numbers = _groups(ordered)
    zeros = [trace.zero_ns for trace in ordered]
    base = min((zero for zero in zeros if zero is not None), default=0)
    columns: dict[str, Column] = {}
    shifts = [0.0 if zero is None else (zero - base) / 1e3 for zero in zeros]
    starts = [
        np.nanmin(times) + shift
        for trace, shift in zip(ordered, shifts, strict=True)
        if len(times := _times(trace)) and not np.isnan(times).all()
    ]
    origin = float(min(starts, default=0.0))
    for name in COLUMNS:
        parts = [trace.calls[name] for trace in ordered]
        if name in ("start_us", "launch_us"):
            parts = [part + (shift - origin) for part, shift in zip(parts, shifts, strict=True)]
        if name == "group":
            parts = [np.where(part >= 0, mapping[part], -1) for part, mapping in zip(parts, numbers, strict=True)]
        columns[name] = np.concatenate(parts) if parts else np.empty(0, dtype=COLUMNS[name])
    counts = [trace.n_calls for trace in ordered]
    rank = np.repeat([-1 if trace.rank is None else trace.rank for trace in ordered], counts).astype(np.int64)
    file = np.repeat(np.arange(len(ordered)), counts).astype(np.int64)
    shifted = tuple(
        replace(
            trace,
            compute=None if trace.compute is None else trace.compute + (shift - origin),
            idle=trace.idle + (shift - origin),
        )
        for trace, shift in zip(ordered, shifts, strict=True)
    )
    return JoinedRanks(shifted, max(worlds, default=None), groups, columns, rank, file, origin)


def _times(trace: RankTrace) -> Column:
    starts = trace.calls["start_us"]
    return np.where(np.isnan(starts), trace.calls["launch_us"], starts)


def _check(traces: Sequence[RankTrace]) -> None:
    """Raise if the files are not of different ranks of one job."""
    kinds = list(dict.fromkeys(trace.kind for trace in traces))
    if len(kinds) > 1:
        raise ParseError(f"the files are of different kinds: {' and '.join(kinds)}", hint="read each kind on its own")
    if len(traces) < 2:
        return
    for trace in traces:
        if trace.rank is None:
            raise ParseError(
                "the file does not contain its rank, so it cannot be joined with others",
                hint="read it on its own, or pass files with distributedInfo",
                file=trace.file,
            )
    worlds = {trace.world_size: trace for trace in traces if trace.world_size is not None}
    if len(worlds) > 1:
        texts = [f"{trace.file} of {world:,} ranks" for world, trace in list(worlds.items())[:3]]
        raise ParseError(f"the files are of different jobs: {', '.join(texts)}", hint="pass the files of one job")
    rank, n = Counter(trace.rank for trace in traces).most_common(1)[0]
    if n > 1:
        files = [trace.file for trace in traces if trace.rank == rank][:2]
        raise ParseError(
            f"rank {rank} has {n} files, such as {' and '.join(files)}", hint="pass one file per rank of one recording"
        )
    _check_times(traces)


def _check_times(traces: Sequence[RankTrace]) -> None:
    """Raise if the files were recorded at different times."""
    spans = []
    for trace in traces:
        times = _times(trace)
        times = times[~np.isnan(times)]
        if trace.zero_ns is not None and len(times):
            zero = trace.zero_ns / 1e3
            spans.append((zero + float(times.min()), zero + float(times.max()), trace.file))
    if len(spans) < 2:
        return
    latest, earliest = max(spans), min(spans, key=lambda span: span[1])
    distance = latest[0] - earliest[1]
    if distance > _FARTHEST_US:
        raise ParseError(
            f"the files are of different recordings: {latest[2]} begins {format_seconds(distance / 1e6)} after "
            f"{earliest[2]} ends",
            hint="pass the files of one recording",
        )


def _groups(traces: Sequence[RankTrace]) -> tuple[tuple[ProcessGroup, ...], list[Integers]]:
    """Return the groups of all files, and for each file the number of each of its groups."""
    members: dict[str, dict[int, int]] = {}
    for trace in traces:
        for group in trace.groups:
            if group.position is not None and trace.rank is not None:
                members.setdefault(group.name, {})[group.position] = trace.rank
    ranks_of: dict[str, set[tuple[int, ...]]] = {}
    for trace in traces:
        for group in trace.groups:
            ranks = group.ranks or _from_positions(group, members.get(group.name, {}))
            if ranks:
                ranks_of.setdefault(group.name, set()).add(ranks)
    index: dict[tuple[str, tuple[int, ...]], int] = {}
    groups: list[ProcessGroup] = []
    numbers = []
    for trace in traces:
        mapping = np.empty(len(trace.groups) + 1, dtype=np.int64)
        mapping[-1] = -1
        for number, group in enumerate(trace.groups):
            ranks = group.ranks
            if not ranks and len(candidates := ranks_of.get(group.name, set())) == 1:
                ranks = next(iter(candidates))
            key = (group.name, ranks)
            if key not in index:
                index[key] = len(groups)
                groups.append(group._replace(ranks=ranks, position=None))
            mapping[number] = index[key]
        numbers.append(mapping)
    return tuple(groups), numbers


def _from_positions(group: ProcessGroup, members: dict[int, int]) -> tuple[int, ...]:
    is_complete = group.size is not None and len(members) == group.size
    return tuple(members[position] for position in sorted(members)) if is_complete else ()


def missing_ranks(ranks: Sequence[int], world_size: int | None) -> str:
    """Return the ranks without a file as text, empty if there are none or the number of ranks is unknown."""
    if world_size is None:
        return ""
    missing = np.setdiff1d(np.arange(world_size), np.asarray(ranks, dtype=np.int64))
    return format_ranks(missing.tolist()) if len(missing) else ""
