from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshlab.analysis._launches import LaunchTimes, ratio_of, student_p, student_quantile


@pytest.mark.parametrize(
    ("freedom", "quantile"), [(1, 12.706), (2, 4.3027), (4, 2.7764), (10, 2.2281), (30, 2.0423), (math.inf, 1.95996)]
)
def test_quantiles_are_those_of_the_tables(freedom, quantile):
    assert student_quantile(0.95, freedom) == pytest.approx(quantile, rel=5e-3)
    assert student_p(quantile, freedom) == pytest.approx(0.05, rel=5e-3)
    assert student_p(-quantile, freedom) == student_p(quantile, freedom)


def test_one_launch_of_each_has_a_ratio_and_no_interval():
    found = ratio_of(LaunchTimes(np.log([10.0]), 0.01), LaunchTimes(np.log([12.0]), 0.01))
    assert found.value == pytest.approx(1.2)
    assert all(math.isnan(number) for number in (found.low, found.high, found.p, found.detectable))


def test_the_interval_of_three_launches_is_that_of_the_two_sample_t_test():
    # Two samples with a standard deviation of 0.1 each, a difference of 0.3, and 4 degrees of freedom.
    first, second = (LaunchTimes(np.array([-0.1, 0.0, 0.1]) + level) for level in (1.0, 1.3))
    found = ratio_of(first, second)
    error = 0.1 * math.sqrt(2 / 3)
    assert found.value == pytest.approx(math.exp(0.3))
    assert (math.log(found.low), math.log(found.high)) == pytest.approx(
        (0.3 - 2.7764 * error, 0.3 + 2.7764 * error), rel=5e-3
    )
    assert found.p == pytest.approx(0.0213, rel=0.02)


times = st.lists(st.floats(1e-1, 1e6), min_size=1, max_size=5)


@given(times, times, st.floats(0.1, 10))
def test_both_directions_agree_and_units_do_not_matter(first, second, unit):
    one, other = (LaunchTimes(np.log(values)) for values in (first, second))
    there, back = ratio_of(one, other), ratio_of(other, one)
    assert there.value == pytest.approx(1 / back.value)
    scaled = ratio_of(LaunchTimes(one.log_times + math.log(unit)), LaunchTimes(other.log_times + math.log(unit)))
    assert scaled.value == pytest.approx(there.value)
    if len(first) + len(second) > 2:
        assert (there.low, there.p) == pytest.approx((1 / back.high, back.p))
        assert there.low <= there.value <= there.high
        assert there.detectable >= 1


def test_the_noise_of_the_batches_is_the_least_spread():
    same = np.zeros(3)
    assert (
        ratio_of(LaunchTimes(same, 0.2), LaunchTimes(same)).high
        > 1.5
        > ratio_of(LaunchTimes(same), LaunchTimes(same)).high
    )
