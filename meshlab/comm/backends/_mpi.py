"""The `mpi` backend: binds checked calls to methods of mpi4py, and adds the operations that MPI lacks."""

from __future__ import annotations

import itertools
import os
import sys
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np

from meshlab.base._backends import BACKENDS, package_version
from meshlab.base._errors import CommunicatorError
from meshlab.base._hints import Argument, Hint
from meshlab.comm._agreement import checksum, counts_mismatch, mismatch_error, signature
from meshlab.comm._backend import (
    Backend,
    BlockingBackend,
    BlockingCalls,
    Call,
    Capabilities,
    Rendezvous,
    check_packages,
)
from meshlab.comm._catalog import NATIVE
from meshlab.comm._elements import DTYPES, OPS, carrier, divide, flat_elements, is_integer, multiply
from meshlab.comm.backends._mpi_messages import MpiMessages, Receive

_INSTALL = Hint("run pip install mpi4py mpich, or use {}", Argument("backend", "threads"))

# The MPI standard does not require half precision, so unsigned integers of the same size move the data.
_HANDLES = {"float16": "UINT16_T", "bfloat16": "UINT16_T", "float32": "FLOAT", "float64": "DOUBLE"}
_HANDLES |= {name: f"{name.upper()}_T" for name in ("int8", "uint8", "int32", "uint32", "int64", "uint64")}

_PLAIN = {"sum": "SUM", "prod": "PROD", "min": "MIN", "max": "MAX"}

# The MPI operation under each reduce operation. avg and pre_mul_sum also scale the result or the input.
_UNDERLYING = {"sum": "sum", "prod": "prod", "min": "min", "max": "max", "avg": "sum", "pre_mul_sum": "sum"}


class Binding(NamedTuple):
    """A call, translated to a method of mpi4py's communicator."""

    method: str  # the blocking one
    arguments: tuple[Any, ...] = ()
    before: Callable[[], object] | None = None
    after: Callable[[], object] | None = None
    # The buffer specifications of input and output in `arguments`, as [array, datatype]. None if the call also uses its
    # arrays in another way, and so cannot run on different ones.
    buffers: tuple[list[Any], list[Any]] | None = None
    finish: Callable[[Any, Any], object] | None = None  # with `buffers`, `after` as a function of input and output

    def blocking(self, comm: Any) -> Callable[[], object]:
        """Return a callable that runs the call, with as few Python frames as possible."""
        call = partial(getattr(comm, self.method), *self.arguments)
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
        """Start the non-blocking variant and return its request."""
        return getattr(comm, f"I{self.method.lower()}")(*self.arguments)


