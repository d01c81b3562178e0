"""Benchmarks on real GPUs: graph mode, kernels of a function, device readings and memory limits."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

import meshlab as ml
from meshlab.base._errors import BenchError
from meshlab.plans._sampling import Sampling

cloudpickle.register_pickle_by_value(sys.modules[__name__])

QUICK = Sampling(max_s=0.1)


def multiply_and_reduce(comm: Any) -> Any:
    """Return a step that multiplies two matrices and adds up the products of all ranks."""
    a = comm.xp.ones((2048, 2048), "float32")
    product = comm.xp.empty_like(a)

    def step() -> None:
        comm.xp.matmul(a, a, out=product)
        comm.all_reduce(product, product)

    return step


def only_multiply(comm: Any) -> Any:
    """Return a step that only multiplies."""
    a = comm.xp.ones((2048, 2048), "float32")
    product = comm.xp.empty_like(a)
    return lambda: comm.xp.matmul(a, a, out=product)


@pytest.mark.usefixtures("whole_gpus")
def test_all_modes_are_measured_and_graphs_are_fastest_for_small_messages(
    gpu_engines: ml.Engines, mesh: ml.DeviceMesh
) -> None:
    run = ml.bench(gpu_engines, mesh, axis="tp", sizes="8, 64M", mode="isolated, pipelined, graph", sampling=QUICK)
    results = run.wait(120)
    assert (results["status"] == "ok").all()
    small = results[results["size_bytes"] == 8].groupby("mode")["time_us"].max()
    assert small["graph"] < small["pipelined"] < 2 * small["isolated"]
    assert (results.loc[results["mode"] == "isolated", "alignment_us"] < 100).all()


@pytest.mark.usefixtures("whole_gpus")
def test_a_function_is_timed_with_its_own_kernels(gpu_engines: ml.Engines, mesh: ml.DeviceMesh) -> None:
    run = ml.bench(
        gpu_engines, mesh, [multiply_and_reduce, only_multiply, "all_reduce"], axis="tp", sizes=2048 * 2048 * 4,
        mode="isolated, pipelined", sampling=QUICK,
    )  # fmt: skip
    results = run.wait(120)
    assert (results["status"] == "ok").all()
    for mode in ("isolated", "pipelined"):
        times = results[results["mode"] == mode].groupby("collective")["time_us"].max()
        assert times["multiply_and_reduce"] > 0.8 * (times["only_multiply"] + times["all_reduce"])


@pytest.mark.usefixtures("whole_gpus")
def test_pairs_and_single_groups_are_measured(gpu_engines: ml.Engines, mesh: ml.DeviceMesh) -> None:
    run = ml.bench_pairs(gpu_engines, mesh, sizes="64M", sampling=QUICK)
    results = run.wait(180)
    assert (results["status"] == "ok").all()
    assert (results["n_wrong"] == 0).all()
    assert run.matrix().max().max() > 5
    alone = ml.bench(gpu_engines, mesh, axis="tp", sizes="64M", grouping=["together", "alone"], sampling=QUICK)
    assert (alone.wait(120)["status"] == "ok").all()
    assert (alone.contention()["ratio"] > 0.5).all()


def test_devices_are_read_before_and_after_a_run(gpu_engines: ml.Engines, mesh: ml.DeviceMesh, tmp_path: Path) -> None:
    run = ml.bench(gpu_engines, mesh, axis="tp", sizes="64M", sampling=QUICK)
    run.wait(60)
    devices = run.devices
    assert set(devices["when"]) == {"before", "after"}
    assert (devices["clock_sm_mhz"] > 100).all()
    assert devices["temperature_c"].between(10, 110).all()
    text = "".join(
        path.read_text() for path in run.save(tmp_path / "run", redact=True).iterdir() if path.suffix == ".json"
    )
    assert gpu_engines.ranks[0].host not in text


def test_sizes_that_exceed_the_gpu_memory_are_skipped(gpu_engines: ml.Engines, mesh: ml.DeviceMesh) -> None:
    run = ml.bench(gpu_engines, mesh, axis="tp", sizes="1M, 1T", sampling=QUICK)
    results = run.wait(60)
    assert results.groupby("size_bytes")["status"].first().tolist() == ["ok", "skipped"]


@pytest.mark.usefixtures("whole_gpus")
def test_two_axes_run_at_the_same_time(gpu_engines: ml.Engines, mesh: ml.DeviceMesh) -> None:
    run = ml.bench(
        gpu_engines, mesh, axis="tp", concurrent={"world": "all_reduce"}, sizes="16K, 1M, 16M", mode="graph, pipelined"
    )
    results = run.wait(300)
    assert (results["status"] == "ok").all(), results["stop_reason"].tolist()
    assert (results["n_wrong"] == 0).all()
    busy = run.samples[run.samples["concurrent_axis"].notna() & ~run.samples["is_warmup"]]
    assert set(busy["axis"]) == {"tp", "world"}
    assert set(busy["status"]) == {"ok"}
    # Two all_reduces of the same ranks share all of their links.
    ratios = run.interference()
    large = ratios[(ratios["size_bytes"] == 16 << 20) & (ratios["mode"] == "graph")]
    assert large["ratio"].between(1.2, 2.5).all(), large


def test_two_axes_in_isolated_mode_are_rejected(gpu_engines: ml.Engines, mesh: ml.DeviceMesh) -> None:
    with pytest.raises(BenchError, match="two axes cannot run at the same time in isolated mode with nccl"):
        ml.bench(gpu_engines, mesh, axis="tp", concurrent={"world": "all_reduce"}, mode="isolated")


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8", "float8_e4m3fn"])
def test_results_are_checked_on_the_gpu(gpu_engines: ml.Engines, mesh: ml.DeviceMesh, dtype: str) -> None:
    collectives = ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"]
    run = ml.bench(
        gpu_engines, mesh, collectives, axis="tp", sizes="1000, 3M", dtype=dtype, op="sum, avg, max", sampling=QUICK
    )
    results = run.wait(300)
    assert (results["status"] == "ok").all(), results["stop_reason"].tolist()

    def corrupt(comm: Any, step: Any) -> int:
        from meshlab.benchmark.on_ranks._buffers import allocate
        from meshlab.benchmark.on_ranks._checking import count_wrong_elements
        from meshlab.benchmark.on_ranks._step_calls import prepare_step

        (buffers,) = allocate([(comm, step)])
        call = prepare_step(comm, step, buffers)

        def spoiled() -> None:
            call()
            buffers.out.view("uint8")[:: buffers.out.nbytes // 3] ^= 64

        return count_wrong_elements(comm, step, spoiled, buffers)

    for step in run.steps:
        assert set(gpu_engines.run(corrupt, mesh, axis="tp", arguments=(step,))["value"]) <= {3, 4}, step
