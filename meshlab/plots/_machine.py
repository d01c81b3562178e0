"""The picture of a machine: hosts, GPUs, NVLink, NICs, rails, switches, and the groups and loads of a mesh on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import numpy as np

from meshlab.base._errors import TopologyError
from meshlab.base._units import SEPARATOR, format_size, format_time_us
from meshlab.mesh._mesh import MeshLike
from meshlab.plots._painter import POINTS, PX, Painter, Window, rounded, text_pixels
from meshlab.plots._style import axes_size, new_figure, reserve, set_height, set_title, wrap_words
from meshlab.plots._theme import N_GROUPS, Theme, current_theme
from meshlab.prediction._axis_loads import LOAD_ARGUMENTS, LoadArguments, loads
from meshlab.topology.model._levels import Ints
from meshlab.topology.model._presets import ClusterLike
from meshlab.topology.placement._layout import Fit, fit, layout, look_at
from meshlab.topology.placement._loads import MARKS, Loads
from meshlab.topology.placement._placement import Placement
from meshlab.topology.placement._view import View, make_view

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH, _HEIGHT = 912.0, 560.0  # largest size of the machine in a new figure, in pixels
_NARROW = 600.0  # smallest width
_SIDE = 12.0  # free pixels of a new figure at both sides of the machine
_LINE = 18.0  # height of a line of the legend
_ZOOM_OF_LEVEL = ((0, 9, 46, 130), (0, 7, 26, 60))  # smallest width of a cell for a level of detail: column, rack


@LOAD_ARGUMENTS.shown
def topology(
    mesh: MeshLike | Placement | ClusterLike | None = None,
    cluster: ClusterLike | None = None,
    *,
    axis: str | Sequence[str] | None = None,
    group: int | str | None = None,
    level: int | str = "auto",
    focus: str = "all",
    devices: Sequence[int] | Ints | None = None,
    ax: Axes | None = None,
    **call: Unpack[LoadArguments],
) -> Axes:
    """Draw a machine and the groups of an axis on it, with the load of every link.

    GPUs go down and rails go across, so a group inside a host is vertical and a group on one rail is horizontal. Green
    lines surround NVLink domains. Lines are darker and wider the longer a link needs for its bytes. Only a link that
    limits the axis because groups share it, or because it is oversubscribed, is orange and hatched.

    If the mesh does not fit the machine, or a part of the machine is unknown, the machine is drawn, and a sentence
    below it reports what is missing.

    Parameters
    ----------
    mesh : DeviceMesh, str, Placement or Cluster, optional
        A mesh, text such as ``"dp=2, tp=4"``, or a placement. If `cluster` is omitted, also a cluster or the name of a
        preset.
    cluster : Cluster or str, optional
        A cluster, or the name of a preset. By default the ranks are drawn without hardware.
    axis : str or sequence of str, optional
        An axis such as ``"tp"``, several such as ``"dp-cp"``, the name of a group, or a level of the cluster such as
        ``"leaf"``. By default the fastest axis or, without a mesh, the outermost level with several domains.
    group : int or str, optional
        A group of the axis, such as ``3`` or ``"dp_3"``. Its route is drawn, and everything else is faint.
    level : int or str, default "auto"
        Detail: 0 for one cell per GPU, 1 for hosts, 2 for NICs and rails, 3 for every link. By default as much as fits.
        With more detail, only a part of the machine is drawn, see `focus`.
    focus : str, default "all"
        The part to draw: ``"pod:2"``, ``"leaf:35"``, ``"rack:0"``, ``"node:17"``, ``"nic:7"``, ``"device:9"``, or the
        name of a host.
    devices : sequence of int, optional
        The device of every rank. By default rank r uses device r.
    ax : matplotlib.axes.Axes, optional
        The axes to draw on. By default a new figure is created.
    collective : str, optional
        The collective that causes the loads. By default send_recv for pp, all_to_all for ep, else all_reduce.
    size : int or str, default "256M"
        Message size.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    TopologyError
        If neither a mesh nor a cluster is given.
        If the group, the level of detail or the place is unknown.

    Examples
    --------
    >>> import meshlab as ml
    >>> from matplotlib.figure import Figure
    >>> ax = ml.plot.topology("dp=2, tp=8", ml.preset("dgx-h100", nodes=2), axis="dp", ax=Figure((12, 6)).add_subplot())
    >>> ax.get_title(loc="left").splitlines()[-1]
    'dp (8 groups of 2) · 2 nodes · 16 × H100 80GB · NVLink domains of 8'
    >>> "leaf 7" in [text.get_text() for text in ax.texts]
    True
    """
    view = make_view(mesh, cluster, axis, devices)
    prepared = _prepare(view, group, level, LOAD_ARGUMENTS.complete("topology", call))
    if ax is None:
        ax, place = _new_axes(prepared, new_figure, _WIDTH)
    else:
        place = _room_in(ax, prepared)
    _draw(ax, prepared, place, level, focus)
    return ax


def topology_figure(
    mesh: MeshLike | Placement | None,
    cluster: ClusterLike | None,
    *,
    axis: str | Sequence[str] | None = None,
    group: int | str | None = None,
    width: float = _WIDTH,
    **call: Unpack[LoadArguments],
) -> Figure:
    """Draw the picture of `topology` on a new figure without pyplot, as high as the machine needs."""
    from matplotlib.figure import Figure

    prepared = _prepare(make_view(mesh, cluster, axis), group, "auto", call)
    ax, place = _new_axes(prepared, Figure, width - 2 * _SIDE, narrow=width - 2 * _SIDE)
    _draw(ax, prepared, place, "auto", "all")
    figure: Figure = ax.get_figure(root=True)  # type: ignore[assignment]
    return figure


@dataclass(frozen=True, slots=True)
class _Prepared:
    """All that is drawn, before its place is known."""

    view: View
    loads: Loads | None
    picked: int | None
    caption: list[str]
    theme: Theme


class _Room(NamedTuple):
    """An arrangement, and the pixels for the machine: width, height, and the height with the legend."""

    chosen: Fit
    width: float
    room: float
    height: float


def _prepare(view: View, group: int | str | None, level: int | str, call: Mapping[str, Any]) -> _Prepared:
    if level != "auto" and level not in (0, 1, 2, 3):
        raise TopologyError(f"unknown level {level!r}", hint="choose auto, or a number from 0 (far) to 3 (near)")
    axis_loads = None
    if view.placement is not None and view.groups is not None:
        axis_loads = loads(view.placement, view.word, scene=view.scene, **call)
    picked = _members(view, group)
    return _Prepared(view, axis_loads, picked, _caption(view, axis_loads, picked), current_theme())


def _room_in(ax: Axes, prepared: _Prepared) -> _Room:
    """Set the title, and return the room in axes that the caller made."""
    reserve(ax, above=_set_title(ax, prepared.view, prepared.loads))
    figure = ax.get_figure(root=True)
    engine = None if figure is None else figure.get_layout_engine()
    if engine is not None and figure is not None:
        engine.execute(figure)
    width, height = (side / 72 * PX for side in axes_size(ax))
    room = max(height - _legend_height(prepared, width), 120.0)
    return _Room(fit(prepared.view.scene, width, room), width, room, height)


def _draw(ax: Axes, prepared: _Prepared, place: _Room, level: int | str, focus: str) -> None:
    window = _window(prepared.view, place.chosen, place.width, place.room, level, focus)
    Painter(ax, prepared.view, prepared.theme, prepared.loads, window, prepared.picked).draw()
    _draw_legend(ax, prepared, window, place.width, place.room)
    ax.set(xlim=(window.x, window.x + place.width), ylim=(window.y + place.height, window.y))


def _window(view: View, chosen: Fit, width: float, height: float, level: int | str, focus: str) -> Window:
    zoom, x, y = look_at(view.scene, chosen, focus, width, height)
    if level != "auto":
        cell = _ZOOM_OF_LEVEL[view.scene.is_rack][int(level)]
        zoom = max(1.0, cell / chosen.cell_width) if level else 1.0
        center = look_at(view.scene, chosen, "device:0" if focus == "all" else focus, width, height)
        drawn = layout(view.scene, chosen, zoom)
        before = layout(view.scene, chosen, center[0])
        x = (center[1] + width / 2) * drawn.width / before.width - width / 2
        y = (center[2] + height / 2) * drawn.height / before.height - height / 2
    drawn = layout(view.scene, chosen, zoom)
    if drawn.width <= width:
        x = (drawn.width - width) / 2
    else:
        x = min(max(x, -8.0), drawn.width - width + 8)
    if drawn.height <= height:
        y = -min((height - drawn.height) / 2, 4.0)
    else:
        y = min(max(y, -4.0), drawn.height - height + 4)
    return Window(drawn, x, y, width, height)


def _members(view: View, group: int | str | None) -> int | None:
    """Return the number of the picked group."""
    if group is None:
        return None
    if view.groups is None:
        raise TopologyError("group= needs a mesh and one of its axes", hint="pass the mesh before the cluster")
    names = view.groups.names
    number: object = names.index(group) if isinstance(group, str) and group in names else group
    if not isinstance(number, int | np.integer) or not 0 <= number < len(names):
        raise TopologyError(
            f"unknown group {group!r} of {view.word}", hint=f"choose {names[0]!r} to {names[-1]!r}, or its number"
        )
    return int(number)


def _set_title(ax: Axes, view: View, axis_loads: Loads | None) -> float:
    """Set the title, with the explanation of the axis first. Return its height in points."""
    verdict = ""
    if axis_loads is not None and view.placement is not None:
        verdict = f"{MARKS[axis_loads.state][0]} {view.placement.explain(view.word)}"
    return set_title(ax, view.title.replace(", ", SEPARATOR).split(SEPARATOR), verdict=verdict)


def _caption(view: View, axis_loads: Loads | None, picked: int | None) -> list[str]:
    """Return the sentences below the picture: the picked group, the busiest link, and what is not shown."""
    lines = [] if view.cluster is not None else ["one cell per rank, without a machine"]
    if picked is not None and view.groups is not None:
        group = view.groups[picked]
        numbers = [f"{rank:,}" for rank in group.ranks]
        ranks = ", ".join(numbers if len(numbers) <= 8 else [*numbers[:3], "…", numbers[-1]])
        lines.append(
            f"route of {group.name}: ranks {ranks}" + (f" ({len(numbers):,} ranks)" if len(numbers) > 8 else "")
        )
    link = axis_loads.of(axis_loads.limit) if axis_loads is not None else None
    if axis_loads is not None and link is not None and link.busiest is not None:
        k = link.busiest
        count = int(link.groups[k])
        lines.append(
            f"busiest link for {axis_loads.collective} of {format_size(axis_loads.size_bytes)} "
            f"({axis_loads.algorithm_words}): {link.label}, "
            f"{count:,} group{'s' * (count != 1)}, {format_size(float(link.bytes[k]))}, "
            f"{format_time_us(float(link.seconds[k]) * 1e6)}"
        )
    return lines + list(dict.fromkeys([*view.notes, *view.scene.notes]))


def _new_axes(
    prepared: _Prepared, make: Callable[[tuple[float, float]], Figure], most: float, narrow: float = _NARROW
) -> tuple[Axes, _Room]:
    """Create a figure that is as large as the picture needs."""
    chosen = fit(prepared.view.scene, most, _HEIGHT)
    drawn = layout(prepared.view.scene, chosen)
    width = min(most, max(drawn.width + 20, narrow))
    room = drawn.height + 12  # of a machine that does not fit, more than _HEIGHT
    height = room + _legend_height(prepared, width)
    full = width + 2 * _SIDE
    figure = make((full / PX, 1.0))
    ax = figure.add_axes((_SIDE / full, 0.0, width / full, 1.0))
    above = _set_title(ax, prepared.view, prepared.loads)
    set_height(ax, height / PX * 72, above=above, below=8 / PX * 72)
    return ax, _Room(chosen, width, room, height)


# -- the legend --------------------------------------------------------------------------------------------------------


def _entries(view: View, axis_loads: Loads | None) -> list[tuple[str, str]]:
    """Return the entries of the legend: a kind of swatch, and text."""
    entries = []
    if view.word:
        size = f" of {view.groups.size:,}" if view.groups is not None else ""
        noun = "group" if view.groups is not None else "domain"
        repeats = f", colours repeat after {N_GROUPS}" if view.n_groups > N_GROUPS else ""
        entries.append(("groups", f"{view.word}: {view.n_groups:,} {noun}{'s' * (view.n_groups != 1)}{size}{repeats}"))
    if (view.group_of < 0).any():
        entries.append(("idle", "no rank"))
    if view.scene.is_joined.any():
        entries.append(("nvlink", f"{view.scene.link_name} domain"))
    if axis_loads is not None and view.scene.n_nics and len(view.scene.host) > 1:
        entries.append(("load", "link, idle to busiest"))
        if axis_loads.is_conflict:
            entries.append(("conflict", f"shared, and it limits {axis_loads.axis}"))
        if any(link.groups.max(initial=0) > 1 for link in axis_loads.links):
            entries.append(("", "×N groups on one link"))
    if view.cluster is not None and view.cluster.failed:
        entries.append(("failed", "failed, or slower"))
    return entries


def _swatch_width(kind: str, view: View) -> float:
    return {"": 0.0, "groups": min(view.n_groups, N_GROUPS) * 15.0 + 3, "load": 54.0}.get(kind, 24.0)


def _legend_rows(prepared: _Prepared, width: float) -> list[list[tuple[str, str, float]]]:
    view = prepared.view
    rows: list[list[tuple[str, str, float]]] = [[]]
    x = 0.0
    for kind, text in _entries(view, prepared.loads):
        wide = _swatch_width(kind, view) + text_pixels(text)
        if rows[-1] and x + wide > width:
            rows.append([])
            x = 0.0
        rows[-1].append((kind, text, x))
        x += wide + 20
    return [row for row in rows if row]


def _caption_lines(caption: list[str], width: float) -> list[str]:
    return [line for text in caption for line in wrap_words(text, width / PX * 72, POINTS).split("\n")]


def _legend_height(prepared: _Prepared, width: float) -> float:
    lines = len(_legend_rows(prepared, width)) + len(_caption_lines(prepared.caption, width))
    return 8 + _LINE * lines + 4


def _draw_legend(ax: Axes, prepared: _Prepared, window: Window, width: float, room: float) -> None:
    from matplotlib import rcParams
    from matplotlib.patches import PathPatch

    view, theme = prepared.view, prepared.theme
    y = window.y + room + 8 + _LINE / 2
    look: Any = {"fontsize": POINTS, "va": "center_baseline", "parse_math": False}

    def box(x: float, w: float, fill: str | None, edge: str | None = None, hatch: str | None = None) -> None:
        path = rounded(np.array([[window.x + x, y - 6, w, 12.0]]), 2)
        ax.add_patch(PathPatch(path, facecolor=fill or "none", edgecolor=edge or "none", linewidth=1, hatch=hatch))

    for row in _legend_rows(prepared, width):
        for kind, text, x in row:
            if kind == "groups":
                for k in range(min(view.n_groups, N_GROUPS)):
                    box(x + 15 * k, 12, theme.resting(k))
            elif kind == "idle":
                box(x, 17, None, theme.line2)
            elif kind == "nvlink":
                box(x, 17, None, theme.nvlink)
            elif kind == "load":
                for k in range(8):
                    box(x + 6 * k, 6, theme.heat((k + 1) / 8))
            elif kind == "conflict":
                box(x, 17, theme.conflict)
                box(x, 17, None, theme.faint(theme.conflict, 0.6), "/////")
            elif kind == "failed":
                box(x, 17, None, theme.conflict)
                for ends in ((y - 3, y + 3), (y + 3, y - 3)):
                    ax.plot((window.x + x + 5, window.x + x + 12), ends, color=theme.conflict, linewidth=1.5)
            ax.text(window.x + x + _swatch_width(kind, view), y, text, color=rcParams["text.color"], **look)
        y += _LINE
    for line in _caption_lines(prepared.caption, width):
        ax.text(window.x, y, line, color=theme.ink2, **look)
        y += _LINE
