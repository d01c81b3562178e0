"""One step of a job on a rank: its communication, with computation between the calls. Runs on the engines.

A program is data: the schedule of a training step, of which `expand` makes a list of operations, or the recorded calls
of each rank. A rank runs the operations with its `_Lanes`: streams and events on GPUs, threads elsewhere. Each
operation either computes, starts a call, or waits for one.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from meshlab.benchmark.on_ranks._buffers import allocate_shared, release_buffers
from meshlab.benchmark.on_ranks._sampling import StopVote
from meshlab.benchmark.on_ranks._step_calls import prepare_step, set_up_step
from meshlab.comm.backends._cuda_parts import find_cublas
from meshlab.engines._memory import free_bytes

if TYPE_CHECKING:
    from meshlab.comm._communicator import Communicator
    from meshlab.comm._prepared_call import PreparedCall
    from meshlab.plans._steps import Step

Floats = npt.NDArray[np.float64]

Overlap = Literal["nothing", "compute", "layer", "pass"]
"""The computation that may run during a call: none, the next one, all until the same call of the next repetition, or
all until the end of the pass."""


class TimedCall(NamedTuple):
    """A call of a schedule, and the computation before it."""

    axis: int
    """The index of the communicator. -1 if its groups have one rank, so that nothing is sent."""
    step: Step | None
    flops: float
    overlap: Overlap
    is_single: bool
    """True if only one micro-batch issues the call: the first in the forward, or the last in the backward pass."""


class RepeatedCalls(NamedTuple):
    """Calls of a pass that repeat together within a micro-batch, such as those of a layer."""

    phase: str
    calls: tuple[TimedCall, ...]
    repeats: int


class Schedule(NamedTuple):
    """A training step: the passes of one micro-batch, in order, and the number of micro-batches."""

    blocks: tuple[RepeatedCalls, ...]
    micro_batches: int


class Variant(NamedTuple):
    """A part of a step that is timed on its own: computation, and the calls of some communicators."""

    computes: bool
    axes: tuple[int, ...]
    is_steady: bool = False
    """True to leave out the calls that only one micro-batch issues, so that all micro-batches are the same."""


class Operation(NamedTuple):
    """An operation of a rank. `run` starts a call and waits for it."""

    kind: Literal["compute", "start", "run", "wait"]
    call: int = -1
    """The number of the call in the step, from 0. -1 to compute."""
    axis: int = -1
    step: Step | None = None
    flops: float = 0.0


class ScheduledStep(NamedTuple):
    """The program of a variant of a training step, which is the same on all ranks."""

    schedule: Schedule
    variant: Variant

    def operations(self, rank: int, overlaps: bool) -> list[Operation]:
        """Return the operations of a rank, in the order in which it issues them."""
        return expand(self.schedule, self.variant, overlaps=overlaps)


class RecordedStep(NamedTuple):
    """The program of each rank in a recorded step. Ranks with equal programs share one."""

    programs: tuple[tuple[Operation, ...], ...]
    of_rank: tuple[int, ...]

    def operations(self, rank: int, overlaps: bool) -> list[Operation]:
        """Return the operations of a rank, in the order in which it issues them."""
        return list(self.programs[self.of_rank[rank]])


class StepOptions(NamedTuple):
    """The way to run a step on all ranks."""

    compute: Literal["products", "wait"]
    flops_per_us: float
    """The rate at which a wait replaces a product."""
    overlaps: bool
    """False if the backend cannot communicate while the rank computes, so that every call is waited for."""


class CallProbe(NamedTuple):
    """A call that was measured a few times on its own: its median time in µs on the slowest rank."""

    time_us: float
    n_wrong: int | None
    """The number of wrong elements on this rank. None if the result was not checked."""


class RankProbe(NamedTuple):
    """The state of a rank before anything is timed. `free` is that of `free_bytes`."""

    free: tuple[bool, int]
    no_products: str
    """The reason why the rank cannot multiply matrices, and the fix. Empty if it can."""


def expand(schedule: Schedule, variant: Variant, *, overlaps: bool = True) -> list[Operation]:
    """Return the operations of a variant of a step in the order in which a rank issues them."""
    program = _Program(overlaps and variant.computes)
    last = schedule.micro_batches - 1
    for number in range(schedule.micro_batches):
        phase = ""
        for block in schedule.blocks:
            if block.phase != phase:
                program.end_pass()
                phase = block.phase
            for _ in range(block.repeats):
                for position, call in enumerate(block.calls):
                    if variant.computes and call.flops:
                        program.compute(call.flops)
                    is_issued = number == (0 if phase == "forward" else last) if call.is_single else True
                    if call.axis in variant.axes and is_issued and not (call.is_single and variant.is_steady):
                        program.call(call, position)
            program.end_block()
        program.end_pass()
    program.end()
    return program.operations


class _Program:
    """Operations of a step, and the calls that are under way after them."""

    def __init__(self, overlaps: bool) -> None:
        self.operations: list[Operation] = []
        self._overlaps = overlaps
        self._n_calls = 0
        self._axis_of: dict[int, int] = {}  # of the calls that are under way
        self._until_computed: list[int] = []
        self._until_repeated: dict[int, int] = {}  # by the position of the call in its block
        self._until_end_of_pass: list[int] = []

    def compute(self, flops: float) -> None:
        """Compute, and wait for the calls that may overlap with this computation only."""
        self.operations.append(Operation("compute", flops=flops))
        self._wait_for(self._until_computed)

    def call(self, call: TimedCall, position: int) -> None:
        """Start a call, and wait for it if it overlaps with nothing."""
        overlap = call.overlap if self._overlaps else "nothing"
        if position in self._until_repeated:
            self._wait_for([self._until_repeated.pop(position)])
        number, self._n_calls = self._n_calls, self._n_calls + 1
        # The calls of an axis run in order. So one that is waited for runs at once only if none is under way.
        if overlap == "nothing" and call.axis not in self._axis_of.values():
            self.operations.append(Operation("run", number, call.axis, call.step))
            return
        self.operations.append(Operation("start", number, call.axis, call.step))
        self._axis_of[number] = call.axis
        if overlap == "nothing":
            self._wait_for([number])
        elif overlap == "compute":
            self._until_computed.append(number)
        elif overlap == "layer":
            self._until_repeated[position] = number
        else:
            self._until_end_of_pass.append(number)

    def end_block(self) -> None:
        """Wait for the calls of the last repetition after the next computation, because there is no next repetition."""
        self._until_computed += self._until_repeated.values()
        self._until_repeated.clear()

    def end_pass(self) -> None:
        """Wait for the calls that may overlap with the rest of the pass."""
        self._wait_for(self._until_end_of_pass)

    def end(self) -> None:
        """Wait for all calls."""
        self._wait_for(self._until_computed)

    def _wait_for(self, calls: list[int]) -> None:
        self.operations.extend(Operation("wait", call, self._axis_of.pop(call)) for call in calls)
        calls.clear()


@dataclass(eq=False)
class _Lanes:
    """One lane for computation and one for each communicator."""

    everyone: Communicator
    comms: Sequence[Communicator]
    calls: Mapping[tuple[int, Step], PreparedCall]
    options: StepOptions
    flops: Sequence[float]
    """The operations of each computation."""

    def run(self, operations: Sequence[Operation], spans: Floats | None = None) -> Floats:
        """Run a step after a barrier of all ranks, and return its times in µs."""
        # These are the duration, the time on the host until everything was issued (NaN if that is the same), the time
        # for which computation waited for each axis, and the time for which each axis was busy. The start and the end
        # of each call since the start of the step are written to the rows of `spans`.
        raise NotImplementedError

    def close(self) -> None:
        """Stop the lanes."""


def probe_rank(comm: Communicator) -> RankProbe:
    """Return the free memory of this rank, and whether it can multiply matrices."""
    if comm.backend.device is None:
        return RankProbe(free_bytes(comm), "products would take cores from the ranks that communicate")
    cublas = find_cublas()
    return RankProbe(free_bytes(comm), f"cuBLAS {cublas.problem}; {cublas.fix}" if cublas.problem else "")


def probe_calls(everyone: Communicator, *arguments: Any) -> tuple[list[CallProbe], float]:
    """Check and time each (axis, step) of a schedule, and the rate of matrix products. Collective over all ranks."""
    *comms, calls, options, flops, check = arguments
    vote = StopVote(everyone, [range(everyone.size)])
    probes = []
    for axis, step in calls:
        call, n_wrong = set_up_step(comms[axis], step, check)
        # The first call connects the peers unless the check did. The median of three ignores it.
        first = float(vote.share([call.measure("pipelined", 1, 1).time_us[0]]).max())
        more = call.measure("pipelined", 1, 3).time_us if first < _SLOW_US else np.array([first])
        probes.append(CallProbe(float(vote.share([np.median(more)]).max()), n_wrong))
    rate = options.flops_per_us
    if options.compute == "products" and flops:
        lanes = _StreamLanes(everyone, [], {}, options, [flops])
        once = [Operation("compute", flops=flops)]
        durations = [lanes.run(once)[0] for _ in range(4)][1:]  # the first one chooses the kernels
        rate = flops / float(vote.share([np.median(durations)]).max())
    return probes, rate


_SLOW_US = 1e5
"""Calls from this duration on are measured once."""


class StepTimes(NamedTuple):
    """The times of the programs of a rank, in µs."""

    steps: Floats
    """The columns of `_Lanes.run`: shape (programs, repetitions, columns)."""
    spans: Floats
    """The start and the end of each call since the start of its step: shape (programs, repetitions, calls, 2)."""


def measure_steps(everyone: Communicator, *arguments: Any) -> StepTimes:
    """Time the programs of a rank in turns. Spans are measured of the first `n_calls` calls. Collective."""
    *comms, programs, options, repetitions, n_calls = arguments
    operations = [program.operations(everyone.rank, options.overlaps) for program in programs]
    calls = _prepare(comms, itertools.chain.from_iterable(operations))
    flops = [operation.flops for program in operations for operation in program if operation.kind == "compute"]
    make = _ThreadLanes if everyone.backend.device is None else _StreamLanes
    lanes: _Lanes = make(everyone, comms, calls, options, flops)
    times = np.empty((repetitions + 1, len(programs), 2 + 2 * len(comms)))
    spans = np.full((repetitions + 1, len(programs), n_calls, 2), math.nan)
    try:
        # The first repetition is the warm-up. In reverse order in every second one, so that a drift affects all alike.
        for repetition in range(repetitions + 1):
            order = range(len(programs))
            for index in order[:: -1 if repetition % 2 else 1]:
                times[repetition, index] = lanes.run(operations[index], spans[repetition, index] if n_calls else None)
    finally:
        lanes.close()
    return StepTimes(*(np.ascontiguousarray(values[1:].swapaxes(0, 1)) for values in (times, spans)))


def count_wrong(everyone: Communicator, *arguments: Any) -> list[tuple[tuple[int, Step], int | None]]:
    """Check the result of each different call of a program on this rank. Collective."""
    *comms, program, options = arguments
    by_axis = _by_axis(program.operations(everyone.rank, options.overlaps))
    return [((axis, step), set_up_step(comms[axis], step, True)[1]) for axis, steps in by_axis for step in steps]


def _by_axis(operations: Iterable[Operation]) -> list[tuple[int, list[Step]]]:
    """Return the different calls of each axis, in an order in which all ranks can make each of them once."""
    # The ranks of a group have the same calls in the same order. Those of different axes may be in another order on
    # other ranks.
    by_axis: dict[int, dict[Step, None]] = {}
    for operation in operations:
        if operation.step is not None:
            by_axis.setdefault(operation.axis, {})[operation.step] = None
    return [(axis, list(by_axis[axis])) for axis in sorted(by_axis)]


def _prepare(comms: Sequence[Communicator], operations: Iterable[Operation]) -> dict[tuple[int, Step], PreparedCall]:
    """Prepare each different call, and run it once, in which the ranks also compare it."""
    # The calls of an axis run in order, so they share their memory. Different axes communicate at the same time.
    by_axis = _by_axis(operations)
    prepared: dict[tuple[int, Step], PreparedCall] = {}
    if not by_axis:
        return prepared
    moving = [[(comms[axis], step) for step in steps if step.count is not None] for axis, steps in by_axis]
    sets = iter(allocate_shared([parts for parts in moving if parts]))
    for axis, steps in by_axis:
        buffers = iter(next(sets) if any(step.count is not None for step in steps) else ())
        for step in steps:
            if step.count is None:
                prepared[axis, step] = comms[axis].prepare(step.collective)
            else:
                pair = next(buffers)
                pair.send[...] = 0
                pair.out[...] = 0
                prepared[axis, step] = prepare_step(comms[axis], step, pair)
            prepared[axis, step]()
    return prepared


def _calls_of(operations: Sequence[Operation], calls: Mapping[tuple[int, Step], PreparedCall]) -> list[Any]:
    """Return the call of each operation, before the time is taken. None for those that compute or wait."""
    return [None if step is None else calls[axis, step] for _, _, axis, step, _ in operations]


@dataclass(eq=False)
class _ThreadLanes(_Lanes):
    """Waits instead of computation in this thread, and a thread for each communicator with calls that overlap."""

    def __post_init__(self) -> None:
        self._barrier = self.everyone.prepare("barrier")
        self._workers: dict[int, CallThread] = {}

    def run(self, operations: Sequence[Operation], spans: Floats | None = None) -> Floats:
        """Run a step, see `_Lanes`."""
        clock = time.perf_counter
        exposed, busy = np.zeros(len(self.comms)), np.zeros(len(self.comms))
        flights: dict[int, Flight] = {}
        calls = _calls_of(operations, self.calls)
        self._barrier()
        start = clock()
        for (kind, number, axis, _, flops), call in zip(operations, calls, strict=True):
            begin = clock()
            if kind == "compute":
                _pause(begin + flops / self.options.flops_per_us / 1e6)
            elif kind == "run":
                call()
                duration = clock() - begin
                exposed[axis] += duration
                busy[axis] += duration
                if spans is not None:
                    spans[number] = (begin - start) * 1e6, (begin - start + duration) * 1e6
            elif kind == "start":
                flights[number] = self._worker(axis).submit(call)
            else:
                flight = flights.pop(number)
                busy[axis] += flight.wait()
                exposed[axis] += clock() - begin
                if spans is not None:
                    spans[number] = (flight.began - start) * 1e6, (flight.began - start + flight.seconds) * 1e6
        return np.array([clock() - start, math.nan, *exposed, *busy]) * 1e6

    def _worker(self, axis: int) -> CallThread:
        if axis not in self._workers:
            self._workers[axis] = CallThread()
            self._workers[axis].start()
        return self._workers[axis]

    def close(self) -> None:
        """Stop the threads. One that is blocked in a call ends after it."""
        for worker in self._workers.values():
            worker.tasks.put(None)


class Flight:
    """A call that a worker runs."""

    def __init__(self, call: PreparedCall) -> None:
        self.call = call
        self.is_done = threading.Event()
        self.began = self.seconds = 0.0
        self.error: BaseException | None = None

    def wait(self) -> float:
        """Wait for the call, and return its duration in seconds."""
        self.is_done.wait()
        if self.error is not None:
            raise self.error
        return self.seconds


class CallThread(threading.Thread):
    """Runs the calls of one communicator in order."""

    def __init__(self) -> None:
        super().__init__(name="meshlab communication", daemon=True)
        self.tasks: SimpleQueue[Flight | None] = SimpleQueue()

    def submit(self, call: PreparedCall) -> Flight:
        """Queue a call."""
        flight = Flight(call)
        self.tasks.put(flight)
        return flight

    def run(self) -> None:
        """Run calls until None arrives."""
        while (flight := self.tasks.get()) is not None:
            flight.began = time.perf_counter()
            try:
                flight.call()
            except BaseException as error:
                flight.error = error
            flight.seconds = time.perf_counter() - flight.began
            flight.is_done.set()


_PRECISION_S = 2e-4
"""A sleep may take this much longer than requested."""


def _pause(until: float) -> None:
    """Wait until a time of `time.perf_counter`, without occupying a core for long."""
    left = until - time.perf_counter() - _PRECISION_S
    if left > 0:
        time.sleep(left)
    while time.perf_counter() < until:
        time.sleep(0)


_AHEAD_US, _LONGEST_AHEAD_US = 30.0, 1e5
"""The time by which the host is ahead of the GPU, so that no call waits for it: for each call, and at most, in µs."""

_REPEATS = 30


@dataclass(eq=False)
class _StreamLanes(_Lanes):
    """A stream for computation, and the stream of each communicator. Events order and time them."""

    def __post_init__(self) -> None:
        everyone, options = self.everyone, self.options
        self._cuda: Any = everyone.xp.cuda
        self._streams: list[Any] = [getattr(comm.backend, "stream", None) for comm in self.comms]
        self._compute = self._cuda.Stream(non_blocking=True)
        self._work: Callable[[float], None]
        if options.compute == "products" and self.flops:
            self._work = _Products(everyone.xp, self._compute, self.flops)
        else:
            self._work = _Waits(everyone.xp, self._compute, options.flops_per_us)
        self._waits = _Waits(everyone.xp, self._compute, 1.0)
        self._timed: list[Any] = []
        self._untimed: list[Any] = []
        for comm in (everyone, *self.comms):  # the first calls ran on other streams
            comm.backend.wait_idle()  # type: ignore[attr-defined]

    def run(self, operations: Sequence[Operation], spans: Floats | None = None) -> Floats:
        """Run a step, see `_Lanes`."""
        compute, streams, work = self._compute, self._streams, self._work
        timed = _reused(self._timed, self._cuda.Event)
        untimed = _reused(self._untimed, partial(self._cuda.Event, disable_timing=True))
        computes = any(operation.kind == "compute" for operation in operations)
        flights: dict[int, tuple[int, Any, Any]] = {}
        stalls: list[tuple[int, Any, Any]] = []
        start, done = next(timed), next(timed)
        calls = _calls_of(operations, self.calls)
        self.everyone.barrier()
        if spans is not None:
            self._waits(min(_AHEAD_US * len(spans), _LONGEST_AHEAD_US))
        start.record(compute)
        for stream in streams:
            stream.wait_event(start)
        began = time.perf_counter()
        for (kind, number, axis, _, flops), call in zip(operations, calls, strict=True):
            if kind == "compute":
                work(flops)
                continue
            if kind != "wait":
                stream, begin, end = streams[axis], next(timed), next(timed)
                if computes:
                    # The call uses the results of the computation before it, and of calls that were waited for.
                    ready = next(untimed)
                    ready.record(compute)
                    stream.wait_event(ready)
                begin.record(stream)
                call.enqueue()
                end.record(stream)
                flights[number] = axis, begin, end
            if kind != "start" and computes:
                before, after = next(timed), next(timed)
                before.record(compute)
                compute.wait_event(flights[number][2])
                after.record(compute)
                stalls.append((axis, before, after))
        if not computes:  # calls of one stream follow one another, and only the last one is waited for
            for _, _, end in flights.values():
                compute.wait_event(end)
        done.record(compute)
        host = time.perf_counter() - began
        self.everyone.backend.wait(done)  # type: ignore[attr-defined]
        if spans is not None:
            elapsed, least = self._cuda.get_elapsed_time, self._events_us
            for number, (_, begin, end) in flights.items():
                last = elapsed(start, end) * 1e3
                spans[number] = last - max(elapsed(begin, end) * 1e3 - least, 0.0), last
        return np.array(
            [
                self._cuda.get_elapsed_time(start, done) * 1e3,
                host * 1e6,
                *self._sums(stalls, len(streams)),
                *self._sums(flights.values(), len(streams)),
            ]
        )

    @cached_property
    def _events_us(self) -> float:
        """The time between two events around a kernel that does nothing: what the events add to a call, in µs."""
        events = [(self._cuda.Event(), self._cuda.Event()) for _ in range(_REPEATS)]
        self._waits(_AHEAD_US * len(events))
        for begin, end in events:
            begin.record(self._compute)
            self._waits(0.0)
            end.record(self._compute)
        self.everyone.backend.wait(events[-1][1])  # type: ignore[attr-defined]
        return float(np.median([self._cuda.get_elapsed_time(*pair) for pair in events])) * 1e3

    def _sums(self, spans: Iterable[tuple[int, Any, Any]], n: int) -> Floats:
        """Return the sum of the times between pairs of events for each axis, in µs."""
        sums = np.zeros(n)
        for axis, begin, end in spans:
            sums[axis] += self._cuda.get_elapsed_time(begin, end) * 1e3
        return sums


def _reused(pool: list[Any], make: Callable[[], Any]) -> Iterator[Any]:
    """Yield the objects of a pool, and add new ones if it has too few."""
    for index in itertools.count():
        if index == len(pool):
            pool.append(make())
        yield pool[index]


_LARGEST, _SMALLEST = 8192, 256
"""The size of the matrices of a product. Larger ones are not faster, and smaller ones are mostly overhead."""

_PATTERN = 1 << 16
"""The number of different elements of a matrix. It divides the size of the smallest one."""

_ROWS = 64
"""The first matrix has a multiple of this number of rows, so that all products use the tensor cores."""


class _Products:
    """Matrix products in half precision with a given number of floating-point operations, on a stream."""

    def __init__(self, xp: Any, stream: Any, flops: Sequence[float]) -> None:
        # A few products for the largest computation. Smaller ones have fewer rows.
        n = _LARGEST
        while n > _SMALLEST and 8 * n**3 > max(flops):
            n //= 2
        self._xp, self._stream, self._n = xp, stream, n
        with stream:
            # Pseudo-random numbers in [-1, 1): products of zeros need less power, so that the GPU runs faster. They
            # repeat, because intermediate results of this size would stay in CuPy's memory pool.
            hashed = xp.arange(_PATTERN, dtype="uint32") * xp.uint32(2654435761)
            pattern = ((hashed >> 22).astype("float32") / 512 - 1).astype("float16")
            self._a, self._b, self._out = (xp.empty((rows, n), "float16") for rows in (_LARGEST, n, _LARGEST))
            for matrix in (self._a, self._b):
                matrix.reshape(-1, _PATTERN)[...] = pattern

    def __call__(self, flops: float) -> None:
        """Enqueue products with about this number of operations."""
        rows = round(flops / (2 * self._n**2 * _ROWS)) * _ROWS
        with self._stream:
            for first in range(0, rows, _LARGEST):
                n = min(_LARGEST, rows - first)
                self._xp.matmul(self._a[:n], self._b, out=self._out[:n])


class _Waits:
    """Waits on a stream that occupy one multiprocessor, instead of computation."""

    def __init__(self, xp: Any, stream: Any, flops_per_us: float) -> None:
        self._kernel, self._stream, self._flops_per_us = wait_kernel(xp), stream, flops_per_us
        self._xp = xp

    def __call__(self, flops: float) -> None:
        """Enqueue a wait of the duration of the computation."""
        with self._stream:
            self._kernel((1,), (1,), (self._xp.uint64(flops / self._flops_per_us * 1e3),))


def release_memory(comm: Communicator) -> None:
    """Free the memory that this rank has kept for calls and products."""
    release_buffers()
    if comm.backend.device is not None:
        comm.xp.get_default_memory_pool().free_all_blocks()


@cache
def wait_kernel(xp: Any) -> Any:
    """Return a kernel that waits for a number of nanoseconds."""
    code = """
    extern "C" __global__ void meshlab_wait(unsigned long long ns) {
        unsigned long long begin, now;
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
        do { asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)); } while (now - begin < ns);
    }
    """
    return xp.RawKernel(code, "meshlab_wait")
