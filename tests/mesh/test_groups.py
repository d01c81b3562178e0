from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshlab.base._errors import MeshError
from meshlab.mesh._groups import Group, Groups, ranks_repr, split_levels, uniform_stride
from meshlab.mesh._mesh import DeviceMesh
from tests.examples import examples


@pytest.fixture
def groups() -> Groups:
    return Groups("tp", [[2, 0], [3, 1]], world_size=5, axes=("tp",))


def test_a_group_keeps_the_order_of_its_ranks() -> None:
    group = Group("ring", [3, 1, 2])
    assert group.ranks == (3, 1, 2)
    assert [group.position(rank) for rank in group] == [0, 1, 2]
    assert group.array.dtype == np.int32


def test_the_position_of_a_rank_outside_the_group_is_an_error() -> None:
    with pytest.raises(MeshError, match=r"rank 5 is not in group 'ring' with ranks \[3, 1, 2\]"):
        Group("ring", [3, 1, 2]).position(5)


def test_groups_differ_by_name_axes_and_order() -> None:
    group = Group("tp_0", [0, 1], axes=("tp",))
    assert group == Group("tp_0", [0, 1], axes=("tp",))
    assert hash(group) == hash(Group("tp_0", [0, 1], axes=("tp",)))
    others = [Group("tp_0", [1, 0], axes=("tp",)), Group("tp_1", [0, 1], axes=("tp",)), Group("tp_0", [0, 1])]
    assert all(group != other for other in others)
    assert group != "tp_0"


def test_color_and_key_are_the_group_and_the_position_of_every_rank(groups: Groups) -> None:
    assert groups.color.tolist() == [0, 1, 0, 1, -1]
    assert groups.key.tolist() == [1, 1, 0, 0, -1]


def test_groups_are_a_sequence(groups: Groups) -> None:
    assert len(groups) == 2
    assert groups[-1] == groups[1] == Group("tp_1", [3, 1], axes=("tp",))
    assert groups[0:2] == list(groups)
    assert groups.names == ["tp_0", "tp_1"]
    with pytest.raises(IndexError, match="group index 2 is out of range: 'tp' has 2 groups"):
        groups[2]


def test_a_single_group_has_its_own_name() -> None:
    groups = Groups("rail", [[4, 2]], world_size=5, single=True)
    assert groups.names == ["rail"]
    assert groups[0].name == "rail"


def test_a_rank_in_no_group_and_an_unknown_rank_are_distinguished(groups: Groups) -> None:
    assert groups.of(3).name == "tp_1"
    with pytest.raises(MeshError, match="rank 4 is not in any group of 'tp'"):
        groups.of(4)
    with pytest.raises(MeshError, match="rank 5 does not exist; use a rank from 0 to 4"):
        groups.of(5)
    with pytest.raises(MeshError, match="rank must be an integer, not '3'"):
        groups.of("3")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["array", "color", "key"])
def test_arrays_are_read_only(groups: Groups, name: str) -> None:
    with pytest.raises(ValueError, match="read-only"):
        getattr(groups, name)[...] = 0


def test_groups_are_immutable(groups: Groups) -> None:
    with pytest.raises(AttributeError, match="Groups is immutable; cannot set 'name'"):
        groups.name = "dp"
    with pytest.raises(AttributeError, match="Group is immutable; cannot set 'name'"):
        groups[0].name = "dp"


def test_the_array_of_the_caller_is_copied() -> None:
    ranks = np.array([0, 1], dtype=np.int32)
    group, groups = Group("pair", ranks), Groups("pair", ranks[None], world_size=2)
    ranks[:] = 7
    assert group.ranks == (0, 1)
    assert groups.array.tolist() == [[0, 1]]
    assert ranks.flags.writeable


def test_unpickled_groups_are_equal_and_read_only(groups: Groups) -> None:
    for value in (groups, groups[1]):
        back = pickle.loads(pickle.dumps(value))
        assert back == value
        assert hash(back) == hash(value)
        assert not back.array.flags.writeable
    assert groups != Groups("tp", [[2, 0], [3, 1]], world_size=6, axes=("tp",))
    assert groups != 3


def test_long_groups_are_abbreviated() -> None:
    assert repr(Group("dp_0", range(1000))) == "Group('dp_0', [0, 1, 2, 3, 4, 5, 6, 7, …, 999] (1,000 ranks))"
    assert repr(Groups("dp", [range(3)], world_size=3)) == "Groups('dp': 1 of 3, first [0, 1, 2])"


# -- hierarchies -------------------------------------------------------------------------------------------------------


def test_ranks_are_written_as_a_list_and_have_a_stride_if_it_is_uniform() -> None:
    assert ranks_repr(np.arange(64, dtype=np.int32)) == "[0, 1, 2, 3, 4, 5, 6, 7, …, 63] (64 ranks)"
    groups = ([0, 8, 16], [0, 1, 3], [5])
    assert [uniform_stride(np.array(group, dtype=np.int32)) for group in groups] == [8, None, 1]


