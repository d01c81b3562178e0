"""A mesh in words: an explanation, the source text that makes it, and a static HTML card."""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from meshlab import markup
from meshlab.errors import MeshError
from meshlab.mesh.axes import WELL_KNOWN_AXES, format_axes, idle_text
from meshlab.mesh.groups import Group, categories, even_step, groups_name, ranks_text

if TYPE_CHECKING:
    import pandas as pd

    from meshlab.mesh.mesh import DeviceMesh, Layout

__all__ = ["check_groups", "explain", "html", "membership", "mesh_text", "proof", "source", "stats", "wrapped"]


_MOST_AXES_PROVED = 10


def membership(mesh: DeviceMesh) -> pd.DataFrame:
    """See `DeviceMesh.membership`."""
    import pandas as pd

    ranks = np.flatnonzero(mesh.positions >= 0).astype(np.int32)
    coordinates = mesh.coordinate_array if len(ranks) == mesh.world_size else mesh.coordinate_array[ranks]
    columns: dict[str, Any] = {"rank": ranks}
    for index, name in enumerate(mesh.axis_names):
        columns[name] = coordinates[:, index]
    for name, groups in mesh.grouped_axes.items():
        columns[f"{name}_group"] = pd.Categorical.from_codes(groups.color[ranks], dtype=categories(groups.names))
    for group in mesh.custom_groups:
        columns[group.name] = np.isin(ranks, group.array)
    return pd.DataFrame(columns)


def stats(mesh: DeviceMesh) -> pd.DataFrame:
    """See `DeviceMesh.stats`."""
    import pandas as pd

    strides = dict(zip(mesh.axis_names, mesh.strides, strict=True))
    rows = []
    for name in mesh.creation_order:
        groups = mesh.group_set(name)
        rows.append(
            {
                "axis": name,
                "size": groups.size,
                "groups": len(groups),
                "stride": strides[name] if name in strides else even_step(groups.array[0]),
                "backend": mesh.backends.get(name),
                "first_group": ranks_text(groups.array[0]),
                "is_custom": name not in strides,
            }
        )
    return pd.DataFrame(rows).astype({"stride": "Int64", "backend": "string", "first_group": "string"})


def proof(mesh: DeviceMesh, axis_sets: Sequence[Sequence[str]]) -> pd.DataFrame:
    """See `DeviceMesh.proof`."""
    import pandas as pd

    sets = [(name,) if isinstance(name, str) else tuple(name) for name in axis_sets]
    if not sets:
        if len(mesh.axes) > _MOST_AXES_PROVED:
            raise MeshError(
                f"{len(mesh.axes)} axes have {2 ** len(mesh.axes) - 1:,} sets of axes; name those to prove, such as "
                f"proof({mesh.axis_names[0]!r}, {mesh.axis_names[:2]!r})"
            )
        counts = range(1, len(mesh.axes) + 1)
        sets = [names for count in counts for names in itertools.combinations(mesh.axis_names, count)]
    rows = []
    for names in sets:
        groups = mesh.groups(*names)
        rows.append(
            {
                "axes": groups_name(names),
                "groups": len(groups),
                "size": groups.size,
                **check_groups(groups.array, mesh, mesh._axis_indices(names)),
            }
        )
    return pd.DataFrame(rows)


