from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
from matplotlib.figure import Figure

from meshlab.base._errors import MeshError
from meshlab.mesh._axes import Axis
from meshlab.mesh._document import mesh_from_document, mesh_to_document
from meshlab.mesh._groups import Group
from meshlab.mesh._mesh import DeviceMesh
from meshlab.plots._cells import membership

# -- constructors ------------------------------------------------------------------------------------------------------


def test_all_spellings_of_a_mesh_are_equal() -> None:
    mesh = DeviceMesh("dp=2, tp=4")
    same = [
        DeviceMesh(dp=2, tp=4),
        DeviceMesh({"dp": 2, "tp": 4}),
        DeviceMesh([("dp", 2), ("tp", 4)]),
        DeviceMesh([Axis("dp", 2), Axis("tp", 4)]),
        DeviceMesh(mesh.axes),
        DeviceMesh((2, 4), ("dp", "tp")),
        DeviceMesh([2, 4], ["dp", "tp"]),
        DeviceMesh(np.array([2, 4]), ("dp", "tp")),
        DeviceMesh((-1, 4), ("dp", "tp"), world_size=8),
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
def test_invalid_axes_are_rejected(axes: object) -> None:
    with pytest.raises(
        MeshError, match=r"axes must be text such as 'dp=2, tp=4', .*, or sizes followed by names .*, not"
    ):
        DeviceMesh(axes)  # type: ignore[arg-type]


def test_axes_are_required_and_accepted_once() -> None:
    for empty in (None, [], {}):
        with pytest.raises(MeshError, match="a mesh needs at least one axis"):
            DeviceMesh(empty)
    with pytest.raises(MeshError, match="axes must be one argument or keywords, not both"):
        DeviceMesh("dp=2", tp=4)


def test_the_last_axis_is_the_fastest() -> None:
    mesh = DeviceMesh("pp=2, dp=3, tp=4")
    assert mesh.shape == (2, 3, 4)
    assert mesh.axis_names == ("pp", "dp", "tp")
    assert mesh.strides == (12, 4, 1)
    assert mesh.ranks[1, 2].tolist() == [20, 21, 22, 23]
    assert mesh.size() == mesh.world_size == 24
    assert mesh.size("dp", "tp") == 12


def test_a_mesh_may_have_a_single_rank() -> None:
    mesh = DeviceMesh("tp=1")
    assert mesh.group("tp_0").ranks == (0,)
    assert mesh.neighbours("tp", ring=True).shape == (0, 2)
    assert mesh.check_groups().drop(columns=["axes", "groups", "size"]).all().all()
    assert "no traffic" in mesh.explain()


# -- named layouts    --------------------------------------------------------------------------------------------------


def test_the_named_layouts_have_the_usual_order_of_axes() -> None:
    assert DeviceMesh.data_parallel(4) == DeviceMesh("dp=4")
    assert DeviceMesh.tensor_parallel(4) == DeviceMesh("dp=1, tp=4")
    assert DeviceMesh.tensor_parallel(4, world_size=8) == DeviceMesh("dp=2, tp=4")
    assert DeviceMesh.pipeline_parallel(4) == DeviceMesh("pp=4, dp=1")
    assert DeviceMesh.pipeline_parallel(2, world_size=8) == DeviceMesh("pp=2, dp=4")
    assert DeviceMesh.mixed(tp=2, pp=2, dp=2) == DeviceMesh("pp=2, dp=2, tp=2")
    assert DeviceMesh.mixed(tp=8, pp=2, dp=-1, world_size=64) == DeviceMesh("pp=2, dp=4, tp=8")


def test_group_names_are_the_same_in_every_layout() -> None:
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


# -- coordinates ------------------------------------------------------------------------------------------------------


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
        ({"dp": 0}, r"rank_at\(\) needs a coordinate for every axis; add tp=$"),
        ({"dp": 0, "tp": 0, "cp": 0}, "unknown axis 'cp'; choose one of dp, tp"),
        ({"dp": 2, "tp": 0}, "coordinate of axis 'dp' must be an integer from 0 to 1, not 2"),
        ({"dp": -1, "tp": 0}, "coordinate of axis 'dp' must be an integer from 0 to 1, not -1"),
        ({"dp": 0.5, "tp": 0}, "coordinate of axis 'dp' must be an integer from 0 to 1, not 0.5"),
        ({"dp": True, "tp": 0}, "coordinate of axis 'dp' must be an integer from 0 to 1, not True"),
    ],
)
def test_invalid_coordinates_are_rejected(coordinates: dict[str, int], why: str) -> None:
    with pytest.raises(MeshError, match=why):
        DeviceMesh("dp=2, tp=4").rank_at(**coordinates)


