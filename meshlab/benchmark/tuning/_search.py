"""The search for the fastest option of each call: in rounds on the engines, and again on new ranks."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from meshlab.analysis.tuning._choice import best_options, usable_trials
from meshlab.analysis.tuning._tuning import Tuning
from meshlab.base._backends import BACKENDS, GPU_BACKENDS
from meshlab.base._errors import BenchError, EngineError
from meshlab.base._hints import Argument, Hint
from meshlab.base._units import format_size
from meshlab.benchmark._bench import check_fit
from meshlab.benchmark._executor import describe_sharing
from meshlab.benchmark._interruptible import Interruptible
from meshlab.benchmark._run import progress_bar
from meshlab.benchmark.on_ranks._buffers import block_bytes, plan_buffers, release_buffers
from meshlab.benchmark.on_ranks._option_trials import (
    HOPELESS,
    SetUp,
    Trial,
    TrialRounds,
    try_options,
)
from meshlab.benchmark.tuning._environments import Environment, Setting, distribute
from meshlab.benchmark.tuning._options import (
    TuningOption,
    check_options,
    options_for,
    settings_for,
)
from meshlab.comm._catalog import find_collective
from meshlab.comm._elements import ReduceOp
from meshlab.engines._engines import Engines
from meshlab.engines._launch import launch
from meshlab.engines._lease import Lease, raise_first_error
from meshlab.engines._memory import free_bytes, usable_bytes
from meshlab.frames._statistics import median_interval
from meshlab.frames._trials import CASE, OPTION, TRIALS, as_trials, option_key
from meshlab.mesh._axes import WORLD, as_integer
from meshlab.mesh._mesh import DeviceMesh, MeshLike, as_mesh
from meshlab.plans._plan import Plan
from meshlab.plans._steps import Step
from meshlab.runs._redact import current_user

if TYPE_CHECKING:
    import pandas as pd

    from meshlab.comm._backend import Buffers


_SIZES_ON_GPUS, _SIZES_ON_HOST = "8:1G", "8:16M"

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


def tune(
    engines: Engines,
    mesh: MeshLike,
    collectives: str | Sequence[str] = "all_reduce",
    *,
    axis: str,
    sizes: str | int | Sequence[int | str] | None = None,
    dtype: str = "float32",
    op: str | ReduceOp = "sum",
    in_place: bool = True,
    mode: str | None = None,
    options: str | Sequence[str] | None = None,
    rounds: int = 12,
    budget_s: float | None = None,
    confirm: bool = True,
    progress: bool | None = None,
    deadline_s: float | None = None,
) -> Tuning:
    """Find the fastest way to run collectives, for each message size, and confirm it on new ranks.

    With NCCL, an option is a kind of buffers (plain, registered, or a symmetric window), an algorithm, a protocol, or a
    number or policy of thread blocks. From NCCL 2.31 on, all of this can be chosen per call. For older versions, and
    for the algorithms of MPICH, environment variables choose it, and every choice gets its own ranks.

    All options of a call are prepared and checked, and then take turns in rounds, with the default in each of them.
    After each of the first rounds, the slower half is dropped. An option that is not supported becomes a row that says
    so. At the end, new ranks measure the fastest option and the default again. Waits until everything is measured.

    Parameters
    ----------
    engines : Engines
        The ranks. They are busy until the end. The confirmation starts other ranks in the same way. For engines of
        `attach` that is impossible, so it only opens new communicators.
    mesh : DeviceMesh or str
        The mesh, with one rank per engine.
    collectives : str or sequence of str, default "all_reduce"
        Collectives by name.
    axis : str
        The axis of the mesh whose groups are measured, all at the same time.
    sizes : str, int or sequence of these, optional
        Message sizes in bytes, as in `bench`. By default ``"8:1G"`` on GPUs and ``"8:16M"`` elsewhere. Sizes whose
        buffers exceed the free memory are left out, with a row that says so.
    dtype : str, default "float32"
        The element type.
    op : str or ReduceOp, default "sum"
        The reduce operation.
    in_place : bool, default True
        Whether input and output share memory, for collectives that can work in place.
    mode : {"graph", "pipelined"}, optional
        The way to time the calls. By default ``"graph"`` on GPUs and ``"pipelined"`` elsewhere.
    options : str or sequence of str, optional
        What may vary: ``"buffers"``, ``"algorithm"``, ``"protocol"``, ``"min_ctas"``, ``"max_ctas"`` and
        ``"cta_policy"`` of NCCL, or algorithms by name. By default everything.
    rounds : int, default 12
        Number of rounds. The confirmation has twice as many. An interval needs 6.
    budget_s : float, optional
        Time limit in seconds. Rounds, and at last sizes, are left out to meet it. A call that has begun is completed.
    confirm : bool, default True
        Whether to measure the fastest options again, on new ranks. Without it nothing is confirmed.
    progress : bool, optional
        Whether to draw a progress bar. By default in a notebook and on a terminal, unless the environment variable
        ``MESHLAB_PROGRESS`` is 0.
    deadline_s : float, optional
        Maximum duration of the trials of one call, in seconds, before its ranks are considered stuck. By default that
        of the engines, or more if the trials are expected to take longer.

    Returns
    -------
    Tuning
        The fastest option of each call, with all trials.

    Raises
    ------
    MeshError
        If the mesh does not have one rank per engine, or no such axis.
    BenchError
        If there is nothing to tune: threads, an axis of size 1, an MPI library other than MPICH.
        If the mode cannot tell options apart, or an argument is invalid.
        If nothing could be measured.
    EngineError
        If the engines are busy.
        If a rank fails. The message names the call, and the attribute ``measured`` has the results so far as a
        `Tuning`, or None.
    KeyboardInterrupt
        If the caller is interrupted. The current call is completed first, so the engines remain usable. The attribute
        ``measured`` of the exception has the results so far.

    Examples
    --------
    >>> import meshlab as ml
    >>> with ml.launch(2, backend="threads") as engines:
    ...     ml.tune(engines, "tp=2", axis="tp")
    Traceback (most recent call last):
    meshlab.errors.BenchError: threads have one algorithm per collective, so there is nothing to tune; use nccl or mpi
    """
    if not isinstance(engines, Engines):
        raise BenchError(f"engines must be Engines, not {type(engines).__name__}", hint="start some with ml.launch()")
    mesh = as_mesh(mesh, fill=engines.world_size)
    engines.check_mesh(mesh)
    names = [collectives] if isinstance(collectives, str) else list(collectives)
    names = [name.strip() for one in names for name in one.split(",")]
    only = [part.strip() for part in options.split(",")] if isinstance(options, str) else options
    number = as_integer(rounds)
    if number is None or number < 1:
        raise BenchError(f"rounds must be an integer of at least 1, not {rounds!r}")
    for name, given in (("budget_s", budget_s), ("deadline_s", deadline_s)):
        if given is not None and not (isinstance(given, int | float) and 0 < given < math.inf):
            raise BenchError(f"{name} must be a positive number, not {given!r}")
    _check_backend(engines, mesh, axis)
    check_options(only, engines.ranks[0].capabilities, names)
    steps = _steps(engines, mesh, names, axis, sizes, dtype, op, in_place, _mode(engines, mode))
    search = TuningSearch(
        engines,
        mesh,
        steps,
        options=_options(engines, only),
        settings=_settings(engines, names, only),
        rounds=number,
        budget_s=budget_s,
        confirms=confirm,
        deadline_s=deadline_s,
    )
    with progress_bar(progress, unit="call") as bar:
        search.run(bar)
    return search.result()


# -- arguments ---------------------------------------------------------------------------------------------------------


def _check_backend(engines: Engines, mesh: DeviceMesh, axis: str) -> None:
    """Raise if the backend of the axis has nothing to tune."""
    if len(axes := Plan("all_reduce", axis).axis) > 1:
        raise BenchError(f"a tuning has one axis, not {', '.join(axes)}", hint="tune one after the other")
    can = engines.capabilities(engines.backend_of(mesh, axis))
    if why := BACKENDS[can.backend].why_not_tuned:
        tunable = [name for name, facts in BACKENDS.items() if not facts.why_not_tuned]
        raise BenchError(f"{why}, so there is nothing to tune", hint=f"use {' or '.join(tunable)}")
    if can.backend == "mpi":
        if not can.library.startswith("MPICH"):
            raise BenchError(
                f"meshlab knows the algorithms of MPICH, but these engines run {can.library}",
                hint="install mpich, or compare environment variables with ml.compare_env()",
            )
        if engines.launch_arguments is None:
            raise BenchError(
                "MPICH reads the choice of algorithms when a rank starts, but another process started these engines",
                hint="use engines of ml.launch()",
            )


def _mode(engines: Engines, mode: str | None) -> str:
    """Return the mode, after a check that it can tell options apart."""
    is_gpu = engines.backend in GPU_BACKENDS
    if mode is None:
        return "graph" if is_gpu else "pipelined"
    if mode == "isolated":
        raise BenchError(
            "options are compared by calls back to back, and mode 'isolated' has single calls",
            hint=f"choose {'graph or pipelined' if is_gpu else 'pipelined'}",
        )
    if mode == "graph" and not is_gpu:
        raise BenchError(
            f"{engines.backend} cannot capture calls into graphs, which need GPUs",
            hint=Hint("omit {}", Argument("mode")),
        )
    return mode


def _steps(
    engines: Engines,
    mesh: DeviceMesh,
    names: Sequence[str],
    axis: str,
    sizes: Any,
    dtype: str,
    op: str | ReduceOp,
    in_place: bool,
    mode: str,
) -> list[Step]:
    """Return the calls to tune, by collective and in the order of their sizes."""
    if not names:
        raise BenchError("collectives is empty", hint="pass at least one, such as 'all_reduce'")
    if sizes is None:
        sizes = _SIZES_ON_GPUS if engines.backend in GPU_BACKENDS else _SIZES_ON_HOST
    elif not isinstance(sizes, int) and not sizes:
        raise BenchError("sizes is empty", hint=Hint("pass a range such as '8:1G', or omit {}", Argument("sizes")))
    found: list[Step] = []
    for name in dict.fromkeys(names):
        row = find_collective(name)
        if not row.has_size:
            raise BenchError(f"{name} moves no data, so it has nothing to tune; remove it from the collectives")
        is_in_place = in_place and row.in_place
        plan = Plan(name, axis, sizes, dtype=dtype, op=op, mode=mode, in_place=is_in_place)
        for what in ("axis", "dtype", "op", "mode"):
            if len(getattr(plan, what)) > 1:
                values = ", ".join(map(str, getattr(plan, what)))
                raise BenchError(f"a tuning has one {what}, not {values}", hint="tune each of them separately")
        check_fit(engines, mesh, plan)
        found += sorted(plan.steps(mesh), key=lambda step: step.size_bytes or 0)
    if mesh[axis].size < 2:
        others = [other for other in mesh.axis_names if mesh[other].size > 1]
        raise BenchError(
            f"the groups of {axis} have one rank, so nothing is sent",
            hint=f"choose {' or '.join(others)}" if others else "choose a mesh with more than one rank per group",
        )
    return [replace(step, index=index) for index, step in enumerate(found)]


def _options(engines: Engines, only: Sequence[str] | None) -> Callable[[Step], list[TuningOption]]:
    can = engines.ranks[0].capabilities
    n_hosts = len({info.host for info in engines.ranks})
    return lambda step: options_for(can, step.collective, step.size_bytes or 0, only=only, n_hosts=n_hosts)


def _settings(engines: Engines, names: Sequence[str], only: Sequence[str] | None) -> dict[str, dict[str, Setting]]:
    """Return the environments to try for each collective, by name."""
    can = engines.ranks[0].capabilities
    if engines.launch_arguments is None:
        return {}
    found = {name: settings_for(can, name, only=only) for name in names}
    known: dict[str, list[dict[str, str]]] = {}
    for settings in found.values():
        for short, variables in settings.items():
            if variables not in known.setdefault(short, []):
                known[short].append(variables)
    # A name stands for one set of variables. "ring" of two collectives of MPICH are two sets.
    return {
        name: {
            short if len(known[short]) == 1 else f"{name} {short}": Setting(
                variables, may_share=can.backend not in GPU_BACKENDS
            )
            for short, variables in settings.items()
        }
        for name, settings in found.items()
    }


# -- search ------------------------------------------------------------------------------------------------------------


_Calls = list[tuple[Step, list[TuningOption]]]


@dataclass(eq=False)
class _Record:
    """What was measured of an option of a call in one of the two phases."""

    times_us: list[float] = field(default_factory=list)
    status: str = "ok"
    message: str = ""
    n_wrong: int | None = None


class TuningSearch:
    """A search under way. It measures in a thread, so that an interrupt of the caller ends it between two calls.

    Parameters
    ----------
    engines : Engines
        The ranks.
    mesh : DeviceMesh
        The mesh.
    steps : sequence of Step
        The calls to tune, all along the same axis.
    options : callable
        Returns the options of a call within one set of ranks, the default first.
    settings : mapping of str to mapping
        The environments to try for each collective, by name.
    rounds : int
        The number of rounds.
    budget_s : float or None
        Time limit in seconds.
    confirms : bool
        Whether to measure the fastest options again.
    deadline_s : float or None
        Maximum duration of the trials of one call, in seconds.
    set_up : callable, optional
        Prepares and checks an option on a rank, instead of `meshlab.benchmark.on_ranks._timing.set_up_step`.
    """

    def __init__(
        self,
        engines: Engines,
        mesh: DeviceMesh,
        steps: Sequence[Step],
        *,
        options: Callable[[Step], list[TuningOption]],
        settings: Mapping[str, Mapping[str, Setting]],
        rounds: int,
        budget_s: float | None,
        confirms: bool,
        deadline_s: float | None,
        set_up: SetUp | None = None,
    ) -> None:
        self._engines = engines
        self._mesh = mesh
        self._steps = list(steps)
        self._options = options
        self._settings = settings
        self._rounds = rounds
        self._budget_s = budget_s
        self._confirms = confirms
        self._deadline_s = deadline_s
        self._set_up = set_up
        self._records: dict[tuple[str, Step, TuningOption], _Record] = {}
        self._slower: dict[tuple[str, TuningOption], str] = {}  # options that are slow at all larger sizes, and why
        self._broken: set[Environment] = set()  # with which ranks failed
        self._started: list[Engines] = []  # ranks besides those of the caller
        self._n_done, self._n_total, self._now = 0, len(self._steps), "starting"
        self._began = time.monotonic()
        self._limit_s = math.inf
        self._memory = 0  # that the buffers of a rank may use, in bytes

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
        bar.set_description(f"interrupted, completing {self._now}" if self._thread.is_stopped else self._now)
        bar.update(self._n_done - bar.n)

    def _kill(self) -> None:
        for engines in (self._engines, *self._started):
            if engines.state != "closed":
                engines.kill()

    # -- phases --------------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        n = len({step.collective for step in self._steps})
        task = f"tuning {n} collective{'s' * (n != 1)}"
        try:
            with Lease(self._engines, task, cancel=self._thread.stop) as lease:
                try:
                    self._leave_out_large(lease)
                    self._begin_phase(_SEARCHED if self._confirms else 1.0)
                    self._search(lease)
                    if self._confirms and not self._thread.is_stopped:
                        self._begin_phase(1.0)
                        self._confirm(lease)
                finally:
                    if self._engines.state == "busy":  # neither closed nor broken
                        lease.call(release_buffers)
        except EngineError as error:
            raise EngineError(
                f"tuning failed at {self._now}: {error.summary}",
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
        replies = lease.call(free_bytes)
        raise_first_error(replies, "preparing a tuning", self._engines.ranks)
        hosts = [info.host for info in self._engines.ranks]
        most = self._memory = int(usable_bytes([reply.value for reply in replies], hosts).min())
        kept = []
        for step in self._steps:
            kinds = {option.buffers for option in self._options(step)}
            needed = len(kinds) * (step.buffer_bytes if kinds == {"plain"} else block_bytes(step))
            if needed <= most:
                kept.append(step)
                continue
            reason = f"its buffers take {format_size(needed)} per rank, but {format_size(most)} may be used"
            self._records["search", step, TuningOption()] = _Record(status="failed", message=reason)
        if not kept:
            raise BenchError(f"no size fits into the memory of the ranks: {reason}", hint="choose smaller sizes")
        self._steps = kept

    def _search(self, lease: Lease) -> None:
        others = distribute(self._settings)
        n_launches = 2 if others and self._rounds >= 6 else 1
        how = partial(self._how, rounds=self._rounds, halves=True)
        for number in range(n_launches):
            environments = [Environment(), *others][:: -1 if number % 2 else 1]
            self._plan(len(environments) * len(self._steps))
            for one in environments:
                calls = [(step, self._candidates(one, step)) for step in self._steps]
                calls = [(step, options) for step, options in calls if options]
                self._measure_on(lease, one, calls, "search", how, is_new=not one.is_default)
            if number == 0 and others:
                self._drop_settings()

    def _candidates(self, environment: Environment, step: Step) -> list[TuningOption]:
        """Return the options of a call that are not dropped yet, within one environment."""
        if environment.is_default:
            options = self._options(step)
        else:
            name = environment.names.get(step.collective)
            if name is None:
                return []
            kinds = dict.fromkeys(one.buffers for one in self._options(step) if one.buffers != "registered")
            options = [TuningOption(setting=name, buffers=kind) for kind in kinds]
        return [one for one in options if self._status("search", step, one) in ("", "ok")]

    def _status(self, phase: str, step: Step, option: TuningOption) -> str:
        record = self._records.get((phase, step, option))
        return "" if record is None else record.status

    def _drop_settings(self) -> None:
        """Drop the environments that are slow at a size, which then need fewer ranks in the next round."""
        # Ranked by their fastest rounds: other processes only ever add to a time, and this must not drop anything fast.
        for step in self._steps:
            times = {
                option: min(record.times_us)
                for (phase, one, option), record in self._records.items()
                if phase == "search" and one == step and record.status == "ok" and record.times_us
            }
            ranked = sorted(times, key=times.__getitem__)
            kept = set(ranked[:_FEWEST_SETTINGS]) | {one for one in ranked if times[one] <= _CLOSE * times[ranked[0]]}
            for option in set(ranked) - kept:
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
            some = others[first : first + _MOST_SETS]
            is_last = first + _MOST_SETS >= len(others)
            now = [step for step in left if is_last or any(step in dict(part) for _, part in some)]
            self._confirm_together(lease, [(Environment(), [(step, left.pop(step)) for step in now]), *some])

    def _confirm_together(self, lease: Lease, plan: Sequence[tuple[Environment, _Calls]]) -> None:
        """Measure calls in turns on several sets of new ranks, so that a drift of the machine affects all of them."""
        n_turns = max(self._rounds // 2, 1)
        with ExitStack() as stack:
            ranks: dict[Environment, tuple[Lease, dict[Step, list[TuningOption]]]] = {}
            for environment, calls in plan:
                self._now = self._starting(environment)
                with self._recorded(environment, calls, "confirmation"):
                    ranks[environment] = stack.enter_context(self._new_ranks(lease, environment)), dict(calls)
                    self._plan_buffers(ranks[environment][0], calls)
            for step, _ in plan[0][1]:
                self._now = lease.task = f"{step.collective}, {format_size(step.size_bytes or 0)}"
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
        """Return the calls for which an option was faster than the default, by the ranks that they need.

        The first ones are on ranks with the environment of the engines, and contain the default of all calls.
        """
        chosen = self._found()
        calls: _Calls = []
        wanted: dict[str, dict[str, Setting]] = {}
        for step, option in chosen.items():
            calls.append((step, [TuningOption()]))
            if option.setting is None:
                calls[-1][1].append(option)
            else:
                setting = self._settings[step.collective][option.setting]
                wanted.setdefault(step.collective, {})[option.setting] = setting
        others = [
            (one, [(step, [option]) for step, option in chosen.items() if one.has(step, option)])
            for one in distribute(wanted)
        ]
        return calls, others

    def _found(self) -> dict[Step, TuningOption]:
        """Return the option of each call that the search found to be faster than the default."""
        frame = self.frame()
        best = {(row["collective"], row["size_bytes"]): row for _, row in best_options(frame).iterrows()}
        usable = usable_trials(frame, "search")
        found: dict[Step, TuningOption] = {}
        for step in self._steps:
            row = best.get((step.collective, step.size_bytes))
            if row is None:
                continue
            option = TuningOption(*option_key(dict(row)))
            if option.is_default:
                # Intervals that overlap say nothing on a machine that is busy. The confirmation has more rounds of
                # fewer options, and decides.
                rows = usable[(usable["collective"] == step.collective) & (usable["size_bytes"] == step.size_bytes)]
                fastest = rows.sort_values("time_us", kind="stable").iloc[0]
                if fastest["time_us"] < _WORTHWHILE * row["time_us"]:
                    option = TuningOption(*option_key(dict(fastest)))
            if not option.is_default:
                found[step] = option
        return found

    # -- ranks ---------------------------------------------------------------------------------------------------------

    def _measure_on(
        self,
        lease: Lease,
        environment: Environment,
        calls: _Calls,
        phase: str,
        how: Callable[[], TrialRounds],
        *,
        is_new: bool,
    ) -> None:
        """Measure calls on ranks with an environment: on those that are there, or on new ones."""
        if not calls or self._is_over(calls, phase):
            self._n_done += len(calls)
            return
        if not is_new:
            self._measure(lease, calls, phase, how)
            return
        self._now = self._starting(environment)
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
            if environment.is_default or self._thread.is_stopped or self._engines.state != "busy":
                raise
            self._broken.add(environment)
            for step, options in calls:
                for option in options:
                    record = self._records.setdefault((phase, step, option), _Record())
                    if not record.times_us:
                        record.status, record.message = "failed", error.summary

    @contextmanager
    def _new_ranks(self, lease: Lease, environment: Environment) -> Iterator[Lease]:
        """Start ranks with an environment, or at least open new communicators."""
        arguments = self._engines.launch_arguments
        if arguments is None:
            lease.relaunch()
            yield lease
            return
        lease.call(release_buffers)  # the new ranks need the memory
        variables = {**(arguments["env"] or {}), **environment.variables}
        started = launch(
            self._engines.world_size, **{**arguments, "env": variables}, deadline_s=self._engines.deadline_s
        )
        self._started.append(started)
        with started, Lease(started, lease.task) as new:
            yield new

    def _measure(
        self,
        lease: Lease,
        calls: _Calls,
        phase: str,
        how: Callable[[], TrialRounds],
    ) -> None:
        self._plan_buffers(lease, calls)
        for number, (step, options) in enumerate(calls):
            if self._is_over(calls[number:], phase):
                self._n_done += len(calls) - number
                return
            self._now = lease.task = f"{step.collective}, {format_size(step.size_bytes or 0)}"
            self._try(lease, step, options, phase, how())
            self._n_done += 1

    def _plan_buffers(self, lease: Lease, calls: _Calls) -> None:
        """Set the sizes of registered buffers, so that they are registered once for all sizes."""
        largest: dict[Buffers, int] = {}
        for step, options in calls:
            for option in options:
                if option.buffers != "plain":
                    largest[option.buffers] = max(largest.get(option.buffers, 0), block_bytes(option.apply_to(step)))
        if largest:
            replies = lease.call(plan_buffers, arguments=(largest, self._memory))
            raise_first_error(replies, "preparing a tuning", lease.engines.ranks)

    def _try(self, lease: Lease, step: Step, options: Sequence[TuningOption], phase: str, how: TrialRounds) -> None:
        """Try the options of one call, and record the outcome."""
        tried = []
        for option in options:
            slow = self._slower.get((step.collective, option)) if phase == "search" else None
            if slow is None:
                tried.append(option)
            else:
                self._records[phase, step, option] = _Record(status="dropped", message=slow)
        groups = self._mesh[step.axis]
        is_one = len(groups) == 1
        members = np.arange(groups.size, dtype=np.int32)[None] if is_one else groups.array
        arguments: tuple[Any, ...] = ([option.apply_to(step) for option in tried], how, members)
        if self._set_up is not None:
            arguments += (self._set_up,)
        replies = lease.call(
            try_options,
            self._mesh,
            step.axis,
            arguments,
            also=(groups.name if is_one else WORLD,),
            deadline_s=self._deadline_s or max(self._engines.deadline_s, 5 * how.max_s + 30),
        )
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
            own = [trial.message for trial in trials if trial.message and "another rank" not in trial.message]
            record.message = own[0] if own else first.message
        counts = [trial.n_wrong for trial in trials if trial.n_wrong is not None]
        record.n_wrong = sum(counts) if counts else record.n_wrong
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
        max_s = _MAX_S_ON_GPUS if self._engines.backend in GPU_BACKENDS else _MAX_S_ON_HOST
        if self._limit_s < math.inf:
            n_left = max(self._n_total - self._n_done, 1)
            max_s = min(max_s, max(self._limit_s - time.monotonic(), 0.0) / n_left)
        return TrialRounds(rounds=rounds, max_s=max_s, check=True, halves=halves)

    def _is_over(self, calls: _Calls, phase: str) -> bool:
        """Return True if the caller or the budget ends the search, and record what is left out."""
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
            rows.append(
                {name: getattr(step, name) for name in CASE}
                | {name: getattr(option, name) for name in OPTION}
                | {
                    "launch": phase,
                    "n_rounds": len(times),
                    "time_us": float(np.median(times)) if len(times) else None,
                    "time_us_lo": lo,
                    "time_us_hi": hi,
                    "n_wrong": record.n_wrong,
                    "status": record.status,
                    "message": record.message or None,
                }
            )
        return as_trials(pd.DataFrame(rows, columns=[column.name for column in TRIALS], dtype=object))

    def result(self) -> Tuning:
        """Return the tuning."""
        can = self._engines.ranks[0].capabilities
        hosts = dict.fromkeys(info.host for info in self._engines.ranks)
        system = {
            "where": self._engines.where,
            "backend": can.backend,
            "library": can.library,
            "device": can.facts.get("device", ""),
            "hosts": ", ".join(hosts),
            "user": current_user(),
        }
        shared = describe_sharing(self._engines.ranks)
        if shared:
            system["note"] = shared
        used = {option.setting for _, _, option in self._records}
        return Tuning(
            trials=self.frame(),
            mesh=self._mesh,
            axis=self._steps[0].axis,
            settings={
                name: setting.variables
                for settings in self._settings.values()
                for name, setting in settings.items()
                if name in used
            },
            system=system,
        )

    def _partial_result(self) -> Tuning | None:
        """Return the tuning so far, or None if nothing was measured."""
        return self.result() if any(record.times_us for record in list(self._records.values())) else None
