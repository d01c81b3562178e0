"""StepCall: a communication of a training step, as a rank issues it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, get_args

from meshlab.base._errors import MeshError
from meshlab.mesh._axes import as_integer, short
from meshlab.prediction._volumes import Overlap, Phase


@dataclass(frozen=True, slots=True)
class StepCall:
    """A communication of a training step, as one rank of the busiest pipeline stage issues it.

    The calls of `Job.step` are in the order of one micro-batch: its forward pass, then its backward pass. A step
    repeats them for every micro-batch (`Job.micro_batches`). Consecutive calls with the same `block` belong to one
    layer and are issued together, `repeats` times.

    Parameters
    ----------
    axis : tuple of str
        Axes of the mesh, or of its expert view, whose union forms the groups: ``("tp",)``, ``("dp", "cp")``.
    collective : str
        all_reduce, all_gather, reduce_scatter, all_to_all, or send_recv (to the next rank on the axis, from the
        previous one).
    size_bytes : int
        Message size as in nccl-tests: the total of all ranks for all_gather and reduce_scatter.
    dtype : str
        Element type.
    what : str
        The data, such as ``"gradients"``.
    phase : {"forward", "backward"}
        The pass.
    block : int
        Number of the block of calls that are repeated together.
    repeats : int
        Number of times that the block runs in one micro-batch, such as the layers of the stage.
    micro_batches : int
        Number of micro-batches that issue the call: all of them, or 1. A single one is the first micro-batch in the
        forward pass, and the last one in the backward pass.
    gap_flops : float
        Floating-point operations between the previous call and this one, in each repeat and in every micro-batch, also
        in those that do not issue the call.
    overlaps : {"nothing", "compute", "layer", "pass"}
        Computation that may run during the call. ``nothing``: the next operation waits for the result. ``compute``:
        the gap of the next call. ``layer``: everything until the same call of the next repeat. ``pass``: everything
        until the end of the pass.
    overlap_flops : float
        Floating-point operations that `overlaps` permits for one call, 0 for ``nothing``.
    """

    axis: tuple[str, ...]
    collective: str
    size_bytes: int
    dtype: str
    what: str
    phase: Phase
    block: int
    repeats: int
    micro_batches: int
    gap_flops: float
    overlaps: Overlap
    overlap_flops: float

    def __post_init__(self) -> None:
        if not isinstance(self.axis, tuple) or not self.axis or not all(isinstance(name, str) for name in self.axis):
            raise MeshError(f"axis of a call must be a tuple of names, not {self.axis!r}", hint='write ("tp",)')
        for field in ("size_bytes", "repeats", "micro_batches"):
            value = as_integer(getattr(self, field))
            if value is None or value < 1:
                raise MeshError(f"{field} of a call must be a positive integer, not {getattr(self, field)!r}")
        for field in ("gap_flops", "overlap_flops"):
            flops = getattr(self, field)
            if isinstance(flops, bool) or not isinstance(flops, int | float) or not 0 <= flops < math.inf:
                raise MeshError(f"{field} of a call must be a number of at least 0, not {flops!r}")
        for field, choices in (("phase", get_args(Phase)), ("overlaps", get_args(Overlap))):
            if getattr(self, field) not in choices:
                raise MeshError(
                    f"unknown {field} {getattr(self, field)!r} of a call", hint=f"choose one of {', '.join(choices)}"
                )

    @property
    def calls(self) -> int:
        """Number of calls per step."""
        return self.repeats * self.micro_batches


def check_calls(calls: object) -> tuple[StepCall, ...]:
    """Return the calls of a step as a tuple, or raise a `MeshError` if they are not calls of one step."""
    is_sequence = isinstance(calls, Iterable)
    step: tuple[Any, ...] = tuple(calls) if isinstance(calls, Iterable) else (calls,)
    for call in step:
        if not is_sequence or not isinstance(call, StepCall):
            raise MeshError(
                f"a step must be a sequence of StepCall, but contains {short(call)}",
                hint="pass the result of Job.step()",
            )
    micro_batches = max((call.micro_batches for call in step), default=1)
    blocks = {call.block: call for call in reversed(step)}
    for call in step:
        first = blocks[call.block]
        if (call.repeats, call.phase) != (first.repeats, first.phase):
            raise MeshError(
                f"the calls of block {call.block} differ in repeats or phase: {first.repeats} ({first.phase}) and "
                f"{call.repeats} ({call.phase})",
                hint="give them different blocks",
            )
        if call.micro_batches not in (1, micro_batches):
            raise MeshError(
                f"micro_batches={call.micro_batches} of a call is neither 1 nor the {micro_batches} of the step",
                hint=f"pass 1 or {micro_batches}",
            )
    return step