class MpiBinder:
    """Binds calls to MPI's handles for dtypes and operations. One per process."""

    def __init__(self, mpi: Any) -> None:
        self.mpi = mpi
        self.halves: dict[str, str] = {}
        self._datatypes = {DTYPES[name]: getattr(mpi, handle) for name, handle in _HANDLES.items()}
        self._ops = {
            (op, dtype): getattr(mpi, _PLAIN[plain]) for op, plain in _UNDERLYING.items() for dtype in self._datatypes
        }
        for name in ("float16", "bfloat16"):
            self._add_half(name)
        # The operations of the library are kept, to time them.
        self._library_ops = dict(self._ops)
        self._ignore_nan()

    def _ignore_nan(self) -> None:
        """Replace the minimum and the maximum of floating point, whose result for NaN depends on the library."""
        for name, dtype in itertools.product(("min", "max"), self._datatypes):
            if not is_integer(dtype) and self._ops[name, dtype] == getattr(self.mpi, _PLAIN[name]):
                self._ops[name, dtype] = self._user_op(name, dtype)

    def _user_op(self, name: str, dtype: np.dtype[Any]) -> Any:
        return self.mpi.Op.Create(partial(_combine, OPS[name].combine, dtype), True)

    def _add_half(self, name: str) -> None:
        """Use the library's half-precision type if the library can reduce it, else a user-defined operation."""
        mpi, dtype = self.mpi, DTYPES[name]
        datatype = getattr(mpi, f"{name.upper()}_T", mpi.DATATYPE_NULL)
        if datatype != mpi.DATATYPE_NULL and datatype.Get_size() == dtype.itemsize:
            try:  # a library may define the type and still have no operations for it
                mpi.SUM.Reduce_local([np.zeros(1, np.uint16), datatype], [np.zeros(1, np.uint16), datatype])
            except mpi.Exception:
                pass
            else:
                self._datatypes[dtype] = datatype
                self.halves[name] = "native"
                return
        self.halves[name] = "user-defined MPI operation in numpy"
        ops = {plain: self._user_op(plain, dtype) for plain in _PLAIN}
        self._ops.update({(op, dtype): ops[plain] for op, plain in _UNDERLYING.items()})

    def single(self, call: Call, backend: MpiBackend, *, is_timed: bool = False) -> Callable[[], object]:
        """Return a callable that runs a call."""
        if not call.collective.peers:
            return self.bind(call, backend, is_timed=is_timed).blocking(backend.comm)
        comm, messages = backend.comm, backend.messages
        if call.source is None:
            sender, arguments = self._send(call, messages)
            return partial(sender.Send, *arguments)
        receive = self._receive(call, messages)
        if call.dest is None:
            if call.tag:
                return receive.tagged
            return receive.waiting(partial(comm.Recv, *receive.arguments, receive.status), receive.tagged)
        send = self._send(call, messages)
        exchange = partial(messages.exchange, send, receive)
        if call.tag:
            return exchange
        return receive.waiting(partial(comm.Sendrecv, *send[1], *receive.arguments, receive.status), exchange)

    def together(self, calls: Sequence[Call], backend: MpiBackend, *, is_timed: bool = False) -> Callable[[], object]:
        """Return a callable that starts all calls and then waits for all of them."""
        mpi, comm, messages = self.mpi, backend.comm, backend.messages
        collectives = [call for call in calls if not call.collective.peers]
        bindings = [self.bind(call, backend, is_timed=is_timed) for call in collectives]
        befores = [binding.before for binding in bindings if binding.before is not None]
        afters = [binding.after for binding in bindings if binding.after is not None]
        starts = [partial(binding.start, comm) for binding in bindings]
        for call in calls:
            if call.dest is not None:
                sender, arguments = self._send(call, messages)
                starts.append(partial(sender.Isend, *arguments))
        receives = [self._receive(call, messages) for call in calls if call.source is not None]
        tagged = [receive for receive in receives if receive.call.tag]
        untagged = [receive for receive in receives if not receive.call.tag]
        statuses = [mpi.Status() for _ in starts]

        # All inputs are ready before the first request starts, and no output is used before the last one has finished.
        def work() -> None:
            for before in befores:
                before()
            arriving = [receive for receive in untagged if not (messages.queues and receive.take_queued())]
            requests = [comm.Irecv(*receive.arguments) for receive in arriving]
            requests += [start() for start in starts]
            if tagged:
                messages.receive_tagged(tagged)
            try:
                mpi.Request.Waitall(requests, [receive.status for receive in arriving] + statuses)
            except mpi.Exception as error:
                for receive in arriving:
                    self.explain(error, receive.status.Get_error(), receive.call)
                raise
            for receive in receives:
                receive.check()
            for receive in arriving:
                receive.check_status()
            for after in afters:
                after()

        return work

    def _send(self, call: Call, messages: MpiMessages) -> tuple[Any, tuple[Any, ...]]:
        return messages.sender(call, self._specification(call.send, call))

    def _receive(self, call: Call, messages: MpiMessages) -> Receive:
        return Receive(messages, call, self._specification(call.recv, call))

    def _specification(self, array: Any, call: Call) -> list[Any]:
        return [_buffer(array), self._datatypes[call.dtype]]  # type: ignore[index]

    def explain(self, error: Exception, code: int, call: Call) -> None:
        """Raise an error with the counts if MPI reports a message that is longer than its buffer."""
        if call.source is not None and self.mpi.Get_error_class(code) == self.mpi.ERR_TRUNCATE:
            raise CommunicatorError(
                f"ranks disagree: rank {call.source} of the group sends more than the {call.count} elements of "
                f"{call.dtype} that this rank receives; pass the same count and dtype on both",
                collective=call.collective.name,
                code=code,
            ) from error

    def has_user_op(self, call: Call) -> bool:
        """Return True if the call reduces with an operation that replaces one of the library."""
        key = call.op, call.dtype
        return call.op is not None and self._ops[key] is not self._library_ops[key]  # type: ignore[index]

    def bind(self, call: Call, backend: MpiBackend, *, is_timed: bool = False) -> Binding:
        """Translate a collective to MPI. To be timed, it uses the operation of the library if that has one."""
        mpi, name = self.mpi, call.collective.name
        if call.dtype is None:
            return Binding("Barrier", buffers=([None], [None]))
        send, recv = self._specification(call.send, call), self._specification(call.recv, call)
        if call.collective.reduces:
            return self._bind_reduction(call, send, recv, backend, self._library_ops if is_timed else self._ops)
        if name == "all_gather":
            return Binding("Allgather", (mpi.IN_PLACE if call.in_place else send, recv), buffers=(send, recv))
        if name == "all_to_all":
            return Binding("Alltoall", (send, recv), buffers=(send, recv))
        if name == "all_to_all_v":
            return Binding("Alltoallv", (_by_counts(send, call.send_counts), _by_counts(recv, call.recv_counts)))
        if name == "gather":
            target = None if call.recv is None else recv
            arguments = mpi.IN_PLACE if call.in_place else send, target, call.root
            return Binding("Gather", arguments, buffers=(send, recv))
        if name == "scatter":
            source = None if call.send is None else send
            arguments = source, mpi.IN_PLACE if call.in_place else recv, call.root
            return Binding("Scatter", arguments, buffers=(send, recv))
        if name == "broadcast":
            # MPI_Bcast has one buffer, which is the output on other ranks. The root sends its input, and then copies it
            # to its output.
            if call.in_place or backend.rank != call.root:
                return Binding("Bcast", (recv, call.root), buffers=(send, recv))
            finish = partial(_copy, call.dtype)
            after = partial(finish, call.send, call.recv)
            return Binding("Bcast", (send, call.root), after=after, buffers=(send, recv), finish=finish)
        raise CommunicatorError(f"MPI does not support {name}", collective=name)

    def _bind_reduction(self, call: Call, send: Any, recv: Any, backend: MpiBackend, ops: Mapping[Any, Any]) -> Binding:
        mpi, name = self.mpi, call.collective.name
        op = ops[call.op or "sum", call.dtype]
        in_place, before, after, finish = call.in_place, None, None, None
        if call.scalar is not None:
            # MPI has no scaled sum. The scaled input goes to a separate buffer, because the caller's must not change.
            source = flat_elements(call.send, call.dtype)
            scaled = np.empty_like(source)
            before = partial(multiply, source, call.scalar, scaled)
            send, in_place = [_buffer(scaled), send[1]], False
        if call.op == "avg" and call.recv is not None:
            finish = partial(_divide, call.dtype, backend.size)
            after = partial(finish, call.send, call.recv)
        buffers = (send, recv) if before is None else None
        if name == "all_reduce":
            arguments: tuple[Any, ...] = mpi.IN_PLACE if in_place else send, recv, op
            return Binding("Allreduce", arguments, before, after, buffers=buffers, finish=finish)
        if name == "reduce":
            arguments = mpi.IN_PLACE if in_place else send, None if call.recv is None else recv, op, call.root
            return Binding("Reduce", arguments, before, after, buffers=buffers, finish=finish)
        if not in_place:
            return Binding("Reduce_scatter_block", (send, recv, op), before, after, buffers=buffers, finish=finish)

        # In place, MPI leaves the result at the front of the buffer, but NCCL's convention puts it at this rank's
        # chunk.
        chunk, front = flat_elements(call.recv, call.dtype), flat_elements(call.send, call.dtype)[: call.count]

        def move() -> None:
            if backend.rank:
                chunk[:] = front
            if after is not None:
                after()

        return Binding("Reduce_scatter_block", (mpi.IN_PLACE, send, op), before, move)


