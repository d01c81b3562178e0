"""Which rank comes late: in a synchronising collective all ranks leave together, so it shows the smallest time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from meshlab.frames.schema import STEP, require_columns, told_steps
from meshlab.frames.statistics import spike_limit

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["find_spikes", "find_stragglers"]


_MOSTLY = 0.5


def find_stragglers(samples: pd.DataFrame, results: pd.DataFrame) -> pd.DataFrame:
    """Say of every rank how late it comes, where starts were aligned (isolated mode, ranks on one host).

    A rank's lateness in a batch is its start minus the median start of the other ranks of its group; for a function of
    the user's own, "start" is its first collective. How exact this can be is the floor: the largest of

    - three times how far the starts of the earlier half of the ranks are apart, the median over batches,
    - for a collective, the time of the group's fastest collective in isolated mode, because ranks leave a barrier as
      far apart as a small collective takes; it is that of the rank that waits least,
    - for a function, twice the measured alignment of its beginnings.

    A rank is a straggler when it comes last in more than half of the batches, and its median lateness is above the
    floor. That is lateness, not slowness: the late rank waits for nobody, so among the times it has the *smallest*.

    Parameters
    ----------
    samples, results : pandas.DataFrame
        The frames of a run.

    Returns
    -------
    pandas.DataFrame
        One row per step, group and rank with aligned starts, the latest first: what was measured, ``rank``,
        ``late_us``, ``floor_us``, ``last_share`` (of batches in which it came last), ``time_us`` (its own median),
        ``shortest_share`` (of batches in which it had the smallest time) and ``is_straggler``.

    Examples
    --------
    >>> from meshlab.frames.schema import empty_results, empty_samples
    >>> len(find_stragglers(empty_samples(), empty_results()))
    0
    """
    import pandas as pd

    require_columns(samples, [*STEP, "rank", "batch", "time_us", "start_offset_us", "is_warmup"], "samples")
    require_columns(results, [*STEP, "size_bytes", "alignment_us"])
    rows: list[dict[str, Any]] = []
    alignment = results.set_index(list(STEP))["alignment_us"]
    used = samples[~samples["is_warmup"].fillna(value=False).astype(bool) & samples["start_offset_us"].notna()]
    functions = set(results.loc[results["size_bytes"].isna(), "step"].dropna())
    fastest = _fastest(used[~used["step"].isin(functions)])
    for key, part in used.groupby(list(STEP), sort=False, dropna=False):
        starts = part.pivot(index="batch", columns="rank", values="start_offset_us")
        times = part.pivot(index="batch", columns="rank", values="time_us").to_numpy()
        ranks, offsets = starts.columns.to_numpy(), starts.to_numpy()
        if len(ranks) < 2:
            continue
        step: dict[str, Any] = dict(zip(STEP, key, strict=True))
        earlier = np.sort(offsets, axis=1)[:, : (len(ranks) + 1) // 2]
        apart = 3 * float(np.median(np.ptp(earlier, axis=1)))
        floor = 2 * alignment.get(key, np.nan) if step["step"] in functions else fastest.get(str(step["group"]), 0.0)
        for place, rank in enumerate(ranks):
            others = np.delete(offsets, place, axis=1)
            late = float(np.median(offsets[:, place] - np.median(others, axis=1)))
            last = float((offsets.argmax(axis=1) == place).mean())
            limit = float(np.fmax(floor, apart))
            rows.append(
                step
                | {
                    "rank": int(rank),
                    "late_us": late,
                    "floor_us": limit,
                    "last_share": last,
                    "time_us": float(np.median(times[:, place])),
                    "shortest_share": float((times.argmin(axis=1) == place).mean()),
                    "is_straggler": bool(last > _MOSTLY and late > limit),
                }
            )
    names = ["rank", "late_us", "floor_us", "last_share", "time_us", "shortest_share", "is_straggler"]
    frame = told_steps(pd.DataFrame(rows, columns=[*STEP, *names]), results)
    return frame.sort_values("late_us", ascending=False, kind="stable", ignore_index=True)


def _fastest(samples: pd.DataFrame) -> dict[str, float]:
    """The time of each group's fastest collective on the rank that waits least, in µs."""
    waiting_least = samples.groupby([*STEP, "batch"])["time_us"].min()
    best = waiting_least.groupby(list(STEP)).median().groupby("group").min()
    return {str(group): float(time) for group, time in best.items()}


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
