"""The `threads` backend: one thread per rank in one process, numpy memory, no library.

It is a real implementation, and the reference: it checks that all ranks make the same call, it tells ranks that wait
for each other, it can be interrupted, and it starts in no time. Its times say nothing about a machine.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt

from meshlab.comm.backend import Backend, Call, Capabilities, Mode, Timings, measure_blocking
from meshlab.comm.catalog import CATALOG
from meshlab.comm.elements import DTYPES, OPS, Array, carrier, divide, flat_elements
from meshlab.comm.validate import disagreement, signature
from meshlab.errors import CommunicatorError

__all__ = ["ThreadBackend", "ThreadWorld", "carry_out", "copy_message", "unequal_parts"]


def carry_out(calls: Sequence[Call]) -> None:
    """Do one collective for all ranks; they agree on it.

    Examples
    --------
    >>> from meshlab.comm.catalog import CATALOG
    >>> inputs, outputs = [np.array([1.0, 2.0]), np.array([3.0, 4.0])], [np.empty(2), np.empty(2)]
    >>> carry_out(
    ...     [
    ...         Call(CATALOG["all_reduce"], send, recv, 2, send.dtype, "max", None, False)
    ...         for send, recv in zip(inputs, outputs)
    ...     ]
    ... )
    >>> outputs
    [array([3., 4.]), array([3., 4.])]
    """
    name = calls[0].collective.name
    if name == "barrier":
        return
    with np.errstate(all="ignore"):
        for call, result in zip(calls, _RESULTS[name](calls), strict=True):
            if call.recv is not None:
                flat_elements(call.recv, call.dtype)[...] = result


def copy_message(sender: Call, receiver: Call) -> None:
    """Give one rank what another one sends."""
    flat_elements(receiver.recv, receiver.dtype)[...] = flat_elements(sender.send, sender.dtype)


def unequal_parts(calls: Sequence[Call]) -> str:
    """Say which two ranks of an all_to_all_v expect different sizes; empty when none do."""
    for rank, call in enumerate(calls):
        for other, count in enumerate(call.send_counts or ()):
            expected = (calls[other].recv_counts or ())[rank]
            if count != expected:
                return f"rank {rank} of the group sends {count} elements to rank {other}, which expects {expected}"
    return ""


def _inputs(calls: Sequence[Call]) -> list[Array]:
    return [flat_elements(call.send, call.dtype) for call in calls]


def _reduced(calls: Sequence[Call]) -> Array:
    total, combine = np.empty(0), OPS[calls[0].op or "sum"].combine
    for rank, (call, data) in enumerate(zip(calls, _inputs(calls), strict=True)):
        term = data if call.scalar is None else data * call.scalar
        total = combine(total, term) if rank else term.copy()
    if calls[0].op == "avg":
        divide(total, len(calls))
    return total


def _all_reduce(calls: Sequence[Call]) -> list[Array]:
    return [_reduced(calls)] * len(calls)


def _all_gather(calls: Sequence[Call]) -> list[Array]:
    return [np.concatenate(_inputs(calls))] * len(calls)


def _reduce_scatter(calls: Sequence[Call]) -> list[Array]:
    return _parts(_reduced(calls), [call.count for call in calls])


def _all_to_all(calls: Sequence[Call]) -> list[Array]:
    return _exchange(calls, [[call.count] * len(calls) for call in calls])


def _all_to_all_v(calls: Sequence[Call]) -> list[Array]:
    return _exchange(calls, [call.send_counts or () for call in calls])


def _broadcast(calls: Sequence[Call]) -> list[Array]:
    return [_inputs(calls)[calls[0].root or 0].copy()] * len(calls)


def _scatter(calls: Sequence[Call]) -> list[Array]:
    root = calls[calls[0].root or 0]
    return _parts(flat_elements(root.send, root.dtype).copy(), [call.count for call in calls])


def _exchange(calls: Sequence[Call], counts: Sequence[Sequence[int]]) -> list[Array]:
    parts = [_parts(data, cuts) for data, cuts in zip(_inputs(calls), counts, strict=True)]
    return [np.concatenate([mine[rank] for mine in parts]) for rank in range(len(calls))]


def _parts(data: Array, counts: Sequence[int]) -> list[Array]:
    return np.split(data, np.cumsum(counts)[:-1])


_RESULTS = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "all_to_all_v": _all_to_all_v,
    "broadcast": _broadcast,
    "reduce": _all_reduce,  # the ranks without an output get nothing
    "gather": _all_gather,
    "scatter": _scatter,
}


class _Wish:
    """What a rank waits for: a collective of the whole group, or one message."""

    def __init__(self) -> None:
        self.is_done = False
        self.error = ""

    def end(self, error: str = "") -> None:
        self.is_done = True
        self.error = self.error or error


class _Round(_Wish):
    """One collective on its way: who has come, and with which call; a split comes with color and key."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: dict[int, Call | tuple[int | None, int]] = {}
        self.children: dict[int | None, ThreadWorld] = {}


