"""Figure of a replay: the transfer of each axis in the trace, in the replay, and with each option."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from meshlab.base._errors import BenchError
from meshlab.base._units import SEPARATOR, format_time_us
from meshlab.plots._style import (
    PALETTE,
    PREVIOUS,
    Margins,
    figure_svg,
    legend_above,
    light_grid,
    open_axes,
    reserve,
    room_right,
    set_height,
    set_title,
    text_width,
    tick_size,
    wrap_words,
    write_beside,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_TEXT = 9.0
_ROW, _GAP = 18.0, 12.0  # height of a bar, and the gap between two axes, in points
_SIDE, _MARGINS, _BELOW = 576.0, Margins(57.0, 57.0, 57.0, 57.0), 40.0
_NEEDED = ("axis", "side", "transfer_us")
_UNITS = ((1e6, "s"), (1e3, "ms"), (1.0, "µs"))
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
    missing = [name for name in _NEEDED if name not in frame]
    if missing or frame.empty:
        fault = f"lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}" if missing else "is empty"
        raise BenchError(f"the frame {fault}; pass the result of Replay.by_axis()")
    return _draw(open_axes(ax, _SIDE, _SIDE, _MARGINS), frame, verdict, is_new=ax is None)


def replay_html(frame: pd.DataFrame) -> str:
    """Return the figure of a replay as an ``<svg>`` element, which follows the theme of the page."""
    from matplotlib.figure import Figure

    figure = Figure((_SIDE / 72, _SIDE / 72))
    _draw(figure.add_axes(_MARGINS.box(_SIDE, _SIDE)), frame, "", is_new=True)
    return figure_svg(figure, label=f"transfers of a trace and its replay: {', '.join(frame['axis'].unique())}")


def _draw(ax: Axes, frame: pd.DataFrame, verdict: str, *, is_new: bool) -> Axes:
    """Draw the bars. A new figure gets the height that they need."""
    sides = list(frame["side"].unique())
    colors = dict(
        zip(sides, (PREVIOUS, *(PALETTE[number % len(PALETTE)] for number in range(len(sides)))), strict=False)
    )
    rows = frame[frame["transfer_us"].notna()].to_dict("records")
    places = _places(rows)
    highs = [max(row["transfer_us"], np.nan_to_num(row.get("transfer_us_hi", 0.0))) for row in rows]
    longest = max([1e-3, *highs])
    scale, unit = next(((scale, unit) for scale, unit in _UNITS if longest >= scale), _UNITS[-1])
    labels = _labels(rows)
    texts = [_text(row) for row in rows]
    left = max(text_width(label, tick_size()) for label in labels) + 18
    reserve(ax, left=left, right=max(text_width(text, _TEXT) for text in texts) + 16, below=_BELOW)
    ax.set_xlim(0, longest / scale * 1.02)
    for row, place, text in zip(rows, places, texts, strict=True):
        _draw_row(ax, row, place, colors[row["side"]], scale, text)
    ax.set_ylim(places[-1] + 0.7, -0.7)
    ax.set_yticks(places, labels)
    ax.tick_params(axis="y", length=0)
    ax.set_xlabel(f"transfer ({unit})")
    light_grid(ax, "x")
    gap = _set_legend(ax, rows)
    notes = SEPARATOR.join(frame.attrs.get("notes", ()))
    above = set_title(
        ax,
        [part for part in ("replay", str(frame.attrs.get("where", ""))) if part],
        verdict=verdict,
        note=wrap_words(notes, 0.98 * room_right(ax) - 8, _TEXT).split("\n") if notes else (),
        gap=gap,
    )
    if is_new:
        set_height(ax, (places[-1] + 1.4) * _ROW, above=above, below=_BELOW)
    else:
        reserve(ax, above=above)
    return ax


def _places(rows: Sequence[Mapping[Any, Any]]) -> list[float]:
    """Return the position of each bar, with a gap before each axis but the first."""
    places, place = [], 0.0
    for number, row in enumerate(rows):
        if number:
            place += 1 if rows[number - 1]["axis"] == row["axis"] else 1 + _GAP / _ROW
        places.append(place)
    return places


def _labels(rows: Sequence[Mapping[Any, Any]]) -> list[str]:
    """Return the label of each bar. The first bar of an axis names it."""
    labels = []
    for number, row in enumerate(rows):
        side = "replay" if row["side"] == "default" else str(row["side"])
        is_first = not number or rows[number - 1]["axis"] != row["axis"]
        labels.append(f"{row['axis']}, {side}" if is_first else side)
    return labels


def _text(row: Mapping[Any, Any]) -> str:
    """Return the text at the end of a bar."""
    text = format_time_us(row["transfer_us"])
    wait = row.get("wait_us", np.nan)
    return f"{text}, and {format_time_us(wait)} of waits" if wait == wait and wait > 0 else text


def _draw_row(ax: Axes, row: Mapping[Any, Any], place: float, color: str, scale: float, text: str) -> None:
    """Draw a bar with its interval, and write the text at its end."""
    length = row["transfer_us"] / scale
    exposed = row.get("exposed_us", np.nan) / scale
    filled = exposed if row["side"] == TRACE and exposed == exposed else length
    ax.barh(place, filled, height=0.62, facecolor=color, edgecolor="none", linewidth=0)
    if filled < length:
        # Without a fill, because SVG patterns ignore its opacity.
        ax.barh(
            place,
            length - filled,
            left=filled,
            height=0.62,
            facecolor="none",
            edgecolor=color,
            hatch="////",
            linewidth=0.8,
        )
    low, high = (row.get(name, np.nan) / scale for name in ("transfer_us_lo", "transfer_us_hi"))
    if np.isfinite([low, high]).all():
        import matplotlib as mpl

        ax.hlines(place, low, high, color=mpl.rcParams["text.color"], linewidth=1.2)
    write_beside(ax, text, (max(length, np.nan_to_num(high)), place), (5, 0), xycoords="data", va="center", gid="value")


def _set_legend(ax: Axes, rows: Sequence[Mapping[Any, Any]]) -> float:
    """Set the legend, if a bar needs one, and return its height in points."""
    from matplotlib.patches import Patch

    if not any(row["side"] == TRACE and row.get("exposed_us", np.nan) < row["transfer_us"] for row in rows):
        return 0.0
    handles = [
        Patch(facecolor=PREVIOUS, edgecolor="none", linewidth=0, label="exposed in the trace"),
        Patch(facecolor="none", edgecolor=PREVIOUS, hatch="////", linewidth=0.8, label="next to computation"),
    ]
    return legend_above(ax, handles)
