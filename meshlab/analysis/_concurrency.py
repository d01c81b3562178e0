"""Contention and interference: groups or axes that run at the same time, compared with each in isolation.

The alternatives are measured in turns, in blocks of batches: together, alone, alone, together, and so on. A ratio is
computed for each pair of blocks that were measured one after the other, so a drift of the machine affects both.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from meshlab.base._errors import BenchError
from meshlab.comm._elements import find_dtype
from meshlab.frames._schema import CALL, STEP, is_plain, plain_key, shown_options
from meshlab.frames._statistics import FEWEST_FOR_INTERVAL, median_interval
from meshlab.mesh._traffic import ALIGNMENT_BYTES
from meshlab.plans._options import OPTIONS
from meshlab.runs._store import Frames, as_frames

if TYPE_CHECKING:
    import pandas as pd

_KEYS = ["run_id", "launch", *CALL, "axis", "group", "n_ranks", "count", "size_bytes"]


def contention(run: Any) -> pd.DataFrame:
    """Compare the groups of an axis that run at the same time with the same groups one at a time.

    Measure with ``grouping=["together", "alone"]``. The ratio is above 1 if the groups slow each other down, because
    they share a link, a switch or a core.

    Both alternatives are measured in eight blocks, in turns. The ratio is the median over the blocks of the ratio of
    their median times, and its bounds are the 95 % interval of that median, from order statistics. With up to nine
    blocks these are the smallest and the largest ratio of a block, so a ratio is clear if all blocks agree. If the two
    alternatives do not differ, eight blocks agree by chance in 0.8 % of the comparisons.

    Parameters
    ----------
    run : RunData, path, pair of DataFrames (results, samples), or a list of these
        A run with both groupings. A results frame alone has no blocks, so its ratios are never clear.

    Returns
    -------
    pandas.DataFrame
        One row per collective, size and group: ``axis``, ``alone_us`` and ``together_us`` (the median time of each in
        µs), their ``ratio``, its bounds ``ratio_lo`` and ``ratio_hi``, ``n_blocks`` (the number of pairs of blocks),
        ``is_clear`` (True if both bounds are on the same side of 1), and ``note`` (the reason why there are no bounds,
        or missing). Rows with wrong results are omitted.

    Raises
    ------
    BenchError
        If `run` has no results, or no groups with correct results both together and alone.

    Examples
    --------
    >>> import meshlab as ml
    >>> with ml.launch(4, backend="threads") as engines:
    ...     run = ml.bench(engines, "dp=2, tp=2", axis="tp", sizes="1K", grouping="together, alone")
    ...     results = run.wait()
    >>> ml.analysis.contention(run)[["axis", "group", "size_bytes", "n_blocks"]]
      axis group  size_bytes  n_blocks
    0   tp  tp_0        1024         8
    1   tp  tp_1        1024         8
    """
    frames = as_frames(run, needs_end=True)
    rows = contention_rows(frames)
    if rows.empty:
        results = frames.results
        alone = results["grouping"].eq("alone").fillna(value=False)
        raise _not_compared(
            results, [alone, is_plain(results)], "groups together and alone", "grouping='together, alone'"
        )
    return rows


def contention_rows(frames: Frames) -> pd.DataFrame:
    """Return the rows of `contention`, which may be none."""
    good = _correct_rows(frames)
    alone = good[good["grouping"].eq("alone").fillna(value=False)]
    matched = alone.merge(good[is_plain(good)], on=_KEYS, suffixes=("_alone", "_together"))
    return _ratios(matched, frames.samples, _KEYS, "alone", "together")


def interference(run: Any) -> pd.DataFrame:
    """Compare each collective with and without concurrent traffic on another axis.

    Measure with ``concurrent={"dp": "reduce_scatter"}``. The ratio is above 1 if the axes slow each other down. It and
    its bounds are computed as in `contention`.

    Parameters
    ----------
    run : RunData, path, pair of DataFrames (results, samples), or a list of these
        A run with a concurrent axis. A results frame alone has no blocks, so its ratios are never clear.

    Returns
    -------
    pandas.DataFrame
        The columns of `contention`, with ``concurrent_us`` instead of ``together_us``, and also ``concurrent_axis`` and
        ``concurrent_collective``.

    Raises
    ------
    BenchError
        If `run` has no results, or none with and without a concurrent axis that are correct.

    Examples
    --------
    >>> import meshlab as ml
    >>> with ml.launch(4, backend="threads") as engines:
    ...     run = ml.bench(engines, "dp=2, tp=2", axis="tp", sizes="1K", concurrent={"dp": "reduce_scatter"})
    ...     results = run.wait()
    >>> ml.analysis.interference(run)[["axis", "group", "concurrent_axis"]].head(2)
      axis group concurrent_axis
    0   tp  tp_0              dp
    1   tp  tp_1              dp
    """
    frames = as_frames(run, needs_end=True)
    rows = interference_rows(frames)
    if rows.empty:
        results = frames.results
        busy = results["concurrent_axis"].notna()
        what, argument = "axes at the same time and in isolation", "concurrent={'dp': 'reduce_scatter'}"
        raise _not_compared(results, [busy, is_plain(results)], what, argument)
    return rows


def interference_rows(frames: Frames) -> pd.DataFrame:
    """Return the rows of `interference`, which may be none."""
    good = _correct_rows(frames)
    busy = good[good["concurrent_axis"].notna()]
    matched = busy.merge(good[is_plain(good)], on=_KEYS, suffixes=("_concurrent", "_alone"))
    partner = ["concurrent_axis", "concurrent_collective"]
    matched = matched.rename(columns={f"{name}_concurrent": name for name in partner})
    return _ratios(matched, frames.samples, [*_KEYS, *partner], "alone", "concurrent")


def traffics(run: Any) -> pd.DataFrame:
    """Compare the traffics of ``all_to_all_v`` with the even one, or with the first one of the plan.

    Measure with ``traffic=["even", "zipf:1.2"]``. Calls with the same bytes per rank on average are compared, so the
    ratio is the cost of the imbalance. It and its bounds are computed as in `contention`.

    Parameters
    ----------
    run : RunData, path, pair of DataFrames (results, samples), or a list of these
        A run with several traffics. A results frame alone has no blocks, so its ratios are never clear.

    Returns
    -------
    pandas.DataFrame
        The columns of `contention`, with ``baseline_us`` and ``traffic_us`` instead of its times, and also ``traffic``,
        ``baseline`` (the traffic that it is compared with), ``imbalance`` and ``size_bytes`` (of the traffic).

    Raises
    ------
    BenchError
        If `run` has no results, or no two traffics of the same calls that are correct.

    Examples
    --------
    >>> import meshlab as ml
    >>> with ml.launch(4, backend="threads") as engines:
    ...     run = ml.bench(engines, "ep=4", "all_to_all_v", sizes="64K", traffic="even, zipf:1.2", sampling="quick")
    ...     results = run.wait()
    >>> run.traffics()[["axis", "traffic", "baseline", "imbalance", "n_blocks"]].round(2)
      axis   traffic baseline  imbalance  n_blocks
    0   ep  zipf 1.2     even       2.11         8
    """
    frames = as_frames(run, needs_end=True)
    rows = traffic_rows(frames)
    if rows.empty:
        named = frames.results["traffic"].notna()
        raise _not_compared(frames.results, [named], "several traffics", "traffic='even, zipf:1.2'")
    return rows


def traffic_rows(frames: Frames) -> pd.DataFrame:
    """Return the rows of `traffics`, which may be none."""
    good = _correct_rows(frames)
    good = good[good["traffic"].notna() & is_plain(good)]
    # Patterns are aligned, and equal chunks are not.
    unit = ALIGNMENT_BYTES // good["dtype"].map(lambda name: find_dtype(name).itemsize).astype("Int64")
    good = good.assign(count=good["count"] // unit * unit)
    names = good["traffic"].unique().tolist()
    baseline = "even" if "even" in names else names[0] if names else None
    is_baseline = good["traffic"] == baseline
    keys = [name for name in _KEYS if name not in ("traffic", "size_bytes")]
    uneven, even = good[~is_baseline], good[is_baseline]
    matched = uneven.merge(even, on=keys, suffixes=("_traffic", "_baseline"))
    front = ["traffic", "imbalance", "size_bytes"]
    matched = matched.rename(columns={f"{name}_traffic": name for name in front} | {"traffic_baseline": "baseline"})
    return _ratios(matched, frames.samples, [*keys, "baseline", *front], "baseline", "traffic")


def _not_compared(results: pd.DataFrame, alternatives: list[pd.Series[bool]], what: str, argument: str) -> BenchError:
    """Return the reason why there is nothing to compare. `alternatives` selects the rows of each alternative."""
    if not all(rows.any() for rows in alternatives):
        return BenchError(f"the run did not measure {what}", hint=f"measure with {argument}")
    bad = sorted({str(status) for rows in alternatives for status in results.loc[rows, "status"].dropna()} - {"ok"})
    reason = f"results are {' or '.join(bad)}" if bad else "no collective was measured in both ways"
    return BenchError(f"cannot compare {what}: {reason}", hint="the columns status and stop_reason have the reasons")


def _correct_rows(frames: Frames) -> pd.DataFrame:
    """Return the rows that have a time and no wrong elements."""
    return frames.results[frames.results["status"].eq("ok").fillna(value=False)]


def _ratios(matched: pd.DataFrame, samples: pd.DataFrame, keys: list[str], before: str, after: str) -> pd.DataFrame:
    """Return both times of each row, their ratio, and its bounds."""
    import pandas as pd

    front: list[str] = [name for name in ("axis", "concurrent_axis", "concurrent_collective") if name in keys]
    front += ["traffic", "baseline"] if "baseline" in keys else []
    hidden = {*front, "run_id", *(set(OPTIONS) - {*shown_options(matched)})}
    frame = matched[[*front, *(name for name in keys if name not in hidden)]].copy()
    frame.attrs = {}
    columns = {f"{before}_us": "float64", f"{after}_us": "float64", **_RATIO}
    blocks = block_medians(samples)
    ratios = []
    for row in matched.to_dict("records"):
        first, second = (
            blocks.get(
                (*plain_key(row[name] for name in ("run_id", "launch", f"step_{which}", "axis", "group")), None, None),
                {},
            )
            for which in (before, after)
        )
        pairs = np.log([(first[block], second[block]) for block in first if block in second]).reshape(-1, 2)
        log_ratios = pairs[:, 1] - pairs[:, 0]
        low, high = median_interval(log_ratios)
        if len(pairs):
            # The times of the pair of blocks with the median ratio, or the mean of two, so that the columns agree.
            middle = np.argsort(log_ratios)[(len(pairs) - 1) // 2 : len(pairs) // 2 + 1]
            times = np.exp(pairs[middle].mean(axis=0))
        else:
            times = np.array([row[f"time_us_{before}"], row[f"time_us_{after}"]])
        ratio = times[1] / times[0]
        note = None
        if samples.empty:
            note = "the samples are missing; pass the run instead of its results"
        elif not len(log_ratios):
            note = "the alternatives were not measured in turns, so a drift may explain the difference"
        elif len(log_ratios) < FEWEST_FOR_INTERVAL:
            n = len(log_ratios)
            note = (
                f"only {n} block{'s were' if n != 1 else ' was'} measured, but an interval needs {FEWEST_FOR_INTERVAL}"
            )
        ratios.append((*times, ratio, math.exp(low), math.exp(high), len(log_ratios), low > 0 or high < 0, note))
    return frame.join(pd.DataFrame(ratios, columns=list(columns), index=frame.index).astype(columns))


_RATIO = dict.fromkeys(("ratio", "ratio_lo", "ratio_hi"), "float64")
_RATIO |= {"n_blocks": "Int64", "is_clear": "bool", "note": "string"}


def block_medians(samples: pd.DataFrame) -> dict[tuple[Any, ...], dict[int, float]]:
    """Return the median time in µs of each block, by the columns of `STEP`."""
    timed = samples[samples["block"].notna() & ~samples["is_warmup"].fillna(value=False).astype(bool)]
    keys = list(STEP)
    slowest = timed.groupby([*keys, "block", "batch"], dropna=False)["time_us"].max()
    medians: dict[tuple[Any, ...], dict[int, float]] = {}
    by_block = slowest.groupby([*keys, "block"], dropna=False).median().reset_index()
    for *key, block, time_us in by_block.itertuples(index=False, name=None):
        medians.setdefault(plain_key(key), {})[int(block)] = float(time_us)
    return medians
