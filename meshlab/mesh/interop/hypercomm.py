"""Megatron's ``HyperCommGrid``: any axis names, **the first the fastest**, and views over the same ranks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from meshlab.errors import MeshError
from meshlab.mesh.interop.parsing import find_call
from meshlab.mesh.interop.megatron import from_offset
from meshlab.mesh.interop.recipe import Format, Recipe, check_view, code, first_rank, losses, require, zip_axes
from meshlab.mesh.mesh import DeviceMesh

__all__ = ["FORMAT"]


def _write(mesh: DeviceMesh, experts: DeviceMesh | None) -> Recipe:
    offset = first_rank(mesh, "HyperCommGrid", may_start_later=True)
    arguments: dict[str, Any] = _reversed(mesh)
    shown = f"{code(arguments['shape'])}, {code(arguments['dim_names'])}"
    if offset:
        arguments["rank_offset"] = offset
        shown += f", rank_offset={offset}"
    text = f"HyperCommGrid({shown})"
    if experts is not None:
        check_view(mesh, experts)
        shared = [name for name in experts.axis_names if name in mesh.axis_names]
        arguments["view"] = _reversed(experts)
        text = (
            f'grid = {text}\ngrid.register_view("experts", {code(arguments["view"]["shape"])}, '
            f"{code(arguments['view']['dim_names'])}, shared_dims={code(shared)})"
        )
    return Recipe("hypercomm", text, arguments, losses(mesh, "hypercomm"))


def _reversed(mesh: DeviceMesh) -> dict[str, Any]:
    return {"shape": list(reversed(mesh.shape)), "dim_names": list(reversed(mesh.axis_names))}


def _parse(text: str) -> Mapping[str, Any]:
    arguments = dict(find_call(text, {"HyperCommGrid": ["shape", "dim_names", "rank_offset"]}).arguments)
    if "register_view" in text:
        view = find_call(text, {"register_view": ["name", "shape", "dim_names", "shared_dims"]})
        arguments["view"] = {name: view.arguments.get(name) for name in ("shape", "dim_names")}
    return arguments


def _build(arguments: Mapping[str, Any], world_size: int | None, experts: bool) -> DeviceMesh:
    shape, names = require(arguments, "hypercomm", "shape", "dim_names")
    mesh = from_offset(zip_axes(names, shape)[::-1], arguments.get("rank_offset") or 0, world_size)
    if not experts:
        return mesh
    if arguments.get("view") is None:
        raise MeshError("this grid has no registered view, so it says nothing of experts; read it without experts=")
    shape, names = require(arguments["view"], "hypercomm's view", "shape", "dim_names")
    return mesh.view(zip_axes(names, shape)[::-1])


def _from_object(source: Any) -> Mapping[str, Any] | None:
    if not hasattr(source, "dim_names") or not hasattr(source, "shape"):
        return None
    return {"shape": source.shape, "dim_names": source.dim_names, "rank_offset": getattr(source, "rank_offset", 0)}


FORMAT = Format(
    "hypercomm",
    re.compile(r"HyperCommGrid\s*\("),
    _write,
    _parse,
    _build,
    _from_object,
    has_experts=lambda arguments: arguments.get("view") is not None,
)
