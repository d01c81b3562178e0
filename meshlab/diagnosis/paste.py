"""A pasted text: its lines without the prefixes of launchers, and a quick search in them."""

from __future__ import annotations

import functools
import re
from bisect import bisect_right
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

__all__ = ["Paste", "PasteLine"]

_T = TypeVar("_T")

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")

# How lines begin that a program printed. A prefix that could also be text, such as "worker: ", is removed only before
# one of these.
_NAME = r"[A-Za-z0-9][\w.-]*"
_FRAME = rf"{_NAME}:\d+:\d+ (?:\[-?\d+\] |NCCL )"  # NCCL: host, process, thread and device
_TIME = r"\d{4}-(?:\d\d|[A-Z][a-z]{2})-\d\d[T ]\d\d:\d\d:\d\d"
_PRINTED = (
    rf"{_FRAME}|\[?{_TIME}|\[\d+,\d+\]|\[[A-Za-z]+\d+(?:\|\d+)?\]:|\[\d+\](?:<std|:| {_FRAME})|\[[EWI]\d* |\[Rank \d"
    r"|\[[\w.@-]+,\d+\]|\(\w[\w ]* pid=|[NR]CCL version|NVRM: |Traceback \(most|nccl[A-Z]\w*Error|torch\.|#  |# nThread"
)
_FRAME_LATER = rf"|.{{0,160}}?(?<![\w.-]){_FRAME}"  # other prefixes are between

# What launchers, log collectors, terminals and forums put before a line. They are nested, so they are removed
# repeatedly. Groups that begin with "rank" or "host" hold what a prefix names. PRINTED stands for the patterns above.
_PREFIXES = (
    rf"\[?{_TIME}(?:[.,:]\d+)?(?:Z| ?[+-]\d\d:?\d\d)?\]?:? *\|? *",  # a log collector, NCCL's own time stamp
    r"[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4}(?=[\[<])",  # Open MPI with --timestamp-output
    r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d (?P<host_syslog>[\w.-]+) [\w./-]+(?:\[\d+\])?: ",  # syslog
    # Open MPI with --tag-output or --output tag, Horovod
    r"\[(?:[\w.@-]*,)?(?P<rank_mpi>\d+)\](?:\[(?P<host_mpi>[\w.-]+):\d+\])?<std\w+>:?(?: (?! ))?",
    r"\[[\w.@-]*,(?P<rank_tag>\d+)\]:(?: (?! ))?",
    r" *(?P<rank_srun>\d+): (?!\S+: <)",  # srun --label; "2: eth0: <UP>" is the output of ip
    # mpiexec -prepend-rank; a desync report of PyTorch has lists of ranks
    r"\[(?P<rank_bracket>\d{1,4})\] (?=\S|[ \t]+(?:PRINTED))(?!finished |joined |started |Timeout at |never )",
    r"\[\d+\] (?=PRINTED)",  # a process
    # Ray, vLLM
    r"\((?:[\w.:<>]+ )?[\w.:-]*(?: ?(?:rank=(?P<rank_vllm>\d+)|[A-Z]+\d+))? ?pid=\d+(?:, ip=(?P<host_ray>[\w.:-]+))?\)"
    r"(?: ?\[repeated [^\]]*\])? ?",
    # the logger of vLLM
    r"(?:INFO|WARNING|ERROR|DEBUG) \d\d-\d\d \d\d:\d\d:\d\d (?:\[[\w./]+:\d+\] ?|\w+\.py:\d+\] ?)",
    r"\[rank(?P<rank_torch>\d+)\]: ?",  # PyTorch
    r"\[[A-Za-z][A-Za-z_-]*\d+(?:\|\d+)?\]: ?",  # torchrun ("[default0]:"); the number is the rank on the host
    r"\[\d+\]:(?=\[|\S* ?Traceback|\S+:\d+:\d+ \[)",  # older torchrun; also the rank on the host
    r"\[pod/(?P<host_kubectl>[\w.-]+)/[\w.-]+\] ",  # kubectl logs --prefix
    rf"(?P<host_compose>{_NAME}[-_]\d+) +\| ?",  # docker compose
    rf"(?P<host_compose_name>{_NAME}) +\| ?(?=PRINTED)",
    r"(?P<host_address>\d+\.\d+\.\d+\.\d+): ",  # pdsh, DeepSpeed
    r"kernel: (?=PRINTED)",
    rf"(?P<host_pdsh>{_NAME}): +(?=PRINTED)",  # pdsh, names of pods
    r"[\w./-]*\.(?:log|txt|out|err)(?::(?:\d+:(?! \S))?|-\d+-)(?=PRINTED)",  # grep
    r"(?:> ?)+",  # a quotation
    r"[>`│|]+ *(?=PRINTED)",  # a quotation, Markdown, the frame of a terminal
    r"\[\d{0,3}(?:;\d+)*m ?",  # a colour of which the escape character was lost
    r"[ \t]+(?=PRINTED)",
)
_PREFIX = re.compile("|".join(_PREFIXES).replace("PRINTED", _PRINTED))
_PREFIX_OF_FRAME = re.compile("|".join(_PREFIXES).replace("PRINTED", _PRINTED + _FRAME_LATER))
_FRAME_START = re.compile(_FRAME)

_LONG = 200_000
_VARYING = b"0123456789abcdef"


def _skeleton(text: str) -> bytes:
    """Return the distinct lines of a text without digits and the letters of hexadecimal numbers.

    The lines of a long log differ in little else, so this is short. A string that is not in it is not in the text:
    rules look for hundreds of strings, and most logs have few of them.
    """
    return b"\n".join(set(text.encode(errors="replace").translate(None, _VARYING).split(b"\n")))


