"""Checks of the groups and backends that users add to a mesh, and the lookup of groups by name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from meshlab.base._backends import BACKEND_SYNONYMS, BACKENDS, FRAMEWORK_BACKENDS
from meshlab.base._errors import MeshError, did_you_mean
from meshlab.mesh._axes import WORLD, Ranks, check_axis_name, check_rank, format_ranks, short
from meshlab.mesh._groups import Group, Groups

if TYPE_CHECKING:
    from meshlab.mesh._mesh import DeviceMesh

_BACKEND = re.compile(r"[a-z][a-z0-9_.:,+-]*")


def check_backend(owner: str, name: str, backend: Any) -> None:
    """Raise a `MeshError` unless a backend of an axis or a group is one of meshlab or of a framework."""
    if not isinstance(backend, str) or _BACKEND.fullmatch(backend) is None:
        raise MeshError(f"backend of {owner} {name!r} must be a name such as 'nccl', not {short(backend)}")
    names = {part.rpartition(":")[2] for part in backend.split(",")}  # torch also has "cpu:gloo,cuda:nccl"
    if not names <= {*BACKENDS, *FRAMEWORK_BACKENDS}:
        similar = did_you_mean(backend, (*BACKENDS, *FRAMEWORK_BACKENDS), synonyms=BACKEND_SYNONYMS)
        raise MeshError(
            f"unknown backend {backend!r} of {owner} {name!r}{similar}",
            hint=f"choose one of {', '.join(BACKENDS)}, or for a framework {', '.join(FRAMEWORK_BACKENDS)}",
        )


def custom_group(mesh: DeviceMesh, name: str, ranks: Any, backend: str | None) -> Group:
    """Return a new group of a mesh, or raise a `MeshError` if its name, its backend or its ranks are invalid."""
    check_axis_name(name, "group")
    if backend is not None:
        check_backend("group", name, backend)
    front, _, end = name.rpartition("_")
    # "tp_0" is a group of tp, and "tp_group" is the column of membership() with the names of these groups.
    if name in mesh.creation_order or (front in mesh.axis_names and (end == "group" or end.isdecimal())):
        raise MeshError(f"group name {name!r} is taken", hint="choose a different name")
    members = np.asarray(list(ranks))
    if members.size == 0:
        raise MeshError(f"group {name!r} has no ranks", hint="pass at least one")
    if members.dtype.kind not in "iu" or members.ndim != 1:
        raise MeshError(f"ranks of group {name!r} must be a flat list of integers, not {short(list(ranks))}")
    outside = members[(members < 0) | (members >= mesh.world_size)]
    if outside.size:
        check_rank(outside[0], mesh.world_size)  # raises
    idle = members[mesh.positions[members] < 0]
    if idle.size:
        raise MeshError(
            f"group {name!r} contains idle {format_ranks(idle.tolist())}", hint="use only ranks of the mesh"
        )
    values, counts = np.unique(members, return_counts=True)
    if counts.max() > 1:
        raise MeshError(
            f"group {name!r} contains rank {values[counts.argmax()]} {counts.max()} times", hint="list it once"
        )
    return Group(name, members)


def custom_groups(mesh: DeviceMesh, name: str, rows: npt.ArrayLike, backend: str | None) -> list[Group]:
    """Return the new groups ``name_0``, ``name_1``, … of a mesh, one per row, or raise as `custom_group`."""
    try:
        array = np.asarray(rows)
    except ValueError:
        array = np.empty(0)
    if array.ndim != 2:
        raise MeshError(f"groups {name!r} must be rows of equal lengths, not {short(rows)}")
    if name in axes_and_groups(mesh):
        raise MeshError(f"group name {name!r} is taken", hint="choose a different name")
    names = [f"{name}_{index}" for index in range(len(array))]
    # All rows are checked together, because a check of each takes long for thousands. If one is invalid, its own check
    # raises. The first one also checks the name and the backend.
    n_checked = 1 if _are_members(mesh, array) and set(mesh.creation_order).isdisjoint(names) else len(names)
    pairs = list(zip(names, array, strict=True))
    groups = [custom_group(mesh, group, row, backend) for group, row in pairs[:n_checked]]
    return groups + [Group(group, row) for group, row in pairs[n_checked:]]


def _are_members(mesh: DeviceMesh, rows: npt.NDArray[Any]) -> bool:
    """Return whether each row can be a group: ranks of the mesh, none of them twice."""
    if rows.dtype.kind not in "iu" or not rows.shape[1] or ((rows < 0) | (rows >= mesh.world_size)).any():
        return False
    return bool((mesh.positions[rows] >= 0).all() and np.diff(np.sort(rows, axis=1), axis=1).all())


def family(groups: Sequence[Group], name: str, *, world_size: int) -> Groups | None:
    """Return the custom groups ``name_0``, ``name_1``, … together, or None if there are none of one size."""
    by_name = {group.name: group.array for group in groups}
    rows: list[Ranks] = []
    while (row := by_name.get(f"{name}_{len(rows)}")) is not None:
        rows.append(row)
    if not rows or len({len(row) for row in rows}) > 1:
        return None
    return Groups(name, np.stack(rows), world_size=world_size)


def axes_and_groups(mesh: DeviceMesh) -> list[str]:
    """Return the names of the axes and custom groups, and WORLD."""
    return [*mesh.axis_names, WORLD, *(group.name for group in mesh.custom_groups)]


def names_range(groups: Groups) -> str:
    """Return the names of the first and the last group, for a message."""
    return groups[0].name if len(groups) == 1 else f"{groups[0].name} to {groups[-1].name}"


def unknown_group(mesh: DeviceMesh, name: str) -> MeshError:
    """Return the error for a name of no axis or group. It lists all of them."""
    names = [WORLD, *(names_range(mesh[axis]) for axis in mesh.axis_names)]
    names += [group.name for group in mesh.custom_groups]
    return MeshError(
        f"unknown axis or group {short(name)}{did_you_mean(name, axes_and_groups(mesh))}",
        hint=f"choose one of the axes {', '.join(mesh.axis_names)} or of the groups {', '.join(names)}",
    )
