"""Words that several parts of a report share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from meshlab.base._units import format_size
from meshlab.frames._labels import pair_label

if TYPE_CHECKING:
    import pandas as pd

MOST_NAMED = 3
"""The number of results, or other parts of one kind, that a sentence names."""

# The states of a run or a measurement that did not finish, with their verbs.
UNFINISHED = {"failed": "failed", "cancelled": "was cancelled", "interrupted": "was interrupted"}


def is_missing(value: Any) -> bool:
    """Return whether a value is None, NaN or NA."""
    import pandas as pd

    return bool(pd.isna(value))


def plain_text(value: Any) -> str:
    """Write a value of a column, or a dash if it is missing."""
    return "–" if is_missing(value) else (f"{value:,}" if isinstance(value, int) else str(value))


def size_text(size: Any) -> str:
    """Write a size, or a dash if it is missing."""
    return "–" if is_missing(size) else format_size(size)


def code_parts(sentence: str) -> list[tuple[bool, str]]:
    """Split a sentence at its backticks, into texts and whether each is code."""
    return [(bool(number % 2), part) for number, part in enumerate(sentence.split("`")) if part]


def count(number: int, noun: str) -> str:
    """Write a number of things."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def results_have(number: int) -> str:
    """Begin a sentence about a number of results."""
    return f"{count(number, 'result')} {'has' if number == 1 else 'have'}"


def listed(names: Iterable[object]) -> str:
    """Write names one after the other, with "and" before the last one. Empty without names."""
    texts = [str(name) for name in names]
    return " and ".join(filter(None, [", ".join(texts[:-1]), *texts[-1:]]))


def pair_label_of(row: Any) -> str:
    """Name the pair of ranks of a row."""
    return pair_label(row.collective, row.src_rank, row.dst_rank)


def named_results(rows: pd.DataFrame, details: Sequence[str] = ()) -> str:
    """Name the first of some results, each followed by its detail, and count the others."""
    row: Any
    texts = []
    for row, detail in zip(rows.head(MOST_NAMED).itertuples(), details or [""] * MOST_NAMED, strict=False):
        place = f"on {row.group}" if is_missing(row.src_rank) else pair_label_of(row)
        size = "" if is_missing(row.size_bytes) else f" at {format_size(row.size_bytes)}"
        texts.append(f"{row.collective} {place}{size}{detail}")
    more = len(rows) - len(texts)
    return ", ".join(texts) + (f" and {more:,} more" if more else "")


def was(number: int) -> str:
    """Return the verb for a number of things."""
    return "was" if number == 1 else "were"


def span(values: pd.Series[Any]) -> str:
    """Write the range of some integers. Empty without values."""
    numbers = values.dropna()
    if numbers.empty:
        return ""
    low, high = int(numbers.min()), int(numbers.max())
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
