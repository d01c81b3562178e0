"""The one entry point for anything that a person pastes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from meshlab.diagnosis.explanation import Explanation, sort_findings
from meshlab.diagnosis.formats.format_table import FORMATS
from meshlab.diagnosis.paste import Paste
from meshlab.diagnosis.rules.rule_table import RULES
from meshlab.diagnosis.seen import Seen, Span, spans_of
from meshlab.diagnosis.text_findings import Rule
from meshlab.errors import ParseError

__all__ = ["explain"]


def explain(source: str | bytes | Path, *, rules: Sequence[Rule] = RULES) -> Explanation:
    """Explain a pasted text: a log, a matrix, a report of a hang, or several of them together.

    Nothing is executed or unpickled, and no machine is needed.

    Parameters
    ----------
    source : str, bytes or pathlib.Path
        The text, or the path of a file. A single line that names an existing file is a path.
    rules : sequence of Rule, default RULES
        The rules to apply. ``[*ml.diagnosis.RULES, my_rule]`` adds one.

    Returns
    -------
    Explanation
        What was recognised, what it shows, what is wrong, and what to do.

    Raises
    ------
    ParseError
        If nothing is recognised, or the file is binary or too large.
    """
    if isinstance(source, Path):
        paste = Paste(source.read_text(errors="replace"), str(source))
    else:
        paste = Paste(source if isinstance(source, str) else source.decode(errors="replace"))
    seen: list[Seen] = []
    spans: list[Span] = []
    for form in FORMATS:
        numbers = form.find(paste)
        if numbers:
            spans += spans_of(form.kind, numbers)
            seen.append(form.see(paste))
    findings = [finding for one in rules for finding in one(paste)]
    if not spans and not findings:
        examples = ", ".join(form.example for form in FORMATS)
        raise ParseError("nothing in the text was recognised", hint=f"paste {examples}")
    spans.sort(key=lambda span: span.first)
    return Explanation(paste, tuple(spans), sort_findings(findings, rules), tuple(seen))
