"""How fast the kernel answers the workbench at 16,384 GPUs, in processor time. Run with pytest-benchmark."""

from __future__ import annotations

import itertools
import time
from typing import Any

import pytest

import meshlab as ml
from meshlab.widgets._workbench import Workbench

pytestmark = pytest.mark.benchmark(timer=time.process_time)

MACHINE = {"nodes": 2048, "nodes_per_leaf": 32, "rails": 8, "nodes_per_pod": 512}


@pytest.fixture(scope="module")
def wb() -> Workbench:
    """A tapered machine with the largest dense preset."""
    job = ml.Job.preset("llama3-405b", recompute="full", global_batch=4096)
    return Workbench(ml.preset("tapered-h100", **MACHINE), "pp=16, dp=128, tp=8", axis="dp", job=job)


def edit(wb: Workbench, **content: Any) -> None:
    wb._handle_custom_msg({"type": "edit", "edit": wb._edit + 1, **content}, [])
    assert not wb._panel["problems"]


def test_a_step_of_a_size_with_a_job(benchmark: Any, wb: Workbench) -> None:
    """Under 150 ms."""
    steps = itertools.cycle([-1, 1])
    benchmark(lambda: edit(wb, action="step", axis="tp", by=next(steps)))
    assert benchmark.stats["median"] < 0.15


def test_a_failure_with_a_job(benchmark: Any, wb: Workbench) -> None:
    """Under 150 ms: nothing is known about the axes of another machine."""
    nodes = itertools.count(1)
    benchmark.pedantic(lambda: edit(wb, action="fail", part=f"node{next(nodes)}/NIC3"), rounds=5, warmup_rounds=1)
    assert benchmark.stats["median"] < 0.15


def test_a_step_of_a_size_with_a_job_and_candidate_a(benchmark: Any, wb: Workbench) -> None:
    """Under 150 ms."""
    wb.restore()
    wb.pin()
    steps = itertools.cycle([-1, 1])
    benchmark(lambda: edit(wb, action="step", axis="tp", by=next(steps)))
    wb.unpin()
    assert benchmark.stats["median"] < 0.15


def test_a_search_in_the_page(benchmark: Any) -> None:
    """Under 1 s on a machine whose links have a closed form, and once the table of any other is known."""
    job = ml.Job.preset("llama3-405b", recompute="full", global_batch=4096)
    wb = Workbench(ml.preset("dgx-h100", nodes=2048), "pp=16, dp=128, tp=8", axis="dp", job=job)
    benchmark.pedantic(lambda: wb._handle_custom_msg({"type": "search"}, []), rounds=5, warmup_rounds=1)
    assert wb._job["search"]["rows"]
    assert benchmark.stats["median"] < 1
