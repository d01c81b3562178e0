"""Figure of a comparison: a forest of ratios of times, with one panel per collective and one row per message size."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from meshlab.analysis._comparison import Comparison, distinguishing_columns, row_name
from meshlab.base._errors import BenchError
from meshlab.base._units import format_size
from meshlab.frames._labels import pair_label
from meshlab.frames._schema import plain_value
from meshlab.plots._style import (
    PALETTE,
    PREVIOUS,
    WRONG,
    Margins,
    axes_size,
    check_type,
    legend_above,
    light_grid,
    open_axes,
    reserve,
    room_right,
    set_height,
    set_title,
    shortened,
    text_width,
    tick_size,
    wrap_words,
    write_beside,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]

# Shape and colour are redundant, so that either is enough. Mid tones are visible on white and on black.
_MARKERS: dict[str, dict[str, Any]] = {
    "WRONG": {"marker": "x", "color": WRONG, "label": "WRONG"},
    "SLOWER": {"marker": "^", "color": PALETTE[5], "label": "slower"},
    "FASTER": {"marker": "v", "color": PALETTE[0], "label": "faster"},
    "UNCLEAR": {"marker": "o", "color": PREVIOUS, "label": "unclear", "markerfacecolor": "none"},
    "SAME": {"marker": "o", "color": PREVIOUS, "label": "the same"},
}
_ORDER = tuple(_MARKERS)
# The columns whose values share a panel. Their rows are next to each other at each size.
_MEMBER = ("group", "src_rank", "dst_rank")
_TEXT = 9.0
_ROW, _NARROW_ROW = 15.0, 7.0  # height of a size with one row, and of each further row of the same size, in points
_PANEL, _GAP = 165.0, 14.0  # minimum width of a panel in a new figure, and the distance between two panels, in points
_SMALL = 95.0, 40.0  # minimum width and height of a panel in existing axes, in points
_ABOVE = 70.0  # typical height of the title and the legend, in points
_WIDTH, _WIDTH_OF_ONE = 576.0, 461.0  # width of a figure with several panels and with one panel, in points
_TALLEST = 900.0  # maximum height of all rows of a figure, in points
_LINE_GAP = 26.0  # Height between a panel and the heading of the next one, in points. The ratios may have labels there.
_BELOW = 44.0  # height of the labels below the panels, in points
_HEADING = 15.0  # height of a line above a panel, in points
_MOST_PANELS = 12
_MOST_MEMBERS = 6
_MOST_SIZES = 48
_SUMMARY_ROW, _MOST_ROWS = 17.0, 12  # height of a row of the summary in points, and their number
_WIDEST = 4.0  # intervals beyond this ratio, or beyond its inverse, are clipped, unless many ratios are there

# Ticks of the ratio scale, from fine to coarse. The finest ones whose labels do not overlap are used.
_TICKS = (
    *(np.arange(1, 4 * n + 1) / n for n in (100, 50, 20, 10)),
    np.array([0.25, 0.33, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 4]),
    np.array([0.25, 0.33, 0.5, 0.67, 0.8, 1, 1.25, 1.5, 2, 3, 4]),
    np.array([0.25, 0.33, 0.5, 0.67, 1, 1.5, 2, 3, 4]),
    2.0 ** np.arange(-12, 13),
    *(np.array([d * 10.0**power for power in range(-4, 5) for d in digits]) for digits in ((1, 2, 5), (1, 3), (1,))),
)


@dataclass(frozen=True, slots=True)
class _Panel:
    """The rows of one collective, with their positions on the axis of sizes."""

    name: str
    note: str
    rows: pd.DataFrame
    place: Floats  # the index of the size of each row, plus a shift by group that is less than 0.5
    n_members: int  # the maximum number of rows per size


def comparison(comparison: Comparison, *, ax: Axes | None = None) -> Axes:
    """Draw the ratio of the times after and before for each message size, with its interval.

    There is one panel per collective, axis and other column that varies. The smallest size is at the top. The groups
    of an axis are next to each other at each size. The shape of a marker is the verdict: triangles are clearly slower
    (up) or faster (down), dots are the same, and rings are unclear. Bars are 95 % intervals, if available, and an arrow
    at the edge means that the interval continues. Ratios inside the band are too small to matter. A wrong result has a
    red cross instead of a ratio. The title counts the verdicts of all rows. If all are unclear, a new figure has one
    line per collective and axis, with the ratios of all sizes.

    Parameters
    ----------
    comparison : Comparison
        The result of `meshlab.compare`.
    ax : matplotlib.axes.Axes, optional
        The axes to draw on. Several panels share its area. By default a new figure is created.

    Returns
    -------
    matplotlib.axes.Axes
        If there are several panels, they are its ``child_axes``.

    Raises
    ------
    BenchError
        If `comparison` is not a Comparison.
        If no row has a ratio.

    Examples
    --------
    >>> import meshlab as ml
    >>> from matplotlib.figure import Figure
    >>> graph = ml.example().query("mode == 'graph' and collective == 'all_reduce'")
    >>> slower = graph.assign(**{name: 2 * graph[name] for name in ("time_us", "time_us_lo", "time_us_hi")})
    >>> ax = ml.plot.comparison(ml.compare(graph, slower), ax=Figure((7, 4)).add_subplot())
    >>> ax.get_xlabel(), ax.get_ylabel()
    ('time after / before  (above 1 is slower)', 'message size')
    """
    accepts = "pass ml.compare(before, after), which accepts runs, folders and results frames"
    check_type("comparison", comparison, Comparison, hint=accepts)
    frame = comparison.rows[comparison.rows["ratio"].notna() | (comparison.rows["verdict"] == "WRONG")]
    if not frame["ratio"].notna().any():
        notes = ", ".join(str(note) for note in comparison.rows["note"].unique() if note)
        raise BenchError(f"nothing to draw: no row has a ratio ({notes or 'the comparison has no rows'})")
    if ax is None and (frame["verdict"] == "UNCLEAR").all() and frame["size_bytes"].nunique() > 1:
        return _draw_summary(comparison, frame)
    sizes, panels, omitted = _panels(frame, _MOST_PANELS if ax is None else min(_MOST_PANELS, _most_panels(ax)))
    labels = [format_size(size) if np.isfinite(size) else "no size" for size in sizes]
    left = max(text_width(label, tick_size()) for label in labels) + 34
    row = max(_ROW, 4 + _NARROW_ROW * max(panel.n_members for panel in panels)) * (len(sizes) + 1)
    is_new = ax is None
    width = _WIDTH if len(panels) > 1 else _WIDTH_OF_ONE
    ax = open_axes(ax, width, width, Margins(left, _BELOW, 12.0, _ABOVE))
    reserve(ax, left=left, right=8.0, below=_BELOW)
    n_columns = _n_columns(ax, len(panels), math.inf if is_new else row)
    n_lines = -(-len(panels) // n_columns)
    panel_width = (axes_size(ax)[0] - _GAP * (n_columns - 1)) / n_columns
    headings = [[panel.name, *_wrap(panel.note, panel_width)] for panel in panels]
    heading = _HEADING * max(map(len, headings)) + 4
    above = _set_title(ax, comparison, frame, omitted, gap=heading)
    if is_new:
        height = max(min(row * n_lines, _TALLEST), 90.0) + (heading + _LINE_GAP) * (n_lines - 1)
        set_height(ax, height, above=above, below=_BELOW)
    else:
        reserve(ax, above=above)
    bounds = _bounds(panels, comparison.effect)
    for index, (panel, axes) in enumerate(zip(panels, _split(ax, len(panels), n_columns, heading), strict=True)):
        _draw_panel(axes, panel, len(sizes), comparison.effect, bounds)
        _set_heading(axes, headings[index])
        _scale_sizes(axes, labels, is_labelled=index % n_columns == 0)
        _scale_ratios(axes, bounds, is_labelled=index + n_columns >= len(panels))
    is_one = len(panels) == 1
    ax.set_xlabel("time after / before  (above 1 is slower)", labelpad=4.0 if is_one else 23.0)
    ax.set_ylabel("message size", labelpad=4.0 if is_one else left - 28)
    return ax


def _draw_summary(comparison: Comparison, frame: pd.DataFrame) -> Axes:
    """Draw one row per panel of the full figure, with the ratios of all its sizes: no row of it has a verdict."""
    import pandas as pd

    plain = frame.drop(columns=[name for name in _MEMBER if name in frame])
    columns = list(dict.fromkeys(["collective", *distinguishing_columns(plain)]))
    parts = [rows for _, rows in frame.groupby(columns, dropna=False, sort=False)]
    omitted = [f"{_MOST_ROWS} of {len(parts)} rows are drawn"] if len(parts) > _MOST_ROWS else []
    names = []
    for rows in parts[:_MOST_ROWS]:
        first = rows.iloc[0].drop(labels=[name for name in _MEMBER if name in rows])
        names.append(row_name(first, columns, is_line=True))
    places = np.repeat(np.arange(len(names), dtype=np.float64), [len(rows) for rows in parts[:_MOST_ROWS]])
    panel = _Panel("", "", pd.concat(parts[:_MOST_ROWS]), places, 1)
    left = max(text_width(name, tick_size()) for name in names) + 16
    ax = open_axes(None, _WIDTH_OF_ONE, _WIDTH_OF_ONE, Margins(left, _BELOW, 12.0, _ABOVE))
    reserve(ax, left=left, right=8.0, below=_BELOW)
    above = _set_title(ax, comparison, frame, omitted, gap=0.0)
    set_height(ax, _SUMMARY_ROW * len(names), above=above, below=_BELOW)
    bounds = _bounds([panel], comparison.effect)
    _draw_panel(ax, panel, len(names), comparison.effect, bounds)
    _scale_sizes(ax, names, is_labelled=True)
    _scale_ratios(ax, bounds, is_labelled=True)
    ax.set_xlabel("time after / before at each size  (above 1 is slower)")
    return ax


def _panels(frame: pd.DataFrame, most: int) -> tuple[Floats, list[_Panel], list[str]]:
    """Return the sizes, the panels, and sentences about the rows that are omitted."""
    omitted: list[str] = []
    # Without the groups, the greedy search finds the axis instead, which names a panel.
    plain = frame.drop(columns=[name for name in _MEMBER if name in frame])
    columns = list(dict.fromkeys(["collective", *distinguishing_columns(plain)]))
    parts = [rows for _, rows in frame.groupby(columns, dropna=False, sort=False)]
    if len(parts) > most:
        parts.sort(key=lambda rows: _interest(rows).min())
        omitted.append(f"{most} of {len(parts)} panels are drawn: the largest changes")
        parts = parts[:most]
    size = np.concatenate([rows["size_bytes"].to_numpy("float64", na_value=np.nan) for rows in parts])
    sizes, places = np.unique(size, return_inverse=True)  # NaN, the size of a function, comes last
    if len(sizes) > _MOST_SIZES:
        # The rows with the clearest changes decide which sizes are drawn.
        rank = np.concatenate([_interest(rows) for rows in parts])
        best = np.full(len(sizes), np.inf)
        np.minimum.at(best, places, rank)
        choice = np.sort(np.argsort(best, kind="stable")[:_MOST_SIZES])
        omitted.append(f"{_MOST_SIZES} of {len(sizes)} sizes are drawn: the largest changes")
        sizes = sizes[choice]
    return sizes, [panel for rows in parts if (panel := _panel(rows, columns, sizes)) is not None], omitted


def _interest(rows: pd.DataFrame) -> Floats:
    """Return the rank of each row: first by verdict, then by the size of the change."""
    change = np.abs(np.log(rows["ratio"].fillna(1.0).to_numpy(dtype=np.float64)))
    return np.asarray(rows["verdict"].map(_ORDER.index).to_numpy(dtype=np.float64) + 1 / (1 + change))


def _panel(rows: pd.DataFrame, columns: Sequence[str], sizes: Floats) -> _Panel | None:
    """Return a panel with the rows of these sizes, with at most `_MOST_MEMBERS` rows per size."""
    size = rows["size_bytes"].to_numpy("float64", na_value=np.nan)
    is_drawn = np.isin(size, sizes) | (np.isnan(size) & np.isnan(sizes[-1]))
    rows, size = rows[is_drawn], size[is_drawn]
    if not len(rows):
        return None
    first = rows.iloc[0].drop(labels=[name for name in _MEMBER if name in rows])
    place = np.searchsorted(sizes, size)
    members = _member_names(rows)
    names = list(dict.fromkeys(members))
    turn = np.array([names.index(member) for member in members], dtype=np.intp)
    note = f"from the top: {', '.join(names)}" if len(names) > 1 else ""
    if len(names) > _MOST_MEMBERS:
        # There is no room for all groups, so the rows of a size are ordered by interest, not by group.
        order = np.lexsort((_interest(rows), place))
        starts = np.flatnonzero(np.diff(place[order], prepend=-1))
        turn[order] = np.arange(len(rows)) - np.repeat(starts, np.diff(starts, append=len(rows)))
        has_room = turn < _MOST_MEMBERS
        if not has_room.all():
            note = f"{_MOST_MEMBERS} of {len(names)} groups at each size: the largest changes"
        rows, place, turn = rows[has_room], place[has_room], turn[has_room]
    n_members = int(turn.max()) + 1
    shift = (turn - (n_members - 1) / 2) / n_members * 0.8
    return _Panel(row_name(first, columns, is_line=True), note, rows, place + shift, n_members)


def _most_panels(ax: Axes) -> int:
    """Return the number of panels that have room in axes of a fixed size."""
    width, height = axes_size(ax)
    n_columns = max(1, int((width + _GAP) // (_SMALL[0] + _GAP)))
    return n_columns * max(1, int((height - _ABOVE) // (_SMALL[1] + 2 * _HEADING + _LINE_GAP)))


def _n_columns(ax: Axes, n: int, row: float) -> int:
    """Return the number of columns of panels. `row` is the height that a panel needs, if the height is fixed."""
    width, height = axes_size(ax)
    if not math.isfinite(row):
        most = max(1, int((width + _GAP) // (_PANEL + _GAP)))
        return -(-n // -(-n // most))  # the same number of lines with fewer columns

    def quality(n_columns: int) -> float:
        n_lines = -(-n // n_columns)
        wide = (width - _GAP * (n_columns - 1)) / n_columns
        tall = (height - _ABOVE) / n_lines - 2 * _HEADING - _LINE_GAP
        return min(wide / _PANEL, 1.0) ** 2 * min(tall / row, 1.0)

    return max(range(1, n + 1), key=quality)


def _member_names(rows: pd.DataFrame) -> list[str]:
    """Return the group of each row, or its pair of ranks."""
    names = []
    for _, row in rows.iterrows():
        source, target, group = (plain_value(row.get(name)) for name in ("src_rank", "dst_rank", "group"))
        is_pair = source is not None and target is not None
        names.append(pair_label(str(row["collective"]), int(source), int(target)) if is_pair else str(group or ""))
    return names


def _wrap(text: str, width: float) -> list[str]:
    return wrap_words(text, width, _TEXT).split("\n") if text else []


def _set_title(ax: Axes, comparison: Comparison, frame: pd.DataFrame, omitted: Sequence[str], gap: float) -> float:
    """Set the title, and the legend below it. Return their height in points, with the gap below them."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    counts = [
        f"{count} {_MARKERS[verdict]['label']}{_reason(comparison.rows, verdict)}"
        for verdict, count in comparison.counts.items()
        if count
    ]
    missing = len(comparison.rows) - len(frame)
    without = f"{missing} {'row' if missing == 1 else 'rows'} without a ratio omitted"
    notes = [*([comparison.reservation] if comparison.reservation else []), *omitted, *([without] if missing else [])]
    # A comparison across these differences was forced with anyway=True, so the title must name them.
    sides = comparison.before, comparison.after
    parts = [] if sides == ("before", "after") else [" → ".join(sides)]
    parts += [
        f"{difference.what}: {difference.before} → {difference.after}"
        for difference in comparison.differences
        if difference.blocks
    ]
    present = set(frame["verdict"])
    handles: list[Any] = [
        Line2D([], [], linestyle="none", markersize=6, **style)
        for verdict, style in _MARKERS.items()
        if verdict in present
    ]
    label = f"within {comparison.effect * 100:.3g} %: too small to matter"
    handles.append(Patch(color=PREVIOUS, alpha=0.3, linewidth=0, label=label))
    height = legend_above(ax, handles, gap)
    room = 0.98 * (room_right(ax) - 8)
    verdict = ", ".join(counts)
    title = [shortened(part, room, tick_size() * 1.1) for part in parts]
    return set_title(ax, title, verdict=f"{verdict[:1].upper()}{verdict[1:]}", note=notes, gap=height)


