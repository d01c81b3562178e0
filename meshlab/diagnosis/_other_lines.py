"""The lines of a paste that NCCL did not print at level INFO, which are few in a long log."""

from __future__ import annotations

import re
from bisect import bisect_right

from meshlab.diagnosis._paste import Paste, PasteLine

_INFO = "NCCL INFO"
_LONG = 500  # forums join lines, so a long one may hold other messages too


class OtherLines:
    """A search in all lines but those of NCCL at level INFO: in 10 MB of these, many searches take seconds."""

    def __init__(self, paste: Paste) -> None:
        self._paste = paste
        self._is_all = _INFO not in paste.text
        self._numbers_of: list[int] = []
        self._starts: list[int] = []
        self._text = ""
        if not self._is_all:
            others = [
                (number, line)
                for number, line in enumerate(paste.text.split("\n"), 1)
                if _INFO not in line or len(line) > _LONG
            ]
            self._text = "\n".join(line for _, line in others)
            self._numbers_of = [number for number, _ in others]
            self._starts = [0, *(match.end() for match in re.finditer("\n", self._text))]

    def numbers(self, *literals: str) -> list[int]:
        """Return the numbers of the lines that contain one of the strings, in order."""
        if self._is_all:
            return self._paste.numbers(*literals)
        return sorted({number for literal in literals for number in self._find(literal)})

    def find(self, *literals: str) -> list[PasteLine]:
        """Return the lines that contain one of the strings, in order."""
        return [self._paste.line(number) for number in self.numbers(*literals)]

    def matches(self, pattern: re.Pattern[str], *literals: str) -> list[tuple[PasteLine, re.Match[str]]]:
        """Return the lines without prefixes in which a pattern occurs, with the match."""
        searched = ((line, pattern.search(line.text)) for line in self.find(*literals))
        return [(line, match) for line, match in searched if match is not None]

    def _find(self, literal: str) -> list[int]:
        numbers: list[int] = []
        position = self._text.find(literal) if self._paste.may_contain(literal) else -1
        while position >= 0:
            index = bisect_right(self._starts, position)
            numbers.append(self._numbers_of[index - 1])
            if index >= len(self._starts):
                break
            position = self._text.find(literal, self._starts[index])
        return numbers


def other_lines(paste: Paste) -> OtherLines:
    """Return the lines of a paste that NCCL did not print at level INFO."""
    return paste.once(OtherLines)
