"""Stragglers and spikes: ranks that enter collectives late, and batches that take unusually long."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from meshlab.errors import BenchError
from meshlab.frames.schema import STEP, with_step_columns
from meshlab.frames.statistics import spike_limit
from meshlab.frames.store import as_frames

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["find_spikes", "find_stragglers"]


_MOSTLY = 0.5  # share of the batches in which a straggler is the last rank

_LOAD = ["group", "grouping", "concurrent_axis", "src_rank", "dst_rank", "is_one_way"]


def find_stragglers(run: Any, results: pd.DataFrame | None = None) -> pd.DataFrame:
    """Estimate how late each rank enters a collective. Needs aligned starts: isolated mode, all ranks on one host.

    The lateness of a rank in a batch is its start minus the median start of the other ranks of its group. The start of
    a function is its first collective. Lateness below a floor is not significant. The floor is the maximum of

    - three times the distance of the starts among the earlier half of the ranks (the median over the batches),
    - for collectives, the time of the group's fastest collective in isolated mode, because the skew of a barrier's exit
      is as large as a small collective,
    - for functions, twice the alignment of their starts (``alignment_us``).

    A rank is a straggler if it is the last one in more than half of the batches, and its median lateness is above the
    floor. A straggler does not wait for other ranks, so its time per call is usually the *smallest* of its group.

    Parameters
    ----------
    run : RunData, path, pair of DataFrames (results, samples), or DataFrame
        A run or its folder, its two frames, or its samples if `results` is passed too.
    results : pandas.DataFrame, optional
        The results that belong to the samples in `run`.

    Returns
    -------
    pandas.DataFrame
        One row per step, group and rank with aligned starts, the latest first: the columns that describe the step,
        ``rank``, ``late_us`` and ``floor_us`` in µs, ``last_share`` (share of the batches in which the rank was the
        last), ``time_us`` (its median time per call in µs), ``shortest_share`` (share of the batches in which it had
        the smallest time) and ``is_straggler``.

    Raises
    ------
    BenchError
        If `run` has no results, or no samples.

    Examples
    --------
    >>> import meshlab as ml
    >>> with ml.launch(2, backend="threads") as engines:
    ...     run = ml.bench(engines, sizes="1K", mode="isolated")
    ...     results = run.wait()
    >>> sorted(ml.analysis.find_stragglers(run)["rank"].tolist())
    [0, 1]
    """
    import pandas as pd

    results, samples = _frames(run, results)
    rows: list[dict[str, Any]] = []
    used = samples[~samples["is_warmup"].fillna(value=False).astype(bool) & samples["start_offset_us"].notna()]
    functions = set(results.loc[results["size_bytes"].isna(), "step"].dropna())
    alignment = _by_step(results, "alignment_us")
    # A sender does not wait for the receiver, so its time is no bound for messages in both directions.
    one_way = set(results.loc[results["collective"].isin(["send", "recv"]), "step"].dropna())
    used = used.assign(is_one_way=used["step"].isin(one_way))
    fastest = _fastest(used[~used["step"].isin(functions)])
    for key, part in used.groupby(list(STEP), sort=False, dropna=False):
        starts = part.pivot(index="batch", columns="rank", values="start_offset_us")
        times = part.pivot(index="batch", columns="rank", values="time_us").to_numpy()
        ranks, offsets = starts.columns.to_numpy(), starts.to_numpy()
        if len(ranks) < 2:
            continue
        step: dict[str, Any] = dict(zip(STEP, key, strict=True))
        # Ordinary jitter is estimated from the earlier half of the ranks, which are not late, in every batch.
        earlier = np.sort(offsets, axis=1)[:, : (len(ranks) + 1) // 2]
        jitter = 3 * float(np.median(np.ptp(earlier, axis=1)))
        # The starts are aligned by a barrier, whose exit skew is unknown for a single batch. For collectives it is
        # bounded by the fastest one on the same group. A function computes before its first collective, so the
        # alignment of its starts was measured separately.
        if step["step"] in functions:
            skew = 2 * alignment.get(_plain_key(key), np.nan)
        else:
            skew = fastest.get(_plain_key(part[_LOAD].iloc[0]), 0.0)
        floor = float(np.fmax(skew, jitter))  # fmax ignores NaN
        for position, rank in enumerate(ranks):
            others = np.delete(offsets, position, axis=1)
            late = float(np.median(offsets[:, position] - np.median(others, axis=1)))
            last = float((offsets.argmax(axis=1) == position).mean())
            rows.append(
                step
                | {
                    "rank": int(rank),
                    "late_us": late,
                    "floor_us": floor,
                    "last_share": last,
                    "time_us": float(np.median(times[:, position])),
                    "shortest_share": float((times.argmin(axis=1) == position).mean()),
                    "is_straggler": bool(last > _MOSTLY and late > floor),
                }
            )
    names = ["rank", "late_us", "floor_us", "last_share", "time_us", "shortest_share", "is_straggler"]
    frame = with_step_columns(pd.DataFrame(rows, columns=[*STEP, *names]), results)
    return frame.sort_values("late_us", ascending=False, kind="stable", ignore_index=True)


def _frames(run: Any, results: pd.DataFrame | None) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return results and samples. Without samples, an empty answer would look like a run without findings."""
    frames = as_frames(run, results)
    if frames.samples.empty and frames.results["time_us"].notna().any():
        raise BenchError(
            "run has no samples, but the times of each rank are needed",
            hint="pass the run, its folder, or the pair (run.results, run.samples)",
        )
    return frames.results, frames.samples


