"""The tokens of every rank of an expert group, before and after a better placement of the experts."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from meshlab.base._errors import MeshError
from meshlab.base._units import THIN, format_number, format_size
from meshlab.mesh._axes import as_integer
from meshlab.plots._style import (
    Margins,
    check_type,
    figure_svg,
    legend_above,
    light_grid,
    open_axes,
    reserve,
    set_height,
    set_title,
)
from meshlab.plots._theme import current_theme
from meshlab.plots._traffic import traffic
from meshlab.prediction._routing import Routing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WIDTH, _HEIGHT, _PLOT = 400.0, 300.0, 190.0
_MARGINS = Margins(44.0, 44.0, 12.0, 96.0)
_SIDE, _MAP = 210.0, Margins(44.0, 90.0, 156.0, 96.0)  # of a heat map, which is next to another one on wide pages
_BETTER = 0.995  # of the largest load, below which a placement is drawn


class _Placed(NamedTuple):
    """A routing with its name in the legend."""

    routing: Routing
    name: str


def routing(routing: Routing, replicas: int | None = None, *, ax: Axes | None = None) -> Axes:
    """Draw the tokens of every rank relative to the mean, before and after a better placement of the experts.

    Ranks are sorted by their tokens, the busiest first, because all others wait for it. The dashed curve has the same
    experts at other places, and the filled one replicas of the most popular experts.

    Parameters
    ----------
    routing : Routing
        The tokens of a job, see `meshlab.Job.routing`.
    replicas : int, optional
        Number of replicas beyond one of each expert. By default one more slot on every rank. 0 for none.
    ax : matplotlib.axes.Axes, optional
        The axes to draw on. By default a new figure is created.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    BenchError
        If `routing` is not a Routing.
    MeshError
        If the replicas do not fill the ranks evenly, or are more than the slots for second copies.

    Examples
    --------
    >>> import meshlab as ml
    >>> from matplotlib.figure import Figure
    >>> routing = ml.Job.preset("deepseek-v3", skew=0.8).routing("ep=32", ml.preset("dgx-h100", nodes=4))
    >>> ax = ml.plot.routing(routing, ax=Figure((6, 4)).add_subplot())
    >>> ax.get_title(loc="left").splitlines()[0].replace(chr(0x2009), " ")
    'The busiest rank has 5.40 × the mean, and 1.40 × with 32 replicas'
    """
    check_type("routing", routing, Routing, hint="pass job.routing(mesh)")
    is_new = ax is None
    ax = open_axes(ax, _WIDTH + _MARGINS.left + _MARGINS.right, _HEIGHT, _MARGINS)
    above = _compose(ax, routing, _placements(routing, replicas))
    if is_new:
        set_height(ax, _PLOT, above=above, below=_MARGINS.below)
    return ax


def _compose(ax: Axes, routing: Routing, curves: list[_Placed]) -> float:
    """Draw the curves with their title, and return the height of all that is above them, in points."""
    reserve(ax, left=_MARGINS.left, right=_MARGINS.right, below=_MARGINS.below)
    handles = _draw(ax, curves)
    gap = legend_above(ax, handles, gap=4.0)
    note = [_busiest_link(routing)] if routing.placement is not None else []
    above = set_title(ax, [routing.title], verdict=_verdict(curves), note=note, gap=gap)
    reserve(ax, above=above)
    return above


def _placements(routing: Routing, replicas: int | None) -> list[_Placed]:
    """Return the routing, and those with other places and with replicas if their busiest rank has less."""
    curves = [_Placed(routing, "before")]
    number = routing.n_ranks if replicas is None else replicas
    if not routing.replicas:
        curves.append(_Placed(routing.balanced(), "other places"))
    if as_integer(number) != 0:  # balanced() checks it
        try:
            better = routing.balanced(number)
        except MeshError:
            if replicas is not None:
                raise
        else:
            curves.append(_Placed(better, f"{number:,} replicas"))
    most = routing.imbalance
    return [curve for k, curve in enumerate(curves) if k == 0 or curve.routing.imbalance < _BETTER * most]


def _verdict(curves: list[_Placed]) -> str:
    before = format_number(curves[0].routing.imbalance)
    if curves[0].routing.imbalance < 1 / _BETTER:
        return "All ranks have the same tokens"
    if len(curves) == 1:
        return f"The busiest rank has {before}{THIN}× the mean, and no better placement was found"
    best = min(curves[1:], key=lambda curve: curve.routing.imbalance)
    after = f"{format_number(best.routing.imbalance)}{THIN}×"
    words = "at other places of the experts" if best.name == "other places" else f"with {best.name}"
    return f"The busiest rank has {before}{THIN}× the mean, and {after} {words}"


def _busiest_link(routing: Routing) -> str:
    """Name the link that needs the longest time in the dispatch."""
    loads = routing.loads()
    link = loads.of(loads.limit)
    if link is None or link.busiest is None:
        return "nothing leaves a rank"
    name = loads.busiest_nic if link.name == "nic" else link.label
    return f"busiest link of the dispatch: {name}, {format_size(float(link.bytes[link.busiest]))}"


def _draw(ax: Axes, curves: list[_Placed]) -> list[object]:
    """Draw a curve per placement, with the number of its busiest rank."""
    theme = current_theme()
    looks = {"before": (theme.conflict, "-", False), "other places": (theme.ink2, "--", False)}
    handles: list[object] = []
    n = curves[0].routing.n_ranks
    for placed, name in curves:
        color, style, is_filled = looks.get(name, (theme.load, "-", True))
        share = -np.sort(-placed.rank_tokens) / placed.rank_tokens.mean()
        label = f"{name}: {format_number(placed.imbalance)}{THIN}×"
        edges = np.arange(n + 1)
        curve = ax.stairs(share, edges, baseline=None, color=color, linewidth=1.8, label=label)
        curve.set_linestyle(style)  # type: ignore[arg-type]  # `stairs` has no such argument
        handles.append(curve)
        if is_filled:
            ax.stairs(share, edges, fill=True, color=color, alpha=0.25, linewidth=0)
    ax.set(xlim=(0, n), ylim=(0, 1.05 * max(curve.routing.imbalance for curve in curves)))
    ax.axhline(1, color=theme.ink2, linewidth=1, linestyle=(0, (1, 2)))
    ax.set_xlabel("ranks, the busiest first")
    ax.set_ylabel("tokens relative to the mean")
    light_grid(ax, "y")
    return handles


def figure_html(routing: Routing) -> str:
    """Return the figure, and the traffic of the dispatch before and after the best placement, as ``<svg>`` elements."""
    from matplotlib.figure import Figure

    curves = _placements(routing, None)
    width = _WIDTH + _MARGINS.left + _MARGINS.right
    figure = Figure((width / 72, _HEIGHT / 72))
    ax = figure.add_axes(_MARGINS.box(width, _HEIGHT))
    set_height(ax, _PLOT, above=_compose(ax, routing, curves), below=_MARGINS.below)
    parts = [figure_svg(figure, label=ax.get_title(loc="left").replace("\n", ". "))]
    after = min(curves, key=lambda placed: placed.routing.imbalance)
    named = [(routing, "before"), (after.routing, f"with {after.name}")] if after is not curves[0] else [(routing, "")]
    for placed, name in named:
        height = _MAP.above + _SIDE + _MAP.below
        figure = Figure(((_MAP.left + _SIDE + _MAP.right) / 72, height / 72))
        ax = figure.add_axes(_MAP.box(_MAP.left + _SIDE + _MAP.right, height))
        ax = traffic(placed.dispatch.named(f"dispatch {name}".strip()), ax=ax)
        parts.append(figure_svg(figure, label=ax.get_title(loc="left").replace("\n", ". ")))
    return "".join(parts)
