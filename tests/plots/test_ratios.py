from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from matplotlib.text import Text

import meshlab as ml
from meshlab.analysis._comparison import Comparison, compare
from meshlab.analysis._sides import Difference
from meshlab.base._errors import BenchError
from meshlab.base._units import THIN
from meshlab.frames._schema import RESULTS, conform

SIZES = [2**power for power in range(10, 20)]


def row(size=1024, ratio=1.0, verdict="SAME", reach=1.02, **columns):
    """Return a row of a comparison, with an interval from ratio / reach to ratio * reach."""
    known = {"collective": "all_reduce", "axis": "tp", "group": "tp_0", "size_bytes": size, "ratio": ratio}
    known |= {"ratio_lo": ratio / reach, "ratio_hi": ratio * reach, "verdict": verdict, "note": "", "basis": "samples"}
    return known | {"before_us": 10.0, "after_us": 10.0 * ratio, "p": 1.0} | columns


def comparison(rows, **fields):
    known = {"differences": (), "only_before": 0, "only_after": 0, "effect": 0.05, "before": "a", "after": "b"}
    return Comparison(pd.DataFrame(rows), **known | fields)


MIXED = [
    *(row(size) for size in SIZES[:6]),
    row(SIZES[6], 1.5, "SLOWER", 1.1),
    row(SIZES[7], 0.6, "FASTER", 1.1),
    row(SIZES[8], 1.2, "UNCLEAR", 1.5),
    row(SIZES[9], np.nan, "WRONG", note="results are wrong after"),
]


@pytest.fixture
def ax():
    return Figure(figsize=(8, 6)).subplots()


def markers(ax, shape):
    """Return the positions of all markers of a shape as rows of x and y, from the top down."""
    points = [line.get_xydata() for line in ax.lines if line.get_marker() == shape and len(line.get_xydata())]
    points = np.concatenate(points) if points else np.empty((0, 2))
    return points[points[:, 1].argsort(kind="stable")]


def intervals(ax):
    """Return the bars, which are the only horizontal segments that are not as wide as the panel."""
    segments = [segment for lines in ax.collections for segment in lines.get_segments()]
    return sorted(segments, key=lambda segment: segment[0, 1])


def words(ax):
    return [text.get_text() for text in ax.texts]


def texts_outside(figure):
    """Return the visible texts that are not completely inside the figure."""
    figure.draw_without_rendering()
    page, found = figure.bbox.padded(1), []
    for text in figure.findobj(Text):
        box = Text.get_window_extent(text)
        if (
            text.get_text()
            and text.get_visible()
            and not (page.contains(box.x0, box.y0) and page.contains(box.x1, box.y1))
        ):
            found.append(text.get_text())
    return found


def test_verdicts_differ_in_shape_as_well_as_in_colour(ax):
    assert ml.plot.comparison(comparison(MIXED), ax=ax) is ax
    shapes = {
        line.get_label(): (line.get_marker(), line.get_markerfacecolor() == "none")
        for line in ax.lines
        if line.get_label()[0] not in "_"
    }
    assert len(set(shapes.values())) == len(shapes) == 5
    assert shapes["slower"] == ("^", False)
    assert shapes["unclear"] == ("o", True)
    names = [text.get_text() for text in ax.get_legend().get_texts()]
    assert names == ["WRONG", "slower", "faster", "unclear", "the same", "within 5 %: too small to matter"]


def test_each_size_is_a_row_with_its_ratio_and_its_interval_and_the_smallest_is_at_the_top(ax):
    rows = [row(size, ratio, reach=1.1) for size, ratio in zip(SIZES, np.geomspace(0.8, 1.3, 10), strict=True)]
    ml.plot.comparison(comparison(rows), ax=ax)
    points = markers(ax, "o")
    assert points[:, 0] == pytest.approx(np.geomspace(0.8, 1.3, 10))
    assert points[:, 1].tolist() == list(range(10))
    assert [segment[:, 0].tolist() for segment in intervals(ax)] == [
        pytest.approx([each["ratio_lo"], each["ratio_hi"]]) for each in rows
    ]
    bottom, top = ax.get_ylim()
    assert bottom > top
    labels = [label.get_text() for label in ax.get_yticklabels()]
    assert (labels[0], labels[-1]) == (f"1{THIN}KiB", f"512{THIN}KiB")
    assert ax.get_xscale() == "log"
    assert {"1×", "1.1×"} <= {label.get_text() for label in ax.get_xticklabels()}


