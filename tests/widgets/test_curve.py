from __future__ import annotations

import base64
import threading
from dataclasses import replace

import numpy as np
import pytest
import traitlets
from hypothesis import given, settings
from hypothesis import strategies as st

from meshlab.base._errors import BenchError
from meshlab.plots._lines import Line
from meshlab.widgets._curve import Curve
from tests.examples import examples

POINTS = st.lists(st.tuples(st.integers(1, 1 << 40), st.floats(0, 1e4)), max_size=30)


def sent(curve: Curve) -> dict[str, list[list[float]]]:
    """Decode the bytes like the front end."""
    values = np.frombuffer(curve._points, dtype="<f8")
    found, at = {}, 0
    for line in curve._lines:
        columns = 4 if line["band"] else 2
        columns += line["groups"]
        block = values[at : at + columns * line["points"]].reshape(columns, line["points"])
        found[f"{line['kind']} {line['name']}".strip()] = block.tolist()
        at += block.size
    assert at == values.size
    return found


def test_lines_are_sent_as_concatenated_float64():
    curve = Curve()
    curve.set_series("a", [1024, 2048], [1.5, 2.5], [1, 2], [2, 3])
    curve.set_series("b", [512], [9.0])
    curve.previous = {"a": ([1024], [1.25])}
    assert sent(curve) == {
        "a": [[1024, 2048], [1.5, 2.5], [1, 2], [2, 3]],
        "b": [[512], [9]],
        "previous a": [[1024], [1.25]],
    }


@settings(deadline=None, max_examples=examples(60))
@given(POINTS)
def test_points_appended_one_by_one_make_the_same_line_as_one_call(points):
    grown, complete = Curve(), Curve()
    for x, y in points:
        grown.append("tp", x, y)
    if points:
        x, y = zip(*points, strict=True)
        complete.set_series("tp", x, y)
    assert sent(grown) == sent(complete)


def test_a_point_without_an_interval_is_a_gap_in_the_band():
    curve = Curve()
    curve.append("tp", 1024, 1.0, 0.9, 1.1)
    curve.append("tp", 4096, 2.0, 1.9, 2.1)
    curve.append("tp", 2048, 3.0)
    assert np.array_equal(curve.series["tp"].high, [1.1, np.nan, 2.1], equal_nan=True)
    (line,) = curve._lines
    assert line["band"]
    assert line["groups"] == 0
    curve.set_series("tp", [1024, 2048], [1.0, 2.0])
    assert sent(curve) == {"tp": [[1024, 2048], [1, 2]]}


def test_several_lines_are_set_in_one_message(monkeypatch):
    curve = Curve()
    curve.set_series("a", [1024], [1.0])
    messages = []
    monkeypatch.setattr(curve, "_send", lambda message, buffers=None: messages.append(message))
    curve.update_series({"b": Line.of([1024], [2.0]), "c": Line.of([1024], [3.0])})
    assert len(messages) == 1
    assert list(curve.series) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1, 2], [1.0]), "same length, not 2, 1"),
        (([1], [1.0], [0.5]), "pass both low and high, or neither"),
        (([0], [1.0]), "size must be positive"),
        (([[1, 2]], [[1, 2]]), "same length"),
    ],
)
def test_points_that_cannot_be_drawn_are_rejected_and_the_line_is_kept(arguments, message):
    curve = Curve()
    curve.set_series("tp", [1024], [1.0])
    with pytest.raises(BenchError, match=message):
        curve.set_series("tp", *arguments)
    assert sent(curve) == {"tp": [[1024], [1]]}


def test_one_update_is_one_message(monkeypatch):
    curve = Curve()
    sent_names = []

    def note(message: dict, buffers: object = None) -> None:
        sent_names.append({*message["state"], *(path[0] for path in message["buffer_paths"])})

    monkeypatch.setattr(curve, "_send", note)
    curve.append("tp", 1024, 1.0)
    assert sent_names == [{"_lines", "_points"}]


def slowest_of(n_groups: int) -> Line:
    groups = np.arange(2.0, 2.0 + 2 * n_groups).reshape(n_groups, 2)
    line = Line.of([1024, 2048], groups[0], groups[0] - 1, groups[0] + 1)
    return replace(line, groups=groups, n_groups=n_groups)


def test_groups_are_sent_after_the_band_and_a_note_explains_them():
    curve = Curve()
    curve.update_series({"tp": slowest_of(2)})
    assert sent(curve) == {"tp": [[1024, 2048], [2, 3], [1, 2], [3, 4], [2, 3], [4, 5]]}
    assert curve._note == "thick: slowest group at each size · band: its 95 % interval · thin: every group"


def test_hundreds_of_groups_and_the_groups_of_the_previous_run_are_not_sent():
    curve = Curve()
    curve.update_series({"tp": slowest_of(65)})
    curve.previous = {"tp": slowest_of(2)}
    assert [line["groups"] for line in curve._lines] == [0, 0]
    assert curve._note == "line: slowest group at each size · band: its 95 % interval"


@pytest.mark.parametrize("scale", ["linear", "log"])
def test_the_figure_without_javascript_shows_all_points_groups_and_references(scale):
    curve = Curve(y_scale=scale, references={"link": 50.0})
    curve.update_series({"tp": slowest_of(3)})
    (ax,) = curve._figure().axes
    bottom, top = ax.get_ylim()
    assert (bottom == 0) == (scale == "linear")
    assert bottom < 1
    assert 50 < top < 100
    assert len(ax.collections[1].get_segments()) == 3
    assert [text.get_text() for text in ax.texts if text.get_gid() != "note"] == ["link", "tp"]


def test_clear_keeps_the_previous_run():
    curve = Curve()
    curve.set_series("tp", [1024], [1.0])
    curve.previous = curve.series
    curve.clear()
    assert sent(curve) == {"previous tp": [[1024], [1]]}


def test_unknown_scales_are_rejected():
    with pytest.raises(traitlets.TraitError):
        Curve(y_scale="square")


def test_the_lines_cannot_be_changed_from_outside():
    curve = Curve()
    with pytest.raises(TypeError):
        curve.series["tp"] = Line.of([1], [1])  # type: ignore[index]


def test_an_exported_notebook_has_a_figure_or_a_note_that_there_are_no_points():
    curve = Curve(title="all_reduce <tp>", references={"link": 50.0})
    data, _ = curve._repr_mimebundle_()
    assert data["text/html"] == "<p>all_reduce &lt;tp&gt;: no points yet</p>"
    curve.set_series("tp", [1024, 2048], [1.0, np.nan], [0.9, 0.9], [1.1, 1.1])
    curve.previous = {"tp": ([1024], [2.0])}
    data, _ = curve._repr_mimebundle_()
    assert base64.b64decode(data["image/png"]).startswith(b"\x89PNG")
    assert data["image/png"] in data["text/html"]
    assert "application/vnd.jupyter.widget-view+json" in data


def test_points_appended_from_several_threads_are_all_kept():
    curve = Curve()

    def work(name: str) -> None:
        for size in range(1, 101):
            curve.append(name, size, float(size))

    threads = [threading.Thread(target=work, args=(f"tp_{index}",)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert {name: len(line) for name, line in curve.series.items()} == {f"tp_{index}": 100 for index in range(4)}
    assert len(sent(curve)) == 4
