"""JSON, TOML and YAML. Any fault of a document is a `ParseError`, instead of a dozen types of exceptions."""

from __future__ import annotations

import itertools
import json
import re
import tomllib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from meshlab.base._errors import ParseError
from meshlab.base._files import decode_text, read_bytes

_DECODER = json.JSONDecoder()
_BRACKET = re.compile(r"[\[\]{}]")
_DEEPEST_YAML = 100
_WINDOWS = (1 << 10, 1 << 16, 1 << 20)
_MOST_LISTS, _LIST = 2_000_000, 16  # lists and objects in JSON, plus one per 16 characters
_LONGEST_TOKEN = 16  # of a number, a constant or an escape that a window cuts
_TOML_LINE = re.compile(r"\(at line (\d+), column \d+\)")
_START = re.compile(r"[\ufeff \t\r\n]*")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_ESCAPE = re.compile(
    r"(\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|\\u[dD][89a-fA-F][0-9a-fA-F]{2}|(\\[^u])"
)


class LimitError(ParseError):
    """A text has more of something than meshlab reads. No other reader should try, because it would take long too."""


class NestingError(ParseError):
    """A document is nested so deeply that no reader can use it. Looking for a document within it costs much time."""


def parse_json(text: str, *, file: str | None = None, hint: str = "copy the file again") -> Any:
    """Return the value of a JSON document that any program may have written, or raise a `ParseError` with the hint."""
    # As in Python, NaN and Infinity are numbers, and the last of two equal keys counts. Half of a surrogate pair
    # becomes a replacement character, because such a string cannot be printed or written.
    return _parsed(_DECODER, text, file, hint)


def parse_large_json(content: bytes, *, file: str | None = None, hint: str = "copy the file again") -> Any:
    """Return the value of a JSON document of up to gigabytes, such as a trace. Raises as `parse_json`."""
    # orjson takes half of the time and of the memory. It rejects what other programs write, such as NaN and bytes that
    # are not UTF-8, and is not installed where it has no wheel.
    try:
        from orjson import loads
    except ImportError:
        return parse_json(decode_text(content), file=file, hint=hint)
    try:
        return loads(content)
    except ValueError:
        return parse_json(decode_text(content), file=file, hint=hint)


def parse_own_json(text: str, *, file: str | None = None, hint: str = "copy the file again") -> Any:
    """Return the value of a JSON document that meshlab wrote, which never has NaN, Infinity or two equal keys."""
    return _parsed(_OWN_DECODER, text, file, hint)


def read_own_json(path: str | Path, *, hint: str = "copy the file again") -> Any:
    """Return the value of a JSON file that meshlab wrote. Raises as `parse_own_json`, and OSError."""
    content = read_bytes(Path(path), hint=hint)
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        raise ParseError("the file is not text in UTF-8", hint=hint, file=str(path)) from None
    return parse_own_json(text, file=str(path), hint=hint)


def decode_json(text: str, position: int) -> tuple[Any, int]:
    """Return the JSON value at a position of a text, such as a log, and the position after it."""
    # An error of Python's parser counts all lines before it, so that many broken values in a long text would take
    # quadratic time. Most values are short, or broken near their beginning.
    for length in (*_WINDOWS, len(text)):
        part = text[position : position + length]
        is_rest = position + length >= len(text)
        if len(part) > _MOST_LISTS:
            _check_lists(part, None, "")
        try:
            value, end = _DECODER.raw_decode(part)
            if end == len(part) and not is_rest:
                continue
            # Escapes of surrogates are replaced by an escape of the same length, so positions are those of the text.
            if _SURROGATE.search(part, 0, end):
                value = _DECODER.raw_decode(_without_lone_surrogates(part[:end]))[0]
            return value, position + end
        except json.JSONDecodeError as error:
            if not is_rest and (error.msg.startswith("Unterminated") or error.pos >= len(part) - _LONGEST_TOKEN):
                continue
            raise ParseError(f"not valid JSON: {_problem(error)}") from None
        except (ValueError, RecursionError) as error:
            raise _refused(error, None, "") from None
    raise ParseError("not valid JSON: the document is incomplete")


def mapping_or_empty(value: object) -> Mapping[str, Any]:
    """Return an object of a document that another program wrote, or an empty one for any other value."""
    return value if isinstance(value, dict) else {}


