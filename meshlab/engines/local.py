"""Ranks that this process starts on this host: ipyparallel engines, their controller, and a reaper."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from meshlab.comm.agreement import Checks
from meshlab.engines.call_board import CallBoard
from meshlab.engines.processes import ProcessSet, make_cluster
from meshlab.engines.reaper import Reaper, kill_processes, marked_processes, remove_files, terminate_launchers
from meshlab.engines.rounds import RankExit, RankInfo, WorkerConfig
from meshlab.engines.worker import make_unique_id
from meshlab.errors import EngineError

__all__ = ["LaunchedSet", "find_mpiexec"]

# The environment of every process of a run contains _RUN, so that the reaper finds it. That of every process of one set
# of engines also contains _SET, so that `kill` can stop the set and keep the controller.
_RUN, _SET = "MESHLAB_RUN", "MESHLAB_SET"

# Time for ranks to abort their NCCL communicators. One whose graphs were running takes 0.9 to more than 2 s (two H200).
_ABORT_S = 5.0
_TEARDOWN_S = 15.0  # maximum time that the kernel takes to remove a process with a GPU

_MOST_LOG = 1 << 20  # bytes
_NOISE = re.compile(r"\[(?:IPEngine|KernelNanny|IPController)[^]]*\]|^\s*$|mpi_(?:rank|size) =|from mpi4py import MPI")

# A wrapper shell appends "pid exit-code" to MESHLAB_EXITS before mpiexec sees the exit and kills the other ranks, so
# the first line of that file is the culprit. If the rank failed, the shell also sends SIGTERM to mpiexec, which cleans
# up /tmp on SIGTERM but not after a dead rank. The rank's output goes to a separate file, because ipyparallel deletes
# its log on exit. The shell's own "Killed" is discarded, because it would look like output of the rank.
_RANK_SHELL = (
    'exec 2>/dev/null; /bin/sh -c "$MESHLAB_TO_LOG" "$@"; code=$?; echo "$$ $code" >>"$MESHLAB_EXITS"; '
    '[ $code -eq 0 ] || [ -z "$MESHLAB_LAUNCHER" ] || kill "$MESHLAB_LAUNCHER"; exit $code'
)
_TO_LOG = 'exec "$0" "$@" >>"$MESHLAB_LOG" 2>&1'
# exec keeps the pid, so the shell's $$ is the pid of mpiexec. The ranks inherit it.
_LAUNCHER_SHELL = "export MESHLAB_LAUNCHER=$$; " + _TO_LOG


def find_mpiexec() -> str:
    """Return the path of the `mpiexec` that belongs to this environment's MPI library.

    The ``bin`` folder of the running Python is searched before PATH, because the `mpiexec` of a different MPI library
    starts ranks that do not find each other. The environment variable MESHLAB_MPIEXEC overrides the search.

    Raises
    ------
    EngineError
        If no `mpiexec` is found.
    """
    chosen = os.environ.get("MESHLAB_MPIEXEC")
    if chosen:
        return chosen
    own = Path(sys.prefix) / "bin" / "mpiexec"
    if own.exists():
        return str(own)
    import shutil

    found = shutil.which("mpiexec")
    if found is None:
        raise EngineError("no mpiexec found", hint="run pip install mpich, or use launch(n, backend='threads')")
    return found


class LaunchedSet(ProcessSet):
    """Engines on this host with a dedicated controller, started by this process. Implements `RankSet`.

    Profile, connection files and logs are in a private folder of the run. The controller and the ranks listen on the
    loopback device. Their messages are encrypted with CurveZMQ, or only signed if libzmq has no encryption.

    Parameters
    ----------
    size : int
        The number of ranks.
    backend : {"mpi", "nccl"}
        MPI ranks are started by one mpiexec and stop together. NCCL ranks are started separately, each on one GPU, and
        those that survive a fault are reused.
    devices : sequence of int, optional
        CUDA device index of each rank, for NCCL. By default rank r uses device r.
    env : mapping, optional
        Environment variables of the engines.
    checks : {"first", "all", "off"}, default "first"
        The calls that are compared between ranks.
    """

    is_attached = False

    def __init__(
        self,
        size: int,
        backend: str = "mpi",
        *,
        devices: Sequence[int] | None = None,
        env: Mapping[str, str] | None = None,
        checks: Checks = "first",
    ) -> None:
        super().__init__(size, backend)
        self._checks: Checks = checks
        self._devices = list(range(size)) if devices is None else list(devices)
        self._env = dict(env or {})
        self._id = secrets.token_hex(8)
        self._n_starts = 0
        self._old_exits: dict[Path, int] = {}  # with their sizes before the current start
        self._killed: set[int] = set()  # engines that were killed since the last start
        self.launch_arguments = {"backend": backend, "devices": devices, "env": dict(env or {}), "checks": checks}
        self._cluster: Any = None
        self._launcher: Any = None
        self._mpiexec = find_mpiexec() if backend == "mpi" else ""
        self._folder = Path(tempfile.mkdtemp(prefix="meshlab-"))
        # The reaper starts before any other process, so that no process ever runs without one. The finalizer runs when
        # the object is garbage-collected or at exit, whichever is first, and at most once.
        self._reaper = Reaper(_RUN, self._id, self._folder)
        self._finalizer = weakref.finalize(self, self._reaper.release)

    def start(self, timeout_s: float) -> tuple[RankInfo, ...]:
        """Start the controller (once) and the engines, and wait until every rank is ready."""
        deadline = time.monotonic() + timeout_s
        try:
            if self._cluster is None:
                self._start_controller()
            return self._start_engines(deadline)
        except BaseException:
            if not self._infos:  # the first start; after a failed restart, the client can try again
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
        survivors = [] if self._client is None else self._surviving_engines()
        self._old_exits = {path: path.stat().st_size for path in self._folder.glob("exits-*")}
        self._n_starts += 1
        # New file names for every start: a dying process of the previous set may still write to the old ones.
        positions = self._share_positions(self._folder / f"calls-{self._n_starts}")
        CallBoard.create_file(self._board_file, self.size)
        self._launch_engines(self.size - len(survivors))
        if self._client is None:
            self._client = self._cluster.connect_client_sync(ipython_dir=str(self._folder / "ipython"))
        engines = self._engines_by_rank(survivors, self._wait_for_engines(deadline))
        left_s = max(1.0, deadline - time.monotonic())
        infos = self._open_ranks(self._worker_configs(engines, positions, deadline), left_s)
        self._reaper.watch_files(path for info in infos for path in info.segments)
        return infos

    def _surviving_engines(self) -> list[int]:
        """Return the engines that can be reused."""

        # An engine that is still listed although its rank was killed is one whose death has not been noticed. MPI ranks
        # stop together, so that is true of all of them.
        def listed() -> set[int]:
            return set(self._client.ids) if self.backend == "mpi" else self._killed & set(self._client.ids)

        deadline = time.monotonic() + (3.0 if self.backend == "mpi" else _TEARDOWN_S)
        while listed() and time.monotonic() < deadline:
            time.sleep(0.02)
        self._killed.clear()  # new engines may have the same numbers
        return list(self._client.ids)

    def _engines_by_rank(self, survivors: Sequence[int], engines: Sequence[int]) -> list[int]:
        """Return the engines in rank order. A surviving engine keeps its rank, and with it its GPU."""
        kept = {rank: engine for rank, engine in enumerate(self._engine_ids) if engine in survivors}
        new = iter([engine for engine in engines if engine not in kept.values()])
        return [kept[rank] if rank in kept else next(new) for rank in range(self.size)]

    def _launch_engines(self, n: int) -> None:
        shell = ["/bin/sh", "-c", _RANK_SHELL, "meshlab-rank", sys.executable, "-m", "ipyparallel.engine"]
        options: dict[str, Any] = (
            {"mpi_cmd": ["/bin/sh", "-c", _LAUNCHER_SHELL, self._mpiexec]} if self.backend == "mpi" else {"delay": 0}
        )
        environment = {
            **_import_path(),
            **(_loopback_settings() if self.backend == "mpi" else {}),
            **self._env,
            **self._environment(),
            _SET: self._set_mark,
            "MESHLAB_EXITS": str(self._exits_file),
            "MESHLAB_LOG": str(self._log_file),
            "MESHLAB_TO_LOG": _TO_LOG,
            **self._debug_file(),
        }
        try:
            name = self._cluster.start_engines_sync(
                n,
                engine_set_id=f"set-{self._n_starts}",
                engine_cmd=shell,
                engine_args=["--log-level=WARN"],
                environment=environment,
                **options,
            )
        except (RuntimeError, TimeoutError) as error:  # from ipyparallel, which waits for its controller here
            log = "\n".join(str(self._cluster.controller.get_output()).splitlines()[-12:])
            raise EngineError("the controller of the engines did not start", log=log) from error
        self._launcher = self._cluster.engines[name]

    def _worker_configs(self, engines: list[int], positions: str, deadline: float) -> dict[int, WorkerConfig]:
        if self.backend == "mpi":
            config = WorkerConfig("mpi", positions, checks=self._checks, board_file=str(self._board_file))
            return dict.fromkeys(engines, config)
        # In a separate call: if the library cannot be loaded, this fails before any rank waits for the others.
        result = self._view(engines[0]).apply_async(make_unique_id)
        unique_id = self._result_of(engines[0], result, deadline, "create the NCCL unique id")
        return {
            engine: WorkerConfig(
                "nccl",
                positions,
                self.size,
                rank,
                self._devices[rank],
                unique_id,
                self._checks,
                str(self._board_file),
            )
            for rank, engine in enumerate(engines)
        }

    @property
    def _board_file(self) -> Path:
        return self._folder / f"board-{self._n_starts}"

    @property
    def _set_mark(self) -> str:
        return f"{self._id}.{self._n_starts}"

    def _wait_for_engines(self, deadline: float) -> list[int]:
        while len(self._client.ids) < self.size:
            process = getattr(self._launcher, "process", None)
            if self._exits_file.exists() or (process is not None and not _is_running(process)):
                raise EngineError(f"{_engines(self.size)} exited during start-up", log=self.log_tail())
            if time.monotonic() > deadline:
                raise EngineError(
                    f"only {len(self._client.ids)} of {_engines(self.size)} started in time",
                    hint="pass a larger timeout_s to launch(), or start fewer ranks",
                    log=self.log_tail(),
                )
            time.sleep(0.01)
        return list(self._client.ids)

    @property
    def _exits_file(self) -> Path:
        return self._folder / f"exits-{self._n_starts}"

    def first_exit(self) -> RankExit | None:
        """Return the exit of the first rank that ended, from the records of the wrapper shells."""
        # ipyparallel may report the death before the shell has written its line: the shell only continues when the
        # kernel has torn the process down. With a GPU that takes up to a second, or more if much memory is mapped, and
        # the process is a zombie for so long.
        now = time.monotonic()
        deadline, last = now + 1.5, now + _TEARDOWN_S
        ranks = {info.parent_pid: info.rank for info in self._infos}
        while now < deadline:
            # A rank that survived an earlier start still writes to the file of that start, which may not exist before.
            for start in range(self._n_starts, 0, -1):
                path = self._folder / f"exits-{start}"
                with contextlib.suppress(OSError, ValueError):
                    for line in path.read_text()[self._old_exits.get(path, 0) :].splitlines():
                        shell, code = (int(word) for word in line.split())
                        # In an older file, the other lines are of ranks that were killed before.
                        if shell in ranks or start == self._n_starts:
                            how = f"killed by signal {code - 128}" if code > 128 else f"exited with code {code}"
                            return RankExit(ranks.get(shell), how)
            time.sleep(0.01)
            now = time.monotonic()
            if now < last and self._is_dying():
                deadline = now + 1.5
        return None

    def _is_dying(self) -> bool:
        import psutil

        for info in self._infos:
            with contextlib.suppress(psutil.Error):
                if psutil.Process(info.pid).status() == psutil.STATUS_ZOMBIE:
                    return True
        return False

    def interrupt(self) -> None:
        """Send SIGINT to the process of every rank."""
        for info in self._infos:
            with contextlib.suppress(ProcessLookupError):
                os.kill(info.pid, signal.SIGINT)

    def kill(self, *, reuse: bool = True) -> None:
        """Kill the processes of the ranks. With `reuse`, NCCL ranks that abort their communicators in time survive."""
        saved = self._abort_ranks() if reuse and self.backend == "nccl" else set()
        doomed = [info for info in self._infos if info.rank not in saved]
        if self.backend == "mpi":
            # Before anything else, because once mpiexec has seen a dead rank, it no longer removes its files in /tmp.
            terminate_launchers(marked_processes(_SET, self._set_mark))
        for info in doomed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(info.pid, signal.SIGKILL)
        # Each engine has a nanny process of ipyparallel, which reports the death of the engine to the controller and
        # then exits. If the nannies were killed too, the client would list dead engines until their heartbeats fail.
        gone = {self._engine_ids[info.rank] for info in doomed}
        self._killed |= gone
        deadline = time.monotonic() + 1.0
        while time.monotonic() < deadline and (
            gone & set(self._client.ids) or (not saved and marked_processes(_SET, self._set_mark))
        ):
            time.sleep(0.02)
        if saved:
            return
        segments = kill_processes(_SET, self._set_mark)
        remove_files({*segments, *(path for info in self._infos for path in info.segments)})
        if self._cluster is not None:
            self._cluster.engines.clear()

    def _abort_ranks(self) -> set[int]:
        """Make the ranks abort their communicators. Return those that respond and can be reused."""
        if self._positions is None:
            return set()
        # Ranks blocked in NCCL poll this flag and abort, so their processes survive for the next start(). It is one
        # flag for all, because an abort in NCCL can hang until the other ranks of the host abort too. Ranks that do not
        # return in time are killed.
        self._positions.abort()
        deadline = time.monotonic() + _ABORT_S
        while time.monotonic() < deadline and not all(future.done() for future in self._pending.values()):
            time.sleep(0.01)
        alive = set(self._client.ids)
        return {
            rank
            for rank, future in self._pending.items()
            if future.done() and future.exception() is None and self._engine_ids[rank] in alive
        }

    @property
    def _log_file(self) -> Path:
        return self._folder / f"log-{self._n_starts}"

    def _debug_file(self) -> dict[str, str]:
        """Send NCCL's debug output to one file per process, separate from the output of the ranks."""
        is_debug = "NCCL_DEBUG" in self._env and "NCCL_DEBUG_FILE" not in self._env
        return {"NCCL_DEBUG_FILE": str(self._folder / "nccl-%p.log")} if is_debug else {}

    def library_logs(self) -> list[str]:
        """Return NCCL's debug output, by rank. The strings are empty unless NCCL_DEBUG is set."""
        logs = []
        for info in self._infos:
            try:
                logs.append((self._folder / f"nccl-{info.pid}.log").read_text(errors="replace"))
            except OSError:
                logs.append("")
        return logs

    def printed(self) -> str:
        """Return what the ranks and mpiexec printed, without the lines of ipyparallel, and at most its last MiB."""
        try:
            with self._log_file.open("rb") as file:
                file.seek(max(0, self._log_file.stat().st_size - _MOST_LOG))
                text = file.read().decode(errors="replace")
        except OSError:
            return ""
        return "\n".join(line for line in text.splitlines() if not _NOISE.search(line))

    def log_tail(self) -> str:
        """Return the last lines that the ranks or mpiexec printed, without those of ipyparallel."""
        return "\n".join(self.printed().splitlines()[-12:])

    def _running_ranks(self) -> list[int]:
        import psutil

        return [info.pid for info in self._infos if psutil.pid_exists(info.pid)]

    def close(self) -> None:
        """Request a shutdown of engines and controller, wait up to a second, and let the reaper do the rest."""
        if not self._finalizer.alive:
            return
        if self._client is not None:
            deadline = time.monotonic() + 1.0
            # In a thread: the client waits for replies even without block, and a rank that was just killed sends none.
            shutdown = threading.Thread(target=self._request_shutdown, name="meshlab shutdown", daemon=True)
            shutdown.start()
            shutdown.join(1.0)
            while time.monotonic() < deadline and self._running_ranks():
                time.sleep(0.02)
        self._finalizer()
        if self._client is not None:
            with contextlib.suppress(Exception):
                self._client.close(linger=0)
        self._positions = None

    def _request_shutdown(self) -> None:
        with contextlib.suppress(Exception):
            self._client.shutdown(hub=True, block=False)


def _engines(n: int) -> str:
    return f"{n} engine{'s' * (n != 1)}"


def _import_path() -> dict[str, str]:
    """Let the engines import the same meshlab as this process, even if it is not installed."""
    import site

    home = str(Path(__file__).parents[2])
    if home in [*site.getsitepackages(), site.getusersitepackages()]:
        return {}
    known = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": f"{home}{os.pathsep}{known}" if known else home}


def _loopback_settings() -> dict[str, str]:
    """Make the network layers of MPI listen on the loopback device, because all ranks are on this host.

    Otherwise other hosts can connect to the ranks, although ranks of one host communicate through shared memory.
    """
    import psutil

    for name, addresses in psutil.net_if_addrs().items():
        if any(address.address == "127.0.0.1" for address in addresses):
            # MPICH is built on UCX and libfabric, and uses the first one unless MPIR_CVAR_CH4_NETMOD is "ofi".
            settings = dict.fromkeys(("UCX_NET_DEVICES", "FI_TCP_IFACE", "FI_SOCKETS_IFACE"), name)
            return {variable: value for variable, value in settings.items() if variable not in os.environ}
    return {}


def _is_running(process: Any) -> bool:
    import psutil

    try:
        return bool(process.is_running()) and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
