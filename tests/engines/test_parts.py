"""Processes that have ended or are stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil
import pytest

from meshlab.engines._parts import STOPPED, Parts, how_ended, is_stopped
from meshlab.engines._rounds import RankExit


@contextmanager
def running(code: str = "input()") -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("code", "how"),
    [
        ("raise SystemExit(3)", "exited with code 3"),
        ("import os; os.kill(os.getpid(), 9)", "killed by signal 9"),
        ("import os; os.kill(os.getpid(), 15)", "killed by signal 15"),
    ],
)
def test_the_end_of_a_process_is_known_before_and_after_its_parent_waits(code: str, how: str) -> None:
    with running(code) as process:
        waiter, other = psutil.Process(process.pid), psutil.Process(process.pid)
        wait_for(lambda: how_ended(waiter))
        assert how_ended(waiter) == how
        assert how_ended(waiter) == how
        waiter.wait()
        assert how_ended(waiter) == how
        assert how_ended(other) == "ended"  # only the object that waited has received the code


def test_a_process_may_be_stopped_for_a_while() -> None:
    with running() as process:
        parts = Parts()
        parts.add("the clock", psutil.Process(process.pid))
        os.kill(process.pid, signal.SIGSTOP)
        wait_for(lambda: is_stopped(process.pid))
        stopped = RankExit(None, STOPPED, f"the clock (process {process.pid})")
        assert parts.lost() is None
        assert parts.lost(0.0) == stopped
        assert stopped.text == f"the clock (process {process.pid}) was stopped by a signal"
        os.kill(process.pid, signal.SIGCONT)
        wait_for(lambda: not is_stopped(process.pid))
        assert parts.lost(0.0) is None
        parts.clear()
        process.kill()
        assert parts.lost(0.0) is None
