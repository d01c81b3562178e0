"""Explore GPU collectives in notebooks: design a mesh, see it, prove its groups, measure it, report it.

>>> import meshlab as ml
>>> mesh = ml.DeviceMesh("dp=2, tp=2")
>>> with ml.launch(4, backend="threads") as engines:
...     proof = engines.verify(mesh)
...     results = ml.bench(engines, mesh, "all_reduce", axis="tp", sizes="1K:4K").wait()
>>> bool(proof["is_right"].all()), results["status"].unique().tolist()
(True, ['ok'])
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from meshlab.version import __version__

if TYPE_CHECKING:
    from meshlab.benchmark.comparison import Comparison
    from meshlab.benchmark.environments import EnvComparison, compare_env
    from meshlab.benchmark.estimate import Estimate
    from meshlab.nccl_tests.log import NcclTestsLog
    from meshlab.frames.plan import Plan, Sampling
    from meshlab.benchmark.run import Run
    from meshlab.benchmark.api import bench, bench_pairs
    from meshlab.analysis.comparison import compare
    from meshlab.analysis.concurrency import contention, interference
    from meshlab.frames.schema import describe
    from meshlab.frames.example_data import example
    from meshlab.benchmark.spikes import find_spikes
    from meshlab.analysis.stragglers import find_stragglers
    from meshlab.benchmark.overlap import measure_overlap
    from meshlab.analysis.pairs import pair_matrix, pair_table
    from meshlab.analysis.references import published_references, reference_lines
    from meshlab.benchmark.nccl_tests.read import read_nccl_tests
    from meshlab.nccl_tests.writer import to_nccl_tests
    from meshlab.comm.communicator import Communicator
    from meshlab.engines.engines import Engines
    from meshlab.engines.launcher import attach, launch
    from meshlab.engines.mpi_world import join
    from meshlab.errors import BenchError, CommunicatorError, EngineError, MeshError, MeshlabError, ParseError, TopologyError
    from meshlab.mesh.axes import Axis
    from meshlab.mesh.mesh import DeviceMesh
    from meshlab.mesh.groups import Group, Groups
    from meshlab.mesh.diff import diff
    from meshlab.mesh.interop import read_mesh
    from meshlab.plots.curves import plot_bandwidth, plot_latency
    from meshlab.plots.lateness import plot_batches, plot_stragglers
    from meshlab.plots.ratios import plot_comparison
    from meshlab.plots.host_diagram import plot_host
    from meshlab.plots.heatmaps import plot_links
    from meshlab.plots.matrix import plot_matrix
    from meshlab.plots.cells import plot_membership
    from meshlab.plots.rings import plot_ring
    from meshlab.plots.machine import plot_topology
    from meshlab.report.report import Report, read_report
    from meshlab.topology.model.cluster import Cluster
    from meshlab.topology.model.hardware import Device, Link, Node
    from meshlab.topology.placement.placement.placement import Placement, place
    from meshlab.topology.whatif import add_nodes, drop_device, drop_link, drop_nic, set_nvlink_domain, set_taper
    from meshlab.topology.health import health
    from meshlab.topology.model.presets import preset
    from meshlab.topology.readers.hosts import probe
    from meshlab.topology.readers.nccl_graph import read_nccl_graph
    from meshlab.topology.readers.nccl_xml import read_nccl_topology
    from meshlab.topology.readers.nvidia_smi import read_nvidia_smi
    from meshlab.topology.readers.slurm import read_slurm_topology
    from meshlab.topology.readers.detect import read_topology
    from meshlab.topology.render import topology_text
    from meshlab.widgets.curve import Curve
    from meshlab.widgets.designer import Designer
    from meshlab.widgets.grid import Grid
    from meshlab.widgets.live import LiveView

_HOMES = {
    "Axis": "meshlab.mesh",
    "BenchError": "meshlab.errors",
    "Cluster": "meshlab.topology",
    "Communicator": "meshlab.comm",
    "CommunicatorError": "meshlab.errors",
    "Comparison": "meshlab.benchmark",
    "Curve": "meshlab.widgets",
    "Designer": "meshlab.widgets",
    "Device": "meshlab.topology",
    "DeviceMesh": "meshlab.mesh",
    "EngineError": "meshlab.errors",
    "Engines": "meshlab.engines",
    "EnvComparison": "meshlab.benchmark",
    "Estimate": "meshlab.benchmark",
    "Grid": "meshlab.widgets",
    "Group": "meshlab.mesh",
    "Groups": "meshlab.mesh",
    "Link": "meshlab.topology",
    "LiveView": "meshlab.widgets",
    "MeshError": "meshlab.errors",
    "MeshlabError": "meshlab.errors",
    "NcclTestsLog": "meshlab.benchmark",
    "Node": "meshlab.topology",
    "ParseError": "meshlab.errors",
    "Placement": "meshlab.topology",
    "Plan": "meshlab.benchmark",
    "Report": "meshlab.report",
    "Run": "meshlab.benchmark",
    "Sampling": "meshlab.benchmark",
    "TopologyError": "meshlab.errors",
    "add_nodes": "meshlab.topology",
    "attach": "meshlab.engines",
    "bench": "meshlab.benchmark",
    "bench_pairs": "meshlab.benchmark",
    "compare": "meshlab.benchmark",
    "compare_env": "meshlab.benchmark",
    "contention": "meshlab.benchmark",
    "describe": "meshlab.benchmark",
    "diff": "meshlab.mesh",
    "drop_device": "meshlab.topology",
    "drop_link": "meshlab.topology",
    "drop_nic": "meshlab.topology",
    "example": "meshlab.benchmark",
    "find_spikes": "meshlab.benchmark",
    "find_stragglers": "meshlab.benchmark",
    "health": "meshlab.topology",
    "interference": "meshlab.benchmark",
    "join": "meshlab.engines",
    "launch": "meshlab.engines",
    "measure_overlap": "meshlab.benchmark",
    "pair_matrix": "meshlab.benchmark",
    "pair_table": "meshlab.benchmark",
    "place": "meshlab.topology",
    "plot_bandwidth": "meshlab.plots",
    "plot_batches": "meshlab.plots",
    "plot_comparison": "meshlab.plots",
    "plot_host": "meshlab.plots",
    "plot_latency": "meshlab.plots",
    "plot_links": "meshlab.plots",
    "plot_matrix": "meshlab.plots",
    "plot_membership": "meshlab.plots",
    "plot_ring": "meshlab.plots",
    "plot_stragglers": "meshlab.plots",
    "plot_topology": "meshlab.plots",
    "preset": "meshlab.topology",
    "probe": "meshlab.topology",
    "published_references": "meshlab.benchmark",
    "read_mesh": "meshlab.mesh",
    "read_nccl_graph": "meshlab.topology",
    "read_nccl_tests": "meshlab.benchmark",
    "read_nccl_topology": "meshlab.topology",
    "read_nvidia_smi": "meshlab.topology",
    "read_report": "meshlab.report",
    "read_slurm_topology": "meshlab.topology",
    "read_topology": "meshlab.topology",
    "reference_lines": "meshlab.benchmark",
    "set_nvlink_domain": "meshlab.topology",
    "set_taper": "meshlab.topology",
    "to_nccl_tests": "meshlab.benchmark",
    "topology_text": "meshlab.topology",
}

__all__ = [
    "Axis",
    "BenchError",
    "Cluster",
    "Communicator",
    "CommunicatorError",
    "Comparison",
    "Curve",
    "Designer",
    "Device",
    "DeviceMesh",
    "EngineError",
    "Engines",
    "EnvComparison",
    "Estimate",
    "Grid",
    "Group",
    "Groups",
    "Link",
    "LiveView",
    "MeshError",
    "MeshlabError",
    "NcclTestsLog",
    "Node",
    "ParseError",
    "Placement",
    "Plan",
    "Report",
    "Run",
    "Sampling",
    "TopologyError",
    "__version__",
    "add_nodes",
    "attach",
    "bench",
    "bench_pairs",
    "compare",
    "compare_env",
    "contention",
    "describe",
    "diff",
    "drop_device",
    "drop_link",
    "drop_nic",
    "example",
    "find_spikes",
    "find_stragglers",
    "health",
    "interference",
    "join",
    "launch",
    "measure_overlap",
    "pair_matrix",
    "pair_table",
    "place",
    "plot_bandwidth",
    "plot_batches",
    "plot_comparison",
    "plot_host",
    "plot_latency",
    "plot_links",
    "plot_matrix",
    "plot_membership",
    "plot_ring",
    "plot_stragglers",
    "plot_topology",
    "preset",
    "probe",
    "published_references",
    "read_mesh",
    "read_nccl_graph",
    "read_nccl_tests",
    "read_nccl_topology",
    "read_nvidia_smi",
    "read_report",
    "read_slurm_topology",
    "read_topology",
    "reference_lines",
    "set_nvlink_domain",
    "set_taper",
    "to_nccl_tests",
    "topology_text",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that ``import meshlab`` stays light."""
    if name not in _HOMES:
        raise AttributeError(f"module 'meshlab' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names, and what every module has; not what this one imports for itself, nor what is loaded so far."""
    return sorted({*(name for name in globals() if name.startswith("__")), *__all__})
