"""Hosts in namespaces of this machine, on one bridge, each with its own name, processes, /tmp, /dev/shm and /run.

The first process of a host waits for the end of a pipe from this process, and the kernel ends all others with it. So
nothing is left when this process ends, however it ends, and two sets of hosts do not see each other.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[2]
PROGRAMS = ("unshare", "nsenter", "ip", "mount", "tc")
INTERFACE = "eth0"
_NETWORK = "10.77.0"
_START_S = 60.0
# Variables that would make a program on a host believe that a launcher started it, or that name folders of this one.
_FOREIGN = ("SLURM_", "PMI_", "PMIX_", "OMPI_", "HYDRA_", "PYTEST_", "TMPDIR", "MESHLAB_", "GLOO_", "JUPYTER_", "SSH_")

# The folders that hosts share are put aside before /tmp, which may contain them, is replaced. The shell stays the first
# process, because it waits for processes whose parent has ended.
_SETUP = """
set -eu
mount --make-rprivate /
hostname "$NAME"
mount -t sysfs sysfs /sys
mount -t tmpfs none /sys/fs/cgroup
mkdir /sys/fs/cgroup/systemd
mount -t cgroup -o none,name=systemd none /sys/fs/cgroup/systemd
for part in freezer cpuset memory cpuacct devices; do
    mkdir "/sys/fs/cgroup/$part"; mount -t cgroup -o "$part" none "/sys/fs/cgroup/$part" 2>/dev/null || true
done
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/kept /run/lock
number=0
for folder in "$@"; do
    number=$((number + 1)); mkdir "/run/kept/$number"; mount --rbind "$folder" "/run/kept/$number"
done
mount -t tmpfs -o mode=1777,size=2g tmpfs /tmp
mount -t tmpfs -o mode=1777,size=2g tmpfs /dev/shm
number=0
for folder in "$@"; do
    number=$((number + 1)); mkdir -p "$folder"; mount --rbind "/run/kept/$number" "$folder"
    umount -l "/run/kept/$number"
done
for file in hosts hostname resolv.conf; do
    [ ! -e "/etc/$file" ] || mount --bind "$FILES/$NAME/$file" "/etc/$file"
done
for folder in ssh slurm; do
    [ ! -d "/etc/$folder" ] || mount --bind "$FILES/$folder" "/etc/$folder"
