"""Clues to the format of a text: patterns, and combinations of them that take linear time.

A single pattern with a lookahead scans the rest of the text for each of its matches, and a text may have many of them.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import dataclass
from typing import Protocol

_REACH = 4_000

NEVER = re.compile(r"(?!)")
"""The clue of a format that is recognised by the keys of a config alone."""


class Clue(Protocol):
    """Anything that can be searched for in a text, such as a compiled pattern."""

    def search(self, string: str, /) -> object:
        """Return a true value if the text contains it."""


@dataclass(frozen=True, slots=True)
class AnyOf:
    """One of several clues."""

    clues: tuple[Clue, ...]

    def search(self, string: str, /) -> bool:
        """Return True if the text contains at least one of the clues."""
        return any(clue.search(string) for clue in self.clues)


@dataclass(frozen=True, slots=True)
class Followed:
    """A pattern with another one anywhere after it."""

    first: re.Pattern[str]
    then: re.Pattern[str]

    def search(self, string: str, /) -> bool:
        """Return True if the text contains both, in this order."""
        start = self.first.search(string)
        return start is not None and self.then.search(string, start.end()) is not None


@dataclass(frozen=True, slots=True)
class CallWith:
    """A call in Python code that has an argument within its first 4,000 characters, and no comment before it."""

    call: re.Pattern[str]
    argument: re.Pattern[str]

    def search(self, string: str, /) -> bool:
        """Return True if the text contains such a call."""
        arguments = [match.start() for match in self.argument.finditer(string)]
        if not arguments:
            return False
        for call in self.call.finditer(string):
            begin = call.end()
            following = bisect_left(arguments, begin)
            if following == len(arguments):
                return False
            argument = arguments[following]
            if argument <= begin + _REACH and string.find("#", begin, argument) < 0:
                return True
        return False
