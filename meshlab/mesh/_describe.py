"""Descriptions of a mesh: tables, an explanation, the source code that creates it, HTML and plain text."""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from meshlab.base import _markup as markup
from meshlab.base._errors import MeshError
from meshlab.mesh._axes import MAX_RANKS, WELL_KNOWN_AXES, Ranks, as_integer, format_axes, format_ranks, short
from meshlab.mesh._groups import Group, categories, groups_name, ranks_repr, uniform_stride

if TYPE_CHECKING:
    import pandas as pd

    from meshlab.mesh._mesh import DeviceMesh


_MAX_AXES_OF_ALL_SETS = 10


def membership(mesh: DeviceMesh) -> pd.DataFrame:
    """Return the table of `DeviceMesh.membership`."""
    import pandas as pd

    ranks = np.flatnonzero(mesh.positions >= 0).astype(np.int32)
    coordinates = mesh.coordinate_array if len(ranks) == mesh.world_size else mesh.coordinate_array[ranks]
    columns: dict[str, Any] = {"rank": ranks}
    for index, name in enumerate(mesh.axis_names):
        columns[name] = coordinates[:, index]
    for name in mesh.axis_names:
        groups = mesh[name]
        # From integer codes, because a string per rank takes three times as long for 131,072 ranks.
        columns[f"{name}_group"] = pd.Categorical.from_codes(groups.color[ranks], dtype=categories(groups.names))
    for group in mesh.custom_groups:
        columns[group.name] = np.isin(ranks, group.array)
    return pd.DataFrame(columns)


def stats(mesh: DeviceMesh) -> pd.DataFrame:
    """Return the table of `DeviceMesh.stats`."""
    import pandas as pd

    rows = [
        {
            "axis": name,
            "size": len(first),
            "groups": count,
            "stride": stride,
            "backend": mesh.backends.get(name),
            "first_group": ranks_repr(first),
            "is_custom": name not in mesh.axis_names,
        }
        for name, count, first, stride in _axes_and_groups(mesh)
    ]
    return pd.DataFrame(rows).astype({"stride": "Int64", "backend": "string", "first_group": "string"})


def _axes_and_groups(mesh: DeviceMesh) -> Iterator[tuple[str, int, Ranks, int | None]]:
    """Yield the name, the number of groups, the first group and the stride of every axis and custom group."""
    for name, stride in zip(mesh.axis_names, mesh.strides, strict=True):
        yield name, len(mesh[name]), mesh[name].array[0], stride
    for group in mesh.custom_groups:
        yield group.name, 1, group.array, uniform_stride(group.array)


def check_groups(mesh: DeviceMesh, axis_sets: Sequence[str | Sequence[str]]) -> pd.DataFrame:
    """Return the table of `DeviceMesh.check_groups`."""
    import pandas as pd

    sets = [(name,) if isinstance(name, str) else tuple(name) for name in axis_sets]
    if not sets:
        if len(mesh.axes) > _MAX_AXES_OF_ALL_SETS:
            raise MeshError(
                f"{len(mesh.axes)} axes have {2 ** len(mesh.axes) - 1:,} sets of axes",
                hint=f"pass the sets to check, such as check_groups({mesh.axis_names[0]!r}, {mesh.axis_names[:2]!r})",
            )
        counts = range(1, len(mesh.axes) + 1)
        sets = [names for count in counts for names in itertools.combinations(mesh.axis_names, count)]
    rows = []
    for names in sets:
        groups = mesh[names]
        inside = tuple(mesh.axis_names.index(name) for name in names)
        rows.append(
            {
                "axes": groups_name(names),
                "groups": len(groups),
                "size": groups.size,
                **check_array(groups.array, mesh, inside),
            }
        )
    return pd.DataFrame(rows)


