"""The command ``meshlab explain``: explain a pasted text."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from meshlab.cli._arguments import Command, add_out, add_redact
from meshlab.cli._output import FAILED, OK, print_error, print_text

_FORMATS = {".md": "markdown", ".html": "html", ".json": "json"}


def _run(options: argparse.Namespace) -> int:
    """Explain a pasted text. Return 1 if it shows an error."""
    from meshlab.base._files import write_file
    from meshlab.diagnosis._explain import explain
    from meshlab.diagnosis._html import as_page
    from meshlab.diagnosis._text import as_text

    form = options.format or _FORMATS.get(Path(options.out or "").suffix, "text")
    if "-" in options.files and sys.stdin.isatty():
        print_error("paste the text, and press Ctrl-D on an empty line to finish")
    sources = [sys.stdin.buffer.read() if name == "-" else Path(name) for name in options.files]
    explanation = explain(sources[0] if len(sources) == 1 else sources)
    explanation = explanation.redacted() if options.redact else explanation
    if form == "html":
        text = as_page(explanation)
    elif form == "markdown":
        text = explanation.to_markdown()
    elif form == "json":
        text = f"{explanation.to_json()}\n"
    else:
        text = f"{as_text(explanation, shutil.get_terminal_size((100, 24)).columns)}\n"
    if options.out:
        print_text(explanation.verdict)
        print_text(write_file(options.out, text))
    else:
        print_text(text.removesuffix("\n"))
    return FAILED if any(item.severity == "error" for item in explanation.findings) else OK


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="the text, optionally compressed with gzip; - for standard input. Several files, such as the logs of all "
        "ranks, are explained together",
    )
    parser.add_argument(
        "--format",
        choices=("text", "markdown", "html", "json"),
        help="format of the output (default: that of the suffix of --out, otherwise text)",
    )
    add_out(parser, "FILE", "write the explanation to a file instead")
    add_redact(parser)


EXPLAIN = Command(
    "explain",
    "explain a log or any other pasted text",
    "Recognises logs of NCCL, PyTorch, nccl-tests and launchers, reports of hangs, and the output of tools for GPUs "
    "and NICs, or several of them in one text. Prints what is wrong, what to do, the lines that show it, and what "
    "only looks wrong. Starts nothing, and executes nothing. Exits with 1 if the text shows an error.",
    _run,
    _add_options,
)
