"""Pairs of ranks as a matrix: slow links stand out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from meshlab.analysis.pairs import SLOW
from meshlab.errors import BenchError
from meshlab.plots.style import axes_size, set_title, text_width
from meshlab.plots.palette import QUANTITY, WRONG, text_colors
from meshlab.units import format_bandwidth, format_size, format_time_us

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = ["plot_matrix"]

_CELL = 34.0  # points that a cell has in a figure of our own
_LEAST, _MOST = 220.0, 620.0
_MOST_NAMED = 3
_WIDE = 0.5

Floats = npt.NDArray[np.float64]


def plot_matrix(matrix: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    r"""Draw a matrix of pairs: a light cell is a fast link, and a slow one has a frame.

    A cell is slow when its bandwidth is below 0.8 of the median, or its time above the median by as much. The title
    names the slowest.

    Parameters
    ----------
    matrix : pandas.DataFrame
        From `meshlab.benchmark.pair_matrix` or `Run.matrix`.
    ax : matplotlib.axes.Axes, optional
        Where to draw; a new figure without it.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    BenchError
        If there is nothing to draw, or it is no square.

    Examples
    --------
    >>> import pandas as pd
    >>> from matplotlib.figure import Figure
    >>> matrix = pd.DataFrame([[float("nan"), 40.0], [40.0, float("nan")]])
    >>> plot_matrix(matrix, ax=Figure().add_subplot()).get_title(loc="left").splitlines()[0]
    'No slow pair: 40.0\u2009GB/s to 40.0\u2009GB/s'
    """
    values = matrix.to_numpy(dtype=np.float64)
    if not np.isfinite(values).any() or values.shape[0] != values.shape[1]:
        raise BenchError(f"a matrix of pairs has as many rows as columns and some numbers, not shape {values.shape}")
    attrs: dict[Any, Any] = {"value": "busbw_gbs", **matrix.attrs}
    is_time = attrs["value"] == "time_us"
    if ax is None:
        from matplotlib import pyplot as plt

        side = float(np.clip(_CELL * len(values), _LEAST, _MOST))
        ax = plt.subplots(figsize=((side + 130) / 72, (side + 96) / 72), layout="constrained")[1]
    shown = -values if is_time else values  # light is good
    low, high = _range(values, is_time)
    image = ax.imshow(shown, cmap=QUANTITY, interpolation="nearest", aspect="equal", vmin=low, vmax=high)
    slow = _slow(values, is_time)
    _frame(ax, slow)
    _write(ax, values, image.cmap(image.norm(shown)), is_time)
    _name_ends(ax, matrix)
    _bar(ax, image, is_time)
    parts = [
        f"{attrs.get('collective', '')} {format_size(attrs['size_bytes']) if 'size_bytes' in attrs else ''}".strip(),
        "both ways" if attrs.get("collective") == "send_recv" else "",
        *(str(attrs.get(name, "")) for name in ("axis", "where", "mode")),
    ]
    set_title(ax, [part for part in parts if part], verdict=_verdict(matrix, values, slow, is_time))
    return ax


def _range(values: Floats, is_time: bool) -> tuple[float, float]:
    """What the colours reach over: wide enough that small differences look small."""
    median, least, most = float(np.nanmedian(values)), float(np.nanmin(values)), float(np.nanmax(values))
    if is_time:
        return -max(most, median / _WIDE), -min(least, median)
    return min(least, _WIDE * median), max(most, median)


def _slow(values: Floats, is_time: bool) -> npt.NDArray[np.bool_]:
    median = np.nanmedian(values)
    with np.errstate(invalid="ignore"):
        return np.asarray(values > median / SLOW if is_time else values < SLOW * median)


def _verdict(matrix: pd.DataFrame, values: Floats, slow: npt.NDArray[np.bool_], is_time: bool) -> str:
    write = format_time_us if is_time else format_bandwidth
    median = float(np.nanmedian(values))
    if not slow.any():
        return f"No slow pair: {write(float(np.nanmin(values)))} to {write(float(np.nanmax(values)))}"
    is_both = bool(np.array_equal(values, values.T, equal_nan=True))
    places = [(i, j) for i, j in np.argwhere(slow) if i < j or not is_both]
    places.sort(key=lambda place: -values[place] if is_time else values[place])
    arrow = "↔" if is_both else "→"
    common = set.intersection(*({matrix.index[i], matrix.columns[j]} for i, j in places))
    if len(places) > _MOST_NAMED and common:
        worst = float(np.nanmedian(values[slow]))
        return f"Slow: {len(places)} pairs, all with rank {min(common)}, {write(worst)} (median {write(median)})"
    named = [f"{matrix.index[i]}{arrow}{matrix.columns[j]} {write(values[i, j])}" for i, j in places[:_MOST_NAMED]]
    more = f" and {len(places) - _MOST_NAMED} more" if len(places) > _MOST_NAMED else ""
    return f"Slow: {', '.join(named)}{more} (median {write(median)})"


def _frame(ax: Axes, slow: npt.NDArray[np.bool_]) -> None:
    from matplotlib.patches import Rectangle

    for i, j in np.argwhere(slow):
        ax.add_patch(Rectangle((j - 0.44, i - 0.44), 0.88, 0.88, fill=False, edgecolor=WRONG, linewidth=2))


def _write(ax: Axes, values: Floats, colors: Any, is_time: bool) -> None:
    """Write the numbers into the cells, if they have room."""
    texts = [[_short(value) for value in row] for row in values]
    widest = max(text_width(text, _POINTS) for row in texts for text in row if text)
    cell = min(axes_size(ax)) / len(values)
    if cell < widest + 6:
        return
    inks = text_colors(colors)
    for (i, j), ink in np.ndenumerate(inks):
        if texts[i][j]:
            ax.text(j, i, texts[i][j], color=str(ink), fontsize=_POINTS, ha="center", va="center")


def _short(value: float) -> str:
    if not np.isfinite(value):
        return ""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _name_ends(ax: Axes, matrix: pd.DataFrame) -> None:
    n = len(matrix)
    apart = max(1, int(np.ceil(2.2 * _POINTS * n / max(min(axes_size(ax)), 1))))
    ticks = range(0, n, apart)
    ax.set_xticks(ticks, [str(matrix.columns[place]) for place in ticks])
    ax.set_yticks(ticks, [str(matrix.index[place]) for place in ticks])
    ax.tick_params(length=0, labelsize=_POINTS, top=True, bottom=False, labeltop=True, labelbottom=False)
    ax.spines[:].set_visible(False)
    down, across = str(matrix.index.name or "rank"), str(matrix.columns.name or "rank")
    ax.set_ylabel(f"{down} rank" if down == "from" else down)
    ax.xaxis.set_label_position("top")
    ax.set_xlabel(f"{across} rank" if across == "to" else across)


def _bar(ax: Axes, image: Any, is_time: bool) -> None:
    from matplotlib.ticker import FuncFormatter

    figure = ax.get_figure(root=True)
    if figure is None:
        return
    bar = figure.colorbar(image, ax=ax, pad=0.03, fraction=0.05)
    bar.set_label("time" if is_time else "bandwidth", fontsize=_POINTS)
    write = (lambda value, _: format_time_us(-value)) if is_time else (lambda value, _: format_bandwidth(value))
    bar.ax.yaxis.set_major_formatter(FuncFormatter(write))
    bar.ax.tick_params(labelsize=_POINTS)
