"""Rails: the leaf switch that every NIC of a host is connected to, and those that every device uses."""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from meshlab.topology.model._hardware import Node
from meshlab.topology.model._levels import Floats, Ints
from meshlab.topology.model._links import Distance

if TYPE_CHECKING:
    from meshlab.topology.model._cluster import Cluster


class Rails(NamedTuple):
    """The rails of one host: all that decides which leaf switches its devices use."""

    of_nic: Ints  # int32 of shape (nics,): rail of each NIC, -1 if no device is near to it
    share: Floats  # float64 of shape (devices, rails): what each rail carries of a device's traffic
    first: Ints  # int32 of shape (devices,): the rail that carries most of it
    port_gbs: Floats  # float64 of shape (rails,): GB/s of the NICs that are connected to each rail


def slots(node: Node) -> Ints:
    """Return the position of every device: its number in the host, so that devices do not move if one is lost."""
    numbers = [device.id for device in node.devices]
    count = len(numbers)
    rises = all(map(operator.lt, numbers, numbers[1:]))
    is_usable = count > 0 and rises and numbers[0] >= 0 and numbers[-1] < 2 * count
    return np.array(numbers if is_usable else range(count), dtype=np.int32)


def rails_of(node: Node, rails: int) -> Rails:
    """Return the rails of a host on a network with a number of rails."""
    cache: dict[int, Rails] = node.__dict__.setdefault("_rails", {})  # next to the cached properties of the host
    if rails not in cache:
        cache[rails] = _rails(node, rails)
    return cache[rails]


def closest_devices(node: Node) -> Ints:
    """Return whether a device is one of those that a NIC is the nearest one of; bool of shape (devices, nics)."""
    # A device whose own NIC is missing is near to other NICs too, but farther away, so it does not count for them.
    count = len(node.devices)
    away = np.where(node.near_ports, node.distance[:count, count:], Distance.UNKNOWN)
    return np.asarray((away == away.min(axis=0, initial=Distance.UNKNOWN)) & (away < Distance.UNKNOWN))


def _rails(node: Node, rails: int) -> Rails:
    of_nic = _nic_rails(node, rails)
    count, position = len(node.devices), slots(node)
    width = int(position.max(initial=-1)) + 1
    # With more devices than rails, neighbouring devices share a rail, because they share a NIC. With fewer devices than
    # rails, device k uses rail k.
    usual = position * rails // max(width, 1) if width >= rails else position % rails
    speeds = np.array([nic.gbs for nic in node.nics], dtype=np.float64)
    speeds = speeds if np.isfinite(speeds).all() else np.where(node.connected, 1.0, 0.0)
    share = np.zeros((count, rails))
    near_nics = np.flatnonzero(node.near_ports.any(axis=0) & (of_nic >= 0)) if count else np.zeros(0, dtype=np.intp)
    # With more rails than NICs, the source does not tell which rails the NICs are on, unless the NICs do.
    is_wired = len(near_nics) >= rails or any(nic.rail is not None for nic in node.nics)
    for device in range(count):
        near = np.flatnonzero(node.near_nics[device] & (of_nic >= 0))
        carried = np.bincount(of_nic[near], weights=speeds[near], minlength=rails)
        # A device with a NIC on its usual rail stays on it. Otherwise it uses the rails of the NICs that it has left.
        if not is_wired or not carried.any() or carried[usual[device]]:
            share[device, usual[device]] = 1.0
        else:
            share[device] = carried / carried.sum()
    gbs = np.array([nic.gbs for nic in node.nics], dtype=np.float64)[near_nics]
    ports = np.bincount(of_nic[near_nics], weights=gbs, minlength=rails).astype(np.float64)
    return Rails(of_nic, share, share.argmax(axis=1).astype(np.int32), ports)


def _nic_rails(node: Node, rails: int) -> Ints:
    """Return the rail of every NIC: that of the devices it is the nearest one of."""
    count = len(node.devices)
    of_nic = np.full(len(node.nics), -1, dtype=np.int32)
    if not rails or not len(of_nic):
        return of_nic
    position = slots(node)
    width = int(position.max(initial=-1)) + 1
    closest = closest_devices(node) if count else np.zeros((0, len(of_nic)), dtype=bool)
    for key in {tuple(column.tolist()) for column in closest.T if column.any()}:
        members = np.flatnonzero((np.array(key) == closest.T).all(axis=1))
        near = position[np.flatnonzero(key)]
        for number, nic in enumerate(members.tolist()):
            start = number * len(near) // len(members)
            center = near[start : max((number + 1) * len(near) // len(members), start + 1)].mean()
            of_nic[nic] = int(center * rails / width) if width >= rails else int(center) % rails
    for nic, port in enumerate(node.nics):
        if port.rail is not None and (of_nic[nic] >= 0 or not count):
            of_nic[nic] = min(port.rail, rails - 1)
    return of_nic


def with_fixed_rails(node: Node, rails: int, *, always: bool = False) -> Node:
    """Return the host whose NICs stay on their rails whatever happens to its devices and the other NICs."""
    # The rails of fewer NICs than rails are not known, unless `always`.
    if rails < 2 or len(node.nics) < (0 if always else rails) or any(nic.rail is not None for nic in node.nics):
        return node
    of_nic = rails_of(node, rails).of_nic.tolist()
    nics = (replace(nic, rail=rail) if rail >= 0 else nic for nic, rail in zip(node.nics, of_nic, strict=True))
    return replace(node, nics=tuple(nics))


def port_gbs(cluster: Cluster, at: int) -> Floats:
    """Return the GB/s of the NICs below every switch of a network level; shape (switches,)."""
    level = cluster.levels[at]
    gbs = np.zeros((level.n_switches // level.rails, level.rails))
    for kind, node in enumerate(cluster.templates):
        hosts = np.bincount(level.of_node[cluster.kinds == kind], minlength=len(gbs))
        gbs += np.where(hosts[:, None] > 0, hosts[:, None] * rails_of(node, level.rails).port_gbs, 0.0)
    return gbs.ravel()
