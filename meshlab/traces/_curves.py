"""Calls of a trace against the bandwidth curve of the same collective on a machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from meshlab.base._errors import BenchError
from meshlab.base._units import format_size
from meshlab.frames._labels import is_wrong
from meshlab.frames._schema import is_pair, is_plain, plain_key
from meshlab.runs._store import as_results
from meshlab.traces._rank_trace import Floats

if TYPE_CHECKING:
    import pandas as pd

_NEEDED = ("collective", "n_ranks", "size_bytes", "time_us")
_MOST_SENTENCES = 4
_SLOW = 0.8  # share of the expected bandwidth, below which a call falls off the curve
_HINT = "pass a run, its folder, a calibration, a prediction, or a table with " + ", ".join(_NEEDED)


def curve_rows(machine: Any) -> pd.DataFrame:
    """Return the measured or predicted times of a machine: the columns of `_NEEDED`, and ``axis`` if it has one."""
    rows = machine.frame() if hasattr(machine, "frame") and not hasattr(machine, "results") else machine
    if not _is_table(rows):
        rows = as_results(rows)
    if {"mode", "op", "status"} <= set(rows.columns):  # of a run
        rows = rows[is_plain(rows) & ~is_pair(rows) & ~is_wrong(rows)]
        modes = rows.loc[rows["time_us"].gt(0), "mode"].dropna().unique()
        if len(modes) > 1:
            raise BenchError(
                f"the results mix the modes {', '.join(modes)}",
                hint=f"choose one: results[results['mode'] == '{modes[0]}']",
            )
    rows = rows[rows["time_us"].gt(0) & rows["size_bytes"].gt(0)]
    if rows.empty:
        raise BenchError("the machine has no times of collectives", hint=_HINT)
    axis = rows["axis"] if "axis" in rows.columns else None
    rows = rows.assign(axis=None if axis is None else axis.astype(object).where(axis.notna(), None))
    # The slowest group of a step counts, as in the results of an axis.
    medians: pd.DataFrame = rows.groupby(["axis", *_NEEDED[:3]], dropna=False, as_index=False)["time_us"].median()
    return medians


def _is_table(rows: Any) -> bool:
    return set(_NEEDED) <= set(getattr(rows, "columns", ()))


class Curves:
    """Times by size, for each axis, collective and number of ranks."""

    def __init__(self, machine: Any) -> None:
        self.rows = curve_rows(machine)

    def times(self, axis: str | None, collective: str, n_ranks: int) -> tuple[Floats, Floats]:
        """Return sizes in bytes and times in µs, in the order of the sizes. Empty if the machine has none."""
        rows = self.rows
        rows = rows[rows["collective"].eq(collective) & rows["n_ranks"].eq(n_ranks)]
        of_axis = rows[rows["axis"].eq(axis)] if axis is not None else rows.iloc[:0]
        rows = of_axis if len(of_axis) else rows
        by_size = rows.groupby("size_bytes")["time_us"].median()
        return by_size.index.to_numpy(dtype=np.float64), by_size.to_numpy(dtype=np.float64)


def expected_times(sizes: Floats, curve_sizes: Floats, curve_times: Floats) -> Floats:
    """Return the times of a curve at some sizes, NaN outside of its sizes."""
    if not len(curve_sizes):
        return np.full(len(sizes), np.nan)
    logs = np.interp(np.log(sizes), np.log(curve_sizes), np.log(curve_times), left=np.nan, right=np.nan)
    return np.asarray(np.exp(logs))


def compare_with_curve(frame: pd.DataFrame, machine: Any, error_us: float) -> pd.DataFrame:
    """Return each call with the time that the curve of its collective has, see `Trace.against`."""
    curves = Curves(machine)
    names = ["call", "axis", "group", "collective", "n_ranks", "size_bytes", "step", "transfer_us", "busbw_gbs"]
    is_timed = frame["is_last"] & frame["size_bytes"].gt(0) & frame["transfer_us"].gt(0)
    calls = frame.loc[is_timed.fillna(value=False), names].reset_index(drop=True)
    expected = np.full(len(calls), np.nan)
    sizes = calls["size_bytes"].to_numpy(dtype="float64", na_value=np.nan)
    n_compared = 0
    keys = calls[["axis", "collective", "n_ranks"]]
    kinds = keys.groupby(list(keys.columns), sort=False, dropna=False).ngroup().to_numpy()
    for number, (axis, collective, n_ranks) in enumerate(keys.drop_duplicates().itertuples(index=False, name=None)):
        rows = np.flatnonzero(number == kinds)
        line = curves.times(axis if isinstance(axis, str) else None, str(collective), int(n_ranks))
        n_compared += len(line[0])
        expected[rows] = expected_times(sizes[rows], *line)
    if len(calls) and not n_compared:
        missing = calls[["collective", "n_ranks"]].drop_duplicates().itertuples(index=False)
        texts = [f"{collective} of {n} ranks" for collective, n in list(missing)[:3]]
        raise BenchError(f"the machine has no times of {', '.join(texts)}", hint="measure the groups of the trace")
    transfer = calls["transfer_us"].to_numpy(dtype="float64")
    share = expected / transfer
    return calls.assign(
        expected_us=expected,
        expected_gbs=calls["busbw_gbs"] / share,
        share=share,
        is_slow=(share < _SLOW) & (transfer - expected > error_us),
    )


def slow_calls_text(calls: pd.DataFrame) -> list[str]:
    """Return a sentence about all calls, and one about those that fall off the curve."""
    compared = calls[calls["share"].notna()]
    if compared.empty:
        return ["No call is within the sizes of the machine's curves."]
    whole = float(compared["expected_us"].sum() / compared["transfer_us"].sum())
    lines = [
        f"The transfers reach {100 * whole:.0f} % of the machine's curve ({len(compared):,} of {len(calls):,} calls)."
    ]
    slow = compared[compared["is_slow"]]
    groups = list(slow.groupby(["axis", "collective", "size_bytes"], dropna=False))
    for key, part in groups[:_MOST_SENTENCES]:
        axis, collective, size = plain_key(key)
        where = f" along {axis}" if isinstance(axis, str) else ""
        lines.append(
            f"{len(part):,} call{'s' * (len(part) != 1)} of {collective} {format_size(size)}{where} "
            f"fall{'s' * (len(part) == 1)} off the curve: {100 * float(part['share'].median()):.0f} % of its bandwidth."
        )
    return lines