def test_groups_by_name_set_and_rank_agree() -> None:
    mesh = DeviceMesh("dp=2, cp=2, tp=2")
    assert mesh.group("dp-cp_1") == mesh["dp", "cp"][1] == mesh["dp", "cp"].of(3) == mesh["dp-cp"].of(3)
    assert mesh["world"].array.tolist() == [list(range(8))]
    assert mesh["tp_2"].names == ["tp_2"]
    assert mesh[["cp"]] == mesh["cp"]
    assert mesh.group("world") == Group("world", range(8))


def test_the_order_of_axis_names_is_the_order_inside_the_group() -> None:
    mesh = DeviceMesh("dp=2, cp=2, tp=2")
    assert mesh["dp", "cp"][0].ranks == (0, 2, 4, 6)
    assert mesh["cp", "dp"][0].ranks == (0, 4, 2, 6)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        (
            "ep",
            "unknown axis or group 'ep'; choose one of the axes dp, tp "
            "or of the groups world, dp_0 to dp_3, tp_0 to tp_1, pair",
        ),
        ("tp_2", "unknown group 'tp_2'; choose tp_0 to tp_1"),
        ("dp-tp_1", "unknown group 'dp-tp_1'; choose dp-tp_0"),
        ("tp_01", "unknown axis or group"),
        ("tp_-1", "unknown axis or group"),
        ("", "unknown axis or group"),
    ],
)
def test_an_unknown_group_is_rejected_with_a_list(name: str, why: str) -> None:
    mesh = DeviceMesh("dp=2, tp=4").with_group("pair", [0, 5])
    with pytest.raises(MeshError, match=why):
        mesh.group(name)


def test_unknown_repeated_and_missing_axes_are_rejected() -> None:
    mesh = DeviceMesh("dp=2, tp=4")
    with pytest.raises(MeshError, match="unknown axis or group 'ep'; choose one of the axes dp, tp or of the groups"):
        mesh["ep"]
    with pytest.raises(MeshError, match="unknown axis 'ep'; choose one of dp, tp"):
        mesh["dp", "ep"]
    with pytest.raises(MeshError, match="axes tp, tp repeat an axis; name each axis once"):
        mesh["tp", "tp"]
    with pytest.raises(MeshError, match="axes tp, tp repeat an axis"):
        mesh["tp-tp"]
    with pytest.raises(MeshError, match="no axis given; name at least one of dp, tp"):
        mesh[()]


@pytest.mark.parametrize("axes", [0, None, slice(1, 2), ("tp", 0), (["dp"], ["tp"]), 1.5])
def test_only_names_select_groups(axes: object) -> None:
    with pytest.raises(
        MeshError, match=r"mesh\[...\] accepts axis names, such as mesh\['tp'\] or mesh\['dp', 'cp'\], not"
    ):
        DeviceMesh("dp=2, tp=4")[axes]  # type: ignore[index]


def test_a_mesh_is_not_iterable() -> None:
    mesh = DeviceMesh("dp=2, tp=4")
    with pytest.raises(TypeError, match="not iterable"):
        iter(mesh)  # type: ignore[call-overload]
    with pytest.raises(TypeError):
        "tp" in mesh  # type: ignore[operator]  # noqa: B015


