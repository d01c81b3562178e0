"""The `nccl` backend: NVIDIA's binding nccl4py, and CuPy. Only this module and `nccl_binding` import cupy and nccl.

A process uses one GPU and one communication stream. Calls use nccl4py's low-level binding with pointers, counts and
handles that are resolved once: an eager call takes 11 µs instead of 35 µs with the high-level binding (8 bytes, H200).
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np

from meshlab.comm.backend import Backend, Call, CallConfig, Capabilities, Mode, Timings
from meshlab.comm.backends.nccl_binding import NcclBinder, Work, load_libraries
from meshlab.comm.catalog import CATALOG
from meshlab.comm.elements import DTYPES, OPS
from meshlab.errors import CommunicatorError

__all__ = ["NcclBackend", "StreamTimer", "open_world", "unique_id"]


_GRAPH_WARMUP, _EAGER_WARMUP = 2, 1  # batches; the first replay of a graph also uploads it

_GRAPH_CALLS = 20  # maximum per graph, as for nccl-tests -G with its default of 20 iterations

_SPIN_S = 0.0005  # time to poll an event without a pause; small collectives finish within it

_PAUSE_S = 0.00005

_CHECK_S = 0.1  # interval between queries of NCCL for errors of other ranks


class StreamTimer:
    """Times work on one stream.

    Parameters
    ----------
    stream : cupy.cuda.Stream
        The stream on which the work is enqueued.
    wait : callable
        A function that waits for an event.
    """

    def __init__(self, stream: Any, wait: Callable[[Any], None]) -> None:
        self._stream = stream
        self._wait = wait
        self._graphs: list[Any] = []
        self._cuda = load_libraries().cupy.cuda

    def measure(self, work: Work, barrier: Work, mode: Mode, calls: int, batches: int) -> Timings:
        """Time `batches` batches of `calls` calls.

        Parameters
        ----------
        work, barrier : callable
            Functions that enqueue a call and a barrier.
        mode : {"isolated", "pipelined", "graph"}
            The timing mode, described in `meshlab.comm.MODES`.
        calls, batches : int
            The number of calls per batch, and the number of batches.
        """
        if mode == "isolated":
            return self._isolated(work, barrier, batches)
        if mode == "graph":
            self._capture(work, calls)
            try:
                return self._back_to_back(self._replay, barrier, calls, batches, _GRAPH_WARMUP)
            finally:
                self.drop_graphs()

        def batch() -> None:
            for _ in range(calls):
                work()

        return self._back_to_back(batch, barrier, calls, batches, _EAGER_WARMUP)

    def drop_graphs(self) -> None:
        """Delete the captured graphs. There are no other references to them."""
        self._graphs.clear()

    def _capture(self, work: Work, calls: int) -> None:
        """Capture the calls of a batch into graphs of up to `_GRAPH_CALLS` calls, as nccl-tests does."""
        # NCCL connects ranks at the first call of a kind. That allocates memory and synchronises, which is not allowed
        # during a capture.
        work()
        self._wait_idle()
        replays, rest = divmod(calls, _GRAPH_CALLS)
        if replays:
            self._graphs += [self._graph(work, _GRAPH_CALLS)] * replays
        if rest:
            self._graphs.append(self._graph(work, rest))

    def _replay(self) -> None:
        for graph in self._graphs:
            graph.launch(self._stream)

    def _graph(self, work: Work, calls: int) -> Any:
        with self._stream:
            self._stream.begin_capture()
            try:
                for _ in range(calls):
                    work()
            except BaseException as error:
                # End the capture, or the stream would capture everything that is enqueued later. Ending a capture that
                # a call has invalidated fails too, but still resets the stream.
                with contextlib.suppress(Exception):
                    self._stream.end_capture()
                if not isinstance(error, Exception):
                    raise
                raise CommunicatorError(
                    f"cannot capture the calls into a graph: {error}; remove everything that waits for the GPU, such "
                    "as barriers, synchronisation and reading results, or use mode='pipelined'"
                ) from error
            return self._stream.end_capture()

    def _back_to_back(self, batch: Callable[[], None], barrier: Work, calls: int, batches: int, warmup: int) -> Timings:
        """Time consecutive batches without gaps, with one event between neighbouring batches."""
        clock = time.perf_counter_ns
        events = [self._cuda.Event() for _ in range(batches + 1)]
        host = np.empty(batches + 1, dtype=np.int64)
        for _ in range(warmup):
            batch()
        barrier()
        self._wait_idle()
        # The second barrier is still running when the first batch is enqueued, so that the GPU never waits for the
        # host.
        barrier()
        events[0].record(self._stream)
        host[0] = clock()
        for index in range(batches):
            batch()
            events[index + 1].record(self._stream)
            host[index + 1] = clock()
        self._wait(events[-1])
        times = [self._cuda.get_elapsed_time(first, second) for first, second in pairwise(events)]
        return Timings(np.array(times) * 1e3 / calls, np.diff(host) / (1e3 * calls), None)

    def _isolated(self, work: Work, barrier: Work, batches: int) -> Timings:
        """Time one call at a time, each after a barrier. Also return when each rank started."""
        clock = time.perf_counter_ns
        before, after = self._cuda.Event(), self._cuda.Event()
        times, host, starts = np.empty(batches), np.empty(batches), np.empty(batches)
        for index in range(batches):
            barrier()
            before.record(self._stream)
            self._wait(before)
            begin = clock()
            before.record(self._stream)  # again, because the wait took time that must not count
            work()
            end = clock()
            after.record(self._stream)
            self._wait(after)
            times[index] = self._cuda.get_elapsed_time(before, after) * 1e3
            host[index], starts[index] = (end - begin) / 1e3, begin / 1e3
        return Timings(times, host, starts)

    def _wait_idle(self) -> None:
        event = self._cuda.Event(disable_timing=True)
        event.record(self._stream)
        self._wait(event)


def unique_id() -> bytes:
    """Return a new unique id, which all ranks of a world must share.

    Raises
    ------
    CommunicatorError
        If CuPy, nccl4py or libnccl is missing.
    """
    return bytes(load_libraries().nccl.get_unique_id())


def open_world(
    size: int, rank: int, device: int, unique_id: bytes, *, should_abort: Callable[[], bool] | None = None
) -> NcclBackend:
    """Open the communicator of all ranks. All ranks must call it, and it blocks until they do.

    Parameters
    ----------
    size, rank : int
        The number of ranks, and this rank.
    device : int
        CUDA device index of this rank. GPUs are not masked, because that can disable direct access between them.
    unique_id : bytes
        The result of `unique_id` on one rank.
    should_abort : callable, optional
        Polled while the rank waits. If it returns True, the communicator is aborted and the wait raises.

    Raises
    ------
    CommunicatorError
        If a library or the GPU is missing, or NCCL fails.
    """
    cupy, nccl, *_ = load_libraries()
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except Exception as error:
        raise CommunicatorError(f"cannot initialise CUDA: {error}; run meshlab doctor", rank=rank) from error
    if device >= count:
        raise CommunicatorError(f"device must be a GPU from 0 to {count - 1}, not {device}", rank=rank)
    cupy.cuda.Device(device).use()
    try:
        # Communicators split from this one share its resources. Setting the option only on the child saves no memory.
        config = nccl.NCCLConfig(split_share=True)
        comm = nccl.Communicator.init(size, rank, nccl.UniqueId.from_bytes(unique_id), config)
    except Exception as error:
        raise CommunicatorError(f"cannot open a NCCL communicator of {size} ranks: {error}", rank=rank) from error
    return NcclBackend(comm, _Gpu(device, should_abort or (lambda: False)))


class _Gpu:
    """Shared state of all communicators of a process: the device, the stream, and a scratch buffer for barriers."""

    def __init__(self, device: int, should_abort: Callable[[], bool]) -> None:
        import cupy

        self.device = device
        self.should_abort = should_abort
        # Communicators with split_share also share NCCL's abort flag, so aborting one aborts all of them.
        self.is_aborted = False
        # One stream for all communicators: NCCL deadlocks if ranks run two communicators in different orders, and on
        # one stream they run in the order of the program. Non-blocking, as graph capture requires.
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self.current_stream = cupy.cuda.get_current_stream
        self.before = cupy.cuda.Event(disable_timing=True)
        self.after = cupy.cuda.Event(disable_timing=True)
        self.scratch = cupy.zeros(1, dtype=cupy.int32)
        cupy.cuda.Device(device).synchronize()

    def wait_for_user(self) -> Any:
        """Make the communication stream wait for the work in the user's current stream, and return that stream."""
        user = self.current_stream()
        self.before.record(user)
        self.stream.wait_event(self.before)
        return user

    def make_user_wait(self, user: Any) -> None:
        """Make the user's stream wait for the work in the communication stream."""
        self.after.record(self.stream)
        user.wait_event(self.after)


