"""Checks of hosts over ssh or srun: names, routes, ports, MTU, interfaces, clocks, a shared folder, and versions."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import secrets
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from meshlab.base._backends import PROCESS_BACKENDS
from meshlab.base._documents import parse_own_json
from meshlab.base._errors import EngineError, ParseError
from meshlab.base._version import __version__
from meshlab.commissioning._doctor import Check
from meshlab.commissioning._host_probe import network_of
from meshlab.engines._allocation import allocated_hosts
from meshlab.engines._host_choice import HostChoice
from meshlab.engines._host_jobs import NO_TASK, TASK_FIX
from meshlab.engines._host_links import allow_connections
from meshlab.engines._hosts import SSH, name_of
from meshlab.engines._local import import_path
from meshlab.engines._packets import MTU_FIX, loss_text
from meshlab.engines._rank_hosts import CLOCK_FIX, clock_problem, network_settings

# Lines of ssh and srun that follow or precede the reason.
_NOISE = re.compile(r"^Warning: Permanently|^srun: .*(Exited with exit code|launch failed|Job step aborted)")
_LIMIT_S = 90.0  # for all hosts
_FIRST_S = 40.0  # until a host describes itself, so that the others can be compared without it
_END_S = 5.0  # time that ssh or srun gets to end after its output
_N_CLOCKS = 5  # readings of a clock
_ENVIRONMENT = "install the same environment under the same path on all hosts"


@dataclass(frozen=True)
class _Way:
    """The program that runs a command on a host."""

    words: Sequence[str]
    program: str = "ssh"

    def to(self, host: str, command: Sequence[str]) -> list[str]:
        """Return the command that runs one on a host."""
        if self.program == "ssh":
            return [*self.words, host, shlex.join(command)]
        return [*self.words, "--nodes=1", "--ntasks=1", f"--nodelist={host}", *command]

    def fix(self, host: str) -> str:
        """Return what to do if a host does not answer."""
        if self.program == "ssh":
            return f"make `ssh {host} true` work without a password"
        return f"make `srun --nodelist={host} true` work"


@contextlib.contextmanager
def _ways(choice: HostChoice) -> Iterator[tuple[Sequence[str], _Way]]:
    """Return the hosts of a choice, and the way to them. Hosts of Slurm are allocated for as long as the block runs."""
    if choice.kind == "ssh":
        if shutil.which("ssh") is None:
            raise EngineError("the checks of hosts need ssh, which is not installed")
        yield choice.names, _Way(SSH)
    else:
        with allocated_hosts(choice.options) as (names, srun):
            yield names, _Way(srun, "srun")


class _Remote:
    """A host, and the probe that runs on it."""

    def __init__(self, name: str, way: _Way) -> None:
        self.name, self.way = name, way
        # Ranks that mpiexec starts over ssh have the variables of this host, and so have the tasks of srun.
        variables = [f"{variable}={value}" for variable, value in {**import_path(), **network_settings()}.items()]
        probe = [sys.executable, "-m", "meshlab.commissioning._host_probe"]
        pipe = subprocess.PIPE
        command = way.to(name, ["env", *variables, *probe])
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, errors="replace")
        self.facts: dict[str, Any] = {}
        self.answers_s = 0.0
        self.offset_s = self.uncertainty_s = 0.0
        self.paths: list[dict[str, Any]] = []
        self.interface = ""
        self.sees_folder = self.is_late = False
        self.check = Check(f"{way.program} {name}", "broken", "")

    def read(self) -> dict[str, Any]:
        """Return the next answer, or raise an `EngineError` that names the problem."""
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        for line in self.process.stdout:
            with contextlib.suppress(ParseError):
                if isinstance(answer := parse_own_json(line), dict):  # and not what a shell prints when it starts
                    return answer
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_END_S)
        self.process.kill()
        errors = self.process.stderr.read()
        lines = [line for line in errors.splitlines() if line.strip() and not _NOISE.search(line)]
        if not lines:
            raise self._silence() if self.is_late else self._end()
        last = lines[-1].strip()
        if (failed := NO_TASK.search(errors)) is not None:
            raise EngineError(f"Slurm cannot start a process there: {failed[2]}", hint=TASK_FIX)
        if "No module named" in last and "meshlab" in last:
            raise EngineError(f"{sys.executable} cannot import meshlab there: {last}", hint=_ENVIRONMENT)
        if "No such file" in last or "not found" in last:
            raise EngineError(f"there is no {sys.executable}", hint=_ENVIRONMENT)
        raise EngineError(re.sub(r"^(ssh|srun): (error: )?", "", last), hint=self._fix)

    @property
    def _fix(self) -> str:
        return "check this host and its network: it answered at first" if self.facts else self.way.fix(self.name)

    def _end(self) -> EngineError:
        code = self.process.wait()
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return EngineError(f"{self.way.program} ended without an answer ({how})", hint=self._fix)

    def _silence(self) -> EngineError:
        text = f"no answer within {_LIMIT_S if self.facts else _FIRST_S:g} s"
        if loss := loss_text(name_of(self.name) if self.way.program == "ssh" else self.name):
            return EngineError(f"{text}: {loss}", hint=MTU_FIX)
        return EngineError(text, hint=self._fix)

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send a request, and return its answer."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        except OSError:
            pass  # the host is gone, which the answer shows
        return self.read()

    def describe(self) -> None:
        """Read the facts about the host."""
        began = time.monotonic()
        self.facts = self.read()
        self.answers_s = time.monotonic() - began
        text = f"answers after {self.answers_s:.1f} s as {self.facts['name']}"
        self.check = replace(self.check, verdict="ok", text=text)

    def answers(self, ask: Callable[[_Remote], Any]) -> bool:
        """Return whether the host answers what `ask` asks. If it does not, `check` has the reason."""
        try:
            ask(self)
        except EngineError as error:
            self.check = replace(self.check, verdict="broken", text=error.message, fix=str(error.hint))
            return False
        return True

    def kill(self) -> None:
        """End a probe that has not answered in time."""
        self.is_late |= self.process.poll() is None
        self.process.kill()

    def read_clock(self) -> None:
        """Compare its clock with that of this host. The fastest answer has the smallest error."""
        readings = []
        for _ in range(_N_CLOCKS):
            before = time.time()
            remote = float(self.ask(kind="time")["time"])
            after = time.time()
            readings.append((after - before, remote - (before + after) / 2))
        round_trip_s, self.offset_s = min(readings)
        self.uncertainty_s = round_trip_s / 2

    def close(self) -> None:
        """End the probe."""
        self.process.kill()
        self.process.communicate()


def check_hosts(hosts: str, folder: str | Path | None = None) -> list[Check]:
    """Check hosts over ssh or srun. `folder` is one that all of them should see, by default that of `launch`."""
    choice = HostChoice.read(hosts if hosts.startswith(("ssh:", "slurm")) else f"ssh:{hosts}")
    shared = Path.home() / ".cache" / "meshlab" if folder is None else Path(folder).absolute()
    allow_connections()  # for the three pipes to each probe
    with _ways(choice) as (names, way):
        remotes = [_Remote(name, way) for name in names]
        timers = [threading.Timer(_FIRST_S, _kill_silent, (remotes,)), threading.Timer(_LIMIT_S, _kill_all, (remotes,))]
        for timer in timers:
            timer.daemon = True
            timer.start()
        try:
            with ThreadPoolExecutor(len(remotes)) as pool:
                checks = _compared(pool, _answering(remotes, _Remote.describe, pool.map), shared)
            return [*(remote.check for remote in remotes), *checks]
        finally:
            for timer in timers:
                timer.cancel()
            for remote in remotes:
                remote.close()


def _kill_all(remotes: Iterable[_Remote]) -> None:
    for remote in remotes:
        remote.kill()


def _kill_silent(remotes: Iterable[_Remote]) -> None:
    _kill_all(remote for remote in remotes if not remote.facts)


def _answering(
    remotes: Sequence[_Remote], ask: Callable[[_Remote], Any], each: Callable[..., Iterable[bool]] = map
) -> list[_Remote]:
    """Return the hosts that answer. A host that falls silent does not end the checks of the others."""
    answers = list(each(lambda remote: remote.answers(ask), remotes))
    return [remote for remote, has_answered in zip(remotes, answers, strict=True) if has_answered]


def _compared(pool: ThreadPoolExecutor, remotes: Sequence[_Remote], shared: Path) -> list[Check]:
    """Return the checks between hosts that answer."""
    # One after the other: a host that answers a question late would look like one with another clock.
    remotes = _answering(remotes, _Remote.read_clock)
    if not remotes:
        return []
    addresses = {remote.name: [text.split("/")[0] for _, text, _ in remote.facts["interfaces"]] for remote in remotes}
    first = next(iter(addresses[remotes[0].name]), "")

    def find_paths(remote: _Remote) -> None:
        peers = [
            {
                "name": other.name.rpartition("@")[2],
                "addresses": addresses[other.name],
                "mtus": {text.split("/")[0]: mtu for _, text, mtu in other.facts["interfaces"]},
                "port": other.facts["port"],
            }
            for other in remotes
            if other is not remote
        ]
        answer = remote.ask(kind="peers", peers=peers, first=first)
        remote.paths, remote.interface = answer["paths"], answer["interface"]

    remotes = _answering(remotes, find_paths, pool.map)
    if not remotes:
        return []
    folder = _folder_check(pool, remotes, shared)
    return [
        *([*_path_checks(remotes), _mtu_check(remotes)] if remotes[1:] else [_no_paths(remotes[0])]),
        *_interface_checks(remotes),
        _clock_check(remotes),
        folder,
        _version_check(remotes),
    ]


def _no_paths(remote: _Remote) -> Check:
    return Check("paths", "absent", f"names, routes, ports and MTU need a second host, and only {remote.name} answers")


def _path_checks(remotes: Sequence[_Remote]) -> list[Check]:
    fixes = {
        "names": "give every host the same entries in /etc/hosts or DNS",
        "routes": "add a route, or use hosts of one network",
        "ports": "open all ports between the hosts in their firewalls",
    }
    n = sum(len(remote.paths) for remote in remotes)
    interfaces = sorted({path["interface"] for remote in remotes for path in remote.paths if path["interface"]})
    texts = {
        "names": "every host knows the names of the others",
        "routes": f"all {n} paths between hosts go over {', '.join(interfaces) or 'none'}",
        "ports": f"connections work on all {n} paths",
    }
    return [_check(kind, _problems(remotes, kind), texts[kind], fixes[kind]) for kind in texts]


def _problems(remotes: Iterable[_Remote], kind: str) -> list[str]:
    return [f"{remote.name} {path['problem']}" for remote in remotes for path in remote.paths if path["kind"] == kind]


def _check(name: str, problems: Sequence[str], text: str, fix: str) -> Check:
    more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
    return Check(name, "broken", f"{problems[0]}{more}", fix) if problems else Check(name, "ok", text)


def _mtu_check(remotes: Sequence[_Remote]) -> Check:
    if problems := _problems(remotes, "mtu"):
        return _check("mtu", problems, "", MTU_FIX)
    path_interfaces = {remote.name: {path["interface"] for path in remote.paths} for remote in remotes}
    places: dict[str, list[str]] = {}
    for remote in remotes:
        for interface, _, mtu in remote.facts["interfaces"]:
            if interface in path_interfaces[remote.name]:
                places.setdefault(str(mtu), []).append(f"{remote.name} ({interface})")
    if len(places) > 1:
        return Check("mtu", "warning", f"the hosts have different MTUs: {_places_text(places)}", MTU_FIX)
    works = [path["kind"] not in ("routes", "ports") for remote in remotes for path in remote.paths]
    where = "" if all(works) else f" on the {sum(works)} paths that work"
    return Check("mtu", "ok", f"{next(iter(places), 'none')} on all hosts, and large messages arrive{where}")


def _interface_checks(remotes: Sequence[_Remote]) -> list[Check]:
    """Return the networks that the libraries would use, which differ between hosts more often than wanted."""
    checks = []
    for backend in PROCESS_BACKENDS:
        if missing := [text for remote in remotes if (text := remote.facts["missing"][backend])]:
            checks.append(_check(backend, missing, "", "correct the variable, or remove it"))
            continue
        places: dict[str, list[str]] = {}
        for remote in remotes:
            places.setdefault(network_of(backend, remote.facts, remote.interface), []).append(remote.name)
        if len(places) > 1:
            text = f"the hosts would use different networks: {_places_text(places)}"
            checks.append(Check(backend, "warning", text, "set the variable for its network interface on all hosts"))
        else:
            checks.append(Check(backend, "ok", f"network: {next(iter(places))}"))
    return checks


def _clock_check(remotes: Sequence[_Remote]) -> Check:
    texts = (clock_problem(remote.name, remote.offset_s, remote.uncertainty_s) for remote in remotes)
    problems = [text for text in texts if text]
    most = max(abs(remote.offset_s) + remote.uncertainty_s for remote in remotes)
    text = f"within {1e3 * most:.0f} ms of that of this host"
    return _check("clocks", problems, text, CLOCK_FIX)


def _folder_check(pool: ThreadPoolExecutor, remotes: Sequence[_Remote], shared: Path) -> Check:
    fix = "choose a folder that all hosts see with --folder, and with the argument folder of launch()"
    file = shared / f"doctor-{os.getpid()}-{secrets.token_hex(4)}"
    try:
        shared.mkdir(mode=0o700, parents=True, exist_ok=True)
        file.touch()
    except OSError as error:
        return Check("folder", "broken", f"{shared} cannot be written: {error.strerror}", fix)

    def look(remote: _Remote) -> None:
        remote.sees_folder = remote.ask(kind="folder", file=str(file))["sees"]

    try:
        remotes = _answering(remotes, look, pool.map)
    finally:
        file.unlink(missing_ok=True)
    if not remotes:
        return Check("folder", "absent", "no host answers any more")
    blind = [remote.name for remote in remotes if not remote.sees_folder]
    return _check("folder", [f"{name} does not see {shared}" for name in blind], f"all hosts see {shared}", fix)


def _version_check(remotes: Sequence[_Remote]) -> Check:
    client = {"Python": platform.python_version(), "meshlab": __version__}
    problems = []
    for remote in remotes:
        facts = {"Python": remote.facts["python"], "meshlab": remote.facts["meshlab"]}
        problems += [
            f"{remote.name} has {name} {version}, and this host {client[name]}"
            for name, version in facts.items()
            if version != client[name]
        ]
    for name in sorted({name for remote in remotes for name in remote.facts["packages"]}):
        places: dict[str, list[str]] = {}
        for remote in remotes:
            places.setdefault(remote.facts["packages"].get(name, "none"), []).append(remote.name)
        if len(places) > 1:
            problems.append(f"the hosts have different versions of {name}: {_places_text(places)}")
    text = f"Python {client['Python']} and meshlab {client['meshlab']} on all hosts, with the same packages"
    return _check("versions", problems, text, _ENVIRONMENT)


def _places_text(places: Mapping[str, Sequence[str]]) -> str:
    return ", ".join(
        f"{what} on {', '.join(hosts[:3])}{f' and {len(hosts) - 3} more' if len(hosts) > 3 else ''}"
        for what, hosts in places.items()
    )
