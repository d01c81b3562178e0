"""The `mpi` backend: mpi4py over whatever MPI library it finds. The only module that imports mpi4py.

What MPI itself has not, in front of it or behind it (`MpiBackend.capabilities` says so too):

- ``avg`` is MPI_SUM, and then each rank that gets the result divides it. ``pre_mul_sum`` multiplies the input into a
  buffer of its own, and sums that.
- A library that cannot reduce float16 or bfloat16 gets a user-defined MPI operation, which adds in numpy.
- MPI looks at sizes only when a message is too long for its buffer, and then it may end all processes. So the ranks of
  a collective compare what they call before they first make it: every time a method is called, once for a prepared
  call, never in a timed loop (one more MPI_Allreduce, of 16 bytes). A receive compares size and type with what came.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from meshlab.comm.agreement import disagreement, fingerprint, signature
from meshlab.comm.backend import Backend, Call, Capabilities, Mode, Timings, measure_blocking
from meshlab.comm.catalog import CATALOG
from meshlab.comm.dtypes import DTYPES, carrier
from meshlab.comm.backends.mpi import Binder
from meshlab.comm.elements import OPS
from meshlab.errors import CommunicatorError

__all__ = ["MpiBackend", "world"]


def world() -> MpiBackend:
    """The communicator of all processes that MPI started together.

    Raises
    ------
    CommunicatorError
        If mpi4py or an MPI library is missing, or the library does not start.
    """
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise CommunicatorError(
            f"MPI cannot be loaded ({error}); install it with: pip install mpi4py mpich - or use backend='threads'"
        ) from error
    return MpiBackend(MPI.COMM_WORLD.Dup())


class MpiBackend:
    """One rank's end of an MPI communicator; implements `meshlab.comm.backend.Backend`.

    Calls block until they are done, and a rank that waits cannot be freed: the set of processes is what recovers.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm
        The communicator. It belongs to this object from now on.
    """

    xp = np
    device = None

    def __init__(self, comm: Any) -> None:
        self.comm = comm
        self.rank: int = comm.Get_rank()
        self.size: int = comm.Get_size()
        self.binder = _binder()
        self.mpi_error: type[Exception] = self.binder.mpi.Exception
        self.agreement = _Agreement(comm, self.binder.mpi)

    def empty(self, shape: int | tuple[int, ...], dtype: Any) -> npt.NDArray[Any]:
        """Make an array with numpy."""
        return np.empty(shape, dtype)

    def prepare(self, call: Call) -> _MpiCalls:
        """Bind a checked call to MPI's buffers and operations."""
        return _MpiCalls(self, (call,), self.binder.bind(call, self).blocking(self.comm), not call.collective.peers)

    def prepare_batch(self, calls: Sequence[Call]) -> _MpiCalls:
        """Bind several checked calls, to be started together and waited for together."""
        is_shared = any(not call.collective.peers for call in calls)
        return _MpiCalls(self, calls, self.binder.together(calls, self), is_shared)

    def measure(
        self, work: Callable[[], object], barrier: Callable[[], object], mode: Mode, calls: int, batches: int
    ) -> Timings:
        """Time calls on the host's clock."""
        return measure_blocking(work, barrier, mode, calls, batches)

    def local(self) -> AbstractContextManager[Any]:
        """Array operations are done when they return."""
        return nullcontext()

    def split(self, color: int | None, key: int) -> Backend | None:
        """Make one communicator per color."""
        if self.size > 1:
            self.agreement.check(())
        mpi = self.binder.mpi
        comm = self.comm.Split(mpi.UNDEFINED if color is None else color, key)
        return None if comm == mpi.COMM_NULL else MpiBackend(comm)

    def capabilities(self) -> Capabilities:
        """Say what can be done: everything in the catalog, but for the 8-bit floats, which are NCCL's."""
        return _capabilities()

    def close(self) -> None:
        """Free the communicator."""
        self.agreement.close()
        self.comm.Free()


