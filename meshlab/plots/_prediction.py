"""Figures of predictions and calibrations: time against message size, with bands, bounds and measured points."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from meshlab.base._units import format_bandwidth, format_size
from meshlab.plots._panels import (
    BETWEEN,
    LEFT,
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
    PALETTE,
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
    write_beside,
)
from meshlab.plots._theme import current_theme
from meshlab.prediction._calibration import Calibrated, Calibration
from meshlab.prediction._costs import EXACT_FROM
from meshlab.prediction._predictions import PredictedLine, Prediction

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

# Width of a figure in inches; minimum and preferred maximum width of a panel in points.
_WIDTH, _PANEL, _WIDEST = 8.0, 180.0, 330.0
_TALL, _BELOW_TALL = 150.0, 52.0  # height of the times and of the ratios below them in a new figure, in points
_MOST_PANELS = 6
_MOST_NAMED = 3  # points outside the band that are named in a panel
_ROWS = 3  # rows of labels above a panel, if the sizes at which the algorithm changes are close to each other


@dataclass(frozen=True, eq=False)
class _Panel:
    """Curves and points of one collective on one axis."""

    title: str
    size: Floats
    time: Floats
    low: Floats
    high: Floats
    is_drawn: Mask  # Where the line is drawn. Elsewhere only the band is.
    is_fitted: Mask  # Where the line is thick. It is thin and dashed beyond the measured sizes and numbers of ranks.
    choices: list[tuple[int, str]]
    bound_us: Floats
    bound: str
    points: tuple[Floats, Floats]  # sizes and times of measured points
    ratio: Floats  # Measured / predicted time of each point. NaN if there is no prediction.
    inside: Mask
    is_suspect: Mask  # points that are not part of a calibration because they are far off their neighbours


def prediction(prediction: Prediction, results: Any = None, *, ax: Axes | None = None) -> Axes:
    """Draw predicted time against message size on logarithmic scales, with one panel per axis and collective.

    The band is meant to contain nine of ten measurements. Below 256 MiB, if no run of this class of machine is
    published, there is a band without a line. A line beyond the measured sizes or ranks is thin and dashed. Ticks
    above a panel are the sizes at which NCCL changes algorithm or protocol. The dashed diagonal is the time at the
    bound of the hardware. Measured points have their ratio to the prediction below, and those outside the band are
    named.

    Parameters
    ----------
    prediction : Prediction
        The result of `meshlab.predict`.
    results : RunData, DataFrame, path, object with ``.results``, or a list of these, optional
        Measured times of the same axes and collectives. By default there are no points.
    ax : matplotlib.axes.Axes, optional
        The axes to draw on. The panels share its area. By default a new figure is created.

    Returns
    -------
    matplotlib.axes.Axes
        The panels are its ``child_axes``.

    Raises
    ------
    BenchError
        If `prediction` is not a Prediction.
        If the results mix modes.

    Examples
    --------
    >>> import meshlab as ml
    >>> from matplotlib.figure import Figure
    >>> ax = ml.predict("dp=2, tp=8", "dgx-h100").plot(ax=Figure((8, 4)).add_subplot())
    >>> len(ax.child_axes)
    2
    """
    check_type("prediction", prediction, Prediction, hint="pass ml.predict(mesh, cluster)")
    lines = prediction.lines[:_MOST_PANELS]
    points = [prediction.measured(line, results) if results is not None else _NOTHING for line in lines]
    panels = [_line_panel(line, *pair) for line, pair in zip(lines, points, strict=True)]
    parts = [part for part in (str(prediction.mesh), prediction.title) if part]
    note = [f"model of NCCL {prediction.constants}"] * bool(prediction.constants)
    note += [f"calibrated with {prediction.where}"] * bool(prediction.where and prediction.cluster is not None)
    if len(prediction.lines) > len(lines):
        note.append(f"{len(lines)} of {len(prediction.lines)} lines are drawn")
    if any(not panel.is_drawn.all() for panel in panels):
        note.append("a band without a line: accurate to a factor of 2")
    return _draw(panels, ["predicted time per call", *parts], note, ax)


def calibration(calibration: Calibration, *, ax: Axes | None = None) -> Axes:
    """Draw measured times, and the band of the fit around the prediction from the other sizes.

    The ratio below the times is measured / predicted at each size, by a fit without this size. Outliers are crosses.

    Parameters
    ----------
    calibration : Calibration
        The result of `meshlab.calibrate`.
    ax : matplotlib.axes.Axes, optional
        The axes to draw on. The panels share its area. By default a new figure is created.

    Returns
    -------
    matplotlib.axes.Axes
        The panels are its ``child_axes``.

    Examples
    --------
    >>> import meshlab as ml
    >>> from matplotlib.figure import Figure
    >>> calibration = ml.calibrate(ml.example().query("collective == 'all_reduce'"), mode="graph")
    >>> ax = calibration.plot(ax=Figure((8, 4)).add_subplot())
    >>> len(ax.child_axes)
    2
    """
    check_type("calibration", calibration, Calibration, hint="pass ml.calibrate(results)")
    lines = calibration.lines[:_MOST_PANELS]
    note = ["each size is predicted by a fit without it"]
    if len(calibration.lines) > len(lines):
        note.append(f"{len(lines)} of {len(calibration.lines)} fits are drawn")
    parts = ["calibration", *(part for part in (calibration.where, calibration.mode) if part)]
    return _draw([_fit_panel(calibration, line) for line in lines], parts, note, ax)


def figure_html(value: Prediction | Calibration) -> str:
    """Return the figure of a prediction or a calibration as an ``<svg>`` element."""
    figure = figure_of(value)
    return figure_svg(figure, label=str(figure.get_label()))


def figure_of(value: Prediction | Calibration) -> Figure:
    """Return the figure of a prediction or a calibration, without registering it with pyplot."""
    from matplotlib.figure import Figure

    has_ratios = isinstance(value, Calibration)
    n = min(len(value.lines), _MOST_PANELS)
    figure = Figure((_WIDTH, _height(n, _columns(_WIDTH * 72 - LEFT, n), has_ratios=has_ratios) / 72))
    where = value.title if isinstance(value, Prediction) else value.where
    figure.set_label(f"{'calibration' if has_ratios else 'predicted time per call'} on {where}")
    value.plot(ax=figure.add_axes((0.0, 0.0, 1.0, 1.0)))
    return figure


_NOTHING = np.empty(0), np.empty(0)


def _line_panel(line: PredictedLine, sizes: Floats, times: Floats) -> _Panel:
    expected = np.exp(_interpolated(sizes, line.size_bytes, np.log(line.time_us)))
    ratio = times / expected
    basis = np.array(line.basis)
    bound = f"bound {format_bandwidth(line.bound_gbs)}: {line.bound}" if np.isfinite(line.bound_gbs) else ""
    low, high = (
        np.exp(_interpolated(sizes, line.size_bytes, np.log(edge))) for edge in (line.time_us_lo, line.time_us_hi)
    )
    return _Panel(
        title=line.title,
        size=line.size_bytes,
        time=line.time_us,
        low=line.time_us_lo,
        high=line.time_us_hi,
        is_drawn=(basis != "formula only") | (line.size_bytes >= EXACT_FROM),
        is_fitted=basis != "extrapolated",
        choices=line.choices,
        bound_us=line.bound_us if bound else np.empty(0),
        bound=bound,
        points=(sizes, times),
        ratio=ratio,
        inside=(times >= low * (1 - 1e-9)) & (times <= high * (1 + 1e-9)),
        is_suspect=np.zeros(sizes.size, dtype=bool),
    )


def _fit_panel(calibration: Calibration, line: Calibrated) -> _Panel:
    size, time = np.array(line.fit.size_bytes, dtype=np.float64), np.array(line.time_us)
    errors = np.array(line.fit.errors)
    suspects = [
        (size, time) for name, axis, size, time in calibration.outliers if (name, axis) == (line.collective, line.axis)
    ]
    more = np.array(suspects, dtype=np.float64).reshape(-1, 2)
    unknown = np.full(len(more), np.nan)
    return _Panel(
        title=f"{line.collective} · {line.axis or 'all ranks'} ({line.signature})",
        size=size,
        time=time * np.exp(-errors),
        low=time * np.exp(-errors - line.fit.half_width),
        high=time * np.exp(-errors + line.fit.half_width),
        is_drawn=np.ones(size.size, dtype=bool),
        is_fitted=np.ones(size.size, dtype=bool),
        choices=[],
        bound_us=np.empty(0),
        bound="",
        points=(np.concatenate([size, more[:, 0]]), np.concatenate([time, more[:, 1]])),
        ratio=np.concatenate([np.exp(errors), unknown]),
        inside=np.concatenate([np.abs(errors) <= line.fit.half_width, unknown > 0]),
        is_suspect=np.concatenate([errors > np.inf, np.isnan(unknown)]),
    )


def _interpolated(sizes: Floats, grid: Floats, values: Floats) -> Floats:
    """Interpolate over the logarithm of the size. NaN outside of the grid."""
    return np.interp(np.log(sizes), np.log(grid), values, left=np.nan, right=np.nan)


# -- layout ------------------------------------------------------------------------------------------------------------


def _columns(width: float, n: int) -> int:
    return columns_of(width, n, least=_PANEL, most=3)


def _height(n: int, n_columns: int, *, has_ratios: bool) -> float:
    """Return the height of a new figure, in points."""
    heading = 3 * LINE + 12
    return -(-n // n_columns) * (_TALL + heading + TICKS + has_ratios * (_BELOW_TALL + BETWEEN)) + 62.0


def _draw(panels: Sequence[_Panel], parts: Sequence[str], note: Sequence[str], ax: Axes | None) -> Axes:
    """Draw the panels into the area of the axes."""
    has_ratios = any(np.isfinite(panel.ratio).any() for panel in panels)
    width = _WIDTH * 72 if len(panels) > 1 else _WIDEST + LEFT + 115
    height = _height(len(panels), _columns(width - LEFT, len(panels)), has_ratios=has_ratios)
    ax = open_axes(ax, width, height, Margins(0, 0, 0, 0))
    reserve(ax, left=4.0, right=16.0, below=4.0)
    reserve(ax, above=set_title(ax, parts, note=note))
    n_columns = _columns(axes_size(ax)[0], len(panels))
    titles = [panel.title for panel in panels]
    most_rows = label_rows(ax, len(panels), n_columns, most=_ROWS, least=_TALL / 2)
    labels = [_choice_labels(panel, panel_width(axes_size(ax)[0], n_columns), most_rows) for panel in panels]
    places = split_panels(ax, titles, labels, n_columns, below=_BELOW_TALL * has_ratios)
    for panel, place, above in zip(panels, places, labels, strict=True):
        _draw_times(place.upper, panel, place.size, is_labelled=place.lower is None)
        if place.lower is not None:
            _draw_ratios(place.lower, panel, place.size)
        write_heading(place, above, "choice")
    return ax


def _limits(panel: _Panel) -> tuple[float, float]:
    sizes = np.concatenate([panel.size, panel.points[0]])
    return float(sizes.min()), float(sizes.max())


def _choice_labels(panel: _Panel, width: float, most_rows: int) -> list[SizeLabel]:
    """Place the labels of all choices so that no two overlap."""
    labels: list[SizeLabel] = []
    # From the right to the left: the tick of a label crosses the rows below it, where only labels to its right may be.
    starts = [math.inf] * most_rows
    names = [name for _, name in panel.choices]
    for (k, name), previous in reversed(list(zip(panel.choices, ["", *names], strict=False))):
        tick = size_position(panel.size[k], *_limits(panel)) * width if k else 0.0
        start = tick + 3 * bool(k)
        text, wide = name, text_width(name, TEXT)
        if start + wide > width + 14 and name.split(" ")[0] == previous.split(" ")[0]:
            text = name.split(" ")[-1]  # only the protocol changes
            wide = text_width(text, TEXT)
        if start + wide > width + 14:
            start = tick - 3 - wide
        row = next((row for row in range(most_rows) if start + wide + 6 <= starts[row]), None)
        if row is None:  # a line without a name
            labels.append(SizeLabel("", float(panel.size[k]), tick, tick, -1))
            continue
        starts[row] = min(start, tick)
        labels.append(SizeLabel(text, float(panel.size[k]), start, tick, row))
    return labels


# -- panels ------------------------------------------------------------------------------------------------------------


def _draw_times(ax: Axes, panel: _Panel, size: PanelSize, *, is_labelled: bool) -> None:
    """Draw the band, the line, the bound and the points."""
    color = current_theme().accent
    low, high = panel.low, panel.high
    scale_panel(ax, _limits(panel), size.width, is_labelled=is_labelled)
    ax.fill_between(panel.size, low, high, color=color, alpha=0.25, linewidth=0)
    for mask, look in (
        (panel.is_drawn & panel.is_fitted, {"linewidth": 1.8}),
        (panel.is_drawn & ~panel.is_fitted, {"linewidth": 1.0, "linestyle": (0, (4, 2))}),
    ):
        for part in _stretches(mask):
            ax.plot(panel.size[part], panel.time[part], color=color, **look)
    times = np.concatenate([low, high, panel.points[1]])
    bottom, top = times.min() / 1.5, times.max() * 1.5
    scale_times(ax, bottom, top, size.tall)
    if panel.bound_us.size:
        _draw_bound(ax, panel, size, (bottom, top))
    _draw_points(ax, panel, panel.points[1])
    light_grid(ax)
    ax.tick_params(labelsize=TEXT)


def _stretches(mask: Mask) -> list[slice]:
    """Return the runs of True, each with the point before it, so that two lines meet."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]]).astype(int)))
    return [slice(max(int(start) - 1, 0), int(stop)) for start, stop in zip(edges[::2], edges[1::2], strict=True)]


