"""The process groups of Gloo's calls, which a trace does not name: inferred from threads, and from all ranks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from meshlab.traces._rank_trace import Floats, ProcessGroup, RankTrace, size_in_bytes

_THREADS = 2  # of a group of Gloo, which run its calls
_MOST_QUEUES = 8
_ENOUGH = 0.9  # share of the calls whose ranks overlap in time


class _Choice(NamedTuple):
    """A candidate: the groups of the queues of a rank by their position in its list, and the worker's queues."""

    roles: tuple[int, ...]
    queues: tuple[tuple[int, ...], ...]


def with_groups(traces: Sequence[RankTrace]) -> list[RankTrace]:
    """Return traces in which the calls of Gloo have a group, as far as the threads of all ranks determine it.

    Each group has its own threads, which are created with it, in the order in which the header lists the groups. A
    program makes the same calls on every rank, so on all ranks the same entries of that list have the same calls. And
    the calls of the ranks of a group overlap in time. If several choices pass, the group stays unknown.
    """
    if not any((trace.calls["worker"] >= 0).any() and (trace.calls["group"] < 0).any() for trace in traces):
        return list(traces)
    candidates = [_candidates(trace) for trace in traces]
    sets = [
        set(trace.groups[number].ranks) for trace, numbers in zip(traces, candidates, strict=True) for number in numbers
    ]
    present = {trace.rank for trace in traces}
    if not sets or len({len(numbers) for numbers in candidates}) > 1 or not set().union(*sets) <= present:
        return list(traces)
    choices = _common_choices(traces, len(candidates[0]))
    scores = sorted(
        ((_score(traces, candidates, choice), number) for number, choice in enumerate(choices)), reverse=True
    )
    if not scores or scores[0][0] < _ENOUGH or (len(scores) > 1 and scores[1][0] >= _ENOUGH and not _is_clear(scores)):
        return list(traces)
    return _assigned(traces, candidates, choices[scores[0][1]])


def _is_clear(scores: Sequence[tuple[float, int]]) -> bool:
    return scores[0][0] - scores[1][0] > (1 - _ENOUGH) / 2


def _candidates(trace: RankTrace) -> list[int]:
    return [number for number, group in enumerate(trace.groups) if len(group.ranks) > 1 and group.is_on_host]


def _common_choices(traces: Sequence[RankTrace], n_groups: int) -> list[list[_Choice]]:
    """Return the ways to split the workers of all ranks into queues with the same calls, and to assign groups."""
    per_rank: list[dict[tuple[tuple[str, ...], ...], tuple[tuple[int, ...], ...]]] = []
    for trace in traces:
        workers, names, starts = trace.calls["worker"], trace.calls["collective"], trace.calls["start_us"]
        splits: dict[tuple[tuple[str, ...], ...], tuple[tuple[int, ...], ...]] = {}
        for queues in _splits(int(workers.max()) + 1):
            if len(queues) > min(n_groups, _MOST_QUEUES):
                continue
            parts = [np.flatnonzero(np.isin(workers, queue)) for queue in queues]
            calls = tuple(tuple(str(names[row]) for row in part[np.argsort(starts[part])]) for part in parts)
            splits.setdefault(calls, queues)
        per_rank.append(splits)
    common = set(per_rank[0]).intersection(*per_rank[1:])
    return [
        [_Choice(roles, splits[calls]) for splits in per_rank]
        for calls in sorted(common)
        for roles in itertools.combinations(range(n_groups), len(calls))
    ]


def _splits(n_workers: int, first: int = 0) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Yield the ways to split workers into queues of neighbours."""
    if first == n_workers:
        yield ()
    for size in range(1, min(_THREADS, n_workers - first) + 1):
        queue = tuple(range(first, first + size))
        yield from ((queue, *rest) for rest in _splits(n_workers, first + size))


def _score(traces: Sequence[RankTrace], candidates: Sequence[list[int]], choice: Sequence[_Choice]) -> float:
    """Return the share of the calls whose ranks overlap in time, if the ranks have these groups."""
    starts: dict[ProcessGroup, list[Floats]] = {}
    ends: dict[ProcessGroup, list[Floats]] = {}
    base = min(trace.zero_ns or 0 for trace in traces)
    for trace, numbers, option in zip(traces, candidates, choice, strict=True):
        shift = ((trace.zero_ns or 0) - base) / 1e3
        for role, queue in zip(option.roles, option.queues, strict=True):
            rows = np.flatnonzero(np.isin(trace.calls["worker"], queue))
            rows = rows[np.argsort(trace.calls["start_us"][rows])]
            group = trace.groups[numbers[role]]._replace(position=None)
            begin = trace.calls["start_us"][rows] + shift
            starts.setdefault(group, []).append(begin)
            ends.setdefault(group, []).append(begin + trace.calls["duration_us"][rows])
    overlaps: list[bool] = []
    for group, parts in starts.items():
        if len(parts) != len(group.ranks):
            return 0.0
        overlaps += (np.max(parts, axis=0) <= np.min(ends[group], axis=0)).tolist()
    return float(np.mean(overlaps)) if overlaps else 0.0


def _assigned(
    traces: Sequence[RankTrace], candidates: Sequence[list[int]], choice: Sequence[_Choice]
) -> list[RankTrace]:
    results = []
    for trace, numbers, option in zip(traces, candidates, choice, strict=True):
        group, size = trace.calls["group"].copy(), trace.calls["size_bytes"].copy()
        for role, queue in zip(option.roles, option.queues, strict=True):
            rows = np.isin(trace.calls["worker"], queue)
            group[rows] = numbers[role]
            n = trace.groups[numbers[role]].n_ranks
            for row in np.flatnonzero(rows & np.isnan(size) & np.isfinite(trace.calls["input_bytes"])).tolist():
                count = int(trace.calls["input_bytes"][row])
                size[row] = size_in_bytes(trace.calls["collective"][row], count, None, 1, n)
        results.append(replace(trace, calls={**trace.calls, "group": group, "size_bytes": size}))
    return results