def test_groups_are_computed_once_per_mesh() -> None:
    mesh = DeviceMesh("dp=2, tp=4")
    assert mesh["tp"] is mesh["tp",] is mesh[["tp"]]
    assert mesh["dp", "tp"] is mesh["dp-tp"] is mesh[["dp", "tp"]]


# -- explicit ranks ----------------------------------------------------------------------------------------------------


def test_explicit_ranks_keep_their_order_inside_every_group() -> None:
    mesh = DeviceMesh("dp=2, tp=4", ranks=[0, 1, 3, 2, 4, 5, 7, 6])
    assert mesh.group("tp_0").ranks == (0, 1, 3, 2)
    assert mesh.group("dp_2").ranks == (3, 7)
    assert mesh.coordinates(2) == {"dp": 0, "tp": 3}
    assert mesh.rank_at(dp=1, tp=2) == 7
    assert mesh.coordinate_array[7].tolist() == [1, 2]
    assert mesh["tp"].key.tolist() == [0, 1, 3, 2, 0, 1, 3, 2]
    assert mesh.strides == (4, None)
    assert mesh.world.ranks == tuple(range(8))


def test_idle_ranks_are_named() -> None:
    mesh = DeviceMesh("tp=2, cp=2", ranks=range(4, 8), world_size=10)
    assert mesh.idle_ranks.tolist() == [0, 1, 2, 3, 8, 9]
    assert (mesh.size(), mesh.world_size) == (4, 10)
    assert mesh["tp"].color.tolist() == [-1, -1, -1, -1, 0, 1, 0, 1, -1, -1]
    assert mesh.coordinate_array[0].tolist() == [-1, -1]
    assert mesh.membership()["rank"].tolist() == [4, 5, 6, 7]
    assert mesh.strides == (2, 1)
    with pytest.raises(MeshError, match="rank 8 is idle: this mesh does not use ranks 0, 1, 2, 3, 8, 9"):
        mesh.coordinates(8)
    with pytest.raises(MeshError, match="rank 8 is not in any group of 'tp'"):
        mesh["tp"].of(8)
    with pytest.raises(MeshError, match="rank 10 does not exist; use a rank from 0 to 9"):
        mesh["tp"].of(10)
    with pytest.raises(MeshError, match="group 'pair' contains idle rank 9; use only ranks of the mesh"):
        mesh.with_group("pair", [4, 9])


@pytest.mark.parametrize(
    ("ranks", "world_size", "why"),
    [
        ([0, 1, 2], None, "tp=4 is 4 ranks, but 3 were given"),
        ([0, 1, 2, 2], None, "rank 2 appears 2 times; list every rank once"),
        ([0, 1, 2, 4], None, "rank 4 does not exist; use ranks from 0 to 3, or pass world_size=5"),
        ([0, 1, 2, 4], 4, "rank 4 does not exist; use ranks from 0 to 3$"),
        ([0, 1, 2, -1], None, "rank -1 does not exist; use ranks from 0 to 3$"),
        ([0, 1, 2, 3.0], None, "ranks must be integers, not"),
        ([0, 1, 2, True], None, None),
        ([True, False, True, True], None, "ranks must be integers, not"),
        (["a", "b", "c", "d"], None, "ranks must be integers, not"),
        ([], None, r"ranks must be a list of at least one rank, not \[\]"),
        (3, None, "ranks must be a list of at least one rank, not 3"),
        ([[0, 1], [2]], None, "ranks must be a flat list of integers, or nested lists of equal lengths"),
        (
            [[0, 1], [2, 3]],
            None,
            r"ranks have shape \(2, 2\), but the axes have \(4,\); pass that shape, or a flat list",
        ),
        ([0, 1, 2, 2**70], None, "ranks must be integers, not"),
        ([0, 1, 2, 2**31], 2**24, "does not exist"),
    ],
)
def test_invalid_ranks_are_rejected(ranks: object, world_size: int | None, why: str | None) -> None:
    if why is None:  # numpy reads a lone bool among integers as 0 or 1: so it is a repeated rank here
        why = "rank 1 appears 2 times"
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


