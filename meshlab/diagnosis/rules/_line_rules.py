"""Rules that look for lines and return one finding about all of them, as rows of a table."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from meshlab.diagnosis._findings import Level, Rule, TextFinding
from meshlab.diagnosis._other_lines import other_lines
from meshlab.diagnosis._paste import Paste, PasteLine
from meshlab.diagnosis.formats._nccl_lines import (
    NcclMessage,
    affected,
    hosts_of,
    read_cuda_failures,
    read_hosts,
    read_variables,
    text_list,
    warnings_with,
)

_MOST_NORMAL = 200  # lines of a finding that needs no action
_NO_VALUES: Mapping[str, str] = MappingProxyType({})


class Lines(NamedTuple):
    """Numbers of lines, and the values that replace their ``{names}`` in the texts of a row."""

    numbers: Sequence[int]
    values: Mapping[str, str] = _NO_VALUES


Find = Callable[[Paste], Lines]
Subject = Callable[[Paste, Sequence[int]], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class LineRule:
    """A rule as a row of a table: if `find` returns lines, there is one finding about them."""

    code: str
    title: str
    looks_for: str  # a sentence for the page of all rules
    find: Find
    level: Level = "error"
    # {affected} stands for the ranks, GPUs and hosts that printed the lines, and {hosts} for the hosts. A function
    # receives the paste and the numbers of the lines.
    subject: str | Subject = "{affected}"
    why: str
    do: str = ""
    source: str | tuple[str, ...]
    causes: tuple[str, ...] = ()


def rules_of(module: str, *entries: Rule | LineRule) -> tuple[Rule, ...]:
    """Return the rules of a module, of which some are rows."""
    return tuple(entry if isinstance(entry, Rule) else _as_rule(entry, module) for entry in entries)


def _as_rule(row: LineRule, module: str) -> Rule:
    def check(paste: Paste) -> Iterator[TextFinding]:
        numbers, values = row.find(paste)
        if not numbers:
            return
        if row.level == "normal":
            numbers = numbers[:_MOST_NORMAL]
        subject = _subject(row.subject, paste, numbers)
        why, do = (text.format_map(values) if values else text for text in (row.why, row.do))
        yield rule.finding(row.level, subject, why, do, numbers)

    check.__doc__, check.__module__ = row.looks_for, module
    source = (row.source,) if isinstance(row.source, str) else row.source
    rule = Rule(row.code, row.title, check, source, row.causes)
    return rule


def _subject(subject: str | Subject, paste: Paste, numbers: Sequence[int]) -> str:
    if not isinstance(subject, str):
        return subject(paste, numbers)
    if "{affected}" in subject:
        subject = subject.replace("{affected}", affected(paste, numbers))
    if "{hosts}" in subject:
        subject = subject.replace("{hosts}", text_list(hosts_of(paste, numbers)[:8]))
    return subject.lstrip(", ")


def having(*literals: str) -> Find:
    """Find the lines that contain one of the strings."""
    return lambda paste: Lines(paste.numbers(*literals))


def matching(pattern: re.Pattern[str], *literals: str) -> Find:
    """Find the lines that contain one of the strings and match a pattern. Its named groups are values."""
    return lambda paste: _matched(paste.matches(pattern, *literals))


def others_having(*literals: str) -> Find:
    """Find the lines that contain one of the strings, except those of NCCL at level INFO."""
    return lambda paste: Lines(other_lines(paste).numbers(*literals))


def others_matching(pattern: re.Pattern[str], *literals: str) -> Find:
    """Find the lines that `matching` finds, except those of NCCL at level INFO."""
    return lambda paste: _matched(other_lines(paste).matches(pattern, *literals))


def cuda_failures(pattern: re.Pattern[str], file: str = "") -> Find:
    """Find the warnings about an error of CUDA whose text matches a pattern, in files of NCCL that match another."""

    def find(paste: Paste) -> Lines:
        failures = [pair for pair in paste.once(read_cuda_failures) if _is_in(pair[0], file)]
        return _matched(pair for pair in failures if pattern.search(pair[1]["text"]))

    return find


def warnings_matching(pattern: re.Pattern[str], literal: str, file: str) -> Find:
    """Find the warnings that contain a string and match a pattern, in files of NCCL that match another."""
    return lambda paste: Lines(
        [item.line for item in warnings_with(paste, literal) if _is_in(item, file) and pattern.search(item.text)]
    )


def variable_is(**values: tuple[str, ...]) -> Find:
    """Find the lines that set a variable to one of its values. The first ``{name}`` and its ``{value}`` are values."""

    def find(paste: Paste) -> Lines:
        variables = [item for item in paste.once(read_variables) if item.value in values.get(item.name, ())]
        first = {"name": variables[0].name, "value": variables[0].value} if variables else _NO_VALUES
        return Lines([item.line for item in variables], first)

    return find


def _is_in(message: NcclMessage, file: str) -> bool:
    return re.search(file, message.source or "") is not None


def _matched(matches: Iterable[tuple[PasteLine | NcclMessage, re.Match[str]]]) -> Lines:
    """Return lines with the named groups of the first match."""
    pairs = list(matches)
    groups = pairs[0][1].groupdict(default="") if pairs else {}
    numbers = [item.number if isinstance(item, PasteLine) else item.line for item, _ in pairs]
    return Lines(numbers, {name: value.strip() for name, value in groups.items()})


def hosts_of_variables(paste: Paste, numbers: Sequence[int]) -> str:
    """Name the hosts that report a variable, else all hosts."""
    return text_list((hosts_of(paste, numbers) or paste.once(read_hosts))[:8])
