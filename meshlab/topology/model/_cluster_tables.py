"""The tables, the summary and the card of a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from meshlab.base import _markup as markup
from meshlab.topology.model._arrays import per_device
from meshlab.topology.model._hardware import Device, Node, gpu_link_name
from meshlab.topology.model._levels import INNER_LEVELS
from meshlab.topology.model._links import Distance

if TYPE_CHECKING:
    import pandas as pd

    from meshlab.topology.model._cluster import Cluster

_LATENCIES_US = (None, 0.6, 1.0)  # of a hop inside a device, NVLink and PCIe (NVIDIA/nccl src/graph/tuning.cc, LL ring)


def device_counts(cluster: Cluster, field: str) -> dict[Any, int]:
    """Return the number of devices for each value of a field."""
    hosts = np.bincount(cluster.kinds, minlength=len(cluster.templates)).tolist()
    counts: dict[Any, int] = {}
    for template, times in zip(cluster.templates, hosts, strict=True):
        for device in template.devices if times else ():
            value = getattr(device, field)
            counts[value] = counts.get(value, 0) + times
    return counts


def summary(cluster: Cluster) -> str:
    """Return the hosts, devices and NVLink or XGMI domains in one line."""
    backends = cluster.backend_counts
    parts = [f"{cluster.n_nodes:,} node{'s' * (cluster.n_nodes > 1)}"]
    parts += [f"{count:,} × {name}" for name, count in cluster.models.items()] or ["no GPU"]
    if len(backends) > 1:
        parts.append(" and ".join(f"{count:,} {name}" for name, count in backends.items()) + " devices")
    if cluster.n_devices:
        # A device whose links are partly unknown may belong to the domain of others, so its own is no statement.
        links = [
            node.distance[: len(node.devices), : len(node.devices)] == Distance.UNKNOWN for node in cluster.templates
        ]
        unknown = per_device(cluster, [is_unknown.any(axis=1) for is_unknown in links])
        of_known_host = per_device(cluster, [np.full(len(is_unknown), not is_unknown.any()) for is_unknown in links])
        # Not np.unique, which takes ten times as long for one number per host.
        sizes = np.flatnonzero(np.bincount(np.bincount(cluster.domains[1][of_known_host])))
        texts = [str(size) for size in sizes[sizes > 0]] if sizes.size and sizes[-1] > 1 else []
        if (least := np.bincount(cluster.domains[1][~of_known_host]).max(initial=0)) > 1:
            texts.append(f"at least {least}")
        if texts:
            parts.append(f"{gpu_link_name(cluster.templates)} domains of {' and '.join(texts)}")
        if unknown.any() and any(node.nvlink_known for node in cluster.templates):
            count = int(unknown.sum())
            every = "other links unknown" if texts else "links unknown"
            parts.append(every if count == cluster.n_devices else f"links of {count:,} unknown")
    return ", ".join(parts)


def device_table(cluster: Cluster) -> pd.DataFrame:
    """Return a table with one row per device."""
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
    """Return a table with one row per level, from the inside out."""
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
        # A hop at this level passes all levels below it, so the largest oversubscription so far limits it.
        taper = max(taper, level.taper)
        rows.append((name, len(sizes), sizes.min(), sizes.max(), nics / taper, level.latency_us, level.taper))
    columns = ["level", "domains", "devices_min", "devices_max", "gbs", "latency_us", "taper"]
    return pd.DataFrame(rows, columns=columns).astype({"gbs": "float64", "latency_us": "float64"})


def _nic_share(node: Node) -> float:
    """Return the GB/s per device of the NICs that are nearest to a device, or NaN without NICs."""
    nearest = np.flatnonzero(node.near_nics.any(axis=0)).tolist() if node.devices else []
    return sum(node.nics[k].gbs for k in nearest) / len(node.devices) if nearest else float("nan")


def card(cluster: Cluster) -> str:
    """Return the HTML of a cluster."""
    of_name = {level.name: level for level in cluster.levels}
    hosts = np.bincount(cluster.kinds, minlength=len(cluster.templates))
    kinds = [
        [int(count), template.model or "host", template.summary, template.cpu_model or "unknown"]
        for template, count in zip(cluster.templates, hosts, strict=True)
    ]
    levels: list[Sequence[object]] = [
        [name, _n_different(domain), "" if name in INNER_LEVELS else f"1:{of_name[name].taper:g}"]
        for name, domain in zip(cluster.level_names, cluster.domains, strict=True)
    ]
    return markup.card(
        f"Cluster · {cluster.title or cluster.names[0]}",
        cluster.summary,
        markup.table(["hosts", "machine", "devices", "CPU"], kinds, most=12),
        markup.table(["level", "domains", "oversubscription"], levels),
        "".join(
            f'<div class="ml-sub">{markup.escape(note)}</div>'
            for note in (*cluster.notes, f"Source: {cluster.source}" if cluster.source else "")
            if note
        ),
    )


def _n_different(numbers: npt.NDArray[Any]) -> int:
    """Return how many different numbers there are. np.unique takes ten times as long for millions of them."""
    return int(np.count_nonzero(np.diff(np.sort(numbers)))) + 1 if numbers.size else 0
