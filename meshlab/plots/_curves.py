"""Bandwidth and latency against message size."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from meshlab.analysis._expectations import expectations, runs_by_collective
from meshlab.analysis._judge import with_machine
from meshlab.base._errors import BenchError, did_you_mean
from meshlab.base._units import SEPARATOR, THIN, format_bandwidth, format_size
from meshlab.frames._labels import title_parts
from meshlab.plots._lines import Line, Values, lines_of, stroke_note, with_groups
from meshlab.plots._style import (
    PALETTE,
    PREVIOUS,
    WRONG,
    Margins,
    axes_size,
    figure_png,
    figure_svg,
    font_size,
    free_right,
    light_grid,
    open_axes,
    reserve,
    set_title,
    text_width,
)
from meshlab.prediction._bounds import bound_lines, share_of_bound, with_bounds
from meshlab.runs._rundata import RunData
from meshlab.runs._store import as_results

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    from meshlab.mesh._mesh import MeshLike
    from meshlab.prediction._predictions import Prediction
    from meshlab.prediction._published import PublishedCurve
    from meshlab.topology.model._presets import ClusterLike

_BANDWIDTHS = {"busbw_gbs": "bus bandwidth", "algbw_gbs": "algorithm bandwidth"}
_MOST_LABELS = 5  # up to this many lines are labelled at their ends; more lines get a legend
_MOST_IN_COLUMN = 8  # a legend inside the axes has two columns if it has more names than this
_MOST_OUTSIDE = 0.42  # largest share of the width that labels or a legend to the right of the axes may take
# Thin lines of more groups than this are pale: they show a distribution, and single groups cannot be followed.
_MOST_DISTINCT = 8
# Thin lines with more points than this are an image in an SVG, which would otherwise have megabytes.
_MOST_VECTORS = 4000
_WIDTH = 8.0  # Width of a figure in inches. It is as wide as the output of a notebook.
_MARGINS = Margins(left=62.0, below=42.0, right=22.0, above=12.0)  # room for the scales with their labels
_PAGE = (_WIDTH * 72, 4.2 * 72, _MARGINS)  # width, height and margins of a new figure, in points
_MARKERS = "os^DvPXh"
_DASHES: Sequence[Any] = ("-", (0, (4, 1.5)), (0, (1, 1.2)), (0, (6, 1.5, 1, 1.5)))
_LEADER = 26.0  # width of a leading line between the axes and a label, in points
_HANDLE = 52.0  # width of a legend's handle with the space around it, in points
_TEXT = 9.0
# Panels of crowded curves, one per axis of the mesh: the distance between two, the height of the name of one above it,
# the width of their legend, and their minimum width and height, in points.
_FACET_GAP, _HEADING, _LEGEND, _LEAST_FACET = 26.0, 15.0, 130.0, 120.0
_SIZE_STEPS = (1, 2, 3, 4, 5, 10)  # Octaves between two ticks. One tick is always at 1 KiB.


def bandwidth(
    run: Any,
    *,
    ax: Axes | None = None,
    y: Literal["busbw_gbs", "algbw_gbs"] = "busbw_gbs",
    previous: Any = None,
    references: Mapping[str, float] | None = None,
    cluster: ClusterLike | None = None,
    mesh: MeshLike | None = None,
    predicted: Prediction | None = None,
    published: bool = False,
) -> Axes:
    """Draw bandwidth against message size, with one line per collective, axis and other varying column.

    The value at a size is the bandwidth of the slowest group, from its median time, and the band is the 95 % interval
    of this group. If an axis has several groups, thin lines show each of them, unless there are more than five lines.
    Rows with a wrong result are red crosses and not part of a line. Rows that failed are omitted.

    Parameters
    ----------
    run : RunData, DataFrame, path, object with ``.results``, or a list of these
        A run or its folder, or its results. ``results.attrs["where"]`` is the label of the measured system.
    ax : matplotlib.axes.Axes, optional
        The axes to draw on, which shrink to make room for labels on their right. By default a new figure is created.
    y : {"busbw_gbs", "algbw_gbs"}, default "busbw_gbs"
        Bus bandwidth, which is comparable with the rate of a link for every collective, or algorithm bandwidth.
    previous : RunData, DataFrame, path, object with ``.results``, or a list of these, optional
        An earlier run, drawn in grey.
    references : mapping of str to float, optional
        Rates in GB/s to compare with, such as ``{"NVLink": 450}``, drawn as dashed lines.
    cluster : Cluster or str, optional
        The measured cluster. With it, the bandwidth that its hardware allows is a dashed line, and each line is
        labelled with its share of this bound at the largest size, from 16 MiB on. Only for bus bandwidths of GPUs.
    mesh : DeviceMesh or str, optional
        The measured mesh, which the bounds depend on. By default that of the run.
    predicted : Prediction, optional
        The prediction of the same collectives and axes, drawn as dotted lines in the colours of the measured ones.
    published : bool, default False
        If True, draw the published runs of the same machine with which `ml.judge` compares, each as a thin line in the
        colour of the measured one. Only bus bandwidths.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    BenchError
        If `run` or `previous` has no results.
        If `y` is not a bandwidth column, or not the bus bandwidth if there is a cluster or published runs.
    TopologyError
        If the cluster is too small for the mesh, or the bandwidth of its links is unknown.

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
        similar = did_you_mean(y, _BANDWIDTHS, synonyms={"busbw": "busbw_gbs", "algbw": "algbw_gbs"})
        raise BenchError(f"y={y!r} is not a bandwidth column{similar}; choose {' or '.join(_BANDWIDTHS)}")
    machine = None
    if published:
        if y != "busbw_gbs":
            raise BenchError(f"published runs are drawn as bus bandwidths, not as {y}", hint="omit y")
        run, machine = with_machine(run)
    results = as_results(run)
    earlier = [] if previous is None else lines_of(as_results(previous), y)
    bounded = _with_bounds(run, cluster, mesh, y)
    expected = expectations(run, cluster, mesh=mesh, machine=machine) if published else None
    return draw_bandwidth(
        open_axes(ax, *_PAGE),
        results,
        lines_of(results, y),
        earlier,
        y,
        references=references,
        bounded=bounded,
        predicted=predicted,
        published=None if expected is None else runs_by_collective(expected),
        may_split=ax is None,
    )


