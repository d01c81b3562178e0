"""The figure of a rehearsal: its bars are the parts of the frame, and its text stays inside."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

import meshlab as ml
from meshlab.base._errors import BenchError

AXES = {"tp": (15e3, 1e3), "dp-cp": (5e3, 20e3)}  # exposed and hidden


def rows_of(layout: str, *, bubble: float = 0.0, predicted: float = 1.1, **changes: Any) -> list[dict[str, Any]]:
    step = 80e3 + 4e3 + sum(exposed for exposed, _ in AXES.values())
    shared = {"layout": layout, "step_us": step, "bubble": bubble}
    rows = [shared | {"part": "compute", "exposed_us": 80e3}, shared | {"part": "slowdown", "exposed_us": 4e3}]
    for axis, (exposed, hidden) in AXES.items():
        times = {"exposed_us": exposed, "hidden_us": hidden, "alone_us": 0.9 * (exposed + hidden)}
        guess = {
            "predicted_us": predicted * times["alone_us"],
            "predicted_us_lo": 0.8 * predicted * times["alone_us"],
            "predicted_us_hi": 1.3 * predicted * times["alone_us"],
        }
        rows.append(shared | {"part": "communication", "axis": axis} | times | guess)
    return [row | changes for row in rows]


def frame_of(*layouts: str, **options: Any) -> pd.DataFrame:
    frame = pd.DataFrame([row for layout in layouts for row in rows_of(layout, **options)])
    frame.attrs = {"where": "8 × H200 · NCCL", "notes": ("12 % of a step rehearsed", "matrix products")}
    return frame


def test_the_first_bar_is_the_step_and_the_others_are_its_axes() -> None:
    ax = ml.plot.rehearsal(frame_of("dp=4, tp=2"), verdict="a step takes 104 ms", ax=Figure((8, 4)).add_subplot())
    assert [label.get_text() for label in ax.get_yticklabels()] == ["dp=4, tp=2", "tp", "dp-cp"]
    bars = {round(bar.get_y() + bar.get_height() / 2): [] for bar in ax.patches}
    for bar in ax.patches:
        bars[round(bar.get_y() + bar.get_height() / 2)].append((bar.get_x(), bar.get_width()))
    assert bars[0] == [(0, 80), (80, 4), (84, 15), (99, 5)]
    assert bars[1] == [(0, 15), (15, 1)]
    assert bars[2] == [(0, 5), (5, 20)]
    assert ax.get_xlabel() == "time (ms)"
    texts = [text.get_text() for text in ax.texts if text.get_gid() == "value"]
    assert texts == [
        "104\N{THIN SPACE}ms, 23 % communication",
        "15.0\N{THIN SPACE}ms exposed, 1.00\N{THIN SPACE}ms hidden",
        "5.00\N{THIN SPACE}ms exposed, 20.0\N{THIN SPACE}ms hidden",
    ]
    assert ax.get_title(loc="left").splitlines()[0] == "a step takes 104 ms"
    # An axis has the same colour in the step as in its own bar.
    step_colors = [bar.get_facecolor() for bar in ax.patches[2:4]]
    assert step_colors == [ax.patches[4].get_facecolor(), ax.patches[6].get_facecolor()]


def legend_of(ax: Any) -> list[str]:
    return [text.get_text() for text in ax.get_legend().get_texts()]


def test_the_legend_names_what_is_drawn() -> None:
    plain = frame_of("tp=8").assign(predicted_us=np.nan)
    ax = ml.plot.rehearsal(plain, ax=Figure((8, 4)).add_subplot())
    assert legend_of(ax) == ["computation", "its slowdown", "exposed", "hidden", "on its own"]
    bubble = ml.plot.rehearsal(frame_of("pp=8", bubble=0.25), ax=Figure((8, 4)).add_subplot())
    assert set(legend_of(bubble)) - set(legend_of(ax)) == {"bubble (computed)", "predicted"}
    outlined = [bar for bar in bubble.patches if bar.get_facecolor()[3] == 0 and not bar.get_hatch()]
    assert [(bar.get_x(), bar.get_width()) for bar in outlined] == [(104, 26)]
    assert "130\N{THIN SPACE}ms" in bubble.texts[0].get_text()


def test_a_prediction_far_off_leaves_the_bars_readable() -> None:
    ax = ml.plot.rehearsal(frame_of("tp=8", predicted=1000), ax=Figure((8, 4)).add_subplot())
    assert ax.get_xlim()[1] < 1.6 * 104


@pytest.mark.parametrize("width", [600, 1000])
@pytest.mark.parametrize("style", ["default", "dark_background"])
def test_all_text_is_inside_the_figure(width: int, style: str) -> None:
    names = ("dp=4, tp=2", "dp=2, cp=2, tp=2", "pp=2, dp=2, tp=2")
    with plt.style.context(style):
        figure = Figure((width / 100, 6), dpi=100)
        ax = ml.plot.rehearsal(
            frame_of(*names, bubble=0.1), verdict="dp=4, tp=2 is the fastest " * 3, ax=figure.add_subplot()
        )
        FigureCanvasAgg(figure).draw()
        texts = [*ax.texts, *ax.get_yticklabels(), *ax.get_legend().get_texts(), ax.xaxis.label, ax._left_title]
        for text in texts:
            box = text.get_window_extent()
            assert -1 <= box.x0 <= box.x1 <= width + 1, text
            assert -1 <= box.y0 <= box.y1 <= 601, text


def test_a_new_figure_grows_with_the_layouts() -> None:
    heights = []
    for names in (("a",), ("a", "b", "c")):
        figure = ml.plot.rehearsal(frame_of(*names)).get_figure(root=True)
        assert figure is not None
        heights.append(figure.get_figheight())
        assert "exposed" in figure._repr_html_()
        plt.close(figure)  # type: ignore[arg-type]
    assert heights[1] > 1.5 * heights[0]


def test_many_layouts_are_capped_and_said() -> None:
    names = [f"dp={number}" for number in range(1, 12)]
    frame = pd.concat([frame_of(name).assign(step_us=1000.0 * number) for number, name in enumerate(names, 1)])
    ax = ml.plot.rehearsal(frame, ax=Figure((8, 12)).add_subplot())
    labels = [label.get_text() for label in ax.get_yticklabels() if label.get_text().startswith("dp=")]
    assert labels == names[:8]
    assert any("8 of 11 layouts are drawn: the fastest" in text.get_text() for text in ax.texts)


def test_a_frame_of_something_else_is_rejected() -> None:
    with pytest.raises(BenchError, match=r"lacks the columns hidden_us, alone_us; pass the result of Rehearsal\.frame"):
        ml.plot.rehearsal(frame_of("tp=8").drop(columns=["hidden_us", "alone_us"]))
    with pytest.raises(BenchError, match="the frame is empty"):
        ml.plot.rehearsal(frame_of("tp=8").iloc[:0])


def test_long_names_leave_room_for_the_bars() -> None:
    names = [f"pp=2, dp_shard=4, tp=2, cp=2, the layout with the number {number}" for number in range(2)]
    ax = ml.plot.rehearsal(frame_of(*names), ax=Figure((5, 5)).add_subplot())
    assert ax.get_position().width > 0.25
    assert ax.get_yticklabels()[3].get_text().endswith("number 1")
