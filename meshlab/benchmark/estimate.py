"""Estimates of the duration and the memory of a plan, before it starts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from meshlab.comm.catalog import CATALOG
from meshlab.frames.plan import SLOW_STEP_S, n_blocks, turns
from meshlab.frames.statistics import FEWEST_FOR_INTERVAL
from meshlab.frames.store import as_results
from meshlab.mesh.mesh import DeviceMesh
from meshlab.units import format_seconds, format_size

if TYPE_CHECKING:
    import pandas as pd

    from meshlab.frames.plan import Plan, Sampling, Step

__all__ = ["RATES", "Estimate", "Rates", "estimate_plan", "seconds_per_step"]

_ROUND_S = 0.015  # sending a step to all ranks and receiving their samples
_CHECK_S_PER_ELEMENT = 25e-9  # computing the input of one rank on the host, for the expected result
_FUNCTION_US = 1000.0  # a guess: the duration of a function is unknown before it runs
_BATCHES_PER_BLOCK = 7  # that are warm-up: three probes, two batches, and one at each end of a chunk
_MARGIN = 1.3  # batches that are marked as warm-up, and steps that need more than the minimum to be precise


@dataclass(frozen=True, slots=True)
class Rates:
    """Assumed latency and bandwidth of a backend: a call takes ``latency_us + size × bus factor / bandwidth_gbs``.

    Parameters
    ----------
    latency_us : float
        Time of the smallest call, in µs.
    bandwidth_gbs : float
        Bus bandwidth of large calls, in GB/s.
    start_s : float, default 0
        Time to start new ranks for another launch, in seconds.
    """

    latency_us: float
    bandwidth_gbs: float
    start_s: float = 0.0


RATES: Mapping[str, Rates] = MappingProxyType(
    {"nccl": Rates(15.0, 200.0, 8.0), "mpi": Rates(10.0, 1.5, 4.0), "threads": Rates(100.0, 1.0)}
)
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
        Duration if every step uses its time limit, in seconds.
    memory_bytes : int
        Memory of one rank's buffers in the largest step, in bytes.
    n_skipped : int, default 0
        Number of steps whose buffers exceed the free memory. They are skipped, and the other values exclude them.
    """

    n_steps: int
    seconds: float
    max_seconds: float
    memory_bytes: int
    n_skipped: int = 0

    @classmethod
    def of(
        cls,
        plan: Plan,
        steps: Sequence[Step],
        seconds: npt.NDArray[np.float64],
        *,
        backend: str,
        room_bytes: int | None = None,
    ) -> Estimate:
        """Sum the results of `seconds_per_step` over the steps and launches of a plan, and add the starts of ranks."""
        start_s = (plan.launches - 1) * RATES.get(backend, RATES["mpi"]).start_s
        fit = [step.buffer_bytes for step in steps if _fits(step, room_bytes)]
        return cls(
            n_steps=plan.launches * len(steps),
            seconds=start_s + plan.launches * float(seconds[:, 0].sum()),
            max_seconds=start_s + plan.launches * float(seconds[:, 1].sum()),
            memory_bytes=max(fit, default=0),
            n_skipped=plan.launches * (len(steps) - len(fit)),
        )

    def __str__(self) -> str:
        steps = f"{self.n_steps:,} step{'s' * (self.n_steps != 1)}"
        if self.n_skipped:
            steps += f" ({self.n_skipped:,} skipped for lack of memory)"
        return (
            f"{steps}, about {format_seconds(self.seconds)} (at most {format_seconds(self.max_seconds)}), "
            f"buffers of up to {format_size(self.memory_bytes)} per rank"
        )


def estimate_plan(plan: Plan, mesh: DeviceMesh, *, backend: str, results: pd.DataFrame | None) -> Estimate:
    """Estimate the cost of a plan. See `Plan.estimate`."""
    steps = plan.steps(mesh)
    seconds = seconds_per_step(plan, steps, mesh, backend=backend, results=results)
    return Estimate.of(plan, steps, seconds, backend=backend)