def test_a_huge_interval_and_a_huge_ratio_are_clipped_with_arrows(ax):
    rows = [row(size) for size in SIZES[:7]]
    rows += [row(SIZES[7], 143.0, "SLOWER", 1.7), row(SIZES[8], 1.0, "UNCLEAR", 90.0), row(SIZES[9], 0.001, "FASTER")]
    ml.plot.comparison(comparison(rows), ax=ax)
    low, high = ax.get_xlim()
    assert 0.2 < low < 1 < high < 5
    assert markers(ax, ">")[:, 1].tolist() == [7, 8]
    assert markers(ax, "<")[:, 1].tolist() == [8, 9]
    assert words(ax)[:2] == ["143×", "0.001×"]
    for segment in intervals(ax):
        assert low <= segment[:, 0].min()
        assert segment[:, 0].max() <= high
    assert low < markers(ax, "^")[0, 0] < high


def test_nothing_is_clipped_if_all_ratios_are_large(ax):
    ml.plot.comparison(comparison([row(size, 12.0, "SLOWER", 1.2) for size in SIZES]), ax=ax)
    assert ax.get_xlim()[1] > 12 * 1.2
    assert not len(markers(ax, ">"))


def test_a_wrong_result_is_marked_at_its_size_without_a_ratio(ax):
    ml.plot.comparison(comparison(MIXED), ax=ax)
    ((x, y),) = markers(ax, "x")
    assert y == 9
    assert x > 1
    assert "wrong" in words(ax)


def test_the_title_counts_all_verdicts_and_names_the_common_reason(ax):
    ml.plot.comparison(comparison(MIXED), ax=ax)
    assert ax.get_title(loc="left") == "1 WRONG, 1 slower, 1 faster, 1 unclear, 6 the same\na → b"
    other = Figure(figsize=(8, 6)).subplots()
    ml.plot.comparison(comparison([row(size, verdict="UNCLEAR", note="one launch") for size in SIZES]), ax=other)
    assert other.get_title(loc="left").startswith("10 unclear (one launch)")


def test_rows_without_a_ratio_are_counted_in_a_note(ax):
    missing = row(SIZES[0], np.nan, "UNCLEAR", note="no time after")
    ml.plot.comparison(comparison([missing, *MIXED[1:]]), ax=ax)
    assert "1 row without a ratio omitted" in words(ax)


def test_a_note_names_ranks_that_share_cores(ax):
    ml.plot.comparison(comparison(MIXED, oversubscribed="4 ranks share 2 cores"), ax=ax)
    assert "4 ranks share 2 cores, so times also depend on the scheduler" in words(ax)


def test_the_title_names_differences_that_were_ignored(ax):
    ranks = Difference("ranks", "8", "16", blocks=True)
    ml.plot.comparison(comparison(MIXED, differences=(ranks,)), ax=ax)
    assert "ranks: 8 → 16" in ax.get_title(loc="left")


def test_each_collective_and_axis_has_a_panel_with_the_same_scales(ax):
    rows = [
        row(size, collective=collective, axis=axis, group=f"{axis}_0")
        for collective in ("all_reduce", "broadcast")
        for axis in ("dp", "tp")
        for size in SIZES
    ]
    ml.plot.comparison(comparison(rows), ax=ax)
    panels = ax.child_axes
    headings = ["all_reduce dp", "all_reduce tp", "broadcast dp", "broadcast tp"]
    assert [words(panel)[0] for panel in panels] == headings
    assert len({panel.get_xlim() for panel in panels}) == len({panel.get_ylim() for panel in panels}) == 1
    assert all(len(markers(panel, "o")) == 10 for panel in panels)


def test_the_groups_of_an_axis_are_next_to_each_other_in_the_same_order_at_each_size(ax):
    rows = [row(size, 1 + 0.1 * index, group=f"tp_{index}") for size in SIZES for index in range(3)]
    ml.plot.comparison(comparison(rows), ax=ax)
    points = markers(ax, "o")
    assert points[:, 0] == pytest.approx([1.0, 1.1, 1.2] * 10)
    assert np.round(points[:, 1]).tolist() == [index for index in range(10) for _ in range(3)]
    assert np.diff(points[:, 1]).min() > 0.2
    assert "from the top: tp_0, tp_1, tp_2" in words(ax)


