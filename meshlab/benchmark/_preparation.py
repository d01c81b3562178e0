"""The preparations that runs, tunings and turns share: memory, registered buffers, and the ranks that vote."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from meshlab.base._errors import BenchError
from meshlab.base._units import format_size
from meshlab.benchmark.on_ranks._buffers import block_bytes, plan_buffers
from meshlab.comm._elements import find_dtype
from meshlab.engines._engines import Engines
from meshlab.engines._lease import Lease, raise_first_error
from meshlab.engines._memory import free_bytes, usable_bytes, usable_text
from meshlab.engines._rounds import Reply
from meshlab.mesh._axes import WORLD

if TYPE_CHECKING:
    from meshlab.mesh._groups import Groups
    from meshlab.mesh._mesh import DeviceMesh
    from meshlab.plans._plan import Plan
    from meshlab.plans._steps import Step


def check_engines(engines: object) -> None:
    """Raise if an argument is not the engines, for example because the mesh was passed first."""
    if not isinstance(engines, Engines):
        raise BenchError(f"engines must be Engines, not {type(engines).__name__}", hint="start some with ml.launch()")


def free_memory(lease: Lease, task: str) -> list[tuple[bool, int]]:
    """Return the results of `free_bytes` of all ranks. `task` is for the error of a rank."""
    replies = lease.round(free_bytes).run()
    raise_first_error(replies, task, lease.engines.ranks)
    return [reply.value for reply in replies]


def usable_memory(lease: Lease, task: str) -> int:
    """Return the memory that every rank may use for its buffers, in bytes. `task` is for the error of a rank."""
    return int(usable_bytes(free_memory(lease, task), [info.host for info in lease.engines.ranks]).min())


def has_matrix(plan: Plan) -> bool:
    """Return True if a traffic of the plan is a matrix of bytes, which has only one size."""
    return any(traffic is not None and not traffic.is_pattern for traffic in plan.traffic)


def check_matrices(plan: Plan, mesh: DeviceMesh, free: Sequence[tuple[bool, int]], hosts: Sequence[str]) -> None:
    """Raise if a matrix of bytes exceeds the memory. It has only one size, so skipping it would measure nothing."""
    usable = usable_bytes(free, hosts)
    for step in plan.steps(mesh):
        counts = step.chunk_counts
        if step.matrix is None or step.matrix.is_pattern or counts is None:
            continue
        groups = mesh[step.axis].array
        group = groups[usable[groups].min(axis=1).argmin()]
        rank = int(group[usable[group].argmin()])
        if step.buffer_bytes <= usable[rank]:
            continue
        sums = counts.sum(axis=1), counts.sum(axis=0)
        sender, receiver = (int(group[part.argmax()]) for part in sums)
        sent, received = (format_size(int(part.max()) * find_dtype(str(step.dtype)).itemsize) for part in sums)
        raise BenchError(
            f"traffic {step.traffic!r} needs {format_size(step.buffer_bytes)} of buffers on every rank, because rank "
            f"{sender} sends {sent} and {'' if receiver == sender else f'rank {receiver} '}receives {received}, but "
            f"{usable_text(free, hosts, rank)}",
            hint="divide the matrix, or measure its pattern() at smaller sizes",
        )


def plan_registered(lease: Lease, sets: Iterable[Iterable[Step]], memory_bytes: int) -> list[Reply]:
    """Send the ranks the sizes of their registered buffers, if there are any, and return their replies.

    The steps of a set have buffers at the same time.
    """
    largest: Counter[str] = Counter()
    for steps in sets:
        needed: Counter[str] = Counter()
        for step in steps:
            if step.buffers not in (None, "plain"):
                needed[step.buffers] += block_bytes(step)
        largest |= needed
    return lease.round(plan_buffers, arguments=(dict(largest), memory_bytes)).run() if largest else []


def voting_ranks(*sets: Groups) -> tuple[str, tuple[npt.NDArray[np.int32], ...]]:
    """Return a group set of all ranks of several sets, and the groups of each set as ranks of its only group."""
    # Several groups stop at the same batch, so they vote over the world, which is possible because every rank is in
    # one of them. A single custom group may not contain all ranks: the others would be missing in such a vote.
    if any(len(groups) > 1 for groups in sets):
        return WORLD, tuple(groups.array for groups in sets)
    first = sets[0].array[0]
    order = np.argsort(first, kind="stable")
    return sets[0].name, tuple(
        order[np.searchsorted(first, groups.array, sorter=order)].astype(np.int32) for groups in sets
    )
