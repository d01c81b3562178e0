"""Tables of a cluster: its devices, its levels, and its card in a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from meshlab import markup
from meshlab.topology.model.hardware import Device, Node
from meshlab.topology.levels import INNER_LEVELS

if TYPE_CHECKING:
    import pandas as pd

    from meshlab.topology.model.cluster import Cluster

__all__ = ["cluster_card", "device_table", "level_table"]

_LATENCIES_US = (None, 0.6, 1.0)  # of a hop inside a device, NVLink and PCIe (NVIDIA/nccl src/graph/tuning.cc, LL ring)


def device_table(cluster: Cluster) -> pd.DataFrame:
    """What `Cluster.frame` gives."""
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
    """What `Cluster.level_frame` gives."""
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
        taper = max(taper, level.taper)
        rows.append((name, len(sizes), sizes.min(), sizes.max(), nics / taper, level.latency_us, level.taper))
    columns = ["level", "domains", "devices_min", "devices_max", "gbs", "latency_us", "taper"]
    return pd.DataFrame(rows, columns=columns).astype({"gbs": "float64", "latency_us": "float64"})


def _nic_share(node: Node) -> float:
    """GB/s of the NICs near devices, per device; NaN where nothing is known of them."""
    used = np.flatnonzero(node.near_nics.any(axis=0)).tolist() if node.devices else []
    return sum(node.nics[k].gbs for k in used) / len(node.devices) if used else float("nan")


def cluster_card(cluster: Cluster) -> str:
    """The card of a cluster as HTML."""
    of_name = {level.name: level for level in cluster.levels}
    hosts = np.bincount(cluster.kinds, minlength=len(cluster.templates))
    kinds = [
        [int(count), template.model or "host", template.summary, template.cpu_model or "unknown"]
        for template, count in zip(cluster.templates, hosts, strict=True)
    ]
    levels: list[Sequence[object]] = [
        [name, len(np.unique(domain)), "" if name in INNER_LEVELS else f"1:{of_name[name].taper:g}"]
        for name, domain in zip(cluster.level_names, cluster.domains, strict=True)
    ]
    return markup.card(
        f"Cluster · {cluster.title or cluster.names[0]}",
        cluster.summary,
        markup.table(["hosts", "machine", "holds", "CPU"], kinds, most=12),
        markup.table(["level", "domains", "taper"], levels),
        "".join(
            f'<div class="ml-sub">{markup.escape(note)}</div>' for note in (*cluster.notes, cluster.source) if note
        ),
    )
