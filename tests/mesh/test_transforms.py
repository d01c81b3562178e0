from __future__ import annotations

import numpy as np
import pytest

from meshlab.errors import MeshError
from meshlab.mesh.groups import Group
from meshlab.mesh.mesh import DeviceMesh

MESH = DeviceMesh("pp=2, dp=2, cp=3, tp=2")


def test_reorder_makes_another_axis_the_fastest() -> None:
    mesh = DeviceMesh("dp=2, tp=4").reorder("tp", "dp")
    assert mesh == DeviceMesh("tp=4, dp=2")
    assert mesh.group("dp_0").ranks == (0, 1)


def test_transpose_keeps_every_rank_at_its_coordinates() -> None:
    mesh = MESH.transpose("tp", "cp", "pp", "dp")
    assert mesh.axis_names == ("tp", "cp", "pp", "dp")
    assert mesh.coordinates(17) == {n: MESH.coordinates(17)[n] for n in mesh.axis_names}
    for name in MESH.axis_names:
        assert sorted(mesh.groups(name).array.tolist()) == sorted(MESH.groups(name).array.tolist())
    assert mesh.transpose(*MESH.axis_names) == MESH


@pytest.mark.parametrize("method", ["reorder", "transpose"])
def test_another_order_needs_every_axis_once(method: str) -> None:
    change = getattr(MESH, method)
    with pytest.raises(MeshError, match="name every axis once; dp, cp is missing"):
        change("tp", "pp")
    with pytest.raises(MeshError, match="stands twice"):
        change("tp", "pp", "dp", "cp", "cp")
    with pytest.raises(MeshError, match="there is no axis 'ep'"):
        change("tp", "pp", "dp", "cp", "ep")


def test_rename_keeps_everything_else() -> None:
    mesh = DeviceMesh("dp=2, tp=2", ranks=[3, 1, 2, 0]).with_group("pair", [0, 3]).rename(dp="data")
    assert str(mesh) == "data=2, tp=2"
    assert mesh.ranks.tolist() == [[3, 1], [2, 0]]
    assert mesh.group("pair").ranks == (0, 3)
    assert DeviceMesh("a=2, b=3").rename(a="b", b="a") == DeviceMesh("b=2, a=3")
    with pytest.raises(MeshError, match="no axis 'ep'"):
        mesh.rename(ep="x")
    with pytest.raises(MeshError, match="stands 2 times"):
        mesh.rename(data="tp")


@pytest.mark.parametrize("axes", [("dp", "cp"), ("pp", "tp"), ("cp", "pp"), ("tp", "cp", "dp", "pp"), ("dp",)])
def test_a_flattened_axis_has_exactly_the_groups_that_spanned_its_parts(axes: tuple[str, ...]) -> None:
    flat = MESH.flatten(*axes, name="all")
    assert flat.groups("all").array.tolist() == MESH.groups(*axes).array.tolist()
    for name in set(MESH.axis_names) - set(axes):
        assert sorted(flat.groups(name).array.tolist()) == sorted(MESH.groups(name).array.tolist())


def test_flattening_neighbours_moves_no_rank_and_names_itself() -> None:
    flat = MESH.flatten("dp", "cp")
    assert flat == DeviceMesh("pp=2, dp_cp=6, tp=2")
    assert flat.split_axis("dp_cp", dp=2, cp=3) == MESH
    with pytest.raises(MeshError, match="stands 2 times"):
        MESH.flatten("dp", "cp", name="tp")
    with pytest.raises(MeshError, match="name at least one axis"):
        MESH.flatten()


def test_split_axis_cuts_in_place() -> None:
    mesh = DeviceMesh("dp=8, tp=2").split_axis("dp", "dp_replicate=2, dp_shard=-1")
    assert mesh == DeviceMesh("dp_replicate=2, dp_shard=4, tp=2")
    with pytest.raises(
        MeshError, match=r"dp=8 cannot be cut this way: a=3 × b=2 is 6 ranks, but 8 were given; .*nearest"
    ):
        DeviceMesh("dp=8").split_axis("dp", a=3, b=2)
    with pytest.raises(MeshError, match="stands 2 times"):
        DeviceMesh("dp=8, tp=2").split_axis("dp", tp=2, cp=4)
    with pytest.raises(MeshError, match="only once"):
        DeviceMesh("dp=8").split_axis("dp")
    with pytest.raises(MeshError, match="only once"):
        DeviceMesh("dp=8").split_axis("dp", "a=2, b=4", a=2)


def test_select_takes_numbers_slices_and_lists() -> None:
    mesh = DeviceMesh("pp=2, dp=3, tp=2")
    assert mesh.select(pp=1).ranks.tolist() == [[6, 7], [8, 9], [10, 11]]
    assert mesh.select(dp=slice(None, None, 2)).ranks.tolist() == [[[0, 1], [4, 5]], [[6, 7], [10, 11]]]
    assert mesh.select(pp=0, dp=[2, 0]).ranks.tolist() == [[4, 5], [0, 1]]
    assert mesh.select(pp=np.int64(0), dp=np.array([1])).ranks.tolist() == [[2, 3]]
    assert mesh.select() == mesh
    part = mesh.select(pp=1)
    assert part.world_size == 12
    assert part.idle_ranks.tolist() == [0, 1, 2, 3, 4, 5]
    assert part.select(dp=0).idle_ranks.tolist() == [0, 1, 2, 3, 4, 5, 8, 9, 10, 11]


