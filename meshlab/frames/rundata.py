"""From what the ranks measured in one step to rows of `samples` and `results`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from meshlab.frames.schema import RESULTS, SAMPLES, bandwidth, conform, empty_results, empty_samples
from meshlab.frames.statistics import summarise
from meshlab.benchmark.on_ranks.timing import Measured

if TYPE_CHECKING:
    import pandas as pd

    from meshlab.benchmark.steps import Party, Step

__all__ = [
    "Columns",
    "Row",
    "columns_of_samples",
    "results_frame",
    "rows_of_results",
    "rows_of_step",
    "rows_without_times",
    "samples_frame",
    "samples_of_step",
]

Row = dict[str, Any]
Columns = dict[str, Any]


def rows_of_step(
    step: Step, parties: Sequence[Party], measured: Mapping[int, Measured], hosts: Sequence[str]
) -> list[Row]:
    """One results row per group or pair.

    Parameters
    ----------
    step : Step
        What was measured.
    parties : sequence of Party
        Who it was measured on.
    measured : mapping of int to Measured
        By global rank.
    hosts : sequence of str
        The host of every rank: only the clocks of one host can be compared.

    Returns
    -------
    list of dict
        Columns of the results that this step knows.
    """
    rows = []
    for name, ranks in parties:
        parts = [measured[rank] for rank in ranks]
        batches = [part.batches for part in parts]
        used = ~batches[0].is_warmup
        times = np.stack([one.time_us for one in batches])[:, used]
        summary = summarise(times.max(axis=0))
        wrong = [part.n_wrong for part in parts]
        n_wrong = None if None in wrong else sum(count or 0 for count in wrong)
        starts = _on_one_clock([one.start_us for one in batches], ranks, hosts)
        rows.append(
            _fixed_columns(step, name)
            | {
                "n_samples": summary.n,
                "calls": int(batches[0].calls[-1]),
                "time_us": summary.median,
                "time_us_lo": summary.lo,
                "time_us_hi": summary.hi,
                "p95_us": summary.p95,
                "p99_us": summary.p99,
                "min_us": summary.least,
                "max_us": summary.most,
                "skew_us": float(np.median(np.ptp(times, axis=0))),
                "alignment_us": math.nan if starts is None else float(np.median(np.ptp(starts[:, used], axis=0))),
                "n_wrong": n_wrong,
                "status": "wrong" if n_wrong else "ok",
                "stop_reason": batches[0].stop_reason,
            }
        )
    return rows


def rows_without_times(step: Step, parties: Sequence[Party], status: str, reason: str) -> list[Row]:
    """One results row per group or pair of a step that gave no times: failed, cancelled or skipped."""
    return [_fixed_columns(step, name) | {"status": status, "stop_reason": reason} for name, _ in parties]


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


def _on_one_clock(starts: Sequence[Any], ranks: Sequence[int], hosts: Sequence[str]) -> Any:
    """Starts of several ranks as one array, if they can be compared."""
    if any(start is None for start in starts) or len({hosts[rank] for rank in ranks}) > 1:
        return None
    return np.stack(starts)


def samples_of_step(
    step: Step, parties: Sequence[Party], measured: Mapping[int, Measured], hosts: Sequence[str]
) -> list[Columns]:
    """The samples of one step, as columns per rank.

    Parameters
    ----------
    step, parties, measured, hosts
        As in `rows_of_step`.
    """
    columns = []
    for name, ranks in parties:
        parts = [measured[rank] for rank in ranks]
        came = [part.batches.start_us if part.arrive_us is None else part.arrive_us for part in parts]
        starts = _on_one_clock(came, ranks, hosts)
        offsets = np.full((len(ranks), len(parts[0].batches.time_us)), np.nan) if starts is None else starts
        for rank, part, offset in zip(ranks, parts, offsets - offsets.min(axis=0), strict=True):
            batches = part.batches
            n = len(batches.time_us)
            columns.append(
                {
                    "step": np.full(n, step.index),
                    "axis": np.full(n, step.axis, dtype=object),
                    "group": np.full(n, name, dtype=object),
                    "rank": np.full(n, rank),
                    "batch": np.arange(n),
                    "calls": batches.calls,
                    "time_us": batches.time_us,
                    "host_us": batches.host_us,
                    "start_offset_us": offset,
                    "is_warmup": batches.is_warmup,
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


def rows_of_results(results: pd.DataFrame) -> list[Row]:
    """The rows of a results frame as `rows_of_step` gives them: the way back from a run that was read from disk."""
    known = results.astype(object).where(results.notna(), None)
    return [dict(zip(known.columns, values, strict=True)) for values in known.itertuples(index=False)]


def columns_of_samples(samples: pd.DataFrame) -> Columns:
    """The columns of a samples frame as `samples_of_step` gives them, with ``launch``."""
    kinds = {"Int64": np.int64, "float64": np.float64, "boolean": np.bool_, "string": object}
    return {
        column.name: samples[column.name].to_numpy(dtype=kinds[column.dtype])
        for column in SAMPLES
        if column.name != "run_id"
    }
