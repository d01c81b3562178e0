"""DeviceMesh: named axes over ranks, and the groups that follow from them."""

from __future__ import annotations

import hashlib
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from meshlab.errors import MeshError
from meshlab.mesh.axes import (
    WORLD,
    AxesLike,
    Axis,
    Ranks,
    axis_pairs,
    check_axis_name,
    check_rank,
    fill_axes,
    format_axes,
    idle_text,
    parse_axes,
    place_ranks,
    short,
)
from meshlab.mesh.describe import explain, html, membership, proof, source, stats
from meshlab.mesh.groups import Group, Groups, Hierarchy, cut_groups, groups_name, ranks_text

if TYPE_CHECKING:
    import pandas as pd

    from meshlab.mesh.interop.recipe import Recipe

__all__ = ["DeviceMesh", "Grouping", "Layout", "MeshLike", "Transforms", "as_mesh"]


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


class Grouping(Layout):
    """The methods of a mesh that say who is in which group."""

    custom_groups: tuple[Group, ...]
    """Groups that were added by hand, in the order in which they were added."""

    def groups(self, *axes: str) -> Groups:
        """All groups along one or several axes: ranks that differ only there.

        Parameters
        ----------
        *axes : str
            Axis names. Inside a group the ranks count row-major over the axes in the order given here, the last the
            fastest. The groups themselves are in row-major order of the remaining axes.

        Returns
        -------
        Groups
            Together they contain every rank of the mesh exactly once.

        Raises
        ------
        MeshError
            If an axis is unknown or stands twice.

        Examples
        --------
        >>> from meshlab.mesh.mesh import DeviceMesh
        >>> mesh = DeviceMesh("dp=2, cp=2, tp=2")
        >>> mesh.groups("dp", "cp").array.tolist()
        [[0, 2, 4, 6], [1, 3, 5, 7]]
        """
        cache: dict[tuple[str, ...], Groups] = self.__dict__["_group_cache"]
        if not all(isinstance(name, str) for name in axes):
            raise MeshError(f"name the axes one by one, such as groups('dp', 'cp'), not {short(axes)}")
        if axes not in cache:
            array = self._group_array(self._axis_indices(axes))
            cache[axes] = Groups(groups_name(axes), array, world_size=self.world_size, axes=axes)
        return cache[axes]

    @property
    def world(self) -> Group:
        """The group of all ranks, in order of their numbers, idle ones included."""
        return Group(WORLD, np.arange(self.world_size, dtype=np.int32))

    def group_set(self, axis: str | Sequence[str]) -> Groups:
        """The groups that a benchmark or a function runs on: along axes, ``"world"``, or one group by name.

        Parameters
        ----------
        axis : str or sequence of str
            ``"tp"``, ``("dp", "cp")`` or ``"dp-cp"``, ``"world"``, a single group such as ``"tp_0"``, or the name of a
            group added by hand.

        Returns
        -------
        Groups

        Raises
        ------
        MeshError
            If nothing has that name; the message lists what has.

        Examples
        --------
        >>> from meshlab.mesh.mesh import DeviceMesh
        >>> mesh = DeviceMesh("dp=2, tp=2").with_group("pair", [3, 0])
        >>> mesh.group_set("tp").array.tolist(), mesh.group_set("pair").array.tolist()
        ([[0, 1], [2, 3]], [[3, 0]])
        """
        if not isinstance(axis, str):
            return self.groups(*axis)
        known: Groups | None = self.__dict__["_group_cache"].get((axis,))
        if known is not None:
            return known
        parts = axis.split("-")
        if all(part in self.axis_names for part in parts):
            return self.groups(*parts)
        group = self.group(axis)
        return Groups(axis, group.array[None, :], world_size=self.world_size, axes=group.axes, single=True)

    def group(self, name: str) -> Group:
        """One group by its name.

        Parameters
        ----------
        name : str
            ``"world"``, the name of a group added by hand, or axes and a number such as ``"tp_0"`` and ``"dp-cp_1"``.

        Raises
        ------
        MeshError
            If no group has that name.

        Examples
        --------
        >>> from meshlab.mesh.mesh import DeviceMesh
        >>> DeviceMesh("dp=2, tp=2").group("dp_1")
        Group('dp_1', [1, 3])
        """
        if name == WORLD:
            return self.world
        for group in self.custom_groups:
            if group.name == name:
                return group
        axes, _, number = str(name).rpartition("_")
        parts = axes.split("-")
        if re.fullmatch(r"0|[1-9][0-9]{0,8}", number) and all(part in self.axis_names for part in parts):
            groups = self.groups(*parts)
            if int(number) < len(groups):
                return groups[int(number)]
            there_is = f"has the one group {axes}_0" if len(groups) == 1 else f"has {axes}_0 to {groups[-1].name}"
            raise MeshError(f"there is no group {name!r}; {axes} {there_is}")
        ranges = [
            f"{n}_0" if len(self.groups(n)) == 1 else f"{n}_0…{n}_{len(self.groups(n)) - 1}" for n in self.axis_names
        ]
        raise MeshError(
            f"there is no axis or group {short(name)}; there are the axes {', '.join(self.axis_names)} and the groups "
            + ", ".join([WORLD, *ranges, *(group.name for group in self.custom_groups)])
        )

    def group_of(self, rank: int, axis: str | Sequence[str]) -> Group:
        """The group that a rank is in, along an axis or axes.

        Parameters
        ----------
        rank : int
            A global rank.
        axis : str or sequence of str
            As in `group_set`.

        Raises
        ------
        MeshError
            If there is no such rank or axis, or the rank is in none of the groups.

        Examples
        --------
        >>> from meshlab.mesh.mesh import DeviceMesh
        >>> DeviceMesh("dp=2, tp=4").group_of(6, "tp")
        Group('tp_1', [4, 5, 6, 7])
        """
        return self.group_set(axis).of(rank)

    @property
    def grouped_axes(self) -> Mapping[str, Groups]:
        """The groups of every axis, by axis name, in the order in which communicators are created."""
        return MappingProxyType({name: self.groups(name) for name in self.axis_names})

    @property
    def creation_order(self) -> tuple[str, ...]:
        """In which order every rank creates its communicators: the axes, then the groups added by hand.

        Along an axis all groups are created together, by one split of the world.

        Examples
        --------
        >>> from meshlab.mesh.mesh import DeviceMesh
        >>> DeviceMesh("dp=2, tp=2").with_group("pair", [3, 0]).creation_order
        ('dp', 'tp', 'pair')
        """
        return (*self.axis_names, *(group.name for group in self.custom_groups))

    def with_group(self, name: str, ranks: Sequence[int] | npt.NDArray[Any]) -> Self:
        """Add a group by hand and return the new mesh.

        Parameters
        ----------
        name : str
            An identifier that no axis or group has yet.
        ranks : sequence of int
            The members; their order is kept and is the order inside the group.

        Raises
        ------
        MeshError
            If the name is taken, or the ranks are empty, repeated or outside the mesh.

        Examples
        --------
        >>> from meshlab.mesh.mesh import DeviceMesh
        >>> DeviceMesh("dp=2, tp=2").with_group("diagonal", [3, 0]).group("diagonal")
        Group('diagonal', [3, 0])
        """
        check_axis_name(name, "a group")
        front, _, end = name.rpartition("_")
        taken = {*self.axis_names, *(group.name for group in self.custom_groups)}
        if name in taken or (front in self.axis_names and (end == "group" or end.isdecimal())):
            raise MeshError(f"the name {name!r} is taken; choose another for the new group")
        given = np.asarray(list(ranks))
        if given.size == 0:
            raise MeshError(f"the group {name!r} has no ranks; give at least one")
        if given.dtype.kind not in "iu" or given.ndim != 1:
            raise MeshError(f"the ranks of group {name!r} must be one list of whole numbers, not {short(list(ranks))}")
        outside = given[(given < 0) | (given >= self.world_size)]
        if outside.size:
            raise MeshError(f"rank {outside[0]} does not exist; ranks go from 0 to {self.world_size - 1}")
        idle = given[self.positions[given] < 0]
        if idle.size:
            are = "is" if idle.size == 1 else "are"
            raise MeshError(f"{idle_text(idle.tolist())} of group {name!r} {are} idle in this mesh; leave them out")
        values, counts = np.unique(given, return_counts=True)
        if counts.max() > 1:
            raise MeshError(f"rank {values[counts.argmax()]} stands {counts.max()} times in group {name!r}")
        return self._with_custom_groups((*self.custom_groups, Group(name, given)))

    def without_group(self, name: str) -> Self:
        """Drop a group that was added by hand and return the new mesh.

        Raises
        ------
        MeshError
            If no group that was added by hand has that name.
        """
        kept = tuple(group for group in self.custom_groups if group.name != name)
        if len(kept) == len(self.custom_groups):
            names = ", ".join(group.name for group in self.custom_groups) or "none"
            raise MeshError(f"no group {short(name)} was added by hand; there are: {names}")
        return self._with_custom_groups(kept)

    def _with_custom_groups(self, groups: tuple[Group, ...]) -> Self:
        mesh = object.__new__(type(self))
        mesh.__dict__.update({name: value for name, value in self.__dict__.items() if name != "fingerprint"})
        mesh.__dict__.update(custom_groups=groups)
        return mesh

    # -- pipelines and levels ------------------------------------------------------------------------------------------

    def stages(self, axis: str = "pp") -> Groups:
        """The ranks of every stage of a pipeline: those that share a coordinate on `axis`.

        Examples
        --------
        >>> from meshlab.mesh.mesh import DeviceMesh
        >>> DeviceMesh("pp=2, dp=1, tp=2").stages().array.tolist()
        [[0, 1], [2, 3]]
        """
        size = self.size(axis)
        rows = np.moveaxis(self.ranks, self._axis_index(axis), 0).reshape(size, -1)
        return Groups(f"{axis}_stage", rows, world_size=self.world_size)

    def neighbours(self, axis: str = "pp", *, ring: bool = False) -> Ranks:
        """The pairs of ranks that pass data on along an axis.

        Parameters
        ----------
        axis : str, default "pp"
            The axis.
        ring : bool, default False
            Let the last rank of each group also send to its first.

        Returns
        -------
        numpy.ndarray
            int32 of shape (pairs, 2): sender and receiver, group by group. A group of one has none.

        Examples
        --------
        >>> from meshlab.mesh.mesh import DeviceMesh
        >>> DeviceMesh("pp=3, dp=2").neighbours().tolist()
        [[0, 2], [2, 4], [1, 3], [3, 5]]
        """
        rows = self.groups(axis).array
        receivers = np.roll(rows, -1, axis=1) if ring and rows.shape[1] > 1 else rows[:, 1:]
        return np.stack([rows[:, : receivers.shape[1]], receivers], axis=-1).reshape(-1, 2)

    def hierarchy(self, axis: str | Sequence[str], nodes: int | npt.ArrayLike) -> Hierarchy:
        """Cut the groups of an axis in two levels: inside a node, and across nodes.

        Parameters
        ----------
        axis : str or sequence of str
            As in `group_set`.
        nodes : int or array_like of int
            How many ranks a node has, or for every global rank the number of its node.

        Returns
        -------
        Hierarchy
            Its ``inner`` and ``outer`` groups, with ``color`` and ``key`` for two splits.

        Raises
        ------
        MeshError
            If a group has unlike numbers of ranks on its nodes.

        Examples
        --------
        >>> from meshlab.mesh.mesh import DeviceMesh
        >>> levels = DeviceMesh("dp=8").hierarchy("dp", nodes=4)
        >>> levels.inner.array.tolist(), levels.outer.array.tolist()
        ([[0, 1, 2, 3], [4, 5, 6, 7]], [[0, 4], [1, 5], [2, 6], [3, 7]])
        """
        return cut_groups(self.group_set(axis), nodes)


