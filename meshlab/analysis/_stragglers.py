"""Stragglers and spikes: ranks that enter collectives late, and batches that take unusually long."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from meshlab.analysis._launches import student_p
from meshlab.base._collectives import COLLECTIVES
from meshlab.base._errors import BenchError
from meshlab.frames._schema import STEP, plain_key, with_step_columns
from meshlab.frames._statistics import LARGEST_NUMBER, find_modes, spike_limit
from meshlab.runs._store import as_frames

if TYPE_CHECKING:
    import pandas as pd

Floats = npt.NDArray[np.float64]

_MOSTLY = 0.5  # share of the batches in which a straggler is the last rank
_USUALLY = 2 / 3  # share of the batches in which a straggler is late by more than the floor
_LEAST_SHARE = 0.1  # of the time of a step, which the other ranks lose at most
_ORDINARY_SHARE = 0.75  # of the ranks of a group, which are assumed not to be stragglers
_ERROR_RATE = 0.01
_MOST_BLOCKS, _FEWEST_BLOCKS, _BATCHES_PER_BLOCK = 12, 6, 2

_SYNCHRONISING = frozenset(name for name, collective in COLLECTIVES.items() if collective.synchronises)

_N_SHARED = STEP.index("group")
"""The number of leading columns of a step's key that all of its groups share."""

_LOAD = ["group", "grouping", "concurrent_axis", "src_rank", "dst_rank", "is_one_way"]


