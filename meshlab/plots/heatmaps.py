"""The link matrix of a host or a cluster as a heat map, with the words in the cells."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from meshlab.errors import TopologyError
from meshlab.plots.style import axes_size, room_right, set_title, text_width
from meshlab.plots.palette import QUANTITY, text_colors
from meshlab.topology.model.cluster import Cluster
from meshlab.topology.given import ClusterLike, as_cluster
from meshlab.topology.link_matrix import link_codes
from meshlab.topology.model.links import LINK_MEANINGS, UNKNOWN

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot_links"]

_POINTS = 9.0
_CELL = 30.0  # points that a cell has in a figure of our own, as long as that is no larger than _LARGEST
_LARGEST = 900.0
_WITHOUT_WORDS = 620.0  # points of a side where words have no room anyway
_MOST_WORDS = 1700
_ORDER = ("PIX", "PXB", "PHB", "NODE", "SYS")
_SHADES = {"nvlink": 0.86, "PIX": 0.74, "PXB": 0.64, "PHB": 0.54, "NODE": 0.44, "SYS": 0.32}


def plot_links(cluster: ClusterLike, node: int | str | None = None, *, ax: Axes | None = None) -> Axes:
    """Draw what joins every two ends: light is near, dark is far.

    Parameters
    ----------
    cluster : Cluster or str
        A cluster, or the name of a preset.
    node : int or str, optional
        One host, with its NICs. Left out, the only host, or all devices of the cluster, where the level that joins two
        hosts stands in place of a word.
    ax : matplotlib.axes.Axes, optional
        Where to draw; a new figure when left out.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    TopologyError
        If there is nothing to draw, or the matrix would be larger than 2,048 × 2,048.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> from meshlab.topology.model.presets import preset
    >>> ax = plot_links(preset("dgx-a100"), ax=Figure((9, 9)).add_subplot())
    >>> [text.get_text() for text in ax.get_legend().get_texts()][:2]
    ['NV12: 12 NVLinks', 'PXB: several PCIe switches']
    """
    cluster = as_cluster(cluster)
    if node is None and cluster.n_nodes == 1:
        node = 0
    if node is not None:
        host = cluster.node(node)
        numbers: dict[str, int] = {}
        rows = [[numbers.setdefault(word, len(numbers)) for word in row] for row in host.words]
        words, codes = list(numbers), np.array(rows, dtype=np.int16)
        names = dict(enumerate(host.ends))
        title = [host.name, host.summary]
    else:
        words, codes = link_codes(cluster)
        names = dict(zip(cluster.first_device.tolist(), cluster.names, strict=False))
        title = [cluster.title or "cluster", cluster.summary]
    if not codes.size:
        raise TopologyError(f"there is nothing to draw: {'; '.join(cluster.notes) or 'the host has no devices'}")
    used = set(np.unique(codes).tolist())
    kinds = sorted((word for k, word in enumerate(words) if k in used and word != "X"), key=lambda w: _far(w, cluster))
    if ax is None:
        ax = _new_axes(list(names.values()), kinds, len(codes))
    colors = dict(zip(kinds, _colors(kinds), strict=True)) | {"X": np.zeros(4)}
    table = np.array([colors.get(word, np.zeros(4)) for word in words])
    ax.imshow((table * 255).round().astype(np.uint8)[codes], interpolation="nearest", aspect="equal")
    _write_words(ax, words, codes, table)
    _write_ends(ax, names, len(codes))
    _write_legend(ax, kinds, [colors[kind] for kind in kinds])
    set_title(ax, ["links", *title])
    return ax


def _new_axes(names: list[str], kinds: list[str], size: int) -> Axes:
    from matplotlib import pyplot as plt

    side = max(_CELL * size, 150.0) if _CELL * size <= _LARGEST else _WITHOUT_WORDS
    left = text_width(max(names, key=len), _POINTS) + 16
    right = max([80.0, *(text_width(_meaning(kind), _POINTS) for kind in kinds)]) + 50
    top, bottom = left + 30, 12.0
    width, height = left + side + right, top + side + bottom
    figure = plt.figure(figsize=(width / 72, height / 72))
    return figure.add_axes((left / width, bottom / height, side / width, side / height))


def _far(word: str, cluster: Cluster) -> tuple[int, int]:
    """From the nearest to the farthest; more NVLinks are nearer."""
    if word.startswith("NV"):
        return 0, -int(word[2:])
    if word == "nvlink":
        return 0, 0
    if word in _ORDER:
        return 1, _ORDER.index(word)
    if word == UNKNOWN:
        return 3, 0
    return 2, cluster.level_names.index(word)


def _colors(kinds: list[str]) -> npt.NDArray[np.float64]:
    """One colour per kind, light to dark, the same word in the same colour everywhere; what is not known is clear."""
    from matplotlib import colormaps

    levels = [kind for kind in kinds if not kind.startswith("NV") and kind not in _SHADES and kind != UNKNOWN]
    shades = _SHADES | dict(zip(levels, np.linspace(0.24, 0.04, len(levels)).tolist(), strict=True))
    nvlinks = [kind for kind in kinds if kind.startswith("NV")]
    shades |= {kind: 0.97 - 0.04 * min(k, 2) for k, kind in enumerate(nvlinks)}
    colors = colormaps[QUANTITY](np.array([shades.get(kind, 0.0) for kind in kinds]))
    colors[[kind == UNKNOWN for kind in kinds]] = 0
    return np.asarray(colors)


def _write_words(ax: Axes, words: list[str], codes: npt.NDArray[np.int16], table: npt.NDArray[np.float64]) -> None:
    from matplotlib import rcParams

    cell = min(axes_size(ax)) / len(codes)
    longest = max(text_width(word, _POINTS) for word in words)
    if codes.size > _MOST_WORDS or cell < longest + 2 or cell < 1.2 * _POINTS:
        return
    inks = np.where(table[:, 3] > 0, text_colors(table), rcParams["text.color"])
    style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": _POINTS}
    for (i, j), code in np.ndenumerate(codes):
        ax.text(j, i, words[code], color=str(inks[code]), **style)


def _write_ends(ax: Axes, names: dict[int, str], size: int) -> None:
    """Name rows and columns as far as there is room: every end of a host, or the first device of hosts."""
    cell = min(axes_size(ax)) / size
    shown: list[int] = []
    for place in names:
        if not shown or (place - shown[-1]) * cell >= 1.35 * _POINTS:
            shown.append(place)
    labels = [names[place] for place in shown]
    apart = min((b - a for a, b in pairwise(shown)), default=size) * cell
    flat = max(text_width(label, _POINTS) for label in labels) < apart - 4
    ax.set_xticks(shown, labels, rotation=0 if flat else 90)
    ax.set_yticks(shown, labels)
    ax.tick_params(length=0, labelsize=_POINTS, top=True, bottom=False, labeltop=True, labelbottom=False)
    ax.spines[:].set_visible(False)


def _write_legend(ax: Axes, kinds: list[str], colors: list[npt.NDArray[np.float64]]) -> None:
    from matplotlib import rcParams
    from matplotlib.patches import Patch

    handles = [
        Patch(facecolor=tuple(color), edgecolor=rcParams["text.color"], linewidth=0.5, label=_meaning(kind))
        for kind, color in zip(kinds, colors, strict=True)
    ]
    beside = room_right(ax) - axes_size(ax)[0] > 120
    place: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.02, 1)}
    if not beside:
        place = {"loc": "upper left", "bbox_to_anchor": (0, 0)}
    ax.legend(handles=handles, frameon=False, fontsize=_POINTS, borderpad=0, borderaxespad=0.3, **place)


def _meaning(kind: str) -> str:
    if kind.startswith("NV"):
        return f"{kind}: {kind[2:]} NVLink{'s' * (kind != 'NV1')}"
    if kind == "nvlink":
        return "nvlink: NVLink between hosts"
    if kind in ("leaf", "cluster"):
        return f"{kind}: {'one leaf switch' if kind == 'leaf' else 'across the cluster'}"
    return f"{kind}: {LINK_MEANINGS[kind]}" if kind in LINK_MEANINGS else f"{kind}: inside one {kind}"