def objects_in(value: object) -> list[Mapping[str, Any]]:
    """Return the objects in a list of a document that another program wrote, an empty list for any other value."""
    return [element for element in value if isinstance(element, dict)] if isinstance(value, list) else []


def parse_toml(text: str, *, file: str | None = None, hint: str = "correct the line") -> dict[str, Any]:
    """Return the tables of a TOML document. A `ParseError` has a line unless the document is incomplete."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise NestingError("the TOML is nested too deeply", hint=hint, file=file) from None
    except ValueError as error:  # TOMLDecodeError, or a number with thousands of digits
        match = _TOML_LINE.search(str(error))
        line = None if match is None else int(match[1])
        problem = _TOML_LINE.sub("", str(error)).strip()
        raise ParseError(f"not TOML: {problem}", hint=hint, text=text, file=file, line=line) from None


def parse_yaml(text: str, *, file: str | None = None, hint: str = "correct the line") -> list[Any]:
    """Return the documents of a YAML text that are not empty, as plain values."""
    import yaml

    # PyYAML compares every bracket with all open ones, so a few thousand of them would take seconds.
    if _depth(text) > _DEEPEST_YAML:
        raise NestingError("the YAML is nested too deeply", hint=hint, file=file)
    try:
        return [part for part in yaml.safe_load_all(text) if part is not None]
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or "unexpected text"
        line = None if mark is None else mark.line + 1
        raise ParseError(f"not YAML: {problem}", hint=hint, text=text, file=file, line=line) from None
    except RecursionError:
        raise NestingError("the YAML is nested too deeply", hint=hint, file=file) from None
    except Exception as error:
        # The constructors of PyYAML do not check their input: `!!int ""` is an IndexError, `!!bool x` a KeyError, and
        # `!!timestamp x` an AttributeError.
        raise ParseError("not YAML: a value does not match its type", hint=hint, text=text, file=file) from error


def _depth(text: str) -> int:
    """Return the number of brackets that are open at the same time, those in strings included."""
    steps = (1 if match[0] in "[{" else -1 for match in _BRACKET.finditer(text))
    return max(itertools.accumulate(steps), default=0)


def _parsed(decoder: json.JSONDecoder, text: str, file: str | None, hint: str) -> Any:
    _check_lists(text, file, hint)
    if _SURROGATE.search(text):
        text = _without_lone_surrogates(text)
    start = _START.match(text)
    try:
        value, end = decoder.raw_decode(text, start.end() if start else 0)
        if text[end:].strip():
            raise json.JSONDecodeError("unexpected text after the document", text, end)
    except ParseError as error:
        raise ParseError(error.message, hint=hint, file=file) from None
    except (ValueError, RecursionError) as error:
        raise _refused(error, file, hint) from None
    return value


def _check_lists(text: str, file: str | None, hint: str) -> None:
    """Raise if the lists and objects of a text would take many times its memory."""
    most = _MOST_LISTS + len(text) // _LIST
    if len(text) > most and text.count("[") + text.count("{") > most:
        raise LimitError(f"the JSON has more than {most:,} lists and objects", hint=hint, file=file)


def _refused(error: Exception, file: str | None, hint: str) -> ParseError:
    """Return the error for a document that Python's parser rejected."""
    if isinstance(error, json.JSONDecodeError):
        return ParseError(
            f"not valid JSON: {_problem(error)}", hint=hint, file=file, line=error.lineno, column=error.pos
        )
    if isinstance(error, RecursionError):
        return NestingError("the JSON is nested too deeply", hint=hint, file=file)
    # See sys.set_int_max_str_digits
    return ParseError("the JSON has a number with thousands of digits", hint=hint, file=file)


def _problem(error: json.JSONDecodeError) -> str:
    if error.pos >= len(error.doc):
        return "the document is incomplete"
    return error.msg[:1].lower() + error.msg[1:]


def _without_lone_surrogates(text: str) -> str:
    return _ESCAPE.sub(lambda match: match[1] or match[2] or r"\ufffd", text)


def _refuse_constant(name: str) -> Any:
    raise ParseError(f"not valid JSON: {name} is not a number")


def _unique(pairs: list[tuple[str, Any]]) -> Mapping[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = next(name for name, n in counts.items() if n > 1)
        raise ParseError(f"not valid JSON: the key {twice[:60]!r} occurs twice")
    return values


_OWN_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, object_pairs_hook=_unique)
