"""GroupLinks: the links of the groups of an axis, reduced to the few distinct signatures that a cost depends on."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field, fields

import numpy as np
import numpy.typing as npt

from meshlab.base._errors import TopologyError
from meshlab.mesh._axes import as_integer, divisors
from meshlab.prediction._constants import CPUS
from meshlab.topology.model._cluster import Cluster
from meshlab.topology.model._hardware import Node
from meshlab.topology.model._levels import DEVICE, HOST, INNER_LEVELS, NVLINK, Bools, Floats, Ints
from meshlab.topology.model._links import FABRICS, NEAR, Distance
from meshlab.topology.placement._axis_keys import AxisCache
from meshlab.topology.placement._crossings import Crossings, cross, uplink_gbs
from meshlab.topology.placement._flows import Flows, flows_of
from meshlab.topology.placement._placement import Placement
from meshlab.topology.placement._rank_map import RankMap

Longs = npt.NDArray[np.int64]

FABRIC_KINDS = tuple(FABRICS)
"""The kinds of networks, in the order of `GroupLinks.fabric`."""

_HOP_US = 2.7  # the network hop that NCCL's figures contain (NVIDIA/nccl src/graph/tuning.cc, LL ring)


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
        int32: NICs near the group's own devices in the domain with the fewest. 0 if the group stays in one domain.
    nic_gbs, pcie_gbs : numpy.ndarray
        float64: practical GB/s of one of these NICs, and of a device's PCIe link, infinite if unknown.
    network_gbs : numpy.ndarray
        float64: GB/s out of a domain while all groups run: the group's share of its NICs, at most the PCIe links of its
        devices. NaN if the group stays in one domain.
    exchange_gbs : numpy.ndarray
        float64: algorithm bandwidth of an all_to_all between domains in GB/s while all groups run. Every rank uses its
        own NICs and PCIe link, and the slowest one counts. NaN if the group stays in one domain.
    groups_per_nic : numpy.ndarray
        float64: groups that share the busiest NIC.
    taper, uplink_gbs : numpy.ndarray
        float64: oversubscription of the network, 1 if there is none, and GB/s of one hop of the group's ring through it
        while all groups run, infinite if there is none.
    tree_uplink_gbs, pat_uplink_gbs : numpy.ndarray
        float64: algorithm bandwidth in GB/s that the oversubscribed uplinks leave to the trees of an all_reduce, and to
        an all_gather with PAT, infinite if there is none. Both pass an uplink more often than a ring.
    uplink_ranks : numpy.ndarray
        int32: ranks of the group that send through one oversubscribed uplink, 1 if there is none.
    network_latency_us : numpy.ndarray
        float64: latency of a hop between domains beyond the InfiniBand hop that NCCL's figures contain.
    has_ll128 : numpy.ndarray
        bool: whether NCCL would use the LL128 protocol.
    cpu : numpy.ndarray
        int8: index into `meshlab.prediction._constants.CPUS`.
    fabric : numpy.ndarray
        int8: kind of the network between domains, an index into `FABRIC_KINDS`. -1 if the group stays in one domain.
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
    pcie_gbs: Floats
    network_gbs: Floats
    exchange_gbs: Floats
    groups_per_nic: Floats
    taper: Floats
    uplink_gbs: Floats
    tree_uplink_gbs: Floats
    pat_uplink_gbs: Floats
    uplink_ranks: Ints
    network_latency_us: Floats
    has_ll128: npt.NDArray[np.bool_]
    cpu: npt.NDArray[np.int8]
    fabric: npt.NDArray[np.int8]

    @classmethod
    def of(cls, placement: Placement, axis: str | Sequence[str]) -> tuple[GroupLinks, Ints]:
        """Return the distinct signatures of the groups of an axis, and the signature of every group.

        Parameters
        ----------
        placement : Placement
            A mesh on a cluster of GPUs.
        axis : str or sequence of str
            An axis, several axes, or the name of a group.

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
        groups = placement.mesh[axis]

        def make() -> tuple[GroupLinks, Ints]:
            return _distinct(_signatures(placement.rank_map, placement.of(axis), groups.array, f"{groups.name}: "))

        return _of_axes.get(placement, axis, _latencies(placement.cluster), make)

    @classmethod
    def by_stride(cls, cluster: Cluster, world_size: int | None = None) -> LinkTable:
        """Return the table of all axes by size and stride, see `LinkTable`. It is cached per cluster.

        Parameters
        ----------
        cluster : Cluster
            The cluster.
        world_size : int, optional
            Number of ranks, on the first devices. By default all devices.

        Raises
        ------
        TopologyError
            If the cluster has no GPUs, or fewer than `world_size` devices.
            If the bandwidth of a link is unknown.

        Examples
        --------
        >>> import meshlab as ml
        >>> table = GroupLinks.by_stride(ml.preset("dgx-h100", nodes=4))
        >>> table.links.domains[table.index([8, 4], [1, 8])].tolist()
        [1, 4]
        """
        size = cluster.n_devices if world_size is None else as_integer(world_size)
        if size is None or not 1 <= size <= cluster.n_devices:
            raise TopologyError(
                f"world_size must be an integer from 1 to the {cluster.n_devices:,} devices of the cluster, "
                f"not {world_size!r}",
                hint="use a cluster with more GPUs, such as ml.preset('dgx-h100', nodes=4)",
            )
        return _table(cluster, _latencies(cluster), size)

    def __len__(self) -> int:
        return len(self.n_ranks)

    def rows(self, index: npt.NDArray[np.integer] | slice) -> GroupLinks:
        """Return the signatures of some rows."""
        return GroupLinks(*(getattr(self, fact.name)[index] for fact in fields(self)))


