"""Messages over MPI: the checks of their counts and dtypes, and tags that may be received in any order."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshlab.comm._agreement import message_mismatch
from meshlab.comm._backend import Call
from meshlab.comm._elements import DTYPES, Array

# MPI reports no mismatch of dtypes, so the tag of MPI has the dtype of the message in its lower bits.
_DTYPE_BITS = 4
_CODES = {dtype: code for code, dtype in enumerate(DTYPES.values())}
_DTYPES = list(DTYPES.values())

_SPINS = 200  # polls without giving way to other processes


class MpiMessages:
    """The messages of one communicator."""

    # A receive has to accept every dtype, to report a wrong one, and so it cannot select a tag. Messages without a tag
    # come in the order in which MPI delivers them. Messages with a tag use a second communicator, from which a receive
    # takes all messages of its source until it finds its own. It keeps the others, so their senders continue. It also
    # keeps messages without a tag, because their sender may have to continue before it sends the one with the tag.

    def __init__(self, comm: Any, mpi: Any) -> None:
        self.mpi = mpi
        self.comm = comm
        self.separate = comm.Dup()
        self.queues: dict[tuple[int, int], deque[tuple[Any, Array]]] = {}  # by source and tag: dtype and data

    @staticmethod
    def largest_tag(mpi: Any) -> int:
        """Return the largest tag that the library allows."""
        return int(mpi.COMM_WORLD.Get_attr(mpi.TAG_UB)) >> _DTYPE_BITS

    def sender(self, call: Call, buffer: list[Any]) -> tuple[Any, tuple[Any, ...]]:
        """Return the communicator and the arguments that send a message."""
        comm = self.separate if call.tag else self.comm
        return comm, (buffer, call.dest, call.tag << _DTYPE_BITS | _CODES[call.dtype])  # type: ignore[index]

    def exchange(self, send: tuple[Any, tuple[Any, ...]], receive: Receive) -> None:
        """Send a message and receive another one."""
        comm, arguments = send
        request = comm.Isend(*arguments)
        self.receive_tagged([receive])
        request.Wait()
        receive.check()

    def receive_tagged(self, receives: Sequence[Receive]) -> None:
        """Wait until all messages have arrived. Wrong ones are found by `Receive.check`."""
        pending = [receive for receive in receives if not receive.take_queued()]
        sources = {receive.call.source for receive in pending}
        polls = 0
        while pending:
            for source in sources:
                self._accept(self.separate, source, pending)
                self._accept(self.comm, source, [])
            polls += 1
            if polls > _SPINS:
                os.sched_yield()

    def _accept(self, comm: Any, source: int | None, pending: list[Receive]) -> None:
        """Receive the next message of a source, if there is one, for the receive that it belongs to, or keep it."""
        status = self.mpi.Status()
        message = comm.Improbe(source, self.mpi.ANY_TAG, status)
        if message is None:
            return
        code, n_bytes = status.Get_tag(), status.Get_count(self.mpi.BYTE)
        tag, dtype = code >> _DTYPE_BITS, _DTYPES[code & (1 << _DTYPE_BITS) - 1]
        receive = next((entry for entry in pending if (entry.call.source, entry.call.tag) == (source, tag)), None)
        if receive is not None and receive.fits(dtype, n_bytes):
            message.Recv(receive.buffer)
            pending.remove(receive)
            return
        data = np.empty(n_bytes, np.uint8)
        message.Recv([data, self.mpi.BYTE])
        self.queues.setdefault((source or 0, tag), deque()).append((dtype, data))
        if receive is not None:
            receive.take_queued()
            pending.remove(receive)


class Receive:
    """A receive of one rank, of a message with the source, tag, count and dtype of a call."""

    def __init__(self, messages: MpiMessages, call: Call, buffer: list[Any]) -> None:
        self.messages = messages
        self.call = call
        self.buffer = buffer
        self.arguments = buffer, call.source, messages.mpi.ANY_TAG
        self.status = messages.mpi.Status()
        self._wrong = ""

    def waiting(self, receive: Callable[[], object], instead: Callable[[], object]) -> Callable[[], None]:
        """Return a callable that receives a message without a tag, or calls `instead` if one has been kept."""
        queues, check = self.messages.queues, self.check_status

        def run() -> None:
            if queues and (self.call.source, 0) in queues:
                instead()
                return
            receive()
            check()

        return run

    def tagged(self) -> None:
        """Wait for the message, if it has a tag or has been kept."""
        self.messages.receive_tagged([self])
        self.check()

    def fits(self, dtype: Any, n_bytes: int) -> bool:
        """Return True if a message has the expected count and dtype."""
        return bool(dtype == self.call.dtype and n_bytes == self.call.count * dtype.itemsize)

    def take_queued(self) -> bool:
        """Take the oldest message that has been kept for this receive. Return False if there is none."""
        key = self.call.source or 0, self.call.tag
        queue = self.messages.queues.get(key)
        if queue is None:
            return False
        dtype, data = queue.popleft()
        if not queue:
            del self.messages.queues[key]
        if self.fits(dtype, data.size):
            self.call.recv.reshape(-1).view(np.uint8)[...] = data
        else:
            self._wrong = f"{data.size // dtype.itemsize} elements of {dtype}"
        return True

    def check_status(self) -> None:
        """Raise an error unless the message that MPI has received has the expected count and dtype."""
        status, call = self.status, self.call
        count, dtype = status.Get_count(self.buffer[1]), _DTYPES[status.Get_tag()]
        if count != call.count or dtype != call.dtype:
            self._wrong = f"{count} elements of {dtype}"
            self.check()

    def check(self) -> None:
        """Raise an error if the message had a different count or dtype."""
        wrong, self._wrong = self._wrong, ""
        if wrong:
            raise message_mismatch(self.call, wrong)