def draw_bandwidth(
    ax: Axes,
    results: pd.DataFrame,
    lines: Sequence[Line],
    earlier: Sequence[Line],
    y: Literal["busbw_gbs", "algbw_gbs"] = "busbw_gbs",
    *,
    references: Mapping[str, float] | None = None,
    bounded: pd.DataFrame | None = None,
    predicted: Prediction | None = None,
    published: Mapping[str, Sequence[PublishedCurve]] | None = None,
    may_split: bool = False,
) -> Axes:
    """Draw the lines of results as `bandwidth` does. `bounded` are the same rows with their bounds."""
    is_plain = bounded is None and predicted is None and not references and not published
    if may_split and is_plain and (facets := _facets(ax, lines)):
        _draw_facets(ax, results, facets, earlier, f"{_BANDWIDTHS[y]} (GB/s)")
        return ax
    lines, references = with_groups(lines), dict(references or {})
    _prepare(ax)
    if bounded is not None:
        lines = [_with_share(line, bounded) for line in lines]
        references |= bound_lines(bounded)
    ax.set_ylabel(f"{_BANDWIDTHS[y]} (GB/s)")
    dotted = [] if predicted is None or y != "busbw_gbs" else _predicted_lines(lines, predicted)
    highest = _concatenate(part.ravel() for line in lines for part in (line.high, line.groups))
    thin = _within(published or {}, lines) if y == "busbw_gbs" else []
    values = [value for _, _, busbw in thin for value in busbw.tolist()]
    top = np.nanmax([0.0, *_values(lines, earlier), *highest, *_values(dotted, []), *values, *references.values()])
    ax.set_ylim(0, top * 1.08 if top > 0 else 1)
    note = [*stroke_note(lines), *["dotted: predicted"] * any(len(line) for line in dotted)]
    note += [f"thin: {len(thin)} published run{'s' * (len(thin) != 1)}"] * bool(thin)
    reserve(ax, above=set_title(ax, title_parts(results), note=note))
    _draw_references(ax, references)
    for line, style in zip(dotted, _styles(lines), strict=False):
        ax.plot(line.size, line.value, color=style["color"], linewidth=1.3, linestyle=(0, (1, 1.6)), zorder=1.8)
    styles = _styles(lines)
    for number, size, busbw in thin:
        is_point = len(size) == 1
        ax.plot(size, busbw, color=styles[number]["color"], linewidth=0.9, alpha=0.6, zorder=1.6, marker="_" * is_point)
    draw_lines(ax, lines, earlier)
    return ax