@pytest.mark.parametrize(
    ("places", "why"),
    [
        ({"ep": 0}, "no axis 'ep'"),
        ({"pp": 2}, "pp=2 lies outside the axis"),
        ({"dp": [0, 3]}, "dp=3 lies outside"),
        ({"dp": []}, "selects no rank"),
        ({"dp": slice(3, 9)}, "selects no rank"),
        ({"dp": [1, 1]}, "stands 2 times"),
        ({"dp": "1"}, "not a coordinate"),
        ({"dp": 0.5}, "not a coordinate"),
        ({"pp": 0, "dp": 0, "tp": 0}, "rank_at"),
    ],
)
def test_impossible_selections_are_refused(places: dict[str, int], why: str) -> None:
    with pytest.raises(MeshError, match=why):
        DeviceMesh("pp=2, dp=3, tp=2").select(**places)


def test_a_submesh_is_what_one_rank_sees() -> None:
    for rank in range(MESH.world_size):
        part = MESH.submesh("tp", "dp", rank=rank)
        assert part.axis_names == ("tp", "dp")
        assert sorted(part.ranks.reshape(-1).tolist()) == sorted(MESH.group_of(rank, ("tp", "dp")))
        for axis in ("tp", "dp"):
            assert part.group_of(rank, axis).ranks == MESH.group_of(rank, axis).ranks
    with pytest.raises(MeshError, match="rank 24 does not exist"):
        MESH.submesh("tp", rank=24)


def test_reshape_makes_the_groups_anew_and_keeps_the_order_of_ranks() -> None:
    mesh = DeviceMesh("dp=2, tp=4", ranks=[0, 4, 1, 5, 2, 6, 3, 7]).reshape("pp=2, dp=-1, tp=2")
    assert mesh.group("tp_0").ranks == (0, 4)
    assert mesh.group("tp_3").ranks == (3, 7)
    assert DeviceMesh("dp=8").reshape(dp=4, tp=2) == DeviceMesh("dp=4, tp=2")
    with pytest.raises(MeshError, match=r"dp=3 × tp=2 is 6 ranks, but 8 were given"):
        mesh.reshape("dp=3, tp=2")
    with pytest.raises(MeshError, match="only once"):
        mesh.reshape()


def test_groups_by_hand_stay_while_they_mean_the_same() -> None:
    mesh = DeviceMesh("dp=2, tp=4").with_group("rail", [6, 2])
    for other in (mesh.reshape("dp=4, tp=2"), mesh.reorder("tp", "dp"), mesh.flatten("dp", "tp"), mesh.select(tp=2)):
        assert other.custom_groups == (Group("rail", [6, 2]),)
    with pytest.raises(
        MeshError, match=r"the group 'rail' cannot be kept: the name 'rail' is taken.*without_group\('rail'\)"
    ):
        mesh.reshape("dp=4, rail=2")
    with pytest.raises(
        MeshError, match=r"the group 'rail' cannot be kept: rank 6 of group 'rail' is idle in this mesh"
    ):
        mesh.select(dp=0)
    assert mesh.without_group("rail").select(dp=0).size() == 4


# -- views -------------------------------------------------------------------------------------------------------------


def test_a_view_folds_experts_over_the_same_ranks() -> None:
    dense = DeviceMesh("pp=2, dp=4, tp=8", backends={"pp": "gloo"})
    experts = dense.view("pp=2, edp=2, ep=8, etp=2")
    assert experts.groups("pp") == dense.groups("pp")
    assert experts.group("ep_1").ranks == tuple(range(1, 16, 2))
    assert experts.size("edp") == 2
    assert dict(experts.backends) == {"pp": "gloo"}
    assert dense.view(pp=2, edp=-1, ep=16).shape == (2, 2, 16)


def test_a_view_may_share_the_fastest_axis_too() -> None:
    dense = DeviceMesh("dp=8, tp=2")
    assert dense.view("edp=2, ep=4, tp=2").groups("tp") == dense.groups("tp")


@pytest.mark.parametrize(
    ("axes", "why"),
    [
        (
            "edp=4, pp=2, ep=8",
            r"pp_0 is \[0, 32\] in pp=2, dp=4, tp=8 and \[0, 8\] in edp=4, pp=2, ep=8; give it size 2",
        ),
        ("pp=4, ep=16", r"'pp' is in both meshes, but means other groups.*axes behind it that multiply to 32"),
        ("pp=2, tp=4, ep=8", r"the axis 'tp'.*another name"),
    ],
)
def test_a_view_whose_shared_axis_means_other_groups_is_refused(axes: str, why: str) -> None:
    with pytest.raises(MeshError, match=why):
        DeviceMesh("pp=2, dp=4, tp=8").view(axes)


def test_the_first_group_that_differs_is_shown() -> None:
    mesh = DeviceMesh("dp=2, tp=2", ranks=[0, 1, 2, 3])
    other = DeviceMesh("dp=2, tp=2", ranks=[0, 1, 3, 2])
    with pytest.raises(MeshError, match=r"tp_1 is \[2, 3\] in .* and \[3, 2\] in"):
        mesh._check_shared("tp", other)
