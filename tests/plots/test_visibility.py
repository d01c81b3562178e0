from __future__ import annotations

from itertools import pairwise

import pytest

import meshlab as ml
from meshlab.analysis import Visibility
from meshlab.base._errors import BenchError
from meshlab.benchmark import Estimate


def bars(visible: Visibility) -> list[tuple[float, float]]:
    return [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in ml.plot.visibility(visible).patches]


def test_each_way_to_compare_has_a_hidden_and_a_visible_part() -> None:
    visible = Visibility("all_reduce", 1 << 20, ratio=1.8, turns_ratio=1.2)
    apart, turns = bars(visible)[:2], bars(visible)[2:]
    assert apart[0] == pytest.approx((1, 1.8))
    assert turns[0] == pytest.approx((1, 1.2))
    assert apart[1] == pytest.approx((1.8, turns[1][1]))
    ax = visible.plot()
    assert [label.get_text().split(" (")[0] for label in ax.get_yticklabels()] == ["one after the other", "in turns"]
    assert [text.get_text() for text in ax.texts] == ["1.8×", "1.2×"]
    assert ax.get_title(loc="left").replace("\u2009", " ") == "visible now, all_reduce of 1 MiB"


def test_turns_that_show_no_more_are_left_out() -> None:
    ax = Visibility("barrier", None, ratio=1.1).plot()
    assert len(ax.get_yticklabels()) == 1
    assert ax.get_title(loc="left") == "visible now, barrier"


def test_a_change_that_is_too_large_to_name_fills_the_width() -> None:
    visible = Visibility("all_reduce", 1024, ratio=1e9, turns_ratio=2.0)
    left, right = visible.plot().get_xlim()
    assert bars(visible)[0] == pytest.approx((left, right))
    assert visible.plot().texts[0].get_text() == "more than 100×"


def test_ticks_do_not_overlap() -> None:
    for ratio in (1.06, 1.3, 2.0, 7.0, 60.0, 1e6):
        ax = Visibility("all_reduce", 1024, ratio).plot()
        ax.figure.draw_without_rendering()
        boxes = [label.get_window_extent() for label in ax.get_xticklabels()]
        assert len(boxes) > 2
        assert all(before.x1 < after.x0 for before, after in pairwise(boxes))


def test_an_estimate_shows_what_is_visible() -> None:
    estimate = Estimate(12, 30.0, 60.0, 1 << 20, visible=Visibility("all_reduce", 1 << 20, 1.8, 1.2))
    assert "<svg" in estimate._repr_html_()
    assert "changes of 1.8× or more" in estimate._repr_html_()
    assert "visible" not in Estimate(12, 30.0, 60.0, 1 << 20)._repr_html_()


def test_only_a_visibility_is_drawn() -> None:
    with pytest.raises(BenchError, match=r"visible must be a Visibility, not NoneType; pass run\.estimate\.visible"):
        ml.plot.visibility(None)  # type: ignore[arg-type]
