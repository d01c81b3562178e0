"""The `threads` backend: one thread per rank in one process, numpy memory, no library.

It is a complete implementation and the reference for the others. It checks that all ranks issue the same call, detects
deadlocks, can be interrupted, and starts immediately. Its times do not characterise the machine.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from meshlab.base._backends import BACKENDS
from meshlab.base._errors import CommunicatorError
from meshlab.comm._agreement import check_counts, mismatch_error, signature
from meshlab.comm._backend import BARRIER, Backend, BlockingBackend, BlockingCalls, Call, Capabilities
from meshlab.comm._catalog import NATIVE
from meshlab.comm._elements import DTYPES, OPS, Array, carrier, divide, flat_elements


def execute(calls: Sequence[Call]) -> None:
    """Execute one collective for all ranks. Their calls must match."""
    name = calls[0].collective.name
    if name == "barrier":
        return
    with np.errstate(all="ignore"):
        # All results are computed before any is written, because an in-place output is an input of the other results.
        for call, result in zip(calls, _RESULTS[name](calls), strict=True):
            if call.recv is not None:
                flat_elements(call.recv, call.dtype)[...] = result


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


def _scatter(calls: Sequence[Call]) -> list[Array]:
    root = calls[calls[0].root or 0]
    return _chunks(flat_elements(root.send, root.dtype).copy(), [call.count for call in calls])


def _exchange(calls: Sequence[Call], counts: Sequence[Sequence[int]]) -> list[Array]:
    chunks = [_chunks(data, sizes) for data, sizes in zip(_inputs(calls), counts, strict=True)]
    return [np.concatenate([of_sender[rank] for of_sender in chunks]) for rank in range(len(calls))]


def _chunks(data: Array, counts: Sequence[int]) -> list[Array]:
    return np.split(data, np.cumsum(counts)[:-1])


_RESULTS: dict[str, Callable[[Sequence[Call]], list[Array]]] = {
    "all_reduce": lambda calls: [_reduced(calls)] * len(calls),
    "all_gather": lambda calls: [np.concatenate(_inputs(calls))] * len(calls),
    "reduce_scatter": lambda calls: _chunks(_reduced(calls), [call.count for call in calls]),
    "all_to_all": lambda calls: _exchange(calls, [[call.count] * len(calls) for call in calls]),
    "all_to_all_v": lambda calls: _exchange(calls, [call.send_counts or () for call in calls]),
    "broadcast": lambda calls: [_inputs(calls)[calls[0].root or 0].copy()] * len(calls),
    # Ranks without an output discard the result.
    "reduce": lambda calls: [_reduced(calls)] * len(calls),
    "gather": lambda calls: [np.concatenate(_inputs(calls))] * len(calls),
    "scatter": _scatter,
}


class _PendingOp:
    """An operation that a rank waits for: a collective or a message."""

    def __init__(self) -> None:
        self.is_done = False
        self.error = ""

    def finish(self, error: str = "") -> None:
        self.is_done = True
        self.error = self.error or error


class _PendingCollective(_PendingOp):
    """A collective, with one entry per rank that has entered it: a call, or color and key for a split."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: dict[int, Call | tuple[int | None, int]] = {}
        self.first: tuple[int, str] | None = None  # the rank that entered first, and the signature of its calls
        self.children: dict[int | None, ThreadWorld] = {}


class _PendingMessage(_PendingOp):
    """One side of a message: a send or a receive."""

    def __init__(self, rank: int, peer: int, call: Call, sends: bool) -> None:
        super().__init__()
        self.rank, self.peer, self.call, self.sends = rank, peer, call, sends
        self.endpoints = (rank, peer) if sends else (peer, rank)
        self.copy: Array | None = None  # the data of a send that has returned before it was received

    def __str__(self) -> str:
        action = f"sends to rank {self.peer}" if self.sends else f"receives from rank {self.peer}"
        tag = f" tag={self.call.tag}" if self.call.tag else ""
        return f"rank {self.rank} {action} (count={self.call.count} dtype={self.call.dtype}{tag})"

    def keep(self) -> None:
        """Copy the data of a send, and let its rank continue."""
        if not self.is_done:
            self.copy = flat_elements(self.call.send, self.call.dtype).copy()
            self.finish()