def test_an_axis_is_split_by_ranks_per_node() -> None:
    inner, outer = DeviceMesh("dp=8, tp=2").hierarchy("dp", nodes=8)
    assert inner.array.tolist() == [[0, 2, 4, 6], [8, 10, 12, 14], [1, 3, 5, 7], [9, 11, 13, 15]]
    assert outer.array.tolist() == [[0, 8], [2, 10], [4, 12], [6, 14], [1, 9], [3, 11], [5, 13], [7, 15]]
    assert inner.names[0] == "dp_inner_0"
    assert outer.color.tolist()[:4] == [0, 4, 1, 5]
    assert outer.key.tolist() == [0] * 8 + [1] * 8


def test_the_order_of_a_ring_is_kept_on_both_levels() -> None:
    mesh = DeviceMesh("dp=8", ranks=[6, 7, 5, 4, 0, 1, 3, 2])
    inner, outer = mesh.hierarchy("dp", nodes=4)
    assert inner.array.tolist() == [[6, 7, 5, 4], [0, 1, 3, 2]]
    assert outer.array.tolist() == [[6, 0], [7, 1], [5, 3], [4, 2]]


def test_node_numbers_may_be_arbitrary_and_interleaved() -> None:
    inner, outer = DeviceMesh("dp=6").hierarchy("dp", nodes=[9, 2, 9, 2, 5, 5])
    assert inner.array.tolist() == [[0, 2], [1, 3], [4, 5]]
    assert outer.array.tolist() == [[0, 1, 4], [2, 3, 5]]


def test_a_group_on_one_node_or_with_one_rank_per_node_has_a_trivial_level() -> None:
    inner, outer = DeviceMesh("dp=2, tp=4").hierarchy("tp", nodes=4)
    assert (inner.size, outer.size) == (4, 1)
    inner, outer = DeviceMesh("dp=2, tp=4").hierarchy("dp", nodes=4)
    assert (inner.size, outer.size) == (1, 2)


@pytest.mark.parametrize(
    ("nodes", "why"),
    [
        (
            3,
            r"cannot split group 'dp_0' \(ranks 0 to 7\) into two levels: it has 3 on node 0, 3 on node 1, 2 on node 2",
        ),
        ([0, 0, 0, 0, 0, 1, 1, 1], "5 on node 0, 3 on node 1"),
        (0, "nodes must be at least 1 rank per node, not 0"),
        ([0, 1], r"nodes has shape \(2,\), but there are 8 ranks"),
        (2.5, "nodes must be the number of ranks per node, or one node number per rank, not 2.5"),
        (["a"] * 8, "nodes must be the number of ranks per node"),
    ],
)
def test_groups_that_cannot_be_split_evenly_are_named(nodes: object, why: str) -> None:
    with pytest.raises(MeshError, match=why):
        DeviceMesh("dp=8").hierarchy("dp", nodes)  # type: ignore[arg-type]


def test_a_later_group_that_is_uneven_is_named() -> None:
    groups = Groups("dp", [[0, 1, 2, 3], [4, 5, 6, 7]], world_size=8)
    with pytest.raises(MeshError, match=r"'dp_1' .* has 1 on node 2, 3 on node 3"):
        split_levels(groups, [0, 0, 1, 1, 2, 3, 3, 3])


@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 5), st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=examples(60))
def test_two_levels_reach_exactly_the_ranks_of_the_group(
    groups: int, nodes: int, per_node: int, random: object
) -> None:
    size = nodes * per_node
    rows, node_of = [], np.empty(groups * size, dtype=int)
    for group in range(groups):
        members = list(range(group * size, (group + 1) * size))
        node_of_member = [node for node in range(nodes) for _ in range(per_node)]
        random.shuffle(node_of_member)  # type: ignore[attr-defined]
        rows.append(members)
        node_of[members] = node_of_member
    inner, outer = split_levels(Groups("g", rows, world_size=groups * size), node_of)
    for row in rows:
        for rank in row:
            here = inner.of(rank).ranks
            assert set(here) == {other for other in row if node_of[other] == node_of[rank]}
            assert list(here) == sorted(here, key=row.index)
            reached = {peer for member in here for peer in outer.of(member).ranks}
            assert reached == set(row)
            assert len({node_of[peer] for peer in outer.of(rank).ranks}) == nodes


def test_an_iteration_returns_the_groups_that_indices_return() -> None:
    groups = DeviceMesh("dp=5000, tp=2")["tp"]
    listed = list(groups)
    assert len(listed) == len(groups)
    assert listed == [groups[index] for index in range(len(groups))]
    assert [group.index for group in listed] == list(range(len(groups)))
    with pytest.raises(AttributeError):
        listed[7].name = "other"
    with pytest.raises(ValueError, match="read-only"):
        listed[7].array[0] = 3
