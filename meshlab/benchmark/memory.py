"""How much memory a rank may take: runs where the rank is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

__all__ = ["USABLE", "free_bytes", "host_free_bytes"]

USABLE = 0.8
"""The share of the free memory that buffers may take; libraries need some for themselves."""

# Control groups in version 2 and version 1: the limit, what is used, and what of that the kernel gives back when asked.
_LIMITS = (
    ("memory.max", "memory.current", "memory.stat"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
)


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
