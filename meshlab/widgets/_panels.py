"""The content of the panels of a workbench: the machine, the mesh, and the axes with their times."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from meshlab.base._collectives import MODELLED
from meshlab.base._units import SEPARATOR, format_bandwidth, format_size, format_time_us, parse_size
from meshlab.comm._catalog import CATALOG
from meshlab.mesh._mesh import DeviceMesh
from meshlab.topology._parts import find_part
from meshlab.topology._whatif import CUSTOM
from meshlab.topology.model._hardware import gpu_link_name
from meshlab.topology.model._presets import PRESETS
from meshlab.topology.placement._loads import MARKS, Loads
from meshlab.widgets._drawings import Drawing
from meshlab.widgets._edits import Design, free_names, pairs_of, pairs_text, rest_axis, step_axis, templates
from meshlab.widgets._machines import DIALS, Machine
from meshlab.widgets._prices import Price

if TYPE_CHECKING:
    import pandas as pd

_MOST_KINDS = 8
_VENDORS = {
    "mi300x": "AMD",
    "aws": "AWS",
    "azure": "Azure",
    "gcp": "Google",
    "oci": "Oracle",
    **dict.fromkeys(("pcie", "tapered", "polaris"), "Other"),
}
_ORDER = ("NVIDIA", "AMD", "AWS", "Azure", "Google", "Oracle", "Other")


def preset_groups() -> list[tuple[str, list[tuple[str, str]]]]:
    """Return names and titles of the presets by vendor, NVIDIA's first."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for name, preset in PRESETS.items():
        groups.setdefault(_VENDORS.get(name.partition("-")[0], "NVIDIA"), []).append((name, preset.title))
    return sorted(groups.items(), key=lambda group: _ORDER.index(group[0]))


def number_text(dial: str, value: float | None) -> str:
    """Return a number of a dial as text, such as "1:7" for an oversubscription."""
    if value is None:
        return ""
    return f"1:{value:g}" if dial == "taper" else str(int(value))


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


def machine_text(machine: Machine) -> str:
    """Return the machine in one line."""
    cluster, values = machine.cluster, machine.values
    is_gpu = all(device.backend != "cpu" for template in cluster.templates for device in template.devices)
    word = "GPU" if is_gpu else "slot"
    counts = {len(template.devices) for template in cluster.templates if template.devices}
    parts = [f"{_count(cluster.n_nodes, 'host')} × {_count(int(values['devices'] or 0), word)}"]
    if len(counts) != 1 or machine.failed or not values["devices"]:
        parts = [_count(cluster.n_nodes, "host"), _count(cluster.n_devices, word)]
    if cluster.n_devices:
        sizes = np.unique(np.bincount(cluster.domain("nvlink")))
        if sizes[-1] > 1:
            parts.append(f"{gpu_link_name(cluster.templates)} domains of {' and '.join(str(size) for size in sizes)}")
    levels = [level for level in cluster.levels if level.name != "cluster"]
    for level in levels:
        domains = int(level.of_node.max()) + 1
        if domains > 1:
            word = "leaf group" if level.name == "leaf" else level.name
            parts.append(_count(domains, word) + (f" × {level.rails} rails" if level.rails > 1 else ""))
    if cluster.levels and cluster.levels[-1].taper > 1:
        parts.append(f"1:{cluster.levels[-1].taper:g}")
    return SEPARATOR.join(parts)


def _host_kinds(machine: Machine) -> list[dict[str, Any]]:
    """Return the kinds of hosts: the first host, how many are alike, and their numbers of devices and NICs."""
    cluster = machine.whole
    kinds, first, counts = np.unique(cluster.kinds, return_index=True, return_counts=True)
    rows = []
    for number in np.argsort(first).tolist()[:_MOST_KINDS]:
        node, name = cluster.templates[kinds[number]], cluster.names[first[number]]
        text = name if counts[number] == 1 else f"{name} and {counts[number] - 1:,} more"
        rows.append(
            {
                "like": name,
                "text": text,
                "count": int(counts[number]),
                "devices": len(node.devices),
                "nics": len(node.nics),
            }
        )
    return rows


