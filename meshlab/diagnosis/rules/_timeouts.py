"""Rules for collectives that timed out, and for a watchdog that is stuck itself."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from meshlab.base._numerals import whole
from meshlab.diagnosis._findings import Rule, TextFinding, rule
from meshlab.diagnosis._late_ranks import call_name, calls_by_group, lines_by_group, plain_name, rank_list
from meshlab.diagnosis._other_lines import other_lines
from meshlab.diagnosis._paste import Paste, PasteLine
from meshlab.diagnosis._seen import grouped
from meshlab.diagnosis.formats._flight_recorder import read_flight_dumps
from meshlab.diagnosis.formats._nccl_lines import read_communicators
from meshlab.diagnosis.formats._torch_lines import (
    RANK_PREFIX,
    GroupStatus,
    TorchLog,
    WorkTimeout,
    rank_in_line,
    read_torch_log,
)
from meshlab.diagnosis.rules._hangs import EVEN, WATCHDOG, rank_missing
from meshlab.mesh._axes import MAX_RANKS


def _minutes(milliseconds: int | None) -> str:
    if milliseconds is None:
        return ""
    seconds = milliseconds / 1000
    if seconds < 180:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h".replace(".0 h", " h")


def _collect(paste: Paste, log: TorchLog) -> str:
    """Return what to set before the next run, for the version of PyTorch that printed the log."""
    has_recorder = bool(other_lines(paste).numbers("PG GUID", "TORCH_FR_", "flight recorder dump signal"))
    buffer = "TORCH_NCCL_TRACE_BUFFER_SIZE=2000"
    if has_recorder or len(paste.once(read_flight_dumps)):
        buffer = f"TORCH_FR_BUFFER_SIZE=2000 {buffer} (the new and the old name) and"
    elif not other_lines(paste).numbers("[PG ") and not any(timeout.is_global for timeout in log.timeouts):
        return (
            "set NCCL_DESYNC_DEBUG=1 TORCH_DISTRIBUTED_DEBUG=DETAIL (TORCH_NCCL_DESYNC_DEBUG from PyTorch 2.2 on), "
            "then paste the logs of all ranks"
        )
    return (
        f"set {buffer} TORCH_NCCL_DUMP_ON_TIMEOUT=1 TORCH_NCCL_DESYNC_DEBUG=1, then paste the logs of all ranks, or "
        "their dumps nccl_trace_rank_* as JSON"
    )


@rule("nccl-timeout", "A collective timed out", source=WATCHDOG)
def nccl_timeout(paste: Paste) -> Iterator[TextFinding]:
    """Look for the watchdog's message that a collective ran too long.

    The ranks that print it are those that waited. The lines of one rank never show which other rank did not join.
    """
    log = paste.once(read_torch_log)
    missing = next((finding.subject for finding in rank_missing.check(paste)), None)
    groups = _timeouts_by_group(log)
    for timeouts in groups:
        yield _group_timeout(paste, timeouts, missing, is_only_group=len(groups) == 1)
    if not log.timeouts:
        yield from _stuck_in_dumps(paste)
        yield from _gloo_waited(paste)
    if log.signals and not log.timeouts and not log.desync:
        yield _signalled(log)
    elif not log.timeouts and not log.desync:
        yield from _without_call(paste, log)
    for report in log.desync:
        if report.unfinished and not report.absent and not log.timeouts:
            yield nccl_timeout.finding(
                "error",
                f"{rank_list(report.unfinished)}, collective #{report.at}",
                f"{rank_list(report.unfinished).capitalize()} joined collective #{report.at} and did not finish it.",
                f"To find the cause, {_collect(paste, log)}.",
                report.lines,
            )


def _timeouts_by_group(log: TorchLog) -> list[list[WorkTimeout]]:
    """Return the timeouts of each process group. Lines without a group belong to the only group with their call."""
    groups: dict[tuple[object, ...], list[WorkTimeout]] = grouped(
        (("", item.op, item.seq) if item.group is None else (str(item.group),), item) for item in log.timeouts
    )
    for _, *call in [key for key in groups if len(key) > 1]:
        same = [
            name
            for name, timeouts in groups.items()
            if len(name) == 1 and any([timeout.op, timeout.seq] == call for timeout in timeouts)
        ]
        if call[1] is not None and len(same) == 1:
            groups[same[0]] += groups.pop(("", *call))
    return list(groups.values())


def _group_timeout(
    paste: Paste, timeouts: Sequence[WorkTimeout], missing: str | None, *, is_only_group: bool
) -> TextFinding:
    """Return the finding about the timeouts of one process group, and about its missing rank if one is known."""
    log = paste.once(read_torch_log)
    first = min(timeouts, key=lambda timeout: timeout.seq or 0)
    earliest = [timeout for timeout in timeouts if (timeout.op, timeout.seq) == (first.op, first.seq)]
    others = [timeout for timeout in timeouts if timeout not in earliest]
    stops = _stops(log, timeouts)
    same_stops = [status for status in stops if status.stopped_at == first.seq]
    waiting = {timeout.rank for timeout in earliest}
    ranks = sorted(waiting | {status.rank for status in same_stops})
    call = call_name(first)
    where = f"{rank_list(ranks)}{_place(paste, ranks)}{f' of {first.group}' if first.group else ''}, {call}"
    waited = _minutes(max((timeout.ran_ms or timeout.limit_ms or 0 for timeout in earliest), default=0) or None)
    why = f"{rank_list(waiting).capitalize()} waited {waited or 'until the timeout'} in {call}"
    if same_stops:
        why += f"; {rank_list(status.rank for status in same_stops)} stopped at the same number"
    if others:
        calls = ", ".join(dict.fromkeys(map(call_name, others[:4])))
        why += f"; {rank_list(timeout.rank for timeout in others)} waited in {calls}"
    elsewhere = {timeout.rank for timeout in others}
    for status in stops:
        if status not in same_stops and status.rank not in elsewhere:
            elsewhere.add(status.rank)
            why += f"; {rank_list([status.rank])} " + (
                f"completed number {status.completed}"
                if status.stopped_at is None
                else f"stopped at number {status.stopped_at}"
            )
    lines = [*(timeout.line for timeout in timeouts), *(status.line for status in stops)]
    if missing is not None:
        is_here = is_only_group or first.group is None or str(first.group) in missing
        why += f". It follows from the missing rank: {missing}." if is_here else f". Another group misses {missing}."
        return nccl_timeout.finding("error", where, why, lines=lines)
    look = ""
    if elsewhere:
        why += (
            ". The ranks are in different collectives of one process group. Their lines do not show which of them, or "
            "which other rank, is the cause."
        )
        look = f"Look first at {rank_list(elsewhere)} and at ranks that are not in the text. "
    elif len(ranks) == 1 and (named := _named_ranks(paste) - waiting):
        why += (
            f", and is the one that noticed, not necessarily the cause. The text also has lines of {rank_list(named)}, "
            "which do not show this collective."
        )
        look = f"Read the lines of {rank_list(named)} before this time. {_other_end(first, first.op)}"
    elif len(ranks) == 1:
        why += (
            ", and is the one that noticed, not necessarily the cause: one rank's lines do not show which rank did not "
            "join."
        )
        look = _other_end(first, first.op)
    elif EVEN.match(first.op) and len({timeout.elements_in for timeout in earliest}) > 1:
        why += ", with different sizes, which NCCL does not compare."
    else:
        why += (
            f". Their lines agree, so the cause is outside them: {_outside(paste, ranks)}in the network, or on a GPU."
        )
    look += f"To find the missing rank, {_collect(paste, log)}. "
    look += "While the job hangs, run py-spy dump on every rank, or ncclras on one host."
    return nccl_timeout.finding("error", where, why, look, lines)


def _stops(log: TorchLog, timeouts: Sequence[WorkTimeout]) -> list[GroupStatus]:
    """Return how far other ranks of a group came, except those that were still before its first timeout."""
    stuck = {timeout.rank for timeout in timeouts}
    first = min((timeout.seq for timeout in timeouts if timeout.seq is not None), default=None)
    for of_group, statuses in lines_by_group(log).values():
        if first is not None and any(timeout in of_group for timeout in timeouts):
            last = {status.rank: status for status in statuses if status.rank not in stuck}
            return [status for status in last.values() if status.stopped_at is not None or status.completed >= first]
    return []


def _signalled(log: TorchLog) -> TextFinding:
    """Return the finding about a timeout of which the text has only the signals that it caused."""
    ranks = rank_list(rank for _, rank in log.signals)
    progress = dict.fromkeys(
        f"{rank_list([status.rank])} had enqueued {status.enqueued} and completed {status.completed} of {status.group}"
        for status in log.statuses
    )
    return nccl_timeout.finding(
        "error",
        ranks,
        f"A collective of {ranks} timed out, and PyTorch dumps its state. The line of the watchdog that names the "
        "collective is not in the text" + (f"; {', '.join(list(progress)[:4])}." if progress else "."),
        f"Paste the lines with 'Watchdog caught' of {ranks}, and those of all other ranks.",
        [line for line, _ in log.signals],
    )


def _without_call(paste: Paste, log: TorchLog) -> Iterator[TextFinding]:
    """Find timeouts of which the text has only the lines with the numbers, after the one that names the collective."""
    if not other_lines(paste).numbers("Timeout at NCCL work"):
        return
    late = [status for status in log.statuses if status.at is not None]
    for group, statuses in grouped((str(status.group), status) for status in late).items():
        ranks = rank_list(status.rank for status in statuses)
        numbers = ", ".join(map(str, dict.fromkeys(status.at for status in statuses)))
        yield nccl_timeout.finding(
            "error",
            f"{ranks} of {group}, collective {numbers}",
            f"Collective {numbers} of {group} timed out on {ranks}, which noticed it and need not be the cause. The "
            "line of the watchdog that names the collective is not in the text.",
            f"Paste the lines with 'Watchdog caught' of {ranks}, and those of all other ranks of this group: the one "
            "that did not come to this collective, or ended before, is the cause.",
            [status.line for status in statuses],
        )


_GLOO_WAITED = re.compile(r"Timed out waiting (?P<ms>\d+)ms for (?P<what>recv|send) operation to complete")


def _gloo_waited(paste: Paste) -> Iterator[TextFinding]:
    """Find operations of Gloo that waited too long for another rank."""
    if matches := other_lines(paste).matches(_GLOO_WAITED, "operation to complete"):
        ranks = {rank for line, _ in matches if (rank := rank_in_line(line, len(line.raw))) is not None}
        subject = rank_list(ranks) if ranks else "the rank that prints it"
        waited = _minutes(whole(matches[0][1]["ms"]))
        yield nccl_timeout.finding(
            "error",
            f"{subject}, Gloo",
            f"An operation of Gloo, which connects the CPUs of the ranks, waited {waited} for another rank. The rank "
            "that prints it is the one that noticed; the line does not name the other one.",
            "Look for a rank that ended, or is busy elsewhere: saving a checkpoint, preparing data, compiling. While "
            "the job hangs, run py-spy dump on every rank. If the others are only slow, raise the timeout of the "
            "group.",
            [line for line, _ in matches],
            title="An operation of Gloo timed out",
        )


_NAMED_GROUP_RANK = re.compile(r"\[Rank (\d+)\]")


def _named_ranks(paste: Paste) -> set[int]:
    """Return the ranks that PyTorch's prefixes name anywhere: global ranks, or those within a group in old versions."""
    ranks = set(RANK_PREFIX.findall(paste.text)) or set(_NAMED_GROUP_RANK.findall(paste.text))
    return set(map(whole, ranks))


