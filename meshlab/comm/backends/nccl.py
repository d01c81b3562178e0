"""The `nccl` backend: NVIDIA's own binding and CuPy. With `nccl_binding`, the only module that imports cupy and nccl.

One process has one GPU and one communication stream. The low-level binding is called with pointers, counts and handles
that were resolved once, because the high-level one costs three times as much a call.
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
from meshlab.comm.backends.nccl_binding import NcclBinder, load
from meshlab.comm.catalog import CATALOG
from meshlab.comm.elements import DTYPES, OPS
from meshlab.errors import CommunicatorError

__all__ = ["NcclBackend", "StreamTimer", "open_world", "unique_id"]


_GRAPH_WARMUP, _EAGER_WARMUP = 2, 1

_GRAPH_CALLS = 20  # in one graph at most: `-G` of nccl-tests with its default `-n 20`

Work = Callable[[], object]


class StreamTimer:
    """Times work on one stream.

    Parameters
    ----------
    stream : cupy.cuda.Stream
        Where the work is enqueued.
    wait : callable
        Waits for an event.
    """

    def __init__(self, stream: Any, wait: Callable[[Any], None]) -> None:
        self._stream = stream
        self._wait = wait
        self._graphs: list[Any] = []
        self._cuda = load().cupy.cuda

    def measure(self, work: Work, barrier: Work, mode: Mode, calls: int, batches: int) -> Timings:
        """Time `batches` batches of `calls` calls, in one of the modes of `meshlab.comm.MODES`.

        Parameters
        ----------
        work, barrier : callable
            Enqueue one call, and something that brings the ranks together.
        mode : {"isolated", "pipelined", "graph"}
        calls, batches : int
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
        """Let go of what was captured; nobody else holds it."""
        self._graphs.clear()

    def _capture(self, work: Work, calls: int) -> None:
        """Put the calls into graphs of `_GRAPH_CALLS`, replayed as often as it takes, as nccl-tests does."""
        work()  # connects, which must not happen while a graph is captured
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
                with contextlib.suppress(Exception):  # or the stream would go on capturing whatever comes next
                    self._stream.end_capture()
                if not isinstance(error, Exception):
                    raise
                raise CommunicatorError(
                    f"the calls cannot be captured into a graph ({error}); inside, nothing may wait for the GPU: no "
                    "barrier, no synchronize, nothing read back. mode='pipelined' allows it"
                ) from error
            return self._stream.end_capture()

    def _back_to_back(self, batch: Callable[[], None], barrier: Work, calls: int, batches: int, warmup: int) -> Timings:
        """Batches that follow each other without a gap; one event between two of them."""
        clock = time.perf_counter_ns
        events = [self._cuda.Event() for _ in range(batches + 1)]
        host = np.empty(batches + 1, dtype=np.int64)
        for _ in range(warmup):
            batch()
        barrier()
        self._wait_idle()
        barrier()  # still under way when the first batch is enqueued, so that the batches do not wait for the host
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
        """One call at a time: the ranks meet, then each notes when it starts and how long its GPU takes."""
        clock = time.perf_counter_ns
        before, after = self._cuda.Event(), self._cuda.Event()
        times, host, starts = np.empty(batches), np.empty(batches), np.empty(batches)
        for index in range(batches):
            barrier()
            before.record(self._stream)
            self._wait(before)
            begin = clock()
            before.record(self._stream)
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


_SPIN_S = 0.0005  # how long to ask an event without a pause; small collectives are over by then

_PAUSE_S = 0.00005

_CHECK_S = 0.1  # how often to ask NCCL for an error of another rank


def unique_id() -> bytes:
    """Make the id that all ranks of a new world must share.

    Raises
    ------
    CommunicatorError
        If CuPy, nccl4py or libnccl is missing.
    """
    return bytes(load().nccl.get_unique_id())


