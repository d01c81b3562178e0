"""Batch: several calls that are made at once."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any

from meshlab.comm.backend import Call
from meshlab.comm.collectives import Calls
from meshlab.comm.catalog import Collective
from meshlab.errors import CommunicatorError

if TYPE_CHECKING:
    from meshlab.comm.communicator import Communicator
    from meshlab.comm.prepared import PreparedCall

__all__ = ["Batch"]


class Batch(Calls):
    """Calls that are checked as they are written down, and made together; `Communicator.batch` starts one.

    None of them waits for another one of the same rank, so a rank can send to all others and receive from them without
    a thought about order. Between the same two ranks, the first receive gets what the first send gave. Ranks write down
    the collectives in the same order; sends and receives may stand anywhere between. New outputs are returned at once,
    and hold the result when the batch is done.

    As a context manager it makes its calls at the end of the block. Where the block raises, or a call does not fit,
    this rank makes none of them, so that no rank is ever left half-way through a batch.

    Examples
    --------
    >>> import numpy as np
    >>> from meshlab.comm.communicator import Communicator
    >>> from meshlab.comm.backends.threads import ThreadWorld
    >>> comm = Communicator(ThreadWorld(1).backend(0))
    >>> with comm.batch() as batch:
    ...     batch.send(np.arange(3.0), dest=0)
    ...     got = batch.recv(np.empty(3), source=0)
    >>> got
    array([0., 1., 2.])
    """

    def __init__(self, communicator: Communicator) -> None:
        self._communicator = communicator
        self._calls: list[Call] = []
        self._is_done = False

    def _call(self, row: Collective, send: Any, out: Any, **arguments: Any) -> Any:
        if self._is_done:
            raise CommunicatorError("this batch has been made; start a new one with batch()", collective=row.name)
        call = self._communicator._rules.check(row, send, out, makes_output=True, **arguments)
        self._calls.append(call)
        return call.recv

    def prepare(self) -> PreparedCall:
        """Check the calls against each other, to make them together many times.

        Returns
        -------
        PreparedCall

        Raises
        ------
        CommunicatorError
            If there are none, an output overlaps the buffer of another call, or the rank sends to itself what it does
            not receive.
        """
        return self._communicator._prepare_batch(self._calls)

    def __enter__(self) -> Batch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_done = True
        if error is None and self._calls:
            self.prepare()()

    def __len__(self) -> int:
        return len(self._calls)

    def __repr__(self) -> str:
        calls = ", ".join(str(call) for call in self._calls)
        return f"<batch on {self._communicator.name}: {calls or 'no calls'}{', done' if self._is_done else ''}>"
