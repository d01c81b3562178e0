"""Ranks in ipyparallel engines, for any launcher. The only module that imports ipyparallel."""

from __future__ import annotations

import contextlib
import logging
import signal
import socket
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

from meshlab.base._backends import BACKENDS
from meshlab.base._errors import EngineError
from meshlab.base._hints import MORE_TIME
from meshlab.comm._agreement import Checks
from meshlab.engines._launchers import Launch, launch_of
from meshlab.engines._positions import Position, Positions
from meshlab.engines._rank_plan import (
    EngineFacts,
    check_engines,
    chosen_backend,
    device_indices,
    ordered_engines,
    read_engine_facts,
    warn_of_clocks,
)
from meshlab.engines._rounds import RankDiedError, RankExit, RankInfo, RankSet, Reply, WorkerConfig, exit_of
from meshlab.engines._worker import POSITION, make_unique_id, open_worker, serve

_TICK_S = 0.1  # interval between checks that engines are alive
_MOST_TICKS = 10  # time until the controller has removed all engines of a host
_ANSWER_S = 3.0  # time that engines get to answer about their calls

# An engine counts as registered after two heartbeats. With the default period of 3 s, that wait would be most of the
# start-up time.
_CONTROLLER = ["--HeartMonitor.period=250", "--log-level=WARN"]
LOOPBACK = "127.0.0.1"


def make_cluster(profile: Path, name: str, launcher: str, address: str = LOOPBACK) -> Any:
    """Return an ipyparallel cluster with a launcher such as "mpi" or "local", which keeps its files in one folder."""
    try:
        import ipyparallel
        from traitlets.config import Config
    except ImportError as error:
        # A file such as comm.py next to a script hides the package that ipyparallel needs.
        hidden = sys.modules.get((error.name or "").split(".")[0])
        file = getattr(hidden, "__file__", None)
        hint = f"rename {file}, which is imported instead of the package" if file else "install meshlab again"
        raise EngineError(f"ipyparallel cannot be imported: {error}", hint=hint) from error

    log = logging.getLogger("meshlab.engines.ipyparallel")
    log.setLevel(logging.CRITICAL)
    # parent, config and load_profile: the configuration of the user's IPython must not affect the run.
    return ipyparallel.Cluster(
        parent=None,
        config=Config(),
        load_profile=False,
        profile_dir=str(profile),
        cluster_id=name,
        engines=launcher,
        delay=0,
        controller_args=[
            *_CONTROLLER,
            f"--ip={address}",
            *(["--IPController.enable_curve=True"] if can_encrypt() else []),
        ],
        shutdown_atexit=False,
        send_engines_connection_env=False,  # engines start before the controller has written its addresses
        log=log,
    )


def can_encrypt() -> bool:
    """Return whether the messages between the client and its engines can be encrypted with CurveZMQ."""
    import zmq

    return bool(zmq.has("curve"))  # libzmq may be built without a library for cryptography


def warn_of_clear_text(client: Any) -> None:
    """Warn the caller of `attach` if other hosts can read the messages between the client and its engines."""
    host = str(client._config.get("interface", "")).rpartition("//")[2]
    if client.curve_serverkey or host in ("localhost", "") or host.startswith(("127.", "[::1]")):
        return
    address = "all addresses" if host in ("*", "0.0.0.0") else host
    warnings.warn(
        f"the controller of the engines listens on {address} without encryption, so everybody on the network can read "
        "what the ranks return and print; start it with --IPController.enable_curve=True, for instance by "
        "ipyparallel.Cluster(controller_args=['--IPController.enable_curve=True'])",
        stacklevel=3,
    )