def find_stragglers(run: Any, results: pd.DataFrame | None = None) -> pd.DataFrame:
    """Estimate how late each rank enters a collective. Needs aligned starts: isolated mode, all ranks on one host.

    The lateness of a rank in a batch is its start minus the median start of the other ranks of its group. The start of
    a function is its first collective. The errors of the ranks' clocks were removed from the starts, as far as the
    barriers between the batches showed them.

    Lateness below a floor is not significant, because starts are aligned by a barrier, and ranks leave a barrier at
    different times. The floor of a rank is the maximum of

    - for collectives, the time of the group's fastest collective in isolated mode, and twice the spread of the starts
      of the other ranks: the median over the batches of the distance between the first and the last of the earliest
      three quarters of them. In a group of two, it is the alignment of the group (``alignment_us``), so that neither of
      its ranks is a straggler,
    - for functions, twice the alignment of the ranks before the function (``alignment_us``), and the spread of the
      starts of the other ranks, or in the other groups of the step if that is larger,
    - ten percent of the time of the step.

    It is raised by the part of the lateness that the other ranks did not wait for, which is an error of a clock: in a
    collective, the time of a late rank is shorter than the time of the others by its lateness.

    A rank is a straggler if it is the last one in more than half of the batches, its lateness is above the floor in
    more than two thirds of them, and it is late throughout the step: the mean over up to 12 consecutive blocks of
    batches, of the median lateness in each block, is significantly above zero in a one-sided t-test. The p-values are
    corrected for the number of all ranks, groups and steps (S. Holm, 1979), so that the error rate of 1 % is that of
    the run.

    A straggler does not wait for other ranks, so its time per call is usually the *smallest* of its group.

    Parameters
    ----------
    run : RunData, path, pair of DataFrames (results, samples), or DataFrame
        A run or its folder, its two frames, or its samples if `results` is passed too.
    results : pandas.DataFrame, optional
        The results that belong to the samples in `run`.

    Returns
    -------
    pandas.DataFrame
        One row per step, group and rank with aligned starts, stragglers first, and then the latest ranks: the columns
        that describe the step,
        ``rank``, ``late_us`` and ``floor_us`` in µs, ``last_share`` (share of the batches in which the rank was the
        last), ``p_value`` (the probability of such a lateness by chance, corrected), ``time_us`` (its median time per
        call in µs), ``shortest_share`` (share of the batches in which it had the smallest time) and ``is_straggler``.

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
    timed = samples[~samples["is_warmup"].fillna(value=False).astype(bool) & samples["start_offset_us"].notna()]
    # A sender does not wait for the receiver, so its time is not a bound for messages in both directions.
    one_way = set(results.loc[results["collective"].isin(["send", "recv"]), "step"].dropna())
    timed = timed.assign(is_one_way=timed["step"].isin(one_way))
    functions = set(results.loc[results["size_bytes"].isna(), "step"].dropna())
    fastest = _fastest(timed[~timed["step"].isin(functions)])
    steps = {
        plain_key(key): _Step(str(collective), bool(pd.isna(size)), float(time_us), float(alignment_us))
        for *key, collective, size, time_us, alignment_us in results[
            [*STEP, "collective", "size_bytes", "time_us", "alignment_us"]
        ].itertuples(index=False, name=None)
    }
    parts = {
        plain_key(key): part
        for key, part in timed.groupby(list(STEP), sort=False, dropna=False)
        if len(part["rank"].unique()) > 1
    }
    # A batch that a rank lacks shows nothing: the sample of the last rank may be the one that is missing.
    starts = {key: by_batch(part, "start_offset_us").dropna() for key, part in parts.items()}
    starts = {key: frame for key, frame in starts.items() if len(frame)}
    spreads: dict[tuple[Any, ...], dict[Any, float]] = {}
    for key, frame in starts.items():
        spreads.setdefault(key[:_N_SHARED], {})[key] = _spread(frame.to_numpy())
    rows: list[dict[str, Any]] = []
    for key, complete in starts.items():
        part = parts[key]
        offsets = complete.to_numpy()
        times = by_batch(part, "time_us").loc[complete.index].to_numpy()
        step = steps.get(key, _Step())
        elsewhere = [spread for other, spread in spreads[key[:_N_SHARED]].items() if other != key]
        least = [_LEAST_SHARE * step.time_us]
        if step.is_function:
            least += [2 * step.alignment_us, float(np.median(elsewhere)) if elsewhere else 0.0]
        else:
            least.append(fastest.get(plain_key(part[_LOAD].iloc[0]), 0.0))
        for position, rank in enumerate(complete.columns):
            lateness = offsets[:, position] - np.median(np.delete(offsets, position, axis=1), axis=1)
            late = float(np.median(lateness))
            floor = _floor(step, offsets, position, least)
            if not step.is_function:  # the time of a function includes its computation, so it confirms nothing
                floor += max(0.0, late - _wait_for_rank(times, position, step.collective))
            rows.append(
                dict(zip(STEP, key, strict=True))
                | {
                    "rank": int(rank),
                    "late_us": late,
                    "floor_us": floor,
                    "last_share": float((offsets.argmax(axis=1) == position).mean()),
                    "p_value": _p_value(lateness),
                    "is_straggler": bool((lateness > floor).mean() > _USUALLY),
                    "time_us": float(np.median(times[:, position])),
                    "shortest_share": float((times.argmin(axis=1) == position).mean()),
                }
            )
    names = ["rank", "late_us", "floor_us", "last_share", "p_value", "time_us", "shortest_share", "is_straggler"]
    frame = pd.DataFrame(rows, columns=[*STEP, *names])
    frame["p_value"] = _holm(frame["p_value"].to_numpy(dtype=np.float64))
    is_last = frame["last_share"] > _MOSTLY
    frame["is_straggler"] = frame["is_straggler"].astype(bool) & is_last & (frame["p_value"] <= _ERROR_RATE)
    frame = with_step_columns(frame, results)
    return frame.sort_values(["is_straggler", "late_us"], ascending=False, kind="stable", ignore_index=True)


def by_batch(samples: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return a column of the samples of a step as a frame with a row per batch and a column per rank."""
    samples = samples[samples["batch"].notna() & samples["rank"].notna()]
    doubled = samples[samples.duplicated(["batch", "rank"])]
    if len(doubled):
        first = doubled.iloc[0]
        raise BenchError(
            f"the samples have batch {first['batch']} of rank {first['rank']} in step {first['step']} more than once",
            hint="pass the samples of one run, as they were measured",
        )
    values = samples[name].to_numpy("float64", na_value=math.nan)
    if (np.abs(values) > LARGEST_NUMBER).any():
        raise BenchError(
            f"the samples have {name} values that are not times, such as {np.nanmax(np.abs(values)):g}",
            hint="pass the samples of one run, as they were measured",
        )
    return samples.pivot(index="batch", columns="rank", values=name)


class _Step(NamedTuple):
    """A row of the results. Functions have no size. Times are in µs."""

    collective: str = ""
    is_function: bool = False
    time_us: float = math.nan
    alignment_us: float = math.nan


def _floor(step: _Step, offsets: Floats, position: int, least: Sequence[float]) -> float:
    """Return the maximum of `least` and the noise of the starts, in µs, from offsets of shape (batches, ranks)."""
    others = np.delete(offsets, position, axis=1)
    if step.is_function:
        noise = _spread(others)
    else:
        noise = 2 * _spread(others) if len(others[0]) > 1 else _spread(offsets)
    return float(np.fmax.reduce([*least, noise]))  # fmax ignores NaN


def _spread(offsets: Floats) -> float:
    """Return the typical distance of the starts of ranks that are not late, in µs, from offsets (batches, ranks)."""
    # The latest quarter is left out, so that stragglers do not raise the floor that they are compared with.
    n = math.ceil(_ORDINARY_SHARE * offsets.shape[1])
    return float(np.median(np.ptp(np.sort(offsets, axis=1)[:, :n], axis=1)))


def _wait_for_rank(times: Floats, position: int, collective: str) -> float:
    """Return how long the other ranks waited for one rank, in µs, from times of shape (batches, ranks)."""
    others = np.delete(times, position, axis=1)
    if collective in _SYNCHRONISING:
        return float(np.median(np.median(others, axis=1) - times[:, position]))
    # Only some ranks wait, for example the root of a reduce. None of them waits longer than its call takes.
    return float(np.median(others.max(axis=1)))


