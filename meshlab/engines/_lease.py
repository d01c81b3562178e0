"""A lease: exclusive use of engines, which runs rounds on their ranks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from meshlab.base._errors import EngineError, MeshError
from meshlab.base._hints import Argument, Hint
from meshlab.engines._rounds import RankInfo, Reply, Round
from meshlab.mesh._axes import WORLD
from meshlab.mesh._mesh import DeviceMesh

if TYPE_CHECKING:
    from meshlab.engines._engines import Engines


@dataclass(eq=False)
class Lease:
    """Exclusive use of engines within a ``with`` block, which raises if they are busy, broken or closed."""

    engines: Engines
    task: str
    """The purpose, which other callers see as "busy with …". It can be changed during the block."""
    is_query: bool = False
    """True for a short query of the state, for which other callers wait instead of raising."""
    cancel: Callable[[], threading.Event] | None = None
    """A function that cancels the task if the engines are closed, and returns the event of its end."""

    def __enter__(self) -> Lease:
        self.engines._acquire(self)
        try:
            self.engines._check_usable()
        except BaseException:
            self.engines._release()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.engines._release()

    def round(
        self,
        function: Callable[..., Any],
        mesh: DeviceMesh | None = None,
        axis: str | Sequence[str] = WORLD,
        arguments: tuple[Any, ...] = (),
        *,
        also: Sequence[str] = (),
        concurrent: Sequence[tuple[DeviceMesh, str]] = (),
        ranks: Collection[int] | None = None,
        deadline_s: float | None = None,
    ) -> Round:
        """Return a call of a function with the communicators along `axis`, `also` and `concurrent`, to run next."""
        # It runs on the ranks that are in a group of each.
        # Those of `also` use the backend of `axis`. Those of `concurrent` may be used at the same time as the others.
        engines = self.engines
        if engines.between_tasks is not None:
            engines.between_tasks(self)
        requested = mesh
        if mesh is None:
            if axis != WORLD:
                raise MeshError(f"axis {axis!r} needs a mesh", hint=Hint("pass {}", Argument("mesh")))
            mesh = DeviceMesh(all_ranks=engines.world_size)
        names, colors = [], []
        communicators: dict[str, Sequence[int]] = {}
        backend = engines.backend_of(mesh, axis)
        group_sets = [(mesh, axes, backend, False) for axes in (axis, *also)]
        group_sets += [(other, axes, engines.backend_of(other, axes), True) for other, axes in concurrent]
        for owner, axes, backend, separate in group_sets:
            name, groups = engines._groups.open(owner, axes, backend, separate=separate)
            names.append(name)
            colors.append(groups.color)
            communicators |= {group.name: group.ranks for group in groups}
        torch_mesh = engines._groups.torch.prepare(requested)
        communicators |= engines._groups.torch.communicators(torch_mesh)
        members = [
            rank
            for rank in (range(engines.world_size) if ranks is None else sorted(ranks))
            if all(color[rank] >= 0 for color in colors)
        ]
        # Pickled once, not once per rank. Threads share the objects, so that they can return results through them.
        task = (function, arguments)
        message = task if engines._facts.in_process else _pickled(task)
        # With several communicators, only ranks that share all of their groups must enter the same number of calls.
        _, together = np.unique(np.stack(colors), axis=1, return_inverse=True)
        return engines._new_round(
            "run",
            [(tuple(names), message, torch_mesh)] * len(members),
            ranks=members,
            task=self.task,
            deadline_s=deadline_s,
            groups=together.ravel().tolist(),
            communicators=communicators,
        )

    def on_ranks(self, method: str, ranks: Sequence[int], *arguments: Any) -> list[Reply]:
        """Call a method of the worker on some ranks."""
        return self.engines._new_round(method, [arguments] * len(ranks), ranks=ranks, task=self.task).run()

    def relaunch(self) -> bool:
        """Replace all ranks by new processes. Return False if that is impossible, and only communicators are new."""
        engines = self.engines
        if engines._rank_set.is_attached:
            self.renew("to create new ones")
            return False
        engines._replace_ranks("they are being replaced", reuse=False)
        return True

    def renew(self, why: str) -> None:
        """Close all communicators, so that the next rounds open new ones."""
        self.engines._groups.close(why)


def _pickled(task: tuple[Callable[..., Any], tuple[Any, ...]]) -> bytes:
    import cloudpickle

    try:
        return bytes(cloudpickle.dumps(task))
    except Exception as error:
        raise EngineError(
            f"cannot pickle the function or its arguments: {error}",
            hint="remove open files, locks and widgets from them",
        ) from error


def raise_first_error(replies: Sequence[Reply], task: str, infos: Sequence[RankInfo], *, hint: str = "") -> None:
    """Raise an `EngineError` if the function raised on any rank."""
    failed = [reply for reply in replies if reply.error is not None]
    if failed:
        first = failed[0]
        n_more = len(failed) - 1
        others = f", and {n_more} other rank{'s' * (n_more != 1)} failed too" if n_more else ""
        verb = "was interrupted" if first.is_interrupt else "failed"
        error = "" if first.is_interrupt else f": {first.error}"
        raise EngineError(
            f"rank {first.rank} {verb} while {task}{error}{others}",
            hint=hint,
            rank=first.rank,
            host=infos[first.rank].host,
            log=first.trace,
        ) from first.exception