class ProcessSet(RankSet):
    """Base class of the rank sets that run in ipyparallel engines."""

    _late_hint: str = MORE_TIME  # what to do if the ranks do not start in time

    def __init__(self, size: int, backend: str) -> None:
        self.size = size
        self.backend = backend
        self._pending: dict[int, Future[Reply]] = {}
        self._client: Any = None
        self._engine_ids: list[int] = []
        self._infos: tuple[RankInfo, ...] = ()
        self._views: dict[int, Any] = {}
        self._all_engines: Any = None  # the view of all engines that are ranks
        self._positions: Positions | None = None

    @property
    def client(self) -> Any:
        return self._client

    def _open_ranks(self, configs: Mapping[int, WorkerConfig], timeout_s: float) -> tuple[RankInfo, ...]:
        """Make every engine a rank, and determine the rank of each engine."""
        # Send all requests before waiting for any reply, because opening a communicator blocks until every rank joins.
        self._views, self._pending = {}, {}
        self._all_engines = self._new_view(list(configs))
        opened = [(engine, self._view(engine).apply_async(open_worker, config)) for engine, config in configs.items()]
        deadline = time.monotonic() + timeout_s
        by_rank: dict[int, tuple[int, RankInfo]] = {}
        for engine, result in self._as_completed(opened, deadline):
            rank = configs[engine].rank
            name = f"engine {engine}" if rank < 0 else f"rank {rank}"
            info: RankInfo = self._result_of(name, result, deadline, "open its communicator")
            by_rank[info.rank] = (engine, info)
        n = len(configs)
        sizes = {info.world_size for _, info in by_rank.values()}
        if sizes != {n} or len(by_rank) != n:
            raise self._world_error(n, sizes, next(iter(by_rank.values())), deadline)
        self._engine_ids = [by_rank[rank][0] for rank in range(n)]
        self._infos = tuple(by_rank[rank][1] for rank in range(n))
        return self._infos

    def _world_error(self, n: int, sizes: set[int], first: tuple[int, RankInfo], deadline: float) -> EngineError:
        """Return the error about engines that are not one MPI world."""
        engine, info = first
        library = info.capabilities.library
        launch: Launch | None = self._result_of(
            f"engine {engine}", self._view(engine).apply_async(launch_of), deadline, "return its launcher"
        )
        if sizes != {1} or launch is None:
            return EngineError(
                f"found {n} engines, but {self.backend} reports a world size of {', '.join(map(str, sorted(sizes)))}",
                hint="start all engines with one mpiexec, and use the mpiexec of the MPI library that mpi4py loads",
            )
        template = "; in ipyparallel, that line is in SlurmEngineSetLauncher.batch_template"
        return EngineError(
            launch.fault(library), hint=launch.cure(library) + (template if launch.launcher == "srun" else "")
        )

    def _as_completed(self, results: Iterable[tuple[int, Any]], deadline: float) -> Iterator[tuple[int, Any]]:
        """Yield calls to engines when they return, because a rank may wait for another one that has failed."""
        pending = dict(results)
        while pending:
            completed = [engine for engine, result in pending.items() if result.ready()]
            if not completed and time.monotonic() < deadline:
                next(iter(pending.values())).wait(_TICK_S)
                self._check_start()
                continue
            for engine in completed or list(pending):
                yield engine, pending.pop(engine)

    def _result_of(self, name: str, result: Any, deadline: float, action: str) -> Any:
        """Return the result of a call to an engine that is not a rank yet."""
        try:
            while not result.ready():
                if time.monotonic() > deadline:
                    raise EngineError(f"{name} did not {action} in time", hint=self._late_hint, log=self.log_tail())
                result.wait(_TICK_S)
                self._check_start()
            return result.get(timeout=0)
        except EngineError:
            raise
        except Exception as error:
            raise EngineError(f"{name} could not {action}: {_message(error)}", log=self.log_tail()) from error
        finally:
            with contextlib.suppress(RuntimeError):  # the result has not arrived
                self._client.purge_local_results(result)

    def _check_start(self) -> None:
        """Raise an `EngineError` if the engines that start can no longer become ranks."""

    def _view(self, engine: int) -> Any:
        if engine not in self._views:
            self._views[engine] = self._new_view(engine)
        return self._views[engine]

    def _new_view(self, engines: int | list[int]) -> Any:
        view = self._client[engines]
        view.block = False
        view.track = False
        return view

    def submit(
        self, ranks: Sequence[int], method: str, arguments: Sequence[tuple[Any, ...]]
    ) -> Sequence[Future[Reply]]:
        # One call of ipyparallel for all ranks with the same arguments. It has a future for each of them: its broadcast
        # schedulers take twice as long for small messages, because they are written in Python.
        futures = {rank: Future[Reply]() for rank in ranks}
        self._pending |= futures
        batches: dict[int, list[int]] = {}
        for rank, values in zip(ranks, arguments, strict=True):
            batches.setdefault(id(values), []).append(rank)
        by_rank = dict(zip(ranks, arguments, strict=True))
        for batch in batches.values():
            try:
                self._all_engines.targets = [self._engine_ids[rank] for rank in batch]
                children = self._all_engines.apply_async(serve, method, by_rank[batch[0]])._children
            except Exception as error:  # an engine is no longer registered
                for rank in batch:
                    futures[rank].set_exception(RankDiedError(_message(error)))
                continue
            self._forget(len(batch))
            for rank, child in zip(batch, children, strict=True):
                child.add_done_callback(partial(self._settle, rank, futures[rank]))
        return list(futures.values())

    def _forget(self, n: int) -> None:
        """Remove the last messages from the lists that the client and its view keep of all messages."""
        # The other ids of the client may be of calls by the user.
        sent = list(self._all_engines.history)
        self._all_engines.history.clear()
        if self._client.history[-n:] == sent[-n:]:
            del self._client.history[-n:]

    def _settle(self, rank: int, future: Future[Reply], message: Any) -> None:
        """Give the reply in the result of a message to the future of a call."""
        outcome = message.result()
        if not isinstance(outcome, Exception):
            future.set_result(outcome)
        else:
            # `Worker.serve` catches every exception of a task. So this one is either ipyparallel's EngineError for a
            # dead engine, or a reply that could not be pickled, which is an error of the rank. Class names are compared
            # because the error may be wrapped in a RemoteError.
            text = _message(outcome)
            if "died" in text or "EngineError" in text or type(outcome).__name__ == "EngineError":
                future.set_exception(RankDiedError(text))
            else:
                future.set_result(Reply(rank, error=text, trace=str(outcome)))
        with contextlib.suppress(Exception):  # or the client would keep every result
            self._client.purge_local_results(message.msg_id)

    def positions(self) -> list[Position]:
        return [Position()] * self.size if self._positions is None else self._positions.read()

    def late_positions(self, before: Sequence[Position]) -> list[Position | None]:
        positions = super().late_positions(before)
        answers = self._answered_positions() if self.has_torch else {}
        return [answers.get(rank, position) for rank, position in enumerate(positions)]

    def _answered_positions(self) -> dict[int, Position]:
        """Ask the engines through the controller, which reaches them while they are busy, on any host."""
        requests = self._ask_engines(range(self.size), {})
        deadline = time.monotonic() + _ANSWER_S
        answers: dict[int, Position] = {}
        for rank, request in requests.items():
            if request.wait(max(0.0, deadline - time.monotonic())):
                answers[rank] = Position.of_document(request.result()["content"])
        return answers

    def _ask_engines(self, ranks: Iterable[int], content: Mapping[str, Any]) -> dict[int, Any]:
        """Send a request about their positions to the engines of some ranks. Return the futures of the answers."""
        client, requests = self._client, {}
        with contextlib.suppress(Exception):  # the client is closed
            for rank in ranks:
                if (name := client._engines.get(self._engine_ids[rank])) is not None:
                    stream = client._control_stream
                    requests[rank] = client._send(stream, POSITION, content=dict(content), ident=name.encode())
        return requests

    def interrupt(self) -> None:
        with contextlib.suppress(Exception):  # an engine or the client is gone, which the next call reports
            self._client.send_signal(signal.SIGINT, targets=list(self._engine_ids), block=False)

    def _share_positions(self, path: Path) -> str:
        Positions.create_file(path, self.size)
        self._positions = Positions(self.size, path)
        return str(path)


