"""Parsing of calls in Python source and of command-line flags, without executing anything."""

from __future__ import annotations

import ast
import re
import textwrap
import warnings
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshlab.base._errors import MeshError, ParseError
from meshlab.base._garbage import collector_paused
from meshlab.base._hints import Argument, Hint
from meshlab.mesh._axes import MAX_RANKS, short
from meshlab.mesh.interop._settings import WORLD_SETTING, SettingTable

_MAX_TEXT = 4_000_000

_WRAPPERS = {"array", "asarray", "tensor", "as_tensor", "list", "tuple"}

_COUNTERS = {"arange", "range"}

_SHAPERS = {"reshape", "view"}

_MAX_STEPS = 10_000


@dataclass(frozen=True)
class Devices:
    """Placeholder for ``jax.devices()``: ranks 0, 1, 2, …, in a shape that may contain a -1."""

    shape: tuple[int, ...] = (-1,)


Function = tuple[Sequence[str], Callable[..., Any]]
"""Parameters of a function that may appear in the arguments of a call, and the function that computes its value."""


@dataclass(frozen=True)
class ParsedCall:
    """A call in source code: the name of its function without the module, and the values of its arguments."""

    name: str
    arguments: Mapping[str, Any]


def find_call(
    text: str, signatures: Mapping[str, Sequence[str]], functions: Mapping[str, Function] | None = None
) -> ParsedCall:
    """Return the first call of one of the functions in Python source, with its arguments evaluated as literals."""
    # `signatures` has the names of positional arguments. With a last name `**`, all keywords are included.
    return find_calls(text, signatures, functions, most=1)[0]


def find_calls(
    text: str,
    signatures: Mapping[str, Sequence[str]],
    functions: Mapping[str, Function] | None = None,
    *,
    most: int | None = None,
) -> list[ParsedCall]:
    """Find all calls of the given functions, like `find_call`, in the order of the text."""
    tree = parse_source(text)
    calls = calls_in(tree, signatures)
    if not calls:
        raise ParseError(f"no call of {' or '.join(signatures)} found", text=text.strip())
    reader = _Evaluator(assignments_in(tree), functions or {})
    return [reader.call(node, signatures[called(node)]) for node in calls[:most]]