class Transforms(Layout):
    """The methods of a mesh that return another mesh."""

    @abstractmethod
    def _derived(
        self, pairs: Sequence[tuple[str, int]], ranks: npt.NDArray[Any], came_from: Mapping[str, str] | None = None
    ) -> Self:
        """Another mesh of the same world; `came_from` says which old axis a new name continues, if names change."""

    @property
    def _pairs(self) -> list[tuple[str, int]]:
        return [(axis.name, axis.size) for axis in self.axes]

    def _permutation(self, axes: Sequence[str]) -> tuple[int, ...]:
        missing = [name for name in self.axis_names if name not in axes]
        indices = self._axis_indices(axes)
        if missing:
            raise MeshError(f"name every axis once; {', '.join(missing)} is missing")
        return indices

    def reorder(self, *axes: str) -> Self:
        """The same axes in another order over the same ranks: another axis becomes the fastest, so the groups change.

        Parameters
        ----------
        *axes : str
            Every axis once, slowest first.

        Raises
        ------
        MeshError
            If an axis is missing, unknown or repeated.

        See Also
        --------
        transpose : another order of the axes that keeps who is in which group.

        Examples
        --------
        >>> from meshlab.mesh.mesh import DeviceMesh
        >>> mesh = DeviceMesh("dp=2, tp=4").reorder("tp", "dp")
        >>> mesh, mesh.group("tp_0")
        (DeviceMesh('tp=4, dp=2'), Group('tp_0', [0, 2, 4, 6]))
        """
        pairs = [self._pairs[index] for index in self._permutation(axes)]
        return self._derived(pairs, self.ranks.reshape(-1))

    def transpose(self, *axes: str) -> Self:
        """The same axes in another order, each rank at its old coordinates: groups keep their members.

        Parameters
        ----------
        *axes : str
            Every axis once, slowest first.

        Raises
        ------
        MeshError
            If an axis is missing, unknown or repeated.

        See Also
        --------
        reorder : another order of the axes that changes which is the fastest.

        Examples
        --------
        >>> from meshlab.mesh.mesh import DeviceMesh
        >>> mesh = DeviceMesh("dp=2, tp=4").transpose("tp", "dp")
        >>> mesh, mesh.group("tp_0")
        (DeviceMesh('dp=2, tp=4').transpose('tp', 'dp'), Group('tp_0', [0, 1, 2, 3]))
        """
        indices = self._permutation(axes)
        return self._derived([self._pairs[index] for index in indices], self.ranks.transpose(indices).reshape(-1))

    def rename(self, **names: str) -> Self:
        """The same mesh with other axis names.

        Parameters
        ----------
        **names : str
            ``old="new"``.

        Raises
        ------
        MeshError
            If an axis is unknown or a new name is taken or not possible.

        Examples
        --------
        >>> from meshlab.mesh.mesh import DeviceMesh
        >>> DeviceMesh("dp=2, tp=4").rename(dp="data")
        DeviceMesh('data=2, tp=4')
        """
        self._axis_indices(tuple(names))
        pairs = [(names.get(name, name), size) for name, size in self._pairs]
        return self._derived(pairs, self.ranks.reshape(-1), {names.get(n, n): n for n in self.axis_names})

    def flatten(self, *axes: str, name: str | None = None) -> Self:
        """Merge axes into one, whose groups are exactly the groups that spanned them.

        Parameters
        ----------
        *axes : str
            At least one axis; the last counts fastest inside the new one.
        name : str, optional
            The name of the new axis; the old names with underscores between when left out.

        Raises
        ------
        MeshError
            If an axis is unknown or repeated, or the name is taken.

        Examples
        --------
        >>> from meshlab.mesh.mesh import DeviceMesh
        >>> mesh = DeviceMesh("dp=2, cp=2, tp=2")
        >>> flat = mesh.flatten("dp", "cp")
        >>> flat, flat.group("dp_cp_0")
        (DeviceMesh('dp_cp=4, tp=2'), Group('dp_cp_0', [0, 2, 4, 6]))
        """
        inside = self._axis_indices(axes)
        new = ("_".join(axes) if name is None else name, self.size(*axes))
        spot = max(inside)  # at the fastest of them, so that neighbouring axes merge without moving a rank
        order: list[int] = []
        pairs: list[tuple[str, int]] = []
        for index in range(len(self.axes)):
            if index == spot:
                order += inside
                pairs.append(new)
            elif index not in inside:
                order.append(index)
                pairs.append(self._pairs[index])
        return self._derived(pairs, self.ranks.transpose(order).reshape(-1))

    def split_axis(self, axis: str, parts: AxesLike | None = None, /, **sizes: int) -> Self:
        """Cut one axis into several; no rank moves.

        Parameters
        ----------
        axis : str
            The axis to cut.
        parts : str, mapping or sequence of (str, int), optional
            The new axes, slowest first; one size may be -1.
        **sizes : int
            The new axes as keywords instead.

        Raises
        ------
        MeshError
            If the sizes do not multiply to the size of the axis, or a name is taken.

        Examples
        --------
        >>> from meshlab.mesh.mesh import DeviceMesh
        >>> DeviceMesh("dp=8, tp=2").split_axis("dp", dp_replicate=2, dp_shard=-1)
        DeviceMesh('dp_replicate=2, dp_shard=4, tp=2')
        """
        index = self._axis_index(axis)
        if (parts is None) == (not sizes):
            raise MeshError("give the parts of the axis as one text or as keywords, and only once")
        try:
            new = fill_axes(axis_pairs(sizes if parts is None else parts), self.axes[index].size)
        except MeshError as error:
            raise MeshError(f"{self.axes[index]} cannot be cut this way: {error}") from None
        pairs = [*self._pairs[:index], *((part.name, part.size) for part in new), *self._pairs[index + 1 :]]
        return self._derived(
            pairs, self.ranks.reshape(-1), {name: name for name in self.axis_names} | {part.name: axis for part in new}
        )

    def select(self, **places: int | slice | Sequence[int]) -> Self:
        """The part of the mesh at the given coordinates; the other ranks become idle.

        Parameters
        ----------
        **places : int, slice or sequence of int
            Per axis: one coordinate, which removes the axis, or several, which shorten it.

        Returns
        -------
        DeviceMesh
            It keeps the global ranks and the world size.

        Raises
        ------
        MeshError
            If an axis is unknown, a coordinate lies outside it, or no axis would be left.

        Examples
        --------
        >>> from meshlab.mesh.mesh import DeviceMesh
        >>> stage = DeviceMesh("pp=2, dp=2, tp=2").select(pp=1)
        >>> stage.ranks.tolist(), stage.idle_ranks.tolist()
        ([[4, 5], [6, 7]], [0, 1, 2, 3])
        """
        for name in places:
            self._axis_index(name)
        pairs: list[tuple[str, int]] = []
        index: list[Any] = []
        for axis in self.axes:
            place = places.get(axis.name, slice(None))
            if isinstance(place, slice):
                chosen = list(range(axis.size)[place])
            elif isinstance(place, (Sequence, np.ndarray)):
                chosen = [check_coordinate(axis, value) for value in place]
            else:
                index.append([check_coordinate(axis, place)])
                continue
            if not chosen:
                raise MeshError(f"{axis.name}={place!r} selects no rank; the axis goes from 0 to {axis.size - 1}")
            pairs.append((axis.name, len(chosen)))
            index.append(chosen)
        if not pairs:
            raise MeshError("one coordinate on every axis leaves a single rank, not a mesh; rank_at() gives that rank")
        return self._derived(pairs, self.ranks[np.ix_(*index)].reshape(-1))

    def submesh(self, *axes: str, rank: int) -> Self:
        """The mesh over some axes that one rank sees: the ranks that differ from it only there.

        Raises
        ------
        MeshError
            If an axis is unknown, or there is no such rank.

        Examples
        --------
        >>> from meshlab.mesh.mesh import DeviceMesh
        >>> DeviceMesh("dp=2, pp=2, cp=2").submesh("dp", "cp", rank=5).ranks.tolist()
        [[0, 1], [4, 5]]
        """
        self._axis_indices(axes)
        here = self.coordinates(rank)
        part = self.select(**{name: place for name, place in here.items() if name not in axes})
        return part.transpose(*axes)

    def reshape(self, axes: AxesLike | None = None, /, **sizes: int) -> Self:
        """Other axes over the same ranks; groups, names and numbers are made anew.

        Parameters
        ----------
        axes : str, mapping or sequence of (str, int), optional
            The new axes; one size may be -1.
        **sizes : int
            The new axes as keywords instead.

        Raises
        ------
        MeshError
            If the sizes do not multiply to the ranks of this mesh, or a group that was added by hand has a name that
            now means something else.

        Examples
        --------
        >>> from meshlab.mesh.mesh import DeviceMesh
        >>> DeviceMesh("dp=2, tp=4").reshape("pp=2, dp=-1, tp=2")
        DeviceMesh('pp=2, dp=2, tp=2')
        """
        if (axes is None) == (not sizes):
            raise MeshError("give the new axes as one text or as keywords, and only once")
        new = fill_axes(axis_pairs(sizes if axes is None else axes), self.size())
        return self._derived([(axis.name, axis.size) for axis in new], self.ranks.reshape(-1))

    def view(self, axes: AxesLike | None = None, /, **sizes: int) -> Self:
        """A second factorisation of the same ranks, such as the layout of experts beside the dense one.

        Like `reshape`, and an axis that both meshes name must have the same groups in both.

        Parameters
        ----------
        axes : str, mapping or sequence of (str, int), optional
            The axes of the view; one size may be -1.
        **sizes : int
            The axes as keywords instead.

        Raises
        ------
        MeshError
            If the sizes do not multiply to the ranks of this mesh, or a shared axis would have other groups.

        Examples
        --------
        >>> from meshlab.mesh.mesh import DeviceMesh
        >>> dense = DeviceMesh("pp=2, dp=4, tp=8")
        >>> experts = dense.view("pp=2, edp=2, ep=16")
        >>> experts.group("pp_0") == dense.group("pp_0")
        True
        """
        view = self.reshape(axes, **sizes)
        for name in self.axis_names:
            if name in view.axis_names:
                self._check_shared(name, view)
        return view

    def _check_shared(self, name: str, view: Layout) -> None:
        index = self._axis_index(name)
        here = self._group_array((index,))
        there = view._group_array((view._axis_index(name),))
        if here.shape == there.shape and np.array_equal(here, there):
            return
        first = 0
        if here.shape == there.shape:
            first = int(np.flatnonzero((here != there).any(axis=1))[0])
        raise MeshError(
            f"the axis {name!r} is in both meshes, but means other groups: {name}_{first} is {ranks_text(here[first])} "
            f"in {format_axes(self.axes)} and {ranks_text(there[first])} in {format_axes(view.axes)}; "
            f"give it size {self.axes[index].size} and axes behind it that multiply to "
            f"{math.prod(self.shape[index + 1 :])}, or another name"
        )


