"""Standard errors of median times from dependent batches: a block bootstrap that resamples launches first.

The batches of one launch are autocorrelated (clocks, daemons, other jobs), so resampling single batches would
underestimate the error. Instead, blocks of consecutive batches are resampled that are longer than the correlation time.
Launches with new communicators differ more than the batches of one launch, so they are resampled first (S. Hunold and
A. Carpen-Amarie, MPI Benchmarking Revisited: Experimental Design and Reproducibility, arXiv:1505.07734).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from statistics import NormalDist

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

__all__ = ["Interval", "block_length", "estimate", "log_ratio", "student_p", "student_quantile"]

Floats = npt.NDArray[np.float64]

_DRAWS = 500
_MAX_ELEMENTS = 2_000_000  # resampled values in memory
_SMALLEST_ERROR = 1e-6  # of a log time, so that identical times do not lead to a division by zero


@dataclass(frozen=True, slots=True)
class Interval:
    """A time on a logarithmic scale, with its standard error.

    Parameters
    ----------
    log_time : float
        Natural logarithm of the time in µs.
    error : float
        Standard error of `log_time`. NaN if it is unknown.
    freedom : float
        Degrees of freedom of the error. Infinite if it does not come from a few launches or repeats.
    n : int
        Number of values.
    basis : {"samples", "intervals", "repeats", "single"}
        The kind of values: batches, medians with intervals, medians without intervals, or too few of these for an
        error.
    launches : int
        Number of launches that the values come from.
    draws : numpy.ndarray or None
        Resampled values of `log_time`. None unless the basis is samples.
    """

    log_time: float
    error: float
    freedom: float
    n: int
    basis: str
    launches: int
    draws: Floats | None = field(default=None, repr=False, compare=False)


def block_length(series: Floats) -> int:
    """Return the block length: twice the correlation time, but at least the cube root of the length of the series.

    The correlation time is 1 + 2 × the sum of the autocorrelations, up to the first one below the noise level of
    2 / √length. The cube root is the optimal order of the block length for estimates of a variance (P. Hall,
    J. L. Horowitz and B.-Y. Jing, Biometrika 82, 1995).

    Examples
    --------
    >>> block_length(np.random.default_rng(0).normal(size=1000))
    10
    """
    n = series.size
    shortest = max(1, round(math.cbrt(n)))
    # Use the autocorrelation of the ranks instead of the values: a spike of a hundred times the median would be nearly
    # all of the variance, and hide the correlation of the other batches.
    ranks = np.argsort(np.argsort(series, kind="stable"), kind="stable").astype(np.float64)
    ranks -= ranks.mean()
    power = float(ranks @ ranks)
    if n < 4 or power == 0:
        return shortest
    # Wiener-Khinchin: the autocorrelation is the inverse transform of the power spectrum. Padding with zeros to twice
    # the length prevents the end of the series from being correlated with its beginning.
    spectrum = np.fft.rfft(ranks, 2 * n)
    correlation = np.fft.irfft(spectrum * spectrum.conj())[: n // 2] / power
    quiet = np.flatnonzero(correlation < 2 / math.sqrt(n))
    stop = int(quiet[0]) if quiet.size else correlation.size
    memory = 1 + 2 * float(correlation[1:stop].sum())
    return min(max(shortest, math.ceil(2 * memory)), max(1, n // 4))  # at least four blocks


def estimate(launches: Sequence[Floats], rng: np.random.Generator) -> Interval:
    """Estimate the typical time of a call: the mean over the launches of the median of each launch.

    Parameters
    ----------
    launches : sequence of numpy.ndarray
        One series per launch: times of the batches in µs, in the order in which they were measured.
    rng : numpy.random.Generator
        Source of the resamples.

    Returns
    -------
    Interval
        The time with its standard error and its resamples. The basis is samples.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> e = estimate([rng.normal(100, 5, size=400)], rng)
    >>> round(float(np.exp(e.log_time))), 0.001 < e.error < 0.006, e.freedom
    (100, True, inf)
    """
    k = len(launches)
    medians = np.array([float(np.median(series)) for series in launches])
    draws = np.stack([_resampled_medians(series, rng) for series in launches])
    if k > 1:
        # Each draw takes k launches with replacement, and a resampled median of each. The permutations make a launch
        # that is drawn twice contribute two independent medians.
        chosen = rng.integers(k, size=(k, _DRAWS))
        own = np.stack([rng.permutation(_DRAWS) for _ in range(k)])
        draws = draws[chosen, own]
    means = np.log(draws.mean(axis=0))
    # Resampling k launches yields only (k - 1) / k of the variance of their mean (two thirds for k = 3), so scale the
    # error by sqrt(k / (k - 1)).
    error = float(means.std()) * math.sqrt(k / (k - 1) if k > 1 else 1.0)
    return Interval(
        math.log(medians.mean()),
        max(error, _SMALLEST_ERROR),
        k - 1 if k > 1 else math.inf,
        sum(series.size for series in launches),
        "samples",
        k,
        means,
    )


def _resampled_medians(series: Floats, rng: np.random.Generator) -> Floats:
    """Return the medians of circular block resamples of a series."""
    n = series.size
    length = block_length(series)
    ordered = np.sort(series)
    # Resample the ranks instead of the times: the median of ranks is the rank of the median, and NumPy sorts small
    # integers several times faster than floats.
    ranks = np.argsort(np.argsort(series)).astype(np.uint16 if n <= 1 << 16 else np.uint32)
    # The first values are repeated at the end, so that blocks wrap around. Otherwise the batches at both ends would be
    # in fewer blocks than the others.
    windows = sliding_window_view(np.concatenate([ranks, ranks[: length - 1]]), length)
    medians = np.empty(_DRAWS)
    step = max(1, _MAX_ELEMENTS // n)
    for start in range(0, _DRAWS, step):
        first = rng.integers(n, size=(min(step, _DRAWS - start), math.ceil(n / length)))
        resamples = windows[first].reshape(len(first), -1)[:, :n]
        resamples.sort(axis=1)
        middle = ordered[resamples[:, [(n - 1) // 2, n // 2]]]
        medians[start : start + len(first)] = middle.mean(axis=1)
    return medians


def log_ratio(first: Interval, second: Interval, confidence: float) -> tuple[float, float, float, float]:
    """Compare two times: the logarithm of second / first with its confidence interval and p-value.

    Parameters
    ----------
    first, second : Interval
        The two times.
    confidence : float
        Probability that the interval covers the true value, such as 0.95.

    Returns
    -------
    value : float
        Logarithm of second / first.
    low, high : float
        Bounds of its confidence interval. NaN if the error of a time is unknown.
    p : float
        Two-sided probability of such a value if both times are equal. NaN if the error of a time is unknown.
    """
    value = second.log_time - first.log_time
    error = math.hypot(first.error, second.error)
    if math.isnan(error):
        return value, math.nan, math.nan, math.nan
    # Student's t with the degrees of freedom of Welch and Satterthwaite, because the error of a few launches is itself
    # uncertain, which makes the interval wider than a normal one.
    share = first.error**4 / first.freedom + second.error**4 / second.freedom
    freedom = error**4 / share if share > 0 else math.inf
    half_width = student_quantile(confidence, freedom) * error
    low, high, p = value - half_width, value + half_width, student_p(value / error, freedom)
    if first.draws is not None and second.draws is not None:
        # The percentiles of the resampled differences can only widen the interval. They matter for times with two
        # modes: the median jumps between them, which no symmetric interval describes. A quarter of the draws of each
        # side makes 15,625 pairs, which is enough for percentiles of 2.5 %.
        differences = np.subtract.outer(second.draws[::4], first.draws[::4])
        tail = 50 * (1 - confidence)
        ends = np.percentile(differences, [tail, 100 - tail])
        low, high = min(low, float(ends[0])), max(high, float(ends[1]))
        p = max(p, 2 * min(float((differences <= 0).mean()), float((differences >= 0).mean())))
    return value, low, high, min(p, 1.0)


@lru_cache(maxsize=256)
def _student(freedom: float) -> tuple[Floats, Floats]:
    """Tabulate P(|T| < t) of Student's distribution: the values t, and their probabilities."""
    # The substitution T = √ν tan θ turns the heavy tails into the bounded interval 0 ≤ θ < π / 2, on which the density
    # is proportional to cos^(ν - 1) θ. The trapezoidal rule then takes the place of an incomplete beta function.
    theta = np.linspace(0, math.pi / 2, 4097)[:-1]
    density = np.cos(theta) ** (freedom - 1)
    below = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    # The last cell ends at π / 2, where the density is 0, so its trapezoid is half of the last value. With one degree
    # of freedom the density is 1 there, which is an error of 1 / 8192.
    below /= below[-1] + density[-1] / 2
    return math.sqrt(freedom) * np.tan(theta), below


def student_p(t: float, freedom: float) -> float:
    """Return the two-sided p-value of `t` with `freedom` degrees of freedom.

    Examples
    --------
    >>> round(student_p(2.0, math.inf), 4), round(student_p(2.0, 4), 3)
    (0.0455, 0.116)
    """
    t = abs(t)
    if freedom > 200:
        return math.erfc(t / math.sqrt(2))
    values, below = _student(freedom)
    return float(max(0.0, 1 - np.interp(t, values, below)))


def student_quantile(confidence: float, freedom: float) -> float:
    """Return the half-width of a confidence interval, in standard errors.

    Examples
    --------
    >>> round(student_quantile(0.95, math.inf), 2), round(student_quantile(0.95, 4), 2)
    (1.96, 2.78)
    """
    if freedom > 200:
        return NormalDist().inv_cdf((1 + confidence) / 2)
    values, below = _student(freedom)
    return float(np.interp(confidence, below, values))
