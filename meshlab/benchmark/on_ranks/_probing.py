"""Short measurements of a few steps, from which the duration of a run is estimated. Runs on the engines."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from meshlab.benchmark.on_ranks._sampling import PROBES, StopVote, calls_per_batch
from meshlab.benchmark.on_ranks._step_calls import set_up_step

if TYPE_CHECKING:
    from meshlab.comm._communicator import Communicator
    from meshlab.plans._sampling import Sampling
    from meshlab.plans._steps import Step

_BATCHES, _FEWEST = 20, 3
_FEWEST_FOR_SPREAD = 8
_MOST_S = 0.1  # time for the batches of one step, if that suffices for the fewest


@dataclass(frozen=True, slots=True)
class Probe:
    """Durations of one step on the slowest rank."""

    setup_s: float  # to prepare and check the step, with everything around its single calls
    call_us: float  # of one call in a batch
    batch_s: float  # with the barrier before it, if there is one
    spread: float  # deviation relative to the median, from the median deviation; NaN for a few batches
    chunk_s: float = 0.0  # around the batches of a chunk: the warm-up, the capture of a graph, and the vote
    check_s: float = 0.0  # the part of `setup_s` for the check


def probe_steps(
    comm: Communicator,
    everyone: Communicator,
    steps: Sequence[Step],
    sampling: Sampling,
    check: bool,
    groups: npt.NDArray[np.int32],
) -> list[Probe]:
    """Measure a few batches of each step. All ranks return the same values. Collective over all groups."""
    vote = StopVote(everyone, groups)
    probes = []
    with comm.backend.local():  # all calls in one stream, as in `measure_together`
        for step in steps:
            # The first time, libraries connect the peers and kernels are compiled, which no later step has to wait for.
            # On a CPU that is over after the first step, and checking a large one takes longer.
            if step is steps[0] or comm.xp is not np:
                set_up_step(comm, step, check)
            vote.share([0.0])
            began = time.perf_counter()
            call, _ = set_up_step(comm, step, check)
            checked_s = time.perf_counter() - began
            check_s = 0.0
            if check:
                began = time.perf_counter()
                call, _ = set_up_step(comm, step, check=False)
                check_s = checked_s - (time.perf_counter() - began)
            # The single calls and the votes with which a step begins, see `take_batches`.
            began = time.perf_counter()
            parts = [call.measure(step.mode, 1, 1)]
            vote.share([parts[0].time_us[0]])
            parts.append(call.measure(step.mode, 1, PROBES - 1))
            single_us = float(vote.share([np.median(np.concatenate([part.time_us for part in parts]))]).max())
            around_s = checked_s + time.perf_counter() - began - PROBES * single_us / 1e6
            setup_s, check_s = vote.share([around_s, check_s]).max(axis=0).tolist()
            calls = calls_per_batch(single_us, step.mode, sampling)
            n = int(np.clip(_MOST_S / max(single_us * calls / 1e6, 1e-9), _FEWEST, _BATCHES))
            began = time.perf_counter()
            timings = call.measure(step.mode, calls, n)
            # Calls that block have a barrier before each batch, and isolated ones too. Others follow without a gap.
            is_gapless = not comm.backend.blocks and step.mode != "isolated"
            batches_s = float(timings.time_us.sum()) * calls / 1e6 if is_gapless else time.perf_counter() - began
            times = vote.share(timings.time_us[1:].tolist())
            chunk_s = time.perf_counter() - began - batches_s
            batch_s, chunk_s = vote.share([batches_s / n, chunk_s]).max(axis=0).tolist()
            medians = np.median(times, axis=1)
            deviations = np.median(np.abs(times - medians[:, None]), axis=1) / medians
            spread = 1.4826 * float(deviations.max()) if n >= _FEWEST_FOR_SPREAD else math.nan
            setup_s, chunk_s, check_s = max(setup_s, 0.0), max(chunk_s, 0.0), min(max(check_s, 0.0), max(setup_s, 0.0))
            probes.append(Probe(setup_s, float(medians.max()), batch_s, spread, chunk_s, check_s))
    return probes
