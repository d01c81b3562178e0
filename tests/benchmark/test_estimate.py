"""The estimate of a plan before it starts, and the time left while it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import meshlab as ml
from meshlab.benchmark import estimate
from meshlab.benchmark.estimate import RATES, Pace, Rates
from meshlab.benchmark.on_ranks.probing import Probe
from meshlab.engines.memory import host_free_bytes
from meshlab.frames.plan import Plan, Sampling

MESH = ml.DeviceMesh("dp=2, tp=2")


def test_an_estimate_counts_steps_memory_and_time() -> None:
    plan = Plan("all_reduce", ["tp", "dp"], sizes="1K:64K")
    expected = plan.estimate(MESH)
    assert (expected.n_steps, expected.memory_bytes) == (14, 128 << 10)
    assert 0.1 < expected.seconds < expected.max_seconds < 14 * 1.0
    assert "14 steps, about" in str(expected)
    assert "128\u2009KiB per rank" in str(expected)


def test_more_of_everything_takes_longer() -> None:
    def seconds(**arguments: Any) -> float:
        return Plan(**{"collective": "all_reduce", "axis": "tp", "sizes": "1M", **arguments}).estimate(MESH).seconds

    base = seconds()
    assert seconds(launches=3) == pytest.approx(3 * base + 2 * RATES["mpi"].start_s)
    assert seconds(grouping="alone") == pytest.approx(2 * base)
    assert seconds(sizes="1M, 64M") > 2 * base
    assert seconds(concurrent={"dp": "reduce_scatter"}) > 3 * base
    assert seconds(check=False) < base


def test_the_fixed_part_of_a_preparation_does_not_grow_with_the_size() -> None:
    """Otherwise a graph of 16 times the largest probed size would seem to take 16 times as long to capture."""
    [small, large, larger] = Plan("all_reduce", "tp", sizes="1K, 1M, 16M", in_place=True).steps(MESH)
    fixed_s, per_byte_s = 0.04, 1e-9
    probed = [(step, Probe(fixed_s + per_byte_s * step.buffer_bytes, 10.0, 1e-3, 0.0)) for step in (small, large)]
    pace = Pace(0.01, probed)
    assert pace.setup_s(larger, RATES["mpi"], check=True) == pytest.approx(fixed_s + per_byte_s * larger.buffer_bytes)
    # A single probe has no fixed part, and a preparation never takes less than that of a smaller step.
    alone = Pace(0.01, probed[1:]).setup_s(larger, RATES["mpi"], check=True)
    assert alone == pytest.approx(16 * probed[1][1].setup_s)
    busy = [(small, Probe(0.5, 10.0, 1e-3, 0.0)), (large, Probe(0.1, 10.0, 1e-3, 0.0))]
    assert Pace(0.01, busy).setup_s(larger, RATES["mpi"], check=True) == pytest.approx(0.1)


def test_a_function_may_be_slow() -> None:
    expected = Plan(lambda comm: None, "tp").estimate(MESH)
    assert expected.seconds < 2
    assert expected.max_seconds >= 10


def test_measured_times_replace_the_assumption(make_results: Any) -> None:
    plan = Plan("all_reduce", "tp", sizes="16M", mode="pipelined", sampling=Sampling(max_s=1e3), check=False)
    results = make_results(collectives=["all_reduce"], axes=["tp"])
    slower = results.assign(time_us=results["time_us"] * 10)
    assert plan.estimate(MESH, results=slower).seconds > 5 * plan.estimate(MESH, results=results).seconds


def test_a_long_run_is_estimated_from_a_few_steps_of_it(
    thread_engines: ml.Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimate, "RATES", {"mpi": Rates(1e5, 1e-3, 1e-3), "threads": Rates(1e5, 1e-3, 1e-3)})
    plan = Plan("all_reduce", ["tp", "dp"], sizes="1K:64K", sampling=Sampling(max_s=60, min_batches=6, max_batches=6))
    assumed = plan.estimate(MESH, backend="threads").seconds
    run = ml.bench(thread_engines, MESH, plan)
    assert run.estimate.seconds < assumed / 5
    run.wait(120)


def test_the_time_left_starts_with_the_estimate_and_follows_the_pace(thread_engines: ml.Engines) -> None:
    sampling = Sampling(max_s=0.01, min_batches=6, max_batches=6)
    run = ml.bench(thread_engines, MESH, "all_reduce", sizes="1K, 2K, 4K", launches=2, sampling=sampling, check=False)
    seen = [run.progress]
    run.subscribe(lambda run: seen.append(run.progress))
    run.wait(60)
    assert seen[0].total == 12
    assert seen[0].left_s <= run.estimate.seconds
    assert [now.done for now in seen] == sorted(now.done for now in seen)
    now = run.progress
    assert (now.done, now.total, now.step, now.left_s) == (12, 12, "", 0.0)
    assert now.elapsed_s == run.elapsed_s > 0
    # The pace comes from the steps measured so far, so the time left is proportional to the steps left.
    halfway = [now for now in seen if now.done == 6 and now.step]
    assert all(now.left_s < 10 * now.elapsed_s for now in halfway)


@pytest.mark.parametrize(
    "files",
    [
        {"memory.max": "5000000", "memory.current": "4000000", "memory.stat": "anon 1\ninactive_file 500000"},
        {
            "memory/memory.limit_in_bytes": "5000000",
            "memory/memory.usage_in_bytes": "4000000",
            "memory/memory.stat": "cache 9\ntotal_inactive_file 500000",
        },
    ],
)
def test_a_container_may_have_less_memory_than_its_host(tmp_path: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    assert host_free_bytes(str(tmp_path)) == 1_500_000


def test_a_container_without_a_limit_has_the_memory_of_its_host(tmp_path: Path) -> None:
    folder = tmp_path / "sys/fs/cgroup"
    folder.mkdir(parents=True)
    (folder / "memory.max").write_text("max\n")
    assert host_free_bytes(str(tmp_path)) > 100 << 20


def test_sizes_that_exceed_the_memory_are_skipped_with_a_reason(
    thread_engines: ml.Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    from meshlab.engines import memory

    monkeypatch.setattr(memory, "host_free_bytes", lambda: 4 * 100 * 1024)  # for four ranks
    run = ml.bench(thread_engines, MESH, axis="tp", sizes="1K, 32K, 64K", sampling=Sampling(max_s=0.02))
    assert "3 steps (1 skipped for lack of memory), about" in str(run.estimate)
    assert run.estimate.memory_bytes == 64 << 10
    results = run.wait(30)
    assert run.state == "done"
    assert results["status"].tolist() == ["ok", "ok", "ok", "ok", "skipped", "skipped"]
    assert results["stop_reason"].iloc[-1] == (
        "its buffers take 128\u2009KiB per rank, but rank 0 may use 80\u2009KiB of its memory"
    )
    assert any("skipped all_reduce 64\u2009KiB" in line for line in run.log)
    report = ml.Report(run).markdown()
    assert "All 4 results are correct. 2 measurements were skipped because their buffers exceed the memory." in report
