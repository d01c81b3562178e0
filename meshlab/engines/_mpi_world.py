"""Engines without a controller: processes that mpiexec or srun started together. Rank 0 is also the client.

Every process calls `join`. Rank 0 gets `Engines`, and the other ranks serve it until the engines are closed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import queue
import socket
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError
from typing import TYPE_CHECKING, Any

from meshlab.base._backends import PROCESS_BACKENDS, automatic_backend, choice_text
from meshlab.base._errors import EngineError
from meshlab.comm._agreement import Checks
from meshlab.comm._backend import Rendezvous
from meshlab.comm._worlds import process_module
from meshlab.engines._engines import Engines
from meshlab.engines._launchers import launch_of
from meshlab.engines._positions import Position, Positions
from meshlab.engines._reaper import remove_files, shared_memory_files
from meshlab.engines._rounds import RankDiedError, RankInfo, RankSet, Reply
from meshlab.engines._worker import Worker

if TYPE_CHECKING:
    from meshlab.comm._backend import Backend

_PAUSE_S = 0.0005
_ROUND_S = 0.002  # the tasks of one round are submitted within this time
_CLOSE_S = 3.0  # time that busy ranks get to finish when the engines are closed

_log = logging.getLogger("meshlab.engines")


def join(*, backend: str = "auto", checks: Checks = "first", deadline_s: float = 30.0) -> Engines | None:
    """Become a rank among the processes that mpiexec or srun started together. All of them must call it.

    Parameters
    ----------
    backend : {"auto", "nccl", "mpi", "gloo"}, default "auto"
        The backend that moves the data. ``"auto"`` selects ``"nccl"`` if every rank has its own GPU and the required
        packages are installed, else ``"mpi"``.
    checks : {"first", "all", "off"}, default "first"
        The calls that are compared between ranks, as in `meshlab.launch`. MPI compares calls itself. With NCCL, calls
        are only compared when a function has returned, because the ranks share no memory across hosts.
    deadline_s : float, default 30
        Maximum duration of a call, in seconds, before its ranks are considered stuck.

    Returns
    -------
    Engines or None
        The engines on rank 0, None on all other ranks. The other ranks block until rank 0 closes the engines.

    Raises
    ------
    EngineError
        If the backend is unknown.
        If a launcher started several processes, and MPI does not connect them, as with ``srun`` without
        ``--mpi=pmi2``. Only the first process raises it.
    CommunicatorError
        If the backend cannot be opened.

    Examples
    --------
    All processes of ``mpiexec -n 4 python script.py`` run this code, and rank 0 enters the block. Without a launcher,
    the process is a world of one rank:

    >>> engines = join(backend="mpi")
    >>> if engines is not None:
    ...     with engines:
    ...         engines.run(lambda comm: (comm.rank, comm.size))["value"].tolist()
    [(0, 1)]
    """
    from meshlab.comm.backends import _mpi as mpi

    names = ("auto", *PROCESS_BACKENDS)
    if backend not in names:
        raise EngineError(f"backend must be {choice_text(names)} for processes of an MPI launcher, not {backend!r}")
    world = mpi.world()
    launch = launch_of()
    if world.size == 1 and launch is not None:
        if launch.rank > 0:
            return None
        library = world.capabilities().library
        raise EngineError(launch.fault(library), hint=launch.cure(library))
    control = world.comm.Dup()  # for tasks and replies; it is idle while rank 0 measures
    worker = Worker(_open(world, control, backend), Positions(world.size), checks)
    infos: Sequence[RankInfo] | None = control.gather(worker.info())
    if infos is None:
        _serve(worker, control)
        return None
    return Engines(MpiWorldSet(worker, control, tuple(infos)), deadline_s=deadline_s, timeout_s=deadline_s)


def _open(world: Any, control: Any, backend: str) -> Backend:
    """Return the backend that moves the data: MPI's world, or another one whose ranks find each other over MPI."""
    from meshlab.engines._launch import count_gpus

    hosts = control.allgather(socket.gethostname())
    local_rank, n_local = hosts[: world.rank].count(hosts[world.rank]), hosts.count(hosts[world.rank])
    if backend == "auto":
        # Hosts may differ, but all ranks must choose the same backend.
        backend = automatic_backend(has_gpus=all(control.allgather(count_gpus() >= n_local)))
    if backend == world.capabilities().backend:
        opened: Backend = world
        return opened
    module = process_module(backend)
    unique_id = control.bcast(module.unique_id() if world.rank == 0 else None)
    return module.open_world(
        Rendezvous(size=world.size, rank=world.rank, device=local_rank, unique_id=unique_id, beside=world)
    )


def _serve(worker: Worker, control: Any) -> None:
    """Run the tasks of rank 0 until it sends None."""
    while True:
        # A blocking receive in MPI spins on a core, which the ranks that are measuring may need.
        while not control.iprobe(source=0):
            time.sleep(_PAUSE_S)
        task: tuple[str, tuple[Any, ...]] | None = control.recv(source=0)
        if task is None:
            return
        control.send(_packed(worker.serve(*task)), dest=0)


def _packed(reply: Reply) -> bytes:
    """Return the pickled reply. If pickling fails, return that error as the reply, so that the rank survives."""
    try:
        return pickle.dumps(reply)
    except Exception as error:
        return pickle.dumps(Reply.of_error(reply.rank, error))


