"""Pieces of rows of an nccl-tests table, which other output has interrupted.

A row is printed in several writes. Messages of NCCL, other ranks and launchers write in between, so a row may be in
several lines, and a line may have the host of a message right behind the digits of a row. The functions here return all
texts that such a line may have been. `RowBuffer.add_joined` accepts one of them if it is the only one that fits.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from meshlab.nccl_tests._log import DTYPE_OF_TYPE, OPS

TYPES = frozenset(DTYPE_OF_TYPE)
"""The names of the element types."""

_LONGEST_ROW = 512
_LONGEST_CELL = 24
_MOST_TEXTS = 64

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[-+]\d+)?|N/A")
_CELL = rf"(?:{'|'.join(OPS)}|N/A|-?\d+(?:\.\d+)?(?:e[-+]\d+)?)"
_TYPE = "|".join(sorted(DTYPE_OF_TYPE, key=len, reverse=True))
_PARTS_OF_TYPES = ("float", "int", "half", "double", "char", "8e", "8_e")
_WORDS = (*DTYPE_OF_TYPE, *OPS, "N/A")
_ENDS_OF_WORDS = frozenset(word[start:] for word in _WORDS for start in range(len(word)))
_PART_OF_CELL = re.compile(
    r"-?\d*(?:\.\d*)?(?:e[-+]?\d*)?|"
    + "|".join(sorted({re.escape(word[:end]) for word in _WORDS for end in range(1, len(word) + 1)}, key=len)[::-1])
)
_CELLS = r"[-+.\d\w/]+"
_ROW_START = re.compile(rf"(?<![\w.,/-])\d+\s+\d+\s+(?:{_TYPE})(?:\s+{_CELL})*")
_START_AT_END = re.compile(rf"(?<![\w.,/-])\d+(?:\s+\d+(?:\s+[a-z]\w*(?:\s+{_CELLS})*)?)?\s*$")
_TYPE_AND_CELLS = re.compile(rf"(?:{_TYPE})(?:\s+{_CELL}){{2}}")
_PLACEMENT_AT_END = re.compile(r"\s\d+(?:\.\d+)?\s+\d+\.\d+\s+\d+\.\d+\s+(?:N/A|\d+|\de[-+]\d+)\s*$")
_MESSAGE_HEAD = re.compile(r":\d+:\d+ (?:\[\d+\] )?$")  # behind the host
_PREFIX = re.compile(r"\[[\w,]+\](?: |<std\w+>:)?|\S*[:>|\]] ?")


class Fragment:
    """The beginning of a row that continues in a later line: the line of the beginning, and the possible texts."""

    __slots__ = ("_row", "_texts", "line")

    def __init__(self, line: int, texts: Sequence[str], row: str | None = None) -> None:
        self.line = line
        self._texts = texts if len(texts) < 2 else list(dict.fromkeys(texts))[:_MOST_TEXTS]
        self._row = row

    @classmethod
    def of_row(cls, line: int, text: str) -> Fragment:
        """Return the beginning of a row that has its type, perhaps with other output behind it, which is cut later."""
        return cls(line, (), text)

    @property
    def texts(self) -> Sequence[str]:
        """The possible beginnings."""
        if self._row is not None:
            row = row_after_message(self._row, 0)
            self._texts, self._row = [self._row if row is None else row], None
        return self._texts

    @property
    def is_certain(self) -> bool:
        """Whether it is a part of a row for sure. A single number may be the number of a line, or of a rank."""
        return self._row is not None or all(len(text.split(None, 1)) > 1 for text in self._texts)

    def joined(self, rests: Sequence[str]) -> list[str]:
        """Return the fragment with each of the possible continuations."""
        return [(text + rest).rstrip() for text in self.texts for rest in rests]


def without_prefix(raw: str) -> list[str]:
    """Return the possible continuations of a row in a line: with and without a launcher's prefix and its space."""
    match = _PREFIX.match(raw)
    rest = raw if match is None else raw[len(match[0].rstrip()) :]
    return [rest, rest[1:]] if rest[:1] == " " else [rest]


