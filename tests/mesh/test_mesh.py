from __future__ import annotations

import copy
import pickle
import subprocess
import sys

import numpy as np
import pytest

from meshlab.errors import MeshError
from meshlab.mesh.axes import Axis
from meshlab.mesh.groups import Group
from meshlab.mesh.mesh import DeviceMesh

# -- making one --------------------------------------------------------------------------------------------------------


def test_all_ways_to_write_a_mesh_are_equal() -> None:
    mesh = DeviceMesh("dp=2, tp=4")
    same = [
        DeviceMesh(dp=2, tp=4),
        DeviceMesh({"dp": 2, "tp": 4}),
        DeviceMesh([("dp", 2), ("tp", 4)]),
        DeviceMesh([Axis("dp", 2), Axis("tp", 4)]),
        DeviceMesh(mesh.axes),
        DeviceMesh("dp=-1, tp=4", world_size=8),
        DeviceMesh("dp=2, tp=4", ranks=range(8)),
        DeviceMesh("dp=2, tp=4", ranks=np.arange(8).reshape(2, 4)),
        DeviceMesh([("dp", np.int64(2)), ("tp", np.int32(4))]),
    ]
    for other in same:
        assert other == mesh
        assert hash(other) == hash(mesh)
        assert other.fingerprint == mesh.fingerprint


@pytest.mark.parametrize("axes", [5, [1, 2], [("dp",)], ["dp"], [("dp", 2, 3)], object()])
def test_what_names_no_axes_is_refused(axes: object) -> None:
    with pytest.raises(MeshError, match="does not name axes"):
        DeviceMesh(axes)  # type: ignore[arg-type]


def test_a_mesh_needs_axes_and_takes_them_once() -> None:
    for empty in (None, [], {}):
        with pytest.raises(MeshError, match="at least one axis"):
            DeviceMesh(empty)
    with pytest.raises(MeshError, match="not both"):
        DeviceMesh("dp=2", tp=4)


def test_the_last_axis_is_the_fastest() -> None:
    mesh = DeviceMesh("pp=2, dp=3, tp=4")
    assert mesh.shape == (2, 3, 4)
    assert mesh.axis_names == ("pp", "dp", "tp")
    assert mesh.strides == (12, 4, 1)
    assert mesh.ranks[1, 2].tolist() == [20, 21, 22, 23]
    assert mesh.size() == mesh.world_size == 24
    assert mesh.size("dp", "tp") == 12


def test_one_rank_is_a_mesh() -> None:
    mesh = DeviceMesh("tp=1")
    assert mesh.group("tp_0").ranks == (0,)
    assert mesh.neighbours("tp", ring=True).shape == (0, 2)
    assert mesh.proof().drop(columns=["axes", "groups", "size"]).all().all()
    assert "no traffic" in mesh.explain()


# -- the four layouts --------------------------------------------------------------------------------------------------


def test_the_named_layouts_have_the_fields_usual_order() -> None:
    assert DeviceMesh.data_parallel(4) == DeviceMesh("dp=4")
    assert DeviceMesh.tensor_parallel(4) == DeviceMesh("dp=1, tp=4")
    assert DeviceMesh.tensor_parallel(4, world_size=8) == DeviceMesh("dp=2, tp=4")
    assert DeviceMesh.pipeline_parallel(4) == DeviceMesh("pp=4, dp=1")
    assert DeviceMesh.pipeline_parallel(2, world_size=8) == DeviceMesh("pp=2, dp=4")
    assert DeviceMesh.mixed(tp=2, pp=2, dp=2) == DeviceMesh("pp=2, dp=2, tp=2")
    assert DeviceMesh.mixed(tp=8, pp=2, dp=-1, world_size=64) == DeviceMesh("pp=2, dp=4, tp=8")


def test_code_for_one_layout_finds_its_groups_in_another() -> None:
    for mesh in (DeviceMesh.tensor_parallel(4, 8), DeviceMesh.mixed(tp=4, pp=1, dp=2), DeviceMesh("tp=4, dp=2")):
        assert len(mesh.group("tp_0")) == 4
        assert len(mesh.group("dp_3")) == 2


