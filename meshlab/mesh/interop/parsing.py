"""Parsing of calls in Python source and of command-line flags, without executing anything."""

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
from meshlab.mesh.axes import MAX_RANKS, short

__all__ = ["ParsedCall", "dashed", "find_call", "read_flags", "read_sizes", "require_world_size"]


_MAX_TEXT = 4_000_000

_WRAPPERS = {"array", "asarray", "tensor", "as_tensor", "list", "tuple"}

_COUNTERS = {"arange", "range"}

_SHAPERS = {"reshape", "view"}


class _Devices:
    """Placeholder for ``jax.devices()``: ranks 0, 1, 2, …, one for each element of the shape."""


@dataclass(frozen=True)
class ParsedCall:
    """A call found in source code.

    Parameters
    ----------
    name : str
        Name of the function or class, without its module.
    arguments : mapping of str to object
        Values of the requested arguments by name.
    """

    name: str
    arguments: Mapping[str, Any]


def find_call(text: str, signatures: Mapping[str, Sequence[str]]) -> ParsedCall:
    """Find the first call of one of the given functions and evaluate its arguments as literals.

    Parameters
    ----------
    text : str
        Python source, such as a line of a script.
    signatures : mapping of str to sequence of str
        Names of the positional arguments of every function. Other arguments are ignored.

    Raises
    ------
    ParseError
        If the text is not Python, contains no such call, or an argument is not a literal.

    Examples
    --------
    >>> call = find_call("mesh = f((2, 4), names=('dp', 'tp'))", {"f": ["shape", "names"]})
    >>> call.name, call.arguments
    ('f', {'shape': (2, 4), 'names': ('dp', 'tp')})
    """
    if len(text) > _MAX_TEXT:
        raise ParseError(f"the text has {len(text):,} characters", hint="paste only the call that creates the mesh")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as "invalid escape sequence" elsewhere in the script
            tree = ast.parse(textwrap.dedent(text).strip())
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        # The last two come from deeply nested input; ValueError comes from null bytes.
        line = getattr(error, "lineno", None)
        raise ParseError(
            f"not Python code ({type(error).__name__})",
            hint="paste only the call that creates the mesh",
            text=text.strip(),
            line=line,
        ) from None
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _name(node.func) in signatures:
            name = _name(node.func)
            given = dict(zip(signatures[name], node.args, strict=False))
            given |= {item.arg: item.value for item in node.keywords if item.arg and item.arg in signatures[name]}
            return ParsedCall(name, {argument: _value(value) for argument, value in given.items()})
    raise ParseError(f"no call of {' or '.join(signatures)} found", text=text.strip())


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _value(node: ast.expr) -> Any:
    """Evaluate a literal, or one of the few calls around literals that are usual in the creation of meshes."""
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
        if isinstance(rows, _Devices):  # jax.devices()[[0, 1, 3, 2]]: the index lists the ranks
            return index
    written = short(ast.unparse(node))[1:-1]
    raise ParseError(f"{written} is not a literal", hint="replace it with the number or list itself")


def _limited(number: Any) -> int:
    """Return a number of ranks, so that hostile text cannot allocate an endless range."""
    if isinstance(number, bool) or not isinstance(number, int) or abs(number) > MAX_RANKS:
        raise ParseError(f"{short(number)} is not a valid number of ranks", hint=f"use an integer up to {MAX_RANKS:,}")
    return number


def _reshaped(value: Any, shape: Sequence[Any]) -> Any:
    sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
    sizes = [_limited(size) for size in sizes]
    if isinstance(value, _Devices):
        if min(sizes, default=0) < 1 or math.prod(sizes) > MAX_RANKS:
            raise ParseError(f"shape {tuple(sizes)} does not determine the number of devices", hint="write every size")
        value = range(math.prod(sizes))
    try:
        return np.asarray(value).reshape(sizes).tolist()
    except (ValueError, TypeError):
        raise ParseError(f"cannot reshape {short(value)} to {tuple(sizes)}", hint="correct the shape") from None


_NUMBER = re.compile(r"-?[0-9]{1,12}")


def read_flags(text: str) -> dict[str, str]:
    """Split a command line into flags and values.

    Parameters
    ----------
    text : str
        A command line, a part of a shell script, or a list of arguments as written in Python or YAML.

    Returns
    -------
    dict of str to str
        Values by flag, without leading dashes and with dashes for underscores. The value of a switch is empty. The
        last occurrence of a flag wins.

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
        # A negative number is a value, not a flag: --parallelism.data_parallel_shard_degree -1
        if not equals and (not following.startswith("-") or _NUMBER.fullmatch(following)):
            value = following
        flags[name.replace("_", "-")] = value.strip("\"'")
    return flags


def dashed(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments with dashes for underscores, because argparse and configs use underscores.

    Examples
    --------
    >>> dashed({"tensor_parallel_size": 8})
    {'tensor-parallel-size': 8}
    """
    return {name.replace("_", "-"): value for name, value in arguments.items()}


def read_sizes(flags: Mapping[str, str], names: Mapping[str, str]) -> dict[str, int]:
    """Return the axis sizes in flags.

    Parameters
    ----------
    flags : mapping of str to str
        Flags from `read_flags`.
    names : mapping of str to str
        Axis name of each flag.

    Returns
    -------
    dict of str to int
        Size by axis, for the axes that have a flag.

    Raises
    ------
    ParseError
        If a value is not an integer.
    """
    sizes = {}
    for flag, axis in names.items():
        if flag in flags:
            if _NUMBER.fullmatch(flags[flag]) is None:
                raise ParseError(
                    f"flag {flag} has the value {short(flags[flag])}", hint=f"write a number, such as {flag} 8"
                )
            sizes[axis] = int(flags[flag])
    return sizes


def require_world_size(world_size: int | None, framework: str) -> int:
    """Return the world size, or raise a `MeshError` if it is missing."""
    if world_size is None:
        raise MeshError(f"{framework}'s flags do not contain the number of ranks", hint="pass world_size=")
    return world_size
