"""Parser for untrusted XML: no entities, no deep nesting, no huge files. Elements before an error are kept."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from xml.sax import SAXParseException

from meshlab.base._errors import ParseError, TopologyError, printable
from meshlab.base._numerals import whole, whole_or_none

_LARGEST = 64 << 20  # characters
_DEEPEST = 64  # a topology has about 10 levels
_MOST = 200_000  # elements; a rack of 72 GPUs has a few thousand
_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)


@dataclass(slots=True)
class Element:
    """An element: its tag, attributes and children."""

    tag: str
    attributes: dict[str, str]
    children: list[Element] = field(default_factory=list)

    def get(self, name: str, default: str = "") -> str:
        """Return an attribute without surrounding white space."""
        return self.attributes.get(name, default).strip()

    def integer(self, name: str) -> int | None:
        """Return an attribute as an integer, decimal or ``0x…``, or None if it is not a number."""
        text = self.get(name)
        if text.isdecimal():
            return whole(text)
        try:
            return whole(text, 16) if text.lower().startswith("0x") else whole_or_none(float(text))
        except ValueError:
            return None


class _TooMuchError(Exception):
    """The document is larger or deeper than any topology."""


class _Builder:
    def __init__(self) -> None:
        self.root: Element | None = None
        self.open: list[Element] = []
        self.count = 0

    def start(self, name: str, attributes: dict[str, str]) -> None:
        self.count += 1
        if len(self.open) >= _DEEPEST:
            raise _TooMuchError(f"more than {_DEEPEST} nested elements")
        if self.count > _MOST:
            raise _TooMuchError(f"more than {_MOST:,} elements")
        element = Element(name, attributes)
        if self.open:
            self.open[-1].children.append(element)
        elif self.root is None:
            self.root = element
        self.open.append(element)

    def end(self, name: str) -> None:
        self.open.pop()


def read_document(text: str, roots: tuple[str, ...], machine: int | None = None) -> tuple[Element, str | None]:
    """Parse one document of a text that may contain other lines. Return its root, and the error that ended it or None.

    Examples
    --------
    >>> root, error = read_document('<system version="1"><cpu numaid="0">', ("system",))
    >>> root.children[0].integer("numaid"), error
    (0, 'the XML is truncated at line 1')
    """
    if len(text) > _LARGEST:
        raise ParseError(
            f"the XML has {len(text):,} characters, but at most {_LARGEST:,} are supported", hint="pass a topology file"
        )
    # Entities can expand to gigabytes, and external ones can read local files. NCCL never writes either.
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise ParseError(
            "the XML declares a document type or entities, which are not supported", hint="remove the declaration"
        )
    # A comment may contain text that looks like a document. Replace it by its line breaks to keep the line numbers.
    plain = _COMMENT.sub(lambda match: "\n" * match[0].count("\n"), printable(text))
    starts = [match.start() for match in re.finditer(rf"<(?:{'|'.join(roots)})\b", plain)]
    if not starts:
        first = re.search(r"<([A-Za-z_][\w.:-]*)", plain)
        begin = f"<{first[1]}>" if first else repr(plain.strip()[:40])
        raise ParseError(
            f"the text contains no <{'> or <'.join(roots)}> element: it begins with {begin}",
            hint="pass a file that NCCL wrote",
        )
    if machine is None and len(starts) > 1:
        raise TopologyError(
            f"the text contains {len(starts)} documents", hint=f"choose one with machine=0 to machine={len(starts) - 1}"
        )
    index = machine or 0
    if not 0 <= index < len(starts):
        raise TopologyError(f"unknown machine {index}", hint=f"choose a number from 0 to {len(starts) - 1}")
    stop = starts[index + 1] if index + 1 < len(starts) else len(plain)
    return _parse(plain[starts[index] : stop], plain.count("\n", 0, starts[index]))


def _parse(text: str, lines_before: int) -> tuple[Element, str | None]:
    """Parse one document, and keep the elements before an error."""
    from defusedxml import DefusedXmlException
    from defusedxml.expatreader import create_parser

    builder = _Builder()
    parser = create_parser(forbid_dtd=True)
    # For speed, use the callbacks of expat directly: a SAX handler would wrap every attribute dict. Text between
    # elements is white space, so it needs no callback.
    vars(parser).update(start_element=builder.start, end_element=builder.end)
    vars(parser.getContentHandler()).update(characters=None)
    trouble = None
    try:
        parser.feed(text)
        parser.close()
    except SAXParseException as error:
        if builder.root is None:
            raise ParseError(
                f"invalid XML: {error.getMessage()}",
                hint="copy the file again from its beginning",
                line=_line(error, lines_before),
            ) from None
        # With no open element the document is complete, and the error is in the text after it, such as a prompt.
        if builder.open or builder.count == 1:
            is_truncated = "no element found" in error.getMessage() or "unclosed token" in error.getMessage()
            problem = "truncated" if is_truncated else f"invalid ({error.getMessage()})"
            trouble = f"the XML is {problem} at line {_line(error, lines_before)}"
    except (DefusedXmlException, _TooMuchError) as error:
        raise ParseError(f"unsupported XML: {error}", hint="pass a file that NCCL wrote") from None
    if builder.root is None:
        raise ParseError("the XML contains no element", hint="pass a file that NCCL wrote")
    return builder.root, trouble


def _line(error: SAXParseException, lines_before: int) -> int:
    return int(error.getLineNumber() or 1) + lines_before
