"""The axes and the ranks of a mesh that is derived from another one, for methods such as `DeviceMesh.flatten`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from meshlab.base._errors import MeshError
from meshlab.mesh._axes import AxesLike, Ranks, axis_index, axis_indices, axis_pairs, check_coordinate, fill_axes
from meshlab.mesh._groups import ranks_repr

if TYPE_CHECKING:
    from meshlab.mesh._mesh import DeviceMesh

Pairs = tuple[tuple[str, int], ...]


def positional_or_keywords(axes: AxesLike | None, sizes: Mapping[str, int]) -> Pairs:
    """Return the axes of a call that has either one argument or keywords."""
    if (axes is None) == (not sizes):
        raise MeshError("new axes must be one argument, such as 'dp=2, tp=4', or keywords, such as dp=2, tp=4")
    return axis_pairs(sizes if axes is None else axes)


def permutation(mesh: DeviceMesh, axes: Sequence[str]) -> tuple[int, ...]:
    """Return the indices of axes, or raise unless they are all axes of a mesh."""
    indices = axis_indices(mesh.axis_names, axes)
    missing = [name for name in mesh.axis_names if name not in axes]
    if missing:
        raise MeshError(f"axes {', '.join(axes)} are incomplete", hint=f"add {', '.join(missing)}")
    return indices


def merged_axes(mesh: DeviceMesh, axes: Sequence[str], name: str | None) -> tuple[Pairs, Ranks]:
    """Return the axes and ranks with several axes merged into one."""
    inside = axis_indices(mesh.axis_names, axes)
    # The new axis takes the position of the fastest old one: merging neighbouring axes then moves no rank, and the
    # mesh stays in order.
    spot = max(inside)
    order: list[int] = []
    pairs: list[tuple[str, int]] = []
    for index, pair in enumerate(axis_pairs(mesh.axes)):
        if index == spot:
            order += inside
            pairs.append(("_".join(axes) if name is None else name, mesh.size(*axes)))
        elif index not in inside:
            order.append(index)
            pairs.append(pair)
    return tuple(pairs), mesh.ranks.transpose(order)


def split_axes(
    mesh: DeviceMesh, axis: str, parts: AxesLike | None, sizes: Mapping[str, int]
) -> tuple[Pairs, Ranks, dict[str, str]]:
    """Return the axes with one axis split into several, the ranks, and the old axis of every axis."""
    index = axis_index(mesh.axis_names, axis)
    part_pairs = positional_or_keywords(parts, sizes)
    try:
        new = axis_pairs(fill_axes(part_pairs, mesh.axes[index].size))
    except MeshError as error:
        raise MeshError(f"cannot split {mesh.axes[index]}: {error.message}", hint=error.hint) from None
    pairs = axis_pairs(mesh.axes)
    origin = {name: name for name in mesh.axis_names} | {name: axis for name, _ in new}
    return (*pairs[:index], *new, *pairs[index + 1 :]), mesh.ranks, origin


def selected_ranks(mesh: DeviceMesh, choices: Mapping[str, int | slice | Sequence[int]]) -> tuple[Pairs, Ranks]:
    """Return the axes and ranks at the chosen coordinates of some axes."""
    for name in choices:
        axis_index(mesh.axis_names, name)
    pairs: list[tuple[str, int]] = []
    index: list[list[int]] = []
    for axis in mesh.axes:
        choice = choices.get(axis.name, slice(None))
        if isinstance(choice, slice):
            coordinates = list(range(axis.size)[choice])
        elif isinstance(choice, (Sequence, np.ndarray)):
            coordinates = [check_coordinate(axis, value) for value in choice]
        else:  # one coordinate: index the axis, and omit it from the new mesh
            index.append([check_coordinate(axis, choice)])
            continue
        if not coordinates:
            raise MeshError(f"{axis.name}={choice!r} selects no ranks", hint=f"use 0 to {axis.size - 1}")
        pairs.append((axis.name, len(coordinates)))
        index.append(coordinates)
    if not pairs:
        raise MeshError("select() with one coordinate per axis leaves a single rank, not a mesh", hint="call rank_at()")
    return tuple(pairs), mesh.ranks[np.ix_(*index)]


def check_same_groups(mesh: DeviceMesh, view: DeviceMesh, name: str) -> None:
    """Raise a `MeshError` unless an axis has the same groups in both meshes."""
    # Communicators are created once and shared by both layouts, so an axis name must mean the same groups in the
    # same order. Equal sizes are not enough: the axes after it decide which ranks are neighbours along it.
    before, after = mesh[name].array, view[name].array
    if before.shape == after.shape and np.array_equal(before, after):
        return
    first = 0
    if before.shape == after.shape:
        first = int(np.flatnonzero((before != after).any(axis=1))[0])
    index = axis_index(mesh.axis_names, name)
    raise MeshError(
        f"axis {name!r} is in both meshes, but {name}_{first} is {ranks_repr(before[first])} in {mesh} and "
        f"{ranks_repr(after[first])} in {view}",
        hint=f"give it size {mesh.axes[index].size} and following axes with "
        f"product {math.prod(mesh.shape[index + 1 :])}, or a different name",
    )
