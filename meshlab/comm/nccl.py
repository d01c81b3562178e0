"""The `nccl` backend: NVIDIA's own binding and CuPy. The only module that imports cupy and nccl.

One process has one GPU and one communication stream. The low-level binding is called with pointers, counts and handles
that were resolved once, because the high-level one costs three times as much a call.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from types import ModuleType
from typing import Any

import numpy as np

from meshlab.comm.backend import Backend, Call, Capabilities, Mode, Timings
from meshlab.comm.catalog import CATALOG, DTYPES, OPS
from meshlab.errors import CommunicatorError

__all__ = ["NcclBackend", "open_world", "unique_id"]

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
    _, nccl, _ = _load()
    return bytes(nccl.get_unique_id())


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
    cupy, nccl, _ = _load()
    count = cupy.cuda.runtime.getDeviceCount()
    if device >= count:
        raise CommunicatorError(f"GPU {device} does not exist; there are {count}, 0 to {count - 1}", rank=rank)
    cupy.cuda.Device(device).use()
    try:
        config = nccl.NCCLConfig(split_share=True)  # on the parent, where it saves memory for its children
        comm = nccl.Communicator.init(size, rank, nccl.UniqueId.from_bytes(identity), config)
    except Exception as error:
        raise CommunicatorError(f"NCCL could not open a communicator of {size} ranks: {error}", rank=rank) from error
    return NcclBackend(comm, _Gpu(device, is_over or (lambda: False)))


def _load() -> tuple[ModuleType, ModuleType, ModuleType]:
    """CuPy, nccl4py and its low-level binding; nccl4py first, so that both use the libnccl that it finds."""
    try:
        import nccl.bindings.nccl as binding
        import nccl.core as nccl
    except ImportError as error:
        raise CommunicatorError(f"nccl4py cannot be loaded ({error}); {_INSTALL}") from error
    try:
        binding.get_version()
    except RuntimeError as error:
        raise CommunicatorError(f"libnccl cannot be loaded ({error}); {_INSTALL}") from error
    try:
        import cupy
    except ImportError as error:
        raise CommunicatorError(f"CuPy cannot be loaded ({error}); {_INSTALL}") from error
    return cupy, nccl, binding


_INSTALL = "install the GPU parts with: pip install '.[cuda12]' or '.[cuda13]', whichever the driver supports"


class _Gpu:
    """What all communicators of one process share: the device, the stream, and a scratch cell for barriers."""

    def __init__(self, device: int, is_over: Callable[[], bool]) -> None:
        import cupy

        self.device = device
        self.is_over = is_over
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self.before = cupy.cuda.Event(disable_timing=True)
        self.after = cupy.cuda.Event(disable_timing=True)
        self.scratch = cupy.zeros(1, dtype=cupy.int32)
        cupy.cuda.Device(device).synchronize()


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
    """

    def __init__(self, comm: Any, gpu: _Gpu) -> None:
        self.comm = comm
        self.gpu = gpu
        self.rank: int = comm.rank
        self.size: int = comm.nranks

    @property
    def xp(self) -> Any:
        """CuPy."""
        import cupy

        return cupy

    @property
    def stream(self) -> Any:
        """The communication stream."""
        return self.gpu.stream

    def prepare(self, call: Call) -> _NcclCall:
        """Bind a checked call to pointers, counts and handles."""
        device = None if call.send is None else call.send.device.id
        if device is not None and device != self.gpu.device:
            raise CommunicatorError(
                f"{call.collective.name}: the array lies on GPU {device}, this rank uses GPU {self.gpu.device}; "
                f"make it under cupy.cuda.Device({self.gpu.device})",
                collective=call.collective.name,
            )
        return _NcclCall(self, call)

    def split(self, color: int | None, key: int) -> Backend | None:
        """Make one communicator per color."""
        self.wait_idle()
        comm = self.comm.split(color, key)
        return NcclBackend(comm, self.gpu) if color is not None else None

    def capabilities(self) -> Capabilities:
        """Say what can be done; what the loaded library does not tell is unknown."""
        import cupy

        _, nccl, _ = _load()
        library = nccl.get_version().libnccl
        properties = cupy.cuda.runtime.getDeviceProperties(self.gpu.device)
        name = properties["name"].decode().removeprefix("NVIDIA ").split()[0]
        facts = {
            "device": properties["name"].decode(),
            "compute capability": f"{properties['major']}.{properties['minor']}",
            "cupy": cupy.__version__,
            "CUDA runtime": _cuda_version(cupy.cuda.runtime.runtimeGetVersion()),
            "CUDA driver": _cuda_version(cupy.cuda.runtime.driverGetVersion()),
            **_properties(self.comm),
        }
        return Capabilities(
            backend="nccl",
            library=f"NCCL {library.version}",
            path=str(library.path),
            where=f"{name} · NCCL {library.version}",
            collectives=tuple(CATALOG),
            dtypes=tuple(DTYPES),
            ops=tuple(OPS),
            modes=("isolated", "pipelined", "graph"),
            abort=True,
            facts=facts,
        )

    def close(self) -> None:
        """Give the communicator back."""
        self.wait_idle()
        self.comm.destroy()

    def abort(self) -> None:
        """End the communicator although other ranks do not answer any more."""
        self.comm.abort()

    def wait_idle(self) -> None:
        """Wait until everything on the communication stream is done."""
        import cupy

        event = cupy.cuda.Event(disable_timing=True)
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


