"""The communicators that the ranks have open. The client creates and closes them, as rounds on all ranks."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from meshlab.base._backends import BACKENDS
from meshlab.engines._lease import raise_first_error
from meshlab.engines._rounds import Reply
from meshlab.engines._torch import TorchMeshes
from meshlab.mesh._axes import WORLD
from meshlab.mesh._groups import Groups
from meshlab.mesh._mesh import DeviceMesh

if TYPE_CHECKING:
    from meshlab.engines._engines import Engines

# A NCCL communicator holds about 200 MB of GPU memory, so the least recently used ones are closed beyond this number.
_MOST_GROUP_SETS = 32


class OpenGroups:
    """The sets of groups with communicators, the backends next to that of the engines, and the meshes of torch."""

    # If each rank decided what to open, ranks with different histories would enter different splits and deadlock.

    def __init__(self, engines: Engines) -> None:
        self._engines = engines
        self._names: OrderedDict[str, None] = OrderedDict()  # least recent first
        self._beside: set[str] = set()
        self.torch = TorchMeshes(self.on_all)

    def on_all(self, method: str, *arguments: Any, task: str, is_start: bool = False) -> list[Reply]:
        """Call a method of the worker on all ranks, and raise the first error. A start may take longer."""
        engines = self._engines
        limit_s = max(engines._timeout_s, engines.deadline_s) if is_start else None
        replies = engines._new_round(method, [arguments] * engines.world_size, task=task, deadline_s=limit_s).run()
        raise_first_error(replies, task, engines.ranks)
        return replies

    def open(
        self, mesh: DeviceMesh, axis: str | Sequence[str], backend: str, *, separate: bool = False
    ) -> tuple[str, Groups]:
        """Open the communicators of a set of groups unless they are open. Return its name on the ranks, and the set."""
        self._engines.check_mesh(mesh)
        groups = mesh[axis]
        name = WORLD if groups.name == WORLD else f"{mesh.fingerprint} {groups.name}"
        beside = None if backend == self._engines.backend else backend
        if beside is not None:
            name += f" on {beside}"
            self._open_beside(beside)
        if separate:
            name += " separate"
        if name in self._names:
            self._names.move_to_end(name)
            return name, groups
        if len(self._names) >= _MOST_GROUP_SETS:
            oldest, _ = self._names.popitem(last=False)
            self.on_all("drop", [oldest], task="closing the least recently used communicators")
        self.on_all("split", name, groups, separate, beside, task=f"creating the communicators of {groups.name}")
        self._names[name] = None
        return name, groups

    def _open_beside(self, backend: str) -> None:
        """Open another backend on all ranks, in addition to their own, unless it is open."""
        if backend in self._beside:
            return
        # To import torch takes seconds, and more if all ranks do it at the same time, so it counts as start-up.
        library = " and ".join(package for _, package in BACKENDS[backend].libraries) or backend
        for method, task in (("load_beside", f"loading {library}"), ("open_beside", f"opening {backend}")):
            self.on_all(method, backend, task=task, is_start=True)
        self._beside.add(backend)

    def close(self, why: str) -> None:
        """Close all communicators, and replace the groups of torch."""
        names, self._names = list(self._names), OrderedDict()
        if names:
            self._engines._new_round(
                "drop", [(names,)] * self._engines.world_size, task=f"closing communicators {why}"
            ).run()
        self.torch.renew(why)

    def forget(self) -> None:
        """Forget what was open on ranks that are gone."""
        self._names.clear()
        self._beside.clear()
        self.torch.forget()
