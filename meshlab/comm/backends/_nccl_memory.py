"""Memory that NCCL allocates, and buffers that a communicator has registered.

Python may delete an array within a capture, after an abort, or at exit, when giving a registered buffer back would
invalidate the capture or use a communicator that is gone. So its memory is freed when the backend waits the next time.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from typing import Any

from meshlab.base._errors import CommunicatorError
from meshlab.comm.backends._nccl_binding import load_libraries

# Memory of deleted arrays that was registered, one entry per block. It belongs to the process, because memory may
# outlive its communicator. Appending and removing are atomic.
_deleted: deque[Callable[[], object]] = deque()


def has_deleted() -> bool:
    """Return True if there is memory that `free_deleted` would free."""
    return bool(_deleted)


def free_deleted() -> None:
    """Free the registered memory of deleted arrays. The communication stream must be idle, and not capture."""
    while _deleted:
        try:
            free = _deleted.popleft()
        except IndexError:  # another thread was faster
            return
        free()


class BufferRegistration:
    """A registered buffer. `end` gives it back, at most once, and not after the communicator has ended."""

    def __init__(self, buffers: RegisteredBuffers, deregister: Callable[[], object]) -> None:
        self._buffers = buffers
        self._deregister: Callable[[], object] | None = deregister

    @property
    def is_open(self) -> bool:
        """False if the registration was released, or the communicator was closed."""
        return self._deregister is not None and self._buffers.is_alive()

    def end(self) -> None:
        """Give the registration back. The calls on the buffer must be done."""
        deregister, self._deregister = self._deregister, None
        if deregister is not None:
            self._buffers._open.discard(self)
            if self._buffers.is_alive():
                deregister()


class RegisteredBuffers:
    """The registered buffers of one communicator. Its views share the object."""

    def __init__(self, is_alive: Callable[[], bool]) -> None:
        # False after an abort or `destroy`, which have ended all registrations: the library must not be called.
        self.is_alive = is_alive
        self._open: set[BufferRegistration] = set()

    def add(self, deregister: Callable[[], object]) -> BufferRegistration:
        """Add a buffer that the library has registered."""
        registration = BufferRegistration(self, deregister)
        self._open.add(registration)
        return registration

    def end(self) -> None:
        """Give all registrations back, before the communicator is closed. The memory remains valid."""
        for registration in list(self._open):
            registration.end()

    def __len__(self) -> int:
        return len(self._open)


class NcclMemory:
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
        self.n_bytes = n_bytes
        self.registration: BufferRegistration | None = None
        self._device = cupy.cuda.Device()
        self._free = binding.mem_free

    def __del__(self) -> None:
        # At exit, NCCL and CuPy may already be unloaded, and the driver frees the memory of the process.
        if not hasattr(self, "_free") or sys.is_finalizing():
            return
        free = _Free(self.pointer, self._device, self._free, self.registration)
        if self.registration is None:
            free()
        else:
            _deleted.append(free)


class _Free:
    """Frees a block of memory. It has no reference to the object that is being deleted."""

    def __init__(self, pointer: int, device: Any, free: Any, registration: BufferRegistration | None) -> None:
        self._pointer, self._device, self._free, self._registration = pointer, device, free, registration

    def __call__(self) -> None:
        with self._device:
            self._device.synchronize()  # CuPy frees memory in stream order, but NCCL frees it immediately
            if self._registration is not None:
                self._registration.end()
            self._free(self._pointer)
