"""Ranks as threads of this process, for tests and experiments. They start immediately and need no library."""

from __future__ import annotations

import contextlib
import ctypes
import queue
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError
from typing import Any

from meshlab.base._errors import EngineError
from meshlab.comm._agreement import Checks
from meshlab.comm._worlds import thread_world
from meshlab.engines._positions import Position, Positions
from meshlab.engines._rounds import RankDiedError, RankInfo, RankSet, Reply
from meshlab.engines._worker import Worker

_CLOSE_S = 2.0  # maximum time to wait for the threads when the engines are closed

_Task = tuple[str, tuple[Any, ...], "Future[Reply]"] | None


class ThreadSet(RankSet):
    """One thread per rank."""

    # A thread cannot be killed. After `kill`, a thread that does not return is abandoned, and `start` creates new ones.

    is_attached = False

    def __init__(self, size: int, backend: str, *, checks: Checks = "first") -> None:
        self.size = size
        self.backend = backend
        self._checks: Checks = checks
        self._positions = Positions(size)
        self._world = thread_world(backend, size)
        self._threads: list[_RankThread] = []
        self._pending: set[Future[Reply]] = set()
        self._was_interrupted = False
        self._lock = threading.Lock()  # an interrupt sees a task as submitted or not submitted, never half-way

    def start(self, timeout_s: float) -> tuple[RankInfo, ...]:
        self._world = thread_world(self.backend, self.size)
        self._positions = Positions(self.size)
        workers = [Worker(self._world.backend(rank), self._positions, self._checks) for rank in range(self.size)]
        self._threads = [_RankThread(worker) for worker in workers]
        try:
            for thread in self._threads:
                thread.start()
        except RuntimeError as error:
            self.kill()
            raise EngineError(
                f"cannot start a thread per rank: {error}", hint="start fewer ranks, or use Python outside a browser"
            ) from error
        infos = self.submit(range(self.size), "info", [()] * self.size)
        return tuple(future.result(timeout_s).value for future in infos)

    def submit(
        self, ranks: Sequence[int], method: str, arguments: Sequence[tuple[Any, ...]]
    ) -> Sequence[Future[Reply]]:
        return [self._submit_to(rank, method, values) for rank, values in zip(ranks, arguments, strict=True)]

    def _submit_to(self, rank: int, method: str, arguments: tuple[Any, ...]) -> Future[Reply]:
        future: Future[Reply] = Future()
        with self._lock:
            if not self._threads:
                future.set_exception(RankDiedError("the threads were stopped"))
                return future
            # An interrupt aborts the world, to release ranks that wait in a collective. It can be reset only when no
            # rank is inside, which is certain once every task of the interrupted round has a reply.
            if self._was_interrupted and not self._pending:
                self._world.reset()
                self._was_interrupted = False
            self._pending.add(future)
            future.add_done_callback(self._pending.discard)
            self._threads[rank].tasks.put((method, arguments, future))
        return future

    def positions(self) -> list[Position]:
        return self._positions.read()

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt in every busy thread, and release threads that wait in a collective."""
        with self._lock:
            was_busy = [thread.interrupt() for thread in self._threads]
            if any(was_busy):
                self._world.abort()
                self._was_interrupted = True

    def kill(self, *, reuse: bool = True) -> None:
        """Release the waiting threads, request all threads to stop, and abandon those that do not."""
        self._world.abort()
        with self._lock:
            threads, self._threads = self._threads, []
            pending = list(self._pending)
        for thread in threads:
            thread.tasks.put(None)
        for future in pending:
            with contextlib.suppress(InvalidStateError):  # it has just received its reply
                future.set_exception(RankDiedError("the threads were stopped"))

    def close(self) -> None:
        threads = self._threads
        self.kill()
        deadline = time.monotonic() + _CLOSE_S
        for thread in threads:
            thread.join(max(0.0, min(0.2, deadline - time.monotonic())))


class _RankThread(threading.Thread):
    """Runs the tasks of one rank in order, and replies to each of them even if it is interrupted."""

    def __init__(self, worker: Worker) -> None:
        super().__init__(name=f"meshlab rank {worker.rank}", daemon=True)
        self.tasks: queue.SimpleQueue[_Task] = queue.SimpleQueue()
        self._worker = worker
        self._state_lock = threading.Lock()
        self._is_working = False

    def run(self) -> None:
        """Run tasks until None arrives."""
        while (task := self.tasks.get()) is not None:
            method, arguments, future = task
            reply = self._do(method, arguments)
            with contextlib.suppress(InvalidStateError):  # `kill` has already failed the future
                future.set_result(reply)

    def _do(self, method: str, arguments: tuple[Any, ...]) -> Reply:
        reply = interrupted = Reply(self._worker.rank, error="interrupted", is_interrupt=True)
        try:
            self._is_working = True
            reply = self._worker.serve(method, arguments)
        except KeyboardInterrupt:
            pass  # it was raised just before or after the part of `serve` that catches it
        # Python raises an asynchronous exception at some later bytecode. `interrupt` sets it only while it holds the
        # lock and _is_working is set, so once this thread has held the lock and cleared the flag, no exception is
        # pending. It is raised in this loop at the latest, not while the reply is delivered or the next task is
        # fetched.
        while self._is_working:
            try:
                with self._state_lock:
                    self._is_working = False
            except KeyboardInterrupt:
                reply = interrupted
        return reply

    def interrupt(self) -> bool:
        """Raise KeyboardInterrupt in the current task. Return False if the thread is idle."""
        with self._state_lock:
            is_working = self._is_working and self.ident is not None
            if is_working:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(self.ident or 0), ctypes.py_object(KeyboardInterrupt)
                )
        return is_working
