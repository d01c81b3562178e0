"""Ranks as ipyparallel engines, whoever started them. The only module that imports ipyparallel."""

from __future__ import annotations

import contextlib
import logging
import signal
import socket
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np

from meshlab.engines.rounds import RankDiedError, RankExit, RankInfo, Reply, WorkerConfig
from meshlab.engines.worker import open_worker, serve
from meshlab.errors import EngineError

__all__ = ["AttachedSet", "ProcessSet", "make_cluster"]

# Heartbeats every 250 ms: engines count as registered after two of them, which is most of the start-up time.
_CONTROLLER = ["--HeartMonitor.period=250", "--ip=127.0.0.1", "--log-level=WARN"]


def make_cluster(profile: Path, name: str, launcher: str) -> Any:
    """An ipyparallel cluster that keeps all its files in one folder and says nothing.

    Parameters
    ----------
    profile : pathlib.Path
        Its profile folder.
    name : str
        Its id.
    launcher : {"mpi", "local"}
        How engines are started: all by one mpiexec, or one by one.
    """
    import ipyparallel
    from traitlets.config import Config

    log = logging.getLogger("meshlab.engines.ipyparallel")
    log.setLevel(logging.CRITICAL)
    return ipyparallel.Cluster(
        parent=None,
        config=Config(),
        load_profile=False,
        profile_dir=str(profile),
        cluster_id=name,
        engines=launcher,
        delay=0,
        controller_args=_CONTROLLER,
        shutdown_atexit=False,
        log=log,
    )


class ProcessSet:
    """What engines in processes have in common, whoever started them."""

    def __init__(self, size: int, backend: str) -> None:
        self.size = size
        self.backend = backend
        self._open: dict[int, Future[Reply]] = {}
        self._client: Any = None
        self._engine_ids: list[int] = []
        self._facts: tuple[RankInfo, ...] = ()
        self._views: dict[int, Any] = {}
        self._counts: np.ndarray[Any, np.dtype[np.int64]] | None = None

    @property
    def client(self) -> Any:
        """The ipyparallel client; plain, for ``%%px`` and everything else."""
        return self._client

    def _open_ranks(self, openings: Mapping[int, WorkerConfig], timeout_s: float) -> tuple[RankInfo, ...]:
        """Let every engine become a rank, and learn which engine is which rank."""
        self._views, self._open = {}, {}
        opened = [
            (number, self._view(number).apply_async(open_worker, opening)) for number, opening in openings.items()
        ]
        deadline = time.monotonic() + timeout_s
        by_rank: dict[int, tuple[int, RankInfo]] = {}
        for number, result in opened:
            facts: RankInfo = self._answer(number, result, deadline, "open its communicator")
            by_rank[facts.rank] = (number, facts)
        n = len(openings)
        sizes = {facts.world_size for _, facts in by_rank.values()}
        if sizes != {n} or len(by_rank) != n:
            raise EngineError(
                f"{n} engines were found, but their {self.backend} says {sorted(sizes)} ranks: they were not started "
                "together by one mpiexec, or by the mpiexec of another MPI library than mpi4py loads"
            )
        self._engine_ids = [by_rank[rank][0] for rank in range(n)]
        self._facts = tuple(by_rank[rank][1] for rank in range(n))
        return self._facts

    def _answer(self, number: int, result: Any, deadline: float, what: str) -> Any:
        """What an engine answers while it becomes a rank."""
        try:
            return result.get(timeout=max(0.1, deadline - time.monotonic()))
        except TimeoutError as error:
            raise EngineError(f"engine {number} did not {what} in time", log=self.log_tail()) from error
        except Exception as error:
            raise EngineError(f"engine {number} could not {what}: {_message(error)}", log=self.log_tail()) from error
        finally:
            with contextlib.suppress(RuntimeError):  # it has not come yet
                self._client.purge_local_results(result)

    def _view(self, number: int) -> Any:
        if number not in self._views:
            view = self._client[number]
            view.block = False
            view.track = False
            self._views[number] = view
        return self._views[number]

    def submit(self, rank: int, method: str, arguments: tuple[Any, ...]) -> Future[Reply]:
        """Run a worker's method on one rank."""
        future: Future[Reply] = Future()
        try:
            result = self._view(self._engine_ids[rank]).apply_async(serve, method, arguments)
        except Exception as error:  # the engine is not registered any more
            future.set_exception(RankDiedError(_message(error)))
            return future
        self._open[rank] = future
        result.add_done_callback(lambda done: self._settle(rank, done, future))
        return future

    def _settle(self, rank: int, result: Any, future: Future[Reply]) -> None:
        try:
            reply: Reply = result.get(timeout=0)
        except Exception as error:
            message = _message(error)
            if "died" in message or "EngineError" in message or type(error).__name__ == "EngineError":
                future.set_exception(RankDiedError(message))
            else:
                future.set_result(Reply(rank, error=message, trace=str(error)))
        else:
            future.set_result(reply)
        with contextlib.suppress(Exception):
            self._client.purge_local_results(result)

    def calls(self) -> list[int]:
        """How many collectives each rank has entered."""
        return [-1] * self.size if self._counts is None else [int(count) for count in self._counts[: self.size]]

    def interrupt(self) -> None:
        """Send SIGINT to every rank."""
        self._client.send_signal(signal.SIGINT, targets=list(self._engine_ids), block=False)

    def log_tail(self) -> str:
        """Not known here."""
        return ""

    def _share_counts(self, path: Path) -> str:
        path.write_bytes(bytes(8 * (self.size + 1)))
        self._counts = np.memmap(path, dtype=np.int64, mode="r+", shape=(self.size + 1,))
        return str(path)


class AttachedSet(ProcessSet):
    """Engines that somebody else started, reached through their client; implements `RankSet`.

    They are never killed and never shut down from here.

    Parameters
    ----------
    client : ipyparallel.Client
        Connected to engines that one MPI launcher started.
    """

    is_attached = True

    def __init__(self, client: Any) -> None:
        super().__init__(len(client.ids), "mpi")
        self._client = client

    def start(self, timeout_s: float) -> tuple[RankInfo, ...]:
        """Let the engines become ranks."""
        ids = list(self._client.ids)
        if not ids:
            raise EngineError("the client has no engines; start some, wait for them, and attach again")
        self.size = len(ids)
        with tempfile.TemporaryDirectory(prefix="meshlab-") as folder:
            # Ranks on this host map the file before it goes; others have no such file and do not count.
            counts = self._share_counts(Path(folder) / "calls")
            facts = self._open_ranks(dict.fromkeys(ids, WorkerConfig("mpi", counts)), timeout_s)
        if {fact.host for fact in facts} != {socket.gethostname()}:
            self._counts = None
        return facts

    def first_death(self) -> RankExit | None:
        """The first rank that the controller does not list any more."""
        gone = [rank for rank, number in enumerate(self._engine_ids) if number not in self._client.ids]
        return RankExit(gone[0] if len(gone) == 1 else None, "gone") if gone else None

    def kill(self) -> None:
        """Not ours to kill."""

    def close(self) -> None:
        """Let go of the engines; they stay."""
        self._counts = None


def _message(error: BaseException) -> str:
    text = getattr(error, "evalue", None) or str(error)
    name = getattr(error, "ename", None) or type(error).__name__
    return f"{name}: {text}"
