"""Ctrl-C while engines start, which a library may swallow."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable

import pytest

from meshlab.engines._controller import Controller, bounded
from meshlab.engines._interrupts import interrupts_kept
from meshlab.engines._local import LaunchedSet
from meshlab.engines._reaper import RUN, marked_processes


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_an_interrupt_that_a_library_swallows_is_raised_at_the_end() -> None:
    reached = []

    def swallow() -> None:
        try:
            press()
        except BaseException:
            reached.append("swallowed")
        reached.append("went on")

    with pytest.raises(KeyboardInterrupt), interrupts_kept():
        swallow()
    assert reached == ["swallowed", "went on"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_error_after_a_swallowed_interrupt_is_an_interrupt() -> None:
    def replace() -> None:
        try:
            press()
        except BaseException:
            raise ImportError("partially initialised module") from None

    with pytest.raises(KeyboardInterrupt), interrupts_kept():
        replace()
    with pytest.raises(ImportError), interrupts_kept():
        raise ImportError("no interrupt")


def test_another_handler_and_another_thread_are_left_alone() -> None:
    pressed = []
    before = signal.signal(signal.SIGINT, lambda *_: pressed.append(1))
    try:
        with interrupts_kept():
            press()
    finally:
        signal.signal(signal.SIGINT, before)
    assert pressed == [1]

    def run() -> None:
        with interrupts_kept():
            pressed.append(2)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert pressed == [1, 2]


def test_an_interrupted_start_leaves_neither_a_folder_nor_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on in its thread, which creates the folder again if nobody waits for its end."""
    is_interrupted = threading.Event()
    threads: list[threading.Thread] = []
    ranks = LaunchedSet(2)

    def start_late(self: Controller, deadline: float, check: Callable[[], None]) -> None:
        def create() -> None:
            is_interrupted.wait(10.0)
            time.sleep(0.3)  # longer than the reaper needs to remove the folder
            (ranks._folder / "late").mkdir(parents=True)

        def interrupt() -> None:
            is_interrupted.set()
            raise KeyboardInterrupt

        try:
            bounded(create, 10.0, interrupt, self._threads)
        finally:
            threads.extend(self._threads)

    monkeypatch.setattr(Controller, "start", start_late)
    with pytest.raises(KeyboardInterrupt):
        ranks.start(60.0)
    assert is_interrupted.is_set()
    assert [thread.is_alive() for thread in threads] == [False]
    assert not ranks._folder.exists()
    assert marked_processes(RUN, ranks._id) == []
