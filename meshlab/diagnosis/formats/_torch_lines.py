"""PyTorch's messages about collectives: the watchdog, the desync report, and mismatches that DETAIL finds."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING

from meshlab.base._numerals import whole
from meshlab.diagnosis._other_lines import other_lines
from meshlab.diagnosis._paste import Paste, PasteLine
from meshlab.diagnosis._seen import Seen, TextFormat, unique

if TYPE_CHECKING:
    import pandas as pd


# WorkNCCL was printed without SeqNum until 2022 and without NumelIn until 2.1. XCCL and forks have other classes.
_WORK = (
    r"Work\w+\((?:SeqNum=(?P<seq>\d+), )?OpType=(?P<op>\w+)"
    r"(?:, NumelIn=(?P<numel_in>\d+), NumelOut=(?P<numel_out>\d+))?(?:, Timeout\(ms\)=(?P<limit>\d+))?\)"
)
_TIMEOUT = re.compile(
    r"\[Rank (?P<rank>\d+)\] (?:Watchdog caught collective operation timeout: " + _WORK + r" ran for (?P<ran>\d+)"
    r"|Work " + _WORK.replace("(?P<", "(?P<b_") + r" timed out in blocking wait)"
)

# The group was "[PG 1 Rank 0]", then "[PG 0 (default_pg) Rank 0]", and is "[PG ID 0 PG GUID 0(default_pg) Rank 0]".
_GROUP = (
    r"\[PG (?:ID (?P<uid>\d+) PG GUID (?P<guid>[^\s(\]]*) ?(?:\((?P<desc>[^)]*)\))?"
    r"|(?P<old>[^\s\]]+) ?(?:\((?P<old_desc>[^)]*)\))?) Rank (?P<group_rank>\d+)\]"
)
_GROUP_NAME = re.compile(_GROUP)
_STATUS = re.compile(
    _GROUP + r"(?P<text>.{0,300}?)(?i:last enqueued (?:NCCL )?work): (?P<enqueued>-?\d+)"
    r"(?:, last started (?:NCCL )?work: -?\d+)?, last completed (?:NCCL )?work: (?P<completed>-?\d+)"
)
_SIGNAL = re.compile(
    r"Received a dump signal due to a collective timeout from +(?:(?P<local>this local rank)|rank (?P<source>\d+))"
)
_STATUS_AT = re.compile(r"Timeout at NCCL work: (\d+)|at work(?: sequence id)?: (\d+)")

_DESYNC = re.compile(
    r"\[(?P<finished>[\d, ]+)\] finished collective #(?P<last>\d+), but didn't join collective #(?P<next>\d+)"
    r"|\[(?P<joined>[\d, ]+)\] joined but didn't finish collective #(?P<at>\d+)"
    r"|ranks \[(?P<never>[\d, ]+)\] are the lagging ranks .*They never joined any"
)
_SNAPSHOT_HEAD = re.compile(r"#(\d+) (?:started|finished) ranks:")
_SNAPSHOT = re.compile(r"\[(?P<ranks>\d[\d, ]*)\] (?P<state>started|finished) (?P<op>[A-Z_]\w*)\b")

# One message may be wrapped into several lines, so this pattern is applied to the text after the first word.
_FINGER_PRINT = re.compile(
    r"Rank (?P<rank>\d+) is running (?:inconsistent )?collective: ?\s*(?:CollectiveFingerPrint\("
    r"(?:SequenceNumber=(?P<seq>\d+)(?:, ?)?)?OpType=(?P<op>\w+)"
    r"(?:,\s+TensorShape=\[(?P<shape>[^\]]*)\](?:,\s+TensorDtypes=(?P<dtype>[^,)]*))?)?|(?P<bare>[A-Z_]{3,}))"
)
_BARRIER = re.compile(r"Ranks? (?P<ranks>\d[\d, ]*) failed to pass monitoredBarrier in (?P<ms>\d+) ms")

# "for group NAME collective OP", then "5 at entry 4", then ": sequence number: 5", and now the same with a comma.
_ANALYSED = re.compile(
    r"Not all ranks joining collective(?:[,:] sequence number:)? (?P<missing>\d+|for group (?P<group>\S+) collective "
    r"(?P<op>\S+))"
    r"|Culprit rank (?P<culprit>\d+); Error type: (?P<error>\w+)"
    r"|(?:Collective sequence number: |Error type: \w+ at sequence number )(?P<seq>\d+)"
)
_ANALYSED_FIELD = re.compile(
    r"\b(group info|collective|[Mm]issing[ _]ranks|expected ranks)(?: are|:) (?!sequence number)(\{[\d, ]*\}|.+)"
)

_LITERALS = (
    *("ProcessGroupNCCL", "Watchdog caught collective", "timed out in blocking wait", "CollectiveFingerPrint"),
    *("torch.distributed", "[c10d]", "TCPStore", "ProcessGroupGloo", "monitoredBarrier", "Timeout at collective:"),
    *("joined but didn't finish collective", "but didn't join collective", "Not all ranks joining collective"),
    *("Culprit rank", "last enqueued NCCL work", "DistBackendError", "torch/distributed/"),
)


@dataclass(frozen=True, slots=True)
class GroupName:
    """The process group that a line names."""

    name: str
    desc: str  # its description, such as "default_pg". Empty if the line has none
    rank: int  # the rank within the group
    # The name is the same on all ranks. PyTorch before 2.4 printed a number that each process counts for itself, so
    # equal numbers may mean different groups.
    is_shared: bool

    def __str__(self) -> str:
        return self.desc if self.desc and self.desc != "undefined" else f"PG {self.name}"


@dataclass(frozen=True, slots=True)
class WorkTimeout:
    """A collective that a watchdog, or a blocking wait, gave up on."""

    line: PasteLine
    rank: int  # global rank, if the prefix of the line names it, else the rank within the group
    is_global: bool  # rank is a global rank for certain
    op: str  # the collective, such as "ALLREDUCE"
    seq: int | None  # number of the collective within its group. Not the number of the desync report
    elements_in: int | None
    elements_out: int | None
    limit_ms: int | None
    ran_ms: int | None
    group: GroupName | None = None


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """How far a rank came in a process group."""

    line: PasteLine
    rank: int  # global rank, if the prefix of the line names it, else the rank within the group
    group: GroupName
    enqueued: int  # number of the last collective. -1 if there was none
    completed: int
    at: int | None  # number of the collective that failed, if the line names it

    @property
    def stopped_at(self) -> int | None:
        """Number of the collective that the rank did not finish, None if all that it enqueued are completed."""
        return self.completed + 1 if self.at is None and self.completed < self.enqueued else self.at


@dataclass(frozen=True, slots=True)
class DesyncReport:
    """The report that TORCH_NCCL_DESYNC_DEBUG prints. Its ranks are ranks within the group."""

    lines: tuple[PasteLine, ...]
    absent: tuple[int, ...]
    last: int | None  # the last collective that they finished. None if they never joined any
    unfinished: tuple[int, ...]
    at: int | None
    states: tuple[tuple[int, str, str, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class FingerPrint:
    """What a rank called, as TORCH_DISTRIBUTED_DEBUG=DETAIL prints it if the ranks differ."""

    line: PasteLine
    rank: int  # the rank within the group
    op: str
    seq: int | None
    shape: str | None  # None if the message does not contain it
    dtype: str | None


@dataclass(frozen=True, slots=True)
class AnalysedCollective:
    """A problem that torchfrtrace, PyTorch's analysis of flight recorder dumps, prints."""

    line: PasteLine
    error: str  # "MISSING", or the type of the mismatch, such as "COLLECTIVE_TYPE_MISMATCH"
    ranks: tuple[int, ...]  # the global ranks that are missing, or that differ
    expected: tuple[int, ...]  # the global ranks of the group. Empty if the text does not contain them
    seq: int | None
    group: str  # empty if the text does not contain it
    op: str


