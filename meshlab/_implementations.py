"""The functions behind methods of modules below them: plots, displays, explanations and analyses.

`meshlab.base._forwarding` explains the mechanism. The package imports this module, and no other module does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from meshlab.base._forwarding import targets

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from meshlab.benchmark.rehearsal._rehearsal import Rehearsal
    from meshlab.benchmark.rehearsal._replayed import Replay

targets |= {
    "EngineError.explain": "diagnosis._explain:explain_error",
    "MeshlabError._render_traceback_": "widgets._tracebacks:explained_traceback",
    # Plots
    "DeviceMesh.plot": "plots._cells:membership",
    "Cluster.plot": "plots._machine:topology",
    "Placement.plot": "plots._machine:topology",
    "Node.plot": "plots._host_diagram:host",
    "RunData.plot": "plots._curves:bandwidth",
    "RunData._figure_html": "plots._curves:run_figure_html",
    "RunData._repr_png_": "plots._curves:run_figure_png",
    "Comparison.plot": "plots._ratios:comparison",
    "Tuning.plot": "plots._tuning:tuning",
    "Tuning._figure_html": "plots._tuning:figure_html",
    "Calibration.plot": "plots._prediction:calibration",
    "Calibration._figure_html": "plots._prediction:figure_html",
    "Prediction.plot": "plots._prediction:prediction",
    "Prediction._figure_html": "plots._prediction:figure_html",
    "Layouts.plot": "plots._step_times:step_times",
    "Routing.plot": "plots._routing:routing",
    "Routing._figure_html": "plots._routing:figure_html",
    "Visibility.plot": "plots._visibility:visibility",
    "Visibility._figure_html": "plots._visibility:figure_html",
    "Traffic.plot": "plots._traffic:traffic",
    "Traffic._figure_html": "plots._traffic:figure_html",
    "Trace.plot": "plots._traces:trace_figure",
    "Trace._figure_html": "plots._traces:figure_html",
    "Rehearsal.plot": "_implementations:plot_rehearsal",
    "Rehearsal._figure_html": "_implementations:rehearsal_figure",
    "Replay.plot": "_implementations:plot_replay",
    "Replay._figure_html": "_implementations:replay_figure",
    # A profile of a function on the ranks
    "Engines.profile": "benchmark._profile:profile_function",
    # The live view of a run
    "Run._new_view": "widgets._live:LiveView",
    "Run._ipython_display_": "widgets._live:show",
    # Layouts of frameworks
    "DeviceMesh.read": "mesh.interop._frameworks:read_mesh",
    "DeviceMesh.to": "mesh.interop._frameworks:write_mesh",
    # Other machines
    **{
        f"Cluster.{name}": f"topology._whatif:{name}"
        for name in (
            *("without_device", "without_link", "without_nic", "without_node"),
            *("with_devices", "with_network", "with_nodes", "with_nvlink_domain", "with_taper"),
        )
    },
    "Cluster.with_failed": "topology._failures:with_failed",
    "Cluster.with_rate": "topology._failures:with_rate",
    # Analyses
    "Judgement._next_step": "diagnosis._after_verdict:next_step",
    "Cluster.health": "topology._health:health",
    "Plan.from_trace": "traces._plans:plan_from_trace",
    "Job.from_trace": "analysis._job_of_trace:job_from_trace",
    "Plan.estimate": "benchmark._estimate:estimate_plan",
    "RunData.spikes": "analysis._stragglers:find_spikes",
    "RunData.stragglers": "analysis._stragglers:find_stragglers",
    "RunData.traffics": "analysis._concurrency:traffics",
    "RunData.contention": "analysis._concurrency:contention",
    "RunData.interference": "analysis._concurrency:interference",
    "RunData.pairs": "analysis._pairs:pair_table",
    "RunData.matrix": "analysis._pairs:pair_matrix",
    "RunData.to_nccl_tests": "nccl_tests._writer:write",
    "RunData._bounded_table": "prediction._bounds:bounded_table",
    "RunData._calibration_from": "prediction._calibration:Calibration.from_document",
    "Trace.follow": "traces._live:follow",
    "Trace.published": "analysis._published:published_for",
    "Placement.loads": "prediction._axis_loads:loads",
    "Placement.describe": "prediction._axis_loads:describe",
}


def plot_rehearsal(rehearsal: Rehearsal, **options: Any) -> Axes:
    """Draw the parts of each step of a rehearsal."""
    from meshlab.plots import _rehearsal as plots

    return plots.rehearsal(rehearsal.frame(), verdict=rehearsal.headline, **options)


def rehearsal_figure(rehearsal: Rehearsal) -> str:
    """Return the figure of a rehearsal as an ``<svg>`` element."""
    from meshlab.plots import _rehearsal as plots

    return plots.rehearsal_html(rehearsal.frame())


def plot_replay(replay: Replay, **options: Any) -> Axes:
    """Draw the transfers of a trace and of its replay."""
    from meshlab.plots import _replays as plots

    return plots.replay(replay.by_axis(), verdict=replay.headline, **options)


def replay_figure(replay: Replay) -> str:
    """Return the figure of a replay as an ``<svg>`` element."""
    from meshlab.plots import _replays as plots

    return plots.replay_html(replay.by_axis())
