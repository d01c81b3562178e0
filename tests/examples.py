"""The number of examples of a property: all with Hypothesis' profile `full`, and fewer with `quick`."""

from __future__ import annotations

from hypothesis import settings

__all__ = ["examples"]


def examples(n: int) -> int:
    """Return the number of examples of a property that has `n` with the profile `full`."""
    return max(1, n * settings().max_examples // 100)
