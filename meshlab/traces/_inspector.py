"""Logs of NCCL Inspector, a profiler plugin of NCCL: a JSON object per call of a rank and line."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from meshlab.base._collectives import COLLECTIVES
from meshlab.base._documents import mapping_or_empty
from meshlab.base._numerals import whole_or_none
from meshlab.traces._rank_trace import (
    INSPECTOR,
    LATEST_US,
    MESSAGES,
    SENDS,
    CallRows,
    ProcessGroup,
    RankTrace,
    collective_name,
    key_of,
    rank_number,
    sequence_number,
    size_in_bytes,
)

_KINDS = tuple(
    (f"{prefix}_perf", prefix, f"{prefix}_exec_time_us", f"{prefix}_msg_size_bytes", f"{prefix}_sn")
    for prefix in ("coll", "p2p")
)
"""The objects that describe a call, and their fields. Messages exist since NCCL 2.30."""

_LONGEST_US = 1e15


class LoggedCall(NamedTuple):
    """A call of a rank in a communicator, as a line of a log contains it."""

    host: str
    pid: int | str
    comm: str  # identifier of the communicator
    comm_name: str  # empty if the program gave it none
    position: int | None  # of the rank in the communicator
    n_ranks: int | None  # of the communicator
    collective: str | None
    size_bytes: float  # as nccl-tests counts it, NaN if it is unknown
    duration_us: float
    sequence: int  # of this collective in the communicator, -1 if it is unknown
    dumped_us: float  # since 1970, on the clock of the host
    peers: tuple[int, int]  # positions of the sender and the receiver of a message, -1 for other calls


def is_inspected(document: object) -> bool:
    """Return whether the object of a line is a call that Inspector recorded."""
    return isinstance(document, dict) and "header" in document and any(key in document for key, *_ in _KINDS)


def inspected_calls(document: Any) -> list[LoggedCall]:
    """Return the call of a line, or none if it has another kind of object."""
    if not isinstance(document, dict) or not isinstance(header := document.get("header"), dict):
        return []
    calls = []
    metadata = mapping_or_empty(document.get("metadata"))
    for key, name_key, time_key, size_key, number_key in _KINDS:
        call = document.get(key)
        if not isinstance(call, dict):
            continue
        comm, host, pid, position, n_ranks = _place(
            header.get("id"), header.get("rank"), header.get("n_ranks"), metadata.get("hostname"), metadata.get("pid")
        )
        collective = _collective(str(call.get(name_key) or ""))
        time, name = call.get(time_key), header.get("comm_name")
        dumped = whole_or_none(metadata.get("dump_timestamp_us"))
        peers = (-1, -1)
        if collective in MESSAGES and position is not None:
            peer = rank_number(call.get("p2p_peer"))
            if peer is not None:
                peers = (position, peer) if collective in SENDS else (peer, position)
        calls.append(
            LoggedCall(
                host,
                pid,
                comm,
                "" if name is None or name == "unknown" else str(name),
                position,
                n_ranks,
                collective,
                _size(collective, whole_or_none(call.get(size_key)), n_ranks),
                float(time) if isinstance(time, (int, float)) and 0 < time < _LONGEST_US else np.nan,
                sequence_number(call.get(number_key)),
                float(dumped) if dumped is not None and 0 <= dumped < LATEST_US else np.nan,
                peers,
            )
        )
    return calls


def _place(
    comm: object, rank: object, n_ranks: object, host: object, pid: object
) -> tuple[str, str, int | str, int | None, int | None]:
    """Return the communicator, the host, the process, the position of the rank, and the number of ranks."""
    try:
        return _cached_place(comm, rank, n_ranks, host, pid)
    except TypeError:  # lists or objects
        return _checked_place(comm, rank, n_ranks, host, pid)


def _checked_place(
    comm: object, rank: object, n_ranks: object, host: object, pid: object
) -> tuple[str, str, int | str, int | None, int | None]:
    return str(comm or ""), str(host or ""), key_of(pid), rank_number(rank), rank_number(n_ranks)


# The lines of a log repeat a few names, places and sizes.
_cached_place = lru_cache(maxsize=4096)(_checked_place)
_collective = lru_cache(maxsize=256)(collective_name)


@lru_cache(maxsize=4096)
def _size(collective: str | None, size: int | None, n_ranks: int | None) -> float:
    """Return the size as nccl-tests counts it."""
    # Inspector counts the bytes of one rank's chunk, and multiplies them by the ranks for its bandwidths.
    facts = COLLECTIVES.get(collective or "")
    if facts is None:
        return np.nan
    return size_in_bytes(facts.name, size, size, n_ranks if facts.has_total_size else 1, 1)


def read_calls(documents: Iterable[Any], file: str) -> list[RankTrace]:
    """Return the calls of each rank in a log. A process with several GPUs writes those of several ranks."""
    processes: dict[tuple[str, int | str], list[LoggedCall]] = {}
    for document in documents:
        for call in inspected_calls(document):
            processes.setdefault((call.host, call.pid), []).append(call)
    return [
        rank_trace(file, host, rank, world, calls)
        for (host, _), calls_of_process in processes.items()
        for rank, world, calls in _by_rank(calls_of_process)
    ]


def _by_rank(calls: list[LoggedCall]) -> list[tuple[int | None, int | None, list[LoggedCall]]]:
    """Split the calls of a process by its ranks in its largest communicator, which are taken for those of the job."""
    places = {(call.n_ranks or 0, call.position) for call in calls}
    world = max(n for n, _ in places)
    ranks = sorted(rank for n, rank in places if n == world and rank is not None)
    if len(ranks) < 2:
        return [(ranks[0] if ranks else None, world or None, calls)]
    # Of a process with several GPUs. The rank in a smaller communicator does not show which GPU it is.
    return [(rank, world, [call for call in calls if call.position == rank]) for rank in ranks]


def rank_trace(file: str, host: str, rank: int | None, world: int | None, calls: Iterable[LoggedCall]) -> RankTrace:
    """Return the calls of a rank in columns."""
    rows = CallRows()
    index: dict[str, int] = {}
    groups: list[ProcessGroup] = []
    for call in calls:
        if call.comm not in index:
            index[call.comm] = len(groups)
            n = call.n_ranks
            # The communicator of all ranks lists them. The others follow from their ranks' files, see `join_ranks`.
            ranks = tuple(range(n)) if n is not None and n == world and call.position == rank else ()
            groups.append(ProcessGroup(call.comm, call.comm_name, ranks, n, position=call.position))
        rows.add(
            call.collective,
            np.nan,
            call.duration_us,
            group=index[call.comm],
            size_bytes=call.size_bytes,
            sequence=call.sequence,
            launch_us=call.dumped_us,
            peers=call.peers,
        )
    note = "the log contains durations, and no starts: waits are the differences between the durations of the ranks"
    return RankTrace(
        file, INSPECTOR, rank, world, tuple(groups), rows.columns(), host=host, has_starts=False, notes=(note,)
    )
