"""The search for the fastest option of each call: in rounds on the engines, and again on new ranks."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from meshlab.analysis.tuning._choice import best_options, usable_trials
from meshlab.analysis.tuning._tuning import Tuning
from meshlab.base._backends import GPU_BACKENDS
from meshlab.base._errors import BenchError, EngineError
from meshlab.base._units import format_size
from meshlab.benchmark._executor import describe_sharing
from meshlab.benchmark._interruptible import Interruptible
from meshlab.benchmark._preparation import plan_registered, usable_memory, voting_ranks
from meshlab.benchmark._progress import move_bar
from meshlab.benchmark.on_ranks._buffers import block_bytes, release_buffers
from meshlab.benchmark.on_ranks._option_trials import HOPELESS, SetUp, Trial, TrialRounds, try_options
from meshlab.benchmark.on_ranks._overlap import MatrixProduct, set_up_beside
from meshlab.benchmark.tuning._environments import Environment, Setting, distribute, new_ranks
from meshlab.benchmark.tuning._options import TuningOption
from meshlab.engines._engines import Engines
from meshlab.engines._lease import Lease, raise_first_error
from meshlab.frames._statistics import median_interval
from meshlab.frames._trials import CASE, OPTION, TRIALS, as_trials, option_key
from meshlab.mesh._mesh import DeviceMesh
from meshlab.plans._steps import Step
from meshlab.runs._redact import current_user

if TYPE_CHECKING:
    import pandas as pd

_SEARCHED = 0.65
"""The share of the time budget for the search. The rest is for the confirmation."""

_MAX_S_ON_GPUS, _MAX_S_ON_HOST = 3.0, 2.0
"""The time in seconds for the rounds of one call in one set of ranks, without a budget."""

_CLOSE = 1.1
"""An environment is measured again if its time is within this factor of the fastest one."""

_WORTHWHILE = 0.98
"""An option that takes less than this part of the default's time is measured again, even if the intervals overlap."""

_MOST_SETS = 3
"""The number of environments whose ranks exist at the same time, besides those of the caller and of the default."""

_FEWEST_SETTINGS = 2
"""The number of environments that are measured again in any case."""

_Calls = list[tuple[Step, list[TuningOption]]]


@dataclass(eq=False)
class _Record:
    """The measurements of an option of a call in one of the two phases."""

    times_us: list[float] = field(default_factory=list)
    status: str = "ok"
    message: str = ""
    n_wrong: int | None = None
    alone_us: list[tuple[float, float]] = field(default_factory=list)
    """The times of the product and of the call beside it, each alone. Empty for calls without a product."""


class SearchEffort(NamedTuple):
    """The number of rounds, the limits in seconds, and whether new ranks measure the fastest options again."""

    rounds: int
    budget_s: float | None
    confirms: bool
    deadline_s: float | None
    """The maximum duration of the trials of one call."""


