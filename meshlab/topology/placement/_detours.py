"""Detours: the ranks that use other NICs and leaf switches since parts have failed, and what that costs, in words."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from meshlab.base._units import format_bandwidth
from meshlab.topology._parts import Part, find_part
from meshlab.topology.model._cluster import Cluster
from meshlab.topology.model._hardware import Node
from meshlab.topology.model._levels import HOST, Ints
from meshlab.topology.model._rails import rails_of

if TYPE_CHECKING:
    from meshlab.topology.placement._placement import Placement

_MOST_LISTED = 4  # ranks and parts in a sentence
_MOST_DETOURS = 2


@dataclass(frozen=True, eq=False)
class Detour:
    """Ranks at the same place in equal hosts that leave by other NICs than before."""

    ranks: Ints
    lost: tuple[str, ...]  # the NICs that the ranks used before and do not use since
    nics: tuple[str, ...]  # the NICs that they use, empty if none is connected
    rails: tuple[int, ...]  # the rails of these NICs, empty on a network without rails
    rails_before: tuple[int, ...]
    sharing: Ints  # other ranks on the host of the first rank that use the same NICs


def devices_before(cluster: Cluster, devices: Ints) -> Ints:
    """Return the index in the intact cluster of devices of a cluster with failed parts."""
    intact = cluster.intact
    assert intact is not None  # the cluster has failed parts
    if intact.n_devices == cluster.n_devices:
        return devices
    node, local = cluster.node_of[devices], cluster.local_of[devices]
    position = np.zeros((len(cluster.templates), int(cluster.local_of.max()) + 1), dtype=np.int32)
    for kind, node_of_kind in zip(*np.unique(cluster.kinds, return_index=True), strict=True):
        whole = [device.id for device in intact.templates[intact.kinds[node_of_kind]].devices]
        ids = [device.id for device in cluster.templates[kind].devices]
        position[kind, : len(ids)] = [whole.index(number) for number in ids]
    return (intact.first_device[node] + position[cluster.kinds[node], local]).astype(np.int32)


def detours(placement: Placement) -> list[Detour]:
    """Return the ranks of a placement that use other NICs, or other rails, than in the intact cluster."""
    cluster, intact, rank_map = placement.cluster, placement.cluster.intact, placement.rank_map
    if intact is None:
        return []
    rails = cluster.levels[0].rails if cluster.levels else 1
    pairs = cluster.kinds.astype(np.int64) * len(intact.templates) + intact.kinds
    separate = []
    for pair in np.unique(pairs).tolist():
        kind, before = divmod(pair, len(intact.templates))
        node, whole = cluster.templates[kind], intact.templates[before]
        if node is whole or not node.devices:
            continue
        is_here = pairs[rank_map.node] == pair
        ids = [device.id for device in whole.devices]
        for local, device in enumerate(node.devices):
            uses, usual = _path(node, local, rails), _path(whole, ids.index(device.id), rails)
            if uses == usual:
                continue
            ranks = np.flatnonzero(is_here & (rank_map.local == local)).astype(np.int32)
            if not len(ranks):
                continue
            near = node.near_nics
            others = np.flatnonzero((near & near[local]).any(axis=1) & (np.arange(len(near)) != local))
            host = rank_map.node[ranks[0]]
            sharing = np.flatnonzero((rank_map.node == host) & np.isin(rank_map.local, others)).astype(np.int32)
            lost = tuple(name for name in usual[0] if name not in uses[0])
            separate.append(Detour(ranks, lost, uses[0], uses[1], usual[1], sharing))
    separate.sort(key=lambda detour: int(detour.ranks[0]))
    # Hosts that have lost other parts, too, are of another kind, but the same happens there.
    merged: dict[tuple[object, ...], Detour] = {}
    for detour in separate:
        key = detour.lost, detour.nics, detour.rails, detour.rails_before
        ranks = np.sort(np.concatenate([merged[key].ranks, detour.ranks])) if key in merged else detour.ranks
        merged[key] = replace(merged.get(key, detour), ranks=ranks)
    return list(merged.values())


def _path(node: Node, local: int, rails: int) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return the NICs and the rails that a device uses."""
    names = tuple(node.nics[k].name for k in np.flatnonzero(node.near_nics[local]).tolist())
    if rails < 2 or not names:
        return names, ()
    return names, tuple(np.flatnonzero(rails_of(node, rails).share[local]).tolist())