def test_a_pipeline_has_stages_and_neighbours() -> None:
    mesh = DeviceMesh.mixed(tp=2, pp=3, dp=1)
    assert mesh.stages().array.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert mesh.stages().names == ["pp_stage_0", "pp_stage_1", "pp_stage_2"]
    assert mesh.neighbours().tolist() == [[0, 2], [2, 4], [1, 3], [3, 5]]
    assert mesh.neighbours(ring=True).tolist() == [[0, 2], [2, 4], [4, 0], [1, 3], [3, 5], [5, 1]]
    assert DeviceMesh.pipeline_parallel(3).stages().array.tolist() == [[0], [1], [2]]
    assert DeviceMesh("dp=2, stage=2").stages("stage").array.tolist() == [[0, 2], [1, 3]]


# -- who is where ------------------------------------------------------------------------------------------------------


def test_coordinates_and_rank_at_are_inverse() -> None:
    mesh = DeviceMesh("pp=2, dp=3, tp=4")
    for rank in range(24):
        place = mesh.coordinates(rank)
        assert mesh.rank_at(**place) == rank
        assert tuple(place.values()) == tuple(mesh.coordinate_array[rank])
        assert all(type(value) is int for value in place.values())


@pytest.mark.parametrize(
    ("coordinates", "why"),
    [
        ({"dp": 0}, "tp is missing"),
        ({"dp": 0, "tp": 0, "cp": 0}, "there is no axis 'cp'; this mesh has dp, tp"),
        ({"dp": 2, "tp": 0}, "dp=2 lies outside the axis; it goes from 0 to 1"),
        ({"dp": -1, "tp": 0}, "dp=-1 lies outside"),
        ({"dp": 0.5, "tp": 0}, "dp=0.5 is not a coordinate"),
        ({"dp": True, "tp": 0}, "is not a coordinate"),
    ],
)
def test_impossible_coordinates_are_refused(coordinates: dict[str, int], why: str) -> None:
    with pytest.raises(MeshError, match=why):
        DeviceMesh("dp=2, tp=4").rank_at(**coordinates)


def test_groups_by_name_set_and_rank_agree() -> None:
    mesh = DeviceMesh("dp=2, cp=2, tp=2")
    assert (
        mesh.group("dp-cp_1")
        == mesh.groups("dp", "cp")[1]
        == mesh.group_of(3, ("dp", "cp"))
        == mesh.group_of(3, "dp-cp")
    )
    assert mesh.group_set("world").array.tolist() == [list(range(8))]
    assert mesh.group_set("tp_2").names == ["tp_2"]
    assert mesh.group_set(["cp"]) == mesh.groups("cp")
    assert mesh.group("world") == Group("world", range(8))
    assert list(mesh.grouped_axes) == ["dp", "cp", "tp"]


def test_the_order_of_named_axes_is_the_order_inside_the_group() -> None:
    mesh = DeviceMesh("dp=2, cp=2, tp=2")
    assert mesh.groups("dp", "cp")[0].ranks == (0, 2, 4, 6)
    assert mesh.groups("cp", "dp")[0].ranks == (0, 4, 2, 6)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        (
            "ep",
            "there is no axis or group 'ep'; there are the axes dp, tp and the groups world, dp_0…dp_3, tp_0…tp_1, p",
        ),
        ("tp_2", "there is no group 'tp_2'; tp has tp_0 to tp_1"),
        ("dp-tp_1", "there is no group 'dp-tp_1'; dp-tp has the one group dp-tp_0"),
        ("tp_01", "no axis or group"),
        ("tp_-1", "no axis or group"),
        ("", "no axis or group"),
    ],
)
def test_an_unknown_group_lists_what_there_is(name: str, why: str) -> None:
    mesh = DeviceMesh("dp=2, tp=4").with_group("pair", [0, 5])
    with pytest.raises(MeshError, match=why):
        mesh.group(name)


def test_unknown_repeated_and_missing_axes_are_refused() -> None:
    mesh = DeviceMesh("dp=2, tp=4")
    with pytest.raises(MeshError, match="there is no axis 'ep'"):
        mesh.groups("ep")
    with pytest.raises(MeshError, match="stands twice"):
        mesh.groups("tp", "tp")
    with pytest.raises(MeshError, match="stands twice"):
        mesh.group_set("tp-tp")
    with pytest.raises(MeshError, match="name at least one axis"):
        mesh.groups()
    with pytest.raises(MeshError, match="one by one"):
        mesh.groups(["dp", "tp"])  # type: ignore[arg-type]


