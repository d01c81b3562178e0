"""Rules over invented lines, and texts that try to break out of where they are shown."""

from __future__ import annotations

from collections.abc import Iterator

from meshlab.diagnosis._findings import TextFinding, rule
from meshlab.diagnosis._paste import Paste

__all__ = ["HOSTILE", "RULES", "printer_jam", "printer_text"]


@rule("paper-jam", "The printer is jammed", source="printer manual", causes=("job-cancelled",))
def printer_jam(paste: Paste) -> Iterator[TextFinding]:
    """Lines with ``jam in tray``."""
    lines = paste.find("jam in tray")
    if lines:
        yield printer_jam.finding(
            "error",
            ", ".join(sorted({line.text.split(":")[0] for line in lines})),
            "The printer reports a jam.",
            "Open the tray, and run `lp -r` again.",
            lines,
        )


@rule("job-cancelled", "A job was cancelled", source="printer manual")
def job_cancelled(paste: Paste) -> Iterator[TextFinding]:
    """Lines with ``job cancelled``."""
    lines = paste.find("job cancelled")
    if lines:
        yield job_cancelled.finding("error", "the queue", f"The queue says {lines[0].text!r}.", "", lines)


@rule("low-toner", "The toner is low", source="printer manual")
def low_toner(paste: Paste) -> Iterator[TextFinding]:
    """Lines with ``toner low``."""
    for line in paste.find("toner low"):
        yield low_toner.finding("warning", line.text, "The toner is low.", "Order some.", [line])


@rule("paper-loaded", "Paper was loaded", source="printer manual")
def paper_loaded(paste: Paste) -> Iterator[TextFinding]:
    """Lines with ``paper loaded``."""
    for line in paste.find("paper loaded"):
        yield paper_loaded.finding("info", "tray 1", "Somebody loaded paper.", "", [line])


@rule("warming-up", "The printer warms up", source="printer manual")
def warming_up(paste: Paste) -> Iterator[TextFinding]:
    """Lines with ``warming up``."""
    lines = paste.find("warming up")
    if lines:
        yield warming_up.finding("normal", "lp0", "It does so each morning.", "", lines)


RULES = (warming_up, paper_loaded, low_toner, job_cancelled, printer_jam)

HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    '" onmouseover="alert(1)',
    "</pre></details></ol></div><h1>out",
    "</style><style>*{display:none}",
    "[click](javascript:alert(1)) ![x](http://evil.test/x.png)",
    "```` \n```",
    "**bold** _em_ ~~gone~~ `code` | a | b |",
    "# heading",
    "> quoted",
    "1. list",
    "@someone fixes #12",
    "\x1b]0;title\x07\x1b[2J\x1b[31mred",
    "zero\0byte",
    "right\u202eto\u2066left\u200b\u200f",
    "bell\x07 back\x08space \x9b31m",
    "lone \ud800 surrogate",
    "{{ 7 * 7 }} ${7*7} $x^2$",
    "&lt;b&gt; &amp; &#60;",
]


def printer_text(extra: str = "") -> str:
    """A text with all findings, in an order that is not theirs."""
    lines = ["lp0: warming up", "paper loaded", "lp0: job cancelled", "toner low", f"lp0: jam in tray 1 {extra}"]
    return "\n".join(lines)