def _outside(paste: Paste, ranks: Sequence[int]) -> str:
    """Return the ranks that are not in the text, if there are any, and if they are few and the numbers plausible."""
    world = max((item.n_ranks for item in paste.once(read_communicators)), default=0)
    if world and len(ranks) >= world:
        return ""
    is_plausible = len(ranks) > 2 and max(ranks) < MAX_RANKS
    absent = sorted(set(range(max(ranks) + 1)) - set(ranks)) if is_plausible else []
    if absent and len(absent) <= 16:
        return f"in ranks that are not in the text (below {max(ranks)}: {rank_list(absent)}), "
    return "in a rank that is not in the text, "


def _stuck_in_dumps(paste: Paste) -> Iterator[TextFinding]:
    """Find a collective that all ranks of a group called and none finished, and that timed out."""
    for group in paste.once(calls_by_group):
        waiting = group.waiting()
        calls = {(plain_name(call.op), call.seq) for call in waiting.values()}
        if set(waiting) == set(group.ranks) and len(calls) == 1 and any(call.is_retired for call in waiting.values()):
            ((op, seq),) = calls
            yield nccl_timeout.finding(
                "error",
                f"{rank_list(group.ranks)}, {op} {seq} of {group.desc}",
                f"{'All' if group.has_members else 'The dumped'} ranks of {group.desc} called {op} {seq}, and it timed "
                "out"
                + (", so no rank is missing. " if group.has_members else "; the dumps do not list its members. ")
                + "The cause is on a GPU, in the network, or in a size or type that the dumps do not contain.",
                "Look at the kernel messages (dmesg) of all hosts for Xid, and at NCCL's warnings (NCCL_DEBUG=WARN).",
                [call.line for call in waiting.values()],
            )