def _by_counts(buffer: list[Any], counts: Sequence[int] | None) -> list[Any]:
    ends = np.cumsum(counts or ())
    return [buffer[0], list(counts or ()), (ends - (counts or ())).tolist(), buffer[1]]


def _copy(dtype: Any, send: Any, recv: Any) -> None:
    np.copyto(flat_elements(recv, dtype), flat_elements(send, dtype))


def _divide(dtype: Any, n: int, send: Any, recv: Any) -> None:
    divide(flat_elements(recv, dtype), n)


def _combine(combine: Any, dtype: np.dtype[Any], incoming: Any, total: Any, datatype: Any) -> None:
    """Combine two buffers in a user-defined MPI operation. The result replaces `total`."""
    with np.errstate(all="ignore"):
        target = np.frombuffer(total, dtype)
        combine(np.frombuffer(incoming, dtype), target, out=target)


def _buffer(array: Any) -> Any:
    # mpi4py rejects the buffer format of ml_dtypes arrays. A view is enough, because the MPI datatype that is passed
    # with the buffer defines the elements.
    return array.view(np.uint16) if array is not None and array.dtype.itemsize == 2 else array


def check_installed() -> None:
    """Raise a `CommunicatorError` unless mpi4py is installed. Does not import it."""
    check_packages("mpi", _INSTALL)


