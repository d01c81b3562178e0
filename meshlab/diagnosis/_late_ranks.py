"""Comparisons of what the ranks of one process group called: which rank is late, in logs and in dumps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from meshlab.base._collectives import COLLECTIVES
from meshlab.diagnosis._paste import Paste
from meshlab.diagnosis._seen import grouped
from meshlab.diagnosis.formats._flight_recorder import FlightCall, FlightDump, FlightGroup, read_flight_dumps
from meshlab.diagnosis.formats._nccl_lines import number_list
from meshlab.diagnosis.formats._torch_lines import FingerPrint, GroupStatus, TorchLog, WorkTimeout


def rank_list(ranks: Iterable[int]) -> str:
    """Return ranks in words, with runs as ranges."""
    return number_list(ranks, "rank", most_parts=None)


def plain_name(op: str) -> str:
    """Return the plain name of a collective: ALLREDUCE and _ALLGATHER_BASE become all_reduce and all_gather."""
    plain = op.lower().removeprefix("nccl:").strip("_").removesuffix("_base").removesuffix("_barrier")
    return _COLLECTIVES.get(plain.replace("_", ""), plain)


def call_name(call: WorkTimeout | FingerPrint) -> str:
    """Return the plain name of a collective, with its number if it is known."""
    return plain_name(call.op) + ("" if call.seq is None else f" {call.seq}")


_COLLECTIVES = {name.replace("_", ""): name for name in COLLECTIVES}


def _key(line: WorkTimeout | GroupStatus, names: dict[int, int]) -> str | None:
    """Return a name of the group that is the same on all ranks, or None if the line does not contain one."""
    if (group := line.group) is None:
        return None
    # Before PyTorch 2.4, a group was a number that each process counted for itself: PG 1 of two ranks may be two
    # groups. If all of them are at their own global rank, it can only be a group that starts at rank 0.
    return group.name if group.is_shared or names.get(line.rank) == group.rank == line.rank else None


def lines_by_group(log: TorchLog) -> dict[str, tuple[list[WorkTimeout], list[GroupStatus]]]:
    """Return the lines of each process group that several ranks can be compared in."""
    names = {status.rank: status.group.rank for status in log.statuses}
    groups: dict[str, tuple[list[WorkTimeout], list[GroupStatus]]] = {}
    for timeout in log.timeouts:
        if (key := _key(timeout, names)) is not None:
            groups.setdefault(key, ([], []))[0].append(timeout)
    for status in log.statuses:
        if (key := _key(status, names)) is not None:
            groups.setdefault(key, ([], []))[1].append(status)
    return {
        key: (timeouts, statuses)
        for key, (timeouts, statuses) in groups.items()
        # Two global ranks with one rank in the group belong to two groups.
        if len({(status.rank, status.group.rank) for status in statuses})
        == len({status.group.rank for status in statuses})
    }


def late_in_logs(log: TorchLog) -> Iterator[tuple[str, WorkTimeout, list[GroupStatus]]]:
    """Yield the first collective that timed out in each group, with the statuses of ranks that had not enqueued it."""
    for timeouts, statuses in lines_by_group(log).values():
        if not (numbered := [timeout for timeout in timeouts if timeout.seq is not None]):
            continue
        first = min(numbered, key=lambda timeout: timeout.seq or 0)
        stuck = {timeout.rank for timeout in numbered}
        reached: dict[int, GroupStatus] = {}
        for status in statuses:
            if status.rank not in reached or status.enqueued > reached[status.rank].enqueued:
                reached[status.rank] = status
        late = [status for rank, status in reached.items() if rank not in stuck and status.enqueued < (first.seq or 0)]
        if late:
            yield str(first.group), first, late


class GroupCalls:
    """The calls of one process group in the flight recorder dumps by rank, and its collectives by rank and number."""

    def __init__(self, name: str, dumps: _Dumps) -> None:
        self.name = name
        with_group = dumps.with_group[name]
        described: list[FlightGroup] = [dump.groups[name] for dump in with_group]
        members = next((group.ranks for group in described if group.ranks), ())
        self.has_members = bool(members)  # else the group may have ranks without a dump
        self.ranks = members or tuple(sorted(dump.rank for dump in with_group))
        self.desc = str(described[0]) if described else f"PG {name}"
        with_dump = sorted({rank for rank in self.ranks if rank in dumps.position}, key=dumps.position.__getitem__)
        self.dumps = {rank: dumps.by_rank[rank] for rank in with_dump}
        self.all_calls: dict[int, Sequence[FlightCall]] = {
            rank: dumps.calls.get((rank, name), ()) for rank in self.dumps
        }
        self.calls: dict[int, dict[int, FlightCall]] = {
            rank: {call.seq: call for call in calls if not call.is_p2p} for rank, calls in self.all_calls.items()
        }

    def by_number(self) -> dict[int, dict[int, FlightCall]]:
        """Return the collectives by number, in order, and by rank."""
        numbered: dict[int, dict[int, FlightCall]] = {}
        for rank, calls in self.calls.items():
            for seq, call in calls.items():
                numbered.setdefault(seq, {})[rank] = call
        return dict(sorted(numbered.items()))

    def waiting(self) -> dict[int, FlightCall]:
        """Return the first collective of each rank that is not completed."""
        pending = {
            rank: [calls[seq] for seq in sorted(calls) if calls[seq].state != "completed"]
            for rank, calls in self.calls.items()
        }
        return {rank: calls[0] for rank, calls in pending.items() if calls}

    def last(self, rank: int) -> int | None:
        """Return the number of the rank's last collective, None if the dump was cut before it."""
        dump = self.dumps[rank]
        status = dump.groups.get(self.name)
        if not dump.is_complete and (status is None or status.last_enqueued is None):
            return None
        # The recorder notes a call before NCCL enqueues it, and the status is updated after it.
        return max(max(self.calls[rank], default=0), (status.last_enqueued or 0) if status else 0)


