"""A baton between runs on different engines: only the run that holds it measures, and the runs take turns."""

from __future__ import annotations

import threading
from collections.abc import Sequence


class Baton:
    """Passes from run to run after each task of their ranks, in the order A B, B A, A B, …."""

    # A run waits for it in `Engines.between_tasks`, before it sends the next task to its ranks. The ranks of the other
    # runs wait for their tasks meanwhile, and use no core.

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)
        self._runners = set(names)
        self._turn = 0
        self._user = ""
        """The run that has the baton for a task. Empty if the holder has not begun one."""
        self._is_started = self._is_free = False
        self._changed = threading.Condition()

    def start(self) -> None:
        """Let the first run begin. Until then all of them wait."""
        with self._changed:
            self._is_started = True
            self._changed.notify_all()

    def take(self, name: str) -> None:
        """Pass the baton on after a task of a run, and wait until it may begin the next one."""
        with self._changed:
            if self._user == name:
                self._pass_on()
            self._changed.wait_for(lambda: self._is_free or self._may_begin(name))
            self._user = name

    def leave(self, name: str) -> None:
        """Continue without a run that is over."""
        with self._changed:
            self._runners.discard(name)
            if self._runners and self._holder == name:
                self._pass_on()

    def release(self) -> None:
        """Let all runs continue without waiting for each other."""
        with self._changed:
            self._is_free = True
            self._changed.notify_all()

    def _may_begin(self, name: str) -> bool:
        return self._is_started and not self._user and self._holder == name

    @property
    def _holder(self) -> str:
        lap, place = divmod(self._turn, len(self._names))
        return self._names[-1 - place if lap % 2 else place]

    def _pass_on(self) -> None:
        self._user = ""
        self._turn += 1
        while self._holder not in self._runners:
            self._turn += 1
        self._changed.notify_all()
