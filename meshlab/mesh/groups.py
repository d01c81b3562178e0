"""Groups of ranks: the ordered members of one communicator, and all groups along an axis at once."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from meshlab.errors import MeshError
from meshlab.mesh.axes import check_rank

__all__ = ["Group", "Groups", "Ranks", "even_step", "frozen", "groups_name", "ranks_text"]

Ranks = npt.NDArray[np.int32]
"""Global ranks, as int32."""

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
