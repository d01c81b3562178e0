"""TensorRT-LLM: flags, YAML files and calls.

The mesh is (pp, cp, tp). Experts split the ranks of tp into (etp, ep), so ep is the fastest (tensorrt_llm/mapping.py).
Recent versions exchange cp and tp.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from meshlab.base._errors import MeshError
from meshlab.mesh._mesh import DeviceMesh
from meshlab.mesh.interop._clues import AnyOf, CallWith, Followed
from meshlab.mesh.interop._config_text import Config, last_part, select_keys
from meshlab.mesh.interop._parsing import find_call, read_settings
from meshlab.mesh.interop._recipe import Format
from meshlab.mesh.interop._settings import WORLD_SETTING, SettingTable
from meshlab.mesh.interop._sglang import attention_remarks

_ORDER = ("pp", "cp", "tp")

_ATTENTION = "enable-attention-dp"

_TABLE = SettingTable(
    "TensorRT-LLM",
    {
        "pipeline-parallel-size": "pp",
        "context-parallel-size": "cp",
        "tensor-parallel-size": "tp",
        "moe-tensor-parallel-size": "etp",
        "moe-cluster-parallel-size": "moe_cluster",
        "moe-expert-parallel-size": "ep",
    },
    switches=(_ATTENTION,),
    aliases={
        "pp-size": "pipeline-parallel-size",
        "cp-size": "context-parallel-size",
        "tp-size": "tensor-parallel-size",
        "pp": "pipeline-parallel-size",
        "cp": "context-parallel-size",
        "tp": "tensor-parallel-size",
        "moe-tp-size": "moe-tensor-parallel-size",
        "moe-cluster-size": "moe-cluster-parallel-size",
        "cluster-size": "moe-cluster-parallel-size",
        "moe-ep-size": "moe-expert-parallel-size",
        "ep-size": "moe-expert-parallel-size",
        "expert-parallel-size": "moe-expert-parallel-size",
        "ep": "moe-expert-parallel-size",
    },
    harmless=r"^(?:parallel-config|attn-|auto-parallel|workers)|lm-head-tp|load-weights|gpus-per-node",
    left_out={"dwdp-size": "adds groups that exchange weights of experts"},
    style="{}",
    underscores=True,
)


def _parse(text: str) -> Mapping[str, Any]:
    if not _CALL.search(text):
        return _TABLE.select_fixed(read_settings(text, _TABLE))
    selected = _TABLE.select_fixed(find_call(text, {name: ["**"] for name in _CALLS}).arguments)
    _TABLE.require_some(selected, text)
    return selected


_KEYS = re.compile(r"parallel_size$|(?:^|_)(?:tp|pp|cp|ep)_size$|^enable_attention_dp$|^dwdp_size$")

_OWN_KEYS = re.compile(
    r"^(?:moe_(?:expert|tensor|cluster)_parallel_size|moe_(?:ep|tp)_size|enable_attention_dp|gpus_per_node_tp|"
    r"disable_overlap_scheduler|free_gpu_memory_fraction|cuda_graph_config)$"
)


def _from_config(config: Config) -> Mapping[str, Any] | None:
    if not any(_OWN_KEYS.match(last_part(key)) for key in config):
        return None
    selected = _TABLE.select_fixed(select_keys(config, _KEYS, "TensorRT-LLM"))
    return selected if any(name in selected for name in _TABLE.sizes) else None


def _build(arguments: Mapping[str, Any], world_size: int | None, experts: bool) -> DeviceMesh:
    selected = _TABLE.select_fixed(arguments)
    sizes = _TABLE.axis_sizes(selected)
    tp = sizes.setdefault("tp", 1)
    world_size = selected.get(WORLD_SETTING) if world_size is None else world_size
    mesh = DeviceMesh([(axis, sizes[axis]) for axis in _ORDER if axis in sizes], world_size=world_size)
    if not experts:
        rows = mesh["tp"].array
        return mesh.with_groups("attn_dp", rows) if selected.get(_ATTENTION) and tp > 1 else mesh
    cluster, etp, ep = (sizes.get(axis, 1) for axis in ("moe_cluster", "etp", "ep"))
    if ep > 1 and sizes.get("cp", 1) > 1:
        raise MeshError("TensorRT-LLM: meshlab does not read experts together with context parallelism")
    if "ep" not in sizes:
        ep = max(1, tp // (etp * cluster)) if "etp" in sizes else 1
    if "etp" not in sizes:
        etp = max(1, tp // (ep * cluster))
    if etp * cluster * ep != tp:
        raise MeshError(
            f"TensorRT-LLM: moe_tensor_parallel_size {etp} × moe_expert_parallel_size {ep}"
            f"{f' × moe_cluster_parallel_size {cluster}' if cluster > 1 else ''} must be tensor_parallel_size {tp}"
        )
    outer = [(axis, sizes[axis]) for axis in ("pp", "cp") if axis in sizes]
    inside = [("moe_cluster", cluster)] if cluster > 1 else []
    return mesh.view([*outer, ("etp", etp), *inside, ("ep", ep)])


def _omissions(arguments: Mapping[str, Any]) -> tuple[str, ...]:
    selected = _TABLE.select_fixed(arguments)
    notes = _TABLE.omissions(selected)
    sizes = _TABLE.axis_sizes(selected)
    if sizes.get("cp", 1) > 1 and sizes.get("tp", 1) > 1:
        notes += (
            "TensorRT-LLM: tp was read as the fastest axis and cp as the next one; recent versions have them the other "
            "way round, as reorder() returns them",
        )
    return notes


_CALLS = ("LLM", "Mapping", "MultimodalEncoder", "TrtLlmArgs", "TorchLlmArgs")

_CALL = AnyOf(
    (
        CallWith(re.compile(r"\bLLM\s*\("), re.compile(r"\bmoe_(?:expert|tensor|cluster)_parallel_size\s*=")),
        CallWith(re.compile(r"\bMapping\s*\("), re.compile(r"\b(?:moe_ep|moe_tp|tp|pp|cp)_size\s*=")),
        Followed(re.compile(r"\btensorrt_llm\b"), re.compile(r"\bLLM\s*\([^#]{0,2000}?\btensor_parallel_size\s*=")),
    )
)

FORMAT = Format(
    "tensorrt-llm",
    AnyOf(
        (
            Followed(
                re.compile(
                    r"\btrtllm-(?:serve|build|bench|llmapi-launch|eval)\b|\bdynamo\.trtllm\b|\bconvert_checkpoint\.py\b"
                ),
                re.compile(r"--(?:(?:moe_)?(?:tp|pp|cp|ep)(?:_size)?|\w{1,40}[-_]parallel[-_]size)\b"),
            ),
            _CALL,
        )
    ),
    None,
    _parse,
    _build,
    has_experts=lambda arguments: any(
        _TABLE.axis_sizes(_TABLE.select_fixed(arguments)).get(axis, 1) > 1 for axis in ("ep", "moe_cluster")
    ),
    from_config=_from_config,
    omissions=_omissions,
    remarks=attention_remarks,
    looks_for="moe_expert_parallel_size, enable_attention_dp",
)
