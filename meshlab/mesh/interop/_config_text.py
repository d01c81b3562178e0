"""Configs as text: TOML, YAML, JSON and the overrides of Hydra, as one mapping of dotted keys to plain values."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from meshlab.base._documents import LimitError, parse_json, parse_toml, parse_yaml
from meshlab.base._errors import ParseError
from meshlab.mesh._axes import short
from meshlab.mesh.interop._parsing import with_variables, without_comments

Config = Mapping[str, Any]
"""Values of a config by dotted key, such as ``parallelism.tensor_parallel_degree``."""

_MAX_TEXT = 2_000_000

_MAX_KEYS = 100_000  # YAML's aliases let a short text describe an endless tree

_SECTION = re.compile(r"^[ \t]*\[\[?[\w.\"' -]+\]\]?[ \t]*(?:#.*)?$", re.MULTILINE)

_ASSIGNED = re.compile(r"^[ \t]*[\w.\"-]+[ \t]*=[ \t]*\S", re.MULTILINE)

_KEY = re.compile(r"^[ \t]*(?:- )?[\"']?[\w./-]+[\"']?[ \t]*:(?:[ \t]|$)", re.MULTILINE)

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
    overrides = {match["key"]: match["value"] for match in _OVERRIDE.finditer(with_variables(without_comments(text)))}
    if overrides:
        return overrides
    return _flat(_yaml(text)) if _KEY.search(text) else None


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
