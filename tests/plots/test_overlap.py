"""The figure of an overlap measurement: its bars, its words, and that no text leaves the figure."""

from __future__ import annotations

import matplotlib.style
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

import meshlab as ml
from meshlab.base._errors import BenchError

OPTIONS = {"default": 1.0, "symmetric window": 0.4, "symmetric window, CTA policy zero": 1.3, "≤ 8 CTAs": 0.3}


def frame(n_options: int = 4, sizes: tuple[int, ...] = (1 << 24, 1 << 27)) -> pd.DataFrame:
    options = list(OPTIONS.items())[:n_options]
    options += [(f"≤ {number} CTAs", 0.5 + 0.01 * number) for number in range(4, n_options)]
    rows = []
    for size in sizes:
        for option, factor in options:
            exposed = factor * size / 1e5
            both, default = 1500 + exposed, 1500 + size / 1e5
            rows.append((size, option, both, exposed, 0.95 * exposed, 1.05 * exposed, size / 3e5, 1 - both / default))
    names = ["size_bytes", "option", "both_us", "exposed_us", "exposed_us_lo", "exposed_us_hi", "communication_us"]
    table = pd.DataFrame(rows, columns=[*names, "gain"])
    table = table.assign(collective="all_reduce", m=8192, n=8192, k=8192, dtype="float16", gain_lo=table["gain"])
    table.attrs |= {"where": "2 × H200 · NCCL 2.32.3", "verdict": "another option is faster in 2 of 2 cases"}
    return table


def test_a_bar_per_option_in_the_order_of_the_pair() -> None:
    ax = ml.plot.overlap(frame(), ax=Figure((7, 5)).add_subplot())
    labels = [label.get_text() for label in ax.get_yticklabels()]
    assert labels[:5] == ["all_reduce, 16\u2009MiB", "≤ 8 CTAs", "symmetric window", "default", list(OPTIONS)[2]]
    values = [text.get_text() for text in ax.findobj(Text) if text.get_gid() == "value"]
    assert values[0].endswith("\u2009% less")
    assert "both" not in next(text.get_text() for text in ax.texts if text.get_text() == "168\u2009µs")
    assert {text.get_text() for text in ax.get_legend().get_texts()} >= {"fastest pair, clearly", "the call alone"}


def test_few_rounds_have_no_interval() -> None:
    rows = frame().assign(exposed_us_lo=float("nan"), exposed_us_hi=float("nan"))
    ax = ml.plot.overlap(rows, ax=Figure((7, 5)).add_subplot())
    assert not ax.findobj(lambda artist: artist.get_gid() == "interval")
    longest = rows["exposed_us"].max()
    assert ax.get_xlim()[1] >= longest / 1e3  # in ms


def test_an_option_without_a_measured_default_has_no_gain() -> None:
    rows = frame().assign(gain=float("nan"), gain_lo=float("nan"))
    ax = ml.plot.overlap(rows[rows["option"] != "default"], ax=Figure((7, 5)).add_subplot())
    values = [text.get_text() for text in ax.findobj(Text) if text.get_gid() == "value"]
    assert values
    assert not any("both" in text for text in values)


def test_a_long_verdict_stays_in_the_figure_of_the_caller() -> None:
    figure = Figure((6, 5))
    FigureCanvasAgg(figure)
    rows = frame()
    rows.attrs["verdict"] = "the product takes 1.25 times as long " * 6
    ax = ml.plot.overlap(rows, ax=figure.add_axes((0.4, 0.1, 0.55, 0.6)))
    assert ax.get_tightbbox().x1 <= figure.bbox.x1  # type: ignore[union-attr]


def test_of_many_options_the_fastest_and_the_default_are_drawn() -> None:
    ax = ml.plot.overlap(frame(30, (1 << 24,)), ax=Figure((7, 5)).add_subplot())
    labels = [label.get_text() for label in ax.get_yticklabels()]
    assert len(labels) == 10
    assert "default" in labels


@pytest.mark.parametrize(("style", "width"), [("default", 5.75), ("dark_background", 8.0)])
def test_no_text_leaves_the_figure(style: str, width: float) -> None:
    with matplotlib.style.context(style):
        figure = Figure((width, 6))
        ml.plot.overlap(frame(), ax=figure.add_axes((0.1, 0.1, 0.8, 0.8)))
        FigureCanvasAgg(figure).draw()
        whole = figure.bbox.padded(1)
        for text in figure.findobj(Text):
            if text.get_text() and text.get_visible():
                box = text.get_window_extent()
                assert whole.x0 <= box.x0 <= box.x1 <= whole.x1, text.get_text()
                assert whole.y0 <= box.y0 <= box.y1 <= whole.y1, text.get_text()


def test_a_frame_of_something_else_is_rejected() -> None:
    with pytest.raises(
        BenchError, match=r"the frame lacks the columns collective, .*; pass the result of benchmark.overlap\(\)"
    ):
        ml.plot.overlap(pd.DataFrame({"size_bytes": [1]}))
    with pytest.raises(BenchError, match="the frame has no measured rows"):
        ml.plot.overlap(frame().assign(both_us=float("nan")))