# -- ranks placed by hand ----------------------------------------------------------------------------------------------


def test_placed_ranks_keep_their_order_inside_every_group() -> None:
    mesh = DeviceMesh("dp=2, tp=4", ranks=[0, 1, 3, 2, 4, 5, 7, 6])
    assert mesh.group("tp_0").ranks == (0, 1, 3, 2)
    assert mesh.group("dp_2").ranks == (3, 7)
    assert mesh.coordinates(2) == {"dp": 0, "tp": 3}
    assert mesh.rank_at(dp=1, tp=2) == 7
    assert mesh.coordinate_array[7].tolist() == [1, 2]
    assert mesh.groups("tp").key.tolist() == [0, 1, 3, 2, 0, 1, 3, 2]
    assert mesh.strides == (4, None)
    assert mesh.world.ranks == tuple(range(8))


def test_a_part_of_the_world_names_its_idle_ranks() -> None:
    mesh = DeviceMesh("tp=2, cp=2", ranks=range(4, 8), world_size=10)
    assert mesh.idle_ranks.tolist() == [0, 1, 2, 3, 8, 9]
    assert (mesh.size(), mesh.world_size) == (4, 10)
    assert mesh.groups("tp").color.tolist() == [-1, -1, -1, -1, 0, 1, 0, 1, -1, -1]
    assert mesh.coordinate_array[0].tolist() == [-1, -1]
    assert mesh.membership()["rank"].tolist() == [4, 5, 6, 7]
    assert mesh.strides == (2, 1)
    with pytest.raises(MeshError, match="rank 8 is idle in this mesh, which leaves out ranks 0, 1, 2, 3, 8, 9"):
        mesh.coordinates(8)
    with pytest.raises(MeshError, match="rank 8 is in no group of 'tp'"):
        mesh.group_of(8, "tp")
    with pytest.raises(MeshError, match="rank 10 does not exist; ranks go from 0 to 9"):
        mesh.group_of(10, "tp")
    with pytest.raises(MeshError, match="rank 9 of group 'pair' is idle"):
        mesh.with_group("pair", [4, 9])


@pytest.mark.parametrize(
    ("ranks", "world_size", "why"),
    [
        ([0, 1, 2], None, "tp=4 is 4 ranks, but 3 were given"),
        ([0, 1, 2, 2], None, "rank 2 stands 2 times"),
        ([0, 1, 2, 4], None, "rank 4 does not exist; ranks go from 0 to 3, or say world_size=5"),
        ([0, 1, 2, 4], 4, "rank 4 does not exist; ranks go from 0 to 3$"),
        ([0, 1, 2, -1], None, "rank -1 does not exist; ranks go from 0 to 3$"),
        ([0, 1, 2, 3.0], None, "whole numbers"),
        ([0, 1, 2, True], None, None),
        ([True, False, True, True], None, "whole numbers"),
        (["a", "b", "c", "d"], None, "whole numbers"),
        ([], None, "no ranks"),
        (3, None, "no ranks"),
        ([[0, 1], [2]], None, "nested lists of one shape"),
        ([[0, 1], [2, 3]], None, r"shape \(2, 2\), but the axes have \(4,\)"),
        ([0, 1, 2, 2**70], None, "whole numbers"),
        ([0, 1, 2, 2**31], 2**24, "does not exist"),
    ],
)
def test_impossible_placements_are_refused(ranks: object, world_size: int | None, why: str | None) -> None:
    if why is None:  # numpy reads a lone bool among integers as 0 or 1: a repeated rank here
        why = "rank 1 stands 2 times"
    with pytest.raises(MeshError, match=why):
        DeviceMesh("tp=4", ranks=ranks, world_size=world_size)  # type: ignore[arg-type]


# -- backends ----------------------------------------------------------------------------------------------------------


def test_backends_follow_their_axis() -> None:
    mesh = DeviceMesh("pp=2, dp=2, tp=2", backends={"tp": "nccl", "pp": "gloo"})
    assert dict(mesh.backends) == {"pp": "gloo", "tp": "nccl"}
    assert mesh != DeviceMesh("pp=2, dp=2, tp=2")
    assert mesh.fingerprint != DeviceMesh("pp=2, dp=2, tp=2").fingerprint
    assert dict(mesh.reorder("tp", "dp", "pp").backends) == {"tp": "nccl", "pp": "gloo"}
    assert dict(mesh.rename(pp="stage").backends) == {"stage": "gloo", "tp": "nccl"}
    assert dict(mesh.split_axis("tp", outer=1, inner=2).backends) == {"pp": "gloo", "outer": "nccl", "inner": "nccl"}
    assert dict(mesh.select(pp=0).backends) == {"tp": "nccl"}
    with pytest.raises(TypeError):
        mesh.backends["pp"] = "mpi"  # type: ignore[index]


