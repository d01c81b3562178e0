"""The part of a benchmark that runs on the engines: one step, timed and checked on one rank."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from meshlab.benchmark.on_ranks.sampling import Batches, Floats, StopVote, calls_per_batch, take_batches, vote_alone
from meshlab.comm.backend import Mode, Timings
from meshlab.comm.catalog import CATALOG
from meshlab.comm.correctness import Case, count_mistakes, encode
from meshlab.comm.elements import carrier, find_dtype, find_op
from meshlab.frames.plan import pairs_of_round

if TYPE_CHECKING:
    from meshlab.comm.communicator import Communicator, PreparedCall
    from meshlab.frames.plan import Sampling, Step

__all__ = [
    "Measured",
    "buffers",
    "count_wrong",
    "measure_concurrent",
    "measure_function",
    "measure_pair",
    "measure_step",
    "measure_together",
    "prepare_step",
    "ready_step",
]


Ints = npt.NDArray[np.int32]

_CHUNK = 1 << 18  # elements checked at once, to bound the memory of the right answer


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """What one rank measured in one step.

    Parameters
    ----------
    batches : Batches
        The times.
    n_wrong : int or None
        Wrong elements on this rank; None when unchecked.
    arrive_us : numpy.ndarray or None
        When this rank came to the first collective of each batch of a function; None where that is its beginning.
    """

    batches: Batches
    n_wrong: int | None
    arrive_us: Floats | None = None


def measure_step(comm: Communicator, step: Step, sampling: Sampling, check: bool) -> Measured:
    """Time one step on this rank. Every rank of the group calls it.

    The result is checked first, which also lets the library connect.

    Parameters
    ----------
    comm : Communicator
        The group.
    step : Step
        What to call.
    sampling : Sampling
        How much.
    check : bool
        Whether to compare the result with the right answer.

    Returns
    -------
    Measured
    """
    call, n_wrong = ready_step(comm, step, check)
    return Measured(take_batches(call.measure, vote_alone(comm), step.mode, sampling), n_wrong)


def measure_together(
    comm: Communicator, everyone: Communicator, step: Step, sampling: Sampling, check: bool, groups: Ints
) -> Measured:
    """`measure_step` for several groups at once, none of which stops while another one is still measured.

    Parameters
    ----------
    comm, step, sampling, check
        As in `measure_step`.
    everyone : Communicator
        Joins the ranks of all groups.
    groups : numpy.ndarray
        int32 of shape (groups, size): who is in which, as ranks of `everyone`.
    """
    call, n_wrong = ready_step(comm, step, check)
    return Measured(take_batches(call.measure, StopVote(everyone, groups), step.mode, sampling), n_wrong)


def ready_step(comm: Communicator, step: Step, check: bool) -> tuple[PreparedCall, int | None]:
    """Make buffers and call of a step, and check its result; the buffers hold zeros afterwards."""
    send, out = buffers(comm, step)
    call = prepare_step(comm, step, send, out)
    n_wrong = count_wrong(comm, step, call, send, out) if check else None
    send[...] = 0  # zeros stay zeros, however often a reduction in place is repeated
    out[...] = 0
    return call, n_wrong


def measure_pair(comm: Communicator, step: Step, sampling: Sampling, check: bool) -> Measured | None:
    """Time a message with this rank's partner of the round, while the other pairs do the same.

    Returns
    -------
    Measured or None
        None for a rank without a partner.
    """
    pairs = pairs_of_round(comm.size, step.number)
    mine = next((pair for pair in pairs if comm.rank in pair), None)
    work: Callable[[], object] = _nothing
    n_wrong = None
    if mine is not None:
        other = mine[mine[0] == comm.rank]
        send, out = buffers(comm, step)
        if step.collective == "send_recv":
            call = comm.prepare("send_recv", send, out, dest=other, source=other, dtype=step.dtype)
        elif comm.rank == mine[0]:
            call = comm.prepare("send", send, dest=other, dtype=step.dtype)
        else:
            call = comm.prepare("recv", out=out, source=other, dtype=step.dtype)
        n_wrong = count_wrong(comm, step, call, send, out, source=other) if check else None
        work = call.enqueue
    barrier = comm.prepare("barrier").enqueue

    def measure(mode: Mode, calls: int, batches: int) -> Timings:
        return comm.backend.measure(work, barrier, mode, calls, batches)

    batches = take_batches(measure, StopVote(comm, pairs), step.mode, sampling)
    return None if mine is None else Measured(batches, n_wrong)


def _nothing() -> None:
    return None


def buffers(comm: Communicator, step: Step) -> tuple[Any, Any]:
    """The input and the output of a step, uninitialised.

    In place, the smaller one is this rank's part of the larger one, where NCCL wants it.
    """
    if step.count is None or step.dtype is None:
        raise TypeError("a function of the user's own has no buffers here")
    row, dtype = CATALOG[step.collective], carrier(find_dtype(step.dtype))
    n_send = row.elements("sends", step.count, comm.size)
    n_out = row.elements("receives", step.count, comm.size)
    if step.collective == "send":
        n_out = n_send  # on the other side
    if not step.in_place:
        return comm.empty(n_send, dtype), comm.empty(n_out, dtype)
    whole = comm.empty(max(n_send, n_out), dtype)
    own = whole[comm.rank * step.count :][: step.count]
    return (own if n_send < n_out else whole), (own if n_out < n_send else whole)


def prepare_step(comm: Communicator, step: Step, send: Any, out: Any) -> PreparedCall:
    """The call of a step: messages go round in a ring, as in nccl-tests, and parts of unequal size are equal."""
    row, n = CATALOG[step.collective], comm.size
    arguments: dict[str, Any] = {"op": step.op, "root": step.root, "dtype": step.dtype}
    if row.peers:
        arguments |= {"dest": (comm.rank + 1) % n, "source": (comm.rank - 1) % n}
    if row.counted:
        arguments |= {"send_counts": [step.count] * n, "recv_counts": [step.count] * n}
    return comm.prepare(step.collective, send, out, **arguments)


def count_wrong(
    comm: Communicator,
    step: Step,
    call: Callable[[], object],
    send: Any,
    out: Any,
    *,
    source: int | None = None,
) -> int:
    """Make the call once on rank-coded data and count the elements of this rank's output that are not right.

    Parameters
    ----------
    comm, step, call, send, out
        The group, the step, its prepared call and the buffers of that.
    source : int, optional
        From whom a message comes, as a rank of the group; the neighbour in the ring when left out.
    """
    if step.dtype is None or step.count is None:
        raise TypeError("a function of the user's own has no right answer")
    row, dtype, op = CATALOG[step.collective], find_dtype(step.dtype), find_op(step.op) if step.op else None
    receives = row.has("receives", step.root in (None, comm.rank))
    if step.collective == "send":  # what comes is checked where it comes to
        row, receives = CATALOG["recv"], source is not None and _is_receiver(comm, step)

    def value(member: int, index: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        return encode(comm.ranks[member], index, dtype, op)

    if not step.in_place:
        out[...] = 125  # no rank-coded value and no sum of few of them
    for first in range(0, send.size, _CHUNK):
        index = np.arange(first, min(first + _CHUNK, send.size))
        send[first : first + len(index)] = comm.xp.asarray(value(comm.rank, index).view(send.dtype))
    call()
    if row.answer is None or not receives:
        return 0
    case = Case(
        value=value,
        n=comm.size,
        member=comm.rank,
        count=step.count,
        dtype=dtype,
        op=op,
        root=step.root or 0,
        source=(comm.rank - 1) % comm.size if source is None else source,
    )
    wrong = 0
    for first in range(0, out.size, _CHUNK):
        index = np.arange(first, min(first + _CHUNK, out.size))
        part = out[first : first + len(index)]
        got = np.asarray(part.get() if hasattr(part, "get") else part).view(dtype)
        wrong += count_mistakes(got, row.answer(case, index))
    return wrong


def _is_receiver(comm: Communicator, step: Step) -> bool:
    return any(comm.rank == receiver for _, receiver in pairs_of_round(comm.size, step.number))


def measure_concurrent(
    comm: Communicator, other: Communicator, step: Step, sampling: Sampling, check: bool
) -> tuple[Measured, Measured]:
    """Time both collectives of a step, each while the other one runs. Every rank of both groups calls it.

    Parameters
    ----------
    comm, other : Communicator
        The group of the step, and the group of the concurrent step.
    step : Step
        A step with a concurrent one.
    sampling : Sampling
        How much, for each of the two.
    check : bool
        Whether to compare the results with the right answers.

    Returns
    -------
    tuple of Measured
        The step's own measurement, and that of the concurrent step.
    """
    if step.concurrent is None:
        raise TypeError("the step has no concurrent step")
    first = _Concurrent(comm, step, sampling, check)
    second = _Concurrent(other, step.concurrent, sampling, check)
    return first.measure_under_load(second, sampling), second.measure_under_load(first, sampling)


class _Concurrent:
    """One of the two collectives: it is timed, or it is the load."""

    def __init__(self, comm: Communicator, step: Step, sampling: Sampling, check: bool) -> None:
        self.comm = comm
        self.step = step
        self.call: PreparedCall
        self.call, self.n_wrong = ready_step(comm, step, check)
        self.vote = vote_alone(comm)
        alone = self.call.measure(step.mode, 1, 3)
        call_us = float(self.vote.share([sorted(alone.time_us)[1]]).max())
        self.calls = calls_per_batch(call_us, "pipelined", sampling)

    def measure_under_load(self, load: _Concurrent, sampling: Sampling) -> Measured:
        """Take batches while the other collective repeats in a second thread."""
        is_over = threading.Event()
        errors: list[BaseException] = []
        thread = threading.Thread(target=load.repeat, args=(is_over, errors), name="meshlab load", daemon=True)
        thread.start()
        try:
            batches = take_batches(self.call.measure, self.vote, self.step.mode, sampling)
        finally:
            is_over.set()
        thread.join()
        if errors:
            raise errors[0]
        return Measured(batches, self.n_wrong)

    def repeat(self, is_over: threading.Event, errors: list[BaseException]) -> None:
        """Repeat the collective until every rank of this group has finished measuring the other one."""
        try:
            is_needed = True
            while is_needed:
                for _ in range(self.calls):
                    self.call()
                is_needed = bool(self.vote.share([not is_over.is_set()]).max())
        except BaseException as error:
            errors.append(error)


def measure_function(
    comm: Communicator,
    everyone: Communicator,
    step: Step,
    sampling: Sampling,
    groups: npt.NDArray[np.int32],
    function: Callable[[Communicator], Any],
) -> Measured:
    """Time a function on this rank. Every rank of every group calls it, and all of them stop together.

    The function is called once. What it returns is timed when that can be called; else the function itself is, so that
    the first call was its warm-up. In isolated mode it is noted when this rank comes to the first collective of each
    call, because the rank that comes last is the one that the others wait for.

    Parameters
    ----------
    comm, everyone, step, sampling, groups
        As in `meshlab.benchmark.on_ranks.timing.measure_together`.
    function : callable
        ``function(comm)``.

    Returns
    -------
    Measured
        Without a count of wrong elements: nobody knows what is right.
    """
    made = function(comm)
    watch = _Arrivals(comm, made if callable(made) else lambda: function(comm))
    barrier = comm.prepare("barrier").enqueue
    arrivals: list[float] = []

    def measure(mode: Mode, calls: int, batches: int) -> Timings:
        if mode != "isolated":
            return comm.backend.measure(watch.work, barrier, mode, calls, batches)
        with watch.noting() as times:
            timings = comm.backend.measure(watch.noted, barrier, mode, calls, batches)
        arrivals.extend(times[-batches:])  # those before were the backend's own warm-up
        return timings

    with comm.backend.local():  # on a GPU, the function's own kernels are timed too
        batches = take_batches(measure, StopVote(everyone, groups), step.mode, sampling)
    return Measured(batches, None, np.array(arrivals) if arrivals else None)


class _Arrivals:
    """Notes when a rank enters the first collective of each call of `work`."""

    def __init__(self, comm: Communicator, work: Callable[[], object]) -> None:
        self.work = work
        self._comm = comm
        self._times: list[float] = []
        self._is_under_way = False

    def noted(self) -> None:
        """Call `work`; where it makes no collective, its beginning counts."""
        self._times.append(time.perf_counter_ns() / 1e3)
        self._is_under_way = True
        self.work()
        self._is_under_way = False

    @contextmanager
    def noting(self) -> Iterator[list[float]]:
        """Listen to the communicator; gives the list that the times, in µs, are put in."""
        self._times = []
        told = self._comm._on_enter

        def enter() -> None:
            if self._is_under_way:
                self._is_under_way = False
                self._times[-1] = time.perf_counter_ns() / 1e3
            if told is not None:
                told()

        self._comm._on_enter = enter
        try:
            yield self._times
        finally:
            self._comm._on_enter = told
