"""Two levels of one group: its ranks inside a node, and its ranks across nodes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from meshlab.errors import MeshError
from meshlab.mesh.axes import idle_text
from meshlab.mesh.groups import Groups

__all__ = ["Hierarchy", "cut_groups"]


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
