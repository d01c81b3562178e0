"""`TwoLevels`: the nodes of the ranks of a hierarchical communicator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from meshlab.base._errors import CommunicatorError
from meshlab.comm._communicator import Communicator
from meshlab.mesh._groups import Hierarchy


@dataclass(frozen=True, slots=True, eq=False)
class TwoLevels:
    """The node of every rank, numbered in order of appearance, and its local rank on that node."""

    node: npt.NDArray[np.int64]
    local_rank: npt.NDArray[np.int64]

    @classmethod
    def of(cls, nodes: Sequence[Any]) -> TwoLevels:
        """Return the layout, given the node of every rank. Any hashable values can identify nodes."""
        numbers: dict[Any, int] = {}
        node = np.array([numbers.setdefault(name, len(numbers)) for name in nodes])
        return cls(node, np.array([int((node[:rank] == node[rank]).sum()) for rank in range(len(node))]))

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """The number of ranks of each node."""
        return np.bincount(self.node)

    @property
    def n_owners(self) -> int:
        """The number of ranks per node that own a chunk of the data across nodes: the size of the smallest node."""
        return int(self.sizes.min())

    @property
    def is_even(self) -> bool:
        """True if all nodes have the same number of ranks."""
        return bool((self.sizes == self.sizes[0]).all())

    @property
    def by_local_rank(self) -> npt.NDArray[np.int64]:
        """The ranks ordered by local rank, then node: the order of chunks after a split within nodes and one across."""
        return np.lexsort((self.node, self.local_rank))


def nodes_of(comm: Communicator, nodes: int | Sequence[Any] | Hierarchy) -> list[Any]:
    """Return the node of every rank of a communicator, for the argument `nodes` of `Hierarchical.cut`."""
    if isinstance(nodes, Hierarchy):
        names: list[Any] = [int(nodes.inner.color[rank]) for rank in comm.ranks]
        members = {rank for name in set(names) if name >= 0 for rank in nodes.inner[name].ranks}
        if members != set(comm.ranks):
            raise CommunicatorError(
                f"the hierarchy {nodes.inner.name} does not cover the ranks of {comm.name}; pass the hierarchy of its "
                "axis",
                group=comm.name,
            )
        return names
    if isinstance(nodes, (int, np.integer)):
        if nodes < 1:
            raise CommunicatorError(f"nodes must be a positive number of ranks per node, not {nodes}", group=comm.name)
        return [rank // int(nodes) for rank in comm.ranks]
    names = list(nodes)
    if len(names) != comm.size:
        raise CommunicatorError(
            f"nodes has {len(names)} entries, but {comm.name} has {comm.size} ranks; pass one per rank", group=comm.name
        )
    return names
