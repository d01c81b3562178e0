"""Element types and reduce operations, and the accuracy of each operation.

========================  =====================================  ==================================================
operation                 integers                               floating point, n ranks, in any order
========================  =====================================  ==================================================
``sum``, ``prod``         exact; overflow wraps                  rounded n - 1 times
``min``, ``max``          exact                                  exact; NaN only if all inputs are NaN
``avg``                   sum, divided, truncated towards zero   rounded at most n + 1 times
``pre_mul_sum(scalar)``   exact; overflow wraps                  rounded at most n times
========================  =====================================  ==================================================

Every rounding is in the dtype of the buffer or a wider one. NCCL scales each input of an average by 1/n before it adds,
and `threads` and `mpi` divide the sum. `meshlab.comm._correctness` turns the counts above into error bounds.

As in NCCL (src/device/reduce_kernel.h), the result of ``min`` and ``max`` is NaN only if the inputs of all ranks are.
That of MPI_MIN and MPI_MAX in MPICH depends on the rank that has the NaN, so `mpi` uses user-defined operations for
floating point, which take 9.4 instead of 3.9 µs for 8 bytes (two ranks, MPICH 5.0.2). `PreparedCall.measure` times the
operations of the library, because the inputs of benchmarks contain no NaN.
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

from meshlab.base._errors import CommunicatorError, did_you_mean

Array = npt.NDArray[Any]

_PLAIN = ("float32", "float64", "float16", "int8", "uint8", "int32", "uint32", "int64", "uint64")

_EXTENDED = ("bfloat16", "float8_e4m3fn", "float8_e5m2")

DTYPES: Mapping[str, np.dtype[Any]] = MappingProxyType(
    {name: np.dtype(name) for name in _PLAIN} | {name: np.dtype(getattr(ml_dtypes, name)) for name in _EXTENDED}
)
"""The element types, by name. The 8-bit floats are the OCP formats e4m3 and e5m2, which only NCCL supports."""

_KNOWN = {dtype: dtype for dtype in DTYPES.values()}

# Names that mean the same in numpy, torch and nccl-tests. "float" and "int" are not among them: they have 64 bits in
# numpy, and 32 bits in torch.
_SHORT = {
    "half": "float16",
    "fp16": "float16",
    "bf16": "bfloat16",
    "single": "float32",
    "fp32": "float32",
    "double": "float64",
    "fp64": "float64",
}

_DTYPE_SYNONYMS = {
    **_SHORT,
    "float": "float32",
    "int": "int32",
    "long": "int64",
    "byte": "uint8",
    "fp8": "float8_e4m3fn",
    "float8": "float8_e4m3fn",
    "e4m3": "float8_e4m3fn",
    "e5m2": "float8_e5m2",
    "fp8e4m3": "float8_e4m3fn",
    "fp8e5m2": "float8_e5m2",
}

_OP_SYNONYMS = {
    "mean": "avg",
    "average": "avg",
    "add": "sum",
    "mul": "prod",
    "product": "prod",
    "minimum": "min",
    "maximum": "max",
    "premulsum": "pre_mul_sum(0.5)",
}


def find_dtype(name: Any) -> np.dtype[Any]:
    """Return the element type for a numpy dtype, a numpy scalar type, or a name such as ``"float32"`` or ``"fp32"``."""
    try:
        dtype = (
            DTYPES.get(_SHORT.get(name, name))
            if isinstance(name, str)
            else _KNOWN.get(name) or _KNOWN.get(np.dtype(name))
        )
    except TypeError:
        dtype = None
    if dtype is None:
        similar = did_you_mean(name, DTYPES, synonyms=_DTYPE_SYNONYMS)
        raise CommunicatorError(f"unknown dtype {name!r}{similar}; choose one of {', '.join(DTYPES)}")
    return dtype


def carrier(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of arrays that hold elements of `dtype`: uint8 for 8-bit floats, which CuPy does not support."""
    return np.dtype(np.uint8) if dtype.itemsize == 1 and not is_integer(dtype) else dtype


def is_integer(dtype: np.dtype[Any]) -> bool:
    """Return True for integer dtypes."""
    return dtype.kind in "iu"


def float_info(dtype: np.dtype[Any]) -> Any:
    """Return `numpy.finfo` of a floating-point dtype, including those of ml_dtypes."""
    return ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]


def flat_elements(array: Any, dtype: Any) -> Array:
    """Return a one-dimensional view of a contiguous array, as elements of `dtype`."""
    flat: Array = array.reshape(-1)
    return flat if flat.dtype == dtype else flat.view(dtype)


