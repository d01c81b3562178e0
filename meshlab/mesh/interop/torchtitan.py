"""torchtitan flags. The order is fixed: pp, dp_replicate, dp_shard, cp, tp; experts pp, dp_replicate, efsdp, ep."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from meshlab.errors import ParseError
from meshlab.mesh.interop.flags import read_flags, read_sizes
from meshlab.mesh.interop.recipe import Format, Recipe, check_view, first_rank, losses, require_order
from meshlab.mesh.mesh import DeviceMesh

__all__ = ["FORMAT"]

_FLAGS = {
    "parallelism.pipeline-parallel-degree": "pp",
    "parallelism.data-parallel-replicate-degree": "dp_replicate",
    "parallelism.data-parallel-shard-degree": "dp_shard",
    "parallelism.context-parallel-degree": "cp",
    "parallelism.tensor-parallel-degree": "tp",
    "parallelism.expert-parallel-degree": "ep",
}
_NAMES = {axis: flag.split(".")[1].replace("-", "_") for flag, axis in _FLAGS.items()}
_DENSE = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
_SPARSE = ("pp", "dp_replicate", "efsdp", "ep")


def _write(mesh: DeviceMesh, experts: DeviceMesh | None) -> Recipe:
    first_rank(mesh, "torchtitan")
    sizes = {"dp_shard": 1, **require_order(mesh, "torchtitan", _DENSE)}
    if experts is not None:
        sparse = require_order(experts, "torchtitan's expert layout", _SPARSE)
        check_view(mesh, experts)
        sizes["ep"] = sparse.get("ep", 1)
    arguments = {name: sizes[axis] for axis, name in _NAMES.items() if axis in sizes}
    text = " ".join(f"--parallelism.{name} {size}" for name, size in arguments.items())
    return Recipe("torchtitan", text, arguments, losses(mesh, "torchtitan"))


def _parse(text: str) -> Mapping[str, Any]:
    sizes = read_sizes(read_flags(text), _FLAGS)
    if not sizes:
        raise ParseError(
            f"no flag of torchtitan was found; there are --parallelism.{', --parallelism.'.join(_NAMES.values())}",
            text=text,
        )
    return {_NAMES[axis]: size for axis, size in sizes.items()}


def _build(arguments: Mapping[str, Any], world_size: int | None, experts: bool) -> DeviceMesh:
    # torchtitan shards over all ranks that are left unless told otherwise.
    sizes = {"dp_shard": -1} | {axis: arguments[name] for axis, name in _NAMES.items() if name in arguments}
    mesh = DeviceMesh([(name, sizes[name]) for name in _DENSE if name in sizes], world_size=world_size)
    if not experts:
        return mesh
    kept = [(name, sizes[name]) for name in ("pp", "dp_replicate") if name in sizes]
    return mesh.view([*kept, ("efsdp", -1), ("ep", sizes.get("ep", 1))])


FORMAT = Format(
    "torchtitan",
    re.compile(r"--parallelism\."),
    _write,
    _parse,
    _build,
    has_experts=lambda arguments: (arguments.get(_NAMES["ep"]) or 1) > 1,
)
