"""The preparations that runs, tunings and turns share: memory, registered buffers, and the ranks that vote."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from meshlab.benchmark.on_ranks._buffers import block_bytes, plan_buffers
from meshlab.engines._lease import Lease, raise_first_error
from meshlab.engines._memory import free_bytes, usable_bytes
from meshlab.engines._rounds import Reply
from meshlab.mesh._axes import WORLD

if TYPE_CHECKING:
    from meshlab.mesh._groups import Groups
    from meshlab.plans._steps import Step


def usable_memory(lease: Lease, task: str) -> int:
    """Return the memory that every rank may use for its buffers, in bytes. `task` is for the error of a rank."""
    replies = lease.round(free_bytes).run()
    raise_first_error(replies, task, lease.engines.ranks)
    return int(usable_bytes([reply.value for reply in replies], [info.host for info in lease.engines.ranks]).min())


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
