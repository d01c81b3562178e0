"""Pictures of machines: what is painted where, and that no two texts overlap."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from meshlab.errors import TopologyError
from meshlab.mesh import DeviceMesh
from meshlab.plots.topology import plot_topology
from meshlab.topology import Cluster, Node, preset


@pytest.fixture(autouse=True)
def agg() -> Iterator[None]:
    backend = mpl.get_backend()
    mpl.use("Agg")
    yield
    plt.close("all")
    mpl.use(backend)


def overlaps(ax: Axes) -> list[tuple[str, str]]:
    """Pairs of texts whose boxes share more than a hairline, and texts that stick out of the figure."""
    figure = ax.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()
    legend = ax.get_legend()
    texts = [ax.title, ax._left_title, ax.xaxis.label, *ax.texts, *(legend.get_texts() if legend else [])]  # type: ignore[attr-defined]
    shown = [text for text in texts if text.get_text() and text.get_visible()]
    boxes = np.array([text.get_window_extent().extents for text in shown])
    low, high = boxes[:, :2] + 0.5, boxes[:, 2:] - 0.5
    both = np.all((low[:, None] < high) & (low[None] < high[:, None]), axis=2)
    found = [(shown[i].get_text(), shown[j].get_text()) for i, j in combinations(range(len(shown)), 2) if both[i, j]]
    edge = figure.bbox.extents
    outside = np.any(low < edge[:2], axis=1) | np.any(high > edge[2:], axis=1)
    return found + [(shown[i].get_text(), "edge of the figure") for i in np.flatnonzero(outside)]


def image(ax: Axes) -> np.ndarray:
    (picture,) = ax.get_images()
    return np.asarray(picture.get_array())


def sizes() -> list[pytest.param]:
    return [
        pytest.param(DeviceMesh("dp=2, tp=4"), preset("dgx-h100"), id="8"),
        pytest.param(DeviceMesh("dp=2, tp=8"), preset("dgx-a100", nodes=2), id="16"),
        pytest.param(DeviceMesh("dp=9, tp=8"), preset("gb200-nvl72", nodes=18), id="72"),
        pytest.param(DeviceMesh("pp=4, dp=32, tp=8"), preset("dgx-h100", nodes=128), id="1,024"),
        pytest.param(DeviceMesh("pp=16, dp=128, tp=8"), preset("tapered-h100", nodes=2048), id="16,384"),
    ]


@pytest.mark.parametrize(("mesh", "cluster"), sizes())
@pytest.mark.parametrize("what", ["both", "mesh", "cluster"])
@pytest.mark.parametrize("axis", ["tp", "dp"])
def test_no_text_overlaps_another_or_leaves_the_figure(
    mesh: DeviceMesh, cluster: Cluster, what: str, axis: str
) -> None:
    if what == "cluster":
        ax = plot_topology(cluster=cluster, axis={"tp": "nvlink", "dp": None}[axis])
    else:
        ax = plot_topology(mesh, cluster if what == "both" else None, axis=axis)
    assert overlaps(ax) == []
    assert min(text.get_fontsize() for text in ax.texts) >= 9


@pytest.mark.parametrize("size", [(3, 2), (5, 4), (12, 3)])
def test_a_given_axes_of_any_size_is_filled_without_overlap(size: tuple[float, float]) -> None:
    figure = Figure(figsize=size)
    ax = figure.add_axes((0.15, 0.1, 0.8, 0.6))
    assert plot_topology(cluster=preset("dgx-h100", nodes=16), ax=ax) is ax
    cells = [pair for pair in overlaps(ax) if "edge of the figure" not in pair]
    assert cells == []


def test_no_figure_is_made_where_an_axes_was_given() -> None:
    before = plt.get_fignums()
    plot_topology(DeviceMesh("tp=8"), ax=Figure().add_subplot())
    assert plt.get_fignums() == before


def test_groups_are_painted_in_their_colours_and_divided_by_seams() -> None:
    picture = image(plot_topology(DeviceMesh("dp=2, tp=4"), preset("dgx-h100")))
    band = picture[picture.shape[0] - 20]
    opaque = np.flatnonzero(band[:, 3])
    gaps = np.flatnonzero(np.diff(opaque) > 1)
    assert len(gaps) == 1  # one seam, between the two groups
    side = (opaque[-1] + 2) // 8
    colors = [tuple(band[k * side + side // 2, :3]) for k in range(8)]
    assert colors == [colors[0]] * 4 + [colors[4]] * 4
    assert colors[0] != colors[4]


def test_numbers_say_what_repeated_colours_cannot() -> None:
    ax = plot_topology(DeviceMesh("dp=64, tp=2"), preset("dgx-h100", nodes=16))
    written = {text.get_text().split("tp ")[-1] for text in ax.texts}
    assert {"0", "63"} <= written
    assert "repeating after 8" in ax.get_xlabel()


def test_idle_devices_are_grey_and_named() -> None:
    ax = plot_topology(DeviceMesh("tp=4"), preset("dgx-h100"))
    assert sum(text.get_text() == "idle" for text in ax.texts) == 4


def test_a_map_of_devices_moves_the_ranks() -> None:
    ax = plot_topology(DeviceMesh("tp=8"), preset("dgx-h100"), devices=[7, 6, 5, 4, 3, 2, 1, 0])
    cells = [text.get_text() for text in ax.texts if text.get_text().startswith("rank")]
    assert cells[0].startswith("rank 7")
    assert cells[7].startswith("rank 0")


def test_few_groups_without_room_for_numbers_get_a_legend() -> None:
    legend = plot_topology(cluster=preset("tapered-h100", nodes=2048)).get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == [f"pod {number}" for number in range(6)]


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(TopologyError, match="give a mesh, a cluster, or both"):
        plot_topology()
    with pytest.raises(TopologyError, match="nothing to draw"):
        plot_topology(cluster=Cluster.from_nodes([Node("laptop")]))


def test_the_text_follows_the_style_in_force() -> None:
    with plt.style.context("dark_background"):
        ax = plot_topology(DeviceMesh("tp=8"), preset("dgx-h100"))
        assert ax._left_title.get_color() == "white"  # type: ignore[attr-defined]
