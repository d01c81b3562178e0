"""Run a module in a process that ends even if the client and its reaper are both gone.

A rank starts at the same time as the controller: it imports its library while it waits for the addresses.

The reaper stops the processes of a run when their client has ended. If the reaper was killed together with the client,
the first process of the run that notices it starts a new reaper. If this one does not kill a process in time, either,
the process ends itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from meshlab.engines._host_links import LINK, allow_connections, hold_link
from meshlab.engines._nanny import fork_nanny
from meshlab.engines._reaper import is_running

REAPER = "MESHLAB_REAPER"
"""The environment variable with the command that starts a reaper, as JSON. Its last arguments identify the client."""

DEVICES = "MESHLAB_DEVICES"
"""The environment variable with the CUDA device of each rank, separated by commas."""

BACKEND = "MESHLAB_BACKEND"
"""The environment variable with the backend of a rank."""

CONNECTION = "MESHLAB_CONNECTION"
"""The environment variable with the path of the file in which the controller writes its addresses."""

EXITS = "MESHLAB_EXITS"
"""The environment variable with the path of the file in which exits of ranks are recorded."""

PROCESSES = "MESHLAB_PROCESSES"
"""The environment variable with the path of the file in which shells of ranks record themselves."""

WITHOUT_SHELL, WITHOUT_SHELLS = -1, -2
"""The exit codes that a rank records itself, if the shell that would record it was killed: alone, or not."""

# Time that the reaper of the client gets before it is considered gone. The controller is the first to start a new one,
# because it does not depend on the state of a communication library.
_GRACE_S = {"controller": 1.5, "rank": 4.0}
_OTHERS_S = 5.0  # time that a reaper which another process has started gets to end this one
_TICK_S = 0.02  # interval between looks at the file of the controller
_POLL_S = 1.0  # interval between checks of the client, on systems without file descriptors for processes
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h


def command(role: str, module: str) -> list[str]:
    """Return the command that runs a module as a controller, as a rank, or as a "remote-rank" on another host."""
    return [sys.executable, "-m", "meshlab.engines._lifeline", role, module]


def main(role: str, module: str, *arguments: str) -> None:
    """Run a module like ``python -m``, while a thread waits for the end of the client."""
    if role == "controller":
        # The schedulers are forked from the controller, and a fork keeps only the thread that calls it: they have no
        # thread that watches the client.
        os.register_at_fork(after_in_child=_end_with_parent)
        allow_connections()  # of which each engine has several; beyond the limit, engines are never registered
    elif role == "remote-rank":
        # Before all else, because nothing on this host would end it with the client. It stays in the session of its
        # launcher, which ends it with the step.
        link = json.loads(Path(os.environ[LINK]).read_text())
        hold_link(link["address"], link["port"], link["token"])
        with contextlib.suppress(ImportError):
            fork_nanny(cleans_up=True)
    else:
        with contextlib.suppress(OSError):
            # mpiexec kills the process groups of all ranks when one has ended. In its own, this one outlives its shell
            # for a moment, records that, and so differs from a rank that somebody killed.
            os.setsid()
        _set_process_option(_PR_SET_CHILD_SUBREAPER, 1)  # daemons of the user's functions stay its descendants
        with contextlib.suppress(ImportError):  # of ipyparallel, which is reported when the module runs
            fork_nanny()
    with contextlib.suppress(ImportError):
        _keep_periods()
    if role != "remote-rank":
        threading.Thread(target=_guard, args=(role, os.getppid()), name="meshlab lifeline", daemon=True).start()
    if role != "controller":
        _prepare_rank()
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _keep_periods() -> None:
    """Let heartbeats go on when somebody sets the clock back, for which tornado waits until it is late enough again."""
    # Without heartbeats of the controller, no engine is registered, and engines exit after some time.
    from tornado.ioloop import IOLoop, PeriodicCallback

    def start(callback: Any) -> None:
        callback.io_loop = IOLoop.current()
        callback._running = True
        callback._next_timeout = time.monotonic()
        callback._schedule_next()

    def schedule_next(callback: Any) -> None:
        if callback._running:
            callback._update_next(time.monotonic())
            delay_s = max(0.0, callback._next_timeout - time.monotonic())
            callback._timeout = callback.io_loop.call_later(delay_s, callback._run)

    for name, method in (("start", start), ("_schedule_next", schedule_next)):
        setattr(PeriodicCallback, name, method)


def _prepare_rank() -> None:
    """Import what the rank needs, and then give ipyparallel the addresses of the controller."""
    with contextlib.suppress(Exception):
        device = int(os.environ[DEVICES].split(",")[int(os.environ["MESHLAB_RANK"])])
        from meshlab.comm.backends._cuda_parts import open_device

        threading.Thread(target=open_device, args=(device,), name="meshlab CUDA start", daemon=True).start()
    with contextlib.suppress(Exception):  # the same error is raised, and reported, when the client opens the rank
        import ipyparallel.engine.app  # noqa: F401

        from meshlab.engines._worker import load_library

        load_library(os.environ[BACKEND])
    while True:
        with contextlib.suppress(OSError, ValueError):  # the file does not exist yet, or is not complete
            addresses = Path(os.environ[CONNECTION]).read_text()
            json.loads(addresses)
            os.environ["IPP_CONNECTION_INFO"] = addresses
            return
        time.sleep(_TICK_S)


def _end_with_parent() -> None:
    """Make the kernel kill this process when the thread that forked it ends."""
    _set_process_option(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _set_process_option(option: int, value: int) -> None:
    with contextlib.suppress(AttributeError, OSError):  # only Linux has prctl
        ctypes.CDLL(None).prctl(option, value)


def _guard(role: str, parent: int) -> None:
    """Wait for the end of the client, and start a new reaper if this process then still exists after a while."""
    reaper = json.loads(os.environ[REAPER])
    folder, client, start = reaper[-3], int(reaper[-2]), float(reaper[-1])
    shell = _opened(parent) if role == "rank" else -1
    descriptor = _opened(client)
    # The client is checked after it was opened, because another process may have its number by now.
    while is_running(client, start):
        # A descriptor is readable when its process has ended.
        descriptors = [number for number in (descriptor, shell) if number >= 0]
        ended, _, _ = select.select(descriptors, [], [], None if descriptor >= 0 else _POLL_S)
        if shell in ended:
            # The exit of this rank would have no record, because only its shell writes one. The client takes the first
            # record for the culprit, so this one is written before the rank ends.
            with Path(os.environ[EXITS]).open("a") as file:
                file.write(f"{parent} {_code_without_shell(parent)}\n")
            os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(_GRACE_S[role])
    # The file with O_EXCL elects one process, so that only one reaper starts.
    with contextlib.suppress(OSError):  # another process was first, or the folder is gone
        os.close(os.open(Path(folder) / "orphaned", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        subprocess.Popen(
            reaper,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    time.sleep(_OTHERS_S)
    os.kill(os.getpid(), signal.SIGKILL)


def _code_without_shell(shell: int) -> int:
    """Return the exit code of a rank whose shell was killed."""
    # A launcher that gets SIGTERM passes it on to all shells at once, which end when the kernel schedules them. If one
    # shell has ended, it needs some milliseconds to end the others.
    with contextlib.suppress(OSError, ValueError):
        shells = [int(line.split()[0]) for line in Path(os.environ[PROCESSES]).read_text().splitlines()]
        if any(map(_is_ending, set(shells) - {shell})):
            return WITHOUT_SHELLS
    return WITHOUT_SHELL


def _is_ending(pid: int) -> bool:
    """Return whether a process has ended, or will as soon as the kernel schedules it."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return True
    fields = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    deadly = 1 << signal.SIGTERM - 1 | 1 << signal.SIGKILL - 1
    return fields["State"][0] in "ZX" or any(int(fields[name], 16) & deadly for name in ("SigPnd", "ShdPnd"))


def _opened(pid: int) -> int:
    """Return a descriptor of a process, or -1 if the process is gone or the system has none."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return -1


if __name__ == "__main__":
    main(*sys.argv[1:])
