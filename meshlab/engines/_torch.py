"""torch's device meshes on the ranks: opened on request, and again after an error or a restart."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from meshlab.base._backends import BACKENDS
from meshlab.base._errors import CommunicatorError, EngineError, MeshError
from meshlab.comm._monitor import torch_label
from meshlab.comm._worlds import check_torch
from meshlab.engines._rounds import Reply
from meshlab.mesh._axes import WORLD
from meshlab.mesh._groups import ranks_repr
from meshlab.mesh._mesh import DeviceMesh

if TYPE_CHECKING:
    from meshlab.engines._engines import Engines

_MOST_MESHES = 8  # on the ranks at the same time; the groups of each hold sockets, threads and GPU memory


@dataclass(frozen=True, slots=True, repr=False)
class TorchMesh:
    """torch on the ranks: its default process group, and a device mesh with the groups of a mesh. See `Engines.torch`.

    Parameters
    ----------
    mesh : DeviceMesh
        The mesh, whose groups torch has too.
    version : str
        The version of torch on rank 0.
    device : str
        The type of device on which torch moves data: ``"cpu"`` or ``"cuda"``.

    Examples
    --------
    >>> import meshlab as ml
    >>> ml.engines.TorchMesh(ml.DeviceMesh("dp=2, tp=2"), "2.13.0", "cpu")
    <TorchMesh dp=2, tp=2 of torch 2.13.0 on 4 ranks (cpu): comm.torch_mesh in engines.run(step, mesh) and
    engines.profile(step, mesh), torch_mesh in cells with %%px>
    """

    mesh: DeviceMesh
    version: str
    device: str

    def __repr__(self) -> str:
        n = self.mesh.world_size
        return (
            f"<TorchMesh {self.mesh} of torch {self.version} on {n} rank{'s' * (n != 1)} ({self.device}): "
            "comm.torch_mesh in engines.run(step, mesh) and engines.profile(step, mesh), torch_mesh in cells with %%px>"
        )


class OnAll(Protocol):
    """A function that calls a method of the worker on all ranks, and raises the first error."""

    def __call__(self, method: str, *arguments: object, task: str, is_start: bool = False) -> list[Reply]:
        """Return the replies of all ranks."""


class TorchMeshes:
    """The meshes on which the user has opened torch, and those of them that are open on the ranks."""

    def __init__(self, on_all: OnAll) -> None:
        self._on_all = on_all
        self._meshes: OrderedDict[str, DeviceMesh] = OrderedDict()  # by fingerprint, least recent first
        self._open: set[str] = set()
        self._is_open = False
        self._version = ""

    def request(self, mesh: DeviceMesh) -> str:
        """Open torch on a mesh unless it is open. Return the version of torch."""
        if mesh.fingerprint not in self._meshes and len(self._meshes) >= _MOST_MESHES:
            oldest, _ = self._meshes.popitem(last=False)
            if oldest in self._open:
                self._open.remove(oldest)
                self._on_all("drop_torch_mesh", oldest, task="closing the least recently used mesh of torch")
        self._meshes[mesh.fingerprint] = mesh
        self.prepare(mesh)
        self._on_all("show_torch_mesh", mesh.fingerprint, task=f"opening torch on {mesh}")
        return self._version

    def prepare(self, mesh: DeviceMesh | None) -> str | None:
        """Open torch for a task on a mesh, by default the last one, if it was requested. Return its fingerprint."""
        if not self._meshes:
            return None
        fingerprint = next(reversed(self._meshes)) if mesh is None else mesh.fingerprint
        if fingerprint not in self._meshes:
            return None
        self._meshes.move_to_end(fingerprint)
        mesh = self._meshes[fingerprint]
        if not self._is_open:
            # A rank that cannot import torch does not let the others wait for it.
            self._version = self._on_all("load_torch", task="loading torch", is_start=True)[0].value
            # Ranks of an earlier client may still have the store.
            self._on_all("open_torch", secrets.token_hex(6), task="opening torch", is_start=True)
            self._is_open = True
        if fingerprint not in self._open:
            replies = self._on_all("add_torch_mesh", mesh, task=f"opening torch on {mesh}", is_start=True)
            check_members(mesh, [reply.value for reply in replies])
            self._open.add(fingerprint)
        return fingerprint

    def communicators(self, fingerprint: str | None) -> dict[str, tuple[int, ...]]:
        """Return the ranks of each group of torch that a task may use, by its name in messages."""
        if fingerprint is None:
            return {}
        mesh = self._meshes[fingerprint]
        groups = [group for axis in (WORLD, *mesh.axis_names) for group in mesh[axis]]
        return {torch_label(group.name): group.ranks for group in groups}

    def renew(self, why: str) -> None:
        """Open new groups, unless the last task has used none: models on the ranks then stay usable after a typo."""
        if not self._is_open:
            return
        task = f"closing the groups of torch {why}"
        self._is_open = False  # if one of these calls fails, nothing is open
        if all(reply.value for reply in self._on_all("has_clean_torch", task=task)):
            self._is_open = True
            return
        self._open.clear()
        self._on_all("close_torch", task=task)
        self.prepare(None)  # for cells with %%px, which do not ask for it

    def forget(self) -> None:
        """Forget what was open on ranks that are gone. The next task opens what it uses again."""
        self._open.clear()
        self._is_open = False


def check_expressible(engines: Engines, mesh: DeviceMesh) -> None:
    """Raise unless the ranks can open torch on a mesh."""
    if BACKENDS[engines.backend].in_process:
        raise EngineError(
            "torch needs a process per rank, but these ranks are threads of one process",
            hint="start engines with ml.launch(n)",
        )
    engines.check_mesh(mesh)
    if mesh.custom_groups:
        name = mesh.custom_groups[0].name
        raise MeshError(
            f"a mesh of torch has axes only, but {mesh} has the custom group {name!r}",
            hint=f"pass mesh.without_group({name!r}), and open the group with torch.distributed.new_group",
        )
    for axis in mesh.axis_names:
        rows = mesh[axis].array
        unsorted = np.flatnonzero((np.diff(rows, axis=1) < 0).any(axis=1))
        if len(unsorted):
            group = mesh[axis][int(unsorted[0])]
            raise MeshError(
                f"torch sorts the ranks of a group, so it cannot express the order of axis {axis!r}, whose group "
                f"{group.name} is {ranks_repr(group.array)}",
                hint="create the mesh with ranks that ascend along each axis",
            )
    if not engines._rank_set.is_attached:
        try:
            check_torch()
        except CommunicatorError as error:
            raise EngineError(error.message, hint=error.hint) from None


def check_members(mesh: DeviceMesh, members: Sequence[Mapping[str, Sequence[int]]]) -> None:
    """Raise unless torch's group of each axis has the ranks of meshlab's group, in the same order, on every rank."""
    for axis in mesh.axis_names:
        groups = mesh[axis]
        for rank, by_axis in enumerate(members):
            expected = groups.of(rank).ranks if groups.color[rank] >= 0 else ()
            actual = tuple(by_axis.get(axis, ()))
            if actual != expected:
                raise CommunicatorError(
                    f"axis {axis!r}: on rank {rank}, torch's group is {list(actual)}, but meshlab's is "
                    f"{list(expected)}",
                    hint="report a bug with the version of torch",
                    rank=rank,
                )
