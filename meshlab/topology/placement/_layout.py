"""Layout: the place of every box and line of a scene, in CSS pixels. `widgets/js/layout.js` computes the same.

A browser computes it again for every frame of a zoom and every width of the window, also in a saved page without
Python: the boxes of 16,384 GPUs are 0.35 to 1 MB for one zoom. `layout_facts` returns all that depends on neither.

GPUs go down and rails go across, so NVLink is vertical and a rail is horizontal. The layout depends on the machine, the
size of the figure and the zoom, and never on the mesh: two meshes can be compared by switching between them.

Only additions, products, square roots and rounding are used, because other functions differ between languages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from meshlab.base._errors import TopologyError
from meshlab.topology.model._levels import Floats, Ints
from meshlab.topology.placement._scene import Scene

_Numbers = npt.NDArray[np.floating[Any]]

_MARGIN = 20  # free pixels of the figure, both sides together
_STEPS = 14  # of a bisection

_DETAILS = {"rack": (7, 26, 60), "host": (9, 46, 130)}
"""Widths of a cell from which on there are hosts, then NICs and rails, then text at every link."""

_LARGEST = {"rack": (150.0, 46.0), "host": (250.0, 60.0)}
"""Largest width and height of a cell."""

_LENGTHS = {
    "gap": (0.16, 1.5, 6), "near_gap": (0.14, 8, 30), "rack_gap": (0.6, 3, 40),
    "strip": (0.8, 3, 92), "long_strip": (0.8, 6, 92), "unit_pad": (0.14, 1, 10),
    "unit_gap": (0.5, 3, 28), "fine_unit_gap": (0.5, 2, 28), "lane": (0.3, 1.5, 9),
    "pod_head": (1.2, 28, 54), "pod_gap": (1.2, 12, 60), "core": (1.4, 46, 76),
    "bar": (0.17, 10, 18), "nic": (0.25, 8, 30),
    "near_nic": (0.19, 26, 52), "nic_margin": (0.05, 2, 7), "device_pad": (0.07, 4, 16),
    "rack_nic": (0.14, 5, 14), "rack_port": (0.5, 5, 15), "rack_rail": (0.8, 5, 20),
    "spine": (0.24, 5, 12), "exit": (0.2, 30, 120),
}  # fmt: skip  # as a table
"""Share in the room that a host has, least and most pixels. Shares in the height of a cell for rack_port and rack_rail,
in the head of a pod for spine, and in its width for exit."""


class Fit(NamedTuple):
    """The arrangement that fits a size: pixels of a cell, and how many pods, units and boxes are in a row."""

    cell_width: float
    cell_height: float
    pods: int
    units: int
    boxes: int
    dpr: float


@dataclass(frozen=True, slots=True)
class Label:
    """Free space for one line of text. `kind` is core, pod, unit, box, exit (of a pod) or up (of a unit)."""

    kind: str
    index: int
    x: float
    y: float
    width: float
    height: float
    align: str


class _Shape(NamedTuple):
    """The largest counts of a scene."""

    is_rack: bool
    rows: int  # devices of a column, or hosts of a rack
    across: int  # columns of a host, or devices of a tray
    boxes: int  # of a unit
    units: int  # of a pod
    pods: int
    all_units: int
    nics: int
    lanes: int
    rails: int
    network: str
    taper: float


class _Sizes(NamedTuple):
    """All lengths that follow from the size of a cell."""

    detail: int
    gap: float
    head: float
    nvlink: float
    switches: float
    nic_width: float
    box_width: float
    box_height: float
    rail_height: float
    strip: float
    unit_head: float
    unit_pad: float
    unit_rows: int
    row_gap: float
    unit_width: float
    unit_height: float
    gutter: float
    unit_gap: float
    pod_head: float
    pod_pad: float
    pod_rows: int
    pod_width: float
    pod_height: float
    core: float
    pod_gap: float
    left: float
    width: float
    height: float


@dataclass(frozen=True, eq=False)
class Layout:
    """Boxes and lines. Boxes have the shape (n, 4): x, y, width and height. Lines have x0, y0, x1 and y1."""

    width: float  # of the drawing, which is larger than the figure after zooming in
    height: float
    cell_width: float
    cell_height: float
    detail: int  # 0: one cell per device, 1: hosts, 2: NICs and rails, 3: every link has text
    boxes_across: int  # boxes in a row of a unit
    # Boxes of the devices and NICs (in the order of the cluster), hosts, boxes, units, leaf switches (unit by unit),
    # pods, spines, and core switches (one per row of pods). Without detail 2 there are no boxes of NICs.
    device: Floats
    nic: Floats
    host: Floats
    box: Floats
    unit: Floats
    leaf: Floats
    pod: Floats
    spine: Floats
    core: Floats
    # Exits of pods, of shape (pods, 5): centre, upper y, lower y, upper and lower width. The ratio of the widths is the
    # oversubscription.
    funnel: Floats
    core_riser: Floats  # box that joins the rows of the core, of shape (0 or 1, 4)
    bar: Floats  # boxes of NVLink
    # Host of each bar (its first host in a rack), and its NVLink set (-1 for the domain of a rack).
    bar_host: Ints
    bar_set: Ints
    tray: Floats  # boxes of the NVSwitch trays of racks
    rail: Floats  # lines of the rails, one per unit, row of boxes and rail, in this order
    drop: Floats  # lines from each NIC to its rail, of shape (nics, 6): three points. NaN for a NIC without a rail.
    uplink: Floats  # lines from each unit to its spine, of shape (units, 6): three points
    riser: Floats  # vertical lines that join the leaf switches of each unit
    labels: tuple[Label, ...]  # free spaces for text. They do not overlap.

    def boxes(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return all arrays by name."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, np.ndarray)}


def fit(scene: Scene, width: float, height: float, dpr: float = 1.0) -> Fit:
    """Choose the arrangement with the largest cells that fits a figure of `width` × `height` CSS pixels."""
    # Small cells are a whole number of device pixels, `dpr` per CSS pixel, so that columns are equally wide.
    shape = _shape(scene)
    best, chosen = -math.inf, None
    # A cell scores three times its smaller side plus the root of its area, because text needs width and height. Lengths
    # are clamped, so there is no closed form, and all arrangements are compared.
    for pods, units, boxes, worth in _arrangements(shape):
        cw = _widest(shape, width, pods, units, boxes, dpr)
        tallest = cw * 3.4 + 2
        # With the largest height this arrangement could not win either, so save the second bisection.
        if (min(cw * 1.8, tallest) * 3 + math.sqrt(cw * tallest)) * worth <= best:
            continue
        cw, ch = _tallest(shape, height, cw, pods, units, boxes, dpr)
        size = _measure(shape, cw, ch, pods, units, boxes)
        score = (min(cw * 1.8, ch) * 3 + math.sqrt(cw * ch)) * worth
        # If nothing fits, choose the arrangement that protrudes least.
        score -= 1000 * (max(size.width / (width - 8), 1) - 1 + max(size.height / height, 1) - 1)
        if score > best + 1e-9:
            best, chosen = score, Fit(cw, ch, pods, units, boxes, dpr)
    if chosen is None:
        raise TopologyError("nothing to draw: the scene has no hosts")
    return chosen


def layout_facts(scene: Scene) -> dict[str, Any]:
    """Return the facts of a scene that a browser needs to compute its layout: they depend on neither size nor zoom."""
    shape = _shape(scene)
    key = "rack" if shape.is_rack else "host"
    return {
        "shape": shape._asdict(),
        "arrangements": list(_arrangements(shape)),
        "rail_rows": _rail_rows(scene, shape).tolist(),
        "lengths": _LENGTHS,
        "details": _DETAILS[key],
        "largest": _LARGEST[key],
    }


def layout(scene: Scene, chosen: Fit, zoom: float = 1.0) -> Layout:
    """Return the boxes and lines of a scene. `zoom` multiplies the width of a cell. Its height grows less."""
    shape = _shape(scene)
    cw, ch = _cell(shape, chosen, zoom)
    size = _measure(shape, cw, ch, chosen.pods, chosen.units, chosen.boxes)
    return _place(scene, shape, chosen, size, cw, ch)


def locate(scene: Scene, place: str) -> tuple[str, int]:
    """Return the array of `Layout` and the index in it for a place such as ``pod:2``, ``node:17`` or ``node17``."""
    word, _, rest = place[:20].partition(":")
    if place in scene.names:
        return "host", scene.names.index(place)
    numbers = {"pod": scene.pod_id, "leaf": scene.unit_id, "rack": np.unique(scene.box_of), "node": scene.host}
    if word in numbers and rest.isdecimal():
        matches = np.flatnonzero(numbers[word] == int(rest))
        if matches.size:
            return {"leaf": "unit", "rack": "box", "node": "host"}.get(word, word), int(matches[0])
    limits = {"device": scene.n_devices, "nic": scene.n_nics}
    if word in limits and rest.isdecimal() and int(rest) < limits[word]:
        return word, int(rest)
    raise TopologyError(
        f"unknown place {place!r}",
        hint=f"choose all, {scene.names[0]!r}, or a number such as pod:0, leaf:0, rack:0, node:0, nic:0 or device:0",
    )


def look_at(scene: Scene, chosen: Fit, place: str, width: float, height: float) -> tuple[float, float, float]:
    """Return the zoom at which a place fills the figure, and the point of the layout at the figure's upper left."""
    if place == "all":
        full = layout(scene, chosen)
        return 1.0, (full.width - width) / 2, min(0.0, (full.height - height) / 2)
    name, index = locate(scene, place)
    if name in ("nic", "device"):
        first = scene.first_nic if name == "nic" else scene.first_device
        counts = np.array([kind.nics if name == "nic" else kind.devices for kind in scene.kinds])[scene.kind_of]
        name, index = "host", int(np.flatnonzero((first <= index) & (index < first + counts))[0])
    if name == "host":
        name, index = "box", int(scene.box_of[index])
    shape = _shape(scene)

    def extent(zoom: float) -> tuple[float, float]:
        size = _measure(shape, *_cell(shape, chosen, zoom), chosen.pods, chosen.units, chosen.boxes)
        width: float = getattr(size, f"{name}_width")
        height: float = getattr(size, f"{name}_height")
        return width, height

    share = 0.3 if name == "box" and not scene.is_rack else 0.97
    tallest = max(height * 0.97, extent(1.0)[1])

    def fits(zoom: float) -> bool:
        wide, tall = extent(zoom)
        return wide <= width * share and tall <= tallest

    zoom = _bisected(1.0, max(1.0, _largest(shape)[0] / chosen.cell_width), fits)
    box = getattr(layout(scene, chosen, zoom), name)[index]
    y = box[1] + box[3] / 2 - height / 2 if box[3] < height else box[1] - 10
    return zoom, float(box[0] + box[2] / 2 - width / 2), float(y)