def test_custom_groups_may_have_a_backend() -> None:
    plain = DeviceMesh("dp=2, tp=2", backends={"dp": "gloo"})
    mesh = plain.with_group("pair", [3, 0], backend="gloo").with_groups("halves", [[0, 1], [2, 3]], backend="mpi")
    assert dict(mesh.backends) == {"dp": "gloo", "pair": "gloo", "halves_0": "mpi", "halves_1": "mpi"}
    assert [mesh.backend_of(axes) for axes in ("dp", "tp", "pair", "halves", "halves_1", "dp-tp", "dp_1", "world")] == [
        "gloo",
        None,
        "gloo",
        "mpi",
        "mpi",
        None,
        "gloo",
        None,
    ]
    assert repr(mesh) == (
        "DeviceMesh('dp=2, tp=2', backends={'dp': 'gloo'}).with_group('pair', [3, 0], backend='gloo')"
        ".with_groups('halves', [[0, 1], [2, 3]], backend='mpi')"
    )
    assert eval(repr(mesh)) == pickle.loads(pickle.dumps(mesh)) == mesh_from_document(mesh_to_document(mesh)) == mesh
    assert mesh.fingerprint != plain.with_group("pair", [3, 0]).fingerprint
    assert dict(mesh.without_group("pair").rename(dp="rows").backends) == {
        "rows": "gloo",
        "halves_0": "mpi",
        "halves_1": "mpi",
    }
    assert mesh.stats().set_index("axis")["backend"]["pair"] == "gloo"
    assert mesh._repr_html_().count("mpi") == 2
    assert mesh.to("torch").arguments["backend_override"] == {"dp": "gloo"}
    with pytest.raises(MeshError, match="backend of group 'odd' must be a name such as 'nccl', not 'a b'"):
        plain.with_group("odd", [1], backend="a b")


@pytest.mark.parametrize("backends", [{"ep": "nccl"}, {"pp": ""}, {"pp": 3}, {"pp": "a b"}, {"pp": "<b>"}])
def test_invalid_backends_are_rejected(backends: dict[str, str]) -> None:
    with pytest.raises(MeshError, match=r"backend of axis 'pp' must be a name such as 'nccl', not|unknown axis 'ep'"):
        DeviceMesh("pp=2", backends=backends)


def test_an_unknown_backend_of_an_axis_or_a_group_is_answered_with_the_known_ones() -> None:
    with pytest.raises(MeshError) as error:
        DeviceMesh("tp=2", backends={"tp": "banana"})
    assert error.value.message == "unknown backend 'banana' of axis 'tp'"
    assert error.value.hint.startswith("choose one of nccl, mpi, gloo, threads, or for a framework ")
    with pytest.raises(MeshError, match=r"unknown backend 'glo' of axis 'tp' \(did you mean 'gloo'\?\)"):
        DeviceMesh("tp=2", backends={"tp": "glo"})
    with pytest.raises(MeshError, match=r"unknown backend 'cuda' of group 'pair' \(did you mean 'nccl'\?\)"):
        DeviceMesh("tp=2").with_group("pair", [0, 1], backend="cuda")


@pytest.mark.parametrize("backend", ["ucc", "xccl", "cpu:gloo,cuda:nccl"])
def test_a_mesh_may_name_a_backend_that_only_a_framework_has(backend: str) -> None:
    assert DeviceMesh("tp=2", backends={"tp": backend}).to("torch").arguments["backend_override"] == {"tp": backend}


# -- custom groups -----------------------------------------------------------------------------------------------------