def _place(paste: Paste, ranks: Sequence[int]) -> str:
    """Return the host and the GPU of one rank, if NCCL's lines about the largest communicator name them."""
    comm_ranks = [item for item in paste.once(read_communicators) if item.host is not None and item.device is not None]
    n_ranks = max((item.n_ranks for item in comm_ranks), default=0)
    places = [item for item in comm_ranks if [item.rank] == list(ranks) and item.n_ranks == n_ranks]
    return f" ({places[0].host}, GPU {places[0].device}) of {n_ranks}" if places else ""


def _other_end(timeout: WorkTimeout, op: str) -> str:
    """Return which rank a rooted collective needs, as far as its sizes show it."""
    name = plain_name(op)
    if name in ("gather", "reduce") and timeout.elements_out == 0 and timeout.elements_in:
        return (
            f"Rank {timeout.rank} sends its part and gets nothing back, so look first at the destination of the {name} "
            "(usually rank 0), then at the other ranks: crashed, busy, or in another collective. "
        )
    if name == "broadcast":
        return "Look first at the source of the broadcast (usually rank 0). "
    if op in ("_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE"):
        return (
            "FSDP and ZeRO-3 call this for each module, so check that all ranks run the same modules equally often "
            "(generate with synced_gpus=True, experts without tokens, uneven batches, an early exit). "
        )
    if name == "all_reduce" and timeout.elements_in == 1:
        return "An all_reduce of one element is usually a metric or a flag: look for a branch around it. "
    return ""


