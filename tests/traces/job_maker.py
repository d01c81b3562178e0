"""Traces of jobs whose calls are known: every rank of a mesh computes and calls, on a virtual clock."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np

import meshlab as ml
from meshlab.traces._joining import join_ranks
from meshlab.traces._rank_trace import PROFILE, CallRows, ProcessGroup, RankTrace, merged


class JobCall(NamedTuple):
    """A call of all groups along an axis, or of some of them, after computation."""

    axis: str
    collective: str = "all_reduce"
    size_bytes: float = 4096.0
    dtype: str | None = "float32"
    compute_us: float | Sequence[float] = 100.0  # of all ranks, or of each
    transfer_us: float = 50.0
    is_async: bool = False  # whether the rank computes on, until its last call
    groups: tuple[int, ...] | None = None  # indices of the groups, all by default
    step: int = 0


def job_trace(
    mesh: ml.DeviceMesh | str, calls: Sequence[JobCall], files: Collection[int] | None = None, **header: Any
) -> ml.Trace:
    """Return the trace of a job of which some ranks have a file."""
    mesh = ml.DeviceMesh(mesh) if isinstance(mesh, str) else mesh
    axes = list(dict.fromkeys(call.axis for call in calls))
    listed = [(axis, group) for axis in axes for group in mesh[axis]]
    groups = tuple(
        ProcessGroup(str(number), f"mesh_{axis}", group.ranks) for number, (axis, group) in enumerate(listed)
    )
    rows = [CallRows() for _ in range(mesh.world_size)]
    compute: list[list[tuple[float, float]]] = [[] for _ in rows]
    clock, free = np.zeros(mesh.world_size), {axis: np.zeros(mesh.world_size) for axis in axes}
    for call in calls:
        for number, (axis, group) in enumerate(listed):
            if axis != call.axis or (call.groups is not None and group.index not in call.groups):
                continue
            members = np.array(group.ranks)
            length = np.broadcast_to(np.asarray(call.compute_us, dtype=float), mesh.world_size)[members]
            for rank, begin, duration in zip(members.tolist(), clock[members], length, strict=True):
                compute[rank].append((float(begin), float(begin + duration)))
            clock[members] += length
            start = np.maximum(clock[members], free[axis][members])
            end = start.max() + call.transfer_us
            for rank, begin in zip(members.tolist(), start, strict=True):
                rows[rank].add(
                    call.collective, float(begin), float(end - begin), group=number, kernel="kernel",
                    size_bytes=call.size_bytes, dtype=call.dtype, step=call.step, launch_us=float(begin),
                )  # fmt: skip
            free[axis][members] = end
            if not call.is_async:
                clock[members] = end
    facts: dict[str, Any] = {"host": "host", "zero_ns": 0} | header
    return ml.Trace(
        join_ranks(
            [
                RankTrace(
                    f"rank{rank}",
                    PROFILE,
                    rank,
                    mesh.world_size,
                    groups,
                    calls.columns(),
                    compute=merged(busy),
                    **facts,
                )
                for rank, (calls, busy) in enumerate(zip(rows, compute, strict=True))
                if files is None or rank in files
            ]
        )
    )
