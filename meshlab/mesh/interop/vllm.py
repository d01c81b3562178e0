"""vLLM: command-line flags with a fixed order of axes.

``initialize_model_parallel`` reshapes the ranks to (external DP, DP, PP, PCP, TP), so TP is the fastest axis and the
external copies are the slowest (vllm/distributed/parallel_state.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from meshlab.errors import MeshError, ParseError
from meshlab.mesh.interop.parsing import dashed, read_flags, read_sizes
from meshlab.mesh.interop.recipe import Format, Recipe, first_rank, require_order, unsupported
from meshlab.mesh.mesh import DeviceMesh

__all__ = ["FORMAT"]

_OUTSIDE = "dp_outside"
_ORDER = (_OUTSIDE, "dp", "pp", "pcp", "tp")
_FLAGS = {
    "data-parallel-size": "dp",
    "pipeline-parallel-size": "pp",
    "prefill-context-parallel-size": "pcp",
    "tensor-parallel-size": "tp",
}
_EXPERTS = "enable-expert-parallel"
_SHORT = {axis: flag for flag, axis in _FLAGS.items()} | {"ep": _EXPERTS}


def _write(mesh: DeviceMesh, experts: DeviceMesh | None) -> Recipe:
    first_rank(mesh, "vLLM")
    sizes = require_order(mesh, "vLLM", _ORDER)
    arguments: dict[str, Any] = {flag: sizes[axis] for flag, axis in _FLAGS.items() if axis in sizes}
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


def _parse(text: str) -> Mapping[str, Any]:
    flags = read_flags(text)
    flags = {_SHORT.get(flag, flag): value for flag, value in flags.items()}
    sizes = read_sizes(flags, _FLAGS)
    if not sizes:
        raise ParseError("no vLLM flag found", hint=f"use one of --{', --'.join(_FLAGS)}", text=text)
    arguments: dict[str, Any] = {flag: sizes[axis] for flag, axis in _FLAGS.items() if axis in sizes}
    return {**arguments, _EXPERTS: _EXPERTS in flags}


def _build(arguments: Mapping[str, Any], world_size: int | None, experts: bool) -> DeviceMesh:
    arguments = dashed(arguments)
    pairs = [(axis, arguments[flag]) for flag, axis in _FLAGS.items() if flag in arguments]
    mesh = DeviceMesh(pairs)
    if world_size is not None and world_size != mesh.size():
        # vLLM assigns the remaining ranks to the slowest dimension: a trainer runs several copies of it this way.
        mesh = DeviceMesh([(_OUTSIDE, -1), *pairs], world_size=world_size)
    if not experts:
        return mesh
    if not arguments.get(_EXPERTS):
        raise MeshError(f"no expert axis: without --{_EXPERTS}, vLLM shards every expert over tp", hint="add the flag")
    return _experts_of(mesh)


FORMAT = Format(
    "vllm",
    re.compile(
        r"--(?:tensor|pipeline|data|prefill[-_]context)[-_]parallel[-_]size|(?:^|\s)-(?:tp|pp|dp|pcp)[\s=]",
        re.MULTILINE,
    ),
    _write,
    _parse,
    _build,
    has_experts=lambda arguments: bool(dashed(arguments).get(_EXPERTS)),
)