def check_groups(array: npt.NDArray[np.int32], layout: Layout, inside: tuple[int, ...]) -> dict[str, bool]:
    """Compare a table of groups with what every rank finds out from its own coordinates.

    Parameters
    ----------
    array : numpy.ndarray
        int32 of shape (groups, size): the table.
    layout : Layout
        Where the ranks lie.
    inside : tuple of int
        The indices of the axes that the groups span, slowest first.

    Returns
    -------
    dict of str to bool
        ``disjoint``, ``covers``, ``equal_size`` and ``same_order``; see `DeviceMesh.proof`.
    """
    ranks = np.flatnonzero(layout.positions >= 0)
    coordinates = layout.coordinate_array[ranks]
    outside = [index for index in range(len(layout.axes)) if index not in inside]
    color = _count_along(coordinates, outside, layout.shape)
    key = _count_along(coordinates, inside, layout.shape)
    size = math.prod(layout.shape[index] for index in inside)
    listed = np.bincount(array.reshape(-1), minlength=layout.world_size)
    return {
        "disjoint": bool((listed <= 1).all()),
        "covers": bool((listed[ranks] >= 1).all()),
        "equal_size": bool((np.bincount(color) == size).all()) and array.shape[1] == size,
        "same_order": array.shape == (len(ranks) // size, size) and bool((array[color, key] == ranks).all()),
    }


def _count_along(
    coordinates: npt.NDArray[np.int32], indices: Sequence[int], shape: Sequence[int]
) -> npt.NDArray[np.int32]:
    number = np.zeros(len(coordinates), dtype=np.int32)
    for index in indices:
        number = number * np.int32(shape[index]) + coordinates[:, index]
    return number


_RANKS_WRITTEN = 64


def explain(mesh: DeviceMesh, ranks_per_node: int = 8) -> str:
    """See `DeviceMesh.explain`."""
    if isinstance(ranks_per_node, bool) or not isinstance(ranks_per_node, int) or ranks_per_node < 1:
        raise MeshError(f"a node has a whole number of ranks, at least 1, not {ranks_per_node!r}")
    count = mesh.size()
    lines = [f"{mesh}: {count:,} rank{'s' * (count > 1)}; the last axis is the fastest."]
    if not mesh.in_order:
        lines[0] += " The ranks do not lie in the order of their numbers."
    if mesh.idle_ranks.size:
        lines.append(f"Idle: {idle_text(mesh.idle_ranks.tolist())} of {mesh.world_size:,}.")
    lines += [_axis_line(mesh, index) for index in reversed(range(len(mesh.axes)))]
    lines.append(_node_line(mesh, ranks_per_node))
    names = ", ".join(mesh.axis_names)
    if len(mesh.axes) > 1:
        order = "-".join(reversed(mesh.axis_names))
        lines.append(
            f"torch and JAX write the axes in this order: ({names}). Megatron writes the fastest first: {order}."
        )
    return "\n".join(lines)


def _axis_line(mesh: DeviceMesh, index: int) -> str:
    axis, stride = mesh.axes[index], mesh.strides[index]
    meaning = WELL_KNOWN_AXES.get(axis.name, "").split(":")[0]
    title = f"{axis.name}, {meaning}" if meaning else axis.name
    if axis.size == 1:
        return f"{title}: one rank in every group, so no traffic."
    fastest = "the fastest; " if index == len(mesh.axes) - 1 else ""
    if stride is None:
        apart = "at unlike distances"
    elif abs(stride) == 1:
        apart = "next to each other"
    else:
        apart = f"{abs(stride):,} apart"
    first = mesh.groups(axis.name).array[0]
    if len(first) <= 2 or (np.diff(first) == 1).all():
        members = idle_text(first.tolist())
    else:
        members = f"ranks {', '.join(map(str, first[:4]))}{', …' if len(first) > 4 else ''}"
    return f"{title}: {fastest}its first group is {members}, {apart}."


def _node_line(mesh: DeviceMesh, ranks_per_node: int) -> str:
    if mesh.ranks.max() // ranks_per_node == mesh.ranks.min() // ranks_per_node:
        return f"All of it fits on one node of {ranks_per_node} ranks."
    inside: list[str] = []
    across: list[str] = []
    for axis in mesh.axes:
        if axis.size > 1:
            node = mesh.groups(axis.name).array // ranks_per_node
            (inside if (node == node[:, :1]).all() else across).append(axis.name)
    text = f"On nodes of {ranks_per_node} rank{'s' * (ranks_per_node > 1)}, "
    if inside:
        text += f"{_and(inside)} stay{'s' * (len(inside) == 1)} inside a node; "
    return text + f"{_and(across)} leave{'s' * (len(across) == 1)} it."


def _and(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def source(mesh: DeviceMesh) -> str:
    """The text that makes the mesh again; only a long list of hand-placed ranks is shortened and cannot be pasted."""
    axes, after, more = mesh.axes, "", ""
    if not mesh.in_order:
        base = _row_major_order(mesh)
        if base is not None:
            axes = tuple(mesh.axes[index] for index in base)
            after = f".transpose({', '.join(map(repr, mesh.axis_names))})"
        else:
            more = f", ranks={_ranks_source(mesh)}"
            if mesh.world_size != mesh.size():
                more += f", world_size={mesh.world_size}"
    if mesh.backends:
        more += f", backends={dict(mesh.backends)}"
    added = "".join(f".with_group({group.name!r}, {list(group.ranks)})" for group in mesh.custom_groups)
    return f"DeviceMesh({format_axes(axes)!r}{more}){after}{added}"


def _row_major_order(mesh: DeviceMesh) -> list[int] | None:
    """The order of the axes in which the ranks would count 0, 1, 2, …, or None if there is none."""
    if mesh.idle_ranks.size or mesh.ranks.flat[0] != 0:
        return None
    strides = [0 if stride is None else stride for stride in mesh.strides]
    order = sorted(range(len(strides)), key=lambda index: -strides[index])
    counting = np.arange(mesh.size()).reshape(mesh.ranks.transpose(order).shape)
    return order if np.array_equal(mesh.ranks.transpose(order), counting) else None


def _ranks_source(mesh: DeviceMesh) -> str:
    flat = mesh.ranks.reshape(-1)
    if len(flat) > 1 and (np.diff(flat) == 1).all():
        return f"range({flat[0]}, {flat[-1] + 1})"
    if len(flat) <= _RANKS_WRITTEN:
        return str(flat.tolist())
    return ranks_text(flat)


def _distance(stride: int | None) -> int | str:
    return "varies" if stride is None else stride


def html(mesh: DeviceMesh) -> str:
    """A static card: one row per axis and per group added by hand."""
    with_backend = bool(mesh.backends)
    header = ["axis", "size", "groups", "stride", "first group", *["backend"] * with_backend, "meaning"]
    rows: list[Sequence[object]] = []
    for axis, stride in zip(mesh.axes, mesh.strides, strict=True):
        groups = mesh.groups(axis.name)
        backend = [mesh.backends.get(axis.name, "–")] * with_backend
        meaning = WELL_KNOWN_AXES.get(axis.name, "").split(":")[0]
        rows.append(
            [axis.name, axis.size, len(groups), _distance(stride), ranks_text(groups.array[0]), *backend, meaning]
        )
    rows += [
        [
            group.name,
            len(group),
            1,
            _distance(even_step(group.array)),
            ranks_text(group.array),
            *["–"] * with_backend,
            "added by hand",
        ]
        for group in mesh.custom_groups
    ]
    subtitle = f"{mesh.size():,} ranks · {mesh.axes[-1].name} is the fastest axis · {mesh.fingerprint}"
    if mesh.idle_ranks.size:
        subtitle += f" · idle: {idle_text(mesh.idle_ranks.tolist())}"
    return markup.card(f"DeviceMesh · {mesh}", subtitle, markup.table(header, rows))


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