_BACKEND = re.compile(r"[a-z][a-z0-9_.:,+-]*")


class DeviceMesh(Grouping, Transforms):
    """Named axes over ranks, in row-major order: the last axis is the fastest.

    A value: it never changes, compares by what it says, and holds no devices and no processes. The order of the axes
    is also the order in which communicators are created, the same on every rank.

    Parameters
    ----------
    axes : str, mapping or sequence of (str, int), optional
        Such as ``"dp=2, tp=4"``. One size may be -1 and takes the ranks that are left.
    world_size : int, optional
        How many ranks there are; needed for -1, and checked otherwise.
    ranks : array_like of int, optional
        Which rank lies where, in row-major order of the axes; 0, 1, 2, … when left out. The order is kept inside every
        group, so it is the order of a ring. With `world_size` it may leave ranks out, which are then idle.
    backends : mapping of str to str, optional
        The name of a communication backend for some axes, such as ``{"pp": "gloo"}``.
    **sizes : int
        The axes as keywords instead: ``DeviceMesh(dp=2, tp=4)``.

    Raises
    ------
    MeshError
        If names, sizes or ranks are not possible; the message names the nearest that are.
    ParseError
        If the text cannot be read.

    Examples
    --------
    >>> mesh = DeviceMesh("dp=2, tp=4")
    >>> mesh
    DeviceMesh('dp=2, tp=4')
    >>> [group.ranks for group in mesh.groups("tp")]
    [(0, 1, 2, 3), (4, 5, 6, 7)]
    >>> mesh.coordinates(6), mesh.rank_at(dp=1, tp=2)
    ({'dp': 1, 'tp': 2}, 6)
    >>> DeviceMesh("dp=-1, tp=8", world_size=64).shape
    (8, 8)
    """

    backends: Mapping[str, str]
    """The backend's name for some axes, in the order of the axes."""

    def __init__(
        self,
        axes: AxesLike | None = None,
        /,
        *,
        world_size: int | None = None,
        ranks: npt.ArrayLike | None = None,
        backends: Mapping[str, str] | None = None,
        **sizes: int,
    ) -> None:
        if axes is not None and sizes:
            raise MeshError("give the axes as one text or as keywords, not both")
        placed = place_ranks(axis_pairs(sizes if axes is None else axes), ranks, world_size)
        self.__dict__.update(axes=placed[0], _order=placed[1], world_size=placed[2], custom_groups=(), _group_cache={})
        self.__dict__.update(backends=self._check_backends(backends or {}))

    def _check_backends(self, backends: Mapping[str, str]) -> Mapping[str, str]:
        for axis, backend in backends.items():
            self._axis_index(axis)
            if not isinstance(backend, str) or _BACKEND.fullmatch(backend) is None:
                raise MeshError(f"{short(backend)} cannot name the backend of {axis!r}; write a name such as 'nccl'")
        return MappingProxyType({name: backends[name] for name in self.axis_names if name in backends})

    def _derived(
        self, pairs: Sequence[tuple[str, int]], ranks: npt.NDArray[Any], came_from: Mapping[str, str] | None = None
    ) -> Self:
        old_names = {name: (came_from or {}).get(name, name) for name, _ in pairs}
        backends = {new: self.backends[old] for new, old in old_names.items() if old in self.backends}
        mesh = type(self)(pairs, ranks=ranks, world_size=self.world_size, backends=backends)
        for group in self.custom_groups:
            try:
                mesh = mesh.with_group(group.name, group.array)
            except MeshError as error:
                raise MeshError(
                    f"the group {group.name!r} cannot be kept: {error}; first drop it, without_group({group.name!r})"
                ) from None
        return mesh

    # -- the four usual layouts ----------------------------------------------------------------------------------------

    @classmethod
    def data_parallel(cls, ranks: int) -> DeviceMesh:
        """Every rank holds the whole model: one group of all ranks along ``dp``.

        Examples
        --------
        >>> DeviceMesh.data_parallel(4).group("dp_0")
        Group('dp_0', [0, 1, 2, 3])
        """
        return cls([("dp", ranks)])

    @classmethod
    def tensor_parallel(cls, degree: int, world_size: int | None = None) -> DeviceMesh:
        """Every layer is cut over `degree` neighbouring ranks; ``dp`` takes the rest of the world.

        Raises
        ------
        MeshError
            If `degree` does not divide `world_size`.

        Examples
        --------
        >>> DeviceMesh.tensor_parallel(4, world_size=8)
        DeviceMesh('dp=2, tp=4')
        """
        return cls([("dp", -1), ("tp", degree)], world_size=degree if world_size is None else world_size)

    @classmethod
    def pipeline_parallel(cls, stages: int, world_size: int | None = None) -> DeviceMesh:
        """The layers are cut into stages; the ranks of one stage are neighbours, along ``dp``.

        Raises
        ------
        MeshError
            If `stages` does not divide `world_size`.

        Examples
        --------
        >>> mesh = DeviceMesh.pipeline_parallel(2, world_size=4)
        >>> mesh, mesh.group("pp_0"), mesh.stages()[1]
        (DeviceMesh('pp=2, dp=2'), Group('pp_0', [0, 2]), Group('pp_stage_1', [2, 3]))
        """
        return cls([("pp", stages), ("dp", -1)], world_size=stages if world_size is None else world_size)

    @classmethod
    def mixed(cls, tp: int, pp: int, dp: int, world_size: int | None = None) -> DeviceMesh:
        """Tensor, pipeline and data parallel together: ``tp`` the fastest, then ``dp``, then ``pp``.

        One of the degrees may be -1 when `world_size` is given.

        Raises
        ------
        MeshError
            If the degrees do not multiply to `world_size`.

        Examples
        --------
        >>> DeviceMesh.mixed(tp=8, pp=2, dp=-1, world_size=64)
        DeviceMesh('pp=2, dp=4, tp=8')
        """
        return cls([("pp", pp), ("dp", dp), ("tp", tp)], world_size=world_size)

    # -- frames, words and other frameworks ----------------------------------------------------------------------------

    def membership(self) -> pd.DataFrame:
        """One row per rank of the mesh: its coordinates, and its group on every axis.

        Returns
        -------
        pandas.DataFrame
            Columns ``rank``, one integer column per axis, then ``<axis>_group`` with the group's name per axis
            (categorical), and one boolean column per group added by hand.

        Examples
        --------
        >>> print(DeviceMesh("dp=2, tp=2").membership().to_string(index=False))
         rank  dp  tp dp_group tp_group
            0   0   0     dp_0     tp_0
            1   0   1     dp_1     tp_0
            2   1   0     dp_0     tp_1
            3   1   1     dp_1     tp_1
        """
        return membership(self)

    def stats(self) -> pd.DataFrame:
        """One row per axis and per group added by hand: size, number of groups, stride, backend, first group.

        Returns
        -------
        pandas.DataFrame
            The column ``stride`` is the distance in global rank between neighbours, missing where it varies.

        Examples
        --------
        >>> print(DeviceMesh("dp=2, tp=4").stats()[["axis", "size", "groups", "stride"]].to_string(index=False))
        axis  size  groups  stride
          dp     2       4       4
          tp     4       2       1
        """
        return stats(self)

    def proof(self, *axis_sets: Sequence[str]) -> pd.DataFrame:
        """Prove that the groups are sound.

        Every rank works out from its own coordinates alone, without the table of groups, which group it is in and at
        which place. `same_order` says that all of them arrive at the table.

        Parameters
        ----------
        *axis_sets : sequence of str
            Which sets of axes to look at; every set of axes of this mesh when left out.

        Returns
        -------
        pandas.DataFrame
            One row per set of axes: ``axes``, ``groups``, ``size``, and the findings ``disjoint`` (no rank is in two
            groups), ``covers`` (every rank of the mesh is in one), ``equal_size`` and ``same_order`` (every rank
            numbers the groups, and itself inside its group, alike).

        Raises
        ------
        MeshError
            If an axis is unknown, or there are more than ten axes and no set was named.

        Examples
        --------
        >>> print(DeviceMesh("dp=2, tp=4").proof().to_string(index=False))
         axes  groups  size  disjoint  covers  equal_size  same_order
           dp       4     2      True    True        True        True
           tp       2     4      True    True        True        True
        dp-tp       1     8      True    True        True        True
        """
        return proof(self, axis_sets)

    def explain(self, ranks_per_node: int = 8) -> str:
        """Say in words how the ranks are laid out: which axis is the fastest, and what that means.

        Parameters
        ----------
        ranks_per_node : int, default 8
            How many ranks a node has, to say which groups leave it.

        Examples
        --------
        >>> print(DeviceMesh("dp=2, tp=4").explain(ranks_per_node=4))
        dp=2, tp=4: 8 ranks; the last axis is the fastest.
        tp, tensor parallel: the fastest; its first group is ranks 0 to 3, next to each other.
        dp, data parallel: its first group is ranks 0 and 4, 4 apart.
        On nodes of 4 ranks, tp stays inside a node; dp leaves it.
        torch and JAX write the axes in this order: (dp, tp). Megatron writes the fastest first: tp-dp.
        """
        return explain(self, ranks_per_node)

    def to(self, framework: str, *, experts: DeviceMesh | None = None) -> Recipe:
        """The same layout in the words of another framework.

        Parameters
        ----------
        framework : str
            ``torch``, ``jax``, ``megatron``, ``megatron-flags``, ``hypercomm``, ``deepspeed``, ``vllm`` or
            ``torchtitan``.
        experts : DeviceMesh, optional
            A `view` of this mesh that says where the experts are, for the frameworks that take both.

        Returns
        -------
        Recipe
            Its ``text`` is code or flags, its ``arguments`` the same as a dict, its ``notes`` what does not carry over.

        Raises
        ------
        MeshError
            If the framework has no words for this layout.

        Examples
        --------
        >>> DeviceMesh("dp=2, tp=4").to("torch")
        init_device_mesh("cuda", (2, 4), mesh_dim_names=("dp", "tp"))
        """
        from meshlab.mesh.interop.frameworks import write_mesh

        return write_mesh(self, framework, experts=experts)

    # -- identity and looks --------------------------------------------------------------------------------------------

    @cached_property
    def fingerprint(self) -> str:
        """A short stable hash of the whole value; it stands in every frame and report.

        Two meshes have the same fingerprint only if axes, sizes, order, ranks, backends and added groups agree. It
        does not depend on the machine, the process or the Python version.

        Examples
        --------
        >>> DeviceMesh("dp=2, tp=2").fingerprint == DeviceMesh(dp=2, tp=2).fingerprint
        True
        """
        digest = hashlib.sha256(format_axes(self.axes).encode())
        if self._order is not None:
            digest.update(f"\nranks of {self.world_size}:".encode())
            digest.update(self._order.astype("<i4").tobytes())
        for axis, backend in self.backends.items():
            digest.update(f"\n{axis} on {backend}".encode())
        for group in self.custom_groups:
            digest.update(f"\n{group.name}:{','.join(map(str, group.array.tolist()))}".encode())
        return digest.hexdigest()[:12]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DeviceMesh):
            return NotImplemented
        same = (self.axes, self.world_size, self.backends) == (other.axes, other.world_size, other.backends)
        return same and np.array_equal(self.ranks, other.ranks) and self.custom_groups == other.custom_groups

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __reduce__(self) -> tuple[object, ...]:
        order = None if self._order is None else np.array(self._order)
        return (_rebuild_mesh, (self._pairs, order, self.world_size, dict(self.backends), self.custom_groups))

    def __str__(self) -> str:
        return format_axes(self.axes)

    def __repr__(self) -> str:
        return source(self)

    def _repr_html_(self) -> str:
        return html(self)


