"""The figure of a tuning: what is drawn, named and marked, and that no text leaves the figure or covers another."""

from __future__ import annotations

import matplotlib as mpl
import matplotlib.style
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

import meshlab as ml
from meshlab.analysis.tuning._tuning import Tuning
from meshlab.base._errors import BenchError
from meshlab.plots._tuning import figure_of
from tests.analysis.trial_maker import CAPPED, DEFAULT, TREE, WINDOW, a_tuning, both, usual_rows

LIMITS = [{"buffers": "symmetric", "max_ctas": 1 << (number % 6)} for number in range(28)]


def many_sizes() -> Tuning:
    """28 sizes, and another option at almost each of them."""
    rows = []
    for number in range(28):
        size, default = 8 << number, 5.0 + (8 << number) / 3e5
        option = [WINDOW, LIMITS[number], TREE, {"algorithm": "ring", "protocol": "ll128", "min_ctas": 24}][number % 4]
        again = default * (1.02 if number % 5 == 0 else 0.8)
        for collective in ("all_reduce", "reduce_scatter"):
            rows += both(DEFAULT, size, default, default, collective=collective)
            rows += both(option, size, default * 0.7, again, collective=collective)
    return a_tuning(rows)


def texts(figure: Figure, gid: str) -> list[Text]:
    return [one for one in figure.findobj(Text) if one.get_gid() == gid and one.get_text()]


def test_a_panel_per_collective_shows_times_and_gain() -> None:
    tuning = a_tuning([*usual_rows(), *usual_rows("all_gather")])
    ax = tuning.plot(ax=Figure((8, 7)).add_subplot())
    upper, lower = ax.child_axes[:2]
    default, tuned, confirmed, _ = upper.get_lines()[:4]
    assert default.get_ydata().tolist() == [6.0, 6.4, 7.0, 9.0]
    assert tuned.get_ydata().tolist() == [4.0, 4.2, 7.0, 7.5]
    assert confirmed.get_xdata().tolist() == [1024, 2048, 8192]
    assert lower.get_lines()[1].get_ydata() == pytest.approx([100 / 3, 100 * (1 - 4.2 / 6.4), 100 / 6])
    figure = ax.get_figure(root=True)
    assert isinstance(figure, Figure)
    assert {text.get_text() for text in texts(figure, "option")} == {"window, ≤ 4", "default", "tree LL128"}
    assert {text.get_text() for text in texts(figure, "heading")} >= {
        "all_reduce: 22\N{THIN SPACE}% less time, faster at 3 of 4 sizes"
    }


def test_options_that_were_not_confirmed_have_their_own_symbol_and_word() -> None:
    figure = figure_of(a_tuning([*both(DEFAULT, 512, 6.0, 4.0), *both(CAPPED, 512, 4.0, 4.0), *usual_rows()]))
    (ax,) = figure.axes
    (hollow,) = [line for line in ax.child_axes[0].get_lines() if line.get_gid() == "unconfirmed"]
    assert (hollow.get_marker(), hollow.get_markerfacecolor()) == ("D", "none")
    assert (hollow.get_xdata().tolist(), hollow.get_ydata().tolist()) == ([512], [4.0])
    legend = ax.child_axes[0].get_legend()
    assert legend is not None
    assert "not confirmed, default stays" in [text.get_text() for text in legend.get_texts()]


@pytest.mark.parametrize(("style", "width"), [("default", 5.75), ("dark_background", 8.0)])
def test_no_text_leaves_the_figure_or_covers_another(style: str, width: float) -> None:
    with mpl.style.context(style):
        for tuning in (ml.example("tuning"), many_sizes()):
            figure = figure_of(tuning, width)
            renderer = FigureCanvasAgg(figure).get_renderer()
            figure.draw(renderer)
            shown = [*texts(figure, "option"), *texts(figure, "heading"), *texts(figure, "note")]
            boxes = [text.get_window_extent(renderer) for text in shown]
            for text, box in zip(shown, boxes, strict=True):
                assert box.x0 >= -1, text
                assert box.x1 <= figure.bbox.x1 + 1, text
                assert box.y1 <= figure.bbox.y1 + 1, text
            for number, box in enumerate(boxes):
                for other in boxes[:number]:
                    apart = box.x1 <= other.x0 + 1 or other.x1 <= box.x0 + 1
                    assert apart or box.y1 <= other.y0 + 2 or other.y1 <= box.y0 + 2


def test_options_without_room_for_their_name_are_lines_and_a_note_says_so() -> None:
    figure = figure_of(many_sizes())
    (ax,) = figure.axes
    upper = ax.child_axes[0]
    ticks = [line for line in upper.get_lines() if len(set(line.get_xdata())) == 1 and len(line.get_xdata()) == 2]
    own = [text for text in texts(figure, "option") if text.axes is upper]
    assert len(ticks) > len(own)
    assert any("the option changes, see the table" in text.get_text() for text in texts(figure, "note"))
    names = [text.get_text() for text in texts(figure_of(a_tuning(usual_rows())), "note")]
    assert not any("the option changes" in name for name in names)


def test_panels_of_low_figures_have_fewer_names_and_do_not_cover_each_other() -> None:
    figure = Figure((8, 4.5))
    many_sizes().plot(ax=figure.add_subplot())
    figure.draw(FigureCanvasAgg(figure).get_renderer())
    names = [*texts(figure, "option"), *texts(figure, "heading")]
    assert 2 < len(names) < len(texts(figure_of(many_sizes()), "option"))
    boxes = [text.get_window_extent() for text in names]
    for number, box in enumerate(boxes):
        assert not any(box.overlaps(other.padded(-2)) for other in boxes[:number])


def test_one_size_is_drawn() -> None:
    rows = [*both(DEFAULT, 1024, 6.0, 6.0), *both(CAPPED, 1024, 4.0, 4.0)]
    figure = figure_of(a_tuning(rows))
    FigureCanvasAgg(figure).draw()
    assert [text.get_text() for text in texts(figure, "option")] == ["window, ≤ 4"]


def test_other_values_are_refused() -> None:
    with pytest.raises(BenchError, match="tuning must be a Tuning, not DataFrame"):
        ml.plot.tuning(ml.example())  # type: ignore[arg-type]
