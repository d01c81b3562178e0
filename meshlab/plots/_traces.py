"""Figures of the trace of a job: time by axis, a timeline, calls on the machine's curve, and lateness by rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from meshlab.base._errors import BenchError
from meshlab.base._units import format_size, format_time_us
from meshlab.mesh._mesh import MeshLike
from meshlab.plots._curves import time_tick
from meshlab.plots._style import (
    AXIS_GROUPS,
    PALETTE,
    PREVIOUS,
    Margins,
    check_type,
    figure_svg,
    legend_above,
    light_grid,
    open_axes,
    reserve,
    set_title,
    text_width,
    write_beside,
)
from meshlab.plots._theme import Theme, current_theme
from meshlab.traces._curves import Curves
from meshlab.traces._sentences import axis_label, records
from meshlab.traces._trace import Trace

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_POINTS = 9.0
_WIDTH, _WIDE = 576.0, 720.0  # of a new figure, in points
_ABOVE, _CURVE = 124.0, 330.0  # height of title, legend and labels, and of the figure of the curve, in points
_BAR_ROW, _LANE, _RANK_ROW = 30.0, 13.0, 17.0  # heights of rows, in points
_MOST_LANES, _MOST_RANKS = 48, 40
_MOST_CALLS = 20_000  # rectangles of a timeline
_HINT = "pass ml.read(files)"
_AXIS_COLORS = (4, 2, 3, 1, 5, 0)

Floats = npt.NDArray[np.float64]


def axis_times(trace: Trace, *, mesh: MeshLike | None = None, ax: Axes | None = None) -> Axes:
    """Draw the time of an average rank by axis: exposed and hidden transfers, and waiting for other ranks.

    Parameters
    ----------
    trace : Trace
        The trace of a job.
    mesh : DeviceMesh or str, optional
        The mesh of the job. By default that of ``trace.mesh()``.
    ax : matplotlib.axes.Axes, optional
        The axes to draw on. By default a new figure is created.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    BenchError
        If `trace` is not a Trace, or no call has a duration.

    Examples
    --------
    >>> import meshlab as ml
    >>> from matplotlib.figure import Figure
    >>> ax = ml.plot.axis_times(ml.Trace.example(), ax=Figure((8, 3)).add_subplot())
    >>> [label.get_text() for label in ax.get_yticklabels()]
    ['dp', 'tp']
    """
    from matplotlib.patches import Patch

    check_type("trace", trace, Trace, hint=_HINT)
    table = trace.by_axis(mesh, steps=False)
    table = table[table["duration_us"].notna()].reset_index(drop=True)
    if table.empty:
        raise BenchError("no call of the trace has a duration", hint="record a step with the kernels of the GPUs")
    theme = current_theme()
    rows = records(table)
    labels = [axis_label(row) for row in rows]
    parts = [_bar_parts(row) for row in rows]
    ends = [_end_text(row) for row in rows]
    left = max(text_width(label, _POINTS) for label in labels) + 14
    right = max(text_width(text, _POINTS) for text in ends) + 12
    ax = open_axes(ax, _WIDTH, _ABOVE + _BAR_ROW * len(rows), Margins(left, 40.0, right, 60.0))
    looks = _looks(theme)
    for number, widths in enumerate(parts):
        position = 0.0
        for kind, width in widths.items():
            ax.barh(number, width, 0.62, left=position, **looks[kind])
            position += width
        write_beside(ax, ends[number], (position, number), (5, 0), xycoords="data", va="center", color=theme.ink)
    kinds = [kind for kind in looks if any(widths.get(kind, 0) > 0 for widths in parts)]
    above = legend_above(ax, [Patch(label=kind, **looks[kind]) for kind in kinds])
    verdict = next(iter(trace.sentences(mesh)), "").rstrip(".")
    above = set_title(ax, [f"time by axis, {trace.title}"], verdict=_short(verdict), gap=above)
    reserve(ax, left=left, above=above, below=38, right=right)
    _scale_time(ax, max(sum(widths.values()) for widths in parts))
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.set_yticks(range(len(rows)), labels)
    ax.tick_params(axis="y", length=0, labelsize=_POINTS)
    ax.set_xlabel("time of an average rank")
    light_grid(ax, "x")
    return ax


def _short(sentence: str) -> str:
    """Return the first two parts of a sentence about an axis."""
    return "; ".join(sentence.split("; ")[:2])


def _looks(theme: Theme) -> dict[str, dict[str, Any]]:
    edge = {"edgecolor": theme.background, "linewidth": 0.6}
    return {
        "exposed": {"facecolor": theme.groups[0], **edge},
        "transfer": {"facecolor": theme.groups[0], **edge},
        "hidden by computation": {"facecolor": theme.groups[1], **edge},
        # Without a colour behind the hatch: an SVG would keep that of the theme in which it was drawn.
        "waiting for other ranks": {"facecolor": "none", "hatch": "////", "edgecolor": theme.ink2, "linewidth": 0.6},
        "calls, with their waits": {"facecolor": "none", "hatch": "..", "edgecolor": theme.ink2, "linewidth": 0.6},
    }


def _bar_parts(row: dict[str, Any]) -> dict[str, float]:
    """Return the parts of the bar of an axis in µs, by the names of `_looks`."""
    if not np.isfinite(row["transfer_us"]) and not np.isfinite(row["exposed_us"]):
        return {"calls, with their waits": row["duration_us"]}
    exposed, hidden = row["exposed_us"], row["hidden_us"]
    if not np.isfinite(exposed):  # no kernels, so nothing shows what computes
        return {"transfer": row["transfer_us"], "waiting for other ranks": _positive(row["wait_us"])}
    return {"exposed": exposed, "hidden by computation": hidden, "waiting for other ranks": _positive(row["wait_us"])}


def _positive(time_us: float) -> float:
    return time_us if np.isfinite(time_us) else 0.0


def _end_text(row: dict[str, Any]) -> str:
    calls = f"{row['calls']:,} call{'s' * (row['calls'] != 1)}"
    if not np.isfinite(row["transfer_us"]):
        return f"{format_time_us(row['duration_us'])}, {calls}"
    wait = f" + {format_time_us(row['wait_us'])} waiting" if np.isfinite(row["wait_us"]) and row["wait_us"] > 0 else ""
    return f"{format_time_us(row['transfer_us'])}{wait}, {calls}"


def _scale_time(ax: Axes, most: float) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    ax.set_xlim(0, most * 1.02 or 1)
    ax.xaxis.set_major_locator(MaxNLocator(6))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda time, _: time_tick(time) if time else "0"))


# -- timeline ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class TimelineSpan:
    """The calls of a timeline: of one step, or within a window."""

    rows: pd.DataFrame
    begin: float
    end: float
    name: str  # of the step, in words


def timeline_span(
    trace: Trace, mesh: MeshLike | None, step: int | None, window: tuple[float, float] | None
) -> TimelineSpan:
    """Return the calls of a step, by default of that with the most time in calls, and those within a window of it."""
    rows = trace.frame(mesh)
    rows = rows[rows["start_us"].notna() & rows["duration_us"].notna()]
    if rows.empty:
        raise BenchError("the trace has no starts of calls", hint="pass traces of PyTorch's profiler")
    name = "all calls"
    if rows["step"].notna().any():
        if step is None:
            waits = rows.groupby("step")[["wait_us", "duration_us"]].sum().sum(axis=1)
            step = int(waits.index[int(waits.to_numpy().argmax())])
        elif not rows["step"].eq(step).any():
            steps = ", ".join(str(number) for number in rows["step"].dropna().unique()[:8])
            raise BenchError(f"the trace has no step {step}; it has {steps}")
        rows = rows[rows["step"].eq(step).fillna(value=False)]
        name = f"step {step}"
    elif step is not None:
        raise BenchError("the trace has no steps", hint="call profiler.step() after each step, or pass window=")
    begin, end = float(rows["start_us"].min()), float((rows["start_us"] + rows["duration_us"]).max())
    if window is not None:
        first, last = (float(bound) for bound in window)
        if not first < last:
            raise BenchError(f"window must be two increasing times in µs, not {window!r}")
        begin, end = begin + first, begin + last
        inside = (rows["start_us"] < end) & (rows["start_us"] + rows["duration_us"] > begin)
        rows = rows[inside]
    return TimelineSpan(rows.iloc[:_MOST_CALLS], begin, end, name)


def timeline(
    trace: Trace,
    *,
    mesh: MeshLike | None = None,
    step: int | None = None,
    window: tuple[float, float] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw the calls of a step by axis and rank: solid while they transfer, and hatched while they wait.

    Parameters
    ----------
    trace : Trace
        The trace of a job.
    mesh : DeviceMesh or str, optional
        The mesh of the job. By default that of ``trace.mesh()``.
    step : int, optional
        Number of the step. By default the step with the most time in calls.
    window : (float, float), optional
        Times in µs after the first call of the step, to zoom in. By default the whole step.
    ax : matplotlib.axes.Axes, optional
        The axes to draw on. By default a new figure is created.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    BenchError
        If `trace` is not a Trace or has no starts, or if the step or the window has no calls.

    Examples
    --------
    >>> import meshlab as ml
    >>> from matplotlib.figure import Figure
    >>> ax = ml.plot.timeline(ml.Trace.example(), step=1, ax=Figure((8, 4)).add_subplot())
    >>> [label.get_text() for label in ax.get_yticklabels()][:2]
    ['dp  rank 0', 'rank 1']
    """
    from matplotlib.collections import PolyCollection
    from matplotlib.patches import Patch

    check_type("trace", trace, Trace, hint=_HINT)
    span = timeline_span(trace, mesh, step, window)
    if span.rows.empty:
        raise BenchError("no call is within the window", hint="the window is in µs after the first call of the step")
    theme = current_theme()
    lanes = _lanes(span.rows)
    labels = _lane_labels(lanes)
    left = max(text_width(label, _POINTS) for label in labels) + 14
    ax = open_axes(ax, _WIDE, _ABOVE + _LANE * len(lanes), Margins(left, 40.0, 14.0, 60.0))
    colors = _axis_colors([axis for axis, _ in lanes], theme)
    positions = _positions(lanes)
    handles: list[Any] = []
    for axis, color in colors.items():
        lane = span.rows["axis"].map(axis_text).eq(axis)
        rows = span.rows[lane]
        y = np.array([positions.get((axis, rank), np.nan) for rank in _ranks(rows)])
        rows, y = rows[np.isfinite(y)], y[np.isfinite(y)]
        start = rows["start_us"].to_numpy("float64") - span.begin
        wait = np.nan_to_num(rows["wait_us"].to_numpy("float64"))
        end = start + rows["duration_us"].to_numpy("float64")
        waits, transfers = _boxes(start, start + wait, y), _boxes(start + wait, end, y)
        gray: dict[str, Any] = {"facecolors": "none", "edgecolors": theme.ink2, "linewidths": 0.5, "hatch": "/////"}
        ax.add_collection(PolyCollection(list(waits[wait > 0]), zorder=2, **gray))
        ax.add_collection(
            PolyCollection(list(transfers), facecolors=color, edgecolors=theme.background, linewidths=0.3, zorder=3)
        )
        handles.append(Patch(facecolor=color, label=axis))
    if span.rows["wait_us"].gt(0).any():
        handles.append(Patch(facecolor="none", edgecolor=theme.ink2, hatch="/////", linewidth=0.5, label="waiting"))
    above = legend_above(ax, handles)
    above = set_title(ax, [f"{span.name}, {trace.title}"], verdict=_late_verdict(trace, span), gap=above)
    reserve(ax, left=left, above=above, below=38, right=12)
    _scale_time(ax, span.end - span.begin)
    ax.set_xlim(0, span.end - span.begin)
    ticks = list(positions.values())
    ax.set_ylim(max(ticks) + 0.6, min(ticks) - 0.6)
    ax.set_yticks(ticks, labels)
    ax.tick_params(axis="y", length=0, labelsize=_POINTS)
    ax.set_xlabel("time after the first call of the step" if span.name != "all calls" else "time after the first call")
    light_grid(ax, "x")
    return ax


