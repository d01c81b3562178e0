"""The same layout in the words of other frameworks, both ways: code, flags, arguments and live objects."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from meshlab.errors import MeshError, ParseError
from meshlab.mesh.axes import short
from meshlab.mesh.interop import deepspeed, jax, megatron, torch, vllm
from meshlab.mesh.interop.recipe import Format, Recipe
from meshlab.mesh.mesh import DeviceMesh

__all__ = ["FRAMEWORKS", "Recipe", "read_mesh", "write_mesh"]

_FORMATS: dict[str, Format] = {
    # A text is read by the first format whose mark it carries, so the more particular ones come first.
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
"""The frameworks whose words can be read and written."""


def write_mesh(mesh: DeviceMesh, framework: str, *, experts: DeviceMesh | None = None) -> Recipe:
    """Write a mesh in the words of a framework; see `DeviceMesh.to`.

    Examples
    --------
    >>> mesh = DeviceMesh("pp=2, dp=4, tp=8")
    >>> write_mesh(mesh, "megatron")
    RankGenerator(tp=8, ep=1, dp=4, pp=2, cp=1, order="tp-dp-pp")
    >>> write_mesh(mesh, "deepspeed")
    PipeModelDataParallelTopology(num_pp=2, num_mp=8, num_dp=4)
    """
    return _format(framework).write(mesh, experts)


def read_mesh(
    source: str | Mapping[str, Any] | Recipe | object,
    *,
    framework: str | None = None,
    world_size: int | None = None,
    experts: bool | None = None,
) -> DeviceMesh:
    """Read a mesh out of what another framework says.

    Parameters
    ----------
    source : str, mapping, Recipe or object
        Code or flags, out of a script as they stand; arguments by the framework's own names; or a live mesh, grid or
        topology object. A text such as ``"dp=2, tp=4"`` is read too. Nothing is executed.
    framework : str, optional
        Whose words they are; found out from a text or an object when left out.
    world_size : int, optional
        How many ranks there are, where the source does not say it; Megatron's flags never do.
    experts : bool, optional
        Where the source has two layouts, True reads that of the experts, and False the dense one. Left out, it is the
        dense one too, and a warning says that there are experts.

    Returns
    -------
    DeviceMesh

    Raises
    ------
    ParseError
        If the text cannot be read.
    MeshError
        If it says something that is not possible, or too little.

    Warns
    -----
    UserWarning
        If the source has experts and `experts` was left out: the mesh does not show them.

    Examples
    --------
    >>> flags = "--tensor-model-parallel-size 8 --pipeline-model-parallel-size 2 --expert-model-parallel-size 16"
    >>> read_mesh(flags, world_size=64, experts=False)
    DeviceMesh('pp=2, dp=4, tp=8')
    >>> read_mesh(flags + " --expert-tensor-parallel-size 1", world_size=64, experts=True)
    DeviceMesh('pp=2, edp=2, ep=16, etp=1')
    >>> read_mesh("init_device_mesh('cuda', (2, 4), mesh_dim_names=('dp', 'tp'))")
    DeviceMesh('dp=2, tp=4')
    """
    if isinstance(source, DeviceMesh):
        return source
    found = _find(source, framework)
    if found is None:
        return DeviceMesh(str(source), world_size=world_size)
    form, arguments = found
    mesh = form.build(arguments, world_size, bool(experts))
    if experts is None and form.has_experts(arguments):
        warnings.warn(
            f"{form.name} lays experts out on these ranks too, and {mesh} does not show them; experts=True reads their "
            "layout, experts=False says that the dense one is meant",
            stacklevel=2,
        )
    return mesh


def _find(source: Any, framework: str | None) -> tuple[Format, Mapping[str, Any]] | None:
    """Whose words these are, and the arguments in them; None for a text of meshlab itself."""
    if isinstance(source, Recipe):
        return _format(source.framework), source.arguments
    if isinstance(source, Mapping):
        if framework is None:
            raise MeshError("say whose arguments these are: framework= one of " + ", ".join(FRAMEWORKS))
        return _format(framework), source
    if isinstance(source, str):
        return _find_in_text(source, framework)
    for form in _FORMATS.values():
        arguments = form.from_object(source)
        if arguments is not None and framework in (None, form.name):
            return form, arguments
    raise MeshError(
        f"a {type(source).__name__} is not a mesh that meshlab knows; there are {', '.join(FRAMEWORKS)}, and their text"
    )


def _find_in_text(text: str, framework: str | None) -> tuple[Format, Mapping[str, Any]] | None:
    if framework is not None:
        form = _format(framework)
        return form, form.parse(text)
    for form in _FORMATS.values():
        if form.mark.search(text):
            return form, form.parse(text)
    if "(" in text or "--" in text:
        raise ParseError(
            f"{short(text.strip())} is in no words that meshlab knows; it reads those of {', '.join(FRAMEWORKS)}"
        )
    return None


def _format(framework: str) -> Format:
    try:
        return _FORMATS[framework]
    except (KeyError, TypeError):
        raise MeshError(f"there is no framework {short(framework)}; there are {', '.join(FRAMEWORKS)}") from None
