from __future__ import annotations

import subprocess
import sys
import threading

import numpy as np
import pytest
from ipywidgets.widgets.widget import _instances

import meshlab as ml
from meshlab.errors import MeshError, TopologyError
from meshlab.mesh.mesh import DeviceMesh
from meshlab.widgets.designer import Designer


def two_hosts() -> ml.Cluster:
    return ml.preset("dgx-h100", nodes=2)


def rows(designer: Designer) -> list[tuple[str, int]]:
    return list(designer._rows.pairs)


def press(designer: Designer, text: str, index: int = 0) -> None:
    """Click a button like the front end."""
    found: list = []

    def search(widget) -> None:
        if getattr(widget, "description", None) == text and hasattr(widget, "click"):
            found.append(widget)
        for child in getattr(widget, "children", ()):
            search(child)

    search(designer)
    assert not found[index].disabled
    found[index].click()


def type_size(designer: Designer, axis: int, size: int) -> None:
    designer._rows._rows[axis].size.value = size


def type_name(designer: Designer, axis: int, name: str) -> None:
    designer._rows._rows[axis].name.value = name


def sentence(designer: Designer) -> str:
    return designer._sentence.value


def test_it_works_without_a_cluster():
    designer = Designer()
    assert designer.mesh == DeviceMesh("dp=2, tp=4")
    assert designer.picture.mesh == designer.mesh
    assert "2 × 4 = 8 ranks · tp is the fastest axis" in sentence(designer)


def test_a_typed_size_changes_the_mesh_and_notifies_observers():
    designer = Designer(mesh="dp=2, tp=4")
    notified = []
    designer.observe(lambda change: notified.append(change.new), "mesh")
    type_size(designer, 0, 4)
    assert designer.mesh == designer.picture.mesh == DeviceMesh("dp=4, tp=4")
    assert notified == [DeviceMesh("dp=4, tp=4")]


def test_invalid_sizes_keep_the_last_mesh_and_offer_valid_ones():
    designer = Designer(mesh="dp=2, tp=4", world_size=8)
    type_size(designer, 1, 3)
    assert designer.mesh == designer.picture.mesh == DeviceMesh("dp=2, tp=4")
    assert rows(designer) == [("dp", 2), ("tp", 3)]
    assert "dp=2 × tp=3 is 6 ranks, but 8 were given; tp=3 does not divide 8; nearest: dp=2, tp=4" in sentence(designer)
    assert "The picture still shows dp=2, tp=4" in sentence(designer)
    press(designer, "Use dp=4, tp=2")
    assert designer.mesh == DeviceMesh("dp=4, tp=2")
    assert "Invalid mesh" not in sentence(designer)
    assert designer._suggestions.children == ()


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda d: type_size(d, 0, 0), "must be at least 1, not 0"),
        (lambda d: type_name(d, 0, "tp"), "appears 2 times"),
        (lambda d: type_name(d, 0, "<b>"), "invalid axis name &#x27;&lt;b&gt;&#x27;"),
        (lambda d: type_name(d, 0, ""), "invalid axis name"),
        (lambda d: type_size(d, 0, 1 << 30), "must be at most 16,777,216"),
    ],
)
def test_an_invalid_edit_is_explained_and_does_not_raise(edit, message):
    designer = Designer(mesh="dp=2, tp=4")
    edit(designer)
    assert "Invalid mesh:" in sentence(designer)
    assert message in sentence(designer)
    assert designer.mesh == DeviceMesh("dp=2, tp=4")


def test_a_size_of_minus_one_is_filled():
    designer = Designer(mesh="dp=2, tp=4", world_size=8)
    type_size(designer, 1, 3)
    type_size(designer, 1, 2)
    type_size(designer, 0, -1)
    assert designer.mesh == DeviceMesh("dp=4, tp=2")
    assert rows(designer) == [("dp", 4), ("tp", 2)]


def test_axes_can_be_moved_added_removed_and_renamed():
    designer = Designer(mesh="pp=2, dp=3, tp=4")
    press(designer, "Down", 0)
    assert str(designer.mesh) == "dp=3, pp=2, tp=4"
    press(designer, "Up", 2)
    assert str(designer.mesh) == "dp=3, tp=4, pp=2"
    press(designer, "Remove", 1)
    assert str(designer.mesh) == "dp=3, pp=2"
    press(designer, "Add axis")
    assert str(designer.mesh) == "dp=3, pp=2, dp_replicate=1"
    type_name(designer, 2, "rows")
    assert str(designer.mesh) == "dp=3, pp=2, rows=1"
    assert rows(designer) == [("dp", 3), ("pp", 2), ("rows", 1)]


