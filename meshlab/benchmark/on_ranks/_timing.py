"""Timing and checking of one step on one rank. Runs on the engines."""

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
from meshlab.benchmark.on_ranks._checking import count_wrong_elements
from meshlab.benchmark.on_ranks._sampling import StopVote, calls_per_batch, group_vote, take_batches
from meshlab.comm._backend import Mode, Timings
from meshlab.comm._catalog import CATALOG
from meshlab.frames._rows import Floats, RankSamples
from meshlab.plans._options import CONFIGURED
from meshlab.plans._steps import pairs_of_round

if TYPE_CHECKING:
    from meshlab.comm._communicator import Communicator
    from meshlab.comm._prepared_call import PreparedCall
    from meshlab.plans._sampling import Sampling
    from meshlab.plans._steps import Step


Ints = npt.NDArray[np.int32]


def measure_step(comm: Communicator, step: Step, sampling: Sampling, check: bool, n_blocks: int = 1) -> RankSamples:
    """Time one block of a step in a single group. Collective over the group."""
    with comm.backend.local():  # see measure_together
        call, n_wrong = set_up_step(comm, step, check)
        batches = take_batches(call.measure, group_vote(comm), step.mode, sampling, n_blocks)
        return replace(_per_call(batches, step), n_wrong=n_wrong)


def measure_together(
    comm: Communicator,
    everyone: Communicator,
    step: Step,
    sampling: Sampling,
    check: bool,
    n_blocks: int,
    groups: Ints,
) -> RankSamples:
    """Time a block in several groups at the same time, which all stop at the same batch. Collective over all groups.

    `groups` has the ranks of each group, as ranks of `everyone`: int32 of shape (groups, size).
    """
    # All calls of a step are in the communication stream, also the check and the votes. After calls of the communicator
    # in another stream, small calls in graphs took 0.1 to 0.2 µs longer (2 × H200, NCCL 2.28.9).
    with comm.backend.local():
        call, n_wrong = set_up_step(comm, step, check)
        batches = take_batches(call.measure, StopVote(everyone, groups), step.mode, sampling, n_blocks)
        return replace(_per_call(batches, step), n_wrong=n_wrong)


def _per_call(batches: RankSamples, step: Step) -> RankSamples:
    """Convert the times of groups of calls that are issued together to times per call."""
    n = step.n_aggregated or 1
    if n == 1:
        return batches
    return replace(batches, calls=batches.calls * n, time_us=batches.time_us / n, host_us=batches.host_us / n)


def set_up_step(
    comm: Communicator, step: Step, check: bool, buffers: Sequence[StepBuffers] = ()
) -> tuple[PreparedCall, int | None]:
    """Prepare the call of a step, or its calls that are issued together, and check the results.

    The buffers contain zeros afterwards. There is one item of `buffers` per call. By default they are allocated.
    """
    if not CATALOG[step.collective].has_size:
        return comm.prepare(step.collective), None
    # The check comes before the timed part. It is also the first call, in which the library connects the peers.
    buffers = buffers or allocate(_aggregated(comm, step))
    call = _together([prepare_step(comm, step, pair) for pair in buffers])
    n_wrong = sum(count_wrong_elements(comm, step, call, pair) for pair in buffers) if check else None
    # Time with zeros: an in-place reduction adds its own output again in every call, and other values would grow to
    # infinity or to NaN within a thousand calls. Zeros remain zeros, and libraries move them no faster.
    for pair in buffers:
        pair.send[...] = 0
        pair.out[...] = 0
    return call, n_wrong


def _aggregated(comm: Communicator, step: Step) -> list[tuple[Communicator, Step]]:
    """Return one item per call of a step. Calls that are issued together have separate buffers."""
    return [(comm, step)] * (step.n_aggregated or 1)


def _together(calls: Sequence[PreparedCall]) -> PreparedCall:
    """Return calls of one communicator as one call that issues them together."""
    if len(calls) == 1:
        return calls[0]
    return calls[0]._communicator._prepare_batch([call.calls[0] for call in calls])


