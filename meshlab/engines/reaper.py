"""The leash: a small process that leaves nothing behind when the client is gone.

Engines outlive their client if nothing stops them. The client starts this file as a process of its own and holds the
other end of its standard input; when that end closes, for whatever reason, the leash ends every process that carries
the run's mark in its environment, and removes the run's files. It imports nothing of meshlab.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

__all__ = ["Reaper", "ask_launchers", "end_processes", "marked_processes", "remove_files"]

_POLL_S = 0.5
_LAUNCHERS, _PROXIES = ("mpiexec", "mpirun"), ("hydra_", "orted", "prted")
_LAUNCHER_S = 0.3
_SEGMENTS = ("/dev/shm/mpich_shm_", "/dev/shm/nccl-", "/dev/shm/vader_segment")


class Reaper:
    """The client's end.

    Parameters
    ----------
    variable, value : str
        The environment variable, and its value, that all processes of the run carry.
    folder : path
        The run's folder, removed at the end.
    """

    def __init__(self, variable: str, value: str, folder: str | Path) -> None:
        me = psutil.Process()
        self._variable, self._value, self._folder = variable, value, str(folder)
        self._files: set[str] = set()
        self._process = subprocess.Popen(
            [sys.executable, "-I", __file__, variable, value, self._folder, str(me.pid), repr(me.create_time())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """The leash's own process."""
        return self._process.pid

    def watch_files(self, paths: Iterable[str]) -> None:
        """Tell the leash of files to remove at the end."""
        new = set(paths) - self._files
        self._files |= new
        if new and self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.write("".join(f"{path}\n" for path in sorted(new)).encode())
                self._process.stdin.flush()

    def release(self, timeout_s: float = 5.0) -> None:
        """Let it do its work now, and wait until it is done."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        try:
            finished = self._process.wait(timeout_s) == 0
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            finished = False
        if not finished:  # somebody ended the leash itself
            clean_up(self._variable, self._value, self._folder, self._files)


def marked_processes(variable: str, value: str) -> list[psutil.Process]:
    """All processes of this user whose environment has `variable` set to `value`, but not this one."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and process.environ().get(variable) == value:
                found.append(process)
    return found


def ask_launchers(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Ask those of the processes that are MPI's launchers to end: only then do they remove their own files."""
    asked = []
    for process in processes:
        with contextlib.suppress(psutil.Error):
            if process.name().startswith(_LAUNCHERS):
                process.terminate()
                asked.append(process)
    return asked


def end_processes(variable: str, value: str, timeout_s: float = 2.0) -> list[str]:
    """End all processes that carry the mark: ask MPI's launcher, then kill until none is left.

    Parameters
    ----------
    variable, value : str
        The mark.
    timeout_s : float
        How long to try.

    Returns
    -------
    list of str
        Shared-memory files that the processes had mapped; nobody else removes them.
    """
    segments: set[str] = set()
    deadline = time.monotonic() + timeout_s
    quiet = 0
    processes = marked_processes(variable, value)
    for process in processes:
        segments.update(_segments(process.pid))
    launchers = ask_launchers(processes)
    if launchers:
        for process in processes:
            with contextlib.suppress(psutil.Error):
                if not process.name().startswith((*_LAUNCHERS, *_PROXIES)):
                    process.kill()
        psutil.wait_procs(launchers, timeout=_LAUNCHER_S)
    while quiet < 2 and time.monotonic() < deadline:
        processes = marked_processes(variable, value)
        quiet = 0 if processes else quiet + 1
        for process in processes:
            segments.update(_segments(process.pid))
        for process in processes:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(processes, timeout=0.2)
    return sorted(segments)


def _segments(pid: int) -> list[str]:
    try:
        maps = Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return []
    return [path for line in maps.splitlines() if (path := line.split(" ")[-1]).startswith(_SEGMENTS)]


def remove_files(paths: Iterable[str]) -> None:
    """Remove files; those that are gone already do not matter."""
    for path in paths:
        with contextlib.suppress(OSError):
            Path(path).unlink()


def clean_up(variable: str, value: str, folder: str, files: Iterable[str]) -> None:
    """End the processes, then remove the files and the folder."""
    remove_files([*end_processes(variable, value), *files])
    for _ in range(10):  # a dying process may still write into it
        shutil.rmtree(folder, ignore_errors=True)
        if not Path(folder).exists():
            return
        time.sleep(0.02)


def _is_alive(pid: int, created: float) -> bool:
    try:
        process = psutil.Process(pid)
        return abs(process.create_time() - created) < 1 and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _main(variable: str, value: str, folder: str, client: str, created: str) -> None:
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    lines = b""
    while True:
        # The pipe's end closes with the client, unless a forked child of the client still holds it: so ask for both.
        ready, _, _ = select.select([0], [], [], _POLL_S)
        if ready:
            chunk = os.read(0, 65536)
            if not chunk:
                break
            lines += chunk
        elif not _is_alive(int(client), float(created)):
            break
    clean_up(variable, value, folder, lines.decode(errors="replace").splitlines())


if __name__ == "__main__":
    _main(*sys.argv[1:])
