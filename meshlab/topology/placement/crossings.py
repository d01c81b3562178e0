"""What the groups of one axis cross and share, computed for all groups at once.

A ring is taken as NCCL builds it: every host is visited once, in the order of its first rank, and inside a host the
ranks follow each other in their order. Where every device has its own rail, a hop between hosts stays on a rail that
the group has on both.

A group is judged by the links between its own ranks. NVLink domains are sets in which every pair is linked, so where a
pair has lost its NVLink, a link between two domains can still be NVLink.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from meshlab.topology.model.cluster import INNER_LEVELS, Ints
from meshlab.topology.model.links import Distance, clique_numbers
from meshlab.topology.placement.rank_map import Floats, RankMap

__all__ = ["Crossings", "cross", "ring_hops"]

_NVLINK, _HOST = INNER_LEVELS.index("nvlink"), INNER_LEVELS.index("host")


@dataclass(frozen=True, eq=False)
class Crossings:
    """What each group crosses and shares; one entry per group, groups along the last dimension.

    Parameters
    ----------
    domains : numpy.ndarray
        int32 of shape (levels, groups): the domains that a group touches on every level; for NVLink inside a host the
        sets of its own ranks in which every pair is linked.
    hops : numpy.ndarray
        int32 of shape (levels, groups): the hops of its ring that each level joins.
    ranks_per_node : numpy.ndarray
        int32 of shape (2, groups): the fewest and the most ranks on one host.
    span : numpy.ndarray
        int32: the innermost level that holds the whole group.
    worst : numpy.ndarray
        int32 of shape (2, groups): the ranks at the ends of its worst hop; the first rank twice without any hop.
    worst_level : numpy.ndarray
        int32: the level of that hop.
    worst_distance : numpy.ndarray
        int32: its `Distance` where it stays in a host, UNKNOWN elsewhere.
    nics : numpy.ndarray
        int32: the NICs within its reach on its worst host; 0 for a group that uses none.
    groups_per_nic : numpy.ndarray
        float64: how many groups share its busiest NIC; NaN for a group that uses none, or where a host has none.
    node_gbs : numpy.ndarray
        float64: GB/s that it gets out of its worst host while all groups run; NaN for a group that uses no NIC.
    taper : numpy.ndarray
        float64: the largest 1:taper that a hop pays, 1 without.
    ring_gbs : numpy.ndarray
        float64: GB/s of its slowest hop while all groups run; NaN where something on the way is not known.
    groups_per_node : int
        The most groups of this axis that leave one host.
    """

    domains: Ints
    hops: Ints
    ranks_per_node: Ints
    span: Ints
    worst: Ints
    worst_level: Ints
    worst_distance: Ints
    nics: Ints
    groups_per_nic: Floats
    node_gbs: Floats
    taper: Floats
    ring_gbs: Floats
    groups_per_node: int


def cross(rank_map: RankMap, groups: Ints) -> Crossings:
    """Answer for all groups of one axis, which run at the same time.

    Parameters
    ----------
    rank_map : RankMap
    groups : numpy.ndarray
        int32 of shape (groups, size): the ranks of every group, in order.
    """
    count, size = groups.shape
    members = np.ascontiguousarray(_by_host(rank_map, groups).T)  # ranks along the first dimension: reductions are fast
    following = np.roll(members, -1, axis=0)
    domains, level = _levels(rank_map, members)
    if not np.all(domains[_HOST] == size):
        _align_rails(rank_map, members, level)
    if rank_map.patchy.any():
        _count_nvlink_sets(rank_map, members, domains)
    distance, gbs = _inside(rank_map, members, following, level)
    hops = np.zeros_like(domains)
    if size == 1:
        level[:] = 0
    else:
        for index in range(len(domains)):
            hops[index] = np.count_nonzero(level == index, axis=0)
    rank = level.astype(np.int16) * 16 + np.where(level <= _HOST, distance, Distance.UNKNOWN)
    position = rank.argmax(axis=0)
    columns = np.arange(count)
    leaves = level[position, columns] > _HOST
    if np.all(domains[_HOST] == size):
        ranks_per_node, nics, groups_per_nic, node_gbs, per_node = _nics_one_each(rank_map, members, leaves)
    else:
        ranks_per_node, nics, groups_per_nic, node_gbs, per_node = _nics(rank_map, members, leaves)
    taper, taper_gbs = _taper(rank_map, members, level)
    slowest = gbs.min(axis=0) if size > 1 else np.full(count, np.nan)
    ring = np.where(leaves, np.minimum(np.minimum(slowest, node_gbs), taper_gbs), slowest)
    ring[np.isinf(ring)] = np.nan
    return Crossings(
        domains=domains,
        hops=hops,
        ranks_per_node=ranks_per_node,
        span=(domains == 1).argmax(axis=0).astype(np.int32),
        worst=np.stack([members[position, columns], following[position, columns]]),
        worst_level=level[position, columns].astype(np.int32),
        worst_distance=np.where(leaves, Distance.UNKNOWN, distance[position, columns]).astype(np.int32),
        nics=nics,
        groups_per_nic=groups_per_nic,
        node_gbs=node_gbs,
        taper=taper,
        ring_gbs=ring,
        groups_per_node=per_node,
    )


def ring_hops(rank_map: RankMap, ranks: Ints) -> tuple[Ints, npt.NDArray[np.int8], npt.NDArray[np.int8], Floats]:
    """The ring of one group, hop by hop.

    Parameters
    ----------
    rank_map : RankMap
    ranks : numpy.ndarray
        int32 of shape (size,): the ranks of the group, in order.

    Returns
    -------
    tuple of numpy.ndarray
        Each of shape (size,): the ranks in the order of the ring, and for the hop from each to the next its level, its
        `Distance` inside a host (UNKNOWN outside), and GB/s, for hops over the network those of the NICs in reach.
    """
    members = np.ascontiguousarray(_by_host(rank_map, ranks[None]).T)
    _, level = _levels(rank_map, members)
    if len(ranks) > 1:
        _align_rails(rank_map, members, level)
    distance, gbs = _inside(rank_map, members, np.roll(members, -1, axis=0), level)
    one = members[:, 0]
    reach = rank_map.set_gbs[rank_map.nic_set[one]]
    outside = level[:, 0] > _HOST
    return one, level[:, 0], np.where(outside, Distance.UNKNOWN, distance[:, 0]), np.where(outside, reach, gbs[:, 0])


def _by_host(rank_map: RankMap, groups: Ints) -> Ints:
    """The groups with the ranks of each host side by side, hosts in the order of their first rank."""
    node = rank_map.node[groups]
    if np.all(node[:, 1:] >= node[:, :-1]):
        return groups
    count, size = groups.shape
    key = (np.arange(count, dtype=np.int64)[:, None] * rank_map.cluster.n_nodes + node).ravel()
    _, first, number = np.unique(key, return_index=True, return_inverse=True)
    # The first place of a host in its group orders the hosts; the sort is stable, so ranks keep their order inside.
    order = np.argsort(first[number.ravel()], kind="stable")
    return groups.ravel()[order].reshape(count, size)


def _levels(rank_map: RankMap, members: Ints) -> tuple[Ints, npt.NDArray[np.int8]]:
    """Domains touched per level and group, and the innermost level that joins the two ends of every hop."""
    size, count = members.shape
    levels = len(rank_map.domains)
    touched = np.ones((levels, count), dtype=np.int32)
    level = np.full(members.shape, levels - 1, dtype=np.int8)
    # Every rank is in the one domain of the outermost level, so only the levels below can tell hops apart.
    for index in range(levels - 2, -1, -1):
        if index == 0 and rank_map.one_rank_each:
            touched[0] = size
            continue
        domain = rank_map.domains[index][members]
        same = domain[1:] == domain[:-1]
        np.copyto(level[:-1], index, where=same)
        np.copyto(level[-1], index, where=domain[-1] == domain[0])
        if np.all(domain[1:] >= domain[:-1]):
            touched[index] = size - np.count_nonzero(same, axis=0)
        else:
            ordered = np.sort(domain.T, axis=1)
            touched[index] = 1 + np.count_nonzero(ordered[:, 1:] != ordered[:, :-1], axis=1)
    return touched, level


def _align_rails(rank_map: RankMap, members: Ints, level: npt.NDArray[np.int8]) -> None:
    """Lower hops between hosts to the rails that both ends have in the group: data leaves and enters on one rail."""
    for index, network in enumerate(rank_map.cluster.levels, len(INNER_LEVELS)):
        if network.rails == 1 or not (level > index).any():
            continue
        size, count = members.shape
        ranks = members.T.ravel()
        node = rank_map.node[ranks]
        start = np.ones(size * count, dtype=bool)
        start[1:] = node[1:] != node[:-1]
        start[::size] = True
        run = np.cumsum(start) - 1  # one run per group and host
        bits = np.left_shift(np.uint64(1), (rank_map.domains[index][ranks] % network.rails % 64).astype(np.uint64))
        rails = np.bitwise_or.reduceat(bits, np.flatnonzero(start))[run].reshape(count, size).T
        unit = network.of_node[node].reshape(count, size).T
        shared = (rails & np.roll(rails, -1, axis=0)) > 0
        aligned = shared & (unit == np.roll(unit, -1, axis=0))
        np.copyto(level, index, where=aligned & (level > index))


def _inside(
    rank_map: RankMap, members: Ints, following: Ints, level: npt.NDArray[np.int8]
) -> tuple[npt.NDArray[np.int8], Floats]:
    """For every hop how far apart its ends are inside the host, and GB/s; infinite for hops over the network.

    Lowers hops between two NVLink domains of a host to NVLink where they are linked after all.
    """
    distance = np.full(members.shape, Distance.UNKNOWN, dtype=np.int8)
    gbs = np.full(members.shape, np.inf)
    near = level <= _HOST
    one, other = members[near], following[near]
    if not len(one):
        return distance, gbs
    together = rank_map.node[one] == rank_map.node[other]
    kind, i, j = rank_map.kind[one], rank_map.local[one], np.where(together, rank_map.local[other], 0)
    # Two hosts of one NVLink domain: the words of a host say nothing, the devices' own NVLinks do.
    fabric = np.minimum(rank_map.nvlink_gbs[one], rank_map.nvlink_gbs[other])
    distance[near] = np.where(together, rank_map.distance[kind, i, j], Distance.NVLINK)
    gbs[near] = np.where(together, rank_map.gbs[kind, i, j], fabric)
    if rank_map.patchy.any():
        level[(level == _HOST) & (distance == Distance.NVLINK)] = _NVLINK
    return distance, gbs


def _count_nvlink_sets(rank_map: RankMap, members: Ints, domains: Ints) -> None:
    """Count the NVLink domains of groups inside one host by their own links, where the host's domains mislead."""
    kind = rank_map.kind[members[0]]
    doubtful = np.flatnonzero((domains[_HOST] == 1) & (domains[_NVLINK] > 1) & rank_map.patchy[kind])
    if not doubtful.size:
        return
    keys = np.concatenate([kind[None, doubtful], rank_map.local[members[:, doubtful]]]).T
    unique, number = np.unique(keys, axis=0, return_inverse=True)
    counts = []
    for key in unique:
        places = np.unique(key[1:])
        counts.append(1 + clique_numbers(rank_map.distance[key[0]][np.ix_(places, places)] == Distance.NVLINK).max())
    domains[_NVLINK, doubtful] = np.array(counts)[number.ravel()]


