"""Rules for jobs of JAX: processes that do not come, end or wait, and NCCL as XLA loads it."""

from __future__ import annotations

from collections.abc import Iterator

from meshlab.diagnosis._findings import TextFinding, rule
from meshlab.diagnosis._other_lines import other_lines
from meshlab.diagnosis._paste import Paste
from meshlab.diagnosis.formats._nccl_lines import NOT_NAMED, number_list
from meshlab.diagnosis.formats._xla_lines import (
    read_late_tasks,
    read_refused_coordinators,
    read_silent_tasks,
    read_waiting_threads,
)
from meshlab.diagnosis.rules._line_rules import LineRule, others_having, rules_of

_SERVICE = "openxla/xla xla/tsl/distributed_runtime/coordination/coordination_service.cc"
_RENDEZVOUS = "openxla/xla xla/service/rendezvous.cc"


@rule(
    "rendezvous-incomplete",
    "Some processes of JAX did not come",
    source=_SERVICE,
    causes=("worker-exited", "rank-died"),
)
def tasks_late(paste: Paste) -> Iterator[TextFinding]:
    """Look for a barrier of the coordination service that timed out, and for the start that waits at one."""
    if late := paste.once(read_late_tasks):
        tasks = {task for barrier in late for task in barrier.tasks}
        names = ", ".join(dict.fromkeys(barrier.barrier for barrier in late if barrier.barrier))
        is_start = not names or any(mark in names for mark in ("register", "Connect", "Init"))
        yield tasks_late.finding(
            "error",
            number_list(tasks, "process") if tasks else "some processes of the job",
            "The coordination service waited"
            + (f" at {names}" if names else "")
            + (
                f" for {number_list(tasks, 'process')}, and not all of the others came in time."
                if tasks
                else ", and not all processes came in time; the text does not name them."
            )
            + (" This is the start of the job, before any call of NCCL." if is_start else ""),
            "Read the first lines of the processes that are missing: they never started, ended before, use another "
            "coordinator_address or num_processes, or cannot reach the host of process 0. If they are only slow, raise "
            "initialization_timeout in jax.distributed.initialize."
            if is_start
            else "Read the log of the processes that are missing: the first error in them, or where they hang, is the "
            "cause.",
            [number for barrier in late for number in barrier.lines],
        )
    elif lines := other_lines(paste).find("Coordination service agent in error status: DEADLINE_EXCEEDED"):
        yield tasks_late.finding(
            "error",
            "the process that prints it, or the coordinator",
            "A call of this process to the coordination service, which runs in process 0, took too long. The text does "
            "not show whether process 0 is late, overloaded or unreachable.",
            "Check that process 0 runs and that its address and port can be reached from this host (nc -vz HOST PORT). "
            "For many processes, raise initialization_timeout in jax.distributed.initialize.",
            lines,
        )


@rule(
    "rank-died",
    "A process of the job sent no more heartbeats",
    source=_SERVICE,
    causes=("nccl-timeout", "rank-missing"),
)
def task_silent(paste: Paste) -> Iterator[TextFinding]:
    """Look for processes whose heartbeats did not reach the coordination service."""
    if silent := paste.once(read_silent_tasks):
        yield task_silent.finding(
            "error",
            number_list(silent, "process"),
            f"The coordination service got no more heartbeats from {number_list(silent, 'process')}: it ended, its "
            "host or the network failed, or it was too busy to send them. It then ends the others.",
            "Read the log of this process before that time, and look at its host (dmesg -T, kubectl describe pod). If "
            "it was only slow, as while much memory is pinned, raise heartbeat_timeout_seconds in "
            "jax.distributed.initialize.",
            sorted({number for numbers in silent.values() for number in numbers}),
        )
    elif lines := other_lines(paste).find("Terminating process because the JAX distributed service detected fatal"):
        yield task_silent.finding(
            "warning",
            "another process of the job",
            "JAX ended this process because another one failed or ended; the text does not name it.",
            "Find the process of which the log ends first; its last error is the cause.",
            lines,
        )


