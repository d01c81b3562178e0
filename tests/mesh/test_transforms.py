from __future__ import annotations

import numpy as np
import pytest

from meshlab.base._errors import MeshError
from meshlab.mesh._groups import Group
from meshlab.mesh._mesh import DeviceMesh
from meshlab.mesh._transforms import check_same_groups

MESH = DeviceMesh("pp=2, dp=2, cp=3, tp=2")


def test_reorder_changes_the_fastest_axis() -> None:
    mesh = DeviceMesh("dp=2, tp=4").reorder("tp", "dp")
    assert mesh == DeviceMesh("tp=4, dp=2")
    assert mesh.group("dp_0").ranks == (0, 1)


def test_transpose_keeps_every_rank_at_its_coordinates() -> None:
    mesh = MESH.transpose("tp", "cp", "pp", "dp")
    assert mesh.axis_names == ("tp", "cp", "pp", "dp")
    assert mesh.coordinates(17) == {n: MESH.coordinates(17)[n] for n in mesh.axis_names}
    for name in MESH.axis_names:
        assert sorted(mesh[name].array.tolist()) == sorted(MESH[name].array.tolist())
    assert mesh.transpose(*MESH.axis_names) == MESH


@pytest.mark.parametrize("method", ["reorder", "transpose"])
def test_a_new_order_contains_every_axis_once(method: str) -> None:
    change = getattr(MESH, method)
    with pytest.raises(MeshError, match="axes tp, pp are incomplete; add dp, cp"):
        change("tp", "pp")
    with pytest.raises(MeshError, match="repeat an axis; name each axis once"):
        change("tp", "pp", "dp", "cp", "cp")
    with pytest.raises(MeshError, match="unknown axis 'ep'; choose one of pp, dp, cp, tp"):
        change("tp", "pp", "dp", "cp", "ep")


def test_rename_keeps_everything_else() -> None:
    mesh = DeviceMesh("dp=2, tp=2", ranks=[3, 1, 2, 0]).with_group("pair", [0, 3]).rename(dp="data")
    assert str(mesh) == "data=2, tp=2"
    assert mesh.ranks.tolist() == [[3, 1], [2, 0]]
    assert mesh.group("pair").ranks == (0, 3)
    assert DeviceMesh("a=2, b=3").rename(a="b", b="a") == DeviceMesh("b=2, a=3")
    with pytest.raises(MeshError, match="unknown axis 'ep'; choose one of data, tp"):
        mesh.rename(ep="x")
    with pytest.raises(MeshError, match="appears 2 times"):
        mesh.rename(data="tp")


@pytest.mark.parametrize("axes", [("dp", "cp"), ("pp", "tp"), ("cp", "pp"), ("tp", "cp", "dp", "pp"), ("dp",)])
def test_a_flattened_axis_has_exactly_the_groups_along_its_parts(axes: tuple[str, ...]) -> None:
    flat = MESH.flatten(*axes, name="all")
    assert flat["all"].array.tolist() == MESH[axes].array.tolist()
    for name in set(MESH.axis_names) - set(axes):
        assert sorted(flat[name].array.tolist()) == sorted(MESH[name].array.tolist())


def test_flattening_neighbouring_axes_moves_no_rank() -> None:
    flat = MESH.flatten("dp", "cp")
    assert flat == DeviceMesh("pp=2, dp_cp=6, tp=2")
    assert flat.split_axis("dp_cp", dp=2, cp=3) == MESH
    with pytest.raises(MeshError, match="appears 2 times"):
        MESH.flatten("dp", "cp", name="tp")
    with pytest.raises(MeshError, match="no axis given; name at least one of pp, dp, cp, tp"):
        MESH.flatten()


def test_split_axis_keeps_the_position_of_the_axis() -> None:
    mesh = DeviceMesh("dp=8, tp=2").split_axis("dp", "dp_replicate=2, dp_shard=-1")
    assert mesh == DeviceMesh("dp_replicate=2, dp_shard=4, tp=2")
    with pytest.raises(MeshError, match=r"cannot split dp=8: a=3 × b=2 is 6 ranks, but 8 were given; .*nearest"):
        DeviceMesh("dp=8").split_axis("dp", a=3, b=2)
    with pytest.raises(MeshError, match="appears 2 times"):
        DeviceMesh("dp=8, tp=2").split_axis("dp", tp=2, cp=4)
    with pytest.raises(MeshError, match="new axes must be one argument, such as 'dp=2, tp=4', or keywords"):
        DeviceMesh("dp=8").split_axis("dp")
    with pytest.raises(MeshError, match="new axes must be one argument, such as 'dp=2, tp=4', or keywords"):
        DeviceMesh("dp=8").split_axis("dp", "a=2, b=4", a=2)


