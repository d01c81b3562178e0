"""`Batch`: several calls that are issued together."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any

from meshlab.base._errors import CommunicatorError
from meshlab.comm._backend import Call
from meshlab.comm._catalog import Collective
from meshlab.comm._collectives import CollectiveMethods
from meshlab.comm._validate import CallArguments

if TYPE_CHECKING:
    from meshlab.comm._communicator import Communicator
    from meshlab.comm._prepared_call import PreparedCall


class Batch(CollectiveMethods):
    """Several calls that are issued together. Created by `Communicator.batch`.

    No call waits for another call of the same rank, so a rank can send to all other ranks and receive from them in any
    order. Between the same two ranks, the first receive with a tag matches the first send with that tag. All ranks must
    add the collectives in the same order, with messages anywhere between them. A method returns its output immediately,
    but the output is valid only after the batch has run.

    A batch used as a context manager runs at the end of the block. If the block raises or a call is invalid, this rank
    issues no call at all, so no rank stops half-way through a batch.

    Examples
    --------
    >>> import numpy as np
    >>> from meshlab.comm._communicator import Communicator
    >>> from meshlab.comm.backends._threads import ThreadWorld
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

    def _call(self, collective: Collective, send: Any = None, out: Any = None, *options: Any) -> Any:
        if self._is_done:
            raise CommunicatorError(
                "this batch has already run; start a new one with batch()", collective=collective.name
            )
        arguments = CallArguments(collective, send, out, *options)
        call = self._communicator._validator.check(arguments, makes_output=True)
        self._calls.append(call)
        return call.recv

    def prepare(self) -> PreparedCall:
        """Check the calls against each other, so that the batch can run repeatedly.

        Returns
        -------
        PreparedCall
            The batch, as one call.

        Raises
        ------
        CommunicatorError
            If the batch is empty.
            If an output overlaps the buffer of another call.
            If the messages that this rank sends to itself do not match those that it receives from itself.
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
