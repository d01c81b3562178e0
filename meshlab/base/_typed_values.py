"""Plain values of a document as typed ones, such as the dataclass that was written. A wrong type is a `ParseError`."""

from __future__ import annotations

import functools
import math
import types
from collections.abc import Collection, Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from meshlab.base._errors import ParseError, printable

_T = TypeVar("_T")

_NAMES = {int: "an integer", float: "a number", str: "a string", bool: "true or false", type(None): "null"}
_LARGEST = 1 << 63


def typed_value(value: object, kind: type[_T], where: str, *, file: str | None = None) -> _T:
    """Return a plain value, such as one from JSON, as a value of a type, or raise a `ParseError` that names `where`."""
    # A type is an annotation that fields of dataclasses have: plain types, Literal, unions, tuple[...], list[...],
    # dict[...] or Mapping[...] of these, a dataclass of these, or Any. Integers have at most 64 bits, and numbers are
    # finite. A dataclass may reject a value with its own error.
    try:
        return cast(_T, _converted(value, kind, where))
    except ParseError as error:
        if file is None or error.file is not None:
            raise
        raise ParseError(error.message, hint=error.hint, file=file) from None


def typed_fields(
    values: object, kinds: Mapping[str, Any], where: str, *, optional: Collection[str] = (), file: str | None = None
) -> dict[str, Any]:
    """Return the fields of a plain mapping at the path `where`, converted by `typed_value`, without other fields."""
    if not isinstance(values, Mapping):
        raise _wrong(values, "an object", where or "the document", file)
    missing = [name for name in kinds if name not in values and name not in optional]
    if missing:
        raise ParseError(
            f"incomplete: {where}{'.' if where else ''}{missing[0]} is missing", hint="copy the file again", file=file
        )
    path = f"{where}." if where else ""
    return {
        name: typed_value(values[name], kind, f"{path}{name}", file=file)
        for name, kind in kinds.items()
        if name in values
    }


def _converted(value: object, kind: Any, where: str) -> object:
    if kind is Any:
        return value
    if kind in (int, float, str, bool, type(None), None):
        if _is(value, kind):
            if isinstance(value, str):
                return printable(value)
            return float(value) if kind is float else value  # type: ignore[arg-type]  # an integer is a number too
        raise _wrong(value, _NAMES[type(None) if kind is None else kind], where)
    if isinstance(kind, type) and is_dataclass(kind):
        return _dataclass(value, kind, where)
    origin, arguments = get_origin(kind) or kind, get_args(kind)
    if origin is Literal:
        if not isinstance(value, (str, int)) or value not in arguments:
            raise _wrong(value, f"one of {', '.join(map(str, arguments))}", where)
        return value
    if origin in (Union, types.UnionType):
        return _of_union(value, arguments, where)
    if origin in (tuple, list):
        return _sequence(value, origin, arguments, where)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise _wrong(value, "an object", where)
        kind = arguments[1] if arguments else Any
        return {printable(str(key)): _converted(part, kind, f"{where}.{str(key)[:40]}") for key, part in value.items()}
    return value  # a type that plain values do not have, such as a function


def _is(value: object, kind: Any) -> bool:
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool) and -_LARGEST <= value < _LARGEST
    if kind is float:
        return _is(value, int) or (isinstance(value, float) and math.isfinite(value))
    return value is None if kind is None else isinstance(value, kind)


def _of_union(value: object, kinds: tuple[Any, ...], where: str) -> object:
    """Return the value as the first type that it has."""
    if value is None and (None in kinds or type(None) in kinds):
        return None
    others = [kind for kind in kinds if kind not in (None, type(None))]
    for kind in others[:-1]:
        try:
            return _converted(value, kind, where)
        except ParseError:
            continue
    return _converted(value, others[-1], where)  # its error is shown, because most unions are a type or None


def _sequence(value: object, origin: Any, kinds: tuple[Any, ...], where: str) -> object:
    if not isinstance(value, (list, tuple)):
        raise _wrong(value, "a list", where)
    if origin is list or (len(kinds) == 2 and kinds[1] is Ellipsis):
        kind = kinds[0] if kinds else Any
        if kind is int and all(_is(element, kind) for element in value):  # quick for the ranks of a large mesh
            return origin(value)
        return origin(_converted(element, kind, f"{where}[{index}]") for index, element in enumerate(value))
    if kinds and len(value) != len(kinds):
        raise _wrong(value, f"a list of {len(kinds)}", where)
    kinds = kinds or (Any,) * len(value)
    pairs = enumerate(zip(value, kinds, strict=True))
    return tuple(_converted(element, kind, f"{where}[{index}]") for index, (element, kind) in pairs)


def _dataclass(value: object, kind: Any, where: str) -> object:
    needed = {field.name for field in fields(kind) if field.default is MISSING and field.default_factory is MISSING}
    kinds = _kinds(kind)
    arguments = typed_fields(value, kinds, where, optional=kinds.keys() - needed)
    unknown = [name for name in cast("Mapping[str, Any]", value) if name not in kinds]
    if unknown:
        raise ParseError(f"{where}.{str(unknown[0])[:40]} is unknown", hint="read it with the version that wrote it")
    return kind(**arguments)


@functools.cache
def _kinds(kind: type) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind) if field.init}


def _wrong(value: object, expected: str, where: str, file: str | None = None) -> ParseError:
    if isinstance(value, (dict, list)):
        text = "a list" if isinstance(value, list) else "an object"
    elif value is None or isinstance(value, bool):
        text = {None: "null", True: "true", False: "false"}[value]
    elif isinstance(value, int) and value.bit_length() > 64:
        text = f"a number of {value.bit_length():,} bits"
    else:
        text = repr(value) if len(repr(value)) <= 60 else f"{repr(value)[:57]}…"
    return ParseError(f"{where} must be {expected}, not {text}", hint="copy the file again", file=file)
