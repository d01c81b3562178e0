from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshlab.errors import MeshError
from meshlab.mesh.diff import CHANGES, diff
from meshlab.mesh.mesh import DeviceMesh


def test_equal_meshes_have_no_difference() -> None:
    change = diff(DeviceMesh("dp=2, tp=4"), DeviceMesh("dp=2, tp=4"))
    assert change.frame().empty
    assert change.changed_ranks.tolist() == []
    assert str(change) == "dp=2, tp=4 → dp=2, tp=4: the two meshes are equal"


def test_other_peers_are_counted() -> None:
    frame = diff(DeviceMesh("dp=2, tp=4"), DeviceMesh("dp=4, tp=2")).frame()
    row = frame[(frame["rank"] == 3) & (frame["axis"] == "tp")].iloc[0]
    assert (row["before"], row["after"], row["change"], row["lost"], row["gained"]) == ("tp_0", "tp_1", "members", 2, 0)
    row = frame[(frame["rank"] == 3) & (frame["axis"] == "dp")].iloc[0]
    assert (row["before"], row["after"], row["change"], row["lost"], row["gained"]) == ("dp_3", "dp_1", "members", 0, 2)


def test_a_new_ring_order_and_a_new_number_are_told_apart_from_new_peers() -> None:
    before = DeviceMesh("dp=2, tp=3")
    ring = diff(before, DeviceMesh("dp=2, tp=3", ranks=[0, 2, 1, 3, 4, 5]))
    frame = ring.frame()
    assert frame[frame["axis"] == "tp"]["change"].tolist() == ["order"] * 3
    assert frame[frame["axis"] == "dp"]["change"].tolist() == ["members"] * 4
    assert "tp: 3 ranks get the same peers in another order; rank 0 goes from tp_0 [0, 1, 2] to tp_0 [0, 2, 1]" in str(
        ring
    )
    numbers = diff(before, DeviceMesh("dp=2, tp=3", ranks=[3, 4, 5, 0, 1, 2])).frame()
    assert numbers[numbers["axis"] == "tp"]["change"].tolist() == ["number"] * 6
    assert numbers[numbers["axis"] == "tp"]["after"].tolist() == ["tp_1"] * 3 + ["tp_0"] * 3


def test_axes_and_groups_of_one_mesh_only_are_listed() -> None:
    change = diff(
        DeviceMesh("dp=4, tp=2").with_group("a", [0]).with_group("b", [0, 1]),
        DeviceMesh("pp=4, tp=2").with_group("b", [1, 0, 2]),
    )
    assert change.removed == ("dp", "a")
    assert change.added == ("pp",)
    assert change.changed_ranks.tolist() == [0, 1, 2]
    assert str(change).splitlines() == [
        "dp=4, tp=2 → pp=4, tp=2: 3 of 8 ranks change a group",
        "gone: dp, a",
        "new: pp",
        "b: 2 ranks get other peers; rank 0 goes from b [0, 1] to b [1, 0, 2]; rank 2 joined",
    ]
    assert str(diff(DeviceMesh("dp=4"), DeviceMesh("tp=4"))).endswith("they share no axis\ngone: dp\nnew: tp")


def test_ranks_that_come_and_go_are_named() -> None:
    change = diff(DeviceMesh("dp=4", world_size=4), DeviceMesh("dp=3", ranks=[0, 2, 5], world_size=6))
    frame = change.frame().set_index("rank")
    assert frame["change"].tolist() == ["members", "leaves", "members", "leaves", "joins"]
    assert frame["before"].isna().tolist() == [False, False, False, False, True]
    assert frame["after"].isna().tolist() == [False, True, False, True, False]
    assert "ranks 1 and 3 left" in str(change)
    assert "rank 5 joined" in str(change)


def test_a_backend_alone_changes_no_rank() -> None:
    change = diff(DeviceMesh("dp=4"), DeviceMesh("dp=4", backends={"dp": "gloo"}))
    assert "no rank changes a group" in str(change)
    assert change.frame().columns.tolist() == ["rank", "axis", "before", "after", "change", "lost", "gained"]


def test_two_meshes_without_a_common_axis_give_an_empty_frame() -> None:
    assert diff(DeviceMesh("dp=4"), DeviceMesh("tp=4")).frame().empty


def test_only_meshes_are_compared() -> None:
    with pytest.raises(MeshError, match="not with str"):
        diff(DeviceMesh("dp=4"), "dp=4")  # type: ignore[arg-type]


def test_the_card_shows_counts_per_axis() -> None:
    html = diff(DeviceMesh("dp=2, tp=4"), DeviceMesh("dp=4, tp=2"))._repr_html_()
    assert "8 of 8 ranks change a group" in html
    assert "other peers" in html
    assert repr(diff(DeviceMesh("dp=2"), DeviceMesh("dp=2"))) == "<MeshDiff dp=2 → dp=2: the two meshes are equal>"


def test_arrays_of_a_difference_cannot_be_written() -> None:
    change = diff(DeviceMesh("dp=2, tp=4"), DeviceMesh("dp=4, tp=2"))
    with pytest.raises(ValueError, match="read-only"):
        change.axes["dp"].change[0] = 1


@st.composite
def meshes(draw: st.DrawFn) -> DeviceMesh:
    shape = draw(st.sampled_from([(2, 4), (4, 2), (8, 1), (2, 3), (1, 6), (3, 2)]))
    size = shape[0] * shape[1]
    world = draw(st.integers(size, size + 3))
    ranks = draw(st.permutations(range(world)))[:size]
    return DeviceMesh(dict(zip(("dp", "tp"), shape, strict=True)), ranks=ranks, world_size=world)


@given(meshes(), meshes())
@settings(deadline=None, max_examples=50)
def test_the_difference_agrees_with_a_slow_comparison(before: DeviceMesh, after: DeviceMesh) -> None:
    change = diff(before, after)
    for axis in ("dp", "tp"):
        for rank in range(max(before.world_size, after.world_size)):
            old = new = None
            if rank in before.ranks:
                old = before.group_of(rank, axis)
            if rank in after.ranks:
                new = after.group_of(rank, axis)
            found = CHANGES[change.axes[axis].change[rank]]
            if old is None or new is None:
                assert found == ("same" if old is new else "leaves" if new is None else "joins")
                continue
            lost, gained = set(old) - set(new), set(new) - set(old)
            assert change.axes[axis].lost[rank] == len(lost)
            assert change.axes[axis].gained[rank] == len(gained)
            if lost or gained:
                assert found == "members"
            elif old.ranks != new.ranks:
                assert found == "order"
            else:
                assert found == ("same" if old.name == new.name else "number")