@dataclass(frozen=True, eq=False)
class LinkTable:
    """Links of every axis that a mesh of a cluster can have, by size and stride.

    The stride of an axis is the product of the sizes of all faster axes. The groups of an axis are determined by its
    size and stride, not by the other axes. If the groups of an axis differ, the one with the slowest ring counts.

    Parameters
    ----------
    cluster : Cluster
        The cluster.
    world_size : int
        Number of ranks.
    links : GroupLinks
        One row per pair of size and stride.
    sizes, strides : numpy.ndarray
        int64: the pair of every row.
    cache : dict, default {}
        Cache of the unions that have no closed form.
    """

    cluster: Cluster
    world_size: int
    links: GroupLinks
    sizes: Longs
    strides: Longs
    cache: dict[tuple[tuple[int, int], ...], GroupLinks] = field(default_factory=dict)

    def index(self, size: npt.ArrayLike, stride: npt.ArrayLike) -> npt.NDArray[np.intp]:
        """Return the row of every pair of size and stride, in the broadcast shape of both.

        Raises
        ------
        TopologyError
            If size x stride does not divide the number of ranks.
        """
        size, stride = np.broadcast_arrays(np.asarray(size, dtype=np.int64), np.asarray(stride, dtype=np.int64))
        # An axis of one rank is the same for every stride.
        pairs = size * (self.world_size + 1) + np.where(size == 1, 1, stride)
        keys = self.sizes * (self.world_size + 1) + self.strides
        rows = np.minimum(np.searchsorted(keys, pairs), len(keys) - 1)
        wrong = np.flatnonzero(keys[rows] != pairs)
        if wrong.size:
            n, s = size.ravel()[wrong[0]], stride.ravel()[wrong[0]]
            raise TopologyError(
                f"no axis of {self.world_size:,} ranks has the size {n} and the stride {s}",
                hint="size x stride must divide the number of ranks",
            )
        return rows

    def union(self, sizes: npt.ArrayLike, strides: npt.ArrayLike) -> GroupLinks:
        """Return the links of unions of several axes, such as dp x cp, one row per union.

        Parameters
        ----------
        sizes, strides : array_like of int
            Shape (u, axes): the axes of every union, without common ranks but the first of a group. Pad with size 1.

        Examples
        --------
        The gradients of ``dp=2, cp=2, tp=8`` are reduced over the union of dp and cp:

        >>> import meshlab as ml
        >>> table = GroupLinks.by_stride(ml.preset("dgx-h100", nodes=4))
        >>> union = table.union([[2, 2]], [[16, 8]])
        >>> union.n_ranks.tolist(), union.domains.tolist()
        ([4], [4])
        """
        size = np.atleast_2d(np.asarray(sizes, dtype=np.int64))
        stride = np.atleast_2d(np.asarray(strides, dtype=np.int64))
        nested = _Nested.of(self.cluster, self.world_size)
        closed = np.zeros(len(size), dtype=bool) if nested is None else nested.covers(size, stride)
        parts = [] if nested is None or not closed.any() else [nested.links(size[closed], stride[closed])]
        for u in np.flatnonzero(~closed).tolist():
            axes = _merged(size[u].tolist(), stride[u].tolist())
            if axes not in self.cache:
                rank_map = _rank_map(self.cluster, _latencies(self.cluster), self.world_size)
                self.cache[axes] = _exact(rank_map, self.world_size, axes)
            parts.append(self.cache[axes])
        order = np.concatenate([np.flatnonzero(closed), np.flatnonzero(~closed)])
        return concatenate(parts).rows(np.argsort(order, kind="stable"))


