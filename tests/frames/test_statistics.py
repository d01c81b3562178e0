from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshlab.frames._statistics import find_modes, is_precise, median_interval, relative_trend, summarise


@given(st.lists(st.floats(0.1, 1e6), min_size=1, max_size=300))
def test_a_summary_is_ordered(values: list[float]) -> None:
    summary = summarise(values)
    assert summary["min_us"] <= summary["time_us"] <= summary["max_us"]
    assert math.isnan(summary["time_us_lo"]) == (len(values) < 6)
    assert math.isnan(summary["p95_us"]) == (len(values) < 20)
    assert math.isnan(summary["p99_us"]) == (len(values) < 100)
    if len(values) >= 6:
        names = ("min_us", "time_us_lo", "time_us", "time_us_hi", "max_us")
        assert [summary[name] for name in names] == sorted(summary[name] for name in names)


@pytest.mark.parametrize("n", [6, 20, 100])
def test_the_interval_covers_the_true_median_with_its_nominal_probability(n: int) -> None:
    # Log-normal times, as skewed as real ones; the true median is 1. Order statistics are conservative for small n.
    draws = np.random.default_rng(7).lognormal(0, 1, (2000, n))
    hits = [lo <= 1 <= hi for lo, hi in (median_interval(row) for row in draws)]
    assert 0.94 <= np.mean(hits) <= 1.0


def test_the_interval_narrows_with_more_samples() -> None:
    draws = np.random.default_rng(7).lognormal(0, 0.3, 10_000)
    assert not is_precise(draws[:10], 0.05)
    assert is_precise(draws, 0.05)
    assert not is_precise(draws[:3], 1.0)


def test_no_times_have_no_statistics() -> None:
    assert all(math.isnan(value) for value in summarise([]).values())


@pytest.mark.parametrize("n", [20, 60, 200])
@pytest.mark.parametrize("sigma", [0.02, 0.3, 1.5])
def test_a_lognormal_distribution_of_any_width_has_one_mode_and_no_trend(n: int, sigma: float) -> None:
    draws = np.random.default_rng(n).lognormal(0, sigma, (300, n))
    assert np.mean([find_modes(row) is not None for row in draws]) <= 0.01
    assert np.mean([not math.isnan(relative_trend(row)) for row in draws]) <= 0.01


def test_two_levels_are_found_and_a_few_spikes_are_not_one() -> None:
    random = np.random.default_rng(1)
    noise, chance = random.lognormal(0, 0.05, (200, 60)), random.random((200, 60))
    found = [find_modes(row) for row in noise * np.where(chance < 0.3, 1.5, 1)]
    assert np.mean([modes is not None for modes in found]) >= 0.95
    modes = next(modes for modes in found if modes is not None)
    assert modes.fast == pytest.approx(1, rel=0.05)
    assert modes.slow == pytest.approx(1.5, rel=0.05)
    assert modes.fast < modes.limit < modes.slow
    assert 0.15 < modes.slow_share < 0.45
    assert np.mean([find_modes(row) is not None for row in noise * np.where(chance < 0.03, 3, 1)]) <= 0.02
    ticks = np.where(chance[0] < 0.5, 100.0, 101.0)
    assert find_modes(ticks) is None  # a coarse clock


@pytest.mark.parametrize("change", [0.2, -0.3])
def test_a_trend_is_found_with_its_size(change: float) -> None:
    random = np.random.default_rng(2)
    draws = random.lognormal(0, 0.05, (200, 60)) * np.linspace(1, 1 + change, 60)
    found = np.array([relative_trend(row) for row in draws])
    assert np.isfinite(found).mean() >= 0.95
    assert np.nanmedian(found) == pytest.approx(change, abs=0.03)
    assert np.isfinite([relative_trend(random.permutation(row)) for row in draws]).mean() <= 0.02


def test_a_few_times_have_no_shape() -> None:
    assert find_modes(np.array([1.0, 9.0] * 9)) is None
    assert math.isnan(relative_trend(np.arange(1.0, 20.0)))


def test_a_few_spikes_among_many_times_are_not_a_level() -> None:
    random = np.random.default_rng(3)
    times = random.lognormal(0, 0.05, (300, 200)) * np.where(random.random((300, 200)) < 0.03, 3, 1)
    assert np.mean([find_modes(row) is not None for row in times]) <= 0.01
