"""The command ``meshlab docs``: list the pages of the documentation, or print one."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from meshlab.base._errors import did_you_mean
from meshlab.base._files import packaged_folder
from meshlab.cli._arguments import Command
from meshlab.cli._output import BAD_INPUT, OK, print_error, print_text

_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_FENCE = re.compile(r"^(`{3,}|:{3,}).*?^\1$", re.MULTILINE | re.DOTALL)
_LISTS = ("index", "tutorial", "guides", "explanations", "changelog")  # pages that list others on the site


def titles() -> dict[str, str]:
    """Return the title of each page by its name."""
    pages = sorted(path for path in packaged_folder("docs").glob("*.md") if path.stem not in _LISTS)
    return {path.stem: next(_headings(path), path.stem) for path in pages}


def _headings(path: Path) -> Iterator[str]:
    """Yield the headings of a page, without code blocks, whose comments look like headings."""
    return (match[1].replace("`", "") for match in _HEADING.finditer(_FENCE.sub("", path.read_text(encoding="utf-8"))))


def matches(word: str) -> list[str]:
    """Return the pages about a word: by name, else by title, else by heading."""
    pattern = re.compile(rf"\b{re.escape(word)}", re.IGNORECASE)
    by_title = titles()
    if word.lower() in by_title:
        return [word.lower()]
    return [page for page, title in by_title.items() if page.startswith(word.lower()) or pattern.search(title)] or [
        page for page in by_title if any(map(pattern.search, _headings(packaged_folder("docs") / f"{page}.md")))
    ]


def _run(options: argparse.Namespace) -> int:
    """Print the page about a word, the pages to choose from, or the list of all pages."""
    by_title = titles()
    word = " ".join(options.word)
    pages = matches(word) if word else list(by_title)
    if len(pages) == 1:
        text = (packaged_folder("docs") / f"{pages[0]}.md").read_text(encoding="utf-8")
        if sys.stdout.isatty():
            from pydoc import pager

            pager(text)
        else:
            print_text(text.rstrip())
        return OK
    if not pages:
        print_error(f"there is no page about {word!r}{did_you_mean(word, by_title)}; these are the pages:")
    width = max(map(len, by_title))
    for page in pages or by_title:
        print_text(f"  {page:<{width}}  {by_title[page]}")
    return OK if pages else BAD_INPUT


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "word", nargs="*", metavar="WORD", help="the name of a page, or a word of its title (default: all)"
    )


DOCS = Command(
    "docs",
    "print a page of the documentation",
    "Prints the page about a word, such as 'hangs', or the list of all pages.\n  meshlab docs hangs",
    _run,
    _add_options,
)
