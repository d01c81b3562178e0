"""Which rank did not join, from the lines of PyTorch, and when that cannot be told."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshlab as ml
from meshlab.diagnosis._paste import Paste
from meshlab.diagnosis.rules._hangs import HANG_RULES, collective_mismatch, order_mismatch, rank_missing, size_mismatch
from meshlab.diagnosis.rules._timeouts import TIMEOUT_RULES, nccl_timeout, watchdog_stuck
from tests.examples import examples


def watchdog(rank: int, seq: int, op: str = "ALLREDUCE", size: int = 64, group_rank: int | None = None) -> str:
    """The message of a watchdog of PyTorch 2.7."""
    within = rank if group_rank is None else group_rank
    return (
        f"[rank{rank}]:[E515 18:36:47.341 ProcessGroupNCCL.cpp:632] [Rank {within}] Watchdog caught collective "
        f"operation timeout: WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn={size}, NumelOut={size}, Timeout(ms)=600000) "
        "ran for 600086 milliseconds before timing out."
    )


def status(rank: int, at: int, enqueued: int, completed: int, group: str = "0", group_rank: int | None = None) -> str:
    """The status line after a timeout."""
    within = rank if group_rank is None else group_rank
    name = f"{group}(default_pg)" if group == "0" else group
    return (
        f"[rank{rank}]:[E515 18:36:47.343 ProcessGroupNCCL.cpp:2268] [PG ID {group} PG GUID {name} Rank {within}]  "
        f"failure detected by watchdog at work sequence id: {at} PG status: last enqueued work: {enqueued}, last "
        f"completed work: {completed}"
    )


def dumped(rank: int, enqueued: int, completed: int) -> str:
    """What a rank prints when another one timed out."""
    return (
        f"[rank{rank}]:[E515 18:36:49.1 ProcessGroupNCCL.cpp:1914] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] "
        "Received a dump signal due to a collective timeout from  rank 0 and we will try our best to dump the debug "
        f"info. Last enqueued NCCL work: {enqueued}, last completed NCCL work: {completed}."
    )


def paste(*lines: str) -> Paste:
    return Paste("\n".join(lines))


def codes(text: Paste) -> list[str]:
    return [finding.code for rule in (*HANG_RULES, *TIMEOUT_RULES) for finding in rule(text)]


def test_one_rank_is_never_blamed_by_its_own_lines() -> None:
    text = paste(watchdog(3, 12), status(3, 12, 20, 11))
    (finding,) = nccl_timeout(text)
    assert codes(text) == ["nccl-timeout"]
    assert finding.subject == "rank 3 of default_pg, all_reduce 12"
    assert "do not show which rank did not join" in finding.why
    assert "TORCH_FR_BUFFER_SIZE" in finding.do


@pytest.mark.parametrize(
    ("line", "variable"),
    [
        (watchdog(0, 4), "TORCH_NCCL_TRACE_BUFFER_SIZE"),
        (watchdog(0, 4).removeprefix("[rank0]:"), "NCCL_DESYNC_DEBUG=1 TORCH_DISTRIBUTED_DEBUG=DETAIL"),
    ],
)
def test_the_variables_to_set_fit_the_version(line: str, variable: str) -> None:
    assert variable in next(iter(nccl_timeout(paste(line)))).do


@pytest.mark.parametrize(
    ("op", "size", "hint"),
    [
        ("_ALLGATHER_BASE", 64, "synced_gpus"),
        ("ALLREDUCE", 1, "metric"),
        ("ALLREDUCE", 64, ""),
        ("BROADCAST", 4, "source"),
    ],
)
def test_the_collective_gives_a_hint_where_to_look_first(op: str, size: int, hint: str) -> None:
    (finding,) = nccl_timeout(paste(watchdog(3, 12, op, size)))
    assert hint in finding.do
    assert ("synced_gpus" in finding.do) == (hint == "synced_gpus")


def test_a_timeout_is_never_cured_by_a_longer_timeout() -> None:
    (finding,) = nccl_timeout(paste(watchdog(0, 4)))
    assert "timeout" not in finding.do.lower().replace("dump_on_timeout", "")


def test_the_rank_that_enqueued_less_than_the_others_is_missing() -> None:
    text = paste(watchdog(0, 7), status(0, 7, 9, 6), watchdog(2, 7), status(2, 7, 9, 6), dumped(1, 6, 6))
    (finding,) = rank_missing(text)
    assert finding.subject == "rank 1, all_reduce 7 of default_pg"
    assert finding.why.startswith("Ranks 0 and 2 waited in all_reduce 7")


def test_a_rank_that_enqueued_the_collective_is_not_missing() -> None:
    text = paste(watchdog(0, 7), status(0, 7, 9, 6), dumped(1, 7, 6))
    assert not list(rank_missing(text))


def test_lines_of_different_process_groups_are_not_compared() -> None:
    text = paste(
        watchdog(0, 70, group_rank=0), status(0, 70, 70, 69, "3", 0), status(4, 5, 5, 4, "4", 0), dumped(1, 6, 6)
    )
    assert not list(rank_missing(text))


def test_numbers_that_each_process_counts_for_itself_are_not_compared() -> None:
    """PG 1 of rank 0 and PG 1 of rank 5 may be two groups before PyTorch 2.4."""
    old = "[rank{}]:[E ProcessGroupNCCL.cpp:1537] [PG 1 Rank {}] Timeout at NCCL work: {}, last enqueued NCCL work: {}, last completed NCCL work: {}."  # noqa: E501
    text = paste(watchdog(4, 9, group_rank=0), old.format(4, 0, 9, 9, 8), old.format(7, 1, 3, 3, 2))
    assert not list(rank_missing(text))


def test_a_rank_that_waits_in_another_group_is_a_victim() -> None:
    text = paste(
        watchdog(0, 7),
        status(0, 7, 7, 6),
        watchdog(1, 40, group_rank=0),
        status(1, 40, 40, 39, "2", 0),
        dumped(1, 6, 6),
        dumped(2, 6, 6),
    )
    (finding,) = rank_missing(text)
    assert finding.subject == "rank 2, all_reduce 7 of default_pg"


def test_different_collectives_under_one_number_are_found() -> None:
    text = paste(watchdog(0, 7), status(0, 7, 7, 6), watchdog(1, 7, "_ALLGATHER_BASE"), status(1, 7, 7, 6))
    (finding,) = order_mismatch(text)
    assert finding.subject == "rank 0: all_reduce, rank 1: all_gather at collective 7"
    assert not list(size_mismatch(text))


@pytest.mark.parametrize(
    ("op", "n"), [("ALLREDUCE", 1), ("_REDUCE_SCATTER_BASE", 1), ("ALLTOALL_BASE", 0), ("GATHER", 0)]
)
def test_different_sizes_are_found_for_collectives_that_are_even(op: str, n: int) -> None:
    text = paste(watchdog(0, 7, op, 64), status(0, 7, 7, 6), watchdog(1, 7, op, 80), status(1, 7, 7, 6))
    assert len(list(size_mismatch(text))) == n


def test_ranks_that_agree_leave_the_cause_open() -> None:
    text = paste(*(line for rank in (0, 1, 3) for line in (watchdog(rank, 7), status(rank, 7, 7, 6))))
    (finding,) = nccl_timeout(text)
    assert finding.subject == "ranks 0, 1 and 3 of default_pg, all_reduce 7"
    assert "rank 2" in finding.why
    assert codes(text) == ["nccl-timeout"]


DESYNC = """\
         - [0] Timeout at collective: ALLREDUCE, #12
         - To our best knowledge, the lagging/dead/mismatched ranks that caused the desync are:
             [7] finished collective #10, but didn't join collective #11 (count from 1)
         - Snapshot of ranks' latest states:
           #10 finished ranks:
             [7] finished ALLREDUCE
           #12 started ranks:
             [0, 1] started ALLREDUCE
           #13 started ranks:
             [2, 3] started BROADCAST