def _within(
    published: Mapping[str, Sequence[PublishedCurve]], lines: Sequence[Line]
) -> list[tuple[int, npt.NDArray[np.int64], Values]]:
    """Return the published runs of each collective at the measured sizes, with the number of its first line."""
    thin = []
    numbers = {str(line.keys["collective"]): number for number, line in reversed(list(enumerate(lines))) if len(line)}
    for collective, number in numbers.items():
        alike = [line for line in lines if line.keys["collective"] == collective]
        sizes, ranks = np.concatenate([line.size for line in alike]), {line.keys["n_ranks"] for line in alike}
        for curve in published.get(collective, ()):
            if curve.nodes == 1 and curve.n_ranks not in ranks:  # of another axis
                continue
            inside = (curve.size_bytes >= sizes.min()) & (curve.size_bytes <= sizes.max())
            if inside.any():
                thin.append((number, curve.size_bytes[inside], curve.busbw_gbs[inside]))
    return thin


def _facets(ax: Axes, lines: Sequence[Line]) -> dict[str, list[Line]]:
    """Return the lines by axis of the mesh, named without it. Empty if one plot shows them well, or has no room."""
    facets: dict[str, list[Line]] = {}
    for line in lines:
        words = line.name.split(SEPARATOR)
        axis = next((word for word in words if word.split(",")[0] == str(line.keys.get("axis"))), "")
        name = SEPARATOR.join(word for word in words if word != axis)
        facets.setdefault(axis, []).append(replace(line.without_groups(), name=name))
    figure = ax.get_figure(root=True)
    is_crowded = len(lines) > _MOST_LABELS and len(facets) > 1 and len(facets) < len(lines) and "" not in facets
    width, height = axes_size(ax)
    is_crowded = is_crowded and any(map(len, lines))
    has_room = (width - _LEGEND) / len(facets or "1") >= _LEAST_FACET and height >= _LEAST_FACET
    return facets if is_crowded and has_room and figure is not None and figure.get_layout_engine() is None else {}


