"""The buffers of a step, in memory that a rank keeps from step to step. Runs on the engines."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from meshlab.comm._catalog import CATALOG
from meshlab.comm._elements import carrier, find_dtype

if TYPE_CHECKING:
    from meshlab.comm._backend import Buffers
    from meshlab.comm._communicator import Communicator
    from meshlab.plans._steps import Step

_PAGE = 4096

_ALIGNMENT = 1 << 21  # bytes; the size of a page of GPU memory, at which separately allocated buffers would start


class StepBuffers(NamedTuple):
    """The input and the output of a call, as arrays of one dimension. They may share memory."""

    send: Any
    out: Any


def _new_block(comm: Communicator, kind: Buffers, n_bytes: int) -> Any:
    """Return memory of the given size. The array owns its registration."""
    if kind == "symmetric":
        return comm.empty(n_bytes, np.uint8, symmetric=True)
    if kind == "registered":
        block, backend = comm.empty(n_bytes, np.uint8), comm.backend
        backend.register(block, until_deleted=True)  # type: ignore[attr-defined]  # only NCCL, see `check_fit`
        return block
    block = comm.empty(n_bytes + _PAGE, np.uint8)
    # NumPy aligns large arrays to 16 bytes. NCCL's memory starts at a page.
    start = -int(block.ctypes.data) % _PAGE if isinstance(block, np.ndarray) else 0
    return block[start : start + n_bytes]


class _Kept(threading.local):
    """The memory of one rank. With the threads backend, every rank is a thread."""

    def __init__(self) -> None:
        self.blocks: dict[str, Any] = {}  # plain memory by array module, for all communicators
        # A registration belongs to a communicator, and must not keep it alive after the client has closed it.
        self.registered: WeakKeyDictionary[Communicator, dict[Buffers, Any]] = WeakKeyDictionary()
        self.largest: Mapping[Buffers, int] = {}
        self.limit: int | None = None

    def n_bytes(self) -> int:
        """Return the size of all blocks, in bytes."""
        registered = [int(block.size) for blocks in self.registered.values() for block in blocks.values()]
        return sum(registered) + sum(int(block.size) for block in self.blocks.values())

    def free_registered(self) -> None:
        """Free the blocks of all communicators."""
        for comm, blocks in list(self.registered.items()):
            blocks.clear()
            if not comm._is_closed:
                comm.to_host(np.empty(0))  # waits for the GPU, and then frees the memory
        self.registered.clear()


_kept = _Kept()


def plan_buffers(comm: object, largest: Mapping[Buffers, int], limit: int) -> None:
    """Set the sizes of the largest buffers of the following steps and their memory, in bytes, equal on all ranks."""
    # A block of registered memory then has the final size from the beginning. Registering it again for every larger
    # step would take longer than to measure small steps.
    _kept.largest, _kept.limit = dict(largest), limit


def block_bytes(step: Step) -> int:
    """Return the size of a block that suffices for the buffers of a step, in bytes."""
    n_buffers = (1 if step.in_place else 2) * (step.n_aggregated or 1)
    return replace(step, concurrent=None).buffer_bytes + n_buffers * _ALIGNMENT


def allocate(parts: Sequence[tuple[Communicator, Step]]) -> list[StepBuffers]:
    """Return uninitialised buffers for the calls of a step. Collective if they are registered or symmetric."""
    # The memory of the previous step is used again if it is large enough: allocating 1 GiB and touching it for the
    # first time takes longer than measuring with it. So the buffers of the previous step must no longer be used.
    if all(step.buffers == "plain" for _, step in parts):
        return [buffers for (buffers,) in allocate_shared([[part] for part in parts])]
    starts: dict[tuple[int, str], int] = {}
    places = []
    for comm, step in parts:
        key = id(comm), str(step.buffers)
        places.append(starts.get(key, 0))
        starts[key] = places[-1] + _n_bytes(comm, step)
    blocks: dict[tuple[int, str], Any] = {}
    for comm, step in parts:
        key = id(comm), str(step.buffers)
        if key not in blocks:
            blocks[key] = _registered_block(comm, step, starts[key])
    return [
        _buffers(blocks[id(comm), str(step.buffers)], comm, step, start)
        for (comm, step), start in zip(parts, places, strict=True)
    ]


def _registered_block(comm: Communicator, step: Step, n_bytes: int) -> Any:
    """Return memory that is registered with a communicator: the block that it has, or a larger one."""
    kind: Buffers = step.buffers or "plain"
    block = _kept.registered.get(comm, {}).get(kind)
    # The ranks of a group may have measured different steps before, for example in other groups. One that has no block
    # needs the others to register a new one.
    needs_new = block is None or block.size < n_bytes
    if comm.to_host(comm.all_gather(comm.xp.asarray([needs_new], dtype=np.int64))).any():
        size = max(n_bytes, _kept.largest.get(kind, 0))
        block = None
        _kept.registered.get(comm, {}).pop(kind, None)
        if _kept.limit is not None and _kept.n_bytes() + size > _kept.limit:
            # A step may use nearly all of the memory.
            _kept.blocks.clear()
            _kept.free_registered()
        block = _new_block(comm, kind, size)
        _kept.registered.setdefault(comm, {})[kind] = block
    return block


def allocate_shared(sets: Sequence[Sequence[tuple[Communicator, Step]]]) -> list[list[StepBuffers]]:
    """Return uninitialised buffers, where all calls of a set with the same kind of buffers use the same memory.

    The calls of a set have one communicator. Collective if buffers are registered or symmetric.
    """
    largest = [
        max((_n_bytes(comm, step) for comm, step in parts if step.buffers == "plain"), default=0) for parts in sets
    ]
    starts = np.cumsum([0, *largest])
    first = sets[0][0][0] if sets else None
    block = None if first is None else _kept.blocks.get(first.xp.__name__)
    if first is not None and starts[-1] and (block is None or block.size < starts[-1]):
        # Free the old block first: both may not fit into the memory, and a step is allowed to use nearly all of it.
        block = None
        _kept.blocks.clear()
        if _kept.limit is not None and _kept.n_bytes() + starts[-1] > _kept.limit:
            _kept.free_registered()
        _kept.blocks[first.xp.__name__] = block = _new_block(first, "plain", int(starts[-1]))
    shared = []
    for parts, start in zip(sets, starts[:-1], strict=True):
        blocks: dict[str | None, tuple[Any, int]] = {"plain": (block, int(start))}
        for kind in dict.fromkeys(step.buffers for _, step in parts):
            if kind != "plain":
                alike = [(comm, step) for comm, step in parts if step.buffers == kind]
                blocks[kind] = _registered_block(*alike[0], max(_n_bytes(*part) for part in alike)), 0
        shared.append([_buffers(blocks[step.buffers][0], comm, step, blocks[step.buffers][1]) for comm, step in parts])
    return shared


def _buffers(block: Any, comm: Communicator, step: Step, start: int) -> StepBuffers:
    """Return the buffers of a step in a block, from a position in bytes."""
    arrays = []
    for size, largest in zip(_layout(comm, step), _layout(comm, step, of_all=True), strict=True):
        first = start + (step.alignment_bytes or 0)
        arrays.append(block[first : first + size].view(_dtype(step)))
        start += _aligned(largest + (step.alignment_bytes or 0))
    return _in_place(comm, step, arrays[0]) if step.in_place else StepBuffers(*arrays)


def release_buffers(comm: object = None) -> None:
    """Free the memory that this rank has kept. `comm` is unused: the engines pass it to every function."""
    _kept.blocks.clear()
    _kept.free_registered()
    _kept.largest, _kept.limit = {}, None


def _layout(comm: Communicator, step: Step, *, of_all: bool = False) -> tuple[int, ...]:
    """Return the sizes of separate buffers, in bytes: one in place, else two. `of_all` for the largest of all ranks."""
    itemsize = _dtype(step).itemsize
    n_send, n_out = _n_elements(comm, step, of_all=of_all)
    return (max(n_send, n_out) * itemsize,) if step.in_place else (n_send * itemsize, n_out * itemsize)


def _in_place(comm: Communicator, step: Step, larger: Any) -> StepBuffers:
    # NCCL's in-place layout: the smaller buffer is this rank's block of the larger one, and equal buffers are the same.
    n_send, n_out = _n_elements(comm, step)
    block = larger[comm.rank * (step.count or 0) :][: step.count]
    return StepBuffers(block if n_send < n_out else larger, block if n_out < n_send else larger)


def _n_elements(comm: Communicator, step: Step, *, of_all: bool = False) -> tuple[int, int]:
    if step.count is None:
        raise TypeError("a function allocates its own buffers")
    if (counts := step.chunk_counts) is not None:
        # The buffers of all ranks start at the same offsets, as symmetric memory needs.
        sent, received = counts.sum(axis=1), counts.sum(axis=0)
        if of_all:
            return int(sent.max()), int(received.max())
        return int(sent[comm.rank]), int(received[comm.rank])
    row = CATALOG[step.collective]
    n_send = row.elements("sends", step.count, comm.size)
    # A message is received by a rank that runs the same step.
    n_out = n_send if step.collective == "send" else row.elements("receives", step.count, comm.size)
    return n_send, n_out


def _dtype(step: Step) -> np.dtype[Any]:
    if step.dtype is None:
        raise TypeError("a function allocates its own buffers")
    return carrier(find_dtype(step.dtype))


def _n_bytes(comm: Communicator, step: Step) -> int:
    return sum(_aligned(size + (step.alignment_bytes or 0)) for size in _layout(comm, step, of_all=True))


def _aligned(n_bytes: int) -> int:
    return -(-n_bytes // _ALIGNMENT) * _ALIGNMENT
