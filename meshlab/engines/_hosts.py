"""Ranks that this process starts on other hosts: their engines, the controller of them on this host, and their job."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import secrets
import shlex
import shutil
import socket
import subprocess
import sys
import time
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from meshlab.base._backends import GPU_BACKENDS
from meshlab.base._errors import EngineError
from meshlab.base._hints import MORE_TIME, NEW_RANKS, RANKS_LEFT, Hint
from meshlab.base._version import __version__
from meshlab.comm._agreement import Checks
from meshlab.engines import _host_start as host_start
from meshlab.engines._controller import Controller
from meshlab.engines._host_choice import HostChoice, read_template
from meshlab.engines._host_jobs import (
    NO_TASK,
    TASK_FIX,
    HostJob,
    LocalJob,
    SlurmJob,
    hosts_of_slurm,
    is_in_allocation,
    rejection,
)
from meshlab.engines._host_links import LINK, HostLinks, Loss
from meshlab.engines._host_queue import waiting_line
from meshlab.engines._interrupts import interrupts_kept
from meshlab.engines._lifeline import BACKEND, CONNECTION, REAPER
from meshlab.engines._local import find_mpiexec, import_path
from meshlab.engines._packets import MTU_FIX, loss_text
from meshlab.engines._processes import AttachedSet, ProcessSet, can_encrypt
from meshlab.engines._rank_plan import EngineFacts
from meshlab.engines._reaper import RUN, Reaper, clean_up_after_others, make_folder, remove_files, shared_memory_files
from meshlab.engines._records import printed_text
from meshlab.engines._rounds import RankExit, RankInfo, RankSet

ADDRESS = "MESHLAB_ADDRESS"
"""The environment variable with the address of this host under which other hosts reach it."""

# Without a master of its own: that would outlive this process with its standard error, or end with the run although
# terminals of the user share it. An existing one is used.
_NO_MASTER = ("-o", "ControlMaster=no")
SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", *_NO_MASTER)
"""The command, in front of a host and a command there, that neither asks a question nor waits for ever."""

# MPICH's launcher calls it as "ssh -x HOST COMMAND". Its proxies write the topology of their host to a file in /tmp,
# which stays if they are killed, unless the variable is set.
_SSH_SCRIPT = f"""#!/bin/sh
[ "$1" != -x ] || shift
host=$1; shift
exec ssh -x -o BatchMode=yes {shlex.join(_NO_MASTER)} "$host" env HWLOC_XMLFILE= "$@"
"""

_SSH_S = 40.0  # maximum time of the check of a host
_POLL_S = 0.02
_CLOSE_S = 2.0  # time that the ranks get to end themselves when the engines are closed
_EXIT_S = 5.0  # time until the end of a rank or the silence of its host is noticed
_NOISE = ("Warning: Permanently added", "Pseudo-terminal")

# Engines end themselves without the controller after some time, and the default is several minutes.
_ENGINE = ["--log-level=WARN"]

# What Slurm writes if a host lacks the interpreter.
_NO_PROGRAM = re.compile(r"(?m)^slurmstepd-(\S+): error: execve\(\): (/\S+): No such file")

_NO_INTERFACE = re.compile(r"(?m)^\S+ has no network interface .* names$")  # which a rank has written when it started

_OF_SHELL = re.compile(r"[\s\"'`$\\;&|<>()*?#]")  # what a path loses between mpiexec, ssh and the shell of a host

_FOLDER_FIX = "pass a folder that all hosts see to launch()"


class _SshReply(NamedTuple):
    code: int
    output: str
    errors: str


class HostedSet(AttachedSet):
    """Engines on hosts, started by this process through ssh or a scheduler, and ended with it."""

    # The files of the run are in a folder that all hosts see. The controller listens on an address that they reach, and
    # encrypts all messages. On each host the ranks hold a connection to the client, and end themselves with it.

    is_attached = False

    def __init__(
        self,
        n: int,
        choice: HostChoice,
        backend: str = "auto",
        *,
        env: Mapping[str, str] | None = None,
        checks: Checks = "first",
        folder: str | Path | None = None,
    ) -> None:
        ProcessSet.__init__(self, n, backend)  # "auto" until the engines have described themselves
        self._checks: Checks = checks
        self._choice = choice
        self._per_host = choice.per_host(n)
        hosts = shlex.quote(",".join(choice.names) or shlex.join([choice.kind, *choice.options]))
        self._late_hint = f"check the paths between the hosts with `meshlab doctor --hosts {hosts}`"
        self._env = dict(env or {})
        self._shared = Path.home() / ".cache" / "meshlab" if folder is None else Path(folder).absolute()
        if (character := _OF_SHELL.search(str(self._shared))) is not None:
            raise EngineError(
                f"the folder {self._shared} has the character {character[0]!r}, which launchers do not pass on",
                hint=_FOLDER_FIX,
            )
        self._template, _ = read_template(choice.kind)
        self._n = n
        self._folder: Path | None = None
        self._reaper: Reaper | None = None
        self._finalizer: weakref.finalize[Any, Any] | None = None
        self._links: HostLinks | None = None
        self._controller: Controller | None = None
        self._job: HostJob | None = None
        self._id = ""
        self._is_closing = False
        self._has_run = False
        if not can_encrypt():
            raise EngineError(
                "engines on other hosts need encryption, which libzmq of this Python does not have",
                hint="install pyzmq from a wheel",
            )
        if choice.kind == "ssh" and shutil.which("ssh") is None:
            raise EngineError("ranks on other hosts need ssh, which is not installed")

    def leave_out_hosts(self, check_size: Callable[[int], None]) -> Sequence[str]:
        """Leave out the hosts that do not answer, and their ranks. The others keep their order."""
        if self._choice.kind == "ssh":
            replies = self._run_on_hosts("true")
            counts = {
                name: max(0, min(self._per_host, self._n - index * self._per_host))
                for index, name in enumerate(self._choice.names)
            }
            left = {name: counts[name] for name, reply in replies.items() if reply is not None and reply.code != 255}
        else:
            silent = {loss.host for loss in self._losses() if loss.is_silent}
            counts = dict(Counter(info.host for info in self._infos))
            left = {host: n for host, n in counts.items() if host not in silent}
        dropped = [host for host in counts if host not in left]
        if not dropped:
            return ()
        n = sum(left.values())
        if n == 0:
            raise EngineError(
                f"none of the hosts answers: {', '.join(dropped)}", hint="wait for one, or close the engines"
            )
        check_size(n)
        self._choice = self._choice.only(list(left))
        self._n = self.size = n
        self.launch_arguments = {**(self.launch_arguments or {}), "hosts": self._choice.argument}
        return dropped

    def start(self, timeout_s: float) -> tuple[RankInfo, ...]:
        """Check the hosts, start the engines, wait for them in the queue if there is one, and open the ranks."""
        self._end()  # of an earlier start
        try:
            with interrupts_kept():
                return self._start(timeout_s)
        except BaseException:
            self._end()
            raise

    def _start(self, timeout_s: float) -> tuple[RankInfo, ...]:
        deadline = time.monotonic() + timeout_s
        address = own_address(self._choice)
        folder = self._make_folder()
        self._links = _links(address)
        self._write_settings(folder)
        if self._choice.kind == "ssh":
            self._check_hosts(folder)
        is_queued = self._choice.kind == "slurm" and not is_in_allocation()
        environment = {**import_path(), **self._marks(folder)}
        assert self._reaper is not None
        self._controller = Controller(
            folder / "controller",
            self._id,
            "slurm" if is_queued else "mpi",
            {**environment, REAPER: json.dumps(self._reaper.command)},
            address,
        )
        self._controller.start(deadline, self._check_closing)
        start: type[LocalJob] | type[SlurmJob] = SlurmJob if is_queued else LocalJob
        self._job = start(
            self._controller,
            self._n,
            self._write_script(folder, address, is_queued=is_queued),
            folder / "log",
            {
                **environment,
                **self._env,
                BACKEND: "mpi" if self.backend == "auto" else self.backend,
                CONNECTION: str(self._controller.addresses),
                LINK: str(folder / "link.json"),
                "PYTHONUNBUFFERED": "1",
            },
            deadline=deadline,
            check=self._check_closing,
            **({"options": self._choice.options} if is_queued else {}),
        )
        if self._job.ends_by:
            self._reaper.end_by(self._job.ends_by)
        self._client = self._controller.connect(deadline, self._check_start)
        self._wait_for_engines(timeout_s)
        infos = super().start(max(5.0, timeout_s))
        self._forget_segments()
        self._has_run = True
        return infos

    # -- the files of the run ------------------------------------------------------------------------------------------

    def _make_folder(self) -> Path:
        self._id = secrets.token_hex(8)
        try:
            self._shared.mkdir(mode=0o700, parents=True, exist_ok=True)
            clean_up_after_others(self._shared)
            folder = make_folder(self._shared)
        except OSError as error:
            raise EngineError(
                f"the folder {self._shared} cannot be used: {error.strerror}",
                hint=_FOLDER_FIX,
            ) from error
        self._folder = folder
        self._reaper = Reaper(RUN, self._id, folder)
        self._finalizer = weakref.finalize(self, self._reaper.release)
        return folder

    def _write_settings(self, folder: Path) -> None:
        assert self._links is not None
        address, port = self._links.address
        needs_gpus = self.backend in GPU_BACKENDS and self._choice.names
        gpus = self._per_host if needs_gpus else 0
        settings = (platform.python_version(), __version__, address, port, gpus)
        (folder / host_start.SETTINGS).write_text("\n".join(map(str, settings)))
        (folder / "link.json").write_text(
            json.dumps({"address": address, "port": port, "token": self._links.token})
        )  # in a folder that only the user can read
        shutil.copy(host_start.__file__, folder / "start.py")

    def _marks(self, folder: Path) -> dict[str, str]:
        return {RUN: self._id, "IPYTHONDIR": str(folder / "ipython")}

    def _write_script(self, folder: Path, address: str, *, is_queued: bool) -> Path:
        engine = ["-m", "meshlab.engines._lifeline", "remote-rank", "ipyparallel.engine", *_ENGINE]
        fields: dict[str, Any] = {
            "n": self._n,
            "log": folder / "log",
            "program": shlex.join([sys.executable, str(folder / "start.py"), str(folder), "rank", *engine]),
            # sbatch gets the options of a job, and srun those of a step.
            "options": "" if is_queued else shlex.join(self._choice.options),
            "hosts": ",".join(self._choice.names),
            "per_host": self._per_host,
            "address": address,
            "mpiexec": find_mpiexec() if "{mpiexec}" in self._template else "",
            "ssh": folder / "ssh.sh",
        }
        (folder / "ssh.sh").write_text(_SSH_SCRIPT)
        (folder / "ssh.sh").chmod(0o700)
        script = folder / "ranks.sh"
        script.write_text(self._template.format(**fields))
        return script

    # -- the checks ----------------------------------------------------------------------------------------------------

    def _check_hosts(self, folder: Path) -> None:
        """Check all hosts over ssh, at the same time, before anything starts there."""
        variables = [f"{name}={value}" for name, value in import_path().items()]
        command = shlex.join(["env", *variables, sys.executable, str(folder / "start.py"), str(folder), "check"])
        replies = self._run_on_hosts(command)
        texts = (
            self._silence(name) if reply is None else self._problem(name, *reply) for name, reply in replies.items()
        )
        problems = [problem for problem in texts if problem]
        if problems:
            n_more = len(problems) - 1
            others = f", and {n_more} more host{'s have problems' if n_more > 1 else ' has a problem'}" * bool(n_more)
            raise EngineError(f"{problems[0]}{others}", hint=self._fix(problems[0]))

    def _run_on_hosts(self, command: str) -> dict[str, _SshReply | None]:
        """Run a command on all hosts over ssh, at the same time. A host that does not answer in time has no reply."""
        pipe = subprocess.PIPE
        processes = {
            name: subprocess.Popen(
                [*SSH, name, command], stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, errors="replace"
            )
            for name in self._choice.names
        }
        replies: dict[str, _SshReply | None] = dict.fromkeys(processes)
        deadline = time.monotonic() + _SSH_S
        try:
            for name, process in processes.items():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    output, errors = process.communicate(timeout=max(0.1, deadline - time.monotonic()))
                    replies[name] = _SshReply(process.returncode, output, errors)
        finally:
            for process in processes.values():
                process.kill()
                process.communicate()
        return replies

    def _silence(self, name: str) -> str:
        loss = loss_text(name_of(name))
        return f"{name} does not answer over ssh within {_SSH_S:g} s{f': {loss}' if loss else ''}"

    def _problem(self, name: str, code: int, output: str, errors: str) -> str:
        """Return what the check of a host has found, or an empty string."""
        lines = [line for line in errors.splitlines() if line.strip() and not line.startswith(_NOISE)]
        last = lines[-1].strip().removesuffix(".") if lines else f"exit code {code}"
        if code == 255:
            return f"{name} cannot be reached over ssh: {last.removeprefix('ssh: ')}"
        if "can't open file" in errors:
            return f"{name} does not see the folder {self._folder}"
        if code in (126, 127):
            return f"{name} has no {sys.executable}"
        checked = [line for line in output.splitlines() if line.startswith(host_start.CHECKED)]
        return checked[-1].removeprefix(host_start.CHECKED) if checked else f"{name}: {last}"

    def _fix(self, problem: str) -> str:
        if " bytes do not arrive" in problem:
            return MTU_FIX
        if " the folder " in problem:
            return _FOLDER_FIX
        if " over ssh" in problem:
            host = problem.partition(" ")[0]
            return Hint("{}", RANKS_LEFT) if self._has_run else f"make `ssh {host} true` work without a password"
        if " GPU" in problem:
            return "start one rank per GPU, on more hosts, or choose another backend"
        if " does not reach " in problem:
            return f"set {ADDRESS} to the address of this host in their network"
        if (
            " has no /" in problem
            or "cannot import" in problem
            or " has Python " in problem
            or " has meshlab" in problem
        ):
            return "install the same environment under the same path on all hosts"
        return ""

    def _check_closing(self) -> None:
        if self._is_closing:
            raise EngineError("the engines were closed while they started")

    def _check_start(self) -> None:
        """Raise an `EngineError` if the engines are closed, or can no longer start."""
        self._check_closing()
        if self._folder is not None:
            for file in sorted(self._folder.glob(f"{host_start.PROBLEM}*")):
                problem = file.read_text()
                if problem:
                    raise EngineError(problem, hint=self._fix(problem))
        if self._controller is not None and (problem := self._controller.start_problem()):
            raise EngineError(f"{problem} during start-up", hint="start the engines again", log=self.log_tail())
        if self._job is None:
            return
        state = self._job.state()
        state.check()
        if state.is_over:
            self._check_log()
            log = self.log_tail()
            hint = "" if log else f"if a host does not see the folder {self._folder}, {_FOLDER_FIX}"
            raise EngineError(f"{state.text} before the ranks were ready", hint=hint, log=log)
        lost = self._lost()
        if lost is not None:
            self._check_log()
            self._check_packets()
            raise EngineError(f"{lost.text} during start-up", hint="start the engines again", log=self.log_tail())

    def _check_log(self) -> None:
        """Raise an `EngineError` if the log of a failed start contains a reason with a fix."""
        text = self.printed()
        if (missing := _NO_PROGRAM.search(text)) is not None:
            problem = f"{missing[1]} has no {missing[2]}"
            raise EngineError(problem, hint=self._fix(problem))
        if (missing := _NO_INTERFACE.search(text)) is not None:
            raise EngineError(missing[0], hint="correct the variable, or remove it")
        if (failed := NO_TASK.search(text)) is not None:
            raise EngineError(f"Slurm cannot start a rank on {failed[1]}: {failed[2]}", hint=TASK_FIX)
        lines = [line for line in text.splitlines() if line.strip()]
        if lines and all(line.startswith("srun: ") for line in lines):  # no rank has started
            raise rejection(text, "")

    def _check_packets(self) -> None:
        """Raise an `EngineError` if packets of full size do not arrive at a host with a lost engine."""
        for host in sorted({loss.host for loss in self._losses()}):
            if text := loss_text(host):
                raise EngineError(f"{socket.gethostname()} → {host}: {text}", hint=MTU_FIX)

    def _wait_for_engines(self, timeout_s: float) -> None:
        """Wait until all engines are registered. The time in the queue does not count."""
        assert self._job is not None
        deadline = time.monotonic() + timeout_s
        with waiting_line() as show:
            while len(self._client.ids) < self._n:
                self._check_start()
                state = self._job.state()
                if state.is_queued:
                    deadline = time.monotonic() + timeout_s
                    show(state.text)
                elif time.monotonic() > deadline:
                    raise EngineError(
                        f"only {len(self._client.ids)} of {self._n} engines started in time; {state.text}",
                        hint=MORE_TIME,
                        log=self.log_tail(),
                    )
                time.sleep(_POLL_S)

    def _forget_segments(self) -> None:
        """Remove the names of the ranks' shared memory, which all of them have mapped, so that no end leaves them."""
        views = [self._view(engine) for engine in self._engine_ids]
        results = [view.apply_async(_remove_segments) for view in views]
        for result in results:
            with contextlib.suppress(Exception):
                result.get(timeout=10)

    def _order(self, engines: Mapping[int, EngineFacts]) -> list[int]:
        """Return the engines in the order of the launcher's ranks, which is that of the hosts."""
        launches = {engine: facts.launch for engine, facts in engines.items() if facts.launch is not None}
        return sorted(launches, key=launches.__getitem__) if len(launches) == len(engines) else super()._order(engines)

    # -- the state of the ranks ----------------------------------------------------------------------------------------

    def check(self) -> RankExit | None:
        """Return the end of a rank, of its host, of the controller or of the client."""
        lost = None if self._controller is None else self._controller.lost()
        return lost or self._lost()

    def first_exit(self) -> RankExit | None:
        """Return the same, after it had time to be noticed."""
        deadline = time.monotonic() + _EXIT_S
        while (lost := self.check()) is None and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        return lost or super().first_exit()  # the controller may notice it first, but without the reason

    def _lost(self) -> RankExit | None:
        losses = self._losses()
        if not losses:
            return None
        ranks = {(info.host, info.pid): info.rank for info in self._infos}
        silent = next((loss for loss in losses if loss.is_silent), None)
        if silent is not None:
            members = sorted(rank for (host, _), rank in ranks.items() if host == silent.host)
            names = f": rank{'s' * (len(members) != 1)} {', '.join(map(str, members))}" if members else ""
            return RankExit(members[0] if members else None, f"does not answer{names}", silent.host)
        return self._exit_of(losses[0], ranks)

    def _losses(self) -> list[Loss]:
        return [] if self._links is None else self._links.losses()

    def _exit_of(self, loss: Loss, ranks: Mapping[tuple[str, int], int]) -> RankExit:
        rank = ranks.get((loss.host, loss.pid))
        if rank is None:
            return RankExit(None, "ended", f"an engine on {loss.host}")
        state = None if self._job is None or isinstance(self._job, LocalJob) else self._job.state()
        if state is not None and state.is_over:
            return RankExit(None, state.text.partition(" has ")[2] or "ended", state.text.partition(" has ")[0])
        return RankExit(rank, "ended")

    def recovery(self) -> str:
        """Return how to go on: unlike those of `attach`, these ranks can be replaced."""
        if any(loss.is_silent for loss in self._losses()):
            return Hint("{}, or {}", NEW_RANKS, RANKS_LEFT)
        return RankSet.recovery(self)

    def printed(self) -> str:
        """Return what the ranks and their launcher printed, and at most its last MiB."""
        return "" if self._folder is None else printed_text(self._folder / "log")

    def log_tail(self) -> str:
        """Return the last lines that the ranks or their launcher printed."""
        return "\n".join(self.printed().splitlines()[-12:])

    # -- the end -------------------------------------------------------------------------------------------------------

    def kill(self, *, reuse: bool = True) -> None:
        """End the ranks on all hosts, and their job."""
        if self._links is not None:
            self._links.close()
        if self._job is not None:
            self._job.end()
            self._job = None

    def close(self) -> None:
        """End the engines, their job and the controller, and remove the folder of the run."""
        self._is_closing = True
        if self._client is not None and self._job is not None and self._infos and self._lost() is None:
            with contextlib.suppress(Exception):
                self._client.shutdown(hub=False, block=False)
            deadline = time.monotonic() + _CLOSE_S
            while time.monotonic() < deadline and self._links is not None and len(self._links.losses()) < self._n:
                time.sleep(_POLL_S)
        self._end()

    def _end(self) -> None:
        self.kill()
        self._links, self._positions = None, None
        controller, self._controller, self._client = self._controller, None, None
        self._views, self._engine_ids, self._infos = {}, [], ()  # those of the client that is closed
        reaper, self._reaper = self._reaper, None
        if reaper is not None:
            reaper.release()
        if self._finalizer is not None:
            self._finalizer.detach()
        if controller is not None:
            controller.close()


