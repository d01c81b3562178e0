"""Groups of ranks: the ordered members of one communicator, and all groups along an axis."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from meshlab.base._errors import MeshError
from meshlab.base._garbage import collector_paused
from meshlab.mesh._axes import Ranks, check_rank, format_ranks

if TYPE_CHECKING:
    import pandas as pd


_MAX_SHOWN = 16


def groups_name(axes: Sequence[str]) -> str:
    """Return the name of the groups along `axes`: the axis names joined with dashes."""
    return "-".join(axes)


def ranks_repr(ranks: Ranks) -> str:
    """Return ranks as a list. A long list is abbreviated and followed by the number of ranks."""
    if len(ranks) <= _MAX_SHOWN:
        return str(ranks.tolist())
    head = ", ".join(str(rank) for rank in ranks[: _MAX_SHOWN // 2])
    return f"[{head}, …, {ranks[-1]}] ({len(ranks):,} ranks)"


def uniform_stride(ranks: Ranks) -> int | None:
    """Return the distance in global rank between neighbours in a group, or None if it varies."""
    if len(ranks) == 1:
        return 1
    steps = np.diff(ranks)
    return int(steps[0]) if (steps == steps[0]).all() else None


def read_only(array: npt.ArrayLike) -> Ranks:
    """Return read-only int32 values without changing the argument."""
    ranks = np.ascontiguousarray(array, dtype=np.int32)
    if ranks.flags.writeable:
        # Copy if the caller can still write to these bytes, through `array` itself or through the base of a view. A
        # read-only array is shared: all groups along an axis are rows of one array.
        ranks = ranks.copy() if ranks is array or ranks.base is not None else ranks
        ranks.flags.writeable = False
    return ranks


class Group:
    """The ordered ranks of one communicator.

    Parameters
    ----------
    name : str
        Name of the group, such as ``"tp_0"``. Identical on every rank.
    array : array_like of int
        Global ranks in group order: the first one is rank 0 of the communicator.
    axes : tuple of str, default ()
        The axes along which the ranks differ. Empty for ``world`` and for custom groups.
    index : int, default 0
        Index among the groups along the same axes.

    Examples
    --------
    >>> import meshlab as ml
    >>> group = ml.DeviceMesh("dp=2, tp=2").group("tp_1")
    >>> group
    Group('tp_1', [2, 3])
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
        put(self, "array", read_only(array))
        put(self, "axes", axes)
        put(self, "index", index)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"Group is immutable; cannot set {name!r}")

    def __reduce__(self) -> tuple[object, ...]:
        return partial(Group, axes=self.axes, index=self.index), (self.name, np.array(self.array))

    @property
    def ranks(self) -> tuple[int, ...]:
        """The global ranks, in group order."""
        return tuple(self.array.tolist())

    def position(self, rank: int) -> int:
        """Return the position of a global rank in the group, counted from 0.

        Raises
        ------
        MeshError
            If the rank is not a member.
        """
        positions = np.flatnonzero(self.array == rank)
        if not len(positions):
            raise MeshError(f"rank {rank} is not in group {self.name!r} with ranks {ranks_repr(self.array)}")
        return int(positions[0])

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
        return f"Group({self.name!r}, {ranks_repr(self.array)})"


_LARGEST_CHUNK = 1 << 16  # groups that an iteration builds at once
_SETTERS = tuple(vars(Group)[name].__set__ for name in ("name", "array", "axes", "index"))


