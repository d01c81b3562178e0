"""The hardware position of every rank, as flat arrays that `meshlab.topology.placement.crossings` reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from meshlab.errors import TopologyError
from meshlab.mesh.mesh import DeviceMesh
from meshlab.topology.model.cluster import Cluster, Ints
from meshlab.topology.model.hardware import Node
from meshlab.topology.model.links import Distance

__all__ = ["Floats", "RankMap", "devices_of_ranks"]


Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class RankMap:
    """A cluster with a rank on each of some devices, prepared for questions about groups of these ranks.

    Parameters
    ----------
    cluster : Cluster
    domains : numpy.ndarray
        int32 of shape (levels, ranks).
    node, local, kind : numpy.ndarray
        int32 of shape (ranks,): the host, the place in it, and the host's template.
    nic_set : numpy.ndarray
        int32 of shape (ranks,): the set of nearest NICs; numbers rise with the host.
    set_nics, set_gbs, set_node : numpy.ndarray
        Per such set: how many NICs, their GB/s together, and the host.
    overlap : tuple of numpy.ndarray, optional
        Where sets share NICs, every pair of a set and a NIC of it, by set: the set, the NIC, and the NIC's GB/s.
    distance, gbs : numpy.ndarray
        Of shape (templates, places, places): how far apart devices of one host are, and what joins them.
    nvlink_gbs : numpy.ndarray
        float64 of shape (ranks,): what a rank can send by NVLink to another host.
    patchy : numpy.ndarray
        bool of shape (templates,): hosts where two devices can have NVLink between them and not be in one domain.
    one_rank_each : bool
        Whether no device has two ranks.
    """

    cluster: Cluster
    domains: Ints
    node: Ints
    local: Ints
    kind: Ints
    nic_set: Ints
    set_nics: Ints
    set_gbs: Floats
    set_node: Ints
    overlap: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], Floats] | None
    distance: npt.NDArray[np.int8]
    gbs: Floats
    nvlink_gbs: Floats
    patchy: npt.NDArray[np.bool_]
    one_rank_each: bool

    @classmethod
    def of(cls, cluster: Cluster, devices: Ints) -> RankMap:
        """Prepare a cluster for ranks on the given devices."""
        node = cluster.node_of[devices]
        local = cluster.local_of[devices]
        kind = cluster.kinds[node]
        templates = cluster.templates
        places = max(len(template.devices) for template in templates)
        distance = np.full((len(templates), places, places), Distance.UNKNOWN, dtype=np.int8)
        gbs = np.full((len(templates), places, places), np.nan)
        nvlink = np.full((len(templates), places), np.nan)
        sets = np.zeros((len(templates), places), dtype=np.int32)
        nics: list[Ints] = []
        speeds: list[Floats] = []
        for index, template in enumerate(templates):
            count = len(template.devices)
            if not count:
                nics.append(np.zeros(0, dtype=np.int32))
                speeds.append(np.zeros(0))
                continue
            distance[index, :count, :count] = template.distance[:count, :count]
            gbs[index, :count, :count] = template.gbs[:count, :count]
            linked = np.where(
                template.distance[:count, :count] == Distance.NVLINK, template.gbs[:count, :count], np.nan
            )
            nvlink[index, :count] = np.fmax.reduce(linked, axis=1, initial=np.nan)
            sets[index, :count] = template.nic_groups
            first = np.unique(template.nic_groups, return_index=True)[1]
            nics.append(template.near_nics[first].sum(axis=1).astype(np.int32))
            each = np.array([nic.gbs for nic in template.nics], dtype=float)
            speeds.append(np.array([each[near].sum() for near in template.near_nics[first]]))
        sizes = np.array([len(one) for one in nics], dtype=np.int64)[cluster.kinds]
        offset = np.cumsum(sizes) - sizes
        nic_set = (offset[node] + sets[kind, local]).astype(np.int32)
        return cls(
            cluster=cluster,
            domains=cluster.domains[:, devices],
            node=node,
            local=local,
            kind=kind,
            nic_set=nic_set,
            set_nics=np.concatenate([nics[k] for k in cluster.kinds]).astype(np.int32),
            set_gbs=np.concatenate([speeds[k] for k in cluster.kinds]),
            set_node=np.repeat(np.arange(cluster.n_nodes, dtype=np.int32), sizes),
            overlap=_overlap(cluster, offset),
            distance=distance,
            gbs=gbs,
            nvlink_gbs=nvlink[kind, local],
            patchy=np.array([_is_patchy(template) for template in templates]),
            one_rank_each=int(np.bincount(devices).max()) == 1,
        )


def _is_patchy(template: Node) -> bool:
    count = len(template.devices)
    domain = template.nvlink_groups
    linked = template.distance[:count, :count] == Distance.NVLINK
    return bool((linked & (domain[:, None] != domain)).any())


def _overlap(
    cluster: Cluster, offset: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], Floats] | None:
    near = [t.near_nics[np.unique(t.nic_groups, return_index=True)[1]] for t in cluster.templates]
    if all(sets.sum(axis=0).max(initial=0) <= 1 for sets in near):
        return None
    pairs = [np.nonzero(sets) for sets in near]
    speeds = [np.array([nic.gbs for nic in t.nics], dtype=float) for t in cluster.templates]
    counts = np.array([len(one) for one in speeds], dtype=np.int64)[cluster.kinds]
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
    """Which device every rank runs on.

    Parameters
    ----------
    mesh : DeviceMesh
    cluster : Cluster
        Without any device its hosts get CPU slots.
    devices : sequence of int, optional
        The device of every rank; rank r runs on device r when it is left out.

    Returns
    -------
    tuple of Cluster and numpy.ndarray
        The cluster, with CPU slots if it had no device, and int32 of shape (world_size,).

    Raises
    ------
    TopologyError
        If there are fewer devices than ranks, or the map does not name one existing device per rank.

    Examples
    --------
    >>> from meshlab.topology.model.presets import preset
    >>> devices_of_ranks(DeviceMesh("tp=4"), preset("dgx-h100"), [7, 6, 5, 4])[1].tolist()
    [7, 6, 5, 4]
    """
    if not cluster.n_devices:
        cluster = cluster.with_cpu_slots(mesh.world_size)
    if devices is None:
        if mesh.world_size > cluster.n_devices:
            raise TopologyError(
                f"the mesh has {mesh.world_size:,} ranks, but the cluster only {cluster.n_devices:,} devices; take a "
                "smaller mesh or more nodes, or say with devices= which ranks share a device"
            )
        return cluster, np.arange(mesh.world_size, dtype=np.int32)
    given = np.asarray(devices)
    if given.shape != (mesh.world_size,) or given.dtype.kind not in "iu":
        raise TopologyError(
            f"devices must be {mesh.world_size:,} whole numbers, one per rank, not {given.dtype} of shape {given.shape}"
        )
    outside = given[(given < 0) | (given >= cluster.n_devices)]
    if outside.size:
        raise TopologyError(f"there is no device {outside[0]}; they go from 0 to {cluster.n_devices - 1:,}")
    return cluster, given.astype(np.int32)
