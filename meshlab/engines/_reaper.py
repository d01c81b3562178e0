"""The reaper: a small process that cleans up after a client, regardless of how the client exits.

Engines outlive their client if nothing stops them. The client runs this file as a separate process and holds the other
end of its standard input. When that pipe closes, the reaper kills every process of the run and removes the run's files.
It recognises processes by an environment variable, which children inherit. What else it has to remove is recorded in
the folder of the run, before it exists, so that whoever cleans up reads the same: the reaper, the client itself, or,
if both were killed, the next client of this user. This module imports nothing of meshlab, so that the process starts
fast.
"""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import psutil

RUN = "MESHLAB_RUN"
"""The environment variable that marks the processes of a run. Its value is the id of the run."""

_POLL_S = 0.5  # interval between checks that the client is alive, if the pipe stays open
_TICK_S = 0.1  # interval between looks at shared memory
_SHARED_MEMORY = tuple(
    f"/dev/shm/{name}" for name in ("mpich_shm_", "mpich_vci_", "ucx_shm_posix_", "nccl-", "vader_segment", "psm2_shm")
)

_START = 22  # see `stat_field`

_PREFIX = "meshlab-"  # of the folder of a run
# In that folder: whose run it is, the shared-memory files of its ranks, those that existed before ranks that are now
# being started, and the processes that only their parents lead to.
_OWNER, _SEGMENTS, _EXISTING, _DESCENDANTS = "owner", "segments", "existing-segments", "descendants"
_COMMANDS = "commands"  # those that end jobs of a scheduler, one a line

_COMMAND_S = 10.0  # maximum time of such a command


class Reaper:
    """The client's handle on its reaper, which kills the processes with a variable in their environment."""

    def __init__(self, variable: str, value: str, folder: str | Path) -> None:
        client = str(os.getpid()), repr(started_at(os.getpid()))
        self._variable, self._value, self._folder = variable, value, str(folder)
        # The start goes with the pid, because the kernel reuses pids.
        self.command = [sys.executable, "-I", __file__, variable, value, self._folder, *client]
        self._lock = threading.Lock()
        self._is_released = False
        owner = variable, value, *client, _processes_here()
        (Path(folder) / _OWNER).write_text("\n".join(owner))
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

    @contextlib.contextmanager
    def starting(self) -> Iterator[None]:
        """Let the reaper remove what the ranks that start in this context leave in shared memory, even half-started."""
        # A library creates its files before a rank can report them, and a dead process has no mappings.
        remove_files(_abandoned_by_start(Path(self._folder)))  # of a start that failed
        existing = Path(self._folder) / _EXISTING
        existing.write_text("\n".join(segments()))
        yield
        existing.unlink()

    def watch_files(self, paths: Iterable[str]) -> None:
        """Add files to remove at the end."""
        with (Path(self._folder) / _SEGMENTS).open("a") as file:
            file.write("".join(f"{path}\n" for path in sorted(paths)))

    def end_by(self, command: Sequence[str]) -> None:
        """Add a command to run at the end, which ends what has started on other hosts."""
        with (Path(self._folder) / _COMMANDS).open("a") as file:
            file.write(f"{shlex.join(command)}\n")

    def watch_descendants(self) -> None:
        """Add the descendants of the processes of the run, because one whose parent has ended may have no mark."""
        # If the disk is full or the folder was removed, the ranks must be stopped nevertheless.
        with contextlib.suppress(OSError), (Path(self._folder) / _DESCENDANTS).open("a") as file:
            for process in _descendants(marked_processes(self._variable, self._value)):
                with contextlib.suppress(psutil.Error):
                    file.write(f"{process.pid} {started_at(process.pid)!r}\n")

    def renew(self) -> None:
        """Start another reaper if this one has died or was stopped."""
        with self._lock:
            if self._is_released or (self._process.poll() is None and not self._is_stopped()):
                return
            self._end()
            self._start()

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
                clean_up(self._variable, self._value, self._folder)
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


