"""The buffers of a step, in memory that a rank keeps from step to step. Runs on the engines."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from meshlab.comm.catalog import CATALOG
from meshlab.comm.elements import carrier, find_dtype

if TYPE_CHECKING:
    from meshlab.comm.communicator import Communicator
    from meshlab.frames.plan import Step

__all__ = ["StepBuffers", "allocate", "allocate_shared", "release_buffers"]

_ALIGNMENT = 1 << 21  # bytes; the size of a page of GPU memory, at which separately allocated buffers would start


class StepBuffers(NamedTuple):
    """The input and the output of a call, as arrays of one dimension. They may share memory."""

    send: Any
    out: Any


class _Kept(threading.local):
    """The memory of one rank. With the threads backend, every rank is a thread."""

    block: Any = None


_kept = _Kept()


def allocate(parts: Sequence[tuple[Communicator, Step]]) -> list[StepBuffers]:
    """Return uninitialised buffers for the collectives of a step, each in its group.

    The memory is that of the previous step if it is large enough: allocating 1 GiB and touching it for the first time
    takes longer than measuring with it. So the buffers of the previous step must no longer be used.
    """
    return [buffers for (buffers,) in allocate_shared([[part] for part in parts])]


def allocate_shared(sets: Sequence[Sequence[tuple[Communicator, Step]]]) -> list[list[StepBuffers]]:
    """Return uninitialised buffers as `allocate`, where all collectives of a set use the same memory."""
    layouts = [[_layout(comm, step) for comm, step in parts] for parts in sets]
    starts = np.cumsum([0, *(max(map(_n_bytes, found)) for found in layouts)])
    if _kept.block is None or _kept.block.size < starts[-1]:
        # Free the old block first: both may not fit into the memory, and a step is allowed to use nearly all of it.
        _kept.block = None
        _kept.block = sets[0][0][0].empty(int(starts[-1]), np.uint8)
    return [
        [_buffers(comm, step, int(start)) for comm, step in parts]
        for parts, start in zip(sets, starts[:-1], strict=True)
    ]


def _buffers(comm: Communicator, step: Step, start: int) -> StepBuffers:
    """Return the buffers of a step in the memory of this rank, from a position in bytes."""
    arrays = []
    for size in _layout(comm, step):
        arrays.append(_kept.block[start : start + size].view(_dtype(step)))
        start += _aligned(size)
    return _in_place(comm, step, arrays[0]) if step.in_place else StepBuffers(*arrays)


def release_buffers(comm: object = None) -> None:
    """Free the memory that this rank has kept. `comm` is unused: the engines pass it to every function."""
    _kept.block = None


def _layout(comm: Communicator, step: Step) -> tuple[int, ...]:
    """Return the sizes of the separate buffers of a step, in bytes: one if it works in place, else two."""
    itemsize = _dtype(step).itemsize
    n_send, n_out = _n_elements(comm, step)
    return (max(n_send, n_out) * itemsize,) if step.in_place else (n_send * itemsize, n_out * itemsize)


def _in_place(comm: Communicator, step: Step, larger: Any) -> StepBuffers:
    # NCCL's in-place layout: the smaller buffer is this rank's block of the larger one, and equal buffers are the same.
    n_send, n_out = _n_elements(comm, step)
    block = larger[comm.rank * (step.count or 0) :][: step.count]
    return StepBuffers(block if n_send < n_out else larger, block if n_out < n_send else larger)


def _n_elements(comm: Communicator, step: Step) -> tuple[int, int]:
    if step.count is None:
        raise TypeError("a function allocates its own buffers")
    row = CATALOG[step.collective]
    n_send = row.elements("sends", step.count, comm.size)
    # A message is received by a rank that runs the same step.
    n_out = n_send if step.collective == "send" else row.elements("receives", step.count, comm.size)
    return n_send, n_out


def _dtype(step: Step) -> np.dtype[Any]:
    if step.dtype is None:
        raise TypeError("a function allocates its own buffers")
    return carrier(find_dtype(step.dtype))


def _n_bytes(sizes: Sequence[int]) -> int:
    return sum(map(_aligned, sizes))


def _aligned(n_bytes: int) -> int:
    return -(-n_bytes // _ALIGNMENT) * _ALIGNMENT
