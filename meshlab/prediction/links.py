"""GroupLinks: the links of the groups of an axis, reduced to the few distinct signatures that a cost depends on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from meshlab.topology.model.cluster import Cluster, Ints
from meshlab.topology.placement.placement import Placement
from meshlab.topology.placement.rank_map import Floats

__all__ = ["GroupLinks", "LinkTable"]


@dataclass(frozen=True, eq=False)
class GroupLinks:
    """Link facts of k distinct kinds of groups, from which `cost` predicts times. All fields have the shape (k,).

    All groups of the axis are assumed to run at the same time. A domain is what NCCL calls a node: an NVLink domain,
    which is a host, or a rack if NVLink joins its hosts.

    Parameters
    ----------
    n_ranks : numpy.ndarray
        int32: ranks per group.
    domains : numpy.ndarray
        int32: domains that the group spans.
    ranks_per_domain : numpy.ndarray
        int32: the largest number of its ranks in one domain.
    inner_gbs : numpy.ndarray
        float64: GB/s of a device to the others of its domain. Infinite if no domain has two ranks.
    inner_is_nvlink, is_switched : numpy.ndarray
        bool: whether these links are all NVLink, and whether through NVSwitch.
    compute_capability : numpy.ndarray
        int32: ten times the lowest compute capability, such as 90.
    nics : numpy.ndarray
        int32: NICs near the group's own devices in one domain, merged to at most one per rank as NCCL does. 0 if the
        group stays in one domain.
    nic_gbs : numpy.ndarray
        float64: practical GB/s of one of these NICs.
    network_gbs : numpy.ndarray
        float64: GB/s out of a domain while all groups run: the group's share of its NICs, and of the network above
        them. NaN if the group stays in one domain.
    groups_per_nic, taper : numpy.ndarray
        float64: groups that share the busiest NIC, and the oversubscription of the network. 1 if there is none.
    is_tapered : numpy.ndarray
        bool: whether the network above the NICs limits `network_gbs`, and not the NICs.
    network_latency_us : numpy.ndarray
        float64: latency of a hop between domains beyond the InfiniBand hop that NCCL's figures contain.
    has_ll128 : numpy.ndarray
        bool: whether NCCL would use the LL128 protocol.
    cpu : numpy.ndarray
        int8: index into `meshlab.prediction.constants.CPUS`.
    """

    n_ranks: Ints
    domains: Ints
    ranks_per_domain: Ints
    inner_gbs: Floats
    inner_is_nvlink: npt.NDArray[np.bool_]
    is_switched: npt.NDArray[np.bool_]
    compute_capability: Ints
    nics: Ints
    nic_gbs: Floats
    network_gbs: Floats
    groups_per_nic: Floats
    taper: Floats
    is_tapered: npt.NDArray[np.bool_]
    network_latency_us: Floats
    has_ll128: npt.NDArray[np.bool_]
    cpu: npt.NDArray[np.int8]

    @classmethod
    def of(cls, placement: Placement, axis: str) -> tuple[GroupLinks, Ints]:
        """Return the distinct signatures of the groups of an axis, and the signature of every group.

        Parameters
        ----------
        placement : Placement
            A mesh on a cluster of GPUs.
        axis : str
            An axis, or the name of a group.

        Returns
        -------
        tuple of GroupLinks and numpy.ndarray
            The signatures, and int32 of shape (groups,): the row of every group.

        Raises
        ------
        TopologyError
            If the cluster has no GPUs.
            If the bandwidth of a link that the groups use is unknown.

        Examples
        --------
        >>> import meshlab as ml
        >>> links, of_group = GroupLinks.of(ml.place("dp=4, tp=4", ml.preset("dgx-h100", nodes=2)), "dp")
        >>> links.domains.tolist(), links.nics.tolist(), links.network_gbs.tolist(), of_group.tolist()
        ([2], [2], [96.0], [0, 0, 0, 0])
        """
        raise NotImplementedError

    @classmethod
    def by_stride(cls, cluster: Cluster, world_size: int | None = None) -> LinkTable:
        """Return the table of all axes by size and stride, see `LinkTable`. It is cached per cluster.

        Parameters
        ----------
        cluster : Cluster
            The cluster.
        world_size : int, optional
            Number of ranks, on the first devices. By default all devices.
        """
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self.n_ranks)

    def rows(self, index: npt.NDArray[np.integer] | slice) -> GroupLinks:
        """Return the signatures of some rows."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class LinkTable:
    """Links of every axis that a mesh of a cluster can have, by size and stride.

    The stride of an axis is the product of the sizes of all faster axes. The groups of an axis are determined by its
    size and stride, whatever the other axes are. If the groups of an axis differ, the one with the slowest ring counts.

    Parameters
    ----------
    links : GroupLinks
        One row per pair of size and stride.
    sizes, strides : numpy.ndarray
        int64: the pair of every row.
    """

    links: GroupLinks
    sizes: npt.NDArray[np.int64]
    strides: npt.NDArray[np.int64]

    def index(self, size: npt.ArrayLike, stride: npt.ArrayLike) -> npt.NDArray[np.intp]:
        """Return the row of every pair of size and stride, in the broadcast shape of both.

        Raises
        ------
        TopologyError
            If size x stride does not divide the number of ranks.
        """
        raise NotImplementedError

    def union(self, sizes: npt.ArrayLike, strides: npt.ArrayLike) -> GroupLinks:
        """Return the links of unions of several axes, such as dp x cp.

        Parameters
        ----------
        sizes, strides : array_like of int
            Shape (u, axes): the axes of every union. Pad with size 1.

        Returns
        -------
        GroupLinks
            One row per union.
        """
        raise NotImplementedError
