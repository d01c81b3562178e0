"""Names of the sizes of axes: one table for the settings, keywords and variables of all frameworks."""

from __future__ import annotations

import re
from collections.abc import Mapping

_NAMES: Mapping[str, tuple[str, ...]] = {
    "pp": ("pp", "pipe parallel", "pipeline parallel", "pipeline model parallel"),
    "dp": ("dp", "data parallel"),
    "dp_replicate": ("dp replicate", "data parallel replicate"),
    "dp_shard": ("dp shard", "data parallel shard", "fsdp", "fsdp shard"),
    "cp": ("cp", "context parallel", "context model parallel"),
    "sp": ("sp", "sequence parallel", "ulysses sequence parallel", "ulysses parallel", "ring attn"),
    "tp": ("tp", "mp", "tensor parallel", "tensor model parallel", "model parallel"),
    "ep": ("ep", "moe ep", "expert parallel", "expert model parallel", "moe expert parallel"),
    "etp": ("etp", "moe tp", "expert tensor parallel", "expert tensor model parallel", "moe tensor parallel"),
}

_AXES = {name: axis for axis, names in _NAMES.items() for name in names}

_PARTS = re.compile(r"[\s_-]+")

_UNITS = ("size", "degree", "dim", "ranks")


def axis_of(name: str) -> str | None:
    """Return the axis whose size a name has, such as tp for ``TENSOR_MODEL_PARALLEL``, ``tp_degree`` or ``tp``."""
    core, has_unit = _core(name)
    axis = _AXES.get(core)
    return None if axis == "sp" and core != "sp" and not has_unit else axis  # "sequence_parallel" is a switch


def is_setting(name: str) -> bool:
    """Return whether a name is that of a setting, and not an axis such as ``tp`` that stands for itself."""
    core, has_unit = _core(name)
    return axis_of(name) is not None and (has_unit or "parallel" in core or name.isupper())


def _core(name: str) -> tuple[str, bool]:
    """Return the words of a name without its unit, and whether it has one."""
    words = _PARTS.split(name.lower().replace("parallelism", "parallel").replace("world_size", "size").strip())
    has_unit = len(words) > 1 and words[-1] in _UNITS
    return " ".join(words[:-1] if has_unit else words), has_unit
