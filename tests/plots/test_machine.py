"""Figures of machines: colours, text that does not overlap, and the forms of the arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure

import meshlab as ml
from meshlab.base._errors import MeshError, MeshlabError, ParseError, TopologyError
from meshlab.base._units import THIN
from meshlab.mesh._mesh import DeviceMesh
from meshlab.plots._theme import DARK, LIGHT
from meshlab.topology.model._cluster import Cluster
from meshlab.topology.model._hardware import Device, Node
from meshlab.topology.model._presets import preset
from meshlab.topology.placement._placement import place
from meshlab.topology.readers._nvidia_smi import read_nvidia_smi


@pytest.fixture(autouse=True)
def agg() -> Iterator[None]:
    backend = mpl.get_backend()
    mpl.use("Agg")
    yield
    plt.close("all")
    mpl.use(backend)


def overlaps(ax: Axes) -> list[tuple[str, str]]:
    """Return pairs of texts that overlap by more than a hairline, and texts that leave the figure."""
    figure = ax.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()
    legend = ax.get_legend()
    ticks = [*ax.get_xticklabels(), *ax.get_yticklabels()] if ax.axison else []
    texts = [ax._left_title, ax.xaxis.label, *ticks, *ax.texts]  # type: ignore[attr-defined]
    texts += legend.get_texts() if legend else []
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
        pytest.param(DeviceMesh("dp=8, tp=8"), preset("dgx-h100", nodes=8), id="64"),
        pytest.param(DeviceMesh("dp=9, tp=8"), preset("gb200-nvl72", nodes=18), id="72"),
        pytest.param(DeviceMesh("dp=16, tp=8"), preset("dgx-h100", nodes=16), id="128"),
        pytest.param(DeviceMesh("pp=8, dp=16, tp=8"), preset("dgx-h100", nodes=128), id="1,024 in 64 groups"),
        pytest.param(DeviceMesh("pp=4, dp=32, tp=8"), preset("dgx-h100", nodes=128), id="1,024"),
        pytest.param(DeviceMesh("pp=16, dp=128, tp=8"), preset("tapered-h100", nodes=2048), id="16,384"),
    ]


@pytest.mark.parametrize(("mesh", "cluster"), sizes())
@pytest.mark.parametrize("what", ["both", "group", "mesh", "cluster"])
@pytest.mark.parametrize("axis", ["tp", pytest.param("dp", marks=pytest.mark.long)])  # the next but one has dp and pp
def test_text_does_not_overlap_or_leave_the_figure(mesh: DeviceMesh, cluster: Cluster, what: str, axis: str) -> None:
    if what == "group":
        ax = ml.plot.topology(mesh, cluster, axis=axis, group=1)
    elif what == "cluster":
        ax = ml.plot.topology(cluster, axis={"tp": "nvlink", "dp": None}[axis])
    else:
        ax = ml.plot.topology(mesh, cluster if what == "both" else None, axis=axis)
    assert overlaps(ax) == []
    assert min(text.get_fontsize() for text in ax.texts) >= 9


@pytest.mark.parametrize("size", [(3, 2), (5, 4), (12, 3)])
def test_axes_of_any_size_are_filled_without_overlap(size: tuple[float, float]) -> None:
    figure = Figure(figsize=size)
    ax = figure.add_axes((0.15, 0.1, 0.8, 0.6))
    assert ml.plot.topology(cluster=preset("dgx-h100", nodes=16), ax=ax) is ax
    cells = [pair for pair in overlaps(ax) if "edge of the figure" not in pair]
    assert cells == []


@pytest.mark.full
@pytest.mark.parametrize("width", [600, pytest.param(900, marks=pytest.mark.long), 1400])  # the extremes are enough
@pytest.mark.parametrize(
    ("mesh", "cluster", "axis"),
    [
        ("dp=2, tp=4", preset("dgx-h100"), "tp"),
        ("dp=4, tp=8", preset("gcp-a3-high", nodes=4, nodes_per_leaf=4, rails=4), "dp"),
        ("dp=9, tp=8", preset("gb200-nvl72"), "tp"),
        ("dp=8, ep=9, tp=8", preset("gb200-nvl72", nodes=144), "dp"),
        ("pp=4, dp=32, tp=8", preset("dgx-h100", nodes=128), "pp"),
        (
            "pp=16, dp=128, tp=8",
            preset("tapered-h100", nodes=2048, nodes_per_leaf=32, nodes_per_pod=512, rails=8),
            "pp",
        ),
        ("dp=8, tp=8", preset("aws-p5", nodes=8), "dp"),
    ],
    ids=["host", "four", "rack", "racks", "128", "2048", "unknown"],
)
@pytest.mark.parametrize("group", [None, 1])
def test_text_does_not_overlap_at_three_widths(
    width: int, mesh: str, cluster: Cluster, axis: str, group: int | None
) -> None:
    figure = Figure((width / 96, 600 / 96), dpi=96)
    ax = figure.add_axes((10 / width, 10 / 600, 1 - 20 / width, 0.85))
    ml.plot.topology(mesh, cluster, axis=axis, group=group, ax=ax)
    assert overlaps(ax) == []
    assert min(text.get_fontsize() for text in ax.texts) >= 9


def test_no_figure_is_created_if_axes_are_passed() -> None:
    before = plt.get_fignums()
    ml.plot.topology(DeviceMesh("tp=8"), ax=Figure().add_subplot())
    assert plt.get_fignums() == before


def texts_of(ax: Axes) -> list[str]:
    return [text.get_text() for text in ax.texts]


def colors_of(ax: Axes) -> set[str]:
    """Return the face colours of everything that is drawn."""
    found = set()
    for artist in [*ax.patches, *ax.artists, *ax.collections]:
        for color in np.atleast_2d(artist.get_facecolor()):
            if color[3]:
                found.add(mpl.colors.to_hex(color))
    for collection in ax.collections:
        found |= {mpl.colors.to_hex(color) for color in np.atleast_2d(collection.get_edgecolor())}
    return found


def test_the_picture_shows_the_machine_and_not_only_boxes() -> None:
    """One host: NVLink, GPUs with rank and group, NICs; four hosts: rails and leaf switches too."""
    ax = ml.plot.topology("dp=2, tp=4", "dgx-h100", axis="tp")
    written = texts_of(ax)
    assert "node0 · NVLink domain" in written
    assert "GPU 5 · rank 5" in written
    assert written.count("tp_1") == 4
    assert written.count("NIC") == 8
    assert f"NVSwitch · 371{THIN}GB/s per GPU" in written
    ax = ml.plot.topology("dp=4, tp=8", preset("dgx-h100", nodes=4), axis="dp")
    assert {f"leaf {rail}" for rail in range(8)} <= set(texts_of(ax))


def test_the_route_of_a_group_does_not_cover_half_of_a_name() -> None:
    ax = ml.plot.topology("dp=2, tp=4", "dgx-h100", axis="tp", group=0)
    name = next(text for text in ax.texts if text.get_text().startswith("NVSwitch"))
    figure = ax.figure
    figure.canvas.draw()
    box = name.get_window_extent()
    pixels = np.asarray(figure.canvas.buffer_rgba())[::-1]  # type: ignore[attr-defined]
    # The lower half of the name is below the route of the first four GPUs.
    below = pixels[int(box.y0) : int(box.y0 + 0.4 * box.height), int(box.x0) : int(box.x1), :3]
    assert np.ptp(below.reshape(-1, 3), axis=0).max() == 0


def test_racks_pods_and_their_exits_are_drawn() -> None:
    written = texts_of(ml.plot.topology("dp=9, tp=8", "gb200-nvl72"))
    assert "rack 0 · NVLink domain of 72" in written
    assert "NVSwitch trays" in written
    cluster = preset("tapered-h100", nodes=2048, nodes_per_leaf=32, nodes_per_pod=512, rails=8)
    ax = ml.plot.topology("pp=16, dp=128, tp=8", cluster, axis="pp", group=5)
    written = texts_of(ax)
    assert "cluster · 4 pods · 1:7 oversubscribed" in written
    assert written.count("■ ×1,024") == 4
    assert "shared, and it limits pp" in written
    assert "route of pp_5: ranks 5, 1,029, 2,053, …, 15,365 (16 ranks)" in written
    assert title(ax).startswith("■ pp leaves the host")


def test_only_a_conflict_is_orange() -> None:
    for theme, style in ((LIGHT, "default"), (DARK, "dark_background")):
        with plt.style.context(style):
            calm = ml.plot.topology("dp=4, tp=8", preset("dgx-h100", nodes=4), axis="dp", group=0)
            shared = ml.plot.topology("dp=4, tp=8", preset("gcp-a3-high", nodes=4), axis="dp", group=0)
        assert theme.conflict not in colors_of(calm)
        assert theme.accent in colors_of(calm)
        assert theme.conflict in colors_of(shared)
        assert any(artist.get_hatch() for artist in shared.patches + shared.artists)
        assert "×2" in texts_of(shared)


def test_an_unknown_network_is_labelled_and_not_guessed() -> None:
    ax = ml.plot.topology("dp=4, tp=8", preset("aws-p5", nodes=4), axis="dp", group=2)
    written = texts_of(ax)
    assert "network not described" in written
    assert "the source does not describe the network between the hosts" in written
    assert not [text for text in written if text.startswith(("leaf", "pod", "spine"))]


BARE = Node("a", (Device(id=0), Device(id=1)))


@pytest.mark.parametrize(
    ("mesh", "cluster", "axis", "sentence"),
    [
        ("tp=32", preset("dgx-h100"), "tp", "tp=32 has 32 ranks, but the cluster has 8 devices: it is not placed"),
        ("tp=8", preset("dgx-h100"), "pp", "tp=8 has no axis or group 'pp': the groups of tp are shown"),
        (None, preset("dgx-h100", nodes=2), "rack", "the cluster has no level 'rack': the domains of leaf are shown"),
        ("dp=2", None, "pp", "dp=2 has no axis or group 'pp': the groups of dp are shown"),
        (None, Cluster.from_nodes([Node("laptop")]), None, "the source lists no devices"),
        ("tp=2", Cluster.from_nodes([BARE]), None, "the source lists no links inside the hosts"),
    ],
)
def test_what_cannot_be_shown_is_a_sentence_below_the_machine(
    mesh: str | None, cluster: Cluster | None, axis: str | None, sentence: str
) -> None:
    ax = ml.plot.topology(mesh, cluster, axis=axis)
    assert sentence in texts_of(ax)
    assert overlaps(ax) == []
    if cluster is not None:
        assert cluster.names[0] in " ".join(texts_of(ax))


def test_devices_without_a_rank_are_hollow() -> None:
    ax = ml.plot.topology(DeviceMesh("tp=4"), preset("dgx-h100"))
    assert texts_of(ax).count("no rank") == 5  # four devices, and the legend


def test_devices_argument_moves_the_ranks() -> None:
    ax = ml.plot.topology(DeviceMesh("tp=8"), preset("dgx-h100"), devices=[7, 6, 5, 4, 3, 2, 1, 0])
    assert [text for text in texts_of(ax) if "rank" in text] == [f"GPU {k} · rank {7 - k}" for k in range(8)]


def test_a_lost_nvlink_and_a_lost_nic_show() -> None:
    broken = preset("dgx-h100").without_link(2)
    ax = ml.plot.topology("tp=8", broken)
    assert "node0 · NVLink domain" not in texts_of(ax)
    ax = ml.plot.topology("tp=8", preset("dgx-h100").without_nic(0, 3))
    assert texts_of(ax).count("NIC") == 7


@pytest.mark.parametrize(("level", "expected"), [(1, "pod 0"), (2, "node0"), (3, "NVSwitch · 371")])
def test_level_and_focus_select_a_part(level: int, expected: str) -> None:
    cluster = preset("dgx-h100", nodes=128)
    ax = ml.plot.topology("dp=128, tp=8", cluster, axis="dp", level=level)
    assert any(text.startswith(expected) for text in texts_of(ax))
    assert overlaps(ax) == []


def test_focus_goes_to_a_place() -> None:
    cluster = preset("tapered-h100", nodes=256, nodes_per_leaf=32, nodes_per_pod=128, rails=8)
    for focus in ("node125", "node:125", "nic:1000", "device:1000"):
        ax = ml.plot.topology("pp=2, dp=128, tp=8", cluster, axis="dp", group="dp_4", focus=focus)
        assert "node125 · NVLink domain" in texts_of(ax)
        assert overlaps(ax) == []
    with pytest.raises(TopologyError, match="unknown place 'node9999'; choose all, 'node0', or a number such as pod:0"):
        ml.plot.topology("tp=8", cluster, focus="node9999")


def test_an_unknown_group_or_level_is_an_error() -> None:
    with pytest.raises(TopologyError, match="unknown group 'dp_9' of dp; choose 'dp_0' to 'dp_3'"):
        ml.plot.topology("dp=2, tp=4", "dgx-h100", axis="dp", group="dp_9")
    with pytest.raises(TopologyError, match="unknown group 4 of dp"):
        ml.plot.topology("dp=2, tp=4", "dgx-h100", axis="dp", group=4)
    with pytest.raises(TopologyError, match="group= needs a mesh"):
        ml.plot.topology("dgx-h100", group=0)
    with pytest.raises(TopologyError, match="unknown level 7; choose auto, or a number from 0"):
        ml.plot.topology("dp=2, tp=4", "dgx-h100", level=7)


def test_a_notebook_shows_the_picture_in_the_colours_of_its_theme() -> None:
    svg = ml.plot.topology("dp=2, tp=4", "dgx-h100", axis="tp", group=0).get_figure()._repr_html_()  # type: ignore[union-attr]
    assert f"light-dark({LIGHT.groups[0]}, {DARK.groups[0]})" in svg
    assert f"light-dark({LIGHT.accent}, {DARK.accent})" in svg
    assert "#ffffff" not in svg
    assert 'aria-label="● tp stays inside NVLink' in svg


def title(ax: Axes) -> str:
    return ax.get_title(loc="left")


def test_topology_accepts_a_mesh_a_cluster_or_both() -> None:
    mesh, cluster = DeviceMesh("dp=2, tp=4"), preset("dgx-h100")
    both = {
        title(ml.plot.topology(mesh, cluster, axis="dp")),
        title(ml.plot.topology("dp=2, tp=4", "dgx-h100", axis="dp")),
        title(ml.plot.topology("dp=-1, tp=4", "dgx-h100", axis="dp")),
        title(ml.plot.topology(mesh=mesh, cluster=cluster, axis="dp")),
        title(ml.plot.topology(place(mesh, cluster), axis="dp")),
        title(place(mesh, cluster).plot("dp")),
    }
    verdict = f"● dp stays inside NVLink: NV18, 371{THIN}GB/s per direction\n"
    assert both == {verdict + "dp (4 groups of 2) · 1 node · 8 × H100 80GB · NVLink domains of 8"}
    alone = {
        title(ml.plot.topology(cluster)),
        title(ml.plot.topology("dgx-h100")),
        title(ml.plot.topology(cluster=cluster)),
        title(ml.plot.topology(None, "dgx-h100")),
        title(cluster.plot()),
    }
    assert alone == {"DGX H100 · 1 node · 8 × H100 80GB · NVLink domains of 8"}
    assert title(ml.plot.topology(mesh)) == title(ml.plot.topology("dp=2, tp=4")) == "tp (2 groups of 4) · dp=2 · tp=4"


def test_topology_accepts_several_axes_groups_and_levels() -> None:
    mesh, cluster = DeviceMesh("pp=2, dp=4, tp=8"), preset("dgx-h100", nodes=8)
    for axis in ("dp-tp", ("dp", "tp"), ["dp", "tp"]):
        assert (
            title(ml.plot.topology(mesh, cluster, axis=axis)).splitlines()[-1].startswith("dp-tp (2 groups of 32) · ")
        )
        assert title(ml.plot.topology(mesh, axis=axis)).startswith("dp-tp (2 groups of 32) · ")
    assert title(ml.plot.topology(mesh, cluster, axis="pp_3")).splitlines()[-1].startswith("pp_3 (1 group of 2) · ")
    assert title(ml.plot.topology(mesh, cluster, axis="host")).startswith("host (8 groups) · ")
    assert "host: 8 domains, colours repeat after 6" in texts_of(cluster.plot("host"))


def test_placement_plot_uses_its_devices() -> None:
    placement = place(DeviceMesh("tp=8"), preset("dgx-h100"), devices=[7, 6, 5, 4, 3, 2, 1, 0])
    assert "GPU 0 · rank 7" in texts_of(placement.plot())


def test_plot_methods_draw_on_the_axes_of_the_caller() -> None:
    before = plt.get_fignums()
    for draw in (preset("dgx-h100").plot, place("tp=8", "dgx-h100").plot, preset("dgx-h100").node(0).plot):
        ax = Figure((12, 5)).add_subplot()
        assert draw(ax=ax) is ax
    assert plt.get_fignums() == before


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((), TopologyError, "no mesh and no cluster given; pass a mesh, a cluster, or both"),
        ((preset("dgx-h100"), DeviceMesh("tp=8")), TopologyError, "a mesh is expected; pass the mesh first"),
        ((preset("dgx-h100"), "tp=8"), TopologyError, "a mesh is expected; pass the mesh first"),
        ((DeviceMesh("tp=8"), "dgx"), TopologyError, "unknown preset 'dgx'; choose one of dgx-a100"),
        ((DeviceMesh("tp=8"), 8), TopologyError, r"not int; create one with ml\.probe\(\)"),
        (
            ("dgx",),
            TopologyError,
            "'dgx' is neither a mesh nor the name of a preset; write a mesh such as 'dp=2, tp=4'",
        ),
        (("dp=2, tp=",), ParseError, "tp="),
        ((8,), MeshError, "int"),
        ((place("tp=8", "dgx-h100"), "dgx-h100"), TopologyError, "has a cluster and devices already; pass its mesh"),
    ],
)
def test_invalid_arguments_of_topology_are_explained(
    arguments: tuple[Any, ...], error: type[MeshlabError], message: str
) -> None:
    with pytest.raises(error, match=message):
        ml.plot.topology(*arguments)


def test_devices_need_a_mesh_and_a_cluster() -> None:
    with pytest.raises(TopologyError, match="devices= needs a mesh and a cluster; pass both"):
        ml.plot.topology("tp=8", devices=range(8))
    with pytest.raises(TopologyError, match="devices= needs a mesh and a cluster; pass both"):
        ml.plot.topology("dgx-h100", devices=range(8))


def test_graph_files_are_explained() -> None:
    graphs: Any = ml.topology.read('<graphs version="1"><graph id="0"/></graphs>')
    for draw in (ml.plot.topology, ml.plot.host, ml.plot.links):
        with pytest.raises(TopologyError, match="this is a graph file of NCCL"):
            draw(graphs)


def test_text_has_the_colour_of_the_style() -> None:
    with plt.style.context("dark_background"):
        ax = ml.plot.topology(DeviceMesh("tp=8"), preset("dgx-h100"))
        assert ax._left_title.get_color() == "white"  # type: ignore[attr-defined]


def hosts() -> list[pytest.param]:
    def cube_word(i: int, j: int) -> str:
        return "X" if i == j else {1: "NV1", 2: "NV1", 4: "NV2"}.get(i ^ j, "PHB")

    words = tuple(tuple(cube_word(i, j) for j in range(8)) for i in range(8))
    cube = Node("cube", tuple(Device(id=i, numa="0-1") for i in range(8)), words=words)
    sixteen = Node("sixteen", tuple(Device(id=i, numa=str(i // 8)) for i in range(16)), preset("dgx-h100").node(0).nics)
    return [
        pytest.param(preset("dgx-h100"), id="8"),
        pytest.param(preset("dgx-a100"), id="pairs"),
        pytest.param(preset("aws-p5"), id="32 NICs"),
        pytest.param(preset("pcie-l40s"), id="no NVLink"),
        pytest.param(preset("gb200-nvl72", nodes=1), id="tray"),
        pytest.param(preset("dgx-h100").without_link(2), id="broken"),
        pytest.param(preset("dgx-h100").without_device(7), id="7"),
        pytest.param(Cluster.from_nodes([cube]), id="cube mesh"),
        pytest.param(Cluster.from_nodes([sixteen]), id="16, nothing known"),
        pytest.param(Cluster.from_nodes([Node("one", (Device(id=0),))]), id="1"),
    ]


@pytest.mark.parametrize("cluster", hosts())
def test_text_of_a_host_and_its_link_matrix_does_not_overlap(cluster: Cluster) -> None:
    for ax in (ml.plot.host(cluster), ml.plot.links(cluster)):
        assert overlaps(ax) == []


@pytest.mark.parametrize(("width", "nodes"), [(3, 4), (4, 2), (7, 4)])
def test_cells_have_the_name_of_the_group_or_nothing(width: float, nodes: int) -> None:
    ax = Figure((width, 9)).add_axes((0, 0, 1, 0.8))
    ml.plot.topology("dp=3, tp=4", preset("dgx-h100", nodes=nodes), axis="dp", ax=ax)
    assert not {"-1", "dp 0"} & set(texts(ax))


def test_the_name_of_a_group_is_not_that_of_a_coordinate() -> None:
    words = texts(ml.plot.topology("pp=2, dp=2", axis="dp", ax=Figure((8, 6)).add_axes((0, 0, 1, 0.8))))
    assert words.count("dp_0") == words.count("dp_1") == 2
    assert "pp 0" in words


def texts(ax: Axes) -> list[str]:
    return [text.get_text() for text in ax.texts]


def test_host_shows_its_parts_and_marks_a_gpu_without_nvlink() -> None:
    complete = texts(ml.plot.host(preset("dgx-h100", nodes=2), "node1"))
    assert sum(text.startswith("GPU") for text in complete) == 8
    assert "NIC7\n400G" in complete
    assert "NUMA 1\nCPUs 56-111,168-223" in complete
    assert f"SYS · 22.0{THIN}GB/s" in complete
    assert f"NVLink · NV18 between all · 371{THIN}GB/s each" in complete
    broken = texts(ml.plot.host(preset("dgx-h100").without_link(2)))
    assert broken.count("no NVLink") == 1
    assert any("between 7 of 8" in text for text in broken)


def test_nics_of_a_switch_share_a_box() -> None:
    assert "NICs\n28–31\n100G" in texts(ml.plot.host(preset("aws-p5")))
    wide = Figure((15, 5)).add_axes((0, 0, 1, 0.9))
    assert "NIC28–31\n4 × 100G" in texts(ml.plot.host(preset("aws-p5"), ax=wide))
    figure = ml.plot.host(preset("aws-p5")).get_figure(root=True)
    assert figure is not None
    assert figure.get_figwidth() < 10


def test_unknown_nvlink_is_not_drawn_as_missing() -> None:
    peers = read_nvidia_smi("\tGPU0\tGPU1\nGPU0\tX\tOK\nGPU1\tOK\tX\n")
    assert "NVLink: unknown" in texts(ml.plot.host(peers))


def test_hosts_that_cannot_be_drawn_are_explained() -> None:
    with pytest.raises(TopologyError, match="nothing to draw for laptop: no devices are known"):
        ml.plot.host(Cluster.from_nodes([Node("laptop")]))
    with pytest.raises(
        TopologyError,
        match=r"65 devices, but this figure can show at most 64; draw the link matrix with ml\.plot\.links\(\)",
    ):
        ml.plot.host(Cluster.from_nodes([Node("a", tuple(Device(id=i) for i in range(65)))]))
    with pytest.raises(TopologyError, match="nothing to draw: the host has no devices"):
        ml.plot.links(Cluster.from_nodes([Node("laptop")]))
    with pytest.raises(TopologyError, match="pass a node, such as 'node0'"):
        ml.plot.links(preset("dgx-h100", nodes=1024))


def test_link_matrix_has_words_in_cells_and_near_is_lighter_than_far() -> None:
    ax = ml.plot.links(preset("dgx-a100"))
    assert texts(ax).count("NV12") == 56
    pixels = image(ax)[..., :3].astype(int).sum(axis=-1)
    assert pixels[0, 1] > pixels[0, 8] > pixels[0, 15]  # NV12, PXB, SYS
    assert image(ax)[0, 0, 3] == 0


def test_link_matrix_of_a_cluster_shows_levels_between_hosts() -> None:
    ax = ml.plot.links(preset("dgx-h100", nodes=64))
    legend = ax.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == [
        "NV18: 18 NVLinks",
        "leaf: one leaf switch",
        "pod: inside one pod",
        "cluster: across the cluster",
    ]
    assert overlaps(ax) == []
    assert image(ax).shape[:2] == (512, 512)


RINGS = [
    ("dgx-h100", 1, "tp=8", "tp_0"),
    ("dgx-h100", 2, "tp=16", "tp_0"),
    ("gb200-nvl72", 18, "tp=72", "world"),
    ("tapered-h100", 768, "pp=8, dp=96, tp=8", "pp_3"),
    ("tapered-h100", 768, "pp=8, dp=96, tp=8", "dp_3"),
    ("dgx-h100", 128, "dp=1024", "dp_0"),
    ("pcie-l40s", 1, "tp=2, dp=4", "tp_1"),
]


@pytest.mark.parametrize(("machine", "nodes", "shape", "group"), RINGS, ids=[f"{r[0]} {r[2]}" for r in RINGS])
def test_text_of_a_ring_does_not_overlap(machine: str, nodes: int, shape: str, group: str) -> None:
    ax = ml.plot.ring(place(DeviceMesh(shape), preset(machine, nodes)), group)
    assert overlaps(ax) == []


def test_legend_of_a_ring_has_hops_per_link_and_oversubscription() -> None:
    placement = place(DeviceMesh("pp=8, dp=96, tp=8"), preset("tapered-h100", nodes=768))
    legend = ml.plot.ring(placement, "pp_3").get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == [
        f"6 hops over pod · 48.0{THIN}GB/s",
        f"2 hops over cluster · 48.0{THIN}GB/s, 1:7 oversubscribed",
    ]


def test_arrows_of_a_ring_point_clockwise() -> None:
    ax = ml.plot.ring(place(DeviceMesh("tp=16"), preset("dgx-h100", nodes=2)), "tp_0")
    arrows = [
        path.vertices[:3] for one in ax.collections if isinstance(one, PolyCollection) for path in one.get_paths()
    ]
    assert len(arrows) == 16
    for tip, left, right in arrows:
        base = (left + right) / 2
        assert base[0] * (tip - base)[1] - base[1] * (tip - base)[0] < 0


def test_a_ring_fills_its_figure() -> None:
    figure = ml.plot.ring("tp=16", preset("dgx-h100", nodes=2)).get_figure(root=True)
    assert figure is not None
    figure.canvas.draw()
    pixels = np.asarray(figure.canvas.buffer_rgba())[..., :3]  # type: ignore[attr-defined]
    columns = np.flatnonzero((pixels < 250).any(axis=(0, 2)))
    assert (columns[-1] - columns[0]) / pixels.shape[1] > 0.8


def test_ring_visits_every_host_once_for_any_order_of_ranks() -> None:
    devices = [device for pair in zip(range(8), range(8, 16), strict=True) for device in pair]
    ax = ml.plot.ring(place(DeviceMesh("tp=16"), preset("dgx-h100", nodes=2), devices), "tp_0")
    numbers = [text for text in texts(ax) if text.isdecimal()]
    assert numbers == [*map(str, range(0, 16, 2)), *map(str, range(1, 16, 2))]


def test_ring_accepts_a_mesh_and_a_cluster_or_a_placement() -> None:
    mesh, cluster = DeviceMesh("dp=2, tp=4"), preset("dgx-h100")
    placement = place(mesh, cluster)
    rings = {
        title(ml.plot.ring(mesh, cluster)),
        title(ml.plot.ring("dp=2, tp=4", "dgx-h100")),
        title(ml.plot.ring(mesh, cluster, axis="tp")),
        title(ml.plot.ring(placement)),
        title(ml.plot.ring(placement, "tp")),
        title(ml.plot.ring(placement, axis="tp")),
    }
    assert rings == {"tp_0: ring of 4 ranks, clockwise · one of 2 tp groups · DGX H100"}
    groups = {title(ml.plot.ring(mesh, cluster, axis="dp_3")), title(ml.plot.ring(placement, "dp_3"))}
    assert groups == {"dp_3: ring of 2 ranks, clockwise · DGX H100"}
    assert title(ml.plot.ring(mesh, cluster, axis=("dp", "tp"))).startswith("dp-tp_0: ring of 8 ranks")
    moved = ml.plot.ring(mesh, cluster, axis="tp", devices=[4, 5, 6, 7, 0, 1, 2, 3])
    assert title(moved) == "tp_0: ring of 4 ranks, clockwise · one of 2 tp groups · DGX H100"


def test_rings_that_cannot_be_drawn_are_explained() -> None:
    placement = place(DeviceMesh("dp=1, tp=8"), preset("dgx-h100"))
    with pytest.raises(TopologyError, match="group dp_0 has only one rank; choose an axis with several ranks"):
        ml.plot.ring(placement, "dp_0")
    with pytest.raises(TopologyError, match="has 8,192 ranks, but a ring can show at most 4,096"):
        ml.plot.ring(place(DeviceMesh("dp=8192"), preset("dgx-h100", nodes=1024)), "world")
    with pytest.raises(TopologyError, match=r"no cluster given; pass it after the mesh, such as ml\.probe"):
        ml.plot.ring("tp=8")
    with pytest.raises(TopologyError, match="the first argument is a Cluster, but a mesh is expected"):
        ml.plot.ring(preset("dgx-h100"), "tp=8")  # type: ignore[call-overload]
    with pytest.raises(TopologyError, match="has a cluster and devices already; pass its mesh"):
        ml.plot.ring(placement, preset("dgx-h100"))
    with pytest.raises(MeshError, match="'pp'"):
        ml.plot.ring(placement, "pp")
    with pytest.raises(MeshlabError, match="int"):
        ml.plot.ring(8, "dgx-h100")  # type: ignore[call-overload]


@pytest.mark.parametrize("draw", [ml.plot.host, ml.plot.links])
def test_figures_of_hosts_use_the_axes_of_the_caller(draw: Callable[..., Axes]) -> None:
    before = plt.get_fignums()
    ax = Figure((9, 5)).add_subplot()
    assert draw(preset("dgx-a100"), ax=ax) is ax
    assert plt.get_fignums() == before


@pytest.mark.parametrize("draw", [ml.plot.host, ml.plot.links])
def test_figures_of_hosts_accept_a_cluster_a_node_or_the_name_of_a_preset(draw: Callable[..., Axes]) -> None:
    cluster = preset("dgx-h100", nodes=2)
    titles = {title(draw(value)) for value in (cluster.node(0), preset("dgx-h100"), "dgx-h100")}
    titles |= {title(draw(cluster, 0)), title(draw(cluster, "node0")), title(draw(cluster, node="node0"))}
    assert len(titles) == 1
    assert "8 × H100 80GB" in titles.pop()
    assert title(draw(replace(cluster.node(0), name="login"))).replace("links · ", "").startswith("login · ")


@pytest.mark.parametrize("draw", [ml.plot.host, ml.plot.links])
@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("dgx", "unknown preset 'dgx'; choose one of dgx-a100"),
        (DeviceMesh("tp=8"), "not DeviceMesh; create one with"),
        (None, "not NoneType; create one with"),
    ],
)
def test_figures_of_hosts_explain_other_arguments(draw: Callable[..., Axes], value: Any, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        draw(value)
    with pytest.raises(TopologyError, match="unknown node 'node7'; choose 0 or 'node0'"):
        draw("dgx-h100", "node7")
