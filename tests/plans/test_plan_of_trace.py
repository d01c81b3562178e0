"""A plan of exactly the calls of a recorded job."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import meshlab as ml
from meshlab.base._errors import BenchError, MeshError
from meshlab.runs._store import _plan_from_json, _plan_to_json
from tests.traces.job_maker import JobCall, job_trace

CALLS = [
    JobCall("tp", "all_gather", 4096.0, "bfloat16"),
    JobCall("tp", "all_gather", 4096.0, "bfloat16"),
    JobCall("dp", "all_reduce", 1 << 20, "float32"),
    JobCall("dp", "barrier", float("nan"), None),
]
TWO_STEPS = [*CALLS, *(call._replace(step=1) for call in CALLS)]


def test_a_plan_has_one_step_per_different_call() -> None:
    plan = ml.Plan.from_trace(job_trace("dp=2, tp=2", TWO_STEPS))
    steps = plan.steps("dp=2, tp=2")
    assert [(step.collective, step.axis, step.size_bytes, step.dtype) for step in steps] == [
        ("all_gather", "tp", 4096, "bfloat16"),
        ("all_reduce", "dp", 1 << 20, "float32"),
        ("barrier", "dp", None, None),
    ]
    assert [(call.collective, call.per_step) for call in plan.calls] == [
        ("all_gather", 2.0),
        ("all_reduce", 1.0),
        ("barrier", 1.0),
    ]
    assert str(plan).startswith("3 calls of a job: all_gather, all_reduce, barrier along tp, dp")


def test_other_arguments_of_the_plan_multiply_its_calls() -> None:
    plan = ml.Plan.from_trace(job_trace("dp=2, tp=2", CALLS), mode=("isolated", "pipelined"))
    assert len(plan.steps("dp=2, tp=2")) == 6
    with pytest.raises(BenchError, match="dtype of the calls is that of the trace"):
        ml.Plan.from_trace(job_trace("dp=2, tp=2", CALLS), dtype="float16")


def test_a_saved_plan_keeps_its_calls() -> None:
    plan = ml.Plan.from_trace(job_trace("dp=2, tp=2", CALLS))
    assert _plan_from_json(json.loads(json.dumps(_plan_to_json(plan)))) == plan
    assert "calls" not in _plan_to_json(ml.Plan("all_reduce", "tp"))


def test_a_plan_is_measured_on_the_mesh_of_the_trace(thread_engines: ml.Engines) -> None:
    trace = job_trace("dp=2, tp=2", CALLS)
    run = ml.bench(thread_engines, trace.mesh(), ml.Plan.from_trace(trace, sampling="quick"))
    run.wait()
    assert run.results.groupby("collective").size().to_dict() == {"all_gather": 2, "all_reduce": 2, "barrier": 2}
    # Each call of the trace is within the sizes that were measured.
    assert trace.against(run)["expected_us"].notna().all()


def test_calls_that_cannot_be_measured_are_listed() -> None:
    calls = [JobCall("tp"), JobCall("tp", "all_gather", float("nan"))]
    with pytest.warns(UserWarning, match="the plan lacks calls of the trace: 1 of all_gather along tp without a size"):
        plan = ml.Plan.from_trace(job_trace("tp=2", calls))
    assert plan.collective == ("all_reduce",)
    with pytest.raises(BenchError, match="no call of the trace can be made again: 1 of all_gather along tp without"):
        ml.Plan.from_trace(job_trace("tp=2", calls[1:]))
    with pytest.raises(BenchError, match="the calls of the trace move no data"):
        ml.Plan.from_trace(job_trace("tp=2", [JobCall("tp", "barrier", float("nan"), None)]))
    with pytest.raises(MeshError, match="the trace contradicts the mesh dp=1, tp=4"):
        ml.Plan.from_trace(job_trace("dp=2, tp=2", CALLS), "dp=1, tp=4")


def test_calls_of_a_plan_must_be_among_its_values() -> None:
    call = ml.Plan.from_trace(job_trace("tp=2", [JobCall("tp")])).calls[0]
    with pytest.raises(BenchError, match="the plan lacks a value of its call"):
        ml.Plan("all_gather", "tp", calls=[call])


@pytest.mark.skipif("MESHLAB_CASES" not in os.environ, reason="MESHLAB_CASES is not set")
def test_plans_of_recorded_jobs() -> None:
    jobs = Path(os.environ["MESHLAB_CASES"]) / "jobs"
    ddp = ml.Plan.from_trace(ml.Trace.read(sorted(jobs.glob("trace_ddp*"))))
    assert [(call.size_bytes // 2, call.per_step) for call in ddp.calls] == [
        (16_779_264, 2),
        (16_785_408, 12),
        (16_789_504, 12),
        (16_783_360, 10),
        (4096, 2),
    ]
    fsdp = ml.Plan.from_trace(ml.Trace.read(sorted(jobs.glob("trace_fsdp*"))))
    assert [(call.collective, call.per_step) for call in fsdp.calls] == [("all_gather", 24), ("reduce_scatter", 12)]
    planted = ml.Plan.from_trace(ml.Trace.read(sorted(jobs.glob("tp_planted*"))))
    assert [call.per_step for call in planted.calls] == [8.0]
