"""Two sides of a comparison, in batches that take turns within milliseconds. Runs on the engines."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from meshlab.benchmark.on_ranks._buffers import StepBuffers, allocate, allocate_shared
from meshlab.benchmark.on_ranks._sampling import SLOW_CALL_S, StopVote, calls_per_batch
from meshlab.benchmark.on_ranks._step_calls import aggregated, set_up_step
from meshlab.comm._backend import Mode, Timings

if TYPE_CHECKING:
    from meshlab.comm._communicator import Communicator
    from meshlab.plans._sampling import Sampling
    from meshlab.plans._steps import Function, Step

Floats = npt.NDArray[np.float64]
_Hold = Callable[[Mode, int], AbstractContextManager[Callable[[int], Timings]]]

ORDER = (0, 1, 1, 0)
"""The sides in the order of their batches: a drift within the four batches adds the same time to both sides."""

_CHUNK_S, _FEWEST_TURNS = 0.05, 4
"""The duration in seconds, and the number, of turns between two votes on whether to continue."""

_PROBES = 8


class TurnTimes(NamedTuple):
    """What one rank measured in a block of turns."""

    time_us: Floats
    """The time per call in µs, shape (turns, 4), in the order of `ORDER`."""
    n_wrong: tuple[int | None, int | None]
    """The number of wrong elements of each side. None if unchecked."""
    waiting: float
    """The share of the time during which the rank waited for a core. NaN if the system does not count it."""


def neighbours(time_us: Floats) -> Floats:
    """Return the pairs of both sides whose batches follow each other, shape (pairs, 2), from `TurnTimes.time_us`."""
    return np.concatenate([time_us[:, :2], time_us[:, :1:-1]])


def measure_turns(
    comm: Communicator,
    everyone: Communicator,
    steps: tuple[Step, Step],
    functions: tuple[Function | None, Function | None],
    sampling: Sampling,
    check: bool,
    groups: npt.NDArray[np.int32],
) -> TurnTimes:
    """Time a block of turns in all groups (ranks of `everyone`, shape (groups, size)). Collective."""
    vote = StopVote(everyone, groups)
    holds: list[_Hold] = []
    n_wrong: list[int | None] = []
    with comm.local(), ExitStack() as stack:
        for step, function, buffers in zip(steps, functions, _buffers(comm, steps), strict=True):
            if function is not None:
                holds.append(_holding(comm, function))
                n_wrong.append(None)
                continue
            call, n_wrong_of_side = set_up_step(comm, step, check, buffers)
            holds.append(call.held)
            n_wrong.append(n_wrong_of_side)
        calls = _calls_per_batch(holds, steps, vote, sampling)
        sides = [stack.enter_context(hold(step.mode, n)) for hold, step, n in zip(holds, steps, calls, strict=True)]
        time_us, waiting = _take_turns(sides, vote, sampling.max_s)
    n_aggregated = np.array([steps[side].n_aggregated or 1 for side in ORDER])
    return TurnTimes(time_us / n_aggregated, (n_wrong[0], n_wrong[1]), waiting)


def _buffers(comm: Communicator, steps: Sequence[Step]) -> list[list[StepBuffers]]:
    """Return the buffers of each side. Plain ones share memory, so that its place is the same for both sides."""
    parts = [[] if step.count is None else aggregated(comm, step) for step in steps]
    if all(step.buffers in ("plain", None) for step in steps):
        # One set for each of the calls that are issued together. A side may have fewer of them than the other.
        n = max(map(len, parts))
        sides = [[side for side, of_side in enumerate(parts) if number < len(of_side)] for number in range(n)]
        sets = [[parts[side][number] for side in sides[number]] for number in range(n)]
        buffers: list[list[StepBuffers]] = [[] for _ in parts]
        for members, arrays in zip(sides, allocate_shared(sets) if sets else [], strict=True):
            for side, pair in zip(members, arrays, strict=True):
                buffers[side].append(pair)
        return buffers
    separate = allocate([part for of_side in parts for part in of_side])
    return [separate[: len(parts[0])], separate[len(parts[0]) :]]


@contextmanager
def _held_function(
    comm: Communicator, work: Callable[[], object], mode: Mode, calls: int
) -> Iterator[Callable[[int], Timings]]:
    yield partial(comm.backend.measure, work, comm.prepare("barrier").enqueue, mode, calls)


def _holding(comm: Communicator, function: Function) -> _Hold:
    """Return the counterpart of `PreparedCall.held` for a user-defined function, or the callable that it returns."""
    returned = function(comm)
    return partial(_held_function, comm, returned if callable(returned) else partial(function, comm))


def _calls_per_batch(holds: Sequence[_Hold], steps: Sequence[Step], vote: StopVote, sampling: Sampling) -> list[int]:
    """Return the number of calls in a batch of each side."""
    longest: list[float] = []
    for hold, step in zip(holds, steps, strict=True):
        with hold(step.mode, 1) as measure:
            # The first call connects the peers and fills the caches.
            call_us = float(vote.share([measure(1).time_us[0]]).max())
            if call_us < 1e6 * SLOW_CALL_S:
                # The shortest one, because other programs only add to it: batches that are too short would mostly
                # consist of the ranks' different ways out of the barrier.
                call_us = float(vote.share(measure(_PROBES).time_us.tolist()).max(axis=0).min())
        longest.append(call_us)
    # The same number for both: a batch has a fixed cost, such as the last rank's way out of the barrier, which would
    # otherwise differ. All groups use it, so that they are busy at the same time.
    calls = min(calls_per_batch(call_us, "pipelined", sampling) for call_us in longest)
    return [1 if step.mode == "isolated" else calls for step in steps]


def _take_turns(sides: Sequence[Callable[[int], Timings]], vote: StopVote, max_s: float) -> tuple[Floats, float]:
    """Return the times of all turns, and the share of the time during which this rank waited for a core."""

    def turn() -> list[float]:
        return [float(sides[side](1).time_us[0]) for side in ORDER]

    began = time.perf_counter()
    turn()
    turn_s = float(vote.share([time.perf_counter() - began]).max())
    waited_s, began = _waited_s(), time.perf_counter()
    turns: list[list[float]] = []
    elapsed_s = 0.0
    while elapsed_s < max_s:
        # All ranks compute the same number, from times that they have shared. Votes should be rare also on a busy host.
        n_left = int((max_s - elapsed_s) / turn_s)
        n_turns = max(1, min(n_left, max(int(_CHUNK_S / turn_s), _FEWEST_TURNS)))
        if turn_s < _CHUNK_S:
            # Ranks leave the vote at different times and with cold caches. Longer calls hide both.
            sides[0](1)
            sides[1](1)
        turns += [turn() for _ in range(n_turns)]
        elapsed_s = float(vote.share([time.perf_counter() - began]).max())
        turn_s = elapsed_s / len(turns)
    return np.array(turns), (_waited_s() - waited_s) / (time.perf_counter() - began)


def _waited_s() -> float:
    """Return how long this thread has waited for a core although it could run, in seconds. NaN if unknown."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9  # see proc_pid_schedstat(5)
    except (OSError, ValueError, IndexError):
        return math.nan
