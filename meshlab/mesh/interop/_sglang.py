"""SGLang: command-line flags with a fixed order of axes.

A server has PP stages of TP ranks, and TP is the fastest axis. Attention and experts split the groups of TP each in
their own way: attention into (DP, CP, TP) if DP attention is enabled, experts into (data, experts, TP). Without DP
attention, the copies of DP are servers of their own (sglang/srt/distributed/parallel_state.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from meshlab.base._errors import MeshError
from meshlab.mesh._mesh import DeviceMesh
from meshlab.mesh.interop._clues import AnyOf, CallWith
from meshlab.mesh.interop._config_text import Config, last_part, select_keys
from meshlab.mesh.interop._parsing import find_call, read_settings
from meshlab.mesh.interop._recipe import Format, Recipe, check_view, first_rank, require_order, unsupported
from meshlab.mesh.interop._settings import SettingTable

_ORDER = ("dp", "pp", "tp")
_ATTENTION = "enable-dp-attention"
_ALL_TO_ALL = "moe-a2a-backend"
_EVERY_EXPERT = (_ALL_TO_ALL, "enable-ep-moe", "enable-deepep-moe")

_TABLE = SettingTable(
    "SGLang",
    {
        "dp-size": "dp",
        "pp-size": "pp",
        "tp-size": "tp",
        "attn-cp-size": "attn_cp",
        "dcp-size": "dcp",
        "moe-dp-size": "edp",
        "ep-size": "ep",
    },
    switches=(_ATTENTION, *_EVERY_EXPERT),
    aliases={
        "data-parallel-size": "dp-size",
        "pipeline-parallel-size": "pp-size",
        "tensor-parallel-size": "tp-size",
        "attention-context-parallel-size": "attn-cp-size",
        "decode-context-parallel-size": "dcp-size",
        "moe-data-parallel-size": "moe-dp-size",
        "expert-parallel-size": "ep-size",
        "dp": "dp-size",
        "pp": "pp-size",
        "tp": "tp-size",
        "ep": "ep-size",
    },
    harmless=r"^max-ep-size$|^moe-dense-tp-size$|sequence-parallel|^data-parallel-(?:rank|address|backend)",
    order="dp, pp, tp",
    left_out={
        "shared-experts-tp-size": "splits the groups of tp once more for shared experts",
        "dwdp-size": "adds groups that exchange weights",
        "enable-prefill-cp": "splits prompts over attention groups, whose size SGLang may choose itself",
        "enable-prefill-context-parallel": "splits prompts over attention groups, whose size SGLang may choose itself",
        "enable-nsa-prefill-context-parallel": "sets the size of the attention context groups to tp / dp",
        "enable-dsa-prefill-context-parallel": "sets the size of the attention context groups to tp / dp",
    },
)


def _write(mesh: DeviceMesh, experts: DeviceMesh | None) -> Recipe:
    first_rank(mesh, "SGLang")
    sizes = require_order(mesh, "SGLang", _ORDER)
    arguments: dict[str, Any] = {flag: sizes[axis] for flag, axis in _TABLE.sizes.items() if axis in sizes}
    if experts is not None:
        inside = require_order(experts, "SGLang's expert layout", ("dp", "pp", "edp", "ep", "etp"))
        check_view(mesh, experts)
        arguments |= {"ep-size": inside.get("ep", 1)}
        if inside.get("edp", 1) > 1:
            arguments["moe-dp-size"] = inside["edp"]
    text = " ".join(f"--{flag} {size}" for flag, size in arguments.items())
    return Recipe("sglang", text, arguments, unsupported(mesh, "sglang"))


def _parse(text: str) -> Mapping[str, Any]:
    if not _CALL.search(text):
        return read_settings(text, _TABLE)
    selected = _TABLE.select(find_call(text, {"Engine": ["**"], "ServerArgs": ["**"]}).arguments)
    _TABLE.require_some(selected, text)
    return selected


_KEYS = re.compile(r"(?:^|_)(?:parallel|tp_size|pp_size|dp_size|ep_size|cp_size)|^enable_dp_attention$|^moe_")

_OWN_KEYS = re.compile(r"^(?:mem_fraction_static|enable_dp_attention|attn_cp_size|moe_dp_size|moe_a2a_backend)$")


def _from_config(config: Config) -> Mapping[str, Any] | None:
    if not any(_OWN_KEYS.match(last_part(key).replace("-", "_")) for key in config):
        return None
    selected = _TABLE.select(select_keys(config, _KEYS, "SGLang"))
    return selected if any(name in selected for name in _TABLE.sizes) else None


def _expert_size(selected: Mapping[str, Any]) -> int:
    """Return the size of the expert groups: every all-to-all backend uses all ranks of tp."""
    if any(selected.get(switch) for switch in _EVERY_EXPERT):
        return int(selected.get("tp-size", 1)) // int(selected.get("moe-dp-size", 1))
    return int(selected.get("ep-size", 1))


def _build(arguments: Mapping[str, Any], world_size: int | None, experts: bool) -> DeviceMesh:
    selected = _TABLE.select(arguments)
    sizes = _TABLE.axis_sizes(selected)
    tp, dp = sizes.get("tp", 1), sizes.get("dp", 1)
    attention = bool(selected.get(_ATTENTION))
    pairs: list[tuple[str, int]] = [(axis, sizes[axis]) for axis in ("pp", "tp") if axis in sizes] or [("tp", 1)]
    if "dp" in sizes and not attention:
        pairs.insert(0, ("dp", dp))
    if world_size is not None and "dp" not in sizes and world_size != DeviceMesh(pairs).size():
        pairs.insert(0, ("dp", -1))
    mesh = DeviceMesh(pairs, world_size=world_size)
    if experts:
        edp, ep = sizes.get("edp", 1), _expert_size(selected)
        _require_divisor(tp, f"moe-dp-size {edp} × ep-size {ep}", edp * ep)
        outer = [pair for pair in pairs if pair[0] != "tp"]
        parts = [("edp", edp)] if "edp" in sizes else []
        return mesh.view([*outer, *parts, ("ep", ep), ("etp", tp // (edp * ep))])
    return _with_parts(mesh, tp, dp if attention else 1, sizes.get("attn_cp", 1), sizes.get("dcp", 1))


def _with_parts(mesh: DeviceMesh, tp: int, dp: int, cp: int, dcp: int) -> DeviceMesh:
    """Add the groups into which attention splits the groups of tp."""
    _require_divisor(tp, f"dp-size {dp} × attn-cp-size {cp}", dp * cp)
    _require_divisor(tp, f"dcp-size {dcp}", dcp)
    inner = tp // (dp * cp)
    grid = mesh.ranks.reshape(-1, dp, cp, inner)
    if dp > 1:
        mesh = mesh.with_groups("attn_dp", np.moveaxis(grid, 1, -1).reshape(-1, dp))
    if cp > 1:
        mesh = mesh.with_groups("attn_cp", np.moveaxis(grid, 2, -1).reshape(-1, cp))
    if dp * cp > 1:
        mesh = mesh.with_groups("attn_tp", grid.reshape(-1, inner))
    return mesh.with_groups("dcp", grid.reshape(-1, dcp)) if dcp > 1 else mesh


def _require_divisor(tp: int, what: str, size: int) -> None:
    if tp % size:
        raise MeshError(f"SGLang splits the {tp} ranks of a tensor group, but {what} does not divide {tp}")


def _omissions(arguments: Mapping[str, Any]) -> tuple[str, ...]:
    selected = _TABLE.select(arguments)
    notes = _TABLE.omissions(selected)
    if selected.get("attn-cp-size", 1) > max(1, selected.get("moe-dp-size", 1)):
        notes += ("SGLang: the context groups of attention are also the data groups of the experts",)
    if selected.get(_ATTENTION) and selected.get("dp-size", 1) <= 1:
        notes += (f"SGLang: --{_ATTENTION} has no effect without --dp-size",)
    return notes


def attention_remarks(mesh: DeviceMesh) -> tuple[str, ...]:
    """Return a sentence about the groups of DP attention, if a mesh has them."""
    if all(group.name != "attn_dp_0" for group in mesh.custom_groups):
        return ()
    return (
        f"attention is data parallel inside the {mesh.size('tp')} ranks of tp: mesh['attn_dp'] has groups of "
        f"{mesh['attn_dp'].size} ranks with different requests",
    )


_CALL = CallWith(re.compile(r"\b(?:Engine|ServerArgs)\s*\("), re.compile(r"\b(?:tp|pp|dp|ep)_size\s*="))

_LENGTHS = r"(?:tp|pp|dp|ep|dcp|attn[-_]cp|moe[-_]dp)[-_]size"

FORMAT = Format(
    "sglang",
    AnyOf(
        (
            re.compile(
                rf"--{_LENGTHS}\b|--(?:tp|pp|dp|ep)[\s=]+[\"']?[\d$]|--enable[-_]dp[-_]attention|"
                r"\A(?=[\s\S]*\bsglang\b)(?=[\s\S]*--(?:tensor|pipeline|data|expert)[-_]parallel[-_]size)"
            ),
            _CALL,
        )
    ),
    _write,
    _parse,
    _build,
    has_experts=lambda arguments: _expert_size(_TABLE.select(arguments)) > 1,
    from_config=_from_config,
    omissions=_omissions,
    remarks=attention_remarks,
    looks_for="tp-size, pp-size, dp-size, ep-size",
)
