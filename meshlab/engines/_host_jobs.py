"""The process or the job that starts ranks on hosts: its script, its state in the queue, and its end."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import psutil

from meshlab.base._errors import EngineError
from meshlab.engines._controller import Controller
from meshlab.engines._parts import how_ended

_COMMAND_S = 20.0  # maximum time of a command of the scheduler
_POLL_S, _LATER_POLL_S = 1.0, 5.0  # seconds between questions to the scheduler, at first and after a minute
_MINUTE_S = 60.0
_ITSELF_S = 1.5  # time that a launcher gets to end, and to clean up on the hosts, when its ranks have ended
_END_S = 5.0  # time that it gets after it was requested to end
_OPTIONS_FIX = "correct the options; `sinfo` lists its partitions and hosts"
_ALLOCATION_FIX = "use at most the hosts and tasks of the allocation in SLURM_JOB_ID, or start outside of it"
NO_TASK = re.compile(r"(?m)^srun: error: Task launch for \S+ failed on node (\S+): (.+)$")
"""What srun writes if a host cannot start a task: the host, and why."""

TASK_FIX = "check slurmd, munge and the clock of this host"

# Slurm's reasons that last until somebody changes the job or the partition.
_NEVER = ("BadConstraints", "PartitionConfig", "PartitionNodeLimit", "PartitionTimeLimit")
_QUEUED = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD")
_HALTED = ("SUSPENDED", "STOPPED", "SIGNALING", "RESIZING")  # it has its hosts, and goes on later


@dataclass(frozen=True)
class JobState:
    """What a job does."""

    text: str
    """Such as "job 12 waits in the queue (Resources)"."""
    is_queued: bool = False
    is_over: bool = False
    fix: str = ""
    """What to do about a job that will not leave the queue by itself. Empty for others."""

    def check(self) -> None:
        """Raise an `EngineError` if the job will not leave the queue."""
        if self.fix:
            raise EngineError(self.text, hint=self.fix)


class HostJob(Protocol):
    """Ranks that start together on hosts."""

    ends_by: Sequence[str]
    """The command that ends it if its client cannot. Empty if it ends with the processes of this host."""

    def state(self) -> JobState:
        """Return what it does, without asking the scheduler more often than that bears."""

    def end(self) -> None:
        """End it, and wait for that, but not long."""


class LocalJob:
    """A launcher that runs on this host until the ranks have ended: mpiexec, or srun in an allocation."""

    ends_by: Sequence[str] = ()

    def __init__(
        self, controller: Controller, n: int, script: Path, log: Path, environment: Mapping[str, str], **start: Any
    ) -> None:
        shell = ["/bin/sh", "-c", 'exec /bin/sh "$0" >>"$MESHLAB_LOG" 2>&1', str(script)]
        launcher = controller.start_engines(
            n, "ranks", environment={**environment, "MESHLAB_LOG": str(log)}, mpi_cmd=shell, **start
        )
        self._process: psutil.Process = launcher.process

    def state(self) -> JobState:
        """Return whether the launcher runs."""
        how = how_ended(self._process)
        return JobState(f"the launcher of the ranks {how}" if how else "the ranks start", is_over=bool(how))

    def end(self) -> None:
        """Terminate the launcher, which ends the ranks of all hosts, unless it ends itself."""
        with contextlib.suppress(psutil.Error):
            if not self._has_ended(_ITSELF_S):
                self._process.terminate()
            if not self._has_ended(_END_S):
                self._process.kill()

    def _has_ended(self, limit_s: float) -> bool:
        deadline = time.monotonic() + limit_s
        while not how_ended(self._process):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True


class SlurmJob:
    """A job of Slurm."""

    def __init__(
        self,
        controller: Controller,
        n: int,
        script: Path,
        log: Path,
        environment: Mapping[str, str],
        *,
        options: Sequence[str],
        **start: Any,
    ) -> None:
        require("sbatch")
        try:
            launcher = controller.start_engines(
                n,
                "ranks",
                environment=environment,
                # ipyparallel fills in a template, but the script is complete.
                batch_template=script.read_text().replace("{", "{{").replace("}", "}}"),
                batch_file_name=str(script.with_suffix(".sbatch")),
                output_file=str(log),
                job_id_regexp=r"(?m)^\d+(?=;|$)",  # and not a number in a warning
                submit_command=["/bin/sh", "-c", 'exec sbatch --parsable "$@" 2>&1', "sbatch", *options],
                **start,
            )
        except subprocess.CalledProcessError as error:
            raise rejection((error.output or b"").decode(errors="replace"), str(error)) from None
        self._id: str = launcher.job_id
        self.ends_by: Sequence[str] = ("scancel", self._id)
        self._began = time.monotonic()
        self._asked = 0.0
        self._state = JobState(f"job {self._id} of Slurm is submitted", is_queued=True)

    def state(self) -> JobState:
        """Ask Slurm, at most once a second."""
        time_s = time.monotonic()
        period = _POLL_S if time_s - self._began < _MINUTE_S else _LATER_POLL_S
        if time_s - self._asked >= period:
            self._asked = time_s
            self._state = job_state(self._id)
        return self._state

    def end(self) -> None:
        """Cancel the job, unless it ends itself first."""
        deadline = time.monotonic() + _END_S
        output_of(["scancel", self._id])
        while time.monotonic() < deadline and not job_state(self._id).is_over:
            time.sleep(0.2)


def job_state(job: str) -> JobState:
    """Ask Slurm what a job does."""
    answer = output_of(["squeue", "--noheader", "--jobs", job, "--format", "%T|%r|%N"])
    name = f"job {job} of Slurm"
    if answer is None:  # the scheduler is busy, or has forgotten the job
        fields = dict(part.partition("=")[::2] for part in (output_of(["scontrol", "show", "job", job]) or "").split())
        state, reason, nodes = (fields.get(key, "") for key in ("JobState", "Reason", "NodeList"))
        if not state:
            return JobState(f"{name} does not exist any more", is_over=True)
    elif not answer.strip():
        return JobState(f"{name} has ended", is_over=True)
    else:
        state, reason, nodes = [*answer.strip().splitlines()[0].split("|"), "", ""][:3]
    if state in _QUEUED and reason in _NEVER:
        return JobState(f"{name} would never leave the queue ({reason})", is_queued=True, fix=_OPTIONS_FIX)
    if state in _QUEUED:
        return JobState(f"{name} waits in the queue ({reason})", is_queued=True)
    if state in ("RUNNING", "COMPLETING"):
        return JobState(f"{name} runs on {nodes}")
    why = f" ({reason})" if reason not in ("", "None") else ""
    if state in _HALTED:
        return JobState(f"{name} is {state.lower()}{why} on {nodes}")
    return JobState(f"{name} has ended: {state}{why}", is_over=True)


def output_of(command: Sequence[str]) -> str | None:
    """Return what a command prints, or None if it fails."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_COMMAND_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return None if done.returncode else done.stdout


