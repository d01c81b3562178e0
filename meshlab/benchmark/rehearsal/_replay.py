"""The function that makes the calls of a trace again: it chooses the sizes, checks results, and measures in rounds."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Unpack

import numpy as np

from meshlab.analysis.tuning._tuning import Tuning
from meshlab.base._backends import BACKENDS, GPU_BACKENDS
from meshlab.base._collectives import usual_collective
from meshlab.base._errors import BenchError
from meshlab.base._hints import Argument, Hint
from meshlab.base._units import format_size
from meshlab.benchmark._bench import check_options
from meshlab.benchmark._executor import sharing_of
from meshlab.benchmark._overlap import can_overlap
from meshlab.benchmark._preparation import check_engines
from meshlab.benchmark._progress import progress_bar
from meshlab.benchmark.on_ranks._training_step import RecordedStep, StepOptions, StepTimes, count_wrong, measure_steps
from meshlab.benchmark.rehearsal._recorded_program import Gaps, RecordedOrder, check_ranks
from meshlab.benchmark.rehearsal._replayed import Replay, ReplaySide
from meshlab.benchmark.rehearsal._session import (
    StepSession,
    check_collective,
    dtypes_of,
    is_reduced_in_place,
    shared_bytes,
    step_of,
    tuned_step,
)
from meshlab.comm._catalog import find_collective
from meshlab.comm._elements import DTYPES
from meshlab.engines._engines import Engines
from meshlab.engines._lease import Lease
from meshlab.engines._memory import usable_bytes
from meshlab.mesh._mesh import MeshLike
from meshlab.plans._options import CONFIGURED, CallOptions, OptionArguments, option_texts, options_of
from meshlab.plans._plan import Plan
from meshlab.plans._steps import Step, option_combinations
from meshlab.traces._call_list import CallKind, CallList, dtype_of, list_calls
from meshlab.traces._trace import Trace

_ROUNDS, _REPETITIONS = 6, 5
_ROUNDS_BEFORE = 2  # the check, and the round that shows the duration

_ACTIVATIONS = frozenset({"tp", "cp", "ep", "pp"})
"""The usual names of axes along which activations are gathered. FSDP2 and Megatron gather weights along others."""

_SLOWEST_BYTES_PER_S = (20e6, 1e9)
"""Rates that are lower than those of any working backend on CPUs and on GPUs, for the deadline of the first round."""


def replay(
    engines: Engines,
    trace: Trace,
    mesh: MeshLike | None = None,
    *,
    gaps: bool = False,
    step: int | None = None,
    size_scale: float | Literal["auto"] = "auto",
    against: Mapping[str, Mapping[str, Any] | Tuning | Engines] | None = None,
    budget_s: float = 20.0,
    progress: bool | None = None,
    **options: Unpack[OptionArguments],
) -> Replay:
    """Make the collectives of a trace again: the same calls, sizes and order, on the ranks of the engines.

    Calls of several axes run at the same time if they did so in the trace. The transfer of each call is compared with
    that of the trace, and calls that were slow in the trace are named. Other options, and other engines, make the same
    calls in turns with the default. All results are checked once before that. Waits until everything is measured.

    Parameters
    ----------
    engines : Engines
        The ranks, one per rank of the trace.
    trace : Trace
        The recorded job.
    mesh : DeviceMesh or str, optional
        The mesh of the job. By default that of its process groups, `Trace.mesh`.
    gaps : bool, default False
        Whether to also replay the step with the time between the calls, as waits on each rank, and with the mean time
        of all ranks. The difference of the two is the cost of late ranks.
    step : int, optional
        The step of the profiler to replay. By default all.
    size_scale : float or "auto", default "auto"
        Size of the messages relative to the trace. ``"auto"`` is 1, unless the messages exceed the memory.
    against : mapping of str to mapping, Tuning or Engines, optional
        What to compare with, by name: options of all calls, such as ``{"buffers": "symmetric"}``, the result of
        `meshlab.tune`, or other engines, for example with another version of NCCL.
    budget_s : float, default 20.0
        Duration of the measurement in seconds. Everything is measured at least once.
    progress : bool, optional
        Whether to draw a progress bar, by default as in `rehearse`.
    **options
        Options of all calls to compare with the default, such as ``buffers="symmetric"``, see `Plan`.

    Returns
    -------
    Replay
        The times of the calls in the trace and in the replay.

    Raises
    ------
    BenchError
        If no call of the trace can be made again, for example because the files do not contain sizes.
        If the trace has another number of ranks than the engines, or no such step.
        If the backend lacks a collective of the trace, or an option.
        If the gaps are unknown, or the messages exceed the memory at the given scale.
    MeshError
        If the trace contradicts the mesh.
    EngineError
        If the engines are busy, or a rank fails. The attribute ``measured`` has the complete rounds as a `Replay`.
    KeyboardInterrupt
        If the caller is interrupted. The current round is completed first, so the engines remain usable.

    Examples
    --------
    >>> import meshlab as ml
    >>> with ml.launch(4, backend="threads") as engines:
    ...     replayed = ml.benchmark.replay(engines, ml.Trace.example(), size_scale=1 / 1024, budget_s=1)
    >>> replayed.frame()[["axis", "collective", "size_bytes", "calls", "n_wrong"]].values.tolist()[0]
    ['tp', 'all_reduce', 16777216, 8, 0]
    """
    _check_arguments(engines, trace, size_scale, budget_s)
    calls = list_calls(trace, mesh, step)
    sides = [_Side("default", engines), *_sides(engines, calls, against or {}, options)]
    for side in sides:
        check_ranks(calls, side.engines.world_size)
        side.engines.check_mesh(calls.mesh)
    session = _Session(calls, trace, sides, _Choices(gaps, size_scale, budget_s))
    with progress_bar(progress, unit="round", total=_ROUNDS + _ROUNDS_BEFORE) as bar:
        session.run(bar)
    return session.result()


def _check_arguments(engines: object, trace: object, size_scale: object, budget_s: object) -> None:
    """Raise if an argument has the wrong type."""
    check_engines(engines)
    if not isinstance(trace, Trace):
        raise BenchError(f"trace must be a Trace, not {type(trace).__name__}", hint="read one with ml.Trace.read()")
    for name, value in (("size_scale", size_scale), ("budget_s", budget_s)):
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not ((is_number and 0 < value < np.inf) or (name == "size_scale" and value == "auto")):  # type: ignore[operator]
            raise BenchError(f"{name} must be a positive number, not {value!r}")


@dataclass(frozen=True)
class _Choices:
    """The arguments of `replay` that concern its measurements."""

    gaps: bool
    size_scale: float | Literal["auto"]
    budget_s: float


# -- what to compare ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Side:
    """The ranks that make the calls, and the options of the calls."""

    name: str
    engines: Engines
    options: CallOptions = field(default_factory=CallOptions)
    tuning: Tuning | None = None

    def option_of(self, step: Step) -> Step:
        """Return a step with the options of this side."""
        if step.count is None or step.size_bytes is None:
            return step
        if self.tuning is None:
            options = options_of(self.options)
            if not find_collective(step.collective).is_configurable:
                options |= dict.fromkeys(CONFIGURED)
            return replace(step, **options)
        if self.tuning.mesh[self.tuning.axis].size != step.n_ranks:
            return step
        return tuned_step(step, self.tuning.choices())


def _sides(engines: Engines, calls: CallList, against: Mapping[str, Any], options: OptionArguments) -> list[_Side]:
    """Return what the default is compared with."""
    axes = list(dict.fromkeys(kind.axis for kind in calls.kinds))
    sides = []
    if options:
        plan = _plan_of(engines, calls, axes, options)
        labels = [(", ".join(option_texts(options_of(part))), part) for part in option_combinations(plan)]
        sides += [_Side(label, engines, part) for label, part in labels if label]
    for name, value in against.items():
        if isinstance(value, Engines):
            if value is engines:
                raise BenchError(f"against[{name!r}] are the same engines", hint="pass other ones, or options")
            sides.append(_Side(str(name), value))
        elif isinstance(value, Tuning):
            sizes = {calls.mesh[axis].size for axis in axes}
            if (n := value.mesh[value.axis].size) not in sizes:
                raise BenchError(
                    f"the tuning {name!r} is for groups of {n} ranks, but those of the trace have "
                    f"{', '.join(map(str, sorted(sizes)))}",
                    hint="tune groups of this size",
                )
            _plan_of(engines, calls, axes, {"buffers": list({choice.buffers for choice in value.choices()})})
            sides.append(_Side(str(name), engines, tuning=value))
        elif isinstance(value, Mapping):
            combinations = option_combinations(_plan_of(engines, calls, axes, value))  # type: ignore[arg-type]
            if len(combinations) != 1:
                raise BenchError(
                    f"against[{name!r}] has {len(combinations)} combinations of options",
                    hint="pass one value of each option, or several entries",
                )
            sides.append(_Side(str(name), engines, combinations[0]))
        else:
            raise BenchError(
                f"against[{name!r}] must be options, a Tuning or Engines, not {type(value).__name__}",
                hint="write against={'symmetric': {'buffers': 'symmetric'}}",
            )
    names = Counter(side.name for side in sides)
    if repeated := next((name for name, n in names.items() if n > 1 or name == "default"), ""):
        raise BenchError(f"two sides have the name {repeated!r}", hint="rename one of them")
    return sides


def _plan_of(engines: Engines, calls: CallList, axes: Sequence[str], options: OptionArguments) -> Plan:
    """Return the options as a plan, which checks them. Raise if the backend lacks one."""
    names = list(dict.fromkeys(kind.collective for kind in calls.kinds if find_collective(kind.collective).has_size))
    plan = Plan(
        [name for name in names if not find_collective(name).peers] or usual_collective("dp"), axes, "1K", **options
    )
    if plan.n_aggregated != 1:
        raise BenchError(
            "n_aggregated cannot be chosen for a replay, which makes each call of the trace", hint="omit it"
        )
    for axis in axes:
        check_options(engines.capabilities(engines.backend_of(calls.mesh, axis)), plan)
    return plan


# -- measurement -------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Measurement:
    """A side, its programs, and its measurements so far."""

    side: _Side
    lease_number: int
    order: RecordedOrder
    steps: tuple[Step, ...]
    programs: tuple[RecordedStep, ...] = ()
    n_wrong: dict[tuple[int, Step], int] = field(default_factory=dict)
    transfers: list[Any] = field(default_factory=list)  # of each round: shape (repetitions, calls)
    durations: list[Any] = field(default_factory=list)  # shape (programs, repetitions)


class _Session(StepSession):
    """A replay under way."""

    title = "replay"

    def __init__(self, calls: CallList, trace: Trace, sides: Sequence[_Side], choices: _Choices) -> None:
        engine_sets = list(dict.fromkeys(side.engines for side in sides))
        super().__init__(engine_sets, f"replaying {len(calls.calls):,} calls")
        self._calls, self._trace, self._choices = calls, trace, choices
        self._axes = list(dict.fromkeys(kind.axis for kind in calls.kinds))
        self._sets = tuple((calls.mesh, name) for name in self._axes)
        self._size_scale = 1.0 if choices.size_scale == "auto" else float(choices.size_scale)
        self._like: dict[str, str] = {}
        self._once_s = 0.0  # of a repetition of a program, once it is measured
        self._measurements = [
            _Measurement(
                side,
                engine_sets.index(side.engines),
                RecordedOrder.of(calls, self._axes, can_overlap(side.engines)),
                (),
            )
            for side in sides
        ]
        if choices.gaps and not self._measurements[0].order.has_times:
            raise BenchError(
                f"the gaps between the calls are unknown, because this {trace.kind} contains no starts of calls",
                hint=Hint("pass {}, or a profiler trace", Argument("gaps", False)),
            )
        for measurement in self._measurements:
            self._dtypes(measurement.side)  # before any rank works

    def _is_complete(self) -> bool:
        return all(measurement.transfers for measurement in self._measurements)

    def _dtypes(self, side: _Side) -> dict[CallKind, str]:
        """Return the element type of each kind of call: that of the trace, or another one of the same size."""
        dtypes = {}
        for kind in self._calls.kinds:
            can = side.engines.capabilities(side.engines.backend_of(self._calls.mesh, kind.axis))
            check_collective(side.engines, can, kind.collective, kind.axis, "trace")
            row, name = find_collective(kind.collective), dtype_of(kind)
            dtypes[kind] = name
            if row.has_size and name not in dtypes_of(can, row):
                size = DTYPES[name].itemsize
                alike = [other for other in dtypes_of(can, row) if DTYPES[other].itemsize == size]
                dtypes[kind] = next((other for other in alike if "float" in other), alike[0])
                self._like[name] = dtypes[kind]
        return dtypes

    def _steps(self, measurement: _Measurement) -> tuple[Step, ...]:
        """Return the step of each call at the replayed size."""
        dtypes = self._dtypes(measurement.side)
        steps = {
            kind: measurement.side.option_of(
                step_of(
                    kind.collective,
                    dtypes[kind],
                    kind.axis,
                    self._calls.mesh[kind.axis].size,
                    int(kind.size_bytes * self._size_scale),
                    in_place=_is_in_place(kind),
                )
            )
            for kind in self._calls.kinds
        }
        return tuple(steps[call.kind] for call in self._calls.calls)

    def _prepare(self, leases: Sequence[Lease]) -> None:
        """Choose the size, and check the results at that size."""
        self._task = "choosing the size"
        memory = min(
            int(usable_bytes([rank.free for rank in ranks], [info.host for info in lease.engines.ranks]).min())
            for lease in leases
            for ranks in [self._probed_ranks(lease)]
        )
        self._fit(memory)
        for measurement in self._measurements:
            if self._thread.is_stopped:
                return
            self._task = f"{measurement.side.name}: checking the results"
            order, steps = measurement.order, measurement.steps
            kinds: tuple[Gaps, ...] = ("none", "recorded", "even") if self._choices.gaps else ("none",)
            if measurement is not self._measurements[0]:
                kinds = kinds[:2]  # the cost of late ranks is that of the default
            measurement.programs = tuple(order.program(steps, kind) for kind in kinds)
            options = StepOptions("wait", 1.0, order.overlaps)
            arguments = (measurement.programs[0], options)
            lease = leases[measurement.lease_number]
            for wrong in self._call(lease, count_wrong, arguments, 1):
                for key, n in wrong:
                    measurement.n_wrong[key] = measurement.n_wrong.get(key, 0) + (n or 0)
        self._n_done += 1

    def _fit(self, memory: int) -> None:
        """Choose the size at which the buffers of all sides fit into the memory."""
        for _ in range(64):
            for measurement in self._measurements:
                measurement.steps = self._steps(measurement)
            axis_of = self._measurements[0].order.axis_of
            needed = sum(
                shared_bytes({key for m in self._of(engines) for key in zip(axis_of, m.steps, strict=True)})
                for engines in self._engine_sets
            )
            if needed <= memory:
                return
            if self._choices.size_scale != "auto":
                break
            self._size_scale /= 2
        raise BenchError(
            f"the messages of the trace take {format_size(needed)} per rank, but {format_size(max(memory, 0))} may be "
            "used",
            hint=Hint("pass {}", Argument("size_scale", "auto")),
        )

    def _of(self, engines: Engines) -> list[_Measurement]:
        return [m for m in self._measurements if m.side.engines is engines]

    def _call(self, lease: Lease, function: Any, arguments: tuple[Any, ...], n_steps: int) -> list[Any]:
        """Run a function with the communicators of all axes, and return the values of the ranks."""
        deadline_s = max(lease.engines.deadline_s, n_steps * self._longest_s(lease.engines))
        task = f"replaying {len(self._calls.calls):,} calls"
        return self._on_axes(lease, function, self._calls.mesh, self._sets, arguments, task, deadline_s)

    def _longest_s(self, engines: Engines) -> float:
        """Return the longest expected duration of a step."""
        if self._once_s:
            return 5 * self._once_s
        total = sum(call.kind.size_bytes for call in self._calls.calls) * self._size_scale
        spans = [span for call in self._calls.calls for span in call.spans.values()] if self._choices.gaps else [0.0]
        span_s = float(np.max(spans) - np.min(spans)) / 1e6
        return total / _SLOWEST_BYTES_PER_S[engines.backend in GPU_BACKENDS] + 2 * span_s

    def _measure(self, leases: Sequence[Lease]) -> None:
        # The first round, with one repetition, shows how many of them fit into the time.
        began = time.monotonic()
        self._round(leases, 0, 1)
        once_s = (time.monotonic() - began) / 2  # of one repetition and its warm-up
        self._once_s = once_s / max(len(m.programs) for m in self._measurements)
        left_s = self._choices.budget_s - 2 * once_s
        repetitions = max(1, min(_REPETITIONS, int(left_s / (_ROUNDS * once_s)) - 1))
        rounds = min(_ROUNDS, int(left_s / (once_s * (repetitions + 1))))
        self._n_done += 1
        if rounds < 1:
            return
        for measurement in self._measurements:
            measurement.transfers, measurement.durations = [], []
        for number in range(rounds):
            if self._thread.is_stopped and self._is_complete():
                return
            self._round(leases, number, repetitions)
            self._n_done += 1

    def _round(self, leases: Sequence[Lease], number: int, repetitions: int) -> None:
        # A B, B A, A B, …: over two rounds, a linear drift of the clocks adds the same time to every side.
        for lease in leases[:: -1 if number % 2 else 1]:
            self._task = lease.task = f"replaying, round {number + 1}"
            members = self._of(lease.engines)
            programs = tuple(program for m in members for program in m.programs)
            options = StepOptions("wait", 1.0, members[0].order.overlaps)
            arguments = (programs, options, repetitions, len(self._calls.calls))
            values: list[StepTimes] = self._call(lease, measure_steps, arguments, (repetitions + 1) * len(programs))
            spans = np.stack([value.spans for value in values])  # ranks, programs, repetitions, calls, 2
            steps = np.stack([value.steps[..., 0] for value in values])  # ranks, programs, repetitions
            first = 0
            for m in members:
                behind = first + len(m.programs)
                m.transfers.append(_transfers(self._calls, spans[:, first]))
                m.durations.append(steps[:, first:behind].max(axis=0))
                first = behind

    def result(self) -> Replay:
        """Return the rounds that all sides have completed."""
        n = min(len(m.transfers) for m in self._measurements)
        default = self._measurements[0]
        engines = default.side.engines
        wrong: dict[CallKind, int] = {}
        for m in self._measurements:
            keys = zip(m.order.axis_of, m.steps, strict=True)
            by_kind = {call.kind: key for call, key in zip(self._calls.calls, keys, strict=True)}
            for kind, key in by_kind.items():
                wrong[kind] = wrong.get(kind, 0) + m.n_wrong.get(key, 0)
        return Replay(
            call_list=self._calls,
            sides=tuple(
                ReplaySide(
                    m.side.name, m.side.engines.where, np.stack(m.transfers[:n]), np.stack(m.durations[:n], axis=1)
                )
                for m in self._measurements
            ),
            sizes={
                call.kind: step.size_bytes or 0 for call, step in zip(self._calls.calls, default.steps, strict=True)
            },
            n_wrong=wrong,
            where=engines.where,
            backend=engines.backend,
            sharing=sharing_of(engines),
            size_scale=self._size_scale,
            like=dict(self._like),
            error_us=float(np.nan_to_num(self._trace.error_us)),
            places=_places(self._trace, engines.backend),
            overlaps=default.order.overlaps,
        )


def _is_in_place(kind: CallKind) -> bool:
    """Return whether frameworks make a call in place: they reduce so, and gather weights, but not activations."""
    row = find_collective(kind.collective)
    gathers = row.sends == "count" and row.receives == "count x n" and not row.rooted
    return is_reduced_in_place(kind.collective) or (gathers and not _ACTIVATIONS & set(kind.axis.split("-")))


def _places(trace: Trace, backend: str) -> tuple[str, str]:
    """Return where the calls of the trace and those of the replay ran, in words."""
    here = "GPUs" if backend in GPU_BACKENDS else f"{backend} on CPUs"
    if not any(rank.is_cpu for rank in trace.job.ranks):
        return "GPUs", here
    names = " ".join(group.backend for group in trace.job.groups)
    recorded = backend if backend in names else next((name for name in BACKENDS if name in names), "")
    if not recorded:  # the file does not contain it
        return "CPUs" if backend in GPU_BACKENDS else here, here
    return f"{recorded} on CPUs", here


def _transfers(calls: CallList, spans: Any) -> Any:
    """Return the transfer of each call in µs, of shape (repetitions, calls), from the spans of all ranks."""
    # The last rank of a group does not wait, so the shortest duration is the transfer. This needs no common clock.
    durations = spans[..., 1] - spans[..., 0]  # ranks, repetitions, calls
    transfers = np.full(durations.shape[1:], np.nan)
    by_groups: dict[tuple[tuple[int, ...], ...], list[int]] = {}
    for index, call in enumerate(calls.calls):
        by_groups.setdefault(call.groups, []).append(index)
    for groups, numbers in by_groups.items():
        shortest = [durations[list(group)][..., numbers].min(axis=0) for group in groups]
        transfers[:, numbers] = np.mean(shortest, axis=0)
    return transfers
