"""The readings of a monitor, and the record of a run, as rows: one per GPU, or per host without GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from meshlab.base._units import format_bandwidth, format_size
from meshlab.runs._host_loads import loads_of

if TYPE_CHECKING:
    from meshlab.engines._engines import Engines
    from meshlab.runs._rundata import RunData


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


# -- the record of a run -----------------------------------------------------------------------------------------------

_MOST_POINTS = 240  # of a row, which is about 700 px wide
_MOST_DEVICES = 64
_MOST_CORES = 128
_LEAST_GBS = 1e-3  # a network card without more traffic than this has no row


def load_state(run: RunData) -> dict[str, Any]:
    """Return the record of the hosts during a run as rows on its time axis. Empty without readings."""
    conditions = run.condition_rows[:]
    parts = [(row, loads_of(row)) for row in conditions]
    parts = [(row, loads) for row, loads in parts if loads]
    if not parts:
        return {}
    hosts = list(dict.fromkeys(str(row.get("host")) for row, _ in parts))
    rows: list[dict[str, Any]] = []
    for host in hosts:
        readings = [(row, loads) for row, loads in parts if str(row.get("host")) == host]
        rows += _host_rows(host if len(hosts) > 1 else "", readings)
    first = [(row, loads) for row, loads in parts if str(row.get("host")) == hosts[0]]
    end_s = max(float(loads[0]["at_s"]) for _, loads in parts)
    return {"rows": rows[:_MOST_DEVICES], "end_s": end_s, "marks": _marks(run, first)}


def _marks(run: RunData, parts: Sequence[tuple[Mapping[str, Any], list[dict[str, Any]]]]) -> list[list[Any]]:
    """Return the times at which the launch, the collective or the axis changed, and what was measured from then on."""
    marks: list[list[Any]] = []
    begin_s = 0.0
    for row, loads in parts:
        index, launch = row.get("step"), row.get("launch")
        if isinstance(index, int) and 0 <= index < len(run.steps):
            step = run.steps[index]
            label = f"{step.collective} on {step.axis}" + (f", launch {launch}" if run.plan.launches > 1 else "")
            if not marks or marks[-1][1] != label:
                marks.append([begin_s, label])
        begin_s = float(loads[0]["at_s"])
    return marks


def _host_rows(host: str, parts: Sequence[tuple[Mapping[str, Any], list[dict[str, Any]]]]) -> list[dict[str, Any]]:
    """Return a row for the cores of a host, and one per GPU and network card."""
    times = [float(loads[0]["at_s"]) for _, loads in parts]
    prefix = f"{host} · " if host else ""
    by_device: dict[str, list[dict[str, Any]]] = {}
    for _, loads in parts:
        for load in loads:
            by_device.setdefault(str(load["device"]), []).append(load)
    cores = [loads for device, loads in by_device.items() if device.startswith("core ")][:_MOST_CORES]
    rows = []
    if cores:
        table = np.array([[load["use_percent"] for load in loads[: len(times)]] for loads in cores])
        last = parts[-1][0]
        steal = max((float(row.get("steal_percent") or 0.0) for row, _ in parts), default=0.0)
        other = [float(row.get("other_cores") or 0.0) for row, _ in parts]
        facts = [["load", f"{float(last.get('load') or 0.0):.1f}"], ["other programs", f"{np.mean(other):.1f} cores"]]
        facts += [["steal", f"up to {steal:.0f}\u2009%"]] if steal >= 1 else []
        name = f"{prefix}CPU · {len(cores)} core{'s' * (len(cores) > 1)}"
        thin = np.array([_thinned(times, values)[1] for values in table])
        rows.append(_row(f"{host} cpu", name, times, table.mean(axis=0), "%", 100.0, facts))
        rows[-1]["cells"] = np.nan_to_num(thin).round().astype(int).tolist()
    for device, loads in by_device.items():
        if device.startswith("core ") or len(loads) != len(times):
            continue
        if device.startswith("GPU "):
            rows.append(_gpu_row(host, prefix, device, times, loads))
        else:
            traffic = [max(load.get("tx_gbs", 0.0), load.get("rx_gbs", 0.0)) for load in loads]
            if max(traffic) < _LEAST_GBS:
                continue
            facts = [["most", format_bandwidth(max(traffic))]]
            rows.append(_row(f"{host} {device}", f"{prefix}{device}", times, traffic, "GB/s", 0.0, facts))
    return rows


def _gpu_row(
    host: str, prefix: str, device: str, times: Sequence[float], loads: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the row of a GPU: its use, the traffic of its NVLinks, and its extremes during the run."""
    values = {name: np.array([load.get(name, np.nan) for load in loads], dtype=np.float64) for name in _OF_GPU_ROW}
    facts = []
    for name, label, pick, text in (
        ("memory_used_gib", "memory", np.nanmax, "{:.1f}\u2009GiB"),
        ("clock_mhz", "lowest clock", np.nanmin, "{:,.0f}\u2009MHz"),
        ("temperature_c", "hottest", np.nanmax, "{:.0f}\u2009°C"),
        ("power_w", "most power", np.nanmax, "{:.0f}\u2009W"),
    ):
        if np.isfinite(values[name]).any():
            facts.append([label, text.format(pick(values[name]))])
    traffic = np.fmax(values["tx_gbs"], values["rx_gbs"])
    if np.isfinite(traffic).any():
        facts.append(["most NVLink", format_bandwidth(float(np.nanmax(traffic)))])
    row = _row(f"{host} {device}", f"{prefix}{device}", times, values["use_percent"], "%", 100.0, facts)
    if np.isfinite(traffic).any():
        row["traffic"] = _thinned(times, np.nan_to_num(traffic))[1].round(3).tolist()
    reasons = [str(load.get("throttle") or "") for load in loads]
    words = list(dict.fromkeys(word for text in reasons for word in text.split(", ") if word))
    row["throttle"] = ", ".join(words)
    row["throttled"] = [time_s for time_s, text in zip(times, reasons, strict=True) if text]
    return row


_OF_GPU_ROW = ("use_percent", "memory_used_gib", "temperature_c", "power_w", "clock_mhz", "tx_gbs", "rx_gbs")


def _row(
    key: str, name: str, times: Sequence[float], values: Any, unit: str, top: float, facts: list[list[str]]
) -> dict[str, Any]:
    """Return a row of the record. `top` is the end of its scale, 0 for its largest value."""
    at_s, thin = _thinned(times, np.asarray(values, dtype=np.float64))
    thin = np.nan_to_num(thin)
    return {
        "key": key,
        "name": name,
        "times": at_s.round(2).tolist(),
        "values": thin.round(3).tolist(),
        "unit": unit,
        "top": top or max(float(thin.max(initial=0.0)), 1e-9),
        "facts": facts,
        "throttle": "",
        "throttled": [],
    }


def _thinned(times: Sequence[float], values: Any) -> tuple[Any, Any]:
    """Return at most `_MOST_POINTS` times and values. Of neighbours, the last time and the largest value stay."""
    n = len(times)
    if n <= _MOST_POINTS:
        return np.array(times), np.asarray(values)
    starts = np.unique(np.linspace(0, n, _MOST_POINTS, endpoint=False).astype(int))
    ends = np.append(starts[1:], n) - 1
    return np.array(times)[ends], np.fmax.reduceat(np.asarray(values), starts)
