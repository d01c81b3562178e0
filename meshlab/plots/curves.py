"""Bandwidth and latency against message size."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from meshlab.errors import BenchError
from meshlab.frames.labels import title_parts
from meshlab.frames.rundata import RunData
from meshlab.frames.store import as_results
from meshlab.plots.lines import Line, Values, lines_of
from meshlab.plots.style import (
    PALETTE,
    PREVIOUS,
    WRONG,
    axes_size,
    figure_png,
    figure_svg,
    font_size,
    room_right,
    set_title,
    text_width,
    wrap_title,
)
from meshlab.units import SEPARATOR, THIN, format_bandwidth, format_size

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

__all__ = ["bandwidth", "curve_box", "latency", "run_figure", "run_figure_html", "run_figure_png", "spread_labels"]

_BANDWIDTHS = {"busbw_gbs": "bus bandwidth", "algbw_gbs": "algorithm bandwidth"}
_MOST_LABELS = 5
"""Up to this many lines are labelled at their ends; more lines get a legend."""

_MOST_INSIDE = 8
"""Up to this many names, the legend is inside the axes. A longer one is to the right of them if there is room."""

_MARKERS = "os^DvPXh"
_DASHES: Sequence[Any] = ("-", (0, (4, 1.5)), (0, (1, 1.2)), (0, (6, 1.5, 1, 1.5)))
_HANDLE = 52.0
"""Width of a legend's handle with the space around it, in points."""
_TEXT = 9.0
_SIZE_STEPS = (1, 2, 3, 4, 5, 10)
"""Octaves between two ticks. One tick is always at 1 KiB."""


def bandwidth(
    run: Any,
    *,
    ax: Axes | None = None,
    y: Literal["busbw_gbs", "algbw_gbs"] = "busbw_gbs",
    previous: Any = None,
    references: Mapping[str, float] | None = None,
) -> Axes:
    """Draw bandwidth against message size, with one line per collective, axis and other varying column.

    The value at a size is the bandwidth of the slowest group, from its median time. The band covers the 95 % intervals
    of all groups. Rows with a wrong result are red crosses and not part of a line. Rows that failed are omitted.

    Parameters
    ----------
    run : RunData, DataFrame, path, object with ``.results``, or a list of these
        A run or its folder, or its results. ``results.attrs["where"]`` is the label of the measured system.
    ax : matplotlib.axes.Axes, optional
        The axes to draw on. By default a new figure is created.
    y : {"busbw_gbs", "algbw_gbs"}, default "busbw_gbs"
        Bus bandwidth, which is comparable with the rate of a link for every collective, or algorithm bandwidth.
    previous : RunData, DataFrame, path, object with ``.results``, or a list of these, optional
        An earlier run, drawn in grey.
    references : mapping of str to float, optional
        Rates in GB/s to compare with, such as ``{"NVLink": 450}``, drawn as dashed lines.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    BenchError
        If `run` or `previous` has no results.
        If `y` is not a bandwidth column.

    Examples
    --------
    >>> import meshlab as ml
    >>> from matplotlib.figure import Figure
    >>> results = ml.example().query("mode == 'graph'")
    >>> ax = ml.plot.bandwidth(results, references={"NVLink 4": 450}, ax=Figure((9, 4)).add_subplot())
    >>> ax.get_ylabel(), ax.get_xlabel()
    ('bus bandwidth (GB/s)', 'message size')
    """
    if y not in _BANDWIDTHS:
        raise BenchError(f"y={y!r} is not a bandwidth column; choose {' or '.join(_BANDWIDTHS)}")
    results = as_results(run)
    lines, earlier = lines_of(results, y), [] if previous is None else lines_of(as_results(previous), y)
    ax = _axes(ax, results, lines, earlier)
    references = references or {}
    ax.set_ylabel(f"{_BANDWIDTHS[y]} (GB/s)")
    top = np.nanmax([0.0, *_values(lines, earlier), *_concatenate(line.high for line in lines), *references.values()])
    ax.set_ylim(0, top * 1.08 if top > 0 else 1)
    _draw_references(ax, references)
    _draw(ax, lines, earlier)
    set_title(ax, title_parts(results))
    return ax


