from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

import meshlab as ml
from meshlab.analysis.comparison import compare
from meshlab.errors import BenchError
from meshlab.frames.schema import RESULTS, conform


def results(times, in_place=(False,), reach=0.005):
    rows = [
        {
            "collective": "all_reduce",
            "in_place": placement,
            "n_ranks": 8,
            "size_bytes": size,
            "time_us": time,
            "time_us_lo": time * (1 - reach),
            "time_us_hi": time * (1 + reach),
        }
        for placement in in_place
        for size, time in times.items()
    ]
    return conform(pd.DataFrame(rows), RESULTS)


BEFORE = {2**power: 10.0 for power in range(10, 20)}
AFTER = {
    2**power: 10.0 * factor for power, factor in zip(range(10, 20), [1, 1.2, 0.7, 1.01, 3, 1, 1, 1, 1, 1], strict=True)
}


@pytest.fixture
def ax():
    return Figure(figsize=(7, 4)).subplots()


def markers(ax):
    return {container.get_label().split(":")[0]: container.lines[0].get_marker() for container in ax.containers}


def test_verdicts_differ_in_shape_as_well_as_in_colour(ax):
    wide = results(AFTER)
    wide.loc[5, ["time_us_lo", "time_us_hi"]] = [5.0, 20.0]
    assert ml.plot.comparison(compare(results(BEFORE), wide), ax=ax) is ax
    shapes = markers(ax)
    assert set(shapes) == {"slower", "faster", "unclear", "the same"}
    assert (shapes["slower"], shapes["faster"]) == ("^", "v")
    faces = {
        container.get_label().split(":")[0]: container.lines[0].get_markerfacecolor() for container in ax.containers
    }
    assert faces["unclear"] == "none" != faces["the same"]


def test_points_are_at_their_ratio_and_bars_at_their_interval(ax):
    comparison = compare(results(BEFORE), results(AFTER))
    ml.plot.comparison(comparison, ax=ax)
    points = np.concatenate([container.lines[0].get_xydata() for container in ax.containers])
    expected = comparison.rows[["size_bytes", "ratio"]].to_numpy(dtype=float)
    assert points[points[:, 0].argsort()] == pytest.approx(expected[expected[:, 0].argsort()])
    segments = np.concatenate([bar.get_segments() for container in ax.containers for bar in container.lines[2]])
    assert sorted(segments[:, 0, 1]) == pytest.approx(sorted(comparison.rows["ratio_lo"]))
    assert ax.get_ylim()[0] < comparison.rows["ratio_lo"].min()
    assert ax.get_ylim()[1] > comparison.rows["ratio_hi"].max()


def test_axis_labels_explain_sizes_and_ratios(ax):
    ml.plot.comparison(compare(results(BEFORE), results(AFTER)), ax=ax)
    assert [label.get_text() for label in ax.get_xticklabels()][:2] == ["1\u2009KiB", "2\u2009KiB"]
    assert "above 1 is slower" in ax.get_ylabel()
    ax.get_figure().draw_without_rendering()
    assert "1×" in [label.get_text() for label in ax.get_yticklabels()]
    assert ax.get_title(loc="left").startswith("2 slower, 1 faster, 7 the same")


def test_lines_of_both_placements_are_named(ax):
    both = (False, True)
    ml.plot.comparison(compare(results(BEFORE, both), results(AFTER, both)), ax=ax)
    assert {text.get_text() for text in ax.texts} == {"out of place", "in place"}


def test_the_title_names_differences_that_were_ignored(ax):
    after = results(AFTER).assign(n_ranks=16).astype({"n_ranks": "Int64"})
    ml.plot.comparison(compare(results(BEFORE), after, anyway=True), ax=ax)
    assert "ranks: 8 → 16" in ax.get_title(loc="left")


def test_single_values_and_a_single_size_can_be_drawn(ax):
    before = results({1024: 10.0}).assign(time_us_lo=np.nan)
    ml.plot.comparison(compare(before, before), ax=ax)
    ax.get_figure().draw_without_rendering()


def test_nothing_to_draw_is_an_error(ax):
    before, after = results(BEFORE), results(AFTER).assign(status="wrong").astype({"status": "string"})
    with pytest.raises(BenchError, match=r"nothing to draw: no row has a ratio \(results are wrong after\)"):
        ml.plot.comparison(compare(before, after), ax=ax)


@pytest.mark.parametrize("source", [results(BEFORE), 3, "run/"], ids=["frame", "number", "path"])
def test_other_values_are_rejected_with_a_fix(ax, source):
    with pytest.raises(BenchError, match=rf"must be a Comparison, not {type(source).__name__}; pass ml\.compare\("):
        ml.plot.comparison(source, ax=ax)


def test_a_comparison_plots_itself(ax):
    assert compare(results(BEFORE), results(AFTER)).plot(ax=ax) is ax


def test_without_axes_a_new_figure_is_created():
    mpl.use("agg")
    from matplotlib import pyplot as plt

    ax = ml.plot.comparison(compare(results(BEFORE), results(AFTER)))
    assert ax.get_figure() in map(plt.figure, plt.get_fignums())
    plt.close(ax.get_figure())
