"""Which rank comes late, as a strip and as a heat map."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import meshlab as ml
from meshlab.errors import BenchError


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


def test_every_batch_that_counts_is_a_dot(late: Any, ax: Axes) -> None:
    ml.plot.stragglers(*late, ax=ax)
    (dots,) = ax.get_lines()
    assert len(dots.get_xdata()) == 4 * 35
    assert "grey: below the floor of" in ax.get_xlabel()


def test_without_aligned_starts_the_title_warns(unaligned: Any, ax: Axes) -> None:
    ml.plot.stragglers(*unaligned, ax=ax)
    assert ax.get_title(loc="left").startswith("Starts are not aligned: a rank that comes late takes less time")
    assert "floor" not in ax.get_xlabel()


def test_the_heat_map_has_ranks_batches_warmup_and_spikes(unaligned: Any, ax: Axes) -> None:
    ml.plot.batches(*unaligned, ax=ax)
    assert ax.get_images()[0].get_array().shape == (4, 40)
    assert ax.get_xlabel() == "batch (5 for warm-up, ▼ 2 spikes)"
    spikes = next(line for line in ax.get_lines() if line.get_marker() == "v")
    assert spikes.get_xdata().tolist() == [10, 30]


def test_hundreds_of_ranks_name_only_some_and_the_late_one_always(make_samples: Any, ax: Axes) -> None:
    starts = np.random.default_rng(5).uniform(0, 2, (200, 12))
    starts[77] += 300
    ml.plot.batches(*make_samples(starts=starts, times=310 - starts), ax=ax)
    assert len(names(ax)) < 40
    assert "▸ rank 77" in names(ax)


def test_samples_that_are_not_there_are_told(late: Any, ax: Axes) -> None:
    with pytest.raises(BenchError, match="there are no samples of step 7, group None, launch 0"):
        ml.plot.stragglers(*late, step=7, ax=ax)
