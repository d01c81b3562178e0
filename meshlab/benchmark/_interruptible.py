"""Work on engines that the caller waits for, and can interrupt."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Interruptible:
    """Work in a thread, which an interrupt of the caller ends between two calls of the ranks."""

    # Ranks in a collective cannot be interrupted without losing them. `work` reads `is_stopped` between two calls,
    # `show` is called ten times a second, and `kill` stops the ranks after a second interrupt.

    def __init__(self, work: Callable[[], None], show: Callable[[], None], kill: Callable[[], None], name: str) -> None:
        self._work = work
        self._show = show
        self._kill = kill
        self._name = name
        self._error: BaseException | None = None
        self._is_over = threading.Event()
        self.is_stopped = False

    def run(self) -> None:
        """Run the work until it is over. Raises what the work raised, or KeyboardInterrupt."""
        threading.Thread(target=self._run, name=self._name, daemon=True).start()
        try:
            while not self._is_over.wait(0.1):
                self._show()
        except KeyboardInterrupt:
            self.is_stopped = True
            self._show()
            try:
                self._is_over.wait()
            except KeyboardInterrupt:
                self._kill()
                self._is_over.wait()
            raise
        self._show()
        if self._error is not None:
            raise self._error

    def stop(self) -> threading.Event:
        """End the work after its current call, and return an event that is set when it is over."""
        self.is_stopped = True
        return self._is_over

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self._error = error
        finally:
            self._is_over.set()
