"""Placement: a mesh on a cluster, with the links that each group crosses and shares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from meshlab.base import _markup as markup
from meshlab.base._errors import MeshError, TopologyError
from meshlab.base._forwarding import implementation
from meshlab.base._units import format_bandwidth
from meshlab.mesh._mesh import DeviceMesh, MeshLike, as_mesh
from meshlab.mesh._traffic import TrafficLike
from meshlab.topology.model._cluster import Cluster
from meshlab.topology.model._hardware import Node, gpu_link_name
from meshlab.topology.model._levels import HOST, NVLINK, Bools, Ints
from meshlab.topology.model._links import UNKNOWN, XGMI_VIA, Distance
from meshlab.topology.model._presets import ClusterLike, as_cluster
from meshlab.topology.placement._crossings import Crossings, all_hops, cross
from meshlab.topology.placement._detours import Detour, detours, devices_before, explain_failures
from meshlab.topology.placement._rank_map import RankMap, devices_of_ranks
from meshlab.topology.placement._regular import cross_regular

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from meshlab.topology.placement._loads import Loads


@dataclass(frozen=True, eq=False, repr=False)
class Placement:
    """Mapping of mesh ranks to cluster devices, with the links that each group uses.

    Parameters
    ----------
    mesh : DeviceMesh
        The mesh.
    cluster : Cluster
        The cluster.
    devices : numpy.ndarray
        int32 of shape (world_size,): the device of every rank.
    rank_map : RankMap
        The hardware position of every rank.
    cache : dict of str to Crossings, default {}
        Cache of the crossings, by axis or group name.

    Examples
    --------
    >>> import meshlab as ml
    >>> placement = ml.place("pp=8, dp=96, tp=8", ml.preset("tapered-h100", nodes=768))
    >>> print(placement.explain("tp"))
    tp stays inside NVLink: NV18, 371 GB/s per direction
    >>> print(placement.explain("dp"))
    dp leaves the host: 8 groups share 8 NICs, one each, 48.0 GB/s per group; it crosses 48 leaf switches and
    stays inside a pod
    >>> print(placement.explain("pp"))
    pp leaves the host: 8 groups share 8 NICs, one each, 48.0 GB/s per group; it crosses 2 pods with an
    oversubscription of 1:7, 27.4 GB/s per group
    """

    mesh: DeviceMesh
    cluster: Cluster
    devices: Ints
    rank_map: RankMap
    cache: dict[str, Crossings] = field(default_factory=dict)

    @cached_property
    def before(self) -> Placement | None:
        """The same ranks on the same devices before parts of the cluster failed, None if none has."""
        intact = self.cluster.intact
        if intact is None or not self.cluster.failed:
            return None
        devices = devices_before(self.cluster, self.devices)
        return Placement(self.mesh, intact, devices, RankMap.of(intact, devices))

    @cached_property
    def detours(self) -> list[Detour]:
        """The ranks that use other NICs than before parts of the cluster failed."""
        return detours(self)

    def of(self, axis: str | Sequence[str]) -> Crossings:
        """Return the links that the groups of an axis cross and share, as arrays.

        Parameters
        ----------
        axis : str or sequence of str
            An axis, several axes, or the name of a group.
        """
        groups = self.mesh[axis]
        if groups.name not in self.cache:
            regular = cross_regular(self.rank_map, self.mesh, groups, self.devices)
            self.cache[groups.name] = regular or cross(self.rank_map, groups.array)
        return self.cache[groups.name]

    def devices_of(self, groups: str | Sequence[str]) -> Ints:
        """Return the devices of a group, or of all groups along an axis, in group order.

        Parameters
        ----------
        groups : str or sequence of str
            A group such as ``"tp_0"``, an axis or several axes, a custom group, or ``"world"``.

        Returns
        -------
        numpy.ndarray
            int32: the cluster-wide index of each rank's device. For one group of shape (size,), for all groups along
            axes of shape (groups, size).

        Raises
        ------
        MeshError
            If an axis or group is unknown.

        Examples
        --------
        >>> import meshlab as ml
        >>> placement = ml.place("dp=2, tp=2", ml.preset("dgx-h100"), devices=[4, 5, 6, 7])
        >>> placement.devices_of("tp_1").tolist(), placement.devices_of("dp").tolist()
        ([6, 7], [[4, 6], [5, 7]])
        """
        members = self.mesh[groups]
        devices: Ints = self.devices[members.array]
        return devices[0] if members.single else devices

    def frame(self, *axes: str) -> pd.DataFrame:
        """Return a table with one row per group.

        Parameters
        ----------
        *axes : str
            Axes or names of groups. By default all axes and all custom groups.

        Returns
        -------
        pandas.DataFrame
            ``axis``, ``group``, ``n_ranks``, ``nodes`` (number of hosts), ``ranks_per_node_min``,
            ``ranks_per_node_max``, ``<level>_domains`` and ``<level>_hops`` for every level, ``span`` (the innermost
            level that contains the group), ``worst_link`` (the link word of the worst hop, or its level over the
            network), ``nics`` (nearest NICs on the worst host), ``groups_per_nic`` (groups that share the busiest NIC),
            ``node_gbs`` (GB/s out of the worst host), ``taper`` (oversubscription) and ``ring_gbs`` (GB/s of the
            slowest hop of the ring). Bandwidths assume that all groups of the axis run at the same time.

        Examples
        --------
        >>> import meshlab as ml
        >>> frame = ml.place("dp=2, tp=8", ml.preset("dgx-h100", nodes=2)).frame()
        >>> frame[["axis", "group", "nodes", "worst_link", "ring_gbs"]].iloc[[0, 2]].values.tolist()
        [['tp', 'tp_0', 1, 'NV18', 370.8], ['dp', 'dp_0', 2, 'leaf', 48.0]]
        """
        import pandas as pd

        return pd.concat([self._frame(axis) for axis in axes or self._axes], ignore_index=True)

    def explain(self, axis: str | None = None) -> str:
        """Explain which links the groups use.

        Parameters
        ----------
        axis : str, optional
            An axis, or the name of a group. By default one line per axis, the fastest first.
        """
        return "\n".join(_explain_axis(self, name) for name in ([axis] if axis is not None else self._axes))

    def loads(
        self,
        axis: str | Sequence[str],
        *,
        collective: str | None = None,
        size: int | str = "256M",
        traffic: TrafficLike | None = None,
    ) -> Loads:
        """Compute groups, bytes and time of every link while all groups of an axis run one collective.

        The bytes are those of the algorithm that NCCL would choose, as in `meshlab.predict`. ``.algorithm`` names it.
        Where NCCL's choice is unknown, a ring is assumed.

        Parameters
        ----------
        axis : str or sequence of str
            An axis, several axes, or the name of a group.
        collective : str, optional
            all_reduce, all_gather, reduce_scatter, broadcast, reduce, all_to_all or send_recv. By default send_recv
            for pp, all_to_all for ep, and all_reduce for all other axes.
        size : int or str, default "256M"
            Message size in bytes, as in nccl-tests. To a pattern of a traffic it is the mean of all ranks.
        traffic : Traffic or str, optional
            The bytes between the ranks of each group in an all_to_all_v. All groups have the same traffic.

        Returns
        -------
        Loads
            ``.table()`` has the busiest link of each kind, and ``.links`` has arrays of all links. ``.busiest_nic`` is
            the name of the NIC with the longest time.

        Raises
        ------
        TopologyError
            If the collective is unknown, or takes no traffic.
        MeshError
            If the traffic has a different number of ranks than the groups.

        Examples
        --------
        >>> import meshlab as ml
        >>> placement = ml.place("pp=8, dp=96, tp=8", ml.preset("tapered-h100", nodes=768))
        >>> placement.loads("pp").table()[["link", "groups", "is_limit"]].values.tolist()[-1]
        ['pod to cluster', 768, True]
        >>> skewed = ml.place("ep=16", ml.preset("dgx-h100", nodes=2)).loads("ep", traffic=ml.Traffic.zipf(1.2))
        >>> skewed.busiest_nic, skewed.limit
        ('node0/NIC2', 'nic')
        """
        return implementation(Placement.loads)(self, axis, collective=collective, size=size, traffic=traffic)

    def describe(self, *, size: int | str = "256M") -> str:
        """Return the machine, the links of every axis, what deserves attention, and the busiest links, as text.

        It is the text form of `plot`, with the usual collective of every axis.

        Parameters
        ----------
        size : int or str, default "256M"
            Message size in bytes.

        Examples
        --------
        >>> import meshlab as ml
        >>> print(ml.place("dp=2, tp=8", ml.preset("dgx-h100", nodes=2)).describe())  # doctest: +ELLIPSIS
        machine: DGX H100, 2 nodes, 16 × H100 80GB, NVLink domains of 8, network leaf < pod
        mesh: dp=2, tp=8
        ◆ dp leaves the host: 8 groups share 8 NICs, one each, ...
        ● tp stays inside NVLink: NV18, ...
        ● no group shares a NIC, changes rails or crosses an oversubscribed link
        busiest links for dp, all_reduce of 256...MiB (ring):
        ▸ NIC  1 group, 256...MiB, 5.59...ms
        busiest links for tp, all_reduce of 256...MiB (NVLS: NVSwitch reduces):
        ▸ NVLink, per device  1 group, 288...MiB, 814...µs
        """
        return implementation(Placement.describe)(self, size=size)

    def plot(
        self, axis: str | Sequence[str] | None = None, *, group: int | str | None = None, ax: Axes | None = None
    ) -> Axes:
        """Draw the machine and the groups of an axis on it, see `meshlab.plots.topology`.

        Parameters
        ----------
        axis : str or sequence of str, optional
            An axis, several axes, the name of a group, or a level of the cluster. By default the fastest axis.
        group : int or str, optional
            A group of the axis, whose route is drawn.
        ax : matplotlib.axes.Axes, optional
            The axes to draw on. By default a new figure is created.
        """
        return implementation(Placement.plot)(self, axis=axis, group=group, ax=ax)

    def join(self, results: pd.DataFrame) -> pd.DataFrame:
        """Add the links of each group to measured results.

        Parameters
        ----------
        results : pandas.DataFrame
            Results of a benchmark, with the columns ``axis`` and ``group``.

        Returns
        -------
        pandas.DataFrame
            The rows in the same order, with the columns of `frame`, and ``of_ring``: ``busbw_gbs`` divided by
            ``ring_gbs``. Values are missing for groups that the mesh does not have.

        Raises
        ------
        TopologyError
            If a column is missing.

        Examples
        --------
        >>> import meshlab as ml
        >>> import pandas as pd
        >>> results = pd.DataFrame({"axis": ["dp"], "group": ["dp_1"], "busbw_gbs": [36.0]})
        >>> ml.place("dp=2, tp=8", ml.preset("dgx-h100", nodes=2)).join(results)["of_ring"].tolist()
        [0.75]
        """
        import pandas as pd

        missing = [name for name in ("axis", "group") if name not in results.columns]
        if missing:
            raise TopologyError(
                f"results need the columns axis and group, but {' and '.join(missing)} is missing",
                hint="pass the results of a run, such as run.results",
            )
        tables = []
        for axis in results["axis"].dropna().unique():
            try:
                tables.append(self._frame(str(axis)))
            except MeshError:  # measured on a different mesh
                continue
        facts = pd.concat(tables, ignore_index=True) if tables else self._frame(self.mesh.axis_names[-1]).iloc[:0]
        facts = facts.drop(columns=[c for c in facts.columns if c in results.columns and c not in ("axis", "group")])
        # A merge needs equal dtypes, and results from Parquet, CSV and a live run differ in theirs.
        keys = {name: facts[name].astype(results[name].dtype) for name in ("axis", "group")}
        joined = results.merge(facts.assign(**keys), on=["axis", "group"], how="left", validate="many_to_one")
        joined.index = results.index
        if "busbw_gbs" in joined.columns:
            joined["of_ring"] = joined["busbw_gbs"] / joined["ring_gbs"]
        return joined

    def ranks(self) -> pd.DataFrame:
        """Return a table with one row per rank.

        Returns
        -------
        pandas.DataFrame
            ``rank``, one column per axis with the coordinate, ``device``, ``node``, ``local_id`` (index in the host),
            ``name`` (product), ``backend``, ``memory_bytes`` and ``bus_id``.
        """
        import pandas as pd

        facts = self.cluster.frame().iloc[self.devices].reset_index(drop=True)
        names = ["device", "node", "local_id", "name", "backend", "memory_bytes", "bus_id"]
        columns: dict[str, object] = {"rank": np.arange(self.mesh.world_size, dtype=np.int32)}
        columns |= {axis: self.mesh.coordinate_array[:, i] for i, axis in enumerate(self.mesh.axis_names)}
        return pd.concat([pd.DataFrame(columns), facts[names]], axis=1)

    def totals(self, axis: str) -> pd.DataFrame:
        """Return a table with the total devices and memory of every group.

        Parameters
        ----------
        axis : str
            An axis, or the name of a group.

        Returns
        -------
        pandas.DataFrame
            One row per group, and a last row for all groups: ``group``, ``backends``, ``devices`` (number of distinct
            devices), ``models`` such as ``8 × H100 80GB``, ``mixed`` (True for several products), ``memory_gib``,
            ``memory_gib_min`` (of one device) and ``sm_count``. Mixed groups have no totals, because the smallest
            device limits the usable memory, and a sum would hide that.

        Examples
        --------
        >>> import meshlab as ml
        >>> totals = ml.place("dp=2, tp=8", ml.preset("dgx-h100", nodes=2)).totals("tp")
        >>> totals[["group", "models", "memory_gib"]].values.tolist()[-1]
        ['all tp', '16 × H100 80GB', 1280.0]
        """
        import pandas as pd

        groups = self.mesh[axis]
        devices = [device for template in self.cluster.templates for device in template.devices]
        starts = np.cumsum([0, *(len(template.devices) for template in self.cluster.templates[:-1])])
        kind = (starts[self.rank_map.kind] + self.rank_map.local).astype(np.int64)
        facts = [(d.backend, d.name, d.memory_bytes, d.sm_count) for d in devices]
        products = sorted({facts[k] for k in np.unique(kind)}, key=repr)
        numbers = {product: number for number, product in enumerate(products)}
        number_of_rank = np.array([numbers.get(product, -1) for product in facts])[kind]
        members = [*groups.array, np.unique(groups.array)]
        rows = []
        # Large meshes have thousands of groups with the same devices, so compute each combination once.
        totals: dict[bytes, tuple[object, ...]] = {}
        for group, ranks in zip([*groups.names, f"all {groups.name}"], members, strict=True):
            if not self.rank_map.one_rank_each:
                ranks = ranks[np.unique(self.devices[ranks], return_index=True)[1]]
            counts = np.bincount(number_of_rank[ranks], minlength=len(products))
            key = counts.tobytes()
            if key not in totals:
                totals[key] = _total([(products[k], int(counts[k])) for k in np.flatnonzero(counts)])
            rows.append((group, *totals[key]))
        columns = ["group", "backends", "devices", "models", "mixed", "memory_gib", "memory_gib_min", "sm_count"]
        return pd.DataFrame(rows, columns=columns)

    def worst_words(self, axis: str | Sequence[str]) -> list[str]:
        """Return the worst link of every group: the link word inside a host, or the level over the network."""
        answer, ranks = self.of(axis), self.rank_map
        source, target = answer.worst
        together = (answer.worst_level <= HOST) & (ranks.node[source] == ranks.node[target])
        # Look up each combination of host kind and devices once. Negative keys are levels.
        keys = np.stack([ranks.kind[source], ranks.local[source], ranks.local[target]], axis=1)
        keys = np.where(together[:, None], keys, np.stack([-1 - answer.worst_level] * 3, axis=1))
        unique, number = np.unique(keys, axis=0, return_inverse=True)
        words = [
            self.cluster.level_names[-1 - kind] if kind < 0 else self._word(kind, i, j)
            for kind, i, j in unique.tolist()
        ]
        return [words[k] for k in number.ravel().tolist()]

    def word_between(self, one: int, other: int) -> str:
        """Return the link between two ranks: the link word inside a host, or the innermost level that joins them."""
        ranks = self.rank_map
        if ranks.node[one] == ranks.node[other]:
            return self._word(int(ranks.kind[one]), int(ranks.local[one]), int(ranks.local[other]))
        joined = ranks.domains[:, one] == ranks.domains[:, other]
        return self.cluster.level_names[int(joined.argmax())]

    @property
    def _axes(self) -> list[str]:
        """The axes from the fastest to the slowest, then the custom groups."""
        return [*reversed(self.mesh.axis_names), *(group.name for group in self.mesh.custom_groups)]

    def _frame(self, axis: str) -> pd.DataFrame:
        """Return the table of the groups of one axis."""
        import pandas as pd

        answer = self.of(axis)
        groups = self.mesh[axis]
        levels = np.array(self.cluster.level_names, dtype=object)
        columns: dict[str, object] = {
            "axis": groups.name,
            "group": groups.names,
            "n_ranks": groups.size,
            "nodes": answer.domains[HOST],
            "ranks_per_node_min": answer.ranks_per_node[0],
            "ranks_per_node_max": answer.ranks_per_node[1],
        }
        columns |= {f"{level}_domains": answer.domains[i] for i, level in enumerate(levels)}
        columns |= {f"{level}_hops": answer.hops[i] for i, level in enumerate(levels)}
        columns |= {
            "span": levels[answer.span],
            "worst_link": self.worst_words(axis),
            "nics": answer.nics,
            "groups_per_nic": answer.groups_per_nic,
            "node_gbs": answer.node_gbs,
            "taper": answer.taper,
            "ring_gbs": answer.ring_gbs,
        }
        return pd.DataFrame(columns, index=range(len(groups)))

    def _word(self, kind: int, i: int, j: int) -> str:
        words = self.cluster.templates[kind].words
        return words[i][j] if words[i][j] != UNKNOWN else words[j][i]

    def __repr__(self) -> str:
        return f"<Placement of {self.mesh} on {self.cluster.summary}; next: .explain(), .loads(axis), .plot()>"

    def _repr_html_(self) -> str:
        rows = []
        for axis in self._axes:
            answer = self.of(axis)
            groups = self.mesh[axis]
            gbs = _slowest_gbs(answer)
            rows.append(
                [
                    axis,
                    f"{len(groups):,} of {groups.size:,}",
                    int(answer.domains[HOST].max()),
                    self.cluster.level_names[int(answer.span.max())],
                    "–" if gbs is None else format_bandwidth(gbs),
                    _explain_axis(self, axis),
                ]
            )
        header = ["axis", "groups", "hosts per group", "contained in", "slowest hop", "explanation"]
        return markup.card(
            f"Placement · {self.mesh}", f"on {self.cluster.title} · {self.cluster.summary}", markup.table(header, rows)
        )


def place(mesh: MeshLike, cluster: ClusterLike, devices: Sequence[int] | Ints | None = None) -> Placement:
    """Place the ranks of a mesh on the devices of a cluster.

    Parameters
    ----------
    mesh : DeviceMesh or str
        A mesh, or text such as ``"dp=2, tp=4"``. A size of -1 in the text is filled from the number of devices.
    cluster : Cluster or str
        A cluster, or the name of a preset. If it has no GPUs, its hosts get CPU slots.
    devices : sequence of int, optional
        The device of every rank, as a cluster-wide index. Use it for a different rank order, a part of the cluster, or
        several ranks per device. By default rank r uses device r.

    Raises
    ------
    TopologyError
        If the mesh has more ranks than the cluster has devices.
        If `devices` does not contain one existing device per rank.

    Examples
    --------
    >>> import meshlab as ml
    >>> ml.place("dp=2, tp=8", ml.preset("dgx-h100", nodes=2)).of("tp").domains[2].tolist()
    [1, 1]
    """
    cluster = as_cluster(cluster)
    mesh = as_mesh(mesh, fill=(cluster.n_devices or None) if devices is None else len(devices))
    cluster, of_rank = devices_of_ranks(mesh, cluster, devices)
    placement = Placement(mesh, cluster, of_rank, RankMap.of(cluster, of_rank))
    for axis in mesh.axis_names:
        placement.of(axis)
    return placement


def as_placement(
    mesh: MeshLike | Placement, cluster: ClusterLike | None = None, devices: Sequence[int] | Ints | None = None
) -> Placement:
    """Return a placement unchanged, or place a mesh on a cluster."""
    if isinstance(mesh, Placement):
        if cluster is not None or devices is not None:
            raise TopologyError("a Placement has a cluster and devices already", hint="pass its mesh instead")
        return mesh
    if isinstance(mesh, Cluster):
        raise TopologyError("the first argument is a Cluster, but a mesh is expected", hint="pass the mesh first")
    if cluster is None:
        raise TopologyError(
            "no cluster given", hint="pass it after the mesh, such as ml.probe(), 'dgx-h100' or ml.preset(...)"
        )
    return place(mesh, cluster, devices)


# -- explanations ------------------------------------------------------------------------------------------------------


def _explain_axis(placement: Placement, axis: str) -> str:
    """Return the sentence about the links of an axis. The worst hop of all groups decides what it is about."""
    answer = placement.of(axis)
    groups = placement.mesh[axis]
    name = groups.name
    if groups.size == 1:
        return f"{name} has one rank per group: it crosses no link"
    # Of equal groups, one of unknown rate is named first: its worst hop may be the slowest.
    keys = answer.worst_level.astype(np.int64) * 16 + answer.worst_distance
    worst = int(np.argmax(2 * keys + ((answer.worst_level == NVLINK) & np.isnan(answer.ring_gbs))))
    level = int(answer.worst_level[worst])
    gbs = _slowest_gbs(answer)
    rate = "" if gbs is None else f", {format_bandwidth(gbs)}"
    word = _worst_word(placement, answer, worst)
    if level == 0:
        return f"{name} stays on one device: {int(answer.ranks_per_node[1].max())} ranks share it"
    if level == NVLINK:
        hosts = int(answer.domains[HOST].max())
        across = "" if hosts == 1 else f" across {hosts} hosts"
        # The ring avoids a pair without NVLink, but an all_to_all does not.
        unlinked = ((answer.domains[HOST] == 1) & (answer.domains[NVLINK] > 1)).any()
        link_name = gpu_link_name(placement.cluster.templates)
        but = f", but not all pairs of its devices have {link_name}" if unlinked else ""
        if but and any(has_unknown_links(template) for template in placement.cluster.templates):
            but = ", as far as the links of its devices are known"
        way = " per direction" if rate else ""  # a call may have more bus bandwidth, because NVSwitch reduces
        if word == XGMI_VIA:
            return f"{name} stays inside {link_name}{across}: {word}, data of some pairs pass other GPUs{but}"
        return f"{name} stays inside {link_name}{across}: {'NVLink' if word == 'nvlink' else word}{rate}{way}{but}"
    if level == HOST and word == UNKNOWN:
        return f"{name} stays inside the host{_worst_known(placement, answer, worst, axis)}"
    if level == HOST:
        return f"{name} stays inside the host{_why_no_nvlink(placement, answer, worst)}: its worst link is {word}{rate}"
    text = (
        f"{name} leaves the host: {_explain_nics(placement, answer, axis)}; {_explain_network(placement, answer, axis)}"
    )
    failures = explain_failures(placement, axis)
    return f"{text}. {failures}" if failures else text


def _worst_word(placement: Placement, answer: Crossings, group: int) -> str:
    """Return the worst link of one group, see `Placement.worst_words`."""
    level = int(answer.worst_level[group])
    source, target = (int(rank) for rank in answer.worst[:, group])
    is_inside = level <= HOST and placement.rank_map.node[source] == placement.rank_map.node[target]
    return placement.word_between(source, target) if is_inside else placement.cluster.level_names[level]


def has_unknown_links(node: Node) -> bool:
    count = len(node.devices)
    return bool((node.distance[:count, :count] == Distance.UNKNOWN).any())


def _worst_known(placement: Placement, answer: Crossings, worst: int, axis: str) -> str:
    """Return the clause about an axis of which the source does not describe all links."""
    members, level, distance, _ = all_hops(placement.rank_map, placement.mesh[axis].array)
    described = np.where((level <= HOST) & (distance < Distance.UNKNOWN), distance, 0)
    if not described.any():
        return ", and the source does not list its links"
    hop, group = np.unravel_index(int(described.argmax()), described.shape)
    word = placement.word_between(int(members[hop, group]), int(np.roll(members, -1, axis=0)[hop, group]))
    if described[hop, group] == Distance.NVLINK:
        return f": its known links are {word}, and the source does not list the others"
    why = _why_no_nvlink(placement, answer, worst)
    return f"{why}: its worst known link is {word}, and the source does not list all of them"


def _why_no_nvlink(placement: Placement, answer: Crossings, worst: int) -> str:
    """Return the reason why the worst hop of a group is not NVLink, as a clause."""
    template = placement.cluster.templates[placement.rank_map.kind[answer.worst[0, worst]]]
    if template.devices and template.devices[0].backend == "cpu":
        return ", on CPUs"
    if not template.nvlink_known:
        return f", and the source does not list {template.gpu_link_name}"
    return f" but leaves {template.gpu_link_name}" if (template.distance == Distance.NVLINK).any() else ""


def _explain_nics(placement: Placement, answer: Crossings, axis: str) -> str:
    """Return the clause about the NICs that the groups share."""
    groups = answer.groups_per_node
    share = f"{groups} group{'s' * (groups > 1)} share{'s' * (groups == 1)}"
    # The host with the fewest NICs, among the hosts that a group leaves.
    leaving = answer.worst_level > HOST
    templates = placement.cluster.templates
    kinds = np.arange(len(templates))
    if len(templates) > 1:
        kinds = np.unique(placement.rank_map.kind[placement.mesh[axis].array[leaving]])
    counts = {int(k): int(templates[k].near_nics.any(axis=0).sum()) for k in kinds}
    nics = min(counts.values())
    if not nics and all(templates[k].is_cut_off for k, count in counts.items() if not count):
        return f"no NIC{_on_hosts(placement, counts).replace('each of ', '')} is connected"
    if not nics:
        return f"{share} the host's NICs, which are unknown"
    slowest = np.nanmin(answer.node_gbs) if np.isfinite(answer.node_gbs).any() else None
    rate = "" if slowest is None else f", {format_bandwidth(float(slowest))}"
    if groups == 1:
        where = " of the host" if len(set(counts.values())) == 1 else _on_hosts(placement, counts)
        every = "all" if where == " of the host" else "the"
        return f"it has {f'{every} {nics} NICs' if nics > 1 else 'the only NIC'}{where}{rate}"
    busiest = float(np.nanmax(answer.groups_per_nic))
    if busiest <= 1:
        if busiest == 1:
            counts = dict.fromkeys(counts, max(counts.values()))  # where a device is missing, no group needs its NIC
            nics = max(counts.values())
        per_group = int(answer.nics[leaving].min())
        each = f", {per_group} each" if per_group > 1 else ", one each"
        if groups * per_group > nics:
            to_nic, rest = divmod(groups * per_group, nics)
            each += f" and {'up to ' * bool(rest)}{to_nic + bool(rest)} groups to a NIC"
    else:
        # Groups that use several NICs send only a part over each, so a NIC has more groups than its load says.
        most = _most_groups(placement, axis, leaving)
        is_even = most in (None, busiest) and groups == busiest * nics
        each = f", {busiest:.3g} to a NIC" if is_even else f", up to {most or busiest:.3g} to a NIC"
    where = _on_hosts(placement, counts) if len(set(counts.values())) > 1 else ""
    return f"{share} {nics} NIC{'s' * (nics > 1)}{where}{each}{f'{rate} per group' if rate else ''}"


def _on_hosts(placement: Placement, counts: Mapping[int, int]) -> str:
    """Return the hosts with the fewest NICs in words, from the number of NICs by kind of host."""
    least = min(counts.values())
    few = np.flatnonzero(np.isin(placement.cluster.kinds, [kind for kind, count in counts.items() if count == least]))
    return f" on {placement.cluster.names[few[0]]}" if len(few) == 1 else f" on each of {len(few):,} hosts"


def _most_groups(placement: Placement, axis: str, leaving: Bools) -> int | None:
    """Return the most groups on one NIC if sets of NICs overlap, otherwise None."""
    overlap, groups = placement.rank_map.overlap, placement.mesh[axis].array[leaving]
    if overlap is None:
        return None
    of_set, nic, _ = overlap
    first = np.searchsorted(of_set, np.arange(len(placement.rank_map.set_nics) + 1))
    sets = placement.rank_map.nic_set[groups].ravel()
    sizes = (first[1:] - first[:-1])[sets]
    entry = np.repeat(np.arange(len(sets)), sizes)
    pair = first[sets][entry] + np.arange(len(entry)) - (np.cumsum(sizes) - sizes)[entry]
    keys = np.unique(nic[pair] * len(groups) + entry // groups.shape[1])
    return int(np.bincount(keys // len(groups)).max())


def _explain_network(placement: Placement, answer: Crossings, axis: str) -> str:
    """Return the clause about the switches that the groups cross."""
    names = placement.cluster.level_names
    outermost = int(answer.worst_level.max())
    span = int(answer.span.max())
    below = outermost - 1
    if below > HOST:
        text = f"it crosses {_most_switches(placement, answer, axis, below)} {_plural(names[below])}"
    elif answer.domains[outermost].max() == 1:
        text = f"it stays inside {_with_article(names[outermost])}"
    else:
        text = "every hop stays on its rail"
    if below > HOST and names[outermost] != names[-1] and span == outermost:
        text += f" and stays inside {_with_article(names[outermost])}"
    taper = float(answer.taper.max())
    gbs = _slowest_gbs(answer)
    if np.isinf(taper):
        return f"{text}, and a switch on its way has no uplink left"
    if taper > 1:
        text += f" with an oversubscription of 1:{taper:.4g}"
        if gbs is not None and gbs < np.nanmin(answer.node_gbs):
            text += f", {format_bandwidth(gbs)} per group"
    return text


def _most_switches(placement: Placement, answer: Crossings, axis: str, level: int) -> int:
    """Return the most domains of a network level that a group uses."""
    groups, rank_map = placement.mesh[axis].array, placement.rank_map
    switch, place, _ = rank_map.switches_of(level, groups.ravel())
    if isinstance(place, slice):  # every rank uses one switch
        return int(answer.domains[level].max())
    keys = np.unique(place // groups.shape[1] * (int(switch.max()) + 1) + switch)
    return int(np.bincount(keys // (int(switch.max()) + 1)).max())


def _slowest_gbs(answer: Crossings) -> float | None:
    """Return the GB/s of the slowest hop of all groups, or None if no speed is known."""
    finite = answer.ring_gbs[np.isfinite(answer.ring_gbs)]
    return float(finite.min()) if finite.size else None


def _plural(level: str) -> str:
    return {"leaf": "leaf switches"}.get(level, f"{level}s")


def _with_article(level: str) -> str:
    return {"leaf": "one leaf switch", "cluster": "the cluster"}.get(level, f"a {level}")


def _total(parts: Sequence[tuple[tuple[str, str, int | None, int | None], int]]) -> tuple[object, ...]:
    """Return the columns of `Placement.totals` for products and their counts."""
    names = [name for (_, name, _, _), _ in parts]
    mixed = len(parts) > 1
    memory = [size for (_, _, size, _), _ in parts if size is not None]
    (_, _, size, sms), count = parts[0]
    return (
        ", ".join(sorted({backend for (backend, _, _, _), _ in parts})),
        sum(number for _, number in parts),
        ", ".join(f"{number:,} × {name}" for name, (_, number) in zip(names, parts, strict=True)),
        mixed,
        None if mixed or size is None else size * count / 2**30,
        min(memory) / 2**30 if len(memory) == len(parts) else None,
        None if mixed or sms is None else sms * count,
    )