class _Dumps:
    """Dumps with an index of their ranks, groups and calls, because a job may have thousands of each."""

    def __init__(self, dumps: Sequence[FlightDump]) -> None:
        self.by_rank = {dump.rank: dump for dump in dumps}
        self.position = {rank: position for position, rank in enumerate(self.by_rank)}
        self.with_group = grouped((name, dump) for dump in dumps for name in dump.groups)
        self.calls = grouped(((rank, call.group), call) for rank, dump in self.by_rank.items() for call in dump.calls)


def calls_by_group(paste: Paste) -> list[GroupCalls]:
    """Return what the dumps in a paste contain about each process group, in the order of the dumps."""
    indexed = _Dumps(paste.once(read_flight_dumps))
    return [GroupCalls(name, indexed) for name in indexed.with_group]


def late_in_dumps(groups: Iterable[GroupCalls]) -> Iterator[tuple[GroupCalls, int, list[int], FlightCall]]:
    """Yield the group, the number and the ranks that did not call it, with the call of a rank that waits."""
    for group in groups:
        if not (waiting := group.waiting()):
            continue
        seq = min(call.seq for call in waiting.values())
        late = [rank for rank in group.dumps if (last := group.last(rank)) is not None and last < seq]
        if late:
            yield group, seq, late, next(call for call in waiting.values() if call.seq == seq)


def stuck_ranks(dumps: Sequence[FlightDump]) -> set[int]:
    """Return the ranks that wait in any call."""
    return {dump.rank for dump in dumps if any(call.state != "completed" for call in dump.calls)}


def late_in_pairs(groups: Iterable[GroupCalls]) -> Iterator[tuple[int, int, FlightCall]]:
    """Yield ranks that did not call the receive or send that another rank waits for: late, waiting, and its call."""
    for group in groups:
        pending = grouped(
            ((call.source, call.destination, call.op), (rank, call))
            for rank, of_rank in group.all_calls.items()
            for call in of_rank
            if call.state != "completed" and call.source is not None and call.destination is not None
        )
        for (source, destination, op), calls in pending.items():
            other = destination if op == "send" else source
            if other >= len(group.ranks) or (source, destination, "recv" if op == "send" else "send") in pending:
                continue
            late = group.ranks[other]
            if late in group.dumps and group.dumps[late].is_complete and late != calls[0][0]:
                yield late, calls[0][0], calls[0][1]


def program_stack(call: FlightCall) -> tuple[str, ...]:
    """Return the functions of the program that made a call, innermost first, without those of PyTorch."""
    return tuple(name for name, file, _ in call.frames if "torch/distributed/" not in file)
