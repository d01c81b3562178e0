"""What sharing costs: groups of one axis at the same time, and two axes at the same time, against each by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshlab.frames.schema import require_columns

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["contention", "interference"]

_SAME = ["launch", "collective", "op", "dtype", "root", "in_place", "mode", "group", "n_ranks", "count", "size_bytes"]
_NEEDED = [*_SAME, "step", "axis", "status", "time_us", "time_us_lo", "time_us_hi"]


def contention(results: pd.DataFrame) -> pd.DataFrame:
    """Compare groups that all work at once with the same groups one at a time.

    Measure with ``groups=["together", "alone"]``. The ratio is above 1 where groups slow each other down: they share a
    link, a switch or a core.

    Parameters
    ----------
    results : pandas.DataFrame
        Results in which an axis stands as ``"tp"`` and as ``"tp alone"``.

    Returns
    -------
    pandas.DataFrame
        One row per collective, size and group: ``axis``, ``alone_us``, ``together_us``, ``ratio`` and its ends
        ``ratio_lo`` and ``ratio_hi``, from the farther ends of the two 95 % intervals, and ``is_clear``: whether the
        ends lie on the same side of 1. Rows with wrong results are left out.

    Examples
    --------
    >>> from meshlab.frames.schema import empty_results
    >>> len(contention(empty_results()))
    0
    """
    require_columns(results, _NEEDED)
    good = results[results["status"] == "ok"]
    is_alone = good["axis"].str.endswith(" alone").fillna(value=False).astype(bool)
    alone = good[is_alone].assign(axis=lambda rows: rows["axis"].str.removesuffix(" alone"))
    pairs = alone.merge(good[~is_alone], on=["axis", *_SAME], suffixes=("_alone", "_together"))
    return _ratios(pairs, ["axis", *_SAME], "alone", "together")


def interference(results: pd.DataFrame) -> pd.DataFrame:
    """Compare a collective while another axis is busy with the same collective by itself.

    Measure with ``beside={"dp": "reduce_scatter"}``. The ratio is above 1 where the axes slow each other down.

    Parameters
    ----------
    results : pandas.DataFrame
        Results in which an axis stands as ``"tp"`` and as ``"tp+dp"``: along ``tp`` while ``dp`` is busy.

    Returns
    -------
    pandas.DataFrame
        One row per collective, size and group: ``axis``, ``beside`` (what the other axis did), ``alone_us``,
        ``beside_us``, ``ratio``, ``ratio_lo``, ``ratio_hi`` and ``is_clear`` as in `contention`.

    Examples
    --------
    >>> from meshlab.frames.schema import empty_results
    >>> len(interference(empty_results()))
    0
    """
    require_columns(results, _NEEDED)
    good = results[results["status"] == "ok"]
    is_joint = good["axis"].str.contains("+", regex=False).fillna(value=False).astype(bool)
    halves = good[is_joint]
    ends = halves["axis"].str.split("+", expand=True).reindex(columns=[0, 1]).astype("string")
    joint = halves.assign(axis=ends[0], other=ends[1])
    doing = joint[["launch", "step", "axis", "collective"]].drop_duplicates()
    doing = doing.rename(columns={"axis": "other", "collective": "does"})
    joint = joint.merge(doing, on=["launch", "step", "other"])
    joint["beside"] = joint["does"] + " on " + joint["other"]
    pairs = joint.merge(good[~is_joint], on=["axis", *_SAME], suffixes=("_beside", "_alone"))
    return _ratios(pairs, ["axis", "beside", *_SAME], "alone", "beside")


def _ratios(pairs: pd.DataFrame, keys: list[str], before: str, after: str) -> pd.DataFrame:
    """Times on both sides, their ratio, and how sure it is."""
    frame = pairs[keys].copy()
    frame.attrs = {}
    frame[f"{before}_us"], frame[f"{after}_us"] = pairs[f"time_us_{before}"], pairs[f"time_us_{after}"]
    frame["ratio"] = pairs[f"time_us_{after}"] / pairs[f"time_us_{before}"]
    frame["ratio_lo"] = pairs[f"time_us_lo_{after}"] / pairs[f"time_us_hi_{before}"]
    frame["ratio_hi"] = pairs[f"time_us_hi_{after}"] / pairs[f"time_us_lo_{before}"]
    frame["is_clear"] = (frame["ratio_lo"] > 1) | (frame["ratio_hi"] < 1)
    return frame