def _draw_bound(ax: Axes, panel: _Panel, size: PanelSize, limits: tuple[float, float]) -> None:
    """Draw the time at the hardware's bound as a diagonal, with its reason along it."""
    import matplotlib as mpl

    color = mpl.rcParams["text.color"]
    is_shown = panel.bound_us > limits[0] * 0.2
    ax.plot(panel.size[is_shown], panel.bound_us[is_shown], color=color, linewidth=1, linestyle=(0, (5, 3)), zorder=1.5)
    # Both scales are logarithmic, so the angle of the diagonal follows from the lengths of an octave along x and y.
    low, high = ax.get_xlim()
    across = size[0] / math.log2(high / low)
    up = size[1] / math.log2(limits[1] / limits[0])
    angle = math.atan2(up, across)
    visible = math.log2(panel.bound_us[-1] / limits[0]) * math.hypot(across, up)
    text = _bound_label(panel.bound, visible, angle)
    back = 8 + text.count("\n") * LINE * math.tan(angle)  # lower lines start farther to the right
    shift = -back * math.cos(angle) + 4 * math.sin(angle), -back * math.sin(angle) - 4 * math.cos(angle)
    turned: Any = {"rotation": math.degrees(angle), "rotation_mode": "anchor", "ha": "right", "va": "top"}
    write_beside(ax, text, (panel.size[-1], panel.bound_us[-1]), shift, xycoords="data", gid="bound", **turned)


