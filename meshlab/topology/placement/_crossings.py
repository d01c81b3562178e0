"""Crossings: the links that the groups of one axis cross and share, computed for all groups with array operations.

The model is a ring as NCCL builds it. The ring visits every host once, in the order of its first rank, and the ranks of
a host in their order in the group. If every device has its own rail, a hop between hosts uses a rail on which the group
has a rank on both hosts.

A group is judged by the links between its own ranks, not by the NVLink domains of the host. All pairs in a domain are
linked, so if one pair has lost its NVLink, other pairs in different domains may still have it.

All arrays have the shape (size, groups): position in the ring first, group last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from meshlab.topology.model._levels import HOST, INNER_LEVELS, NVLINK, Floats, Ints
from meshlab.topology.model._links import Distance, clique_numbers
from meshlab.topology.model._rails import port_gbs, rails_of
from meshlab.topology.placement._rank_map import RankMap


@dataclass(frozen=True, eq=False)
class Crossings:
    """Links that each group crosses and shares. The last dimension of all arrays is the group."""

    domains: Ints  # (levels, groups); for NVLink inside a host, cliques among the group's own ranks
    hops: Ints  # (levels, groups), of the ring
    ranks_per_node: Ints  # (2, groups): minimum and maximum
    span: Ints  # innermost level that contains the complete group
    worst: Ints  # (2, groups): ranks on both sides of the worst hop; without a hop, the first rank twice
    worst_level: Ints  # of the worst hop
    worst_distance: Ints  # a `Distance` inside a host, UNKNOWN over the network
    nics: Ints  # nearest to the group's ranks on its worst host, 0 if it uses no NIC
    groups_per_nic: Floats  # on the busiest NIC; NaN if the group uses no NIC, or if a host has none
    node_gbs: Floats  # out of the worst host while all groups run, NaN if the group uses no NIC
    taper: Floats  # largest oversubscription on the ring, 1 if there is none
    inner_gbs: Floats  # slowest hop in a host or NVLink domain, infinite without one, NaN if unknown
    uplink_gbs: Floats  # slowest hop through an oversubscribed uplink, infinite if there is none
    ring_gbs: Floats  # slowest hop while all groups run, NaN if the speed of a hop is unknown
    groups_per_node: int  # maximum number of groups of the axis that leave one host


def cross(rank_map: RankMap, groups: Ints, copies: Sequence[int] | None = None) -> Crossings:
    """Compute the crossings of all groups of one axis, of shape (groups, size), while they run at the same time."""
    # Each group stands for `copies` groups in a domain of each network level, by default for itself alone.
    count, size = groups.shape
    # Shape (size, groups), C-contiguous: a reduction over axis 0 vectorises over all groups, even if size is 2.
    members = np.ascontiguousarray(_by_host(rank_map, groups).T)
    following = np.roll(members, -1, axis=0)
    domains, level = _levels(rank_map, members)
    # With one rank per host there is no choice of rails: the two ranks of a hop use their own.
    one_rank_per_host = bool(np.all(domains[HOST] == size))
    if not one_rank_per_host:
        _align_rails(rank_map, members, level)
    if rank_map.patchy.any():
        _count_nvlink_sets(rank_map, members, domains)
    distance, gbs = _inside(rank_map, members, following, level)
    hops = np.zeros_like(domains)
    if size == 1:
        level[:] = 0  # a rank reaches itself without a hop
    else:
        for index in range(len(domains)):
            hops[index] = np.count_nonzero(level == index, axis=0)
    # One argmax finds the worst hop: the key sorts by level, then by distance within a host. Distance has 8 values, so
    # a factor of 16 keeps them apart; int16 because int8 overflows at level 8. Ties go to a hop of unknown rate inside
    # a domain, such as XGMI through other GPUs, and then to the first hop.
    key = level.astype(np.int16) * 16 + np.where(level <= HOST, distance, Distance.UNKNOWN)
    position = (2 * key + ((level == NVLINK) & np.isnan(gbs))).argmax(axis=0)
    columns = np.arange(count)
    leaves = level[position, columns] > HOST
    use = (_nics_of_single_ranks if one_rank_per_host else _nics)(rank_map, members, leaves)
    taper, taper_gbs = _taper(rank_map, members, level, copies)
    # The minimum propagates NaN (an unknown speed) and ignores inf (no hop of this kind).
    slowest = gbs.min(axis=0) if size > 1 else np.full(count, np.inf)
    # If NVLink joins hosts, the ring leaves their domain through the NICs of all of them.
    joined = np.where(domains[NVLINK] < domains[HOST], domains[HOST] // domains[NVLINK], 1)
    ring = np.where(leaves, np.minimum(np.minimum(slowest, use.node_gbs * joined), taper_gbs), slowest)
    ring[np.isinf(ring)] = np.nan
    return Crossings(
        domains=domains,
        hops=hops,
        span=(domains == 1).argmax(axis=0).astype(np.int32),
        worst=np.stack([members[position, columns], following[position, columns]]),
        worst_level=level[position, columns].astype(np.int32),
        worst_distance=np.where(leaves, Distance.UNKNOWN, distance[position, columns]).astype(np.int32),
        taper=taper,
        inner_gbs=slowest,
        uplink_gbs=taper_gbs,
        ring_gbs=ring,
        **use._asdict(),
    )


def ring_hops(rank_map: RankMap, ranks: Ints) -> tuple[Ints, npt.NDArray[np.int8], npt.NDArray[np.int8], Floats]:
    """Return the ranks of one group in ring order, and level, `Distance` and GB/s of the hop from each to the next."""
    members, level, distance, gbs = all_hops(rank_map, ranks[None])
    order = members[:, 0]
    nic_gbs = rank_map.set_gbs[rank_map.nic_set[order]]
    outside = level[:, 0] > HOST
    distance_of_hop = np.where(outside, Distance.UNKNOWN, distance[:, 0])
    return order, level[:, 0], distance_of_hop, np.where(outside, nic_gbs, gbs[:, 0])


def all_hops(rank_map: RankMap, groups: Ints) -> tuple[Ints, npt.NDArray[np.int8], npt.NDArray[np.int8], Floats]:
    """Return ranks in ring order, and level, `Distance` and GB/s of the hop to the next: shape (size, groups)."""
    # GB/s are infinite over the network.
    members = np.ascontiguousarray(_by_host(rank_map, groups).T)
    _, level = _levels(rank_map, members)
    if len(members) > 1:
        _align_rails(rank_map, members, level)
    distance, gbs = _inside(rank_map, members, np.roll(members, -1, axis=0), level)
    return members, level, distance, gbs


def _by_host(rank_map: RankMap, groups: Ints) -> Ints:
    """Return the groups in ring order: the ranks of each host adjacent, hosts in the order of their first rank."""
    node = rank_map.node[groups]
    if np.all(node[:, 1:] >= node[:, :-1]):
        return groups
    count, size = groups.shape
    # One key per (group, host), so that a single sort handles all groups.
    key = (np.arange(count, dtype=np.int64)[:, None] * rank_map.cluster.n_nodes + node).ravel()
    _, first, number = np.unique(key, return_index=True, return_inverse=True)
    # Sort by the first position of a host in its group. Positions increase from group to group, so groups stay
    # together. The sort is stable, so ranks keep their order in the host.
    order = np.argsort(first[number.ravel()], kind="stable")
    return groups.ravel()[order].reshape(count, size)


def _levels(rank_map: RankMap, members: Ints) -> tuple[Ints, npt.NDArray[np.int8]]:
    """Return the number of domains of every group per level, and the innermost level that joins each hop."""
    size, count = members.shape
    levels = len(rank_map.domains)
    touched = np.ones((levels, count), dtype=np.int32)
    level = np.full(members.shape, levels - 1, dtype=np.int8)
    # The outermost level has a single domain and joins every hop, so it is the initial value. Going inwards, each level
    # that joins a hop overwrites the outer one.
    for index in range(levels - 2, -1, -1):
        if index == 0 and rank_map.one_rank_each:
            touched[0] = size
            continue
        domain = rank_map.domains[index][members]
        same = domain[1:] == domain[:-1]
        np.copyto(level[:-1], index, where=same)
        np.copyto(level[-1], index, where=domain[-1] == domain[0])
        # Ranks in ring order mostly have ascending domains. Equal ones are then adjacent, and no sort is needed.
        if np.all(domain[1:] >= domain[:-1]):
            touched[index] = size - np.count_nonzero(same, axis=0)
        else:
            ordered = np.sort(domain.T, axis=1)
            touched[index] = 1 + np.count_nonzero(ordered[:, 1:] != ordered[:, :-1], axis=1)
    return touched, level


def _align_rails(rank_map: RankMap, members: Ints, level: npt.NDArray[np.int8]) -> None:
    """Reduce the level of hops between hosts that have ranks of the group on a common rail."""
    # The two ranks may be on different rails, because NCCL moves data between the ranks of a host over NVLink.
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
        # One bit mask of rails per (group, host), so "do both hosts have a rank on a common rail" is one AND.
        bits = rank_map.rail_bits(index, ranks)
        rails = np.bitwise_or.reduceat(bits, np.flatnonzero(start))[run].reshape(count, size).T
        unit = network.of_node[node].reshape(count, size).T
        shared = (rails & np.roll(rails, -1, axis=0)) > 0
        aligned = shared & (unit == np.roll(unit, -1, axis=0))
        np.copyto(level, index, where=aligned & (level > index))


def _inside(
    rank_map: RankMap, members: Ints, following: Ints, level: npt.NDArray[np.int8]
) -> tuple[npt.NDArray[np.int8], Floats]:
    """Return the distance and GB/s of every hop inside a host, and infinite GB/s for hops over the network."""
    # Also reduces the level of hops that have NVLink although the two devices are in different NVLink domains.
    distance = np.full(members.shape, Distance.UNKNOWN, dtype=np.int8)
    gbs = np.full(members.shape, np.inf)
    near = level <= HOST
    source, target = members[near], following[near]
    if not len(source):
        return distance, gbs
    distance[near], gbs[near] = rank_map.links(source, target)
    if rank_map.patchy.any():
        level[(level == HOST) & (distance == Distance.NVLINK)] = NVLINK
    return distance, gbs


def _count_nvlink_sets(rank_map: RankMap, members: Ints, domains: Ints) -> None:
    """Count the NVLink cliques among the ranks of groups inside a patchy host."""
    # Domains are too coarse: after one failed link, two devices are in different ones, with NVLink to all others.
    kind = rank_map.kind[members[0]]
    doubtful = np.flatnonzero((domains[HOST] == 1) & (domains[NVLINK] > 1) & rank_map.patchy[kind])
    if not doubtful.size:
        return
    # Most groups occupy the same devices of identical hosts, so compute each combination once.
    keys = np.concatenate([kind[None, doubtful], rank_map.local[members[:, doubtful]]]).T
    unique, number = np.unique(keys, axis=0, return_inverse=True)
    counts = []
    for key in unique:
        devices = np.unique(key[1:])
        counts.append(1 + clique_numbers(rank_map.distance[key[0]][np.ix_(devices, devices)] == Distance.NVLINK).max())
    domains[NVLINK, doubtful] = np.array(counts)[number.ravel()]


class _NicUse(NamedTuple):
    """The fields of `Crossings` that concern NICs."""

    ranks_per_node: Ints
    nics: Ints
    groups_per_nic: Floats
    node_gbs: Floats
    groups_per_node: int


def _nics_of_single_ranks(rank_map: RankMap, members: Ints, leaves: npt.NDArray[np.bool_]) -> _NicUse:
    """Return the result of `_nics` for groups with one rank per host, without sums over the ranks of a host."""
    count = members.shape[1]
    ranks_per_node = np.ones((2, count), dtype=np.int32)
    nic_set = rank_map.nic_set[members]
    if not leaves.any():
        return _no_nics(ranks_per_node)
    using = nic_set if leaves.all() else nic_set[:, leaves]
    share, per_nic, sharing = shares(rank_map, using.ravel())
    node_gbs = np.where(leaves, share[nic_set].min(axis=0), np.nan)
    _without_unknown(rank_map, members, node_gbs)
    busiest = per_nic[nic_set].max(axis=0)
    return _NicUse(
        ranks_per_node,
        np.where(leaves, rank_map.set_nics[nic_set].min(axis=0), 0).astype(np.int32),
        np.where(leaves & np.isfinite(busiest), busiest, np.nan),
        node_gbs,
        int(np.bincount(rank_map.set_node, weights=sharing).max()),
    )


def _without_unknown(rank_map: RankMap, members: Ints, node_gbs: Floats) -> None:
    """Replace the GB/s of groups on a host without known NICs. On a host whose NICs all failed they are 0."""
    is_unknown = node_gbs == 0
    if rank_map.cut_off.any():
        is_unknown &= ~rank_map.cut_off[rank_map.kind[members]].any(axis=0)
    node_gbs[is_unknown] = np.nan


def _no_nics(ranks_per_node: Ints) -> _NicUse:
    """Return the result of `_nics` if no group leaves its host."""
    unknown = np.full(ranks_per_node.shape[1], np.nan)
    return _NicUse(ranks_per_node, np.zeros(len(unknown), dtype=np.int32), unknown, unknown.copy(), 0)


def shares(rank_map: RankMap, sets: Ints) -> tuple[Floats, Floats, npt.NDArray[np.intp]]:
    """Return for every set of NICs, listed once per group, GB/s per group, groups per NIC, and the number of groups."""
    sharing = np.bincount(sets, minlength=len(rank_map.set_nics))
    # A set that no group uses divides by zero. Its result is never read.
    with np.errstate(divide="ignore", invalid="ignore"):
        # Mostly no NIC is in two sets, so a set divides its bandwidth among its groups.
        if rank_map.overlap is None:
            return rank_map.set_gbs / sharing, sharing / rank_map.set_nics, sharing
        # Sets share NICs. A group divides its data among the NICs of its set in proportion to their bandwidth, and a
        # NIC divides its bandwidth among its groups in proportion to their data.
        of_set, nic, gbs = rank_map.overlap
        part = gbs / rank_map.set_gbs[of_set]
        part = np.where(np.isfinite(part), part, 1 / rank_map.set_nics[of_set])
        load = np.bincount(nic, weights=sharing[of_set] * part)[nic]
        share = np.bincount(of_set, weights=gbs * part / load, minlength=len(sharing)).astype(np.float64)
        busiest = np.zeros(len(sharing))
        np.maximum.at(busiest, of_set, load)
        busiest[rank_map.set_nics == 0] = np.nan
        return share, busiest, sharing


def _nics(rank_map: RankMap, members: Ints, leaves: npt.NDArray[np.bool_]) -> _NicUse:
    """Return the ranks per host, and for groups that leave their host the NICs and the GB/s out of it."""
    size, count = members.shape
    # The sets of a host have consecutive numbers, so sorting by set also brings the ranks of each host together.
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

    # A group uses each set once, even if several of its ranks are nearest to the same NICs.
    new_set = new_node
    new_set[1:] |= nic_set[1:] != nic_set[:-1]
    uses = new_set & np.repeat(leaves, size)
    share, per_nic, _ = shares(rank_map, nic_set[uses])
    out = np.add.reduceat(np.where(uses, share[nic_set], 0.0), starts)
    reach = np.add.reduceat(np.where(uses, rank_map.set_nics[nic_set], 0), starts)
    node_gbs = np.where(leaves, np.minimum.reduceat(out, first_run), np.nan)
    _without_unknown(rank_map, members, node_gbs)
    busiest = np.maximum.reduceat(np.where(uses, per_nic[nic_set], 0.0), starts[first_run])
    return _NicUse(
        ranks_per_node,
        np.where(leaves, np.minimum.reduceat(reach, first_run), 0).astype(np.int32),
        np.where(leaves & np.isfinite(busiest), busiest, np.nan),
        node_gbs,
        int(np.bincount(node[starts[leaves[group_of_run]]]).max()),
    )


def _taper(
    rank_map: RankMap, members: Ints, level: npt.NDArray[np.int8], copies: Sequence[int] | None
) -> tuple[Floats, Floats]:
    """Return each group's largest oversubscription, and GB/s of a hop through the slowest such uplink, or infinity."""
    count = members.shape[1]
    taper = np.ones(count)
    gbs = np.full(count, np.inf)
    for index in range(len(INNER_LEVELS), len(rank_map.domains)):
        rates = uplink_gbs(rank_map, index - 1)
        if rates is None:
            continue
        crossing = level >= index
        pays = crossing.any(axis=0)
        if not pays.any():
            continue
        # Every hop at this level or above leaves its domain of the level below through the uplink of that domain. All
        # groups run at the same time, so all hops that start in the domain share the uplink.
        hop, group = np.nonzero(crossing)
        link, place, part = _uplinks_of(rank_map, index - 1, members[hop, group])
        of_group = group[place]
        np.maximum.at(taper, of_group, rates.taper[link])
        flows = np.bincount(link, weights=np.broadcast_to(part, link.shape), minlength=len(rates.gbs))
        if copies is not None and index > len(INNER_LEVELS):
            flows *= copies[index - 1 - len(INNER_LEVELS)]
        with np.errstate(divide="ignore", invalid="ignore"):
            # A switch with all of its uplinks carries all that its NICs send.
            each = np.where(rates.taper > 1, rates.gbs / flows, np.inf)
        np.minimum.at(gbs, of_group, each[link])
    return taper, gbs


