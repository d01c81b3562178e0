"""One suite for all backends: every collective, dtype, operation, size and root, compared with numpy.

The loops run inside one call on the ranks, so that a group is checked in one round and all errors are reported
together. The suite covers the capabilities that a backend reports. Separate tests check that it rejects all other
calls.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import cloudpickle
import ml_dtypes
import numpy as np
import pytest

import meshlab as ml
from meshlab.comm._catalog import CATALOG
from meshlab.comm._elements import DTYPES, OPS, pre_mul_sum
from meshlab.comm.backends._hierarchical import Hierarchical
from tests.conftest import ENGINES

cloudpickle.register_pickle_by_value(sys.modules[__name__])

Arrays = list[np.ndarray]
SIZES = {"float32": [0, 1, 7, 64], "bfloat16": [0, 1, 64], "int8": [0, 7]}
OTHER_SIZES = [7]
LARGE = (1 << 20) // 4 + 3
SCALAR = 3  # exact in every dtype


@pytest.fixture(params=ENGINES)
def engines(request: pytest.FixtureRequest) -> ml.Engines:
    return request.getfixturevalue(ENGINES[request.param])


NODES: dict[str, Callable[[int, int], int]] = {
    "two nodes": lambda rank, n: 2 * rank // n,
    "alternating nodes": lambda rank, n: rank % 2,
    "uneven nodes": lambda rank, n: min(rank, 1),
}
"""Layouts of hierarchical communicators: the node of each rank in a group of n ranks."""

LEVELS = [
    ("threads", "two nodes"),
    pytest.param(("threads", "alternating nodes"), marks=pytest.mark.full),
    pytest.param(("threads", "uneven nodes"), marks=pytest.mark.full),
    pytest.param(("mpi", "two nodes"), marks=pytest.mark.full),
    pytest.param(("mpi", "uneven nodes"), marks=pytest.mark.long),
]


class HierarchicalEngines:
    """Engines that call functions with a hierarchical communicator over the group, cut by a layout of `NODES`."""

    def __init__(self, engines: ml.Engines, nodes: str) -> None:
        self._engines = engines
        self._nodes = nodes
        self.world_size = engines.world_size

    def run(self, function: Callable[..., Any], *mesh: ml.DeviceMesh, **options: Any) -> Any:
        return self._engines.run(partial(on_levels, function, self._nodes), *mesh, **options)


def on_levels(function: Callable[..., Any], nodes: str, comm: Any, *arguments: Any) -> Any:
    with Hierarchical.cut(comm, [NODES[nodes](rank, comm.size) for rank in range(comm.size)]) as levels:
        return function(levels, *arguments)


@pytest.fixture(
    params=[*((name, None) for name in ENGINES), *LEVELS],
    ids=lambda param: param[0] if param[1] is None else f"{param[1]} on {param[0]}",
)
def communicators(request: pytest.FixtureRequest) -> Any:
    """The engines of every backend, and engines with hierarchical communicators."""
    backend, nodes = request.param
    engines = request.getfixturevalue(ENGINES[backend])
    return engines if nodes is None else HierarchicalEngines(engines, nodes)


class Given(NamedTuple):
    """Arguments of a call, without its arrays."""

    op: str | None = None
    root: int | None = None
    shift: int | None = None
    dtype: str | None = None

    def arguments(self, comm: Any) -> dict[str, Any]:
        wanted: dict[str, Any] = {"op": self.op, "root": self.root, "dtype": self.dtype}
        if self.shift is not None:
            wanted["dest"] = (comm.rank + self.shift) % comm.size
            wanted["source"] = (comm.rank - self.shift) % comm.size
        return {name: value for name, value in wanted.items() if value is not None}


def counts_of(n: int, size: int) -> np.ndarray:
    """Return the number of elements that each rank sends to each rank in all_to_all_v: different, sometimes zero."""
    return np.array(
        [[(size * (1 + sender + 2 * receiver)) % (size + 3) for receiver in range(n)] for sender in range(n)]
    )


# -- numpy: from the inputs of all ranks to the outputs of all ranks ---------------------------------------------------


def reduce_all(inputs: Arrays, given: Given) -> np.ndarray:
    """Return the reduction: in float64 for floating point, with overflow as in the dtype for integers."""
    dtype = inputs[0].dtype
    is_integer = dtype.kind in "iu"
    terms = np.array(inputs) if is_integer else np.array([data.astype(np.float64) for data in inputs])
    op = given.op or "sum"
    if op.startswith("pre_mul_sum"):
        terms, op = terms * terms.dtype.type(SCALAR), "sum"
    kept = {"dtype": terms.dtype} if op in ("sum", "prod", "avg") else {}
    reduce = {"sum": np.sum, "avg": np.sum, "prod": np.prod, "min": np.min, "max": np.max}[op]
    total = reduce(terms, axis=0, **kept)
    if op == "avg":
        n = len(inputs)
        exact = [abs(int(t)) // n * (-1 if t < 0 else 1) for t in total] if is_integer else []  # Python integers
        total = np.array(exact, object) if is_integer else total / n
    return total.astype(dtype) if is_integer else total


def expected_outputs(name: str, inputs: Arrays, given: Given) -> list[np.ndarray | None]:
    n, root = len(inputs), given.root or 0
    if name == "all_reduce":
        return [reduce_all(inputs, given)] * n
    if name == "reduce":
        return [reduce_all(inputs, given) if rank == root else None for rank in range(n)]
    if name == "reduce_scatter":
        return list(np.split(reduce_all(inputs, given), n))
    if name == "all_gather":
        return [np.concatenate(inputs)] * n
    if name == "gather":
        return [np.concatenate(inputs) if rank == root else None for rank in range(n)]
    if name == "scatter":
        return list(np.split(inputs[root], n))
    if name == "broadcast":
        return [inputs[root]] * n
    if name == "all_to_all":
        return [np.concatenate([np.split(data, n)[rank] for data in inputs]) for rank in range(n)]
    if name == "send_recv":
        return [inputs[(rank - (given.shift or 0)) % n] for rank in range(n)]
    raise NotImplementedError(name)


def magnitude(name: str, inputs: Arrays, given: Given, me: int) -> np.ndarray:
    """Return the sum (or product) of magnitudes for every element of a reduction."""
    positive = [np.abs(data) for data in inputs]
    return np.asarray(expected_outputs(name, positive, given)[me])


# -- on the ranks ------------------------------------------------------------------------------------------------------


def inputs_of(ranks: Sequence[int], size: int, dtype: np.dtype[Any], op: str | None) -> Arrays:
    """Return the inputs of all ranks. Every rank computes all of them."""
    inputs = []
    for rank in ranks:
        random = np.random.default_rng([rank, size])
        if dtype.kind in "iu":
            data = random.integers(-100, 100, size) if op != "prod" else random.integers(-3, 4, size)
        else:
            data = random.normal(size=size) if op != "prod" else random.uniform(0.5, 1.5, size)
        inputs.append(data.astype(dtype))
    return inputs


def cases(comm: Any, dtype: str) -> Iterator[tuple[str, Given]]:
    """Yield every call that the backend supports with a dtype, in the same order on all ranks."""
    can = comm.capabilities()
    carried = dtype if dtype.startswith("float8") else None
    for name, row in CATALOG.items():
        if name not in can.collectives or not row.is_measurable or row.counted:
            continue
        ops = [f"pre_mul_sum({SCALAR})" if op == "pre_mul_sum" else op for op in can.ops] if row.reduces else [None]
        if row.reduces and dtype not in (can.dtypes if can.reduce_dtypes is None else can.reduce_dtypes):
            continue
        roots = sorted({0, comm.size - 1} if dtype == "float32" else {comm.size - 1}) if row.rooted else [None]
        shifts = sorted({0, 1, comm.size - 1}) if row.peers else [None]
        for op in ops:
            for root in roots:
                for shift in shifts:
                    yield name, Given(op, root, shift, carried)


class Checker:
    """Runs calls on one rank and collects those with a wrong result."""

    def __init__(self, comm: Any) -> None:
        self.comm = comm
        self.wrong: list[str] = []

    def put(self, data: np.ndarray) -> Any:
        array = self.comm.xp.asarray(data.view(np.uint8) if data.dtype.name.startswith("float8") else data)
        return array.copy()

    def expect(
        self, what: str, got: Any, expected: np.ndarray | None, dtype: np.dtype[Any], tolerance: Any = 0.0
    ) -> None:
        if (got is None) != (expected is None):
            self.wrong.append(f"{what}: {got} is not {expected}")
        elif got is not None and expected is not None:
            host = np.asarray(got.get() if hasattr(got, "get") else got).view(dtype)
            away = np.abs(host.astype(expected.dtype) - expected) if dtype.kind not in "iu" else host != expected
            if host.shape != expected.shape or not np.all(away <= tolerance):
                self.wrong.append(f"{what} on {self.comm.name}: {host[:8]} is not {expected[:8]}")

    def check(self, name: str, given: Given, size: int, dtype: np.dtype[Any]) -> None:
        comm, row = self.comm, CATALOG[name]
        n, me = comm.size, comm.rank
        inputs = inputs_of(comm.ranks, row.elements("sends", size, n), dtype, given.op)
        expected = expected_outputs(name, inputs, given)[me]
        tolerance: Any = 0.0
        if row.reduces and expected is not None and dtype.kind not in "iu" and given.op not in ("min", "max"):
            roundings = (n + 1) * float(ml_dtypes.finfo(dtype).eps) / 2
            if dtype == np.float64:  # the expected value is rounded as often
                roundings *= 2
            bound = roundings / (1 - roundings) if roundings < 1 else np.inf  # many ranks and few bits: no bound
            tolerance = bound * (magnitude(name, inputs, given, me) + np.finfo(float).tiny)
        is_root = given.root in (None, me)
        what = f"{name} {given} {dtype} {size}"

        send, method = self.put(inputs[me]), getattr(comm, name)
        self.expect(what, method(send, **given.arguments(comm)), expected, dtype, tolerance)
        self.expect(f"{what} does not change its input", send, inputs[me].astype(_wide(dtype)), dtype)
        if not row.in_place:
            return
        n_send, n_recv = row.elements("sends", size, n), row.elements("receives", size, n)
        buffer = comm.xp.zeros(max(n_send, n_recv), send.dtype)
        own = buffer[me * size :][:size]
        send = own if n_send < n_recv else buffer
        out = own if n_recv < n_send else buffer
        send[...] = self.put(inputs[me])
        got = method(send, out if is_root or row.only_root != "receives" else None, **given.arguments(comm))
        self.expect(f"{what} in place", got, expected, dtype, tolerance)

    def check_counts(self, size: int, dtype: np.dtype[Any], given: Given) -> None:
        comm = self.comm
        if "all_to_all_v" not in comm.capabilities().collectives:
            return
        n, me = comm.size, comm.rank
        counts = counts_of(n, size)
        inputs = [
            inputs_of([rank], int(counts[number].sum()), dtype, None)[0] for number, rank in enumerate(comm.ranks)
        ]
        parts = [np.split(data, np.cumsum(counts[number])[:-1]) for number, data in enumerate(inputs)]
        expected = np.concatenate([of_sender[me] for of_sender in parts])
        send, given_counts = self.put(inputs[me]), {"send_counts": counts[me].tolist()}
        arguments = given.arguments(comm)
        for known in ({}, {"recv_counts": counts[:, me].tolist()}):
            got = comm.all_to_all_v(send, **given_counts, **known, **arguments)
            self.expect(f"all_to_all_v {known} {dtype} {size}", got, expected.astype(_wide(dtype)), dtype)

    def check_messages(self, size: int, dtype: np.dtype[Any], given: Given) -> None:
        """Send to the next rank, with even ranks first. Then send to all in one batch, together with collectives."""
        comm = self.comm
        n, me = comm.size, comm.rank
        inputs = inputs_of(comm.ranks, size, dtype, None)
        arguments = given.arguments(comm)
        send, out = self.put(inputs[me]), self.put(inputs[me])
        left = (me - 1) % n
        if n % 2 == 0:
            for turn in (0, 1):
                if me % 2 == turn:
                    comm.send(send, (me + 1) % n, **arguments)
                else:
                    comm.recv(out, left, **arguments)
            self.expect(f"send and recv {dtype} {size}", out, inputs[left].astype(_wide(dtype)), dtype)
        with comm.batch() as batch:
            outs = [batch.recv(self.put(inputs[me]), source, **arguments) for source in range(n)]
            gathered = batch.all_gather(send, **arguments) if batches_collectives(comm) else None
            for dest in range(n):
                batch.send(send, dest, **arguments)
            shifted = batch.send_recv(send, dest=(me + 1) % n, source=left, **arguments)
            parts = batch.gather(send, root=n - 1, **arguments) if batches_collectives(comm) else None
        for source in range(n):
            self.expect(f"batch {dtype} {size}", outs[source], inputs[source].astype(_wide(dtype)), dtype)
        if batches_collectives(comm):
            everything = np.concatenate(inputs).astype(_wide(dtype))
            self.expect(f"all_gather in a batch {dtype} {size}", gathered, everything, dtype)
            self.expect(f"gather in a batch {dtype} {size}", parts, everything if me == n - 1 else None, dtype)
        self.expect(f"send_recv in a batch {dtype} {size}", shifted, inputs[left].astype(_wide(dtype)), dtype)


def batches_collectives(comm: Any) -> bool:
    """Return whether a batch may contain collectives. The stages of a hierarchical call must run in order."""
    return bool(comm.capabilities().backend != "hierarchical")


def _wide(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return dtype if dtype.kind in "iu" else np.dtype(np.float64)


def check_all(comm: Any) -> list[str]:
    """Return the calls with a wrong result. Runs on every rank."""
    checker = Checker(comm)
    with comm.backend.local():
        for name in comm.capabilities().dtypes:
            dtype = DTYPES[name]
            plain = Given(dtype=name if name.startswith("float8") else None)
            for size in SIZES.get(name, OTHER_SIZES):
                for collective, given in cases(comm, name):
                    checker.check(collective, given, size, dtype)
                checker.check_counts(size, dtype, plain)
                checker.check_messages(size, dtype, plain)
        comm.barrier()
    return checker.wrong


def check_large(comm: Any) -> list[str]:
    checker = Checker(comm)
    with comm.backend.local():
        for name in ("float32", "bfloat16"):
            for collective, given in cases(comm, name):
                if given.op in (None, "sum", "avg") and given.root in (None, comm.size - 1):
                    checker.check(collective, given, LARGE // comm.size, DTYPES[name])
        checker.check_messages(LARGE, DTYPES["float32"], Given())
        checker.check_counts(LARGE // comm.size, DTYPES["float32"], Given())
    return checker.wrong


def check_nan(comm: Any) -> list[str]:
    """Reduce with NaN on every subset of the ranks: bit r of the position shows whether rank r has NaN."""
    checker, can = Checker(comm), comm.capabilities()
    n, me = comm.size, comm.rank
    has_nan = np.arange(1 << n)[None, :] >> np.arange(n)[:, None] & 1 == 1
    for name in can.dtypes if can.reduce_dtypes is None else can.reduce_dtypes:
        dtype = DTYPES[name]
        if dtype.kind in "iu":
            continue
        values = np.random.default_rng(len(name)).normal(size=has_nan.shape).astype(dtype)
        if not name.startswith("float8"):  # e4m3 has no infinity
            values[:, 1], values[0, 0] = np.inf, -np.inf
        values[has_nan] = np.nan
        wide = values.astype(np.float64)
        carried = {"dtype": name} if name.startswith("float8") else {}
        for op, highest in ("min", np.inf), ("max", -np.inf):
            numbers = np.where(np.isnan(wide), highest, wide)
            best = numbers.min(axis=0) if op == "min" else numbers.max(axis=0)
            expected = np.where(has_nan.all(axis=0), np.nan, best)
            send, out = checker.put(values[me]), checker.put(values[me])
            prepared = comm.prepare("all_reduce", send, out, op=op, **carried)
            prepared()
            results = [("prepared all_reduce", out, expected)]
            results.append(("all_reduce", comm.all_reduce(send, op=op, **carried), expected))
            results.append(("repeated all_reduce", comm.all_reduce(send, op=op, **carried), expected))
            in_place = checker.put(values[me])
            results.append(("all_reduce in place", comm.all_reduce(in_place, in_place, op=op, **carried), expected))
            if "reduce" in can.collectives:
                got = comm.reduce(send, op=op, root=n - 1, **carried)
                results.append(("reduce", got, expected if me == n - 1 else None))
            if "reduce_scatter" in can.collectives:
                repeated = checker.put(np.tile(values[me], n))
                results.append(("reduce_scatter", comm.reduce_scatter(repeated, op=op, **carried), expected))
            if batches_collectives(comm):
                with comm.batch() as batch:
                    got = batch.all_reduce(send, op=op, **carried)
                results.append(("all_reduce in a batch", got, expected))
            for what, got, wanted in results:
                if got is not None:
                    got = comm.to_host(got).view(dtype).astype(np.float64)
                if got is not wanted and not np.array_equal(got, wanted, equal_nan=True):
                    checker.wrong.append(f"{what} {op} {name}: {got} is not {wanted}")
    return checker.wrong


def check_tags(comm: Any) -> list[str]:
    """Receive messages in another order of their tags than that in which they were sent."""
    checker, can = Checker(comm), comm.capabilities()
    n, me = comm.size, comm.rank
    if not can.largest_tag:
        return []
    tags = [3, 1, can.largest_tag, 1, 2, 3]

    def message(sender: int, receiver: int, number: int, size: int) -> np.ndarray:
        return np.arange(size, dtype=np.int64) + 1_000_000 * sender + 1000 * receiver + number

    for size in (1, 1000, 40_000):  # a library may send large messages only when they are received
        if n > 1 and me == 0:
            for order in (tags, [0, 5, 0, 6]):
                for number, tag in enumerate(order):
                    comm.send(checker.put(message(0, n - 1, number, size)), n - 1, tag=tag)
        if n > 1 and me == n - 1:
            # The receives of a tag have the order of the sends with this tag.
            for order, numbers in (tags, [2, 1, 0, 3, 5, 4]), ([0, 5, 0, 6], [3, 1, 0, 2]):
                for number in numbers:
                    got = comm.recv(checker.put(message(0, 0, 0, size)), 0, tag=order[number])
                    expected = message(0, n - 1, number, size)
                    checker.expect(f"message {number} with tag {order[number]}", got, expected, expected.dtype)
        left, right = (me - 1) % n, (me + 1) % n
        send, out = checker.put(message(me, right, 0, size)), checker.put(message(me, me, 0, size))
        exchange = comm.prepare("send_recv", send, out, dest=right, source=left, tag=7)
        for repetition in range(3):
            send += 1
            exchange()
            expected = message(left, me, repetition + 1, size)
            checker.expect(f"repetition {repetition} of a prepared send_recv", out, expected, expected.dtype)
        # Every rank sends to every rank, in an order of its own.
        random = np.random.default_rng([me, size])
        sends = [(dest, number) for dest in range(n) for number in range(len(tags))]
        receives = [(source, number) for source in range(n) for number in range(len(tags))]
        sends = in_order_of_tags([sends[index] for index in random.permutation(len(sends))], tags)
        receives = in_order_of_tags([receives[index] for index in random.permutation(len(receives))], tags)
        with comm.batch() as batch:
            outs = [batch.recv(checker.put(message(0, 0, 0, size)), source, tag=tags[k]) for source, k in receives]
            plain = batch.send_recv(send, dest=right, source=left)
            for dest, k in sends:
                batch.send(checker.put(message(me, dest, k, size)), dest, tag=tags[k])
            total = batch.all_reduce(send) if batches_collectives(comm) else None
        for (source, k), got in zip(receives, outs, strict=True):
            expected = message(source, me, k, size)
            checker.expect(f"message {k} of rank {source} in a batch", got, expected, expected.dtype)
        expected = message(left, me, 3, size)
        checker.expect("send_recv without a tag in a batch", plain, expected, expected.dtype)
        if batches_collectives(comm):
            expected = sum(message(rank, (rank + 1) % n, 3, size) for rank in range(n))
            checker.expect("all_reduce in a batch", total, expected, expected.dtype)
    return checker.wrong


def in_order_of_tags(messages: list[tuple[int, int]], tags: list[int]) -> list[tuple[int, int]]:
    """Order the messages of each rank and tag by their number, in the places that they have together."""
    ordered = sorted(messages, key=lambda message: message[1])
    return [
        ordered.pop(next(i for i, (rank, k) in enumerate(ordered) if (rank, tags[k]) == (peer, tags[number])))
        for peer, number in messages
    ]


def run_on(engines: ml.Engines | HierarchicalEngines, check: Callable[[Any], list[str]], axis: str) -> None:
    n = engines.world_size
    mesh = ml.DeviceMesh("dp=2, tp=-1, one=1", world_size=n) if n % 2 == 0 else ml.DeviceMesh(one=1, rest=n)
    if n >= 4:
        mesh = mesh.with_group("three", [3, 0, 1])
    if axis not in ("world", *mesh.axis_names, "three" if n >= 4 else "world"):
        pytest.skip(f"{n} ranks have no group for {axis!r}")
    frame = engines.run(check, mesh, axis=axis)
    wrong = [wrong for value in frame["value"] for wrong in value]
    assert not wrong, f"{len(wrong)} calls are wrong:\n" + "\n".join(wrong[:40])
    assert len(frame) == (3 if axis == "three" else n)


@pytest.mark.parametrize("axis", ["world", "dp", "one", "three"])
def test_every_collective_agrees_with_numpy(communicators: Any, axis: str) -> None:
    run_on(communicators, check_all, axis)


@pytest.mark.parametrize("axis", ["world", pytest.param("tp", marks=pytest.mark.full)])
def test_a_mebibyte_arrives_intact(communicators: Any, axis: str) -> None:
    run_on(communicators, check_large, axis)


@pytest.mark.parametrize("axis", ["world", "dp", "three"])
def test_the_minimum_and_the_maximum_ignore_nan(communicators: Any, axis: str) -> None:
    run_on(communicators, check_nan, axis)


@pytest.mark.parametrize("axis", ["world", "dp", "one"])
def test_messages_are_received_by_their_tags(communicators: Any, axis: str) -> None:
    run_on(communicators, check_tags, axis)


def receive_something_else(comm: Any, tag: int) -> str:
    sent = np.zeros(4, "float32")
    wrong = [np.zeros(3, "float32"), np.zeros(4, "int32"), np.zeros(8, "float32")]
    messages = []
    for out in wrong:
        try:
            if comm.rank == 0:
                comm.send(sent, 1, tag=tag)
            elif comm.rank == 1:
                comm.recv(out, 0, tag=tag)
        except ml.errors.CommunicatorError as error:
            messages.append(str(error))
        comm.barrier()
    if comm.rank == 1:
        return "\n".join(messages)
    return ""


@pytest.mark.parametrize("tag", [0, 9])
def test_a_message_with_another_count_or_dtype_is_an_error(communicators: Any, tag: int) -> None:
    lines = communicators.run(receive_something_else, arguments=(tag,))["value"][1].splitlines()
    assert [("float32" in line, "int32" in line) for line in lines] == [(True, False), (True, True), (True, False)]
    for line in lines:
        assert "ranks disagree: rank 0" in line
        assert "pass the same count and dtype on both" in line
        assert not tag or re.search("tag[ =]9", line)


@pytest.mark.usefixtures("patient_rounds")
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_dtype_is_supported_or_rejected(engines: ml.Engines, dtype: str) -> None:
    can = engines.ranks[0].capabilities

    def call(comm: Any) -> None:
        comm.all_gather(comm.xp.zeros(4, "uint8" if dtype.startswith("float8") else DTYPES[dtype]), dtype=dtype)

    errors = engines.run(call, check=False)["error"]
    if dtype in can.dtypes:
        assert errors.isna().all()
    else:
        assert errors.str.contains(f"{can.backend} does not support {dtype}; choose one of bfloat16, float16").all()


def test_missing_collectives_and_operations(engines: ml.Engines) -> None:
    can = engines.ranks[0].capabilities
    missing = [name for name in CATALOG if name not in can.collectives]
    missing += [name for name in OPS if name not in can.ops]
    if missing:
        pytest.skip(f"{can.backend} does not support {', '.join(missing)}")


def split_by_parity(comm: Any) -> tuple[Any, ...]:
    child = comm.split(comm.rank % 2 if comm.rank != 3 else None, key=-comm.rank)
    if child is None:
        return ("outside",)
    with child:
        return child.rank, child.ranks, child.all_gather(comm.xp.array([comm.rank])).tolist()


def test_split_orders_by_key_and_excludes_ranks_without_a_color(communicators: Any) -> None:
    frame = communicators.run(split_by_parity)
    assert frame["value"].tolist() == [(1, (2, 0), [2, 0]), (0, (1,), [1]), (0, (2, 0), [2, 0]), ("outside",)]


def shapes(comm: Any) -> dict[str, Any]:
    x = comm.xp.ones((4, 3))
    gathered = comm.gather(x, root=1)
    return {
        "all_reduce": comm.all_reduce(x).shape,
        "all_gather": comm.all_gather(x).shape,
        "gather": None if gathered is None else gathered.shape,
        "reduce_scatter": comm.reduce_scatter(x).shape,
        "scatter": comm.scatter(x).shape,
        "all_to_all": comm.all_to_all(x).shape,
        "all_to_all_v": comm.all_to_all_v(x, send_counts=[3, 3, 3, 3]).shape,
        "send_recv": comm.send_recv(x, dest=comm.rank, source=comm.rank).shape,
        "scalar": comm.all_gather(comm.xp.ones(())).shape,
        "into": comm.all_gather(comm.xp.ones(3), comm.xp.empty((4, 3))).shape,
    }


def test_shapes_of_new_outputs(engines: ml.Engines) -> None:
    for rank, value in enumerate(engines.run(shapes)["value"]):
        assert value == {
            "all_reduce": (4, 3),
            "all_gather": (16, 3),
            "gather": (16, 3) if rank == 1 else None,
            "reduce_scatter": (1, 3),
            "scatter": (1, 3),
            "all_to_all": (4, 3),
            "all_to_all_v": (12,),
            "send_recv": (4, 3),
            "scalar": (4,),
            "into": (4, 3),
        }


def only_the_root_has_buffers(comm: Any) -> list[Any]:
    n, me, xp = comm.size, comm.rank, comm.xp
    x = xp.arange(2.0 * n)
    out = xp.full(2, -1.0)
    comm.scatter(x if me == 2 else None, out, root=2)
    untouched = [xp.full(2 * n, -1.0), xp.full(2, -1.0)]
    comm.gather(out, untouched[0], root=2)
    comm.reduce(out, untouched[1], root=2)
    return [out.tolist(), untouched[0].tolist(), untouched[1].tolist()]


def test_buffers_of_the_root_are_optional_and_unchanged_elsewhere(engines: ml.Engines) -> None:
    for rank, (part, gathered, total) in enumerate(engines.run(only_the_root_has_buffers)["value"]):
        assert part == [2.0 * rank, 2.0 * rank + 1]
        assert gathered == (list(range(8)) if rank == 2 else [-1] * 8)
        assert total == ([12, 16] if rank == 2 else [-1, -1])


def weighted(comm: Any) -> list[float]:
    return comm.all_reduce(comm.xp.ones(2), op=pre_mul_sum(comm.rank)).tolist()


def test_scalars_may_differ_between_ranks(communicators: Any) -> None:
    assert communicators.run(weighted)["value"].tolist() == [[6.0, 6.0]] * 4


def measure(comm: Any) -> list[Any]:
    x = comm.xp.zeros(1024)
    call = comm.prepare("all_reduce", x, x)
    isolated, pipelined = call.measure("isolated", 1, 5), call.measure("pipelined", 10, 3)
    with comm.batch() as batch:
        batch.send_recv(x, comm.xp.zeros(1024), dest=(comm.rank + 1) % comm.size, source=(comm.rank - 1) % comm.size)
        batch.all_gather(x)
        several = batch.prepare().measure("pipelined", 2, 4)
    return [
        isolated.time_us.shape,
        isolated.start_us is not None,
        pipelined.time_us.shape,
        pipelined.start_us is None,
        several.time_us.shape,
    ]


def test_measure_returns_one_time_per_batch(engines: ml.Engines) -> None:
    assert engines.run(measure)["value"].tolist() == [[(5,), True, (3,), True, (4,)]] * 4
