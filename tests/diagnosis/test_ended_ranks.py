"""Ranks that were killed, crashed, or ran out of memory, and those that only noticed."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshlab as ml
from meshlab.diagnosis._paste import Paste
from meshlab.diagnosis.formats._process_exits import PROCESS_EXITS, read_process_exits
from meshlab.diagnosis.formats._torch_lines import ranks_of
from meshlab.diagnosis.rules._ended_ranks import (
    ENDED_RANK_RULES,
    ended_by_launcher,
    oom_rank,
    rank_died,
    rank_killed,
)
from tests.examples import examples


def codes(text: str) -> list[str]:
    return [item.code for rule in ENDED_RANK_RULES for item in rule(Paste(text)) if item.severity != "normal"]


KILLED = {
    "elastic": (
        "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -9) local_rank: 3 (pid: 8117) of "
        "binary: /env/bin/python",
        "local rank 3 (pid 8117)",
    ),
    "elastic of 2.11": (
        "E1128 05:57:16.184000 1667 torch/distributed/elastic/multiprocessing/api.py:986] failed (exitcode: -9) "
        "local_rank: 1 (pid: 1708) of binary: /usr/bin/python3",
        "local rank 1 (pid 1708)",
    ),
    "Open MPI": (
        "mpirun noticed that process rank 5 with PID 4711 on node nodeB exited on signal 9 (Killed).",
        "rank 5 (pid 4711) on nodeB",
    ),
    "PRRTE": (
        "prterun noticed that process rank 5 with PID 0 on node nodeB exited on signal 9 (Killed).",
        "rank 5 on nodeB",
    ),
    "MPICH": (
        "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n=   PID 77 RUNNING AT nodeC\n=   EXIT CODE: 9\n",
        "a process (pid 77) on nodeC",
    ),
    "Slurm": ("srun: error: node7: task 12: Killed", "rank 12 on node7"),
    "Slurm out of memory": ("srun: error: node7: task 12: Out Of Memory", "rank 12 on node7"),
    "spawn": (
        "torch.multiprocessing.spawn.ProcessExitedException: process 2 terminated with signal SIGKILL",
        "local rank 2",
    ),
    "DeepSpeed": ("[launch.py:325:sigkill_handler] exits with return code = -9", "a process"),
    "Kubernetes": ("command terminated with exit code 137", "a process"),
    "kernel": (
        "[ 12.3] Out of memory: Killed process 8117 (python) total-vm:1kB, anon-rss:2kB",
        "a process (pid 8117)",
    ),
    "exit code of a shell": (
        "failed (exitcode: 137) local_rank: 0 (pid: 12) of binary: /bin/bash",
        "local rank 0 (pid 12)",
    ),
}


@pytest.mark.parametrize("launcher", KILLED)
def test_a_killed_rank_is_found_in_the_words_of_every_launcher(launcher: str) -> None:
    text, subject = KILLED[launcher]
    (finding,) = rank_killed(Paste(text))
    assert finding.subject == subject
    assert "rank-died" not in codes(text)


SUMMARY = """\
W1128 05:57:16.019000 1667 torch/distributed/elastic/multiprocessing/api.py:1012] \
Sending process 1707 closing signal SIGTERM
E1128 05:57:16.184000 1667 torch/distributed/elastic/multiprocessing/api.py:986] \
failed (exitcode: {code}) local_rank: 1 (pid: 1708) of binary: /usr/bin/python3
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
Failures:
[1]:
  time      : 2026-11-28_05:57:16
  host      : node2
  rank      : 8 (local_rank: 0)
  exitcode  : -9 (pid: 1707)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 1707
Root Cause (first observed failure):
[0]:
  time      : 2026-11-28_05:57:16
  host      : node2
  rank      : 9 (local_rank: 1)
  exitcode  : {code} (pid: 1708)
  error_file: <N/A>
  traceback : Signal
