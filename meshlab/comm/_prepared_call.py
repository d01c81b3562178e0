"""`PreparedCall`: a call, or a batch of calls, that is checked once and runs repeatedly."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from meshlab.base._errors import CommunicatorError
from meshlab.comm._agreement import checksum
from meshlab.comm._backend import Call, Mode, Prepared, Timings
from meshlab.comm._monitor import MESSAGES

if TYPE_CHECKING:
    from meshlab.comm._communicator import Communicator


class PreparedCall:
    """A call, or a batch of calls, that is checked once and can run repeatedly.

    It always uses the arrays that it was prepared with. All ranks of the group must prepare it and run it the same
    number of times.
    """

    def __init__(self, communicator: Communicator, calls: Sequence[Call], prepared: Prepared) -> None:
        self._communicator = communicator
        self._prepared = prepared
        # A bound method is called faster than an object of its class.
        self._run = prepared.__call__
        self._enqueue: Callable[[], object] = getattr(prepared, "enqueue", prepared)
        first = calls[0].collective
        self._is_collective = not first.peers or any(not call.collective.peers for call in calls)
        # A call of a view has to check its owner too. A message is recorded in another way.
        self._is_direct = self._is_collective and communicator._owner is None
        # Preparing is not collective, so a call is compared with those of other ranks when it runs for the first time.
        self._is_agreed = not self._is_collective or communicator._agreement is None
        self._checksum = checksum(calls) if self._is_collective else 0
        name = first.name if len(calls) == 1 else "batch" if self._is_collective else MESSAGES
        monitor = communicator._monitor
        self._code = 0 if monitor is None else monitor.code(name)
        self._monitor_enter = None if monitor is None else monitor.enter
        self._leave: Callable[[int], object] = int if monitor is None else monitor.leave
        self.calls = tuple(calls)

    def __call__(self) -> None:
        """Run the call."""
        communicator = self._communicator
        if self._is_direct and not communicator._is_closed:
            # `_enter`, without the calls of its functions: this runs in loops of small calls.
            if self._monitor_enter is not None:
                self._monitor_enter(self._code, self._checksum)
            if communicator._on_enter is not None:
                communicator._on_enter()
        else:
            self._enter()
        try:
            if not self._is_agreed:
                self._agree()
            self._run()
        finally:
            self._leave(self._code)

    def enqueue(self) -> None:
        """Enqueue the call without ordering it with other streams.

        On a GPU, it runs on `Communicator.stream` after earlier work of that stream. Use events to order it, with
        `Communicator.record` and `Communicator.wait`, for overlap or graphs. Before closing the communicator, delete
        all graphs that have captured the call, because NCCL waits for that. If calls block, this is the same as calling
        the object.
        """
        self._enter()
        try:
            if not self._is_agreed:
                self._agree()
            self._enqueue()
        finally:
            self._leave(self._code)

    @property
    def timed(self) -> Callable[[], object]:
        """The function that `measure` times, to time it together with other work. It is `enqueue`, or a variant of it.

        All ranks that take part must use it, because a library may need more than its own operation for other calls.
        """
        variant: Callable[[], object] | None = getattr(self._prepared, "timed", None)
        return self.enqueue if variant is None else variant

    def measure(self, mode: Mode, calls: int, batches: int, load: Any = None) -> Timings:
        """Time batches of calls. All ranks must pass the same arguments.

        With MPI, the minimum and the maximum of floating point are timed with MPI_MIN and MPI_MAX, whose result for NaN
        is not defined. Other calls replace them with operations that ignore NaN, and take longer.

        Parameters
        ----------
        mode : {"isolated", "pipelined", "graph"}
            The timing mode, described in `meshlab.comm.MODES`.
        calls, batches : int
            The number of calls per batch, and the number of batches.
        load : object, optional
            The result of `load` of a call on a separate communicator, which runs during each batch. Only on GPUs, and
            not in isolated mode.

        Returns
        -------
        Timings
            One value per batch.
        """
        with self._entered():
            if load is None:
                return self._prepared.measure(mode, calls, batches)
            timings: Timings = self._prepared.measure_under_load(mode, calls, batches, load)  # type: ignore[attr-defined]
            return timings

    @contextmanager
    def held(self, mode: Mode, calls: int) -> Iterator[Callable[[int], Timings]]:
        """Prepare batches of calls once within a ``with`` block, so that batches of several calls can take turns.

        Parameters
        ----------
        mode : {"isolated", "pipelined", "graph"}
            The timing mode. In graph mode the calls are captured once.
        calls : int
            The number of calls per batch.

        Yields
        ------
        callable
            Times as many batches as its argument, like `measure`. All ranks must call it with the same number.

        Examples
        --------
        >>> import meshlab as ml
        >>> def alternate(comm):
        ...     x = comm.xp.zeros(4, "float32")
        ...     call = comm.prepare("all_reduce", x, x)
        ...     with call.held("pipelined", 10) as measure:
        ...         return len(measure(3).time_us)
        >>> with ml.launch(2, backend="threads") as engines:
        ...     engines.run(alternate)["value"].tolist()
        [3, 3]
        """
        hold = getattr(self._prepared, "held", None)
        if hold is None:
            yield partial(self.measure, mode, calls)
            return
        with contextlib.ExitStack() as holder:
            with self._entered():
                time_batches = holder.enter_context(hold(mode, calls))

            def measure(batches: int) -> Timings:
                with self._entered():
                    timings: Timings = time_batches(batches)
                    return timings

            yield measure

    def load(self, calls: int) -> Any:
        """Return repetitions of the call as the load of a call on another communicator, for `measure`. Only on GPUs."""
        return self._prepared.load(calls)  # type: ignore[attr-defined]

    @contextmanager
    def _entered(self) -> Iterator[None]:
        self._enter()
        try:
            if not self._is_agreed:
                self._agree()
            yield
        finally:
            self._leave(self._code)

    def _enter(self) -> None:
        communicator = self._communicator
        if communicator._is_closed or communicator._owner is not None:
            communicator._check_open()
        # Messages involve only two ranks, so they are not counted: the deadline compares the call counts of a group.
        if self._is_collective:
            communicator._enter(self._code, self._checksum)
        elif communicator._monitor is not None:
            communicator._monitor.enter_message(self._code, 0)

    def _agree(self) -> None:
        agreement = self._communicator._agreement
        if agreement is not None:
            self._is_agreed = agreement.check(self.calls, self._checksum)

    def estimate_us(self) -> float:
        """Return the duration that NCCL's own model predicts for the call, in µs, without running it.

        Raises
        ------
        CommunicatorError
            If the backend is not NCCL, or this is a batch.
        """
        if len(self.calls) != 1:
            raise CommunicatorError("cannot estimate a batch; estimate its calls separately")
        simulate = self._communicator._optional("simulate_us", "estimate a call")
        return float(simulate(self.calls[0]))

    def __repr__(self) -> str:
        return f"<{', '.join(str(call) for call in self.calls)} on {self._communicator.name}>"