def axis_text(axis: object) -> str:
    """Return the name of an axis, or a word for calls without one."""
    return axis if isinstance(axis, str) else "no axis"


def _ranks(rows: pd.DataFrame) -> list[int]:
    return [int(rank) for rank in rows["rank"].fillna(-1).tolist()]


def _lanes(rows: pd.DataFrame) -> list[tuple[str, int]]:
    """Return axis and rank of each row of a timeline. Of many ranks, those that wait least and most are drawn."""
    axes = list(dict.fromkeys(rows["axis"].map(axis_text)))
    axes.sort(key=lambda axis: -float(rows.loc[rows["axis"].map(axis_text).eq(axis), "duration_us"].sum()))
    ranks = sorted(dict.fromkeys(_ranks(rows)))
    most = max(2, _MOST_LANES // max(1, len(axes)))
    if len(ranks) > most:
        wait = rows.groupby(rows["rank"].fillna(-1))["wait_us"].sum()
        order = [int(rank) for rank in wait.sort_values(kind="stable").index]
        ranks = sorted({*order[: most // 2], *order[-(most - most // 2) :]})
    return [(axis, rank) for axis in axes for rank in ranks]


def _positions(lanes: list[tuple[str, int]]) -> dict[tuple[str, int], float]:
    """Return the height of each lane. Axes are separated by half a lane."""
    axes = list(dict.fromkeys(axis for axis, _ in lanes))
    return {lane: number + 0.6 * axes.index(lane[0]) for number, lane in enumerate(lanes)}


def _lane_labels(lanes: list[tuple[str, int]]) -> list[str]:
    labels, before = [], ""
    for axis, rank in lanes:
        name = f"rank {rank}" if rank >= 0 else "unknown rank"
        labels.append(name if axis == before else f"{axis}  {name}")
        before = axis
    return labels


def _axis_colors(axes: list[str], theme: Theme) -> dict[str, str]:
    colors: dict[str, str] = {}
    free = iter(_AXIS_COLORS * (1 + len(axes)))
    for axis in dict.fromkeys(axes):
        number = AXIS_GROUPS.get(axis.split("_")[0])
        colors[axis] = theme.groups[next(free) if number is None else number]
    return colors


def _boxes(left: Floats, right: Floats, y: Floats) -> Floats:
    """Return the corners of boxes, of shape (n, 4, 2)."""
    low, high = y - 0.38, y + 0.38
    return np.stack(
        [np.stack(pair, axis=-1) for pair in ((left, low), (right, low), (right, high), (left, high))], axis=1
    )


def _late_verdict(trace: Trace, span: TimelineSpan) -> str:
    late = span.rows[span.rows["is_last"] & span.rows["lateness_us"].gt(np.nan_to_num(trace.error_us))]
    if late.empty:
        return ""
    worst = late.iloc[int(late["lateness_us"].to_numpy().argmax())]
    return f"Rank {worst['rank']} is up to {format_time_us(worst['lateness_us'])} late"


# -- calls on the curve ------------------------------------------------------------------------------------------------


def calls_on_curve(trace: Trace, machine: Any, *, mesh: MeshLike | None = None, ax: Axes | None = None) -> Axes:
    """Draw the bus bandwidth of each call's transfer, next to the curve of the same collective on the machine.

    Parameters
    ----------
    trace : Trace
        The trace of a job.
    machine : RunData, path, Calibration, Prediction, or DataFrame
        Times by size, see ``trace.against``.
    mesh : DeviceMesh or str, optional
        The mesh of the job. By default that of ``trace.mesh()``.
    ax : matplotlib.axes.Axes, optional
        The axes to draw on. By default a new figure is created.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    BenchError
        If `trace` is not a Trace, or the machine has no times of any of its calls.

    Examples
    --------
    >>> import meshlab as ml
    >>> from matplotlib.figure import Figure
    >>> machine = ml.predict("dp=2, tp=2", "dgx-h100")
    >>> ax = ml.plot.calls_on_curve(ml.Trace.example(), machine, ax=Figure((8, 4)).add_subplot())
    >>> ax.get_ylabel()
    'busbw (GB/s)'
    """
    from matplotlib.lines import Line2D
    from matplotlib.ticker import FuncFormatter, LogLocator

    from meshlab.frames._statistics import bandwidth

    check_type("trace", trace, Trace, hint=_HINT)
    calls = trace.against(machine, mesh)
    calls = calls[calls["busbw_gbs"].gt(0)]
    curves = Curves(machine)
    theme = current_theme()
    ax = open_axes(ax, _WIDTH, _CURVE, Margins(52.0, 42.0, 14.0, 70.0))
    handles: list[Any] = []
    keys = list(calls[["axis", "collective", "n_ranks"]].drop_duplicates().itertuples(index=False, name=None))
    for number, (axis, collective, n_ranks) in enumerate(keys):
        color, marker = PALETTE[number % len(PALETTE)], "osD^vP*X"[number % 8]
        name = f"{collective}{f' · {axis}' if isinstance(axis, str) else ''}, {n_ranks} ranks"
        sizes, times = curves.times(axis if isinstance(axis, str) else None, str(collective), int(n_ranks))
        if len(sizes):
            _, busbw = bandwidth([str(collective)] * len(sizes), sizes, [int(n_ranks)] * len(sizes), times)
            ax.plot(sizes, busbw, color=color, linewidth=1.6, zorder=2)
        part = calls[calls["collective"].eq(collective) & calls["n_ranks"].eq(n_ranks)]
        part = part[part["axis"].eq(axis)] if isinstance(axis, str) else part[part["axis"].isna()]
        slow = part["is_slow"].to_numpy(dtype=bool)
        x, y = part["size_bytes"].to_numpy("float64"), part["busbw_gbs"].to_numpy("float64")
        ax.plot(x, y, marker, color=color, markersize=5, alpha=0.6, markeredgewidth=0, zorder=3)
        ax.plot(x[slow], y[slow], marker, color="none", markeredgecolor=theme.conflict, markersize=9, zorder=4)
        handles.append(Line2D([], [], color=color, marker=marker, markersize=5, label=name))
    if calls["is_slow"].any():
        ring: dict[str, Any] = {"linestyle": "none", "marker": "o", "markersize": 9, "color": "none"}
        handles.append(Line2D([], [], markeredgecolor=theme.conflict, label="below 80 % of the curve", **ring))
    above = legend_above(ax, handles) if handles else 0.0
    verdict = next(iter(_curve_sentences(calls)), "").rstrip(".")
    curve = "the machine's curve" if calls["source"].isna().all() else "published curves"
    above = set_title(ax, [f"calls on {curve}, {trace.title}"], verdict=verdict, gap=above)
    reserve(ax, left=50, above=above, below=40, right=12)
    ax.set_xscale("log", base=2)
    ax.xaxis.set_major_locator(LogLocator(base=2, numticks=9))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda size, _: format_size(size)))
    ax.minorticks_off()
    ax.set_ylim(bottom=0)
    ax.set_xlabel("size")
    ax.set_ylabel("busbw (GB/s)")
    light_grid(ax)
    return ax


def _curve_sentences(calls: pd.DataFrame) -> list[str]:
    from meshlab.traces._curves import slow_calls_text

    return slow_calls_text(calls)


# -- lateness ----------------------------------------------------------------------------------------------------------


def lateness(trace: Trace, *, mesh: MeshLike | None = None, ax: Axes | None = None) -> Axes:
    """Draw how late each rank arrives at its calls: a dot per call, and a bar at the median.

    Negative values are early. The grey band is the error: the distance between the ends of a call.

    Parameters
    ----------
    trace : Trace
        The trace of a job.
    mesh : DeviceMesh or str, optional
        The mesh of the job, whose axes have different marks. By default that of ``trace.mesh()``.
    ax : matplotlib.axes.Axes, optional
        The axes to draw on. By default a new figure is created.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    BenchError
        If `trace` is not a Trace, or no call has all ranks of its group.

    Examples
    --------
    >>> import meshlab as ml
    >>> from matplotlib.figure import Figure
    >>> ax = ml.plot.lateness(ml.Trace.example(), ax=Figure((8, 4)).add_subplot())
    >>> [label.get_text() for label in ax.get_yticklabels()][-1]
    '▸ rank 3'
    """
    from matplotlib.lines import Line2D
    from matplotlib.ticker import FuncFormatter

    check_type("trace", trace, Trace, hint=_HINT)
    rows = trace.frame(mesh)
    rows = rows[rows["lateness_us"].notna()]
    if rows.empty:
        raise BenchError("no call has all ranks of its group", hint="pass the files of all ranks")
    theme, error = current_theme(), float(np.nan_to_num(trace.error_us))
    medians = rows.groupby("rank")["lateness_us"].median().sort_index()
    if len(medians) > _MOST_RANKS:
        medians = medians.loc[sorted(medians.sort_values(ascending=False).index[:_MOST_RANKS])]
    table = trace.by_axis(mesh, steps=False)
    named = {int(rank) for rank in table["late_rank"].dropna()}
    ranks = [int(rank) for rank in medians.index]
    labels = [f"{'▸ ' * (rank in named)}rank {rank}" for rank in ranks]
    left = max(text_width(label, _POINTS, weight="bold") for label in labels) + 12
    ax = open_axes(ax, _WIDTH, _ABOVE + _RANK_ROW * max(len(ranks), 3), Margins(left, 42.0, 14.0, 60.0))
    axes = list(dict.fromkeys(rows["axis"].map(axis_text)))
    colors = _axis_colors(axes, theme)
    ax.axvspan(-error, error, color=PREVIOUS, alpha=0.25, linewidth=0)
    ax.axvline(0, color=theme.ink2, linewidth=0.8)
    for number, axis in enumerate(axes):
        part = rows[rows["axis"].map(axis_text).eq(axis) & rows["rank"].isin(ranks)]
        y = np.array([ranks.index(rank) for rank in _ranks(part)], dtype=np.float64)
        spread = (np.arange(len(part)) * 0.618) % 1 * 0.56 - 0.28  # so that dots with equal values do not overlap
        marker = "osD^v"[number % 5]
        ax.plot(
            part["lateness_us"], y + spread, marker, color=colors[axis], markersize=3.6, alpha=0.7, markeredgewidth=0
        )
    ax.vlines(
        medians.to_numpy(), np.arange(len(ranks)) - 0.4, np.arange(len(ranks)) + 0.4, color=theme.ink, linewidth=2.2
    )
    handles: list[Any] = [
        Line2D(
            [], [], color=colors[axis], marker="osD^v"[k % 5], linestyle="none", markersize=5, label=f"calls of {axis}"
        )
        for k, axis in enumerate(axes)
    ]
    handles.append(Line2D([], [], color=theme.ink, linewidth=2.2, label="median"))
    if error > 0:
        handles.append(Line2D([], [], color=PREVIOUS, linewidth=6, alpha=0.5, label=f"error: {format_time_us(error)}"))
    above = legend_above(ax, handles)
    above = set_title(ax, [f"lateness, {trace.title}"], verdict=_named_verdict(table), gap=above)
    reserve(ax, left=left, above=above, below=38, right=14)
    values = rows["lateness_us"].to_numpy("float64")
    usual, largest = float(np.quantile(np.abs(values), 0.9)), float(np.abs(values).max())
    if largest > 20 * usual > 0:
        ax.set_xscale("symlog", linthresh=max(usual, 1.0))
    ax.xaxis.set_major_formatter(
        FuncFormatter(lambda time, _: f"{'−' if time < 0 else ''}{time_tick(abs(time))}" if time else "0")
    )
    ax.set_ylim(len(ranks) - 0.5, -0.5)
    ax.set_yticks(range(len(ranks)), labels)
    ax.tick_params(axis="y", length=0, labelsize=_POINTS)
    for rank, label in zip(ranks, ax.get_yticklabels(), strict=True):
        if rank in named:
            label.set_fontweight("bold")
    ax.set_xlabel("start after the median of the other ranks")
    light_grid(ax, "x")
    return ax


def _named_verdict(table: pd.DataFrame) -> str:
    late = table[table["late_rank"].notna()]
    parts = [
        f"rank {row['late_rank']} is late in {row['late_calls']:,} of {row['counted_calls']:,} calls of "
        f"{axis_text(row['axis'])}"
        for row in records(late)
    ]
    text = ", ".join(parts[:2]) or "no rank is last in most of its calls"
    return f"{text[:1].upper()}{text[1:]}"


def trace_figure(
    trace: Trace, kind: str = "axes", *, mesh: MeshLike | None = None, ax: Axes | None = None, **options: Any
) -> Axes:
    """Draw one of the figures of a trace."""
    figures = {"axes": axis_times, "timeline": timeline, "curve": calls_on_curve, "lateness": lateness}
    if kind not in figures:
        raise BenchError(f"unknown kind {kind!r}; choose one of {', '.join(figures)}")
    if kind == "curve" and "machine" not in options:
        raise BenchError("the calls on a curve need the machine's times", hint="pass machine=, such as a run")
    figure: Any = figures[kind]
    axes: Axes = figure(trace, mesh=mesh, ax=ax, **options)
    return axes


def figure_html(trace: Trace, kind: str = "axes", *, mesh: MeshLike | None = None, **options: Any) -> str:
    """Return a figure as an ``<svg>`` element, empty if the trace does not have its times."""
    from matplotlib.figure import Figure

    try:
        width, height = figure_size(trace, kind, mesh, options)
        figure = Figure((width / 72, height / 72))
        ax = trace_figure(trace, kind, mesh=mesh, ax=figure.add_axes((0.0, 0.0, 1.0, 1.0)), **options)
    except BenchError:
        return ""
    return figure_svg(figure, label=ax.get_title(loc="left").replace("\n", ". "))


def figure_size(trace: Trace, kind: str, mesh: MeshLike | None, options: Mapping[str, Any]) -> tuple[float, float]:
    """Return width and height of a new figure in points."""
    if kind == "axes":
        return _WIDTH, _ABOVE + _BAR_ROW * len(trace.by_axis(mesh, steps=False))
    if kind == "timeline":
        span = timeline_span(trace, mesh, options.get("step"), options.get("window"))
        return _WIDE, _ABOVE + _LANE * len(_lanes(span.rows))
    if kind == "lateness":
        return _WIDTH, _ABOVE + _RANK_ROW * min(max(len(trace.ranks), 3), _MOST_RANKS)
    return _WIDTH, _CURVE
