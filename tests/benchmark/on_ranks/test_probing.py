"""The durations that are probed before a run, next to those of the steps themselves, on a virtual clock."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import meshlab as ml
from meshlab.benchmark._estimate import RATES, MeasuredAxis, Pace, seconds_per_step
from meshlab.benchmark.on_ranks import _probing as probing
from meshlab.benchmark.on_ranks import _sampling as sampling
from meshlab.benchmark.on_ranks._probing import probe_steps
from meshlab.benchmark.on_ranks._sampling import StopVote, take_batches
from meshlab.comm._backend import Mode, Timings
from meshlab.plans._plan import Plan
from meshlab.plans._steps import Step

PREPARE_S, CHECK_S, VOTE_S, CAPTURE_S, BARRIER_S = 0.0005, 0.004, 0.0003, 0.002, 0.0001


class Machine:
    """One rank whose calls take a fixed time on a virtual clock: of a GPU, or of a library whose calls block."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, blocks: bool) -> None:
        self.now_s, self.rank, self.size, self.xp = 0.0, 0, 1, np
        self.backend = SimpleNamespace(blocks=blocks, local=nullcontext)
        clock = SimpleNamespace(perf_counter=lambda: self.now_s)
        for module in (probing, sampling):
            monkeypatch.setattr(module, "time", clock)
        monkeypatch.setattr(probing, "set_up_step", self.set_up)

    def set_up(self, comm: Any, step: Step, check: bool) -> tuple[Any, int | None]:
        self.now_s += PREPARE_S + CHECK_S * check
        call_us = 10.0 + (step.size_bytes or 0) / 1e5

        def measure(mode: Mode, calls: int, batches: int) -> Timings:
            batch_s = calls * call_us / 1e6
            if self.backend.blocks or mode == "isolated":
                self.now_s += batches * (batch_s + BARRIER_S)
            else:
                self.now_s += (batches + 1 + (mode == "graph")) * batch_s + CAPTURE_S * (mode == "graph")
            times = np.full(batches, call_us)
            return Timings(times, times, None)

        return SimpleNamespace(measure=measure), None

    def all_gather(self, values: Any) -> Any:
        self.now_s += VOTE_S
        return values

    def to_host(self, values: Any) -> Any:
        return values


@pytest.mark.parametrize(
    ("backend", "blocks", "mode"),
    [
        ("nccl", False, "pipelined"),
        ("nccl", False, "graph"),
        ("nccl", False, "isolated"),
        ("mpi", True, "pipelined"),
        ("mpi", True, "isolated"),
    ],
)
@pytest.mark.parametrize("named", ["quick", "default"])
def test_the_estimate_of_an_even_machine_is_the_duration(
    monkeypatch: pytest.MonkeyPatch, backend: str, blocks: bool, mode: Mode, named: str
) -> None:
    plan = Plan("all_reduce", "tp", sizes="8:64M", mode=mode, sampling=named)
    steps = plan.steps(ml.DeviceMesh("tp=2"))
    rank: Any = Machine(monkeypatch, blocks=blocks)
    groups = np.zeros((1, 1), np.int32)
    probed = probe_steps(rank, rank, steps[::4], plan.sampling, True, groups)
    pace = Pace(0.0, list(zip(steps[::4], probed, strict=True)))
    expected_s = seconds_per_step(plan, steps, {"tp": MeasuredAxis(backend, 1)}, paces={"tp": pace})[:, 1]
    began_s = rank.now_s
    for step in steps:
        call, _ = rank.set_up(rank, step, check=True)
        take_batches(call.measure, StopVote(rank, groups), mode, plan.sampling)
    # By default, 30 batches end with a chunk. The estimate has a tenth more, because few machines are that even.
    assert expected_s.sum() == pytest.approx(rank.now_s - began_s, rel=0.05 if named == "quick" else 0.12)
    # A block that is repeated has no check.
    unchecked_s = pace.setup_s(steps[0], RATES[backend], check=False)
    assert pace.setup_s(steps[0], RATES[backend], check=True) == pytest.approx(unchecked_s + CHECK_S)
