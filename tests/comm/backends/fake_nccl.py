"""CuPy and nccl4py without a GPU: arrays that have only addresses, and functions that record their arguments."""

from __future__ import annotations

import sys
from enum import IntEnum
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from meshlab.comm._communicator import Communicator
from meshlab.comm.backends import _nccl, _nccl_binding, _stream_timer
from meshlab.comm.backends._nccl_binding import Libraries
from meshlab.engines._positions import Positions

COMM = 4321  # the handle of the communicator


class NcclError(Exception):
    status = 5


class DataType(IntEnum):
    Int8 = 0
    Int32 = 2
    Float32 = 7


class RedOp(IntEnum):
    Sum = 0
    Max = 2


class Array:
    """An array of float32 or other elements at an address of its own."""

    next_address = 1 << 20

    def __init__(self, shape: int | tuple[int, ...], dtype: Any = "float32") -> None:
        self.shape = shape if isinstance(shape, tuple) else (shape,)
        self.dtype, self.size, self.ndim = np.dtype(dtype), int(np.prod(self.shape)), len(self.shape)
        self.nbytes = self.size * self.dtype.itemsize
        self.flags = SimpleNamespace(c_contiguous=True)
        self.device = SimpleNamespace(id=0)
        self.data = SimpleNamespace(ptr=Array.next_address, device_id=0)
        Array.next_address += 1 << 16


class Handle:
    """A stream or an event."""

    next_number = 100

    def __init__(self, **options: Any) -> None:
        self.ptr, self.done = Handle.next_number, True
        Handle.next_number += 1

    def record(self, stream: Any) -> None:
        """Do nothing: all work is done at once."""


class FakeNccl:
    """The functions of the libraries. `calls` has the name and the arguments of each call of NCCL."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.error: Exception | None = None
        self.user = SimpleNamespace(ptr=0)  # the current stream of the user
        runtime = SimpleNamespace(
            eventRecord=lambda event, stream: None,
            streamWaitEvent=lambda stream, event: None,
            streamIsCapturing=lambda stream: False,
            getDeviceProperties=lambda device: {"name": b"NVIDIA H200", "major": 9, "minor": 0},
            deviceGetPCIBusId=lambda device: "0",
            runtimeGetVersion=lambda: 13000,
            driverGetVersion=lambda: 13000,
        )
        device = SimpleNamespace(synchronize=lambda: None)
        cupy: Any = ModuleType("cupy")
        cupy.ndarray, cupy.zeros, cupy.empty, cupy.int32, cupy.__version__ = Array, Array, Array, np.int32, "14.0"
        cupy.cuda = SimpleNamespace(
            Stream=Handle,
            Event=Handle,
            Device=lambda number: device,
            runtime=runtime,
            get_current_stream=lambda number: self.user,
        )
        binding: Any = ModuleType("binding")
        binding.DataType, binding.RedOp, binding.NCCLError = DataType, RedOp, NcclError
        binding.CommMemStat = SimpleNamespace(GpuMemTotal=0)
        binding.get_version, binding.comm_mem_stats = (lambda: 23203), (lambda comm, kind: 0)
        for name in ("all_reduce", "broadcast", "send", "recv", "group_start", "group_end"):
            setattr(binding, name, self._function(name))
        nccl: Any = ModuleType("nccl")
        nccl.get_version = lambda: SimpleNamespace(libnccl=SimpleNamespace(version="2.32.3", path="libnccl.so"))
        libraries = Libraries(cupy, nccl, binding, (RuntimeError, NcclError))
        for module in (_nccl, _nccl_binding, _stream_timer):
            monkeypatch.setattr(module, "load_libraries", lambda: libraries)
        monkeypatch.setitem(sys.modules, "cupy", cupy)

    def _function(self, name: str) -> Any:
        def function(*arguments: Any) -> None:
            self.calls.append((name, *arguments))
            if self.error is not None:
                raise self.error

        return function

    def taken(self) -> list[tuple[Any, ...]]:
        """Return the calls since the last time."""
        calls, self.calls = self.calls, []
        return calls

    def communicator(self, rank: int = 0, size: int = 2) -> Communicator:
        """Return the communicator of one rank, whose calls are recorded and compared as in engines."""
        owner = SimpleNamespace(
            _comm=COMM,
            rank=rank,
            nranks=size,
            is_valid=True,
            properties=SimpleNamespace(device_api_support=True, n_lsa_teams=1, multimem_support=True),
            abort=lambda: None,
            get_async_error=lambda: 0,
        )
        backend = _nccl.NcclBackend(owner, _nccl._Gpu(0, lambda: False))
        comparer: Any = SimpleNamespace(compare=lambda calls, by_all: None)
        monitor = Positions(size).writer(rank).monitor("world")
        return Communicator(backend, monitor=monitor, comparer=comparer)
