"""Checks the result of a step by element, where the buffers are: in the memory of the GPU or of the host.

The inputs repeat after `PERIOD` elements, and so does every part of the expected output that comes from one chunk of
the inputs. So the host computes one period of each part, exactly as in `meshlab.comm._correctness`, and the device
compares every element with it. Computing all expected values on the host would take 13 ns a byte, or 14 s for 1 GiB.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from meshlab.benchmark.on_ranks._buffers import StepBuffers
from meshlab.comm._catalog import CATALOG
from meshlab.comm._correctness import PERIOD, Case, Expected, Index, encode
from meshlab.comm._elements import find_dtype, find_op, is_integer
from meshlab.plans._steps import pairs_of_round

if TYPE_CHECKING:
    from meshlab.comm._communicator import Communicator
    from meshlab.plans._steps import Step

_CHUNK_ON_HOST, _CHUNK_ON_GPU = 1 << 18, 1 << 24
"""Elements that are compared at a time: few enough for the caches of a core, and enough to use a whole GPU."""

# Neither a rank-coded value nor a sum of a few of them, so that elements that were not written count as wrong.
_UNWRITTEN = 125


def count_wrong_elements(
    comm: Communicator,
    step: Step,
    call: Callable[[], object],
    buffers: StepBuffers,
    *,
    source: int | None = None,
) -> int:
    """Run the call once on rank-coded data, and return the number of wrong elements in this rank's output."""
    # `source` is the rank of the group that sends a message, by default the previous rank of the ring.
    if step.dtype is None or step.count is None:
        raise TypeError("a function has no expected result")
    row, dtype, op = CATALOG[step.collective], find_dtype(step.dtype), find_op(step.op) if step.op else None
    receives = row.has("receives", step.root in (None, comm.rank))
    if step.collective == "send":  # only the receiver can check a message
        receivers = [receiver for _, receiver in pairs_of_round(comm.size, step.number)]
        row, receives = CATALOG["recv"], source is not None and comm.rank in receivers

    def value(member: int, index: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        return encode(comm.ranks[member], index, dtype, op)

    # Before the input, which may be a part of the output.
    buffers.out[...] = _UNWRITTEN
    fill_periodically(comm.xp, buffers.send, value(comm.rank, np.arange(PERIOD)))
    call()
    # A copy of nothing waits for the call by polling. Without it, the wait would be that of the counter below, which
    # cannot end if another rank has died, so that this rank would have to be replaced as well.
    comm.to_host(buffers.out[:0])
    if row.expected is None or not receives:
        return 0
    counts = step.chunk_counts
    case = Case(
        value=value,
        n=comm.size,
        member=comm.rank,
        count=step.count,
        dtype=dtype,
        op=op,
        root=step.root or 0,
        source=(comm.rank - 1) % comm.size if source is None else source,
        counts=counts,
    )
    if counts is not None:
        return _count_uneven(comm.xp, buffers.out, row.expected, case)
    # Chunks start at multiples of `count`, where the pattern begins again.
    n_chunks, period = buffers.out.size // step.count, min(PERIOD, step.count)
    index = (np.arange(n_chunks)[:, None] * step.count + np.arange(period)).ravel()
    return count_differences(comm.xp, buffers.out, row.expected(case, index), dtype, n_chunks)


def _count_uneven(xp: Any, output: Any, expected: Callable[[Case, Index], Expected], case: Case) -> int:
    """Return the number of wrong elements of an output that consists of chunks of different sizes."""
    assert case.counts is not None
    sizes = case.counts[:, case.member].tolist()
    starts = np.cumsum([0, *sizes]).tolist()
    periods = [min(PERIOD, size) for size in sizes]
    index = np.concatenate([start + np.arange(period) for start, period in zip(starts, periods, strict=False)])
    values, ends = expected(case, index).values, np.cumsum(periods).tolist()
    wrong = 0
    for start, size, end, period in zip(starts, sizes, ends, periods, strict=False):
        if size:
            chunk = Expected(values[end - period : end], 0.0)
            wrong += count_differences(xp, output[start : start + size], chunk, case.dtype, 1)
    return wrong


def fill_periodically(xp: Any, array: Any, pattern: npt.NDArray[Any]) -> None:
    """Fill an array in any memory with a pattern that repeats."""
    period = len(pattern)
    if not array.size:  # of a rank that sends nothing
        return
    # As unsigned integers, because CuPy does not support 8-bit floats.
    elements, repeated = _bits(array), xp.asarray(_bits(pattern))
    whole = len(elements) // period * period
    elements[:whole].reshape(-1, period)[...] = repeated
    elements[whole:] = repeated[: len(elements) - whole]


def count_differences(xp: Any, output: Any, expected: Expected, dtype: np.dtype[Any], n_chunks: int) -> int:
    """Return the number of elements that differ by more than the tolerance from periods that repeat in each chunk."""
    values = expected.values.reshape(n_chunks, -1)
    tolerance = np.broadcast_to(expected.tolerance, expected.values.shape).reshape(n_chunks, -1)
    bits = _bits(output).reshape(n_chunks, -1)
    exact = xp.asarray(_bits(np.ascontiguousarray(values.astype(dtype))))
    period, count = values.shape[1], bits.shape[1]
    at_a_time = _CHUNK_ON_HOST if xp is np else _CHUNK_ON_GPU
    step = max(at_a_time // (n_chunks * period), 1) * period
    wrong = 0
    for first in range(0, count, step):
        chunk = bits[:, first : first + step]
        for part in _whole_and_rest(chunk, period):
            repeated = exact[:, None, : part.shape[2]]
            # Equal bits are equal values. Only if some differ, they are compared as numbers, which takes several times
            # as long: a rounded result may have other bits than the exact one, and -0 has other bits than 0.
            n_different = _count_different(xp, part, repeated)
            if n_different and not is_integer(dtype):
                n_different = _count_beyond(xp, part, repeated, values, tolerance, dtype)
            wrong += n_different
    return wrong


def _whole_and_rest(bits: Any, period: int) -> list[Any]:
    """Divide rows into whole periods and a part of one: arrays of shape (chunks, periods, elements)."""
    n, size = bits.shape
    whole = size // period * period
    parts = [bits[:, :whole].reshape(n, -1, period), bits[:, whole:].reshape(n, 1, size - whole)]
    return [part for part in parts if part.size]


def _count_beyond(xp: Any, bits: Any, exact: Any, values: Any, tolerance: Any, dtype: np.dtype[Any]) -> int:
    """Return the number of floating-point numbers that differ from the values by more than the tolerance."""
    n = bits.shape[2]
    allowed = xp.asarray(tolerance[:, None, :n])
    with np.errstate(invalid="ignore"):
        # Comparisons with NaN are False, and a NaN is wrong.
        is_close = xp.abs(_as_float64(xp, bits, dtype) - xp.asarray(values[:, None, :n])) <= allowed
    # Without a tolerance the bits decide, because CuPy's kernels take subnormal numbers for 0. The sum of a number and
    # itself has no sign bit, so it is 0 for both zeros.
    both_zero = (bits + bits == 0) & (exact + exact == 0)
    return _count_different(xp, (is_close & (allowed > 0)) | both_zero | (bits == exact), xp.asarray(True))


def _count_different(xp: Any, first: Any, other: Any) -> int:
    """Return the number of elements that differ between two arrays, which are broadcast."""
    if xp is np:
        return int(np.count_nonzero(first != other))
    count = xp.zeros(1, np.uint64)
    _counter(xp)(first, other, count)
    return int(count.get()[0])


@cache
def _counter(cupy: Any) -> Any:
    """Return a kernel that counts differences."""
    # CuPy's own reductions use CUB, and NVRTC needs 5.5 s to compile the first one of each kind (H200, CuPy 14.2). It
    # compiles this kernel in 0.13 s.
    increment = "if (one != other) atomicAdd(&count[0], 1ULL)"
    return cupy.ElementwiseKernel("T one, T other", "raw uint64 count", increment, "meshlab_count_different")


def _as_float64(xp: Any, bits: Any, dtype: np.dtype[Any]) -> Any:
    """Convert the bits of floating-point numbers to float64, without the types that CuPy does not support."""
    if dtype.itemsize == 1:
        return xp.asarray(np.arange(256, dtype=np.uint8).view(dtype).astype(np.float64))[bits]
    if dtype.name == "bfloat16":  # the upper half of a float32
        return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return bits.view(dtype).astype(np.float64)


def _bits(array: Any) -> Any:
    return array.view(f"u{array.dtype.itemsize}")
