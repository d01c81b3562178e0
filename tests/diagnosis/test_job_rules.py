"""Rules for a job as a whole: what they find, and what they must not."""

from __future__ import annotations

import pytest

from meshlab.diagnosis._findings import TextFinding
from meshlab.diagnosis._paste import Paste
from meshlab.diagnosis.rules._jobs import JOB_RULES, peer_ended


def by_code(text: str) -> dict[str, TextFinding]:
    """The findings of a text by code."""
    return {item.code: item for rule in JOB_RULES for item in rule(Paste(text))}


def warn(text: str, source: str = "transport/net_ib.cc:1038", where: str = "nodeA:30:40 [2]") -> str:
    return f"{where} {source} NCCL WARN {text}\n"


def info(text: str, where: str = "nodeA:30:40 [2]") -> str:
    return f"{where} NCCL INFO {text}\n"


@pytest.mark.parametrize(
    "line",
    [
        "NET/IB : collective mismatch error local size 496640 remote 65536 addr 7f rkey 5 seq 1/2",
        "NET/IB : req 0/1 tag 0 peer 10.0.0.6<58683> collective mismatch error, local size 496640 remote size 65536",
        "NET/Socket : message truncated : receiving 524288 bytes instead of 131072",
        "NET/Socket : peer 10.0.0.6<5> message truncated : receiving 524288 bytes instead of 131072. If you believe",
        "Mismatched collective detected, please check your collective calls at and around rank 3.",
    ],
)
def test_transfers_of_different_sizes(line: str) -> None:
    findings = by_code(warn(line))
    assert set(findings) == {"size-mismatch"}
    assert ("10.0.0.6" in findings["size-mismatch"].subject) == ("10.0.0.6" in line)


def test_different_sizes_during_the_setup_are_another_thing() -> None:
    assert set(by_code(warn("Message truncated : received 1024 bytes instead of 256", "bootstrap.cc:1"))) == {
        "bootstrap-truncated"
    }


def test_an_error_of_an_earlier_kernel() -> None:
    line = warn("Cuda failure 700 'an illegal memory access was encountered'", "enqueue.cc:9")
    assert by_code(line)["cuda-error"].subject == "nodeA GPU 2"
    assert not by_code(warn("Cuda failure 2 'out of memory'", "allocator.cc:9"))


CLOSED = warn("socketProgress: Connection closed by remote peer nodeB<57557>", "misc/socket.cc:49")
ECHO = warn("Socket recv failed while polling for opId=0x7f", "proxy.cc:1143")


def test_a_peer_that_ended_is_found_if_nothing_else_is() -> None:
    finding = by_code(CLOSED + ECHO)["rank-died"]
    assert finding.subject == "a process on nodeB, noticed by nodeA GPU 2"
    own = CLOSED.replace("peer nodeB<", "peer nodeA.site.example<")
    assert by_code(CLOSED + own)["rank-died"].subject == "a process on nodeB, noticed by nodeA GPU 2"


@pytest.mark.parametrize(
    "cause",
    [
        warn("socketStartConnect: Connect to 10.0.0.2<4> failed : Software caused connection abort"),
        warn("NET/IB : Got completion with error 12, opcode 1, len 0, vendor err 129"),
        "[rank0]:[E ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(\n",
        "torch.OutOfMemoryError: CUDA out of memory.\n",
    ],
)
def test_a_peer_did_not_end_by_itself_if_the_text_has_a_cause(cause: str) -> None:
    assert "rank-died" not in by_code(cause + CLOSED + ECHO)


def test_a_connection_closed_at_the_end_of_a_job_is_no_fault() -> None:
    assert not by_code(info("[Service thread] Connection closed by localRank 7"))


def test_variables_that_differ_between_hosts() -> None:
    text = info("NCCL_ALGO set by environment to Ring") + info("NCCL_ALGO set by environment to Tree", "nodeB:1:2 [0]")
    finding = by_code(text)["variables-differ"]
    assert finding.subject == "NCCL_ALGO: 'Ring' on nodeA, 'Tree' on nodeB"


@pytest.mark.parametrize("name", ["NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_DEBUG_FILE"])
def test_variables_that_may_differ_between_hosts(name: str) -> None:
    text = info(f"{name} set by environment to a") + info(f"{name} set by environment to b", "nodeB:1:2 [0]")
    assert not by_code(text)


def start(rank: int, state: str = "Init START") -> str:
    line = f"ncclCommInitRank comm 0x{rank}1 rank {rank} nranks 4 cudaDev 0 nvmlDev 0 busId 60 commId 0xabc - {state}"
    return info(line, f"node{rank}:1:2 [0]")


def test_ranks_that_did_not_finish_the_setup() -> None:
    text = "".join(start(rank) for rank in range(4)) + start(0, "Init COMPLETE") + start(1, "Init COMPLETE")
    assert by_code(text)["init-incomplete"].subject == "ranks 2 and 3 of communicator 0xabc"
    assert not by_code(text + start(2, "Init COMPLETE") + start(3, "Init COMPLETE"))


def test_ranks_that_the_text_does_not_show() -> None:
    assert by_code(start(0) + start(1))["ranks-not-shown"].subject == "ranks 2 and 3 of communicator 0xabc"
    assert "ranks-not-shown" not in by_code(start(0, "Init COMPLETE") + start(1, "Init COMPLETE"))


def test_hints_of_rccl() -> None:
    text = (
        warn(
            'Missing "iommu=pt" from kernel command line which can lead to system instablity or hang!', "/r/init.cc:136"
        )
        + "RCCL version 2.20.5+hip6.2 Unknown\n"
        + warn("NUMA auto balancing enabled which can lead to variability in the RCCL performance!", "/r/init.cc:130")
        + warn(
            'Missing "HSA_FORCE_FINE_GRAIN_PCIE=1" from environment which can lead to low performance', "/r/init.cc:1"
        )
    )
    findings = by_code(text)
    assert findings["iommu-not-passthrough"].subject == "nodeA (RCCL 2.20.5+hip6.2)"
    assert set(findings) == {"iommu-not-passthrough", "numa-balancing", "fine-grain-pcie"}
    assert all(item.severity in ("warning", "info") for item in findings.values())


def test_a_peer_that_ended_is_found_beside_a_warning_that_does_not_matter() -> None:
    harmless = warn("Failed to open libibverbs.so[.1]", "misc/ibvwrap.cc:63")
    allocator = warn("[Rem Allocator] Allocation failed (segment 0, fd 130)", "bootstrap.cc:279")
    assert "rank-died" in by_code(harmless + CLOSED + allocator)
    assert "rank-died" not in by_code(warn("The moon is in the wrong phase") + CLOSED)


def test_the_rank_near_a_mismatch_is_named() -> None:
    line = warn("Mismatched collective detected, please check your collective calls at and around rank 39.")
    assert by_code(line)["size-mismatch"].subject == "nodeA GPU 2, around rank 39"


def test_hosts_that_report_each_other_leave_the_first_open() -> None:
    closed = "{0}:1:2 [0] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer {1}<4>"
    lines = [closed.format("nodeA", "nodeB"), closed.format("nodeB", "nodeA")]
    assert "ended or aborted first" in next(iter(peer_ended(Paste(lines[0])))).why
    (finding,) = peer_ended(Paste("\n".join(lines)))
    assert finding.subject.startswith("a process on nodeB or nodeA")
    assert "do not show which" in finding.why
