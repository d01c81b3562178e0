"""A pasted text: its lines without the prefixes of launchers, and a quick search in them."""

from __future__ import annotations

import functools
import re
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from meshlab.base._documents import LimitError
from meshlab.base._prefixes import find_prefix, may_have_prefix

_T = TypeVar("_T")

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")

# Forums turn file names and addresses into links: [net_ib.cc:101](http://net_ib.cc:101/).
_LINK = re.compile(r"\[([\w.:/-]+)\]\(https?://\1/?\)")

_LONG = 200_000
LONGEST_LINE = 1 << 14
"""The characters of a line that are searched, because some patterns take long for long lines."""

_BLANKS = b" " * 64  # more than any string that is looked for
_BLOCK = 1 << 20
_SHORT_PIECE, _LONG_PIECE = 256, 4096
_VARYING = b"0123456789abcdef"


def _skeleton(text: str) -> bytes:
    """Return the distinct lines without hexadecimal digits: short, and what it lacks is not in the text."""
    data = text.encode(errors="replace").translate(None, _VARYING)
    if _BLANKS in data:  # every string that begins with a blank is compared with each of them
        data = re.sub(_BLANKS + b"+", _BLANKS, data)
    return b"\n".join({piece for line in set(data.split(b"\n")) for piece in _pieces(line)})


def _pieces(line: bytes) -> list[bytes]:
    """Return overlapping pieces of a long line, of which many are equal: a JSON file may be one line of megabytes."""
    pieces, start = [], 0
    while len(line) - start > _LONG_PIECE:
        # Objects of JSON begin alike. Lines without any are cut in pieces of one length.
        end = line.find(b"{", start + _SHORT_PIECE, start + _LONG_PIECE)
        end = end if end >= 0 else start + _LONG_PIECE
        pieces.append(line[start : end + len(_BLANKS)])
        start = end
    return [*pieces, line[start:]]


# Not a dataclass, which takes three times as long to create: a long log has hundreds of thousands of lines.
class PasteLine(NamedTuple):
    """One line of a paste.

    Parameters
    ----------
    number : int
        Position in the paste, from 1.
    raw, text : str
        The line as it was pasted, and without the prefixes of launchers.
    rank, host : int or None, str or None
        The rank, and the host, pod or address, that a prefix names.
    """

    number: int
    raw: str
    text: str
    rank: int | None = None
    host: str | None = None