class Groups(Sequence[Group]):
    """All groups along one or more axes: a sequence of `Group` over one array.

    Parameters
    ----------
    name : str
        Common name of the groups, such as ``"tp"`` or ``"dp-cp"``.
    array : array_like of int
        One row of global ranks per group, of shape (groups, size).
    world_size : int
        Number of ranks in the world. Some may be in none of the groups.
    axes : tuple of str, default ()
        The axes along which the ranks of a group differ.
    single : bool, default False
        True if the only group is named `name`, without a number.

    Examples
    --------
    >>> import meshlab as ml
    >>> groups = ml.DeviceMesh("dp=2, tp=2")["tp"]
    >>> groups[1], groups.of(2).name, groups.color.tolist(), groups.key.tolist()
    (Group('tp_1', [2, 3]), 'tp_1', [0, 0, 1, 1], [0, 1, 0, 1])
    """

    name: str
    array: Ranks
    world_size: int
    axes: tuple[str, ...]
    single: bool

    def __init__(
        self, name: str, array: npt.ArrayLike, *, world_size: int, axes: tuple[str, ...] = (), single: bool = False
    ) -> None:
        self.__dict__.update(name=name, array=read_only(array), world_size=world_size, axes=axes, single=single)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"Groups is immutable; cannot set {name!r}")

    def __reduce__(self) -> tuple[object, ...]:
        rebuild = partial(Groups, world_size=self.world_size, axes=self.axes, single=self.single)
        return rebuild, (self.name, np.array(self.array))

    @property
    def size(self) -> int:
        """Number of ranks in each group."""
        return int(self.array.shape[1])

    @property
    def names(self) -> list[str]:
        """The names of the groups, in order."""
        return [self.name] if self.single else list(map(f"{self.name}_".__add__, map(str, range(len(self)))))

    @cached_property
    def color(self) -> Ranks:
        """Group number of every global rank, -1 for a rank in no group: int32 of shape (world_size,).

        This is the ``color`` argument of the split that creates the communicators.
        """
        color = np.full(self.world_size, -1, dtype=np.int32)
        color[self.array] = np.arange(len(self), dtype=np.int32)[:, None]
        color.flags.writeable = False
        return color

    @cached_property
    def key(self) -> Ranks:
        """Position of every global rank in its group, -1 for a rank in no group: int32 of shape (world_size,).

        This is the ``key`` argument of the split that creates the communicators.
        """
        key = np.full(self.world_size, -1, dtype=np.int32)
        key[self.array] = np.arange(self.size, dtype=np.int32)
        key.flags.writeable = False
        return key

    def of(self, rank: int) -> Group:
        """Return the group that contains a rank.

        Raises
        ------
        MeshError
            If the rank does not exist.
            If the rank is in none of the groups.

        Examples
        --------
        >>> import meshlab as ml
        >>> ml.DeviceMesh("dp=2, tp=4")["tp"].of(6)
        Group('tp_1', [4, 5, 6, 7])
        """
        rank = check_rank(rank, self.world_size)
        index = int(self.color[rank])
        if index < 0:
            raise MeshError(f"rank {rank} is not in any group of {self.name!r}")
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
            raise IndexError(f"group index {index} is out of range: {self.name!r} has {len(self)} groups")
        name = self.name if self.single else f"{self.name}_{number}"
        return Group(name, self.array[number], axes=self.axes, index=number)

    def __iter__(self) -> Iterator[Group]:
        start, number = 0, 64  # few at first, because many loops end early
        while start < len(self):
            yield from self._chunk(start, start + number)
            start, number = start + number, min(2 * number, _LARGEST_CHUNK)

    def _chunk(self, start: int, stop: int) -> list[Group]:
        """Return some groups without the checks of the constructor: a large world has millions of them."""
        put_name, put_array, put_axes, put_index = _SETTERS
        new, axes, groups = Group.__new__, self.axes, []
        with collector_paused():  # which would look at all groups again and again
            for index, ranks in enumerate(self.array[start:stop], start):  # read-only, as the array is
                group = new(Group)
                put_name(group, self.name if self.single else f"{self.name}_{index}")
                put_array(group, ranks)
                put_axes(group, axes)
                put_index(group, index)
                groups.append(group)
        return groups

    def __len__(self) -> int:
        return len(self.array)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Groups):
            return NotImplemented
        return self._identity() == other._identity() and np.array_equal(self.array, other.array)

    def __hash__(self) -> int:
        return hash((*self._identity(), self.array.tobytes()))

    def _identity(self) -> tuple[Any, ...]:
        return (self.name, self.world_size, self.axes, self.single)

    def __repr__(self) -> str:
        return f"Groups({self.name!r}: {len(self)} of {self.size}, first {ranks_repr(self.array[0])})"


class Hierarchy(NamedTuple):
    """The two levels of a hierarchical collective.

    Parameters
    ----------
    inner : Groups
        The ranks of one group on one node. Their color and key are the arguments of the first split.
    outer : Groups
        The ranks of one group with the same position on their nodes. Their color and key are the arguments of the
        second split.
    """

    inner: Groups
    outer: Groups