@dataclass(frozen=True, slots=True)
class TorchLog:
    """All that the log shows about collectives. Repeated messages are contained once."""

    timeouts: tuple[WorkTimeout, ...]
    statuses: tuple[GroupStatus, ...]
    desync: tuple[DesyncReport, ...]
    finger_prints: tuple[FingerPrint, ...]
    barrier_missing: tuple[tuple[PasteLine, tuple[int, ...]], ...]
    analysed: tuple[AnalysedCollective, ...]
    signals: tuple[tuple[PasteLine, int], ...] = ()  # lines about a timeout, with the rank whose collective timed out


def find_all(paste: Paste, pattern: re.Pattern[str], *literals: str) -> Iterator[tuple[PasteLine, re.Match[str]]]:
    """Yield all matches in the lines that contain one of the strings. A line of a viewer may hold several messages.

    A terminal may have wrapped a message into the next line, between two words or within one.
    """
    for line in other_lines(paste).find(*literals):
        match = None
        for match in pattern.finditer(line.raw):
            yield line, match
        if match is None and line.number < len(paste):
            after = paste.raw(line.number + 1)
            for joined in (line.raw + after, f"{line.raw} {after}"):
                match = pattern.search(joined)
                if match is not None and match.start() < len(line.raw) < match.end():
                    yield line, match
                    break


