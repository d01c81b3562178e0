"""Ranks that mpiexec or srun started together, without a controller: rank 0 is the client and a rank at once.

Every process calls `join`. Rank 0 gets `Engines` and uses them as ever; the others serve it until they are closed.
Tasks and answers travel over a communicator of their own, and while rank 0 measures, nobody touches that.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from typing import TYPE_CHECKING, Any

from meshlab.engines.engines import Engines
from meshlab.engines.rounds import RankDiedError, RankExit, RankInfo, Reply
from meshlab.engines.worker import Worker
from meshlab.errors import EngineError

if TYPE_CHECKING:
    from meshlab.comm.backend import Backend

__all__ = ["join", "launched_as"]

_PAUSE_S = 0.0005
_SETTLE_S = 0.002  # tasks of one round come within that time
_CLOSE_S = 3.0  # how long the ranks may still work when they are closed

# Where launchers say which process this is and how many there are: Hydra (MPICH, Intel MPI), Open MPI, Slurm.
_LAUNCHERS = (
    ("PMI_RANK", "PMI_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)


def launched_as(environ: Mapping[str, str] | None = None) -> tuple[int, int] | None:
    """Which process of how many this is, if mpiexec or srun started several.

    Parameters
    ----------
    environ : mapping, optional
        The environment to look at; that of this process by default.

    Returns
    -------
    rank, size : int
        Or None for a process that was started by itself.

    Examples
    --------
    >>> launched_as({"PMI_RANK": "1", "PMI_SIZE": "4"}), launched_as({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"})
    ((1, 4), None)
    """
    given = os.environ if environ is None else environ
    for rank, size in _LAUNCHERS:
        if given.get(rank, "").isdecimal() and given.get(size, "").isdecimal() and int(given[size]) > 1:
            return int(given[rank]), int(given[size])
    return None


def join(*, backend: str = "auto", deadline_s: float = 30.0) -> Engines | None:
    """Become a rank among the processes that mpiexec or srun started together. Every one of them calls it.

    Parameters
    ----------
    backend : {"auto", "nccl", "mpi"}
        ``"auto"`` is ``"nccl"`` where every rank has a GPU of its own and what it needs is installed, else ``"mpi"``.
    deadline_s : float, default 30
        How long a call may take before its ranks count as stuck.

    Returns
    -------
    Engines or None
        On rank 0 the engines: close them, so that the others end. On the others None, when rank 0 has closed them.

    Raises
    ------
    EngineError
        If the backend cannot be opened here, or there is no such backend.

    Examples
    --------
    Every process of ``mpiexec -n 4 python script.py`` comes here; rank 0 goes on with the engines. Without a launcher
    the process is a world of one rank:

    >>> engines = join(backend="mpi")
    >>> if engines is not None:
    ...     with engines:
    ...         engines.run(lambda comm: (comm.rank, comm.size))["value"].tolist()
    [(0, 1)]
    """
    from meshlab.comm.backends import mpi

    if backend not in ("auto", "nccl", "mpi"):
        raise EngineError(f"processes that mpiexec started run mpi or nccl, not {backend!r}")
    world = mpi.world()
    control = world.comm.Dup()
    worker = Worker(_open(world, control, backend), [0] * world.size)
    facts: Sequence[RankInfo] | None = control.gather(worker.facts())
    if facts is None:
        _serve(worker, control)
        return None
    return Engines(_HereSet(worker, control, tuple(facts)), deadline_s=deadline_s, timeout_s=deadline_s)


def _open(world: Any, control: Any, backend: str) -> Backend:
    """The backend that moves the data: MPI's own world, or NCCL, whose ranks find each other through MPI."""
    from meshlab.engines.launcher import count_gpus

    hosts = control.allgather(socket.gethostname())
    local_rank, n_local = hosts[: world.rank].count(hosts[world.rank]), hosts.count(hosts[world.rank])
    if backend == "auto":
        backend = "nccl" if all(control.allgather(count_gpus() >= n_local)) else "mpi"
    if backend == "mpi":
        opened: Backend = world
        return opened
    from meshlab.comm.backends import nccl

    identity = control.bcast(nccl.unique_id() if world.rank == 0 else None)
    on_gpus: Backend = nccl.open_world(world.size, world.rank, local_rank, identity)
    return on_gpus


def _serve(worker: Worker, control: Any) -> None:
    """Do what rank 0 says, until it says that it was all; sleep in between, so that others have the core."""
    while True:
        while not control.iprobe(source=0):
            time.sleep(_PAUSE_S)
        task: tuple[str, tuple[Any, ...]] | None = control.recv(source=0)
        if task is None:
            return
        control.send(_packed(worker.serve(*task)), dest=0)


def _packed(reply: Reply) -> bytes:
    """An answer on its way; one that cannot travel is an error of its rank, and no end of it."""
    try:
        return pickle.dumps(reply)
    except Exception as error:
        return pickle.dumps(Reply.of_error(reply.rank, error))


def _settle(future: Future[Reply], reply: Reply) -> None:
    with contextlib.suppress(InvalidStateError):  # nobody waits for it any more
        future.set_result(reply)


def _unpacked(rank: int, data: bytes) -> Reply:
    try:
        reply: Reply = pickle.loads(data)
    except Exception as error:
        return Reply.of_error(rank, error)
    return reply


class _HereSet:
    """The ranks as rank 0 sees them; implements `meshlab.engines.rounds.RankSet`.

    One thread sends the tasks of a round, does rank 0's own part and collects the answers.
    """

    is_attached = True

    def __init__(self, worker: Worker, control: Any, facts: tuple[RankInfo, ...]) -> None:
        self.size = len(facts)
        self.backend = facts[0].capabilities.backend
        self._worker = worker
        self._control = control
        self._facts = facts
        self._tasks: queue.SimpleQueue[tuple[int, str, tuple[Any, ...], Future[Reply]] | None] = queue.SimpleQueue()
        self._open: set[Future[Reply]] = set()
        self._is_broken = False
        self._thread = threading.Thread(target=self._work, name="meshlab rank 0", daemon=True)

    def start(self, timeout_s: float) -> tuple[RankInfo, ...]:
        """All ranks are there already."""
        self._thread.start()
        return self._facts

    def submit(self, rank: int, method: str, arguments: tuple[Any, ...]) -> Future[Reply]:
        """Hand a task to a rank."""
        future: Future[Reply] = Future()
        if self._is_broken:
            future.set_exception(RankDiedError("the ranks were given up"))
        else:
            self._open.add(future)
            future.add_done_callback(self._open.discard)
            self._tasks.put((rank, method, arguments, future))
        return future

    def _work(self) -> None:
        task = self._tasks.get()
        while task is not None:
            own: tuple[str, tuple[Any, ...], Future[Reply]] | None = None
            waiting: dict[int, Future[Reply]] = {}
            while task is not None:
                rank, method, arguments, future = task
                if rank == 0:
                    own = method, arguments, future
                else:
                    self._control.send((method, arguments), dest=rank)
                    waiting[rank] = future
                try:
                    task = self._tasks.get(timeout=_SETTLE_S)
                except queue.Empty:
                    break
            if own is not None:
                _settle(own[2], self._serve_here(own[0], own[1]))
            while waiting:
                for rank in [rank for rank in waiting if self._control.iprobe(source=rank)]:
                    _settle(waiting.pop(rank), _unpacked(rank, self._control.recv(source=rank)))
                time.sleep(_PAUSE_S)
            if task is not None:
                task = self._tasks.get()

    def _serve_here(self, method: str, arguments: tuple[Any, ...]) -> Reply:
        """Rank 0's own part; whatever comes of it, there is an answer, or the caller would wait for ever."""
        try:
            return self._worker.serve(method, arguments)
        except BaseException as error:
            return Reply.of_error(0, error)

    def calls(self) -> list[int]:
        """Only the ranks themselves know."""
        return [-1] * self.size

    def first_death(self) -> RankExit | None:
        """When a rank dies, its launcher ends all of them."""
        return None

    def interrupt(self) -> None:
        """Not possible: a signal belongs to the launcher."""

    def kill(self) -> None:
        """Give the ranks up and free who waits for them; `close` ends them."""
        self._is_broken = True
        for future in list(self._open):
            with contextlib.suppress(InvalidStateError):
                future.set_exception(RankDiedError("the ranks were given up"))

    def log_tail(self) -> str:
        """Ranks print where their launcher prints."""
        return ""

    @property
    def client(self) -> None:
        """There is none."""

    def close(self) -> None:
        """Let the other ranks go; where they are stuck, end all processes, this one too."""
        if self._is_broken:
            self._control.Abort(1)
        self._tasks.put(None)
        self._thread.join(_CLOSE_S)
        if self._thread.is_alive():
            print(
                "meshlab: the engines were closed while ranks still worked; all processes end",
                file=sys.stderr,
                flush=True,
            )
            self._control.Abort(1)
        for rank in range(1, self.size):
            self._control.send(None, dest=rank)
