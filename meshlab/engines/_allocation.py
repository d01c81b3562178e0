"""Hosts of Slurm, in an allocation that lasts as long as a block, and commands that run on each of them."""

from __future__ import annotations

import contextlib
import re
import select
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import IO

from meshlab.base._errors import EngineError
from meshlab.engines._host_jobs import is_in_allocation, job_state, output_of, rejection, require
from meshlab.engines._host_queue import waiting_line

_POLL_S = 1.0  # time between two questions about the state of the job
_DOWN_S = 15.0  # that a job waits for hosts that are down, which they also are for a moment after another job
_DOWN = re.compile(r"DOWN|UnavailableNodes")  # in Slurm's reason why a job waits
_END_S = 10.0  # time that an allocation gets to end
_ON_HOSTS = ("srun", "--overlap", "--mpi=none", "--chdir=/")
# The allocation ends with its command, and that with its input, however this process ends.
_COMMAND = ("sh", "-c", 'echo "$SLURM_JOB_ID $SLURM_JOB_NODELIST"; exec cat')


@contextlib.contextmanager
def allocated_hosts(options: Sequence[str]) -> Iterator[tuple[list[str], list[str]]]:
    """Return the names of hosts, and srun for commands there. They are allocated if this process has none."""
    require("srun")
    if is_in_allocation():
        named = [*_ON_HOSTS, *options, "printenv", "SLURMD_NODENAME"]
        done = subprocess.run(named, capture_output=True, text=True, errors="replace", check=False)
        if done.returncode:
            raise rejection(done.stderr, f"srun ended with exit code {done.returncode}")
        yield sorted(set(done.stdout.split())), [*_ON_HOSTS]
        return
    require("salloc")
    pipe = subprocess.PIPE
    with tempfile.TemporaryFile("w+", errors="replace") as errors:
        command = ["salloc", *options, *_COMMAND]
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=errors, text=True)
        try:
            job, nodes = _wait_for_hosts(process, errors)
            names = output_of(["scontrol", "show", "hostnames", nodes]) or nodes
            yield names.split(), [*_ON_HOSTS, f"--jobid={job}"]
        except BaseException:
            process.terminate()
            raise
        finally:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=_END_S)
            process.kill()


def _wait_for_hosts(process: subprocess.Popen[str], errors: IO[str]) -> tuple[str, str]:
    """Return the job and the hosts of an allocation. While it waits in the queue, its state is shown."""
    assert process.stdout is not None
    down_since = None
    with waiting_line() as show:
        while not select.select([process.stdout], [], [], _POLL_S)[0]:
            if (pending := re.search(r"job allocation (\d+)", _text_of(errors))) is not None:
                state = job_state(pending[1])
                state.check()
                show(state.text)
                down_since = (down_since or time.monotonic()) if _DOWN.search(state.text) else None
                if down_since is not None and time.monotonic() - down_since > _DOWN_S:
                    raise _hosts_down(state.text)
    match process.stdout.readline().split():
        case [job, nodes]:
            return job, nodes
    process.wait(_END_S)
    raise rejection(_text_of(errors), f"salloc ended with exit code {process.returncode}")


def _hosts_down(text: str) -> EngineError:
    """Return the error about hosts that Slurm does not reach, or that somebody has drained."""
    lines = (output_of(["sinfo", "--noheader", "-N", "--format", "%n|%T|%E"]) or "").splitlines()
    states = {host: (state, reason) for host, state, reason in (line.split("|", 2) for line in lines)}
    down = [
        f"{host} ({reason if reason != 'none' else state})"
        for host, (state, reason) in states.items()
        if state.endswith("*") or re.match(r"down|drain|fail", state)
    ]
    more = f" and {len(down) - 3} more" if len(down) > 3 else ""
    return EngineError(
        f"{text.partition(' (')[0]}, because hosts are down: {', '.join(down[:3]) or 'none that sinfo lists'}{more}",
        hint="check their slurmd, munge and clocks, or omit them",
    )


def _text_of(file: IO[str]) -> str:
    file.seek(0)
    return file.read()
