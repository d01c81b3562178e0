"""Parsing of calls in Python source and of command-line flags, without executing anything."""

from __future__ import annotations

import ast
import itertools
import math
import re
import textwrap
import warnings
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshlab.base._errors import MeshError, ParseError
from meshlab.base._garbage import collector_paused
from meshlab.base._hints import Argument, Hint
from meshlab.mesh._axes import MAX_AXES, MAX_RANKS, short
from meshlab.mesh.interop._settings import UNNAMED, WORLD_SETTING, SettingTable

_MAX_TEXT = 4_000_000

_WRAPPERS = {"array", "asarray", "tensor", "as_tensor", "list", "tuple"}

_COUNTERS = {"arange", "range"}

_FOLDS: Mapping[str, Callable[[list[int]], int]] = {
    "int": lambda numbers: numbers[0],
    "max": max,
    "min": min,
    "prod": math.prod,
}

_IRRELEVANT = ("device_type",)  # arguments that do not affect the ranks and are often variables

_WORLD = re.compile(r"(?:os\.)?(?:environ\[|environ\.get\(|getenv\()'WORLD_SIZE'.*", re.DOTALL)

_SHAPERS = {"reshape", "view"}

_MOVERS = {"permute", "transpose", "t"}

_MAX_STEPS = 10_000

_LONGEST_NAME = 8

_PROMPT = re.compile(r"^[ \t]*(?:>>>|\.\.\.)[ ]?", re.MULTILINE)

_FENCED = re.compile(r"^[ \t]*```[^\n]*\n(?P<code>.*?)^[ \t]*```", re.MULTILINE | re.DOTALL)

_MOST_FRAGMENTS = 50

_MOST_VALUES = 100  # of one name, to be compared


@dataclass(frozen=True)
class WorldSize:
    """Placeholder for the number of ranks, divided by a number, in code that reads it when it runs."""

    divisor: int = 1

    def of(self, world_size: int | None) -> int:
        """Return the size for a number of ranks, or -1, which stands for all remaining ranks."""
        return -1 if world_size is None else world_size // self.divisor


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
    tree = parse_code(text, signatures)
    calls = calls_in(tree, signatures)
    if not calls:
        raise ParseError(f"no call of {' or '.join(signatures)} found", text=text.strip())
    reader = Evaluator(assignments_in(tree), functions or {})
    return [reader.call(node, signatures[called(node)]) for node in calls[:most]]


def parse_code(text: str, names: Container[str]) -> ast.Module:
    """Return the syntax tree of a text with calls of some functions: of all of it, of its code blocks, or of the calls.

    A text that contains anything else than code, such as a report in Markdown, is read as far as it is code.
    """
    try:
        return parse_source(text)
    except ParseError as error:
        failure = error
    for part in (*(match["code"] for match in _FENCED.finditer(text)), _PROMPT.sub("", text)):
        try:
            tree = parse_source(part)
        except ParseError:
            continue
        if calls_in(tree, names):
            return tree
    tree = ast.Module([], [])
    for fragment in itertools.islice(_fragments(text, names), _MOST_FRAGMENTS):
        try:
            tree.body += parse_source(fragment).body
        except ParseError:
            continue
    if not tree.body:
        raise failure
    return tree


def _fragments(text: str, names: Container[str]) -> Iterator[str]:
    """Return the calls of some functions in any text, each up to its last parenthesis."""
    for match in re.finditer(r"\b([A-Za-z_]\w{0,60})\s*\(", text):
        depth = 0
        for index in range(match.end() - 1, min(len(text), match.end() + 4_000)) if match[1] in names else ():
            depth += (text[index] in "([{") - (text[index] in ")]}")
            if not depth:
                call = text[match.start() : index + 1]
                if "=" in call or call.count('"') + call.count("'") >= 4:  # with names, and not only mentioned
                    yield call
                break


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
    """Return the value of every name and attribute with a single value, and of parameters with one."""
    assigned: dict[str, list[ast.expr | None]] = {}

    def assign(target: ast.expr | None, value: ast.expr | None) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            values: Sequence[ast.expr | None] = [None] * len(target.elts)
            if isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(target.elts):
                values = value.elts
            for part, item in zip(target.elts, values, strict=True):
                assign(part, item)
            return
        name = "" if target is None else dotted(target)
        if name and (value is None or dotted(value) != name):
            assigned.setdefault(name, []).append(value)

    nodes = list(ast.walk(tree))
    calls: dict[str, list[ast.Call]] = {}
    for node in nodes:
        if isinstance(node, ast.Call):
            calls.setdefault(called(node), []).append(node)
    for node in nodes:
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if not isinstance(node, ast.AnnAssign) or node.value is not None:
                    assign(target, node.value)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for name, values in _parameters(node, calls.get(node.name, [])).items():
                for value in values:
                    assign(ast.Name(name), value)
        else:
            assign(getattr(node, "target", None), None)
    return {name: values[0] for name, values in assigned.items() if values[0] is not None and _all_equal(values)}


