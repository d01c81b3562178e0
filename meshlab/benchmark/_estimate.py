"""Estimates of the duration and the memory of a plan, before it starts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from meshlab.base._backends import BACKENDS, Rates, check_backend
from meshlab.base._errors import BenchError
from meshlab.base._markup import card, escape
from meshlab.base._units import format_seconds_range, format_size
from meshlab.benchmark.on_ranks._sampling import PROBES, SLOW_CALL_S
from meshlab.comm._catalog import CATALOG
from meshlab.frames._statistics import FEWEST_FOR_INTERVAL
from meshlab.plans._sampling import SLOW_STEP_S, block_sampling, n_blocks
from meshlab.plans._steps import axes_of, turns
from meshlab.runs._store import as_results

if TYPE_CHECKING:
    import pandas as pd

    from meshlab.analysis._visibility import Visibility
    from meshlab.benchmark.on_ranks._probing import Probe
    from meshlab.mesh._mesh import DeviceMesh
    from meshlab.plans._plan import Plan
    from meshlab.plans._sampling import Sampling
    from meshlab.plans._steps import Step

_ROUND_S = 0.015  # sending a step to all ranks and receiving their samples
_FUNCTION_US = 1000.0  # a guess: the duration of a function is unknown before it runs
_BATCHES_PER_BLOCK = 7  # that are warm-up: three probes, two batches, and one at each end of a chunk
_MARGIN = 1.1  # batches that are marked as warm-up, and steps that need more than the minimum to be precise
# Half-width of the median's 95 % interval, in standard deviations of the batches divided by the root of their number.
_HALF_WIDTH = 1.96 * 1.25
_SMALL_PROBES = 5
_PROBED_SHARE = 0.2
"""Largest share of the expected duration of a run that probing larger steps may take. On CPUs, collectives whose data
exceeds the caches take longer than their size suggests, and differ more than smaller ones. The durations of even
larger ones are proportional to their size."""
_ENDS = (0.1, 0.9)  # quantiles of repeated blocks at the ends of a range of durations
_PROBED_MARGIN = 1.15  # for what repeated blocks of one size do not show
_SPREAD_MARGIN = 1.25
_UNPROBED_LOW, _UNPROBED_HIGH = 0.5, 2.0
_PROBED_CALLS = 7  # of a large step: one to check the result, three single calls, and three batches

RATES: Mapping[str, Rates] = MappingProxyType({name: facts.rates for name, facts in BACKENDS.items()})
"""Conservative rates of each backend: GPUs of one host with NVLink, and a few processes or threads on one CPU."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Estimated cost of a plan.

    Parameters
    ----------
    n_steps : int
        Number of steps, over all launches.
    seconds : float
        Expected duration, in seconds.
    max_seconds : float
        Upper end of the expected duration, in seconds. A host that becomes busier may exceed it.
    memory_bytes : int
        Memory of one rank's buffers in the largest step, in bytes.
    n_skipped : int, default 0
        Number of steps whose buffers exceed the free memory. They are skipped, and the other values exclude them.
    min_seconds : float, default 0
        Lower end of the expected duration, in seconds.
    visible : Visibility, optional
        The smallest changes that the run would show now. None if no steps were repeated before the run.
    """

    n_steps: int
    seconds: float
    max_seconds: float
    memory_bytes: int
    n_skipped: int = 0
    min_seconds: float = 0.0
    visible: Visibility | None = None

    @classmethod
    def of(
        cls,
        plan: Plan,
        steps: Sequence[Step],
        seconds: npt.NDArray[np.float64],
        *,
        backend: str,
        room_bytes: int | None = None,
        before_s: float = 0.0,
        visible: Visibility | None = None,
    ) -> Estimate:
        """Sum the results of `seconds_per_step` over the steps and launches of a plan, and add the starts of ranks.

        `before_s` is the time that has passed before the first step, in seconds.
        """
        start_s = before_s + (plan.launches - 1) * RATES[backend].start_s
        fit = [step.buffer_bytes for step in steps if _fits(step, room_bytes)]
        least_s, expected_s, most_s = (start_s + plan.launches * total for total in seconds.sum(axis=0).tolist())
        return cls(
            n_steps=plan.launches * len(steps),
            seconds=expected_s,
            max_seconds=most_s,
            memory_bytes=max(fit, default=0),
            n_skipped=plan.launches * (len(steps) - len(fit)),
            min_seconds=least_s,
            visible=visible,
        )

    def __repr__(self) -> str:
        return f"<Estimate: {self}; next: .seconds, .visible>"

    def __str__(self) -> str:
        steps = f"{self.n_steps:,} step{'s' * (self.n_steps != 1)}"
        if self.n_skipped:
            steps += f" ({self.n_skipped:,} skipped for lack of memory)"
        return (
            f"{steps}, about {format_seconds_range(self.min_seconds, self.max_seconds)}, "
            f"buffers of up to {format_size(self.memory_bytes)} per rank"
            + ("" if self.visible is None else f"; visible now: {self.visible}")
        )

    def _repr_html_(self) -> str:
        cost, _, visible = str(self).partition("; visible now: ")
        if self.visible is None:
            return card("Estimate", cost)
        return card("Estimate", cost, f"<div>visible now: {escape(visible)}</div>", self.visible._figure_html())


class MeasuredAxis(NamedTuple):
    """The facts about an axis of a plan from which the duration of its steps follows."""

    backend: str
    n_groups: int


def estimate_plan(plan: Plan, mesh: DeviceMesh, *, backend: str, results: pd.DataFrame | None) -> Estimate:
    """Estimate the cost of a plan. See `Plan.estimate`."""
    check_backend(backend, BenchError)
    steps = plan.steps(mesh)
    axes = {}
    for axis in axes_of(plan):
        named = mesh.backend_of(axis) or backend
        # The backend of a framework may be unknown to meshlab.
        axes[axis] = MeasuredAxis(named if named in RATES else backend, len(mesh[axis]))
    seconds = seconds_per_step(plan, steps, axes, results=results)
    return Estimate.of(plan, steps, seconds, backend=backend)


def seconds_per_step(
    plan: Plan,
    steps: Sequence[Step],
    axes: Mapping[str, MeasuredAxis],
    *,
    results: pd.DataFrame | None = None,
    paces: Mapping[str, Pace] | None = None,
    room_bytes: int | None = None,
) -> npt.NDArray[np.float64]:
    """Return the lower end, the expectation and the upper end of each duration in s, shape (steps, 3), 0 if too large.

    Durations that were probed on an axis (`paces`) take precedence over `RATES`.
    """
    paces = paces or {}
    seconds_at = partial(_seconds_at, plan, steps, axes, _Known(results), room_bytes=room_bytes)
    expected = seconds_at(paces)
    # Without probes, both ends follow from the expectation, and a long plan takes a moment each time.
    least, most = (
        seconds_at({axis: pace.at(end) for axis, pace in paces.items()}) if paces else expected for end in (-1, 1)
    )
    is_probed = np.array([step.axis in paces for step in steps], dtype=np.bool_)
    # The rates of a backend are those of a typical machine. The time limit of a step may be more than twice as long.
    low = np.where(is_probed, least[:, 0], _UNPROBED_LOW * expected[:, 0])
    unprobed = np.maximum(_UNPROBED_HIGH * expected[:, 0], expected[:, 1])
    is_function = np.array([any(map(_is_function, step.parts)) for step in steps], dtype=np.bool_)
    high = np.where(is_probed & ~is_function, most[:, 0], unprobed)
    return np.stack([np.minimum(low, expected[:, 0]), expected[:, 0], np.maximum(high, expected[:, 0])], axis=1)


def _seconds_at(
    plan: Plan,
    steps: Sequence[Step],
    axes: Mapping[str, MeasuredAxis],
    earlier: _Known,
    paces: Mapping[str, Pace],
    room_bytes: int | None,
) -> npt.NDArray[np.float64]:
    """Return the duration of each step with and without sampling until it is precise, in s, shape (steps, 2)."""
    seconds = np.zeros((len(steps), 2))
    in_blocks = {step.index for group in turns(steps) if len(group) > 1 for step in group}
    for row, step in zip(seconds, steps, strict=True):
        if not _fits(step, room_bytes):
            continue
        times = axes[step.axis].n_groups if step.grouping == "alone" else 1
        blocks = n_blocks(plan.sampling) if step.index in in_blocks else 1
        for part in step.parts:
            rates = RATES[axes[part.axis].backend]
            pace = paces.get(part.axis, _ASSUMED)
            # Calls that are issued together are one call of a batch.
            n_together = part.n_aggregated or 1
            call_s, batch_s = earlier.time_us(part) * n_together / 1e6, pace.batch_s(part)
            if math.isnan(call_s) and batch_s is not None:
                call_s, chunk_s = min(pace.call_s(part), batch_s), pace.chunk_s(part)
            else:
                call_s = _model_us(part, rates) * n_together / 1e6 if math.isnan(call_s) else call_s
                batch_s = _batch_s(call_s * 1e6, part.mode, plan.sampling, rates)
                chunk_s = _warmup_s(batch_s, part.mode)
            sampling_s = _sampling_s(call_s, batch_s, chunk_s, plan.sampling, pace.n_batches(plan.sampling))
            if _is_function(part):  # it may turn out to be slow
                sampling_s[1] = max(sampling_s[1], SLOW_STEP_S)
            row += times * (sampling_s + blocks * pace.round_s + (blocks - 1) * _BATCHES_PER_BLOCK * batch_s)
            row += times * pace.setup_s(part, rates, check=plan.check)
    return seconds


@dataclass(frozen=True, slots=True, eq=False)
class Pace:
    """Durations that were probed along an axis, as functions of the size of a step. Without probes, `RATES` apply."""

    round_s: float  # to send a step to all ranks and to receive their samples
    # In the order of sizes for each collective. The first collective has all sizes, and the others only large ones.
    probed: Sequence[tuple[Step, Probe]] = ()
    round_range_s: tuple[float, float] | None = None  # short and long durations of `round_s`
    unevenness: tuple[float, float] = (1.0, 1.0)  # short and long times of repeated blocks, relative to their median

    def small_steps(self) -> list[Step]:
        """Return the probed steps of all sizes, without the large ones."""
        return [step for step, _ in self.probed[:_SMALL_PROBES] if step.collective == self.probed[0][0].collective]

    def at(self, end: int) -> Pace:
        """Return the durations at the lower end (-1) or the upper end (1) of what was measured."""
        index, margin = (end + 1) // 2, _PROBED_MARGIN**end
        factor = margin * self.unevenness[index]
        probed = [
            (
                step,
                replace(
                    probe,
                    setup_s=factor * probe.setup_s,
                    call_us=factor * probe.call_us,
                    batch_s=factor * probe.batch_s,
                    spread=_SPREAD_MARGIN**end * probe.spread,
                    chunk_s=factor * probe.chunk_s,
                    check_s=factor * probe.check_s,
                ),
            )
            for step, probe in self.probed
        ]
        round_s = self.round_s if self.round_range_s is None else self.round_range_s[index]
        return replace(self, round_s=margin * round_s, probed=probed)

    def batch_s(self, step: Step) -> float | None:
        """Return the duration of a batch with its barrier, in seconds, or None without probes of such a step."""
        if not self.probed or step.size_bytes is None:
            return None
        # Another collective moves as many bytes as this one does at a different size.
        probed = self._probed_for(step)
        moved, size = [_moved_bytes(other) for other, _ in probed], _moved_bytes(step)
        # A batch has fewer calls the longer they take, until it has only one.
        batch_s = float(np.interp(size, moved, [probe.batch_s for _, probe in probed]))
        return max(batch_s, self.call_s(step))

    def call_s(self, step: Step) -> float:
        """Return the duration of a call in a batch, in seconds. There must be probes."""
        probed = self._probed_for(step)
        moved = [_moved_bytes(other) for other, _ in probed]
        return _interpolate(_moved_bytes(step), moved, [probe.call_us / 1e6 for _, probe in probed])

    def chunk_s(self, step: Step) -> float:
        """Return the time around the batches of a chunk, in seconds. There must be probes."""
        probed = self._probed_for(step)
        moved = [_moved_bytes(other) for other, _ in probed]
        return _with_fixed_part(_moved_bytes(step), moved, [probe.chunk_s for _, probe in probed])

    def setup_s(self, step: Step, rates: Rates, *, check: bool) -> float:
        """Return the time to prepare a step and, with `check`, to check its result, in seconds."""
        if step.count is None:
            return 0.0
        if not self.probed:
            return step.buffer_bytes / (rates.data_gbs * 1e9) if check else 0.0
        probed = self._probed_for(step)
        buffers = [other.buffer_bytes for other, _ in probed]
        seconds = [probe.setup_s - (0.0 if check else probe.check_s) for _, probe in probed]
        return _with_fixed_part(step.buffer_bytes, buffers, seconds)

    def n_batches(self, sampling: Sampling) -> float:
        """Return the mean number of batches of a step, if its time is not limited."""
        # Spreads vary more from one moment to the next than from one size to another.
        fewest = _MARGIN * sampling.min_batches
        precise = [(_HALF_WIDTH * probe.spread / sampling.precision) ** 2 for _, probe in self.probed]
        numbers = np.array([n for n in precise if not math.isnan(n)] or [0.0])
        return float(np.minimum(np.maximum(numbers, fewest), sampling.max_batches).mean())

    def _probed_for(self, step: Step) -> list[tuple[Step, Probe]]:
        """Return the probes of a collective, and the small ones of the first collective."""
        first = [pair for pair in self.probed if pair[0].collective == self.probed[0][0].collective]
        of_collective = [pair for pair in self.probed if pair[0].collective == step.collective]
        if not of_collective or step.collective == first[0][0].collective:
            return first
        smallest = min(_moved_bytes(other) for other, _ in of_collective)
        return [pair for pair in first[:_SMALL_PROBES] if _moved_bytes(pair[0]) < smallest] + of_collective


_ASSUMED = Pace(_ROUND_S)


@dataclass(frozen=True, slots=True)
class RepeatedBlocks:
    """The times of a step of which a block was measured several times, as alternatives in turns are."""

    step: Step
    wall_s: Sequence[float]  # of each block, with everything around it
    time_us: Sequence[float]  # the median time of a call in each block, on the slowest rank
    log_pairs: Sequence[float] = ()  # see `log_pair`

    def added_to(self, pace: Pace, plan: Plan, rates: Rates) -> Pace:
        """Return a pace with the time around the batches of a block, and with the range of all durations."""
        sampling = block_sampling(plan.sampling, n_blocks(plan.sampling))
        call_s, batch_s = pace.call_s(self.step), pace.batch_s(self.step)
        if batch_s is None:
            batch_s = _batch_s(call_s * 1e6, self.step.mode, sampling, rates)
        chunk_s = pace.chunk_s(self.step)
        sampling_s = _sampling_s(min(call_s, batch_s), batch_s, chunk_s, sampling, pace.n_batches(sampling))
        around = np.maximum(np.array(self.wall_s) - sampling_s[0] - pace.setup_s(self.step, rates, check=False), 0.0)
        relative = np.array(self.time_us) / np.median(self.time_us)
        low, high = np.quantile(around, _ENDS)
        return replace(
            pace,
            round_s=max(pace.round_s, float(np.mean(around))),
            round_range_s=(min(pace.round_s, float(low)), max(pace.round_s, float(high))),
            unevenness=(float(np.quantile(relative, _ENDS[0])), float(np.quantile(relative, _ENDS[1]))),
        )


def steps_to_probe(
    steps: Sequence[Step], axes: Mapping[str, MeasuredAxis], seconds: npt.NDArray[np.float64]
) -> dict[str, list[Step]]:
    """Return steps of each axis that suffice to estimate all: up to five sizes of one collective, one of the others."""
    by_axis: dict[str, dict[str, list[Step]]] = {}
    for step in steps:
        if step.count is not None and step.grouping != "pairs" and step.concurrent is None:
            by_axis.setdefault(step.axis, {}).setdefault(step.collective, []).append(step)
    affordable_s = _PROBED_SHARE * float(seconds.sum()) / max(sum(map(len, by_axis.values())), 1)
    chosen: dict[str, list[Step]] = {}
    for axis, by_collective in by_axis.items():
        backend = axes[axis].backend
        limit, rates = BACKENDS[backend].probed_bytes, RATES[backend]
        mode = next(iter(by_collective.values()))[0].mode
        for candidates in by_collective.values():
            same = {step.size_bytes: step for step in reversed(candidates) if step.mode == mode}
            by_size = sorted(same.values(), key=lambda step: step.size_bytes or 0)
            fit = [step for step in by_size if step.buffer_bytes <= limit] or by_size[:1]
            if axis not in chosen:
                chosen[axis] = [fit[i] for i in np.unique(np.linspace(0, len(fit) - 1, _SMALL_PROBES).astype(int))]
            large = [step for step in by_size[len(fit) :] if _probing_s(step, rates) <= affordable_s]
            chosen[axis] += large[-1:]
    return chosen


def _probing_s(step: Step, rates: Rates) -> float:
    """Return the assumed time to probe a large step, in seconds."""
    return _PROBED_CALLS * _model_us(step, rates) / 1e6 + step.buffer_bytes / (rates.data_gbs * 1e9)


def _interpolate(size: float, sizes: Sequence[float], values: Sequence[float]) -> float:
    """Interpolate between sizes. Beyond the largest one, the value is proportional to the size."""
    return float(np.interp(size, sizes, values) * max(1.0, size / sizes[-1]))


def _with_fixed_part(size: float, sizes: Sequence[float], values: Sequence[float]) -> float:
    """Interpolate between sizes. Beyond the largest one, the value grows as it did up to there."""
    # Preparing a step takes a fixed time, in which graphs are captured, and a time per byte. If all of it grew with the
    # size, a step of 16 times the largest probe would seem to take 16 times the fixed time.
    if len(sizes) < 2 or size <= sizes[-1] or sizes[-1] <= sizes[0]:
        return _interpolate(size, sizes, values)
    per_byte = max(values[-1] - values[0], 0.0) / (sizes[-1] - sizes[0])
    return values[-1] + per_byte * (size - sizes[-1])


def _moved_bytes(step: Step) -> float:
    # A bus factor below 1 does not make a call faster than a copy of its buffer.
    if step.size_bytes is None:  # a barrier
        return 0.0
    return step.size_bytes * max(CATALOG[step.collective].bus_factor(max(step.n_ranks, 2)), 1.0)


def _fits(step: Step, room_bytes: int | None) -> bool:
    return room_bytes is None or step.buffer_bytes <= room_bytes


def _is_function(step: Step) -> bool:
    return step.collective not in CATALOG


def _model_us(step: Step, rates: Rates) -> float:
    if _is_function(step):
        return _FUNCTION_US
    return rates.latency_us + _moved_bytes(step) / (rates.bandwidth_gbs * 1e3)


def _sampling_s(
    call_s: float, batch_s: float, around_s: float, sampling: Sampling, n: float
) -> npt.NDArray[np.float64]:
    """Return the expected and maximum time to sample a step with `n` batches at most, in s. See `take_batches`."""
    # `around_s` is the time around the batches of each chunk.
    if call_s > SLOW_CALL_S:
        # One call is the probe and the warm-up, and chunks end when the time is over.
        n_slow = max(1, min(max(FEWEST_FOR_INTERVAL, int(sampling.max_s / call_s - 1)), int(SLOW_STEP_S / call_s - 1)))
        return np.full(2, (1 + n_slow) * call_s)
    begin_s = PROBES * call_s
    if sampling.warmup_batches:
        begin_s += sampling.warmup_batches * batch_s + around_s
    chunk = min(max(FEWEST_FOR_INTERVAL, sampling.min_batches // 2), sampling.max_batches)
    chunk_s = (chunk + 2) * batch_s + around_s  # a batch more at each end
    # The ranks check the time after every chunk. Whole chunks are counted for the time, and up to the fewest batches,
    # but not for the precision: that is reached earlier or later by chance.
    most = min(math.ceil(sampling.max_batches / chunk), max(1, math.ceil((sampling.max_s - begin_s) / chunk_s)))
    expected = begin_s + min(max(n / chunk, math.ceil(sampling.min_batches / chunk)), most) * chunk_s
    return np.array([expected, max(expected, begin_s + most * chunk_s)])


def _warmup_s(batch_s: float, mode: str) -> float:
    """Return the assumed time around the batches of a chunk, in seconds: graphs are replayed twice before them."""
    return 2 * batch_s if mode == "graph" else 0.0


def _batch_s(call_us: float, mode: str, sampling: Sampling, rates: Rates) -> float:
    """Return the duration of a batch, in seconds."""
    calls = 1.0 if mode == "isolated" else min(max(1.0, sampling.batch_us / call_us), sampling.max_calls)
    return (calls * call_us + 2 * rates.latency_us) / 1e6  # two latencies for the barrier before a batch


class _Known:
    """Times of an earlier run by collective, mode, group size and grouping, as functions of the message size."""

    def __init__(self, source: Any) -> None:
        self._curves: dict[tuple[Any, ...], tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]] = {}
        if source is None:
            return
        results = as_results(source)
        good = results[(results["status"] == "ok") & results["concurrent_axis"].isna()]
        is_barrier = (good["collective"] == "barrier") & good["size_bytes"].isna()
        good = good.assign(size_bytes=good["size_bytes"].mask(is_barrier, 0)).dropna(subset=["size_bytes"])
        # A pair and a group of two have the same number of ranks, but not the same load on the links.
        grouping = good["grouping"].fillna("together")
        for key, rows in good.groupby(["collective", "mode", "n_ranks", grouping]):
            slowest = rows.groupby("size_bytes")["time_us"].max()
            self._curves[key] = slowest.index.to_numpy(dtype=np.float64), slowest.to_numpy(dtype=np.float64)

    def time_us(self, step: Step) -> float:
        """Return the time of one call, in µs, or NaN if the earlier run did not measure it."""
        curve = self._curves.get((step.collective, step.mode, step.n_ranks, step.grouping))
        if curve is None or _is_function(step):
            return math.nan
        if step.size_bytes is None:
            return float(curve[1][0])
        # Interpolate between the measured sizes. The bandwidth is assumed to be constant above the largest one, and the
        # time below the smallest one.
        size, time = curve
        return float(np.interp(step.size_bytes, size, time) * max(1.0, step.size_bytes / size[-1]))
