"""The groups of a mesh: along axes, by name, added by hand, in stages, in levels."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from meshlab.errors import MeshError
from meshlab.mesh.axes import WORLD, check_axis_name, idle_text, short
from meshlab.mesh.groups import Group, Groups, Ranks, groups_name
from meshlab.mesh.hierarchy import Hierarchy, cut_groups
from meshlab.mesh.layout import Layout

__all__ = ["Grouping"]


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
