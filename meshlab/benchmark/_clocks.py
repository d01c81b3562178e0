"""Errors of the ranks' clocks, estimated from the barrier before every batch."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_TOLERANCE_US = 1.0
"""The clocks of two cores may differ by a fraction of a microsecond although they are one clock."""

_MOST_POINTS = 200


def clock_errors(starts_us: Floats, ends_us: Floats) -> Floats:
    """Return the error of each rank's clock at the start of each batch, relative to the median of the ranks.

    No rank leaves a barrier before every rank has entered it. So the end of a rank's batch is earlier than the start of
    the next batch on every other rank, and every batch bounds the difference of two clocks from both sides, however
    late a rank is (as in the exchange of messages of D. L. Mills, Internet Time Synchronization, 1991). If bounds
    exclude zero, the clocks differ, and the offset and the rate of the difference are the Theil-Sen line through the
    centres of the narrower half of the bounds. Otherwise the error is zero.

    Parameters
    ----------
    starts_us, ends_us : numpy.ndarray
        Start and end of each batch on the clock of each rank, in µs, shape (ranks, batches). A barrier over all ranks
        is between the end of a batch and the start of the next one.

    Returns
    -------
    numpy.ndarray
        The errors, in µs, shape (ranks, batches).

    Examples
    --------
    >>> times = np.arange(10) * 100.0
    >>> clock_errors(np.stack([times, times + 1000]), np.stack([times + 50, times + 1050]))[:, 0]
    array([-500.,  500.])
    """
    errors = np.zeros_like(starts_us)
    if starts_us.shape[1] < 2:
        return errors
    when = starts_us[0, 1:]
    for rank in range(1, len(starts_us)):
        low = ends_us[rank, :-1] - starts_us[0, 1:]
        high = starts_us[rank, 1:] - ends_us[0, :-1]
        if low.max() <= _TOLERANCE_US and high.min() >= -_TOLERANCE_US:
            continue
        width = high - low
        used = np.argsort(width, kind="stable")[: min(max(2, len(width) // 2), _MOST_POINTS)]
        offset, rate = _line(when[used], (low[used] + high[used]) / 2)
        errors[rank] = offset + rate * starts_us[0]
    centred: Floats = errors - np.median(errors, axis=0)
    return centred


def _line(x: Floats, y: Floats) -> tuple[float, float]:
    """Return the intercept and the slope of the Theil-Sen line."""
    first, second = np.triu_indices(len(x), 1)
    distance = x[second] - x[first]
    is_apart = distance != 0
    slope = float(np.median((y[second] - y[first])[is_apart] / distance[is_apart])) if is_apart.any() else 0.0
    return float(np.median(y - slope * x)), slope
