"""A process that ends a rank whose launcher has not started all others, or whose packets do not reach them.

MPI waits for the other processes for ever, and mpi4py holds the interpreter meanwhile, so no thread could do this. When
the rank has been killed, the process removes the shared memory that the rank leaves.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from meshlab.base._documents import parse_own_json
from meshlab.engines._launchers import Launch, local_rank
from meshlab.engines._packets import MTU_FIX, loss_text
from meshlab.engines._reaper import remove_abandoned, remove_files, segments, shared_memory_files

_PATHS_S = 20.0  # after which the paths to the other hosts are checked, if the limit is not shorter
_CLEAN_S = 2.0  # time that the other ranks of a host get to end
_TURN_S = 3.0  # after which the next host acts: the first one ends the step on all hosts, and the others need not write
_MOST_TURNS = 10
_SCANCEL_S = 10.0
_MOST_PATHS = 16  # that are checked at the same time

_watch: subprocess.Popen[bytes] | None = None


def watch_start(launch: Launch, limit_s: float) -> None:
    """Watch the start of this process as one of those that a launcher has started together, until `report_start`."""
    global _watch
    if _watch is None:
        is_first = local_rank() in (None, 0)
        settings = json.dumps([os.getpid(), is_first, launch.size, launch.launcher, limit_s, segments()])
        _watch = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, settings],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )


def report_start() -> None:
    """End the watch of this process, if there is one: all processes have found each other."""
    # With the shared memory that it has mapped: another rank may have created that before the first one looked at what
    # existed. The watch itself may be late, when the rank is gone.
    if _watch is not None and _watch.stdin is not None and not _watch.stdin.closed:
        with contextlib.suppress(OSError):  # somebody has killed it
            _watch.stdin.write(json.dumps(shared_memory_files(os.getpid())).encode() + b"\n")
            _watch.stdin.flush()
        _watch.poll()  # so that the process which has forked the watch is gone


def _main(pid: int, is_first: bool, n: int, launcher: str, limit_s: float, existing: Sequence[str]) -> None:
    if os.fork():  # the rank's launcher ends its descendants with it
        return
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):  # Slurm sends it to all processes of the step
        signal.signal(number, signal.SIG_IGN)
    os.chdir("/")
    turn = min(int(os.environ.get("SLURM_NODEID", "0")), _MOST_TURNS) + (not is_first) * _MOST_TURNS
    paths_s = min(_PATHS_S, limit_s)
    message = _read(paths_s + turn * _TURN_S)
    problem = ""
    if message is None:
        problem = _path_problem() if is_first else ""
        # Another host may have ended the rank meanwhile.
        message = _read(0.0 if problem else limit_s - paths_s)
    if message is None:
        _end(pid, problem or _absence(n, launcher, limit_s), of_srun=launcher == "srun")
    elif message:
        if not is_first:
            return
        existing = sorted(set(existing).difference(parse_own_json(message.decode())))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # a launcher waits until its pipes to the rank are closed
        os.read(0, 1)
    remove_abandoned(existing, _CLEAN_S)


def _read(limit_s: float) -> bytes | None:
    """Return the line that the rank writes, nothing if it has ended, and None if neither happens in time."""
    return sys.stdin.buffer.readline() if select.select([0], [], [], limit_s)[0] else None


def _end(pid: int, text: str, *, of_srun: bool) -> None:
    """Write why, and end the rank, and those of all hosts if srun has started them."""
    sys.stderr.write(f"meshlab: {text}\n")
    sys.stderr.flush()
    remove_files(shared_memory_files(pid))
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGKILL)
    if of_srun:
        # With the signal that lets the watches of the other ranks remove their shared memory.
        command = ["scancel", "--signal=TERM", f"{os.environ['SLURM_JOB_ID']}.{os.environ['SLURM_STEP_ID']}"]
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            subprocess.run(command, stderr=subprocess.DEVNULL, timeout=_SCANCEL_S, check=False)


def _path_problem() -> str:
    """Return which host of this step of Slurm packets of full size do not reach. Other launchers do not list theirs."""
    from meshlab.topology.readers._hostlists import expand_hosts

    name = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    others = [host for host in expand_hosts(os.environ.get("SLURM_STEP_NODELIST", "")) if host != name]
    with ThreadPoolExecutor(_MOST_PATHS) as pool:
        texts = dict(zip(others, pool.map(loss_text, others), strict=True))
    return next((f"{name} → {host}: {text}; {MTU_FIX}" for host, text in texts.items() if text), "")


def _absence(n: int, launcher: str, limit_s: float) -> str:
    more = ", and with --kill-on-bad-exit srun ends the others at once" if launcher == "srun" else ""
    return (
        f"{socket.gethostname()} has waited {limit_s:g} s for all {n} processes that {launcher} started; "
        "pass a larger --timeout if they only start slowly; "
        f"`meshlab doctor --hosts` names a host that cannot start them{more}"
    )


if __name__ == "__main__":
    _main(*parse_own_json(sys.argv[1]))
