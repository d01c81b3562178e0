"""How much memory a rank may take: runs where the rank is."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

from meshlab.engines.memory import host_free_bytes

if TYPE_CHECKING:
    from meshlab.engines.engines import Engines

__all__ = ["USABLE", "free_bytes", "host_free_bytes", "room_here"]

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


def room_here(engines: Engines) -> int | None:
    """What the buffers of one rank may take, where nobody must be asked: for ranks of this host without GPUs.

    Parameters
    ----------
    engines : Engines
        The ranks.

    Returns
    -------
    int or None
        In bytes.
    """
    if engines.backend == "nccl" or {fact.host for fact in engines.facts} != {socket.gethostname()}:
        return None
    return int(USABLE * host_free_bytes() / engines.world_size)