def open_world(
    size: int, rank: int, device: int, identity: bytes, *, is_over: Callable[[], bool] | None = None
) -> NcclBackend:
    """Join the communicator of all ranks. Every rank calls it at the same time.

    Parameters
    ----------
    size, rank : int
        How many ranks, and which one this is.
    device : int
        The GPU's index as CUDA counts; GPUs are not masked, so that they reach each other directly.
    identity : bytes
        What `unique_id` made.
    is_over : callable, optional
        Asked while a rank waits; when it says True, the wait ends with an error and the communicator is aborted.

    Raises
    ------
    CommunicatorError
        If a library or the GPU is missing, or NCCL refuses.
    """
    cupy, nccl, *_ = load()
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except Exception as error:
        raise CommunicatorError(f"CUDA does not start ({error}); look at meshlab doctor", rank=rank) from error
    if device >= count:
        raise CommunicatorError(f"GPU {device} does not exist; there are {count}, 0 to {count - 1}", rank=rank)
    cupy.cuda.Device(device).use()
    try:
        config = nccl.NCCLConfig(split_share=True)  # on the parent, where it saves memory for its children
        comm = nccl.Communicator.init(size, rank, nccl.UniqueId.from_bytes(identity), config)
    except Exception as error:
        raise CommunicatorError(f"NCCL could not open a communicator of {size} ranks: {error}", rank=rank) from error
    return NcclBackend(comm, _Gpu(device, is_over or (lambda: False)))


class _Gpu:
    """What all communicators of one process share: the device, the stream, and a scratch cell for barriers."""

    def __init__(self, device: int, is_over: Callable[[], bool]) -> None:
        import cupy

        self.device = device
        self.is_over = is_over
        self.is_aborted = False  # a communicator shares its flag for that with those split from it, so all are
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self.current_stream = cupy.cuda.get_current_stream
        self.before = cupy.cuda.Event(disable_timing=True)
        self.after = cupy.cuda.Event(disable_timing=True)
        self.scratch = cupy.zeros(1, dtype=cupy.int32)
        cupy.cuda.Device(device).synchronize()

    def follow_user(self) -> Any:
        """Let the communication stream wait for what the user's current stream has been given so far."""
        user = self.current_stream()
        self.before.record(user)
        self.stream.wait_event(self.before)
        return user

    def lead_user(self, user: Any) -> None:
        """Let the user's stream wait for what the communication stream has been given so far."""
        self.after.record(self.stream)
        user.wait_event(self.after)


class NcclBackend:
    """One rank's end of a NCCL communicator; implements `meshlab.comm.backend.Backend`.

    Calls go to a stream of their own. A call waits for what the user's current stream has been given before, and that
    stream waits for the call, so plain CuPy code before and after it is right.

    Parameters
    ----------
    comm : nccl.core.Communicator
        The communicator. It belongs to this object from now on.
    gpu : _Gpu
        What this process shares among its communicators.
    config : CallConfig, optional
        How NCCL should carry out the calls, where it lets one choose.
    is_view : bool, default False
        True when the communicator belongs to another backend.
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
        return load().cupy

    @property
    def device(self) -> int:
        """The GPU that arrays must be on."""
        return self.gpu.device

    @property
    def stream(self) -> Any:
        """The communication stream."""
        return self.gpu.stream

    def empty(self, shape: int | tuple[int, ...], dtype: Any) -> Any:
        """Make an uninitialised array in NCCL's own memory, which its kernels in other GPUs can map."""
        cupy, dtype = load().cupy, np.dtype(dtype)
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
        """The same communicator, whose calls NCCL carries out as `config` says.

        Raises
        ------
        CommunicatorError
            If the loaded library cannot choose per call (before NCCL 2.31).
        """
        return NcclBackend(self.comm, self.gpu, config, is_view=True)

    @contextmanager
    def local(self) -> Iterator[None]:
        """Array operations of CuPy in here come in order with the calls made before and after."""
        with load().cupy.cuda.Device(self.gpu.device):  # a thread of the user's own begins with the first one
            user = self.gpu.follow_user()
            with self.gpu.stream:
                yield
            self.gpu.lead_user(user)

    @contextmanager
    def registered(self, array: Any) -> Iterator[None]:
        """Let NCCL know a buffer, so that it can move it without a copy."""
        binding = load().binding
        handle = binding.comm_register(self.comm._comm, array.data.ptr, array.nbytes)
        try:
            yield
        finally:
            self.wait_idle()
            binding.comm_deregister(self.comm._comm, handle)

    def simulate_us(self, call: Call) -> float:
        """How long NCCL's own model thinks that a call takes, in µs; nothing is carried out."""
        return self.binder.simulate_us(self.binder.bind(call))

    def memory_bytes(self) -> int | None:
        """The GPU memory that the communicator holds; None where the library does not tell (before NCCL 2.30)."""
        return self.binder.memory_bytes()

    def split(self, color: int | None, key: int) -> Backend | None:
        """Make one communicator per color."""
        self.check_alive()
        self.wait_idle()
        try:
            comm = self.comm.split(color, key)
        except Exception as error:
            raise CommunicatorError(f"NCCL could not split the communicator: {error}") from error
        return NcclBackend(comm, self.gpu) if color is not None else None

    def capabilities(self) -> Capabilities:
        """Say what can be done; what the loaded library does not tell is absent or unknown."""
        cupy, nccl, *_ = load()
        library = nccl.get_version().libnccl
        properties = cupy.cuda.runtime.getDeviceProperties(self.gpu.device)
        name = properties["name"].decode()
        capability = (properties["major"], properties["minor"])
        # 8-bit floats can be moved anywhere since NCCL 2.28, and reduced from Hopper on.
        halves = [dtype for dtype in DTYPES if not dtype.startswith("float8")]
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
            reduce_dtypes=tuple(DTYPES) if capability >= (9, 0) else tuple(halves),
        )

    def close(self) -> None:
        """Give the communicator back."""
        if self.gpu.is_aborted:
            self.abort()
            return
        self.wait_idle()
        if not self._is_view:
            self.comm.destroy()

    def abort(self) -> None:
        """End the communicator, and with it all of this process, although other ranks do not answer any more."""
        self.gpu.is_aborted = True
        self._timer.drop_graphs()  # NCCL waits until no graph holds calls of the communicator
        if not self._is_view and self.comm.is_valid:
            self.comm.abort()

    def check_alive(self) -> None:
        """Raise an error once a communicator of this process was aborted: calls would end at once, with any result."""
        if self.gpu.is_aborted:
            raise CommunicatorError("the communicators of this rank were aborted; engines.restart() makes new ones")

    def wait_idle(self) -> None:
        """Wait until everything on the communication stream is done."""
        event = load().cupy.cuda.Event(disable_timing=True)
        event.record(self.gpu.stream)
        self.wait(event)

    def wait(self, event: Any) -> None:
        """Wait for an event by asking, never by blocking, so that interrupts and errors get through.

        Raises
        ------
        CommunicatorError
            If NCCL reports an error of this or another rank, or the client has ended the run.
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
        code = int(self.comm.get_async_error())
        if code not in (0, 7):  # success, in progress
            reason = str(self.comm.get_last_error() or code)
            self.abort()
            raise CommunicatorError(f"NCCL reports: {reason}", code=code)
        if self.gpu.is_over():
            self.abort()
            raise CommunicatorError("the client ended the run, because another rank does not answer any more")

    def measure(
        self, work: Callable[[], object], barrier: Callable[[], object], mode: Mode, calls: int, batches: int
    ) -> Timings:
        """Time anything that enqueues calls on the communication stream, on the GPU's own clock."""
        self.check_alive()
        self.wait_idle()
        self.gpu.follow_user()
        return self._timer.measure(work, barrier, mode, calls, batches)