_HEARTBEAT = re.compile(r"watchdog got stuck for (\d+) seconds|Heartbeat monitor timed out")


@rule("watchdog-stuck", "PyTorch's watchdog thread is stuck", source=WATCHDOG)
def watchdog_stuck(paste: Paste) -> Iterator[TextFinding]:
    """Look for the heartbeat monitor, which ends a process whose watchdog thread hangs in a call of CUDA or Python."""
    matches = other_lines(paste).matches(_HEARTBEAT, "watchdog got stuck for", "Heartbeat monitor timed out")
    ranks = {rank for line, match in matches if (rank := _rank_before(line, match.start())) is not None}
    has_timeouts = bool(paste.once(read_torch_log).timeouts)
    if matches:
        yield watchdog_stuck.finding(
            "error",
            rank_list(ranks) if ranks else "the process that prints it",
            "The watchdog thread itself made no progress: a call of CUDA or NCCL blocks, or another thread holds "
            "Python's lock (GIL). "
            + ("Timeouts of collectives in the text may follow from it." if has_timeouts else "")
            + ("" if has_timeouts else "This is not the timeout of a collective."),
            "Get the stacks of all threads (py-spy dump --native --pid PID), and look for kernel messages (dmesg) "
            "about the GPU and for storage that does not answer.",
            [line for line, _ in matches],
        )


def _rank_before(line: PasteLine, start: int) -> int | None:
    """Return the rank before a message. If the line begins with the message, the rank may be anywhere in the line."""
    return rank_in_line(line, len(line.raw) - len(line.text) + start if start else len(line.raw))


TIMEOUT_RULES: tuple[Rule, ...] = (nccl_timeout, watchdog_stuck)
