"""Job: a training job, the communication of its steps, and the memory and compute of a rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["StepCall"]

Overlap = Literal["nothing", "compute", "layer", "pass"]


@dataclass(frozen=True, slots=True)
class StepCall:
    """A communication of a training step, as one rank of the busiest pipeline stage issues it.

    The calls of `Job.step` are in the order of one micro-batch: its forward pass, then its backward pass. A step repeats
    them for every micro-batch (`Job.micro_batches`). Consecutive calls with the same `block` belong to one layer and are
    issued together, `repeats` times.

    Parameters
    ----------
    axis : tuple of str
        Axes of the mesh, or of its expert view, whose union forms the groups: ``("tp",)``, ``("dp", "cp")``.
    collective : str
        all_reduce, all_gather, reduce_scatter, all_to_all or send_recv (to the next rank on the axis, from the previous).
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
        Floating-point operations between the previous call and this one, in each repeat and in every micro-batch, also in
        those that do not issue the call.
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
    phase: Literal["forward", "backward"]
    block: int
    repeats: int
    micro_batches: int
    gap_flops: float
    overlaps: Overlap
    overlap_flops: float

    @property
    def calls(self) -> int:
        """Number of calls per step."""
        return self.repeats * self.micro_batches
