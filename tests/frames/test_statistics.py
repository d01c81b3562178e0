from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshlab.frames.statistics import is_precise, median_interval, summarise


@given(st.lists(st.floats(0.1, 1e6), min_size=1, max_size=300))
def test_a_summary_is_ordered(values: list[float]) -> None:
    summary = summarise(values)
    assert summary.n == len(values)
    assert summary.min <= summary.median <= summary.max
    assert math.isnan(summary.lo) == (len(values) < 6)
    assert math.isnan(summary.p95) == (len(values) < 20)
    assert math.isnan(summary.p99) == (len(values) < 100)
    if len(values) >= 6:
        assert summary.min <= summary.lo <= summary.median <= summary.hi <= summary.max


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
    summary = summarise([])
    assert summary.n == 0
    assert math.isnan(summary.median)