@dataclass(frozen=True, slots=True)
class ReduceOp:
    """An operation that combines the values of several ranks.

    Parameters
    ----------
    name : str
        The name of the operation.
    combine : callable
        A function of two arrays that returns their elementwise combination.
    scalar : float or int, optional
        The factor for every input. Only for ``pre_mul_sum``.
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
            ReduceOp("min", np.fmin),
            ReduceOp("max", np.fmax),
            ReduceOp("avg", np.add),
            ReduceOp("pre_mul_sum", np.add),
        )
    }
)
"""The reduce operations, by name."""

_WITH_SCALAR = re.compile(r"pre_mul_sum\((.+)\)")


def pre_mul_sum(scalar: float | int) -> ReduceOp:
    """Return the operation that multiplies every input by a scalar and then sums.

    The scalar is converted to the dtype of the buffer. Each rank's scalar applies to its own input, as in NCCL, so
    ranks can pass different scalars for a weighted sum.

    Parameters
    ----------
    scalar : float or int
        The factor. It must be an integer for integer buffers.

    Returns
    -------
    ReduceOp
        The operation, for the argument ``op=``.

    Raises
    ------
    CommunicatorError
        If `scalar` is not a number.

    Examples
    --------
    >>> str(pre_mul_sum(0.25))
    'pre_mul_sum(0.25)'
    """
    if isinstance(scalar, (bool, np.bool_)) or not isinstance(scalar, (int, float, np.integer, np.floating)):
        raise CommunicatorError(f"the scalar of pre_mul_sum must be a number, not {scalar!r}")
    return replace(OPS["pre_mul_sum"], scalar=scalar.item() if isinstance(scalar, np.generic) else scalar)


def find_op(name: str | ReduceOp) -> ReduceOp:
    """Return the reduce operation with a name. ``"pre_mul_sum(0.5)"`` includes its scalar."""
    op = name if isinstance(name, ReduceOp) else OPS.get(name) if isinstance(name, str) else None
    if op is None and isinstance(name, str) and (match := _WITH_SCALAR.fullmatch(name)):
        op = pre_mul_sum(_number(match[1]))
    if op is None:
        similar = did_you_mean(name, OPS, synonyms=_OP_SYNONYMS)
        raise CommunicatorError(f"unknown reduce operation {name!r}{similar}; choose one of {', '.join(OPS)}")
    if op.name == "pre_mul_sum" and op.scalar is None:
        raise CommunicatorError(
            "pre_mul_sum needs a scalar; pass op=pre_mul_sum(0.5), or the string 'pre_mul_sum(0.5)'"
        )
    return op


def _number(text: str) -> float | int:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    raise CommunicatorError(f"the scalar of pre_mul_sum must be a number, not {text!r}")


def scalar_in(op: ReduceOp, dtype: np.dtype[Any]) -> Array | None:
    """Return the scalar of an operation as a zero-dimensional array of `dtype`, or None if it has no scalar."""
    if op.scalar is None:
        return None
    scalar = op.scalar
    if is_integer(dtype):
        limits = np.iinfo(dtype)
        if scalar != scalar or not (limits.min <= scalar <= limits.max and int(scalar) == scalar):
            raise CommunicatorError(
                f"{op} does not support {dtype}: the scalar must be an integer from {limits.min} to {limits.max}"
            )
        return np.array(int(scalar), dtype)
    with np.errstate(over="ignore"):
        value = np.array(scalar, np.float64).astype(dtype)
    if np.isfinite(scalar) and not np.isfinite(value.astype(np.float64)):
        raise CommunicatorError(f"{op} does not support {dtype}, whose largest number is {float_info(dtype).max}")
    return value


def multiply(source: Array, scalar: Any, target: Array) -> None:
    """Write the products of an array and a scalar to another array. Overflow wraps, or becomes infinity."""
    with np.errstate(all="ignore"):
        np.multiply(source, scalar, out=target)


def divide(total: Array, n: int) -> None:
    """Divide a sum by the number of ranks in place. Integers are truncated towards zero, as in NCCL."""
    if not is_integer(total.dtype):
        np.divide(total, np.array(n).astype(total.dtype), out=total)
        return
    wide = total.astype(np.int32) if total.itemsize == 1 else total  # n itself may exceed 8 bits
    divisor = wide.dtype.type(n)
    # Operators instead of numpy functions, because the array may be CuPy's. // rounds towards minus infinity, so add 1
    # where a negative quotient has a remainder.
    quotient = wide // divisor
    quotient += ((wide < 0) & (quotient * divisor != wide)).astype(quotient.dtype)
    total[...] = quotient
