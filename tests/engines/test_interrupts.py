"""Ctrl-C while engines start, which a library may swallow."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from meshlab.engines.interrupts import interrupts_kept


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
