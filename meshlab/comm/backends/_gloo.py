"""The `gloo` backend: binds checked calls to Gloo's process groups in torch.

It uses the process groups themselves, without torch's default group and without `torch.distributed.init_process_group`.
So it works next to another backend in the same process, next to torch code of the user, and with several ranks in one
process.
"""

from __future__ import annotations

import ctypes
import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import cache, cached_property, partial
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np

from meshlab.base._backends import BACKENDS, package_version
from meshlab.base._errors import CommunicatorError
from meshlab.comm._agreement import check_counts, checksum, message_mismatch, mismatch_error, signature
from meshlab.comm._backend import (
    BARRIER,
    Backend,
    BlockingBackend,
    BlockingCalls,
    Call,
    Capabilities,
    Rendezvous,
    check_packages,
)
from meshlab.comm._catalog import CATALOG, NATIVE
from meshlab.comm._elements import DTYPES, OPS, Array, carrier, divide, flat_elements, is_integer, multiply
from meshlab.comm.backends._gloo_world import (
    INSTALL,
    GlooWorld,
    find_store,
    first_line,
    load_torch,
    serve_store,
)

# A rank that waits for a collective returns to Python this often, for interrupts, aborts and other libraries.
_SLICE = timedelta(milliseconds=50)

# Gloo moves these types under a torch dtype, and reduces those that are not views.
_NOT_REDUCED = ("uint32", "uint64")
_TORCH_NAMES = {name: name.removeprefix("u") if name in _NOT_REDUCED else name for name in DTYPES}

# The reduce operation of Gloo under each of ours. avg and pre_mul_sum also scale the result or the input.
_UNDERLYING = {"sum": "SUM", "prod": "PRODUCT", "min": "MIN", "max": "MAX", "avg": "SUM", "pre_mul_sum": "SUM"}

# Slots of messages. Gloo matches the messages of two ranks by slot, and in order within one.
_HEADERS, _PAYLOADS, _TIMED = 0, 1, 2
_LARGEST_TAG = 2**31 - 1 - _TIMED

_DTYPE_NUMBERS = {dtype: number for number, dtype in enumerate(DTYPES.values())}
_DTYPES = list(DTYPES.values())


def check_installed() -> None:
    """Raise a `CommunicatorError` unless torch is installed. Does not import it."""
    check_packages("gloo", INSTALL)


def unique_id(peers: Sequence[str] | None = None) -> bytes:
    """Return the address of a store in which the ranks find each other, or an empty id if they have a file for that."""
    return b"" if peers is None else serve_store(peers)


def load() -> None:
    """Import torch, which takes seconds. Raise a `CommunicatorError` if it is missing, broken, or has no Gloo."""
    check_installed()
    load_torch()


def open_world(rendezvous: Rendezvous) -> GlooBackend:
    """Open the communicator of all ranks, which meet in a file, in the store of rank 0, or over the world beside it."""
    check_installed()
    store, interface = find_store(rendezvous)
    is_interruptible = bool(rendezvous.unique_id)  # for engines that another process started, which nobody replaces
    world = GlooWorld(store, interface, rendezvous.while_waiting or (lambda: None), is_interruptible)
    return GlooBackend(world, "world/", rendezvous.rank, rendezvous.size)


class _Bound(NamedTuple):
    """A call, translated to operations of Gloo."""

    starts: tuple[Callable[[], Any], ...]  # each starts an operation and returns its work
    before: Callable[[], object] | None = None  # runs before the first operation starts
    after: Callable[[], object] | None = None  # runs after the last one has ended
    receive: Callable[[], CommunicatorError | None] | None = None  # runs when all have started, and returns its error
    # torch ignores the timeout of reduce_scatter, and closes the connection after that of a message.
    has_timeout: bool = True


