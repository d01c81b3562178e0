"""An explanation as text for a terminal, as Markdown for an issue, and as JSON."""

from __future__ import annotations

import json
import textwrap
from typing import TYPE_CHECKING, Any

from meshlab.base._markup import markdown_text, visible
from meshlab.diagnosis._findings import FINDING_FIELDS
from meshlab.diagnosis._quoting import fenced, quoted_lines

if TYPE_CHECKING:
    from meshlab.diagnosis._explanation import Explanation
    from meshlab.diagnosis._findings import TextFinding

LEVEL_MARKS = {"error": "✕", "warning": "▲", "info": "●", "normal": "○"}
"""A shape per severity, because colour must not be the only difference."""

MOST_FINDINGS = 40
"""The number of findings that are shown with their lines. The others are counted."""

_LONGEST_SUBJECT = 120  # characters in a headline; the finding itself has the complete subject
_MOST_LINES = 4  # quoted per finding in a terminal
_MOST_LINES_MARKDOWN = 8


def verdict(explanation: Explanation) -> str:
    """Return the most important finding and the number of the others, in a sentence or two."""
    findings = explanation.findings
    if not (wrong := [item for item in findings if item.severity in ("error", "warning")]):
        n, kinds = len(explanation.paste), dict.fromkeys(span.kind for span in explanation.recognised)
        text = f"No known problem found in {n:,} line{'s' * (n != 1)}"
        text += f" ({', '.join(kinds)})." if kinds else "."
        notes = [item for item in findings if item.code != "nothing-wrong"]
        return f"{text} Worth knowing: {_headline(notes[0])}." if notes else text
    first, others = wrong[0], wrong[1:]
    text = f"{_headline(first)}."
    consequences = sum(item.follows is not None for item in others)
    counts = [
        f"{count} more {level}{'s' * (count > 1)}"
        for level in ("error", "warning")
        if (count := sum(item.severity == level and item.follows is None for item in others))
    ]
    if consequences:
        counts.append(f"{consequences} consequence{'s' * (consequences > 1)}")
    return f"{text} {' and '.join(counts) if len(counts) < 3 else ', '.join(counts)}." if counts else text


def _headline(item: TextFinding) -> str:
    """Return the title of a finding with its subject."""
    title = (item.title or item.code).rstrip(".")
    subject = visible(item.subject)
    subject = subject if len(subject) <= _LONGEST_SUBJECT else f"{subject[:_LONGEST_SUBJECT].rpartition(' ')[0]} …"
    return (f"{title}: {subject}" if subject else title).rstrip(".")


def _more_lines(count: int) -> str:
    return f"and {count:,} more line{'s' * (count > 1)}"


def follows_text(item: TextFinding) -> str:
    """Return the cause of a consequence, with a separator, or an empty string."""
    return "" if item.follows is None else f" · follows from {visible(item.follows)}"


def span_texts(explanation: Explanation) -> list[tuple[str, str, int]]:
    """Return the recognised parts: format, range of lines, and the number of lines of the format."""
    return [
        (span.kind, str(span.first) if span.first == span.last else f"{span.first:,} to {span.last:,}", span.n_lines)
        for span in explanation.recognised
    ]


def _recognised(explanation: Explanation, most: int = 4) -> str:
    """Return the recognised parts in one sentence."""
    spans = [f"{kind} (line{'s' * (' ' in lines)} {lines})" for kind, lines, _ in span_texts(explanation)]
    more = f" and {len(spans) - most:,} more parts" if len(spans) > most else ""
    return ", ".join(spans[:most]) + more


# -- a terminal --------------------------------------------------------------------------------------------------------


def as_text(explanation: Explanation, width: int = 100) -> str:
    """Return the explanation for a terminal of `width` columns: verdict, findings, facts, and what is normal."""
    width = max(width, 40)

    def wrapped(text: str, first: str = "  ", rest: str | None = None) -> str:
        return textwrap.fill(
            visible(text),
            width,
            initial_indent=first,
            subsequent_indent=first if rest is None else rest,
            break_long_words=False,  # a command or a path stays in one piece
            break_on_hyphens=False,
        )

    blocks = [wrapped(verdict(explanation), "")]
    for item in explanation.findings[:MOST_FINDINGS]:
        head = f"{LEVEL_MARKS[item.severity]} {item.severity} · {item.code}{follows_text(item)}"
        lines = [wrapped(f"{head} · {item.subject}" if item.subject else head, "", "  ")]
        lines.append(wrapped(item.why))
        if item.do:
            lines.append(wrapped(item.do, "  → ", "    "))
        for number, text in quoted_lines(explanation.paste, item.lines, _MOST_LINES, longest=2 * width):
            lines.append(f"{number:>7,} │ {text}")
        if len(item.lines) > _MOST_LINES:
            lines.append(f"        │ {_more_lines(len(item.lines) - _MOST_LINES)}")
        blocks.append("\n".join(lines))
    if len(explanation.findings) > MOST_FINDINGS:
        blocks.append(f"and {len(explanation.findings) - MOST_FINDINGS:,} more findings")
    if explanation.facts:
        pad = min(max(map(len, explanation.facts)), 24)
        rows = [
            wrapped(value, f"  {visible(name).ljust(pad)}  ", " " * (pad + 4))
            for name, value in explanation.facts.items()
        ]
        blocks.append("\n".join(["The text shows", *rows]))
    if explanation.normal:
        items = [wrapped(f"○ {_headline(item)}. {item.why}", "  ", "    ") for item in explanation.normal]
        blocks.append("\n".join(["Looks wrong, but is normal", *items[:MOST_FINDINGS]]))
    if explanation.recognised:
        blocks.append(wrapped(f"Recognised: {_recognised(explanation)}.", "", "  "))
    if explanation.tables:
        blocks.append(wrapped(f"Tables: {', '.join(explanation.tables)}.", "", "  "))
    return "\n\n".join(blocks)


