"""Panels with times against message size, a ratio below them, and labels at sizes above them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from meshlab.base._units import format_size
from meshlab.plots._curves import scale_sizes, size_margin, time_tick
from meshlab.plots._style import axes_size, text_width, tick_size, wrap_words, write_beside
from meshlab.plots._theme import current_theme

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TEXT = 9.0
LINE = 12.0  # height of a line of text, in points
# Room in points: left of a panel, between columns, between times and ratios, and below a panel.
LEFT, GAP, BETWEEN, TICKS = 46.0, 18.0, 10.0, 30.0
_LOWEST = 40.0  # minimum height of a panel without its heading, in points


class PanelSize(NamedTuple):
    """Width of a panel, and height of its times and of the ratios below them, in points."""

    width: float
    tall: float
    below: float


class Panel(NamedTuple):
    """The axes of a panel with its size, and the heading above them."""

    upper: Axes
    lower: Axes | None  # of the ratios, if there are some
    size: PanelSize
    title: list[str]  # lines
    n_above: int  # rows of labels


@dataclass(frozen=True, slots=True)
class SizeLabel:
    """A label above the size at which it starts. Without a text, it is only a line."""

    text: str
    size: float
    start: float  # left end in points from the left edge of the panel
    tick: float  # in points from there; 0 at the beginning, which needs no line
    row: int  # 0 is next to the panel

    @property
    def end(self) -> float:
        """The right end in points."""
        return self.start + text_width(self.text, TEXT)


def columns_of(width: float, n: int, *, least: float, most: int) -> int:
    """Return the number of columns of panels: as many as fit, but no more than needed for the same number of rows."""
    n_columns = max(1, min(int((width + GAP) // (least + LEFT + GAP)), n, most))
    return -(-n // -(-n // n_columns))


def panel_width(width: float, n_columns: int) -> float:
    """Return the width of a panel without the room around it, in points."""
    return (width + GAP) / n_columns - GAP - LEFT


def label_rows(ax: Axes, n_panels: int, n_columns: int, *, most: int, least: float) -> int:
    """Return the number of rows of labels above a panel that leave it a height of `least` points."""
    height = axes_size(ax)[1] / -(-n_panels // n_columns)
    return int(np.clip((height - 2 * LINE - TICKS - least) // LINE, 1, most))


def split_panels(
    ax: Axes, titles: Sequence[str], labels: Sequence[Sequence[SizeLabel]], n_columns: int, *, below: float
) -> list[Panel]:
    """Return the panels in the area of the axes. `below` is the height of the ratios in points, 0 without them."""
    # The panels are insets, because they share the area of axes that may be part of another figure. Layout engines do
    # not arrange insets, so their places are computed here.
    ax.set_axis_off()
    width, height = axes_size(ax)
    cell_width, cell_height = (width + GAP) / n_columns, height / -(-len(titles) // n_columns)
    wide = panel_width(width, n_columns)
    wrapped = [wrap_words(title, wide + LEFT - 4, TEXT + 0.5).split("\n") for title in titles]
    panels = []
    for number, title in enumerate(wrapped):
        row, column = divmod(number, n_columns)
        in_row = slice(row * n_columns, (row + 1) * n_columns)
        n_above = max((label.row + 1 for placed in labels[in_row] for label in placed), default=0)
        heading = (max(map(len, wrapped[in_row])) + n_above) * LINE + 8
        left, top = column * cell_width + LEFT, height - row * cell_height - heading
        room = max(cell_height - heading - TICKS, _LOWEST)
        share = min(below, 0.3 * room)  # of the ratios
        size = PanelSize(wide, room - share - BETWEEN * bool(below), share)

        def box(bottom: float, tall: float, left: float = left) -> tuple[float, float, float, float]:
            return left / width, bottom / height, wide / width, tall / height

        upper = ax.inset_axes(box(top - size.tall, size.tall))
        lower = ax.inset_axes(box(top - room, size.below)) if below else None
        panels.append(Panel(upper, lower, size, title, n_above))
    return panels


def write_heading(panel: Panel, labels: Sequence[SizeLabel], gid: str) -> None:
    """Write the title, and below it a line and a label at each size at which something changes."""
    ax, color = panel.upper, current_theme().ink2
    for number, line in enumerate(reversed(panel.title)):
        shift = 4 - LEFT, (panel.n_above + number) * LINE + 6
        write_beside(ax, line, (0, 1), shift, fontsize=TEXT + 0.5, fontweight="bold", gid="heading")
    for label in labels:
        if label.tick:
            ax.axvline(label.size, color=color, linewidth=0.7, linestyle=(0, (1, 2)), zorder=1)
        if not label.text:
            continue
        write_beside(ax, label.text, (0, 1), (label.start, 3 + label.row * LINE), color=color, gid=gid)
        if label.tick:
            leader = {"arrowstyle": "-", "color": color, "linewidth": 0.7, "shrinkA": 0, "shrinkB": 0}
            shift = 0, 2 + label.row * LINE + TEXT
            write_beside(ax, "", (label.size, 1), shift, xycoords=ax.get_xaxis_transform(), arrowprops=leader)


def size_position(size: float, smallest: float, largest: float) -> float:
    """Return the horizontal position of a size, as a fraction of a panel."""
    margin = size_margin(smallest, largest)
    return (math.log2(size / smallest) + margin) / (math.log2(largest / smallest) + 2 * margin)


def scale_panel(ax: Axes, limits: tuple[float, float], width: float, *, is_labelled: bool) -> None:
    """Scale the sizes, with as many ticks as have room. Insets have no width while they are created."""
    scale_sizes(ax, *limits)
    low, high = ax.get_xlim()
    label = text_width("512 KiB", tick_size()) + 8
    step = next((step for step in (1, 2, 5, 10) if math.log2(high / low) / step * label <= width), 10)
    ticks = 2.0 ** np.arange(0, 51, step)
    ticks = ticks[(ticks >= low) & (ticks <= high)]
    ax.set_xticks(ticks, [format_size(size) if is_labelled else "" for size in ticks])


def scale_times(ax: Axes, low: float, high: float, height: float) -> None:
    """Scale the times, with ticks at the powers of ten that have room, or near the ends without two of them."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    powers = np.arange(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)
    ticks = [10.0 ** int(power) for power in powers[:: max(1, math.ceil(powers.size * (LINE + 4) / height))]]
    if powers.size < 2:
        ticks = [round(low * 1.25, 2), round(high / 1.25, 2)]
    ax.set_yscale("log")
    ax.set_ylim(low, high)
    ax.yaxis.set_major_locator(FixedLocator(ticks))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda time, _: time_tick(float(f"{time:.3g}"))))
    ax.yaxis.set_minor_locator(NullLocator())
