"""Jobs of JAX: processes that do not come, end or wait, and XLA without NCCL."""

from __future__ import annotations

import pytest

import meshlab as ml
from meshlab.diagnosis._findings import TextFinding
from meshlab.diagnosis._paste import Paste
from meshlab.diagnosis.formats._xla_lines import read_late_tasks, read_silent_tasks
from meshlab.diagnosis.rules._xla_jobs import XLA_RULES

BARRIER = """\
jax.errors.JaxRuntimeError: DEADLINE_EXCEEDED: Barrier timed out. Barrier_id: PjRT_Client_Connect. Timed out task names:
/job:jax_worker/replica:0/task:3
/job:jax_worker/replica:0/task:1

"""
REGISTER = (
    "Original error: DEADLINE_EXCEEDED: Barrier timed out. Id: [Init]Wait_for_all_tasks_to_register::0. This usually "
    "happens because a task triggered the barrier too early or too slowly."
)
HEARTBEAT = (
    "E xla/coordination_service.cc:9] UNAVAILABLE: Task /job:jax_worker/replica:0/task:5 heartbeat timeout. This "
    "indicates "
    "that the remote task has failed"
)
UNHEALTHY = """\
UNAVAILABLE: The following tasks are unhealthy (stopped sending heartbeats):
/job:jax_worker/replica:0/task:2
/job:jax_worker/replica:0/task:7
The tasks have crashed.
"""
WAITING = (
    "E0101 10:00:00.1 7 rendezvous.cc:98] This thread has been waiting for `{name}` for 10 seconds and may be stuck. "
    "Expected 4 threads to join the rendezvous, but {arrived} of them arrived on time.\n"
)
UNSTUCK = "E0101 10:00:09.1 7 rendezvous.cc:110] Thread is unstuck! Warning above was a false-positive. Perhaps\n"


def findings(text: str) -> list[TextFinding]:
    return [item for rule in XLA_RULES for item in rule(Paste(text))]


@pytest.mark.parametrize(
    ("text", "code", "subject"),
    [
        (BARRIER, "rendezvous-incomplete", "processes 1 and 3"),
        (REGISTER, "rendezvous-incomplete", "some processes of the job"),
        (
            "client.cc:96] Coordination service agent in error status: DEADLINE_EXCEEDED: Deadline Exceeded",
            "rendezvous-incomplete",
            "the process that prints it, or the coordinator",
        ),
        (HEARTBEAT, "rank-died", "process 5"),
        (UNHEALTHY, "rank-died", "processes 2 and 7"),
        (
            "WatchTasksAsync failed: UNAVAILABLE: ipv4:10.1.1.1:1234: Failed to connect to remote host: Connection "
            "refused",
            "net-unreachable",
            "the coordinator at 10.1.1.1:1234",
        ),
        (
            "support.cc:58] INTERNAL: NCCL operation ncclGetUniqueId(&id) failed: Unable to load NCCL library.",
            "library-not-found",
            "the rank that prints it",
        ),
    ],
)
def test_the_process_is_named_as_far_as_the_text_names_it(text: str, code: str, subject: str) -> None:
    (finding,) = findings(text)
    assert (finding.code, finding.subject, finding.severity) == (code, subject, "error")
    assert finding.do


def test_tasks_are_read_once_from_a_list_below() -> None:
    (late,) = read_late_tasks(Paste(BARRIER + BARRIER))
    assert (late.barrier, late.tasks, late.lines) == ("PjRT_Client_Connect", (1, 3), (1, 2, 3, 5, 6, 7))
    assert list(read_silent_tasks(Paste(UNHEALTHY))) == [2, 7]


def test_threads_that_wait_are_a_warning_until_the_process_ends() -> None:
    text = WAITING.format(name="first call to collective operation 3", arrived="only 3")
    (finding,) = findings(text)
    assert (finding.code, finding.severity) == ("rank-missing", "warning")
    assert "3 of 4 threads" in finding.why
    assert "may still go on" in finding.why
    (finding,) = findings(
        f"{text}rendezvous.cc:120] Termination timeout for `first call` of 40 seconds exceeded. Exiting"
    )
    assert finding.severity == "error"


def test_threads_that_create_a_communicator_wait_for_all_processes() -> None:
    (finding,) = findings(
        WAITING.format(name="initialize clique for rank 2; clique=devices=[0,1,2,3]", arrived="not all")
    )
    assert "communicator of NCCL" in finding.why
    assert "NCCL_DEBUG=INFO" in finding.do


def test_threads_that_went_on_are_normal() -> None:
    explanation = ml.explain(WAITING.format(name="op 3", arrived="not all") + UNSTUCK)
    assert not explanation.findings
    assert [item.code for item in explanation.normal] == ["rank-missing"]


@pytest.mark.parametrize(
    "text",
    [
        "coordination_service.cc:553] /job:worker/replica:0/task:1 has connected to coordination service.",
        "grpc: ipv4:10.1.1.1:1234: Failed to connect to remote host: Connection refused",
        "xla_bridge.py:660] Unable to initialize backend 'rocm': NOT_FOUND: Could not find registered platform",
    ],
)
def test_harmless_lines_give_nothing(text: str) -> None:
    assert findings(text) == []
