"""Stragglers as a strip of starts and as a heat map."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import meshlab as ml
from meshlab.base._errors import BenchError


@pytest.fixture
def ax() -> Axes:
    return Figure(figsize=(7, 3), layout="constrained").subplots()


@pytest.fixture
def late(make_samples: Any) -> Any:
    random = np.random.default_rng(3)
    starts = random.uniform(0, 2, (4, 40))
    starts[2] += 500
    return make_samples(starts=starts, times=520 - starts, warmup=5)


@pytest.fixture
def unaligned(make_samples: Any) -> Any:
    times = 100 + np.random.default_rng(4).normal(0, 1, (4, 40))
    times[1, [10, 30]] = 400
    return make_samples(times=times, warmup=5)


def names(ax: Axes) -> list[str]:
    return [label.get_text() for label in ax.get_yticklabels()]


@pytest.mark.parametrize("plot", [ml.plot.stragglers, ml.plot.batches])
def test_the_late_rank_is_named_in_title_and_margin(plot: Any, late: Any, ax: Axes) -> None:
    assert plot(*late, ax=ax) is ax
    title = ax.get_title(loc="left").splitlines()
    assert title[0].startswith("Rank 2 is 499\u2009µs late, last in 100 % of the batches") or "Rank 2 is 50" in title[0]
    assert title[1].startswith("all_reduce 1\u2009KiB · tp_0 (4 ranks) · 4 ranks · MPI on this CPU")
    assert names(ax) == ["rank 0", "rank 1", "▸ rank 2", "rank 3"]
    assert ax.get_yticklabels()[2].get_fontweight() == "bold"
    ax.get_figure().draw_without_rendering()


def test_every_batch_but_warm_up_is_a_dot(late: Any, ax: Axes) -> None:
    ml.plot.stragglers(*late, ax=ax)
    (dots,) = ax.get_lines()
    assert len(dots.get_xdata()) == 4 * 35
    assert "grey: below the floor of" in ax.get_xlabel()


def test_without_aligned_starts_the_title_warns(unaligned: Any, ax: Axes) -> None:
    ml.plot.stragglers(*unaligned, ax=ax)
    title = ax.get_title(loc="left").replace("\n", " ")
    assert title.startswith("Starts are not aligned: a rank that enters late takes less time here, not more")
    assert "floor" not in ax.get_xlabel()


def test_the_heat_map_has_ranks_batches_warmup_and_spikes(unaligned: Any, ax: Axes) -> None:
    ml.plot.batches(*unaligned, ax=ax)
    assert ax.get_images()[0].get_array().shape == (4, 40)
    assert ax.get_xlabel() == "batch (5 warm-up, ▼ 2 spikes)"
    spikes = next(line for line in ax.get_lines() if line.get_marker() == "v")
    assert spikes.get_xdata().tolist() == [10, 30]


def test_hundreds_of_ranks_name_only_some_and_the_late_one_always(make_samples: Any, ax: Axes) -> None:
    starts = np.random.default_rng(5).uniform(0, 2, (200, 12))
    starts[77] += 300
    ml.plot.batches(*make_samples(starts=starts, times=310 - starts), ax=ax)
    assert len(names(ax)) < 40
    assert "▸ rank 77" in names(ax)


def test_missing_samples_are_named(late: Any, ax: Axes) -> None:
    with pytest.raises(BenchError, match="no samples of step 7, launch 0; choose values from"):
        ml.plot.stragglers(*late, step=7, ax=ax)


@pytest.fixture(scope="module")
def loaded() -> ml.Run:
    """A run with all groupings and a concurrent axis."""
    with ml.launch(4, backend="threads") as engines:
        run = ml.bench(
            engines,
            "dp=2, tp=2",
            "send_recv",
            axis="tp",
            sizes="1K",
            mode="isolated",
            grouping=["together", "alone", "pairs"],
            concurrent={"dp": "all_reduce"},
            sampling=ml.Sampling(max_s=0.02, min_batches=6),
        )
        run.wait(120)
    return run


@pytest.mark.parametrize("plot", [ml.plot.stragglers, ml.plot.batches])
def test_the_figure_is_the_same_for_a_run_its_folder_and_its_frames(plot: Any, loaded: ml.Run, tmp_path: Any) -> None:
    loaded.save(tmp_path / "run")
    titles = {
        plot(source, ax=Figure(figsize=(7, 3), layout="constrained").subplots()).get_title(loc="left")
        for source in (loaded, ml.Run.load(tmp_path / "run"), tmp_path / "run", (loaded.results, loaded.samples))
    }
    assert len(titles) == 1


def test_each_row_of_the_results_has_its_own_samples_and_its_load_in_the_title(loaded: ml.Run, ax: Axes) -> None:
    results = loaded.results
    loads = set()
    for row in results.itertuples():
        ax.clear()
        ml.plot.stragglers(loaded, step=row.step, group=row.group, ax=ax)
        (dots,) = ax.get_lines()
        used = loaded.samples.query(
            "step == @row.step and axis == @row.axis and group == @row.group and not is_warmup"
        ).dropna(subset="time_us")
        if pd.isna(row.src_rank):
            assert len(dots.get_xdata()) == len(used)
        loads.add(ax.get_title(loc="left").replace("\n", " ").partition("(2 ranks")[2].partition(")")[0])
    assert loads == {
        "",
        ", one group at a time",
        ", 0↔1",
        ", 2↔3",
        ", while dp runs all_reduce",
        ", while tp runs send_recv",
    }


@pytest.mark.parametrize("size", [(8, 4.5), (5, 3.6), (4, 3)])
@pytest.mark.parametrize("plot", [ml.plot.stragglers, ml.plot.batches])
def test_no_text_is_clipped_without_a_layout_engine(plot: Any, size: tuple[float, float], late: Any) -> None:
    figure = Figure(size)
    ax = plot(*late, ax=figure.add_subplot())
    figure.draw_without_rendering()
    bars = [text for other in figure.axes if other is not ax for text in (other.yaxis.label, *other.get_yticklabels())]
    for text in [ax._left_title, ax.xaxis.label, *ax.get_yticklabels(), *bars]:  # type: ignore[attr-defined]
        x0, y0, x1, y1 = text.get_window_extent().extents
        assert -1 <= x0 <= x1 <= figure.bbox.width + 1, text
        assert -1 <= y0 <= y1 <= figure.bbox.height + 1, text


@pytest.mark.parametrize("plot", [ml.plot.stragglers, ml.plot.batches])
def test_unsuitable_sources_are_rejected_with_a_fix(plot: Any, late: Any) -> None:
    samples, results = late
    with pytest.raises(
        BenchError, match="run has no samples, but the figure needs the times of each rank; pass the run"
    ):
        plot(results)
    with pytest.raises(BenchError, match="this is a samples frame, but results are needed; pass run"):
        plot(samples)
    with pytest.raises(BenchError, match="int has no results; pass a run or its folder"):
        plot(3)
    with pytest.raises(BenchError, match="run contains 2 runs, but the figure shows one; pass one of them"):
        plot([(results, samples), (results, samples)])


def test_a_rank_that_is_late_for_a_part_of_the_step_is_not_called_late(make_samples: Any, ax: Axes) -> None:
    random = np.random.default_rng(1)
    starts = random.normal(0, 0.5, (4, 60))
    starts[1] += np.where(np.arange(60) < 33, 400, -30)
    ml.plot.stragglers(*make_samples(starts=starts, times=starts.max(axis=0) - starts + 20), ax=ax)
    title = ax.get_title(loc="left")
    assert title.startswith("Rank 1 is 399\u2009µs late, but not consistently, last in 55 % of the batches")
    assert not any(label.get_text().startswith("▸") for label in ax.get_yticklabels())
