"""Rules for hangs: which rank did not join, and where ranks called different collectives."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from operator import attrgetter

from meshlab.base._collectives import TORCH_FUNCTIONS
from meshlab.base._numerals import whole
from meshlab.diagnosis._findings import Rule, TextFinding, rule
from meshlab.diagnosis._late_ranks import (
    GroupCalls,
    call_name,
    calls_by_group,
    late_in_dumps,
    late_in_logs,
    late_in_pairs,
    lines_by_group,
    plain_name,
    program_stack,
    rank_list,
    stuck_ranks,
)
from meshlab.diagnosis._other_lines import other_lines
from meshlab.diagnosis._paste import Paste, PasteLine
from meshlab.diagnosis._seen import grouped, unique
from meshlab.diagnosis.formats._flight_recorder import FlightDump, n_elements, read_flight_dumps
from meshlab.diagnosis.formats._horovod import StalledTensor, read_stalled_tensors
from meshlab.diagnosis.formats._torch_lines import (
    AnalysedCollective,
    FingerPrint,
    TorchLog,
    read_torch_log,
)
from meshlab.mesh._axes import MAX_RANKS

WATCHDOG = "pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp"
_RECORDER = "pytorch/torch/csrc/distributed/c10d/FlightRecorder.hpp, version 2.0 to 2.10"
_DESYNC = "pytorch/torch/csrc/distributed/c10d/TraceUtils.h"

# Collectives whose ranks must pass equally many elements. A gather, a scatter and an all-to-all may be uneven.
EVEN = re.compile(
    rf"^_?(?:{'|'.join(name.replace('_', '_?') for name, torch in TORCH_FUNCTIONS.items() if torch.is_even)})", re.I
)


def _order_note(dumps: Sequence[FlightDump]) -> str:
    """Return a sentence about numbered ranks, if the dumps do not contain them."""
    if all(dump.is_rank_known for dump in dumps):
        return ""
    return " The dumps do not contain their rank, so they are numbered in the order of the text."


@rule(
    "rank-missing",
    "A rank did not join a collective",
    source=(WATCHDOG, _DESYNC, _RECORDER, "pytorch/torch/distributed/flight_recorder/components/builder.py"),
    causes=("nccl-timeout", "rank-died", "watchdog-stuck"),
)
def rank_missing(paste: Paste) -> Iterator[TextFinding]:
    """Look for a collective that some ranks wait in and others have not called, within one process group.

    Evidence is the desync report, flight recorder dumps of several ranks, the analysis of torchfrtrace, the status
    lines of several ranks, or a monitored barrier. A rank that waits in another collective itself is not the cause.
    """
    log = paste.once(read_torch_log)
    named: set[int] = set()
    for report in log.desync:
        if not report.absent:
            continue
        named |= set(report.absent)
        if report.last is None:
            what = f"{rank_list(report.absent)} never joined any collective of this process group."
            where = ""
        else:
            ahead = [(number, ranks) for number, _, _, ranks in report.states if number > report.last]
            others = "; ".join(f"{rank_list(ranks)} reached #{number}" for number, ranks in ahead[:4])
            what = (
                f"{rank_list(report.absent).capitalize()} finished collective #{report.last} and did not join "
                f"#{report.last + 1}" + (f", while {others}." if others else ".")
            )
            where = f", collective #{report.last + 1}"
        yield rank_missing.finding(
            "error",
            f"{rank_list(report.absent)}{where}",
            what + (" (This report numbers collectives differently from SeqNum.)" if log.timeouts else ""),
            f"Get the stack of {rank_list(report.absent)} during the hang (py-spy dump --pid PID). "
            "Such a rank computes, waits for I/O, handles an exception, or took another branch than the other ranks.",
            report.lines,
        )
    if not named:
        for finding, ranks in _missing_in_dumps(paste):
            named |= ranks
            yield finding
    for analysis in log.analysed:
        if analysis.error == "MISSING" and analysis.ranks and not set(analysis.ranks) <= named:
            named |= set(analysis.ranks)
            yield rank_missing.finding(
                "error",
                f"{rank_list(analysis.ranks)}, "
                + ("a collective" if analysis.seq is None else f"collective {analysis.seq}")
                + (f" of {analysis.group}" if analysis.group else ""),
                f"torchfrtrace did not find {_analysed_call(analysis)} in the dumps of {rank_list(analysis.ranks)}"
                + _called_by(analysis),
                f"Compare what {rank_list(analysis.ranks)} called last with the stack that torchfrtrace prints.",
                [analysis.line],
            )
    for line, ranks_late in log.barrier_missing:
        if not set(ranks_late) <= named:
            named |= set(ranks_late)
            yield rank_missing.finding(
                "error",
                f"{rank_list(ranks_late)}, monitored barrier",
                f"Rank 0 waited in a monitored barrier, and {rank_list(ranks_late)} did not join.",
                f"Look at the log and the stack (py-spy dump --pid PID) of {rank_list(ranks_late)}: it ended, or it "
                "took another branch.",
                [line],
            )
    stalled = paste.once(read_stalled_tensors)
    if stalled:
        yield _stalled(stalled)
    if not named and not stalled:
        yield from _missing_in_logs(log)
    if not named and not stalled and not log.timeouts:
        yield from _missing_id(paste)


def _analysed_call(analysis: AnalysedCollective) -> str:
    name = analysis.op or "collective"
    return f"{name} {analysis.seq}" if analysis.seq is not None else f"a call of {name}"


def _called_by(analysis: AnalysedCollective) -> str:
    """Return the end of the sentence about a missing rank: who called the collective, as far as the text names them."""
    callers = set(analysis.expected) - set(analysis.ranks)
    return f", which {rank_list(callers)} called." if callers else ", and found it in another dump."


_MAX_STALLS = 16  # sets of ranks that Horovod waits for, so that a long report stays cheap


def _stalled(tensors: Sequence[StalledTensor]) -> TextFinding:
    """Return the finding about tensors that Horovod waits for."""
    last = {item.tensor: item for item in tensors}  # Horovod repeats its report, and a rank may have come meanwhile
    highest = max(rank for item in last.values() for rank in (*item.missing, *item.ready))
    every_rank = frozenset(range(highest + 1) if highest < MAX_RANKS else ())
    by_ranks: dict[tuple[tuple[int, ...], tuple[int, ...]], list[str]] = {}
    for item in last.values():
        by_ranks.setdefault((item.missing, item.ready), []).append(item.tensor)
    parts: dict[tuple[int, ...], list[str]] = {}
    for (missing, ready), names in itertools.islice(by_ranks.items(), _MAX_STALLS):
        parts.setdefault(missing or tuple(sorted(every_rank - set(ready))), []).extend(names)
    ranks = sorted({rank for part in parts for rank in part})
    first, *others = (name for names in parts.values() for name in names)
    ready = next((item.ready for item in last.values() if item.ready), ())
    subject = rank_list(ranks) if ranks else f"a rank other than {rank_list(ready)}"
    count = f"{len(last)} tensors, the first of them {first}" if others else f"the tensor {first}"
    if len(parts) > 1:
        # The ranks wait for each other.
        which = "; ".join(
            names[0]
            + (f" and {len(names) - 1} more" if len(names) > 1 else "")
            + f" by {rank_list(part) if part else 'another rank'}"
            for part, names in itertools.islice(parts.items(), 3)
        )
        why = (
            f"Horovod waits for {len(last)} tensors that different ranks did not submit: {which}. So the ranks "
            "submitted them in different orders, or not at all."
        )
    else:
        also = f": Horovod names those that did ({rank_list(ready)})" if ready else ""
        why = f"Horovod waits for {count}: {subject} did not submit {'them' if others else 'it'}{also}."
    # It may be no fault: Horovod prints this for a rank that evaluates or writes a checkpoint, too.
    return rank_missing.finding(
        "warning",
        f"{subject}, {first}",
        why,
        f"Look at the log and the stack of {subject} (py-spy dump --pid PID): it still loads data, evaluates, ended, "
        "or took another branch. If it is only late, raise HOROVOD_STALL_CHECK_TIME_SECONDS.",
        [item.line for item in tensors],
    )


def _missing_in_dumps(paste: Paste) -> Iterator[tuple[TextFinding, set[int]]]:
    dumps, groups = paste.once(read_flight_dumps), paste.once(calls_by_group)
    stuck = stuck_ranks(dumps)
    note = _order_note(dumps)
    # A rank that is late here and waits in another call is a victim itself.
    for group, seq, late, call in late_in_dumps(groups):
        if not (roots := [rank for rank in late if rank not in stuck]):
            continue
        waiting = sorted(rank for rank, first_call in group.waiting().items() if first_call.seq == seq)
        lasts = sorted({group.last(rank) or 0 for rank in roots})
        last = f"collective {lasts[0]}" if len(lasts) == 1 else f"collectives {lasts[0]} to {lasts[-1]}"
        lines = [
            call.line,
            *(max((own_call.line for own_call in group.calls[rank].values()), default=0) for rank in roots),
        ]
        where = " > ".join(reversed(program_stack(call)[:3]))
        yield (
            rank_missing.finding(
                "error",
                f"{rank_list(roots)}, {plain_name(call.op)} {seq} of {group.desc}",
                f"{rank_list(waiting).capitalize()} {'wait' if len(waiting) > 1 else 'waits'} in {plain_name(call.op)} "
                f"{seq}" + (f" (called from {where})" if where else "") + f"; the last call of {rank_list(roots)} in "
                f"this group is {last}.{note}",
                f"Get the stack of {rank_list(roots)} (py-spy dump --pid PID) and compare which calls each rank makes "
                f"after {last}.",
                [line for line in lines if line],
            ),
            set(roots),
        )
    for rank, other, call in late_in_pairs(groups):
        if rank in stuck:
            continue
        peer = "receive" if call.op == "send" else "send"
        yield (
            rank_missing.finding(
                "error",
                f"{rank_list([rank])}, {peer} {'from' if peer == 'receive' else 'to'} rank {other}",
                f"{rank_list([other]).capitalize()} waits in {call.op} {call.seq} to or from rank {rank}, and the "
                f"dump of rank {rank} has no {peer} that is under way.{note}",
                f"Compare the order of sends and receives of ranks {other} and {rank}.",
                [call.line],
            ),
            {rank},
        )


def _missing_in_logs(log: TorchLog) -> Iterator[TextFinding]:
    stuck = {timeout.rank for timeout in log.timeouts}
    for group, first, late in late_in_logs(log):
        if not (roots := sorted({status.rank for status in late} - stuck)):
            continue
        waiting = sorted(
            {timeout.rank for timeout in log.timeouts if timeout.seq == first.seq and timeout.op == first.op}
        )
        last = max(status.enqueued for status in late if status.rank in roots)
        yield rank_missing.finding(
            "error",
            f"{rank_list(roots)}, {plain_name(first.op)} {first.seq} of {group}",
            f"{rank_list(waiting).capitalize()} waited in {plain_name(first.op)} {first.seq}; the last collective that "
            f"{rank_list(roots)} had enqueued in this group is {'none' if last < 1 else last}. A rank that is stuck "
            "inside the call itself looks the same, because PyTorch counts a collective after NCCL has taken it.",
            f"Get the stack of {rank_list(roots)} during the hang (py-spy dump --pid PID). Such a rank computes, "
            "waits for I/O, or took another branch than the other ranks.",
            [first.line, *(status.line for status in late)],
        )


# PyTorch before 2.1 writes "retreiving".
_UNIQUE_ID = re.compile(
    r"\[(?P<rank>\d+)\] is setting up NCCL communicator and retr(?:ie|ei)ving ncclUniqueId from \[(?P<root>\d+)\].*?"
    r"got error: (?P<error>.*)"
)


def _missing_id(paste: Paste) -> Iterator[TextFinding]:
    """Find ranks that waited for the id of the communicator, which the first rank of the group writes."""
    matches = other_lines(paste).matches(_UNIQUE_ID, "ving ncclUniqueId")
    late = [(line, match) for line, match in matches if re.search(r"(?i)time", match["error"])]
    if late:
        root = late[0][1]["root"]
        waiting = sorted({whole(match["rank"]) for _, match in late})
        yield rank_missing.finding(
            "error",
            f"rank {root} of the group, at its first collective",
            f"{rank_list(waiting).capitalize()} waited for the id of the communicator, which rank {root} of the group "
            f"writes at its first collective. In all that time rank {root} did not reach it, or ended.",
            f"Look at the log and the stack of rank {root}: it still loads data, waits for input, or failed.",
            [line for line, _ in late],
        )


@rule(
    "order-mismatch",
    "Ranks are in different collectives",
    source=(_DESYNC, _RECORDER, "pytorch/torch/csrc/distributed/c10d/ProcessGroupWrapper.cpp"),
    causes=("nccl-timeout",),
)
def order_mismatch(paste: Paste) -> Iterator[TextFinding]:
    """Look for ranks that call different collectives under one number of one process group.

    Numbers are compared only within one source: SeqNum, the desync report's #, and the recorder's count differ.
    """
    log = paste.once(read_torch_log)
    for report in log.desync:
        at = grouped((number, (rank, op)) for number, _, op, ranks in report.states for rank in ranks)
        for number, rank_ops in at.items():
            if calls := _differing(rank_ops):
                why = f"Under one number, the desync report shows different collectives: {calls}."
                yield _order_finding(f"{calls} at collective #{number}", why, report.lines)
    for prints in _mismatched_prints(log):
        if len({plain_name(fingerprint.op) for fingerprint in prints}) > 1 or _sequence_differs(prints):
            calls = ", ".join(f"rank {fingerprint.rank}: {call_name(fingerprint)}" for fingerprint in prints)
            finding = _order_finding(calls, _order_in_prints(prints, calls), [item.line for item in prints])
            yield _random_numbers(finding) if _have_random_numbers(prints) else finding
    for timeouts, _ in lines_by_group(log).values():
        for seq, at_seq in grouped((item.seq, item) for item in timeouts if item.seq is not None).items():
            if calls := _differing((timeout.rank, timeout.op) for timeout in at_seq):
                why = f"Under one number, the watchdogs show different collectives: {calls}."
                yield _order_finding(f"{calls} at collective {seq}", why, [timeout.line for timeout in at_seq])
    for where, ranks, against, lines in _culprits(log, "COLLECTIVE_TYPE_MISMATCH"):
        why = f"torchfrtrace compared the calls at {where}: {ranks} called another collective than {against}."
        yield _order_finding(f"{ranks} at {where}", why, lines)
    yield from _order_in_dumps(paste)


def _differing(calls: Iterable[tuple[int, str]]) -> str:
    """Return ranks by what they called, or an empty string if that is the same collective."""
    by_op = grouped((plain_name(op), rank) for rank, op in calls)
    return ", ".join(f"{rank_list(ranks)}: {op}" for op, ranks in by_op.items()) if len(by_op) > 1 else ""


def _order_finding(subject: str, why: str, lines: Sequence[PasteLine | int]) -> TextFinding:
    return order_mismatch.finding(
        "error",
        subject,
        why,
        "Make all ranks call the same collectives in the same order: look for a branch that depends on the rank, the "
        "data or the number of batches, and for an exception that one rank catches.",
        lines,
    )


_RANDOM = 10_000_000  # calls that no job makes


def _have_random_numbers(prints: Sequence[FingerPrint]) -> bool:
    same = len({(plain_name(item.op), item.shape) for item in prints}) == 1
    return same and _sequence_differs(prints) and max(item.seq or 0 for item in prints) > _RANDOM


def _random_numbers(finding: TextFinding) -> TextFinding:
    """Return the finding about equal calls whose sequence numbers may never have been the same."""
    return replace(
        finding,
        severity="warning",
        why=f"TORCH_DISTRIBUTED_DEBUG=DETAIL compared equal calls with other numbers: {finding.subject}. "
        "Before PyTorch 2.1, Gloo began at a random number, on which the ranks of a large job did not always agree.",
        do="Update PyTorch, or run without TORCH_DISTRIBUTED_DEBUG=DETAIL. If the error stays, compare the calls.",
    )


def _order_in_prints(prints: Sequence[FingerPrint], calls: str) -> str:
    """Return what TORCH_DISTRIBUTED_DEBUG=DETAIL shows about calls that differ."""
    if _sequence_differs(prints):
        numbers = ", ".join(f"rank {item.rank} made call {item.seq} of its process group" for item in prints)
        same = len({plain_name(item.op) for item in prints}) == 1
        return (
            f"TORCH_DISTRIBUTED_DEBUG=DETAIL compared calls with different sequence numbers: {numbers}"
            + (f", both a {plain_name(prints[0].op)}" if same and len(prints) == 2 else f" ({calls})")
            + ". So one rank made more calls than the other before, or the processes are of different starts."
        )
    where = "Under one number" if prints[0].seq is not None else "At one call"
    return f"{where}, TORCH_DISTRIBUTED_DEBUG=DETAIL shows different collectives: {calls}."


def _culprits(log: TorchLog, *errors: str) -> Iterator[tuple[str, str, str, list[PasteLine]]]:
    """Yield a collective, the ranks that torchfrtrace calls culprits in it, those that it compared, and the lines."""
    analyses = [item for item in log.analysed if item.error in errors]
    for (seq, group, _), items in grouped(((item.seq, item.group, item.error), item) for item in analyses).items():
        ranks = sorted({rank for item in items for rank in item.ranks})
        others = set(next((item.expected for item in items if item.expected), ())) - set(ranks)
        against = rank_list(others) if others else "the rank that they were compared with"
        # It takes the first rank for right, so that one may be the culprit if it names several.
        if len(ranks) > 1 and len(others) < 2:
            against += ", which may itself be the one that differs"
        where = (f"collective {seq}" if seq is not None else "a collective") + (f" of {group}" if group else "")
        yield where, rank_list(ranks), against, [item.line for item in items]


def _sequence_differs(prints: Sequence[FingerPrint]) -> bool:
    numbers = {fingerprint.seq for fingerprint in prints}
    return None not in numbers and len(numbers) > 1


def _mismatched_prints(log: TorchLog) -> Iterator[list[FingerPrint]]:
    """Yield the calls of different ranks that DETAIL compared: of one message, or of one message per rank."""
    by_line = grouped((fingerprint.line.number, fingerprint) for fingerprint in log.finger_prints)
    paired = [prints for prints in by_line.values() if len({fingerprint.rank for fingerprint in prints}) > 1]
    if paired:
        yield from unique(paired, lambda prints: frozenset((p.rank, p.op, p.seq, p.shape) for p in prints))
        return
    by_rank = unique(log.finger_prints, attrgetter("rank"))
    if len(by_rank) > 1:
        yield list(by_rank)


def _order_in_dumps(paste: Paste) -> Iterator[TextFinding]:
    dumps, groups = paste.once(read_flight_dumps), paste.once(calls_by_group)
    note = _order_note(dumps)
    stuck = stuck_ranks(dumps)
    for group in groups:
        for seq, calls in group.by_number().items():
            if called := _differing((rank, call.op) for rank, call in calls.items()):
                yield order_mismatch.finding(
                    "error",
                    f"{called} at collective {seq} of {group.desc}",
                    f"Under number {seq} of one process group, the ranks called different collectives: {called}.{note}",
                    "Compare the stacks of these calls, and make all ranks call the same collectives in one order.",
                    [call.line for call in calls.values()],
                )
                break
    behind = list(late_in_dumps(groups))
    if behind and all(rank in stuck for _, _, late, _ in behind for rank in late):
        # Every rank that is late waits itself, so no rank is the first: a cycle. A rank without a dump could be.
        group, seq, late, call = behind[0]
        if all(item.has_members and set(item.ranks) <= set(item.dumps) for item, *_ in behind):
            yield order_mismatch.finding(
                "error",
                f"{rank_list(late)} and those that wait in {plain_name(call.op)} {seq} of {group.desc}",
                f"{plain_name(call.op)} {seq} of {group.desc} waits for {rank_list(late)}, which wait in a call of "
                f"another group, so the ranks wait for each other.{note}",
                "Use the process groups in the same order on all ranks.",
                [call.line],
            )
        return
    for group, seq, late, _ in behind:
        if (place := _other_place(group, seq, late)) is not None:
            yield place


def _other_place(group: GroupCalls, seq: int, late: Sequence[int]) -> TextFinding | None:
    """Find where the ranks went apart before a rank was missing: the same collective from another place."""
    ahead = next((rank for rank, call in group.waiting().items() if call.seq == seq), None)
    behind = next((rank for rank in late if group.calls.get(rank)), None)
    if ahead is None or behind is None:
        return None
    calls_ahead, calls_behind = group.calls[ahead], group.calls[behind]
    first = None
    for number in sorted(set(calls_ahead) & set(calls_behind), reverse=True):
        here, there = program_stack(calls_ahead[number]), program_stack(calls_behind[number])
        if not here or not there or here == there:
            break
        first = number
    if first is None:
        return None
    ahead_in, behind_in = program_stack(calls_ahead[first])[0], program_stack(calls_behind[first])[0]
    later = next(
        (
            number
            for number in sorted(calls_ahead)
            if number > first and program_stack(calls_ahead[number])[:1] == (behind_in,)
        ),
        None,
    )
    extra = later - first if later is not None else None
    count = "one call" if extra == 1 else f"{extra} calls"
    tail = (
        f" Rank {ahead} calls from {behind_in} at {later}, so it made {count} more than rank {behind} before."
        if extra is not None
        else ""
    )
    return order_mismatch.finding(
        "error",
        f"ranks {min(ahead, behind)} and {max(ahead, behind)} at collective {first} of {group.desc}",
        f"Both ranks called {plain_name(calls_ahead[first].op)} {first}, but from different places: rank {ahead} in "
        f"{ahead_in}, rank {behind} in {behind_in}.{tail}",
        f"Make all ranks call {ahead_in} equally often, or none: it contains a collective, so it must not be in a "
        "branch that depends on the rank.",
        [calls_ahead[first].line, calls_behind[first].line],
    )


@rule(
    "size-mismatch",
    "Ranks disagree on the size or the type of a collective",
    source=(WATCHDOG, _RECORDER, "pytorch/torch/csrc/distributed/c10d/ProcessGroupWrapper.cpp"),
    causes=("nccl-timeout",),
)
def size_mismatch(paste: Paste) -> Iterator[TextFinding]:
    """Look for ranks that call one collective with different sizes or types. NCCL itself does not compare them."""
    log = paste.once(read_torch_log)
    for prints in _mismatched_prints(log):
        if len({plain_name(fingerprint.op) for fingerprint in prints}) > 1 or _sequence_differs(prints):
            continue
        for what in ("shape", "dtype"):
            values = Counter(
                getattr(fingerprint, what) for fingerprint in prints if getattr(fingerprint, what) is not None
            )
            if len(values) > 1:
                sides = " against ".join(
                    f"rank {fingerprint.rank} "
                    f"({'[' if what == 'shape' else ''}{getattr(fingerprint, what)}{']' if what == 'shape' else ''})"
                    for fingerprint in prints
                    if getattr(fingerprint, what) is not None
                )
                name = "shapes" if what == "shape" else "types"
                yield _different_sizes(
                    plain_name(prints[0].op), sides, name, [fingerprint.line for fingerprint in prints]
                )
                break
    for timeouts, _ in lines_by_group(log).values():
        even = [item for item in timeouts if None not in (item.seq, item.elements_in) and EVEN.match(item.op)]
        for (seq, op), same_call in grouped(((item.seq, item.op), item) for item in even).items():
            sizes = grouped((item.elements_in, item) for item in same_call)
            if len(sizes) > 1:
                sides = " against ".join(
                    f"{rank_list(timeout.rank for timeout in same_size)} ({size:,} elements)"
                    for size, same_size in sizes.items()
                )
                lines = [timeout.line for same_size in sizes.values() for timeout in same_size]
                yield _different_sizes(f"{plain_name(op)} {seq}", sides, "sizes", lines)
    for error, name in (("SIZE_OR_SYNTAX_MISMATCH", "sizes"), ("COLLECTIVE_DTYPE_MISMATCH", "types")):
        for where, ranks, against, lines in _culprits(log, error):
            yield _different_sizes(where, f"{ranks} against {against}", name, lines)
    yield from _sizes_in_dumps(paste)
    yield from _parameters_differ(paste)


# torch/csrc/distributed/c10d/reducer.cpp: what DistributedDataParallel compares when it starts.
_PARAMETERS = re.compile(
    r"DDP expects same model across all ranks, but Rank (?P<rank>\d+) has (?P<own>\d+ params), while rank (?P<peer>\d+)"
    r" has inconsistent (?P<other>\d+) params"
    r"|\[(?P<here>\d+)\]: params\[(?P<index>\d+)\] in this process with sizes (?P<sizes>\[[\d, ]*\]) appears not to "
    r"match (?:sizes|strides) of the same param in process (?P<first>\d+)"
)


def _parameters_differ(paste: Paste) -> Iterator[TextFinding]:
    """Find models of DistributedDataParallel that differ between ranks."""
    matches = other_lines(paste).matches(_PARAMETERS, "DDP expects same model", "appears not to match")
    if matches:
        sides = dict.fromkeys(
            f"rank {match['rank']} ({match['own']}) against rank {match['peer']} ({match['other']} params)"
            if match["rank"]
            else f"rank {match['here']} ({match['sizes']}) against rank {match['first']}, parameter {match['index']}"
            for _, match in matches
        )
        yield size_mismatch.finding(
            "error",
            ", ".join(list(sides)[:4]),
            "The model that DistributedDataParallel received is not the same on all ranks. With 0 parameters on one "
            "side, that rank may also have failed before, or be in another call.",
            "Build the same model on all ranks before DDP wraps it: the same configuration, the same frozen "
            "parameters (requires_grad), and no branch that depends on the rank.",
            [line for line, _ in matches],
        )


def _different_sizes(call: str, sides: str, name: str, lines: Sequence[PasteLine | int]) -> TextFinding:
    return size_mismatch.finding(
        "error",
        f"{sides}, {call}",
        f"The {name} of one collective ({call}) differ: {sides}.",
        "Make the tensors equal on all ranks: drop or pad the last batch, gather the sizes first, and check that all "
        "ranks have the same parameters, with the same requires_grad."
        if name != "types"
        else "Cast the tensors to one type before the collective, on all ranks.",
        lines,
    )


def _sizes_in_dumps(paste: Paste) -> Iterator[TextFinding]:
    for group in paste.once(calls_by_group):
        for seq, calls in group.by_number().items():
            if len(calls) < 2 or len({plain_name(call.op) for call in calls.values()}) > 1:
                continue
            op = next(iter(calls.values())).op
            if not EVEN.match(op) or "coalesced" in op:
                continue
            sizes = grouped(((n_elements(call.sizes_in), call.dtypes), rank) for rank, call in calls.items())
            if len(sizes) > 1:
                name = "sizes" if len({size for size, _ in sizes}) > 1 else "types"
                sides = " against ".join(
                    f"{rank_list(ranks)} ({f'{size:,} elements' if name == 'sizes' else ', '.join(dtypes)})"
                    for (size, dtypes), ranks in sizes.items()
                )
                lines = [call.line for call in calls.values()]
                yield _different_sizes(f"{plain_name(op)} {seq} of {group.desc}", sides, name, lines)
                break


@rule(
    "collective-mismatch",
    "Ranks differ in a collective, and the text shows one side",
    source="pytorch/torch/csrc/distributed/c10d/ProcessGroupWrapper.cpp",
)
def collective_mismatch(paste: Paste) -> Iterator[TextFinding]:
    """Look for a mismatch of which the text contains the call of only one rank."""
    prints = paste.once(read_torch_log).finger_prints
    if len({fingerprint.rank for fingerprint in prints}) == 1:
        first = prints[0]
        is_traced = bool(other_lines(paste).numbers("Running collective:"))
        yield collective_mismatch.finding(
            "error",
            f"rank {first.rank}, {plain_name(first.op)}",
            f"PyTorch found that rank {first.rank} calls a different collective than the others, or with a different "
            "size." + ("" if is_traced else " What the others call is not in the text."),
            "Compare it with the lines 'Running collective' of the other ranks."
            if is_traced
            else "Paste the same message of all ranks: PyTorch before 2.0 prints on each rank only its own call.",
            [fingerprint.line for fingerprint in prints],
        )


@rule("dumps-missing", "Flight recorder dumps of some ranks are not in the text", source=_RECORDER)
def dumps_missing(paste: Paste) -> Iterator[TextFinding]:
    """Look for a collective that did not end, in dumps that are not those of all ranks of its group."""
    if any(True for _ in rank_missing.check(paste)):
        return
    for group in paste.once(calls_by_group):
        waiting = group.waiting()
        absent = [rank for rank in group.ranks if rank not in group.dumps]
        if waiting and absent:
            first = min(waiting.values(), key=lambda call: call.seq)
            ranks = rank_list(absent) if len(absent) < 64 else f"{len(absent)} ranks"
            yield dumps_missing.finding(
                "info",
                f"{ranks} of {group.desc}",
                f"{rank_list(waiting).capitalize()} {'waits' if len(waiting) == 1 else 'wait'} in "
                f"{plain_name(first.op)} {first.seq}. The dumps of {ranks} are not in the text, so it does not show "
                f"which rank did not join.{_order_note(paste.once(read_flight_dumps))}",
                "Paste the dumps of all ranks as JSON, one after the other.",
                [first.line],
            )


HANG_RULES: tuple[Rule, ...] = (
    rank_missing,
    order_mismatch,
    size_mismatch,
    collective_mismatch,
    dumps_missing,
)
