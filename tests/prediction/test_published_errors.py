"""Errors of the formula on published curves: what they teach about curves of sources that are left out."""

from __future__ import annotations

import os

import numpy as np
import pandas as pd
import pytest

import meshlab as ml
from meshlab.prediction._costs import cost
from meshlab.prediction._group_links import GroupLinks
from meshlab.prediction._published_errors import no_errors, published_errors
from meshlab.prediction._tuner import NcclSettings
from tests.prediction import published

SIZES = 1 << np.arange(3, 35)


def links_of(mesh: str, preset: str, nodes: int) -> GroupLinks:
    return GroupLinks.of(ml.place(mesh, ml.preset(preset, nodes=nodes)), "dp")[0]


@pytest.fixture(scope="module")
def left_out() -> pd.DataFrame:
    return published.left_out()


@pytest.mark.full
def test_the_file_is_that_of_the_formula() -> None:
    """After a change of the formula: python -m tests.prediction.published."""
    assert published.text() == published.FILE.read_text(encoding="utf-8")


def test_sources_that_are_left_out_are_predicted_within_the_bands(left_out: pd.DataFrame) -> None:
    by_class = left_out.groupby("size_class", sort=False)
    table = by_class.agg(
        rows=("error", "size"), formula=("formula", "median"), error=("error", "median"), inside=("is_inside", "mean")
    )
    by_source = left_out.groupby(["size_class", "source"], sort=False)["error"].median().groupby("size_class").median()
    table = table.assign(of_sources=by_source)
    print(f"\neach source left out\n{(100 * table).round(1).to_string()}")
    assert (table["inside"] >= 0.82).all()
    assert (table["error"] <= pd.Series([0.2, 0.26, 0.09], published.CLASSES)[table.index]).all()
    assert (table["of_sources"] <= pd.Series([0.21, 0.15, 0.06], published.CLASSES)[table.index]).all()


def test_no_published_run_exceeds_its_bound_by_more_than_2_percent(left_out: pd.DataFrame) -> None:
    assert left_out["of_bound"].max() <= 1.02


def test_settings_that_change_the_choices_leave_the_formula_alone() -> None:
    links = links_of("dp=16", "dgx-h100", 2)
    restricted = NcclSettings(algorithms=("ring",))
    answer = cost(links, "all_gather", SIZES, settings=restricted)
    alone = cost(links, "all_gather", SIZES, settings=restricted, evidence=no_errors())
    np.testing.assert_array_equal(answer.time_us, alone.time_us)
    assert not answer.errors.supports(0, SIZES).any()


def test_without_any_source_the_times_are_those_of_the_formula() -> None:
    links = links_of("dp=16", "aws-p5", 2)
    nothing = published_errors().without(sorted(set(published_errors().sources)))
    np.testing.assert_allclose(
        cost(links, "all_reduce", SIZES, evidence=nothing).time_us,
        cost(links, "all_reduce", SIZES, evidence=no_errors()).time_us,
    )


def test_runs_of_the_same_class_support_a_time_and_others_do_not() -> None:
    errors = cost(links_of("dp=16", "aws-p5", 2), "all_reduce", SIZES).errors
    assert errors.supports(0, SIZES).all()
    assert any("aws-samples" in source for source in errors.sources(0))
    # The same machine with 64 times the nodes, another network, and another collective have no run.
    for links, collective in (
        (links_of("dp=1024", "aws-p5", 128), "all_reduce"),
        (links_of("dp=16", "gcp-a3-high", 2), "all_reduce"),
        (links_of("dp=16", "aws-p5", 2), "broadcast"),
    ):
        other = cost(links, collective, SIZES).errors
        assert not other.supports(0, SIZES).any()
        assert other.sources(0) == ()
        assert (other.deviation > errors.deviation).all()


def test_a_disturbed_size_does_not_bend_the_times_of_small_messages() -> None:
    small = SIZES[:8]
    for preset in ("dgx-h100", "dgx-a100"):
        for collective in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
            times = cost(links_of("dp=8", preset, 1), collective, small).time_us[0]
            assert (times[1:] >= 0.99 * times[:-1]).all(), (preset, collective, times)


def test_the_spread_grows_with_the_nodes() -> None:
    widths = []
    for nodes in (8, 64, 512):
        errors = cost(links_of(f"dp={8 * nodes}", "dgx-h100", nodes), "all_reduce", SIZES).errors
        low, high = errors.band(0, SIZES)
        widths.append(high - low)
    assert (widths[0] < widths[1]).all()
    assert (widths[1] < widths[2]).all()


def test_rows_are_independent() -> None:
    table = GroupLinks.by_stride(ml.preset("dgx-h100", nodes=4)).links
    together = cost(table, "all_reduce", SIZES)
    for row in range(0, len(table), 3):
        own = cost(table.rows(slice(row, row + 1)), "all_reduce", SIZES)
        np.testing.assert_allclose(own.errors.mean[0], together.errors.mean[row], atol=1e-12)
        np.testing.assert_allclose(own.errors.deviation[0], together.errors.deviation[row], atol=1e-12)


@pytest.mark.skipif(not os.environ.get("MESHLAB_CASES"), reason="MESHLAB_CASES is not set")
def test_the_logs_of_the_cases_are_in_the_file() -> None:
    assert sum(name.startswith("log ") for name in published_errors().curves) > 10
