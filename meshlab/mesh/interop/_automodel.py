"""NeMo AutoModel: the section ``distributed`` of its YAML files, and the calls that create its meshes.

The mesh is (pp, dp_replicate, dp_shard, cp, tp), and experts have (ep_shard, ep) over all ranks of a stage
(nemo_automodel/components/distributed/mesh_utils.py). With Megatron FSDP it is (dp, cp, tp).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from meshlab.base._errors import MeshError, ParseError
from meshlab.mesh._mesh import DeviceMesh
from meshlab.mesh.interop._clues import CallWith
from meshlab.mesh.interop._config_text import Config, parse_config
from meshlab.mesh.interop._parsing import find_calls, require_world_size
from meshlab.mesh.interop._recipe import Format
from meshlab.mesh.interop._settings import WORLD_SETTING, SettingTable

_ORDER = ("pp", "dp_replicate", "dp_shard", "cp", "tp")

_STRATEGY = "strategy"

_TABLE = SettingTable(
    "NeMo AutoModel",
    {
        "pp-size": "pp",
        "dp-size": "dp",
        "dp-replicate-size": "dp_replicate",
        "cp-size": "cp",
        "tp-size": "tp",
        "ep-size": "ep",
    },
    harmless=r"sequence-parallel|^pp-|-pp-|^cp-|pipeline\.",
    style="{}",
    underscores=True,
)

_OWN_KEYS = re.compile(r"^distributed\.(?:_target_|strategy|dp_replicate_size|ep_size|sequence_parallel|moe\.)")

_KEY = re.compile(r"^distributed\.(?P<name>(?:pp|dp|dp_replicate|cp|tp|ep)_size)$")


def _from_config(config: Config) -> Mapping[str, Any] | None:
    return _in_section(config) if any(_OWN_KEYS.match(key) for key in config) else None


def _in_section(config: Config) -> Mapping[str, Any] | None:
    sizes = {match["name"]: value for key, value in config.items() if (match := _KEY.match(key))}
    strategy = str(config.get("distributed.strategy") or config.get("distributed._target_") or "")
    return {**_TABLE.select_fixed(sizes), _STRATEGY: strategy} if sizes else None


def _parse(text: str) -> Mapping[str, Any]:
    if not _CALL.search(text):
        arguments = _in_section(parse_config(text) or {})
        if arguments is None:
            raise ParseError("no setting of NeMo AutoModel found", hint=f"use one of {_TABLE.names}", text=text)
        return arguments
    calls = find_calls(text, {name: ["**"] for name in _CALLS})
    arguments = {name: value for call in calls for name, value in call.arguments.items()}
    strategy = _CONFIG.search(text)
    return {**_TABLE.select_fixed(arguments), _STRATEGY: calls[0].name if strategy is None else strategy[0]}


def _build(arguments: Mapping[str, Any], world_size: int | None, experts: bool) -> DeviceMesh:
    selected = _TABLE.select_fixed(arguments)
    sizes = _TABLE.axis_sizes(selected)
    strategy = str(arguments.get(_STRATEGY, "")).lower().replace("_", "")
    world_size = selected.get(WORLD_SETTING) if world_size is None else world_size
    if "dp" not in sizes:
        require_world_size(world_size, "NeMo AutoModel")
    replicas = sizes.get("dp_replicate", 1)
    if sizes.get("dp", replicas) % replicas:
        raise MeshError(f"NeMo AutoModel: dp_replicate_size {replicas} does not divide dp_size {sizes['dp']}")
    if "megatronfsdp" in strategy or "ddp" in strategy:
        mesh = DeviceMesh(
            [("dp", sizes.get("dp", -1)), *((axis, sizes[axis]) for axis in ("cp", "tp") if axis in sizes)],
            world_size=world_size,
        )
    else:
        sizes["dp_shard"] = sizes["dp"] // replicas if "dp" in sizes else -1
        mesh = DeviceMesh([(axis, sizes[axis]) for axis in _ORDER if axis in sizes], world_size=world_size)
    if not experts:
        return mesh
    if "ep" not in sizes:
        raise MeshError("no expert axis: ep_size is missing", hint="add it, or read without experts=")
    outer = [("pp", sizes["pp"])] if "pp" in mesh.axis_names else []
    return mesh.view([*outer, ("ep_shard", -1), ("ep", sizes["ep"])])


_CALLS = ("create_device_mesh", "ParallelismSizes", "FSDP2Manager", "MegatronFSDPManager")

_CALL = CallWith(
    re.compile(rf"\b(?:{'|'.join(_CALLS)})\s*\("), re.compile(r"\b(?:dp|tp|pp|cp|ep|dp_replicate)_size\s*=")
)

_CONFIG = re.compile(r"\b(?:FSDP2|MegatronFSDP|DDP)(?:Config|Manager)(?=\s*\()")

FORMAT = Format(
    "automodel",
    _CALL,
    None,
    _parse,
    _build,
    has_experts=lambda arguments: _TABLE.select_fixed(arguments).get("ep-size", 1) > 1,
    from_config=_from_config,
    omissions=lambda arguments: _TABLE.omissions(
        _TABLE.select_fixed({k: v for k, v in arguments.items() if k != _STRATEGY})
    ),
    looks_for="distributed.strategy with distributed.tp_size",
)
