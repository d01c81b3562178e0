"""Batches that took far longer than the others: how many, how much of the time they took, and which they were."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from meshlab.frames.schema import STEP, require_columns, told_steps
from meshlab.frames.statistics import spike_limit

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["find_spikes"]


def find_spikes(samples: pd.DataFrame, results: pd.DataFrame) -> pd.DataFrame:
    """Count the spikes of every row of the results.

    A batch is a spike when its slowest rank took longer than the median and five times the median absolute deviation of
    these times (or five percent of the median, where they are more even than that). Spikes are part of all statistics.

    Parameters
    ----------
    samples, results : pandas.DataFrame
        The frames of a run.

    Returns
    -------
    pandas.DataFrame
        One row per row of the results that has times: what was measured, ``n_samples``, ``median_us``, ``n_spikes``,
        ``spike_share`` (of all the time that the batches took), ``worst_us``, ``worst_rank`` (the rank that was the
        slowest in most of them), and ``batches``, a tuple of their numbers. Spikes at regular distances come from
        something that runs at regular times.

    Examples
    --------
    >>> from meshlab.frames.schema import empty_results, empty_samples
    >>> len(find_spikes(empty_samples(), empty_results()))
    0
    """
    import pandas as pd

    require_columns(samples, [*STEP, "rank", "batch", "time_us", "start_offset_us", "is_warmup"], "samples")
    require_columns(results, [*STEP, "size_bytes", "alignment_us"])
    rows: list[dict[str, Any]] = []
    used = samples[~samples["is_warmup"].fillna(value=False).astype(bool)]
    for key, part in used.groupby(list(STEP), sort=False, dropna=False):
        times = part.pivot(index="batch", columns="rank", values="time_us")
        slowest = times.max(axis=1).to_numpy()
        is_spike = slowest > spike_limit(slowest)
        ranks = times.columns.to_numpy()[times.to_numpy()[is_spike].argmax(axis=1)] if is_spike.any() else []
        rows.append(
            dict(zip(STEP, key, strict=True))
            | {
                "n_samples": len(slowest),
                "median_us": float(np.median(slowest)),
                "n_spikes": int(is_spike.sum()),
                "spike_share": float(slowest[is_spike].sum() / slowest.sum()),
                "worst_us": float(slowest[is_spike].max()) if is_spike.any() else float("nan"),
                "worst_rank": int(pd.Series(ranks).mode().iloc[0]) if len(ranks) else None,
                "batches": tuple(times.index[is_spike].tolist()),
            }
        )
    columns = [*STEP, "n_samples", "median_us", "n_spikes", "spike_share", "worst_us", "worst_rank", "batches"]
    frame = told_steps(pd.DataFrame(rows, columns=columns), results)
    return frame.astype({"worst_rank": "Int64"})
