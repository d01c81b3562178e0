"""JAX: ``Mesh``, ``make_mesh``, ``create_device_mesh`` and ``create_hybrid_device_mesh``.

The last axis is the fastest, as in meshlab. Ranks are indices into ``jax.devices()``. On GPUs, JAX sorts the devices by
their id and reshapes them; only on TPUs do ``make_mesh`` and ``create_device_mesh`` choose another order.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence, Sized
from typing import Any

import numpy as np

from meshlab.base._errors import MeshError, ParseError
from meshlab.base._hints import Argument, Hint
from meshlab.mesh._axes import MAX_AXES, MAX_RANKS
from meshlab.mesh._mesh import DeviceMesh
from meshlab.mesh.interop._parsing import Devices, Function, find_calls
from meshlab.mesh.interop._recipe import Format, Recipe, code, rank_array, reject_experts, require, unsupported

_SIGNATURES = {
    "make_mesh": ["axis_shapes", "axis_names"],
    "AbstractMesh": ["axis_sizes", "axis_names", "axis_shapes"],
    "Mesh": ["devices", "axis_names", "device_ids", "axis_sizes"],
}

_ARRAYS = {"create_device_mesh": ["mesh_shape"], "create_hybrid_device_mesh": ["mesh_shape", "dcn_mesh_shape"]}

_ALL = -1
"""Size that stands for ``jax.device_count()``, and is filled from the number of ranks."""

# Mesh('dp': 2, 'tp': 4, axis_types=…), which is also the str() of a Mesh whose repr has axis_sizes
_REPR = re.compile(r"Mesh\((?P<axes>(?:'\w+': \d+(?:, )?)+)")


def _write(mesh: DeviceMesh, experts: DeviceMesh | None) -> Recipe:
    reject_experts("jax", experts)
    # Mesh and not make_mesh, because make_mesh may permute devices to match the physical topology.
    chosen = "" if mesh.in_order else f"[{code(mesh.ranks.reshape(-1).tolist())}]"
    shape = ", ".join(map(str, mesh.shape))
    text = f"Mesh(np.array(jax.devices()){chosen}.reshape({shape}), {code(mesh.axis_names)})"
    return Recipe("jax", text, {"devices": mesh.ranks, "axis_names": mesh.axis_names}, unsupported(mesh, "jax"))


def _sizes(name: str, shape: Any, *, may_fill: bool = False) -> list[int]:
    sizes = [shape] if isinstance(shape, int) else list(shape) if isinstance(shape, (tuple, list)) else []
    valid = all(type(size) is int and (size >= 1 or (may_fill and size == _ALL)) for size in sizes)
    if not sizes or not valid or math.prod(sizes) > MAX_RANKS:
        raise ParseError(f"{name} is {shape!r}, but it must be a tuple of sizes", hint="write every size as a number")
    return sizes


def _device_mesh(mesh_shape: Any = None) -> list[Any] | Devices:
    sizes = _sizes("mesh_shape", mesh_shape, may_fill=True)
    if _ALL in sizes:
        return Devices(tuple(sizes))
    ranks: list[Any] = np.arange(math.prod(sizes)).reshape(sizes).tolist()
    return ranks


def _hybrid_device_mesh(mesh_shape: Any = None, dcn_mesh_shape: Any = None) -> list[Any]:
    return hybrid_ranks(_sizes("mesh_shape", mesh_shape), _sizes("dcn_mesh_shape", dcn_mesh_shape))


def hybrid_ranks(inner: Sequence[int], outer: Sequence[int]) -> list[Any]:
    """Return the ranks of two levels: on each axis, the position among granules is slower than that inside one."""
    if len(inner) != len(outer) or len(inner) > MAX_AXES:
        raise ParseError(
            f"mesh_shape {tuple(inner)} and dcn_mesh_shape {tuple(outer)} have different lengths",
            hint="write one size per axis in both, such as 1 for an axis inside a granule",
        )
    if math.prod(inner) * math.prod(outer) > MAX_RANKS:
        raise ParseError(f"more than {MAX_RANKS:,} devices", hint="write smaller sizes")
    # Granules, which are slices or processes, hold consecutive devices.
    ranks = np.arange(math.prod(outer) * math.prod(inner)).reshape(*outer, *inner)
    order = [axis for pair in zip(range(len(outer)), range(len(outer), ranks.ndim), strict=True) for axis in pair]
    shape = [high * low for high, low in zip(outer, inner, strict=True)]
    merged: list[Any] = ranks.transpose(order).reshape(shape).tolist()
    return merged


def _length(value: Any = None) -> int:
    return _ALL if isinstance(value, Devices) else len(value)


_FUNCTIONS: dict[str, Function] = {
    "device_count": ((), lambda: _ALL),
    "len": (("value",), _length),
    "create_device_mesh": (_ARRAYS["create_device_mesh"], _device_mesh),
    "create_hybrid_device_mesh": (_ARRAYS["create_hybrid_device_mesh"], _hybrid_device_mesh),
}


def _parse(text: str) -> Mapping[str, Any]:
    match = _REPR.search(text)
    if match is not None:
        pairs = re.findall(r"'(\w+)': (\d+)", match["axes"])
        return {"axis_sizes": tuple(int(size) for _, size in pairs), "axis_names": tuple(name for name, _ in pairs)}
    if re.search(r"\b(?:(?:Abstract)?Mesh|make_mesh)\s*\(", text):
        calls = find_calls(text, _SIGNATURES, _FUNCTIONS)
        others = [call.arguments for call in calls[1:] if str(call.arguments) != str(calls[0].arguments)]
        return {**calls[0].arguments, **({"others": len(others)} if others else {})}
    call = find_calls(text, _ARRAYS, _FUNCTIONS)[0]
    return {"devices": _FUNCTIONS[call.name][1](**call.arguments)}


def _build(arguments: Mapping[str, Any], world_size: int | None, experts: bool) -> DeviceMesh:
    reject_experts("jax", experts)
    sizes = arguments.get("axis_shapes") if arguments.get("axis_sizes") is None else arguments["axis_sizes"]
    names = arguments.get("axis_names")
    if sizes is not None:
        (names,) = require(arguments, "jax", "axis_names")
        if isinstance(sizes, Sized) and not len(sizes):
            raise MeshError("this JAX mesh is empty: it has no axes")
        return DeviceMesh(sizes, names, world_size=world_size)
    ids = arguments.get("device_ids")
    devices = _filled(require(arguments, "jax", "devices")[0] if ids is None else ids, world_size)
    array = rank_array("jax", devices)
    if names is None:
        if "axis_names" in arguments or ids is not None:
            require(arguments, "jax", "axis_names")
        # create_device_mesh returns an array of devices, whose axes have no names yet.
        names = [f"axis{index}" for index in range(array.ndim)]
    names = [names] if isinstance(names, str) else names
    if array.dtype == object or array.ndim == 0:
        raise MeshError("jax needs an array of device ids", hint="write the ids, or the shape of jax.devices()")
    return DeviceMesh(array.shape, names, ranks=array, world_size=world_size)


def _filled(devices: Any, world_size: int | None) -> Any:
    """Return the ranks of ``jax.devices()`` in its shape; anything else unchanged."""
    if not isinstance(devices, Devices):
        return devices
    sizes = list(devices.shape)
    fixed = math.prod(size for size in sizes if size != -1)
    is_complete = -1 not in sizes or (world_size is not None and sizes.count(-1) == 1 and fixed > 0)
    if min(sizes, default=0) < -1 or 0 in sizes or fixed > MAX_RANKS or not is_complete:
        raise ParseError(
            f"shape {devices.shape} does not determine the number of devices",
            hint=Hint("write every size, or pass {}", Argument("world_size")),
        )
    if -1 in sizes and world_size is not None:
        if world_size % fixed:
            raise MeshError(f"{world_size} devices cannot be divided by {fixed}", hint="correct the shape")
        sizes[sizes.index(-1)] = world_size // fixed
    if math.prod(sizes) > MAX_RANKS:
        raise ParseError(f"more than {MAX_RANKS:,} devices", hint="write smaller sizes")
    return np.arange(math.prod(sizes)).reshape(sizes)


def _get(source: Any, name: str) -> Any:
    """Return an attribute, or None: attributes that an AbstractMesh lacks raise a ValueError."""
    try:
        return getattr(source, name, None)
    except ValueError:
        return None


def _from_object(source: Any) -> Mapping[str, Any] | None:
    names, array = _get(source, "axis_names"), _get(source, "devices")
    if names is None:
        return None
    if array is None:  # an AbstractMesh
        return {"axis_sizes": _get(source, "axis_sizes"), "axis_names": names}
    devices = np.asarray(array, dtype=object)
    ids = [getattr(device, "id", device) for device in devices.reshape(-1)]
    return {"devices": np.array(ids).reshape(devices.shape), "axis_names": names}


def _omissions(arguments: Mapping[str, Any]) -> Sequence[str]:
    if not arguments.get("others"):
        return ()
    return (f"jax: the text creates {arguments['others'] + 1} meshes, and the first one was read; paste one of them",)


FORMAT = Format(
    "jax",
    re.compile(r"\bmake_mesh\s*\(|\b(?:Abstract)?Mesh\s*\(|\bcreate_(?:hybrid_)?device_mesh\s*\("),
    _write,
    _parse,
    _build,
    _from_object,
    omissions=_omissions,
)
