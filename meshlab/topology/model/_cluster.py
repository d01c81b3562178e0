"""Cluster: hosts and the network between them, as a few templates and integer arrays instead of one object per GPU."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from meshlab.base._errors import TopologyError
from meshlab.base._forwarding import implementation
from meshlab.topology.model._arrays import device_domains, kinds_of, link_codes, per_device
from meshlab.topology.model._cluster_tables import card, device_counts, device_table, level_table, summary
from meshlab.topology.model._hardware import Device, Node
from meshlab.topology.model._lazy import Lazy
from meshlab.topology.model._levels import INNER_LEVELS, Ints, Level
from meshlab.topology.model._links import UNKNOWN

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from meshlab.topology._health import Findings


_MOST_SLOTS = 4096  # on one host, whose matrix of links has the square of it


@dataclass(frozen=True, eq=False, repr=False)
class Cluster:
    """Hosts, their devices and links, and the network between them.

    Identical hosts share one `Node` as their template. All queries are answered from integer arrays.

    Parameters
    ----------
    templates : tuple of Node
        One host of each kind.
    kinds : numpy.ndarray
        int32 of shape (nodes,): the index of the template of every host.
    names : tuple of str
        The host names.
    levels : tuple of Level, default ()
        The levels of the network, from the inside out. If the last one does not join all hosts, a level ``cluster``
        that joins them is added.
    nvlink_of_node : numpy.ndarray, optional
        int32 of shape (nodes,): hosts with equal numbers share an NVLink domain. By default NVLink ends at the host.
    title : str, default ""
        Name of the machine.
    source : str, default ""
        Source of the description.
    notes : tuple of str, default ()
        Remarks on missing or doubtful data.
    failed : tuple of str, default ()
        Parts that have failed or are slower, such as ``"node1/NIC3"`` or ``"leaf:5/uplink=50%"``, see `with_failed`.
    intact : Cluster, optional
        The cluster before they failed.

    Raises
    ------
    TopologyError
        If the arrays do not have one entry per host.
        If two levels have the same name.

    Examples
    --------
    >>> import meshlab as ml
    >>> cluster = ml.preset("dgx-h100", nodes=2)
    >>> cluster
    <Cluster DGX H100: 2 nodes, 16 × H100 80GB, NVLink domains of 8, levels device < nvlink < host < leaf < pod;
    next: .health(), .plot()>
    >>> cluster.devices[11]
    Device(3, 'H100 80GB', 80 GiB, node1)
    >>> cluster.domain("host").tolist()
    [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1]
    """

    templates: tuple[Node, ...]
    kinds: Ints
    names: tuple[str, ...]
    levels: tuple[Level, ...] = ()
    nvlink_of_node: Ints | None = None
    title: str = ""
    source: str = ""
    notes: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    intact: Cluster | None = None

    def __post_init__(self) -> None:
        nodes = len(self.names)
        if not nodes:
            raise TopologyError("a cluster needs at least one node", hint="pass the host names as names=")
        arrays = [("kinds", self.kinds), *((level.name, level.of_node) for level in self.levels)]
        if self.nvlink_of_node is not None:
            arrays.append(("nvlink_of_node", self.nvlink_of_node))
        for name, array in arrays:
            if array.shape != (nodes,):
                raise TopologyError(
                    f"{name} must have one entry for each of the {nodes} nodes, not shape {array.shape}",
                    hint=f"pass an int32 array of shape ({nodes},)",
                )
        # Every two hosts need a level that joins them, because the level of a hop is the innermost of these.
        if nodes > 1 and (not self.levels or int(np.ptp(self.levels[-1].of_node)) > 0):
            last = Level("cluster", np.zeros(nodes, dtype=np.int32))
            object.__setattr__(self, "levels", (*self.levels, last))
        repeated = sorted({name for name in self.level_names if self.level_names.count(name) > 1})
        if repeated:
            raise TopologyError(f"several levels are named {repeated[0]!r}", hint="give each level a unique name")

    @classmethod
    def from_nodes(
        cls,
        nodes: Sequence[Node],
        *,
        names: Sequence[str] | None = None,
        levels: tuple[Level, ...] = (),
        title: str = "",
        source: str = "",
        notes: tuple[str, ...] = (),
    ) -> Cluster:
        """Create a cluster from hosts. Hosts with a common NVLink fabric share an NVLink domain.

        Parameters
        ----------
        nodes : sequence of Node
            The hosts. Identical hosts become one template.
        names : sequence of str, optional
            The host names. By default those of `nodes`.
        levels, title, source, notes
            As in `Cluster`.

        Examples
        --------
        >>> from meshlab.topology import Node
        >>> Cluster.from_nodes([Node("a"), Node("b")]).templates
        (Node('a', no GPU),)
        """
        templates, kinds, nvlink_of_node = kinds_of(nodes)
        names = tuple(node.name for node in nodes) if names is None else tuple(names)
        return cls(templates, kinds, names, levels, nvlink_of_node, title, source, notes)

    # -- sizes and positions -------------------------------------------------------------------------------------------

    @property
    def n_nodes(self) -> int:
        """Number of hosts."""
        return len(self.names)

    @cached_property
    def first_device(self) -> Ints:
        """Index of the first device of every host, followed by the number of devices; shape (nodes + 1,)."""
        counts = np.array([len(template.devices) for template in self.templates], dtype=np.int32)[self.kinds]
        return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)

    @property
    def n_devices(self) -> int:
        """Number of devices."""
        return int(self.first_device[-1])

    @cached_property
    def node_of(self) -> Ints:
        """Host of every device; int32 of shape (devices,)."""
        return np.repeat(np.arange(self.n_nodes, dtype=np.int32), np.diff(self.first_device))

    @cached_property
    def local_of(self) -> Ints:
        """Index of every device in its host; int32 of shape (devices,)."""
        return (np.arange(self.n_devices, dtype=np.int32) - self.first_device[self.node_of]).astype(np.int32)

    @property
    def models(self) -> dict[str, int]:
        """Number of devices of each product."""
        return device_counts(self, "name")

    @property
    def backend_counts(self) -> dict[str, int]:
        """Number of devices of each backend: ``cuda``, ``rocm`` or ``cpu``.

        Examples
        --------
        >>> import meshlab as ml
        >>> ml.preset("dgx-h100", nodes=2).backend_counts
        {'cuda': 16}
        """
        return device_counts(self, "backend")

    @property
    def devices_by_backend(self) -> dict[str, Ints]:
        """Cluster-wide indices of the devices of each backend, ascending; int32.

        Examples
        --------
        >>> import meshlab as ml
        >>> ml.preset("dgx-h100").devices_by_backend
        {'cuda': array([0, 1, 2, 3, 4, 5, 6, 7], dtype=int32)}
        """
        backends = per_device(self, [np.array([d.backend for d in node.devices], np.str_) for node in self.templates])
        return {name: np.flatnonzero(backends == name).astype(np.int32) for name in self.backend_counts}

    @property
    def total_memory_bytes(self) -> int | None:
        """Memory of all devices in bytes. None if that of a device is unknown.

        Examples
        --------
        >>> import meshlab as ml
        >>> cluster = ml.preset("dgx-h100", nodes=2)
        >>> cluster.total_memory_bytes // 2**30, cluster.without_device(3).total_memory_bytes // 2**30
        (1280, 1200)
        """
        return self._sum("memory_bytes")

    @property
    def total_compute_units(self) -> int | None:
        """Compute units of all devices: streaming multiprocessors (SMs) of GPUs. None if those of a device are unknown.

        Examples
        --------
        >>> import meshlab as ml
        >>> cluster = ml.preset("dgx-h100", nodes=2)
        >>> cluster.total_compute_units, cluster.with_cpu_slots(4).total_compute_units
        (2112, None)
        """
        return self._sum("sm_count")

    def _sum(self, field: str) -> int | None:
        """Return the sum of a field over all devices, or None if it is unknown for one of them."""
        counts = device_counts(self, field)
        return None if None in counts else sum(value * count for value, count in counts.items())

    # -- devices and nodes ---------------------------------------------------------------------------------------------

    @property
    def devices(self) -> Lazy[Device]:
        """All devices, host by host."""
        return Lazy(self.n_devices, self.device)

    @property
    def nodes(self) -> Lazy[Node]:
        """All hosts."""
        return Lazy(self.n_nodes, self.node)

    def device(self, index: int) -> Device:
        """Return the device with a cluster-wide index.

        Raises
        ------
        TopologyError
            If the index is out of range.
        """
        node, local = self.locate(index)
        device: Device = self.templates[self.kinds[node]].devices[local]
        return replace(device, node=self.names[node])

    def node(self, which: int | str) -> Node:
        """Return a host by its index or name.

        Raises
        ------
        TopologyError
            If the host is unknown.
        """
        index = self.node_index(which)
        template: Node = self.templates[self.kinds[index]]
        return replace(template, name=self.names[index])

    def node_index(self, which: int | str) -> int:
        """Return the index of a host from its index or name."""
        if isinstance(which, str):
            if which in self.names:
                return self.names.index(which)
        elif isinstance(which, int | np.integer) and 0 <= which < self.n_nodes:
            return int(which)
        last = self.n_nodes - 1
        choices = f"0 to {last:,}, or {self.names[0]!r} to {self.names[-1]!r}" if last else f"0 or {self.names[0]!r}"
        raise TopologyError(f"unknown node {which!r}", hint=f"choose {choices}")

    def locate(self, device: int) -> tuple[int, int]:
        """Return the host of a device, and the index of the device in its host."""
        if not isinstance(device, int | np.integer) or not 0 <= device < self.n_devices:
            last = self.n_devices - 1
            hint = "use a cluster with devices" if last < 0 else f"choose a number from 0 to {last:,}"
            raise TopologyError(f"unknown device {device!r}", hint=hint)
        return int(self.node_of[device]), int(self.local_of[device])

    def with_cpu_slots(self, ranks: int) -> Cluster:
        """Return the same hosts with CPU slots instead of GPUs, for backends that run without GPUs.

        Parameters
        ----------
        ranks : int
            Number of slots, at most 4,096 per host. They are divided evenly. If there is a remainder, the first hosts
            get one more.

        Raises
        ------
        TopologyError
            If `ranks` is not an integer in this range.

        Examples
        --------
        >>> from meshlab.topology import Node
        >>> Cluster.from_nodes([Node("laptop", cpu_model="Ryzen")]).with_cpu_slots(4).summary
        '1 node, 4 × Ryzen'
        """
        most = _MOST_SLOTS * self.n_nodes
        if not isinstance(ranks, int | np.integer) or not 0 < ranks <= most:
            raise TopologyError(
                f"ranks must be an integer from 1 to {most:,} for these hosts, not {str(ranks)[:40]}",
                hint="pass the number of CPU ranks",
            )
        shares = [ranks // self.n_nodes + (index < ranks % self.n_nodes) for index in range(self.n_nodes)]
        nodes = [_with_slots(self.node(index), share) for index, share in enumerate(shares)]
        return Cluster.from_nodes(nodes, levels=self.levels, title=self.title, source=self.source, notes=self.notes)

    # -- levels and links ----------------------------------------------------------------------------------------------

    @property
    def level_names(self) -> tuple[str, ...]:
        """Names of all levels, from the inside out."""
        return (*INNER_LEVELS, *(level.name for level in self.levels))

    @cached_property
    def domains(self) -> Ints:
        """Domain of every device at every level; int32 of shape (levels, devices)."""
        domains = device_domains(self)
        domains.flags.writeable = False  # the array is cached and shared
        return domains

    def domain(self, level: str) -> Ints:
        """Return the domain of every device at one level; int32 of shape (devices,).

        Raises
        ------
        TopologyError
            If the level is unknown.
        """
        if level not in self.level_names:
            raise TopologyError(f"unknown level {level!r}", hint=f"choose one of {', '.join(self.level_names)}")
        row: Ints = self.domains[self.level_names.index(level)]
        return row

    def link_words(self, node: int | str | None = None) -> npt.NDArray[np.str_]:
        """Return the matrix of links between devices: str of shape (devices, devices).

        Links inside a host have nvidia-smi's words, such as ``NV18`` or ``SYS``. Links between hosts have the name of
        the innermost level that joins them, such as ``leaf``.

        Parameters
        ----------
        node : int or str, optional
            A host, by index or name. By default all hosts.

        Raises
        ------
        TopologyError
            If the host is unknown.
            If the matrix would be larger than 2,048 × 2,048.

        Examples
        --------
        >>> import meshlab as ml
        >>> ml.preset("dgx-a100").link_words()[0, :3].tolist()
        ['X', 'NV12', 'NV12']
        """
        words, codes = link_codes(self, node)
        return np.array(words, dtype=np.str_)[codes]

    # -- what-if -------------------------------------------------------------------------------------------------------

    def without_device(self, device: int) -> Cluster:
        """Return the cluster without one device.

        Parameters
        ----------
        device : int
            Cluster-wide index of the device. The indices of the devices after it decrease by one. Indices in
            the host, such as GPU4, do not change.

        Raises
        ------
        TopologyError
            If the device is unknown.
            If it is the last device.

        Examples
        --------
        >>> import meshlab as ml
        >>> ml.preset("dgx-h100", nodes=2).without_device(3).node(0).ends[:4]
        ('GPU0', 'GPU1', 'GPU2', 'GPU4')
        """
        return implementation(Cluster.without_device)(self, device)

    def without_link(self, device: int, other: int | None = None) -> Cluster:
        """Return the cluster without NVLink between two devices, which are connected by PCIe instead.

        Parameters
        ----------
        device : int
            Cluster-wide index of a device.
        other : int, optional
            Cluster-wide index of another device of the same host. By default all other devices of the host.

        Raises
        ------
        TopologyError
            If a device is unknown.
            If the devices are on different hosts, or have no NVLink between them.

        Examples
        --------
        >>> import meshlab as ml
        >>> ml.preset("dgx-h100").without_link(2).domain("nvlink").tolist()
        [0, 0, 1, 0, 0, 0, 0, 0]
        """
        return implementation(Cluster.without_link)(self, device, other)

    def without_nic(self, node: int | str, nic: int | str) -> Cluster:
        """Return the cluster without one NIC.

        Parameters
        ----------
        node : int or str
            The host, by index or name.
        nic : int or str
            The NIC, by index in the host or name.

        Raises
        ------
        TopologyError
            If the host or the NIC is unknown.

        Examples
        --------
        >>> import meshlab as ml
        >>> len(ml.preset("dgx-h100").without_nic(0, "NIC3").node(0).nics)
        7
        """
        return implementation(Cluster.without_nic)(self, node, nic)

    def without_node(self, *nodes: int | str, keep_place: bool = False) -> Cluster:
        """Return the cluster without some hosts.

        Parameters
        ----------
        *nodes : int or str
            The hosts, by index or name. The indices of the hosts after them decrease. Names do not change.
        keep_place : bool, default False
            If True, the hosts stay in the network, but without devices and NICs, so that no index of a host changes.

        Raises
        ------
        TopologyError
            If a host is unknown.
            If no host or no device is left.

        Examples
        --------
        >>> import meshlab as ml
        >>> ml.preset("dgx-h100", nodes=4).without_node("node1", 2).names
        ('node0', 'node3')
        >>> ml.preset("dgx-h100", nodes=4).without_node("node1", keep_place=True).summary
        '4 nodes, 24 × H100 80GB, NVLink domains of 8'
        """
        return implementation(Cluster.without_node)(self, *nodes, keep_place=keep_place)

    def with_rate(self, part: str, rate: float | str) -> Cluster:
        """Return the cluster with a lower rate of a NIC, of NVLink, or of the uplinks of a switch.

        Parameters
        ----------
        part : str
            ``"node1/NIC3"``, ``"node1/GPU3/NVLink"``, ``"node1/GPU3-GPU5"`` or ``"leaf:5/uplink"``.
        rate : float or str
            A share of the full rate such as 0.5 or ``"50%"``, or a bandwidth such as ``"200 Gb/s"`` or ``"24 GB/s"``.
            NVLink has a whole number of links. 1 restores the full rate.

        Raises
        ------
        TopologyError
            If the part is unknown, or the rate is not more than 0 and at most the full one.

        Examples
        --------
        >>> import meshlab as ml
        >>> cluster = ml.preset("dgx-h100", nodes=2).with_rate("node1/NIC3", "200 Gb/s")
        >>> cluster.failed, cluster.node(1).nics[3].gbs
        (('node1/NIC3=50%',), 24.0)
        """
        return implementation(Cluster.with_rate)(self, part, rate)

    def with_failed(self, *parts: str) -> Cluster:
        """Return the cluster in which parts have failed. `failed` lists them, and figures cross them out.

        Parameters
        ----------
        *parts : str
            ``"node1"``, ``"node1/GPU3"``, ``"node1/NIC3"``, ``"node1/NIC3/cable"``, ``"node1/GPU3/NVLink"``,
            ``"node1/GPU3-GPU5"``, ``"leaf:5"``, ``"leaf:5/uplink"``, or ``"leaf:5/uplink*4"`` for four uplinks. With a
            rate at the end, such as ``"node1/NIC3=50%"``, the part is slower.

        Raises
        ------
        TopologyError
            If a part is unknown, or has failed.

        Examples
        --------
        >>> import meshlab as ml
        >>> cluster = ml.preset("dgx-h100", nodes=4).with_failed("node1", "leaf:3", "node0/NIC1=50%")
        >>> cluster.n_devices, cluster.failed
        (24, ('node1', 'leaf:3', 'node0/NIC1=50%'))
        """
        return implementation(Cluster.with_failed)(self, *parts)

    def as_intact(self) -> Cluster:
        """Return the cluster as if it had never had its failed parts, so that figures do not cross them out.

        Examples
        --------
        >>> import meshlab as ml
        >>> ml.preset("dgx-h100").without_nic(0, "NIC3").as_intact().failed
        ()
        """
        return replace(self, failed=(), intact=None)

    def with_devices(
        self,
        devices: int | None = None,
        nics: int | None = None,
        nodes: int | str | Iterable[int | str] | None = None,
    ) -> Cluster:
        """Return the cluster with other numbers of devices and NICs in its hosts.

        The new ones are spread evenly over the positions of the old ones: with half of the NICs, two neighbouring
        devices share one. On a network with a rail per NIC, the rails follow.

        Parameters
        ----------
        devices : int, optional
            Devices per host. By default unchanged.
        nics : int, optional
            NICs per host. By default unchanged.
        nodes : int, str or iterable of them, optional
            The hosts to change, by index or name. By default all.

        Raises
        ------
        TopologyError
            If a number is out of range.
            If a host has no device or no NIC to copy.

        Examples
        --------
        >>> import meshlab as ml
        >>> node = ml.preset("dgx-h100").with_devices(nics=4).node(0)
        >>> node.near_nics.argmax(axis=1).tolist()
        [0, 0, 1, 1, 2, 2, 3, 3]
        >>> mixed = ml.preset("dgx-h100", nodes=3).with_devices(4, nodes=2)
        >>> mixed.title, mixed.summary
        ('custom, from DGX H100', '3 nodes, 20 × H100 80GB, NVLink domains of 4 and 8')
        """
        return implementation(Cluster.with_devices)(self, devices, nics, nodes)

    def with_network(
        self, nodes_per_leaf: int, *, rails: int = 1, nodes_per_pod: int = 0, taper: float = 1.0
    ) -> Cluster:
        """Return the cluster with a regular network between its hosts, in the order of the hosts.

        Parameters
        ----------
        nodes_per_leaf : int
            Hosts per leaf switch, or per set of rail switches.
        rails : int, default 1
            Leaf switches per host.
        nodes_per_pod : int, default 0
            Hosts per pod, 0 for no pods.
        taper : float, default 1
            Oversubscription between pods: 7 means 1:7.

        Raises
        ------
        TopologyError
            If a number is out of range.

        Examples
        --------
        >>> import meshlab as ml
        >>> cluster = ml.preset("aws-p5", nodes=64).with_network(8, rails=8, nodes_per_pod=32, taper=2)
        >>> cluster.level_names[3:], int(cluster.domain("leaf").max())
        (('leaf', 'pod', 'cluster'), 63)
        """
        return implementation(Cluster.with_network)(
            self, nodes_per_leaf, rails=rails, nodes_per_pod=nodes_per_pod, taper=taper
        )

    def with_nodes(self, count: int, like: int | str = 0) -> Cluster:
        """Return the cluster with more hosts after the existing ones.

        The last leaf, pod and rack are filled first, and new ones have the same size. A level with one domain keeps it.

        Parameters
        ----------
        count : int
            Number of hosts to add.
        like : int or str, default 0
            The host to copy, by index or name.

        Raises
        ------
        TopologyError
            If `count` is not between 1 and 1,048,576.
            If the host is unknown.

        Examples
        --------
        >>> import meshlab as ml
        >>> ml.preset("dgx-h100", nodes=63).with_nodes(2).levels[1].of_node[-3:].tolist()
        [1, 1, 2]
        """
        return implementation(Cluster.with_nodes)(self, count, like)

    def with_nvlink_domain(self, size: int) -> Cluster:
        """Return the cluster with NVLink domains of a different size. Small domains split hosts, large ones join them.

        Parameters
        ----------
        size : int
            Devices per domain: a divisor or a multiple of the number of devices of a host.

        Raises
        ------
        TopologyError
            If the hosts have different numbers of devices.
            If `size` is neither a divisor nor a multiple of that number.

        Examples
        --------
        >>> import meshlab as ml
        >>> ml.preset("dgx-h100", nodes=4).with_nvlink_domain(16).summary
        '4 nodes, 32 × H100 80GB, NVLink domains of 16'
        >>> ml.preset("dgx-h100", nodes=4).with_nvlink_domain(4).summary
        '4 nodes, 32 × H100 80GB, NVLink domains of 4'
        """
        return implementation(Cluster.with_nvlink_domain)(self, size)

    def with_taper(self, taper: float | None = None, level: str | None = None, **tapers: float) -> Cluster:
        """Return the cluster with a different oversubscription of its network.

        Parameters
        ----------
        taper : float, optional
            Oversubscription of `level`: 7 means 1:7, 1 means full bandwidth for every NIC.
        level : str, optional
            A level of the network. By default the outermost level.
        **tapers : float
            Oversubscription by level, such as ``pod=7``.

        Raises
        ------
        TopologyError
            If the network level is unknown.
            If the oversubscription is below 1.

        Examples
        --------
        >>> import meshlab as ml
        >>> cluster = ml.preset("dgx-h100", nodes=64)
        >>> [(level.name, level.taper) for level in cluster.with_taper(4).levels]
        [('leaf', 1.0), ('pod', 1.0), ('cluster', 4)]
        >>> [(level.name, level.taper) for level in cluster.with_taper(pod=2, cluster=7).levels]
        [('leaf', 1.0), ('pod', 2), ('cluster', 7)]
        """
        return implementation(Cluster.with_taper)(self, taper, level, **tapers)

    # -- health, tables and figures ------------------------------------------------------------------------------------

    def health(self) -> Findings:
        """Look for faults and misconfiguration in the hosts, most severe first, as in `meshlab doctor`.

        Examples
        --------
        >>> import meshlab as ml
        >>> ml.preset("dgx-h100").health().summary
        'no problems found in 8 devices of 1 node'
        >>> ml.preset("dgx-h100").without_link(2).health().codes
        ('off-fabric',)
        """
        return implementation(Cluster.health)(self)

    def plot(self, axis: str | None = None, *, ax: Axes | None = None) -> Axes:
        """Draw the machine, see `meshlab.plots.topology`.

        Parameters
        ----------
        axis : str, optional
            The level that determines the colours, such as ``"leaf"``. By default the outermost level with several
            domains.
        ax : matplotlib.axes.Axes, optional
            The axes to draw on. By default a new figure is created.
        """
        return implementation(Cluster.plot)(self, axis=axis, ax=ax)

    def frame(self) -> pd.DataFrame:
        """Return a table of the devices.

        Returns
        -------
        pandas.DataFrame
            One row per device: its host, its properties, and its domain at every level.

        Examples
        --------
        >>> import meshlab as ml
        >>> ml.preset("dgx-h100", nodes=2).frame().loc[9, ["node", "name", "compute_capability"]].tolist()
        ['node1', 'H100 80GB', (9, 0)]
        """
        return device_table(self)

    def level_frame(self) -> pd.DataFrame:
        """Return a table of the levels, from the inside out.

        Returns
        -------
        pandas.DataFrame
            One row per level: ``level``, number of ``domains``, ``devices_min`` and ``devices_max`` per domain, ``gbs``
            (GB/s that one device of the slowest host can send while all devices send), ``latency_us`` (of one hop in a
            ring) and ``taper`` (oversubscription). Unknown values are missing.

        Examples
        --------
        >>> import meshlab as ml
        >>> frame = ml.preset("tapered-h100", nodes=768).level_frame()
        >>> frame[["level", "domains", "gbs", "taper"]].round(2).values.tolist()[-3:]
        [['leaf', 384, 48.0, 1.0], ['pod', 2, 48.0, 1.0], ['cluster', 1, 6.86, 7.0]]
        """
        return level_table(self)

    @cached_property
    def fingerprint(self) -> str:
        """Short stable hash of devices, links and network, without live readings such as the temperature."""
        digest = hashlib.sha256()
        for node in self.templates:
            parts = [(d.name, d.backend, d.bus_id, d.memory_bytes, d.mig) for d in node.devices]
            digest.update(repr((parts, [(n.name, n.gbits) for n in node.nics], node.words)).encode())
            if not node.connected.all():
                digest.update(node.connected.tobytes())
        levels = [(level.name, level.rails, float(level.taper)) for level in self.levels]
        for level in self.levels:
            if level.uplink_share is not None:
                digest.update(repr((level.name, level.failed)).encode() + level.uplink_share.tobytes())
        digest.update(repr((levels, self.names)).encode())
        arrays = [self.kinds, *(level.of_node for level in self.levels)]
        for array in [*arrays, *([] if self.nvlink_of_node is None else [self.nvlink_of_node])]:
            digest.update(np.ascontiguousarray(array, dtype="<i4").tobytes())
        return digest.hexdigest()[:12]

    def __getstate__(self) -> dict[str, object]:
        # Without the cached arrays, which have an entry per device and can be computed again.
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Cluster):
            return NotImplemented
        return self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    @property
    def summary(self) -> str:
        """Hosts, devices, their backends if there are several, and NVLink domains in one line.

        Examples
        --------
        >>> import meshlab as ml
        >>> ml.preset("dgx-a100").summary
        '1 node, 8 × A100 80GB, NVLink domains of 8'
        """
        return summary(self)

    def __repr__(self) -> str:
        levels = f", levels {' < '.join(self.level_names)}" if self.n_nodes > 1 else ""
        return f"<Cluster {self.title or self.names[0]}: {self.summary}{levels}; next: .health(), .plot()>"

    def _repr_html_(self) -> str:
        return card(self)


def _with_slots(node: Node, slots: int) -> Node:
    name = node.cpu_model or "CPU"
    devices = tuple(Device(id=slot, name=name, backend="cpu") for slot in range(slots))
    # Ranks are not pinned to NUMA nodes, so with several of them the distance between two ranks is unknown.
    word = "NODE" if len(node.numa) <= 1 else UNKNOWN
    words = tuple(tuple("X" if i == j else word for j in range(slots)) for i in range(slots))
    return replace(node, devices=devices, nics=(), words=words, p2p=())
