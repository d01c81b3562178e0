"""Rules: one function each, that looks for one cause in a pasted text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from meshlab.diagnosis._paste import Paste, PasteLine

Level = Literal["error", "warning", "info", "normal"]

LEVELS: dict[Level, str] = {
    "error": "stops or corrupts the job",
    "warning": "slows or endangers the job",
    "info": "worth knowing",
    "normal": "looks wrong but is normal",
}
"""The severities of findings in a text, most severe first, with their meanings."""


@dataclass(frozen=True, slots=True)
class TextFinding:
    """What a rule found in a pasted text.

    Parameters
    ----------
    code : str
        Code of the rule, such as ``"shm-too-small"``. Stable across versions.
    subject : str
        The ranks, hosts, GPUs or devices that are affected, as far as the text names them.
    severity : {"error", "warning", "info", "normal"}
        See `LEVELS`.
    why : str
        What the text shows, and what it does not show, in one or two sentences.
    do : str
        What to do, as an imperative. Empty if nothing is needed.
    lines : tuple of int
        Numbers of the lines that show it, from 1.
    follows : str or None
        Code of the finding that caused this one. None for a root cause.
    title : str
        What the rule looks for, in a few words.
    """

    code: str
    subject: str
    severity: Level
    why: str
    do: str = ""
    lines: tuple[int, ...] = ()
    follows: str | None = None
    title: str = ""

    def __str__(self) -> str:
        where = f"{self.severity}: {self.subject}" if self.subject else self.severity
        return f"{where}: {self.why} {self.do}".rstrip()


FINDING_FIELDS = ("severity", "code", "title", "subject", "why", "do", "lines", "follows")
"""The fields of a finding in tables and JSON."""

Check = Callable[[Paste], Iterable[TextFinding]]


@dataclass(frozen=True, slots=True)
class Rule:
    """One cause that can be recognised in a text.

    Parameters
    ----------
    code : str
        Short identifier.
    title : str
        What it is, in a few words.
    check : callable
        Takes a `Paste`, and returns or yields findings. Its docstring describes what it looks for.
    source : tuple of str
        Where the meaning of the lines is documented: addresses, or files of a library with their version.
    causes : tuple of str
        Codes of findings that are only consequences if this rule finds something.
    """

    code: str
    title: str
    check: Check
    source: tuple[str, ...]
    causes: tuple[str, ...] = ()

    def __call__(self, paste: Paste) -> list[TextFinding]:
        """Return the findings in a paste."""
        return list(self.check(paste))

    def finding(
        self,
        severity: Level,
        subject: str,
        why: str,
        do: str = "",
        lines: Sequence[PasteLine | int] = (),
        *,
        title: str = "",
    ) -> TextFinding:
        """Return a finding of this rule, with another title if that of the rule claims more than the text shows."""
        return TextFinding(self.code, subject, severity, why, do, line_numbers(lines), title=title or self.title)


def first_names(names: Sequence[str], most: int = 8) -> str:
    """Return names separated by commas, and the number of those after the first ones."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def line_numbers(lines: Iterable[PasteLine | int]) -> tuple[int, ...]:
    """Return the numbers of lines, in order and without duplicates."""
    return tuple(sorted({line if isinstance(line, int) else line.number for line in lines}))


def rule(
    code: str, title: str, *, source: str | Sequence[str], causes: Sequence[str] = ()
) -> Callable[[Callable[[Paste], Iterator[TextFinding]]], Rule]:
    """Turn a function of a paste into a rule.

    Examples
    --------
    >>> @rule("out-of-paper", "The printer is out of paper", source="printer manual")
    ... def out_of_paper(paste):
    ...     lines = paste.find("lp0 on fire")
    ...     if lines:
    ...         yield out_of_paper.finding("error", "lp0", "The printer reports a fire.", "Refill the paper.", lines)
    >>> [str(finding) for finding in out_of_paper(Paste("lp0 on fire"))]
    ['error: lp0: The printer reports a fire. Refill the paper.']
    """
    sources = (source,) if isinstance(source, str) else tuple(source)

    def wrap(check: Callable[[Paste], Iterator[TextFinding]]) -> Rule:
        return Rule(code, title, check, sources, tuple(causes))

    return wrap