def test_of_hundreds_of_rows_the_largest_changes_are_drawn_and_the_figure_says_so():
    rows = [row(1024 * size, group=f"tp_{group}") for size in range(1, 101) for group in range(16)]
    for index in (3, 500, 1599):
        rows[index] |= {"ratio": 2.0, "ratio_lo": 1.9, "ratio_hi": 2.1, "verdict": "SLOWER"}
    ax = ml.plot.comparison(comparison(rows))
    assert len(markers(ax, "^")) == 3
    assert len(markers(ax, "o")) == 48 * 6 - 3
    assert "48 of 100 sizes are drawn: the largest changes" in words(ax)
    assert "6 of 16 groups at each size: the largest changes" in words(ax)
    assert ax.get_title(loc="left").startswith("3 slower, 1597 the same")
    assert ax.figure.get_size_inches()[1] < 16
    assert texts_outside(ax.figure) == []
    plt.close(ax.figure)


def test_only_the_panels_with_the_largest_changes_are_drawn_if_there_are_many():
    rows = [row(size, collective=f"collective_{index}") for size in SIZES for index in range(20)]
    rows[17] |= {"verdict": "FASTER", "ratio": 0.5}
    ax = ml.plot.comparison(comparison(rows))
    assert len(ax.child_axes) == 12
    assert words(ax.child_axes[0])[-1] == "collective_17"
    assert "12 of 20 panels are drawn: the largest changes" in words(ax)
    plt.close(ax.figure)


@pytest.mark.parametrize("figsize", [(8, 6), (5, 5)])
@pytest.mark.parametrize("n_collectives", [1, 4])
def test_no_text_is_clipped(figsize, n_collectives):
    rows = [each | {"collective": f"collective_{index}"} for each in MIXED for index in range(n_collectives)]
    figure = Figure(figsize)
    ml.plot.comparison(comparison(rows, before="runs/before" * 5, after="runs/after" * 5), ax=figure.subplots())
    assert texts_outside(figure) == []


def test_functions_without_a_size_have_a_row(ax):
    ml.plot.comparison(comparison([row(None, 1.3, "SLOWER", collective="step"), row(1024, collective="step")]), ax=ax)
    assert [label.get_text() for label in ax.get_yticklabels()] == [f"1{THIN}KiB", "no size"]
    assert markers(ax, "^")[:, 1].tolist() == [1]


def test_single_values_and_a_single_size_can_be_drawn(ax):
    ml.plot.comparison(comparison([row(ratio_lo=np.nan, ratio_hi=np.nan, basis="single")]), ax=ax)
    ax.get_figure().draw_without_rendering()
    assert not intervals(ax)


def test_nothing_to_draw_is_an_error(ax):
    rows = [row(size, np.nan, "WRONG", note="results are wrong after") for size in SIZES]
    with pytest.raises(BenchError, match=r"nothing to draw: no row has a ratio \(results are wrong after\)"):
        ml.plot.comparison(comparison(rows), ax=ax)


def results(factor=1.0):
    columns = {"collective": "all_reduce", "n_ranks": 8, "size_bytes": SIZES, "time_us": 10.0 * factor}
    frame = pd.DataFrame(columns | {"time_us_lo": 9.9 * factor, "time_us_hi": 10.1 * factor})
    return conform(frame, RESULTS)


@pytest.mark.parametrize("source", [results(), 3, "run/"], ids=["frame", "number", "path"])
def test_other_values_are_rejected_with_a_fix(ax, source):
    with pytest.raises(BenchError, match=rf"must be a Comparison, not {type(source).__name__}; pass ml\.compare\("):
        ml.plot.comparison(source, ax=ax)


def test_a_comparison_of_results_plots_itself(ax):
    assert compare(results(), results(2.0)).plot(ax=ax) is ax
    assert sum(len(markers(ax, shape)) for shape in "^o") == 10


def test_without_axes_a_new_figure_is_created():
    mpl.use("agg")
    ax = ml.plot.comparison(comparison(MIXED))
    assert ax.get_figure() in map(plt.figure, plt.get_fignums())
    assert texts_outside(ax.figure) == []
    plt.close(ax.get_figure())
