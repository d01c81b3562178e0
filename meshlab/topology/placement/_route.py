"""The route of one group through the picture: NVLink, NICs, rails, uplinks, spines and the core."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from meshlab.topology.model._levels import Floats, Ints
from meshlab.topology.placement._layout import Layout
from meshlab.topology.placement._scene import Scene


class Stretch(NamedTuple):
    """A line of a route. `kind` is nvlink, host (PCIe), nic, rail, up, spine or core; `points` has the shape (n, 2)."""

    kind: str
    points: Floats


class Route(NamedTuple):
    """The lines of a group, and the indices of the NICs, leaf switches and pods that they touch."""

    stretches: tuple[Stretch, ...]
    nics: Ints
    leaves: Ints
    pods: Ints


def route(scene: Scene, drawn: Layout, devices: Ints, climbs: bool = False) -> Route:
    """Return the route of a group of devices. If it climbs, a hop changes rails above the leaf switches of its unit."""
    # The scene is in the order of drawing, so first devices are not ascending.
    order = np.argsort(scene.first_device, kind="stable")
    host = order[np.searchsorted(scene.first_device[order], devices, side="right") - 1].astype(np.int32)
    local = devices - scene.first_device[host]
    box = scene.box_of[host]
    stretches: list[Stretch] = []
    _inside(scene, drawn, devices, host, local, stretches)
    # A group in one rack whose hosts NVLink joins needs no NICs. Without such a domain, every host is an island.
    boxes = np.unique(box)
    islands = len(boxes) if scene.is_joined[boxes].all() else len(np.unique(host))
    empty = np.zeros(0, dtype=np.int32)
    if islands < 2:
        return Route(tuple(stretches), empty, empty, empty)
    nics, leaves = _rails(scene, drawn, devices, host, local, stretches)
    units = np.unique(scene.unit_of[boxes])
    pods = np.unique(scene.pod_of[units])
    if len(units) > 1 or climbs:
        for unit in units.tolist():
            unit_leaves = leaves[leaves // max(scene.rails, 1) == unit]
            y = [drawn.leaf[k, 1] + drawn.leaf[k, 3] / 2 for k in unit_leaves.tolist()] if len(drawn.riser) else []
            if len(units) > 1:
                y.append(drawn.uplink[unit, 1])
                stretches.append(Stretch("up", drawn.uplink[unit].reshape(3, 2)))
            if len(y) > 1:
                x = float(drawn.riser[unit, 0]) if len(drawn.riser) else 0.0
                stretches.append(Stretch("up", np.array([[x, min(y)], [x, max(y)]])))
    if len(units) > 1:
        _above(scene, drawn, units, pods, stretches)
    return Route(tuple(stretches), nics, leaves, pods.astype(np.int32))


def _inside(scene: Scene, drawn: Layout, devices: Ints, host: Ints, local: Ints, stretches: list[Stretch]) -> None:
    """Add the lines of NVLink and PCIe inside boxes."""
    if drawn.detail < 2 and not (scene.is_rack and drawn.detail == 1):
        return
    box = scene.box_of[host]
    center = drawn.device[devices, 1] + drawn.device[devices, 3] / 2
    for number in np.unique(box).tolist():
        members = np.flatnonzero(box == number)
        if len(members) < 2:
            continue
        if scene.is_rack:
            bar = drawn.bar[number]
            x, y = bar[0] + bar[2] / 2, center[members]
            stretches.append(Stretch("nvlink", np.array([[x, y.min()], [x, y.max()]])))
            left = float(drawn.host[host[members[0]], 0])
            stretches += [Stretch("nvlink", np.array([[x, level], [left, level]])) for level in np.unique(y).tolist()]
            continue
        first = int(host[members[0]])
        sets = scene.kinds[scene.kind_of[first]].set_of[local[members]]
        for part in np.unique(sets).tolist():
            linked = members[sets == part]
            bars = np.flatnonzero((drawn.bar_host == first) & (drawn.bar_set == part))
            if len(linked) > 1 and bars.size:
                x = float(drawn.bar[bars[0], 0] + drawn.bar[bars[0], 2] / 2)
                _comb(drawn, "nvlink", x, devices[linked], stretches)
        if len(np.unique(sets)) > 1 or sets[0] < 0:
            _comb(drawn, "host", float(drawn.device[devices[members[0]], 0]) - 5, devices[members], stretches)


def _comb(drawn: Layout, kind: str, x: float, devices: Ints, stretches: list[Stretch]) -> None:
    """Add a vertical line at x, and a line from there to every device."""
    y = drawn.device[devices, 1] + drawn.device[devices, 3] / 2
    stretches.append(Stretch(kind, np.array([[x, y.min()], [x, y.max()]])))
    for device, level in zip(devices.tolist(), y.tolist(), strict=True):
        stretches.append(Stretch(kind, np.array([[x, level], [float(drawn.device[device, 0]), level]])))


def _rails(
    scene: Scene, drawn: Layout, devices: Ints, host: Ints, local: Ints, stretches: list[Stretch]
) -> tuple[Ints, Ints]:
    """Add the lines from the devices to their NICs and along the rails. Return the NICs and the leaf switches."""
    starts: dict[int, float] = {}  # the leftmost x of every rail
    nics: set[int] = set()
    leaves: set[int] = set()
    per_unit = len(drawn.rail) // len(scene.unit_id) if scene.rails else 0
    first_box = np.searchsorted(scene.unit_of, np.arange(len(scene.unit_id)))
    for device, place, index in zip(devices.tolist(), host.tolist(), local.tolist(), strict=True):
        kind = scene.kinds[scene.kind_of[place]]
        box = int(scene.box_of[place])
        unit = int(scene.unit_of[box])
        x, y, width, height = drawn.device[device].tolist()
        y += height / 2
        if scene.network == "unknown":
            leaves.add(unit)
        for nic in kind.near[kind.near[:, 0] == index, 1].tolist():
            number = int(scene.first_nic[place]) + nic
            rail = int(kind.nic_rail[nic])
            if len(drawn.nic) and not scene.is_rack:
                left, middle = float(drawn.nic[number, 0]), float(drawn.nic[number, 1] + drawn.nic[number, 3] / 2)
                turn = (x + width + left) / 2
                stretches.append(Stretch("nic", np.array([[x + width, y], [turn, y], [turn, middle], [left, middle]])))
            is_new = number not in nics  # devices that share a NIC share its line to the rail
            nics.add(number)
            if rail < 0 or not per_unit:
                continue
            leaves.add(unit * scene.rails + rail)
            line = unit * per_unit + (box - int(first_box[unit])) // drawn.boxes_across * scene.rails + rail
            if len(drawn.drop):
                if is_new:
                    stretches.append(Stretch("nic", drawn.drop[number].reshape(3, 2)))
                start = float(drawn.drop[number, 4])
            else:
                start = x + width / 2
                if y != drawn.rail[line, 1]:
                    stretches.append(Stretch("nic", np.array([[start, y], [start, float(drawn.rail[line, 1])]])))
            starts[line] = min(start, starts.get(line, start))
    for line in sorted(starts):
        points = drawn.rail[line].reshape(3, 2)
        stretches.append(Stretch("rail", np.concatenate([[[starts[line], points[0, 1]]], points[1:]])))
    return np.array(sorted(nics), dtype=np.int32), np.array(sorted(leaves), dtype=np.int32)


def _above(scene: Scene, drawn: Layout, units: Ints, pods: Ints, stretches: list[Stretch]) -> None:
    """Add the lines along spines, through the exits of pods, and along the core."""
    for pod in pods.tolist():
        x = [float(drawn.uplink[unit, 4]) for unit in units.tolist() if scene.pod_of[unit] == pod]
        level = float(drawn.spine[pod, 1] + drawn.spine[pod, 3] / 2)
        if len(pods) > 1:
            x.append(float(drawn.funnel[pod, 0]))
        stretches.append(Stretch("spine", np.array([[min(x), level], [max(x), level]])))
        if len(pods) > 1:
            top = float(drawn.funnel[pod, 1]) - 5
            stretches.append(Stretch("core", np.array([[x[-1], level], [x[-1], top]])))
    if len(pods) < 2:
        return
    rows: dict[float, list[float]] = {}
    for pod in pods.tolist():
        rows.setdefault(float(drawn.funnel[pod, 1]) - 5, []).append(float(drawn.funnel[pod, 0]))
    if len(rows) > 1:
        side = float(drawn.core_riser[0, 0] + drawn.core_riser[0, 2] / 2)
        stretches.append(Stretch("core", np.array([[side, min(rows)], [side, max(rows)]])))
        for centers in rows.values():
            centers.append(side)
    for level, centers in rows.items():
        stretches.append(Stretch("core", np.array([[min(centers), level], [max(centers), level]])))
