"""The code that runs on an engine: a `Worker` per rank holds communicators and runs the functions of the client."""

from __future__ import annotations

import gc
import os
import pickle
import platform
import signal
import socket
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshlab.base._backends import BACKENDS, PROCESS_BACKENDS, choice_text
from meshlab.base._errors import EngineError
from meshlab.base._version import __version__
from meshlab.comm._agreement import Checks, checksum, client_abort
from meshlab.comm._backend import Backend, Rendezvous
from meshlab.comm._communicator import Communicator, TorchSide
from meshlab.comm._compositions import with_compositions
from meshlab.comm._worlds import beside_module, load_torch, process_module, torch_world
from meshlab.engines._call_board import CallBoard
from meshlab.engines._positions import CallSummary, Position, Positions
from meshlab.engines._rank_hosts import network_choice, network_interfaces
from meshlab.engines._reaper import RUN, shared_memory_files
from meshlab.engines._rounds import RankInfo, Reply, WorkerConfig
from meshlab.mesh._groups import Groups
from meshlab.mesh._mesh import DeviceMesh

if TYPE_CHECKING:
    from meshlab.comm.backends._torch_world import TorchWorld
    from meshlab.engines._sampler import Sampler


POSITION = "meshlab_position"
"""The type of the message with which a client asks an engine for the position of its rank."""

TORCH_MESH = "torch_mesh"
"""The name of torch's device mesh in cells with `%%px`, as in a communicator."""


