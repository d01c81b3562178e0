"""What rehearsals and replays share: a session on engines, and the calls of a step as the ranks make them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from meshlab.base._backends import GPU_BACKENDS
from meshlab.base._errors import BenchError, EngineError
from meshlab.benchmark._interruptible import Interruptible
from meshlab.benchmark._progress import move_bar
from meshlab.benchmark.on_ranks._training_step import RankProbe, probe_rank, release_memory
from meshlab.comm._backend import CallChoice, Capabilities
from meshlab.comm._catalog import Collective, find_collective
from meshlab.comm._elements import find_dtype
from meshlab.engines._engines import Engines
from meshlab.engines._lease import Lease, raise_first_error
from meshlab.mesh._axes import WORLD
from meshlab.mesh._mesh import DeviceMesh
from meshlab.plans._steps import Step, step_without_size

ALIGNMENT = 1 << 21


class StepSession:
    """Steps that are measured in a thread, so that an interrupt of the caller ends the session between two rounds."""

    title = "session"

    def __init__(self, engine_sets: Sequence[Engines], task: str, deadline_s: float | None = None) -> None:
        self._engine_sets = engine_sets
        self._purpose = task
        self._deadline_s = deadline_s
        self._n_done, self._task = 0, "starting"

    def run(self, bar: Any) -> None:
        """Measure everything, and move the bar."""
        self._thread = Interruptible(self._work, partial(self._show, bar), self._kill, f"meshlab {self.title}")
        self._thread.run()
        if self._thread.is_stopped:
            raise EngineError(f"the engines were closed during the {self.title}")

    def result(self) -> Any:
        """Return the rounds that are complete."""
        raise NotImplementedError

    def _prepare(self, leases: Sequence[Lease]) -> None:
        raise NotImplementedError

    def _measure(self, leases: Sequence[Lease]) -> None:
        raise NotImplementedError

    def _is_complete(self) -> bool:
        """Return whether there is a complete round of everything."""
        raise NotImplementedError

    def _kill(self) -> None:
        for engines in self._engine_sets:
            engines.kill()

    def _show(self, bar: Any) -> None:
        if self._thread.is_stopped:
            self._task = "interrupted, completing this round"
        move_bar(bar, self._n_done, self._task)

    def _work(self) -> None:
        try:
            with ExitStack() as stack:
                leases = [
                    stack.enter_context(Lease(engines, self._purpose, cancel=self._thread.stop))
                    for engines in self._engine_sets
                ]
                self._prepare(leases)
                try:
                    self._measure(leases)
                finally:
                    for lease in leases:
                        if lease.engines.state == "busy":  # neither closed nor broken
                            lease.round(release_memory).run()
        except EngineError as error:
            error.measured = self.result() if self._is_complete() else None
            raise

    def _on_axes(
        self,
        lease: Lease,
        function: Any,
        mesh: DeviceMesh,
        sets: Sequence[tuple[DeviceMesh, str]],
        arguments: tuple[Any, ...],
        task: str,
        deadline_s: float | None,
    ) -> list[Any]:
        """Run a function with the communicators of several axes, and return the values of the ranks."""
        deadline_s = deadline_s or self._deadline_s
        replies = lease.round(function, mesh, WORLD, arguments, concurrent=sets, deadline_s=deadline_s).run()
        raise_first_error(replies, task, lease.engines.ranks)
        return [reply.value for reply in replies]

    def _probed_ranks(self, lease: Lease) -> list[RankProbe]:
        replies = lease.round(probe_rank).run()
        raise_first_error(replies, f"preparing a {self.title}", lease.engines.ranks)
        return [reply.value for reply in replies]


def check_collective(engines: Engines, can: Capabilities, collective: str, axis: str, source: str) -> None:
    """Raise unless the backend of an axis has a collective of a job or a trace."""
    if engines.backend in GPU_BACKENDS and can.backend not in GPU_BACKENDS:
        raise BenchError(
            f"a {'rehearsal' if source == 'job' else 'replay'} on GPUs needs all axes on GPUs, but {axis} uses "
            f"{can.backend}",
            hint="create the mesh without backends=",
        )
    if collective not in can.collectives:
        raise BenchError(
            f"{can.backend} does not support {collective}, which the {source} uses along {axis}",
            hint=f"replace it with one of {', '.join(can.collectives)}" if source == "job" else "use another backend",
        )


def dtypes_of(can: Capabilities, row: Collective) -> tuple[str, ...]:
    """Return the element types that a collective supports on a backend."""
    return can.reduce_dtypes if row.reduces and can.reduce_dtypes is not None else can.dtypes


def is_reduced_in_place(collective: str) -> bool:
    """Return whether frameworks make a call in place: one that leaves the sum of all ranks on each of them."""
    row = find_collective(collective)
    return row.reduces and not row.rooted and row.sends == row.receives


def step_of(collective: str, dtype: str, axis: str, n: int, size: int, in_place: bool | None = None) -> Step:
    """Return the call of a job of about this size. By default, all_reduces work in place, as in frameworks."""
    row = find_collective(collective)
    if not row.has_size:
        return step_without_size(collective, axis, n, "pipelined")
    itemsize = find_dtype(dtype).itemsize
    count = row.count_for(size, itemsize, n)
    return Step(
        index=0,
        collective=collective,
        op="sum" if row.reduces else None,
        dtype=find_dtype(dtype).name,
        root=0 if row.rooted else None,
        in_place=is_reduced_in_place(collective) if in_place is None else in_place,
        mode="pipelined",
        axis=axis,
        n_ranks=n,
        count=count,
        size_bytes=row.size_bytes(count, itemsize, n),
    )


def tuned_step(step: Step, choices: Sequence[CallChoice]) -> Step:
    """Return a call with the options that a tuning chose for its size."""
    size = step.size_bytes or 0
    for choice in choices:
        if choice.collective == step.collective and (choice.max_bytes is None or size <= choice.max_bytes):
            return replace(step, buffers=choice.buffers, **asdict(choice.config))
    return step


def shared_bytes(calls: Iterable[tuple[int, Step]]) -> int:
    """Return the memory of a rank's buffers. The calls of an axis with the same kind of buffers share theirs."""
    largest: dict[tuple[int, str | None], int] = {}
    for axis, step in calls:
        key = axis, step.buffers
        largest[key] = max(largest.get(key, 0), step.buffer_bytes + 2 * ALIGNMENT)
    return sum(largest.values())


def power_of_two(value: float) -> float:
    """Return the largest power of two up to a value, but at most 1."""
    return min(1.0, 2.0 ** math.floor(math.log2(value)))