def test_the_names_of_all_groups_are_in_the_order_of_their_creation() -> None:
    mesh = DeviceMesh("dp=2, tp=3, one=1").with_group("rail", [5, 0]).with_groups("dcp", [[0, 1], [2, 3]])
    names = mesh.group_names()
    assert names == [name for axes in mesh.creation_order for name in mesh.group_names(axes)]
    assert names[:5] == ["dp_0", "dp_1", "dp_2", "tp_0", "tp_1"]
    assert names[-3:] == ["rail", "dcp_0", "dcp_1"]
    assert [mesh.group(name).name for name in names] == names
    assert mesh.group_names("dp-tp") == mesh.group_names(["dp", "tp"]) == ["dp-tp_0"]
    assert mesh.group_names("dcp") == ["dcp_0", "dcp_1"]
    assert mesh.group_names("world") == ["world"]
    with pytest.raises(MeshError, match="unknown axis or group 'pp'"):
        mesh.group_names("pp")


def test_ranks_by_backend_are_those_of_its_axes_and_groups() -> None:
    mesh = DeviceMesh("pp=2, tp=2", ranks=[5, 3, 1, 0], world_size=6, backends={"pp": "gloo"})
    mesh = mesh.with_group("pair", [3, 0], backend="mpi").with_groups("half", [[5, 3], [1, 0]], backend="mpi")
    assert {name: ranks.tolist() for name, ranks in mesh.ranks_by_backend().items()} == {
        "gloo": [0, 1, 3, 5],
        "mpi": [0, 1, 3, 5],
    }
    assert mesh.without_group("half_1").ranks_by_backend()["mpi"].tolist() == [0, 3, 5]
    assert DeviceMesh("tp=2").ranks_by_backend() == {}
    assert not mesh.ranks_by_backend()["gloo"].flags.writeable


def test_custom_groups_keep_their_order_and_come_last() -> None:
    base = DeviceMesh("dp=2, tp=2")
    mesh = base.with_group("rail1", [3, 1]).with_group("rail0", [2, 0])
    assert mesh.creation_order == ("dp", "tp", "rail1", "rail0")
    assert mesh.group("rail1").ranks == (3, 1)
    assert mesh["rail1"].names == ["rail1"]
    assert base.custom_groups == ()
    assert mesh.without_group("rail1").custom_groups == (mesh.group("rail0"),)
    assert mesh != base
    assert mesh.fingerprint != base.with_group("rail0", [2, 0]).with_group("rail1", [3, 1]).fingerprint
    assert base.with_group("a", [0, 1]).fingerprint != base.with_group("a", [1, 0]).fingerprint


@pytest.mark.parametrize(
    ("name", "ranks", "why"),
    [
        ("world", [0], "group name 'world' is reserved for the group of all ranks"),
        ("dp", [0], "group name 'dp' is taken; choose a different name"),
        ("dp_0", [0], "group name 'dp_0' is taken"),
        ("dp_99", [0], "taken"),
        ("dp_group", [0], "taken"),
        ("pair", [0], "taken"),
        ("dp-tp", [0], "letters, digits"),
        ("new", [], "group 'new' has no ranks; pass at least one"),
        ("new", [0, 4], "rank 4 does not exist; use a rank from 0 to 3"),
        ("new", [-1], "rank -1 does not exist"),
        ("new", [1, 1], "group 'new' contains rank 1 2 times; list it once"),
        ("new", [0.5], "ranks of group 'new' must be a flat list of integers, not"),
        ("new", ["0"], "must be a flat list of integers, not"),
        ("new", [[0, 1]], "must be a flat list of integers, not"),
        ("new", [2**70], "must be a flat list of integers, not"),
    ],
)
def test_invalid_custom_groups_are_rejected(name: str, ranks: list[int], why: str) -> None:
    mesh = DeviceMesh("dp=2, tp=2").with_group("pair", [0, 3])
    with pytest.raises(MeshError, match=why):
        mesh.with_group(name, ranks)


