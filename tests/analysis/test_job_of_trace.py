"""The job of a trace: what its calls show, the sizes that must be passed, and volumes that contradict them."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import meshlab as ml
from meshlab.base._errors import MeshError
from tests.traces.job_maker import JobCall, job_trace

MODEL = ml.Job(
    layers=4,
    hidden=512,
    heads=8,
    sequence=256,
    global_batch=4,
    vocabulary=1000,
    ffn_hidden=1024,
    dtype="bfloat16",
    zero=3,
)
SIZES: dict[str, Any] = {
    "hidden": 512,
    "heads": 8,
    "sequence": 256,
    "global_batch": 4,
    "micro_batch": 1,
    "vocabulary": 1000,
}


def trace_of(job: ml.Job, mesh: str, steps: int = 2) -> ml.Trace:
    """The trace of a job that runs on a mesh."""
    return job_trace(mesh, list(calls_of(job, mesh, steps)))


def calls_of(job: ml.Job, mesh: str, steps: int) -> Iterator[JobCall]:
    calls = job.step(mesh)
    for step in range(steps):
        for number in range(job.micro_batches(mesh)):
            for block in dict.fromkeys(call.block for call in calls):
                members = [call for call in calls if call.block == block]
                for _ in range(members[0].repeats):
                    for call in members:
                        if call.micro_batches > 1 or number == 0:
                            axis, size = "-".join(call.axis), float(call.size_bytes)
                            yield JobCall(axis, call.collective, size, call.dtype, step=step)


def test_a_sharded_job_shows_its_layers_and_its_parameters() -> None:
    job = ml.Job.from_trace(trace_of(MODEL, "dp=4"), **SIZES)
    assert (job.zero, job.dtype, job.gradient_dtype) == (3, "bfloat16", "float32")
    assert job.layers == 4
    assert job.parameters == pytest.approx(MODEL.parameters, rel=0.02)
    assert job.ffn_hidden == 1024
    # It is rehearsed, predicted and searched as any other job.
    assert job.volumes("dp=4")["total_bytes"].sum() == pytest.approx(
        MODEL.volumes("dp=4")["total_bytes"].sum(), rel=0.01
    )


def test_an_unsharded_job_shows_its_gradients() -> None:
    plain = replace(MODEL, zero=0, gradient_dtype="bfloat16")
    job = ml.Job.from_trace(trace_of(plain, "dp=4"), layers=4, **SIZES)
    assert (job.zero, job.gradient_dtype, job.ffn_hidden) == (0, "bfloat16", 1024)


@pytest.mark.parametrize("is_parallel", [True, False])
def test_tensor_parallel_calls_show_the_hidden_size(is_parallel: bool) -> None:
    plain = replace(MODEL, zero=0, sequence_parallel=is_parallel)
    sizes = {name: value for name, value in SIZES.items() if name != "hidden"}
    job = ml.Job.from_trace(trace_of(plain, "dp=2, tp=2"), layers=4, ffn_hidden=1024, **sizes)
    assert (job.sequence_parallel, job.hidden, job.zero, job.dtype) == (is_parallel, 512, 0, "bfloat16")


def test_element_types_have_all_their_names() -> None:
    plain = replace(MODEL, zero=0)
    job = ml.Job.from_trace(trace_of(plain, "dp=4"), layers=4, dtype="bf16", gradient_dtype="fp32", **SIZES)
    assert (job.dtype, job.gradient_dtype, job.ffn_hidden) == ("bfloat16", "float32", 1024)
    sizes = {name: value for name, value in SIZES.items() if name != "hidden"}
    job = ml.Job.from_trace(trace_of(plain, "dp=2, tp=2"), layers=4, ffn_hidden=1024, dtype="bf16", **sizes)
    assert job.hidden == 512


@pytest.mark.parametrize(("name", "mesh"), [("sequence", "tp=4"), ("micro_batch", "tp=4"), ("global_batch", "dp=4")])
def test_sizes_that_are_not_integers_are_refused(name: str, mesh: str) -> None:
    with pytest.raises(MeshError, match=f"{name} must be .*not 'four'"):
        ml.Job.from_trace(trace_of(MODEL, mesh), layers=4, ffn_hidden=1024, **(SIZES | {name: "four"}))


def test_what_a_trace_does_not_show_is_asked_for() -> None:
    trace = trace_of(MODEL, "dp=4")
    expected = "a trace does not show hidden, heads, sequence and global_batch of the job; pass them, or a preset"
    with pytest.raises(MeshError, match=expected):
        ml.Job.from_trace(trace, layers=4, parameters="1B")
    # Layers need one micro-batch per step, which follows from the batch.
    with pytest.raises(
        MeshError, match="a trace does not show layers, hidden, heads, sequence and global_batch of the job"
    ):
        ml.Job.from_trace(trace)
    with pytest.raises(MeshError, match="a trace does not show vocabulary of the job"):
        ml.Job.from_trace(trace, **{name: value for name, value in SIZES.items() if name != "vocabulary"})


def test_as_many_gathers_as_reductions_do_not_show_the_sharding() -> None:
    calls = [JobCall("dp", "reduce_scatter", 4096.0), JobCall("dp", "all_gather", 4096.0, "bfloat16")] * 3
    with pytest.raises(MeshError, match="a trace does not show zero of the job"):
        ml.Job.from_trace(job_trace("dp=4", calls), layers=4, **SIZES)
    with pytest.warns(UserWarning, match="along dp a step"):
        assert ml.Job.from_trace(job_trace("dp=4", calls), layers=4, zero=1, steps=1, **SIZES).zero == 1


def test_an_axis_without_a_role_is_asked_for() -> None:
    trace = job_trace("x=4", [JobCall("x")])
    with pytest.raises(
        MeshError, match=r"the axis 'x' of the trace is not an axis of a training job; pass mesh= with the axes pp,"
    ):
        ml.Job.from_trace(trace)
    with pytest.raises(MeshError, match="does not show layers"):
        ml.Job.from_trace(trace, "dp=4")


def test_other_volumes_than_those_of_the_trace_are_reported() -> None:
    trace = trace_of(replace(MODEL, zero=0), "dp=4")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ml.Job.from_trace(trace, layers=4, ffn_hidden=1024, **SIZES)
    with pytest.warns(UserWarning, match=r"the trace moves .* MB along dp a step, and the job .* MB; check the sizes"):
        ml.Job.from_trace(trace, layers=8, ffn_hidden=1024, **SIZES)
    with pytest.warns(UserWarning, match="along dp a step, and the job"):
        job = ml.Job.from_trace(trace, model="llama3-8b", global_batch=8)
    assert (job.layers, job.zero) == (32, 0)


@pytest.mark.skipif("MESHLAB_CASES" not in os.environ, reason="MESHLAB_CASES is not set")
def test_jobs_of_recorded_traces() -> None:
    jobs = Path(os.environ["MESHLAB_CASES"]) / "jobs"
    facts: dict[str, Any] = {
        "hidden": 2048,
        "heads": 16,
        "sequence": 1024,
        "global_batch": 8,
        "micro_batch": 4,
        "vocabulary": 1,
    }
    fsdp = ml.Job.from_trace(ml.Trace.read(sorted(jobs.glob("trace_fsdp*"))), "dp=2", steps=2, **facts)
    assert (fsdp.layers, fsdp.zero) == (6, 3)  # a transformer of six blocks
    ddp = ml.Job.from_trace(ml.Trace.read(sorted(jobs.glob("trace_ddp*"))), "dp=2", steps=2, layers=6, **facts)
    assert ddp.zero == 0
    assert ddp.parameters == pytest.approx(fsdp.parameters, rel=0.01)
