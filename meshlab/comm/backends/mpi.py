"""Checked calls in MPI's words: which method, which handles, and what comes before and after it."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from typing import Any, NamedTuple, NoReturn, Protocol

import numpy as np
import numpy.typing as npt

from meshlab.comm.backend import Backend, Call, Capabilities, Mode, Timings, measure_blocking
from meshlab.comm.catalog import CATALOG
from meshlab.comm.elements import DTYPES, OPS, Array, carrier, divide, flat_elements
from meshlab.comm.validate import disagreement, fingerprint, signature
from meshlab.errors import CommunicatorError

__all__ = ["Binding", "MpiBackend", "MpiBinder", "Place", "world"]


_HANDLES = {
    "float16": "UINT16_T",
    "bfloat16": "UINT16_T",
    "float32": "FLOAT",
    "float64": "DOUBLE",
    "int8": "INT8_T",
    "uint8": "UINT8_T",
    "int32": "INT32_T",
    "uint32": "UINT32_T",
    "int64": "INT64_T",
    "uint64": "UINT64_T",
}

_PLAIN = {"sum": "SUM", "prod": "PROD", "min": "MIN", "max": "MAX"}

_BEHIND = {"sum": "sum", "prod": "prod", "min": "min", "max": "max", "avg": "sum", "pre_mul_sum": "sum"}

_TAGS = {dtype: tag for tag, dtype in enumerate(DTYPES.values())}  # a message's tag says what its elements are

_NAMES = list(DTYPES)


class Place(Protocol):
    """Where a call is made."""

    comm: Any
    rank: int
    size: int


class Binding(NamedTuple):
    """One call as MPI knows it.

    Parameters
    ----------
    method : str
        The method of mpi4py's communicator that blocks.
    arguments : tuple
        Its arguments.
    before, after : callable, optional
        What comes before and after it.
    status : mpi4py.MPI.Status, optional
        Where a receive says what came.
    """

    method: str
    arguments: tuple[Any, ...] = ()
    before: Callable[[], object] | None = None
    after: Callable[[], object] | None = None
    status: Any = None

    def blocking(self, comm: Any) -> Callable[[], object]:
        """The shortest callable that carries the call out."""
        status = () if self.status is None else (self.status,)
        call = partial(getattr(comm, self.method), *self.arguments, *status)
        before, after = self.before, self.after
        if before is None and after is None:
            return call

        def surrounded() -> None:
            if before is not None:
                before()
            call()
            if after is not None:
                after()

        return surrounded

    def start(self, comm: Any) -> Any:
        """Start the call and give its request."""
        return getattr(comm, f"I{self.method.lower()}")(*self.arguments)


class MpiBinder:
    """MPI's handles for dtypes and operations; one per process.

    Parameters
    ----------
    mpi : module
        ``mpi4py.MPI``.
    """

    def __init__(self, mpi: Any) -> None:
        self.mpi = mpi
        self.halves: dict[str, str] = {}
        self._datatypes = {DTYPES[name]: getattr(mpi, handle) for name, handle in _HANDLES.items()}
        self._ops = {
            (op, dtype): getattr(mpi, _PLAIN[plain]) for op, plain in _BEHIND.items() for dtype in self._datatypes
        }
        for name in ("float16", "bfloat16"):
            self._learn_half(name)

    def _learn_half(self, name: str) -> None:
        """Use the library's own half precision where it can reduce it, else a user-defined operation."""
        mpi, dtype = self.mpi, DTYPES[name]
        own = getattr(mpi, f"{name.upper()}_T", mpi.DATATYPE_NULL)
        if own != mpi.DATATYPE_NULL and own.Get_size() == dtype.itemsize:
            try:
                mpi.SUM.Reduce_local([np.zeros(1, np.uint16), own], [np.zeros(1, np.uint16), own])
            except mpi.Exception:
                pass
            else:
                self._datatypes[dtype] = own
                self.halves[name] = "MPI's own"
                return
        self.halves[name] = "a user-defined MPI operation, in numpy"
        made = {plain: mpi.Op.Create(partial(_combine, OPS[plain].combine, dtype), True) for plain in _PLAIN}
        self._ops.update({(op, dtype): made[plain] for op, plain in _BEHIND.items()})

    def together(self, calls: Sequence[Call], place: Place) -> Callable[[], object]:
        """A callable that starts all calls, and then waits for all."""
        mpi, comm = self.mpi, place.comm
        singles = [single for call in calls for single in _one_way(call)]
        bindings = [self.bind(single, place) for single in singles]
        befores = [binding.before for binding in bindings if binding.before is not None]
        afters = [binding.after for binding in bindings if binding.after is not None]
        statuses = [mpi.Status() if binding.status is None else binding.status for binding in bindings]

        def work() -> None:
            for before in befores:
                before()
            requests = [binding.start(comm) for binding in bindings]
            try:
                mpi.Request.Waitall(requests, statuses)
            except mpi.Exception as error:
                for single, status in zip(singles, statuses, strict=True):
                    self.explain(error, status.Get_error(), single)
                raise
            for after in afters:
                after()

        return work

    def explain(self, error: Exception, code: int, call: Call) -> None:
        """Raise an error that says more than MPI does, where the code tells of a message longer than its buffer."""
        if call.source is not None and self.mpi.Get_error_class(code) == self.mpi.ERR_TRUNCATE:
            raise CommunicatorError(
                f"ranks disagree: what rank {call.source} of the group sends is longer than the {call.count} of "
                f"{call.dtype} that this rank receives",
                collective=call.collective.name,
                code=code,
            ) from error

    def bind(self, call: Call, place: Place) -> Binding:
        """Say one call in MPI's words."""
        mpi, name = self.mpi, call.collective.name
        if call.dtype is None:
            return Binding("Barrier")
        datatype = self._datatypes[call.dtype]
        send, recv = [_buffer(call.send), datatype], [_buffer(call.recv), datatype]
        if call.collective.peers:
            return self._bind_message(call, send, recv)
        if call.collective.reduces:
            return self._bind_reduction(call, send, recv, place)
        if name == "all_gather":
            return Binding("Allgather", (mpi.IN_PLACE if call.in_place else send, recv))
        if name == "all_to_all":
            return Binding("Alltoall", (send, recv))
        if name == "all_to_all_v":
            return Binding("Alltoallv", (_parts(send, call.send_counts), _parts(recv, call.recv_counts)))
        if name == "gather":
            target = None if call.recv is None else recv
            return Binding("Gather", (mpi.IN_PLACE if call.in_place else send, target, call.root))
        if name == "scatter":
            source = None if call.send is None else send
            return Binding("Scatter", (source, mpi.IN_PLACE if call.in_place else recv, call.root))
        if name == "broadcast":
            if call.in_place or place.rank != call.root:
                return Binding("Bcast", (recv, call.root))
            return Binding(
                "Bcast",
                (send, call.root),
                after=partial(np.copyto, flat_elements(call.recv, call.dtype), flat_elements(call.send, call.dtype)),
            )
        raise CommunicatorError(f"MPI has no {name}", collective=name)

    def _bind_reduction(self, call: Call, send: Any, recv: Any, place: Place) -> Binding:
        mpi, name = self.mpi, call.collective.name
        op = self._ops[call.op or "sum", call.dtype]  # type: ignore[index]
        in_place, before, after = call.in_place, None, None
        if call.scalar is not None:
            source = flat_elements(call.send, call.dtype)
            scaled = np.empty_like(source)
            before = partial(_multiply, source, call.scalar, scaled)
            send, in_place = [_buffer(scaled), send[1]], False
        if call.op == "avg" and call.recv is not None:
            after = partial(divide, flat_elements(call.recv, call.dtype), place.size)
        if name == "all_reduce":
            return Binding("Allreduce", (mpi.IN_PLACE if in_place else send, recv, op), before, after)
        if name == "reduce":
            target = None if call.recv is None else recv
            return Binding("Reduce", (mpi.IN_PLACE if in_place else send, target, op, call.root), before, after)
        if not in_place:
            return Binding("Reduce_scatter_block", (send, recv, op), before, after)

        # MPI leaves the result at the front of the buffer, NCCL's convention wants it at the rank's own place.
        own, front = flat_elements(call.recv, call.dtype), flat_elements(call.send, call.dtype)[: call.count]

        def move() -> None:
            if place.rank:
                own[:] = front
            if after is not None:
                after()

        return Binding("Reduce_scatter_block", (mpi.IN_PLACE, send, op), before, move)

    def _bind_message(self, call: Call, send: Any, recv: Any) -> Binding:
        mpi, tag = self.mpi, _TAGS[call.dtype]  # type: ignore[index]
        if call.source is None:
            return Binding("Send", (send, call.dest, tag))
        status = mpi.Status()
        after = partial(_check_message, status, recv[1], call, tag)
        if call.dest is None:
            return Binding("Recv", (recv, call.source, mpi.ANY_TAG), None, after, status)
        return Binding("Sendrecv", (send, call.dest, tag, recv, call.source, mpi.ANY_TAG), None, after, status)