RANK_PREFIX = re.compile(r"\[rank(\d+)\]")
_GROUP_RANK = re.compile(r"\bRank (\d+)\]")


def last_rank_prefix(line: PasteLine, end: int) -> int | None:
    """Return the global rank that is named before a position of a raw line, or that the prefix of the line names."""
    named = RANK_PREFIX.findall(line.raw, 0, end)
    return whole(named[-1]) if named else line.rank


def rank_in_line(line: PasteLine, end: int) -> int | None:
    """Return the rank before a position of a raw line, or the one that old versions name: ``[Rank 3]``, in a group."""
    if (rank := last_rank_prefix(line, end)) is None and (named := _GROUP_RANK.search(line.raw)) is not None:
        rank = whole(named[1])
    return rank


def read_torch_log(paste: Paste) -> TorchLog:
    """Read the messages of PyTorch about its collectives."""
    statuses = unique(_statuses(paste), attrgetter("rank", "group", "enqueued", "completed", "at"))
    return TorchLog(
        timeouts=tuple(_timeouts(paste, statuses)),
        statuses=statuses,
        # Ranks that print the same report yield it once.
        desync=unique(_desync_reports(paste), attrgetter("absent", "last", "unfinished", "at")),
        finger_prints=unique(_finger_prints(paste), attrgetter("rank", "op", "seq", "shape")),
        barrier_missing=tuple(
            (line, ranks_of(match["ranks"])) for line, match in find_all(paste, _BARRIER, "failed to pass monitored")
        ),
        analysed=tuple(_analysed(paste)),
        signals=tuple(_signals(paste)),
    )


def ranks_of(text: str) -> tuple[int, ...]:
    """Return the numbers in a list such as ``"0, 1, 2"``."""
    return tuple(whole(digits) for digits in re.findall(r"\d+", text))


def _group(match: re.Match[str]) -> GroupName:
    named = match.groupdict()
    if named["uid"] is not None:
        return GroupName(named["guid"] or named["uid"], named["desc"] or "", whole(named["group_rank"]), True)
    name, desc = named["old"], named["old_desc"] or ""
    return GroupName(name, desc, whole(named["group_rank"]), name == "0" or desc == "default_pg")


def _statuses(paste: Paste) -> Iterator[GroupStatus]:
    for line, match in find_all(paste, _STATUS, "ast enqueued NCCL work", "ast enqueued work"):
        at = _STATUS_AT.search(match["text"])
        group = _group(match)
        rank = last_rank_prefix(line, match.start())
        yield GroupStatus(
            line,
            group.rank if rank is None else rank,
            group,
            whole(match["enqueued"]),
            whole(match["completed"]),
            next((whole(digits) for digits in at.groups() if digits), None) if at else None,
        )