_Nics = tuple[Ints, Ints, Floats, Floats, int]


def _nics_one_each(rank_map: RankMap, members: Ints, leaves: npt.NDArray[np.bool_]) -> _Nics:
    """The same as `_nics`, where every rank of a group is on a host of its own: nothing has to be added up."""
    count = members.shape[1]
    ranks_per_node = np.ones((2, count), dtype=np.int32)
    nic_set = rank_map.nic_set[members]
    if not leaves.any():
        return _no_nics(ranks_per_node)
    using = nic_set if leaves.all() else nic_set[:, leaves]
    share, per_nic, sharing = _shares(rank_map, using.ravel())
    node_gbs = np.where(leaves, share[nic_set].min(axis=0), np.nan)
    node_gbs[node_gbs == 0] = np.nan
    busiest = per_nic[nic_set].max(axis=0)
    return (
        ranks_per_node,
        np.where(leaves, rank_map.set_nics[nic_set].min(axis=0), 0).astype(np.int32),
        np.where(leaves & np.isfinite(busiest), busiest, np.nan),
        node_gbs,
        int(np.bincount(rank_map.set_node, weights=sharing).max()),
    )


def _no_nics(ranks_per_node: Ints) -> _Nics:
    unknown = np.full(ranks_per_node.shape[1], np.nan)
    return ranks_per_node, np.zeros(len(unknown), dtype=np.int32), unknown, unknown.copy(), 0


