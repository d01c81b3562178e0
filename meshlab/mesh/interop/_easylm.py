"""EasyLM and its descendants: the flag ``--mesh_dim``, with or without names.

Sizes without names are (dp, fsdp, mp) in EasyLM, and (dp, fsdp, tp, sp) in LWM (EasyLM/jax_utils.py, lwm/llama.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from meshlab.base._errors import ParseError
from meshlab.mesh._axes import short
from meshlab.mesh._mesh import DeviceMesh
from meshlab.mesh.interop._parsing import read_flags
from meshlab.mesh.interop._recipe import Format, reject_experts, require
from meshlab.mesh.interop._settings import as_size

_NAMES = {3: ("dp", "fsdp", "mp"), 4: ("dp", "fsdp", "tp", "sp")}

_LWM = re.compile("lwm", re.IGNORECASE)


def _parse(text: str) -> Mapping[str, Any]:
    dims = read_flags(text).get("mesh-dim")
    if not dims:
        raise ParseError("no flag --mesh_dim found", hint="write --mesh_dim='1,8,1'", text=text)
    named = [part.partition(":") for part in dims.removeprefix("!").split(",")]  # "!": in the order of the devices
    if all(colon for _, colon, _ in named):
        return {"axes": [(name, as_size("--mesh_dim", size)) for name, _, size in named]}
    sizes = [as_size("--mesh_dim", size) for size, _, _ in named]
    names = _NAMES.get(len(sizes))
    if names is None or (len(sizes) == 4 and not _LWM.search(text)):
        raise ParseError(
            f"--mesh_dim {short(dims)} has {len(sizes)} sizes without names, whose meaning depends on the program",
            hint="write names, as in --mesh_dim='dp:1,fsdp:8,mp:1'",
        )
    return {"axes": list(zip(names, sizes, strict=True))}


def _build(arguments: Mapping[str, Any], world_size: int | None, experts: bool) -> DeviceMesh:
    reject_experts("easylm", experts)
    return DeviceMesh(require(arguments, "easylm", "axes")[0], world_size=world_size)


FORMAT = Format("easylm", re.compile(r"--mesh_dim[= ]"), None, _parse, _build)
