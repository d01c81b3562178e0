"""A reader for the little YAML that configuration files use: nested lists and mappings by indentation, plain scalars.

Anchors, tags, multi-line texts and everything else that can surprise are refused. Lists may also stand in brackets.
"""

from __future__ import annotations

import re
from typing import Any

from meshlab.errors import ParseError

__all__ = ["read_block_yaml"]

_LINE = re.compile(r"( *)((?:- +|-$)*)(?:([A-Za-z_][\w.-]*)[ \t]*:(?:[ \t]+|$))?(.*)")
_PLAIN = re.compile(r"( *)(- )?([A-Za-z_][\w.-]*): ([A-Za-z0-9][^\s#:]*)")
_DEEPEST = 32


def read_block_yaml(text: str) -> Any:
    """Read a document of nested lists, mappings and scalars.

    Parameters
    ----------
    text : str

    Returns
    -------
    list, dict or str
        Scalars stay text; an empty value is None.

    Raises
    ------
    ParseError
        If a line is not of this kind; it says which.

    Examples
    --------
    >>> read_block_yaml('''
    ... - topology: a
    ...   tree:
    ...     switches:
    ...       - switch: s1
    ...         nodes: n[1-4]  # a comment
    ... ''')
    [{'topology': 'a', 'tree': {'switches': [{'switch': 's1', 'nodes': 'n[1-4]'}]}}]
    """
    # Every open container with the column where its items begin; a placeholder is a key that waits for its value.
    root: list[Any] = []
    stack: list[tuple[int, Any]] = [(-1, root)]
    waiting: tuple[dict[str, Any], str, int] | None = None
    for number, line in enumerate(text.splitlines(), 1):
        plain = _PLAIN.fullmatch(line)
        if plain is not None and waiting is None and _put_plain(stack, len(plain[1]), *plain.groups()[1:]):
            continue
        if "#" in line:
            line = re.sub(r"(^|[ \t])#.*", "", line)
        line = line.rstrip()
        if not line or line in ("---", "..."):
            continue
        match = _LINE.match(line)
        if match is None or line.lstrip(" ").startswith("\t"):
            raise ParseError("the indentation must be spaces", text=line, line=number)
        indent, dashes, key, value = len(match[1]), match[2], match[3], match[4]
        column = indent
        if waiting is not None:
            mapping, name, at = waiting
            if indent > at or (dashes and indent == at):
                mapping[name] = [] if dashes else {}
                stack.append((indent, mapping[name]))
            waiting = None
        while len(stack) > 1 and (
            stack[-1][0] > column or (stack[-1][0] == column and isinstance(stack[-1][1], list) != bool(dashes))
        ):
            stack.pop()
        if len(stack) > _DEEPEST:
            raise ParseError(f"lists and mappings are nested more than {_DEEPEST} deep", line=number)
        for place in (dash.start() for dash in re.finditer("-", dashes)) if dashes else ():
            at = indent + place
            if stack[-1][0] != at or not isinstance(stack[-1][1], list):
                fresh: list[Any] = []
                _put(stack, fresh, number, line)
                stack.append((at, fresh))
            column = indent + len(dashes)
        if key is None:
            if value:
                _put(stack, _scalar(value, number, line), number, line)
            continue
        if not (stack[-1][0] == column and isinstance(stack[-1][1], dict)):
            table: dict[str, Any] = {}
            _put(stack, table, number, line)
            stack.append((column, table))
        stack[-1][1][key] = _scalar(value, number, line)
        if not value:
            waiting = (stack[-1][1], key, column)
    if len(root) > 1:
        raise ParseError("the text holds several documents, or a list and a mapping beside each other; give one")
    return root[0] if root else None


def _put_plain(stack: list[tuple[int, Any]], indent: int, dash: str | None, key: str, value: str) -> bool:
    """The short way for nearly every line: one more entry of the mapping that is open, or the next item of its list."""
    column, table = stack[-1]
    if dash is None:
        if column != indent or not isinstance(table, dict):
            return False
        table[key] = value
        return True
    if column != indent + 2 or len(stack) < 2 or stack[-2][0] != indent or not isinstance(stack[-2][1], list):
        return False
    stack[-2][1].append({key: value})
    stack[-1] = column, stack[-2][1][-1]
    return True


def _put(stack: list[tuple[int, Any]], value: Any, number: int, line: str) -> None:
    if not isinstance(stack[-1][1], list):
        raise ParseError("this line fits neither the list nor the mapping above it", text=line, line=number)
    stack[-1][1].append(value)


def _scalar(value: str, number: int, line: str) -> Any:
    if not value:
        return None
    if value[0] in "&*!|>%@`{":
        raise ParseError(
            f"{value[:20]!r} is YAML that this reader leaves out; write plain keys, lists and values",
            text=line,
            line=number,
        )
    if value[0] in "'\"":
        return value[1:-1] if len(value) > 1 and value[-1] == value[0] else value[1:]
    if value[0] == "[" and value[-1] == "]":
        return [part.strip().strip("'\"") for part in value[1:-1].split(",") if part.strip()]
    return None if value in ("~", "null") else value