def as_brief(explanation: Explanation, most: int = 3) -> str:
    """Return the errors and warnings that are root causes, in one line each and without quoted lines."""
    wrong = [item for item in explanation.findings if item.severity in ("error", "warning")]
    if not (roots := [item for item in wrong if item.follows is None] or wrong):
        return ""
    lines = [
        f"  {LEVEL_MARKS[item.severity]} {_headline(item)}. {visible(f'{item.why} {item.do}').strip()}"
        for item in roots
    ]
    if len(roots) > most:
        lines[most:] = [f"  and {len(roots) - most:,} more"]
    return "\n".join(["The log shows (error.explain() has the lines):", *lines])


# -- Markdown ----------------------------------------------------------------------------------------------------------


def as_markdown(explanation: Explanation) -> str:
    """Return the explanation as Markdown, for an issue. Nothing that was pasted is interpreted in it."""
    blocks = [f"**{markdown_text(verdict(explanation))}**"]
    for item in explanation.findings[:MOST_FINDINGS]:
        head = f"{LEVEL_MARKS[item.severity]} **{item.severity}** · `{_code(item.code)}`"
        if item.follows is not None:
            head += f" · follows from `{_code(item.follows)}`"
        blocks.append(f"{head} · {markdown_text(item.subject)}" if item.subject else head)
        blocks.append(markdown_text(item.why))
        if item.do:
            blocks.append(f"→ {markdown_text(item.do)}")
        if item.lines:
            quoted = quoted_lines(explanation.paste, item.lines, _MOST_LINES_MARKDOWN)
            more = len(item.lines) - len(quoted)
            texts = [f"{number:>5}  {text}" for number, text in quoted]
            blocks.append("\n".join(fenced([*texts, f"       {_more_lines(more)}"] if more else texts)))
    if len(explanation.findings) > MOST_FINDINGS:
        blocks.append(f"and {len(explanation.findings) - MOST_FINDINGS:,} more findings")
    if explanation.facts:
        rows = [f"- {markdown_text(name)}: {markdown_text(value)}" for name, value in explanation.facts.items()]
        blocks.append("\n".join(["**The text shows**", "", *rows]))
    if explanation.normal:
        rows = [
            f"- `{_code(item.code)}`: {markdown_text(f'{_headline(item)}. {item.why}')}" for item in explanation.normal
        ]
        blocks.append("\n".join(["**Looks wrong, but is normal**", "", *rows[:MOST_FINDINGS]]))
    if explanation.recognised:
        blocks.append(f"Recognised: {markdown_text(_recognised(explanation))}.")
    return "\n\n".join(blocks) + "\n"


def _code(text: str) -> str:
    """Return a code of a rule for a code span of Markdown."""
    return visible(text).replace("`", "'")


# -- JSON --------------------------------------------------------------------------------------------------------------


def as_json(explanation: Explanation) -> str:
    """Return the explanation as JSON: verdict, recognised parts, findings, what is normal, and facts."""

    def plain(item: TextFinding) -> dict[str, Any]:
        return {name: getattr(item, name) for name in FINDING_FIELDS}

    document = {
        "verdict": verdict(explanation),
        "outcome": explanation.outcome,
        "recognised": [
            {"kind": span.kind, "first": span.first, "last": span.last, "n_lines": span.n_lines}
            for span in explanation.recognised
        ],
        "findings": [plain(item) for item in explanation.findings],
        "normal": [plain(item) for item in explanation.normal],
        "facts": dict(explanation.facts),
    }
    # Only ASCII, so that a lone surrogate or a hidden character of the paste cannot damage the output.
    return json.dumps(document, indent=1, ensure_ascii=True)