def ends_before_message(raw: str, at: int) -> tuple[list[str], str]:
    """Return the possible texts before a message of NCCL, and the one that leaves a host that starts with a letter.

    `at` is the index of ``NCCL`` in the line. The host, the process and the thread are in front of it.

    Examples
    --------
    >>> line = "   1024     25node0:17:18 [0] NCCL INFO ..."
    >>> ends_before_message(line, line.index("NCCL"))
    (['   1024     25', '   1024     2', '   1024     '], '   1024     25')
    """
    before = raw[max(0, at - _LONGEST_ROW) : at]
    if (match := _MESSAGE_HEAD.search(before)) is None:
        return [before], before
    host = _last_word(before[: match.start()]).rpartition(":")[2]
    left = before[: match.start() - len(host)]
    # Nothing separates the digits of a row from a host such as 10.0.0.7, so the row may end behind any of them.
    ends = _ends_of_cell(_last_word(left), host[:_LONGEST_CELL])
    possible = [left + host[:end] for end in (*ends, 0)]
    # If no host remains that starts with a letter, the complete word is the host.
    likely = next((end for end in ends if host[end : end + 1].isalpha()), 0)
    return possible, left + host[:likely]


@lru_cache(4096)
def _ends_of_cell(start: str, host: str) -> tuple[int, ...]:
    """Return how many characters of a host may belong to a cell, most first."""
    return tuple(end for end in range(len(host), 0, -1) if _PART_OF_CELL.fullmatch(start + host[:end]))


def _last_word(text: str) -> str:
    """Return the end of a text behind its last blank, which is empty if the text ends with a blank."""
    return "" if not text or text[-1].isspace() else text.rsplit(None, 1)[-1]


def beginnings_of_row(texts: Sequence[str]) -> list[str]:
    """Return the parts of texts that may be the beginning of a row: its size, and everything behind it."""
    return [match[0] for text in texts if (match := _START_AT_END.search(text)) is not None]


def row_after_message(raw: str, at: int) -> str | None:
    """Return a row, or the beginning of one, that follows a message without a line break."""
    match = _ROW_START.search(raw, at)
    return None if match is None else match[0]


def has_type_and_cells(raw: str, at: int = 0) -> bool:
    """Return whether a line has the type of a row and the next cells behind a position."""
    return may_have_type(raw, at) and _TYPE_AND_CELLS.search(raw, at) is not None


def may_have_type(raw: str, at: int) -> bool:
    """Return whether a part of the name of a type is behind a position, which is much faster than a pattern."""
    return any(raw.find(part, at) >= 0 for part in _PARTS_OF_TYPES)


def cells_only(texts: Sequence[str]) -> list[str]:
    """Return the texts that consist of cells. The first and the last one may be incomplete."""
    return [
        text
        for text in texts
        if (tokens := text.split())
        and all(_is_cell(token) or token in TYPES for token in tokens[1:-1])
        and _PART_OF_CELL.fullmatch(tokens[-1])
        and (_is_end_of_cell(tokens[0]) or _PART_OF_CELL.fullmatch(tokens[0]))
    ]


def is_part_of_row(raw: str, tokens: Sequence[str]) -> bool:
    """Return whether a line has numbers as only a row has them: behind a type, or at least two with decimals."""
    if has_type_and_cells(raw) or _PLACEMENT_AT_END.search(raw[-_LONGEST_ROW:]) is not None:
        return True
    if not (cells := list(tokens[:_LONGEST_ROW])):
        return False
    if not _is_cell(cells[0]) and _is_end_of_cell(cells[0]):
        cells = cells[1:]
    leading = next((index for index, token in enumerate(cells) if not _is_cell(token)), len(cells))
    return leading >= 4 and sum("." in token for token in cells[:leading]) >= 2


def starts_row(tokens: Sequence[str]) -> bool:
    """Return whether a line ends behind the size, the count, or the first letters of the type of a row."""
    return (
        len(tokens) <= 3
        and all(token.isdecimal() for token in tokens[:2])
        and (len(tokens) < 3 or any(name.startswith(tokens[2]) for name in TYPES))
    )


def _is_end_of_cell(token: str) -> bool:
    return token in _ENDS_OF_WORDS or token.lstrip(".e+-").isdecimal()


def _is_cell(token: str) -> bool:
    return _NUMBER.fullmatch(token) is not None or token in OPS
