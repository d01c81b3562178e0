"""The `nccl` backend: NVIDIA's binding nccl4py, and CuPy. Only this module and `nccl_binding` import cupy and nccl.

A process uses one GPU and one communication stream. Calls use nccl4py's low-level binding with pointers, counts and
handles that are resolved once: an eager call takes 11 µs instead of 35 µs with the high-level binding (8 bytes, H200).
An eager call runs in the user's current stream. Prepared calls that are enqueued or timed run in the communication
stream, and so do captured ones.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from meshlab.base._errors import CommunicatorError
from meshlab.base._hints import Argument, Hint
from meshlab.comm._agreement import client_abort
from meshlab.comm._backend import Backend, Call, CallConfig, Capabilities, Mode, Rendezvous, Timings, check_packages
from meshlab.comm._catalog import CATALOG, NATIVE
from meshlab.comm._elements import DTYPES, OPS
from meshlab.comm._streams import Event
from meshlab.comm.backends._cuda_parts import explain_failure, install_command, is_mappable
from meshlab.comm.backends._nccl_binding import NO_MAPPING, Launch, NcclBinder, Work, load_libraries
from meshlab.comm.backends._nccl_memory import (
    BufferRegistration,
    NcclMemory,
    RegisteredBuffers,
    free_deleted,
    has_deleted,
)
from meshlab.comm.backends._stream_timer import Load, StreamTimer

_SPIN_S = 0.0005  # time to poll an event without a pause; small collectives finish within it

_PAUSE_S = 0.00005

_MOST_BOUND = 16  # calls of one kind that are bound to the pointers of their arrays

_CHECK_S = 0.1  # interval between queries of NCCL for errors of other ranks

# NCCL_WIN_REQUIRED_ALIGNMENT, in bytes, and NCCL_WIN_COLL_SYMMETRIC of nccl.h.
_WINDOW_ALIGNMENT, _COLL_SYMMETRIC = 4096, 1


def check_installed() -> None:
    """Raise a `CommunicatorError` unless CuPy and nccl4py are installed. Does not import them."""
    check_packages("nccl", Hint("run {}, or use {}", install_command(), Argument("backend", "mpi")))


def load() -> None:
    """Import CuPy and NCCL, and initialise CUDA, which takes a second or more."""
    load_libraries().cupy.cuda.runtime.getDeviceCount()


def unique_id(peers: Sequence[str] | None = None) -> bytes:
    """Return a new unique id, which all ranks of a world must share."""
    return bytes(load_libraries().nccl.get_unique_id())


def visible_devices() -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the unique names of the GPUs of this process, in CUDA's order, and the versions of NCCL and the driver."""
    cupy, nccl, *_ = load_libraries()
    runtime = cupy.cuda.runtime
    try:
        names = tuple(_unique_name(runtime, index) for index in range(runtime.getDeviceCount()))
        driver = _cuda_version(runtime.driverGetVersion())
    except Exception as error:
        raise explain_failure("initialise CUDA", error) from error
    return names, {"NCCL": str(nccl.get_version().libnccl.version), "CUDA driver": driver}


def _unique_name(runtime: Any, index: int) -> str:
    # Parts of a GPU (MIG) have the address of the whole, but names of their own.
    return bytes(runtime.getDeviceProperties(index)["uuid"]).hex() or str(runtime.deviceGetPCIBusId(index))


