"""Memory: what a rank of a training job holds, in bytes."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from meshlab.base._units import THIN


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of one rank in bytes, at the busiest pipeline stage.

    Parameters
    ----------
    weights, gradients, optimizer, activations : float
        The parts. Activations include the logits.
    other : float, default 0
        Workspaces of kernels, and memory that the allocator reserves but cannot use.
    """

    weights: float
    gradients: float
    optimizer: float
    activations: float
    other: float = 0.0

    @property
    def total(self) -> float:
        """The sum of the parts."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.other

    def __repr__(self) -> str:
        parts = ", ".join(f"{field.name} {_gib(getattr(self, field.name))}" for field in dataclasses.fields(self))
        return f"Memory({_gib(self.total)}: {parts})"


def _gib(size: float) -> str:
    return f"{size / 2**30:.1f}{THIN}GiB"
