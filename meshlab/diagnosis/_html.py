"""An explanation as HTML for a notebook, and as a separate page. It needs no JavaScript."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshlab.base._markup import card, escape, table, visible
from meshlab.diagnosis._quoting import quoted_lines
from meshlab.diagnosis._text import LEVEL_MARKS, MOST_FINDINGS, follows_text, span_texts, verdict

if TYPE_CHECKING:
    from meshlab.diagnosis._explanation import Explanation
    from meshlab.diagnosis._findings import TextFinding

_OPEN_LINES = 3  # quoted openly; more are behind a disclosure
_MOST_LINES = 40
_MOST_FACT = 600  # characters

_STYLE = (
    "<style>"
    ".ml-card{--ml-error:var(--jp-error-color1,var(--vscode-errorForeground,light-dark(#b3261e,#ff8a80)));"
    "--ml-warning:var(--jp-warn-color1,var(--vscode-editorWarning-foreground,light-dark(#9a5b00,#ffb74d)));"
    "--ml-info:var(--jp-brand-color1,var(--vscode-textLink-foreground,light-dark(#0072b2,#56b4e9)));"
    "--ml-soft:var(--jp-ui-font-color2,color-mix(in srgb,currentColor 75%,transparent))}"
    ".ml-card .ml-finding{border-left:4px solid var(--ml-level);padding:0 0 0 12px;margin:16px 0 0}"
    ".ml-card .ml-finding p{margin:4px 0 0;max-width:80ch}"
    ".ml-card .ml-finding .ml-mark{color:color-mix(in srgb,var(--ml-level) 60%,currentColor);"
    "font-weight:700;margin-right:4px}"
    ".ml-card .ml-finding .ml-head{font-weight:600;overflow-wrap:anywhere}"
    ".ml-card .ml-finding .ml-code{color:var(--ml-soft);font-weight:400}"
    ".ml-card .ml-finding .ml-do::before{content:'→ ';font-weight:600}"
    ".ml-card .ml-do,.ml-card .ml-why{overflow-wrap:anywhere}"
    ".ml-card ol.ml-lines{list-style:none;margin:8px 0 0;padding:8px 12px;border-radius:4px;"
    "background:var(--jp-layout-color2,color-mix(in srgb,currentColor 6%,transparent));"
    "font-family:var(--jp-code-font-family,ui-monospace,Consolas,monospace);font-size:12px;line-height:1.5}"
    ".ml-card ol.ml-lines li{display:flex;gap:12px;margin:0;padding:0}"
    ".ml-card ol.ml-lines .ml-number{color:color-mix(in srgb,currentColor 80%,transparent);"
    "min-width:4ch;text-align:right;flex:none;user-select:none}"
    ".ml-card ol.ml-lines .ml-raw{white-space:pre-wrap;overflow-wrap:anywhere;unicode-bidi:isolate;direction:ltr}"
    ".ml-card details{margin:16px 0 0}.ml-card .ml-finding details{margin:8px 0 0}.ml-card summary{cursor:pointer}"
    ".ml-card summary:focus-visible{outline:2px solid var(--ml-info);outline-offset:2px}"
    ".ml-card h4.ml-part{font-size:13px;font-weight:600;margin:16px 0 0;padding:0;border:0}"
    ".ml-card table.ml-table td,.ml-card table.ml-table th{vertical-align:top}"
    ".ml-card table.ml-facts td:last-child{overflow-wrap:anywhere;white-space:normal}"
    "</style>"
)


def _escaped(text: object, most: int = 2000) -> str:
    """Return a text of a finding or fact, visible, not too long, and escaped."""
    text = str(text)
    return escape(visible(text if len(text) <= most else f"{text[:most]} …"))


def as_html(explanation: Explanation) -> str:
    """Return the explanation as a card: verdict, findings, facts, recognised parts, and what is normal."""
    parts = [_STYLE, *(_finding(explanation, item) for item in explanation.findings[:MOST_FINDINGS])]
    more = len(explanation.findings) - MOST_FINDINGS
    if more > 0:
        parts.append(f'<div class="ml-sub">and {more:,} more findings</div>')
    if explanation.facts:
        rows = [
            f"<tr><td>{_escaped(name, 100)}</td><td>{_escaped(value, _MOST_FACT)}</td></tr>"
            for name, value in explanation.facts.items()
        ]
        body = f'<table class="ml-table ml-facts"><tbody>{"".join(rows[:100])}</tbody></table>'
        parts.append(f'<h4 class="ml-part">The text shows</h4>{body}')
    if explanation.tables:
        names = ", ".join(f"<code>.table({escape(repr(name))})</code>" for name in explanation.tables)
        parts.append(f'<div class="ml-sub" style="margin:8px 0 0">As tables: {names}</div>')
    if explanation.normal:
        items = "".join(_finding(explanation, item) for item in explanation.normal[:MOST_FINDINGS])
        n = len(explanation.normal)
        summary = "1 thing looks wrong but is normal" if n == 1 else f"{n:,} things look wrong but are normal"
        parts.append(f"<details><summary>{summary}</summary>{items}</details>")
    if explanation.recognised:
        rows_ = [[kind, lines, n] for kind, lines, n in span_texts(explanation)]
        parts.append(
            f"<details><summary>Recognised: {escape(', '.join(_kinds(explanation)))}</summary>"
            f"{table(['format', 'lines', 'recognised'], rows_, most=20)}</details>"
        )
    return card(verdict(explanation), _subtitle(explanation), *parts)


def _kinds(explanation: Explanation) -> list[str]:
    return list(dict.fromkeys(span.kind for span in explanation.recognised))


def _subtitle(explanation: Explanation) -> str:
    """Return the size of the text, and how much of it was recognised."""
    n = len(explanation.paste)
    n_recognised = sum(span.n_lines for span in explanation.recognised)
    name = "" if explanation.paste.name is None else f"{visible(explanation.paste.name)} · "
    return f"{name}{n:,} line{'s' * (n != 1)}, {min(n_recognised, n):,} recognised"


def _finding(explanation: Explanation, item: TextFinding) -> str:
    """Return one finding with the lines that show it."""
    # The colour is a style of the element and not a class, because a saved notebook may lose its style sheets.
    colour = f"--ml-level:var(--ml-{item.severity},var(--ml-soft))"
    subject = f": {_escaped(item.subject, 400)}" if item.subject else ""
    parts = [
        f'<div class="ml-head"><span class="ml-mark" aria-hidden="true">{LEVEL_MARKS[item.severity]}</span>'
        f"{escape(item.severity)} · {_escaped(item.title or item.code, 200)}{subject}"
        f' <span class="ml-code">{_escaped(item.code, 80)}{escape(follows_text(item))}</span></div>',
        f'<p class="ml-why">{_escaped(item.why)}</p>',
    ]
    if item.do:
        parts.append(f'<p class="ml-do">{_escaped(item.do)}</p>')
    if item.lines:
        quoted = quoted_lines(explanation.paste, item.lines, _MOST_LINES)
        parts.append(_lines(quoted[:_OPEN_LINES]))
        rest, more = quoted[_OPEN_LINES:], len(item.lines) - _OPEN_LINES
        if rest:
            cut = more - len(rest)
            note = f'<div class="ml-sub">and {cut:,} more lines</div>' if cut > 0 else ""
            summary = f"{more:,} more line{'s' * (more > 1)}"
            parts.append(f"<details><summary>{summary}</summary>{_lines(rest)}{note}</details>")
    return f'<div class="ml-finding" style="{colour}">{"".join(parts)}</div>'


def _lines(quoted: list[tuple[int, str]]) -> str:
    """Return lines of the paste with their numbers."""
    rows = "".join(
        f'<li><span class="ml-number">{number:,}</span><span class="ml-raw">{escape(text)}</span></li>'
        for number, text in quoted
    )
    return f'<ol class="ml-lines">{rows}</ol>'


def as_page(explanation: Explanation) -> str:
    """Return the explanation as an HTML page, light or dark as the browser prefers."""
    style = (
        ":root{color-scheme:light dark;background:Canvas;color:CanvasText}"
        "body{font:15px/1.5 system-ui,sans-serif;margin:32px auto;max-width:960px;padding:0 16px}"
    )
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(verdict(explanation))}</title><style>{style}</style><body>{as_html(explanation)}</body></html>\n"
    )
