"""Timing of two collectives at the same time, and of user-defined functions. Runs on the engines."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from meshlab.base._errors import CommunicatorError
from meshlab.benchmark.on_ranks._buffers import StepBuffers, allocate
from meshlab.benchmark.on_ranks._sampling import StopVote, calls_per_batch, group_vote, per_call, take_batches
from meshlab.benchmark.on_ranks._step_calls import aggregated, set_up_step
from meshlab.comm._backend import Mode, Timings
from meshlab.comm._elements import is_integer
from meshlab.frames._rows import Floats, RankSamples
from meshlab.plans._functions import CheckedFunction

if TYPE_CHECKING:
    from meshlab.comm._communicator import Communicator
    from meshlab.comm._prepared_call import PreparedCall
    from meshlab.plans._sampling import Sampling
    from meshlab.plans._steps import Step

Ints = npt.NDArray[np.int32]


def measure_concurrent(
    comm: Communicator,
    everyone: Communicator,
    other: Communicator,
    step: Step,
    sampling: Sampling,
    check: bool,
    n_blocks: int,
    groups: tuple[Ints, Ints],
) -> tuple[RankSamples, RankSamples]:
    """Time both collectives of a step, each while the other one repeats. Collective over all groups of both axes."""
    # `comm` and `other` are this rank's groups, and `groups` has all groups of both axes, as ranks of `everyone`.
    if step.concurrent is None:
        raise TypeError("the step has no concurrent step")
    parts = aggregated(comm, step), aggregated(other, step.concurrent)
    buffers = allocate([*parts[0], *parts[1]])
    first = _Concurrent(comm, step, check, buffers[: len(parts[0])])
    second = _Concurrent(other, step.concurrent, check, buffers[len(parts[0]) :])
    # Calls on a GPU do not block, so one thread starts both collectives. Calls that block need a thread each.
    is_gpu = comm.backend.device is not None
    measurements = []
    for measured, load, array in ((first, second, groups[0]), (second, first, groups[1])):
        if is_gpu:
            measure, vote = _UnderLoadOfStream(measured, load, everyone).measure, StopVote(everyone, array)
            batches = take_batches(measure, vote, step.mode, sampling, n_blocks)
        else:
            batches = _take_under_load_of_thread(measured, load, sampling, n_blocks)
        measurements.append(per_call(batches, measured.step, measured.n_wrong))
    return measurements[0], measurements[1]


class _Concurrent:
    """One of two concurrent collectives. It is timed under load, or it is the load."""

    def __init__(self, comm: Communicator, step: Step, check: bool, buffers: Sequence[StepBuffers]) -> None:
        self.step = step
        self.call: PreparedCall
        self.call, self.n_wrong = set_up_step(comm, step, check, buffers)
        self.vote = group_vote(comm)

    def alone_us(self, mode: Mode, vote: StopVote) -> float:
        """Return the time of a call without load, in µs: the maximum over the ranks of the vote."""
        probe = self.call.measure(mode, 1, 3)
        return float(vote.share([np.median(probe.time_us)]).max())  # the median of three calls ignores the first one


class _UnderLoadOfStream:
    """Times a collective while another stream of the GPU runs a fixed number of calls during each batch."""

    # The load has to outlast the batch. Both get slower by a similar factor, but small batches vary.
    _SHARE, _MOST = 1.5, 24.0

    def __init__(self, measured: _Concurrent, load: _Concurrent, everyone: Communicator) -> None:
        self._measured = measured
        self._load = load
        self._vote = group_vote(everyone)
        self._call_us = measured.alone_us(measured.step.mode, self._vote)
        self._load_us = load.alone_us("graph", self._vote)
        self._share = self._SHARE

    def measure(self, mode: Mode, calls: int, batches: int) -> Timings:
        """Time batches, and mark those during which the load ended on any rank."""
        # All ranks of both axes use the same numbers, because each rank enqueues every call of both of its groups.
        calls = int(self._vote.share([calls]).max())
        n_load = math.ceil(self._share * calls * self._call_us / self._load_us)
        timings = self._measured.call.measure(mode, calls, batches, self._load.call.load(n_load))
        if timings.is_covered is None:
            raise TypeError("the backend does not report whether the load covered the batches")
        is_covered = self._vote.share([not covered for covered in timings.is_covered]).max(axis=0) == 0
        if not is_covered.all():
            self._share = min(2 * self._share, self._MOST)
        return replace(timings, is_covered=is_covered)


def _take_under_load_of_thread(
    measured: _Concurrent, load: _Concurrent, sampling: Sampling, n_blocks: int
) -> RankSamples:
    """Take batches while the other collective repeats in a second thread."""
    # As load, the collective votes after every block of calls. Blocks of one batch keep the votes rare, but still stop
    # the load soon.
    calls = calls_per_batch(load.alone_us(load.step.mode, load.vote), "pipelined", sampling)
    is_over = threading.Event()
    errors: list[BaseException] = []

    def repeat() -> None:
        # A rank cannot stop on its own, because its group would wait for it in the next call. So the ranks vote, and
        # the load continues as long as one of them still measures. A few calls of the load may therefore be
        # unnecessary, but no batch is measured without load.
        try:
            is_needed = True
            while is_needed:
                for _ in range(calls):
                    load.call()
                is_needed = bool(load.vote.share([not is_over.is_set()]).max())
        except BaseException as error:
            errors.append(error)

    # The two threads use different communicators, so neither library nor backend mixes up their calls.
    thread = threading.Thread(target=repeat, name="meshlab load", daemon=True)
    thread.start()
    try:
        batches = take_batches(measured.call.measure, measured.vote, measured.step.mode, sampling, n_blocks)
    finally:
        is_over.set()
    thread.join()
    if errors:
        raise errors[0]
    return batches


def measure_function(
    comm: Communicator,
    everyone: Communicator,
    step: Step,
    sampling: Sampling,
    n_blocks: int,
    groups: Ints,
    function: Callable[[Communicator], Any],
) -> RankSamples:
    """Time a user-defined function, or the callable that it returns, in all groups at the same time. Collective."""
    n_wrong = None
    returned = function(comm)
    if isinstance(function, CheckedFunction):
        result = returned() if callable(returned) else returned
        n_wrong = _count_unexpected(comm, function.__name__, result, function.expected(comm))
    recorder = _Arrivals(comm, returned if callable(returned) else lambda: function(comm))
    after = partial(_after, getattr(function, "__name__", "the function"), comm.world_rank)
    with after():
        enqueue = comm.prepare("barrier").enqueue

    def barrier() -> None:
        with after():
            enqueue()

    arrivals: list[float] = []

    def measure(mode: Mode, calls: int, batches: int) -> Timings:
        if mode != "isolated":
            return comm.backend.measure(recorder.work, barrier, mode, calls, batches)
        # A function may compute before it communicates. The rank that enters the first collective last is the one that
        # the others wait for, so lateness is measured there and not at the start of the batch.
        with recorder.recording() as times:
            timings = comm.backend.measure(recorder.timed_work, barrier, mode, calls, batches)
        arrivals.extend(times[-batches:])  # the calls before them are warm-up of the backend
        return timings

    with comm.local():  # on a GPU, this includes the kernels of the function in the measured time
        batches = take_batches(measure, _VoteAfter(after, everyone, groups), step.mode, sampling, n_blocks)
    return replace(batches, arrive_us=np.array(arrivals) if arrivals else None, n_wrong=n_wrong)


def _count_unexpected(comm: Communicator, name: str, result: Any, expected: Any) -> int:
    """Return the number of elements of the result of a function that differ from the expected ones."""
    if result is None:
        raise CommunicatorError(f"{name} returns nothing, but it has an expected result; return the array to check")
    values, exact = (
        comm.to_host(array) if hasattr(array, "dtype") else np.asarray(array) for array in (result, expected)
    )
    if values.shape != exact.shape:
        raise CommunicatorError(f"{name} returns an array of shape {values.shape}, but {exact.shape} is expected")
    if is_integer(values.dtype):
        return int(np.count_nonzero(values != exact))
    # Ranks add in any order, and each addition rounds.
    step = float(np.finfo(values.dtype).eps) if values.dtype.kind == "f" else 2.0**-7
    exact = exact.astype(float)
    share = 2 * comm.size * step
    nearby = share * float(np.max(np.abs(exact), initial=0.0, where=np.isfinite(exact)))
    is_close = np.isclose(values.astype(float), exact, rtol=share, atol=nearby, equal_nan=True)
    return int(np.count_nonzero(~is_close))


class EarlyReturnError(CommunicatorError):
    """A user-defined function has returned on a rank without a collective that other ranks have entered."""


@contextmanager
def _after(name: str, rank: int) -> Iterator[None]:
    """Raise an `EarlyReturnError` if a call that follows a function disagrees with the calls of other ranks."""
    # The error of the call itself would name the barrier or the vote of the benchmark, which the user did not call.
    try:
        yield
    except CommunicatorError as error:
        if not error.message.startswith("ranks disagree"):
            raise
        raise EarlyReturnError(
            f"rank {rank} has returned from {name}, but other ranks wait in a collective that it has not called",
            hint="issue the same calls on every rank",
            rank=rank,
        ) from error


class _VoteAfter(StopVote):
    """A vote that follows a user-defined function."""

    def __init__(self, after: Callable[[], AbstractContextManager[None]], comm: Communicator, groups: Ints) -> None:
        super().__init__(comm, groups)
        self._after = after

    def share(self, values: Sequence[Any]) -> Floats:
        """Return the maximum of each value over the ranks of each group."""
        with self._after():
            return super().share(values)


def measure_function_alone(
    comm: Communicator, step: Step, sampling: Sampling, n_blocks: int, function: Callable[[Communicator], Any]
) -> RankSamples:
    """Time a block of a user-defined function in a single group. Collective over the group."""
    group = np.arange(comm.size, dtype=np.int32)[None]
    return measure_function(comm, comm, step, sampling, n_blocks, group, function)


class _Arrivals:
    """Records the time at which a rank enters the first collective of each call of `work`."""

    def __init__(self, comm: Communicator, work: Callable[[], object]) -> None:
        self.work = work
        self._comm = comm
        self._times: list[float] = []
        self._is_waiting = False

    def timed_work(self) -> None:
        """Call `work` and record its first collective. Without a collective, record its start."""
        self._times.append(time.perf_counter_ns() / 1e3)
        self._is_waiting = True
        self.work()
        self._is_waiting = False

    @contextmanager
    def recording(self) -> Iterator[list[float]]:
        """Observe the communicator within a ``with`` block. The value is the list that receives the times, in µs."""
        self._times = []
        previous = self._comm._on_enter

        def enter() -> None:
            if self._is_waiting:
                self._is_waiting = False
                self._times[-1] = time.perf_counter_ns() / 1e3
            if previous is not None:
                previous()

        self._comm._on_enter = enter
        try:
            yield self._times
        finally:
            self._comm._on_enter = previous
