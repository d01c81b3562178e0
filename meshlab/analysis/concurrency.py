"""Contention and interference: groups or axes that run at the same time, compared with each in isolation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from meshlab.frames.schema import is_plain
from meshlab.frames.store import as_results

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["contention", "interference"]

_SAME = [
    "run_id",
    "launch",
    "collective",
    "op",
    "dtype",
    "root",
    "in_place",
    "mode",
    "axis",
    "group",
    "n_ranks",
    "count",
    "size_bytes",
]


def contention(run: Any) -> pd.DataFrame:
    """Compare the groups of an axis that run at the same time with the same groups one at a time.

    Measure with ``grouping=["together", "alone"]``. The ratio is above 1 if the groups slow each other down, because
    they share a link, a switch or a core.

    Parameters
    ----------
    run : RunData, DataFrame, path, object with ``.results``, or a list of these
        Results with both groupings.

    Returns
    -------
    pandas.DataFrame
        One row per collective, size and group: ``axis``, ``alone_us`` and ``together_us`` in µs, their ``ratio``, its
        bounds ``ratio_lo`` and ``ratio_hi`` from the outer bounds of the two 95 % intervals, and ``is_clear`` (True if
        both bounds are on the same side of 1). Rows with wrong results are omitted.

    Raises
    ------
    BenchError
        If `run` has no results.

    Examples
    --------
    >>> import meshlab as ml
    >>> with ml.launch(4, backend="threads") as engines:
    ...     run = ml.bench(engines, "dp=2, tp=2", axis="tp", sizes="1K", grouping="together, alone")
    ...     results = run.wait()
    >>> ml.analysis.contention(run)[["axis", "group", "size_bytes"]]
      axis group  size_bytes
    0   tp  tp_0        1024
    1   tp  tp_1        1024
    """
    good = _good(run)
    alone = good[good["grouping"].eq("alone").fillna(value=False)]
    matched = alone.merge(good[is_plain(good)], on=_SAME, suffixes=("_alone", "_together"))
    return _ratios(matched, _SAME, "alone", "together")


def interference(run: Any) -> pd.DataFrame:
    """Compare each collective with and without concurrent traffic on another axis.

    Measure with ``concurrent={"dp": "reduce_scatter"}``. The ratio is above 1 if the axes slow each other down.

    Parameters
    ----------
    run : RunData, DataFrame, path, object with ``.results``, or a list of these
        Results with and without a concurrent axis.

    Returns
    -------
    pandas.DataFrame
        One row per collective, size and group: ``axis``, ``concurrent_axis`` and ``concurrent_collective``,
        ``alone_us`` and ``concurrent_us`` in µs, and ``ratio``, ``ratio_lo``, ``ratio_hi`` and ``is_clear`` as in
        `contention`.

    Raises
    ------
    BenchError
        If `run` has no results.

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
    good = _good(run)
    busy = good[good["concurrent_axis"].notna()]
    matched = busy.merge(good[is_plain(good)], on=_SAME, suffixes=("_concurrent", "_alone"))
    partner = ["concurrent_axis", "concurrent_collective"]
    matched = matched.rename(columns={f"{name}_concurrent": name for name in partner})
    return _ratios(matched, [*_SAME, *partner], "alone", "concurrent")


def _good(run: Any) -> pd.DataFrame:
    """Return the rows that have a time and no wrong elements."""
    results = as_results(run)
    return results[results["status"].eq("ok").fillna(value=False)]


def _ratios(matched: pd.DataFrame, keys: list[str], before: str, after: str) -> pd.DataFrame:
    """Return both times of each row, their ratio, and its bounds."""
    front = [name for name in ("axis", "concurrent_axis", "concurrent_collective") if name in keys]
    frame = matched[[*front, *(name for name in keys if name not in (*front, "run_id"))]].copy()
    frame.attrs = {}
    frame[f"{before}_us"], frame[f"{after}_us"] = matched[f"time_us_{before}"], matched[f"time_us_{after}"]
    frame["ratio"] = matched[f"time_us_{after}"] / matched[f"time_us_{before}"]
    # The outer bounds of two 95 % intervals are wider than a 95 % interval of the ratio: a clear ratio stays clear.
    frame["ratio_lo"] = matched[f"time_us_lo_{after}"] / matched[f"time_us_hi_{before}"]
    frame["ratio_hi"] = matched[f"time_us_hi_{after}"] / matched[f"time_us_lo_{before}"]
    frame["is_clear"] = (frame["ratio_lo"] > 1) | (frame["ratio_hi"] < 1)
    return frame
