"""DeepSpeed's JSON config: tensor, sequence and expert parallelism, and the groups that share parameters of ZeRO.

The sizes of tensor and sequence parallelism are those of the fastest axis (deepspeed/__init__.py). Groups of AutoEP,
of MiCS and of hpZ are neighbouring ranks, whatever the other axes are (deepspeed/module_inject/auto_ep_folding.py,
deepspeed/runtime/zero/mics_utils.py, deepspeed/utils/groups.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from meshlab.base._errors import MeshError, ParseError
from meshlab.mesh._mesh import DeviceMesh
from meshlab.mesh.interop._clues import NEVER
from meshlab.mesh.interop._config_text import Config, flat_config, parse_config
from meshlab.mesh.interop._parsing import require_world_size
from meshlab.mesh.interop._recipe import Format
from meshlab.mesh.interop._settings import SettingTable, is_on

_EXPERTS_ON = "expert-parallel.enabled"

_DATA_BEFORE_EXPERTS = "use-data-before-expert-parallelism"

_TABLE = SettingTable(
    "DeepSpeed",
    {
        "tensor-parallel.autotp-size": "tp",
        "sequence-parallel-size": "sp",
        "data-parallel-size": "dp",
        "expert-parallel.autoep-size": "ep",
        "expert-parallel.expert-tensor-parallel-size": "etp",
        "zero-optimization.mics-shard-size": "mics",
        "zero-optimization.zero-hpz-partition-size": "hpz",
    },
    switches=(_EXPERTS_ON, _DATA_BEFORE_EXPERTS),
    aliases={
        "tensor-parallel.tp-size": "tensor-parallel.autotp-size",
        "tensor-parallel.tp.tp-size": "tensor-parallel.autotp-size",
        "tp.tp-size": "tensor-parallel.autotp-size",
    },
    # Everything else in these sections, such as the names of modules
    harmless=r"^(?:tensor|expert)-parallel\.(?!.*(?:size|degree)$)|^checkpoint\.|^tensor-parallel\.tp-overlap|"
    r"^(?:tensor-parallel\.)?(?:tp\.)?tp-grain-size$|pipeline-stage|partition-config",
    left_out={
        "hybrid-engine.inference-tp-size": "gives generation groups of its own",
        "elasticity.model-parallel-size": "describes groups that the program creates, not DeepSpeed",
    },
    style="{}",
    underscores=True,
)

_OF_NEOX = re.compile(r"(?:pipe|model)[-_]parallel[-_]size")  # in the same file as the settings of DeepSpeed

_SIGNS = re.compile(
    r"^(?:zero_optimization|train_batch_size|train_micro_batch_size_per_gpu|gradient_accumulation_steps|fp16|bf16|"
    r"tensor_parallel|expert_parallel|sequence_parallel_size)(?:\.|$)"
)


def _parse(text: str) -> Mapping[str, Any]:
    arguments = _from_config(parse_config(text) or {})
    if arguments is None:
        raise ParseError("no DeepSpeed setting found", hint=f"use one of {_TABLE.names}", text=text)
    return arguments


def _from_config(config: Config) -> Mapping[str, Any] | None:
    if not any(_SIGNS.match(key) for key in config):
        return None
    selected = _TABLE.select({key: value for key, value in config.items() if str(value).lower() != "auto"})
    if not any(name in selected for name in _TABLE.sizes):
        if not any(key.startswith("zero_optimization") for key in config) or any(map(_OF_NEOX.fullmatch, config)):
            return None
        raise ParseError(
            f"this config of DeepSpeed has no sizes of parallelism; meshlab looked for {_TABLE.names}",
            hint="without them, every rank is data parallel unless the program passes a mesh: write 'dp=-1'",
        )
    return {name.replace("-", "_"): value for name, value in selected.items()}


def _select(arguments: Mapping[str, Any]) -> dict[str, Any]:
    selected = _TABLE.select(flat_config(arguments))
    if not is_on(selected.get(_EXPERTS_ON, False)):  # AutoEP ignores its section unless it is enabled
        selected = {name: value for name, value in selected.items() if not name.startswith("expert-parallel.")}
    return selected


def _build(arguments: Mapping[str, Any], world_size: int | None, experts: bool) -> DeviceMesh:
    selected = _select(arguments)
    sizes = {axis: max(size, 1) for axis, size in _TABLE.axis_sizes(selected).items()}
    tp, sp, shard, hpz = (sizes.get(axis, 1) for axis in ("tp", "sp", "mics", "hpz"))
    if tp > 1 and sp > 1:
        raise MeshError(f"DeepSpeed has either tensor or sequence parallelism, not tp={tp} and sp={sp}")
    if world_size is None and "dp" not in sizes:
        require_world_size(world_size, "DeepSpeed")
    inner = [(axis, sizes[axis]) for axis in ("sp", "tp") if sizes.get(axis, 1) > 1]
    mesh = DeviceMesh([("dp", sizes.get("dp", -1)), *inner], world_size=world_size)
    if experts:
        return _experts_of(mesh, selected, sizes)
    if shard > 1:
        if inner:
            raise MeshError(f"DeepSpeed's MiCS does not support {inner[0][0]}", hint="remove mics_shard_size")
        mesh = mesh.split_axis("dp", [("dp_replicate", -1), ("dp_shard", shard)])
    if hpz > 1:
        rows = _blocks(mesh, min(hpz, mesh.size()), "zero_hpz_partition_size")
        mesh = mesh.with_groups("hpz", rows)
    return mesh


def _blocks(mesh: DeviceMesh, size: int, name: str) -> Any:
    """Return neighbouring ranks in groups of one size, one group per row."""
    if mesh.size() % size:
        raise MeshError(f"DeepSpeed: {name} {size} does not divide {mesh.size()} ranks")
    return mesh.ranks.reshape(-1, size)


def _experts_of(mesh: DeviceMesh, selected: Mapping[str, Any], sizes: Mapping[str, int]) -> DeviceMesh:
    if "ep" not in sizes:
        raise MeshError(
            "no expert axis: expert_parallel is missing or not enabled", hint="add it, or read without experts="
        )
    if sizes.get("etp", 1) > 1:
        raise MeshError("DeepSpeed accepts only an expert_tensor_parallel_size of 1")
    if not is_on(selected.get(_DATA_BEFORE_EXPERTS, False)):
        return mesh.reshape([("edp", -1), ("ep", sizes["ep"])])
    if "tp" in mesh.axis_names:
        raise MeshError("DeepSpeed does not combine use_data_before_expert_parallelism with tensor parallelism")
    return mesh.reshape([("ep", sizes["ep"]), ("edp", -1)])


FORMAT = Format(
    "deepspeed-config",
    NEVER,
    None,
    _parse,
    _build,
    has_experts=lambda arguments: _select(arguments).get("expert-parallel.autoep-size", 1) > 1,
    from_config=_from_config,
    omissions=lambda arguments: _TABLE.omissions(_select(arguments)),
    looks_for="tensor_parallel.autotp_size, sequence_parallel_size, zero_optimization.mics_shard_size",
)
