"""DeviceMesh: named axes over ranks."""

from __future__ import annotations

import hashlib
import math
import operator
from collections.abc import Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from meshlab import markup
from meshlab.errors import MeshError
from meshlab.mesh.axes import WORLD, Axis, check_axis_name, fill_axes, format_axes, parse_axes
from meshlab.mesh.groups import Group, Groups, Ranks, groups_name

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["DeviceMesh"]


class DeviceMesh:
    """Named axes over ranks, in row-major order: the last axis is the fastest.

    A value: it never changes, compares by what it says, and holds no devices and no processes.

    Parameters
    ----------
    axes : str, mapping or sequence of (str, int), optional
        Such as ``"dp=2, tp=4"``. One size may be -1 and takes the ranks that are left.
    world_size : int, optional
        How many ranks there are; needed for -1, and checked otherwise.
    **sizes : int
        The axes as keywords instead: ``DeviceMesh(dp=2, tp=4)``.

    Raises
    ------
    MeshError
        If names or sizes are not possible; the message names the nearest that are.
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

    axes: tuple[Axis, ...]
    """The axes, slowest first."""

    custom_groups: tuple[Group, ...]
    """Groups that were added by hand, in the order in which they were added."""

    def __init__(
        self,
        axes: str | Mapping[str, int] | Sequence[tuple[str, int]] | None = None,
        /,
        *,
        world_size: int | None = None,
        **sizes: int,
    ) -> None:
        if axes is not None and sizes:
            raise MeshError("give the axes as one text or as keywords, not both")
        if axes is None:
            pairs: Sequence[tuple[str, int]] = tuple(sizes.items())
        elif isinstance(axes, str):
            pairs = parse_axes(axes)
        elif isinstance(axes, Mapping):
            pairs = tuple(axes.items())
        else:
            pairs = tuple(axes)
        self._set("axes", fill_axes(pairs, world_size))
        self._set("custom_groups", ())

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a DeviceMesh does not change; {name!r} cannot be set")

    # -- shape ---------------------------------------------------------------------------------------------------------

    @property
    def axis_names(self) -> tuple[str, ...]:
        """The names of the axes, slowest first."""
        return tuple(axis.name for axis in self.axes)

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the axes, slowest first."""
        return tuple(axis.size for axis in self.axes)

    @cached_property
    def world_size(self) -> int:
        """How many ranks the mesh has."""
        return math.prod(self.shape)

    def size(self, *axes: str) -> int:
        """How many ranks lie along one or several axes together.

        Examples
        --------
        >>> DeviceMesh("pp=2, dp=3, tp=4").size("dp", "tp")
        12
        """
        return math.prod(self.axes[self._axis_index(name)].size for name in axes)

    @cached_property
    def ranks(self) -> Ranks:
        """The global ranks as int32 in the shape of the mesh."""
        ranks = np.arange(self.world_size, dtype=np.int32).reshape(self.shape)
        ranks.flags.writeable = False
        return ranks

    def _axis_index(self, name: str) -> int:
        for index, axis in enumerate(self.axes):
            if axis.name == name:
                return index
        raise MeshError(f"there is no axis {name!r}; this mesh has {', '.join(self.axis_names)}")

    # -- coordinates ---------------------------------------------------------------------------------------------------

    def coordinates(self, rank: int) -> dict[str, int]:
        """Where a rank lies on every axis.

        Raises
        ------
        MeshError
            If there is no such rank.

        Examples
        --------
        >>> DeviceMesh("dp=2, tp=4").coordinates(5)
        {'dp': 1, 'tp': 1}
        """
        rank = self._check_rank(rank)
        return dict(zip(self.axis_names, (int(i) for i in np.unravel_index(rank, self.shape)), strict=True))

    @cached_property
    def coordinate_array(self) -> Ranks:
        """The coordinates of all ranks: int32 of shape (world_size, axes), one row per rank."""
        grid = np.indices(self.shape, dtype=np.int32).reshape(len(self.axes), -1)
        coordinates = np.ascontiguousarray(grid.T)
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
        >>> DeviceMesh("dp=2, tp=4").rank_at(tp=1, dp=1)
        5
        """
        for name in coordinates:
            self._axis_index(name)
        missing = [name for name in self.axis_names if name not in coordinates]
        if missing:
            raise MeshError(f"a rank needs a coordinate on every axis; {', '.join(missing)} is missing")
        place = []
        for axis in self.axes:
            value = operator.index(coordinates[axis.name])
            if not 0 <= value < axis.size:
                raise MeshError(f"{axis.name}={value} lies outside the axis; it goes from 0 to {axis.size - 1}")
            place.append(value)
        return int(self.ranks[tuple(place)])

    def _check_rank(self, rank: int) -> int:
        number = operator.index(rank)
        if not 0 <= number < self.world_size:
            raise MeshError(f"rank {number} does not exist; ranks go from 0 to {self.world_size - 1}")
        return number

    # -- groups --------------------------------------------------------------------------------------------------------

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
            Together they contain every rank exactly once.

        Raises
        ------
        MeshError
            If an axis is unknown or stands twice.

        Examples
        --------
        >>> mesh = DeviceMesh("dp=2, cp=2, tp=2")
        >>> mesh.groups("dp", "cp").array.tolist()
        [[0, 2, 4, 6], [1, 3, 5, 7]]
        """
        if not axes:
            raise MeshError(f"name at least one axis; this mesh has {', '.join(self.axis_names)}")
        inside = [self._axis_index(name) for name in axes]
        if len(set(inside)) != len(inside):
            raise MeshError(f"an axis stands twice in {', '.join(axes)}")
        return self._groups(tuple(inside))

    def _groups(self, inside: tuple[int, ...]) -> Groups:
        cache: dict[tuple[int, ...], Groups] = self.__dict__.setdefault("_group_cache", {})
        if inside not in cache:
            outside = [index for index in range(len(self.axes)) if index not in inside]
            size = math.prod(self.shape[index] for index in inside)
            array = self.ranks.transpose(*outside, *inside).reshape(-1, size)
            names = tuple(self.axes[index].name for index in inside)
            cache[inside] = Groups(groups_name(names), array, world_size=self.world_size, axes=names)
        return cache[inside]

    @property
    def world(self) -> Group:
        """The group of all ranks."""
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
        >>> mesh = DeviceMesh("dp=2, tp=2").with_group("pair", [3, 0])
        >>> mesh.group_set("tp").array.tolist(), mesh.group_set("pair").array.tolist()
        ([[0, 1], [2, 3]], [[3, 0]])
        """
        if not isinstance(axis, str):
            return self.groups(*axis)
        if axis in self.axis_names:
            return self.groups(axis)
        parts = axis.split("-")
        if len(parts) > 1 and all(part in self.axis_names for part in parts):
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
        >>> DeviceMesh("dp=2, tp=2").group("dp_1")
        Group('dp_1', [1, 3])
        """
        if name == WORLD:
            return self.world
        for group in self.custom_groups:
            if group.name == name:
                return group
        axes, _, number = name.rpartition("_")
        parts = axes.split("-")
        if number.isdecimal() and all(part in self.axis_names for part in parts):
            groups = self.groups(*parts)
            if int(number) < len(groups):
                return groups[int(number)]
            raise MeshError(
                f"there is no group {name!r}; {axes} has {len(groups)} groups, {axes}_0 to {axes}_{len(groups) - 1}"
            )
        raise MeshError(
            f"there is no axis or group {name!r}; there are the axes {', '.join(self.axis_names)} and the groups "
            + ", ".join(
                [WORLD, *(f"{n}_0…{n}_{len(self.groups(n)) - 1}" for n in self.axis_names)]
                + [g.name for g in self.custom_groups]
            )
        )

    def with_group(self, name: str, ranks: Sequence[int] | Ranks) -> DeviceMesh:
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
        >>> DeviceMesh("dp=2, tp=2").with_group("diagonal", [3, 0]).group("diagonal")
        Group('diagonal', [3, 0])
        """
        check_axis_name(name)
        taken = {*self.axis_names, *(group.name for group in self.custom_groups)}
        axes, _, number = name.rpartition("_")
        if name in taken or (number.isdecimal() and axes in self.axis_names):
            raise MeshError(f"the name {name!r} is taken; choose another for the new group")
        given = np.asarray(list(ranks))
        if given.size == 0:
            raise MeshError(f"the group {name!r} has no ranks; give at least one")
        if given.dtype.kind not in "iu":
            raise MeshError(f"the ranks of group {name!r} must be whole numbers")
        outside = given[(given < 0) | (given >= self.world_size)]
        if outside.size:
            raise MeshError(f"rank {outside[0]} does not exist; ranks go from 0 to {self.world_size - 1}")
        values, counts = np.unique(given, return_counts=True)
        if counts.max() > 1:
            raise MeshError(f"rank {values[counts.argmax()]} stands {counts.max()} times in group {name!r}")
        new = DeviceMesh([(axis.name, axis.size) for axis in self.axes])
        new._set("custom_groups", (*self.custom_groups, Group(name, given.astype(np.int32))))
        return new

    # -- identity and looks --------------------------------------------------------------------------------------------

    @cached_property
    def fingerprint(self) -> str:
        """A short stable hash of the whole value; it stands in every frame and report.

        Two meshes have the same fingerprint only if axes, sizes, order and added groups agree. It does not depend on
        the machine, the process or the Python version.

        Examples
        --------
        >>> DeviceMesh("dp=2, tp=2").fingerprint == DeviceMesh(dp=2, tp=2).fingerprint
        True
        """
        digest = hashlib.sha256(format_axes(self.axes).encode())
        for group in self.custom_groups:
            digest.update(f"\n{group.name}:{','.join(map(str, group.array.tolist()))}".encode())
        return digest.hexdigest()[:12]

    def membership(self) -> pd.DataFrame:
        """One row per rank: its coordinates, and its group on every axis.

        Returns
        -------
        pandas.DataFrame
            Columns ``rank``, one integer column per axis, then ``<axis>_group`` with the group's name per axis, and one
            boolean column per group added by hand.

        Examples
        --------
        >>> print(DeviceMesh("dp=2, tp=2").membership().to_string(index=False))
         rank  dp  tp dp_group tp_group
            0   0   0     dp_0     tp_0
            1   0   1     dp_1     tp_0
            2   1   0     dp_0     tp_1
            3   1   1     dp_1     tp_1
        """
        import pandas as pd

        coordinates = self.coordinate_array
        columns: dict[str, object] = {"rank": np.arange(self.world_size, dtype=np.int32)}
        for index, name in enumerate(self.axis_names):
            columns[name] = coordinates[:, index]
        for name in self.axis_names:
            groups = self.groups(name)
            columns[f"{name}_group"] = np.asarray(groups.names, dtype=object)[groups.color]
        for group in self.custom_groups:
            columns[group.name] = np.isin(np.arange(self.world_size), group.array)
        frame = pd.DataFrame(columns)
        return (
            frame.astype({f"{name}_group": "category" for name in self.axis_names}) if self.world_size > 4096 else frame
        )

    @property
    def grouped_axes(self) -> Mapping[str, Groups]:
        """The groups of every axis, by axis name, in the order in which communicators are created."""
        return MappingProxyType({name: self.groups(name) for name in self.axis_names})

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DeviceMesh):
            return NotImplemented
        return self.axes == other.axes and self.custom_groups == other.custom_groups

    def __hash__(self) -> int:
        return hash((self.axes, self.custom_groups))

    def __reduce__(self) -> tuple[object, ...]:
        pairs = tuple((axis.name, axis.size) for axis in self.axes)
        return (_rebuild_mesh, (pairs, tuple((group.name, group.ranks) for group in self.custom_groups)))

    def __str__(self) -> str:
        return format_axes(self.axes)

    def __repr__(self) -> str:
        added = "".join(f".with_group({group.name!r}, {list(group.ranks)})" for group in self.custom_groups)
        return f"DeviceMesh({format_axes(self.axes)!r}){added}"

    def _repr_html_(self) -> str:
        rows: list[Sequence[object]] = [
            [axis.name, axis.size, len(self.groups(axis.name)), repr_ranks(self.groups(axis.name)[0])]
            for axis in self.axes
        ]
        rows += [[group.name, len(group), 1, repr_ranks(group)] for group in self.custom_groups]
        return markup.card(
            f"DeviceMesh · {self}",
            f"{self.world_size:,} ranks · {self.axes[-1].name} is the fastest axis",
            markup.table(["axis", "size", "groups", "first group"], rows),
        )


def repr_ranks(group: Group) -> str:
    """The ranks of a group as short text."""
    return repr(group).split(", ", 1)[1][:-1]


def _rebuild_mesh(pairs: Sequence[tuple[str, int]], custom: Sequence[tuple[str, Sequence[int]]]) -> DeviceMesh:
    mesh = DeviceMesh(pairs)
    for name, ranks in custom:
        mesh = mesh.with_group(name, ranks)
    return mesh