def load() -> None:
    """Import mpi4py, which initialises MPI."""
    _choose_network()
    from mpi4py import MPI  # noqa: F401


_NETWORK = "MPIR_CVAR_CH4_NETMOD"


def _choose_network(rdma: Path = Path("/sys/class/infiniband")) -> None:
    """Let MPICH's wheel use libfabric if Slurm's PMI2 connects the ranks, unless there is InfiniBand or RoCE."""
    # The messages with the long addresses of UCX end in memory that MPICH has not written. If it is not zero, Slurm
    # rejects it as a message, and the ranks do not start. The addresses of libfabric are short.
    is_chosen = _NETWORK in os.environ or "mpi4py.MPI" in sys.modules
    if is_chosen or os.environ.get("SLURM_MPI_TYPE") != "pmi2" or package_version("mpich") == "unknown":
        return
    if not rdma.is_dir() or not any(rdma.iterdir()):
        os.environ[_NETWORK] = "ofi"


def unique_id(peers: Sequence[str] | None = None) -> bytes:
    """Return an empty id: the launcher lets the ranks find each other."""
    return b""


def open_world(rendezvous: Rendezvous) -> MpiBackend:
    """Return `world`: the launcher has determined the rank and the size, and MPI finds the others."""
    return world()


def world() -> MpiBackend:
    """Return the communicator of all processes that MPI started together."""
    try:
        load()
        from mpi4py import MPI
    except ImportError as error:
        raise CommunicatorError(f"cannot load MPI: {error}", hint=_INSTALL) from error
    return MpiBackend(MPI.COMM_WORLD.Dup())  # a copy, so that messages of the user's own mpi4py code do not interfere


class MpiBackend(BlockingBackend):
    """One rank's endpoint of an MPI communicator, which it owns. A rank that waits in it cannot be released."""

    def __init__(self, comm: Any) -> None:
        self.comm = comm
        self.rank: int = comm.Get_rank()
        self.size: int = comm.Get_size()
        self.binder = _binder()
        self.mpi_error: type[Exception] = self.binder.mpi.Exception
        self.messages = MpiMessages(comm, self.binder.mpi)
        self._comparer = _MpiComparer(self.messages.separate, self.binder.mpi)

    def prepare(self, call: Call) -> _MpiCalls:
        return _MpiCalls(self, (call,), partial(self.binder.single, call, self))

    def prepare_batch(self, calls: Sequence[Call]) -> _MpiCalls:
        return _MpiCalls(self, calls, partial(self.binder.together, calls, self))

    def runner(self, call: Call) -> Callable[[Any, Any], object]:
        kind = call._replace(send=None, recv=None)  # the result must not keep the arrays alive
        binding = None if call.collective.peers else self.binder.bind(call, self)
        if binding is None or binding.buffers is None:
            return lambda send, recv: self.prepare(kind._replace(send=send, recv=recv))()
        send_spec, recv_spec = binding.buffers
        run, finish = binding._replace(after=None).blocking(self.comm), binding.finish
        send_spec[0] = recv_spec[0] = None
        is_half = call.dtype is not None and call.dtype.itemsize == 2

        def run_on(send: Any, recv: Any) -> None:
            # Filling in prepared specifications takes half the time of creating them.
            send_spec[0], recv_spec[0] = (_buffer(send), _buffer(recv)) if is_half else (send, recv)
            try:
                run()
            except self.mpi_error as error:
                self.explain(error, (kind,))
            finally:
                send_spec[0] = recv_spec[0] = None
            if finish is not None:
                finish(send, recv)

        return run_on

    def progress(self) -> None:
        """Let MPI move the data of calls that have returned. MPICH does that only while the process is in MPI."""
        # The end of a send means only that its buffer may be used again. A part of the message may still be queued.
        self.comm.Iprobe()

    def comparer(self) -> _MpiComparer | None:
        return self._comparer if self.size > 1 else None

    def explain(self, error: Exception, calls: Sequence[Call]) -> NoReturn:
        """Raise the error of a call that MPI rejected."""
        call, code = calls[0], error.Get_error_code()  # type: ignore[attr-defined]
        if len(calls) == 1:
            self.binder.explain(error, code, call)
        name = call.collective.name if len(calls) == 1 else "a batch"
        raise CommunicatorError(f"MPI rejected {name}: {error}", collective=name, code=code) from error

    def split(self, color: int | None, key: int, *, separate: bool = False) -> Backend | None:
        """Create one communicator per color. All communicators of MPI are separate."""
        mpi = self.binder.mpi
        comm = self.comm.Split(mpi.UNDEFINED if color is None else color, key)
        return None if comm == mpi.COMM_NULL else MpiBackend(comm)

    def capabilities(self) -> Capabilities:
        """Return the capabilities: the complete catalog, without the 8-bit floats, which only NCCL has."""
        return _capabilities()

    def close(self) -> None:
        self.messages.separate.Free()
        self.comm.Free()


