"""Robust statistics of times, and the only computation of bandwidth from them.

Times are skewed and have outliers, so nothing here assumes a normal distribution.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from meshlab.base._errors import BenchError
from meshlab.comm._catalog import CATALOG

FEWEST_FOR_INTERVAL, FEWEST_FOR_P95, FEWEST_FOR_P99, FEWEST_FOR_SHAPE = 6, 20, 100, 20
_SPIKE_DEVIATIONS, _SMALLEST_DEVIATION = 5.0, 0.01

LARGEST_NUMBER = 1e100
"""Larger than any time or bandwidth. A damaged file may have any number, and sums of the largest ones overflow."""

Floats = npt.NDArray[np.float64]


def median_interval(values: Floats) -> tuple[float, float]:
    """Return the bounds of the nonparametric 95 % confidence interval of the median. NaN for fewer than 6 samples."""
    n = len(values)
    if n < FEWEST_FOR_INTERVAL:
        return math.nan, math.nan
    ordered = np.sort(values)
    # The number of samples below the true median is binomial(n, 1/2), with a standard deviation of √n / 2, for any
    # distribution of the samples. So the median is between two order statistics that are 1.96 deviations around n / 2.
    # Below 6 samples, even the extremes miss it with a probability of 2 / 2^n > 5 %. See T. Hoefler and R. Belli,
    # Scientific Benchmarking of Parallel Computing Systems, SC'15, rule 5.
    half = 1.96 * math.sqrt(n)
    lower = max(math.floor((n - half) / 2), 1)
    upper = min(math.ceil(1 + (n + half) / 2), n)
    return float(ordered[lower - 1]), float(ordered[upper - 1])


def summarise(values: npt.ArrayLike) -> dict[str, float]:
    """Return the statistics of times in µs, by their columns of the results. NaN if there are too few times."""
    times: Floats = np.asarray(values, dtype=np.float64)
    n = len(times)
    lo, hi = median_interval(times)
    return {
        "time_us": float(np.median(times)) if n else math.nan,
        "time_us_lo": lo,
        "time_us_hi": hi,
        "p95_us": float(np.quantile(times, 0.95)) if n >= FEWEST_FOR_P95 else math.nan,
        "p99_us": float(np.quantile(times, 0.99)) if n >= FEWEST_FOR_P99 else math.nan,
        "min_us": float(times.min()) if n else math.nan,
        "max_us": float(times.max()) if n else math.nan,
    }


def bandwidth(collective: Sequence[str | None], size_bytes: Any, n_ranks: Any, time_us: Any) -> tuple[Floats, Floats]:
    """Compute algorithm and bus bandwidth from times. All bandwidths in meshlab are computed here.

    algbw = S / t, and busbw = algbw times the collective's factor, as defined in nccl-tests' PERFORMANCE.md.

    Parameters
    ----------
    collective : sequence of str
        Name of the collective of each row. The busbw of an unknown or missing name is NaN.
    size_bytes : array_like
        Message size S of each row, in bytes. Missing values are allowed.
    n_ranks : array_like
        Number of ranks of each row. Missing values are allowed.
    time_us : array_like
        Time per call of each row, in µs. Missing values are allowed.

    Returns
    -------
    algbw_gbs, busbw_gbs : numpy.ndarray
        Bandwidths in GB/s (10^9 bytes per second), float64. NaN if the time, the size or the factor is missing, and for
        the busbw of a single rank.

    Examples
    --------
    >>> import meshlab as ml
    >>> algbw, busbw = ml.frames.bandwidth(["all_reduce"], [1 << 30], [2], [3295.43])
    >>> round(float(algbw[0]), 2), round(float(busbw[0]), 2)
    (325.83, 325.83)
    """
    size, ranks, time = (_floats(values) for values in (size_bytes, n_ranks, time_us))
    with np.errstate(divide="ignore", invalid="ignore"):
        algbw = np.where(time > 0, size / time / 1e3, np.nan)
        factor = np.array(
            [
                CATALOG[name].bus_factor(int(n))
                if isinstance(name, str) and name in CATALOG and 2 <= n < np.inf
                else np.nan
                for name, n in zip(collective, ranks, strict=True)
            ],
            dtype=np.float64,
        ).reshape(algbw.shape)
    return algbw, algbw * factor


def _floats(values: Any) -> Floats:
    if hasattr(values, "to_numpy"):
        return np.asarray(values.to_numpy(dtype="float64", na_value=np.nan), dtype=np.float64)
    try:
        return np.asarray(values, dtype=np.float64)
    except OverflowError as error:
        raise BenchError("a size, a number of ranks or a time is larger than any float") from error


def is_precise(values: npt.NDArray[Any], precision: float) -> bool:
    """Return True if half the width of the median's interval is at most `precision` times the median."""
    lo, hi = median_interval(values)
    return bool((hi - lo) / 2 <= precision * float(np.median(values)))  # False without an interval, because of the NaN


def spike_limit(values: npt.NDArray[Any]) -> float:
    """Return the time above which a batch is a spike: the median plus five median absolute deviations."""
    if not len(values):
        return math.nan
    # The median absolute deviation instead of the standard deviation: up to half of the samples may be spikes without
    # raising it. Its lower bound keeps clock resolution from making spikes of nearly identical times.
    median = float(np.median(values))
    deviation = float(np.median(np.abs(values - median)))
    return median + _SPIKE_DEVIATIONS * max(deviation, _SMALLEST_DEVIATION * median)


