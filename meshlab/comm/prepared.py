"""PreparedCall: what was checked once and is made many times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from meshlab.comm.backend import Call, Mode, Prepared, Timings
from meshlab.errors import CommunicatorError

if TYPE_CHECKING:
    from meshlab.comm.communicator import Communicator

__all__ = ["PreparedCall"]


class PreparedCall:
    """A call, or a batch of calls, that was checked once and can be made many times.

    It works on the arrays it was prepared with. Every rank of the group must prepare it, and make it as often.
    """

    def __init__(self, communicator: Communicator, calls: Sequence[Call], prepared: Prepared) -> None:
        self._communicator = communicator
        self._prepared = prepared
        self._is_collective = any(not call.collective.peers for call in calls)
        self.calls = tuple(calls)

    def __call__(self) -> None:
        """Make the call."""
        self._communicator._enter(self._is_collective)
        self._prepared()

    def enqueue(self) -> None:
        """Make the call without putting it in order with other streams.

        On a GPU it then runs on ``communicator.backend.stream`` as soon as what was enqueued there before is done; use
        events to order it, for overlap and graphs. Where calls block it is the call itself. Let go of a graph that has
        captured it before the communicator is closed: NCCL waits for that.
        """
        self._communicator._enter(self._is_collective)
        getattr(self._prepared, "enqueue", self._prepared)()

    def measure(self, mode: Mode, calls: int, batches: int) -> Timings:
        """Time batches of calls.

        Parameters
        ----------
        mode : {"isolated", "pipelined", "graph"}
            See `meshlab.comm.MODES`.
        calls, batches : int
            How many calls in a batch, and how many batches. All ranks must give the same numbers.

        Returns
        -------
        Timings
            One value per batch.
        """
        self._communicator._enter()
        return self._prepared.measure(mode, calls, batches)

    def estimate_us(self) -> float:
        """How long the library's own model thinks that the call takes, in µs; nothing is carried out. NCCL has one.

        Raises
        ------
        CommunicatorError
            If the backend has no such model, or this is a batch.
        """
        if len(self.calls) != 1:
            raise CommunicatorError("a batch cannot be estimated; estimate its calls one by one")
        simulate = self._communicator._optional("simulate_us", "estimate a call")
        return float(simulate(self.calls[0]))

    def __repr__(self) -> str:
        return f"<{', '.join(str(call) for call in self.calls)} on {self._communicator.name}>"
