"""Dumps of PyTorch's flight recorder as JSON: the last calls of a rank, as the host made them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from meshlab.base._documents import mapping_or_empty, objects_in
from meshlab.base._numerals import whole_or_none
from meshlab.traces._rank_trace import (
    FLIGHT_RECORDER,
    LATEST_US,
    CallRows,
    ProcessGroup,
    RankTrace,
    collective_name,
    element_type,
    rank_number,
    sequence_number,
    size_in_bytes,
)

_RANK = re.compile(r"(\d{1,9})(?:\.json)?(?:\.gz)?$")
_PEERS = re.compile(r"\b(send|recv) (\d{1,9})(->|<-)(\d{1,9})")


def is_dump(document: object) -> bool:
    """Return whether a JSON document is a dump."""
    return isinstance(document, dict) and isinstance(document.get("entries"), list) and "pg_config" in document


def read_dump(document: Mapping[str, Any], file: str) -> RankTrace:
    """Return the calls of a dump."""
    groups = _groups(document)
    index = {group.name: number for number, group in enumerate(groups)}
    rows = CallRows()
    for entry in objects_in(document.get("entries")):
        _add(rows, entry, groups, index)
    rank = rank_number(document.get("rank"))
    match = _RANK.search(Path(file).name)
    if rank is None and match is not None:
        rank = int(match[1])
    note = "the dump contains durations, and no starts: waits are the differences between the durations of the ranks"
    world = max((group.n_ranks or 0 for group in groups), default=0) or None
    return RankTrace(
        file, FLIGHT_RECORDER, rank, world, tuple(groups), rows.columns(), zero_ns=0, has_starts=False, notes=(note,)
    )


def _groups(document: Mapping[str, Any]) -> list[ProcessGroup]:
    groups = []
    for key, item in mapping_or_empty(document.get("pg_config")).items():
        facts = mapping_or_empty(item)
        text = facts.get("ranks")
        numbers: list[Any] = text if isinstance(text, list) else []
        if isinstance(text, str) and "..." not in text:
            numbers = re.findall(r"\d{1,9}", text)
        ranks = tuple(number for number in map(rank_number, numbers) if number is not None)
        groups.append(ProcessGroup(str(facts.get("name", key)), str(facts.get("desc") or ""), ranks))
    return groups


def _add(rows: CallRows, entry: Mapping[str, Any], groups: list[ProcessGroup], index: dict[str, int]) -> None:
    names = entry.get("process_group")
    name, description = (str(names[0]), str(names[-1])) if isinstance(names, list) and names else ("", "")
    if name and name not in index:
        index[name] = len(groups)
        groups.append(ProcessGroup(name, description))
    group = index.get(name, -1)
    title = str(entry.get("profiling_name") or "")
    collective = collective_name(title.rpartition(":")[2].split(" ")[0])
    n = groups[group].n_ranks if group >= 0 else None
    dtype, itemsize = _first_type(entry)
    inputs, outputs = (_elements(entry.get(f"{side}_sizes")) for side in ("input", "output"))
    created, duration = entry.get("time_created_ns"), entry.get("duration_ms")
    is_message = bool(entry.get("is_p2p"))
    rows.add(
        collective,
        np.nan,
        float(duration) * 1e3 if isinstance(duration, (int, float)) and 0 < duration < 1e12 else np.nan,
        group=group,
        dtype=dtype,
        size_bytes=size_in_bytes(collective, inputs, outputs, itemsize, n),
        sequence=sequence_number(entry.get("p2p_seq_id" if is_message else "collective_seq_id")),
        launch_us=created / 1e3 if isinstance(created, (int, float)) and 0 <= created < LATEST_US * 1e3 else np.nan,
        peers=_peers(title, groups[group].ranks if group >= 0 else ()),
    )


def _first_type(entry: Mapping[str, Any]) -> tuple[str | None, int | None]:
    types = entry.get("input_dtypes") or entry.get("output_dtypes")
    return element_type(types[0]) if isinstance(types, list) and types else (None, None)


def _elements(sizes: object) -> int | None:
    """Return the number of elements of all tensors of a call."""
    if not isinstance(sizes, list) or not sizes:
        return None
    count = 0
    for shape in sizes:
        numbers = [whole_or_none(size) for size in shape] if isinstance(shape, list) else [None]
        product = 1
        for number in numbers:
            if number is None:
                return None
            product *= number
        count += product
    return count


def _peers(title: str, ranks: tuple[int, ...]) -> tuple[int, int]:
    match = _PEERS.search(title)
    if match is None:
        return -1, -1
    first, second = int(match[2]), int(match[4])
    source, destination = (first, second) if match[3] == "->" else (second, first)
    if max(source, destination) < len(ranks):
        return ranks[source], ranks[destination]
    return -1, -1
