"""The functions that implement methods of modules below them: plots, displays, explanations and analyses.

`meshlab.base._forwarding` explains the mechanism. The package imports this module, and no other module does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from meshlab.base._forwarding import implements

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from meshlab.benchmark._estimate import Estimate
    from meshlab.benchmark.rehearsal._rehearsal import Rehearsal
    from meshlab.diagnosis._explanation import Explanation
    from meshlab.frames._table import ResultsTable
    from meshlab.mesh._mesh import DeviceMesh
    from meshlab.mesh.interop._recipe import Recipe
    from meshlab.prediction._calibration import Calibration
    from meshlab.topology.placement._loads import Loads
    from meshlab.widgets._live import LiveView

# -- errors ------------------------------------------------------------------------------------------------------------


@implements("EngineError.explain")
def _explanation() -> Callable[..., Explanation | None]:
    from meshlab.diagnosis._explain import explain_error

    return explain_error


@implements("EngineError._render_traceback_")
def _traceback() -> Callable[..., list[str]]:
    from meshlab.widgets._tracebacks import explained_traceback

    return explained_traceback


# -- plots -------------------------------------------------------------------------------------------------------------


@implements("DeviceMesh.plot")
def _mesh_plot() -> Callable[..., Axes]:
    from meshlab.plots._cells import membership

    return membership


@implements("Cluster.plot", "Placement.plot")
def _machine_plot() -> Callable[..., Axes]:
    from meshlab.plots._machine import topology

    return topology


@implements("Node.plot")
def _host_plot() -> Callable[..., Axes]:
    from meshlab.plots._host_diagram import host

    return host


@implements("RunData.plot")
def _run_plot() -> Callable[..., Axes]:
    from meshlab.plots._curves import bandwidth

    return bandwidth


@implements("RunData._figure_html")
def _run_html() -> Callable[..., str]:
    from meshlab.plots._curves import run_figure_html

    return run_figure_html


@implements("RunData._repr_png_")
def _run_png() -> Callable[..., bytes | None]:
    from meshlab.plots._curves import run_figure_png

    return run_figure_png


@implements("Comparison.plot")
def _comparison_plot() -> Callable[..., Axes]:
    from meshlab.plots._ratios import comparison

    return comparison


@implements("Tuning.plot")
def _tuning_plot() -> Callable[..., Axes]:
    from meshlab.plots._tuning import tuning

    return tuning


@implements("Tuning._figure_html")
def _tuning_html() -> Callable[..., str]:
    from meshlab.plots._tuning import figure_html

    return figure_html


@implements("Calibration.plot")
def _calibration_plot() -> Callable[..., Axes]:
    from meshlab.plots._prediction import calibration

    return calibration


@implements("Prediction.plot")
def _prediction_plot() -> Callable[..., Axes]:
    from meshlab.plots._prediction import prediction

    return prediction


@implements("Calibration._figure_html", "Prediction._figure_html")
def _prediction_html() -> Callable[..., str]:
    from meshlab.plots._prediction import figure_html

    return figure_html


@implements("Layouts.plot")
def _layouts_plot() -> Callable[..., Axes]:
    from meshlab.plots._step_times import step_times

    return step_times


@implements("Rehearsal.plot")
def _rehearsal_plot() -> Callable[..., Axes]:
    from meshlab.plots._rehearsal import rehearsal

    def plot(rehearsed: Rehearsal, **options: Any) -> Axes:
        return rehearsal(rehearsed.frame(), verdict=rehearsed.headline, **options)

    return plot


@implements("Rehearsal._figure_html")
def _rehearsal_html() -> Callable[..., str]:
    from meshlab.plots._rehearsal import rehearsal_html

    def figure_html(rehearsed: Rehearsal) -> str:
        return rehearsal_html(rehearsed.frame())

    return figure_html


# -- the live view of a run --------------------------------------------------------------------------------------------


@implements("Run._new_view")
def _live_view() -> Callable[..., LiveView]:
    from meshlab.widgets._live import LiveView

    return LiveView


@implements("Run._ipython_display_")
def _run_display() -> Callable[..., None]:
    from meshlab.widgets._live import show

    return show


# -- layouts of frameworks ---------------------------------------------------------------------------------------------


@implements("DeviceMesh.read")
def _layout_reader() -> Callable[..., DeviceMesh]:
    from meshlab.mesh.interop._frameworks import read_mesh

    return read_mesh


@implements("DeviceMesh.to")
def _layout_writer() -> Callable[..., Recipe]:
    from meshlab.mesh.interop._frameworks import write_mesh

    return write_mesh


# -- analyses ----------------------------------------------------------------------------------------------------------


@implements("Plan.estimate")
def _plan_estimate() -> Callable[..., Estimate]:
    from meshlab.benchmark._estimate import estimate_plan

    return estimate_plan


@implements("RunData.spikes")
def _spikes() -> Callable[..., pd.DataFrame]:
    from meshlab.analysis._stragglers import find_spikes

    return find_spikes


@implements("RunData.stragglers")
def _stragglers() -> Callable[..., pd.DataFrame]:
    from meshlab.analysis._stragglers import find_stragglers

    return find_stragglers


@implements("RunData.contention")
def _contention() -> Callable[..., pd.DataFrame]:
    from meshlab.analysis._concurrency import contention

    return contention


@implements("RunData.interference")
def _interference() -> Callable[..., pd.DataFrame]:
    from meshlab.analysis._concurrency import interference

    return interference


@implements("RunData.pairs")
def _pairs() -> Callable[..., pd.DataFrame]:
    from meshlab.analysis._pairs import pair_table

    return pair_table


@implements("RunData.matrix")
def _matrix() -> Callable[..., pd.DataFrame]:
    from meshlab.analysis._pairs import pair_matrix

    return pair_matrix


@implements("RunData.to_nccl_tests")
def _nccl_tests_log() -> Callable[..., str]:
    from meshlab.nccl_tests._writer import write

    return write


@implements("RunData._bounded_table")
def _bounded_table() -> Callable[..., ResultsTable]:
    from meshlab.prediction._bounds import bounded_table

    return bounded_table


@implements("RunData._calibration_from")
def _saved_calibration() -> Callable[..., Calibration]:
    from meshlab.prediction._calibration import Calibration

    return Calibration.from_document


@implements("Placement.loads")
def _loads() -> Callable[..., Loads]:
    from meshlab.prediction._axis_loads import loads

    return loads


@implements("Placement.describe")
def _description() -> Callable[..., str]:
    from meshlab.prediction._axis_loads import describe

    return describe