class _NcclMemory:
    """A block of NCCL's memory on the current device."""

    def __init__(self, n_bytes: int) -> None:
        cupy, _, binding, errors = load()
        try:
            self.pointer: int = binding.mem_alloc(n_bytes)
        except errors as error:
            free, total = cupy.cuda.runtime.memGetInfo()
            raise CommunicatorError(
                f"NCCL could not allocate {n_bytes:,} bytes on the GPU ({error}); {free:,} of {total:,} are free"
            ) from error
        self._device = cupy.cuda.Device()
        self._free = binding.mem_free

    def __del__(self) -> None:
        if hasattr(self, "_free"):
            with self._device:
                self._device.synchronize()  # unlike CuPy's own memory, this one is not freed in order with the streams
                self._free(self.pointer)


class _NcclCalls:
    def __init__(self, backend: NcclBackend, calls: Sequence[Call], enqueue: Callable[[], object]) -> None:
        self._backend = backend
        self._gpu = backend.gpu
        self._calls = calls  # keeps the arrays alive
        self.enqueue = enqueue
        self._is_barrier = all(call.collective.name == "barrier" for call in calls)

    def __call__(self) -> None:
        if self._gpu.is_aborted:
            self._backend.check_alive()
        user = self._gpu.follow_user()
        try:
            self.enqueue()
        except load().errors as error:
            raise self._backend.binder.explain(error, self._calls) from error
        self._gpu.lead_user(user)
        if self._is_barrier:
            self._backend.wait(self._gpu.after)

    def measure(self, mode: Mode, calls: int, batches: int) -> Timings:
        try:
            return self._backend.measure(self.enqueue, self._backend.binder.barrier, mode, calls, batches)
        except load().errors as error:
            raise self._backend.binder.explain(error, self._calls) from error


def _cuda_version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"
