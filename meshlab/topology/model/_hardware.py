"""A host: its devices, NICs and NUMA nodes, and the links between them. None means that a value is unknown."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property, lru_cache, partial
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from meshlab.base import _markup as markup
from meshlab.base._errors import TopologyError, did_you_mean
from meshlab.base._forwarding import implementation
from meshlab.topology.model._links import (
    NEAR,
    UNKNOWN,
    XGMI,
    XGMI_VIA,
    Distance,
    clique_numbers,
    distances,
    fabric_of,
    nic_gbs,
    nvlink_counts,
    nvlink_gbs,
    pcie_gbs,
    socket_gbs,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


Words = tuple[tuple[str, ...], ...]
"""A square matrix of link words."""

_PCIE_GENERATION = {6: 3, 7: 3, 8: 4, 9: 5, 10: 5, 12: 5}  # by major compute capability
_BACKENDS = ("cuda", "rocm", "cpu")
_SWITCHED_LINKS = 18  # NVLinks between two GPUs that only an NVSwitch provides; bridges have at most 12
_NOT_USABLE = Distance.UNKNOWN + 1  # farther than any NIC
_MOST_CPUS = 1 << 16  # a corrupt list such as 0-4000000000 must not fill the memory
_CPU_RANGE = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A GPU, or a CPU slot that a rank can run on.

    Most fields are None if the source does not contain them or the driver did not report them. `unknown` then holds the
    reason, if it is known.

    Raises
    ------
    TopologyError
        If the backend is unknown.

    Examples
    --------
    >>> device = Device(id=0, name="H100", compute_capability=(9, 0), memory_bytes=80 * 2**30)
    >>> device.supports_fp16, device.supports_int8, device.temperature_c
    (True, True, None)
    >>> device
    Device(0, 'H100', 80 GiB)
    """

    id: int
    """Index in its host, as numbered by the driver."""
    name: str = "GPU"
    """Product name."""
    backend: str = "cuda"
    """``cuda``, ``rocm`` or ``cpu``. meshlab measures on ``cuda`` and ``cpu``; other tools may report ``rocm``."""
    node: str | None = None
    """Name of its host."""
    memory_bytes: int | None = None
    memory_used_bytes: int | None = None
    sm_count: int | None = None
    """Number of streaming multiprocessors, on ``rocm`` of compute units."""
    bus_id: str | None = None
    """PCI bus ID, such as ``0000:0f:00.0``."""
    mig: str | None = None
    """MIG partitions, such as ``7 × 1g.10gb``. Empty if MIG is off."""
    driver_version: str | None = None
    cuda_version: str | None = None
    """The newest CUDA version that the driver can run."""
    compute_capability: tuple[int, int] | None = None
    utilisation_percent: float | None = None
    temperature_c: float | None = None
    uuid: str | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    clock_sm_mhz: int | None = None
    clock_sm_max_mhz: int | None = None
    clock_memory_mhz: int | None = None
    ecc: bool | None = None
    """True if ECC protects the memory."""
    ecc_uncorrected: int | None = None
    """Memory errors that ECC could not correct, since the driver was loaded."""
    nvlink_count: int | None = None
    """Number of active NVLinks."""
    nvlink_remotes: tuple[tuple[str, str, int], ...] = ()
    """Remote endpoints of the NVLinks: kind (``gpu``, ``switch``, …), PCI bus ID, and number of links."""
    numa: str | None = None
    """NUMA affinity as printed by the driver: ``0``, or a range such as ``0-1``."""
    cpus: str | None = None
    """CPU affinity as printed by the driver: ``0-55,112-167``."""
    pcie_generation: int | None = None
    """Current generation of the PCIe link. Idle GPUs lower it to save power."""
    pcie_width: int | None = None
    pcie_generation_max: int | None = None
    pcie_width_max: int | None = None
    pcie_path_gbs: float | None = None
    """GB/s of the slowest PCIe link between the device and its CPU, in one direction, as NCCL sees it."""
    xgmi_gbs: float | None = None
    """GB/s of one XGMI link of a GPU of AMD in one direction, as RCCL or the driver has it."""
    fabric: str | None = None
    """``cluster/clique`` of the NVLink fabric. Devices with equal values share a fabric, also across hosts."""
    unknown: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Reasons for missing values, by field name."""

    def __post_init__(self) -> None:
        if self.backend not in _BACKENDS:
            raise TopologyError(
                f"device {self.id}: unknown backend {self.backend!r}{did_you_mean(self.backend, _BACKENDS)}",
                hint=f"choose one of {', '.join(_BACKENDS)}",
            )
        object.__setattr__(self, "unknown", MappingProxyType(dict(self.unknown)))

    @property
    def supports_fp16(self) -> bool | None:
        """True for 16-bit float arithmetic: compute capability 5.3 and above (CUDA programming guide)."""
        return None if self.compute_capability is None else self.compute_capability >= (5, 3)

    @property
    def supports_int8(self) -> bool | None:
        """True for dot products of 8-bit integers: compute capability 6.1 and above (CUDA programming guide)."""
        return None if self.compute_capability is None else self.compute_capability >= (6, 1)

    @property
    def pcie_gbs(self) -> float:
        """Bandwidth of its PCIe link in GB/s, in one direction at full speed. NaN if unknown."""
        generation = self.pcie_generation_max or self.pcie_generation
        if generation is None and self.compute_capability is not None:
            generation = _PCIE_GENERATION.get(self.compute_capability[0])
        return pcie_gbs(generation, self.pcie_width_max or self.pcie_width)

    def __reduce__(self) -> tuple[object, ...]:
        # The default pickling of a slotted dataclass sets `unknown` to a MappingProxyType, which cannot be pickled.
        values = {name: getattr(self, name) for name in Device.__slots__}
        return partial(Device, **values | {"unknown": dict(self.unknown)}), ()

    def __repr__(self) -> str:
        parts = [str(self.id), repr(self.name)]
        if self.memory_bytes is not None:
            parts.append(f"{self.memory_bytes / 2**30:.3g} GiB")
        parts += [text for text in (self.bus_id, self.node) if text]
        return f"Device({', '.join(parts)})"

    def _repr_html_(self) -> str:
        skipped = {"id", "name", "unknown", "nvlink_remotes"}
        names = [name for name in Device.__slots__ if name not in skipped] + ["supports_fp16", "supports_int8"]
        rows = [[name.replace("_", " "), self._field_text(name)] for name in names]
        rows += [[f"NVLinks to {kind}", f"{bus} × {count}"] for kind, bus, count in self.nvlink_remotes]
        return markup.card(f"{self.name} · device {self.id}", self.node or "", markup.table(["field", "value"], rows))

    def _field_text(self, name: str) -> str:
        """Return the value of a field with its unit, or why it is unknown."""
        value = getattr(self, name)
        if value is None:
            return f"unknown: {self.unknown[name]}" if name in self.unknown else "unknown"
        if name.endswith("_bytes"):
            return f"{value / 2**30:.1f} GiB"
        if name == "compute_capability":
            return f"{value[0]}.{value[1]}"
        return str(value) if value != "" else "off"


@dataclass(frozen=True, slots=True, kw_only=True)
class Nic:
    """A port of a network card.

    Examples
    --------
    >>> Nic(name="mlx5_0", gbits=400).gbs
    48.0
    """

    name: str
    bus_id: str | None = None
    gbits: float | None = None
    """Line rate in Gb/s."""
    numa: str | None = None
    """NUMA node."""
    link_layer: str | None = None
    """``InfiniBand`` or ``Ethernet``, or in presets another kind of network, such as ``EFA`` or ``Slingshot``."""
    state: str | None = None
    """State as reported by the system, such as ``ACTIVE``."""
    is_connected: bool = True
    """False if its cable, or the switch at the other end, has failed."""
    rail: int | None = None
    """Rail of the switch at the other end. None for the rail of the devices that are near to it."""

    @property
    def fabric(self) -> str:
        """Kind of the network: ``InfiniBand``, ``Ethernet`` (RoCE), ``EFA``, ``Slingshot``, ``TCPX`` or ``TCPXO``."""
        return fabric_of(self.name, self.link_layer)

    @property
    def gbs(self) -> float:
        """Practical bandwidth in GB/s, in one direction. NaN if the line rate is unknown, 0 without a connection."""
        return nic_gbs(self.gbits) if self.is_connected else 0.0


@dataclass(frozen=True, slots=True)
class Numa:
    """A NUMA node: its number, CPUs such as ``0-55``, and memory. A NUMA node of GPU memory has no CPUs."""

    id: int
    cpus: str = ""
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Link:
    """A link between two endpoints of a host: their names, the link word, and GB/s in one direction in practice."""

    source: str
    target: str
    word: str
    gbs: float


@dataclass(frozen=True, repr=False)
class Node:
    """A host with its devices, NICs and links.

    Parameters
    ----------
    name : str
        Host name.
    devices : tuple of Device, default ()
        GPUs, or CPU slots.
    nics : tuple of Nic, default ()
        Ports of network cards.
    words : tuple of tuple of str, default ()
        Square matrix of link words between all endpoints, devices before NICs. By default every link is unknown.
    p2p : tuple of tuple of str, default ()
        Peer access between devices in the notation of ``nvidia-smi topo -p2p`` (OK, NS, …). Empty if unknown.
    numa : tuple of Numa, default ()
        NUMA nodes.
    model : str, optional
        Machine model, such as ``"DGX H100"``.
    cpu_model : str, optional
        Model of the CPUs.
    cpu_count : int, optional
        Number of logical CPUs.
    sockets : int, optional
        Number of CPU sockets.
    memory_bytes : int, optional
        Main memory in bytes.
    nvlink_known : bool, default True
        False if the source does not list NVLink at all, so that a PCIe word does not rule it out.
    complete : bool, default True
        False if the source was truncated.
    notes : tuple of str, default ()
        Remarks on missing or doubtful data.
    lost_nics : bool, default False
        True if the host has no NIC left. A host that lists no NICs may have some.

    Raises
    ------
    TopologyError
        If a matrix does not have one row and one column per endpoint.

    Examples
    --------
    >>> node = Node("a", (Device(id=0, compute_capability=(9, 0)), Device(id=1)), words=(("X", "NV18"), ("NV18", "X")))
    >>> node.ends, round(float(node.gbs[0, 1]), 1), node.nvlink_groups.tolist()
    (('GPU0', 'GPU1'), 370.8, [0, 0])
    """

    name: str
    devices: tuple[Device, ...] = ()
    nics: tuple[Nic, ...] = ()
    words: Words = ()
    p2p: Words = ()
    numa: tuple[Numa, ...] = ()
    model: str | None = None
    cpu_model: str | None = None
    cpu_count: int | None = None
    sockets: int | None = None
    memory_bytes: int | None = None
    nvlink_known: bool = True
    complete: bool = True
    notes: tuple[str, ...] = ()
    lost_nics: bool = False

    def __post_init__(self) -> None:
        ends = len(self.devices) + len(self.nics)
        if not self.words and ends:
            unknown = tuple(tuple("X" if i == j else UNKNOWN for j in range(ends)) for i in range(ends))
            object.__setattr__(self, "words", unknown)
        for what, matrix, size in (("link words", self.words, ends), ("peer access", self.p2p, len(self.devices))):
            if matrix and (len(matrix) != size or any(len(row) != size for row in matrix)):
                lengths = " and ".join(str(length) for length in sorted({len(row) for row in matrix}))
                raise TopologyError(
                    f"the {what} of {self.name!r} must be a {size} × {size} matrix ({len(self.devices)} devices, "
                    f"{len(self.nics)} NICs), not {len(matrix)} rows of length {lengths}",
                    hint="pass one row and one column per endpoint, devices before NICs",
                )

    @cached_property
    def ends(self) -> tuple[str, ...]:
        """Names of the endpoints in the order of `words`: ``GPU0``, …, then the NICs."""
        return tuple(f"{'CPU' if d.backend == 'cpu' else 'GPU'}{d.id}" for d in self.devices) + tuple(
            nic.name for nic in self.nics
        )

    @cached_property
    def distance(self) -> npt.NDArray[np.int8]:
        """The `Distance` between all endpoints. If one direction is unknown, the other direction is used."""
        # A truncated paste has only the first rows. Links are symmetric, so their columns fill in the missing rows.
        read = distances(self.words)
        return np.where(read == Distance.UNKNOWN, read.T, read)

    @property
    def gpu_link_name(self) -> str:
        """Name of the links between its GPUs: ``XGMI`` for AMD, otherwise ``NVLink``."""
        return gpu_link_name((self,))

    @cached_property
    def nvlinks(self) -> npt.NDArray[np.int16]:
        """Number of NVLinks or XGMI links between all endpoints.

        If one direction is unknown, the other direction is used.
        """
        read = nvlink_counts(self.words)
        return np.where(distances(self.words) == Distance.UNKNOWN, read.T, read)

    @cached_property
    def gbs(self) -> npt.NDArray[np.float64]:
        """GB/s in one direction between all endpoints, NaN if unknown. The values are NCCL's, see `nvlink_gbs`."""
        # The rate of XGMI is unknown if the number of links is, and between GPUs that have no link of their own.
        pcie = np.array([device.pcie_gbs for device in self.devices] + [nic.gbs for nic in self.nics], dtype=float)
        # fmin ignores NaN: if the speed of only one endpoint is known, it is the best estimate of the link.
        slower = np.fmin(pcie[:, None], pcie[None, :])
        # The link between the sockets is slower than PCIe on most machines, so it limits SYS links.
        gbs: npt.NDArray[np.float64] = np.where(
            self.distance == Distance.SYS, np.minimum(slower, socket_gbs(self.cpu_model)), slower
        )
        rates = [nvlink_gbs(d.compute_capability) if d.xgmi_gbs is None else d.xgmi_gbs for d in self.devices]
        per_link = np.array(rates + [np.nan] * len(self.nics))
        gbs = np.where(self.distance == Distance.NVLINK, self.nvlinks * np.fmin(per_link[:, None], per_link), gbs)
        if {XGMI, XGMI_VIA} & set().union(*self.words):
            words = np.array(self.words, dtype=object)
            is_uncounted = (words == XGMI) | (words == XGMI_VIA)
            gbs[is_uncounted | ((words == UNKNOWN) & is_uncounted.T)] = np.nan
        gbs[self.distance == Distance.UNKNOWN] = np.nan
        gbs[self.distance == Distance.SELF] = np.inf
        return gbs

    @cached_property
    def nvlink_groups(self) -> npt.NDArray[np.int32]:
        """NVLink (or XGMI) domain of every device. All pairs of devices in a domain have NVLink."""
        devices = len(self.devices)
        return clique_numbers(self.distance[:devices, :devices] == Distance.NVLINK)

    @cached_property
    def has_nvswitch(self) -> bool:
        """True if NVLink goes through switches, so that a device reaches every other one with all of its NVLinks."""
        count = len(self.devices)
        totals = [device.nvlink_count or 0 for device in self.devices]
        remotes = {kind for device in self.devices for kind, _, _ in device.nvlink_remotes}
        most = int(self.nvlinks[:count, :count].max(initial=0))
        return "switch" in remotes or most >= _SWITCHED_LINKS or (count > 2 and 0 < most == max(totals, default=0))

    @cached_property
    def device_nvlink_gbs(self) -> float:
        """GB/s of all NVLinks of a device together in one direction, infinite if unknown.

        NaN if GPUs pass on the data of others (``XGMI0``), with which they share their links.
        """
        if XGMI_VIA in set().union(*self.words):
            return float("nan")
        count = len(self.devices)
        links = self.nvlinks[:count, :count]
        per_link = np.divide(self.gbs[:count, :count], links, where=links > 0, out=np.full(links.shape, np.nan))
        finite = per_link[np.isfinite(per_link)]
        of_pairs = int((links if self.has_nvswitch else links.sum(axis=1)).max(initial=0))
        total = max(of_pairs, *(device.nvlink_count or 0 for device in self.devices), 0)
        return total * float(finite.max()) if finite.size else float("inf")

    @property
    def near_nics(self) -> npt.NDArray[np.bool_]:
        """True if a NIC is one of the nearest connected NICs of a device; bool of shape (devices, nics)."""
        return self.near_ports if self.connected.all() else self._near_connected

    @cached_property
    def _near_connected(self) -> npt.NDArray[np.bool_]:
        return self._nearest(self.connected)

    @cached_property
    def connected(self) -> npt.NDArray[np.bool_]:
        """True if a NIC is connected to the network; bool of shape (nics,)."""
        return np.array([nic.is_connected for nic in self.nics], dtype=bool)

    @property
    def is_cut_off(self) -> bool:
        """True if the host has NICs, but none is connected."""
        return self.lost_nics or (bool(self.nics) and not self.connected.any())

    @cached_property
    def near_ports(self) -> npt.NDArray[np.bool_]:
        """True if a NIC is one of the nearest NICs of a device, connected or not; bool of shape (devices, nics)."""
        return self._nearest(np.ones(len(self.nics), dtype=bool))

    def _nearest(self, usable: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Return whether a NIC is one of the nearest usable ones of a device."""
        devices = len(self.devices)
        away = self.distance[:devices, devices:]
        if not away.size or not usable.any():
            return np.zeros(away.shape, dtype=bool)
        away = np.where(usable, away, _NOT_USABLE)
        nearest = away.min(axis=1, keepdims=True)
        # Where a row was cut, a NIC that is nearer than a far one may be among the unknown ones.
        is_cut = (away == Distance.UNKNOWN).any(axis=1, keepdims=True)
        near: npt.NDArray[np.bool_] = (away == nearest) & (nearest <= np.where(is_cut, NEAR, Distance.SYS))
        return near

    @cached_property
    def nic_groups(self) -> npt.NDArray[np.int32]:
        """Number of the set of nearest NICs of every device. Devices with equal numbers share these NICs."""
        if not self.devices:
            return np.zeros(0, dtype=np.int32)
        _, first, number = np.unique(self.near_nics, axis=0, return_index=True, return_inverse=True)
        # np.unique numbers the sets in the order of their bits; number them in the order of their first device instead.
        order = np.empty(len(first), dtype=np.int32)
        order[np.argsort(first)] = np.arange(len(first), dtype=np.int32)
        return order[number.ravel()]

    def inner_gbs(self, nvlink: bool) -> float:
        """Return the GB/s of the slowest NVLink, or other link, between two devices, or NaN without such a link."""
        count = len(self.devices)
        linked = self.distance[:count, :count] == Distance.NVLINK
        chosen = linked if nvlink else ~linked & ~np.eye(count, dtype=bool)
        rates = self.gbs[:count, :count][chosen]
        return float(np.fmin.reduce(rates, initial=np.nan)) if rates.size else float("nan")

    def links(self) -> Iterator[Link]:
        """Iterate over all pairs of endpoints, each pair once."""
        ends = self.ends
        for i, source in enumerate(ends):
            for j in range(i + 1, len(ends)):
                word = self.words[i][j] if self.words[i][j] != UNKNOWN else self.words[j][i]
                yield Link(source, ends[j], word, float(self.gbs[i, j]))

    @property
    def summary(self) -> str:
        """Number of devices and NICs, in one line.

        Examples
        --------
        >>> Node("a", (Device(id=0, name="H100"),)).summary
        '1 × H100'
        """
        counts = Counter(device.name for device in self.devices)
        parts = [f"{count} × {name}" for name, count in counts.items()] or ["no GPU"]
        if self.nics:
            parts.append(f"{len(self.nics)} NIC{'s' * (len(self.nics) > 1)}")
        return ", ".join(parts)

    def plot(self, *, ax: Axes | None = None) -> Axes:
        """Draw the inside of the host, see `meshlab.plots.host`.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            The axes to draw on. By default a new figure is created.
        """
        return implementation(Node.plot)(self, ax=ax)

    def __getstate__(self) -> dict[str, object]:
        # Without the cached arrays, which are larger than the node and can be computed again.
        return {item.name: getattr(self, item.name) for item in fields(self)}

    def __repr__(self) -> str:
        return f"Node({self.name!r}, {self.summary})"

    def _repr_html_(self) -> str:
        rows = [
            [d.id, d.name, *(v or "unknown" for v in (d.bus_id, d.numa, d.cpus)), _word_counts(self, i)]
            for i, d in enumerate(self.devices)
        ]
        facts = [self.model, self.summary, self.cpu_model, self.cpu_count and f"{self.cpu_count} CPUs"]
        return markup.card(
            f"Node · {self.name}",
            " · ".join(str(fact) for fact in facts if fact),
            markup.table(["device", "name", "bus ID", "NUMA", "CPUs", "links to other devices"], rows),
            "".join(f'<div class="ml-sub">{markup.escape(note)}</div>' for note in self.notes),
        )


def gpu_link_name(nodes: Iterable[Node]) -> str:
    """Return the name of the links between the GPUs of hosts: ``XGMI`` if all are AMD's, otherwise ``NVLink``."""
    backends = {device.backend for node in nodes for device in node.devices} - {"cpu"}
    return XGMI if backends == {"rocm"} else "NVLink"


def _word_counts(node: Node, device: int) -> str:
    words = node.words[device][: len(node.devices)]
    counts = Counter(word for other, word in enumerate(words) if other != device)
    return ", ".join(f"{word} × {count}" for word, count in counts.items())


def parse_cpus(text: str | None) -> tuple[int, ...]:
    """Parse a CPU list such as ``"0-3,8"``. Any other text, such as N/A, has no CPUs."""
    # A value such as N/A is a normal result of nvidia-smi, so it is not an error.
    cpus: set[int] = set()
    for part in (text or "").split(","):
        match = _CPU_RANGE.fullmatch(part.strip())
        if match is None:
            return ()
        first, last = int(match[1]), int(match[2] or match[1])
        cpus.update(range(first, min(last, _MOST_CPUS) + 1))
    return tuple(sorted(cpus))


def count_cpus(text: str | None) -> int:
    """Return the number of CPUs in a list."""
    return len(parse_cpus(text))


def format_cpus(cpus: tuple[int, ...]) -> str:
    """Format CPUs as a list of ranges, such as ``0-2,8``."""
    ranges: list[list[int]] = []
    for cpu in cpus:
        if ranges and cpu == ranges[-1][1] + 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


@lru_cache(maxsize=512)  # a dump of a large cluster repeats the same few masks thousands of times
def cpus_of_mask(text: str) -> str:
    """Convert a mask of 32-bit words, highest word first, to a CPU list. Any other text becomes an empty list."""
    words = text.split(",")
    if len(words) * 32 > _MOST_CPUS or not all(re.fullmatch(r"[0-9a-fA-F]{1,8}", word) for word in words):
        return ""
    mask = int("".join(word.zfill(8) for word in words), 16)
    return format_cpus(tuple(bit for bit, digit in enumerate(reversed(f"{mask:b}")) if digit == "1"))
