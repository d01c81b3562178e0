"""Figure of a tuning: default and tuned time against message size, with the gain below."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from meshlab.analysis.tuning._choice import size_ranges
from meshlab.analysis.tuning._tuning import Tuning
from meshlab.base._errors import BenchError
from meshlab.base._units import THIN
from meshlab.plots._panels import (
    BETWEEN,
    LINE,
    TEXT,
    TICKS,
    PanelSize,
    SizeLabel,
    columns_of,
    label_rows,
    panel_width,
    scale_panel,
    scale_times,
    size_position,
    split_panels,
    write_heading,
)
from meshlab.plots._style import (
    PREVIOUS,
    Margins,
    axes_size,
    check_type,
    figure_svg,
    light_grid,
    open_axes,
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

_WIDTH = 8.0  # width of a new figure, in inches
_PANEL = 300.0  # minimum width of a panel, in points
_TALL, _BELOW = 170.0, 56.0  # height of the times and of the gains below them in a new figure, in points
_MOST_PANELS = 6
_MOST_ROWS = 6  # rows of labels above a panel
_TITLE = 62.0  # usual height of the title with its notes, in points
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
    check_type("tuning", tuning, Tuning, hint="pass the result of meshlab's tune()")
    if not tuning.lines:
        raise BenchError("the tuning has no results to draw", hint="tune again")
    panels = [_Panel.of(label, rows, tuning) for label, rows in tuning.lines[:_MOST_PANELS]]
    ax = open_axes(ax, _WIDTH * 72, _height(len(panels), _WIDTH * 72), Margins(0, 0, 0, 0))
    reserve(ax, left=4.0, right=16.0, below=4.0)
    title, *notes = tuning.heading()
    if tuning.frame()["buffers"].eq("symmetric").any():
        notes.append("window: a symmetric window; ≤ n: at most n thread blocks (CTAs)")
    n_columns = _columns(axes_size(ax)[0], len(panels))
    most_rows = label_rows(ax, len(panels), n_columns, most=_MOST_ROWS, least=_TALL / 2 + _TITLE / len(panels))
    labels = [_labels(panel, panel_width(axes_size(ax)[0], n_columns), most_rows) for panel in panels]
    if any(not label.text for placed in labels for label in placed):
        notes.append("dotted lines without a name: the option changes, see the table")
    if len(tuning.lines) > len(panels):
        notes.append(f"{len(panels)} of {len(tuning.lines)} collectives are drawn")
    notes = [line for note in notes for line in wrap_words(note, axes_size(ax)[0] - 24, TEXT).split("\n")]
    reserve(ax, above=set_title(ax, ["time per call, tuned and by default", title], note=notes))
    _draw(ax, panels, labels, n_columns)
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


def _columns(width: float, n: int) -> int:
    return columns_of(width, n, least=_PANEL, most=2)


def _height(n: int, width: float) -> float:
    """Return the height of a new figure, in points."""
    panel_height = _TALL + BETWEEN + _BELOW + TICKS + (_MOST_ROWS - 1) * LINE + 24.0
    return -(-n // _columns(width, n)) * panel_height + _TITLE


def _draw(ax: Axes, panels: Sequence[_Panel], labels: Sequence[Sequence[SizeLabel]], n_columns: int) -> None:
    """Draw the panels into the area of the axes."""
    titles = [panel.heading for panel in panels]
    places = split_panels(ax, titles, labels, n_columns, below=_BELOW)
    for panel, place, above in zip(panels, places, labels, strict=True):
        assert place.lower is not None
        _draw_times(place.upper, panel, place.size)
        _draw_gains(place.lower, panel, place.size.width)
        write_heading(place, above, "option")
    has_candidates = any(panel.is_candidate.any() for panel in panels)
    _draw_legend(places[0].upper, panels[0].library, has_candidates=has_candidates)


def _draw_times(ax: Axes, panel: _Panel, size: PanelSize) -> None:
    rows, color = panel.rows, current_theme().accent
    x = rows["size_bytes"].to_numpy(float)
    tuned, default = rows["time_us"].to_numpy(float), rows["default_us"].to_numpy(float)
    scale_panel(ax, panel.limits, size.width, is_labelled=False)
    ax.plot(x, default, color=PREVIOUS, linewidth=1.6, linestyle=(0, (4, 2)), zorder=3.5)
    ax.fill_between(
        x, rows["time_us_lo"].to_numpy(float), rows["time_us_hi"].to_numpy(float), color=color, alpha=0.25, linewidth=0
    )
    ax.plot(x, tuned, color=color, linewidth=1.6, zorder=3)
    is_faster = rows["is_confirmed"].to_numpy(bool)
    ax.plot(x[is_faster], tuned[is_faster], "o", markersize=4, color=color, markeredgewidth=0, zorder=4)
    _draw_candidates(ax, panel, rows["candidate_us"].to_numpy(float))
    times = np.concatenate([tuned, default])
    scale_times(ax, float(times.min()) / 1.6, float(times.max()) * 1.6, size.tall)
    light_grid(ax)
    ax.tick_params(labelsize=TEXT)


def _draw_gains(ax: Axes, panel: _Panel, width: float) -> None:
    """Draw the gain of each size as a line from zero, with the symbol of its confirmation."""
    rows, color = panel.rows, current_theme().accent
    x, gain = rows["size_bytes"].to_numpy(float), 100 * rows["gain"].to_numpy(float)
    scale_panel(ax, panel.limits, width, is_labelled=True)
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
    ax.set_ylabel("less time", fontsize=TEXT, labelpad=2)
    light_grid(ax)
    ax.tick_params(labelsize=TEXT)


def _draw_candidates(ax: Axes, panel: _Panel, values: Any) -> None:
    """Draw the options that were faster in the search only as hollow diamonds."""
    import matplotlib as mpl

    chosen = panel.is_candidate
    x = panel.rows["size_bytes"].to_numpy(float)[chosen]
    look: Any = {"markersize": 4.5, "markerfacecolor": "none", "markeredgewidth": 1.1, "zorder": 5}
    ax.plot(x, values[chosen], "D", markeredgecolor=mpl.rcParams["text.color"], gid="unconfirmed", **look)


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
    ax.legend(handles=handles, loc="upper left", fontsize=TEXT, frameon=False, borderaxespad=0.2, labelspacing=0.3)


def _labels(panel: _Panel, width: float, most_rows: int) -> list[SizeLabel]:
    """Place the names of the options so that no two overlap."""
    labels: list[SizeLabel] = []
    for part in reversed([part for part in size_ranges(panel.rows) if part.row is not None]):
        size = float(part.sizes[0])
        tick, text = size_position(size, *panel.limits) * width, _short(part.row)
        wide = text_width(text, TEXT)
        start = tick + 3 if tick + 3 + wide <= width + 14 else tick - 3 - wide
        row = next((row for row in range(most_rows) if _is_free(labels, start, start + wide, tick, row)), None)
        # Without room for its name, a change is only a line.
        labels.append(SizeLabel("", size, tick, tick, -1) if row is None else SizeLabel(text, size, start, tick, row))
    return labels


def _is_free(placed: Sequence[SizeLabel], start: float, end: float, tick: float, row: int) -> bool:
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
