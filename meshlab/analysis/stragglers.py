"""Which rank comes late: in a synchronising collective all ranks leave together, so it shows the smallest time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from meshlab.frames.schema import STEP, with_step_columns
from meshlab.frames.statistics import spike_limit
from meshlab.frames.store import as_frames

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["find_spikes", "find_stragglers"]


_MOSTLY = 0.5


def find_stragglers(run: Any, results: pd.DataFrame | None = None) -> pd.DataFrame:
    """Estimate how late each rank enters a collective. Needs aligned starts: isolated mode, all ranks on one host.

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
    run : RunData, path, pair of DataFrames (results, samples), or DataFrame
        A run or its folder, its two frames, or its samples if `results` is passed too.
    results : pandas.DataFrame, optional
        The results that belong to the samples in `run`.

    Returns
    -------
    pandas.DataFrame
        One row per step, group and rank with aligned starts, the latest first: what was measured, ``rank``,
        ``late_us``, ``floor_us``, ``last_share`` (of batches in which it came last), ``time_us`` (its own median),
        ``shortest_share`` (of batches in which it had the smallest time) and ``is_straggler``.

    Examples
    --------
    >>> from meshlab.frames.schema import empty_results, empty_samples
    >>> len(find_stragglers((empty_results(), empty_samples())))
    0
    """
    import pandas as pd

    results, samples, _ = as_frames(run, results)
    rows: list[dict[str, Any]] = []
    used = samples[~samples["is_warmup"].fillna(value=False).astype(bool) & samples["start_offset_us"].notna()]
    functions = set(results.loc[results["size_bytes"].isna(), "step"].dropna())
    alignment = _by_step(results, "alignment_us")
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
        if step["step"] in functions:
            floor = 2 * alignment.get(_plain_key(key), np.nan)
        else:
            load = (str(part["grouping"].iloc[0]), str(part["concurrent_axis"].iloc[0]))
            floor = fastest.get((str(step["group"]), *load), 0.0)
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
    frame = with_step_columns(pd.DataFrame(rows, columns=[*STEP, *names]), results)
    return frame.sort_values("late_us", ascending=False, kind="stable", ignore_index=True)


def _by_step(frame: pd.DataFrame, column: str) -> dict[tuple[Any, ...], float]:
    """Map the key of each step to a value."""
    return {
        _plain_key(key): float(value)
        for *key, value in frame[[*STEP, column]].itertuples(index=False, name=None)
        if value == value
    }


def _plain_key(key: Iterable[Any]) -> tuple[Any, ...]:
    """Replace missing values by None: NA is equal to nothing, so it cannot be part of a key."""
    import pandas as pd

    return tuple(None if value is pd.NA or value != value else value for value in key)


def _fastest(samples: pd.DataFrame) -> dict[tuple[Any, ...], float]:
    """Return the time of each group's fastest collective on the rank that waits least, in µs, per kind of load."""
    # Groups that run alone, together, or next to another axis leave a barrier at different distances: do not mix them.
    load = ["grouping", "concurrent_axis"]
    waiting_least = samples.groupby([*STEP, *load, "batch"], dropna=False)["time_us"].min()
    best = waiting_least.groupby([*STEP, *load], dropna=False).median().groupby(["group", *load], dropna=False).min()
    keys = best.index.to_frame(index=False).astype(str).itertuples(index=False, name=None)
    return dict(zip(keys, best.to_numpy(dtype=float).tolist(), strict=True))


def find_spikes(run: Any, results: pd.DataFrame | None = None) -> pd.DataFrame:
    """Count the spikes of every row of the results.

    A batch is a spike when its slowest rank took longer than the median and five times the median absolute deviation of
    these times (or five percent of the median, where they are more even than that). Spikes are part of all statistics.

    Parameters
    ----------
    run : RunData, path, pair of DataFrames (results, samples), or DataFrame
        A run or its folder, its two frames, or its samples if `results` is passed too.
    results : pandas.DataFrame, optional
        The results that belong to the samples in `run`.

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
    >>> len(find_spikes((empty_results(), empty_samples())))
    0
    """
    import pandas as pd

    results, samples, _ = as_frames(run, results)
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
    frame = with_step_columns(pd.DataFrame(rows, columns=columns), results)
    return frame.astype({"worst_rank": "Int64"})