class _NcclCall:
    def __init__(self, backend: NcclBackend, call: Call) -> None:
        self._backend = backend
        self._gpu = backend.gpu
        self._call = call  # keeps the arrays alive
        self._enqueue = _bind(backend, call)

    def __call__(self) -> None:
        import cupy

        gpu = self._gpu
        user = cupy.cuda.get_current_stream()
        gpu.before.record(user)
        gpu.stream.wait_event(gpu.before)
        self._enqueue()
        gpu.after.record(gpu.stream)
        user.wait_event(gpu.after)
        if self._call.collective.name == "barrier":
            self._backend.wait(gpu.after)

    def measure(self, mode: Mode, calls: int, batches: int) -> Timings:
        self._backend.wait_idle()
        gpu = self._gpu
        import cupy

        gpu.before.record(cupy.cuda.get_current_stream())
        gpu.stream.wait_event(gpu.before)
        if mode == "isolated":
            return self._measure_isolated(batches)
        if mode == "graph":
            return self._measure_back_to_back(self._captured(calls), calls, batches, untimed=2)
        enqueue = self._enqueue

        def batch() -> None:
            for _ in range(calls):
                enqueue()

        return self._measure_back_to_back(batch, calls, batches, untimed=1)

    def _captured(self, calls: int) -> Callable[[], None]:
        stream = self._gpu.stream
        with stream:
            stream.begin_capture()
            for _ in range(calls):
                self._enqueue()
            graph = stream.end_capture()
        return lambda: graph.launch(stream)

    def _measure_back_to_back(self, batch: Callable[[], None], calls: int, batches: int, *, untimed: int) -> Timings:
        """Batches that follow each other without a gap; one event between two of them."""
        import cupy

        stream, clock = self._gpu.stream, time.perf_counter_ns
        barrier = _bind_barrier(self._backend)
        events = [cupy.cuda.Event() for _ in range(batches + 1)]
        host = np.empty(batches + 1, dtype=np.int64)
        for _ in range(untimed):
            batch()
        barrier()
        self._backend.wait_idle()
        barrier()  # still under way when the first batch is enqueued, so that the batches do not wait for the host
        events[0].record(stream)
        host[0] = clock()
        for index in range(batches):
            batch()
            events[index + 1].record(stream)
            host[index + 1] = clock()
        self._backend.wait(events[-1])
        times = [cupy.cuda.get_elapsed_time(a, b) for a, b in pairwise(events)]
        return Timings(np.array(times) * 1e3 / calls, np.diff(host) / (1e3 * calls), None)

    def _measure_isolated(self, batches: int) -> Timings:
        """One call at a time: the ranks meet, then each notes when it starts and how long its GPU takes."""
        import cupy

        stream, clock = self._gpu.stream, time.perf_counter_ns
        barrier = _bind_barrier(self._backend)
        before, after = cupy.cuda.Event(), cupy.cuda.Event()
        times, host, starts = np.empty(batches), np.empty(batches), np.empty(batches)
        for index in range(batches):
            barrier()
            before.record(stream)
            self._backend.wait(before)
            begin = clock()
            before.record(stream)
            self._enqueue()
            end = clock()
            after.record(stream)
            self._backend.wait(after)
            times[index] = cupy.cuda.get_elapsed_time(before, after) * 1e3
            host[index], starts[index] = (end - begin) / 1e3, begin / 1e3
        return Timings(times, host, starts)


def _bind(backend: NcclBackend, call: Call) -> Callable[[], object]:
    """The shortest callable that enqueues the call."""
    name = call.collective.name
    if name == "barrier":
        return _bind_barrier(backend)
    _, _, binding = _load()
    comm, stream = backend.comm._comm, backend.gpu.stream.ptr
    send, recv, count = call.send.data.ptr, call.recv.data.ptr, call.count
    dtype = _dtype_code(binding, call.dtype)
    op = int(getattr(binding.RedOp, call.op.capitalize())) if call.op else 0
    root = call.root
    # partial() and not lambda: it calls C from C, and an enqueue is only about ten microseconds long.
    calls: dict[str, Callable[[], object]] = {
        "all_reduce": partial(binding.all_reduce, send, recv, count, dtype, op, comm, stream),
        "all_gather": partial(binding.all_gather, send, recv, count, dtype, comm, stream),
        "reduce_scatter": partial(binding.reduce_scatter, send, recv, count, dtype, op, comm, stream),
        "broadcast": partial(binding.broadcast, send, recv, count, dtype, root, comm, stream),
    }
    if name not in calls:
        raise CommunicatorError(f"NCCL has no {name}", collective=name)
    return calls[name]


def _bind_barrier(backend: NcclBackend) -> Callable[[], object]:
    """NCCL has no barrier: one number is reduced instead."""
    _, _, binding = _load()
    cell, stream, comm = backend.gpu.scratch.data.ptr, backend.gpu.stream.ptr, backend.comm._comm
    int32, total = int(binding.DataType.Int32), int(binding.RedOp.Sum)
    return partial(binding.all_reduce, cell, cell, 1, int32, total, comm, stream)


def _dtype_code(binding: ModuleType, dtype: np.dtype[Any] | None) -> int:
    name = "" if dtype is None else dtype.name
    return int(getattr(binding.DataType, name.capitalize()))


def _cuda_version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def _properties(comm: Any) -> dict[str, str]:
    """What the communicator says of itself; older libraries do not."""
    try:
        properties = comm.properties
    except Exception as error:
        return {"properties": f"absent ({type(error).__name__})"}
    return {
        "NVLS multicast": "yes" if properties.multimem_support else "no",
        "device API": "yes" if properties.device_api_support else "no",
        "NVLink teams": str(properties.n_lsa_teams),
    }
