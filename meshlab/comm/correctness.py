"""The right answer of every collective, worked out from what all ranks put in; and how far a result may be from it.

Right answers are for checks: `encode` gives each rank data that tells ranks and places apart, and `count_mistakes`
looks at what came out. Results of floating-point reductions may differ by rounding, for which there is a bound: n
numbers added in any order with unit roundoff u differ from their sum by at most k·u/(1 - k·u) times the sum of their
magnitudes, with k roundings on the way of each (N. J. Higham, Accuracy and Stability of Numerical Algorithms, 2002,
section 4.2). The bound is zero where every step is exact, as it is for sums of whole numbers that the type can hold.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from meshlab.comm.elements import Array, ReduceOp, divide, float_facts, is_whole, scalar_in

__all__ = ["Answer", "Case", "Index", "Value", "count_mistakes", "encode"]

Index = npt.NDArray[np.int64]
Value = Callable[[int, Index], Array]
"""``value(member, index)``: what the group's member put at those places of its input."""


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """One collective call, seen from one member, with what all members put in.

    Parameters
    ----------
    value : callable
        ``value(member, index)``: the input of a member of the group, at those places.
    n, member : int
        How many ranks the group has, and whose output is asked for.
    count : int
        The call's count.
    dtype : numpy.dtype
        The element type.
    op : ReduceOp, optional
        The reduce operation. Every rank's scalar must be the same.
    root, source : int, optional
        The root, and from whom this member receives; ranks of the group.
    counts : numpy.ndarray, optional
        Of shape (n, n): how many elements each member sends to each; only for ``all_to_all_v``.
    """

    value: Value
    n: int
    member: int
    count: int
    dtype: np.dtype[Any]
    op: ReduceOp | None = None
    root: int = 0
    source: int = 0
    counts: npt.NDArray[np.int64] | None = None


class Answer(NamedTuple):
    """What a member should get at some places.

    Parameters
    ----------
    right : numpy.ndarray
        The values: in float64 for floating-point types, else in the type itself.
    slack : numpy.ndarray or float
        How far a result may be away.
    """

    right: Array
    slack: Array | float


def count_mistakes(got: Array, answer: Answer) -> int:
    """Count the elements that are not right.

    Examples
    --------
    >>> count_mistakes(np.array([1.0, np.nan, 3.0]), Answer(np.array([1.0, 2.0, 3.5]), 0.5))
    1
    """
    if is_whole(got.dtype):
        return int((got != answer.right).sum())
    with np.errstate(invalid="ignore"):
        return int((~(np.abs(got.astype(np.float64) - answer.right) <= answer.slack)).sum())


def encode(member: int, index: Index, dtype: np.dtype[Any], op: ReduceOp | None = None) -> Array:
    """The value that global rank `member` puts at each place of its input: rank-coded, small, exact in every dtype.

    The period 61 is prime, so chunks that land at the wrong place (offsets are powers of two) do not match. Types that
    hold few whole numbers get few values. For products these are powers of two, or 1, 2 and 3 for integers.

    Examples
    --------
    >>> encode(3, np.arange(4), np.dtype("float32"))
    array([51., 52., 53., 54.], dtype=float32)
    """
    code = (index + 17 * member) % 61
    if op is not None and op.name == "prod":
        return (_POWERS[code] + 2 if is_whole(dtype) else np.ldexp(1.0, _POWERS[code])).astype(dtype)
    exact = 256 if is_whole(dtype) else 1 << (float_facts(dtype).nmant + 1)  # whole numbers up to here are exact
    values = next(prime for prime in (61, 13, 5, 3) if 4 * (prime - 1) <= exact)  # so that four ranks' sums are exact
    return (code if values == 61 else _SHUFFLED[code] % values).astype(dtype)


# The powers of 2 modulo 61, and the Legendre symbol of 61 (-1, 0 or 1), resemble no shift of themselves.
_SHUFFLED = np.array([pow(2, number, 61) for number in range(61)])
_POWERS = np.array([{0: 0, 1: 1, 60: -1}[pow(number, 30, 61)] for number in range(61)])


