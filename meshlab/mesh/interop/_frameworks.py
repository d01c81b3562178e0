"""Reading and writing the layouts of other frameworks: code, flags, configs, arguments and live objects."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from typing import Any

from meshlab.base._errors import MeshError, ParseError
from meshlab.mesh._axes import check_length, parse_axes, short
from meshlab.mesh._mesh import DeviceMesh
from meshlab.mesh.interop import _accelerate as accelerate
from meshlab.mesh.interop import _automodel as automodel
from meshlab.mesh.interop import _deepspeed as deepspeed
from meshlab.mesh.interop import _deepspeed_config as deepspeed_config
from meshlab.mesh.interop import _easylm as easylm
from meshlab.mesh.interop import _foreign as foreign
from meshlab.mesh.interop import _hypercomm as hypercomm
from meshlab.mesh.interop import _jax as jax
from meshlab.mesh.interop import _levanter as levanter
from meshlab.mesh.interop import _maxtext as maxtext
from meshlab.mesh.interop import _megatron as megatron
from meshlab.mesh.interop import _nanotron as nanotron
from meshlab.mesh.interop import _openrlhf as openrlhf
from meshlab.mesh.interop import _picotron as picotron
from meshlab.mesh.interop import _sglang as sglang
from meshlab.mesh.interop import _tensorrt_llm as tensorrt_llm
from meshlab.mesh.interop import _torch as torch
from meshlab.mesh.interop import _torchtitan as torchtitan
from meshlab.mesh.interop import _variables as variables
from meshlab.mesh.interop import _verl as verl
from meshlab.mesh.interop import _vllm as vllm
from meshlab.mesh.interop._config_text import STARTED, Config, parse_config
from meshlab.mesh.interop._parsing import all_flags, started_ranks
from meshlab.mesh.interop._recipe import Format, Recipe
from meshlab.mesh.interop._settings import UNNAMED

_FORMATS: dict[str, Format] = {
    # Text is read by the first format whose pattern matches, or else that recognises its config. Flags come first,
    # because a shell script may contain Python code, and the general names "DeviceMesh(" and "Mesh(" come last. Configs
    # with keys of one framework alone come before those with keys that many frameworks use.
    form.name: form
    for form in (
        accelerate.FORMAT,
        torchtitan.FORMAT,
        openrlhf.FORMAT,
        megatron.FLAGS,
        maxtext.FORMAT,
        easylm.FORMAT,
        tensorrt_llm.FORMAT,
        picotron.FORMAT,
        sglang.FORMAT,
        vllm.FORMAT,
        hypercomm.FORMAT,
        megatron.ORDER,
        deepspeed.FORMAT,
        automodel.FORMAT,
        torch.FORMAT,
        jax.FORMAT,
        nanotron.FORMAT,
        deepspeed_config.FORMAT,
        levanter.FORMAT,
        *verl.FORMATS,
        variables.FORMAT,
    )
}
_CONFIGS = (
    *("verl", "nanotron", "automodel", "picotron", "levanter", "tensorrt-llm", "accelerate", "torchtitan"),
    *("megatron-flags", "deepspeed-config", "sglang", "vllm", "variables"),
)

FRAMEWORKS: tuple[str, ...] = tuple(sorted(name for name, form in _FORMATS.items() if form.write is not None))
"""Names of the formats that `DeviceMesh.to` writes and `DeviceMesh.read` reads."""

READERS: tuple[str, ...] = tuple(sorted(_FORMATS))
"""Names of the formats that `DeviceMesh.read` reads."""

OWN = "meshlab"
"""Name of meshlab's own text, such as ``dp=2, tp=4``."""


def write_mesh(mesh: DeviceMesh, framework: str, *, experts: DeviceMesh | None = None) -> Recipe:
    """Return the recipe of `DeviceMesh.to`."""
    form = _format(framework, FRAMEWORKS)
    if form.write is None:
        raise MeshError(
            f"meshlab reads {framework} but does not write it", hint=f"choose one of {', '.join(FRAMEWORKS)}"
        )
    return form.write(mesh, experts)


def read_mesh(
    source: str | Mapping[str, Any] | Recipe | object,
    *,
    framework: str | None = None,
    world_size: int | None = None,
    experts: bool | None = None,
) -> DeviceMesh:
    """Return the mesh of `DeviceMesh.read`."""
    if isinstance(source, DeviceMesh):
        return source
    match = _find(source, framework)
    if match is None:
        return DeviceMesh(str(source), world_size=world_size)
    form, arguments = match
    mesh = form.build(arguments, world_size, bool(experts))
    notes = [*form.omissions(arguments), *form.remarks(mesh)]
    if experts is None and form.has_experts(arguments):
        # Two layouts share these ranks, and the caller gets one of them. A silent choice would hide half of the groups.
        notes.append(
            f"{form.name} also places experts on these ranks, which {mesh} does not show; pass experts=True for the "
            f"expert layout, or experts=False for this one without a warning"
        )
    for note in notes:
        warnings.warn(note, stacklevel=3)  # the caller of DeviceMesh.read
    return mesh


