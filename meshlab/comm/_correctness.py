"""The expected output of every collective, computed from the inputs of all ranks, with bounds on rounding errors.

`encode` fills inputs with numbers that depend on rank and position, and `count_wrong` compares outputs with the
expected values. Floating-point reductions may differ by rounding, which is bounded: n numbers added in any order with
unit roundoff u differ from their exact sum by at most k·u/(1 - k·u) times the sum of their magnitudes, where k is the
number of roundings that a term goes through (N. J. Higham, Accuracy and Stability of Numerical Algorithms, 2002,
section 4.2). The bound is zero if every step is exact, as for sums of integers that the dtype represents.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from meshlab.comm._elements import Array, ReduceOp, divide, float_info, is_integer, scalar_in

# A prime, so that a chunk at the wrong offset (usually a power of two) does not match by accident.
PERIOD = 61
"""Number of elements after which the values of `encode` repeat."""

Index = npt.NDArray[np.int64]
Value = Callable[[int, Index], Array]
"""``value(member, index)``: the input of a member of the group at the positions `index`."""


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """A collective call with the inputs of all members of the group. The output of one member is checked."""

    value: Value
    n: int  # the size of the group
    member: int  # the rank of the group whose output is computed
    count: int  # of the call, in elements
    dtype: np.dtype[Any]
    op: ReduceOp | None = None  # with the same scalar on all ranks
    root: int = 0
    source: int = 0  # the rank of the group from which `member` receives
    counts: npt.NDArray[np.int64] | None = None  # for all_to_all_v: (n, n), from member i (rows) to member j


class Expected(NamedTuple):
    """The expected values of a member at some positions, and the largest absolute error of a correct result."""

    values: Array  # float64 for floating-point dtypes, else in the dtype of the call
    tolerance: Array | float


def count_wrong(output: Array, expected: Expected) -> int:
    """Return the number of elements that differ from the expected values by more than the tolerance."""
    if is_integer(output.dtype):
        return int((output != expected.values).sum())
    with np.errstate(invalid="ignore"):
        # "not <=" rather than ">": comparisons with NaN are False, and a NaN is wrong.
        return int((~(np.abs(output.astype(np.float64) - expected.values) <= expected.tolerance)).sum())


def encode(member: int, index: Index, dtype: np.dtype[Any], op: ReduceOp | None = None) -> Array:
    """Return input values of a global rank at the positions `index`: small numbers that are exact in every dtype."""
    # Of products, these are powers of two, or 1, 2 and 3 for integers.
    code = (index + 17 * member) % PERIOD
    if op is not None and op.name == "prod":
        return (_EXPONENTS[code] + 2 if is_integer(dtype) else np.ldexp(1.0, _EXPONENTS[code])).astype(dtype)
    # Narrow dtypes get fewer values, chosen so that the sum over four ranks is still exact.
    exact = 256 if is_integer(dtype) else 1 << (float_info(dtype).nmant + 1)  # integers up to here are exact
    n_values = next(prime for prime in (PERIOD, 13, 5, 3) if 4 * (prime - 1) <= exact)
    return (code if n_values == PERIOD else _SHUFFLED[code] % n_values).astype(dtype)


# The numbers 0 … 60 modulo a smaller number would have that number as their period. These sequences have no short
# period, and do not match shifted copies of themselves: the powers of 2 modulo 61, and the Legendre symbol modulo 61
# (-1, 0 or 1).
_SHUFFLED = np.array([pow(2, number, PERIOD) for number in range(PERIOD)])
_EXPONENTS = np.array([{0: 0, 1: 1, PERIOD - 1: -1}[pow(number, PERIOD // 2, PERIOD)] for number in range(PERIOD)])


# -- the collectives: each function returns the output of `case.member` at the positions `index` -----------------------


def reduced(case: Case, index: Index) -> Expected:
    """Return the reduction of all inputs."""
    if case.op is None:
        raise TypeError("case.op is None, but a reduction requires an operation")
    scalar = scalar_in(case.op, case.dtype)
    total, magnitude, all_integers = np.empty(0), np.zeros(len(index)), np.ones(len(index), dtype=bool)
    with np.errstate(all="ignore"):
        for member in range(case.n):
            term = _wide(case.value(member, index))
            term = term if scalar is None else term * _wide(scalar)
            total = case.op.combine(total, term) if member else term.copy()
            if not is_integer(case.dtype):
                magnitude += np.abs(term)
                all_integers &= term == np.rint(term)
        if case.op.name == "avg":
            divide(total, case.n)
        return Expected(total, _tolerance(case.op.name, case.n, case.dtype, total, magnitude, all_integers))


def _tolerance(
    op: str, n: int, dtype: np.dtype[Any], total: Array, magnitude: Array, all_integers: npt.NDArray[np.bool_]
) -> Array | float:
    """Return Higham's bound on the rounding error of a reduction over n ranks in any order."""
    if is_integer(dtype) or op in ("min", "max"):
        return 0.0
    info = float_info(dtype)
    # A term goes through n - 1 operations at most. A library may also scale it by 1/n, which rounds 1/n and the
    # product, or by a scalar, which is already rounded.
    k = n - 1 + {"avg": 2, "pre_mul_sum": 1}.get(op, 0)
    ku = k * float(info.eps) / 2
    gamma = ku / (1 - ku) if ku < 1 else np.inf
    underflow = k * float(info.smallest_subnormal)  # the relative bound does not hold for subnormal intermediates
    if op == "prod":
        return np.asarray(gamma * np.abs(total) + underflow)  # relative errors of factors add up
    if op == "avg":
        return np.asarray(gamma * magnitude / n + underflow)
    # Partial sums of integers are bounded by the sum of magnitudes. Up to 2^(mantissa bits + 1) none of them is
    # rounded.
    is_exact = all_integers & (magnitude <= 2.0 ** (info.nmant + 1))
    return np.where(is_exact, 0.0, gamma * magnitude + underflow)


