"""Ranks, hosts, and the curves and arrow heads of hops in pictures of rings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from meshlab.plots._style import text_width

if TYPE_CHECKING:
    from matplotlib.axes import Axes

POINTS = 9.0

Floats = npt.NDArray[np.float64]


def _arrow_heads(curves: Floats, length: float) -> Floats:
    """Return a triangle in the middle of every curve, in its direction: float64 of shape (hops, 3, 2)."""
    middle = curves.shape[1] // 2
    center = curves[:, middle]
    along = curves[:, middle + 1] - curves[:, middle - 1]
    along = along / np.maximum(np.linalg.norm(along, axis=1, keepdims=True), 1e-9) * length
    across = np.stack([-along[:, 1], along[:, 0]], axis=1) * 0.55
    return np.stack([center + along * 0.6, center - along * 0.4 + across, center - along * 0.4 - across], axis=1)


def bowed_curves(start: Floats, end: Floats, depth: float | Floats) -> Floats:
    """Return curves from start to end that bend towards the centre: float64 of shape (hops, points, 2)."""
    middle = (start + end) / 2
    reach = np.linalg.norm(middle, axis=1, keepdims=True)
    # Between opposite points the line already passes through the centre, and there is no direction to bend it.
    control = np.where(reach > 1e-9, middle * (1 - depth / np.maximum(reach, depth)), middle)
    t = np.linspace(0, 1, 24)[None, :, None]
    return (1 - t) ** 2 * start[:, None] + 2 * t * (1 - t) * control[:, None] + t**2 * end[:, None]


def draw_hops(ax: Axes, curves: Floats, look: dict[str, Any], arrows: Floats, length: float) -> None:
    """Draw hops with the look of a `Line2D`, and an arrow head of this length in the middle of each of the `arrows`."""
    from matplotlib.collections import LineCollection, PolyCollection

    color, wide, style = look["color"], look["linewidth"], look["linestyle"]
    ax.add_collection(LineCollection(list(curves), zorder=1, colors=color, linewidths=wide, linestyles=[style]))
    heads = _arrow_heads(arrows, length)
    ax.add_collection(PolyCollection(list(heads), facecolors=color, linewidths=0, zorder=1.5))


def draw_ranks(ax: Axes, where: Floats, ranks: Sequence[int], scale: float, *, padding: float, lines: float) -> None:
    """Draw a dot per rank, with its number if each has room for `padding` points beside it and `lines` of height."""
    from matplotlib import rcParams

    spacing = 2 * np.pi / len(where) * scale  # points between two ranks
    room = text_width(str(max(ranks)), POINTS) + padding
    is_labelled = spacing >= max(room, lines * POINTS)
    side = max(room, (lines + 0.2) * POINTS) if is_labelled else min(max(spacing * 0.7, 1.5), 8)
    color = rcParams["text.color"]
    ax.scatter(where[:, 0], where[:, 1], s=side**2, color=color, zorder=2, linewidths=0)
    ink = rcParams["axes.facecolor"]  # a page with another theme replaces both colours
    for (x, y), rank in zip(where.tolist(), ranks, strict=True) if is_labelled else ():
        ax.text(x, y, str(rank), ha="center", va="center", fontsize=POINTS, color=ink, zorder=3)


class HostName(NamedTuple):
    """The place of the name of a host: beside its arc, which begins at a position of the ring."""

    start: int
    x: float  # from the centre of the circle
    y: float
    side: Literal["left", "right", "center"]  # of the text that is at this place


def draw_hosts(
    ax: Axes,
    hosts: Sequence[object],
    angle: Floats,
    radii: tuple[float, float],
    *,
    center: Floats | float = 0.0,
    points: tuple[int, int],
) -> list[HostName]:
    """Draw an arc along the ranks of each host, with at least and at most so many points. Return where names belong."""
    from matplotlib import rcParams
    from matplotlib.collections import LineCollection

    size = len(hosts)
    starts = [k for k in range(size) if k == 0 or hosts[k] != hosts[k - 1]]
    half = np.pi / size * 0.8
    arcs, names = [], []
    for start, stop in zip(starts, [*starts[1:], size], strict=True):
        n_points = int(np.clip(720 * (stop - start) // size, *points))
        turn = np.linspace(angle[start] + half, angle[stop - 1] - half, n_points)
        arcs.append(np.stack([np.cos(turn), np.sin(turn)], axis=1) * radii[0] + center)
        middle = (angle[start] + angle[stop - 1]) / 2
        x, y = float(np.cos(middle)) * radii[1], float(np.sin(middle)) * radii[1]
        names.append(HostName(start, x, y, "left" if x > 0.05 else "right" if x < -0.05 else "center"))
    ax.add_collection(LineCollection(arcs, colors=rcParams["text.color"], linewidths=2, alpha=0.6))
    return names