# -- the collectives; each gives the output of `case.member` at the places `index` -------------------------------------


def reduced(case: Case, index: Index) -> Answer:
    """The reduction of all inputs at the same places."""
    if case.op is None:
        raise TypeError("a case of a reduction has an op")
    scalar = scalar_in(case.op, case.dtype)
    total, magnitude, all_whole = np.empty(0), np.zeros(len(index)), np.ones(len(index), dtype=bool)
    with np.errstate(all="ignore"):
        for member in range(case.n):
            term = _wide(case.value(member, index))
            term = term if scalar is None else term * _wide(scalar)
            total = case.op.combine(total, term) if member else term.copy()
            if not is_whole(case.dtype):
                magnitude += np.abs(term)
                all_whole &= term == np.rint(term)
        if case.op.name == "avg":
            divide(total, case.n)
        return Answer(total, _slack(case.op.name, case.n, case.dtype, total, magnitude, all_whole))


def _slack(
    op: str, n: int, dtype: np.dtype[Any], total: Array, magnitude: Array, all_whole: npt.NDArray[np.bool_]
) -> Array | float:
    if is_whole(dtype) or op in ("min", "max"):
        return 0.0
    facts = float_facts(dtype)
    roundings = n - 1 + {"avg": 2, "pre_mul_sum": 1}.get(op, 0)
    part = roundings * float(facts.eps) / 2
    bound = part / (1 - part) if part < 1 else np.inf
    lost = roundings * float(facts.smallest_subnormal)  # where a product falls under the smallest number
    if op == "prod":
        return np.asarray(bound * np.abs(total) + lost)
    if op == "avg":
        return np.asarray(bound * magnitude / n + lost)
    is_exact = all_whole & (magnitude <= 2.0 ** (facts.nmant + 1))
    return np.where(is_exact, 0.0, bound * magnitude + lost)


def reduced_part(case: Case, index: Index) -> Answer:
    """The member's own part of the reduction."""
    return reduced(case, index + case.member * case.count)


def gathered(case: Case, index: Index) -> Answer:
    """All inputs, one behind the other."""
    return _pick(case, index // max(case.count, 1), index % max(case.count, 1))


def roots_input(case: Case, index: Index) -> Answer:
    """What the root put in."""
    return Answer(_wide(case.value(case.root, index)), 0.0)


def roots_part(case: Case, index: Index) -> Answer:
    """The member's own part of what the root put in."""
    return Answer(_wide(case.value(case.root, index + case.member * case.count)), 0.0)


def sources_input(case: Case, index: Index) -> Answer:
    """What the source put in."""
    return Answer(_wide(case.value(case.source, index)), 0.0)


def exchanged(case: Case, index: Index) -> Answer:
    """The member's own part of every input, one behind the other."""
    return _pick(case, index // max(case.count, 1), index % max(case.count, 1) + case.member * case.count)


def exchanged_by_counts(case: Case, index: Index) -> Answer:
    """The member's own part of every input, where parts have sizes of their own."""
    counts = np.full((case.n, case.n), case.count) if case.counts is None else case.counts
    ends = np.cumsum(counts[:, case.member])
    sender = np.searchsorted(ends, index, side="right")
    begins_there = np.cumsum(counts, axis=1)[:, case.member] - counts[:, case.member]
    begins_here = ends - counts[:, case.member]
    return _pick(case, sender, index - begins_here[sender] + begins_there[sender])


def _pick(case: Case, sender: Index, place: Index) -> Answer:
    right = np.empty(len(sender), np.float64 if not is_whole(case.dtype) else case.dtype)
    for member in range(case.n):
        here = sender == member
        if here.any():
            right[here] = case.value(member, place[here])
    return Answer(right, 0.0)


def _wide(values: Array) -> Array:
    return values if is_whole(values.dtype) else values.astype(np.float64)