def _draw_facets(
    ax: Axes, results: pd.DataFrame, facets: Mapping[str, Sequence[Line]], earlier: Sequence[Line], label: str
) -> None:
    """Draw a panel per axis of the mesh, with the same scales and one legend."""
    from matplotlib.lines import Line2D

    lines = [line for members in facets.values() for line in members]
    names = list(dict.fromkeys(line.name for line in lines))
    styles = dict(zip(names, _styles([replace(lines[0], name=name) for name in names]), strict=True))
    handles = [Line2D([], [], markersize=4, linewidth=1.8, label=name, **styles[name]) for name in names]
    handles += [Line2D([], [], color=PREVIOUS, linewidth=1.2, label="previous run")] * bool(earlier)
    ax.set_axis_off()
    reserve(
        ax, left=_MARGINS.left, below=_MARGINS.below, right=max(text_width(name, _TEXT) for name in names) + _HANDLE
    )
    above = set_title(ax, title_parts(results), note=stroke_note(lines), gap=_HEADING)
    reserve(ax, above=above)
    ax.legend(handles=handles, fontsize=_TEXT, **_legend_place(ax, names))
    figure, box = ax.get_figure(root=True), ax.get_position()
    assert figure is not None
    gap = _FACET_GAP / (72 * figure.get_size_inches()[0])
    wide = (box.width - gap * (len(facets) - 1)) / len(facets)
    sizes = _concatenate([line.size for line in (*lines, *earlier)] + [line.wrong_size for line in lines])
    highest = _concatenate(line.high for line in lines)
    top = np.nanmax([0.0, *_values(lines, earlier), *highest])
    for index, (axis, members) in enumerate(facets.items()):
        panel = figure.add_axes((box.x0 + index * (wide + gap), box.y0, wide, box.height))
        light_grid(panel)
        panel.set_ylim(0, top * 1.08 if top > 0 else 1)
        panel.annotate(axis, (0, 1), (0, 4), xycoords="axes fraction", textcoords="offset points", fontsize=_TEXT + 1)
        for line in earlier:
            if str(line.keys.get("axis")) == str(members[0].keys.get("axis")) and len(line):
                panel.plot(line.size, line.value, color=PREVIOUS, linewidth=1.2)
        for line in members:
            _draw_band(panel, line, styles[line.name]["color"])
            panel.plot(line.size, line.value, markersize=4, linewidth=1.8, **styles[line.name])
            panel.plot(line.wrong_size, line.wrong_value, "x", color=WRONG, markersize=8, markeredgewidth=2.2, zorder=4)
        scale_sizes(panel, float(sizes.min()), float(sizes.max()))
        panel.set_xlabel("message size")
        if index:
            panel.tick_params(labelleft=False)
        else:
            panel.set_ylabel(label)


def _predicted_lines(lines: Sequence[Line], predicted: Prediction) -> list[Line]:
    """Return the predicted line of each measured line, which is empty if there is none."""
    predictions = {(line.axis, line.collective): line for line in predicted.lines}
    dotted = []
    for line in lines:
        prediction = predictions.get((str(line.keys.get("axis")), str(line.keys.get("collective"))))
        dotted.append(Line.of([], []) if prediction is None else Line.of(prediction.size_bytes, prediction.busbw_gbs))
    return dotted


def _with_bounds(run: Any, cluster: ClusterLike | None, mesh: MeshLike | None, y: str) -> pd.DataFrame | None:
    """Return the results with their bounds, which they may have already. None without a cluster."""
    if cluster is None:
        return run if "of_bound" in getattr(run, "columns", ()) and y == "busbw_gbs" else None
    if y != "busbw_gbs":
        raise BenchError(f"bounds are bus bandwidths, but y={y!r}; remove y= or cluster=")
    return with_bounds(run, cluster, mesh=mesh)


def _with_share(line: Line, bounded: pd.DataFrame) -> Line:
    """Add the share of the bound at the largest size to the name of a line."""
    finite = np.flatnonzero(np.isfinite(line.value))
    if not finite.size:
        return line
    share = share_of_bound(bounded.iloc[line.rows], line.size[finite[-1]], line.value[finite[-1]])
    parts = [part for part in (line.name, f"{share} of bound" if share else "") if part]
    return replace(line, name=SEPARATOR.join(parts))


