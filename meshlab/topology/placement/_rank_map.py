"""RankMap: the hardware position of every rank, as the flat arrays from which crossings are computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from meshlab.base._errors import TopologyError
from meshlab.mesh._mesh import DeviceMesh
from meshlab.topology.model._cluster import Cluster
from meshlab.topology.model._hardware import Node
from meshlab.topology.model._levels import INNER_LEVELS, Floats, Ints
from meshlab.topology.model._links import Distance
from meshlab.topology.model._rails import rails_of


@dataclass(frozen=True, eq=False)
class RankMap:
    """Devices and NICs of every rank on a cluster."""

    cluster: Cluster
    domains: Ints  # int32 of shape (levels, ranks): the domain of every rank at every level
    # int32 of shape (ranks,): the host, the index of the device in the host, and the host's template.
    node: Ints
    local: Ints
    kind: Ints
    nic_set: Ints  # int32 of shape (ranks,): the set of nearest NICs. The sets of a host have consecutive numbers.
    # Number of NICs, their total GB/s, and the host of every set.
    set_nics: Ints
    set_gbs: Floats
    set_node: Ints
    # If sets share NICs, all pairs of a set and one of its NICs, ordered by set: the set, the NIC, and the NIC's GB/s.
    # None if no NIC is in two sets.
    overlap: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], Floats] | None
    # `Distance` and GB/s between the devices of a host, of shape (templates, devices, devices).
    distance: npt.NDArray[np.int8]
    gbs: Floats
    nvlink_gbs: Floats  # float64 of shape (ranks,): GB/s of the rank's NVLinks to other hosts
    # bool of shape (templates,): True if two devices in different NVLink domains have NVLink between them.
    patchy: npt.NDArray[np.bool_]
    cut_off: npt.NDArray[np.bool_]  # bool of shape (templates,): True if no NIC of the host is connected
    one_rank_each: bool  # True if every device has at most one rank

    @classmethod
    def of(cls, cluster: Cluster, devices: Ints) -> RankMap:
        """Create the map from the device of every rank."""
        in_order = np.array_equal(devices, np.arange(len(devices)))
        # A slice is a view, and copies nothing.
        chosen = slice(len(devices)) if in_order else devices
        node = cluster.node_of[chosen]
        local = cluster.local_of[chosen]
        kind = cluster.kinds[node]
        templates = cluster.templates
        most = max(len(template.devices) for template in templates)
        distance = np.full((len(templates), most, most), Distance.UNKNOWN, dtype=np.int8)
        gbs = np.full((len(templates), most, most), np.nan)
        nvlink = np.full((len(templates), most), np.nan)
        sets = np.zeros((len(templates), most), dtype=np.int32)
        nics: list[Ints] = []
        speeds: list[Floats] = []
        for index, template in enumerate(templates):
            count = len(template.devices)
            distance[index, :count, :count] = template.distance[:count, :count]
            gbs[index, :count, :count] = template.gbs[:count, :count]
            is_linked = template.distance[:count, :count] == Distance.NVLINK
            linked = np.where(is_linked, template.gbs[:count, :count], np.nan)
            # The template lists links inside the host only. Through NVSwitch a device reaches other hosts with the same
            # NVLinks, so its fastest link inside the host is also its rate to other hosts.
            nvlink[index, :count] = np.fmax.reduce(linked, axis=1, initial=np.nan)
            sets[index, :count] = template.nic_groups
            first = np.unique(template.nic_groups, return_index=True)[1]
            nics.append(template.near_nics[first].sum(axis=1).astype(np.int32))
            each = np.array([nic.gbs for nic in template.nics], dtype=float)
            speeds.append(np.array([each[near].sum() for near in template.near_nics[first]]))
        # Sets are numbered per template above. Shift the numbers so that they are unique in the cluster.
        counts = np.array([len(of_sets) for of_sets in nics], dtype=np.int64)
        sizes = counts[cluster.kinds]
        offset = np.cumsum(sizes) - sizes
        # Of every set of the cluster, its place among the sets of all templates.
        of_template = np.arange(sizes.sum()) - np.repeat(offset - (np.cumsum(counts) - counts)[cluster.kinds], sizes)
        nic_set = (offset[node] + sets[kind, local]).astype(np.int32)
        return cls(
            cluster=cluster,
            domains=cluster.domains[:, chosen],
            node=node,
            local=local,
            kind=kind,
            nic_set=nic_set,
            set_nics=np.concatenate(nics)[of_template],
            set_gbs=np.concatenate(speeds)[of_template],
            set_node=np.repeat(np.arange(cluster.n_nodes, dtype=np.int32), sizes),
            overlap=_overlap(cluster, offset),
            distance=distance,
            gbs=gbs,
            nvlink_gbs=nvlink[kind, local],
            patchy=np.array([_is_patchy(template) for template in templates]),
            cut_off=np.array([template.is_cut_off for template in templates]),
            one_rank_each=in_order or int(np.bincount(devices).max()) == 1,
        )

    @cached_property
    def _rail_shares(self) -> dict[int, Floats | None]:
        """What each rail carries of a device's traffic by number of rails, None if every device uses one rail."""
        shares: dict[int, Floats | None] = {}
        for rails in {level.rails for level in self.cluster.levels} - {1}:
            tables = [rails_of(template, rails).share for template in self.cluster.templates]
            shares[rails] = None
            if any((np.count_nonzero(table, axis=1) > 1).any() for table in tables):
                stacked = np.zeros((len(tables), max(map(len, tables)), rails))
                for number, table in enumerate(tables):
                    stacked[number, : len(table)] = table
                shares[rails] = stacked
        return shares

    def switches_of(self, index: int, ranks: Ints) -> tuple[Ints, Ints | slice, Floats | float]:
        """Return the switches of a network level that ranks use: the switch, the place in `ranks`, and the share."""
        # A device that has lost its NIC uses the rails of several others.
        level, domain = self.cluster.levels[index - len(INNER_LEVELS)], self.domains[index][ranks]
        shares = self._rail_shares.get(level.rails)
        if shares is None:
            return domain, slice(None), 1.0
        of_rank = shares[self.kind[ranks], self.local[ranks]]
        place, rail = np.nonzero(of_rank)
        first = domain - domain % level.rails
        return (first[place] + rail).astype(np.int32), place.astype(np.int32), of_rank[place, rail]

    def rail_bits(self, index: int, ranks: Ints) -> npt.NDArray[np.uint64]:
        """Return the rails of a network level that every rank uses, as bits."""
        # Beyond 64 rails bits are shared, which can only overestimate alignment; no preset has that many.
        level, domain = self.cluster.levels[index - len(INNER_LEVELS)], self.domains[index][ranks]
        shares = self._rail_shares.get(level.rails)
        if shares is None:
            return np.asarray(np.left_shift(np.uint64(1), (domain % level.rails % 64).astype(np.uint64)))
        bit = np.left_shift(np.uint64(1), (np.arange(level.rails) % 64).astype(np.uint64))
        table = np.bitwise_or.reduce(np.where(shares > 0, bit, np.uint64(0)), axis=2)
        bits: npt.NDArray[np.uint64] = table[self.kind[ranks], self.local[ranks]]
        return bits

    def links(self, source: Ints, target: Ints) -> tuple[npt.NDArray[np.int8], Floats]:
        """Return the `Distance` and the GB/s of links between two ranks of a host, or of an NVLink domain."""
        together = self.node[source] == self.node[target]
        kind, i, j = self.kind[source], self.local[source], np.where(together, self.local[target], 0)
        # A hop between two hosts of one NVLink domain is not in any host's matrix. The slower device limits it.
        fabric = np.minimum(self.nvlink_gbs[source], self.nvlink_gbs[target])
        distance = np.where(together, self.distance[kind, i, j], Distance.NVLINK)
        return distance, np.where(together, self.gbs[kind, i, j], fabric)


