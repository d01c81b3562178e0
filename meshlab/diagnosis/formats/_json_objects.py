"""JSON objects that other tools print, which have other lines around them in a paste, and may be cut."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from meshlab.base._documents import LimitError, decode_json, mapping_or_empty
from meshlab.base._errors import ParseError
from meshlab.diagnosis._paste import Paste


def json_objects(paste: Paste, start: re.Pattern[str]) -> Iterator[tuple[tuple[int, int], Mapping[str, Any]]]:
    """Yield the first and the last line of each object that begins with a pattern, and its content: empty if cut."""
    end = 0
    while (match := start.search(paste.text, end)) is not None:
        try:
            document, end = decode_json(paste.text, match.start())
        except LimitError:
            raise
        except ParseError:
            document, end = {}, match.end()
        yield (paste.number_at(match.start()), paste.number_at(end - 1)), mapping_or_empty(document)
