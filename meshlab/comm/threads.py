"""The `threads` backend: one thread per rank in one process, numpy memory, no library.

It is a real implementation, and the reference: it checks that all ranks make the same call, it can be interrupted, and
it starts in no time. Its times say nothing about a machine.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

import numpy as np

from meshlab.comm.backend import Backend, Call, Capabilities, Mode, Timings, measure_blocking
from meshlab.comm.catalog import CATALOG, DTYPES, OPS
from meshlab.errors import CommunicatorError

__all__ = ["ThreadBackend", "ThreadWorld"]


class ThreadWorld:
    """What the ranks of one group share: a place for each rank's call, and a barrier.

    Parameters
    ----------
    size : int
        How many ranks.
    parent : ThreadWorld, optional
        The group this one was split from; ending the parent ends it too.

    Examples
    --------
    >>> world = ThreadWorld(1)
    >>> world.backend(0).size
    1
    """

    def __init__(self, size: int, *, parent: ThreadWorld | None = None) -> None:
        self.size = size
        self.slots: list[Any] = [None] * size
        self.parts: list[Any] = [None] * size
        self.children: dict[Any, ThreadWorld] = {}
        self._barrier = threading.Barrier(size)
        self._lock = threading.Lock()
        self._descendants: list[ThreadWorld] = []
        self._parent = parent
        while parent is not None:
            parent._descendants.append(self)
            parent = parent._parent

    def backend(self, rank: int) -> ThreadBackend:
        """The end of the communicator that belongs to `rank`."""
        return ThreadBackend(self, rank)

    def meet(self) -> None:
        """Wait until all ranks are here.

        Raises
        ------
        CommunicatorError
            If the group was ended meanwhile.
        """
        try:
            self._barrier.wait()
        except threading.BrokenBarrierError:
            raise CommunicatorError("the group was ended while this rank waited for the others") from None

    def abort(self) -> None:
        """End the group and all groups split from it; ranks that wait are freed with an error."""
        self._barrier.abort()
        for world in list(self._descendants):
            world._barrier.abort()

    def reset(self) -> None:
        """Make an ended group usable again, once no rank waits in it; groups split from it stay ended."""
        self._barrier.reset()
        self.children.clear()
        self._descendants.clear()

    def child(self, color: int, size: int) -> ThreadWorld:
        """The group of one color; the first rank that asks makes it."""
        with self._lock:
            if color not in self.children:
                self.children[color] = ThreadWorld(size, parent=self)
            return self.children[color]


class ThreadBackend:
    """One rank's end of a `ThreadWorld`; implements `meshlab.comm.backend.Backend`."""

    xp = np

    def __init__(self, world: ThreadWorld, rank: int) -> None:
        self.world = world
        self.rank = rank
        self.size = world.size

    def prepare(self, call: Call) -> _ThreadCall:
        """Bind a checked call to this rank."""
        return _ThreadCall(self, call)

    def split(self, color: int | None, key: int) -> Backend | None:
        """Make one communicator per color."""
        world = self.world
        world.slots[self.rank] = (color, key)
        world.meet()
        wanted = list(world.slots)
        for rank, other in enumerate(wanted):
            if not isinstance(other, tuple):
                raise _disagreement(self.rank, "split", rank, _signature(other))
        backend = None
        if color is not None:
            members = sorted((k, rank) for rank, (c, k) in enumerate(wanted) if c == color)
            position = members.index((key, self.rank))
            backend = world.child(color, len(members)).backend(position)
        world.meet()
        world.children.pop(color, None)
        world.meet()
        return backend

    def capabilities(self) -> Capabilities:
        """Say what can be done: everything in the catalog."""
        return Capabilities(
            backend="threads",
            library=f"numpy {np.__version__}",
            path=str(np.__file__),
            where="threads in this process",
            collectives=tuple(CATALOG),
            dtypes=tuple(DTYPES),
            ops=tuple(OPS),
            modes=("isolated", "pipelined"),
            abort=True,
            facts={"python": sys.version.split()[0]},
        )

    def close(self) -> None:
        """Nothing to give back: the group goes when its ranks forget it."""


class _ThreadCall:
    def __init__(self, backend: ThreadBackend, call: Call) -> None:
        self._world = backend.world
        self._rank = backend.rank
        self._call = call
        self._work = getattr(self, f"_{call.collective.name}")
        self._combine = OPS[call.op].combine if call.op else None

    def __call__(self) -> None:
        world = self._world
        world.slots[self._rank] = self._call
        world.meet()
        self._check_agreement()
        with np.errstate(over="ignore", invalid="ignore"):
            self._work()
        world.meet()

    def measure(self, mode: Mode, calls: int, batches: int) -> Timings:
        return measure_blocking(self, self._world.meet, mode, calls, batches)

    def _check_agreement(self) -> None:
        mine = _signature(self._call)
        for rank, other in enumerate(self._world.slots):
            if _signature(other) != mine:
                raise _disagreement(self._rank, mine, rank, _signature(other))

    def _flat(self, rank: int) -> Any:
        return self._world.slots[rank].send.reshape(-1)

    def _reduced(self, first: int, last: int) -> Any:
        combine = self._combine
        if combine is None:
            raise CommunicatorError(f"{self._call.collective.name} needs a reduce operation")
        total = self._flat(0)[first:last].copy()
        for rank in range(1, self._world.size):
            total = combine(total, self._flat(rank)[first:last])
        return total

    def _all_reduce(self) -> None:
        world, call = self._world, self._call
        bounds = [call.count * rank // world.size for rank in range(world.size + 1)]
        world.parts[self._rank] = self._reduced(bounds[self._rank], bounds[self._rank + 1])
        world.meet()
        out = call.recv.reshape(-1)
        for rank in range(world.size):
            out[bounds[rank] : bounds[rank + 1]] = world.parts[rank]

    def _all_gather(self) -> None:
        count, out = self._call.count, self._call.recv.reshape(-1)
        for rank in range(self._world.size):
            out[rank * count : (rank + 1) * count] = self._flat(rank)

    def _reduce_scatter(self) -> None:
        count = self._call.count
        self._call.recv.reshape(-1)[:] = self._reduced(self._rank * count, (self._rank + 1) * count)

    def _broadcast(self) -> None:
        root = self._call.root
        if root is None:
            raise CommunicatorError("broadcast needs a root")
        if not (self._rank == root and self._call.in_place):
            self._call.recv.reshape(-1)[:] = self._flat(root)

    def _barrier(self) -> None:
        pass


def _signature(call: Call | tuple[int | None, int]) -> str:
    if isinstance(call, tuple):
        return "split"
    details = (("dtype", call.dtype), ("op", call.op), ("root", call.root))
    return f"{call.collective.name} count={call.count}" + "".join(
        f" {name}={value}" for name, value in details if value is not None
    )


def _disagreement(rank: int, mine: str, other: int, theirs: str) -> CommunicatorError:
    return CommunicatorError(
        f"ranks disagree: rank {rank} of the group calls {mine}, rank {other} calls {theirs}; "
        "every rank must make the same call"
    )