class GlooBackend(BlockingBackend):
    """One rank's endpoint of a process group of Gloo, whose store has no other group with its `prefix`."""

    # A rank that waits for a collective can be interrupted, but one that waits for a message cannot.

    def __init__(self, world: GlooWorld, prefix: str, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self.group = world.connect(prefix, rank, size)
        self._world = world
        self._prefix = prefix
        self._n_splits = 0
        self._comparer = _GlooComparer(self)
        self.messages = _Messages(self.group)
        self._works: tuple[Any, ...] = ()  # those of the last call that can be interrupted

    def sibling(self, name: str) -> GlooBackend:
        """Open a second group of the same ranks. Collective."""
        return GlooBackend(self._world, f"{self._prefix}{name}/", self.rank, self.size)

    def prepare(self, call: Call) -> _GlooCalls:
        return _GlooCalls(self, (call,))

    def prepare_batch(self, calls: Sequence[Call]) -> _GlooCalls:
        return _GlooCalls(self, calls)

    def runner(self, call: Call) -> Callable[[Any, Any], object]:
        kind = call._replace(send=None, recv=None)  # the result must not keep the arrays alive
        return lambda send, recv: self.work((kind._replace(send=send, recv=recv),))()

    def comparer(self) -> _GlooComparer | None:
        return self._comparer if self.size > 1 else None

    def work(self, calls: Sequence[Call], *, is_timed: bool = False) -> Callable[[], None]:
        """Return a function that starts all calls and then waits for all. To be timed, they have no extras."""
        bound = [_bind(call, self, is_timed=is_timed) for call in calls]
        starts = [(start, call.has_timeout) for call in bound for start in call.starts]
        befores = [call.before for call in bound if call.before is not None]
        afters = [call.after for call in bound if call.after is not None]
        receives = [call.receive for call in bound if call.receive is not None]
        copies = _local_copies(calls, self.rank) if any(call.collective.peers for call in calls) else []
        if len(bound) == 1 and len(starts) == 1 and starts[0][1]:
            return self._single(bound[0], calls)

        # All inputs are ready before the first operation starts, and no output is used before the last one has ended.
        def run() -> None:
            for before in befores:
                before()
            try:
                works = [(start(), has_timeout) for start, has_timeout in starts]
                self._works = tuple([work for work, has_timeout in works if has_timeout])
                for target, source in copies:
                    np.copyto(target, source)
                errors = [error for receive in receives if (error := receive()) is not None]
                for work, has_timeout in works:
                    if not has_timeout:
                        work.wait()
                        continue
                    try:
                        work.wait(_SLICE)
                    except RuntimeError:
                        self._wait(work)
            except RuntimeError as error:
                self._explain(error, calls)
            if errors:
                raise errors[0]
            for after in afters:
                after()

        return run

    def _single(self, bound: _Bound, calls: Sequence[Call]) -> Callable[[], None]:
        """Return a function that runs one collective, with as few Python frames as possible."""
        (start,), before, after = bound.starts, bound.before, bound.after

        def run() -> None:
            if before is not None:
                before()
            try:
                work = start()
                self._works = (work,)
                try:
                    work.wait(_SLICE)
                except RuntimeError:
                    self._wait(work)
            except RuntimeError as error:
                self._explain(error, calls)
            if after is not None:
                after()

        return run

    def _wait(self, work: Any) -> None:
        while not work.is_completed():
            self._world.while_waiting()
            try:
                work.wait(_SLICE)
                return
            except RuntimeError:
                continue  # the time is over, or the operation has failed
        work.wait()  # raises the error of an operation that has failed

    def _explain(self, error: RuntimeError, calls: Sequence[Call]) -> NoReturn:
        name = calls[0].collective.name if len(calls) == 1 else "a batch"
        text = first_line(error)
        # After an error, Gloo closes the connections, so the other ranks fail with the first text below.
        is_gone = "onnection closed by peer" in text or "onnection reset by peer" in text or "roken pipe" in text
        hint = "another rank has ended, or failed before; see the error of that rank" if is_gone else ""
        raise CommunicatorError(f"Gloo failed in {name}: {text}", hint=hint, collective=name) from error

    def gather_integers(self, numbers: Sequence[int]) -> list[list[int]]:
        """Return the integers of all ranks. Collective."""
        send = np.array(numbers, np.int64)
        recv = np.empty((self.size, len(numbers)), np.int64)
        self.work(
            [Call(CATALOG["all_gather"], send, recv, send.size, np.dtype(np.int64), None, None, in_place=False)]
        )()
        return [[int(number) for number in row] for row in recv]

    def split(self, color: int | None, key: int, *, separate: bool = False) -> Backend | None:
        """Create one communicator per color. All communicators of Gloo are separate."""
        entries = self.gather_integers([-1 if color is None else color, key, self._n_splits])
        # The largest number: a rank that was interrupted may have missed a split.
        self._n_splits = 1 + max(entry[2] for entry in entries)
        if color is None:
            return None
        members = sorted((entry[1], rank) for rank, entry in enumerate(entries) if entry[0] == color)
        prefix = f"{self._prefix}{self._n_splits}.{color}/"
        return GlooBackend(self._world, prefix, members.index((key, self.rank)), len(members))

    def capabilities(self) -> Capabilities:
        if self._world.interface is None:
            return capabilities()
        return replace(capabilities(), facts={**capabilities().facts, "network interface": self._world.interface})

    def close(self) -> None:
        self._comparer.close()
        self._free()

    def abort(self) -> None:
        """Free the communicator, also if other ranks do not respond."""
        self.close()

    def _free(self) -> None:
        # Freeing a group waits for its operations, and one that was interrupted never ends. Such a group, with its
        # threads and connections, remains until the process ends.
        if not all(work.is_completed() for work in self._works):
            for leaked in (self.group, *self._works):
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(leaked))
        self._works = ()
        self.group = None