def check_array(array: npt.NDArray[np.int32], mesh: DeviceMesh, inside: tuple[int, ...]) -> dict[str, bool]:
    """Check groups, int32 of shape (groups, size), against those that follow from each rank's coordinates."""
    # A rank can compute its group number from its own coordinates: those outside `inside`, read as a mixed-radix
    # number. The coordinates inside are its position. `DeviceMesh` builds the array by a transposition instead, so a
    # mistake in one of the two shows up as a difference.
    ranks = np.flatnonzero(mesh.positions >= 0)
    coordinates = mesh.coordinate_array[ranks]
    outside = [index for index in range(len(mesh.axes)) if index not in inside]
    color = _mixed_radix(coordinates, outside, mesh.shape)
    key = _mixed_radix(coordinates, inside, mesh.shape)
    size = math.prod(mesh.shape[index] for index in inside)
    times_listed = np.bincount(array.reshape(-1), minlength=mesh.world_size)
    return {
        "disjoint": bool((times_listed <= 1).all()),
        "covers": bool((times_listed[ranks] >= 1).all()),
        "equal_size": bool((np.bincount(color) == size).all()) and array.shape[1] == size,
        "same_order": array.shape == (len(ranks) // size, size) and bool((array[color, key] == ranks).all()),
    }


def _mixed_radix(
    coordinates: npt.NDArray[np.int32], indices: Sequence[int], shape: Sequence[int]
) -> npt.NDArray[np.int32]:
    number = np.zeros(len(coordinates), dtype=np.int32)
    for index in indices:
        number = number * np.int32(shape[index]) + coordinates[:, index]
    return number


def explain(mesh: DeviceMesh, ranks_per_node: int = 8) -> str:
    """Return the text of `DeviceMesh.explain`."""
    number = as_integer(ranks_per_node)
    if number is None or number < 1:
        raise MeshError(f"ranks_per_node must be a positive integer, not {short(ranks_per_node)}")
    count = mesh.size()
    lines = [f"{mesh}: {count:,} rank{'s' * (count > 1)}; the last axis is the fastest."]
    if not mesh.in_order:
        lines[0] += " The ranks are not in ascending order."
    if mesh.idle_ranks.size:
        lines.append(f"Idle: {format_ranks(mesh.idle_ranks.tolist())} of {mesh.world_size:,}.")
    lines += [_axis_line(mesh, index) for index in reversed(range(len(mesh.axes)))]
    lines.append(_node_line(mesh, number))
    if len(mesh.axes) > 1:
        lines.append(
            f"Axis order in torch and JAX: ({', '.join(mesh.axis_names)}). "
            f"In Megatron, which lists the fastest axis first: {'-'.join(reversed(mesh.axis_names))}."
        )
    return "\n".join(lines)


def fastest_axis(mesh: DeviceMesh) -> str:
    """Return the fastest axis with more than one rank, or the last axis if all have size 1."""
    return next((axis.name for axis in reversed(mesh.axes) if axis.size > 1), mesh.axis_names[-1])


def _meaning(axis: str) -> str:
    return WELL_KNOWN_AXES.get(axis, "").split(":")[0]


def _axis_line(mesh: DeviceMesh, index: int) -> str:
    axis, stride = mesh.axes[index], mesh.strides[index]
    meaning = _meaning(axis.name)
    title = f"{axis.name} ({meaning})" if meaning else axis.name
    if axis.size == 1:
        return f"{title}: one rank per group, so no traffic."
    fastest = "the fastest axis; " if axis.name == fastest_axis(mesh) else ""
    if stride is None:
        distance = "varying stride"
    elif abs(stride) == 1:
        distance = "adjacent"
    else:
        distance = f"stride {stride:,}"
    first = mesh[axis.name].array[0]
    if len(first) <= 2 or (np.diff(first) == 1).all():
        members = format_ranks(first.tolist())
    else:
        members = f"ranks {', '.join(map(str, first[:4]))}{', …' if len(first) > 4 else ''}"
    return f"{title}: {fastest}the first group is {members} ({distance})."


def _node_line(mesh: DeviceMesh, ranks_per_node: int) -> str:
    if ranks_per_node > MAX_RANKS or mesh.ranks.max() // ranks_per_node == mesh.ranks.min() // ranks_per_node:
        return f"With {short(ranks_per_node)} ranks per node, all groups stay inside one node."
    inside: list[str] = []
    across: list[str] = []
    for axis in mesh.axes:
        if axis.size > 1:
            node = mesh[axis.name].array // ranks_per_node
            (inside if (node == node[:, :1]).all() else across).append(axis.name)
    text = f"With {ranks_per_node} rank{'s' * (ranks_per_node > 1)} per node, "
    if inside:
        text += f"{_and(inside)} stay{'s' * (len(inside) == 1)} inside a node, and "
    return text + f"{_and(across)} cross{'es' * (len(across) == 1)} nodes."


def _and(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


_MAX_RANKS_IN_SOURCE = 64


def source(mesh: DeviceMesh) -> str:
    """Return code that creates the mesh. A long list of custom ranks is abbreviated and cannot be pasted."""
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
    of_axes = {name: backend for name, backend in mesh.backends.items() if name in mesh.axis_names}
    if of_axes:
        more += f", backends={of_axes}"
    added = "".join(_groups_source(mesh))
    return f"DeviceMesh({format_axes(axes)!r}{more}){after}{added}"


def _groups_source(mesh: DeviceMesh) -> Iterator[str]:
    """Return the calls that add the custom groups, with one call for the groups of `DeviceMesh.with_groups`."""
    groups, index = mesh.custom_groups, 0
    while index < len(groups):
        name, _, number = groups[index].name.rpartition("_")
        count = 0
        while number == "0" and index + count < len(groups) and groups[index + count].name == f"{name}_{count}":
            count += 1
        rows = [list(group.ranks) for group in groups[index : index + count]]
        backends = [mesh.backends.get(group.name) for group in groups[index : index + max(count, 1)]]
        more = "" if backends[0] is None else f", backend={backends[0]!r}"
        if count > 1 and len({len(row) for row in rows}) == 1 and len(set(backends)) == 1:
            yield f".with_groups({name!r}, {rows}{more})"
            index += count
        else:
            yield f".with_group({groups[index].name!r}, {list(groups[index].ranks)}{more})"
            index += 1


def _row_major_order(mesh: DeviceMesh) -> list[int] | None:
    """Return the order of the axes in which the ranks would be 0, 1, 2, …, or None if there is none."""
    # A transposed mesh has constant strides, and sorting the axes by stride undoes the transposition. The comparison
    # rejects meshes that only look transposed, such as a mesh with descending ranks.
    if mesh.idle_ranks.size or mesh.ranks.flat[0] != 0:
        return None
    strides = [0 if stride is None else stride for stride in mesh.strides]
    order = sorted(range(len(strides)), key=lambda index: -strides[index])
    ascending = np.arange(mesh.size()).reshape(mesh.ranks.transpose(order).shape)
    return order if np.array_equal(mesh.ranks.transpose(order), ascending) else None


def _ranks_source(mesh: DeviceMesh) -> str:
    flat = mesh.ranks.reshape(-1)
    if len(flat) > 1 and (np.diff(flat) == 1).all():
        return f"range({flat[0]}, {flat[-1] + 1})"
    if len(flat) <= _MAX_RANKS_IN_SOURCE:
        return str(flat.tolist())
    return ranks_repr(flat)


def html(mesh: DeviceMesh) -> str:
    """Return a static HTML card with one row per axis and custom group."""
    with_backend = bool(mesh.backends)
    header = ["axis", "size", "groups", "stride", "first group", *["backend"] * with_backend, "meaning"]
    rows: list[Sequence[object]] = []
    for name, count, first, stride in _axes_and_groups(mesh):
        facts = [name, len(first), count, "varies" if stride is None else stride, ranks_repr(first)]
        backend = [mesh.backends.get(name, "–")] * with_backend
        rows.append([*facts, *backend, _meaning(name) if name in mesh.axis_names else "custom group"])
    subtitle = f"{mesh.size():,} ranks · {fastest_axis(mesh)} is the fastest axis · {mesh.fingerprint}"
    if mesh.idle_ranks.size:
        subtitle += f" · idle: {format_ranks(mesh.idle_ranks.tolist())}"
    return markup.card(f"DeviceMesh · {mesh}", subtitle, markup.table(header, rows))


_MAX_GRID_RANKS, _MAX_GROUPS, _MAX_GROUP_RANKS = 64, 8, 16
_MIN_WIDTH = 20
_GAP = "  "


def mesh_text(mesh: DeviceMesh, axis: str | None = None, width: int = 80) -> str:
    """Return a mesh as plain text for a terminal: axes, groups and, for a small mesh, the grid of ranks."""
    axis = fastest_axis(mesh) if axis is None else axis
    chosen = mesh[axis]
    names = list(dict.fromkeys([*mesh.creation_order, chosen.name]))
    name_width = max(len(name) for name in names)
    n = mesh.world_size
    title = f"{mesh} · {n:,} rank{'s' * (n != 1)} · {fastest_axis(mesh)} is the fastest axis"
    lines = [wrapped(title, width), ""]
    counts = {
        name: f"{len(groups)} group{'s' * (len(groups) != 1)} of {groups.size}"
        for name in names
        for groups in [mesh[name]]
    }
    count_width = max(len(text) for text in counts.values())
    for name in names:  # the axes, the custom groups, and the chosen groups if they are neither, such as "dp-cp"
        groups = mesh[name]
        head = f"  {name:<{name_width}}  {counts[name]:<{count_width}}   "
        room = width - len(head)
        parts = [_group(group, room) for group in groups[:_MAX_GROUPS]]
        if len(groups) > _MAX_GROUPS:
            parts.append(f"and {len(groups) - _MAX_GROUPS:,} more")
        lines += _filled(head, parts, width)
    if mesh.world_size <= _MAX_GRID_RANKS:
        lines += ["", f"rank:group of {chosen.name}", *_grid(mesh, axis, width)]
    return "\n".join(lines)


def wrapped(text: str, width: int) -> str:
    """Wrap the lines of a text at spaces, and indent continuation lines."""
    return "\n".join(
        textwrap.fill(  # hyphens are part of names such as dp-cp
            line, max(width, _MIN_WIDTH), subsequent_indent=_GAP, break_long_words=False, break_on_hyphens=False
        )
        for line in text.splitlines()
    )


def _group(group: Group, room: int) -> str:
    """Return the name and the ranks of a group, abbreviated if they are longer than `room`."""
    ranks = group.array.tolist()
    text = f"{group.name} {ranks}"
    # Up to four ranks are always written out, because the abbreviation has four as well.
    if len(ranks) <= _MAX_GROUP_RANKS and (len(text) <= room or len(ranks) <= 4):
        return text
    return f"{group.name} [{', '.join(map(str, ranks[:3]))}, …, {ranks[-1]}]"


def _filled(head: str, parts: Sequence[str], width: int) -> list[str]:
    """Write parts side by side after a head, and continue below the first part if a line is full."""
    lines = [head.removesuffix(_GAP)]
    for number, part in enumerate(parts):
        if number and len(lines[-1]) + len(_GAP) + len(part) > width:
            lines.append(" " * (len(head) - len(_GAP)))
        lines[-1] += _GAP + part
    return lines


def _grid(mesh: DeviceMesh, axis: str, width: int) -> list[str]:
    color = mesh[axis].color
    inner = mesh.axis_names.index(fastest_axis(mesh))
    rows, outer = mesh.ranks.reshape(-1, mesh.shape[inner]), mesh.axis_names[:inner]
    labels = [" ".join(f"{name}={mesh.coordinates(int(row[0]))[name]}" for name in outer) for row in rows]
    label_width = max(len(label) for label in labels)
    cells = [[f"{rank}:{color[rank] if color[rank] >= 0 else '–'}" for rank in row] for row in rows]
    cell_width = max(len(cell) for row in cells for cell in row)
    return [
        line
        for label, row in zip(labels, cells, strict=True)
        for line in _filled(f"  {label:<{label_width}}   ", [cell.rjust(cell_width) for cell in row], width)
    ]
