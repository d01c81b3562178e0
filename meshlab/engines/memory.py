"""How much memory a host can still give, and how many ranks that is."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshlab.errors import EngineError
from meshlab.units import format_size

if TYPE_CHECKING:
    from meshlab.engines.engines import Engines

__all__ = ["USABLE", "check_room", "free_bytes", "host_free_bytes", "room_here"]


_RANK_BYTES = 100 << 20  # what a rank takes as a process before it has done anything: Python, its packages, MPI

# Control groups in version 2 and version 1: the limit, what is used, and what of that the kernel gives back when asked.
_LIMITS = (
    ("memory.max", "memory.current", "memory.stat"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
)


def host_free_bytes(root: str = "/") -> int:
    """What this process could still take: what the host has available, and what its container is allowed.

    Parameters
    ----------
    root : str, default "/"
        Where ``sys`` lies.

    Examples
    --------
    >>> host_free_bytes() > 0
    True
    """
    import psutil

    free = int(psutil.virtual_memory().available)
    for limit, used, stat in _LIMITS:
        folder = Path(root) / "sys/fs/cgroup"
        try:
            allowed = int((folder / limit).read_text()) - int((folder / used).read_text())
            lines = dict(line.split() for line in (folder / stat).read_text().splitlines())
        except (OSError, ValueError):  # no such file, or "max"
            continue
        free = min(free, allowed + int(lines.get("total_inactive_file", lines.get("inactive_file", 0))))
    return max(free, 0)


def check_room(n: int) -> None:
    """Raise an `EngineError` if `n` ranks, as processes, would not fit into the memory of this host."""
    free = host_free_bytes()
    if n * _RANK_BYTES > free:
        fit = free // _RANK_BYTES
        cure = f"start at most {fit:,}" if fit else "free some memory"
        raise EngineError(
            f"{n:,} rank{'s' * (n != 1)} need{'s' * (n == 1)} about {format_size(n * _RANK_BYTES)} of memory, "
            f"{format_size(_RANK_BYTES)} for each process, but this host has {format_size(free)} free; {cure}, or use "
            "backend='threads'"
        )


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
