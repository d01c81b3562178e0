"""The readings of a monitor as rows of texts: one per GPU, or per host without GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from meshlab.base._units import format_bandwidth, format_size

if TYPE_CHECKING:
    from meshlab.engines._engines import Engines


def ranks_by_device(engines: Engines | None) -> dict[tuple[str, int], str]:
    """Return the ranks of each GPU, by host and device."""
    by_device: dict[tuple[str, int], list[str]] = {}
    for info in () if engines is None else engines.ranks:
        device = info.capabilities.facts.get("device number")
        if device is not None:
            by_device.setdefault((info.host, int(device)), []).append(str(info.rank))
    return {key: f"rank{'s' * (len(ranks) > 1)} {', '.join(ranks)}" for key, ranks in by_device.items()}


def load_rows(
    reading: Mapping[str, Any], ranks: Mapping[tuple[str, int], str], has_hosts: bool
) -> list[dict[str, Any]]:
    """Return the rows of one host: its GPUs, or its processors if it has none."""
    host = str(reading["host"])
    prefix = f"{host} · " if has_hosts else ""
    if not reading["devices"]:
        return [
            {
                "key": host,
                "name": f"{prefix}CPU · {reading['cores']} cores",
                "share": reading["cpu_percent"] / 100,
                "use": f"{reading['cpu_percent']:.0f} %",
                "memory": _of(format_size(reading["memory_used_bytes"]), format_size(reading["memory_bytes"])),
                "memory_share": reading["memory_used_bytes"] / reading["memory_bytes"],
                "facts": [["load", f"{reading['load']:.1f}"]],
                "throttle": "",
            }
        ]
    return [_device_row(host, prefix, device, ranks) for device in reading["devices"]]


def _device_row(
    host: str, prefix: str, device: Mapping[str, Any], ranks: Mapping[tuple[str, int], str]
) -> dict[str, Any]:
    label_of_ranks = ranks.get((host, device["id"]), "")
    allocated, total = device.get("memory_used_bytes"), device.get("memory_bytes")
    facts = []
    if "power_w" in device:
        limit = f"{device['power_limit_w']:.0f} W" if "power_limit_w" in device else ""
        facts.append(["power", _of(f"{device['power_w']:.0f} W", limit)])
    if "temperature_c" in device:
        facts.append(["temperature", f"{device['temperature_c']:.0f} °C"])
    if "clock_sm_mhz" in device:
        facts.append(["SM clock", f"{device['clock_sm_mhz']:,} MHz"])
    if "clock_memory_mhz" in device:
        facts.append(["memory clock", f"{device['clock_memory_mhz']:,} MHz"])
    for name, label in (("nvlink", "NVLink"), ("pcie", "PCIe")):
        sent, received = device.get(f"{name}_tx_gbs"), device.get(f"{name}_rx_gbs")
        if sent is not None and received is not None:
            facts.append([label, f"↑ {format_bandwidth(sent)} ↓ {format_bandwidth(received)}"])
    share = device.get("utilisation_percent")
    return {
        "key": f"{host} {device['id']}",
        "name": f"{prefix}GPU {device['id']}{f' · {label_of_ranks}' if label_of_ranks else ''}",
        "share": 0.0 if share is None else share / 100,
        "use": "–" if share is None else f"{share:.0f} %",
        "memory": "–" if allocated is None or total is None else _of(format_size(allocated), format_size(total)),
        "memory_share": 0.0 if allocated is None or not total else allocated / total,
        "facts": facts,
        "throttle": device.get("throttle", ""),
    }


def _of(value: str, whole: str) -> str:
    return f"{value} of {whole}" if whole else value
