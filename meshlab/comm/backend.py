"""What a backend implements, and the plain values that go in and come out.

A backend is small on purpose: `meshlab.comm.Communicator` checks every call against the catalog, so a backend only
binds a checked call to its library and times it with its own clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from meshlab.comm.catalog import Collective
from meshlab.errors import CommunicatorError

__all__ = [
    "MODES",
    "Backend",
    "Call",
    "Capabilities",
    "Mode",
    "Prepared",
    "Timings",
    "measure_blocking",
]

Mode = Literal["isolated", "pipelined", "graph"]

MODES: dict[Mode, str] = {
    "isolated": "one call at a time, started together behind a barrier",
    "pipelined": "calls back to back, as nccl-tests does by default",
    "graph": "calls captured once and replayed by the device",
}
"""The ways to time a collective. They measure different things and are never mixed."""


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One checked collective call.

    Parameters
    ----------
    collective : Collective
        Its row of the catalog.
    send, recv : array or None
        Contiguous arrays in the backend's own memory; None for a barrier.
    count : int
        The count argument, in elements.
    dtype : numpy.dtype or None
        The element type.
    op : str or None
        The reduce operation.
    root : int or None
        A rank of the group.
    in_place : bool
        True when `send` and `recv` share memory, at the place that NCCL defines for the collective.
    """

    collective: Collective
    send: Any
    recv: Any
    count: int
    dtype: np.dtype[Any] | None
    op: str | None
    root: int | None
    in_place: bool


@dataclass(frozen=True, slots=True, eq=False)
class Timings:
    """What one rank measured: one value per batch, in µs.

    Parameters
    ----------
    time_us : numpy.ndarray
        Time per call.
    host_us : numpy.ndarray
        Time per call until it returned to the host. Equal to `time_us` where calls block.
    start_us : numpy.ndarray or None
        When the batch began, on a clock that all ranks of one host share; None unless starts were aligned.
    """

    time_us: npt.NDArray[np.float64]
    host_us: npt.NDArray[np.float64]
    start_us: npt.NDArray[np.float64] | None


class Prepared(Protocol):
    """A call with everything resolved: pointers, counts, handles."""

    def __call__(self) -> None:
        """Enqueue the call; where the library blocks, carry it out."""

    def measure(self, mode: Mode, calls: int, batches: int) -> Timings:
        """Time `batches` batches of `calls` calls each, on the backend's own clock."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend and the library below it can do. ``"unknown"`` is a value, never a guess.

    Parameters
    ----------
    backend : str
        Such as ``"mpi"``.
    library : str
        Name and version of the library that moves the data.
    path : str
        Where the library was loaded from.
    where : str
        What the numbers are numbers of, for titles: such as ``"MPI on this CPU"``.
    collectives, dtypes, ops, modes : tuple of str
        What a call may ask for.
    abort : bool
        True when a rank that waits in a collective can be freed without ending its process.
    facts : dict
        Further facts by name.
    """

    backend: str
    library: str
    path: str
    where: str
    collectives: tuple[str, ...]
    dtypes: tuple[str, ...]
    ops: tuple[str, ...]
    modes: tuple[Mode, ...]
    abort: bool
    facts: dict[str, str] = field(default_factory=dict)


class Backend(Protocol):
    """One rank's end of a communicator inside a library."""

    rank: int
    size: int

    @property
    def xp(self) -> Any:
        """The array module: numpy, or cupy where the data lives on a GPU."""

    def prepare(self, call: Call) -> Prepared:
        """Resolve a checked call."""

    def split(self, color: int | None, key: int) -> Backend | None:
        """Make one communicator per color, ranks ordered by key; None for a rank without a color. Collective."""

    def capabilities(self) -> Capabilities:
        """Say what can be done."""

    def close(self) -> None:
        """Give the communicator back. Collective."""


def measure_blocking(
    call: Callable[[], object], barrier: Callable[[], object], mode: Mode, calls: int, batches: int
) -> Timings:
    """Time calls that block until they are done, on the host's clock.

    In isolated mode every call starts behind a barrier of its own and is one batch; in pipelined mode the barrier
    stands before the batch and the calls follow each other.

    Parameters
    ----------
    call, barrier : callable
        What to time, and how to bring the ranks together.
    mode : {"isolated", "pipelined"}
        See `MODES`.
    calls, batches : int
        How many calls in a batch, and how many batches.

    Raises
    ------
    CommunicatorError
        If the mode needs a device.
    """
    if mode not in ("isolated", "pipelined"):
        raise CommunicatorError(f"mode {mode!r} needs a GPU; on a CPU there are isolated and pipelined")
    clock = time.perf_counter_ns
    starts = np.empty(batches, dtype=np.int64)
    ends = np.empty(batches, dtype=np.int64)
    if calls == 1:
        for batch in range(batches):
            barrier()
            begin = clock()
            call()
            ends[batch] = clock()
            starts[batch] = begin
    else:
        repeat = range(calls)
        for batch in range(batches):
            barrier()
            begin = clock()
            for _ in repeat:
                call()
            ends[batch] = clock()
            starts[batch] = begin
    time_us = (ends - starts) / (1e3 * calls)
    return Timings(time_us, time_us.copy(), starts / 1e3 if mode == "isolated" else None)
