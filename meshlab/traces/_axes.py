"""The axes of a mesh that the process groups of a job are along, and the mesh that explains all groups."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from meshlab.base._errors import MeshError, ParseError
from meshlab.base._hints import Argument, Hint
from meshlab.mesh._axes import WORLD, format_ranks
from meshlab.mesh._groups import groups_name
from meshlab.mesh._mesh import DeviceMesh
from meshlab.traces._rank_trace import ProcessGroup

UNNAMED = "ranks"
"""Name of the only axis of a job whose groups have no descriptions, as for results without an axis."""

# Descriptions of process groups: DeviceMesh of torch, Megatron-LM, vLLM and SGLang ("tp:0").
_MEGATRON = {
    "tensor_model_parallel": "tp",
    "tensor_parallel": "tp",
    "model_parallel": "tp",
    "pipeline_model_parallel": "pp",
    "pipeline_parallel": "pp",
    "data_parallel": "dp",
    "context_parallel": "cp",
    "expert_model_parallel": "ep",
    "expert_parallel": "ep",
    "sequence_parallel": "cp",
}
_UNNAMED = frozenset({"", "undefined", "default_pg", WORLD, "default"})
_NUMBER = re.compile(r"[:_]\d+$")
_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")


class Place(NamedTuple):
    """The place of a process group in a mesh. Both names are None if its ranks are not along axes of the mesh."""

    axis: str | None
    group: str | None


def axis_name(description: str) -> str | None:
    """Return the name of an axis by the description of a process group, or None if it contains none."""
    name = _NUMBER.sub("", description.strip().lower()).removeprefix("mesh_").removesuffix("_group")
    if name in _UNNAMED:
        return None
    name = _MEGATRON.get(name, name)
    return name if _NAME.fullmatch(name) else None


def place_groups(groups: Sequence[ProcessGroup], mesh: DeviceMesh) -> list[Place]:
    """Return the axes and the name of each group in a mesh."""
    names = mesh.axis_names
    custom = {tuple(sorted(group.ranks)): group.name for group in mesh.custom_groups}
    return [_place(group, mesh, names, custom) for group in groups]


def _place(group: ProcessGroup, mesh: DeviceMesh, names: Sequence[str], custom: Mapping[tuple[int, ...], str]) -> Place:
    ranks = np.asarray(group.ranks, dtype=np.int64)
    if len(ranks) < 2 or ranks.max() >= mesh.world_size:
        return Place(None, None)
    if (name := custom.get(tuple(sorted(group.ranks)))) is not None:
        return Place(name.rpartition("_")[0] or name, name)
    coordinates = mesh.coordinate_array[ranks]
    if (coordinates < 0).any():  # idle ranks
        return Place(None, None)
    varies = (coordinates != coordinates[0]).any(axis=0)
    axes = tuple(name for name, flag in zip(names, varies, strict=True) if flag)
    if math.prod(mesh.size(axis) for axis in axes) != len(ranks):
        return Place(None, None)
    along = mesh[axes[0]] if len(axes) == 1 else mesh[axes]
    return Place(groups_name(axes), along.of(int(ranks[0])).name)


def infer_mesh(
    groups: Sequence[ProcessGroup], n_calls: Sequence[int], world_size: int | None
) -> tuple[DeviceMesh, tuple[int, ...]]:
    """Return the mesh whose axes explain the groups of a job, and the indices of the groups that it does not explain.

    Each group of the job ends axes: where its ranks have a common distance, an axis begins at this distance, and ends
    at the distance times their number. Groups with more calls come first, and one whose axes contradict those of
    earlier groups is not explained.
    """
    listed = [number for number, group in enumerate(groups) if len(group.ranks) > 1]
    world = world_size or max((max(groups[number].ranks) + 1 for number in listed), default=None)
    if not world or not listed:
        raise MeshError(
            "the trace does not contain the ranks of any process group",
            hint=Hint("pass the mesh of the job as {}", Argument("mesh")),
        )
    cuts = {1, world}
    for number in sorted(listed, key=lambda number: (-n_calls[number], len(groups[number].ranks))):
        ends = _cuts(groups[number].ranks)
        if ends is not None and _is_chain(cuts | ends):
            cuts |= ends
    bounds = sorted(cuts)
    sizes = [outer // inner for inner, outer in itertools.pairwise(bounds)][::-1] or [1]
    names = _axis_names(groups, [groups[number] for number in listed], bounds, n_calls)
    mesh = DeviceMesh(list(zip(names, sizes, strict=True)))
    places = place_groups(groups, mesh)
    unexplained = tuple(
        number for number, group in enumerate(groups) if places[number].axis is None and (group.n_ranks or 0) > 1
    )
    return mesh, unexplained


def _cuts(ranks: Sequence[int]) -> set[int] | None:
    """Return the distances at which the axes of a group begin and end, or None if it is not along any axes."""
    ordered = np.sort(np.asarray(ranks, dtype=np.int64))
    offsets = ordered - ordered[0]
    ends: set[int] = set()
    while len(offsets) > 1:
        stride = int(offsets[1])
        if stride == 0:  # a rank is listed twice
            return None
        n = 1
        while n < len(offsets) and offsets[n] == n * stride:
            n += 1
        if len(offsets) % n:
            return None
        blocks = offsets.reshape(-1, n)
        if (blocks - blocks[:, :1] != np.arange(n) * stride).any():
            return None
        ends |= {stride, stride * n}
        offsets = blocks[:, 0]
    return ends


def _is_chain(values: Iterable[int]) -> bool:
    ordered = sorted(values)
    return all(outer % inner == 0 for inner, outer in itertools.pairwise(ordered))


def _axis_names(
    groups: Sequence[ProcessGroup], listed: Sequence[ProcessGroup], bounds: Sequence[int], n_calls: Sequence[int]
) -> list[str]:
    """Return the name of each axis, slowest first: the description of the groups along it, if they have one."""
    votes: dict[int, Counter[str]] = {}
    calls = dict(zip(groups, n_calls, strict=True))
    for group in listed:
        name = axis_name(group.description)
        if name is not None and (ends := _cuts(group.ranks)) is not None:
            inner, outer = min(ends), max(ends)
            # A group along several axes does not name one of them.
            if bounds.index(outer) - bounds.index(inner) == 1 if outer in bounds and inner in bounds else False:
                votes.setdefault(inner, Counter())[name] += 1 + calls[group]
    n_axes = len(bounds) - 1
    names: list[str] = []
    for position, inner in enumerate(bounds[:-1] or [1]):
        ranked = [name for name, _ in votes.get(inner, Counter()).most_common() if name not in names]
        default = UNNAMED if n_axes <= 1 else f"axis{n_axes - 1 - position}"
        names.append(ranked[0] if ranked else default)
    return names[::-1]


def check_mesh(mesh: DeviceMesh, world_size: int | None) -> DeviceMesh:
    """Return the mesh of a job, or raise if it has another number of ranks."""
    if world_size is not None and mesh.world_size != world_size:
        raise MeshError(
            f"the mesh {mesh} has {mesh.world_size:,} ranks, but the job of the trace has {world_size:,}",
            hint="pass the mesh of the job, or none, to infer it",
        )
    return mesh


def describe_group(group: ProcessGroup) -> str:
    """Describe a process group in a message."""
    name = f"process group {group.name!r}" + (f" ({group.description})" if group.description else "")
    ranks = f" with {format_ranks(group.ranks)}" if group.ranks else f" of {group.size} ranks" if group.size else ""
    return name + ranks


def no_calls(kind: str) -> ParseError:
    """Return the error for a file without any collective."""
    return ParseError(f"this {kind} contains no collective", hint="record a step that communicates, on every rank")
