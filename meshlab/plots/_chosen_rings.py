"""The rings that NCCL chose, as a log shows them, next to the ring of the mesh."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from meshlab.base._errors import TopologyError
from meshlab.diagnosis._explanation import Explanation
from meshlab.mesh._mesh import DeviceMesh, MeshLike, as_mesh
from meshlab.plots._ring_curves import POINTS, bowed_curves, draw_hops, draw_hosts, draw_ranks
from meshlab.plots._style import PALETTE, Margins, axes_size, open_axes, reserve, set_title, text_width, wrap_words

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_MOST_ORDERS = 3  # different rings that are drawn; more are counted
_MOST = 4096
_HOSTS, _NAMES, _EDGE = 1.16, 1.26, 1.42  # radius of host arcs and host names, half the height of a circle
_SCALE = 105.0  # points of the radius in a new figure
_ARROW = 8.0
_CAPTION = 3.4 * POINTS  # height of two lines above a circle

# Kinds of hops from the inside out: label, colour, width, line style, and depth of the curve towards the centre.
_LOOKS: Mapping[str, tuple[str, Any, float, Any, float]] = {
    "P2P": ("hop inside a host", PALETTE[2], 3.0, "-", 0.12),
    "SHM": ("hop inside a host", PALETTE[1], 2.5, (0, (4, 1)), 0.3),
    "GDR": ("hop between hosts", PALETTE[0], 2.5, (0, (2, 1)), 0.6),
    "NET": ("hop between hosts without GPU Direct RDMA", PALETTE[3], 2.5, (0, (1, 1)), 0.6),
    "host": ("hop inside a host", PALETTE[2], 3.0, "-", 0.12),
    "between": ("hop between hosts", PALETTE[0], 2.5, (0, (2, 1)), 0.6),
    "hop": ("hop", PALETTE[2], 3.0, "-", 0.12),
}


@dataclass(frozen=True)
class _Ring:
    """One order of ranks: positions in the communicator, and what uses it."""

    order: tuple[int, ...]
    caption: str
    kinds: tuple[str, ...]  # of every hop, from a rank to the next one: a transport, or a key of _LOOKS


@dataclass(frozen=True)
class _ChosenRings:
    """The rings of one communicator."""

    orders: Mapping[tuple[int, ...], list[int]]  # order to channels
    n_channels: int
    n_broken: int  # channels of which a part is missing
    host: Mapping[int, str] = field(default_factory=dict)
    via: Mapping[tuple[int, int, int], str] = field(default_factory=dict)  # channel, rank, next


def chosen_ring(
    source: Explanation | pd.DataFrame,
    *,
    mesh: MeshLike | None = None,
    axis: str | Sequence[str] | None = None,
    comm: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw the rings in a log, see `meshlab.plots.ring`."""
    group = None if mesh is None else _group(as_mesh(mesh), axis)
    chosen = _chosen_rings(source, comm, None if group is None else len(group[1]))
    size = len(next(iter(chosen.orders)))
    if size > _MOST:
        raise TopologyError(f"the ring has {size:,} ranks, but a picture can show at most {_MOST:,}")
    labels = list(range(size)) if group is None else group[1]
    mesh_order = _mesh_order(size, chosen.host)
    rings = [_ring(order, channels, chosen) for order, channels in list(chosen.orders.items())[:_MOST_ORDERS]]
    if group is not None:
        rings.append(_mesh_ring(group[0], mesh_order, rings, chosen))
    columns = len(rings) if len(rings) < 4 else 2
    width = 2 * columns * (_NAMES * _SCALE + _names_width(chosen))
    height = math.ceil(len(rings) / columns) * (2 * _EDGE * _SCALE + _CAPTION) + _legend_height(rings) + 44
    ax = open_axes(ax, max(width, 420), height, Margins(5, 4, 5, 40))
    reserve(ax, above=set_title(ax, _title(chosen, size, mesh_order, group)))
    centers, scale = _layout(ax, rings, chosen)
    for ring, center in zip(rings, centers, strict=True):
        _draw(ax, ring, mesh_order, labels, chosen.host, center, scale)
    _legend(ax, rings)
    ax.set_axis_off()
    return ax


# -- tables ------------------------------------------------------------------------------------------------------------


def _group(mesh: DeviceMesh, axis: str | Sequence[str] | None) -> tuple[str, list[int]]:
    """Return the name and the ranks of the group whose communicator is drawn."""
    groups = mesh[axis if axis is not None else ("world" if len(mesh.axes) > 1 else mesh.axes[0].name)]
    return groups[0].name, groups[0].array.tolist()


