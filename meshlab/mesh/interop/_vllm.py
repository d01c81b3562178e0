"""vLLM: command-line flags and keyword arguments with a fixed order of axes.

``initialize_model_parallel`` reshapes the ranks to (external DP, DP, PP, PCP, TP), so TP is the fastest axis and the
external copies are the slowest. Decode context parallelism adds no ranks: it splits groups of TP, or spans PCP
(vllm/distributed/parallel_state.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from meshlab.base._errors import MeshError
from meshlab.mesh._axes import Ranks
from meshlab.mesh._mesh import DeviceMesh
from meshlab.mesh.interop._clues import AnyOf, CallWith, Followed
from meshlab.mesh.interop._config_text import Config, last_part, select_keys
from meshlab.mesh.interop._parsing import find_call, read_settings
from meshlab.mesh.interop._recipe import Format, Recipe, first_rank, require_order, unsupported
from meshlab.mesh.interop._settings import UNNAMED, SettingTable

_OUTSIDE = "dp_outside"
_ORDER = (_OUTSIDE, "dp", "pp", "pcp", "tp")
_EXPERTS = "enable-expert-parallel"
_DECODE = "decode-context-parallel-size"

_TABLE = SettingTable(
    "vLLM",
    {
        "data-parallel-size": "dp",
        "pipeline-parallel-size": "pp",
        "prefill-context-parallel-size": "pcp",
        "tensor-parallel-size": "tp",
        _DECODE: "dcp",
    },
    switches=(_EXPERTS,),
    aliases={
        "dp": "data-parallel-size",
        "pp": "pipeline-parallel-size",
        "pcp": "prefill-context-parallel-size",
        "tp": "tensor-parallel-size",
        "dcp": _DECODE,
        "ep": _EXPERTS,
    },
    # How the copies of dp are started and reached, and how the processes load weights
    harmless=r"^data-parallel-(?:size-local|rank|start-rank|address|master|rpc-port|backend|hybrid|external|multi)|"
    r"^max-parallel-loading-workers$|sequence-parallel",
    order="dp, pp, tp",
    left_out={"enable-elastic-ep": "changes the number of ranks while the server runs; the mesh shows the start"},
)


def _write(mesh: DeviceMesh, experts: DeviceMesh | None) -> Recipe:
    first_rank(mesh, "vLLM")
    sizes = require_order(mesh, "vLLM", _ORDER)
    arguments: dict[str, Any] = {flag: sizes[axis] for flag, axis in _TABLE.sizes.items() if axis in sizes}
    decode = mesh["dcp"] if "dcp_0" in mesh.creation_order else None
    if decode is not None and np.array_equal(decode.array, _decode_groups(mesh, decode.size)):
        arguments[_DECODE] = decode.size
        for name in decode.names:
            mesh = mesh.without_group(name)
    parts = [f"--{flag} {size}" for flag, size in arguments.items()]
    if experts is not None:
        if experts != _experts_of(mesh):
            raise MeshError(
                f"vLLM distributes experts over dp, pcp and tp together, {_experts_of(mesh)!r}, not {experts!r}"
            )
        arguments[_EXPERTS] = True
        parts.append(f"--{_EXPERTS}")
    notes = unsupported(mesh, "vllm")
    if sizes.get(_OUTSIDE, 1) > 1:
        notes = (f"start {sizes[_OUTSIDE]} copies of the server for {_OUTSIDE}; vLLM has no flag for it", *notes)
    return Recipe("vllm", " ".join(parts), arguments, notes)


def _experts_of(mesh: DeviceMesh) -> DeviceMesh:
    # vLLM moves pp in front of dp, and merges dp, pcp and tp in this order.
    inside = [name for name in ("dp", "pcp", "tp") if name in mesh.axis_names]
    if not inside:
        raise MeshError(f"vLLM distributes experts over dp, pcp and tp, but {mesh} has none of these axes")
    return mesh.flatten(*inside, name="ep")


def _decode_groups(mesh: DeviceMesh, size: int) -> Ranks:
    """Return the groups of decode context parallelism, one per row."""
    tp, pcp = (mesh.size(name) if name in mesh.axis_names else 1 for name in ("tp", "pcp"))
    allowed = [pcp, tp * pcp] if pcp > 1 else [number for number in range(1, tp + 1) if tp % number == 0]
    if size != 1 and size not in allowed:
        raise MeshError(
            f"vLLM splits tp={tp} × pcp={pcp} into groups for decode context parallelism, but not of {size} ranks",
            hint=f"set --{_DECODE} to {' or '.join(map(str, allowed))}",
        )
    # The ranks of pcp are neighbours in a group: it spans pcp alone, or all of pcp and tp.
    return np.ascontiguousarray(mesh.ranks.reshape(-1, pcp, tp).transpose(0, 2, 1).reshape(-1, size))


def _parse(text: str) -> Mapping[str, Any]:
    if not _CALL.search(text):
        return read_settings(text, _TABLE)
    call = find_call(text, {"LLM": ["model", "**"], "AsyncEngineArgs": ["model", "**"], "EngineArgs": ["model", "**"]})
    selected = _TABLE.select(call.arguments)
    _TABLE.require_some(selected, text)
    return selected


_KEYS = re.compile(r"^(?:tensor|pipeline|data|prefill_context|decode_context)_parallel_size$")


def _from_config(config: Config) -> Mapping[str, Any] | None:
    if not any(_KEYS.match(last_part(key).replace("-", "_")) for key in config):
        return None
    selected = _TABLE.select(select_keys(config, re.compile(r"parallel"), "vLLM"))
    # Others have the same names, and the order of dp and pp differs.
    widths = [selected.get(name, 1) for name in ("data-parallel-size", "pipeline-parallel-size")]
    is_named = any(_OWN_KEYS.search(key) for key in config)
    return selected if is_named or min(widths) <= 1 else {**selected, UNNAMED: True}


_OWN_KEYS = re.compile(
    r"vllm|(?:^|\.)(?:--)?(?:max[-_]model[-_]len|gpu[-_]memory[-_]utilization|served[-_]model[-_]name|enable[-_]expert)"
)


def _build(arguments: Mapping[str, Any], world_size: int | None, experts: bool) -> DeviceMesh:
    arguments = _TABLE.select(arguments)
    sizes = _TABLE.axis_sizes(arguments)
    decode = sizes.pop("dcp", 1)
    pairs = list(sizes.items()) or [("tp", 1)]
    mesh = DeviceMesh(pairs)
    if world_size is not None and world_size != mesh.size():
        # vLLM assigns the remaining ranks to the slowest dimension: a trainer runs several copies of it this way.
        mesh = DeviceMesh([(_OUTSIDE, -1), *pairs], world_size=world_size)
    rows = _decode_groups(mesh, decode)
    if not experts:
        return mesh if decode == 1 else mesh.with_groups("dcp", rows)
    if not arguments.get(_EXPERTS):
        raise MeshError(f"no expert axis: without --{_EXPERTS}, vLLM shards every expert over tp", hint="add the flag")
    return _experts_of(mesh)


_CALL = CallWith(
    re.compile(r"\b(?:LLM|EngineArgs|AsyncEngineArgs)\s*\("),
    re.compile(r"\b(?:tensor|pipeline|data)_parallel_size\s*="),
)

FORMAT = Format(
    "vllm",
    AnyOf(
        (
            re.compile(
                r"--(?:tensor|pipeline|data|prefill[-_]context|decode[-_]context)[-_]parallel[-_]size|"
                r"(?:^|\s)-(?:tp|pp|dp|pcp|dcp)[\s=]",
                re.MULTILINE,
            ),
            _CALL,
            Followed(re.compile(r"\bvllm\s+serve\b"), re.compile(r"(?<![\w-])--[\w-]{0,60}?parallel[-_]size")),
        )
    ),
    _write,
    _parse,
    _build,
    has_experts=lambda arguments: bool(_TABLE.select(arguments).get(_EXPERTS)),
    from_config=_from_config,
    omissions=lambda arguments: _TABLE.omissions(_TABLE.select(arguments)),
    looks_for="tensor-parallel-size, pipeline-parallel-size, data-parallel-size",
)
