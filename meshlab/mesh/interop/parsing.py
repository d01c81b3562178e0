"""Reading calls out of Python text without running any of it."""

from __future__ import annotations

import ast
import math
import re
import textwrap
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshlab.errors import MeshError, ParseError
from meshlab.mesh.axes import LARGEST_WORLD, short

__all__ = ["ParsedCall", "find_call", "read_flags", "read_sizes"]


_LONGEST_TEXT = 4_000_000

_WRAPPERS = {"array", "asarray", "tensor", "as_tensor", "list", "tuple"}

_COUNTERS = {"arange", "range"}

_SHAPERS = {"reshape", "view"}


class _Devices:
    """Stands for ``jax.devices()``: as many ranks as the shape asks for, in order."""


@dataclass(frozen=True)
class ParsedCall:
    """A call that was found in a text.

    Parameters
    ----------
    name : str
        The function's or class's name, without its module.
    arguments : mapping of str to object
        The arguments that were asked for, by name.
    """

    name: str
    arguments: Mapping[str, Any]


def find_call(text: str, signatures: Mapping[str, Sequence[str]]) -> ParsedCall:
    """Find the first call of one of the given functions and read its arguments as plain values.

    Parameters
    ----------
    text : str
        Python source, such as a line out of a script.
    signatures : mapping of str to sequence of str
        For every function the names of its positional arguments. Other arguments are left out, whatever they are.

    Raises
    ------
    ParseError
        If the text is not Python, there is no such call, or an argument is not a plain value.

    Examples
    --------
    >>> call = find_call("mesh = f((2, 4), names=('dp', 'tp'))", {"f": ["shape", "names"]})
    >>> call.name, call.arguments
    ('f', {'shape': (2, 4), 'names': ('dp', 'tp')})
    """
    if len(text) > _LONGEST_TEXT:
        raise ParseError(f"the text is {len(text):,} characters long; paste only the call that makes the mesh")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what is odd in someone's script is no news to the reader
            tree = ast.parse(textwrap.dedent(text).strip())
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        raise ParseError(
            f"this is not Python code ({type(error).__name__}); paste only the call that makes the mesh",
            text=text.strip(),
            line=line,
        ) from None
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _name(node.func) in signatures:
            name = _name(node.func)
            given = dict(zip(signatures[name], node.args, strict=False))
            given |= {item.arg: item.value for item in node.keywords if item.arg and item.arg in signatures[name]}
            return ParsedCall(name, {argument: _value(value) for argument, value in given.items()})
    raise ParseError(f"no call of {' or '.join(signatures)} was found", text=text.strip())


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _value(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError, MemoryError):
        pass
    if isinstance(node, ast.Call):
        name = _name(node.func)
        if name == "devices" and not node.args:
            return _Devices()
        if name in _WRAPPERS and node.args:
            return _value(node.args[0])
        if name in _COUNTERS:
            return list(range(*(_limited(_value(argument)) for argument in node.args)))
        if name in _SHAPERS and isinstance(node.func, ast.Attribute):
            return _reshaped(_value(node.func.value), [_value(argument) for argument in node.args])
    if isinstance(node, ast.Subscript):
        rows, index = _value(node.value), _value(node.slice)
        if isinstance(rows, _Devices):
            return index
    written = short(ast.unparse(node))[1:-1]
    raise ParseError(f"{written} is not a plain value; put the number or the list itself in its place")


def _limited(number: Any) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or abs(number) > LARGEST_WORLD:
        raise ParseError(f"{short(number)} is not a number of ranks; it lies between 1 and {LARGEST_WORLD:,}")
    return number


def _reshaped(value: Any, shape: Sequence[Any]) -> Any:
    sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
    sizes = [_limited(size) for size in sizes]
    if isinstance(value, _Devices):
        if min(sizes, default=0) < 1 or math.prod(sizes) > LARGEST_WORLD:
            raise ParseError(f"the shape {tuple(sizes)} does not say how many devices there are; write every size")
        value = range(math.prod(sizes))
    try:
        return np.asarray(value).reshape(sizes).tolist()
    except (ValueError, TypeError):
        raise ParseError(f"{short(value)} does not fit the shape {tuple(sizes)}") from None


_NUMBER = re.compile(r"-?[0-9]{1,12}")


def read_flags(text: str) -> dict[str, str]:
    """Split a command line into flags and values.

    Parameters
    ----------
    text : str
        A command line, a part of a shell script, or a list of arguments as it stands in Python or YAML.

    Returns
    -------
    dict of str to str
        By name without dashes in front, underscores written as dashes; the value is empty for a switch. Where a flag
        stands twice, the last counts.

    Examples
    --------
    >>> read_flags("serve --tensor-parallel-size 8 -pp=2 --enable_expert_parallel")
    {'tensor-parallel-size': '8', 'pp': '2', 'enable-expert-parallel': ''}
    """
    tokens = [token.strip("\"',[]()\\") for token in text.split()]
    tokens = [token for token in tokens if token]
    flags: dict[str, str] = {}
    for index, token in enumerate(tokens):
        if not token.startswith("-") or _NUMBER.fullmatch(token):
            continue
        name, equals, value = token.lstrip("-").partition("=")
        following = tokens[index + 1] if index + 1 < len(tokens) else "-"
        if not equals and (not following.startswith("-") or _NUMBER.fullmatch(following)):
            value = following
        flags[name.replace("_", "-")] = value.strip("\"'")
    return flags


def read_sizes(flags: Mapping[str, str], names: Mapping[str, str]) -> dict[str, int]:
    """Pick the flags that give the size of an axis.

    Parameters
    ----------
    flags : mapping of str to str
        From `read_flags`.
    names : mapping of str to str
        The axis that each flag gives.

    Returns
    -------
    dict of str to int
        By axis; axes without a flag are left out.

    Raises
    ------
    ParseError
        If a value is not a whole number.
    """
    sizes = {}
    for flag, axis in names.items():
        if flag in flags:
            if _NUMBER.fullmatch(flags[flag]) is None:
                raise ParseError(
                    f"the flag {flag} has the value {short(flags[flag])}; write the number itself, such as {flag} 8"
                )
            sizes[axis] = int(flags[flag])
    return sizes


def require_world_size(world_size: int | None, framework: str) -> int:
    """The world size, or a `MeshError` that asks for it."""
    if world_size is None:
        raise MeshError(f"{framework} does not say how many ranks there are; give world_size=")
    return world_size
