"""How far a run is, and how long it may still take."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Clock", "Progress"]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is.

    Parameters
    ----------
    done, total : int
        Steps, over all launches.
    step : str
        What is being measured now; empty when nothing is.
    elapsed_s, left_s : float
        Time so far, and the estimate of what is left, in seconds.
    """

    done: int
    total: int
    step: str
    elapsed_s: float
    left_s: float


class Clock:
    """Counts steps and time. The estimate of what is left begins with the plan's own and learns from every step.

    Parameters
    ----------
    seconds : numpy.ndarray
        How long each step of the plan should take.
    launches : int
        How often the plan is measured.
    elapsed_s : float, default 0
        What it has taken before.
    """

    def __init__(self, seconds: npt.NDArray[np.float64], launches: int, elapsed_s: float = 0.0) -> None:
        self._seconds = seconds
        self._began = time.monotonic() - elapsed_s
        self._ended: float | None = None
        self._left_s = launches * float(seconds.sum())
        self._measured_s = 0.0
        self._spent_s = 0.0
        self._since = time.monotonic()
        self.done = 0
        self.total = launches * len(seconds)

    def skip(self, index: int) -> None:
        """A step needs no measuring."""
        self.done += 1
        self._left_s -= float(self._seconds[index])
        self._since = time.monotonic()

    def count(self, index: int) -> None:
        """A step was measured."""
        now = time.monotonic()
        self._spent_s += now - self._since
        self._measured_s += float(self._seconds[index])
        self.skip(index)

    def start_step(self) -> None:
        """A step begins."""
        self._since = time.monotonic()

    def stop(self) -> None:
        """Nothing more comes."""
        self._ended = time.monotonic()

    def restore(self, done: int, elapsed_s: float) -> None:
        """Be where a run that was read from disk had come to."""
        self.done, self._began, self._ended = done, 0.0, elapsed_s

    def read(self, step: str) -> Progress:
        """How far it is."""
        elapsed = (time.monotonic() if self._ended is None else self._ended) - self._began
        pace = self._spent_s / self._measured_s if self._measured_s else 1.0
        left = 0.0 if self._ended is not None else max(self._left_s, 0.0) * pace
        return Progress(self.done, self.total, step, elapsed, left)