def exchanged_by_counts(case: Case, index: Index) -> Expected:
    """Return the member's chunk of every input, concatenated, where chunks have different sizes."""
    counts = np.full((case.n, case.n), case.count) if case.counts is None else case.counts
    ends = np.cumsum(counts[:, case.member])  # of the chunks in the output
    sender = np.searchsorted(ends, index, side="right")
    starts_in_input = np.cumsum(counts, axis=1)[:, case.member] - counts[:, case.member]
    starts_in_output = ends - counts[:, case.member]
    return _select(case, sender, index - starts_in_output[sender] + starts_in_input[sender])


def _select(case: Case, sender: Index, position: Index) -> Expected:
    """Return the elements at the given positions in the inputs of the given members."""
    values = np.empty(len(sender), np.float64 if not is_integer(case.dtype) else case.dtype)
    for member in range(case.n):
        is_from = sender == member
        if is_from.any():
            values[is_from] = case.value(member, position[is_from])
    return Expected(values, 0.0)


def _wide(values: Array) -> Array:
    return values if is_integer(values.dtype) else values.astype(np.float64)


def _root_values(case: Case, index: Index) -> Expected:
    return Expected(_wide(case.value(case.root, index)), 0.0)


def _source_values(case: Case, index: Index) -> Expected:
    return Expected(_wide(case.value(case.source, index)), 0.0)


def _gathered(case: Case, index: Index, start: int = 0) -> Expected:
    """Return the chunks that begin at `start` of all inputs, concatenated."""
    sender, position = np.divmod(index, max(case.count, 1))
    return _select(case, sender, position + start)


def _start(case: Case) -> int:
    """Return the position of the member's chunk."""
    return case.member * case.count


EXPECTED: Mapping[str, Callable[[Case, Index], Expected]] = MappingProxyType(
    {
        "all_reduce": reduced,
        "all_gather": _gathered,
        "reduce_scatter": lambda case, index: reduced(case, index + _start(case)),
        "all_to_all": lambda case, index: _gathered(case, index, _start(case)),
        "all_to_all_v": exchanged_by_counts,
        "broadcast": _root_values,
        "reduce": reduced,
        "gather": _gathered,
        "scatter": lambda case, index: _root_values(case, index + _start(case)),
        "recv": _source_values,
        "send_recv": _source_values,
    }
)
"""The function of each collective that has an output."""
