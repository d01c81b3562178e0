"""The interface of a backend, and the values that pass through it."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from meshlab.base._backends import BACKENDS
from meshlab.base._errors import CommunicatorError
from meshlab.comm._catalog import CATALOG, Collective

Mode = Literal["isolated", "pipelined", "graph"]

MODES: dict[Mode, str] = {
    "isolated": "one call at a time, with aligned starts after a barrier",
    "pipelined": "calls back to back, as nccl-tests does by default",
    "graph": "calls captured once and replayed by the device",
}
"""The timing modes and their descriptions. They measure different things, so results of two modes are never mixed."""

Buffers = Literal["plain", "registered", "symmetric"]

BUFFERS: dict[Buffers, str] = {
    "plain": "memory of the library that is not registered",
    "registered": "memory that each rank has registered with the communicator, for transfers without a copy (nccl)",
    "symmetric": "a window that all ranks of the group have registered together, so that kernels access the memory of "
    "all ranks directly (nccl, 2.27 or newer)",
}
"""The kinds of buffers that a benchmark can use, with their descriptions."""

CONFIGURABLE = "algorithm choice per call"
"""The fact of `Capabilities` that is ``"yes"`` if a call can have a `CallConfig`, or else ``"no: "`` and the reason."""

PROTOCOLS: dict[str, str] = {
    "ll": "low latency: 4 bytes of data and a 4-byte flag in each store",
    "ll128": "low latency over NVLink: 120 bytes of data and an 8-byte flag in each line",
    "simple": "bulk transfers with one synchronisation per chunk",
}
"""The protocols of NCCL that a call can choose, with their descriptions."""

CTA_POLICIES: dict[str, str] = {
    "default": "as many thread blocks as the call needs to be fast",
    "efficiency": "fewer thread blocks if that costs little bandwidth",
    "zero": "no thread blocks where copy engines can move the data, which needs symmetric buffers",
}
"""The policies for NCCL's thread blocks (CTAs), with their descriptions."""


class Call(NamedTuple):
    """A checked call of one rank.

    It is a tuple, because one is created for every call and tuples are cheap to create.

    Parameters
    ----------
    collective : Collective
        The collective, from the catalog.
    send, recv : array or None
        Contiguous arrays in the backend's memory. None if this rank has no input or no output.
    count : int
        The count, in elements. For ``all_to_all_v`` the sum of `send_counts`.
    dtype : numpy.dtype or None
        The element type. None for a barrier. Arrays of unsigned integers of the same size may hold the elements.
    op : str or None
        Name of the reduce operation.
    root : int or None
        The root, as a rank of the group.
    in_place : bool
        True if `send` and `recv` share memory, at the position that NCCL defines for the collective.
    scalar : numpy.ndarray or None
        The factor of the input, as a zero-dimensional array of `dtype`. Only for ``pre_mul_sum``.
    dest, source : int or None
        The receiving and the sending rank of the group, for messages.
    send_counts, recv_counts : tuple of int or None
        The number of elements sent to and received from each rank. Only for ``all_to_all_v``.
    tag : int, default 0
        The tag of a message. A receive takes the oldest message of its source with the same tag.
    """

    collective: Collective
    send: Any
    recv: Any
    count: int  # type: ignore[assignment]  # shadows tuple.count
    dtype: np.dtype[Any] | None
    op: str | None
    root: int | None
    in_place: bool
    scalar: npt.NDArray[Any] | None = None
    dest: int | None = None
    source: int | None = None
    send_counts: tuple[int, ...] | None = None
    recv_counts: tuple[int, ...] | None = None
    tag: int = 0

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
            ("tag", self.tag or None),
        ):
            if value is not None:
                details.append(f"{name}={value}")
        return " ".join([self.collective.name, *details])


BARRIER = Call(CATALOG["barrier"], None, None, 0, None, None, None, in_place=False)


@dataclass(frozen=True, slots=True, eq=False)
class Timings:
    """Measurements of one rank: one value per batch, in µs.

    Parameters
    ----------
    time_us : numpy.ndarray
        Time per call.
    host_us : numpy.ndarray
        Time per call until control returned to the host. Equal to `time_us` if calls block.
    start_us : numpy.ndarray or None
        Start of each batch, on a clock that all ranks of a host share. None unless starts were aligned.
    is_covered : numpy.ndarray or None, default None
        Whether other calls were running during the whole batch. None if there should be no others, or if they always
        run until the end of the measurement.
    """

    time_us: npt.NDArray[np.float64]
    host_us: npt.NDArray[np.float64]
    start_us: npt.NDArray[np.float64] | None
    is_covered: npt.NDArray[np.bool_] | None = None


