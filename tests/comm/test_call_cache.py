"""Repeated calls skip the checks, but use the arrays as they are at that moment."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Iterator
from typing import Any

import cloudpickle
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import meshlab as ml
from meshlab.base._errors import CommunicatorError
from meshlab.comm._communicator import Communicator
from meshlab.comm.backends._threads import ThreadWorld
from tests.examples import examples

cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture(scope="module")
def pair() -> Iterator[ml.Engines]:
    with ml.launch(2, backend="threads") as engines:
        yield engines


@pytest.fixture
def alone() -> Communicator:
    return Communicator(ThreadWorld(1).backend(0))


def test_a_buffer_can_be_freed_and_its_memory_reused(alone: Communicator) -> None:
    for number in range(100):  # numpy gives the same address to most of these arrays
        x = np.full(1000, float(number))
        assert (alone.all_reduce(x) == number).all()
        del x


def test_arrays_are_not_kept_alive(alone: Communicator) -> None:
    x, out = np.ones(8), np.ones(8)
    for _ in range(3):
        alone.all_reduce(x, out)
        alone.broadcast(x, out)
        alone.all_reduce(x)
    references = [weakref.ref(x), weakref.ref(out)]
    del x, out
    gc.collect()
    assert [reference() for reference in references] == [None, None]


def test_mpi_keeps_no_arrays_alive(mpi_engines: ml.Engines) -> None:
    def survivors(comm: Any) -> int:
        x, out = np.ones(8, "float16"), np.ones(8, "float16")
        for _ in range(2):
            comm.all_reduce(x, out, op="avg")
            comm.all_gather(x)
            comm.broadcast(x, out)
        references = [weakref.ref(x), weakref.ref(out)]
        del x, out
        gc.collect()
        return sum(reference() is not None for reference in references)

    assert mpi_engines.run(survivors)["value"].tolist() == [0] * 4


def test_an_array_that_changed_is_checked_again(alone: Communicator) -> None:
    x, out = np.ones(8), np.zeros(8)
    for _ in range(2):
        alone.all_reduce(x, out)
    out.flags.writeable = False
    with pytest.raises(CommunicatorError, match="out is read-only"):
        alone.all_reduce(x, out)
    out.flags.writeable = True
    out.resize(6, refcheck=False)
    with pytest.raises(CommunicatorError, match="out has 6 elements"):
        alone.all_reduce(x, out)
    x.dtype = "int64"  # type: ignore[misc]
    with pytest.raises(CommunicatorError, match="out is float64, but the input is int64"):
        alone.all_reduce(x, np.zeros(8))
    with pytest.raises(CommunicatorError, match="must be contiguous"):
        alone.all_reduce(np.ones(16)[::2], np.zeros(8))


def test_invalid_arguments_that_equal_valid_ones_are_rejected(alone: Communicator) -> None:
    x = np.ones(4)
    for _ in range(2):
        alone.broadcast(x, root=0)
        alone.all_reduce(x)
    for call in (
        lambda: alone.broadcast(x, root=0.0),  # type: ignore[arg-type]
        lambda: alone.all_reduce(x, op=["sum"]),  # type: ignore[arg-type]
        lambda: alone.all_reduce(list(x)),
    ):
        with pytest.raises(CommunicatorError):
            call()


def test_overlapping_arrays_are_told_from_separate_ones(pair: ml.Engines) -> None:
    def gather(comm: Any) -> list[Any]:
        whole, results = np.zeros(6), []
        for _ in range(2):
            own = whole[3 * comm.rank :][:3]
            own[:] = comm.rank + 1
            results.append(comm.all_gather(own, whole).tolist())
            results.append(comm.all_gather(np.full(3, 5.0), whole).tolist())
            try:
                comm.all_gather(whole[1:4], whole)
            except CommunicatorError as error:
                results.append(str(error).partition(":")[2][:27])
        return results

    expected = [[1.0, 1, 1, 2, 2, 2], [5.0] * 6, " the input and out overlap,"]
    assert pair.run(gather)["value"].tolist() == [expected * 2] * 2


def test_a_closed_communicator_rejects_known_calls(alone: Communicator) -> None:
    x = np.ones(4)
    for _ in range(2):
        alone.all_reduce(x)
    alone.close()
    with pytest.raises(CommunicatorError, match="is closed"):
        alone.all_reduce(x)


def test_the_hook_and_the_monitor_see_known_calls() -> None:
    entered: list[int] = []
    comm = Communicator(ThreadWorld(1).backend(0), on_enter=lambda: entered.append(1))
    for _ in range(3):
        comm.all_reduce(np.ones(2))
    assert len(entered) == 3


def test_the_number_of_known_calls_is_bounded(alone: Communicator) -> None:
    for size in range(1, 600):
        alone.all_reduce(np.ones(size))
    assert len(alone._cache) <= 256


CALLS = st.lists(
    st.tuples(
        st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "gather", "scatter"]),
        st.sampled_from([2, 4]),
        st.sampled_from(["float64", "int32", "float16"]),
        st.sampled_from(["sum", "max", "avg"]),
        st.integers(0, 1),
        st.sampled_from(["new", "out", "in place", "reused"]),
    ),
    min_size=1,
    max_size=12,
)


def run_calls(comm: Any, calls: list[Any]) -> list[str]:
    """Return the calls with a wrong result, among calls in any order on new, given, shared and reused arrays."""
    wrong, kept = [], {}
    for number, (name, size, dtype, op, root, how) in enumerate(calls):
        inputs = [(np.arange(size) + 3 * rank + number).astype(dtype) for rank in range(2)]
        combined = {"sum": inputs[0] + inputs[1], "max": np.maximum(*inputs), "avg": inputs[0] + inputs[1]}[op]
        if op == "avg":
            combined = combined // 2 if dtype == "int32" else combined / 2
        chunk = slice(comm.rank * size // 2, (comm.rank + 1) * size // 2)
        expected = {
            "all_reduce": combined,
            "reduce": combined,
            "reduce_scatter": combined[chunk],
            "all_gather": np.concatenate(inputs),
            "gather": np.concatenate(inputs),
            "broadcast": inputs[root],
            "scatter": inputs[root][chunk],
        }[name]
        x = inputs[comm.rank]
        arguments: dict[str, Any] = {"op": op} if "reduce" in name else {}
        arguments |= {} if name in ("all_reduce", "all_gather", "reduce_scatter") else {"root": root}
        if how == "out":
            arguments["out"] = np.empty(expected.shape, dtype)
        elif how == "in place" and expected.shape == x.shape:
            arguments["out"] = x
        elif how == "reused":
            arguments["out"] = kept.setdefault((expected.shape, dtype), np.empty(expected.shape, dtype))
        got = getattr(comm, name)(x, **arguments)
        if name in ("reduce", "gather") and comm.rank != root:
            continue
        if not (got.dtype == dtype and np.array_equal(got, expected)):
            wrong.append(f"{number}: {name} {size} {dtype} {op} {root} {how}: {got} is not {expected}")
    return wrong


@settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(calls=CALLS)
def test_sequences_of_calls_have_the_results_of_numpy(pair: ml.Engines, calls: list[Any]) -> None:
    assert pair.run(run_calls, arguments=(calls,))["value"].tolist() == [[], []]


@settings(
    max_examples=examples(10),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(calls=CALLS)
def test_sequences_of_calls_over_mpi(mpi_engines: ml.Engines, calls: list[Any]) -> None:
    def on_first_two(comm: Any) -> list[str]:
        with comm.split(comm.rank // 2) as half:
            return run_calls(half, calls)

    assert mpi_engines.run(on_first_two)["value"].tolist() == [[]] * 4