def _by_step(frame: pd.DataFrame, column: str) -> dict[tuple[Any, ...], float]:
    """Map the key of each step to a value."""
    return {
        _plain_key(key): float(value)
        for *key, value in frame[[*STEP, column]].itertuples(index=False, name=None)
        if value == value  # not NaN
    }


def _plain_key(key: Iterable[Any]) -> tuple[Any, ...]:
    """Replace missing values by None, because NA and NaN are not equal to themselves and cannot be part of a key."""
    import pandas as pd

    return tuple(None if value is pd.NA or value != value else value for value in key)


def _fastest(samples: pd.DataFrame) -> dict[tuple[Any, ...], float]:
    """Return the time of each group's fastest collective, in µs, by the columns `_LOAD`."""
    # Barriers have a different exit skew when groups run alone, together, or next to another axis, and between the two
    # ranks of a near or of a distant pair, so do not mix these.
    # The time of a collective is that of the rank that waits least: other ranks' times contain the lateness of a rank.
    keys = list(dict.fromkeys([*STEP, *_LOAD]))
    least_waiting = samples.groupby([*keys, "batch"], dropna=False, as_index=False)["time_us"].min()
    medians = least_waiting.groupby(keys, dropna=False, as_index=False)["time_us"].median()
    best = medians.groupby(_LOAD, dropna=False, as_index=False)["time_us"].min()
    return {_plain_key(key): float(time) for *key, time in best.itertuples(index=False, name=None)}


def find_spikes(run: Any, results: pd.DataFrame | None = None) -> pd.DataFrame:
    """Find the batches that took far longer than the others, for every row of the results.

    A batch is a spike if the time of its slowest rank exceeds the median of these times by more than five median
    absolute deviations, and by more than five percent. Spikes are not removed from any statistics. Spikes at regular
    intervals are caused by something periodic, such as a daemon.

    Parameters
    ----------
    run : RunData, path, pair of DataFrames (results, samples), or DataFrame
        A run or its folder, its two frames, or its samples if `results` is passed too.
    results : pandas.DataFrame, optional
        The results that belong to the samples in `run`.

    Returns
    -------
    pandas.DataFrame
        One row per row of the results that has times: the columns that describe the step, ``n_samples`` (number of
        batches), ``median_us`` (median time per call in µs), ``n_spikes``, ``spike_share`` (share of the total time
        that the spikes took), ``worst_us`` (the longest one in µs), ``worst_rank`` (the rank that was most often the
        slowest of a spike), and ``batches`` (a tuple of the indices of the spikes).

    Raises
    ------
    BenchError
        If `run` has no results, or no samples.

    Examples
    --------
    >>> import meshlab as ml
    >>> with ml.launch(2, backend="threads") as engines:
    ...     run = ml.bench(engines, sizes="1K, 4K")
    ...     results = run.wait()
    >>> ml.analysis.find_spikes(run)["size_bytes"].tolist()
    [1024, 4096]
    """
    import pandas as pd

    results, samples = _frames(run, results)
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
