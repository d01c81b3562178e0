"""What-if edits: the same cluster with hardware removed, added or changed. `Cluster` provides them as methods."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from meshlab.base._errors import TopologyError
from meshlab.mesh._axes import short
from meshlab.topology._parts import find_part, with_parts
from meshlab.topology.model._cluster import Cluster
from meshlab.topology.model._hardware import Node, Words
from meshlab.topology.model._levels import (
    HOP_US,
    MOST_NODES,
    MOST_RAILS,
    Ints,
    Level,
    check_taper,
    rails_for,
    regular_levels,
)
from meshlab.topology.model._links import UNKNOWN, Distance, distances, is_gpu_link
from meshlab.topology.model._rails import with_fixed_rails

CUSTOM = "custom, from "
"""The beginning of the name of a machine with other hosts than the one that it was made from."""

_MOST_ENDS = 64
"""Limit for the devices and the NICs of one host, because its links are a square matrix."""


def without_device(cluster: Cluster, device: int) -> Cluster:
    """Return the cluster without one device, see `Cluster.without_device`."""
    node, local = cluster.locate(device)
    if cluster.n_devices == 1:
        raise TopologyError(f"cannot remove device {device}: it is the last one", hint="keep at least one device")
    old = cluster.templates[cluster.kinds[node]]
    devices = old.devices[:local] + old.devices[local + 1 :]
    p2p = _without_index(old.p2p, local) if old.p2p else ()
    new = replace(wired(cluster, old), devices=devices, words=_without_index(old.words, local), p2p=p2p)
    return with_failure(cluster, _with_node(cluster, node, new), f"{cluster.names[node]}/{old.ends[local]}")


def without_link(cluster: Cluster, device: int, other: int | None = None) -> Cluster:
    """Return the cluster without NVLink between two devices, see `Cluster.without_link`."""
    node, local = cluster.locate(device)
    old = cluster.templates[cluster.kinds[node]]
    if other is None:
        partners = [i for i in range(len(old.devices)) if old.distance[local, i] == Distance.NVLINK]
        if not partners:
            name = old.gpu_link_name
            raise TopologyError(f"device {device} has no {name}", hint=f"choose a device with {name}")
    else:
        other_node, partner = cluster.locate(other)
        if other_node != node:
            raise TopologyError(
                f"devices {device} and {other} are on different hosts", hint="choose two devices of one host"
            )
        if old.distance[local, partner] != Distance.NVLINK:
            name = old.gpu_link_name
            raise TopologyError(
                f"devices {device} and {other} have no {name} between them", hint=f"choose two devices with {name}"
            )
        partners = [partner]
    pairs = [{local, partner} for partner in partners]
    changed = _with_node(cluster, node, _without_nvlink(old, lambda i, j: {i, j} in pairs))
    ends = f"{old.ends[local]}/NVLink" if other is None else f"{old.ends[local]}-{old.ends[partners[0]]}"
    return with_failure(cluster, changed, f"{cluster.names[node]}/{ends}")


def without_nic(cluster: Cluster, node: int | str, nic: int | str) -> Cluster:
    """Return the cluster without one NIC, see `Cluster.without_nic`."""
    index = cluster.node_index(node)
    names = [port.name for port in cluster.templates[cluster.kinds[index]].nics]
    number = names.index(nic) if isinstance(nic, str) and nic in names else nic
    if not isinstance(number, int | np.integer) or not 0 <= number < len(names):
        hint = f"choose one of {', '.join(names)}" if names else "choose a host with NICs"
        raise TopologyError(f"{cluster.names[index]} has no NIC {nic!r}", hint=hint)
    old = wired(cluster, cluster.templates[cluster.kinds[index]])
    nics = old.nics[:number] + old.nics[number + 1 :]
    words = _without_index(old.words, len(old.devices) + number)
    changed = _with_node(cluster, index, replace(old, nics=nics, words=words, lost_nics=not nics))
    return with_failure(cluster, changed, f"{cluster.names[index]}/{old.nics[number].name}")


def without_node(cluster: Cluster, *nodes: int | str, keep_place: bool = False) -> Cluster:
    """Return the cluster without some hosts, see `Cluster.without_node`."""
    gone = np.zeros(cluster.n_nodes, dtype=bool)
    for node in nodes:
        gone[cluster.node_index(node)] = True
    rest = np.flatnonzero(~gone)
    if keep_place:
        if cluster.n_devices and not np.diff(cluster.first_device)[rest].any():
            raise TopologyError("cannot remove the devices of all hosts", hint="keep at least one device")
        for index in np.flatnonzero(gone).tolist():
            old = cluster.templates[cluster.kinds[index]]
            changed = _with_node(cluster, index, replace(old, devices=(), nics=(), words=(), p2p=()))
            cluster = with_failure(cluster, changed, cluster.names[index])
        return cluster
    if not rest.size:
        raise TopologyError("cannot remove all hosts", hint="keep at least one host")
    numbers, kinds = np.unique(cluster.kinds[rest], return_inverse=True)
    racks = cluster.nvlink_of_node
    hosts = {cluster.names[index] for index in np.flatnonzero(gone).tolist()}
    return replace(
        cluster,
        intact=None if cluster.intact is None else without_node(cluster.intact, *np.flatnonzero(gone).tolist()),
        failed=tuple(name for name in cluster.failed if name.partition("/")[0] not in hosts),
        templates=tuple(cluster.templates[k] for k in numbers),
        kinds=kinds.astype(np.int32),
        names=tuple(cluster.names[index] for index in rest.tolist()),
        levels=tuple(replace(level, of_node=level.of_node[rest]) for level in cluster.levels) if rest.size > 1 else (),
        nvlink_of_node=None if racks is None else racks[rest],
    )


def with_devices(
    cluster: Cluster,
    devices: int | None = None,
    nics: int | None = None,
    nodes: int | str | Iterable[int | str] | None = None,
) -> Cluster:
    """Return the cluster with other numbers of devices and NICs per host, see `Cluster.with_devices`."""
    for name, value, least in (("devices", devices, 1), ("nics", nics, 0)):
        if value is not None and (not isinstance(value, int | np.integer) or not least <= value <= _MOST_ENDS):
            raise TopologyError(f"{name} must be an integer from {least} to {_MOST_ENDS}, not {short(value)}")
    if cluster.intact is not None:
        intact = with_devices(cluster.intact, devices, nics, nodes)
        is_same = [level.rails for level in intact.levels] == [level.rails for level in cluster.levels]
        return with_parts(intact, cluster.failed if is_same else _of_hosts(cluster))
    names = range(cluster.n_nodes) if nodes is None else [nodes] if isinstance(nodes, int | str) else nodes
    chosen = np.unique([cluster.node_index(name) for name in names]).astype(np.int32)
    changed = with_kinds(cluster, chosen, lambda node: _with_ends(node, devices, nics))
    if changed.templates == cluster.templates:
        return cluster
    before, after = (max(len(host.nics) for host in hosts.templates) for hosts in (cluster, changed))
    width = max(len(host.devices) for host in changed.templates)
    levels = tuple(replace(level, rails=rails_for(level.rails, before, after, width)) for level in cluster.levels)
    changed = replace(changed, levels=levels, title=custom_title(cluster.title))
    if nodes is None:
        return changed
    # The network does not follow some hosts, so their NICs are on its rails as far as they go.
    rails = max((level.rails for level in levels), default=1)
    return with_kinds(changed, chosen, lambda node: with_fixed_rails(node, rails, always=True))


def with_kinds(cluster: Cluster, hosts: Ints, change: Callable[[Node], Node]) -> Cluster:
    """Return the cluster with some hosts changed, one template for all of the same kind."""
    kinds, templates = cluster.kinds.copy(), list(cluster.templates)
    for kind in np.unique(cluster.kinds[hosts]).tolist():
        node = change(cluster.templates[kind])
        number = templates.index(node) if node in templates else len(templates)
        kinds[hosts[cluster.kinds[hosts] == kind]] = number
        if number == len(templates):
            templates.append(node)
    remaining, numbers = np.unique(kinds, return_inverse=True)
    return replace(cluster, templates=tuple(templates[k] for k in remaining), kinds=numbers.astype(np.int32))


def with_network(
    cluster: Cluster, nodes_per_leaf: int, *, rails: int = 1, nodes_per_pod: int = 0, taper: float = 1.0
) -> Cluster:
    """Return the cluster with a regular network, see `Cluster.with_network`."""
    numbers = {"nodes_per_leaf": (nodes_per_leaf, 1), "rails": (rails, 1), "nodes_per_pod": (nodes_per_pod, 0)}
    for name, (value, least) in numbers.items():
        most = MOST_RAILS if name == "rails" else MOST_NODES
        if not isinstance(value, int | np.integer) or not least <= value <= most:
            raise TopologyError(f"{name} must be an integer from {least} to {most:,}, not {short(value)}")
    check_taper(taper)
    if cluster.intact is not None:
        intact = with_network(cluster.intact, nodes_per_leaf, rails=rails, nodes_per_pod=nodes_per_pod, taper=taper)
        return with_parts(intact, _of_hosts(cluster))
    latency_us = cluster.levels[0].latency_us if cluster.levels else HOP_US
    levels = regular_levels(cluster.n_nodes, nodes_per_leaf, rails, nodes_per_pod, taper, latency_us)
    return replace(cluster, levels=levels)


def with_nodes(cluster: Cluster, count: int, like: int | str = 0) -> Cluster:
    """Return the cluster with more hosts, see `Cluster.with_nodes`."""
    if not isinstance(count, int | np.integer) or not 1 <= count <= MOST_NODES:
        raise TopologyError(f"count must be an integer from 1 to {MOST_NODES:,}, not {short(count)}")
    index = cluster.node_index(like)
    # A cluster that was read from a file may already have a node with one of these names.
    taken = set(cluster.names)
    names: list[str] = []
    number = cluster.n_nodes
    while len(names) < count:
        if f"node{number}" not in taken:
            names.append(f"node{number}")
        number += 1
    kinds = np.append(cluster.kinds, np.full(count, cluster.kinds[index], dtype=np.int32)).astype(np.int32)
    racks = cluster.nvlink_of_node
    return replace(
        cluster,
        kinds=kinds,
        names=(*cluster.names, *names),
        levels=tuple(_with_hosts(level, count) for level in cluster.levels),
        nvlink_of_node=None if racks is None else _continued(racks, count),
        intact=None if cluster.intact is None else with_nodes(cluster.intact, count, like),
    )


def _with_hosts(level: Level, count: int) -> Level:
    longer = replace(level, of_node=_continued(level.of_node, count))
    if level.uplink_share is None:
        return longer
    share = np.append(level.uplink_share, np.ones(longer.n_switches - level.n_switches))
    return replace(longer, uplink_share=share)


def with_nvlink_domain(cluster: Cluster, size: int) -> Cluster:
    """Return the cluster with NVLink domains of a different size, see `Cluster.with_nvlink_domain`."""
    widths = sorted({len(template.devices) for template in cluster.templates})
    width = widths[-1]
    title = custom_title(cluster.title)
    if len(widths) > 1 or not width:
        raise TopologyError(
            f"cannot change the NVLink domains: the hosts have {' and '.join(map(str, widths))} devices",
            hint="use hosts with the same number of devices, at least one",
        )
    if not isinstance(size, int | np.integer) or size < 1 or (size % width and width % size):
        raise TopologyError(
            f"size must be a divisor or a multiple of {width}, the number of devices of a host, not {size!r}",
            hint=f"pass {width} for domains that end at the host",
        )
    intact = None if cluster.intact is None else with_nvlink_domain(cluster.intact, size)
    if size >= width:
        hosts_per_rack = min(size // width, max(cluster.n_nodes, 1))  # a size may exceed the integers of numpy
        racks = np.arange(cluster.n_nodes, dtype=np.int32) // hosts_per_rack
        return replace(cluster, nvlink_of_node=racks if size > width else None, intact=intact, title=title)
    # Domains inside a host also remove the domains between hosts.
    templates = tuple(_without_nvlink(template, lambda i, j: i // size != j // size) for template in cluster.templates)
    return replace(cluster, templates=templates, nvlink_of_node=None, intact=intact, title=title)


def with_taper(cluster: Cluster, /, taper: float | None = None, level: str | None = None, **taper_of: float) -> Cluster:
    """Return the cluster with a different oversubscription, see `Cluster.with_taper`."""
    names = [network.name for network in cluster.levels]
    if taper is not None:
        taper_of[level if level is not None else (names[-1] if names else "")] = taper
    elif level is not None or not taper_of:
        raise TopologyError(
            "no oversubscription given", hint="pass a number, such as with_taper(7) or with_taper(pod=7)"
        )
    for name, value in taper_of.items():
        if not names:
            raise TopologyError("a single host has no network levels", hint="add hosts with with_nodes()")
        if name not in names:
            raise TopologyError(f"unknown network level {name!r}", hint=f"choose one of {', '.join(names)}")
        check_taper(value)
    levels = (replace(network, taper=taper_of.get(network.name, network.taper)) for network in cluster.levels)
    intact = None if cluster.intact is None else with_taper(cluster.intact, None, None, **taper_of)
    return replace(cluster, levels=tuple(levels), intact=intact)


def _with_ends(node: Node, devices: int | None, nics: int | None) -> Node:
    """Return the host with other numbers of devices and NICs, spread evenly over the positions of the old ones."""
    # An endpoint that replaces several keeps the closest of their links. Copies of one endpoint are below the same
    # switch or, if the host has NVLink, connected by it.
    counts = len(node.devices), len(node.nics)
    targets = counts[0] if devices is None else devices, counts[1] if nics is None else nics
    if targets == counts:
        return node
    if not counts[0] or (targets[1] and not counts[1]):
        missing = "devices" if not counts[0] else "NICs"
        raise TopologyError(f"{node.name} has no {missing} to copy", hint="use a host that has some")
    # The old endpoints that each new one stands for.
    blocks = [
        [before + old for old in range(j * had // n, max((j + 1) * had // n, j * had // n + 1))]
        for before, had, n in ((0, counts[0], targets[0]), (counts[0], counts[1], targets[1]))
        for j in range(n)
    ]
    linked = [word for row in node.words[: counts[0]] for word in row[: counts[0]] if is_gpu_link(word)]
    among_copies = max(linked, key=linked.count) if linked else "PIX"

    def word(i: int, j: int) -> str:
        if i == j:
            return "X"
        links = [node.words[a][b] for a in blocks[i] for b in blocks[j] if a != b]
        if not links:
            return among_copies if max(i, j) < targets[0] else "PIX"
        return links[int(np.argmin(distances([links])[0]))]

    ends = range(len(blocks))
    new_devices, new_nics = node.devices, node.nics
    if targets[0] != counts[0]:
        of = blocks[: targets[0]]
        new_devices = tuple(replace(new_devices[old], id=j, bus_id=None, uuid=None) for j, (old, *_) in enumerate(of))
    if targets[1] != counts[1]:
        of = blocks[targets[0] :]
        new_nics = tuple(
            replace(new_nics[old - counts[0]], name=f"NIC{j}", bus_id=None, rail=None) for j, (old, *_) in enumerate(of)
        )
    words = tuple(tuple(word(i, j) for j in ends) for i in ends)
    return replace(node, devices=new_devices, nics=new_nics, words=words, p2p=())


def _without_index(words: Words, index: int) -> Words:
    return tuple(row[:index] + row[index + 1 :] for i, row in enumerate(words) if i != index)


def _without_nvlink(node: Node, is_lost: Callable[[int, int], bool]) -> Node:
    """Return the host with PCIe words for the pairs that lost NVLink, derived from NUMA nodes."""

    def word(i: int, j: int) -> str:
        if i == j or max(i, j) >= len(node.devices) or not is_gpu_link(node.words[i][j]) or not is_lost(i, j):
            return node.words[i][j]
        numas = node.devices[i].numa, node.devices[j].numa
        return UNKNOWN if None in numas else "NODE" if numas[0] == numas[1] else "SYS"

    size = range(len(node.words))
    return replace(node, words=tuple(tuple(word(i, j) for j in size) for i in size))


def custom_title(title: str) -> str:
    """Return the name of a machine that differs from the one with this name."""
    return title if not title or title.startswith(CUSTOM) else f"{CUSTOM}{title}"


def _of_hosts(cluster: Cluster) -> list[str]:
    """Return the failed parts of hosts. In another network, the number of a switch means another one."""
    return [name for name in cluster.failed if find_part(cluster.intact or cluster, name).node >= 0]


def wired(cluster: Cluster, node: Node) -> Node:
    """Return the host whose NICs stay on their rails if a part of it fails."""
    return with_fixed_rails(node, max((level.rails for level in cluster.levels), default=1))


def with_failure(before: Cluster, after: Cluster, name: str) -> Cluster:
    """Return the cluster with the failed part in its list, without the parts of this part."""
    others = tuple(part for part in before.failed if not part.startswith(f"{name}/"))
    return replace(after, failed=(*others, name), intact=before.intact or before)


def _with_node(cluster: Cluster, index: int, node: Node) -> Cluster:
    """Return the cluster with one host replaced."""
    # Other hosts may share the old template, so the new host becomes an additional one. Templates without a host are
    # removed, because health and the tables iterate over templates.
    kinds = cluster.kinds.copy()
    kinds[index] = len(cluster.templates)
    templates = (*cluster.templates, node)
    remaining, numbers = np.unique(kinds, return_inverse=True)
    return replace(cluster, templates=tuple(templates[k] for k in remaining), kinds=numbers.astype(np.int32))


def _continued(domains: Ints, count: int) -> Ints:
    """Return the domains of the existing hosts, and of `count` new ones that fill domains of the same size."""
    size = int(np.bincount(domains).max())
    if size == len(domains):  # a level with a single domain must still join all hosts
        return np.append(domains, np.full(count, domains[-1])).astype(np.int32)
    last = int(np.count_nonzero(domains == domains[-1]))
    return np.append(domains, domains[-1] + (last + np.arange(count)) // size).astype(np.int32)