class _Message(_Wish):
    """One side of a message: a send or a receive."""

    def __init__(self, rank: int, peer: int, call: Call, sends: bool) -> None:
        super().__init__()
        self.rank, self.peer, self.call, self.sends = rank, peer, call, sends
        self.ends = (rank, peer) if sends else (peer, rank)

    def __str__(self) -> str:
        does = f"sends to rank {self.peer}" if self.sends else f"receives from rank {self.peer}"
        return f"rank {self.rank} {does} (count={self.call.count} dtype={self.call.dtype})"


class ThreadWorld:
    """What the ranks of one group share. Whoever comes last to a collective, or to a message, carries it out for all.

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
        self._changed = threading.Condition()
        self._parent = parent
        # Weak, so that a group goes when its ranks forget it; under a lock, as groups are made and ended at any time.
        self._descendants: weakref.WeakSet[ThreadWorld] = weakref.WeakSet()
        self._family: threading.Lock = threading.Lock() if parent is None else parent._family
        self._clear()
        with self._family:
            while parent is not None:
                parent._descendants.add(self)
                parent = parent._parent

    def _clear(self) -> None:
        self._is_ended = False
        self._rounds: dict[int, _Round] = {}
        self._entered = [0] * self.size
        self._messages: dict[tuple[int, int], deque[_Message]] = {}
        self._waiting: dict[int, list[_Wish]] = {}

    def backend(self, rank: int) -> ThreadBackend:
        """The end of the communicator that belongs to `rank`."""
        return ThreadBackend(self, rank)

    def make(self, rank: int, calls: Sequence[Call]) -> None:
        """Make one rank's calls, all at once, and wait until they are done.

        Raises
        ------
        CommunicatorError
            If ranks disagree, wait for each other for ever, or the group was ended meanwhile.
        """
        with self._changed:
            self._check_alive()
            wishes: list[_Wish] = []
            for call in calls:
                if call.dest is not None:
                    wishes.append(self._post(_Message(rank, call.dest, call, True)))
                if call.source is not None:
                    wishes.append(self._post(_Message(rank, call.source, call, False)))
                if not call.collective.peers:
                    wishes.append(self._enter(rank, call))
            self._wait(rank, wishes)

    def split(self, rank: int, color: int | None, key: int) -> ThreadBackend | None:
        """Make one group per color."""
        with self._changed:
            self._check_alive()
            round_ = self._enter(rank, (color, key))
            self._wait(rank, [round_])
            if color is None:
                return None
            members = sorted(
                (entry[1], other)
                for other, entry in round_.entries.items()
                if isinstance(entry, tuple) and entry[0] == color
            )
            return round_.children[color].backend(members.index((key, rank)))

    def abort(self) -> None:
        """End the group and all groups split from it; ranks that wait are freed with an error."""
        with self._family:
            worlds = [self, *self._descendants]
        for world in worlds:
            with world._changed:
                world._is_ended = True
                world._changed.notify_all()

    def reset(self) -> None:
        """Make an ended group usable again, once no rank waits in it; groups split from it stay ended."""
        with self._changed:
            self._clear()
            with self._family:
                self._descendants.clear()

    # -- inside; whoever is here holds the lock ------------------------------------------------------------------------

    def _check_alive(self) -> None:
        if self._is_ended:
            raise CommunicatorError("the group was ended while this rank waited for the others")

    def _enter(self, rank: int, entry: Call | tuple[int | None, int]) -> _Round:
        number = self._entered[rank]
        self._entered[rank] += 1
        round_ = self._rounds.setdefault(number, _Round())
        mine = _text(entry)
        for other, theirs in round_.entries.items():
            if _text(theirs) != mine:
                round_.end(str(disagreement(rank, mine, other, _text(theirs))))
            break  # those who came before agree with each other, or have been told
        round_.entries[rank] = entry
        if len(round_.entries) == self.size:
            del self._rounds[number]
            if not round_.is_done:
                self._carry_out(round_)
        if round_.is_done:
            self._changed.notify_all()
        return round_

    def _carry_out(self, round_: _Round) -> None:
        calls = [entry for _, entry in sorted(round_.entries.items()) if isinstance(entry, Call)]
        if not calls:
            colors = [entry[0] for entry in round_.entries.values() if not isinstance(entry, Call)]
            round_.children = {
                color: ThreadWorld(colors.count(color), parent=self) for color in set(colors) if color is not None
            }
            round_.end()
            return
        unequal = unequal_parts(calls)
        if unequal:
            round_.end(f"ranks disagree: {unequal}")
            return
        try:
            carry_out(calls)
        except BaseException as error:
            round_.end(f"the last rank to come failed with {type(error).__name__}: {error}")
            self._changed.notify_all()
            raise
        round_.end()

    def _post(self, message: _Message) -> _Message:
        queue = self._messages.setdefault(message.ends, deque())
        if not queue or queue[0].sends == message.sends:
            queue.append(message)
            return message
        other = queue.popleft()
        sent, received = (message, other) if message.sends else (other, message)
        if (sent.call.count, sent.call.dtype) != (received.call.count, received.call.dtype):
            for side in (sent, received):
                side.end(f"ranks disagree: {sent}, {received}; both must give the same count and dtype")
        else:
            copy_message(sent.call, received.call)
            for side in (sent, received):
                side.end()
        self._changed.notify_all()
        return message

    def _wait(self, rank: int, wishes: Sequence[_Wish]) -> None:
        self._waiting[rank] = [wish for wish in wishes if not wish.is_done]
        try:
            while open_wishes := [wish for wish in wishes if not wish.is_done]:
                self._waiting[rank] = open_wishes
                self._tell_circle(rank)
                if not all(wish.is_done for wish in open_wishes):
                    self._changed.wait()
                    self._check_alive()
        finally:
            del self._waiting[rank]
            for wish in wishes:
                if not wish.is_done:
                    self._give_up(wish, f"rank {rank} of the group left before all ranks had come")
        for wish in wishes:
            if wish.error:
                raise CommunicatorError(wish.error)

    def _give_up(self, wish: _Wish, why: str) -> None:
        if isinstance(wish, _Message):
            self._messages[wish.ends].remove(wish)
        wish.end(why)
        self._changed.notify_all()

    def _tell_circle(self, rank: int) -> None:
        """Free ranks that wait for each other in a circle, with an error; only messages can make one."""
        if not any(self._messages.values()):
            return
        path: list[int] = []
        seen: set[int] = set()

        def finds_circle(at: int) -> bool:
            if at in path:
                del path[: path.index(at)]
                return True
            if at in seen:
                return False
            seen.add(at)
            path.append(at)
            if any(finds_circle(other) for other in self._awaited(at)):
                return True
            path.pop()
            return False

        if finds_circle(rank):
            text = ", ".join(self._waits_text(member) for member in sorted(path))
            why = f"ranks wait for each other: {text}; start both sides at once with send_recv() or batch()"
            for member in path:
                for wish in self._waiting[member]:
                    if not wish.is_done:
                        self._give_up(wish, why)

    def _awaited(self, rank: int) -> set[int]:
        awaited: set[int] = set()
        for wish in self._waiting.get(rank, []):
            if wish.is_done:
                continue
            if isinstance(wish, _Message):
                awaited.add(wish.peer)
            elif isinstance(wish, _Round):
                awaited |= set(range(self.size)) - set(wish.entries)
        return awaited

    def _waits_text(self, rank: int) -> str:
        wish = next(wish for wish in self._waiting[rank] if not wish.is_done)
        if isinstance(wish, _Round):
            return f"rank {rank} calls {_text(wish.entries[rank])}"
        return str(wish)


def _text(entry: Call | tuple[int | None, int]) -> str:
    return signature([entry] if isinstance(entry, Call) else [])


class ThreadBackend:
    """One rank's end of a `ThreadWorld`; implements `meshlab.comm.backend.Backend`."""

    xp = np
    device = None

    def __init__(self, world: ThreadWorld, rank: int) -> None:
        self.world = world
        self.rank = rank
        self.size = world.size

    def empty(self, shape: int | tuple[int, ...], dtype: Any) -> npt.NDArray[Any]:
        """Make an array with numpy."""
        return np.empty(shape, dtype)

    def prepare(self, call: Call) -> _ThreadCalls:
        """Bind a checked call to this rank."""
        return _ThreadCalls(self, (call,))

    def prepare_batch(self, calls: Sequence[Call]) -> _ThreadCalls:
        """Bind several checked calls to this rank."""
        return _ThreadCalls(self, calls)

    def measure(
        self, work: Callable[[], object], barrier: Callable[[], object], mode: Mode, calls: int, batches: int
    ) -> Timings:
        """Time calls on the host's clock."""
        return measure_blocking(work, barrier, mode, calls, batches)

    def local(self) -> AbstractContextManager[Any]:
        """Array operations are done when they return."""
        return nullcontext()

    def split(self, color: int | None, key: int) -> Backend | None:
        """Make one communicator per color."""
        return self.world.split(self.rank, color, key)

    def capabilities(self) -> Capabilities:
        """Say what can be done: everything in the catalog, but for the 8-bit floats, which are NCCL's."""
        return Capabilities(
            backend="threads",
            library=f"numpy {np.__version__}",
            path=str(np.__file__),
            where="threads in this process",
            collectives=tuple(CATALOG),
            dtypes=tuple(name for name, dtype in DTYPES.items() if carrier(dtype) == dtype),
            ops=tuple(OPS),
            modes=("isolated", "pipelined"),
            abort=True,
            facts={"python": sys.version.split()[0], "avg": "the sum, divided"},
        )

    def close(self) -> None:
        """Nothing to give back: the group goes when its ranks forget it."""


_BARRIER = Call(CATALOG["barrier"], None, None, 0, None, None, None, False)


class _ThreadCalls:
    def __init__(self, backend: ThreadBackend, calls: Sequence[Call]) -> None:
        self._backend = backend
        self._calls = calls

    def __call__(self) -> None:
        self._backend.world.make(self._backend.rank, self._calls)

    def measure(self, mode: Mode, calls: int, batches: int) -> Timings:
        world, rank = self._backend.world, self._backend.rank
        return measure_blocking(self, lambda: world.make(rank, (_BARRIER,)), mode, calls, batches)
