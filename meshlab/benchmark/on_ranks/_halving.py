"""Successive halving: rounds in which all options that are left are measured, and then the slower half is dropped."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

_TIED = 1.02
"""Options that are slower than the fastest one by at most this factor are tied, so that the simplest of them stay."""

_FEWEST = 4
"""The number of options that are left to be compared in all further rounds, besides the first one."""


@dataclass(frozen=True, slots=True)
class Halved:
    """The times of each option, one per round in which it took part, and the options of all rounds."""

    times: list[list[float]] = field(default_factory=list)
    left: list[int] = field(default_factory=list)


def halve(
    n: int,
    measure: Callable[[Sequence[int]], Sequence[float]],
    *,
    rounds: int,
    fewest: int = _FEWEST,
    goes_on: Callable[[int], bool] = lambda n_rounds: True,
) -> Halved:
    """Measure options in rounds, and drop the slower half of them after each of the first rounds, down to `fewest`."""
    # The first option is the default. It takes part in every round, so that all other options can be compared with it.
    # Options are ranked by the median of their times so far, relative to the default in the same round.
    times: list[list[float]] = [[] for _ in range(n)]
    ratios: list[list[float]] = [[] for _ in range(n)]
    left = list(range(n))
    for number in range(rounds):
        if number and not goes_on(number):
            break
        # In the opposite order in every second round: a drift then favours each option equally often.
        order = left[:: -1 if number % 2 else 1]
        times_us = dict(zip(order, measure(order), strict=True))
        for option, time in times_us.items():
            times[option].append(time)
            ratios[option].append(time / times_us[0])
        others = left[1:]
        n_kept = max(math.ceil(len(others) / 2), fewest)
        if number < rounds - 1 and n_kept < len(others):
            medians = {option: float(np.median(ratios[option])) for option in others}
            tied = min(medians.values()) * _TIED
            # The sort is stable, so that ties keep their order, in which simpler options come first.
            ranked = sorted(others, key=lambda option: max(medians[option], tied))
            fastest = min(others, key=lambda option: medians[option])
            left = [0, *sorted({*ranked[: n_kept - (fastest not in ranked[:n_kept])], fastest})]
    return Halved(times, left)
