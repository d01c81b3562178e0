"""Calls of different ranks that are one call, the error of the ranks' clocks, and wait apart from transfer."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from meshlab.base._collectives import COLLECTIVES
from meshlab.frames._statistics import bandwidth
from meshlab.traces._joining import JoinedRanks
from meshlab.traces._rank_trace import MESSAGES, SENDS, UNEVEN, Column, Floats, Integers

Flags = npt.NDArray[np.bool_]

SYNCHRONISING = frozenset(name for name, facts in COLLECTIVES.items() if facts.synchronises)
"""The collectives that no rank leaves before all ranks have entered."""

_SAME = 1.2  # ratio of two spreads of the ends that do not differ
_MOST_SHIFTS = 64  # calls by which the beginnings of two recordings may differ
_SIGMA = 1.4826  # standard deviation of a normal distribution, in median absolute deviations
_SIGNIFICANT = 3  # standard deviations of the ends, beyond which they show an error of a clock


@dataclass(frozen=True, eq=False)
class Matched:
    """The calls of a job with the quantities that need the other ranks. Times are in µs."""

    call: Integers  # number of the call, shared by its ranks
    n_ranks: Integers  # of the group, -1 if it is unknown
    n_files: Integers  # ranks of the call that have a file
    start_us: Floats  # on the common clock
    transfer_us: Floats
    wait_us: Floats
    lateness_us: Floats
    is_last: Flags  # whether the rank came last, among all ranks of the group
    busbw_gbs: Floats
    end_spread_us: float  # median distance of the ends of a call, the error of waits
    clock_us: Floats  # that was added to the times of each file
    unmatched: tuple[int, ...]  # groups whose calls do not correspond


class _Names:
    """A column of names as numbers, because comparing hundreds of thousands of strings takes seconds."""

    def __init__(self, values: Column) -> None:
        import pandas as pd

        codes, names = pd.factorize(values, use_na_sentinel=False)
        self.codes = np.asarray(codes, dtype=np.int64)
        self.names = [name if isinstance(name, str) else "" for name in names]

    def are_in(self, names: Collection[str]) -> Flags:
        """Return for each row whether its name is among these."""
        return np.array([name in names for name in self.names] or [False], dtype=bool)[self.codes]


@dataclass(frozen=True, eq=False)
class _Runs:
    """The rows of each call: `order` sorts the rows by call and rank, and a call begins at each of `starts`."""

    order: Integers
    starts: Integers
    counts: Integers

    @classmethod
    def of(cls, call: Integers, rank: Integers) -> _Runs:
        """Return the rows of each call."""
        order = np.lexsort((rank, call))
        starts = _starts_of_runs(call[order])
        return cls(order, starts, np.diff(np.append(starts, len(order))))

    def rows(self, calls: Integers, n: int) -> Integers:
        """Return the rows of calls with n rows each, of shape (calls, n)."""
        return np.asarray(self.order[self.starts[calls][:, None] + np.arange(n)])

    def spread(self, values: Floats) -> Floats:
        """Return the distance between the largest and the smallest value of each call."""
        if not len(self.order):
            return values
        ordered = values[self.order]
        return np.asarray(np.maximum.reduceat(ordered, self.starts) - np.minimum.reduceat(ordered, self.starts))


def match_calls(job: JoinedRanks) -> Matched:
    """Match the calls of all ranks, align their clocks, and split waits from transfers."""
    columns = job.columns
    names = _Names(columns["collective"])
    call, unmatched = _calls(job, names)
    n_ranks = _group_sizes(job)
    runs = _Runs.of(call, job.rank)
    n_files = np.empty(len(call), dtype=np.int64)
    n_files[runs.order] = np.repeat(runs.counts, runs.counts)
    is_complete = (n_ranks > 1) & (n_files == n_ranks)
    synchronises = is_complete & names.are_in(SYNCHRONISING)
    start, duration = columns["start_us"], columns["duration_us"]
    clock = np.zeros(len(job.ranks))
    has_starts = all(trace.has_starts for trace in job.ranks)
    if has_starts:
        clock = _clock_errors(job, call, synchronises & np.isfinite(start + duration))
        start = start - clock[job.file]
    else:
        # All ranks leave a call at about the same time, so a longer call began earlier.
        start = np.where(synchronises, -duration, np.nan)
    wait, lateness, is_last = _waits(runs, start, duration, is_complete, synchronises)
    if (is_message := names.are_in(MESSAGES)).any():
        wait = _with_messages(wait, runs, start, duration, is_message, names.are_in(SENDS))
    transfer = duration - wait
    spread = runs.spread(np.where(synchronises, start + duration, np.nan))
    spread = spread[np.isfinite(spread)]
    return Matched(
        call,
        n_ranks,
        n_files,
        columns["start_us"] - clock[job.file],
        transfer,
        wait,
        lateness,
        is_last,
        _busbw(names, columns["size_bytes"], n_ranks, transfer),
        float(np.median(spread)) if len(spread) and has_starts else np.nan,
        -clock,
        unmatched,
    )


def _busbw(names: _Names, size: Floats, n_ranks: Integers, time: Floats) -> Floats:
    """Return the bus bandwidth of each row in GB/s."""
    # The rows of a job have few different collectives and group sizes.
    kinds = names.codes * (1 << 32) + np.maximum(n_ranks, 0)
    index = _codes(kinds)
    _, first = np.unique(index, return_index=True)
    collectives = [names.names[code] for code in names.codes[first]]
    _, factor = bandwidth(collectives, np.full(len(first), 1e3), np.maximum(n_ranks[first], 0), np.ones(len(first)))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(time > 0, size / time / 1e3, np.nan) * factor[index])


def _starts_of_runs(values: Integers) -> Integers:
    """Return the positions at which a value differs from the one before it."""
    if not len(values):
        return np.empty(0, dtype=np.int64)
    return np.flatnonzero(np.concatenate([[True], values[1:] != values[:-1]]))


def _group_sizes(job: JoinedRanks) -> Integers:
    sizes = np.array([*(group.n_ranks or -1 for group in job.groups), -1], dtype=np.int64)
    is_message = (job.columns["source"] >= 0) & (job.columns["destination"] >= 0)
    return np.where(is_message, 2, sizes[job.columns["group"]])


# -- which calls are the same ------------------------------------------------------------------------------------------


def _codes(values: Column) -> Integers:
    """Return a number per different value."""
    import pandas as pd

    return np.asarray(pd.factorize(values, use_na_sentinel=False)[0], dtype=np.int64)


def _calls(job: JoinedRanks, names: _Names) -> tuple[Integers, tuple[int, ...]]:
    """Return the number of the call of each row, and the groups whose calls could not be matched."""
    columns = job.columns
    group = columns["group"]
    time = np.where(np.isnan(columns["start_us"]), columns["launch_us"], columns["start_us"])
    # Messages between two ranks of a group have their own order.
    pair = columns["source"] * (1 << 31) + columns["destination"]
    bucket = _numbered(group, pair, start=0)
    label = _labels(job, names)
    call = np.full(job.n_calls, -1, dtype=np.int64)
    open_rows = group >= 0
    for index in (_by_sequence, _by_step, _by_order):
        keys = index(columns, bucket, job.rank, time)
        if keys is None:
            continue
        agrees = _agreement(bucket, keys, job.rank, label, columns)
        accepted = open_rows & agrees
        if accepted.any():
            call[accepted] = _numbered(bucket[accepted], keys[accepted], start=int(call.max()) + 1)
        open_rows &= ~agrees
        if not open_rows.any():
            break
    failed = []
    for number in np.unique(bucket[open_rows]):
        rows = np.flatnonzero(open_rows & (bucket == number))
        position = _shifted(rows, job.rank, time, label, columns)
        if position is None:
            failed.append(int(group[rows[0]]))
        else:
            call[rows] = _numbered(np.zeros(len(rows), dtype=np.int64), position, start=int(call.max()) + 1)
    alone = call < 0
    call[alone] = call.max(initial=-1) + 1 + np.arange(int(alone.sum()))
    return _in_time_order(call, time), tuple(dict.fromkeys(failed))


def _in_time_order(call: Integers, time: Floats) -> Integers:
    """Renumber calls by the time at which their first rank begins."""
    if not len(call):
        return call
    first = np.full(call.max() + 1, np.inf)
    np.minimum.at(first, call, np.where(np.isnan(time), np.inf, time))
    number = np.empty(len(first), dtype=np.int64)
    number[np.argsort(first, kind="stable")] = np.arange(len(first))
    return number[call]


def _labels(job: JoinedRanks, names: _Names) -> Integers:
    """Return a number per collective and size, equal for ranks that make the same call."""
    kinds = dict.fromkeys(MESSAGES, "message") | {uneven: even for even, uneven in UNEVEN.items()}
    kind = _codes(np.array([kinds.get(name, name) for name in names.names], dtype=object))[names.codes]
    # The ranks of such a call may have different sizes.
    size = np.where(names.are_in({*UNEVEN, *UNEVEN.values()}), np.nan, job.columns["size_bytes"])
    is_message = names.are_in(MESSAGES)
    if np.isnan(size[is_message]).any():  # the receives of Gloo
        size = np.where(is_message, np.nan, size)
    return kind * (1 << 20) + _codes(np.nan_to_num(size, nan=-1.0))


def _numbered(bucket: Integers, keys: Integers, start: int) -> Integers:
    """Return a number per different pair of values."""
    order = np.lexsort((keys, bucket))
    is_first = np.ones(len(order), dtype=bool)
    is_first[1:] = (bucket[order][1:] != bucket[order][:-1]) | (keys[order][1:] != keys[order][:-1])
    numbers = np.empty(len(order), dtype=np.int64)
    numbers[order] = np.cumsum(is_first) - 1 + start
    return numbers


def _by_sequence(columns: dict[str, Column], bucket: Integers, rank: Integers, time: Floats) -> Integers | None:
    sequence: Integers = columns["sequence"]
    return sequence if (sequence >= 0).any() else None


def _by_step(columns: dict[str, Column], bucket: Integers, rank: Integers, time: Floats) -> Integers | None:
    step = columns["step"]
    if not (step >= 0).any():
        return None
    position = _positions((bucket, rank, step), time)
    return (step + 1) * (1 << 24) + position


def _by_order(columns: dict[str, Column], bucket: Integers, rank: Integers, time: Floats) -> Integers | None:
    return _positions((bucket, rank), time)


def _positions(keys: tuple[Integers, ...], time: Floats) -> Integers:
    """Return the position of each row in time, among the rows with equal keys."""
    order = np.lexsort((time, *reversed(keys)))
    changed = np.zeros(len(order), dtype=bool)
    for key in keys:
        changed[1:] |= key[order][1:] != key[order][:-1]
    starts = np.maximum.accumulate(np.where(changed, np.arange(len(order)), 0))
    positions = np.empty(len(order), dtype=np.int64)
    positions[order] = np.arange(len(order)) - starts
    return positions


def _agreement(bucket: Integers, keys: Integers, rank: Integers, label: Integers, columns: dict[str, Column]) -> Flags:
    """Return for each row whether all calls of its group agree: one row per rank, all with the same label."""
    order = np.lexsort((rank, keys, bucket))
    groups, numbers, ranks, labels = bucket[order], keys[order], rank[order], label[order]
    same_call = (groups[1:] == groups[:-1]) & (numbers[1:] == numbers[:-1])
    is_doubled = same_call & (ranks[1:] == ranks[:-1])
    differs = same_call & (labels[1:] != labels[:-1])
    is_bad = np.zeros(int(bucket.max(initial=-1)) + 1, dtype=bool)
    is_bad[groups[1:][is_doubled | differs]] = True
    if keys is columns["sequence"]:
        is_bad[bucket[keys < 0]] = True
    else:
        # Without numbers, a rank with fewer calls may have begun later.
        per_rank = np.lexsort((rank, bucket))
        firsts = _starts_of_runs(bucket[per_rank] * (int(rank.max(initial=0)) + 2) + rank[per_rank] + 1)
        counts = np.diff(np.append(firsts, len(per_rank)))
        owner = bucket[per_rank][firsts]
        least = np.full(len(is_bad), np.iinfo(np.int64).max)
        np.minimum.at(least, owner, counts)
        most = np.zeros(len(is_bad), dtype=np.int64)
        np.maximum.at(most, owner, counts)
        is_bad |= least != most
    return ~is_bad[bucket]


def _shifted(
    rows: Integers, rank: Integers, time: Floats, label: Integers, columns: dict[str, Column]
) -> Integers | None:
    """Return the position of each row of a group if the recordings of its ranks begin at different calls."""
    ranks = np.unique(rank[rows])
    by_rank = {r: rows[rank[rows] == r][np.argsort(time[rows[rank[rows] == r]], kind="stable")] for r in ranks.tolist()}
    reference = max(by_rank.values(), key=len)
    ends = time + np.nan_to_num(columns["duration_us"])
    positions = dict(zip(reference.tolist(), range(len(reference)), strict=True))
    for rows_of_rank in by_rank.values():
        if rows_of_rank is reference:
            continue
        shift = _best_shift(label[reference], label[rows_of_rank], ends[reference], ends[rows_of_rank])
        if shift is None:
            return None
        positions |= dict(zip(rows_of_rank.tolist(), range(shift, shift + len(rows_of_rank)), strict=True))
    values = np.array([positions[row] for row in rows.tolist()], dtype=np.int64)
    return np.asarray(values - values.min())


def _best_shift(first: Integers, second: Integers, first_ends: Floats, second_ends: Floats) -> int | None:
    """Return the position in the first recording at which the second begins, None if their calls do not agree."""
    fits: list[tuple[float, float, int]] = []
    for shift in range(-_MOST_SHIFTS, _MOST_SHIFTS + 1 + max(0, len(first) - len(second))):
        begin, end = max(0, shift), min(len(first), shift + len(second))
        if end - begin < max(1, min(len(first), len(second)) // 2):
            continue
        other = slice(begin - shift, end - shift)
        if (first[begin:end] != second[other]).any():
            continue
        # Ends of one call are at the same time, apart from a constant error of the clocks.
        differences = second_ends[other] - first_ends[begin:end]
        middle = float(np.median(differences))
        fits.append((float(np.median(np.abs(differences - middle))), abs(middle), shift))
    # Calls at regular intervals agree with any shift. Then the clocks decide.
    least = min((error for error, _, _ in fits), default=0.0)
    return min(((middle, shift) for error, middle, shift in fits if error <= _SAME * least + 1.0), default=(0.0, None))[
        1
    ]


# -- clocks ------------------------------------------------------------------------------------------------------------


def _clock_errors(job: JoinedRanks, call: Integers, is_common: Flags) -> Floats:
    """Return the error of the clock of each file in µs, by the ends of the calls that it shares with other files.

    Files of one host have the same clock. Otherwise, ends that differ by less than three times their
    spread show no error.
    """
    errors = np.zeros(len(job.ranks))
    rows = np.flatnonzero(is_common)
    if len(job.ranks) < 2 or not len(rows):
        return errors
    hosts = {trace.host for trace in job.ranks}
    if len(hosts) == 1 and "" not in hosts and all(trace.zero_ns is not None for trace in job.ranks):
        return errors
    end = job.columns["start_us"] + job.columns["duration_us"]
    edges = _end_differences(call[rows], job.file[rows], end[rows], job.columns["group"][rows])
    done = np.zeros(len(errors), dtype=bool)
    for root in range(len(errors)):
        if done[root]:
            continue
        done[root] = True
        pending = [root]
        while pending:
            file = pending.pop()
            for other, difference in edges.get(file, {}).items():
                if not done[other]:
                    done[other] = True
                    errors[other] = errors[file] + difference
                    pending.append(other)
    return errors


def _end_differences(call: Integers, file: Integers, end: Floats, group: Integers) -> dict[int, dict[int, float]]:
    """Return by how much the clock of one file is ahead of another, for the files of each group."""
    edges: dict[int, dict[int, float]] = {}
    order = np.lexsort((file, call, group))
    for part in np.split(order, _starts_of_runs(group[order])[1:]):
        members = np.unique(file[part])
        ends = end[part].reshape(-1, len(members))  # complete calls only, so each has all members
        for position, member in enumerate(members[1:].tolist(), 1):
            differences = ends[:, position] - ends[:, 0]
            middle = float(np.median(differences))
            spread = _SIGMA * float(np.median(np.abs(differences - middle)))
            first = int(members[0])
            difference = middle if abs(middle) > _SIGNIFICANT * spread else 0.0
            edges.setdefault(first, {}).setdefault(member, difference)
            edges.setdefault(member, {}).setdefault(first, -difference)
    return edges


# -- waits -------------------------------------------------------------------------------------------------------------


def _waits(
    runs: _Runs, start: Floats, duration: Floats, is_complete: Flags, synchronises: Flags
) -> tuple[Floats, Floats, Flags]:
    """Return wait and lateness of each row, and whether the rank came last."""
    wait, lateness = np.full(len(start), np.nan), np.full(len(start), np.nan)
    is_last = np.zeros(len(start), dtype=bool)
    if not len(start):
        return wait, lateness, is_last
    usable = is_complete & np.isfinite(start)
    n_usable = np.add.reduceat(usable[runs.order].astype(np.int64), runs.starts)
    for n in np.unique(runs.counts[(n_usable == runs.counts) & (runs.counts > 1)]).tolist():
        rows = runs.rows(np.flatnonzero((runs.counts == n) & (n_usable == n)), n)
        begin = start[rows]
        lateness[rows] = begin - _median_of_others(begin)
        is_last[rows[np.arange(len(rows)), begin.argmax(axis=1)]] = True
        waits = np.clip(begin.max(axis=1, keepdims=True) - begin, 0, duration[rows])
        wait[rows] = np.where(synchronises[rows], waits, np.nan)
    return wait, lateness, is_last


def _median_of_others(values: Floats) -> Floats:
    """Return for each element the median of the other elements of its row."""
    n = values.shape[1]
    order = np.argsort(values, axis=1)
    ordered = np.take_along_axis(values, order, axis=1)
    place = np.empty_like(order)
    np.put_along_axis(place, order, np.broadcast_to(np.arange(n), order.shape), axis=1)
    rows = np.arange(len(values))[:, None]

    def at(position: int) -> Floats:
        # The element at this position once the own one is removed.
        return ordered[rows, np.where(position < place, position, position + 1)]

    middle = (n - 1) // 2
    return at(middle) if (n - 1) % 2 else (at(middle - 1) + at(middle)) / 2


def _with_messages(
    wait: Floats, runs: _Runs, start: Floats, duration: Floats, is_message: Flags, is_send: Flags
) -> Floats:
    """Add the waits of messages. A receiver waits for its sender, and a sender may finish before the receiver comes."""
    wait = wait.copy()
    rows = runs.rows(np.flatnonzero(runs.counts == 2), 2)
    rows = rows[is_message[rows].all(axis=1) & np.isfinite(start[rows]).all(axis=1)]
    begin = start[rows].max(axis=1, keepdims=True)
    is_over = (start[rows] + duration[rows]) <= begin
    wait[rows] = np.where(is_over & is_send[rows], 0.0, np.clip(begin - start[rows], 0, duration[rows]))
    return wait
