"""Batches of calls, until the times are precise enough; runs on the engines."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from meshlab.benchmark.statistics import FEWEST_FOR_INTERVAL, is_precise, leading_warmup
from meshlab.comm.backend import Mode, Timings

if TYPE_CHECKING:
    from meshlab.benchmark.plan import Sampling
    from meshlab.comm import Communicator

__all__ = ["Batches", "Measure", "Share", "calls_per_batch", "share_pairs", "share_slowest", "take_batches"]

Floats = npt.NDArray[np.float64]

Measure = Callable[[Mode, int, int], Timings]
"""``measure(mode, calls, batches)``, as `meshlab.comm.PreparedCall.measure`."""

Share = Callable[[Sequence[Any]], Floats]
"""From values of this rank to those that decide, the same on every rank: float64 of shape (series, values)."""

_PROBES = 3


@dataclass(frozen=True, slots=True, eq=False)
class Batches:
    """What one rank measured, one value per batch.

    Parameters
    ----------
    calls : numpy.ndarray
        How many calls.
    time_us, host_us : numpy.ndarray
        Per call, in µs.
    start_us : numpy.ndarray or None
        When each batch began on the host's clock; None unless starts were aligned.
    is_warmup : numpy.ndarray
        True for batches to leave out.
    stop_reason : str
        Why sampling stopped.
    """

    calls: npt.NDArray[np.int64]
    time_us: Floats
    host_us: Floats
    start_us: Floats | None
    is_warmup: npt.NDArray[np.bool_]
    stop_reason: str


def take_batches(measure: Measure, share: Share, mode: Mode, sampling: Sampling) -> Batches:
    """Time a call until its times are precise enough. All ranks that `share` joins call it together.

    A few single calls say how long a batch should be, then come the batches for warm-up. Then batches are taken some at
    a time; what the ranks must agree on, such as when to stop, they work out from the times that all of them share. The
    batch behind such a talk finds cold caches, and in the batch before it some ranks are already talking. All of these
    are kept, and marked as warm-up.

    Parameters
    ----------
    measure : callable
        Times batches of calls.
    share : callable
        Tells this rank's values to the others, and gives what decides.
    mode : {"isolated", "pipelined", "graph"}
        See `meshlab.comm.MODES`.
    sampling : Sampling
        How much.
    """
    began = time.perf_counter()
    parts = [measure(mode, 1, _PROBES)]
    calls = calls_per_batch(float(share([np.median(parts[0].time_us)]).max()), mode, sampling)
    if sampling.warmup_batches:
        parts.append(measure(mode, calls, sampling.warmup_batches))
    marks = [np.ones(len(part.time_us), dtype=bool) for part in parts]
    series: Floats | None = None
    reason, lead = "", 0
    while not reason:
        n = 0 if series is None else series.shape[1]
        chunk = min(max(FEWEST_FOR_INTERVAL, sampling.min_batches // 2), sampling.max_batches - n)
        parts.append(measure(mode, calls, chunk + 2))
        marks.append(np.isin(np.arange(chunk + 2), (0, chunk + 1)))
        shared = share([*parts[-1].time_us[1:-1], time.perf_counter() - began])
        series = shared[:, :-1] if series is None else np.concatenate([series, shared[:, :-1]], axis=1)
        lead = max(leading_warmup(one) for one in series)
        reason = _why_stop(series, lead, float(shared[:, -1].max()), sampling)
    is_warmup = np.concatenate(marks)
    is_warmup[np.flatnonzero(~is_warmup)[:lead]] = True
    starts = [part.start_us for part in parts if part.start_us is not None]
    return Batches(
        calls=np.where(np.arange(len(is_warmup)) < _PROBES, 1, calls),
        time_us=np.concatenate([part.time_us for part in parts]),
        host_us=np.concatenate([part.host_us for part in parts]),
        start_us=np.concatenate(starts) if starts else None,
        is_warmup=is_warmup,
        stop_reason=reason,
    )


def calls_per_batch(call_us: float, mode: Mode, sampling: Sampling) -> int:
    """How many calls make a batch as long as it should be."""
    if mode == "isolated":
        return 1
    return int(min(max(1.0, sampling.batch_us / max(call_us, 1e-3)), sampling.max_calls))


def _why_stop(series: Floats, lead: int, elapsed_s: float, sampling: Sampling) -> str:
    settled = series[:, lead:]
    n = settled.shape[1]
    if n >= sampling.min_batches and all(is_precise(one, sampling.precision) for one in settled):
        return "precise"
    if elapsed_s >= sampling.max_s and n >= FEWEST_FOR_INTERVAL:
        return "time"
    return "batches" if series.shape[1] >= sampling.max_batches else ""


def share_slowest(comm: Communicator) -> Share:
    """The group's slowest rank decides."""

    def share(values: Sequence[Any]) -> Floats:
        shared = comm.all_reduce(comm.xp.asarray(values, dtype="float64"), op="max")
        return _on_host(shared)[None, :]

    return share


def share_pairs(comm: Communicator, pairs: Sequence[tuple[int, int]]) -> Share:
    """The slower rank of every pair decides about its pair; all pairs stop together."""

    def share(values: Sequence[Any]) -> Floats:
        everyone = comm.all_gather(comm.xp.asarray(values, dtype="float64"))
        by_rank = _on_host(everyone).reshape(comm.size, len(values))
        return np.asarray(np.stack([by_rank[list(pair)].max(axis=0) for pair in pairs]))

    return share


def _on_host(array: Any) -> Floats:
    return np.asarray(array.get() if hasattr(array, "get") else array, dtype=np.float64)
