"""verl: the layouts of one role in its config or in the overrides of a command.

Training with Megatron has the layout of ``initialize_model_parallel``. Training with FSDP has a mesh of (ddp, fsdp)
over all ranks, and Ulysses adds groups of neighbouring ranks. Generation has copies of (pp, tp), each a server of its
own (verl/workers/fsdp_workers.py, verl/workers/megatron_workers.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from meshlab.base._errors import MeshError, ParseError
from meshlab.mesh._axes import short
from meshlab.mesh._mesh import DeviceMesh
from meshlab.mesh.interop._clues import NEVER
from meshlab.mesh.interop._config_text import Config, flat_config, parse_config, product_of
from meshlab.mesh.interop._megatron import build_from_sizes
from meshlab.mesh.interop._parsing import require_world_size
from meshlab.mesh.interop._recipe import Format
from meshlab.mesh.interop._settings import WORLD_SETTING, SettingTable, as_size, dashed

_ROLES = {
    "verl": ("actor_rollout_ref.actor.", "actor."),
    "verl-ref": ("actor_rollout_ref.ref.", "ref."),
    "verl-critic": ("critic.",),
    "verl-rollout": ("actor_rollout_ref.rollout.", "rollout."),
}

_ROLLOUT = "verl-rollout"

_TRAINING = {
    "megatron.tensor-model-parallel-size": "tp",
    "megatron.pipeline-model-parallel-size": "pp",
    "megatron.context-parallel-size": "cp",
    "megatron.expert-model-parallel-size": "ep",
    "megatron.expert-tensor-parallel-size": "etp",
    "fsdp-config.fsdp-size": "fsdp",
    "ulysses-sequence-parallel-size": "sp",
}

_GENERATION = {
    "data-parallel-size": "dp",
    "pipeline-model-parallel-size": "pp",
    "tensor-model-parallel-size": "tp",
    "expert-parallel-size": "ep",
}

_HARMLESS = r"virtual-pipeline|sequence-parallel$|^(?:engine-kwargs|override)|pipeline-model-parallel-layout"


def _table(name: str) -> SettingTable:
    if name == _ROLLOUT:
        return SettingTable(name, _GENERATION, harmless=_HARMLESS, style="{}", underscores=True)
    places = ("model", "fsdp", "engine", "model.fsdp-config", "fsdp-config")
    aliases = {f"{place}.fsdp-size": "fsdp-config.fsdp-size" for place in places}
    aliases |= {f"{place}.ulysses-sequence-parallel-size": "ulysses-sequence-parallel-size" for place in places}
    aliases |= {"fsdp-size": "fsdp-config.fsdp-size"}
    return SettingTable(name, _TRAINING, aliases=aliases, harmless=_HARMLESS, style="{}", underscores=True)


def _of_role(config: Config, role: str) -> dict[str, Any]:
    """Return the settings of one role, without its prefix."""
    for prefix in _ROLES[role]:
        settings = {key.removeprefix(prefix): value for key, value in config.items() if key.startswith(prefix)}
        if settings:
            return settings
    return {}


def _is_verl(config: Config) -> bool:
    return any(key.startswith("actor_rollout_ref.") for key in config)


def _reader(name: str) -> Callable[[Config], Mapping[str, Any] | None]:
    table = _table(name)

    def from_config(config: Config) -> Mapping[str, Any] | None:
        if not _is_verl(config) and not any(key.startswith(_ROLES[name]) for key in config):
            return None
        settings = _of_role(config, name)
        selected = table.select(settings)
        backend = str(settings.get("strategy", "")).strip("\"'")
        world = product_of(config, ("nnodes",), ("n_gpus_per_node",))
        others = _other_layouts(config, name)
        # Without sizes, the actor is sharded over all ranks. Other roles without sizes copy it or have none.
        if not any(axis in selected for axis in table.sizes) and not backend and (name != "verl" or not others):
            return None
        return {
            **{key.replace("-", "_"): value for key, value in selected.items()},
            **({"strategy": backend} if backend else {}),
            **({"world_size": world} if world is not None else {}),
            **({"others": others} if others else {}),
        }

    return from_config


def _other_layouts(config: Config, name: str) -> tuple[str, ...]:
    """Return the roles in the config that have a layout of their own."""

    def signature(role: str) -> dict[str, int]:
        try:
            return {key: size for key, size in _sizes_of(_table(role), _of_role(config, role)).items() if size != 1}
        except ParseError:
            return {"unreadable": -1}

    sizes = signature(name)
    others = [role for role in _ROLES if role != name and _of_role(config, role)]
    return tuple(role for role in others if signature(role) not in ({}, sizes))


def _sizes_of(table: SettingTable, settings: Mapping[str, Any]) -> dict[str, int]:
    return table.axis_sizes(table.select(settings))


def _build_training(arguments: Mapping[str, Any], world_size: int | None, experts: bool) -> DeviceMesh:
    selected = _table("verl").select(flat_config(arguments))
    world = require_world_size(selected.get(WORLD_SETTING) if world_size is None else world_size, "verl")
    sizes = _table("verl").axis_sizes(selected)
    megatron = {axis: size for axis, size in sizes.items() if axis in ("tp", "pp", "cp", "ep", "etp")}
    if arguments.get("strategy") == "megatron" or (megatron and "strategy" not in arguments):
        return build_from_sizes(megatron, "tp-cp-ep-dp-pp", world, experts)
    if experts:
        raise MeshError("no expert layout: verl has experts only with Megatron", hint="read it without experts=")
    fsdp, sp = sizes.get("fsdp", -1), sizes.get("sp", 1)
    # As verl does: a size that is negative, or not smaller than the world, is one group of all ranks.
    whole = fsdp < 0 or fsdp >= world
    axes = [("dp_shard", world)] if whole else [("dp_replicate", -1), ("dp_shard", fsdp)]
    mesh = DeviceMesh(axes, world_size=world)
    if sp > 1:
        if world % sp:
            raise MeshError(f"verl: ulysses_sequence_parallel_size {sp} does not divide {world} ranks")
        mesh = mesh.with_groups("sp", mesh.ranks.reshape(-1, sp))
    return mesh


def _build_rollout(arguments: Mapping[str, Any], world_size: int | None, experts: bool) -> DeviceMesh:
    selected = _table(_ROLLOUT).select(arguments)
    world = require_world_size(selected.get(WORLD_SETTING) if world_size is None else world_size, "verl")
    sizes = _table(_ROLLOUT).axis_sizes(selected)
    inside = [(axis, sizes[axis]) for axis in ("dp", "pp", "tp") if axis in sizes]
    mesh = DeviceMesh([("replica", -1), *inside], world_size=world)
    if not experts:
        return mesh
    merged = [axis for axis in ("dp", "tp") if axis in mesh.axis_names]
    expected = mesh.size(*merged) if merged else 1
    if sizes.get("ep", 1) not in (1, expected):
        raise MeshError(f"verl: expert_parallel_size {sizes['ep']} must be 1 or dp × tp, which is {expected}")
    return mesh.flatten(*merged, name="ep")


def _omissions(name: str) -> Callable[[Mapping[str, Any]], Sequence[str]]:
    table = _table(name)

    def omissions(arguments: Mapping[str, Any]) -> Sequence[str]:
        plain = {key: value for key, value in arguments.items() if key not in ("strategy", "others", "world_size")}
        notes = list(table.omissions(table.select(plain)))
        if arguments.get("others"):
            listed = ", ".join(f"framework={role!r}" for role in arguments["others"])
            notes.append(f"verl: this is the layout of {_ROLES[name][0].rstrip('.')}; for the others, pass {listed}")
        return notes

    return omissions


def _parser(name: str) -> Callable[[str], Mapping[str, Any]]:
    read = _reader(name)

    def parse(text: str) -> Mapping[str, Any]:
        arguments = read(parse_config(text) or {})
        if arguments is None:
            prefix = _ROLES[name][0]
            keys = ", ".join(_table(name).written(key) for key in _table(name).sizes)
            raise ParseError(f"no setting of verl starts with {short(prefix)}", hint=f"it has {keys}", text=text)
        return arguments

    return parse


def _has_experts(arguments: Mapping[str, Any]) -> bool:
    flat = {dashed(key): value for key, value in flat_config(arguments).items()}
    names = ("megatron.expert-model-parallel-size", "expert-parallel-size")
    return any(as_size(name, flat[name]) > 1 for name in names if flat.get(name) is not None)


FORMATS = tuple(
    Format(
        name,
        NEVER,
        None,
        _parser(name),
        _build_rollout if name == _ROLLOUT else _build_training,
        has_experts=_has_experts,
        from_config=_reader(name),
        omissions=_omissions(name),
        looks_for="actor_rollout_ref.actor.megatron.tensor_model_parallel_size" if name == "verl" else "",
    )
    for name in _ROLES
)
"""The formats of the roles: "verl" for the actor, and one for each of the others."""