class ThreadWorld:
    """The shared state of the ranks of a group. The last rank to enter a collective executes it for all.

    Aborting the `parent`, the group from which this one was split, also aborts this group.
    """

    def __init__(self, size: int, *, parent: ThreadWorld | None = None) -> None:
        self.size = size
        self._changed = threading.Condition()
        self._parent = parent
        # Weak references, so that a group is freed when its ranks drop it. All groups of a family share a lock for
        # them, because any thread may create or abort a group at any time. It is separate from the lock of the group,
        # which an aborting thread takes for one group after the other.
        self._descendants: weakref.WeakSet[ThreadWorld] = weakref.WeakSet()
        self._family: threading.Lock = threading.Lock() if parent is None else parent._family
        self._clear()
        with self._family:
            while parent is not None:
                parent._descendants.add(self)
                parent = parent._parent

    def _clear(self) -> None:
        self._is_aborted = False
        self._collectives: dict[int, _PendingCollective] = {}
        self._n_entered = [0] * self.size
        # By sender and receiver, and then by tag.
        self._messages: dict[tuple[int, int], dict[int, deque[_PendingMessage]]] = {}
        self._waiting: dict[int, list[_PendingOp]] = {}

    def backend(self, rank: int) -> ThreadBackend:
        """Return the endpoint of `rank`."""
        return ThreadBackend(self, rank)

    def run(self, rank: int, calls: Sequence[Call]) -> None:
        """Issue the calls of one rank together, and wait until they are done. Raise if ranks disagree or deadlock."""
        with self._changed:
            self._check_alive()
            # All calls of a batch are posted before the rank waits for any of them, so their order cannot deadlock.
            pending: list[_PendingOp] = []
            # All calls of a batch are compared, as with MPI. Otherwise a rank whose batch lacks the last call would
            # return, and the others would wait for it.
            text = signature(calls)
            for call in calls:
                if call.dest is not None:
                    pending.append(self._post(_PendingMessage(rank, call.dest, call, True)))
                if call.source is not None:
                    pending.append(self._post(_PendingMessage(rank, call.source, call, False)))
                if not call.collective.peers:
                    pending.append(self._enter(rank, call, text))
            self._wait(rank, pending)

    def split(self, rank: int, color: int | None, key: int) -> ThreadBackend | None:
        """Create one group per color."""
        with self._changed:
            self._check_alive()
            collective = self._enter(rank, (color, key), signature([]))
            self._wait(rank, [collective])
            if color is None:
                return None
            members = sorted(
                (entry[1], other)
                for other, entry in collective.entries.items()
                if isinstance(entry, tuple) and entry[0] == color
            )
            return collective.children[color].backend(members.index((key, rank)))

    def abort(self) -> None:
        """Abort the group and all groups split from it. Ranks that wait are released with an error."""
        with self._family:
            worlds = [self, *self._descendants]
        for world in worlds:
            with world._changed:
                world._is_aborted = True
                world._changed.notify_all()

    def reset(self) -> None:
        """Make an aborted group usable again when no rank waits in it. Groups split from it stay aborted."""
        with self._changed:
            self._clear()
            with self._family:
                self._descendants.clear()

    # -- internals; the caller holds the lock --------------------------------------------------------------------------

    def _check_alive(self) -> None:
        if self._is_aborted:
            raise CommunicatorError("the group was aborted while this rank waited for the others")

    def _enter(self, rank: int, entry: Call | tuple[int | None, int], text: str) -> _PendingCollective:
        # The n-th collective of a rank is matched with the n-th of every other rank, even if the calls differ. So a
        # mismatch is an error as soon as the second rank enters, not a deadlock.
        number = self._n_entered[rank]
        self._n_entered[rank] += 1
        collective = self._collectives.setdefault(number, _PendingCollective())
        if collective.first is None:
            collective.first = rank, text
        # One comparison is enough: earlier entries already match each other, or the collective carries an error.
        elif collective.first[1] != text:
            collective.finish(str(mismatch_error(rank, text, *collective.first)))
        collective.entries[rank] = entry
        if len(collective.entries) == self.size:
            del self._collectives[number]
            if not collective.is_done:
                self._execute(collective)
        if collective.is_done:
            self._changed.notify_all()
        return collective

    def _execute(self, collective: _PendingCollective) -> None:
        calls = [entry for _, entry in sorted(collective.entries.items()) if isinstance(entry, Call)]
        if not calls:
            colors = [entry[0] for entry in collective.entries.values() if not isinstance(entry, Call)]
            collective.children = {
                color: ThreadWorld(colors.count(color), parent=self) for color in set(colors) if color is not None
            }
            collective.finish()
            return
        try:
            check_counts([call.send_counts or () for call in calls], [call.recv_counts or () for call in calls])
        except CommunicatorError as error:
            collective.finish(str(error))
            return
        try:
            execute(calls)
        except BaseException as error:  # even an interrupt must release the ranks that wait
            collective.finish(f"the last rank to enter failed with {type(error).__name__}: {error}")
            self._changed.notify_all()
            raise
        collective.finish()

    def _post(self, message: _PendingMessage) -> _PendingMessage:
        # A queue holds only sends or only receives, because posting the other side removes the oldest.
        queues = self._messages.setdefault(message.endpoints, {})
        queue = queues.setdefault(message.call.tag, deque())
        if not queue or queue[0].sends == message.sends:
            queue.append(message)
            self._keep_overtaken(queues)
            return message
        other = queue.popleft()
        if not queue:  # a program may use every tag only once
            del queues[message.call.tag]
        sent, received = (message, other) if message.sends else (other, message)
        if (sent.call.count, sent.call.dtype) != (received.call.count, received.call.dtype):
            for side in (sent, received):
                side.finish(f"ranks disagree: {sent}, but {received}; pass the same count and dtype on both")
        else:
            target = flat_elements(received.call.recv, received.call.dtype)
            target[...] = flat_elements(sent.call.send, sent.call.dtype) if sent.copy is None else sent.copy
            for side in (sent, received):
                side.finish()
        self._changed.notify_all()
        return message

    def _keep_overtaken(self, queues: dict[int, deque[_PendingMessage]]) -> None:
        """Keep the sends that a receive with a tag overtakes, so that the sender reaches the one that it waits for."""
        if any(tag and queue and not queue[0].sends for tag, queue in queues.items()):
            for queue in queues.values():
                for message in queue:
                    if message.sends:
                        message.keep()
            self._changed.notify_all()

    def _wait(self, rank: int, pending: Sequence[_PendingOp]) -> None:
        self._waiting[rank] = [op for op in pending if not op.is_done]
        try:
            # One failed call fails the batch: the others may never be matched.
            while (unfinished := [op for op in pending if not op.is_done]) and not any(op.error for op in pending):
                self._waiting[rank] = unfinished
                self._raise_on_deadlock(rank)
                if not all(op.is_done for op in unfinished):
                    self._changed.wait()
                    self._check_alive()
        finally:
            # On an interrupt or an abort, withdraw unfinished operations: a later call must not match them, and ranks
            # that wait for them must be released.
            del self._waiting[rank]
            for op in pending:
                if not op.is_done:
                    self._withdraw(op, f"rank {rank} of the group left before all ranks had entered")
        for op in pending:
            if op.error:
                raise CommunicatorError(op.error)

    def _withdraw(self, op: _PendingOp, reason: str) -> None:
        if isinstance(op, _PendingMessage):
            queues = self._messages[op.endpoints]
            queues[op.call.tag].remove(op)
            if not queues[op.call.tag]:
                del queues[op.call.tag]
        op.finish(reason)
        self._changed.notify_all()

    def _raise_on_deadlock(self, rank: int) -> None:
        """Fail the pending operations of all ranks that wait for each other in a cycle."""
        # Deadlock detection: depth-first search of the wait-for graph, run by every rank before it blocks, so the rank
        # that closes a cycle finds it. Collectives alone cannot form one: the rank that entered the fewest of them
        # never waits.
        if not any(queue for queues in self._messages.values() for queue in queues.values()):
            return
        path: list[int] = []
        seen: set[int] = set()

        def finds_cycle(at: int) -> bool:
            if at in path:
                del path[: path.index(at)]  # ranks that lead into the cycle may still be released by its error
                return True
            if at in seen:
                return False
            seen.add(at)
            path.append(at)
            if any(finds_cycle(other) for other in self._waits_for(at)):
                return True
            path.pop()
            return False

        if finds_cycle(rank):
            text = ", ".join(self._describe_wait(member) for member in sorted(path))
            reason = f"deadlock: {text}; post both sides together with send_recv() or batch()"
            for member in path:
                for op in self._waiting[member]:
                    if not op.is_done:
                        self._withdraw(op, reason)

    def _waits_for(self, rank: int) -> set[int]:
        ranks: set[int] = set()
        for op in self._waiting.get(rank, []):
            if op.is_done:
                continue
            if isinstance(op, _PendingMessage):
                ranks.add(op.peer)
            elif isinstance(op, _PendingCollective):
                ranks |= set(range(self.size)) - set(op.entries)
        return ranks

    def _describe_wait(self, rank: int) -> str:
        op = next(op for op in self._waiting[rank] if not op.is_done)
        if isinstance(op, _PendingCollective):
            return f"rank {rank} calls {_entry_text(op.entries[rank])}"
        return str(op)


