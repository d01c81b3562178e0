"""Checked calls in MPI's words: which method, which handles, and what comes before and after it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from meshlab.comm.backend import Call
from meshlab.comm.catalog import CATALOG
from meshlab.comm.dtypes import DTYPES, Array, flat_elements
from meshlab.comm.elements import OPS, divide
from meshlab.errors import CommunicatorError

__all__ = ["Binder", "Binding", "Place"]

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


class Binder:
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