class Prepared(Protocol):
    """A call, or a batch of calls, with resolved pointers, counts and handles."""

    def __call__(self) -> None:
        """Enqueue the call. If the library blocks, run it."""

    def measure(self, mode: Mode, calls: int, batches: int) -> Timings:
        """Time `batches` batches of `calls` calls each, on the backend's clock."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Capabilities of a backend and its library. A value that cannot be determined is ``"unknown"``, never a guess.

    Parameters
    ----------
    backend : str
        Name of the backend, such as ``"mpi"``.
    library : str
        Name and version of the library that moves the data.
    path : str
        File from which the library was loaded.
    where : str
        Label of the measured system, such as ``"MPI on this CPU"``.
    collectives, dtypes, ops, modes : tuple of str
        Supported collectives, element types, reduce operations and timing modes.
    abort : bool
        True if a rank that is blocked in a collective can be released without ending its process.
    facts : dict
        Further properties, by name. They include operations that the backend adds because the library lacks them. The
        name of a collective that is not supported may have ``"no: "`` and the reason.
    reduce_dtypes : tuple of str, optional
        Element types that reductions support. By default all of `dtypes`.
    largest_tag : int, default 0
        The largest tag of a message. 0 if the library has no tags and matches messages in order.
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
    largest_tag: int = 0


@dataclass(frozen=True, slots=True)
class CallConfig:
    """NCCL's configuration of a call. None lets NCCL choose.

    Parameters
    ----------
    algorithm : str, optional
        Algorithms that NCCL may use, such as ``"ring"``, ``"tree,ring"`` or ``"symk"`` (kernels for symmetric memory).
        A leading ``^`` excludes algorithms, as in ``"^symk"``.
    protocol : str, optional
        The protocol, see `PROTOCOLS`.
    min_ctas, max_ctas : int, optional
        Minimum and maximum number of thread blocks, and so of channels.
    cta_policy : str, optional
        The policy by which NCCL chooses the number of thread blocks, see `CTA_POLICIES`.
    """

    algorithm: str | None = None
    protocol: str | None = None
    min_ctas: int | None = None
    max_ctas: int | None = None
    cta_policy: str | None = None


@dataclass(frozen=True, slots=True)
class CallChoice:
    """The configuration and the buffers of one collective, up to a message size.

    Parameters
    ----------
    collective : str
        Name of the collective.
    max_bytes : int or None
        The largest message size that the choice is for, in bytes (S of nccl-tests, as in ``size_bytes``). None for all
        larger sizes.
    config : CallConfig, optional
        The configuration of the calls. By default NCCL chooses.
    buffers : {"plain", "registered", "symmetric"}, default "plain"
        The buffers with which the choice was measured.
    """

    collective: str
    max_bytes: int | None
    config: CallConfig = field(default_factory=CallConfig)
    buffers: Buffers = "plain"


class Comparer(Protocol):
    """Compares the calls of the ranks of one group, through a channel that is separate from the data."""

    def compare(self, calls: Sequence[Call], by_all: bool) -> None:
        """Raise on all ranks unless all of them issue the same calls. No calls mean a split."""
        # `by_all` is True if every rank that issues these calls compares them too, and has not compared them before.

    def compare_counts(self, calls: Sequence[Call]) -> None:
        """Raise on all ranks unless each rank expects the counts that the others send. All calls have counts."""


class Backend(Protocol):
    """One rank's endpoint of a communicator in a library."""

    rank: int
    size: int
    blocks: bool
    """True if a call blocks until it is done, False if it is enqueued."""

    @property
    def xp(self) -> Any:
        """The array module: numpy, or cupy for data in GPU memory."""

    @property
    def device(self) -> int | None:
        """CUDA device index on which arrays must be. None for host memory."""

    def empty(self, shape: int | tuple[int, ...], dtype: Any) -> Any:
        """Return an uninitialised array in the memory that the library transfers fastest."""

    def prepare(self, call: Call) -> Prepared:
        """Bind a checked call to the library."""

    def prepare_batch(self, calls: Sequence[Call]) -> Prepared:
        """Bind calls that are issued together, and that `CallValidator.check_batch` has checked against each other."""

    def runner(self, call: Call) -> Callable[[Any, Any], object]:
        """Return a function of input and output that runs the call on arrays of the same kind, and keeps none."""

    def comparer(self) -> Comparer | None:
        """Return the library's way to compare the calls of the ranks, or None if it has none or needs none."""

    def measure(
        self, work: Callable[[], object], barrier: Callable[[], object], mode: Mode, calls: int, batches: int
    ) -> Timings:
        """Time a function that issues calls of this backend, on its clock. `barrier` synchronises the ranks."""

    def local(self) -> AbstractContextManager[Any]:
        """Return a context in which array operations (of `xp`) are ordered with the calls before and after it."""

    def split(self, color: int | None, key: int, *, separate: bool = False) -> Backend | None:
        """Create one communicator per color, with ranks ordered by key. None for a rank without a color. Collective."""
        # Calls of a separate communicator may run at the same time as those of other communicators of this process,
        # from a different thread or on a different stream.

    def capabilities(self) -> Capabilities:
        """Return the capabilities of the backend."""

    def close(self) -> None:
        """Free the communicator. Collective."""


