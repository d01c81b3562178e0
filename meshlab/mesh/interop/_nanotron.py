"""nanotron: the section ``parallelism`` of its YAML files.

The ranks are reshaped to (ep, pp, dp, cp, tp), so tp is the fastest axis (nanotron/parallel/context.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from meshlab.base._errors import ParseError
from meshlab.mesh._mesh import DeviceMesh
from meshlab.mesh.interop._config_text import Config, last_part, parse_config
from meshlab.mesh.interop._recipe import Format, Recipe, first_rank, reject_experts, require_order, unsupported
from meshlab.mesh.interop._settings import SettingTable

_ORDER = ("ep", "pp", "dp", "cp", "tp")

_TABLE = SettingTable(
    "nanotron",
    {"expert-parallel-size": "ep", "pp": "pp", "dp": "dp", "context-parallel-size": "cp", "tp": "tp"},
    harmless=r"^tp-|^pp-|sequence-parallel",
    style="{}",
    underscores=True,
)


def _write(mesh: DeviceMesh, experts: DeviceMesh | None) -> Recipe:
    reject_experts("nanotron", experts)
    first_rank(mesh, "nanotron")
    sizes = {"dp": 1, "pp": 1, "tp": 1} | require_order(mesh, "nanotron", _ORDER)
    arguments = {_TABLE.written(name): sizes[axis] for name, axis in _TABLE.sizes.items() if axis in sizes}
    text = "\n".join(["parallelism:", *(f"  {name}: {size}" for name, size in arguments.items())])
    return Recipe("nanotron", text, arguments, unsupported(mesh, "nanotron"))


def _parse(text: str) -> Mapping[str, Any]:
    arguments = _from_config(parse_config(text) or {})
    if arguments is None:
        raise ParseError("no section parallelism of nanotron found", hint="it has the keys dp, pp and tp", text=text)
    return arguments


def _from_config(config: Config) -> Mapping[str, Any] | None:
    inside = {last_part(key): value for key, value in config.items() if key.startswith("parallelism.")}
    if not {"dp", "pp", "tp"} & set(inside):
        return None
    return {name.replace("-", "_"): value for name, value in _TABLE.select(inside).items()}


def _build(arguments: Mapping[str, Any], world_size: int | None, experts: bool) -> DeviceMesh:
    reject_experts("nanotron", experts)
    sizes = _TABLE.axis_sizes(_TABLE.select(arguments))
    return DeviceMesh([(axis, sizes[axis]) for axis in _ORDER if axis in sizes], world_size=world_size)


FORMAT = Format(
    "nanotron",
    re.compile(r"^parallelism:[ \t]*\r?\n(?:[ \t].*\n)*?[ \t]+(?:dp|pp|tp):[ \t]*\d", re.MULTILINE),
    _write,
    _parse,
    _build,
    from_config=_from_config,
    omissions=lambda arguments: _TABLE.omissions(_TABLE.select(arguments)),
    looks_for="parallelism.dp, parallelism.pp, parallelism.tp",
)
