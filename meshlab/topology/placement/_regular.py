"""Crossings of regular groups: those of the groups that start on the first host, repeated for all others."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np

from meshlab.mesh._groups import Groups
from meshlab.mesh._mesh import DeviceMesh
from meshlab.topology.model._levels import INNER_LEVELS, Ints
from meshlab.topology.placement._crossings import Crossings, cross
from meshlab.topology.placement._rank_map import RankMap


def cross_regular(rank_map: RankMap, mesh: DeviceMesh, groups: Groups, devices: Ints) -> Crossings | None:
    """Return what `cross` returns for the groups of one axis, or None unless the placement is regular."""
    sizes = _domain_sizes(rank_map)
    if groups.name not in mesh.axis_names or not mesh.in_order or not sizes:
        return None
    if devices[0] != 0 or devices[-1] != len(devices) - 1 or (np.diff(devices) != 1).any():
        return None
    stride = mesh.strides[mesh.axis_names.index(groups.name)] or 0
    extent, host = stride * groups.size, sizes[0]
    # A domain then contains whole blocks of groups, or consists of whole hosts, for every position in the group.
    nested = all(a % b == 0 or b % a == 0 for a in sizes for b in (stride, extent, host))
    repeats = len(groups) // (min(stride, host) if extent >= host else host // groups.size)
    if not nested or mesh.world_size % host or repeats < 2:
        return None
    count = len(groups) // repeats
    # Groups whose first ranks have the same place in their hosts differ by whole hosts only. The first of them lie in
    # one block, of which every host is used as much as in the whole machine.
    last = np.searchsorted(rank_map.set_node, max(extent, host) // host)
    parts = {name: getattr(rank_map, name)[:last] for name in ("set_nics", "set_gbs", "set_node")}
    if rank_map.overlap is not None:
        pairs = np.searchsorted(rank_map.overlap[0], last)
        of_set, nic, gbs = rank_map.overlap
        parts["overlap"] = (of_set[:pairs], nic[:pairs], gbs[:pairs])
    # Flows through an uplink come from all groups with a rank at the same position below it.
    copies = [max(1, min(stride, size) // host) for size in sizes[1:]]
    first = cross(replace(rank_map, **parts), groups.array[:count], copies)
    repeated = {f.name: getattr(first, f.name) for f in fields(Crossings)}
    for name, array in repeated.items():
        if isinstance(array, np.ndarray):
            repeated[name] = np.tile(array, repeats)
    starts = groups.array[:, 0]
    repeated["worst"] = repeated["worst"] + (starts - np.tile(starts[:count], repeats))
    return Crossings(**repeated)


def _domain_sizes(rank_map: RankMap) -> list[int]:
    """Return the devices of a host and of the domains of each network level, or none unless they are regular."""
    cluster = rank_map.cluster
    if len(cluster.templates) != 1 or cluster.nvlink_of_node is not None:
        return []
    if any(level.uplink_share is not None for level in cluster.levels):
        return []
    host = len(cluster.templates[0].devices)
    sizes = [host]
    number = np.arange(cluster.n_nodes)
    for level in cluster.levels:
        nodes = int((level.of_node != level.of_node[0]).argmax()) or cluster.n_nodes
        if not np.array_equal(level.of_node, number // nodes):
            return []
        sizes.append(nodes * host)
    return sizes if len(sizes) == 1 + len(rank_map.domains) - len(INNER_LEVELS) else []