def leading_warmup(values: npt.NDArray[Any]) -> int:
    """Return the number of leading batches, at most a quarter of all, that are slow compared with the later half."""
    n = len(values)
    if n < 2 * FEWEST_FOR_INTERVAL:
        return 0
    # The later half is settled and does not contain the batches under test. Counting stops at the first fast batch, so
    # that a spike in a settled series is never trimmed: removing spikes would make every system look better than it is.
    slow = values[: n // 4] > spike_limit(values[n // 2 :])
    return int(np.argmin(np.append(slow, False)))  # the position of the first False


@dataclass(frozen=True, slots=True)
class Modes:
    """Two distinct levels of times: the median of each, and the boundary between them, in the unit of the times."""

    fast: float
    slow: float
    limit: float
    slow_share: float
    """The share of the times that belong to the slow level."""


_LEAST_SHARE = 0.1  # fewer slow batches are spikes
_LEAST_STEP = math.log(1.05)  # levels that are closer together may be two ticks of a coarse clock
_MODES_Z = 2.0  # 2.3 %, one-sided


def find_modes(values: npt.NDArray[Any]) -> Modes | None:
    """Split times into a fast and a slow level, or return None if there is no evidence of two levels."""
    # The logarithms are split where the variance within both parts is smallest (N. Otsu, A Threshold Selection Method
    # from Gray-Level Histograms, 1979). Three intervals of equal width are then compared: one around the median of each
    # part, and one halfway between them. If the times had a single mode, with any shape, the middle one would be at
    # least as probable as one of the others. So there are two modes if it has significantly fewer times than both, in
    # two sign tests. Both must be significant, so the error rate is at most that of one test (R. L. Berger,
    # Multiparameter Hypothesis Testing and Acceptance Sampling, 1982).
    n = len(values)
    if n < FEWEST_FOR_SHAPE or not (values > 0).all():
        return None
    ordered = np.sort(np.log(values))
    # The variance between parts of n1 and n2 values with the means m1 and m2 is n1 n2 (m1 - m2)² / n². Where it is
    # largest, the variance within the parts is smallest.
    n_fast = np.arange(1, n)
    sums = np.cumsum(ordered)
    step = (sums[-1] - sums[:-1]) / (n - n_fast) - sums[:-1] / n_fast
    between = n_fast * (n - n_fast) * step**2
    n_least = math.ceil(_LEAST_SHARE * n)
    between[: n_least - 1] = between[n - n_least :] = -1
    cut = int(n_fast[between.argmax()])
    if cut == n - n_least:
        return None  # a smaller slow part would be better, so it consists of spikes and of the end of the fast part
    fast, slow = float(np.median(ordered[:cut])), float(np.median(ordered[cut:]))
    if slow - fast < _LEAST_STEP:
        return None
    width = (slow - fast) / 2

    def n_around(centre: float) -> int:
        return int(np.searchsorted(ordered, centre + width / 2) - np.searchsorted(ordered, centre - width / 2))

    n_middle, n_fewest = n_around((fast + slow) / 2), min(n_around(fast), n_around(slow))
    # If times fell into both intervals with equal probability, the number in the middle one would be nearly normal. Its
    # standard deviation would be half of the square root of their number.
    n_both = n_middle + n_fewest
    if n_middle + 0.5 > n_both / 2 - _MODES_Z * math.sqrt(n_both) / 2:
        return None
    limit = math.exp((ordered[cut - 1] + ordered[cut]) / 2)
    return Modes(math.exp(fast), math.exp(slow), limit, 1 - cut / n)


_TREND_BLOCKS, _BATCHES_PER_BLOCK = 12, 2
_TREND_Z = 2.576  # 1 %, two-sided


def relative_trend(values: npt.NDArray[Any]) -> float:
    """Return the relative change of times from the first to the last one, or NaN if it is not significant."""
    # The medians of consecutive blocks are nearly independent even if successive times are not. The Mann-Kendall test
    # (H. B. Mann, Nonparametric Tests Against Trend, 1945) decides whether they rise or fall, and the Theil-Sen slope
    # (P. K. Sen, 1968) of their logarithms is the change. Neither assumes a distribution or a shape of the trend.
    n = len(values)
    if n < FEWEST_FOR_SHAPE or not (values > 0).all():
        return math.nan
    n_blocks = min(_TREND_BLOCKS, n // _BATCHES_PER_BLOCK)
    parts = np.array_split(np.arange(n), n_blocks)
    medians = np.log([np.median(values[part]) for part in parts])
    centres = np.array([part.mean() for part in parts])
    first, second = np.triu_indices(n_blocks, 1)
    rise = medians[second] - medians[first]
    # Kendall's statistic is nearly normal. Its standard deviation is slightly smaller with ties, which makes the test
    # stricter. The statistic is an integer, so one half of its step of two is subtracted.
    score = float(np.abs(np.sign(rise).sum())) - 1
    if score <= _TREND_Z * math.sqrt(n_blocks * (n_blocks - 1) * (2 * n_blocks + 5) / 18):
        return math.nan
    slope = float(np.median(rise / (centres[second] - centres[first])))
    return math.expm1(slope * (n - 1))