"""


def test_the_desync_report_names_the_rank_and_its_numbers_are_not_mixed_with_seqnum() -> None:
    text = Paste(f"{watchdog(0, 241)}\n{DESYNC}{status(0, 241, 315, 183)}")
    explained = ml.explain(text.text)
    first, second = explained.findings
    assert (first.code, first.subject) == ("rank-missing", "rank 7, collective #11")
    assert (second.code, second.follows) == ("nccl-timeout", "rank-missing")
    assert not list(order_mismatch(text))  # numbers 12 and 13 differ, so different collectives are no mismatch


def test_different_collectives_under_one_number_of_the_desync_report_are_found() -> None:
    text = Paste(DESYNC.replace("#13 started", "#12 started"))
    assert "ranks 2 and 3: broadcast" in next(iter(order_mismatch(text))).subject


def detail(rank: int, op: str, shape: str, other: int, other_op: str, other_shape: str, seq: int = 5) -> str:
    """The message of TORCH_DISTRIBUTED_DEBUG=DETAIL from PyTorch 2.0 on."""
    tail = "TensorDtypes=Float, TensorDeviceTypes=TensorOptions(dtype=float (default), device=cuda))"
    return (
        f"[rank{rank}]: RuntimeError: Detected mismatch between collectives on ranks. "
        f"Rank {rank} is running collective: CollectiveFingerPrint(SequenceNumber={seq}, OpType={op}, "
        f"TensorShape=[{shape}], {tail}), but Rank {other} is running collective: "
        f"CollectiveFingerPrint(SequenceNumber={seq}, OpType={other_op}, TensorShape=[{other_shape}], "
        f"{tail}).Collectives differ in the following aspects: ..."
    )


def test_detail_shows_different_collectives() -> None:
    text = paste(detail(1, "ALLREDUCE", "25", 0, "BROADCAST", "1"))
    assert codes(text) == ["order-mismatch"]
    assert next(iter(order_mismatch(text))).subject == "rank 1: all_reduce 5, rank 0: broadcast 5"


def test_detail_shows_different_shapes() -> None:
    text = paste(detail(1, "ALLREDUCE", "195812480", 0, "ALLREDUCE", "51123456"))
    assert codes(text) == ["size-mismatch"]
    assert "rank 1 ([195812480]) against rank 0 ([51123456])" in next(iter(size_mismatch(text))).subject


def test_detail_of_one_rank_only_shows_that_the_ranks_differ() -> None:
    text = paste(
        "RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running inconsistent collective: "
        "CollectiveFingerPrint(OpType=BROADCAST, TensorShape=[34112], TensorDtypes=Float)"
    )
    assert codes(text) == ["collective-mismatch"]
    assert next(iter(collective_mismatch(text))).subject == "rank 0, broadcast"


def test_a_monitored_barrier_names_the_rank() -> None:
    text = paste("RuntimeError: [Rank 0]: Ranks 1, 3 failed to pass monitoredBarrier in 2000 ms")
    assert next(iter(rank_missing(text))).subject == "ranks 1 and 3, monitored barrier"


def test_torchfrtrace_names_the_rank() -> None:
    text = paste(
        "Not all ranks joining collective 5 at entry 4",
        "group info: 0:default_pg",
        "collective: nccl:all_reduce",
        "missing ranks: {1}",
    )
    assert next(iter(rank_missing(text))).subject == "rank 1, collective 5 of 0:default_pg"
    text = paste(
        "error msg: Culprit rank 3; Error type: COLLECTIVE_TYPE_MISMATCH, Expected collective type: 'all_gather'"
    )
    assert codes(text) == ["order-mismatch"]
    text = paste("error msg: Culprit rank 3; Error type: SIZE_OR_SYNTAX_MISMATCH, Expected input sizes")
    assert codes(text) == ["size-mismatch"]


def test_ranks_that_wait_for_the_id_of_a_communicator_wait_for_its_first_rank() -> None:
    line = (
        "[rank3]: torch.distributed.DistBackendError: [3] is setting up NCCL communicator and retrieving ncclUniqueId "
        "from [0] via c10d key-value store by key '0', but store->get('0') got error: {}"
    )
    assert "rank 0 of the group" in next(iter(rank_missing(paste(line.format("wait timeout after 600000ms"))))).subject
    assert not list(rank_missing(paste(line.format("Connection reset by peer"))))
    misspelt = line.replace("retrieving", "retreiving").format(
        "Timeout waiting for key: default_pg/0/0 after 1800000 ms"
    )
    assert "rank 0 of the group" in next(iter(rank_missing(paste(misspelt)))).subject


def test_a_stuck_watchdog_is_no_timeout_of_a_collective() -> None:
    text = paste(
        "[rank5]:[E1128 05:55:17 ProcessGroupNCCL.cpp:1375] [PG ID 0 PG GUID 0(default_pg) Rank 5] ProcessGroupNCCL's "
        "watchdog got stuck for 480 seconds without making progress in monitoring enqueued collectives."
    )
    assert codes(text) == ["watchdog-stuck"]
    assert next(iter(watchdog_stuck(text))).subject == "rank 5"


def test_healthy_lines_of_pytorch_give_nothing() -> None:
    text = paste(
        "[rank0]:[W1128 05:56:36 ProcessGroupNCCL.cpp:1575] Warning: WARNING: destroy_process_group() was not called "
        "before program exit, which can leak resources. (function operator())",
        "[W1128 05:54:59 Utils.hpp:137] Warning: Environment variable TORCH_NCCL_TRACE_BUFFER_SIZE is deprecated; use "
        "TORCH_FR_BUFFER_SIZE instead (function operator())",
    )
    assert codes(text) == []


def test_ranks_of_one_group_in_different_collectives_are_one_finding() -> None:
    text = paste(
        *(line for rank in (2, 7) for line in (watchdog(rank, 45), status(rank, 45, 47, 44))),
        watchdog(4, 46, "_ALLGATHER_BASE"),
        status(4, 46, 47, 45),
    )
    (finding,) = nccl_timeout(text)
    assert finding.subject == "ranks 2 and 7 of default_pg, all_reduce 45"
    assert "rank 4 waited in all_gather 46" in finding.why
    assert codes(text) == ["nccl-timeout"]


def test_lines_that_do_not_name_the_group_join_the_only_group_with_their_collective() -> None:
    line = (
        "[rank{0}]:[E ProcessGroupNCCL.cpp:607] [Rank {0}] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum={1}, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600060 milliseconds"
    )
    group = (
        "[rank0]:[E ProcessGroupNCCL.cpp:1664] [PG 1 Rank 0] Exception (either an error or timeout) detected by "
        "watchdog at work: 1580, last enqueued NCCL work: 1582, last completed NCCL work: 1579."
    )
    assert [finding.subject for finding in nccl_timeout(paste(line.format(0, 1580), group, line.format(4, 1580)))] == [
        "ranks 0 and 4 of PG 1, all_reduce 1580"
    ]
    assert len(list(nccl_timeout(paste(line.format(0, 1580), group, line.format(4, 7))))) == 2


@pytest.mark.parametrize(
    ("line", "subject"),
    [
        (
            "[rank3]: RuntimeError: DDP expects same model across all ranks, but Rank 3 has 128 params, while rank 0 "
            "has inconsistent 0 params.",
            "rank 3 (128 params) against rank 0 (0 params)",
        ),
        (
            "RuntimeError: [1]: params[4] in this process with sizes [10, 5] appears not to match sizes of the same "
            "param in process 0.",
            "rank 1 ([10, 5]) against rank 0, parameter 4",
        ),
    ],
)
def test_models_that_differ_between_ranks(line: str, subject: str) -> None:
    (finding,) = size_mismatch(paste(line))
    assert (finding.severity, finding.subject) == ("error", subject)


def test_a_word_about_equal_models_is_no_mismatch() -> None:
    assert not list(size_mismatch(paste("DDP expects same model across all ranks; all 128 params agree.")))


# -- sentences about other ranks, and what the rest of the text contains ---------------------------------------------


def test_a_rank_that_stopped_at_the_same_number_is_named_too() -> None:
    text = paste(watchdog(6, 31, group_rank=2), status(6, 31, 33, 30, "5", 2), status(4, 31, 34, 30, "5", 0))
    (finding,) = nccl_timeout(text)
    assert finding.subject == "ranks 4 and 6 of PG 5, all_reduce 31"
    assert "rank 4 stopped at the same number" in finding.why
    assert "one rank's lines" not in finding.why


def test_a_rank_that_stopped_at_another_number_is_not_called_in_agreement() -> None:
    (finding,) = nccl_timeout(paste(watchdog(6, 31), status(6, 31, 33, 30), status(4, 29, 34, 28)))
    assert "rank 4 stopped at number 29" in finding.why
    assert "agree" not in finding.why


def test_ranks_of_the_whole_job_wait_for_no_other_rank() -> None:
    ranks = [
        f"n1:1:1 [{r}] NCCL INFO comm 0x{r + 1} rank {r} nranks 2 cudaDev {r} busId 1 - Init COMPLETE" for r in (0, 1)
    ]
    (finding,) = nccl_timeout(paste(*ranks, watchdog(0, 4), watchdog(1, 4)))
    assert "a rank that is not in the text" not in finding.why
    assert "in the network, or on a GPU" in finding.why


def test_timeouts_with_different_sizes_do_not_agree() -> None:
    (finding,) = nccl_timeout(paste(watchdog(0, 4, size=8), watchdog(1, 4, size=9)))
    assert "agree" not in finding.why


OTHER_RANKS = {
    "a timeout": lambda rank: watchdog(rank, 12),
    "a timeout elsewhere": lambda rank: watchdog(rank, 13, "BROADCAST"),
    "a status": lambda rank: status(rank, 12, 12, 11),
    "a dump signal": lambda rank: dumped(rank, 12, 11),
    "a traceback": lambda rank: f"[rank{rank}]: ValueError: the batch is empty",
}


@given(st.integers(0, 40), st.integers(0, 40), st.sampled_from(sorted(OTHER_RANKS)), st.booleans())
@settings(max_examples=examples(60), deadline=None)
def test_a_line_of_a_second_rank_ends_the_sentence_about_one_rank(
    first: int, second: int, kind: str, before: bool
) -> None:
    lines = [watchdog(first, 12), OTHER_RANKS[kind](second)]
    (alone,) = nccl_timeout(paste(lines[0]))
    assert "one rank's lines" in alone.why
    text = paste(*(lines[::-1] if before else lines))
    for finding in nccl_timeout(text):
        assert ("one rank's lines" in finding.why) == (first == second)


def fingerprint(rank: int, number: int, op: str) -> str:
    return f"Rank {rank} is running collective: CollectiveFingerPrint(SequenceNumber={number}OpType={op})"


@given(
    st.integers(0, 99),
    st.integers(0, 99),
    st.sampled_from(["BARRIER", "ALLREDUCE"]),
    st.sampled_from(["BARRIER", "SEND"]),
)
@settings(max_examples=examples(60), deadline=None)
def test_calls_are_under_one_number_only_if_they_have_one(here: int, there: int, op: str, other: str) -> None:
    findings = list(order_mismatch(paste(f"{fingerprint(7, here, op)}, but {fingerprint(0, there, other)}.")))
    assert bool(findings) == (here != there or op != other)
    for finding in findings:
        assert ("Under one number" in finding.why) == (here == there)
        assert {str(here), str(there), "7"} <= set(re.findall(r"\d+", finding.why))


def test_calls_without_a_number_are_not_said_to_share_one() -> None:
    text = paste(
        "Rank 0 is running collective: CollectiveFingerPrint(OpType=ALLREDUCE), but Rank 1 is running collective: SEND"
    )
    assert next(iter(order_mismatch(text))).why.startswith("At one call")


def test_a_trace_of_other_ranks_is_not_missing() -> None:
    inconsistent = "Rank 0 is running inconsistent collective: CollectiveFingerPrint(OpType=BROADCAST, TensorShape=[4])"
    trace = "[I ProcessGroupWrapper.cpp:562] [Rank 1] Running collective: CollectiveFingerPrint(OpType=ALLREDUCE)"
    assert "is not in the text" in next(iter(collective_mismatch(paste(inconsistent)))).why
    assert "is not in the text" not in next(iter(collective_mismatch(paste(inconsistent, trace)))).why


ANALYSES = {
    "now": [
        "Not all ranks joining collective, sequence number: 9",
        "missing ranks: {2, 3}",
        "expected ranks: {0, 1, 2, 3}",
    ],
    "2024": [
        "Not all ranks joining collective: sequence number: 9",
        "internal record id: 8",
        "missing ranks: {2, 3}",
        "world size: 4",
        "expected ranks: {0, 1, 2, 3}",
    ],
    "2.5": ["Not all ranks joining collective 9 at entry 8", "missing ranks: {2, 3}", "expected ranks: 4"],
    "first": [
        "Not all ranks joining collective for group 0:default_pg collective nccl:all_reduce Missing ranks are {2, 3}"
    ],
}


@pytest.mark.parametrize("version", ANALYSES)
def test_every_version_of_torchfrtrace_names_the_missing_ranks(version: str) -> None:
    (finding,) = rank_missing(paste(*ANALYSES[version]))
    assert finding.subject.startswith("ranks 2 and 3, ")
    assert ("ranks 0 and 1 called" in finding.why) == ("expected ranks: {0" in "".join(ANALYSES[version]))


def test_the_rank_that_torchfrtrace_takes_for_right_may_be_the_culprit() -> None:
    message = "error msg: Culprit rank {}; Error type: SIZE_OR_SYNTAX_MISMATCH"
    head = ["Collective sequence number: 7 has errors", "group info: 0:default_pg", "expected ranks: {0, 1, 2}"]
    (several,) = size_mismatch(paste(*head, message.format(1), message.format(2)))
    assert several.subject.startswith("ranks 1 and 2 against rank 0, which may itself")
    (alone,) = size_mismatch(paste(*head, message.format(2)))
    assert alone.subject == "rank 2 against ranks 0 and 1, collective 7 of 0:default_pg"


STALLS = {
    "0.15": (
        ["Stalled ops:", "HorovodAllreduce_w_1 [missing ranks: 3]", "HorovodAllreduce_w_2 [missing ranks: 3]"],
        "rank 3",
    ),
    "0.13": (["Stalled ops: HorovodBroadcast_w_0 [ready ranks: 2, 0, 3],"], "rank 1"),
    "0.19": (
        ["[1,0]<stderr>:Stalled ranks:", "[1,0]<stderr>:4: [HorovodAllreduce_w_1, HorovodAllreduce_w_2 ...]"],
        "rank 4",
    ),
    "0.19 alone": (["Stalled ranks:", "4!: [HorovodAllreduce_w_1]", "One or more rank is stalled"], "rank 4"),
}


@pytest.mark.parametrize("version", STALLS)
def test_horovod_names_the_rank_that_stalls(version: str) -> None:
    lines, rank = STALLS[version]
    (finding,) = rank_missing(paste(*lines))
    assert (finding.severity, finding.subject.partition(",")[0]) == ("warning", rank)
    assert "Horovod log" in {span.kind for span in ml.explain("\n".join([*lines, ""])).recognised}


def test_ranks_that_stall_for_different_tensors_are_in_different_orders() -> None:
    (finding,) = rank_missing(paste("HorovodAllreduce_a [missing ranks: 1]", "HorovodAllreduce_b [missing ranks: 0]"))
    assert finding.subject.startswith("ranks 0 and 1")
    assert "different orders" in finding.why
    lines = ["[1,0]<stderr>:Missing ranks:", "[1,0]<stderr>:0: [b.1, b.2]", "[1,0]<stderr>:3: [b.2]"]
    (finding,) = rank_missing(paste(*lines))
    assert "b.1 by rank 0; b.2 by ranks 0 and 3" in finding.why


def test_a_rank_that_submitted_another_tensor_is_missing_for_the_first() -> None:
    (finding,) = rank_missing(
        paste("Stalled ops: loss_0 [ready ranks: 2], w_1 [ready ranks: 1, 0], w_2 [ready ranks: 0, 1]")
    )
    assert "loss_0 by ranks 0 and 1; w_1 and 1 more by rank 2" in finding.why


def test_a_later_report_of_horovod_replaces_the_earlier_one() -> None:
    (finding,) = rank_missing(
        paste("HorovodAllreduce_a [missing ranks: 1, 2]", "HorovodAllreduce_a [missing ranks: 2]")
    )
    assert finding.subject == "rank 2, HorovodAllreduce_a"
    assert "different" not in finding.why


def test_a_rank_that_waits_in_the_same_collective_by_its_counters_is_named_too() -> None:
    lines = [watchdog(7, 31), status(7, 31, 31, 30)]
    (finding,) = nccl_timeout(paste(*lines, dumped(2, 31, 30)))
    assert finding.subject == "ranks 2 and 7 of default_pg, all_reduce 31"
    (finding,) = nccl_timeout(paste(*lines, dumped(2, 33, 33)))
    assert "rank 2 completed number 33" in finding.why
    assert "agree" not in finding.why


@pytest.mark.parametrize("cut", range(4, 22))
def test_a_line_that_a_terminal_wraps_is_one_message(cut: int) -> None:
    lines = [watchdog(7, 31), watchdog(2, 31)]
    at = lines[0].index("OpType") + cut
    (finding,) = nccl_timeout(paste(*(part for line in lines for part in (line[:at], line[at:].lstrip()))))
    assert finding.subject == "ranks 2 and 7, all_reduce 31"


def test_signals_of_a_timeout_alone_name_the_rank_that_timed_out() -> None:
    local = dumped(3, 22, 21).replace("from  rank 0", "from this local rank")
    (finding,) = nccl_timeout(paste(local, dumped(2, 22, 22).replace("rank 0", "rank 9")))
    assert finding.subject == "ranks 3 and 9"
    assert "rank 2 had enqueued 22 and completed 22 of default_pg" in finding.why


def test_random_numbers_of_gloo_are_no_count_of_calls() -> None:
    here, there = fingerprint(1, 1977865401, "BROADCAST"), fingerprint(0, 54090078, "BROADCAST")
    (finding,) = order_mismatch(paste(f"{here}, but {there}."))
    assert finding.severity == "warning"
    assert "made call" not in finding.why


def test_a_timeout_of_which_only_the_numbers_are_shown_names_no_collective() -> None:
    line = (
        "[rank5]:[E227 16:30:43 ProcessGroupNCCL.cpp:1834] [PG ID 2 PG GUID 3 Rank 1] {}, last enqueued NCCL work: {}, "
    )
    line += "last completed NCCL work: 31."
    detected = line.format("Exception (either an error or timeout) detected by watchdog at work: 32", 33)
    (finding,) = nccl_timeout(paste(detected, line.format("Timeout at NCCL work: 32", 33)))
    assert finding.subject == "rank 5 of PG 3, collective 32"
    assert "need not be the cause" in finding.why
    assert not list(nccl_timeout(paste(detected)))


def test_an_operation_of_gloo_that_waits_too_long_names_the_rank_that_noticed() -> None:
    text = "[rank3]: RuntimeError: [gloo/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation "
    (finding,) = nccl_timeout(paste(f"{text}to complete"))
    assert (finding.subject, finding.title) == ("rank 3, Gloo", "An operation of Gloo timed out")
    assert "waited 30 min" in finding.why
    assert "does not name the other one" in finding.why