def latency(run: Any, *, ax: Axes | None = None, previous: Any = None) -> Axes:
    """Draw the time per call against message size, on logarithmic scales. Lines are split as in `bandwidth`.

    The value at a size is the median time of the slowest group. The band covers the 95 % intervals of all groups.

    Parameters
    ----------
    run : RunData, DataFrame, path, object with ``.results``, or a list of these
        A run or its folder, or its results. ``results.attrs["where"]`` is the label of the measured system.
    ax : matplotlib.axes.Axes, optional
        The axes to draw on. By default a new figure is created.
    previous : RunData, DataFrame, path, object with ``.results``, or a list of these, optional
        An earlier run, drawn in grey.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    BenchError
        If `run` or `previous` has no results.

    Examples
    --------
    >>> import meshlab as ml
    >>> from matplotlib.figure import Figure
    >>> ax = ml.plot.latency(ml.example().query("collective == 'all_reduce'"), ax=Figure((9, 4)).add_subplot())
    >>> ax.get_ylabel(), ax.get_yscale()
    ('time per call', 'log')
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    results = as_results(run)
    lines = lines_of(results, "time_us")
    earlier = [] if previous is None else lines_of(as_results(previous), "time_us")
    ax = _axes(ax, results, lines, earlier)
    ax.set_ylabel("time per call")
    ax.set_yscale("log")
    bounds = _concatenate(part for line in lines for part in (line.low, line.high))
    times = np.concatenate([_values(lines, earlier), bounds[bounds > 0]])  # drops NaN, the bounds of a missing interval
    if times.size:
        ax.set_ylim(times.min() / 1.6, times.max() * 1.6)
    few_decades = times.size and times.max() < 50 * times.min()
    ax.yaxis.set_major_locator(LogLocator(10, subs=(1, 2, 5) if few_decades else (1,), numticks=99))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda time, _: _time_tick(time)))
    ax.yaxis.set_minor_formatter(NullFormatter())
    _draw(ax, lines, earlier)
    set_title(ax, title_parts(results))
    return ax


def run_figure(run: RunData, *, previous: pd.DataFrame | None = None) -> Figure | None:
    """Return the figure that a notebook shows for a run, or None if there are no times yet.

    Parameters
    ----------
    run : RunData
        The run.
    previous : pandas.DataFrame, optional
        Results of an earlier run, drawn in grey.

    Returns
    -------
    matplotlib.figure.Figure or None
        The figure. Its label describes it for screen readers.
    """
    from matplotlib.figure import Figure

    results = run.results
    if not results["time_us"].notna().any():
        return None
    title = title_parts(results)
    names = _legend_names(lines_of(results, "busbw_gbs"), previous is not None)
    figsize = (8 + _legend_room(names), 3.6)
    figure = Figure(figsize)
    figure.set_label(SEPARATOR.join(title))
    bandwidth(results, ax=figure.add_axes(curve_box(figsize, title, names)), previous=previous)
    return figure


def run_figure_html(run: RunData) -> str:
    """Return the figure of a run (see `run_figure`) as an ``<svg>`` element, or an empty string without times."""
    figure = run_figure(run)
    return "" if figure is None else figure_svg(figure, label=str(figure.get_label()))


def run_figure_png(run: RunData) -> bytes | None:
    """Return the figure of a run (see `run_figure`) as PNG, or None without times."""
    figure = run_figure(run)
    return None if figure is None else figure_png(figure)


def curve_box(
    figsize: tuple[float, float], title: Sequence[str] = (), names: Sequence[str] = ()
) -> tuple[float, float, float, float]:
    """Return the position of the axes in a figure, as fractions of it, with room for the title and the names.

    Parameters
    ----------
    figsize : tuple of float
        Width and height of the figure, in inches.
    title : sequence of str, default ()
        The parts of the title.
    names : sequence of str, default ()
        The names of the lines. If there are too many for a legend inside the axes, it gets room to the right.

    Examples
    --------
    >>> left, bottom, width, height = curve_box((7.2, 4.2), ["all_reduce", "tp"])
    >>> left + width < 1, bottom + height < 1
    (True, True)
    """
    width, height = figsize[0] * 72, figsize[1] * 72
    left, below, right = 62.0, 42.0, 22.0
    above = 16 + 15 * (1 + wrap_title(title, width - left).count("\n"))
    right = max(right, 72 * _legend_room(names))
    return left / width, below / height, 1 - (left + right) / width, 1 - (below + above) / height


def _legend_names(lines: Sequence[Line], has_previous: bool) -> list[str]:
    return [*(["previous run"] if has_previous else []), *(line.name for line in lines)]


def _legend_width(names: Sequence[str]) -> float:
    return max(text_width(name, _TEXT) for name in names) + _HANDLE


def _legend_room(names: Sequence[str]) -> float:
    """Return the width in inches that a legend needs to the right of the axes, or 0 if it is inside."""
    return _legend_width(names) / 72 if len(names) > _MOST_INSIDE else 0.0


def _axes(ax: Axes | None, results: pd.DataFrame, lines: Sequence[Line], earlier: Sequence[Line]) -> Axes:
    if ax is None:
        from matplotlib import pyplot as plt

        names = _legend_names(lines, bool(earlier))
        figsize = (7.2 + _legend_room(names), 4.2)
        ax = plt.figure(figsize=figsize).add_axes(curve_box(figsize, title_parts(results), names))
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(alpha=0.25, linewidth=0.6)
    ax.set_axisbelow(True)
    ax.set_xlabel("message size")
    return ax


def _concatenate(arrays: Iterable[Values]) -> Values:
    return np.concatenate([np.empty(0), *arrays])


def _values(lines: Sequence[Line], earlier: Sequence[Line]) -> Values:
    return _concatenate([line.value for line in (*lines, *earlier)] + [line.wrong_value for line in lines])


def _draw(ax: Axes, lines: Sequence[Line], earlier: Sequence[Line]) -> None:
    """Draw bands, lines and crosses, then name the lines at their ends or in a legend."""
    sizes = _concatenate([line.size for line in (*lines, *earlier)] + [line.wrong_size for line in lines])
    if not sizes.size:
        ax.text(0.5, 0.5, "nothing to draw", transform=ax.transAxes, ha="center", va="center")
        ax.set(xticks=[], yticks=[])
        return
    drawn: list[tuple[str, Line, Line2D]] = []
    for line in filter(len, earlier):
        name = f"{line.name}, previous" if line.name else "previous"
        drawn.append((name, line, ax.plot(line.size, line.value, color=PREVIOUS, linewidth=1.2)[0]))
    only = "this run" if drawn else ""
    for line, style in zip(lines, _styles(lines), strict=True):
        if len(line):
            ax.fill_between(line.size, line.low, line.high, color=style["color"], alpha=0.25, linewidth=0)
            drawn.append(
                (line.name or only, line, ax.plot(line.size, line.value, markersize=4, linewidth=1.6, **style)[0])
            )
    is_labelled = 1 < len(drawn) <= _MOST_LABELS
    room = max(text_width(name, _TEXT) for name, _, _ in drawn) + 26 if is_labelled else 0.0
    _scale_sizes(ax, float(sizes.min()), float(sizes.max()), room)
    handles = [] if is_labelled or len(drawn) < 2 else [(handle, name) for name, _, handle in drawn]
    n_earlier = sum(1 for line in earlier if len(line))
    if handles and n_earlier:  # all of them are grey, so one entry is enough
        handles = [(handles[0][0], "previous run"), *handles[n_earlier:]]
    wrong_sizes = _concatenate(line.wrong_size for line in lines)
    if wrong_sizes.size:
        values = _concatenate(line.wrong_value for line in lines)
        (cross,) = ax.plot(wrong_sizes, values, "x", color=WRONG, markersize=8, markeredgewidth=2.2, zorder=4)
        handles.append((cross, f"{values.size:,} wrong result{'s' * (values.size != 1)}, not in the line"))
    if is_labelled:
        _label_ends(ax, drawn, float(sizes.max()))
    if handles:
        legend = ax.legend(
            *zip(*handles, strict=True), fontsize=_TEXT, **_legend_place(ax, [name for _, name in handles])
        )
        for text in legend.get_texts():
            text.set_parse_math(False)


def _styles(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """Return a colour, a marker and dashes for each line."""
    numbers = [(index % len(PALETTE), index // len(PALETTE)) for index in range(len(lines))]
    if len(lines) > len(PALETTE):
        # More lines than colours: one colour per collective (the first part of a name), and dashes for the rest of it.
        parts = [line.name.partition(SEPARATOR) for line in lines]
        firsts, rests = (list(dict.fromkeys(part[i] for part in parts)) for i in (0, 2))
        if len(firsts) <= len(PALETTE) and len(rests) <= len(_DASHES):
            numbers = [(firsts.index(first), rests.index(rest)) for first, _, rest in parts]
    return [
        {"color": PALETTE[color], "marker": _MARKERS[color], "linestyle": _DASHES[dash % len(_DASHES)]}
        for color, dash in numbers
    ]


def _legend_place(ax: Axes, names: Sequence[str]) -> dict[str, Any]:
    if len(names) <= _MOST_INSIDE:
        return {"loc": "best"}
    if room_right(ax) - axes_size(ax)[0] < _legend_width(names) - 1:
        return {"loc": "best", "ncols": 2}
    place = (1 + 8 / axes_size(ax)[0], 1.0)
    return {"loc": "upper left", "bbox_to_anchor": place, "frameon": False, "borderaxespad": 0.0, "borderpad": 0.0}


def _scale_sizes(ax: Axes, smallest: float, largest: float, room: float) -> None:
    """Scale x by powers of two, with `room` points for labels to the right of the largest size."""
    import matplotlib as mpl
    from matplotlib.ticker import NullLocator

    width = axes_size(ax)[0]
    octaves = max(np.log2(largest / smallest), 1.0) * 1.04
    share = min(room / width, 0.5)
    ax.set_xscale("log", base=2)
    ax.set_xlim(smallest / 2 ** (octaves * 0.02), largest * 2 ** (octaves * (0.02 + share / (1 - share))))
    label = text_width("512 KiB", font_size(mpl.rcParams["xtick.labelsize"])) + 4
    step = next((step for step in _SIZE_STEPS if octaves / step * label <= width * (1 - share)), _SIZE_STEPS[-1])
    ticks = 2.0 ** np.arange(10 % step, 51, step)
    ticks = ticks[(ticks >= smallest * 0.99) & (ticks <= largest * 1.01)]
    ticks = ticks if ticks.size else np.array([smallest])
    ax.set_xticks(ticks, [format_size(size) for size in ticks])
    ax.xaxis.set_minor_locator(NullLocator())


def _label_ends(ax: Axes, drawn: Sequence[tuple[str, Line, Line2D]], largest: float) -> None:
    """Label each line at the right, as close to the height of its end as the other labels allow."""
    to_axes = ax.transData + ax.transAxes.inverted()
    ends = to_axes.transform([(line.size[-1], line.value[-1]) for _, line, _ in drawn])
    width, height = axes_size(ax)
    x = to_axes.transform((largest, ax.get_ylim()[0] or 1))[0] + 16 / width
    gap = _TEXT * 1.35 / height
    for (name, line, handle), y in zip(drawn, spread_labels(ends[:, 1], gap, gap / 2, 1 - gap / 2), strict=True):
        ax.annotate(
            name,
            (line.size[-1], line.value[-1]),
            (x, y),
            textcoords="axes fraction",
            fontsize=_TEXT,
            va="center",
            parse_math=False,
            arrowprops={
                "arrowstyle": "-",
                "color": handle.get_color(),
                "linewidth": 0.8,
                "relpos": (0, 0.5),
                "shrinkA": 1,
                "shrinkB": 4,
            },
        )


def _draw_references(ax: Axes, references: Mapping[str, float]) -> None:
    """Draw a dashed line at each rate, with its name at the left."""
    import matplotlib as mpl

    gap = _TEXT * 1.35 / axes_size(ax)[1]
    levels = [rate / ax.get_ylim()[1] for rate in references.values()]
    paper = {"facecolor": ax.get_facecolor(), "edgecolor": "none", "pad": 1.5}
    for (name, rate), y in zip(references.items(), spread_labels(levels, gap, gap / 2, 1 - gap / 2), strict=True):
        ax.axhline(rate, color=mpl.rcParams["text.color"], linewidth=1, linestyle=(0, (5, 3)))
        label = f"{name} {format_bandwidth(rate)}"
        ax.text(0.02, y, label, transform=ax.transAxes, fontsize=_TEXT, va="center", bbox=paper, parse_math=False)


def spread_labels(wanted: npt.ArrayLike, gap: float, low: float, high: float) -> Values:
    """Move labels apart so that none overlap and each stays as close to its wanted position as possible.

    Parameters
    ----------
    wanted : array_like
        The wanted position of each label.
    gap : float
        The minimum distance between two labels.
    low, high : float
        The bounds of the positions. If there are too many labels, some are placed below `low`.

    Returns
    -------
    numpy.ndarray
        The positions with the least sum of squared moves: an isotonic regression of ``wanted - gap * order``.

    Examples
    --------
    >>> spread_labels([0.5, 0.5, 0.1], 0.2, 0.0, 1.0).round(3).tolist()
    [0.4, 0.6, 0.1]
    """
    positions = np.asarray(wanted, dtype=np.float64)
    order = np.argsort(positions, kind="stable")
    offsets = gap * np.arange(positions.size)
    free = positions[order] - offsets
    # The max-min formula for isotonic regression. It is cubic, which is fast enough for the few labels of a plot.
    means = [
        [free[start : stop + 1].mean() if start <= stop else np.inf for stop in range(free.size)]
        for start in range(free.size)
    ]
    result = np.empty(positions.size)
    for index in range(free.size):
        level = max(min(means[start][index:]) for start in range(index + 1))
        result[order[index]] = min(max(level, low), high - offsets[-1]) + offsets[index]
    return result


def _time_tick(time_us: float) -> str:
    for limit, unit in ((1e3, "µs"), (1e6, "ms")):
        if time_us < limit * 0.999:
            return f"{time_us / limit * 1e3:g}{THIN}{unit}"
    return f"{time_us / 1e6:g}{THIN}s"
