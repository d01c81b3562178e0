"""Options whose times are made up, on ranks that are real: they vote, and disagree if the code lets them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from meshlab.comm._backend import Mode, Timings
from meshlab.comm._communicator import Communicator
from meshlab.plans._steps import Step

__all__ = ["PlantedOptions"]


class PlantedOptions:
    """Prepares options that take a given time, with noise that differs between the ranks.

    Parameters
    ----------
    time_us : callable
        The time of a step on a rank of the world.
    noise : float
        Largest relative deviation of a batch.
    n_wrong : mapping
        Numbers of wrong elements, by the maximum number of CTAs of an option and the global rank.
    errors : mapping
        Exceptions, by the maximum number of CTAs of an option and the global rank.
    """

    def __init__(
        self,
        time_us: Callable[[Step, int], float],
        *,
        noise: float = 0.0,
        n_wrong: Mapping[tuple[int | None, int], int] | None = None,
        errors: Mapping[tuple[int | None, int], Exception] | None = None,
    ) -> None:
        self.time_us = time_us
        self.noise = noise
        self.n_wrong = n_wrong or {}
        self.errors = errors or {}
        self.log: list[tuple[int | None, int | None, int]] = []
        """Size, maximum number of CTAs and number of batches of all measurements of rank 0."""
        self._lock = threading.Lock()

    def __call__(self, comm: Communicator, step: Step, check: bool) -> tuple[_PlantedCall, int | None]:
        key = step.max_ctas, comm.world_rank
        if key in self.errors:
            raise self.errors[key]
        return _PlantedCall(self, comm, step), self.n_wrong.get(key, 0) if check else None

    def add(self, comm: Communicator, step: Step, batches: int) -> None:
        if comm.world_rank == 0:
            with self._lock:
                self.log.append((step.size_bytes, step.max_ctas, batches))


class _PlantedCall:
    def __init__(self, planted: PlantedOptions, comm: Communicator, step: Step) -> None:
        self._planted, self._comm, self._step = planted, comm, step
        self._random = np.random.default_rng([comm.world_rank, step.max_ctas or 0])

    def measure(self, mode: Mode, calls: int, batches: int) -> Timings:
        self._comm.barrier()  # a rank that measures another option than its peers is noticed by the engines
        self._planted.add(self._comm, self._step, batches)
        noise = 1 + self._planted.noise * self._random.uniform(-1, 1, batches)
        times = self._planted.time_us(self._step, self._comm.world_rank) * noise
        return Timings(times, times, None)

    @contextmanager
    def held(self, mode: Mode, calls: int) -> Iterator[Any]:
        yield lambda batches: self.measure(mode, calls, batches)