def _bound_label(text: str, visible: float, angle: float) -> str:
    """Return the label of the bound on one or two lines, or only its rate, to fit below the visible diagonal."""
    for width in (math.inf, *(text_width(text, TEXT) * share for share in (0.75, 0.65, 0.55))):
        lines = wrap_words(text, width, TEXT).split("\n")
        # Each line is farther below the diagonal, so it reaches the axis earlier.
        back = 14 + (len(lines) - 1) * LINE * math.tan(angle)
        room = [visible - back - (4 + LINE * (number + 1)) / math.tan(angle) for number in range(len(lines))]
        if len(lines) <= 2 and all(text_width(line, TEXT) <= most for line, most in zip(lines, room, strict=True)):
            return "\n".join(lines)
    rate = text.partition(":")[0]
    return rate if text_width(rate, TEXT) <= visible - 16 - (4 + LINE) / math.tan(angle) else ""


def _draw_points(ax: Axes, panel: _Panel, y: Floats) -> None:
    import matplotlib as mpl

    ink = mpl.rcParams["text.color"]
    x = panel.points[0]
    usual = ~panel.is_suspect
    ax.plot(x[usual], y[usual], "o", markersize=3.2, color=ink, markeredgewidth=0, zorder=3)
    ax.plot(x[~usual], y[~usual], "x", markersize=6, color=PALETTE[5], markeredgewidth=1.6, zorder=3)


