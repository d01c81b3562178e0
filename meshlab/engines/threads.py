"""Ranks as threads of this process: ready at once, no library, for tests and for trying things out."""

from __future__ import annotations

import contextlib
import ctypes
import queue
import threading
from concurrent.futures import Future, InvalidStateError
from typing import Any

from meshlab.comm.backends.threads import ThreadWorld
from meshlab.engines.rounds import RankDiedError, RankExit, RankInfo, Reply
from meshlab.engines.worker import Worker

__all__ = ["ThreadSet"]

_Task = tuple[str, tuple[Any, ...], "Future[Reply]"] | None


class ThreadSet:
    """One thread per rank; implements `meshlab.engines.rounds.RankSet`.

    A thread that never comes back cannot be ended by force: after `kill` it is left to itself, and a fresh set starts
    beside it.

    Parameters
    ----------
    size : int
        How many ranks.
    """

    backend = "threads"
    is_attached = False

    def __init__(self, size: int) -> None:
        self.size = size
        self._counts = [0] * size
        self._world = ThreadWorld(size)
        self._threads: list[_RankThread] = []
        self._open: set[Future[Reply]] = set()
        self._was_interrupted = False
        self._lock = threading.Lock()  # an interrupt meets a task that was handed over, or none

    def start(self, timeout_s: float) -> tuple[RankInfo, ...]:
        """Start the threads."""
        self._world = ThreadWorld(self.size)
        self._counts = [0] * self.size
        self._threads = [_RankThread(Worker(self._world.backend(rank), self._counts)) for rank in range(self.size)]
        for thread in self._threads:
            thread.start()
        facts = [self.submit(rank, "facts", ()) for rank in range(self.size)]
        return tuple(future.result(timeout_s).value for future in facts)

    def submit(self, rank: int, method: str, arguments: tuple[Any, ...]) -> Future[Reply]:
        """Hand a task to one thread."""
        future: Future[Reply] = Future()
        if not self._threads:
            future.set_exception(RankDiedError("the threads were ended"))
            return future
        with self._lock:
            if self._was_interrupted and not self._open:
                self._world.reset()
                self._was_interrupted = False
            self._open.add(future)
            future.add_done_callback(self._open.discard)
            self._threads[rank].tasks.put((method, arguments, future))
        return future

    def calls(self) -> list[int]:
        """How many collectives each rank has entered."""
        return list(self._counts)

    def first_death(self) -> RankExit | None:
        """Threads do not die."""
        return None

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt in every thread that works, and free those that wait in a collective."""
        with self._lock:
            was_hit = [thread.interrupt() for thread in self._threads]
            if any(was_hit):
                self._world.abort()
                self._was_interrupted = True

    def kill(self) -> None:
        """Free the threads that wait, tell all to end, and let go of those that do not listen."""
        self._world.abort()
        for thread in self._threads:
            thread.tasks.put(None)
        self._threads = []
        for future in list(self._open):
            with contextlib.suppress(InvalidStateError):  # it has just been answered
                future.set_exception(RankDiedError("the threads were ended"))

    def log_tail(self) -> str:
        """Threads print where everything prints."""
        return ""

    @property
    def client(self) -> None:
        """There is none."""

    def close(self) -> None:
        """End the threads."""
        threads = self._threads
        self.kill()
        for thread in threads:
            thread.join(0.2)


class _RankThread(threading.Thread):
    """Does one task after the other and answers each of them, also one that was interrupted."""

    def __init__(self, worker: Worker) -> None:
        super().__init__(name=f"meshlab rank {worker.rank}", daemon=True)
        self.tasks: queue.SimpleQueue[_Task] = queue.SimpleQueue()
        self._worker = worker
        self._door = threading.Lock()
        self._is_working = False

    def run(self) -> None:
        """Work until there is no more."""
        while (task := self.tasks.get()) is not None:
            method, arguments, future = task
            reply = self._do(method, arguments)
            with contextlib.suppress(InvalidStateError):  # nobody waits for it any more
                future.set_result(reply)

    def _do(self, method: str, arguments: tuple[Any, ...]) -> Reply:
        reply = interrupted = Reply(self._worker.rank, error="interrupted", is_interrupt=True)
        try:
            self._is_working = True
            reply = self._worker.serve(method, arguments)
        except KeyboardInterrupt:
            pass  # it came right before or after the worker's own care
        # An interrupt that is on its way arrives in here, not while the answer is handed over or the next task taken.
        while self._is_working:
            try:
                with self._door:
                    self._is_working = False
            except KeyboardInterrupt:
                reply = interrupted
        return reply

    def interrupt(self) -> bool:
        """Raise KeyboardInterrupt in the task under way, whose answer it is then; an idle thread is left alone."""
        with self._door:
            is_working = self._is_working and self.ident is not None
            if is_working:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(self.ident or 0), ctypes.py_object(KeyboardInterrupt)
                )
        return is_working
