"""Whole numbers in texts and documents that others wrote: always within 64 bits, as arrays and frames need them."""

from __future__ import annotations

import math

LARGEST = (1 << 63) - 1
"""The largest integer of NumPy and pandas."""

_SHORT = 18  # characters of numbers that are always within 64 bits
_MOST_DIGITS = 4000  # Python refuses to convert more than 4,300


def whole(text: str, base: int = 10) -> int:
    """Return digits as an integer. Numbers beyond 64 bits, which no tool prints, become the largest one.

    Parameters
    ----------
    text : str
        Digits, as a pattern has found them.
    base : int, default 10
        The base. With 0, a prefix such as ``0x`` decides.

    Raises
    ------
    ValueError
        If the text is not a number.

    Examples
    --------
    >>> whole("12"), whole("1b", 16), whole("9" * 5000) == LARGEST
    (12, 27, True)
    """
    if base == 10 and len(text) <= _SHORT:  # nearly every number
        return int(text)
    if len(text) > _MOST_DIGITS:
        text = text.strip()
        text = text[:1] + text[1:].lstrip("0_")[:_MOST_DIGITS]
    return max(-LARGEST, min(int(text, base), LARGEST))


def whole_or_none(value: object) -> int | None:
    """Return a value of a document as an integer, or None if it is no number. Strings of digits are numbers.

    Examples
    --------
    >>> [whole_or_none(value) for value in (3, "3", 3.0, 2.5, "x", None, [3], float("nan"), 10**30)]
    [3, 3, 3, 2, None, None, None, None, 9223372036854775807]
    """
    if type(value) is int and -LARGEST <= value <= LARGEST:  # nearly every number of a document
        return value
    if isinstance(value, str):
        try:
            return whole(value)
        except ValueError:
            return None
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, (int, float)):
        return int(max(-LARGEST, min(value, LARGEST)))
    return None
