"""Starts that fail before NCCL: copies of one test, launchers, and GPUs that are not there."""

from __future__ import annotations

import pytest

from meshlab.diagnosis._paste import Paste
from meshlab.diagnosis.formats._nccl_tests_starts import read_test_starts
from meshlab.diagnosis.rules._launching import launcher_failed, too_few_gpus, two_copies

HEADER = "# nThread 1 nGpus {} minBytes 8 maxBytes 1024 step: 2(factor) warmup iters: 5 iters: 20 validation: 1"
USING = "#\n# Using devices"
ROW = (
    "        1024           256     float     sum      -1    18.11    0.06    0.11      0    17.92    0.06    0.11 "
    "     0"
)


def device(rank: int, pid: int, host: str = "node1", number: int = 0) -> str:
    return f"#  Rank {rank:2} Group  0 Pid {pid:6} on {host:>10} device {number:2} [0x1a] NVIDIA H100 80GB HBM3"


def paste(*lines: str) -> Paste:
    return Paste("\n".join(lines))


def test_processes_that_all_call_themselves_rank_0_are_copies() -> None:
    text = paste("$ mpirun -np 3 ./all_reduce_perf -g 1 ", USING, device(0, 11), device(0, 12), device(0, 13, "node2"))
    (finding,) = two_copies(text)
    assert finding.subject == "all 3 processes of mpirun on node1, node2"
    assert "MPI=1" in finding.do


def test_headers_that_repeat_before_the_first_device_are_copies() -> None:
    text = paste(
        "srun --nodelist node-1 --mpi=pmi2 all_reduce_perf ",
        *[HEADER.format(1), USING] * 2,
        *("srun: MPI types are...", "srun: none", "srun: pmi2"),
    )
    (finding,) = two_copies(text)
    assert finding.subject == "all 2 processes of srun on node-1"
    assert "pmi2 and no pmix" in finding.do


@pytest.mark.parametrize(
    "between",
    [
        [ROW, "# Avg bus bandwidth    : 1.2"],
        ["node1: Test NCCL failure common.cu:1279 'unhandled system error'"],
        ["$ mpirun -np 2 ./build/all_reduce_perf -g 1 "],
    ],
)
def test_tests_that_follow_each_other_are_no_copies(between: list[str]) -> None:
    run = [HEADER.format(1), USING, device(0, 11), device(1, 12)]
    other = [HEADER.format(1), USING, device(0, 21), device(1, 22)]
    text = paste(*run, *between, *other)
    assert not list(two_copies(text))
    assert [len(start.devices) for start in read_test_starts(text) if start.devices] == [2, 2]


def test_a_script_with_other_sizes_is_no_copy() -> None:
    text = paste(HEADER.format(1), USING, HEADER.format(1).replace("minBytes 8", "minBytes 16"), USING, device(0, 11))
    assert not list(two_copies(text))


def test_one_job_over_two_hosts_is_no_copy() -> None:
    assert not list(two_copies(paste(HEADER.format(1), USING, device(0, 11), device(1, 11, "node2"))))


