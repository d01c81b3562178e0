from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import pytest

import meshlab as ml
from meshlab.base._errors import BenchError
from tests.plots.test_layout import edges


@pytest.fixture(autouse=True)
def _closed_figures() -> Any:
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def trace() -> ml.Trace:
    return ml.Trace.example()


def test_bars_are_the_times_of_the_table(trace: ml.Trace) -> None:
    ax = trace.plot()
    table = trace.by_axis(steps=False)
    widths = [bar.get_width() for bar in ax.patches]  # type: ignore[attr-defined]
    expected = table[["exposed_us", "hidden_us", "wait_us"]].to_numpy().ravel().tolist()
    assert widths == pytest.approx(expected)
    assert [text.get_text() for text in ax.get_legend().get_texts()] == [  # type: ignore[union-attr]
        "exposed",
        "hidden by computation",
        "waiting for other ranks",
    ]


def test_a_timeline_has_a_lane_per_axis_and_rank_and_zooms(trace: ml.Trace) -> None:
    whole = ml.plot.timeline(trace, step=0)
    assert [label.get_text() for label in whole.get_yticklabels()] == [
        *("dp  rank 0", "rank 1", "rank 2", "rank 3"),
        *("tp  rank 0", "rank 1", "rank 2", "rank 3"),
    ]
    part = ml.plot.timeline(trace, step=0, window=(0.0, 500.0))
    assert part.get_xlim() == (0.0, 500.0)
    with pytest.raises(BenchError, match="the trace has no step 7; it has 0, 1"):
        ml.plot.timeline(trace, step=7)
    with pytest.raises(BenchError, match="window must be two increasing times"):
        ml.plot.timeline(trace, window=(5.0, 1.0))
    with pytest.raises(BenchError, match="no call is within the window"):
        ml.plot.timeline(trace, window=(1e9, 2e9))


def test_late_ranks_are_marked(trace: ml.Trace) -> None:
    ax = trace.plot("lateness")
    assert [label.get_text() for label in ax.get_yticklabels()] == ["rank 0", "rank 1", "rank 2", "▸ rank 3"]


def test_calls_below_the_curve_are_ringed(trace: ml.Trace) -> None:
    prediction = ml.predict("dp=2, tp=2", "dgx-h100")
    ax = trace.plot("curve", machine=prediction)
    names = [text.get_text() for text in ax.get_legend().get_texts()]  # type: ignore[union-attr]
    assert "all_reduce · tp, 2 ranks" in names
    with pytest.raises(BenchError, match="the calls on a curve need the machine's times; pass machine="):
        trace.plot("curve")


@pytest.mark.parametrize("kind", ["axes", "timeline", "lateness"])
def test_figures_are_not_clipped(trace: ml.Trace, kind: str) -> None:
    assert edges(trace.plot(kind).get_figure(root=True), 100) == []  # type: ignore[arg-type]


def test_notebooks_show_sentences_a_figure_and_a_table(trace: ml.Trace) -> None:
    html = trace._repr_html_()
    assert "<svg" in html
    assert "rank 3 is late in 8 of 8" in html
    with pytest.raises(BenchError, match="unknown kind 'bars'; choose one of axes, timeline, curve, lateness"):
        trace.plot("bars")
    with pytest.raises(BenchError, match="trace must be a Trace, not NoneType"):
        ml.plot.axis_times(None)  # type: ignore[arg-type]