def _reason(rows: pd.DataFrame, verdict: str) -> str:
    """Return the note of all rows with a verdict in parentheses, if they have the same one."""
    notes = rows.loc[rows["verdict"] == verdict, "note"].fillna("").unique()
    return f" ({notes[0]})" if verdict == "UNCLEAR" and len(notes) == 1 and notes[0] else ""


def _bounds(panels: Sequence[_Panel], effect: float) -> tuple[float, float]:
    """Return the limits of the ratio scale. Long intervals and few ratios far from the others are outside of them."""
    names = ["ratio", "ratio_lo", "ratio_hi"]
    ends = np.concatenate([panel.rows[names].to_numpy(dtype=np.float64) for panel in panels])
    # A tenth of the ratios at each end may be outside, but at least one of them: the largest ratio of few rows.
    ratios = np.sort(ends[:, 0][np.isfinite(ends[:, 0])])
    tenth = math.ceil((len(ratios) - 1) / 10)
    least, most = (ratios[tenth], ratios[-1 - tenth]) if len(ratios) else (1.0, 1.0)
    low = np.clip(np.nanmin(ends, initial=1.0), min(1 / _WIDEST, least / 1.5), 1 / (1 + 3 * effect))
    high = np.clip(np.nanmax(ends, initial=1.0), 1 + 3 * effect, max(_WIDEST, most * 1.5))
    pad = (high / low) ** 0.04
    return float(low / pad), float(high * pad)