def latency(run: Any, *, ax: Axes | None = None, previous: Any = None) -> Axes:
    """Draw the time per call against message size, on logarithmic scales. Lines are split as in `bandwidth`.

    The value at a size is the median time of the slowest group, and the band is its 95 % interval. If an axis has
    several groups, thin lines show each of them, unless there are more than five lines.

    Parameters
    ----------
    run, ax, previous
        As in `bandwidth`.

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
    results = as_results(run)
    earlier = [] if previous is None else lines_of(as_results(previous), "time_us")
    return draw_latency(open_axes(ax, *_PAGE), results, lines_of(results, "time_us"), earlier)


def draw_latency(ax: Axes, results: pd.DataFrame, lines: Sequence[Line], earlier: Sequence[Line]) -> Axes:
    """Draw the lines of results as `latency` does."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    lines = with_groups(lines)
    _prepare(ax)
    ax.set_ylabel("time per call")
    ax.set_yscale("log")
    bounds = _concatenate(part.ravel() for line in lines for part in (line.low, line.high, line.groups))
    times = np.concatenate([_values(lines, earlier), bounds[(bounds > 0) & (bounds < np.inf)]])  # NaN: no interval
    if times.size:
        ax.set_ylim(times.min() / 1.6, times.max() * 1.6)
    few_decades = times.size and times.max() < 50 * times.min()
    ax.yaxis.set_major_locator(LogLocator(10, subs=(1, 2, 5) if few_decades else (1,), numticks=99))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda time, _: time_tick(time)))
    if not few_decades:  # each tick takes a millisecond to draw, and these two suffice
        ax.yaxis.set_minor_locator(LogLocator(10, subs=(2, 5), numticks=99))
    ax.yaxis.set_minor_formatter(NullFormatter())
    reserve(ax, above=set_title(ax, title_parts(results), note=stroke_note(lines)))
    draw_lines(ax, lines, earlier)
    return ax


def run_figure(run: RunData, *, previous: pd.DataFrame | None = None) -> Figure | None:
    """Return the figure that a notebook shows for a run, or None if there are no times yet."""
    from matplotlib.figure import Figure

    results = run.results
    if not results["time_us"].notna().any():
        return None
    figsize = (_WIDTH, 3.6)
    figure = Figure(figsize)
    figure.set_label(SEPARATOR.join(title_parts(results)))
    earlier = [] if previous is None else lines_of(previous, "busbw_gbs")
    draw_bandwidth(
        figure.add_axes(curve_box(figsize)), results, lines_of(results, "busbw_gbs"), earlier, may_split=True
    )
    return figure


def run_figure_html(run: RunData) -> str:
    """Return the figure of a run (see `run_figure`) as an ``<svg>`` element, or an empty string without times."""
    figure = run_figure(run)
    return "" if figure is None else figure_svg(figure, label=str(figure.get_label()))


def run_figure_png(run: RunData) -> bytes | None:
    """Return the figure of a run (see `run_figure`) as PNG, or None without times."""
    figure = run_figure(run)
    return None if figure is None else figure_png(figure)


def curve_box(figsize: tuple[float, float]) -> tuple[float, float, float, float]:
    """Return the largest position of the axes in a figure, as fractions of it, with room for the scales."""
    return _MARGINS.box(figsize[0] * 72, figsize[1] * 72)


def _prepare(ax: Axes) -> None:
    reserve(ax, left=_MARGINS.left, below=_MARGINS.below)
    light_grid(ax)
    ax.set_xlabel("message size")


def _concatenate(arrays: Iterable[Values]) -> Values:
    return np.concatenate([np.empty(0), *arrays])


def _values(lines: Sequence[Line], earlier: Sequence[Line]) -> Values:
    return _concatenate([line.value for line in (*lines, *earlier)] + [line.wrong_value for line in lines])


