"""Errors of clocks, estimated from barriers."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import meshlab as ml
from meshlab.frames._rows import clock_errors
from meshlab.plans._sampling import Sampling

Floats = npt.NDArray[np.float64]


def batches(late: Floats, seed: int = 0) -> tuple[Floats, Floats]:
    """Return the true starts and ends of collectives after barriers. `late` is (ranks, batches), in µs."""
    random = np.random.default_rng(seed)
    n_ranks, n = late.shape
    starts, ends = np.empty((2, n_ranks, n))
    now = np.zeros(n_ranks)
    for batch in range(n):
        released = now.max() + random.exponential(3, n_ranks) + 2  # no rank leaves the barrier before all entered
        starts[:, batch] = released
        now = (released + late[:, batch]).max() + random.exponential(3, n_ranks) + 10
        ends[:, batch] = now
    return starts, ends


@pytest.mark.parametrize("late_us", [0.0, 5000.0])
def test_one_clock_has_no_errors_even_if_a_rank_is_late(late_us: float) -> None:
    late = np.zeros((4, 60))
    late[2] = late_us
    assert not clock_errors(*batches(late)).any()


@pytest.mark.parametrize("late_us", [0.0, 300.0])
def test_the_offset_and_the_rate_of_a_clock_are_found(late_us: float) -> None:
    late = np.zeros((4, 60))
    late[2] = late_us
    starts, ends = batches(late)
    wrong_starts, wrong_ends = starts.copy(), ends.copy()
    wrong_starts[2], wrong_ends[2] = 1.01 * starts[2] + 700, 1.01 * ends[2] + 700
    expected = wrong_starts[2] - starts[2]
    errors = clock_errors(wrong_starts, wrong_ends)
    assert expected[-1] - expected[0] > 9
    np.testing.assert_allclose(errors[2] - errors[0], expected, atol=6)


def test_a_fast_clock_of_a_rank_makes_no_straggler(thread_engines: ml.Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of one thread is 10 s ahead and runs ten percent fast while a run is measured."""
    true, began = time.perf_counter_ns, time.perf_counter_ns() - 10**11
    fast: set[int] = set()

    def clock() -> int:
        now = true()
        return now + (now - began) // 10 if threading.get_ident() in fast else now

    def plain(comm: Any) -> Any:
        if comm.world_rank == 2:
            fast.add(threading.get_ident())
        x = comm.xp.zeros(64, "float32")
        return lambda: comm.all_reduce(x, x)

    monkeypatch.setattr(time, "perf_counter_ns", clock)
    sampling = Sampling(max_s=60, min_batches=60, max_batches=60, precision=1e-9)
    run = ml.bench(thread_engines, "x=4", [plain, "all_reduce"], sizes="1K", mode="isolated", sampling=sampling)
    run.wait(60)
    monkeypatch.undo()
    assert fast
    found = run.stragglers()
    assert len(found) == 8
    assert not found["is_straggler"].any()
    # Not at least 10 s. A busy machine lets threads start some milliseconds apart, and rarely seconds.
    assert found["late_us"].max() < 5e6
    assert run.results["alignment_us"].max() < 5e6
