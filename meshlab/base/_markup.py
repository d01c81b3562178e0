"""Visible text, and static HTML for notebooks, in which every string of the caller is escaped."""

from __future__ import annotations

import html
import re
from collections.abc import Collection, Sequence

# Characters that a terminal obeys or that change the order of the text around them, and invisible ones.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)

_MARKDOWN = re.compile(
    r"[\\`*\[\]|~$]"
    r"|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])"  # inside a word it is no emphasis: NCCL_DEBUG
    r"|^[#+=-]+"  # the start of a heading, a quotation or a list without numbers
)
_REFERENCE = re.compile(r"(?<![\w&])([@#])(?=\w)")  # a person or an issue, which would be notified or linked

# Colours use the CSS variables of the front end if it defines them, so that light and dark themes both work.
_STYLE = (
    "<style>"
    ".ml-card{font-family:var(--jp-ui-font-family,system-ui,sans-serif);font-size:13px;line-height:1.45;"
    "color:var(--jp-ui-font-color1,inherit);border:1px solid var(--jp-border-color2,rgba(128,128,128,.35));"
    "border-radius:6px;padding:12px 16px;margin:4px 0;max-width:960px;overflow-x:auto}"
    ".ml-card .ml-title{font-weight:600;font-size:14px}"
    ".ml-card .ml-sub{color:var(--jp-ui-font-color2,color-mix(in srgb,currentColor 85%,transparent));margin:0 0 8px}"
    ".ml-card table.ml-table{border-collapse:collapse;margin:8px 0 0;font-variant-numeric:tabular-nums;border:0}"
    ".ml-card table.ml-table th{text-align:left;font-weight:600;padding:2px 16px 2px 0;border:0;"
    "border-bottom:1px solid var(--jp-border-color2,rgba(128,128,128,.5));background:none}"
    ".ml-card table.ml-table td{text-align:left;padding:2px 16px 2px 0;border:0;background:none}"
    ".ml-card table.ml-table .ml-n{text-align:right}"
    ".ml-card .ml-bad{color:color-mix(in srgb,var(--jp-error-color1,#c62828) 75%,currentColor);font-weight:600}"
    "</style>"
)


def visible(text: str) -> str:
    """Return a text with visible names for characters that a terminal obeys, or that hide or reorder text."""
    return _UNSEEN.sub(lambda match: _name(match[0]), text)


def markdown_text(text: str) -> str:
    """Return a text for one line of Markdown, in which nothing is a tag, a link, an emphasis or a reference."""
    text = visible(re.sub(r"[ \t\r\n]+", " ", text)).strip()
    text = _MARKDOWN.sub(lambda match: "".join(f"\\{sign}" for sign in match[0]), text)
    text = re.sub(r"^(\d+)([.)])(?=\s|$)", r"\1\\\2", text)  # a numbered list
    return _REFERENCE.sub(r"\1&#8203;", html.escape(text, quote=False))


def _name(sign: str) -> str:
    code = ord(sign)
    if code < 0x20:
        return chr(0x2400 + code)  # the symbols for control characters
    if code == 0x7F:
        return "␡"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def escape(value: object) -> str:
    """Escape a value for HTML, as text or inside an attribute."""
    return html.escape(str(value), quote=True)


def table(
    header: Sequence[object], rows: Sequence[Sequence[object]], *, most: int = 40, right: Collection[int] | None = None
) -> str:
    """Return a table with at most `most` rows and a count of the others. Columns of numbers are right-aligned."""
    numeric = [
        bool(rows) and all(isinstance(row[column], (int, float)) for row in rows) if right is None else column in right
        for column in range(len(header))
    ]

    def cell(tag: str, column: int, value: object) -> str:
        kind = ' class="ml-n"' if numeric[column] else ""
        return f"<{tag}{kind}>{escape(value)}</{tag}>"

    head = "".join(cell("th", column, name) for column, name in enumerate(header))
    body = "".join(
        f"<tr>{''.join(cell('td', column, value) for column, value in enumerate(row))}</tr>" for row in rows[:most]
    )
    more = len(rows) - most
    note = f'<div class="ml-sub">and {more:,} more rows</div>' if more > 0 else ""
    return f'<table class="ml-table"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{note}'


def text_table(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> str:
    """Return a table as plain text. The numbers of the columns in `right` are right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ([f"{cell:{'>' if k in right else '<'}{widths[k]}}" for k, cell in enumerate(row)] for row in rows)
    return "\n".join("  ".join(cells).rstrip() for cells in lines)


def bar(share: float, label: str) -> str:
    """Return a progress bar for a share from 0 to 1, with a label for screen readers and inline styles."""
    percent = round(100 * min(max(share, 0.0), 1.0))
    track = "background:var(--jp-layout-color3,rgba(128,128,128,.25));border-radius:4px;height:8px;margin:4px 0"
    fill = f"background:var(--jp-brand-color1,#0072b2);border-radius:4px;height:8px;width:{percent}%"
    return (
        f'<div style="{track}" role="progressbar" aria-valuenow="{percent}" aria-valuemin="0" aria-valuemax="100" '
        f'aria-label="{escape(label)}"><div style="{fill}"></div></div>'
    )


def card(title: str, subtitle: str, *parts: str) -> str:
    """Return a box with a title. `parts` are HTML strings and are not escaped."""
    return (
        f'{_STYLE}<div class="ml-card"><div class="ml-title">{escape(title)}</div>'
        f'<div class="ml-sub">{escape(subtitle)}</div>{"".join(parts)}</div>'
    )
