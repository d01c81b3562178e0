"""Whole numbers in texts and documents that others wrote: always within 64 bits, as arrays and frames need them."""

from __future__ import annotations

import math

LARGEST = (1 << 63) - 1
"""The largest integer of NumPy and pandas."""

_SHORT = 18  # characters of numbers that are always within 64 bits
_MOST_DIGITS = 4000  # Python refuses to convert more than 4,300


def whole(text: str, base: int = 10) -> int:
    """Return digits as an integer. Numbers beyond 64 bits, which no tool prints, become the largest one."""
    if base == 10 and len(text) <= _SHORT:  # nearly every number
        return int(text)
    if len(text) > _MOST_DIGITS:
        text = text.strip()
        text = text[:1] + text[1:].lstrip("0_")[:_MOST_DIGITS]
    return max(-LARGEST, min(int(text, base), LARGEST))


def whole_or_none(value: object) -> int | None:
    """Return a value of a document as an integer, or None if it is not a number. Strings of digits are numbers."""
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