def explain_failures(placement: Placement, axis: str) -> str:
    """Return the sentence about the ranks of an axis that leave elsewhere than before, and the cost. Mostly empty."""
    before = placement.before
    if before is None:
        return ""
    answer, usual = placement.of(axis), before.of(axis)
    leaves = answer.worst_level > HOST
    members = np.unique(placement.mesh[axis].array[leaves])
    concerned = [detour for detour in placement.detours if np.isin(detour.ranks, members).any()]
    moved = [detour for detour in concerned if detour.nics]
    clauses = [_moved(placement, detour, members) for detour in moved[:_MOST_DETOURS]]
    if len(moved) > _MOST_DETOURS:
        count = sum(len(np.intersect1d(detour.ranks, members)) for detour in moved[_MOST_DETOURS:])
        clauses.append(f"{count:,} other rank{'s leave' if count > 1 else ' leaves'} by other NICs, too")
    if stuck := [detour.ranks for detour in concerned if not detour.nics]:
        ranks = np.intersect1d(np.concatenate(stuck), members)
        clauses.append(f"{_ranks(ranks)} {'has' if len(ranks) == 1 else 'have'} no NIC left")
    cost = _cost(answer.ring_gbs, usual.ring_gbs)
    if not clauses and not cost:
        return ""
    parts = [_named(find_part(before.cluster, name)) for name in placement.cluster.failed]
    head = f"Because of {_listed(parts)}, "
    return head + ("; ".join(clauses) + (f": {cost}" if cost else "") if clauses else cost) + "."


def _moved(placement: Placement, detour: Detour, members: Ints) -> str:
    """Return the clause about the ranks of one detour."""
    ranks = np.intersect1d(detour.ranks, members)
    host = placement.cluster.names[int(placement.rank_map.node[ranks[0]])]
    is_single = len(ranks) == 1
    where = f" of {host}" if is_single else " of their hosts"
    verb = "leaves" if is_single else "leave"
    text = f"{_ranks(ranks)} {verb} by {_listed(detour.nics)}{where}"
    count = len(detour.sharing)
    if count:
        others = _ranks(detour.sharing) if is_single else "other ranks"
        text += f", which {others} also use{'s' * (count == 1 and is_single)},"
    if detour.lost:
        text += f" instead of {_listed(detour.lost)}"
    text = text.rstrip(",")
    if detour.rails != detour.rails_before:
        rails = [_listed(map(str, numbers)) for numbers in (detour.rails, detour.rails_before)]
        text += f", and by the leaf switch{'es' * (len(detour.rails) > 1)} of rail{'s' * (len(detour.rails) > 1)} "
        text += f"{rails[0]} instead of rail{'s' * (len(detour.rails_before) > 1)} {rails[1]}"
    return text


def _cost(gbs: np.ndarray, usual: np.ndarray) -> str:
    """Return the clause about the groups that are slower than before."""
    slower = gbs < usual * (1 - 1e-9)
    if not slower.any():
        return ""
    worst = int(np.argmin(np.where(slower, gbs / usual, np.inf)))
    count, total = int(slower.sum()), len(gbs)
    which = f"{count:,} of {total:,} groups" if count < total else "each group" if total > 1 else "the group"
    has = "has" if count == 1 or count == total else "have"
    if gbs[worst] == 0:
        return f"{which} {has} no path"
    least = "at least " if len(np.unique(np.round(gbs[slower], 6))) > 1 else ""
    return (
        f"{which} {has} {least}{format_bandwidth(float(gbs[worst]))} instead of {format_bandwidth(float(usual[worst]))}"
    )


def _named(part: Part) -> str:
    return f"the {part.text}" if part.kind in ("cable", "link") else part.text


def _ranks(ranks: Ints) -> str:
    numbers = [f"{rank:,}" for rank in ranks.tolist()]
    return f"rank{'s' * (len(numbers) > 1)} {_listed(numbers)}"


def _listed(names: Iterable[str]) -> str:
    """Return names as a list in words, the first of many."""
    items = list(names)
    if len(items) > _MOST_LISTED:
        items = [*items[: _MOST_LISTED - 1], f"{len(items) - _MOST_LISTED + 1:,} more"]
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)