def machine_panel(machine: Machine) -> dict[str, Any]:
    """Return the content of the machine panel."""
    dials = []
    for name, dial in DIALS.items():
        off, value = machine.reason_off(name), machine.values[name]
        less, more = machine.steps(name)
        dials.append(
            {
                "name": name,
                "label": dial.label,
                "value": number_text(name, value),
                "less": less is not None,
                "more": more is not None,
                "off": off,
                "hint": "none" if name == "nodes_per_pod" and not value else "",
            }
        )
    return {
        "presets": preset_groups(),
        # A machine with other hosts has its own name.
        "preset": "" if machine.whole.title.startswith(CUSTOM) else machine.name,
        "title": machine.cluster.title or machine.cluster.names[0],
        "hosts": _host_kinds(machine),
        "dials": dials,
        "failed": [[name, find_part(machine.whole, name).text] for name in machine.failed],
    }


def design_panel(design: Design, drawing: Drawing) -> dict[str, Any]:
    """Return the content of the panels that edit the design."""
    return {
        "summary": candidate_text(design.machine, design.mesh),
        "machine": None if design.machine is None else machine_panel(design.machine),
        "mesh": mesh_panel(design, drawing),
        "message": format_size(parse_size(design.size)),
        "collectives": list(MODELLED),
        "pinned": pinned_panel(design),
    }


def mesh_panel(design: Design, drawing: Drawing) -> dict[str, Any]:
    """Return the content of the mesh panel. The outcome of each button is sent, so that it is painted immediately."""
    mesh, pairs = design.mesh, pairs_of(design.mesh)
    rest = rest_axis(pairs, "", design.rest)
    rows = []
    for name, size in pairs:
        mark, meaning = MARKS[drawing.loads_of(name).state] if drawing.has_loads else ("", "")
        rows.append(
            {
                "name": name,
                "size": size,
                "mark": mark,
                "meaning": meaning,
                "is_rest": name == rest,
                "less": step_axis(pairs, name, -1, design.rest),
                "more": step_axis(pairs, name, 1, design.rest),
            }
        )
    product = " × ".join(f"{size:,}" for size in mesh.shape)
    total = f"{product} = {mesh.world_size:,}" if len(mesh.shape) > 1 else product
    devices = design.devices
    domain = 8
    if design.machine is not None and design.machine.cluster.n_devices:
        domain = int(np.bincount(design.machine.cluster.domain("nvlink")).max())
    idle = devices is not None and mesh.world_size < devices
    ranks = "rank" if mesh.world_size == 1 else "ranks"
    return {
        "rows": rows,
        "sum": f"{total} of {devices:,} GPUs" if devices else f"{total} {ranks}",
        "idle": idle,
        "free": free_names(pairs),
        "templates": [[name, pairs_text(axes)] for name, axes in templates(devices or mesh.world_size, domain)],
    }


# -- axes --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AxisRow:
    """One axis of the table: its groups, the assumed call, and the time of the call."""

    axis: str
    size: int
    loads: Loads
    text: str
    price: Price
    pinned: float  # The time of the same axis in candidate A, in seconds. NaN without one.

    @property
    def gbs(self) -> float:
        """Bus bandwidth in GB/s, by the price. NaN if it is unknown."""
        seconds = self.price.seconds
        if not math.isfinite(seconds) or seconds <= 0:
            return math.nan
        return CATALOG[self.loads.collective].bus_factor(self.size) * self.loads.size_bytes / seconds / 1e9


def axis_rows(drawing: Drawing, pinned: Mapping[str, float]) -> list[AxisRow]:
    """Return the rows of all axes and groups of a mesh on a machine, with their times in candidate A."""
    mesh, rows = drawing.mesh, []
    if mesh is None or not drawing.has_loads:
        return []
    for axis in mesh.creation_order:
        text, price = drawing.words_of(axis).removeprefix(f"{axis} "), drawing.price_of(axis)
        rows.append(AxisRow(axis, mesh[axis].size, drawing.loads_of(axis), text, price, pinned.get(axis, math.nan)))
    return rows


