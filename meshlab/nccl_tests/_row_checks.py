"""Finds rows of an nccl-tests table that do not fit the others. They are kept, with a warning."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from meshlab.base._collectives import COLLECTIVES
from meshlab.base._units import format_size
from meshlab.frames._statistics import bandwidth
from meshlab.nccl_tests._log import OWN_RATES, Floats, LogTable, Note, Preamble, rounding_of_rates
from meshlab.nccl_tests._rows import key_columns, row_hashes

_REDUCES = frozenset(name for name, collective in COLLECTIVES.items() if collective.reduces)
_MOST_LINES = 10


def misfits(
    table: LogTable, collective: str | None, n_ranks: int | None, preamble: Preamble, *, is_complete: bool
) -> list[Note]:
    """Return a note for each row that does not fit its table, and one if a complete run misses rows."""
    if len(table) < 2:
        return []
    notes = [
        *_limited(_other_factors(table, collective, n_ranks)),
        *_limited(_repeated(table)),
        *_limited(_out_of_order(table)),
        *_limited(_blank_operations(table, collective)),
    ]
    if is_complete:
        notes += _number_of_rows(table, preamble)
    return notes


def _limited(notes: Iterator[Note]) -> list[Note]:
    listed = list(notes)
    rest = len(listed) - _MOST_LINES
    return listed[:_MOST_LINES] + ([Note(None, f"{rest} more rows that do not fit the others")] if rest > 0 else [])


def _other_factors(table: LogTable, collective: str | None, n_ranks: int | None) -> Iterator[Note]:
    """Yield a note for each placement with a busbw that does not follow from its algbw."""
    if collective in OWN_RATES:
        return
    algbw, busbw = table.values[..., 1], table.values[..., 2]
    room_algbw, room_busbw = rounding_of_rates(algbw), rounding_of_rates(busbw)
    low = (busbw - room_busbw) / (algbw + room_algbw)
    with np.errstate(divide="ignore", invalid="ignore"):
        high = np.where(algbw > room_algbw, (busbw + room_busbw) / (algbw - room_algbw), np.inf)
    is_rated = table.present & ~np.isnan(low)
    if is_rated.sum() < 2:
        return
    factor = _factor(low[is_rated], high[is_rated], collective, n_ranks)
    if factor is None:
        return
    other = is_rated & ((low > factor) | (high < factor))
    # Of small messages, the time has more digits than algbw.
    time = table.values[..., 0]
    room = room_busbw + factor * table.size_bytes[:, None] * 5.1e-6 / np.maximum(time, 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        follows = np.abs(factor * table.size_bytes[:, None] / time / 1e3 - busbw) <= room
    if not table.cpu_time and follows[is_rated].mean() > 0.5:
        other |= is_rated & ~follows & (time > 1.0) & (busbw < 1.0)
    for row, placement in np.argwhere(other).tolist():
        place = "in-place" if placement else "out-of-place"
        yield Note(
            int(table.line[row]) or None,
            f"the {place} busbw of {busbw[row, placement]:g} does not fit the algbw of {algbw[row, placement]:g} and "
            f"the time: in the other rows busbw / algbw is {factor:.4g}",
        )


def _factor(low: Floats, high: Floats, collective: str | None, n_ranks: int | None) -> float | None:
    """Return busbw / algbw of most rows, or None if they do not agree."""
    narrowest = int(np.argmin(high - low))
    candidates = [(low[narrowest] + high[narrowest]) / 2]
    if collective is not None and n_ranks is not None:
        algbw, busbw = bandwidth([collective], np.ones(1), np.array([float(n_ranks)]), np.ones(1))
        if busbw[0] == busbw[0]:
            candidates.append(float(busbw[0] / algbw[0]))
    fits = [int(((low <= factor) & (factor <= high)).sum()) for factor in candidates]
    best = int(np.argmax(fits))
    return float(candidates[best]) if 2 * fits[best] > len(low) else None


def _repeated(table: LogTable) -> Iterator[Note]:
    """Yield a note for each row that has all numbers of an earlier one."""
    n = len(table)
    numbers = np.nan_to_num(table.values, nan=-1.0).reshape(n, -1) + 0.0  # no negative zeros
    rows = np.column_stack([key_columns(table), numbers.view(np.int64)])
    _, first, group = np.unique(row_hashes(rows), return_index=True, return_inverse=True)
    before = first[group.reshape(-1)]
    is_repeated = (before != np.arange(n)) & (rows == rows[before]).all(axis=1)
    is_repeated &= table.size_bytes != 0  # empty messages may all take the same time
    for row in np.flatnonzero(is_repeated).tolist():
        line = table.line[before[row]]
        where = f"the row of line {line}" if line else "an earlier row"
        yield Note(int(table.line[row]) or None, f"this row repeats {where}")


def _out_of_order(table: LogTable) -> Iterator[Note]:
    """Yield a note for each row whose size is smaller than the one before. A test that starts again begins anew."""
    kinds = key_columns(table)[:, 2:]
    sizes = table.size_bytes
    is_alike = (kinds[1:] == kinds[:-1]).all(axis=1)
    for row in (np.flatnonzero((np.diff(sizes) < 0) & is_alike & (sizes[1:] != sizes[0])) + 1).tolist():
        yield Note(
            int(table.line[row]) or None,
            f"the size {format_size(sizes[row])} follows {format_size(sizes[row - 1])}, although sizes grow",
        )


def _blank_operations(table: LogTable, collective: str | None) -> Iterator[Note]:
    """Yield a note for each row without an operation or a root, if most rows have one."""
    blank = np.array([not op for op in table.op])
    if table.op_column and blank.all() and collective in _REDUCES:
        yield Note(None, f"{collective} reduces, but no row has an operation")
    if table.op_column and 2 * blank.sum() < len(blank):
        for row in np.flatnonzero(blank).tolist():
            yield Note(int(table.line[row]) or None, "this row has no operation, unlike the other rows")
    usual, counts = np.unique(table.root, return_counts=True)
    if len(usual) > 1 and 2 * counts.max() > len(table):
        for row in np.flatnonzero(table.root != usual[counts.argmax()]).tolist():
            yield Note(int(table.line[row]) or None, f"the root is {table.root[row]}, unlike in the other rows")


def _number_of_rows(table: LogTable, preamble: Preamble) -> list[Note]:
    """Return a note if the settings of the run make a different number of rows."""
    if (expected := _n_sizes(preamble)) is None:
        return []
    kinds = len(np.unique(row_hashes(key_columns(table)[:, 2:])))
    n = len(table)
    # Cycles of all sizes (-N) multiply the rows, and rounding to the number of ranks makes sizes equal.
    if n % (expected * kinds) == 0 and len(np.unique(table.size_bytes)) <= expected:
        return []
    return [Note(None, f"the settings of the run make {expected * kinds} rows, but the table has {n}")]


def _n_sizes(preamble: Preamble) -> int | None:
    """Return the number of sizes of a run, or None if the settings do not determine it."""
    least, most, step = preamble.min_bytes, preamble.max_bytes, preamble.step
    if least is None or most is None or step is None or least > most:
        return None
    if preamble.step_kind == "bytes" and step > 0:
        return (most - least) // step + 1
    if preamble.step_kind != "factor" or step < 2 or least < 1:
        return None
    n = 0
    while least <= most:
        least, n = least * step, n + 1
    return n
