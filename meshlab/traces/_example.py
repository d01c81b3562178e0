"""The example of a trace: four ranks on a mesh of dp=2, tp=2, with times of a model."""

from __future__ import annotations

import numpy as np

from meshlab.base._collectives import usual_collective
from meshlab.mesh._mesh import DeviceMesh
from meshlab.traces._rank_trace import PROFILE, CallRows, ProcessGroup, RankTrace, merged

_MESH = "dp=2, tp=2"
_STEPS, _LAYERS = 2, 4
_TP_US, _DP_US, _COMPUTE_US = 120.0, 900.0, 400.0
_TP_BYTES, _DP_BYTES = 16 << 20, 128 << 20
_LATE_RANK, _LATE_US = 3, 350.0


def example_ranks() -> list[RankTrace]:
    """Return the calls of four ranks. Rank 3 computes for longer than the others."""
    mesh = DeviceMesh(_MESH)
    generator = np.random.default_rng(46)
    rows = [CallRows() for _ in range(mesh.world_size)]
    compute: list[list[tuple[float, float]]] = [[] for _ in rows]
    clock = np.zeros(mesh.world_size)
    for step in range(_STEPS):
        for _ in range(_LAYERS):
            _compute(clock, compute, generator)
            _call(mesh, "tp", clock, rows, step, _TP_BYTES, _TP_US, generator)
        # The gradients are reduced while the next layer computes.
        begin = clock.copy()
        _compute(clock, compute, generator)
        _call(mesh, "dp", begin, rows, step, _DP_BYTES, _DP_US, generator)
        clock[:] = np.maximum(clock, begin)
        _call(mesh, "dp", clock, rows, step, _DP_BYTES // 2, _DP_US / 2, generator)
    groups = [
        ProcessGroup(f"{number}", f"mesh_{group.axes[0]}", group.ranks)
        for number, group in enumerate([*mesh["dp"], *mesh["tp"]])
    ]
    return [
        RankTrace(
            f"example_rank{rank}",
            PROFILE,
            rank,
            mesh.world_size,
            tuple(groups),
            calls.columns(),
            host="example",
            zero_ns=0,
            compute=merged(busy),
        )
        for rank, (calls, busy) in enumerate(zip(rows, compute, strict=True))
    ]


def _compute(clock: np.ndarray, compute: list[list[tuple[float, float]]], generator: np.random.Generator) -> None:
    for rank in range(len(clock)):
        length = _COMPUTE_US * (1 + 0.02 * generator.standard_normal()) + (_LATE_US if rank == _LATE_RANK else 0.0)
        compute[rank].append((float(clock[rank]), float(clock[rank] + length)))
        clock[rank] += length


def _call(
    mesh: DeviceMesh,
    axis: str,
    clock: np.ndarray,
    rows: list[CallRows],
    step: int,
    size: int,
    time_us: float,
    generator: np.random.Generator,
) -> None:
    collective = usual_collective(axis)
    first = 0 if axis == "dp" else len(mesh["dp"])
    for number, group in enumerate(mesh[axis]):
        members = np.array(group.ranks)
        end = clock[members].max() + time_us * (1 + 0.03 * generator.standard_normal())
        for rank in group.ranks:
            own_end = end + 2 * generator.random()
            rows[rank].add(
                collective,
                float(clock[rank]),
                float(own_end - clock[rank]),
                group=first + number,
                kernel=f"ncclDevKernel_{collective}",
                size_bytes=float(size),
                dtype="bfloat16",
                step=step,
                launch_us=float(clock[rank]),
            )
            clock[rank] = own_end
