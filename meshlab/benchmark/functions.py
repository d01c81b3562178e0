"""Times a function of the user's own, the same way as a collective; runs on the engines."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from meshlab.benchmark.on_ranks.sampling import Agreement, take_batches
from meshlab.benchmark.on_ranks.timing import Measured
from meshlab.comm.backend import Mode, Timings

if TYPE_CHECKING:
    from meshlab.frames.plan import Sampling
    from meshlab.benchmark.steps import Step
    from meshlab.comm.communicator import Communicator

__all__ = ["measure_function"]


def measure_function(
    comm: Communicator,
    everyone: Communicator,
    step: Step,
    sampling: Sampling,
    groups: npt.NDArray[np.int32],
    function: Callable[[Communicator], Any],
) -> Measured:
    """Time a function on this rank. Every rank of every group calls it, and all of them stop together.

    The function is called once. What it returns is timed when that can be called; else the function itself is, so that
    the first call was its warm-up. In isolated mode it is noted when this rank comes to the first collective of each
    call, because the rank that comes last is the one that the others wait for.

    Parameters
    ----------
    comm, everyone, step, sampling, groups
        As in `meshlab.benchmark.on_ranks.timing.measure_together`.
    function : callable
        ``function(comm)``.

    Returns
    -------
    Measured
        Without a count of wrong elements: nobody knows what is right.
    """
    made = function(comm)
    watch = _Arrivals(comm, made if callable(made) else lambda: function(comm))
    barrier = comm.prepare("barrier").enqueue
    arrivals: list[float] = []

    def measure(mode: Mode, calls: int, batches: int) -> Timings:
        if mode != "isolated":
            return comm.backend.measure(watch.work, barrier, mode, calls, batches)
        with watch.noting() as times:
            timings = comm.backend.measure(watch.noted, barrier, mode, calls, batches)
        arrivals.extend(times[-batches:])  # those before were the backend's own warm-up
        return timings

    with comm.backend.local():  # on a GPU, the function's own kernels are timed too
        batches = take_batches(measure, Agreement(everyone, groups), step.mode, sampling)
    return Measured(batches, None, np.array(arrivals) if arrivals else None)


class _Arrivals:
    """Notes when a rank enters the first collective of each call of `work`."""

    def __init__(self, comm: Communicator, work: Callable[[], object]) -> None:
        self.work = work
        self._comm = comm
        self._times: list[float] = []
        self._is_under_way = False

    def noted(self) -> None:
        """Call `work`; where it makes no collective, its beginning counts."""
        self._times.append(time.perf_counter_ns() / 1e3)
        self._is_under_way = True
        self.work()
        self._is_under_way = False

    @contextmanager
    def noting(self) -> Iterator[list[float]]:
        """Listen to the communicator; gives the list that the times, in µs, are put in."""
        self._times = []
        told = self._comm._on_enter

        def enter() -> None:
            if self._is_under_way:
                self._is_under_way = False
                self._times[-1] = time.perf_counter_ns() / 1e3
            if told is not None:
                told()

        self._comm._on_enter = enter
        try:
            yield self._times
        finally:
            self._comm._on_enter = told