LAUNCHERS = {
    "PMIx": (
        "slurmstepd: error:  mpi/pmix_v3: pmixp_coll_ring_reset_if_to: node-a [0]: pmixp_coll_ring.c:742: 0x14: "
        "collective timeout seq=0\nslurmstepd: error:  mpi/pmix_v3: pmixp_coll_ring_log: node-a [0]: "
        "pmixp_coll_ring.c:769: neighbor id: next 1:node-b, prev 1:node-b",
        "slurmstepd on node-a waiting for node-b",
    ),
    "ORTE": ("ORTE was unable to reliably start one or more daemons.", "mpirun"),
    "slots": ("There are not enough slots available in the system to satisfy the 16\nslots", "mpirun"),
    "map": ("A sequential map was requested, but not enough node entries\nwere given", "mpirun"),
    "bind": ("[proxy:0:0@node5] HYDT_topo_bind (tools/topo/topo.c:89): no topology library available", "node5"),
    "exchange": (
        'slurmstepd: error: mpi/pmix_v5: _dmdx_req: node6 [0]: pmixp_dmdx.c:319: Bad request from node7: nspace "s"',
        "node6",
    ),
    "contribution": (
        "error:  mpi/pmix_v4: _process_server_request: node2 [0]: pmixp_server.c:935: 0x4: unexpected contrib from "
        "node3",
        "node2",
    ),
    "MPICH": (
        "Abort(5): Fatal error in internal_Init_thread: Other MPI error, error stack:\ninternal_Init_thread(4): "
        "MPI_Init_thread(required=3) failed\nMPID_Init(516)...: \nfind_provider(170): OFI fi_getinfo() failure",
        "MPI_Init",
    ),
    "plugin": ("srun: error: Couldn't find the specified plugin name for mpi/pmix looking at all files", "srun"),
    "direct": ('The application appears to have been direct launched using "srun",', "srun"),
    "credential": (
        "srun: error: Task launch for 812.0 failed on node cn9: Job credential expired\n"
        "srun: error: Task launch for 812.0 failed on node cn12: Job credential expired\n"
        "srun: error: Application launch failed: Job credential expired",
        "cn9, cn12",
    ),
    "step": ("srun: error: Unable to create step for job 10: Error generating job credential", "Slurm"),
    "layout": (
        "srun: error: Task launch for StepId=15.4 failed on node n7: Unable to layout tasks on given cpus",
        "n7",
    ),
    "messages": ("srun: error: slurm_receive_msgs: [[ubuntu4]:6818] failed: Socket timed out on send/recv", "ubuntu4"),
    "submission": ("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation", "Slurm"),
    "no daemon": ("bash: orted: command not found\nORTE was unable to reliably start one or more daemons.", "mpirun"),
    "prterun": ("prterun was unable to reliably start one or more daemons.", "mpirun"),
    "ssh closes": ("ssh_exchange_identification: Connection closed by remote host", "ssh"),
    "firewall": (
        "A process or daemon was unable to complete a TCP connection\nto another process:\n  Local host:    3eed8\n"
        "  Remote host:   0cdbe\nThis is usually caused by a firewall on the remote host.",
        "0cdbe",
    ),
    "execve": (
        "slurmstepd: error: execve(): ./a: Permission denied\nsrun: error: n31: tasks 4-7: Exited with exit code 13",
        "n31",
    ),
    "lost": (
        "ORTE has lost communication with a remote daemon.\n\n  HNP daemon   : [[4,0],0] on node head-0\n"
        "  Remote daemon: [[4,0],3] on node worker-2\n",
        "worker-2",
    ),
    "lost, Open MPI 1": (
        "ORTE has lost communication with its daemon located on node:\n\n   hostname:  ip-10-1.internal\n",
        "ip-10-1.internal",
    ),
    "program": (
        "mpirun was unable to launch the specified application as it could not access\nor execute an executable:\n\n"
        "Executable: ./bench\nNode: cori7\n",
        "cori7",
    ),
    "Hydra, program": (
        "[mpiexec@lenz5] HYDU_create_process (launch.c:69): execvp error on file ./x (No such file or directory)",
        "lenz5",
    ),
    "Hydra, server": (
        '[proxy:0:1@n16.local] HYDU_sock_connect (sock.c:145): unable to connect from "n16.local" to "n10.local" '
        "(Connection refused)\n[proxy:0:1@n16.local] main (pmip.c:1): unable to connect to server n10.local at port 7",
        "n10.local",
    ),
    "Flux": (
        'exception type="exec" severity=0 note="task 1 (host corona294): start failed: ./a: No such file or directory"',
        "corona294",
    ),
    "pdsh": ("pdsh@head: node002: ssh exited with exit code 255", "node002"),
    "DeepSpeed": (
        "CalledProcessError: Command 'ssh -o PasswordAuthentication=no 10.3.0.1 hostname' returned non-zero exit "
        "status 255.",
        "10.3.0.1",
    ),
    "no key": ("me@worker-4: Permission denied (publickey,password).", "worker-4"),
    "ssh": ("ssh: connect to host node7 port 22: Connection refused", "node7"),
    "CXI": ("start failed on node00: CXI alloc failed on cxi0: request exceeds ACs limits", "node00"),
}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_launcher_that_failed_is_found(launcher: str) -> None:
    text, subject = LAUNCHERS[launcher]
    (finding,) = launcher_failed(Paste(text))
    assert finding.subject == subject


@pytest.mark.parametrize(
    "text",
    [
        "prterun detected that one or more processes exited with non-zero status,",
        "srun: error: node04: tasks 16-19: Exited with exit code 1",
        "srun: job 12 queued and waiting for resources",
    ],
)
def test_messages_about_a_failed_program_are_not_a_failed_launcher(text: str) -> None:
    assert not list(launcher_failed(Paste(text)))


