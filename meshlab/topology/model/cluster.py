"""Cluster: hosts and the network between them, as a few templates and integer arrays, never one object per GPU."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

import numpy as np
import numpy.typing as npt

from meshlab import markup
from meshlab.errors import TopologyError
from meshlab.topology.model.hardware import Device, Node
from meshlab.topology.model.links import UNKNOWN

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "INNER_LEVELS",
    "Cluster",
    "Ints",
    "Lazy",
    "Level",
    "cluster_card",
    "device_table",
    "level_table",
    "link_codes",
]


Ints = npt.NDArray[np.int32]

Item = TypeVar("Item")

INNER_LEVELS = ("device", "nvlink", "host")
"""The levels that every cluster has, from the inside out; the network's levels follow."""


class Lazy(Sequence[Item], Generic[Item]):
    """A sequence whose items are made when they are asked for.

    Examples
    --------
    >>> squares = Lazy(4, lambda i: i * i)
    >>> len(squares), squares[-1], list(squares)
    (4, 9, [0, 1, 4, 9])
    """

    def __init__(self, length: int, make: Callable[[int], Item]) -> None:
        self._length = length
        self._make = make

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> list[Item]: ...
    def __getitem__(self, index: int | slice) -> Item | list[Item]:
        if isinstance(index, slice):
            return [self._make(i) for i in range(*index.indices(self._length))]
        number = index + self._length if index < 0 else index
        if not 0 <= number < self._length:
            raise IndexError(f"there are {self._length}, not {index}")
        return self._make(number)

    def __repr__(self) -> str:
        shown = ", ".join(repr(item) for item in self[:3])
        return f"[{shown}{', …' if self._length > 3 else ''}] ({self._length:,})"


@dataclass(frozen=True, eq=False)
class Level:
    """One level of the network: which hosts are inside one domain, and what crossing it costs.

    Parameters
    ----------
    name : str
        Such as ``"leaf"`` or ``"pod"``.
    of_node : numpy.ndarray
        int32 of shape (nodes,): the domain of every host.
    rails : int, default 1
        More than 1 when device k of every host hangs on its own switch: a domain then splits into one per rail.
    latency_us : float, optional
        What one hop at this level adds, in µs.
    taper : float, default 1
        How much less bandwidth crosses here than the NICs below could send: 7 is written 1:7.
    """

    name: str
    of_node: Ints
    rails: int = 1
    latency_us: float | None = None
    taper: float = 1.0


_MOST_WORDS = 2048


def link_codes(cluster: Cluster, node: int | str | None = None) -> tuple[list[str], npt.NDArray[np.int16]]:
    """The matrix of `Cluster.link_words` as the different words, and the number of the word of every pair.

    Parameters
    ----------
    cluster : Cluster
    node : int or str, optional
        One host only.

    Raises
    ------
    TopologyError
        If the whole matrix would be larger than 2,048 × 2,048.
    """
    numbers: dict[str, int] = {}
    if node is not None or cluster.n_nodes == 1:
        kind = int(cluster.kinds[cluster.node_index(0 if node is None else node)])
        codes = _template_codes(cluster.templates[kind], numbers)
        return list(numbers), codes
    if cluster.n_devices > _MOST_WORDS:
        raise TopologyError(
            f"{cluster.n_devices:,} devices make too large a matrix; name a node: link_words({cluster.names[0]!r})"
        )
    names = [*reversed(cluster.level_names[3:]), "nvlink"]
    rows = [*reversed(cluster.domains[3:]), cluster.domains[1]]
    codes = np.zeros((cluster.n_devices, cluster.n_devices), dtype=np.int16)
    for number, domain in enumerate(rows):
        np.copyto(codes, number, where=domain[:, None] == domain)
    numbers = {name: number for number, name in enumerate(names)}
    inside = [_template_codes(template, numbers) for template in cluster.templates]
    for index in range(cluster.n_nodes):
        start, stop = cluster.first_device[index : index + 2]
        codes[start:stop, start:stop] = inside[cluster.kinds[index]]
    return list(numbers), codes


def _template_codes(template: Node, numbers: dict[str, int]) -> npt.NDArray[np.int16]:
    size = len(template.devices)
    rows = [[numbers.setdefault(word, len(numbers)) for word in row[:size]] for row in template.words[:size]]
    return np.array(rows, dtype=np.int16).reshape(size, size)


_LATENCIES_US = (None, 0.6, 1.0)  # of a hop inside a device, NVLink and PCIe (NVIDIA/nccl src/graph/tuning.cc, LL ring)


