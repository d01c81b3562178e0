"""The element types that collectives carry."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from meshlab.errors import CommunicatorError

__all__ = ["DTYPES", "Array", "carrier", "find_dtype", "flat_elements", "float_facts", "is_whole"]

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
