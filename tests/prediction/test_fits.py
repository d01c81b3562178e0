"""The numerics of calibrations, on times whose true form is known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshlab.prediction._fits import Floats, ModelTimes, find_outliers, fit, fit_scales, hockney, spread_of
from tests.examples import examples

SIZES = 2.0 ** np.arange(3, 33)


def model(sizes: Floats = SIZES) -> ModelTimes:
    """Three algorithms with different latency and bandwidth, as NCCL's tuner would take them."""
    kind = np.digitize(sizes, [1 << 16, 1 << 22])
    latency, gbs = np.array([6.0, 12.0, 40.0])[kind], np.array([20.0, 60.0, 200.0])[kind]
    return ModelTimes(
        sizes, latency, sizes / gbs / 1e3, tuple(("ring ll", "ring ll128", "ring simple")[k] for k in kind)
    )


def predicted(fitted, shape: ModelTimes) -> Floats:
    return np.sum(fitted.time_parts(shape), axis=0)


scale = st.floats(0.5, 2.0)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.tuples(scale, scale), min_size=3, max_size=3))
def test_scales_of_each_algorithm_are_found_and_hold_at_sizes_between(scales) -> None:
    shape = model()
    factors = dict(zip(dict.fromkeys(shape.kind), scales, strict=True))
    pairs = np.array([factors[kind] for kind in shape.kind])
    truth = shape.latency_us * pairs[:, 0] + shape.transfer_us * pairs[:, 1]
    half = np.arange(SIZES.size) % 2 == 0
    fitted = fit(shape[half], truth[half])
    inside = ~half & (SIZES[half].max() > SIZES)
    error = predicted(fitted, shape)[inside] / truth[inside] - 1
    assert np.median(np.abs(error)) < 0.02
    assert np.max(np.abs(error)) < 0.12  # next to a change of algorithm, which has few sizes


@settings(max_examples=examples(40), deadline=None)
@given(st.floats(0.2, 5.0), st.integers(0, 2**32 - 1))
def test_a_machine_that_is_slower_by_a_factor_is_predicted_slower_by_this_factor(factor: float, seed: int) -> None:
    shape = model()
    noise = np.exp(np.random.default_rng(seed).normal(0, 0.05, SIZES.size))
    once, again = (
        predicted(fit(shape, times), shape) for times in (shape.time_us * noise, factor * shape.time_us * noise)
    )
    np.testing.assert_allclose(again, factor * once, rtol=0.02)


def test_a_fit_passes_through_its_points_and_is_constant_beyond_them() -> None:
    shape = model()
    times = shape.time_us * np.exp(0.3 * np.sin(np.arange(SIZES.size)))
    inner = (SIZES >= 1 << 10) & (SIZES <= 1 << 26)
    fitted = fit(shape[inner], times[inner])
    np.testing.assert_allclose(predicted(fitted, shape)[inner], times[inner])
    known = {kind: (latency, transfer) for kind, latency, transfer in fitted.scales}
    below, last = model(np.array([8.0])), np.exp(fitted.residual[0])
    latency, transfer = known["ring ll"]
    expected = (below.latency_us * latency + below.transfer_us * transfer) * last
    np.testing.assert_allclose(predicted(fitted, below), expected)


def test_nine_of_ten_new_rows_are_inside_the_band() -> None:
    random = np.random.default_rng(7)
    shape, is_inside = model(), []
    for _ in range(60):
        truth = shape.time_us * np.exp(0.2 * np.sin(random.uniform(0, 6) + np.arange(SIZES.size) / 6))
        noise = np.exp(random.normal(0, 0.04, (2, SIZES.size)))
        half = np.arange(SIZES.size) % 2 == 0
        fitted = fit(shape[half], (truth * noise[0])[half])
        new = ~half & (SIZES[half].max() > SIZES)
        is_inside.append(np.abs(np.log(predicted(fitted, shape) / (truth * noise[1])))[new] <= fitted.half_width)
    assert 0.85 <= np.mean(is_inside) <= 0.99


def test_an_outlying_row_barely_moves_the_scales() -> None:
    shape = hockney(SIZES[:12], 10.0, 100.0)
    times = shape.time_us.copy()
    times[3] *= 2.9
    (_, latency, _) = fit(shape, times).scales[0]
    assert latency == pytest.approx(1.0, abs=0.05)


def test_few_rows_have_no_residual_and_a_wide_band() -> None:
    shape = hockney(SIZES[::6], 10.0, 100.0)
    fitted = fit(shape, shape.time_us)
    assert not any(fitted.residual)
    assert fitted.half_width >= 0.15


def test_the_band_is_at_least_as_wide_as_the_spread_of_repeats() -> None:
    shape = model()
    assert fit(shape, shape.time_us, spread=0.5).half_width == 0.5
    assert fit(shape, shape.time_us).half_width < 0.05
    assert spread_of([np.array([1.0]), np.array([4.0])]) == 0.0
    assert spread_of([np.array([1.0, 1.1])]) == pytest.approx(np.log(1.1) / 2, rel=0.1)


@settings(max_examples=examples(50), deadline=None)
@given(st.integers(0, 29), st.floats(3.6, 20.0), st.booleans())
def test_a_row_far_off_its_neighbours_is_found_and_its_neighbours_are_not(
    row: int, factor: float, is_fast: bool
) -> None:
    shape = model()
    times = shape.time_us.copy()
    times[row] *= 1 / factor if is_fast else factor
    assert np.flatnonzero(find_outliers(shape, times)).tolist() == [row]


def test_a_change_of_algorithm_is_not_an_outlier() -> None:
    shape = model()
    assert not find_outliers(shape, shape.time_us).any()
    later = np.where(SIZES > 1 << 20, 2.5, 1.0)  # a regime of the network, which lasts
    assert not find_outliers(shape, shape.time_us * later).any()


def test_scales_of_several_collectives_are_shared() -> None:
    shape = model()
    pooled = fit_scales([shape, shape], [0.8 * shape.time_us, 1.25 * shape.time_us], 0.2)
    assert pooled.half_width == 0.2
    np.testing.assert_allclose(predicted(pooled, shape), shape.time_us, rtol=0.05)


def test_another_number_of_ranks_gets_the_ratio_to_the_model_at_each_size() -> None:
    shape = model()
    ratio = np.exp(0.5 * np.cos(np.arange(SIZES.size) / 5))
    larger = ModelTimes(SIZES, 3 * shape.latency_us, shape.transfer_us, ("tree ll",) * SIZES.size)
    times = np.sum(fit(shape, ratio * shape.time_us).time_parts_elsewhere(larger), axis=0)
    np.testing.assert_allclose(times, ratio * larger.time_us)
