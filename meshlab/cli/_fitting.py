"""Text that fits the columns of a terminal: long lines are folded, and wide tables are split below each other."""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Sequence

_LABELS = re.compile(r".{0,30}\S {2,}(?=\S)")  # what a line begins with, before its text
_LABEL_SHARE = 0.45  # of the columns that labels may take; otherwise the text continues below them


def terminal_width() -> int | None:
    """Return the columns of the terminal, or None if the output goes elsewhere and is not to be folded."""
    if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdecimal():
        return shutil.get_terminal_size().columns
    return None


def fitted(text: object, width: int | None = None, keys: int = 1) -> str:
    """Fold lines to a width, by default that of the terminal. Parts of a table repeat its first columns, the `keys`."""
    width = terminal_width() if width is None else width
    if width is None:
        return str(text)
    lines = str(text).split("\n")
    folded: list[str] = []
    start = 0
    while start < len(lines):
        end = start
        while end < len(lines) and "  " in lines[end].strip():
            end += 1
        rows = lines[start : max(end, start + 1)]
        start += len(rows)
        parts = _parts_of_table(rows, width, keys) if max(map(len, rows)) > width else rows
        folded += [piece for line in rows for piece in _folded(line, width)] if parts is None else parts
    return "\n".join(folded)


def _folded(line: str, width: int) -> list[str]:
    """Fold a line. Its text continues below its start, to the right of the labels in front of it."""
    if len(line) <= width:
        return [line]
    labels = _LABELS.match(line)
    begin = len(line) - len(line.lstrip())
    indent = begin + 2
    if labels is not None and labels.end() <= _LABEL_SHARE * width:
        begin = indent = labels.end()
    return textwrap.wrap(
        line[begin:],
        max(width, indent + 8),
        initial_indent=line[:begin],
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _parts_of_table(rows: Sequence[str], width: int, keys: int) -> list[str] | None:
    """Return the parts of a table below each other. None if the lines are no table, or a column is too wide."""
    spans = _columns(rows)
    if len(rows) < 2 or len(spans) <= keys + 1:
        return None
    key_end = spans[keys][0]
    parts: list[list[tuple[int, int]]] = [[]]
    left = width - key_end
    for begin, end in spans[keys:]:
        if end - begin > width - key_end:
            return None
        if end - begin > left:
            parts.append([])
            left = width - key_end
        parts[-1].append((begin, end))
        left -= end - begin + 2
    text = [
        "\n".join((row[:key_end] + "  ".join(row[a:b].ljust(b - a) for a, b in part)).rstrip() for row in rows)
        for part in parts
    ]
    return "\n\n".join(text).split("\n")


def _columns(rows: Sequence[str]) -> list[tuple[int, int]]:
    """Return the begin and end of each column: columns are separated by two spaces in every row."""
    longest = max(map(len, rows))
    is_blank = [all(row[place : place + 1] in ("", " ") for row in rows) for place in range(longest)]
    spans: list[tuple[int, int]] = []
    begin: int | None = None
    for place in range(longest + 1):
        is_gap = place >= longest or (is_blank[place] and (place + 1 >= longest or is_blank[place + 1]))
        if begin is None and place < longest and not is_blank[place]:
            begin = place
        elif begin is not None and is_gap:
            spans.append((begin, place))
            begin = None
    return spans
