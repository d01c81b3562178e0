"""Hierarchical: one communicator out of two levels, such as the ranks of a node and the nodes of a group.

With k ranks on each of m nodes, an all_reduce of S bytes is a reduce_scatter inside, an all_reduce across, which every
rank makes on its own S/k bytes, and an all_gather inside. So each level carries no more than it must, and all network
cards work. NCCL does much of this by itself; here it is open to be looked at and compared with the flat call.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from meshlab.comm.catalog import CATALOG, find_collective
from meshlab.comm.communicator import Communicator
from meshlab.comm.dtypes import find_dtype
from meshlab.comm.backends.hierarchical import HierarchicalBackend, Layout, plan_stages
from meshlab.errors import CommunicatorError
from meshlab.mesh.hierarchy import Hierarchy

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Hierarchical"]


class Hierarchical(Communicator):
    """A communicator that makes each call in stages, inside nodes and across them. `cut` and `join` make one.

    It has all_reduce, broadcast and barrier, and where all nodes have as many ranks also reduce_scatter and all_gather;
    `capabilities` says what its two levels allow. Results are those of the flat call, but for the order of rounding.
    An avg is right however many ranks each node has: it is one sum over all ranks. Where the elements do not divide,
    they are copied to a padded buffer. Nodes of unlike size leave the ranks beyond the smallest node's out of the step
    across.

    Parameters
    ----------
    inner : Communicator
        The ranks of this rank's node.
    outer : Communicator or None
        The ranks with the same place on all nodes; None for a rank that the smallest node has no match for.
    layout : Layout
        Where all ranks are.
    name : str
        The group's name.
    ranks : sequence of int
        The global ranks of the group, in order.
    owns_levels : bool
        Whether closing this closes the levels too.

    Examples
    --------
    >>> import meshlab as ml
    >>> mesh = ml.DeviceMesh("dp=4")
    >>> def reduce(comm):
    ...     with Hierarchical.cut(comm, mesh.hierarchy("dp", nodes=2)) as levels:
    ...         return levels.all_reduce(np.array([comm.rank])).item(), levels.inner.ranks, levels.outer.ranks
    >>> with ml.launch(4, backend="threads") as engines:
    ...     engines.run(reduce, mesh, axis="dp")["value"][1]
    (6, (0, 1), (1, 3))
    """

    def __init__(
        self,
        inner: Communicator,
        outer: Communicator | None,
        layout: Layout,
        *,
        name: str,
        ranks: Sequence[int],
        rank: int,
        owns_levels: bool,
    ) -> None:
        super().__init__(HierarchicalBackend(inner, outer, layout, rank, owns_levels), name=name, ranks=ranks)
        self.inner = inner
        self.outer = outer
        self._layout = layout

    @classmethod
    def cut(cls, comm: Communicator, nodes: int | Sequence[Any] | Hierarchy) -> Hierarchical:
        """Cut a communicator in two levels, by two splits. All its ranks must call it.

        Ranks keep their numbers, so every call can be compared with that of `comm`.

        Parameters
        ----------
        comm : Communicator
            The whole. It stays open, and is not closed with the result.
        nodes : int, sequence or Hierarchy
            How many ranks a node has (global rank r is on node r // nodes), the node of every rank of the group in
            order, or what `DeviceMesh.hierarchy` gives for the group's axis.

        Returns
        -------
        Hierarchical

        Raises
        ------
        CommunicatorError
            If `nodes` does not fit the group, or ranks give different nodes.
        """
        names = _nodes_of(comm, nodes)
        layout = Layout.of(names)
        number = zlib.crc32(layout.node.tobytes())
        most, least = comm._share("all_reduce", [number, -number], op="max")
        if most != -least:
            raise CommunicatorError(
                f"the ranks of {comm.name} give different nodes; give all the same", group=comm.name
            )
        node, place = int(layout.node[comm.rank]), int(layout.place[comm.rank])
        inner = comm.split(node, name=f"{comm.name}_inner_{node}")
        outer = comm.split(place if place < layout.owners else None, node, name=f"{comm.name}_outer_{place}")
        if inner is None:
            raise CommunicatorError(f"{comm.name} gave rank {comm.rank} no group on its own node", group=comm.name)
        return cls(inner, outer, layout, name=comm.name, ranks=comm.ranks, rank=comm.rank, owns_levels=True)

    @classmethod
    def join(cls, inner: Communicator, outer: Communicator, *, name: str = "hierarchical") -> Hierarchical:
        """Join any two communicators, of one backend or of two. All ranks of both levels must call it.

        Ranks are numbered node by node.

        Parameters
        ----------
        inner : Communicator
            The ranks of a node: the same number on each, in the same order in each other's `outer`.
        outer : Communicator
            The ranks with the same place on all nodes. Both stay open when the result is closed.
        name : str, default "hierarchical"
            The name of the whole.

        Returns
        -------
        Hierarchical

        Raises
        ------
        CommunicatorError
            If the two do not make a grid, or keep their arrays in different memory.
        """
        if inner.xp is not outer.xp:
            raise CommunicatorError(
                f"{inner.name} works on {inner.xp.__name__} arrays, but {outer.name} on {outer.xp.__name__}; both "
                "levels need the same memory"
            )
        sizes, places = [inner.size, inner.rank], [outer.size, outer.rank]
        fits = outer._share("all_gather", sizes) == sizes * outer.size
        fits &= inner._share("all_gather", places) == places * inner.size
        (all_fit,) = outer._share("all_reduce", inner._share("all_reduce", [int(fits)], op="min"), op="min")
        if not all_fit:
            raise CommunicatorError(
                f"{inner.name} and {outer.name} do not make a grid; every node needs as many ranks, and every rank the "
                "same place on its node as the others it meets across"
            )
        ranks = outer._share("all_gather", inner.ranks)
        if len(set(ranks)) < len(ranks):  # two worlds that number their ranks alike
            ranks = list(range(len(ranks)))
        layout = Layout.of(np.repeat(np.arange(outer.size), inner.size).tolist())
        rank = outer.rank * inner.size + inner.rank
        return cls(inner, outer, layout, name=name, ranks=ranks, rank=rank, owns_levels=False)

    def traffic(self, collective: str, count: int, *, dtype: Any = "float32", root: int = 0) -> pd.DataFrame:
        """Say how many bytes one call carries on each level, as seen from this rank.

        Parameters
        ----------
        collective : str
            Its name, such as ``"all_reduce"``.
        count : int
            The count of the whole call, in elements.
        dtype : optional
            The element type.
        root : int, default 0
            The root, where there is one.

        Returns
        -------
        pandas.DataFrame
            One row per stage: ``level``, ``collective``, ``n_ranks``, ``size_bytes`` (S of nccl-tests) and
            ``bus_bytes`` (S times the bus-bandwidth factor: what each link carries each way, at best).

        Raises
        ------
        CommunicatorError
            If the collective or the dtype is unknown, or cannot be made in stages here.
        """
        import pandas as pd

        itemsize = find_dtype(dtype).itemsize
        rows = []
        for level, name, part in plan_stages(self._layout, find_collective(collective).name, count, self.rank, root):
            comm, row = self.inner if level == "inner" else self.outer, CATALOG[name]
            if comm is None:
                continue
            size = row.size_bytes(part, itemsize, comm.size)
            factor = row.bus_factor(comm.size) if comm.size > 1 else 0.0
            rows.append((level, name, comm.size, size, round(size * factor)))
        return pd.DataFrame(rows, columns=["level", "collective", "n_ranks", "size_bytes", "bus_bytes"])


def _nodes_of(comm: Communicator, nodes: int | Sequence[Any] | Hierarchy) -> list[Any]:
    if isinstance(nodes, Hierarchy):
        names: list[Any] = [int(nodes.inner.color[rank]) for rank in comm.ranks]
        members = {rank for name in set(names) if name >= 0 for rank in nodes.inner[name].ranks}
        if members != set(comm.ranks):
            raise CommunicatorError(
                f"the hierarchy {nodes.inner.name} does not cut the ranks of {comm.name}; take the axis of its group",
                group=comm.name,
            )
        return names
    if isinstance(nodes, (int, np.integer)):
        if nodes < 1:
            raise CommunicatorError(f"a node of {comm.name} has at least one rank, not {nodes}", group=comm.name)
        return [rank // int(nodes) for rank in comm.ranks]
    names = list(nodes)
    if len(names) != comm.size:
        raise CommunicatorError(
            f"nodes has {len(names)} entries, but {comm.name} has {comm.size} ranks; give one for each", group=comm.name
        )
    return names
