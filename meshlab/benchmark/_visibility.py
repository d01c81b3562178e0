"""Visibility: the smallest change of a time that measurements would show on these hosts now."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from meshlab.analysis._launches import detectable_ratio
from meshlab.base._units import format_seconds, format_size
from meshlab.plans._sampling import BLOCKS

if TYPE_CHECKING:
    from meshlab.plans._steps import Step

FEWEST_BLOCKS = 6
MOST_BLOCKS = 12
TURN_LAUNCHES = 3

_SMALLEST_SPREAD = 1e-3  # relative: times have three or four digits


@dataclass(frozen=True, slots=True)
class Visibility:
    """The smallest slowdowns that 8 of 10 comparisons would show, from blocks of batches that were repeated.

    Parameters
    ----------
    collective : str
        The collective of the repeated step.
    size_bytes : int or None
        Its message size in bytes. None for a barrier.
    launches : int
        The number of launches of the plan.
    ratio : float
        Smallest visible ratio of two times, if each is measured like this plan and not at the same time.
    turns_ratio : float
        The same if both are measured in turns, block by block, with three launches.
    turns_s : float
        Expected duration of a measurement in turns of all steps of the plan, in seconds.
    """

    collective: str
    size_bytes: int | None
    launches: int
    ratio: float
    turns_ratio: float
    turns_s: float

    def __str__(self) -> str:
        at = self.collective if self.size_bytes is None else f"at {format_size(self.size_bytes)}"
        n = f" with {self.launches} launches" if self.launches > 1 else ""
        text = f"{ratio_text(self.ratio)} {at}{n}"
        if self.turns_ratio >= self.ratio:
            return text
        duration = format_seconds(self.turns_s)
        return f"{text}; {TURN_LAUNCHES} launches and turns: {ratio_text(self.turns_ratio)}, about {duration}"


def visibility_of(step: Step, log_times: Sequence[float], launches: int, turns_s: float) -> Visibility | None:
    """Return what is visible, from the logarithms of the median times of repeated blocks. None if they are too few."""
    if len(log_times) < FEWEST_BLOCKS:
        return None
    return Visibility(
        step.collective,
        step.size_bytes,
        launches,
        separate_ratio(log_times, launches),
        turns_ratio(log_times, TURN_LAUNCHES * BLOCKS),
        turns_s,
    )


def separate_ratio(log_times: Sequence[float], launches: int) -> float:
    """Return the smallest visible ratio of two times that are measured one after the other, with these launches each.

    `log_times` are the logarithms of the median times of repeated blocks.
    """
    # The spread of single blocks, although a step has the batches of eight. The load of a host comes and goes within
    # seconds, so that the blocks of one step are all fast or all slow, and their mean is hardly more certain than one.
    error = _spread(np.asarray(log_times)) * math.sqrt(2 / launches)
    # One launch on each side leaves no degree of freedom, but the blocks have some.
    return detectable_ratio(error, 2 * launches - 2 or len(log_times) - 1)


def turns_ratio(log_times: Sequence[float], n_blocks: int) -> float:
    """Return the smallest visible ratio of two times whose blocks take turns, with this number of blocks each."""
    differences = np.diff(log_times)
    return detectable_ratio(_spread(differences) / math.sqrt(n_blocks), n_blocks - 1)


def ratio_text(ratio: float) -> str:
    """Write a ratio with the digits that an estimate from a few blocks deserves, such as 1.3× or 4×."""
    if ratio >= 100:
        return "more than 100×"
    digits = 2 if ratio < 1.2 else 1 if ratio < 3 else 0
    scale = 10**digits
    return f"{math.ceil(ratio * scale - 1e-9) / scale:.{digits}f}×"  # rounded up, because it is a promise


def _spread(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> float:
    return max(float(np.std(values, ddof=1)), _SMALLEST_SPREAD)
