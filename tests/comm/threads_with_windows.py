"""Threads with the parts of NCCL that windows and configured calls need, to test everything above the library."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from meshlab.base._errors import CommunicatorError
from meshlab.comm._backend import CONFIGURABLE, Call, CallConfig, Capabilities
from meshlab.comm._catalog import CATALOG
from meshlab.comm._communicator import Communicator
from meshlab.comm._windows import SYMMETRIC
from meshlab.comm.backends._nccl_memory import BufferRegistration, RegisteredBuffers
from meshlab.comm.backends._threads import ThreadBackend


class WithWindows(ThreadBackend):
    """Threads that register windows like NCCL: all ranks together, with memory that only `empty` returns."""

    def __init__(self, backend: ThreadBackend, config: CallConfig | None = None) -> None:
        super().__init__(backend.world, backend.rank)
        self.log: list[str] = []
        self.config = config
        self.configs: list[tuple[str, CallConfig | None]] = []  # of each call
        self.is_aborted = False
        self.limit = 1 << 40
        self._memory: list[Any] = []
        self._registered = RegisteredBuffers(lambda: not self.is_aborted)

    def empty(self, shape: Any, dtype: Any) -> Any:
        n_bytes = math.prod(shape if isinstance(shape, tuple) else (shape,)) * np.dtype(dtype).itemsize
        if n_bytes > self.limit:
            raise CommunicatorError(f"cannot allocate {n_bytes} bytes")
        array = np.empty(shape, dtype)
        self._memory.append(array)
        return array

    def why_not_window(self, array: Any) -> str:
        return "" if any(array is one for one in self._memory) else "other GPUs cannot map its memory"

    def register_window(self, array: Any, *, until_deleted: bool) -> BufferRegistration:
        self.prepare(Call(CATALOG["barrier"], None, None, 0, None, None, None, in_place=False))()
        self.log.append(f"register {array.nbytes}")
        return self._registered.add(partial(self.log.append, f"give back {array.nbytes}"))

    def register(self, array: Any, *, until_deleted: bool = False) -> BufferRegistration:
        self.log.append(f"register {array.nbytes} alone")
        return self._registered.add(partial(self.log.append, f"give back {array.nbytes}"))

    def configured(self, config: CallConfig) -> WithWindows:
        view = WithWindows(self, config)
        view.log, view.configs, view._memory, view._registered = self.log, self.configs, self._memory, self._registered
        return view

    def prepare(self, call: Call) -> Any:
        self.configs.append((call.collective.name, self.config))
        return super().prepare(call)

    def wait_idle(self) -> None:
        self.log.append("wait")

    def capabilities(self) -> Capabilities:
        can = super().capabilities()
        return replace(can, facts=can.facts | {SYMMETRIC: "yes", CONFIGURABLE: "yes"})

    def close(self) -> None:
        self._registered.end()


def with_windows(comm: Communicator) -> tuple[Communicator, WithWindows]:
    backend = WithWindows(comm.backend)  # type: ignore[arg-type]
    return Communicator(backend, name=comm.name), backend