class NcclBackend:
    """One rank's endpoint of a NCCL communicator. Implements `meshlab.comm.backend.Backend`.

    Calls run on a separate stream. A call waits for earlier work in the user's current stream, and later work in that
    stream waits for the call, so plain CuPy code before and after a call needs no synchronisation.

    Parameters
    ----------
    comm : nccl.core.Communicator
        The communicator. The object takes ownership of it, unless `is_view` is True.
    gpu : _Gpu
        The state that the communicators of this process share.
    config : CallConfig, optional
        Configuration of every call. By default NCCL chooses.
    is_view : bool, default False
        True if a different object owns the communicator.
    """

    def __init__(self, comm: Any, gpu: _Gpu, config: CallConfig | None = None, *, is_view: bool = False) -> None:
        self.comm = comm
        self._is_view = is_view
        self.gpu = gpu
        self._timer = StreamTimer(gpu.stream, self.wait)
        self.rank: int = comm.rank
        self.size: int = comm.nranks
        self.binder = NcclBinder(comm, gpu.stream.ptr, gpu.scratch.data.ptr, self.size, config)

    @property
    def xp(self) -> Any:
        """CuPy."""
        return load_libraries().cupy

    @property
    def device(self) -> int:
        """CUDA device index on which arrays must be."""
        return self.gpu.device

    @property
    def stream(self) -> Any:
        """The communication stream."""
        return self.gpu.stream

    def empty(self, shape: int | tuple[int, ...], dtype: Any) -> Any:
        """Return an uninitialised array in memory allocated by NCCL, which NCCL can map on other GPUs."""
        cupy, dtype = load_libraries().cupy, np.dtype(dtype)
        n_bytes = math.prod(shape if isinstance(shape, tuple) else (shape,)) * dtype.itemsize
        if n_bytes == 0:
            return cupy.empty(shape, dtype)
        block = _NcclMemory(n_bytes)
        memory = cupy.cuda.UnownedMemory(block.pointer, n_bytes, block, self.gpu.device)
        return cupy.ndarray(shape, dtype, cupy.cuda.MemoryPointer(memory, 0))

    def prepare(self, call: Call) -> _NcclCalls:
        """Bind a checked call to pointers, counts and handles."""
        self.check_alive()
        return _NcclCalls(self, (call,), self.binder.bind(call))

    def prepare_batch(self, calls: Sequence[Call]) -> _NcclCalls:
        """Bind several checked calls to one NCCL group."""
        self.check_alive()
        return _NcclCalls(self, calls, self.binder.together([self.binder.bind(call) for call in calls]))

    def configured(self, config: CallConfig) -> NcclBackend:
        """Return a view of the communicator with a configuration for all calls.

        Raises
        ------
        CommunicatorError
            If the loaded NCCL is older than 2.31, which cannot configure calls.
        """
        return NcclBackend(self.comm, self.gpu, config, is_view=True)

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
        binding = load_libraries().binding
        handle = binding.comm_register(self.comm._comm, array.data.ptr, array.nbytes)
        try:
            yield
        finally:
            self.wait_idle()
            binding.comm_deregister(self.comm._comm, handle)

    def simulate_us(self, call: Call) -> float:
        """Return the duration that NCCL's model predicts for a call, in µs, without running it."""
        return self.binder.simulate_us(self.binder.bind(call))

    def memory_bytes(self) -> int | None:
        """Return the GPU memory of the communicator, in bytes, or None if the library does not report it."""
        return self.binder.memory_bytes()

    def split(self, color: int | None, key: int) -> Backend | None:
        """Create one communicator per color."""
        self.check_alive()
        self.wait_idle()
        try:
            comm = self.comm.split(color, key)
        except Exception as error:
            raise CommunicatorError(f"cannot split the NCCL communicator: {error}") from error
        return NcclBackend(comm, self.gpu) if color is not None else None

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
            collectives=tuple(CATALOG),
            dtypes=tuple(DTYPES),
            ops=tuple(OPS),
            modes=("isolated", "pipelined", "graph"),
            abort=True,
            facts=facts,
            reduce_dtypes=tuple(DTYPES) if capability >= (9, 0) else tuple(reducible),
        )

    def close(self) -> None:
        """Free the communicator."""
        if self.gpu.is_aborted:  # destroy() is collective, and the other ranks may be gone
            self.abort()
            return
        self.wait_idle()
        if not self._is_view:
            self.comm.destroy()

    def abort(self) -> None:
        """Abort all communicators of this process without waiting for unresponsive peers."""
        # Order matters. The flag comes first, so that no thread enqueues another call. NCCL's abort then waits until no
        # graph contains calls of the communicator, so graphs are deleted before it.
        self.gpu.is_aborted = True
        self._timer.drop_graphs()
        if not self._is_view and self.comm.is_valid:
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

    def wait(self, event: Any) -> None:
        """Wait for an event by polling, so that interrupts and errors can end the wait.

        Raises
        ------
        CommunicatorError
            If NCCL reports an error of this or another rank.
            If the client has set the abort flag.
        """
        begin = checked = time.perf_counter()
        while not event.done:
            now = time.perf_counter()
            if now - begin < _SPIN_S:
                continue
            if now - checked > _CHECK_S:
                checked = now
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
            raise CommunicatorError(
                "aborted by the client because another rank stopped responding; see the EngineError of the client, "
                "then call engines.restart()"
            )

    def measure(
        self, work: Callable[[], object], barrier: Callable[[], object], mode: Mode, calls: int, batches: int
    ) -> Timings:
        """Time a function that enqueues calls on the communication stream, on the clock of the GPU."""
        self.check_alive()
        self.wait_idle()
        self.gpu.wait_for_user()
        return self._timer.measure(work, barrier, mode, calls, batches)


