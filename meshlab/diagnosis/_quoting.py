"""Safe quotation of a pasted text: in a terminal, in HTML and in Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence

from meshlab.base._markup import visible
from meshlab.diagnosis._paste import Paste

_LONGEST = 300  # characters of a quoted line


def quote_line(raw: str, most: int = _LONGEST) -> str:
    """Return a pasted line for people: visible, without tabs, and not longer than `most` characters."""
    # Cut first: a line may have megabytes.
    text = raw.rstrip() if len(raw) <= 4 * most else f"{raw[: 2 * most]} … {raw[-most:]}"
    text = visible(text.expandtabs(8))
    if len(text) <= most:
        return text
    tail = most // 4
    return f"{text[: most - tail - 3]} … {text[-tail:]}"


def quoted_lines(paste: Paste, numbers: Sequence[int], most: int, longest: int = _LONGEST) -> list[tuple[int, str]]:
    """Return the first lines of a finding, at most `most`, as numbers and visible texts."""
    return [(number, quote_line(paste.line(number).raw, longest)) for number in numbers[:most]]


def fenced(lines: Sequence[str]) -> list[str]:
    """Return lines as a code block of Markdown that none of them can end."""
    longest = max((len(run) for line in lines for run in re.findall("`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return [f"{fence}text", *lines, fence]
