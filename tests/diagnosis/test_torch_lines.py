"""Messages of PyTorch in the spellings of its versions."""

from __future__ import annotations

import pytest

from meshlab.diagnosis._paste import Paste
from meshlab.diagnosis.formats._torch_lines import TORCH_LOG, TorchLog, read_torch_log

WATCHDOGS = {
    "2021": (
        "[E ProcessGroupNCCL.cpp:566] [Rank 2] Watchdog caught collective operation timeout: "
        "WorkNCCL(OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1804027 milliseconds before timing out.",
        (2, False, "ALLREDUCE", None, None, 1804027),
    ),
    "1.13": (
        "[E ProcessGroupNCCL.cpp:821] [Rank 3] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=51, OpType=BROADCAST, Timeout(ms)=1800000) ran for 1803000 milliseconds before timing out.",
        (3, False, "BROADCAST", 51, None, 1803000),
    ),
    "2.2": (
        "[rank5]:[E ProcessGroupNCCL.cpp:523] [Rank 1] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=8, OpType=_ALLGATHER_BASE, NumelIn=4, NumelOut=8, Timeout(ms)=600000) ran for 600500 "
        "milliseconds before timing out.",
        (5, True, "_ALLGATHER_BASE", 8, 4, 600500),
    ),
    "2.11": (
        "[rank0]:[E1128 05:55:11.666611136 ProcessGroupNCCL.cpp:689] [Rank 0] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=16, NumelOut=16, Timeout(ms)=12000) ran for 12059 "
        "milliseconds before timing out.",
        (0, True, "ALLREDUCE", 7, 16, 12059),
    ),
    "in Ray": (
        "(RayWorkerWrapper pid=4009, ip=10.0.0.8) [rank9]:[E ProcessGroupNCCL.cpp:563] [Rank 9] Watchdog caught "
        "collective operation timeout: WorkNCCL(SeqNum=3, OpType=GATHER, NumelIn=2, NumelOut=0, Timeout(ms)=600000) "
        "ran for 600027 milliseconds before timing out.",
        (9, True, "GATHER", 3, 2, 600027),
    ),
}


@pytest.mark.parametrize("version", WATCHDOGS)
def test_the_watchdog_of_every_version_is_read(version: str) -> None:
    text, expected = WATCHDOGS[version]
    (timeout,) = read_torch_log(Paste(text)).timeouts
    assert (timeout.rank, timeout.is_global, timeout.op, timeout.seq, timeout.elements_in, timeout.ran_ms) == expected


STATUSES = {
    "2.2": (
        "[rank3]:[E ProcessGroupNCCL.cpp:1537] [PG 1 Rank 1] Timeout at NCCL work: 58, last enqueued NCCL work: 60, "
        "last completed NCCL work: 57.",
        (3, "1", "", 1, False, 60, 57, 58),
    ),
    "2.4": (
        "[rank3]:[E909 09:55:30.405795450 ProcessGroupNCCL.cpp:1664] [PG 0 (default_pg) Rank 3] Exception (either an "
        "error or timeout) detected by watchdog at work: 58, last enqueued NCCL work: 60, last completed NCCL work: "
        "57.",
        (3, "0", "default_pg", 3, True, 60, 57, 58),
    ),
    "2.5": (
        "[rank3]:[E909 09:55:30.405795450 ProcessGroupNCCL.cpp:1785] [PG ID 2 PG GUID 3 Rank 1] Exception (either an "
        "error or timeout) detected by watchdog at work: 58, last enqueued NCCL work: 60, last completed NCCL work: "
        "57.",
        (3, "3", "", 1, True, 60, 57, 58),
    ),
    "2.7": (
        "[rank3]:[E515 18:36:47.343391940 ProcessGroupNCCL.cpp:2268] [PG ID 1 PG GUID 4(tp) Rank 1]  failure detected "
        "by watchdog at work sequence id: 58 PG status: last enqueued work: 60, last completed work: 57",
        (3, "4", "tp", 1, True, 60, 57, 58),
    ),
    "a dump signal": (
        "[rank3]:[E1128 05:55:17.997 ProcessGroupNCCL.cpp:1914] [PG ID 0 PG GUID 0(default_pg) Rank 3] Received a dump "
        "signal due to a collective timeout from  rank 0 and we will try our best to dump the debug info. "
        "Last enqueued NCCL work: 60, last completed NCCL work: 60.This is most likely caused by incorrect usages of "
        "collectives",
        (3, "0", "default_pg", 3, True, 60, 60, None),
    ),
}


@pytest.mark.parametrize("version", STATUSES)
def test_the_status_of_a_process_group_is_read_in_every_spelling(version: str) -> None:
    text, expected = STATUSES[version]
    (status,) = read_torch_log(Paste(text)).statuses
    group = status.group
    of_group = (group.name, group.desc, group.rank, group.is_shared)
    assert (status.rank, *of_group, status.enqueued, status.completed, status.at) == expected


