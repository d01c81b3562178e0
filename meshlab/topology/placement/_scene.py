"""Scene: the facts of a machine that its picture needs, as counts and flat arrays in the order of drawing.

The scene is plain data, so the widget receives the same one as the figure. Hosts are drawn in boxes: a column per host
or, if NVLink joins several hosts, a rack with a row per host. Boxes are in units (hosts below one set of leaf
switches), and units are in pods. Positions follow from the scene alone, see `meshlab.topology.placement._layout`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from meshlab.topology.model._cluster import Cluster
from meshlab.topology.model._hardware import Node
from meshlab.topology.model._levels import Floats, Ints
from meshlab.topology.model._links import Distance
from meshlab.topology.model._rails import closest_devices, rails_of
from meshlab.topology.model._rails import slots as slots_of

_MOST_ROWS = 16  # devices in one column of a host
_MOST_LINKS = 18  # NVLinks of the largest GPU so far
_ADDED = "cluster"  # the level that `Cluster` adds if no described level joins all hosts


@dataclass(frozen=True, eq=False)
class Kind:
    """The inside of a host, shared by all hosts with the same template."""

    # Number of devices, number of their positions, and the grid of positions in a column-shaped host, column by column.
    # A host that has lost devices has more positions than devices.
    devices: int
    slots: int
    rows: int
    columns: int
    slot_of: Ints  # int32 of shape (devices,): position of each device
    # int32 of shape (devices,): NVLink domain of each device inside the host, -1 for a device without NVLink.
    set_of: Ints
    # int32 of shape (sets, 4): lane, first row, last row and domain of each NVLink bar. Sets that interleave have
    # different lanes.
    sets: Ints
    nics: int  # number of NICs
    nic_row: Floats  # float64 of shape (nics,): centre of each NIC, in rows
    nic_space: float  # distance between NICs in rows, at most 1
    nic_rail: Ints  # int32 of shape (nics,): rail of each NIC, -1 if no device is near to it
    near: Ints  # int32 of shape (pairs, 2): all pairs of a device and one of its nearest NICs
    nvlink_gbs: float  # GB/s of a device's NVLinks, NaN without NVLink
    has_switch: bool  # True if NVLink goes through NVSwitches
    link_name: str = "NVLink"  # of the links between devices, "XGMI" for GPUs of AMD
    # What `nvlink_gbs` is the rate of. A switch gives a GPU all of its NVLinks for any other one, but XGMI joins pairs.
    rate_of: str = "per GPU"


@dataclass(frozen=True, eq=False)
class Scene:
    """A machine in the order of drawing."""

    title: str  # name of the machine
    # ``"none"`` for a single host or without a machine, ``"unknown"`` if the source does not describe the network, or
    # ``"known"``.
    network: str
    is_rack: bool  # True if NVLink joins several hosts, so that a box is a rack
    kinds: tuple[Kind, ...]  # the kinds of hosts
    # int32 of shape (hosts,): kind, index in the cluster, first device, first NIC, and box of each host.
    kind_of: Ints
    host: Ints
    first_device: Ints
    first_nic: Ints
    box_of: Ints
    # int32 of shape (boxes,): unit of each box, and 1 if one NVLink domain contains all devices of the box.
    unit_of: Ints
    is_joined: Ints
    # int32 of shape (units,): pod of each unit, and its number in the cluster's level.
    pod_of: Ints
    unit_id: Ints
    pod_id: Ints  # int32 of shape (pods,): number of each pod in the cluster's level
    rails: int  # leaf switches of a unit, 0 if they are unknown
    # Names of a leaf switch, of a unit, of a pod, and of the level that joins all of them. Empty if the picture has no
    # such level.
    leaf_word: str
    unit_word: str
    pod_word: str
    top_word: str
    # Index in `Cluster.levels` of the level that a unit and a pod stand for, -1 for none.
    unit_level: int
    pod_level: int
    taper: float  # oversubscription of the outermost level
    names: tuple[str, ...]  # names of the hosts
    notes: tuple[str, ...] = ()  # what the picture does not show, and why

    @property
    def n_devices(self) -> int:
        """Number of devices."""
        return int(sum(int(np.count_nonzero(self.kind_of == k)) * kind.devices for k, kind in enumerate(self.kinds)))

    @property
    def n_nics(self) -> int:
        """Number of NICs."""
        return int(sum(int(np.count_nonzero(self.kind_of == k)) * kind.nics for k, kind in enumerate(self.kinds)))

    @property
    def link_name(self) -> str:
        """Name of the links between devices: XGMI if all hosts have GPUs of AMD."""
        names = {kind.link_name for kind in self.kinds}
        return names.pop() if len(names) == 1 else "NVLink"

    def to_dict(self) -> dict[str, Any]:
        """Return all fields for the widget: numbers, strings and lists, and int32 arrays with one entry per host."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        values["kinds"] = [
            {item.name: _plain(getattr(kind, item.name)) for item in fields(kind)} for kind in self.kinds
        ]
        return values | {"names": list(self.names), "notes": list(self.notes)}


