"""What a backend implements, and the plain values that go in and come out.

A backend is small on purpose: `meshlab.comm.Communicator` checks every call against the catalog, so a backend only
binds a checked call to its library and times it with its own clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from meshlab.comm.catalog import Collective
from meshlab.errors import CommunicatorError

__all__ = [
    "MODES",
    "Backend",
    "Call",
    "CallConfig",
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


class Call(NamedTuple):
    """One checked call of one rank. A tuple, because it is made anew for every call, and nothing is made faster.

    Parameters
    ----------
    collective : Collective
        Its row of the catalog.
    send, recv : array or None
        Contiguous arrays in the backend's own memory; None where this rank has no input or no output.
    count : int
        The count argument, in elements; for ``all_to_all_v`` the sum of `send_counts`.
    dtype : numpy.dtype or None
        The element type; None for a barrier. Arrays of unsigned integers of the same size may carry it.
    op : str or None
        The name of the reduce operation.
    root : int or None
        A rank of the group.
    in_place : bool
        True when `send` and `recv` share memory, at the place that NCCL defines for the collective.
    scalar : numpy.ndarray or None
        What every input is multiplied by before the sum: no dimensions, in `dtype`; only for ``pre_mul_sum``.
    dest, source : int or None
        To whom a call sends and from whom it receives; ranks of the group.
    send_counts, recv_counts : tuple of int or None
        How many elements go to and come from each rank, one part behind the other; only for ``all_to_all_v``.
    """

    collective: Collective
    send: Any
    recv: Any
    count: int  # type: ignore[assignment]  # hides the method of tuples
    dtype: np.dtype[Any] | None
    op: str | None
    root: int | None
    in_place: bool
    scalar: npt.NDArray[Any] | None = None
    dest: int | None = None
    source: int | None = None
    send_counts: tuple[int, ...] | None = None
    recv_counts: tuple[int, ...] | None = None

    def __str__(self) -> str:
        if self.collective.counted:
            details = [f"send_counts={list(self.send_counts or ())} recv_counts={list(self.recv_counts or ())}"]
        else:
            details = [f"count={self.count}"]
        op = self.op if self.scalar is None else f"{self.op}({self.scalar})"
        for name, value in (
            ("dtype", self.dtype),
            ("op", op),
            ("root", self.root),
            ("dest", self.dest),
            ("source", self.source),
        ):
            if value is not None:
                details.append(f"{name}={value}")
        return " ".join([self.collective.name, *details])


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
    """A call, or a batch of calls, with everything resolved: pointers, counts, handles."""

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
        Further facts by name; what a library lacks and is made in front of it or behind it, is said here.
    reduce_dtypes : tuple of str, optional
        The dtypes that can be reduced, where they are fewer than those that can be moved.
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
    reduce_dtypes: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class CallConfig:
    """How NCCL should carry out a call; None leaves it to NCCL.

    Parameters
    ----------
    algorithm : str, optional
        Which algorithms it may use: ``"ring"``, ``"tree"``, ``"tree,ring"``, ``"^symk"`` for all but one.
    min_ctas, max_ctas : int, optional
        How many thread blocks, which also means how many channels.
    """

    algorithm: str | None = None
    min_ctas: int | None = None
    max_ctas: int | None = None


class Backend(Protocol):
    """One rank's end of a communicator inside a library."""

    rank: int
    size: int

    @property
    def xp(self) -> Any:
        """The array module: numpy, or cupy where the data lives on a GPU."""

    @property
    def device(self) -> int | None:
        """The GPU that arrays must be on; None where they are in the host's memory."""

    def empty(self, shape: int | tuple[int, ...], dtype: Any) -> Any:
        """Make an uninitialised array in the memory that the library moves fastest."""

    def prepare(self, call: Call) -> Prepared:
        """Resolve a checked call."""

    def prepare_batch(self, calls: Sequence[Call]) -> Prepared:
        """Resolve several checked calls that are made at once, none of them waiting for another one here.

        All of them are sound: no output overlaps another buffer, and what a rank sends to itself it receives.
        """

    def measure(
        self, work: Callable[[], object], barrier: Callable[[], object], mode: Mode, calls: int, batches: int
    ) -> Timings:
        """Time anything that enqueues or makes calls of this backend, on its own clock.

        `barrier` makes such calls too, and brings together the ranks that take part.
        """

    def local(self) -> AbstractContextManager[Any]:
        """Enter a context whose array operations (of `xp`) come in order with the calls made before and after."""

    def aside(self) -> Backend:
        """The same ranks, for calls of a second thread that do not wait for the calls of other communicators."""

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
