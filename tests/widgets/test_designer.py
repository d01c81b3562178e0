"""The designer: a workbench with the panel of the mesh only, with or without a machine."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import meshlab as ml
from meshlab.base._errors import MeshError, TopologyError
from meshlab.mesh._mesh import DeviceMesh
from meshlab.widgets._designer import Designer


def two_hosts() -> ml.Cluster:
    return ml.preset("dgx-h100", nodes=2)


def do(designer: Designer, action: str, **content: Any) -> None:
    """An edit by hand."""
    designer._handle_custom_msg({"type": "edit", "edit": designer._edit + 1, "action": action, **content}, [])


def problem(designer: Designer) -> dict[str, Any]:
    return next(iter(designer._panel["problems"]), None)


def total(designer: Designer) -> str:
    return designer._panel["mesh"]["sum"]


def test_it_works_without_a_cluster():
    designer = Designer()
    assert designer.mesh == DeviceMesh("dp=2, tp=4")
    assert total(designer) == "2 × 4 = 8 ranks"
    assert designer._panel["machine"] is None
    assert designer.panels == ("mesh",)
    assert repr(designer) == "Designer(DeviceMesh('dp=2, tp=4'))"


def test_without_a_number_of_ranks_a_typed_size_changes_it():
    designer = Designer(mesh="dp=2, tp=4")
    notified = []
    designer.observe(lambda change: notified.append(change.new), "mesh")
    do(designer, "size", axis="dp", value="4")
    assert designer.mesh == designer.picture.mesh == DeviceMesh("dp=4, tp=4")
    assert notified == [DeviceMesh("dp=4, tp=4")]
    do(designer, "step", axis="tp", by=1)
    assert designer.mesh == DeviceMesh("dp=2, tp=8")
    do(designer, "remove_axis", axis="dp")
    assert designer.mesh == DeviceMesh("tp=8")
    do(designer, "remove_axis", axis="tp")
    assert "a mesh has at least one axis" in problem(designer)["text"]


@pytest.mark.parametrize(
    ("action", "content", "message"),
    [
        ("size", {"value": "0"}, "the size of dp must be at least 1, not 0"),
        ("rename", {"value": "tp"}, "appears 2 times"),
        ("rename", {"value": "<b>"}, "invalid axis name '<b>'"),
        ("rename", {"value": ""}, "invalid axis name"),
        ("size", {"value": str(1 << 30)}, "must be at most 16,777,216"),
    ],
)
def test_an_invalid_edit_is_explained_and_does_not_raise(action, content, message):
    designer = Designer(mesh="dp=2, tp=4")
    do(designer, action, axis="dp", **content)
    assert message in problem(designer)["text"]
    assert designer.mesh == DeviceMesh("dp=2, tp=4")


def test_a_number_of_ranks_is_kept():
    designer = Designer(mesh="dp=2, tp=4", world_size=8)
    do(designer, "size", axis="tp", value="2")
    assert designer.mesh == DeviceMesh("dp=4, tp=2")
    do(designer, "size", axis="tp", value="3")
    assert problem(designer)["text"] == "tp=3 does not divide 8"
    assert [label for label, _ in problem(designer)["options"]] == ["dp=2, tp=4", "dp=1, tp=8", "dp=8, tp=1"]
    do(designer, **problem(designer)["options"][0][1])
    assert designer.mesh == DeviceMesh("dp=2, tp=4")
    do(designer, "paste", text="dp=-1, tp=2")
    assert designer.mesh == DeviceMesh("dp=4, tp=2")


def test_undo_and_redo_step_through_every_mesh():
    designer = Designer(mesh="dp=2")
    for size in "34":
        do(designer, "size", axis="dp", value=size)
    designer.mesh = "tp=8"
    seen = []
    for _ in range(4):
        do(designer, "undo")
        seen.append(str(designer.mesh))
    assert seen == ["dp=4", "dp=3", "dp=2", "dp=2"]
    assert not designer._panel["undo"]
    designer.redo()
    designer.redo()
    assert str(designer.mesh) == "dp=4"
    do(designer, "size", axis="dp", value="5")
    assert not designer._panel["redo"]
    designer.redo()
    assert str(designer.mesh) == "dp=5"


def test_the_mesh_can_be_set_from_code_and_invalid_ones_raise():
    designer = Designer(mesh="dp=2, tp=4", world_size=8)
    designer.mesh = DeviceMesh("pp=2, tp=4")
    assert designer.code == 'DeviceMesh("pp=2, tp=4")'
    for wrong, message in ((DeviceMesh(dp=4), "but 8 were given"), ("dp=3", "but 8 were given"), (8, "not int")):
        with pytest.raises(MeshError, match=message):
            designer.mesh = wrong
    assert designer.mesh == DeviceMesh("pp=2, tp=4")
    with pytest.raises(MeshError, match="but 8 were given"):
        Designer(mesh="dp=3", world_size=8)


def test_the_colour_axis_is_kept_while_the_mesh_has_it():
    designer = Designer(mesh="pp=2, dp=3, tp=4")
    designer.axis = "dp"
    do(designer, "move", axis="pp", to=1)
    assert designer.axis == "dp"
    designer.mesh = "pp=2, tp=4"
    assert designer.axis == "tp"
    with pytest.raises(MeshError, match="unknown axis 'dp'; choose one of pp, tp"):
        designer.axis = "dp"


def test_custom_groups_are_kept_while_their_ranks_exist_and_can_be_shown():
    designer = Designer(mesh=DeviceMesh("dp=2, tp=4").with_group("pair", [6, 1]))
    assert designer.picture._view["options"] == ["dp", "tp", "pair"]
    designer.axis = "pair"
    do(designer, "move", axis="dp", to=1)
    assert designer.mesh.group("pair").ranks == (6, 1)
    assert designer.axis == "pair"
    assert eval(designer.code, {"DeviceMesh": DeviceMesh}) == designer.mesh
    do(designer, "size", axis="dp", value="1")
    assert designer.mesh == DeviceMesh("tp=4, dp=1")


def test_the_selection_is_that_of_the_picture():
    designer = Designer(mesh="dp=2, tp=4")
    designer.selected = [6, 1]
    assert designer.picture.selected == (1, 6)
    designer.set_state({"selected": np.array([2, 7], dtype="<i4").tobytes()})
    assert designer.selected == (2, 7)
    do(designer, "size", axis="dp", value="1")
    assert designer.selected == (2,)
    with pytest.raises(MeshError, match="rank 4 does not exist; select ranks from 0 to 3"):
        designer.selected = [4]


def test_a_cluster_defines_the_number_of_ranks_and_is_drawn():
    designer = Designer(two_hosts())
    assert designer.mesh == DeviceMesh("dp=2, tp=8")
    assert total(designer) == "2 × 8 = 16 of 16 GPUs"
    assert designer.picture.placement is not None
    assert designer.picture._loads["axis"] == "tp"
    do(designer, "size", axis="tp", value="4")
    assert designer.mesh == DeviceMesh("dp=4, tp=4")


def test_a_cluster_may_have_idle_devices_unequal_nodes_or_none_at_all():
    partly = Designer(two_hosts(), world_size=12)
    assert "12 of 16 GPUs" in total(partly)
    assert (np.frombuffer(partly.picture._view["group_of"], "<i4")[12:] == -1).all()
    assert Designer(two_hosts().without_device(3)).mesh == DeviceMesh("dp=15, tp=1")
    assert Designer(ml.Cluster.from_nodes([ml.topology.Node("cpu")])).mesh == DeviceMesh("dp=2, tp=4")
    with pytest.raises(MeshError, match="world_size=17 exceeds the 16 devices of the cluster; choose at most 16"):
        Designer(two_hosts(), world_size=17)


def test_an_exported_notebook_has_the_picture():
    data = Designer(mesh="dp=2, tp=4")._repr_mimebundle_()[0]
    assert "application/vnd.jupyter.widget-view+json" in data
    assert "<svg" in data["text/html"]
    assert "mesh: dp=2, tp=4" in data["text/html"]
    assert data["text/plain"] == "Designer(DeviceMesh('dp=2, tp=4'))"


def test_importing_the_widgets_does_not_import_pyplot_or_pandas():
    heavy = ("matplotlib.pyplot", "matplotlib", "pandas")
    code = f"import sys, meshlab.widgets; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_mesh_in_the_place_of_the_cluster_is_rejected() -> None:
    with pytest.raises(TopologyError, match="cluster must be a Cluster, not a DeviceMesh; pass the mesh as mesh="):
        Designer(DeviceMesh("dp=2, tp=2"))  # type: ignore[arg-type]