class AttachedSet(ProcessSet):
    """Engines that another process started, which are never killed or shut down."""

    is_attached = True

    def __init__(self, client: Any, backend: str = "auto", checks: Checks = "first") -> None:
        super().__init__(len(client.ids), backend)
        self._client = client
        self._checks: Checks = checks

    def start(self, timeout_s: float) -> tuple[RankInfo, ...]:
        ids = list(self._client.ids)
        if not ids:
            raise EngineError("the client has no engines", hint="start engines, wait for them, and attach again")
        self.size = len(ids)
        self._views = {}  # a restart may have another client
        deadline, before_s = time.monotonic() + timeout_s, time.time()
        asked = [(engine, self._view(engine).apply_async(read_engine_facts)) for engine in ids]
        engines: dict[int, EngineFacts] = {
            engine: self._result_of(f"engine {engine}", result, deadline, "describe itself")
            for engine, result in self._as_completed(asked, deadline)
        }
        after_s = time.time()
        if self.backend == "auto":
            self.backend = chosen_backend(engines)
        check_engines(engines, self.backend)
        warn_of_clocks(engines.values(), before_s, after_s)
        is_here = {facts.host for facts in engines.values()} == {socket.gethostname()}
        with tempfile.TemporaryDirectory(prefix="meshlab-") as folder:
            # Ranks on this host map the file before the folder is removed.
            path = self._share_positions(Path(folder) / "calls") if is_here else None
            configs = self._configs(engines, path, deadline)
            return self._open_ranks(configs, max(1.0, deadline - time.monotonic()))

    def _configs(
        self, engines: Mapping[int, EngineFacts], positions: str | None, deadline: float
    ) -> dict[int, WorkerConfig]:
        if BACKENDS[self.backend].starts == "mpiexec":  # which has given the ranks their numbers
            return dict.fromkeys(engines, WorkerConfig(self.backend, positions, checks=self._checks))
        order = self._order(engines)
        devices = device_indices(engines) if BACKENDS[self.backend].on_gpus else dict.fromkeys(order, -1)
        first = engines[order[0]]
        peers = {address for facts in engines.values() if facts.host != first.host for address in facts.addresses}
        # In a separate call: if the library cannot be loaded, this fails before any rank waits for the others.
        result = self._view(order[0]).apply_async(make_unique_id, self.backend, sorted(peers))
        unique_id = self._result_of("rank 0", result, deadline, "create the unique id of the ranks")
        return {
            engine: WorkerConfig(
                self.backend, positions, self.size, rank, devices[engine], unique_id=unique_id, checks=self._checks
            )
            for rank, engine in enumerate(order)
        }

    def _order(self, engines: Mapping[int, EngineFacts]) -> list[int]:
        """Return the engines in the order of their ranks."""
        return ordered_engines(engines)

    def first_exit(self) -> RankExit | None:
        """Return the ranks whose engines the controller no longer lists."""
        # It removes the engines of a host one after the other.
        gone = self._gone_ranks()
        for _ in range(_MOST_TICKS if gone else 0):
            time.sleep(_TICK_S)
            earlier, gone = gone, self._gone_ranks()
            if gone == earlier and len(gone) > 1:
                break
        return exit_of(gone, self._infos, "disconnected") if gone else None

    def _gone_ranks(self) -> list[int]:
        listed = set(self._client.ids)
        return [rank for rank, engine in enumerate(self._engine_ids) if engine not in listed]

    def recovery(self) -> str:
        if not self.is_attached:
            return super().recovery()
        restart = "restart the engines where they were started"
        if self._gone_ranks() or self._client._closed:
            return f"{restart}, and call attach() again"
        return f"call attach() again, which waits for the same processes; if that fails, {restart}"

    def late_positions(self, before: Sequence[Position]) -> list[Position | None]:
        answers = self._answered_positions()
        return [answers.get(rank) for rank in range(self.size)]

    def check(self) -> RankExit | None:
        """Return the client if it was closed. The controller reports engines that are gone."""
        return client_exit(self._client)

    def kill(self, *, reuse: bool = True) -> None:
        """Make ranks that wait for others give up, so that another `attach` can use their processes."""
        # Those of MPI cannot.
        busy = [rank for rank, future in self._pending.items() if not future.done()]
        if BACKENDS[self.backend].survives:
            self._ask_engines(busy, {"abort": True})
        elif busy and BACKENDS[self.backend].starts == "separately":
            engines = [self._engine_ids[rank] for rank in busy]
            with contextlib.suppress(Exception):  # an engine or the client is gone
                self._client.send_signal(signal.SIGINT, targets=engines, block=False)

    def close(self) -> None:
        """Release the engines, which keep running."""
        self._positions = None


def ignore_late_replies(client: Any) -> None:
    """Discard the replies of engines after the client has reported that they are gone. ipyparallel prints them."""

    def checked(handler: Callable[[Any], None]) -> Callable[[Any], None]:
        def handle(message: Any) -> None:
            ids = message["parent_header"]["msg_id"], message["metadata"].get("original_msg_id")
            if not client.outstanding.isdisjoint(ids):
                handler(message)

        return handle

    handlers = client._queue_handlers
    handlers.update({name: checked(handlers[name]) for name in ("apply_reply", "execute_reply")})


def client_exit(client: Any) -> RankExit | None:
    """Return the end of a client that was closed, without which no rank can be reached. None if it is open."""
    return RankExit(None, "closed", "the client of the engines") if client._closed else None


def _message(error: BaseException) -> str:
    text = getattr(error, "evalue", None) or str(error)
    name = getattr(error, "ename", None) or type(error).__name__
    return f"{name}: {text}"
