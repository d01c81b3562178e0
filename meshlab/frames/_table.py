"""Results as tables: plain text for terminals, and static HTML for notebooks."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from meshlab.base import _markup as markup
from meshlab.base._errors import EngineError
from meshlab.base._units import THIN, format_number, format_seconds, format_size
from meshlab.frames._labels import axis_labels
from meshlab.frames._schema import CALL, LOAD, PAIR, RESULTS, numbered_rows
from meshlab.plans._options import OPTIONS, option_texts

if TYPE_CHECKING:
    import pandas as pd

    from meshlab.runs._rundata import RunData

_MOST_ROWS = 60
_DISTINCTIONS = ("run_id", "launch", *PAIR, *CALL[1:], *LOAD)  # columns that may tell the rows of results apart
_SPACE = "\N{FIGURE SPACE}"  # as wide as a digit, so that decimal points align in proportional fonts too


class TableCell(NamedTuple):
    """A collective at a size: the slowest group, and of several launches their median."""

    time_us: float
    busbw_gbs: float
    status: str = ""
    of_bound: float = math.nan
    n_digits: int = 3  # as many as the 95 % interval leaves significant
    has_modes: bool = False

    @property
    def texts(self) -> tuple[str, str]:
        """The time in µs and the bandwidth in GB/s."""
        if self.status != "ok":
            return self.status, ""
        mark = MODES_MARK if self.has_modes else ""
        return f"{format_number(self.time_us, self.n_digits)}{mark}", format_number(self.busbw_gbs, self.n_digits)


MODES_MARK = "‡"
_LEGEND = "Times and bandwidths have as many digits as their 95 % intervals leave significant."
_MODES_LEGEND = f"{MODES_MARK} Times have two levels, so the median may jump from one to the other."


@dataclass(frozen=True, slots=True)
class TablePart:
    """One table: message sizes down, collectives across."""

    title: str
    collectives: tuple[str, ...]
    sizes: tuple[str, ...]
    """The names of the rows. Empty for functions, which have no sizes and one row."""
    cells: tuple[tuple[TableCell, ...], ...]
    """By row and collective."""

    def columns(self) -> list[tuple[str, str, list[str]]]:
        """Return the columns as name, unit and texts, with aligned decimal points."""
        columns = []
        for number, name in enumerate(self.collectives):
            column = [row[number] for row in self.cells]
            columns.append((name, "µs", align_decimals([cell.texts[0] for cell in column])))
            if self.sizes:
                columns.append(("", "busbw GB/s", align_decimals([cell.texts[1] for cell in column])))
            if self.sizes and self.has_bounds:
                shares = ["" if math.isnan(cell.of_bound) else f"{100 * cell.of_bound:.0f}" for cell in column]
                columns.append(("", "% of bound", _justified(shares)))
        return columns

    @property
    def has_bounds(self) -> bool:
        """True if the share of a bound is known in any cell."""
        return any(not math.isnan(cell.of_bound) for row in self.cells for cell in row)

    def __str__(self) -> str:
        return self.text()

    def text(self, width: int | None = None) -> str:
        """Return the table as text. Collectives that do not fit a width are in further tables below."""
        columns = self.columns()
        if not self.sizes:
            lines = [f"{name}  {texts[0].strip()}" for name, _, texts in columns]
            is_ok = [cell.status == "ok" for cell in self.cells[0]]
            return "\n".join([self.title, *(line + " µs" * ok for line, ok in zip(lines, is_ok, strict=True))])
        blocks = [["", "size", *self.sizes]]
        each = 3 if self.has_bounds else 2
        for start in range(0, len(columns), each):
            parts = [_justified([unit, *texts]) for _, unit, texts in columns[start : start + each]]
            blocks.append([columns[start][0], *("  ".join(cells) for cells in zip(*parts, strict=True))])
        sizes, *justified = map(_justified, blocks)
        rows: list[list[list[str]]] = []
        left = 0.0
        for block in justified:
            if not rows or (width is not None and len(block[0]) + 2 > left):
                rows.append([sizes])
                left = math.inf if width is None else width - len(sizes[0])
            rows[-1].append(block)
            left -= len(block[0]) + 2
        texts = ["\n".join("  ".join(cells).rstrip() for cells in zip(*part, strict=True)) for part in rows]
        return f"{self.title}\n" + "\n\n".join(texts)

    def html(self) -> str:
        """Return the table as HTML."""
        columns = self.columns()
        header = ["size"] * bool(self.sizes) + [f"{name} {unit}".strip() for name, unit, _ in columns]
        texts = [[text.replace(" ", _SPACE) for text in column] for *_, column in columns]
        rows = [list(row) for row in zip(*([list(self.sizes)] if self.sizes else []), *texts, strict=True)]
        return f'<div class="ml-sub">{markup.escape(self.title)}</div>' + markup.table(
            header, rows, most=_MOST_ROWS, right=range(len(self.sizes) > 0, len(header))
        )


@dataclass(frozen=True, slots=True)
class ResultsTable:
    """Tables of results, with a line above them and sentences below. `str()` and Jupyter show them."""

    parts: tuple[TablePart, ...]
    note: str = ""
    below: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.text()

    def text(self, width: int | None = None) -> str:
        """Return the tables as text, with only as many collectives side by side as fit a width."""
        tables = "\n\n".join(part.text(width) for part in self.parts) or "no results"
        return "\n\n".join(part for part in (self.note, tables, "\n".join(self.below)) if part)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        note = f"<div><b>{markup.escape(self.note)}</b></div>" if self.note else ""
        below = "".join(f'<div class="ml-sub">{markup.escape(sentence)}</div>' for sentence in self.below)
        return note + ("".join(part.html() for part in self.parts) or "no results") + below


def results_table(results: pd.DataFrame, *, with_system: bool = True) -> ResultsTable:
    """Arrange results as one table per axis: sizes down, and time and bus bandwidth of each collective across."""
    if results.empty:
        return ResultsTable(())
    where = f" · {results.attrs.get('where') or results['source'].iloc[0]}" if with_system else ""
    # A collective without a reduction shares the table of those that reduce, if there is only one operation.
    ops = results["op"].dropna().unique()
    labelled = results.assign(
        label=axis_labels(results).fillna("all ranks"),
        op=results["op"].fillna(ops[0] if len(ops) == 1 else ""),
        collective=results["collective"].fillna("unknown"),  # of a file that another program has written
    )
    is_function = labelled["size_bytes"].isna()
    parts = []
    for (label, mode, dtype, op, in_place, *options), rows in labelled[~is_function].groupby(
        ["label", "mode", "dtype", "op", "in_place", *OPTIONS], dropna=False, sort=False
    ):
        element = f"{dtype}, {op}" if op else str(dtype)
        place = ", in place" if in_place is True else ""
        chosen = "".join(f" · {text}" for text in option_texts(dict(zip(OPTIONS, options, strict=True))))
        title = f"{label} · {_groups(rows)}{where} · {mode}{chosen} · {element}{place}"
        sizes = sorted(rows["size_bytes"].unique())
        parts.append(_part(title, rows, tuple(sizes)))
    for (label, mode), rows in labelled[is_function].groupby(["label", "mode"], dropna=False, sort=False):
        parts.append(_part(f"{label} · {_groups(rows)}{where} · {mode}", rows, ()))
    cells = [cell for part in parts for row in part.cells for cell in row]
    below = [_LEGEND] if any(cell.n_digits < 3 for cell in cells) else []
    below += [_MODES_LEGEND] if any(cell.has_modes for cell in cells) else []
    return ResultsTable(tuple(parts), below=tuple(below))


def _groups(rows: pd.DataFrame) -> str:
    if rows["grouping"].eq("pairs").any():
        n_pairs = len(rows[["src_rank", "dst_rank", "collective"]].drop_duplicates())
        return f"{n_pairs} pairs and directions, the slowest shown"
    n_groups, n_ranks = rows["group"].nunique(), rows["n_ranks"].iloc[0]
    n_launches = len(rows[["run_id", "launch"]].drop_duplicates())
    launches = f", median of {n_launches} launches" if n_launches > 1 else ""
    groups = f"{n_groups} groups of {n_ranks}, the slowest shown" if n_groups > 1 else f"1 group of {n_ranks}"
    return groups + launches


def _part(title: str, rows: pd.DataFrame, sizes: Sequence[int]) -> TablePart:
    collectives = tuple(dict.fromkeys(rows["collective"]))
    cells = _cells(rows, ["size_bytes", "collective"] if sizes else ["collective"])
    absent = TableCell(math.nan, math.nan)
    lines = [tuple(cells.get((size, name), absent) for name in collectives) for size in sizes] or [
        tuple(cells[(name,)] for name in collectives)
    ]
    return TablePart(title, collectives, tuple(format_size(size) for size in sizes), tuple(lines))


def _cells(rows: pd.DataFrame, keys: list[str]) -> dict[tuple[Any, ...], TableCell]:
    """Return the cell of each combination of keys."""
    names = ("time_us", "busbw_gbs", "time_us_lo", "time_us_hi")
    columns = [rows[name].to_numpy("float64", na_value=math.nan) for name in names]
    shares = rows["of_bound"].to_numpy("float64", na_value=math.nan) if "of_bound" in rows else columns[0] * math.nan
    modes = rows["n_modes"].ge(2).fillna(value=False).to_numpy(dtype=bool)
    statuses = rows["status"].fillna("ok").to_numpy(dtype=object)
    numbers, keys_of = numbered_rows(rows, keys)
    launches, _ = numbered_rows(rows, ["run_id", "launch"])
    cells = {}
    for number, key in enumerate(keys_of):
        chosen = np.flatnonzero(numbers == number)
        bad = [statuses[row] for row in chosen if statuses[row] != "ok"]
        if bad:  # the first row that is not ok
            cells[key] = TableCell(math.nan, math.nan, str(bad[0]))
            continue
        # The slowest group of each launch, and of these the launch in the middle.
        slowest: dict[int, int] = {}
        for row in chosen:
            launch = int(launches[row])
            if launch not in slowest or columns[0][row] > columns[0][slowest[launch]]:
                slowest[launch] = int(row)
        ordered = sorted(slowest.values(), key=lambda row: columns[0][row])
        middle = ordered[(len(ordered) - 1) // 2 : len(ordered) // 2 + 1]
        time_us, busbw, low, high, share = (float(np.mean(values[middle])) for values in (*columns, shares))
        if len(ordered) > 1:  # launches differ by more than the batches of one
            low, high = (float(columns[0][row]) for row in (ordered[0], ordered[-1]))
        has_modes = bool(modes[middle].any())
        cells[key] = TableCell(time_us, busbw, "ok", share, significant_digits(time_us, low, high), has_modes)
    return cells


def short_display(frame: pd.DataFrame) -> tuple[str | None, str] | None:
    """Return the HTML and the text of a frame with results. None if pandas shows it.

    These are frames with other columns than results, and those whose columns pandas is allowed to show all. The HTML is
    None if pandas is not allowed to write any.
    """
    import pandas as pd

    most = pd.get_option("display.max_columns")
    if most is None or most >= len(frame.columns) or list(frame.columns) != [column.name for column in RESULTS]:
        return None
    with contextlib.suppress(Exception), pd.option_context("display.show_dimensions", False):
        # A user may have put anything into these columns.
        short = _short_frame(frame)
        table, note = short._repr_html_(), _note(frame, short)  # type: ignore[operator]
        return None if table is None else f"{table}<p>{markup.escape(note)}</p>", f"{short!r}\n\n{note}"
    return None


def _short_frame(results: pd.DataFrame) -> pd.DataFrame:
    """Return the columns of results that matter, with as many digits as the interval of the time leaves."""
    import pandas as pd

    names = ["axis", "group", "collective"]
    names += [name for name in _DISTINCTIONS if results[name].nunique(dropna=name in CALL) > 1]
    most = pd.get_option("display.max_rows") or len(results)
    is_drawn = [min(row, len(results) - 1 - row) < most for row in range(len(results))]
    values = results[["time_us", "time_us_lo", "time_us_hi", "busbw_gbs"]].to_numpy("float64", na_value=math.nan)
    texts = [
        _number_texts(None if size is pd.NA else size, *row) if has_text else ("",) * 4
        for row, size, has_text in zip(values.tolist(), results["size_bytes"], is_drawn, strict=True)
    ]
    columns = zip(*texts, strict=True) if texts else [()] * 4
    return pd.DataFrame(
        {
            **{name: results[name] for name in names},
            **dict(zip(("size", "time_us", _unbroken("95 % interval"), "busbw_gbs"), columns, strict=True)),
            "n_wrong": results["n_wrong"],
            "status": results["status"],
        },
        index=results.index,
    )


def _number_texts(size: int | None, time_us: float, low: float, high: float, busbw: float) -> tuple[str, str, str, str]:
    """Write size, time, interval and bandwidth of a row."""
    n_digits = significant_digits(time_us, low, high)
    return (
        "–" if size is None else _unbroken(format_size(size)),
        format_number(time_us, n_digits),
        _interval_text(time_us, low, high, n_digits),
        format_number(busbw, n_digits),
    )


def _interval_text(time_us: float, low: float, high: float, n_digits: int) -> str:
    """Write an interval of a time with the last digit that the time has."""
    if not (math.isfinite(low) and math.isfinite(high) and time_us > 0):
        return "–"
    decimals = n_digits - 1 - math.floor(math.log10(time_us))
    if n_digits == 3:
        decimals = max(decimals, 0)
    return _unbroken(" – ".join(f"{round(end, decimals):,.{max(decimals, 0)}f}" for end in (low, high)))


def _unbroken(text: str) -> str:
    """Return a text that no line break divides."""
    return text.replace(THIN, "\N{NARROW NO-BREAK SPACE}").replace(" ", "\N{NO-BREAK SPACE}")


def _note(frame: pd.DataFrame, short: pd.DataFrame) -> str:
    rows = f"{len(frame):,} row{'s' * (len(frame) != 1)} with {len(frame.columns)} columns"
    return (
        f"{rows}, of which {len(short.columns)} are shown: select others by name, or show all with "
        "pd.set_option('display.max_columns', None). ml.describe() explains them."
    )


def significant_digits(value: float, low: float, high: float) -> int:
    """Return how many digits of a value, from one to three, an interval around it leaves significant."""
    width = high - low
    if not (math.isfinite(width) and width > 0 and value > 0):
        return 3
    # The unit of the last digit is at most the width of the interval.
    return min(max(math.ceil(math.floor(math.log10(value)) + 1 - math.log10(width)), 1), 3)


def align_decimals(texts: Sequence[str]) -> list[str]:
    """Pad strings to one width, with the decimal points of all numbers below each other."""
    behind = [len(text) - text.index(".") if "." in text else 0 for text in texts]
    is_number = [text[:1].isdecimal() or text[:1] == "-" for text in texts]
    most = max(behind, default=0)
    padded = [
        text + " " * (most - after) if number else text
        for text, after, number in zip(texts, behind, is_number, strict=True)
    ]
    return _justified(padded)


def _justified(texts: Sequence[str]) -> list[str]:
    width = max(map(len, texts), default=0)
    return [text.rjust(width) for text in texts]


def run_html(run: RunData, figure: str = "") -> str:
    """Write a run as HTML that needs no JavaScript: state, progress, error, a figure and the results."""
    progress = run.progress
    times = f"{format_seconds(progress.elapsed_s)} elapsed"
    if not run.has_ended:
        times += f", {progress.left_text}"
    status = f"{run.state} · {progress.done} of {progress.total} steps · {times}"
    parts = [markup.bar(progress.done / max(progress.total, 1), status)]
    if progress.step:
        parts.append(f"<div>{markup.escape(progress.step)}</div>")
    if run.error is not None:
        parts.append(f'<div class="ml-bad">{markup.escape(str(run.error).splitlines()[0])}</div>')
        explanation = run.error.explain() if isinstance(run.error, EngineError) else None
        if explanation is not None and explanation.brief():
            parts.append(explanation._repr_html_())
    if run.alert:
        parts.append(f'<div class="ml-bad">{markup.escape(run.alert)}</div>')
    if uncertainty := run.uncertainty:
        parts.append(f"<div><b>{markup.escape(uncertainty)}</b></div>")
    parts += [figure, results_table(run.results)._repr_html_()]  # the status shows the progress already
    return markup.card(f"Run {run.run_id} · {run.where}", status, *parts)
