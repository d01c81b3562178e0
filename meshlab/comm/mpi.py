"""The `mpi` backend: mpi4py over whatever MPI library it finds. The only module that imports mpi4py.

What MPI itself has not, in front of it or behind it (`MpiBackend.capabilities` says so too):

- ``avg`` is MPI_SUM, and then each rank that gets the result divides it. ``pre_mul_sum`` multiplies the input into a
  buffer of its own, and sums that.
- A library that cannot reduce float16 or bfloat16 gets a user-defined MPI operation, which adds in numpy.
- MPI looks at sizes only when a message is too long for its buffer, and then it may end all processes. So the ranks of
  a collective compare what they call the first time they make it (one more MPI_Allreduce of 16 bytes, outside all
  timing), and a receive compares size and type with what came.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import numpy as np

from meshlab.comm.agreement import disagreement, signature
from meshlab.comm.backend import Backend, Call, Capabilities, Mode, Timings, measure_blocking
from meshlab.comm.catalog import CATALOG
from meshlab.comm.dtypes import DTYPES, carrier
from meshlab.comm.mpi_binding import Binder
from meshlab.comm.ops import OPS
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
        self._binder = _binder()
        self._numbers = np.empty(2, np.int64)

    def prepare(self, call: Call) -> _MpiCalls:
        """Bind a checked call to MPI's buffers and operations."""
        return _MpiCalls(self, (call,), self._binder.bind(call, self).blocking(self.comm))

    def prepare_batch(self, calls: Sequence[Call]) -> _MpiCalls:
        """Bind several checked calls, to be started together and waited for together."""
        return _MpiCalls(self, calls, self._binder.together(calls, self))

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
        mpi = self._binder.mpi
        comm = self.comm.Split(mpi.UNDEFINED if color is None else color, key)
        return None if comm == mpi.COMM_NULL else MpiBackend(comm)

    def capabilities(self) -> Capabilities:
        """Say what can be done: everything in the catalog, but for the 8-bit floats, which are NCCL's."""
        return _capabilities()

    def close(self) -> None:
        """Free the communicator."""
        self.comm.Free()

    def check_agreement(self, calls: Sequence[Call]) -> None:
        """Compare with the other ranks what is about to be called.

        Raises
        ------
        CommunicatorError
            If ranks call different things; on all of them.
        """
        mine = signature(calls)
        if not self._is_same(zlib.crc32(mine.encode())):
            for other, theirs in enumerate(self.comm.allgather(mine)):
                if theirs != mine:
                    raise disagreement(self.rank, mine, other, theirs)
        for call in calls:
            if call.send_counts is not None and call.recv_counts is not None:
                self._check_counts(call.send_counts, call.recv_counts)

    def _check_counts(self, send_counts: tuple[int, ...], recv_counts: tuple[int, ...]) -> None:
        coming = self.comm.alltoall(list(send_counts))
        wrong = [rank for rank in range(self.size) if coming[rank] != recv_counts[rank]]
        told = self.comm.allgather((wrong[0], coming[wrong[0]], recv_counts[wrong[0]]) if wrong else None)
        for rank, what in enumerate(told):
            if what is not None:
                raise CommunicatorError(
                    f"ranks disagree: rank {what[0]} of the group sends {what[1]} elements to rank {rank}, "
                    f"which expects {what[2]}"
                )

    def _is_same(self, number: int) -> bool:
        mpi, values = self._binder.mpi, self._numbers
        values[:] = number, -number
        self.comm.Allreduce(mpi.IN_PLACE, values, mpi.MIN)
        return bool(values[0] == -values[1])


class _MpiCalls:
    def __init__(self, backend: MpiBackend, calls: Sequence[Call], work: Callable[[], object]) -> None:
        self._backend = backend
        self._calls = calls
        self._work = work
        self._is_agreed = backend.size == 1 or all(call.collective.peers for call in calls)

    def __call__(self) -> None:
        try:
            if not self._is_agreed:
                self._agree()
            self._work()
        except CommunicatorError:
            raise
        except Exception as error:
            raise _explain(error, self._calls) from error

    def measure(self, mode: Mode, calls: int, batches: int) -> Timings:
        try:
            if not self._is_agreed:
                self._agree()
            return measure_blocking(self._work, self._backend.comm.Barrier, mode, calls, batches)
        except CommunicatorError:
            raise
        except Exception as error:
            raise _explain(error, self._calls) from error

    def _agree(self) -> None:
        self._backend.check_agreement(self._calls)
        self._is_agreed = True


def _explain(error: Exception, calls: Sequence[Call]) -> CommunicatorError:
    code = error.Get_error_code() if hasattr(error, "Get_error_code") else None
    name = calls[0].collective.name if len(calls) == 1 else "a batch"
    return CommunicatorError(f"MPI refused {name}: {error}", collective=name, code=code)


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
