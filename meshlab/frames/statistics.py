"""Statistics of times: nothing here assumes that they are normal."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Summary", "leading_warmup", "median_interval", "spike_limit", "summarise"]

FEWEST_FOR_INTERVAL, FEWEST_FOR_P95, FEWEST_FOR_P99 = 6, 20, 100
_SPIKE_MADS, _QUIET = 5.0, 0.01

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Summary:
    """What a set of times comes to, in the unit of the times; NaN where there are too few.

    Parameters
    ----------
    n : int
        How many times.
    median, lo, hi : float
        The median and its 95 % interval.
    p95, p99, least, most : float
        Percentiles and extremes.
    """

    n: int
    median: float
    lo: float
    hi: float
    p95: float
    p99: float
    least: float
    most: float


def median_interval(values: Floats) -> tuple[float, float]:
    """The 95 % interval of the median, from order statistics.

    No shape of the distribution is assumed: the ends are the values at the ranks (n − 1.96 √n) / 2 and
    1 + (n + 1.96 √n) / 2, rounded outwards (Hoefler and Belli, SC'15, rule 5).

    Parameters
    ----------
    values : numpy.ndarray
        The samples, shape (n,).

    Returns
    -------
    lo, hi : float
        NaN for fewer than 6 samples: no such interval exists then.

    Examples
    --------
    >>> median_interval(np.arange(100.0))
    (39.0, 60.0)
    """
    n = len(values)
    if n < FEWEST_FOR_INTERVAL:
        return math.nan, math.nan
    ordered = np.sort(values)
    half = 1.96 * math.sqrt(n)
    lower = max(math.floor((n - half) / 2), 1)
    upper = min(math.ceil(1 + (n + half) / 2), n)
    return float(ordered[lower - 1]), float(ordered[upper - 1])


def summarise(values: npt.ArrayLike) -> Summary:
    """Summarise times.

    Examples
    --------
    >>> summary = summarise([3.0, 1.0, 2.0])
    >>> summary.median, summary.least, summary.most, summary.p95
    (2.0, 1.0, 3.0, nan)
    """
    times: Floats = np.asarray(values, dtype=np.float64)
    n = len(times)
    if not n:
        return Summary(0, *[math.nan] * 7)
    lo, hi = median_interval(times)

    def percentile(share: float, fewest: int) -> float:
        return float(np.quantile(times, share)) if n >= fewest else math.nan

    return Summary(
        n=n,
        median=float(np.median(times)),
        lo=lo,
        hi=hi,
        p95=percentile(0.95, FEWEST_FOR_P95),
        p99=percentile(0.99, FEWEST_FOR_P99),
        least=float(times.min()),
        most=float(times.max()),
    )


def is_precise(values: npt.NDArray[Any], precision: float) -> bool:
    """Whether half the width of the median's interval is at most `precision` times the median."""
    lo, hi = median_interval(values)
    return bool((hi - lo) / 2 <= precision * float(np.median(values)))  # False when there is no interval


def spike_limit(values: npt.NDArray[Any]) -> float:
    """The time above which a batch is a spike: the median and five times the median absolute deviation.

    Where times are very even, one percent of the median stands for that deviation.

    Parameters
    ----------
    values : numpy.ndarray
        The samples, shape (n,).

    Returns
    -------
    float
        NaN without samples.

    Examples
    --------
    >>> spike_limit(np.array([9.0, 10.0, 11.0, 10.0, 30.0])), round(spike_limit(np.full(9, 10.0)), 3)
    (15.0, 10.5)
    """
    if not len(values):
        return math.nan
    median = float(np.median(values))
    deviation = float(np.median(np.abs(values - median)))
    return median + _SPIKE_MADS * max(deviation, _QUIET * median)


def leading_warmup(values: npt.NDArray[Any]) -> int:
    """How many batches at the beginning are still slow, measured by the later half: at most a quarter of all.

    Only batches without a gap count, so nothing is trimmed but a start that had not settled.

    Parameters
    ----------
    values : numpy.ndarray
        The samples in order, shape (n,).

    Examples
    --------
    >>> leading_warmup(np.array([50.0, 30.0] + 10 * [10.0])), leading_warmup(np.array(12 * [10.0]))
    (2, 0)
    """
    n = len(values)
    if n < 2 * FEWEST_FOR_INTERVAL:
        return 0
    slow = values[: n // 4] > spike_limit(values[n // 2 :])
    return int(np.argmin(np.append(slow, False)))
