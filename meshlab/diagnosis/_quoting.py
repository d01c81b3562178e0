"""Safe quotation of a pasted text: in a terminal, in HTML and in Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence

from meshlab.base._markup import visible
from meshlab.diagnosis._paste import Paste

_LONGEST = 300  # characters of a quoted line

_SPECIAL = re.compile(
    r"[\\`*\[\]|~$]"
    r"|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])"  # inside a word it is no emphasis: NCCL_DEBUG
    r"|^[#+=-]+"  # the start of a heading, a quotation or a list without numbers
)
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_REFERENCE = re.compile(r"(?<![\w&])([@#])(?=\w)")  # a person or an issue, which would be notified or linked


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


def markdown_text(text: str) -> str:
    """Return a text for one line of Markdown, in which nothing is a tag, a link, an emphasis or a reference."""
    text = " ".join(visible(text).split())
    text = _SPECIAL.sub(lambda match: "".join(f"\\{sign}" for sign in match[0]), text)
    text = re.sub(r"^(\d+)([.)])", r"\1\\\2", text)
    text = re.sub("[&<>]", lambda match: _ENTITIES[match[0]], text)
    return _REFERENCE.sub(r"\1&#8203;", text)


def fenced(lines: Sequence[str]) -> list[str]:
    """Return lines as a code block of Markdown that none of them can end."""
    longest = max((len(run) for line in lines for run in re.findall("`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return [f"{fence}text", *lines, fence]
