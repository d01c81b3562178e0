"""Figure of a replay: the transfer of each axis in the trace, in the replay, and with each option."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from meshlab.base._units import SEPARATOR, format_time_us
from meshlab.plots._style import PALETTE, PREVIOUS, legend_above, room_right, set_title, wrap_words, write_beside
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

_ROW = 18.0  # height of a bar, in points
_NEEDED = ("axis", "side", "transfer_us")
TRACE = "trace"


def replay(frame: pd.DataFrame, *, verdict: str = "", ax: Axes | None = None) -> Axes:
    """Draw the transfer along each axis in the trace, in its replay, and with each option.

    The bar of the trace is filled as far as it was exposed, and hatched where computation ran next to it. The line at
    its end, if there is one, is the time for which a rank waited for others. Whiskers are 95 % intervals.

    Parameters
    ----------
    frame : pandas.DataFrame
        The result of `Replay.by_axis`.
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
    >>> frame = pd.DataFrame({"axis": ["tp", "tp"], "side": ["trace", "default"], "transfer_us": [900.0, 850.0]})
    >>> ax = ml.plot.replay(frame, ax=Figure((7, 3)).add_subplot())
    >>> ax.get_xlabel(), [label.get_text() for label in ax.get_yticklabels()]
    ('transfer (µs)', ['tp, trace', 'replay'])
    """
    check_frame(frame, _NEEDED, "Replay.by_axis()")
    return _draw(open_bars(ax), frame, verdict, is_new=ax is None)


def replay_html(frame: pd.DataFrame) -> str:
    """Return the figure of a replay as an ``<svg>`` element, which follows the theme of the page."""
    label = f"transfers of a trace and its replay: {', '.join(frame['axis'].unique())}"
    return bars_svg(lambda ax: _draw(ax, frame, "", is_new=True), label)


def _draw(ax: Axes, frame: pd.DataFrame, verdict: str, *, is_new: bool) -> Axes:
    """Draw the bars. A new figure gets the height that they need."""
    sides = list(frame["side"].unique())
    colors = dict(
        zip(sides, (PREVIOUS, *(PALETTE[number % len(PALETTE)] for number in range(len(sides)))), strict=False)
    )
    rows = frame[frame["transfer_us"].notna()].to_dict("records")
    highs = [max(row["transfer_us"], np.nan_to_num(row.get("transfer_us_hi", 0.0))) for row in rows]
    lines = _lines(rows)
    scale = lay_out(ax, lines, (0, max([1e-3, *highs])), "transfer")
    for row, line in zip(rows, lines, strict=True):
        _draw_row(ax, row, line.place, colors[row["side"]], scale, line.text)
    gap = _set_legend(ax, rows)
    notes = SEPARATOR.join(frame.attrs.get("notes", ()))
    above = set_title(
        ax,
        [part for part in ("replay", str(frame.attrs.get("where", ""))) if part],
        verdict=verdict,
        note=wrap_words(notes, 0.98 * room_right(ax) - 8, TEXT).split("\n") if notes else (),
        gap=gap,
    )
    fit_height(ax, lines, _ROW, above, is_new=is_new)
    return ax


def _lines(rows: Sequence[Mapping[Any, Any]]) -> list[BarLine]:
    """Return the line of each bar. The first bar of an axis names it, after a gap."""
    lines: list[BarLine] = []
    for row, before in zip(rows, [None, *rows], strict=False):
        side = "replay" if row["side"] == "default" else str(row["side"])
        is_first = before is None or before["axis"] != row["axis"]
        place = lines[-1].place + 1 + is_first * GAP / _ROW if lines else 0.0
        lines.append(BarLine(place, f"{row['axis']}, {side}" if is_first else side, _text(row)))
    return lines


def _text(row: Mapping[Any, Any]) -> str:
    """Return the text at the end of a bar."""
    text = format_time_us(row["transfer_us"])
    wait = row.get("wait_us", np.nan)
    return f"{text}, and {format_time_us(wait)} of waits" if wait == wait and wait > 0 else text


def _draw_row(ax: Axes, row: Mapping[Any, Any], place: float, color: str, scale: float, text: str) -> None:
    """Draw a bar with its interval, and write the text at its end."""
    length = row["transfer_us"] / scale
    exposed = row.get("exposed_us", np.nan) / scale
    solid = exposed if row["side"] == TRACE and exposed == exposed else length
    ax.barh(place, solid, height=0.62, **filled(color))
    if solid < length:
        ax.barh(place, length - solid, left=solid, height=0.62, **hatched(color))
    low, high = (row.get(name, np.nan) / scale for name in ("transfer_us_lo", "transfer_us_hi"))
    if np.isfinite([low, high]).all():
        ax.hlines(place, low, high, color=ink(), linewidth=1.2)
    write_beside(ax, text, (max(length, np.nan_to_num(high)), place), (5, 0), xycoords="data", va="center", gid="value")


def _set_legend(ax: Axes, rows: Sequence[Mapping[Any, Any]]) -> float:
    """Set the legend, if a bar needs one, and return its height in points."""
    from matplotlib.patches import Patch

    if not any(row["side"] == TRACE and row.get("exposed_us", np.nan) < row["transfer_us"] for row in rows):
        return 0.0
    handles = [
        Patch(label="exposed in the trace", **filled(PREVIOUS)),
        Patch(label="next to computation", **hatched(PREVIOUS)),
    ]
    return legend_above(ax, handles)
