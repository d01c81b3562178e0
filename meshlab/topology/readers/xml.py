"""Read XML that nobody vouches for: no entities, no deep nests, no endless files; a broken end costs only the end."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from xml.sax import SAXParseException

from meshlab.errors import ParseError, TopologyError

__all__ = ["Element", "read_document"]

_LARGEST = 64 << 20  # characters
_DEEPEST = 64
_MOST = 200_000  # elements; a rack of 72 GPUs has a few thousand
_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)


@dataclass(slots=True)
class Element:
    """One element: its tag, attributes and children."""

    tag: str
    attributes: dict[str, str]
    children: list[Element] = field(default_factory=list)

    def get(self, name: str, default: str = "") -> str:
        """An attribute, without white space around it."""
        return self.attributes.get(name, default).strip()

    def whole(self, name: str) -> int | None:
        """An attribute as a whole number, decimal or ``0x…``; None when it is none."""
        text = self.get(name)
        if text.isdecimal():
            return int(text)
        try:
            return int(text, 16) if text.lower().startswith("0x") else int(float(text))
        except (ValueError, OverflowError):
            return None


class _TooMuchError(Exception):
    """The document is larger or deeper than any machine."""


class _Builder:
    def __init__(self) -> None:
        self.root: Element | None = None
        self.open: list[Element] = []
        self.count = 0

    def start(self, name: str, attributes: dict[str, str]) -> None:
        self.count += 1
        if len(self.open) >= _DEEPEST:
            raise _TooMuchError(f"elements are nested more than {_DEEPEST} deep")
        if self.count > _MOST:
            raise _TooMuchError(f"there are more than {_MOST:,} elements")
        element = Element(name, attributes)
        if self.open:
            self.open[-1].children.append(element)
        elif self.root is None:
            self.root = element
        self.open.append(element)

    def end(self, name: str) -> None:
        self.open.pop()


def read_document(text: str, roots: tuple[str, ...], machine: int | None = None) -> tuple[Element, str | None]:
    """Read one document out of a text.

    Parameters
    ----------
    text : str
        It may have other lines before and after.
    roots : tuple of str
        The tags that a document can begin with.
    machine : int, optional
        Which document, when there are several.

    Returns
    -------
    tuple of Element and str
        The root, and what is wrong with its end; None when it is whole.

    Raises
    ------
    ParseError
        If there is none, it is hostile, or not even its beginning can be read.
    TopologyError
        If there are several and `machine` does not say which.

    Examples
    --------
    >>> root, trouble = read_document('<system version="1"><cpu numaid="0">', ("system",))
    >>> root.children[0].whole("numaid"), trouble
    (0, 'the XML ends before its end, at line 1')
    """
    if len(text) > _LARGEST:
        raise ParseError(f"the XML has {len(text):,} characters; a topology has far less than {_LARGEST:,}")
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise ParseError("the XML declares a document type or entities; a topology never needs them, so it is refused")
    # Comments may hold anything, also what looks like a document; their lines still count.
    plain = _COMMENT.sub(lambda match: "\n" * match[0].count("\n"), text)
    starts = [match.start() for match in re.finditer(rf"<(?:{'|'.join(roots)})\b", plain)]
    if not starts:
        first = re.search(r"<([A-Za-z_][\w.:-]*)", plain)
        seen = f"it begins with <{first[1]}>" if first else f"it begins with {plain.strip()[:40]!r}"
        raise ParseError(f"no <{'> or <'.join(roots)}> was found in the text; {seen}")
    if machine is None and len(starts) > 1:
        raise TopologyError(
            f"the text holds {len(starts)} documents; say which with machine=0 to machine={len(starts) - 1}"
        )
    index = machine or 0
    if not 0 <= index < len(starts):
        raise TopologyError(f"there is no machine {index}; the text holds {len(starts)}, counted from 0")
    stop = starts[index + 1] if index + 1 < len(starts) else len(plain)
    return _parse(plain[starts[index] : stop], plain.count("\n", 0, starts[index]))


def _parse(text: str, lines_before: int) -> tuple[Element, str | None]:
    from defusedxml import DefusedXmlException
    from defusedxml.expatreader import create_parser

    builder = _Builder()
    parser = create_parser(forbid_dtd=True)
    # Straight from expat: a content handler in between would wrap every attribute dict once more.
    # Text between the elements means nothing here, so nothing is called for it.
    vars(parser).update(start_element=builder.start, end_element=builder.end)
    vars(parser.getContentHandler()).update(characters=None)
    trouble = None
    try:
        parser.feed(text)
        parser.close()
    except SAXParseException as error:
        if builder.root is None:
            raise ParseError(f"the XML cannot be read: {error.getMessage()}", line=_line(error, lines_before)) from None
        if builder.open or builder.count == 1:
            ends = "no element found" in error.getMessage() or "unclosed token" in error.getMessage()
            what = "ends before its end" if ends else f"is broken ({error.getMessage()})"
            trouble = f"the XML {what}, at line {_line(error, lines_before)}"
    except (DefusedXmlException, _TooMuchError) as error:
        raise ParseError(f"the XML is refused: {error}") from None
    if builder.root is None:
        raise ParseError("the XML holds no element")
    return builder.root, trouble


def _line(error: SAXParseException, lines_before: int) -> int:
    return int(error.getLineNumber() or 1) + lines_before