def seconds_per_step(
    plan: Plan,
    steps: Sequence[Step],
    mesh: DeviceMesh,
    *,
    backend: str,
    results: pd.DataFrame | None = None,
    room_bytes: int | None = None,
) -> npt.NDArray[np.float64]:
    """Return the expected and the maximum duration of each step, in seconds, as float64 of shape (steps, 2).

    Both are 0 for steps whose buffers take more than `room_bytes`, because they are skipped.
    """
    rates = RATES.get(backend, RATES["mpi"])
    known = _Known(results)
    seconds = np.zeros((len(steps), 2))
    in_blocks = {step.index for group in turns(steps) if len(group) > 1 for step in group}
    for row, step in zip(seconds, steps, strict=True):
        if not _fits(step, room_bytes):
            continue
        times = len(mesh[step.axis]) if step.grouping == "alone" else 1
        for part in step.parts:
            call_us = known.time_us(part)
            call_us = _model_us(part, rates) if math.isnan(call_us) else call_us
            sampling_s = _sampling_s(call_us, part.mode, plan.sampling, rates)
            if part.size_bytes is None:  # a function may turn out to be slow
                sampling_s[1] = max(sampling_s[1], SLOW_STEP_S)
            blocks = n_blocks(plan.sampling) if step.index in in_blocks else 1
            batch_s = _batch_s(call_us, part.mode, plan.sampling, rates)
            row += times * (sampling_s + blocks * _ROUND_S + (blocks - 1) * _BATCHES_PER_BLOCK * batch_s)
            if plan.check and part.count is not None:
                row += times * _CHECK_S_PER_ELEMENT * _checked(part)
    return seconds


def _fits(step: Step, room_bytes: int | None) -> bool:
    return room_bytes is None or step.buffer_bytes <= room_bytes


def _model_us(step: Step, rates: Rates) -> float:
    if step.size_bytes is None:
        return _FUNCTION_US
    # A bus factor below 1 does not make a call faster than a copy of its buffer.
    factor = max(CATALOG[step.collective].bus_factor(max(step.n_ranks, 2)), 1.0)
    return rates.latency_us + step.size_bytes * factor / (rates.bandwidth_gbs * 1e3)


def _checked(step: Step) -> int:
    """Return the number of input elements that the check computes on one rank."""
    # The rank's own input, and for each element of its output the inputs that it depends on: all of them for a
    # reduction, otherwise one.
    row, n = CATALOG[step.collective], step.n_ranks
    received = row.elements("receives", step.count or 0, n)
    return received * (n + 1 if row.reduces else 2)


def _sampling_s(call_us: float, mode: str, sampling: Sampling, rates: Rates) -> npt.NDArray[np.float64]:
    """Return the expected and the maximum duration of the sampling of one step, in seconds. See `take_batches`."""
    batch_s = _batch_s(call_us, mode, sampling, rates)
    fewest_s = FEWEST_FOR_INTERVAL * batch_s
    expected = max(fewest_s, min(_MARGIN * sampling.min_batches * batch_s, sampling.max_s))
    # The ranks check the time after every chunk of half of min_batches, so a step may exceed max_s by one chunk.
    chunk_s = batch_s * sampling.min_batches / 2
    maximum = max(fewest_s, min(sampling.max_batches * batch_s, sampling.max_s + chunk_s))
    return sampling.warmup_batches * batch_s + np.array([expected, max(expected, maximum)])


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
        good = results[(results["status"] == "ok") & results["size_bytes"].notna() & results["concurrent_axis"].isna()]
        # A pair and a group of two have the same number of ranks, but not the same load on the links.
        grouping = good["grouping"].fillna("together")
        for key, rows in good.groupby(["collective", "mode", "n_ranks", grouping]):
            slowest = rows.groupby("size_bytes")["time_us"].max()
            self._curves[key] = slowest.index.to_numpy(dtype=np.float64), slowest.to_numpy(dtype=np.float64)

    def time_us(self, step: Step) -> float:
        """Return the time of one call, in µs, or NaN if the earlier run did not measure it."""
        curve = self._curves.get((step.collective, step.mode, step.n_ranks, step.grouping))
        if curve is None or step.size_bytes is None:
            return math.nan
        # Interpolate between the measured sizes. The bandwidth is assumed to be constant above the largest one, and the
        # time below the smallest one.
        size, time = curve
        return float(np.interp(step.size_bytes, size, time) * max(1.0, step.size_bytes / size[-1]))
