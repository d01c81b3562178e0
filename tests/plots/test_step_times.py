"""The figure of a search: bars that add up, brackets around ties, and dropped layouts with their fixes."""

from __future__ import annotations

from typing import Any

import pytest
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

import meshlab as ml
from meshlab.base._errors import BenchError
from meshlab.plots._step_times import step_times
from meshlab.prediction._search import Layouts
from meshlab.prediction._step_parts import COMPONENTS


@pytest.fixture(scope="module")
def dense() -> Layouts:
    return ml.search(ml.preset("dgx-h100", nodes=16), "llama3-70b")


@pytest.fixture(scope="module")
def mixture() -> Layouts:
    return ml.search(ml.preset("dgx-h100", nodes=8), "mixtral-8x7b")


@pytest.fixture(scope="module")
def slow_network() -> Layouts:
    """Most of the time is communication, because tp leaves hosts without NVLink."""
    return ml.search(ml.preset("pcie-l40s", nodes=4), ml.Job.preset("llama3-8b", recompute="full"), tp=[16, 32])


def bars(ax: Axes, gid: str) -> list[Any]:
    return [patch for patch in ax.patches if patch.get_gid() == gid]


def test_bars_are_the_parts_of_a_step_and_a_line_is_its_range(dense: Layouts) -> None:
    ax = step_times(dense, most=6, ax=Figure((8, 6)).add_subplot())
    frame = dense.frame(6)
    for column in ("compute_s", "bubble_s", *(f"{name}_s_lo" for name in COMPONENTS)):
        assert [bar.get_width() for bar in bars(ax, column)] == pytest.approx(frame[column].tolist())
    for row in range(6):
        solid = [
            bar for bar in ax.patches if bar.get_gid() and bar.get_gid().endswith(("_lo", "compute_s", "bubble_s"))
        ]
        edges = [bar.get_x() + bar.get_width() for bar in solid if abs(bar.get_y() + bar.get_height() / 2 - row) < 0.1]
        parts = frame["compute_s"] + frame["bubble_s"] + frame["exposed_s_lo"]
        assert max(edges) == pytest.approx(parts[row])
    hatched = [bar for bar in ax.patches if str(bar.get_gid()).endswith("_hi")]
    assert all(bar.get_hatch() for bar in hatched)
    parts = frame["compute_s"] + frame["bubble_s"] + frame["exposed_s_hi"]
    assert max(bar.get_x() + bar.get_width() for bar in hatched) == pytest.approx(parts.max(), rel=1e-3)
    marks = {gid: [line for line in ax.collections if line.get_gid() == gid] for gid in ("expected", "range")}
    middles = [float(segment[0, 0]) for segment in marks["expected"][0].get_segments()]
    assert middles == pytest.approx(frame["step_s"].tolist())
    ends = [float(segment[1, 0]) for segment in marks["range"][0].get_segments()]
    assert ends == pytest.approx(frame["step_s_hi"].tolist())


def test_the_best_layout_is_at_the_top_and_every_row_has_its_mesh(dense: Layouts) -> None:
    ax = step_times(dense, most=5, ax=Figure((8, 6)).add_subplot())
    frame = dense.frame(5)
    texts = {text.get_text(): text for text in ax.texts}
    rows = [texts[mesh].xy[1] for mesh in frame["mesh"]]
    assert rows == [0, 1, 2, 3, 4]
    bottom, top = ax.get_ylim()
    assert top < bottom
    assert ax.get_title(loc="left").replace("\n", " ").startswith(dense.verdict)


def test_experts_and_chunks_have_a_second_line(mixture: Layouts, dense: Layouts) -> None:
    ax = step_times(mixture, most=4, ax=Figure((8, 6)).add_subplot())
    shown = [text.get_text() for text in ax.texts]
    assert all(experts in shown for experts in mixture.frame(4)["experts"])
    chunks = ml.search(dense.cluster, dense.job, pp=4, interleave=4)
    ax = step_times(chunks, most=4, ax=Figure((8, 6)).add_subplot())
    assert sum(text.get_text() == "interleave=4" for text in ax.texts) == min(4, len(chunks))


