"""The loads of the cores, GPUs and network cards of a host, as they are kept in a row of the conditions of a run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_MISSING = math.nan
# A field of a GPU's reading, its name in the frame of loads, and the unit of the one in that of the other.
_OF_GPU = {
    "utilisation_percent": ("use_percent", 1.0),
    "memory_used_bytes": ("memory_used_gib", 2.0**30),
    "temperature_c": ("temperature_c", 1.0),
    "power_w": ("power_w", 1.0),
    "clock_sm_mhz": ("clock_mhz", 1.0),
    "nvlink_tx_gbs": ("tx_gbs", 1.0),
    "nvlink_rx_gbs": ("rx_gbs", 1.0),
}


def pack_loads(
    at_s: float,
    cores: Sequence[float],
    gpus: Sequence[Mapping[str, Any]],
    nics: Mapping[str, tuple[float, float]],
) -> dict[str, Any]:
    """Return loads as one text per quantity, because a host has a hundred cores, and a run a thousand readings.

    `cores` are percentages, `gpus` readings of `ClockReader`, and `nics` the sent and received GB/s by name.
    """
    packed: dict[str, Any] = {"at_s": round(at_s, 2)}
    if cores:
        packed["core_percent"] = _text(cores, ".0f")
    if nics:
        packed |= {"nic": " ".join(nics), "nic_tx_gbs": _text((tx for tx, _ in nics.values()), ".4g")}
        packed["nic_rx_gbs"] = _text((rx for _, rx in nics.values()), ".4g")
    for field, (name, unit) in _OF_GPU.items():
        if any(field in gpu for gpu in gpus):
            packed[f"gpu_{name}"] = _text((gpu.get(field, _MISSING) / unit for gpu in gpus), ".5g")
    if any(gpu.get("throttle") for gpu in gpus):
        packed["gpu_throttle"] = ";".join(str(gpu.get("throttle", "")) for gpu in gpus)
    return packed


def _text(values: Iterable[float], format_: str) -> str:
    return " ".join(format(value, format_) for value in values)


def loads_of(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the loads in a row of the conditions, one dict per device. A damaged row has none."""
    packed = row.get("loads")
    if not isinstance(packed, Mapping):
        return []
    try:
        shared = {name: row.get(name) for name in ("host", "launch", "step")} | {"at_s": float(packed["at_s"])}
        cores = _numbers(packed, "core_percent")
        loads = [{"device": f"core {k}", "use_percent": percent} for k, percent in enumerate(cores)]
        columns = {name: _numbers(packed, f"gpu_{name}") for name, _ in _OF_GPU.values()}
        throttles = str(packed.get("gpu_throttle", "")).split(";")
        for k in range(max(map(len, columns.values()))):
            values = {name: numbers[k] for name, numbers in columns.items() if k < len(numbers)}
            throttle = throttles[k] if k < len(throttles) else ""
            loads.append({"device": f"GPU {k}", **values, "throttle": throttle})
        sent, received = _numbers(packed, "nic_tx_gbs"), _numbers(packed, "nic_rx_gbs")
        for name, tx, rx in zip(str(packed.get("nic", "")).split(), sent, received, strict=False):
            loads.append({"device": name, "tx_gbs": tx, "rx_gbs": rx})
    except (KeyError, TypeError, ValueError, OverflowError):
        return []
    return [shared | load for load in loads]


def _numbers(packed: Mapping[str, Any], name: str) -> list[float]:
    return [float(text) for text in str(packed.get(name, "")).split()]
