"""Parts that all framework formats share: recipes, the description of a format, and checks."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from meshlab.base._errors import MeshError
from meshlab.mesh._axes import as_integer, format_ranks, short
from meshlab.mesh._mesh import DeviceMesh
from meshlab.mesh.interop._clues import Clue

_SYNONYMS = {"dp": "dp_shard", "dp_shard": "dp", "dp_replicate": "dp"}
"""Data-parallel axis names of one framework, mapped to those of another."""


@dataclass(frozen=True, eq=False)
class Recipe:
    """Code or flags that create a mesh in another framework, returned by `DeviceMesh.to`.

    Parameters
    ----------
    framework : str
        Name of the framework.
    text : str
        Code or flags, ready to paste.
    arguments : mapping of str to object
        The same layout as values, under the framework's own names.
    notes : tuple of str, default ()
        Properties of the mesh that the framework cannot express, one sentence each.

    Examples
    --------
    >>> import meshlab as ml
    >>> recipe = ml.DeviceMesh("pp=2, dp=4, tp=8").to("megatron")
    >>> recipe.text
    'RankGenerator(tp=8, ep=1, dp=4, pp=2, cp=1, order="tp-dp-pp")'
    >>> ml.DeviceMesh.read(recipe)
    DeviceMesh('pp=2, dp=4, tp=8')
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
    """The functions that read and write the layouts of one framework."""

    name: str
    clue: Clue  # matches part of every text in this format
    # A mesh, and an optional expert view of it, to a recipe. None if the format can only be read.
    write: Callable[[DeviceMesh, DeviceMesh | None], Recipe] | None
    parse: Callable[[str], Mapping[str, Any]]  # text to arguments, under the framework's own names
    # Arguments, the world size if known, and a flag that selects the expert layout, to a mesh
    build: Callable[[Mapping[str, Any], int | None, bool], DeviceMesh]
    # A live object to arguments, and anything else to None, by its attributes: no framework has to be imported.
    from_object: Callable[[Any], Mapping[str, Any] | None] = lambda source: None
    # Whether arguments contain an expert layout that differs from the dense one
    has_experts: Callable[[Mapping[str, Any]], bool] = lambda arguments: False
    # The values of a config to arguments, and a config without sizes of this format to None
    from_config: Callable[[Mapping[str, Any]], Mapping[str, Any] | None] = lambda config: None
    # A sentence for each argument that changes groups, or may change them, and that the mesh does not show
    omissions: Callable[[Mapping[str, Any]], Sequence[str]] = lambda arguments: ()
    # A sentence for each kind of groups that a mesh has in addition to its axes, which `str` does not show
    remarks: Callable[[DeviceMesh], Sequence[str]] = lambda mesh: ()
    looks_for: str = ""  # the keys of a config that `from_config` reads, for a message


def reject_experts(framework: str, experts: object) -> None:
    """Raise a `MeshError` if experts are passed for a framework whose format has a single layout."""
    if experts:
        raise MeshError(
            f"experts= is not supported for {framework}, which has one layout per mesh",
            hint="read or write the mesh of the experts separately, without experts=",
        )


def check_view(mesh: DeviceMesh, experts: DeviceMesh) -> None:
    """Raise a `MeshError` unless `experts` is a view of `mesh`."""
    # view() checks the axes; the ranks must match too, because a framework creates both layouts from the axes alone.
    if not np.array_equal(mesh.view(experts.axes).ranks, experts.ranks):
        raise MeshError(
            f"{experts!r} is not a view of {mesh!r}: its ranks differ", hint="create it with mesh.view(...)"
        )


def require(arguments: Mapping[str, Any], framework: str, *names: str) -> list[Any]:
    """Return the arguments with these names, or raise a `MeshError` with the name of a missing one."""
    for name in names:
        if arguments.get(name) is None:
            others = ", ".join(arguments) or "nothing"
            raise MeshError(f"{framework} needs {name}, but only {others} was given", hint=f"add {name}")
    return [arguments[name] for name in names]


def rank_array(framework: str, ranks: Any) -> npt.NDArray[Any]:
    """Return nested lists of ranks as an array, or raise a `MeshError` if their lengths differ."""
    try:
        return np.asarray(ranks)
    except ValueError:
        raise MeshError(f"{framework} needs nested lists of equal lengths, not {short(ranks)}") from None


