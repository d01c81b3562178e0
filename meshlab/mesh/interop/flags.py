"""Reading the sizes of axes out of command-line flags."""

from __future__ import annotations

import re
from collections.abc import Mapping

from meshlab.errors import MeshError, ParseError
from meshlab.mesh.axes import short

__all__ = ["read_flags", "read_sizes"]

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
