"""A mesh in words: an explanation, the source text that makes it, and a static HTML card."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from meshlab import markup
from meshlab.errors import MeshError
from meshlab.mesh.axes import WELL_KNOWN_AXES, format_axes, idle_text
from meshlab.mesh.groups import even_step, ranks_text

if TYPE_CHECKING:
    from meshlab.mesh.mesh import DeviceMesh

__all__ = ["explain", "html", "source"]

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
