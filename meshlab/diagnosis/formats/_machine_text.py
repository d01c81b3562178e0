"""The hardware that a paste describes, as one cluster, and the formats of all tools that describe it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from meshlab.base._documents import LimitError
from meshlab.base._errors import ParseError, TopologyError
from meshlab.diagnosis._paste import LONGEST_LINE, Paste
from meshlab.diagnosis._seen import Seen, TextFormat
from meshlab.diagnosis.formats._gpu_tools import link_frame, matrix_numbers, read_nvlink_counters, read_nvlinks
from meshlab.diagnosis.formats._host_settings import read_access_control, read_limits, read_pcie_links, read_services
from meshlab.diagnosis.formats._kernel_log import read_driver_messages, read_kernel_log, short_bus, xid_frame
from meshlab.diagnosis.formats._rdma_ports import PortState, port_frame, read_ports
from meshlab.diagnosis.formats._smi_query import read_queried_values
from meshlab.diagnosis.formats._smi_table import (
    gpu_frame,
    process_frame,
    read_driver_versions,
    read_gpu_processes,
    read_gpu_rows,
)
from meshlab.topology._health import Findings, health
from meshlab.topology.model._cluster import Cluster
from meshlab.topology.model._hardware import Device, Nic, Node
from meshlab.topology.readers._amd_smi import (
    AMD_SMI_LINE,
    AMD_SMI_LITERALS,
    MOST_GPUS,
    looks_like_amd_smi,
    read_amd_smi,
)
from meshlab.topology.readers._nccl_info import looks_like_nccl_info, read_nccl_info
from meshlab.topology.readers._nvidia_smi import PRODUCT_LINE, read_nvidia_smi

if TYPE_CHECKING:
    import pandas as pd

_MOST_AMD_LINES = 50_000
_TREE = re.compile(r"(?:=== System : max| \+ (?:PCI|NVL|NET|SYS|C2C)\[|NCCL INFO \+ |(?:GPU|NET)/[0-9A-Fa-f-]+ ?:\w)")


def tree_of(paste: Paste) -> Cluster | None:
    """Return the cluster that the system trees of NCCL describe, or None without any."""
    if "NCCL INFO" not in paste.text and "=== System : max" not in paste.text:
        return None
    try:
        return read_nccl_info(paste.text) if looks_like_nccl_info(paste.text) else None
    except (ParseError, TopologyError):
        return None  # nothing but fragments


def matrix_of(paste: Paste) -> Cluster | None:
    """Return the cluster that the matrices of nvidia-smi describe, or None without any."""
    if not (numbers := matrix_numbers(paste)):
        return None
    # Only the lines around the rows, without the prefixes of launchers: a long log may surround the matrix.
    products = {
        line.number for line in paste.find(*(f"GPU {digit}" for digit in range(10))) if PRODUCT_LINE.search(line.text)
    }
    near = sorted({k for number in numbers for k in range(number - 3, number + 30) if 1 <= k <= len(paste)} | products)
    lines = [paste.line(number).text.removeprefix("> ") for number in near]
    if not any(_GPU_ROW.match(line) for line in lines):
        return None  # rows of NICs alone do not show which of their columns are GPUs
    if len(paste) in near and not paste.text.endswith("\n"):
        lines[-1] = re.sub(r"NV\d*$", "", lines[-1])  # the last word may be cut: NV1 of NV18
    longest = max(end - start for start, end in map(paste.bounds, near))
    if longest >= LONGEST_LINE:
        raise LimitError(
            f"a matrix of nvidia-smi has lines of more than {LONGEST_LINE:,} characters",
            hint="read it with ml.topology.read()",
            file=paste.name,
        )
    text = "\n".join(_without_cut_headers(lines))
    try:
        return read_nvidia_smi(text, machine="all")
    except (ParseError, TopologyError):
        return None


def amd_lines(paste: Paste) -> list[int]:
    """Return the numbers of the lines that rocm-smi --showtopo or amd-smi topology printed."""
    if not looks_like_amd_smi(paste.text):
        return []
    titles = paste.numbers(*AMD_SMI_LITERALS)
    if not titles or titles[-1] - titles[0] > _MOST_AMD_LINES:
        return []
    lines = range(titles[0], min(titles[-1] + MOST_GPUS + 2, len(paste) + 1))
    return [number for number in lines if AMD_SMI_LINE.search(paste.line(number).text[:LONGEST_LINE])]


def amd_of(paste: Paste) -> Cluster | None:
    """Return the cluster that the tables of rocm-smi or amd-smi describe, or None without link types."""
    if not (numbers := paste.once(amd_lines)):
        return None
    products = {line.number for line in paste.find("Instinct MI", "Radeon ")}
    # A document in JSON has lines before, between and after those that show what it is.
    near = sorted({*range(max(numbers[0] - 12, 1), min(numbers[-1] + 14, len(paste)) + 1), *products})
    try:
        return read_amd_smi("\n".join(paste.line(number).text for number in near), machine="all")
    except (ParseError, TopologyError):
        return None


def machine_of(paste: Paste) -> Cluster | None:
    """Return the hardware that all parts of a paste describe together, or None if none names a GPU or a port."""
    # Of several hosts, the other tools add only what names its host.
    matrix, tree = paste.once(matrix_of), paste.once(tree_of)
    base = matrix if matrix is not None else tree if tree is not None else paste.once(amd_of)
    if matrix is not None and tree is not None and matrix.n_nodes == tree.n_nodes == 1:
        base = Cluster.from_nodes([_joined(matrix.node(0), tree.node(0))], source=matrix.source, notes=matrix.notes)
    if base is None:
        node = _loose_node(paste)
        return None if node is None else Cluster.from_nodes([node], source="the output of several tools")
    nodes = [_completed(node, paste, alone=base.n_nodes == 1) for node in base.nodes]
    if nodes == list(base.nodes):
        return base
    return replace(Cluster.from_nodes(nodes, source=base.source, notes=base.notes), levels=base.levels)


def health_of(paste: Paste) -> Findings | None:
    """Return the findings of `meshlab.topology._health` on the hardware of a paste, or None without hardware."""
    machine = paste.once(machine_of)
    return None if machine is None else health(machine)


def _without_cut_headers(lines: Sequence[str]) -> list[str]:
    """Remove headers of which the beginning was cut: the column of X shows where a row has its own column."""
    cleaned: list[str] = []
    header: int | None = None
    for line in lines:
        row = _GPU_ROW.match(line)
        if row is None and re.match(r"[\s|]*(?:GPU|NIC)\d+\b", line) and " X" not in line and "\tX" not in line:
            header = len(cleaned)
        if row is not None and header is not None:
            columns = _COLUMN.findall(cleaned[header].partition("CPU Affinity")[0])
            cells = line[row.end(1) :].replace("|", " ").split()
            if "X" in cells and row[1] in columns and columns.index(row[1]) != cells.index("X"):
                cleaned[header], header = "", None
        cleaned.append(line)
    return cleaned


def _joined(node: Node, tree: Node) -> Node:
    """Add bus IDs, compute capabilities and rates of NICs from the tree of NCCL to the matrix of the same host."""
    if len(node.devices) == len(tree.devices):
        fields = ("bus_id", "compute_capability", "pcie_generation", "pcie_width", "pcie_path_gbs")
        devices = tuple(
            replace(device, **{name: getattr(device, name) or getattr(other, name) for name in fields})
            for device, other in zip(node.devices, tree.devices, strict=True)
        )
        node = replace(node, devices=devices, cpu_model=node.cpu_model or tree.cpu_model)
    rates = {nic.name: nic for nic in tree.nics}
    nics = tuple(
        replace(nic, gbits=nic.gbits or rates[nic.name].gbits) if nic.name in rates else nic for nic in node.nics
    )
    return replace(node, name=tree.name if node.name == "node0" else node.name, nics=nics)


def _completed(node: Node, paste: Paste, *, alone: bool) -> Node:
    """Add what the other tools print about a host. Lines without a host belong to the only host."""

    def is_here(host: str | None) -> bool:
        return host == node.name or (alone and host is None)

    hosts = {port.host for port in paste.once(read_ports)} | {row.host for row in paste.once(read_gpu_rows)}
    if alone and len(hosts - {None}) == 1 and node.name == "node0":
        node = replace(node, name=next(iter(hosts - {None})) or node.name)
    rows = {row.gpu: row for row in paste.once(read_gpu_rows) if is_here(row.host)}
    links = [link for link in paste.once(read_nvlinks) if is_here(link.host)]
    products = {link.gpu: link.product for link in links}
    products |= {gpu: row.product for gpu, row in rows.items() if row.product is not None}
    active = {gpu: sum(link.gbs is not None for link in links if link.gpu == gpu) for gpu in {k.gpu for k in links}}
    lost = {loss.bus_id for loss in paste.once(read_kernel_log).bus_losses if loss.bus_id and is_here(loss.host)}
    devices = []
    for device in node.devices:
        bus_id = device.bus_id or (rows[device.id].bus_id if device.id in rows else None)
        changed = replace(
            device,
            bus_id=bus_id,
            name=products.get(device.id, device.name) if device.name == "GPU" else device.name,
            nvlink_count=active.get(device.id, device.nvlink_count),
        )
        if bus_id is not None and short_bus(bus_id) in lost:
            changed = replace(changed, unknown={**changed.unknown, "name": "the GPU has fallen off the bus"})
        devices.append(changed)
    ports = _latest(port for port in paste.once(read_ports) if is_here(port.host))
    return replace(node, devices=tuple(devices), nics=tuple(_nic(nic, ports) for nic in node.nics))


def _loose_node(paste: Paste) -> Node | None:
    """Return a host of which only GPUs and ports are known, not the links between them."""
    links, rows = paste.once(read_nvlinks), paste.once(read_gpu_rows)
    ports = _latest(paste.once(read_ports))
    gpus: dict[int, Device] = {}
    for row in rows:
        gpus[row.gpu] = Device(
            id=row.gpu,
            name=row.product or "GPU",
            bus_id=row.bus_id,
            ecc_uncorrected=row.ecc,
            mig=None if row.mig is None else "on" * row.mig,
        )
    for number in sorted({link.gpu for link in links}):
        gpu_links = [link for link in links if link.gpu == number]
        gpu = gpus.get(number, Device(id=number, name=gpu_links[0].product))
        gpus[number] = replace(gpu, nvlink_count=sum(link.gbs is not None for link in gpu_links))
    hosts = {row.host for row in rows} | {link.host for link in links} | {port.host for port in ports.values()}
    if len(hosts) > 1 or not (gpus or ports):
        return None
    host = next(iter(hosts)) or "node0"
    nics = tuple(_nic(Nic(name=device), ports) for device, _ in ports)
    return Node(host, tuple(gpus.values()), nics, nvlink_known=False, complete=False)


def _latest(ports: Iterable[PortState]) -> dict[tuple[str, int], PortState]:
    """Return the last state of every port, by device and number."""
    return {(port.device, port.port): port for port in ports}


def _nic(nic: Nic, ports: Mapping[tuple[str, int], PortState]) -> Nic:
    nic_ports = [port for (device, _), port in ports.items() if device == nic.name]
    if not nic_ports:
        return nic
    port = nic_ports[0]
    return replace(
        nic,
        state=nic.state if port.state == "UNKNOWN" else port.state,
        gbits=port.gbits if port.gbits is not None and port.state == "ACTIVE" else nic.gbits,
        link_layer=port.link_layer or nic.link_layer,
    )


# -- formats -----------------------------------------------------------------------------------------------------------


def _see(facts: Mapping[str, str], frames: Mapping[str, Callable[[], pd.DataFrame]] | None, paste: Paste) -> Seen:
    return Seen(
        MappingProxyType({name: value for name, value in facts.items() if value}),
        MappingProxyType(dict(frames or {})),
        paste.once(machine_of),
    )


def _see_machine(paste: Paste) -> Seen:
    machine = paste.once(machine_of)
    return _see({"hardware": "" if machine is None else machine.summary}, None, paste)


def _see_ports(paste: Paste) -> Seen:
    ports = paste.once(read_ports)
    states = [port.state for port in _latest(ports).values()]
    unknown = states.count("UNKNOWN")
    facts = {"RDMA ports": f"{states.count('ACTIVE')} of {len(states)} active" + f", {unknown} unknown" * bool(unknown)}
    return _see(facts, {"ports": lambda: port_frame(ports)}, paste)


def _see_links(paste: Paste) -> Seen:
    links = paste.once(read_nvlinks)
    active = sum(link.gbs is not None for link in links)
    gpus = len({(link.host, link.gpu) for link in links})
    facts = {"NVLinks": f"{active} active on {gpus} GPU{'s' * (gpus != 1)}" if links else ""}
    return _see(facts, {"links": lambda: link_frame(links)} if links else None, paste)


def _see_kernel(paste: Paste) -> Seen:
    log = paste.once(read_kernel_log)
    codes = sorted({item.code for item in log.xids})
    facts = {"Xid": ", ".join(map(str, codes)), "SXid": ", ".join(str(c) for c in sorted({s.code for s in log.sxids}))}
    versions = [match[1] for line in paste.once(read_driver_messages) if (match := _MODULE.search(line.text))]
    facts["driver in the kernel"] = ", ".join(dict.fromkeys(versions))
    return _see(facts, {"xids": lambda: xid_frame(log)} if log.xids else None, paste)


def _see_gpus(paste: Paste) -> Seen:
    rows, processes = paste.once(read_gpu_rows), paste.once(read_gpu_processes)
    products = [row.product or "unreadable" for row in rows]
    drivers, cuda = paste.once(read_driver_versions)
    sizes = [
        f"GPU{row.gpu} {row.memory_used_mib:,} of {row.memory_total_mib:,} MiB"
        for row in rows
        if row.memory_used_mib is not None and row.memory_total_mib is not None
    ]
    parted = [f"GPU{row.gpu}" for row in rows if row.mig]
    facts = {
        "GPUs": ", ".join(f"{products.count(name)} × {name}" for name in dict.fromkeys(products)),
        "driver": ", ".join(drivers),
        "CUDA of the driver": ", ".join(cuda),
        "GPU memory": ", ".join(sizes[:8]) + (f" and {len(sizes) - 8} more" if len(sizes) > 8 else ""),
        "MIG": f"on for {', '.join(parted)}" if parted else "",
        "processes": str(len(processes) or ""),
    }
    frames = {"gpus": lambda: gpu_frame(rows)} if rows else {}
    return _see(facts, frames | ({"processes": lambda: process_frame(processes)} if processes else {}), paste)


_GPU_ROW = re.compile(r"[\s|]*(GPU\d+)[\s|]+(?:X|NV\d+|PIX|PXB|PHB|NODE|SYS|SOC|OK|[CGT]?NS|DR|U)(?=[\s|]|$)")
_MODULE = re.compile(r"NVRM: loading NVIDIA UNIX .*?Module(?: for \S+)?\s+(\d+(?:\.\d+)+)")
_COLUMN = re.compile(r"GPU\d+|NIC\d+|mlx\d+_(?:bond_)?\d+|[^\s|]+")


def _find_tree(paste: Paste) -> list[int]:
    if paste.once(tree_of) is None:
        return []
    literals = ("=== System : max", "+ PCI[", "+ NVL[", "+ NET[", "+ SYS[", "+ C2C[", "INFO GPU/", "INFO NET/")
    return [line.number for line in paste.find(*literals) if _TREE.search(line.raw)]


def _find_gpus(paste: Paste) -> list[int]:
    rows = [number for item in paste.once(read_gpu_rows) for number in range(item.line.number, item.line.number + 3)]
    rows = [number for number in rows if number <= len(paste)]
    rows += [item.line.number for item in paste.once(read_gpu_processes)]
    rows += [line.number for line in paste.find("NVIDIA-SMI") if "Driver Version:" in line.raw]
    return [*rows, *paste.numbers("Driver/library version mismatch", "couldn't communicate with the NVIDIA driver")]


def _find_links(paste: Paste) -> list[int]:
    states = [item.line.number for item in paste.once(read_nvlinks)]
    return [*states, *(item.line.number for item in paste.once(read_nvlink_counters))]


def _find_ports(paste: Paste) -> list[int]:
    return [line.number for port in paste.once(read_ports) for line in port.lines]


def _find_settings(paste: Paste) -> list[int]:
    return [
        *(item.line.number for item in paste.once(read_access_control)),
        *(line.number for link in paste.once(read_pcie_links) for line in link.lines),
        *(item.line.number for item in paste.once(read_limits)),
        *(line.number for service in paste.once(read_services) for line in service.lines),
        *(line.number for line in paste.find("nvidia_peermem", "nv_peer_mem") if "NCCL" not in line.raw),
        *paste.numbers("IO_PAGE_FAULT", "iommu: Default domain type:", "DMAR: [DMA"),
    ]


MACHINE_FORMATS: tuple[TextFormat, ...] = (
    TextFormat("nvidia-smi topo", matrix_numbers, _see_machine, "the output of nvidia-smi topo -m"),
    TextFormat(
        "rocm-smi or amd-smi topology",
        lambda paste: paste.once(amd_lines) if paste.once(amd_of) is not None else [],
        _see_machine,
        "the output of rocm-smi --showtopo or amd-smi topology",
    ),
    TextFormat("NCCL system tree", _find_tree, _see_machine, "a log of NCCL with NCCL_DEBUG_SUBSYS=INIT,GRAPH"),
    TextFormat("nvidia-smi nvlink", _find_links, _see_links, "the output of nvidia-smi nvlink -s or -e"),
    TextFormat(
        "nvidia-smi -q",
        lambda paste: [item.line.number for item in paste.once(read_queried_values)],
        lambda paste: _see({}, None, paste),
        "the output of nvidia-smi -q",
    ),
    TextFormat("nvidia-smi", _find_gpus, _see_gpus, "the output of nvidia-smi"),
    TextFormat("RDMA ports", _find_ports, _see_ports, "the output of ibstat, ibstatus, ibv_devinfo or rdma link"),
    TextFormat(
        "kernel log",
        lambda paste: [
            *paste.once(read_kernel_log).numbers,
            *(line.number for line in paste.once(read_driver_messages)),
        ],
        _see_kernel,
        "the output of dmesg about NVRM",
    ),
    TextFormat(
        "host settings",
        _find_settings,
        lambda paste: _see({}, None, paste),
        "the output of lspci -vvv, lsmod, ulimit -a, df /dev/shm or systemctl status",
    ),
)