class _GlooCalls(BlockingCalls):
    def __init__(self, backend: GlooBackend, calls: Sequence[Call]) -> None:
        self._backend = backend
        self._calls = calls
        self.work = backend.work(calls)

    def __call__(self) -> None:
        self.work()

    @cached_property
    def timed(self) -> Callable[[], object]:
        """The function that `measure` times."""
        has_extras = any(call.collective.peers or _ignores_nan(call) for call in self._calls)  # beyond Gloo's operation
        return self._backend.work(self._calls, is_timed=True) if has_extras else self.work

    def timed_work(self) -> Callable[[], object]:
        return self.timed

    def barrier(self) -> Callable[[], object]:
        return self._backend.work((BARRIER,))


def _ignores_nan(call: Call) -> bool:
    return call.op in ("min", "max") and call.dtype is not None and not is_integer(call.dtype)


class _Messages:
    """The messages of a communicator, each with a header of its tag, its count and its dtype."""

    # Gloo ends the process if a message is longer than the array that receives it, and does not notice a shorter one.
    # And a send of Gloo waits for its receive. So a receive takes the messages of its source in order, and keeps those
    # with another tag.

    def __init__(self, group: Any) -> None:
        self._group = group
        self._queues: dict[int, list[tuple[tuple[int, ...], Array]]] = {}

    def sends(self, call: Call) -> tuple[Callable[[], Any], ...]:
        """Return functions that start to send a header and the data."""
        header = np.array([call.tag, call.count, _DTYPE_NUMBERS[call.dtype]], np.int64)  # type: ignore[index]
        data = _tensor(call.send, call.dtype)
        starts = [partial(self._group.send, [_tensor(header, header.dtype)], call.dest, _HEADERS)]
        if call.count:
            starts.append(partial(self._group.send, [data], call.dest, _PAYLOADS))
        return tuple(starts)

    def receive(self, call: Call, data: Any) -> CommunicatorError | None:
        """Receive a message into the tensor `data` of a call. Return an error if the message does not match."""
        source, expected = call.source or 0, (call.count, _DTYPE_NUMBERS[call.dtype])  # type: ignore[index]
        queue = self._queues.setdefault(source, [])
        for number, (header, payload) in enumerate(queue):
            if header[0] == call.tag:
                del queue[number]
                if header[1:] != expected:
                    return _mismatch(call, header)
                target = flat_elements(call.recv, call.dtype)
                target[...] = payload.view(target.dtype)
                return None
        numbers = np.empty(3, np.int64)
        while True:
            self._group.recv([_tensor(numbers, numbers.dtype)], source, _HEADERS).wait()
            header = tuple(int(number) for number in numbers)
            is_wanted = header[0] == call.tag
            if is_wanted and header[1:] == expected:
                if call.count:
                    self._group.recv([data], source, _PAYLOADS).wait()
                return None
            payload = np.empty(header[1] * _DTYPES[header[2]].itemsize, np.uint8)
            if payload.size:
                self._group.recv([_tensor(payload, payload.dtype)], source, _PAYLOADS).wait()
            if is_wanted:
                return _mismatch(call, header)
            queue.append((header, payload))


