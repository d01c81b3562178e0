"""JAX: ``Mesh`` and ``make_mesh``.

The last axis is the fastest, as in meshlab. Ranks are indices into ``jax.devices()``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from meshlab.mesh.interop.parsing import find_call
from meshlab.mesh.interop.recipe import Format, Recipe, code, rank_array, reject_experts, require, unsupported
from meshlab.mesh.mesh import DeviceMesh

__all__ = ["FORMAT"]

_SIGNATURES = {
    "make_mesh": ["axis_shapes", "axis_names"],
    "AbstractMesh": ["axis_shapes", "axis_names"],
    "Mesh": ["devices", "axis_names", "device_ids"],
}
_REPR = re.compile(r"Mesh\((?P<axes>(?:'\w+': \d+(?:, )?)+)")  # Mesh('dp': 2, 'tp': 4, axis_types=…)


def _write(mesh: DeviceMesh, experts: DeviceMesh | None) -> Recipe:
    reject_experts("jax", experts)
    # Mesh and not make_mesh, because make_mesh may permute devices to match the physical topology.
    chosen = "" if mesh.in_order else f"[{code(mesh.ranks.reshape(-1).tolist())}]"
    shape = ", ".join(map(str, mesh.shape))
    text = f"Mesh(np.array(jax.devices()){chosen}.reshape({shape}), {code(mesh.axis_names)})"
    return Recipe("jax", text, {"devices": mesh.ranks, "axis_names": mesh.axis_names}, unsupported(mesh, "jax"))


def _parse(text: str) -> Mapping[str, Any]:
    shown = _REPR.search(text)
    if shown is not None:
        pairs = re.findall(r"'(\w+)': (\d+)", shown["axes"])
        return {"axis_shapes": tuple(int(size) for _, size in pairs), "axis_names": tuple(name for name, _ in pairs)}
    return find_call(text, _SIGNATURES).arguments


def _build(arguments: Mapping[str, Any], world_size: int | None, experts: bool) -> DeviceMesh:
    reject_experts("jax", experts)
    (names,) = require(arguments, "jax", "axis_names")
    if arguments.get("axis_shapes") is not None:
        return DeviceMesh(arguments["axis_shapes"], names, world_size=world_size)
    found = arguments.get("device_ids")
    devices = rank_array("jax", require(arguments, "jax", "devices")[0] if found is None else found)
    return DeviceMesh(devices.shape, names, ranks=devices, world_size=world_size)


def _from_object(source: Any) -> Mapping[str, Any] | None:
    if not hasattr(source, "axis_names"):
        return None
    if not hasattr(source, "devices"):  # an AbstractMesh
        return {"axis_shapes": source.axis_sizes, "axis_names": source.axis_names}
    devices = np.asarray(source.devices, dtype=object)
    ids = [getattr(device, "id", device) for device in devices.reshape(-1)]
    return {"devices": np.array(ids).reshape(devices.shape), "axis_names": source.axis_names}


FORMAT = Format("jax", re.compile(r"\bmake_mesh\s*\(|\b(?:Abstract)?Mesh\s*\("), _write, _parse, _build, _from_object)