def _split(ax: Axes, n: int, n_columns: int, heading: float) -> Iterator[Axes]:
    """Yield the axes of each panel: the axes themselves, or a grid inside of them."""
    if n == 1:
        yield ax
        return
    ax.spines[:].set_visible(False)
    ax.patch.set_visible(False)
    ax.set(xticks=[], yticks=[])
    width, height = axes_size(ax)
    n_lines = -(-n // n_columns)
    across, down = _GAP / width, (heading + _LINE_GAP) / height
    wide, tall = (1 - across * (n_columns - 1)) / n_columns, max(1 - down * (n_lines - 1), 0.1) / n_lines
    for index in range(n):
        line, column = divmod(index, n_columns)
        yield ax.inset_axes((column * (wide + across), 1 - (line + 1) * tall - line * down, wide, tall))


def _draw_frame(ax: Axes, n_sizes: int, effect: float, bounds: tuple[float, float]) -> None:
    """Draw the scale of the ratios, and the band of those that are too small to matter."""
    ax.set_xscale("log")
    ax.set_xlim(*bounds)
    ax.set_ylim(n_sizes - 0.4, -0.6)
    ax.axvspan(1 / (1 + effect), 1 + effect, color=PREVIOUS, alpha=0.18, linewidth=0)
    ax.axvline(1, color=PREVIOUS, linewidth=1)


def _draw_panel(ax: Axes, panel: _Panel, n_sizes: int, effect: float, bounds: tuple[float, float]) -> None:
    """Draw the rows of a panel: intervals, markers, and arrows at the edges for everything outside the bounds."""
    low, high = bounds
    _draw_frame(ax, n_sizes, effect, bounds)
    if panel.n_members > 1:
        ax.hlines(np.arange(n_sizes - 1) + 0.5, low, high, color=PREVIOUS, alpha=0.35, linewidth=0.5)
    pitch = axes_size(ax)[1] / n_sizes / panel.n_members
    markersize = float(np.clip(pitch * 0.7, 3.0, 6.5))
    inset = (high / low) ** (9 / axes_size(ax)[0])  # room for an arrow at an edge
    order = np.argsort(panel.place, kind="stable")
    rows, places = panel.rows.iloc[order], panel.place[order]
    ratio, begin, end = (rows[name].to_numpy(dtype=np.float64) for name in ("ratio", "ratio_lo", "ratio_hi"))
    verdicts = rows["verdict"].to_numpy()
    x = np.where(np.isfinite(ratio), np.clip(ratio, low * inset, high / inset), high / inset)
    is_far = np.isfinite(ratio) & ((ratio < low) | (ratio > high))
    for verdict, style in _MARKERS.items():
        is_verdict = verdicts == verdict
        if not is_verdict.any():
            continue
        bars = is_verdict & np.isfinite(begin) & np.isfinite(end) & (begin <= high) & (end >= low)
        color = style["color"]
        ax.hlines(places[bars], np.maximum(begin[bars], low), np.minimum(end[bars], high), color=color, linewidth=1)
        options = {"linestyle": "none", "clip_on": False, "color": color}
        is_below, is_above = (begin < low) | (ratio < low), (end > high) | (ratio > high)
        for marker, edge, beyond in (("<", low, is_below), (">", high, is_above)):
            at = places[is_verdict & beyond]
            ax.plot(np.full(at.size, edge), at, marker=marker, markersize=4, label="_", **options)
        ax.plot(x[is_verdict], places[is_verdict], markersize=markersize, zorder=3, **options | style)
    _name_outliers(ax, np.flatnonzero(is_far | ~np.isfinite(ratio)), ratio, x, places, n_sizes)
    light_grid(ax, "x")


def _name_outliers(ax: Axes, rows: Ints, ratio: Floats, x: Floats, places: Floats, n_sizes: int) -> None:
    """Write the ratios beyond the bounds of the scale, and the missing ones, beside their markers."""
    middle, previous = np.sqrt(np.prod(ax.get_xlim())), -np.inf
    ground = {"facecolor": ax.get_facecolor(), "edgecolor": "none", "pad": 0.5}
    for row in rows:
        if (places[row] - previous) * axes_size(ax)[1] / n_sizes < _TEXT + 1:
            continue  # the text would overlap the one above it
        previous = places[row]
        text = f"{ratio[row]:.3g}×" if np.isfinite(ratio[row]) else "wrong"
        shift, align = (7, "left") if x[row] < middle else (-7, "right")
        look: dict[str, Any] = {"xycoords": "data", "va": "center", "ha": align, "bbox": ground}
        write_beside(ax, text, (x[row], places[row]), (shift, 0), **look)


def _set_heading(ax: Axes, lines: Sequence[str]) -> None:
    """Write the name of a panel and the note about its groups above it."""
    for index, line in enumerate(reversed(lines)):
        size = _TEXT + (index == len(lines) - 1)
        write_beside(ax, line, (0, 1), (0, 4 + index * _HEADING), fontsize=size, gid="heading")


def _scale_sizes(ax: Axes, labels: Sequence[str], *, is_labelled: bool) -> None:
    """Label the sizes, or every second, third, … one if they are close to each other."""
    step = max(1, int(np.ceil((tick_size() + 2) * len(labels) / axes_size(ax)[1])))
    ticks = range(0, len(labels), step)
    ax.set_yticks(ticks, [labels[tick] for tick in ticks] if is_labelled else [""] * len(ticks))
    ax.tick_params(axis="y", length=0)


def _scale_ratios(ax: Axes, bounds: tuple[float, float], *, is_labelled: bool) -> None:
    """Set as many ticks as their labels allow, with 1 among them."""
    from matplotlib.ticker import NullLocator

    size = tick_size()

    def fits(ticks: Floats) -> bool:
        places = np.log(ticks / bounds[0]) / np.log(bounds[1] / bounds[0]) * axes_size(ax)[0]
        widths = np.array([text_width(f"{tick:g}×", size) for tick in ticks])
        return bool(np.all(np.diff(places) >= (widths[1:] + widths[:-1]) / 2 + 6))

    low, high = bounds
    usable = (ticks for ticks in _TICKS if ticks[0] < 1.3 * low and ticks[-1] > high / 1.3)
    visible = (ticks[(ticks >= low) & (ticks <= high)] for ticks in usable)
    ticks = next((ticks for ticks in visible if ticks.size <= 40 and fits(ticks)), np.array([1.0]))
    ax.set_xticks(ticks, [f"{tick:g}×" for tick in ticks] if is_labelled else [""] * ticks.size)
    ax.xaxis.set_minor_locator(NullLocator())
