"""Figure of a visibility: which changes of a time the noise of the hosts would hide now, and which would show."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from meshlab.analysis._visibility import LARGEST_RATIO, Visibility, ratio_text
from meshlab.base._units import THIN, format_size
from meshlab.plots._style import (
    PALETTE,
    PREVIOUS,
    Margins,
    check_type,
    figure_svg,
    open_axes,
    set_title,
    tick_size,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WIDTH, _ROW = 460.0, 26.0  # width of a figure and height of a bar with its distance, in points
_MARGINS = Margins(left=112.0, below=40.0, right=16.0, above=30.0)
_BAR = 0.5
_TICKS = (1.02, 1.05, 1.1, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0)
_TICK_DISTANCE = 0.1  # minimum distance of two ticks, as a share of the width
_ROOM = 1.6  # ratio of the right edge to the largest visible change


def visibility(visible: Visibility, *, ax: Axes | None = None) -> Axes:
    """Draw which slowdowns would show now: one after the other, and in turns.

    Grey changes are hidden by the noise of the hosts. At least 8 of 10 comparisons would show a change where the blue
    part begins.

    Parameters
    ----------
    visible : Visibility
        What is visible, such as ``run.estimate.visible``.
    ax : matplotlib.axes.Axes, optional
        The axes to draw on. By default a new figure is created.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    BenchError
        If `visible` is not a Visibility.

    Examples
    --------
    >>> import meshlab as ml
    >>> visible = ml.analysis.Visibility("all_reduce", 1 << 20, ratio=1.8, turns_ratio=1.2)
    >>> ml.plot.visibility(visible).get_title(loc="left")
    'visible now, all_reduce of 1\u2009MiB'
    """
    check_type("visible", visible, Visibility, hint="pass run.estimate.visible, unless it is None")
    ways = _ways(visible)
    most = _ROOM * min(max(ratio for _, ratio in ways), LARGEST_RATIO)
    ax = open_axes(ax, _WIDTH, _height(len(ways)), _MARGINS)
    ax.set_xscale("log")
    for row, (_, ratio) in enumerate(ways):
        edge = min(ratio, most)
        ax.barh(row, edge - 1, _BAR, left=1, color=PREVIOUS, alpha=0.45, hatch="////", edgecolor=PREVIOUS, linewidth=0)
        ax.barh(row, most - edge, _BAR, left=edge, color=PALETTE[0], linewidth=0)
        ax.plot([edge, edge], [row - 0.38, row + 0.38], color=PALETTE[0], linewidth=2.5, solid_capstyle="butt")
        inside = edge < most / 1.1
        ax.annotate(
            ratio_text(ratio),
            (edge, row),
            (5 if inside else -5, 0),
            textcoords="offset points",
            ha="left" if inside else "right",
            va="center",
            fontsize=tick_size(),
            color="white" if inside else None,
            weight="bold",
        )
    ax.set_xlim(1, most)
    ax.set_ylim(len(ways) - 0.4, -0.6)
    ax.set_yticks(range(len(ways)), [name for name, _ in ways])
    ticks = [1.0]
    for tick in _TICKS:
        if tick <= most and math.log(tick / ticks[-1]) >= _TICK_DISTANCE * math.log(most):
            ticks.append(tick)
    ax.set_xticks(ticks, [f"{tick:g}×" for tick in ticks])
    ax.minorticks_off()
    ax.tick_params(left=False)
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.set_xlabel("slowdown: grey is hidden by noise, blue is visible")
    size = "" if visible.size_bytes is None else f" of {format_size(visible.size_bytes)}"
    set_title(ax, [f"visible now, {visible.collective}{size}"])
    return ax


def _ways(visible: Visibility) -> list[tuple[str, float]]:
    """Return the names of the ways to compare, and the smallest slowdown that each one shows."""
    ways = [("one after the other", visible.ratio)]
    if visible.turns_ratio < visible.ratio:
        ways.append((f"in turns ({round(visible.turns_s / 60)}{THIN}min)", visible.turns_ratio))
    return ways


def _height(n_ways: int) -> float:
    return _MARGINS.above + _MARGINS.below + _ROW * n_ways


def figure_html(visible: Visibility) -> str:
    """Return the figure as an ``<svg>`` element."""
    from matplotlib.figure import Figure

    height = _height(len(_ways(visible)))
    figure = Figure((_WIDTH / 72, height / 72))
    ax = visibility(visible, ax=figure.add_axes(_MARGINS.box(_WIDTH, height)))
    return figure_svg(figure, label=ax.get_title(loc="left"))