def split_levels(groups: Groups, nodes: int | npt.ArrayLike) -> Hierarchy:
    """Split groups into two levels: inside a node, and across nodes; see `DeviceMesh.hierarchy`."""
    # All groups are sorted in one pass, because a Python loop over groups is slow for thousands of them. `first_seen`
    # is the position in the group of the first rank on the same node. Node numbers are arbitrary, so a stable sort
    # brings the ranks of a node together, and the running maximum of the run starts gives every rank the index of its
    # run. Sorting by `first_seen` then orders nodes by first appearance and keeps the group order inside a node.
    node = _nodes_of_ranks(nodes, groups.world_size)[groups.array]
    position = np.arange(groups.size)
    by_node = np.argsort(node, axis=1, kind="stable")
    in_order = np.take_along_axis(node, by_node, axis=1)
    starts = np.ones(node.shape, dtype=bool)
    starts[:, 1:] = in_order[:, 1:] != in_order[:, :-1]
    run = np.maximum.accumulate(np.where(starts, position, 0), axis=1)
    first_seen = np.empty(node.shape, dtype=np.int64)
    np.put_along_axis(first_seen, by_node, np.take_along_axis(by_node, run, axis=1), axis=1)
    order = np.argsort(first_seen, axis=1, kind="stable")
    first_seen = np.take_along_axis(first_seen, order, axis=1)

    # The two levels are arrays of one shape only if every node of every group has the same number of ranks: each block
    # of that length is one node, and neighbouring blocks are different nodes.
    per_node = int((first_seen[0] == first_seen[0, 0]).sum())
    even = groups.size % per_node == 0
    if even:
        blocks = first_seen.reshape(len(groups), -1, per_node)
        even_rows = (blocks == blocks[..., :1]).all(axis=(1, 2)) & (np.diff(blocks[..., 0], axis=1) > 0).all(axis=1)
        even = bool(even_rows.all())
    if not even:
        raise MeshError(_uneven_text(groups, node))
    levels = np.take_along_axis(groups.array, order, axis=1).reshape(len(groups), -1, per_node)
    inner = levels.reshape(-1, per_node)
    outer = levels.transpose(0, 2, 1).reshape(-1, levels.shape[1])
    return Hierarchy(
        Groups(f"{groups.name}_inner", inner, world_size=groups.world_size),
        Groups(f"{groups.name}_outer", outer, world_size=groups.world_size),
    )


def _nodes_of_ranks(nodes: int | npt.ArrayLike, world_size: int) -> npt.NDArray[np.int64]:
    array = np.asarray(nodes)
    if array.dtype.kind not in "iu":
        raise MeshError(f"nodes must be the number of ranks per node, or one node number per rank, not {nodes!r}")
    if array.ndim == 0:
        if array < 1:
            raise MeshError(f"nodes must be at least 1 rank per node, not {array}")
        return np.arange(world_size) // array.astype(np.int64)
    if array.shape != (world_size,):
        raise MeshError(
            f"nodes has shape {array.shape}, but there are {world_size} ranks", hint="pass one number per rank"
        )
    return array.astype(np.int64)


def _uneven_text(groups: Groups, node: npt.NDArray[Any]) -> str:
    counts = [np.unique(row, return_counts=True) for row in node]
    expected = int(counts[0][1][0])
    index = next(i for i, (_, sizes) in enumerate(counts) if (sizes != expected).any())
    names, sizes = counts[index]
    listed = ", ".join(f"{size} on node {name}" for name, size in zip(names[:4], sizes[:4], strict=True))
    more = ", …" if len(names) > 4 else ""
    return (
        f"cannot split group {groups[index].name!r} ({format_ranks(groups.array[index].tolist())}) into two levels: it "
        f"has {listed}{more}; every node of every group must hold the same number of its ranks"
    )


def categories(names: Sequence[str]) -> pd.CategoricalDtype[Any]:
    """Return the categorical dtype with these names."""
    import pandas as pd

    # As Python objects: pandas takes six times longer to check that Arrow strings are unique.
    return pd.CategoricalDtype(pd.Index(names, dtype=object))
