"""Hierarchical calls compared with flat ones, on equal and different node sizes, for every operation."""

from __future__ import annotations

import sys
import threading
from typing import Any

import cloudpickle
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshlab as ml
from meshlab.base._errors import CommunicatorError
from meshlab.comm._communicator import Communicator
from meshlab.comm._elements import DTYPES, OPS
from meshlab.comm.backends._hierarchical import Hierarchical
from meshlab.comm.backends._threads import ThreadWorld
from tests.comm.test_conformance import check_nan
from tests.examples import examples

cloudpickle.register_pickle_by_value(sys.modules[__name__])

OPS_TO_TRY = ["pre_mul_sum(3)" if name == "pre_mul_sum" else name for name in OPS]


def compare(comm: Any, nodes: Any, counts: list[int], dtypes: list[str], ops: list[str]) -> list[str]:
    """Return the calls that differ from the flat ones. Runs on every rank."""
    wrong = []
    n, me = comm.size, comm.rank
    random = np.random.default_rng([me, len(counts)])

    def expect(what: str, got: Any, right: Any, roundings: float = 0.0, scale: Any = 0.0) -> None:
        away = np.abs(np.asarray(got, np.float64) - np.asarray(right, np.float64))
        if got.shape != right.shape or not (away <= roundings * scale).all():
            wrong.append(f"{what}: {got[:6]} is not {right[:6]}")

    with Hierarchical.cut(comm, nodes) as levels:
        for name in dtypes:
            dtype = DTYPES[name]
            unit = 0.0 if dtype.kind in "iu" else 4 * n * float(ml_dtypes.finfo(dtype).eps)
            for count in counts:
                data = (random.integers(-40, 40, n * count) / (1 if dtype.kind in "iu" else 16)).astype(dtype)
                short = data[:count]
                for op in ops:
                    what = f"{op} {name} {count} on {nodes}"
                    right = comm.all_reduce(short, op=op)
                    scale = bound(comm.all_reduce, short, op, right)
                    expect(f"all_reduce {what}", levels.all_reduce(short, op=op), right, unit, scale)
                    own = short.copy()
                    expect(f"all_reduce in place {what}", levels.all_reduce(own, own, op=op), right, unit, scale)
                    for root in {0, n - 1}:
                        own = short.copy()
                        for kind, got in (
                            ("", levels.reduce(short, op=op, root=root)),
                            (" in place", levels.reduce(own, own if me == root else None, op=op, root=root)),
                        ):
                            if me == root:
                                expect(f"reduce{kind} {root} {what}", got, right, unit, scale)
                            elif got is not None:
                                wrong.append(f"reduce{kind} {root} {what}: rank {me} has a result")
                        if me != root and (own != short).any():
                            wrong.append(f"reduce {root} {what} changes the input of rank {me}")
                    if "reduce_scatter" in levels.capabilities().collectives:
                        right = comm.reduce_scatter(data, op=op)
                        scale = bound(comm.reduce_scatter, data, op, right)
                        expect(f"reduce_scatter {what}", levels.reduce_scatter(data, op=op), right, unit, scale)
                        buffer = data.copy()
                        own = buffer[me * count :][:count]
                        got = levels.reduce_scatter(buffer, own, op=op)
                        expect(f"reduce_scatter in place {what}", got, right, unit, scale)
                if "all_gather" in levels.capabilities().collectives:
                    right = comm.all_gather(short)
                    expect(f"all_gather {name} {count} on {nodes}", levels.all_gather(short), right)
                    buffer = np.zeros(n * count, dtype)
                    own = buffer[me * count :][:count]
                    own[...] = short
                    expect(f"all_gather in place {name} {count}", levels.all_gather(own, buffer), right)
                for root in range(n):
                    right = comm.broadcast(short, root=root)
                    expect(f"broadcast {root} {name} {count} on {nodes}", levels.broadcast(short, root=root), right)
                    own = short.copy()
                    expect(f"broadcast in place {root} {count}", levels.broadcast(own, own, root=root), right)
                levels.barrier()
    return wrong


def bound(reduce: Any, data: np.ndarray, op: str, right: np.ndarray) -> np.ndarray:
    """Return the base of the relative error: the result for a product, else the sum of all magnitudes."""
    if op == "prod":
        return np.abs(right.astype(np.float64)) + 1e-3
    return 3 * reduce(np.abs(data).astype(np.float64))


