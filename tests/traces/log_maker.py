"""Logs of NCCL Inspector of four ranks on dp=2, tp=2, made by hand."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import meshlab as ml

MESH = ml.DeviceMesh("dp=2, tp=2")
SIZE = 1 << 20


def line(rank: int, number: int, duration: float, axis: str = "tp", *, dumped_us: int = 0, job: int = 0) -> str:
    """The call of a rank of the mesh along an axis, or of all ranks."""
    group = tuple(range(4)) if axis == "world" else MESH[axis].of(rank).ranks
    header = {
        "id": f"0x{job}{axis}{group[0]}",
        "comm_name": "unknown" if axis == "world" else f"mesh_{axis}",
        "rank": group.index(rank),
        "n_ranks": len(group),
        "nnodes": 1,
    }
    metadata = {
        "inspector_output_format_version": "v4.0",
        "git_rev": "unknown",
        "rec_mechanism": "nccl_profiler_interface",
        "dump_timestamp_us": dumped_us or number + 1,
        "hostname": f"node{rank // 2}",
        "pid": 100 * job + rank,
    }
    call = {
        "coll": "AllReduce",
        "coll_sn": number,
        "coll_msg_size_bytes": SIZE,
        "coll_exec_time_us": duration,
        "coll_timing_source": "kernel_gpu",
        "coll_algobw_gbs": SIZE / duration / 1e3,
        "coll_busbw_gbs": SIZE / duration / 1e3,
    }
    return json.dumps({"header": header, "metadata": metadata, "coll_perf": call})


def lines(rank: int, numbers: Iterable[int], late: int | None = None, **more: int) -> str:
    """The calls of a rank: at first one of all ranks, then along tp and dp, in which `late` comes last by 200 µs."""
    rows = []
    for number in numbers:
        axis = "world" if number == 0 else "dp" if number % 4 == 0 else "tp"
        waits = late not in (None, rank) and axis != "world" and late in MESH[axis].of(rank).ranks
        rows.append(line(rank, number, 60.0 + rank + 200.0 * waits, axis, **more))
    return "".join(f"{row}\n" for row in rows)


def log_of(folder: Path, rank: int) -> Path:
    return folder / f"node{rank // 2}-pid{rank}.log"


def append(folder: Path, numbers: Iterable[int], ranks: Iterable[int] = range(4), late: int | None = None) -> None:
    for rank in ranks:
        with log_of(folder, rank).open("a") as file:
            file.write(lines(rank, numbers, late))