@rule("net-unreachable", "The coordinator of JAX cannot be reached", source=_SERVICE, causes=("rank-died",))
def coordinator_unreachable(paste: Paste) -> Iterator[TextFinding]:
    """Look for connections to the coordination service that failed."""
    for (address, why), numbers in paste.once(read_refused_coordinators).items():
        is_refused = "refused" in why
        yield coordinator_unreachable.finding(
            "error",
            f"the coordinator at {address}",
            f"A process could not connect to {address}, where the coordination service of process 0 should be: {why}."
            + (" Nothing listened there: process 0 had not started yet, or had ended." if is_refused else ""),
            "Read the log of process 0: if it ended, its last error is the cause. Else check its address and port from "
            f"another host: nc -vz {address.rpartition(':')[0]} {address.rpartition(':')[2]}",
            numbers,
        )


@rule("rank-missing", "A thread of XLA waits for the other devices of its process", source=_RENDEZVOUS)
def threads_waiting(paste: Paste) -> Iterator[TextFinding]:
    """Look for threads that wait at a rendezvous, which are often only slow."""
    threads = paste.once(read_waiting_threads)
    if not threads:
        return
    lines = [thread.line for thread in threads]
    first = threads[0]
    went_on = other_lines(paste).find("Thread is unstuck! Warning above was a false-positive")
    if went_on and not first.ended:
        yield threads_waiting.finding(
            "normal",
            f"`{first.name[:80]}`",
            "XLA warns of threads that wait long for each other, and takes it back when they go on, as here. "
            "Compiling, loading and the setup of NCCL take that long.",
            lines=[*lines, *(line.number for line in went_on)],
        )
        return
    if first.expected is None:
        why = "All threads came, and the one that works for all of them did not return."
    else:
        came = (
            f"{first.arrived} of {first.expected}" if first.arrived is not None else f"not all of the {first.expected}"
        )
        why = f"A process has one thread for each of its devices, and {came} threads came within {first.seconds} s."
    setup = any(thread.is_setup for thread in threads)
    why += (
        " They create a communicator of NCCL, which waits until all processes of the job do the same."
        if setup
        else " The one that is missing is still compiling or computing, hangs, or ended with an error."
    )
    yield threads_waiting.finding(
        "error" if first.ended else "warning",
        f"`{first.name[:80]}`" + (f" and {len(threads) - 1} more waits" if len(threads) > 1 else ""),
        why + (" XLA ended the process because of it." if first.ended else " This may still go on."),
        (
            "Look whether all processes came as far as this, and set NCCL_DEBUG=INFO on all of them: the one without "
            "Init COMPLETE, or its network (NCCL_SOCKET_IFNAME), is the cause. If they are only slow, raise "
            "--xla_gpu_first_collective_call_terminate_timeout_seconds in XLA_FLAGS."
            if setup
            else "Look for the first error of this process above these lines, and get the stacks of its threads ("
            "py-spy dump --native --pid PID)."
        ),
        lines,
    )


XLA_RULES = rules_of(
    __name__,
    tasks_late,
    task_silent,
    coordinator_unreachable,
    threads_waiting,
    LineRule(
        code="library-not-found",
        title="NCCL cannot be loaded",
        looks_for="Look for XLA without a library of NCCL.",
        find=others_having("Unable to load NCCL library"),
        subject=NOT_NAMED,
        why="XLA did not find the library of NCCL (libnccl.so.2), or could not load it. Nothing between GPUs works "
        "without it; one GPU does.",
        do="Install it into the same environment as jaxlib (nvidia-nccl-cu12 or nvidia-nccl-cu13, as jax[cuda12] does) "
        "or put its folder into LD_LIBRARY_PATH, and check with ldconfig -p | grep nccl.",
        source="openxla/xla third_party/nccl, JAX installation guide",
        causes=("warning-missing", "unknown-warning"),
    ),
)
