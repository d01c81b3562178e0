"""The lines of a text in classes that differ only in their digits, so that a pattern is tried once for each class."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable
from itertools import accumulate

_POINTER = re.compile(rb"0x[0-9a-fA-F]+")
_DIGITS = bytes.maketrans(b"123456789", b"0" * 9)


class SimilarLines:
    """The distinct lines of a text. A long log has 100,000 of them, but only hundreds of classes.

    The patterns must not contain a digit literally, and must not match across lines.
    """

    def __init__(self, text: str) -> None:
        self.lines = list(dict.fromkeys(text.split("\n")))
        masked = _masked("\n".join(self.lines))
        classes: dict[str, int] = {}
        self._class_of = [classes.setdefault(line, len(classes)) for line in masked.split("\n")]
        self._heads = "\n".join(classes)
        self._starts = [0, *accumulate(len(head) + 1 for head in classes)]

    def containing(self, patterns: Iterable[re.Pattern[str]]) -> list[list[int]]:
        """Return the numbers of the lines, from 0, that contain each pattern."""
        return [self._lines_of(self._classes_with(pattern)) for pattern in patterns]

    def where(self, is_kind: Callable[[str], bool]) -> list[int]:
        """Return the numbers of the lines whose class a function selects by one line with zeros as digits."""
        return self._lines_of({number for number, head in enumerate(self._heads.split("\n")) if is_kind(head)})

    def text_of(self, numbers: Iterable[int]) -> str:
        """Return some lines as a text."""
        return "\n".join([self.lines[number] for number in numbers])

    def _classes_with(self, pattern: re.Pattern[str]) -> set[int]:
        return {bisect_right(self._starts, match.start()) - 1 for match in pattern.finditer(self._heads)}

    def _lines_of(self, classes: set[int]) -> list[int]:
        return [number for number, item in enumerate(self._class_of) if item in classes] if classes else []


def _masked(text: str) -> str:
    """Return a text with zeros instead of other digits, and of pointers, which are hexadecimal."""
    data = text.encode(errors="surrogatepass")
    if b"0x" in data:
        data = _POINTER.sub(lambda match: b"0x" + b"0" * (len(match[0]) - 2), data)
    return data.translate(_DIGITS).decode(errors="surrogatepass")
