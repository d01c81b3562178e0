"""What if: the same cluster with something dropped, added or changed; placement and findings follow from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from meshlab.errors import TopologyError
from meshlab.topology.model.cluster import Cluster, Ints
from meshlab.topology.model.hardware import Node, Words
from meshlab.topology.model.links import UNKNOWN, Distance
from meshlab.topology.model.presets import ClusterLike, as_cluster

__all__ = ["add_nodes", "drop_device", "drop_link", "drop_nic", "set_nvlink_domain", "set_taper"]

_MOST_NODES = 1 << 20


def drop_device(cluster: ClusterLike, device: int) -> Cluster:
    """The cluster without one device.

    Parameters
    ----------
    cluster : Cluster or str
    device : int
        Its number in the whole cluster. Devices behind it move up by one; numbers inside the host stay.

    Raises
    ------
    TopologyError
        If there is no such device, or it is the last one.

    Examples
    --------
    >>> from meshlab.topology.model.presets import preset
    >>> drop_device(preset("dgx-h100", nodes=2), 3).node(0).ends[:4]
    ('GPU0', 'GPU1', 'GPU2', 'GPU4')
    """
    cluster = as_cluster(cluster)
    node, local = _find(cluster, device)
    if cluster.n_devices == 1:
        raise TopologyError("the last device cannot be dropped: nothing would be left to place ranks on")
    old = cluster.templates[cluster.kinds[node]]
    devices = old.devices[:local] + old.devices[local + 1 :]
    p2p = _without(old.p2p, local) if old.p2p else ()
    return _with_node(cluster, node, replace(old, devices=devices, words=_without(old.words, local), p2p=p2p))


def drop_link(cluster: ClusterLike, one: int, other: int | None = None) -> Cluster:
    """The cluster with NVLink gone between two devices, or from one device to all others.

    Parameters
    ----------
    cluster : Cluster or str
    one : int
        A device, by its number in the whole cluster.
    other : int, optional
        Another device of the same host; all of them when left out.

    Raises
    ------
    TopologyError
        If the devices are on two hosts, or have no NVLink between them.

    Examples
    --------
    >>> from meshlab.topology.model.presets import preset
    >>> drop_link(preset("dgx-h100"), 2).domain("nvlink").tolist()
    [0, 0, 1, 0, 0, 0, 0, 0]
    """
    cluster = as_cluster(cluster)
    node, local = _find(cluster, one)
    old = cluster.templates[cluster.kinds[node]]
    if other is None:
        partners = [i for i in range(len(old.devices)) if old.distance[local, i] == Distance.NVLINK]
    else:
        if _find(cluster, other)[0] != node:
            raise TopologyError(f"devices {one} and {other} are on two hosts; name two of one host")
        partners = [_find(cluster, other)[1]]
    if not partners or any(old.distance[local, i] != Distance.NVLINK for i in partners):
        what = (
            f"devices {one} and {other} have no NVLink between them" if other is not None else f"device {one} has none"
        )
        raise TopologyError(f"there is no NVLink to drop: {what}")
    return _with_node(cluster, node, _unlinked(old, lambda i, j: {i, j} in [{local, partner} for partner in partners]))


def drop_nic(cluster: ClusterLike, node: int | str, nic: int | str) -> Cluster:
    """The cluster without one NIC of one host.

    Parameters
    ----------
    cluster : Cluster or str
    node : int or str
        The host, by number or name.
    nic : int or str
        The NIC, by its number in the host or by name.

    Raises
    ------
    TopologyError
        If there is no such host or NIC.

    Examples
    --------
    >>> from meshlab.topology.model.presets import preset
    >>> len(drop_nic(preset("dgx-h100"), 0, "NIC3").node(0).nics)
    7
    """
    cluster = as_cluster(cluster)
    index = cluster.node_index(node)
    old = cluster.templates[cluster.kinds[index]]
    names = [one.name for one in old.nics]
    number = names.index(nic) if isinstance(nic, str) and nic in names else nic
    if not isinstance(number, int) or not 0 <= number < len(names):
        raise TopologyError(f"{cluster.names[index]} has no NIC {nic!r}; it has {', '.join(names) or 'none'}")
    nics = old.nics[:number] + old.nics[number + 1 :]
    return _with_node(cluster, index, replace(old, nics=nics, words=_without(old.words, len(old.devices) + number)))


def add_nodes(cluster: ClusterLike, count: int, like: int | str = 0) -> Cluster:
    """The cluster with more hosts at its end; leaves, pods and racks are filled up and continued in their size.

    A level of one domain still has one afterwards.

    Parameters
    ----------
    cluster : Cluster or str
    count : int
        How many.
    like : int or str, default 0
        The host that they resemble, by number or name.

    Raises
    ------
    TopologyError
        If `count` is not possible.

    Examples
    --------
    >>> from meshlab.topology.model.presets import preset
    >>> add_nodes(preset("dgx-h100", nodes=63), 2).levels[1].of_node[-3:].tolist()
    [1, 1, 2]
    """
    cluster = as_cluster(cluster)
    if not 1 <= count <= _MOST_NODES:
        raise TopologyError(f"{count} hosts cannot be added; give a number from 1 to {_MOST_NODES:,}")
    index = cluster.node_index(like)
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
        levels=tuple(replace(level, of_node=_continued(level.of_node, count)) for level in cluster.levels),
        nvlink_of_node=None if racks is None else _continued(racks, count),
    )


def set_nvlink_domain(cluster: ClusterLike, size: int) -> Cluster:
    """The cluster with NVLink domains of another size: smaller ones cut hosts, larger ones join them.

    Parameters
    ----------
    cluster : Cluster or str
    size : int
        Devices per domain: a divisor or a multiple of the devices of a host.

    Raises
    ------
    TopologyError
        If hosts differ, or the size does not fit them.

    Examples
    --------
    >>> from meshlab.topology.model.presets import preset
    >>> set_nvlink_domain(preset("dgx-h100", nodes=4), 16).summary
    '4 nodes, 32 × H100 80GB, NVLink domains of 16'
    >>> set_nvlink_domain(preset("dgx-h100", nodes=4), 4).summary
    '4 nodes, 32 × H100 80GB, NVLink domains of 4'
    """
    cluster = as_cluster(cluster)
    widths = {len(template.devices) for template in cluster.templates}
    width = max(widths)
    if len(widths) > 1 or not width:
        raise TopologyError(
            f"hosts have {' and '.join(map(str, sorted(widths)))} devices; only like hosts can be regrouped"
        )
    if size >= width and size % width == 0:
        racks = np.arange(cluster.n_nodes, dtype=np.int32) // (size // width)
        return replace(cluster, nvlink_of_node=racks if size > width else None)
    if size < 1 or width % size:
        raise TopologyError(
            f"NVLink domains of {size} do not fit hosts of {width} devices; take a divisor or a multiple"
        )
    templates = tuple(_unlinked(template, lambda i, j: i // size != j // size) for template in cluster.templates)
    return replace(cluster, templates=templates, nvlink_of_node=None)


def set_taper(cluster: ClusterLike, taper: float, level: str | None = None) -> Cluster:
    """The cluster with another taper on one level of its network.

    Parameters
    ----------
    cluster : Cluster or str
    taper : float
        1:taper; 1 means that every NIC can send across at full speed.
    level : str, optional
        The level to cross; the outermost when left out.

    Raises
    ------
    TopologyError
        If there is no such level of the network, or the taper is below 1.

    Examples
    --------
    >>> from meshlab.topology.model.presets import preset
    >>> set_taper(preset("dgx-h100", nodes=64), 4).levels[-1].taper
    4
    """
    cluster = as_cluster(cluster)
    names = [one.name for one in cluster.levels]
    wanted = level if level is not None else (names[-1] if names else "")
    if wanted not in names:
        raise TopologyError(f"there is no level {wanted!r} of the network; there are {', '.join(names) or 'none'}")
    if not taper >= 1:
        raise TopologyError(f"taper={taper} is not possible; 1 means none, 7 means that a seventh gets through")
    levels = tuple(replace(one, taper=taper) if one.name == wanted else one for one in cluster.levels)
    return replace(cluster, levels=levels)


def _find(cluster: Cluster, device: int) -> tuple[int, int]:
    if not 0 <= device < cluster.n_devices:
        raise TopologyError(f"there is no device {device}; they go from 0 to {cluster.n_devices - 1:,}")
    return int(cluster.node_of[device]), int(cluster.local_of[device])


def _without(words: Words, index: int) -> Words:
    return tuple(row[:index] + row[index + 1 :] for i, row in enumerate(words) if i != index)


def _unlinked(node: Node, gone: Callable[[int, int], bool]) -> Node:
    """The host with NVLink gone between pairs; what is left is PCIe, as far as NUMA nodes tell."""

    def word(i: int, j: int) -> str:
        if i == j or max(i, j) >= len(node.devices) or not node.words[i][j].startswith("NV") or not gone(i, j):
            return node.words[i][j]
        numas = node.devices[i].numa, node.devices[j].numa
        return UNKNOWN if None in numas else "NODE" if numas[0] == numas[1] else "SYS"

    size = range(len(node.words))
    return replace(node, words=tuple(tuple(word(i, j) for j in size) for i in size))


def _with_node(cluster: Cluster, index: int, node: Node) -> Cluster:
    kinds = cluster.kinds.copy()
    kinds[index] = len(cluster.templates)
    templates = (*cluster.templates, node)
    used, numbers = np.unique(kinds, return_inverse=True)
    return replace(cluster, templates=tuple(templates[k] for k in used), kinds=numbers.astype(np.int32))


def _continued(domains: Ints, count: int) -> Ints:
    size = int(np.bincount(domains).max())
    if size == len(domains):  # one domain holds all: it stays so
        return np.append(domains, np.full(count, domains[-1])).astype(np.int32)
    last = int(np.count_nonzero(domains == domains[-1]))
    return np.append(domains, domains[-1] + (last + np.arange(count)) // size).astype(np.int32)
