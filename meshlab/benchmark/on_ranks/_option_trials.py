"""Trials of the options of one call: all are prepared and checked, and then they take turns. Runs on the engines."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from meshlab.base._errors import BenchError, MeshlabError
from meshlab.benchmark.on_ranks._halving import halve
from meshlab.benchmark.on_ranks._sampling import StopVote
from meshlab.benchmark.on_ranks._step_calls import set_up_step

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from meshlab.comm._backend import Mode, Timings
    from meshlab.comm._communicator import Communicator
    from meshlab.plans._steps import Step

Status = Literal["ok", "wrong", "failed", "unsupported", "dropped"]

Ints = npt.NDArray[np.int32]

HOPELESS = 2.0
"""The ratio to the time of the default in the first calls from which an option is not measured any further."""

_GRAPH_CALLS = 20
"""Batches of captured calls are a multiple of this number, so that all of their graphs are the same."""

_SLOW_BYTES = 1 << 24
"""The size from which a single call takes long enough to be timed."""

_HOST_BOUND_US = 25.0
"""Up to this time, a call that is not captured may take as long as the host needs to enqueue it."""


class TimedTrial(Protocol):
    """A prepared call, as `meshlab.comm.PreparedCall`."""

    def measure(self, mode: Mode, calls: int, batches: int) -> Timings:
        """Time batches of calls."""

    def held(self, mode: Mode, calls: int) -> AbstractContextManager[Callable[[int], Timings]]:
        """Prepare batches of calls once."""


SetUp = Callable[["Communicator", "Step", bool], tuple[TimedTrial, int | None]]
"""Prepares the call of an option and checks its result, as `set_up_step`."""


class TrialRounds(NamedTuple):
    """The extent of the trials of a call's options."""

    rounds: int
    max_s: float
    """The duration of all rounds in seconds after which no further one begins."""
    check: bool
    halves: bool
    """Whether to drop the slower half of the options after each of the first rounds."""
    batches: int = 3
    """The number of batches of an option in each round."""
    batch_us: float = 2000.0
    """The target duration of a batch, in µs."""
    max_calls: int = 400
    """The largest number of calls in a batch."""


class Trial(NamedTuple):
    """The outcome of an option. The same on all ranks, except the number of wrong elements."""

    status: Status
    """`ok` for an option that took part in all rounds."""
    message: str
    """The reason for another status."""
    n_wrong: int | None
    """The number of wrong elements on this rank. None if unchecked."""
    times_us: tuple[float, ...] = ()
    """The time per call in each round, on the slowest rank of the slowest group, in µs."""
    ratio: float = float("nan")
    """The time of the first calls relative to those of the default. NaN if unknown."""
    alone_us: tuple[float, float] | None = None
    """The times of the matrix product and of the call beside it, each alone, in µs. None without a product."""


_WITHOUT_DEFAULT = Trial("failed", "the default could not be measured", None)


def try_options(
    comm: Communicator,
    everyone: Communicator,
    steps: Sequence[Step],
    how: TrialRounds,
    groups: Ints,
    set_up: SetUp = set_up_step,
) -> list[Trial]:
    """Check the options of one call, the default first, and measure them in interleaved rounds. Collective."""
    # `groups` has the ranks of each group, as ranks of `everyone`, shape (groups, size).
    vote = TrialVote(StopVote(everyone, groups))
    trials: list[Trial | None] = [None] * len(steps)
    calls: dict[int, Any] = {}
    n_wrong: list[int | None] = [None] * len(steps)
    with comm.backend.local(), ExitStack() as held:
        for number, step in enumerate(steps):
            call, n_wrong[number], trials[number] = prepare_trial(comm, step, how.check, vote, set_up)
            if trials[number] is None:
                calls[number] = call
        if 0 not in calls:  # without the default there is nothing to compare with
            return [trial or _WITHOUT_DEFAULT for trial in trials]
        mode = steps[0].mode
        n_first = 1 if mode != "graph" or (steps[0].size_bytes or 0) >= _SLOW_BYTES else 2
        # Of a few calls that are not captured.
        first_us = {
            number: vote.shortest(call.measure("pipelined", n_first, 2).time_us) for number, call in calls.items()
        }
        ratios = {number: time_us / first_us[0] for number, time_us in first_us.items()}
        is_reliable = mode != "graph" or first_us[0] > _HOST_BOUND_US
        n_calls = _calls_per_batch(first_us[0], mode, how)
        measures: dict[int, Callable[[int], Timings]] = {}
        for number, call in calls.items():
            if is_reliable and how.halves and ratios[number] > HOPELESS:
                reason = f"its first calls took {ratios[number]:.1f} times as long as those of the default"
                trials[number] = Trial("dropped", reason, n_wrong[number], (first_us[number],), ratios[number])
                continue
            problem = ""
            try:
                measures[number] = held.enter_context(call.held(mode, n_calls))
            except MeshlabError as error:
                problem = error.summary
            status, message = vote.outcome(problem)
            if status != "ok":
                measures.pop(number, None)
                trials[number] = Trial(status, message, n_wrong[number])
        if 0 not in measures:
            return [trial or _WITHOUT_DEFAULT for trial in trials]
        options = list(measures)
        began = time.perf_counter()  # the library may have connected the ranks anew for some options

        def measure(order: Sequence[int]) -> list[float]:
            parts = [measures[options[position]](how.batches).time_us for position in order]
            return vote.times(parts)

        def goes_on(n_rounds: int) -> bool:
            spent_s = vote.largest(time.perf_counter() - began)
            return spent_s * (n_rounds + 1) / n_rounds <= how.max_s if not how.halves else spent_s <= how.max_s

        fewest = {} if how.halves else {"fewest": len(options)}
        halved = halve(len(options), measure, rounds=how.rounds, goes_on=goes_on, **fewest)
        alone = {number: vote.alone(calls[number]) for number in options}
    for position, number in enumerate(options):
        times = tuple(halved.times[position])
        status, message = ("ok", "") if position in halved.left else ("dropped", _why_dropped(halved.times, position))
        trials[number] = Trial(status, message, n_wrong[number], times, ratios[number], alone[number])
    return [trial for trial in trials if trial is not None]


