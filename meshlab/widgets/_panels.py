"""The content of the panels of a workbench: the machine, the mesh, and the axes with their times."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshlab.base._units import SEPARATOR, format_bandwidth, format_size, format_time_us
from meshlab.comm._catalog import CATALOG
from meshlab.mesh._diff import MeshDiff
from meshlab.topology.model._presets import PRESETS
from meshlab.topology.placement._loads import MARKS, Loads
from meshlab.topology.placement._placement import Placement
from meshlab.widgets._edits import Design, Pairs, free_names, pairs_of, rest_axis, step_axis, templates
from meshlab.widgets._machines import DIALS, Machine, find_part
from meshlab.widgets._prices import Price

_VENDORS = {"aws": "AWS", "azure": "Azure", "gcp": "Google", "pcie": "Other", "tapered": "Other"}


def preset_groups() -> list[tuple[str, list[tuple[str, str]]]]:
    """Return names and titles of the presets by vendor, NVIDIA's first."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for name, one in PRESETS.items():
        groups.setdefault(_VENDORS.get(name.partition("-")[0], "NVIDIA"), []).append((name, one.title))
    return sorted(groups.items(), key=lambda group: ("NVIDIA", "AWS", "Azure", "Google", "Other").index(group[0]))


def number_text(dial: str, value: float | None) -> str:
    """Return a number of a dial as text, such as "1:7" for an oversubscription."""
    if value is None:
        return ""
    return f"1:{value:g}" if dial == "taper" else str(int(value))


def pairs_text(pairs: Pairs) -> str:
    """Return axes as text."""
    return ", ".join(f"{name}={size}" for name, size in pairs)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


def machine_text(machine: Machine) -> str:
    """Return the machine in one line."""
    cluster, values = machine.cluster, machine.values
    word = "GPU" if all(d.backend == "cuda" for one in cluster.templates for d in one.devices) else "slot"
    same = len({len(one.devices) for one in cluster.templates if one.devices}) == 1 and not machine.failed
    parts = [f"{_count(cluster.n_nodes, 'host')} × {_count(int(values['devices'] or 0), word)}"]
    if not same or not values["devices"]:
        parts = [_count(cluster.n_nodes, "host"), _count(cluster.n_devices, word)]
    if cluster.n_devices:
        sizes = np.unique(np.bincount(cluster.domain("nvlink")))
        if sizes[-1] > 1:
            parts.append(f"NVLink domains of {' and '.join(str(size) for size in sizes)}")
    levels = [level for level in cluster.levels if level.name != "cluster"]
    for level in levels:
        domains = int(level.of_node.max()) + 1
        if domains > 1:
            word = "leaf group" if level.name == "leaf" else level.name
            parts.append(_count(domains, word) + (f" × {level.rails} rails" if level.rails > 1 else ""))
    if cluster.levels and cluster.levels[-1].taper > 1:
        parts.append(f"1:{cluster.levels[-1].taper:g}")
    return SEPARATOR.join(parts)


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
        "preset": machine.name,
        "title": machine.cluster.title or machine.cluster.names[0],
        "dials": dials,
        "failed": [[name, find_part(machine.whole, name).text] for name in machine.failed],
    }


def mesh_panel(design: Design, states: Mapping[str, Loads]) -> dict[str, Any]:
    """Return the content of the mesh panel. The outcome of each button is sent, so that it is painted at once."""
    mesh, pairs = design.mesh, pairs_of(design.mesh)
    rest = rest_axis(pairs, "", design.rest)
    rows = []
    for name, size in pairs:
        mark, meaning = MARKS[states[name].state] if name in states else ("", "")
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
        "templates": [[one.name, pairs_text(one.pairs)] for one in templates(devices or mesh.world_size, domain)],
    }


# -- axes --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AxisRow:
    """One axis of the table.

    Parameters
    ----------
    axis : str
        Its name.
    size : int
        Ranks of a group.
    collective, size_bytes
        The assumed call.
    mark, meaning : str
        See `MARKS`.
    is_conflict : bool
        True if the limiting link is shared or oversubscribed.
    text : str
        What its groups do.
    gbs : float
        Bus bandwidth in GB/s, by that time.
    seconds : float
        Predicted time or, without a prediction, the time on the slowest link.
    low, high : float
        Interval of a prediction. NaN without one.
    basis, detail : str
        Where the time comes from, and what it is made of.
    pinned : float
        Time of the same axis in candidate A. NaN without one.
    """

    axis: str
    size: int
    collective: str
    size_bytes: int
    mark: str
    meaning: str
    is_conflict: bool
    text: str
    gbs: float
    seconds: float
    low: float
    high: float
    basis: str
    detail: str
    pinned: float


