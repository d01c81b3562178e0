"""DeepSpeed: ``ProcessTopology`` and its two named subclasses.

The axes are row-major and the last one is the fastest, as in meshlab (deepspeed/runtime/pipe/topology.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from meshlab.mesh._axes import axis_pairs
from meshlab.mesh._mesh import DeviceMesh
from meshlab.mesh.interop._parsing import find_call
from meshlab.mesh.interop._recipe import Format, Recipe, code, first_rank, reject_experts, require, unsupported

_THEIRS = {"pp": "pipe", "dp": "data", "tp": "model"}
_OURS = {theirs: ours for ours, theirs in _THEIRS.items()}
_SIGNATURES = {
    "ProcessTopology": ["axes", "dims"],
    "PipeModelDataParallelTopology": ["num_pp", "num_mp", "num_dp"],
    "PipeDataParallelTopology": ["num_pp", "num_dp"],
}


def _write(mesh: DeviceMesh, experts: DeviceMesh | None) -> Recipe:
    reject_experts("deepspeed", experts)
    first_rank(mesh, "DeepSpeed")
    axes = [_THEIRS.get(name, name) for name in mesh.axis_names]  # ProcessTopology accepts any axis name
    arguments = {"axes": axes, "dims": list(mesh.shape)}
    if mesh.axis_names == ("pp", "dp", "tp"):
        pp, dp, tp = mesh.shape
        text = f"PipeModelDataParallelTopology(num_pp={pp}, num_mp={tp}, num_dp={dp})"
    elif mesh.axis_names == ("pp", "dp"):
        text = f"PipeDataParallelTopology(num_pp={mesh.shape[0]}, num_dp={mesh.shape[1]})"
    else:
        text = f"ProcessTopology(axes={code(axes)}, dims={code(list(mesh.shape))})"
    return Recipe("deepspeed", text, arguments, unsupported(mesh, "deepspeed"))


def _parse(text: str) -> Mapping[str, Any]:
    call = find_call(text, _SIGNATURES)
    if call.name == "ProcessTopology":
        return call.arguments
    # The arguments are (num_pp, num_mp, num_dp), but the axes are pipe, data, model: model is the fastest.
    order = ["num_pp", "num_dp", "num_mp"] if call.name == "PipeModelDataParallelTopology" else ["num_pp", "num_dp"]
    sizes = require(call.arguments, call.name, *order)
    return {"axes": ["pipe", "data", "model"][: len(sizes)], "dims": sizes}


def _build(arguments: Mapping[str, Any], world_size: int | None, experts: bool) -> DeviceMesh:
    reject_experts("deepspeed", experts)
    axes, dims = require(arguments, "deepspeed", "axes", "dims")
    pairs = axis_pairs(dims, axes)
    return DeviceMesh([(_OURS.get(name, name), size) for name, size in pairs], world_size=world_size)


def _from_object(source: Any) -> Mapping[str, Any] | None:
    if not hasattr(source, "axes") or not hasattr(source, "dims"):
        return None
    return {"axes": source.axes, "dims": source.dims}


FORMAT = Format(
    "deepspeed",
    re.compile(r"(?:ProcessTopology|PipeModelDataParallelTopology|PipeDataParallelTopology)\s*\("),
    _write,
    _parse,
    _build,
    _from_object,
)
