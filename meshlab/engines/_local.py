"""Ranks that this process starts on this host: ipyparallel engines, their controller, and a reaper."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import re
import secrets
import shutil
import signal
import site
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from meshlab.base._backends import BACKENDS
from meshlab.base._errors import EngineError
from meshlab.base._hints import MORE_TIME, Hint
from meshlab.comm._agreement import Checks
from meshlab.engines._call_board import CallBoard
from meshlab.engines._controller import Controller
from meshlab.engines._host_queue import waiting_line
from meshlab.engines._interrupts import interrupts_kept
from meshlab.engines._lifeline import BACKEND, CONNECTION, DEVICES, REAPER, WITHOUT_SHELL, WITHOUT_SHELLS, command
from meshlab.engines._parts import STOPPED, Parts, is_stopped, status_of
from meshlab.engines._processes import ProcessSet
from meshlab.engines._reaper import (
    RUN,
    Reaper,
    clean_up,
    clean_up_after_others,
    kill_processes,
    make_folder,
    marked_processes,
    remove_files,
)
from meshlab.engines._records import LAUNCHER_SHELL, RANK_SHELL, RankRecords, how_recorded, printed_text
from meshlab.engines._rounds import RankExit, RankInfo, WorkerConfig, how_exited, without_banner
from meshlab.engines._worker import launched_rank, make_unique_id

# The environment of every process of one set of engines contains _SET, so that `kill` can stop the set and keep the
# controller. That of every process of a run contains RUN.
_SET = "MESHLAB_SET"

# Time for ranks to abort their NCCL communicators. One whose graphs were running takes 0.9 to more than 2 s (two H200).
_ABORT_S = 5.0
_LATE_S = 1.0  # time for a rank outside of a call, which others wait for, to return
_TEARDOWN_S = 15.0  # maximum time that the kernel takes to remove a process with a GPU

_TERMINATED = re.compile(rf"^=   EXIT CODE: {signal.SIGTERM:d}$", re.MULTILINE)  # of MPICH's mpiexec

_UNNOTICED_S = 3.0  # maximum time until the controller notices the end of an engine
_CLOSE_S = 1.0  # time that the ranks get to end themselves when the engines are closed
_ABANDONED_S = 2.0  # time to wait for a start that was interrupted, after its processes have ended
_ANSWER_S = 2.0  # time that the controller gets to answer before a restart replaces it
_UNRECORDED = "ended at the same time"

_LINE_S = 0.3  # time in which the shell of a rank that has ended records its exit
_EXIT_S = 1.5  # time to look for an exit, from the moment at which no process is in teardown any more
_POLL_S = 0.01
_PATIENCE_S = 4.0  # time after which a start is a long wait, which has a line
_CONTROLLERS = 3  # maximum number of controllers that a start tries

# MPICH's launcher writes the topology of the host to a file in /tmp, which stays if the launcher is killed. It does not
# if this variable is set. The shells of the ranks remove it again, so that their library reads the topology itself.
_NO_TOPOLOGY_FILE = {"HWLOC_XMLFILE": ""}

# MPICH's launcher starts ranks on this host, without a remote shell or a scheduler, whatever the environment names.
_HERE = {"HYDRA_LAUNCHER": "fork", "HYDRA_RMK": "user"}

_UNWRITABLE = (errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EFBIG)

_LONGEST_TMPDIR = 64  # characters, because the path of a socket has at most 107


def find_mpiexec() -> str:
    """Return MESHLAB_MPIEXEC, or else the path of the `mpiexec` of this environment's MPI library."""
    if override := os.environ.get("MESHLAB_MPIEXEC"):
        return override
    # First the folder of this Python, because the mpiexec of another library starts ranks that do not find each other.
    installed = Path(sys.prefix) / "bin" / "mpiexec"
    path = str(installed) if installed.exists() else shutil.which("mpiexec")
    if path is None:
        raise EngineError("no mpiexec found", hint="run pip install mpich, or use launch(n, backend='threads')")
    return path