_of_axes: AxisCache[tuple[GroupLinks, Ints]] = AxisCache(64)


# -- facts of groups ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Host:
    """The facts of one kind of host that a cost depends on."""

    compute_capability: int
    is_switched: bool
    device_gbs: float  # all NVLinks of a device together
    nic_gbs: float
    pcie_gbs: float
    has_near_nics: bool
    cpu: int
    fabric: int

    @classmethod
    def of(cls, node: Node) -> _Host:
        count = len(node.devices)
        versions = [device.compute_capability for device in node.devices]
        if any(device.backend == "cpu" for device in node.devices):
            raise TopologyError(
                f"{node.name} has CPU slots instead of GPUs, and there is no cost model for collectives on CPUs",
                hint="measure a few sizes and calibrate the prediction with the results, or use a cluster with GPUs",
            )
        if any(device.backend == "rocm" for device in node.devices):
            raise TopologyError(
                f"{node.name} has GPUs of AMD, and there is no cost model of RCCL",
                hint="compare with published curves instead: ml.judge(log), or ml.analysis.published('MI300X')",
            )
        if None in versions:
            raise TopologyError(
                f"the compute capability of the GPUs of {node.name} is unknown, and NCCL's tuner depends on it",
                hint="probe the host with ml.probe(), or use a preset such as ml.preset('dgx-h100')",
            )
        lowest = min((version[0] * 10 + version[1] for version in versions if version), default=0)
        near = node.near_nics
        near_nics = np.flatnonzero(near.any(axis=0)).tolist()
        nic = min((node.nics[k].gbs for k in near_nics), default=float("nan"))
        vendor = node.cpu_model or ""
        amd = "AMD" in vendor.upper()
        away = node.distance[:count, count:][near] if near.any() else np.array([NEAR])
        is_arm = "GRACE" in vendor.upper() or "NEOVERSE" in vendor.upper()
        # Between nodes NCCL uses LL128 only if NICs and GPUs share a PCIe switch, or are joined by NVLink-C2C.
        near_enough = bool(away.max() <= NEAR or (is_arm and lowest >= 90))
        return cls(
            compute_capability=lowest,
            is_switched=node.has_nvswitch,
            device_gbs=node.device_nvlink_gbs,
            nic_gbs=nic,
            pcie_gbs=float(np.nanmin([*(device.pcie_gbs for device in node.devices), np.inf])),
            has_near_nics=near_enough,
            cpu=CPUS.index("amd" if amd else "intel" if "INTEL" in vendor.upper() else "other"),
            # The slowest kind, if there are several.
            fabric=max((FABRIC_KINDS.index(node.nics[k].fabric) for k in near_nics), default=0),
        )