def run(engines: ml.Engines, *arguments: Any) -> None:
    frame = engines.run(compare, arguments=arguments)
    assert [wrong for value in frame["value"] for wrong in value] == []


NODES = {
    "two and two": [0, 0, 1, 1],
    "alternating": [0, 1, 0, 1],
    "three and one": [5, 5, 5, 2],
    "one each": ["a", "b", "c", "d"],
    "one node": [0] * 4,
}
MARKS_ON_MPI = {"two and two": [], "three and one": [pytest.mark.full]}
"""The marks of nodes of one size, and of different sizes. Others take long."""


@pytest.mark.parametrize(
    ("engines", "nodes"),
    [
        pytest.param(backend, nodes, id=f"{name} on {backend}", marks=marks)
        for backend in ("threads", "mpi")
        for name, nodes in NODES.items()
        for marks in [MARKS_ON_MPI.get(name, [pytest.mark.long]) if backend == "mpi" else []]
    ],
    indirect=["engines"],
)
def test_hierarchical_calls_agree_with_flat_ones(engines: ml.Engines, nodes: list[Any]) -> None:
    run(engines, nodes, [0, 1, 7, 64], ["float32", "int32"], OPS_TO_TRY)


@pytest.fixture(scope="module")
def many_threads() -> Any:
    with ml.launch(6, backend="threads") as engines:
        yield engines


@given(st.data())
@settings(deadline=None, max_examples=examples(25))
def test_any_ranks_on_any_nodes_with_any_count(many_threads: ml.Engines, data: st.DataObject) -> None:
    nodes = data.draw(st.lists(st.integers(0, 3), min_size=6, max_size=6), "nodes")
    counts = data.draw(st.lists(st.integers(0, 30), min_size=1, max_size=2), "counts")
    dtype = data.draw(st.sampled_from(["float64", "float16", "bfloat16", "int8", "uint32"]), "dtype")
    run(many_threads, nodes, counts, [dtype], [data.draw(st.sampled_from(OPS_TO_TRY), "op")])


@given(st.permutations([0, 0, 1, 1, 2, 2]), st.integers(0, 20))
@settings(deadline=None, max_examples=examples(15))
def test_even_nodes_in_any_order(many_threads: ml.Engines, nodes: list[int], count: int) -> None:
    run(many_threads, nodes, [count], ["float32"], ["sum"])


def averages(comm: Any, nodes: Any) -> list[float]:
    values = np.array([float(1 << comm.rank), 1.0, comm.rank])
    buffer = np.array([10 * comm.rank, -7], dtype="int32")
    with Hierarchical.cut(comm, nodes) as levels:
        return [*levels.all_reduce(values, op="avg"), *levels.all_reduce(buffer, op="avg")]


@pytest.mark.parametrize("nodes", [[0, 0, 0, 1], [0, 1, 1, 1], [0, 0, 1, 1]])
def test_the_average_weights_all_ranks_equally_on_different_node_sizes(engines: ml.Engines, nodes: list[int]) -> None:
    for value in engines.run(averages, arguments=(nodes,))["value"]:
        assert value == [3.75, 1.0, 1.5, 15, -7]


def with_nan(comm: Any, nodes: list[Any]) -> list[str]:
    with Hierarchical.cut(comm, nodes) as levels:
        return check_nan(levels)


@pytest.mark.parametrize("nodes", [[0, 0, 1, 1], [0, 1, 1, 1]])
def test_the_minimum_and_the_maximum_ignore_nan_on_both_levels(engines: ml.Engines, nodes: list[Any]) -> None:
    assert engines.run(with_nan, arguments=(nodes,))["value"].tolist() == [[]] * 4


def on_the_axis(comm: Any, hierarchy: Any) -> Any:
    with Hierarchical.cut(comm, hierarchy) as levels:
        total = levels.all_reduce(np.array([10.0**comm.world_rank])).item()
        assert levels.outer is not None
        return levels.ranks, levels.inner.ranks, levels.outer.ranks, levels.name, total


def test_an_axis_of_a_mesh_is_split_by_its_hierarchy(engines: ml.Engines) -> None:
    mesh = ml.DeviceMesh("dp=4", ranks=[3, 2, 0, 1])
    values = engines.run(on_the_axis, mesh, axis="dp", arguments=(mesh.hierarchy("dp", nodes=2),))["value"]
    ring = (3, 2, 0, 1)
    assert values[3] == (ring, (3, 2), (3, 0), "dp_0", 1111.0)
    assert values[1] == (ring, (0, 1), (2, 1), "dp_0", 1111.0)


