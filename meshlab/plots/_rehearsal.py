"""Figure of a rehearsal: a bar per training step, and a bar per axis with its exposed and hidden communication."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from meshlab.base._units import SEPARATOR, format_time_us
from meshlab.plots._style import (
    PALETTE,
    PREVIOUS,
    axes_size,
    legend_above,
    room_right,
    set_title,
    wrap_words,
    write_beside,
)
from meshlab.plots._time_bars import (
    GAP,
    TEXT,
    BarLine,
    bars_svg,
    check_frame,
    filled,
    fit_height,
    hatched,
    ink,
    lay_out,
    open_bars,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_ROW = 27.0  # height of a bar with its prediction, in points
_NEEDED = ("layout", "part", "axis", "exposed_us", "hidden_us", "alone_us", "step_us")
_MOST_LAYOUTS = 8
_COLORS = PALETTE[:6]


@dataclass(frozen=True, slots=True)
class _Row:
    """A bar: the rows of the frame with its parts, and its position."""

    place: float
    label: str
    parts: pd.DataFrame
    is_step: bool


def rehearsal(frame: pd.DataFrame, *, verdict: str = "", ax: Axes | None = None) -> Axes:
    """Draw the parts of training steps, and the communication of each axis.

    The first bar of a layout is its step: computation, its slowdown next to communication (hatched), the exposed
    communication of each axis, and the bubble of the pipeline (outlined), which is computed. The bars below it are the
    axes: exposed communication, and hidden communication (hatched). A vertical tick is the time of the axis on
    its own. The line below a bar is the prediction for that time, from its lower to its upper bound.

    Parameters
    ----------
    frame : pandas.DataFrame
        The result of `Rehearsal.frame`.
    verdict : str, default ""
        A sentence for the title.
    ax : matplotlib.axes.Axes, optional
        The axes to draw on. By default a new figure is created.

    Returns
    -------
    matplotlib.axes.Axes
        The axes.

    Raises
    ------
    BenchError
        If the frame is empty or lacks a column.

    Examples
    --------
    >>> import meshlab as ml
    >>> import pandas as pd
    >>> from matplotlib.figure import Figure
    >>> rows = [("dp=2", "compute", None, 800.0), ("dp=2", "communication", "dp", 200.0)]
    >>> frame = pd.DataFrame(rows, columns=["layout", "part", "axis", "exposed_us"]).assign(
    ...     hidden_us=300.0, alone_us=450.0, step_us=1000.0
    ... )
    >>> ax = ml.plot.rehearsal(frame, ax=Figure((7, 3)).add_subplot())
    >>> ax.get_xlabel(), [label.get_text() for label in ax.get_yticklabels()]
    ('time (ms)', ['dp=2', 'dp'])
    """
    check_frame(frame, _NEEDED, "Rehearsal.frame()")
    return _draw(open_bars(ax), frame, verdict, is_new=ax is None)


def rehearsal_html(frame: pd.DataFrame) -> str:
    """Return the figure of a rehearsal as an ``<svg>`` element, which follows the theme of the page."""
    label = f"training steps: {', '.join(map(str, frame['layout'].unique()))}"
    return bars_svg(lambda ax: _draw(ax, frame, "", is_new=True), label)


def _draw(ax: Axes, frame: pd.DataFrame, verdict: str, *, is_new: bool) -> Axes:
    """Draw a rehearsal. A new figure gets the height that its bars need."""
    names = list(frame["layout"].unique())
    notes = list(frame.attrs.get("notes", ()))
    if len(names) > _MOST_LAYOUTS:
        notes.append(f"{_MOST_LAYOUTS} of {len(names)} layouts are drawn: the fastest")
        best = frame.groupby("layout")["step_us"].first().nsmallest(_MOST_LAYOUTS).index
        names = [name for name in names if name in best]
    rows = _rows(frame, names)
    axes = list(frame["axis"].dropna().unique())
    colors = {axis: _COLORS[number % len(_COLORS)] for number, axis in enumerate(axes)}
    is_long = axes_size(ax)[0] > 420
    lines = [BarLine(row.place, row.label, _text(row, is_long=is_long), row.is_step) for row in rows]
    scale = lay_out(ax, lines, (0, _longest(rows)), "time")
    for row, line in zip(rows, lines, strict=True):
        _draw_row(ax, row, colors, scale, line.text)
    above = _set_legend_and_title(ax, rows, frame, verdict, notes)
    fit_height(ax, lines, _ROW, above, is_new=is_new)
    return ax


def _rows(frame: pd.DataFrame, names: Sequence[str]) -> list[_Row]:
    """Return the bars from the top to the bottom."""
    rows: list[_Row] = []
    place = 0.0
    for name in names:
        parts = frame[frame["layout"] == name]
        rows.append(_Row(place, str(name), parts, is_step=True))
        for axis in parts["axis"].dropna():
            place += 1
            rows.append(_Row(place, str(axis), parts[parts["axis"] == axis], is_step=False))
        place += 1 + GAP / _ROW
    return rows


def _longest(rows: Sequence[_Row]) -> float:
    """Return the end of the longest bar, tick or prediction, in µs."""
    ends, predicted = [1e-3], [0.0]
    for row in rows:
        if row.is_step:
            ends.append(float(row.parts["exposed_us"].sum()) * (1 + _bubble(row)))
            continue
        values = row.parts.iloc[0]
        ends += [float(values["exposed_us"] + values["hidden_us"]), float(values["alone_us"])]
        predicted.append(float(values.get("predicted_us_hi", np.nan)))
    # A prediction far beyond the measurements would squeeze all bars. Its line then leaves the axes.
    return max(*ends, min(float(np.nanmax(predicted)), 1.5 * max(ends)))


def _bubble(row: _Row) -> float:
    """Return the idle time of the pipeline relative to the step, or 0 if it is unknown."""
    value = float(row.parts["bubble"].iloc[0]) if "bubble" in row.parts else 0.0
    return value if value > 0 else 0.0


def _text(row: _Row, *, is_long: bool) -> str:
    """Return the text at the end of a bar."""
    if row.is_step:
        step = float(row.parts["step_us"].iloc[0])
        is_compute = row.parts["part"] == "compute"
        share = 1 - float(row.parts.loc[is_compute, "exposed_us"].sum()) / step
        total = format_time_us(step * (1 + _bubble(row)))
        return f"{total}, {100 * share:.0f} % communication" if is_long else total
    values = row.parts.iloc[0]
    exposed, hidden = format_time_us(values["exposed_us"]), format_time_us(values["hidden_us"])
    return f"{exposed} exposed, {hidden} hidden" if is_long else exposed


def _draw_row(ax: Axes, row: _Row, colors: dict[str, str], scale: float, text: str) -> None:
    """Draw a bar, its tick and its prediction, and write the text at its end."""
    start = 0.0
    for _, values in row.parts.iterrows():
        exposed = float(values["exposed_us"]) / scale
        if values["part"] == "communication":
            style = filled(colors[values["axis"]])
        else:
            style = filled(PREVIOUS) if values["part"] == "compute" else hatched(PREVIOUS)
        ax.barh(row.place, exposed, left=start, height=0.62 if row.is_step else 0.44, **style)
        start += exposed
    if row.is_step and _bubble(row):
        idle = start * _bubble(row)
        ax.barh(row.place, idle, left=start, height=0.62, **_outlined())
        start += idle
    if not row.is_step:
        values = row.parts.iloc[0]
        color, hidden = colors[values["axis"]], float(values["hidden_us"]) / scale
        ax.barh(row.place, hidden, left=start, height=0.44, **hatched(color))
        start += hidden
        alone = float(values["alone_us"]) / scale
        ax.vlines(alone, row.place - 0.3, row.place + 0.3, color=ink(), linewidth=1.6)
        low, middle, high = (
            float(values.get(name, np.nan)) / scale for name in ("predicted_us_lo", "predicted_us", "predicted_us_hi")
        )
        if np.isfinite([low, middle, high]).all():
            ax.hlines(row.place + 0.37, low, high, color=ink(), linewidth=1.2)
            ax.plot(middle, row.place + 0.37, marker="d", markersize=4, color=ink(), linestyle="none")
            start = max(start, min(high, ax.get_xlim()[1]))
        start = max(start, alone)
    write_beside(ax, text, (start, row.place), (5, 0), xycoords="data", va="center", gid="value")


def _outlined() -> dict[str, Any]:
    return {"facecolor": "none", "edgecolor": PREVIOUS, "linestyle": (0, (2, 1.5)), "linewidth": 1.2}


def _set_legend_and_title(
    ax: Axes, rows: Sequence[_Row], frame: pd.DataFrame, verdict: str, notes: Sequence[str]
) -> float:
    """Set the legend above the axes and the title above it. Return their height in points."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    color = _COLORS[0]
    handles: list[Any] = [
        Patch(label="computation", **filled(PREVIOUS)),
        Patch(label="its slowdown", **hatched(PREVIOUS)),
        Patch(label="exposed", **filled(color)),
        Patch(label="hidden", **hatched(color)),
        Line2D(
            [], [], color=ink(), marker="|", markersize=9, linestyle="none", markeredgewidth=1.6, label="on its own"
        ),
    ]
    if any(_bubble(row) for row in rows):
        handles.insert(2, Patch(label="bubble (computed)", **_outlined()))
    if "predicted_us" in frame and frame["predicted_us"].notna().any():
        handles.append(Line2D([], [], color=ink(), marker="d", markersize=4, linewidth=1.2, label="predicted"))
    height = legend_above(ax, handles)
    where = str(frame.attrs.get("where", ""))
    return set_title(
        ax,
        [part for part in ("training step", where) if part],
        verdict=verdict,
        note=wrap_words(SEPARATOR.join(notes), 0.98 * room_right(ax) - 8, TEXT).split("\n") if notes else (),
        gap=height,
    )
