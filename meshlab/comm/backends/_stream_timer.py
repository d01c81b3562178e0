"""Timing of work on a stream of a GPU, alone or while another stream is busy."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from meshlab.base._errors import CommunicatorError
from meshlab.comm._backend import Mode, Timings
from meshlab.comm.backends._nccl_binding import Work, load_libraries

_WARMUP = 1  # batches; a graph is replayed once more after its capture, because the first replay also uploads it

_GRAPH_CALLS = 20  # maximum per graph, as for nccl-tests -G with its default of 20 iterations


@dataclass(frozen=True, slots=True, eq=False)
class Load:
    """The calls of one stream that run while a batch of another stream is timed: `calls` calls per batch."""

    timer: StreamTimer
    work: Work
    barrier: Work
    calls: int


class StreamTimer:
    """Times work on one stream. `wait` waits for an event."""

    def __init__(self, stream: Any, wait: Callable[[Any], None]) -> None:
        self._stream = stream
        self._wait = wait
        self._captures: list[list[Any]] = []  # the graphs of every capture that is in use
        self._cuda = load_libraries().cupy.cuda

    def measure(self, work: Work, barrier: Work, mode: Mode, calls: int, batches: int) -> Timings:
        """Time `batches` batches of `calls` calls."""
        if mode == "isolated":
            return self._isolated(work, barrier, batches)
        with self.held(work, barrier, mode, calls) as measure:
            return measure(batches)

    @contextmanager
    def held(self, work: Work, barrier: Work, mode: Mode, calls: int) -> Iterator[Callable[[int], Timings]]:
        """Prepare batches of `calls` calls once, so that batches of several works can take turns. Yield their timer."""
        if mode == "isolated":
            yield partial(self._isolated, work, barrier)
        elif mode == "graph":
            with self.captured(work, calls) as replay:
                replay()
                yield partial(self._back_to_back, replay, barrier, calls)
        else:
            yield partial(self._back_to_back, _repeated(work, calls), barrier, calls)

    def measure_under_load(
        self, work: Work, barrier: Work, mode: Mode, calls: int, batches: int, load: Load
    ) -> Timings:
        """Time batches of calls, each while the calls of another stream run. Collective over both groups."""
        # A batch starts after its load, and is covered if the load ended after it on this rank. In isolated mode the
        # calls would not wait for the host, as they do when no load runs, so the two could not be compared.
        # The load is always a graph, also next to calls that are enqueued one by one: a single thread could not enqueue
        # both fast enough. And it never has to stop: each batch has its own load, of a fixed number of calls.
        with load.timer.captured(load.work, load.calls) as start_load, contextlib.ExitStack() as captured:
            batch = _repeated(work, calls)
            if mode == "graph":
                batch = captured.enter_context(self.captured(work, calls))
            for enqueue in (start_load, batch):  # warm-up, one after the other
                enqueue()
                self._wait_idle()
                load.timer._wait_idle()
            parts = [self._batch_under_load(batch, barrier, calls, load, start_load) for _ in range(batches)]
        time_us, host_us, left_us = np.array(parts).T
        return Timings(time_us, host_us, None, is_covered=left_us >= 0)

    def _batch_under_load(
        self, batch: Work, barrier: Work, calls: int, load: Load, start_load: Work
    ) -> tuple[float, float, float]:
        """Return the time and the host time per call, and how long the load went on after the batch, all in µs."""
        clock, stream, other = time.perf_counter_ns, self._stream, load.timer._stream
        load_began, load_ended, before, after = (self._cuda.Event() for _ in range(4))
        # All ranks enqueue in the same order: first what the load needs, then the batch. Otherwise a rank whose load
        # occupies all multiprocessors could wait for a rank whose batch does.
        barrier()
        load.barrier()
        load_began.record(other)
        start_load()
        load_ended.record(other)
        stream.wait_event(load_began)
        before.record(stream)
        begin = clock()
        batch()
        end = clock()
        after.record(stream)
        self._wait(after)
        load.timer._wait(load_ended)
        elapsed = self._cuda.get_elapsed_time
        return elapsed(before, after) * 1e3 / calls, (end - begin) / (1e3 * calls), elapsed(after, load_ended) * 1e3

    def drop_graphs(self) -> None:
        """Delete all captured graphs. There are no other references to them."""
        for graphs in self._captures:
            graphs.clear()
        self._captures.clear()

    @contextmanager
    def captured(self, work: Work, calls: int) -> Iterator[Work]:
        """Capture calls, and return a function that replays them. The graphs exist until the end of the block."""
        graphs: list[Any] = []
        self._captures.append(graphs)
        try:
            self._capture(work, calls, graphs)
            yield partial(self._replay, graphs)
        finally:
            graphs.clear()
            self._captures = [capture for capture in self._captures if capture is not graphs]

    def _capture(self, work: Work, calls: int, graphs: list[Any]) -> None:
        """Capture the calls of a batch into graphs of up to `_GRAPH_CALLS` calls, as nccl-tests does."""
        # NCCL connects ranks at the first call of a kind. That allocates memory and synchronises, which is not allowed
        # during a capture.
        work()
        self._wait_idle()
        replays, rest = divmod(calls, _GRAPH_CALLS)
        if replays:
            graphs += [self._graph(work, _GRAPH_CALLS)] * replays
        if rest:
            graphs.append(self._graph(work, rest))

    def _replay(self, graphs: list[Any]) -> None:
        for graph in graphs:
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

    def _back_to_back(self, batch: Work, barrier: Work, calls: int, batches: int) -> Timings:
        """Time consecutive batches without gaps, with one event between neighbouring batches."""
        clock = time.perf_counter_ns
        events = [self._cuda.Event() for _ in range(batches + 1)]
        host = np.empty(batches + 1, dtype=np.int64)
        for _ in range(_WARMUP):
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


def _repeated(work: Work, calls: int) -> Work:
    def batch() -> None:
        for _ in range(calls):
            work()

    return batch
