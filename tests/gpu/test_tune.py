"""Tuning on real GPUs: all options of a few sizes, and held graphs."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

import meshlab as ml
from meshlab.benchmark.on_ranks._option_trials import TrialRounds, try_options
from meshlab.benchmark.tuning._options import TuningOption, chooses_per_call
from meshlab.engines._lease import Lease, raise_first_error
from tests.gpu.launching import launch

COLLECTIVES = ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv"]


@pytest.fixture
def per_call(gpu_engines: ml.Engines) -> bool:
    return chooses_per_call(gpu_engines.ranks[0].capabilities)


def trials_of(
    engines: ml.Engines,
    mesh: ml.DeviceMesh,
    options: list[TuningOption],
    collective: str = "all_reduce",
    size: str = "64K",
) -> list[Any]:
    in_place = collective not in ("all_to_all", "send_recv")
    step = ml.Plan(collective, "tp", sizes=size, mode="graph", in_place=in_place).steps(mesh)[0]
    groups = mesh["tp"].array
    how = TrialRounds(rounds=4, max_s=20.0, check=True, halves=True)
    with Lease(engines, "trying options") as lease:
        arguments = ([option.apply_to(step) for option in options], how, groups)
        replies = lease.round(try_options, mesh, "tp", arguments, also=("world",)).run()
    raise_first_error(replies, "trying options", engines.ranks)
    assert [one.status for one in replies[0].value] == [one.status for one in replies[-1].value]
    return list(replies[0].value)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_options_are_right_or_say_why_they_cannot_run(
    gpu_engines: ml.Engines, mesh: ml.DeviceMesh, collective: str, per_call: bool
) -> None:
    begin = time.monotonic()
    # Without choice per call, every environment needs new ranks. Two of them show that it works.
    options = None if per_call else ["buffers"] if collective == "send_recv" else ["buffers", "simple", "ll128"]
    found = ml.tune(
        gpu_engines, mesh, collective, axis="tp", sizes="1K, 256K, 4M", options=options, rounds=6, progress=False
    )
    print(f"\n{collective}: {time.monotonic() - begin:.1f} s")
    print(found)
    trials = found.trials
    print(trials.groupby(["launch", "status"]).size().to_string())
    print(trials.loc[trials["status"] == "unsupported", ["size_bytes", "algorithm", "message"]].to_string())
    assert not trials["status"].isin(["failed", "wrong"]).any(), trials[trials["status"] == "failed"].to_string()
    assert (trials["n_wrong"].dropna() == 0).all()
    default = trials[
        (trials["buffers"] == "plain") & trials[["setting", "algorithm", "min_ctas", "max_ctas"]].isna().all(axis=1)
    ]
    assert default.loc[default["cta_policy"].isna(), "status"].eq("ok").all()
    assert found.frame()["size_bytes"].tolist() == [1 << 10, 1 << 18, 1 << 22]
    assert gpu_engines.state == "ready"


def test_an_unavailable_algorithm_is_a_row_and_the_communicator_goes_on(
    gpu_engines: ml.Engines, mesh: ml.DeviceMesh, per_call: bool
) -> None:
    if not per_call:
        pytest.skip("needs NCCL 2.31")
    impossible = TuningOption(algorithm="tree")  # NCCL has no tree for all_gather
    found = trials_of(gpu_engines, mesh, [TuningOption(), impossible, TuningOption(max_ctas=4)], "all_gather")
    assert [one.status for one in found] == ["ok", "unsupported", "ok"]
    print(found[1].message)
    sums = gpu_engines.run(lambda comm: float(comm.to_host(comm.all_reduce(comm.xp.ones(3)))[0]))["value"]
    assert sums.tolist() == [gpu_engines.world_size] * gpu_engines.world_size


@pytest.mark.usefixtures("whole_gpus")
def test_the_default_measured_three_times_has_the_same_time(gpu_engines: ml.Engines, mesh: ml.DeviceMesh) -> None:
    found = trials_of(gpu_engines, mesh, [TuningOption()] * 3, size="1M")
    medians = [float(np.median(one.times_us)) for one in found]
    print(medians)
    assert max(medians) < 1.1 * min(medians)


def hold_two(comm: ml.Communicator) -> tuple[list[float], list[float], float]:
    """Two calls whose graphs are held at the same time, in turns, and the sum that one of them leaves."""
    x, y = comm.xp.ones(1024, "float32"), comm.xp.zeros(1 << 20, "float32")
    calls = [comm.prepare("all_reduce", one, one, op="max") for one in (x, y)]
    times: list[list[float]] = [[], []]
    with comm.backend.local(), calls[0].held("graph", 60) as first, calls[1].held("graph", 25) as second:
        for _ in range(4):
            times[0] += first(3).time_us.tolist()
            times[1] += second(3).time_us.tolist()
    alone = calls[1].measure("graph", 25, 6).time_us
    assert float(comm.to_host(x)[0]) == 1.0
    return times[0], times[1], float(np.median(alone))


@pytest.mark.usefixtures("whole_gpus")
def test_graphs_of_several_calls_are_held_at_the_same_time(gpu_engines: ml.Engines, mesh: ml.DeviceMesh) -> None:
    for small, large, alone in gpu_engines.run(hold_two)["value"]:
        assert len(small) == len(large) == 12
        assert np.median(small) < np.median(large)
        assert np.median(large) == pytest.approx(alone, rel=0.15)


def die_while_graphs_are_held(comm: ml.Communicator) -> None:
    import os
    import signal

    x = comm.xp.ones(1024, "float32")
    call = comm.prepare("all_reduce", x, x)
    with comm.backend.local(), call.held("graph", 20) as measure:
        measure(2)
        if comm.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        measure(2)


def test_a_rank_that_dies_while_graphs_are_held_is_named(n_ranks: int) -> None:
    with launch(n_ranks, deadline_s=20) as engines:
        with pytest.raises(ml.MeshlabError, match="rank 1"):
            engines.run(die_while_graphs_are_held)
        engines.restart()
        assert engines.run(lambda comm: comm.rank)["value"].tolist() == list(range(n_ranks))


@pytest.mark.usefixtures("whole_gpus")
def test_a_complete_tuning_of_28_sizes_prints_its_time(gpu_engines: ml.Engines, mesh: ml.DeviceMesh) -> None:
    if not chooses_per_call(gpu_engines.ranks[0].capabilities):
        pytest.skip("needs NCCL 2.31")
    begin = time.monotonic()
    found = ml.tune(gpu_engines, mesh, "all_reduce", axis="tp", progress=False)
    print(f"\n28 sizes: {time.monotonic() - begin:.1f} s, {len(found.trials)} trials")
    print(found.frame()[["size_bytes", "option", "time_us", "default_us", "gain", "verdict"]].to_string())
    assert len(found.frame()) == 28


def test_pairs_of_a_call_and_a_product_are_tuned(gpu_engines: ml.Engines, mesh: ml.DeviceMesh) -> None:
    axis = mesh.axis_names[-1]
    tuning = ml.tune(
        gpu_engines, mesh, axis=axis, sizes="16M", options="buffers", beside=(4096, 4096, 4096), rounds=6, confirm=False
    )
    assert tuning.system["beside"] == "4096 × 4096 × 4096 float16"
    rows = tuning.trials[tuning.trials["status"].isin(["ok", "dropped"])]
    assert rows["compute_us"].gt(20).all()
    assert (rows["time_us"] > rows["compute_us"]).all()
    assert tuning.exposed_share() > 0
    print(rows[["buffers", "time_us", "compute_us", "alone_us", "status"]].to_string())
