"""The calls that a communicator has checked, so that repeated calls skip the checks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from meshlab.comm._backend import Backend, Call
from meshlab.comm._catalog import Collective
from meshlab.comm._validate import pointer

_MOST_CALLS = 256

CheckedCall = Callable[[Any, Any, Callable[[], object] | None], Any]
"""A call that has been checked. Called with input, output and the hook `on_enter`, it returns this rank's output."""


def checked_call(
    call: Call,
    run: Callable[[Any, Any], object],
    new_output: Callable[[], Any] | None,
    codes: tuple[int, int],
    enter: Callable[[int, int], object] | None,
    leave: Callable[[int], object],
    compare: Callable[[], object] | None,
) -> CheckedCall:
    """Return a function that repeats a checked call on different arrays, between `enter` and `leave` of the monitor."""
    code, checksum = codes
    has_send, has_recv, is_collective = call.send is not None, call.recv is not None, not call.collective.peers

    # A closure, because it runs for every call, and its variables are read faster than attributes. It must not refer to
    # the communicator, which would then be freed late.
    def repeat(send: Any, out: Any, on_enter: Callable[[], object] | None) -> Any:
        recv = new_output() if new_output is not None else out if has_recv else None
        if enter is not None:
            enter(code, checksum)
        if on_enter is not None and is_collective:
            on_enter()
        try:
            if compare is not None:
                compare()
            run(send if has_send else None, recv)
        finally:
            leave(code)
        return recv

    return repeat


class CallCache:
    """Checked calls by all properties of their arguments that the checks depend on."""

    # Everything is read from the arrays at every call: shape, dtype, layout, device, and how input and output overlap.
    # The cache holds neither arrays nor addresses, so it is correct for arrays that were resized or replaced, or whose
    # memory is used again, and keeps no memory alive.

    def __init__(self, backend: Backend) -> None:
        self._calls: dict[tuple[Any, ...], CheckedCall] = {}
        self._array_type = backend.xp.ndarray
        self._device = backend.device

    def find(
        self, collective: Collective, send: Any, out: Any, options: tuple[Any, ...]
    ) -> tuple[tuple[Any, ...] | None, CheckedCall | None]:
        """Return the key of a call and the known call. The key is None if the call always has to be checked."""
        send_shape = out_shape = element = overlap = None
        kind, device = self._array_type, self._device
        if send is not None:
            if type(send) is not kind or not send.flags.c_contiguous:
                return None, None
            if device is not None and send.data.device_id != device:
                return None, None
            send_shape, element = send.shape, send.dtype
        if out is not None:
            if type(out) is not kind:
                return None, None
            flags = out.flags
            if not flags.c_contiguous:
                return None, None
            if device is None:
                if not flags.writeable:
                    return None, None
            elif out.data.device_id != device:
                return None, None
            out_shape = out.shape
            if send is None:
                element = out.dtype
            elif out is send:
                overlap = 0
            else:
                if out.dtype is not element:  # an array library has one object for almost all arrays of a dtype
                    return None, None
                if device is not None:
                    start, out_start = send.data.ptr, out.data.ptr
                    if out_start + out.nbytes > start and start + send.nbytes > out_start:
                        overlap = out_start - start
                # Two arrays that are not views have separate memory. Reading addresses in numpy takes longer.
                elif (send.base is not None or out.base is not None) and np.may_share_memory(send, out):
                    overlap = pointer(out) - pointer(send)
        if len(options) > 2:  # after dtype and op: ranks, a tag, and counts, which always have to be checked
            for number in options[2:]:
                if number is not None and type(number) is not int:  # 1.0 equals 1, but is not a rank
                    return None, None
        key = collective, send_shape, out_shape, element, overlap, options
        try:
            return key, self._calls.get(key)
        except TypeError:  # an argument is not hashable, and so invalid
            return None, None

    def add(self, key: tuple[Any, ...], call: CheckedCall) -> None:
        """Remember a call."""
        if len(self._calls) >= _MOST_CALLS:
            del self._calls[next(iter(self._calls))]
        self._calls[key] = call

    def __len__(self) -> int:
        return len(self._calls)
