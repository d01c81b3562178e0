"""Uneven: how much longer the links of groups are busy with a traffic than with an all_to_all of the same size."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshlab.mesh._traffic import Traffic
from meshlab.prediction._group_links import GroupLinks, exchanges_per_ns, uplink_time
from meshlab.topology.model._levels import HOST, NVLINK, Floats, Ints
from meshlab.topology.placement._flows import TrafficSums, traffic_flows
from meshlab.topology.placement._placement import Placement
from meshlab.topology.placement._rank_map import RankMap


@dataclass(frozen=True, eq=False)
class Uneven:
    """Factors of the time of k kinds of groups: 1 for the even traffic, and 0 for links that a traffic does not use.

    The size of a traffic is the largest sum of a rank, so an uneven one may also use a link less than an all_to_all.
    """

    inside: Floats  # of the links inside domains
    nics: Floats  # of the NICs and the PCIe links of ranks that send to other domains
    uplinks: Floats  # of oversubscribed uplinks

    @classmethod
    def of(
        cls, placement: Placement, axis: str, traffic: Traffic, links: GroupLinks, of_group: Ints
    ) -> tuple[Uneven, Ints, Ints]:
        """Return the factors of the kinds of groups, the signature of every kind, and the kind of every group."""
        groups, rank_map = placement.mesh[axis].array, placement.rank_map
        n = groups.shape[1]
        pcie_gbs = links.pcie_gbs[of_group]
        even = np.full((n, n), traffic.size_bytes / n)
        is_direct = links.inner_is_nvlink & ~links.is_switched
        direct = np.where(is_direct, links.ranks_per_domain - 1, 0)
        before, after = (
            _times(rank_map, groups, TrafficSums.of(rank_map, groups, array), pcie_gbs, direct[of_group])
            for array in (even, traffic.array)
        )
        with np.errstate(divide="ignore", invalid="ignore"):
            factors = np.where(before > 0, after / before, 1.0)
        keys, kind = np.unique(np.vstack([of_group, factors]), axis=1, return_inverse=True)
        return cls(*keys[1:]), keys[0].astype(np.int32), kind.ravel().astype(np.int32)


def _times(rank_map: RankMap, groups: Ints, sums: TrafficSums, pcie_gbs: Floats, direct: Ints) -> Floats:
    """Return the longest times of the three kinds of links of every group, of shape (3, groups)."""
    # Inside a domain they are bytes, because the links of a group have one rate. Without a switch, a rank has separate
    # links to each of its peers, so the busiest pair takes as long as a rank that sends as much to all of them.
    inside = np.maximum(sums.by_level[:, [NVLINK, HOST]].max(axis=(0, 1, 3)), sums.largest_pair * direct)
    with np.errstate(divide="ignore"):
        away = sums.by_level[:, HOST + 1 :].sum(axis=1)
        nics = [1 / exchanges_per_ns(rank_map, groups, part, pcie_gbs) for part in away]
    uplinks = uplink_time(rank_map, traffic_flows(rank_map, groups, sums), len(groups))
    return np.stack([inside, np.maximum(*nics), uplinks])
