"""Streams and events of a GPU, with a clock that does what a GPU does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

__all__ = ["Enqueued", "Event", "Gpu", "Stream"]


class Gpu:
    """CuPy as far as `_StreamLanes` needs it: streams and events on a virtual clock, in µs."""

    def __init__(self) -> None:
        self.stack: list[Stream] = []
        self.n_barriers = 0
        self.cuda = SimpleNamespace(
            Stream=lambda non_blocking: Stream(self), Event=Event, get_elapsed_time=lambda a, b: (b.at - a.at) / 1e3
        )
        self.uint32, self.uint64 = np.uint32, np.uint64
        self.arange, self.empty = np.arange, np.empty

    def matmul(self, a: Any, b: Any, out: Any) -> None:
        assert a.shape[0] == out.shape[0] <= 8192
        assert a.shape[1:] == b.shape[:1]
        self.stack[-1].at += 2 * a.shape[0] * a.shape[1] * b.shape[1] / 1e6  # 1 TFLOP/s

    def RawKernel(self, code: str, name: str) -> Any:  # noqa: N802 - CuPy's name
        assert f"void {name}(" in code

        def launch(grid: Any, block: Any, arguments: Any) -> None:
            self.stack[-1].at += float(arguments[0]) / 1e3

        return launch


class Stream:
    def __init__(self, gpu: Gpu) -> None:
        self.gpu, self.at = gpu, 0.0

    def wait_event(self, event: Event) -> None:
        assert event.at >= 0, "waits for an event that was not recorded"
        self.at = max(self.at, event.at)

    def __enter__(self) -> Stream:
        self.gpu.stack.append(self)
        return self

    def __exit__(self, *error: object) -> None:
        self.gpu.stack.pop()


class Event:
    def __init__(self, disable_timing: bool = False) -> None:
        self.at = -1.0

    def record(self, stream: Stream) -> None:
        self.at = stream.at


class Enqueued:
    """A prepared call that takes a fixed time on the stream of its communicator."""

    def __init__(self, stream: Stream, duration: float) -> None:
        self.stream, self.duration = stream, duration

    def enqueue(self) -> None:
        self.stream.at += self.duration
