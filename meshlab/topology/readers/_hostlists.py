"""Expansion of Slurm's host lists, such as ``node[001-128],login``."""

from __future__ import annotations

import re
from collections.abc import Iterator

from meshlab.base._errors import ParseError
from meshlab.base._numerals import whole

MOST_HOSTS = 1 << 20
"""Limit for the length of a list, so that a range with one digit too many cannot fill the memory."""

_MOST_CHARACTERS = 1 << 26

_PART = re.compile(r"[^\[\],\s]+|\[[^\[\]]*\]")
_SIMPLE = re.compile(r"([^\[\],\s]*)\[([\d,-]+)\]([^\[\],\s]*)")
_BALANCED = re.compile(r"[^\[\]]*+(?:\[[^\[\]]*+\][^\[\]]*+)*+")
_PATTERN = re.compile(r"(?:[^\[\], \t\n]++|\[[^\[\]]*+\])++")
_RANGE = re.compile(r"(\d{1,15})(?:-(\d{1,15}))?")


def expand_hosts(text: str) -> list[str]:
    """Return the host names of a list such as ``r[1-2]n[08-10],login``, in its order and with leading zeros."""
    if "[" not in text and "]" not in text:
        names = text.replace(",", " ").split(None, MOST_HOSTS)
        if len(names) > MOST_HOSTS:
            raise ParseError(f"{text[:60]!r} has more than {MOST_HOSTS:,} hosts", hint="shorten it", text=text)
        return names
    # Nearly all lists are a single name with one bracket, and need no search for commas outside brackets.
    simple = _SIMPLE.fullmatch(text)
    if simple is not None:
        numbers = _numbers(simple[2], text)
        _check_total(len(numbers), len(simple[1]) + len(simple[3]), text)
        return [f"{simple[1]}{number}{simple[3]}" for number in numbers]
    hosts: list[str] = []
    for pattern in _patterns(text):
        if len(hosts) > MOST_HOSTS:
            raise ParseError(f"{text[:60]!r} has more than {MOST_HOSTS:,} hosts", hint="shorten it", text=text)
        if "[" not in pattern:
            hosts.append(pattern)
            continue
        names = [""]
        for match in _PART.finditer(pattern):
            part = match[0]
            choices = _numbers(part[1:-1], text) if part.startswith("[") else [part]
            # Check before the product is built: two short brackets can make 10^12 names.
            if len(names) * len(choices) + len(hosts) > MOST_HOSTS:
                raise ParseError(
                    f"{pattern[:60]!r} has more than {MOST_HOSTS:,} hosts", hint="shorten its ranges", text=text
                )
            _check_total(len(names) * len(choices), len(names[0]) + len(choices[0]), text)
            names = [name + choice for name in names for choice in choices]
        hosts += names
    return hosts


def _check_total(count: int, length: int, text: str) -> None:
    """Raise if the names of a list would fill the memory, because a long one is repeated."""
    if count * length > _MOST_CHARACTERS:
        raise ParseError(f"{text[:60]!r} repeats a name of {length:,} characters {count:,} times", hint="shorten it")


def _patterns(text: str) -> Iterator[str]:
    """Split a list at the commas outside brackets."""
    balanced = _BALANCED.match(text)
    end = balanced.end() if balanced else 0
    if end < len(text):
        # A closing bracket without an opening one, or an opening bracket and the next one.
        wrong = end if text[end] == "]" else text.find("[", end + 1)
        if wrong < 0:
            raise ParseError(f"the bracket in {text[:60]!r} is not closed", hint="append ]", text=text)
        raise ParseError(
            f"the brackets in {text[:60]!r} do not match",
            hint="write ranges as in n[1-4]",
            text=text,
            column=min(wrong, 199),
        )
    for match in _PATTERN.finditer(text):
        yield match[0]


def _numbers(ranges: str, text: str) -> list[str]:
    """Return the numbers of a bracket with their leading zeros. `text` is the list, for errors."""
    numbers: list[str] = []
    if ranges.count(",") >= MOST_HOSTS:
        raise ParseError(f"{text[:60]!r} has more than {MOST_HOSTS:,} hosts", hint="shorten it", text=text)
    for part in ranges.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            raise ParseError(
                f"{part.strip()!r} in a bracket is neither a number nor a range",
                hint="write ranges as in n[001-128]",
                text=text,
            )
        first, last = whole(match[1]), whole(match[2] or match[1])
        if last < first:
            raise ParseError(
                f"the range {part.strip()} ends before it begins", hint="write the smaller number first", text=text
            )
        if last - first + len(numbers) >= MOST_HOSTS:
            raise ParseError(
                f"the range {part.strip()} has more than {MOST_HOSTS:,} hosts", hint="shorten it", text=text
            )
        width = len(match[1])
        numbers += [f"{number:0{width}d}" for number in range(first, last + 1)]
    return numbers