class Worker:
    """A rank: its communicators by name, and the methods that the client can call."""

    def __init__(
        self,
        backend: Backend,
        positions: Positions,
        checks: Checks = "first",
        board: CallBoard | None = None,
        store_file: str | None = None,
    ) -> None:
        self._backend = backend
        self._worlds = {backend.capabilities().backend: backend}  # that of the engines, and those beside it
        # The start of the names of files in which the ranks find each other in a second backend. Without it, they find
        # each other over the first one.
        self._store_file = store_file
        self._should_abort = positions.should_abort
        self.rank = backend.rank
        self._checks: Checks = checks
        self._positions = positions.writer(self.rank, board)
        self._at_start = self._positions.position()
        self._monitor = self._positions.monitor("world", "splits")
        self._n_splits = 0
        self._communicators: dict[str, Communicator] = {}
        self._torch: TorchWorld | None = None
        self._sampler: Sampler | None = None

    @property
    def backend(self) -> str:
        """The name of the backend of its world."""
        return self._backend.capabilities().backend

    def serve(self, method: str, arguments: tuple[Any, ...]) -> Reply:
        """Call a method and return its value, or the exception that it raised."""
        self._at_start = self._positions.position()
        try:
            value = getattr(self, method)(*arguments)
            return Reply(self.rank, value, calls=self._summaries() if method == "run" else {})
        except KeyboardInterrupt:
            return Reply(self.rank, error="interrupted", is_interrupt=True)
        except BaseException as error:  # includes SystemExit: a function that calls sys.exit() must not end its rank
            return Reply.of_error(self.rank, error, _trace(error))

    def info(self) -> RankInfo:
        """Return the description of this rank."""
        return RankInfo(
            rank=self.rank,
            world_size=self._backend.size,
            host=socket.gethostname(),
            pid=os.getpid(),
            parent_pid=os.getppid(),
            python=platform.python_version(),
            meshlab=__version__,
            capabilities=with_compositions(self._backend.capabilities()),
            segments=tuple(shared_memory_files(os.getpid())),
            interfaces=network_interfaces(),
            network=network_choice(self._backend.capabilities().backend),
        )

    def position(self) -> Position:
        """Return the last call that this rank has entered in its current task. Any thread may call it."""
        position = self._positions.position().since(self._at_start)
        call = None if self._torch is None or position.is_inside else self._torch.position()
        return position if call is None else replace(position, **call._asdict())

    def load_beside(self, backend: str) -> None:
        """Import the library of another backend. A rank that cannot do it does not let the others wait."""
        beside_module(backend).load()

    def open_beside(self, backend: str) -> None:
        """Open the world of another backend next to that of the engines, unless it is open. Every rank must call it."""
        if backend not in self._worlds:
            self._worlds[backend] = beside_module(backend).open_world(self._rendezvous(backend))

    def _rendezvous(self, name: str) -> Rendezvous:
        return Rendezvous(
            size=self._backend.size,
            rank=self.rank,
            store_file=None if self._store_file is None else f"{self._store_file}-{name}",
            beside=self._backend,
            should_abort=self._should_abort,
            while_waiting=self._while_waiting,
        )

    def _while_waiting(self) -> None:
        """Do what the other backend would do if the rank waited in it."""
        if self._should_abort():
            raise client_abort()
        progress = getattr(self._backend, "progress", None)
        if progress is not None:
            progress()

    def load_torch(self) -> str:
        """Import torch, and return its version."""
        return load_torch(on_gpu=self._backend.device is not None)

    def open_torch(self, prefix: str) -> None:
        """Open torch's default process group. Every rank must call it with the same new prefix."""
        if self._torch is None:
            self._torch = torch_world(self._rendezvous("torch"), self._backend)
        self._torch.open(prefix)

    def add_torch_mesh(self, mesh: DeviceMesh) -> dict[str, tuple[int, ...]]:
        """Open torch's groups of a mesh. Return the members of this rank's group of each axis."""
        if self._torch is None:
            raise EngineError(f"rank {self.rank} has not opened torch", rank=self.rank)
        members = self._torch.add(mesh)
        self.show_torch_mesh(mesh.fingerprint)
        return members

    def show_torch_mesh(self, fingerprint: str) -> None:
        """Make torch's mesh a variable of cells with `%%px`."""
        if self._torch is not None:
            _set_in_cells(TORCH_MESH, self._torch.meshes.get(fingerprint))

    def drop_torch_mesh(self, fingerprint: str) -> None:
        """Close torch's groups of a mesh. Every rank must call it."""
        if self._torch is not None:
            self._torch.remove(fingerprint)

    def has_clean_torch(self) -> bool:
        """Return whether the last task has issued no call of torch on this rank."""
        return self._torch is not None and self._torch.is_clean()

    def close_torch(self) -> None:
        """Close all groups of torch. Every rank must call it."""
        if self._torch is not None:
            self._torch.close()
        _set_in_cells(TORCH_MESH, None)

    def split(self, name: str, groups: Groups, separate: bool = False, beside: str | None = None) -> None:
        """Create the communicators of the set of groups `name`. Collective over the world."""
        world = self._backend if beside is None else self._worlds.get(beside)
        if world is None:
            raise EngineError(f"rank {self.rank} has not opened {beside}", rank=self.rank)
        number = int(groups.color[self.rank])
        color = None if number < 0 else number  # of the group of this rank, if it is in one
        code = self._monitor.code("split")
        self._monitor.enter(code, checksum(()))
        try:
            backend = world.split(color, int(groups.key[self.rank]), separate=separate)
        finally:
            self._monitor.leave(code)
        # All ranks take part in all splits, so the number identifies this one on every rank.
        self._n_splits += 1
        if backend is not None:
            group = groups[number]
            monitor = self._positions.monitor(group.name, f"{self._n_splits} {color}")
            comparer = None if self._checks == "off" else monitor.comparer(group.ranks)
            self._communicators[name] = Communicator(
                backend, name=group.name, ranks=group.ranks, monitor=monitor, checks=self._checks, comparer=comparer
            )

    def drop(self, names: Sequence[str]) -> None:
        """Close communicators. Every rank of the world must call it."""
        for name in names:
            communicator = self._communicators.pop(name, None)
            if communicator is not None:
                communicator.close()

    def abort(self) -> None:
        """Abort all communicators without waiting for other ranks."""
        # Aborting one NCCL communicator stops all communicators of this rank, but each one keeps its GPU memory until
        # it is aborted itself.
        for communicator in self._communicators.values():
            communicator.abort()
        self._communicators = {}
        if self._torch is not None:
            self._torch.abort()
        for backend in reversed(self._worlds.values()):
            abort = getattr(backend, "abort", None)
            if abort is not None:
                abort()

    def run(
        self,
        names: Sequence[str],
        task: bytes | tuple[Callable[..., Any], tuple[Any, ...]],
        torch_mesh: str | None = None,
    ) -> Any:
        """Call a function with the communicators of sets of groups and its other arguments, which may be pickled."""
        side = None
        if self._torch is not None and self._torch.is_set_up:
            self._torch.start_task()
            side = TorchSide(self._torch.meshes.get(torch_mesh or ""), self._torch.local)
        for name in names:
            if name not in self._communicators:
                raise EngineError(f"rank {self.rank} has no communicator for {name!r}", rank=self.rank)
            self._communicators[name]._torch = side
        function, arguments = pickle.loads(task) if isinstance(task, bytes) else task
        self._positions.start_task()
        return function(*(self._communicators[name] for name in names), *arguments)

    def _summaries(self) -> dict[int, CallSummary]:
        if self._checks == "off":
            return {}
        return {key: history.summary() for key, history in self._positions.histories.items()}

    def recent_calls(self, key: int) -> tuple[int, list[str]]:
        """Return the signatures of the last collectives on a communicator, and the number of calls before them."""
        return self._positions.histories[key].tail()

    def read_load(self, is_wanted: bool) -> dict[str, Any] | None:
        """Return the latest load of this host, and start to sample it. Stop if it is no longer requested."""
        if self._sampler is None and is_wanted:
            from meshlab.engines._sampler import Sampler

            self._sampler = Sampler()
        if self._sampler is None:
            return None
        if is_wanted:
            return self._sampler.latest()
        self._sampler.close()
        self._sampler = None
        return None

    def status(self) -> dict[str, Any]:
        """Return the collectives entered, the number of communicators, and the memory of the process in bytes."""
        import psutil

        return {
            "calls": self._positions.calls,
            "communicators": len(self._communicators),
            "memory_bytes": psutil.Process().memory_info().rss,
        }


