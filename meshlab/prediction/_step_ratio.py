"""The range of the ratio of two times, in which the errors that both share cancel."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

Key = tuple[object, ...]


class ErrorTerm(NamedTuple):
    """A part of a time, and the interval of the unknown factor that belongs to its key."""

    key: Key
    seconds: float
    low: float
    high: float
    label: str  # of the factor, in words


class Ratio(NamedTuple):
    """The ratio of two times: its expected value, its range, and the factor that widens the range most."""

    expected: float
    low: float
    high: float
    cause: str

    @property
    def is_decided(self) -> bool:
        """True if the range excludes 1."""
        return self.low > 1 or self.high < 1


def ratio_of(after: Iterable[ErrorTerm], before: Iterable[ErrorTerm]) -> Ratio:
    """Return the ratio ``after / before`` of two times that are sums of terms, each with an unknown factor.

    Terms with the same key have the same factor in both times, so an error that both share cancels: if all terms have
    one key, the ratio is exact however wide its interval is. The factors of different keys are independent. The change
    of the logarithm of the ratio is computed for each of them alone, at both ends of its interval, and the changes are
    combined as independent errors: the square root of the sum of their squares, upwards and downwards.

    The assumption is that the factor of a key is the same in both times. It holds for what hardware and library do to
    both in the same way, such as the efficiency of a kernel, or of a protocol on one kind of link. It does not hold for
    a defect of one of the machines.
    """
    sums: tuple[dict[Key, float], dict[Key, float]] = {}, {}
    factors: dict[Key, ErrorTerm] = {}
    for terms, by_key in zip((after, before), sums, strict=True):
        for term in terms:
            by_key[term.key] = by_key.get(term.key, 0.0) + term.seconds
            factors[term.key] = term
    # A part that may vanish is expected at half: the middle of both ends of the time.
    expected = {key: 0.5 if term.low == 0 else 1.0 for key, term in factors.items()}
    top, bottom = (sum(seconds * expected[key] for key, seconds in by_key.items()) for by_key in sums)

    def change(key: Key, factor: float) -> float:
        """Return the change of the logarithm of the ratio if one factor is not the expected one."""
        by = factor - expected[key]
        return math.log1p(sums[0].get(key, 0.0) * by / top) - math.log1p(sums[1].get(key, 0.0) * by / bottom)

    changes = {key: (change(key, term.low), change(key, term.high)) for key, term in factors.items()}
    up, down = (
        math.sqrt(sum(max(sign * ends[0], sign * ends[1], 0.0) ** 2 for ends in changes.values())) for sign in (1, -1)
    )
    cause = max(changes, key=lambda key: abs(changes[key][1] - changes[key][0]))
    ratio = top / bottom
    return Ratio(ratio, ratio * math.exp(-down), ratio * math.exp(up), factors[cause].label)
