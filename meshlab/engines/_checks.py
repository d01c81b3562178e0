"""Checks of a mesh and its backends before any rank is involved."""

from __future__ import annotations

from meshlab.base._backends import BACKENDS, choice_text, openable_backends
from meshlab.base._errors import CommunicatorError, EngineError, MeshError
from meshlab.base._hints import Argument, Hint
from meshlab.comm._worlds import process_module
from meshlab.mesh._mesh import DeviceMesh


def check_mesh_size(mesh: DeviceMesh, n: int) -> None:
    """Raise a `MeshError` unless the mesh has `n` ranks."""
    if mesh.world_size != n:
        raise MeshError(
            f"{mesh} has {mesh.world_size} rank{'s' * (mesh.world_size != 1)}, but there {'is' if n == 1 else 'are'} "
            f"{n} engine{'s' * (n != 1)}",
            hint=f"start {mesh.world_size}, or let an axis take all other ranks: DeviceMesh('…=-1', world_size={n})",
        )


def check_mesh_backends(mesh: DeviceMesh, engines: str) -> None:
    """Raise an `EngineError` if the mesh has a backend that engines of the backend `engines` cannot open."""
    openable = openable_backends(engines)
    for name, backend in mesh.backends.items():
        if backend in openable:
            continue
        kind, argument = ("axis", "backends") if name in mesh.axis_names else ("group", "backend")
        fix = f"create the {'mesh' if kind == 'axis' else 'group'} without {argument}="
        if backend in BACKENDS and set(mesh.backends.values()) <= set(openable_backends(backend)):
            fix = Hint("{}, or start the engines with {}", fix, Argument("backend", backend))
        raise EngineError(
            f"{kind} {name!r} of the mesh has the backend {backend!r}, but the engines can open "
            f"{choice_text(openable, 'and')}",
            hint=fix,
        )


def check_packages_of(backend: str) -> None:
    """Raise an `EngineError` if this Python lacks a package of a backend, before any rank needs it."""
    try:
        process_module(backend).check_installed()
    except CommunicatorError as error:
        raise EngineError(error.message, hint=error.hint) from None
