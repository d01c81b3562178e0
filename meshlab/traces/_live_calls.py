"""Calls of a job that still runs, matched as their lines arrive: totals, and the latest interval."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np

from meshlab.base._documents import parse_large_json
from meshlab.base._errors import ParseError
from meshlab.traces._inspector import LoggedCall, inspected_calls, read_calls
from meshlab.traces._matching import SYNCHRONISING
from meshlab.traces._rank_trace import ProcessGroup, RankTrace
from meshlab.traces._tables import MOSTLY

_KEPT_BYTES = 64 << 20  # lines for the snapshot of a trace
_MOST_OPEN = 1 << 18  # durations of a communicator that wait for other ranks, many while a reader catches up
_MOST_LATENESSES = 1000  # of a rank in a communicator, for their median
_MOST_GAPS = 1000  # between the numbers of the calls of a rank, of small messages that the plugin leaves out
_FEWEST = 4  # calls by which a rank is named late
_SILENT = 0.9  # intervals without a line, because reading takes some time
_SILENT_GAPS = 1.5  # the same in usual gaps between the lines of a rank


@dataclass(slots=True)
class Member:
    """The calls of a rank in a communicator."""

    process: Process
    n_calls: int = 0
    n_sized: int = 0
    size_bytes: float = 0.0
    n_timed: int = 0
    duration_us: float = 0.0
    n_matched: int = 0  # calls that all ranks have finished
    wait_us: float = 0.0
    n_late: int = 0  # matched calls in which the rank came last
    lateness_us: deque[float] = field(default_factory=lambda: deque(maxlen=_MOST_LATENESSES))
    sequence: dict[str | None, int] = field(default_factory=dict)  # of the last call of each collective
    gaps: deque[tuple[str | None, int, int]] = field(default_factory=lambda: deque(maxlen=_MOST_GAPS))  # not seen
    recent: list[float] = field(default_factory=list)  # latenesses since the end of the last interval


@dataclass(slots=True, eq=False)
class Process:
    """A process that writes a log, and the places of its ranks in communicators."""

    host: str
    file: str
    places: set[tuple[int, int]] = field(default_factory=set)  # sizes of communicators, and positions in them
    comms: set[str] = field(default_factory=set)
    lines: deque[bytes] = field(default_factory=deque)
    n_bytes: int = 0
    last_s: float = 0.0  # when the last line was read
    has_grown: bool = False  # since the end of the last interval
    dumped_us: float = np.nan  # on the clock of its host
    gap_us: float = 0.0  # largest gap between two lines since the end of the last interval
    gaps_us: deque[float] = field(default_factory=lambda: deque(maxlen=30))

    @property
    def world_size(self) -> int:
        """Number of ranks of the largest communicator, which is taken for that of the job."""
        return max((n for n, _ in self.places), default=0)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks of the process."""
        world = self.world_size
        return tuple(sorted(position for n, position in self.places if n == world))

    def rank(self, position: int) -> int | None:
        """Return the rank at a position of a communicator, None if the process has several others."""
        ranks = self.ranks
        return ranks[0] if len(ranks) == 1 else position if position in ranks else None

    @property
    def usual_gap_s(self) -> float:
        """The usual longest time between two lines in an interval."""
        return median(self.gaps_us) / 1e6 if self.gaps_us else 0.0


@dataclass(slots=True, eq=False)
class Comm:
    """A communicator: its members by their positions, and the calls that some of them have not finished."""

    name: str
    label: str
    n_ranks: int
    members: dict[int, Member] = field(default_factory=dict)
    pending: dict[tuple[str, int], dict[int, float]] = field(default_factory=dict)
    n_matched: int = 0
    transfer_us: float = 0.0
    n_recent: int = 0  # matched calls since the end of the last interval