def _signatures(rank_map: RankMap, crossings: Crossings, groups: Ints, name: str = "") -> GroupLinks:
    """Return the links of every group, one row each."""
    count, n = groups.shape
    cluster = rank_map.cluster
    kinds = np.unique(rank_map.kind) if len(cluster.templates) > 1 else np.zeros(1, dtype=np.int32)
    hosts_of_kind = {int(kind): _Host.of(cluster.templates[kind]) for kind in kinds}
    if not rank_map.one_rank_each and (crossings.domains[DEVICE] < n).any():
        raise TopologyError(
            f"{name}several ranks of a group share a device, which NCCL does not support",
            hint="place every rank on its own device",
        )

    with_kind = {int(kind): (rank_map.kind[groups] == kind).any(axis=1) for kind in kinds} if len(kinds) > 1 else {}

    def lowest(what: str) -> npt.NDArray[np.float64]:
        values = np.full(count, float(getattr(hosts_of_kind[int(kinds[0])], what)) if len(kinds) == 1 else np.inf)
        for kind, groups_of_kind in with_kind.items():
            np.minimum(values, float(getattr(hosts_of_kind[kind], what)), out=values, where=groups_of_kind)
        return values

    hosts, cliques = crossings.domains[HOST], crossings.domains[NVLINK]
    joined = cliques < hosts  # NVLink joins hosts, so NCCL's node is the NVLink domain
    domains = np.where(joined, cliques, hosts)
    leaves = domains > 1
    per_domain = np.where(joined, -(-n // domains), crossings.ranks_per_node[1])
    has_inner = per_domain > 1
    is_nvlink = has_inner & (crossings.hops[HOST] == 0)
    switched, capability = lowest("is_switched") > 0, lowest("compute_capability")
    # Without a switch, a device has separate links to each of its peers, and rings use all of them.
    direct = np.minimum(crossings.inner_gbs * np.maximum(per_domain - 1, 1), lowest("device_gbs"))
    inner = np.where(is_nvlink & ~switched, direct, crossings.inner_gbs)
    inner = np.where(has_inner, inner, np.inf)
    _check_known(rank_map, groups, np.isnan(inner), f"{name}the bandwidth between the devices of", "link words")
    hosts_per_domain = np.where(joined, hosts // domains, 1)
    _check_path(rank_map, groups, leaves & ((crossings.node_gbs == 0) | (crossings.uplink_gbs == 0)), name)
    nic_gbs = np.where(leaves, lowest("nic_gbs"), np.nan)
    network = np.where(leaves, crossings.node_gbs * hosts_per_domain, np.nan)
    _check_known(rank_map, groups, leaves & np.isnan(network + nic_gbs), f"{name}the bandwidth of the NICs of", "NICs")
    nics = np.where(leaves, crossings.nics * hosts_per_domain, 0)
    pcie_gbs = lowest("pcie_gbs")
    # All ranks of a domain send through their own PCIe links, so the domain with the fewest ranks is the slowest.
    fewest = np.where(joined, n // domains, crossings.ranks_per_node[0])
    network = np.where(leaves, np.minimum(network, fewest * pcie_gbs), np.nan)
    uplink_ranks = np.ones(count, dtype=np.int32)
    # Levels become wider, so the widest oversubscribed one that the group crosses counts.
    for level in range(len(INNER_LEVELS), len(rank_map.domains)):
        below = crossings.domains[level - 1]
        if uplink_gbs(rank_map, level - 1) is not None:
            uplink_ranks = np.where(below > 1, -(-n // below), uplink_ranks)
    extra = np.array(
        [0.0] * len(INNER_LEVELS) + [max(0.0, (level.latency_us or 0.0) - _HOP_US) for level in cluster.levels]
    )
    return GroupLinks(
        n_ranks=np.full(count, n, dtype=np.int32),
        domains=domains.astype(np.int32),
        ranks_per_domain=per_domain.astype(np.int32),
        inner_gbs=inner,
        inner_is_nvlink=is_nvlink,
        is_switched=switched & is_nvlink,
        compute_capability=capability.astype(np.int32),
        nics=nics.astype(np.int32),
        nic_gbs=nic_gbs,
        pcie_gbs=pcie_gbs,
        network_gbs=network,
        exchange_gbs=_exchange_gbs(rank_map, groups, domains, per_domain, pcie_gbs),
        groups_per_nic=np.where(leaves, np.nan_to_num(crossings.groups_per_nic, nan=1.0), 1.0),
        taper=np.where(leaves, crossings.taper, 1.0),
        uplink_gbs=crossings.uplink_gbs,
        tree_uplink_gbs=_uplinks_gbs(rank_map, groups, crossings, "tree", "all_reduce"),
        pat_uplink_gbs=_uplinks_gbs(rank_map, groups, crossings, "pat", "all_gather"),
        uplink_ranks=uplink_ranks.astype(np.int32),
        network_latency_us=np.where(leaves, extra[crossings.worst_level], 0.0),
        has_ll128=(capability >= 70) & (is_nvlink | ~has_inner) & (~leaves | (lowest("has_near_nics") > 0)),
        cpu=lowest("cpu").astype(np.int8),
        fabric=np.where(leaves, lowest("fabric"), -1).astype(np.int8),
    )


def _uplinks_gbs(rank_map: RankMap, groups: Ints, crossings: Crossings, algorithm: str, collective: str) -> Floats:
    """Return the algorithm bandwidth that the oversubscribed uplinks leave to every group, infinite without any."""
    is_single = bool((crossings.ranks_per_node[1] == 1).all())
    if np.isinf(crossings.uplink_gbs).all() or (algorithm == "pat" and not is_single):
        return np.full(len(groups), np.inf)
    with np.errstate(divide="ignore"):
        return 1 / uplink_time(rank_map, flows_of(rank_map, groups, algorithm, collective, 1.0), len(groups))


def uplink_time(rank_map: RankMap, flows: Flows, count: int) -> Floats:
    """Return the ns of the slowest oversubscribed uplink of each of `count` groups, 0 without any."""
    longest = np.zeros(count)
    for index in range(len(INNER_LEVELS), len(rank_map.domains) - 1):
        rates = uplink_gbs(rank_map, index)
        if rates is None:
            continue
        time = np.where(rates.taper > 1, flows.uplink_bytes(rank_map, index) / rates.gbs, 0.0)
        for rank, group, level, _ in flows.outside:
            leaves = level > index
            link, place, _ = rank_map.switches_of(index, rank[leaves])
            np.maximum.at(longest, group[leaves][place], time[link])
    return longest


def _exchange_gbs(rank_map: RankMap, groups: Ints, domains: Ints, per_domain: Ints, pcie_gbs: Floats) -> Floats:
    """Return `GroupLinks.exchange_gbs`."""
    count, n = groups.shape
    leaves = domains > 1
    if not leaves.any():
        return np.full(count, np.nan)
    away = np.where(leaves, (n - per_domain) / n, 0.0)[:, None]
    is_rack = rank_map.cluster.nvlink_of_node is not None  # whose ranks per domain are an average
    if is_rack or (leaves & (domains * per_domain != n)).any():
        # Domains may differ, and a rank of the smallest one sends the most bytes out of it.
        domain = (rank_map.domains[NVLINK] if is_rack else rank_map.node)[groups].astype(np.int64)
        key = np.arange(count)[:, None] * (int(domain.max()) + 1) + domain
        _, number, together = np.unique(key, return_inverse=True, return_counts=True)
        away = np.where(leaves[:, None], (n - together[number].reshape(groups.shape)) / n, 0.0)
    slowest = exchanges_per_ns(rank_map, groups, np.broadcast_to(away, groups.shape), pcie_gbs)
    return np.where(leaves, slowest, np.nan)


def exchanges_per_ns(rank_map: RankMap, groups: Ints, away: Floats, pcie_gbs: Floats) -> Floats:
    """Return how often the NICs and PCIe links of every group can send the bytes that its ranks send away, per ns."""
    nic_set = rank_map.nic_set[groups]
    load = np.bincount(nic_set.ravel(), weights=away.ravel(), minlength=len(rank_map.set_gbs))
    with np.errstate(divide="ignore", invalid="ignore"):
        if rank_map.overlap is None:
            time = load / rank_map.set_gbs
        else:
            of_set, nic, gbs = rank_map.overlap
            of_nic = np.bincount(nic, weights=load[of_set] * gbs / rank_map.set_gbs[of_set])[nic] / gbs
            time = np.zeros(len(load))
            np.maximum.at(time, of_set, of_nic)
        return np.asarray(np.minimum(1 / time[nic_set].max(axis=1), pcie_gbs / away.max(axis=1)))


def _check_path(rank_map: RankMap, groups: Ints, is_cut: Bools, name: str) -> None:
    """Raise if failed parts leave a group no path."""
    if is_cut.any():
        hosts = rank_map.cluster.names
        first = hosts[int(rank_map.node[groups[int(is_cut.argmax()), 0]])]
        raise TopologyError(
            f"{name}no path joins the ranks of a group on {first} and on other hosts, because of failed parts",
            hint=f"restore one of {', '.join(rank_map.cluster.failed[:4])}",
        )


def _check_known(rank_map: RankMap, groups: Ints, unknown: Bools, what: str, needed: str) -> None:
    """Raise if a bandwidth that a group uses is unknown."""
    if unknown.any():
        node = int(rank_map.node[groups[unknown.argmax()]][0])
        raise TopologyError(
            f"{what} {rank_map.cluster.names[node]} is unknown",
            hint=f"add the {needed} of the host to its description: probe it with ml.probe(), read a complete "
            "nvidia-smi topo -m, or start from a preset such as ml.preset('dgx-h100')",
        )


def _distinct(links: GroupLinks) -> tuple[GroupLinks, Ints]:
    """Return the distinct rows, and the index of every row among them."""
    # A NaN differs from itself, so groups inside a domain would never be equal. Infinity would hide the rest of a sum.
    values = [getattr(links, fact.name).astype(float) for fact in fields(links)]
    columns = np.stack([np.nan_to_num(column, nan=-1.0, posinf=-2.0) for column in values])
    if np.all(columns == columns[:, :1]):
        return links.rows(slice(0, 1)), np.zeros(len(links), dtype=np.int32)
    # One float per row is several times faster to sort than rows. Irrational weights keep different rows apart.
    primes = [2.0, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79]
    key = np.sqrt(primes)[: len(columns)] @ columns
    _, first, number = np.unique(key.round(6), return_index=True, return_inverse=True)
    order = np.empty(len(first), dtype=np.int32)
    order[np.argsort(first)] = np.arange(len(first), dtype=np.int32)
    return links.rows(np.sort(first)), order[number.ravel()]


def concatenate(parts: Sequence[GroupLinks]) -> GroupLinks:
    """Return the signatures of all parts, in this order."""
    return GroupLinks(*(np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(GroupLinks)))


# -- the table by size and stride --------------------------------------------------------------------------------------


def _latencies(cluster: Cluster) -> tuple[float | str | None, ...]:
    """Return the part of a cache's key that the fingerprint, by which clusters are compared, does not contain."""
    kinds = {nic.fabric for node in cluster.templates for nic in node.nics}
    return (*(level.latency_us for level in cluster.levels), *sorted(kinds))


@functools.lru_cache(maxsize=8)
def _table(cluster: Cluster, latencies: tuple[float | str | None, ...], world_size: int) -> LinkTable:
    numbers = divisors(world_size)
    # Sorted by size and stride, as `LinkTable.index` expects.
    pairs = [(1, 1)] + [(n, s) for n in numbers[1:] for s in numbers if world_size % (n * s) == 0]
    sizes, strides = np.array(pairs, dtype=np.int64).T
    nested = _Nested.of(cluster, world_size)
    if nested is not None and nested.covers(sizes[:, None], strides[:, None]).all():
        links = nested.links(sizes[:, None], strides[:, None])
    else:
        rank_map = _rank_map(cluster, latencies, world_size)
        links = concatenate([_exact(rank_map, world_size, (pair,)) for pair in pairs])
    return LinkTable(cluster, world_size, links, sizes, strides)


@functools.lru_cache(maxsize=2)
def _rank_map(cluster: Cluster, latencies: tuple[float | str | None, ...], world_size: int) -> RankMap:
    return RankMap.of(cluster, np.arange(world_size, dtype=np.int32))


def _exact(rank_map: RankMap, world_size: int, axes: tuple[tuple[int, int], ...]) -> GroupLinks:
    """Return the links of the slowest group of a union of axes, from the crossings of all its groups."""
    members = np.zeros(1, dtype=np.int32)
    for size, stride in axes:
        members = np.add.outer(np.arange(size, dtype=np.int32) * stride, members).ravel()
    # The first ranks of the groups are those whose coordinate on every axis of the union is 0.
    ranks = np.arange(world_size, dtype=np.int32)
    first = np.ones(world_size, dtype=bool)
    for size, stride in axes:
        first &= ranks // stride % size == 0
    groups = np.add.outer(ranks[first], np.sort(members))
    crossings = cross(rank_map, groups)
    links = _signatures(rank_map, crossings, groups)
    return links.rows(np.array([np.nan_to_num(crossings.ring_gbs, nan=np.inf).argmin()]))


def _merged(sizes: Sequence[int], strides: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Return the axes of a union, fastest first, without axes of size 1 and with adjacent ones joined."""
    axes: list[tuple[int, int]] = []
    for stride, size in sorted(zip(strides, sizes, strict=True)):
        if size == 1:
            continue
        if axes and axes[-1][0] * axes[-1][1] == stride:
            axes[-1] = (axes[-1][0] * size, axes[-1][1])
        else:
            axes.append((size, stride))
    return tuple(axes) or ((1, 1),)


@dataclass(frozen=True, eq=False)
class _Nested:
    """Closed form of the links, for identical hosts on a network without oversubscription."""

    # If the devices of a host, the size n and the stride s divide one another, a group has min(n, b / s) ranks in a
    # domain of b devices, and the inside of one host shows how the groups share its NICs.

    host: _Host
    per_host: int
    per_domain: int
    pair_gbs: float
    latency_us: float
    nic_set: Ints
    set_nics: Ints
    set_gbs: Floats

    @classmethod
    def of(cls, cluster: Cluster, world_size: int) -> _Nested | None:
        """Return the closed form of a cluster, or None if it has none."""
        # Each condition excludes machines on which groups of one size and stride may differ, so that no formula of the
        # size and the stride alone describes them: unlike hosts, links, racks or NICs, and oversubscribed networks.
        latencies = {level.latency_us for level in cluster.levels}
        if len(cluster.templates) > 1 or any(level.taper != 1 for level in cluster.levels) or len(latencies) > 1:
            return None
        if any(level.uplink_share is not None for level in cluster.levels):
            return None
        node = cluster.templates[0]
        g = len(node.devices)
        inside = node.distance[:g, :g]
        if g < 2 or not np.all((inside == Distance.NVLINK) | np.eye(g, dtype=bool)):
            return None
        gbs = node.gbs[:g, :g][~np.eye(g, dtype=bool)]
        if not np.isfinite(gbs).all() or np.ptp(gbs):
            return None
        racks = cluster.nvlink_of_node
        width = 1 if racks is None else int(np.count_nonzero(racks == racks[0]))
        if racks is not None and not np.array_equal(racks, np.arange(cluster.n_nodes) // width):
            return None
        if world_size % g or (world_size > width * g and world_size % (width * g)):
            return None
        near = node.near_nics
        if not near.any(axis=1).all() and cluster.n_nodes > width:
            return None
        number = node.nic_groups
        sets = near[np.unique(number, return_index=True)[1]]
        if sets.sum(axis=0).max(initial=0) > 1:
            return None
        speeds = np.array([nic.gbs for nic in node.nics])
        return cls(
            host=_Host.of(node),
            per_host=g,
            per_domain=g * min(width, max(1, world_size // g)),
            pair_gbs=float(gbs[0]),
            latency_us=max(0.0, (latencies.pop() or 0.0) - _HOP_US) if latencies else 0.0,
            nic_set=number,
            set_nics=sets.sum(axis=1).astype(np.int32),
            set_gbs=np.array([speeds[nics].sum() for nics in sets]),
        )

    def covers(self, sizes: Longs, strides: Longs) -> Bools:
        """Return whether the closed form holds for unions of axes of shape (u, axes)."""
        ok = np.ones(sizes.shape, dtype=bool)
        for block in (self.per_host, self.per_domain):
            within = (block % strides == 0) & ((block % (sizes * strides) == 0) | (sizes * strides % block == 0))
            ok &= within | (strides % block == 0) | (sizes == 1)
        return np.asarray(ok.all(axis=1))

    def _inside(self, sizes: Longs, strides: Longs, block: int) -> Longs:
        return np.where(strides >= block, 1, np.minimum(sizes, np.maximum(block // strides, 1)))

    def links(self, sizes: Longs, strides: Longs) -> GroupLinks:
        """Return the links of unions of axes of shape (u, axes)."""
        # The facts of `_signatures`, from counts of ranks instead of crossings, which are arrays over all ranks.
        count = len(sizes)
        n = sizes.prod(axis=1)
        on_host = self._inside(sizes, strides, self.per_host)
        per_host, per_domain = on_host.prod(axis=1), self._inside(sizes, strides, self.per_domain).prod(axis=1)
        hosts, domains = n // per_host, n // per_domain
        leaves, has_inner = domains > 1, per_domain > 1
        host = self.host
        direct = np.minimum(self.pair_gbs * np.maximum(per_domain - 1, 1), host.device_gbs)
        nics, node_gbs, sharing, rank_gbs = self._shares(on_host, strides)
        hosts_per_domain = hosts // domains
        nics = np.where(leaves, nics * hosts_per_domain, 0)
        nic_gbs = np.where(leaves, host.nic_gbs, np.nan)
        return GroupLinks(
            n_ranks=n.astype(np.int32),
            domains=domains.astype(np.int32),
            ranks_per_domain=per_domain.astype(np.int32),
            inner_gbs=np.where(has_inner, self.pair_gbs if host.is_switched else direct, np.inf),
            inner_is_nvlink=has_inner,
            is_switched=has_inner & host.is_switched,
            compute_capability=np.full(count, host.compute_capability, dtype=np.int32),
            nics=nics.astype(np.int32),
            nic_gbs=nic_gbs,
            pcie_gbs=np.full(count, host.pcie_gbs),
            network_gbs=np.where(leaves, np.minimum(node_gbs * hosts_per_domain, per_domain * host.pcie_gbs), np.nan),
            exchange_gbs=np.where(
                leaves, np.minimum(rank_gbs, host.pcie_gbs) * n / np.maximum(n - per_domain, 1), np.nan
            ),
            groups_per_nic=np.where(leaves, sharing, 1.0),
            taper=np.ones(count),
            uplink_gbs=np.full(count, np.inf),
            tree_uplink_gbs=np.full(count, np.inf),
            pat_uplink_gbs=np.full(count, np.inf),
            uplink_ranks=np.ones(count, dtype=np.int32),
            network_latency_us=np.where(leaves, self.latency_us, 0.0),
            has_ll128=(host.compute_capability >= 70) & (~leaves | host.has_near_nics),
            cpu=np.full(count, host.cpu, dtype=np.int8),
            fabric=np.where(leaves, host.fabric, -1).astype(np.int8),
        )

    def _shares(self, on_host: Longs, strides: Longs) -> tuple[Longs, Floats, Floats, Floats]:
        """Return the NICs, the GB/s out of a host, the groups per NIC and the GB/s of a rank of the slowest groups."""
        count, g = len(on_host), self.per_host
        if not len(self.set_nics) or not self.set_nics.any():
            return np.zeros(count, dtype=np.int64), np.full(count, np.nan), np.ones(count), np.full(count, np.nan)
        local = np.arange(g)
        position = local // np.minimum(strides, g)[:, :, None] % on_host[:, :, None]
        first = local - (position * np.where(on_host > 1, strides, 0)[:, :, None]).sum(axis=1)
        uses = np.zeros((count, g, len(self.set_nics)), dtype=bool)  # by the first rank of the group
        uses[np.arange(count)[:, None], first, self.nic_set] = True
        sharing = uses.sum(axis=1)
        share = self.set_gbs / sharing
        out = np.where(uses.any(axis=2), (uses * share[:, None]).sum(axis=2), np.inf)
        worst = uses[np.arange(count), out.argmin(axis=1)]
        of_rank = np.where(worst, self.set_gbs / np.bincount(self.nic_set), np.inf).min(axis=1)
        busiest = (worst * (sharing / self.set_nics)).max(axis=1)
        return (worst * self.set_nics).sum(axis=1), out.min(axis=1), busiest, of_rank