def _is_patchy(template: Node) -> bool:
    """Return whether two devices of a host have NVLink although they are in different NVLink domains."""
    count = len(template.devices)
    domain = template.nvlink_groups
    linked = template.distance[:count, :count] == Distance.NVLINK
    return bool((linked & (domain[:, None] != domain)).any())


def _overlap(
    cluster: Cluster, offset: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], Floats] | None:
    """Return all pairs of a set and one of its NICs, see `RankMap`. None if no NIC is in two sets."""
    near = [t.near_nics[np.unique(t.nic_groups, return_index=True)[1]] for t in cluster.templates]
    if all(sets.sum(axis=0).max(initial=0) <= 1 for sets in near):
        return None
    pairs = [np.nonzero(sets) for sets in near]
    speeds = [np.array([nic.gbs for nic in t.nics], dtype=float) for t in cluster.templates]
    counts = np.array([len(gbs) for gbs in speeds], dtype=np.int64)[cluster.kinds]
    first = np.cumsum(counts) - counts
    kinds = cluster.kinds.tolist()
    return (
        np.concatenate([pairs[kind][0] + offset[node] for node, kind in enumerate(kinds)]),
        np.concatenate([pairs[kind][1] + first[node] for node, kind in enumerate(kinds)]),
        np.concatenate([speeds[kind][pairs[kind][1]] for kind in kinds]),
    )


def devices_of_ranks(
    mesh: DeviceMesh, cluster: Cluster, devices: Sequence[int] | Ints | None = None
) -> tuple[Cluster, Ints]:
    """Return the cluster, with CPU slots if it has no devices, and the device of every rank (by default device r)."""
    if not cluster.n_devices:
        cluster = cluster.with_cpu_slots(mesh.world_size)
    if devices is None:
        if mesh.world_size > cluster.n_devices:
            raise TopologyError(
                f"the mesh has {mesh.world_size:,} ranks, but the cluster has only {cluster.n_devices:,} devices",
                hint="use a smaller mesh or more nodes, or let ranks share devices with devices=",
            )
        return cluster, np.arange(mesh.world_size, dtype=np.int32)
    of_rank = np.asarray(devices)
    if of_rank.shape != (mesh.world_size,) or of_rank.dtype.kind not in "iu":
        raise TopologyError(
            f"devices must be {mesh.world_size:,} integers, one per rank, not {of_rank.dtype} of shape {of_rank.shape}"
        )
    outside = of_rank[(of_rank < 0) | (of_rank >= cluster.n_devices)]
    if outside.size:
        raise TopologyError(
            f"unknown device {outside[0]} in devices=", hint=f"choose numbers from 0 to {cluster.n_devices - 1:,}"
        )
    return cluster, of_rank.astype(np.int32)
