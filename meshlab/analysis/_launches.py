"""Ratios of times whose uncertainty is the variation between launches.

Two launches of the same benchmark differ by more than the batches of one launch scatter: processes land on other cores,
memory on other pages, and other jobs come and go (S. Hunold and A. Carpen-Amarie, MPI Benchmarking Revisited:
Experimental Design and Reproducibility, arXiv:1505.07734). So the launch is the unit of every comparison here, and a
single launch is not evidence, regardless of its batches.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

SMALLEST_SPREAD = 1e-3
"""Least standard deviation between launches or rounds, relative to the time: a few of them may agree by chance, and
printed times have three or four digits."""

_POWER = 0.9

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True, eq=False)
class LaunchTimes:
    """The time of one measurement in each launch."""

    log_times: Floats
    """Natural logarithm of the time in µs, shape (launches,)."""
    within: float = 0.0
    """Standard error of one of these values from the batches of its launch. 0 if unknown."""

    @property
    def n(self) -> int:
        """The number of launches."""
        return len(self.log_times)

    @property
    def time_us(self) -> float:
        """The geometric mean over the launches, in µs."""
        return math.exp(self.log_times.mean())


@dataclass(frozen=True, slots=True)
class Ratio:
    """The second time divided by the first, with its uncertainty: NaN for one launch on each side."""

    value: float
    low: float = math.nan
    high: float = math.nan
    p: float = math.nan
    """Two-sided probability of such a ratio if both times are equal."""
    detectable: float = math.nan
    """The smallest slowdown that would be significant in 9 of 10 comparisons with this variation."""


def ratio_of(first: LaunchTimes, second: LaunchTimes, confidence: float = CONFIDENCE) -> Ratio:
    """Return the second time divided by the first, by Student's t-test on the logarithms."""
    difference = float(second.log_times.mean() - first.log_times.mean())
    freedom = first.n + second.n - 2
    if not freedom:
        return Ratio(math.exp(difference))
    # One standard deviation for both sides: with three launches, two separate ones would be too uncertain, and a side
    # with one launch has none.
    squares = sum(float(((side.log_times - side.log_times.mean()) ** 2).sum()) for side in (first, second))
    # The launches contain the error of their batches, so their spread is smaller than it only by chance.
    least = max(SMALLEST_SPREAD, first.within, second.within)
    error = math.sqrt(max(squares / freedom, least**2) * (1 / first.n + 1 / second.n))
    half = student_quantile(confidence, freedom)
    return Ratio(
        math.exp(difference),
        math.exp(difference - half * error),
        math.exp(difference + half * error),
        student_p(difference / error, freedom),
        detectable_ratio(error, freedom, confidence),
    )


def detectable_ratio(error: float, freedom: float, confidence: float = CONFIDENCE, effect: float = 0.0) -> float:
    """Return the smallest slowdown that 9 of 10 comparisons with this error find significant and beyond `effect`."""
    least = max(student_quantile(confidence, freedom) * error, math.log1p(effect))
    return math.exp(least + student_quantile(2 * _POWER - 1, freedom) * error)


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
    """Return the two-sided p-value of `t` with `freedom` degrees of freedom."""
    t = abs(t)
    if freedom > 200:
        return math.erfc(t / math.sqrt(2))
    values, below = _student(freedom)
    return float(max(0.0, 1 - np.interp(t, values, below)))


def student_quantile(confidence: float, freedom: float) -> float:
    """Return the half-width of a confidence interval, in standard errors."""
    if freedom > 200:
        return NormalDist().inv_cdf((1 + confidence) / 2)
    values, below = _student(freedom)
    return float(np.interp(confidence, below, values))