def _all_equal(values: Sequence[ast.expr | None]) -> bool:
    """Return whether several expressions have the same source."""
    try:
        return len(values) == 1 or (
            len(values) <= _MOST_VALUES
            and None not in values
            and len({ast.dump(value) for value in values if value}) == 1
        )
    except RecursionError:
        return False


def _parameters(
    function: ast.FunctionDef | ast.AsyncFunctionDef, calls: Sequence[ast.Call]
) -> dict[str, list[ast.expr | None]]:
    """Return the values of the parameters of a function: those of its calls, or else the defaults, or None."""
    arguments = function.args
    positional = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
    first = 1 if positional[:1] in (["self"], ["cls"]) else 0
    defaults = dict(zip(positional[::-1], arguments.defaults[::-1], strict=False))
    keywords = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    defaults |= {argument.arg: default for argument, default in keywords if default is not None}
    values: dict[str, list[ast.expr | None]] = {
        name: [] for name in (*positional, *(a.arg for a in arguments.kwonlyargs))
    }
    for call in calls:
        passed = defaults | dict(zip(positional[first:], call.args, strict=False))
        passed |= {item.arg: item.value for item in call.keywords if item.arg in values}
        for name, value in passed.items():
            values[name].append(value)
    return values if calls else {name: [defaults.get(name)] for name in values}