def _rebuild_mesh(
    pairs: Sequence[tuple[str, int]],
    order: Ranks | None,
    world_size: int,
    backends: Mapping[str, str],
    groups: Sequence[Group],
) -> DeviceMesh:
    mesh = DeviceMesh(pairs, ranks=order, world_size=world_size, backends=backends)
    for group in groups:
        mesh = mesh.with_group(group.name, group.array)
    return mesh


MeshLike = DeviceMesh | str
"""A mesh, or text such as ``"dp=2, tp=4"``."""


def as_mesh(given: MeshLike, fill: int | None = None) -> DeviceMesh:
    """The mesh that was given as such or as text.

    Parameters
    ----------
    given : DeviceMesh or str
    fill : int, optional
        How many ranks there are, for a size of -1 in the text.

    Raises
    ------
    MeshError
        If it is neither, or the text is no possible mesh.
    ParseError
        If the text cannot be read.

    Examples
    --------
    >>> as_mesh("dp=2, tp=4")
    DeviceMesh('dp=2, tp=4')
    >>> as_mesh("dp=-1, tp=4", fill=16)
    DeviceMesh('dp=4, tp=4')
    """
    if isinstance(given, DeviceMesh):
        return given
    if isinstance(given, str):
        axes = parse_axes(given)
        return DeviceMesh(axes, world_size=fill if any(size == -1 for _, size in axes) else None)
    raise MeshError(
        f"a mesh is a DeviceMesh or its text, not {type(given).__name__}; give one such as DeviceMesh('dp=2, tp=4')"
    )
