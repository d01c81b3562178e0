"""Steps: how a plan is laid over groups that work together, alone, in pairs, or beside another axis."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshlab.errors import BenchError
from meshlab.frames.plan import Plan, along, n_rounds, pairs_of_round
from meshlab.mesh.mesh import DeviceMesh

MESH = DeviceMesh("dp=2, tp=4")


@given(st.integers(2, 40))
@settings(deadline=None, max_examples=40)
def test_every_two_ranks_meet_once_and_no_rank_is_in_two_pairs_of_a_round(n: int) -> None:
    met = []
    for number in range(n_rounds(n)):
        pairs = pairs_of_round(n, number)
        ranks = [rank for pair in pairs for rank in pair]
        assert len(ranks) == len(set(ranks)) >= n - 1
        met += pairs
    assert sorted(met) == [(a, b) for a in range(n) for b in range(a + 1, n)]


@given(st.integers(2, 20))
@settings(deadline=None, max_examples=20)
def test_the_second_half_of_the_rounds_goes_the_other_way(n: int) -> None:
    for number in range(n_rounds(n)):
        back = pairs_of_round(n, number + n_rounds(n))
        assert [(b, a) for a, b in back] == pairs_of_round(n, number)


def steps(**arguments: Any) -> Any:
    return Plan(**{"collective": "all_reduce", "axis": "tp", "sizes": "1K", **arguments}).steps(MESH)


def test_groups_alone_are_a_step_and_an_axis_of_their_own() -> None:
    together, alone = steps(groups=["together", "alone"])
    assert (together.axis, alone.axis) == ("tp", "tp alone")
    assert along(together.axis) == along(alone.axis) == together.along == alone.along == "tp"
    assert [name for name, _ in alone.parties(MESH.groups("tp"))] == ["tp_0", "tp_1"]
    assert "one group at a time" in str(alone)


def test_pairs_take_a_step_per_round_and_direction() -> None:
    found = steps(collective=["send", "send_recv"], groups="pairs")
    assert [step.collective for step in found].count("send_recv") == 3
    assert [step.collective for step in found].count("send") == 6
    assert {step.n_ranks for step in found} == {2}
    groups = MESH.groups("tp")
    one_way = [name for step in found if step.collective == "send" for name, _ in step.parties(groups)]
    both_ways = [name for step in found if step.collective == "send_recv" for name, _ in step.parties(groups)]
    assert sorted(one_way) == sorted(
        f"{a}→{b}" for group in groups for a in group for b in group if a != b
    )  # in both groups at the same time
    assert sorted(both_ways) == sorted(f"{a}↔{b}" for group in groups for a in group for b in group if a < b)


def test_two_axes_at_once_are_also_measured_by_themselves_and_nothing_stands_twice() -> None:
    found = steps(sizes="1K, 4K", beside={"dp": "reduce_scatter"})
    assert [step.axis for step in found] == ["tp", "dp", "tp+dp"] * 2
    joint = found[2]
    assert (joint.beside.axis, joint.beside.collective, joint.beside.index) == ("dp+tp", "reduce_scatter", 2)
    assert joint.parts == (joint, joint.beside)
    assert str(joint).endswith("along tp while reduce_scatter along dp, pipelined")
    twice = steps(collective=["all_reduce", "broadcast"], beside={"dp": "reduce_scatter"})
    assert [step.axis for step in twice].count("dp") == 1


def test_groups_of_other_ranks_cannot_run_at_the_same_time() -> None:
    mesh = MESH.with_group("pair", [0, 1])
    with pytest.raises(BenchError, match="pair and dp cannot run at the same time: rank 2 is in the groups of one"):
        Plan("all_reduce", "pair", beside={"dp": "all_reduce"}).steps(mesh)
    with pytest.raises(BenchError, match="dp and pair cannot run at the same time: rank 2"):
        Plan("all_reduce", "dp", beside={"pair": "all_reduce"}).steps(mesh)


def test_a_step_knows_the_memory_of_its_buffers() -> None:
    assert steps(sizes="1M")[0].buffer_bytes == 2 << 20
    assert steps(sizes="1M", in_place=True)[0].buffer_bytes == 1 << 20
    assert steps(collective="all_gather", sizes="1M")[0].buffer_bytes == (1 << 20) + (1 << 18)
    assert steps(sizes="1M", beside={"dp": "all_reduce"})[-1].buffer_bytes == 4 << 20
    assert steps(collective=lambda comm: None)[0].buffer_bytes == 0


def test_pairs_of_one_rank_are_refused() -> None:
    with pytest.raises(BenchError, match="the groups of tp have one rank, so there are no pairs"):
        Plan("send_recv", "tp", groups="pairs").steps(DeviceMesh("dp=2, tp=1"))
