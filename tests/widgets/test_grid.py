from __future__ import annotations

import base64
import io
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from meshlab.errors import MeshError
from meshlab.mesh.mesh import DeviceMesh
from meshlab.plots.style import PALETTE
from meshlab.widgets.grid import Grid, grid_columns

MESHES = st.lists(st.integers(1, 9), min_size=1, max_size=4).map(
    lambda sizes: DeviceMesh([(f"axis{index}", size) for index, size in enumerate(sizes)])
)


def messages(widget, monkeypatch) -> list[set[str]]:
    """Record the names of the traits in each message that the widget sends from now on."""
    sent: list[set[str]] = []

    def note(message: dict, buffers: object = None) -> None:
        sent.append({*message["state"], *(path[0] for path in message["buffer_paths"])})

    monkeypatch.setattr(widget, "_send", note)
    return sent


def picture(bundle: dict[str, str]) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(bundle["image/png"]))).convert("RGBA"))


@settings(deadline=None, max_examples=40)
@given(MESHES, st.data())
def test_group_indices_are_sent_as_int32_in_rank_order(mesh, data):
    axis = data.draw(st.sampled_from(mesh.axis_names))
    sent = np.frombuffer(Grid(mesh, axis)._groups, dtype="<i4")
    assert sent.tolist() == [mesh[axis].of(rank).index for rank in range(mesh.world_size)]


@settings(deadline=None, max_examples=40)
@given(MESHES)
def test_coordinates_are_sent_axis_by_axis_in_the_smallest_dtype(mesh):
    grid = Grid(mesh)
    assert grid._shape["fields"] == list(mesh.axis_names)
    sent = np.frombuffer(grid._coordinates, dtype=np.uint8).reshape(len(mesh.axes), mesh.world_size)
    assert [dict(zip(mesh.axis_names, column, strict=True)) for column in sent.T.tolist()] == [
        mesh.coordinates(rank) for rank in range(mesh.world_size)
    ]


@pytest.mark.parametrize(("size", "dtype"), [(256, "u1"), (257, "<u2"), (65_537, "<u4")])
def test_larger_coordinates_need_more_bytes(size, dtype):
    sent = np.frombuffer(Grid(DeviceMesh(dp=size))._coordinates, dtype=dtype)
    assert sent.tolist() == list(range(size))


def test_no_trait_has_an_object_per_rank():
    state = Grid(DeviceMesh("dp=2048, tp=8")).get_state()
    counts = {name: len(value) for name, value in state.items() if isinstance(value, (list, tuple, dict))}
    assert max(counts.values()) < 20
    assert all(len(value) < 20 for value in state["_shape"].values() if isinstance(value, list))


def test_ranks_outside_a_custom_group_have_the_index_minus_one():
    grid = Grid(DeviceMesh("dp=2, tp=2").with_group("pair", [3, 0]), "pair")
    assert np.frombuffer(grid._groups, dtype="<i4").tolist() == [0, -1, -1, 0]


def test_a_selection_is_ascending_and_without_duplicates():
    grid = Grid(DeviceMesh(dp=8))
    grid.selected = np.array([5, 1, 5])
    assert grid.selected == (1, 5)
    assert np.frombuffer(grid.get_state("selected")["selected"], dtype="<i4").tolist() == [1, 5]


@pytest.mark.parametrize(
    ("ranks", "message"),
    [([8], "rank 8 does not exist; select ranks from 0 to 7"), ([-1], "rank -1"), (["0"], "sequence of integers")],
)
def test_an_invalid_selection_is_rejected_and_the_old_one_is_kept(ranks, message):
    grid = Grid(DeviceMesh(dp=8))
    grid.selected = [2]
    with pytest.raises(MeshError, match=message):
        grid.selected = ranks
    assert grid.selected == (2,)


def test_a_selection_in_the_front_end_notifies_python():
    grid = Grid(DeviceMesh(dp=8))
    notified = []
    grid.observe(lambda change: notified.append(change.new), "selected")
    grid.set_state({"selected": memoryview(np.array([3, 7], dtype="<i4").tobytes())})
    assert notified == [(3, 7)]


def test_a_lasso_that_arrives_after_a_smaller_mesh_drops_missing_ranks():
    grid = Grid(DeviceMesh(dp=8))
    grid.show(DeviceMesh(dp=4))
    grid.set_state({"selected": np.array([1, 7], dtype="<i4").tobytes()})
    assert grid.selected == (1,)