def _unpacked(rank: int, data: bytes) -> Reply:
    try:
        reply: Reply = pickle.loads(data)
    except Exception as error:
        return Reply.of_error(rank, error)
    return reply


def _settle(future: Future[Reply], reply: Reply) -> None:
    with contextlib.suppress(InvalidStateError):  # `kill` has already failed the future
        future.set_result(reply)


class MpiWorldSet(RankSet):
    """The ranks as seen from rank 0. If one dies, the launcher kills all of them, including this process."""

    # A single thread sends the tasks of a round, runs rank 0's task and collects the replies. So MPI is called from one
    # thread at a time, which is all that some MPI libraries support.

    is_attached = True

    def __init__(self, worker: Worker, control: Any, infos: tuple[RankInfo, ...]) -> None:
        self.size = len(infos)
        self.backend = infos[0].capabilities.backend
        self._worker = worker
        self._control = control
        self._infos = infos
        self._tasks: queue.SimpleQueue[tuple[int, str, tuple[Any, ...], Future[Reply]] | None] = queue.SimpleQueue()
        self._pending: set[Future[Reply]] = set()
        self._is_broken = False
        self._unreleased = list(range(1, self.size))
        self._thread = threading.Thread(target=self._work, name="meshlab rank 0", daemon=True)

    def start(self, timeout_s: float) -> tuple[RankInfo, ...]:
        """Start the thread. All ranks are running already."""
        self._thread.start()
        return self._infos

    def submit(self, rank: int, method: str, arguments: tuple[Any, ...]) -> Future[Reply]:
        future: Future[Reply] = Future()
        if self._is_broken:
            future.set_exception(RankDiedError("the ranks were abandoned"))
        else:
            self._pending.add(future)
            future.add_done_callback(self._pending.discard)
            self._tasks.put((rank, method, arguments, future))
        return future

    def _work(self) -> None:
        task = self._tasks.get()
        while task is not None:
            task_of_0: tuple[str, tuple[Any, ...], Future[Reply]] | None = None
            waiting: dict[int, Future[Reply]] = {}
            # Send the tasks of all other ranks before running rank 0's, which may wait for them in a collective. The
            # end of a round is not marked in the queue, but its tasks follow each other immediately.
            while task is not None:
                rank, method, arguments, future = task
                if rank == 0:
                    task_of_0 = method, arguments, future
                else:
                    self._control.send((method, arguments), dest=rank)
                    waiting[rank] = future
                try:
                    task = self._tasks.get(timeout=_ROUND_S)
                except queue.Empty:
                    break
            if task_of_0 is not None:
                method, arguments, future = task_of_0
                _settle(future, self._serve_rank_0(method, arguments))
            while waiting:
                for rank in [rank for rank in waiting if self._control.iprobe(source=rank)]:
                    _settle(waiting.pop(rank), _unpacked(rank, self._control.recv(source=rank)))
                time.sleep(_PAUSE_S)
            if task is not None:
                task = self._tasks.get()

    def _serve_rank_0(self, method: str, arguments: tuple[Any, ...]) -> Reply:
        """Run rank 0's task. No exception leaves the method, because it would end the thread and hang the caller."""
        try:
            return self._worker.serve(method, arguments)
        except BaseException as error:
            return Reply.of_error(0, error)

    def positions(self) -> list[Position]:
        """Return unknown positions: there is no shared memory across hosts."""
        return [Position()] * self.size

    def interrupt(self) -> None:
        """Do nothing: only the launcher can send signals to processes on all hosts."""

    def kill(self, *, reuse: bool = True) -> None:
        """Abandon the ranks and release the callers that wait for them. `close` stops the processes."""
        # Not here, because MPI_Abort stops this process too, and the caller may still have results to save.
        self._is_broken = True
        for future in list(self._pending):
            with contextlib.suppress(InvalidStateError):
                future.set_exception(RankDiedError("the ranks were abandoned"))

    def _abort(self) -> None:
        """Print the exception that is being handled, and stop all processes, including this one."""
        # MPI_Abort skips the end of the interpreter, which would print it.
        error = sys.exception()
        if isinstance(error, SystemExit):
            if isinstance(error.code, str):
                sys.stderr.write(f"{error.code}\n")
        elif error is not None:
            sys.excepthook(type(error), error, error.__traceback__)
        # MPICH removes the file of its shared memory in MPI_Finalize, which no process reaches. All ranks of this host
        # share one file, and those that have mapped it do not need its name.
        remove_files(shared_memory_files(os.getpid()))
        # MPI_Abort skips the exit of Python, which would write what print() keeps for a pipe or a file.
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):  # the stream is closed, or its reader is gone
                stream.flush()
        self._control.Abort(1)

    def close(self) -> None:
        """Release the other ranks. If they are stuck, abort all processes, including this one."""
        if self._is_broken:
            self._abort()
        self._tasks.put(None)
        self._thread.join(_CLOSE_S)
        if self._thread.is_alive():
            _log.warning("meshlab: the engines were closed while ranks were still busy; aborting all processes")
            self._abort()
        while self._unreleased:  # a second call continues where an interrupted one has stopped
            self._control.send(None, dest=self._unreleased.pop())