def _chosen_rings(source: Explanation | pd.DataFrame, comm: str | None, size: int | None) -> _ChosenRings:
    if isinstance(source, Explanation):
        tables = {name: source.table(name) for name in ("rings", "channels", "communicators") if name in source.tables}
    else:
        tables = {"rings": source}
    rings = tables.get("rings")
    missing = {"channel", "rank", "next"} - set(() if rings is None else rings.columns)
    if rings is None or missing or rings.empty:
        raise TopologyError(
            "the text has no rings of NCCL" if rings is None or not missing else f"no column {sorted(missing)[0]!r}",
            hint="pass the log of rank 0 with NCCL_DEBUG=INFO, which has lines such as 'Channel 00/08 : 0 1 2 3'",
        )
    orders_by_comm: dict[object, tuple[dict[tuple[int, ...], list[int]], int]] = {}
    if "comm" not in rings.columns:
        rings = rings.assign(comm=None)
    for label, part in rings.groupby("comm", dropna=False, sort=False):
        orders_by_comm[label if isinstance(label, str) else None] = _orders(part)
    complete = {name: orders for name, (orders, _) in orders_by_comm.items() if orders}
    sizes = {name: len(next(iter(orders))) for name, orders in complete.items()}
    fitting = [n for n in complete if (comm is None or n == comm) and (size is None or sizes[n] == size)]
    if not fitting:
        choices = ", ".join(f"{name or 'unnamed'} with {count} ranks" for name, count in list(sizes.items())[:6])
        request = f" of {comm!r}" * (comm is not None) + (f" with {size} ranks" if size is not None else "")
        raise TopologyError(
            f"the text has no complete ring{request}",
            hint=f"choose a group or communicator of: {choices}" if choices else "pass the complete log of rank 0",
        )
    name = max(fitting, key=lambda key: sizes[key])
    orders, broken = orders_by_comm[name]
    return _ChosenRings(
        orders,
        sum(map(len, orders.values())),
        broken,
        _hosts(tables.get("communicators"), name),
        _vias(tables.get("channels"), name),
    )


def _orders(rings: pd.DataFrame) -> tuple[dict[tuple[int, ...], list[int]], int]:
    """Return the complete rings with their channels, and the number of channels without a complete ring."""
    orders: dict[tuple[int, ...], list[int]] = {}
    broken = 0
    for channel in sorted(rings["channel"].astype(int).unique().tolist()):
        part = rings[rings["channel"] == channel]
        links = dict(zip(part["rank"].astype(int).tolist(), part["next"].astype(int).tolist(), strict=True))
        order = [min(links)]
        while len(order) < len(links) and links.get(order[-1], -1) not in (-1, order[0]):
            order.append(links[order[-1]])
        if (
            len(set(order)) == len(links) > 1
            and links.get(order[-1]) == order[0]
            and set(order) == set(range(len(order)))
        ):
            orders.setdefault(tuple(order), []).append(channel)
        else:
            broken += 1
    return orders, broken


def _hosts(communicators: pd.DataFrame | None, comm: object) -> dict[int, str]:
    """Return the host of every rank of a communicator, or nothing if a rank is missing."""
    if communicators is None:
        return {}
    rows = communicators[communicators["comm"].isna()] if comm is None else communicators[communicators["comm"] == comm]
    pairs = zip(rows["rank"].tolist(), rows["host"].tolist(), strict=True)
    return {int(rank): host for rank, host in pairs if isinstance(host, str) and rank == rank}


def _vias(channels: pd.DataFrame | None, comm: object) -> dict[tuple[int, int, int], str]:
    """Return the transport of every hop: channel, rank and next rank."""
    if channels is None:
        return {}
    rows = channels[channels["comm"].isna()] if comm is None else channels[channels["comm"] == comm]
    columns = ["channel", "rank", "peer", "direction", "via"]
    vias: dict[tuple[int, int, int], str] = {}
    for channel, rank, peer, direction, via in rows[columns].itertuples(index=False):
        hop = (rank, peer) if direction == "send" else (peer, rank)
        vias.setdefault((int(channel), int(hop[0]), int(hop[1])), str(via))
    return vias


# -- rings -------------------------------------------------------------------------------------------------------------


def _mesh_order(size: int, host: Mapping[int, str]) -> tuple[int, ...]:
    """Return the order that visits every host once, in the order of its first rank; without hosts that of the ranks."""
    if len(host) < size:
        return tuple(range(size))
    first: dict[str, int] = {}
    for rank in range(size):
        first.setdefault(host[rank], rank)
    return tuple(sorted(range(size), key=lambda rank: (first[host[rank]], rank)))