def test_more_gpus_than_the_host_has_are_found() -> None:
    text = paste(
        HEADER.format(8),
        USING,
        "g0010: Test CUDA failure common.cu:941 'invalid device ordinal'",
        " .. g0010 pid 888386: Test failure common.cu:891",
        "g0016: Test CUDA failure common.cu:941 'invalid device ordinal'",
    )
    (finding,) = too_few_gpus(text)
    assert finding.subject == "g0010, g0016"
    assert "asks for 8 GPUs" in finding.why


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("Invalid number of GPUs: 16 requested but only 8 were found.", "16 GPUs are asked for and 8 are visible"),
        ("[rank9]: torch.AcceleratorError: CUDA error: invalid device ordinal", "does not exist"),
        (
            "AssertionError: local_world_size (16) must be less than or equal to the number of visible devices (8).",
            "16 GPUs are asked for and 8 are visible",
        ),
        (
            "ValueError: The number of required GPUs exceeds the total number of available GPUs in the cluster.",
            "Ray has",
        ),
        ("ValueError: No slot '2' specified on host 'localhost'", "--include"),
        ("ValueError: Current node has no GPU available. current_node_resource={'CPU': 64.0}", "no free GPU"),
        ("ValueError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!", "No GPU is visible"),
    ],
)
def test_missing_gpus_are_found_in_other_words(line: str, part: str) -> None:
    assert part in next(iter(too_few_gpus(Paste(line)))).why


def test_a_peer_that_nccl_does_not_see_is_not_a_missing_gpu() -> None:
    text = "pod-0:12:13 [0] transport/p2p.cc:275 NCCL WARN Cuda failure 101 'invalid device ordinal'"
    assert not list(too_few_gpus(Paste(text)))


def test_a_host_that_is_lost_while_a_job_runs_is_no_failed_start() -> None:
    (finding,) = launcher_failed(Paste(LAUNCHERS["lost"][0]))
    assert finding.title == "The launcher lost a host while the job ran"
    assert "could not start" not in finding.why
    assert "which had started" in finding.why


def test_a_host_with_and_without_its_domain_is_one_host() -> None:
    text = "srun: error: slurm_receive_msgs: [[cn9.our.site]:6818] failed: Socket timed out on send/recv operation\n"
    text += "srun: error: Task launch for StepId=4.0 failed on node cn9: Socket timed out on send/recv operation"
    assert [finding.subject for finding in launcher_failed(Paste(text))] == ["cn9"]


def test_an_expired_credential_is_a_matter_of_clocks() -> None:
    (finding,) = launcher_failed(Paste(LAUNCHERS["credential"][0]))
    assert "clocks" in finding.do
    assert "PMI" not in finding.do


def test_a_killed_command_in_a_pod_is_the_cause_of_the_lost_daemon() -> None:
    text = "command terminated with exit code 137\n" + LAUNCHERS["lost"][0]
    (finding,) = launcher_failed(Paste(text))
    assert finding.follows == "rank-killed"


def test_an_error_of_pmix_is_no_failure_of_a_job_that_runs() -> None:
    error = "[node1:7] PMIX ERROR: ERROR in file gds_ds12_lock_pthread.c at line 168"
    assert list(launcher_failed(Paste(error)))
    assert not list(launcher_failed(paste(error, "node1:7:7 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>")))


def test_a_daemon_that_is_lost_before_the_job_is_no_loss_of_a_running_job() -> None:
    text = LAUNCHERS["lost"][0] + "An PRTE daemon has unexpectedly failed after launch and before\ncommunicating back"
    (finding,) = launcher_failed(Paste(text))
    assert (finding.subject, "before the job began" in finding.why) == ("worker-2", True)


def test_the_innermost_error_of_mpich_is_the_reason() -> None:
    (finding,) = launcher_failed(Paste(LAUNCHERS["MPICH"][0]))
    assert "could not initialise: OFI fi_getinfo() failure. MPI found no network of libfabric" in finding.why
    assert finding.lines == (1, 4)


def test_an_engine_that_waits_for_gpus_of_ray_is_a_warning() -> None:
    text = (
        "INFO ray_utils.py:212] Waiting for creating a placement group of specs for {} seconds. specs=[{{'GPU': 1.0}}]."
    )
    (finding,) = too_few_gpus(paste(text.format(10), text.format(20)))
    assert (finding.severity, finding.subject) == ("warning", "the cluster of Ray")
    assert "waited 20 s" in finding.why
