"""Horizontal bars of times with a text at their end: the layout that rehearsals, replays and overlaps share."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from meshlab.base._errors import BenchError
from meshlab.plots._style import (
    Margins,
    figure_svg,
    light_grid,
    open_axes,
    reserve,
    set_height,
    shortened,
    text_width,
    tick_size,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

TEXT = 9.0  # size of the texts at the ends of bars and of the notes
GAP = 12.0  # between two groups of bars, in points
_SIDE, _MARGINS = 576.0, Margins(57.0, 57.0, 57.0, 57.0)
_BELOW = 40.0  # height of the labels below the axes, in points
_MOST_LABEL = 0.45  # of the width of the figure; the bars need the rest
_UNITS = ((1e6, "s"), (1e3, "ms"), (1.0, "µs"))


@dataclass(frozen=True)
class BarLine:
    """The label in front of a bar and the text at its end. A heading has no text."""

    place: float  # in rows, from the top
    label: str
    text: str = ""
    is_bold: bool = False


def check_frame(frame: pd.DataFrame, needed: Sequence[str], source: str) -> None:
    """Raise if a frame has no rows or lacks a column."""
    missing = [name for name in needed if name not in frame]
    if missing or frame.empty:
        fault = f"lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}" if missing else "is empty"
        raise BenchError(f"the frame {fault}; pass the result of {source}")


def open_bars(ax: Axes | None) -> Axes:
    """Return the axes, by default those of a new figure."""
    return open_axes(ax, _SIDE, _SIDE, _MARGINS)


def bars_svg(draw: Callable[[Axes], object], label: str) -> str:
    """Return a figure of bars as an ``<svg>`` element, which follows the theme of the page."""
    from matplotlib.figure import Figure

    figure = Figure((_SIDE / 72, _SIDE / 72))
    draw(figure.add_axes(_MARGINS.box(_SIDE, _SIDE)))
    return figure_svg(figure, label=label)


def lay_out(ax: Axes, lines: Sequence[BarLine], range_us: tuple[float, float], meaning: str) -> float:
    """Set the limits, labels and grid for bars within a range of times. Return the µs of a unit of the axis."""
    low, high = range_us
    scale, unit = next(((scale, unit) for scale, unit in _UNITS if high >= scale), _UNITS[-1])
    weights = ["bold" if line.is_bold else "normal" for line in lines]
    figure = ax.get_figure(root=True)
    most = math.inf if figure is None else _MOST_LABEL * 72 * float(figure.get_size_inches()[0])
    labels = [shortened(line.label, most, tick_size()) for line in lines]
    widths = [text_width(label, tick_size(), weight=weight) for label, weight in zip(labels, weights, strict=True)]
    reserve(ax, left=max(widths) + 18, right=max(text_width(line.text, TEXT) for line in lines) + 16, below=_BELOW)
    ax.set_xlim(low / scale, high / scale * 1.02)
    ax.set_yticks([line.place for line in lines], labels)
    ax.set_ylim(lines[-1].place + 0.6, -0.6)
    for label, weight in zip(ax.get_yticklabels(), weights, strict=True):
        label.set_fontweight(weight)
        label.set_parse_math(False)
    ax.tick_params(axis="y", length=0)
    ax.set_xlabel(f"{meaning} ({unit})")
    light_grid(ax, "x")
    return scale


def fit_height(ax: Axes, lines: Sequence[BarLine], row: float, above: float, *, is_new: bool) -> None:
    """Give a new figure the height of its rows, of `row` points each, or leave room above the axes of another one."""
    if is_new:
        set_height(ax, (lines[-1].place + 1) * row, above=above, below=_BELOW)
    else:
        reserve(ax, above=above)


def filled(color: str) -> dict[str, Any]:
    """Return the style of a filled bar."""
    return {"facecolor": color, "edgecolor": "none", "linewidth": 0}


def hatched(color: str) -> dict[str, Any]:
    """Return the style of a hatched bar. It has no fill, because SVG patterns ignore its opacity."""
    return {"facecolor": "none", "edgecolor": color, "hatch": "////", "linewidth": 0.8}


def ink() -> str:
    """Return the colour of text in the current style."""
    import matplotlib as mpl

    return str(mpl.rcParams["text.color"])
