"""A matrix product beside a call: each of them alone, and both together. Runs on the engines."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from meshlab.base._errors import BenchError, MeshlabError
from meshlab.benchmark.on_ranks._buffers import allocate
from meshlab.benchmark.on_ranks._checking import fill_periodically
from meshlab.benchmark.on_ranks._option_trials import Status, TrialVote, prepare_trial
from meshlab.benchmark.on_ranks._sampling import StopVote
from meshlab.benchmark.on_ranks._step_calls import aggregated, set_up_step
from meshlab.benchmark.on_ranks._training_step import CallThread, wait_kernel
from meshlab.comm._backend import Mode, Timings
from meshlab.comm._catalog import CATALOG
from meshlab.comm._elements import find_dtype, is_integer
from meshlab.comm.backends._cuda_parts import find_cublas

if TYPE_CHECKING:
    from meshlab.comm._communicator import Communicator
    from meshlab.comm._prepared_call import PreparedCall
    from meshlab.plans._steps import Step

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]

PARTS = ("compute", "communication", "both", "compute_within", "communication_within")
"""The times of a pair: the product alone, the call alone, both together, and each of them within both."""

HEAD_US = 4.0
"""The time by which a call starts before the product, in µs."""

_PATTERN = 65537
"""The number of different elements of a matrix. A prime, so that the rows differ."""


class MatrixProduct(NamedTuple):
    """A product of matrices of the shapes (m, k) and (k, n)."""

    m: int
    n: int
    k: int
    dtype: str

    @property
    def n_bytes(self) -> int:
        """The memory of the three matrices."""
        return (self.m * self.k + self.k * self.n + self.m * self.n) * find_dtype(self.dtype).itemsize

    def __str__(self) -> str:
        return f"{self.m} × {self.n} × {self.k} {self.dtype}"


First = Literal["call", "product"]
"""The part of a pair that a GPU starts first."""


class PairRounds(NamedTuple):
    """The extent of the measurements of a call with its options."""

    rounds: int
    repeats: int
    """The number of products, of calls and of pairs of an option in each round."""
    first: First = "call"


class PairTrial(NamedTuple):
    """The measurements of an option on one rank."""

    status: Status
    message: str
    n_wrong: int | None
    times_us: Floats | None = None
    """Medians of each round in µs, shape (rounds, `PARTS`)."""


def measure_pairs(
    comm: Communicator,
    everyone: Communicator,
    steps: Sequence[Step],
    product: MatrixProduct,
    how: PairRounds,
    groups: Ints,
) -> list[PairTrial]:
    """Measure a product beside a call with each option, in interleaved rounds. Collective."""
    # `groups` has the ranks of each group, as ranks of `everyone`, shape (groups, size).
    vote = TrialVote(StopVote(everyone, groups))
    trials: list[PairTrial | None] = [None] * len(steps)
    n_wrong: list[int | None] = [None] * len(steps)
    with comm.backend.local(), ExitStack() as held:
        lanes: dict[int, _Lanes] = {}
        set_up = partial(set_up_beside, product, first=how.first)
        for number, step in enumerate(steps):
            call, n_wrong[number], trial = prepare_trial(comm, step, True, vote, set_up)
            status: Status = "ok" if trial is None else trial.status
            message = "" if trial is None else trial.message
            if isinstance(call, PairedCall):
                problem = ""
                try:
                    lanes[number] = held.enter_context(call.lanes.ready(step.mode))
                except MeshlabError as error:
                    problem = error.summary
                status, message = vote.outcome(problem)
            if status != "ok":
                lanes.pop(number, None)
                trials[number] = PairTrial(status, message, n_wrong[number])
        times = {number: np.empty((how.rounds, len(PARTS))) for number in lanes}
        for index in range(-1, how.rounds):  # the first round is the warm-up
            # In reverse order in every second one, so that a drift affects all options and parts alike.
            for number in list(lanes)[:: -1 if index % 2 else 1]:
                medians = _medians(lanes[number], how.repeats, is_reversed=bool(index % 2))
                if index >= 0:
                    times[number][index] = medians
    for number, of_option in times.items():
        trials[number] = PairTrial("ok", "", n_wrong[number], of_option)
    return [trial for trial in trials if trial is not None]


def _medians(lanes: _Lanes, repeats: int, *, is_reversed: bool) -> Floats:
    """Return the medians of the parts of a pair."""
    choices = ((True, False), (False, True), (True, True))
    parts = {choice: np.median(lanes.run(*choice, repeats), axis=0) for choice in choices[:: -1 if is_reversed else 1]}
    return np.array([parts[True, False][0], parts[False, True][0], *parts[True, True]])


def set_up_beside(
    product: MatrixProduct, comm: Communicator, step: Step, check: bool, first: First = "call"
) -> tuple[PairedCall, int | None]:
    """Prepare and check the call of a step, beside a product. The result takes part in trials of options."""
    buffers = allocate(aggregated(comm, step))
    call, n_wrong = set_up_step(comm, step, check, buffers)
    if not (step.in_place and CATALOG[step.collective].reduces):  # whose repetitions would grow
        for pair in buffers:
            fill_randomly(comm.xp, pair.send)
    return PairedCall(comm, call, _matrices(comm, product), first), n_wrong


def fill_randomly(xp: Any, array: Any) -> None:
    """Fill an array with pseudo-random numbers. Zeros need less power to compute, so that a GPU runs faster."""
    hashed = (np.arange(_PATTERN, dtype=np.uint32) * np.uint32(2654435761)) >> np.uint32(22)
    dtype = np.dtype(array.dtype)
    numbers = hashed % 100 if is_integer(dtype) else hashed.astype(np.float32) / 512 - 1
    fill_periodically(xp, array.reshape(-1), numbers.astype(dtype))


class PairedCall:
    """A product beside a call, with the interface of a prepared call. Its time is that of both together."""

    def __init__(self, comm: Communicator, call: PreparedCall, matrices: _Matrices, first: First = "call") -> None:
        make = _ThreadLanes if comm.backend.device is None else _StreamLanes
        self.lanes: _Lanes = make(comm, call, matrices, first)
        self._alone: list[Floats] = []

    def measure(self, mode: Mode, calls: int, batches: int) -> Timings:
        """Time batches of pairs."""
        with self.held(mode, calls) as measure:
            return measure(batches)

    @contextmanager
    def held(self, mode: Mode, calls: int) -> Iterator[Callable[[int], Timings]]:
        """Prepare batches of pairs once."""
        with self.lanes.ready(mode) as lanes:

            def measure(batches: int) -> Timings:
                times = lanes.run(True, True, batches * calls)[:, 0].reshape(batches, calls).mean(axis=1)
                self._alone.append(np.array([lanes.run(True, False, 1)[0, 0], lanes.run(False, True, 1)[0, 0]]))
                return Timings(times, times, None)

            yield measure

    @property
    def alone_us(self) -> tuple[float, float]:
        """The median times of the product and of the call alone, in the rounds so far."""
        product, call = np.median(self._alone, axis=0)
        return float(product), float(call)


class _Matrices:
    """The matrices of a product on one rank."""

    def __init__(self, comm: Communicator, product: MatrixProduct) -> None:
        if comm.backend.device is not None and (cublas := find_cublas()).problem:
            raise BenchError(f"overlap() needs cuBLAS for its matrix product: cuBLAS {cublas.problem}", hint=cublas.fix)
        self._xp, dtype = comm.xp, find_dtype(product.dtype)
        m, n, k, _ = product
        try:
            self._first, self._second, self._out = (self._xp.empty(s, dtype) for s in ((m, k), (k, n), (m, n)))
            for matrix in (self._first, self._second):
                fill_randomly(self._xp, matrix)
            self.multiply()
        except (TypeError, ValueError, NotImplementedError) as error:
            raise BenchError(f"{self._xp.__name__} cannot multiply matrices of {product.dtype}: {error}") from error

    def multiply(self) -> None:
        """Multiply, on the current stream of a GPU."""
        self._xp.matmul(self._first, self._second, out=self._out)


# All options of a call multiply the same matrices, which exist as long as one of them is prepared.
_kept: WeakValueDictionary[tuple[int, MatrixProduct], _Matrices] = WeakValueDictionary()


def _matrices(comm: Communicator, product: MatrixProduct) -> _Matrices:
    key = threading.get_ident(), product  # ranks of the threads backend have their own
    matrices = _kept.get(key)
    if matrices is None:
        matrices = _kept[key] = _Matrices(comm, product)
    return matrices


class _Lanes:
    """A lane for the product and one for the call."""

    def __init__(self, comm: Communicator, call: PreparedCall, matrices: _Matrices, first: First = "call") -> None:
        self._comm, self._call, self._matrices, self._first = comm, call, matrices, first

    @contextmanager
    def ready(self, mode: Mode) -> Iterator[_Lanes]:
        """Prepare repetitions."""
        yield self

    def run(self, computes: bool, communicates: bool, n: int) -> Floats:
        """Run a part n times, each after a barrier. Return times in µs, shape (n, 3): both, product, call."""
        raise NotImplementedError


class _ThreadLanes(_Lanes):
    """The product in this thread, and the call in another one."""

    @contextmanager
    def ready(self, mode: Mode) -> Iterator[_Lanes]:
        self._barrier = self._comm.prepare("barrier")
        self._worker = CallThread()
        self._worker.start()
        try:
            yield self
        finally:
            self._worker.tasks.put(None)

    def run(self, computes: bool, communicates: bool, n: int) -> Floats:
        clock, times = time.perf_counter, np.full((n, 3), math.nan)
        for index in range(n):
            self._barrier()
            start = clock()
            flight = self._worker.submit(self._call) if communicates else None
            if computes:
                self._matrices.multiply()
                times[index, 1] = clock() - start
            if flight is not None:
                times[index, 2] = flight.wait()
            times[index, 0] = clock() - start
        return times * 1e6


class _StreamLanes(_Lanes):
    """A stream for the product, and the stream of the communicator. Events order and time them."""

    def __init__(self, comm: Communicator, call: PreparedCall, matrices: _Matrices, first: First = "call") -> None:
        super().__init__(comm, call, matrices, first)
        backend: Any = comm.backend
        self._backend = backend
        self._cuda: Any = comm.xp.cuda
        self._wait = wait_kernel(comm.xp)
        self._communication = backend.stream
        self._compute = self._cuda.Stream(non_blocking=True)
        self._multiply: Callable[[], object] = self._multiply_on_stream
        self._communicate: Callable[[], object] = call.enqueue

    def _multiply_on_stream(self) -> None:
        with self._compute:
            self._matrices.multiply()

    @contextmanager
    def ready(self, mode: Mode) -> Iterator[_Lanes]:
        self._barrier = self._comm.prepare("barrier").enqueue
        self._backend.wait_idle()  # the first calls ran on other streams
        with ExitStack() as captured:
            if mode == "graph":
                self._communicate = captured.enter_context(self._backend.captured(self._call.enqueue))
                with suppress(MeshlabError):  # a product that takes memory cannot be captured, and is launched instead
                    self._multiply = captured.enter_context(self._backend.captured(self._multiply, self._compute))
            try:
                yield self
            finally:
                self._multiply, self._communicate = self._multiply_on_stream, self._call.enqueue

    def run(self, computes: bool, communicates: bool, n: int) -> Floats:
        compute, communication, first = self._compute, self._communication, self._first
        events = [[self._cuda.Event() for _ in range(5)] for _ in range(n)]
        # A product outside the timed part, during which the host enqueues the rest.
        self._multiply()
        warm = self._cuda.Event(disable_timing=True)
        warm.record(compute)
        communication.wait_event(warm)
        for start, computed, begin, end, done in events:
            # All ranks start at a barrier. A call that begins some µs earlier gets its multiprocessors before the
            # product takes all that are left. In the other order, it waits for most of the product's thread blocks,
            # which go first. The product alone has the same delay.
            self._barrier()
            start.record(communication)
            if first == "call":
                self._enqueue_call(communicates, begin, end)
                compute.wait_event(start)
                self._delay()
            else:
                compute.wait_event(start)
                start.record(compute)
            if computes:
                self._multiply()
            computed.record(compute)
            if first == "product":
                communication.wait_event(start)
                self._enqueue_call(communicates, begin, end)
            compute.wait_event(end)
            done.record(compute)
            communication.wait_event(done)
        self._backend.wait(events[-1][-1])
        elapsed = self._cuda.get_elapsed_time
        return 1e3 * np.array(
            [
                (elapsed(start, done), elapsed(start, computed), elapsed(begin, end))
                for start, computed, begin, end, done in events
            ]
        )

    def _delay(self) -> None:
        """Occupy one thread of the product's stream for a moment."""
        with self._compute:
            self._wait((1,), (1,), (self._comm.xp.uint64(1e3 * HEAD_US),))

    def _enqueue_call(self, communicates: bool, begin: Any, end: Any) -> None:
        begin.record(self._communication)
        if communicates:
            self._communicate()
        end.record(self._communication)