def _shares(rank_map: RankMap, used: Ints) -> tuple[Floats, Floats, npt.NDArray[np.intp]]:
    """Per set of NICs: GB/s for each of its groups, groups per NIC, and groups; `used` has a set once per group."""
    sharing = np.bincount(used, minlength=len(rank_map.set_nics))
    with np.errstate(divide="ignore", invalid="ignore"):
        if rank_map.overlap is None:
            return rank_map.set_gbs / sharing, sharing / rank_map.set_nics, sharing
        # A group spreads evenly over the NICs of its set, and every NIC serves all its groups alike.
        of_set, nic, gbs = rank_map.overlap
        part = 1 / rank_map.set_nics[of_set]
        load = np.bincount(nic, weights=sharing[of_set] * part)[nic]
        share = np.bincount(of_set, weights=gbs * part / load, minlength=len(sharing)).astype(np.float64)
        busiest = np.zeros(len(sharing))
        np.maximum.at(busiest, of_set, load)
        busiest[rank_map.set_nics == 0] = np.nan
        return share, busiest, sharing


def _nics(rank_map: RankMap, members: Ints, leaves: npt.NDArray[np.bool_]) -> _Nics:
    """Ranks per host, and for the groups that leave it the NICs in reach, groups per NIC, and GB/s out of the host."""
    size, count = members.shape
    nic_set = np.ascontiguousarray(rank_map.nic_set[members].T)
    if not np.all(nic_set[:, 1:] >= nic_set[:, :-1]):
        nic_set.sort(axis=1)
    node = rank_map.set_node[nic_set]
    if not leaves.any() and np.array_equal(node[:, 0], node[:, -1]):
        return _no_nics(np.full((2, count), size, dtype=np.int32))
    node, nic_set = node.ravel(), nic_set.ravel()
    new_group = np.zeros(size * count, dtype=bool)
    new_group[::size] = True
    new_node = new_group.copy()
    new_node[1:] |= node[1:] != node[:-1]
    starts = np.flatnonzero(new_node)  # one run per group and host
    group_of_run = starts // size
    first_run = np.searchsorted(group_of_run, np.arange(count))
    lengths = np.diff(starts, append=size * count)
    fewest, most = np.minimum.reduceat(lengths, first_run), np.maximum.reduceat(lengths, first_run)
    ranks_per_node = np.stack([fewest, most]).astype(np.int32)
    if not leaves.any():
        return _no_nics(ranks_per_node)

    new_set = new_node
    new_set[1:] |= nic_set[1:] != nic_set[:-1]
    uses = new_set & np.repeat(leaves, size)
    share, per_nic, _ = _shares(rank_map, nic_set[uses])
    out = np.add.reduceat(np.where(uses, share[nic_set], 0.0), starts)
    reach = np.add.reduceat(np.where(uses, rank_map.set_nics[nic_set], 0), starts)
    node_gbs = np.where(leaves, np.minimum.reduceat(out, first_run), np.nan)
    node_gbs[node_gbs == 0] = np.nan
    busiest = np.maximum.reduceat(np.where(uses, per_nic[nic_set], 0.0), starts[first_run])
    return (
        ranks_per_node,
        np.where(leaves, np.minimum.reduceat(reach, first_run), 0).astype(np.int32),
        np.where(leaves & np.isfinite(busiest), busiest, np.nan),
        node_gbs,
        int(np.bincount(node[starts[leaves[group_of_run]]]).max()),
    )


