"""Reading and writing the layouts of other frameworks: code, flags, arguments and live objects."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from meshlab.errors import MeshError, ParseError
from meshlab.mesh.axes import short
from meshlab.mesh.interop import deepspeed, jax, megatron, torch, vllm
from meshlab.mesh.interop.recipe import Format, Recipe
from meshlab.mesh.mesh import DeviceMesh

__all__ = ["FRAMEWORKS", "read_mesh", "write_mesh"]

_FORMATS: dict[str, Format] = {
    # Text is read by the first format whose pattern matches. Flags come first, because a shell script may contain
    # Python code, and the general names "DeviceMesh(" and "Mesh(" come last.
    form.name: form
    for form in (
        torch.TORCHTITAN,
        megatron.FLAGS,
        vllm.FORMAT,
        megatron.HYPERCOMM,
        megatron.ORDER,
        deepspeed.FORMAT,
        torch.FORMAT,
        jax.FORMAT,
    )
}
FRAMEWORKS: tuple[str, ...] = tuple(sorted(_FORMATS))
"""Names of the frameworks that `DeviceMesh.read` and `DeviceMesh.to` support."""


def write_mesh(mesh: DeviceMesh, framework: str, *, experts: DeviceMesh | None = None) -> Recipe:
    """Return the recipe of `DeviceMesh.to`."""
    return _format(framework).write(mesh, experts)


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
    found = _find(source, framework)
    if found is None:
        return DeviceMesh(str(source), world_size=world_size)
    form, arguments = found
    mesh = form.build(arguments, world_size, bool(experts))
    if experts is None and form.has_experts(arguments):
        # Two layouts share these ranks, and the caller gets one of them. A silent choice would hide half of the groups.
        warnings.warn(
            f"{form.name} also places experts on these ranks, which {mesh} does not show; pass experts=True for the "
            f"expert layout, or experts=False for this one without a warning",
            stacklevel=3,  # the caller of DeviceMesh.read
        )
    return mesh


def _find(source: Any, framework: str | None) -> tuple[Format, Mapping[str, Any]] | None:
    """Return the format and the arguments of a source, or None for meshlab's own text."""
    if isinstance(source, Recipe):
        return _format(source.framework), source.arguments
    if isinstance(source, Mapping):
        if framework is None:
            raise MeshError(
                "a mapping does not identify its framework", hint="pass framework= one of " + ", ".join(FRAMEWORKS)
            )
        return _format(framework), source
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
    if framework is not None:
        form = _format(framework)
        return form, form.parse(text)
    for form in _FORMATS.values():
        if form.pattern.search(text):
            return form, form.parse(text)
    if "(" in text or "--" in text:
        raise ParseError(f"unknown format {short(text.strip())}", hint=f"use one of {', '.join(FRAMEWORKS)}")
    return None


def _format(framework: str) -> Format:
    try:
        return _FORMATS[framework]
    except (KeyError, TypeError):
        raise MeshError(
            f"unknown framework {short(framework)}", hint=f"choose one of {', '.join(FRAMEWORKS)}"
        ) from None
