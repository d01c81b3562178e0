"""JAX: ``Mesh`` and ``make_mesh``; the last axis is the fastest, as here. Ranks are positions in ``jax.devices()``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from meshlab.mesh.interop.parsing import find_call
from meshlab.mesh.interop.recipe import Format, Recipe, code, losses, no_experts, require, zip_axes
from meshlab.mesh.mesh import DeviceMesh

__all__ = ["FORMAT"]

_SIGNATURES = {
    "make_mesh": ["axis_shapes", "axis_names"],
    "AbstractMesh": ["axis_shapes", "axis_names"],
    "Mesh": ["devices", "axis_names", "device_ids"],
}
_REPR = re.compile(r"Mesh\((?P<axes>(?:'\w+': \d+(?:, )?)+)")


def _write(mesh: DeviceMesh, experts: DeviceMesh | None) -> Recipe:
    no_experts("jax", experts)
    chosen = "" if mesh.in_order else code(mesh.ranks.reshape(-1).tolist())
    shape = ", ".join(map(str, mesh.shape))
    text = f"Mesh(np.array(jax.devices()){chosen and f'[{chosen}]'}.reshape({shape}), {code(mesh.axis_names)})"
    return Recipe("jax", text, {"devices": mesh.ranks, "axis_names": mesh.axis_names}, losses(mesh, "jax"))


def _parse(text: str) -> Mapping[str, Any]:
    shown = _REPR.search(text)
    if shown is not None:
        pairs = re.findall(r"'(\w+)': (\d+)", shown["axes"])
        return {"axis_shapes": tuple(int(size) for _, size in pairs), "axis_names": tuple(name for name, _ in pairs)}
    return find_call(text, _SIGNATURES).arguments


def _build(arguments: Mapping[str, Any], world_size: int | None, experts: bool) -> DeviceMesh:
    no_experts("jax", experts)
    (names,) = require(arguments, "jax", "axis_names")
    if arguments.get("axis_shapes") is not None:
        return DeviceMesh(zip_axes(names, arguments["axis_shapes"]), world_size=world_size)
    found = arguments.get("device_ids")
    devices = np.asarray(require(arguments, "jax", "devices")[0] if found is None else found)
    return DeviceMesh(zip_axes(names, devices.shape), ranks=devices, world_size=world_size)


def _from_object(source: Any) -> Mapping[str, Any] | None:
    if not hasattr(source, "axis_names"):
        return None
    if not hasattr(source, "devices"):
        return {"axis_shapes": source.axis_sizes, "axis_names": source.axis_names}
    devices = np.asarray(source.devices, dtype=object)
    ids = [getattr(device, "id", device) for device in devices.reshape(-1)]
    return {"devices": np.array(ids).reshape(devices.shape), "axis_names": source.axis_names}


FORMAT = Format("jax", re.compile(r"\bmake_mesh\s*\(|\b(?:Abstract)?Mesh\s*\("), _write, _parse, _build, _from_object)
