"""Pairs of ranks: as a table that marks the slow ones, and as a matrix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from meshlab.base._errors import BenchError, did_you_mean
from meshlab.base._units import format_size
from meshlab.frames._labels import value_label
from meshlab.frames._schema import differing_options, shown_options
from meshlab.plans._options import OPTIONS
from meshlab.runs._store import as_results

if TYPE_CHECKING:
    import pandas as pd

SLOW = 0.8
"""Share of the median bandwidth below which a pair is slow."""

_KEYS = ["run_id", "launch", "collective", "dtype", "mode", "axis", "size_bytes"]


def pair_table(run: Any) -> pd.DataFrame:
    """List every pair of ranks that was measured.

    Parameters
    ----------
    run : RunData, DataFrame, path, object with ``.results``, or a list of these
        Results that were measured with ``grouping="pairs"``.

    Returns
    -------
    pandas.DataFrame
        One row per pair, direction, size and launch, the slowest first: ``src_rank`` and ``dst_rank`` (messages in both
        directions, the collective ``send_recv``, are one row), ``time_us``, ``busbw_gbs``, ``share`` (of the median
        bandwidth of the same messages) and ``is_slow`` (True if the share is below 0.8 and the interval of the time
        does not contain the median; missing if ranks share cores, which may explain any time).

    Raises
    ------
    BenchError
        If `run` has no results.

    Examples
    --------
    >>> import meshlab as ml
    >>> with ml.launch(3, backend="threads") as engines:
    ...     run = ml.bench_pairs(engines, sizes="1K")
    ...     results = run.wait()
    >>> ml.analysis.pair_table(run)["collective"].value_counts().to_dict()
    {'send': 6, 'send_recv': 3}
    """
    results = as_results(run, needs_end=True)
    rows = results[_is_pair(results)]
    keys = rows.groupby([*_KEYS, *OPTIONS], dropna=False)
    share = rows["busbw_gbs"] / keys["busbw_gbs"].transform("median")
    is_slow = (share < SLOW) & ~(rows["time_us_lo"] <= keys["time_us"].transform("median"))
    if results.attrs.get("oversubscribed"):
        is_slow = is_slow.astype("boolean").mask(is_slow.notna())
    frame = rows[[*_KEYS[1:], *shown_options(rows), "src_rank", "dst_rank", "time_us", "busbw_gbs"]].assign(
        share=share, is_slow=is_slow
    )
    frame.attrs = {}
    return frame.sort_values("share", kind="stable", ignore_index=True)


def _is_pair(results: pd.DataFrame) -> pd.Series[bool]:
    pairs = results["grouping"].eq("pairs") & results["status"].eq("ok") & results["src_rank"].notna()
    return pairs.fillna(value=False).astype(bool)


def pair_matrix(
    run: Any,
    collective: str = "send_recv",
    *,
    size_bytes: int | None = None,
    axis: str | None = None,
    mode: str | None = None,
    dtype: str | None = None,
    value: str = "busbw_gbs",
) -> pd.DataFrame:
    """Arrange the measured pairs as a matrix.

    Parameters
    ----------
    run : RunData, DataFrame, path, object with ``.results``, or a list of these
        Results that were measured with ``grouping="pairs"``.
    collective : {"send_recv", "send"}
        Messages in both directions at the same time, for a symmetric matrix, or messages from the rank of the row to
        the rank of the column.
    size_bytes : int, optional
        The message size. By default the largest.
    axis : str, optional
        The axis. By default the first that was measured.
    mode, dtype : str, optional
        The mode and the element type. Required if several were measured, because a matrix never mixes them.
    value : {"busbw_gbs", "algbw_gbs", "time_us"}
        The quantity in the cells, as the median over launches.

    Returns
    -------
    pandas.DataFrame
        One row and one column per rank. The diagonal and pairs that were not measured are missing. ``attrs`` contains
        the choices, and as ``within_noise`` the pairs whose interval contains the median of all pairs.

    Raises
    ------
    BenchError
        If no such pairs were measured.
        If they were measured in several modes or with several element types, and none is chosen.

    Examples
    --------
    >>> import meshlab as ml
    >>> import pandas as pd
    >>> pairs = pd.DataFrame({"src_rank": [0, 0, 1], "dst_rank": [1, 2, 2], "time_us": [5.0, 6.0, 20.0]})
    >>> pairs = pairs.assign(collective="send_recv", axis="world", grouping="pairs", status="ok", size_bytes=4096)
    >>> ml.analysis.pair_matrix(pairs.assign(mode="isolated", dtype="float32"), value="time_us")
    rank    0     1     2
    rank
    0     NaN   5.0   6.0
    1     5.0   NaN  20.0
    2     6.0  20.0   NaN
    """
    from pandas import DataFrame

    quantities = ("busbw_gbs", "algbw_gbs", "time_us")
    if value not in quantities:
        raise BenchError(
            f"unknown value {value!r}{did_you_mean(value, quantities)}; choose one of {', '.join(quantities)}"
        )
    results = as_results(run, needs_end=True)
    rows = _matrix_rows(results, collective, size_bytes, axis, {"mode": mode, "dtype": dtype})
    ends = rows[["src_rank", "dst_rank"]].to_numpy(dtype=int)
    ranks = np.unique(ends)
    cells = np.full((2, len(ranks), len(ranks)), np.nan)
    values = rows[value].groupby([ends[:, 0], ends[:, 1]]).median()
    senders, receivers = (np.searchsorted(ranks, values.index.get_level_values(level)) for level in (0, 1))
    cells[0, senders, receivers] = cells[1, receivers, senders] = values.to_numpy()
    matrix = DataFrame(cells[0] if collective == "send" else np.fmax(*cells), index=ranks, columns=ranks)
    matrix.index.name, matrix.columns.name = ("from", "to") if collective == "send" else ("rank", "rank")
    # Missing intervals explain nothing.
    medians = rows.groupby("launch", dropna=False)["time_us"].transform("median")
    is_noisy = (rows["time_us_lo"] <= medians) & (rows["time_us_hi"] >= medians)
    noisy = is_noisy.fillna(value=False).astype(bool).groupby([ends[:, 0], ends[:, 1]]).any()
    pairs = {(int(source), int(target)) for source, target in noisy.index[noisy]}
    if collective != "send":
        pairs |= {(target, source) for source, target in pairs}
    matrix.attrs = {
        **results.attrs,
        "within_noise": sorted(pairs),
        "value": value,
        "collective": collective,
        "size_bytes": int(rows["size_bytes"].iloc[0]),
        "axis": str(rows["axis"].iloc[0]),
        "mode": str(rows["mode"].iloc[0]),
        "dtype": str(rows["dtype"].iloc[0]),
    }
    return matrix


def _matrix_rows(
    results: pd.DataFrame, collective: str, size_bytes: int | None, axis: str | None, choices: Mapping[str, str | None]
) -> pd.DataFrame:
    """Return the rows of pairs for a matrix, or raise if there are none, or rows of several kinds."""
    rows = results[_is_pair(results) & results["collective"].eq(collective).fillna(value=False)]
    rows = rows[rows["axis"] == (rows["axis"].iloc[0] if axis is None and len(rows) else axis)]
    for name, choice in choices.items():
        rows = rows if choice is None else rows[rows[name] == choice]
    if len(rows):
        rows = rows[rows["size_bytes"] == (rows["size_bytes"].max() if size_bytes is None else size_bytes)]
    if not len(rows):
        kind = "".join(f" in {choice}" for choice in choices.values() if choice is not None)
        size = "" if size_bytes is None else f" of {format_size(size_bytes)}"
        raise BenchError(
            f"no pairs were measured with {collective}{size}{kind}; measure them with "
            f"bench(…, {collective!r}, grouping='pairs')"
        )
    for name in differing_options(rows):
        labels = [value_label(name, value) for value in rows[name].unique()]
        raise BenchError(
            f"the pairs were measured with {' and with '.join(labels)}",
            hint=f"pass the rows of one of them, such as results[results[{name!r}] == …]",
        )
    for name in choices:
        values = [str(value) for value in rows[name].dropna().unique()]
        if len(values) > 1:
            raise BenchError(
                f"the pairs were measured with several values of {name}: {', '.join(values)}; choose one, such as "
                f"{name}={values[0]!r}"
            )
    return rows