def test_the_only_axis_cannot_be_removed_and_the_outer_axes_cannot_move_further():
    designer = Designer(mesh="dp=3")
    (row,) = designer._rows._rows
    assert row.up.disabled
    assert row.down.disabled
    assert row.remove.disabled
    press(designer, "Add axis")
    assert [r.up.disabled for r in designer._rows._rows] == [True, False]
    assert [r.down.disabled for r in designer._rows._rows] == [False, True]
    assert not row.remove.disabled


def test_undo_and_redo_step_through_every_mesh():
    designer = Designer(mesh="dp=2")
    for size in (3, 4):
        type_size(designer, 0, size)
    designer.mesh = "tp=8"
    seen = []
    for _ in range(4):
        press(designer, "Undo") if not designer._undo.disabled else None
        seen.append(str(designer.mesh))
    assert seen == ["dp=4", "dp=3", "dp=2", "dp=2"]
    assert designer._undo.disabled
    press(designer, "Redo")
    press(designer, "Redo")
    assert str(designer.mesh) == "dp=4"
    assert rows(designer) == [("dp", 4)]
    type_size(designer, 0, 5)
    assert designer._redo.disabled
    designer.redo()
    assert str(designer.mesh) == "dp=5"


def test_undo_discards_an_invalid_edit_before_it_undoes_a_mesh():
    designer = Designer(mesh="dp=2, tp=4", world_size=8)
    designer.mesh = "dp=4, tp=2"
    type_size(designer, 0, 3)
    designer.undo()
    assert rows(designer) == [("dp", 4), ("tp", 2)]
    assert "Invalid mesh" not in sentence(designer)
    designer.undo()
    assert str(designer.mesh) == "dp=2, tp=4"


def test_the_mesh_can_be_set_from_code_and_invalid_ones_raise():
    designer = Designer(mesh="dp=2, tp=4", world_size=8)
    designer.mesh = DeviceMesh("pp=2, tp=4")
    assert rows(designer) == [("pp", 2), ("tp", 4)]
    for wrong, message in ((DeviceMesh(dp=4), "but 8 were given"), ("dp=3", "but 8 were given"), (8, "not int")):
        with pytest.raises(MeshError, match=message):
            designer.mesh = wrong
    assert designer.mesh == DeviceMesh("pp=2, tp=4")
    with pytest.raises(MeshError, match="but 8 were given"):
        Designer(mesh="dp=3", world_size=8)


def test_the_colour_axis_is_kept_while_the_mesh_has_it():
    designer = Designer(mesh="pp=2, dp=3, tp=4")
    designer.axis = "dp"
    assert designer.picture.axis == "dp"
    press(designer, "Down", 0)
    assert designer.axis == "dp"
    designer.mesh = "pp=2, tp=4"
    assert designer.axis == "tp"
    with pytest.raises(MeshError, match="unknown axis 'dp'; choose one of pp, tp"):
        designer.axis = "dp"


def test_custom_groups_are_kept_while_their_ranks_exist_and_can_be_shown():
    designer = Designer(mesh=DeviceMesh("dp=2, tp=4").with_group("pair", [6, 1]))
    assert designer.picture._view["options"] == ["dp", "tp", "pair"]
    designer.axis = "pair"
    press(designer, "Down", 0)
    assert designer.mesh.group("pair").ranks == (6, 1)
    assert designer.axis == "pair"
    assert eval(designer.code, {"DeviceMesh": DeviceMesh}) == designer.mesh
    type_size(designer, 0, 1)
    assert designer.mesh == DeviceMesh("tp=1, dp=2")


def test_the_selection_is_the_same_as_that_of_the_picture():
    designer = Designer(mesh="dp=2, tp=4")
    designer.selected = [6, 1]
    assert designer.picture.selected == (1, 6)
    designer.picture.set_state({"selected": np.array([2, 7], dtype="<i4").tobytes()})
    assert designer.selected == (2, 7)
    type_size(designer, 0, 1)
    assert designer.selected == designer.picture.selected == (2,)
    with pytest.raises(MeshError, match="rank 4 does not exist; select ranks from 0 to 3"):
        designer.selected = [4]