def _mismatch(call: Call, header: tuple[int, ...]) -> CommunicatorError:
    return message_mismatch(call, f"{header[1]} elements of {_DTYPES[header[2]]}")


# -- binding -----------------------------------------------------------------------------------------------------------


def _bind(call: Call, backend: GlooBackend, *, is_timed: bool) -> _Bound:
    """Translate a call to Gloo. The result holds the tensors, which share the memory of the arrays."""
    c10d, group, name = load_torch().c10d, backend.group, call.collective.name
    if call.dtype is None:
        return _Bound((partial(group.barrier, c10d.BarrierOptions()),))
    if call.collective.peers:
        return _bind_message(call, backend, is_timed=is_timed)
    send, recv = _tensor(call.send, call.dtype), _tensor(call.recv, call.dtype)
    if call.collective.reduces:
        return _bind_reduction(call, send, recv, backend, is_timed=is_timed)
    if name == "all_gather":
        return _Bound((partial(group._allgather_base, recv, send),))
    if name == "all_to_all":
        return _Bound((partial(group.alltoall_base, recv, send, [], []),))
    if name == "all_to_all_v":
        counts = list(call.recv_counts or ()), list(call.send_counts or ())
        return _Bound((partial(group.alltoall_base, recv, send, *counts, c10d.AllToAllOptions()),))
    if name == "gather":
        options = _options(c10d.GatherOptions, rootRank=call.root)
        return _Bound((partial(group.gather, _rows(recv, backend.size), [send], options),))
    if name == "scatter":
        options = _options(c10d.ScatterOptions, rootRank=call.root)
        return _Bound((partial(group.scatter, [recv], _rows(send, backend.size), options),))
    if name == "broadcast":
        # A broadcast of Gloo has one array, which is the output on other ranks. The root sends its input, and then
        # copies it to its output.
        options = _options(c10d.BroadcastOptions, rootRank=call.root, rootTensor=0)
        if call.in_place or backend.rank != call.root:
            return _Bound((partial(group.broadcast, [recv], options),))
        after = partial(np.copyto, flat_elements(call.recv, call.dtype), flat_elements(call.send, call.dtype))
        return _Bound((partial(group.broadcast, [send], options),), after=after)
    raise CommunicatorError(f"Gloo does not support {name}", collective=name)


def _bind_reduction(call: Call, send: Any, recv: Any, backend: GlooBackend, *, is_timed: bool) -> _Bound:
    if _ignores_nan(call) and not is_timed:
        return _bind_with_keys(call, backend)
    c10d, group, name = load_torch().c10d, backend.group, call.collective.name
    op = getattr(c10d.ReduceOp, _UNDERLYING[call.op or "sum"])
    source = flat_elements(call.send, call.dtype)
    after = None
    if call.op == "avg" and call.recv is not None:
        after = partial(divide, flat_elements(call.recv, call.dtype), backend.size)
    if name == "reduce_scatter":
        options = _options(c10d.ReduceScatterOptions, reduceOp=op)
        before = None
        if call.scalar is not None:
            scaled = np.empty_like(source)
            before, send = partial(multiply, source, call.scalar, scaled), _tensor(scaled, call.dtype)
        return _Bound((partial(group._reduce_scatter_base, recv, send, options),), before, after, has_timeout=False)

    # all_reduce and reduce of Gloo replace their only array, on all ranks. Ranks without an output use scratch memory,
    # because the input must not change.
    target = np.empty_like(source) if call.recv is None else flat_elements(call.recv, call.dtype)
    if call.scalar is not None:
        before = partial(multiply, source, call.scalar, target)
    else:
        before = None if call.in_place else partial(np.copyto, target, source)
    tensors = [_tensor(target, call.dtype)]
    if name == "all_reduce":
        options = _options(c10d.AllreduceOptions, reduceOp=op)
        return _Bound((partial(group.allreduce, tensors, options),), before, after)
    options = _options(c10d.ReduceOptions, reduceOp=op, rootRank=call.root, rootTensor=0)
    return _Bound((partial(group.reduce, tensors, options),), before, after)


