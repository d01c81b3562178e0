"""Sizes of axes in variables or settings that no framework here has, such as ``TP_SIZE=2`` or ``EXPERT_PARALLEL=8``.

Names of Megatron, and the variables of MLPerf's submissions with NeMo, have Megatron's order. For all others, the same
order is assumed, with a warning.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from meshlab.base._errors import MeshError, ParseError
from meshlab.mesh._mesh import DeviceMesh
from meshlab.mesh.interop._config_text import Config, last_part, parse_config, select_keys, shell_variables
from meshlab.mesh.interop._recipe import Format
from meshlab.mesh.interop._settings import as_size, is_off

# The names of the size of each axis, as words in lower case without a unit such as "size".
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

_ORDER = ("pp", "dp", "dp_replicate", "dp_shard", "cp", "sp", "tp")

_CERTAIN = ("tp", "pp", "cp", "dp_shard")

_DATA_AXES = {"dp", "dp_replicate", "dp_shard"}

_NODES = ("dgxnnodes", "nnodes", "num_nodes", "n_nodes", "slurm_nnodes", "slurm_job_num_nodes", "worker_num")

_PER_NODE = (
    "dgxngpu",
    "gpus_per_node",
    "num_gpus_per_node",
    "ngpus_per_node",
    "nproc_per_node",
    "n_gpus_per_node",
    "slurm_ntasks_per_node",
    "slurm_gpus_per_node",
)

_ALL_RANKS = ("world_size", "slurm_ntasks", "num_processes")

_OF_MEGATRON = re.compile(r"model_parallel|^dgxnnodes$")

_ABOUT_PARALLELISM = re.compile(
    r"parallel(?:ism)?(?:_size|_degree)?$|^[a-z]{0,12}_?(?:tp|pp|dp|cp|ep)(?:_size|_degree)$"
)

_HARMLESS = re.compile(r"virtual|interleaved|^vpp|sequence_parallel$|^seq_parallel$")


def axis_of(name: str) -> str | None:
    """Return the axis whose size has this name, such as tp for ``TENSOR_MODEL_PARALLEL``, ``tp_degree`` or ``tp``."""
    core, has_unit = _core(name)
    axis = _AXES.get(core)
    return None if axis == "sp" and core != "sp" and not has_unit else axis  # "sequence_parallel" is a switch


def is_setting(name: str) -> bool:
    """Return whether a name is that of a setting, and not only that of an axis, such as ``tp``."""
    core, has_unit = _core(name)
    return axis_of(name) is not None and (has_unit or "parallel" in core or name.isupper())


def _core(name: str) -> tuple[str, bool]:
    """Return the words of a name without its unit, and whether it has one."""
    words = _PARTS.split(name.lower().replace("parallelism", "parallel").replace("world_size", "size").strip())
    has_unit = len(words) > 1 and words[-1] in _UNITS
    return " ".join(words[:-1] if has_unit else words), has_unit


def _remarks(mesh: DeviceMesh) -> Sequence[str]:
    if {*_DATA_AXES, "edp"} & set(mesh.axis_names):
        return ()
    return ("the settings contain neither the number of ranks nor a size of dp, so dp is 1; pass world_size= for more",)


class _Clue:
    """Recognises a text that consists of variables, at least one of which has the size of an axis."""

    def search(self, string: str, /) -> bool:
        """Return True for such a text, unless all its names are only those of axes."""
        variables = shell_variables(string)
        return variables is not None and any(map(is_setting, variables))


def _parse(text: str) -> Mapping[str, Any]:
    variables = shell_variables(text)
    arguments = _from_config(parse_config(text) or {} if variables is None else variables)
    if arguments is None:
        raise ParseError("no variable has the size of an axis", hint="write for example TP_SIZE=8", text=text)
    return arguments


def _from_config(config: Config) -> Mapping[str, Any] | None:
    sizes = {key: value for key, value in config.items() if axis_of(last_part(key)) and not isinstance(value, bool)}
    # A name of two letters alone, such as "ep" or "sp", may be anything.
    if not any(axis_of(last_part(key)) in _CERTAIN and is_setting(last_part(key)) for key in sizes):
        return None
    others = {key: value for key, value in config.items() if _counts_ranks(key) or _is_unknown(key)}
    selected = select_keys({**sizes, **others}, re.compile(""), "the text")
    return {name: value for name, value in selected.items() if axis_of(name) or not is_off(value)}


def _counts_ranks(key: str) -> bool:
    return last_part(key).lower() in (*_NODES, *_PER_NODE, *_ALL_RANKS)


def _is_unknown(key: str) -> bool:
    name = last_part(key).lower()
    return axis_of(name) is None and bool(_ABOUT_PARALLELISM.search(name)) and not _HARMLESS.search(name)


def _sizes(arguments: Mapping[str, Any]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for name, value in arguments.items():
        axis = axis_of(str(name))
        if axis is None or value is None or str(value).lower() in ("", "none", "null", "auto", "false", "true"):
            continue
        size = as_size(str(name), value)
        if sizes.setdefault(axis, size) != size:
            raise ParseError(f"{axis} has the sizes {sizes[axis]} and {size}", hint="paste the variables of one run")
    return sizes


def _world_size(arguments: Mapping[str, Any]) -> int | None:
    """Return the number of ranks that the variables contain."""
    counts = {str(name).lower(): as_size(str(name), value) for name, value in arguments.items() if _counts_ranks(name)}

    def first(names: Sequence[str]) -> int | None:
        return next((counts[name] for name in names if name in counts), None)

    nodes, per_node = first(_NODES), first(_PER_NODE)
    if per_node is not None and nodes is not None:
        return nodes * per_node
    return first(_ALL_RANKS)


def _build(arguments: Mapping[str, Any], world_size: int | None, experts: bool) -> DeviceMesh:
    sizes = _sizes(arguments)
    world_size = _world_size(arguments) if world_size is None else world_size
    dense = {axis: size for axis, size in sizes.items() if axis in _ORDER}
    if world_size is not None and not _DATA_AXES & set(dense):
        dense["dp"] = -1
    mesh = DeviceMesh([(axis, dense[axis]) for axis in _ORDER if axis in dense], world_size=world_size)
    if not experts:
        return mesh
    if "ep" not in sizes:
        raise MeshError("no expert axis: the text has no size of ep", hint="read without experts=")
    outer = [("pp", sizes["pp"])] if "pp" in sizes else []
    return mesh.view([*outer, ("edp", -1), ("ep", sizes["ep"]), ("etp", sizes.get("etp", sizes.get("tp", 1)))])


def _omissions(arguments: Mapping[str, Any]) -> Sequence[str]:
    notes = []
    if not any(_OF_MEGATRON.search(str(name).lower()) for name in arguments):
        axes = ", ".join(axis for axis in _ORDER if axis in {*_sizes(arguments), "dp"})
        notes.append(
            f"the text does not name its framework, so the order of Megatron was assumed: {axes}, slowest first; pass "
            f"framework=, or write the axes in the right order, such as 'pp=2, dp=4, tp=8'"
        )
    for name, value in arguments.items():
        if axis_of(str(name)) is None and not _counts_ranks(str(name)):
            notes.append(f"the setting {name}={value} may be about parallelism, is unknown to meshlab and was ignored")
    return notes


FORMAT = Format(
    "variables",
    _Clue(),
    None,
    _parse,
    _build,
    has_experts=lambda arguments: _sizes(arguments).get("ep", 1) > 1,
    from_config=_from_config,
    omissions=_omissions,
    remarks=_remarks,
)
