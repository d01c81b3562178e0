"""HyperCommGrid of Megatron-LM: a grid of ranks with named dims, and further views of the same ranks.

The first dim is the fastest, the opposite of meshlab, so shapes are reversed here (megatron/core/hyper_comm_grid.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from meshlab.base._errors import MeshError
from meshlab.mesh._axes import axis_pairs
from meshlab.mesh._mesh import DeviceMesh
from meshlab.mesh.interop._parsing import find_call, find_calls
from meshlab.mesh.interop._recipe import (
    Format,
    Recipe,
    check_view,
    code,
    first_rank,
    mesh_from_offset,
    require,
    unsupported,
)

_VIEW = ["name", "shape", "dim_names", "shared_dims"]


def _write(mesh: DeviceMesh, experts: DeviceMesh | None) -> Recipe:
    offset = first_rank(mesh, "HyperCommGrid", may_start_later=True)
    arguments: dict[str, Any] = _reversed(mesh)
    call = f"{code(arguments['shape'])}, {code(arguments['dim_names'])}"
    if offset:
        arguments["rank_offset"] = offset
        call += f", rank_offset={offset}"
    text = f"HyperCommGrid({call})"
    if experts is not None:
        check_view(mesh, experts)
        shared = [name for name in experts.axis_names if name in mesh.axis_names]
        arguments["view"] = _reversed(experts)
        text = (
            f'grid = {text}\ngrid.register_view("experts", {code(arguments["view"]["shape"])}, '
            f"{code(arguments['view']['dim_names'])}, shared_dims={code(shared)})"
        )
    return Recipe("hypercomm", text, arguments, unsupported(mesh, "hypercomm"))


def _reversed(mesh: DeviceMesh) -> dict[str, Any]:
    return {"shape": list(reversed(mesh.shape)), "dim_names": list(reversed(mesh.axis_names))}


def _parse(text: str) -> Mapping[str, Any]:
    arguments = dict(find_call(text, {"HyperCommGrid": ["shape", "dim_names", "rank_offset"]}).arguments)
    if "register_view" in text:
        arguments["views"] = {
            str(call.arguments.get("name")): {name: call.arguments.get(name) for name in ("shape", "dim_names")}
            for call in find_calls(text, {"register_view": _VIEW})
        }
    return arguments


def _views(arguments: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the registered views by name."""
    views = dict(arguments.get("views") or {})
    return views if arguments.get("view") is None else {"experts": arguments["view"], **views}


def _expert_view(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the only view, or the only one of several that has a name or a dim for experts."""
    views = _views(arguments)
    if len(views) > 1:
        dims = {name: [str(dim).lower() for dim in view.get("dim_names") or ()] for name, view in views.items()}
        views = {
            name: view
            for name, view in views.items()
            if re.search(r"expert|expt|moe", name.lower()) or any(re.match(r"ep$|expt|expert", d) for d in dims[name])
        }
    if len(views) != 1:
        names = ", ".join(_views(arguments))
        raise MeshError(
            f"no expert layout: this HyperCommGrid has {f'the views {names}' if names else 'no registered view'}",
            hint="read it without experts=" if not names else "read the view that you need as a grid of its own",
        )
    return next(iter(views.values()))


def _build(arguments: Mapping[str, Any], world_size: int | None, experts: bool) -> DeviceMesh:
    shape, names = require(arguments, "hypercomm", "shape", "dim_names")
    pairs, offset = axis_pairs(shape, names)[::-1], arguments.get("rank_offset") or 0
    mesh = mesh_from_offset(pairs, offset, None)
    if world_size is not None and world_size != mesh.world_size:  # a grid may leave ranks idle
        mesh = DeviceMesh(pairs, ranks=mesh.ranks, world_size=world_size)
    if not experts:
        return mesh
    shape, names = require(_expert_view(arguments), "hypercomm's view", "shape", "dim_names")
    return mesh.view(axis_pairs(shape, names)[::-1])


def _from_object(source: Any) -> Mapping[str, Any] | None:
    if not hasattr(source, "dim_names") or not hasattr(source, "shape"):
        return None
    views = {
        str(name): {"shape": view.shape, "dim_names": view.dim_names}
        for name, view in dict(getattr(source, "_views", {})).items()
        if name != "base"
    }
    grid = {"shape": source.shape, "dim_names": source.dim_names, "rank_offset": getattr(source, "rank_offset", 0)}
    return {**grid, "views": views} if views else grid


FORMAT = Format(
    "hypercomm",
    re.compile(r"HyperCommGrid\s*\("),
    _write,
    _parse,
    _build,
    _from_object,
    has_experts=lambda arguments: bool(_views(arguments)),
)