def _taper(rank_map: RankMap, members: Ints, level: npt.NDArray[np.int8]) -> tuple[Floats, Floats]:
    """Per group the largest taper that a hop pays, and GB/s of a hop through the narrowest uplink; infinite without."""
    count = members.shape[1]
    taper = np.ones(count)
    gbs = np.full(count, np.inf)
    for index, network in enumerate(rank_map.cluster.levels, len(INNER_LEVELS)):
        if network.taper == 1:
            continue
        crossing = level >= index
        pays = crossing.any(axis=0)
        if not pays.any():
            continue
        taper[pays] = np.maximum(taper[pays], network.taper)
        below = rank_map.domains[index - 1]
        source = below[members]
        flows = np.bincount(source[crossing], minlength=int(below.max()) + 1)
        with np.errstate(divide="ignore", invalid="ignore"):
            each = _uplink(rank_map, index - 1) / network.taper / flows
        gbs = np.minimum(gbs, np.where(crossing, each[source], np.inf).min(axis=0))
    return taper, gbs


def _uplink(rank_map: RankMap, level: int) -> Floats:
    """GB/s that the NICs of every domain of a level can send together."""
    cluster = rank_map.cluster
    per_kind = [sum(t.nics[k].gbs for k in np.flatnonzero(t.near_nics.any(axis=0))) for t in cluster.templates]
    width = np.diff(cluster.first_device)
    with np.errstate(divide="ignore", invalid="ignore"):
        per_device = (np.array(per_kind)[cluster.kinds] / width)[cluster.node_of]
    total: Any = np.bincount(cluster.domains[level], weights=per_device)
    return np.asarray(total, dtype=float)