def pack_rows(rows: Sequence[AxisRow], calls: Mapping[str, Any]) -> dict[str, Any]:
    """Return the table for the front end: texts, and shares of the longest time."""
    times = [time for row in rows for time in (row.price.seconds, row.price.high, row.pinned)]
    most = max(filter(math.isfinite, times), default=0.0)

    def share(seconds: float) -> float | None:
        return seconds / most if most > 0 and math.isfinite(seconds) else None

    def packed(row: AxisRow) -> dict[str, Any]:
        loads, (seconds, low, high, basis, detail) = row.loads, row.price
        mark, meaning = MARKS[loads.state]
        return {
            "axis": row.axis,
            "size": row.size,
            "mark": mark,
            "meaning": meaning,
            "conflict": loads.is_conflict,
            "text": row.text,
            "gbs": format_bandwidth(row.gbs) if math.isfinite(row.gbs) else "–",
            "time": format_time_us(seconds * 1e6) if seconds and math.isfinite(seconds) else "–",
            "share": share(seconds) or 0.0,
            "low": share(low),
            "high": share(high),
            "basis": basis,
            "detail": detail,
            "interval": _interval(low, high),
            "pinned": share(row.pinned),
            "change": _change(row.pinned, seconds),
            "collective": loads.collective,
            "bytes": format_size(loads.size_bytes),
            "own": row.axis in calls,
        }

    is_predicted = any(math.isfinite(row.price.high) for row in rows)
    head = "Predicted time" if is_predicted else "Time on the slowest link"
    return {"rows": [packed(row) for row in rows], "head": head}


def _change(before: float, after: float) -> str:
    if not math.isfinite(before) or not math.isfinite(after):
        return ""
    if not before:
        return "new" if after else ""
    percent = 100 * (after / before - 1)
    sign = "±" if abs(percent) < 0.5 else "+" if percent > 0 else "−"
    return f"{sign}{abs(percent):,.0f} %"


def _interval(low: float, high: float) -> str:
    if not math.isfinite(low) or not math.isfinite(high):
        return ""
    return f"{format_time_us(low * 1e6)} to {format_time_us(high * 1e6)}"


def candidate_text(machine: Machine | None, mesh: DeviceMesh) -> str:
    """Return the machine and the mesh in one line."""
    return SEPARATOR.join([*([] if machine is None else [machine_text(machine)]), str(mesh)])


def pinned_panel(design: Design) -> dict[str, Any] | None:
    """Return candidate A and its differences as texts. None without one."""
    if design.pinned is None:
        return None
    return {"title": candidate_text(design.pinned.machine, design.pinned.mesh), "lines": difference_lines(design)}


def difference_lines(design: Design) -> list[str]:
    """Return the differences between candidate A and the present one: of the machine, then of each axis."""
    assert design.pinned is not None
    before, mesh, after = design.pinned.machine, design.pinned.mesh, design.machine
    lines = [] if before is None or after is None else _machine_differences(before, after)
    diff = mesh.diff(design.mesh)
    text = str(diff).splitlines()
    if diff.before != diff.after:
        lines += [text[0].partition(": ")[2], *text[1:]]
    return lines or ["no difference"]


def _machine_differences(before: Machine, after: Machine) -> list[str]:
    if before.cluster == after.cluster:
        return []
    titles = [(m.cluster.title or m.cluster.names[0]).removeprefix(CUSTOM) for m in (before, after)]
    parts = [" → ".join(titles)] if titles[0] != titles[1] else []
    for name, dial in DIALS.items():
        numbers = [number_text(name, machine.values[name]) or "unknown" for machine in (before, after)]
        if numbers[0] != numbers[1]:
            parts.append(f"{dial.label} {' → '.join(numbers)}")
    if before.hosts != after.hosts:
        unlike = [f"{' and '.join(f'{v} {k}' for k, v in n.items())} on {', '.join(h)}" for n, h in after.unlike]
        parts.append(
            f"hosts that differ: {'; '.join(unlike).replace('devices', 'GPUs').replace('nics', 'NICs') or 'none'}"
        )
    for word, names in (("failed", after.failed), ("removed", after.removed), ("failed in A", before.failed)):
        others = before.removed if word == "removed" else before.failed if word == "failed" else after.failed
        new = [name for name in names if name not in others]
        if new:
            parts.append(f"{word}: {', '.join(new)}")
    return [f"machine: {' · '.join(parts) or 'other parts'}"]


def table_frame(rows: Sequence[AxisRow]) -> pd.DataFrame:
    """Return the rows as a `pandas.DataFrame`."""
    import pandas as pd

    columns = {
        "axis": [row.axis for row in rows],
        "size": [row.size for row in rows],
        "collective": [row.loads.collective for row in rows],
        "size_bytes": [row.loads.size_bytes for row in rows],
        "placement": [row.text for row in rows],
        "gbs": [row.gbs for row in rows],
        "time_us": [row.price.seconds * 1e6 for row in rows],
        "time_us_lo": [row.price.low * 1e6 for row in rows],
        "time_us_hi": [row.price.high * 1e6 for row in rows],
        "basis": [row.price.basis for row in rows],
        "pinned_time_us": [row.pinned * 1e6 for row in rows],
    }
    return pd.DataFrame(columns)
