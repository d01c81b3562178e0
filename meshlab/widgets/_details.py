"""The tabs of a run that has ended: stragglers, pairs of ranks, contention and spikes, as texts and numbers."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from meshlab.analysis._concurrency import contention_rows, interference_rows
from meshlab.analysis._pairs import pair_matrix
from meshlab.analysis._stragglers import find_spikes, find_stragglers
from meshlab.base._errors import MeshlabError
from meshlab.base._units import SEPARATOR, format_size, format_time_us
from meshlab.frames._labels import pair_label
from meshlab.frames._schema import is_pair
from meshlab.plots._heatmaps import color_range, matrix_verdict, slow_cells
from meshlab.runs._store import as_frames

if TYPE_CHECKING:
    import pandas as pd

    from meshlab.runs._rundata import RunData

_MOST_ROWS = 12


def details_of(run: RunData) -> list[dict[str, Any]]:
    """Return the tabs of a run that has ended: a name, a label, a sentence, and a table or a matrix."""
    if not run.results["time_us"].notna().any():
        return []
    tabs = []
    for make in (_stragglers, _pairs, _contention, _interference, _spikes):
        with suppress(MeshlabError):  # the run has no such data
            tab = make(run)
            if tab:
                tabs.append(tab)
    return tabs


def _stragglers(run: RunData) -> dict[str, Any]:
    stragglers = find_stragglers(run)
    tab = {"name": "late", "label": "Stragglers"}
    if stragglers.empty:
        text = "Starts are not aligned, so lateness is unknown. Measure in isolated mode, with all ranks on one host."
        return {**tab, "text": text, "columns": [], "rows": []}
    worst = stragglers.iloc[0]
    n = stragglers.loc[stragglers["is_straggler"], "rank"].nunique()
    text = (
        f"Rank {worst['rank']} is a straggler: {format_time_us(worst['late_us'])} late in {_step(worst)}, last in "
        f"{100 * worst['last_share']:.0f} % of the batches"
        if n
        else f"No stragglers: rank {worst['rank']} is the latest, by {format_time_us(max(worst['late_us'], 0.0))} in "
        f"{_step(worst)}, but not consistently, or by less than the floor"
    )
    text += f"{SEPARATOR}and {n - 1} more" if n > 1 else ""
    rows = [
        [
            f"{'▲ ' if row['is_straggler'] else ''}{row['rank']}",
            _step(row),
            format_time_us(row["late_us"]),
            format_time_us(row["floor_us"]),
            f"{100 * row['last_share']:.0f} %",
        ]
        for _, row in stragglers.head(_MOST_ROWS).iterrows()
    ]
    return {**tab, "text": text, **_table(["rank", "step", "late", "floor", "last"], rows, len(stragglers), left=2)}


def _pairs(run: RunData) -> dict[str, Any] | None:
    results = run.results
    pairs = results[is_pair(results) & results["status"].eq("ok").fillna(value=False)]
    if pairs.empty:
        return None
    collectives = pairs["collective"].unique().tolist()
    collective = "send_recv" if "send_recv" in collectives else collectives[0]
    first = pairs[pairs["collective"] == collective].iloc[0]
    cells = pair_matrix(results, collective, axis=first["axis"], mode=first["mode"], dtype=first["dtype"])
    values = cells.to_numpy(dtype=np.float64)
    slow = slow_cells(values, is_time=False)
    low, high = color_range(values, is_time=False)
    size = format_size(cells.attrs["size_bytes"])
    direction = "both directions simultaneously" if collective == "send_recv" else "from the row to the column"
    return {
        "name": "pairs",
        "label": "Pairs",
        "text": matrix_verdict(cells, values, slow, is_time=False),
        "note": SEPARATOR.join([f"{collective} {size}", direction, str(first["mode"])]),
        "matrix": {
            "ranks": [int(rank) for rank in cells.index],
            "values": values.astype("<f4").tobytes(),
            "slow": [[int(i), int(j)] for i, j in np.argwhere(slow)],
            "low": low,
            "high": high,
            "unit": "GB/s",
        },
    }


def _contention(run: RunData) -> dict[str, Any] | None:
    return _ratios("contention", "Contention", contention_rows(as_frames(run)), "together", "one group at a time")


def _interference(run: RunData) -> dict[str, Any] | None:
    rows = interference_rows(as_frames(run))
    return _ratios("interference", "Interference", rows, "concurrent", "without the other axis")


def _ratios(name: str, label: str, rows: pd.DataFrame, with_: str, without: str) -> dict[str, Any] | None:
    if rows.empty:
        return None
    is_slower = rows["is_clear"].astype(bool) & (rows["ratio"] > 1)
    ordered = rows.assign(is_slower=is_slower).sort_values(["is_slower", "ratio"], ascending=False)
    worst, clear = rows.sort_values("ratio", ascending=False).iloc[0], ordered[ordered["is_slower"]]
    if len(clear):
        worst = clear.iloc[0]
        text = (
            f"{len(clear)} of {len(rows)} rows are clearly slower than {without}, {worst['group']} the most: "
            f"{worst['ratio']:.2f}× at {format_size(worst['size_bytes'])}"
        )
    else:
        text = f"No row is clearly slower than {without}; the largest ratio is {worst['ratio']:.2f}×"
    table = [
        [
            str(row["group"]),
            str(row["collective"]),
            format_size(row["size_bytes"]),
            format_time_us(row["alone_us"]),
            format_time_us(row[f"{with_}_us"]),
            f"{'▲ ' if row['is_slower'] else ''}{row['ratio']:.2f}×",
            f"{row['ratio_lo']:.2f}–{row['ratio_hi']:.2f}" if row["ratio_lo"] == row["ratio_lo"] else "–",
        ]
        for _, row in ordered.head(_MOST_ROWS).iterrows()
    ]
    columns = ["group", "collective", "size", "alone", with_, "ratio", "95 % interval"]
    return {"name": name, "label": label, "text": text, **_table(columns, table, len(rows), left=2)}


def _spikes(run: RunData) -> dict[str, Any]:
    steps = find_spikes(run)
    n, total = int(steps["n_spikes"].sum()), int(steps["n_samples"].sum())
    spiky = steps[steps["n_spikes"] > 0].sort_values("spike_share", ascending=False)
    text = f"No spikes in {total:,} batches"
    if len(spiky):
        worst = spiky.sort_values("worst_us", ascending=False).iloc[0]
        text = (
            f"{n:,} of {total:,} batches are spikes; the longest took {format_time_us(worst['worst_us'])} per call in "
            f"{_step(worst)}, where the median is {format_time_us(worst['median_us'])}"
        )
    rows = [
        [
            _step(row),
            f"{row['n_spikes']} of {row['n_samples']}",
            f"{100 * row['spike_share']:.0f} %",
            format_time_us(row["median_us"]),
            format_time_us(row["worst_us"]),
            str(row["worst_rank"]),
        ]
        for _, row in spiky.head(_MOST_ROWS).iterrows()
    ]
    columns = ["step", "spikes", "of the time", "median", "longest", "slowest rank"]
    return {"name": "spikes", "label": "Spikes", "text": text, **_table(columns, rows, len(spiky), left=1)}


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], n: int, *, left: int) -> dict[str, Any]:
    """Return a table, whose first `left` columns are texts."""
    more = f"and {n - len(rows):,} more" if n > len(rows) else ""
    return {"columns": list(columns), "rows": [list(row) for row in rows], "left": left, "more": more}


def _step(row: Any) -> str:
    """Return the collective, the group and the size of a row."""
    import pandas as pd

    where = str(row["group"])
    if not pd.isna(row["src_rank"]):
        where = pair_label(row["collective"], int(row["src_rank"]), int(row["dst_rank"]))
    size = "" if pd.isna(row["size_bytes"]) else format_size(row["size_bytes"])
    return " ".join(part for part in (str(row["collective"]), where, size) if part)