def axis_rows(
    placement: Placement,
    loads_of: Callable[[str], Loads],
    price_of: Callable[[str], Price],
    pinned: Mapping[str, float],
) -> list[AxisRow]:
    """Return the rows of all axes and groups of a mesh on a machine."""
    mesh = placement.mesh
    rows = []
    for axis in (*mesh.axis_names, *(group.name for group in mesh.custom_groups)):
        found, price = loads_of(axis), price_of(axis)
        mark, meaning = MARKS[found.state]
        text = placement.explain(axis).removeprefix(f"{axis} ")
        factor = CATALOG[found.collective].bus_factor(mesh[axis].size)
        is_timed = price.seconds > 0 and math.isfinite(price.seconds)
        gbs = factor * found.size_bytes / price.seconds / 1e9 if is_timed else math.nan
        rows.append(
            AxisRow(
                axis, mesh[axis].size, found.collective, found.size_bytes, mark, meaning, found.is_conflict, text, gbs,
                **price._asdict(), pinned=pinned.get(axis, math.nan),
            )
        )  # fmt: skip
    return rows


def pack_rows(rows: Sequence[AxisRow], calls: Mapping[str, Any]) -> dict[str, Any]:
    """Return the table for the front end: texts, and shares of the longest time."""
    known = [value for row in rows for value in (row.seconds, row.high, row.pinned) if math.isfinite(value)]
    most = max(known, default=0.0)

    def share(seconds: float) -> float | None:
        return seconds / most if most > 0 and math.isfinite(seconds) else None

    def change(row: AxisRow) -> str:
        if not math.isfinite(row.pinned) or not math.isfinite(row.seconds):
            return ""
        if not row.pinned:
            return "" if not row.seconds else "new"
        percent = 100 * (row.seconds / row.pinned - 1)
        sign = "" if abs(percent) < 0.5 else "+" if percent > 0 else "−"
        return f"{sign}{abs(percent):,.0f} %"

    packed = [
        {
            "axis": row.axis,
            "size": row.size,
            "mark": row.mark,
            "meaning": row.meaning,
            "conflict": row.is_conflict,
            "text": row.text,
            "gbs": format_bandwidth(row.gbs) if math.isfinite(row.gbs) else "–",
            "time": format_time_us(row.seconds * 1e6) if row.seconds and math.isfinite(row.seconds) else "–",
            "share": share(row.seconds) or 0.0,
            "low": share(row.low),
            "high": share(row.high),
            "basis": row.basis,
            "detail": row.detail,
            "interval": _interval(row.low, row.high),
            "pinned": share(row.pinned),
            "change": change(row),
            "collective": row.collective,
            "bytes": format_size(row.size_bytes),
            "own": row.axis in calls,
        }
        for row in rows
    ]
    is_predicted = any(math.isfinite(row.high) for row in rows)
    return {"rows": packed, "head": "Predicted time" if is_predicted else "Time on the slowest link"}


def _interval(low: float, high: float) -> str:
    if not math.isfinite(low) or not math.isfinite(high):
        return ""
    return f"{format_time_us(low * 1e6)} to {format_time_us(high * 1e6)}"


def difference_lines(diff: MeshDiff, before: Machine | None, after: Machine | None) -> list[str]:
    """Return what differs between candidate A and the present one: the machine, then each axis."""
    lines = [] if before is None or after is None else _machine_differences(before, after)
    text = str(diff).splitlines()
    if diff.before != diff.after:
        lines += [text[0].partition(": ")[2], *text[1:]]
    return lines or ["no difference"]


def _machine_differences(before: Machine, after: Machine) -> list[str]:
    if before.cluster == after.cluster:
        return []
    titles = [one.cluster.title or one.cluster.names[0] for one in (before, after)]
    parts = [" → ".join(titles)] if titles[0] != titles[1] else []
    for name, dial in DIALS.items():
        numbers = [number_text(name, one.values[name]) or "unknown" for one in (before, after)]
        if numbers[0] != numbers[1]:
            parts.append(f"{dial.label} {' → '.join(numbers)}")
    for word, names in (("failed", after.failed), ("removed", after.removed), ("failed in A", before.failed)):
        others = before.removed if word == "removed" else before.failed if word == "failed" else after.failed
        new = [name for name in names if name not in others]
        if new:
            parts.append(f"{word}: {', '.join(new)}")
    return [f"machine: {' · '.join(parts) or 'other parts'}"]


def table_frame(rows: Sequence[AxisRow]) -> Any:
    """Return the rows as a `pandas.DataFrame`."""
    import pandas as pd

    columns = {
        "axis": [row.axis for row in rows],
        "size": [row.size for row in rows],
        "collective": [row.collective for row in rows],
        "size_bytes": [row.size_bytes for row in rows],
        "placement": [row.text for row in rows],
        "gbs": [row.gbs for row in rows],
        "time_us": [row.seconds * 1e6 for row in rows],
        "time_us_lo": [row.low * 1e6 for row in rows],
        "time_us_hi": [row.high * 1e6 for row in rows],
        "basis": [row.basis for row in rows],
        "pinned_time_us": [row.pinned * 1e6 for row in rows],
    }
    return pd.DataFrame(columns)
