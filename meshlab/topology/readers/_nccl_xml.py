"""Reader for the topology XML of NCCL: files of cloud providers (NCCL_TOPO_FILE) and dumps (NCCL_TOPO_DUMP_FILE).

A file of a cloud provider may contain CPUs and PCI devices only, because NCCL adds GPUs, NVLink and NICs at run time.
Facts that are not in the file remain unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshlab.base._errors import ParseError
from meshlab.base._files import TextSource, text_of
from meshlab.topology.model._cluster import Cluster
from meshlab.topology.model._hardware import Device, Nic, Node, Numa, count_cpus, cpus_of_mask
from meshlab.topology.model._products import product_of_pci
from meshlab.topology.readers._xml import Element, read_document

_GPU_CLASSES = ("0x0302", "0x0300")
_NIC_CLASSES = ("0x0200", "0x0207")
_NVSWITCH_CLASS = "0x0680"
_SPEEDS = {"2.5": 1, "5": 2, "8": 3, "16": 4, "32": 5, "64": 6}  # GT/s to PCIe generation
_MOST_ENDS = 1024
_INTEL = {85: "Skylake", 106: "Ice Lake", 143: "Sapphire Rapids", 207: "Emerald Rapids"}  # CPU generation by modelid


@dataclass(slots=True)
class _End:
    """A GPU or a NIC port, and its path from the CPU."""

    element: Element
    cpu: int
    bridges: tuple[int, ...]  # identities of the PCI bridges
    pci: Element | None

    @property
    def bus_id(self) -> str | None:
        return (self.pci.get("busid") or None) if self.pci is not None else None


def read_nccl_topology(xml: TextSource, *, machine: int | None = None) -> Cluster:
    """Read the text of a topology XML that NCCL wrote, or that was written for NCCL.

    Parameters
    ----------
    xml : str, bytes or path
        The text of the file.
    machine : int, optional
        Index of the document, counted from 0, if the text contains several.

    Returns
    -------
    Cluster
        One node per host of the dump. Link words follow NCCL: PIX below one PCIe bridge, PXB below several, PHB below
        one CPU (which includes nvidia-smi's NODE), SYS between CPUs. If the file lists no NVLink, `Node.nvlink_known`
        is False. If the file is truncated, a note describes the error and `Node.complete` is False.

    Raises
    ------
    ParseError
        If the text is not a topology.
        If the XML declares entities, or is too large.
        If the file has a different version.
    TopologyError
        If the text contains several documents and `machine` is not given.
    OSError
        If the file cannot be read.

    Examples
    --------
    >>> import meshlab as ml
    >>> cluster = ml.topology.read_nccl_topology('''
    ... <system version="1"><cpu numaid="0" affinity="0000ffff" vendor="AuthenticAMD">
    ...   <pci busid="0000:00:01.0" class="0x060400">
    ...     <pci busid="0000:01:00.0" class="0x030200"><gpu dev="0" sm="90" rank="0" gdr="1"/></pci>
    ...     <pci busid="0000:02:00.0" class="0x020700"><nic><net name="mlx5_0" dev="0" speed="400000"/></nic></pci>
    ...   </pci></cpu></system>''')
    >>> cluster.node(0).words, cluster.node(0).nics[0].gbits
    ((('X', 'PIX'), ('PIX', 'X')), 400.0)
    """
    xml, _ = text_of(xml, hint="pass one topology")
    if "<graphs" in xml and "<system" not in xml:
        raise ParseError(
            "this is a graph file (NCCL_GRAPH_DUMP_FILE) with rings and trees, not a topology",
            hint="read it with ml.topology.read()",
        )
    root, trouble = read_document(xml, ("system",), machine)
    version = root.get("version")
    if version != "1":
        origin = " (RCCL, for AMD GPUs, writes version 2)" if version == "2" else ""
        raise ParseError(
            f"the topology has version {version or 'none'!r}{origin}, but version '1' is expected",
            hint="dump it with NCCL",
        )
    hosts: dict[str, list[Element]] = {}
    for cpu in root.children:
        if cpu.tag == "cpu":
            hosts.setdefault(cpu.get("host_hash"), []).append(cpu)
    if not hosts:
        raise ParseError(
            "the topology contains no <cpu> element" + (f": {trouble}" if trouble else ""),
            hint="copy the complete file",
        )
    nodes = [_node(f"node{number}", cpus, trouble) for number, cpus in enumerate(hosts.values())]
    joined = len(nodes) > 1 and any(_switch_links(device) for node in nodes for device in node.devices)
    cluster = Cluster.from_nodes(
        nodes,
        source="NCCL topology XML",
        notes=tuple(f"{node.name}: {note}" for node in nodes for note in node.notes),
    )
    # NCCL dumps several hosts into one file only if they share an NVLink domain.
    return replace(cluster, nvlink_of_node=np.zeros(len(nodes), dtype=np.int32)) if joined else cluster


def _node(name: str, cpus: Sequence[Element], trouble: str | None) -> Node:
    """Return a host from its <cpu> elements."""
    gpus: list[_End] = []
    ports: list[_End] = []
    unclassified = 0
    for number, cpu in enumerate(cpus):
        for end in _walk(cpu, number, (), None):
            if end.element.tag == "gpu":
                gpus.append(end)
            elif end.element.tag == "net":
                ports.append(end)
            elif end.element.get("class").startswith(_GPU_CLASSES):
                gpus.append(end)
            elif end.element.get("class").startswith(_NIC_CLASSES):
                ports.append(end)
            else:
                unclassified += not end.element.get("class")
    if len(gpus) + len(ports) > _MOST_ENDS:
        raise ParseError(
            f"the topology has {len(gpus):,} GPUs and {len(ports):,} NICs, but a host can have at most {_MOST_ENDS:,}",
            hint="pass the dump of one job",
        )
    gpus, ports = _ordered(gpus), _ordered(ports)
    devices = tuple(_device(number, end, cpus[end.cpu]) for number, end in enumerate(gpus))
    nics = tuple(_nic(number, end, cpus[end.cpu]) for number, end in enumerate(ports))
    notes = [] if trouble is None else [trouble]
    if unclassified:
        notes.append(
            f"{unclassified} PCI device{'s' * (unclassified > 1)} without a class may be GPUs or NICs and were ignored"
        )
    if any(device.bus_id == target for device in devices for _, target, _ in device.nvlink_remotes):
        notes.append("NVLinks connect a GPU to itself, because the virtual machine hides their remote endpoints")
    ends = [*gpus, *ports]
    # The PCIe path of every pair first. NVLink then replaces it for GPUs.
    words = [[_pci_word(source, target) for target in ends] for source in ends]
    for i, j, count in _nvlinks(devices):
        words[i][j] = f"NV{count}"
    lists_nvlink = any(device.nvlink_remotes for device in devices)
    if devices and not lists_nvlink:
        notes.append("the file does not list NVLink; NCCL queries the driver for it")
    masks = [cpus_of_mask(cpu.get("affinity")) for cpu in cpus]
    return Node(
        name,
        devices,
        nics,
        words=tuple(map(tuple, words)),
        numa=tuple(Numa(_numa(cpu) or 0, mask) for cpu, mask in zip(cpus, masks, strict=True)),
        cpu_model=_cpu_model(cpus[0]),
        cpu_count=sum(count_cpus(mask) for mask in masks) or None,
        nvlink_known=lists_nvlink,
        complete=trouble is None,
        notes=tuple(notes),
    )


def _walk(element: Element, cpu: int, bridges: tuple[int, ...], pci: Element | None) -> Iterator[_End]:
    """Iterate over GPUs, NIC ports, and PCI devices that contain neither and are identified by their class only."""
    for child in element.children:
        if child.tag in ("gpu", "net"):
            yield _End(child, cpu, bridges, pci)
        elif child.tag == "nic":
            yield from _walk(child, cpu, bridges, pci)
        elif child.tag == "pci":
            # Nested <pci> elements are bridges, and the innermost one is the device.
            below = (*bridges, id(pci)) if pci is not None else bridges
            inner = list(_walk(child, cpu, below, child))
            yield from inner or [_End(child, cpu, below, child)]


def _ordered(ends: list[_End]) -> list[_End]:
    """Sort by NCCL's number if all endpoints have one, otherwise by bus ID, the order of nvidia-smi."""
    numbers = [end.element.integer("dev") for end in ends]
    if None not in numbers and len(set(numbers)) == len(numbers):
        return sorted(ends, key=lambda end: end.element.integer("dev") or 0)
    return sorted(ends, key=lambda end: end.bus_id or "")


def _device(number: int, end: _End, cpu: Element) -> Device:
    """Return a GPU. A file without dev, sm or link attributes leaves them to the product of its PCI ID."""
    pci = end.pci if end.pci is not None else end.element
    sm, dev, numa = end.element.integer("sm"), end.element.integer("dev"), _numa(cpu)
    links = [child for child in end.element.children if child.tag == "nvlink"]
    remotes = tuple(
        (
            "switch" if link.get("tclass").startswith(_NVSWITCH_CLASS) else "gpu",
            link.get("target"),
            link.integer("count") or 0,
        )
        for link in links
    )
    product = product_of_pci(pci.get("vendor"), pci.get("device"))
    return Device(
        id=number if dev is None else dev,
        name="GPU" if product is None else product.name,
        memory_bytes=None if product is None else product.memory_gib * 2**30,
        sm_count=None if product is None else product.sm_count,
        bus_id=end.bus_id,
        compute_capability=(sm // 10, sm % 10) if sm else None if product is None else product.compute_capability,
        nvlink_count=sum(count for _, _, count in remotes) if links else None,
        nvlink_remotes=remotes,
        numa=None if numa is None else str(numa),
        cpus=cpus_of_mask(cpu.get("affinity")) or None,
        pcie_generation=_generation(pci),
        pcie_width=pci.integer("link_width") or None,
        pcie_generation_max=None if product is None else product.pcie_generation,
        pcie_width_max=None if product is None else 16,
    )


def _nic(number: int, end: _End, cpu: Element) -> Nic:
    speed = end.element.integer("speed")
    if speed is not None and speed <= 0:
        speed = 10_000  # NCCL assumes 10 Gb/s for an unknown speed
    return Nic(
        name=end.element.get("name") or f"NIC{number}",
        bus_id=end.bus_id,
        gbits=speed / 1000 if speed else None,
        numa=None if _numa(cpu) is None else str(_numa(cpu)),
    )


def _generation(pci: Element) -> int | None:
    match = re.match(r"(\d+(?:\.\d+)?)", pci.get("link_speed"))
    return _SPEEDS.get(f"{float(match[1]):g}") if match is not None else None


def _numa(cpu: Element) -> int | None:
    number = cpu.integer("numaid")
    return None if number is None or number < 0 else number


def _cpu_model(cpu: Element) -> str | None:
    vendor, model = cpu.get("vendor"), cpu.integer("modelid")
    if vendor == "GenuineIntel":
        return f"Intel {_INTEL.get(model or 0, '')}".strip()
    return {"AuthenticAMD": "AMD"}.get(vendor) or (f"{vendor} {cpu.get('arch')}".strip() or None)


def _pci_word(source: _End, target: _End) -> str:
    """Return the link word of two endpoints from the PCI bridges above them, as NCCL computes its path types."""
    if source is target:
        return "X"
    if source.pci is not None and source.pci is target.pci:
        return "PIX"
    if source.bridges and target.bridges and source.bridges[0] == target.bridges[0]:
        return "PIX" if source.bridges == target.bridges else "PXB"
    return "PHB" if source.cpu == target.cpu else "SYS"


def _switch_links(device: Device) -> int:
    return sum(count for kind, _, count in device.nvlink_remotes if kind == "switch")


def _nvlinks(devices: Sequence[Device]) -> Iterator[tuple[int, int, int]]:
    """Iterate over pairs with NVLink and the number of links: direct links, or links of both GPUs to NVSwitches."""
    switched = [_switch_links(device) for device in devices]
    for i, device in enumerate(devices):
        direct: dict[str | None, int] = {}
        for kind, target, count in device.nvlink_remotes:
            if kind != "switch":
                direct[target] = direct.get(target, 0) + count
        for j, other in enumerate(devices):
            count = direct.get(other.bus_id, 0) if direct else 0
            count = count or min(switched[i], switched[j])
            if i != j and count:
                yield i, j, count
