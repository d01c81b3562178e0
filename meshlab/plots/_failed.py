"""Crosses in the picture of a machine at the parts that have failed, where they were drawn before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from meshlab.plots._painter import ON_TOP, Painter
from meshlab.topology.model._levels import Floats
from meshlab.topology.placement._layout import Layout
from meshlab.topology.placement._scene import Scene

_LEVELS = ("leaf", "unit", "pod")  # arrays of `Layout` that a mark without a host may name


def draw_failed(painter: Painter, marks: Iterable[Mapping[str, Any]]) -> None:
    """Draw a cross at each failed part. A part with a lower rate has a `share` above 0 and no cross."""
    for mark in marks:
        box = None if mark.get("share") else _box(painter.scene, painter.drawn, mark)
        if box is not None:
            _draw(painter, mark["kind"], box)


def _draw(painter: Painter, kind: str, box: Floats) -> None:
    x, y, width, height = box.tolist()
    if painter.drawn.detail >= 2 and kind in ("nic", "device"):
        theme = painter.theme
        painter.boxes(box[None, :], theme.background, theme.conflict, line=1.5, order=ON_TOP, dashed=True, radius=2.0)
    reach = float(np.clip(min(width, height) / 2 - 2, 4.0, 9.0 if kind == "node" else 6.0))
    cx, cy = x + width / 2, y + height / 2
    strokes = [[(cx - reach, cy - side * reach), (cx + reach, cy + side * reach)] for side in (1, -1)]
    painter.lines(strokes, painter.theme.background, 5.0, ON_TOP)
    painter.lines(strokes, painter.theme.conflict, 2.5, ON_TOP)


def _box(scene: Scene, drawn: Layout, mark: Mapping[str, Any]) -> Floats | None:
    """Return the box of a failed part, None if it has no place in the picture."""
    host, kind = int(mark["host"]), str(mark["kind"])
    if host < 0:
        level, index = str(mark.get("level", "")), int(mark["index"])
        boxes = getattr(drawn, level) if level in _LEVELS else np.zeros((0, 4))
        return np.asarray(boxes[index]) if 0 <= index < len(boxes) else None
    if host >= len(drawn.host):
        return None
    place = drawn.host[host]
    if kind == "node" or not len(drawn.device):
        return np.asarray(place)
    # The other parts lie as the first device and the first NIC lie in their hosts.
    row = float(mark["row"])
    if kind in ("nic", "cable") and len(drawn.nic) and not scene.is_rack:
        other = next(k for k in range(len(drawn.host)) if scene.kinds[int(scene.kind_of[k])].nics)
        first = drawn.nic[0] - [*drawn.host[other, :2], 0.0, 0.0]
        first[1] += (row - float(scene.kinds[int(scene.kind_of[other])].nic_row[0])) * drawn.cell_height
        return np.asarray(np.add(first, [*place[:2], 0.0, 0.0]))
    other = next(k for k in range(len(drawn.host)) if scene.kinds[int(scene.kind_of[k])].devices)
    inside = scene.kinds[int(scene.kind_of[other])]
    first, slot = drawn.device[0] - [*drawn.host[other, :2], 0.0, 0.0], int(inside.slot_of[0])
    if scene.is_rack:
        first[0] += (float(mark["index"] if kind == "nic" else row) - slot) * drawn.cell_width
    elif drawn.detail >= 2:
        first[1] += (max(row - 0.5, 0.0) if kind == "nic" else row) * drawn.cell_height - slot * drawn.cell_height
    else:
        at = int(max(row - 0.5, 0.0) if kind == "nic" else row)
        first[0] += (at // inside.rows - slot // inside.rows) * drawn.cell_width
        first[1] += (at % inside.rows - slot % inside.rows) * drawn.cell_height
    return np.asarray(np.add(first, [*place[:2], 0.0, 0.0]))
