"""Hardware of a Linux host from procfs and sysfs: processors, memory, NICs, and the PCI tree.

All functions return plain data and accept a different root folder, because containers may hide parts of both.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from meshlab.base._numerals import whole
from meshlab.topology.model._links import UNKNOWN

_BUS_ID = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")


def normal_bus_id(text: str) -> str:
    """Return a PCI bus ID in the format of Linux: lower case, with a domain of four digits."""
    # NVML pads the domain to eight digits, nvidia-smi prints upper case.
    domain, _, rest = text.strip().lower().partition(":")
    return f"{whole(domain, 16):04x}:{rest}" if _BUS_ID.fullmatch(text.strip().lower()) else text.strip().lower()


def _text(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def _integer(path: Path) -> int | None:
    text = _text(path)
    return whole(text) if text and re.fullmatch(r"-?\d+", text) else None


def read_processors(root: Path = Path("/")) -> dict[str, Any]:
    """Return CPUs, sockets, memory and NUMA nodes as fields of `Node`, or None for values that the system hides."""
    cpuinfo = _text(root / "proc/cpuinfo") or ""
    model = re.search(r"^(?:model name|cpu model|Processor)\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    sockets = set(re.findall(r"^physical id\s*:\s*(\d+)$", cpuinfo, re.MULTILINE))
    memory = re.search(r"^MemTotal:\s*(\d+) kB", _text(root / "proc/meminfo") or "", re.MULTILINE)
    numa = []
    for folder in sorted((root / "sys/devices/system/node").glob("node[0-9]*"), key=lambda path: whole(path.name[4:])):
        total = re.search(r"MemTotal:\s*(\d+) kB", _text(folder / "meminfo") or "")
        memory_bytes = whole(total[1]) * 1024 if total else None
        numa.append((whole(folder.name[4:]), _text(folder / "cpulist") or "", memory_bytes))
    return {
        "cpu_model": model[1].strip() if model else platform.processor() or None,
        "cpu_count": len(re.findall(r"^processor\s*:", cpuinfo, re.MULTILINE)) or os.cpu_count(),
        "sockets": len(sockets) or None,
        "memory_bytes": whole(memory[1]) * 1024 if memory else None,
        "numa": numa,
    }


def read_nics(root: Path = Path("/")) -> list[dict[str, Any]]:
    """Return all ports of PCI network cards as fields of `Nic`: RDMA ports first, then plain Ethernet."""
    nics: list[dict[str, Any]] = []
    rdma = root / "sys/class/infiniband"
    for card in sorted(rdma.iterdir(), key=_natural) if rdma.is_dir() else []:
        ports = sorted((card / "ports").glob("[0-9]*"), key=_natural)
        for port in ports:
            rate = re.match(r"(\d+(?:\.\d+)?)", _text(port / "rate") or "")
            nics.append(
                {
                    "name": card.name if len(ports) == 1 else f"{card.name}:{port.name}",
                    "bus_id": _bus_id_of(card / "device"),
                    "gbits": float(rate[1]) if rate else None,
                    "numa": _numa(card / "device"),
                    "link_layer": _text(port / "link_layer"),
                    "state": (_text(port / "state") or "").rpartition(":")[2].strip() or None,
                }
            )
    # A RoCE card is listed in both classes. Only its RDMA port is kept.
    seen = {nic["bus_id"] for nic in nics}
    ethernet = root / "sys/class/net"
    for card in sorted(ethernet.iterdir(), key=_natural) if ethernet.is_dir() else []:
        bus_id = _bus_id_of(card / "device")
        if bus_id is None or bus_id in seen:  # virtual interfaces such as lo have no PCI device
            continue
        speed = _integer(card / "speed")
        nics.append(
            {
                "name": card.name,
                "bus_id": bus_id,
                "gbits": speed / 1000 if speed and speed > 0 else None,  # -1 without a link
                "numa": _numa(card / "device"),
                "link_layer": "Ethernet",
                "state": _text(card / "operstate"),
            }
        )
    return nics


# The counters of an RDMA port are in units of four bytes, those of a network interface in bytes.
_COUNTERS = {
    "infiniband": ("counters/port_xmit_data", "counters/port_rcv_data", 4),
    "net": ("statistics/tx_bytes", "statistics/rx_bytes", 1),
}


def read_nic_bytes(root: Path = Path("/")) -> dict[str, tuple[int, int]]:
    """Return the bytes that each port of `read_nics` has sent and received, as far as the system counts them."""
    counts = {}
    for name, sent, received, unit in _nic_counters(root):
        tx, rx = _integer(sent), _integer(received)
        if tx is not None and rx is not None:
            counts[name] = (tx * unit, rx * unit)
    return counts


@cache
def _nic_counters(root: Path) -> list[tuple[str, Path, Path, int]]:
    """Return the counters of each port. They are looked for once, because a run reads them often."""
    counters = []
    for nic in read_nics(root):
        card, _, port = str(nic["name"]).partition(":")
        is_rdma = (root / "sys/class/infiniband" / card).is_dir()
        kind = "infiniband" if is_rdma else "net"
        folder = root / "sys/class" / kind / card
        if is_rdma:
            ports = sorted((folder / "ports").glob("[0-9]*"), key=_natural)
            folder = folder / "ports" / (port or ports[0].name)
        sent, received, unit = _COUNTERS[kind]
        counters.append((str(nic["name"]), folder / sent, folder / received, unit))
    return counters


def _natural(path: Path) -> list[str | int]:
    """Return a sort key that puts mlx5_2 before mlx5_10."""
    return [whole(part) if part.isdecimal() else part for part in re.split(r"(\d+)", path.name)]


def _numa(device: Path) -> str | None:
    number = _integer(device / "numa_node")  # -1 if the firmware does not report it
    return None if number is None or number < 0 else str(number)


def _bus_id_of(device: Path) -> str | None:
    if not device.exists():
        return None
    bus_ids = [part for part in Path(os.path.realpath(device)).parts if _BUS_ID.fullmatch(part)]
    return bus_ids[-1] if bus_ids else None


def pci_path(bus_id: str | None, root: Path = Path("/")) -> tuple[str, ...]:
    """Return the PCI devices from the root complex to a device, or an empty tuple if the system hides it."""
    link = root / "sys/bus/pci/devices" / (bus_id or "-")
    if not link.exists():
        return ()
    # The link resolves to the position in the PCI tree, such as pci0000:00/0000:00:01.0/0000:01:00.0.
    parts = Path(os.path.realpath(link)).parts
    start = next((i for i, part in enumerate(parts) if part.startswith("pci")), len(parts))
    return parts[start:]


def pci_word(source: Sequence[str], target: Sequence[str], numas: tuple[str | None, str | None]) -> str:
    """Return the link word between two PCI devices, from their paths and NUMA nodes."""
    if not source or not target:
        return UNKNOWN if None in numas or numas[0] == numas[1] else "SYS"
    common = 0
    while common < min(len(source), len(target)) and source[common] == target[common]:
        common += 1
    if common >= 2:
        # A switch consists of an upstream port and one downstream port per device. So two devices of one switch share
        # all but the downstream port and the device itself.
        return "PIX" if max(len(source), len(target)) - common <= 2 else "PXB"
    if common == 1:
        return "PHB"
    return "NODE" if numas[0] == numas[1] and numas[0] is not None else "SYS"
