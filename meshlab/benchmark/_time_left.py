"""The time left of a run, as a range that follows from the estimate and from the pace of the steps so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

_PARTS = 4  # of the work so far, whose paces are compared
_TRUSTED_SHARE = 0.2  # of the work, after which only the pace counts
_LEAST_WIDTH = 0.1  # relative


class Work(NamedTuple):
    """The duration of a step, with everything around it, and the expected one, in seconds."""

    spent_s: float
    expected_s: float


def time_left(left_s: Sequence[float], work: Sequence[Work]) -> tuple[float, float, float]:
    """Return the lower end, the expectation and the upper end of the time left, in seconds.

    `left_s` are those of the estimate for the steps that are left, and `work` are the steps so far.
    """
    low_s, expected_s, high_s = left_s
    done = np.array(work, dtype=np.float64).reshape(-1, 2)
    done = done[done[:, 1] > 0]  # steps that were skipped or taken over were not expected to take any time
    if not len(done):
        return low_s, expected_s, high_s
    # A machine that was twice as slow as expected remains so, but a few steps do not represent all.
    pace = float(done[:, 0].sum() / done[:, 1].sum())
    trust = min(float(done[:, 1].sum()) / (_TRUSTED_SHARE * (float(done[:, 1].sum()) + expected_s)), 1.0)
    mixed = pace**trust
    lowest, highest = _paces(done)
    below = trust * min(lowest / pace, 1 - _LEAST_WIDTH) + (1 - trust) * _ratio(low_s, expected_s)
    above = trust * max(highest / pace, 1 + _LEAST_WIDTH) + (1 - trust) * _ratio(high_s, expected_s)
    return mixed * below * expected_s, mixed * expected_s, mixed * above * expected_s


def _paces(done: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> tuple[float, float]:
    """Return the lowest and the highest pace of consecutive parts with about the same expected duration."""
    edges = np.cumsum(done[:, 1]) / done[:, 1].sum()
    part = np.minimum((edges * _PARTS - 1e-9).astype(int), _PARTS - 1)
    paces = [float(done[part == k, 0].sum() / done[part == k, 1].sum()) for k in np.unique(part)]
    return min(paces), max(paces)


def _ratio(value_s: float, expected_s: float) -> float:
    return value_s / expected_s if expected_s > 0 else 1.0
