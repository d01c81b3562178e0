"""PyTorch (``init_device_mesh``, ``DeviceMesh`` and its repr) and torchtitan's flags.

The last axis is the fastest, as in meshlab.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from meshlab.errors import MeshError, ParseError
from meshlab.mesh.interop.parsing import find_call, read_flags, read_sizes
from meshlab.mesh.interop.recipe import (
    Format,
    Recipe,
    check_view,
    code,
    first_rank,
    rank_array,
    reject_experts,
    require,
    require_order,
    unsupported,
)
from meshlab.mesh.mesh import DeviceMesh

__all__ = ["FORMAT", "TORCHTITAN"]


# -- init_device_mesh and DeviceMesh -----------------------------------------------------------------------------------

_SIGNATURES = {
    "init_device_mesh": ["device_type", "mesh_shape", "mesh_dim_names", "backend_override"],
    "DeviceMesh": ["device_type", "mesh", "mesh_dim_names", "backend_override"],
}

# DeviceMesh((dp=2, tp=4), 'cuda', stride=(4, 1)), and "stride: (4, 1)" in other versions
_REPR = re.compile(r"DeviceMesh\(\((?P<axes>[^()]*)\)(?:[^()]*stride\s*[=:]\s*\((?P<strides>[^()]*)\))?")


def _write(mesh: DeviceMesh, experts: DeviceMesh | None) -> Recipe:
    reject_experts("torch", experts)
    arguments: dict[str, Any] = {"device_type": "cuda"}
    if mesh.in_order:
        function, arguments["mesh_shape"], layout = "init_device_mesh", mesh.shape, code(mesh.shape)
    else:
        function, arguments["mesh"], layout = "DeviceMesh", mesh.ranks, code(mesh.ranks.tolist())
    arguments["mesh_dim_names"] = mesh.axis_names
    text = f'{function}("cuda", {layout}, mesh_dim_names={code(mesh.axis_names)}'
    if mesh.backends:
        arguments["backend_override"] = dict(mesh.backends)
        text += f", backend_override={code(dict(mesh.backends))}"
    notes = unsupported(mesh, "torch", keeps_backends=True)
    # torch.distributed.new_group sorts the ranks of a group.
    sorted_away = [name for name in mesh.axis_names if (np.diff(mesh[name].array, axis=1) < 0).any()]
    if sorted_away:
        notes += (f"torch sorts the ranks of a group, so the rank order along {', '.join(sorted_away)} is lost",)
    return Recipe("torch", text + ")", arguments, notes)


def _parse(text: str) -> Mapping[str, Any]:
    shown = _REPR.search(text)
    if shown is not None and "=" in shown["axes"]:
        pairs = [part.split("=") for part in shown["axes"].split(",") if part.strip()]
        if all(len(pair) == 2 and pair[1].strip().isdecimal() for pair in pairs):
            shape = tuple(int(size) for _, size in pairs)
            names = tuple(name.strip() for name, _ in pairs)
            strides = re.findall(r"-?\d+", shown["strides"] or "")
            return {"mesh_shape": shape, "mesh_dim_names": names, "strides": tuple(map(int, strides)) or None}
    arguments = find_call(text, _SIGNATURES).arguments
    if "=" in str(arguments.get("device_type")):
        raise ParseError("this text is meshlab's own DeviceMesh", hint="run it instead of reading it", text=text)
    return arguments


def _build(arguments: Mapping[str, Any], world_size: int | None, experts: bool) -> DeviceMesh:
    reject_experts("torch", experts)
    (names,) = require(arguments, "torch", "mesh_dim_names")
    backends = {}
    # Keys are axis names or indices; values are a backend or a pair of a backend and its options.
    for axis, choice in (arguments.get("backend_override") or {}).items():
        backends[names[axis] if isinstance(axis, int) else axis] = choice[0] if isinstance(choice, tuple) else choice
    if arguments.get("mesh") is not None:
        ranks = rank_array("torch", arguments["mesh"])
        return DeviceMesh(ranks.shape, names, ranks=ranks, world_size=world_size, backends=backends)
    (shape,) = require(arguments, "torch", "mesh_shape")
    strides = arguments.get("strides")
    placed = _ranks_of_strides(DeviceMesh(shape, names), strides) if strides else None
    return DeviceMesh(shape, names, ranks=placed, world_size=world_size, backends=backends)


def _ranks_of_strides(mesh: DeviceMesh, strides: tuple[int, ...]) -> Any:
    if len(strides) != len(mesh.axes):
        raise MeshError(f"strides {strides} do not match the axes {mesh}", hint="pass one stride per axis")
    return mesh.coordinate_array.astype(np.int64) @ np.asarray(strides, dtype=np.int64)


def _from_object(source: Any) -> Mapping[str, Any] | None:
    if not hasattr(source, "mesh_dim_names") or not hasattr(source, "mesh"):
        return None
    return {"mesh": source.mesh.tolist(), "mesh_dim_names": source.mesh_dim_names}


FORMAT = Format("torch", re.compile(r"init_device_mesh\s*\(|DeviceMesh\s*\("), _write, _parse, _build, _from_object)


# -- torchtitan --------------------------------------------------------------------------------------------------------

_FLAGS = {
    "parallelism.pipeline-parallel-degree": "pp",
    "parallelism.data-parallel-replicate-degree": "dp_replicate",
    "parallelism.data-parallel-shard-degree": "dp_shard",
    "parallelism.context-parallel-degree": "cp",
    "parallelism.tensor-parallel-degree": "tp",
    "parallelism.expert-parallel-degree": "ep",
}

_NAMES = {axis: flag.split(".")[1].replace("-", "_") for flag, axis in _FLAGS.items()}

# torchtitan unflattens one world mesh twice (torchtitan/distributed/parallel_dims.py). In its dense mesh, fsdp is
# dp_shard and cp merged. In its sparse mesh, efsdp is what remains of dp_shard, cp and tp after ep.
_DENSE = ("pp", "dp_replicate", "dp_shard", "cp", "tp")

_SPARSE = ("pp", "dp_replicate", "efsdp", "ep")


def _write_torchtitan(mesh: DeviceMesh, experts: DeviceMesh | None) -> Recipe:
    first_rank(mesh, "torchtitan")
    sizes = {"dp_shard": 1, **require_order(mesh, "torchtitan", _DENSE)}
    if experts is not None:
        sparse = require_order(experts, "torchtitan's expert layout", _SPARSE)
        check_view(mesh, experts)
        sizes["ep"] = sparse.get("ep", 1)
    arguments = {name: sizes[axis] for axis, name in _NAMES.items() if axis in sizes}
    text = " ".join(f"--parallelism.{name} {size}" for name, size in arguments.items())
    return Recipe("torchtitan", text, arguments, unsupported(mesh, "torchtitan"))


def _parse_torchtitan(text: str) -> Mapping[str, Any]:
    sizes = read_sizes(read_flags(text), _FLAGS)
    if not sizes:
        expected = ", ".join(f"--parallelism.{name}" for name in _NAMES.values())
        raise ParseError("no torchtitan flag found", hint=f"use one of {expected}", text=text)
    return {_NAMES[axis]: size for axis, size in sizes.items()}


def _build_torchtitan(arguments: Mapping[str, Any], world_size: int | None, experts: bool) -> DeviceMesh:
    # data_parallel_shard_degree is -1 by default: torchtitan shards over all remaining ranks.
    sizes = {"dp_shard": -1} | {axis: arguments[name] for axis, name in _NAMES.items() if name in arguments}
    mesh = DeviceMesh([(name, sizes[name]) for name in _DENSE if name in sizes], world_size=world_size)
    if not experts:
        return mesh
    kept = [(name, sizes[name]) for name in ("pp", "dp_replicate") if name in sizes]
    return mesh.view([*kept, ("efsdp", -1), ("ep", sizes.get("ep", 1))])


TORCHTITAN = Format(
    "torchtitan",
    re.compile(r"--parallelism\."),
    _write_torchtitan,
    _parse_torchtitan,
    _build_torchtitan,
    has_experts=lambda arguments: (arguments.get(_NAMES["ep"]) or 1) > 1,
)
