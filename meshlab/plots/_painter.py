"""The painter of the machine's picture: boxes, lines and text of a layout in the colours of a theme."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from meshlab.base._units import format_bandwidth, format_size
from meshlab.plots._failed_parts import draw_failed_parts
from meshlab.plots._style import text_width
from meshlab.plots._theme import N_GROUPS, Theme
from meshlab.topology.model._levels import Floats, Ints
from meshlab.topology.placement._layout import Label, Layout
from meshlab.topology.placement._loads import LinkLoad, Loads
from meshlab.topology.placement._route import Route, route
from meshlab.topology.placement._view import View

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PX = 96.0  # CSS pixels per inch
POINTS = 9.0  # font size in points, 12 pixels
_MOST_VECTORS = 4096  # devices; more are drawn as one image
_VEIL = 0.62
_USED_BAR = 0.25  # share of the background in the colour of an NVLink bar in use
_BASE, _CELLS, _TEXT, _SHADE, _ROUTE, _LIT, _TOP = 1, 2, 3, 5, 6, 7, 8  # orders of drawing


@dataclass(frozen=True, slots=True)
class Window:
    """The part of a layout that a figure shows."""

    drawn: Layout
    x: float
    y: float
    width: float
    height: float

    @property
    def is_whole(self) -> bool:
        """True if the window shows the complete layout."""
        return self.drawn.width <= self.width + 1 and self.drawn.height <= self.height + 1

    def shows(self, box: Floats) -> npt.NDArray[np.bool_]:
        """Return which boxes are at least partly inside."""
        x, y, w, h = (box[:, k] for k in range(4))
        return np.asarray((x + w > self.x) & (x < self.x + self.width) & (y + h > self.y) & (y < self.y + self.height))


@lru_cache(maxsize=4096)
def text_pixels(text: str, weight: str = "normal") -> float:
    """Return the width of a string in pixels."""
    return text_width(text, POINTS, weight=weight) / 72 * PX


def link_shares(loads: Loads, link: LinkLoad) -> Floats:
    """Return the time of every link relative to the slowest link of the axis."""
    most = loads.seconds
    if not math.isfinite(most) or most <= 0:  # no bandwidth is known, so compare the bytes of this kind of link
        return np.asarray(link.bytes / max(float(link.bytes.max(initial=0.0)), 1.0))
    return np.asarray(np.nan_to_num(link.seconds / most, nan=0.15))


class Painter:
    """Draws a view on axes whose data coordinates are CSS pixels."""

    def __init__(
        self, ax: Axes, view: View, theme: Theme, loads: Loads | None, window: Window, picked: int | None
    ) -> None:
        self.ax, self.view, self.scene, self.theme = ax, view, view.scene, theme
        self.loads, self.window, self.drawn, self.picked = loads, window, window.drawn, picked

    def draw(self) -> None:
        """Draw everything, from the outside in, and the picked group last."""
        self.ax.set(xticks=[], yticks=[], aspect="equal", anchor="NW")
        self.ax.spines[:].set_visible(False)
        self.ax.patch.set_visible(False)
        self._core()
        self._pods()
        self._units()
        self._rails()
        self._boxes()
        self._nics()
        self._cells()
        self._labels()
        draw_failed_parts(self)
        if self.picked is not None:
            self._group(self.picked)

    # -- primitives --

    def boxes(
        self,
        boxes: Floats,
        fill: str | None,
        edge: str | None = None,
        *,
        radius: float = 0.0,
        line: float = 1.0,
        order: float = _BASE,
        hatch: str | None = None,
        dashed: bool = False,
    ) -> None:
        """Draw boxes of one colour as a single path."""
        from matplotlib.patches import PathPatch

        inside = boxes[self.window.shows(boxes)] if not self.window.is_whole else boxes
        if not len(inside):
            return
        if inside[:, 2:].min() < 2 * radius:
            radius = 0.0
        colors = {"facecolor": fill or "none", "edgecolor": edge or "none", "hatch": hatch}
        dashes: Any = (0, (4, 3)) if dashed else "solid"
        path = rounded(inside, radius)
        self.add(PathPatch(path, linewidth=line / PX * 72, linestyle=dashes, zorder=order, **colors))

    def add(self, artist: Any) -> None:
        """Add an artist, clipped to the window."""
        # add_patch() would also compute the extent of every curve, which takes most of the time.
        self.ax.add_artist(artist)
        if not self.window.is_whole:
            artist.set_clip_path(self.clip)

    @cached_property
    def clip(self) -> Any:
        """The patch that artists are clipped to."""
        from matplotlib.patches import Rectangle

        view = self.window
        return Rectangle((view.x, view.y), view.width, view.height, transform=self.ax.transData)

    def lines(
        self,
        lines: Sequence[Any] | Floats,
        colors: str | Sequence[str],
        widths: float | Sequence[float],
        order: float = _BASE,
    ) -> None:
        """Draw polylines, with one colour and width for all or for each."""
        from matplotlib.collections import LineCollection

        if not len(lines):
            return
        scale = 72 / PX
        thick = widths * scale if isinstance(widths, int | float) else [width * scale for width in widths]
        self.add(LineCollection(list(lines), colors=colors, linewidths=thick, zorder=order, capstyle="butt"))

    def text(
        self,
        candidates: Iterable[str],
        point: tuple[float, float],
        color: str,
        *,
        room: float = math.inf,
        align: str = "left",
        bold: bool = False,
        order: float = _TEXT,
        turned: bool = False,
    ) -> bool:
        """Write the first text that fits, vertically centred on a point. Return False if none fits."""
        weight = "bold" if bold else "normal"
        text = next((text for text in candidates if text and text_pixels(text, weight) <= room), None)
        if text is None:
            return False
        (x, y), view, half = point, self.window, text_pixels(text, weight) / 2
        reach = (6.0, half) if turned else (half, 6.0)
        center = x if turned else x + {"left": half, "center": 0.0, "right": -half}[align]
        across = view.x <= center - reach[0] and center + reach[0] <= view.x + view.width
        down = view.y <= y - reach[1] + 1 and y + reach[1] <= view.y + view.height + 1
        if not (across and down):
            return False
        place: Any = {"ha": align, "va": "center_baseline"}
        if turned:
            place = {"ha": "center", "va": "center", "rotation": 90}
        self.ax.text(x, y, text, color=color, fontsize=POINTS, weight=weight, zorder=order, parse_math=False, **place)
        return True

    # -- loads --

    def share(self, name: str) -> Floats | None:
        """Return the time of every link of an array of the layout, relative to the slowest link of the axis."""
        link = self.link(name)
        return None if link is None or self.loads is None else link_shares(self.loads, link)

    def link(self, drawn_as: str) -> LinkLoad | None:
        """Return the load of an array of the layout."""
        if self.loads is None:
            return None
        return next((link for link in self.loads.links if link.drawn_as == drawn_as and link.name != "host"), None)

    def is_limit(self, drawn_as: str) -> bool:
        """Return whether the links of an array limit the axis because groups share them."""
        link = self.link(drawn_as)
        return self.loads is not None and link is not None and self.loads.is_conflict and link.name == self.loads.limit

    def heat(self, share: float, drawn_as: str) -> str:
        """Return the colour of a link from its share in the time of the slowest one."""
        return self.theme.conflict if share >= 0.999 and self.is_limit(drawn_as) else self.theme.heat(share)

    # -- from the outside in --

    def _core(self) -> None:
        drawn, theme = self.drawn, self.theme
        if not len(drawn.core):
            return
        self.boxes(drawn.core_riser, theme.cell, theme.line2, radius=3)
        self.boxes(drawn.core, theme.cell, theme.line2, radius=3)
        share, link = self.share("pod"), self.link("pod")
        exits = {label.index: label for label in drawn.labels if label.kind == "exit"}
        for pod, (x, top, bottom, neck, base) in enumerate(drawn.funnel.tolist()):
            slim = max(neck, 3) / 2
            load = 0.0 if share is None else float(share[pod])
            color = self.heat(load, "pod") if load else theme.cell
            edge = color if load else theme.line2
            top_half, bottom_half = [(-slim, top), (slim, top)], [(base / 2, bottom), (-base / 2, bottom)]
            corners = [*top_half, (slim, top + 6), *bottom_half, (-slim, top + 6)]
            outline = [(x + shift, y) for shift, y in corners]
            limits = load >= 0.999 and self.is_limit("pod")
            self._polygon(outline, color, edge, theme.faint(theme.conflict, 0.6) if limits else None)
            if load and link is not None and pod in exits:
                count = f"×{int(link.groups[pod]):,}"
                words = [f"■ {count}", count] if limits else [count]
                self._label(exits[pod], words, theme.conflict if limits else theme.ink2, bold=limits)

    def _polygon(self, points: list[tuple[float, float]], fill: str, edge: str, hatch: str | None) -> None:
        from matplotlib.patches import Polygon

        self.add(Polygon(points, closed=True, facecolor=fill, edgecolor=edge, linewidth=0.75, zorder=_BASE))
        if hatch is not None:
            shape = Polygon(points, closed=True, facecolor="none", edgecolor=hatch, linewidth=0, zorder=_BASE + 0.1)
            shape.set_hatch("/////")
            self.add(shape)

    def _pods(self) -> None:
        drawn, theme = self.drawn, self.theme
        if len(drawn.pod) > 1:
            self.boxes(drawn.pod, theme.panel, theme.line2, radius=6)
        self.boxes(drawn.spine, theme.cell, theme.line2, radius=2)
        if not len(drawn.uplink):
            return
        share = self._unit_share()
        wide = 4.0 if self.drawn.detail else 2.5
        self.lines(
            drawn.uplink.reshape(-1, 3, 2),
            [self.heat(load, self._unit_link()) for load in share],
            [1 + (wide - 1) * math.sqrt(min(load, 1)) for load in share],
        )

    def _unit_link(self) -> str:
        return "unit" if self.link("unit") is not None else "leaf"

    def _unit_share(self) -> list[float]:
        """Return the load of the uplinks of every unit; of its leaf switches if these are its only uplinks."""
        units = len(self.scene.unit_id)
        share = self.share(self._unit_link())
        if share is None:
            return [0.0] * units
        return share.reshape(units, -1).max(axis=1).tolist()  # type: ignore[no-any-return]

    def _units(self) -> None:
        drawn, theme, scene = self.drawn, self.theme, self.scene
        if scene.network != "none":
            is_tiny = drawn.unit[0, 2] < 30  # outlines of very many units would hide them
            edge = None if is_tiny else theme.line if drawn.detail == 0 else theme.line2
            self.boxes(drawn.unit, None, edge, radius=4)
        if scene.network == "unknown":
            self.boxes(drawn.leaf, None, theme.line2, radius=3, dashed=True)
            for x, y, width, height in drawn.leaf.tolist():
                if width >= 14:
                    words = ["network not described", "not described", "unknown"]
                    self.text(words, (x + width / 2, y + height / 2), theme.ink2, room=height - 8, turned=True)
            return
        if not len(drawn.leaf):
            return
        up, below = self.share("leaf"), self._rail_share()
        colors = []
        for k in range(len(drawn.leaf)):
            load = 0.0 if up is None else float(up[k])
            if load:
                colors.append(self.heat(load, "leaf"))
            else:
                colors.append(theme.faint(theme.load, 0.3) if below[k] else theme.cell)
        for color in set(colors):
            leaves = drawn.leaf[[shade == color for shade in colors]]
            self.boxes(leaves, color, theme.line2 if drawn.leaf[0, 2] > 4 else None, radius=2, order=_CELLS)
        if self.is_limit("leaf") and up is not None:
            hatch = theme.faint(theme.conflict, 0.6)
            self.boxes(drawn.leaf[up >= 0.999], None, hatch, hatch="/////", line=0, order=_CELLS + 0.1)
        lit_leaves = set(self._route.leaves.tolist())  # the texts of a picked group are written over the veil instead
        for k in range(len(drawn.leaf)):
            if k not in lit_leaves:
                self._name_leaf(k, theme.text_on(colors[k]))

    def _name_leaf(self, k: int, color: str, **style: Any) -> None:
        (x, y, width, height), rails = self.drawn.leaf[k].tolist(), self.scene.rails
        if height >= 12 and width >= 18:
            names = [f"leaf {k % rails}", f"L{k % rails}"] if rails > 1 else ["leaf"]
            self.text(names, (x + width / 2, y + height / 2), color, room=width - 4, align="center", **style)

    def _rail_share(self) -> Floats:
        """Return the largest load of the NICs of every rail."""
        scene = self.scene
        share = self.share("nic")
        largest = np.zeros(len(scene.unit_id) * max(scene.rails, 1))
        if share is None or not scene.rails:
            return largest
        unit = scene.unit_of[scene.box_of]
        for index, kind in enumerate(scene.kinds):
            where = np.flatnonzero(scene.kind_of == index)
            for nic in np.flatnonzero(kind.nic_rail >= 0).tolist():
                loads = share[scene.first_nic[where] + nic]
                np.maximum.at(largest, unit[where] * scene.rails + int(kind.nic_rail[nic]), loads)
        return largest

    def _rails(self) -> None:
        drawn, scene = self.drawn, self.scene
        if not len(drawn.rail) or not (drawn.detail >= 2 or (scene.is_rack and drawn.detail == 1)):
            return
        share = self._rail_share()
        rows = len(drawn.rail) // len(share)
        of_line = np.repeat(share.reshape(-1, 1, scene.rails), rows, axis=1).ravel().tolist()
        self.lines(
            drawn.rail.reshape(-1, 3, 2),
            [self.heat(load, "nic") for load in of_line],
            [1 + 2 * math.sqrt(min(load, 1)) for load in of_line],
            _CELLS - 0.5,
        )
        nic = self.share("nic")
        seen = np.isfinite(drawn.drop[:, 0])
        loads = [0.0] * int(seen.sum()) if nic is None else nic[seen].tolist()
        self.lines(
            drawn.drop[seen].reshape(-1, 3, 2),
            [self.heat(load, "nic") for load in loads],
            [1 + 1.5 * math.sqrt(min(load, 1)) for load in loads],
            _CELLS - 0.4,
        )
        if scene.is_rack:
            ends = drawn.drop[seen][:, 4:6]
            dots = np.column_stack([ends - 2, np.full((len(ends), 2), 4.0)])
            for color in {self.heat(load, "nic") for load in loads}:
                is_color = [self.heat(load, "nic") == color for load in loads]
                self.boxes(dots[is_color], color, radius=2, order=_CELLS - 0.3)

    def _boxes(self) -> None:
        drawn, theme, scene = self.drawn, self.theme, self.scene
        joined = scene.is_joined > 0
        if drawn.detail >= 1 or scene.is_rack:
            pad = np.array([-2.0, 0.0, 4.0, 3.0])
            fill = theme.panel if drawn.detail >= 2 else None
            quiet = drawn.detail == 1 and not scene.is_rack
            radius, line = (5, 1.5) if drawn.detail >= 2 else (2, 1)
            edge = theme.faint(theme.nvlink, 0.6) if quiet else theme.nvlink
            self.boxes(drawn.box[joined] + pad, fill, edge, radius=radius, line=line)
            self.boxes(drawn.box[~joined] + pad, fill, theme.line if quiet else theme.line2, radius=radius)
        link = self.link("device")
        is_used = np.zeros(len(drawn.bar), dtype=bool)
        busy: npt.NDArray[np.bool_] = np.zeros(scene.n_devices, dtype=bool) if link is None else link.bytes > 0
        if scene.is_rack:
            of_box = np.bincount(scene.box_of[self._host_of], weights=busy, minlength=len(scene.unit_of)) > 0
            is_used = of_box[: len(is_used)] if len(drawn.bar) else is_used
            for slot in _tray_slots(drawn.tray):
                self.boxes(slot, theme.faint(theme.nvlink, 0.45), order=_CELLS)
            if drawn.detail >= 2:
                self._name_trays()
        elif len(drawn.bar):
            key = self._host_of * 64 + np.concatenate([[0], self._set_of])[1:]
            is_used = np.isin(drawn.bar_host * 64 + drawn.bar_set, key[busy])
        for state in (False, True):
            color = theme.faint(theme.nvlink, _USED_BAR if state else 0.7)
            self.boxes(drawn.bar[is_used == state], color, radius=3, order=_CELLS)
        if drawn.detail >= 3:
            for k, (x, y, width, height) in enumerate(drawn.bar.tolist()):
                kind = scene.kinds[scene.kind_of[drawn.bar_host[k]]]
                word = "NVSwitch" if kind.has_switch else kind.link_name
                rate = "" if math.isnan(kind.nvlink_gbs) else f" · {format_bandwidth(kind.nvlink_gbs)} {kind.rate_of}"
                color = theme.text_on(theme.faint(theme.nvlink, _USED_BAR if is_used[k] else 0.7))
                self.text([word + rate, word], (x + width / 2, y + height / 2), color, room=height - 8, turned=True)
        if drawn.detail >= 2 and not scene.is_rack:
            self._stubs(busy)

    def _blank_bars(self, picked_route: Route) -> None:
        """Hide the names of the NVLink bars that a route covers."""
        # The colour of a bar in use, seen through the veil.
        bar, fill = self.drawn.bar, self.theme.faint(self.theme.nvlink, 1 - (1 - _USED_BAR) * (1 - _VEIL))
        if self.drawn.detail < 3 or not len(bar):
            return
        points = [stretch.points[0] for stretch in picked_route.stretches if stretch.kind == "nvlink"]
        starts = np.array(points).reshape(-1, 1, 2)
        inside = ((starts >= bar[:, :2]) & (starts <= bar[:, :2] + bar[:, 2:])).all(axis=2).any(axis=0)
        self.boxes(bar[inside], fill, radius=3, order=_ROUTE - 0.1)

    def _name_trays(self) -> None:
        theme = self.theme
        for x, y, width, height in self.drawn.tray.tolist():
            words = "NVSwitch trays"
            wide = text_pixels(words) + 16
            if height > 24 and wide < width:
                label = np.array([[x + (width - wide) / 2, y + height / 2 - 9, wide, 18]])
                self.boxes(label, theme.panel, radius=3, order=_CELLS + 0.2)
                self.text([words], (x + width / 2, y + height / 2), theme.ink, align="center")

    @cached_property
    def _host_of(self) -> npt.NDArray[np.intp]:
        """The host of every device, in the order of drawing."""
        scene = self.scene
        hosts = np.zeros(scene.n_devices, dtype=np.intp)
        for index, kind in enumerate(scene.kinds):
            where = np.flatnonzero(scene.kind_of == index)
            hosts[scene.first_device[where][:, None] + np.arange(kind.devices)] = where[:, None]
        return hosts

    @cached_property
    def _set_of(self) -> Ints:
        scene = self.scene
        most = max(max(kind.devices for kind in scene.kinds), 1)
        table = np.full((len(scene.kinds), most), -1, dtype=np.int32)
        for index, kind in enumerate(scene.kinds):
            table[index, : kind.devices] = kind.set_of
        local = np.arange(scene.n_devices) - scene.first_device[self._host_of]
        return np.asarray(table[scene.kind_of[self._host_of], local])

    def _stubs(self, busy: npt.NDArray[np.bool_]) -> None:
        """Draw the lines from NVLink bars to devices."""
        drawn, theme = self.drawn, self.theme
        if not len(drawn.bar):
            return
        ends = {
            (host, number): x + width
            for (x, _, width, _), host, number in zip(
                drawn.bar.tolist(), drawn.bar_host.tolist(), drawn.bar_set.tolist(), strict=True
            )
        }
        quiet: list[Any] = []
        lively: list[Any] = []
        keys = zip(self._host_of.tolist(), self._set_of.tolist(), strict=True)
        for device, key in enumerate(keys):
            if key not in ends:
                continue
            x, y, _, height = drawn.device[device].tolist()
            line = ((ends[key], y + height / 2), (x + 1, y + height / 2))
            (lively if busy[device] else quiet).append(line)
        self.lines(quiet, theme.faint(theme.nvlink, 0.7), 1.5, _CELLS)
        self.lines(lively, theme.faint(theme.nvlink, 0.2), 4, _CELLS)

    def _nics(self) -> None:
        drawn, theme, scene = self.drawn, self.theme, self.scene
        if not len(drawn.nic):
            return
        share, link = self.share("nic"), self.link("nic")
        loads = np.zeros(len(drawn.nic)) if share is None else share
        if not scene.is_rack:
            # A line turns halfway to its NIC, so that the lines of neighbouring devices stay parallel.
            lines, colors, widths = [], [], []
            for host in range(len(scene.host)):
                kind = scene.kinds[scene.kind_of[host]]
                for device, nic in kind.near.tolist():
                    at, number = scene.first_device[host] + device, scene.first_nic[host] + nic
                    x, y, width, height = drawn.device[at].tolist()
                    left, top, _, tall = drawn.nic[number].tolist()
                    turn, level, middle = (x + width + left) / 2, y + height / 2, top + tall / 2
                    lines.append([(x + width - 1, level), (turn, level), (turn, middle), (left, middle)])
                    colors.append(self.heat(float(loads[number]), "nic"))
                    widths.append(2.0 if loads[number] else 1.0)
            self.lines(lines, colors, widths, _CELLS - 0.2)
        colors = [self.heat(load, "nic") if load else theme.cell for load in loads.tolist()]
        for color in set(colors):
            is_color = np.array([shade == color for shade in colors])
            edge = theme.line2 if color == theme.cell else None
            self.boxes(drawn.nic[is_color], color, edge, radius=2, order=_CELLS + 0.2)
        shared = np.zeros(len(loads), dtype=bool)
        if self.is_limit("nic") and link is not None:
            shared = (loads >= 0.999) & (link.groups > 1)
            hatch = theme.faint(theme.conflict, 0.45)
            self.boxes(drawn.nic[shared], None, hatch, line=0, hatch="//////", order=_CELLS + 0.3)
        if scene.is_rack:
            return
        lit_nics = set(self._route.nics.tolist())
        for number, (x, y, width, height) in enumerate(drawn.nic.tolist()):
            count = 0 if link is None else int(link.groups[number])
            if number in lit_nics:
                continue
            plate = colors[number] if shared[number] else None
            self._name_nic(count, [x, y, width, height], theme.text_on(colors[number]), plate=plate)
            if link is not None and loads[number] and drawn.detail >= 3:
                room = width + 8 if scene.kinds[0].nic_space == 1 else 0
                size = format_size(float(link.bytes[number]))
                self.text([size], (x + width, y - 8), theme.ink2, room=room, align="right")

    def _name_nic(
        self, count: int, box: list[float], color: str, *, plate: str | None = None, order: float = _TEXT
    ) -> None:
        x, y, width, height = box
        if height < 13 or width < 18:
            return
        words = [f"×{count}"] if count > 1 else ["NIC"] if width >= 26 else []
        if plate is not None and words:  # a plain ground for text on a hatched box
            wide = min(text_pixels(words[0], "bold") + 4, width)
            ground = np.array([[x + (width - wide) / 2, y + 1, wide, height - 2]])
            self.boxes(ground, plate, radius=2, order=_CELLS + 0.4)
        point = x + width / 2, y + height / 2
        self.text(words, point, color, room=width, align="center", bold=count > 1, order=order)

    # -- devices --

    def _cell_boxes(self) -> Floats:
        """Return the boxes of devices as they are painted, with a seam between them."""
        drawn = self.drawn
        box = drawn.device.copy()
        if drawn.detail >= 2:
            pad = min(4.0, drawn.cell_height * 0.1)
            box += [0, pad, 0, -2 * pad]
            if self.scene.is_rack:
                box += [2, 0, -4, 0]
        elif drawn.cell_height > 4:
            seam = 0.5 if drawn.detail == 0 else 1.0
            box += [0, seam / 2, -(1.0 if self.scene.is_rack and drawn.detail else 0), -seam]
        return box

    def _cells(self) -> None:
        drawn, theme, view = self.drawn, self.theme, self.view
        group = view.group_of
        box = self._cell_boxes()
        if len(box) > _MOST_VECTORS and self.window.is_whole:
            self._image(box)
            return
        radius = 3.0 if drawn.detail >= 1 else 0.0
        for k in range(N_GROUPS):
            self.boxes(box[(group >= 0) & (group % N_GROUPS == k)], theme.resting(k), radius=radius, order=_CELLS)
        idle = box[group < 0] + np.array([0.5, 0.5, -1.0, -1.0])
        self.boxes(idle, None, theme.line2 if drawn.detail else theme.line, radius=radius, order=_CELLS)
        devices = np.setdiff1d(np.flatnonzero(self.window.shows(box)), self._lit)
        if drawn.cell_width < 22 or drawn.cell_height < 13:
            return
        for device in devices.tolist():
            number = int(group[device])
            ground = theme.resting(number) if number >= 0 else None
            color = theme.text_on(ground) if ground else theme.ink2
            self._name_device(device, box[device].tolist(), color)

    def _name_device(self, device: int, box: list[float], color: str, order: float = _TEXT) -> None:
        """Write the rank in bold, and the group below it if there is room."""
        x, y, width, height = box
        if width < 22 or height < 13 or not self._has_names:
            return
        middle = y + height / 2
        rank, group = int(self.view.rank_of[device]), int(self.view.group_of[device])
        first = self._names_of(device, rank)[self._form(width) :]
        if height >= 34 and width >= 44:
            second = [self.view.name_of(group), f"{group:,}"] if group >= 0 else ["no rank"]
            self.text(first, (x + 7, middle - 8), color, room=width - 12, bold=True, order=order)
            self.text(second, (x + 7, middle + 8), color, room=width - 12, order=order)
        else:
            point = x + width / 2, middle
            self.text(first[-1:], point, color, room=width - 2, align="center", bold=True, order=order)

    def _names_of(self, device: int, rank: int) -> list[str]:
        """Return the names of a device, the longest first."""
        name = self._device_name(device)
        if rank < 0:
            return [name, name, name[4:]]
        return [f"{name} · rank {rank:,}" if self.view.cluster else f"rank {rank:,}", f"rank {rank:,}", f"{rank:,}"]

    @cached_property
    def _has_names(self) -> bool:
        """Whether the shortest names of all devices fit, so that not only some have one."""
        last = self._names_of(self.scene.n_devices - 1, int(self.view.rank_of.max(initial=-1)))[-1]
        room = float(self._cell_boxes()[0, 2]) if self.scene.n_devices else 0.0
        return text_pixels(last, "bold") <= room - 2

    @lru_cache(maxsize=8)  # noqa: B019  (a painter lives as long as its figure is drawn)
    def _form(self, width: float) -> int:
        """Return which of the names fits in all devices, so that they look alike."""
        last = int(self.view.rank_of.max(initial=-1))
        names = self._names_of(self.scene.n_devices - 1, last)
        return next((k for k, name in enumerate(names) if text_pixels(name, "bold") <= width - 12), len(names) - 1)

    def _device_name(self, device: int) -> str:
        cluster = self.view.cluster
        if cluster is None:
            return f"rank {device}"
        node, local = cluster.locate(device)
        model = cluster.templates[cluster.kinds[node]].devices[local]
        return f"{'CPU' if model.backend == 'cpu' else 'GPU'} {model.id}"

    def _image(self, box: Floats) -> None:
        """Draw very many devices as one image with two pixels per CSS pixel."""
        from matplotlib.colors import to_rgb

        drawn, theme, group = self.drawn, self.theme, self.view.group_of
        high, wide = math.ceil(drawn.height * 2) + 1, math.ceil(drawn.width * 2) + 1
        image = np.zeros((high, wide, 4), dtype=np.uint8)
        # The background shows through by a quarter, so the same image suits a light and a dark page.
        palette = np.array([[*(round(v * 255) for v in to_rgb(color)), 191] for color in theme.groups], dtype=np.uint8)
        idle = np.array([*(round(v * 255) for v in to_rgb(theme.line2)), 90], dtype=np.uint8)
        color = np.where((group >= 0)[:, None], palette[group % N_GROUPS], idle)
        x, y = (np.floor(box[:, k] * 2 + 0.5).astype(int) for k in (0, 1))
        across, down = (max(1, math.floor(float(box[0, k]) * 2 + 0.5)) for k in (2, 3))
        for dy in range(down):
            for dx in range(across):
                image[y + dy, x + dx] = color
        picture = self.ax.imshow(
            image, extent=(0, wide / 2, high / 2, 0), interpolation="nearest", aspect="equal", zorder=_CELLS
        )
        picture.set_clip_on(False)

    # -- text --

    def _label(self, slot: Label, words: Sequence[str], color: str, *, bold: bool = False) -> bool:
        """Write into the part of a slot that is inside the window."""
        left = max(slot.x, self.window.x + 6)
        right = min(slot.x + slot.width, self.window.x + self.window.width - 4)
        point = left if slot.align == "left" else right, slot.y + slot.height / 2
        return self.text(words, point, color, room=right - left, align=slot.align, bold=bold)

    def _labels(self) -> None:
        scene, theme, drawn = self.scene, self.theme, self.drawn
        hosts, gpus = self._counts()
        taper = f" · 1:{scene.taper:g} oversubscribed" if scene.taper > 1 else ""
        share, link = self._unit_share(), self.link(self._unit_link())
        for label in drawn.labels:
            k = label.index
            if label.kind == "core":
                pods = f"{len(scene.pod_id)} {scene.pod_word}s"
                self._label(label, [f"{scene.top_word} · {pods}{taper}", scene.top_word], theme.ink2)
            elif label.kind == "pod":
                name = f"{scene.pod_word} {scene.pod_id[k]}" if scene.pod_word else scene.top_word
                sizes = f"{hosts[0][k]:,} hosts · {gpus[k]:,} GPUs"
                more = taper if not scene.pod_word else ""
                self._label(label, [f"{name} · {sizes}{more}", f"{name} · {sizes}", name], theme.ink, bold=True)
            elif label.kind == "unit":
                self._label(label, self._unit_names(k, hosts[1]), theme.ink2)
            elif label.kind == "box":
                color = theme.ink if drawn.detail >= 3 else theme.ink2
                self._label(label, self._box_names(k), color, bold=drawn.detail >= 3)
            elif label.kind == "up" and share[k] and link is not None:
                count = int(link.groups.reshape(len(scene.unit_id), -1)[k].max())
                self._label(label, [f"↑ ×{count:,}"], theme.ink2)

    def _counts(self) -> tuple[tuple[list[int], list[int]], list[int]]:
        """Return the hosts of every pod and unit, and the devices of every pod."""
        scene = self.scene
        unit = scene.unit_of[scene.box_of]
        pod = scene.pod_of[unit]
        devices = np.array([kind.devices for kind in scene.kinds])[scene.kind_of]
        gpus = np.bincount(pod, weights=devices).astype(int).tolist()
        return (np.bincount(pod).tolist(), np.bincount(unit).tolist()), gpus

    def _unit_names(self, k: int, sizes: list[int]) -> list[str]:
        scene = self.scene
        first = int(np.searchsorted(scene.unit_of[scene.box_of], k))
        last = first + sizes[k] - 1
        hosts = scene.names[first] if first == last else f"{scene.names[first]} – {scene.names[last]}"
        if scene.network == "unknown":
            return [f"{hosts} · network not described", hosts, "network not described"]
        rails = f" · {scene.rails} rails" if scene.rails > 1 else ""
        name = f"{scene.unit_word} {scene.unit_id[k]}" if len(scene.unit_id) > 1 else f"{scene.unit_word} switches"
        return [f"{name} · {hosts}{rails}", f"{name} · {hosts}", f"{name}{rails}", name]

    def _box_names(self, k: int) -> list[str]:
        scene = self.scene
        first = int(np.searchsorted(scene.box_of, k))
        if scene.is_rack:
            devices = int(np.count_nonzero(scene.box_of[self._host_of] == k))
            return [f"rack {k} · NVLink domain of {devices}", f"rack {k}"]
        name = scene.names[first]
        return [f"{name} · {scene.link_name} domain", name] if scene.is_joined[k] else [name]

    # -- one group --

    def _group(self, picked: int) -> None:
        """Draw the route of a group over a veil."""
        drawn, theme, scene, devices = self.drawn, self.theme, self.scene, self._lit
        from matplotlib import rcParams
        from matplotlib.patches import Rectangle

        window = self.window
        paper = rcParams["figure.facecolor"]
        look: Any = {"facecolor": paper, "edgecolor": "none", "alpha": _VEIL, "zorder": _SHADE}
        self.ax.add_patch(Rectangle((window.x, window.y), window.width, window.height, **look))
        picked_route, stretches = self._route, self._route.stretches
        limit = self._limit_kinds()
        thick = 5.0 if drawn.detail >= 3 else 3.0 if drawn.detail else min(max(drawn.cell_height * 0.24, 1.5), 3.0)
        # Uplinks of neighbouring units are close together, and must not merge.
        lanes = np.diff(np.unique(drawn.uplink[:, 4]))
        slim = min(thick, max(1.0, 0.6 * float(lanes.min(initial=thick))))
        self._blank_bars(picked_route)
        lines = [stretch.points for stretch in stretches]
        widths = [slim if stretch.kind == "up" else thick for stretch in stretches]
        colors = [theme.conflict if stretch.kind in limit else theme.accent for stretch in stretches]
        halo = [width + 2.5 if width == thick else width for width in widths]
        self.lines(lines, paper, halo, _ROUTE)
        self.lines(lines, colors, widths, _ROUTE + 0.1)
        is_known = scene.network == "known"
        if is_known:
            self.boxes(drawn.leaf[picked_route.leaves], theme.accent, radius=2, order=_LIT)
            for k in picked_route.leaves.tolist():
                self._name_leaf(k, theme.text_on(theme.accent), bold=True, order=_TOP)
        else:
            self.boxes(drawn.leaf[picked_route.leaves], None, theme.accent, radius=3, dashed=True, line=2, order=_LIT)
        if len(drawn.nic):
            color = theme.conflict if "nic" in limit else theme.accent
            self.boxes(drawn.nic[picked_route.nics], color, paper, radius=2, order=_LIT)
            link = self.link("nic")
            for number in [] if scene.is_rack else picked_route.nics.tolist():
                count = 0 if link is None else int(link.groups[number])
                self._name_nic(count, drawn.nic[number].tolist(), theme.text_on(color), order=_TOP)
        color = theme.groups[picked % N_GROUPS]
        box = self._cell_boxes()[devices]
        if drawn.detail == 0:
            grow = np.maximum(3.0 - box[:, 2:], 0)
            box = np.column_stack([box[:, :2] - grow / 2, box[:, 2:] + grow])
        self.boxes(box, color, paper if drawn.detail else None, radius=3 if drawn.detail else 0, order=_LIT)
        for device, place in zip(devices.tolist(), box.tolist(), strict=True):
            self._name_device(device, place, theme.text_on(color), _TOP)

    @cached_property
    def _lit(self) -> Ints:
        """The devices of the picked group."""
        if self.picked is None or self.view.groups is None:
            return np.zeros(0, dtype=np.int32)
        ranks = self.view.groups.array[self.picked]
        return np.asarray(ranks if self.view.placement is None else self.view.placement.devices[ranks], dtype=np.int32)

    @cached_property
    def _route(self) -> Route:
        if self.view.cluster is None or self.picked is None:
            none = np.zeros(0, dtype=np.int32)
            return Route((), none, none, none)
        climbs = bool(self.loads.climbs[self.picked]) if self.loads is not None else False
        return route(self.scene, self.drawn, self._lit, climbs)

    def _limit_kinds(self) -> tuple[str, ...]:
        """Return the kinds of stretches that are in conflict."""
        if self.loads is None or not self.loads.is_conflict:
            return ()
        link = self.loads.of(self.loads.limit)
        drawn_as = "" if link is None else link.drawn_as
        kinds = {"nic": ("nic", "rail"), "leaf": ("up",), "unit": ("up",), "pod": ("core",)}
        return kinds.get(drawn_as, ())


def rounded(boxes: Floats, radius: float) -> Any:
    """Return boxes as one path, with rounded corners."""
    from matplotlib.path import Path

    x0, y0, w, h = boxes.T
    x1, y1 = x0 + w, y0 + h
    if radius <= 0:
        points = np.stack([x0, y0, x1, y0, x1, y1, x0, y1, x0, y0], axis=1).reshape(-1, 5, 2)
        codes = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY]
    else:
        r = np.minimum(radius, np.minimum(w, h) / 2)
        # One side after the other: where it starts and ends, and the corner, which controls the curve to the next side.
        sides = [
            *(x0 + r, y0, x1 - r, y0, x1, y0),
            *(x1, y0 + r, x1, y1 - r, x1, y1),
            *(x1 - r, y1, x0 + r, y1, x0, y1),
            *(x0, y1 - r, x0, y0 + r, x0, y0),
            *(x0 + r, y0, x0 + r, y0),
        ]
        points = np.stack(sides, axis=1).reshape(-1, 14, 2)
        corner = [Path.LINETO, Path.CURVE3, Path.CURVE3]
        codes = [Path.MOVETO, *corner, *corner, *corner, *corner, Path.CLOSEPOLY]
    return Path(points.reshape(-1, 2), np.tile(np.array(codes, dtype=np.uint8), len(boxes)))


def _tray_slots(tray: Floats, count: int = 9) -> Iterable[Floats]:
    """Return the switch trays of racks as slots, one above the other."""
    for k in range(count):
        slot = tray.copy()
        slot[:, 1] += 2 + k * (tray[:, 3] - 4) / count
        slot[:, 3] = np.maximum((tray[:, 3] - 4) / count - 1, 0.6)
        yield slot
