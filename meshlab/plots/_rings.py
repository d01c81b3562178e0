"""The ring of a group: its ranks on a circle, host by host, and a curve for every hop."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt

from meshlab.base._errors import TopologyError
from meshlab.base._units import format_bandwidth
from meshlab.diagnosis._explanation import Explanation
from meshlab.mesh._describe import fastest_axis
from meshlab.mesh._mesh import MeshLike
from meshlab.plots._chosen_rings import chosen_ring
from meshlab.plots._ring_curves import POINTS, bowed_curves, draw_hops, draw_hosts, draw_ranks
from meshlab.plots._style import PALETTE, Margins, axes_size, open_axes, reserve, set_title, text_width, write_beside
from meshlab.topology.model._cluster import Cluster
from meshlab.topology.model._levels import HOST, INNER_LEVELS, Ints
from meshlab.topology.model._links import Distance
from meshlab.topology.model._presets import ClusterLike
from meshlab.topology.placement._crossings import ring_hops
from meshlab.topology.placement._placement import Placement, as_placement

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_RADIUS, _HOSTS, _NAMES = 1.0, 1.14, 1.22  # of ranks, host arcs, and host names
_EDGE = 1.34  # half the height of the circle with its names
_WIDTH, _SCALE = 475.0, 150.0  # width of a new figure, and its largest radius, in points
_ARROW = 8.0  # length of an arrow in points
_FEW_ARROWS = 16  # in a ring without room for one arrow per hop
_MOST = 4096
_REPEATED = PALETTE[5]  # the colour of links that the ring crosses several times
_MOST_REPEATS = 40  # numbers at hops; beyond this, the legend alone has them
# Line style of a hop by level, from the device outwards, and the depth of its curve towards the centre of the circle.
_STYLES: tuple[Any, ...] = ((0, (1, 1)), "-", (0, (4, 1)), (0, (6, 1.5, 1, 1.5)), (0, (2, 1)), "-")
_COLORS = (PALETTE[7], PALETTE[2], PALETTE[0], PALETTE[1], PALETTE[3], PALETTE[5])
_WIDTHS = (1.5, 4.0, 3.0, 2.5, 2.5, 2.5)
_DEPTHS = (0.05, 0.1, 0.25, 0.45, 0.75, 1.05)


@overload
def ring(what: Placement, axis: str | Sequence[str] | None = None, /, *, ax: Axes | None = None) -> Axes: ...
@overload
def ring(
    what: MeshLike | Placement,
    cluster: ClusterLike | None = None,
    *,
    axis: str | Sequence[str] | None = None,
    devices: Sequence[int] | Ints | None = None,
    ax: Axes | None = None,
) -> Axes: ...
@overload
def ring(
    what: Explanation | pd.DataFrame,
    *,
    mesh: MeshLike | None = None,
    axis: str | Sequence[str] | None = None,
    comm: str | None = None,
    ax: Axes | None = None,
) -> Axes: ...
def ring(
    what: MeshLike | Placement | Explanation | pd.DataFrame,
    cluster: Any = None,
    *,
    axis: str | Sequence[str] | None = None,
    devices: Sequence[int] | Ints | None = None,
    mesh: MeshLike | None = None,
    comm: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw the ring of a group as NCCL builds it, or the rings that NCCL chose in a log.

    The ring of a group visits every host once, in the order of its first rank. Hops over outer levels bend further
    towards the centre. A number such as ``2×`` is at hops that share a link: between the sockets of a host, or the
    uplink of a domain, which counts in one direction. In a log, channels often have different rings: each order is
    drawn once, with its channels.

    Parameters
    ----------
    what : DeviceMesh, str, Placement, Explanation or pandas.DataFrame
        A mesh, text such as ``"dp=2, tp=4"``, or a placement. For a log: the result of `explain`, or its table
        ``"rings"`` with columns ``channel``, ``rank`` and ``next``.
    cluster : Cluster or str
        A cluster, or the name of a preset. After a placement, the second argument is `axis`. Not for a log.
    axis : str or sequence of str, optional
        The name of a group, such as ``"dp_3"`` or ``"world"``. For an axis or several axes, the first group is drawn.
        By default the fastest axis. For a log: the group whose communicator is drawn, by default the whole mesh.
    devices : sequence of int, optional
        The device of every rank. By default rank r uses device r. Not for a log.
    mesh : DeviceMesh or str, optional
        For a log: the mesh of the job. The ring of the group is drawn next to those that NCCL chose.
    comm : str, optional
        For a log: the communicator, as in the table ``"communicators"``. By default the one with most ranks, or with as
        many ranks as the group.
    ax : matplotlib.axes.Axes, optional
        The axes to draw on. By default a new figure is created.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    MeshError
        If the axis or group is unknown.
    TopologyError
        If no cluster is given, or the mesh has more ranks than the cluster has devices.
        If the group has one rank, or more than 4,096.
        If the log has no complete ring, or none with as many ranks as the group.

    Examples
    --------
    >>> import meshlab as ml
    >>> from matplotlib.figure import Figure
    >>> ax = ml.plot.ring("tp=16", ml.preset("dgx-h100", nodes=2), axis="tp", ax=Figure((8, 6)).add_subplot())
    >>> [text.get_text() for text in ax.get_legend().get_texts()]
    ['14 hops over NV18 · 371\u2009GB/s', '2 hops over leaf · 48.0\u2009GB/s']
    >>> import pandas as pd
    >>> chosen = pd.DataFrame({"channel": 0, "rank": [0, 2, 1, 3], "next": [2, 1, 3, 0]})
    >>> ax = ml.plot.ring(chosen, mesh="tp=4", ax=Figure((8, 5)).add_subplot())
    >>> ax.get_title(loc="left")
    'Rings that NCCL chose for 4 ranks · 1 channel, not in the order of tp_0'
    """
    if isinstance(what, Explanation) or hasattr(what, "columns"):
        return chosen_ring(what, mesh=mesh, axis=axis, comm=comm, ax=ax)  # type: ignore[arg-type]
    if mesh is not None or comm is not None:
        raise TopologyError(
            "mesh= and comm= are for the rings in a log",
            hint="pass the mesh first, then the cluster: ring(mesh, cluster)",
        )
    if isinstance(what, Placement) and axis is None and not isinstance(cluster, Cluster):
        cluster, axis = None, cluster
    return _draw_ring(as_placement(what, cluster, devices), axis, ax)