def _entry_text(entry: Call | tuple[int | None, int]) -> str:
    return signature([entry] if isinstance(entry, Call) else [])


class ThreadBackend(BlockingBackend):
    """One rank's endpoint of a `ThreadWorld`. Implements `meshlab.comm._backend.Backend`."""

    def __init__(self, world: ThreadWorld, rank: int) -> None:
        self.world = world
        self.rank = rank
        self.size = world.size

    def prepare(self, call: Call) -> _ThreadCalls:
        return _ThreadCalls(self, (call,))

    def prepare_batch(self, calls: Sequence[Call]) -> _ThreadCalls:
        return _ThreadCalls(self, calls)

    def runner(self, call: Call) -> Callable[[Any, Any], object]:
        kind = call._replace(send=None, recv=None)
        return lambda send, recv: self.world.run(self.rank, (kind._replace(send=send, recv=recv),))

    def comparer(self) -> None:
        """None: the ranks share all calls, so every call is compared when it is matched."""

    def split(self, color: int | None, key: int, *, separate: bool = False) -> Backend | None:
        """Create one communicator per color. All communicators of threads are separate."""
        return self.world.split(self.rank, color, key)

    def capabilities(self) -> Capabilities:
        """Return the capabilities: the complete catalog, without the 8-bit floats, which only NCCL has."""
        return Capabilities(
            backend="threads",
            library=f"numpy {np.__version__}",
            path=str(np.__file__),
            where=BACKENDS["threads"].where,
            collectives=NATIVE,
            dtypes=tuple(name for name, dtype in DTYPES.items() if carrier(dtype) == dtype),
            ops=tuple(OPS),
            modes=("isolated", "pipelined"),
            abort=True,
            facts={"python": sys.version.split()[0], "avg": "the sum, divided"},
            largest_tag=_LARGEST_TAG,
        )

    def close(self) -> None:
        """Do nothing: the group is freed when its ranks drop it."""


_LARGEST_TAG = (1 << 31) - 1  # of a C int, which holds the tags of most libraries


class _ThreadCalls(BlockingCalls):
    def __init__(self, backend: ThreadBackend, calls: Sequence[Call]) -> None:
        self._backend = backend
        self._calls = calls

    def __call__(self) -> None:
        self._backend.world.run(self._backend.rank, self._calls)

    def barrier(self) -> Callable[[], object]:
        return partial(self._backend.world.run, self._backend.rank, (BARRIER,))