class LaunchedSet(ProcessSet):
    """Engines on this host with a dedicated controller, started by this process."""

    # Profile, connection files and logs are in a private folder of the run. The controller and the ranks listen on the
    # loopback device. Their messages are encrypted with CurveZMQ, or only signed if libzmq has no encryption.
    #
    # MPI's ranks are started by one mpiexec and stop together. NCCL's ranks are started separately, and those that
    # survive a fault are reused. Gloo's ranks are started separately, and all of them are replaced after a fault.

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
        self._facts = BACKENDS[backend]
        self._checks: Checks = checks
        self._devices = list(range(size)) if devices is None else list(devices)
        self._env = dict(env or {})
        self._id = secrets.token_hex(8)
        self._n_controllers = 0
        self._starts: list[RankRecords] = []
        self._killed: set[str] = set()  # the uuids of engines that were killed since the last start
        self.launch_arguments = {"backend": backend, "devices": devices, "env": dict(env or {}), "checks": checks}
        self._controller: Controller | None = None
        self._is_controller_suspect = False
        self._launcher: Any = None
        self._parts = Parts()  # the launcher
        self._proxies = Parts()  # its processes between it and the ranks
        self._checked_at = 0.0
        self._show_wait: Callable[[str], None] = lambda text: None
        self._starting = threading.RLock()
        self._is_closing = self._is_closed = False
        self._mpiexec = find_mpiexec() if self._by_mpiexec else ""
        clean_up_after_others()
        # The reaper starts before any other process, so that no process ever runs without one. The finalizer runs when
        # the object is garbage-collected or at exit, whichever is first, and at most once.
        with ExitStack() as stack:
            stack.enter_context(_without_system_errors())
            self._folder = make_folder()
            stack.callback(shutil.rmtree, self._folder, ignore_errors=True)  # without an owner, nobody would remove it
            (self._folder / "tmp").mkdir()
            self._reaper = Reaper(RUN, self._id, self._folder)
            stack.pop_all()
        self._finalizer = weakref.finalize(self, self._reaper.release)

    @property
    def _by_mpiexec(self) -> bool:
        return self._facts.starts == "mpiexec"

    def start(self, timeout_s: float) -> tuple[RankInfo, ...]:
        """Start the controller, unless it is running, and the engines, and wait until every rank is ready."""
        deadline = time.monotonic() + timeout_s
        with self._starting:
            try:
                with interrupts_kept(), _without_system_errors():
                    self._check_closing()
                    self._reaper.renew()
                    infos = self._start_processes(deadline)
                self._is_controller_suspect = False
                return infos
            except BaseException:
                # A controller that hangs looks like one that works, so a second attempt is made with another one.
                self._is_controller_suspect = True
                if not self._infos or self._is_closing:
                    self.close()
                else:  # the client can try again
                    remove_files(kill_processes(_SET, self._set_mark))
                raise

    def _start_processes(self, deadline: float) -> tuple[RankInfo, ...]:
        # ipyparallel selects free ports before it binds them, and another process can bind one of them in between. A
        # second controller selects other ports.
        n_left = _CONTROLLERS
        while True:
            n_left -= 1
            try:
                self._start_controller(deadline)
                return self._start_engines(deadline)
            except EngineError:
                if not n_left or self._is_closing or self._controller is None or not self._controller.has_failed():
                    raise
                self._is_controller_suspect = True

    def _start_controller(self, deadline: float) -> None:
        controller = self._controller
        if controller is not None:
            is_well = not self._is_controller_suspect and controller.lost(at_once=True) is None
            if is_well and controller.answers(_ANSWER_S):
                return
            # Its engines cannot be reached by another one.
            controller.close()
            self._client, self._controller, self._views = None, None, {}
            remove_files(kill_processes(RUN, self._id))
        self._n_controllers += 1
        folder = self._folder / f"controller-{self._n_controllers}"
        launcher = "mpi" if self._by_mpiexec else "local"
        controller = Controller(folder, self._id, launcher, {**import_path(), **self._environment()})
        self._controller = controller  # before it starts, because its parts may exist if that fails
        controller.start(deadline, self._check_closing)

    @property
    def _n_starts(self) -> int:
        return len(self._starts)

    def _environment(self) -> dict[str, str]:
        return {
            RUN: self._id,
            REAPER: json.dumps(self._reaper.command),
            "IPYTHONDIR": str(self._folder / "ipython"),
            "PYTHONUNBUFFERED": "1",
        }

    def _temporary_folder(self) -> dict[str, str]:
        """Let the launcher and the ranks write temporary files to a folder that is removed with the run."""
        path = str(self._folder / "tmp")
        return {"TMPDIR": path} if len(path) <= _LONGEST_TMPDIR else {}

    def _check_closing(self) -> None:
        if self._is_closing:
            raise EngineError("the engines were closed while they started")

    def _start_engines(self, deadline: float) -> tuple[RankInfo, ...]:
        survivors = [] if self._client is None else self._surviving_engines()
        for records in self._starts:
            records.skip()
        # New file names for every start: a dying process of the previous set may still write to the old ones.
        self._starts.append(RankRecords(self._folder, self._n_starts + 1))
        positions = self._share_positions(self._folder / f"calls-{self._n_starts}")
        CallBoard.create_file(self._board_file, self.size)
        # A widget or a run that starts engines in the background shows its own progress, and has no cell of its own.
        is_foreground = threading.current_thread() is threading.main_thread()
        line = waiting_line(after_s=_PATIENCE_S if is_foreground else math.inf)
        with self._reaper.starting(), line as self._show_wait:
            surviving = [rank for rank, engine in enumerate(self._engine_ids) if engine in survivors]
            self._launch_engines([rank for rank in range(self.size) if rank not in surviving], deadline)
            if self._client is None:
                assert self._controller is not None
                self._client = self._controller.connect(deadline, self._check_start)
            # Every result needs pandas, whose import takes a third of a second. The ranks start meanwhile.
            import pandas  # noqa: F401

            engines = self._ordered(self._wait_for_engines(deadline), deadline)
            left_s = max(1.0, deadline - time.monotonic())
            infos = self._open_ranks(self._worker_configs(engines, positions, deadline), left_s)
            self._check_start()
            self._reaper.watch_files(path for info in infos for path in info.segments)
        if self._by_mpiexec:
            self._watch_proxies(infos)
        return infos

    def _watch_proxies(self, infos: Sequence[RankInfo]) -> None:
        """Watch the processes between the launcher and the shells of the ranks. Open MPI has none."""
        with contextlib.suppress(psutil.NoSuchProcess):  # every check finds a rank that is gone
            for pid in sorted({psutil.Process(info.parent_pid).ppid() for info in infos} - {self._launcher.pid}):
                self._proxies.add("the proxy of the MPI launcher", psutil.Process(pid))

    def _surviving_engines(self) -> list[int]:
        """Return the engines that can be reused."""
        # The controller still lists an engine whose rank was killed a moment ago. A rank with a GPU is only gone when
        # its memory is free.
        deadline = time.monotonic() + (_TEARDOWN_S if self._facts.on_gpus else _UNNOTICED_S)
        while self._killed & set(self._uuids().values()) and time.monotonic() < deadline:
            self._check_closing()
            time.sleep(2 * _POLL_S)
        return self._living_engines()

    def _uuids(self) -> dict[int, str]:
        """Return the unique names of the engines that the client lists. Their numbers are used again."""
        return {engine: uuid for engine in self._client.ids if (uuid := self._client._engines.get(engine)) is not None}

    def _living_engines(self) -> list[int]:
        return [engine for engine, uuid in self._uuids().items() if uuid not in self._killed]

    def _ordered(self, engines: list[int], deadline: float) -> list[int]:
        """Return the engines in the order of the ranks that their shells have given them. MPI determines it later."""
        if self._by_mpiexec:
            return engines
        asked = [(engine, self._view(engine).apply_async(launched_rank)) for engine in engines]
        ranks = {
            engine: self._result_of(f"engine {engine}", result, deadline, "return its rank") for engine, result in asked
        }
        return sorted(engines, key=ranks.__getitem__)

    def _launch_engines(self, ranks: Sequence[int], deadline: float) -> None:
        assert self._controller is not None
        shell = [*RANK_SHELL, *command("rank", "ipyparallel.engine")]
        options: dict[str, Any] = {"delay": 0}
        if self._by_mpiexec:  # through a shell, which sends what mpiexec itself prints to the log
            options = {"mpi_cmd": [*LAUNCHER_SHELL, self._mpiexec]}
        # The user's variables replace meshlab's settings, but neither the marks nor the files of the run.
        environment = {
            **import_path(),
            **self._temporary_folder(),
            **({} if not self._by_mpiexec or "HWLOC_XMLFILE" in os.environ else _NO_TOPOLOGY_FILE),
            **({**_HERE, **_loopback_settings()} if self._by_mpiexec else {}),
            **self._env,
            **self._environment(),
            _SET: self._set_mark,
            **self._starts[-1].environment(() if self._by_mpiexec else ranks),
            BACKEND: self.backend,
            **({DEVICES: ",".join(map(str, self._devices))} if self._facts.on_gpus else {}),
            CONNECTION: str(self._controller.addresses),
            **self._debug_file(),
        }
        self._parts.clear()
        self._proxies.clear()
        self._launcher = self._controller.start_engines(
            len(ranks),
            f"set-{self._n_starts}",
            deadline,
            self._check_closing,
            engine_cmd=shell,
            engine_args=["--log-level=WARN"],
            environment=environment,
            **options,
        )
        if self._by_mpiexec:
            self._parts.add("the MPI launcher", self._launcher.process)

    def _worker_configs(self, engines: list[int], positions: str, deadline: float) -> dict[int, WorkerConfig]:
        files: dict[str, Any] = {
            "positions_file": positions,
            "checks": self._checks,
            "board_file": str(self._board_file),
            "store_file": str(self._folder / f"store-{self._n_starts}"),
        }
        if self._by_mpiexec:
            return dict.fromkeys(engines, WorkerConfig(self.backend, **files))
        # In a separate call: if the library cannot be loaded, this fails before any rank waits for the others.
        result = self._view(engines[0]).apply_async(make_unique_id, self.backend)
        unique_id = self._result_of("rank 0", result, deadline, "create the unique id of the ranks")
        return {
            engine: WorkerConfig(
                self.backend, size=self.size, rank=rank, device=self._devices[rank], unique_id=unique_id, **files
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
        while len(engines := self._living_engines()) < self.size:
            self._check_start()
            if time.monotonic() > deadline:
                raise EngineError(
                    f"only {len(engines)} of {_engines(self.size)} started in time",
                    hint=Hint("{}, or start fewer ranks", MORE_TIME),
                    log=self.log_tail(),
                )
            time.sleep(_POLL_S)
        return engines

    def _check_start(self) -> None:
        """Raise an `EngineError` if the engines are closed, or if one of them or another process has ended."""
        self._check_closing()
        self._show_wait(f"waiting for {self.size} rank{'s' * (self.size != 1)}")
        if self._controller is not None and (problem := self._controller.start_problem()):
            log = self._controller.log_tail() or self.log_tail()
            raise EngineError(f"{problem} during start-up", hint="start the engines again", log=log)
        time_s = time.monotonic()
        if time_s - self._checked_at < _LINE_S / 2:
            return
        self._checked_at = time_s
        lost = self._starts[-1].lost() or self._parts.lost()
        if lost is None:
            return
        # The record of a rank comes a moment after its end, and of several exits the first one is the cause.
        time.sleep(_LINE_S)
        lost = self._starts[-1].lost() or lost
        if [code for _, code in self._starts[-1].exits()[:1]] == [WITHOUT_SHELLS]:
            lost = self._terminated_launcher() or lost
        log = without_banner(self.log_tail())
        raise EngineError(f"{lost.text} during start-up", hint="start the engines again", log=log)

    def check(self) -> RankExit | None:
        """Return the exit of a rank, the launcher or the controller. Start a new reaper if it is gone."""
        # Every check reads /proc for every process, so those of a wait that polls faster are skipped.
        time_s = time.monotonic()
        if time_s - self._checked_at < _LINE_S / 2:
            return None
        self._checked_at = time_s
        self._reaper.renew()
        lost = self._lost_part()
        if lost is not None:
            return lost
        gone = [info.rank for info in self._infos if not _is_alive(info.pid)]
        if self._starts[-1].exits() or gone or self._proxies.lost(math.inf) is not None:
            return self.first_exit() or (RankExit(gone[0], "ended") if gone else None)
        return None

    def stalled(self) -> RankExit | None:
        """Return a rank or a process of the controller that is stopped."""
        lost = None if self._controller is None else self._controller.lost(at_once=True)
        stopped = next((info.rank for info in self._infos if is_stopped(info.pid)), None)
        return lost or (None if stopped is None else RankExit(stopped, STOPPED))

    def _lost_part(self) -> RankExit | None:
        """Return the part that made the ranks unreachable, unless a rank has made the part end."""
        lost = None if self._controller is None else self._controller.lost()
        if lost is None:
            lost = self._parts.lost()
            if lost is not None and not lost.how.startswith("killed"):
                lost = None  # the launcher exits if a rank does, and the ranks work on if it is stopped
        return lost

    def first_exit(self) -> RankExit | None:
        """Return the exit of the first rank that ended, from the records of the wrapper shells, or of a lost part."""
        # ipyparallel may report the death before the shell has written its line: the shell only continues when the
        # kernel has torn the process down. With a GPU that takes up to a second, or more if much memory is mapped, and
        # the process is a zombie for so long.
        begin = time_s = time.monotonic()
        deadline, last = begin + _EXIT_S, begin + _TEARDOWN_S
        while time_s < deadline:
            rank_exit = self._lost_part() or self._recorded_exit()
            if rank_exit is None and time_s - begin > _LINE_S:
                rank_exit = self._unrecorded_exit()
            if rank_exit is not None:
                return rank_exit
            time.sleep(_POLL_S)
            time_s = time.monotonic()
            if time_s < last and any(status_of(info.pid) == psutil.STATUS_ZOMBIE for info in self._infos):
                deadline = time_s + _EXIT_S
        return None

    def _recorded_exit(self) -> RankExit | None:
        """Return the first exit that a shell, or a rank that has lost its shell, has recorded."""
        ranks = {info.parent_pid: info.rank for info in self._infos}
        # A rank that survived an earlier start still writes to the file of that start.
        for records in reversed(self._starts):
            for shell, code in records.exits():
                # In an older file, the other lines are of ranks that were killed before.
                if shell in ranks or records is self._starts[-1]:
                    if code == WITHOUT_SHELLS and (launcher := self._terminated_launcher()) is not None:
                        return launcher
                    rank = ranks.get(shell)
                    others = self._other_exits(rank)
                    # The launcher may end all shells before that of the killed rank has recorded the signal.
                    if self._by_mpiexec and code == 128 + signal.SIGTERM:
                        causes = [other for other in others if other.how != how_recorded(code)]
                        if causes and (len(causes) == 1 or any(cause.how != _UNRECORDED for cause in causes)):
                            return replace(causes[0], also=tuple(causes[1:]))
                    return RankExit(rank, how_recorded(code), also=others)
        return None

    def _terminated_launcher(self) -> RankExit | None:
        """Return the launcher if SIGTERM has ended it, and it has passed the signal on to the shells of all ranks."""
        # If a shell was killed, the launcher kills the others by SIGKILL, and exits with the bits of both signals. It
        # prints how the first shell has ended.
        deadline = time.monotonic() + 2 * _LINE_S
        while self._by_mpiexec and time.monotonic() < deadline:
            lost = self._parts.lost(math.inf)
            if lost is not None:
                is_terminated = lost.how == how_exited(signal.SIGTERM) and _TERMINATED.search(self.printed())
                return RankExit(None, "ended", lost.part) if is_terminated else None
            time.sleep(_POLL_S)
        return None

    def _other_exits(self, first: int | None) -> tuple[RankExit, ...]:
        """Return the exits of ranks that were killed when the first one was, and not by the launcher because of it."""
        # The launcher kills the shells of the other ranks, which notice it, record it and end.
        deadline = time.monotonic() + _LINE_S
        while True:
            codes = {shell: code for records in self._starts for shell, code in records.exits()}
            dead = [info for info in self._infos if info.rank != first and not _is_alive(info.pid)]
            unrecorded = [info for info in dead if info.parent_pid not in codes]
            is_settled = len(dead) == self.size - 1 or not self._by_mpiexec
            if (is_settled and not unrecorded) or time.monotonic() > deadline:
                break
            time.sleep(_POLL_S)
        return tuple(
            RankExit(info.rank, _UNRECORDED if code is None else how_recorded(code))
            for info in dead
            if (code := codes.get(info.parent_pid)) is None or code > 128
        )

    def _unrecorded_exit(self) -> RankExit | None:
        """Return an exit without a record: of the launcher or its proxy, or of a stopped process."""
        stalled = self.stalled()
        if stalled is not None:
            return stalled
        without_shell = [info.rank for info in self._infos if not _is_alive(info.parent_pid)]
        if not without_shell:
            # Without a proxy, the ranks can still reach each other, but nothing that they print arrives.
            return self._proxies.lost(math.inf)
        if self._by_mpiexec:
            return RankExit(None, "ended", f"the MPI launcher (process {self._launcher.pid})")
        return RankExit(without_shell[0], how_recorded(WITHOUT_SHELL))

    def interrupt(self) -> None:
        for info in self._infos:
            with contextlib.suppress(ProcessLookupError):
                os.kill(info.pid, signal.SIGINT)

    def kill(self, *, reuse: bool = True) -> None:
        """Kill the processes of the ranks. With `reuse`, NCCL ranks that abort their communicators in time survive."""
        self._reaper.watch_descendants()
        is_connected = self._controller is not None and self._client is not None and self._controller.lost() is None
        saved = self._abort_ranks() if reuse and self._facts.survives and is_connected else set()
        doomed = [info for info in self._infos if info.rank not in saved]
        for info in doomed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(info.pid, signal.SIGKILL)
        # Each engine has a nanny process of ipyparallel, which reports the death of the engine to the controller and
        # then exits. If the nannies were killed too, the client would list dead engines until their heartbeats fail.
        uuids = self._uuids() if is_connected else {}
        gone = {uuids[engine] for info in doomed if (engine := self._engine_ids[info.rank]) in uuids}
        self._killed |= gone
        deadline = time.monotonic() + 1.0
        while (
            is_connected
            and time.monotonic() < deadline
            and (gone & set(self._uuids().values()) or (not saved and marked_processes(_SET, self._set_mark)))
        ):
            time.sleep(0.02)
        if saved:
            return
        segments = kill_processes(_SET, self._set_mark)
        remove_files({*segments, *(path for info in self._infos for path in info.segments)})

    def _abort_ranks(self) -> set[int]:
        """Make the ranks abort their communicators. Return those that respond and can be reused."""
        if self._positions is None:
            return set()
        # Ranks blocked in NCCL poll this flag and abort, so their processes survive for the next start(). It is one
        # flag for all, because an abort in NCCL can hang until the other ranks of the host abort too, or are gone. So a
        # rank that the others wait for, and that does not see the flag, is killed first. Ranks that do not return in
        # time are killed later.
        self._positions.abort()
        self._wait_for_aborts(_LATE_S)
        for rank in self._late_ranks():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._infos[rank].pid, signal.SIGKILL)
        self._wait_for_aborts(_ABORT_S - _LATE_S)
        alive = set(self._client.ids)
        return {
            rank
            for rank, future in self._pending.items()
            if future.done() and future.exception() is None and self._engine_ids[rank] in alive
        }

    def _wait_for_aborts(self, limit_s: float) -> None:
        """Wait until all ranks that are still alive have returned."""
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            if all(future.done() or not _is_alive(self._infos[rank].pid) for rank, future in self._pending.items()):
                return
            time.sleep(0.01)

    def _late_ranks(self) -> list[int]:
        """Return the ranks that are busy outside of a call, and have made fewer calls than others."""
        positions = self.positions()
        most = max(position.calls for position in positions)
        return [
            rank
            for rank, future in self._pending.items()
            if not future.done() and not positions[rank].is_inside and 0 <= positions[rank].calls < most
        ]

    def _debug_file(self) -> dict[str, str]:
        """Send NCCL's debug output to one file per process, separate from the output of the ranks."""
        is_debug = "NCCL_DEBUG" in self._env and "NCCL_DEBUG_FILE" not in self._env
        return {"NCCL_DEBUG_FILE": str(self._folder / "nccl-%p.log")} if is_debug else {}

    def leave_out_ranks(self, check_size: Callable[[int], None]) -> Sequence[str]:
        """Leave out the ranks whose processes are gone. The others keep their order and their devices."""
        if not self._facts.survives:
            raise EngineError(
                f"the ranks of {self.backend} do not survive the fault of another one, so none are left",
                hint="call engines.restart() to start new ranks",
            )
        living = self._surviving_engines()
        left = [rank for rank, engine in enumerate(self._engine_ids) if engine in living]
        lost = [f"rank {rank}" for rank in range(self.size) if rank not in left]
        if not left:
            raise EngineError("no rank has survived", hint="call engines.restart() to start new ranks")
        if lost:
            check_size(len(left))
            self.size = len(left)
            self._engine_ids = [self._engine_ids[rank] for rank in left]
            self._devices = [self._devices[rank] for rank in left]
            self.launch_arguments = {**(self.launch_arguments or {}), "devices": self._devices}
        return lost

    def library_logs(self) -> list[str]:
        logs = []
        for info in self._infos:
            try:
                logs.append((self._folder / f"nccl-{info.pid}.log").read_text(errors="replace"))
            except OSError:
                logs.append("")
        return logs

    def printed(self) -> str:
        """Return what the ranks and mpiexec printed, without the lines of ipyparallel, and at most its last MiB."""
        return printed_text(self._starts[-1].log_file) if self._starts else ""

    def log_tail(self) -> str:
        """Return the last lines that the ranks or mpiexec printed, without those of ipyparallel."""
        return "\n".join(self.printed().splitlines()[-12:])

    def close(self) -> None:
        """Request the ranks to end, wait up to a second, and let the reaper do the rest."""
        self._is_closing = True  # a start in another thread ends at its next check
        is_locked = self._starting.acquire(timeout=_CLOSE_S)
        try:
            if self._is_closed:
                return
            self._end_ranks()
            self._reaper.release()
            self._finalizer.detach()
            if self._controller is not None:
                self._controller.close()
                # A start that was interrupted goes on in its thread, and may create the folder or a process again.
                if self._controller.end_threads(_ABANDONED_S):
                    clean_up(RUN, self._id, str(self._folder))
            self._positions = None
            self._is_closed = True
        finally:
            if is_locked:
                self._starting.release()

    def _end_ranks(self) -> None:
        """Let the ranks end themselves, if all of them can."""
        if self._client is None or self._lost_part() is not None:
            return
        if not all(_is_alive(info.pid) and not is_stopped(info.pid) for info in self._infos):
            return
        self._reaper.watch_descendants()
        with contextlib.suppress(Exception):
            # Without the hub, because the client would wait for its reply without a limit.
            self._client.shutdown(hub=False, block=False)
        deadline = time.monotonic() + _CLOSE_S
        while time.monotonic() < deadline and any(_is_alive(info.pid) for info in self._infos):
            time.sleep(2 * _POLL_S)


@contextlib.contextmanager
def _without_system_errors() -> Iterator[None]:
    """Raise errors of the operating system, such as that of a full disk, as an `EngineError`."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error) or "not in time"
        hint = f"make {tempfile.gettempdir()} writable, or set TMPDIR to a different folder"
        raise EngineError(
            f"the engines cannot be started: {reason}", hint=hint if error.errno in _UNWRITABLE else "try again"
        ) from error


def _is_alive(pid: int) -> bool:
    return status_of(pid) not in ("", psutil.STATUS_ZOMBIE)


def _engines(n: int) -> str:
    return f"{n} engine{'s' * (n != 1)}"


def import_path() -> dict[str, str]:
    """Let the engines import the same meshlab as this process, even if it is not installed."""
    home = str(Path(__file__).parents[2])
    if home in [*site.getsitepackages(), site.getusersitepackages()]:
        return {}
    path = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": f"{home}{os.pathsep}{path}" if path else home}


def _loopback_settings() -> dict[str, str]:
    """Make the network layers of MPI listen on the loopback device, which other hosts cannot reach."""
    # Ranks of one host communicate through shared memory, but their library also opens ports by default.
    for name, addresses in psutil.net_if_addrs().items():
        if any(address.address == "127.0.0.1" for address in addresses):
            # MPICH is built on UCX and libfabric, and uses the first one unless MPIR_CVAR_CH4_NETMOD is "ofi".
            settings = dict.fromkeys(("UCX_NET_DEVICES", "FI_TCP_IFACE", "FI_SOCKETS_IFACE"), name)
            return {variable: value for variable, value in settings.items() if variable not in os.environ}
    return {}