def _remove_segments() -> None:
    """Remove the names of the shared memory that this process has mapped."""
    remove_files(shared_memory_files(os.getpid()))


def _links(address: str) -> HostLinks:
    try:
        return HostLinks(address)
    except OSError as error:
        raise EngineError(
            f"this host has no address {address}: {error.strerror}", hint=f"set {ADDRESS} to one of its addresses"
        ) from error


def own_address(choice: HostChoice) -> str:
    """Return the address of this host that the others reach: that of the routes to most of them."""
    chosen = os.environ.get(ADDRESS)
    if chosen:
        return chosen
    names = [name_of(name) for name in choice.names] if choice.kind == "ssh" else hosts_of_slurm()
    sources = Counter(source for name in names if (source := _source_to(name)) is not None)
    if not sources:
        raise EngineError(
            f"no address of {', '.join(choice.names[:3]) or 'a host of Slurm'} is known here",
            hint=f"check the names of the hosts, or set {ADDRESS} to the address of this host in their network",
        )
    return sources.most_common(1)[0][0]


def name_of(name: str) -> str:
    """Return the name or address that ssh uses for a host, which may be an alias."""
    try:
        done = subprocess.run(
            ["ssh", "-G", name], capture_output=True, text=True, errors="replace", timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return name
    names = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("hostname ")]
    return names[0] if names else name.rpartition("@")[2]


def _source_to(name: str) -> str | None:
    """Return the address from which this host sends to another one. None if the name is unknown, or has no route."""
    try:
        address = socket.getaddrinfo(name, 9, socket.AF_INET, socket.SOCK_DGRAM)[0][4]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(address)  # a datagram socket sends nothing here
            return str(probe.getsockname()[0])
    except OSError:
        return None
