from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshlab.base._errors import MeshError, ParseError
from meshlab.mesh._diff import CHANGES
from meshlab.mesh._mesh import DeviceMesh
from tests.examples import examples


def test_equal_meshes_have_no_difference() -> None:
    change = DeviceMesh("dp=2, tp=4").diff(DeviceMesh("dp=2, tp=4"))
    assert change.frame().empty
    assert change.changed_ranks.tolist() == []
    assert str(change) == "dp=2, tp=4 → dp=2, tp=4: the meshes are equal"


def test_lost_and_gained_peers_are_counted() -> None:
    frame = DeviceMesh("dp=2, tp=4").diff(DeviceMesh("dp=4, tp=2")).frame()
    row = frame[(frame["rank"] == 3) & (frame["axis"] == "tp")].iloc[0]
    assert (row["before"], row["after"], row["change"], row["lost"], row["gained"]) == ("tp_0", "tp_1", "members", 2, 0)
    row = frame[(frame["rank"] == 3) & (frame["axis"] == "dp")].iloc[0]
    assert (row["before"], row["after"], row["change"], row["lost"], row["gained"]) == ("dp_3", "dp_1", "members", 0, 2)


def test_a_different_order_or_number_is_not_a_change_of_peers() -> None:
    before = DeviceMesh("dp=2, tp=3")
    ring = before.diff(DeviceMesh("dp=2, tp=3", ranks=[0, 2, 1, 3, 4, 5]))
    frame = ring.frame()
    assert frame[frame["axis"] == "tp"]["change"].tolist() == ["order"] * 3
    assert frame[frame["axis"] == "dp"]["change"].tolist() == ["members"] * 4
    assert (
        "tp: 3 ranks get the same peers in a different order; rank 0 moves from tp_0 [0, 1, 2] to tp_0 [0, 2, 1]"
        in str(ring)
    )
    numbers = before.diff(DeviceMesh("dp=2, tp=3", ranks=[3, 4, 5, 0, 1, 2])).frame()
    assert numbers[numbers["axis"] == "tp"]["change"].tolist() == ["number"] * 6
    assert numbers[numbers["axis"] == "tp"]["after"].tolist() == ["tp_1"] * 3 + ["tp_0"] * 3


def test_axes_and_groups_of_only_one_mesh_are_listed() -> None:
    change = (
        DeviceMesh("dp=4, tp=2")
        .with_group("a", [0])
        .with_group("b", [0, 1])
        .diff(DeviceMesh("pp=4, tp=2").with_group("b", [1, 0, 2]))
    )
    assert change.removed == ("dp", "a")
    assert change.added == ("pp",)
    assert change.changed_ranks.tolist() == [0, 1, 2]
    assert str(change).splitlines() == [
        "dp=4, tp=2 → pp=4, tp=2: 3 of 8 ranks change groups",
        "removed: dp, a",
        "added: pp",
        "b: 2 ranks get different peers; rank 0 moves from b [0, 1] to b [1, 0, 2]; rank 2 joined",
    ]
    assert str(DeviceMesh("dp=4").diff(DeviceMesh("tp=4"))).endswith(
        "no axis is in both meshes\nremoved: dp\nadded: tp"
    )


def test_ranks_that_join_and_leave_are_listed() -> None:
    change = DeviceMesh("dp=4", world_size=4).diff(DeviceMesh("dp=3", ranks=[0, 2, 5], world_size=6))
    frame = change.frame().set_index("rank")
    assert frame["change"].tolist() == ["members", "leaves", "members", "leaves", "joins"]
    assert frame["before"].isna().tolist() == [False, False, False, False, True]
    assert frame["after"].isna().tolist() == [False, True, False, True, False]
    assert "ranks 1 and 3 left" in str(change)
    assert "rank 5 joined" in str(change)


def test_a_backend_does_not_change_groups() -> None:
    change = DeviceMesh("dp=4").diff(DeviceMesh("dp=4", backends={"dp": "gloo"}))
    assert "no rank changes groups" in str(change)
    assert change.frame().columns.tolist() == ["rank", "axis", "before", "after", "change", "lost", "gained"]


def test_the_frame_of_meshes_without_a_common_axis_is_empty() -> None:
    assert DeviceMesh("dp=4").diff(DeviceMesh("tp=4")).frame().empty


def test_the_other_mesh_may_be_text() -> None:
    mesh = DeviceMesh("dp=2, tp=4")
    assert str(mesh.diff("dp=4, tp=2")) == str(mesh.diff(DeviceMesh("dp=4, tp=2")))
    assert mesh.diff("dp=-1, tp=2").after == DeviceMesh("dp=4, tp=2")
    with pytest.raises(ParseError, match="'tp' is not an axis"):
        mesh.diff("dp=4, tp")
    with pytest.raises(MeshError, match="mesh must be a DeviceMesh or text such as 'dp=2, tp=4', not int"):
        mesh.diff(8)  # type: ignore[arg-type]


def test_the_card_shows_counts_per_axis() -> None:
    html = DeviceMesh("dp=2, tp=4").diff(DeviceMesh("dp=4, tp=2"))._repr_html_()
    assert "8 of 8 ranks change groups" in html
    assert "different peers" in html
    assert (
        repr(DeviceMesh("dp=2").diff(DeviceMesh("dp=2")))
        == "<MeshDiff dp=2 → dp=2: the meshes are equal; next: .frame()>"
    )


def test_arrays_of_a_difference_are_read_only() -> None:
    change = DeviceMesh("dp=2, tp=4").diff(DeviceMesh("dp=4, tp=2"))
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
@settings(deadline=None, max_examples=examples(50))
def test_the_difference_agrees_with_a_slow_comparison(before: DeviceMesh, after: DeviceMesh) -> None:
    change = before.diff(after)
    for axis in ("dp", "tp"):
        for rank in range(max(before.world_size, after.world_size)):
            old = new = None
            if rank in before.ranks:
                old = before[axis].of(rank)
            if rank in after.ranks:
                new = after[axis].of(rank)
            kind = CHANGES[change.axes[axis].change[rank]]
            if old is None or new is None:
                assert kind == ("same" if old is new else "leaves" if new is None else "joins")
                assert change.axes[axis].lost[rank] == (0 if old is None else len(old) - 1)
                assert change.axes[axis].gained[rank] == (0 if new is None else len(new) - 1)
                continue
            lost, gained = set(old) - set(new), set(new) - set(old)
            assert change.axes[axis].lost[rank] == len(lost)
            assert change.axes[axis].gained[rank] == len(gained)
            if lost or gained:
                assert kind == "members"
            elif old.ranks != new.ranks:
                assert kind == "order"
            else:
                assert kind == ("same" if old.name == new.name else "number")
