"""Free memory of a host or a GPU, and the number of ranks and the size of buffers that fit into it."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from meshlab.base._backends import GPU_BACKENDS
from meshlab.base._errors import EngineError
from meshlab.base._hints import Argument, Hint
from meshlab.base._units import format_size

if TYPE_CHECKING:
    from meshlab.engines._engines import Engines

USABLE = 0.8
"""Fraction of the free memory that buffers may use. Communication libraries need some of it themselves."""

_RANK_BYTES = 100 << 20  # memory of an idle rank: Python, its packages, MPI

# Files of control groups, version 2 and version 1: the limit, the usage, and the part of it that the kernel can
# reclaim.
_LIMITS = (
    ("memory.max", "memory.current", "memory.stat"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
)


def host_free_bytes(root: str = "/") -> int:
    """Return the memory that this process can still allocate, within the limits of the host and of its container."""
    import psutil

    free = int(psutil.virtual_memory().available)
    for limit, usage, stat in _LIMITS:
        folder = Path(root) / "sys/fs/cgroup"
        try:
            allowed = int((folder / limit).read_text()) - int((folder / usage).read_text())
            lines = dict(line.split() for line in (folder / stat).read_text().splitlines())
        except (OSError, ValueError):  # no such file, or "max"
            continue
        # The usage includes cached files, which the kernel drops when the memory is needed.
        free = min(free, allowed + int(lines.get("total_inactive_file", lines.get("inactive_file", 0))))
    return max(free, 0)


def check_host_memory(n: int) -> None:
    """Raise an `EngineError` if `n` ranks, as processes, exceed the free memory of this host."""
    free = host_free_bytes()
    if n * _RANK_BYTES > free:
        n_fit = free // _RANK_BYTES
        fix = f"start at most {n_fit:,}" if n_fit else "free some memory"
        raise EngineError(
            f"{n:,} rank{'s' * (n != 1)} need{'s' * (n == 1)} about {format_size(n * _RANK_BYTES)} of memory "
            f"({format_size(_RANK_BYTES)} per process), but this host has {format_size(free)} free",
            hint=Hint("{}, or use {}", fix, Argument("backend", "threads")),
        )


def free_bytes(comm: Any) -> tuple[bool, int]:
    """Return whether the arrays of this rank are in memory that all ranks of the host share, and its free bytes."""
    if not hasattr(comm.xp, "cuda"):
        return True, host_free_bytes()
    free, _ = comm.xp.cuda.runtime.memGetInfo()
    return False, int(free)


def usable_bytes(free: Sequence[tuple[bool, int]], hosts: Sequence[str]) -> npt.NDArray[np.int64]:
    """Return the memory that the buffers of each rank may use, of the results of `free_bytes` and the hosts by rank."""
    shares = [
        int(USABLE * n_bytes / (hosts.count(host) if is_shared else 1))
        for (is_shared, n_bytes), host in zip(free, hosts, strict=True)
    ]
    return np.array(shares, dtype=np.int64)


def usable_text(free: Sequence[tuple[bool, int]], hosts: Sequence[str], rank: int) -> str:
    """Describe the memory that the buffers of a rank may use, and its origin."""
    is_shared, n_bytes = free[rank]
    n = hosts.count(hosts[rank])
    where = f"host {hosts[rank]}" if is_shared else f"the GPU of rank {rank}"
    sharing = f", shared by {n:,} ranks" if is_shared and n > 1 else ""
    usable = format_size(int(usable_bytes(free, hosts)[rank]))
    return f"a rank may use {usable} ({100 * USABLE:.0f} % of the {format_size(n_bytes)} of memory of {where}{sharing})"


def local_buffer_bytes(engines: Engines) -> int | None:
    """Return the memory that buffers of one rank may use. None if only the ranks can read it: GPUs, or other hosts."""
    if engines.backend in GPU_BACKENDS or {info.host for info in engines.ranks} != {socket.gethostname()}:
        return None
    return int(USABLE * host_free_bytes() / engines.world_size)
