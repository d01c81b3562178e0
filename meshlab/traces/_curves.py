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
_PUBLISHED = ("curve", "system", "nodes", "in_place", "verdict", "source")
_AGREEMENT = 1.4  # published runs agree at a size if their times differ by at most this factor
_MOST_SOURCES = 3
_HINT = "pass a run, its folder, a calibration, a prediction, or a table with " + ", ".join(_NEEDED)


def curve_rows(machine: Any) -> pd.DataFrame:
    """Return the measured, predicted or published times of a machine, with the axis and the source if there are any."""
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
    if set(_PUBLISHED) <= set(rows.columns):
        return _published_medians(rows)
    axis = rows["axis"] if "axis" in rows.columns else None
    rows = rows.assign(axis=None if axis is None else axis.astype(object).where(axis.notna(), None))
    # The slowest group of a step counts, as in the results of an axis.
    medians: pd.DataFrame = rows.groupby(["axis", *_NEEDED[:3]], dropna=False, as_index=False)["time_us"].median()
    return medians.assign(source=None)


def _published_medians(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the medians of published runs on the fewest hosts, at the sizes at which the runs agree."""
    import pandas as pd

    rows = rows[rows["verdict"].ne("slow").fillna(value=True)]
    parts: list[pd.DataFrame] = []
    for (collective, n_ranks), of_group in rows.groupby(["collective", "n_ranks"], sort=False):
        part = of_group[of_group["nodes"].eq(of_group["nodes"].min())]
        # Out of place where a run has both, because `in_place` is sorted first.
        part = part.sort_values(["size_bytes", "in_place"]).drop_duplicates(["curve", "size_bytes"])
        part = part[part.groupby("curve")["size_bytes"].transform("size") > 1]  # a point is not a curve
        if part.empty:
            continue
        sizes = np.unique(part["size_bytes"].to_numpy(dtype=np.float64))
        lines = [
            expected_times(sizes, run["size_bytes"].to_numpy("float64"), run["time_us"].to_numpy("float64"))
            for _, run in part.groupby("curve", sort=False)
        ]
        low, high = np.nanmin(lines, axis=0), np.nanmax(lines, axis=0)
        times = np.where(high <= _AGREEMENT * low, np.nanmedian(lines, axis=0), np.nan)
        table = pd.DataFrame({"size_bytes": sizes, "time_us": times})
        names = dict.fromkeys(f"{run.system} ({run.source})" for run in part.itertuples())
        key: dict[str, Any] = {"axis": None, "collective": collective, "n_ranks": n_ranks, "source": "; ".join(names)}
        parts.append(table.assign(**key))
    if not parts:
        raise BenchError("the published runs have no curve", hint="pass more rows of ml.analysis.published()")
    return pd.concat(parts, ignore_index=True)


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

    def source(self, collective: str, n_ranks: int) -> str | None:
        """Return whose times these are, None for those of the machine itself."""
        rows = self.rows[self.rows["collective"].eq(collective) & self.rows["n_ranks"].eq(n_ranks)]
        return next(iter(rows["source"]), None)


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
    sources = np.full(len(calls), None, dtype=object)
    n_compared = 0
    keys = calls[["axis", "collective", "n_ranks"]]
    kinds = keys.groupby(list(keys.columns), sort=False, dropna=False).ngroup().to_numpy()
    for number, (axis, collective, n_ranks) in enumerate(keys.drop_duplicates().itertuples(index=False, name=None)):
        rows = np.flatnonzero(number == kinds)
        line = curves.times(axis if isinstance(axis, str) else None, str(collective), int(n_ranks))
        n_compared += len(line[0])
        expected[rows] = expected_times(sizes[rows], *line)
        sources[rows] = curves.source(str(collective), int(n_ranks))
    if len(calls) and not n_compared:
        missing = calls[["collective", "n_ranks"]].drop_duplicates().itertuples(index=False)
        texts = [f"{collective} of {n} ranks" for collective, n in list(missing)[:3]]
        raise BenchError(f"the machine has no times of {', '.join(texts)}", hint="measure the groups of the trace")
    transfer = calls["transfer_us"].to_numpy(dtype="float64")
    share = expected / transfer
    sources[np.isnan(expected)] = None
    return calls.assign(
        expected_us=expected,
        expected_gbs=calls["busbw_gbs"] / share,
        share=share,
        is_slow=(share < _SLOW) & (transfer - expected > error_us),
        source=sources,
    )


def slow_calls_text(calls: pd.DataFrame) -> list[str]:
    """Return a sentence about all calls, and one about those that fall off the curve."""
    compared = calls[calls["share"].notna()]
    if compared.empty:
        return ["No call is within the sizes of the curves."]
    whole = float(compared["expected_us"].sum() / compared["transfer_us"].sum())
    names = list(dict.fromkeys(name for text in compared["source"].dropna().unique() for name in text.split("; ")))
    curve = "published curves" if names else "the machine's curve"
    more = f" and {len(names) - _MOST_SOURCES} more" if len(names) > _MOST_SOURCES else ""
    of_others = f": {'; '.join(names[:_MOST_SOURCES])}{more}" if names else ""
    lines = [
        f"The transfers reach {100 * whole:.0f} % of {curve} ({len(compared):,} of {len(calls):,} calls){of_others}."
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
