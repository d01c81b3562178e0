from __future__ import annotations

import pickle

import numpy as np
import pytest

from meshlab.errors import MeshError
from meshlab.mesh.groups import Group, Groups


@pytest.fixture
def groups() -> Groups:
    return Groups("tp", [[2, 0], [3, 1]], world_size=5, axes=("tp",))


def test_a_group_keeps_the_order_of_its_ranks() -> None:
    group = Group("ring", [3, 1, 2])
    assert group.ranks == (3, 1, 2)
    assert [group.position(rank) for rank in group] == [0, 1, 2]
    assert group.array.dtype == np.int32


def test_asking_for_a_rank_outside_the_group_raises() -> None:
    with pytest.raises(MeshError, match=r"rank 5 is not in group 'ring', whose ranks are \[3, 1, 2\]"):
        Group("ring", [3, 1, 2]).position(5)


def test_groups_differ_by_name_axes_and_order() -> None:
    group = Group("tp_0", [0, 1], axes=("tp",))
    assert group == Group("tp_0", [0, 1], axes=("tp",))
    assert hash(group) == hash(Group("tp_0", [0, 1], axes=("tp",)))
    others = [Group("tp_0", [1, 0], axes=("tp",)), Group("tp_1", [0, 1], axes=("tp",)), Group("tp_0", [0, 1])]
    assert all(group != other for other in others)
    assert group != "tp_0"


def test_color_and_key_say_group_and_place_of_every_rank(groups: Groups) -> None:
    assert groups.color.tolist() == [0, 1, 0, 1, -1]
    assert groups.key.tolist() == [1, 1, 0, 0, -1]


def test_groups_are_a_sequence(groups: Groups) -> None:
    assert len(groups) == 2
    assert groups[-1] == groups[1] == Group("tp_1", [3, 1], axes=("tp",))
    assert groups[0:2] == list(groups)
    assert groups.names == ["tp_0", "tp_1"]
    with pytest.raises(IndexError, match="there are 2 groups of 'tp', not 2"):
        groups[2]


def test_a_single_group_carries_its_own_name() -> None:
    groups = Groups("rail", [[4, 2]], world_size=5, single=True)
    assert groups.names == ["rail"]
    assert groups[0].name == "rail"


def test_a_rank_in_no_group_and_a_rank_that_is_not_there_are_told_apart(groups: Groups) -> None:
    assert groups.of(3).name == "tp_1"
    with pytest.raises(MeshError, match="rank 4 is in no group of 'tp'"):
        groups.of(4)
    with pytest.raises(MeshError, match="rank 5 does not exist; ranks go from 0 to 4"):
        groups.of(5)
    with pytest.raises(MeshError, match="whole number"):
        groups.of("3")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["array", "color", "key"])
def test_arrays_cannot_be_written(groups: Groups, name: str) -> None:
    with pytest.raises(ValueError, match="read-only"):
        getattr(groups, name)[...] = 0


def test_values_do_not_change(groups: Groups) -> None:
    with pytest.raises(AttributeError, match="do not change"):
        groups.name = "dp"
    with pytest.raises(AttributeError, match="does not change"):
        groups[0].name = "dp"


def test_a_callers_array_is_not_shared() -> None:
    ranks = np.array([0, 1], dtype=np.int32)
    group, groups = Group("pair", ranks), Groups("pair", ranks[None], world_size=2)
    ranks[:] = 7
    assert group.ranks == (0, 1)
    assert groups.array.tolist() == [[0, 1]]
    assert ranks.flags.writeable


def test_pickles_come_back_equal_and_read_only(groups: Groups) -> None:
    for value in (groups, groups[1]):
        back = pickle.loads(pickle.dumps(value))
        assert back == value
        assert hash(back) == hash(value)
        assert not back.array.flags.writeable
    assert groups != Groups("tp", [[2, 0], [3, 1]], world_size=6, axes=("tp",))
    assert groups != 3


def test_long_groups_are_shown_short() -> None:
    assert repr(Group("dp_0", range(1000))) == "Group('dp_0', [0, 1, 2, 3, 4, 5, 6, 7, …, 999] (1,000 ranks))"
    assert repr(Groups("dp", [range(3)], world_size=3)) == "Groups('dp': 1 of 3, first [0, 1, 2])"
