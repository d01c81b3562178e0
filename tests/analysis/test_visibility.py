"""What can be seen now: the promise of the probe before a run, resampled from recorded batches.

The file has the batches of all_reduce on two ranks (MPI and threads), in several launches of each step: on a busy host
with a load of about 25 on two cores, and on a quiet one with 16 cores. A block has those of a sixteenth of a second.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest

import meshlab as ml
from meshlab.analysis._visibility import (
    MOST_BLOCKS,
    Visibility,
    log_pair,
    ratio_text,
    separate_ratio,
    turns_ratio,
    visibility_of,
)
from meshlab.frames._statistics import median_interval
from meshlab.plans._sampling import Sampling

RECORDED = Path(__file__).parent / "data" / "recorded_batches.csv.gz"
BLOCK_S, STEP_BLOCKS, ROUNDS, TRIALS = 1 / 16, 8, 40, 300
PROMISE = 0.8

Floats = npt.NDArray[np.float64]
Series = list[Floats]  # the batches of each block


def _recorded() -> dict[str, list[Series]]:
    """Return the blocks of each launch, by host, backend and step."""
    series: dict[str, list[Series]] = {}
    for (host, backend, step, _), rows in pd.read_csv(RECORDED).groupby(["host", "backend", "step", "launch"]):
        times = rows["time_us"].to_numpy(dtype=np.float64)
        block = (np.cumsum(times * rows["calls"].to_numpy()) / 1e6 / BLOCK_S).astype(int)
        series.setdefault(f"{host} {backend} {step}", []).append([times[block == k] for k in np.unique(block)])
    return series


STEPS = _recorded()


def _share(rng: np.random.Generator, launches: list[Series], trial: Callable[[Series, int], bool]) -> float:
    """Return the share of trials that succeed, each with a probe that begins at a random block."""
    hits = []
    for _ in range(TRIALS):
        blocks = launches[rng.integers(len(launches))]
        hits.append(trial(blocks, int(rng.integers(len(blocks) - MOST_BLOCKS + 1))))
    return float(np.mean(hits))


@pytest.mark.parametrize("name", STEPS)
def test_a_change_of_the_promised_size_is_seen_one_after_the_other(name: str) -> None:
    """The intervals of two rows do not overlap, which is how a report compares rows."""
    rng = np.random.default_rng(1)

    def step(blocks: Series) -> Floats:
        first = rng.integers(max(len(blocks) - STEP_BLOCKS + 1, 1))
        return np.concatenate(blocks[first : first + STEP_BLOCKS])

    def trial(blocks: Series, start: int) -> bool:
        probe = blocks[start : start + MOST_BLOCKS]
        ratio = separate_ratio([math.log(np.median(block)) for block in probe])
        return median_interval(ratio * step(blocks))[0] > median_interval(step(blocks))[1]

    assert _share(rng, STEPS[name], trial) >= PROMISE


@pytest.mark.parametrize("name", STEPS)
def test_a_change_of_the_promised_size_is_seen_in_turns(name: str) -> None:
    """The signed-rank test of the rounds of all launches is significant, and the ratio is beyond the effect of 5 %."""
    rng, launches = np.random.default_rng(2), STEPS[name]

    def trial(blocks: Series, start: int) -> bool:
        ratio = turns_ratio([log_pair(block) for block in blocks[start : start + MOST_BLOCKS]])
        rounds = []
        for number in range(ROUNDS):
            other = launches[rng.integers(len(launches))]
            times = other[rng.integers(len(other))]
            pairs = times[: len(times) // 2 * 2].reshape(-1, 2)[:, :: -1 if number % 2 else 1]
            if len(pairs):
                rounds.append(float(np.median(np.log(ratio * pairs[:, 1] / pairs[:, 0]))))
        return _is_positive(np.array(rounds)) and math.exp(float(np.median(rounds))) >= 1.05

    assert _share(rng, launches, trial) >= PROMISE


def _is_positive(values: Floats) -> bool:
    """Return whether the signed-rank test of Wilcoxon finds values above zero at 2 %, with its normal approximation."""
    n = len(values)
    ranks = np.argsort(np.argsort(np.abs(values))) + 1
    excess = float(ranks[values > 0].sum()) - n * (n + 1) / 4 - 0.5
    return excess > 2.326 * math.sqrt(n * (n + 1) * (2 * n + 1) / 24)


def test_less_noise_shows_smaller_changes() -> None:
    rng = np.random.default_rng(3)
    noise = rng.normal(size=MOST_BLOCKS)
    ratios = [separate_ratio((sigma * noise).tolist()) for sigma in (1e-4, 0.01, 0.1, 1.0)]
    assert ratios == sorted(ratios)
    assert ratios[0] == pytest.approx(1.05, abs=0.01)  # smaller changes have no verdict
    assert turns_ratio((0.1 * noise).tolist()) < separate_ratio((0.1 * noise).tolist())
    assert separate_ratio([0.0, 1e6] * 6) < math.inf  # a number, whatever the times were
    assert math.isnan(turns_ratio([math.nan] * 12))


def test_neighbouring_batches_are_pairs() -> None:
    assert log_pair(np.array([1.0, 2.0, 3.0, 6.0, 9.0])) == pytest.approx(math.log(2))
    assert math.isnan(log_pair(np.array([1.0])))


def test_the_text_rounds_up_and_names_the_size() -> None:
    assert [ratio_text(ratio) for ratio in (1.051, 1.11, 1.21, 2.31, 3.2, 100.0, 101.0)] == (
        ["1.06×", "1.11×", "1.3×", "2.4×", "4×", "100×", "more than 100×"]
    )
    assert str(Visibility("all_reduce", 1 << 20, 3.9, 1.28)) == (
        "changes of 4× or more at 1\u2009MiB; if measured in turns, 1.3× or more in about 1\u2009min"
    )
    assert str(Visibility("barrier", None, 1e4)) == "changes of more than 100× in barrier"


def test_few_blocks_promise_nothing() -> None:
    [step] = ml.Plan("all_reduce", "tp", sizes="1K").steps(ml.DeviceMesh("tp=2"))
    assert visibility_of(step, [0.0] * 5, [0.0] * 5) is None
    visible = visibility_of(step, [0.0, 0.1] * 3, [0.0, 0.1] * 3)
    assert visible is not None
    assert visible.ratio > visible.turns_ratio > 1


def test_a_long_run_repeats_blocks_first_and_shows_what_is_visible(
    thread_engines: ml.Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshlab.benchmark._run._ESTIMATE_S", 60.0)
    monkeypatch.setattr("meshlab.benchmark._executor._PROBED_S", 0.0)
    monkeypatch.setattr("meshlab.benchmark._executor._REPEATED_S", 30.0)
    sampling = Sampling(max_s=0.1, min_batches=16, max_batches=16)
    run = ml.bench(thread_engines, "dp=2, tp=2", axis="tp", sizes="1K, 4K", sampling=sampling)
    estimate = run.estimate
    assert estimate.visible is not None
    assert estimate.visible.size_bytes in (1024, 4096)
    assert f"; visible now: {estimate.visible}" in str(estimate)
    assert 0 < estimate.min_seconds <= estimate.seconds <= estimate.max_seconds
    run.wait(120)
    assert run.environment["Run"]["visible now"] == str(estimate.visible)
    assert str(estimate.visible) in ml.Report(run).markdown()
    assert len(run.results) == 4  # the repeated blocks are not results