class Paste:
    """A text that someone pasted, with an index of its lines.

    Parameters
    ----------
    text : str
        The text. Colours of terminals are removed, and links that a forum made of file names and addresses.
    name : str, optional
        Name of the file that contains it.

    Examples
    --------
    >>> paste = Paste("[1,3]<stdout>:nodeA:12:34 [0] NCCL INFO Connected all rings")
    >>> line = paste.find("Connected all rings")[0]
    >>> line.number, line.rank, line.text
    (1, 3, 'nodeA:12:34 [0] NCCL INFO Connected all rings')
    """

    def __init__(self, text: str, name: str | None = None) -> None:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        text = _ANSI.sub("", text) if "\x1b" in text else text
        self.text = _LINK.sub(r"\1", text) if "](http" in text else text
        self.name = name
        self._starts = _line_starts(self.text)
        self._lines: dict[int, PasteLine] = {}
        self._hits: dict[str, list[int]] = {}
        self._answers: dict[str, bool] = {}
        self._read: dict[Callable[[Paste], Any], Any] = {}
        self._skeleton = _skeleton(self.text) if len(self.text) > _LONG else None
        self._n_lines = len(self._starts) - (self.text == "" or self.text.endswith("\n"))

    def __len__(self) -> int:
        """Return the number of lines."""
        return self._n_lines

    def line(self, number: int) -> PasteLine:
        """Return a line by its number, from 1."""
        if (line := self._lines.get(number)) is None:
            raw = self.raw(number)[:LONGEST_LINE]
            length, rank, host = find_prefix(raw)
            text = raw[length:]
            if text.endswith("│"):  # the right border of a window of a terminal
                text = text.rstrip("│ ")
            line = self._lines[number] = PasteLine(number, raw, text, rank, host)
        return line

    def raw(self, number: int) -> str:
        """Return a line as it was pasted. This is much faster than `line`, which removes the prefixes."""
        start = self._starts[number - 1]
        return self.text[start : self._starts[number] - 1] if number < len(self._starts) else self.text[start:]

    def bounds(self, number: int) -> tuple[int, int]:
        """Return where the searched part of a line starts and ends in the text."""
        start = self._starts[number - 1]
        end = self._starts[number] - 1 if number < len(self._starts) else len(self.text)
        return start, end if end - start <= LONGEST_LINE else start + LONGEST_LINE

    def lines(self) -> list[PasteLine]:
        """Return all lines. Prefer `find` in large texts: it creates only the lines that are needed."""
        return [self.line(number) for number in range(1, len(self) + 1)]

    def find(self, *literals: str) -> list[PasteLine]:
        """Return the lines that contain one of the strings, in order."""
        lines = self._lines
        return [lines.get(number) or self.line(number) for number in self.numbers(*literals)]

    def numbers(self, *literals: str) -> list[int]:
        """Return the numbers of the lines that contain one of the strings, in order."""
        hits = [numbers for literal in literals if (numbers := self._numbers(literal))]
        return list(*hits) if len(hits) < 2 else sorted(set().union(*hits))

    def containing(self, pattern: re.Pattern[str], *literals: str) -> list[PasteLine]:
        """Return the lines that contain one of the strings and, with or without their prefixes, a pattern.

        The pattern has no anchors. No line is created for the others, which takes several times as long.
        """
        text, search, bounds = self.text, pattern.search, self.bounds
        numbers = self.numbers(*literals)
        if not numbers or search(text) is None:
            return []
        return [self.line(number) for number in numbers if search(text, *bounds(number)) is not None]

    def matches(self, pattern: re.Pattern[str], *literals: str) -> list[tuple[PasteLine, re.Match[str]]]:
        """Return the lines without prefixes in which a pattern occurs, with the match.

        Only lines with one of the strings are searched, because finding a string is much faster than a pattern.
        """
        search = pattern.search
        return [(line, match) for line in self.find(*literals) if (match := search(line.text)) is not None]

    def number_at(self, position: int) -> int:
        """Return the number of the line that contains a position of the text."""
        return bisect_right(self._starts, position)

    def once(self, reader: Callable[[Paste], _T]) -> _T:
        """Return the result of a reader on this paste. Each reader runs once, however many rules need its result."""
        if reader not in self._read:
            self._read[reader] = reader(self)
        result: _T = self._read[reader]
        return result

    def may_contain(self, literal: str) -> bool:
        """Return whether a string may be in the text. For a long text, False is certain and found at once."""
        if self._skeleton is None:
            return literal in self.text
        if (answer := self._answers.get(literal)) is None:
            data = literal.encode().translate(None, _VARYING)
            may = len(data) < 3 or bool(self._present[_triples(data)].all())
            answer = self._answers[literal] = may and data in self._skeleton
        return answer

    def readings(self) -> tuple[Any, ...]:
        """Return what the readers that ran have extracted."""
        return tuple(self._read.values())

    def starting_with(self, pattern: re.Pattern[str], numbers: Iterable[int]) -> list[int]:
        """Return the numbers of those lines that a pattern without ``^`` matches, with or without their prefix.

        Most lines have no prefix, and it takes longer to look for one than to match the pattern.
        """
        text, bounds, match, hits = self.text, self.bounds, pattern.match, []
        for number in numbers:
            start, end = bounds(number)
            is_found = match(text, start, end) is not None
            if is_found or (may_have_prefix(text, start, end) and match(self.line(number).text) is not None):
                hits.append(number)
        return hits

    def before(self, literal: str, numbers: Iterable[int]) -> list[str]:
        """Return the beginnings of lines that contain a string, up to it."""
        text, find, starts = self.text, self.text.find, self._starts
        return [text[(start := starts[number - 1]) : find(literal, start)] for number in numbers]

    def remember(self, reader: Callable[[Paste], _T], result: _T) -> None:
        """Take a result for that of a reader, which then need not run."""
        self._read[reader] = result

    def _numbers(self, literal: str) -> list[int]:
        if (hits := self._hits.get(literal)) is None:
            hits = self._hits[literal] = []
            if self._skeleton is not None:
                if self.may_contain(literal):
                    places = [match.start() for match in re.finditer(re.escape(literal), self.text)]
                    numbers = np.searchsorted(self._line_starts, places, side="right")
                    hits += numbers[np.diff(numbers, prepend=0) > 0].tolist()
                return hits
            position = self.text.find(literal)
            while position >= 0:
                number = bisect_right(self._starts, position)
                hits.append(number)
                if number >= len(self._starts):
                    break
                position = self.text.find(literal, self._starts[number])
        return hits

    @functools.cached_property
    def _present(self) -> npt.NDArray[np.bool_]:
        """Whether the skeleton has three bytes after each other. Of most strings, one triple is not in it."""
        present = np.zeros(1 << 24, dtype=bool)
        data = self._skeleton or b""
        for start in range(0, len(data), _BLOCK):
            present[_triples(data[start : start + _BLOCK + 2])] = True
        return present

    @functools.cached_property
    def _line_starts(self) -> npt.NDArray[np.int64]:
        return np.array(self._starts)

    def __repr__(self) -> str:
        title = f"<Paste: {len(self):,} lines{'' if self.name is None else f' of {self.name}'}"
        return f"{title}; next: ml.explain(paste.text)>"


def check_matches(
    paste: Paste, pattern: re.Pattern[str], literals: Iterable[str], what: str, *, most: int, length: int
) -> None:
    """Raise a `LimitError` as `check_number` does, for the places where a pattern occurs. No line is created."""
    if any(paste.may_contain(literal) for literal in literals):
        number = sum(1 for _ in pattern.finditer(paste.text))
        check_number(paste, number, what, most=most, length=length, hint="pass fewer hosts")


def _triples(data: bytes) -> npt.NDArray[np.int32]:
    """Return each three consecutive bytes as a number."""
    codes = np.frombuffer(data, dtype=np.uint8).astype(np.int32)
    triples: npt.NDArray[np.int32] = codes[:-2] << 16 | codes[1:-1] << 8 | codes[2:]
    return triples


def check_number(
    paste: Paste, number: int, what: str, *, most: int = 50_000, length: int = 100, hint: str = ""
) -> None:
    """Raise a `LimitError` if a text has more than `most` items, plus one per `length` characters."""
    most += len(paste.text) // length
    if number > most:
        raise LimitError(
            f"the text has {len(paste.text):,} characters, and more than {most:,} {what}",
            hint=hint or "pass the part around the first error, or the log of fewer ranks",
            file=paste.name,
        )


def _line_starts(text: str) -> array[int]:
    """Return the position of each line, as machine integers: a text may have 10 million lines."""
    if text.isascii():
        characters: npt.NDArray[Any] = np.frombuffer(text.encode("ascii"), dtype=np.uint8)
    else:
        characters = np.frombuffer(text.encode("utf-32-le", errors="surrogatepass"), dtype=np.uint32)
    starts = array("q", [0])
    starts.frombytes((np.flatnonzero(characters == ord("\n")) + 1).astype(np.int64).tobytes())
    return starts