def device_table(cluster: Cluster) -> pd.DataFrame:
    """What `Cluster.frame` gives."""
    import pandas as pd

    fields = [name for name in Device.__slots__ if name not in ("id", "node", "unknown", "nvlink_remotes")]
    rows = [
        {name: getattr(device, name) for name in (*fields, "supports_fp16", "supports_int8")}
        for template in cluster.templates
        for device in template.devices
    ]
    starts = np.cumsum([0, *(len(template.devices) for template in cluster.templates[:-1])])
    frame = pd.DataFrame(rows, columns=[*fields, "supports_fp16", "supports_int8"])
    if cluster.n_devices:
        frame = frame.iloc[starts[cluster.kinds[cluster.node_of]] + cluster.local_of].reset_index(drop=True)
    frame.insert(0, "device", np.arange(cluster.n_devices))
    frame.insert(1, "node", np.array(cluster.names, dtype=object)[cluster.node_of])
    frame.insert(2, "local_id", cluster.local_of)
    for name, domain in zip(cluster.level_names[1:], cluster.domains[1:], strict=True):
        frame[name] = domain
    return frame


def level_table(cluster: Cluster) -> pd.DataFrame:
    """What `Cluster.level_frame` gives."""
    import pandas as pd

    nics = min((_nic_share(template) for template in cluster.templates), default=float("nan"))
    inner = [float("nan"), *(min((t.inner_gbs(k) for t in cluster.templates), default=np.nan) for k in (True, False))]
    rows: list[tuple[object, ...]] = []
    taper = 1.0
    for index, (name, domain) in enumerate(zip(cluster.level_names, cluster.domains, strict=True)):
        sizes = np.bincount(domain)
        if not sizes.size:
            rows.append((name, 0, 0, 0, np.nan, np.nan, 1.0))
            continue
        if index < len(INNER_LEVELS):
            rows.append((name, len(sizes), sizes.min(), sizes.max(), inner[index], _LATENCIES_US[index], 1.0))
            continue
        level = cluster.levels[index - len(INNER_LEVELS)]
        taper = max(taper, level.taper)
        rows.append((name, len(sizes), sizes.min(), sizes.max(), nics / taper, level.latency_us, level.taper))
    columns = ["level", "domains", "devices_min", "devices_max", "gbs", "latency_us", "taper"]
    return pd.DataFrame(rows, columns=columns).astype({"gbs": "float64", "latency_us": "float64"})


def _nic_share(node: Node) -> float:
    """GB/s of the NICs near devices, per device; NaN where nothing is known of them."""
    used = np.flatnonzero(node.near_nics.any(axis=0)).tolist() if node.devices else []
    return sum(node.nics[k].gbs for k in used) / len(node.devices) if used else float("nan")


def cluster_card(cluster: Cluster) -> str:
    """The card of a cluster as HTML."""
    of_name = {level.name: level for level in cluster.levels}
    hosts = np.bincount(cluster.kinds, minlength=len(cluster.templates))
    kinds = [
        [int(count), template.model or "host", template.summary, template.cpu_model or "unknown"]
        for template, count in zip(cluster.templates, hosts, strict=True)
    ]
    levels: list[Sequence[object]] = [
        [name, len(np.unique(domain)), "" if name in INNER_LEVELS else f"1:{of_name[name].taper:g}"]
        for name, domain in zip(cluster.level_names, cluster.domains, strict=True)
    ]
    return markup.card(
        f"Cluster · {cluster.title or cluster.names[0]}",
        cluster.summary,
        markup.table(["hosts", "machine", "holds", "CPU"], kinds, most=12),
        markup.table(["level", "domains", "taper"], levels),
        "".join(
            f'<div class="ml-sub">{markup.escape(note)}</div>' for note in (*cluster.notes, cluster.source) if note
        ),
    )