def _p_value(lateness: Floats) -> float:
    """Return the probability that a rank without a systematic delay is this late, or 1 if there are too few batches."""
    n = len(lateness)
    if n < _FEWEST_BLOCKS:
        return 1.0
    n_blocks = min(_MOST_BLOCKS, max(_FEWEST_BLOCKS, n // _BATCHES_PER_BLOCK))
    # Successive batches are not independent: a rank that lost its core is late in all of them until it gets it back.
    blocks = [float(np.median(part)) for part in np.array_split(lateness, n_blocks)]
    error = float(np.std(blocks, ddof=1)) / math.sqrt(n_blocks)
    mean = float(np.mean(blocks))
    if mean <= 0:
        return 1.0
    return student_p(mean / error, n_blocks - 1) / 2 if error else 0.0


def _holm(p_values: Floats) -> Floats:
    """Correct p-values for their number, so that the chance of any small one among them is the error rate."""
    order = np.argsort(p_values)
    factors = np.arange(len(p_values), 0, -1)
    corrected = np.empty_like(p_values)
    corrected[order] = np.minimum(np.maximum.accumulate(p_values[order] * factors), 1.0)
    return corrected


def _frames(run: Any, results: pd.DataFrame | None) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return results and samples. Without samples, an empty answer would look like a run without findings."""
    frames = as_frames(run, results, needs_end=True)
    if frames.samples.empty and frames.results["time_us"].notna().any():
        raise BenchError(
            "run has no samples, but the times of each rank are needed",
            hint="pass the run, its folder, or the pair (run.results, run.samples)",
        )
    return frames.results, frames.samples


def _fastest(samples: pd.DataFrame) -> dict[tuple[Any, ...], float]:
    """Return the time of each group's fastest collective, in µs, by the columns `_LOAD`."""
    # Barriers have a different exit skew when groups run alone, together, or next to another axis, and between the two
    # ranks of a near or of a distant pair, so do not mix these.
    # The time of a collective is that of the rank that waits least: other ranks' times contain the lateness of a rank.
    keys = list(dict.fromkeys([*STEP, *_LOAD]))
    least_waiting = samples.groupby([*keys, "batch"], dropna=False, as_index=False)["time_us"].min()
    medians = least_waiting.groupby(keys, dropna=False, as_index=False)["time_us"].median()
    best = medians.groupby(_LOAD, dropna=False, as_index=False)["time_us"].min()
    return {plain_key(key): float(time) for *key, time in best.itertuples(index=False, name=None)}


def find_spikes(run: Any, results: pd.DataFrame | None = None) -> pd.DataFrame:
    """Find the batches that took far longer than the others, for every row of the results.

    A batch is a spike if the time of its slowest rank exceeds the median of these times by more than five median
    absolute deviations, and by more than five percent. If the times have a fast and a slow level, these are the median
    and the deviation of the slow level: its batches are not spikes. Spikes are not removed from any statistics. Spikes
    at regular intervals are caused by something periodic, such as a daemon.

    Parameters
    ----------
    run, results
        As in `find_stragglers`.

    Returns
    -------
    pandas.DataFrame
        One row per row of the results that has times: the columns that describe the step, ``n_samples`` (number of
        batches), ``median_us`` (median time per call in µs), ``n_spikes``, ``spike_share`` (share of the total time
        that the spikes took), ``worst_us`` (the longest one in µs), ``worst_rank`` (the rank that was most often the
        slowest of a spike), ``batches`` (a tuple of the indices of the spikes), ``n_modes`` (2 if the times have two
        levels), and ``fast_us``, ``slow_us`` and ``slow_share`` (the median times of the two levels in µs, and the
        share of the batches of the slow one). The last three are missing if there is only one level.

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
    timed = samples[~samples["is_warmup"].fillna(value=False).astype(bool)]
    for key, part in timed.groupby(list(STEP), sort=False, dropna=False):
        times = by_batch(part, "time_us")
        slowest = times.max(axis=1).to_numpy()
        modes = find_modes(slowest)
        is_spike = slowest > spike_limit(slowest if modes is None else slowest[slowest > modes.limit])
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
                "n_modes": 1 if modes is None else 2,
                "fast_us": math.nan if modes is None else modes.fast,
                "slow_us": math.nan if modes is None else modes.slow,
                "slow_share": math.nan if modes is None else modes.slow_share,
            }
        )
    columns = [*STEP, "n_samples", "median_us", "n_spikes", "spike_share", "worst_us", "worst_rank", "batches"]
    columns += ["n_modes", "fast_us", "slow_us", "slow_share"]
    frame = with_step_columns(pd.DataFrame(rows, columns=columns), results)
    return frame.astype({"worst_rank": "Int64"})
