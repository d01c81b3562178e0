"""Sampling: batches of the calls of a step, until their times are precise enough. Runs on the engines."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from meshlab.benchmark.on_ranks._buffers import allocate
from meshlab.benchmark.on_ranks._checking import count_wrong_elements
from meshlab.benchmark.on_ranks._step_calls import aggregated, issued_together, set_up_step
from meshlab.comm._backend import Mode, Timings
from meshlab.frames._rows import Floats, RankSamples
from meshlab.frames._statistics import FEWEST_FOR_INTERVAL, is_precise, leading_warmup
from meshlab.plans._sampling import SLOW_STEP_S, block_sampling
from meshlab.plans._steps import pairs_of_round

if TYPE_CHECKING:
    from meshlab.comm._communicator import Communicator
    from meshlab.plans._sampling import Sampling
    from meshlab.plans._steps import Step

Measure = Callable[[Mode, int, int], Timings]
"""``measure(mode, calls, batches)``, as `meshlab.comm.PreparedCall.measure`."""

PROBES = 3
"""Number of single calls at the beginning of a step, unless the first one is slow."""

SLOW_CALL_S = 0.1
"""Duration from which a call is slow: its batches take much longer than a vote, and each of them is expensive."""


class StopVote:
    """Vote of several groups (ranks of `comm`, shape (groups, size)) on when to stop and on the calls per batch."""

    # All ranks decide from the same shared times, and a group is as slow as its slowest rank. All groups stop at the
    # same batch, so that no group is measured while another one is already idle.

    def __init__(self, comm: Communicator, groups: Sequence[Sequence[int]] | npt.NDArray[np.int32]) -> None:
        self._comm = comm
        self._groups = np.array(groups)
        groups_of_rank = np.flatnonzero((self._groups == comm.rank).any(axis=1))
        self._own = int(groups_of_rank[0]) if len(groups_of_rank) else None

    def share(self, values: Sequence[Any]) -> Floats:
        """Return the maximum of each value over the ranks of each group: float64 of shape (groups, values)."""
        everyone = self._comm.all_gather(self._comm.xp.asarray(values, dtype="float64"))
        by_rank = np.asarray(self._comm.to_host(everyone), dtype=np.float64)
        return np.asarray(by_rank.reshape(self._comm.size, -1)[self._groups].max(axis=1))

    def own(self, values: Sequence[int]) -> int:
        """Return the value of this rank's group, or the maximum for a rank that is in none of the groups."""
        return max(values) if self._own is None else values[self._own]


def group_vote(comm: Communicator) -> StopVote:
    """Return a vote of the ranks of one group, independent of other groups."""
    return StopVote(comm, [range(comm.size)])


