import re
import threading
from xml.etree import ElementTree

import matplotlib as mpl
import pytest
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Patch

import meshlab as ml
from meshlab.mesh._mesh import DeviceMesh
from meshlab.plots._cells import CellGrid
from meshlab.plots._style import (
    Margins,
    figure_png,
    figure_svg,
    legend_above,
    open_axes,
    text_width,
    wrap_parts,
    wrap_words,
)


def membership(mesh="dp=2, tp=2", axis="tp"):
    figsize, rect = CellGrid.of(DeviceMesh(mesh)).figure_box()
    figure = Figure(figsize)
    ml.plot.membership(DeviceMesh(mesh), axis, ax=figure.add_axes(rect))
    return figure


def test_the_same_figure_has_the_same_svg_without_a_date():
    svg = figure_svg(membership())
    assert svg == figure_svg(membership())
    assert not re.search(r"metadata|<!--|<\?xml|DOCTYPE|20\d\d-|matplotlib", svg)


def test_an_svg_is_well_formed_and_has_a_description():
    root = ElementTree.fromstring(figure_svg(membership(), label='"tp" & <dp>'))
    assert root.attrib["role"] == "img"
    assert root.attrib["aria-label"] == '"tp" & <dp>'


def test_two_figures_have_no_common_ids():
    ids = [set(re.findall(r' id="([^"]+)"', figure_svg(membership(axis=axis)))) for axis in ("tp", "dp")]
    assert ids[0]
    assert ids[1]
    assert not ids[0] & ids[1]


def test_every_reference_has_a_target():
    svg = figure_svg(membership("dp=2, tp=8"))
    assert set(re.findall(r'(?:url\(#|href="#)([^")]+)', svg)) == set(re.findall(r' id="([^"]+)"', svg))


def test_an_svg_has_no_style_element_that_would_affect_its_page():
    assert "<style" not in figure_svg(membership())


def test_the_figures_own_black_and_white_follow_the_page_and_cell_texts_do_not():
    for style in ("default", "dark_background"):
        with plt.style.context(style):
            svg = figure_svg(membership())
        assert "#000000" not in svg
        assert "#ffffff" not in svg
        assert "currentColor" in svg
        assert "var(--ml-paper" in svg
        assert "fill: #fcfcfc" in svg  # the text on blue


def test_text_remains_text_in_the_sans_serif_font_of_the_system():
    svg = figure_svg(membership())
    assert ">rank 3</text>" in svg
    assert "DejaVu" not in svg


def test_settings_are_restored_after_many_threads_have_rendered():
    before = dict(mpl.rcParams)
    threads = [threading.Thread(target=figure_svg, args=(membership(),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert dict(mpl.rcParams) == before


def test_a_png_has_the_requested_pixels_and_no_software_name():
    png = figure_png(Figure((2, 1)), dpi=50)
    assert (int.from_bytes(png[16:20]), int.from_bytes(png[20:24])) == (100, 50)
    assert b"matplotlib" not in png.lower()


def test_titles_break_only_between_their_parts():
    assert wrap_parts(["aaaa", "bbbb", "cccc"], 70, 10).split("\n") == ["aaaa · bbbb", "cccc"]
    assert wrap_parts([], 100, 10) == ""


def test_axes_of_the_caller_are_kept_and_new_ones_have_their_margins_in_points():
    ax = Figure().add_subplot()
    assert open_axes(ax, 144, 72) is ax
    ax = open_axes(None, 144, 72, Margins(left=14.4, below=7.2, right=28.8, above=21.6))
    assert ax.figure.get_size_inches().tolist() == [2, 1]
    assert ax.get_position().bounds == pytest.approx((0.1, 0.1, 0.7, 0.6))
    plt.close(ax.figure)
    ax = open_axes(None, 144, 72)
    assert isinstance(ax.figure.get_layout_engine(), ConstrainedLayoutEngine)
    plt.close(ax.figure)


def test_a_legend_above_has_as_many_columns_as_fit():
    heights = []
    for width in (8, 3):
        ax = Figure((width, 3)).add_subplot()
        heights.append(legend_above(ax, [Patch(label=f"entry number {index}") for index in range(4)]))
        assert len(ax.get_legend().get_texts()) == 4
    assert heights[1] > heights[0]


def test_the_width_of_a_text_is_in_points():
    assert 50 < text_width("bandwidth", 10) < 70
    assert text_width("bandwidth", 20) == pytest.approx(2 * text_width("bandwidth", 10), rel=0.05)


def test_a_sentence_is_broken_between_words_to_stay_within_a_width():
    assert wrap_words("Slow: rank 3", 1000) == "Slow: rank 3"
    assert wrap_words("Slow: rank 3", 40).splitlines() == ["Slow:", "rank 3"]