def _plain(value: Any) -> Any:
    """Return arrays as lists, and NaN, which JSON does not have, as None."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    return None if isinstance(value, float) and np.isnan(value) else value


def scene_of(cluster: Cluster) -> Scene:
    """Return the scene of a cluster."""
    nodes = cluster.n_nodes
    racks = cluster.nvlink_of_node
    zeros = np.zeros(nodes, dtype=np.int32)
    rack = np.arange(nodes, dtype=np.int32) if racks is None else racks
    is_rack = len(np.unique(rack)) < nodes
    names = [level.name for level in cluster.levels]
    notes = list(cluster.notes)
    is_known = bool(names) and names != [_ADDED]
    leaf = cluster.levels[0].of_node if is_known else zeros
    unit_level = 0 if is_known else -1
    # The picture has two levels below the core. A level that divides the hosts like the leaf switches gives a unit its
    # name, and of several others the outermost is the pod.
    pod, pod_level = zeros, -1
    for index, level in enumerate(cluster.levels[1:-1], 1):
        if _is_same(level.of_node, leaf):
            unit_level = index
        elif len(np.unique(level.of_node)) > 1:
            if pod_level >= 0:
                notes.append(f"the level {names[pod_level]} is not drawn")
            pod, pod_level = level.of_node, index
    if nodes > 1 and not is_known:
        notes.append("the source does not describe the network between the hosts")
    if cluster.n_devices and not any(_has_links(template) for template in cluster.templates):
        notes.append("the source lists no links inside the hosts")
    order = np.lexsort((np.arange(nodes), rack, leaf, pod)).astype(np.int32)
    box = _runs(pod[order], leaf[order], rack[order])
    unit = _runs(pod[order], leaf[order])
    pods = _runs(pod[order])
    first_of_box, first_of_unit, first_of_pod = (np.unique(runs, return_index=True)[1] for runs in (box, unit, pods))
    has_units = len(first_of_unit) > 1
    rails = cluster.levels[0].rails if is_known else 0
    nic_counts = np.array([len(template.nics) for template in cluster.templates], dtype=np.int32)[cluster.kinds]
    first_nic = np.cumsum(nic_counts) - nic_counts
    slots = [slots_of(template) for template in cluster.templates]
    # A host that has lost all of its devices keeps its size.
    most = max(int(slot.max(initial=-1)) + 1 for slot in slots)
    kinds = tuple(_kind(node, rails, is_rack, slot, most) for node, slot in zip(cluster.templates, slots, strict=True))
    nvlink = cluster.domain("nvlink") if cluster.n_devices else np.zeros(0, dtype=np.int32)
    return Scene(
        title=cluster.title or cluster.names[0],
        network="none" if nodes == 1 else "known" if is_known else "unknown",
        is_rack=is_rack,
        kinds=kinds,
        kind_of=cluster.kinds[order].astype(np.int32),
        host=order,
        first_device=cluster.first_device[:-1][order],
        first_nic=first_nic[order].astype(np.int32),
        box_of=box,
        unit_of=unit[first_of_box],
        is_joined=_joined(cluster, nvlink, box, order),
        pod_of=pods[first_of_unit],
        unit_id=leaf[order][first_of_unit].astype(np.int32),
        pod_id=pod[order][first_of_pod].astype(np.int32),
        rails=rails,
        leaf_word=names[0] if is_known else "",
        unit_word=names[unit_level] if is_known else "",
        pod_word=names[pod_level] if pod_level >= 0 else "",
        top_word=names[-1] if has_units else "",
        unit_level=unit_level,
        pod_level=pod_level,
        taper=cluster.levels[-1].taper if has_units else 1.0,
        names=tuple(cluster.names[index] for index in order.tolist()),
        notes=tuple(notes),
    )


def scene_of_ranks(title: str, names: tuple[str, ...], width: int) -> Scene:
    """Return a scene without a machine: blocks of `width` ranks."""
    blocks = np.arange(len(names), dtype=np.int32)
    zeros = np.zeros(1, dtype=np.int32)
    rows, columns = _grid(width)
    slot_of, set_of = np.arange(width, dtype=np.int32), np.full(width, -1, dtype=np.int32)
    nics = 0, np.zeros(0), 1.0, zeros[:0], np.zeros((0, 2), dtype=np.int32)
    sets = np.zeros((0, 4), dtype=np.int32)
    kind = Kind(width, width, rows, columns, slot_of, set_of, sets, *nics, float("nan"), has_switch=False)
    return Scene(
        title=title, network="none", is_rack=False, kinds=(kind,), kind_of=blocks * 0, host=blocks,
        first_device=blocks * width, first_nic=blocks * 0, box_of=blocks, unit_of=blocks * 0, is_joined=blocks * 0,
        pod_of=zeros, unit_id=zeros, pod_id=zeros, rails=0, leaf_word="", unit_word="", pod_word="", top_word="",
        unit_level=-1, pod_level=-1, taper=1.0, names=names,
    )  # fmt: skip  # nearly all are zero, so they need no line each


def _has_links(node: Node) -> bool:
    return bool((np.triu(node.distance, 1) % Distance.UNKNOWN).any())


def _is_same(level: Ints, other: Ints) -> bool:
    """Return whether two levels divide the hosts in the same way."""
    pairs = len(np.unique(np.stack([level, other]), axis=1).T)
    return pairs == len(np.unique(level)) == len(np.unique(other))


def _runs(*columns: Ints) -> Ints:
    """Number the runs of equal values, from 0."""
    change = np.zeros(len(columns[0]), dtype=np.int32)
    for column in columns:
        change[1:] |= column[1:] != column[:-1]
    return np.asarray(np.cumsum(change), dtype=np.int32)


def _joined(cluster: Cluster, nvlink: Ints, box: Ints, order: Ints) -> Ints:
    """Return for every box whether one NVLink domain contains its devices."""
    boxes = int(box[-1]) + 1
    joined = np.zeros(boxes, dtype=np.int32)
    if not len(nvlink):
        return joined
    of_node = np.empty(cluster.n_nodes, dtype=np.int32)
    of_node[order] = box
    of_device = of_node[cluster.node_of]
    least, most = np.full(boxes, len(nvlink)), np.full(boxes, -1)
    np.minimum.at(least, of_device, nvlink)
    np.maximum.at(most, of_device, nvlink)
    joined[:] = (least == most) & (np.bincount(of_device, minlength=boxes) > 1)
    return joined


def _grid(devices: int) -> tuple[int, int]:
    """Return the rows and columns of a host, with columns of equal length."""
    columns = max(1, -(-devices // _MOST_ROWS))
    return max(1, -(-devices // columns)), columns


def _kind(node: Node, rails: int, is_rack: bool, slot_of: Ints, most_slots: int) -> Kind:
    """Return the inside of a host. Without devices, it has `most_slots` empty positions."""
    devices, nics = len(node.devices), len(node.nics)
    slots = int(slot_of.max()) + 1 if devices else most_slots
    rows, columns = _grid(slots)
    linked = node.distance[:devices, :devices] == Distance.NVLINK
    set_of = np.where(linked.any(axis=1) | is_rack, node.nvlink_groups, -1).astype(np.int32)
    # With a single device, a rack's NVLink leaves the host, so no pair of the host shows it.
    counts = node.nvlinks[:devices, :devices]
    gbs = node.gbs[:devices, :devices][linked]
    nic_row, nic_space, nic_rail = _nic_rows(node, rails, slot_of, rows)
    near = np.argwhere(node.near_nics).astype(np.int32).reshape(-1, 2)
    # More links than a GPU has: all pairs report the same links, which end at a switch.
    has_switch = is_rack or bool(counts.size and counts.sum(axis=1).max() > _MOST_LINKS)
    return Kind(
        devices=devices,
        slots=slots,
        rows=rows,
        columns=columns,
        slot_of=slot_of,
        set_of=set_of,
        sets=_bars(set_of, slot_of % rows),
        nics=nics,
        nic_row=nic_row,
        nic_space=nic_space,
        nic_rail=nic_rail,
        near=near,
        nvlink_gbs=float(np.nanmax(gbs)) if np.isfinite(gbs).any() else float("nan"),
        has_switch=has_switch,
        link_name=node.gpu_link_name,
        rate_of="per GPU" if node.gpu_link_name == "NVLink" else "at most per pair",
    )


def _bars(set_of: Ints, row_of: Ints) -> Ints:
    """Return lane, first row, last row and number of every NVLink set with several devices."""
    bars: list[tuple[int, int, int, int]] = []
    for number in np.unique(set_of[set_of >= 0]).tolist():
        members = row_of[set_of == number]
        if len(members) < 2:
            continue
        low, high = int(members.min()), int(members.max())
        lane = 0
        while any(lane == other and low <= last and high >= start for other, start, last, _ in bars):
            lane += 1
        bars.append((lane, low, high, number))
    return np.array(bars, dtype=np.int32).reshape(-1, 4)


def _nic_rows(node: Node, rails: int, slot_of: Ints, rows: int) -> tuple[Floats, float, Ints]:
    """Return the centre of every NIC in rows, the distance between NICs, and the rail of every NIC."""
    devices, nics = len(node.devices), len(node.nics)
    rail = rails_of(node, rails).of_nic if rails else np.full(nics, -1, dtype=np.int32)
    if not nics or not devices:
        return (np.arange(nics) + 0.5) * rows / max(nics, 1), min(1.0, rows / max(nics, 1)), rail
    closest = closest_devices(node)
    center, space = np.full(nics, -1.0), 1.0
    for key in {tuple(column.tolist()) for column in closest.T if column.any()}:
        members = np.flatnonzero((np.array(key) == closest.T).all(axis=1))
        held = np.flatnonzero(key)
        apart = min(1.0, len(held) / len(members))
        center[members] = slot_of[held].mean() + 0.5 + (np.arange(len(members)) - (len(members) - 1) / 2) * apart
        space = min(space, apart)
    gaps = np.diff(np.sort(center))
    is_clear = int(slot_of.max()) < _MOST_ROWS and center.min() >= space / 2 - 1e-9
    if is_clear and (not gaps.size or gaps.min() >= space - 1e-9):
        return center, space, rail
    return (np.arange(nics) + 0.5) * rows / nics, min(1.0, rows / nics), rail
