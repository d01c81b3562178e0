"""The harness of the chaos test: it starts a client, hits it or its ranks, and observes what happens."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from tests.chaos.client import HIT, digest
from tests.chaos.faults import FUNCTION_KINDS, SIGNAL_KINDS, SWEEPS, Fault
from tests.chaos.judging import HANG_S, NOTICE_S, Observation, Phase, Victim, judge, start_limit_s
from tests.chaos.processes import MARK, Part, abandoned_segments, end_all, files_of, find_parts, is_left, segments
from tests.chaos.reports import broken_reports

__all__ = ["Harness", "Settings", "attack_all"]

_AFTER_S = 5.0  # time to clean up after a start that has reached its limit
_EVENT_S = 60.0  # time until a command begins, or a run reports its next step
_MEASURING_S = 60.0
_START_S = 90.0  # time that a client gets to import everything, which is not part of the test
_SPANS_S = {
    "launch": 2.5,
    "restart": 2.0,
    "call": 0.5,
    "close": 0.4,
    "leave": 0.5,
    "save": 0.9,
    "write_report": 3.0,
    "tune": 8.0,
    "compare_env": 6.0,
    "rehearse": 1.2,
}
_SETS = {"compare_env": 2, "tune": 3}  # sets of ranks that a function starts one after the other
_LIFE_S = 3.5  # time from the start of such ranks to their end
_CLOSING_S = 0.5  # time that the last call before the end of such ranks may take
_NUMBERS = {"kill": signal.SIGKILL, "terminate": signal.SIGTERM, "stop": signal.SIGSTOP, "pause": signal.SIGSTOP}


@dataclass(frozen=True, slots=True)
class Settings:
    """What the client launches.

    Parameters
    ----------
    backend : str
        The backend.
    ranks : int
        The number of ranks.
    devices : tuple of int, default ()
        The GPU of each rank, for NCCL.
    env : dict, optional
        Environment variables of the ranks.
    deadline_s, timeout_s : float
        The arguments of `meshlab.launch`.
    step_s : float, default 0.15
        Duration of a step of a benchmark, in seconds.
    hang_s : float, default 15
        The longest time that anything but a start may take, in seconds.
    gone_s : float, default 10
        The time that processes and files get to go away, in seconds.
    notice_s : float, default 2
        The time in which the death of a rank that is being started has to raise, in seconds.
    torch : bool, default False
        Whether the ranks call collectives of torch too.
    """

    backend: str = "mpi"
    ranks: int = 4
    devices: tuple[int, ...] = ()
    env: dict[str, str] | None = None
    deadline_s: float = 6.0
    timeout_s: float = 14.0
    step_s: float = 0.15
    hang_s: float = HANG_S
    gone_s: float = 10.0
    notice_s: float = NOTICE_S
    torch: bool = False

    @property
    def mesh(self) -> str:
        """The mesh of the ranks."""
        return f"dp={self.ranks // 2}, tp=2" if self.ranks % 2 == 0 and self.ranks > 2 else f"tp={self.ranks}"


class ClientEndedError(Exception):
    """The client has ended before it answered."""


class SlowClientError(Exception):
    """The client has not answered in time. The message shows where its threads are."""


_ROOT = Path(__file__).parents[2]
_UNPREPARED = (RuntimeError, ClientEndedError, SlowClientError)


def _own_error(text: str) -> dict[str, Any]:
    """Return an error that the harness found, in the form of those of the client."""
    return {"type": "", "text": text, "is_meshlab": False, "is_interrupt": False, "rank": None}


class ClientProcess:
    """A program that is a client, and the events that it has reported."""

    kind = "program"

    def __init__(self, settings: Settings, folder: Path, mark: str) -> None:
        self.temporary = folder / "tmp"
        self.temporary.mkdir(parents=True)
        self._stacks = folder / "stacks"
        options = {
            name: getattr(settings, name)
            for name in ("backend", "ranks", "devices", "env", "deadline_s", "timeout_s", "step_s", "mesh", "torch")
        }
        self._errors = (folder / "stderr").open("ab")
        self.events: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        self.process = self._start(
            json.dumps({**options, "stacks": str(self._stacks)}),
            os.environ | {MARK: mark, "TMPDIR": str(self.temporary), "MESHLAB_PROGRESS": "0"},
            folder,
        )
        self._reader = threading.Thread(target=self._read, name="chaos events", daemon=True)
        self._reader.start()
        self.wait_for(lambda event: event["event"] == "ready", _START_S)

    def _start(self, settings: str, environment: dict[str, str], folder: Path) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.client", settings],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=_ROOT,
            env=environment,
            text=True,
            start_new_session=True,  # a process group of its own, like the foreground job of a terminal
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._add(line)

    def _add(self, line: str) -> None:
        with self._changed, contextlib.suppress(json.JSONDecodeError):  # a line may be cut off by SIGKILL
            self.events.append(json.loads(line))
            self._changed.notify_all()

    def send(self, command: str, **arguments: Any) -> int:
        """Send a command, and return the number of events before it."""
        n = len(self.events)
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps({"command": command, **arguments}) + "\n")
            self.process.stdin.flush()
        return n

    def wait_for(
        self, is_wanted: Callable[[dict[str, Any]], bool], timeout_s: float = _EVENT_S, *, since: int = 0
    ) -> dict[str, Any]:
        """Wait for an event."""
        deadline = time.monotonic() + timeout_s
        while True:
            is_over = not self.is_running  # read first: the events before its end arrive a little later
            if is_over:
                self._reader.join(10.0)
            with self._changed:
                for event in self.events[since:]:
                    if is_wanted(event):
                        return event
                if is_over:
                    raise ClientEndedError
                if time.monotonic() > deadline:
                    break
                self._changed.wait(0.02)
        raise SlowClientError(self.stacks())

    def ended(self, command: str, since: int) -> dict[str, Any] | None:
        """Return the end of a command, if it has ended."""
        for event in self.events[since:]:
            if event["event"] == "end" and event["command"] == command:
                return event
        return None

    def stacks(self) -> str:
        """Return where the threads of the client are."""
        with contextlib.suppress(OSError):
            os.kill(self.pid, signal.SIGUSR1)
            time.sleep(0.3)
            return self._stacks.read_text()
        return ""

    def interrupt(self, *, is_terminal: bool) -> None:
        """Interrupt the process, or all processes of its terminal."""
        with contextlib.suppress(ProcessLookupError):
            if is_terminal:
                os.killpg(self.pid, signal.SIGINT)
            else:
                os.kill(self.pid, signal.SIGINT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """Release what this process holds of the client."""
        for stream in (self.process.stdin, self.process.stdout, self._errors):
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.close()


class KernelProcess(ClientProcess):
    """A Jupyter kernel that is a client. The commands are cells, and the events are in a file."""

    kind = "kernel"

    def _start(self, settings: str, environment: dict[str, str], folder: Path) -> subprocess.Popen[str]:
        from jupyter_client.manager import KernelManager

        self._events_file = folder / "events"
        self._events_file.touch()
        self._manager = KernelManager(kernel_name="python3", connection_file=str(folder / "kernel.json"))
        environment |= {"IPYTHONDIR": str(folder / "ipython"), "PYTHONPATH": os.pathsep.join(_import_path())}
        self._manager.start_kernel(cwd=str(_ROOT), env=environment, stdout=self._errors, stderr=self._errors)
        self._channels = self._manager.client()
        self._channels.start_channels()
        self._channels.wait_for_ready(timeout=_START_S)
        arguments = f"{settings!r}, {str(self._events_file)!r}"
        self._run(f"from tests.chaos.client import start_in_kernel; chaos = start_in_kernel({arguments})")
        process: subprocess.Popen[str] = self._manager.provisioner.process
        return process

    def _run(self, code: str) -> None:
        self._channels.execute(code, store_history=False, allow_stdin=False)

    def _read(self) -> None:
        with self._events_file.open() as file:
            line = ""
            while True:
                is_over = not self.is_running
                line += file.readline()
                if line.endswith("\n"):
                    self._add(line)
                    line = ""
                elif is_over:
                    return
                else:
                    time.sleep(0.01)

    def send(self, command: str, **arguments: Any) -> int:
        n = len(self.events)
        if command == "leave":  # as the user interface requests it
            self._run("chaos.leave()")
            self._channels.shutdown()
        else:
            self._run(f"chaos.execute({command!r}, {json.dumps(arguments)!r})")
        return n

    def interrupt(self, *, is_terminal: bool) -> None:
        """Interrupt the kernel as the button of a notebook does, which signals its process group in either case."""
        if self.is_running:
            self._manager.interrupt_kernel()

    def close(self) -> None:
        self._channels.stop_channels()
        self._manager.cleanup_resources()
        super().close()


def _import_path() -> list[str]:
    """Return the import path of the kernel: the folder of these tests first."""
    return [str(_ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]


class Harness:
    """Attacks clients with faults, one after the other.

    Parameters
    ----------
    settings : Settings
        What the clients launch.
    seed : int
        The seed that the faults were drawn from, for the rows.
    """

    def __init__(self, settings: Settings, seed: int) -> None:
        self._settings = settings
        self._seed = seed
        self._mark = secrets.token_hex(8)
        self._folder = Path(tempfile.mkdtemp(prefix="chaos-"))
        self._n_clients = 0
        self._client: ClientProcess | None = None
        self._pids: list[int] = []
        self._files: set[str] = set()
        self._existing = segments()
        self._victims: list[Victim] = []
        self._since = 0
        self._fault_at = 0.0
        self._digests: list[Any] = []  # of the two versions that the client saves
        self._n_saved = 0  # versions that it has saved

    def __enter__(self) -> Harness:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the client and everything that it has started."""
        if self._client is not None:
            self._client.kill()
            self._client.close()
        end_all(self._mark)
        for name in {*self._files, *abandoned_segments(self._existing)}:
            Path(name).unlink(missing_ok=True)
        shutil.rmtree(self._folder, ignore_errors=True)

    # -- one fault -----------------------------------------------------------------------------------------------------

    def attack(self, fault: Fault) -> dict[str, Any]:
        """Prepare the moment of a fault, cause it, recover, and return the judgement."""
        seen = Observation(fault)
        self._fault_at, self._digests, self._n_saved, self._victims = 0.0, [], 0, []
        self._place = self._folder / f"fault-{fault.number}"
        self._place.mkdir()
        self._trigger = self._place / "trigger"
        self._hold = self._place / "hold"
        try:
            self._prepare_patiently(fault)
        except _UNPREPARED as error:
            seen.was_hit = False
            seen.recovery.append(Phase("prepare", 0.0, _own_error(f"the ranks did not start: {error}")))
            return self._judge(seen)
        try:
            self._strike(fault, seen)
        finally:
            self._trigger.unlink(missing_ok=True)
        self._recover(fault, seen)
        seen.seconds = time.monotonic() - self._fault_at
        if fault.moment in SWEEPS:
            self._resume(fault, seen)
        if fault.moment == "save":
            self._check_saved(seen)
        if fault.moment == "report":
            self._check_reports(seen)
        self._look_for_leftovers(seen)
        return self._judge(seen)

    def _judge(self, seen: Observation) -> dict[str, Any]:
        settings = self._settings
        return judge(
            seen,
            seed=self._seed,
            start_s=settings.timeout_s + _AFTER_S,
            hang_s=settings.hang_s,
            notice_s=settings.notice_s,
        )

    def _prepare_patiently(self, fault: Fault) -> None:
        """Prepare a fault. On a busy machine, a start may take longer than its limit, which is nobody's fault."""
        for n_left in (2, 1, 0):
            try:
                self._prepare(fault)
                return
            except _UNPREPARED:
                if not n_left:
                    raise
                self._end_client()

    def _prepare(self, fault: Fault) -> None:
        """Bring the client to the point at which the moment of the fault begins."""
        client = self._client
        if client is not None and client.is_running and client.kind != fault.client:
            self._do("close")
            self._end_client()
        if client is None or not client.is_running:
            client = self._start_client(fault.client)
        if fault.moment == "start":
            if self._pids:
                self._do("close")
        elif not self._pids:
            self._do("launch")
            self._do("verify")  # the first calls of a library may take long, and are not part of the test
        self._snapshot()
        if fault.moment == "save" and fault.number % 2:  # half of the saves find a folder that is there
            self._do("save_once", folder=str(self._place / "saved"))
        if fault.moment == "report" and fault.number % 2:
            self._do("report_once", folder=str(self._place / "report"))
        if fault.moment == "restart":
            self._do("kill")

    def _end_client(self) -> None:
        """Kill the client, and give its reapers the time to clean up."""
        if self._client is not None:
            self._client.kill()
        deadline = time.monotonic() + self._settings.gone_s
        while find_parts(self._mark) and time.monotonic() < deadline:
            time.sleep(0.1)
        end_all(self._mark)

    def _start_client(self, kind: str) -> ClientProcess:
        if self._client is not None:
            self._client.close()
        self._n_clients += 1
        self._pids = []
        start = KernelProcess if kind == "kernel" else ClientProcess
        self._client = start(self._settings, self._folder / f"client-{self._n_clients}", self._mark)
        return self._client

    def _do(self, command: str, **arguments: Any) -> Any:
        """Run a command that is not expected to fail."""
        assert self._client is not None
        since = self._client.send(command, **arguments)
        event = self._client.wait_for(
            lambda event: event["event"] == "end" and event["command"] == command, _START_S, since=since
        )
        if event["error"] is not None:
            raise RuntimeError(f"{command} failed without a fault: {event['error']['text']}")
        if command == "verify" and not event["value"]:
            raise RuntimeError("the sums were wrong without a fault")
        self._note_pids(event)
        return event["value"]

    def _limit_s(self, command: str) -> float:
        """Return the time after which a command is given up, in seconds."""
        return self._settings.hang_s + start_limit_s(
            command, self._settings.timeout_s + _AFTER_S, self._settings.hang_s
        )

    def _note_pids(self, event: dict[str, Any]) -> None:
        value = event.get("value")
        if isinstance(value, dict) and "pids" in value:
            self._pids = value["pids"]

    def _snapshot(self) -> list[Part]:
        parts = find_parts(self._mark)
        self._files |= files_of(parts)
        return parts

    # -- the fault -----------------------------------------------------------------------------------------------------

    def _strike(self, fault: Fault, seen: Observation) -> None:
        """Begin what the fault hits, cause the fault, and wait for the first error."""
        command, arguments = self._command(fault)
        client = self._client
        assert client is not None
        if fault.is_before or fault.moment == "idle":
            seen.was_hit = self._cause(fault)
            time.sleep(fault.delay)
        self._since = client.send(command, **arguments)
        if not (fault.is_before or fault.moment == "idle"):
            seen.was_hit = self._wait_for_moment(fault, command) and self._cause(fault)
            self._hold.unlink(missing_ok=True)
        self._observe(command, self._since, seen)
        seen.victims = [self._completed(victim) for victim in self._victims]
        if fault.hits_new_ranks and seen.error is None and self._was_closing():
            seen.was_hit = False
        if fault.kind in FUNCTION_KINDS:
            # On a busy machine, the function may have been called for the last time before its trigger was there.
            seen.was_hit = seen.was_hit and Path(f"{self._trigger}{HIT}").exists()
        # The command may have succeeded in spite of the fault, which the next call then shows.
        if command not in ("close", "leave") and fault.kind in SIGNAL_KINDS and not (seen.error or seen.client_ended):
            self._observe("call", client.send("call", trigger=str(self._trigger), n=5), seen)

    def _command(self, fault: Fault) -> tuple[str, dict[str, Any]]:
        """Return the command that is under way when the fault hits."""
        is_function = fault.kind in FUNCTION_KINDS
        planted = {
            "trigger": str(self._trigger),
            "kind": fault.kind if is_function else "",
            "culprit": fault.rank if is_function else -1,
        }
        if fault.moment in SWEEPS:
            held = int(fault.delay * 4) + 1 if fault.moment == "between" else -1
            self._hold.touch()
            mode = "graph" if fault.moment == "graph" and self._settings.backend == "nccl" else "pipelined"
            return "sweep", {
                "folder": str(self._place / "run"),
                "hold_after": held,
                "hold_file": str(self._hold),
                "mode": mode,
                **planted,
            }
        return {
            "start": ("launch", {}),
            "idle": ("call", {**planted, "n": 5}),
            "call": ("call", planted),
            "tune": ("tune", {}),
            "compare_env": ("compare_env", {}),
            "rehearse": ("rehearse", {}),
            "save": ("save", {"folder": str(self._place / "saved")}),
            "report": ("write_report", {"folder": str(self._place / "report")}),
            "close": ("close", {}),
            "exit": ("leave", {}),
            "restart": ("restart", {}),
        }[fault.moment]

    def _wait_for_moment(self, fault: Fault, command: str) -> bool:
        """Wait until the fault is due. Return False if the command ended before."""
        client = self._client
        assert client is not None
        client.wait_for(lambda event: event["event"] == "begin" and event["command"] == command, since=self._since)
        span = _SPANS_S.get(command, 0.0)
        until = time.monotonic() + fault.delay * span
        if fault.hits_new_ranks:
            number, share = divmod(fault.delay * _SETS[command], 1)
            client.wait_for(
                lambda event: (event["event"] == "starting" and event["number"] >= number) or event["event"] == "end",
                start_limit_s(command, self._settings.timeout_s, self._settings.hang_s),
                since=self._since,
            )
            until = time.monotonic() + share * _LIFE_S
        is_start = command in ("launch", "restart") and fault.target not in ("client", "terminal")
        while is_start or fault.hits_new_ranks:
            # The part may appear only at the end of the start.
            if client.ended(command, self._since) is not None or not client.is_running:
                return False
            if self._find(fault) and time.monotonic() >= until:
                return True
            time.sleep(0.03)
        if command == "sweep":
            wanted = int(fault.delay * 4) + 1 if fault.moment == "between" else int(fault.delay * 5)
            if fault.kind in FUNCTION_KINDS:
                # The planted function comes after the steps of the first collective. Those of a graph only run before
                # it is captured.
                wanted = min(wanted, 1 if fault.moment == "graph" else 2)
            with contextlib.suppress(SlowClientError):
                client.wait_for(
                    lambda event: (event["event"] == "step" and event["done"] >= wanted) or event["event"] == "end",
                    since=self._since,
                )
            is_exact = fault.moment == "between" or (fault.moment == "graph" and fault.kind in FUNCTION_KINDS)
            until = time.monotonic() + (0 if is_exact else fault.delay * self._settings.step_s)
        if command in ("save", "write_report"):
            event = client.wait_for(lambda event: event["event"] in ("versions", "end"), since=self._since)
            self._digests = event.get("digests", [])
            until = time.monotonic() + fault.delay * span
        time.sleep(max(0.0, until - time.monotonic()))
        return client.is_running and client.ended(command, self._since) is None

    def _find(self, fault: Fault) -> list[Part]:
        """Return the processes that the fault hits."""
        client = self._client
        assert client is not None
        parts = self._snapshot()
        if fault.target in ("client", "terminal"):
            return [part for part in parts if part.process.pid == client.pid]
        if fault.hits_new_ranks:
            present = {part.run for part in parts if part.process.pid in self._pids}
            parts = _newest([part for part in parts if part.run not in present], "run")
        roles = ("reaper", "client") if fault.target == "reaper and client" else (fault.target,)
        found = [part for part in parts if part.role in roles]
        if fault.target == "reaper and client" and len(found) < 2:
            return []
        if fault.target in ("rank", "nanny", "shell"):
            return self._of_rank(fault, found)
        if fault.target == "scheduler":
            found.sort(key=lambda part: part.process.pid)
            return found[fault.rank :: max(1, len(found))][:1] if found else []
        return sorted(found, key=lambda part: part.role != "reaper")

    def _of_rank(self, fault: Fault, found: Sequence[Part]) -> list[Part]:
        """Return the process among `found` that belongs to the rank of the fault."""
        if fault.moment in ("start", "restart") or fault.hits_new_ranks:
            # Those of the previous set may still be ending. A rank whose shell has not given it a number is the newest.
            newest = _newest(found, "ranks_of")
            if any(part.rank is not None for part in newest):
                return [part for part in newest if part.rank == fault.rank][:1]
            return sorted(newest, key=lambda part: part.process.create_time())[-1:]
        pid = self._pids[fault.rank]
        chosen = []
        for part in found:
            with contextlib.suppress(psutil.Error):
                ancestors = [part.process.pid, part.process.ppid()]
                if part.role == "shell":
                    ancestors = [child.pid for child in part.process.children(recursive=True)]
                if pid in ancestors:
                    chosen.append(part)
        return chosen[:1]

    def _cause(self, fault: Fault) -> bool:
        """Cause the fault. Return False if the part does not exist."""
        client = self._client
        assert client is not None
        if fault.kind in FUNCTION_KINDS:
            self._trigger.touch()
            self._fault_at = time.monotonic()
            return True
        if fault.kind == "interrupt":
            self._fault_at = time.monotonic()
            client.interrupt(is_terminal=fault.target == "terminal")
            return True
        found = self._find(fault)
        self._fault_at = time.monotonic()
        for part in found:
            with contextlib.suppress(psutil.Error):
                part.process.send_signal(_NUMBERS[fault.kind])
                self._victims.append(Victim(part.process.pid, part.rank, is_numbered=part.rank is not None))
        if fault.kind == "pause":
            threading.Timer(fault.pause_s, _continue, [found]).start()
        return bool(found)

    def _completed(self, victim: Victim) -> Victim:
        """Return a process that was hit with what is known later: its rank, and whether it still runs."""
        assert self._client is not None
        sets = [event["ranks"] for event in self._client.events[self._since :] if event["event"] == "started"]
        ranks = (pids.index(victim.pid) for pids in (*sets, self._pids) if victim.pid in pids)
        rank = next(ranks, None) if victim.rank is None else victim.rank
        has_survived = any(part.process.pid == victim.pid for part in find_parts(self._mark))
        return replace(victim, rank=rank, has_survived=has_survived)

    def _was_closing(self) -> bool:
        """Return whether the newest ranks of a function were not needed any more when the fault hit them."""
        assert self._client is not None
        events = [event for event in self._client.events[self._since :] if event["at"] < self._fault_at + _CLOSING_S]
        started = [event["ranks"] for event in events if event["event"] == "started"]
        n_starts = sum(event["event"] == "starting" for event in events)
        closed = [event["ranks"] for event in events if event["event"] == "closing"]
        return bool(started) and len(started) == n_starts and started[-1] in closed

    def _observe(self, command: str, since: int, seen: Observation) -> None:
        """Wait until the command ends, or the client."""
        client = self._client
        assert client is not None
        if not self._fault_at:
            self._fault_at = time.monotonic()
        # A command that was under way takes until now since the fault, and a later one since it began.
        began = self._fault_at if not seen.phases else time.monotonic()
        error, stacks = None, ""
        try:
            if command == "leave":
                client.process.wait(self._limit_s(command))
                raise ClientEndedError
            event = client.wait_for(
                lambda event: event["event"] == "end" and event["command"] == command,
                self._limit_s(command),
                since=since,
            )
            error = event["error"]
            self._note_pids(event)
            seen.noticed_s = self._noticed_s(event, since)
            if event["value"] is None and command in ("launch", "close"):
                self._pids = []
            if command == "sweep" and isinstance(event["value"], dict):
                seen.after, seen.n_expected = event["value"]["rows"], event["value"]["expected"]
            if isinstance(event["value"], dict) and event["value"].get("failed"):
                error = event["value"]["failed"]
        except ClientEndedError:
            seen.client_ended = True
            self._pids = []
        except (SlowClientError, subprocess.TimeoutExpired):
            stacks = client.stacks()
            client.kill()
            seen.client_ended = True
            self._pids = []
        seen.phases.append(Phase(command, time.monotonic() - began, error, stacks))

    def _noticed_s(self, end: dict[str, Any], since: int) -> float | None:
        """Return the time from the fault until a start of ranks has failed. None if none has."""
        assert self._client is not None
        for event in (*self._client.events[since:], end):
            if (error := event.get("error")) and event["event"] in ("not started", "end"):
                return event["at"] - self._fault_at if "during start-up" in error["text"] else None
        return None

    # -- recovery ------------------------------------------------------------------------------------------------------

    def _recover(self, fault: Fault, seen: Observation) -> None:
        """Get working ranks again: by a restart, or a new client if there is none."""
        client, since = self._client, self._since
        assert client is not None
        self._n_saved = sum(event["event"] == "saved" for event in client.events[since:])
        if not client.is_running:
            self._count_measured(client, seen, since)
            # Before a new client starts, so that its processes are not mistaken for those that were left.
            self._look_for_leftovers(seen, is_client_gone=True)
            self._start_client(fault.client)
            self._try("launch", seen)
        elif fault.moment in SWEEPS:
            self._count_measured(client, seen, since)
            self._try("settle", seen)
        if self._client is client and client.is_running:
            state = self._try("describe", seen)["state"]
            if fault.moment == "close":
                # A call that an interrupt or an error ended is completed by a second one.
                if state != "closed" or seen.error is not None:
                    self._try("close", seen)
                self._pids = []
                self._look_for_leftovers(seen, is_closed=True)
                self._try("launch", seen)
            elif state == "closed":
                self._look_for_leftovers(seen, is_closed=True)
                self._try("launch", seen)
            elif state != "ready" or self._needs_restart(fault):
                self._try("restart", seen)
        seen.works = bool(self._try("verify", seen))
        if not seen.works:
            # The next fault needs working ranks. The row of this one says that they did not recover.
            assert self._client is not None
            self._client.kill()
            self._look_for_leftovers(seen, is_client_gone=True)
            self._start_client(fault.client)
            self._try("launch", seen)
            self._try("verify", seen)

    @staticmethod
    def _needs_restart(fault: Fault) -> bool:
        """Return whether a part is gone whose absence no error has shown yet."""
        is_gone = fault.kind in ("kill", "terminate", "stop") and fault.target not in ("client", "reaper")
        return is_gone and not fault.hits_new_ranks

    def _try(self, command: str, seen: Observation, **arguments: Any) -> Any:
        """Run a command of the recovery, and record how it went."""
        client = self._client
        assert client is not None
        began = time.monotonic()
        since = client.send(command, **arguments)
        try:
            event = client.wait_for(
                lambda event: event["event"] == "end" and event["command"] == command,
                _MEASURING_S if command == "resume" else self._limit_s(command),
                since=since,
            )
        except (ClientEndedError, SlowClientError) as error:
            text = "the client ended" if isinstance(error, ClientEndedError) else "no answer"
            seen.recovery.append(Phase(command, time.monotonic() - began, _own_error(text), str(error)))
            client.kill()
            return {"state": "closed", "pids": []}
        phase = Phase(command, time.monotonic() - began, event["error"])
        seen.recovery.append(phase)
        self._note_pids(event)
        self._snapshot()
        if phase.is_slow_start and sum(other.is_slow_start for other in seen.recovery) == 1:
            return self._try(command, seen, **arguments)
        return event["value"] if event["error"] is None else {}

    @staticmethod
    def _count_measured(client: ClientProcess, seen: Observation, since: int) -> None:
        """Count the rows that the client had reported when it, or its run, ended."""
        if seen.fault.moment in SWEEPS:
            counts = [event["measured"] for event in client.events[since:] if event["event"] == "step"]
            seen.measured = max(counts, default=0)

    def _resume(self, fault: Fault, seen: Observation) -> None:
        """Resume the run, and take its rows."""
        folder = self._place / "run"
        arguments: dict[str, Any] = {}
        if seen.client_ended or fault.from_folder:
            # A client that ended before its first row has written no folder.
            arguments = {"source": str(folder)} if folder.exists() else {"folder": str(self._place / "saved-run")}
        if seen.client_ended and not folder.exists():
            return
        result = self._try("resume", seen, **arguments)
        if result:
            seen.before, seen.after, seen.n_expected = result["before"], result["rows"], result["expected"]

    def _check_saved(self, seen: Observation) -> None:
        """Compare the run in the folder with the versions that were written."""
        import meshlab as ml

        assert self._client is not None
        folder = self._place / "saved"
        try:
            found = digest(ml.Run.load(folder))
        except Exception as error:
            if seen.fault.number % 2 or self._n_saved:  # a version was complete before the fault
                seen.file_error = f"the saved run cannot be read: {type(error).__name__}: {error}"
        else:
            if found not in self._digests:
                seen.file_error = f"the saved run is {found}, but one of {self._digests} was written"
        written = self._try("save_once", seen, folder=str(folder))
        if not seen.file_error and digest(ml.Run.load(folder)) != written:
            seen.file_error = "a save after the fault was not complete"
        beside = [
            path.name for path in self._place.iterdir() if path.name != "saved" and not path.name.startswith("trigger")
        ]
        seen.files += [f"beside the saved run: {name}" for name in beside]

    def _check_reports(self, seen: Observation) -> None:
        """Read the reports that were being written, and those that the next attempt writes over them."""
        folder = self._place / "report"
        seen.file_error = "; ".join(broken_reports(folder, self._digests))
        n_rows = self._try("report_once", seen, folder=str(folder))
        if not seen.file_error and n_rows:
            seen.file_error = "; ".join(broken_reports(folder, [n_rows], is_complete=True))
        seen.files += [f"beside the report: {path.name}" for path in folder.glob(".*")]

    # -- what is left --------------------------------------------------------------------------------------------------

    def _look_for_leftovers(self, seen: Observation, *, is_client_gone: bool = False, is_closed: bool = False) -> None:
        """Wait until nothing is left that should be gone, and note what stays."""
        client = self._client
        assert client is not None
        pids = [] if is_client_gone or is_closed else self._pids
        alive = None if is_client_gone else client.pid
        deadline = time.monotonic() + self._settings.gone_s
        while True:
            parts = find_parts(self._mark)
            if not (is_client_gone or is_closed):
                self._files |= files_of(parts)
            processes, files = is_left(parts, self._files, client.temporary, pids=pids, client=alive)
            files = sorted({*files, *abandoned_segments(self._existing)})
            if not (processes or files) or time.monotonic() > deadline:
                break
            time.sleep(0.1)
        seen.processes += processes
        seen.files += files
        # What was reported once must not be reported for every later fault.
        for part in parts:
            if str(part) in processes or f"another {part}" in processes:
                with contextlib.suppress(psutil.Error):
                    part.process.kill()
        for name in files:
            path = Path(name)
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def _newest(parts: Sequence[Part], attribute: str) -> list[Part]:
    """Return the parts with the same value of an attribute as the newest ones: of one run, or of one set of ranks."""
    born: dict[str, float] = {}
    for part in parts:
        with contextlib.suppress(psutil.Error):
            value, time_s = getattr(part, attribute), part.process.create_time()
            born[value] = min(time_s, born.get(value, time_s))
    newest = max((value for value in born if value), key=born.__getitem__, default=None)
    return [part for part in parts if newest is not None and getattr(part, attribute) == newest]


def _continue(parts: Sequence[Part]) -> None:
    for part in parts:
        with contextlib.suppress(psutil.Error):
            part.process.send_signal(signal.SIGCONT)


def attack_all(settings: Settings, faults: Sequence[Fault], seed: int) -> Iterator[dict[str, Any]]:
    """Yield one row per fault, as soon as it is judged."""
    with Harness(settings, seed) as harness:
        for fault in faults:
            yield harness.attack(fault)