def dotted(node: ast.expr) -> str:
    """Return a name, or attributes of a name such as ``self.tp``, as text; an empty string for anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute) and len(parts) < _LONGEST_NAME:
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def called(node: ast.Call) -> str:
    """Return the name of the function of a call, without its module."""
    return _name(node.func)


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


class Evaluator:
    """Evaluates literals, and the few operations on them that are usual in the creation of meshes."""

    def __init__(
        self, names: Mapping[str, ast.expr], functions: Mapping[str, Function], *, counts_ranks: bool = False
    ) -> None:
        self._names = names
        self._counts_ranks = counts_ranks  # whether the number of ranks is a value, a `WorldSize`
        self._functions = functions
        self._steps = 0
        self._open: set[str] = set()

    def call(self, node: ast.Call, signature: Sequence[str]) -> ParsedCall:
        """Return a call with its arguments."""
        open_ended = bool(signature) and signature[-1] == "**"
        positional = signature[:-1] if open_ended else signature
        expressions = dict(zip(positional, node.args, strict=False))
        expressions |= {item.arg: item.value for item in node.keywords if item.arg and item.arg in signature}
        arguments = {
            name: self.source_or_value(expression) if name in _IRRELEVANT else self.value(expression)
            for name, expression in expressions.items()
        }
        for item in node.keywords if open_ended else ():
            if item.arg and item.arg not in arguments:
                value = self.source_or_value(item.value)
                if item.arg != "world_size" or isinstance(value, int):  # otherwise it is known when the code runs
                    arguments[item.arg] = value
        return ParsedCall(called(node), arguments)

    def source_or_value(self, node: ast.expr) -> Any:
        """Return the value of an expression, or its source if it is not a literal."""
        try:
            return self.value(node)
        except ParseError:
            return _source(node)

    def value(self, node: ast.expr) -> Any:
        """Return the value of an expression, or raise a `ParseError`."""
        self._steps += 1
        if self._steps > _MAX_STEPS:
            raise ParseError("the arguments are too long", hint="write numbers instead of names")
        try:
            return ast.literal_eval(node)
        except (ValueError, TypeError, RecursionError, MemoryError):
            pass
        name = dotted(node)
        if name in self._names and name not in self._open:
            self._open.add(name)  # a name may be assigned to itself
            try:
                return self.value(self._names[name])
            finally:
                self._open.remove(name)
        if self._counts_ranks and (name.rpartition(".")[2].lower() == "world_size" or _is_world_size(node)):
            return WorldSize()
        if isinstance(node, (ast.Tuple, ast.List)):
            return [self.value(item) for item in node.elts]
        if isinstance(node, ast.Dict):
            names = [self.value(key) for key in node.keys if isinstance(key, ast.Constant)]
            if len(names) == len(node.values):
                return dict(zip(names, map(self.value, node.values), strict=True))
        if isinstance(node, ast.BinOp):
            computed = self._computed(node)
            if computed is not None:
                return computed
        if isinstance(node, ast.Call):
            return self._called(node)
        if isinstance(node, ast.Attribute) and node.attr == "T":
            return _moved(self.value(node.value), "T", [])
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
        return ParseError(f"{_source(node)} is not a literal", hint="replace it with the number or list itself")

    def _computed(self, node: ast.BinOp) -> int | WorldSize | list[Any] | None:
        left, right = self.value(node.left), self.value(node.right)
        if isinstance(left, WorldSize) and type(right) is int and isinstance(node.op, (ast.FloorDiv, ast.Div)):
            return WorldSize(left.divisor * _limited(right)) if right > 0 else None
        if isinstance(left, (tuple, list)) and isinstance(right, (tuple, list)) and isinstance(node.op, ast.Add):
            return [*left, *right] if len(left) + len(right) <= MAX_AXES else None
        # A negative number may be a size that is filled later, with which nothing can be computed.
        if type(left) is not int or type(right) is not int or min(left, right) < 0 or max(left, right) > MAX_RANKS:
            return None
        if isinstance(node.op, ast.Mult):
            return left * right
        if isinstance(node.op, (ast.FloorDiv, ast.Div)) and right and left % right == 0:
            return left // right
        if isinstance(node.op, ast.Add):
            return left + right
        if isinstance(node.op, ast.Mod):
            return left % right if right else None
        if isinstance(node.op, ast.Pow):
            return left**right if right <= 24 and left**right <= MAX_RANKS else None
        return left - right if isinstance(node.op, ast.Sub) else None

    def _called(self, node: ast.Call) -> Any:
        name = called(node)
        if name in self._functions:
            signature, function = self._functions[name]
            return function(**self.call(node, signature).arguments)
        if name == "devices" and not node.args:
            return Devices()
        if (name in _FOLDS or name == "len") and node.args and not node.keywords:
            return self._folded(name, [self.value(argument) for argument in node.args])
        if name in ("keys", "values") and isinstance(node.func, ast.Attribute) and not node.args:
            table = self.value(node.func.value)
            if isinstance(table, dict):
                return list(table.keys() if name == "keys" else table.values())
        if name in _WRAPPERS and node.args:
            return self.value(node.args[0])
        if name in _COUNTERS and [self.value(argument) for argument in node.args] == [WorldSize()]:
            return Devices()
        if name in _COUNTERS:
            return list(range(*(_limited(self.value(argument)) for argument in node.args)))
        if name in _MOVERS and isinstance(node.func, ast.Attribute):
            return _moved(self.value(node.func.value), name, [self.value(argument) for argument in node.args])
        if name in _SHAPERS and isinstance(node.func, ast.Attribute):
            shape = [self.value(argument) for argument in node.args]
            # np.reshape(array, shape) has the array as its first argument, and array.reshape(shape) before the dot.
            if isinstance(node.func.value, ast.Name) and node.func.value.id in ("np", "numpy", "jnp", "torch"):
                return _reshaped(shape[0] if shape else [], shape[1:])
            return _reshaped(self.value(node.func.value), shape)
        raise self._not_a_literal(node)

    def _folded(self, name: str, values: list[Any]) -> int | WorldSize:
        """Return an integer computed from others by a function of Python or math."""
        numbers = values[0] if len(values) == 1 and isinstance(values[0], (tuple, list)) else values
        if name == "len" and numbers is values[0]:
            return len(numbers)
        if name == "int" and isinstance(numbers[0], WorldSize):
            return numbers[0]
        if not 1 <= len(numbers) <= MAX_AXES:
            raise ParseError(f"{name}() of {len(numbers)} values is not a size", hint="write the number itself")
        if name not in _FOLDS:
            raise ParseError(f"{name}({short(values[0])}) is not a size", hint="write the number itself")
        return _limited(_FOLDS[name]([_limited(number) for number in numbers]))


def _is_world_size(node: ast.expr) -> bool:
    """Return whether an expression reads the number of ranks from torch or from the environment."""
    if isinstance(node, ast.Call) and called(node) == "get_world_size":
        return True
    return isinstance(node, (ast.Subscript, ast.Call)) and _WORLD.fullmatch(_source(node)) is not None


def _source(node: ast.expr) -> str:
    """Return an expression as short source."""
    try:
        return short(ast.unparse(node))[1:-1]
    except RecursionError:
        return "an expression"


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


def _moved(value: Any, name: str, axes: Sequence[Any]) -> Any:
    """Return nested lists with their axes in another order."""
    order = axes[0] if len(axes) == 1 and isinstance(axes[0], (tuple, list)) else axes
    try:
        array = np.asarray(value)
        swaps = name == "transpose" and len(order) == 2  # two axes of torch, or all axes of numpy
        return (np.swapaxes(array, *order) if swaps else array.transpose(*order)).tolist()
    except (ValueError, TypeError):
        raise ParseError(f"cannot order the axes of {short(value)} as {tuple(axes)}", hint="write the ranks") from None


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
    if table.order and table.framework.lower() not in text.lower() and _PROGRAM.search(text):
        selected[UNNAMED] = True
    started = started_ranks(text, flags)
    return selected if started is None else {**selected, WORLD_SETTING: started}


_PROGRAM = re.compile(r"\w\.py\b")


_LAUNCHERS = (
    ("nnodes", "nproc-per-node"),
    ("num-nodes", "num-gpus"),
    ("actor-num-nodes", "actor-num-gpus-per-node"),  # Ray, with which slime and OpenRLHF start the actor
    ("actor.num-nodes", "actor.num-gpus-per-node"),
)

_TORCHRUN = re.compile(r"\btorchrun\b|\btorch\.distributed\.(?:run|launch)\b")


def started_ranks(text: str, flags: Mapping[str, Sequence[str]]) -> int | None:
    """Return the number of processes that torchrun, DeepSpeed or Ray starts, if the text contains it."""
    for nodes, per_node in _LAUNCHERS:
        counts = [set(flags.get(name, ())) for name in (nodes, per_node)]
        if nodes == "nnodes" and nodes not in flags and _TORCHRUN.search(text):
            counts[0] = {"1"}  # the default of torchrun
        if all(len(values) == 1 and _NUMBER.fullmatch(next(iter(values))) for values in counts):
            return int(counts[0].pop()) * int(counts[1].pop())
    # LLaMA-Factory and ms-swift start torchrun with these variables, on a single node by default.
    processes = _PROCESSES.search(text) if _BY_VARIABLES.search(text) else None
    hosts = _NODES.search(text)
    return None if processes is None else int(processes["count"]) * (1 if hosts is None else int(hosts["count"]))


_BY_VARIABLES = re.compile(r"\bllamafactory-cli\b|\b(?:swift|megatron)[ \t]+(?:sft|pt|rlhf|train)\b")

_PROCESSES = re.compile(r"\bNPROC_PER_NODE=(?P<count>[0-9]{1,6})\b")

_NODES = re.compile(r"\bNNODES=(?P<count>[0-9]{1,6})\b")


def require_world_size(world_size: int | None, framework: str) -> int:
    """Return the world size, or raise a `MeshError` if it is missing."""
    if world_size is None:
        raise MeshError(
            f"{framework}'s flags do not contain the number of ranks", hint=Hint("pass {}", Argument("world_size"))
        )
    return world_size
