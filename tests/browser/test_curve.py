"""The curve's JavaScript in a real browser."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest

from meshlab.plots._lines import Line
from meshlab.widgets._curve import Curve
from tests.browser.pages import HIDDEN_FOR_AN_INSTANT, overlapping_texts, scrolls_sideways, state_of

SIZES = 2.0 ** np.arange(10, 27)


def rates(peak: float) -> np.ndarray:
    """Bandwidth over size with 20 µs of latency, in GB/s."""
    return peak * SIZES / (SIZES + peak * 20e3)


def filled(count: int, **traits) -> Curve:
    curve = Curve(title="all_reduce · tp (2 groups of 4)", **traits)
    for index in range(count):
        y = rates(300 - 30 * index)
        curve.set_series(f"tp_{index}", SIZES, y, 0.95 * y, 1.04 * y)
    return curve


def texts(page, selector: str) -> list[str]:
    return page.locator(selector).all_text_contents()


def test_lines_bands_and_points_are_drawn_for_every_series(bare, page):
    bare("curve", filled(3))
    assert page.locator(".ml-curve-line").count() == 3
    assert page.locator(".ml-curve-band").count() == 3
    assert page.locator(".ml-curve-point").count() == 3 * len(SIZES)


def test_groups_are_thin_lines_in_one_path_and_a_note_explains_them(bare, page):
    curve = Curve(title="all_reduce")
    y = rates(100)
    line = Line.of(SIZES, y, 0.9 * y, 1.1 * y)
    curve.update_series({"tp": replace(line, groups=np.stack([y, 2 * y, 4 * y]), n_groups=3)})
    bare("curve", curve)
    thin, thick = page.locator(".ml-curve-groups"), page.locator(".ml-curve-line")
    assert thin.count() == thick.count() == 1
    assert thin.get_attribute("d").count("M") == 3
    width = "path => parseFloat(getComputedStyle(path).strokeWidth)"
    assert 2 * thin.evaluate(width) <= thick.evaluate(width)
    assert thin.evaluate("path => path.getBBox().y") >= 0  # the fastest group is inside the scale
    assert texts(page, ".ml-curve-note") == [
        "thick: slowest group at each size · band: its 95 % interval · thin: every group"
    ]


def test_a_single_size_shows_its_interval_and_its_groups(bare, page):
    curve = Curve()
    line = Line.of([1024], [2.0], [1.0], [3.0])
    curve.update_series({"tp": replace(line, groups=np.array([[2.0], [4.0]]), n_groups=2)})
    bare("curve", curve)
    extent = "path => [path.getBBox().width, path.getBBox().height]"
    for name in (".ml-curve-band", ".ml-curve-groups"):
        width, height = page.locator(name).evaluate(extent)
        assert width > 4
        assert height > 20


def test_sizes_are_labelled_in_binary_units(bare, page):
    bare("curve", filled(1))
    labels = texts(page, ".ml-curve-scale text")
    assert "1\u2009KiB" in labels
    assert "16\u2009MiB" in labels


def test_up_to_five_lines_are_labelled_at_their_ends_and_more_in_a_legend(bare, page):
    curve = filled(5)
    shown = bare("curve", curve)
    assert sorted(texts(page, ".ml-curve-ends text")) == [f"tp_{index}" for index in range(5)]
    assert texts(page, ".ml-curve-legend > span") == []
    curve.set_series("sixth", SIZES, rates(10))
    shown.receive(curve, "_lines", "_points")
    assert texts(page, ".ml-curve-ends text") == []
    assert texts(page, ".ml-curve-legend > span") == [*(f"tp_{index}" for index in range(5)), "sixth"]


def test_labels_of_lines_that_end_at_the_same_point_do_not_overlap(bare, page):
    curve = Curve()
    for index in range(5):
        curve.set_series(f"line {index}", SIZES, rates(300 + index / 100))
    bare("curve", curve)
    assert overlapping_texts(page, ".meshlab-curve") == []


def test_references_are_dashed_and_labelled_at_the_line(bare, page):
    bare("curve", filled(1, references={"NVLink 450 GB/s": 450.0, "link 449 GB/s": 449.0}))
    assert sorted(texts(page, ".ml-curve-level text")) == ["NVLink 450 GB/s", "link 449 GB/s"]
    dashes = page.locator(".ml-curve-level line").first.evaluate("line => getComputedStyle(line).strokeDasharray")
    assert dashes == "6px, 4px"
    assert overlapping_texts(page, ".meshlab-curve") == []


def test_the_previous_run_is_grey_behind_the_others(bare, page):
    curve = filled(1)
    curve.previous = {"tp_0": (SIZES, rates(250))}
    bare("curve", curve)
    lines = page.locator(".ml-curve-line")
    assert [lines.nth(index).get_attribute("stroke") for index in range(2)] == ["#8c8c8c", "#0072b2"]
    assert "tp_0, previous" in texts(page, ".ml-curve-ends text")


def test_a_point_under_the_pointer_shows_its_values(bare, page):
    curve = Curve()
    curve.set_series("tp", [1024, 4096], [3.25, 11.5], [3.0, 11.0], [3.5, 12.0])
    shown = bare("curve", curve)
    box = page.locator(".ml-curve-point").last.bounding_box()
    page.mouse.move(box["x"] + 6, box["y"] + 6)
    shown.settle()
    assert page.locator(".ml-curve-tip b").inner_text() == "tp"
    assert page.locator(".ml-curve-tip span").inner_text() == "4\u2009KiB\n11.5\u2009GB/s, interval 11.0 to 12.0"
    page.mouse.move(5, 800)
    shown.settle()
    assert page.locator(".ml-curve-tip").is_hidden()


def test_the_arrow_keys_move_along_a_line_and_between_lines(bare, page):
    curve = Curve()
    curve.set_series("a", [1024, 2048], [1.0, 2.0])
    curve.set_series("b", [1024, 2048], [3.0, 4.0])
    bare("curve", curve)
    page.keyboard.press("Tab")
    status = page.locator(".ml-curve-status")
    announced = []
    for key in ("ArrowRight", "ArrowRight", "ArrowRight", "ArrowDown", "ArrowLeft"):
        page.keyboard.press(key)
        announced.append(status.inner_text().replace("\u2009", " "))
    assert announced == [
        "a at 1 KiB: 1.00 GB/s",
        "a at 2 KiB: 2.00 GB/s",
        "a at 2 KiB: 2.00 GB/s",
        "b at 2 KiB: 4.00 GB/s",
        "b at 1 KiB: 3.00 GB/s",
    ]
    page.keyboard.press("Escape")
    assert status.inner_text() == ""


def test_a_missing_value_breaks_the_line_and_has_no_point(bare, page):
    curve = Curve()
    curve.set_series("tp", [1024, 2048, 4096, 8192], [1.0, np.nan, 3.0, 4.0])
    bare("curve", curve)
    assert page.locator(".ml-curve-line").get_attribute("d").count("M") == 2
    assert page.locator(".ml-curve-point").count() == 3


def test_a_missing_interval_breaks_the_band(bare, page):
    curve = Curve()
    value = np.arange(1.0, 6.0)
    curve.set_series("tp", SIZES[:5], value, np.where(value == 3, np.nan, 0.9 * value), 1.1 * value)
    bare("curve", curve)
    band = page.locator(".ml-curve-band").get_attribute("d")
    assert [part.count("L") for part in band.split("Z")[:-1]] == [3, 3]  # two areas with four corners each
    assert page.locator(".ml-curve-point").count() == 5


def test_a_log_scale_omits_values_that_are_not_positive(bare, page):
    curve = Curve(y_scale="log")
    curve.set_series("tp", [1024, 2048, 4096], [0.0, 0.5, 50.0])
    bare("curve", curve)
    assert page.locator(".ml-curve-point").count() == 2
    assert {"0.1", "1", "10", "100"} <= set(texts(page, ".ml-curve-scale text"))


def test_a_linear_scale_starts_at_zero_with_round_steps(bare, page):
    bare("curve", filled(1))
    numbers = [text for text in texts(page, ".ml-curve-scale text") if text.lstrip("-").isdecimal()]
    assert numbers == ["0", "100", "200", "300"]


def test_an_empty_curve_has_a_note_and_the_same_height(bare, page):
    curve = Curve(x_range=(1024, 2**26))
    shown = bare("curve", curve)
    height = page.locator(".meshlab-curve").bounding_box()["height"]
    assert "no points yet" in page.locator(".ml-curve-stage").text_content()
    curve.set_series("tp", SIZES, rates(300))
    shown.receive(curve, "_lines", "_points")
    assert page.locator(".meshlab-curve").bounding_box()["height"] == height


def test_a_fixed_range_does_not_change_as_points_are_added(bare, page):
    curve = Curve(x_range=(1024, 2**26))
    curve.append("tp", 1024, 1.0)
    shown = bare("curve", curve)
    before = texts(page, ".ml-curve-scale text")
    curve.append("tp", 2048, 1.0)
    shown.receive(curve, "_lines", "_points")
    assert texts(page, ".ml-curve-scale text") == before


def test_names_are_text_and_not_markup(bare, page):
    curve = Curve(title="<b>title</b>", references={"<i>link</i>": 2.0})
    curve.set_series("<img src=x>", [1024], [1.0])
    bare("curve", curve)
    assert page.locator(".meshlab-curve img, .ml-curve-title b, .ml-curve-level i").count() == 0
    assert "<img src=x>" in texts(page, ".ml-curve-ends text")


def test_several_messages_between_two_frames_are_painted_once(bare, page):
    shown = bare("curve", filled(1))
    count = page.evaluate(
        "async () => { frames.length = 0;"
        "for (let i = 0; i < 50; i++) model.set('title', `${i}`); await painted(); return frames.length; }"
    )
    assert count == 1
    assert shown.page.locator(".ml-curve-title").inner_text() == "49"


def test_live_updates_are_cheap_in_python_and_in_the_browser(bare, say):
    curve = Curve(x_range=(1024, 2**26))
    shown = bare("curve", curve)
    python, browser = [], []
    for index, size in enumerate(SIZES):
        start = time.perf_counter()
        for line in range(5):
            curve.append(f"tp_{line}", size, rates(300)[index], rates(290)[index], rates(310)[index])
        python.append((time.perf_counter() - start) / 5 * 1e3)
        browser.append(shown.receive(curve, "_lines", "_points"))
    say(f"one appended point: {np.median(python):.2f} ms of Python, {np.median(browser):.1f} ms of work in a frame")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("count", [1, 5, 8])
def test_nothing_overlaps_or_scrolls_sideways(bare, page, count, theme):
    curve = filled(count, references={"NVLink 450 GB/s": 450.0, "InfiniBand 50 GB/s": 50.0})
    shown = bare("curve", curve, theme=theme)
    for width in (600, 1400):
        page.set_viewport_size({"width": width, "height": 900})
        shown.settle()
        shown.settle()
        assert overlapping_texts(page, ".meshlab-curve") == []
        assert not scrolls_sideways(page, ".meshlab-curve")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_serious(bare, serious_faults, theme):
    bare("curve", filled(6), theme=theme)
    assert serious_faults("#host") == []


def test_a_change_while_the_widget_is_briefly_hidden_is_not_lost(bare, page):
    curve = filled(1)
    shown = bare("curve", curve)
    curve.title = "another"
    change = state_of(curve, "title")
    page.evaluate(HIDDEN_FOR_AN_INSTANT, change)
    shown.settle()
    shown.settle()
    assert page.locator(".ml-curve-title").inner_text() == "another"


def test_cleaning_up_leaves_no_listener_and_no_element(bare, page):
    bare("curve", filled(2))
    page.evaluate("() => cleanup()")
    assert page.evaluate("() => model.handlers.length") == 0
    assert page.evaluate("() => document.querySelector('#host').children.length") == 0


def test_a_drag_zooms_and_a_double_click_shows_all_sizes(bare, page):
    shown = bare("curve", filled(2))
    box = page.locator(".ml-curve-stage svg").bounding_box()
    labels = lambda: texts(page, ".ml-curve-scale text")  # noqa: E731
    assert "1\u2009KiB" in labels()
    x, y = box["x"], box["y"] + 150
    page.mouse.move(x + 400, y)
    page.mouse.down()
    page.mouse.move(x + 700, y, steps=3)
    page.mouse.up()
    shown.settle()
    assert "1\u2009KiB" not in labels()
    page.get_by_role("button", name="All sizes").click()
    shown.settle()
    assert "1\u2009KiB" in labels()
    page.locator(".ml-curve-stage").focus()
    page.keyboard.press("+")
    shown.settle()
    assert "1\u2009KiB" not in labels()
    page.locator(".ml-curve-stage").dblclick(position={"x": 450, "y": 150})
    shown.settle()
    assert "1\u2009KiB" in labels()


def test_the_cursor_shows_the_values_of_all_lines_at_its_size(bare, page):
    shown = bare("curve", filled(3))
    box = page.locator(".ml-curve-stage svg").bounding_box()
    page.mouse.move(box["x"] + 450, box["y"] + 60)
    shown.settle()
    row = page.locator(".ml-curve-values")
    assert [name in row.inner_text() for name in ("tp_0", "tp_1", "tp_2", "GB/s")] == [True] * 4
    page.mouse.move(5, 880)
    shown.settle()
    assert row.inner_text() == ""


def test_an_update_of_the_live_curve_takes_less_than_five_milliseconds(bare, page, say):
    curve = filled(4)
    shown = bare("curve", curve)
    times = []
    for k in range(30):
        curve.set_series("tp_0", SIZES, rates(300 + k))
        times.append(shown.receive(curve, "_lines", "_points"))
    say(f"an update of a chart of 4 lines takes {np.median(times):.1f} ms")
    assert np.quantile(times, 0.25) < 5  # other programs disturb some of them
