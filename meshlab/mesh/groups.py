"""Groups of ranks: the ordered members of one communicator, and all groups along an axis at once."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from meshlab.errors import MeshError
from meshlab.mesh.axes import Ranks, check_rank, idle_text

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "Group",
    "Groups",
    "Hierarchy",
    "categories",
    "cut_groups",
    "even_step",
    "frozen",
    "groups_name",
    "ranks_text",
]


_SHOWN = 16


def groups_name(axes: Sequence[str]) -> str:
    """Name the groups that span `axes`: the axis names with a dash between.

    Examples
    --------
    >>> groups_name(["dp", "cp"])
    'dp-cp'
    """
    return "-".join(axes)


def ranks_text(ranks: Ranks) -> str:
    """Write ranks for people; long groups are shortened and say how many there are.

    Examples
    --------
    >>> ranks_text(np.arange(4, dtype=np.int32)), ranks_text(np.arange(64, dtype=np.int32))
    ('[0, 1, 2, 3]', '[0, 1, 2, 3, 4, 5, 6, 7, …, 63] (64 ranks)')
    """
    if len(ranks) <= _SHOWN:
        return str(ranks.tolist())
    head = ", ".join(str(rank) for rank in ranks[: _SHOWN // 2])
    return f"[{head}, …, {ranks[-1]}] ({len(ranks):,} ranks)"


def even_step(ranks: Ranks) -> int | None:
    """How far neighbours in a group are apart in global rank; None where the distance is not the same.

    Examples
    --------
    >>> even_step(np.array([0, 8, 16])), even_step(np.array([0, 1, 3])), even_step(np.array([5]))
    (8, None, 1)
    """
    if len(ranks) == 1:
        return 1
    steps = np.diff(ranks)
    return int(steps[0]) if (steps == steps[0]).all() else None


def frozen(array: npt.ArrayLike) -> Ranks:
    """Return int32 values that nobody can change: an array that may change is copied, one that may not is kept."""
    ranks = np.ascontiguousarray(array, dtype=np.int32)
    if ranks.flags.writeable:
        ranks = ranks.copy() if ranks is array or ranks.base is not None else ranks
        ranks.flags.writeable = False
    return ranks


class Group:
    """The ordered ranks of one communicator.

    Parameters
    ----------
    name : str
        Such as ``"tp_0"``; the same on every rank.
    array : array_like of int
        The global ranks, in the order in which they number themselves 0, 1, … inside the group.
    axes : tuple of str, default ()
        The axes it spans; empty for ``world`` and for groups that were added by hand.
    index : int, default 0
        Its place among the groups of the same axes.

    Examples
    --------
    >>> group = Group("tp_1", [2, 3], axes=("tp",), index=1)
    >>> group.ranks, len(group), 3 in group, group.position(3)
    ((2, 3), 2, True, 1)
    """

    __slots__ = ("array", "axes", "index", "name")

    name: str
    array: Ranks
    axes: tuple[str, ...]
    index: int

    def __init__(self, name: str, array: npt.ArrayLike, *, axes: tuple[str, ...] = (), index: int = 0) -> None:
        put = object.__setattr__
        put(self, "name", name)
        put(self, "array", frozen(array))
        put(self, "axes", axes)
        put(self, "index", index)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Group does not change; {name!r} cannot be set")

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild_group, (self.name, np.array(self.array), self.axes, self.index))

    @property
    def ranks(self) -> tuple[int, ...]:
        """The global ranks, in order."""
        return tuple(self.array.tolist())

    def position(self, rank: int) -> int:
        """The rank's number inside the group.

        Raises
        ------
        MeshError
            If the rank is not a member.
        """
        found = np.flatnonzero(self.array == rank)
        if not len(found):
            raise MeshError(f"rank {rank} is not in group {self.name!r}, whose ranks are {ranks_text(self.array)}")
        return int(found[0])

    def __len__(self) -> int:
        return len(self.array)

    def __iter__(self) -> Iterator[int]:
        return iter(self.array.tolist())

    def __contains__(self, rank: object) -> bool:
        return bool(np.any(self.array == rank))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Group):
            return NotImplemented
        return self.name == other.name and self.axes == other.axes and np.array_equal(self.array, other.array)

    def __hash__(self) -> int:
        return hash((self.name, self.axes, self.array.tobytes()))

    def __repr__(self) -> str:
        return f"Group({self.name!r}, {ranks_text(self.array)})"


def _rebuild_group(name: str, array: Ranks, axes: tuple[str, ...], index: int) -> Group:
    return Group(name, array, axes=axes, index=index)


class Groups(Sequence[Group]):
    """All groups along some axes: a sequence of `Group` over one array.

    Parameters
    ----------
    name : str
        What the groups are called together, such as ``"tp"`` or ``"dp-cp"``.
    array : array_like of int
        Of shape (groups, size): one row of global ranks per group.
    world_size : int
        How many ranks there are in all; a group set made by hand may leave some out.
    axes : tuple of str, default ()
        The axes they span.
    single : bool, default False
        True when the one group carries the name itself, without a number behind it.

    Examples
    --------
    >>> groups = Groups("tp", [[0, 1], [2, 3]], world_size=4, axes=("tp",))
    >>> groups[1], groups.of(2).name, groups.color.tolist(), groups.key.tolist()
    (Group('tp_1', [2, 3]), 'tp_1', [0, 0, 1, 1], [0, 1, 0, 1])
    """

    name: str
    array: Ranks
    world_size: int
    axes: tuple[str, ...]
    single: bool

    def __init__(
        self,
        name: str,
        array: npt.ArrayLike,
        *,
        world_size: int,
        axes: tuple[str, ...] = (),
        single: bool = False,
    ) -> None:
        self.__dict__.update(name=name, array=frozen(array), world_size=world_size, axes=axes, single=single)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"Groups do not change; {name!r} cannot be set")

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild_groups, (self.name, np.array(self.array), self.world_size, self.axes, self.single))

    @property
    def size(self) -> int:
        """How many ranks each group has."""
        return int(self.array.shape[1])

    @property
    def names(self) -> list[str]:
        """The names of the groups, in order."""
        return [self.name] if self.single else list(map(f"{self.name}_".__add__, map(str, range(len(self)))))

    @cached_property
    def color(self) -> Ranks:
        """For every global rank the number of its group, -1 for a rank in none; int32 of shape (world_size,).

        This is the color of the split that makes the communicators.
        """
        color = np.full(self.world_size, -1, dtype=np.int32)
        color[self.array] = np.arange(len(self), dtype=np.int32)[:, None]
        color.flags.writeable = False
        return color

    @cached_property
    def key(self) -> Ranks:
        """For every global rank its number inside its group, -1 for a rank in none; int32 of shape (world_size,).

        This is the key of the split that makes the communicators.
        """
        key = np.full(self.world_size, -1, dtype=np.int32)
        key[self.array] = np.arange(self.size, dtype=np.int32)
        key.flags.writeable = False
        return key

    def of(self, rank: int) -> Group:
        """The group that `rank` is in.

        Raises
        ------
        MeshError
            If there is no such rank, or it is in none of the groups.
        """
        rank = check_rank(rank, self.world_size)
        index = int(self.color[rank])
        if index < 0:
            raise MeshError(f"rank {rank} is in no group of {self.name!r}")
        return self[index]

    @overload
    def __getitem__(self, index: int) -> Group: ...
    @overload
    def __getitem__(self, index: slice) -> list[Group]: ...
    def __getitem__(self, index: int | slice) -> Group | list[Group]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        number = operator.index(index)
        number += len(self) if number < 0 else 0
        if not 0 <= number < len(self):
            raise IndexError(f"there are {len(self)} groups of {self.name!r}, not {index}")
        name = self.name if self.single else f"{self.name}_{number}"
        return Group(name, self.array[number], axes=self.axes, index=number)

    def __len__(self) -> int:
        return len(self.array)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Groups):
            return NotImplemented
        return self._told() == other._told() and np.array_equal(self.array, other.array)

    def __hash__(self) -> int:
        return hash((*self._told(), self.array.tobytes()))

    def _told(self) -> tuple[Any, ...]:
        return (self.name, self.world_size, self.axes, self.single)

    def __repr__(self) -> str:
        return f"Groups({self.name!r}: {len(self)} of {self.size}, first {ranks_text(self.array[0])})"


def _rebuild_groups(name: str, array: Ranks, world_size: int, axes: tuple[str, ...], single: bool) -> Groups:
    return Groups(name, array, world_size=world_size, axes=axes, single=single)


class Hierarchy(NamedTuple):
    """The two levels that a hierarchical collective runs on.

    Parameters
    ----------
    inner : Groups
        Ranks of one group on one node; the color and key of the first split.
    outer : Groups
        Ranks of one group with the same place on their nodes; the color and key of the second split.
    """

    inner: Groups
    outer: Groups


def cut_groups(groups: Groups, nodes: int | npt.ArrayLike) -> Hierarchy:
    """Cut groups in two levels.

    Inside a node the ranks keep the order of the group, and nodes come in the order in which the group meets them. So
    an all-reduce of the whole is a reduce-scatter inside, an all-reduce across, and an all-gather inside.

    Parameters
    ----------
    groups : Groups
        The groups to cut.
    nodes : int or array_like of int
        How many ranks a node has (rank r is on node r // nodes), or the node of every global rank.

    Returns
    -------
    Hierarchy

    Raises
    ------
    MeshError
        If `nodes` does not fit the world, or a group has unlike numbers of ranks on its nodes.

    Examples
    --------
    >>> groups = Groups("dp", [[0, 1, 2, 3]], world_size=4)
    >>> inner, outer = cut_groups(groups, [7, 9, 7, 9])
    >>> inner, outer
    (Groups('dp_inner': 2 of 2, first [0, 2]), Groups('dp_outer': 2 of 2, first [0, 1]))
    """
    node = _nodes_of_ranks(nodes, groups.world_size)[groups.array]
    place = np.arange(groups.size)
    by_node = np.argsort(node, axis=1, kind="stable")
    in_order = np.take_along_axis(node, by_node, axis=1)
    starts = np.ones(node.shape, dtype=bool)
    starts[:, 1:] = in_order[:, 1:] != in_order[:, :-1]
    run = np.maximum.accumulate(np.where(starts, place, 0), axis=1)
    first_seen = np.empty(node.shape, dtype=np.int64)
    np.put_along_axis(first_seen, by_node, np.take_along_axis(by_node, run, axis=1), axis=1)
    order = np.argsort(first_seen, axis=1, kind="stable")
    first_seen = np.take_along_axis(first_seen, order, axis=1)

    together = int((first_seen[0] == first_seen[0, 0]).sum())
    even = groups.size % together == 0
    if even:
        blocks = first_seen.reshape(len(groups), -1, together)
        even_rows = (blocks == blocks[..., :1]).all(axis=(1, 2)) & (np.diff(blocks[..., 0], axis=1) > 0).all(axis=1)
        even = bool(even_rows.all())
    if not even:
        raise MeshError(_uneven_text(groups, node))
    cut = np.take_along_axis(groups.array, order, axis=1).reshape(len(groups), -1, together)
    inner = cut.reshape(-1, together)
    outer = cut.transpose(0, 2, 1).reshape(-1, cut.shape[1])
    return Hierarchy(
        Groups(f"{groups.name}_inner", inner, world_size=groups.world_size),
        Groups(f"{groups.name}_outer", outer, world_size=groups.world_size),
    )


def _nodes_of_ranks(nodes: int | npt.ArrayLike, world_size: int) -> npt.NDArray[np.int64]:
    given = np.asarray(nodes)
    if given.dtype.kind not in "iu":
        raise MeshError("nodes must be the number of ranks on a node, or a list with the node of every rank")
    if given.ndim == 0:
        if given < 1:
            raise MeshError(f"a node has at least one rank, not {given}")
        return np.arange(world_size) // given.astype(np.int64)
    if given.shape != (world_size,):
        raise MeshError(f"nodes has shape {given.shape}, but there are {world_size} ranks; give one number per rank")
    return given.astype(np.int64)


def _uneven_text(groups: Groups, node: npt.NDArray[Any]) -> str:
    counts = [np.unique(row, return_counts=True) for row in node]
    wanted = int(counts[0][1][0])
    index = next(i for i, (_, sizes) in enumerate(counts) if (sizes != wanted).any())
    names, sizes = counts[index]
    shown = ", ".join(f"{size} on node {name}" for name, size in zip(names[:4], sizes[:4], strict=True))
    more = ", …" if len(names) > 4 else ""
    return (
        f"the group {groups[index].name!r} ({idle_text(groups.array[index].tolist())}) cannot be cut in two levels: it "
        f"has {shown}{more}; every node of every group must hold the same number of its ranks"
    )


def categories(names: Sequence[str]) -> pd.CategoricalDtype[Any]:
    """The categorical dtype of these names."""
    import pandas as pd

    # As Python objects: pandas takes six times as long to see that Arrow strings are unique.
    return pd.CategoricalDtype(pd.Index(names, dtype=object))