# -- sizes -------------------------------------------------------------------------------------------------------------


def _shape(scene: Scene) -> _Shape:
    trays = int(np.bincount(scene.box_of).max())
    kinds = scene.kinds
    return _Shape(
        is_rack=scene.is_rack,
        rows=trays if scene.is_rack else max(kind.rows for kind in kinds),
        across=max(max(kind.slots for kind in kinds), 1) if scene.is_rack else max(kind.columns for kind in kinds),
        boxes=int(np.bincount(scene.unit_of).max()),
        units=int(np.bincount(scene.pod_of).max()),
        pods=len(scene.pod_id),
        all_units=len(scene.unit_id),
        nics=max(kind.nics for kind in kinds),
        lanes=max(int(kind.sets[:, 0].max(initial=-1)) + 1 for kind in kinds),
        rails=scene.rails,
        network=scene.network,
        taper=scene.taper,
    )


def _clamp(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)


def _length(name: str, size: float) -> float:
    share, low, high = _LENGTHS[name]
    return _clamp(size * share, low, high)


def _largest(shape: _Shape) -> tuple[float, float]:
    return _LARGEST["rack" if shape.is_rack else "host"]


def _arrangements(shape: _Shape) -> Iterator[tuple[int, int, int, float]]:
    """Return how many pods, units and boxes may be in a row, and the weight of their score."""
    square = math.isqrt(shape.pods - 1) + 1  # the root of the number of pods, rounded up
    for pods in sorted({shape.pods, -(-shape.pods // 2), square}):
        for units in (*range(1, 17), 20, 24, 32, 40, 48, 64):
            for wraps in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32):
                boxes = -(-shape.boxes // wraps)
                if units > shape.units or (wraps > 1 and (shape.boxes <= 4 or boxes == -(-shape.boxes // (wraps - 1)))):
                    continue
                # A rail is a straight line only if the boxes of a unit are in one row, and pods are compared best
                # side by side.
                worth = 1 / (1 + (wraps - 1) * (0.3 if shape.rails else 0.005)) * (1 if pods == shape.pods else 0.85)
                yield pods, units, boxes, worth


def _measure(shape: _Shape, cw: float, ch: float, pods: int, units: int, boxes: int) -> _Sizes:
    """Return all lengths for cells of `cw` × `ch` pixels, from the inside of a box to the figure."""
    # No length may shrink while the cell grows, because bisection looks for the largest cell that fits.
    rack = shape.is_rack
    room = cw * 2.2 if rack else cw  # a measure of the room that a host has for detail
    detail = sum(cw >= least for least in _DETAILS["rack" if rack else "host"])
    if not rack and shape.across > 1:
        detail = min(detail, 1)
    if rack:
        gap = _length("rack_gap", cw)
    elif detail == 0:
        gap = 1 if cw >= 5 else 0
    else:
        gap = _length("near_gap" if detail >= 2 else "gap", cw)
    nvlink = 0.0
    if detail >= 2:
        lane = 22 if detail >= 3 else 10 if rack else _length("bar", cw)
        nvlink = lane if rack else lane * shape.lanes
    elif rack and detail == 1:
        nvlink = 6
    switches = nic_width = rail_height = 0.0
    if rack:
        switches = ch * 2.2 if detail >= 2 else max(ch * 1.6, 4)
        nic_width = shape.nics * _length("rack_nic", cw) + 4 if detail >= 2 and shape.nics else 0
        if shape.rails:
            rail_height = (20 if detail >= 2 else _length("rack_rail", ch)) * shape.rails + 8 if detail >= 1 else 8
    box_width = nvlink + shape.across * cw + nic_width if rack else shape.across * cw
    head = 20 if detail >= 2 else 16 if detail == 1 and box_width >= 24 else 0
    box_height = head + shape.rows * ch + switches
    has_strip = shape.rails > 0 or shape.network == "unknown"
    strip = _length("long_strip" if shape.boxes >= 8 else "strip", room) if has_strip else 0
    unit_pad = _length("unit_pad", room)
    inner = boxes * (box_width + gap) - (0 if rack else gap)
    unit_width = unit_pad * 2 + inner + (strip + (14 if detail >= 2 else 2) if has_strip else 0)
    is_fine = shape.units > 64
    unit_head = 17 if unit_width >= 44 and shape.network != "none" else 1 if is_fine else 3
    unit_rows = -(-shape.boxes // boxes)
    row_gap = 14 if detail >= 2 else 6 if detail == 1 else 3
    unit_height = unit_head + unit_rows * (box_height + rail_height) + (unit_rows - 1) * row_gap + unit_pad
    has_spine = shape.all_units > 1
    rows = -(-shape.units // units)
    # The uplinks of a few units have a lane each. Those of very many units share one.
    gutter = max(room, 4) if is_fine else max(8, 3 + rows * _length("lane", room))
    if not has_spine:
        gutter = 0
    unit_gap = _length("fine_unit_gap" if is_fine else "unit_gap", room)
    pod_head = (27 if room < 3 else _length("pod_head", room)) if has_spine else 0
    pod_pad = 6 if shape.pods > 1 else 2
    pod_width = pod_pad * 2 + units * (unit_width + gutter)
    pod_height = pod_head + pod_pad + rows * (unit_height + unit_gap)
    core = _length("core", room) if shape.pods > 1 else 0
    pod_gap = _length("pod_gap", room) if shape.pods > 1 else 0
    pod_rows = -(-shape.pods // pods)
    left = 20 if pod_rows > 1 else 0
    return _Sizes(
        detail, gap, head, nvlink, switches, nic_width, box_width, box_height, rail_height, strip, unit_head, unit_pad,
        unit_rows, row_gap, unit_width, unit_height, gutter, unit_gap, pod_head, pod_pad, pod_rows, pod_width,
        pod_height, core, pod_gap, left,
        width=left + pods * (pod_width + pod_gap) - pod_gap,
        height=pod_rows * (core + pod_height + pod_gap) - pod_gap,
    )  # fmt: skip  # one line per length would double the function


def _widest(shape: _Shape, width: float, pods: int, units: int, boxes: int, dpr: float) -> float:
    """Return the largest width of a cell, or one device pixel if not even that fits."""
    low, high = 1 / dpr, _largest(shape)[0]
    if _measure(shape, low, 4, pods, units, boxes).width > width - _MARGIN:
        return low
    fitting = _bisected(low, high, lambda cw: _measure(shape, cw, 4, pods, units, boxes).width <= width - _MARGIN)
    return _snap(fitting, dpr)


def _tallest(
    shape: _Shape, height: float, cw: float, pods: int, units: int, boxes: int, dpr: float
) -> tuple[float, float]:
    """Return the largest height of a cell, after a width that is in proportion to it."""
    most = min(_largest(shape)[1], cw * 3.4 + 2)
    fitting = _bisected(
        1 / dpr, most, lambda ch: _measure(shape, cw, ch, pods, units, boxes).height <= height - _MARGIN
    )
    ch = _snap(fitting, dpr)
    if shape.is_rack:
        return _snap(min(cw, ch * 4.2), dpr), ch
    return _snap(min(cw, ch * 2.4 if ch < 10 else ch * 4.4), dpr), ch


def _bisected(low: float, high: float, fits: Callable[[float], bool]) -> float:
    """Return the largest length that fits, or `low` if none does."""
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _cell(shape: _Shape, chosen: Fit, zoom: float) -> tuple[float, float]:
    """Return width and height of a cell. Far away cells are slim, near ones are wide."""
    dpr = chosen.dpr
    cw = chosen.cell_width * zoom
    if cw < 10:
        cw = max(1.0, math.floor(cw * dpr + 0.5)) / dpr
    roomy = cw * 0.42 + 8 if shape.is_rack else 4 * math.sqrt(cw)
    ch = max(chosen.cell_height, min(chosen.cell_height * zoom, max(roomy, chosen.cell_height)))
    return cw, math.floor(ch * dpr + 0.5) / dpr if ch < 10 else math.floor(ch + 0.5)


def _snap(value: float, dpr: float) -> float:
    return max(1.0, math.floor(value * dpr)) / dpr if value < 10 else value


# -- places ------------------------------------------------------------------------------------------------------------


def _place(scene: Scene, shape: _Shape, chosen: Fit, size: _Sizes, cw: float, ch: float) -> Layout:
    """Return the layout from the outside in: pods, units and boxes first, because all lines end at them."""
    pod, spine, core, core_riser, funnel = _pods(shape, chosen, size)
    # Units of a pod, and boxes of a unit, in rows.
    corner = pod[:, :2] + [size.pod_pad, size.pod_head]
    extent = size.unit_width, size.unit_height
    step = size.unit_width + size.gutter, size.unit_height + size.unit_gap
    unit, unit_row = _in_rows(scene.pod_of, chosen.units, corner, step, extent)
    corner = unit[:, :2] + [size.unit_pad, size.unit_head]
    extent = size.box_width, size.box_height
    step = size.box_width + size.gap, size.box_height + size.rail_height + size.row_gap
    box, box_row = _in_rows(scene.unit_of, chosen.boxes, corner, step, extent)
    host, device, nic = _hosts(scene, shape, size, box, cw, ch)
    if not scene.is_rack:
        box = host.copy()
    bar, bar_host, bar_set, tray = _nvlink(scene, shape, size, host, box, cw, ch)
    levels = _rail_levels(scene, shape, size, ch)
    leaf = _leaves(shape, size, unit, levels, ch)
    rail = _rails(shape, size, unit, leaf, levels)
    drop = _drops(scene, shape, size, box, box_row, host, nic, rail)
    has_spine = shape.all_units > 1
    rows = -(-shape.units // chosen.units)
    uplink = np.zeros((0, 6))
    x0 = unit[:, 0] + size.unit_width - size.unit_pad * 0.5
    y0 = unit[:, 1] + size.unit_head + size.box_height * 0.5
    if has_spine:
        # Each row of units has a lane of the gutter, so that the uplinks of two rows do not coincide.
        lane = (rows - 1 - unit_row + 0.5) / rows
        x = unit[:, 0] + size.unit_width + min(4, size.gutter * 0.4) + max(size.gutter - 6, 0) * lane
        top = pod[scene.pod_of, 1] + size.pod_head - 6
        uplink = np.stack([x0, y0, x, y0, x, top], axis=1)
    riser = np.zeros((0, 4))
    if shape.rails:
        middle = leaf.reshape(-1, shape.rails, 4)[:, [0, -1], 1] + leaf[0, 3] / 2
        low = np.minimum(middle.min(axis=1), y0) if has_spine else middle.min(axis=1)
        high = np.maximum(middle.max(axis=1), y0) if has_spine else middle.max(axis=1)
        riser = np.stack([x0 - 1, low, x0 - 1, high], axis=1)
    return Layout(
        size.width, size.height, cw, ch, size.detail, chosen.boxes, device, nic, host, box, unit, leaf, pod, spine,
        core, funnel, core_riser, bar, bar_host, bar_set, tray, rail, drop, uplink, riser,
        _labels(shape, size, box, unit, pod, spine, core, funnel),
    )  # fmt: skip  # all arrays in the order of the fields


def _pods(shape: _Shape, chosen: Fit, size: _Sizes) -> tuple[Floats, Floats, Floats, Floats, Floats]:
    """Return the boxes of pods, spines and the core, the riser of the core, and the exits of pods."""
    number = np.arange(shape.pods)
    column, row = number % chosen.pods, number // chosen.pods
    step = size.core + size.pod_height + size.pod_gap
    x = size.left + column * (size.pod_width + size.pod_gap)
    pod = _boxes(x, row * step + size.core, size.pod_width, size.pod_height)
    none = np.zeros((0, 4))
    spine, core, core_riser, funnel = none, none, none, np.zeros((0, 5))
    if shape.all_units > 1:
        thick = _length("spine", size.pod_head)
        top = pod[:, 1] + size.pod_head - 6 - thick
        spine = _boxes(pod[:, 0] + size.pod_pad, top, size.pod_width - size.pod_pad * 2, thick)
    if shape.pods > 1:
        rows = np.arange(size.pod_rows)
        core = _boxes(rows * 0.0 + size.left, rows * step + 16, size.width - size.left, 10)
        if size.pod_rows > 1:
            core_riser = np.array([[4.0, core[0, 1], 10.0, core[-1, 1] + 10 - core[0, 1]]])
            core[:, 0] -= size.left - 4
            core[:, 2] += size.left - 4
        base = _length("exit", size.pod_width)
        middle = pod[:, 0] + size.pod_width / 2
        top, width = core[row, 1] + 10, middle * 0 + base
        funnel = np.stack([middle, top, pod[:, 1], width / shape.taper, width], axis=1)
    return pod, spine, core, core_riser, funnel


def _in_rows(
    parent: Ints, across: int, origin: Floats, step: tuple[float, float], extent: tuple[float, float]
) -> tuple[Floats, Ints]:
    """Place children in rows inside their parents. Return their boxes and their rows."""
    first = np.searchsorted(parent, parent)
    number = np.arange(len(parent)) - first
    column, row = number % across, number // across
    corner = origin[parent]
    return _boxes(corner[:, 0] + column * step[0], corner[:, 1] + row * step[1], *extent), row.astype(np.int32)


def _hosts(
    scene: Scene, shape: _Shape, size: _Sizes, box: Floats, cw: float, ch: float
) -> tuple[Floats, Floats, Floats]:
    """Return the boxes of hosts, devices and NICs."""
    of_box = scene.box_of
    host = np.zeros((len(of_box), 4))
    tray = np.arange(len(of_box)) - np.searchsorted(of_box, of_box)
    if scene.is_rack:
        middle = _middle(np.bincount(of_box)[of_box])
        host[:, 0] = box[of_box, 0] + size.nvlink
        host[:, 1] = box[of_box, 1] + size.head + tray * ch + np.where(tray >= middle, size.switches, 0)
        host[:, 2], host[:, 3] = size.box_width - size.nvlink, ch
    else:
        host[:] = box[of_box]
    wide = _length("near_nic" if size.detail >= 3 else "nic", cw)
    margin = _length("nic_margin", cw) + 2  # at the right of NICs
    pad = _length("device_pad", cw)
    aside = size.nvlink + pad
    slim = max(min(max(cw * 0.5, 22), cw - aside - wide - margin - 4), 12)  # width of a device
    if not shape.nics:
        slim = max(cw - aside - pad, 12)
    device, nic = np.zeros((scene.n_devices, 4)), np.zeros((scene.n_nics if size.detail >= 2 else 0, 4))
    for index, kind in enumerate(scene.kinds):
        where = np.flatnonzero(scene.kind_of == index)
        if not scene.is_rack:
            host[where, 3] = size.head + kind.rows * ch
        left, top = host[where, :2].T[..., None]
        if scene.is_rack:
            cells = _boxes(left + kind.slot_of * cw, top, cw, ch)
        elif size.detail >= 2:
            cells = _boxes(left + aside, top + size.head + kind.slot_of * ch, slim, ch)
        else:
            column, row = np.divmod(kind.slot_of, kind.rows)
            cells = _boxes(left + column * cw, top + size.head + row * ch, cw, ch)
        device[scene.first_device[where][:, None] + np.arange(kind.devices)] = cells
        if size.detail < 2 or not kind.nics:
            continue
        numbers = np.arange(kind.nics)
        if scene.is_rack:
            each = (size.nic_width - 4) / shape.nics
            side = min(_length("rack_port", ch), each - 2)
            ports = _boxes(left + shape.across * cw + 4 + numbers * each, top + (ch - side) / 2, side, side)
        else:
            tall = _clamp(ch * 0.42, 3, min(26, kind.nic_space * ch * (0.8 if kind.nic_space < 1 else 1)))
            ports = _boxes(left + cw - wide - margin, top + size.head + kind.nic_row * ch - tall / 2, wide, tall)
        nic[scene.first_nic[where][:, None] + numbers] = ports
    return host, device, nic


def _middle(trays: npt.NDArray[np.integer]) -> Floats:
    """Return the number of trays above the switches of a rack, such as 10 of 18."""
    return np.asarray(np.ceil(trays * 0.55), dtype=np.float64)


def _nvlink(
    scene: Scene, shape: _Shape, size: _Sizes, host: Floats, box: Floats, cw: float, ch: float
) -> tuple[Floats, Ints, Ints, Floats]:
    """Return the bars of NVLink, the host and the set of each, and the switch trays of racks."""
    none = np.zeros((0, 4))
    tray = none
    if scene.is_rack:
        first = np.unique(scene.box_of, return_index=True)[1].astype(np.int32)
        middle = _middle(np.bincount(scene.box_of))
        tray = _boxes(box[:, 0] + size.nvlink, box[:, 1] + size.head + middle * ch, shape.across * cw, size.switches)
        if not size.nvlink:
            return none, first[:0], first[:0], tray
        bar = _boxes(box[:, 0] + 2, box[:, 1] + size.head + 2, size.nvlink - 6, size.box_height - size.head - 4)
        return bar, first, np.full(len(first), -1, dtype=np.int32), tray
    bars, hosts, sets = [none], [scene.host[:0]], [scene.host[:0]]
    if size.nvlink:
        wide = size.nvlink / shape.lanes
        for index, kind in enumerate(scene.kinds):
            where = np.flatnonzero(scene.kind_of == index).astype(np.int32)
            for lane, first_row, last_row, number in kind.sets.tolist():
                y = host[where, 1] + size.head + first_row * ch + 2
                bars.append(_boxes(host[where, 0] + 2 + lane * wide, y, wide - 4, (last_row - first_row + 1) * ch - 4))
                hosts.append(where)
                sets.append(np.full(len(where), number, dtype=np.int32))
    return np.concatenate(bars), np.concatenate(hosts), np.concatenate(sets), tray


def _rail_levels(scene: Scene, shape: _Shape, size: _Sizes, ch: float) -> tuple[_Numbers, _Numbers]:
    """Return the y of every rail and of its leaf switch, from the top of a row of boxes."""
    rails = np.arange(shape.rails)
    if scene.is_rack:
        space = size.rail_height - 8
        below = size.box_height + 6 + (rails + 0.5) * (space / max(shape.rails, 1))
        if space > 0:
            return below, below
        return below, size.head + (rails + 0.5) * (size.box_height - size.head) / max(shape.rails, 1)
    row = _rail_rows(scene, shape)
    # With boxes of NICs, rails run between the rows of devices, so that they cross no text.
    level = np.ceil(row) if size.detail >= 2 else row
    return size.head + level * ch, size.head + row * ch


def _rail_rows(scene: Scene, shape: _Shape) -> _Numbers:
    """Return the row of devices at which each rail is: the mean of the NICs of the first kind of host that has it."""
    rows: _Numbers = (np.arange(shape.rails) + 0.5) * shape.rows / max(shape.rails, 1)
    for rail in range(shape.rails):
        for kind in scene.kinds:
            centers = kind.nic_row[kind.nic_rail == rail]
            if len(centers):
                rows[rail] = float(centers.sum()) / len(centers)
                break
    return rows


def _leaves(shape: _Shape, size: _Sizes, unit: Floats, levels: tuple[_Numbers, _Numbers], ch: float) -> Floats:
    """Return the boxes of the leaf switches; of the dashed box if the network is unknown."""
    x = unit[:, 0] + size.unit_width - size.strip - size.unit_pad * 0.5
    top = unit[:, 1] + size.unit_head
    step = size.box_height + size.rail_height + size.row_gap
    inner = size.unit_rows * step - size.row_gap - size.head
    if shape.network == "unknown":
        return _boxes(x, top + size.head, size.strip, inner)
    if not shape.rails:
        return np.zeros((0, 4))
    if size.unit_rows > 1 and not shape.is_rack:
        room = inner / shape.rails
        middle = size.head + (np.arange(shape.rails) + 0.5) * room
    elif shape.is_rack:
        room = (size.rail_height - 8) / shape.rails or (size.box_height - size.head) / shape.rails
        middle = levels[1] + (size.unit_rows - 1) * step
    else:
        room, middle = shape.rows * ch / shape.rails, levels[1]
    tall = max(min(room * (0.88 if room < 24 else 0.72), 28 if shape.rails > 1 else 60), 1.5)
    y = (top[:, None] + middle - tall / 2).ravel()
    return _boxes(np.repeat(x, shape.rails), y, size.strip, tall)


def _rails(shape: _Shape, size: _Sizes, unit: Floats, leaf: Floats, levels: tuple[_Numbers, _Numbers]) -> Floats:
    """Return the line of every rail: along its row of boxes, then up or down to its leaf switch."""
    if not shape.rails:
        return np.zeros((0, 6))
    step = size.box_height + size.rail_height + size.row_gap
    row = np.arange(size.unit_rows)[:, None]
    y = unit[:, 1][:, None, None] + size.unit_head + row * step + levels[0]
    switch = leaf.reshape(-1, 1, shape.rails, 4)
    low, high = switch[..., 1], switch[..., 1] + switch[..., 3]
    end = np.clip(y, low, high)
    x1 = switch[..., 0] + np.where(end == y, 0, min(8, size.strip / 2))
    x0 = unit[:, 0][:, None, None] + size.unit_pad + y * 0
    return np.stack([x0, y, x1, y, x1, end], axis=-1).reshape(-1, 6)


def _drops(
    scene: Scene, shape: _Shape, size: _Sizes, box: Floats, box_row: Ints, host: Floats, nic: Floats, rail: Floats
) -> Floats:
    """Return the line from every NIC to its rail. Without boxes of NICs, only racks have them."""
    if not shape.rails or not (scene.is_rack or size.detail >= 2):
        return np.zeros((0, 6))
    drop = np.full((scene.n_nics, 6), np.nan)
    lines = rail.reshape(-1, size.unit_rows, shape.rails, 6)
    unit_of_host = scene.unit_of[scene.box_of]
    for index, kind in enumerate(scene.kinds):
        where = np.flatnonzero(scene.kind_of == index)
        railed = np.flatnonzero(kind.nic_rail >= 0)
        if not railed.size:
            continue
        of_rail = np.bincount(kind.nic_rail[railed], minlength=shape.rails)
        numbers = scene.first_nic[where][:, None] + railed
        row = box_row[scene.box_of[where]]
        y = lines[unit_of_host[where][:, None], row[:, None], kind.nic_rail[railed], 1]
        if size.detail >= 2:
            port = nic[numbers]
            left, top, width, height = np.moveaxis(port, -1, 0)
            x, right, middle, bottom = left + width / 2, left + width, top + height / 2, top + height
            if scene.is_rack:
                points = [x, bottom, x, y, x, y]
            elif of_rail.max() > 1:  # several NICs on one rail: a common line at their right
                points = [right, middle, right + 3, middle, right + 3, y]
            else:
                # A rail that is not below the NIC meets its box, so the line has no length.
                start, end = np.where(y > bottom, bottom, middle), np.where(y > bottom, y, middle)
                points = [x, start, x, end, x, end]
        else:
            right = box[scene.box_of[where], 0] + size.box_width
            x = right[:, None] + 3 + railed * max(size.gap - 6, 0) / max(kind.nics - 1, 1)
            middle = host[where, 1][:, None] + host[where, 3][:, None] / 2 + x * 0
            points = [right[:, None] + x * 0, middle, x, middle, x, y]
        drop[numbers] = np.stack(points, axis=-1)
    return drop


def _labels(
    shape: _Shape, size: _Sizes, box: Floats, unit: Floats, pod: Floats, spine: Floats, core: Floats, funnel: Floats
) -> tuple[Label, ...]:
    """Return the free spaces for text, from the outside in. A space that is too low for a line is left out."""
    labels = []
    if len(core):
        labels.append(
            Label("core", 0, float(core[0, 0]) + 4, float(core[0, 1]) - 16, float(core[0, 2]) - 8, 15, "left")
        )
    for index, (x, _, y, _, base) in enumerate(funnel.tolist()):
        right = pod[index, 0] + pod[index, 2] - 4
        labels.append(Label("exit", index, x + base / 2 + 6, y - 17, right - x - base / 2 - 6, 15, "left"))
    if len(spine):
        for index, (x, y, width, _) in enumerate(pod.tolist()):
            # The route through the exit of a pod crosses the right half.
            room = width / 2 - 10 if len(funnel) else width - 12
            labels.append(Label("pod", index, x + 6, y + 1, room, float(spine[index, 1]) - y - 2, "left"))
    if size.unit_head >= 17:
        up = 56.0 if shape.all_units > 1 and size.unit_width >= 200 else 0.0
        for index, (x, y, width, _) in enumerate(unit.tolist()):
            labels.append(Label("unit", index, x + 5, y + 1, width - 10 - up, 15, "left"))
            if up:
                labels.append(Label("up", index, x + width - up - 3, y + 1, up, 15, "right"))
    if size.head >= 16:
        for index, (x, y, width, _) in enumerate(box.tolist()):
            labels.append(Label("box", index, x + 4, y + 1, width - 8, size.head - 2, "left"))
    return tuple(labels)


def _boxes(x: _Numbers, y: _Numbers, width: float | _Numbers, height: float | _Numbers) -> Floats:
    return np.stack(np.broadcast_arrays(x, y, width, height), axis=-1).astype(np.float64)