@pytest.mark.parametrize("backends", [{"ep": "nccl"}, {"pp": ""}, {"pp": 3}, {"pp": "a b"}, {"pp": "<b>"}])
def test_impossible_backends_are_refused(backends: dict[str, str]) -> None:
    with pytest.raises(MeshError, match=r"backend|no axis"):
        DeviceMesh("pp=2", backends=backends)


# -- groups by hand ----------------------------------------------------------------------------------------------------


def test_a_group_by_hand_keeps_its_order_and_comes_last() -> None:
    base = DeviceMesh("dp=2, tp=2")
    mesh = base.with_group("rail1", [3, 1]).with_group("rail0", [2, 0])
    assert mesh.creation_order == ("dp", "tp", "rail1", "rail0")
    assert mesh.group("rail1").ranks == (3, 1)
    assert mesh.group_set("rail1").names == ["rail1"]
    assert base.custom_groups == ()
    assert mesh.without_group("rail1").custom_groups == (mesh.group("rail0"),)
    assert mesh != base
    assert mesh.fingerprint != base.with_group("rail0", [2, 0]).with_group("rail1", [3, 1]).fingerprint
    assert base.with_group("a", [0, 1]).fingerprint != base.with_group("a", [1, 0]).fingerprint


@pytest.mark.parametrize(
    ("name", "ranks", "why"),
    [
        ("world", [0], "'world' always means all ranks and cannot name a group"),
        ("dp", [0], "the name 'dp' is taken"),
        ("dp_0", [0], "the name 'dp_0' is taken"),
        ("dp_99", [0], "taken"),
        ("dp_group", [0], "taken"),
        ("pair", [0], "taken"),
        ("dp-tp", [0], "letters, digits"),
        ("new", [], "no ranks"),
        ("new", [0, 4], "rank 4 does not exist; ranks go from 0 to 3"),
        ("new", [-1], "rank -1 does not exist"),
        ("new", [1, 1], "rank 1 stands 2 times"),
        ("new", [0.5], "whole numbers"),
        ("new", ["0"], "whole numbers"),
        ("new", [[0, 1]], "one list of whole numbers"),
        ("new", [2**70], "whole numbers"),
    ],
)
def test_impossible_groups_by_hand_are_refused(name: str, ranks: list[int], why: str) -> None:
    mesh = DeviceMesh("dp=2, tp=2").with_group("pair", [0, 3])
    with pytest.raises(MeshError, match=why):
        mesh.with_group(name, ranks)


def test_only_groups_by_hand_can_be_dropped() -> None:
    with pytest.raises(MeshError, match="there are: none"):
        DeviceMesh("dp=2").without_group("dp_0")


# -- identity and looks ------------------------------------------------------------------------------------------------

MESHES = [
    DeviceMesh("dp=2, tp=4"),
    DeviceMesh("tp=1"),
    DeviceMesh("pp=2, dp=2", backends={"dp": "nccl", "pp": "gloo"}),
    DeviceMesh("tp=4", ranks=[2, 3, 1, 0]),
    DeviceMesh("tp=4", ranks=range(3, 7), world_size=9),
    DeviceMesh("dp=2, tp=4").transpose("tp", "dp"),
    DeviceMesh("a=2, b=1, c=3", backends={"b": "mpi"}).transpose("c", "a", "b"),
    DeviceMesh("pp=4, dp=16, tp=8").transpose("tp", "dp", "pp"),
    DeviceMesh("dp=2, tp=2").with_group("pair", [3, 0]).with_group("trio", [1, 2, 3]),
    DeviceMesh("dp=2, tp=2", ranks=[0, 3, 1, 2], backends={"tp": "nccl"}).with_group("pair", [3, 0]),
]


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_the_repr_makes_the_mesh_again(mesh: DeviceMesh) -> None:
    back = eval(repr(mesh), {"DeviceMesh": DeviceMesh})
    assert back == mesh
    assert back.fingerprint == mesh.fingerprint
    assert repr(back) == repr(mesh)


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("make", [lambda m: pickle.loads(pickle.dumps(m)), copy.copy, copy.deepcopy])
def test_copies_are_equal(mesh: DeviceMesh, make: object) -> None:
    mesh.groups(*mesh.axis_names)  # fill the caches, they are no part of the value
    back = make(mesh)  # type: ignore[operator]
    assert back == mesh
    assert hash(back) == hash(mesh)
    assert back.fingerprint == mesh.fingerprint
    assert [g.ranks for g in back.custom_groups] == [g.ranks for g in mesh.custom_groups]