def _descendants(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Return the children of processes, and their children, except those that are in `processes`."""
    children: set[psutil.Process] = set()
    for process in processes:
        with contextlib.suppress(psutil.Error):
            children.update(process.children(recursive=True))
    return [process for process in children.difference(processes) if process.pid != os.getpid()]


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
        processes += _descendants(processes)  # those that were started with another environment
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


def segments() -> list[str]:
    """Return the shared-memory files of communication libraries on this host that belong to this user."""
    files = []
    with contextlib.suppress(OSError):  # not Linux
        for entry in os.scandir("/dev/shm"):
            with contextlib.suppress(OSError):
                if entry.path.startswith(_SHARED_MEMORY) and entry.stat(follow_symlinks=False).st_uid == os.getuid():
                    files.append(entry.path)
    return files


def abandoned_segments(existing: Iterable[str]) -> list[str]:
    """Return the files that were created after the existing ones, and that no process has open."""
    candidates = set(segments()).difference(existing)
    if candidates:  # of a start, or of another program that started at the same time
        for process in psutil.process_iter():
            candidates.difference_update(shared_memory_files(process.pid))
            with contextlib.suppress(psutil.Error):
                candidates.difference_update(file.path for file in process.open_files())
    return sorted(candidates)


def remove_abandoned(existing: Sequence[str], limit_s: float) -> None:
    """Remove the files that were created after the existing ones, when no process has them open any more."""
    deadline = time.monotonic() + limit_s
    while set(segments()).difference(existing) and time.monotonic() < deadline:
        remove_files(abandoned_segments(existing))  # those of ranks that end a moment later remain
        time.sleep(_TICK_S)


def _abandoned_by_start(folder: Path) -> list[str]:
    """Return the files that a start which did not end has left."""
    try:
        existing = (folder / _EXISTING).read_text().splitlines()
    except OSError:
        return []
    return abandoned_segments(existing)


def remove_files(paths: Iterable[str]) -> None:
    """Remove files, ignoring those that do not exist."""
    for path in paths:
        with contextlib.suppress(OSError):
            Path(path).unlink()


def clean_up(variable: str, value: str, folder: str) -> None:
    """Kill the processes of a run, then remove the files that it has made and its folder."""
    _run_commands(Path(folder) / _COMMANDS)
    for pid, start in _pairs(Path(folder) / _DESCENDANTS):
        if is_running(pid, start):
            with contextlib.suppress(psutil.Error):
                psutil.Process(pid).kill()
    remove_files(kill_processes(variable, value))
    with contextlib.suppress(OSError):
        remove_files((Path(folder) / _SEGMENTS).read_text().splitlines())
    remove_files(_abandoned_by_start(Path(folder)))
    for _ in range(10):  # a dying process may still write into the folder
        _remove_folder(Path(folder))
        if not Path(folder).exists():
            return
        time.sleep(0.02)


def _run_commands(path: Path) -> None:
    try:
        commands = [shlex.split(line) for line in path.read_text().splitlines()]
    except (OSError, ValueError):  # there are none
        return
    for command in commands:
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=_COMMAND_S,
                check=False,
            )


def _remove_folder(folder: Path) -> None:
    """Remove the folder of a run. Whoever is killed meanwhile leaves its owner, so that the next client goes on."""
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            if path.name != _OWNER:
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def clean_up_after_others(parent: Path | None = None) -> None:
    """Clean up the runs of this user whose client and reaper were both killed before they could do it."""
    for folder in (parent or Path(tempfile.gettempdir())).glob(f"{_PREFIX}*"):
        try:
            variable, value, client, start, processes = (folder / _OWNER).read_text().splitlines()
            is_own = folder.stat().st_uid == os.getuid() and processes == _processes_here()
            if not is_own or is_running(int(client), float(start)) or _has_reaper(variable, value):
                continue
        except (OSError, ValueError):  # not a run, or it is being made or removed
            continue
        clean_up(variable, value, str(folder))


def _has_reaper(variable: str, value: str) -> bool:
    """Return whether a reaper of the run is at work."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.cmdline()[3:5] == [variable, value] and process.status() != psutil.STATUS_STOPPED:
                return True
    return False


def make_folder(parent: Path | None = None) -> Path:
    """Make the folder of a run, where the next client looks for it."""
    return Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))


def _processes_here() -> str:
    """Return what identifies the processes that this one sees: the boot of the host, and the namespace of pids."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:  # not Linux
        return repr(psutil.boot_time())


def _pairs(path: Path) -> list[tuple[int, float]]:
    """Return the processes in a file: their pids and starts."""
    try:
        return [(int(pid), float(start)) for pid, start in map(str.split, path.read_text().splitlines())]
    except (OSError, ValueError):
        return []


def started_at(pid: int) -> float:
    """Return the start of a process: its clock ticks since the boot of the host. Without /proc, a time in seconds."""
    # Not the time that psutil computes from them, which moves with every step of the clock.
    with contextlib.suppress(OSError, ValueError, IndexError):
        return float(stat_field(pid, _START))
    return float(psutil.Process(pid).create_time())


def stat_field(pid: int, number: int) -> int:
    """Return a field of /proc/PID/stat by its number in proc(5). OSError, ValueError or IndexError if there is none."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[number - 3])  # the name in parentheses is the second field


def is_running(pid: int, start: float) -> bool:
    """Return whether the process with this pid and this start has not ended."""
    try:
        return abs(started_at(pid) - start) < 1 and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _main(variable: str, value: str, folder: str, client: str, start: str) -> None:
    # These signals often reach all processes of a session, and the reaper's work begins when the others end.
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    while True:
        # The kernel closes the pipe when the client dies, even by SIGKILL. A forked child of the client inherits the
        # pipe and may keep it open, so also check whether the client itself is alive.
        ready, _, _ = select.select([0], [], [], _POLL_S)
        if ready or not is_running(int(client), float(start)):
            break
    clean_up(variable, value, folder)


if __name__ == "__main__":
    _main(*sys.argv[1:])