def test_the_group_of_a_timeout_is_taken_from_the_status_line_of_the_same_rank() -> None:
    text = "\n".join([WATCHDOGS["2.11"][0], STATUSES["2.7"][0].replace("rank3", "rank0").replace(": 58", ": 7")])
    (timeout,) = read_torch_log(Paste(text)).timeouts
    assert str(timeout.group) == "tp"


def test_a_repeated_message_is_one_timeout() -> None:
    line = WATCHDOGS["2.11"][0]
    again = (
        "[rank0]:[E1128 05:56:11.66 ProcessGroupNCCL.cpp:1895] [PG ID 0 PG GUID 0(default_pg) Rank 0] Process group "
        "watchdog thread terminated with exception: " + line[line.index("[Rank 0]") :]
    )
    (timeout,) = read_torch_log(Paste(f"{line}\n{again}\n  what():  {again}")).timeouts
    assert str(timeout.group) == "default_pg"
    assert timeout.line.number == 1


def test_several_messages_on_one_line_are_all_read() -> None:
    """Forums join the lines of a log."""
    ranks = [
        WATCHDOGS["2.11"][0].replace("rank0", f"rank{rank}").replace("[Rank 0]", f"[Rank {rank}]") for rank in (0, 3)
    ]
    assert [timeout.rank for timeout in read_torch_log(Paste(" ".join(ranks))).timeouts] == [0, 3]


DESYNC = """\
[rank0]:[E515 18:36:47.343377708 ProcessGroupNCCL.cpp:1937] Rank 0
\t - [0] Timeout at collective: ALLREDUCE, #12
\t - To our best knowledge, the lagging/dead/mismatched ranks that caused the desync are:
\t   - [2] joined but didn't finish collective #10 (count from 1)
\t     [1, 3] finished collective #10, but didn't join collective #11 (count from 1)
\t - Snapshot of ranks' latest states:
\t   #10 started ranks:
\t     [2] started ALLREDUCE
\t   #10 finished ranks:
\t     [1, 3] finished ALLREDUCE
\t   #12 started ranks:
\t     [0] started ALLREDUCE
"""


def test_a_desync_report_is_read_with_its_snapshot() -> None:
    (report,) = read_torch_log(Paste(DESYNC)).desync
    assert (report.absent, report.last, report.unfinished, report.at) == ((1, 3), 10, (2,), 10)
    assert report.states == (
        (10, "started", "ALLREDUCE", (2,)),
        (10, "finished", "ALLREDUCE", (1, 3)),
        (12, "started", "ALLREDUCE", (0,)),
    )


def test_a_report_that_every_rank_prints_is_read_once() -> None:
    assert len(read_torch_log(Paste(DESYNC + DESYNC.replace("[0] Timeout", "[2] Timeout"))).desync) == 1


def test_ranks_that_never_joined_are_read() -> None:
    text = (
        "\t - [0] Timeout at collective: BROADCAST, #1\n"
        "\t - To our best knowledge, ranks [4, 5] are the lagging ranks that caused this timeout. "
        "They never joined any collectives"
    )
    (report,) = read_torch_log(Paste(text)).desync
    assert (report.absent, report.last) == ((4, 5), None)


def test_a_wrapped_fingerprint_is_read() -> None:
    text = """\
RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running collective:
CollectiveFingerPrint(SequenceNumber=5, OpType=ALLREDUCE, TensorShape=[20,
 10], TensorDtypes=Float, TensorDeviceTypes=TensorOptions(dtype=float (default))), but Rank 1 is running collective: \
CollectiveFingerPrint(SequenceNumber=5OpType=REDUCE)."""
    prints = read_torch_log(Paste(text)).finger_prints
    assert [(fingerprint.rank, fingerprint.op, fingerprint.seq, fingerprint.shape) for fingerprint in prints][:1] == [
        (0, "ALLREDUCE", 5, "20, 10")
    ]


def test_the_output_of_torchfrtrace_is_read() -> None:
    text = """\
Not all ranks joining collective, sequence number: 4
internal record id: 3
group info: 0:default_pg
collective: nccl:all_reduce
missing ranks: {1, 5}
world size: 8
"""
    (analysis,) = read_torch_log(Paste(text)).analysed
    assert (analysis.error, analysis.ranks, analysis.seq, analysis.group, analysis.op) == (
        "MISSING",
        (1, 5),
        4,
        "0:default_pg",
        "all_reduce",
    )


def test_a_text_without_these_messages_gives_nothing() -> None:
    paste = Paste("step 1 loss 0.3\n[rank0]: hello\n")
    assert read_torch_log(paste) == TorchLog((), (), (), (), (), ())
    assert not TORCH_LOG.find(paste)


def test_the_table_of_calls_has_one_row_per_rank_and_collective() -> None:
    text = "\n".join([WATCHDOGS["2.11"][0], STATUSES["a dump signal"][0]])
    paste = Paste(text)
    frame = TORCH_LOG.see(paste).frames["calls"]()
    assert frame[["rank", "sequence", "state"]].to_numpy().tolist() == [[0, 7, "timed out"], [3, 60, "completed"]]
