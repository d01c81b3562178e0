"""Hierarchical communicators: each call runs in stages, on a communicator within the node and on one across nodes.

An all_reduce becomes a reduce_scatter within each node, one all_reduce across nodes for every chunk, and an all_gather
within each node. So only 1/n of the data of a node with n ranks crosses each link between nodes. Messages have no
stages, and run on the communicator of all ranks, if there is one.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar

import numpy as np
import numpy.typing as npt

from meshlab.base._errors import CommunicatorError
from meshlab.comm._backend import BARRIER, Call, Capabilities, Mode, Timings
from meshlab.comm._catalog import CATALOG, find_collective
from meshlab.comm._communicator import Communicator
from meshlab.comm._elements import ReduceOp, divide, find_dtype, find_op, flat_elements, is_integer, pre_mul_sum
from meshlab.comm._prepared_call import PreparedCall
from meshlab.comm.backends._two_levels import TwoLevels, nodes_of
from meshlab.mesh._groups import Hierarchy

if TYPE_CHECKING:
    import pandas as pd

_T = TypeVar("_T")

Scope = Literal["inner", "outer"]

_EVEN_ONLY = ("reduce_scatter", "all_gather")  # every rank has its chunk, so every rank must own one across nodes

_STAGED = ("all_reduce", "reduce", "broadcast", "barrier", *_EVEN_ONLY)


def plan_stages(layout: TwoLevels, name: str, count: int, rank: int, root: int) -> list[tuple[Scope, str, int]]:
    """Return the stages of a call on one rank: scope, collective and count."""
    chunk, n_nodes = -(-count // layout.n_owners), len(layout.sizes)  # rounded up; the buffer is padded
    if name == "all_reduce":
        return [("inner", "reduce_scatter", chunk), ("outer", "all_reduce", chunk), ("inner", "all_gather", chunk)]
    if name == "broadcast":
        # The root scatters its data over its node, so that every link across nodes carries one chunk.
        is_with_root = layout.node[rank] == layout.node[root]
        first: list[tuple[Scope, str, int]] = [("inner", "scatter", chunk)] if is_with_root else []
        return [*first, ("outer", "broadcast", chunk), ("inner", "all_gather", chunk)]
    if name == "reduce":
        last: list[tuple[Scope, str, int]] = [("inner", "gather", chunk)]
        return [
            ("inner", "reduce_scatter", chunk),
            ("outer", "reduce", chunk),
            *(last if layout.node[rank] == layout.node[root] else []),
        ]
    if name == "reduce_scatter" and layout.is_even:
        return [("inner", "reduce_scatter", count * n_nodes), ("outer", "reduce_scatter", count)]
    if name == "all_gather" and layout.is_even:
        return [("outer", "all_gather", count), ("inner", "all_gather", count * n_nodes)]
    if name == "barrier":
        # The second inner barrier holds the ranks that do not take part across nodes until the owners of their node
        # have returned.
        return [("inner", "barrier", 0), ("outer", "barrier", 0), ("inner", "barrier", 0)]
    if CATALOG[name].peers:
        raise CommunicatorError(f"{name} has no stages: a message moves from one rank to another", collective=name)
    why = "" if layout.is_even else f" on nodes of different sizes ({', '.join(map(str, layout.sizes))} ranks)"
    raise CommunicatorError(f"{name} is not supported by hierarchical communicators{why}", collective=name)


@dataclass(eq=False)
class HierarchicalBackend:
    """Runs each call as several of two communicators, and messages on `whole` or on the one that both ranks share."""

    inner: Communicator
    outer: Communicator | None
    layout: TwoLevels
    rank: int
    whole: Communicator | None
    owned: Sequence[Communicator | None]

    def __post_init__(self) -> None:
        inner = self.inner
        self.size = len(self.layout.node)
        self.xp = inner.xp
        self.empty = inner.empty
        self.device = inner.backend.device
        self.blocks = inner.backend.blocks
        # All stages of a call run in the stream of the inner communicator, or are ordered with it.
        self.stream = inner.stream
        self.sync, self.record, self.wait_for = inner.sync, inner.record, inner.wait
        self.wait_idle = getattr(inner.backend, "wait_idle", lambda: None)
        self.local, self.measure = inner.backend.local, inner.backend.measure

    def prepare(self, call: Call) -> _Staged:
        if call.collective.peers:
            return _Staged(self, self._messages((call,)))
        make: dict[str, Callable[[Call], list[Callable[[], object]]]] = {
            "all_reduce": self._all_reduce,
            "reduce": self._reduce,
            "reduce_scatter": self._reduce_scatter,
            "all_gather": self._all_gather,
            "broadcast": self._broadcast,
            "barrier": self._barrier,
        }
        return _Staged(self, make[call.collective.name](call))

    def runner(self, call: Call) -> Callable[[Any, Any], object]:
        kind = call._replace(send=None, recv=None)
        return lambda send, recv: self.prepare(kind._replace(send=send, recv=recv))()

    def comparer(self) -> None:
        """None: the inner and the outer communicator compare the stages."""

    def prepare_batch(self, calls: Sequence[Call]) -> _Staged:
        """Prepare several messages. Raise for other calls, because their stages must run in order."""
        if not all(call.collective.peers for call in calls):
            raise CommunicatorError(
                "a hierarchical communicator does not support batches with collectives; issue the calls separately"
            )
        return _Staged(self, self._messages(calls))

    def split(self, color: int | None, key: int, *, separate: bool = False) -> NoReturn:
        """Raise, because the levels have to be split with their names and global ranks: see `Hierarchical.split`."""
        raise CommunicatorError("the backend of a hierarchical communicator cannot be split; split the communicator")

    def capabilities(self) -> Capabilities:
        """Return the capabilities that the communicators have together."""
        inner = self.inner.capabilities()
        outer = inner if self.outer is None else self.outer.capabilities()
        of_messages = (inner, outer) if self.whole is None else (self.whole.capabilities(),)
        missing = self._missing(inner, outer, of_messages)
        ops = [op for op in inner.ops if op in outer.ops and op not in ("avg", "pre_mul_sum")]
        first, second = self._in_order(inner, outer)
        if "pre_mul_sum" in first.ops and "sum" in second.ops:
            ops += ["avg", "pre_mul_sum"]
        reduced = [set(can.dtypes if can.reduce_dtypes is None else can.reduce_dtypes) for can in (inner, outer)]
        dtypes = tuple(name for name in inner.dtypes if name in outer.dtypes)
        return Capabilities(
            backend="hierarchical",
            library=inner.library if inner.library == outer.library else f"{inner.library}, across {outer.library}",
            path=inner.path if inner.path == outer.path else f"{inner.path}, {outer.path}",
            where=inner.where if inner.where == outer.where else f"{inner.where}, across {outer.where}",
            collectives=tuple(name for name in CATALOG if missing.get(name) == ""),
            dtypes=dtypes,
            ops=tuple(ops),
            modes=tuple(mode for mode in inner.modes if mode in outer.modes),
            abort=inner.abort and outer.abort,
            facts={
                "nodes": ", ".join(map(str, self.layout.sizes)) + " ranks",
                "avg": "scaled by 1/n, then summed",
                "messages": "between ranks of one node, or with the same local rank"
                if self.whole is None
                else f"on the communicator {self.whole.name}",
                **{name: f"no: {why}" for name, why in missing.items() if why},
            },
            reduce_dtypes=tuple(name for name in dtypes if name in reduced[0] & reduced[1]),
            largest_tag=min(can.largest_tag for can in of_messages),
        )

    def _missing(self, inner: Capabilities, outer: Capabilities, of_messages: Sequence[Capabilities]) -> dict[str, str]:
        """Return what prevents each call that has stages: an empty string if it is supported."""
        missing = {}
        parts = {"inner": inner, "outer": outer}
        for name in _STAGED:
            if name in _EVEN_ONLY and not self.layout.is_even:
                sizes = ", ".join(map(str, self.layout.sizes))
                missing[name] = f"the nodes have different sizes ({sizes} ranks)"
                continue
            stages = plan_stages(self.layout, name, 1, self.rank, root=self.rank)
            lacking = [(scope, stage) for scope, stage, _ in stages if stage not in parts[scope].collectives]
            missing[name] = "".join(
                f"the {scope} communicator ({parts[scope].backend}) has no {stage}" for scope, stage in lacking[:1]
            )
        for name in (row.name for row in CATALOG.values() if row.peers):
            without = next((can.backend for can in of_messages if name not in can.collectives), None)
            missing[name] = "" if without is None else f"{without} has no {name}"
        return missing

    def own(self, comm: Communicator) -> None:
        """Close a communicator after the others, when this one is closed."""
        self.owned = [*self.owned, comm]

    def close(self) -> None:
        for comm in self.owned:
            if comm is not None:
                comm.close()

    @property
    def current_stream(self) -> Any:
        return self.inner.current_stream

    # -- stages --------------------------------------------------------------------------------------------------------

    def _all_reduce(self, call: Call) -> list[Callable[[], object]]:
        source, result, chunk, before, after = self._buffers(call)
        inner_op, outer_op, finish = self._ops(call)
        return [
            *before,
            self.inner.prepare("reduce_scatter", source, chunk, op=inner_op, dtype=call.dtype),
            *self._across("all_reduce", chunk, chunk, op=outer_op, dtype=call.dtype),
            self.inner.prepare("all_gather", chunk, result, dtype=call.dtype),
            *after,
            *finish,
        ]

    def _broadcast(self, call: Call) -> list[Callable[[], object]]:
        layout, root = self.layout, call.root or 0
        source, result, chunk, before, after = self._buffers(call)
        stages: list[Callable[[], object]] = []
        if layout.node[self.rank] == layout.node[root]:
            is_root = self.rank == root
            stages = [
                *(before if is_root else ()),
                self.inner.prepare(
                    "scatter",
                    source if is_root else None,
                    chunk,
                    root=int(layout.local_rank[root]),
                    dtype=call.dtype,
                ),
            ]
        return [
            *stages,
            *self._across("broadcast", chunk, chunk, root=int(layout.node[root]), dtype=call.dtype),
            self.inner.prepare("all_gather", chunk, result, dtype=call.dtype),
            *after,
        ]

    def _reduce(self, call: Call) -> list[Callable[[], object]]:
        layout, root = self.layout, call.root or 0
        source, result, chunk, before, after = self._buffers(call)
        inner_op, outer_op, finish = self._ops(call)
        is_with_root = layout.node[self.rank] == layout.node[root]
        reduced = chunk if is_with_root else None
        stages: list[Callable[[], object]] = [
            *before,
            self.inner.prepare("reduce_scatter", source, chunk, op=inner_op, dtype=call.dtype),
            *self._across("reduce", chunk, reduced, op=outer_op, root=int(layout.node[root]), dtype=call.dtype),
        ]
        if not is_with_root:
            return stages
        gathered = result if self.rank == root else None
        gather = self.inner.prepare("gather", chunk, gathered, root=int(layout.local_rank[root]), dtype=call.dtype)
        return [*stages, gather, *after, *finish]

    def _buffers(self, call: Call) -> tuple[Any, Any, Any, list[Callable[[], object]], list[Callable[[], object]]]:
        """Return input, output and this rank's chunk of the output, with the copies before and after the stages."""
        send, recv = call.send.reshape(-1), None if call.recv is None else call.recv.reshape(-1)
        count, n_inner = -(-call.count // self.layout.n_owners), self.inner.size
        start = self.inner.rank * count
        if count * n_inner == call.count:
            chunk = self.xp.empty(count, send.dtype) if recv is None else recv[start : start + count]
            return send, recv, chunk, [], []
        # The inner communicator splits into equal chunks, one per rank. If the elements are not divisible, or the node
        # has more ranks than owners, work in a larger buffer: the data is at its front, so the owners have all of it.
        padded = self.xp.zeros(count * n_inner, send.dtype)
        data = padded[: call.count]
        after: list[Callable[[], object]] = [] if recv is None else [partial(_copy, recv, data)]
        return padded, padded, padded[start : start + count], [partial(_copy, data, send)], after

    def _reduce_scatter(self, call: Call) -> list[Callable[[], object]]:
        # A reduce_scatter within the node, then one across, distributes the chunks in order of local rank, then node.
        # If that is not rank order, permute the chunks first.
        order = self.layout.by_local_rank
        chunks, recv = call.send.reshape(self.size, call.count), call.recv.reshape(-1)
        rail = self.xp.empty(len(self.layout.sizes) * call.count, recv.dtype)
        inner_op, outer_op, finish = self._ops(call)
        source, stages = chunks, []
        if (order != np.arange(self.size)).any():
            source = self.xp.empty_like(chunks)
            stages = [partial(_gather_rows, source, chunks, self.xp.asarray(order))]
        return [
            *stages,
            self.inner.prepare("reduce_scatter", source, rail, op=inner_op, dtype=call.dtype),
            *self._across("reduce_scatter", rail, recv, op=outer_op, dtype=call.dtype),
            *finish,
        ]

    def _all_gather(self, call: Call) -> list[Callable[[], object]]:
        order = self.layout.by_local_rank
        chunks = call.recv.reshape(self.size, call.count)
        rail = self.xp.empty(len(self.layout.sizes) * call.count, chunks.dtype)
        target, stages = chunks, []
        if (order != np.arange(self.size)).any():
            target = self.xp.empty_like(chunks)
            stages = [partial(_scatter_rows, chunks, target, self.xp.asarray(order))]
        return [
            *self._across("all_gather", call.send, rail, dtype=call.dtype),
            self.inner.prepare("all_gather", rail, target, dtype=call.dtype),
            *stages,
        ]

    def _barrier(self, call: Call) -> list[Callable[[], object]]:
        return [self.inner.prepare("barrier"), *self._across("barrier"), self.inner.prepare("barrier")]

    def _messages(self, calls: Sequence[Call]) -> list[Callable[[], object]]:
        if self.whole is not None:
            return [_prepare_messages(self.whole, calls)]
        # Both ranks of a message must choose the same communicator, so a send_recv may need both. All ranks exchange
        # the messages within nodes first, so that none waits within its node for a rank that waits across nodes.
        halves: dict[Communicator, list[Call]] = {self.inner: []}
        for call in calls:
            if call.dest is not None:
                comm, dest = self._route(call, call.dest)
                half = call._replace(collective=CATALOG["send"], recv=None, dest=dest, source=None)
                halves.setdefault(comm, []).append(half)
            if call.source is not None:
                comm, source = self._route(call, call.source)
                half = call._replace(collective=CATALOG["recv"], send=None, dest=None, source=source)
                halves.setdefault(comm, []).append(half)
        return [_prepare_messages(comm, parts) for comm, parts in halves.items() if parts]

    def _route(self, call: Call, peer: int) -> tuple[Communicator, int]:
        """Return the communicator that this rank shares with another rank, and the number of the other rank in it."""
        (node, other_node), (local_rank, other) = (
            numbers[[self.rank, peer]].tolist() for numbers in (self.layout.node, self.layout.local_rank)
        )
        if node == other_node:
            return self.inner, other
        if local_rank == other and self.outer is not None:
            return self.outer, other_node
        raise CommunicatorError(
            f"{call.collective.name}: rank {self.rank} (node {node}, local rank {local_rank}) and rank {peer} (node "
            f"{other_node}, local rank {other}) share neither the inner nor the outer communicator, and joined "
            "communicators have none of all ranks",
            collective=call.collective.name,
            hint="create the hierarchical communicator with Hierarchical.cut(), or send the message by way of a rank "
            "that shares a communicator with both",
        )

    def _across(self, name: str, *arrays: Any, **arguments: Any) -> list[PreparedCall]:
        return [] if self.outer is None else [self.outer.prepare(name, *arrays, **arguments)]

    def _ops(self, call: Call) -> tuple[ReduceOp, ReduceOp, list[Callable[[], object]]]:
        """Return the operation within nodes, the one across nodes, and the steps after the last stage."""
        # Averages and scalars must be applied once per input, not once per stage. An average of averages would also be
        # wrong on nodes of different sizes.
        op = call.op or "sum"
        if call.scalar is not None:
            scalar = int(call.scalar) if is_integer(call.scalar.dtype) else float(call.scalar)
            return *self._in_order(pre_mul_sum(scalar), find_op("sum")), []
        if op != "avg":
            return find_op(op), find_op(op), []
        dtype = call.dtype
        if dtype is None or not is_integer(dtype):
            return *self._in_order(pre_mul_sum(1 / self.size), find_op("sum")), []
        # 1 / size is not an integer, so divide the sum at the end.
        finish: list[Callable[[], object]] = []
        if call.recv is not None:
            finish.append(partial(divide, flat_elements(call.recv, dtype), self.size))
        return find_op("sum"), find_op("sum"), finish

    def _in_order(self, first: _T, second: _T) -> tuple[_T, _T]:
        """Return the operation within nodes and the one across nodes, given the first and the second to apply."""
        # With one rank per node, the inner stage would be a pre_mul_sum on one rank, which is wrong in old versions of
        # NCCL (see NcclBinder). The outer stage then applies the scalar.
        return (second, first) if self.layout.sizes.max() == 1 else (first, second)


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
        return self._backend.measure(self, self._backend.prepare(BARRIER), mode, calls, batches)


def _prepare_messages(comm: Communicator, calls: Sequence[Call]) -> PreparedCall:
    if len(calls) > 1:
        return comm._prepare_batch(calls)
    (call,) = calls
    return comm.prepare(
        call.collective.name,
        call.send,
        call.recv,
        dest=call.dest,
        source=call.source,
        tag=call.tag,
        dtype=call.dtype,
    )


def _copy(target: Any, source: Any) -> None:
    target[...] = source


def _gather_rows(target: Any, source: Any, rows: Any) -> None:
    target[...] = source[rows]


def _scatter_rows(target: Any, source: Any, rows: Any) -> None:
    target[rows] = source


class Hierarchical(Communicator):
    """A communicator that runs each call in stages, within nodes and across nodes. Created by `cut` and `join`.

    It supports all_reduce, reduce, broadcast and barrier, and on nodes of equal size also reduce_scatter and
    all_gather, if both of its communicators have their stages. Results equal those of the flat call up to rounding. If
    the elements cannot be split evenly, they are copied to a padded buffer. On nodes of different sizes, the size of
    the smallest node is the number of ranks per node that communicate across nodes.

    Messages are those of the communicator that was cut. After `join` they connect only ranks of one node, or with the
    same local rank. A batch may contain only messages.

    Parameters
    ----------
    inner : Communicator
        The ranks of this rank's node.
    outer : Communicator or None
        The ranks with the same local rank on all nodes. None for a rank without a counterpart on the smallest node.
    layout : TwoLevels
        The nodes of all ranks.
    name, ranks, rank : str, sequence of int, int
        Name and global ranks of the group, and this rank's number in it.
    owns_levels : bool
        If True, closing this communicator also closes `inner` and `outer`.
    whole : Communicator, optional
        All ranks, in the same order, for messages and splits. It stays open.

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
        whole: Communicator | None = None,
    ) -> None:
        self._levels = HierarchicalBackend(inner, outer, layout, rank, whole, (outer, inner) if owns_levels else ())
        super().__init__(self._levels, name=name, ranks=ranks)
        self.inner = inner
        self.outer = outer
        self._whole = whole
        self._layout = layout

    @classmethod
    def cut(cls, comm: Communicator, nodes: int | Sequence[Any] | Hierarchy) -> Hierarchical:
        """Split a communicator by node. All ranks of `comm` must call it.

        Ranks keep their numbers, so every call can be compared with the same call of `comm`.

        Parameters
        ----------
        comm : Communicator
            The communicator to split. It stays open when the result is closed. Messages and later splits run on it, so
            close it after the result.
        nodes : int, sequence or Hierarchy
            The number of ranks per node (global rank r is on node r // nodes), the node of every rank of the group, or
            the `DeviceMesh.hierarchy` of the group's axis.

        Returns
        -------
        Hierarchical
            The hierarchical communicator. Closing it closes the two communicators that it consists of.

        Raises
        ------
        CommunicatorError
            If `nodes` does not match the group.
            If the ranks pass different nodes.
        """
        names = nodes_of(comm, nodes)
        layout = TwoLevels.of(names)
        # Ranks that disagree would enter different splits and deadlock. The maximum of a number and of its negative
        # shows in a single call whether all ranks have the same one.
        number = zlib.crc32(layout.node.tobytes())
        highest, negative_lowest = comm._share("all_reduce", [number, -number], op="max")
        if highest != -negative_lowest:
            raise CommunicatorError(
                f"the ranks of {comm.name} pass different nodes; pass the same nodes on every rank", group=comm.name
            )
        return cls._over(comm, layout, owns_whole=False)

    @classmethod
    def _over(cls, comm: Communicator, layout: TwoLevels, *, owns_whole: bool) -> Hierarchical:
        """Split a communicator into levels, with a layout that is the same on all ranks."""
        node, local_rank = int(layout.node[comm.rank]), int(layout.local_rank[comm.rank])
        inner = comm.split(node, name=f"{comm.name}_inner_{node}")
        outer = comm.split(
            local_rank if local_rank < layout.n_owners else None, node, name=f"{comm.name}_outer_{local_rank}"
        )
        if inner is None:
            raise CommunicatorError(f"the split of {comm.name} by node excludes rank {comm.rank}", group=comm.name)
        levels = cls(
            inner, outer, layout, name=comm.name, ranks=comm.ranks, rank=comm.rank, owns_levels=True, whole=comm
        )
        if owns_whole:
            levels._levels.own(comm)
        return levels

    @classmethod
    def join(cls, inner: Communicator, outer: Communicator, *, name: str = "hierarchical") -> Hierarchical:
        """Combine two communicators, which may have different backends. All ranks of both must call it.

        Ranks are numbered node by node.

        Parameters
        ----------
        inner : Communicator
            The ranks of a node. All nodes must have the same number of ranks.
        outer : Communicator
            The ranks with the same local rank on all nodes, in the same order for every local rank. Messages connect
            only ranks that share one of the two communicators.
        name : str, default "hierarchical"
            Name of the resulting group.

        Returns
        -------
        Hierarchical
            The hierarchical communicator. Closing it leaves `inner` and `outer` open.

        Raises
        ------
        CommunicatorError
            If the two communicators do not form a grid.
            If their arrays are in different memory.
        """
        if inner.xp is not outer.xp:
            raise CommunicatorError(
                f"{inner.name} uses {inner.xp.__name__} arrays, but {outer.name} uses {outer.xp.__name__} arrays; join "
                "communicators with the same array module"
            )
        # In a grid, the ranks of an `outer` have the same position in their `inner`, and vice versa. The verdict is
        # shared in both directions, so that either all ranks raise or none.
        in_inner, in_outer = [inner.size, inner.rank], [outer.size, outer.rank]
        is_grid = outer._share("all_gather", in_inner) == in_inner * outer.size
        is_grid &= inner._share("all_gather", in_outer) == in_outer * inner.size
        (all_agree,) = outer._share("all_reduce", inner._share("all_reduce", [int(is_grid)], op="min"), op="min")
        if not all_agree:
            raise CommunicatorError(
                f"{inner.name} and {outer.name} do not form a grid; use nodes of equal size, and give each rank the "
                "same local rank as its peers on other nodes"
            )
        ranks = outer._share("all_gather", inner.ranks)
        if len(set(ranks)) < len(ranks):  # two different worlds, both with ranks from 0
            ranks = list(range(len(ranks)))
        layout = TwoLevels.of(np.repeat(np.arange(outer.size), inner.size).tolist())
        rank = outer.rank * inner.size + inner.rank
        return cls(inner, outer, layout, name=name, ranks=ranks, rank=rank, owns_levels=False)

    def split(self, color: int | None, key: int | None = None, *, name: str = "") -> Hierarchical | None:
        """Create one hierarchical communicator per color. All ranks must call it.

        Each rank stays on its node. After `join`, the ranks of a color with the same new local rank must have had the
        same local rank before, because no communicator connects others across nodes.

        Parameters
        ----------
        color, key, name
            As in `Communicator.split`.

        Returns
        -------
        Hierarchical or None
            The communicator of the new group. Closing it closes the communicators that it consists of. None for a rank
            without a color.

        Raises
        ------
        CommunicatorError
            If `color` or `key` is not an integer, or `color` is negative.
            If the levels of joined communicators do not connect the ranks of a color, or have no all_gather.

        Examples
        --------
        >>> import meshlab as ml
        >>> def halves(comm):
        ...     with Hierarchical.cut(comm, 2) as levels, levels.split(comm.rank % 2) as half:
        ...         return half.ranks, half.inner.ranks, half.outer.ranks
        >>> with ml.launch(4, backend="threads") as engines:
        ...     engines.run(halves)["value"][1]
        ((1, 3), (1,), (1, 3))
        """
        self._check_split(color, key)
        name = name or f"{self.name}/{color}"
        if self._whole is None:
            return self._split_levels(color, self.rank if key is None else int(key), name)
        part = self._whole.split(color, key, name=name)
        if part is None:
            return None
        nodes = dict(zip(self.ranks, self._layout.node.tolist(), strict=True))
        return Hierarchical._over(part, TwoLevels.of([nodes[rank] for rank in part.ranks]), owns_whole=True)

    def _split_levels(self, color: int | None, key: int, name: str) -> Hierarchical | None:
        """Split the inner and the outer communicator with the same colors."""
        colors, keys = np.array(self._share("all_gather", [-1 if color is None else color, key])).reshape(-1, 2).T
        order = np.lexsort((keys, colors))  # stable: ranks decide between equal keys
        groups = {number: order[colors[order] == number] for number in np.unique(colors[colors >= 0]).tolist()}
        for members in groups.values():  # all ranks check all groups, so that either all of them raise or none
            self._check_local_ranks(members)
        if color is None:
            self.inner.split(None)
            if self.outer is not None:
                self.outer.split(None)
            return None
        members = groups[int(color)]
        layout = TwoLevels.of(self._layout.node[members].tolist())
        rank = members.tolist().index(self.rank)
        node, local_rank = int(layout.node[rank]), int(layout.local_rank[rank])
        inner = self.inner.split(color, local_rank, name=f"{name}_inner_{node}")
        outer = None
        if self.outer is not None:
            is_owner = local_rank < layout.n_owners
            outer = self.outer.split(color if is_owner else None, node, name=f"{name}_outer_{local_rank}")
        if inner is None:
            raise CommunicatorError(f"the split of {self.inner.name} excludes rank {self.rank}", group=self.name)
        ranks = [self.ranks[member] for member in members.tolist()]
        return Hierarchical(inner, outer, layout, name=name, ranks=ranks, rank=rank, owns_levels=True)

    def _check_local_ranks(self, members: npt.NDArray[np.int64]) -> None:
        """Raise unless the outer communicator connects all ranks of a new group that will have equal local ranks."""
        layout, before = TwoLevels.of(self._layout.node[members].tolist()), self._layout.local_rank[members]
        for local_rank in range(layout.n_owners):
            is_here = layout.local_rank == local_rank
            if (before[is_here] != before[is_here][0]).any():
                raise CommunicatorError(
                    f"cannot split {self.name}: ranks {members[is_here].tolist()} would have local rank {local_rank} "
                    f"of a new group, but they have local ranks {before[is_here].tolist()}, so no communicator "
                    "connects them across nodes",
                    group=self.name,
                    hint="choose colors and keys that keep the local ranks, or create the hierarchical communicator "
                    "with Hierarchical.cut()",
                )

    def traffic(self, collective: str, count: int, *, dtype: Any = "float32", root: int = 0) -> pd.DataFrame:
        """Return the bytes that a call moves within the node and across nodes, as seen by this rank.

        Parameters
        ----------
        collective : str
            The name, such as ``"all_reduce"``.
        count : int
            The count of the call, in elements.
        dtype : str, default "float32"
            The element type.
        root : int, default 0
            The root, for collectives with a root.

        Returns
        -------
        pandas.DataFrame
            One row per stage: ``level`` (``"inner"`` or ``"outer"``), ``collective``, ``n_ranks``, ``size_bytes`` (S of
            nccl-tests) and ``bus_bytes`` (S times the bus-bandwidth factor: the minimum that each link must move in
            each direction).

        Raises
        ------
        CommunicatorError
            If the collective or the dtype is unknown, or the collective is not supported.
        """
        import pandas as pd

        itemsize = find_dtype(dtype).itemsize
        rows = []
        for scope, name, stage_count in plan_stages(
            self._layout, find_collective(collective).name, count, self.rank, root
        ):
            comm, row = self.inner if scope == "inner" else self.outer, CATALOG[name]
            if comm is None or not row.has_size:
                continue
            size = row.size_bytes(stage_count, itemsize, comm.size)
            factor = row.bus_factor(comm.size) if comm.size > 1 else 0.0
            rows.append((scope, name, comm.size, size, round(size * factor)))
        return pd.DataFrame(rows, columns=["level", "collective", "n_ranks", "size_bytes", "bus_bytes"])
