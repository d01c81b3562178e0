"""Times a collective on one axis while another axis is busy; runs on the engines.

Each rank has two threads then, each with a communicator of its own, so this needs a library that may be called from two
threads. One collective is timed while the other is repeated without an end, and then the other way round: so neither
ever runs against an idle axis.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from meshlab.benchmark.on_ranks.sampling import agree_alone, calls_per_batch, take_batches
from meshlab.benchmark.on_ranks.timing import Measured, ready_step

if TYPE_CHECKING:
    from meshlab.frames.plan import Sampling
    from meshlab.benchmark.steps import Step
    from meshlab.comm.communicator import Communicator
    from meshlab.comm.prepared import PreparedCall

__all__ = ["measure_joint"]


def measure_joint(
    comm: Communicator, other: Communicator, step: Step, sampling: Sampling, check: bool
) -> tuple[Measured, Measured]:
    """Time both collectives of a step, each while the other one runs. Every rank of both groups calls it.

    Parameters
    ----------
    comm, other : Communicator
        The group of the step, and the group of what runs beside it.
    step : Step
        With ``beside``.
    sampling : Sampling
        How much, for each of the two.
    check : bool
        Whether to compare the results with the right answers.

    Returns
    -------
    tuple of Measured
        The step's own, and that of what runs beside it.
    """
    if step.beside is None:
        raise TypeError("a step of two collectives has one beside it")
    first = _Side(comm, step, sampling, check)
    second = _Side(other, step.beside, sampling, check)
    return first.measure_beside(second, sampling), second.measure_beside(first, sampling)


class _Side:
    """One of the two collectives: it is timed, or it is the load."""

    def __init__(self, comm: Communicator, step: Step, sampling: Sampling, check: bool) -> None:
        self.comm = comm
        self.step = step
        self.call: PreparedCall
        self.call, self.n_wrong = ready_step(comm, step, check)
        self.agreement = agree_alone(comm)
        alone = self.call.measure(step.mode, 1, 3)
        call_us = float(self.agreement.share([sorted(alone.time_us)[1]]).max())
        self.calls = calls_per_batch(call_us, "pipelined", sampling)

    def measure_beside(self, load: _Side, sampling: Sampling) -> Measured:
        """Take batches while the other side is busy."""
        is_over = threading.Event()
        broke: list[BaseException] = []
        thread = threading.Thread(target=load.repeat, args=(is_over, broke), name="meshlab load", daemon=True)
        thread.start()
        try:
            batches = take_batches(self.call.measure, self.agreement, self.step.mode, sampling)
        finally:
            is_over.set()
        thread.join()
        if broke:
            raise broke[0]
        return Measured(batches, self.n_wrong)

    def repeat(self, is_over: threading.Event, broke: list[BaseException]) -> None:
        """Make calls until all ranks of this group have heard that it is over."""
        try:
            is_needed = True
            while is_needed:
                for _ in range(self.calls):
                    self.call()
                is_needed = bool(self.agreement.share([not is_over.is_set()]).max())
        except BaseException as error:
            broke.append(error)