def test_a_smaller_mesh_deselects_missing_ranks():
    grid = Grid(DeviceMesh(dp=8))
    grid.selected = [1, 7]
    grid.show(DeviceMesh(dp=4))
    assert grid.selected == (1,)


def test_a_different_mesh_is_sent_in_one_message(monkeypatch):
    grid = Grid(DeviceMesh(dp=8))
    grid.selected = [7]
    sent = messages(grid, monkeypatch)
    grid.show(DeviceMesh("dp=2, tp=2"), "dp")
    assert sent == [{"_groups", "_coordinates", "_shape", "selected"}]


def test_a_different_colour_does_not_send_the_coordinates_again(monkeypatch):
    grid = Grid(DeviceMesh("dp=2, tp=2"), "tp")
    sent = messages(grid, monkeypatch)
    grid.show(grid.mesh, "dp")
    assert sent == [{"_groups", "_shape"}]


def test_invalid_arguments_are_rejected():
    mesh = DeviceMesh(dp=8)
    with pytest.raises(MeshError, match="unknown axis or group 'tp'"):
        Grid(mesh, "tp")
    with pytest.raises(MeshError, match="columns must be at least 1, not 0; omit it"):
        Grid(mesh, columns=0)
    with pytest.raises(MeshError, match="block must not be negative, not -1; pass 0"):
        Grid(mesh, block=-1)
    with pytest.raises(
        MeshError, match=r"places\['node'\] must be 8 non-negative integers, one per rank, not int64 of shape \(2,\)"
    ):
        Grid(mesh, places={"node": [0, 1]})
    with pytest.raises(MeshError, match=r"places\['node'\] must be"):
        Grid(mesh, places={"node": [-1] * 8})


@settings(deadline=None, max_examples=200)
@given(st.lists(st.integers(1, 100), min_size=1, max_size=3), st.integers(0, 16))
def test_rows_have_complete_blocks_and_the_grid_is_never_very_narrow(sizes, block):
    mesh = DeviceMesh([(f"axis{index}", size) for index, size in enumerate(sizes)])
    columns = grid_columns(mesh, block)
    rows = -(-mesh.world_size // columns)
    assert block == 0 or columns % block == 0
    assert columns <= max(16, block, 2 * np.sqrt(mesh.world_size))
    assert rows <= 8 * columns + 1


def test_the_static_image_has_a_square_per_rank_in_the_colour_of_its_group():
    data, _ = Grid(DeviceMesh("dp=2, tp=4"), "tp")._repr_mimebundle_()
    pixels = picture(data)
    assert pixels.shape == (48, 96, 4)
    for rank in range(8):
        expected = [*bytes.fromhex(PALETTE[rank // 4][1:]), 255]
        assert pixels[24 * (rank // 4) + 5, 24 * (rank % 4) + 5].tolist() == expected
    assert pixels[5, 23, 3] == 0  # the line between two cells


def test_a_short_last_row_and_ranks_without_a_group_look_different_in_the_image():
    mesh = DeviceMesh(dp=5).with_group("odd", [1, 3])
    data, _ = Grid(mesh, "odd", columns=3)._repr_mimebundle_()
    alpha = picture(data)[5::24, 5::24, 3]
    assert alpha.tolist() == [[64, 255, 64], [255, 64, 0]]


def test_an_exported_notebook_has_an_image_and_a_caption_in_addition_to_the_widget():
    data, _ = Grid(DeviceMesh("dp=2, tp=4"), "tp")._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in data
    assert data["text/plain"] == "Grid(DeviceMesh('dp=2, tp=4'), 'tp')"
    assert "dp=2, tp=4 · 8 ranks, coloured by tp: 2 groups of 4" in data["text/html"]
    assert "data:image/png;base64," in data["text/html"]


def test_threads_that_show_and_select_simultaneously_leave_a_consistent_state():
    small, large = DeviceMesh(dp=64), DeviceMesh("dp=64, tp=8")
    grid = Grid(large)
    faults: list[BaseException] = []

    def work(act) -> None:
        try:
            for turn in range(40):
                act(turn)
        except BaseException as fault:
            faults.append(fault)

    acts = [
        lambda turn: grid.show(small if turn % 2 else large),
        lambda turn: grid.set_state({"selected": np.arange(turn, 400, dtype="<i4").tobytes()}),
        lambda turn: setattr(grid, "selected", [turn]),
        lambda turn: grid._repr_mimebundle_(),
    ]
    threads = [threading.Thread(target=work, args=(act,)) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert not faults
    grid.show(small)
    assert all(rank < 64 for rank in grid.selected)
    assert len(grid._groups) == 64 * 4
