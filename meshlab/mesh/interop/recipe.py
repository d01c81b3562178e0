"""What one framework needs to lay out its ranks alike, and the checks that all writers share."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshlab.errors import MeshError
from meshlab.mesh.axes import idle_text
from meshlab.mesh.mesh import DeviceMesh

__all__ = [
    "Format",
    "Recipe",
    "check_view",
    "code",
    "first_rank",
    "losses",
    "no_experts",
    "require",
    "require_order",
    "zip_axes",
]


_ALSO_CALLED = {"dp": "dp_shard", "dp_shard": "dp", "dp_replicate": "dp"}
"""What one framework calls an axis of another; sharded or not, it is data parallel."""


@dataclass(frozen=True, eq=False)
class Recipe:
    """A layout in the words of one framework.

    Parameters
    ----------
    framework : str
        Whose words.
    text : str
        Code or flags, ready to paste.
    arguments : mapping of str to object
        The same as values, by the names that the framework uses.
    notes : tuple of str, default ()
        What does not carry over, one sentence each.
    """

    framework: str
    text: str
    arguments: Mapping[str, Any]
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return "\n".join([self.text, *(f"# {note}" for note in self.notes)])


@dataclass(frozen=True)
class Format:
    """How to read and write the words of one framework.

    Parameters
    ----------
    name : str
        The framework.
    mark : re.Pattern
        What a text in its words contains.
    write : callable
        A mesh, and maybe a view of it for experts, to a `Recipe`.
    parse : callable
        A text to arguments, by the framework's names.
    build : callable
        Arguments, the world size if known, and whether the experts' layout is wanted, to a mesh.
    from_object : callable, optional
        A live object of the framework to arguments, or None when it is something else.
    has_experts : callable, optional
        Whether arguments say of the experts what the dense layout does not show.
    """

    name: str
    mark: re.Pattern[str]
    write: Callable[[DeviceMesh, DeviceMesh | None], Recipe]
    parse: Callable[[str], Mapping[str, Any]]
    build: Callable[[Mapping[str, Any], int | None, bool], DeviceMesh]
    from_object: Callable[[Any], Mapping[str, Any] | None] = lambda source: None
    has_experts: Callable[[Mapping[str, Any]], bool] = lambda arguments: False


def no_experts(framework: str, experts: object) -> None:
    """Raise a `MeshError` when experts are asked of a framework that has no words for them."""
    if experts:
        raise MeshError(
            f"{framework} takes one mesh at a time; write or read the experts' mesh by itself, without experts="
        )


def check_view(mesh: DeviceMesh, experts: DeviceMesh) -> None:
    """Raise a `MeshError` unless `experts` is a view of `mesh`."""
    if not np.array_equal(mesh.view(experts.axes).ranks, experts.ranks):
        raise MeshError(f"{experts!r} is no view of {mesh!r}, its ranks lie elsewhere; make it with mesh.view(...)")


def require(arguments: Mapping[str, Any], framework: str, *names: str) -> list[Any]:
    """The arguments by these names, or a `MeshError` that names the missing one."""
    for name in names:
        if arguments.get(name) is None:
            raise MeshError(f"{framework} needs {name}, which is missing; there is {', '.join(arguments) or 'nothing'}")
    return [arguments[name] for name in names]


def zip_axes(names: Any, sizes: Any) -> list[tuple[str, int]]:
    """Pair names and sizes of axes, or raise a `MeshError`."""
    try:
        names = [names] if isinstance(names, str) else list(names)
        sizes = [sizes] if isinstance(sizes, int) else list(sizes)
    except TypeError:
        raise MeshError(f"{names!r} and {sizes!r} are not the names and the sizes of axes") from None
    if len(names) != len(sizes):
        raise MeshError(
            f"{len(names)} axis names ({names}) do not fit {len(sizes)} sizes ({sizes}); give one name per size"
        )
    return list(zip(names, sizes, strict=True))


def code(value: Any) -> str:
    """Write a plain value as Python source, with double quotes.

    Examples
    --------
    >>> code(("dp", 2)), code(["tp"]), code({"pp": "gloo"}), code((4,))
    ('("dp", 2)', '["tp"]', '{"pp": "gloo"}', '(4,)')
    """
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{code(name)}: {code(item)}" for name, item in value.items()) + "}"
    if isinstance(value, tuple):
        return f"({code(value[0])},)" if len(value) == 1 else f"({', '.join(map(code, value))})"
    if isinstance(value, list):
        return f"[{', '.join(map(code, value))}]"
    return repr(value)


def losses(mesh: DeviceMesh, framework: str, *, keeps_backends: bool = False) -> tuple[str, ...]:
    """Say what of a mesh `framework` has no words for."""
    notes = []
    if mesh.custom_groups:
        names = ", ".join(group.name for group in mesh.custom_groups)
        notes.append(f"{framework} does not know the groups added by hand: {names}")
    if mesh.backends and not keeps_backends:
        chosen = ", ".join(f"{axis} on {backend}" for axis, backend in mesh.backends.items())
        notes.append(f"{framework} does not take a backend per axis here: {chosen}")
    return tuple(notes)


def first_rank(mesh: DeviceMesh, framework: str, *, may_start_later: bool = False) -> int:
    """The rank at which a mesh starts when its ranks count up one by one; a `MeshError` when they do not."""
    flat = mesh.ranks.reshape(-1)
    first = int(flat[0])
    if not np.array_equal(flat, np.arange(first, first + len(flat))):
        raise MeshError(
            f"{framework} numbers ranks in the order of the axes, but this mesh places them by hand; "
            f"torch and jax take such a mesh"
        )
    if not may_start_later and mesh.idle_ranks.size:
        raise MeshError(
            f"{framework} uses every rank, but {idle_text(mesh.idle_ranks.tolist())} of {mesh.world_size} are idle here"
        )
    return first


def _renaming(mesh: DeviceMesh, unknown: Sequence[str], order: Sequence[str]) -> str:
    """The renaming that brings a mesh into a framework's words; empty where names alone do not do it."""
    new = {name: _ALSO_CALLED.get(name, "") for name in unknown}
    taken = [*mesh.axis_names, *new.values()]
    if any(name not in order or taken.count(name) > 1 for name in new.values()):
        return ""
    return f"rename({', '.join(f'{old}={code(name)}' for old, name in new.items())}) brings"


def require_order(mesh: DeviceMesh, framework: str, order: Sequence[str]) -> dict[str, int]:
    """The size of every axis, when all are known to a framework whose order, slowest first, is fixed.

    Raises
    ------
    MeshError
        If an axis is unknown, or axes of more than one rank stand in another order.
    """
    unknown = [name for name in mesh.axis_names if name not in order]
    if unknown:
        raise MeshError(
            f"{framework} has no axis {', '.join(unknown)}; it has {', '.join(order)} (slowest first); "
            f"{_renaming(mesh, unknown, order) or 'rename(), flatten() or split_axis() can bring'} the mesh there"
        )
    wide = [axis.name for axis in mesh.axes if axis.size > 1]
    wanted = [name for name in order if name in wide]
    if wide != wanted:
        raise MeshError(
            f"{framework} always lays out {', '.join(wanted)} (slowest first), but this mesh has {', '.join(wide)}; "
            f"reorder() brings it there, and changes the groups"
        )
    return {axis.name: axis.size for axis in mesh.axes}
