"""Start ranks of NCCL on the GPUs that the machine has, several on each if there are fewer GPUs than ranks."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import meshlab as ml

SHARING = {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}  # NCCL 2.30 and later


@cache
def n_gpus() -> int:
    """Return the number of GPUs of this machine."""
    return ml.probe().n_devices


def devices(n_ranks: int) -> list[int]:
    """Return the GPU of each rank, in blocks."""
    return [rank * min(n_gpus(), n_ranks) // n_ranks for rank in range(n_ranks)]


def launch(n_ranks: int, *, env: dict[str, str] | None = None, **options: Any) -> ml.Engines:
    """Start ranks of NCCL. Times are meaningless if they share GPUs; results are not."""
    more = SHARING if n_gpus() < n_ranks else {}
    options = {"devices": devices(n_ranks)} | options
    return ml.launch(n_ranks, backend="nccl", env=more | (env or {}), **options)


def share_gpus() -> None:
    """Let ranks of child processes of this one share a GPU, if there are fewer than two."""
    if n_gpus() < 2:
        os.environ.update(SHARING)