def test_meshes_that_differ_in_anything_have_other_fingerprints() -> None:
    others = [
        *MESHES,
        DeviceMesh("dp=4, tp=2"),
        DeviceMesh("tp=4, dp=2"),
        DeviceMesh("dp=2, cp=4"),
        DeviceMesh("tp=4", ranks=range(3, 7), world_size=10),
        DeviceMesh("tp=4", ranks=[2, 3, 0, 1]),
        DeviceMesh("pp=2, dp=2", backends={"dp": "gloo", "pp": "nccl"}),
    ]
    assert len({mesh.fingerprint for mesh in others}) == len(others)
    assert len(set(others)) == len(others)
    assert DeviceMesh("tp=2") != "tp=2"


def test_the_fingerprint_never_changes() -> None:
    assert DeviceMesh("pp=2, dp=4, tp=8").fingerprint == "06cf9b2ddc39"
    assert (
        DeviceMesh("tp=4", ranks=[2, 3, 1, 0], backends={"tp": "nccl"}).with_group("a", [1]).fingerprint
        == "6a871b055d50"
    )


def test_the_fingerprint_does_not_depend_on_the_process() -> None:
    mesh = "DeviceMesh('dp=2, tp=4', backends={'tp': 'x', 'dp': 'y'}).with_group('pair', [3, 0])"
    script = f"from meshlab.mesh import DeviceMesh; print({mesh}.fingerprint)"
    seen = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(path or "." for path in sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(seen) == 1


def test_a_mesh_does_not_change() -> None:
    mesh = DeviceMesh("dp=2, tp=4")
    with pytest.raises(AttributeError, match="does not change"):
        mesh.axes = ()
    for array in (mesh.ranks, mesh.coordinate_array, mesh.idle_ranks, mesh.groups("dp").array):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 1


def test_a_callers_ranks_are_not_shared() -> None:
    ranks = np.array([1, 0], dtype=np.int32)
    mesh = DeviceMesh("tp=2", ranks=ranks)
    ranks[:] = 5
    assert mesh.ranks.tolist() == [1, 0]


def test_a_long_placement_is_shown_short() -> None:
    ranks = np.roll(np.arange(1000), 1)
    assert repr(DeviceMesh("tp=1000", ranks=ranks)) == (
        "DeviceMesh('tp=1000', ranks=[999, 0, 1, 2, 3, 4, 5, 6, …, 998] (1,000 ranks))"
    )


def test_the_html_is_a_card_with_every_axis() -> None:
    html = DeviceMesh("pp=2, tp=4", backends={"pp": "gloo"}).with_group("pair", [0, 7])._repr_html_()
    for text in (
        "DeviceMesh · pp=2, tp=4",
        "8 ranks · tp is the fastest axis",
        "pipeline parallel",
        "gloo",
        "added by hand",
    ):
        assert text in html
    assert "idle" not in html
    assert "idle: rank 2" in DeviceMesh("tp=2", ranks=[0, 1], world_size=3)._repr_html_()


def test_the_html_escapes_whatever_it_shows() -> None:
    mesh = DeviceMesh("tp=2")
    mesh.__dict__["backends"] = {"tp": "<script>alert(1)</script>"}  # no public way puts it there
    assert "<script>" not in mesh._repr_html_()


def test_importing_the_mesh_imports_nothing_heavy() -> None:
    script = "import sys, meshlab.mesh; print([m for m in ('pandas', 'matplotlib', 'ipywidgets') if m in sys.modules])"
    path = ":".join(path or "." for path in sys.path)
    done = subprocess.run(
        [sys.executable, "-c", script], env={"PYTHONPATH": path}, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
