"""A mesh as plain data, as saved runs contain it."""

from __future__ import annotations

from typing import Any

from meshlab.base._typed_values import typed_fields
from meshlab.mesh._mesh import DeviceMesh, rebuilt_mesh

_FIELDS = {
    "axes": list[tuple[str, int]],
    "world_size": int,
    "ranks": list[int] | None,
    "backends": dict[str, str],
    "groups": list[tuple[str, list[int]]],
}


def mesh_to_document(mesh: DeviceMesh) -> dict[str, Any]:
    """Return a mesh as plain data."""
    return {
        "axes": [[axis.name, axis.size] for axis in mesh.axes],
        "world_size": mesh.world_size,
        "ranks": None if mesh.in_order else mesh.ranks.ravel().tolist(),
        "backends": dict(mesh.backends),
        "groups": [[group.name, list(group.ranks)] for group in mesh.custom_groups],
    }


def mesh_from_document(values: object, *, file: str | None = None) -> DeviceMesh:
    """Build a mesh from what `mesh_to_document` returned. `file` is for errors."""
    return rebuilt_mesh(**typed_fields(values, _FIELDS, "mesh", file=file))
