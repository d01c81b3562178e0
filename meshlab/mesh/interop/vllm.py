"""vLLM flags. The order is fixed: dp outside the engine, dp, pp, prefill context, tp; the last the fastest."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from meshlab.errors import MeshError, ParseError
from meshlab.mesh.interop.parsing import read_flags, read_sizes
from meshlab.mesh.interop.recipe import Format, Recipe, first_rank, losses, require_order
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
_SHORT = {"dp": "data-parallel-size", "pp": "pipeline-parallel-size", "tp": "tensor-parallel-size"} | {
    "pcp": "prefill-context-parallel-size",
    "ep": "enable-expert-parallel",
}
_EXPERTS = "enable-expert-parallel"


def _write(mesh: DeviceMesh, experts: DeviceMesh | None) -> Recipe:
    first_rank(mesh, "vLLM")
    sizes = require_order(mesh, "vLLM", _ORDER)
    arguments: dict[str, Any] = {flag: sizes[axis] for flag, axis in _FLAGS.items() if axis in sizes}
    parts = [f"--{flag} {size}" for flag, size in arguments.items()]
    if experts is not None:
        if experts != _experts_of(mesh):
            raise MeshError(
                f"vLLM spreads experts over dp, pcp and tp together, {_experts_of(mesh)!r}; it cannot do {experts!r}"
            )
        arguments[_EXPERTS] = True
        parts.append(f"--{_EXPERTS}")
    notes = losses(mesh, "vllm")
    if sizes.get(_OUTSIDE, 1) > 1:
        notes = (f"{sizes[_OUTSIDE]} copies ({_OUTSIDE}) are started from outside; no flag says so", *notes)
    return Recipe("vllm", " ".join(parts), arguments, notes)


def _experts_of(mesh: DeviceMesh) -> DeviceMesh:
    inside = [name for name in ("dp", "pcp", "tp") if name in mesh.axis_names]
    if not inside:
        raise MeshError(f"vLLM spreads experts over dp, pcp and tp, but {mesh} has none of them")
    return mesh.flatten(*inside, name="ep")


def _parse(text: str) -> Mapping[str, Any]:
    flags = read_flags(text)
    flags = {_SHORT.get(flag, flag): value for flag, value in flags.items()}
    sizes = read_sizes(flags, _FLAGS)
    if not sizes:
        raise ParseError(f"no flag of vLLM was found; there are --{', --'.join(_FLAGS)}", text=text)
    arguments: dict[str, Any] = {flag: sizes[axis] for flag, axis in _FLAGS.items() if axis in sizes}
    return {**arguments, _EXPERTS: _EXPERTS in flags}


def _build(arguments: Mapping[str, Any], world_size: int | None, experts: bool) -> DeviceMesh:
    pairs = [(axis, arguments[flag]) for flag, axis in _FLAGS.items() if flag in arguments]
    mesh = DeviceMesh(pairs)
    if world_size is not None and world_size != mesh.size():
        mesh = DeviceMesh([(_OUTSIDE, -1), *pairs], world_size=world_size)
    if not experts:
        return mesh
    if not arguments.get(_EXPERTS):
        raise MeshError(f"without --{_EXPERTS} vLLM cuts every expert by tp and has no expert axis; add the flag")
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
    has_experts=lambda arguments: bool(arguments.get(_EXPERTS)),
)
