"""Communication next to the computation of the same rank: the part that it hides, and the part that is exposed."""

from __future__ import annotations

import numpy as np

from meshlab.traces._rank_trace import Floats


def hidden_time(begin: Floats, end: Floats, compute: Floats | None) -> Floats:
    """Return the part of each interval in which a kernel computes, NaN if the file has no kernels.

    `compute` are sorted disjoint intervals of shape (n, 2).
    """
    if compute is None:
        return np.full(len(begin), np.nan)
    if not len(compute):
        return np.where(np.isfinite(begin), 0.0, np.nan)
    # The total time of computation before any time grows linearly within the intervals, and is constant between them.
    knots = compute.reshape(-1)
    lengths = compute[:, 1] - compute[:, 0]
    totals = np.repeat(np.concatenate([[0.0], np.cumsum(lengths)]), 2)[1:-1]
    return np.asarray(np.interp(end, knots, totals) - np.interp(begin, knots, totals))


def longest_idle(begin: Floats, end: Floats, idle: Floats) -> Floats:
    """Return the longest part of the idle intervals of the host within each interval, 0 without any."""
    longest = np.zeros(len(begin))
    if not len(idle):
        return longest
    first = np.searchsorted(idle[:, 1], begin, side="right")
    behind = np.searchsorted(idle[:, 0], end, side="left")
    for number in np.flatnonzero(behind > first).tolist():
        part = idle[first[number] : behind[number]]
        inside = np.minimum(part[:, 1], end[number]) - np.maximum(part[:, 0], begin[number])
        longest[number] = inside.max()
    return longest
