"""Ranks, curves and arrow heads of the hops in pictures of rings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from meshlab.plots._style import text_colors, text_width

if TYPE_CHECKING:
    from matplotlib.axes import Axes


POINTS = 9.0


def arrow_heads(curves: npt.NDArray[np.float64], length: float) -> npt.NDArray[np.float64]:
    """Return a triangle in the middle of every curve, in its direction: float64 of shape (hops, 3, 2)."""
    middle = curves.shape[1] // 2
    center = curves[:, middle]
    along = curves[:, middle + 1] - curves[:, middle - 1]
    along = along / np.maximum(np.linalg.norm(along, axis=1, keepdims=True), 1e-9) * length
    across = np.stack([-along[:, 1], along[:, 0]], axis=1) * 0.55
    return np.stack([center + along * 0.6, center - along * 0.4 + across, center - along * 0.4 - across], axis=1)


def bowed_curves(
    start: npt.NDArray[np.float64], end: npt.NDArray[np.float64], depth: float | npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Return curves from start to end that bend towards the centre: float64 of shape (hops, points, 2)."""
    middle = (start + end) / 2
    reach = np.linalg.norm(middle, axis=1, keepdims=True)
    # Between opposite points the line already passes through the centre, and there is no direction to bend it.
    control = np.where(reach > 1e-9, middle * (1 - depth / np.maximum(reach, depth)), middle)
    t = np.linspace(0, 1, 24)[None, :, None]
    return (1 - t) ** 2 * start[:, None] + 2 * t * (1 - t) * control[:, None] + t**2 * end[:, None]


def collection_style(look: dict[str, Any]) -> dict[str, Any]:
    """Return the properties of a line under the names that LineCollection uses."""
    return {"colors": look["color"], "linewidths": look["linewidth"], "linestyles": [look["linestyle"]]}


def draw_ranks(
    ax: Axes, where: npt.NDArray[np.float64], ranks: Sequence[int], scale: float, *, padding: float, lines: float
) -> None:
    """Draw a dot per rank, with its number if each has room for `padding` points beside it and `lines` of height."""
    from matplotlib import rcParams
    from matplotlib.colors import to_rgb

    spacing = 2 * np.pi / len(where) * scale  # points between two ranks
    room = text_width(str(max(ranks)), POINTS) + padding
    is_labelled = spacing >= max(room, lines * POINTS)
    side = max(room, (lines + 0.2) * POINTS) if is_labelled else min(max(spacing * 0.7, 1.5), 8)
    color = rcParams["text.color"]
    ax.scatter(where[:, 0], where[:, 1], s=side**2, color=color, zorder=2, linewidths=0)
    ink = str(text_colors([to_rgb(color)])[0])
    for (x, y), rank in zip(where.tolist(), ranks, strict=True) if is_labelled else ():
        ax.text(x, y, str(rank), ha="center", va="center", fontsize=POINTS, color=ink, zorder=3)
