"""Batches of calls, until the times are precise enough; runs on the engines."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from meshlab.comm.backend import Mode, Timings
from meshlab.frames.plan import PATIENCE_S
from meshlab.frames.statistics import FEWEST_FOR_INTERVAL, is_precise, leading_warmup

if TYPE_CHECKING:
    from meshlab.comm.communicator import Communicator
    from meshlab.frames.plan import Sampling

__all__ = ["Batches", "Measure", "StopVote", "calls_per_batch", "take_batches", "vote_alone"]


Floats = npt.NDArray[np.float64]

Measure = Callable[[Mode, int, int], Timings]
"""``measure(mode, calls, batches)``, as `meshlab.comm.PreparedCall.measure`."""

_PROBES = 3

_SLOW_S = 0.1
"""From here on a call is slow: what talk between batches costs does not matter, and every batch has to be worth it."""


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


class StopVote:
    """What ranks agree on from times that all of them share: when to stop, and how long a batch is.

    All parties stop together, so that none of them is measured while another one is idle already.

    Parameters
    ----------
    comm : Communicator
        Joins all ranks that take part.
    parties : sequence of sequence of int, or numpy.ndarray
        Who works together, as ranks of `comm`, and is as slow as the slowest of them: shape (parties, size).
    """

    def __init__(self, comm: Communicator, parties: Sequence[Sequence[int]] | npt.NDArray[np.int32]) -> None:
        self._comm = comm
        self._parties = np.array(parties)
        mine = np.flatnonzero((self._parties == comm.rank).any(axis=1))
        self._own = int(mine[0]) if len(mine) else None

    def share(self, values: Sequence[Any]) -> Floats:
        """From values of this rank to the largest of every party: float64 of shape (parties, values)."""
        everyone = self._comm.all_gather(self._comm.xp.asarray(values, dtype="float64"))
        by_rank = np.asarray(everyone.get() if hasattr(everyone, "get") else everyone, dtype=np.float64)
        return np.asarray(by_rank.reshape(self._comm.size, -1)[self._parties].max(axis=1))

    def own(self, values: Sequence[int]) -> int:
        """From a value of every party to that of this rank's; the largest for a rank without a party."""
        return max(values) if self._own is None else values[self._own]


def vote_alone(comm: Communicator) -> StopVote:
    """The ranks of one group agree, whatever others do."""
    return StopVote(comm, [range(comm.size)])


def take_batches(measure: Measure, vote: StopVote, mode: Mode, sampling: Sampling) -> Batches:
    """Time a call until its times are precise enough. All ranks of the vote call it together.

    A few single calls say how long a batch should be, then come the batches for warm-up. Then batches are taken some at
    a time; what the ranks must agree on, such as when to stop, they work out from the times that all of them share. The
    batch behind such a talk finds cold caches, and in the batch before it some ranks are already talking. All of these
    are kept, and marked as warm-up. Of a slow call the first one is warm-up enough.

    Parameters
    ----------
    measure : callable
        Times batches of calls.
    vote : StopVote
        Among the ranks that take part.
    mode : {"isolated", "pipelined", "graph"}
        See `meshlab.comm.MODES`.
    sampling : Sampling
        How much.
    """
    began = time.perf_counter()
    parts = [measure(mode, 1, 1)]
    counts = [1]
    shared = vote.share([parts[0].time_us[0]])
    is_slow = float(shared.max()) > 1e6 * _SLOW_S
    if not is_slow:
        parts.append(measure(mode, 1, _PROBES - 1))
        counts.append(1)
        shared = vote.share([np.median(np.concatenate([part.time_us for part in parts]))])
    every = [calls_per_batch(call_us, mode, sampling) for call_us in shared[:, 0]]
    calls = vote.own(every)
    batch_s = float((shared[:, 0] * every).max()) / 1e6
    if sampling.warmup_batches and not is_slow:
        parts.append(measure(mode, calls, sampling.warmup_batches))
        counts.append(calls)
    marks = [np.ones(len(part.time_us), dtype=bool) for part in parts]
    edges = 0 if is_slow else 1
    series: Floats | None = None
    reason, lead, elapsed_s = "", 0, float(shared[:, 0].max()) / 1e6
    while not reason:
        n = 0 if series is None else series.shape[1]
        chunk = min(max(FEWEST_FOR_INTERVAL, sampling.min_batches // 2), sampling.max_batches - n)
        if is_slow:
            wanted = max(FEWEST_FOR_INTERVAL - n, int((sampling.max_s - elapsed_s) / batch_s))
            chunk = max(1, min(chunk, wanted, int((_patience_s(sampling) - elapsed_s) / batch_s)))
        part = measure(mode, calls, chunk + 2 * edges)
        parts.append(part)
        counts.append(calls)
        inside = slice(edges, edges + chunk)
        mark = np.ones(len(part.time_us), dtype=bool)
        mark[inside] = False
        marks.append(mark)
        shared = vote.share([*part.time_us[inside], time.perf_counter() - began])
        series = shared[:, :-1] if series is None else np.concatenate([series, shared[:, :-1]], axis=1)
        lead = max(leading_warmup(one) for one in series)
        elapsed_s = float(shared[:, -1].max())
        reason = _why_stop(series, lead, elapsed_s, sampling)
    is_warmup = np.concatenate(marks)
    is_warmup[np.flatnonzero(~is_warmup)[:lead]] = True
    starts = [part.start_us for part in parts if part.start_us is not None]
    return Batches(
        calls=np.repeat(counts, [len(part.time_us) for part in parts]),
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
    if elapsed_s >= sampling.max_s and (n >= FEWEST_FOR_INTERVAL or elapsed_s >= _patience_s(sampling)):
        return "time"
    return "batches" if series.shape[1] >= sampling.max_batches else ""


def _patience_s(sampling: Sampling) -> float:
    return max(PATIENCE_S, sampling.max_s)
