"""A mesh as plain text, for terminals and for those who listen to them."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from meshlab.mesh.groups import Group
from meshlab.mesh.mesh import DeviceMesh

__all__ = ["mesh_text", "wrapped"]

_MOST_RANKS, _MOST_GROUPS, _MOST_OF_GROUP = 64, 8, 16
_LEAST = 20
_GAP = "  "


def mesh_text(mesh: DeviceMesh, axis: str | None = None, width: int = 80) -> str:
    """Write a mesh: its axes, its groups, and for small meshes the grid of ranks with the group of each.

    Parameters
    ----------
    mesh : DeviceMesh
        The mesh.
    axis : str, optional
        Whose groups stand in the grid; the last axis by default.
    width : int, default 80
        Columns of the terminal; what is longer goes on in the next line, and long groups are shortened.

    Examples
    --------
    >>> print(mesh_text(DeviceMesh("dp=2, tp=2")))
    dp=2, tp=2 · 4 ranks · tp is the fastest axis
    <BLANKLINE>
      dp  2 groups of 2   dp_0 [0, 2]  dp_1 [1, 3]
      tp  2 groups of 2   tp_0 [0, 1]  tp_1 [2, 3]
    <BLANKLINE>
    rank:group of tp
      dp=0   0:0  1:0
      dp=1   2:1  3:1
    """
    axis = mesh.axis_names[-1] if axis is None else axis
    chosen = mesh.group_set(axis)
    names = list(dict.fromkeys([*mesh.axis_names, *(group.name for group in mesh.custom_groups), chosen.name]))
    name_width = max(len(name) for name in names)
    n = mesh.world_size
    title = f"{mesh} · {n:,} rank{'s' * (n != 1)} · {mesh.axis_names[-1]} is the fastest axis"
    lines = [wrapped(title, width), ""]
    counts = {
        name: f"{len(groups)} group{'s' * (len(groups) != 1)} of {groups.size}"
        for name in names
        for groups in [mesh.group_set(name)]
    }
    count_width = max(len(text) for text in counts.values())
    for name in names:
        groups = mesh.group_set(name)
        head = f"  {name:<{name_width}}  {counts[name]:<{count_width}}   "
        room = width - len(head)
        parts = [_group(group, room) for group in groups[:_MOST_GROUPS]]
        if len(groups) > _MOST_GROUPS:
            parts.append(f"and {len(groups) - _MOST_GROUPS:,} more")
        lines += _filled(head, parts, width)
    if mesh.world_size <= _MOST_RANKS:
        lines += ["", f"rank:group of {chosen.name}", *_grid(mesh, axis, width)]
    return "\n".join(lines)


def wrapped(text: str, width: int) -> str:
    """Break the lines of a text at spaces, so that none is wider; what goes on is indented.

    Examples
    --------
    >>> print(wrapped("tp, tensor parallel: the fastest", 20))
    tp, tensor parallel:
      the fastest
    """
    return "\n".join(
        textwrap.fill(line, max(width, _LEAST), subsequent_indent=_GAP, break_long_words=False, break_on_hyphens=False)
        for line in text.splitlines()
    )


def _group(group: Group, room: int) -> str:
    """Name and ranks; the ranks in full where there are few and they have room."""
    ranks = group.array.tolist()
    text = f"{group.name} {ranks}"
    if len(ranks) <= _MOST_OF_GROUP and (len(text) <= room or len(ranks) <= 4):
        return text
    return f"{group.name} [{', '.join(map(str, ranks[:3]))}, …, {ranks[-1]}]"


def _filled(head: str, parts: Sequence[str], width: int) -> list[str]:
    """Lay parts side by side behind a head, and go on below it where the line is full."""
    lines = [head.removesuffix(_GAP)]
    for number, part in enumerate(parts):
        if number and len(lines[-1]) + len(_GAP) + len(part) > width:
            lines.append(" " * (len(head) - len(_GAP)))
        lines[-1] += _GAP + part
    return lines


def _grid(mesh: DeviceMesh, axis: str, width: int) -> list[str]:
    color = mesh.group_set(axis).color
    rows = mesh.ranks.reshape(-1, mesh.shape[-1])
    labels = [
        " ".join(f"{name}={mesh.coordinates(int(row[0]))[name]}" for name in mesh.axis_names[:-1]) for row in rows
    ]
    label_width = max(len(label) for label in labels)
    cells = [[f"{rank}:{color[rank] if color[rank] >= 0 else '–'}" for rank in row] for row in rows]
    cell_width = max(len(cell) for row in cells for cell in row)
    return [
        line
        for label, row in zip(labels, cells, strict=True)
        for line in _filled(f"  {label:<{label_width}}   ", [cell.rjust(cell_width) for cell in row], width)
    ]
