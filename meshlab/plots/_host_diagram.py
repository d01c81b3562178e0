"""The inside of a host: CPUs, PCIe switches, GPUs and NICs, and the links between them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from meshlab.base._errors import TopologyError
from meshlab.base._units import format_bandwidth
from meshlab.plots._style import (
    PALETTE,
    WRONG,
    Margins,
    axes_size,
    open_axes,
    reserve,
    set_title,
    text_colors,
    text_width,
)
from meshlab.topology.model._hardware import Node
from meshlab.topology.model._links import UNKNOWN, XGMI, XGMI_VIA, Distance
from meshlab.topology.model._presets import ClusterLike, as_node

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_POINTS = 9.0
_BOX, _GAP = 50.0, 10.0  # width of a box and of a gap, in points of a new figure
_BRANCH_GAP = 10.0  # between two switches
_NVLINK_Y, _END_Y, _SWITCH_Y, _CPU_Y = 0.0, 1.15, 2.3, 3.3  # rows from the bottom to the top
_HIGH = 0.42  # half the height of a box
_GPU, _NIC, _SWITCH, _CPU = PALETTE[2], PALETTE[1], PALETTE[7], PALETTE[4]
_WIDEST, _HEIGHT = 700.0, 331.0  # of a new figure, in points
_MOST = 64


@dataclass(frozen=True, slots=True)
class _Branch:
    """GPUs and NICs below one PCIe switch, or a single endpoint directly below a CPU."""

    numa: str
    word: str  # the link word of its endpoints, empty for a single endpoint
    gpus: tuple[int, ...]
    nics: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Sheet:
    """The axes to draw on, and the scale: points per horizontal unit."""

    ax: Axes
    scale: float

    def box(self, x: float, y: float, label: str, color: str, half: float = _BOX / 2, high: float = _HIGH) -> None:
        from matplotlib.colors import to_rgb
        from matplotlib.patches import FancyBboxPatch

        style = f"round,pad=0,rounding_size={min(half, 4) * 0.8:g}"
        corner = (x - half, y - high)
        box = FancyBboxPatch(corner, 2 * half, 2 * high, boxstyle=style, mutation_aspect=0.02, color=color, zorder=3)
        self.ax.add_patch(box)
        turned = "\n" not in label and text_width(label, _POINTS) > 2 * half * self.scale - 2
        ink = str(text_colors([to_rgb(color)])[0])
        where: Any = {"ha": "center", "va": "center", "rotation": 90 if turned else 0, "zorder": 4}
        self.ax.text(x, y, label, fontsize=_POINTS, color=ink, **where)

    def line(self, start: tuple[float, float], end: tuple[float, float], gbs: float, color: str | None = None) -> None:
        from matplotlib import rcParams

        has_rate = bool(np.isfinite(gbs))
        look: Any = {
            "color": color or rcParams["text.color"],
            "alpha": 1 if color else 0.55,
            "linewidth": 0.8 + 5 * float(np.sqrt(min(gbs, 800) / 800)) if has_rate else 1.0,
            "linestyle": "-" if has_rate else (0, (3, 2)),
            "solid_capstyle": "butt",
            "zorder": 1,
        }
        self.ax.plot([start[0], end[0]], [start[1], end[1]], **look)

    def text(self, x: float, y: float, label: str, **look: Any) -> None:
        self.ax.text(x, y, label, fontsize=_POINTS, **look)


def host(cluster: ClusterLike | Node, node: int | str = 0, *, ax: Axes | None = None) -> Axes:
    """Draw the inside of a host: CPUs at the top, then PCIe switches, GPUs and NICs, and NVLink at the bottom.

    The width of a line shows the speed of the link. NICs below one switch share a box. GPUs without NVLink are marked
    in red if other GPUs have it.

    Parameters
    ----------
    cluster : Cluster, Node or str
        A cluster, the name of a preset, or a host.
    node : int or str, default 0
        The host, by index or name.
    ax : matplotlib.axes.Axes, optional
        The axes to draw on. By default a new figure is created.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    TopologyError
        If the host is unknown.
        If the host has no devices, or more than 64.

    Examples
    --------
    >>> import meshlab as ml
    >>> from matplotlib.figure import Figure
    >>> ax = ml.plot.host("dgx-h100", ax=Figure((12, 5)).add_subplot())
    >>> [text.get_text() for text in ax.texts if "NVLink" in text.get_text()]
    ['NVLink · NV18 between all · 371\u2009GB/s each']
    """
    host = as_node(cluster, node)
    if not host.devices:
        reason = "; ".join(host.notes) or "no devices are known"
        raise TopologyError(f"nothing to draw for {host.name}: {reason}", hint="choose a host with devices")
    if len(host.devices) > _MOST:
        raise TopologyError(
            f"{host.name} has {len(host.devices)} devices, but this figure can show at most {_MOST}",
            hint="draw the link matrix with ml.plot.links()",
        )
    branches = _branches(host)
    boxes = sum(len(branch.gpus) + bool(branch.nics) for branch in branches)
    wide = boxes * (_BOX + _GAP) + (len(branches) - 1) * _BRANCH_GAP + _GAP
    ax = open_axes(ax, min(max(wide + 2 * _GAP, 480.0), _WIDEST), _HEIGHT, Margins(_GAP, 10.0, _GAP, 36.0))
    reserve(ax, above=set_title(ax, [host.name, *([host.model] if host.model else []), host.summary]))
    sheet = _Sheet(ax, min(1.0, axes_size(ax)[0] / wide))
    _draw(sheet, host, branches)
    ax.set(xlim=(-_GAP, max(wide - _GAP, axes_size(ax)[0] / sheet.scale - _GAP)), ylim=(_NVLINK_Y - 1, _CPU_Y + 0.7))
    ax.set_axis_off()
    return ax


def _branches(host: Node) -> list[_Branch]:
    """Return the endpoints of every PCIe switch, derived from the link words, in the order of CPUs and GPUs."""
    gpus = len(host.devices)
    near = (host.distance >= Distance.PIX) & (host.distance <= Distance.PXB)
    numas = [device.numa for device in host.devices] + [nic.numa for nic in host.nics]
    # Connected components of "shares a PCIe switch": endpoints of nested switches (PXB) are one branch.
    left = set(range(len(numas)))
    branches = []
    while left:
        together, edge = {min(left)}, [min(left)]
        while edge:
            neighbours = {int(k) for k in np.flatnonzero(near[edge.pop()])} & (left - together)
            together |= neighbours
            edge += neighbours
        left -= together
        members = sorted(together)
        words = [host.distance[i, j] for i in members for j in members if i < j and near[i, j]]
        branches.append(
            _Branch(
                numa=next((numas[i] or "" for i in members if numas[i]), ""),
                word=Distance(int(max(words))).name if words else "",
                gpus=tuple(i for i in members if i < gpus),
                nics=tuple(i - gpus for i in members if i >= gpus),
            )
        )
    order = {numa: k for k, numa in enumerate(dict.fromkeys(branch.numa for branch in branches if branch.gpus))}
    return sorted(branches, key=lambda b: (order.get(b.numa, len(order)), not b.gpus, b.gpus, b.nics))


def _draw(sheet: _Sheet, host: Node, branches: Sequence[_Branch]) -> None:
    place = 0.0
    gpu_x: dict[int, float] = {}
    cpus: dict[str, list[float]] = {}
    for branch in branches:
        ends = []
        for gpu in branch.gpus:
            gpu_x[gpu] = place + _BOX / 2
            sheet.box(gpu_x[gpu], _END_Y, host.ends[gpu], _GPU)
            ends.append((gpu_x[gpu], host.devices[gpu].pcie_gbs))
            place += _BOX + _GAP
        if branch.nics:
            sheet.box(place + _BOX / 2, _END_Y, _nic_label(host, branch.nics, sheet.scale), _NIC)
            ends.append((place + _BOX / 2, sum(host.nics[k].gbs for k in branch.nics)))
            place += _BOX + _GAP
        _draw_branch(sheet, branch.word, ends)
        cpus.setdefault(branch.numa, []).append((ends[0][0] + ends[-1][0]) / 2)
        place += _BRANCH_GAP
    _draw_cpus(sheet, host, cpus)
    _draw_nvlink(sheet, host, gpu_x)
    is_forwarded = XGMI_VIA in set().union(*host.words)
    rest = "no arc: XGMI through other GPUs" if is_forwarded else "dashed: unknown speed"
    sheet.text(0, _NVLINK_Y - 0.95, f"wider lines are faster · {rest}", alpha=0.8)


def _draw_branch(sheet: _Sheet, word: str, ends: Sequence[tuple[float, float]]) -> None:
    """Draw lines from endpoints to their switch and from there to the CPU, or directly to the CPU."""
    top = _CPU_Y - _HIGH
    if not word or len(ends) == 1:
        for x, gbs in ends:
            sheet.line((x, _END_Y + _HIGH), (x, top), gbs)
        return
    for x, gbs in ends:
        sheet.line((x, _END_Y + _HIGH), (x, _SWITCH_Y - 0.2), gbs)
    half = (ends[-1][0] - ends[0][0]) / 2 + _BOX * 0.3
    middle = (ends[-1][0] + ends[0][0]) / 2
    fastest = max((gbs for _, gbs in ends if np.isfinite(gbs)), default=float("nan"))
    label = f"{word} · {format_bandwidth(fastest)}" if np.isfinite(fastest) else word
    if text_width(label, _POINTS) > 2 * half * sheet.scale - 6:
        label = word
    sheet.box(middle, _SWITCH_Y, label, _SWITCH, half=half, high=0.2)
    sheet.line((middle, _SWITCH_Y + 0.2), (middle, top), fastest)


def _draw_cpus(sheet: _Sheet, host: Node, cpus: dict[str, list[float]]) -> None:
    listed = {device.numa: device.cpus for device in host.devices} | {str(numa.id): numa.cpus for numa in host.numa}
    spans = []
    for numa, places in cpus.items():
        half = (max(places) - min(places)) / 2 + _BOX * 0.6
        middle = (min(places) + max(places)) / 2
        label = f"NUMA {numa}" if numa else "NUMA ?"
        cores = f"CPUs {listed[numa]}" if listed.get(numa) else ""
        if cores and text_width(cores, _POINTS) < 2 * half * sheet.scale - 6:
            label += f"\n{cores}"
        sheet.box(middle, _CPU_Y, label, _CPU, half=half)
        if numa:
            spans.append((middle - half, middle + half))
    if len(spans) > 1:
        gbs = host.gbs[host.distance == Distance.SYS]
        rate = float(max(gbs[np.isfinite(gbs)], default=np.nan))
        for (_, end), (start, _) in pairwise(spans):
            sheet.line((end, _CPU_Y), (start, _CPU_Y), rate)
        label = f"SYS · {format_bandwidth(rate)}" if np.isfinite(rate) else "SYS"
        sheet.text((spans[0][1] + spans[1][0]) / 2, _CPU_Y + _HIGH + 0.06, label, ha="center", va="bottom")


def _draw_nvlink(sheet: _Sheet, host: Node, gpu_x: dict[int, float]) -> None:
    count = len(host.devices)
    links = host.nvlinks[:count, :count]
    if count == 1:
        return
    if not links.any():
        is_complete = host.nvlink_known and not (host.distance[:count, :count] == Distance.UNKNOWN).any()
        label = f"no {host.gpu_link_name}" if is_complete else f"{host.gpu_link_name}: unknown"
        sheet.text(min(gpu_x.values()) - _BOX / 2, _NVLINK_Y - 0.3, label, va="center")
        return
    on = [gpu for gpu in range(count) if links[gpu].any()]
    is_known = (host.distance[:count, :count] != Distance.UNKNOWN).all(axis=1)
    for gpu in sorted(set(range(count)) - set(on)):
        if not is_known[gpu]:
            sheet.text(gpu_x[gpu], _NVLINK_Y + 0.27, f"{host.gpu_link_name}: unknown", ha="center", va="top")
            continue
        missing: Any = {"color": WRONG, "linewidth": 1.2, "linestyle": (0, (2, 2)), "zorder": 1}
        sheet.ax.plot([gpu_x[gpu]] * 2, [_END_Y - _HIGH, _NVLINK_Y + 0.3], **missing)
        sheet.text(gpu_x[gpu], _NVLINK_Y + 0.27, f"no {host.gpu_link_name}", color=WRONG, ha="center", va="top")
    numbers = links[np.ix_(on, on)][~np.eye(len(on), dtype=bool)]
    if numbers.min() == numbers.max():
        _draw_fabric(sheet, host, on, gpu_x, int(numbers.max()))
    else:
        _draw_arcs(sheet, host, on, gpu_x)


def _draw_fabric(sheet: _Sheet, host: Node, on: Sequence[int], gpu_x: dict[int, float], links: int) -> None:
    """Draw NVLink between all pairs, as a bar that connects all GPUs."""
    from matplotlib.patches import Rectangle

    gbs = float(host.gbs[on[0], on[1]])
    for gpu in on:
        sheet.line((gpu_x[gpu], _END_Y - _HIGH), (gpu_x[gpu], _NVLINK_Y - 0.18), gbs, color=_GPU)
    left, right = min(gpu_x[gpu] for gpu in on) - _BOX / 2, max(gpu_x[gpu] for gpu in on) + _BOX / 2
    sheet.ax.add_patch(Rectangle((left, _NVLINK_Y - 0.38), right - left, 0.2, color=_GPU, zorder=2))
    members = "all" if len(on) == len(host.devices) else f"{len(on)} of {len(host.devices)}"
    rate = f" · {format_bandwidth(gbs)} each" if np.isfinite(gbs) else ""
    word = _link_word(host, on, links)
    kind = "" if word == XGMI else f" · {word}"  # the number of links is unknown
    sheet.text(left, _NVLINK_Y - 0.44, f"{host.gpu_link_name}{kind} between {members}{rate}", va="top")


def _link_word(host: Node, on: Sequence[int], links: int) -> str:
    """Return the word of pairs with a number of links, without the number if it is unknown."""
    words = [host.words[i][j] for i in on for j in on if i != j and host.nvlinks[i, j] == links]
    return next((word for word in words if word != UNKNOWN), "NVLink")


def _draw_arcs(sheet: _Sheet, host: Node, on: Sequence[int], gpu_x: dict[int, float]) -> None:
    """Draw NVLink between some pairs, as arcs whose width shows the number of links."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import FancyArrowPatch

    counts = sorted({int(host.nvlinks[i, j]) for i in on for j in on if i < j} - {0}, reverse=True)
    looks: dict[int, Any] = {
        count: {"color": PALETTE[k % len(PALETTE)], "linewidth": max(1.0, 5 * count / counts[0])}
        for k, count in enumerate(counts)
    }
    span = max(gpu_x.values()) - min(gpu_x.values())
    for i in on:
        for j in on:
            links = int(host.nvlinks[i, j])
            if i < j and links:
                bend = 0.12 + 0.3 * (gpu_x[j] - gpu_x[i]) / max(span, 1)
                look = {"connectionstyle": f"arc3,rad={bend:.3f}", "arrowstyle": "-", "zorder": 1, **looks[links]}
                start, end = (gpu_x[i], _END_Y - _HIGH), (gpu_x[j], _END_Y - _HIGH)
                sheet.ax.add_patch(FancyArrowPatch(posA=start, posB=end, **look))
    lines = [Line2D([], [], label=_link_word(host, on, count), **look) for count, look in looks.items()]
    # Below the widest arc, beside the note on the width of lines.
    place: Any = {"loc": "lower right", "bbox_to_anchor": (1, 0), "frameon": False, "ncols": len(lines)}
    sheet.ax.legend(handles=lines, fontsize=_POINTS, borderpad=0, **place)


def _nic_label(host: Node, nics: Sequence[int], scale: float) -> str:
    """Return the label of a box of NICs: their names and their line rate."""
    first, last = host.nics[nics[0]].name, host.nics[nics[-1]].name
    room = _BOX * scale - 2
    start, tail = re.search(r"(?<!\d)\d+$", first), re.search(r"(?<!\d)\d+$", last)
    name = first if len(nics) == 1 else f"{first}–{tail[0]}" if tail else f"{first} +{len(nics) - 1}"
    if text_width(name, _POINTS) > room - 2:
        numbers = f"\n{start[0]}–{tail[0]}" if start and tail and len(nics) > 1 else ""
        name = f"NICs{numbers}" if numbers else f"{len(nics)} NICs" if len(nics) > 1 else "NIC"
    gbits = host.nics[nics[0]].gbits
    speeds = (
        [] if gbits is None else [f"{gbits:g}G"] if len(nics) == 1 else [f"{len(nics)} × {gbits:g}G", f"{gbits:g}G"]
    )
    speed = next((text for text in speeds if text_width(text, _POINTS) < room), "")
    return f"{name}\n{speed}" if speed else name
