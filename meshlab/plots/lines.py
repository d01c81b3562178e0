"""From a results frame to lines: what varies names them, what is constant goes into the title."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from meshlab.errors import BenchError
from meshlab.frames.labels import is_wrong, say, say_axes
from meshlab.frames.schema import require_columns
from meshlab.units import SEPARATOR

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Line", "Quantity", "lines_of"]


Values = npt.NDArray[np.float64]

Quantity = Literal["busbw_gbs", "algbw_gbs", "time_us"]

_KEYS = ("collective", "axis", "n_ranks", "mode", "dtype", "op", "in_place", "root", "source", "run_id")

_NEEDED = (
    *_KEYS,
    *get_args(Quantity),
    "group",
    "launch",
    "size_bytes",
    "time_us_lo",
    "time_us_hi",
    "n_wrong",
    "status",
)


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """One line of a plot: a quantity over sizes.

    Parameters
    ----------
    name : str
        What tells it from the other lines of its plot; empty for the only line.
    keys : mapping of str to object
        What all its rows have in common, by column.
    size, value, low, high : numpy.ndarray
        float64, ascending by size: bytes, the quantity, and its interval (NaN where there is none).
    wrong_size, wrong_value : numpy.ndarray
        The rows with a wrong result, which the line leaves out.
    rows : pandas.DataFrame
        All rows it was made from, whatever their status.
    """

    name: str
    keys: Mapping[str, Any]
    size: Values
    value: Values
    low: Values
    high: Values
    wrong_size: Values
    wrong_value: Values
    rows: pd.DataFrame


def lines_of(results: pd.DataFrame, quantity: Quantity) -> list[Line]:
    """Split results into lines: one for each combination of collective, axis, mode, dtype and what else varies.

    At each size a line stands at the median time of the slowest group, or at the bandwidth that follows from it; with
    several launches, at the median over launches of that. Its interval reaches from the lowest lower end to the highest
    upper end of the groups' 95 % intervals. Only rows with status ok count.

    Parameters
    ----------
    results : pandas.DataFrame
        A results frame, see `meshlab.frames.schema.RESULTS`.
    quantity : {"busbw_gbs", "algbw_gbs", "time_us"}
        What is drawn.

    Returns
    -------
    list of Line
        In the order of the frame's rows.

    Raises
    ------
    BenchError
        If a column is missing or `quantity` is not one of the three.
    """
    if quantity not in get_args(Quantity):
        raise BenchError(f"{quantity!r} cannot be drawn; choose one of {', '.join(get_args(Quantity))}")
    require_columns(results, _NEEDED)
    results = say_axes(results)
    parts = list(results.groupby(list(_KEYS), dropna=False, sort=False))
    combinations = [dict(zip(_KEYS, values, strict=True)) for values, _ in parts]
    names = _names(combinations)
    return [_line(name, keys, rows, quantity) for name, keys, (_, rows) in zip(names, combinations, parts, strict=True)]


def _names(combinations: Sequence[Mapping[str, Any]]) -> list[str]:
    """Name each combination by the first few keys that tell all of them apart."""
    telling: list[str] = []
    distinct = 1
    for key in _KEYS:
        found = len({tuple(str(combination[name]) for name in (*telling, key)) for combination in combinations})
        if found > distinct:
            telling.append(key)
            distinct = found
    return [SEPARATOR.join(say(key, combination[key]) for key in telling) for combination in combinations]


def _line(name: str, keys: Mapping[str, Any], rows: pd.DataFrame, quantity: Quantity) -> Line:
    size, launch, time, low, high, drawn = (
        rows[column].to_numpy("float64", na_value=np.nan)
        for column in ("size_bytes", "launch", "time_us", "time_us_lo", "time_us_hi", quantity)
    )
    drawable = (size > 0) & (time > 0) & np.isfinite(drawn)
    wrong = is_wrong(rows)
    ok = drawable & ~wrong & rows["status"].eq("ok").fillna(False).to_numpy(bool)
    crosses = drawable & wrong
    sizes, place = np.unique(size[ok], return_inverse=True)
    launches, turn = np.unique(np.nan_to_num(launch[ok]), return_inverse=True)
    slowest = np.full((sizes.size, launches.size), np.nan)
    np.fmax.at(slowest, (place, turn), time[ok])
    median = np.nanmedian(slowest, axis=1) if sizes.size else np.empty(0)
    lowest, highest, count = np.full((3, sizes.size), np.nan)
    np.fmin.at(lowest, place, low[ok])
    np.fmax.at(highest, place, high[ok])
    lowest, highest = np.minimum(lowest, median), np.maximum(highest, median)  # NaN stays NaN
    value = median
    if quantity != "time_us":
        # Bandwidth times time is the same for all groups of a size: the bytes that count.
        np.fmax.at(count, place, (drawn * time)[ok])
        value, lowest, highest = count / median, count / highest, count / lowest
    keys = MappingProxyType(dict(keys))
    return Line(name, keys, sizes, value, lowest, highest, size[crosses], drawn[crosses], rows)
