"""picotron: the section ``distributed`` of its JSON files, and the flags of the script that writes them.

The ranks are reshaped to (dp, pp, cp, tp) (picotron/process_group_manager.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from meshlab.mesh._mesh import DeviceMesh
from meshlab.mesh.interop._clues import Followed
from meshlab.mesh.interop._config_text import Config, parse_config
from meshlab.mesh.interop._parsing import read_settings
from meshlab.mesh.interop._recipe import Format, reject_experts
from meshlab.mesh.interop._settings import SettingTable

_ORDER = ("dp", "pp", "cp", "tp")

_TABLE = SettingTable(
    "picotron",
    {f"{axis}-size": axis for axis in _ORDER},
    aliases={axis: f"{axis}-size" for axis in _ORDER},
    harmless="^pp-engine$",
    style="{}",
    underscores=True,
)

_SECTION = "distributed."


def _from_config(config: Config) -> Mapping[str, Any] | None:
    sizes = {key.removeprefix(_SECTION): value for key, value in config.items() if key.startswith(_SECTION)}
    selected = {name: value for name, value in _TABLE.select(sizes).items() if name in _TABLE.sizes}
    return selected or None


def _parse(text: str) -> Mapping[str, Any]:
    return _from_config(parse_config(text) or {}) or read_settings(text, _TABLE)


def _build(arguments: Mapping[str, Any], world_size: int | None, experts: bool) -> DeviceMesh:
    reject_experts("picotron", experts)
    sizes = _TABLE.axis_sizes(_TABLE.select(arguments))
    return DeviceMesh([(axis, sizes[axis]) for axis in _ORDER if axis in sizes] or [("tp", 1)], world_size=world_size)


FORMAT = Format(
    "picotron",
    Followed(re.compile(r"\bcreate_config\.py\b"), re.compile(r"--(?:tp|cp|pp|dp)[ =]")),
    None,
    _parse,
    _build,
    from_config=_from_config,
    omissions=lambda arguments: _TABLE.omissions(_TABLE.select(arguments)),
    looks_for="distributed.tp_size with distributed.pp_engine",
)
