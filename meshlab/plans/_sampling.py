"""The sampling of a step: its precision, and the limits of its batches and its time."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from meshlab.base._errors import BenchError, did_you_mean

SLOW_STEP_S = 10.0
"""Time limit in seconds of a step whose calls are too slow to compute an interval within `Sampling.max_s`."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """The number of batches of a step, and the conditions to stop.

    Sampling stops when the 95 % interval of the median is narrow enough, or when the time or the batches run out. All
    ranks decide from the same times, so they stop at the same batch. An interval that is checked repeatedly is
    sometimes narrow by chance, which makes this stopping rule slightly optimistic. `min_batches` limits the effect.

    Parameters
    ----------
    precision : float, default 0.05
        Half-width of the interval, relative to the median, at which sampling stops.
    min_batches : int, default 30
        Minimum number of batches, unless the time runs out first. An interval needs 6.
    max_batches : int, default 200
        Maximum number of batches.
    batch_us : float, default 1000
        Target duration of a pipelined batch, in µs. It determines the number of calls per batch.
    max_calls : int, default 1000
        Maximum number of calls per batch.
    max_s : float, default 0.5
        Maximum duration of a step, in seconds. Slow calls may take up to 10 s if that yields the 6 batches that an
        interval needs. Even slower calls get fewer batches and no interval.
    warmup_batches : int, default 2
        Number of batches that are kept and marked as warm-up, but excluded from the statistics. Slow batches that
        directly follow them are marked too.

    Raises
    ------
    BenchError
        If a number is too small.
        If `min_batches` is larger than `max_batches`.

    Examples
    --------
    >>> import meshlab as ml
    >>> ml.Sampling(max_s=0.05).min_batches
    30
    >>> ml.Sampling.named("thorough").precision
    0.01
    >>> ml.Sampling(min_batches=100, max_batches=50)
    Traceback (most recent call last):
    meshlab.errors.BenchError: min_batches=100 and max_batches=50 must be at least 1, and ascending
    """

    precision: float = 0.05
    min_batches: int = 30
    max_batches: int = 200
    batch_us: float = 1000.0
    max_calls: int = 1000
    max_s: float = 0.5
    warmup_batches: int = 2

    def __post_init__(self) -> None:
        for item in fields(self):
            if not isinstance(value := getattr(self, item.name), (int, float, np.number)):
                raise BenchError(f"{item.name}={value!r} must be a number")
        if not 1 <= self.min_batches <= self.max_batches:
            raise BenchError(
                f"min_batches={self.min_batches} and max_batches={self.max_batches} must be at least 1, and ascending"
            )
        for name in ("precision", "batch_us", "max_s", "max_calls"):
            if not getattr(self, name) > 0:  # "not >" rather than "<=", to reject NaN as well
                raise BenchError(f"{name}={getattr(self, name)} must be positive")
        if self.warmup_batches < 0:
            raise BenchError(f"warmup_batches={self.warmup_batches} must not be negative")

    @classmethod
    def named(cls, name: str) -> Sampling:
        """Return one of three predefined choices.

        ============  =====================================  ===========  ==========  ==============================
        name          half-width of the median's interval    batches      at most     purpose
        ============  =====================================  ===========  ==========  ==============================
        ``quick``     10 % of the median                     10 to 40     0.1 s       a first look, without p95
        ``default``   5 %                                    30 to 200    0.5 s       curves, with p95
        ``thorough``  1 %                                    100 to 1000  5 s         comparisons, with p95 and p99
        ============  =====================================  ===========  ==========  ==============================

        A step stops when the interval is narrow enough, at the earliest after the smaller number of batches. If the
        time or the batches run out first, the interval is wider, and ``stop_reason`` shows it.

        Raises
        ------
        BenchError
            If the name is unknown.
        """
        if not isinstance(name, str) or name not in _SAMPLINGS:
            raise BenchError(
                f"unknown sampling {name!r}{did_you_mean(name, _SAMPLINGS)}; choose {', '.join(_SAMPLINGS)}, or pass a "
                "Sampling"
            )
        return cls(**_SAMPLINGS[name])


_SAMPLINGS: dict[str, dict[str, Any]] = {
    "quick": {"precision": 0.1, "min_batches": 10, "max_batches": 40, "batch_us": 500.0, "max_s": 0.1},
    "default": {},
    "thorough": {"precision": 0.01, "min_batches": 100, "max_batches": 1000, "max_s": 5.0},
}


# An even number, because half of the rounds have the reverse order. An interval needs six blocks, and would then be
# all above or all below the same value in 3 % of the cases by chance. With eight blocks, this happens in 0.8 %.
_BLOCKS = 8


def n_blocks(sampling: Sampling) -> int:
    """Return the number of blocks into which the batches of a step with alternatives are divided."""
    return min(_BLOCKS, sampling.max_batches)


def block_sampling(sampling: Sampling, n: int) -> Sampling:
    """Return the sampling of one of `n` blocks, which together take about as long as one step."""
    if n == 1:
        return sampling
    return replace(
        sampling,
        min_batches=min(math.ceil(sampling.min_batches / n), sampling.max_batches // n),
        max_batches=sampling.max_batches // n,
        max_s=sampling.max_s / n,
    )
