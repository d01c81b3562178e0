"""Steps: a plan expanded over groups that work together, alone, in pairs, or next to a concurrent axis."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshlab.base._errors import BenchError
from meshlab.mesh._mesh import DeviceMesh
from meshlab.plans._plan import Plan
from meshlab.plans._sampling import Sampling, block_sampling, n_blocks
from meshlab.plans._steps import MeasuredGroup, n_rounds, pairs_of_round, turns
from tests.examples import examples

MESH = DeviceMesh("dp=2, tp=4")


@given(st.integers(2, 40))
@settings(deadline=None, max_examples=examples(40))
def test_every_two_ranks_meet_once_and_no_rank_is_in_two_pairs_of_a_round(n: int) -> None:
    met = []
    for number in range(n_rounds(n)):
        pairs = pairs_of_round(n, number)
        ranks = [rank for pair in pairs for rank in pair]
        assert len(ranks) == len(set(ranks)) >= n - 1
        met += pairs
    assert sorted(met) == [(a, b) for a in range(n) for b in range(a + 1, n)]


@given(st.integers(2, 20))
@settings(deadline=None, max_examples=examples(20))
def test_the_second_half_of_the_rounds_has_the_opposite_direction(n: int) -> None:
    for number in range(n_rounds(n)):
        back = pairs_of_round(n, number + n_rounds(n))
        assert [(b, a) for a, b in back] == pairs_of_round(n, number)


def steps(**arguments: Any) -> Any:
    return Plan(**{"collective": "all_reduce", "axis": "tp", "sizes": "1K", **arguments}).steps(MESH)


def test_groups_in_isolation_are_a_separate_step() -> None:
    together, alone = steps(grouping=["together", "alone"])
    assert (together.axis, together.grouping) == ("tp", "together")
    assert (alone.axis, alone.grouping) == ("tp", "alone")
    assert alone.measured_groups(MESH["tp"]) == [
        MeasuredGroup("tp_0", (0, 1, 2, 3)),
        MeasuredGroup("tp_1", (4, 5, 6, 7)),
    ]
    assert "one group at a time" in str(alone)


def test_pairs_take_a_step_per_round_and_direction() -> None:
    found = steps(collective=["send", "send_recv"], grouping="pairs")
    assert [step.collective for step in found].count("send_recv") == 3
    assert [step.collective for step in found].count("send") == 6
    assert {step.n_ranks for step in found} == {2}
    groups = MESH["tp"]
    pairs = {
        name: [pair for step in found if step.collective == name for pair in step.measured_groups(groups)]
        for name in ("send", "send_recv")
    }
    both_groups = [(group.name, a, b) for group in groups for a in group for b in group]  # at the same time
    assert sorted((pair.name, *pair.ranks) for pair in pairs["send"]) == [
        (group, a, b) for group, a, b in both_groups if a != b
    ]
    assert sorted((pair.name, *pair.ranks) for pair in pairs["send_recv"]) == [
        (group, a, b) for group, a, b in both_groups if a < b
    ]
    assert all(pair.is_pair for pair in [*pairs["send"], *pairs["send_recv"]])


def test_concurrent_axes_are_also_measured_separately_and_nothing_twice() -> None:
    found = steps(sizes="1K, 4K", concurrent={"dp": "reduce_scatter"})
    assert [(step.axis, step.concurrent_axis) for step in found] == [("tp", None), ("dp", None), ("tp", "dp")] * 2
    both = found[2]
    assert (both.concurrent_axis, both.concurrent_collective) == ("dp", "reduce_scatter")
    partner = both.concurrent
    assert (partner.axis, partner.collective, partner.index) == ("dp", "reduce_scatter", 2)
    assert (partner.concurrent_axis, partner.concurrent_collective) == ("tp", "all_reduce")
    assert both.parts == (both, partner)
    assert str(both).endswith("along tp while reduce_scatter along dp, pipelined")
    twice = steps(collective=["all_reduce", "broadcast"], concurrent={"dp": "reduce_scatter"})
    assert [step.axis for step in twice].count("dp") == 1


def test_axes_with_different_ranks_cannot_run_at_the_same_time() -> None:
    mesh = MESH.with_group("pair", [0, 1])
    with pytest.raises(BenchError, match="pair and dp cannot run at the same time: rank 2 is in the groups of only"):
        Plan("all_reduce", "pair", concurrent={"dp": "all_reduce"}).steps(mesh)
    with pytest.raises(BenchError, match="dp and pair cannot run at the same time: rank 2"):
        Plan("all_reduce", "dp", concurrent={"pair": "all_reduce"}).steps(mesh)


def test_a_step_computes_the_memory_of_its_buffers() -> None:
    assert steps(sizes="1M")[0].buffer_bytes == 2 << 20
    assert steps(sizes="1M", in_place=True)[0].buffer_bytes == 1 << 20
    assert steps(collective="all_gather", sizes="1M")[0].buffer_bytes == (1 << 20) + (1 << 18)
    assert steps(sizes="1M", concurrent={"dp": "all_reduce"})[-1].buffer_bytes == 4 << 20
    assert steps(collective=lambda comm: None)[0].buffer_bytes == 0


def test_pairs_in_groups_of_one_rank_are_rejected() -> None:
    with pytest.raises(
        BenchError, match="the groups of tp have one rank and therefore no pairs; choose a different axis"
    ):
        Plan("send_recv", "tp", grouping="pairs").steps(DeviceMesh("dp=2, tp=1"))


def test_alternatives_are_measured_in_turns() -> None:
    plan = Plan("all_reduce, all_gather", "tp", "1K, 2K", grouping="together, alone", concurrent={"dp": "broadcast"})
    steps = plan.steps("dp=2, tp=2")
    groups = turns(steps)
    assert sorted(step.index for group in groups for step in group) == list(range(len(steps)))
    # Both collectives have the same neighbour at the same size, so all of their steps take turns with it.
    assert [[(step.collective, step.grouping, step.concurrent_axis) for step in group] for group in groups] == 2 * [
        [
            ("all_reduce", "together", None),
            ("broadcast", "together", None),
            ("all_reduce", "together", "dp"),
            ("all_gather", "together", None),
            ("all_gather", "together", "dp"),
            ("all_reduce", "alone", None),
            ("all_gather", "alone", None),
        ]
    ]
    assert all(len({step.size_bytes for step in group}) == 1 for group in groups)
    plain = Plan("all_reduce, send_recv", "tp", "1K, 2K", grouping="together, pairs").steps("dp=2, tp=2")
    assert [len(group) for group in turns(plain)] == [1] * len(plain)


@pytest.mark.parametrize(("smallest", "largest"), [(30, 200), (1, 1), (7, 7), (3, 100)])
def test_the_blocks_of_a_step_have_about_as_many_batches_as_one_step(smallest: int, largest: int) -> None:
    sampling = Sampling(min_batches=smallest, max_batches=largest)
    n = n_blocks(sampling)
    block = block_sampling(sampling, n)
    assert 1 <= n <= 8
    assert largest - n < n * block.max_batches <= largest
    assert n * block.max_s == pytest.approx(sampling.max_s)