def _options(kind: Any, **values: Any) -> Any:
    options = kind()
    for name, value in values.items():
        setattr(options, name, value)
    return options


def _bind_with_keys(call: Call, backend: GlooBackend) -> _Bound:
    """Translate a minimum or maximum of floating point to integers with the same order, in which NaN is last."""
    # In Gloo, the result for NaN depends on the order of the ranks.
    source = flat_elements(call.send, call.dtype)
    kind = np.dtype(np.int64 if source.itemsize == 8 else np.int32)  # Gloo has no integers of 16 bits
    keys = np.empty(source.size, kind)
    result = keys if call.collective.name != "reduce_scatter" else np.empty(call.count, kind)
    has_output = call.recv is not None
    # In place, so that all_reduce and reduce need no copy. reduce_scatter has two arrays.
    integers = call._replace(
        send=keys, recv=result if has_output else None, dtype=kind, in_place=result is keys and has_output
    )
    bound = _bind_reduction(integers, _tensor(keys, kind), _tensor(result, kind), backend, is_timed=True)
    fill = partial(_fill_keys, source, call.op or "", keys)
    after = partial(_read_keys, result, flat_elements(call.recv, call.dtype)) if has_output else None

    def before() -> None:
        fill()
        if bound.before is not None:
            bound.before()

    return bound._replace(before=before, after=after)


def _fill_keys(source: Array, op: str, keys: Array) -> None:
    """Write integers with the order of floating-point numbers."""
    bits = source.view(f"i{source.itemsize}")
    limits = np.iinfo(bits.dtype)
    # Negative numbers have the opposite order of their bits, except for the sign.
    keys[...] = bits ^ ((bits >> (limits.bits - 1)) & limits.max)
    keys[np.isnan(source)] = limits.max if op == "min" else limits.min


def _read_keys(keys: Array, target: Array) -> None:
    """Write the floating-point numbers of integers from `_fill_keys`. Those of the two limits are NaN."""
    bits = keys.astype(f"i{target.itemsize}", copy=False)
    limits = np.iinfo(bits.dtype)
    target[...] = (bits ^ ((bits >> (limits.bits - 1)) & limits.max)).view(target.dtype)


def _bind_message(call: Call, backend: GlooBackend, *, is_timed: bool) -> _Bound:
    """Translate a message. Gloo has no messages of a rank to itself."""
    is_sent = call.dest is not None and call.dest != backend.rank
    is_received = call.source is not None and call.source != backend.rank
    data = _tensor(call.recv, call.dtype) if is_received else None
    if not is_timed:
        receive = partial(backend.messages.receive, call, data) if is_received else None
        return _Bound(backend.messages.sends(call) if is_sent else (), receive=receive, has_timeout=False)
    starts = []
    if is_sent:
        starts.append(partial(backend.group.send, [_tensor(call.send, call.dtype)], call.dest, _TIMED + call.tag))
    if is_received:
        starts.append(partial(backend.group.recv, [data], call.source, _TIMED + call.tag))
    return _Bound(tuple(starts), has_timeout=False)


def _local_copies(calls: Sequence[Call], rank: int) -> list[tuple[Array, Array]]:
    """Return output and input of each message that the rank sends to itself. The caller has checked that they match."""
    sends = sorted((call for call in calls if call.dest == rank), key=attrgetter("tag"))
    recvs = sorted((call for call in calls if call.source == rank), key=attrgetter("tag"))
    return [
        (flat_elements(received.recv, received.dtype), flat_elements(sent.send, sent.dtype))
        for received, sent in zip(recvs, sends, strict=True)
    ]


def _rows(tensor: Any, n: int) -> list[list[Any]]:
    """Return a list with the chunk of each rank, or an empty list on ranks that are not the root."""
    return [] if tensor is None else [list(tensor.view(n, -1 if tensor.numel() else 0).unbind(0))]


