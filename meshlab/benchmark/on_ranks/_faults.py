"""Faults of one rank, and the communicators that are opened again after them. Runs on the engines."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from meshlab.comm._communicator import Communicator

Fault = Literal["killed", "stuck"]

_open: list[Communicator] = []  # those of this process, which a fault finds open


def open_communicators(comm: Communicator, colors: Sequence[npt.NDArray[np.int32]]) -> bool:
    """Open one communicator per item of `colors` (a group per rank), and return True if all reduce correctly."""
    while _open:  # of the repetition before; after a fault, closing does not wait for ranks that are gone
        _open.pop().close()
    sums = [_sum_of_ones(comm) == comm.size]
    for color in colors:
        group = comm.split(int(color[comm.rank]))
        if group is not None:
            _open.append(group)
            sums.append(_sum_of_ones(group) == group.size)
    return all(sums)


def _sum_of_ones(comm: Communicator) -> float:
    ones = comm.xp.ones(1024, dtype="float32")
    return float(comm.to_host(comm.all_reduce(ones))[-1])


def fail(comm: Communicator, victim: int, fault: Fault) -> None:
    """End or block one rank while the others wait for it in an all_reduce."""
    comm.barrier()
    if comm.rank == victim:
        if fault == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        while True:
            time.sleep(1.0)
    _sum_of_ones(comm)
