"""Checks of a mesh: its size and its backends before any rank is involved, and its groups by all ranks."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from meshlab.base._backends import BACKENDS, choice_text, openable_backends
from meshlab.base._errors import CommunicatorError, EngineError, MeshError
from meshlab.base._hints import NEW_RANKS, Argument, Hint
from meshlab.base._locks import HAS_LOCKS
from meshlab.comm._worlds import process_module
from meshlab.engines._rounds import Reply
from meshlab.mesh._axes import WORLD, nearest_text
from meshlab.mesh._groups import Group
from meshlab.mesh._mesh import DeviceMesh, MeshLike, as_mesh

if TYPE_CHECKING:
    import pandas as pd

    from meshlab.engines._lease import Lease


def check_mesh_size(mesh: DeviceMesh, n: int, *, fix: str = "") -> None:
    """Raise a `MeshError` unless the mesh has `n` ranks. `fix` is its hint, such as the one for a command line."""
    size = mesh.world_size
    if size != n:
        nearest = nearest_text(mesh.axis_names, [axis.size for axis in mesh.axes], n)
        raise MeshError(
            f"{mesh} has {size} rank{'s' * (size != 1)}, but there {'is' if n == 1 else 'are'} {n} "
            f"engine{'s' * (n != 1)}",
            hint=fix
            or f"start {size}, or let an axis take all other ranks: DeviceMesh('…=-1', world_size={n}); {nearest}",
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


def check_platform(backend: str) -> None:
    """Raise an `EngineError` if this Python cannot run ranks of a backend, as in a browser."""
    in_process = BACKENDS[backend].in_process
    missing = [name for name in ("psutil", *(() if in_process else ("ipyparallel",))) if find_spec(name) is None]
    if missing:
        raise EngineError(
            f"ranks need {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed",
            hint=f"run pip install {' '.join(missing)}",
        )
    if not (in_process or HAS_LOCKS):
        raise EngineError(
            "ranks in processes need locks of files, and this Python has none (no module fcntl)",
            hint="use Python on Linux",
        )


def check_packages_of(backend: str) -> None:
    """Raise an `EngineError` if this Python lacks a package of a backend, before any rank needs it."""
    try:
        process_module(backend).check_installed()
    except CommunicatorError as error:
        raise EngineError(error.message, hint=error.hint) from None


def verify_mesh(lease: Lease, mesh: DeviceMesh) -> pd.DataFrame:
    """Run `Engines.verify` within a lease."""
    import pandas as pd

    for reply in lease.round(_fingerprint, arguments=(mesh,)).run():
        if reply.value != mesh.fingerprint:
            raise CommunicatorError(
                f"rank {reply.rank} computes the mesh fingerprint {reply.value or reply.error}, but expected "
                f"{mesh.fingerprint}",
                hint="install the same version of meshlab on all hosts",
                rank=reply.rank,
            )
    rows = []
    for name in (WORLD, *mesh.axis_names, *(group.name for group in mesh.custom_groups)):
        replies = {reply.rank: reply for reply in lease.round(_members_and_sum, mesh, name).run()}
        for group in mesh[name]:
            for rank in group:
                _check_member(group, replies[rank])
            rows.append((name, group.name, len(group), group.ranks, True, tuple(replies[group.ranks[0]].value[0])))
    return pd.DataFrame(rows, columns=["axis", "group", "n_ranks", "ranks", "is_right", "seen"])


def _fingerprint(comm: Any, mesh: DeviceMesh) -> str:
    """Return the fingerprint that a rank computes for a mesh."""
    return mesh.fingerprint


def _members_and_sum(comm: Any) -> tuple[list[int], int]:
    """Return the global ranks of the group, and the sum of (rank + 1) over the group. Runs on every rank."""
    # The gathered ranks show the members and their order, and the sum shows that reductions cover the same members.
    me = comm.xp.asarray([comm.world_rank], dtype="int64")
    return [int(rank) for rank in comm.all_gather(me)], int(comm.all_reduce(me + 1)[0])


def _check_member(group: Group, reply: Reply) -> None:
    if reply.error is not None:
        raise CommunicatorError(
            f"rank {reply.rank} failed while group {group.name} was being verified: {reply.error}",
            group=group.name,
            rank=reply.rank,
        )
    seen, total = reply.value
    if tuple(seen) != group.ranks or total != sum(rank + 1 for rank in group.ranks):
        raise CommunicatorError(
            f"group {group.name}: expected ranks {list(group.ranks)}, but rank {reply.rank} is grouped with "
            f"{list(seen)} (rank-coded sum {total})",
            hint=Hint("{}, and report a bug if it happens again", NEW_RANKS),
            group=group.name,
            rank=reply.rank,
        )


def check_fit_of(mesh: MeshLike | None, n: int) -> None:
    """Raise unless a mesh fits a number of ranks. None fits every number."""
    if mesh is not None:
        check_mesh_size(as_mesh(mesh, fill=n), n)
