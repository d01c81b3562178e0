"""The processes of a run that are not ranks, and without which no rank can respond."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass

import psutil

from meshlab.engines._reaper import stat_field
from meshlab.engines._rounds import RankExit, how_exited

STOPPED = "stopped by a signal"
"""The problem of a process that was stopped, for example by SIGSTOP, and has not been continued."""

_PATIENCE_S = 5.0  # time that a process may be stopped
_EXIT_CODE = 52  # see `stat_field`


def how_ended(process: psutil.Process) -> str:
    """Return how a process ended, such as "killed by signal 9". An empty string if it is running."""
    try:
        is_zombie = process.status() == psutil.STATUS_ZOMBIE
        if process.is_running() and not is_zombie:
            return ""
    except psutil.NoSuchProcess:
        is_zombie = False
    code = _zombie_code(process.pid) if is_zombie else _code(process)
    return "ended" if code is None else how_exited(code)


def status_of(pid: int) -> str:
    """Return the status of a process as psutil names it. An empty string if the process does not exist."""
    with contextlib.suppress(psutil.Error):
        return str(psutil.Process(pid).status())
    return ""


def is_stopped(pid: int) -> bool:
    """Return whether a process was stopped and not continued."""
    return status_of(pid) == psutil.STATUS_STOPPED


def _zombie_code(pid: int) -> int | None:
    """Return the exit code of a process for which its parent has not waited. It is negative for a signal."""
    try:
        status = stat_field(pid, _EXIT_CODE)
    except (OSError, ValueError, IndexError):
        return None
    return -(status & 0x7F) if status & 0x7F else status >> 8


def _code(process: psutil.Process) -> int | None:
    """Return the exit code of a child of this process, for which it has waited. None for other processes."""
    # The thread of ipyparallel that waits for the process stores the code a moment after the process is gone.
    for _ in range(30):
        with contextlib.suppress(psutil.Error):
            code = process.wait(timeout=0)
            if code is not None:
                return int(code)
        time.sleep(0.01)
    return None


@dataclass(frozen=True, slots=True)
class _Part:
    """A process, and its name in errors."""

    name: str
    process: psutil.Process

    def exit(self, how: str) -> RankExit:
        """Return the description of its end."""
        return RankExit(None, how, f"{self.name} (process {self.process.pid})")


class Parts:
    """The parts of a run."""

    def __init__(self) -> None:
        self._parts: list[_Part] = []
        self._stopped_since: dict[int, float] = {}

    def add(self, name: str, process: psutil.Process) -> None:
        """Add a process."""
        self._parts.append(_Part(name, process))

    def clear(self) -> None:
        """Remove all processes."""
        self._parts.clear()
        self._stopped_since.clear()

    def lost(self, patience_s: float = _PATIENCE_S) -> RankExit | None:
        """Return the first part that has ended, or that has been stopped for longer than `patience_s`."""
        time_s = time.monotonic()
        for part in self._parts:
            if how := how_ended(part.process):
                return part.exit(how)
            if not is_stopped(part.process.pid):
                self._stopped_since.pop(part.process.pid, None)
            elif time_s - self._stopped_since.setdefault(part.process.pid, time_s) >= patience_s:
                return part.exit(STOPPED)
        return None