def test_the_code_is_shown_on_demand_and_cannot_be_changed():
    designer = Designer(mesh="dp=2, tp=4")
    assert designer._code.layout.display == "none"
    press(designer, "Show code")
    assert designer._code.layout.display is None
    assert designer._code.value == 'DeviceMesh("dp=2, tp=4")'
    designer._code.value = "something else"
    assert designer._code.value == 'DeviceMesh("dp=2, tp=4")'
    type_size(designer, 0, 4)
    assert designer._code.value == 'DeviceMesh("dp=4, tp=4")'
    press(designer, "Hide code")
    assert designer._code.layout.display == "none"


def test_a_cluster_defines_the_number_of_ranks_and_is_drawn():
    designer = Designer(two_hosts())
    assert designer.mesh == DeviceMesh("dp=2, tp=8")
    assert "2 × 8 = 16 of 16 devices" in sentence(designer)
    assert designer.picture.placement is not None
    assert designer.picture._loads["axis"] == "tp"
    type_size(designer, 0, 4)
    assert "but 16 were given" in sentence(designer)


def test_a_cluster_may_have_idle_devices_unequal_nodes_or_none_at_all():
    partly = Designer(two_hosts(), world_size=12)
    assert "12 of 16 devices" in sentence(partly)
    assert (np.frombuffer(partly.picture._view["group_of"], "<i4")[12:] == -1).all()
    assert Designer(two_hosts().without_device(3)).mesh == DeviceMesh("dp=15, tp=1")
    assert Designer(ml.Cluster.from_nodes([ml.topology.Node("cpu")])).mesh == DeviceMesh("dp=2, tp=4")
    with pytest.raises(MeshError, match="world_size=17 exceeds the 16 devices of the cluster; choose at most 16"):
        Designer(two_hosts(), world_size=17)


def test_an_exported_notebook_has_the_picture():
    data = Designer(mesh="dp=2, tp=4")._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in data
    assert "<svg" in data["text/html"]
    assert "mesh: dp=2, tp=4" in data["text/html"]
    assert data["text/plain"] == "Designer(DeviceMesh('dp=2, tp=4'))"


def test_every_control_has_a_visible_label():
    designer = Designer(mesh="dp=2, tp=4", world_size=8)
    type_size(designer, 0, 3)
    controls: list = []

    def search(widget) -> None:
        children = getattr(widget, "children", ())
        for child in children:
            search(child)
        if not children and hasattr(widget, "description") and widget is not designer._sentence:
            controls.append(widget)

    search(designer)
    assert len(controls) > 15
    assert all(control.description for control in controls)


def test_edits_from_several_threads_leave_a_consistent_state():
    designer = Designer(mesh="dp=4, tp=4")
    faults: list[BaseException] = []

    def work(act) -> None:
        try:
            for turn in range(15):
                act(turn)
        except BaseException as fault:
            faults.append(fault)

    lasso = np.arange(8, dtype="<i4").tobytes()
    acts = [
        lambda turn: setattr(designer, "mesh", f"dp={turn % 3 + 4}, tp=4"),
        lambda turn: type_size(designer, 0, turn % 5 + 3),
        lambda turn: designer.picture.set_state({"selected": lasso}),
        lambda turn: (designer.undo(), designer.redo()),
        lambda turn: setattr(designer, "axis", ("dp", "tp")[turn % 2]),
    ]
    threads = [threading.Thread(target=work, args=(act,)) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    assert not faults
    designer.undo()
    assert designer.picture.mesh == designer.mesh
    assert rows(designer) == [(axis.name, axis.size) for axis in designer.mesh.axes]
    assert designer.selected == designer.picture.selected


def test_importing_the_widgets_does_not_import_pyplot_or_pandas():
    heavy = ("matplotlib.pyplot", "matplotlib", "pandas")
    code = f"import sys, meshlab.widgets; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_mesh_in_the_place_of_the_cluster_is_rejected() -> None:
    with pytest.raises(TopologyError, match="cluster must be a Cluster, not a DeviceMesh; pass the mesh as mesh="):
        Designer(DeviceMesh("dp=2, tp=2"))  # type: ignore[arg-type]


def test_a_thousand_changes_create_no_widgets():
    designer = Designer(mesh="pp=2, dp=2, tp=4", world_size=16)
    type_size(designer, 0, 3)  # an invalid mesh shows suggestions
    models = len(_instances)
    for turn in range(250):
        designer.mesh = "dp=4, tp=4"
        type_size(designer, turn % 2, 3)
        press(designer, "Use dp=4, tp=4")
        designer.mesh = "pp=2, dp=2, tp=4"
    assert len(_instances) == models
