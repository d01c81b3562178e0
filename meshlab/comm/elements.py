"""The reduce operations, and what each of them guarantees.

========================  =====================================  ==================================================
operation                 integers                               floating point, n ranks, in any order
========================  =====================================  ==================================================
``sum``, ``prod``         exact; overflow wraps                  rounded n - 1 times
``min``, ``max``          exact                                  exact
``avg``                   the sum, divided, towards zero         rounded at most n + 1 times
``pre_mul_sum(scalar)``   exact; overflow wraps                  rounded at most n times
========================  =====================================  ==================================================

Every rounding is in the type of the buffer or a wider one. In half precision this is coarse: a library may scale each
input by 1/n before it adds (NCCL does), or divide the sum (`threads` and `mpi` do); the two differ in the last bits.
`meshlab.comm.correctness` turns the counts above into bounds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from meshlab.errors import CommunicatorError

__all__ = [
    "DTYPES",
    "OPS",
    "Array",
    "ReduceOp",
    "carrier",
    "divide",
    "find_dtype",
    "find_op",
    "flat_elements",
    "float_facts",
    "is_whole",
    "pre_mul_sum",
    "scalar_in",
]


Array = npt.NDArray[Any]

_PLAIN = ("float32", "float64", "float16", "int8", "uint8", "int32", "uint32", "int64", "uint64")

_EXTENDED = ("bfloat16", "float8_e4m3fn", "float8_e5m2")

DTYPES: Mapping[str, np.dtype[Any]] = MappingProxyType(
    {name: np.dtype(name) for name in _PLAIN} | {name: np.dtype(getattr(ml_dtypes, name)) for name in _EXTENDED}
)
"""The element types, by name. Those of 8 bits with a floating point are NCCL's, in the OCP formats e4m3 and e5m2."""

_KNOWN = {dtype: dtype for dtype in DTYPES.values()}


def find_dtype(name: Any) -> np.dtype[Any]:
    """Look an element type up by its name or its numpy dtype.

    Raises
    ------
    CommunicatorError
        If collectives do not carry it; the message lists what they carry.

    Examples
    --------
    >>> find_dtype("bfloat16").itemsize, find_dtype(np.float32).name
    (2, 'float32')
    """
    try:
        known = DTYPES.get(name) if isinstance(name, str) else _KNOWN.get(name) or _KNOWN.get(np.dtype(name))
    except TypeError:
        known = None
    if known is None:
        raise CommunicatorError(f"there is no dtype {name!r}; there are {', '.join(DTYPES)}")
    return known


