"""From what the ranks measured in one step to rows of `samples` and `results`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from meshlab.benchmark.frame import RESULTS, SAMPLES, bandwidth, conform, empty_results, empty_samples
from meshlab.benchmark.statistics import summarise
from meshlab.benchmark.timing import Measured
from meshlab.mesh import Groups

if TYPE_CHECKING:
    import pandas as pd

    from meshlab.benchmark.plan import Step

__all__ = ["results_frame", "rows_of_failed_step", "rows_of_step", "samples_frame", "samples_of_step"]

Row = dict[str, Any]
Columns = dict[str, Any]


def rows_of_step(step: Step, groups: Groups, measured: Mapping[int, Measured], *, same_host: bool) -> list[Row]:
    """One results row per group.

    Parameters
    ----------
    step : Step
        What was measured.
    groups : Groups
        The groups it was measured on.
    measured : mapping of int to Measured
        By global rank.
    same_host : bool
        Whether the ranks' clocks can be compared.

    Returns
    -------
    list of dict
        Columns of the results that this step knows.
    """
    rows = []
    for group in groups:
        parts = [measured[rank] for rank in group]
        used = ~parts[0].is_warmup
        times = np.stack([part.time_us for part in parts])[:, used]
        summary = summarise(times.max(axis=0))
        wrong = [part.n_wrong for part in parts]
        n_wrong = None if None in wrong else sum(count or 0 for count in wrong)
        rows.append(
            _fixed_columns(step, group.name)
            | {
                "n_samples": summary.n,
                "calls": parts[0].calls,
                "time_us": summary.median,
                "time_us_lo": summary.lo,
                "time_us_hi": summary.hi,
                "p95_us": summary.p95,
                "p99_us": summary.p99,
                "min_us": summary.least,
                "max_us": summary.most,
                "skew_us": float(np.median(np.ptp(times, axis=0))),
                "alignment_us": _alignment_us(parts, used) if same_host else math.nan,
                "n_wrong": n_wrong,
                "status": "wrong" if n_wrong else "ok",
                "stop_reason": parts[0].stop_reason,
            }
        )
    return rows


def rows_of_failed_step(step: Step, groups: Groups, status: str, reason: str) -> list[Row]:
    """One results row per group of a step that gave no times."""
    return [_fixed_columns(step, name) | {"status": status, "stop_reason": reason} for name in groups.names]


def _fixed_columns(step: Step, group: str) -> Row:
    return {
        "step": step.index,
        "collective": step.collective,
        "op": step.op,
        "dtype": step.dtype,
        "root": step.root,
        "in_place": step.in_place,
        "mode": step.mode,
        "axis": step.axis,
        "group": group,
        "n_ranks": step.n_ranks,
        "count": step.count,
        "size_bytes": step.size_bytes,
    }


def _alignment_us(parts: Sequence[Measured], used: Any) -> float:
    starts = [part.start_us for part in parts if part.start_us is not None]
    if len(starts) < len(parts):
        return math.nan
    return float(np.median(np.ptp(np.stack(starts)[:, used], axis=0)))


def samples_of_step(step: Step, groups: Groups, measured: Mapping[int, Measured], *, same_host: bool) -> list[Columns]:
    """The samples of one step, as columns per rank."""
    columns = []
    for group in groups:
        starts = [measured[rank].start_us for rank in group]
        first = None if not same_host or any(start is None for start in starts) else np.min(np.stack(starts), axis=0)  # type: ignore[arg-type]
        for rank, start in zip(group, starts, strict=True):
            part = measured[rank]
            n = len(part.time_us)
            columns.append(
                {
                    "step": np.full(n, step.index),
                    "axis": np.full(n, step.axis, dtype=object),
                    "group": np.full(n, group.name, dtype=object),
                    "rank": np.full(n, rank),
                    "batch": np.arange(n),
                    "calls": np.full(n, part.calls),
                    "time_us": part.time_us,
                    "host_us": part.host_us,
                    "start_offset_us": np.full(n, np.nan) if first is None or start is None else start - first,
                    "is_warmup": part.is_warmup,
                    "status": np.full(n, "wrong" if part.n_wrong else "ok", dtype=object),
                }
            )
    return columns


def results_frame(rows: Sequence[Row], *, fixed: Mapping[str, Any], attrs: Mapping[str, Any]) -> pd.DataFrame:
    """The results frame of a run: its rows, the columns that are the same in all of them, and bandwidth."""
    import pandas as pd

    frame = pd.DataFrame([{**fixed, **row} for row in rows]) if rows else empty_results()
    frame = conform(frame, RESULTS)
    algbw, busbw = bandwidth(frame["collective"].tolist(), frame["size_bytes"], frame["n_ranks"], frame["time_us"])
    frame["algbw_gbs"], frame["busbw_gbs"] = algbw, busbw
    frame.attrs.update(attrs)
    return frame


def samples_frame(parts: Sequence[Columns], *, fixed: Mapping[str, Any], attrs: Mapping[str, Any]) -> pd.DataFrame:
    """The samples frame of a run."""
    import pandas as pd

    if not parts:
        frame = empty_samples()
    else:
        frame = conform(
            pd.DataFrame({name: np.concatenate([part[name] for part in parts]) for name in parts[0]}).assign(**fixed),
            SAMPLES,
        )
    frame.attrs.update(attrs)
    return frame
