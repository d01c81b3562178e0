"""The estimate of a plan before it starts, and the time left while it runs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

import meshlab as ml
from meshlab.base._backends import Rates
from meshlab.base._units import format_seconds_range
from meshlab.benchmark import _estimate as estimate
from meshlab.benchmark._estimate import (
    RATES,
    MeasuredAxis,
    Pace,
    RepeatedBlocks,
    seconds_per_step,
    steps_to_probe,
)
from meshlab.benchmark._time_left import Work, time_left
from meshlab.benchmark.on_ranks._host_counters import slowdown_of_load
from meshlab.benchmark.on_ranks._probing import Probe
from meshlab.engines._memory import host_free_bytes
from meshlab.plans._plan import Plan
from meshlab.plans._sampling import Sampling

MESH = ml.DeviceMesh("dp=2, tp=2")
AXES = {name: MeasuredAxis("mpi", 2) for name in MESH.axis_names}


def test_an_estimate_counts_steps_memory_and_time() -> None:
    plan = Plan("all_reduce", ["tp", "dp"], sizes="1K:64K")
    expected = plan.estimate(MESH)
    assert (expected.n_steps, expected.memory_bytes) == (14, 128 << 10)
    assert 0.1 < expected.seconds < expected.max_seconds < 14 * 1.0
    assert "14 steps, about" in str(expected)
    assert "128\u2009KiB per rank" in str(expected)


def test_an_estimate_is_a_range() -> None:
    expected = Plan("all_reduce", ["tp", "dp"], sizes="1K:64K").estimate(MESH)
    assert expected.min_seconds == pytest.approx(expected.seconds / 2)
    assert expected.max_seconds >= 2 * expected.seconds
    assert f"about {format_seconds_range(expected.min_seconds, expected.max_seconds)}, buffers" in str(expected)
    assert "at most" not in str(expected)
    assert format_seconds_range(10.2, 24.8) == "10 to 25\u2009s"
    assert format_seconds_range(10.2, 10.4) == "10\u2009s"
    assert format_seconds_range(27, 133) == "27\u2009s to 2\u2009min 13\u2009s"


def test_repeated_blocks_widen_the_range() -> None:
    """The time around the batches of a block, and the times of the blocks, are those that were measured."""
    sampling = Sampling(min_batches=48, max_batches=48, max_s=10.0, precision=1e-9)
    plan = Plan("all_reduce", "tp", sizes="1K, 1M", mode="pipelined", sampling=sampling)
    small, large = plan.steps(MESH)
    pace = Pace(0.01, [(small, Probe(0.0, 100.0, 1e-3, 0.0)), (large, Probe(0.0, 1000.0, 1e-3, 0.0))])

    def seconds(walls: list[float], times: list[float]) -> tuple[float, float, float]:
        wider = RepeatedBlocks(small, walls, times).added_to(pace, plan, RATES["mpi"])
        low, middle, high = seconds_per_step(plan, [large], AXES, paces={"tp": wider})[0].tolist()
        return low, middle, high

    even = seconds([0.02] * 8, [100.0] * 8)
    assert even[0] < even[1] < even[2] < 1.4 * even[1]
    slow_rounds = seconds([0.5] * 7 + [0.9], [100.0] * 8)
    assert slow_rounds[1] > even[1] + 0.4  # most of a block is not in its batches
    uneven = seconds([0.02] * 8, [50.0, 60.0, 100.0, 100.0, 100.0, 100.0, 300.0, 400.0])
    assert uneven[2] > 2 * even[2]
    assert uneven[0] < even[0]


def test_repeated_blocks_have_no_check() -> None:
    """The time that is not in their batches is that of every step, without the check that they omit."""
    plan = Plan("all_reduce", "tp", sizes="1K", mode="pipelined", sampling="quick")
    [step] = plan.steps(MESH)

    def round_s(setup_s: float, check_s: float) -> float:
        pace = Pace(0.001, [(step, Probe(setup_s, 10.0, 0.5e-3, 0.0, check_s=check_s))])
        return RepeatedBlocks(step, [0.02] * 8, [10.0] * 8).added_to(pace, plan, RATES["mpi"]).round_s

    assert round_s(0.006, 0.005) == pytest.approx(round_s(0.001, 0.0))
    assert round_s(0.006, 0.0) == pytest.approx(round_s(0.001, 0.0) - 0.005)


def test_a_busy_host_widens_an_estimate_without_probes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (6.0, 0.0, 0.0))
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    assert slowdown_of_load(4) == 5.0
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    assert slowdown_of_load(4) == 1.0


def test_the_time_left_is_a_range_that_follows_the_pace() -> None:
    left = (5.0, 10.0, 20.0)
    assert time_left(left, []) == left
    assert time_left(left, [Work(3.0, 0.0)]) == left  # a step that was skipped
    # After a fifth of the work, only the pace counts: twice as slow as expected, and evenly so.
    low, middle, high = time_left(left, [Work(1.0, 0.5)] * 20)
    assert (low, middle, high) == pytest.approx((18.0, 20.0, 22.0))
    # An uneven pace: the last quarter of the work was three times as slow as the rest.
    low, middle, high = time_left(left, [Work(1.0, 1.0)] * 15 + [Work(3.0, 1.0)] * 5)
    assert (low, middle, high) == pytest.approx((10.0, 15.0, 30.0))
    # The first step alone hardly changes the estimate, even if it was ten times as slow.
    low, middle, high = time_left(left, [Work(1.0, 0.1)])
    assert 10.0 < middle < 12.0
    assert high < 2.3 * middle


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


def test_a_large_step_of_each_collective_is_probed_if_it_takes_a_small_part_of_the_run() -> None:
    def probed(sizes: str) -> dict[tuple[str, str], list[int]]:
        plan = Plan(["all_reduce", "all_gather"], ["tp", "dp"], sizes=sizes, sampling="quick")
        steps = plan.steps(MESH)
        seconds = seconds_per_step(plan, steps, AXES)[:, 1]
        found: dict[tuple[str, str], list[int]] = {}
        for axis, chosen in steps_to_probe(steps, AXES, seconds).items():
            for step in chosen:
                found.setdefault((axis, step.collective), []).append((step.size_bytes or 0) >> 10)
        return found

    small = [1, 4, 32, 256, 2048]
    assert probed("1K:2M") == {("tp", "all_reduce"): small, ("dp", "all_reduce"): small}
    many = probed("1K:64M")
    assert set(many) == {(axis, name) for axis in ("tp", "dp") for name in ("all_reduce", "all_gather")}
    for (_, name), sizes in many.items():
        assert sizes[:-1] == (small if name == "all_reduce" else [])
        assert 2048 < sizes[-1] < 64 << 10
    # There is nothing else, so that probing would take as long as measuring.
    assert probed("64M") == {("tp", "all_reduce"): [64 << 10], ("dp", "all_reduce"): [64 << 10]}


def test_each_collective_follows_its_own_large_probe() -> None:
    names = ["all_reduce", "all_gather", "broadcast"]
    steps = Plan(names, "tp", sizes="1K, 1M, 16M, 32M", mode="pipelined").steps(MESH)
    by_name = {(step.collective, step.size_bytes): step for step in steps}
    probes = {("all_reduce", 1 << 10): 10.0, ("all_reduce", 1 << 20): 1e3, ("all_reduce", 16 << 20): 64e3}
    probes["all_gather", 16 << 20] = 16e3
    pace = Pace(0.01, [(by_name[key], Probe(0.0, us, us / 1e6, 0.0)) for key, us in probes.items()])
    assert pace.call_s(by_name["all_reduce", 16 << 20]) == pytest.approx(64e-3)
    assert pace.call_s(by_name["all_gather", 16 << 20]) == pytest.approx(16e-3)
    assert pace.call_s(by_name["all_gather", 32 << 20]) == pytest.approx(32e-3)
    assert pace.call_s(by_name["all_gather", 1 << 20]) == pytest.approx(1e-3)
    assert pace.call_s(by_name["broadcast", 32 << 20]) == pytest.approx(128e-3)


def test_the_duration_of_the_sampling_is_that_of_whole_chunks() -> None:
    """Twelve to 40 batches in chunks of six, with one more at each end, two for warm-up and three single calls."""
    sampling = Sampling.named("quick")

    def seconds(call_s: float, spread: float = 0.0, around_s: float = 0.0) -> float:
        step = Plan("all_reduce", "tp", sizes="1M", mode="pipelined").steps(MESH)[0]
        pace = Pace(0.0, [(step, Probe(0.0, call_s * 1e6, call_s, spread, around_s))])
        plan = Plan("all_reduce", "tp", sizes="1M", mode="pipelined", sampling=sampling)
        return float(seconds_per_step(plan, [step], AXES, paces={"tp": pace})[0, 1])

    assert seconds(0.001) == pytest.approx((3 + 2 + 2 * 8) * 0.001)
    assert seconds(0.001, around_s=0.004) == pytest.approx((3 + 2 + 2 * 8) * 0.001 + 3 * 0.004)
    assert seconds(0.001, spread=0.5) == pytest.approx((3 + 2 + 40 + 7 * 2) * 0.001, rel=0.02)  # all batches
    assert seconds(0.001, spread=math.nan) == seconds(0.001)
    assert seconds(0.05) == pytest.approx((3 + 2 + 8) * 0.05)  # 0.1 s are over after the first chunk
    assert seconds(0.2) == pytest.approx((1 + 6) * 0.2)  # a slow call gets what an interval needs
    assert seconds(4.0) == pytest.approx((1 + 1) * 4.0)  # within 10 s


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
    # The assumptions are far off, so that the estimate shows also on a busy machine whether it comes from the probes.
    monkeypatch.setattr(estimate, "RATES", {"mpi": Rates(1e7, 1e-3, 1e-3), "threads": Rates(1e7, 1e-3, 1e-3)})
    monkeypatch.setattr("meshlab.benchmark._run._ESTIMATE_S", 60.0)
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
    assert 0 < seen[0].left_range_s[0] <= seen[0].left_s <= seen[0].left_range_s[1]
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
    from meshlab.engines import _memory as memory

    monkeypatch.setattr(memory, "host_free_bytes", lambda: 4 * 100 * 1024)  # for four ranks
    run = ml.bench(thread_engines, MESH, axis="tp", sizes="1K, 32K, 64K", sampling=Sampling(max_s=0.02))
    assert "3 steps (1 skipped for lack of memory), about" in str(run.estimate)
    assert run.estimate.memory_bytes == 64 << 10
    results = run.wait(120)
    assert run.state == "done"
    assert results["status"].tolist() == ["ok", "ok", "ok", "ok", "skipped", "skipped"]
    assert results["stop_reason"].iloc[-1] == (
        "its buffers take 128\u2009KiB per rank, but rank 0 may use 80\u2009KiB of its memory"
    )
    assert any("skipped all_reduce 64\u2009KiB" in line for line in run.log)
    report = ml.Report(run).markdown()
    assert "All 4 results are correct. 2 measurements were skipped because their buffers exceed the memory." in report