def take_batches(measure: Measure, vote: StopVote, mode: Mode, sampling: Sampling, n_blocks: int = 1) -> RankSamples:
    """Time a block of calls, one of `n_blocks`, until its times are precise enough. Collective over all voters."""
    # A few single calls determine the number of calls per batch. Batches for warm-up follow, and then chunks of batches
    # with a vote after each. All batches are kept, and those that are not part of the statistics are marked as warm-up.
    began = time.perf_counter()
    sampling = block_sampling(sampling, n_blocks)
    # An interval needs six batches, but they may come from several blocks.
    fewest, hard_limit_s = math.ceil(FEWEST_FOR_INTERVAL / n_blocks), max(SLOW_STEP_S / n_blocks, sampling.max_s)
    # The first call connects the peers and fills the caches. If it is slow, it is the only probe and the only warm-up:
    # its one-time costs are small against 0.1 s, and every further call would delay the measurement noticeably.
    parts = [measure(mode, 1, 1)]
    counts = [1]
    shared = vote.share([parts[0].time_us[0]])
    is_slow = float(shared.max()) > 1e6 * SLOW_CALL_S
    if not is_slow:
        # The median ignores the first call, whose time would make the batches too short.
        parts.append(measure(mode, 1, PROBES - 1))
        counts.append(1)
        shared = vote.share([np.median(np.concatenate([part.time_us for part in parts]))])
    every = [calls_per_batch(call_us, mode, sampling) for call_us in shared[:, 0]]
    calls = vote.own(every)
    batch_s = float((shared[:, 0] * every).max()) / 1e6
    if sampling.warmup_batches and not is_slow:
        parts.append(measure(mode, calls, sampling.warmup_batches))
        counts.append(calls)
    marks = [np.ones(len(part.time_us), dtype=bool) for part in parts]
    # Measure one extra batch at each end of a chunk and mark both as warm-up: ranks leave the vote's all_gather at
    # different times and with cold caches, and during the last batch faster ranks are already in the next vote. A call
    # above 0.1 s hides both effects, and two more of them would be expensive.
    edges = 0 if is_slow else 1
    # The times of the slowest rank of each group, shape (groups, batches), without the batches at the edges. All ranks
    # have the same series, so they compute the same chunks and the same decision: a rank that decided differently would
    # deadlock the others.
    series: Floats | None = None
    reason, lead, elapsed_s, n_taken = "", 0, float(shared[:, 0].max()) / 1e6, 0
    while not reason:
        n = 0 if series is None else series.shape[1]
        chunk = min(max(FEWEST_FOR_INTERVAL, sampling.min_batches // 2), sampling.max_batches - n_taken)
        if is_slow or n_blocks > 1:
            # A chunk cannot be interrupted, so it is limited beforehand: to the calls that fit into max_s, but at least
            # to those that an interval needs, as far as the hard limit allows.
            needed = max(fewest - n, int((sampling.max_s - elapsed_s) / batch_s))
            chunk = max(1, min(chunk, needed, int((hard_limit_s - elapsed_s) / batch_s)))
        part = measure(mode, calls, chunk + 2 * edges)
        parts.append(part)
        counts.append(calls)
        inside = slice(edges, edges + chunk)
        mark = np.ones(len(part.time_us), dtype=bool)
        mark[inside] = ~_covered(part)[inside]
        marks.append(mark)
        shared = vote.share([*part.time_us[inside], time.perf_counter() - began])
        slowest = shared[:, :-1][:, ~mark[inside]]
        series = slowest if series is None else np.concatenate([series, slowest], axis=1)
        n_taken += chunk
        # The fixed number of warm-up batches may be too small, for example while a GPU raises its clocks. All groups
        # exclude the same batches, so that their rows describe the same period.
        lead = max(leading_warmup(times) for times in series)
        elapsed_s = float(shared[:, -1].max())
        reason = _why_stop(series, lead, elapsed_s, sampling, fewest, hard_limit_s)
        if not reason and n_taken >= sampling.max_batches:
            reason = "batches"
    is_warmup = np.concatenate(marks)
    is_warmup[np.flatnonzero(~is_warmup)[:lead]] = True
    starts = [part.start_us for part in parts if part.start_us is not None]
    return RankSamples(
        calls=np.repeat(counts, [len(part.time_us) for part in parts]),
        time_us=np.concatenate([part.time_us for part in parts]),
        host_us=np.concatenate([part.host_us for part in parts]),
        start_us=np.concatenate(starts) if starts else None,
        is_warmup=is_warmup,
        is_covered=np.concatenate([_covered(part) for part in parts]),
        stop_reason=reason,
    )


def _covered(part: Timings) -> npt.NDArray[np.bool_]:
    """Return which batches had the load that they should have. All ranks have agreed on it."""
    return np.ones(len(part.time_us), dtype=bool) if part.is_covered is None else part.is_covered


def calls_per_batch(call_us: float, mode: Mode, sampling: Sampling) -> int:
    """Return the number of calls in a batch of the target duration."""
    if mode == "isolated":
        return 1
    return int(min(max(1.0, sampling.batch_us / max(call_us, 1e-3)), sampling.max_calls))


def _why_stop(series: Floats, lead: int, elapsed_s: float, sampling: Sampling, fewest: int, hard_limit_s: float) -> str:
    """Return the reason to stop, or an empty string to continue."""
    settled = series[:, lead:]
    n = settled.shape[1]
    if n >= sampling.min_batches and all(is_precise(times, sampling.precision) for times in settled):
        return "precise"
    return "time" if elapsed_s >= sampling.max_s and (n >= fewest or elapsed_s >= hard_limit_s) else ""


def measure_step(comm: Communicator, step: Step, sampling: Sampling, check: bool, n_blocks: int = 1) -> RankSamples:
    """Time one block of a step in a single group. Collective over the group."""
    with comm.backend.local():  # see measure_together
        call, n_wrong = set_up_step(comm, step, check)
        batches = take_batches(call.measure, group_vote(comm), step.mode, sampling, n_blocks)
        return per_call(batches, step, n_wrong)


def measure_together(
    comm: Communicator,
    everyone: Communicator,
    step: Step,
    sampling: Sampling,
    check: bool,
    n_blocks: int,
    groups: npt.NDArray[np.int32],
) -> RankSamples:
    """Time a block in all groups (ranks of `everyone`, shape (groups, size)), which stop at the same batch."""
    # All calls of a step are in the communication stream, also the check and the votes. After calls of the communicator
    # in another stream, small calls in graphs took 0.1 to 0.2 µs longer (2 × H200, NCCL 2.28.9).
    with comm.backend.local():
        call, n_wrong = set_up_step(comm, step, check)
        batches = take_batches(call.measure, StopVote(everyone, groups), step.mode, sampling, n_blocks)
        return per_call(batches, step, n_wrong)


def per_call(batches: RankSamples, step: Step, n_wrong: int | None) -> RankSamples:
    """Convert the times of calls that are issued together to times per call, and add the number of wrong elements."""
    n = step.n_aggregated or 1
    time_us, host_us = batches.time_us / n, batches.host_us / n
    return replace(batches, calls=batches.calls * n, time_us=time_us, host_us=host_us, n_wrong=n_wrong)


def measure_pair(comm: Communicator, step: Step, sampling: Sampling, check: bool) -> RankSamples | None:
    """Time a message to the partner of the round, or return None without one. Collective over the group."""
    pairs = pairs_of_round(comm.size, step.number)
    own_pair = next((pair for pair in pairs if comm.rank in pair), None)
    # A rank without a partner calls nothing, but takes part in the barriers and votes of the group.
    work: Callable[[], object] = _nothing
    n_wrong = None
    # All ranks of the group register memory together.
    buffers = allocate(aggregated(comm, step)) if own_pair is not None or step.buffers != "plain" else []
    if own_pair is not None:
        other = own_pair[own_pair[0] == comm.rank]
        calls = []
        for send, out in buffers:
            if step.collective == "send_recv":
                calls.append(comm.prepare("send_recv", send, out, dest=other, source=other, dtype=step.dtype))
            elif comm.rank == own_pair[0]:
                calls.append(comm.prepare("send", send, dest=other, dtype=step.dtype))
            else:
                calls.append(comm.prepare("recv", out=out, source=other, dtype=step.dtype))
        call = issued_together(calls)
        if check:
            n_wrong = sum(count_wrong_elements(comm, step, call, arrays, source=other) for arrays in buffers)
        work = call.timed
    barrier = comm.prepare("barrier").enqueue

    def measure(mode: Mode, calls: int, batches: int) -> Timings:
        return comm.backend.measure(work, barrier, mode, calls, batches)

    batches = take_batches(measure, StopVote(comm, pairs), step.mode, sampling)
    return None if own_pair is None else per_call(batches, step, n_wrong)


def _nothing() -> None:
    return None