def draw_lines(ax: Axes, lines: Sequence[Line], earlier: Sequence[Line]) -> None:
    """Draw bands, lines, groups and crosses, then name the lines at their ends or in a legend."""
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
            _draw_band(ax, line, style["color"])
            _draw_groups(ax, line, style["color"])
            (handle,) = ax.plot(line.size, line.value, markersize=4, linewidth=1.8, **style)
            drawn.append((line.name or only, line, handle))
    names = [name for name, _, _ in drawn]
    label_room = max(text_width(name, _TEXT) for name in names) + _LEADER
    is_named = any(names)  # the only line of a plot has no name
    is_labelled = is_named and len(drawn) <= _MOST_LABELS and label_room <= free_right(ax) * _MOST_OUTSIDE
    handles = [(handle, name) for name, _, handle in drawn] if is_named and not is_labelled else []
    n_earlier = sum(1 for line in earlier if len(line))
    if handles and n_earlier:  # all of them are grey, so one entry is enough
        handles = [(handles[0][0], "previous run"), *handles[n_earlier:]]
    wrong_sizes = _concatenate(line.wrong_size for line in lines)
    if wrong_sizes.size:
        values = _concatenate(line.wrong_value for line in lines)
        (cross,) = ax.plot(wrong_sizes, values, "x", color=WRONG, markersize=8, markeredgewidth=2.2, zorder=4)
        handles.append((cross, f"{values.size:,} wrong result{'s' * (values.size != 1)}, not in the line"))
    if is_labelled:
        reserve(ax, right=label_room)
    place = _legend_place(ax, [name for _, name in handles])
    scale_sizes(ax, float(sizes.min()), float(sizes.max()))
    if is_labelled:
        _label_ends(ax, drawn)
    if handles:
        legend = ax.legend(*zip(*_shorten(ax, handles), strict=True), fontsize=_TEXT, **place)
        for text in legend.get_texts():
            text.set_parse_math(False)


def _draw_band(ax: Axes, line: Line, color: str) -> None:
    """Fill the interval of a line. A point between two points without an interval has a bar instead."""
    ax.fill_between(line.size, line.low, line.high, color=color, alpha=0.25, linewidth=0)
    bounded = np.isfinite(line.low) & np.isfinite(line.high)
    around = np.pad(bounded, 1)
    alone = bounded & ~around[:-2] & ~around[2:]
    if alone.any():
        ax.vlines(line.size[alone], line.low[alone], line.high[alone], color=color, alpha=0.25, linewidth=5)


def _draw_groups(ax: Axes, line: Line, color: str) -> None:
    """Draw the groups of a line in one artist, because an axis may have thousands of them."""
    from matplotlib.collections import LineCollection

    n, is_image = len(line.groups), line.groups.size > _MOST_VECTORS
    alpha, width = (0.7, 0.8) if n <= _MOST_DISTINCT else (0.2, 0.6)
    look: dict[str, Any] = {"alpha": alpha, "linewidths": width, "zorder": 1.9, "rasterized": is_image}
    points = np.stack([np.broadcast_to(line.size, line.groups.shape), line.groups], axis=-1) if n else np.empty(0)
    if n and len(line) > 1:
        groups = LineCollection(list(points), colors=color, **look)
        ax.add_collection(groups, autolim=False)
    elif n:  # a line with one point is invisible
        x, y = points[:, 0].T
        ax.scatter(x, y, marker="_", color=color, s=80, **look)


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
    """Return the options of a legend. It is to the right of the axes if it has several names, and if they fit."""
    if len(names) < 2:
        return {"loc": "best"}
    width = max(text_width(name, _TEXT) for name in names) + _HANDLE
    if width > free_right(ax) * _MOST_OUTSIDE:
        return {"loc": "best", "ncols": 1 + (len(names) > _MOST_IN_COLUMN and 2 * width <= axes_size(ax)[0])}
    reserve(ax, right=width)
    place = (1 + 8 / axes_size(ax)[0], 1.0)
    return {"loc": "upper left", "bbox_to_anchor": place, "frameon": False, "borderaxespad": 0.0, "borderpad": 0.0}


def _shorten(ax: Axes, handles: Sequence[tuple[Line2D, str]]) -> list[tuple[Line2D, str]]:
    """Return the entries of a legend that fit next to the axes, and the number of the others."""
    from matplotlib.lines import Line2D

    most = max(int(axes_size(ax)[1] / (_TEXT * 1.55)), _MOST_IN_COLUMN)
    if len(handles) <= most:
        return list(handles)
    more = Line2D([], [], linestyle="none"), f"and {len(handles) - most + 1:,} more lines"
    return [*handles[: most - 1], more]