def _draw_ring(placement: Placement, axis: str | Sequence[str] | None, ax: Axes | None) -> Axes:
    """Draw the ring of a group as NCCL builds it."""
    groups = placement.mesh[axis or fastest_axis(placement.mesh)]
    ranks = groups[0]
    size = len(ranks)
    if size < 2:
        raise TopologyError(f"group {ranks.name} has only one rank", hint="choose an axis with several ranks")
    if size > _MOST:
        raise TopologyError(f"group {ranks.name} has {size:,} ranks, but a ring can show at most {_MOST:,}")
    order, level, distance, gbs = ring_hops(placement.rank_map, ranks.array)
    kind = level.astype(np.int16) * 16 + distance  # a sort key: level, then distance
    names = _names_width(placement, order)
    is_repeated = (crossings_of_links(placement, order, kind) > 1).any()
    legend = 1.8 * (POINTS + 1) * (len(np.unique(kind)) + int(is_repeated)) + 12
    title = [f"{ranks.name}: ring of {size:,} ranks, clockwise", placement.cluster.title or placement.cluster.summary]
    if len(groups) > 1:
        title.insert(1, f"one of {len(groups):,} {groups.name} groups")
    scale = min((_WIDTH / 2 - names) / _NAMES, _SCALE)
    ax = open_axes(ax, _WIDTH, 2 * _EDGE * scale + legend + 40, Margins(5, 4, 5, 36))
    reserve(ax, above=set_title(ax, title))
    scale = _fit(ax, names, legend)
    angle = np.pi / 2 - 2 * np.pi * np.arange(size) / size
    where = np.stack([np.cos(angle), np.sin(angle)], axis=1) * _RADIUS
    _draw_hops(ax, placement, order, where, kind, gbs, scale)
    draw_ranks(ax, where, order.tolist(), scale, padding=8, lines=1.7)
    _draw_hosts(ax, placement, order, angle, scale)
    ax.set_axis_off()
    return ax