def parse_source(text: str) -> ast.Module:
    """Return the syntax tree of Python source, which may be indented, or raise a `ParseError`."""
    if len(text) > _MAX_TEXT:
        raise ParseError(f"the text has {len(text):,} characters", hint="paste only the call that creates the mesh")
    try:
        # Up to Python 3.11.7, a parser fails if the collector runs a finalizer that lets another thread parse
        # (https://github.com/python/cpython/issues/106905).
        with collector_paused(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as "invalid escape sequence" elsewhere in the script
            return ast.parse(textwrap.dedent(text).strip())
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        # The last two come from deeply nested input; ValueError comes from null bytes.
        line = getattr(error, "lineno", None)
        raise ParseError(
            f"not Python code ({type(error).__name__})",
            hint="paste only the call that creates the mesh",
            text=text.strip(),
            line=line,
        ) from None


def calls_in(tree: ast.AST, names: Container[str]) -> list[ast.Call]:
    """Return the calls of some functions, in the order of the source."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and called(node) in names]
    return sorted(calls, key=lambda node: (node.lineno, node.col_offset, -(node.end_lineno or 0)))


def assignments_in(tree: ast.AST) -> dict[str, ast.expr]:
    """Return the value of every name with a single assignment."""
    assigned: dict[str, list[ast.expr]] = {}
    for node in ast.walk(tree):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        value = getattr(node, "value", None) if isinstance(node, (ast.Assign, ast.AnnAssign)) else None
        for target in targets:
            if isinstance(target, ast.Name):
                assigned.setdefault(target.id, []).append(value or ast.Constant(...))
    return {name: values[0] for name, values in assigned.items() if len(values) == 1}


def called(node: ast.Call) -> str:
    """Return the name of the function of a call, without its module."""
    return _name(node.func)


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


class _Evaluator:
    """Evaluates literals, and the few calls around literals that are usual in the creation of meshes."""

    def __init__(self, names: Mapping[str, ast.expr], functions: Mapping[str, Function]) -> None:
        self._names = names
        self._functions = functions
        self._steps = 0
        self._open: set[str] = set()

    def call(self, node: ast.Call, signature: Sequence[str]) -> ParsedCall:
        """Return a call with its arguments."""
        open_ended = bool(signature) and signature[-1] == "**"
        positional = signature[:-1] if open_ended else signature
        expressions = dict(zip(positional, node.args, strict=False))
        expressions |= {item.arg: item.value for item in node.keywords if item.arg and item.arg in signature}
        arguments = {name: self.value(expression) for name, expression in expressions.items()}
        for item in node.keywords if open_ended else ():
            if item.arg and item.arg not in arguments:
                try:
                    arguments[item.arg] = self.value(item.value)
                except ParseError as error:
                    arguments[item.arg] = error.message.partition(" is not a literal")[0]
        return ParsedCall(called(node), arguments)

    def value(self, node: ast.expr) -> Any:
        """Return the value of an expression, or raise a `ParseError`."""
        self._steps += 1
        if self._steps > _MAX_STEPS:
            raise ParseError("the arguments are too long", hint="write numbers instead of names")
        try:
            return ast.literal_eval(node)
        except (ValueError, TypeError, RecursionError, MemoryError):
            pass
        if isinstance(node, ast.Name) and node.id in self._names and node.id not in self._open:
            self._open.add(node.id)  # a name may be assigned to itself
            try:
                return self.value(self._names[node.id])
            finally:
                self._open.remove(node.id)
        if isinstance(node, (ast.Tuple, ast.List)):
            return [self.value(item) for item in node.elts]
        if isinstance(node, ast.BinOp):
            computed = self._computed(node)
            if computed is not None:
                return computed
        if isinstance(node, ast.Call):
            return self._called(node)
        if isinstance(node, ast.Subscript) and not isinstance(node.slice, ast.Slice):
            rows = self.value(node.value)
            if isinstance(rows, Devices):  # jax.devices()[[0, 1, 3, 2]]: the index lists the ranks
                return self.value(node.slice)
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
            rows = self.value(node.value)
            bounds = [
                None if end is None else _limited(self.value(end)) for end in (node.slice.lower, node.slice.upper)
            ]
            if isinstance(rows, Devices) and bounds[1] is not None and node.slice.step is None:
                return list(range(bounds[0] or 0, bounds[1]))
        raise self._not_a_literal(node)

    def _not_a_literal(self, node: ast.expr) -> ParseError:
        written = short(ast.unparse(node))[1:-1]
        return ParseError(f"{written} is not a literal", hint="replace it with the number or list itself")

    def _computed(self, node: ast.BinOp) -> int | None:
        left, right = self.value(node.left), self.value(node.right)
        # A negative number may be a size that is filled later, with which nothing can be computed.
        if type(left) is not int or type(right) is not int or min(left, right) < 0 or max(left, right) > MAX_RANKS:
            return None
        if isinstance(node.op, ast.Mult):
            return left * right
        if isinstance(node.op, (ast.FloorDiv, ast.Div)) and right and left % right == 0:
            return left // right
        if isinstance(node.op, ast.Add):
            return left + right
        return left - right if isinstance(node.op, ast.Sub) else None

    def _called(self, node: ast.Call) -> Any:
        name = called(node)
        if name in self._functions:
            signature, function = self._functions[name]
            return function(**self.call(node, signature).arguments)
        if name == "devices" and not node.args:
            return Devices()
        if name in _WRAPPERS and node.args:
            return self.value(node.args[0])
        if name in _COUNTERS:
            return list(range(*(_limited(self.value(argument)) for argument in node.args)))
        if name in _SHAPERS and isinstance(node.func, ast.Attribute):
            shape = [self.value(argument) for argument in node.args]
            # np.reshape(array, shape) has the array as its first argument, and array.reshape(shape) before the dot.
            if isinstance(node.func.value, ast.Name) and node.func.value.id in ("np", "numpy", "jnp", "torch"):
                return _reshaped(shape[0] if shape else [], shape[1:])
            return _reshaped(self.value(node.func.value), shape)
        raise self._not_a_literal(node)


def _limited(number: Any) -> int:
    """Return a number of ranks, so that hostile text cannot allocate an endless range."""
    if isinstance(number, bool) or not isinstance(number, int) or abs(number) > MAX_RANKS:
        raise ParseError(f"{short(number)} is not a valid number of ranks", hint=f"use an integer up to {MAX_RANKS:,}")
    return number


def _reshaped(value: Any, shape: Sequence[Any]) -> Any:
    sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
    sizes = [_limited(size) for size in sizes]
    if isinstance(value, Devices):
        return Devices(tuple(sizes))
    try:
        return np.asarray(value).reshape(sizes).tolist()
    except (ValueError, TypeError):
        raise ParseError(f"cannot reshape {short(value)} to {tuple(sizes)}", hint="correct the shape") from None


_NUMBER = re.compile(r"-?[0-9]{1,12}")

_COMMENT = re.compile(r"^[ \t]*#.*$", re.MULTILINE)

_CONTINUATION = re.compile(r"\\[ \t]*\r?\n")

# NAME=8, export NAME="8" and NAME=${NAME:-8}, at the beginning of a line or after a semicolon
_ASSIGNMENT = re.compile(
    r"(?:^|;)[ \t]*(?:export[ \t]+|local[ \t]+|readonly[ \t]+)?(?P<name>[A-Za-z_]\w*)="
    r"[\"']?(?:\$\{\w+:?-(?P<default>[^}\s\"']*)\}|(?P<value>[^\s;\"'$()`\\]+))[\"']?[ \t]*(?=$|;|#)",
    re.MULTILINE,
)

_VARIABLE = re.compile(r"\$\{(?P<braced>\w+)(?::?-(?P<default>[^}\s]{0,200}))?\}|\$(?P<plain>[A-Za-z_]\w*)")


def without_comments(text: str) -> str:
    """Return the text of a script without lines that are comments, and with continued lines joined."""
    return _CONTINUATION.sub(" ", _COMMENT.sub("", text))


def with_variables(text: str) -> str:
    """Return the text of a shell script with the values of variables that it sets itself, each to a single value."""
    if "$" not in text:
        return text
    values: dict[str, set[str]] = {}
    for match in _ASSIGNMENT.finditer(text):
        values.setdefault(match["name"], set()).add(match["value"] or match["default"] or "")

    def value(match: re.Match[str]) -> str:
        choices = values.get(match["braced"] or match["plain"], set())
        if len(choices) == 1:
            return next(iter(choices))
        return match["default"] if not choices and match["default"] else match[0]

    return _VARIABLE.sub(value, text)


def read_flags(text: str) -> dict[str, str]:
    """Return the values of a command line by flag, without leading dashes and with dashes for underscores."""
    # The value of a switch is empty. The last occurrence of a flag wins.
    return {name: values[-1] for name, values in all_flags(text).items()}


def all_flags(text: str) -> dict[str, list[str]]:
    """Split a command line into flags, with the values of all their occurrences."""
    words = with_variables(without_comments(text)).split()
    tokens = [token for token in (word.strip("\"',[]()\\;`") for word in words) if token]
    flags: dict[str, list[str]] = {}
    for index, token in enumerate(tokens):
        if not token.startswith("-") or _NUMBER.fullmatch(token):
            continue
        name, equals, value = token.lstrip("-").partition("=")
        following = tokens[index + 1] if index + 1 < len(tokens) else "-"
        # A negative number is a value, not a flag: --parallelism.data_parallel_shard_degree -1
        if not equals and (not following.startswith("-") or _NUMBER.fullmatch(following)):
            value = following
        # The keys of a YAML file of Megatron's tests end with a colon: "--tensor-model-parallel-size: 8"
        flags.setdefault(name.rstrip(":").replace("_", "-"), []).append(value.strip("\"'"))
    return flags


def read_settings(text: str, table: SettingTable) -> dict[str, Any]:
    """Return the settings about parallelism in a command line, or raise a `ParseError` if none has a size."""
    flags = all_flags(text)
    selected = table.select({name: values[-1] for name, values in flags.items()})
    table.require_some(selected, text)
    for name, values in flags.items():
        plain = table.aliases.get(name, name)
        if plain in table.sizes and len(set(values)) > 1:
            raise ParseError(
                f"{table.written(plain)} has the values {' and '.join(dict.fromkeys(values))}",
                hint="paste one command, with one value per flag",
            )
    started = _started_ranks(flags)
    return selected if started is None else {**selected, WORLD_SETTING: started}


def _started_ranks(flags: Mapping[str, Sequence[str]]) -> int | None:
    """Return the number of processes that torchrun or the launcher of DeepSpeed starts, if the text contains it."""
    for nodes, per_node in (("nnodes", "nproc-per-node"), ("num-nodes", "num-gpus")):
        counts = [set(flags.get(name, ())) for name in (nodes, per_node)]
        if all(len(values) == 1 and _NUMBER.fullmatch(next(iter(values))) for values in counts):
            return int(counts[0].pop()) * int(counts[1].pop())
    return None


def require_world_size(world_size: int | None, framework: str) -> int:
    """Return the world size, or raise a `MeshError` if it is missing."""
    if world_size is None:
        raise MeshError(
            f"{framework}'s flags do not contain the number of ranks", hint=Hint("pass {}", Argument("world_size"))
        )
    return world_size
