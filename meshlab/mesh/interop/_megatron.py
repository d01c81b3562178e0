"""Megatron-LM: a rank generator with an order string, command-line flags, and configs with the same names.

The first axis is the fastest, the opposite of meshlab, so orders are reversed here. In the order "tp-cp-ep-dp-pp",
neighbouring ranks differ in tp (megatron/core/parallel_state.py, `RankGenerator`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from meshlab.base._errors import MeshError
from meshlab.mesh._axes import short
from meshlab.mesh._mesh import DeviceMesh
from meshlab.mesh.interop._config_text import STARTED, Config, product_of, select_keys
from meshlab.mesh.interop._parsing import find_call, read_settings, require_world_size
from meshlab.mesh.interop._recipe import (
    Format,
    Recipe,
    check_view,
    code,
    first_rank,
    mesh_from_offset,
    reject_experts,
    require,
    require_order,
    unsupported,
)
from meshlab.mesh.interop._settings import WORLD_SETTING, SettingTable

# -- order strings -----------------------------------------------------------------------------------------------------

_REMAT = "gtp_remat"
"""Axis along which weights are sharded and gathered before use. Its ranks hold different data, like those of dp."""

_TOKENS = ("tp", _REMAT, "cp", "ep", "dp", "pp")

_GENERATOR = ["tp", "ep", "dp", "pp", "cp", "order", "rank_offset", _REMAT]


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
    notes = unsupported(mesh, "megatron")
    if mesh.idle_ranks.size:
        if not offset:
            first_rank(mesh, "Megatron")  # raises, because no rank may be left over at the end
        notes += (f"pass local_world_size={mesh.size()} to initialize_model_parallel, because other ranks are idle",)
    sizes = {token: mesh.size(token) if token in mesh.axis_names else 1 for token in ("tp", "ep", "dp", "pp", "cp")}
    if sizes["ep"] > 1 and sizes["cp"] > 1:
        raise MeshError(
            f"one RankGenerator of Megatron has either ep or cp, not ep={sizes['ep']} and cp={sizes['cp']}",
            hint="write the mesh without ep and pass its view with ep as experts= to megatron-flags",
        )
    arguments: dict[str, Any] = {**sizes, "order": "-".join(reversed(mesh.axis_names))}
    if offset:
        arguments["rank_offset"] = offset
    if _REMAT in mesh.axis_names:
        arguments[_REMAT] = mesh.size(_REMAT)
    text = f"RankGenerator({', '.join(f'{name}={code(value)}' for name, value in arguments.items())})"
    return Recipe("megatron", text, arguments, notes)


def _parse_order(text: str) -> Mapping[str, Any]:
    return find_call(text, {"RankGenerator": _GENERATOR}).arguments


def _build_order(arguments: Mapping[str, Any], world_size: int | None, experts: bool) -> DeviceMesh:
    reject_experts("megatron", experts)
    (order,) = require(arguments, "megatron", "order")
    sizes = {name: size for name, size in arguments.items() if name not in ("order", "rank_offset")}
    pairs = _order_pairs(str(order).lower(), sizes)
    if sizes.get("ep", 1) != 1 and sizes.get("cp", 1) != 1:
        raise MeshError("one RankGenerator of Megatron has either ep or cp, not both", hint="set one of them to 1")
    return mesh_from_offset(pairs, arguments.get("rank_offset") or 0, world_size)


def _order_from_object(source: Any) -> Mapping[str, Any] | None:
    if not isinstance(getattr(source, "order", None), str):
        return None
    names = [*_GENERATOR, *source.order.split("-")]
    return {name: getattr(source, name) for name in names if hasattr(source, name)}


ORDER = Format(
    "megatron", re.compile(r"RankGenerator\s*\("), _write_order, _parse_order, _build_order, _order_from_object
)


# -- command-line flags and configs ----------------------------------------------------------------------------------

_SHARDS, _EXPERT_SHARDS = "tensor-parallel-num-weight-shards", "expert-tensor-parallel-num-weight-shards"

_DATA_FIRST = "use-tp-pp-dp-mapping"

_TABLE = SettingTable(
    "Megatron",
    {
        "tensor-model-parallel-size": "tp",
        "pipeline-model-parallel-size": "pp",
        "context-parallel-size": "cp",
        "expert-model-parallel-size": "ep",
        "expert-tensor-parallel-size": "etp",
        _SHARDS: "shards",
        _EXPERT_SHARDS: "expert_shards",
    },
    switches=(_DATA_FIRST,),
    aliases={
        # The names of these settings in other files of Megatron and NeMo
        "tensor-parallel-size": "tensor-model-parallel-size",
        "pipeline-parallel-size": "pipeline-model-parallel-size",
        "expert-parallel-size": "expert-model-parallel-size",
        "expert-tensor-model-parallel-size": "expert-tensor-parallel-size",
        "context-model-parallel-size": "context-parallel-size",
    },
    harmless=r"sequence-parallel|virtual-pipeline|^pipeline-model-parallel-(?:layout|split-rank|comm-backend)|"
    r"fully-parallel|fsdp|^data-parallel-(?:random-init|sharding-strategy)|async-tensor-model-parallel|"
    r"^(?:overlap|delay|defer|defer-embedding|deallocate|variable|batch|high).*|"
    r"^(?:tp|cp|ep)-(?:comm|only)|standalone|account-for|^distribute-|^num-layers|^cross-entropy|"
    r"^parallel-(?:output|residual)|^barrier|^moe-.*parallel-(?:folding|overlap)$",
    left_out={
        "num-distributed-optimizer-instances": "splits the groups of dp and cp once more for the optimizer",
        "hierarchical-context-parallel-sizes": "splits the groups of cp into levels; split_axis('cp', …) returns them",
        "hybrid-context-parallel": "adds groups of every power of two inside dp and cp",
        "dynamic-context-parallel": "adds groups of several sizes inside dp and cp",
        "inference-shards": "places inference on other groups",
        "rollout-num-gpus-per-engine": "gives generation engines of their own",
        **{
            f"rl-inference-{name}-parallel-size": "gives inference a layout of its own"
            for name in ("tensor-model", "pipeline-model", "expert-model", "expert-tensor-model")
        },
    },
    refused={
        "model-parallel-size": "is no longer accepted by Megatron; use --tensor-model-parallel-size",
        **{
            f"encoder-{name}-size": "places an encoder on ranks of its own; read the decoder alone, without this flag"
            for name in ("tensor-model-parallel", "pipeline-model-parallel", "context-parallel")
        },
    },
)

# The two orders that megatron/training/initialize.py passes to initialize_model_parallel, without and with the flag.
DEFAULT_ORDER, _STAGES_BEFORE_DATA = "tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"

_EXPERT_AXES = {"tp": "etp", "dp": "edp", _REMAT: "egtp_remat"}


def _write_flags(mesh: DeviceMesh, experts: DeviceMesh | None) -> Recipe:
    first_rank(mesh, "Megatron")
    try:
        sizes, switch = require_order(mesh, "Megatron", ("pp", "dp", "cp", _REMAT, "tp")), False
    except MeshError:
        if "pp" not in mesh.axis_names or "dp" not in mesh.axis_names:
            raise
        order = ("dp", "pp", "cp", _REMAT, "tp")
        sizes, switch = require_order(mesh, f"Megatron with --{_DATA_FIRST}", order), True
    arguments: dict[str, Any] = {flag: sizes[axis] for flag, axis in _TABLE.sizes.items() if axis in sizes}
    if _REMAT in sizes:
        arguments[_SHARDS] = sizes.get("tp", 1) * sizes[_REMAT]
    if experts is not None:
        slow = ("edp", "pp") if switch else ("pp", "edp")
        inside = require_order(experts, "Megatron's expert layout", (*slow, "egtp_remat", "ep", "etp"))
        check_view(mesh, experts)
        arguments["expert-model-parallel-size"] = inside.get("ep", 1)
        arguments["expert-tensor-parallel-size"] = inside.get("etp", 1)
        if "egtp_remat" in inside:
            arguments[_EXPERT_SHARDS] = inside.get("etp", 1) * inside["egtp_remat"]
    parts = [f"--{flag} {size}" for flag, size in arguments.items()]
    if switch:
        arguments[_DATA_FIRST] = True
        parts.append(f"--{_DATA_FIRST}")
    notes = (f"Megatron computes dp={sizes.get('dp', 1)} from the number of processes that are started",)
    return Recipe("megatron-flags", " ".join(parts), arguments, notes + unsupported(mesh, "megatron"))


_KEYS = re.compile(rf"parallel|num_weight_shards|optimizer_instances|^{_DATA_FIRST.replace('-', '_')}$")


def _flags_from_config(config: Config) -> Mapping[str, Any] | None:
    # Only the names with "model" are Megatron's own; vLLM and others use the short ones too.
    keys = [key for key in config if _OWN_KEY.search(key.replace("-", "_"))]
    if not keys:
        return None
    selected = _TABLE.select(select_keys(config, _KEYS, "Megatron"))
    per_node = ("devices", "n_gpus_per_node", "gpus_per_node", "num_gpus_per_node")
    world = config.get(STARTED, product_of(config, ("nnodes", "num_nodes"), per_node))
    if world is not None:
        selected[WORLD_SETTING] = world
    # cfg = other_recipe(), followed by cfg.model.tensor_model_parallel_size = 2
    base = next((config[root] for root in {key.partition(".")[0] for key in keys} if _is_call(config.get(root))), None)
    return selected if base is None else {**selected, _BASE: base}


_OWN_KEY = re.compile(
    r"(?:^|[./@]|__)(?:(?:tensor|pipeline|expert)_model_parallel_size$|\w+\.model\.(?:context|expert_tensor)_parallel_size$)"
)

_BASE = "base"


def _is_call(value: Any) -> bool:
    return isinstance(value, str) and value.endswith(")")


def _flag_omissions(arguments: Mapping[str, Any]) -> tuple[str, ...]:
    selected = _TABLE.select({name: value for name, value in arguments.items() if name != _BASE})
    notes = _TABLE.omissions(selected)
    unset = [_TABLE.written(name).lstrip("-") for name in list(_TABLE.sizes)[:3] if name not in selected]
    if arguments.get(_BASE) and unset:
        verb = "was" if len(unset) == 1 else "were"
        notes += (f"Megatron: {', '.join(unset)} {verb} read as 1, but {arguments[_BASE]} may set it",)
    sizes = _TABLE.axis_sizes(selected)
    if arguments.get(_BASE) and "etp" not in sizes and min(sizes.get("ep", 1), sizes.get("tp", 1)) > 1:
        notes += (
            f"Megatron: expert-tensor-parallel-size is not set, so it is {sizes['tp']} as in Megatron-LM; recent "
            f"versions of Megatron-Bridge set it to 1",
        )
    return notes


def _build_flags(arguments: Mapping[str, Any], world_size: int | None, experts: bool) -> DeviceMesh:
    selected = _TABLE.select(arguments)
    _TABLE.check(selected)
    world_size = selected.get(WORLD_SETTING) if world_size is None else world_size
    sizes = _TABLE.axis_sizes(selected)
    order = _STAGES_BEFORE_DATA if selected.get(_DATA_FIRST) else DEFAULT_ORDER
    return build_from_sizes(sizes, order, require_world_size(world_size, "Megatron"), experts)


def build_from_sizes(sizes: Mapping[str, int], order: str, world_size: int, experts: bool) -> DeviceMesh:
    """Return the mesh of ``initialize_model_parallel``, dense or of experts; `order` has the fastest axis first."""
    # Megatron builds two rank generators over the same ranks: a dense one without ep, and one for experts without cp.
    dense = {axis: size for axis, size in sizes.items() if axis in ("tp", "pp", "cp")} | {"dp": -1}
    dense |= _remat(_SHARDS, sizes.get("tp", 1), sizes.get("shards"))
    mesh = _ordered(_with_remat(order, "tp"), dense, world_size)
    if not experts:
        return mesh
    # The tensor-parallel size of experts is that of the dense layers unless a flag sets it.
    etp = sizes.get("etp", sizes.get("tp", 1))
    inside = {"tp": etp, "ep": sizes.get("ep", 1), "pp": sizes.get("pp", 1), "dp": -1}
    inside |= _remat(_EXPERT_SHARDS, etp, sizes.get("expert_shards"))
    pairs = [pair for pair in _order_pairs(_with_remat(order, "ep"), inside) if pair[0] in inside]
    # Like Megatron, a view rejects stages of experts that differ from those of dense layers.
    return mesh.view([(_EXPERT_AXES.get(name, name), size) for name, size in pairs if name != "pp" or "pp" in sizes])


def _ordered(order: str, sizes: Mapping[str, int], world_size: int) -> DeviceMesh:
    return DeviceMesh([pair for pair in _order_pairs(order, sizes) if pair[0] in sizes], world_size=world_size)


def _remat(flag: str, tp: int, shards: int | None) -> dict[str, int]:
    """Return the size of the axis of weight shards, which is there only if its flag is given."""
    if shards is None or shards == tp:
        return {}
    if shards < tp or shards % tp:
        raise MeshError(
            f"Megatron: --{flag} {shards} must be a multiple of the tensor-parallel size {tp}",
            hint=f"set it to {max(1, shards // tp) * tp} or {(shards // tp + 1) * tp}",
        )
    return {_REMAT: shards // tp}


def _with_remat(order: str, after: str) -> str:
    """Return an order with the axis of weight shards: after tp for dense layers, after ep for experts."""
    tokens = order.split("-")
    if _REMAT not in tokens:
        tokens.insert(tokens.index(after) + 1, _REMAT)
    return "-".join(tokens)


def _flags_have_experts(arguments: Mapping[str, Any]) -> bool:
    sizes = _TABLE.axis_sizes(_TABLE.select(arguments))
    return any((sizes.get(axis) or 1) > 1 for axis in ("ep", "etp", "expert_shards"))


FLAGS = Format(
    "megatron-flags",
    re.compile(
        r"--(?:tensor|pipeline|expert)[-_]model[-_]parallel[-_]size|--tensor[-_]parallel[-_]num[-_]weight[-_]shards|"
        # Servers have these names too, or forks of them do.
        r"\A(?![\s\S]*\b(?:vllm|sglang)\b)[\s\S]*?--(?:context|expert[-_]tensor)[-_]parallel[-_]size"
    ),
    _write_flags,
    lambda text: read_settings(text, _TABLE),
    _build_flags,
    has_experts=_flags_have_experts,
    from_config=_flags_from_config,
    omissions=_flag_omissions,
    looks_for="tensor_model_parallel_size, pipeline_model_parallel_size, context_parallel_size",
)
