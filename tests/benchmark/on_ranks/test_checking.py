"""The check on the device: it counts what a comparison with all expected values counts."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from meshlab.benchmark.on_ranks import _checking as checking
from meshlab.benchmark.on_ranks._checking import count_differences, fill_periodically
from meshlab.comm._catalog import CATALOG
from meshlab.comm._correctness import PERIOD, Case, count_wrong, encode
from meshlab.comm._elements import DTYPES, OPS, carrier, find_op, is_integer
from tests.examples import examples

CHECKED = [row for row in CATALOG.values() if row.expected is not None]
NAMED = [find_op(f"{name}(3)" if name == "pre_mul_sum" else name) for name in OPS]


@settings(max_examples=examples(150), deadline=None)
@given(
    row=st.sampled_from(CHECKED),
    n=st.integers(1, 7),
    count=st.integers(1, 400),
    dtype=st.sampled_from(list(DTYPES.values())),
    op=st.sampled_from(NAMED),
    data=st.data(),
)
def test_the_check_counts_what_a_comparison_with_all_expected_values_counts(row, n, count, dtype, op, data) -> None:
    op = op if row.reduces else None
    member = data.draw(st.integers(0, n - 1))
    case = Case(
        value=lambda rank, index: encode(rank, index, dtype, op), n=n, member=member, count=count, dtype=dtype, op=op,
        root=data.draw(st.integers(0, n - 1)), source=data.draw(st.integers(0, n - 1)),
    )  # fmt: skip
    size = row.elements("receives", count, n)
    expected = row.expected(case, np.arange(size))
    output = expected.values.astype(dtype)
    # Some elements are off by the tolerance, which counts as right, or by a bit, a copy of another element, or NaN.
    places = data.draw(st.lists(st.integers(0, size - 1), max_size=8, unique=True))
    for place, kind in zip(places, data.draw(st.lists(st.integers(0, 3), min_size=8, max_size=8)), strict=False):
        if kind == 0 and not is_integer(dtype):
            near = expected.values + np.broadcast_to(expected.tolerance, size)
            output[place] = near[place].astype(dtype)
        elif kind == 1:
            bits = output.view(f"u{dtype.itemsize}")
            bits[place] ^= 1
        elif kind == 2:
            output[place] = output[(place * 7 + 3) % size]
        elif not is_integer(dtype):
            output[place] = np.nan
    period = min(PERIOD, count)
    index = (np.arange(size // count)[:, None] * count + np.arange(period)).ravel()
    found = count_differences(np, output.view(carrier(dtype)), row.expected(case, index), dtype, size // count)
    assert found == count_wrong(output, expected)


def test_large_outputs_are_compared_in_parts(monkeypatch) -> None:
    monkeypatch.setattr(checking, "_CHUNK_ON_HOST", 200)
    dtype, count = np.dtype(np.float32), 5000
    case = Case(value=lambda rank, index: encode(rank, index, dtype), n=3, member=1, count=count, dtype=dtype)
    row = CATALOG["all_gather"]
    output = row.expected(case, np.arange(3 * count)).values.astype(dtype)
    output[[0, 1234, 4999, 5000, 14_999]] += 1
    index = (np.arange(3)[:, None] * count + np.arange(PERIOD)).ravel()
    assert count_differences(np, output, row.expected(case, index), dtype, 3) == 5


@given(size=st.integers(0, 500), dtype=st.sampled_from(list(DTYPES.values())), member=st.integers(0, 70))
def test_inputs_are_the_rank_coded_ones(size, dtype, member) -> None:
    array = np.empty(size, carrier(dtype))
    fill_periodically(np, array, encode(member, np.arange(PERIOD), dtype))
    assert array.tobytes() == encode(member, np.arange(size), dtype).tobytes()