def _names_width(placement: Placement, order: npt.NDArray[np.int32]) -> float:
    hosts = np.unique(placement.rank_map.node[order])[:200]
    return text_width(max((placement.cluster.names[host] for host in hosts), key=len), POINTS) + 8


def _fit(ax: Axes, names: float, legend: float) -> float:
    """Set the limits of the axes, and return the radius in points. The legend is below or, in wide axes, beside."""
    width, height = axes_size(ax)
    if width > 1.5 * height:
        scale = min(height / (2 * _EDGE), (width / 2 - names) / _NAMES)
        left = _NAMES + names / scale
        ax.set(xlim=(-left, -left + width / scale), ylim=(-height / 2 / scale, height / 2 / scale), aspect="equal")
    else:
        scale = max(min((width / 2 - names) / _NAMES, (height - legend) / (2 * _EDGE)), 10.0)
        ax.set(xlim=(-width / 2 / scale, width / 2 / scale), ylim=(_EDGE - height / scale, _EDGE), aspect="equal")
    return scale


def _draw_hops(
    ax: Axes,
    placement: Placement,
    order: npt.NDArray[np.int32],
    where: npt.NDArray[np.float64],
    kinds: npt.NDArray[np.int16],
    gbs: npt.NDArray[np.float64],
    scale: float,
) -> None:
    """Draw the hops with arrows, and the legend. `kinds` has the level of a hop × 16 + its `Distance`."""
    from matplotlib.lines import Line2D

    names = placement.cluster.level_names
    tapers = [1.0] * len(INNER_LEVELS) + [outer.taper for outer in placement.cluster.levels]
    handles: list[Any] = []
    middles, hops_of = [], []
    with_arrow = np.zeros(len(order), dtype=bool)
    is_roomy = 2 * np.pi * _RADIUS * scale / len(order) > 2 * _ARROW
    with_arrow[:: 1 if is_roomy else math.ceil(len(order) / _FEW_ARROWS)] = True
    for kind in np.unique(kinds).tolist():  # one legend entry per kind of hop
        is_kind = kinds == kind
        step = min(kind // 16, len(_COLORS) - 1)
        look: Any = {"color": _COLORS[step], "linewidth": _WIDTHS[step], "linestyle": _STYLES[step]}
        curves = bowed_curves(where[is_kind], np.roll(where, -1, axis=0)[is_kind], _DEPTHS[step])
        draw_hops(ax, curves, look, curves[with_arrow[is_kind]], _ARROW / scale)
        middles.append(curves[:, curves.shape[1] // 2])
        hops_of.append(np.flatnonzero(is_kind))
        first = int(np.flatnonzero(is_kind)[0])
        word = names[kind // 16]
        if kind % 16 != Distance.UNKNOWN:
            word = placement.word_between(int(order[first]), int(np.roll(order, -1)[first]))
        rates = gbs[is_kind]
        rate = f" · {format_bandwidth(float(rates.min()))}" if np.isfinite(rates).all() else ""
        taper = max(tapers[: kind // 16 + 1])
        rate += f", 1:{taper:g} oversubscribed" if taper > 1 else ""
        hops = int(is_kind.sum())
        handles.append(Line2D([], [], label=f"{hops:,} hop{'s' * (hops > 1)} over {word}{rate}", **look))
    width, height = axes_size(ax)
    place: Any = {"loc": "lower center", "bbox_to_anchor": (0.5, 0.0)}
    if width > 1.5 * height:
        right = (2 * (_NAMES * scale + _names_width(placement, order)) + 8) / width
        place = {"loc": "center left", "bbox_to_anchor": (right, 0.5)}
    handles += _draw_repeats(ax, placement, order, kinds, np.concatenate(middles), np.concatenate(hops_of))
    ax.legend(handles=handles, fontsize=POINTS + 1, handlelength=3.4, labelspacing=0.8, frameon=False, **place)


def _draw_repeats(
    ax: Axes,
    placement: Placement,
    order: npt.NDArray[np.int32],
    kinds: npt.NDArray[np.int16],
    middles: npt.NDArray[np.float64],
    hops: npt.NDArray[np.intp],
) -> list[Any]:
    """Write at each hop how often the ring crosses its link, if more than once. Return the entry of the legend."""
    from matplotlib.lines import Line2D

    counts = crossings_of_links(placement, order, kinds)[hops]
    is_repeated = counts > 1
    if not is_repeated.any():
        return []
    if is_repeated.sum() <= _MOST_REPEATS:
        ground = {
            "boxstyle": "round,pad=0.2",
            "facecolor": ax.get_facecolor(),
            "edgecolor": _REPEATED,
            "linewidth": 1.0,
        }
        for (x, y), count in zip(middles[is_repeated], counts[is_repeated], strict=True):
            look = {"ha": "center", "va": "center", "xycoords": "data", "bbox": ground, "gid": "repeat", "zorder": 6}
            write_beside(ax, f"{count}×", (x, y), (0, 0), **look)
    label = f"{is_repeated.sum():,} hops share a link with others, up to {counts.max()}×"
    return [Line2D([], [], linestyle="none", marker="s", markersize=9, color=_REPEATED, fillstyle="none", label=label)]


def crossings_of_links(
    placement: Placement, order: npt.NDArray[np.int32], kinds: npt.NDArray[np.int16]
) -> npt.NDArray[np.intp]:
    """Return how often the ring crosses the busiest link of each hop: that of the sockets, or the uplink of a domain.

    An uplink counts in one direction, because a ring always leaves a domain as often as it enters it.
    """
    rank_map = placement.rank_map
    counts = np.ones(len(order), dtype=np.intp)
    level, distance = kinds // 16, kinds % 16
    between_sockets = distance == Distance.SYS
    host = rank_map.node[order]
    for node in np.unique(host[between_sockets]):
        shared = between_sockets & (host == node)
        counts[shared] = shared.sum()
    for index in range(HOST + 1, len(rank_map.domains)):
        domain = rank_map.domains[index][order]
        leaves = (level > index) & (domain != np.roll(domain, -1))
        for name in np.unique(domain[leaves]):
            shared = leaves & (domain == name)
            counts[shared] = np.maximum(counts[shared], shared.sum())
    return counts


def _draw_hosts(
    ax: Axes, placement: Placement, order: npt.NDArray[np.int32], angle: npt.NDArray[np.float64], scale: float
) -> None:
    """Draw an arc per host outside the ranks, and the names of the hosts for which there is room."""
    node = placement.rank_map.node[order]
    boxes: list[tuple[float, float, float, float]] = []
    for start, x, y, side in draw_hosts(ax, node.tolist(), angle, (_HOSTS, _NAMES), points=(2, 64)):
        name = placement.cluster.names[node[start]]
        wide, high = (text_width(name, POINTS) + 4) / scale, 1.5 * POINTS / scale
        left = x if side == "left" else x - wide if side == "right" else x - wide / 2
        box = (left, y - high / 2, left + wide, y + high / 2)
        # Names follow the circle, so a new one can overlap only the previous ones, or the first ones at the end.
        if any(box[0] < b[2] and b[0] < box[2] and box[1] < b[3] and b[1] < box[3] for b in boxes[-60:] + boxes[:3]):
            continue
        boxes.append(box)
        ax.text(x, y, name, ha=side, va="center", fontsize=POINTS)