def test_only_custom_groups_can_be_removed() -> None:
    with pytest.raises(MeshError, match="unknown custom group 'dp_0': this mesh has none"):
        DeviceMesh("dp=2").without_group("dp_0")
    with pytest.raises(MeshError, match="unknown custom group 'dp_0'; choose one of pair"):
        DeviceMesh("dp=2").with_group("pair", [0, 1]).without_group("dp_0")


# -- plots -------------------------------------------------------------------------------------------------------------


def test_a_mesh_draws_the_groups_of_its_fastest_axis_by_default() -> None:
    mesh = DeviceMesh("dp=2, tp=4")
    canvas = Figure().add_subplot()
    assert mesh.plot(ax=canvas) is canvas
    assert canvas.get_title(loc="left") == "tp: 2 groups of 4 ranks"
    for axis in ("dp", ("dp", "tp"), "tp_1", "world"):
        drawn, expected = (
            draw(ax=Figure().add_subplot(), columns=8)
            for draw in (partial(mesh.plot, axis), partial(membership, mesh, axis))
        )
        assert drawn.get_title(loc="left") == expected.get_title(loc="left")
        assert np.array_equal(drawn.images[0].get_array(), expected.images[0].get_array())
    with pytest.raises(MeshError, match="unknown axis or group 'ep'"):
        mesh.plot("ep")


# -- identity and display-----------------------------------------------------------------------------------------------

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
def test_the_repr_creates_an_equal_mesh(mesh: DeviceMesh) -> None:
    back = eval(repr(mesh), {"DeviceMesh": DeviceMesh})
    assert back == mesh
    assert back.fingerprint == mesh.fingerprint
    assert repr(back) == repr(mesh)


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("make", [lambda m: pickle.loads(pickle.dumps(m)), copy.copy, copy.deepcopy])
def test_copies_are_equal(mesh: DeviceMesh, make: object) -> None:
    mesh[mesh.axis_names]  # fill the cache, which is not part of the value
    back = make(mesh)  # type: ignore[operator]
    assert back == mesh
    assert hash(back) == hash(mesh)
    assert back.fingerprint == mesh.fingerprint
    assert [g.ranks for g in back.custom_groups] == [g.ranks for g in mesh.custom_groups]


def test_different_meshes_have_different_fingerprints() -> None:
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
    mesh = "DeviceMesh('dp=2, tp=4', backends={'tp': 'nccl', 'dp': 'gloo'}).with_group('pair', [3, 0])"
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


def test_a_mesh_is_immutable() -> None:
    mesh = DeviceMesh("dp=2, tp=4")
    with pytest.raises(AttributeError, match="DeviceMesh is immutable; cannot set 'axes'"):
        mesh.axes = ()
    for array in (mesh.ranks, mesh.coordinate_array, mesh.idle_ranks, mesh["dp"].array):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 1


def test_the_ranks_of_the_caller_are_copied() -> None:
    ranks = np.array([1, 0], dtype=np.int32)
    mesh = DeviceMesh("tp=2", ranks=ranks)
    ranks[:] = 5
    assert mesh.ranks.tolist() == [1, 0]


def test_a_long_list_of_ranks_is_abbreviated() -> None:
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
        "custom group",
    ):
        assert text in html
    assert "idle" not in html
    assert "idle: rank 2" in DeviceMesh("tp=2", ranks=[0, 1], world_size=3)._repr_html_()


def test_the_html_is_escaped() -> None:
    mesh = DeviceMesh("tp=2")
    mesh.__dict__["backends"] = {"tp": "<script>alert(1)</script>"}  # the constructor would reject it
    assert "<script>" not in mesh._repr_html_()


def test_importing_the_mesh_imports_nothing_heavy() -> None:
    script = "import sys, meshlab.mesh; print([m for m in ('pandas', 'matplotlib', 'ipywidgets') if m in sys.modules])"
    path = ":".join(path or "." for path in sys.path)
    done = subprocess.run(
        [sys.executable, "-c", script], env={"PYTHONPATH": path}, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
