"""Slurm's host lists: ``node[001-128],login`` and back to names."""

from __future__ import annotations

import re
from collections.abc import Iterator

from meshlab.errors import ParseError

__all__ = ["MOST_HOSTS", "expand_hosts"]

MOST_HOSTS = 1 << 20
"""More hosts than this are refused: a range with one digit too many would fill the memory."""

_PART = re.compile(r"[^\[\],\s]+|\[[^\[\]]*\]")
_SIMPLE = re.compile(r"([^\[\],\s]*)\[([\d,-]+)\]([^\[\],\s]*)")
_RANGE = re.compile(r"(\d{1,15})(?:-(\d{1,15}))?")


def expand_hosts(text: str) -> list[str]:
    """Write out a host list.

    Parameters
    ----------
    text : str
        Names with commas between; brackets hold numbers and ranges, several of them multiply, and zeros in front stay.

    Returns
    -------
    list of str
        In the order of the list.

    Raises
    ------
    ParseError
        If a bracket cannot be read, or the list means more than a million hosts.

    Examples
    --------
    >>> expand_hosts("n[08-10,12],login")
    ['n08', 'n09', 'n10', 'n12', 'login']
    >>> expand_hosts("r[1-2]n[0-1]-ib")
    ['r1n0-ib', 'r1n1-ib', 'r2n0-ib', 'r2n1-ib']
    """
    if "[" not in text and "]" not in text:
        return text.replace(",", " ").split()
    simple = _SIMPLE.fullmatch(text)
    if simple is not None:
        return [f"{simple[1]}{number}{simple[3]}" for number in _numbers(simple[2], text)]
    hosts: list[str] = []
    for pattern in _patterns(text):
        if "[" not in pattern:
            hosts.append(pattern)
            continue
        names = [""]
        for part in _PART.findall(pattern):
            choices = _numbers(part[1:-1], text) if part.startswith("[") else [part]
            if len(names) * len(choices) + len(hosts) > MOST_HOSTS:
                raise ParseError(f"{pattern[:60]!r} means more than {MOST_HOSTS:,} hosts; shorten the range", text=text)
            names = (
                [name + choice for name in names for choice in choices]
                if len(choices) > 1 or names != [""]
                else choices
            )
        hosts += names
    return hosts


def _patterns(text: str) -> Iterator[str]:
    """Cut at the commas outside brackets."""
    depth = start = 0
    for match in re.finditer(r"[\[\],\s]", text):
        mark = match[0]
        if mark == "[":
            depth += 1
        elif mark == "]":
            depth -= 1
        if depth not in (0, 1):
            raise ParseError(f"the brackets in {text[:60]!r} do not match", text=text, column=min(match.start(), 199))
        if depth == 0 and mark in ", \t\n":
            if match.start() > start:
                yield text[start : match.start()]
            start = match.end()
    if depth:
        raise ParseError(f"the bracket in {text[:60]!r} is not closed", text=text)
    if start < len(text):
        yield text[start:]


def _numbers(ranges: str, text: str) -> list[str]:
    numbers: list[str] = []
    for part in ranges.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            raise ParseError(f"{part.strip()!r} in a bracket is no number and no range such as 001-128", text=text)
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise ParseError(f"the range {part.strip()} ends before it begins", text=text)
        if last - first + len(numbers) >= MOST_HOSTS:
            raise ParseError(f"the range {part.strip()} means more than {MOST_HOSTS:,} hosts", text=text)
        width = len(match[1])
        numbers += [f"{number:0{width}d}" for number in range(first, last + 1)]
    return numbers