def _hops(order: Sequence[int]) -> list[tuple[int, int]]:
    return list(zip(order, [*order[1:], order[0]], strict=True))


def _kind(chosen: _ChosenRings, channel: int | None, rank: int, after: int) -> str:
    """Return the transport of a hop, or whether it leaves the host, as far as the text shows it."""
    via = None if channel is None else chosen.via.get((channel, rank, after))
    if via is not None:
        return via
    if rank in chosen.host and after in chosen.host:
        return "host" if chosen.host[rank] == chosen.host[after] else "between"
    return "hop"


def _ring(order: tuple[int, ...], channels: Sequence[int], chosen: _ChosenRings) -> _Ring:
    kinds = tuple(_kind(chosen, channels[0], a, b) for a, b in _hops(order))
    caption = f"NCCL: channel{'s' * (len(channels) > 1)} {_ranges(channels)}"
    crossings = _crossings(order, chosen.host)
    if crossings:
        fewest = _crossings(_mesh_order(len(order), chosen.host), chosen.host)
        caption += f"\n{crossings} hops between hosts" + (f", {fewest} would do" if crossings > fewest else "")
    return _Ring(order, caption, kinds)


def _mesh_ring(name: str, mesh_order: tuple[int, ...], rings: Sequence[_Ring], chosen: _ChosenRings) -> _Ring:
    """Return the ring of the mesh, with the transports that NCCL uses most inside a host and between hosts."""
    usual: dict[str, Counter[str]] = {}
    for ring in rings:
        for (rank, after), kind in zip(_hops(ring.order), ring.kinds, strict=True):
            usual.setdefault(_kind(chosen, None, rank, after), Counter())[kind] += 1
    places = [_kind(chosen, None, rank, after) for rank, after in _hops(mesh_order)]
    kinds = tuple(usual[place].most_common(1)[0][0] if place in usual else place for place in places)
    caption = f"Mesh: {name}" + (
        ", host by host" if len(chosen.host) >= len(mesh_order) else ", in the order of its ranks"
    )
    crossings = _crossings(mesh_order, chosen.host)
    return _Ring(mesh_order, caption + (f"\n{crossings} hops between hosts" if crossings else ""), kinds)


def _crossings(order: Sequence[int], host: Mapping[int, str]) -> int:
    """Return the number of hops between hosts, 0 if a host is unknown."""
    return sum(host[a] != host[b] for a, b in _hops(order)) if len(host) >= len(order) else 0


