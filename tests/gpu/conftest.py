"""Ranks of NCCL on real GPUs: one per GPU, and at least two.

On a machine with one GPU, two ranks share it, which NCCL allows since version 2.30. Tests of times are skipped there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

import meshlab as ml
from tests.gpu.launching import launch, n_gpus

HERE = Path(__file__).parent

# Scripts that import CuPy, torch or the CuTe DSL
collect_ignore = ["compile_kernels.py", "cute_sum.py", "follow_inspector.py", "record_traces.py", "replay_traces.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.gpu)


def why_not() -> str:
    """Return why two ranks cannot run here, or an empty string."""
    if find_spec("cupy") is None or find_spec("nccl") is None:
        return "CuPy and nccl4py are not installed"
    if n_gpus() == 0:
        return "the machine has no GPU"
    if n_gpus() == 1:
        with launch(1) as engines:
            library = engines.ranks[0].capabilities.library
        if tuple(map(int, re.findall(r"\d+", library)[:2])) < (2, 30):
            return f"the machine has one GPU, and {library} does not let two ranks share it; 2.30 does"
    return ""


@pytest.fixture(scope="session")
def n_ranks() -> int:
    """The number of ranks: one per GPU, or two that share the only one."""
    reason = why_not()
    if reason:
        pytest.skip(reason)
    return max(2, n_gpus())


@pytest.fixture(scope="session")
def whole_gpus(n_ranks: int) -> None:
    """Skip tests whose ranks cannot share a GPU, above all those of times."""
    if n_gpus() < n_ranks:
        pytest.skip("each rank needs a GPU of its own")


@pytest.fixture(scope="module")
def gpu_engines(n_ranks: int) -> Iterator[ml.Engines]:
    with launch(n_ranks) as engines:
        yield engines


@pytest.fixture(scope="module")
def mesh(n_ranks: int) -> ml.DeviceMesh:
    return ml.DeviceMesh("dp=2, tp=2") if n_ranks == 4 else ml.DeviceMesh(tp=n_ranks)