def carrier(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype of arrays that carry elements of `dtype`: bytes for 8-bit floats, which CuPy does not know.

    Examples
    --------
    >>> carrier(find_dtype("float8_e5m2")), carrier(find_dtype("float32"))
    (dtype('uint8'), dtype('float32'))
    """
    return np.dtype(np.uint8) if dtype.itemsize == 1 and not is_whole(dtype) else dtype


def is_whole(dtype: np.dtype[Any]) -> bool:
    """True for integers."""
    return dtype.kind in "iu"


def float_facts(dtype: np.dtype[Any]) -> Any:
    """What `numpy.finfo` says of a floating-point type: eps, nmant, max, smallest_subnormal."""
    return ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]


def flat_elements(array: Any, dtype: Any) -> Array:
    """A contiguous array in one dimension, seen as elements of `dtype` where it only carries them."""
    flat: Array = array.reshape(-1)
    return flat if flat.dtype == dtype else flat.view(dtype)


@dataclass(frozen=True, slots=True)
class ReduceOp:
    """How values of several ranks become one.

    Parameters
    ----------
    name : str
        The name in a call.
    combine : callable
        Two arrays in, one array out, elementwise.
    scalar : float or int, optional
        What every input is multiplied by before; only for ``pre_mul_sum``.
    """

    name: str
    combine: Callable[[Array, Array], Array]
    scalar: float | int | None = None

    def __str__(self) -> str:
        return self.name if self.scalar is None else f"{self.name}({self.scalar})"


OPS: Mapping[str, ReduceOp] = MappingProxyType(
    {
        op.name: op
        for op in (
            ReduceOp("sum", np.add),
            ReduceOp("prod", np.multiply),
            ReduceOp("min", np.minimum),
            ReduceOp("max", np.maximum),
            ReduceOp("avg", np.add),
            ReduceOp("pre_mul_sum", np.add),
        )
    }
)
"""The reduce operations, by name."""

_WITH_SCALAR = re.compile(r"pre_mul_sum\((.+)\)")


def pre_mul_sum(scalar: float | int) -> ReduceOp:
    """The operation that multiplies every input by a scalar, and then sums.

    The scalar is taken in the type of the buffer, and each rank's own scalar counts for its own input, as in NCCL. So
    ranks may give different ones, for a weighted sum.

    Parameters
    ----------
    scalar : float or int
        A whole number for integers.

    Raises
    ------
    CommunicatorError
        If it is not a number.

    Examples
    --------
    >>> str(pre_mul_sum(0.25))
    'pre_mul_sum(0.25)'
    """
    if isinstance(scalar, (bool, np.bool_)) or not isinstance(scalar, (int, float, np.integer, np.floating)):
        raise CommunicatorError(f"pre_mul_sum() takes a number, not {scalar!r}")
    return replace(OPS["pre_mul_sum"], scalar=scalar.item() if isinstance(scalar, np.generic) else scalar)


def find_op(name: str | ReduceOp) -> ReduceOp:
    """Look a reduce operation up by name; ``"pre_mul_sum(0.5)"`` carries its scalar.

    Raises
    ------
    CommunicatorError
        If there is none; the message lists what there is.

    Examples
    --------
    >>> find_op("pre_mul_sum(0.5)").scalar
    0.5
    """
    op = name if isinstance(name, ReduceOp) else OPS.get(name) if isinstance(name, str) else None
    if op is None and isinstance(name, str) and (match := _WITH_SCALAR.fullmatch(name)):
        op = pre_mul_sum(_number(match[1]))
    if op is None:
        raise CommunicatorError(f"there is no reduce operation {name!r}; there are {', '.join(OPS)}")
    if op.name == "pre_mul_sum" and op.scalar is None:
        raise CommunicatorError(
            "pre_mul_sum needs its scalar; give op=pre_mul_sum(0.5), or the text 'pre_mul_sum(0.5)'"
        )
    return op


def _number(text: str) -> float | int:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    raise CommunicatorError(f"pre_mul_sum() takes a number, not {text!r}")


def scalar_in(op: ReduceOp, dtype: np.dtype[Any]) -> Array | None:
    """The scalar of an operation as an array without dimensions, in the type of the buffer; None where there is none.

    Raises
    ------
    CommunicatorError
        If the type cannot hold it.

    Examples
    --------
    >>> scalar_in(pre_mul_sum(0.1), np.dtype("float16")).item()
    0.0999755859375
    """
    if op.scalar is None:
        return None
    scalar = op.scalar
    if is_whole(dtype):
        span = np.iinfo(dtype)
        if scalar != scalar or not (span.min <= scalar <= span.max and int(scalar) == scalar):
            raise CommunicatorError(
                f"{op} does not work on {dtype}: the scalar must be a whole number from {span.min} to {span.max}"
            )
        return np.array(int(scalar), dtype)
    with np.errstate(over="ignore"):
        value = np.array(scalar, np.float64).astype(dtype)
    if np.isfinite(scalar) and not np.isfinite(value.astype(np.float64)):
        raise CommunicatorError(f"{op} does not work on {dtype}, whose largest number is {float_facts(dtype).max}")
    return value


def divide(total: Array, n: int) -> None:
    """Divide a sum by the number of ranks, in its own type and place; integers are cut towards zero, as NCCL's are.

    Examples
    --------
    >>> total = np.array([7, -7], np.int8)
    >>> divide(total, 2)
    >>> total.tolist()
    [3, -3]
    """
    if not is_whole(total.dtype):
        np.divide(total, np.array(n).astype(total.dtype), out=total)
        return
    wide = total.astype(np.int32) if total.itemsize == 1 else total  # n itself may not fit in 8 bits
    divisor = wide.dtype.type(n)
    quotient = wide // divisor  # operators that CuPy has too; this one cuts towards minus infinity
    quotient += ((wide < 0) & (quotient * divisor != wide)).astype(quotient.dtype)
    total[...] = quotient
