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
import tempfile
import threading
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshlab.base._backends import BACKENDS, PROCESS_BACKENDS, automatic_backend, choice_text
from meshlab.base._errors import EngineError
from meshlab.comm._agreement import Checks
from meshlab.comm._backend import Rendezvous
from meshlab.comm._worlds import process_module
from meshlab.engines._engines import Engines
from meshlab.engines._launchers import launch_of
from meshlab.engines._parts import STOPPED, is_stopped
from meshlab.engines._position_lines import PositionLines, connect
from meshlab.engines._positions import Position, Positions
from meshlab.engines._rank_hosts import missing_interface
from meshlab.engines._rank_plan import check_versions, own_versions, warn_of_clocks
from meshlab.engines._reaper import remove_files, shared_memory_files
from meshlab.engines._rounds import RankDiedError, RankExit, RankInfo, RankSet, Reply
from meshlab.engines._start_watch import report_start
from meshlab.engines._worker import Worker

if TYPE_CHECKING:
    from meshlab.comm._backend import Backend

_OVER_MPI = next(name for name, facts in BACKENDS.items() if facts.starts == "mpiexec")
_PAUSE_S = 0.0005
_CLOSE_S = 3.0  # time that busy ranks get to finish when the engines are closed

# The method of a round, and the arguments and futures of its ranks.
_Task = tuple[str, dict[int, tuple[Any, ...]], dict[int, Future[Reply]]]

_log = logging.getLogger("meshlab.engines")


def join(
    *, backend: str = "auto", checks: Checks = "first", deadline_s: float = 30.0, timeout_s: float = 60.0
) -> Engines | None:
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
    timeout_s : float, default 60
        Maximum time, in seconds, to load and open another backend for an axis. MPI waits for all processes for ever.

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
    load_mpi()
    world = mpi.world()
    launch = launch_of()
    if world.size == 1 and launch is not None:
        if launch.rank > 0:
            return None
        library = world.capabilities().library
        raise EngineError(launch.fault(library), hint=launch.cure(library))
    control = world.comm.Dup()  # for tasks and replies; it is idle while rank 0 measures
    try:
        control.barrier()  # so that all describe themselves at the same time
        before_s = time.time()
        processes = control.allgather(own_versions())
        after_s = time.time()
        check_versions(processes)
    except EngineError:
        if world.rank > 0:
            return None
        raise
    if world.rank == 0:
        warn_of_clocks(processes, before_s, after_s)
    positions = _shared_positions(control, world.size)
    worker = Worker(_open(world, control, backend), positions, checks)
    infos: Sequence[RankInfo] | None = control.gather(worker.info())
    lines = _open_lines(control, worker)
    report_start()
    if infos is None:
        _serve(worker, control)
        return None
    rank_set = MpiWorldSet(worker, control, tuple(infos), positions, lines)
    return Engines(rank_set, deadline_s=deadline_s, timeout_s=timeout_s)


def _shared_positions(control: Any, size: int) -> Positions:
    """Return memory that the ranks on the host of rank 0 share. That of other ranks is their own."""
    with contextlib.ExitStack() as stack:
        host, path = socket.gethostname(), None
        if control.rank == 0:
            with contextlib.suppress(OSError):  # without it, rank 0 does not know where the others are
                path = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="meshlab-"))) / "calls"
                Positions.create_file(path, size)
        host_of_0, path = control.bcast((host, path))
        is_shared = host == host_of_0 and path is not None and path.exists()
        positions = Positions(size, path if is_shared else None)
        control.barrier()  # before the file is removed
        return positions


def _open_lines(control: Any, worker: Worker) -> PositionLines | None:
    """Connect ranks of other hosts to rank 0, which gets the lines. No port is opened if there are none."""
    host = socket.gethostname()
    is_elsewhere = host != control.bcast(host)
    if not control.allreduce(int(is_elsewhere)):
        return None
    lines = None
    if control.rank == 0:
        with contextlib.suppress(OSError):
            lines = PositionLines(control.size)
    invitation = control.bcast(None if lines is None else lines.invitation)
    is_connected = is_elsewhere and invitation is not None and connect(invitation, worker)
    n = control.allreduce(int(is_connected))
    if lines is not None:
        lines.accept(n)
    return lines