def _tensor(array: Any, dtype: Any) -> Any:
    """Return a one-dimensional tensor that shares the memory of an array."""
    if array is None:
        return None
    torch = load_torch().torch
    flat = array.reshape(-1)
    if not flat.flags.writeable:
        # torch warns about every read-only array. Gloo only reads it.
        memory = (ctypes.c_byte * flat.nbytes).from_address(flat.ctypes.data)
        memory.source = flat  # keeps the array alive
        flat = np.frombuffer(memory, f"u{flat.itemsize}") if flat.size else np.empty(0, flat.dtype)
    # torch does not support the types of ml_dtypes, and reduces no unsigned integers of more than 8 bits.
    return torch.from_numpy(flat.view(f"i{flat.itemsize}")).view(getattr(torch, _TORCH_NAMES[dtype.name]))


# -- comparison and capabilities ---------------------------------------------------------------------------------------


class _GlooComparer:
    """Compares the calls of all ranks of a group before they start."""

    # If ranks call different collectives, Gloo ends the process, returns wrong data or waits. The comparison uses a
    # second group, so a rank that compares is never matched with a rank that already moves data.

    def __init__(self, backend: GlooBackend) -> None:
        self._backend = backend
        self._second: GlooBackend | None = None
        self._numbers = np.zeros(2, np.int64)
        self._work: Callable[[], None] | None = None

    def compare(self, calls: Sequence[Call], by_all: bool) -> None:
        if self._second is None or self._work is None:
            self._second = second = self._backend.sibling("compare")
            kind = Call(CATALOG["all_reduce"], self._numbers, self._numbers, 2, np.dtype(np.int64), "min", None, True)
            self._work = second.work((kind,))
        # The minimum of a number and of its negative shows whether all ranks have the same one.
        numbers = self._numbers
        number = checksum(calls)
        numbers[:] = number, -number
        self._work()
        if numbers[0] != -numbers[1]:
            texts = self._gather(signature(calls))
            rank, other = next((rank, other) for rank, other in enumerate(texts) if other != texts[0])
            raise mismatch_error(0, texts[0], rank, other)

    def compare_counts(self, calls: Sequence[Call]) -> None:
        counts = self._gather([(call.send_counts or (), call.recv_counts or ()) for call in calls])
        for of_call in zip(*counts, strict=True):
            check_counts(*zip(*of_call, strict=True))

    def _gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks."""
        if self._second is None:
            raise TypeError("compare() runs first")
        data = pickle.dumps(value)
        most = max(length for (length,) in self._second.gather_integers([len(data)]))
        send = np.frombuffer(data.ljust(most, b"\0"), np.uint8)
        recv = np.empty((self._second.size, most), np.uint8)
        self._second.work([Call(CATALOG["all_gather"], send, recv, most, send.dtype, None, None, in_place=False)])()
        return [pickle.loads(row.tobytes()) for row in recv]

    def close(self) -> None:
        if self._second is not None:
            self._second._free()


@cache
def capabilities() -> Capabilities:
    """Return the capabilities of Gloo in the torch of this Python, without importing it."""
    dtypes = tuple(name for name, dtype in DTYPES.items() if carrier(dtype) == dtype)
    return Capabilities(
        backend="gloo",
        library=f"Gloo of torch {package_version('torch')}",
        path=_library_path(),
        where=BACKENDS["gloo"].where,
        collectives=NATIVE,
        dtypes=dtypes,
        ops=tuple(OPS),
        modes=("isolated", "pipelined"),
        abort=False,
        facts={
            "torch": package_version("torch"),
            "transport": "TCP",
            "out of place": "all_reduce, reduce and broadcast of Gloo have one array, so a copy is part of the call",
            "reduce_scatter": "torch reduces all chunks on every rank, and keeps one of them",
            "avg": "Gloo's sum, then each rank divides",
            "pre_mul_sum": "each rank multiplies, then Gloo's sum",
            "min and max of floating point": "of integers with the same order, which ignore NaN; timed with Gloo's own",
            "messages": "with a header, to find mismatches; timed without it",
        },
        largest_tag=_LARGEST_TAG,
        reduce_dtypes=tuple(name for name in dtypes if name not in _NOT_REDUCED),
    )


def _library_path() -> str:
    from importlib.util import find_spec

    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return "unknown"
    path = Path(spec.origin).parent / "lib" / "libtorch_cpu.so"
    return str(path) if path.exists() else "unknown"