def _ranges(numbers: Sequence[int]) -> str:
    """Return numbers as ranges, such as "0–2, 5"."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    texts = [str(a) if a == b else f"{a}–{b}" for a, b in parts]
    return ", ".join(texts[:6]) + (" …" if len(texts) > 6 else "")


def _title(
    chosen: _ChosenRings, size: int, mesh_order: tuple[int, ...], group: tuple[str, list[int]] | None
) -> list[str]:
    channels = f"{chosen.n_channels} channel{'s' * (chosen.n_channels > 1)}"
    fewest = _crossings(mesh_order, chosen.host)
    poor = sum(len(numbers) for order, numbers in chosen.orders.items() if _crossings(order, chosen.host) > fewest)
    if fewest and not poor:
        channels += " with the fewest hops between hosts"
    elif fewest:
        channels += f", {poor} with more hops between hosts than needed"
    elif group is not None:
        same = sum(len(numbers) for order, numbers in chosen.orders.items() if order == _turned(mesh_order))
        counted = "" if same == chosen.n_channels else f"{same} " if same else "not "
        channels += f", {counted}in the order of {group[0]}"
    parts = [f"Rings that NCCL chose for {size:,} ranks", channels]
    hidden = len(chosen.orders) - _MOST_ORDERS
    if hidden > 0:
        parts.append(f"{hidden} more order{'s' * (hidden > 1)} not shown")
    if chosen.n_broken:
        parts.append(f"{chosen.n_broken} incomplete")
    return parts


def _turned(order: tuple[int, ...]) -> tuple[int, ...]:
    """Return a ring that starts at its lowest rank."""
    start = order.index(min(order))
    return order[start:] + order[:start]


# -- drawing -----------------------------------------------------------------------------------------------------------


def _names_width(chosen: _ChosenRings) -> float:
    return max((text_width(host, POINTS) for host in set(chosen.host.values())), default=0.0) + 10


def _legend_height(rings: Sequence[_Ring]) -> float:
    return 1.8 * (POINTS + 1) * len({_look(kind) for ring in rings for kind in ring.kinds}) + 16


def _layout(ax: Axes, rings: Sequence[_Ring], chosen: _ChosenRings) -> tuple[npt.NDArray[np.float64], float]:
    """Set the limits, and return the centres of the circles and the radius in points. The legend is below."""
    width, height = axes_size(ax)
    names, free = _names_width(chosen), height - _legend_height(rings)
    scales = {}
    for columns in range(1, len(rings) + 1):
        rows = math.ceil(len(rings) / columns)
        scales[columns] = min((width / columns / 2 - names) / _NAMES, (free / rows - _CAPTION) / (2 * _EDGE))
    columns = max(scales, key=lambda count: scales[count])
    scale = max(scales[columns], 12.0)
    number = np.arange(len(rings))
    x = (width / columns * (number % columns + 0.5) - width / 2) / scale
    y = -(number // columns) * (2 * _EDGE + _CAPTION / scale)
    top = _EDGE + _CAPTION / scale
    ax.set(xlim=(-width / 2 / scale, width / 2 / scale), ylim=(top - height / scale, top), aspect="equal")
    return np.stack([x, y], axis=1), scale


def _look(kind: str) -> str:
    """Return the key of the look of a kind of hop."""
    if kind in _LOOKS:
        return "GDR" if kind == "between" else "P2P" if kind == "host" else kind
    if kind.startswith("NET"):
        return "GDR" if "GDRDMA" in kind else "NET"
    return "SHM" if kind.startswith("SHM") else "P2P"


def _draw(
    ax: Axes,
    ring: _Ring,
    mesh_order: Sequence[int],
    labels: Sequence[int],
    host: Mapping[int, str],
    center: npt.NDArray[np.float64],
    scale: float,
) -> None:
    """Draw one ring. The ranks are where the wanted ring has them, so any other ring has hops across the circle."""
    size = len(mesh_order)
    angle = np.pi / 2 - 2 * np.pi * np.arange(size) / size
    where = np.zeros((size, 2))
    where[list(mesh_order)] = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    where += center
    hops = _hops(ring.order)
    step = max(1, math.ceil(size * 2 * _ARROW / (2 * np.pi * scale)))
    for kind in dict.fromkeys(ring.kinds):
        indices = [index for index, hop in enumerate(ring.kinds) if hop == kind]
        _, color, wide, style, depth = _LOOKS[_look(kind)]
        start = where[[hops[index][0] for index in indices]] - center
        end = where[[hops[index][1] for index in indices]] - center
        length = np.linalg.norm(end - start, axis=1, keepdims=True)
        curves = bowed_curves(start, end, np.minimum(depth, 0.3 * length)) + center
        look = {"color": color, "linewidth": wide, "linestyle": style}
        chosen = curves[[k for k, index in enumerate(indices) if index % step == 0]]
        # Of the first two thirds, because hops across the circle meet in its centre.
        draw_hops(ax, curves, look, chosen[:, :16], _ARROW / scale)
    draw_ranks(ax, where, labels, scale, padding=7, lines=1.6)
    x, y = center.tolist()
    if len(host) >= size:
        hosts = [host[rank] for rank in mesh_order]
        names = draw_hosts(ax, hosts, angle, (_HOSTS, _NAMES), center=center, points=(48, 48))
        for name in names if len(names) <= 2 * np.pi * _NAMES * scale / (2.2 * POINTS) else ():
            ax.text(name.x + x, name.y + y, hosts[name.start], ha=name.side, va="center", fontsize=POINTS)
    ax.text(x, y + _EDGE + 4 / scale, ring.caption, ha="center", va="bottom", fontsize=POINTS, linespacing=1.3)


def _legend(ax: Axes, rings: Sequence[_Ring]) -> None:
    """Draw one entry per look, with the transports that have it."""
    from matplotlib.lines import Line2D

    kinds = sorted({kind for ring in rings for kind in ring.kinds})
    handles = []
    for name, (label, color, wide, style, _) in _LOOKS.items():
        transports = [kind for kind in kinds if _look(kind) == name]
        if transports:
            vias = ", ".join(kind for kind in transports if kind not in ("host", "between", "hop"))
            text = wrap_words(f"{label} · {vias}" if vias else label, axes_size(ax)[0] - 60, POINTS + 1)
            handles.append(Line2D([], [], color=color, linewidth=wide, linestyle=style, label=text))
    ax.legend(
        handles=handles, loc="lower center", fontsize=POINTS + 1, handlelength=3.4, labelspacing=0.8, frameon=False
    )