def test_select_accepts_integers_slices_and_lists() -> None:
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
        ({"ep": 0}, "unknown axis 'ep'"),
        ({"pp": 2}, "coordinate of axis 'pp' must be an integer from 0 to 1, not 2"),
        ({"dp": [0, 3]}, "coordinate of axis 'dp' must be an integer from 0 to 2, not 3"),
        ({"dp": []}, r"dp=\[\] selects no ranks; use 0 to 2"),
        ({"dp": slice(3, 9)}, "selects no ranks"),
        ({"dp": [1, 1]}, "appears 2 times"),
        ({"dp": "x"}, "coordinate of axis 'dp' must be an integer from 0 to 2, not 'x'"),
        ({"dp": 0.5}, "coordinate of axis 'dp' must be an integer from 0 to 2, not 0.5"),
        ({"pp": 0, "dp": 0, "tp": 0}, r"leaves a single rank, not a mesh; call rank_at\(\)"),
    ],
)
def test_invalid_selections_are_rejected(places: dict[str, int], why: str) -> None:
    with pytest.raises(MeshError, match=why):
        DeviceMesh("pp=2, dp=3, tp=2").select(**places)


def test_a_submesh_contains_the_groups_of_one_rank() -> None:
    for rank in range(MESH.world_size):
        part = MESH.submesh("tp", "dp", rank=rank)
        assert part.axis_names == ("tp", "dp")
        assert sorted(part.ranks.reshape(-1).tolist()) == sorted(MESH["tp", "dp"].of(rank))
        for axis in ("tp", "dp"):
            assert part[axis].of(rank).ranks == MESH[axis].of(rank).ranks
    with pytest.raises(MeshError, match="rank 24 does not exist"):
        MESH.submesh("tp", rank=24)


def test_reshape_keeps_the_order_of_ranks() -> None:
    mesh = DeviceMesh("dp=2, tp=4", ranks=[0, 4, 1, 5, 2, 6, 3, 7]).reshape("pp=2, dp=-1, tp=2")
    assert mesh.group("tp_0").ranks == (0, 4)
    assert mesh.group("tp_3").ranks == (3, 7)
    assert DeviceMesh("dp=8").reshape(dp=4, tp=2) == DeviceMesh("dp=4, tp=2")
    with pytest.raises(MeshError, match=r"dp=3 × tp=2 is 6 ranks, but 8 were given"):
        mesh.reshape("dp=3, tp=2")
    with pytest.raises(MeshError, match="new axes must be one argument, such as 'dp=2, tp=4', or keywords"):
        mesh.reshape()


def test_custom_groups_are_kept_while_they_are_valid() -> None:
    mesh = DeviceMesh("dp=2, tp=4").with_group("rail", [6, 2])
    for other in (mesh.reshape("dp=4, tp=2"), mesh.reorder("tp", "dp"), mesh.flatten("dp", "tp"), mesh.select(tp=2)):
        assert other.custom_groups == (Group("rail", [6, 2]),)
    with pytest.raises(
        MeshError,
        match=r"cannot keep group 'rail': group name 'rail' is taken; drop it first with without_group\('rail'\)",
    ):
        mesh.reshape("dp=4, rail=2")
    with pytest.raises(MeshError, match=r"cannot keep group 'rail': group 'rail' contains idle rank 6; drop it first"):
        mesh.select(dp=0)
    assert mesh.without_group("rail").select(dp=0).size() == 4


# -- views -------------------------------------------------------------------------------------------------------------


def test_a_view_arranges_the_same_ranks_for_experts() -> None:
    dense = DeviceMesh("pp=2, dp=4, tp=8", backends={"pp": "gloo"})
    experts = dense.view("pp=2, edp=2, ep=8, etp=2")
    assert experts["pp"] == dense["pp"]
    assert experts.group("ep_1").ranks == tuple(range(1, 16, 2))
    assert experts.size("edp") == 2
    assert dict(experts.backends) == {"pp": "gloo"}
    assert dense.view(pp=2, edp=-1, ep=16).shape == (2, 2, 16)


def test_a_view_may_share_the_fastest_axis_too() -> None:
    dense = DeviceMesh("dp=8, tp=2")
    assert dense.view("edp=2, ep=4, tp=2")["tp"] == dense["tp"]


@pytest.mark.parametrize(
    ("axes", "why"),
    [
        (
            "edp=4, pp=2, ep=8",
            r"pp_0 is \[0, 32\] in pp=2, dp=4, tp=8 and \[0, 8\] in edp=4, pp=2, ep=8; give it size 2 and",
        ),
        (
            "pp=4, ep=16",
            r"axis 'pp' is in both meshes, but pp_0 is .*give it size 2 and following axes with product 32",
        ),
        ("pp=2, tp=4, ep=8", r"axis 'tp' is in both meshes.*, or a different name"),
    ],
)
def test_a_view_with_different_groups_along_a_shared_axis_is_rejected(axes: str, why: str) -> None:
    with pytest.raises(MeshError, match=why):
        DeviceMesh("pp=2, dp=4, tp=8").view(axes)


def test_the_first_different_group_is_shown() -> None:
    mesh = DeviceMesh("dp=2, tp=2", ranks=[0, 1, 2, 3])
    other = DeviceMesh("dp=2, tp=2", ranks=[0, 1, 3, 2])
    with pytest.raises(MeshError, match=r"tp_1 is \[2, 3\] in .* and \[3, 2\] in"):
        check_same_groups(mesh, other, "tp")