@dataclass(frozen=True, eq=False, repr=False)
class Cluster:
    """Hosts, their devices and links, and the network between them.

    Like hosts share one `Node` as their template; every question is answered from integer arrays.

    Parameters
    ----------
    templates : tuple of Node
        The different hosts.
    kinds : numpy.ndarray
        int32 of shape (nodes,): the template of every host.
    names : tuple of str
        The host names.
    levels : tuple of Level, default ()
        The network from the inside out. One that joins all hosts is added unless the last one does.
    nvlink_of_node : numpy.ndarray, optional
        int32 of shape (nodes,): hosts with the same number share one NVLink domain; None when it ends at the host.
    title : str, default ""
        What the machine is called.
    source : str, default ""
        Where the description comes from.
    notes : tuple of str, default ()
        What was missing or doubtful.

    Raises
    ------
    TopologyError
        If the arrays do not have one entry per host.

    Examples
    --------
    >>> from meshlab.topology.model.presets import preset
    >>> cluster = preset("dgx-h100", nodes=2)
    >>> cluster
    <Cluster DGX H100: 2 nodes, 16 × H100 80GB, NVLink domains of 8, levels device < nvlink < host < leaf < pod>
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

    def __post_init__(self) -> None:
        nodes = len(self.names)
        if not nodes:
            raise TopologyError("a cluster needs at least one node")
        arrays = [("kinds", self.kinds), *((level.name, level.of_node) for level in self.levels)]
        if self.nvlink_of_node is not None:
            arrays.append(("nvlink_of_node", self.nvlink_of_node))
        for name, array in arrays:
            if array.shape != (nodes,):
                raise TopologyError(
                    f"{name} must have one entry for each of the {nodes} nodes, not shape {array.shape}"
                )
        if nodes > 1 and (not self.levels or int(np.ptp(self.levels[-1].of_node)) > 0):
            last = Level("cluster", np.zeros(nodes, dtype=np.int32))
            object.__setattr__(self, "levels", (*self.levels, last))
        names = [*INNER_LEVELS, *(level.name for level in self.levels)]
        if len(set(names)) != len(names):
            raise TopologyError(f"two levels have one name in {', '.join(names)}; give each its own")

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
        """Join hosts; equal ones become one template, and those with a common NVLink fabric one domain.

        Parameters
        ----------
        nodes : sequence of Node
        names : sequence of str, optional
            Their names, where one object stands for several hosts.
        levels, title, source, notes
            As in `Cluster`.

        Examples
        --------
        >>> Cluster.from_nodes([Node("a"), Node("b")]).templates
        (Node('a', no GPU),)
        """
        numbers: dict[Node, int] = {}
        seen: dict[int, int] = {}
        templates: list[Node] = []
        kinds = np.empty(len(nodes), dtype=np.int32)
        fabrics: dict[str, int] = {}
        domains = np.empty(len(nodes), dtype=np.int32)
        for index, node in enumerate(nodes):
            if id(node) not in seen:
                devices = tuple(d if d.node is None else replace(d, node=None) for d in node.devices)
                key = replace(node, name="", devices=devices)
                if key not in numbers:
                    numbers[key] = len(templates)
                    templates.append(replace(key, name=node.name))
                seen[id(node)] = numbers[key]
            kinds[index] = seen[id(node)]
            fabric = next((device.fabric for device in node.devices if device.fabric), f"\0{index}")
            domains[index] = fabrics.setdefault(fabric, len(fabrics))
        shared = len(fabrics) < len(nodes)
        return cls(
            tuple(templates),
            kinds,
            tuple(node.name for node in nodes) if names is None else tuple(names),
            levels=levels,
            nvlink_of_node=domains if shared else None,
            title=title,
            source=source,
            notes=notes,
        )

    # -- counting ------------------------------------------------------------------------------------------------------

    @property
    def n_nodes(self) -> int:
        """How many hosts there are."""
        return len(self.names)

    @cached_property
    def first_device(self) -> Ints:
        """The number of every host's first device, and the number of all devices at the end; shape (nodes + 1,)."""
        counts = np.array([len(template.devices) for template in self.templates], dtype=np.int32)[self.kinds]
        return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)

    @property
    def n_devices(self) -> int:
        """How many devices there are."""
        return int(self.first_device[-1])

    @cached_property
    def node_of(self) -> Ints:
        """The host of every device; int32 of shape (devices,)."""
        return np.repeat(np.arange(self.n_nodes, dtype=np.int32), np.diff(self.first_device))

    @cached_property
    def local_of(self) -> Ints:
        """The number of every device inside its host; int32 of shape (devices,)."""
        return (np.arange(self.n_devices, dtype=np.int32) - self.first_device[self.node_of]).astype(np.int32)

    @property
    def models(self) -> dict[str, int]:
        """How many devices of each product there are."""
        hosts = np.bincount(self.kinds, minlength=len(self.templates)).tolist()
        counts: dict[str, int] = {}
        for template, times in zip(self.templates, hosts, strict=True):
            for device in template.devices:
                counts[device.name] = counts.get(device.name, 0) + times
        return counts

    # -- objects on demand ---------------------------------------------------------------------------------------------

    @property
    def devices(self) -> Lazy[Device]:
        """All devices, host by host."""
        return Lazy(self.n_devices, self.device)

    @property
    def nodes(self) -> Lazy[Node]:
        """All hosts."""
        return Lazy(self.n_nodes, self.node)

    def device(self, index: int) -> Device:
        """The device with that number in the whole cluster."""
        if not 0 <= index < self.n_devices:
            raise TopologyError(f"there is no device {index}; this cluster has {self.n_devices:,}")
        node = int(self.node_of[index])
        device: Device = self.templates[self.kinds[node]].devices[self.local_of[index]]
        return replace(device, node=self.names[node])

    def node(self, which: int | str) -> Node:
        """The host with that number or name."""
        index = self.node_index(which)
        template: Node = self.templates[self.kinds[index]]
        return replace(template, name=self.names[index])

    def node_index(self, which: int | str) -> int:
        """The number of a host, given its number or name."""
        if isinstance(which, str):
            if which in self.names:
                return self.names.index(which)
        elif 0 <= which < self.n_nodes:
            return int(which)
        raise TopologyError(f"there is no node {which!r}; this cluster has {self.n_nodes:,}, {self._name_range()}")

    def with_cpu_slots(self, ranks: int) -> Cluster:
        """The same hosts with CPU slots in place of GPUs: what a backend without GPUs runs on.

        Parameters
        ----------
        ranks : int
            How many slots; hosts get equal shares, the first ones one more.

        Examples
        --------
        >>> Cluster.from_nodes([Node("laptop", cpu_model="Ryzen")]).with_cpu_slots(4).summary
        '1 node, 4 × Ryzen'
        """
        shares = [ranks // self.n_nodes + (index < ranks % self.n_nodes) for index in range(self.n_nodes)]
        nodes = [_with_slots(self.node(index), share) for index, share in enumerate(shares)]
        return Cluster.from_nodes(nodes, levels=self.levels, title=self.title, source=self.source, notes=self.notes)

    def _name_range(self) -> str:
        return self.names[0] if self.n_nodes == 1 else f"{self.names[0]} to {self.names[-1]}"

    # -- levels --------------------------------------------------------------------------------------------------------

    @property
    def level_names(self) -> tuple[str, ...]:
        """All levels from the inside out."""
        return (*INNER_LEVELS, *(level.name for level in self.levels))

    @cached_property
    def domains(self) -> Ints:
        """The domain of every device on every level; int32 of shape (levels, devices)."""
        rows = [np.arange(self.n_devices, dtype=np.int32), self._nvlink_domains(), self.node_of]
        width = np.diff(self.first_device)[self.node_of]
        for level in self.levels:
            domain = level.of_node[self.node_of]
            if level.rails > 1:
                rail = np.where(
                    width >= level.rails,
                    self.local_of * level.rails // np.maximum(width, 1),
                    self.local_of % level.rails,
                )
                domain = domain * level.rails + rail
            rows.append(domain)
        domains = np.stack(rows).astype(np.int32)
        domains.flags.writeable = False
        return domains

    def domain(self, level: str) -> Ints:
        """The domain of every device on one level; int32 of shape (devices,).

        Raises
        ------
        TopologyError
            If there is no such level.
        """
        if level not in self.level_names:
            raise TopologyError(f"there is no level {level!r}; this cluster has {', '.join(self.level_names)}")
        row: Ints = self.domains[self.level_names.index(level)]
        return row

    def _nvlink_domains(self) -> Ints:
        inside = self._per_device([template.nvlink_groups for template in self.templates])
        sizes = np.array([int(t.nvlink_groups.max(initial=-1)) + 1 for t in self.templates], dtype=np.int64)[self.kinds]
        numbers = (np.cumsum(sizes) - sizes)[self.node_of] + inside
        if self.nvlink_of_node is not None:
            # The largest set of a host is the one on the shared fabric; a device off it keeps a domain of its own.
            main = [int(np.bincount(t.nvlink_groups).argmax()) if t.devices else 0 for t in self.templates]
            on_fabric = inside == np.array(main, dtype=np.int32)[self.kinds][self.node_of]
            numbers = np.where(on_fabric, self.nvlink_of_node[self.node_of], numbers + self.n_nodes)
        return np.unique(numbers, return_inverse=True)[1].astype(np.int32).reshape(-1)

    def _per_device(self, of_template: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
        """Spread one array per template, with an entry per device of it, over all devices."""
        if not self.n_devices:
            return np.zeros(0, dtype=np.int32)
        starts = np.cumsum([0, *(len(values) for values in of_template[:-1])])
        spread: npt.NDArray[Any] = np.concatenate(of_template)[starts[self.kinds[self.node_of]] + self.local_of]
        return spread

    def link_words(self, node: int | str | None = None) -> npt.NDArray[np.str_]:
        """The device by device matrix of link words; between hosts stands the innermost level that joins them.

        Parameters
        ----------
        node : int or str, optional
            One host only.

        Raises
        ------
        TopologyError
            If the whole matrix would be larger than 2,048 × 2,048.

        Examples
        --------
        >>> from meshlab.topology.model.presets import preset
        >>> preset("dgx-a100").link_words()[0, :3].tolist()
        ['X', 'NV12', 'NV12']
        """
        words, codes = link_codes(self, node)
        return np.array(words, dtype=np.str_)[codes]

    # -- tables and looks ----------------------------------------------------------------------------------------------

    def frame(self) -> pd.DataFrame:
        """One row per device: its host, its properties, and its domain on every level.

        Examples
        --------
        >>> from meshlab.topology.model.presets import preset
        >>> preset("dgx-h100", nodes=2).frame().loc[9, ["node", "name", "compute_capability"]].tolist()
        ['node1', 'H100 80GB', (9, 0)]
        """
        return device_table(self)

    def level_frame(self) -> pd.DataFrame:
        """One row per level, from the inside out: how many domains, how large, and what crossing it costs.

        Returns
        -------
        pandas.DataFrame
            ``level``, ``domains``, ``devices_min`` and ``devices_max`` per domain, ``gbs`` (what one device can send
            one way there while all do, in GB/s; the slowest host counts), ``latency_us`` (what one hop adds to a ring,
            NCCL's figures) and ``taper``. Missing where it is not known.

        Examples
        --------
        >>> from meshlab.topology.model.presets import preset
        >>> preset("tapered-h100", nodes=768).level_frame()[["level", "domains", "gbs", "taper"]].values.tolist()[-3:]
        [['leaf', 384, 48.0, 1.0], ['pod', 2, 48.0, 1.0], ['cluster', 1, 6.857142857142857, 7.0]]
        """
        return level_table(self)

    @cached_property
    def fingerprint(self) -> str:
        """A short stable hash of what is connected to what; live readings such as temperature do not count."""
        digest = hashlib.sha256()
        for node in self.templates:
            parts = [(d.name, d.backend, d.bus_id, d.memory_bytes, d.mig) for d in node.devices]
            digest.update(repr((parts, [(n.name, n.gbits) for n in node.nics], node.words)).encode())
        levels = [(level.name, level.rails, level.taper) for level in self.levels]
        digest.update(repr((levels, self.names)).encode())
        arrays = [self.kinds, *(level.of_node for level in self.levels)]
        for array in [*arrays, *([] if self.nvlink_of_node is None else [self.nvlink_of_node])]:
            digest.update(np.ascontiguousarray(array, dtype="<i4").tobytes())
        return digest.hexdigest()[:12]

    def __getstate__(self) -> dict[str, object]:
        return {item.name: getattr(self, item.name) for item in fields(self)}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Cluster):
            return NotImplemented
        return self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    @property
    def summary(self) -> str:
        """What it is, in one line.

        Examples
        --------
        >>> from meshlab.topology.model.presets import preset
        >>> preset("dgx-a100").summary
        '1 node, 8 × A100 80GB, NVLink domains of 8'
        """
        parts = [f"{self.n_nodes:,} node{'s' * (self.n_nodes > 1)}"]
        parts += [f"{count:,} × {name}" for name, count in self.models.items()] or ["no GPU"]
        if self.n_devices:
            sizes = np.unique(np.bincount(self.domains[1]))
            if sizes[-1] > 1:
                parts.append("NVLink domains of " + " and ".join(str(size) for size in sizes))
        return ", ".join(parts)

    def __repr__(self) -> str:
        levels = f", levels {' < '.join(self.level_names)}" if self.n_nodes > 1 else ""
        return f"<Cluster {self.title or self.names[0]}: {self.summary}{levels}>"

    def _repr_html_(self) -> str:
        return cluster_card(self)


def _with_slots(node: Node, slots: int) -> Node:
    name = node.cpu_model or "CPU"
    devices = tuple(Device(id=slot, name=name, backend="cpu") for slot in range(slots))
    word = "NODE" if len(node.numa) <= 1 else UNKNOWN
    words = tuple(tuple("X" if i == j else word for j in range(slots)) for i in range(slots))
    return replace(node, devices=devices, nics=(), words=words, p2p=())
