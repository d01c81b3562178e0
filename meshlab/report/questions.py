"""Answers to what a run with groups=, beside= or pairs asked: a sentence for the verdict and a table for each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from meshlab.analysis.pairs import pair_table
from meshlab.frames.labels import axis_words
from meshlab.analysis.concurrency import contention, interference
from meshlab.plots.style import SEPARATOR
from meshlab.plots.lines import say
from meshlab.report.content import MOST_ROWS, Cell, Table
from meshlab.units import format_bandwidth, format_size, format_time_us

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["answer_tables", "answers"]

_VARYING = ("launch", "op", "dtype", "root", "in_place", "mode", "group")


def answers(results: pd.DataFrame) -> list[str]:
    """One sentence with numbers for each question and axis."""
    return [
        *(_of_pairs(rows) for rows in _pairs(results)),
        *(_of_groups(axis, rows) for axis, rows in contention(results).groupby("axis", sort=False)),
        *(
            _of_axes(axis, beside, rows)
            for (axis, beside), rows in interference(results).groupby(["axis", "beside"], sort=False)
        ),
    ]


def answer_tables(results: pd.DataFrame) -> list[Table]:
    """One table for each question and axis."""
    return [
        *(_pair_table(rows) for rows in _pairs(results)),
        *(
            _ratio_table(f"{axis}{SEPARATOR}all groups at once against one at a time", rows, "alone", "together")
            for axis, rows in contention(results).groupby("axis", sort=False)
        ),
        *(
            _ratio_table(f"{axis}{SEPARATOR}while {beside} runs, against alone", rows, "alone", "beside")
            for (axis, beside), rows in interference(results).groupby(["axis", "beside"], sort=False)
        ),
    ]


# -- pairs -------------------------------------------------------------------------------------------------------------


def _pairs(results: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """The pairs of each collective, axis, mode and element type."""
    for _, rows in pair_table(results).groupby(["collective", "axis", "mode", "dtype"], sort=False):
        yield rows


def _of_pairs(rows: pd.DataFrame) -> str:
    size = rows["size_bytes"].max()
    largest = rows[rows["size_bytes"] == size]
    low, high = largest["busbw_gbs"].min(), largest["busbw_gbs"].max()
    first = largest.iloc[0]
    words = axis_words(f"{first['axis']} pairs")
    text = f"{first['collective']} at {format_size(size)}, {words}: {format_bandwidth(low)} to "
    text += f"{format_bandwidth(high)} busbw; "
    slow = largest[largest["is_slow"].fillna(value=False)]
    if not len(slow):
        return f"{text}no pair is slow."
    named = [f"{_ends(row)} {format_bandwidth(row.busbw_gbs)}" for row in slow.head(_MOST_NAMED).itertuples()]
    more = f" and {len(slow) - len(named)} more" if len(slow) > len(named) else ""
    return f"{text}SLOW: {', '.join(named)}{more}."


def _ends(row: Any) -> str:
    return f"{row.from_rank}{'→' if row.collective == 'send' else '↔'}{row.to_rank}"


def _pair_table(rows: pd.DataFrame) -> Table:
    first = rows.iloc[0]
    parts = [first["collective"], axis_words(f"{first['axis']} pairs"), first["dtype"], first["mode"]]
    parts.append("the slowest first")
    varying = [name for name in ("launch",) if rows[name].nunique() > 1]
    cells = []
    row: Any
    for row in rows.head(MOST_ROWS).itertuples():
        texts = [
            _ends(row),
            format_size(row.size_bytes),
            *(str(getattr(row, name)) for name in varying),
            format_time_us(row.time_us),
            format_bandwidth(row.busbw_gbs),
        ]
        share = Cell(f"{'✕ ' if row.is_slow else ''}{row.share:.0%}", is_bad=bool(row.is_slow))
        cells.append((*(Cell(text) for text in texts), share))
    header = ("pair", "size", *varying, "median", "busbw", "of the median pair")
    return Table(SEPARATOR.join(map(str, parts)), header, tuple(cells), max(0, len(rows) - MOST_ROWS))


# -- sharing -----------------------------------------------------------------------------------------------------------


def _worst(rows: pd.DataFrame) -> str:
    """What became slower the most, and how many rows surely did; empty where none did."""
    slower = rows[rows["is_clear"] & (rows["ratio"] > 1)]
    if slower.empty:
        return ""
    row = slower.iloc[int(slower["ratio"].to_numpy().argmax())]
    what = f"{row['collective']} at {format_size(row['size_bytes'])} on {row['group']}"
    ratio = f"{row['ratio']:.2f} × as long ({row['ratio_lo']:.2f} to {row['ratio_hi']:.2f})"
    return f"{len(slower):,} of {len(rows):,} rows are clearly slower than alone, at most {what}, {ratio}"


def _of_groups(axis: Any, rows: pd.DataFrame) -> str:
    worst = _worst(rows)
    if not worst:
        return f"The groups of {axis} do not slow each other down beyond the intervals."
    return f"The groups of {axis} slow each other down: {worst}."


def _of_axes(axis: Any, beside: Any, rows: pd.DataFrame) -> str:
    worst = _worst(rows)
    if not worst:
        return f"{beside} does not slow {axis} down beyond the intervals."
    return f"{beside} slows {axis} down: {worst}."


def _ratio_table(title: str, rows: pd.DataFrame, before: str, after: str) -> Table:
    names = {"alone": "alone", "together": "all at once", "beside": "both at once"}
    per_collective = rows.groupby("collective")
    # What follows from the collective, such as that all_gather has no op, needs no column.
    varying = [name for name in _VARYING if per_collective[name].nunique(dropna=False).max() > 1]
    varying = ["collective", *varying] if len(per_collective) > 1 else varying
    constant = [name for name in ("collective", "dtype", "mode") if name not in varying]
    told = [say(name, rows[name].iloc[0]) for name in constant]
    ordered = rows.sort_values(["size_bytes", *varying], kind="stable")
    cells = []
    for _, row in ordered.head(MOST_ROWS).iterrows():
        interval = "–" if row["ratio_lo"] != row["ratio_lo"] else f"{row['ratio_lo']:.2f} – {row['ratio_hi']:.2f}"
        texts = [
            format_size(row["size_bytes"]),
            *(say(name, row[name]) for name in varying),
            format_time_us(row[f"{before}_us"]),
            format_time_us(row[f"{after}_us"]),
            f"{row['ratio']:.2f} ×",
            interval,
        ]
        cells.append(tuple(Cell(text) for text in texts))
    header = ("size", *varying, names[before], names[after], "ratio", "95 % interval")
    return Table(SEPARATOR.join([title, *told]), header, tuple(cells), max(0, len(rows) - MOST_ROWS))
