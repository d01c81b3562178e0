"""Duration of lines, figures and reports."""

import time

import pytest
from matplotlib.figure import Figure

import meshlab as ml
from meshlab.mesh._mesh import DeviceMesh
from meshlab.plots._cells import CellGrid
from meshlab.plots._curves import curve_box
from meshlab.plots._lines import lines_of
from meshlab.plots._style import figure_png
from meshlab.report._report import Report


def test_membership_of_16384_ranks_to_png(benchmark):
    mesh = DeviceMesh("dp=2048, tp=8")

    def draw():
        figsize, rect = CellGrid.of(mesh).figure_box()
        figure = Figure(figsize)
        ml.plot.membership(mesh, "tp", ax=figure.add_axes(rect))
        return figure_png(figure, dpi=100)

    benchmark(draw)


def test_bandwidth_of_eight_lines_to_png(benchmark, make_results):
    results = make_results()

    def draw():
        figure = Figure((7.2, 4.2))
        ml.plot.bandwidth(results, ax=figure.add_axes(curve_box((7.2, 4.2))))
        return figure_png(figure, dpi=100)

    benchmark(draw)


def test_lines_of_2048_rows(benchmark, make_results):
    results = make_results("dp=16, tp=16", exponents=range(10, 26))
    assert len(results) == 2048
    benchmark(lines_of, results, "busbw_gbs")


@pytest.mark.benchmark(timer=time.process_time)  # CPU time, which the target of 3 s is about
def test_report_of_10240_rows_and_9_pictures_to_html(benchmark, make_results):
    axes = ("tp", "dp", "pp")
    results = make_results("pp=4, dp=8, tp=8", axes=axes, exponents=range(8, 28), source="nccl")
    assert len(results) == 10_240
    page = benchmark.pedantic(lambda: Report(results, mesh="pp=4, dp=8, tp=8").html(), rounds=3)
    assert page.count("<svg") == 9
    assert len(page) < 5e6


def test_report_of_240_rows_to_html(benchmark, make_results):
    report = Report(make_results(), mesh=DeviceMesh("dp=2, tp=2"))
    benchmark.pedantic(report.html, rounds=3)