def prepare_trial(
    comm: Communicator, step: Step, check: bool, vote: TrialVote, set_up: SetUp
) -> tuple[TimedTrial | None, int | None, Trial | None]:
    """Return the prepared call and its number of wrong elements, or a trial with the reason why there is no call."""
    call, n_wrong, problem = None, None, ""
    try:
        call, n_wrong = set_up(comm, step, check)
    except MeshlabError as error:
        problem = error.summary
    except Exception as error:
        raise BenchError(f"{step}: {type(error).__name__}: {error}") from error
    # A library checks a choice locally and in the same way on all ranks, so an error on one of them is an error on all,
    # and no rank waits in the call. The vote leaves the option out on all of them.
    status, message = vote.outcome(problem)
    if status != "ok":
        return None, None, Trial(status, message, None)
    if vote.largest(n_wrong or 0):
        return None, n_wrong, Trial("wrong", "its result is wrong", n_wrong)
    return call, n_wrong, None


def _calls_per_batch(call_us: float, mode: Mode, how: TrialRounds) -> int:
    """Return the number of calls in a batch, which is the same for all options."""
    calls = int(min(max(1.0, how.batch_us / max(call_us, 1e-3)), how.max_calls))
    return calls - calls % _GRAPH_CALLS if mode == "graph" and calls > _GRAPH_CALLS else calls


def _why_dropped(times: Sequence[Sequence[float]], position: int) -> str:
    n = len(times[position])
    ratio = float(np.median(np.array(times[position]) / np.array(times[0][:n])))
    return f"dropped after {n} round{'s' * (n != 1)}, at {ratio:.2f} times the default"


class TrialVote:
    """Decisions that all ranks take together, because one that decided differently would deadlock the others."""

    def __init__(self, vote: StopVote) -> None:
        self._vote = vote

    def largest(self, value: float) -> float:
        """Return the largest value of all ranks."""
        return float(self._vote.share([value]).max())

    def times(self, parts: Sequence[npt.NDArray[np.float64]]) -> list[float]:
        """Return the median over the batches of each part, on the slowest rank of the slowest group."""
        shared = self._vote.share(np.concatenate(parts).tolist()).reshape(-1, len(parts), len(parts[0]))
        return [float(value) for value in np.median(shared, axis=2).max(axis=0)]

    def shortest(self, times: npt.NDArray[np.float64]) -> float:
        """Return the shortest batch on the slowest rank of the slowest group."""
        return float(self._vote.share(times.tolist()).max(axis=0).min())

    def alone(self, call: Any) -> tuple[float, float] | None:
        """Return the times of a product and of the call beside it, each alone. None for a call without a product."""
        times = getattr(call, "alone_us", None)
        if times is None:
            return None
        product, call_us = self._vote.share(times).max(axis=0)
        return float(product), float(call_us)

    def outcome(self, problem: str) -> tuple[Status, str]:
        """Return the status of an option that has a problem on all ranks, or on some of them."""
        fails, works = self._vote.share([bool(problem), not problem]).max(axis=0)
        if not fails:
            return "ok", ""
        return ("failed" if works else "unsupported"), problem or "it failed on another rank"