class LiveCalls:
    """The calls of all processes of a folder."""

    def __init__(self, error_us: float) -> None:
        self.error_us = error_us
        self.processes: dict[tuple[str, int | str], Process] = {}
        self.comms: dict[str, Comm] = {}
        self.n_lines = 0  # of calls

    # -- lines ---------------------------------------------------------------------------------------------------------

    def add(self, lines: Sequence[bytes], file: str, now_s: float, *, is_copy: bool = False) -> None:
        """Add complete lines of a file. If it may be a copy of another one, the calls that are known are skipped."""
        objects = [line for line in map(bytes.strip, lines) if line[:1] == b"{" and line[-1:] == b"}"]
        for line, document in zip(objects, _documents(objects), strict=True):
            for call in inspected_calls(document):
                process = self.processes.get((call.host, call.pid))
                if process is None:
                    process = self.processes[call.host, call.pid] = Process(call.host, file)
                if self._add(call, process, is_copy=is_copy):
                    self._keep(process, line, call.dumped_us, now_s)

    def _keep(self, process: Process, line: bytes, dumped_us: float, now_s: float) -> None:
        """Keep the latest lines of a process, for a snapshot, and record when it wrote."""
        self.n_lines += 1
        process.lines.append(line)
        process.n_bytes += len(line)
        limit = _KEPT_BYTES // len(self.processes)
        while process.n_bytes > limit:
            process.n_bytes -= len(process.lines.popleft())
        process.last_s, process.has_grown = now_s, True
        gap = dumped_us - process.dumped_us
        if gap > process.gap_us:  # False for NaN
            process.gap_us = gap
        process.dumped_us = dumped_us

    def _add(self, call: LoggedCall, process: Process, *, is_copy: bool) -> bool:
        """Add a call to its communicator. Return False if it is known."""
        position, n_ranks, collective = call.position, call.n_ranks, call.collective
        if position is None or n_ranks is None:
            return False
        comm = self.comms.get(call.comm)
        if comm is None:
            comm = self.comms[call.comm] = Comm(call.comm, call.comm_name, n_ranks)
        member = comm.members.get(position)
        if member is None:
            member = comm.members[position] = Member(process)
            process.places.add((n_ranks, position))
            process.comms.add(call.comm)
        last = member.sequence.get(collective)
        if last is None or call.sequence > last:
            if last is not None and call.sequence > last + 1:
                member.gaps.append((collective, last + 1, call.sequence - 1))
            member.sequence[collective] = call.sequence
        elif is_copy and not _was_missed(member, collective, call.sequence):
            return False
        member.n_calls += 1
        if call.size_bytes == call.size_bytes:  # not NaN
            member.size_bytes += call.size_bytes
            member.n_sized += 1
        duration = call.duration_us
        if duration == duration:
            member.duration_us += duration
            member.n_timed += 1
            if collective in SYNCHRONISING and comm.n_ranks > 1 and call.sequence >= 0:
                self._match(comm, (str(collective), call.sequence), position, duration)
        return True

    def _match(self, comm: Comm, key: tuple[str, int], position: int, duration: float) -> None:
        """Add the duration of a rank to its call, and finish the call if it was the last."""
        durations = comm.pending.setdefault(key, {})
        durations[position] = duration
        if len(durations) < comm.n_ranks:
            if len(comm.pending) * comm.n_ranks > _MOST_OPEN:
                del comm.pending[next(iter(comm.pending))]
            return
        del comm.pending[key]
        # All ranks leave a call at about the same time, so the one with the shortest duration came last.
        least, last = min((value, place) for place, value in durations.items())
        comm.n_matched += 1
        comm.n_recent += 1
        comm.transfer_us += least
        for place, value in durations.items():
            member = comm.members[place]
            member.n_matched += 1
            member.wait_us += value - least
        lateness = median([value for place, value in durations.items() if place != last]) - least
        if lateness > self.error_us:
            member = comm.members[last]
            member.n_late += 1
            member.lateness_us.append(lateness)
            member.recent.append(lateness)

    # -- the job -------------------------------------------------------------------------------------------------------

    def job(self) -> list[Process]:
        """Return the processes that are connected by communicators, of the job that wrote last."""
        left = dict.fromkeys(self.processes.values())
        jobs = []
        while left:
            part = [next(iter(left))]
            del left[part[0]]
            for process in part:  # grows
                for name in process.comms:
                    for member in self.comms[name].members.values():
                        if member.process in left:
                            del left[member.process]
                            part.append(member.process)
            jobs.append(part)
        return max(jobs, key=lambda part: max(np.nan_to_num(process.dumped_us) for process in part), default=[])

    def snapshot(self) -> list[RankTrace]:
        """Return the latest calls of the job, of each rank."""
        job = self.job()
        return [trace for process in job for trace in read_calls(_documents(list(process.lines)), process.file)]

    # -- intervals -----------------------------------------------------------------------------------------------------

    def end_interval(self) -> None:
        """Begin an interval, in which ranks can be late or lost."""
        for process in self.processes.values():
            if process.has_grown:
                process.gaps_us.append(process.gap_us)
            process.has_grown, process.gap_us = False, 0.0
        for comm in self.comms.values():
            if comm.n_recent >= _FEWEST:  # otherwise, the interval becomes longer
                comm.n_recent = 0
                for member in comm.members.values():
                    member.recent = []