def test_brackets_join_the_rows_of_a_tie(dense: Layouts) -> None:
    most = dense.n_tied + 3
    ax = step_times(dense, most=most, ax=Figure((8, 8)).add_subplot())
    brackets = [line.get_ydata() for line in ax.lines if line.get_gid() == "tie"]
    first = min(brackets, key=min)
    assert round(min(first) + 0.3) == 0
    assert round(max(first) - 0.3) == dense.n_tied - 1
    assert "tied …" in [text.get_text() for text in ax.texts], "the last group continues beyond the figure"


def test_the_beginning_of_computation_is_cut_off_only_if_it_dominates(dense: Layouts, slow_network: Layouts) -> None:
    narrow = ml.search(dense.cluster, dense.job, utilisation=(0.52, 0.53))
    ax = step_times(narrow, ax=Figure((8, 6)).add_subplot())
    assert 0 < ax.get_xlim()[0] < narrow.frame(12)["compute_s"].min()
    assert any(line.get_gid() == "cut" for line in ax.lines)
    assert "cut off" in ax.get_xlabel()
    ax = step_times(slow_network, ax=Figure((8, 6)).add_subplot())
    assert ax.get_xlim()[0] == 0
    assert not any(line.get_gid() == "cut" for line in ax.lines)
    assert ax.get_xlabel() == "seconds per step"


def test_dropped_layouts_are_counted_with_their_fix(mixture: Layouts) -> None:
    ax = step_times(mixture, ax=Figure((10, 8)).add_subplot())
    text = " ".join(text.get_text().strip() for text in ax.texts if text.get_gid() == "dropped")
    dropped = mixture.dropped()
    assert len(dropped) > 1
    for _, row in dropped.iterrows():
        assert f"{row['layouts']:,} by {row['kind']}: {row['reason']}" in text
        assert row["fix"] in text


@pytest.mark.parametrize("width", [6, 8, 10])
@pytest.mark.parametrize("which", ["dense", "mixture", "slow_network"])
def test_no_text_is_clipped_or_overlaps(which: str, width: float, request: pytest.FixtureRequest) -> None:
    layouts = request.getfixturevalue(which)
    from meshlab.plots import _step_times as step_bars

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_bars, "_WIDTH", float(width))
        ax = layouts.plot()
    figure = ax.get_figure(root=True)
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()
    outer = figure.bbox
    boxes = [
        (text.get_text(), text.get_window_extent(renderer))
        for text in figure.findobj(Text)
        if text.get_visible() and text.get_text().strip()
    ]
    for text, box in boxes:
        assert box.x0 >= outer.x0 - 1, text
        assert box.x1 <= outer.x1 + 1, text
        assert box.y0 >= outer.y0 - 1, text
        assert box.y1 <= outer.y1 + 1, text
    for i, (text, box) in enumerate(boxes):
        for other, second in boxes[i + 1 :]:
            apart = box.x1 <= second.x0 + 1 or second.x1 <= box.x0 + 1
            apart |= box.y1 <= second.y0 + 2.5 or second.y1 <= box.y0 + 2.5
            assert apart, f"{text!r} overlaps {other!r}"
    plt.close(figure)


def test_other_values_are_rejected_with_a_fix(dense: Layouts) -> None:
    wrong: Any = dense.frame()
    with pytest.raises(BenchError, match=r"layouts must be a Layouts, not DataFrame; pass ml\.search"):
        step_times(wrong)
    with pytest.raises(BenchError, match=r"most must be a positive integer, not 0"):
        dense.plot(most=0)


def test_parts_differ_without_colour(dense: Layouts) -> None:
    """In black-and-white print, hatching distinguishes the two ends, and edges separate neighbouring parts."""
    ax = step_times(dense, ax=Figure((8, 6)).add_subplot())
    solid = [bar for bar in ax.patches if str(bar.get_gid()).endswith("_lo")]
    assert all(bar.get_edgecolor() == ax.get_facecolor() != bar.get_facecolor() for bar in solid)
    assert all(bar.get_linewidth() > 0 for bar in solid)