@dataclass(eq=False)
class TuningSearch:
    """A search under way. It measures in a thread, so that an interrupt of the caller ends it between two calls."""

    engines: Engines
    mesh: DeviceMesh
    steps: Sequence[Step]
    effort: SearchEffort
    options: Callable[[Step], list[TuningOption]]
    """Those of a call within one set of ranks, the default first."""
    settings: Mapping[str, Mapping[str, Setting]]
    """The environments to try for each collective, by name."""
    set_up: SetUp | None = None
    """Prepares and checks an option on a rank, instead of `set_up_step`."""
    beside: MatrixProduct | None = None
    """A matrix product beside each call. The fastest option is that of the pair."""

    def __post_init__(self) -> None:
        self._rounds, self._budget_s, self._confirms, self._deadline_s = self.effort
        self._records: dict[tuple[str, Step, TuningOption], _Record] = {}
        self._slower: dict[tuple[str, TuningOption], str] = {}  # options that are slow at all larger sizes, and why
        self._broken: set[Environment] = set()  # with which ranks failed
        self._started: list[Engines] = []  # ranks besides those of the caller
        self._n_done, self._n_total, self._task = 0, len(self.steps), "starting"
        self._began = time.monotonic()
        self._limit_s = math.inf
        self._memory = 0  # that the buffers of a rank may use, in bytes
        if self.beside is not None:
            self.set_up = partial(set_up_beside, self.beside)

    def run(self, bar: Any) -> None:
        """Measure everything, and move the bar."""
        self._thread = Interruptible(self._work, partial(self._show, bar), self._kill, "meshlab tuning")
        try:
            self._thread.run()
        except KeyboardInterrupt as interrupt:
            interrupt.measured = self._partial_result()  # type: ignore[attr-defined]
            raise
        if self._thread.is_stopped:
            raise EngineError("the engines were closed during the tuning", measured=self._partial_result())
        if self._partial_result() is None:
            reason = next((record.message for record in self._records.values() if record.message), "")
            raise BenchError(f"nothing could be measured: {reason}")

    def _show(self, bar: Any) -> None:
        bar.total = self._n_total
        text = f"interrupted, completing {self._task}" if self._thread.is_stopped else self._task
        move_bar(bar, self._n_done, text)

    def _kill(self) -> None:
        for engines in (self.engines, *self._started):
            if engines.state != "closed":
                engines.kill()

    # -- phases --------------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        n = len({step.collective for step in self.steps})
        task = f"tuning {n} collective{'s' * (n != 1)}"
        try:
            with Lease(self.engines, task, cancel=self._thread.stop) as lease:
                try:
                    self._leave_out_large(lease)
                    self._begin_phase(_SEARCHED if self._confirms else 1.0)
                    self._search(lease)
                    if self._confirms and not self._thread.is_stopped:
                        self._begin_phase(1.0)
                        self._confirm(lease)
                finally:
                    if self.engines.state == "busy":  # neither closed nor broken
                        lease.round(release_buffers).run()
        except EngineError as error:
            raise EngineError(
                f"tuning failed at {self._task}: {error.summary}",
                rank=error.rank,
                host=error.host,
                log=error.log,
                measured=self._partial_result(),
            ) from error

    def _begin_phase(self, share: float) -> None:
        if self._budget_s is not None:
            self._limit_s = self._began + share * self._budget_s

    def _leave_out_large(self, lease: Lease) -> None:
        """Keep only calls whose buffers fit into the memory. Each kind of buffers has its own."""
        taken = 0 if self.beside is None else self.beside.n_bytes
        most = self._memory = usable_memory(lease, "preparing a tuning") - taken
        steps = []
        for step in self.steps:
            kinds = {option.buffers for option in self.options(step)}
            needed = len(kinds) * (step.buffer_bytes if kinds == {"plain"} else block_bytes(step))
            if needed <= most:
                steps.append(step)
                continue
            reason = f"its buffers take {format_size(needed)} per rank, but {format_size(most)} may be used"
            self._records["search", step, TuningOption()] = _Record(status="failed", message=reason)
        if not steps:
            raise BenchError(f"no size fits into the memory of the ranks: {reason}", hint="choose smaller sizes")
        self.steps = steps

    def _search(self, lease: Lease) -> None:
        others = distribute(self.settings)
        n_launches = 2 if others and self._rounds >= 6 else 1
        how = partial(self._how, rounds=self._rounds, halves=True)
        for number in range(n_launches):
            environments = [Environment(), *others][:: -1 if number % 2 else 1]
            self._plan(len(environments) * len(self.steps))
            for environment in environments:
                calls = [(step, self._candidates(environment, step)) for step in self.steps]
                calls = [(step, options) for step, options in calls if options]
                self._measure_on(lease, environment, calls, "search", how, is_new=not environment.is_default)
            if number == 0 and others:
                self._drop_settings()

    def _candidates(self, environment: Environment, step: Step) -> list[TuningOption]:
        """Return the options of a call that are not dropped yet, within one environment."""
        if environment.is_default:
            options = self.options(step)
        else:
            name = environment.names.get(step.collective)
            if name is None:
                return []
            kinds = dict.fromkeys(option.buffers for option in self.options(step) if option.buffers != "registered")
            options = [TuningOption(setting=name, buffers=kind) for kind in kinds]
        return [option for option in options if self._status("search", step, option) in ("", "ok")]

    def _status(self, phase: str, step: Step, option: TuningOption) -> str:
        record = self._records.get((phase, step, option))
        return "" if record is None else record.status

    def _drop_settings(self) -> None:
        """Drop the environments that are slow at a size, which then need fewer ranks in the next round."""
        # Ranked by their fastest rounds: other processes only ever add to a time, and this must not drop anything fast.
        for step in self.steps:
            times = {
                option: min(record.times_us)
                for (phase, call, option), record in self._records.items()
                if phase == "search" and call == step and record.status == "ok" and record.times_us
            }
            ranked = sorted(times, key=times.__getitem__)
            n_close = sum(time_us <= _CLOSE * times[ranked[0]] for time_us in times.values())
            for option in ranked[max(_FEWEST_SETTINGS, n_close) :]:
                if option.setting is not None:
                    record = self._records["search", step, option]
                    record.status, record.message = "dropped", "dropped after its first ranks"
                    if TuningOption() in times:
                        record.message += f", at {times[option] / times[TuningOption()]:.2f} times the default"

    def _confirm(self, lease: Lease) -> None:
        """Measure the fastest options and their defaults again, in turns, on new ranks."""
        calls, others = self._to_confirm()
        if not others:
            self._plan(len(calls))
            how = partial(self._how, rounds=2 * self._rounds, halves=False)
            self._measure_on(lease, Environment(), calls, "confirmation", how, is_new=True)
            return
        self._plan(len(calls))
        left = dict(calls)
        for first in range(0, len(others), _MOST_SETS):
            part = others[first : first + _MOST_SETS]
            is_last = first + _MOST_SETS >= len(others)
            steps = [step for step in left if is_last or any(step in dict(calls) for _, calls in part)]
            self._confirm_together(lease, [(Environment(), [(step, left.pop(step)) for step in steps]), *part])

    def _confirm_together(self, lease: Lease, plan: Sequence[tuple[Environment, _Calls]]) -> None:
        """Measure calls in turns on several sets of new ranks, so that a drift of the machine affects all of them."""
        n_turns = max(self._rounds // 2, 1)
        with ExitStack() as stack:
            ranks: dict[Environment, tuple[Lease, dict[Step, list[TuningOption]]]] = {}
            for environment, calls in plan:
                self._task = self._starting(environment)
                with self._recorded(environment, calls, "confirmation"):
                    ranks[environment] = stack.enter_context(self._new_ranks(lease, environment)), dict(calls)
                    self._plan_buffers(ranks[environment][0], calls)
            for step, _ in plan[0][1]:
                self._task = lease.task = f"{step.collective}, {format_size(step.size_bytes or 0)}"
                for turn in range(n_turns):
                    for environment in list(ranks)[:: -1 if turn % 2 else 1]:
                        new, options = ranks[environment]
                        if step not in options or environment in self._broken or self._is_over([], "confirmation"):
                            continue
                        how = self._how(rounds=math.ceil(2 * self._rounds / n_turns), halves=False)
                        n_parts = n_turns if self._budget_s is None else n_turns * len(ranks)
                        how = how._replace(check=turn == 0, max_s=how.max_s / n_parts)
                        with self._recorded(environment, [(step, options[step])], "confirmation"):
                            self._try(new, step, options[step], "confirmation", how)
                self._n_done += 1

    def _to_confirm(self) -> tuple[_Calls, list[tuple[Environment, _Calls]]]:
        """Return the calls to measure again, with their defaults, and those that need ranks with other environments."""
        chosen = self._faster_options()
        calls: _Calls = []
        settings: dict[str, dict[str, Setting]] = {}
        for step, option in chosen.items():
            calls.append((step, [TuningOption()]))
            if option.setting is None:
                calls[-1][1].append(option)
            else:
                setting = self.settings[step.collective][option.setting]
                settings.setdefault(step.collective, {})[option.setting] = setting
        others = [
            (environment, [(step, [option]) for step, option in chosen.items() if environment.has(step, option)])
            for environment in distribute(settings)
        ]
        return calls, others

    def _faster_options(self) -> dict[Step, TuningOption]:
        """Return the option of each call that the search found to be faster than the default."""
        frame = self.frame()
        best = {(row["collective"], row["size_bytes"]): row for _, row in best_options(frame).iterrows()}
        usable = usable_trials(frame, "search")
        options: dict[Step, TuningOption] = {}
        for step in self.steps:
            row = best.get((step.collective, step.size_bytes))
            if row is None:
                continue
            option = TuningOption(*option_key(dict(row)))
            if option.is_default:
                # Intervals overlap on a busy machine even if the times differ. The confirmation decides, because it
                # has more rounds of fewer options.
                rows = usable[(usable["collective"] == step.collective) & (usable["size_bytes"] == step.size_bytes)]
                fastest = rows.sort_values("time_us", kind="stable").iloc[0]
                if fastest["time_us"] < _WORTHWHILE * row["time_us"]:
                    option = TuningOption(*option_key(dict(fastest)))
            if not option.is_default:
                options[step] = option
        return options

    # -- ranks ---------------------------------------------------------------------------------------------------------

    def _measure_on(
        self,
        lease: Lease,
        environment: Environment,
        calls: _Calls,
        phase: str,
        how: Callable[[], TrialRounds],
        is_new: bool,
    ) -> None:
        """Measure calls on ranks with an environment: on the present ones, or on new ones."""
        if not calls or self._is_over(calls, phase):
            self._n_done += len(calls)
            return
        if not is_new:
            self._measure(lease, calls, phase, how)
            return
        self._task = self._starting(environment)
        with self._recorded(environment, calls, phase), self._new_ranks(lease, environment) as new:
            self._measure(new, calls, phase, how)

    @staticmethod
    def _starting(environment: Environment) -> str:
        return "starting new ranks" if environment.is_default else f"starting new ranks with {environment}"

    @contextmanager
    def _recorded(self, environment: Environment, calls: _Calls, phase: str) -> Iterator[None]:
        """Record an error of ranks with an environment that may make the library fail or hang: this is a result."""
        try:
            yield
        except EngineError as error:
            if environment.is_default or self._thread.is_stopped or self.engines.state != "busy":
                raise
            self._broken.add(environment)
            for step, options in calls:
                for option in options:
                    record = self._records.setdefault((phase, step, option), _Record())
                    if not record.times_us:
                        record.status, record.message = "failed", error.summary

    def _new_ranks(self, lease: Lease, environment: Environment) -> AbstractContextManager[Lease]:
        """Start ranks with an environment, or at least open new communicators."""
        return new_ranks(lease, environment.variables, self._started.append)

    def _measure(self, lease: Lease, calls: _Calls, phase: str, how: Callable[[], TrialRounds]) -> None:
        self._plan_buffers(lease, calls)
        for number, (step, options) in enumerate(calls):
            if self._is_over(calls[number:], phase):
                self._n_done += len(calls) - number
                return
            self._task = lease.task = f"{step.collective}, {format_size(step.size_bytes or 0)}"
            self._try(lease, step, options, phase, how())
            self._n_done += 1

    def _plan_buffers(self, lease: Lease, calls: _Calls) -> None:
        """Set the sizes of registered buffers, so that they are registered once for all sizes."""
        sets = ([option.apply_to(step)] for step, options in calls for option in options)
        raise_first_error(plan_registered(lease, sets, self._memory), "preparing a tuning", lease.engines.ranks)

    def _try(self, lease: Lease, step: Step, options: Sequence[TuningOption], phase: str, how: TrialRounds) -> None:
        """Try the options of one call, and record the outcome."""
        tried = []
        for option in options:
            slow = self._slower.get((step.collective, option)) if phase == "search" else None
            if slow is None:
                tried.append(option)
            else:
                self._records[phase, step, option] = _Record(status="dropped", message=slow)
        groups = self.mesh[step.axis]
        everyone, (members,) = voting_ranks(groups)
        arguments: tuple[Any, ...] = ([option.apply_to(step) for option in tried], how, members)
        if self.set_up is not None:
            arguments += (self.set_up,)
        replies = lease.round(
            try_options,
            self.mesh,
            step.axis,
            arguments,
            also=(everyone,),
            deadline_s=self._deadline_s or max(self.engines.deadline_s, 5 * how.max_s + 30),
        ).run()
        raise_first_error(replies, f"trying the options of {step}", lease.engines.ranks)
        by_option: list[tuple[Trial, ...]] = list(zip(*(reply.value for reply in replies), strict=True))
        for option, trials in zip(tried, by_option, strict=True):
            self._add(phase, step, option, trials)

    def _add(self, phase: str, step: Step, option: TuningOption, trials: Sequence[Trial]) -> None:
        first = trials[0]
        record = self._records.setdefault((phase, step, option), _Record())
        record.times_us += first.times_us
        if record.status == "ok":
            record.status = first.status
            messages = [trial.message for trial in trials if trial.message and "another rank" not in trial.message]
            record.message = messages[0] if messages else first.message
        counts = [trial.n_wrong for trial in trials if trial.n_wrong is not None]
        record.n_wrong = sum(counts) if counts else record.n_wrong
        if first.alone_us is not None:
            record.alone_us.append(first.alone_us)
        if option.is_capped and first.status == "dropped" and first.ratio > HOPELESS:
            size = format_size(step.size_bytes or 0)
            self._slower[step.collective, option] = (
                f"not tried, because it took {first.ratio:.1f} times as long at {size}"
            )

    # -- time ----------------------------------------------------------------------------------------------------------

    def _plan(self, n_calls: int) -> None:
        """Set the number of calls that follow."""
        self._n_total = self._n_done + n_calls

    def _how(self, *, rounds: int, halves: bool) -> TrialRounds:
        """Return how thoroughly to measure the next call, so that all others can be measured in time too."""
        max_s = _MAX_S_ON_GPUS if self.engines.backend in GPU_BACKENDS else _MAX_S_ON_HOST
        if self._limit_s < math.inf:
            n_left = max(self._n_total - self._n_done, 1)
            max_s = min(max_s, max(self._limit_s - time.monotonic(), 0.0) / n_left)
        return TrialRounds(rounds=rounds, max_s=max_s, check=True, halves=halves)

    def _is_over(self, calls: _Calls, phase: str) -> bool:
        """Return True if the caller or the budget ends the search, and record the options that are left out."""
        if self._thread.is_stopped:
            return True
        if time.monotonic() < self._limit_s:
            return False
        for step, options in calls:
            for option in options:
                key = phase, step, option
                if key not in self._records and phase == "search":
                    self._records[key] = _Record(
                        status="dropped", message=f"not measured, because budget_s={self._budget_s:g} was used up"
                    )
        return True

    # -- result --------------------------------------------------------------------------------------------------------

    def frame(self) -> pd.DataFrame:
        """Return one row per call, option and phase, with the columns of `meshlab.frames.TRIALS`."""
        import pandas as pd

        rows = []
        for (phase, step, option), record in list(self._records.items()):
            times = np.array(record.times_us)
            lo, hi = median_interval(times)
            compute_us, alone_us = np.median(record.alone_us, axis=0) if record.alone_us else (None, None)
            rows.append(
                {name: getattr(step, name) for name in CASE}
                | {name: getattr(option, name) for name in OPTION}
                | {
                    "launch": phase,
                    "n_rounds": len(times),
                    "time_us": float(np.median(times)) if len(times) else None,
                    "time_us_lo": lo,
                    "time_us_hi": hi,
                    "compute_us": compute_us,
                    "alone_us": alone_us,
                    "n_wrong": record.n_wrong,
                    "status": record.status,
                    "message": record.message or None,
                }
            )
        return as_trials(pd.DataFrame(rows, columns=[column.name for column in TRIALS], dtype=object))

    def result(self) -> Tuning:
        """Return the tuning."""
        can = self.engines.ranks[0].capabilities
        hosts = dict.fromkeys(info.host for info in self.engines.ranks)
        system = {
            "where": self.engines.where,
            "backend": can.backend,
            "library": can.library,
            "device": can.facts.get("device", ""),
            "hosts": ", ".join(hosts),
            "user": current_user(),
        }
        if self.beside is not None:
            system["beside"] = str(self.beside)
        shared = describe_sharing(self.engines.ranks)
        if shared:
            system["note"] = shared
        names = {option.setting for _, _, option in self._records}
        return Tuning(
            trials=self.frame(),
            mesh=self.mesh,
            axis=self.steps[0].axis,
            settings={
                name: setting.variables
                for settings in self.settings.values()
                for name, setting in settings.items()
                if name in names
            },
            system=system,
        )

    def _partial_result(self) -> Tuning | None:
        """Return the tuning so far, or None if nothing was measured."""
        return self.result() if any(record.times_us for record in list(self._records.values())) else None