def _was_missed(member: Member, collective: str | None, sequence: int) -> bool:
    """Return whether a call with a smaller number than the last one was not seen, and record that it is now."""
    for gap in reversed(member.gaps):
        name, first, last = gap
        if name == collective and first <= sequence <= last:
            member.gaps.remove(gap)
            parts = ((name, first, sequence - 1), (name, sequence + 1, last))
            member.gaps.extend(part for part in parts if part[1] <= part[2])
            return True
    return False


def late_members(comms: Iterable[Comm]) -> Iterator[tuple[Comm, int, Member]]:
    """Yield the ranks that came last in more than half of the calls of the latest interval, with their positions."""
    for comm in comms:
        for position, member in comm.members.items():
            if comm.n_recent >= _FEWEST and len(member.recent) > MOSTLY * comm.n_recent:
                yield comm, position, member


def silent_processes(job: Sequence[Process], comms: Iterable[Comm], interval_s: float) -> list[Process]:
    """Return the processes that have stopped writing, while others of their communicators go on.

    The others have finished calls that the process has not, or have written for another interval.
    """
    silent: dict[Process, None] = {}
    least = {process: max(_SILENT * interval_s, _SILENT_GAPS * process.usual_gap_s) for process in job}
    for comm in comms:
        latest_s = max(member.process.last_s for member in comm.members.values())
        numbers: dict[str | None, int] = {}
        for member in comm.members.values():
            for name, number in member.sequence.items():
                numbers[name] = max(numbers.get(name, -1), number)
        for member in comm.members.values():
            process = member.process
            ahead = latest_s - process.last_s
            if process in least and ahead >= least[process]:
                lacks = any(number > member.sequence.get(name, -1) for name, number in numbers.items())
                if lacks or ahead >= least[process] + interval_s:
                    silent[process] = None
    return list(silent)


def group_of(comm: Comm) -> ProcessGroup:
    """Return a communicator as a process group. Its ranks are empty until all of them have written."""
    ranks = [comm.members[place].process.rank(place) for place in sorted(comm.members)]
    is_complete = len(ranks) == comm.n_ranks and None not in ranks and len(set(ranks)) == len(ranks)
    return ProcessGroup(
        comm.name, comm.label, tuple(r for r in ranks if r is not None) if is_complete else (), comm.n_ranks
    )


def _documents(lines: list[bytes]) -> list[Any]:
    """Return the objects of complete lines, None for those that are damaged."""
    try:
        # One document of all lines is read in half of the time.
        documents = parse_large_json(b"[" + b",".join(lines) + b"]", file=None, hint="")
        if len(documents) == len(lines):
            return list(documents)
    except ParseError:
        pass
    return [_document(line) for line in lines]


def _document(line: bytes) -> Any:
    try:
        return parse_large_json(line, file=None, hint="")
    except ParseError:
        return None