def measure_pair(comm: Communicator, step: Step, sampling: Sampling, check: bool) -> RankSamples | None:
    """Time a message between this rank and its partner of the round. Return None for a rank without a partner.

    Collective over the group, whose other pairs exchange messages at the same time.
    """
    pairs = pairs_of_round(comm.size, step.number)
    own_pair = next((pair for pair in pairs if comm.rank in pair), None)
    # A rank without a partner calls nothing, but takes part in the barriers and votes of the group.
    work: Callable[[], object] = _nothing
    n_wrong = None
    # All ranks of the group register memory together.
    buffers = allocate(_aggregated(comm, step)) if own_pair is not None or step.buffers != "plain" else []
    if own_pair is not None:
        other = own_pair[own_pair[0] == comm.rank]
        calls = []
        for send, out in buffers:
            if step.collective == "send_recv":
                calls.append(comm.prepare("send_recv", send, out, dest=other, source=other, dtype=step.dtype))
            elif comm.rank == own_pair[0]:
                calls.append(comm.prepare("send", send, dest=other, dtype=step.dtype))
            else:
                calls.append(comm.prepare("recv", out=out, source=other, dtype=step.dtype))
        call = _together(calls)
        if check:
            n_wrong = sum(count_wrong_elements(comm, step, call, arrays, source=other) for arrays in buffers)
        work = call.timed
    barrier = comm.prepare("barrier").enqueue

    def measure(mode: Mode, calls: int, batches: int) -> Timings:
        return comm.backend.measure(work, barrier, mode, calls, batches)

    batches = take_batches(measure, StopVote(comm, pairs), step.mode, sampling)
    return None if own_pair is None else replace(_per_call(batches, step), n_wrong=n_wrong)


def _nothing() -> None:
    return None


def prepare_step(comm: Communicator, step: Step, buffers: StepBuffers) -> PreparedCall:
    """Prepare the call of a step on its buffers, with the configuration of the step."""
    config = {name: getattr(step, name) for name in CONFIGURED}
    if any(value is not None for value in config.values()):
        comm = comm.configured(**config)
    row, n = CATALOG[step.collective], comm.size
    arguments: dict[str, Any] = {"op": step.op, "root": step.root, "dtype": step.dtype}
    if row.peers:
        # A ring, as in sendrecv_perf of nccl-tests: every rank sends to the next one and receives from the previous
        # one, which loads all ranks in the same way.
        arguments |= {"dest": (comm.rank + 1) % n, "source": (comm.rank - 1) % n}
    if row.counted:
        # Equal chunks: the sizes of all_to_all_v are then comparable with those of all_to_all.
        arguments |= {"send_counts": [step.count] * n, "recv_counts": [step.count] * n}
    return comm.prepare(step.collective, *buffers, **arguments)


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
    """Time both collectives of a step, each while the other one repeats. Collective over all groups of both axes.

    `comm` and `other` are this rank's groups of the axes, and `groups` has all groups of both, as ranks of `everyone`.
    """
    if step.concurrent is None:
        raise TypeError("the step has no concurrent step")
    parts = _aggregated(comm, step), _aggregated(other, step.concurrent)
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
        measurements.append(replace(_per_call(batches, measured.step), n_wrong=measured.n_wrong))
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
    """Time a block of a user-defined function, in all groups at the same time. Collective over all groups.

    If ``function(comm)`` returns a callable, that is timed. Otherwise the function is, and this call was its warm-up.
    """
    returned = function(comm)
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

    with comm.backend.local():  # on a GPU, this includes the kernels of the function in the measured time
        batches = take_batches(measure, _VoteAfter(after, everyone, groups), step.mode, sampling, n_blocks)
    return replace(batches, arrive_us=np.array(arrivals) if arrivals else None)


class EarlyReturnError(CommunicatorError):
    """A user-defined function has returned on a rank without a collective that other ranks have entered."""


@contextmanager
def _after(name: str, rank: int) -> Iterator[None]:
    """Raise an `EarlyReturnError` if a call that follows a function disagrees with the calls of other ranks.

    The error of the call itself would name the barrier or the vote of the benchmark, which the user did not call.
    """
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
