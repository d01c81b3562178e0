"""Robust statistics of times. Times are skewed and have outliers, so nothing here assumes a normal distribution."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Summary", "leading_warmup", "median_interval", "spike_limit", "summarise"]

FEWEST_FOR_INTERVAL, FEWEST_FOR_P95, FEWEST_FOR_P99 = 6, 20, 100
_SPIKE_DEVIATIONS, _SMALLEST_DEVIATION = 5.0, 0.01

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Summary:
    """Summary statistics of a set of times, in the unit of the times. NaN if there are too few times.

    Parameters
    ----------
    n : int
        Number of times.
    median : float
        The median.
    lo, hi : float
        Bounds of the 95 % confidence interval of the median. Needs 6 times.
    p95, p99 : float
        The 95th percentile, which needs 20 times, and the 99th, which needs 100.
    min, max : float
        The extremes.
    """

    n: int
    median: float
    lo: float
    hi: float
    p95: float
    p99: float
    min: float
    max: float


def median_interval(values: Floats) -> tuple[float, float]:
    """Return the 95 % confidence interval of the median, from order statistics.

    The interval is nonparametric. Its bounds are the values at the ranks (n − 1.96 √n) / 2 and 1 + (n + 1.96 √n) / 2,
    rounded outwards (T. Hoefler and R. Belli, Scientific Benchmarking of Parallel Computing Systems, SC'15, rule 5).

    Parameters
    ----------
    values : numpy.ndarray
        The samples, shape (n,).

    Returns
    -------
    lo, hi : float
        The bounds, in the unit of the samples. NaN for fewer than 6 samples.

    Examples
    --------
    >>> median_interval(np.arange(100.0))
    (39.0, 60.0)
    """
    n = len(values)
    if n < FEWEST_FOR_INTERVAL:
        return math.nan, math.nan
    ordered = np.sort(values)
    # The number of samples below the true median is binomial(n, 1/2), with a standard deviation of √n / 2, for any
    # distribution of the samples. So the median is between two order statistics that are 1.96 deviations around n / 2.
    # Below 6 samples, even the extremes miss it with a probability of 2 / 2^n > 5 %.
    half = 1.96 * math.sqrt(n)
    lower = max(math.floor((n - half) / 2), 1)
    upper = min(math.ceil(1 + (n + half) / 2), n)
    return float(ordered[lower - 1]), float(ordered[upper - 1])


def summarise(values: npt.ArrayLike) -> Summary:
    """Compute the summary statistics of times.

    Examples
    --------
    >>> summary = summarise([3.0, 1.0, 2.0])
    >>> summary.median, summary.min, summary.max, summary.p95
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
        min=float(times.min()),
        max=float(times.max()),
    )


def is_precise(values: npt.NDArray[Any], precision: float) -> bool:
    """Return True if half the width of the median's interval is at most `precision` times the median."""
    lo, hi = median_interval(values)
    return bool((hi - lo) / 2 <= precision * float(np.median(values)))  # False without an interval, because of the NaN


def spike_limit(values: npt.NDArray[Any]) -> float:
    """Return the time above which a batch is a spike: the median plus five median absolute deviations.

    A deviation of less than one percent of the median is replaced by one percent of the median.

    Parameters
    ----------
    values : numpy.ndarray
        The samples, shape (n,).

    Returns
    -------
    float
        The limit, in the unit of the samples. NaN without samples.

    Examples
    --------
    >>> spike_limit(np.array([9.0, 10.0, 11.0, 10.0, 30.0])), round(spike_limit(np.full(9, 10.0)), 3)
    (15.0, 10.5)
    """
    if not len(values):
        return math.nan
    # The median absolute deviation instead of the standard deviation: up to half of the samples may be spikes without
    # raising it. Its lower bound keeps clock resolution from making spikes of nearly identical times.
    median = float(np.median(values))
    deviation = float(np.median(np.abs(values - median)))
    return median + _SPIKE_DEVIATIONS * max(deviation, _SMALLEST_DEVIATION * median)


def leading_warmup(values: npt.NDArray[Any]) -> int:
    """Return the number of leading batches that are slow compared with the later half, up to a quarter of all batches.

    Parameters
    ----------
    values : numpy.ndarray
        The samples in the order in which they were measured, shape (n,).

    Returns
    -------
    int
        The number of consecutive slow batches, from the first. 0 for fewer than 12 samples.

    Examples
    --------
    >>> leading_warmup(np.array([50.0, 30.0] + 10 * [10.0])), leading_warmup(np.array(12 * [10.0]))
    (2, 0)
    """
    n = len(values)
    if n < 2 * FEWEST_FOR_INTERVAL:
        return 0
    # The later half is settled and does not contain the batches under test. Counting stops at the first fast batch, so
    # that a spike in a settled series is never trimmed: removing spikes would make every system look better than it is.
    slow = values[: n // 4] > spike_limit(values[n // 2 :])
    return int(np.argmin(np.append(slow, False)))  # the position of the first False
