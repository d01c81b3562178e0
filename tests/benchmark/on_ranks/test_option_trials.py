"""Trials of options on ranks: which one is the fastest, which ones are left out, and that all ranks agree."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import meshlab as ml
from meshlab.base._errors import CommunicatorError, EngineError
from meshlab.benchmark.on_ranks._option_trials import Trial, TrialRounds, try_options
from meshlab.benchmark.tuning._options import TuningOption
from meshlab.plans._steps import Step
from tests.benchmark.on_ranks.planted_options import PlantedOptions
from tests.examples import examples

HOW = TrialRounds(rounds=6, max_s=60.0, check=True, halves=True)


def step_of(max_ctas: int | None, size: int = 1024) -> Step:
    plan = ml.Plan("all_reduce", "tp", sizes=size, in_place=True)
    return TuningOption(max_ctas=max_ctas).apply_to(plan.steps("tp=2")[0])


def try_on(
    engines: ml.Engines, ctas: list[int | None], set_up: Any, mesh: str = "tp=4", how: TrialRounds = HOW
) -> list[tuple[Trial, ...]]:
    """The trials of each rank."""
    layout = ml.DeviceMesh(mesh)
    groups = layout["tp"].array
    arguments = ([step_of(one) for one in ctas], how, groups, set_up)

    def run(comm: ml.Communicator, *given: Any) -> Any:
        return try_options(comm, comm, *given) if len(groups) == 1 else None

    if len(groups) == 1:
        return engines.run(run, layout, axis="tp", arguments=arguments)["value"].tolist()
    from meshlab.engines._lease import Lease, raise_first_error

    with Lease(engines, "trying") as lease:
        replies = lease.round(try_options, layout, "tp", arguments, also=("world",)).run()
    raise_first_error(replies, "trying", engines.ranks)
    return [reply.value for reply in replies]


def test_the_fastest_option_takes_part_in_all_rounds(thread_engines: ml.Engines) -> None:
    times = {None: 100.0, 1: 190.0, 2: 90.0, 4: 80.0, 8: 120.0, 16: 110.0, 32: 105.0}
    planted = PlantedOptions(lambda step, rank: times[step.max_ctas] + rank, noise=0.01)
    by_rank = try_on(thread_engines, list(times), planted)
    assert all(found == by_rank[0] for found in by_rank)
    found = dict(zip(times, by_rank[0], strict=True))
    assert {ctas for ctas, trial in found.items() if trial.status == "ok"} == {None, 2, 4, 16, 32}
    assert all(len(trial.times_us) == (6 if trial.status == "ok" else 1) for trial in found.values())
    # The slowest rank counts.
    assert np.median(found[4].times_us) == pytest.approx(83, rel=0.01)
    assert re.fullmatch(r"dropped after 1 round, at 1\.8\d times the default", found[1].message)


def test_the_slowest_group_counts_and_all_groups_try_the_same(thread_engines: ml.Engines) -> None:
    # Option 1 is fast in the first group only.
    def time_us(step: Step, rank: int) -> float:
        return (50.0 if rank < 2 else 150.0) if step.max_ctas == 1 else 100.0

    by_rank = try_on(thread_engines, [None, 1], PlantedOptions(time_us), mesh="dp=2, tp=2")
    assert all(found == by_rank[0] for found in by_rank)
    assert by_rank[0][1].times_us == (150.0,) * 6


def test_options_that_cannot_run_are_left_out(thread_engines: ml.Engines) -> None:
    unavailable = CommunicatorError("NCCL rejected all_reduce: invalid argument")
    planted = PlantedOptions(
        lambda step, rank: 100.0,
        n_wrong={(8, 2): 3},
        errors={**{(1, rank): unavailable for rank in range(4)}, (2, 1): unavailable},
    )
    by_rank = try_on(thread_engines, [None, 1, 2, 4, 8], planted)
    assert [trial.status for trial in by_rank[0]] == ["ok", "unsupported", "failed", "ok", "wrong"]
    assert [trial.status for trial in by_rank[1]] == [trial.status for trial in by_rank[0]]
    assert by_rank[0][1].message == unavailable.summary
    assert by_rank[0][2].message == "it failed on another rank"
    assert by_rank[1][2].message == unavailable.summary
    assert [found[4].n_wrong for found in by_rank] == [0, 0, 3, 0]
    assert all(ctas in (None, 4) for _, ctas, _ in planted.log)


def test_nothing_is_measured_without_the_default(thread_engines: ml.Engines) -> None:
    planted = PlantedOptions(lambda step, rank: 100.0, n_wrong={(None, 0): 1})
    found = try_on(thread_engines, [None, 4], planted)[0]
    assert [trial.status for trial in found] == ["wrong", "failed"]
    assert found[1].message == "the default could not be measured"
    assert not planted.log


def test_hopeless_options_are_dropped_after_their_first_calls(thread_engines: ml.Engines) -> None:
    planted = PlantedOptions(lambda step, rank: 1000.0 if step.max_ctas == 1 else 100.0)
    found = try_on(thread_engines, [None, 1], planted)[0]
    assert (found[1].status, found[1].ratio, found[1].times_us) == ("dropped", 10.0, (1000.0,))
    assert found[1].message == "its first calls took 10.0 times as long as those of the default"
    confirming = try_on(thread_engines, [None, 1], planted, how=HOW._replace(halves=False))[0]
    assert [len(trial.times_us) for trial in confirming] == [6, 6]


def test_rounds_end_at_the_time_limit(thread_engines: ml.Engines) -> None:
    planted = PlantedOptions(lambda step, rank: 100.0)
    found = try_on(thread_engines, [None, 4], planted, how=HOW._replace(rounds=1000, max_s=1e-9))[0]
    assert [len(trial.times_us) for trial in found] == [1, 1]


@pytest.mark.usefixtures("patient_rounds")
def test_an_unexpected_error_names_the_call(thread_engines: ml.Engines) -> None:
    planted = PlantedOptions(lambda step, rank: 100.0, errors={(4, rank): OSError("no space") for rank in range(4)})
    with pytest.raises(EngineError, match=r"all_reduce 1.KiB float32 .*: OSError: no space"):
        try_on(thread_engines, [None, 4], planted)


@settings(
    deadline=None,
    max_examples=examples(10),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    ranks=st.lists(st.permutations(range(8)), min_size=4, max_size=4),
    noise=st.sampled_from([0.0, 0.004]),
)
def test_all_ranks_keep_the_option_whose_slowest_rank_is_the_fastest(
    thread_engines: ml.Engines, ranks: list[list[int]], noise: float
) -> None:
    # Each rank has its own order of the options. Their times differ by 2 %, which is more than the noise.
    def time_us(step: Step, rank: int) -> float:
        return 100.0 + 2 * ranks[rank][step.max_ctas or 0] + (1 if step.max_ctas == 3 else 0)

    by_rank = try_on(thread_engines, [None, *range(1, 8)], PlantedOptions(time_us, noise=noise))
    assert all(found == by_rank[0] for found in by_rank)
    slowest = [max(100.0 + 2 * one[option] + (option == 3) for one in ranks) for option in range(8)]
    fastest = min(slowest)
    left = [slowest[option] for option, trial in enumerate(by_rank[0]) if trial.status == "ok"]
    assert min(left) <= fastest * (1 + 2 * noise)


def test_real_calls_are_checked_and_take_turns(thread_engines: ml.Engines) -> None:
    """With the calls of the backend instead of planted ones."""
    layout = ml.DeviceMesh("tp=4")
    step = ml.Plan("all_gather", "tp", sizes="4K").steps(layout)[0]
    how = TrialRounds(rounds=3, max_s=10.0, check=True, halves=True, batch_us=500.0)
    arguments = ([step, step], how, layout["tp"].array)

    def run(comm: ml.Communicator, *given: Any) -> Any:
        return try_options(comm, comm, *given)

    found = thread_engines.run(run, layout, axis="tp", arguments=arguments)["value"].tolist()[0]
    assert found[0].status == "ok"
    assert found[0].n_wrong == 0
    assert len(found[0].times_us) == 3
    assert all(time > 0 for time in found[0].times_us)
