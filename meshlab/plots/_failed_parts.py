"""Failed parts in the picture of a machine: a cross, or what is left of the rate, where the part was drawn before."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from meshlab.topology.placement._layout import Layout
from meshlab.topology.placement._marks import Mark, failed_marks
from meshlab.topology.placement._scene import Scene

if TYPE_CHECKING:
    from meshlab.plots._painter import Painter

_OVER = 4.0  # order of drawing, over all parts

Box = tuple[float, float, float, float]


def draw_failed_parts(painter: Painter) -> None:
    """Cross out the failed parts of the cluster of a view."""
    cluster = painter.view.cluster
    for mark in failed_marks(cluster) if cluster is not None else []:
        box = failed_box(painter.scene, painter.drawn, mark)
        if box is not None:
            _draw(painter, mark, box)


def failed_box(scene: Scene, drawn: Layout, mark: Mark) -> Box | None:
    """Return the box of a failed part, where it was before, or None if the picture does not have the part."""
    if mark.host < 0:
        return _switch_box(scene, drawn, mark)
    x, y, width, height = drawn.host[mark.host].tolist()
    lively = np.flatnonzero([scene.kinds[kind].devices > 0 for kind in scene.kind_of.tolist()])
    if mark.kind == "node" or not len(lively):
        return x, y, width, height
    if mark.kind in ("nic", "cable") and len(drawn.nic) and scene.is_rack:
        most = max(range(len(scene.host)), key=lambda host: scene.kinds[scene.kind_of[host]].nics)
        left, top, wide, tall = drawn.nic[scene.first_nic[most] + mark.index].tolist()
        return x + left - drawn.host[most, 0], y + top - drawn.host[most, 1], wide, tall
    if scene.is_rack:
        return x + (mark.index if mark.kind in ("nic", "cable") else mark.row) * drawn.cell_width, y, *_cell(drawn)
    # Boxes have the same places in all hosts.
    model = int(lively[0])
    kind = scene.kinds[scene.kind_of[model]]
    left, top, wide, tall = drawn.device[scene.first_device[model]].tolist()
    left += x - drawn.host[model, 0]
    first_row = top + tall / 2 - drawn.host[model, 1] - (int(kind.slot_of[0]) % kind.rows + 0.5) * drawn.cell_height
    if mark.kind in ("nic", "cable") and len(drawn.nic):
        port = int(np.flatnonzero([scene.kinds[number].nics > 0 for number in scene.kind_of.tolist()])[0])
        port_left, _, port_wide, port_tall = drawn.nic[scene.first_nic[port]].tolist()
        port_left += x - drawn.host[port, 0]
        middle = y + first_row + mark.row * drawn.cell_height
        if mark.kind == "cable":
            return port_left + port_wide, middle - 6, 12.0, 12.0
        return port_left, middle - port_tall / 2, port_wide, port_tall
    row = max(mark.row - 0.5, 0.0) if mark.kind in ("nic", "cable") else mark.row
    if drawn.detail < 2:
        left += int(row) // kind.rows * drawn.cell_width
        row %= kind.rows
    middle = y + first_row + (row + 0.5) * drawn.cell_height
    if mark.kind == "link" and drawn.detail >= 2:
        return left - 15, middle - 6, 12.0, 12.0
    return left, middle - tall / 2, wide, tall


def _cell(drawn: Layout) -> tuple[float, float]:
    return drawn.cell_width, drawn.cell_height


def _switch_box(scene: Scene, drawn: Layout, mark: Mark) -> Box | None:
    """Return the box of a switch, or of its uplinks."""
    if mark.level == "pod":
        if mark.kind == "uplink" and len(drawn.funnel):
            x, top, bottom, _, wide = drawn.funnel[mark.index].tolist()
            return x - wide / 2, top, wide, bottom - top
        return tuple(drawn.spine[mark.index].tolist()) if len(drawn.spine) else None
    if not mark.level or not len(drawn.leaf):
        return None
    unit = mark.index // max(scene.rails, 1) if mark.level == "leaf" else mark.index
    if mark.level == "unit" and mark.share and drawn.detail >= 2:
        left, top, width, _ = drawn.unit[unit].tolist()
        return left + width - 92, top + 2, 46.0, 16.0  # beside the number of groups on the uplinks
    if mark.kind == "uplink" and len(drawn.uplink):
        points = drawn.uplink[unit].reshape(3, 2)
        x, y = points[:2].mean(axis=0) if len(scene.unit_id) > 1 else points[0]
        if mark.level == "leaf" and mark.share:
            return tuple(drawn.leaf[mark.index].tolist())
        if mark.level == "leaf" and scene.rails > 1:
            # The line stands for the uplinks of all leaf switches, so the mark is where this one joins it.
            left, top, width, height = drawn.leaf[mark.index].tolist()
            x, y = left + width, top + height / 2
        return float(x) - 6, float(y) - 6, 12.0, 12.0
    if mark.level == "leaf":
        return tuple(drawn.leaf[mark.index].tolist())
    return tuple(drawn.unit[unit].tolist())


def _draw(painter: Painter, mark: Mark, box: Box) -> None:
    theme = painter.theme
    x, y, width, height = box
    if mark.share:
        left = f"{100 * mark.share:.3g} %"
        is_label = (width >= 46 and height >= 14) or (mark.kind == "uplink" and painter.drawn.detail >= 2)
        if is_label and mark.kind == "uplink" and width < 46:
            x, width, y, height = x - 48, 46.0, y - 2, 16.0
        outline = np.array([[x + 0.5, y + 0.5, width - 1, height - 1]])
        fill = theme.background if is_label else None
        painter.boxes(outline, fill, theme.conflict, radius=2, line=1.5, order=_OVER, dashed=True)
        if is_label:
            words = [f"↑ {left}", left] if mark.kind == "uplink" else [left]
            center = (x + width / 2, y + height / 2)
            room, order = width - 4, _OVER + 0.2
            painter.text(words, center, theme.conflict, room=room, align="center", bold=True, order=order)
        return
    is_roomy = painter.drawn.detail >= 2 and mark.kind in ("node", "nic", "device", "switch")
    if is_roomy:
        outline = np.array([[x + 0.5, y + 0.5, width - 1, height - 1]])
        painter.boxes(outline, theme.background, theme.conflict, radius=3, line=1.5, order=_OVER, dashed=True)
        if height >= 15 and width >= 44:
            center = (x + width / 2, y + height / 2)
            order = _OVER + 0.2
            if painter.text(["failed"], center, theme.conflict, room=width - 6, align="center", bold=True, order=order):
                return
    radius = min(max(min(width, height) / 2 - 2, 4.0), 9.0 if mark.kind == "node" else 6.0)
    middle = np.array([x + width / 2, y + height / 2])
    strokes = [middle + radius * np.array(ends) for ends in ([[-1, -1], [1, 1]], [[1, -1], [-1, 1]])]
    for color, line, order in ((theme.background, 5.0, _OVER + 0.1), (theme.conflict, 2.5, _OVER + 0.2)):
        painter.lines(strokes, color, line, order)
