"""Logs of NCCL Inspector, a profiler plugin of NCCL: a JSON object per call of a rank and line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

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

_KINDS = (("coll_perf", "coll"), ("p2p_perf", "p2p"))
"""The objects that describe a call, and the prefix of their fields. Messages exist since NCCL 2.30."""


def is_inspected(document: object) -> bool:
    """Return whether the object of a line is a call that Inspector recorded."""
    return isinstance(document, dict) and "header" in document and any(key in document for key, _ in _KINDS)


def read_calls(documents: Iterable[Any], file: str) -> list[RankTrace]:
    """Return the calls of each rank in a log. A process with several GPUs writes those of several ranks."""
    processes: dict[tuple[str, Any], list[Mapping[str, Any]]] = {}
    for document in documents:
        if is_inspected(document):
            metadata = mapping_or_empty(document.get("metadata"))
            processes.setdefault((str(metadata.get("hostname") or ""), key_of(metadata.get("pid"))), []).append(
                document
            )
    return [
        _rank_trace(file, host, rank, world, calls)
        for (host, _), calls_of_process in processes.items()
        for rank, world, calls in _by_rank(calls_of_process)
    ]


def _by_rank(documents: list[Mapping[str, Any]]) -> list[tuple[int | None, int | None, list[Mapping[str, Any]]]]:
    """Split the calls of a process by its ranks in its largest communicator, which are taken for those of the job."""
    headers = [mapping_or_empty(document["header"]) for document in documents]
    places = {(rank_number(header.get("n_ranks")) or 0, rank_number(header.get("rank"))) for header in headers}
    world = max(n for n, _ in places)
    ranks = sorted(rank for n, rank in places if n == world and rank is not None)
    if len(ranks) < 2:
        return [(ranks[0] if ranks else None, world or None, documents)]
    # Of a process with several GPUs. The rank in a smaller communicator does not show which GPU it is.
    return [
        (rank, world, [item for item, header in zip(documents, headers, strict=True) if header.get("rank") == rank])
        for rank in ranks
    ]


def _rank_trace(
    file: str, host: str, rank: int | None, world: int | None, documents: list[Mapping[str, Any]]
) -> RankTrace:
    rows = CallRows()
    index: dict[str, int] = {}
    groups: list[ProcessGroup] = []
    for document in documents:
        header = mapping_or_empty(document["header"])
        name = str(header.get("id") or "")
        position = rank_number(header.get("rank"))
        if name not in index:
            index[name] = len(groups)
            label = str(header.get("comm_name") or "")
            n = rank_number(header.get("n_ranks"))
            # The communicator of all ranks lists them. The others follow from their ranks' files, see `join_ranks`.
            ranks = tuple(range(n)) if n is not None and n == world and position == rank else ()
            groups.append(ProcessGroup(name, "" if label == "unknown" else label, ranks, n, position=position))
        for key, prefix in _KINDS:
            if isinstance(call := document.get(key), dict):
                _add(rows, index[name], groups[index[name]].size, position, call, prefix, document)
    note = "the log contains durations, and no starts: waits are the differences between the durations of the ranks"
    return RankTrace(
        file, INSPECTOR, rank, world, tuple(groups), rows.columns(), host=host, has_starts=False, notes=(note,)
    )


def _add(
    rows: CallRows,
    group: int,
    n: int | None,
    rank: int | None,
    call: Mapping[str, Any],
    prefix: str,
    document: Mapping[str, Any],
) -> None:
    collective = collective_name(str(call.get(prefix) or ""))
    facts = COLLECTIVES.get(collective or "")
    size = whole_or_none(call.get(f"{prefix}_msg_size_bytes"))
    # Inspector counts the bytes of one rank's chunk, and multiplies them by the ranks for its bandwidths.
    factor = 1 if facts is None or not facts.has_total_size else n
    time = call.get(f"{prefix}_exec_time_us")
    peer = rank_number(call.get("p2p_peer"))
    peers = (-1, -1)
    if peer is not None and rank is not None and collective in MESSAGES:
        peers = (rank, peer) if collective in SENDS else (peer, rank)
    dumped = whole_or_none(mapping_or_empty(document.get("metadata")).get("dump_timestamp_us"))
    rows.add(
        collective,
        np.nan,
        float(time) if isinstance(time, (int, float)) and 0 < time < 1e15 else np.nan,
        group=group,
        size_bytes=np.nan if facts is None else size_in_bytes(facts.name, size, size, factor, 1),
        sequence=sequence_number(call.get(f"{prefix}_sn")),
        launch_us=float(dumped) if dumped is not None and 0 <= dumped < LATEST_US else np.nan,
        peers=peers,
    )
