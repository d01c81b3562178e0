"""How much memory a rank may take: runs where the rank is."""

from __future__ import annotations

from typing import Any

from meshlab.engines.memory import host_free_bytes

__all__ = ["USABLE", "free_bytes", "host_free_bytes"]

USABLE = 0.8
"""The share of the free memory that buffers may take; libraries need some for themselves."""


def free_bytes(comm: Any) -> tuple[bool, int]:
    """How much memory is free for this rank's arrays.

    Returns
    -------
    is_shared : bool
        True for the memory of the host, which all its ranks share; a rank has its GPU for itself.
    n_bytes : int
        What is free.
    """
    if not hasattr(comm.xp, "cuda"):
        return True, host_free_bytes()
    free, _ = comm.xp.cuda.runtime.memGetInfo()
    return False, int(free)
