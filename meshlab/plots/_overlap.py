"""Figure of an overlap measurement: a bar per option with the time that a call adds to a matrix product."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from meshlab.base._errors import BenchError
from meshlab.base._units import THIN, format_size, format_time_us
from meshlab.plots._style import PALETTE, PREVIOUS, legend_above, room_right, set_title, wrap_words, write_beside
from meshlab.plots._time_bars import GAP, TEXT, BarLine, check_frame, filled, fit_height, ink, lay_out, open_bars

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_ROW = 19.0  # height of a bar, in points
_NEEDED = ("collective", "size_bytes", "m", "n", "k", "dtype", "option", "both_us", "exposed_us", "communication_us")
_CASE = list(_NEEDED[:6])
_MOST_OPTIONS = 8
_BEST = PALETTE[2]


@dataclass(frozen=True, slots=True)
class _Row:
    """A bar, or the heading of a call without one."""

    place: float
    label: str
    values: dict[str, Any] | None = None
    is_best: bool = False


def overlap(frame: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Draw the time that a call adds to a matrix product, by option: the exposed communication.

    The options of each call are in the order of the time of both together, and the best one is green if it is clearly
    faster than the default. The thin line is the 95 % interval, and the tick is the time of the call alone. Of many
    options, the eight fastest and the default are drawn.

    Parameters
    ----------
    frame : pandas.DataFrame
        The result of `meshlab.benchmark.overlap`.
    ax : matplotlib.axes.Axes, optional
        The axes to draw on. By default a new figure is created.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    BenchError
        If the frame has no measured rows, or lacks a column.

    Examples
    --------
    >>> import meshlab as ml
    >>> import pandas as pd
    >>> from matplotlib.figure import Figure
    >>> names = ["option", "both_us", "exposed_us", "communication_us"]
    >>> rows = pd.DataFrame([("default", 1700.0, 190.0, 62.0), ("≤ 8 CTAs", 1560.0, 50.0, 90.0)], columns=names)
    >>> frame = rows.assign(collective="all_reduce", size_bytes=1 << 24, m=8192, n=8192, k=8192, dtype="float16")
    >>> ax = ml.plot.overlap(frame, ax=Figure((7, 3)).add_subplot())
    >>> [label.get_text() for label in ax.get_yticklabels()]
    ['all_reduce, 16\u2009MiB', '≤ 8 CTAs', 'default']
    """
    check_frame(frame, _NEEDED, "benchmark.overlap()")
    measured = frame[frame["both_us"].notna()]
    if measured.empty:
        raise BenchError("the frame has no measured rows, so there is nothing to draw")
    is_new = ax is None
    ax = open_bars(ax)
    rows = list(_rows(measured))
    bars = [row.values for row in rows if row.values is not None]
    ends = [(bar.get("exposed_us_hi", np.nan), bar["exposed_us"], bar["communication_us"]) for bar in bars]
    longest = float(np.nanmax(ends))  # few rounds have no interval
    lowest = min(0.0, *(bar["exposed_us"] for bar in bars))
    lines = [BarLine(row.place, row.label, _text(row), row.values is None) for row in rows]
    scale = lay_out(ax, lines, (lowest, longest), "time that the call adds to the product")
    for row, line in zip(rows, lines, strict=True):
        _draw_row(ax, row, scale, line.text)
    above = _set_legend_and_title(ax, rows, measured)
    fit_height(ax, lines, _ROW, above, is_new=is_new)
    return ax


def _rows(frame: pd.DataFrame) -> Iterator[_Row]:
    """Yield the heading and the bars of each call, from the top to the bottom."""
    place = 0.0
    has_products = len(frame[_CASE[2:]].drop_duplicates()) > 1
    for key, options in frame.groupby(_CASE, sort=False):
        collective, size, *shape, dtype = map(str, key)
        label = f"{collective}, {format_size(int(size))}"
        yield _Row(place, f"{label}, {'×'.join(shape)} {dtype}" if has_products else label)
        ranked = options.sort_values("both_us", kind="stable")
        drawn = ranked[(np.arange(len(ranked)) < _MOST_OPTIONS) | ranked["option"].eq("default")]
        has_best = False
        for values in drawn.to_dict("records"):
            place += 1
            is_best = not has_best and values.get("gain_lo", 0) > 0
            has_best = has_best or is_best
            yield _Row(place, str(values["option"]), {str(name): value for name, value in values.items()}, is_best)
        place += 1 + GAP / _ROW


def _text(row: _Row) -> str:
    """Return the text at the end of a bar: its length, and what the option saves of the time of both."""
    if row.values is None:
        return ""
    text = format_time_us(row.values["exposed_us"])
    gain = row.values.get("gain", np.nan)
    if row.values["option"] == "default" or not np.isfinite(gain):  # the default was not measured
        return text
    return f"{text}, both {abs(100 * gain):.1f}{THIN}% {'less' if gain >= 0 else 'more'}"


def _draw_row(ax: Axes, row: _Row, scale: float, text: str) -> None:
    if row.values is None:
        return
    exposed, alone = (float(row.values[name]) / scale for name in ("exposed_us", "communication_us"))
    color = _BEST if row.is_best else PALETTE[0] if row.values["option"] == "default" else PREVIOUS
    ax.barh(row.place, exposed, height=0.62, **filled(color))
    low, high = (float(row.values.get(f"exposed_us_{end}", np.nan)) / scale for end in ("lo", "hi"))
    end = max(exposed, alone)
    if np.isfinite([low, high]).all():
        ax.hlines(row.place, low, high, color=ink(), linewidth=1.2, gid="interval")
        end = max(end, high)
    ax.vlines(alone, row.place - 0.38, row.place + 0.38, color=ink(), linewidth=1.6)
    write_beside(ax, text, (end, row.place), (5, 0), xycoords="data", va="center", gid="value")


def _set_legend_and_title(ax: Axes, rows: list[_Row], frame: pd.DataFrame) -> float:
    """Set the legend above the axes and the title above it. Return their height in points."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = [Patch(label="default", facecolor=PALETTE[0])]
    if any(row.values is not None and row.values["option"] != "default" for row in rows):
        handles.append(Patch(label="other options", facecolor=PREVIOUS))
    if any(row.is_best for row in rows):
        handles.append(Patch(label="fastest pair, clearly", facecolor=_BEST))
    tick: dict[str, Any] = {"marker": "|", "markersize": 9, "linestyle": "none", "markeredgewidth": 1.6}
    handles.append(Line2D([], [], color=ink(), label="the call alone", **tick))
    if "exposed_us_lo" in frame and frame["exposed_us_lo"].notna().any():
        handles.append(Line2D([], [], color=ink(), linewidth=1.2, label="95 % interval"))
    height = legend_above(ax, handles)
    first = frame.iloc[0]
    sides = [str(first[name]) for name in ("m", "n", "k")]
    shape = f"{sides[0]}³" if len(set(sides)) == 1 else " × ".join(sides)
    is_one = len(frame[_CASE[2:]].drop_duplicates()) == 1
    parts = ["exposed beside a product", *([f"{shape} {first['dtype']}"] if is_one else [])]
    library = frame.attrs.get("where", "")
    notes = wrap_words(str(frame.attrs.get("verdict", "")), 0.98 * room_right(ax) - 8, TEXT).split("\n")
    return set_title(ax, [*parts, library] if library else parts, note=[note for note in notes if note], gap=height)
