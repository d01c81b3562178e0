"""Configs as text: TOML, YAML, JSON and the overrides of Hydra, as one mapping of dotted keys to plain values."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from typing import Any

from meshlab.base._documents import LimitError, parse_json, parse_toml, parse_yaml
from meshlab.base._errors import ParseError
from meshlab.mesh._axes import short
from meshlab.mesh.interop._parsing import (
    Evaluator,
    assignments_in,
    called,
    dotted,
    parse_source,
    with_variables,
    without_comments,
)

Config = Mapping[str, Any]
"""Values of a config by dotted key, such as ``parallelism.tensor_parallel_degree``."""

STARTED = "torchrun.ranks"
"""Key for the number of ranks that torchrun starts, in the config of a command with overrides."""

_MAX_TEXT = 2_000_000

_MAX_KEYS = 100_000  # YAML's aliases let a short text describe an endless tree

_SECTION = re.compile(r"^[ \t]*\[\[?[\w.\"' -]+\]\]?[ \t]*(?:#.*)?$", re.MULTILINE)

_ASSIGNED = re.compile(r"^[ \t]*[\w.\"-]+[ \t]*=[ \t]*\S", re.MULTILINE)

_KEY = re.compile(r"^[ \t]*(?:- )?[\"']?[\w./-]+[\"']?[ \t]*:(?:[ \t]|$)", re.MULTILINE)

_LIKE_PYTHON = re.compile(
    r"^[ \t]*(?:def|class|import|from|return|with)\b|\w\(|=[ \t]*(?:(?:None|True|False)\b|[\[{(])|"
    r"^[ \t]*\w+(?:\.\w+)+[ \t]*=",
    re.MULTILINE,
)

_MAX_SETTINGS = 10_000

_ABOUT_SIZES = re.compile(
    r"parallel|_size$|degree|nodes|devices|gpus|shards|instances|mapping|attention_dp|(?:^|\.)(?:tp|pp|dp|cp|sp|ep|etp)$"
)

_MAX_VARIABLES = 100_000

# actor_rollout_ref.rollout.tensor_model_parallel_size=2, ++model.context_parallel_size=2 and trainer.nnodes=1
_OVERRIDE = re.compile(r"(?:^|[\s\"'])[+~]{0,2}(?P<key>[A-Za-z_]\w*(?:[./@]\w+)+)=(?P<value>[^\s\"'\\]*)")


def parse_config(text: str) -> Config | None:
    """Return the values of TOML, YAML, JSON or a command with overrides, or None if the text is not a config."""
    if len(text) > _MAX_TEXT:
        return None
    stripped = text.strip()
    if stripped.startswith("{"):
        return _flat(_json(stripped))
    if _SECTION.search(text) or (_ASSIGNED.search(text) and not _KEY.search(text)):
        toml = _toml(text)
        if toml is not None:
            return _flat(toml)
    python = _python_settings(text) if _LIKE_PYTHON.search(text) else None
    if python:
        return python
    overrides = {match["key"]: match["value"] for match in _OVERRIDE.finditer(with_variables(without_comments(text)))}
    if overrides:
        return overrides
    return _flat(_yaml(text)) if _KEY.search(text) else None


def _python_settings(text: str) -> Config | None:
    """Return the values of assignments, keywords and dicts in Python code by dotted name; None for any other text."""
    try:
        tree = parse_source(text)
    except ParseError:
        return None
    reader = Evaluator(assignments_in(tree), {})
    settings: dict[str, Any] = {}
    paths: dict[ast.expr, str] = {}  # of dicts inside dicts

    def add(name: str, expression: ast.expr) -> None:
        value = None
        if _ABOUT_SIZES.search(name) and len(settings) < _MAX_SETTINGS:
            value = reader.source_or_value(expression)
        elif name and isinstance(expression, ast.Call):  # such as cfg = base_recipe()
            value = f"{dotted(expression.func)}()"
        if value is not None and settings.setdefault(name, value) != value:
            settings[f"line_{expression.lineno}.{name}"] = value  # so that both values are found

    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                add(dotted(target), node.value)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            add(dotted(node.target), node.value)
        elif isinstance(node, ast.Call):
            for item in node.keywords:
                add(f"{called(node)}.{item.arg}" if item.arg else "", item.value)
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    path = f"{paths.get(node, '')}{key.value}"
                    add(path, value)
                    paths[value] = f"{path}."
    return settings


_DECLARED = re.compile(r"(?:export|declare|local|readonly|typeset)[ \t]+(?:-\w+[ \t]+)?")

_IGNORED_LINE = re.compile(
    r"\Z|(?:source|\.|set|shopt|module|ulimit|unset|echo|printf|exec|cd|mkdir)(?:[ \t]|\Z)|export[ \t]+\w+\Z"
)

_DEFAULT = re.compile(r":[ \t]+\"?\$\{(?P<name>\w+):?=(?P<value>[^}\"$]*)\}\"?")

_SEPARATORS = re.compile(r"[ \t;,]*")

_NAME = re.compile(r"(?P<name>[A-Za-z_]\w*)=")


def shell_variables(text: str) -> Config | None:
    """Return the variables of a text that consists of ``NAME=value``, or None for any other text."""
    if len(text) > _MAX_VARIABLES or "=" not in text:
        return None
    variables: dict[str, Any] = {}
    for line in map(str.strip, with_variables(without_comments(text)).splitlines()):
        default = _DEFAULT.fullmatch(line)
        if default is not None:
            variables.setdefault(default["name"], default["value"])
        if default is not None or _IGNORED_LINE.match(line):
            continue
        position = 0
        while position < len(line) and line[position] != "#":
            declared = _DECLARED.match(line, position)
            position = position if declared is None else declared.end()
            name = _NAME.match(line, position)
            end = None if name is None else _end_of_value(line, name.end())
            if name is None or end is None:
                return None
            value = _plain(line[name.end() : end])
            if variables.setdefault(name["name"], value) != value:
                variables[f"again.{name['name']}"] = value  # so that both values are found
            separators = _SEPARATORS.match(line, end)
            position = end if separators is None else separators.end()
    return variables or None


def _end_of_value(line: str, start: int) -> int | None:
    """Return the end of a value in a line of a shell script, or None if it continues on the next line."""
    position, inside = start, ""  # the quotes and parentheses that are open
    while position < len(line):
        character = line[position]
        if character == "'" and not inside.endswith('"'):
            position = line.find("'", position + 1)
            if position < 0:
                return None
        elif character in '")' and inside.endswith("(" if character == ")" else '"'):
            inside = inside[:-1]
        elif character in '"(' and (character == '"' or inside.endswith("(") or line[position - 1] in "$="):
            inside += character
        elif not inside and character in " \t;,":
            break
        position += 1
    return None if inside else position


def _plain(value: str) -> str:
    """Return a value without quotes, or its default in ``${NAME:-default}``."""
    default = re.fullmatch(r"\$\{\w+:?[-=](?P<default>[^}]*)\}", value.strip("\"'"))
    return value.strip("\"'") if default is None else default["default"].strip("\"'")


def _json(text: str) -> Any:
    try:
        return parse_json(text)
    except ParseError:
        # DeepSpeed reads Hjson, which allows comments and trailing commas. YAML allows both after small changes.
        relaxed = re.sub(r"^[ \t]*//.*$|(?<=[,{}\[\]\s])//.*$", "", text, flags=re.MULTILINE)
        return _yaml(relaxed.replace("\t", "  "))


def _toml(text: str) -> Any:
    # Each part of a dotted key becomes a table, of which 400,000 take gigabytes.
    if text.count(".") > _MAX_KEYS:
        parts = sum(match[0].count(".") + 1 for pattern in (_SECTION, _ASSIGNED) for match in pattern.finditer(text))
        if parts > _MAX_KEYS:
            raise LimitError(
                f"the config has {parts:,} parts of keys, more than {_MAX_KEYS:,}",
                hint="pass only its parallelism section",
            )
    try:
        return parse_toml(text)
    except ParseError as error:
        if error.line is None or not re.search(r"^[ \t]*\[\w+\][ \t]*$", text, re.MULTILINE):
            return None  # a shell script with NAME=value, or another text with brackets
        raise


def _yaml(text: str) -> Any:
    try:
        documents = parse_yaml(text)
    except ParseError as error:
        if error.line is None or len(_KEY.findall(text)) < 2 or "(" in text:
            return None
        raise
    return documents[0] if len(documents) == 1 else documents


def _flat(tree: Any) -> Config | None:
    if isinstance(tree, list):
        trees = [part for part in tree if isinstance(part, Mapping)]
        return {key: value for part in trees for key, value in flat_config(part).items()} if trees else None
    return flat_config(tree) if isinstance(tree, Mapping) else None


def flat_config(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the leaves of nested mappings by dotted key."""
    leaves: dict[str, Any] = {}
    for visited, (key, value) in enumerate(_leaves("", tree)):
        if visited >= _MAX_KEYS:
            raise ParseError(f"the config has more than {_MAX_KEYS:,} keys", hint="pass only its parallelism section")
        leaves[key] = value
    return leaves


