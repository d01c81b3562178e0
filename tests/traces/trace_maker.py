"""Traces of PyTorch's profiler, made by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Event = dict[str, Any]


def event(category: str, name: str, start: float, length: float, thread: int = 1, **arguments: Any) -> Event:
    return {"ph": "X", "cat": category, "name": name, "ts": start, "dur": length, "tid": thread, "args": arguments}


def comms(name: str, count: int, group: Mapping[str, Any], outputs: int | None = None) -> dict[str, Any]:
    """The arguments with which newer versions describe a call."""
    ranks = list(group["ranks"])
    return {
        "Collective name": name,
        "In msg nelems": count,
        "Out msg nelems": count if outputs is None else outputs,
        "Group size": len(ranks),
        "dtype": "BFloat16",
        "In split size": "[]",
        "Out split size": "[]",
        "Process Group Name": group["pg_name"],
        "Process Group Description": group["pg_desc"],
        "Process Group Ranks": str(ranks),
    }


def group_of(name: str, description: str, ranks: Sequence[int]) -> dict[str, Any]:
    return {
        "pg_name": name,
        "pg_desc": description,
        "backend_config": "cuda:nccl",
        "pg_size": len(ranks),
        "ranks": list(ranks),
    }


WORLD_OF_TWO = group_of("0", "default_pg", (0, 1))


def kernel_event(
    start: float,
    length: float,
    name: str = "allreduce",
    count: int = 1 << 20,
    group: Mapping[str, Any] = WORLD_OF_TWO,
    outputs: int | None = None,
    **more: Any,
) -> Event:
    arguments = {"stream": 7, "correlation": int(start * 10), **comms(name, count, group, outputs), **more}
    return event("kernel", "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", start, length, 7, **arguments)


def document(
    events: Sequence[Event],
    rank: int | None = 0,
    world: int = 2,
    groups: Sequence[Mapping[str, Any]] = (WORLD_OF_TWO,),
    base: int | None = 10**18,
    **more: Any,
) -> dict[str, Any]:
    header: dict[str, Any] = {"schemaVersion": 1, "traceEvents": list(events), **more}
    if rank is not None:
        header["distributedInfo"] = {
            "backend": "nccl",
            "rank": rank,
            "world_size": world,
            "pg_count": len(groups),
            "pg_config": list(groups),
        }
    if base is not None:
        header["baseTimeNanoseconds"] = base
    return header


def write(folder: Path, *documents: Mapping[str, Any]) -> list[Path]:
    paths = []
    for number, content in enumerate(documents):
        path = folder / f"trace_rank{number}.json"
        path.write_text(json.dumps(content))
        paths.append(path)
    return paths
