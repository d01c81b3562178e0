"""The reaper: a small process that cleans up after a client, regardless of how the client exits.

Engines outlive their client if nothing stops them. The client runs this file as a separate process and holds the other
end of its standard input. When that pipe closes, the reaper kills every process of the run and removes the run's files.
It recognises processes by an environment variable, which children inherit. This module imports nothing of meshlab, so
that the process starts fast.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

RUN = "MESHLAB_RUN"
"""The environment variable that marks the processes of a run. Its value is the id of the run."""

_POLL_S = 0.5  # interval between checks that the client is alive, if the pipe stays open
_SHARED_MEMORY = ("/dev/shm/mpich_shm_", "/dev/shm/nccl-", "/dev/shm/vader_segment", "/dev/shm/psm2_shm")


class Reaper:
    """The client's handle on its reaper, which kills the processes with a variable in their environment."""

    def __init__(self, variable: str, value: str, folder: str | Path) -> None:
        me = psutil.Process()
        self._variable, self._value, self._folder = variable, value, str(folder)
        self._files: set[str] = set()
        # The start time goes with the pid, because the kernel reuses pids.
        self.command = [sys.executable, "-I", __file__, variable, value, self._folder]
        self.command += [str(me.pid), repr(me.create_time())]
        self._lock = threading.Lock()
        self._is_released = False
        self._start()

    def _start(self) -> None:
        # A new session, so that Ctrl-C and the hang-up of a terminal do not reach the reaper along with the client.
        self._process = subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """The pid of the reaper process."""
        return self._process.pid

    def watch_files(self, paths: Iterable[str]) -> None:
        """Add files to remove at the end."""
        with self._lock:
            new = set(paths) - self._files
            self._files |= new
            self._send(new)

    def _send(self, paths: Iterable[str]) -> None:
        if self._process.stdin is not None:
            with contextlib.suppress(OSError, ValueError):  # the reaper is gone, or was released
                self._process.stdin.write("".join(f"{path}\n" for path in sorted(paths)).encode())
                self._process.stdin.flush()

    def renew(self) -> None:
        """Start another reaper if this one has died or was stopped, and let it watch the same files."""
        with self._lock:
            if self._is_released or (self._process.poll() is None and not self._is_stopped()):
                return
            self._end()
            self._start()
            self._send(self._files)

    def _is_stopped(self) -> bool:
        with contextlib.suppress(psutil.Error):
            return psutil.Process(self._process.pid).status() == psutil.STATUS_STOPPED
        return False

    def _end(self) -> None:
        self._process.kill()
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        self._process.wait()

    def release(self, timeout_s: float = 4.0) -> None:
        """Start the clean-up now and wait until it is done. A call that was interrupted can be repeated."""
        with self._lock:
            if self._is_released:
                return
            if self._process.stdin is not None:
                with contextlib.suppress(OSError):
                    self._process.stdin.close()
            is_finished = False
            if not self._is_stopped():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    is_finished = self._process.wait(timeout_s) == 0
            if not is_finished:  # the reaper was killed or is stuck, so the client cleans up itself
                self._end()
                clean_up(self._variable, self._value, self._folder, self._files)
            self._is_released = True


def marked_processes(variable: str, value: str) -> list[psutil.Process]:
    """Return this user's processes whose environment sets `variable` to `value`, except the calling process."""
    # Not the children of the client: a process whose parent has ended is a child of another one.
    processes = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):  # it has just ended, or belongs to another user
            if process.pid != os.getpid() and process.environ().get(variable) == value:
                processes.append(process)
    return processes


def kill_processes(variable: str, value: str, timeout_s: float = 2.0) -> list[str]:
    """Kill all processes with a mark, and return the shared-memory files of libraries that they leave behind."""
    files: set[str] = set()
    deadline = time.monotonic() + timeout_s
    # A process may fork between the listing and its death. Its child inherits the mark, so only a second empty listing
    # shows that no process is left.
    n_empty = 0
    while n_empty < 2 and time.monotonic() < deadline:
        processes = marked_processes(variable, value)
        n_empty = 0 if processes else n_empty + 1
        for process in processes:  # before any of them dies, because /proc has no mappings of a dead process
            files.update(shared_memory_files(process.pid))
        for process in processes:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(processes, timeout=0.2)
    return sorted(files)


def shared_memory_files(pid: int) -> list[str]:
    """Return the shared-memory files of communication libraries that a process has mapped."""
    try:
        maps = Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return []
    return sorted({path for line in maps.splitlines() if (path := line.split(" ")[-1]).startswith(_SHARED_MEMORY)})


def remove_files(paths: Iterable[str]) -> None:
    """Remove files, ignoring those that do not exist."""
    for path in paths:
        with contextlib.suppress(OSError):
            Path(path).unlink()


def clean_up(variable: str, value: str, folder: str, files: Iterable[str]) -> None:
    """Kill the processes, then remove the files and the folder."""
    remove_files([*kill_processes(variable, value), *files])
    for _ in range(10):  # a dying process may still write into the folder
        shutil.rmtree(folder, ignore_errors=True)
        if not Path(folder).exists():
            return
        time.sleep(0.02)


def is_running(pid: int, created: float) -> bool:
    """Return whether the process with this pid and this start time has not ended."""
    try:
        process = psutil.Process(pid)
        return abs(process.create_time() - created) < 1 and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _main(variable: str, value: str, folder: str, client: str, created: str) -> None:
    # These signals often reach all processes of a session, and the reaper's work begins when the others end.
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    lines = b""
    while True:
        # The kernel closes the pipe when the client dies, even by SIGKILL. A forked child of the client inherits the
        # pipe and may keep it open, so also check whether the client itself is alive.
        ready, _, _ = select.select([0], [], [], _POLL_S)
        if ready:
            chunk = os.read(0, 65536)
            if not chunk:
                break
            lines += chunk
        elif not is_running(int(client), float(created)):
            break
    clean_up(variable, value, folder, lines.decode(errors="replace").splitlines())


if __name__ == "__main__":
    _main(*sys.argv[1:])