@dataclass(frozen=True, slots=True, eq=False)
class Rendezvous:
    """The data with which a rank finds the others when it opens the world of a backend."""

    size: int = -1  # -1 if the library determines it, and so for the rank
    rank: int = -1
    device: int = -1  # CUDA device index of this rank
    unique_id: bytes = b""  # from `ProcessModule.unique_id` on one rank
    store_file: str | None = None  # does not exist yet; through it the ranks of one host find each other
    beside: Backend | None = None  # the world of another backend that the same ranks have opened
    should_abort: Callable[[], bool] | None = None  # polled while the rank waits; True ends the wait with an error
    while_waiting: Callable[[], object] | None = None  # called repeatedly while the rank waits; may raise to end it


class ProcessModule(Protocol):
    """The functions of a module in `meshlab.comm.backends` whose ranks are processes."""

    def check_installed(self) -> None:
        """Raise a `CommunicatorError` if a package is missing. Imports none of them."""

    def load(self) -> None:
        """Import the library, so that a rank that cannot do it does not let the others wait in `open_world`."""

    def unique_id(self, peers: Sequence[str] | None = None) -> bytes:
        """Return an id that all ranks of a world must share, or an empty one if they need none. Rank 0 creates it."""
        # `peers` are addresses of the other hosts. None if the ranks of one host have a file to find each other.

    def open_world(self, rendezvous: Rendezvous) -> Backend:
        """Open the communicator of all ranks. All ranks must call it, and it blocks until they do."""


class BesideModule(ProcessModule, Protocol):
    """The functions of a module whose world the ranks of other backends can open too."""

    def capabilities(self) -> Capabilities:
        """Return the capabilities, without importing the library."""


def check_packages(backend: str, hint: str) -> None:
    """Raise a `CommunicatorError` with a hint if a package of a backend is missing. Imports none of them."""
    missing = BACKENDS[backend].missing_packages()
    if missing:
        raise CommunicatorError(
            f"backend {backend!r} needs {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not "
            "installed",
            hint=hint,
        )


class BlockingBackend:
    """The common part of backends whose calls block until they are done, on arrays of numpy."""

    xp = np
    device = None
    blocks = True

    def empty(self, shape: int | tuple[int, ...], dtype: Any) -> npt.NDArray[Any]:
        return np.empty(shape, dtype)

    def measure(
        self, work: Callable[[], object], barrier: Callable[[], object], mode: Mode, calls: int, batches: int
    ) -> Timings:
        return measure_blocking(work, barrier, mode, calls, batches)

    def local(self) -> AbstractContextManager[Any]:
        """Return an empty context, because array operations in numpy are synchronous."""
        return nullcontext()


class BlockingCalls(ABC):
    """Calls that a subclass binds to the library of a `BlockingBackend`."""

    @abstractmethod
    def __call__(self) -> None:
        """Run the calls."""

    @abstractmethod
    def barrier(self) -> Callable[[], object]:
        """Return the library's barrier of the group."""

    def timed_work(self) -> Callable[[], object]:
        """Return the function that `measure` times."""
        return self

    def explained(self) -> AbstractContextManager[None]:
        """Return a context that explains the errors of the library."""
        return nullcontext()

    def measure(self, mode: Mode, calls: int, batches: int) -> Timings:
        """Time the calls on the host's clock."""
        with self.explained():
            return measure_blocking(self.timed_work(), self.barrier(), mode, calls, batches)


def measure_blocking(
    call: Callable[[], object], barrier: Callable[[], object], mode: Mode, calls: int, batches: int
) -> Timings:
    """Time calls that block, on the host's clock. The barrier runs before every batch."""
    if mode not in ("isolated", "pipelined"):
        raise CommunicatorError(f"mode {mode!r} requires a GPU; on a CPU choose isolated or pipelined")
    clock = time.perf_counter_ns
    starts = np.empty(batches, dtype=np.int64)
    ends = np.empty(batches, dtype=np.int64)
    # Only the call is between the two clock readings. A loop over a single call would add about 70 ns, so a single call
    # has its own branch, and both readings are stored in the arrays after the second one.
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
    # perf_counter is CLOCK_MONOTONIC, which all processes of a host share.
    return Timings(time_us, time_us.copy(), starts / 1e3 if mode == "isolated" else None)
