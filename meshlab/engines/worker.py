"""The code that runs on an engine: one `Worker` per rank holds its communicators and runs what the client sends.

It knows nothing of benchmarks: those travel as functions.
"""

from __future__ import annotations

import mmap
import os
import pickle
import platform
import re
import socket
import traceback
from collections.abc import Callable, MutableSequence, Sequence
from pathlib import Path
from typing import Any

from meshlab.comm.backend import Backend
from meshlab.comm.communicator import Communicator
from meshlab.engines.rounds import RankInfo, Reply, WorkerConfig
from meshlab.errors import EngineError
from meshlab.mesh.mesh import DeviceMesh
from meshlab.version import __version__

__all__ = ["Worker", "make_identity", "open_worker", "serve"]

_SEGMENT = re.compile(r"/dev/shm/(?:mpich_shm_|nccl-|vader_segment|psm2_shm)\S*")


class Worker:
    """One rank: its communicators by name, and the methods that the client may call.

    Parameters
    ----------
    backend : Backend
        This rank's end of the world's communicator.
    calls : mutable sequence of int
        Where the rank counts the collectives it enters; the client reads it while the rank works.
    """

    def __init__(self, backend: Backend, calls: MutableSequence[int]) -> None:
        self._backend = backend
        self._calls = calls
        self.rank = backend.rank
        self._communicators: dict[str, Communicator] = {}
        calls[self.rank] = 0

    def serve(self, method: str, arguments: tuple[Any, ...]) -> Reply:
        """Run one method and catch whatever it raises."""
        try:
            return Reply(self.rank, getattr(self, method)(*arguments))
        except KeyboardInterrupt:
            return Reply(self.rank, error="interrupted", is_interrupt=True)
        except BaseException as error:  # SystemExit too: a function that exits must not take its rank along
            return Reply(self.rank, error=f"{type(error).__name__}: {error}", trace=_trace(error))

    def facts(self) -> RankInfo:
        """Say who this rank is."""
        return RankInfo(
            rank=self.rank,
            world_size=self._backend.size,
            host=socket.gethostname(),
            pid=os.getpid(),
            parent_pid=os.getppid(),
            python=platform.python_version(),
            meshlab=__version__,
            capabilities=self._backend.capabilities(),
            segments=_segments(),
        )

    def split(self, name: str, color: int | None, key: int, group: str, ranks: Sequence[int]) -> None:
        """Make the communicators of one group set; every rank of the world calls it.

        Parameters
        ----------
        name : str
            What the client calls the group set.
        color : int or None
            The number of this rank's group; None when it is in none.
        key : int
            This rank's number in its group.
        group : str
            The group's name.
        ranks : sequence of int
            Its global ranks, in order.
        """
        self._count()
        backend = self._backend.split(color, key)
        if backend is not None:
            self._communicators[name] = Communicator(backend, name=group, ranks=ranks, on_enter=self._count)

    def drop(self, names: Sequence[str]) -> None:
        """Close communicators; every rank of the world calls it."""
        for name in names:
            communicator = self._communicators.pop(name, None)
            if communicator is not None:
                communicator.close()

    def abandon(self) -> None:
        """Give all communicators up, although other ranks may be gone."""
        for communicator in self._communicators.values():
            communicator.abort()
        self._communicators = {}
        abort = getattr(self._backend, "abort", None)
        if abort is not None:
            abort()

    def fingerprint(self, mesh: DeviceMesh) -> str:
        """The view that this rank has of a mesh, as a hash."""
        return mesh.fingerprint

    def run(self, names: Sequence[str], task: bytes | tuple[Callable[..., Any], tuple[Any, ...]]) -> Any:
        """Call ``function(communicator, …, *arguments)``.

        Parameters
        ----------
        names : sequence of str
            The group sets whose communicators to hand over.
        task : bytes or (callable, tuple)
            The function and what else to hand over; pickled where it crosses a process.

        Raises
        ------
        EngineError
            If the client has not made that group set here.
        """
        for name in names:
            if name not in self._communicators:
                raise EngineError(f"rank {self.rank} has no communicator for {name!r}", rank=self.rank)
        function, arguments = pickle.loads(task) if isinstance(task, bytes) else task
        return function(*(self._communicators[name] for name in names), *arguments)

    def status(self) -> dict[str, Any]:
        """Say how this rank is: collectives entered, communicators held, memory in bytes."""
        import psutil

        return {
            "calls": int(self._calls[self.rank]),
            "communicators": len(self._communicators),
            "memory_bytes": psutil.Process().memory_info().rss,
        }

    def _count(self) -> None:
        self._calls[self.rank] += 1


def _trace(error: BaseException) -> str:
    """The traceback as text, from the user's own function on."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace))


def _segments() -> tuple[str, ...]:
    """The shared-memory files of a communication library that this process has mapped."""
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return ()
    return tuple(sorted(set(_SEGMENT.findall(maps))))


# In a process, the one worker lives here; ipyparallel calls the functions below.
_worker: Worker | None = None


def make_identity() -> bytes:
    """Make what lets the ranks of one NCCL world find each other; one rank does it for all."""
    from meshlab.comm.backends import nccl

    return nccl.unique_id()


def open_worker(opening: WorkerConfig) -> RankInfo:
    """Open the backend in this process and become a rank; what it was before is given up.

    Parameters
    ----------
    opening : WorkerConfig
        What to open.

    Raises
    ------
    EngineError
        If the backend is not one that runs in processes.
    """
    global _worker
    if _worker is not None and opening.backend == "nccl":
        _worker.abandon()
        _worker = None
    if _worker is None:
        _worker = _open(opening)
    return _worker.facts()


def _open(opening: WorkerConfig) -> Worker:
    if opening.backend == "mpi":
        from meshlab.comm.backends import mpi

        backend: Backend = mpi.world()
        return Worker(backend, _shared_counts(opening.counts_file, backend.size))
    if opening.backend == "nccl":
        from meshlab.comm.backends import nccl

        counts = _shared_counts(opening.counts_file, opening.size)
        backend = nccl.open_world(
            opening.size, opening.rank, opening.device, opening.identity, is_over=lambda: bool(counts[opening.size])
        )
        return Worker(backend, counts)
    raise EngineError(f"engines in processes run mpi or nccl, not {opening.backend!r}")


def _shared_counts(path: str | None, size: int) -> MutableSequence[int]:
    if path is None or not Path(path).exists():
        return [-1] * size + [0]
    with Path(path).open("r+b") as file:
        return memoryview(mmap.mmap(file.fileno(), 8 * (size + 1))).cast("q")  # type: ignore[return-value]


def serve(method: str, arguments: tuple[Any, ...]) -> Reply:
    """Run one method of this process's worker."""
    if _worker is None:
        return Reply(-1, error="EngineError: this engine was never opened as a rank")
    return _worker.serve(method, arguments)