def load_mpi() -> None:
    """Import MPI, which initialises it."""
    from meshlab.comm.backends import _mpi as mpi

    launch = launch_of()
    # The library would end the process.
    if (launch is None or launch.rank == 0) and (missing := missing_interface(_OVER_MPI)):
        warnings.warn(missing, stacklevel=2)
    mpi.load()


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
        message: bytes | None = control.recv(source=0)
        if message is None:
            return
        control.send(_packed(worker.serve(*pickle.loads(message))), dest=0)


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

    def __init__(
        self,
        worker: Worker,
        control: Any,
        infos: tuple[RankInfo, ...],
        positions: Positions,
        lines: PositionLines | None,
    ) -> None:
        self.size = len(infos)
        self.backend = infos[0].capabilities.backend
        self._worker = worker
        self._control = control
        self._infos = infos
        self._positions = positions
        self._lines = lines
        self._here = [info.rank for info in infos if info.host == infos[0].host]
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._pending: set[Future[Reply]] = set()
        self._is_broken = False
        self._unreleased = list(range(1, self.size))
        self._thread = threading.Thread(target=self._work, name="meshlab rank 0", daemon=True)

    def start(self, timeout_s: float) -> tuple[RankInfo, ...]:
        """Start the thread. All ranks are running already."""
        self._thread.start()
        return self._infos

    def submit(
        self, ranks: Sequence[int], method: str, arguments: Sequence[tuple[Any, ...]]
    ) -> Sequence[Future[Reply]]:
        futures = {rank: Future[Reply]() for rank in ranks}
        if self._is_broken:
            for future in futures.values():
                future.set_exception(RankDiedError("the ranks were abandoned"))
        else:
            self._pending |= set(futures.values())
            for future in futures.values():
                future.add_done_callback(self._pending.discard)
            self._tasks.put((method, dict(zip(ranks, arguments, strict=True)), dict(futures)))
        return list(futures.values())

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            method, arguments, waiting = task
            # Send the tasks of all other ranks before running rank 0's, which may wait for them in a collective.
            messages: dict[int, bytes] = {}  # by the identity of their arguments
            for rank, values in arguments.items():
                if rank != 0:
                    if id(values) not in messages:
                        messages[id(values)] = pickle.dumps((method, values))
                    self._control.send(messages[id(values)], dest=rank)
            if 0 in arguments:
                _settle(waiting.pop(0), self._serve_rank_0(method, arguments[0]))
            while waiting:
                for rank in [rank for rank in waiting if self._control.iprobe(source=rank)]:
                    _settle(waiting.pop(rank), _unpacked(rank, self._control.recv(source=rank)))
                time.sleep(_PAUSE_S)

    def _serve_rank_0(self, method: str, arguments: tuple[Any, ...]) -> Reply:
        """Run rank 0's task. No exception leaves the method, because it would end the thread and hang the caller."""
        try:
            return self._worker.serve(method, arguments)
        except BaseException as error:
            return Reply.of_error(0, error)

    def positions(self) -> list[Position]:
        """Return the positions of the ranks on this host. There is no shared memory across hosts."""
        if len(self._here) == self.size:
            return self._positions.read()
        shared = self._positions.read()
        return [shared[rank] if rank in self._here else Position() for rank in range(self.size)]

    def late_positions(self, before: Sequence[Position]) -> list[Position | None]:
        elsewhere = {} if self._lines is None else self._lines.ask()
        return [elsewhere.get(rank, position) for rank, position in enumerate(super().late_positions(before))]

    def stalled(self) -> RankExit | None:
        """Return a rank of this host that is stopped."""
        stopped = [rank for rank in self._here if is_stopped(self._infos[rank].pid)]
        return (
            RankExit(stopped[0], STOPPED, also=tuple(RankExit(rank, STOPPED) for rank in stopped[1:]))
            if stopped
            else None
        )

    def recovery(self) -> str:
        return "start the program again"

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
        if self._lines is not None:
            self._lines.close()
        if self._is_broken:
            self._abort()
        self._tasks.put(None)
        self._thread.join(_CLOSE_S)
        if self._thread.is_alive():
            _log.warning("meshlab: the engines were closed while ranks were still busy; aborting all processes")
            self._abort()
        while self._unreleased:  # a second call continues where an interrupted one has stopped
            self._control.send(None, dest=self._unreleased.pop())