done
# What an interactive shell starts on this machine may wait for locks that a host which ended still holds.
[ ! -e "$HOME/.bashrc" ] || mount --bind /dev/null "$HOME/.bashrc"
ip link set lo up
echo ready
exec 1>&2
cat
exit 0
"""


class HostError(RuntimeError):
    """The hosts could not be built, or a command on one failed."""


def missing_parts(*programs: str) -> str:
    """Return why hosts cannot be built here, or an empty string."""
    if os.geteuid() != 0:
        return "needs root, to create hosts in network namespaces"
    missing = [program for program in (*PROGRAMS, *programs) if shutil.which(program) is None]
    if missing:
        return f"needs {', '.join(missing)}"
    probe = subprocess.run(
        ["unshare", "--net", "--uts", "--ipc", "--mount", "--pid", "--fork", "ip", "link", "add", "type", "bridge"],
        capture_output=True,
        text=True,
        check=False,
    )
    return f"needs network namespaces: {probe.stderr.strip()}" if probe.returncode else ""


class Namespace:
    """A first process that keeps namespaces until `close`, or the end of this process."""

    def __init__(self, options: Sequence[str], script: str, *arguments: str, **variables: str) -> None:
        # With --kill-child, because `unshare` waits outside of the process namespace and may be killed.
        self._keeper = subprocess.Popen(
            ["unshare", "--net", *options, "--kill-child", "bash", "-c", script, "keeper", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | variables,
        )
        assert self._keeper.stdout is not None
        assert self._keeper.stderr is not None
        if self._keeper.stdout.readline() != b"ready\n":
            reason = self._keeper.stderr.read().decode()
            self.close()
            raise HostError(f"a namespace was not created: {reason}")

    @property
    def pid(self) -> int:
        """The first process, in the numbers of this process."""
        if self._keeper.poll() is not None:
            raise HostError("the host has ended")
        (child,) = psutil.Process(self._keeper.pid).children()
        return child.pid

    def close(self) -> None:
        assert self._keeper.stdin is not None
        self._keeper.stdin.close()
        try:
            self._keeper.wait(10)
        except subprocess.TimeoutExpired:
            self._keeper.kill()
            self._keeper.wait()
        for pipe in (self._keeper.stdout, self._keeper.stderr):
            assert pipe is not None
            pipe.close()


@dataclass(frozen=True)
class Host:
    """A host of a set."""

    name: str
    address: str
    shared: Path
    """A folder that all hosts see under this path."""
    environment: dict[str, str]
    """The variables of commands on all hosts of the set. Changes affect later commands."""
    namespace: Namespace

    def command(self, arguments: Sequence[str | Path], cwd: Path | None = None) -> list[str]:
        """Return the command that runs one on this host."""
        inside = ["env", "-C", str(cwd or self.shared), *map(str, arguments)]
        return ["nsenter", "-t", str(self.namespace.pid), "-m", "-n", "-u", "-i", "-p", "--", *inside]

    def run(
        self,
        arguments: Sequence[str | Path],
        *,
        timeout_s: float = 120.0,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        check: bool = False,
        stdin: str | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command, and return its exit status and output. With `check`, raise if it fails."""
        process = self.start(arguments, env=env, cwd=cwd, stdin=subprocess.PIPE)
        try:
            output, errors = process.communicate(stdin, timeout_s)
        except subprocess.TimeoutExpired:
            _kill_tree(process)
            output, errors = process.communicate()
            raise HostError(
                f"{self.name}: {shlex.join(map(str, arguments))} took longer than {timeout_s} s\n{output}{errors}"
            ) from None
        if check and process.returncode:
            raise HostError(f"{self.name}: {shlex.join(map(str, arguments))} failed\n{output}{errors}")
        return subprocess.CompletedProcess(list(map(str, arguments)), process.returncode, output, errors)

    def python(self, code: str, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run Python code with the interpreter of the tests."""
        return self.run([sys.executable, "-c", code, *arguments], **options)

    def start(
        self,
        arguments: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stdin: int = subprocess.DEVNULL,
        stdout: int = subprocess.PIPE,
        stderr: int = subprocess.PIPE,
    ) -> subprocess.Popen[str]:
        """Start a command, and return the process that waits for it. End it with `end_tree`."""
        return subprocess.Popen(
            self.command(arguments, cwd),
            env=self.environment | dict(env or {}),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            text=True,
        )

    def set_link(self, state: str) -> None:
        """Take the interface of this host "up" or "down"."""
        self.run(["ip", "link", "set", INTERFACE, state], check=True)

    def add_default_route(self) -> None:
        """Route other addresses to the first address of the network, which nobody has."""
        self.run(["ip", "route", "add", "default", "via", f"{_NETWORK}.1"], check=True)

    def shape(self, *parameters: str) -> None:
        """Limit what this host sends, such as ``"rate", "50mbit"``, or no more."""
        self.run(["tc", "qdisc", "del", "dev", INTERFACE, "root"])
        if parameters:
            limits = ["tbf", *parameters, "burst", "64kb", "latency", "500ms"]
            self.run(["tc", "qdisc", "add", "dev", INTERFACE, "root", *limits], check=True)

    def processes(self, text: str = "") -> list[str]:
        """Return the command lines of this host's processes that contain a text, without those that keep the host."""
        lines = self.run(["ps", "-e", "-o", "pid=,stat=,args="], check=True).stdout.splitlines()
        fields = [line.split(None, 2) for line in lines]
        return [
            args
            for pid, state, args in fields
            if pid != "1" and state[0] != "Z" and "ps -e" not in args and text in args
        ]


class Hosts(Mapping[str, Host]):
    """A set of hosts by name, on one bridge. Use it as a context manager."""

    def __init__(self, names: Sequence[str], folder: Path, *, keep: Sequence[Path] = ()) -> None:
        self.shared = folder / "shared"
        self.files = folder / "etc"
        self.environment = _environment(self.shared)
        imported = [Path(folder) for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
        python = [Path(sys.prefix), Path(sys.base_prefix), *filter(Path.is_dir, imported)]
        self._keep = _outermost([self.shared, self.files, ROOT, *python, *keep])
        self._names = tuple(names)
        self._hosts: dict[str, Host] = {}
        self._switch: Namespace | None = None
        self._exits = contextlib.ExitStack()

    def __enter__(self) -> Hosts:
        try:
            self._build()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getitem__(self, name: str) -> Host:
        return self._hosts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._hosts)

    def __len__(self) -> int:
        return len(self._hosts)

    def at_close(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call a function before the hosts end."""
        self._exits.callback(function, *arguments)

    def close(self) -> None:
        """End all hosts, with everything that runs on them."""
        self._exits.close()
        for host in self._hosts.values():
            host.namespace.close()
        if self._switch is not None:
            self._switch.close()
        self._hosts, self._switch = {}, None

    def _build(self) -> None:
        addresses = {name: f"{_NETWORK}.{10 + number}" for number, name in enumerate(self._names)}
        table = "".join(f"{address} {name}\n" for name, address in addresses.items())
        for folder in ("ssh", "slurm"):
            (self.files / folder).mkdir(parents=True)
        self.shared.mkdir(parents=True)
        for name in self._names:
            (self.files / name).mkdir()
            (self.files / name / "hosts").write_text(f"127.0.0.1 localhost\n{table}")
            (self.files / name / "hostname").write_text(f"{name}\n")
            (self.files / name / "resolv.conf").write_text("")
        self._switch = Namespace(
            ["--mount", "--fork"],
            "set -e; ip link set lo up; ip link add br0 type bridge; ip link set br0 up; echo ready; exec cat",
        )
        for number, (name, address) in enumerate(addresses.items()):
            namespace = Namespace(
                ["--uts", "--ipc", "--mount", "--pid", "--fork", "--mount-proc"],
                _SETUP,
                *map(str, self._keep),
                NAME=name,
                FILES=str(self.files),
            )
            self._hosts[name] = host = Host(name, address, self.shared, self.environment, namespace)
            port = f"port{number}"
            self._on_switch(
                f"ip link add {port} type veth peer name {INTERFACE} netns {namespace.pid}"
                f" && ip link set {port} master br0 up"
            )
            host.run(["ip", "address", "add", f"{address}/24", "dev", INTERFACE], check=True)
            host.set_link("up")

    def set_switch_mtu(self, name: str, mtu: int) -> None:
        """Let the port of a host on the bridge drop packets that are larger, without a word to anybody."""
        self._on_switch(f"ip link set port{self._names.index(name)} mtu {mtu}")

    def _on_switch(self, script: str) -> None:
        assert self._switch is not None
        # `ip` looks for the process of the other end in /proc, so only the network is that of the switch.
        command = ["nsenter", "-t", str(self._switch.pid), "-n", "--", "sh", "-c", script]
        switched = subprocess.run(command, capture_output=True, text=True, check=False)
        if switched.returncode:
            raise HostError(f"the bridge: {switched.stderr}")

    def _start_on_switch(self, command: Sequence[str]) -> subprocess.Popen[str]:
        assert self._switch is not None
        entered = ["nsenter", "-t", str(self._switch.pid), "-n", "--", *command]
        return subprocess.Popen(entered, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    @contextlib.contextmanager
    def delay(self, name: str, milliseconds: float) -> Iterator[None]:
        """Delay every packet that a host sends."""
        port = f"port{self._names.index(name)}"
        process = self._start_on_switch(
            [sys.executable, str(Path(__file__).with_name("delay.py")), port, str(milliseconds)]
        )
        assert process.stdout is not None
        try:
            if process.stdout.readline() != "ready\n":
                raise HostError(f"the delay of {name}: {process.communicate()[1]}")
            yield
        finally:
            process.terminate()
            process.communicate()

    @contextlib.contextmanager
    def capture(self, file: Path, *expression: str) -> Iterator[None]:
        """Record all packets that pass through the bridge, as `tcpdump` writes them."""
        command = ["tcpdump", "-i", "br0", "-U", "-Z", "root", "-w", str(file), *expression]
        process = self._start_on_switch(command)
        assert process.stderr is not None
        process.stderr.readline()  # "listening on br0", or why not
        try:
            yield
        finally:
            process.terminate()
            process.communicate()


def end_tree(process: subprocess.Popen[str]) -> None:
    """Kill a command that `Host.start` started, and everything that it started, and wait for it."""
    _kill_tree(process)
    process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


def _kill_tree(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        # The numbers are those of this process's namespace, because they come from its own tree.
        for child in psutil.Process(process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
    process.kill()


def wait_until(condition: Callable[[], bool], timeout_s: float = _START_S, *, subject: str = "the condition") -> None:
    """Wait until a condition holds, or raise."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise HostError(f"{subject} did not come true within {timeout_s} s")
        time.sleep(0.1)


def _environment(shared: Path) -> dict[str, str]:
    variables = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    path = os.environ.get("PYTHONPATH")
    return variables | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "PYTHONPATH": f"{ROOT}{os.pathsep}{path}" if path else str(ROOT),
        "IPYTHONDIR": str(shared / "ipython"),
        # Debian's Slurm loses parts of UCX's addresses, which are long, if the machine is busy.
        "MPIR_CVAR_CH4_NETMOD": "ofi",
        "FI_PROVIDER": "tcp",
    }


def _outermost(folders: Sequence[Path]) -> list[Path]:
    """Return existing folders that are in no other one. Those in temporary folders would be hidden on the hosts."""
    paths = {folder.absolute() for folder in folders}
    return sorted(path for path in paths if path != Path("/usr") and not any(other in path.parents for other in paths))
