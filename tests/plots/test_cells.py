"""The membership figure: colours, numbers and names of the cells."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

import meshlab as ml
from meshlab.base._errors import MeshError
from meshlab.mesh._mesh import DeviceMesh
from meshlab.plots._cell_texts import CellTexts
from meshlab.plots._cells import CellGrid, _runs
from meshlab.plots._style import ON_DARK, ON_LIGHT, figure_png, figure_svg, group_colors
from tests.examples import examples

sizes = st.lists(st.integers(1, 5), min_size=1, max_size=3)


def drawn(mesh, axis, **options):
    figsize, rect = CellGrid.of(mesh).figure_box()
    return ml.plot.membership(mesh, axis, ax=Figure(figsize).add_axes(rect), **options)


def cell_texts(ax):
    return [text for artist in ax.artists if isinstance(artist, CellTexts) for text in artist.texts]


def texts(ax):
    return [text.text for text in cell_texts(ax)]


@given(sizes=sizes, data=st.data())
@settings(deadline=None, max_examples=examples(25))
def test_cell_of_every_rank_has_the_colour_of_its_group(sizes, data):
    mesh = DeviceMesh([(f"a{index}", size) for index, size in enumerate(sizes)])
    axis = data.draw(st.sampled_from(mesh.axis_names))
    pixels = np.asarray(drawn(mesh, axis).images[0].get_array()).reshape(-1, 4)
    for number, group in enumerate(mesh[axis]):
        for rank in group:
            assert pixels[rank, :3] / 255 == pytest.approx(group_colors(number + 1)[number])


@given(sizes=sizes)
@settings(deadline=None, max_examples=examples(25))
def test_rows_are_named_by_the_coordinates_of_their_ranks(sizes):
    mesh = DeviceMesh([(f"a{index}", size) for index, size in enumerate(sizes)])
    grid = CellGrid.of(mesh)
    assert grid.columns * grid.rows == mesh.world_size
    for row, name in enumerate(grid.row_names(range(grid.rows))):
        ranks = range(row * grid.columns, (row + 1) * grid.columns)
        parts = [part.split(" ") for part in name.split(" · ") if part and not part.startswith("rank")]
        for axis, span in parts:
            first, _, last = span.partition("–")
            found = {mesh.coordinates(rank)[axis] for rank in ranks}
            assert (min(found), max(found)) == (int(first), int(last or first))


def test_title_has_axis_groups_and_sizes():
    mesh = DeviceMesh("dp=8, tp=4")
    assert drawn(mesh, "tp").get_title(loc="left") == "tp: 8 groups of 4 ranks"
    assert drawn(mesh, ("dp", "tp")).get_title(loc="left") == "dp-tp: 1 group of 32 ranks"
    assert drawn(mesh, "tp_3").get_title(loc="left") == "tp_3: 1 group of 4 ranks\n28 ranks in no group"


def test_cells_of_small_meshes_contain_group_and_rank():
    ax = drawn(DeviceMesh("dp=2, tp=4"), "tp")
    assert texts(ax) == [text for rank in range(8) for text in (f"tp_{rank // 4}", f"rank {rank}")]
    assert {text.text[:4] for text in cell_texts(ax) if text.is_bold} == {"rank"}


def test_texts_are_centred_in_their_cells_and_have_the_same_ink_on_every_page():
    ax = drawn(DeviceMesh("dp=2, tp=4"), "tp")
    pattern = r'text-anchor: middle; fill: (#\w{6})" x="([\d.]+)" y="([\d.]+)"[^>]*>rank (\d)<'
    found = re.findall(pattern, figure_svg(ax.figure))
    assert len(found) == 8  # no light-dark(): the colour of a cell does not follow the theme
    height = ax.figure.get_size_inches()[1] * 72
    for ink, x, y, rank in found:
        row, column = divmod(int(rank), 4)
        left, middle = ax.transData.transform((column, row)) * 72 / ax.figure.dpi
        assert float(x) == pytest.approx(left, abs=0.5)
        assert 0 < height - middle - float(y) < 12  # above the middle, because the name of the group is below it
        assert ink == (ON_DARK if row == 0 else ON_LIGHT)


def test_columns_have_the_coordinates_of_their_ranks():
    ax = drawn(DeviceMesh("pp=8, dp=16, tp=8"), "dp")
    assert [label.get_text() for label in ax.get_xticklabels()] == ["dp +0", "dp +1", "dp +2", "dp +3"]
    assert ax.get_xlabel().startswith("each with tp 0–7")
    assert ax.get_yticklabels()[1].get_text() == "pp 0 · dp 4–7 · rank 32"


def test_every_group_of_1024_ranks_is_numbered():
    mesh = DeviceMesh("pp=4, dp=32, tp=8")
    for axis in mesh.axis_names:
        assert {int(text) for text in texts(drawn(mesh, axis))} == set(range(len(mesh[axis])))


def test_16384_ranks_are_one_image_and_few_artists():
    ax = drawn(DeviceMesh("pp=8, dp=256, tp=8"), "dp")
    assert len(ax.images) == 1
    assert len(ax.get_children()) < 30


def test_lines_separate_neighbours_of_different_groups():
    segments = drawn(DeviceMesh("dp=64, tp=32"), "tp", columns=32).collections[-1].get_segments()
    assert [segment.tolist() for segment in segments] == [[[-0.5, y + 0.5], [31.5, y + 0.5]] for y in range(63)]


def test_ranks_in_no_group_are_hatched_and_numbered():
    ax = drawn(DeviceMesh("dp=2, tp=2").with_group("pair", [3, 0]), "pair")
    assert [patch.get_hatch() for patch in ax.patches] == ["////"]
    assert texts(ax) == ["pair", "rank 0", "rank 1", "rank 2", "pair", "rank 3"]
    assert "hatched: in no group" in ax.get_xlabel()


def test_note_mentions_repeating_colours():
    assert "colours repeat" in drawn(DeviceMesh("dp=9, tp=2"), "tp").get_xlabel()
    assert "colours repeat" not in drawn(DeviceMesh("dp=8, tp=2"), "tp").get_xlabel()


def test_text_has_at_least_nine_points():
    ax = drawn(DeviceMesh("pp=4, dp=32, tp=8"), "pp")
    ticks = [*ax.get_xticklabels(), *ax.get_yticklabels()]
    sizes = [artist.size for artist in ax.artists] + [
        text.get_fontsize() for text in [*ticks, ax.title, ax.xaxis.label]
    ]
    assert min(sizes) >= 9


def test_columns_must_divide_an_axis_evenly():
    mesh = DeviceMesh("dp=6, tp=4")
    assert np.asarray(drawn(mesh, "tp", columns=12).images[0].get_array()).shape == (2, 12, 4)
    with pytest.raises(
        MeshError, match="columns=5 splits an axis of dp=6, tp=4 unevenly; choose one of 1, 2, 4, 8, 12, 24"
    ):
        drawn(mesh, "tp", columns=5)


def test_unknown_axis_is_explained():
    with pytest.raises(MeshError, match="dp, tp"):
        drawn(DeviceMesh("dp=2, tp=4"), "cp")


def test_figure_is_created_only_without_axes():
    before = plt.get_fignums()
    drawn(DeviceMesh("dp=2, tp=4"), "tp")
    assert plt.get_fignums() == before
    ax = ml.plot.membership(DeviceMesh("dp=2, tp=4"), "tp")
    assert len(plt.get_fignums()) == len(before) + 1
    plt.close(ax.figure)


@pytest.mark.parametrize("style", ["default", "dark_background"])
def test_text_outside_cells_has_the_colour_of_the_style(style):
    with plt.style.context(style):
        ax = drawn(DeviceMesh("dp=2, tp=2").with_group("pair", [3, 0]), "pair")
        colours = {cell_texts(ax)[2].color, ax.get_yticklabels()[0].get_color(), ax.xaxis.label.get_color()}
        assert colours == {plt.rcParams["text.color"]}
        assert figure_png(ax.figure).startswith(b"\x89PNG")


def test_mesh_may_be_text_and_the_default_is_the_fastest_axis():
    ax = ml.plot.membership("dp=2, tp=4", ax=Figure().add_subplot())
    assert ax.get_title(loc="left") == "tp: 2 groups of 4 ranks"
    ax = ml.plot.membership("dp=2, tp=4, ep=1", ax=Figure().add_subplot())
    assert ax.get_title(loc="left") == "tp: 2 groups of 4 ranks"


@pytest.mark.parametrize("value", [8, None, ml.preset("dgx-h100"), ["dp=2"]])
def test_other_types_of_mesh_are_rejected(value):
    with pytest.raises(MeshError, match="mesh"):
        ml.plot.membership(value, "tp")


@pytest.mark.parametrize("size", [(8, 4.5), (4, 3)])
@pytest.mark.parametrize("mesh", ["pp=2, dp=2, tp=8", "dp=128, tp=8"])
def test_no_text_is_clipped_in_axes_of_the_caller(mesh, size):
    figure = Figure(size)
    ax = ml.plot.membership(mesh, "tp", ax=figure.add_subplot())
    figure.draw_without_rendering()
    for text in [ax._left_title, ax.xaxis.label, *ax.get_yticklabels(), *ax.get_xticklabels()]:
        x0, y0, x1, y1 = text.get_window_extent().extents
        assert -1 <= x0 <= x1 <= figure.bbox.width + 1, text
        assert -1 <= y0 <= y1 <= figure.bbox.height + 1, text


def test_edges_that_touch_are_one_run():
    assert [part.tolist() for part in _runs(np.array([[True, True, False, True]]))] == [[0, 0], [0, 3], [2, 4]]
