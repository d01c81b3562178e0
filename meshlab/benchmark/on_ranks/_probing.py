"""Short measurements of a few steps, from which the duration of a run is estimated. Runs on the engines."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from meshlab.benchmark.on_ranks._sampling import StopVote, calls_per_batch
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

    setup_s: float  # to prepare and check the step
    call_us: float  # of one call in a batch
    batch_s: float  # with everything around it: the barrier, and the warm-up of a graph
    spread: float  # deviation relative to the median, from the median deviation; NaN for a few batches


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
            single_us = float(vote.share([np.median(call.measure(step.mode, 1, 3).time_us)]).max())
            (setup_s,) = vote.share([time.perf_counter() - began - 3e-6 * single_us]).max(axis=0)
            calls = calls_per_batch(single_us, step.mode, sampling)
            batch_s = max(single_us * calls / 1e6, 1e-9)
            n = int(np.clip(_MOST_S / batch_s, _FEWEST, _BATCHES))
            began = time.perf_counter()
            timings = call.measure(step.mode, calls, n)
            wall_s = (time.perf_counter() - began) / n
            shared = vote.share([*timings.time_us[1:].tolist(), wall_s])
            times, batch_s = shared[:, :-1], float(shared[:, -1].max())
            medians = np.median(times, axis=1)
            deviations = np.median(np.abs(times - medians[:, None]), axis=1) / medians
            spread = 1.4826 * float(deviations.max()) if n >= _FEWEST_FOR_SPREAD else math.nan
            probes.append(Probe(max(float(setup_s), 0.0), float(medians.max()), batch_s, spread))
    return probes
