"""Lease: the right to use the ranks for a while."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from meshlab.engines.rankset import Reply
from meshlab.errors import EngineError
from meshlab.mesh.axes import WORLD
from meshlab.mesh.mesh import DeviceMesh

if TYPE_CHECKING:
    from meshlab.engines.engines import Engines

__all__ = ["Lease"]


class Lease:
    """The right to use the ranks, for as long as `Engines.lease` lasts."""

    def __init__(self, engines: Engines) -> None:
        self.engines = engines

    @property
    def doing(self) -> str:
        """What the ranks are busy with, as others are told."""
        return self.engines._doing

    @doing.setter
    def doing(self, text: str) -> None:
        self.engines._doing = text

    def everywhere(self, method: str, *arguments: Any) -> list[Reply]:
        """Run one of the worker's own methods on every rank."""
        engines = self.engines
        return engines._round(method, [arguments] * engines.world_size, doing=self.doing)

    def call(
        self,
        function: Callable[..., Any],
        mesh: DeviceMesh | None = None,
        axis: str | Sequence[str] = WORLD,
        arguments: tuple[Any, ...] = (),
        *,
        also: Sequence[str] = (),
        ranks: Collection[int] | None = None,
        deadline_s: float | None = None,
    ) -> list[Reply]:
        """Call ``function(communicator, *arguments)`` on every rank that is in a group along `axis`.

        Parameters
        ----------
        function, mesh, axis, arguments, deadline_s
            As in `Engines.run`.
        also : sequence of str, default ()
            More group sets; their communicators are handed over behind the first. Only ranks that are in all take part.
        ranks : collection of int, optional
            Only these take part; the others stay idle.
        """
        engines = self.engines
        names, colors = [], []
        for one in (axis, *also):
            name, groups = engines._make_group_set(mesh, one)
            names.append(name)
            colors.append(groups.color)
        members = [
            rank
            for rank in (range(engines.world_size) if ranks is None else sorted(ranks))
            if all(color[rank] >= 0 for color in colors)
        ]
        task = (function, arguments)
        shipped = task if engines.backend == "threads" else _pickled(task)
        given = [(tuple(names), shipped)] * len(members)
        # Ranks make the same calls only where they are together in all that they were handed.
        _, together = np.unique(np.stack(colors), axis=1, return_inverse=True)
        return engines._round(
            "run", given, ranks=members, groups=together.ravel().tolist(), doing=self.doing, deadline_s=deadline_s
        )

    def renew(self) -> None:
        """Close all communicators, so that fresh ones are made."""
        self.engines._forget_group_sets("to make fresh ones")


def _pickled(task: tuple[Callable[..., Any], tuple[Any, ...]]) -> bytes:
    import cloudpickle

    try:
        return bytes(cloudpickle.dumps(task))
    except Exception as error:
        raise EngineError(
            f"the function or its arguments cannot be sent to the engines: {error}; "
            "they must not hold open files, locks or widgets"
        ) from error
