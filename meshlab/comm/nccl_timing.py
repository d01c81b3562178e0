"""Times what is enqueued on a GPU's stream, between events on the GPU's own clock."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

from meshlab.comm.backend import Mode, Timings
from meshlab.comm.backends.nccl_binding import load
from meshlab.errors import CommunicatorError

__all__ = ["StreamTimer"]

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
