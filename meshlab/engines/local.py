"""Ranks that this process starts itself: engines on this host, a controller of their own, and a leash on them."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import sys
import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from meshlab.engines.processes import ProcessSet, make_cluster
from meshlab.engines.reaper import Reaper, ask_launchers, end_processes, marked_processes, remove_files
from meshlab.engines.rounds import RankExit, RankInfo, WorkerConfig
from meshlab.engines.worker import make_identity
from meshlab.errors import EngineError

__all__ = ["LaunchedSet", "find_mpiexec"]

_RUN, _SET = "MESHLAB_RUN", "MESHLAB_SET"
_NOISE = re.compile(r"\[(?:IPEngine|KernelNanny|IPController)[^]]*\]|^\s*$|mpi_(?:rank|size) =|from mpi4py import MPI")
# Every rank runs under a shell that writes down how it ended, before a launcher learns of it and ends the others.
# Output goes to a file of ours, because ipyparallel removes its own when the process ends. A launcher that hears of a
# dead rank leaves files in /tmp, and one that is asked to end leaves none: so the shell asks it. The shell
# itself stays out of the log: its lone "Killed" would look like a word of the rank.
_RANK_SHELL = (
    'exec 2>/dev/null; /bin/sh -c "$MESHLAB_TO_LOG" "$@"; code=$?; echo "$$ $code" >>"$MESHLAB_DEATHS"; '
    '[ $code -eq 0 ] || [ -z "$MESHLAB_LAUNCHER" ] || kill "$MESHLAB_LAUNCHER"; exit $code'
)
_TO_LOG = 'exec "$0" "$@" >>"$MESHLAB_LOG" 2>&1'
_LAUNCHER_SHELL = "export MESHLAB_LAUNCHER=$$; " + _TO_LOG


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


class LaunchedSet(ProcessSet):
    """Engines that this process starts on this host, with a controller of their own; implements `RankSet`.

    Profile, connection files (readable by the user alone) and logs lie in a private folder of the run. The controller
    listens on the loopback device, and every message is signed with a key.

    Parameters
    ----------
    size : int
        How many ranks.
    backend : {"mpi", "nccl"}
        MPI ranks are started by one mpiexec and end together. NCCL ranks are started one by one, each with a GPU; those
        that survive a fault are used again.
    devices : sequence of int, optional
        The GPU of every rank, for NCCL; rank r has GPU r when left out.
    env : mapping, optional
        Environment variables for the engines.
    """

    is_attached = False

    def __init__(
        self,
        size: int,
        backend: str = "mpi",
        *,
        devices: Sequence[int] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(size, backend)
        self._devices = list(range(size)) if devices is None else list(devices)
        self._env = dict(env or {})
        self._id = secrets.token_hex(8)
        self._set_count = 0
        self._cluster: Any = None
        self._launcher: Any = None
        self._mpiexec = find_mpiexec() if backend == "mpi" else ""
        self._folder = Path(tempfile.mkdtemp(prefix="meshlab-"))
        self._leash = Reaper(_RUN, self._id, self._folder)
        self._finalizer = weakref.finalize(self, self._leash.release)

    def start(self, timeout_s: float) -> tuple[RankInfo, ...]:
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
        profile = self._folder / "profile"
        profile.mkdir(mode=0o700)
        self._cluster = make_cluster(profile, self._id, "mpi" if self.backend == "mpi" else "local")
        self._cluster.start_controller_sync(environment=self._environment())

    def _environment(self) -> dict[str, str]:
        return {_RUN: self._id, "IPYTHONDIR": str(self._folder / "ipython"), "PYTHONUNBUFFERED": "1"}

    def _start_engines(self, deadline: float) -> tuple[RankInfo, ...]:
        survivors = [] if self._client is None else self._survivors()
        self._set_count += 1
        counts = self._share_counts(self._folder / f"calls-{self._set_count}")
        self._launch_engines(self.size - len(survivors))
        if self._client is None:
            self._client = self._cluster.connect_client_sync(ipython_dir=str(self._folder / "ipython"))
        ids = self._ids_by_rank(survivors, self._wait_for_engines(deadline))
        left_s = max(1.0, deadline - time.monotonic())
        facts = self._open_ranks(self._openings(ids, counts, deadline), left_s)
        self._leash.watch_files(path for rank in facts for path in rank.segments)
        return facts

    def _survivors(self) -> list[int]:
        """Engines to use again; MPI ranks end together, so those still listed are on their way out."""
        deadline = time.monotonic() + 3.0
        while self.backend == "mpi" and self._client.ids and time.monotonic() < deadline:
            time.sleep(0.02)
        return list(self._client.ids)

    def _ids_by_rank(self, survivors: Sequence[int], ids: Sequence[int]) -> list[int]:
        """Engines in the order of the ranks they will be; survivors stay who they were, and keep their GPU."""
        kept = {rank: number for rank, number in enumerate(self._engine_ids) if number in survivors}
        new = iter([number for number in ids if number not in kept.values()])
        return [kept[rank] if rank in kept else next(new) for rank in range(self.size)]

    def _launch_engines(self, n: int) -> None:
        shell = ["/bin/sh", "-c", _RANK_SHELL, "meshlab-rank", sys.executable, "-m", "ipyparallel.engine"]
        options: dict[str, Any] = (
            {"mpi_cmd": ["/bin/sh", "-c", _LAUNCHER_SHELL, self._mpiexec]} if self.backend == "mpi" else {"delay": 0}
        )
        name = self._cluster.start_engines_sync(
            n,
            engine_set_id=f"set-{self._set_count}",
            engine_cmd=shell,
            engine_args=["--log-level=WARN"],
            environment={
                **_import_path(),
                **self._env,
                **self._environment(),
                _SET: self._set_name,
                "MESHLAB_DEATHS": str(self._deaths_file),
                "MESHLAB_LOG": str(self._log_file),
                "MESHLAB_TO_LOG": _TO_LOG,
                **self._debug_file(),
            },
            **options,
        )
        self._launcher = self._cluster.engines[name]

    def _openings(self, ids: list[int], counts: str, deadline: float) -> dict[int, WorkerConfig]:
        if self.backend == "mpi":
            return dict.fromkeys(ids, WorkerConfig("mpi", counts))
        result = self._view(ids[0]).apply_async(make_identity)
        identity = self._answer(ids[0], result, deadline, "make the identity of a NCCL world")
        return {
            number: WorkerConfig("nccl", counts, self.size, rank, self._devices[rank], identity)
            for rank, number in enumerate(ids)
        }

    @property
    def _set_name(self) -> str:
        return f"{self._id}.{self._set_count}"

    def _wait_for_engines(self, deadline: float) -> list[int]:
        while len(self._client.ids) < self.size:
            process = getattr(self._launcher, "process", None)
            if self._deaths_file.exists() or (process is not None and not _is_running(process)):
                raise EngineError(
                    f"the {_engines(self.size)} ended while {'it' if self.size == 1 else 'they'} started",
                    log=self.log_tail(),
                )
            if time.monotonic() > deadline:
                raise EngineError(
                    f"only {len(self._client.ids)} of {_engines(self.size)} were ready in time; give launch() a larger "
                    "timeout_s, or fewer ranks",
                    log=self.log_tail(),
                )
            time.sleep(0.01)
        return list(self._client.ids)

    @property
    def _deaths_file(self) -> Path:
        return self._folder / f"deaths-{self._set_count}"

    def first_death(self) -> RankExit | None:
        """Who ended first, and how."""
        deadline = (
            time.monotonic() + 1.5
        )  # its watcher can be faster than the shell around it, as a GPU is slow to let go
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError, IndexError, ValueError):
                shell, code = (int(word) for word in self._deaths_file.read_text().splitlines()[0].split())
                ranks = {facts.parent_pid: facts.rank for facts in self._facts}
                how = f"killed by signal {code - 128}" if code > 128 else f"ended with exit code {code}"
                return RankExit(ranks.get(shell), how)
            time.sleep(0.01)
        return None

    def interrupt(self) -> None:
        """Send SIGINT to every rank, by process."""
        for facts in self._facts:
            with contextlib.suppress(ProcessLookupError):
                os.kill(facts.pid, signal.SIGINT)

    def kill(self) -> None:
        """Kill the ranks by process; NCCL ranks that can give their communicators up live on."""
        saved = self._save_ranks() if self.backend == "nccl" else set()
        doomed = [facts for facts in self._facts if facts.rank not in saved]
        if self.backend == "mpi":
            ask_launchers(marked_processes(_SET, self._set_name))
        for facts in doomed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(facts.pid, signal.SIGKILL)
        # The nannies tell the controller that the engines are gone, and end then; that keeps the client's list right.
        gone = {self._engine_ids[facts.rank] for facts in doomed}
        deadline = time.monotonic() + 1.0
        while time.monotonic() < deadline and (
            gone & set(self._client.ids) or (not saved and marked_processes(_SET, self._set_name))
        ):
            time.sleep(0.02)
        if saved:
            return
        segments = end_processes(_SET, self._set_name)
        remove_files({*segments, *(path for facts in self._facts for path in facts.segments)})
        if self._cluster is not None:
            self._cluster.engines.clear()

    def _save_ranks(self) -> set[int]:
        """Tell the ranks to stop waiting for each other; those that then answer can be used again."""
        if self._counts is None:
            return set()
        self._counts[self.size] = 1
        deadline = time.monotonic() + 2.0
        while time.monotonic() < deadline and not all(future.done() for future in self._open.values()):
            time.sleep(0.01)
        alive = set(self._client.ids)
        return {
            rank
            for rank, future in self._open.items()
            if future.done() and future.exception() is None and self._engine_ids[rank] in alive
        }

    @property
    def _log_file(self) -> Path:
        return self._folder / f"log-{self._set_count}"

    def _debug_file(self) -> dict[str, str]:
        """What NCCL tells about itself when asked goes to one file per process, not between the ranks' own output."""
        asked = "NCCL_DEBUG" in self._env and "NCCL_DEBUG_FILE" not in self._env
        return {"NCCL_DEBUG_FILE": str(self._folder / "nccl-%p.log")} if asked else {}

    def library_logs(self) -> list[str]:
        """What NCCL has told about itself, by rank; empty texts when it was not asked."""
        logs = []
        for facts in self._facts:
            try:
                logs.append((self._folder / f"nccl-{facts.pid}.log").read_text(errors="replace"))
            except OSError:
                logs.append("")
        return logs

    def log_tail(self) -> str:
        """The last lines that the ranks or mpiexec printed, without ipyparallel's own."""
        try:
            text = self._log_file.read_text(errors="replace")
        except OSError:
            return ""
        lines = [line for line in text.splitlines() if not _NOISE.search(line)]
        return "\n".join(lines[-12:])

    def _running_ranks(self) -> list[int]:
        import psutil

        return [facts.pid for facts in self._facts if psutil.pid_exists(facts.pid)]

    def close(self) -> None:
        """Ask engines and controller to end, wait a second, and let the leash do the rest."""
        if not self._finalizer.alive:
            return
        if self._client is not None:
            with contextlib.suppress(Exception):
                self._client.shutdown(hub=True, block=False)
            deadline = time.monotonic() + 1.0
            while time.monotonic() < deadline and self._running_ranks():
                time.sleep(0.02)
        self._finalizer()
        if self._client is not None:
            with contextlib.suppress(Exception):
                self._client.close(linger=0)
        self._counts = None


def _engines(n: int) -> str:
    return f"{n} engine{'s' * (n != 1)}"


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
