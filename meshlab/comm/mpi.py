"""The `mpi` backend: mpi4py over whatever MPI library it finds. The only module that imports mpi4py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from meshlab.comm.backend import Backend, Call, Capabilities, Mode, Timings, measure_blocking
from meshlab.comm.catalog import CATALOG, DTYPES, OPS
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

    def __init__(self, comm: Any) -> None:
        self.comm = comm
        self.rank: int = comm.Get_rank()
        self.size: int = comm.Get_size()

    def prepare(self, call: Call) -> _MpiCall:
        """Bind a checked call to MPI's buffers and operations."""
        return _MpiCall(self.comm, call)

    def split(self, color: int | None, key: int) -> Backend | None:
        """Make one communicator per color."""
        from mpi4py import MPI

        comm = self.comm.Split(MPI.UNDEFINED if color is None else color, key)
        return None if comm == MPI.COMM_NULL else MpiBackend(comm)

    def capabilities(self) -> Capabilities:
        """Say what can be done."""
        from mpi4py import MPI

        library = MPI.Get_library_version().strip("\0\n ").splitlines()
        name = " ".join(library[0].replace("Version:", "").split()) if library else "MPI"
        return Capabilities(
            backend="mpi",
            library=name,
            path=_library_path(),
            where="MPI on this CPU",
            collectives=tuple(CATALOG),
            dtypes=tuple(DTYPES),
            ops=tuple(OPS),
            modes=("isolated", "pipelined"),
            abort=False,
            facts={
                "MPI standard": ".".join(str(part) for part in MPI.Get_version()),
                "mpi4py": _version("mpi4py"),
                "thread level": str(MPI.Query_thread()),
            },
        )

    def close(self) -> None:
        """Free the communicator."""
        self.comm.Free()


class _MpiCall:
    def __init__(self, comm: Any, call: Call) -> None:
        self._comm = comm
        self._call = call
        self._work = _bind(comm, call)

    def __call__(self) -> None:
        try:
            self._work()
        except Exception as error:
            raise _explain(error, self._call) from error

    def measure(self, mode: Mode, calls: int, batches: int) -> Timings:
        try:
            return measure_blocking(self._work, self._comm.Barrier, mode, calls, batches)
        except CommunicatorError:
            raise
        except Exception as error:
            raise _explain(error, self._call) from error


def _explain(error: Exception, call: Call) -> CommunicatorError:
    code = error.Get_error_code() if hasattr(error, "Get_error_code") else None
    return CommunicatorError(f"MPI refused {call.collective.name}: {error}", collective=call.collective.name, code=code)


def _bind(comm: Any, call: Call) -> Callable[[], object]:
    """The shortest callable that carries the call out."""
    from mpi4py import MPI

    name = call.collective.name
    if name == "barrier":
        return comm.Barrier  # type: ignore[no-any-return]
    datatype = MPI._typedict[call.dtype.char] if call.dtype is not None else None
    op = {"sum": MPI.SUM, "min": MPI.MIN, "max": MPI.MAX}.get(call.op or "")
    send = [call.send.reshape(-1), datatype]
    recv = [call.recv.reshape(-1), datatype]
    if name == "all_reduce":
        source = MPI.IN_PLACE if call.in_place else send
        return lambda: comm.Allreduce(source, recv, op)
    if name == "all_gather":
        source = MPI.IN_PLACE if call.in_place else send
        return lambda: comm.Allgather(source, recv)
    if name == "reduce_scatter":
        if not call.in_place:
            return lambda: comm.Reduce_scatter_block(send, recv, op)
        own = call.recv.reshape(-1)
        front = call.send.reshape(-1)[: call.count]
        offset = comm.Get_rank() * call.count

        def scatter_in_place() -> None:
            # MPI leaves the result at the front of the buffer, NCCL's convention wants it at the rank's own place.
            comm.Reduce_scatter_block(MPI.IN_PLACE, send, op)
            if offset:
                own[:] = front

        return scatter_in_place
    if name == "broadcast":
        if call.in_place:
            return lambda: comm.Bcast(recv, call.root)
        if comm.Get_rank() != call.root:
            return lambda: comm.Bcast(recv, call.root)

        def send_from_root() -> None:
            comm.Bcast(send, call.root)
            recv[0][:] = send[0]

        return send_from_root
    raise CommunicatorError(f"MPI has no {name}", collective=name)


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
