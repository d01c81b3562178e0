"""Failures of parts by name, and lower rates. `Cluster` provides them as methods."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from meshlab.base._errors import TopologyError
from meshlab.mesh._axes import short
from meshlab.topology._parts import KINDS_WITH_RATE, Part, find_part, rate_name
from meshlab.topology._whatif import (
    wired,
    with_failure,
    with_kinds,
    without_device,
    without_link,
    without_nic,
    without_node,
)
from meshlab.topology.model._cluster import Cluster
from meshlab.topology.model._hardware import Node
from meshlab.topology.model._levels import Bools, Floats, Ints, Level
from meshlab.topology.model._links import with_link_count
from meshlab.topology.model._rails import port_gbs, rails_of

_RATE = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)\s*(%|Gb/s|Gbit/s|GB/s)?", re.ASCII)
_LEAST_RATE = 0.0001


def with_failed(cluster: Cluster, *parts: str) -> Cluster:
    """Return the cluster in which some parts have failed, see `Cluster.with_failed`."""
    for name in parts:
        cluster = _failed(cluster, find_part(cluster, name))
    return cluster


def _failed(cluster: Cluster, part: Part) -> Cluster:
    """Return the cluster in which a part does not work, or is slower. A failed host keeps its place."""
    if part.share:
        return with_rate(cluster, part.bare, part.share)
    match part.kind:
        case "node":
            return without_node(cluster, part.node, keep_place=True)
        case "nic":
            return without_nic(cluster, part.node, part.number)
        case "device":
            return without_device(cluster, part.number)
        case "link":
            return without_link(cluster, part.number, part.other)
        case "cable":
            return _without_cable(cluster, part)
        case "switch":
            return _without_switch(cluster, part.word, part.number)
        case _:
            return _without_uplink(cluster, part)


def _without_cable(cluster: Cluster, part: Part) -> Cluster:
    """Return the cluster without the cable of a NIC. The NIC stays, but nothing uses it."""
    node = cluster.templates[cluster.kinds[part.node]]
    only = np.arange(len(node.nics)) == part.number
    changed = _disconnected(cluster, np.array([part.node], dtype=np.int32), lambda _: only)
    return with_failure(cluster, changed, part.name)


def _without_switch(cluster: Cluster, level: str, number: int) -> Cluster:
    """Return the cluster without a switch. Its NICs are not usable, or the switches below it have no way up."""
    at = _level_index(cluster, level)
    network = cluster.levels[at]
    if number in network.failed:
        raise TopologyError(f"{level} switch {number} has failed already")
    if at == 0 and len(cluster.levels) == 1 and network.of_node.max() == 0 and level == "cluster":
        raise TopologyError("the source does not describe the switches", hint="use with_network() to describe them")
    domain, rail = divmod(number, network.rails)
    hosts = np.flatnonzero(network.of_node == domain).astype(np.int32)
    levels = list(cluster.levels)
    levels[at] = replace(network, failed=(*network.failed, number))
    if at == 0:
        changed = _disconnected(
            cluster, hosts, lambda node: (rails_of(node, network.rails).of_nic == rail) | (network.rails == 1)
        )
    else:
        # A switch above the innermost level has no ports of NICs: the switches below it lose their way up.
        changed = cluster
        below = cluster.levels[at - 1]
        numbers = np.unique(below.of_node[hosts])[:, None] * below.rails + np.arange(below.rails)
        lost = numbers[:, [rail]] if network.rails > 1 and below.rails == network.rails else numbers
        levels[at - 1] = _with_share(below, lost.ravel(), 0.0)
        if at + 1 < len(levels):
            levels[at] = _with_share(levels[at], np.array([number]), 0.0)
    return with_failure(cluster, replace(changed, levels=tuple(levels)), f"{level}:{number}")


def _without_uplink(cluster: Cluster, part: Part) -> Cluster:
    """Return the cluster without some uplinks of a switch."""
    at = _uplink_level(cluster, part.word)
    total, bare = int(uplinks(cluster, at)[part.number]), part.bare
    lost = sum(find_part(cluster, name).amount for name in cluster.failed if name.partition("*")[0] == bare)
    if part.amount > total - lost:
        raise TopologyError(
            f"{part.word} switch {part.number} has {total:,} uplink{'s' * (total > 1)}"
            f"{f', and {lost:,} have failed' if lost else ''}: {part.amount:,} cannot fail",
            hint=f"choose at most {total - lost:,}" if lost < total else "restore one first",
        )
    lost += part.amount
    before = replace(cluster, failed=_others(cluster, bare))
    changed = _with_uplinks(cluster, at, part.number, 1 - lost / total)
    return with_failure(before, changed, bare if lost == 1 else f"{bare}*{lost}")


def with_rate(cluster: Cluster, part: str, rate: float | str) -> Cluster:
    """Return the cluster with a lower rate of a NIC, of NVLink or of uplinks, see `Cluster.with_rate`."""
    target = find_part(cluster, part)
    if target.kind not in KINDS_WITH_RATE:
        raise TopologyError(f"{target.text} has no rate", hint="choose a NIC, NVLink, or the uplinks of a switch")
    intact = cluster.intact or cluster
    if target.kind == "uplink":
        at = _uplink_level(cluster, target.word)
        share = _share(rate, float(_uplink_rates(intact, at)[target.number]))
        changed = _with_uplinks(cluster, at, target.number, share)
    else:
        whole = intact.templates[intact.kinds[target.node]]
        node = cluster.templates[cluster.kinds[target.node]]
        if target.kind == "nic":
            old = next(nic for nic in whole.nics if nic.name == target.word)
            if old.gbits is None:
                raise TopologyError(f"the line rate of {target.text} is unknown", hint="set the rate of another part")
            share = _share(rate, old.gbs, old.gbits)
            nic = replace(node.nics[target.number], gbits=old.gbits if share == 1 else old.gbits * share)
            new = replace(node, nics=(*node.nics[: target.number], nic, *node.nics[target.number + 1 :]))
        else:
            new, share = _with_links(whole, node, target, int(cluster.first_device[target.node]), rate)
        changed = with_kinds(cluster, np.array([target.node]), lambda _: new)
    others = _others(cluster, target.bare)
    if share < 1:
        return with_failure(replace(cluster, failed=others), changed, rate_name(target.bare, share))
    return replace(changed, failed=others, intact=cluster.intact if others else None)


def uplinks(cluster: Cluster, at: int) -> Ints:
    """Return the number of uplinks of every switch of a level: as many as NICs below it, less the oversubscription."""
    cluster = cluster.intact or cluster
    level = cluster.levels[at]
    ports = np.zeros(level.n_switches)
    for kind, node in enumerate(cluster.templates):
        hosts = np.bincount(level.of_node[cluster.kinds == kind], minlength=len(ports) // level.rails)
        of_nic = rails_of(node, level.rails).of_nic
        ports += (hosts[:, None] * np.bincount(of_nic[of_nic >= 0], minlength=level.rails)).ravel()
    return np.maximum(np.round(ports / cluster.levels[at + 1].taper), 1).astype(np.int32)


def _uplink_rates(cluster: Cluster, at: int) -> Floats:
    rates: Floats = port_gbs(cluster, at) / cluster.levels[at + 1].taper
    return rates


def _level_index(cluster: Cluster, level: str) -> int:
    names = [network.name for network in cluster.levels]
    if level not in names:
        hint = f"choose one of {', '.join(names)}" if names else "add hosts with with_nodes()"
        raise TopologyError(f"unknown network level {level!r}", hint=hint)
    return names.index(level)


def _uplink_level(cluster: Cluster, level: str) -> int:
    at = _level_index(cluster, level)
    if at + 1 == len(cluster.levels):
        raise TopologyError(f"{level} is the outermost level, so its switches have no uplinks")
    return at


def _others(cluster: Cluster, bare: str) -> tuple[str, ...]:
    """Return the failed parts without a lower rate, or a number of uplinks, of the same part."""
    return tuple(
        name
        for name in cluster.failed
        if not (name.startswith(f"{bare}=") or (bare.endswith("/uplink") and name.partition("*")[0] == bare))
    )


def _with_uplinks(cluster: Cluster, at: int, number: int, share: float) -> Cluster:
    levels = list(cluster.levels)
    levels[at] = _with_share(levels[at], np.array([number]), share)
    return replace(cluster, levels=tuple(levels))


def _with_share(level: Level, numbers: Ints, share: float) -> Level:
    """Return the level with what is left of the uplinks of some switches."""
    shares = np.ones(level.n_switches) if level.uplink_share is None else level.uplink_share.copy()
    shares[numbers] = share
    return replace(level, uplink_share=None if (shares == 1).all() else shares)


def _disconnected(cluster: Cluster, hosts: Ints, is_lost: Callable[[Node], Bools]) -> Cluster:
    """Return the cluster in which some NICs of some hosts have no connection."""

    def cut(node: Node) -> Node:
        node = wired(cluster, node)
        lost = is_lost(node).tolist()
        return replace(
            node,
            nics=tuple(
                replace(nic, is_connected=nic.is_connected and not off)
                for nic, off in zip(node.nics, lost, strict=True)
            ),
        )

    return with_kinds(cluster, hosts, cut)


def _with_links(whole: Node, node: Node, part: Part, first: int, rate: float | str) -> tuple[Node, float]:
    """Return a host with fewer NVLinks per pair of devices, and the share of them that is left."""
    local = part.number - first
    others = range(len(node.devices)) if part.other is None else [part.other - first]
    pairs = {frozenset((local, other)) for other in others if node.nvlinks[local, other] > 0}
    ids = {device.id: number for number, device in enumerate(whole.devices)}
    of_whole = [ids[device.id] for device in node.devices]

    def links(i: int, j: int) -> int:
        return int(whole.nvlinks[of_whole[i], of_whole[j]])

    most = max(links(*pair) for pair in map(tuple, pairs))
    share = _share(rate, max(float(whole.gbs[of_whole[i], of_whole[j]]) for i, j in map(tuple, pairs)))
    left = max(round(most * share), 1)

    def word(i: int, j: int) -> str:
        if frozenset((i, j)) not in pairs:
            return node.words[i][j]
        return with_link_count(node.words[i][j], max(round(links(i, j) * left / most), 1))

    size = range(len(node.words))
    return replace(node, words=tuple(tuple(word(i, j) for j in size) for i in size)), left / most


def _share(rate: float | str, gbs: float, gbits: float | None = None) -> float:
    """Return a rate as the share of a bandwidth."""
    number = _RATE.fullmatch(rate.strip()) if isinstance(rate, str) else None
    share = float("nan")
    if number is not None:
        unit = {"%": 100.0, None: 1.0, "GB/s": gbs}.get(number[2], gbs / 0.12 if gbits is None else gbits)
        share = float(number[1]) / unit
    elif isinstance(rate, int | float | np.number) and not isinstance(rate, bool):
        share = float(rate)
    if not _LEAST_RATE <= share <= 1 + 1e-9:
        raise TopologyError(
            f"the rate must be a share such as 0.5 or '50%', or a bandwidth up to {gbs:.4g} GB/s, not {short(rate)}",
            hint="to let the part fail, use with_failed()",
        )
    return min(round(share, 6), 1.0)
