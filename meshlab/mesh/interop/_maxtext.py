"""MaxText: sizes of two levels, ``ici_*_parallelism`` inside slices and ``dcn_*_parallelism`` between them.

The order is that of ``mesh_axes`` in configs/base.yml, and both levels are merged as ``create_hybrid_device_mesh`` does
(maxtext/utils/maxtext_utils.py). A host of GPUs is a slice. maxdiffusion and JetStream have the same settings.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from meshlab.base._errors import MeshError, ParseError
from meshlab.mesh._mesh import DeviceMesh
from meshlab.mesh.interop._jax import hybrid_ranks
from meshlab.mesh.interop._parsing import require_world_size, with_variables, without_comments
from meshlab.mesh.interop._recipe import Format, reject_experts
from meshlab.mesh.interop._settings import as_size

_ORDER = (
    "diloco",
    "data",
    "stage",
    "fsdp",
    "fsdp_transpose",
    "sequence",
    "context",
    "context_usp_ulysses",
    "context_autoregressive",
    "tensor",
    "tensor_transpose",
    "tensor_sequence",
    "expert",
    "autoregressive",
)

_SETTING = re.compile(
    r"(?<![\w$])(?P<level>ici|dcn)_(?P<name>\w{1,40})_parallelism[\"']?(?:[ \t]{0,9}[=:])?[ \t]{0,9}"
    r"[\"']?(?P<size>[-$\d][^\s\"',;}\\)]{0,60})"
)

_SLICES = re.compile(
    r"(?<!\w)(?:compile_topology_)?num[_-]slices(?:[ \t]{0,9}[=:])?[ \t]{0,9}[\"']?(?P<count>\d{1,6})\b"
)

_AXES = re.compile(r"^[ \t]*mesh_axes[ \t]*[:=][ \t]*\[(?P<names>[^\]]{0,2000})\]", re.MULTILINE)

_OTHER_LAYOUTS = re.compile(r"\b(?:custom_mesh|custom_mesh_and_rule)[ \t]*[:=][ \t]*[\"']?(?P<name>[\w.-]+)")


def _parse(text: str) -> Mapping[str, Any]:
    plain = with_variables(without_comments(text))
    arguments: dict[str, Any] = {}
    for match in _SETTING.finditer(plain):
        setting = f"{match['level']}_{match['name']}_parallelism"
        size = as_size(setting, match["size"])
        if arguments.setdefault(setting, size) != size:
            raise ParseError(
                f"{setting} has the values {arguments[setting]} and {size}", hint="paste one command or one config"
            )
    if not arguments:
        raise ParseError("no setting of MaxText found", hint="it has ici_fsdp_parallelism and others", text=text)
    axes = _AXES.search(plain)
    if axes is not None:
        arguments["mesh_axes"] = re.findall(r"\w+", axes["names"])
    slices = _SLICES.search(plain)
    if slices is not None:
        arguments["num_slices"] = int(slices["count"])
    other = _OTHER_LAYOUTS.search(plain)
    return {**arguments, "custom_mesh": other["name"]} if other is not None else arguments


def _levels(arguments: Mapping[str, Any]) -> tuple[list[str], dict[str, int], dict[str, int]]:
    """Return the names of the axes in their order, and their sizes inside a slice and between slices."""
    levels: dict[str, dict[str, int]] = {"ici": {}, "dcn": {}}
    for setting, size in arguments.items():
        level, _, rest = setting.partition("_")
        if level in levels:
            name = rest.removesuffix("_parallelism")
            levels[level]["stage" if name == "pipeline" else name] = as_size(setting, size)
    order = list(arguments.get("mesh_axes") or _ORDER)
    unknown = sorted({*levels["ici"], *levels["dcn"]} - {*order, *_ORDER})
    if unknown:
        raise MeshError(f"MaxText has no axis {', '.join(unknown)}; it has {', '.join(order)} (slowest first)")
    return order, levels["ici"], levels["dcn"]


def _build(arguments: Mapping[str, Any], world_size: int | None, experts: bool) -> DeviceMesh:
    reject_experts("maxtext", experts)
    if arguments.get("custom_mesh"):
        raise MeshError(f"meshlab does not read MaxText's custom mesh {arguments['custom_mesh']}")
    order, inner, outer = _levels(arguments)
    # The defaults of MaxText: fsdp takes the rest of a slice, and data takes the slices, of which one is assumed here.
    inner = {"fsdp": -1} | inner if "fsdp" in order else inner
    if "num_slices" in arguments:
        rest = arguments["num_slices"] // max(1, math.prod(size for size in outer.values() if size != -1))
        outer = {"data": -1} | outer if -1 not in outer.values() and rest > 1 else outer
        outer = {axis: rest if size == -1 else size for axis, size in outer.items()}
    elif -1 in outer.values() and -1 in inner.values():
        outer = {axis: 1 if size == -1 else size for axis, size in outer.items()}
    elif world_size is not None and "data" in order and -1 not in (*outer.values(), *inner.values()):
        outer = {"data": -1} | outer
    slices = math.prod(size for size in outer.values() if size != -1)
    per_slice = math.prod(size for size in inner.values() if size != -1)
    for level, other in ((inner, slices), (outer, per_slice)):
        for axis, size in level.items():
            if size == -1:
                world = require_world_size(world_size, "MaxText")
                fixed = other * math.prod(number for number in level.values() if number != -1)
                if world % fixed:
                    raise MeshError(f"MaxText: {world} ranks cannot be divided by {fixed}, so {axis} has no size")
                level[axis] = world // fixed
    axes = [axis for axis in order if inner.get(axis, 1) * outer.get(axis, 1) != 1] or [order[0]]
    shapes = [[level.get(axis, 1) for axis in axes] for level in (inner, outer)]
    ranks = hybrid_ranks(*shapes)
    return DeviceMesh([high * low for low, high in zip(*shapes, strict=True)], axes, ranks=ranks, world_size=world_size)


def _omissions(arguments: Mapping[str, Any]) -> Sequence[str]:
    _, inner, outer = _levels(arguments)
    fills_slices = -1 in {"fsdp": -1, **inner}.values()
    if "num_slices" in arguments or (outer and not (-1 in outer.values() and fills_slices)):
        return ()
    assumed = (
        "a single slice was assumed" if fills_slices else "a single slice was assumed unless world_size= is larger"
    )
    return (f"MaxText: the text does not contain dcn_data_parallelism, the number of slices or hosts; {assumed}",)


FORMAT = Format(
    "maxtext",
    re.compile(r"(?<![\w$])(?:ici|dcn)_\w{1,40}_parallelism[\"']?(?:[ \t]{0,9}[=:])?[ \t]{0,9}[\"']?[-\d$]"),
    None,
    _parse,
    _build,
    omissions=_omissions,
)