def _draw_ratios(ax: Axes, panel: _Panel, size: PanelSize) -> None:
    """Draw measured / predicted, with the band, and name the points that are farthest outside of it."""
    from matplotlib.ticker import NullLocator

    scale_panel(ax, _limits(panel), size.width, is_labelled=True)
    ax.set_yscale("log")
    finite = np.isfinite(panel.ratio)
    low, high = panel.low / panel.time, panel.high / panel.time
    widths = _interpolated(panel.points[0], panel.size, np.log(np.maximum(high, 1 / low)))
    extent = [np.abs(np.log(panel.ratio[finite])).max(initial=0.0), widths[finite].max(initial=0.0), math.log(1.05)]
    top = math.exp(min(max(extent) * 1.2, math.log(64.0)))
    ax.set_ylim(1 / top, top)
    color = current_theme().accent
    ax.fill_between(panel.size, low, high, color=color, alpha=0.25, linewidth=0)
    ax.axhline(1.0, color=color, linewidth=1)
    edge = next(step for step in (32.0, 16.0, 8.0, 4.0, 3.0, 2.0, 1.5, 1.25, 1.1, 1.05) if step < top)
    ax.set_yticks([1 / edge, 1.0, edge], [f"÷{edge:g}", "1", f"×{edge:g}"])
    ax.yaxis.set_minor_locator(NullLocator())
    ratio = np.clip(panel.ratio, 1 / top, top)
    _draw_points(ax, panel, ratio)
    _name_outside(ax, panel, ratio, finite & ~panel.inside, size)
    ax.set_ylabel("ratio", fontsize=TEXT, labelpad=0)
    light_grid(ax, "x")
    ax.tick_params(labelsize=TEXT)


