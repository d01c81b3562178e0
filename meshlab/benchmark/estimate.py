"""What a plan will cost, before it starts: time and memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from meshlab.comm.catalog import CATALOG
from meshlab.frames.plan import PATIENCE_S
from meshlab.frames.statistics import FEWEST_FOR_INTERVAL
from meshlab.frames.store import as_results
from meshlab.mesh.mesh import DeviceMesh
from meshlab.units import format_seconds, format_size

if TYPE_CHECKING:
    import pandas as pd

    from meshlab.frames.plan import Plan, Sampling, Step

__all__ = ["RATES", "Estimate", "Rates", "estimate_plan", "seconds_per_step"]

_ROUND_S = 0.015  # to send a step to all ranks and get their samples back
_CHECK_S_PER_ELEMENT = 25e-9  # to make the right answer on the host, for each rank that has a part in it
_FUNCTION_US = 1000.0  # what a function takes, for want of anything better


@dataclass(frozen=True, slots=True)
class Rates:
    """Latency and bandwidth to assume: a call takes ``latency_us + size × bus factor / bandwidth``.

    Parameters
    ----------
    latency_us : float
        The time of the smallest call, in µs.
    bandwidth_gbs : float
        Bus bandwidth of large calls, in GB/s.
    """

    latency_us: float
    bandwidth_gbs: float


RATES: Mapping[str, Rates] = MappingProxyType(
    {"nccl": Rates(15.0, 200.0), "mpi": Rates(10.0, 1.5), "threads": Rates(100.0, 1.0)}
)
"""Cautious rates by backend: two or more GPUs with NVLink, a few processes or threads on one CPU."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a plan will cost.

    Parameters
    ----------
    n_steps : int
        How many steps, over all launches.
    seconds, most_seconds : float
        How long it should take, and how long if every step needs all its time.
    memory_bytes : int
        What the buffers of one rank take in the largest step.
    n_left_out : int, default 0
        How many of the steps are known not to fit into memory; they count in nothing else.
    """

    n_steps: int
    seconds: float
    most_seconds: float
    memory_bytes: int
    n_left_out: int = 0

    @classmethod
    def of(
        cls, plan: Plan, steps: Sequence[Step], seconds: npt.NDArray[np.float64], room_bytes: int | None = None
    ) -> Estimate:
        """Add up what `seconds_per_step` says about the steps of a plan."""
        fit = [step.buffer_bytes for step in steps if _fits(step, room_bytes)]
        return cls(
            n_steps=plan.launches * len(steps),
            seconds=plan.launches * float(seconds[:, 0].sum()),
            most_seconds=plan.launches * float(seconds[:, 1].sum()),
            memory_bytes=max(fit, default=0),
            n_left_out=plan.launches * (len(steps) - len(fit)),
        )

    def __str__(self) -> str:
        steps = f"{self.n_steps:,} step{'s' * (self.n_steps != 1)}"
        if self.n_left_out:
            steps += f", {self.n_left_out:,} of them left out for want of memory"
        return (
            f"{steps}, about {format_seconds(self.seconds)} (at most {format_seconds(self.most_seconds)}), "
            f"buffers of up to {format_size(self.memory_bytes)} per rank"
        )


def estimate_plan(plan: Plan, mesh: DeviceMesh, *, backend: str, results: pd.DataFrame | None) -> Estimate:
    """See `Plan.estimate`."""
    steps = plan.steps(mesh)
    return Estimate.of(plan, steps, seconds_per_step(plan, steps, mesh, backend=backend, results=results))


def seconds_per_step(
    plan: Plan,
    steps: Sequence[Step],
    mesh: DeviceMesh,
    *,
    backend: str,
    results: pd.DataFrame | None = None,
    room_bytes: int | None = None,
) -> npt.NDArray[np.float64]:
    """For each step, how long it should take and how long at most, in s; float64 of shape (steps, 2).

    A step whose buffers take more than `room_bytes` takes no time: it is left out.
    """
    rates = RATES.get(backend, RATES["mpi"])
    known = _Known(results)
    seconds = np.zeros((len(steps), 2))
    for row, step in zip(seconds, steps, strict=True):
        if not _fits(step, room_bytes):
            continue
        times = len(mesh[step.axis]) if step.grouping == "alone" else 1
        for part in step.parts:
            call_us = known.time_us(part)
            call_us = _model_us(part, rates) if math.isnan(call_us) else call_us
            sampling_s = _sampling_s(call_us, part.mode, plan.sampling, rates)
            if part.size_bytes is None:  # nobody knows how long a function takes; a slow one is called for so long
                sampling_s[1] = max(sampling_s[1], PATIENCE_S)
            row += times * (sampling_s + _ROUND_S)
            if plan.check and part.count is not None:
                row += times * _CHECK_S_PER_ELEMENT * _checked(part)
    return seconds


def _fits(step: Step, room_bytes: int | None) -> bool:
    return room_bytes is None or step.buffer_bytes <= room_bytes


def _model_us(step: Step, rates: Rates) -> float:
    if step.size_bytes is None:
        return _FUNCTION_US
    factor = max(CATALOG[step.collective].bus_factor(max(step.n_ranks, 2)), 1.0)
    return rates.latency_us + step.size_bytes * factor / (rates.bandwidth_gbs * 1e3)


def _checked(step: Step) -> int:
    """How many elements the check looks at on one rank: of every input that has a part in its output."""
    row, n = CATALOG[step.collective], step.n_ranks
    received = row.elements("receives", step.count or 0, n)
    return received * (n + 1 if row.reduces else 2)


def _sampling_s(call_us: float, mode: str, sampling: Sampling, rates: Rates) -> npt.NDArray[np.float64]:
    calls = 1.0 if mode == "isolated" else min(max(1.0, sampling.batch_us / call_us), sampling.max_calls)
    batch_s = (calls * call_us + 2 * rates.latency_us) / 1e6
    least = FEWEST_FOR_INTERVAL * batch_s
    wanted = max(least, min(1.3 * sampling.min_batches * batch_s, sampling.max_s))
    most = max(least, min(sampling.max_batches * batch_s, sampling.max_s + batch_s * sampling.min_batches / 2))
    return sampling.warmup_batches * batch_s + np.array([wanted, max(wanted, most)])


class _Known:
    """Times of an earlier run, by what was called; between sizes they are interpolated, beyond them they grow."""

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
        """The time of one call; NaN where nothing is known."""
        curve = self._curves.get((step.collective, step.mode, step.n_ranks, step.grouping))
        if curve is None or step.size_bytes is None:
            return math.nan
        size, time = curve
        return float(np.interp(step.size_bytes, size, time) * max(1.0, step.size_bytes / size[-1]))
