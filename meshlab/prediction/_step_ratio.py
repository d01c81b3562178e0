"""The range of the ratio of two times, in which the errors that both share cancel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from meshlab.prediction._costs import prices
from meshlab.prediction._group_links import GroupLinks
from meshlab.prediction._published_errors import published_errors, size_class
from meshlab.topology.placement._placement import Placement

HIDDEN = 0.7
"""Share of the communication that may be hidden which a schedule hides, fitted to published steps."""

Key = tuple[object, ...]


class Factor(NamedTuple):
    """An unknown factor of a time: its key, its interval around 1 or from 0, and its meaning in words."""

    key: Key
    low: float
    high: float
    label: str

    @property
    def expected(self) -> float:
        """The expected value, of a part that a schedule may hide the share that it usually leaves."""
        return 1 - HIDDEN if self.low == 0 else 1.0


class ErrorTerm(NamedTuple):
    """A part of a time, and its unknown factors."""

    seconds: float
    factors: tuple[Factor, ...]

    def value(self, key: Key | None = None, factor: float = 1.0) -> float:
        """Return the expected seconds, or those with another value of one of the factors."""
        value = self.seconds
        for unknown in self.factors:
            value *= factor if unknown.key == key else unknown.expected
        return value


class TimeRatio(NamedTuple):
    """The ratio of two times: its expected value, its range, and the factor that widens the range most."""

    expected: float
    low: float
    high: float
    cause: str

    @property
    def is_decided(self) -> bool:
        """True if the range excludes 1."""
        return self.low > 1 or self.high < 1


def ratio_of(after: Sequence[ErrorTerm], before: Sequence[ErrorTerm]) -> TimeRatio:
    """Return the ratio ``after / before`` of two times that are sums of terms, each with unknown factors.

    A factor with the same key is the same in both times, so an error that both share cancels: if all terms have one
    factor, the ratio is exact however wide its interval is. Factors with different keys are independent. The change of
    the logarithm of the ratio is computed for each of them alone, at both ends of its interval, and the changes are
    combined as independent errors: the square root of the sum of their squares, upwards and downwards.

    The assumption is that the factor of a key is the same in both times. It holds for what hardware and library do to
    both in the same way, such as the efficiency of a kernel, or of a protocol on one kind of link. It does not hold for
    a defect of one of the machines.
    """
    factors: dict[Key, Factor] = {}
    for factor in (factor for term in (*after, *before) for factor in term.factors):
        other = factors.get(factor.key, factor)  # of a call of another size, whose interval may be wider
        factors[factor.key] = factor._replace(low=min(factor.low, other.low), high=max(factor.high, other.high))

    def logarithm(key: Key | None = None, factor: float = 1.0) -> float:
        top, bottom = (sum(term.value(key, factor) for term in terms) for terms in (after, before))
        return math.log(top / bottom)

    middle = logarithm()
    changes = {
        key: tuple(logarithm(key, end) - middle for end in (factor.low, factor.high)) for key, factor in factors.items()
    }
    up, down = (
        math.sqrt(sum(max(*(sign * change for change in ends), 0.0) ** 2 for ends in changes.values()))
        for sign in (1, -1)
    )
    cause = max(changes, key=lambda key: abs(changes[key][1] - changes[key][0]))
    expected, low, high = (math.exp(value) for value in (middle, middle - down, middle + up))
    return TimeRatio(expected, low, high, factors[cause].label)


def formula_factors(links: GroupLinks, row: int, collective: str, size: float) -> tuple[Factor, ...]:
    """Return the error of the price of a call on a signature, whose interval is the band of its size.

    Calls of a collective on one kind of link share their error if their sizes are of the same class.
    """
    is_inside = bool(links.domains[row] == 1)
    is_nvlink = is_inside and bool(links.inner_is_nvlink[row])
    gbs = float((links.inner_gbs if is_inside else links.nic_gbs)[row])
    where = "inside NVLink" if is_nvlink else "inside the host" if is_inside else "over the network"
    errors = published_errors().on(links.rows(slice(row, row + 1)), collective)
    low, high = (math.exp(float(end)) for end in errors.band(0, size))
    key = (collective, where, gbs, int(size_class(size)))
    return (Factor(key, low, high, f"the error of {collective} {where}"),)


def call_term(placement: Placement, axis: str, collective: str, size: float) -> ErrorTerm:
    """Return the time of a call on the slowest group of an axis, with the errors that it shares with other calls.

    Raises a `MeshlabError` if the machine has no model, or the collective no cost.
    """
    links, _ = GroupLinks.of(placement, axis)
    times = prices(links, collective).time_us(np.arange(len(links)), size) * 1e-6
    row = int(times.argmax())
    return ErrorTerm(float(times[row]), formula_factors(links, row, collective, size))
