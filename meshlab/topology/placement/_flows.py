"""Flows: what every rank sends and receives while all groups of an axis run a collective by one of NCCL's algorithms.

The model is that of `meshlab.topology.placement._crossings`. A domain is what NCCL calls a node: a host, or a rack if
NVLink joins its hosts. Bytes that leave a domain use the NICs of all ranks that the group has there, in proportion to
the bandwidth that each set of NICs has left for the group, because NCCL's channels leave at different ranks.
Point-to-point messages use the sender's own NICs. For the same reason, the bytes inside an NVLink domain are averages
over the channels. Without NVLink they are those of a single order of the ranks.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from meshlab.base._collectives import COLLECTIVES
from meshlab.topology.model._levels import HOST, INNER_LEVELS, NVLINK, Bools, Floats, Ints
from meshlab.topology.model._links import Distance
from meshlab.topology.placement._crossings import all_hops, shares
from meshlab.topology.placement._rank_map import RankMap

Inside = tuple[Ints, Ints, Ints, Floats, Floats]
"""Rank, group, level, bytes and GB/s."""

Outside = tuple[Ints, Ints, Ints, Floats]
"""Rank, group, level and bytes."""

Entries = TypeVar("Entries", Inside, Outside)


@dataclass(frozen=True, eq=False)
class Flows:
    """The bytes that ranks send and receive. Every entry is one rank of one group."""

    # Over the network, the level is the outermost that the bytes reach: they pass the uplinks of all levels below it.
    # Sent and received inside domains: rank, group, level, bytes, and GB/s of the link.
    inside: Inside
    inside_in: Inside
    # Sent and received over the network: rank, group, level, bytes.
    sent: Outside
    received: Outside
    climbing: Ints  # groups with a hop that changes rails inside one set of leaf switches

    @classmethod
    def empty(cls) -> Flows:
        """Return no flows."""
        none, numbers = np.zeros(0, dtype=np.int32), np.zeros(0)
        return cls(*((none, none, none, numbers, numbers),) * 2, *((none, none, none, numbers),) * 2, none)

    def uplink_bytes(self, rank_map: RankMap, index: int) -> Floats:
        """Return the bytes on the uplink of every domain of a network level, the larger of both directions."""
        size = rank_map.cluster.levels[index - len(INNER_LEVELS)].n_switches
        sums = []
        for rank, _, level, bytes_ in self.outside:
            leaves = level > index
            link, place, part = rank_map.switches_of(index, rank[leaves])
            sums.append(np.bincount(link, weights=bytes_[leaves][place] * part, minlength=size))
        larger: Floats = np.maximum.reduce(sums)
        return larger

    @property
    def outside(self) -> tuple[Outside, ...]:
        """What is sent and received over the network, once if both are equal."""
        return (self.sent,) if self.received is self.sent else (self.sent, self.received)

    @property
    def within(self) -> tuple[Inside, ...]:
        """What is sent and received inside domains, once if both are equal."""
        return (self.inside,) if self.inside_in is self.inside else (self.inside, self.inside_in)

    def only(self, groups: Bools) -> Flows:
        """Return the flows of some groups."""

        def chosen(entries: Entries) -> Entries:
            return tuple(column[groups[entries[1]]] for column in entries)  # type: ignore[return-value]

        climbing = self.climbing[groups[self.climbing]]
        return Flows(chosen(self.inside), chosen(self.inside_in), chosen(self.sent), chosen(self.received), climbing)

    def joined(self, other: Flows) -> Flows:
        """Return the flows of both."""
        return Flows(
            _joined([self.inside, other.inside]),
            _joined([self.inside_in, other.inside_in]),
            _joined([self.sent, other.sent]),
            _joined([self.received, other.received]),
            np.concatenate([self.climbing, other.climbing]),
        )


def _joined(parts: Sequence[Entries]) -> Entries:
    """Return the entries of all parts."""
    if len(parts) == 1:
        return parts[0]
    return tuple(np.concatenate(columns) for columns in zip(*parts, strict=True))  # type: ignore[return-value]


def flows_of(rank_map: RankMap, groups: Ints, algorithm: str, collective: str, size: float) -> Flows:
    """Return the flows of all groups of an axis, of shape (groups, size), by an algorithm of the collective."""
    n = groups.shape[1]
    if n == 1:
        return Flows.empty()
    if algorithm == "p2p":
        messages = _all_to_all if collective == "all_to_all" else _chain
        return messages(rank_map, groups, size / n if collective == "all_to_all" else size)
    if algorithm == "pat":
        return _shifts(rank_map, groups, size / n, -1 if collective == "reduce_scatter" else 1)
    visits = _Visits.of(rank_map, groups)
    if algorithm == "ring":
        return _ring(visits, COLLECTIVES[collective].traffic[algorithm].busiest(n) * size)
    if algorithm == "tree":
        inside = _chains(visits, size)
        sent, climbing = _tree(visits, size)
        return Flows(inside, inside, sent, sent, climbing)
    inside, inside_in = _switch(visits, collective, size)
    if algorithm == "nvls":
        return Flows(inside, inside_in, *(Flows.empty().sent,) * 2, np.zeros(0, dtype=np.int32))
    sent, climbing = _tree(visits, size)
    return Flows(inside, inside_in, sent, sent, climbing)


# -- rings, trees and switches -----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Visits:
    """The domains of every group in the order of its ring. A run is the ranks of one group in one domain."""

    # `members`, `level` and `gbs` have shape (size, groups); `ranks`, `group` and `run` are flat, group first.
    rank_map: RankMap
    members: Ints
    level: npt.NDArray[np.int8]
    gbs: Floats
    ranks: Ints
    group: Ints
    run: npt.NDArray[np.intp]
    first: npt.NDArray[np.intp]
    length: npt.NDArray[np.intp]
    run_group: Ints
    out_level: Ints

    @classmethod
    def of(cls, rank_map: RankMap, groups: Ints) -> _Visits:
        """Return the visits of groups of shape (groups, size)."""
        members, level, _, gbs = all_hops(rank_map, groups)
        size, count = members.shape
        ranks, group = members.T.ravel(), np.repeat(np.arange(count, dtype=np.int32), size)
        is_rack = rank_map.cluster.nvlink_of_node is not None
        domain = (rank_map.domains[NVLINK] if is_rack else rank_map.node)[ranks]
        starts = np.ones(size * count, dtype=bool)
        starts[1:] = domain[1:] != domain[:-1]
        starts[::size] = True
        first = np.flatnonzero(starts)
        last = np.append(first[1:], size * count) - 1
        return cls(
            rank_map=rank_map,
            members=members,
            level=level,
            gbs=gbs,
            ranks=ranks,
            group=group,
            run=np.cumsum(starts) - 1,
            first=first,
            length=last - first + 1,
            run_group=group[first],
            out_level=level.T.ravel()[last].astype(np.int32),
        )

    @functools.cached_property
    def weight(self) -> Floats:
        """Share of each rank in the bytes that leave its domain, in proportion to the GB/s left for its group."""
        rank_map, run = self.rank_map, self.run
        # A set counts once for a group, however many of its ranks are near to it, and they divide its part evenly.
        is_leaving = (self.out_level > HOST) | (self.out_level[self.previous] > HOST)
        nic_set = rank_map.nic_set[self.ranks]
        key = run.astype(np.int64) * (int(nic_set.max()) + 1) + nic_set
        _, first, number, same = np.unique(key, return_index=True, return_inverse=True, return_counts=True)
        of_pair = run[first]
        share, _, _ = shares(rank_map, nic_set[first][is_leaving[of_pair]])
        rate = share[nic_set[first]]
        rate = np.where(np.isfinite(rate) & (rate > 0), rate, 0.0)
        total = np.bincount(of_pair, weights=rate, minlength=len(is_leaving))
        sets = np.bincount(of_pair, minlength=len(is_leaving))
        with np.errstate(divide="ignore", invalid="ignore"):
            part = np.where(total[of_pair] > 0, rate / total[of_pair], 1 / sets[of_pair])
        result: Floats = (part / same)[number]
        return result

    @functools.cached_property
    def previous(self) -> npt.NDArray[np.intp]:
        """The run before each run in the ring."""
        previous = np.arange(len(self.first)) - 1
        begins = np.ones(len(self.first), dtype=bool)
        begins[1:] = self.run_group[1:] != self.run_group[:-1]
        previous[begins] = np.append(np.flatnonzero(begins)[1:], len(self.first)) - 1
        return previous

    @functools.cached_property
    def is_last(self) -> Bools:
        """Whether each of `ranks` is the last one of its run."""
        is_last = np.zeros(len(self.ranks), dtype=bool)
        is_last[self.first + self.length - 1] = True
        return is_last

    @functools.cached_property
    def is_linked(self) -> Bools:
        """Whether all hops inside each run of several ranks are NVLink."""
        others = (self.level.T.ravel() != NVLINK) & ~self.is_last
        is_linked: Bools = (self.length > 1) & (np.bincount(self.run[others], minlength=len(self.first)) == 0)
        return is_linked

    def nvlink_gbs(self, ranks: npt.NDArray[np.intp]) -> Floats:
        """Return the GB/s of the NVLinks of some of `ranks` to the others of their runs."""
        # The hop of the last rank leaves the run, so take the one that enters it.
        gbs = self.gbs.T.ravel()[np.where(self.is_last[ranks], ranks - 1, ranks)]
        return _of_all_links(self.rank_map, self.ranks[ranks], gbs, self.length[self.run[ranks]] - 1)


def _of_all_links(rank_map: RankMap, ranks: Ints, pair_gbs: Floats, peers: npt.NDArray[np.integer]) -> Floats:
    """Return the GB/s of the NVLinks of ranks to several peers. Without a switch, there are separate links to each."""
    templates = rank_map.cluster.templates
    is_switched = np.array([template.has_nvswitch for template in templates])
    if is_switched.all():
        return pair_gbs
    most = np.array([template.device_nvlink_gbs for template in templates])
    kind = rank_map.kind[ranks]
    return np.where(is_switched[kind], pair_gbs, np.minimum(pair_gbs * np.maximum(peers, 1), most[kind]))


def _ring(visits: _Visits, volume: float) -> Flows:
    """Every rank sends `volume` bytes to the next one: over NVLink, or out of the domain where a channel leaves."""
    # The channels of a ring leave a domain at different ranks. With NVLink between all of its ranks, each rank sends a
    # share of the bytes out, and the rest over NVLink. Without, there is one order, and its last rank leaves.
    members, level, run = visits.members, visits.level, visits.run
    following = np.roll(members, -1, axis=0)
    group = np.broadcast_to(np.arange(members.shape[1], dtype=np.int32), members.shape)
    out_level = visits.out_level
    in_level = out_level[visits.previous]
    near = (level <= HOST) & (level > 0)
    is_averaged = visits.is_linked & (out_level > HOST)
    inside: list[Inside] = []
    inside_in: list[Inside] = []
    if is_averaged.any():
        chosen = np.flatnonzero(is_averaged[run])
        ranks, of_group = visits.ranks[chosen], visits.group[chosen]
        levels = np.full(len(chosen), NVLINK, dtype=np.int32)
        stays = volume * (1 - visits.weight[chosen])
        averaged = (ranks, of_group, levels, stays, visits.nvlink_gbs(chosen))
        inside.append(averaged)
        inside_in.append(averaged)
        near &= ~is_averaged[run].reshape(members.shape[::-1]).T
    if near.any() or not inside:
        rates, levels = visits.gbs[near], level[near].astype(np.int32)
        linked = levels == NVLINK
        if linked.any():
            peers = visits.length[run].reshape(members.shape[::-1]).T[near] - 1
            rates = np.where(linked, _of_all_links(visits.rank_map, members[near], rates, peers), rates)
        each = np.full(len(rates), volume)
        inside.append((members[near], group[near], levels, each, rates))
        inside_in.append((following[near], group[near], levels, each, rates))

    def flow(levels: Ints) -> Outside:
        leaves = levels[run] > HOST
        if not leaves.any():
            return Flows.empty().sent
        return visits.ranks[leaves], visits.group[leaves], levels[run][leaves], volume * visits.weight[leaves]

    climbing = _climbing(visits.rank_map, members, following, level)
    return Flows(_joined(inside), _joined(inside_in), flow(out_level), flow(in_level), climbing)


def _chains(visits: _Visits, size: float) -> Inside:
    """Inside a domain a tree is a chain of its ranks, up which and down which all bytes go."""
    chosen = np.flatnonzero(visits.is_linked[visits.run])
    length = visits.length[visits.run[chosen]]
    levels = np.full(len(chosen), NVLINK, dtype=np.int32)
    bytes_ = 2 * size * (length - 1) / length
    linked = visits.ranks[chosen], visits.group[chosen], levels, bytes_, visits.nvlink_gbs(chosen)
    hops = np.flatnonzero(~visits.is_linked[visits.run] & ~visits.is_last)
    if not len(hops):
        return linked
    levels, gbs = visits.level.T.ravel()[hops].astype(np.int32), visits.gbs.T.ravel()[hops]
    each = np.full(len(hops), size)
    ends = [(visits.ranks[k], visits.group[hops], levels, each, gbs) for k in (hops, hops + 1)]
    return _joined([linked, *ends])


def _switch(visits: _Visits, collective: str, size: float) -> tuple[Inside, Inside]:
    """NVSwitch reduces and multicasts. Every rank of a domain reduces a part of equal size."""
    chosen = np.flatnonzero(visits.length[visits.run] > 1)
    ranks, group = visits.ranks[chosen], visits.group[chosen]
    levels, gbs = np.full(len(chosen), NVLINK, dtype=np.int32), visits.nvlink_gbs(chosen)
    part = size / visits.length[visits.run[chosen]]
    whole = np.full(len(chosen), float(size))
    sent = {"all_reduce": whole + part, "all_gather": part}.get(collective, whole)
    received = {"all_reduce": whole + part, "reduce_scatter": part}.get(collective, whole)
    return (ranks, group, levels, sent, gbs), (ranks, group, levels, received, gbs)


def _tree(visits: _Visits, size: float) -> tuple[Outside, Ints]:
    """Return what ranks send over the network in a double binary tree of domains, and the groups that change rails."""
    # They receive as much, because every edge carries half of the bytes up and down.
    rank_map, count = visits.rank_map, visits.members.shape[1]
    domains = np.bincount(visits.run_group, minlength=count)
    first_run = np.cumsum(domains) - domains
    ends = [np.zeros((2, 0), dtype=np.int64)]
    for number in np.unique(domains[domains > 1]).tolist():
        of_groups = first_run[domains == number]
        ends.append((tree_edges(number)[:, :, None] + of_groups).reshape(2, -1))
    child, parent = np.concatenate(ends, axis=1)
    level = _run_levels(visits, child, parent)
    parts: list[Outside] = []
    for outer in np.unique(level).tolist():
        chosen = level == outer
        amount = np.bincount(np.concatenate([child[chosen], parent[chosen]]), minlength=len(visits.first)) * (size / 2)
        at = np.flatnonzero(amount[visits.run] > 0)
        bytes_ = amount[visits.run[at]] * visits.weight[at]
        parts.append((visits.ranks[at], visits.group[at], np.full(len(at), outer, dtype=np.int32), bytes_))
    climbing = np.zeros(0, dtype=np.int32)
    levels = rank_map.cluster.levels
    if levels and levels[0].rails > 1 and len(child):
        unit = levels[0].of_node[rank_map.node[visits.ranks[visits.first]]]
        changes = (unit[child] == unit[parent]) & (level > len(INNER_LEVELS))
        climbing = np.unique(visits.run_group[child[changes]]).astype(np.int32)
    return _joined(parts) if parts else Flows.empty().sent, climbing


def _run_levels(visits: _Visits, child: npt.NDArray[np.intp], parent: npt.NDArray[np.intp]) -> Ints:
    """Return the innermost network level that joins two runs. On rails, both runs have ranks on a common rail."""
    rank_map = visits.rank_map
    lead = visits.ranks[visits.first]
    level = np.full(len(child), len(rank_map.domains) - 1, dtype=np.int32)
    for index in range(len(rank_map.domains) - 2, HOST, -1):
        network, domain = rank_map.cluster.levels[index - len(INNER_LEVELS)], rank_map.domains[index]
        if network.rails == 1:
            level[domain[lead[child]] == domain[lead[parent]]] = index
            continue
        rails = np.bitwise_or.reduceat(rank_map.rail_bits(index, visits.ranks), visits.first)
        unit = network.of_node[rank_map.node[lead]]
        level[((rails[child] & rails[parent]) > 0) & (unit[child] == unit[parent])] = index
    return level


@functools.lru_cache(maxsize=32)
def tree_edges(n: int) -> npt.NDArray[np.int64]:
    """Return the edges of both binary trees that NCCL builds over n domains, as children and parents."""
    # The second tree mirrors the first one or, if n is odd, shifts it by one, so that the inner domains of one tree are
    # leaves of the other (NVIDIA/nccl src/graph/trees.cc). Each tree has half of the bytes.
    child = np.arange(1, n)
    bit = child & -child
    up = (child ^ bit) | (bit << 1)
    parent = np.where(up >= n, child ^ bit, up)
    edges = np.stack([child, parent])
    second = n - 1 - edges if n % 2 == 0 else (edges + 1) % n
    return np.concatenate([edges, second], axis=1)


def _climbing(rank_map: RankMap, members: Ints, following: Ints, level: npt.NDArray[np.integer]) -> Ints:
    """Return the groups with a hop between rails of one set of leaf switches."""
    levels = rank_map.cluster.levels
    if not levels or levels[0].rails == 1:
        return np.zeros(0, dtype=np.int32)
    leaf = levels[0].of_node
    same = leaf[rank_map.node[members]] == leaf[rank_map.node[following]]
    return np.flatnonzero((same & (level > len(INNER_LEVELS))).any(axis=0)).astype(np.int32)


# -- messages ----------------------------------------------------------------------------------------------------------


def _chain(rank_map: RankMap, groups: Ints, volume: float) -> Flows:
    """Every rank but the last sends `volume` bytes to the next one, over its own NICs."""
    members = np.ascontiguousarray(groups.T)
    source, target = members[:-1], members[1:]
    group = np.broadcast_to(np.arange(len(groups), dtype=np.int32), source.shape)
    level = _pair_levels(rank_map, source, target)
    near = (level <= HOST) & (level > 0)
    _, rates = rank_map.links(source[near], target[near])
    each = np.full(len(rates), volume)
    far = level > HOST
    bytes_ = np.full(int(far.sum()), volume)
    return Flows(
        (source[near], group[near], level[near], each, rates),
        (target[near], group[near], level[near], each, rates),
        (source[far], group[far], level[far], bytes_),
        (target[far], group[far], level[far], bytes_),
        _climbing(rank_map, source, target, level.astype(np.int8)),
    )


def _shifts(rank_map: RankMap, groups: Ints, chunk: float, sign: int) -> Flows:
    """Every rank sends chunks over each distance 2^k, and most of them to its neighbour (PAT)."""
    members = np.ascontiguousarray(groups.T)
    size = len(members)
    group = np.broadcast_to(np.arange(len(groups), dtype=np.int32), members.shape)
    sent: list[Outside] = []
    received: list[Outside] = []
    climbing = []
    for k in range((size - 1).bit_length()):
        # In a binomial tree over all ranks, as many edges have the length 2^k as numbers below n have the lowest bit k.
        chunks = (size - 1 + 2**k) // 2 ** (k + 1)
        target = np.roll(members, -sign * 2**k, axis=0)
        level = _pair_levels(rank_map, members, target)
        bytes_ = np.full(members.size, chunks * chunk)
        sent.append((members.ravel(), group.ravel(), level.ravel(), bytes_))
        received.append((target.ravel(), group.ravel(), level.ravel(), bytes_))
        climbing.append(_climbing(rank_map, members, target, level))
    inside = Flows.empty().inside
    return Flows(inside, inside, _joined(sent), _joined(received), np.unique(np.concatenate(climbing)))


def _pair_levels(rank_map: RankMap, source: Ints, target: Ints) -> Ints:
    """Return the innermost level that joins each pair of ranks."""
    level = np.full(source.shape, len(rank_map.domains) - 1, dtype=np.int32)
    for index in range(len(rank_map.domains) - 2, -1, -1):
        domain = rank_map.domains[index]
        level[domain[source] == domain[target]] = index
    if rank_map.patchy.any():
        distance, _ = rank_map.links(source, target)
        level[(level == HOST) & (distance == Distance.NVLINK)] = NVLINK
    return level


def _all_to_all(rank_map: RankMap, groups: Ints, each: float) -> Flows:
    """Every rank sends `each` bytes to every other rank, over its own NICs."""
    count, size = groups.shape
    ranks = groups.ravel()
    group = np.repeat(np.arange(count, dtype=np.int32), size)
    levels = len(rank_map.domains)
    same = [_peers(group, domain[ranks]) for domain in rank_map.domains]  # ranks of the group in the same domain
    nvlink, host = same[NVLINK], np.maximum(same[NVLINK], same[HOST])
    # Either an NVLink domain is inside a host, or hosts are inside an NVLink domain.
    is_wider = nvlink > same[HOST]
    island = np.where(is_wider, rank_map.domains[NVLINK][ranks] + len(rank_map.cluster.names), rank_map.node[ranks])
    # A domain of a rail contains only some devices of a host, so count the ranks that are in either of them.
    reached = [
        host if k <= HOST else host + same[k] - _peers(group, island, rank_map.domains[k][ranks]) for k in range(levels)
    ]
    parts = [
        (nvlink - same[0], NVLINK, _of_all_links(rank_map, ranks, rank_map.nvlink_gbs[ranks], nvlink - same[0])),
        (host - nvlink, HOST, _slowest_inside(rank_map, groups)),
    ]

    def messages(peers: npt.NDArray[np.int64], level: int) -> tuple[Bools, Outside]:
        sends = peers > 0
        reach = np.full(int(sends.sum()), level, dtype=np.int32)
        return sends, (ranks[sends], group[sends], reach, np.multiply(peers[sends], each, dtype=np.float64))

    ins: list[Inside] = []
    for peers, level, gbs in parts:
        sends, flow = messages(peers, level)
        ins.append((*flow, gbs[sends]))
    inside = _joined(ins)
    outs = [messages(reached[level] - reached[level - 1], level)[1] for level in range(HOST + 1, levels)]
    out = _joined(outs) if outs else Flows.empty().sent
    climbing = np.zeros(0, dtype=np.int32)
    network = rank_map.cluster.levels
    if network and network[0].rails > 1:
        climbing = np.unique(group[_peers(group, network[0].of_node[rank_map.node[ranks]]) > reached[HOST + 1]])
    return Flows(inside, inside, out, out, climbing)


def _slowest_inside(rank_map: RankMap, groups: Ints) -> Floats:
    """Return for every rank the GB/s of the slowest link without NVLink between the ranks of its group on its host."""
    # A ring through the ranks of a host crosses every border between them, such as that of two sockets.
    members, level, _, gbs = all_hops(rank_map, groups)
    ranks = groups.ravel()
    number = np.empty(int(ranks.max()) + 1, dtype=np.intp)
    group = np.repeat(np.arange(len(groups), dtype=np.int64), groups.shape[1])
    keys, number[ranks] = np.unique(group * rank_map.cluster.n_nodes + rank_map.node[ranks], return_inverse=True)
    slowest = np.full(len(keys), np.nan)
    near = level == HOST
    np.fmin.at(slowest, number[members[near]], gbs[near])
    rates: Floats = slowest[number[ranks]]
    return rates


def _peers(*columns: Ints) -> npt.NDArray[np.int64]:
    """Return for every row how many rows have the same values."""
    key = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        key = key * (int(column.max()) + 1) + column
    _, number, counts = np.unique(key, return_inverse=True, return_counts=True)
    return counts[number.ravel()]


# -- uneven messages ---------------------------------------------------------------------------------------------------

_MOST_PAIRS = 1 << 21  # whose levels are in memory at the same time


class TrafficSums(NamedTuple):
    """The bytes of a matrix by the level that they reach, while every group sends them between its members."""

    by_level: Floats  # (2, levels, groups, size): sent and received by every member, to and from the others
    largest_pair: Floats  # (groups,): from one member to another one inside an NVLink domain
    climbs: Bools  # (groups,): whether a message changes rails inside one set of leaf switches

    @classmethod
    def of(cls, rank_map: RankMap, groups: Ints, bytes_: npt.NDArray[np.number]) -> TrafficSums:
        """Return the sums of a matrix of shape (size, size) for groups of shape (groups, size)."""
        count, size = groups.shape
        between = np.array(bytes_, dtype=np.float64)
        np.fill_diagonal(between, 0.0)
        levels = len(rank_map.domains)
        sums, pairs, climbs = np.zeros((2, levels, count, size)), np.zeros(count), np.zeros(count, dtype=bool)
        step = max(1, _MOST_PAIRS // size**2)
        for first in range(0, count, step):
            part = slice(first, first + step)
            level = _matrix_levels(rank_map, groups[part])
            for number in np.unique(level).tolist():
                at = np.where(level == number, between, 0.0)
                sums[0, number, part], sums[1, number, part] = at.sum(axis=2), at.sum(axis=1)
                if number == NVLINK:
                    pairs[part] = at.max(axis=(1, 2))
            climbs[part] = _climbs(rank_map, groups[part], level, between > 0)
        return cls(sums, pairs, climbs)


def traffic_flows(rank_map: RankMap, groups: Ints, sums: TrafficSums) -> Flows:
    """Return the flows if the members of each group send the bytes of a matrix to each other.

    Every rank sends over its own NICs, as in an all_to_all, whose flows are those of a matrix with equal bytes.
    """
    if groups.shape[1] == 1 or not sums.by_level.any():
        return Flows.empty()
    group = np.repeat(np.arange(len(groups), dtype=np.int32), groups.shape[1])
    ranks = groups.ravel()
    peers = _peers(group, rank_map.domains[NVLINK][ranks]) - 1
    nvlink_gbs = _of_all_links(rank_map, ranks, rank_map.nvlink_gbs[ranks], peers)
    inside = [(NVLINK, nvlink_gbs), (HOST, _slowest_inside(rank_map, groups))]

    def entries(amount: Floats, number: int) -> tuple[npt.NDArray[np.intp], Outside]:
        at = np.flatnonzero(amount)
        return at, (ranks[at], group[at], np.full(len(at), number, dtype=np.int32), amount[at])

    within: list[Inside] = []
    outside: list[Outside] = []
    for by_level in sums.by_level.reshape(2, len(rank_map.domains), -1):
        parts: list[Inside] = []
        for number, rates in inside:
            at, flow = entries(by_level[number], number)
            parts.append((*flow, rates[at]))
        within.append(_joined(parts))
        far = [entries(by_level[number], number)[1] for number in range(HOST + 1, len(by_level))]
        outside.append(_joined(far) if far else Flows.empty().sent)
    climbing = np.flatnonzero(sums.climbs).astype(np.int32)
    return Flows(within[0], within[1], outside[0], outside[1], climbing)


def _matrix_levels(rank_map: RankMap, groups: Ints) -> npt.NDArray[np.int8]:
    """Return the innermost level that joins each pair of the members of every group: (groups, size, size)."""
    size = groups.shape[1]
    level = np.full((len(groups), size, size), len(rank_map.domains) - 1, dtype=np.int8)
    for index in range(len(rank_map.domains) - 2, -1, -1):
        domain = rank_map.domains[index][groups]
        np.copyto(level, np.int8(index), where=domain[:, :, None] == domain[:, None, :])
    if rank_map.patchy.any():
        at = np.nonzero(level == HOST)
        distance, _ = rank_map.links(groups[at[0], at[1]], groups[at[0], at[2]])
        level[at] = np.where(distance == Distance.NVLINK, NVLINK, HOST)
    return level


def _climbs(rank_map: RankMap, groups: Ints, level: npt.NDArray[np.int8], sends: Bools) -> Bools:
    """Return the groups that send between rails of one set of leaf switches."""
    network = rank_map.cluster.levels
    if not network or network[0].rails == 1:
        return np.zeros(len(groups), dtype=bool)
    leaf = network[0].of_node[rank_map.node[groups]]
    changes = (leaf[:, :, None] == leaf[:, None, :]) & (level > len(INNER_LEVELS)) & sends
    return np.asarray(changes.any(axis=(1, 2)))