def _uplinks_of(rank_map: RankMap, level: int, ranks: Ints) -> tuple[Ints, Ints | slice, Floats | float]:
    """Return the uplinks that ranks use, see `RankMap.switches_of`. Those of a host are its NICs."""
    if level < len(INNER_LEVELS):
        return rank_map.domains[level][ranks], slice(None), 1.0
    return rank_map.switches_of(level, ranks)


class Uplinks(NamedTuple):
    """The uplinks of all switches of a level: GB/s, and the oversubscription, infinite for a switch without uplinks."""

    gbs: Floats
    taper: Floats


def uplink_gbs(rank_map: RankMap, level: int, *, always: bool = False) -> Uplinks | None:
    """Return the uplinks of every domain of a level. None if they carry all that the NICs send, unless `always`."""
    # A switch has uplinks for all of its ports, also for those of failed NICs, whose devices use other switches.
    cluster = rank_map.cluster
    at = level - len(INNER_LEVELS)
    share = cluster.levels[at].uplink_share if at >= 0 else None
    taper = cluster.levels[at + 1].taper
    if taper == 1 and share is None and not always:
        return None
    if at >= 0:
        total = port_gbs(cluster.intact or cluster, at)
    else:
        of_kind = np.array([rails_of(template, 1).port_gbs[0] for template in cluster.templates])
        total = of_kind[cluster.kinds]
    left = np.ones(len(total)) if share is None else share
    with np.errstate(divide="ignore"):
        return Uplinks(total * left / taper, taper / left)
