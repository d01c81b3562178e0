"""Levanter: ``trainer.mesh`` with axes inside slices and between them, and the sizes that preceded it.

The axes inside a slice are data, replica, model and others, in this order, and those between slices are slower
(levanter/utils/mesh.py). Earlier, the mesh was (replica, data, model) on both levels (levanter/utils/jax_utils.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from meshlab.base._errors import MeshError, ParseError
from meshlab.mesh._mesh import DeviceMesh
from meshlab.mesh.interop._clues import NEVER
from meshlab.mesh.interop._config_text import Config, parse_config
from meshlab.mesh.interop._jax import hybrid_ranks
from meshlab.mesh.interop._parsing import require_world_size
from meshlab.mesh.interop._recipe import Format, reject_experts
from meshlab.mesh.interop._settings import as_size

_SETTING = re.compile(r"(?:^|\.)mesh\.(?P<level>axes|dcn_axes)\.(?P<axis>\w+)$")

_OLDER = re.compile(r"(?:^|\.)(?P<name>model_axis_size|replica_ici_axis_size|replica_dcn_axis_size)$")


def _from_config(config: Config) -> Mapping[str, Any] | None:
    arguments: dict[str, Any] = {}
    for key, value in config.items():
        match, older = _SETTING.search(key), _OLDER.search(key)
        if match is not None:
            arguments.setdefault(match["level"], {})[match["axis"]] = as_size(key, value)
        elif older is not None:
            arguments[older["name"]] = as_size(key, value)
    return arguments or None


def _parse(text: str) -> Mapping[str, Any]:
    arguments = _from_config(parse_config(text) or {})
    if arguments is None:
        raise ParseError("no setting of Levanter found", hint="use trainer.mesh.axes and dcn_axes", text=text)
    return arguments


def _build(arguments: Mapping[str, Any], world_size: int | None, experts: bool) -> DeviceMesh:
    reject_experts("levanter", experts)
    if "axes" not in arguments and "dcn_axes" not in arguments:
        return _older(arguments, world_size)
    axes = dict(arguments.get("axes") or {})
    # "data" takes the rest of a slice, unless another axis does.
    filled = any(size == -1 for size in axes.values())
    inner = {"data": 1 if filled else -1, "replica": 1, "model": 1} | axes
    outer = dict(arguments.get("dcn_axes") or {})
    shared = set(inner) & set(outer)
    if shared:
        raise MeshError(f"Levanter: {', '.join(sorted(shared))} is in axes and in dcn_axes", hint="rename one of them")
    pairs = [*outer.items(), *((axis, size) for axis, size in inner.items() if size != 1 or axis in axes)]
    return DeviceMesh(pairs, world_size=world_size)


def _older(arguments: Mapping[str, Any], world_size: int | None) -> DeviceMesh:
    model, replica, slices = (
        arguments.get(name, 1) for name in ("model_axis_size", "replica_ici_axis_size", "replica_dcn_axis_size")
    )
    fixed = model * replica * slices
    world = require_world_size(world_size, "Levanter")
    if min(model, replica, slices) < 1 or world % fixed:
        raise MeshError(f"Levanter: {world} ranks cannot be divided by {fixed}, so data has no size")
    shapes = [[replica, world // fixed, model], [slices, 1, 1]]
    sizes = [low * high for low, high in zip(*shapes, strict=True)]
    return DeviceMesh(sizes, ["replica", "data", "model"], ranks=hybrid_ranks(*shapes))


def _omissions(arguments: Mapping[str, Any]) -> Sequence[str]:
    if arguments.get("dcn_axes") or "replica_dcn_axis_size" in arguments:
        return ()
    return ("Levanter: a single slice was assumed, because the text does not contain dcn_axes",)


FORMAT = Format(
    "levanter",
    NEVER,
    None,
    _parse,
    _build,
    from_config=_from_config,
    omissions=_omissions,
    looks_for="trainer.mesh.axes, trainer.mesh.dcn_axes",
)
