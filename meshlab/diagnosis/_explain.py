"""The one entry point for anything that a person pastes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from meshlab.base._documents import LimitError
from meshlab.base._errors import EngineError, ParseError, printable
from meshlab.base._files import TextSource, decode_text, describe_text, is_like_name, path_of, read_bytes
from meshlab.base._garbage import collector_paused
from meshlab.base._other_tools import is_other_document, name_of, other_tool
from meshlab.diagnosis._explanation import Explanation, sort_findings
from meshlab.diagnosis._findings import Rule, TextFinding
from meshlab.diagnosis._paste import Paste
from meshlab.diagnosis._seen import Seen, Span, spans_of
from meshlab.diagnosis.formats._flight_recorder import refuse_pickle
from meshlab.diagnosis.formats._table import FORMATS
from meshlab.diagnosis.rules._nccl_normal import overlooked_warnings, unknown_warning
from meshlab.diagnosis.rules._table import RULES

_TOO_LARGE = "pass the part around the first error, or the lines with WARN and the first 1,000 lines"

_MOST_EXAMPLES = 6  # of texts that can be pasted, in an error
_MOST_CHARACTERS = 100 << 20  # which take about five seconds

# The first bytes of files that people pass by mistake, with what to pass instead.
_BINARY = {
    **dict.fromkeys(
        (b"\x89PNG", b"\xff\xd8\xff"), ("a picture", "copy the text itself, because a picture cannot be read")
    ),
    b"%PDF": ("a PDF", "copy the text itself"),
    b"PK\x03\x04": ("a zip archive", "unpack it, and pass one of its text files"),
    b"\x7fELF": ("a program or a core dump", "pass its output"),
    b"PAR1": ("a Parquet file", "load the folder of a run with ml.Run.load()"),
    b"SQLite format 3": ("a database of a profiler", "pass the text output of the job"),
}


def explain(source: TextSource | Sequence[TextSource], *, rules: Sequence[Rule] = RULES) -> Explanation:
    """Explain a pasted text: a log, a matrix, a report of a hang, or several of them together.

    Nothing is executed or unpickled, and no machine is needed.

    Parameters
    ----------
    source : str, bytes, path or sequence of these
        The text, or the path of a file, which gzip may have compressed. A single line that names an existing file is a
        path. Several texts, such as the logs of all ranks, are explained together.
    rules : sequence of Rule, default RULES
        The rules to apply. ``[*ml.diagnosis.RULES, my_rule]`` adds one.

    Returns
    -------
    Explanation
        What was recognised, what it shows, what is wrong, and what to do.

    Raises
    ------
    ParseError
        If nothing is recognised, or the file is binary or larger than 100 MiB.
        If the text has more of something than any log has, such as dumps, rows of a matrix or switches.
    OSError
        If the file cannot be read.

    Examples
    --------
    >>> import meshlab as ml
    >>> explanation = ml.explain("vllm serve model --tensor-parallel-size 8")
    >>> explanation.facts["mesh"], explanation.findings
    ('tp=8: 8 ranks, axes tp of 8', ())
    """
    with collector_paused():
        return explain_paste(_paste_of(source), rules, may_be_name=isinstance(source, str))


class OtherToolError(ParseError):
    """A text of a tool that meshlab knows by name, and does not read."""


def check_length(text: str, file: str | None) -> None:
    """Raise a `LimitError` if a text is too long to be explained in a few seconds."""
    if len(text) > _MOST_CHARACTERS:
        raise LimitError(
            f"the text has {len(text):,} characters, more than {_MOST_CHARACTERS:,}", hint=_TOO_LARGE, file=file
        )


def explain_paste(paste: Paste, rules: Sequence[Rule] = RULES, *, may_be_name: bool = False) -> Explanation:
    """Explain a text that is split into lines already. See `explain`."""
    check_length(paste.text, paste.name)
    if is_other_document(paste.text):
        _refuse_other_tool(paste)
    seen: list[Seen] = []
    spans: list[Span] = []
    failed: dict[str, list[str]] = {}  # names of what failed, by the error
    for form in FORMATS:
        try:
            if numbers := form.find(paste):
                spans += spans_of(form.kind, numbers)
                seen.append(form.see(paste))
        except LimitError:
            raise
        except Exception as error:
            failed.setdefault(_name(error), []).append(f"the format {form.kind}")
    findings: list[TextFinding] = []
    for rule in rules:
        try:
            findings += rule(paste)
        except LimitError:
            raise
        except Exception as error:
            failed.setdefault(_name(error), []).append(f"the rule {rule.code}")
    if unknown_warning in rules:
        findings += overlooked_warnings(paste, findings)
    if not spans and not findings and not failed:
        _refuse_other_tool(paste)
        examples = ", ".join(form.example for form in FORMATS[:_MOST_EXAMPLES])
        raise ParseError(
            f"nothing was recognised: {describe_text(paste.text, may_be_name=may_be_name)}",
            hint="check the path, or pass the text itself"
            if may_be_name and is_like_name(paste.text)
            else f"paste {examples}, or one of {len(FORMATS) - _MOST_EXAMPLES} other texts (meshlab docs diagnosis)",
            file=paste.name,
        )
    spans.sort(key=lambda span: span.first)
    # A rule may also return findings of other codes, such as those of `health`.
    titles = {rule.code: rule.title for rule in reversed(rules)} | {"nothing-wrong": "Nothing is wrong here"}
    findings = [item if item.title else replace(item, title=titles.get(item.code, "")) for item in findings]
    findings += [_failure(error, names) for error, names in failed.items()]
    return Explanation(paste, tuple(spans), sort_findings(findings, rules), tuple(seen))


def _refuse_other_tool(paste: Paste) -> None:
    """Raise if another tool printed a text."""
    if (tool := other_tool(paste.text)) is not None:
        raise OtherToolError(f"this is {name_of(tool, paste.text)}; {tool.reason}", hint=tool.instead, file=paste.name)


def explain_error(error: EngineError) -> Explanation | None:
    """Explain the logs of an error, or return None if nothing in them is recognised. See `EngineError.explain`."""
    lines = set(error.library_log.splitlines())  # the last lines are often in both
    return _explain_log("\n".join([error.library_log, *(line for line in error.log.splitlines() if line not in lines)]))


@lru_cache(maxsize=2)  # an error is displayed, printed and saved
def _explain_log(text: str) -> Explanation | None:
    """Explain the log of a program that failed, or return None if nothing in it is recognised. Never raises."""
    if not text.strip():
        return None
    try:
        return explain(f"{text}\n")  # with a line break, it is never the name of a file
    except ParseError:
        return None


def _paste_of(source: TextSource | Sequence[TextSource]) -> Paste:
    """Return the paste of one or several sources."""
    if isinstance(source, (str, bytes, os.PathLike)) or not isinstance(source, Iterable):
        return Paste(*_text_of(source))
    texts = [_text_of(text_source) for text_source in source]
    # The names of files, as head and tail print them, because the name of a dump has its rank.
    parts = [text if name is None else f"==> {name} <==\n{text}" for text, name in texts]
    return Paste("\n".join(parts), ", ".join(name for _, name in texts if name is not None) or None)


def _text_of(source: TextSource) -> tuple[str, str | None]:
    """Return the text of a source and the name of its file, or raise if it is binary."""
    path = path_of(source)
    if path is None and isinstance(source, str):
        refuse_pickle(source)
        return printable(source), None
    name = None if path is None else str(path)
    content = read_bytes(source if isinstance(source, bytes) else Path(source), hint=_TOO_LARGE)
    refuse_pickle(content[:8].decode("latin-1"), name)
    for start, (what, instead) in _BINARY.items():
        if content.startswith(start):
            raise ParseError(f"this is {what}", hint=instead, file=name)
    return decode_text(content), name


def _name(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _failure(error: str, names: Sequence[str]) -> TextFinding:
    """Return a finding about rules and formats that raised, so that an odd line does not hide all other findings."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return TextFinding(
        "rule-failed",
        f"{', '.join(names[:3])}{more}",
        "info",
        f"A part of meshlab could not read this text ({error[:200]}), so a finding may be missing.",
        "Report it to the developers of meshlab, with the text if you can share it.",
        title="A rule failed",
    )
