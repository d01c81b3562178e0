"""Rehearsed training steps on real GPUs: overlap on streams, matrix products, and eight ranks on the GPUs there are."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

import meshlab as ml
from meshlab.benchmark.rehearsal._rehearsal import Rehearsal
from meshlab.comm.backends._cuda_parts import find_cublas
from meshlab.prediction._job import Job
from meshlab.prediction._step_calls import StepCall
from tests.gpu.launching import launch, n_gpus

LAYERS, TP_BYTES, GRADIENT_BYTES = 6, 64 << 20, 256 << 20


def call(axis: str, collective: str, size: int, **changes: Any) -> StepCall:
    """A call of a layer, after 2 × 10^12 operations: 3 to 5 ms on an H100."""
    one = StepCall(
        axis=tuple(axis.split("-")), collective=collective, size_bytes=size, dtype="bfloat16", what="activations",
        phase="forward", block=0, repeats=LAYERS, micro_batches=2, gap_flops=2e12, overlaps="nothing",
        overlap_flops=0.0,
    )  # fmt: skip
    return replace(one, **changes)


def step_along(axis: str) -> list[StepCall]:
    """A step with exposed calls in the forward pass, and with gradients that the backward pass can hide."""
    return [
        call(axis, "all_gather", TP_BYTES),
        call(axis, "reduce_scatter", TP_BYTES, gap_flops=0.0),
        call(axis, "all_reduce", GRADIENT_BYTES, phase="backward", block=1, overlaps="pass", what="gradients"),
    ]


def part(found: Rehearsal, name: str, column: str = "exposed_us") -> float:
    frame = found.frame()
    return float(frame.loc[frame["axis"].fillna(frame["part"]) == name, column].iloc[0])


def check_sums(found: Rehearsal) -> None:
    frame = found.frame()
    sums = frame.groupby("layout")["exposed_us"].sum()
    steps = frame.groupby("layout")["step_us"].first()
    assert sums.to_numpy() == pytest.approx(steps.to_numpy(), rel=1e-6)
    assert (frame.dropna(subset="axis")["n_wrong"] == 0).all(), found.calls()


@pytest.fixture(scope="module")
def world(n_ranks: int) -> str:
    return f"tp={n_ranks}"


@pytest.mark.usefixtures("whole_gpus")
def test_waits_take_their_time_and_hide_what_may_overlap(gpu_engines: ml.Engines, world: str) -> None:
    found = ml.rehearse(gpu_engines, world, step_along("tp"), compute="wait", tflops=400, scale=1, rounds=2, steps=5)
    print(found.explain())
    check_sums(found)
    # 2 x 6 waits of 5 ms in the forward pass and as many in the backward pass.
    assert part(found, "compute") == pytest.approx(2 * 2 * LAYERS * 5000, rel=0.02)
    # The wait occupies one multiprocessor, so only the calls of the forward pass are exposed, and the last gradients.
    forward = found.calls().iloc[:2]
    exposed_us = float((forward["time_us"] * forward["rehearsed_calls"]).sum())
    assert part(found, "tp") > 0.7 * exposed_us
    assert part(found, "tp") < 0.7 * part(found, "tp", "alone_us")
    assert part(found, "tp", "hidden_us") > 0.3 * part(found, "tp", "alone_us")
    assert abs(part(found, "slowdown")) < 0.05 * part(found, "compute")
    # The prediction is for the time of the axis on its own.
    assert found.why_unpredicted == ""
    assert 0.3 < part(found, "tp", "predicted_us") / part(found, "tp", "alone_us") < 3


@pytest.mark.usefixtures("whole_gpus")
def test_products_compute_and_overlap(gpu_engines: ml.Engines, world: str) -> None:
    problem = find_cublas().problem
    if problem:
        pytest.skip(f"cuBLAS {problem}")
    found = ml.rehearse(gpu_engines, world, step_along("tp"), scale=1, rounds=2, steps=5)
    print(found.explain())
    assert found.compute == "products"
    check_sums(found)
    assert 20e6 < found.flops_per_us < 3e9  # between 20 and 3,000 TFLOP/s
    expected_us = 2 * 2 * LAYERS * 2e12 / found.flops_per_us
    # The rate is that of a few products after a pause, and clocks fall under a long load.
    assert 0.8 * expected_us < part(found, "compute") < 1.6 * expected_us
    # Gradients of the backward pass are larger than all other messages, and mostly hidden.
    assert part(found, "tp", "hidden_us") > 0.3 * part(found, "tp", "alone_us")
    assert part(found, "tp") < part(found, "tp", "alone_us")
    # The host enqueues faster than the GPUs run.
    steps = found.steps().iloc[0]
    assert steps["host_us"] < 0.8 * steps["step_us"]


@pytest.mark.usefixtures("whole_gpus")
def test_several_axes_run_on_their_own_streams(gpu_engines: ml.Engines, n_ranks: int) -> None:
    # Two communicators of the same ranks, as the tensor-parallel and the data-parallel groups of a step would be.
    mesh = ml.DeviceMesh("dp=1, tp=2" if n_ranks == 2 else f"dp=2, tp={n_ranks // 2}")
    gradients = call("dp-tp", "all_reduce", GRADIENT_BYTES, phase="backward", block=1, overlaps="pass", dtype="float32")
    step = [
        call("tp", "all_gather", TP_BYTES),
        call("tp", "reduce_scatter", TP_BYTES, phase="backward", block=1),
        gradients,
    ]
    found = ml.rehearse(gpu_engines, mesh, step, compute="wait", scale=1, rounds=1, steps=5)
    print(found.explain())
    check_sums(found)
    axes = found.frame().dropna(subset="axis")["axis"].tolist()
    assert axes == ["tp", mesh["dp", "tp"].name]
    assert part(found, axes[1], "hidden_us") > 0


@pytest.mark.usefixtures("whole_gpus")
def test_layouts_of_a_job_are_compared(gpu_engines: ml.Engines, n_ranks: int) -> None:
    job = Job.preset("llama3-8b", global_batch=8 * n_ranks)
    meshes = [f"dp={n_ranks}", f"tp={n_ranks}", f"pp={n_ranks}"]
    found = ml.rehearse(gpu_engines, meshes, job, steps=3)
    print(found.explain())
    check_sums(found)
    assert found.size_scale == 1  # a step is cut in layers and micro-batches, not in message sizes
    verdicts = found.steps()["verdict"].tolist()
    assert set(verdicts) <= {"fastest", "among the fastest", "slower", "same", "unclear"}
    assert verdicts[0] in ("fastest", "among the fastest")
    assert sorted(found.steps()["layout"]) == sorted(map(str, map(ml.DeviceMesh, meshes)))


def test_eight_ranks_share_the_gpus_for_correctness_only(gpu_engines: ml.Engines) -> None:
    version = re.findall(r"\d+", gpu_engines.ranks[0].capabilities.library)
    if tuple(map(int, version[:2])) < (2, 30):
        pytest.skip("several ranks on one GPU need NCCL 2.30")
    cube = ml.DeviceMesh("dp=2, cp=2, tp=2")
    step = [
        call("tp", "all_gather", 4 << 20, gap_flops=4e10),
        call("cp", "send_recv", 1 << 20, gap_flops=4e10, overlaps="compute"),
        call("tp", "reduce_scatter", 4 << 20, gap_flops=4e10, overlaps="layer"),
        call("cp", "all_to_all", 1 << 20, phase="backward", block=1, gap_flops=4e10),
        call(
            "dp-cp", "reduce_scatter", 8 << 20, phase="backward", block=1, gap_flops=4e10, overlaps="pass",
            dtype="float32", micro_batches=1,
        ),
    ]  # fmt: skip
    with launch(8) as engines:
        found = ml.rehearse(
            engines, [cube, "tp=2, cp=2, dp=2"], step, compute="wait", scale=1, rounds=1, steps=1, deadline_s=120
        )
        print(found.explain())
        check_sums(found)
        assert found.sharing.startswith(f"8 ranks share {n_gpus()} GPU")
        assert found.steps()["verdict"].tolist() == ["", ""]
        assert found.headline.startswith("No verdict on times")
        assert found.frame()["axis"].dropna().unique().tolist() == ["tp", "cp", "dp-cp"]
        # The engines still run other tasks on the same communicators.
        assert engines.verify(cube)["is_right"].all()
