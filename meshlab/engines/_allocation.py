"""Hosts of Slurm, in an allocation that lasts as long as a block, and commands that run on each of them."""

from __future__ import annotations

import contextlib
import re
import select
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from typing import IO

from meshlab.engines._host_jobs import is_in_allocation, job_state, output_of, rejection, require
from meshlab.engines._host_queue import waiting_line

_POLL_S = 1.0  # time between two questions about the state of the job
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
        done = subprocess.run(named, capture_output=True, text=True, check=False)
        if done.returncode:
            raise rejection(done.stderr, f"srun ended with exit code {done.returncode}")
        yield sorted(set(done.stdout.split())), [*_ON_HOSTS]
        return
    require("salloc")
    pipe = subprocess.PIPE
    with tempfile.TemporaryFile("w+") as errors:
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
    with waiting_line() as show:
        while not select.select([process.stdout], [], [], _POLL_S)[0]:
            if (pending := re.search(r"job allocation (\d+)", _text_of(errors))) is not None:
                state = job_state(pending[1])
                state.check()
                show(state.text)
    match process.stdout.readline().split():
        case [job, nodes]:
            return job, nodes
    process.wait(_END_S)
    raise rejection(_text_of(errors), f"salloc ended with exit code {process.returncode}")


def _text_of(file: IO[str]) -> str:
    file.seek(0)
    return file.read()
