"""What the shells of the ranks record in files: the process of each rank, and which ones ended first, and how."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from meshlab.engines._lifeline import EXITS, PROCESSES, WITHOUT_SHELL, WITHOUT_SHELLS
from meshlab.engines._parts import Parts
from meshlab.engines._rounds import RankExit, how_exited

_LOG, _TO_LOG = "MESHLAB_LOG", 'exec "$0" "$@" >>"$MESHLAB_LOG" 2>&1'

# A wrapper shell appends "pid exit-code" to EXITS before mpiexec sees the exit and kills the other ranks, so the first
# line of that file is the culprit. A second shell, which becomes the rank, records the processes and the rank that MPI
# has given it. Without MPI, it takes the first rank whose file it can create. The rank's output goes to a separate
# file, because ipyparallel deletes its log on exit. The shell's own "Killed" is discarded, because it would look like
# output of the rank.
_SHELL = (
    'exec 2>/dev/null; [ -n "$HWLOC_XMLFILE" ] || unset HWLOC_XMLFILE; '
    '/bin/sh -c "$MESHLAB_TO_RANK" "$@"; code=$?; echo "$$ $code" >>"$MESHLAB_EXITS"; exit $code'
)
_TO_RANK = (
    "export MESHLAB_RANK=${PMI_RANK:-$OMPI_COMM_WORLD_RANK}; set -C; "
    'for rank in $MESHLAB_RANKS; do true >"$MESHLAB_PROCESSES-$rank" && MESHLAB_RANK=$rank && break; done; '
    'echo "$PPID $$ $MESHLAB_RANK" >>"$MESHLAB_PROCESSES"; ' + _TO_LOG
)

# Without the variables by which launchers of MPI recognise an allocation of a scheduler, on whose hosts they would
# start the ranks: the controller and the files of a run are on this host.
_HERE = (
    "unset SLURM_JOBID SLURM_JOB_ID SLURM_NODELIST SLURM_JOB_NODELIST PBS_JOBID PBS_ENVIRONMENT PBS_NODEFILE "
    "LSB_JOBID LSB_HOSTS LSB_MCPU_HOSTS PE_HOSTFILE HYDRA_HOST_FILE; "
)

_MOST_LOG = 1 << 20  # bytes
_NOISE = re.compile(r"\[(?:IPEngine|KernelNanny|IPController)[^]]*\]|^\s*$|mpi_(?:rank|size) =|from mpi4py import MPI")

LAUNCHER_SHELL = ["/bin/sh", "-c", _HERE + _TO_LOG]
"""The start of a command whose output goes to the log of the ranks."""

RANK_SHELL = ["/bin/sh", "-c", _SHELL, "meshlab-rank"]
"""The start of the command of a rank."""


def printed_text(log_file: Path) -> str:
    """Return at most the last MiB of a log of ranks, without the lines of ipyparallel."""
    try:
        with log_file.open("rb") as file:
            file.seek(max(0, log_file.stat().st_size - _MOST_LOG))
            text = file.read().decode(errors="replace")
    except OSError:  # nothing has printed
        return ""
    return "\n".join(line for line in text.splitlines() if not _NOISE.search(line))


@dataclass(frozen=True, slots=True)
class RankProcess:
    """The process of a rank, and the shell that started it."""

    shell: int
    pid: int
    rank: int | None  # None if the launcher is of an unknown MPI library

    @property
    def name(self) -> str:
        return "an engine" if self.rank is None else f"rank {self.rank}"


class RankRecords:
    """The records of one start of ranks."""

    def __init__(self, folder: Path, number: int) -> None:
        self.log_file = folder / f"log-{number}"
        self._exits_file = folder / f"exits-{number}"
        self._processes_file = folder / f"processes-{number}"
        self._n_skipped = 0
        self._watched: set[int] = set()
        self._parts = Parts()

    def environment(self, ranks: Iterable[int] = ()) -> dict[str, str]:
        """Return the variables that the shells read. They share out `ranks`, unless MPI gives each one its own."""
        return {
            EXITS: str(self._exits_file),
            _LOG: str(self.log_file),
            PROCESSES: str(self._processes_file),
            "MESHLAB_RANKS": " ".join(map(str, ranks)),
            "MESHLAB_TO_RANK": _TO_RANK,
        }

    def skip(self) -> None:
        """Ignore the exits so far, because the ranks that have survived are used again."""
        with contextlib.suppress(OSError):
            self._n_skipped = len(self._exits_file.read_text().splitlines())

    def processes(self) -> list[RankProcess]:
        """Return the processes of the ranks."""
        processes = []
        for line in _lines(self._processes_file):
            shell, pid, *rank = (int(word) for word in line.split())
            processes.append(RankProcess(shell, pid, rank[0] if rank else None))
        return processes

    def exits(self) -> list[tuple[int, int]]:
        """Return the exits in their order: the pid of the shell, and the exit code of its rank."""
        exits = []
        for line in _lines(self._exits_file)[self._n_skipped :]:
            shell, code = (int(word) for word in line.split())
            exits.append((shell, code))
        return exits

    def lost(self) -> RankExit | None:
        """Return the first rank that has ended or is stopped, while the client does not have their descriptions."""
        processes = self.processes()
        by_shell = {process.shell: process for process in processes}
        if exits := self.exits():
            # mpiexec ends the other ranks through their shells. Those that a signal has ended were killed separately.
            killed = [(shell, code) for shell, code in exits[1:] if code > 128]
            first, *others = (_exit_of(by_shell.get(shell), code) for shell, code in (exits[0], *killed))
            return replace(first, also=tuple(others))
        for process in processes:
            if process.pid not in self._watched:
                self._watched.add(process.pid)
                with contextlib.suppress(psutil.NoSuchProcess):  # its shell records the exit
                    self._parts.add(process.name, psutil.Process(process.pid))
        return self._parts.lost()


def _exit_of(process: RankProcess | None, code: int) -> RankExit:
    part = "an engine" if process is None else f"{process.name} (process {process.pid})"
    return RankExit(None, how_recorded(code), part)


def how_recorded(code: int) -> str:
    """Describe the end of a rank by the code that was recorded."""
    if code in (WITHOUT_SHELL, WITHOUT_SHELLS):
        return "killed together with the shell that started it"
    return how_exited(128 - code if code > 128 else code)  # a shell adds 128 to the number of a signal


def _lines(path: Path) -> list[str]:
    """Return the complete lines of a file, and none if it does not exist."""
    try:
        text = path.read_text()
    except OSError:
        return []
    return text[: text.rfind("\n") + 1].splitlines()
