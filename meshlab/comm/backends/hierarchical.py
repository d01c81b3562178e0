"""The stages of hierarchical calls: a backend that makes each call out of calls on two levels."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar

import numpy as np
import numpy.typing as npt

from meshlab.comm.backend import Call, Capabilities, Mode, Timings
from meshlab.comm.catalog import CATALOG, find_collective
from meshlab.comm.communicator import Communicator, PreparedCall
from meshlab.comm.elements import ReduceOp, divide, find_dtype, find_op, flat_elements, is_whole, pre_mul_sum
from meshlab.errors import CommunicatorError
from meshlab.mesh.groups import Hierarchy

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Hierarchical", "HierarchicalBackend", "Level", "TwoLevels", "plan_stages"]


_T = TypeVar("_T")

Level = Literal["inner", "outer"]


@dataclass(frozen=True, slots=True, eq=False)
class TwoLevels:
    """Where the ranks of the whole are: the node of each, numbered as they come, and its place on the node."""

    node: npt.NDArray[np.int64]
    place: npt.NDArray[np.int64]

    @classmethod
    def of(cls, nodes: Sequence[Any]) -> TwoLevels:
        """Number the nodes of all ranks, whatever they are called."""
        numbers: dict[Any, int] = {}
        node = np.array([numbers.setdefault(name, len(numbers)) for name in nodes])
        return cls(node, np.array([int((node[:rank] == node[rank]).sum()) for rank in range(len(node))]))

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """How many ranks each node has."""
        return np.bincount(self.node)

    @property
    def owners(self) -> int:
        """How many ranks of each node take a part of the data across: as many as the smallest node has."""
        return int(self.sizes.min())

    @property
    def is_even(self) -> bool:
        """True when all nodes have as many ranks."""
        return bool((self.sizes == self.sizes[0]).all())

    @property
    def by_place(self) -> npt.NDArray[np.int64]:
        """The ranks in the order of place, then node: how the parts of a whole lie when each level cuts them once."""
        return np.lexsort((self.node, self.place))


def plan_stages(layout: TwoLevels, name: str, count: int, rank: int, root: int) -> list[tuple[Level, str, int]]:
    """The stages of one call on one rank: level, collective and count."""
    part, n_nodes = -(-count // layout.owners), len(layout.sizes)
    if name == "all_reduce":
        return [("inner", "reduce_scatter", part), ("outer", "all_reduce", part), ("inner", "all_gather", part)]
    if name == "broadcast":
        is_here = layout.node[rank] == layout.node[root]
        first: list[tuple[Level, str, int]] = [("inner", "scatter", part)] if is_here else []
        return [*first, ("outer", "broadcast", part), ("inner", "all_gather", part)]
    if name == "reduce_scatter" and layout.is_even:
        return [("inner", "reduce_scatter", count * n_nodes), ("outer", "reduce_scatter", count)]
    if name == "all_gather" and layout.is_even:
        return [("outer", "all_gather", count), ("inner", "all_gather", count * n_nodes)]
    if name == "barrier":
        return []
    why = "" if layout.is_even else f" on nodes of unlike size ({', '.join(map(str, layout.sizes))} ranks)"
    raise CommunicatorError(f"{name} cannot be made in stages{why}", collective=name)


class HierarchicalBackend:
    """Makes calls of one communicator out of calls of two; implements `meshlab.comm.backend.Backend`."""

    def __init__(
        self, inner: Communicator, outer: Communicator | None, layout: TwoLevels, rank: int, owns_levels: bool
    ) -> None:
        self._inner = inner
        self._outer = outer
        self._layout = layout
        self._owns_levels = owns_levels
        self.rank = rank
        self.size = len(layout.node)
        self.xp = inner.xp
        self.empty = inner.empty
        self.device = inner.backend.device

    def prepare(self, call: Call) -> _Staged:
        """Lay out the stages of a checked call."""
        make: dict[str, Callable[[Call], list[Callable[[], object]]]] = {
            "all_reduce": self._all_reduce,
            "reduce_scatter": self._reduce_scatter,
            "all_gather": self._all_gather,
            "broadcast": self._broadcast,
            "barrier": self._barrier,
        }
        return _Staged(self, make[call.collective.name](call))

    def prepare_batch(self, calls: Sequence[Call]) -> NoReturn:
        """Refuse: stages come one after the other."""
        raise CommunicatorError("a hierarchical communicator makes its calls in stages; it has no batches")

    def measure(
        self, work: Callable[[], object], barrier: Callable[[], object], mode: Mode, calls: int, batches: int
    ) -> Timings:
        """Time calls on the clock of the inner level."""
        return self._inner.backend.measure(work, barrier, mode, calls, batches)

    def local(self) -> AbstractContextManager[Any]:
        """Order array operations as the inner level does."""
        return self._inner.backend.local()

    def split(self, color: int | None, key: int) -> NoReturn:
        """Refuse: there is no library below that could."""
        raise CommunicatorError("a hierarchical communicator cannot be split; split the one that it was cut from")

    def capabilities(self) -> Capabilities:
        """Say what both levels can do."""
        inner = self._inner.capabilities()
        outer = inner if self._outer is None else self._outer.capabilities()
        needs = {
            "all_reduce": ({"reduce_scatter", "all_gather"}, {"all_reduce"}),
            "broadcast": ({"scatter", "all_gather"}, {"broadcast"}),
            "barrier": ({"barrier"}, {"barrier"}),
        }
        if self._layout.is_even:
            needs["reduce_scatter"] = ({"reduce_scatter"}, {"reduce_scatter"})
            needs["all_gather"] = ({"all_gather"}, {"all_gather"})
        ops = [op for op in inner.ops if op in outer.ops and op not in ("avg", "pre_mul_sum")]
        first, second = self._in_order(inner, outer)
        if "pre_mul_sum" in first.ops and "sum" in second.ops:
            ops += ["avg", "pre_mul_sum"]
        reduced = [set(can.dtypes if can.reduce_dtypes is None else can.reduce_dtypes) for can in (inner, outer)]
        dtypes = tuple(name for name in inner.dtypes if name in outer.dtypes)
        return Capabilities(
            backend="hierarchical",
            library=f"{inner.library} inside, {outer.library} across",
            path=inner.path if inner.path == outer.path else f"{inner.path}, {outer.path}",
            where=inner.where if inner.where == outer.where else f"{inner.where}, across {outer.where}",
            collectives=tuple(
                name
                for name in CATALOG
                if name in needs
                and needs[name][0] <= set(inner.collectives)
                and needs[name][1] <= set(outer.collectives)
            ),
            dtypes=dtypes,
            ops=tuple(ops),
            modes=tuple(mode for mode in inner.modes if mode in outer.modes),
            abort=inner.abort and outer.abort,
            facts={"nodes": ", ".join(map(str, self._layout.sizes)) + " ranks", "avg": "scaled by 1/n, then summed"},
            reduce_dtypes=tuple(name for name in dtypes if name in reduced[0] & reduced[1]),
        )

    def close(self) -> None:
        """Close the levels, where they were made for this."""
        if self._owns_levels:
            if self._outer is not None:
                self._outer.close()
            self._inner.close()

    # -- stages --------------------------------------------------------------------------------------------------------

    def _all_reduce(self, call: Call) -> list[Callable[[], object]]:
        source, whole, own, before, after = self._cut(call)
        inner_op, outer_op, finish = self._ops(call)
        return [
            *before,
            self._inner.prepare("reduce_scatter", source, own, op=inner_op, dtype=call.dtype),
            *self._across("all_reduce", own, own, op=outer_op, dtype=call.dtype),
            self._inner.prepare("all_gather", own, whole, dtype=call.dtype),
            *after,
            *finish,
        ]

    def _broadcast(self, call: Call) -> list[Callable[[], object]]:
        layout, root = self._layout, call.root or 0
        source, whole, own, before, after = self._cut(call)
        stages: list[Callable[[], object]] = []
        if layout.node[self.rank] == layout.node[root]:
            place = int(layout.place[root])
            is_root = self.rank == root
            given = source if is_root else None
            stages = [
                *(before if is_root else ()),
                self._inner.prepare("scatter", given, own, root=place, dtype=call.dtype),
            ]
        return [
            *stages,
            *self._across("broadcast", own, own, root=int(layout.node[root]), dtype=call.dtype),
            self._inner.prepare("all_gather", own, whole, dtype=call.dtype),
            *after,
        ]

    def _cut(self, call: Call) -> tuple[Any, Any, Any, list[Callable[[], object]], list[Callable[[], object]]]:
        """A buffer that the inner level can cut: where it is read, the whole, this rank's part, and copies round it."""
        send, recv = call.send.reshape(-1), call.recv.reshape(-1)
        part, n_inner = -(-call.count // self._layout.owners), self._inner.size
        place = self._inner.rank
        if part * n_inner == call.count:
            return send, recv, recv[place * part :][:part], [], []
        whole = self.xp.zeros(part * n_inner, send.dtype)
        inside = whole[: call.count]
        copies = partial(_copy, inside, send), partial(_copy, recv, inside)
        return whole, whole, whole[place * part :][:part], [copies[0]], [copies[1]]

    def _reduce_scatter(self, call: Call) -> list[Callable[[], object]]:
        order = self._layout.by_place
        parts, recv = call.send.reshape(self.size, call.count), call.recv.reshape(-1)
        rail = self.xp.empty(len(self._layout.sizes) * call.count, recv.dtype)
        inner_op, outer_op, finish = self._ops(call)
        source, stages = parts, []
        if (order != np.arange(self.size)).any():
            source = self.xp.empty_like(parts)
            stages = [partial(_gather_rows, source, parts, self.xp.asarray(order))]
        return [
            *stages,
            self._inner.prepare("reduce_scatter", source, rail, op=inner_op, dtype=call.dtype),
            *self._across("reduce_scatter", rail, recv, op=outer_op, dtype=call.dtype),
            *finish,
        ]

    def _all_gather(self, call: Call) -> list[Callable[[], object]]:
        order = self._layout.by_place
        parts = call.recv.reshape(self.size, call.count)
        rail = self.xp.empty(len(self._layout.sizes) * call.count, parts.dtype)
        target, stages = parts, []
        if (order != np.arange(self.size)).any():
            target = self.xp.empty_like(parts)
            stages = [partial(_scatter_rows, parts, target, self.xp.asarray(order))]
        return [
            *self._across("all_gather", call.send, rail, dtype=call.dtype),
            self._inner.prepare("all_gather", rail, target, dtype=call.dtype),
            *stages,
        ]

    def _barrier(self, call: Call) -> list[Callable[[], object]]:
        return [self._inner.prepare("barrier"), *self._across("barrier"), self._inner.prepare("barrier")]

    def _across(self, name: str, *arrays: Any, **arguments: Any) -> list[PreparedCall]:
        return [] if self._outer is None else [self._outer.prepare(name, *arrays, **arguments)]

    def _ops(self, call: Call) -> tuple[ReduceOp, ReduceOp, list[Callable[[], object]]]:
        """The operation inside, the one across, and what is left to do at the end."""
        op = call.op or "sum"
        if call.scalar is not None:
            scalar = int(call.scalar) if is_whole(call.scalar.dtype) else float(call.scalar)
            return *self._in_order(pre_mul_sum(scalar), find_op("sum")), []
        if op != "avg":
            return find_op(op), find_op(op), []
        dtype = call.dtype
        if dtype is None or not is_whole(dtype):
            return *self._in_order(pre_mul_sum(1 / self.size), find_op("sum")), []
        return find_op("sum"), find_op("sum"), [partial(divide, flat_elements(call.recv, dtype), self.size)]

    def _in_order(self, first: _T, second: _T) -> tuple[_T, _T]:
        """For the level inside and the one across: across comes first where no node has anything to add up."""
        return (second, first) if self._layout.sizes.max() == 1 else (first, second)


class _Staged:
    """The stages of one call."""

    def __init__(self, backend: HierarchicalBackend, stages: Sequence[Callable[[], object]]) -> None:
        self._backend = backend
        self.stages = stages

    def __call__(self) -> None:
        with self._backend.local():
            for stage in self.stages:
                stage()

    def measure(self, mode: Mode, calls: int, batches: int) -> Timings:
        barrier = self._backend.prepare(Call(CATALOG["barrier"], None, None, 0, None, None, None, False))
        return self._backend.measure(self, barrier, mode, calls, batches)


def _copy(target: Any, source: Any) -> None:
    target[...] = source


def _gather_rows(target: Any, source: Any, rows: Any) -> None:
    target[...] = source[rows]


def _scatter_rows(target: Any, source: Any, rows: Any) -> None:
    target[rows] = source


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
    layout : TwoLevels
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
        layout: TwoLevels,
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
        layout = TwoLevels.of(names)
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
        layout = TwoLevels.of(np.repeat(np.arange(outer.size), inner.size).tolist())
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
