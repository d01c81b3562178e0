from __future__ import annotations

import base64
import threading

import numpy as np
import pytest
import traitlets
from hypothesis import given, settings
from hypothesis import strategies as st

from meshlab.errors import BenchError
from meshlab.widgets.curve import Curve, Line

POINTS = st.lists(st.tuples(st.integers(1, 1 << 40), st.floats(0, 1e4)), max_size=30)


def sent(curve: Curve) -> dict[str, list[list[float]]]:
    """What the front end reads out of the bytes."""
    values = np.frombuffer(curve._points, dtype="<f8")
    found, at = {}, 0
    for line in curve._lines:
        columns = 4 if line["band"] else 2
        block = values[at : at + columns * line["points"]].reshape(columns, line["points"])
        found[("previous " if line["previous"] else "") + line["name"]] = block.tolist()
        at += block.size
    assert at == values.size
    return found


def test_lines_travel_as_float64_one_behind_the_other():
    curve = Curve()
    curve.set_series("a", [1024, 2048], [1.5, 2.5], [1, 2], [2, 3])
    curve.set_series("b", [512], [9.0])
    curve.previous = {"a": ([1024], [1.25])}
    assert sent(curve) == {
        "a": [[1024, 2048], [1.5, 2.5], [1, 2], [2, 3]],
        "b": [[512], [9]],
        "previous a": [[1024], [1.25]],
    }


@settings(deadline=None, max_examples=60)
@given(POINTS)
def test_points_appended_one_by_one_make_the_line_that_is_set_at_once(points):
    grown, whole = Curve(), Curve()
    for x, y in points:
        grown.append("tp", x, y)
    if points:
        x, y = zip(*points, strict=True)
        whole.set_series("tp", x, y)
    assert sent(grown) == sent(whole)


def test_points_are_put_in_the_order_of_their_sizes():
    line = Line.of([4096, 1024], [2.0, 1.0], [1.9, 0.9], [2.1, 1.1])
    assert (line.x.tolist(), line.y.tolist(), line.lo.tolist(), line.hi.tolist()) == (
        [1024, 4096],
        [1, 2],
        [0.9, 1.9],
        [1.1, 2.1],
    )


def test_a_line_keeps_its_band_only_while_every_point_has_an_interval():
    curve = Curve()
    curve.append("tp", 1024, 1.0, 0.9, 1.1)
    curve.append("tp", 2048, 2.0, 1.9, 2.1)
    assert curve.series["tp"].hi.tolist() == [1.1, 2.1]
    curve.append("tp", 4096, 3.0)
    assert curve.series["tp"].hi is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1, 2], [1.0]), "same length, not 2, 1"),
        (([1], [1.0], [0.5]), "both lo and hi"),
        (([0], [1.0]), "above 0 bytes"),
        (([[1, 2]], [[1, 2]]), "same length"),
    ],
)
def test_points_that_cannot_be_drawn_are_refused_and_the_line_stays(arguments, message):
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


def test_clearing_keeps_the_previous_run():
    curve = Curve()
    curve.set_series("tp", [1024], [1.0])
    curve.previous = curve.series
    curve.clear()
    assert sent(curve) == {"previous tp": [[1024], [1]]}


def test_wrong_scales_are_refused():
    with pytest.raises(traitlets.TraitError):
        Curve(y_scale="square")


def test_the_view_of_the_lines_cannot_be_changed():
    curve = Curve()
    with pytest.raises(TypeError):
        curve.series["tp"] = Line.of([1], [1])  # type: ignore[index]


def test_an_exported_notebook_keeps_a_picture_or_says_that_there_is_none():
    curve = Curve(title="all_reduce <tp>", references={"link": 50.0})
    data, _ = curve._repr_mimebundle_()
    assert data["text/html"] == "<p>all_reduce &lt;tp&gt;: no points yet</p>"
    curve.set_series("tp", [1024, 2048], [1.0, np.nan], [0.9, 0.9], [1.1, 1.1])
    curve.previous = {"tp": ([1024], [2.0])}
    data, _ = curve._repr_mimebundle_()
    assert base64.b64decode(data["image/png"]).startswith(b"\x89PNG")
    assert data["image/png"] in data["text/html"]
    assert "application/vnd.jupyter.widget-view+json" in data


def test_points_appended_from_several_threads_are_all_there():
    curve = Curve()

    def work(name: str) -> None:
        for size in range(1, 101):
            curve.append(name, size, float(size))

    threads = [threading.Thread(target=work, args=(f"tp_{index}",)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert {name: len(line) for name, line in curve.series.items()} == {f"tp_{index}": 100 for index in range(4)}
    assert len(sent(curve)) == 4