class _MpiComparer:
    """Compares the calls of all ranks of a group before they start."""

    # Mismatched calls are undefined behaviour in MPI: wrong data, a hang or a crash. The comparison uses a separate
    # communicator, so a rank that compares is never matched with a rank that already moves data. It waits until the
    # deadline ends the call.

    def __init__(self, comm: Any, mpi: Any) -> None:
        self._comm = comm
        self._numbers = array("q", (0, 0))
        self._arguments = mpi.IN_PLACE, [self._numbers, mpi.INT64_T], mpi.MIN

    def compare(self, calls: Sequence[Call], by_all: bool) -> None:
        # One Allreduce of 16 bytes, in place and with prepared arguments. The minimum of a number and of its negative
        # shows whether all ranks have the same one.
        numbers = self._numbers
        numbers[0] = number = checksum(calls)
        numbers[1] = -number
        self._comm.Allreduce(*self._arguments)
        if numbers[0] != -numbers[1]:
            texts = self._comm.allgather(signature(calls))
            rank, other = next((rank, other) for rank, other in enumerate(texts) if other != texts[0])
            raise mismatch_error(0, texts[0], rank, other)

    def compare_counts(self, calls: Sequence[Call]) -> None:
        for call in calls:
            self._compare_counts(call.send_counts or (), call.recv_counts or ())

    def _compare_counts(self, send_counts: tuple[int, ...], recv_counts: tuple[int, ...]) -> None:
        pairs = zip(self._comm.alltoall(list(send_counts)), recv_counts, strict=True)
        wrong = [(rank, sent, expected) for rank, (sent, expected) in enumerate(pairs) if sent != expected]
        # A mismatch between any two ranks must raise on all ranks, or the others would start the call.
        for receiver, reported in enumerate(self._comm.allgather(wrong[:1])):
            for sender, sent, expected in reported:
                raise counts_mismatch(sender, receiver, sent, expected)


class _MpiCalls(BlockingCalls):
    """Calls that `bind` has bound to MPI. It is called once for the calls, and once to time them if that differs."""

    def __init__(self, backend: MpiBackend, calls: Sequence[Call], bind: Callable[..., Callable[[], object]]) -> None:
        self._backend = backend
        self._calls = calls
        self._work = self._timed_work = bind()
        if any(backend.binder.has_user_op(call) for call in calls):
            self._timed_work = bind(is_timed=True)
        self._error = backend.mpi_error

    def __call__(self) -> None:
        try:
            self._work()
        except self._error as error:
            self._backend.explain(error, self._calls)

    def barrier(self) -> Callable[[], object]:
        barrier: Callable[[], object] = self._backend.comm.Barrier
        return barrier

    def timed_work(self) -> Callable[[], object]:
        return self._timed_work

    @contextmanager
    def explained(self) -> Iterator[None]:
        try:
            yield
        except self._error as error:
            self._backend.explain(error, self._calls)


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
        where=BACKENDS["mpi"].where,
        collectives=NATIVE,
        dtypes=tuple(name for name, dtype in DTYPES.items() if carrier(dtype) == dtype),
        ops=tuple(OPS),
        modes=("isolated", "pipelined"),
        abort=False,
        facts={
            "MPI standard": ".".join(str(part) for part in mpi.Get_version()),
            "mpi4py": package_version("mpi4py"),
            "thread level": str(mpi.Query_thread()),
            "avg": "MPI_SUM, then each rank divides",
            "pre_mul_sum": "each rank multiplies, then MPI_SUM",
            "min and max of floating point": "user-defined MPI operations that ignore NaN; timed with MPI_MIN, MPI_MAX",
            **{f"{half} reductions": how for half, how in binder.halves.items()},
        },
        largest_tag=MpiMessages.largest_tag(mpi),
    )


def _library_path() -> str:
    from pathlib import Path

    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return "unknown"
    paths = [line.split()[-1] for line in maps.splitlines() if "/libmpi" in line]
    return paths[0] if paths else "unknown"