# Not a dataclass, which takes three times as long to create: a long log has hundreds of thousands of lines.
class PasteLine(NamedTuple):
    """One line of a paste.

    Parameters
    ----------
    number : int
        Position in the paste, from 1.
    raw : str
        The line as it was pasted.
    text : str
        The line without the prefixes of launchers.
    rank : int or None
        The rank that a prefix names.
    host : str or None
        The host, pod or address that a prefix names.
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
        The text. Colours of terminals are removed.
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
        self.text = _ANSI.sub("", text) if "\x1b" in text else text
        self.name = name
        self._starts = [0, *(match.end() for match in re.finditer("\n", self.text))]
        self._lines: dict[int, PasteLine] = {}
        self._found: dict[str, list[int]] = {}
        self._read: dict[Callable[[Paste], Any], Any] = {}
        self._skeleton = _skeleton(self.text) if len(self.text) > _LONG else None

    def __len__(self) -> int:
        """Return the number of lines."""
        return len(self._starts) - (self.text == "" or self.text.endswith("\n"))

    def line(self, number: int) -> PasteLine:
        """Return a line by its number, from 1."""
        line = self._lines.get(number)
        if line is None:
            line = self._lines[number] = _split_prefix(number, self.raw(number))
        return line

    def raw(self, number: int) -> str:
        """Return a line as it was pasted. This is much faster than `line`, which removes the prefixes."""
        start = self._starts[number - 1]
        return self.text[start : self._starts[number] - 1] if number < len(self._starts) else self.text[start:]

    def lines(self) -> list[PasteLine]:
        """Return all lines. Prefer `find` in large texts: it creates only the lines that are needed."""
        return [self.line(number) for number in range(1, len(self) + 1)]

    def find(self, *literals: str) -> list[PasteLine]:
        """Return the lines that contain one of the strings, in order."""
        return [self.line(number) for number in self.numbers(*literals)]

    def numbers(self, *literals: str) -> list[int]:
        """Return the numbers of the lines that contain one of the strings, in order."""
        if len(literals) == 1:
            return list(self._numbers(literals[0]))
        return sorted({number for literal in literals for number in self._numbers(literal)})

    def matches(self, pattern: re.Pattern[str], *literals: str) -> list[tuple[PasteLine, re.Match[str]]]:
        """Return the lines without prefixes in which a pattern occurs, with the match.

        Only lines with one of the strings are searched, because finding a string is much faster than a pattern.
        """
        found = ((line, pattern.search(line.text)) for line in self.find(*literals))
        return [(line, match) for line, match in found if match is not None]

    def number_at(self, position: int) -> int:
        """Return the number of the line that contains a position of the text."""
        return bisect_right(self._starts, position)

    def once(self, reader: Callable[[Paste], _T]) -> _T:
        """Return the result of a reader on this paste. Each reader runs once, however many rules need its result."""
        if reader not in self._read:
            self._read[reader] = reader(self)
        result: _T = self._read[reader]
        return result

    def _numbers(self, literal: str) -> list[int]:
        found = self._found.get(literal)
        if found is None:
            found = self._found[literal] = []
            if self._skeleton is not None:
                if literal.encode().translate(None, _VARYING) in self._skeleton:
                    places = [match.start() for match in re.finditer(re.escape(literal), self.text)]
                    numbers = np.searchsorted(self._line_starts, places, side="right")
                    found += numbers[np.diff(numbers, prepend=0) > 0].tolist()
                return found
            position = self.text.find(literal)
            while position >= 0:
                number = bisect_right(self._starts, position)
                found.append(number)
                if number >= len(self._starts):
                    break
                position = self.text.find(literal, self._starts[number])
        return found

    @functools.cached_property
    def _line_starts(self) -> npt.NDArray[np.int64]:
        return np.array(self._starts)

    def __repr__(self) -> str:
        return f"<Paste: {len(self):,} lines{'' if self.name is None else f' of {self.name}'}>"


def _split_prefix(number: int, raw: str) -> PasteLine:
    """Remove the prefixes of a line, and keep the rank and the host that they name."""
    # Most lines of a long log are NCCL's, with a few different prefixes.
    frame = _FRAME_START.search(raw, 0, 200)
    if frame is None:
        position, rank, host = _prefix_of(raw, _PREFIX)
        return PasteLine(number, raw, _without_border(raw[position:]), rank, host)
    start = frame.start()
    if start == 0:
        return PasteLine(number, raw, _without_border(raw))
    position, rank, host = _prefix_before_frame(raw[:start], frame[0])
    return PasteLine(number, raw, _without_border(raw[position:]), rank, host)


@functools.lru_cache(4096)
def _prefix_before_frame(prefix: str, frame: str) -> tuple[int, int | None, str | None]:
    return _prefix_of(prefix + frame, _PREFIX_OF_FRAME)


def _prefix_of(raw: str, pattern: re.Pattern[str]) -> tuple[int, int | None, str | None]:
    """Return the length of all prefixes, and the rank and the host that the innermost of them name."""
    rank: int | None = None
    host: str | None = None
    position = 0
    while match := pattern.match(raw, position):
        if match.end() == position:
            break
        position = match.end()
        if match.lastgroup:
            for name, value in match.groupdict().items():
                if value is not None and name.startswith("rank"):
                    rank = int(value)
                elif value is not None:
                    host = value
    return position, rank, host


def _without_border(text: str) -> str:
    """Remove the right border of a window of a terminal."""
    return text.rstrip("│ ") if text.endswith("│") else text
