"""Figures of predictions and calibrations."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import meshlab as ml
from meshlab.base._errors import BenchError
from meshlab.prediction._tuner import NcclSettings

NO_NVLS = NcclSettings(nvls=False, mode="graph")


def drawn(value, *arguments, size: tuple[float, float] = (8, 5)) -> Axes:
    return value.plot(*arguments, ax=Figure(size).add_axes((0, 0, 1, 1)))


def texts(ax: Axes, kind: str) -> list[str]:
    return [text.get_text() for text in ax.texts if text.get_gid() == kind]


@pytest.fixture(scope="module")
def graph() -> pd.DataFrame:
    return ml.example().query("mode == 'graph'")


def test_there_is_a_panel_per_axis_and_collective_with_its_title() -> None:
    ax = drawn(ml.predict("pp=2, dp=4, tp=8", "dgx-h100"))
    assert [" ".join(texts(panel, "heading")[::-1]) for panel in ax.child_axes] == [
        "send_recv · pp (32 groups of 2)",
        "all_reduce · dp (16 groups of 4)",
        "all_reduce · tp (8 groups of 8)",
    ]
    assert "DGX H100" in ax.get_title(loc="left")


def test_changes_of_the_algorithm_are_labelled_where_they_are() -> None:
    prediction = ml.predict("tp=8", "dgx-h100")
    line = prediction.lines[0]
    panel = drawn(prediction).child_axes[0]
    assert sorted(texts(panel, "choice")) == sorted(name for _, name in line.choices)
    ticks = {one.get_xdata()[0] for one in panel.lines if len(set(one.get_xdata())) == 1}
    assert ticks == {line.size_bytes[k] for k, _ in line.choices if k}


def test_labels_of_choices_do_not_overlap_in_narrow_figures() -> None:
    for mesh, cluster in (("dp=64, tp=8", "dgx-h100"), ("dp=4, tp=4", "alps-gh200"), ("dp=2, tp=72", "gb200-nvl72")):
        ax = drawn(ml.predict(mesh, cluster, ["all_reduce", "all_gather"]), size=(6, 9))
        figure = ax.get_figure(root=True)
        figure.canvas.draw()
        for panel in ax.child_axes:
            boxes = [one.get_window_extent() for one in panel.texts if one.get_gid() in ("choice", "heading")]
            for k, box in enumerate(boxes):
                assert not any(box.overlaps(other) for other in boxes[k + 1 :]), texts(panel, "choice")
                assert 0 <= box.x0 < box.x1 <= figure.bbox.width


def test_the_formula_alone_has_no_line_below_256_mib() -> None:
    panel = drawn(ml.predict("tp=8", "dgx-h100", sizes="1K:4G", calibration=False)).child_axes[0]
    lines = [one for one in panel.lines if len(one.get_xdata()) > 2 and one.get_linestyle() == "-"]
    [line] = [one for one in lines if one.get_marker() == "None"]
    assert line.get_xdata().min() >= 128 << 20
    [band] = panel.collections
    assert band.get_paths()[0].get_extents().x0 == 1024


def test_calibrated_lines_are_thin_and_dashed_beyond_the_measured_sizes(graph: pd.DataFrame) -> None:
    calibration = ml.calibrate(graph, "dgx-h200", settings=NO_NVLS)
    panel = drawn(ml.predict("tp=2", "dgx-h200", "all_reduce", "8:4G", calibration=calibration)).child_axes[0]
    lines = [one for one in panel.lines if len(one.get_xdata()) > 2 and one.get_zorder() == 2]
    ends = {one.is_dashed(): one.get_xdata().max() for one in lines}
    assert ends[False] == 512 << 20
    assert ends[True] == 4 << 30


def test_the_bound_is_a_labelled_diagonal() -> None:
    prediction = ml.predict("dp=2, tp=8", "dgx-h100")
    for line, panel in zip(prediction.lines, drawn(prediction, size=(10, 4)).child_axes, strict=True):
        [label] = [text for text in panel.texts if text.get_gid() == "bound"]
        assert label.get_text().replace("\n", " ").startswith(f"bound {line.bound_gbs:.3g}"[:9])
        assert line.bound in label.get_text().replace("\n", " ")
        diagonal = next(one for one in panel.lines if one.get_zorder() == 1.5)
        factor = line.bound_us / line.size_bytes
        np.testing.assert_allclose(diagonal.get_ydata() / diagonal.get_xdata(), factor[0])
        assert 0 < label.get_rotation() < 90


def test_measured_points_have_ratios_and_those_outside_the_band_are_named(graph: pd.DataFrame) -> None:
    prediction = ml.predict("tp=2", "dgx-h200", "all_gather", settings=NO_NVLS, calibration=False)
    is_far = graph["size_bytes"] == 32 << 10
    graph = graph.assign(time_us=graph["time_us"].mask(is_far, 3 * graph["time_us"]))
    upper, lower = drawn(prediction, graph).child_axes
    sizes, times = prediction.measured(prediction.lines[0], graph)
    points = next(one for one in upper.lines if one.get_marker() == "o")
    np.testing.assert_array_equal(points.get_ydata(), times)
    ratios = next(one for one in lower.lines if one.get_marker() == "o")
    at = dict(zip(prediction.lines[0].size_bytes, prediction.lines[0].time_us, strict=True))
    np.testing.assert_allclose(ratios.get_ydata(), times / [at[size] for size in sizes])
    name = next(text for text in texts(lower, "outside") if text.startswith("32"))
    ratio = times[sizes == 32 << 10][0] / at[32 << 10]
    assert name.replace("\u2009", " ") == f"32 KiB ×{ratio:.2g}"


def test_without_measurements_there_are_no_ratios() -> None:
    assert len(drawn(ml.predict("tp=8", "dgx-h100")).child_axes) == 1


def test_outliers_of_a_calibration_are_crosses_without_a_ratio(make_results) -> None:
    results = make_results(axes=("tp",), collectives=("all_reduce",))
    results["time_us"] = results["time_us"].mask(results["size_bytes"] == 2**14, 30 * results["time_us"])
    calibration = ml.calibrate(results)
    upper, lower = drawn(calibration).child_axes
    crosses = next(one for one in upper.lines if one.get_marker() == "x")
    assert crosses.get_xdata().tolist() == [2**14]
    cross = next(one for one in lower.lines if one.get_marker() == "x")
    assert math.isnan(cross.get_ydata()[0])
    errors = next(one for one in lower.lines if one.get_marker() == "o").get_ydata()
    np.testing.assert_allclose(np.log(errors), calibration.lines[0].fit.errors)


def test_many_lines_are_cut_and_counted() -> None:
    prediction = ml.predict("pp=2, dp=2, tp=2", "dgx-h100", ["all_reduce", "all_gather", "reduce_scatter"], "1M:1G")
    ax = drawn(prediction, size=(8, 9))
    assert len(ax.child_axes) == 6
    assert "6 of 9 lines are drawn" in " ".join(text.get_text() for text in ax.texts)


def test_something_else_than_a_prediction_is_refused() -> None:
    with pytest.raises(BenchError, match="must be a Prediction, not str"):
        ml.plot.prediction("tp=8")
    with pytest.raises(BenchError, match="must be a Calibration, not str"):
        ml.plot.calibration("run")


def test_a_new_figure_is_as_high_as_its_panels_need() -> None:
    from matplotlib import pyplot as plt

    one, many = ml.predict("tp=8", "dgx-h100").plot(), ml.predict("pp=2, ep=2, tp=2", "dgx-h100", "all_reduce").plot()
    heights = [ax.get_figure(root=True).get_figheight() for ax in (one, many)]
    assert heights[0] < heights[1]
    plt.close("all")