def _one_way(call: Call) -> tuple[Call, ...]:
    """A call both ways as two calls, which is what a batch starts."""
    if len(call.collective.peers) < 2:
        return (call,)
    return (
        call._replace(collective=CATALOG["send"], recv=None, source=None),
        call._replace(collective=CATALOG["recv"], send=None, dest=None),
    )


def _parts(buffer: list[Any], counts: Sequence[int] | None) -> list[Any]:
    ends = np.cumsum(counts or ())
    return [buffer[0], list(counts or ()), (ends - (counts or ())).tolist(), buffer[1]]


def _check_message(status: Any, datatype: Any, call: Call, tag: int) -> None:
    count, dtype = status.Get_count(datatype), _NAMES[status.Get_tag()]
    if count != call.count or status.Get_tag() != tag:
        raise CommunicatorError(
            f"ranks disagree: rank {call.source} of the group sends {count} elements of {dtype}, but this rank "
            f"receives {call.count} of {call.dtype}",
            collective=call.collective.name,
        )


def _multiply(source: Array, scalar: Any, target: Array) -> None:
    with np.errstate(all="ignore"):
        np.multiply(source, scalar, out=target)


def _combine(combine: Any, dtype: np.dtype[Any], incoming: Any, total: Any, datatype: Any) -> None:
    """A user-defined operation: `total` becomes `incoming` combined with `total`."""
    with np.errstate(all="ignore"):
        target = np.frombuffer(total, dtype)
        combine(np.frombuffer(incoming, dtype), target, out=target)


def _buffer(array: Any) -> Any:
    # mpi4py does not know the format of ml_dtypes' arrays; the handle beside the buffer says what it holds.
    return array.view(np.uint16) if array is not None and array.dtype.itemsize == 2 else array


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
        self.agreement = _CallCheck(comm, self.binder.mpi)

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


class _CallCheck:
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
def _binder() -> MpiBinder:
    from mpi4py import MPI

    return MpiBinder(MPI)


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