def open_world(rendezvous: Rendezvous) -> NcclBackend:
    """Open the communicator of all ranks. All ranks must call it, and it blocks until they do."""
    cupy, nccl, *_ = load_libraries()
    size, rank, device = rendezvous.size, rendezvous.rank, rendezvous.device
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except Exception as error:
        raise explain_failure("initialise CUDA", error, rank=rank) from error
    if device >= count:
        raise CommunicatorError(f"device must be a GPU from 0 to {count - 1}, not {device}", rank=rank)
    cupy.cuda.Device(device).use()
    try:
        # The first kernel needs NVRTC and the CUDA headers. Without this, a later step would fail with CuPy's error.
        cupy.zeros(1, dtype=cupy.int32).fill(1)
        cupy.cuda.runtime.runtimeGetVersion()
    except Exception as error:
        raise explain_failure("run kernels of CuPy", error, rank=rank) from error
    try:
        # Communicators split from this one share its resources. Setting the option only on the child saves no memory.
        config = nccl.NCCLConfig(split_share=True)
        comm = nccl.Communicator.init(size, rank, nccl.UniqueId.from_bytes(rendezvous.unique_id), config)
    except Exception as error:
        raise CommunicatorError(f"cannot open a NCCL communicator of {size} ranks: {error}", rank=rank) from error
    return NcclBackend(comm, _Gpu(device, rendezvous.should_abort or (lambda: False)))


class _Gpu:
    """Shared state of the communicators on one stream: the device, the stream, and a scratch buffer for barriers."""

    def __init__(self, device: int, should_abort: Callable[[], bool], others: list[_Gpu] | None = None) -> None:
        import cupy

        self.device = device
        self.should_abort = should_abort
        # Communicators with split_share also share NCCL's abort flag, so aborting one aborts all of them.
        self.is_aborted = False
        # One object per stream. All of them are aborted together.
        self.all_streams = [] if others is None else others
        self.all_streams.append(self)
        # The communication stream orders the calls of all communicators, because NCCL deadlocks if ranks run two
        # communicators in different orders. Non-blocking, as graph capture requires.
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self.last_user: Any = None  # the user's stream that waits for all calls, or None
        self.before = cupy.cuda.Event(disable_timing=True)
        self.after = cupy.cuda.Event(disable_timing=True)
        self.scratch = cupy.zeros(1, dtype=cupy.int32)
        self.blocks: WeakValueDictionary[int, NcclMemory] = WeakValueDictionary()  # the memory of `empty`, by address
        self._current_stream = cupy.cuda.get_current_stream
        # The methods of CuPy's events and streams take twice as long as these functions.
        runtime = cupy.cuda.runtime
        self._record, self._wait, self._is_capturing = (
            runtime.eventRecord,
            runtime.streamWaitEvent,
            runtime.streamIsCapturing,
        )
        self._handles = self.stream.ptr, self.before.ptr, self.after.ptr
        cupy.cuda.Device(device).synchronize()

    def issue(self, launch: Launch) -> None:
        """Enqueue a call after earlier work in the user's current stream, and before later work in that stream."""
        # The call runs in the user's stream itself, which is ordered without events. Only the communication stream,
        # and with it all later calls in other streams, has to wait for it.
        comm_stream, _, after = self._handles
        user = self._current_stream(self.device)
        stream = user.ptr
        if stream == comm_stream:
            self.last_user = None
            launch(comm_stream)
        elif stream and self._is_capturing(stream):
            # The communication stream takes part in the capture only if it starts and ends in the user's stream.
            self.wait_for_user()
            launch(comm_stream)
            self.make_user_wait(user)
        else:
            if user is not self.last_user:
                self.make_user_wait(user)
            launch(stream)
            self._record(after, stream)
            self._wait(comm_stream, after)
            self.last_user = user

    def wait_for_user(self) -> Any:
        """Make the communication stream wait for the work in the user's current stream, and return that stream."""
        self.last_user = None
        comm_stream, before, _ = self._handles
        user = self._current_stream(self.device)
        self._record(before, user.ptr)
        self._wait(comm_stream, before)
        return user

    def make_user_wait(self, user: Any) -> None:
        """Make the user's stream wait for the work in the communication stream."""
        comm_stream, _, after = self._handles
        self._record(after, comm_stream)
        self._wait(user.ptr, after)


