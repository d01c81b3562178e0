"""Results as plain text, for terminals and for those who listen to them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from meshlab.frames.labels import PAIRS_OF, say_axes
from meshlab.units import format_size

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["results_text"]


def results_text(results: pd.DataFrame) -> str:
    """Write results as one table per axis: sizes down, collectives across, time and bus bandwidth in each cell.

    Several groups of an axis become one cell, that of the slowest. A cell that is wrong or missing says so.

    Parameters
    ----------
    results : pandas.DataFrame
        Columns as in `meshlab.benchmark.RESULTS`.

    Returns
    -------
    str
    """
    if results.empty:
        return "no results"
    tables = []
    where = results.attrs.get("where") or results["source"].iloc[0]
    keys = ["axis", "mode", "dtype", "op", "in_place"]
    results = say_axes(results)
    is_function = results["size_bytes"].isna()
    sized = results[~is_function]
    shown = sized.assign(op=sized["op"].fillna(sized["op"].dropna().iloc[0] if sized["op"].notna().any() else ""))
    for (axis, mode, dtype, op, in_place), rows in shown.groupby(keys, sort=False):
        place = ", in place" if in_place else ""
        element = f"{dtype}, {op}" if op else str(dtype)
        tables.append(f"{axis} · {_groups(rows)} · {where} · {mode} · {element}{place}\n{_table(rows)}")
    for (axis, mode), rows in results[is_function].groupby(["axis", "mode"], sort=False):
        lines = [f"{name}  {_time(part)}" for name, part in rows.groupby("collective", sort=False)]
        tables.append("\n".join([f"{axis} · {_groups(rows)} · {where} · {mode}", *lines]))
    return "\n\n".join(tables)


def _groups(rows: pd.DataFrame) -> str:
    n_groups, n_ranks = rows["group"].nunique(), rows["n_ranks"].iloc[0]
    if rows["axis"].iloc[0].startswith(PAIRS_OF):
        return f"{n_groups} pairs and directions, the slowest shown"
    return f"{n_groups} groups of {n_ranks}, the slowest shown" if n_groups > 1 else f"1 group of {n_ranks}"


def _table(rows: pd.DataFrame) -> str:
    collectives = list(dict.fromkeys(rows["collective"]))
    cells = {key: _cell(part) for key, part in rows.groupby(["size_bytes", "collective"], sort=False)}
    lines = [["size", *collectives], ["", *["µs      GB/s"] * len(collectives)]]
    lines += [
        [format_size(size), *(cells.get((size, name), "") for name in collectives)]
        for size in sorted(rows["size_bytes"].unique())
    ]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def _time(part: pd.DataFrame) -> str:
    bad = part[part["status"] != "ok"]
    return str(bad["status"].iloc[0]) if len(bad) else f"{_short(float(part['time_us'].max()))} µs"


def _cell(part: pd.DataFrame) -> str:
    bad = part[part["status"] != "ok"]
    if len(bad):
        return str(bad["status"].iloc[0])
    slowest = part.iloc[int(part["time_us"].to_numpy().argmax())]
    return f"{_short(slowest['time_us'])}  {_short(slowest['busbw_gbs']):>8}"


def _short(value: float) -> str:
    if value != value:
        return "–"
    # Three digits that count: a rate of 0.0004 GB/s is not nothing.
    digits = 0 if value == 0 else min(max(0, 2 - math.floor(math.log10(abs(value)))), 9)
    return f"{value:,.{digits}f}"
