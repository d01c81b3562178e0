"""Marks: where the failed parts of a cluster are in its picture."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from meshlab.topology._failures import uplinks
from meshlab.topology._parts import Part, find_part
from meshlab.topology.model._cluster import Cluster
from meshlab.topology.placement._scene import Scene, scene_of


@dataclass(frozen=True, slots=True)
class Mark:
    """A failed part, or one with a lower rate."""

    name: str
    text: str
    kind: str  # see `Part`
    host: int  # in the order of drawing, -1 for a part of the network
    row: float  # of a device or a NIC in its host
    index: (
        int  # of the device or the NIC in the intact host, or of the switch in the array of `Layout` named by `level`
    )
    level: str  # "leaf", "unit" or "pod" for a part of the network, empty if it is not drawn
    share: float  # of the rate that is left, 0 for a failure

    def to_dict(self) -> dict[str, Any]:
        """Return all fields, for the widget."""
        return asdict(self)


def failed_marks(cluster: Cluster, scene: Scene | None = None) -> list[Mark]:
    """Return the marks of the failed parts. `scene` is that of the intact cluster."""
    if cluster.intact is None or not cluster.failed:  # computing the scene takes its time
        return []
    scene = scene or scene_of(cluster.intact)
    position = np.empty(len(scene.host), dtype=np.int32)
    position[scene.host] = np.arange(len(scene.host), dtype=np.int32)
    marks = []
    for name in cluster.failed:
        part = find_part(cluster.intact, name)
        if part.node < 0:
            marks.append(_switch_mark(cluster.intact, scene, part))
            continue
        host = int(position[part.node])
        kind = scene.kinds[int(scene.kind_of[host])]
        row, local = 0.0, part.number
        if part.kind in ("nic", "cable"):
            row = float(kind.nic_row[part.number])
        elif part.kind in ("device", "link"):
            local = part.number - int(cluster.intact.first_device[part.node])
            row = float(kind.slot_of[local])
        marks.append(Mark(name, part.text, part.kind, host, row, local, "", part.share))
    return marks


def _switch_mark(intact: Cluster, scene: Scene, part: Part) -> Mark:
    at = [level.name for level in intact.levels].index(part.word)
    domain, rail = divmod(part.number, intact.levels[at].rails)
    level, ids, rails = "", scene.unit_id, 1
    if at == 0 and scene.rails:
        level, rails = "leaf", scene.rails
    elif at == scene.unit_level:
        level = "unit"
    elif at == scene.pod_level:
        level, ids = "pod", scene.pod_id
    index = int(np.flatnonzero(ids == domain)[0]) * rails + rail if level else -1
    share = part.share
    if part.kind == "uplink" and not share:
        share = 1 - part.amount / int(uplinks(intact, at)[part.number])
    return Mark(part.name, part.text, part.kind, -1, 0.0, index, level, share)
