"""The tables of a report as plain values."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from meshlab.analysis._comparison import Comparison
from meshlab.analysis._concurrency import traffic_rows
from meshlab.analysis._expectations import (
    EXPECTED_SHARE,
    SLOW_WORDS,
    is_below_prediction,
    is_within_tolerance,
    predicted_range,
)
from meshlab.analysis._thresholds import ThresholdCheck
from meshlab.base._units import SEPARATOR, THIN, format_number, format_size, format_time_us
from meshlab.frames._labels import LABELLED, axis_label, describe_groups, value_label
from meshlab.frames._schema import empty_samples, is_pair
from meshlab.frames._table import MODES_MARK, TableCell, TablePart, results_table
from meshlab.plans._options import OPTIONS, option_texts
from meshlab.plots._lines import Line, lines_of
from meshlab.report._answers import contention_parts, interference_parts, pair_parts
from meshlab.report._words import UNFINISHED, is_missing, pair_label_of, plain_text, size_text
from meshlab.runs._store import Frames

if TYPE_CHECKING:
    import pandas as pd

MOST_ROWS, MOST_TABLES = 200, 60

_MOST_COLUMNS = 12  # the number of columns, apart from the size, that fit the width of the page
_SLOW_GBS = 0.1  # smaller bandwidths are in MB/s
_FEW_ROWS = 20  # the number of rows that are shown of a comparison in which nothing changed


class Cell(NamedTuple):  # a tuple, because a large report has tens of thousands of cells
    """A cell of a table."""

    text: str
    is_bad: bool = False
    value: float | None = None  # to sort by; by default the text


@dataclass(frozen=True, slots=True)
class ReportTable:
    """A table with a title."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    more: int = 0  # omitted rows
    spans: tuple[tuple[str, int], ...] = ()  # names above the columns after the first, with their number of columns
    texts: tuple[int, ...] = (0,)  # columns of words rather than numbers

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns, each with the name above it."""
        above = [""] + [name for name, n in self.spans for _ in range(n)]
        return (
            tuple(" ".join(part for part in pair if part) for pair in zip(above, self.header, strict=True))
            if self.spans
            else self.header
        )


def pivot_tables(results: pd.DataFrame) -> list[ReportTable]:
    """Return one table per axis, mode and element type: sizes down, collectives across, the slowest group in a cell."""
    parts = results_table(results[~is_pair(results)], with_system=False).parts
    return [table for part in parts[:MOST_TABLES] for table in _pivots(part)]


def _pivots(part: TablePart) -> Iterator[ReportTable]:
    """Yield a table with all collectives, or several tables, if one would be wider than the page."""
    width = 1 + bool(part.sizes) + (part.has_bounds and bool(part.sizes))
    n_columns = _MOST_COLUMNS // width
    n_tables = math.ceil(len(part.collectives) / n_columns)
    n_columns = math.ceil(len(part.collectives) / max(n_tables, 1))
    for first in range(0, len(part.collectives), max(n_columns, 1)):
        chosen = slice(first, first + n_columns)
        cells = tuple(tuple(row[chosen]) for row in part.cells)
        table = _pivot(replace(part, collectives=part.collectives[chosen], cells=cells))
        more = f"{SEPARATOR}{', '.join(part.collectives[chosen])}" if n_tables > 1 else ""
        yield replace(table, title=table.title + more)


def _pivot(part: TablePart) -> ReportTable:
    names = ["time", *["busbw"] * bool(part.sizes), *["of bound"] * (part.has_bounds and bool(part.sizes))]
    rows = []
    for number, cells in enumerate(part.cells):
        row = [Cell(part.sizes[number], value=float(number))] if part.sizes else [Cell("")]
        for cell in cells:
            row += _pivot_cells(cell)[: len(names)]
        rows.append(tuple(row))
    return ReportTable(
        part.title,
        ("size" if part.sizes else "", *names * len(part.collectives)),
        tuple(rows[:MOST_ROWS]),
        max(0, len(rows) - MOST_ROWS),
        tuple((name, len(names)) for name in part.collectives),
    )


def _pivot_cells(cell: TableCell) -> list[Cell]:
    """Return time, bandwidth and share of the bound of a collective at a size."""
    if cell.status != "ok":
        is_bad = cell.status in (*UNFINISHED, "wrong")
        return [Cell(f"✕ {cell.status}" if is_bad else cell.status or "–", is_bad=is_bad), Cell(""), Cell("")]
    mark = MODES_MARK if cell.has_modes else ""
    time = Cell(format_time_us(cell.time_us, cell.n_digits) + mark, value=cell.time_us)
    percent = Cell("") if math.isnan(cell.of_bound) else Cell(_percent(cell.of_bound), value=cell.of_bound)
    return [time, _rate(cell.busbw_gbs, cell.n_digits), percent]


def expectation_table(expected: pd.DataFrame) -> ReportTable:
    """Return the measurements at the largest size, with the expected performance."""
    varying = [name for name in ("axis", "dtype", "mode") if expected[name].nunique(dropna=False) > 1]
    has_published = bool(expected["published_gbs"].notna().any())
    has_bounds = bool(expected["bound_gbs"].notna().any())
    header = ["collective", *varying, "size", "busbw", *["bound", "of bound"] * has_bounds, "predicted"]
    header += ["published", "of published"] if has_published else []
    rows = []
    for _, row in expected.iterrows():
        is_slow = row["verdict"] in SLOW_WORDS
        cells = [Cell(str(row["collective"])), *(Cell(plain_text(row[name])) for name in varying)]
        cells += [
            Cell(size_text(row["size_bytes"]), value=float(row["size_bytes"])),
            _rate(row["busbw_gbs"]),
        ]
        if has_bounds:
            cells += [
                _rate(row["bound_gbs"]),
                Cell(_percent(row["of_bound"]) or "–", value=_value(row["of_bound"])),
            ]
        cells += [
            Cell(predicted_range(row).replace(" to ", " – ") or "–", is_bad=is_below_prediction(row)),
        ]
        if has_published:
            cells += [
                _rate(row["published_gbs"]),
                Cell(_percent(row["of_published"]) or "–", value=_value(row["of_published"])),
            ]
        is_tolerated = row["verdict"] == "as expected" and is_within_tolerance(row)
        verdict = (
            f"{row['verdict']}, within {100 * (1 - EXPECTED_SHARE):.0f}{THIN}%" if is_tolerated else str(row["verdict"])
        )
        rows.append((*cells, Cell(f"✕ {row['verdict']}" if is_slow else verdict, is_bad=is_slow)))
    title = "The largest size, with the expected performance"
    last = len(header)
    return ReportTable(
        title,
        (*header, "verdict"),
        tuple(rows[:MOST_ROWS]),
        max(0, len(rows) - MOST_ROWS),
        texts=(*range(1 + len(varying)), last),
    )


def published_table(expected: pd.DataFrame) -> ReportTable | None:
    """Return the published runs with which the measurements were compared, each once, or None without any."""
    # The placements of a run are one line.
    runs = {
        (row["collective"], run.curve.curve, run.size_bytes): (row["collective"], run)
        for _, row in expected.iloc[::-1].iterrows()
        for run in row["published"].runs
    }
    rows = [
        (
            Cell(str(collective)),
            Cell(run.curve.system),
            Cell(f"{run.curve.nodes} × {run.curve.gpus_per_node}", value=float(run.curve.n_ranks)),
            Cell(size_text(run.size_bytes), value=float(run.size_bytes)),
            _rate(run.busbw_gbs),
            Cell(run.curve.date or "–"),
            Cell(run.curve.source.removeprefix("https://")),
        )
        for collective, run in reversed(runs.values())
    ]
    if not rows:
        return None
    header = ("collective", "machine", "hosts × GPUs", "size", "busbw", "date", "source")
    first, more = tuple(rows)[:MOST_ROWS], max(0, len(rows) - MOST_ROWS)
    return ReportTable("Published runs", header, first, more, texts=(0, 1, 5, 6))


def _rate_text(gbs: float, n_digits: int = 3) -> str:
    """Write a bandwidth with up to three digits, so that a slow one is not zero, in the unit that keeps it short."""
    if is_missing(gbs):
        return "–"
    if gbs >= _SLOW_GBS or gbs == 0:
        return f"{format_number(gbs, n_digits)}{THIN}GB/s"
    return f"{format_number(gbs * 1e3, n_digits)}{THIN}MB/s"


def _rate(busbw: float, n_digits: int = 3) -> Cell:
    return Cell("–") if is_missing(busbw) else Cell(_rate_text(busbw, n_digits), value=float(busbw))


def _value(number: float) -> float | None:
    return None if is_missing(number) else float(number)


def threshold_table(check: ThresholdCheck) -> ReportTable:
    """Return the results next to their thresholds."""
    header, rows = check.table()
    cells = tuple(
        (Cell(row[0], is_bad=row[0].startswith("✕")), *(Cell(text) for text in row[1:])) for row in rows[:MOST_ROWS]
    )
    title = SEPARATOR.join(["Thresholds", *filter(None, [check.thresholds.title])])
    return ReportTable(title, tuple(header), cells, max(0, len(rows) - MOST_ROWS), texts=(0, 1, 3, 5))


def comparison_table(comparison: Comparison) -> ReportTable:
    """Return the results next to those of the baseline, the most interesting rows first."""
    header, rows = comparison.table()
    decided = sum(row[1] not in ("SAME", "UNCLEAR") for row in rows)
    first_rows = rows[: min(MOST_ROWS, max(_FEW_ROWS, decided))]
    cells = tuple(
        (Cell(f"{row[0]} {row[1]}", is_bad=row[1] in ("SLOWER", "WRONG")), *(Cell(text) for text in row[2:]))
        for row in first_rows
    )
    names = ("verdict", *header[2:-1], "note")
    title = f"{comparison.before} → {comparison.after}"
    return ReportTable(title, names, cells, len(rows) - len(first_rows), texts=(0, 1, len(names) - 1))


def load_tables(results: pd.DataFrame, samples: pd.DataFrame | None = None) -> list[ReportTable]:
    """Return the tables of pairs, contention and interference."""
    tables = [_pair_table(rows) for rows in pair_parts(results)]
    frames = Frames(results, empty_samples() if samples is None else samples, "")
    for axis, rows in contention_parts(frames):
        title = f"{axis}{SEPARATOR}all groups together or one at a time"
        tables.append(_ratio_table(title, rows, ("alone_us", "one at a time"), ("together_us", "together")))
    for axis, load, rows in interference_parts(frames):
        title = f"{axis}{SEPARATOR}with and without {load}"
        tables.append(_ratio_table(title, rows, ("alone_us", "without"), ("concurrent_us", "with")))
    return tables


def traffic_tables(results: pd.DataFrame, samples: pd.DataFrame) -> list[ReportTable]:
    """Return the tables of uneven traffics next to the even one, or to the first one of the run."""
    if results["traffic"].nunique() < 2:
        return []
    tables = []
    for (axis, baseline), rows in traffic_rows(Frames(results, samples, "")).groupby(["axis", "baseline"], sort=False):
        title = f"{axis}{SEPARATOR}compared with {baseline} traffic"
        tables.append(_ratio_table(title, rows, ("baseline_us", f"{baseline} time"), ("traffic_us", "time")))
    return tables


def detail_tables(results: pd.DataFrame) -> tuple[list[ReportTable], int]:
    """Return one table per line of the plots, with the interval of every row, and the number that were omitted."""
    rows = results[~is_pair(results)]
    lines = lines_of(rows, "busbw_gbs")
    axes = list(dict.fromkeys(line.keys["axis"] for line in lines))
    lines.sort(key=lambda line: axes.index(line.keys["axis"]))  # stable: the lines of an axis keep their order
    rows = rows[
        [*_DETAIL_COLUMNS, *_TITLE_COLUMNS, *["of_bound"] * ("of_bound" in rows)]
    ]  # each line takes a part of all columns
    tables = [_line_table(line, rows.iloc[line.rows]) for line in lines[:MOST_TABLES]]
    return tables, max(0, len(lines) - MOST_TABLES)


_DETAIL_COLUMNS = (
    *("size_bytes", "n_samples", "time_us", "time_us_lo", "time_us_hi", "algbw_gbs", "busbw_gbs", "status"),
    "n_wrong",
)

_TITLE_COLUMNS = (*LABELLED, "launch", "group", "n_ranks")


def _line_table(line: Line, rows: pd.DataFrame) -> ReportTable:
    keys = line.keys
    words = [
        value_label(name, keys[name]) for name in ("dtype", "op", "root", "in_place", "mode") if keys[name] is not None
    ]
    words += option_texts(keys)
    title = SEPARATOR.join(part for part in (str(keys["collective"]), describe_groups(rows), *words) if part)
    rows = rows.sort_values(["size_bytes", "launch", "group"])
    varying = [name for name in ("launch", "group") if rows[name].nunique() > 1]
    has_bounds = "of_bound" in rows and bool(rows["of_bound"].notna().any())
    header = ("size", *varying, "n", "median", "95 % interval", "algbw", "busbw")
    header += (*["of bound"] * has_bounds, "wrong")
    first_rows = rows.head(MOST_ROWS)
    # Whole columns, because a row of a frame takes as long as all its texts.
    columns = {name: first_rows[name].astype(object).tolist() for name in (*_DETAIL_COLUMNS, *varying)}
    texts = [
        map(size_text, columns["size_bytes"]),
        *(map(plain_text, columns[name]) for name in varying),
        map(plain_text, columns["n_samples"]),
        map(format_time_us, columns["time_us"]),
        map(_interval, columns["time_us_lo"], columns["time_us_hi"]),
        *(map(_rate_text, columns[name]) for name in ("algbw_gbs", "busbw_gbs")),
        *[map(_percent, first_rows["of_bound"].tolist()) for _ in range(has_bounds)],
    ]
    wrong = map(_wrong_cell, columns["status"], columns["n_wrong"])
    cells = tuple((*map(Cell, row), last) for row, last in zip(zip(*texts, strict=True), wrong, strict=True))
    return ReportTable(title, header, cells, max(0, len(rows) - MOST_ROWS))


def _percent(share: float) -> str:
    return "" if is_missing(share) else f"{100 * share:.0f}{THIN}%"


def _interval(low: float, high: float) -> str:
    if is_missing(low) or is_missing(high):
        return "–"
    first, last = format_time_us(low), format_time_us(high)
    number, _, unit = first.rpartition(THIN)  # the bounds may have different units, such as µs and ms
    return f"{number if last.endswith(unit) else first} – {last}"


def _wrong_cell(status: Any, n_wrong: Any) -> Cell:
    status = "" if is_missing(status) else str(status)
    if status in UNFINISHED:
        return Cell(f"✕ {status}", is_bad=True)
    if status == "skipped":
        return Cell("skipped")
    if is_missing(n_wrong):
        return Cell("✕ wrong", is_bad=True) if status == "wrong" else Cell("unchecked")
    if n_wrong > 0 or status == "wrong":
        return Cell(f"✕ {n_wrong:,}", is_bad=True)
    return Cell("0")


def _pair_table(rows: pd.DataFrame) -> ReportTable:
    first = rows.iloc[0]
    parts = [first["collective"], axis_label(first["axis"], "pairs"), first["dtype"], first["mode"], "slowest first"]
    varying = [name for name in ("launch",) if rows[name].nunique() > 1]
    cells = []
    row: Any
    for row in rows.head(MOST_ROWS).assign(is_slow=rows["is_slow"].fillna(value=False)).itertuples():
        texts = [
            pair_label_of(row),
            format_size(row.size_bytes),
            *(str(getattr(row, name)) for name in varying),
            format_time_us(row.time_us),
            _rate_text(row.busbw_gbs),
        ]
        share = Cell(f"{'✕ ' if row.is_slow else ''}{_percent(row.share)}", is_bad=bool(row.is_slow))
        cells.append((*(Cell(text) for text in texts), share))
    header = ("pair", "size", *varying, "median", "busbw", "of the median pair")
    return ReportTable(SEPARATOR.join(map(str, parts)), header, tuple(cells), max(0, len(rows) - MOST_ROWS))


_VARYING = ("launch", "op", "dtype", "root", "in_place", "mode", "group")


def _ratio_table(title: str, rows: pd.DataFrame, before: tuple[str, str], after: tuple[str, str]) -> ReportTable:
    """Return a table of two times, each given as its column and its heading, and their ratio."""
    per_collective = rows.groupby("collective")
    # Columns that depend on the collective alone, such as the op that all_gather does not have, are not shown.
    options = [name for name in OPTIONS if name in rows]
    varying = [name for name in (*_VARYING, *options) if per_collective[name].nunique(dropna=False).max() > 1]
    varying = ["collective", *varying] if len(per_collective) > 1 else varying
    constant = [
        value_label(name, rows[name].iloc[0]) for name in ("collective", "dtype", "mode") if name not in varying
    ]
    constant += option_texts({name: rows[name].iloc[0] for name in options if name not in varying})
    cells = []
    for _, row in rows.sort_values(["size_bytes", *varying], kind="stable").head(MOST_ROWS).iterrows():
        interval = "–" if is_missing(row["ratio_lo"]) else f"{row['ratio_lo']:.2f} – {row['ratio_hi']:.2f}"
        texts = [
            "–" if is_missing(row["size_bytes"]) else format_size(row["size_bytes"]),
            *(value_label(name, row[name]) for name in varying),
            format_time_us(row[before[0]]),
            format_time_us(row[after[0]]),
            f"{row['ratio']:.2f}×",
            interval,
        ]
        cells.append(tuple(Cell(text) for text in texts))
    header = ("size", *varying, before[1], after[1], "ratio", "95 % interval")
    return ReportTable(SEPARATOR.join([title, *constant]), header, tuple(cells), max(0, len(rows) - MOST_ROWS))
