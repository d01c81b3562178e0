"""Figure of a search: one bar per layout with computation, bubble, and exposed communication by axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from meshlab.base._errors import BenchError
from meshlab.base._units import THIN, format_number
from meshlab.plots._style import (
    AXIS_GROUPS,
    Margins,
    axes_size,
    check_type,
    legend_above,
    open_axes,
    reserve,
    room_right,
    set_height,
    set_title,
    text_width,
    wrap_words,
    write_beside,
)
from meshlab.plots._theme import Theme, current_theme
from meshlab.prediction._search import Layouts
from meshlab.prediction._step_parts import COMPONENTS

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_TEXT = 9.0
_ROW, _TWO_LINES = 17.0, 29.0  # height of a bar with a label of one or two lines, in points
_BAR = 11.0
_LINE = 12.0
_WIDTH = 8.0  # width of a new figure, in inches
_LEFT = 18.0  # beside the names of the layouts, in points: hinting widens them at some resolutions
_LEAST_BAR = 120.0  # Minimum width of the bars, in points. If there is less, the numbers at their ends are omitted.
_SHORTENED = 0.55  # if computation takes a larger share of every bar, its beginning is cut off
_CUT = 0.12  # width of the shortened computation before the first difference, as a share of the bars' width
_OF_ROW: Any = {"xycoords": ("axes fraction", "data"), "va": "center"}  # the place of a text beside a bar


def step_times(layouts: Layouts, *, most: int = 12, ax: Axes | None = None) -> Axes:
    """Draw a bar per layout, best first: computation, bubble, and exposed communication in the colour of its axis.

    The solid part of a bar is the step if the schedule hides all communication that it can hide. The hatched part
    reaches up to the step if nothing is hidden. A mark is the expected time, and a thin line its range. Brackets join
    tied layouts. If computation dominates all bars, its beginning is cut off. Below the bars, dropped layouts are
    counted by reason.

    Parameters
    ----------
    layouts : Layouts
        The result of `meshlab.search`.
    most : int, default 12
        Maximum number of bars.
    ax : matplotlib.axes.Axes, optional
        The axes to draw on. By default a new figure is created.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    BenchError
        If `layouts` is not a Layouts, or `most` is not positive.

    Examples
    --------
    >>> import meshlab as ml
    >>> from matplotlib.figure import Figure
    >>> layouts = ml.search(ml.preset("dgx-h100", nodes=16), "llama3-70b")
    >>> ax = ml.plot.step_times(layouts, ax=Figure((8, 6)).add_subplot())
    >>> ax.get_xlabel()
    'seconds per step (the beginning of computation is cut off)'
    """
    check_type("layouts", layouts, Layouts, hint="pass ml.search(cluster, job)")
    if isinstance(most, bool) or not isinstance(most, int | np.integer) or most < 1:
        raise BenchError(f"most must be a positive integer, not {most!r}")
    frame = layouts.frame(most)
    theme = current_theme()
    labels = [_label(row) for _, row in frame.iterrows()]
    left = max(text_width(line, _TEXT) for lines in labels for line in lines) + _LEFT
    row = _TWO_LINES if max(map(len, labels)) > 1 else _ROW
    is_new = ax is None
    ax = open_axes(ax, _WIDTH * 72, _WIDTH * 72, Margins(left, 57.0, 8.0, 57.0))
    ends = [_end_label(layout) for _, layout in frame.iterrows()]
    ties = _ties(frame, layouts)
    right = max(text_width(text, _TEXT) for text in ends) + 8
    bracket = max((text_width(text, _TEXT) for _, _, text in ties), default=-16.0) + 16
    reserve(ax, left=left)
    room = room_right(ax) - _LEAST_BAR
    if right + bracket > room:
        ends, right = [], 0.0
    dropped = _dropped_lines(layouts, room_right(ax) + left - _LEFT)
    above = _set_title(ax, layouts, frame, theme)
    below = 34 + _LINE * (len(dropped) + bool(dropped))
    if not is_new and _figure_height(ax) - above - below < _LINE * len(frame):
        dropped, below = [], 34  # the bars come first in small figures
    if is_new:
        set_height(ax, row * len(frame), above=above, below=below)
    reserve(ax, above=above, below=below, right=right + bracket + 4)
    _draw_bars(ax, frame, theme)
    _name_rows(ax, labels, theme)
    for number, end in enumerate(ends):
        write_beside(ax, end, (1, number), (4, 0), **_OF_ROW)
    _draw_ties(ax, ties, right, theme)
    for number, (indent, line) in enumerate(dropped):
        shift = _LEFT - 6 + indent - left, -34 - _LINE * (number + 1)
        write_beside(ax, line, (0, 0), shift, color=theme.ink2, gid="dropped")
    return ax


def _figure_height(ax: Axes) -> float:
    """Return the height of the figure, in points."""
    figure = ax.get_figure(root=True)
    return math.inf if figure is None else float(figure.get_size_inches()[1] * 72)


def _label(row: pd.Series) -> list[str]:
    """Return the label of a layout as one or two lines."""
    chunks = f"interleave={row['interleave']}" if row["interleave"] > 1 else ""
    return [row["mesh"], *filter(None, [", ".join(filter(None, [row.get("experts"), chunks]))])]


def _end_label(row: pd.Series) -> str:
    low, high = (format_number(row[name]) for name in ("step_s_lo", "step_s_hi"))
    return f"{low}{THIN}s" if low == high else f"{low}–{high}{THIN}s"


def _ties(frame: pd.DataFrame, layouts: Layouts) -> list[tuple[int, int, str]]:
    """Return first row, last row and name of the groups of tied layouts."""
    groups = []
    for _, rows in frame.groupby("tie", sort=True):
        first, last = int(rows.index[0]), int(rows.index[-1])
        is_whole = last < len(frame) - 1 or len(frame) == len(layouts)
        if last > first or not is_whole:
            groups.append((first, last, "tied" if is_whole else "tied …"))
    return groups


def _limits(frame: pd.DataFrame) -> tuple[float, bool]:
    """Return the left end of the time axis, and whether the beginning of computation is cut off."""
    longest = float(frame["step_s_hi"].max())
    compute = min(float(frame["compute_s"].min()), float(frame["step_s_lo"].min()))
    if compute < _SHORTENED * longest:
        return 0.0, False
    return compute - (longest - compute) * _CUT / (1 - _CUT), True


def _draw_bars(ax: Axes, frame: pd.DataFrame, theme: Theme) -> None:
    start, is_cut = _limits(frame)
    open_end = frame["compute_s"] + frame["bubble_s"] + frame["exposed_s_hi"]
    longest = float(max(frame["step_s_hi"].max(), open_end.max()))
    ax.set_xlim(start, longest + 0.01 * (longest - start))
    ax.set_ylim(len(frame) - 0.5, -0.5)
    height = min(_BAR / (axes_size(ax)[1] / len(frame)), 0.8)
    y = np.arange(len(frame))
    solid = {"compute_s": theme.line2, "bubble_s": theme.cell}
    solid |= {f"{name}_s_lo": theme.groups[AXIS_GROUPS[name]] for name in COMPONENTS}
    at = np.zeros(len(frame))
    for column, color in solid.items():
        width = frame[column].to_numpy(dtype=float)
        # A thin edge separates neighbours that are equally dark in black-and-white print.
        ax.barh(y, width, height, left=at, color=color, edgecolor=ax.get_facecolor(), linewidth=0.6, gid=column)
        at += width
    for name in COMPONENTS:
        width = (frame[f"{name}_s_hi"] - frame[f"{name}_s_lo"]).to_numpy(dtype=float)
        color = theme.groups[AXIS_GROUPS[name]]
        is_wide = width > 1e-3 * (longest - start)
        look: Any = {"color": "none", "edgecolor": color, "hatch": "//////", "linewidth": 0.0}
        ax.barh(y[is_wide], width[is_wide], height, left=at[is_wide], gid=f"{name}_s_hi", **look)
        at += width
    low, middle, high = (frame[name].to_numpy(dtype=float) for name in ("step_s_lo", "step_s", "step_s_hi"))
    ax.hlines(y, np.maximum(low, start), high, color=theme.ink, linewidth=1.0, gid="range")
    for end in (low, high):
        ax.vlines(end, y - height / 4, y + height / 4, color=theme.ink, linewidth=1.0, gid="range")
    ax.vlines(middle, y - height / 2 - 0.04, y + height / 2 + 0.04, color=theme.ink, linewidth=2.0, gid="expected")
    if is_cut:
        # Two slanted gaps in every bar show that the axis does not start at zero.
        points = (longest - start) / axes_size(ax)[0]
        gap: Any = {"color": ax.get_facecolor(), "linewidth": 1.5, "solid_capstyle": "butt", "gid": "cut"}
        for shift in (5.0, 8.5):
            left, right = start + (shift - 2.0) * points, start + (shift + 2.0) * points
            for row in y:
                ax.plot([left, right], [row + height * 0.7, row - height * 0.7], **gap)
    ax.set_xlabel("seconds per step" + (" (the beginning of computation is cut off)" if is_cut else ""), fontsize=_TEXT)
    ax.tick_params(axis="x", labelsize=_TEXT)
    ax.grid(axis="x", color=theme.line, linewidth=0.6)
    ax.set_axisbelow(True)
    ax.spines[["top", "right", "left"]].set_visible(False)


def _name_rows(ax: Axes, labels: Sequence[Sequence[str]], theme: Theme) -> None:
    ax.set_yticks([])
    for row, lines in enumerate(labels):
        for number, line in enumerate(lines):
            shift = (len(lines) - 1) / 2 - number
            color = theme.ink2 if number else theme.ink
            write_beside(ax, line, (0, row), (-6, shift * _LINE), ha="right", color=color, **_OF_ROW)


def _draw_ties(ax: Axes, ties: Sequence[tuple[int, int, str]], right: float, theme: Theme) -> None:
    """Draw a bracket to the right of tied rows."""
    from matplotlib.lines import Line2D
    from matplotlib.transforms import blended_transform_factory

    blended = blended_transform_factory(ax.transAxes, ax.transData)
    width = axes_size(ax)[0]
    inner, outer = (1 + (right + shift) / width for shift in (1, 5))
    for first, last, text in ties:
        x, y = [inner, outer, outer, inner], [first - 0.3, first - 0.3, last + 0.3, last + 0.3]
        bracket = Line2D(x, y, transform=blended, color=theme.ink2, linewidth=1, clip_on=False, gid="tie")
        ax.add_line(bracket)
        write_beside(ax, text, (1, (first + last) / 2), (right + 9, 0), color=theme.ink2, **_OF_ROW)


def _dropped_lines(layouts: Layouts, width: float) -> list[tuple[float, str]]:
    """Return wrapped lines with their indentation: the dropped layouts by reason, with the number that fixes each."""
    frame = layouts.dropped()
    if frame.empty:
        return []
    lines = [(0.0, "Dropped, with the nearest number that works:")]
    for _, row in frame.iterrows():
        text = f"{row['layouts']:,} by {row['kind']}: {row['reason']} ({row['example']}); {row['fix']}"
        first, *rest = wrap_words(text, 0.98 * width - 30, _TEXT).split("\n")
        lines += [(8.0, first), *((20.0, line) for line in rest)]
    return lines


def _set_title(ax: Axes, layouts: Layouts, frame: pd.DataFrame, theme: Theme) -> float:
    """Set the title, and the legend below it. Return their height in points."""
    from matplotlib.patches import Patch

    handles: list[Any] = [Patch(color=theme.line2, label="computation"), Patch(color=theme.cell, label="bubble")]
    for name in COMPONENTS:
        if frame[f"{name}_s_hi"].max() > 0:
            label = "dp × cp" if name == "dp" and (frame["cp"] > 1).any() else name
            handles.append(Patch(color=theme.groups[AXIS_GROUPS[name]], label=label, linewidth=0))
    handles.append(Patch(facecolor="none", edgecolor=theme.ink2, hatch="//////", linewidth=0, label="may be hidden"))
    height = legend_above(ax, handles)
    return set_title(
        ax,
        [layouts.job.title, f"{layouts.ranks:,} ranks", layouts.cluster.title or layouts.cluster.summary],
        verdict=layouts.verdict,
        note=[
            layouts.rate_text,
            "not validated until a rehearsal on that machine",
        ],
        gap=height,
    )
