"""A mesh as plain text, for terminals and for those who listen to them."""

from __future__ import annotations

from meshlab.mesh.mesh import DeviceMesh

__all__ = ["mesh_text"]

_MOST_RANKS, _MOST_GROUPS = 64, 8


def mesh_text(mesh: DeviceMesh, axis: str | None = None) -> str:
    """Write a mesh: its axes, its groups, and for small meshes the grid of ranks with the group of each.

    Parameters
    ----------
    mesh : DeviceMesh
        The mesh.
    axis : str, optional
        Whose groups stand in the grid; the last axis by default.

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
    width = max(len(name) for name in names)
    lines = [f"{mesh} · {mesh.world_size:,} ranks · {mesh.axis_names[-1]} is the fastest axis", ""]
    counts = {name: f"{len(groups)} groups of {groups.size}" for name in names for groups in [mesh.group_set(name)]}
    count_width = max(len(text) for text in counts.values())
    for name in names:
        groups = mesh.group_set(name)
        shown = "  ".join(f"{group.name} {repr(group).split(', ', 1)[1][:-1]}" for group in groups[:_MOST_GROUPS])
        more = f"  and {len(groups) - _MOST_GROUPS:,} more" if len(groups) > _MOST_GROUPS else ""
        lines.append(f"  {name:<{width}}  {counts[name]:<{count_width}}   {shown}{more}")
    if mesh.world_size <= _MOST_RANKS:
        lines += ["", f"rank:group of {chosen.name}", *_grid(mesh, axis)]
    return "\n".join(lines)


def _grid(mesh: DeviceMesh, axis: str) -> list[str]:
    color = mesh.group_set(axis).color
    rows = mesh.ranks.reshape(-1, mesh.shape[-1])
    labels = [
        " ".join(f"{name}={mesh.coordinates(int(row[0]))[name]}" for name in mesh.axis_names[:-1]) for row in rows
    ]
    width = max(len(label) for label in labels)
    cells = [[f"{rank}:{color[rank] if color[rank] >= 0 else '–'}" for rank in row] for row in rows]
    cell_width = max(len(cell) for row in cells for cell in row)
    return [
        f"  {label:<{width}}   " + "  ".join(cell.rjust(cell_width) for cell in row)
        for label, row in zip(labels, cells, strict=True)
    ]
