"""Axes over ranks: which rank lies at which coordinates. `DeviceMesh` adds the groups."""

from __future__ import annotations

import math
from abc import ABC
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from meshlab.errors import MeshError
from meshlab.mesh.axes import Axis, check_rank, check_world_size, fill_axes, idle_text, parse_axes, short
from meshlab.mesh.groups import Ranks

__all__ = ["AxesLike", "Layout", "axis_pairs", "place_ranks"]

AxesLike = str | Mapping[str, int] | Sequence[tuple[str, int] | Axis]
"""What can be read as axes: a text, names with sizes, or pairs."""


def axis_pairs(axes: AxesLike) -> tuple[tuple[str, int], ...]:
    """Bring axes of any form into pairs of name and size.

    Raises
    ------
    MeshError
        If they have none of the forms.
    ParseError
        If a text cannot be read.

    Examples
    --------
    >>> axis_pairs("dp=2, tp=4") == axis_pairs({"dp": 2, "tp": 4}) == axis_pairs([Axis("dp", 2), ("tp", 4)])
    True
    """
    if isinstance(axes, str):
        return parse_axes(axes)
    if isinstance(axes, Mapping):
        return tuple(axes.items())
    try:
        return tuple(_pair(axis) for axis in axes)
    except (TypeError, ValueError):
        raise MeshError(
            f"{short(axes)} does not name axes; write 'dp=2, tp=4', a mapping, or pairs such as ('tp', 4)"
        ) from None


def _pair(axis: tuple[str, int] | Axis) -> tuple[str, int]:
    if isinstance(axis, Axis):
        return axis.name, axis.size
    if isinstance(axis, str):
        raise TypeError("a text is no pair")
    name, size = axis
    return name, size


def place_ranks(
    pairs: Sequence[tuple[str, int]], ranks: npt.ArrayLike | None, world_size: int | None
) -> tuple[tuple[Axis, ...], Ranks | None, int]:
    """Check axes against ranks.

    Parameters
    ----------
    pairs : sequence of (str, int)
        Names and sizes; one size may be -1.
    ranks : array_like of int, optional
        The global ranks in row-major order of the axes; 0, 1, 2, … when left out. More than one dimension must match
        the sizes.
    world_size : int, optional
        How many ranks the world has. Ranks that `ranks` leaves out are idle, and only this makes that legal.

    Returns
    -------
    axes : tuple of Axis
    order : numpy.ndarray or None
        The ranks as flat int32, or None when they are 0, 1, 2, … without a gap.
    world_size : int

    Raises
    ------
    MeshError
        If sizes and ranks do not fit, or a rank is repeated, outside the world or not a whole number.
    """
    if ranks is None:
        axes = fill_axes(pairs, world_size)
        return axes, None, math.prod(axis.size for axis in axes)
    given = _as_whole_numbers(ranks)
    axes = fill_axes(pairs, given.size)
    shape = tuple(axis.size for axis in axes)
    if given.ndim > 1 and given.shape != shape:
        raise MeshError(
            f"the ranks have shape {given.shape}, but the axes have {shape}; give them in that shape or as a flat list"
        )
    flat = given.reshape(-1)
    world = given.size if world_size is None else check_world_size(world_size)
    outside = flat[(flat < 0) | (flat >= world)]
    if outside.size:
        hint = "" if world_size is not None or outside[0] < 0 else f", or say world_size={int(flat.max()) + 1}"
        raise MeshError(f"rank {outside[0]} does not exist; ranks go from 0 to {world - 1}{hint}")
    counts = np.bincount(flat, minlength=world)
    if counts.max() > 1:
        twice = int(counts.argmax())
        raise MeshError(f"rank {twice} stands {counts[twice]} times; a rank has one place in a mesh")
    if world == flat.size and np.array_equal(flat, np.arange(world)):
        return axes, None, world
    order = flat.astype(np.int32)
    order.flags.writeable = False
    return axes, order, world


