"""Engines on real GPUs: one per GPU, at least two."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

import meshlab as ml

HERE = Path(__file__).parent

# Scripts that import CuPy, torch or the CuTe DSL
collect_ignore = ["compile_kernels.py", "cute_sum.py", "follow_inspector.py", "record_traces.py", "replay_traces.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.gpu)


def why_not() -> str:
    if find_spec("cupy") is None or find_spec("nccl") is None:
        return "CuPy and nccl4py are not installed"
    n = ml.probe().n_devices
    return "" if n >= 2 else f"the machine has {n} GPUs, but the tests need two"


@pytest.fixture(scope="session")
def n_gpus() -> int:
    reason = why_not()
    if reason:
        pytest.skip(reason)
    return ml.probe().n_devices


@pytest.fixture(scope="module")
def gpu_engines(n_gpus: int) -> Iterator[ml.Engines]:
    with ml.launch(n_gpus, backend="nccl") as engines:
        yield engines


@pytest.fixture(scope="module")
def mesh(n_gpus: int) -> ml.DeviceMesh:
    return ml.DeviceMesh("dp=2, tp=2") if n_gpus == 4 else ml.DeviceMesh(tp=n_gpus)
