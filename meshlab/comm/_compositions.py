"""Collectives that are composed of other calls, for the backends whose `Capabilities` do not list them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from meshlab.base._errors import CommunicatorError
from meshlab.comm._backend import BARRIER, Backend, Call, Capabilities, Mode, Prepared, Timings
from meshlab.comm._catalog import Collective


@dataclass(frozen=True, slots=True)
class Composition:
    """A collective as a sequence of stages, which all ranks run with the same collectives, and any messages."""

    parts: tuple[str, ...]  # a backend without one of these collectives does not support the composition
    # Returns the calls of this rank, stage by stage. Those of a stage are issued together, after the stage before.
    stages: Callable[[Call, Backend], Sequence[Sequence[Call]]]


COMPOSITIONS: Mapping[str, Composition] = MappingProxyType({})
"""The compositions, by collective: an entry for each one with ``is_composed`` in `meshlab.base._collectives`."""


def with_compositions(can: Capabilities) -> Capabilities:
    """Return the capabilities of a backend with the collectives that can be composed of those that it has."""
    has = set(can.collectives)
    composed = [name for name, way in COMPOSITIONS.items() if name not in has and has.issuperset(way.parts)]
    return replace(can, collectives=(*can.collectives, *composed)) if composed else can


def prepare_call(backend: Backend, call: Call) -> Prepared:
    """Bind a checked call, or its stages, to the library."""
    if not _is_composed(backend, call.collective):
        return backend.prepare(call)
    return _Stages(backend, _stages(backend, call))


def prepare_batch(backend: Backend, calls: Sequence[Call]) -> Prepared:
    """Bind several checked calls that are issued together. Raise if one of them has several stages."""
    issued: list[Call] = []
    for call in calls:
        if not _is_composed(backend, call.collective):
            issued.append(call)
            continue
        stages = _stages(backend, call)
        if len(stages) > 1:
            raise CommunicatorError(
                f"{call.collective.name} runs in {len(stages)} stages, so it cannot be part of a batch; issue it "
                "separately",
                collective=call.collective.name,
            )
        issued += [part for stage in stages for part in stage]
    return backend.prepare_batch(issued) if issued else _Stages(backend, ())


def call_runner(backend: Backend, call: Call) -> Callable[[Any, Any], object]:
    """Return a function that runs the call on any arrays of the same shapes and dtypes, and in the same layout."""
    if not _is_composed(backend, call.collective):
        return backend.runner(call)
    kind = call._replace(send=None, recv=None)  # the result must not keep the arrays alive
    return lambda send, recv: _Stages(backend, _stages(backend, kind._replace(send=send, recv=recv)))()


def _is_composed(backend: Backend, row: Collective) -> bool:
    # The capabilities are queried last, because that is slow.
    return row.is_composed and row.name not in backend.capabilities().collectives


def _stages(backend: Backend, call: Call) -> list[Sequence[Call]]:
    return [stage for stage in COMPOSITIONS[call.collective.name].stages(call, backend) if stage]


class _Stages:
    """The stages of one call. Implements `meshlab.comm._backend.Prepared`."""

    def __init__(self, backend: Backend, stages: Sequence[Sequence[Call]]) -> None:
        self._backend = backend
        self._stages = [
            backend.prepare(stage[0]) if len(stage) == 1 else backend.prepare_batch(stage) for stage in stages
        ]

    def __call__(self) -> None:
        for stage in self._stages:
            stage()

    def enqueue(self) -> None:
        """Enqueue all stages in the communication stream, which runs them in order."""
        for stage in self._stages:
            getattr(stage, "enqueue", stage)()

    @property
    def timed(self) -> Callable[[], object]:
        """The function that `measure` times."""
        works = [getattr(stage, "timed", getattr(stage, "enqueue", stage)) for stage in self._stages]

        def run() -> None:
            for work in works:
                work()

        return run

    def measure(self, mode: Mode, calls: int, batches: int) -> Timings:
        barrier = self._backend.prepare(BARRIER)
        enter = getattr(barrier, "enqueue", barrier)
        return self._backend.measure(self.timed, enter, mode, calls, batches)

    def measure_under_load(self, mode: Mode, calls: int, batches: int, load: Any) -> Timings:
        timings: Timings = self._backend.measure_under_load(self.timed, mode, calls, batches, load)  # type: ignore[attr-defined]
        return timings

    def load(self, calls: int) -> Any:
        return self._backend.load(self.timed, calls)  # type: ignore[attr-defined]
