"""Pairs of ranks: as a table that names the slow ones, and as a matrix."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from meshlab.errors import BenchError
from meshlab.frames.schema import require_columns
from meshlab.units import format_size

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["SLOW", "pair_matrix", "pair_table"]

SLOW = 0.8
"""The share of the median bandwidth below which a pair is slow."""

_KEYS = ["launch", "collective", "dtype", "mode", "axis", "size_bytes"]
_NEEDED = [*_KEYS, "group", "status", "time_us", "time_us_lo", "busbw_gbs"]


def pair_table(results: pd.DataFrame) -> pd.DataFrame:
    """List every pair of ranks that was measured.

    Parameters
    ----------
    results : pandas.DataFrame
        Results of a run with ``groups="pairs"``.

    Returns
    -------
    pandas.DataFrame
        One row per pair, direction, size and launch, the slowest first: ``from_rank`` and ``to_rank`` (messages both
        ways, collective ``send_recv``, stand once), ``time_us``, ``busbw_gbs``, ``share`` (of the median bandwidth of
        the same messages) and ``is_slow``: whether that is below 0.8, and the interval of the time does not reach the
        median.

    Examples
    --------
    >>> from meshlab.frames.schema import empty_results
    >>> len(pair_table(empty_results()))
    0
    """
    require_columns(results, _NEEDED)
    is_pair = results["axis"].str.endswith(" pairs").fillna(value=False).astype(bool)
    rows = results[is_pair & (results["status"] == "ok")]
    ends = rows["group"].str.extract(r"(\d+)[→↔](\d+)").astype("Int64")
    keys = rows.groupby(_KEYS, dropna=False)
    share = rows["busbw_gbs"] / keys["busbw_gbs"].transform("median")
    frame = rows[_KEYS].assign(
        axis=rows["axis"].str.removesuffix(" pairs"),
        from_rank=ends[0],
        to_rank=ends[1],
        time_us=rows["time_us"],
        busbw_gbs=rows["busbw_gbs"],
        share=share,
        is_slow=(share < SLOW) & ~(rows["time_us_lo"] <= keys["time_us"].transform("median")),
    )
    frame.attrs = {}
    return frame.sort_values("share", kind="stable", ignore_index=True)


def pair_matrix(
    results: pd.DataFrame,
    collective: str = "send_recv",
    *,
    size_bytes: int | None = None,
    axis: str | None = None,
    mode: str | None = None,
    dtype: str | None = None,
    value: str = "busbw_gbs",
) -> pd.DataFrame:
    """Write the pairs as a matrix.

    Parameters
    ----------
    results : pandas.DataFrame
        Results of a run with ``groups="pairs"``.
    collective : {"send_recv", "send"}
        Messages both ways at once, where the matrix is symmetric, or one way, from the rank of the row to the rank of
        the column.
    size_bytes : int, optional
        Which size; the largest by default.
    axis : str, optional
        Along which axis; the first that was measured by default.
    mode, dtype : str, optional
        Which mode and element type; needed where several were measured, because a matrix never mixes them.
    value : {"busbw_gbs", "algbw_gbs", "time_us"}
        What stands in the cells: the median over launches.

    Returns
    -------
    pandas.DataFrame
        Ranks down and across, missing on the diagonal and where nothing was measured. ``attrs`` say what it shows.

    Raises
    ------
    BenchError
        If no such pairs were measured, or they were measured in several modes or with several element types.

    Examples
    --------
    >>> import pandas as pd
    >>> from meshlab.frames.schema import RESULTS, conform
    >>> row = {"collective": "send_recv", "axis": "world pairs", "mode": "isolated", "dtype": "float32", "status": "ok"}
    >>> rates = {"0↔1": 40.0, "0↔2": 39.0, "1↔2": 12.0}
    >>> rows = [{**row, "group": name, "size_bytes": 4096, "busbw_gbs": rate} for name, rate in rates.items()]
    >>> pair_matrix(conform(pd.DataFrame(rows), RESULTS))
    rank     0     1     2
    rank
    0      NaN  40.0  39.0
    1     40.0   NaN  12.0
    2     39.0  12.0   NaN
    """
    from pandas import DataFrame

    if value not in ("busbw_gbs", "algbw_gbs", "time_us"):
        raise BenchError(f"value={value!r} is nothing that pairs have; choose busbw_gbs, algbw_gbs or time_us")
    require_columns(results, [*_NEEDED, value])
    label = None if axis is None else f"{axis} pairs"
    rows = results[
        (results["status"] == "ok")
        & (results["collective"] == collective)
        & results["axis"].str.endswith(" pairs").fillna(value=False)
    ]
    rows = rows[rows["axis"] == (rows["axis"].iloc[0] if label is None and len(rows) else label)]
    for name, wanted in (("mode", mode), ("dtype", dtype)):
        rows = rows if wanted is None else rows[rows[name] == wanted]
    if len(rows):
        rows = rows[rows["size_bytes"] == (rows["size_bytes"].max() if size_bytes is None else size_bytes)]
    if not len(rows):
        told = "".join(f" in {wanted}" for wanted in (mode, dtype) if wanted is not None)
        size = "" if size_bytes is None else f" of {format_size(size_bytes)}"
        raise BenchError(
            f"no pairs with {collective}{size}{told} were measured; bench(…, {collective!r}, groups='pairs') does"
        )
    for name in ("mode", "dtype"):
        found = [str(one) for one in rows[name].dropna().unique()]
        if len(found) > 1:
            raise BenchError(
                f"these pairs have more than one {name}: {', '.join(found)}; choose one, such as {name}={found[0]!r}"
            )
    ends = rows["group"].str.extract(r"(\d+)[→↔](\d+)").astype(int).to_numpy()
    ranks = np.unique(ends)
    cells = np.full((2, len(ranks), len(ranks)), np.nan)
    values = rows[value].groupby([ends[:, 0], ends[:, 1]]).median()
    senders, receivers = (np.searchsorted(ranks, values.index.get_level_values(level)) for level in (0, 1))
    cells[0, senders, receivers] = cells[1, receivers, senders] = values.to_numpy()
    matrix = DataFrame(cells[0] if collective == "send" else np.fmax(*cells), index=ranks, columns=ranks)
    matrix.index.name, matrix.columns.name = ("from", "to") if collective == "send" else ("rank", "rank")
    matrix.attrs = {
        **results.attrs,
        "value": value,
        "collective": collective,
        "size_bytes": int(rows["size_bytes"].iloc[0]),
        "axis": str(rows["axis"].iloc[0]).removesuffix(" pairs"),
        "mode": str(rows["mode"].iloc[0]),
        "dtype": str(rows["dtype"].iloc[0]),
    }
    return matrix