def code(value: Any) -> str:
    """Return a plain value as Python source with double quotes."""
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{code(name)}: {code(item)}" for name, item in value.items()) + "}"
    if isinstance(value, tuple):
        return f"({code(value[0])},)" if len(value) == 1 else f"({', '.join(map(code, value))})"
    if isinstance(value, list):
        return f"[{', '.join(map(code, value))}]"
    return repr(value)


def unsupported(mesh: DeviceMesh, framework: str, *, keeps_backends: bool = False) -> tuple[str, ...]:
    """Return a note for each property of a mesh that `framework` cannot express."""
    notes = []
    if mesh.custom_groups:
        names = ", ".join(group.name for group in mesh.custom_groups)
        notes.append(f"{framework} has no custom groups, so these are lost: {names}")
    of_axes = {name: backend for name, backend in mesh.backends.items() if name in mesh.axis_names}
    if of_axes and not keeps_backends:
        chosen = ", ".join(f"{axis} on {backend}" for axis, backend in of_axes.items())
        notes.append(f"{framework} has no backend per axis here, so these are lost: {chosen}")
    return tuple(notes)


def first_rank(mesh: DeviceMesh, framework: str, *, may_start_later: bool = False) -> int:
    """Return the first rank of a mesh with consecutive ranks, or raise a `MeshError` for any other mesh."""
    flat = mesh.ranks.reshape(-1)
    first = int(flat[0])
    if not np.array_equal(flat, np.arange(first, first + len(flat))):
        raise MeshError(
            f"{framework} numbers ranks in the order of the axes, but the ranks of this mesh are in a different order",
            hint="write it for torch or jax",
        )
    if not may_start_later and mesh.idle_ranks.size:
        raise MeshError(
            f"{framework} uses every rank, but {format_ranks(mesh.idle_ranks.tolist())} of {mesh.world_size} are idle "
            f"in this mesh",
            hint="write it for torch or jax",
        )
    return first


def mesh_from_offset(pairs: Sequence[tuple[str, int]], rank_offset: object, world_size: int | None) -> DeviceMesh:
    """Return a mesh whose ranks count up from an offset."""
    offset = as_integer(rank_offset)
    if offset is None:
        raise MeshError(f"rank_offset={short(rank_offset)} must be an integer", hint="pass the first rank of the mesh")
    if not offset:
        return DeviceMesh(pairs, world_size=world_size)
    count = DeviceMesh(pairs).size()
    return DeviceMesh(pairs, ranks=range(offset, offset + count), world_size=world_size or offset + count)


def _renaming(mesh: DeviceMesh, unknown: Sequence[str], order: Sequence[str]) -> str:
    """Return the call that renames unknown axes to synonyms, or an empty string if names alone are not enough."""
    # A synonym helps only if the framework has it and no other axis of the mesh already has that name.
    new = {name: _SYNONYMS.get(name, "") for name in unknown}
    taken = [*mesh.axis_names, *new.values()]
    if any(name not in order or taken.count(name) > 1 for name in new.values()):
        return ""
    return f"rename({', '.join(f'{old}={code(name)}' for old, name in new.items())})"


def require_order(mesh: DeviceMesh, framework: str, order: Sequence[str]) -> dict[str, int]:
    """Return the size of every axis, or raise unless the framework has these axes in this order, slowest first."""
    unknown = [name for name in mesh.axis_names if name not in order]
    if unknown:
        renaming = _renaming(mesh, unknown, order)
        raise MeshError(
            f"{framework} has no axis {', '.join(unknown)}; it has {', '.join(order)} (slowest first)",
            hint=f"call {renaming} first" if renaming else "call rename(), flatten() or split_axis() first",
        )
    # An axis of size 1 has no influence on the groups of the others, so its position is irrelevant.
    wide = [axis.name for axis in mesh.axes if axis.size > 1]
    expected = [name for name in order if name in wide]
    if wide != expected:
        raise MeshError(
            f"{framework} has the fixed order {', '.join(expected)} (slowest first), but this mesh has "
            f"{', '.join(wide)}",
            hint="call reorder(), which changes the groups",
        )
    return {axis.name: axis.size for axis in mesh.axes}
