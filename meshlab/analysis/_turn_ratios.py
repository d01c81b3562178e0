"""Statistics of turns: the ratios of neighbouring batches in each round, and their variation between rounds.

The ratios of one round share a communicator, with its place in memory, so a round is the unit of the uncertainty.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from meshlab.analysis._launches import (
    CONFIDENCE,
    SMALLEST_SPREAD,
    Ratio,
    detectable_ratio,
    student_p,
    student_quantile,
)

Floats = npt.NDArray[np.float64]

FEWEST_ROUNDS = 7
"""The fewest rounds of the signed-rank test: even if all of six agree, that happens by chance in 3 % of the cases."""

MOST_ROUNDS = 40
"""The number of rounds. If the budget does not suffice for all of them, at least `FEWEST_ROUNDS` are measured."""

BUDGET_S = 60.0
"""The default of the time for all rounds, in seconds."""

SIGNIFICANT = 0.02
"""The adjusted p-value of a verdict. With 5 %, two of twenty comparisons of equal sides would often differ."""


@dataclass(frozen=True, slots=True)
class RoundRatio:
    """What one round of turns shows about one row."""

    log_ratio: float
    """Natural logarithm of the second time divided by the first."""
    n_pairs: int
    before_us: float
    after_us: float


def round_ratio(pairs_us: Floats) -> RoundRatio:
    """Return the ratio of a round, from the times in µs of its pairs of neighbours, shape (pairs, 2)."""
    # The median, because a rank that loses its core adds milliseconds to one batch of a pair. The ratio of the total
    # times would mostly compare these additions, which do not depend on the calls: under a load of 12 per core, calls
    # that take 1.4 times as long took 1.32 to 1.36 times as long by the median, and 1.15 to 1.32 times by the total.
    before_us, after_us = np.median(pairs_us, axis=0)
    log_ratio = float(np.median(np.log(pairs_us[:, 1] / pairs_us[:, 0])))
    return RoundRatio(log_ratio, len(pairs_us), float(before_us), float(after_us))


def ratio_of_rounds(log_ratios: npt.ArrayLike, confidence: float = CONFIDENCE) -> Ratio:
    """Return the typical ratio of the rounds with its interval and p-value, by the signed-rank test of Wilcoxon."""
    # Some rounds are much worse than others: their ranks share one core, and complete a few batches. The signed-rank
    # test assumes only that the errors are symmetric, which the order of the turns ensures. Resampled from rounds that
    # were recorded beside other programs, it is as sensitive as Student's test, or more sensitive (+20 % in 97 instead
    # of 91 % of the comparisons of 40 rounds), and 3 to 6 % of equal sides differ. With weights from the spread of the
    # pairs within a round, it was less sensitive: the spread of a few pairs is hardly known.
    values = np.asarray(log_ratios, dtype=np.float64)
    n = len(values)
    if n < 2:
        return Ratio(math.exp(values[0]) if n else math.nan)
    if n < FEWEST_ROUNDS:
        error = max(float(values.std(ddof=1)), SMALLEST_SPREAD) / math.sqrt(n)
        middle, half = float(values.mean()), student_quantile(confidence, n - 1) * error
        p = student_p(middle / error, n - 1)
        return _ratio(middle, middle - half, middle + half, p, n, confidence)
    first, second = np.triu_indices(n)
    means = np.sort((values[first] + values[second]) / 2)  # Walsh averages, whose median is that of Hodges and Lehmann
    below = _rank_sums(n)
    # The statistic is the number of positive averages. The sums that are too improbable are 0 to `n_outside` - 1, so a
    # bound is passed by as many averages.
    n_outside = int(np.searchsorted(below, (1 - confidence) / 2, side="right"))
    n_positive = float((means > 0).sum() + (means == 0).sum() / 2)
    p = min(1.0, 2 * float(below[math.floor(min(n_positive, len(means) - n_positive))]))
    return _ratio(float(np.median(means)), float(means[n_outside - 1]), float(means[-n_outside]), p, n, confidence)


def _ratio(middle: float, low: float, high: float, p: float, n: int, confidence: float) -> Ratio:
    error = (high - low) / 2 / student_quantile(confidence, n - 1)
    detectable = detectable_ratio(error, n - 1, 1 - SIGNIFICANT)
    return Ratio(math.exp(middle), math.exp(low), math.exp(high), p, detectable)


@lru_cache(maxsize=64)
def _rank_sums(n: int) -> Floats:
    """Return the probability that the positive ranks of `n` symmetric values add up to at most 0, 1, 2, …."""
    counts = np.ones(1)
    for rank in range(1, n + 1):  # each rank is positive or not
        counts = np.concatenate([counts, np.zeros(rank)]) / 2 + np.concatenate([np.zeros(rank), counts]) / 2
    return np.cumsum(counts)
