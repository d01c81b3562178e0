"""Visibility: the smallest change of a time that measurements would show on these hosts now."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from meshlab.analysis._launches import CONFIDENCE, SMALLEST_SPREAD, detectable_ratio
from meshlab.analysis._turn_ratios import BUDGET_S, MOST_ROUNDS, SIGNIFICANT, round_ratio
from meshlab.base._forwarding import implementation
from meshlab.base._units import THIN, format_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from meshlab.plans._steps import Step

Floats = npt.NDArray[np.float64]

FEWEST_BLOCKS = 6
MOST_BLOCKS = 12

_EFFECT = 0.05  # smaller changes have no verdict, see `meshlab.compare`
LARGEST_RATIO = 100
"""The largest ratio of two times that a text names."""

_MISSED = 0.2  # largest share of the comparisons that do not show a change of the promised size
_LARGEST_ERROR = 10.0  # of a logarithm


@dataclass(frozen=True, slots=True)
class Visibility:
    """The smallest slowdowns that at least 8 of 10 comparisons would show, from blocks of batches that were repeated.

    Parameters
    ----------
    collective : str
        The collective of the repeated step.
    size_bytes : int or None
        Its message size in bytes. None for a barrier.
    ratio : float
        Smallest visible ratio of two times that are measured one after the other on the same ranks.
    turns_ratio : float
        The same if both sides take turns on the same ranks, batch by batch. NaN if it is unknown.
    turns_s : float
        Duration of these turns, in seconds.

    Examples
    --------
    >>> import meshlab as ml
    >>> print(ml.analysis.Visibility("all_reduce", 1 << 20, ratio=1.8, turns_ratio=1.2))
    changes of 1.8× or more at 1\u2009MiB; if measured in turns, 1.2× or more in about 1\u2009min
    """

    collective: str
    size_bytes: int | None
    ratio: float
    turns_ratio: float = math.nan
    turns_s: float = BUDGET_S

    def plot(self, *, ax: Axes | None = None) -> Axes:
        """Draw which slowdowns would show now. See `meshlab.plots.visibility`."""
        return implementation(Visibility.plot)(self, ax=ax)

    def _figure_html(self) -> str:
        return implementation(Visibility._figure_html)(self)

    def __repr__(self) -> str:
        return f"<Visibility: {self}; next: .plot()>"

    def __str__(self) -> str:
        at = f"in {self.collective}" if self.size_bytes is None else f"at {format_size(self.size_bytes)}"
        text = f"changes of {ratio_text(self.ratio)} {'or more ' * (self.ratio <= LARGEST_RATIO)}{at}"
        if not self.turns_ratio < self.ratio:
            return text
        turns = f"{ratio_text(self.turns_ratio)}{' or more' * (self.turns_ratio <= LARGEST_RATIO)}"
        return f"{text}; if measured in turns, {turns} in about {round(self.turns_s / 60)}{THIN}min"


def visibility_of(step: Step, log_times: Sequence[float], log_pairs: Sequence[float]) -> Visibility | None:
    """Return what is visible from repeated blocks, or None if they are too few.

    `log_times` are the logarithms of their median times, and `log_pairs` those of the median ratios of neighbouring
    batches in each.
    """
    if len(log_times) < FEWEST_BLOCKS:
        return None
    return Visibility(step.collective, step.size_bytes, separate_ratio(log_times), turns_ratio(log_pairs))


def separate_ratio(log_times: Sequence[float]) -> float:
    """Return the smallest visible ratio of two times that are measured one after the other.

    `log_times` are the logarithms of the median times of repeated blocks.
    """
    # The load of a host comes and goes within seconds, so the blocks of a step are dependent: the median of its eight
    # blocks has about half of the variance of one, and the difference of two such medians that of one block. More
    # launches would not help, because blocks of the same ranks do not show how much launches differ.
    return _visible_ratio(float(np.std(log_times, ddof=1)), len(log_times) - 1)


def turns_ratio(log_pairs: Sequence[float]) -> float:
    """Return the smallest visible ratio of two sides that take turns, batch by batch. NaN if there are too few pairs.

    `log_pairs` are the logarithms of the median ratios of neighbouring batches of one side, in each block.
    """
    pairs = [value for value in log_pairs if math.isfinite(value)]
    if len(pairs) < FEWEST_BLOCKS:
        return math.nan
    # Many rounds follow from a few blocks, whose spread is itself uncertain.
    return _visible_ratio(_highest_spread(pairs) / math.sqrt(MOST_ROUNDS), MOST_ROUNDS - 1, 1 - SIGNIFICANT)


def log_pair(times: Floats) -> float:
    """Return the logarithm of the median ratio of neighbouring batches. NaN without a pair."""
    n = len(times) // 2
    return round_ratio(times[: 2 * n].reshape(n, 2)).log_ratio if n else math.nan


def ratio_text(ratio: float) -> str:
    """Write a ratio with the digits that an estimate from a few blocks deserves, such as 1.3× or 4×."""
    if ratio > LARGEST_RATIO:
        return f"more than {LARGEST_RATIO}×"
    digits = 2 if ratio < 1.2 else 1 if ratio < 3 else 0
    scale = 10**digits
    return f"{math.ceil(ratio * scale - 1e-9) / scale:.{digits}f}×"  # rounded up, because it is a promise


def _visible_ratio(error: float, freedom: int, confidence: float = CONFIDENCE) -> float:
    error = min(max(error, SMALLEST_SPREAD), _LARGEST_ERROR)
    return detectable_ratio(error, freedom, confidence, _EFFECT)


def _highest_spread(values: Sequence[float]) -> float:
    """Return the standard deviation of which a few values have this spread or less in 2 of 10 cases."""
    # Wilson and Hilferty, The Distribution of Chi-Square (1931), for the quantile of the variance.
    freedom = len(values) - 1
    third = 2 / (9 * freedom)
    low = (1 - third + NormalDist().inv_cdf(_MISSED) * math.sqrt(third)) ** 3
    return float(np.std(values, ddof=1)) / math.sqrt(low)
