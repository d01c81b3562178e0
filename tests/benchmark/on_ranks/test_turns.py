"""The turns of two sides on the ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meshlab as ml
from meshlab.benchmark.on_ranks._turns import ORDER, _buffers, measure_turns, neighbours
from meshlab.engines._lease import Lease
from meshlab.plans._sampling import Sampling


def test_each_batch_belongs_to_one_pair_of_neighbours() -> None:
    times = np.arange(8.0).reshape(2, 4)
    pairs = neighbours(times)
    assert sorted(pairs.ravel().tolist()) == list(range(8))
    for first, second in pairs.astype(int):
        assert (ORDER[first % 4], ORDER[second % 4]) == (0, 1)
        assert abs(first - second) == 1


def steps_of(**options: Any) -> tuple[Any, Any]:
    """Return the steps of two sides with 1 KiB, of which the second one has options."""
    plans = ml.Plan("all_reduce", "tp", "1K"), ml.Plan(options.pop("collective", "all_reduce"), "tp", "1K", **options)
    return plans[0].steps("tp=4")[0], plans[1].steps("tp=4")[0]


@pytest.mark.parametrize(
    "options", [{}, {"in_place": True}, {"dtype": "float64"}, {"n_aggregated": 3}, {"collective": "all_gather"}]
)
def test_both_sides_use_the_same_memory(thread_engines: ml.Engines, options: dict[str, Any]) -> None:
    steps = steps_of(**options)

    def starts(comm: ml.Communicator) -> list[list[int]]:
        return [[pair.send.ctypes.data for pair in of_side] for of_side in _buffers(comm, steps)]

    for first, second in thread_engines.run(starts)["value"]:
        assert len(first) == 1
        assert len(second) == len(set(second)) == options.get("n_aggregated", 1)
        assert first[0] == second[0]


def test_all_ranks_measure_the_same_number_of_turns(thread_engines: ml.Engines) -> None:
    mesh = ml.DeviceMesh("dp=2, tp=2")
    steps = tuple(ml.Plan("all_reduce", "tp", "1K", mode=mode).steps(mesh)[0] for mode in ("pipelined", "isolated"))
    arguments = (steps, (None, None), Sampling(max_s=0.05), True, mesh["tp"].array)
    with Lease(thread_engines, "turns") as lease:
        replies = lease.round(measure_turns, mesh, "tp", arguments, also=("world",)).run()
    assert all(reply.error is None for reply in replies), replies[0].trace
    shapes = {reply.value.time_us.shape for reply in replies}
    assert [n_columns for _, n_columns in shapes] == [4]
    assert all(reply.value.n_wrong == (0, 0) for reply in replies)
    assert all(reply.value.waiting >= 0 or np.isnan(reply.value.waiting) for reply in replies)
