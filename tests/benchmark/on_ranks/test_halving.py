"""Successive halving, on times that the tests make up."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from meshlab.benchmark.on_ranks._halving import halve


@settings(deadline=None)
@given(
    n=st.integers(2, 40),
    seed=st.integers(0, 10_000),
    rounds=st.integers(1, 10),
    fewest=st.integers(1, 5),
)
def test_the_fastest_option_is_never_dropped_if_the_noise_is_below_the_gap(
    n: int, seed: int, rounds: int, fewest: int
) -> None:
    # Times are whole numbers, so two options differ by at least 1, and the noise of each by less than half of that. The
    # noise also moves the default, to which the times of a round are compared, but for all options alike.
    random = np.random.default_rng(seed)
    times = random.choice(np.arange(20, 400), n, replace=False)

    def measure(order: Sequence[int]) -> list[float]:
        return [times[option] + random.uniform(-0.49, 0.49) for option in order]

    found = halve(n, measure, rounds=rounds, fewest=fewest)
    assert int(np.argmin(times)) in found.left
    assert 0 in found.left
    assert all(len(found.times[option]) == rounds for option in found.left)
    assert all(found.times)


def test_half_of_the_options_are_dropped_until_a_few_are_left() -> None:
    orders: list[list[int]] = []

    def measure(order: Sequence[int]) -> list[float]:
        orders.append(list(order))
        return [float(option + 1) for option in order]

    found = halve(33, measure, rounds=6)
    assert [len(order) - 1 for order in orders] == [32, 16, 8, 4, 4, 4]  # besides the default
    assert orders[3] == [4, 3, 2, 1, 0]
    assert orders[4] == [0, 1, 2, 3, 4]
    assert found.left == [0, 1, 2, 3, 4]


def test_of_options_that_are_tied_the_simplest_and_the_fastest_stay() -> None:
    times = [9.0, *(4.0 + 0.01 * (option % 7) for option in range(1, 20)), 3.99]
    found = halve(21, lambda order: [times[option] for option in order], rounds=5)
    assert found.left == [0, 1, 2, 3, 20]


def test_the_default_takes_part_in_every_round_even_if_it_is_the_slowest() -> None:
    found = halve(20, lambda order: [100.0 if option == 0 else option for option in order], rounds=5)
    assert found.left == [0, 1, 2, 3, 4]
    assert len(found.times[0]) == 5


def test_a_drift_of_the_machine_drops_nobody() -> None:
    clock = iter(np.linspace(1, 3, 1000))
    # Without drift the last option is 3 % faster. The machine gets slower by about 0.2 % per measurement.
    found = halve(9, lambda order: [next(clock) * (0.97 if option == 8 else 1.0) for option in order], rounds=6)
    assert 8 in found.left


def test_rounds_end_early_if_they_may_not_go_on() -> None:
    found = halve(9, lambda order: [1.0 for _ in order], rounds=6, goes_on=lambda n_rounds: n_rounds < 2)
    assert [len(found.times[option]) for option in found.left] == [2] * len(found.left)
    assert len(found.left) == 5
