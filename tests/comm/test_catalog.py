"""The expected outputs of the catalog, compared with a simple implementation in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshlab.base._errors import CommunicatorError
from meshlab.comm._catalog import CATALOG, find_collective
from meshlab.comm._correctness import Case, Expected, count_wrong, encode
from meshlab.comm._elements import DTYPES, OPS, find_dtype, find_op
from tests.examples import examples

OPS_TO_TRY = ["pre_mul_sum(3)" if name == "pre_mul_sum" else name for name in OPS]


@given(st.integers(1, 5), st.integers(0, 9), st.sampled_from(OPS_TO_TRY), st.data())
@settings(deadline=None, max_examples=examples(60))
def test_expected_outputs(n: int, count: int, op: str, data: st.DataObject) -> None:
    root, member, source = (data.draw(st.integers(0, n - 1)) for _ in range(3))
    counts = np.array(data.draw(st.lists(st.lists(st.integers(0, 5), min_size=n, max_size=n), min_size=n, max_size=n)))
    dtype = np.dtype("int64")

    def value(rank: int, index: np.ndarray) -> np.ndarray:
        return encode(rank, index, dtype)

    def reduce(inputs: list[np.ndarray]) -> np.ndarray:
        plain = {"sum": np.sum, "prod": np.prod, "min": np.min, "max": np.max}
        if op == "avg":
            return np.sum(inputs, axis=0) // n
        return 3 * np.sum(inputs, axis=0) if op.startswith("pre") else plain[op](inputs, axis=0)

    short = [value(rank, np.arange(count)) for rank in range(n)]
    long = [value(rank, np.arange(count * n)) for rank in range(n)]
    uneven = [np.split(value(rank, np.arange(counts[rank].sum())), np.cumsum(counts[rank])[:-1]) for rank in range(n)]
    mine = slice(member * count, (member + 1) * count)
    outputs = {
        "all_reduce": reduce(short),
        "reduce": reduce(short),
        "all_gather": np.concatenate(short),
        "gather": np.concatenate(short),
        "reduce_scatter": reduce(long)[mine],
        "scatter": long[root][mine],
        "broadcast": short[root],
        "all_to_all": np.concatenate([data[mine] for data in long]),
        "all_to_all_v": np.concatenate([parts[member] for parts in uneven]),
        "recv": short[source],
        "send_recv": short[source],
    }
    case = Case(value, n, member, count, dtype, find_op(op), root, source, counts)
    assert set(outputs) == {name for name, row in CATALOG.items() if row.expected is not None}
    for name, output in outputs.items():
        compute = CATALOG[name].expected
        assert compute is not None
        first = data.draw(st.integers(0, len(output)))
        expected = compute(case, np.arange(first, len(output)))
        assert expected.values.tolist() == output[first:].tolist(), name
        assert np.all(expected.tolerance == 0), name


@given(st.integers(1, 10**7), st.sampled_from([1, 2, 4, 8]), st.integers(1, 16))
def test_a_count_gives_at_most_the_requested_size(size: int, itemsize: int, n: int) -> None:
    for row in CATALOG.values():
        if not row.is_measurable:
            continue
        count = row.count_for(size, itemsize, n)
        got = row.size_bytes(count, itemsize, n)
        assert got <= size or count == 1
        assert size - got < itemsize * n


def test_bus_bandwidth_factors_and_sizes_are_those_of_nccl_tests() -> None:
    table = {name: (row.bus_factor(8), row.size_bytes(1, 4, 8)) for name, row in CATALOG.items() if row.is_measurable}
    assert table == {
        "all_reduce": (1.75, 4),
        "all_gather": (0.875, 32),
        "reduce_scatter": (0.875, 32),
        "all_to_all": (0.875, 32),
        "all_to_all_v": (0.875, 32),
        "broadcast": (1.0, 4),
        "reduce": (1.0, 4),
        "gather": (0.875, 32),
        "scatter": (0.875, 32),
        "send_recv": (1.0, 4),
    }


def test_the_in_place_collectives_are_those_of_nccl() -> None:
    in_place = {name for name, row in CATALOG.items() if row.in_place}
    assert in_place == {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "gather", "scatter"}


@pytest.mark.parametrize("op", ["sum", "prod"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rank_coded_data_distinguishes_ranks_and_positions(dtype: str, op: str) -> None:
    index = np.arange(4096)
    coded = {rank: encode(rank, index, DTYPES[dtype], find_op(op)).astype(float) for rank in range(8)}
    few = op == "prod" or dtype.startswith(("float8", "bfloat16"))
    for rank in range(1, 8):
        assert (coded[rank] != coded[0]).mean() >= (0.3 if few else 1)
    for shift in (2**power for power in range(12)):
        assert (coded[0][shift:] != coded[0][:-shift]).mean() >= (0.3 if few else 1)


@pytest.mark.parametrize("op", OPS_TO_TRY)
@pytest.mark.parametrize("dtype", DTYPES)
def test_four_ranks_of_rank_coded_data_are_exact_except_for_avg(dtype: str, op: str) -> None:
    kind = DTYPES[dtype]
    reduce_op = find_op("pre_mul_sum(1)" if op.startswith("pre") else op)
    case = Case(lambda rank, index: encode(rank, index, kind, reduce_op), 4, 0, 100, kind, reduce_op)
    expected = CATALOG["all_reduce"].expected(case, np.arange(100))  # type: ignore[misc]
    inputs = [encode(rank, np.arange(100), kind, reduce_op) for rank in range(4)]
    total = inputs[0]
    for data in inputs[1:]:
        total = reduce_op.combine(total, data)
    if op != "avg":
        assert (total.astype(expected.values.dtype) == expected.values).all()
    if op not in ("avg", "prod"):
        assert np.all(expected.tolerance == 0)


@given(st.integers(1, 8), st.sampled_from(["float16", "bfloat16", "float32"]), st.sampled_from(OPS_TO_TRY), st.data())
@settings(deadline=None, max_examples=examples(60))
def test_rounding_in_any_order_stays_within_the_tolerance(n: int, dtype: str, op: str, data: st.DataObject) -> None:
    kind, reduce_op = DTYPES[dtype], find_op(op)
    seed = data.draw(st.integers(0, 2**32 - 1))
    low = 0.5 if op == "prod" else -2.0
    inputs = [np.random.default_rng([seed, rank]).uniform(low, 2.0, 50).astype(kind) for rank in range(n)]
    case = Case(lambda rank, index: inputs[rank][index], n, 0, 50, kind, reduce_op)
    expected = CATALOG["all_reduce"].expected(case, np.arange(50))  # type: ignore[misc]
    scale = np.array(1 / n if op == "avg" else 3 if op.startswith("pre") else 1).astype(kind)
    for order in (data.draw(st.permutations(range(n))), range(n)):
        terms = [inputs[rank] * scale for rank in order]  # avg as in NCCL: scaled before the sum
        while len(terms) > 1:
            at = data.draw(st.integers(0, len(terms) - 2))
            terms[at : at + 2] = [reduce_op.combine(terms[at], terms[at + 1])]
        assert count_wrong(terms[0], expected) == 0
    wrong = expected.values + 1.01 * np.maximum(expected.tolerance, float(np.finfo(np.float32).eps))
    assert count_wrong(wrong.astype(np.float64), expected) == 50


def test_nan_is_always_wrong() -> None:
    assert count_wrong(np.array([np.nan, 1.0]), Expected(np.array([1.0, 1.0]), np.inf)) == 1


@pytest.mark.parametrize(
    ("find", "name", "message"),
    [
        (find_collective, "sum", "unknown collective 'sum'; choose one of all_reduce, all_gather"),
        (
            find_dtype,
            "float33",
            r"unknown dtype 'float33' \(did you mean 'float32'\?\); choose one of float32, float64",
        ),
        (find_dtype, np.dtype(">f4"), r"unknown dtype dtype\('>f4'\)"),
        (find_dtype, bool, "unknown dtype <class 'bool'>"),
        (find_op, "xor", "unknown reduce operation 'xor'; choose one of sum, prod, min, max, avg, pre_mul_sum"),
        (find_op, 7, "unknown reduce operation 7"),
        (find_op, "pre_mul_sum", r"needs a scalar; pass op=pre_mul_sum\(0.5\)"),
        (find_op, "pre_mul_sum(x)", "must be a number, not 'x'"),
    ],
)
def test_errors_for_unknown_names_list_the_known_ones(find: Any, name: Any, message: str) -> None:
    with pytest.raises(CommunicatorError, match=message):
        find(name)


def test_dtypes_are_found_by_name_type_and_dtype() -> None:
    for name, dtype in DTYPES.items():
        assert find_dtype(name) is find_dtype(dtype) is find_dtype(dtype.type) is dtype
    assert find_dtype(np.dtype("longlong")) is DTYPES["int64"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_inputs_of_benchmarks_contain_no_nan(dtype: str) -> None:
    """MPI's own minimum and maximum of NaN are not defined, and benchmarks use them."""
    for op in (*map(find_op, ("sum", "prod", "min", "max", "avg")), find_op("pre_mul_sum(2)")):
        for rank in (0, 1, 7, 255, 1023, 65535):
            coded = encode(rank, np.arange(5000), DTYPES[dtype], op).astype(np.float64)
            assert np.isfinite(coded).all()
