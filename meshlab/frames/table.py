"""Results as plain text, for terminals and for those who listen to them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from meshlab import markup
from meshlab.frames.labels import PAIRS_OF, say_axes
from meshlab.units import format_bandwidth, format_seconds, format_size, format_time_us

if TYPE_CHECKING:
    import pandas as pd

    from meshlab.benchmark.run import Run

__all__ = ["PICTURE", "results_text", "run_card"]


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


PICTURE = "<!-- picture -->"
"""Where a picture goes: frames know nothing of plots, so whoever draws one puts it here."""


def run_card(run: Run) -> str:
    """Write a run as HTML that is good without JavaScript."""
    now = run.progress
    times = f"{format_seconds(now.elapsed_s)} elapsed"
    if run.state == "running":
        times += f", about {format_seconds(now.left_s)} left"
    says = f"{run.state} · {now.done} of {now.total} steps · {times}"
    parts = [markup.bar(now.done / max(now.total, 1), says)]
    if now.step:
        parts.append(f"<div>{markup.escape(now.step)}</div>")
    if run.error is not None:
        parts.append(f'<div class="ml-bad">{markup.escape(str(run.error).splitlines()[0])}</div>')
    if run.alert:
        parts.append(f'<div class="ml-bad">{markup.escape(run.alert)}</div>')
    parts += [PICTURE, _results_table(run.results)]
    return markup.card(f"Run {run.run_id} · {run.where}", says, *parts)


def _results_table(results: pd.DataFrame) -> str:
    names = ["collective", "axis", "group", "size_bytes", "time_us", "algbw_gbs", "busbw_gbs", "n_wrong", "status"]
    shown = results[names].copy()
    shown["n_wrong"] = shown["n_wrong"].astype(object).where(shown["n_wrong"].notna(), "–")
    shown["size_bytes"] = shown["size_bytes"].astype(object).where(shown["size_bytes"].notna(), None)
    for name, write in (
        ("size_bytes", lambda size: "–" if size is None else format_size(size)),
        ("time_us", format_time_us),
        ("algbw_gbs", format_bandwidth),
        ("busbw_gbs", format_bandwidth),
    ):
        shown[name] = shown[name].map(write)
    rows = shown.to_numpy().tolist()
    header = ["collective", "axis", "group", "size", "time", "algbw", "busbw", "wrong", "status"]
    return markup.table(header, rows, most=20)