def _set_in_cells(name: str, value: Any) -> None:
    """Set a variable for `%%px`, or delete it if the value is None."""
    from IPython import get_ipython

    shell = get_ipython()
    if shell is not None and value is not None:
        shell.user_ns[name] = value
    elif shell is not None:
        shell.user_ns.pop(name, None)


def _trace(error: BaseException) -> str:
    """Return the traceback as text, starting at the user's function."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace))


# The worker of this process. ipyparallel imports the functions below by name on the engine, and their state must
# survive from one call to the next.
_worker: Worker | None = None
_positions: Positions | None = None  # those of the worker, or of one that is being opened


def load_library(backend: str) -> None:
    """Import the library of a backend, which takes longer than all else that a rank imports."""
    process_module(backend).load()


def launched_rank() -> int:
    """Return the rank that the shell of this process has set."""
    return int(os.environ["MESHLAB_RANK"])


def make_unique_id(backend: str, peers: Sequence[str] | None = None) -> bytes:
    """Return a new unique id of a world. Rank 0 creates it for all, whose other hosts have the addresses `peers`."""
    module = process_module(backend)
    return module.unique_id() if peers is None else module.unique_id(peers)


def open_worker(config: WorkerConfig) -> RankInfo:
    """Open the backend and make this process a rank."""
    global _worker
    if config.backend not in PROCESS_BACKENDS:
        allowed = choice_text(PROCESS_BACKENDS)
        raise EngineError(f"backend must be {allowed} for engines in processes, not {config.backend!r}")
    _answer_about_position()
    # An engine that survived a fault, or was attached before, holds communicators of a world that is gone. NCCL can
    # abort them, and Gloo can leave them. MPI_COMM_WORLD is fixed for the life of a process, so an MPI rank that is
    # opened again is the same rank.
    is_same = BACKENDS[config.backend].starts == "mpiexec" and _worker is not None and _worker.backend == config.backend
    if _worker is not None and not is_same:
        _worker.abort()
        _worker = None
        # Communicators are in circles of references, with the arrays that were stored in them. Before the new ones
        # allocate GPU memory, that of the old ones has to be free.
        gc.collect()
    if _worker is None:
        _worker = _create_worker(config)
    if RUN in os.environ and threading.current_thread() is threading.main_thread():
        # ipyparallel's handler only stops an event loop, which a rank inside MPI or NCCL does not reach.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    return _worker.info()


def _answer_about_position() -> None:
    """Let the controller ask for the position of this rank while it is busy, if this process is an engine."""
    # The kernel of an engine has a thread for such requests. Ranks of other hosts share no memory with their client.
    from IPython import get_ipython

    kernel = getattr(get_ipython(), "kernel", None)
    if kernel is not None:
        kernel.control_handlers[POSITION] = partial(_send_position, kernel.session)


def _send_position(session: Any, stream: Any, sender: Any, request: Any) -> None:
    if request["content"].get("abort") and _positions is not None:
        _positions.abort()
    content = {} if _worker is None else _worker.position().to_document()
    session.send(stream, f"{POSITION}_reply", content, parent=request, ident=sender)


def _create_worker(config: WorkerConfig) -> Worker:
    global _positions
    # A rank that is blocked in its library cannot serve a request to abort, so it polls the flag in shared memory. Only
    # where the launcher determines the size is the memory mapped after the world is open.
    positions = _positions = _shared_positions(config.positions_file, config.size) if config.size > 0 else None
    rendezvous = Rendezvous(
        size=config.size,
        rank=config.rank,
        device=config.device,
        unique_id=config.unique_id,
        store_file=config.store_file,
        should_abort=None if positions is None else positions.should_abort,
    )
    backend = process_module(config.backend).open_world(rendezvous)
    positions = positions or _shared_positions(config.positions_file, backend.size)
    return Worker(backend, positions, config.checks, _open_board(config, backend, positions), config.store_file)


def _shared_positions(path: str | None, size: int) -> Positions:
    # On hosts other than the client's, the file does not exist, and the positions have no reader.
    return Positions(size, path if path is not None and Path(path).exists() else None)


def _open_board(config: WorkerConfig, backend: Backend, positions: Positions) -> CallBoard | None:
    if config.board_file is None:
        return None
    progress = getattr(backend, "progress", None)
    return CallBoard(backend.size, config.board_file, backend.rank, positions.should_abort, progress)


def serve(method: str, arguments: tuple[Any, ...]) -> Reply:
    """Call a method of this process's worker."""
    if _worker is None:
        return Reply(-1, error="EngineError: this engine was never opened as a rank")
    return _worker.serve(method, arguments)
