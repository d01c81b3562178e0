"""How far a median can be trusted when batches are not independent: block bootstrap, launches first.

Batches of one launch are autocorrelated (clocks, daemons, neighbours), so single batches must not be resampled: blocks
of neighbours are, as long as the series remembers. Launches with fresh communicators differ by more than their batches
do, so they are resampled first (Hunold and Carpen-Amarie, arXiv 1505.07734).
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
_MOST_AT_ONCE = 2_000_000
_TINY = 1e-6


@dataclass(frozen=True, slots=True)
class Interval:
    """A time on a log scale, with its standard error.

    Parameters
    ----------
    log_time : float
        Logarithm of the time in µs.
    error : float
        Its standard error; NaN when nothing is known about it.
    freedom : float
        Degrees of freedom of that error; infinite for many values.
    n : int
        How many values it comes from.
    basis : str
        What they are: samples, intervals, repeats or single.
    launches : int
        How many launches they come from.
    draws : numpy.ndarray or None
        Resampled logarithms of the time, where it was resampled.
    """

    log_time: float
    error: float
    freedom: float
    n: int
    basis: str
    launches: int
    draws: Floats | None = field(default=None, repr=False, compare=False)


def block_length(series: Floats) -> int:
    """How many neighbours to keep together: twice the correlation time, at least the cube root of the length.

    The correlation time is 1 + 2 × the sum of the autocorrelations up to the first that is not above noise,
    2 / √length.

    Examples
    --------
    >>> block_length(np.random.default_rng(0).normal(size=1000))
    10
    """
    n = series.size
    least = max(1, round(math.cbrt(n)))
    # Ranks instead of values: one spike must not hide the memory of the rest.
    ranks = np.argsort(np.argsort(series, kind="stable"), kind="stable").astype(np.float64)
    ranks -= ranks.mean()
    power = float(ranks @ ranks)
    if n < 4 or power == 0:
        return least
    spectrum = np.fft.rfft(ranks, 2 * n)
    correlation = np.fft.irfft(spectrum * spectrum.conj())[: n // 2] / power
    quiet = np.flatnonzero(correlation < 2 / math.sqrt(n))
    stop = int(quiet[0]) if quiet.size else correlation.size
    memory = 1 + 2 * float(correlation[1:stop].sum())
    return min(max(least, math.ceil(2 * memory)), max(1, n // 4))


def estimate(launches: Sequence[Floats], rng: np.random.Generator) -> Interval:
    """The typical time of a call, from one series of batches per launch.

    It is the mean over launches of each launch's median.

    Parameters
    ----------
    launches : sequence of numpy.ndarray
        Times of the batches in µs, in the order in which they were measured.
    rng : numpy.random.Generator
        Draws the resamples.

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
        # Launches first: each draw takes k of them, with their own resampled medians.
        chosen = rng.integers(k, size=(k, _DRAWS))
        own = np.stack([rng.permutation(_DRAWS) for _ in range(k)])
        draws = draws[chosen, own]
    means = np.log(draws.mean(axis=0))
    # A bootstrap of k launches shows (k - 1) / k of their variance.
    error = float(means.std()) * math.sqrt(k / (k - 1) if k > 1 else 1.0)
    return Interval(
        math.log(medians.mean()),
        max(error, _TINY),
        k - 1 if k > 1 else math.inf,
        sum(series.size for series in launches),
        "samples",
        k,
        means,
    )


def _resampled_medians(series: Floats, rng: np.random.Generator) -> Floats:
    """Medians of circular block resamples."""
    n = series.size
    length = block_length(series)
    ordered = np.sort(series)
    # Small whole numbers sort many times faster than floats, and the median of ranks is the rank of the median.
    ranks = np.argsort(np.argsort(series)).astype(np.uint16 if n <= 1 << 16 else np.uint32)
    windows = sliding_window_view(np.concatenate([ranks, ranks[: length - 1]]), length)
    medians = np.empty(_DRAWS)
    step = max(1, _MOST_AT_ONCE // n)
    for start in range(0, _DRAWS, step):
        first = rng.integers(n, size=(min(step, _DRAWS - start), math.ceil(n / length)))
        resamples = windows[first].reshape(len(first), -1)[:, :n]
        resamples.sort(axis=1)
        middle = ordered[resamples[:, [(n - 1) // 2, n // 2]]]
        medians[start : start + len(first)] = middle.mean(axis=1)
    return medians


def log_ratio(first: Interval, second: Interval, confidence: float) -> tuple[float, float, float, float]:
    """The logarithm of second / first, the ends of its interval, and the probability of such a value by chance.

    The interval is the wider one of Student's, with Welch's and Satterthwaite's degrees of freedom, and of the
    percentiles of the resamples: the first knows that there are few launches, the second that a median between two
    modes jumps.

    Returns
    -------
    value, low, high, p : float
        The last three are NaN when a side has no error.
    """
    value = second.log_time - first.log_time
    error = math.hypot(first.error, second.error)
    if math.isnan(error):
        return value, math.nan, math.nan, math.nan
    share = first.error**4 / first.freedom + second.error**4 / second.freedom
    freedom = error**4 / share if share > 0 else math.inf
    reach = student_quantile(confidence, freedom) * error
    low, high, p = value - reach, value + reach, student_p(value / error, freedom)
    if first.draws is not None and second.draws is not None:
        # A quarter of the draws of each side makes 15,625 pairs, which is plenty.
        differences = np.subtract.outer(second.draws[::4], first.draws[::4])
        tail = 50 * (1 - confidence)
        ends = np.percentile(differences, [tail, 100 - tail])
        low, high = min(low, float(ends[0])), max(high, float(ends[1]))
        p = max(p, 2 * min(float((differences <= 0).mean()), float((differences >= 0).mean())))
    return value, low, high, min(p, 1.0)


@lru_cache(maxsize=256)
def _student(freedom: float) -> tuple[Floats, Floats]:
    """Values t and the probability that |T| is below them, for Student's T.

    With T = √ν tan θ the density of θ is proportional to cos^(ν - 1) θ.
    """
    theta = np.linspace(0, math.pi / 2, 4097)[:-1]
    density = np.cos(theta) ** (freedom - 1)
    below = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    # Half of the last cell is missing; it matters only for one degree of freedom.
    below /= below[-1] + density[-1] / 2
    return math.sqrt(freedom) * np.tan(theta), below


def student_p(t: float, freedom: float) -> float:
    """Two-sided probability of a value at least as far out as `t`.

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
    """How many standard errors an interval reaches to each side.

    Examples
    --------
    >>> round(student_quantile(0.95, math.inf), 2), round(student_quantile(0.95, 4), 2)
    (1.96, 2.78)
    """
    if freedom > 200:
        return NormalDist().inv_cdf((1 + confidence) / 2)
    values, below = _student(freedom)
    return float(np.interp(confidence, below, values))