def _leaves(prefix: str, tree: Any) -> Iterator[tuple[str, Any]]:
    stack: list[tuple[str, Any, int]] = [(prefix, tree, 0)]
    while stack:
        path, value, depth = stack.pop()
        if depth > 50:
            raise ParseError("the config is nested more than 50 levels deep", hint="pass only its parallelism section")
        inner: list[tuple[str, Any]] = []
        if isinstance(value, Mapping):
            inner = [(f"{path}.{key}" if path else str(key), item) for key, item in value.items()]
        elif isinstance(value, list) and any(isinstance(item, (Mapping, list)) for item in value):
            inner = [(f"{path}.{index}", item) for index, item in enumerate(value)]
        if inner:
            stack += [(key, item, depth + 1) for key, item in reversed(inner)]
        elif path:
            yield path, value


def last_part(key: str) -> str:
    """Return the last part of a dotted key, without the dashes of a flag."""
    return re.split(r"[./@]", key)[-1].lstrip("-")


def product_of(config: Config, *names: tuple[str, ...]) -> int | None:
    """Return the product of numbers in a config, one for each tuple of possible last parts; None if one is missing."""
    product = 1
    for alternatives in names:
        values = {str(value) for key, value in config.items() if last_part(key) in alternatives}
        if len(values) != 1 or not re.fullmatch(r"[0-9]{1,9}", value := values.pop()):
            return None
        product *= int(value)
    return product


def select_keys(config: Config, pattern: re.Pattern[str], framework: str) -> dict[str, Any]:
    """Return the values of a config by the last part of their keys, for the parts that a pattern matches."""
    sources: dict[str, tuple[str, Any]] = {}
    for key, value in config.items():
        name = last_part(key)
        if not pattern.search(name.replace("-", "_")):
            continue
        first_key, first = sources.setdefault(name, (key, value))
        if first != value:
            raise ParseError(
                f"{framework}: {name} is {short(first)} in {first_key} and {short(value)} in {key}",
                hint="pass only the section of one model",
            )
    return {name: value for name, (_, value) in sources.items()}