def _signals(paste: Paste) -> Iterator[tuple[PasteLine, int]]:
    for line, match in find_all(paste, _SIGNAL, "Received a dump signal due to a collective timeout"):
        rank = last_rank_prefix(line, match.start())
        if match["source"] is not None:
            yield line, whole(match["source"])
        elif rank is not None:
            yield line, rank


def _timeouts(paste: Paste, statuses: tuple[GroupStatus, ...]) -> Iterator[WorkTimeout]:
    timeouts: dict[tuple[object, ...], WorkTimeout] = {}
    for line, match in find_all(paste, _TIMEOUT, "Watchdog caught collective", "timed out in blocking wait"):
        named = match.groupdict()
        value = {name: named[name] if named.get(name) is not None else named.get(f"b_{name}") for name in _FIELDS}
        prefix = last_rank_prefix(line, match.start())
        rank = whole(named["rank"]) if prefix is None else prefix
        seq = _number(value["seq"])
        # The message is repeated with the group in front when the thread of the watchdog ends.
        before = [*_GROUP_NAME.finditer(line.raw, 0, match.start())]
        group = _group(before[-1]) if before and match.start() - before[-1].end() < 120 else None
        if group is None:
            group = next(
                (status.group for status in statuses if status.rank == rank and seq is not None and status.at == seq),
                None,
            )
        timeout = WorkTimeout(
            line,
            rank,
            prefix is not None,
            str(value["op"]),
            seq,
            _number(value["numel_in"]),
            _number(value["numel_out"]),
            _number(value["limit"]),
            _number(value["ran"]),
            group,
        )
        key = (rank, timeout.op, seq, timeout.elements_in)
        earlier = timeouts.setdefault(key, timeout)
        if earlier.group is None and group is not None:
            timeouts[key] = replace(earlier, group=group)
    yield from timeouts.values()


_FIELDS = ("seq", "op", "numel_in", "numel_out", "limit", "ran")


def _number(text: str | None) -> int | None:
    return None if text is None else whole(text)


def _desync_reports(paste: Paste) -> Iterator[DesyncReport]:
    """Yield the reports, which consist of several lines each."""
    numbers = other_lines(paste).numbers(
        "but didn't join collective", "joined but didn't finish", "They never joined any"
    )
    while numbers:
        lines = [paste.line(number) for number in numbers if number - numbers[0] <= 1]
        numbers = [number for number in numbers if number - numbers[0] > 1]
        absent: tuple[int, ...] = ()
        unfinished: tuple[int, ...] = ()
        last = at = None
        for line in lines:
            for match in _DESYNC.finditer(line.raw):
                if match["finished"] is not None:
                    absent, last = absent + ranks_of(match["finished"]), whole(match["last"])
                elif match["joined"] is not None:
                    unfinished, at = unfinished + ranks_of(match["joined"]), whole(match["at"])
                elif match["never"] is not None:
                    absent = absent + ranks_of(match["never"])
        if absent or unfinished:
            snapshot = tuple(_snapshot(paste, lines[-1].number))
            yield DesyncReport(tuple(lines), absent, last, unfinished, at, snapshot)


def _snapshot(paste: Paste, start: int) -> Iterator[tuple[int, str, str, tuple[int, ...]]]:
    number = None
    for position in range(start, min(len(paste), start + 400) + 1):
        raw = paste.line(position).raw
        if head := _SNAPSHOT_HEAD.search(raw):
            number = whole(head[1])
        state = _SNAPSHOT.search(raw)
        if state and number is not None:
            yield number, state["state"], state["op"], ranks_of(state["ranks"])
        elif not head and position > start + 1 and number is not None:
            return


def _finger_prints(paste: Paste) -> Iterator[FingerPrint]:
    for number in other_lines(paste).numbers("is running collective:", "is running inconsistent collective:"):
        line = paste.line(number)
        # Terminals wrap these long messages, so the following lines belong to it until another one starts.
        more = [paste.line(following).text for following in range(number + 1, min(number + 4, len(paste) + 1))]
        length = len(line.raw)
        for match in _FINGER_PRINT.finditer("\n".join([line.raw, *more])):
            if match.start() >= length:
                continue
            shape, dtype = match["shape"], match["dtype"]
            yield FingerPrint(
                line,
                whole(match["rank"]),
                match["op"] or match["bare"],
                _number(match["seq"]),
                None if shape is None else " ".join(shape.split()),
                None if dtype is None else dtype.strip(),
            )