"""


def test_the_summary_of_torchrun_names_the_rank_that_failed_first() -> None:
    (finding,) = rank_killed(Paste(SUMMARY.format(code=-9)))
    assert finding.subject == "rank 9 (pid 1708) on node2"
    assert codes(SUMMARY.format(code=-9)) == ["rank-killed"]


def test_ranks_that_the_launcher_killed_afterwards_are_not_blamed() -> None:
    text = SUMMARY.format(code=-11)
    assert codes(text) == ["rank-died"]
    (finding,) = rank_died(Paste(text))
    assert finding.subject == "rank 9 (pid 1708) on node2"
    assert "SIGSEGV" in finding.why


def test_a_worker_with_an_exit_code_has_printed_its_own_error() -> None:
    assert codes(SUMMARY.format(code=1)) == ["worker-exited"]


def test_an_abort_of_the_watchdog_is_no_crash() -> None:
    watchdog = (
        "[rank1]:[E ProcessGroupNCCL.cpp:632] [Rank 1] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=2, OpType=ALLREDUCE, NumelIn=6, NumelOut=6, Timeout(ms)=600000) ran for 600086 milliseconds "
        "before timing out.\n"
    )
    abort = "failed (exitcode: -6) local_rank: 1 (pid: 9) of binary: /usr/bin/python3"
    assert codes(watchdog + abort) == []
    assert codes(abort) == ["rank-died"]


MEMORY = {
    "2.5": (
        "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity "
        "of 79.11 GiB of which 1.2 GiB is free.",
        "rank 3, GPU 3",
    ),
    "1.13": (
        "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 5; 23.69 GiB total capacity)",
        "GPU 5",
    ),
    "NCCL": ("nodeA:11:12 [3] include/alloc.h:178 NCCL WARN Cuda failure 2 'out of memory'", "nodeA GPU 3"),
    "HIP": (
        "[rank1]: torch.OutOfMemoryError: HIP out of memory. Tried to allocate 1.00 GiB. GPU 1 has a total",
        "rank 1, GPU 1",
    ),
}


def test_the_device_of_a_line_without_its_host_is_no_rank() -> None:
    (finding,) = oom_rank(Paste("[10] ./src/include/alloc.h:58 NCCL WARN Cuda failure 'out of memory'"))
    assert finding.subject == "GPU 10"


@pytest.mark.parametrize("source", MEMORY)
def test_a_rank_without_gpu_memory_is_found(source: str) -> None:
    text, subject = MEMORY[source]
    (finding,) = oom_rank(Paste(text))
    assert (finding.severity, finding.subject) == ("error", subject)


@pytest.mark.parametrize(
    "text",
    [
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate more than 1EB memory.",
        "transport/nvls.cc:156 NCCL WARN Cuda failure 2 'out of memory'",
        "Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error 2 'out of memory'.",
        "Memory cgroup out of memory: Killed process 12 (python)",
        "try this if you run out of memory",
    ],
)
def test_other_lines_about_memory_are_not_a_rank_without_gpu_memory(text: str) -> None:
    assert all(finding.severity == "normal" for finding in oom_rank(Paste(text)))


CLOSED = """\
torch.distributed.DistBackendError: NCCL error in: /pytorch/NCCLUtils.hpp:268, \
remote process exited or there was a network error, NCCL version 2.21.5
ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.
Last error:
socketProgress: Connection closed by remote peer node7<33759>
"""


def test_a_closed_connection_leads_to_the_other_rank_only_if_the_text_has_no_other_cause() -> None:
    (finding,) = rank_died(Paste(CLOSED))
    assert (finding.severity, finding.subject) == ("warning", "a rank on node7")
    assert codes(CLOSED + MEMORY["2.5"][0]) == ["oom-rank"]
    assert codes(CLOSED + "\nnodeA:1:2 [0] NCCL WARN Call to posix_fallocate failed") == []


def test_a_launcher_that_was_ended_from_outside_is_worth_knowing() -> None:
    text = "torch.distributed.elastic.multiprocessing.api.SignalException: Process 1409 got signal: 15"
    assert codes(text) == ["ended-by-launcher"]


def test_messages_about_one_process_are_merged() -> None:
    ends = read_process_exits(Paste(SUMMARY.format(code=-9)))
    assert [(end.rank, end.local_rank, end.pid, end.is_first) for end in ends] == [
        (9, 1, 1708, True),
        (8, 0, 1707, False),
    ]
    assert PROCESS_EXITS.find(Paste(SUMMARY))


def test_a_closed_store_leads_to_rank_0() -> None:
    lost = (
        "[rank3]: torch.distributed.DistBackendError: [3] is setting up NCCL communicator and retrieving ncclUniqueId "
        "from [0] via c10d key-value store by key '0', but store->get('0') got error: Connection reset by peer"
    )
    (finding,) = rank_died(Paste(lost))
    assert (finding.severity, finding.subject) == ("warning", "rank 0, which holds the store")
    late = (
        "[rank1]:[W205 10:00:00.1 TCPStore.cpp:106] [c10d] sendBytes failed on SocketImpl(fd=85, addr=[node1]:51772, "
        "remote=[node0]:29500): Broken pipe"
    )
    (finding,) = rank_died(Paste(late))
    assert (finding.severity, finding.subject) == ("info", "rank 0, which holds the store, on node0")


CRASHED = {
    "Open MPI": ("[nodeA:1131 ] Signal: Segmentation fault (11)", "a process (pid 1131) on nodeA"),
    "UCX": (
        "[nodeA:1131:0:1140] Caught signal 11 (Segmentation fault: address not mapped)",
        "a process (pid 1131) on nodeA",
    ),
    "faulthandler": ("[rank4]: Fatal Python error: Segmentation fault", "rank 4"),
    "MPI": ("process rank 3 with PID 0 on node n1 exited on signal 11 (Segmentation fault).", "rank 3 on n1"),
    "Ray": (
        "(raylet, ip=10.0.0.2) A worker died or was killed while executing a task by an unexpected system error.",
        "a worker of Ray on 10.0.0.2",
    ),
}


@pytest.mark.parametrize("source", CRASHED)
def test_a_crash_is_found_in_the_words_of_every_program(source: str) -> None:
    text, subject = CRASHED[source]
    (finding,) = rank_died(Paste(text))
    assert (finding.severity, finding.subject) == ("error", subject)


def test_a_job_that_slurm_ended_is_not_blamed_on_its_ranks() -> None:
    text = "slurmstepd: error: *** STEP 12.0 ON node1 CANCELLED AT 2024-05-01T10:00:00 DUE TO TIME LIMIT ***"
    assert codes(text) == ["ended-by-launcher"]
    (finding,) = ended_by_launcher(Paste(text.replace(" DUE TO TIME LIMIT", "")))
    assert (finding.severity, finding.subject) == ("info", "step 12.0 on node1")
    failed = "srun: error: node2: task 9: Exited with exit code 1\n" + text.replace(" DUE TO TIME LIMIT", "")
    (finding,) = ended_by_launcher(Paste(failed))
    assert finding.severity == "normal"


@pytest.mark.parametrize(
    "error", ["Connection closed by peer [10.0.0.7]:10895", "Read error [10.0.0.7]:25266: Connection reset by peer"]
)
def test_a_closed_connection_of_gloo_leads_to_the_other_rank(error: str) -> None:
    text = f"RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] {error}"
    (finding,) = rank_died(Paste(text))
    assert (finding.severity, finding.subject) == ("warning", "a rank on 10.0.0.7")
    assert "do not show which" in finding.why
    assert not list(rank_died(Paste(f"{text}\ntorch.OutOfMemoryError: CUDA out of memory.")))


@pytest.mark.parametrize(
    ("text", "subject"),
    [
        (
            "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
            "a worker of vLLM",
        ),
        (
            "Unknown: Horovod has been shut down. This was caused by an exception on one of the ranks",
            "another rank of Horovod",
        ),
    ],
)
def test_a_process_that_only_reports_a_failure_is_not_its_cause(text: str, subject: str) -> None:
    (finding,) = ml.explain(text).findings
    assert (finding.code, finding.severity, finding.subject) == ("worker-exited", "info", subject)
    assert "not the cause" in finding.why


def table(*blocks: tuple[int, int, str]) -> str:
    """The table of torchrun for ranks, their exit codes and hosts. The first is the one that it observed first."""
    entries = [
        f"[{number}]:\n  time      : 2026-02-03_04:05:06\n  host      : {host}\n"
        f"  rank      : {rank} (local_rank: {rank})\n  exitcode  : {code} (pid: {500 + rank})\n  error_file: <N/A>\n"
        for number, (rank, code, host) in enumerate(blocks)
    ]
    return "".join(["Failures:\n", *entries[1:], "Root Cause (first observed failure):\n", entries[0]])


def test_ranks_that_all_abort_are_one_finding_that_blames_none() -> None:
    (finding,) = rank_died(Paste(table(*((rank, -6, "nodeQ") for rank in (2, 0, 1, 3)))))
    assert finding.subject == "ranks 0-3 on nodeQ"
    assert "none of these lines shows the cause" in finding.why
    assert "noticed first" in finding.why
    assert "follow from it" not in finding.why


def test_a_crash_beside_an_exit_code_is_not_called_the_first() -> None:
    (finding,) = rank_died(Paste(table((1, -11, "nodeQ"), (0, 1, "nodeR"))))
    assert finding.subject == "rank 1 (pid 501) on nodeQ"
    assert "rank 0 (pid 500) on nodeR ended (exit code 1), and not which of them caused the other" in finding.why


def test_ranks_that_a_launcher_kills_after_a_crash_are_not_out_of_memory() -> None:
    text = "srun: error: nodeQ: task 5: Segmentation fault\nsrun: error: nodeR: tasks 6-9: Killed"
    findings = [item for rule in ENDED_RANK_RULES for item in rule(Paste(text))]
    assert [(item.severity, item.code, item.subject) for item in findings] == [
        ("info", "rank-killed", "ranks 6-9 on nodeR"),
        ("error", "rank-died", "rank 5 on nodeQ"),
    ]


@given(
    st.lists(
        st.tuples(st.integers(0, 63), st.sampled_from([-6, -7, -11, 1]), st.sampled_from(["nodeQ", "nodeR"])),
        min_size=2,
        max_size=8,
        unique_by=lambda block: block[0],
    )
)
@settings(max_examples=examples(60), deadline=None)
def test_no_rank_is_called_the_cause_if_others_failed_too(blocks: list[tuple[int, int, str]]) -> None:
    text = str(ml.explain(table(*blocks)))
    assert "usually follow from it" not in " ".join(text.split())
    assert "only ended with it" not in text
    crashed = {rank for rank, code, _ in blocks if code == blocks[0][1] < 0}
    if crashed:
        (finding,) = [item for item in rank_died(Paste(table(*blocks))) if "by SIG" in item.why]
        named = set(
            ranks_of(re.sub(r"\(pid \d+\)|-", lambda match: " to " if match[0] == "-" else "", finding.subject))
        )
        assert named <= crashed


ENDS = {
    "PRRTE": (
        "prterun has exited due to process rank 2 with PID 1705 on node nid0302 exiting\nimproperly. There are three",
        "rank 2 (pid 1705) on nid0302",
        "no call of MPI_Finalize",
    ),
    "Open MPI, exit code": (
        "the job to be terminated. The first process to do so was:\n\n  Process name: [[6341,1],7]\n  Exit code:    3",
        "rank 7",
        "exit code 3",
    ),
    "MPI_Abort": (
        "MPI_ABORT was invoked on rank 11 in communicator MPI_COMM_WORLD\nwith errorcode -1.",
        "rank 11",
        "a call of MPI_Abort",
    ),
    "MPICH": (
        "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n=   PID 91 RUNNING AT me@node1\n=   EXIT CODE: 255",
        "a process (pid 91) on node1",
        "exit code 255",
    ),
    "MPICH 3.0": (
        "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n\n=   EXIT CODE: 11\n",
        "a process",
        "SIGSEGV",
    ),
    "Open MPI, wrapped": (
        "mpiexec noticed that process rank 5 with PID 713 on node n8 exited on \nsignal 9 (Killed).",
        "rank 5 (pid 713) on n8",
        "SIGKILL",
    ),
    "MPICH, a shell": ("=   PID 108 RUNNING AT node1\n=   EXIT CODE: 134", "a process (pid 108) on node1", "SIGABRT"),
    "Intel MPI": (
        "=   RANK 27 PID 33 RUNNING AT cn7\n=   KILLED BY SIGNAL: 11 (Segmentation fault)",
        "rank 27 (pid 33) on cn7",
        "SIGSEGV",
    ),
    "PALS": ("x42c4s7b0n0.hsn.cm: rank 421 died from signal 7", "rank 421 on x42c4s7b0n0.hsn.cm", "SIGBUS"),
    "mpd": ("  exit status of rank 3: killed by signal 11 ", "rank 3", "SIGSEGV"),
    "Flux": (
        "0.037s: flux-shell[0]: FATAL: task-exit: a.sh: task rank 1 on host corona7 failed and exit-on-error is set",
        "rank 1 on corona7",
        "an early exit or an error",
    ),
    "Slurm, several tasks": (
        "srun: error: cn5: tasks 8-11: Exited with exit code 2",
        "ranks 8-11 on cn5",
        "exit code 2",
    ),
    "torch.distributed.launch": (
        "CalledProcessError: Command '['python', 'a.py', '--local_rank=7']' died with <Signals.SIGSEGV: 11>.",
        "a process",
        "SIGSEGV",
    ),
    "torchrun of 2.12": (
        table((3, -11, "n1")).replace("(pid: 503)", "(pid: 503) (SIGSEGV)"),
        "rank 3 (pid 503) on n1",
        "SIGSEGV",
    ),
    "spawn": ("ProcessExitedException: process 2 terminated with exit code 1", "local rank 2", "exit code 1"),
}


@pytest.mark.parametrize("launcher", ENDS)
def test_the_process_is_named_as_the_launcher_names_it(launcher: str) -> None:
    text, name, how = ENDS[launcher]
    (end,) = read_process_exits(Paste(text))
    assert (str(end), end.how) == (name, how)


RAY = (
    "(raylet) A worker died or was killed while executing a task by an unexpected system error. RayTask ID: ff Node "
    "ID: 8a Worker IP address: 10.2.0.7 Worker port: 10031 Worker PID: 4711 Worker exit type: SYSTEM_ERROR Worker exit "
    "detail: End of file."
)


def test_a_worker_that_ray_lost_is_named_by_its_process_and_address() -> None:
    actor = "\tclass_name: Trainer\n\tpid: 88\n\tip: 10.2.0.9\nThe actor is dead because its worker process has died. "
    actor += "Worker exit type: SYSTEM_ERROR"
    wrapped = "\n".join(RAY[start : start + 120] for start in range(0, len(RAY), 120))
    for text, name in (
        (RAY, "(pid 4711) on 10.2.0.7"),
        (wrapped, "(pid 4711) on 10.2.0.7"),
        (RAY.replace("10.2.0.7", "0.0.0.0"), "(pid 4711)"),
        (actor, "(pid 88) on 10.2.0.9"),
    ):
        (finding,) = rank_died(Paste(text))
        assert finding.subject == f"a worker of Ray {name}"


def test_a_host_that_ray_lost_is_named_by_its_address() -> None:
    text = "The node with node id: 75b2 and address: 10.4.4.107 and node name: gpu7 has been marked dead because the"
    (finding,) = rank_died(Paste(text))
    assert finding.subject == "the host 10.4.4.107 of Ray"


LIMITS = {
    "PBS": ("=>> PBS: job killed: walltime 615 exceeded limit 600", "the job, limit of time"),
    "LSF": ("TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.", "the job, limit of memory"),
    "Slurm, a node": (
        "srun: error: Node failure on cn37\nslurmstepd: error: *** STEP 19.0 ON cn17 CANCELLED AT 2026-03-06T03:17:51 "
        "DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***",
        "cn37, step 19.0",
    ),
    "Slurm, a node alone": ("srun: error: Node failure on cn37", "cn37"),
}


@pytest.mark.parametrize("scheduler", LIMITS)
def test_a_job_that_a_scheduler_ended_names_the_reason(scheduler: str) -> None:
    text, subject = LIMITS[scheduler]
    (finding,) = [item for rule in ENDED_RANK_RULES for item in rule(Paste(text))]
    assert (finding.severity, finding.code, finding.subject) == ("error", "ended-by-launcher", subject)


def test_sigterm_follows_from_a_failure_only_if_the_text_has_one() -> None:
    term = "Sending process 17 closing signal SIGTERM"
    failed = "failed (exitcode: 1) local_rank: 0 (pid: 5) of binary: python"

    def why(*lines: str) -> str:
        (finding,) = [item for item in ended_by_launcher(Paste("\n".join(lines))) if item.severity == "normal"]
        return finding.why

    assert "does not show which" in why(term)
    assert "after another one failed" in why(term, failed)
    assert "received SIGTERM itself" in why(term, "SignalException: Process 9 got signal: 15")