def size_margin(smallest: float, largest: float) -> float:
    """Return the space between the first or the last size and the end of their axis, in octaves."""
    return max(float(np.log2(largest / smallest)), 1.0) * 0.012 if largest > smallest else 0.5


def scale_sizes(ax: Axes, smallest: float, largest: float) -> None:
    """Scale x by powers of two, from the smallest to the largest size."""
    import matplotlib as mpl
    from matplotlib.ticker import NullLocator

    width = axes_size(ax)[0]
    octaves = max(np.log2(largest / smallest), 1.0)
    pad = 2 ** size_margin(smallest, largest)
    ax.set_xscale("log", base=2)
    ax.set_xlim(smallest / pad, largest * pad)
    label = text_width("512 KiB", font_size(mpl.rcParams["xtick.labelsize"])) + 4
    step = next((step for step in _SIZE_STEPS if octaves / step * label <= width), _SIZE_STEPS[-1])
    ticks = 2.0 ** np.arange(10 % step, 51, step)
    ticks = ticks[(ticks >= smallest * 0.99) & (ticks <= largest * 1.01)]
    ticks = ticks if ticks.size else np.array([smallest])
    ax.set_xticks(ticks, [format_size(size) for size in ticks])
    ax.xaxis.set_minor_locator(NullLocator())


def _label_ends(ax: Axes, drawn: Sequence[tuple[str, Line, Line2D]]) -> None:
    """Label each line to the right of the axes, as close to the height of its end as the other labels allow."""
    from matplotlib.transforms import offset_copy

    to_axes = ax.transData + ax.transAxes.inverted()
    drawn = [(name, line, handle) for name, line, handle in drawn if np.isfinite(line.value).any()]
    last = [np.flatnonzero(np.isfinite(line.value))[-1] for _, line, _ in drawn]
    points = [(line.size[index], line.value[index]) for (_, line, _), index in zip(drawn, last, strict=True)]
    ends = to_axes.transform(np.reshape(points, (-1, 2)))
    # A distance in points from the axes is still the same after a layout engine has moved them.
    margin = offset_copy(ax.transAxes, ax.get_figure(root=True), x=_LEADER - 12, units="points")
    gap = _TEXT * 1.35 / axes_size(ax)[1]
    places = spread_labels(ends[:, 1], gap, gap / 2, 1 - gap / 2)
    for (name, _, handle), point, y in zip(drawn, points, places, strict=True):
        leader: dict[str, Any] = {
            "arrowstyle": "-",
            "color": handle.get_color(),
            "linewidth": 0.8,
            "connectionstyle": _straight,
        }
        leader |= {"relpos": (0, 0.5), "shrinkA": 3, "shrinkB": 4, "patchA": None}
        look: Any = {"fontsize": _TEXT, "va": "center", "parse_math": False, "annotation_clip": False}
        ax.annotate(name, point, (1, y), textcoords=margin, arrowprops=leader, **look)


def _straight(start: Any, end: Any, shrinkA: float, shrinkB: float, **_: Any) -> Any:  # noqa: N803
    """Return a line that ends before both points. The styles of matplotlib search for the ends by bisection."""
    from matplotlib.path import Path

    first, last = np.asarray(start, np.float64), np.asarray(end, np.float64)
    step = (last - first) / max(float(np.hypot(*(last - first))), 1e-9)
    return Path(np.array([first + shrinkA * step, last - shrinkB * step]))


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


def spread_labels(targets: npt.ArrayLike, gap: float, low: float, high: float) -> Values:
    """Move labels apart so that none overlap and each stays as close to its wanted position as possible."""
    positions = np.asarray(targets, dtype=np.float64)
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


def time_tick(time_us: float) -> str:
    """Write a time as short as possible, for a tick."""
    for limit, unit in ((1e3, "µs"), (1e6, "ms")):
        if time_us < limit * 0.999:
            return f"{time_us / limit * 1e3:g}{THIN}{unit}"
    return f"{time_us / 1e6:g}{THIN}s"