def _name_outside(ax: Axes, panel: _Panel, ratio: Floats, outside: Mask, size: PanelSize) -> None:
    """Write sizes and ratios next to the points that are farthest outside the band, where no point is covered."""
    low, high = ax.get_ylim()
    x = np.array([size_position(point, *_limits(panel)) for point in panel.points[0]]) * size[0]
    y = np.log(ratio / low) / math.log(high / low) * size[1]
    order = np.flatnonzero(outside)
    boxes: list[tuple[float, float, float, float]] = []
    for k in order[np.argsort(-np.abs(np.log(panel.ratio[order])))][:_MOST_NAMED]:
        digits = ".2g" if panel.ratio[k] < 99.5 else ".0f"
        label = f"{format_size(panel.points[0][k])} ×{panel.ratio[k]:{digits}}"
        wide, tall = text_width(label, TEXT), LINE
        corners = [(5.0, -tall / 2), (-5 - wide, -tall / 2)]
        corners += [(shift, side) for side in (4.0, -4 - tall) for shift in (-wide / 2, 0.0, -wide)]

        def cost(corner: tuple[float, float], k: int = int(k), wide: float = wide, tall: float = tall) -> float:
            left, bottom = x[k] + corner[0], y[k] + corner[1]
            covered = (x > left - 3) & (x < left + wide + 3) & (y > bottom - 3) & (y < bottom + tall + 3)
            over = max(left + wide - size[0] - 8, -left, bottom + tall - size[1] - 4, -bottom, 0.0)
            crowded = any(left < b and a < left + wide and bottom < d and c < bottom + tall for a, b, c, d in boxes)
            on_line = bottom < size[1] / 2 < bottom + tall
            return float(covered.sum() + 0.5 * on_line + 2 * over + 100 * crowded)

        best = min(corners, key=cost)
        left, bottom = x[k] + best[0], y[k] + best[1]
        if cost(best) >= 100:
            continue
        boxes.append((left, left + wide, bottom, bottom + tall))
        write_beside(ax, label, (panel.points[0][k], ratio[k]), best, xycoords="data", gid="outside")
