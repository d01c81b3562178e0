"""Heat maps: the links of a host or a cluster, and the measured pairs of ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from meshlab.analysis._pairs import SLOW, pair_matrix
from meshlab.base._errors import BenchError, TopologyError, did_you_mean
from meshlab.base._units import format_bandwidth, format_size, format_time_us
from meshlab.plots._style import (
    QUANTITY,
    WRONG,
    Margins,
    axes_size,
    color_bar,
    free_right,
    open_axes,
    reserve,
    room_right,
    set_title,
    text_colors,
    text_width,
    wrap_title,
    wrap_words,
)
from meshlab.topology.model._arrays import link_codes
from meshlab.topology.model._cluster import Cluster
from meshlab.topology.model._hardware import Node
from meshlab.topology.model._links import (
    LINK_MEANINGS,
    UNKNOWN,
    XGMI_VIA,
    is_gpu_link,
    meaning_of,
    nvlink_counts,
)
from meshlab.topology.model._presets import ClusterLike, as_cluster

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_POINTS = 9.0
_CELL = 30.0  # points per cell in a new figure, if the side is at most _LARGEST
_APART = 9.0  # points between two headers of columns
_LARGEST = 900.0
_WITHOUT_WORDS = 620.0  # points per side if the cells have no room for words
_MOST_WORDS = 1700
_ORDER = ("PIX", "PXB", "PHB", "NODE", "SYS")
_SHADES = {"nvlink": 0.86, "PIX": 0.74, "PXB": 0.64, "PHB": 0.54, "NODE": 0.44, "SYS": 0.32}


def links(cluster: ClusterLike | Node, node: int | str | None = None, *, ax: Axes | None = None) -> Axes:
    """Draw the link matrix of a host or a cluster. Light cells are near, dark cells are far.

    Parameters
    ----------
    cluster : Cluster, Node or str
        A cluster, the name of a preset, or a host.
    node : int or str, optional
        A host, by index or name. By default the only host. If there are several hosts, all devices of the cluster are
        drawn, and a link between hosts is named after the innermost level that joins them.
    ax : matplotlib.axes.Axes, optional
        The axes to draw on. By default a new figure is created.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    TopologyError
        If the host is unknown, or has no devices and no NICs.
        If the matrix would be larger than 2,048 × 2,048.

    Examples
    --------
    >>> import meshlab as ml
    >>> from matplotlib.figure import Figure
    >>> ax = ml.plot.links("dgx-a100", ax=Figure((9, 9)).add_subplot())
    >>> [text.get_text() for text in ax.get_legend().get_texts()][:2]
    ['NV12: 12 NVLinks', 'PXB: several PCIe switches']
    """
    cluster = Cluster.from_nodes([cluster]) if isinstance(cluster, Node) else as_cluster(cluster)
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
        reason = "; ".join(cluster.notes) or "the host has no devices"
        raise TopologyError(f"nothing to draw: {reason}", hint="choose a host with devices")
    present = set(np.unique(codes).tolist())
    kinds = sorted(
        (word for k, word in enumerate(words) if k in present and word != "X"), key=lambda w: _far(w, cluster)
    )
    page = _page(list(names.values()), kinds, len(codes))
    ax = open_axes(ax, *page)
    # The names of the columns are below the title, which matplotlib moves above them.
    above = set_title(ax, ["links", *title]) + page[2].left - 8
    has_room = room_right(ax) - axes_size(ax)[0] > 120
    reserve(ax, left=page[2].left, above=above, below=0 if has_room else 1.5 * _POINTS * len(kinds) + 4)
    ax.set_anchor("W")  # the title starts at the left of the matrix
    colors = dict(zip(kinds, _colors(kinds), strict=True)) | {"X": np.zeros(4)}
    table = np.array([colors.get(word, np.zeros(4)) for word in words])
    ax.imshow((table * 255).round().astype(np.uint8)[codes], interpolation="nearest", aspect="equal")
    _write_words(ax, words, codes, table)
    _write_ends(ax, names, len(codes))
    _write_legend(ax, kinds, [colors[kind] for kind in kinds], is_beside=has_room)
    return ax


def _page(names: list[str], kinds: list[str], size: int) -> tuple[float, float, Margins]:
    """Return width and height of a new figure, and its margins, in points."""
    # Headers that are closer than two spaces to each other read like one.
    cell = max(_CELL, *(text_width(name, _POINTS) + _APART for name in names)) if len(names) == size else _CELL
    cell = cell if cell * size <= _LARGEST else _CELL
    side = max(cell * size, 150.0) if cell * size <= _LARGEST else _WITHOUT_WORDS
    left = text_width(max(names, key=len), _POINTS) + 16
    right = max([80.0, *(text_width(_meaning(kind), _POINTS) for kind in kinds)]) + 50
    margins = Margins(left, 12.0, right, left + 30)
    return left + side + right, margins.above + side + margins.below, margins


def _far(word: str, cluster: Cluster) -> tuple[int, int]:
    """Return a sort key from near to far. More NVLinks are nearer."""
    if is_gpu_link(word):
        return 0, -int(nvlink_counts([[word]])[0, 0])
    if word == "nvlink":
        return 0, 0
    if word in _ORDER:
        return 1, _ORDER.index(word)
    if word == UNKNOWN:
        return 3, 0
    return 2, cluster.level_names.index(word)


def _colors(kinds: list[str]) -> npt.NDArray[np.float64]:
    """Return one colour per kind, from light to dark. A word has the same colour in all figures. UNKNOWN is clear."""
    from matplotlib import colormaps

    levels = [kind for kind in kinds if not is_gpu_link(kind) and kind not in _SHADES and kind != UNKNOWN]
    shades = _SHADES | dict(zip(levels, np.linspace(0.24, 0.04, len(levels)).tolist(), strict=True))
    nvlinks = [kind for kind in kinds if is_gpu_link(kind)]
    shades |= {kind: 0.97 - 0.04 * min(k, 2) for k, kind in enumerate(nvlinks)}
    shades |= {XGMI_VIA: 0.8} if XGMI_VIA in nvlinks else {}
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
    """Name rows and columns if there is room: every endpoint of a host, or the first device of every host."""
    cell = min(axes_size(ax)) / size
    ticks: list[int] = []
    for index in names:
        if not ticks or (index - ticks[-1]) * cell >= 1.35 * _POINTS:
            ticks.append(index)
    labels = [names[index] for index in ticks]
    apart = min((b - a for a, b in pairwise(ticks)), default=size) * cell
    flat = max(text_width(label, _POINTS) for label in labels) <= apart - 0.8 * _APART
    ax.set_xticks(ticks, labels, rotation=0 if flat else 90)
    ax.set_yticks(ticks, labels)
    ax.tick_params(length=0, labelsize=_POINTS, top=True, bottom=False, labeltop=True, labelbottom=False)
    ax.spines[:].set_visible(False)


def _write_legend(ax: Axes, kinds: list[str], colors: list[npt.NDArray[np.float64]], *, is_beside: bool) -> None:
    from matplotlib import rcParams
    from matplotlib.patches import Patch

    handles = [
        Patch(facecolor=tuple(color), edgecolor=rcParams["text.color"], linewidth=0.5, label=_meaning(kind))
        for kind, color in zip(kinds, colors, strict=True)
    ]
    position: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.02, 1) if is_beside else (0, 0)}
    ax.legend(handles=handles, frameon=False, fontsize=_POINTS, borderpad=0, borderaxespad=0.3, **position)


def _meaning(kind: str) -> str:
    if kind == "nvlink":
        return "nvlink: NVLink between hosts"
    if kind in ("leaf", "cluster"):
        return f"{kind}: {'one leaf switch' if kind == 'leaf' else 'across the cluster'}"
    return f"{kind}: {meaning_of(kind) if is_gpu_link(kind) or kind in LINK_MEANINGS else f'inside one {kind}'}"


_MATRIX_CELL = 34.0  # points per cell in a new figure
_LEAST, _MOST = 220.0, 620.0
_MOST_NAMED = 3
_WIDE = 0.5
_CHOICES = ("collective", "size_bytes", "axis", "mode", "dtype", "value")

Floats = npt.NDArray[np.float64]


def matrix(run: Any, *, ax: Axes | None = None, **choice: Any) -> Axes:
    r"""Draw the measured pairs of ranks as a matrix. Light cells are fast links, and slow pairs have a red frame.

    A pair is slow if its bandwidth is below 0.8 of the median, or its time is above the median divided by 0.8, unless
    the interval of its time contains the median. The title names the slowest pairs. No pair is judged if the ranks
    shared cores or GPUs.

    Parameters
    ----------
    run : RunData, DataFrame, path, object with ``.results``, or a list of these
        A run or its folder, its results, or a matrix from `meshlab.analysis.pair_matrix`.
    ax : matplotlib.axes.Axes, optional
        The axes to draw on. By default a new figure is created.
    **choice
        The pairs of the run to draw: ``collective``, ``size_bytes``, ``axis``, ``mode``, ``dtype`` and ``value``, see
        `meshlab.analysis.pair_matrix`.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    BenchError
        If the run has no such pairs, or has them in several modes or dtypes.
        If a matrix is not square, has no numbers, or is passed with a choice.

    Examples
    --------
    >>> import pandas as pd
    >>> import meshlab as ml
    >>> from matplotlib.figure import Figure
    >>> pairs = pd.DataFrame([[float("nan"), 40.0], [40.0, float("nan")]])
    >>> ml.plot.matrix(pairs, ax=Figure().add_subplot()).get_title(loc="left").splitlines()[0]
    'No slow pairs: 40.0\u2009GB/s to 40.0\u2009GB/s'
    """
    from matplotlib.patches import Rectangle

    cells = _cells(run, choice)
    values = cells.to_numpy(dtype=np.float64)
    attrs: dict[Any, Any] = {"value": "busbw_gbs", **cells.attrs}
    is_time = attrs["value"] == "time_us"
    side = float(np.clip(_MATRIX_CELL * len(values), _LEAST, _MOST))
    ax = open_axes(ax, side + 130, side + 96)
    slow = slow_cells(values, is_time) & ~_within_noise(cells)
    parts = [
        f"{attrs.get('collective', '')} {format_size(attrs['size_bytes']) if 'size_bytes' in attrs else ''}".strip(),
        "both directions" if attrs.get("collective") == "send_recv" else "",
        *(str(attrs.get(name, "")) for name in ("axis", "where", "mode")),
    ]
    verdict = attrs.get("verdict") or matrix_verdict(cells, values, slow, is_time)
    if "slow" in attrs:  # of another judgement than that of pairs by their median
        slow[:] = False
        slow[tuple(np.array(attrs["slow"], dtype=int).reshape(-1, 2).T)] = True
    if shared := attrs.get("oversubscribed"):
        slow[:] = False
        verdict = f"No pair is judged, because {shared}"
    parts = [part for part in parts if part]
    widest = text_width(format_time_us(1234) if is_time else format_bandwidth(12.3), _POINTS)
    # The labels of the colour bar are at its right, and those of the columns are below the title, which
    # matplotlib moves above them.
    reserve(ax, right=widest + 16)
    n_title = _parts_in_title(ax, parts, verdict)
    gap = 3.2 * _POINTS if parts[n_title:] else 0.0
    height = set_title(ax, parts[:n_title], verdict=verdict, note=parts[n_title:], gap=gap)
    reserve(ax, above=height + 3.8 * _POINTS - gap)
    # The bar takes a twelfth of the width. In wider axes the matrix would move to it, and the title over the edge.
    reserve(ax, right=free_right(ax) - 1.09 * axes_size(ax)[1])
    goodness = -values if is_time else values  # the lightest colour is the best value
    low, high = color_range(values, is_time)
    image = ax.imshow(goodness, cmap=QUANTITY, interpolation="nearest", aspect="equal", vmin=low, vmax=high)
    for i, j in np.argwhere(slow):
        ax.add_patch(Rectangle((j - 0.44, i - 0.44), 0.88, 0.88, fill=False, edgecolor=WRONG, linewidth=2))
    _write(ax, values, image.cmap(image.norm(goodness)), format_time_us if is_time else _short)
    _name_ends(ax, cells)
    color_bar(ax, image, lambda value: format_time_us(-value) if is_time else format_bandwidth(value))
    return ax


def _parts_in_title(ax: Axes, parts: Sequence[str], verdict: str) -> int:
    """Return how many parts fit a second line of the title. The others are a note in smaller type."""
    width = 0.94 * room_right(ax)
    if "\n" in wrap_words(verdict, width):
        return 0
    return next((n for n in range(len(parts), 1, -1) if "\n" not in wrap_title(parts[:n], width)), min(len(parts), 1))


def _within_noise(cells: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Select the pairs whose interval contains the median, so that they are not clearly slow."""
    noisy = np.zeros(cells.shape, dtype=bool)
    for source, target in cells.attrs.get("within_noise", ()):
        noisy[cells.index.get_loc(source), cells.columns.get_loc(target)] = True
    return noisy