def _analysed(paste: Paste) -> Iterator[AnalysedCollective]:
    for number in other_lines(paste).numbers("Not all ranks joining collective", "Culprit rank"):
        line = paste.line(number)
        around = range(number, min(number + 14, len(paste) + 1))
        if "Culprit rank" in line.raw:
            around = range(number - 1, max(number - 18, 0), -1)
        fields: dict[str, str] = {}
        seq = None
        for position in around:
            other = paste.line(position).text
            if position != number and (
                "Not all ranks joining" in other or ("Culprit rank" in other and "Culprit rank" not in line.raw)
            ):
                break
            if field := _ANALYSED_FIELD.search(other):
                fields.setdefault(field[1].lower().replace("_", " "), field[2].strip())
            elif seq is None and (entry := re.search(r"sequence number: (\d+)|[Cc]ollective (\d+) at entry", other)):
                seq = whole(entry[1] or entry[2])
        group, op = fields.get("group info", ""), fields.get("collective", "").removeprefix("nccl:")
        expected = fields.get("expected ranks", "")
        ranks = ranks_of(expected) if expected.startswith("{") else ()
        for match in _ANALYSED.finditer(line.raw):
            if match["missing"] is not None:
                missing = ranks_of(fields.get("missing ranks", ""))
                seq = None if match["group"] else whole(match["missing"])
                group, op = match["group"] or group, (match["op"] or op).removeprefix("nccl:")
                yield AnalysedCollective(line, "MISSING", missing, ranks, seq, group, op)
            elif match["culprit"] is not None:
                yield AnalysedCollective(line, match["error"], (whole(match["culprit"]),), ranks, seq, group, op)


def _find(paste: Paste) -> list[int]:
    return other_lines(paste).numbers(*_LITERALS)


def _see(paste: Paste) -> Seen:
    log = paste.once(read_torch_log)
    facts: dict[str, str] = {}
    if stuck := {f"{timeout.op.lstrip('_').lower()}" for timeout in log.timeouts}:
        facts["timed out"] = ", ".join(sorted(stuck))
    if groups := {str(status.group) for status in log.statuses}:
        facts["process groups"] = ", ".join(sorted(groups))
    frames: dict[str, Callable[[], pd.DataFrame]] = {}
    if log.timeouts or log.statuses:
        frames["calls"] = lambda: _calls(log)
    return Seen(facts=facts, frames=frames)


def _calls(log: TorchLog) -> pd.DataFrame:
    """Return the collectives under way, one row per rank and collective."""
    import pandas as pd

    rows = [
        {
            "rank": timeout.rank,
            "group": None if timeout.group is None else str(timeout.group),
            "sequence": timeout.seq,
            "collective": timeout.op,
            "elements_in": timeout.elements_in,
            "elements_out": timeout.elements_out,
            "state": "timed out",
            "line": timeout.line.number,
        }
        for timeout in log.timeouts
    ]
    timed_out = {timeout.rank for timeout in log.timeouts}
    latest = {(status.rank, str(status.group)): status for status in log.statuses}
    rows += [
        {
            "rank": status.rank,
            "group": str(status.group),
            "sequence": status.enqueued,
            "collective": None,
            "elements_in": None,
            "elements_out": None,
            "state": "completed" if status.enqueued == status.completed else "enqueued",
            "line": status.line.number,
        }
        for status in latest.values()
        if status.rank not in timed_out
    ]
    frame = pd.DataFrame(rows)
    numbers = ["rank", "sequence", "elements_in", "elements_out", "line"]
    return frame.astype(dict.fromkeys(numbers, "Int64")).sort_values(["rank", "line"], ignore_index=True)


TORCH_LOG = TextFormat("PyTorch log", _find, _see, "the log of a PyTorch job")
