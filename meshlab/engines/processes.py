"""Ranks as ipyparallel engines: one process per rank. The only module that imports ipyparallel."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
import signal
import socket
import sys
import tempfile
import time
import weakref
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np

from meshlab.engines.leash import Leash, end_processes, marked_processes, remove_files
from meshlab.engines.rankset import Death, RankDiedError, RankFacts, Reply
from meshlab.engines.worker import open_worker, serve
from meshlab.errors import EngineError

__all__ = ["AttachedSet", "LaunchedSet", "find_mpiexec"]

_RUN, _SET = "MESHLAB_RUN", "MESHLAB_SET"
# Heartbeats every 250 ms: engines count as registered after two of them, which is most of the start-up time.
_CONTROLLER = ["--HeartMonitor.period=250", "--ip=127.0.0.1", "--log-level=WARN"]
_NOISE = re.compile(r"\[(?:IPEngine|KernelNanny|IPController)[^]]*\]|^\s*$|mpi_(?:rank|size) =|from mpi4py import MPI")
# Every rank runs under a shell that writes down how it ended, before mpiexec learns of it and ends the others.
_RANK_SHELL = '"$@"; code=$?; echo "${PMI_RANK:-$OMPI_COMM_WORLD_RANK} $code" >>"$MESHLAB_DEATHS"; exit $code'
# The output goes to a file of ours, because ipyparallel removes its own when the process ends.
_LOGGING_SHELL = 'exec "$0" "$@" >>"$MESHLAB_LOG" 2>&1'


def find_mpiexec() -> str:
    """The `mpiexec` that belongs to the MPI library of this environment.

    It is looked for beside the running Python first: an `mpiexec` of another MPI starts ranks that do not know each
    other. The environment variable MESHLAB_MPIEXEC names another one.

    Raises
    ------
    EngineError
        If there is none.
    """
    chosen = os.environ.get("MESHLAB_MPIEXEC")
    if chosen:
        return chosen
    beside = Path(sys.prefix) / "bin" / "mpiexec"
    if beside.exists():
        return str(beside)
    import shutil

    found = shutil.which("mpiexec")
    if found is None:
        raise EngineError(
            "no mpiexec was found; install one with: pip install mpich - or use launch(n, backend='threads')"
        )
    return found


class _ProcessSet:
    """What engines in processes have in common, whoever started them."""

    backend = "mpi"

    def __init__(self, size: int) -> None:
        self.size = size
        self._client: Any = None
        self._engine_ids: list[int] = []
        self._facts: tuple[RankFacts, ...] = ()
        self._views: dict[int, Any] = {}
        self._counts: np.ndarray[Any, np.dtype[np.int64]] | None = None

    @property
    def client(self) -> Any:
        """The ipyparallel client; plain, for ``%%px`` and everything else."""
        return self._client

    def _open_ranks(self, ids: list[int], counts_file: str | None, timeout_s: float) -> tuple[RankFacts, ...]:
        """Let every engine become a rank, and learn which engine is which rank."""
        self._views = {}
        opened = [(number, self._view(number).apply_async(open_worker, self.backend, counts_file)) for number in ids]
        deadline = time.monotonic() + timeout_s
        by_rank: dict[int, tuple[int, RankFacts]] = {}
        for number, result in opened:
            try:
                facts: RankFacts = result.get(timeout=max(0.1, deadline - time.monotonic()))
            except TimeoutError as error:
                raise EngineError(
                    f"engine {number} did not open its communicator within {timeout_s:.0f} s", log=self.log_tail()
                ) from error
            except Exception as error:
                raise EngineError(f"engine {number} could not become a rank: {_message(error)}") from error
            by_rank[facts.rank] = (number, facts)
        sizes = {facts.world_size for _, facts in by_rank.values()}
        if sizes != {len(ids)} or len(by_rank) != len(ids):
            raise EngineError(
                f"{len(ids)} engines were found, but their MPI says {sorted(sizes)} ranks: they were not started "
                "together by one mpiexec, or by the mpiexec of another MPI library than mpi4py loads"
            )
        self._engine_ids = [by_rank[rank][0] for rank in range(len(ids))]
        self._facts = tuple(by_rank[rank][1] for rank in range(len(ids)))
        self._client.purge_local_results([result for _, result in opened])
        return self._facts

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
        return [-1] * self.size if self._counts is None else [int(count) for count in self._counts]

    def interrupt(self) -> None:
        """Send SIGINT to every rank."""
        self._client.send_signal(signal.SIGINT, targets=list(self._engine_ids), block=False)

    def log_tail(self) -> str:
        """Not known here."""
        return ""

    def _share_counts(self, path: Path) -> str:
        path.write_bytes(bytes(8 * self.size))
        self._counts = np.memmap(path, dtype=np.int64, mode="r", shape=(self.size,))
        return str(path)


class LaunchedSet(_ProcessSet):
    """Engines that this process starts on this host, with a controller of their own; implements `RankSet`.

    Profile, connection files (readable by the user alone) and logs lie in a private folder of the run. The controller
    listens on the loopback device, and every message is signed with a key.

    Parameters
    ----------
    size : int
        How many ranks.
    env : mapping, optional
        Environment variables for the engines.
    """

    is_attached = False

    def __init__(self, size: int, *, env: Mapping[str, str] | None = None) -> None:
        super().__init__(size)
        self._env = dict(env or {})
        self._id = secrets.token_hex(8)
        self._set_count = 0
        self._cluster: Any = None
        self._launcher: Any = None
        self._mpiexec = find_mpiexec()
        self._folder = Path(tempfile.mkdtemp(prefix="meshlab-"))
        self._leash = Leash(_RUN, self._id, self._folder)
        self._finalizer = weakref.finalize(self, self._leash.release)

    def start(self, timeout_s: float) -> tuple[RankFacts, ...]:
        """Start controller (once) and engines, and wait until every rank is ready."""
        deadline = time.monotonic() + timeout_s
        try:
            if self._cluster is None:
                self._start_controller()
            return self._start_engines(deadline)
        except BaseException:
            if not self._facts:
                self.close()
            raise

    def _start_controller(self) -> None:
        import ipyparallel
        from traitlets.config import Config

        profile = self._folder / "profile"
        profile.mkdir(mode=0o700)
        log = logging.getLogger("meshlab.engines.ipyparallel")
        log.setLevel(logging.CRITICAL)
        self._cluster = ipyparallel.Cluster(
            parent=None,
            config=Config(),
            load_profile=False,
            profile_dir=str(profile),
            cluster_id=self._id,
            engines="mpi",
            delay=0,
            controller_args=_CONTROLLER,
            shutdown_atexit=False,
            log=log,
        )
        self._cluster.start_controller_sync(environment=self._environment())

    def _environment(self) -> dict[str, str]:
        return {_RUN: self._id, "IPYTHONDIR": str(self._folder / "ipython"), "PYTHONUNBUFFERED": "1"}

    def _start_engines(self, deadline: float) -> tuple[RankFacts, ...]:
        self._set_count += 1
        counts = self._share_counts(self._folder / f"calls-{self._set_count}")
        name = self._cluster.start_engines_sync(
            self.size,
            engine_set_id=f"set-{self._set_count}",
            mpi_cmd=["/bin/sh", "-c", _LOGGING_SHELL, self._mpiexec],
            engine_cmd=["/bin/sh", "-c", _RANK_SHELL, "meshlab-rank", sys.executable, "-m", "ipyparallel.engine"],
            engine_args=["--log-level=WARN"],
            environment={
                **_import_path(),
                **self._env,
                **self._environment(),
                _SET: self._set_name,
                "MESHLAB_DEATHS": str(self._deaths_file),
                "MESHLAB_LOG": str(self._log_file),
            },
        )
        self._launcher = self._cluster.engines[name]
        if self._client is None:
            self._client = self._cluster.connect_client_sync(ipython_dir=str(self._folder / "ipython"))
        ids = self._wait_for_engines(deadline)
        facts = self._open_ranks(ids, counts, max(1.0, deadline - time.monotonic()))
        self._leash.watch_files(path for rank in facts for path in rank.segments)
        return facts

    @property
    def _set_name(self) -> str:
        return f"{self._id}.{self._set_count}"

    def _wait_for_engines(self, deadline: float) -> list[int]:
        while len(self._client.ids) < self.size:
            if self._launcher.process is not None and not _is_running(self._launcher.process):
                raise EngineError(f"the {self.size} engines ended while they started", log=self.log_tail())
            if time.monotonic() > deadline:
                raise EngineError(
                    f"only {len(self._client.ids)} of {self.size} engines were ready in time; give launch() a larger "
                    "timeout_s, or fewer ranks",
                    log=self.log_tail(),
                )
            time.sleep(0.01)
        return list(self._client.ids)

    @property
    def _deaths_file(self) -> Path:
        return self._folder / f"deaths-{self._set_count}"

    def first_death(self) -> Death | None:
        """Who ended first, and how."""
        deadline = time.monotonic() + 0.5  # the watcher of an engine can be faster than the shell around it
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError, IndexError, ValueError):
                rank, code = (int(word) for word in self._deaths_file.read_text().splitlines()[0].split())
                return Death(rank, f"killed by signal {code - 128}" if code > 128 else f"ended with exit code {code}")
            time.sleep(0.01)
        return None

    def interrupt(self) -> None:
        """Send SIGINT to every rank, by process."""
        for facts in self._facts:
            with contextlib.suppress(ProcessLookupError):
                os.kill(facts.pid, signal.SIGINT)

    def kill(self) -> None:
        """Kill the ranks by process; what started them, and what watches them, follows."""
        for facts in self._facts:
            with contextlib.suppress(ProcessLookupError):
                os.kill(facts.pid, signal.SIGKILL)
        # The nannies tell the controller that the engines are gone, and end then; that keeps the client's list right.
        deadline = time.monotonic() + 1.0
        while time.monotonic() < deadline and (self._client.ids or marked_processes(_SET, self._set_name)):
            time.sleep(0.02)
        segments = end_processes(_SET, self._set_name)
        remove_files({*segments, *(path for facts in self._facts for path in facts.segments)})
        if self._cluster is not None:
            self._cluster.engines.clear()

    @property
    def _log_file(self) -> Path:
        return self._folder / f"log-{self._set_count}"

    def log_tail(self) -> str:
        """The last lines that the ranks or mpiexec printed, without ipyparallel's own."""
        try:
            text = self._log_file.read_text(errors="replace")
        except OSError:
            return ""
        lines = [line for line in text.splitlines() if not _NOISE.search(line)]
        return "\n".join(lines[-12:])

    def close(self) -> None:
        """Ask engines and controller to end, wait a second, and let the leash do the rest."""
        if not self._finalizer.alive:
            return
        if self._client is not None:
            with contextlib.suppress(Exception):
                self._client.shutdown(hub=True, block=False)
            deadline = time.monotonic() + 1.0
            while time.monotonic() < deadline and marked_processes(_SET, self._set_name):
                time.sleep(0.02)
        self._finalizer()
        if self._client is not None:
            with contextlib.suppress(Exception):
                self._client.close(linger=0)
        self._counts = None


