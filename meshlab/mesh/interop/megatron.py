"""Megatron-LM: a rank generator with an order string, command-line flags, and ``HyperCommGrid``.

The first axis is the fastest, the opposite of meshlab, so orders and shapes are reversed here. In the order
"tp-cp-ep-dp-pp", neighbouring ranks differ in tp (megatron/core/parallel_state.py, `RankGenerator`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from meshlab.errors import MeshError, ParseError
from meshlab.mesh.axes import axis_pairs, short
from meshlab.mesh.interop.parsing import dashed, find_call, read_flags, read_sizes, require_world_size
from meshlab.mesh.interop.recipe import (
    Format,
    Recipe,
    check_view,
    code,
    first_rank,
    reject_experts,
    require,
    require_order,
    unsupported,
)
from meshlab.mesh.mesh import DeviceMesh

__all__ = ["FLAGS", "HYPERCOMM", "ORDER"]


# -- order strings -----------------------------------------------------------------------------------------------------

_TOKENS = ("tp", "cp", "ep", "dp", "pp")

_GENERATOR = ["tp", "ep", "dp", "pp", "cp", "order", "rank_offset"]


def _order_pairs(order: str, sizes: Mapping[str, Any]) -> list[tuple[str, int]]:
    # Megatron searches for a name anywhere in the string, so "gtp-dp" would pass as an order with tp. Here tokens are
    # compared as a whole. As in Megatron, an axis of size 1 may be missing from the order.
    tokens = order.split("-")
    repeated = [token for token in tokens if tokens.count(token) > 1]
    if repeated:
        raise MeshError(
            f"order {order!r} contains {repeated[0]} {tokens.count(repeated[0])} times", hint="list it once"
        )
    missing = [f"{axis}={size}" for axis, size in sizes.items() if axis not in tokens and size != 1]
    if missing:
        raise MeshError(f"order {order!r} does not contain {', '.join(missing)}", hint="add it, fastest axis first")
    unknown = [token for token in tokens if token not in sizes and token not in _TOKENS]
    if unknown:
        raise MeshError(
            f"order {order!r} contains {short(unknown[0])}, which has no size",
            hint=f"pass its size, or use only {', '.join(sizes)}",
        )
    return [(token, sizes.get(token, 1)) for token in reversed(tokens)]


def _write_order(mesh: DeviceMesh, experts: DeviceMesh | None) -> Recipe:
    reject_experts("megatron", experts)
    unknown = [name for name in mesh.axis_names if name not in _TOKENS]
    if unknown:
        raise MeshError(
            f"Megatron's order has no axis {', '.join(unknown)}; it has {', '.join(_TOKENS)}",
            hint="call rename() or flatten(), or write the mesh for hypercomm, which accepts any name",
        )
    offset = first_rank(mesh, "Megatron", may_start_later=True)
    sizes = {token: mesh.size(token) if token in mesh.axis_names else 1 for token in ("tp", "ep", "dp", "pp", "cp")}
    arguments = {**sizes, "order": "-".join(reversed(mesh.axis_names)), **({"rank_offset": offset} if offset else {})}
    text = f"RankGenerator({', '.join(f'{name}={code(value)}' for name, value in arguments.items())})"
    return Recipe("megatron", text, arguments, unsupported(mesh, "megatron"))


def _parse_order(text: str) -> Mapping[str, Any]:
    return find_call(text, {"RankGenerator": _GENERATOR}).arguments


def _build_order(arguments: Mapping[str, Any], world_size: int | None, experts: bool) -> DeviceMesh:
    reject_experts("megatron", experts)
    (order,) = require(arguments, "megatron", "order")
    sizes = {name: size for name, size in arguments.items() if name not in ("order", "rank_offset")}
    pairs = _order_pairs(str(order), sizes)
    return _from_offset(pairs, arguments.get("rank_offset") or 0, world_size)


def _from_offset(pairs: Sequence[tuple[str, int]], offset: int, world_size: int | None) -> DeviceMesh:
    """Return a mesh whose ranks count up from `offset`."""
    if not offset:
        return DeviceMesh(pairs, world_size=world_size)
    count = DeviceMesh(pairs).size()
    return DeviceMesh(pairs, ranks=range(offset, offset + count), world_size=world_size or offset + count)


def _order_from_object(source: Any) -> Mapping[str, Any] | None:
    if not isinstance(getattr(source, "order", None), str):
        return None
    names = [*_GENERATOR, *source.order.split("-")]
    return {name: getattr(source, name) for name in names if hasattr(source, name)}


ORDER = Format(
    "megatron", re.compile(r"RankGenerator\s*\("), _write_order, _parse_order, _build_order, _order_from_object
)


# -- command-line flags ------------------------------------------------------------------------------------------------

_FLAGS = {
    "tensor-model-parallel-size": "tp",
    "pipeline-model-parallel-size": "pp",
    "context-parallel-size": "cp",
    "expert-model-parallel-size": "ep",
    "expert-tensor-parallel-size": "etp",
}

_DATA_FIRST = "use-tp-pp-dp-mapping"

# The two orders that megatron/training/initialize.py passes to initialize_model_parallel, without and with the flag.
_DEFAULT_ORDER, _STAGES_BEFORE_DATA = "tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"

_EXPERT_AXES = {"tp": "etp", "dp": "edp"}


def _write_flags(mesh: DeviceMesh, experts: DeviceMesh | None) -> Recipe:
    first_rank(mesh, "Megatron")
    try:
        sizes, switch = require_order(mesh, "Megatron", ("pp", "dp", "cp", "tp")), False
    except MeshError:
        if "pp" not in mesh.axis_names or "dp" not in mesh.axis_names:
            raise
        sizes, switch = require_order(mesh, f"Megatron with --{_DATA_FIRST}", ("dp", "pp", "cp", "tp")), True
    arguments: dict[str, Any] = {flag: sizes[axis] for flag, axis in _FLAGS.items() if axis in sizes}
    if experts is not None:
        order = ("edp", "pp", "ep", "etp") if switch else ("pp", "edp", "ep", "etp")
        inside = require_order(experts, "Megatron's expert layout", order)
        check_view(mesh, experts)
        arguments["expert-model-parallel-size"] = inside.get("ep", 1)
        arguments["expert-tensor-parallel-size"] = inside.get("etp", 1)
    parts = [f"--{flag} {size}" for flag, size in arguments.items()]
    if switch:
        arguments[_DATA_FIRST] = True
        parts.append(f"--{_DATA_FIRST}")
    notes = (f"Megatron computes dp={sizes.get('dp', 1)} from the number of processes that are started",)
    return Recipe("megatron-flags", " ".join(parts), arguments, notes + unsupported(mesh, "megatron"))


def _parse_flags(text: str) -> Mapping[str, Any]:
    flags = read_flags(text)
    sizes = read_sizes(flags, _FLAGS)
    if not sizes:
        raise ParseError("no Megatron flag found", hint=f"use one of --{', --'.join(_FLAGS)}", text=text)
    arguments: dict[str, Any] = {flag: sizes[axis] for flag, axis in _FLAGS.items() if axis in sizes}
    return {**arguments, _DATA_FIRST: _DATA_FIRST in flags}


def _build_flags(arguments: Mapping[str, Any], world_size: int | None, experts: bool) -> DeviceMesh:
    arguments = dashed(arguments)
    world_size = require_world_size(world_size, "Megatron")
    order = _STAGES_BEFORE_DATA if arguments.get(_DATA_FIRST) else _DEFAULT_ORDER
    sizes = {axis: arguments[flag] for flag, axis in _FLAGS.items() if flag in arguments}
    # Megatron builds two rank generators over the same ranks: a dense one without ep, and one for experts without cp.
    dense = {axis: size for axis, size in sizes.items() if axis in ("tp", "pp", "cp")} | {"dp": -1}
    mesh = DeviceMesh([pair for pair in _order_pairs(order, dense) if pair[0] in dense], world_size=world_size)
    if not experts:
        return mesh
    # The tensor-parallel size of experts is that of the dense layers unless a flag sets it.
    inside = {"tp": sizes.get("etp", sizes.get("tp", 1)), "ep": sizes.get("ep", 1), "pp": sizes.get("pp", 1), "dp": -1}
    pairs = [pair for pair in _order_pairs(order, inside) if pair[0] in inside]
    view = [(_EXPERT_AXES.get(name, name), size) for name, size in pairs if name != "pp" or "pp" in sizes]
    return mesh.view(view)


def _flags_have_experts(arguments: Mapping[str, Any]) -> bool:
    sizes = dashed(arguments)
    return any((sizes.get(flag) or 1) > 1 for flag in _FLAGS if flag.startswith("expert"))


FLAGS = Format(
    "megatron-flags",
    re.compile(
        r"--(?:tensor|pipeline|expert)[-_]model[-_]parallel[-_]size|--(?:context|expert[-_]tensor)[-_]parallel[-_]size"
    ),
    _write_flags,
    _parse_flags,
    _build_flags,
    has_experts=_flags_have_experts,
)


# -- HyperCommGrid (megatron/core/hyper_comm_grid.py) ------------------------------------------------------------------


def _write_grid(mesh: DeviceMesh, experts: DeviceMesh | None) -> Recipe:
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
    return Recipe("hypercomm", text, arguments, unsupported(mesh, "hypercomm"))


def _reversed(mesh: DeviceMesh) -> dict[str, Any]:
    return {"shape": list(reversed(mesh.shape)), "dim_names": list(reversed(mesh.axis_names))}


def _parse_grid(text: str) -> Mapping[str, Any]:
    arguments = dict(find_call(text, {"HyperCommGrid": ["shape", "dim_names", "rank_offset"]}).arguments)
    if "register_view" in text:
        view = find_call(text, {"register_view": ["name", "shape", "dim_names", "shared_dims"]})
        arguments["view"] = {name: view.arguments.get(name) for name in ("shape", "dim_names")}
    return arguments


def _build_grid(arguments: Mapping[str, Any], world_size: int | None, experts: bool) -> DeviceMesh:
    shape, names = require(arguments, "hypercomm", "shape", "dim_names")
    mesh = _from_offset(axis_pairs(shape, names)[::-1], arguments.get("rank_offset") or 0, world_size)
    if not experts:
        return mesh
    if arguments.get("view") is None:
        raise MeshError("no expert layout: this HyperCommGrid has no registered view", hint="read it without experts=")
    shape, names = require(arguments["view"], "hypercomm's view", "shape", "dim_names")
    return mesh.view(axis_pairs(shape, names)[::-1])


def _grid_from_object(source: Any) -> Mapping[str, Any] | None:
    if not hasattr(source, "dim_names") or not hasattr(source, "shape"):
        return None
    return {"shape": source.shape, "dim_names": source.dim_names, "rank_offset": getattr(source, "rank_offset", 0)}


HYPERCOMM = Format(
    "hypercomm",
    re.compile(r"HyperCommGrid\s*\("),
    _write_grid,
    _parse_grid,
    _build_grid,
    _grid_from_object,
    has_experts=lambda arguments: arguments.get("view") is not None,
)