def is_in_allocation() -> bool:
    """Return whether this process runs in an allocation of Slurm, whose hosts it can use without a queue."""
    return "SLURM_JOB_ID" in os.environ


def hosts_of_slurm() -> list[str]:
    """Return the names or addresses of hosts of Slurm: those of the allocation, or else of the partitions."""
    if is_in_allocation():
        text = output_of(["scontrol", "show", "hostnames", os.environ.get("SLURM_JOB_NODELIST", "")])
    else:
        text = output_of(["sinfo", "--noheader", "--format", "%o"])
    return sorted(set((text or "").split()))


def require(program: str) -> None:
    """Raise unless a program of Slurm is installed."""
    if shutil.which(program) is None:
        raise EngineError(
            f"hosts='slurm' needs {program}, which this host does not have", hint="start it on another host"
        )


def rejection(text: str, otherwise: str) -> EngineError:
    """Return the error of Slurm for what one of its commands has printed."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("Try ")]
    reason = re.sub(r"^s\w+: (error: )?", "", lines[-1].strip()) if lines else otherwise
    hint = _ALLOCATION_FIX if is_in_allocation() else _OPTIONS_FIX
    if "slurm controller" in reason:
        hint = "check it with `scontrol ping`"
    return EngineError(f"Slurm rejects the job: {reason}", hint=hint)