class AttachedSet(_ProcessSet):
    """Engines that somebody else started, reached through their client; implements `RankSet`.

    They are never killed and never shut down from here.

    Parameters
    ----------
    client : ipyparallel.Client
        Connected to engines that one MPI launcher started.
    """

    is_attached = True

    def __init__(self, client: Any) -> None:
        super().__init__(len(client.ids))
        self._client = client

    def start(self, timeout_s: float) -> tuple[RankFacts, ...]:
        """Let the engines become ranks."""
        ids = list(self._client.ids)
        if not ids:
            raise EngineError("the client has no engines; start some, wait for them, and attach again")
        self.size = len(ids)
        with tempfile.TemporaryDirectory(prefix="meshlab-") as folder:
            # Ranks on this host map the file before it goes; others have no such file and do not count.
            counts = self._share_counts(Path(folder) / "calls")
            facts = self._open_ranks(ids, counts, timeout_s)
        if {fact.host for fact in facts} != {socket.gethostname()}:
            self._counts = None
        return facts

    def first_death(self) -> Death | None:
        """The first rank that the controller does not list any more."""
        gone = [rank for rank, number in enumerate(self._engine_ids) if number not in self._client.ids]
        return Death(gone[0] if len(gone) == 1 else None, "gone") if gone else None

    def kill(self) -> None:
        """Not ours to kill."""

    def close(self) -> None:
        """Let go of the engines; they stay."""
        self._counts = None


def _import_path() -> dict[str, str]:
    """Let engines import the very meshlab that runs here, also when it is not installed."""
    import site

    home = str(Path(__file__).parents[2])
    if home in [*site.getsitepackages(), site.getusersitepackages()]:
        return {}
    known = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": f"{home}{os.pathsep}{known}" if known else home}


def _is_running(process: Any) -> bool:
    import psutil

    try:
        return bool(process.is_running()) and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _message(error: BaseException) -> str:
    text = getattr(error, "evalue", None) or str(error)
    name = getattr(error, "ename", None) or type(error).__name__
    return f"{name}: {text}"