class NcclBackend:
    """One rank's endpoint of a NCCL communicator, which it owns, or a view of `owner`."""

    # A call waits for earlier work in the user's current stream, and later work in that stream waits for the call, so
    # plain CuPy code before and after a call needs no synchronisation. All calls of a process are ordered with each
    # other, also if they are issued in different streams.

    blocks = False

    def __init__(
        self, comm: Any, gpu: _Gpu, config: CallConfig | None = None, *, owner: NcclBackend | None = None
    ) -> None:
        self.comm = comm
        self._is_view = owner is not None
        self.gpu = gpu
        self.device, self.stream = gpu.device, gpu.stream
        # An abort of one of them has to delete the graphs of all, and to end all registrations.
        self._timer: StreamTimer = StreamTimer(gpu.stream, self.wait) if owner is None else owner._timer
        self._registered: RegisteredBuffers = (
            RegisteredBuffers(lambda: not gpu.is_aborted and bool(comm.is_valid))
            if owner is None
            else owner._registered
        )
        self.rank: int = comm.rank
        self.size: int = comm.nranks
        self.binder = NcclBinder(comm, gpu.scratch.data.ptr, self.size, config)
        self.barrier: Work = partial(self.binder.barrier, gpu.stream.ptr)

    @property
    def xp(self) -> Any:
        return load_libraries().cupy

    @property
    def current_stream(self) -> Any:
        return load_libraries().cupy.cuda.get_current_stream(self.gpu.device)

    def sync(self) -> None:
        """Wait until all calls are done. The communication stream waits for those in other streams."""
        self.check_alive()
        self.wait_idle()

    def record(self, stream: Any = None) -> Event:
        """Return an event of the work in a stream, by default the communication stream."""
        self.check_alive()
        cupy = load_libraries().cupy
        handle = self.gpu.stream.ptr if stream is None else _stream_handle(stream)
        with cupy.cuda.Device(self.gpu.device):
            event = cupy.cuda.Event(disable_timing=True)
        cupy.cuda.runtime.eventRecord(event.ptr, handle)
        return Event(event, self.wait)

    def wait_for(self, event: Any, stream: Any = None) -> None:
        """Make a stream wait for an event, by default all streams with later calls."""
        self.check_alive()
        native = event
        if isinstance(event, Event):
            native = event.native
            if native is None:  # of a backend whose calls block
                return
        if not hasattr(native, "ptr"):
            raise CommunicatorError(f"event must be the result of record(), or a cupy.cuda.Event, not {event!r}")
        handle = self.gpu.stream.ptr if stream is None else _stream_handle(stream)
        load_libraries().cupy.cuda.runtime.streamWaitEvent(handle, native.ptr)
        if stream is None:
            self.gpu.last_user = None  # so that the stream of the next call waits for the communication stream

    def empty(self, shape: int | tuple[int, ...], dtype: Any) -> Any:
        """Return an uninitialised array in memory allocated by NCCL, which NCCL can map on other GPUs."""
        cupy, dtype = load_libraries().cupy, np.dtype(dtype)
        n_bytes = math.prod(shape if isinstance(shape, tuple) else (shape,)) * dtype.itemsize
        if n_bytes == 0:
            return cupy.empty(shape, dtype)
        if has_deleted():
            self.wait_idle()
        block = NcclMemory(n_bytes)
        self.gpu.blocks[block.pointer] = block
        memory = cupy.cuda.UnownedMemory(block.pointer, n_bytes, block, self.gpu.device)
        return cupy.ndarray(shape, dtype, cupy.cuda.MemoryPointer(memory, 0))

    def prepare(self, call: Call) -> _NcclCalls:
        self.check_alive()
        return _NcclCalls(self, (call,), self.binder.bind(call))

    def prepare_batch(self, calls: Sequence[Call]) -> _NcclCalls:
        self.check_alive()
        return _NcclCalls(self, calls, self.binder.together([self.binder.bind(call) for call in calls]))

    def runner(self, call: Call) -> Callable[[Any, Any], object]:
        kind = call._replace(send=None, recv=None)  # the result must not keep the arrays alive
        if not kind.collective.has_size:
            barrier = self.prepare(kind)
            return lambda send, recv: barrier()
        bind, gpu, errors = self.binder.bind_pointers(kind), self.gpu, load_libraries().errors
        if bind is None:
            return lambda send, recv: self.prepare(kind._replace(send=send, recv=recv))()
        # Binding takes longer than to look up two pointers, and most loops use the same few arrays. Pointers of freed
        # memory do no harm: a call depends on nothing else.
        launches: dict[tuple[int, int], Launch] = {}

        def run_on(send: Any, recv: Any) -> None:
            if gpu.is_aborted:
                self.check_alive()
            pointers = 0 if send is None else send.data.ptr, 0 if recv is None else recv.data.ptr
            launch = launches.get(pointers)
            if launch is None:
                if len(launches) >= _MOST_BOUND:
                    launches.clear()
                launch = launches[pointers] = bind(*pointers)
            try:
                gpu.issue(launch)
            except errors as error:
                raise self.binder.explain(error, (kind,)) from error

        return run_on

    def comparer(self) -> None:
        """None: NCCL does not compare the calls of the ranks. The engines do it through shared memory."""

    def configured(self, config: CallConfig) -> NcclBackend:
        """Return a view of the communicator with a configuration for all calls. Raise if NCCL is older than 2.31."""
        return NcclBackend(self.comm, self.gpu, config, owner=self)

    @contextmanager
    def local(self) -> Iterator[None]:
        """Order array operations of CuPy in the block with the calls before and after it."""
        # The current device is a property of the thread, and a new thread of the user starts with device 0.
        with load_libraries().cupy.cuda.Device(self.gpu.device):
            user = self.gpu.wait_for_user()
            with self.gpu.stream:
                yield
            self.gpu.make_user_wait(user)

    @contextmanager
    def registered(self, array: Any) -> Iterator[None]:
        """Register a buffer for zero-copy transfers within the block."""
        registration = self.register(array)
        try:
            yield
        finally:
            if registration.is_open:
                self.wait_idle()
                registration.end()

    def register(self, array: Any, *, until_deleted: bool = False) -> BufferRegistration:
        """Register a buffer for zero-copy transfers. With `until_deleted`, the memory of the array owns it."""
        self.check_alive()
        binding, comm = load_libraries().binding, self.comm._comm
        handle = binding.comm_register(comm, array.data.ptr, array.nbytes)
        return self._registration(array, partial(binding.comm_deregister, comm, handle), until_deleted)

    def why_not_window(self, array: Any) -> str:
        """Return the reason why an array cannot be a window, or an empty string."""
        if not array.flags.c_contiguous:
            return f"it is not contiguous, with shape {array.shape} and strides {array.strides}; copy it"
        pointer = array.data.ptr
        if array.data.device_id != self.gpu.device:
            return f"it is on GPU {array.data.device_id}, but this rank uses GPU {self.gpu.device}"
        if pointer % _WINDOW_ALIGNMENT:
            return (
                f"it starts {pointer % _WINDOW_ALIGNMENT} bytes after a multiple of {_WINDOW_ALIGNMENT:,}; register "
                "the array of which it is a view"
            )
        if self._block(array) is None and not is_mappable(pointer):
            return "other GPUs cannot map its memory; allocate it with comm.empty(), or with ncclMemAlloc"
        return ""

    def register_window(self, array: Any, *, until_deleted: bool) -> BufferRegistration:
        """Register an array as a window of all ranks. Collective. Raise if NCCL rejects it or cannot map it."""
        self.check_alive()
        self.wait_idle()
        _, _, binding, errors = load_libraries()
        comm = self.comm._comm
        try:
            window = binding.comm_window_register(comm, array.data.ptr, array.nbytes, _COLL_SYMMETRIC)
        except errors as error:
            raise CommunicatorError(
                f"NCCL rejected a symmetric window of {array.nbytes:,} bytes: {error}",
                hint="set NCCL_DEBUG=WARN to see the reason in the log of the rank",
            ) from error
        # NCCL returns success without a window if it has no symmetric memory for the group.
        if not int(window):
            raise CommunicatorError(f"nccl cannot register symmetric memory: {NO_MAPPING}", hint="omit symmetric=True")
        return self._registration(array, partial(binding.comm_window_deregister, comm, window), until_deleted)

    def _registration(self, array: Any, deregister: Callable[[], object], until_deleted: bool) -> BufferRegistration:
        registration = self._registered.add(deregister)
        block = self._block(array) if until_deleted else None
        if block is not None:
            block.registration = registration
        return registration

    def _block(self, array: Any) -> NcclMemory | None:
        """Return the block of `empty` that contains an array, or None."""
        pointer, end = array.data.ptr, array.data.ptr + array.nbytes
        return next(
            (b for b in list(self.gpu.blocks.values()) if b.pointer <= pointer and end <= b.pointer + b.n_bytes), None
        )

    def simulate_us(self, call: Call) -> float:
        """Return the duration that NCCL's model predicts for a call, in µs, without running it."""
        return self.binder.simulate_us(self.binder.bind(call), self.gpu.stream.ptr)

    def memory_bytes(self) -> int | None:
        """Return the GPU memory of the communicator, in bytes, or None if the library does not report it."""
        return self.binder.memory_bytes()

    def split(self, color: int | None, key: int, *, separate: bool = False) -> Backend | None:
        """Create one communicator per color, on this stream and with shared resources unless they are separate."""
        self.check_alive()
        self.wait_idle()
        if separate:
            return self._split_separately(color, key)
        try:
            comm = self.comm.split(color, key)
        except Exception as error:
            raise CommunicatorError(f"cannot split the NCCL communicator: {error}") from error
        return NcclBackend(comm, self.gpu) if color is not None else None

    def _split_separately(self, color: int | None, key: int) -> NcclBackend | None:
        """Create one communicator per color, each on a new stream and with its own channels."""
        # ncclCommSplit always shares the channels of this communicator, because it has the option split_share. Two
        # communicators that share channels cannot run at the same time, so these are created from unique ids.
        nccl = load_libraries().nccl
        groups = self._share(np.array([-1 if color is None else color, key], np.int64))
        members = [int(rank) for rank in np.lexsort((groups[:, 1], groups[:, 0])) if groups[rank, 0] == color]
        is_first = bool(members) and members[0] == self.rank
        new_id = unique_id() if is_first else bytes(len(bytes(nccl.UniqueId())))
        ids = self._share(np.frombuffer(new_id, np.uint8))
        if color is None:
            return None
        try:
            shared_id = nccl.UniqueId.from_bytes(ids[members[0]].tobytes())
            comm = nccl.Communicator.init(len(members), members.index(self.rank), shared_id, nccl.NCCLConfig())
        except Exception as error:
            raise CommunicatorError(f"cannot open a separate NCCL communicator: {error}") from error
        return NcclBackend(comm, _Gpu(self.gpu.device, self.gpu.should_abort, self.gpu.all_streams))

    def _share(self, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Gather small arrays of equal size, and return them in rank order, shape (size, values)."""
        xp, dtype = self.xp, values.dtype
        with self.local():
            send, out = xp.asarray(values), xp.empty((self.size, values.size), dtype)
            self.prepare(Call(CATALOG["all_gather"], send, out, values.size, dtype, None, None, in_place=False))()
            self.wait_idle()  # polls, so that an abort ends it
            return np.asarray(out.get())

    def capabilities(self) -> Capabilities:
        """Return the capabilities. Properties that the loaded library does not report are "absent" or "unknown"."""
        cupy, nccl, *_ = load_libraries()
        library = nccl.get_version().libnccl
        properties = cupy.cuda.runtime.getDeviceProperties(self.gpu.device)
        name = properties["name"].decode()
        capability = (properties["major"], properties["minor"])
        # Since NCCL 2.28 all GPUs can move 8-bit floats. Reducing them needs compute capability 9.0 (Hopper).
        reducible = [dtype for dtype in DTYPES if not dtype.startswith("float8")]
        facts = {
            "device": name,
            "device number": str(self.gpu.device),
            "PCI address": str(cupy.cuda.runtime.deviceGetPCIBusId(self.gpu.device)),
            "compute capability": ".".join(map(str, capability)),
            "cupy": cupy.__version__,
            "CUDA runtime": _cuda_version(cupy.cuda.runtime.runtimeGetVersion()),
            "CUDA driver": _cuda_version(cupy.cuda.runtime.driverGetVersion()),
            **self.binder.facts(),
        }
        return Capabilities(
            backend="nccl",
            library=f"NCCL {library.version}",
            path=str(library.path),
            where=f"{name.removeprefix('NVIDIA ').split()[0]} · NCCL {library.version}",
            collectives=NATIVE,
            dtypes=tuple(DTYPES),
            ops=tuple(OPS),
            modes=("isolated", "pipelined", "graph"),
            abort=True,
            facts=facts,
            reduce_dtypes=tuple(DTYPES) if capability >= (9, 0) else tuple(reducible),
        )

    def close(self) -> None:
        if self.gpu.is_aborted:  # destroy() is collective, and the other ranks may be gone
            self.abort()
            return
        self.wait_idle()
        if not self._is_view:
            self._registered.end()
            self.comm.destroy()

    def abort(self) -> None:
        """Abort all communicators of this process without waiting for unresponsive peers."""
        # Order matters. The flag comes first, so that no thread enqueues another call, and no registration is given
        # back. NCCL's abort then waits until no graph contains calls of the communicator, so graphs are deleted before.
        for gpu in self.gpu.all_streams:
            gpu.is_aborted = True
        self._timer.drop_graphs()
        if self.comm.is_valid:
            self.comm.abort()

    def check_alive(self) -> None:
        """Raise an error after an abort in this process, because calls would return undefined results immediately."""
        if self.gpu.is_aborted:
            raise CommunicatorError("the communicators of this rank were aborted; call engines.restart()")

    def wait_idle(self) -> None:
        """Wait until all work on the communication stream is done."""
        event = load_libraries().cupy.cuda.Event(disable_timing=True)
        event.record(self.gpu.stream)
        self.wait(event)
        free_deleted()

    def wait(self, event: Any) -> None:
        """Wait for an event by polling, so that interrupts, errors and the client's abort flag can end the wait."""
        begin = checked = time.perf_counter()
        while not event.done:
            moment = time.perf_counter()
            if moment - begin < _SPIN_S:
                continue
            if moment - checked > _CHECK_S:
                checked = moment
                self._check()
            time.sleep(_PAUSE_S)

    def _check(self) -> None:
        # NCCL may never report the death of a peer: the error stays 0 and the event is never done. When the client's
        # deadline expires, the client sets the abort flag.
        code = int(self.comm.get_async_error())
        if code not in (0, 7):  # success, in progress
            reason = str(self.comm.get_last_error() or code)
            self.abort()
            raise CommunicatorError(f"NCCL reports: {reason}", code=code)
        if self.gpu.should_abort():
            self.abort()
            raise client_abort()

    def measure(
        self, work: Callable[[], object], barrier: Callable[[], object], mode: Mode, calls: int, batches: int
    ) -> Timings:
        self.make_ready()
        return self._timer.measure(work, barrier, mode, calls, batches)

    def held(self, work: Work, mode: Mode, calls: int) -> AbstractContextManager[Callable[[int], Timings]]:
        """Prepare batches of calls once. See `StreamTimer.held`."""
        self.make_ready()
        return self._timer.held(work, self.barrier, mode, calls)

    def captured(self, work: Callable[[], object], stream: Any = None) -> AbstractContextManager[Work]:
        """Capture work on the communication stream, or on another one, and return its replay. See `StreamTimer`."""
        self.make_ready()
        return (self._timer if stream is None else StreamTimer(stream, self.wait)).captured(work, 1)

    def make_ready(self) -> None:
        """Wait until the communication stream is idle, and order it after the work of the user."""
        self.check_alive()
        self.wait_idle()
        self.gpu.wait_for_user()

    def measure_under_load(self, work: Work, mode: Mode, calls: int, batches: int, load: Load) -> Timings:
        """Time batches of calls while those of a separate communicator run. Collective over both groups."""
        self.make_ready()
        return self._timer.measure_under_load(work, self.barrier, mode, calls, batches, load)

    def load(self, work: Work, calls: int) -> Load:
        """Return the calls of this communicator, as the load of another one."""
        return Load(self._timer, work, self.barrier, calls)


class _NcclCalls:
    def __init__(self, backend: NcclBackend, calls: Sequence[Call], launch: Launch) -> None:
        self._backend = backend
        self._gpu = backend.gpu
        self._calls = calls  # keeps the arrays alive, because `launch` has only their pointers
        self._launch = launch
        self._errors = load_libraries().errors
        self._is_barrier = all(call.collective.name == "barrier" for call in calls)
        # The timed code: a partial() of a partial() is one object, so that C calls C without a Python frame.
        self._work: Work = partial(launch, backend.gpu.stream.ptr)

    def __call__(self) -> None:
        gpu = self._gpu
        if gpu.is_aborted:
            self._backend.check_alive()
        try:
            if self._is_barrier:
                self._enter_barrier()
            else:
                gpu.issue(self._launch)
        except self._errors as error:
            raise self._backend.binder.explain(error, self._calls) from error

    def _enter_barrier(self) -> None:
        # The only call that blocks the host: its result is that all ranks have entered.
        user = self._gpu.wait_for_user()
        self._work()
        self._gpu.make_user_wait(user)
        self._backend.wait(self._gpu.after)

    def enqueue(self) -> None:
        """Enqueue the call on the communication stream."""
        self._gpu.last_user = None
        self._work()

    def measure(self, mode: Mode, calls: int, batches: int) -> Timings:
        with self._explained():
            return self._backend.measure(self._work, self._backend.barrier, mode, calls, batches)

    @contextmanager
    def held(self, mode: Mode, calls: int) -> Iterator[Callable[[int], Timings]]:
        backend = self._backend
        with ExitStack() as stack:
            with self._explained():
                time_batches = stack.enter_context(backend.held(self._work, mode, calls))

            def measure(batches: int) -> Timings:
                with self._explained():
                    backend.make_ready()
                    return time_batches(batches)

            yield measure

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except self._errors as error:
            raise self._backend.binder.explain(error, self._calls) from error

    def measure_under_load(self, mode: Mode, calls: int, batches: int, load: Load) -> Timings:
        with self._explained():
            return self._backend.measure_under_load(self._work, mode, calls, batches, load)

    def load(self, calls: int) -> Load:
        return self._backend.load(self._work, calls)


def _stream_handle(stream: Any) -> int:
    """Return the handle of a stream of CuPy, or of a library with the protocol ``__cuda_stream__``, such as PyTorch."""
    if hasattr(stream, "ptr"):
        return int(stream.ptr)
    if hasattr(stream, "__cuda_stream__"):
        protocol = stream.__cuda_stream__
        return int((protocol() if callable(protocol) else protocol)[1])
    raise CommunicatorError(f"stream must be a cupy.cuda.Stream, not {stream!r}")


def _cuda_version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"