def _as_whole_numbers(ranks: npt.ArrayLike) -> npt.NDArray[np.int64]:
    try:
        given = np.asarray(list(ranks) if isinstance(ranks, (range, Sequence)) else ranks)
    except (TypeError, ValueError):
        raise MeshError("the ranks of a mesh must be one list of whole numbers, or nested lists of one shape") from None
    if given.size == 0 or given.ndim == 0:
        raise MeshError("the mesh has no ranks; give at least one")
    if given.dtype.kind not in "iu":
        raise MeshError(f"the ranks of a mesh must be whole numbers, not {short(given.reshape(-1)[0])}")
    return given.astype(np.int64)


class Layout(ABC):
    """Named axes over ranks, in row-major order: the last axis is the fastest."""

    axes: tuple[Axis, ...]
    """The axes, slowest first."""

    world_size: int
    """How many ranks the world has, idle ones included."""

    _order: Ranks | None

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a {type(self).__name__} does not change; {name!r} cannot be set")

    # -- shape ---------------------------------------------------------------------------------------------------------

    @cached_property
    def axis_names(self) -> tuple[str, ...]:
        """The names of the axes, slowest first."""
        return tuple(axis.name for axis in self.axes)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the axes, slowest first."""
        return tuple(axis.size for axis in self.axes)

    def size(self, *axes: str) -> int:
        """How many ranks lie along one or several axes together; in the whole mesh when no axis is named.

        Examples
        --------
        >>> from meshlab.mesh.mesh import DeviceMesh
        >>> mesh = DeviceMesh("pp=2, dp=3, tp=4")
        >>> mesh.size("dp", "tp"), mesh.size()
        (12, 24)
        """
        if not axes:
            return math.prod(self.shape)
        return math.prod(self.axes[index].size for index in self._axis_indices(axes))

    @cached_property
    def ranks(self) -> Ranks:
        """The global ranks as int32 in the shape of the mesh."""
        flat = np.arange(self.world_size, dtype=np.int32) if self._order is None else self._order
        ranks = flat.reshape(self.shape)
        ranks.flags.writeable = False
        return ranks

    @cached_property
    def idle_ranks(self) -> Ranks:
        """The ranks of the world that have no place in the mesh, ascending; int32.

        Examples
        --------
        >>> from meshlab.mesh.mesh import DeviceMesh
        >>> DeviceMesh("tp=4", ranks=[0, 1, 2, 3], world_size=6).idle_ranks.tolist()
        [4, 5]
        """
        idle = np.flatnonzero(self.positions < 0).astype(np.int32)
        idle.flags.writeable = False
        return idle

    @cached_property
    def strides(self) -> tuple[int | None, ...]:
        """How far apart neighbours along each axis are in global rank; None where the distance is not the same.

        Examples
        --------
        >>> from meshlab.mesh.mesh import DeviceMesh
        >>> DeviceMesh("pp=2, dp=3, tp=4").strides, DeviceMesh("tp=3", ranks=[0, 2, 1]).strides
        ((12, 4, 1), (None,))
        """
        strides: list[int | None] = []
        for index, axis in enumerate(self.axes):
            stride: int | None = math.prod(self.shape[index + 1 :])
            if axis.size > 1 and self._order is not None:
                steps = np.diff(self.ranks, axis=index)
                first = int(steps.flat[0])
                stride = first if (steps == first).all() else None
            strides.append(stride)
        return tuple(strides)

    def _axis_index(self, name: str) -> int:
        for index, axis in enumerate(self.axes):
            if axis.name == name:
                return index
        raise MeshError(f"there is no axis {name!r}; this mesh has {', '.join(self.axis_names)}")

    def _axis_indices(self, names: Sequence[str]) -> tuple[int, ...]:
        if not names:
            raise MeshError(f"name at least one axis; this mesh has {', '.join(self.axis_names)}")
        indices = tuple(self._axis_index(name) for name in names)
        if len(set(indices)) != len(indices):
            raise MeshError(f"an axis stands twice in {', '.join(names)}")
        return indices

    # -- coordinates ---------------------------------------------------------------------------------------------------

    @property
    def in_order(self) -> bool:
        """True when the ranks lie as 0, 1, 2, … without a gap, which is the usual case."""
        return self._order is None

    @cached_property
    def positions(self) -> Ranks:
        """For every global rank its place in row-major order, -1 for an idle one; int32 of shape (world_size,).

        Examples
        --------
        >>> from meshlab.mesh.mesh import DeviceMesh
        >>> DeviceMesh("tp=3", ranks=[3, 0, 1], world_size=4).positions.tolist()
        [1, 2, -1, 0]
        """
        if self._order is None:
            positions = np.arange(self.world_size, dtype=np.int32)
        else:
            positions = np.full(self.world_size, -1, dtype=np.int32)
            positions[self._order] = np.arange(len(self._order), dtype=np.int32)
        positions.flags.writeable = False
        return positions

    def coordinates(self, rank: int) -> dict[str, int]:
        """Where a rank lies on every axis.

        Raises
        ------
        MeshError
            If there is no such rank, or it is idle.

        Examples
        --------
        >>> from meshlab.mesh.mesh import DeviceMesh
        >>> DeviceMesh("dp=2, tp=4").coordinates(5)
        {'dp': 1, 'tp': 1}
        """
        place = self._place_of(rank)
        found = []
        for axis in reversed(self.axes):
            place, coordinate = divmod(place, axis.size)
            found.append((axis.name, coordinate))
        return dict(reversed(found))

    def _place_of(self, rank: int) -> int:
        rank = check_rank(rank, self.world_size)
        if self._order is None:
            return rank
        place = int(self.positions[rank])
        if place < 0:
            raise MeshError(f"rank {rank} is idle in this mesh, which leaves out {idle_text(self.idle_ranks.tolist())}")
        return place

    @cached_property
    def coordinate_array(self) -> Ranks:
        """The coordinates of all ranks: int32 of shape (world_size, axes), one row per rank, -1 for an idle rank."""
        grid = np.empty((*self.shape, len(self.axes)), dtype=np.int32)
        for index, axis in enumerate(self.axes):
            along = np.arange(axis.size, dtype=np.int32)
            grid[..., index] = along.reshape(-1, *[1] * (len(self.axes) - index - 1))
        coordinates = grid.reshape(-1, len(self.axes))
        if self._order is not None:
            placed = np.full((self.world_size, len(self.axes)), -1, dtype=np.int32)
            placed[self._order] = coordinates
            coordinates = placed
        coordinates.flags.writeable = False
        return coordinates

    def rank_at(self, **coordinates: int) -> int:
        """The rank at the given coordinates, one for every axis.

        Raises
        ------
        MeshError
            If an axis is missing, unknown, or the coordinate lies outside it.

        Examples
        --------
        >>> from meshlab.mesh.mesh import DeviceMesh
        >>> DeviceMesh("dp=2, tp=4").rank_at(tp=1, dp=1)
        5
        """
        for name in coordinates:
            self._axis_index(name)
        missing = [name for name in self.axis_names if name not in coordinates]
        if missing:
            raise MeshError(f"a rank needs a coordinate on every axis; {', '.join(missing)} is missing")
        place = 0
        for axis in self.axes:
            place = place * axis.size + check_coordinate(axis, coordinates[axis.name])
        return place if self._order is None else int(self._order[place])

    # -- groups as plain arrays ----------------------------------------------------------------------------------------

    def _group_array(self, inside: tuple[int, ...]) -> Ranks:
        """One row per group of the axes with the indices `inside`: int32 of shape (groups, size)."""
        outside = [index for index in range(len(self.axes)) if index not in inside]
        size = math.prod(self.shape[index] for index in inside)
        array = np.ascontiguousarray(self.ranks.transpose(*outside, *inside).reshape(-1, size))
        array.flags.writeable = False
        return array


def check_coordinate(axis: Axis, value: Any) -> int:
    """Return a coordinate on an axis as an int, or raise a `MeshError`."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise MeshError(
            f"{axis.name}={short(value)} is not a coordinate; give a whole number from 0 to {axis.size - 1}"
        )
    whole = int(value.__index__())
    if not 0 <= whole < axis.size:
        raise MeshError(f"{axis.name}={whole} lies outside the axis; it goes from 0 to {axis.size - 1}")
    return whole