def mesh_text_kind(text: str) -> str | None:
    """Return the format of a text that describes a mesh, or None for any other text.

    The text is not read completely, so `DeviceMesh.read` may still reject it, for example if a size is missing.

    Parameters
    ----------
    text : str
        Any text, such as the content of a file.

    Returns
    -------
    str or None
        One of ``READERS``, or ``"meshlab"`` for text such as ``"dp=2, tp=4"``.

    Examples
    --------
    >>> mesh_text_kind("vllm serve model -tp 8"), mesh_text_kind("dp=2, tp=4"), mesh_text_kind("# nThread 1 nGpus 2")
    ('vllm', 'meshlab', None)
    """
    try:
        match = _recognised(text)
    except (ParseError, MeshError):
        match = None
    if match is not None:
        return match[0].name
    try:
        parse_axes(text)
    except ParseError:
        return None
    return OWN


def _find(source: Any, framework: str | None) -> tuple[Format, Mapping[str, Any]] | None:
    """Return the format and the arguments of a source, or None for meshlab's own text."""
    if isinstance(source, Recipe):
        return _format(source.framework, READERS), source.arguments
    if isinstance(source, Mapping):
        if framework is None:
            raise MeshError(
                "a mapping does not identify its framework", hint="pass framework= one of " + ", ".join(READERS)
            )
        return _format(framework, READERS), source
    if isinstance(source, str):
        return _find_in_text(source, framework)
    for form in _FORMATS.values():
        arguments = form.from_object(source)
        if arguments is not None and framework in (None, form.name):
            return form, arguments
    raise MeshError(
        f"cannot read a mesh from a {type(source).__name__}", hint=f"pass text or an object of {', '.join(FRAMEWORKS)}"
    )


def _find_in_text(text: str, framework: str | None) -> tuple[Format, Mapping[str, Any]] | None:
    check_length(text)
    if framework is not None:
        named = _parse_as(_format(framework, READERS), text)
        return _format(framework, READERS), {key: value for key, value in named.items() if key != UNNAMED}
    match = _recognised(text)
    if match is not None:
        form, arguments = match
        return form, form.parse(text) if arguments is None else arguments
    config = _config_in(text)
    if config is not None:
        raise ParseError(
            "this config has no sizes of parallelism",
            hint="meshlab looked for "
            + "; ".join(f"{name}: {_FORMATS[name].looks_for}" for name in _CONFIGS if _FORMATS[name].looks_for),
        )
    if "(" in text or "--" in text:
        raise ParseError(f"unknown format {short(text.strip())}", hint=f"use one of {', '.join(READERS)}")
    return None


def _parse_as(form: Format, text: str) -> Mapping[str, Any]:
    """Return the arguments in a text of a known format, whether code, flags or a config."""
    config = _config_in(text)
    arguments = None if config is None else form.from_config(config)
    if arguments is not None:
        return arguments
    try:
        return form.parse(text)
    except ParseError as error:
        other = mesh_text_kind(text)
        if other in (None, OWN, form.name) or form.clue.search(text):
            raise
        raise ParseError(
            error.message, hint=f"the text looks like {other}; omit framework=, or pass framework={other!r}"
        ) from None


def _recognised(text: str) -> tuple[Format, Mapping[str, Any] | None] | None:
    """Return the format of a text, and its arguments if they come from a config; None for any other text."""
    foreign.check_text(text)
    for form in _FORMATS.values():
        if form.clue.search(text):
            return form, None
    config = _config_in(text)
    if config is None:
        return None
    for name in _CONFIGS:
        if name != _CONFIGS[0]:  # keys of verl cannot be mistaken, but its config also has those of others
            foreign.check_config(config)
        arguments = _FORMATS[name].from_config(config)
        if arguments is not None:
            return _FORMATS[name], arguments
    foreign.check_sizes(config)
    return None


_LIKE_CONFIG = re.compile(
    r"\A\s*\{|^[ \t]*\[[\w.-]+\][ \t]*(?:#.*)?$|^[ \t]*[\w.\"-]+:(?:[ \t]|$)|\w\.\w+=|\w[ \t]*=[ \t]*\S", re.MULTILINE
)

_ABOUT_MESHES = re.compile(
    r"parallel|_degree|zero_optimization|(?:tp|pp|dp|cp|ep|fsdp|shard|replicate|axis)[-_]size|axes|distributed|train",
    re.IGNORECASE,
)


def _config_in(text: str) -> Config | None:
    """Return the values of a config that may be about training or serving; other configs are not parsed."""
    if _LIKE_CONFIG.search(text) is None or _ABOUT_MESHES.search(text) is None:
        return None
    config = parse_config(text)
    started = None if config is None or "torchrun" not in text else started_ranks(text, all_flags(text))
    return config if config is None or started is None else {**config, STARTED: started}


def _format(framework: str, names: tuple[str, ...]) -> Format:
    try:
        return _FORMATS[framework]
    except (KeyError, TypeError):
        raise MeshError(f"unknown framework {short(framework)}", hint=f"choose one of {', '.join(names)}") from None