class _NcclMemory:
    """A block of memory on the current device, allocated by NCCL and freed with the object."""

    def __init__(self, n_bytes: int) -> None:
        cupy, _, binding, errors = load_libraries()
        try:
            self.pointer: int = binding.mem_alloc(n_bytes)
        except errors as error:
            free, total = cupy.cuda.runtime.memGetInfo()
            raise CommunicatorError(
                f"NCCL cannot allocate {n_bytes:,} bytes on the GPU, where {free:,} of {total:,} are free: {error}"
            ) from error
        self._device = cupy.cuda.Device()
        self._free = binding.mem_free

    def __del__(self) -> None:
        if hasattr(self, "_free"):
            with self._device:
                self._device.synchronize()  # CuPy frees memory in stream order, but NCCL frees it immediately
                self._free(self.pointer)


class _NcclCalls:
    def __init__(self, backend: NcclBackend, calls: Sequence[Call], enqueue: Callable[[], object]) -> None:
        self._backend = backend
        self._gpu = backend.gpu
        self._calls = calls  # keeps the arrays alive, because `enqueue` has only their pointers
        self.enqueue = enqueue
        self._is_barrier = all(call.collective.name == "barrier" for call in calls)

    def __call__(self) -> None:
        if self._gpu.is_aborted:
            self._backend.check_alive()
        user = self._gpu.wait_for_user()
        try:
            self.enqueue()
        except load_libraries().errors as error:
            raise self._backend.binder.explain(error, self._calls) from error
        self._gpu.make_user_wait(user)
        if self._is_barrier:  # the only call that blocks the host: its result is that all ranks have entered
            self._backend.wait(self._gpu.after)

    def measure(self, mode: Mode, calls: int, batches: int) -> Timings:
        try:
            return self._backend.measure(self.enqueue, self._backend.binder.barrier, mode, calls, batches)
        except load_libraries().errors as error:
            raise self._backend.binder.explain(error, self._calls) from error


def _cuda_version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"