class _Agreement:
    """Lets the ranks of a group compare what they are about to do, on a communicator of its own.

    So ranks that compare never meet ranks that move data: they wait, which the deadline ends, and nothing is mixed up.
    """

    def __init__(self, comm: Any, mpi: Any) -> None:
        self._parent = comm
        self._comm: Any = None
        self._numbers = array("q", (0, 0))
        self._arguments = mpi.IN_PLACE, [self._numbers, mpi.INT64_T], mpi.MIN

    def check(self, calls: Sequence[Call]) -> None:
        """Raise on all ranks if not all come with the same calls, or none for a split."""
        if self._comm is None:
            self._comm = self._parent.Dup()
        numbers = self._numbers
        numbers[0] = number = fingerprint(calls)
        numbers[1] = -number
        self._comm.Allreduce(*self._arguments)
        if numbers[0] != -numbers[1]:
            texts = self._comm.allgather(signature(calls))
            rank, other = next((rank, other) for rank, other in enumerate(texts) if other != texts[0])
            raise disagreement(0, texts[0], rank, other)
        for call in calls:
            if call.collective.counted:
                self._check_counts(call.send_counts or (), call.recv_counts or ())

    def _check_counts(self, send_counts: tuple[int, ...], recv_counts: tuple[int, ...]) -> None:
        wanted = zip(self._comm.alltoall(list(send_counts)), recv_counts, strict=True)
        wrong = [(rank, sent, expected) for rank, (sent, expected) in enumerate(wanted) if sent != expected]
        for receiver, told in enumerate(self._comm.allgather(wrong[:1])):
            for sender, sent, expected in told:
                raise CommunicatorError(
                    f"ranks disagree: rank {sender} of the group sends {sent} elements to rank {receiver}, "
                    f"which expects {expected}"
                )

    def close(self) -> None:
        """Give the communicator back."""
        if self._comm is not None:
            self._comm.Free()


class _MpiCalls:
    def __init__(self, backend: MpiBackend, calls: Sequence[Call], work: Callable[[], object], is_shared: bool) -> None:
        self._backend = backend
        self._calls = calls
        self._work = work
        self._is_agreed = not is_shared or backend.size == 1

    def __call__(self) -> None:
        if not self._is_agreed:
            self._agree()
        try:
            self._work()
        except self._backend.mpi_error as error:
            self._explain(error)

    def measure(self, mode: Mode, calls: int, batches: int) -> Timings:
        if not self._is_agreed:
            self._agree()
        try:
            return measure_blocking(self._work, self._backend.comm.Barrier, mode, calls, batches)
        except self._backend.mpi_error as error:
            self._explain(error)

    def _agree(self) -> None:
        self._backend.agreement.check(self._calls)
        self._is_agreed = True

    def _explain(self, error: Exception) -> NoReturn:
        call, code = self._calls[0], error.Get_error_code()  # type: ignore[attr-defined]
        if len(self._calls) == 1:
            self._backend.binder.explain(error, code, call)
        name = call.collective.name if len(self._calls) == 1 else "a batch"
        raise CommunicatorError(f"MPI refused {name}: {error}", collective=name, code=code) from error


@cache
def _binder() -> Binder:
    from mpi4py import MPI

    return Binder(MPI)


@cache
def _capabilities() -> Capabilities:
    binder = _binder()
    mpi = binder.mpi
    library = mpi.Get_library_version().strip("\0\n ").splitlines()
    name = " ".join(library[0].replace("Version:", "").split()) if library else "MPI"
    return Capabilities(
        backend="mpi",
        library=name,
        path=_library_path(),
        where="MPI on this CPU",
        collectives=tuple(CATALOG),
        dtypes=tuple(name for name, dtype in DTYPES.items() if carrier(dtype) == dtype),
        ops=tuple(OPS),
        modes=("isolated", "pipelined"),
        abort=False,
        facts={
            "MPI standard": ".".join(str(part) for part in mpi.Get_version()),
            "mpi4py": _version("mpi4py"),
            "thread level": str(mpi.Query_thread()),
            "avg": "MPI_SUM, then each rank divides",
            "pre_mul_sum": "each rank multiplies, then MPI_SUM",
            **{f"{half} reductions": how for half, how in binder.halves.items()},
        },
    )


def _library_path() -> str:
    from pathlib import Path

    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return "unknown"
    paths = [line.split()[-1] for line in maps.splitlines() if "/libmpi" in line]
    return paths[0] if paths else "unknown"


def _version(distribution: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(distribution)
    except PackageNotFoundError:
        return "unknown"
