"""Accelerate and axolotl: configs, flags and ``ParallelismConfig``.

The order is that of ``_get_mesh`` (accelerate/parallelism_config.py). axolotl passes its sizes to it, and puts ep in
front (axolotl/monkeypatch/accelerate/parallelism_config.py). Accelerate's plugin for Megatron has Megatron's order.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from meshlab.base._errors import ParseError
from meshlab.mesh._mesh import DeviceMesh
from meshlab.mesh.interop._clues import AnyOf, CallWith, Followed
from meshlab.mesh.interop._config_text import Config, last_part
from meshlab.mesh.interop._megatron import DEFAULT_ORDER, build_from_sizes
from meshlab.mesh.interop._parsing import find_call, read_settings, require_world_size
from meshlab.mesh.interop._recipe import Format, reject_experts
from meshlab.mesh.interop._settings import WORLD_SETTING, SettingTable

_ORDER = ("ep", "dp_replicate", "dp_shard", "cp", "sp", "tp")

_FILLS = "fills"  # axolotl gives the remaining ranks to an axis of data parallelism without a size

_SIZES = {f"{axis.replace('_', '-')}-size": axis for axis in _ORDER}

_MEGATRON = {"megatron-lm-tp-degree": "megatron_tp", "megatron-lm-pp-degree": "megatron_pp"}

_TABLE = SettingTable(
    "Accelerate",
    _SIZES | _MEGATRON,
    switches=(_FILLS,),
    aliases={
        **{f"parallelism-config-{name}": name for name in _SIZES},
        **{name.removeprefix("megatron-lm-"): name for name in _MEGATRON},
        "num-processes": WORLD_SETTING,
        "tensor-parallel-size": "tp-size",
        "context-parallel-size": "cp-size",
        "sequence-parallel-degree": "cp-size",
        "expert-parallel-size": "ep-size",
    },
    refused=dict.fromkeys(
        ("pp-size", "dp-size"), "is not a setting of Accelerate, so the config is one of another program"
    ),
    harmless=r"use-fsdp|parallelism-config-(?!.*size$)|sequence-parallelism|^use-parallelism|(?:cp|sp)-(?:backend|handler|comm)",
    style="{}",
    underscores=True,
)

_OF_ACCELERATE = re.compile(r"(?:^|\.)parallelism_config(?:_\w+)?(?:\.|$)|^megatron_lm_config\.|^distributed_type$")

_OF_AXOLOTL = re.compile(r"^(?:dp_replicate_size|dp_shard_size|base_model)$")

_ABOUT_SIZES = re.compile(r"(?:_size|_degree|^num_processes)$")


def _from_config(config: Config) -> Mapping[str, Any] | None:
    is_axolotl = any(_OF_AXOLOTL.match(key) for key in config)
    if not is_axolotl and not any(_OF_ACCELERATE.search(key) for key in config):
        return None
    names = {last_part(key): value for key, value in config.items() if _ABOUT_SIZES.search(key)}
    selected = _TABLE.select({name: value for name, value in names.items() if value is not None})
    if any(name in selected for name in _TABLE.sizes):
        return {**selected, _FILLS: is_axolotl}
    if is_axolotl:
        return None
    raise ParseError(
        f"this config of Accelerate has no sizes of parallelism; meshlab looked for {_TABLE.names}",
        hint="without them, every rank is data parallel: write 'dp=-1'",
    )


def _parse(text: str) -> Mapping[str, Any]:
    if not _CALL.search(text):
        return read_settings(text, _TABLE)
    selected = _TABLE.select(find_call(text, {"ParallelismConfig": ["**"]}).arguments)
    _TABLE.require_some(selected, text)
    return selected


def _build(arguments: Mapping[str, Any], world_size: int | None, experts: bool) -> DeviceMesh:
    reject_experts("accelerate", experts)
    selected = _TABLE.select(arguments)
    _TABLE.check(selected)
    sizes = _TABLE.axis_sizes(selected)
    world_size = selected.get(WORLD_SETTING) if world_size is None else world_size
    degrees = {axis.removeprefix("megatron_"): sizes.pop(axis) for axis in _MEGATRON.values() if axis in sizes}
    if degrees:
        return build_from_sizes(degrees, DEFAULT_ORDER, require_world_size(world_size, "Accelerate"), False)
    if selected.get(_FILLS):
        # The first of the two without a size is filled, as in _get_parallel_config_kwargs of axolotl.
        sizes = {axis: size for axis, size in sizes.items() if size != 1 or not axis.startswith("dp_")}
        filled = "dp_replicate" if "dp_shard" in sizes else "dp_shard"
        if filled == "dp_shard" or world_size is not None:
            sizes = {filled: -1} | sizes
    elif sizes.get("sp", 1) > 1 and not {"dp_shard", "dp_replicate"} & set(sizes) and world_size is not None:
        sizes["dp_replicate"] = -1  # DeepSpeed, which sp needs, is data parallel over the remaining ranks
    return DeviceMesh([(axis, sizes[axis]) for axis in _ORDER if axis in sizes], world_size=world_size)


_CALL = CallWith(re.compile(r"\bParallelismConfig\s*\("), re.compile(r"\b(?:dp_replicate|dp_shard|tp|cp|sp)_size\s*="))

FORMAT = Format(
    "accelerate",
    AnyOf(
        (
            re.compile(r"--parallelism_config_\w{1,20}_size\b"),
            Followed(
                re.compile(r"\baccelerate\s+launch\b"),
                re.compile(r"--(?:dp[-_]replicate|dp[-_]shard|tp|cp|sp)[-_]size\b"),
            ),
            _CALL,
        )
    ),
    None,
    _parse,
    _build,
    from_config=_from_config,
    omissions=lambda arguments: _TABLE.omissions(_TABLE.select(arguments)),
    looks_for="parallelism_config.parallelism_config_tp_size, dp_shard_size",
)
