"""OpenRLHF: flags of its command lines.

The mesh of a trainer is (dp, sp, tp), where sp is the ring of attention (openrlhf/utils/deepspeed/deepspeed.py). With
Ray, the actor has its own number of GPUs, and generation has engines of its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from meshlab.mesh._mesh import DeviceMesh
from meshlab.mesh.interop._clues import AnyOf, Followed
from meshlab.mesh.interop._parsing import all_flags, read_settings, require_world_size, started_ranks
from meshlab.mesh.interop._recipe import Format, reject_experts
from meshlab.mesh.interop._settings import WORLD_SETTING, SettingTable

_TABLE = SettingTable(
    "OpenRLHF",
    {"ring-attn-size": "sp", "ds-tensor-parallel-size": "tp"},
    aliases={
        "fsdp-tensor-parallel-size": "ds-tensor-parallel-size",
        **{f"{section}.tensor-parallel-size": "ds-tensor-parallel-size" for section in ("ds", "fsdp")},
        **{f"{section}.ring-attn-size": "ring-attn-size" for section in ("ds", "fsdp")},
    },
    harmless=r"ring-head-stride|ring-attn-head",
    left_out=dict.fromkeys(
        ("vllm-tensor-parallel-size", "vllm.tensor-parallel-size"), "gives generation engines of their own"
    ),
    underscores=True,
)


def _parse(text: str) -> Mapping[str, Any]:
    flags = all_flags(text)
    if not _SIZES.search(text) and started_ranks(text, flags) is not None:  # the actor is data parallel
        return _TABLE.select(
            {name: values[-1] for name, values in flags.items()} | {WORLD_SETTING: started_ranks(text, flags)}
        )
    return read_settings(text, _TABLE)


def _build(arguments: Mapping[str, Any], world_size: int | None, experts: bool) -> DeviceMesh:
    reject_experts("openrlhf", experts)
    selected = _TABLE.select(arguments)
    sizes = _TABLE.axis_sizes(selected)
    world = require_world_size(selected.get(WORLD_SETTING) if world_size is None else world_size, "OpenRLHF")
    return DeviceMesh([("dp", -1), *((axis, sizes[axis]) for axis in ("sp", "tp") if axis in sizes)], world_size=world)


_SIZES = re.compile(r"--(?:(?:ds|fsdp)[_.])?ring_attn_size\b|--(?:ds|fsdp)[_.]tensor_parallel_size\b")

FORMAT = Format(
    "openrlhf",
    AnyOf(
        (
            _SIZES,
            Followed(re.compile(r"\bopenrlhf\b"), re.compile(r"--(?:actor[_.]num_gpus_per_node|vllm[_.]tensor_)")),
        )
    ),
    None,
    _parse,
    _build,
    omissions=lambda arguments: _TABLE.omissions(_TABLE.select(arguments)),
)