def _cells(run: Any, choice: dict[str, Any]) -> pd.DataFrame:
    """Return the matrix to draw: the argument itself, or the matrix of the pairs of a run."""
    import pandas as pd

    unknown = [name for name in choice if name not in _CHOICES]
    if unknown:
        similar = did_you_mean(unknown[0], _CHOICES)
        raise BenchError(f"unknown argument {unknown[0]!r}{similar}; choose one of {', '.join(_CHOICES)}")
    if not isinstance(run, pd.DataFrame) or "collective" in run:
        return pair_matrix(run, **choice)
    if choice:
        raise BenchError(f"{next(iter(choice))}= selects pairs of a run, but a matrix was passed; pass the run instead")
    try:
        values = run.to_numpy(dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise BenchError(
            f"a matrix of pairs must have numbers in all cells: {error}; pass a run or its folder"
        ) from error
    if values.shape[0] != values.shape[1] or not np.isfinite(values).any():
        raise BenchError(
            f"a matrix of pairs must be square and have at least one number, not of shape {values.shape} with "
            f"{int(np.isfinite(values).sum())} numbers; pass a run or its folder, or pair_matrix(run)"
        )
    return run


def color_range(values: Floats, is_time: bool) -> tuple[float, float]:
    """Return the range of the colours, wide enough that small differences look small."""
    median, least, most = float(np.nanmedian(values)), float(np.nanmin(values)), float(np.nanmax(values))
    if is_time:
        return -max(most, median / _WIDE), -min(least, median)
    return min(least, _WIDE * median), max(most, median)


def slow_cells(values: Floats, is_time: bool) -> npt.NDArray[np.bool_]:
    """Select the pairs that are slow, see `matrix`."""
    median = np.nanmedian(values)
    with np.errstate(invalid="ignore"):
        return np.asarray(values > median / SLOW if is_time else values < SLOW * median)


def matrix_verdict(cells: pd.DataFrame, values: Floats, slow: npt.NDArray[np.bool_], is_time: bool) -> str:
    """Name the slowest pairs, or report that none is slow."""
    write = format_time_us if is_time else format_bandwidth
    median = float(np.nanmedian(values))
    if not slow.any():
        return f"No slow pairs: {write(float(np.nanmin(values)))} to {write(float(np.nanmax(values)))}"
    is_both = bool(np.array_equal(values, values.T, equal_nan=True))
    pairs = [(i, j) for i, j in np.argwhere(slow) if i < j or not is_both]
    pairs.sort(key=lambda pair: -values[pair] if is_time else values[pair])
    arrow = "↔" if is_both else "→"
    common = set.intersection(*({cells.index[i], cells.columns[j]} for i, j in pairs))
    if len(pairs) > _MOST_NAMED and common:
        worst = float(np.nanmedian(values[slow]))
        return f"Slow: {len(pairs)} pairs, all with rank {min(common)}, {write(worst)} (median {write(median)})"
    named = [f"{cells.index[i]}{arrow}{cells.columns[j]} {write(values[i, j])}" for i, j in pairs[:_MOST_NAMED]]
    more = f" and {len(pairs) - _MOST_NAMED} more" if len(pairs) > _MOST_NAMED else ""
    return f"Slow: {', '.join(named)}{more} (median {write(median)})"


def _write(ax: Axes, values: Floats, colors: Any, text: Callable[[float], str]) -> None:
    """Write the numbers into the cells if there is room."""
    texts = [[text(value) if np.isfinite(value) else "" for value in row] for row in values]
    widest = max(text_width(text, _POINTS) for row in texts for text in row if text)
    cell = min(axes_size(ax)) / len(values)
    if cell < widest + 6:
        return
    inks = text_colors(colors)
    for (i, j), ink in np.ndenumerate(inks):
        if texts[i][j]:
            ax.text(j, i, texts[i][j], color=str(ink), fontsize=_POINTS, ha="center", va="center")


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _name_ends(ax: Axes, cells: pd.DataFrame) -> None:
    """Label as many rows and columns with their ranks as there is room for."""
    n = len(cells)
    distance = max(1, int(np.ceil(2.2 * _POINTS * n / max(min(axes_size(ax)), 1))))
    ticks = range(0, n, distance)
    ax.set_xticks(ticks, [str(cells.columns[index]) for index in ticks])
    ax.set_yticks(ticks, [str(cells.index[index]) for index in ticks])
    ax.tick_params(length=0, labelsize=_POINTS, top=True, bottom=False, labeltop=True, labelbottom=False)
    ax.spines[:].set_visible(False)
    down, across = str(cells.index.name or "rank"), str(cells.columns.name or "rank")
    ax.set_ylabel(f"{down} rank" if down == "from" else down)
    ax.xaxis.set_label_position("top")
    ax.set_xlabel(f"{across} rank" if across == "to" else across)
