"""Scalars and division, for every dtype."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshlab.base._errors import CommunicatorError
from meshlab.comm._elements import DTYPES, divide, find_op, pre_mul_sum, scalar_in


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_scalar_is_converted_to_the_dtype_of_the_buffer(dtype: str) -> None:
    scalar = scalar_in(pre_mul_sum(2), DTYPES[dtype])
    assert scalar is not None
    assert (scalar.dtype, scalar.shape, float(scalar)) == (DTYPES[dtype], (), 2.0)
    assert scalar_in(find_op("sum"), DTYPES[dtype]) is None


def test_a_half_precision_scalar_is_rounded_to_nearest() -> None:
    assert float(scalar_in(pre_mul_sum(0.1), DTYPES["bfloat16"])) == float(ml_dtypes.bfloat16(0.1)) != 0.1  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("scalar", "dtype", "why"),
    [
        (0.5, "int32", "the scalar must be an integer from -2147483648"),
        (-1, "uint8", "must be an integer from 0 to 255"),
        (300, "uint8", "must be an integer from 0 to 255"),
        (float("nan"), "int64", "must be an integer from"),
        (float("inf"), "int64", "must be an integer from"),
        (1e6, "float16", r"pre_mul_sum\(1000000.0\) does not support float16, whose largest number is 65504"),
        (1e39, "float32", "does not support float32"),
    ],
)
def test_a_scalar_that_the_dtype_cannot_represent_is_rejected(scalar: float, dtype: str, why: str) -> None:
    with pytest.raises(CommunicatorError, match=why):
        scalar_in(pre_mul_sum(scalar), DTYPES[dtype])


@pytest.mark.parametrize("scalar", [True, "2", None, 1j, [2]])
def test_a_scalar_must_be_a_number(scalar: object) -> None:
    with pytest.raises(CommunicatorError, match="the scalar of pre_mul_sum must be a number, not "):
        pre_mul_sum(scalar)  # type: ignore[arg-type]


def test_an_operation_with_a_scalar_round_trips_as_a_string() -> None:
    for scalar in (3, 0.1, -2.5e-7, np.float32(0.25), np.int8(4)):
        assert find_op(str(pre_mul_sum(scalar))) == pre_mul_sum(scalar)


@given(st.sampled_from(["int8", "uint8", "int32", "uint32", "int64", "uint64"]), st.integers(1, 300), st.data())
def test_integer_division_truncates_towards_zero(dtype: str, n: int, data: st.DataObject) -> None:
    span = np.iinfo(dtype)
    values = data.draw(st.lists(st.integers(int(span.min), int(span.max)), min_size=1, max_size=5))
    total = np.array(values, dtype)
    divide(total, n)
    assert total.tolist() == [abs(value) // n * (-1 if value < 0 else 1) for value in values]
