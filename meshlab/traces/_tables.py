"""Tables of a trace: a row per call and rank, the time by axis, and unusual delays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from meshlab.traces._axes import Place
from meshlab.traces._joining import JoinedRanks
from meshlab.traces._matching import Matched
from meshlab.traces._overlap import hidden_time, longest_idle
from meshlab.traces._rank_trace import Column, Floats, Integers

if TYPE_CHECKING:
    import pandas as pd

GROUP = "_group"
"""The column with the index of the group in the job, until `with_places` replaces it by names."""

MOSTLY = 0.5  # share of the calls in which a rank that is named comes last
_ORDINARY, _UNUSUAL = 0.75, 2.0  # quantile of the gaps of a host, and the multiple of it that is unusual
_LEAST_GAP_US = 100.0
_EFFECTS = 0.25, 2.0  # lateness as a multiple of the gap: less if other ranks are late too, more if delays add up


def call_frame(job: JoinedRanks, matched: Matched) -> pd.DataFrame:
    """Return a row per call and rank, without axes, see `Trace.frame`."""
    import pandas as pd

    columns = job.columns
    exposed, hidden = _overlaps(job, matched)
    group = columns["group"]
    names = np.array([*(group.name for group in job.groups), None], dtype=object)
    descriptions = np.array([*(group.description or None for group in job.groups), None], dtype=object)
    ranks = np.empty(len(job.groups) + 1, dtype=object)
    ranks[:] = [*(group.ranks or None for group in job.groups), None]

    frame = pd.DataFrame(
        {
            "call": matched.call,
            "rank": _integers(job.rank),
            GROUP: group,
            "process_group": names[group],
            "description": descriptions[group],
            "group_ranks": ranks[group],
            "n_ranks": _integers(matched.n_ranks),
            "n_files": matched.n_files,
            "collective": columns["collective"],
            "size_bytes": _integers(np.nan_to_num(columns["size_bytes"], nan=-1.0).astype(np.int64)),
            "dtype": columns["dtype"],
            "sequence": _integers(columns["sequence"]),
            "step": _integers(columns["step"]),
            "start_us": matched.start_us,
            "duration_us": columns["duration_us"],
            "transfer_us": matched.transfer_us,
            "wait_us": matched.wait_us,
            "exposed_us": exposed,
            "hidden_us": hidden,
            "lateness_us": matched.lateness_us,
            "is_last": matched.is_last,
            "busbw_gbs": matched.busbw_gbs,
            "kernel": columns["kernel"],
        }
    )
    return frame.sort_values(["call", "rank"], kind="stable", ignore_index=True)


def _integers(values: Column) -> Any:
    """Return integers in which negative values are missing."""
    import pandas as pd

    integers = np.asarray(values, dtype=np.int64)
    return pd.arrays.IntegerArray(np.where(integers < 0, 0, integers), integers < 0)


def _overlaps(job: JoinedRanks, matched: Matched) -> tuple[Floats, Floats]:
    """Return the exposed and the hidden part of each transfer, or of each call whose wait is unknown."""
    # In the times of the file, because those of its kernels have the same clock.
    start, duration = job.columns["start_us"], job.columns["duration_us"]
    begin = start + np.nan_to_num(matched.wait_us)
    hidden = np.full(job.n_calls, np.nan)
    for number, trace in enumerate(job.ranks):
        rows = job.file == number
        hidden[rows] = hidden_time(begin[rows], start[rows] + duration[rows], trace.compute)
    return duration - np.nan_to_num(matched.wait_us) - hidden, hidden


def with_places(frame: pd.DataFrame, places: Sequence[Place]) -> pd.DataFrame:
    """Return the rows with the columns ``axis`` and ``group``."""
    numbers = frame[GROUP].to_numpy()
    frame = frame.drop(columns=GROUP)
    for position, name in enumerate(("axis", "group")):
        names = np.array([*(place[position] for place in places), None], dtype=object)
        frame.insert(2 + position, name, names[numbers])
    return frame


def axis_frame(frame: pd.DataFrame, error_us: float, *, steps: bool) -> pd.DataFrame:
    """Return the time by axis, and by step, of the rows of `call_frame` with places."""
    keys = ["axis", "step"] if steps else ["axis"]
    timed = frame.assign(_late=frame["is_last"] & (frame["lateness_us"] > error_us))
    rows = [
        dict(zip(keys, key, strict=True)) | _totals(part) for key, part in timed.groupby(keys, sort=False, dropna=False)
    ]
    return totals_frame(rows, keys)


def totals_frame(rows: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> pd.DataFrame:
    """Return totals by axis, and by step, in the order of their times."""
    import pandas as pd

    steps = "step" in keys
    table = pd.DataFrame(rows, columns=[*keys, *_TOTALS])
    for name in ("n_ranks", "late_rank", "late_calls", "counted_calls", *(["step"] if steps else [])):
        table[name] = table[name].astype("Int64")
    table["axis"] = table["axis"].astype(object).where(table["axis"].notna(), None)
    order = table["transfer_us"].fillna(0) + table["wait_us"].fillna(0) + table["duration_us"].fillna(0) * 1e-9
    table = table.assign(_order=order)
    if steps:
        total = table.groupby("axis", dropna=False)["_order"].transform("sum")
        table = table.assign(_total=total).sort_values(["_total", "step"], ascending=[False, True], kind="stable")
        return table.drop(columns=["_order", "_total"]).reset_index(drop=True)
    return table.sort_values("_order", ascending=False, kind="stable").drop(columns="_order").reset_index(drop=True)


_TOTALS = (
    *("n_ranks", "calls", "size_bytes", "duration_us", "transfer_us", "wait_us", "exposed_us", "hidden_us"),
    *("late_rank", "late_calls", "counted_calls", "late_us"),
)


def _totals(part: pd.DataFrame) -> dict[str, Any]:
    """Return the sums over the calls of an axis, for an average rank. Transfers are those of the last ranks."""
    n_files = part["rank"].nunique(dropna=False)
    last = part[part["is_last"]]
    is_split = len(last) > 0
    n_groups = max(1, last["process_group"].nunique(dropna=False))
    exposed = last if is_split else part
    divisor = n_groups if is_split else n_files
    counts = part[part["_late"]]["rank"].value_counts()
    late_rank = counts.index[0] if len(counts) else _missing()
    of_rank = part[part["rank"].eq(late_rank)] if len(counts) else part.iloc[:0]
    counted = int(of_rank["lateness_us"].notna().sum())
    is_named = bool(len(counts)) and counts.iloc[0] > MOSTLY * counted
    late = of_rank[of_rank["_late"]]["lateness_us"]
    return {
        "n_ranks": part["n_ranks"].max(),
        "calls": int(part["rank"].value_counts(dropna=False).max()),
        "size_bytes": _sum(part["size_bytes"]) / n_files,
        "duration_us": _sum(part["duration_us"]) / n_files,
        "transfer_us": _sum(last["transfer_us"]) / n_groups,
        "wait_us": _sum(part["wait_us"]) / n_files,
        "exposed_us": _sum(exposed["exposed_us"]) / divisor,
        "hidden_us": _sum(exposed["hidden_us"]) / divisor,
        "late_rank": late_rank if is_named else _missing(),
        "late_calls": int(counts.iloc[0]) if is_named else _missing(),
        "counted_calls": counted if is_named else _missing(),
        "late_us": float(late.median()) if is_named else np.nan,
    }


def _missing() -> Any:
    """Return the missing value of integers."""
    import pandas as pd

    return pd.NA


def _sum(values: pd.Series) -> float:
    """Return the sum of the values, NaN if all are missing."""
    numbers = values.to_numpy(dtype="float64", na_value=np.nan)
    return float(np.nansum(numbers)) if np.isfinite(numbers).any() else np.nan


def _gaps_of_others(call: Integers, gap: Floats, rows: Integers) -> Floats:
    """Return the median gap of the other ranks of the call of some rows. The program has a gap that all ranks have."""
    order = np.argsort(call, kind="stable")
    first, behind = (np.searchsorted(call[order], call[rows], side=side) for side in ("left", "right"))
    others = (order[begin:end] for begin, end in zip(first.tolist(), behind.tolist(), strict=True))
    return np.array([np.median(gap[part[part != row]]) for part, row in zip(others, rows.tolist(), strict=True)])


def delay_frame(job: JoinedRanks, matched: Matched) -> pd.DataFrame:
    """Return the calls before which the host of the last rank was idle for unusually long, see `Trace.delays`."""
    import pandas as pd

    launch = np.where(np.isnan(job.columns["launch_us"]), job.columns["start_us"], job.columns["launch_us"])
    gap = np.zeros(job.n_calls)
    threshold = np.full(job.n_calls, np.inf)
    for number, trace in enumerate(job.ranks):
        rows = np.flatnonzero((job.file == number) & np.isfinite(launch))
        rows = rows[np.argsort(launch[rows], kind="stable")]
        if len(rows) < 2 or not len(trace.idle):
            continue
        gaps = longest_idle(launch[rows[:-1]], launch[rows[1:]], trace.idle)
        gap[rows[1:]] = gaps
        threshold[rows] = max(_LEAST_GAP_US, _UNUSUAL * float(np.quantile(gaps, _ORDINARY)))
    error = np.nan_to_num(matched.end_spread_us)
    lateness = np.nan_to_num(matched.lateness_us, nan=-1.0)
    least, most = _EFFECTS
    is_late = matched.is_last & (lateness > error) & (least * gap < lateness) & (lateness < most * gap)
    rows = np.flatnonzero(is_late & (gap > threshold))
    rows = rows[gap[rows] > _UNUSUAL * _gaps_of_others(matched.call, gap, rows)]
    rows = rows[np.argsort(-gap[rows], kind="stable")]
    groups = job.groups
    return pd.DataFrame(
        {
            "call": matched.call[rows],
            "rank": job.rank[rows],
            "process_group": [groups[number].name for number in job.columns["group"][rows]],
            "collective": job.columns["collective"][rows],
            "step": _integers(job.columns["step"][rows]),
            "start_us": matched.start_us[rows],
            "lateness_us": matched.lateness_us[rows],
            "idle_us": gap[rows],
        }
    )
