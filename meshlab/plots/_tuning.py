"""Figure of a tuning: default and tuned time against message size, with the gain below."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from meshlab.analysis.tuning._choice import size_ranges
from meshlab.analysis.tuning._tuning import Tuning
from meshlab.base._errors import BenchError
from meshlab.base._units import THIN, format_size
from meshlab.plots._curves import scale_sizes, time_tick
from meshlab.plots._style import (
    PREVIOUS,
    axes_size,
    figure_svg,
    font_size,
    new_figure,
    reserve,
    set_title,
    text_width,
    wrap_words,
)
from meshlab.plots._theme import current_theme

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_TEXT = 9.0
_LINE = 12.0
"""Height of a line of text, in points."""

_WIDTH = 8.0
"""Width of a new figure, in inches."""

_PANEL = 300.0
"""Minimum width of a panel, in points."""

_TALL, _BELOW = 170.0, 56.0
"""Height of the times and of the gains below them in a new figure, in points."""

_LEFT, _GAP, _BETWEEN, _TICKS = 48.0, 18.0, 10.0, 30.0
"""Room in points: left of a panel, between columns, between times and gains, and below a panel."""

_MOST_PANELS = 6
_MOST_ROWS = 6
"""Rows of labels above a panel."""

_UNCONFIRMED = ("not confirmed", "not repeated")


def tuning(tuning: Tuning, *, ax: Axes | None = None) -> Axes:
    """Draw the default and the tuned time against the message size, and the gain below, with a panel per collective.

    The chosen option is named above the sizes for which it was chosen. Filled circles are options that were clearly
    faster again on new ranks. Hollow diamonds are options that were faster in the search only, so the default stays.

    Parameters
    ----------
    tuning : Tuning
        The result of `meshlab.tune`.
    ax : matplotlib.axes.Axes, optional
        The axes to draw on. The panels share its area. By default a new figure is created.

    Returns
    -------
    matplotlib.axes.Axes
        The panels are its ``child_axes``: times and gain of each collective.

    Raises
    ------
    BenchError
        If `tuning` is not a Tuning, or has no results.

    Examples
    --------
    >>> import meshlab as ml
    >>> from matplotlib.figure import Figure
    >>> ax = ml.example("tuning").plot(ax=Figure((8, 8)).add_subplot())
    >>> len(ax.child_axes)
    6
    """
    given: Any = tuning
    if not isinstance(given, Tuning):
        raise BenchError(f"tuning must be a Tuning, not {type(given).__name__}; pass the result of meshlab's tune()")
    if not tuning.lines:
        raise BenchError("the tuning has no results to draw", hint="tune again")
    panels = [_Panel.of(label, rows, tuning) for label, rows in tuning.lines[:_MOST_PANELS]]
    if ax is None:
        ax = new_figure((_WIDTH, _height(len(panels), _WIDTH * 72) / 72)).add_axes((0.0, 0.0, 1.0, 1.0))
    reserve(ax, left=4.0, right=16.0, below=4.0)
    title, *notes = tuning.heading()
    if tuning.frame()["buffers"].eq("symmetric").any():
        notes.append("window: a symmetric window; ≤ n: at most n thread blocks (CTAs)")
    plot_width = _plot_width(axes_size(ax)[0], len(panels))
    if any(not label.text for panel in panels for label in _labels(panel, plot_width)):
        notes.append("dotted lines without a name: the option changes, see the table")
    if len(tuning.lines) > len(panels):
        notes.append(f"{len(panels)} of {len(tuning.lines)} collectives are drawn")
    notes = [line for note in notes for line in wrap_words(note, axes_size(ax)[0] - 24, _TEXT).split("\n")]
    reserve(ax, above=set_title(ax, ["time per call, tuned and by default", title], note=notes))
    ax.set_axis_off()
    _draw(ax, panels)
    return ax


def figure_of(tuning: Tuning, width: float = _WIDTH) -> Figure:
    """Return the figure of a tuning with this width in inches, without registering it with pyplot."""
    from matplotlib.figure import Figure

    n = min(len(tuning.lines), _MOST_PANELS)
    figure = Figure((width, _height(n, width * 72) / 72))
    figure.set_label(". ".join(tuning.verdicts))
    tuning.plot(ax=figure.add_axes((0.0, 0.0, 1.0, 1.0)))
    return figure


def figure_html(tuning: Tuning) -> str:
    """Return the figure of a tuning as an ``<svg>`` element."""
    figure = figure_of(tuning)
    return figure_svg(figure, label=str(figure.get_label()))


@dataclass(frozen=True, eq=False)
class _Panel:
    """The rows of one collective, with a heading."""

    heading: str
    rows: pd.DataFrame
    library: str

    @classmethod
    def of(cls, label: str, rows: pd.DataFrame, tuning: Tuning) -> _Panel:
        gain = float(tuning.mean_gains()[label])
        n, faster = len(rows), int(rows["is_confirmed"].sum())
        heading = f"{label}: {100 * gain:.0f}{THIN}% less time, faster at {faster} of {n} sizes"
        return cls(heading if faster else f"{label}: nothing is confirmed to be faster", rows, tuning.library)

    @property
    def limits(self) -> tuple[float, float]:
        return float(self.rows["size_bytes"].min()), float(self.rows["size_bytes"].max())

    @property
    def is_candidate(self) -> Any:
        return self.rows["verdict"].isin(_UNCONFIRMED).to_numpy(bool)


@dataclass(frozen=True, slots=True)
class _Label:
    """The name of an option above a panel, from the size where it starts."""

    text: str
    start: float
    end: float
    tick: float
    row: int


def _columns(width: float, n: int) -> int:
    return max(1, min(int((width + _GAP) // (_PANEL + _LEFT + _GAP)), n, 2))


def _plot_width(width: float, n: int) -> float:
    """Return the width of a panel without the room around it, in points."""
    return (width + _GAP) / _columns(width, n) - _GAP - _LEFT


def _height(n: int, width: float) -> float:
    """Return the height of a new figure, in points."""
    each = _TALL + _BETWEEN + _BELOW + _TICKS + (_MOST_ROWS - 1) * _LINE + 24.0
    return -(-n // _columns(width, n)) * each + 62.0


def _draw(ax: Axes, panels: Sequence[_Panel]) -> None:
    """Draw the panels into the area of the axes."""
    width, height = axes_size(ax)
    n_columns = _columns(width, len(panels))
    n_rows = -(-len(panels) // n_columns)
    cell_width, cell_height = (width + _GAP) / n_columns, height / n_rows
    plot_width = _plot_width(width, len(panels))
    labels = [_labels(panel, plot_width) for panel in panels]
    has_candidates = any(panel.is_candidate.any() for panel in panels)
    for number, panel in enumerate(panels):
        column, row = number % n_columns, number // n_columns
        in_row = slice(row * n_columns, (row + 1) * n_columns)
        titles = [
            wrap_words(neighbour.heading, plot_width + _LEFT - 4, _TEXT + 0.5).split("\n")
            for neighbour in panels[in_row]
        ]
        n_above = max((label.row + 1 for placed in labels[in_row] for label in placed), default=0)
        above = max(len(lines) for lines in titles) * _LINE + n_above * _LINE + 10
        left, top = column * cell_width + _LEFT, height - row * cell_height - above
        room = max(cell_height - above - _TICKS, 60.0)
        below = min(_BELOW, 0.3 * room)
        tall = room - below - _BETWEEN
        upper = ax.inset_axes((left / width, (top - tall) / height, plot_width / width, tall / height))
        lower = ax.inset_axes((left / width, (top - room) / height, plot_width / width, below / height))
        _draw_times(upper, panel, (plot_width, tall))
        _draw_gains(lower, panel, plot_width)
        _draw_heading(upper, titles[column], labels[number], n_above, panel, plot_width)
        if number == 0:
            _draw_legend(upper, panel.library, has_candidates=has_candidates)


def _draw_times(ax: Axes, panel: _Panel, size: tuple[float, float]) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    rows, color = panel.rows, current_theme().accent
    x = rows["size_bytes"].to_numpy(float)
    tuned, default = rows["time_us"].to_numpy(float), rows["default_us"].to_numpy(float)
    scale_sizes(ax, *panel.limits)
    _fit_ticks(ax, size[0], is_labelled=False)
    ax.set_yscale("log")
    ax.plot(x, default, color=PREVIOUS, linewidth=1.6, linestyle=(0, (4, 2)), zorder=3.5)
    ax.fill_between(
        x, rows["time_us_lo"].to_numpy(float), rows["time_us_hi"].to_numpy(float), color=color, alpha=0.25, linewidth=0
    )
    ax.plot(x, tuned, color=color, linewidth=1.6, zorder=3)
    is_faster = rows["is_confirmed"].to_numpy(bool)
    ax.plot(x[is_faster], tuned[is_faster], "o", markersize=4, color=color, markeredgewidth=0, zorder=4)
    _draw_candidates(ax, panel, rows["candidate_us"].to_numpy(float))
    times = np.concatenate([tuned, default])
    bottom, top = float(times.min()) / 1.6, float(times.max()) * 1.6
    ax.set_ylim(bottom, top)
    powers = np.arange(math.ceil(math.log10(bottom)), math.floor(math.log10(top)) + 1)
    if powers.size < 2:
        ax.yaxis.set_major_locator(FixedLocator([round(bottom * 1.25, 2), round(top / 1.25, 2)]))
    else:
        step = max(1, math.ceil(powers.size * (_LINE + 4) / size[1]))
        ax.yaxis.set_major_locator(FixedLocator((10.0 ** powers[::step]).tolist()))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda time, _: time_tick(float(f"{time:.3g}"))))
    ax.yaxis.set_minor_locator(NullLocator())
    _finish(ax)


def _draw_gains(ax: Axes, panel: _Panel, width: float) -> None:
    """Draw the gain of each size as a line from zero, with the symbol of its confirmation."""
    rows, color = panel.rows, current_theme().accent
    x, gain = rows["size_bytes"].to_numpy(float), 100 * rows["gain"].to_numpy(float)
    scale_sizes(ax, *panel.limits)
    _fit_ticks(ax, width, is_labelled=True)
    ax.axhline(0.0, color=PREVIOUS, linewidth=1)
    is_faster = rows["is_confirmed"].to_numpy(bool)
    ax.vlines(x[is_faster], 0, gain[is_faster], color=color, linewidth=1.6)
    ax.plot(x[is_faster], gain[is_faster], "o", markersize=4, color=color, markeredgewidth=0, zorder=4)
    candidates = 100 * rows["candidate_gain"].to_numpy(float)
    _draw_candidates(ax, panel, candidates)
    drawn = np.concatenate([gain, candidates[panel.is_candidate]])
    top = max(float(np.nanmax(drawn, initial=0.0)) * 1.25, 5.0)
    ax.set_ylim(min(0.0, float(np.nanmin(drawn, initial=0.0))) - 0.08 * top, top)
    step = next(step for step in (2, 5, 10, 20, 25, 50) if 2.6 * step >= top or step == 50)
    ticks = np.arange(0, top, step)
    ax.set_yticks(ticks, [f"{tick:.0f}{THIN}%" for tick in ticks])
    ax.set_ylabel("less time", fontsize=_TEXT, labelpad=2)
    _finish(ax)


def _draw_candidates(ax: Axes, panel: _Panel, values: Any) -> None:
    """Draw the options that were faster in the search only as hollow diamonds."""
    import matplotlib as mpl

    chosen = panel.is_candidate
    x = panel.rows["size_bytes"].to_numpy(float)[chosen]
    ax.plot(
        x, values[chosen], "D", markersize=4.5, markerfacecolor="none", markeredgecolor=mpl.rcParams["text.color"],
        markeredgewidth=1.1, zorder=5, gid="unconfirmed",
    )  # fmt: skip


def _draw_legend(ax: Axes, library: str, *, has_candidates: bool) -> None:
    import matplotlib as mpl
    from matplotlib.lines import Line2D

    color, ink = current_theme().accent, mpl.rcParams["text.color"]
    handles = [
        Line2D([], [], color=PREVIOUS, linewidth=1.6, linestyle=(0, (4, 2)), label=f"{library}'s default"),
        Line2D([], [], color=color, linewidth=1.6, marker="o", markersize=4, label="tuned; confirmed on new ranks"),
    ]
    if has_candidates:
        look = {"markerfacecolor": "none", "markeredgecolor": ink, "markersize": 4.5}
        handles.append(Line2D([], [], linestyle="none", marker="D", label="not confirmed, default stays", **look))
    ax.legend(handles=handles, loc="upper left", fontsize=_TEXT, frameon=False, borderaxespad=0.2, labelspacing=0.3)


def _labels(panel: _Panel, width: float) -> list[_Label]:
    """Place the names of the options so that no two overlap."""
    labels: list[_Label] = []
    for part in reversed([part for part in size_ranges(panel.rows) if part.row is not None]):
        tick, text = _x_of(panel, part.sizes[0]) * width, _short(part.row)
        wide = text_width(text, _TEXT)
        start = tick + 3 if tick + 3 + wide <= width + 14 else tick - 3 - wide
        row = next((row for row in range(_MOST_ROWS) if _is_free(labels, start, start + wide, tick, row)), None)
        # Without room for its name, a change is only a line.
        labels.append(
            _Label(text, start, start + wide, tick, row) if row is not None else _Label("", tick, tick, tick, -1)
        )
    return labels


def _is_free(placed: Sequence[_Label], start: float, end: float, tick: float, row: int) -> bool:
    """Return whether a label overlaps no other one, and no line from a label to its size crosses a text."""
    for other in placed:
        if not other.text:
            continue
        if other.row == row and start < other.end + 6 and other.start < end + 6:
            return False
        if other.row < row and other.start - 2 < tick < other.end + 2:
            return False
        if other.row > row and start - 2 < other.tick < end + 2:
            return False
    return True


def _short(row: Any) -> str:
    """Return the option in few words."""
    text = str(row["option"]).replace("symmetric window", "window").replace("registered buffers", "registered")
    return text.replace(" CTAs", "") if ", " in text else text


def _draw_heading(
    ax: Axes, title: Sequence[str], labels: Sequence[_Label], n_above: int, panel: _Panel, width: float
) -> None:
    """Write the heading, and below it the option from each size where it changes."""
    color = current_theme().ink2
    for number, line in enumerate(reversed(title)):
        ax.annotate(
            line, (0, 1), (-_LEFT + 4, n_above * _LINE + 6 + number * _LINE), xycoords="axes fraction",
            textcoords="offset points", fontsize=_TEXT + 0.5, fontweight="bold", va="bottom", annotation_clip=False,
            parse_math=False, gid="heading",
        )  # fmt: skip
    for label in labels:
        x = _size_at(panel, label.tick / width)
        ax.axvline(x, color=color, linewidth=0.7, linestyle=(0, (1, 2)), zorder=1)
        if not label.text:
            continue
        ax.annotate(
            label.text, (0, 1), (label.start, 3 + label.row * _LINE), xycoords="axes fraction", color=color,
            textcoords="offset points", fontsize=_TEXT, va="bottom", annotation_clip=False, parse_math=False,
            gid="option",
        )  # fmt: skip
        ax.annotate(
            "", (x, 1), (0, 2 + label.row * _LINE + _TEXT), xycoords=ax.get_xaxis_transform(),
            textcoords="offset points", annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": color, "linewidth": 0.7, "shrinkA": 0, "shrinkB": 0},
        )  # fmt: skip


def _x_of(panel: _Panel, size: float) -> float:
    """Return the horizontal position of a size, as a fraction of the panel. The margin is that of `scale_sizes`."""
    low, high = panel.limits
    octaves = max(math.log2(high / low), 1.0)
    pad = octaves * 0.012 if high > low else 0.5
    return (math.log2(size / low) + pad) / (math.log2(high / low) + 2 * pad)


def _size_at(panel: _Panel, position: float) -> float:
    """Return the size at a horizontal position, the inverse of `_x_of`."""
    low, high = panel.limits
    octaves = max(math.log2(high / low), 1.0)
    pad = octaves * 0.012 if high > low else 0.5
    return float(low * 2 ** (position * (math.log2(high / low) + 2 * pad) - pad))


def _fit_ticks(ax: Axes, width: float, *, is_labelled: bool) -> None:
    """Keep only as many ticks of the size as have room. Insets do not know their width while they are created."""
    import matplotlib as mpl

    low, high = ax.get_xlim()
    label = text_width("512 KiB", font_size(mpl.rcParams["xtick.labelsize"])) + 8
    octaves = math.log2(high / low)
    step = next((step for step in (1, 2, 5, 10) if octaves / step * label <= width), 10)
    ticks = 2.0 ** np.arange(0, 51, step)
    ticks = ticks[(ticks >= low) & (ticks <= high)]
    ax.set_xticks(ticks, [format_size(size) if is_labelled else "" for size in ticks])


def _finish(ax: Axes) -> None:
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(alpha=0.25, linewidth=0.6)
    ax.set_axisbelow(True)
    ax.tick_params(labelsize=_TEXT)
