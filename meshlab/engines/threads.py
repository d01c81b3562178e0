"""Ranks as threads of this process: ready at once, no library, for tests and for trying things out."""

from __future__ import annotations

import ctypes
import queue
import threading
from concurrent.futures import Future
from typing import Any

from meshlab.comm.threads import ThreadWorld
from meshlab.engines.rankset import Death, RankDiedError, RankFacts, Reply
from meshlab.engines.worker import Worker

__all__ = ["ThreadSet"]

_Task = tuple[str, tuple[Any, ...], "Future[Reply]"] | None


class ThreadSet:
    """One thread per rank; implements `meshlab.engines.rankset.RankSet`.

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
        self._queues: list[queue.SimpleQueue[_Task]] = []
        self._threads: list[threading.Thread] = []
        self._open: set[Future[Reply]] = set()
        self._was_interrupted = False

    def start(self, timeout_s: float) -> tuple[RankFacts, ...]:
        """Start the threads."""
        self._world = ThreadWorld(self.size)
        self._counts = [0] * self.size
        self._queues = [queue.SimpleQueue() for _ in range(self.size)]
        workers = [Worker(self._world.backend(rank), self._counts) for rank in range(self.size)]
        self._threads = [
            threading.Thread(target=_work, args=(worker, tasks), name=f"meshlab rank {worker.rank}", daemon=True)
            for worker, tasks in zip(workers, self._queues, strict=True)
        ]
        for thread in self._threads:
            thread.start()
        facts = [self.submit(rank, "facts", ()) for rank in range(self.size)]
        return tuple(future.result(timeout_s).value for future in facts)

    def submit(self, rank: int, method: str, arguments: tuple[Any, ...]) -> Future[Reply]:
        """Hand a task to one thread."""
        future: Future[Reply] = Future()
        if not self._queues:
            future.set_exception(RankDiedError("the threads were ended"))
            return future
        if self._was_interrupted and not self._open:
            self._world.reset()
            self._was_interrupted = False
        self._open.add(future)
        future.add_done_callback(self._open.discard)
        self._queues[rank].put((method, arguments, future))
        return future

    def calls(self) -> list[int]:
        """How many collectives each rank has entered."""
        return list(self._counts)

    def first_death(self) -> Death | None:
        """Threads do not die."""
        return None

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt in every thread, and free those that wait in a collective."""
        for thread in self._threads:
            if thread.ident is not None and thread.is_alive():
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(thread.ident), ctypes.py_object(KeyboardInterrupt)
                )
        self._world.abort()
        self._was_interrupted = True

    def kill(self) -> None:
        """Free the threads that wait, tell all to end, and let go of those that do not listen."""
        self._world.abort()
        for tasks in self._queues:
            tasks.put(None)
        self._queues, self._threads = [], []
        for future in list(self._open):
            if not future.done():
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


def _work(worker: Worker, tasks: queue.SimpleQueue[_Task]) -> None:
    while True:
        try:
            task = tasks.get()
            if task is None:
                return
            method, arguments, future = task
            reply = worker.serve(method, arguments)
            if not future.done():
                future.set_result(reply)
        except KeyboardInterrupt:
            continue  # an interrupt that came too late for the task it was meant for
