"""Rules for InfiniBand and RoCE: what they find, and what they must not."""

from __future__ import annotations

import pytest

from meshlab.diagnosis._findings import TextFinding
from meshlab.diagnosis._paste import Paste
from meshlab.diagnosis.rules._rdma import RDMA_RULES


def by_code(text: str) -> dict[str, TextFinding]:
    """The findings of a text by code."""
    return {item.code: item for rule in RDMA_RULES for item in rule(Paste(text))}


def warn(text: str, host: str = "nodeA") -> str:
    return f"{host}:30:40 [2] transport/net_ib.cc:839 NCCL WARN {text}\n"


COMPLETIONS = [
    "NET/IB : Got completion with error {0}, opcode 1, len 0, vendor err 129",
    "NET/IB : Got completion from peer 10.0.0.12<60054> with error {0}, opcode 32704, len 0, vendor err 81",
    "NET/IB : Got completion from peer 10.0.0.12<60054> with status={0} opcode=32 len=0 vendor err 129 (Recv) "
    "localGid fe80::1 remoteGids fe80::2 hca mlx5_3",
    "NET/IB: Got completion from peer 10.0.0.12<60054> with status=IBV_WC_X_ERR({0}) opcode=IBV_WC_SEND(0) "
    "vendor_err=129 (Send) localGid ::ffff:10.0.1.1 remoteGids ::ffff:10.0.1.2 hca mlx5_3",
]


@pytest.mark.parametrize("line", COMPLETIONS)
@pytest.mark.parametrize(
    ("status", "code"),
    [
        (4, "gdr-protection-error"),
        (9, "ib-remote-invalid-request"),
        (10, "ib-remote-invalid-request"),
        (12, "ib-retry-exceeded"),
        (13, "ib-receiver-not-ready"),
        (5, "ib-flushed"),
    ],
)
def test_the_status_of_a_completion_in_all_versions(line: str, status: int, code: str) -> None:
    findings = by_code(warn(line.format(status)))
    assert set(findings) == {code}
    assert "nodeA GPU 2" in findings[code].subject


def test_a_completion_names_the_nic_and_the_peer() -> None:
    assert by_code(warn(COMPLETIONS[3].format(12)))["ib-retry-exceeded"].subject == (
        "nodeA GPU 2 over mlx5_3, peer 10.0.0.12"
    )


def test_a_flushed_request_is_normal_beside_the_cause() -> None:
    text = warn(COMPLETIONS[1].format(12)) + warn(COMPLETIONS[1].format(5))
    assert by_code(text)["ib-flushed"].severity == "normal"


def test_what_a_timeout_means_depends_on_what_worked_before() -> None:
    line = warn(COMPLETIONS[1].format(12))
    assert "worked before, so" in by_code("a:1:2 [0] NCCL INFO Connected all trees\n" + line)["ib-retry-exceeded"].why
    assert "first communication" in by_code(line)["ib-retry-exceeded"].why


def test_the_side_with_an_access_violation_is_named() -> None:
    text = warn("NET/IB : mlx5_1:1 Got async event : local access violation work queue error", "nodeB") + warn(
        COMPLETIONS[2].format(9)
    )
    finding = by_code(text)["ib-remote-invalid-request"]
    assert "nodeB GPU 2 mlx5_1 port 1" in finding.subject
    assert "nodeB" in finding.why


def test_an_access_violation_with_status_4_is_one_fault() -> None:
    text = warn("NET/IB : mlx5_1:1 async fatal event on QP (0x7f): local access violation work queue error") + warn(
        COMPLETIONS[2].format(4)
    )
    assert set(by_code(text)) == {"gdr-protection-error"}


MODIFY = "Call to ibv_modify_qp failed with "


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (f"{MODIFY}error No such device", "ib-device-not-in-container"),
        (f"{MODIFY}error Network is unreachable", "roce-no-route"),
        (f"{MODIFY}101 Network is unreachable, on dev mlx5_5:1, curr state INIT, next state RTR", "roce-no-route"),
        (f"{MODIFY}error Connection timed out", "rails-not-connected"),
        (f"{MODIFY}error Invalid argument", "gid-index-invalid"),
        (f"{MODIFY}error Invalid argument errno 22", "gid-index-invalid"),
    ],
)
def test_queue_pairs_that_cannot_be_connected(line: str, code: str) -> None:
    assert set(by_code(warn(line))) == {code}


def test_rails_are_named_with_their_addresses() -> None:
    line = (
        f"{MODIFY}110 Connection timed out, on dev mlx5_5:1, curr state INIT, next state RTR, local GID index 3, "
        "local GID ::ffff:10.0.5.1, remote GID ::ffff:10.0.2.7"
    )
    finding = by_code(warn(line))["rails-not-connected"]
    assert finding.subject == "nodeA GPU 2, mlx5_5 (10.0.5.1) to 10.0.2.7"
    assert "different subnets" in finding.why
    same = by_code(warn(line.replace("10.0.2.7", "10.0.5.7")))["rails-not-connected"]
    assert "different subnets" not in same.why


def test_a_retry_is_not_a_failure() -> None:
    line = f"nodeA:1:2 [0] NCCL INFO {MODIFY}110 Connection timed out, on dev mlx5_5:1, retrying 1/34 after 100 msec\n"
    assert not by_code(line)


@pytest.mark.parametrize(
    "line",
    [
        "NET/IB : Got async event : port error",
        "NET/IB : mlx5_3:1 Got async event : port error",
        "NET/IB : mlx5_3:1 async fatal event: port error",
        "NET/IB : mlx5_3:1 Got non-fatal async event: port error(10)",
    ],
)
def test_a_link_that_went_down(line: str) -> None:
    finding = by_code(warn(line) + warn(COMPLETIONS[0].format(12), "nodeB"))["ib-port-flap"]
    assert finding.subject.startswith("nodeA")


def test_other_events() -> None:
    text = warn("NET/IB : Got async event : local catastrophic error") + warn("NET/IB : mlx5_3:1 GID table changed")
    assert set(by_code(text)) == {"ib-async-error", "gid-table-changed"}


def test_an_event_that_says_nothing_bad() -> None:
    assert not by_code(warn("NET/IB : mlx5_3:1 Got non-fatal async event: client reregistration(17)"))


@pytest.mark.parametrize(
    "call", ["ibv_reg_mr_iova2 failed with error", "ibv_reg_mr failed with error", "ibv_create_cq failed with error"]
)
def test_too_little_locked_memory(call: str) -> None:
    finding = by_code(warn(f"Call to {call} Cannot allocate memory") + "$ mpirun -np 1 bash -c 'ulimit -l'\n64\n")
    assert "64 kB" in finding["memlock-too-small"].subject


def test_an_unlimited_limit_is_not_too_small() -> None:
    text = warn("Call to ibv_reg_mr failed with error Cannot allocate memory") + "$ ulimit -l\nunlimited\n"
    assert by_code(text)["memlock-too-small"].severity == "info"


def test_memory_of_a_gpu_that_cannot_be_registered() -> None:
    assert set(by_code(warn("Call to ibv_reg_mr failed with error Bad address"))) == {"gdr-registration-failed"}


def test_mixed_link_layers() -> None:
    line = "NET/IB : Attempted to connect incompatible devices: [0]mlx5_0:1/IB and [1]mlx5_1:1/RoCE. Try selecting NICs"
    assert set(by_code(warn(line))) == {"link-layers-mixed"}


def test_the_address_of_a_peer_may_be_missing() -> None:
    assert not by_code(warn("NET/IB : unable to allocate requests"))