def test_ranks_per_node_apply_to_global_ranks(engines: ml.Engines) -> None:
    mesh = ml.DeviceMesh("dp=2, tp=2")
    assert engines.run(inner_ranks, mesh, axis="dp", arguments=(2,))["value"].tolist() == [(0,), (1,), (2,), (3,)]
    assert engines.run(inner_ranks, mesh, axis="tp", arguments=(2,))["value"].tolist() == [(0, 1)] * 2 + [(2, 3)] * 2


def inner_ranks(comm: Any, nodes: int) -> tuple[int, ...]:
    with Hierarchical.cut(comm, nodes) as levels:
        return levels.inner.ranks


def joined(comm: Any) -> Any:
    inner = comm.split(comm.rank // 2)
    outer = comm.split(comm.rank % 2)
    with Hierarchical.join(inner, outer, name="both") as levels:
        gathered = levels.all_gather(np.array([comm.rank]))
        return levels.rank, levels.ranks, gathered.tolist(), levels.all_reduce(np.ones(3), op="sum").tolist()


def test_two_communicators_that_form_a_grid_can_be_joined(engines: ml.Engines) -> None:
    for rank, value in enumerate(engines.run(joined)["value"]):
        assert value == (rank, (0, 1, 2, 3), [0, 1, 2, 3], [4.0] * 3)


def three_levels(comm: Any) -> Any:
    pair = comm.split(comm.rank // 2)
    across = comm.split(comm.rank % 2)
    halves = Hierarchical.join(pair.split(pair.rank), pair)  # two nodes of one rank
    with Hierarchical.join(halves, across) as levels:
        part = levels.reduce_scatter(np.arange(8.0))
        return part.tolist(), levels.all_reduce(np.array([comm.rank])).item(), levels.capabilities().collectives


def test_levels_nest(engines: ml.Engines) -> None:
    for rank, value in enumerate(engines.run(three_levels)["value"]):
        collectives = ("all_reduce", "all_gather", "reduce_scatter", "send", "recv", "send_recv", "barrier")
        assert value == ([8.0 * rank, 8.0 * rank + 4], 6, collectives)


def cut_twice(comm: Any) -> Any:
    with Hierarchical.cut(comm, 2) as levels, Hierarchical.cut(levels, [0, 1, 1, 0]) as nested:
        shifted = nested.send_recv(np.array([comm.rank]), dest=(comm.rank + 1) % 4, source=(comm.rank - 1) % 4)
        return nested.all_reduce(np.array([comm.rank])).item(), shifted.item()


def test_a_hierarchical_communicator_can_be_cut(engines: ml.Engines) -> None:
    assert engines.run(cut_twice)["value"].tolist() == [(6, 3), (6, 0), (6, 1), (6, 2)]


@given(st.data())
@settings(deadline=None, max_examples=examples(25))
def test_a_split_has_the_groups_of_the_flat_one(many_threads: ml.Engines, data: st.DataObject) -> None:
    nodes = data.draw(st.lists(st.integers(0, 2), min_size=6, max_size=6), "nodes")
    colors = data.draw(st.lists(st.sampled_from([None, 0, 1]), min_size=6, max_size=6), "colors")
    keys = data.draw(st.lists(st.integers(-2, 2), min_size=6, max_size=6), "keys")
    frame = many_threads.run(both_splits, arguments=(nodes, colors, keys))
    for flat, levels in frame["value"]:
        assert flat == levels


def both_splits(comm: Any, nodes: list[int], colors: list[int | None], keys: list[int]) -> Any:
    color, key, results = colors[comm.rank], keys[comm.rank], []
    with Hierarchical.cut(comm, nodes) as levels:
        for origin in (comm, levels):
            part = origin.split(color, key)
            if part is None:
                results.append(None)
                continue
            with part:
                total = part.all_reduce(np.array([comm.rank, 1])).tolist()
                left, right = (part.rank - 1) % part.size, (part.rank + 1) % part.size
                shifted = part.send_recv(np.array([comm.rank]), dest=right, source=left, tag=3).item()
                results.append((part.rank, part.ranks, part.name, total, shifted))
    return results


def grid(comm: Any) -> Hierarchical:
    """Two nodes of two ranks, joined without a communicator of all ranks."""
    inner, outer = comm.split(comm.rank // 2, name="node"), comm.split(comm.rank % 2, name="rail")
    return Hierarchical.join(inner, outer, name="grid")


def joined_messages(comm: Any) -> Any:
    # The ring 0 → 1 → 3 → 2 alternates between messages within a node and across nodes.
    ring = [0, 1, 3, 2]
    at = ring.index(comm.rank)
    right, left = ring[(at + 1) % 4], ring[at - 1]
    data, got = np.arange(40_000) + comm.rank, []
    with grid(comm) as levels:
        got.append(levels.send_recv(data, dest=right, source=left)[0])
        got.append(levels.send_recv(data, dest=comm.rank ^ 1, source=comm.rank ^ 1, tag=2)[0])
        got.append(
            levels.send_recv(data, dest=comm.rank ^ 2, source=comm.rank ^ 2, tag=levels.capabilities().largest_tag)[0]
        )
        got.append(levels.send_recv(data, dest=comm.rank, source=comm.rank, tag=1)[0])
        with levels.batch() as batch:
            late, early = (batch.recv(np.empty_like(data), left, tag=tag) for tag in (2, 1))
            for tag in (1, 2):
                batch.send(data + tag, right, tag=tag)
        got += [early[0], late[0]]
        if comm.rank == 0:
            levels.send(data, 2)
        elif comm.rank == 2:
            got.append(levels.recv(np.empty_like(data), 0)[0])
        return [int(number) for number in got]


def test_joined_communicators_carry_the_messages_of_ranks_that_share_one(engines: ml.Engines) -> None:
    ring = [0, 1, 3, 2]
    for rank, value in enumerate(engines.run(joined_messages)["value"]):
        left = ring[ring.index(rank) - 1]
        assert value == [left, rank ^ 1, rank ^ 2, rank, left + 1, left + 2, *([0] if rank == 2 else [])]


def split_grid(comm: Any, colors: list[int | None], keys: list[int]) -> Any:
    part = grid(comm).split(colors[comm.rank], keys[comm.rank])
    if part is None:
        return None
    with part:
        outer = None if part.outer is None else part.outer.ranks
        return part.name, part.ranks, part.inner.ranks, outer, part.all_reduce(np.array([comm.rank])).item()


@pytest.mark.parametrize(
    ("colors", "keys", "expected"),
    [
        ([0, 0, 1, 1], [0] * 4, {0: ("grid/0", (0, 1), (0, 1), (0,), 1), 3: ("grid/1", (2, 3), (2, 3), (3,), 5)}),
        ([5, 7, 5, 7], [0] * 4, {0: ("grid/5", (0, 2), (0,), (0, 2), 2), 3: ("grid/7", (1, 3), (3,), (1, 3), 4)}),
        ([0] * 4, [3, 2, 1, 0], {0: ("grid/0", (3, 2, 1, 0), (1, 0), (2, 0), 6)}),
        (
            [0, 0, 0, None],
            [0] * 4,
            {1: ("grid/0", (0, 1, 2), (0, 1), None, 3), 2: ("grid/0", (0, 1, 2), (2,), (0, 2), 3)},
        ),
        ([None] * 4, [0] * 4, {0: None, 3: None}),
    ],
)
def test_joined_communicators_are_split_on_both_levels(
    engines: ml.Engines, colors: list[int | None], keys: list[int], expected: dict[int, Any]
) -> None:
    values = engines.run(split_grid, arguments=(colors, keys))["value"].tolist()
    assert {rank: values[rank] for rank in expected} == expected


def test_capabilities_are_those_of_the_parts(thread_engines: ml.Engines) -> None:
    def capabilities(comm: Any, layout: list[int] | None) -> Any:
        with grid(comm) if layout is None else Hierarchical.cut(comm, layout) as levels:
            can = levels.capabilities()
            return can.collectives, can.largest_tag == comm.capabilities().largest_tag, can.facts

    messages = ("send", "recv", "send_recv", "barrier")
    collectives, has_tags, facts = thread_engines.run(capabilities, arguments=([0, 0, 1, 1],))["value"][0]
    assert collectives == ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", *messages)
    assert has_tags
    assert facts["messages"] == "on the communicator world"
    collectives, _, facts = thread_engines.run(capabilities, arguments=([0, 0, 0, 1],))["value"][0]
    assert collectives == ("all_reduce", "broadcast", "reduce", *messages)
    assert facts["all_gather"] == "no: the nodes have different sizes (3, 1 ranks)"
    collectives, has_tags, facts = thread_engines.run(capabilities, arguments=(None,))["value"][0]
    assert collectives[-4:] == messages
    assert has_tags
    assert facts["messages"] == "between ranks of one node, or with the same local rank"


def test_an_error_names_the_part_that_lacks_a_collective(thread_engines: ml.Engines) -> None:
    def reduce(comm: Any) -> None:
        pair, across = comm.split(comm.rank // 2), comm.split(comm.rank % 2)
        Hierarchical.join(Hierarchical.cut(pair, 1), across).reduce(np.ones(4))

    errors = thread_engines.run(reduce, check=False)["error"]
    reason = "hierarchical does not support reduce: the inner communicator (hierarchical) has no gather; choose one of"
    assert errors.str.contains(reason, regex=False).tolist() == [True] * 4


@pytest.mark.parametrize("nodes", [[0, 0, 1, 1], [0, 1, 1, 1]])
def test_traffic_reports_the_bytes_of_the_calls_that_run(thread_engines: ml.Engines, nodes: list[int]) -> None:
    for collective in ("all_reduce", "reduce", "broadcast", "reduce_scatter", "all_gather"):
        if len(set(map(nodes.count, nodes))) > 1 and collective in ("reduce_scatter", "all_gather"):
            continue
        for reported, issued in thread_engines.run(reported_and_issued, arguments=(nodes, collective))["value"]:
            assert reported == issued
            assert reported


def reported_and_issued(comm: Any, nodes: list[int], collective: str) -> Any:
    with Hierarchical.cut(comm, nodes) as levels:
        row = ml.comm.CATALOG[collective]
        send, out = (np.zeros(row.elements(side, 10, 4), "float32") for side in ("sends", "receives"))
        prepared = levels.prepare(collective, send, out, root=1 if row.rooted else None)
        issued = []
        for stage in prepared._prepared.stages:
            for call in getattr(stage, "calls", ()):
                n = stage._communicator.size
                size = call.collective.size_bytes(call.count, 4, n)
                issued.append(
                    (call.collective.name, n, size, round(size * call.collective.bus_factor(n)) if n > 1 else 0)
                )
        frame = levels.traffic(collective, 10, root=1)
        reported = frame[["collective", "n_ranks", "size_bytes", "bus_bytes"]].itertuples(index=False, name=None)
        return list(reported), issued


def test_only_a_fraction_of_the_data_crosses_nodes() -> None:
    def traffic(comm: Any) -> Any:
        with Hierarchical.cut(comm, 4) as levels:
            return levels.traffic("all_reduce", 1 << 20).groupby("level", sort=False)["bus_bytes"].sum().to_dict()

    with ml.launch(8, backend="threads") as engines:
        # S = 4 MiB. Each rank moves 3/4 of S twice within nodes, and 2 · 1/2 of S/4 across; the flat call 7/4 of S.
        assert engines.run(traffic)["value"][0] == {"inner": 2 * 3 << 20, "outer": 1 << 20}


def measured(comm: Any) -> Any:
    with Hierarchical.cut(comm, 2) as levels:
        x = np.zeros(1000)
        call = levels.prepare("all_reduce", x, x)
        return [call.measure(mode, 1, 4).time_us.shape for mode in levels.capabilities().modes]


def test_hierarchical_calls_are_measured(engines: ml.Engines) -> None:
    assert engines.run(measured)["value"].tolist() == [[(4,), (4,)]] * 4


@pytest.mark.usefixtures("patient_rounds")
@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda c: Hierarchical.cut(c, 0), "nodes must be a positive number of ranks per node, not 0"),
        (lambda c: Hierarchical.cut(c, [0, 1]), "nodes has 2 entries, but world has 4 ranks; pass one per rank"),
        (
            lambda c: Hierarchical.cut(c, [c.rank // 2, 0, 0, 1]),
            "the ranks of world pass different nodes; pass the same nodes on every rank",
        ),
        (
            lambda c: Hierarchical.cut(c, ml.DeviceMesh("dp=2, tp=2").hierarchy("dp", nodes=1)),
            None,
        ),
        (
            lambda c: Hierarchical.cut(c.split(c.rank % 2), ml.DeviceMesh("a=4").hierarchy("a", nodes=4)),
            "the hierarchy a_inner does not cover the ranks of world/[01]; pass the hierarchy of its axis",
        ),
        (lambda c: Hierarchical.join(c.split(int(c.rank > 0)), c), "do not form a grid; use nodes of equal size"),
        (
            lambda c: Hierarchical.cut(c, [0, 0, 0, 1]).reduce_scatter(np.ones(4)),
            r"hierarchical does not support reduce_scatter: the nodes have different sizes \(3, 1 ranks\); choose one "
            "of all_reduce, broadcast, reduce, send, recv, send_recv, barrier",
        ),
        (lambda c: Hierarchical.cut(c, 2).all_to_all(np.ones(4)), "hierarchical does not support all_to_all"),
        (
            lambda c: grid(c).split(int(c.rank in (1, 2))),
            r"cannot split grid: ranks \[0, 3\] would have local rank 0 of a new group, but they have local ranks "
            r"\[0, 1\], so no communicator connects them across nodes; choose colors and keys that keep",
        ),
        (lambda c: Hierarchical.cut(c, 2).split(-1), "split of world: color must be a non-negative integer or None"),
        (lambda c: grid(c).split(0, key="last"), "split of grid: key must be an integer, not 'last'"),
        (lambda c: closed(grid(c)).split(0), "the communicator of grid is closed"),
        (
            lambda c: grid(c).send_recv(np.ones(2), dest=3 - c.rank, source=3 - c.rank),
            r"rank \d \(node \d, local rank \d\) and rank \d \(node \d, local rank \d\) share neither the inner nor "
            "the outer communicator, and joined communicators have none of all ranks; create the hierarchical",
        ),
        (lambda c: Hierarchical.cut(c, 2).gather(np.ones(4)), "hierarchical does not support gather; choose one of"),
        (
            lambda c: Hierarchical.cut(c, 2).traffic("send", 4),
            "send has no stages: a message moves from one rank to another",
        ),
        (
            lambda c: batch_of(Hierarchical.cut(c, 2)),
            "a hierarchical communicator does not support batches with collectives; issue the calls separately",
        ),
        (
            lambda c: Hierarchical.cut(c, [0, 1, 1, 1]).traffic("all_gather", 4),
            r"all_gather is not supported by hierarchical communicators on nodes of different sizes \(1, 3 ranks\)",
        ),
        (lambda c: closed(Hierarchical.cut(c, 2)).barrier(), "the communicator of world is closed"),
    ],
)
def test_invalid_use_is_rejected(thread_engines: ml.Engines, use: Any, message: str | None) -> None:
    errors = thread_engines.run(lambda c: (use(c), None)[1], check=False)["error"]
    if message is None:
        assert errors.isna().all()
    else:
        assert errors.str.contains(message).fillna(False).all(), errors.tolist()


def batch_of(levels: Hierarchical) -> None:
    with levels.batch() as batch:
        batch.all_reduce(np.ones(2))


def closed(levels: Hierarchical) -> Hierarchical:
    levels.close()
    return levels


def test_communicators_in_different_memory_are_rejected() -> None:
    def join(comm: Any) -> None:
        class Elsewhere(type(comm.backend)):  # type: ignore[misc]
            xp = np.linalg

        other = comm.split(0)
        other.backend.__class__ = Elsewhere
        Hierarchical.join(comm, other)

    with ml.launch(1, backend="threads") as engines:
        assert "join communicators with the same array module" in engines.run(join, check=False)["error"][0]


def test_errors_name_the_group(thread_engines: ml.Engines) -> None:
    def wrong(comm: Any) -> Any:
        with Hierarchical.cut(comm, 2) as levels:
            try:
                levels.broadcast(np.ones(2), root=4)
            except CommunicatorError as error:
                return error.group, error.rank

    assert thread_engines.run(wrong)["value"].tolist() == [("world", rank) for rank in range(4)]


def threads_in_processes(comm: Any) -> Any:
    """Two threads per process, connected within the process through memory and across processes through MPI."""
    world = ThreadWorld(2)
    across = [comm.split(0) for _ in range(2)]
    results: dict[int, Any] = {}

    def work(place: int) -> None:
        with Hierarchical.join(Communicator(world.backend(place)), across[place]) as levels:
            rank = np.array([float(levels.rank)])
            results[place] = levels.all_reduce(rank).item(), levels.all_gather(rank).tolist(), levels.ranks

    threads = [threading.Thread(target=work, args=(place,)) for place in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


def test_two_backends_form_one_communicator(mpi_engines: ml.Engines) -> None:
    if mpi_engines.ranks[0].capabilities.facts["thread level"] != "3":
        pytest.skip("this MPI does not support calls from several threads")
    ranks = tuple(range(8))
    for value in mpi_engines.run(threads_in_processes)["value"]:
        assert value == {place: (28.0, [float(rank) for rank in ranks], ranks) for place in (0, 1)}
