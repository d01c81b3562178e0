"""torchtitan: flags, TOML files, and the Python configs that replaced them.

torchtitan unflattens one world mesh twice (torchtitan/distributed/parallel_dims.py). In its dense mesh, fsdp is
dp_shard and cp merged. In its sparse mesh, efsdp is what remains of dp_shard, cp and tp after ep, and after etp in
versions 0.2.0 to 0.2.2. The last axis is the fastest, as in meshlab.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from meshlab.base._errors import MeshError
from meshlab.mesh._mesh import DeviceMesh
from meshlab.mesh.interop._clues import AnyOf, CallWith
from meshlab.mesh.interop._config_text import Config, product_of, select_keys
from meshlab.mesh.interop._parsing import find_call, read_settings
from meshlab.mesh.interop._recipe import Format, Recipe, check_view, first_rank, require_order, unsupported
from meshlab.mesh.interop._settings import WORLD_SETTING, SettingTable

_SIZES = {
    "pipeline-parallel-degree": "pp",
    "data-parallel-replicate-degree": "dp_replicate",
    "data-parallel-shard-degree": "dp_shard",
    "context-parallel-degree": "cp",
    "tensor-parallel-degree": "tp",
    "expert-parallel-degree": "ep",
    "expert-tensor-parallel-degree": "etp",
}

# Before the section "parallelism", the sizes were in other sections, and dp_shard was called data_parallel_degree.
_SECTIONS = ("parallelism", "training", "experimental")

_ALIASES = {f"{section}.{name}": name for section in _SECTIONS for name in _SIZES}
_ALIASES |= {f"{section}.data-parallel-degree": "data-parallel-shard-degree" for section in _SECTIONS}
_ALIASES |= {"data-parallel-degree": "data-parallel-shard-degree"}

# The fields of ParallelDims are the axes, with these names.
_FIELDS = {axis: name for name, axis in _SIZES.items()}

_TABLE = SettingTable(
    "torchtitan",
    _SIZES,
    aliases=_ALIASES,
    harmless=r"disable-loss-parallel|async-tensor-parallel|sequence-parallel|"
    r"^pipeline-parallel-(?:schedule|microbatch|layers|first|last|split|expert)|context-parallel-(?:rotate|load|ptrr)|expert-parallel-(?:comm|a2a|overlap)|^data-parallel-type$|"
    r"^num-pp-microbatches$",
    style="--parallelism.{}",
    underscores=True,
)

_DENSE = ("pp", "dp_replicate", "dp_shard", "cp", "tp")

_SPARSE = ("pp", "dp_replicate", "efsdp", "ep", "etp")

_NAMES = {axis: name.replace("-", "_") for name, axis in _SIZES.items()}


def _write(mesh: DeviceMesh, experts: DeviceMesh | None) -> Recipe:
    first_rank(mesh, "torchtitan")
    sizes = {"dp_shard": 1, **require_order(mesh, "torchtitan", _DENSE)}
    notes = unsupported(mesh, "torchtitan")
    if experts is not None:
        sparse = require_order(experts, "torchtitan's expert layout", _SPARSE)
        check_view(mesh, experts)
        sizes["ep"] = sparse.get("ep", 1)
        if sparse.get("etp", 1) > 1:
            sizes["etp"] = sparse["etp"]
            _check_expert_tensor(sizes)
            notes = ("only versions 0.2.0 to 0.2.2 have expert_tensor_parallel_degree", *notes)
    arguments = {name: sizes[axis] for axis, name in _NAMES.items() if axis in sizes}
    text = " ".join(f"--parallelism.{name} {size}" for name, size in arguments.items())
    return Recipe("torchtitan", text, arguments, notes)


def _select(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings in arguments or flags, whose names may start with a section."""
    sections = re.compile(rf"^(?:{'|'.join(_SECTIONS)})\.")
    return _TABLE.select({sections.sub("", str(name)): value for name, value in arguments.items()})


def _parse(text: str) -> Mapping[str, Any]:
    if not _CALL.search(text):
        return _underscored(read_settings(_SECTION_OF_FLAG.sub("--", text), _TABLE))
    call = find_call(text, {"ParallelDims": ["**"], "ParallelismConfig": ["**"]})
    return _underscored(_TABLE.select({_FIELDS.get(name, name): value for name, value in call.arguments.items()}))


def _underscored(selected: Mapping[str, Any]) -> dict[str, Any]:
    return {name.replace("-", "_"): value for name, value in selected.items()}


def _from_config(config: Config) -> Mapping[str, Any] | None:
    if not any(re.search(r"_parallel_(?:\w+_)?degree$", key) for key in config):
        return None
    selected = _TABLE.select(select_keys(config, re.compile(r"parallel"), "torchtitan"))
    world = product_of(config, ("nnodes", "num_nodes"), ("nproc_per_node", "gpus_per_node"))
    return _underscored(selected if world is None else {**selected, WORLD_SETTING: world})


def _check_expert_tensor(sizes: Mapping[str, int]) -> None:
    tp, etp = sizes.get("tp", 1), sizes.get("etp", 1)
    if etp not in (1, tp):
        raise MeshError(
            f"torchtitan accepts an expert_tensor_parallel_degree of 1 or of tensor_parallel_degree, which is {tp}, "
            f"not {etp}",
            hint=f"set it to 1 or {tp}" if tp > 1 else "set it to 1",
        )


def _build(arguments: Mapping[str, Any], world_size: int | None, experts: bool) -> DeviceMesh:
    arguments = _select(arguments)
    world_size = arguments.get(WORLD_SETTING) if world_size is None else world_size
    # data_parallel_shard_degree is -1 by default: torchtitan shards over all remaining ranks.
    sizes = {"dp_shard": -1} | _TABLE.axis_sizes(arguments)
    mesh = DeviceMesh([(name, sizes[name]) for name in _DENSE if name in sizes], world_size=world_size)
    if not experts:
        return mesh
    outer = [(name, sizes[name]) for name in ("pp", "dp_replicate") if name in sizes]
    inside = [("ep", sizes.get("ep", 1))]
    if "etp" in sizes:
        _check_expert_tensor(sizes)
        inside.append(("etp", sizes["etp"]))
    return mesh.view([*outer, ("efsdp", -1), *inside])


_SECTION_OF_FLAG = re.compile(rf"--(?:{'|'.join(_SECTIONS)})\.(?=\S)")

_CALL = CallWith(
    re.compile(r"\b(?:ParallelDims|ParallelismConfig)\s*\("),
    re.compile(r"\b(?:\w{1,60}_parallel_\w{0,60}degree|dp_shard|dp_replicate)\s*="),
)

FORMAT = Format(
    "torchtitan",
    AnyOf(
        (
            re.compile(r"--parallelism\.|--(?:training|experimental)\.\w*?(?:parallel|replicate|shard)[-_]degree"),
            _CALL,
        )
    ),
    _write,
    _parse,
    _build,
    has_experts=lambda arguments: (_select(arguments).get("expert-parallel-degree") or 1) > 1,
    from_config=_from_config,
    omissions=lambda arguments: _TABLE.omissions(_select(arguments)),
    looks_for="parallelism.tensor_parallel_degree, parallelism.data_parallel_shard_degree",
)
