"""The processes and files of a client's runs, found by a mark in their environment, and what is left of them."""

from __future__ import annotations

import contextlib
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from meshlab.engines._reaper import shared_memory_files

__all__ = ["MARK", "Part", "abandoned_segments", "end_all", "files_of", "find_parts", "is_left", "segments"]

MARK = "MESHLAB_CHAOS"
"""The environment variable that a client and all its descendants inherit."""

# Of all communication libraries, whether or not meshlab has a backend for them.
_SEGMENTS = (
    *("mpich_", "ucx_shm_posix_", "vader_segment", "sm_segment", "psm2_shm", "psm3_shm", "efa_shm"),
    *("nccl-", "rccl", "cuda.shm", "torch_", "gloo", "sem.mp-", "psm_"),
)

_HYDRA_FILE = re.compile(rb"/[\w./-]+/hydra_hwloc_xmlfile_\w+")


@dataclass(frozen=True, slots=True)
class Part:
    """A process of a run.

    Parameters
    ----------
    process : psutil.Process
        The process.
    role : str
        Such as "rank" or "hub". Empty if it is none of the known ones.
    run, ranks_of : str
        The values of MESHLAB_RUN and MESHLAB_SET, which name its run and its set of ranks. Empty if it has none.
    environment : mapping
        Its environment variables.
    """

    process: psutil.Process
    role: str
    run: str
    ranks_of: str
    environment: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)

    @property
    def rank(self) -> int | None:
        """The rank that MPI, or its shell, has given to the process. A shell without MPI has that of its child."""
        names = ("MESHLAB_RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK")
        number = next((value for name in names if (value := self.environment.get(name, "")).isdigit()), None)
        if number is None and self.role == "shell":
            with contextlib.suppress(psutil.Error, IndexError):
                number = self.process.children()[0].environ().get("MESHLAB_RANK")
        return int(number) if number else None

    def __str__(self) -> str:
        return f"{self.role or self.process.name()} {self.process.pid}"


def segments() -> set[str]:
    """Return the files of communication libraries in /dev/shm that belong to this user."""
    files = set()
    with contextlib.suppress(OSError):  # not Linux
        for entry in os.scandir("/dev/shm"):
            with contextlib.suppress(OSError):  # it has just been removed
                if entry.name.startswith(_SEGMENTS) and entry.stat(follow_symlinks=False).st_uid == os.getuid():
                    files.add(entry.path)
    return files


def abandoned_segments(existing: Iterable[str]) -> list[str]:
    """Return the files of communication libraries in /dev/shm that are new, and that no living process has mapped."""
    candidates = segments().difference(existing)
    for process in psutil.process_iter():
        if not candidates:
            break
        with contextlib.suppress(OSError):
            maps = Path(f"/proc/{process.pid}/maps").read_text()
            candidates = {path for path in candidates if path not in maps}
    for process in psutil.process_iter() if candidates else ():  # that have the file open, and map it in a moment
        with contextlib.suppress(psutil.Error):
            candidates.difference_update(file.path for file in process.open_files())
    return sorted(path for path in candidates if Path(path).exists())  # others have ended meanwhile


def find_parts(mark: str) -> list[Part]:
    """Return all processes with the mark that have not ended, except zombies."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            environment = process.environ()
            if environment.get(MARK) != mark or process.status() == psutil.STATUS_ZOMBIE:
                continue
            words = process.cmdline()
            parent = process.parent()
            run = environment.get("MESHLAB_RUN", "")
            role = _role(process, words, [] if parent is None else parent.cmdline())
            if role == "reaper":
                run = next((word for word in words if re.fullmatch(r"[0-9a-f]{16}", word)), run)
            found.append(Part(process, role, run, environment.get("MESHLAB_SET", ""), environment))
    return found


def _role(process: psutil.Process, words: list[str], parent: list[str]) -> str:
    line = " ".join(words)
    if "tests.chaos.client" in line or "ipykernel_launcher" in line:
        return "client"
    if "reaper.py" in line:
        return "reaper"
    if process.name().startswith(("mpiexec", "mpirun")):
        return "launcher"
    if process.name().startswith(("hydra_", "orted", "prted")):
        return "proxy"
    if "meshlab-rank" in line:
        return "shell"
    if "ipyparallel.engine" in line:  # the nanny is a fork of its rank
        return "nanny" if words == parent else "rank"
    if "ipyparallel.controller" in line:
        return "scheduler" if "ipyparallel.controller" in " ".join(parent) else "hub"
    return ""


def files_of(parts: Iterable[Part]) -> set[str]:
    """Return the files outside the folder of the run that its processes have made: shared memory, and Hydra's."""
    found: set[str] = set()
    for part in parts:
        if part.role in ("rank", "client"):
            found.update(shared_memory_files(part.process.pid))
        if part.role == "proxy":
            found.update(_hydra_files(part.process.pid))
    return found


def _hydra_files(pid: int) -> set[str]:
    """Return the temporary files of a proxy, whose names are only in its memory."""
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
        heap = next(line for line in lines if line.endswith("[heap]"))
        start, end = (int(address, 16) for address in heap.split()[0].split("-"))
        with Path(f"/proc/{pid}/mem").open("rb", 0) as memory:
            memory.seek(start)
            return {name.decode() for name in _HYDRA_FILE.findall(memory.read(end - start))}
    return set()


def is_left(
    parts: Iterable[Part], files: Iterable[str], temporary: Path, *, pids: Iterable[int], client: int | None
) -> tuple[list[str], list[str]]:
    """Return the processes and files that should be gone.

    Parameters
    ----------
    parts : iterable of Part
        The processes that exist now.
    files : iterable of str
        Files that processes of the client have made.
    temporary : pathlib.Path
        The folder for temporary files of the client.
    pids : iterable of int
        The ranks that are in use. None of them after the engines are closed.
    client : int or None
        The client, if it is running.
    """
    parts = list(parts)
    in_use = {part.process.pid: part for part in parts if part.process.pid in set(pids)}
    runs, sets = {part.run for part in in_use.values()}, {part.ranks_of for part in in_use.values()}
    by_role: Mapping[str, list[Part]] = defaultdict(list)
    processes = []
    for part in parts:
        if part.process.pid == client:
            continue
        if part.run in runs and (not part.ranks_of or part.ranks_of in sets) and part.role:
            by_role[part.role].append(part)
        else:
            processes.append(str(part))
    for role, most in {"reaper": 1, "hub": 1, "launcher": 1, "rank": len(in_use), "shell": len(in_use)}.items():
        processes += [f"another {part}" for part in by_role[role][most:]]
    mapped = files_of(part for part in parts if part.process.pid in in_use or part.role == "proxy")
    remaining = [name for name in files if name not in mapped and Path(name).exists()]
    known = {value for part in in_use.values() for value in part.environment.values()}
    folders = list(temporary.iterdir()) if temporary.exists() else []
    unknown = [path for path in folders if not any(value.startswith(f"{path}/") for value in known)]
    return processes, sorted(remaining) + sorted(map(str, unknown))


def end_all(mark: str) -> None:
    """Kill everything with the mark."""
    for _ in range(20):
        parts = find_parts(mark)
        for part in parts:
            with contextlib.suppress(psutil.Error):
                part.process.kill()
        if not parts:
            return
        psutil.wait_procs([part.process for part in parts], timeout=0.5)
