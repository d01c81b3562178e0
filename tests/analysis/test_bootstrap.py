from __future__ import annotations

import math

import numpy as np
import pytest

from meshlab.analysis.bootstrap import Interval, block_length, estimate, log_ratio, student_p, student_quantile


def autoregressive(rng, n, memory):
    """Return a series around 100 with correlated neighbours (AR(1) with the coefficient `memory`)."""
    noise = rng.normal(size=n)
    for index in range(1, n):
        noise[index] += memory * noise[index - 1]
    return 100 + 3 * noise


@pytest.mark.parametrize(
    ("freedom", "quantile"), [(1, 12.706), (2, 4.3027), (4, 2.7764), (10, 2.2281), (30, 2.0423), (math.inf, 1.95996)]
)
def test_quantiles_are_those_of_the_tables(freedom, quantile):
    assert student_quantile(0.95, freedom) == pytest.approx(quantile, rel=5e-3)
    assert student_p(quantile, freedom) == pytest.approx(0.05, rel=5e-3)
    assert student_p(-quantile, freedom) == student_p(quantile, freedom)


def test_blocks_are_longer_if_the_series_is_correlated():
    rng = np.random.default_rng(1)
    independent, sticky = autoregressive(rng, 800, 0.0), autoregressive(rng, 800, 0.9)
    assert block_length(independent) < 15
    assert block_length(sticky) > 2 * block_length(independent)
    assert block_length(np.full(50, 7.0)) >= 1
    assert block_length(np.array([1.0])) == 1


@pytest.mark.parametrize("memory", [0.0, 0.6, 0.85])
def test_the_error_is_the_spread_of_medians_of_new_runs(memory):
    rng = np.random.default_rng(2)
    truth = np.std([np.log(np.median(autoregressive(rng, 400, memory))) for _ in range(400)])
    errors = [estimate([autoregressive(rng, 400, memory)], rng).error for _ in range(12)]
    assert 0.7 * truth < np.median(errors) < 1.5 * truth


def test_the_variation_between_launches_exceeds_that_of_batches():
    rng = np.random.default_rng(3)
    launches = [level * rng.normal(100, 1, size=300) for level in (0.9, 1.0, 1.1)]
    both, one = estimate(launches, rng), estimate(launches[:1], rng)
    assert (both.launches, both.freedom) == (3, 2)
    assert both.error > 10 * one.error
    assert both.error == pytest.approx(0.1 / math.sqrt(3), rel=0.25)


def test_a_ratio_without_an_error_on_one_side_has_no_interval():
    known, unknown = Interval(0.0, 0.01, math.inf, 5, "intervals", 1), Interval(0.1, math.nan, math.inf, 1, "single", 1)
    value, low, high, p = log_ratio(known, unknown, 0.95)
    assert value == pytest.approx(0.1)
    assert all(math.isnan(number) for number in (low, high, p))


def test_a_ratio_from_few_launches_has_a_wide_interval():
    few, many = (Interval(0.0, 0.01, freedom, 5, "repeats", 3) for freedom in (2, math.inf))
    narrow, wide = log_ratio(many, many, 0.95), log_ratio(few, few, 0.95)
    assert narrow[2] == pytest.approx(1.96 * 0.01 * math.sqrt(2), rel=1e-2)
    assert wide[2] > 1.3 * narrow[2]
