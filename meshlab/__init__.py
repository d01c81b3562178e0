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
    from meshlab.benchmark import (
        Comparison,
        NcclTestsLog,
        Plan,
        Run,
        Sampling,
        bench,
        compare,
        describe,
        published_references,
        read_nccl_tests,
        reference_lines,
        to_nccl_tests,
    )
    from meshlab.comm import (
        Communicator,
    )
    from meshlab.engines import (
        Engines,
        attach,
        launch,
    )
    from meshlab.errors import (
        BenchError,
        CommunicatorError,
        EngineError,
        MeshError,
        MeshlabError,
        ParseError,
        TopologyError,
    )
    from meshlab.mesh import (
        Axis,
        DeviceMesh,
        Group,
        Groups,
        diff,
        read_mesh,
    )
    from meshlab.plots import (
        plot_bandwidth,
        plot_comparison,
        plot_host,
        plot_latency,
        plot_links,
        plot_membership,
        plot_ring,
        plot_topology,
    )
    from meshlab.report import (
        Report,
        read_report,
    )
    from meshlab.topology import (
        Cluster,
        Device,
        Link,
        Node,
        Placement,
        add_nodes,
        drop_device,
        drop_link,
        drop_nic,
        health,
        place,
        preset,
        probe,
        read_nccl_graph,
        read_nccl_topology,
        read_nvidia_smi,
        read_slurm_topology,
        read_topology,
        set_nvlink_domain,
        set_taper,
        topology_text,
    )
    from meshlab.widgets import (
        Curve,
        Designer,
        Grid,
        LiveView,
    )

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
    "compare": "meshlab.benchmark",
    "describe": "meshlab.benchmark",
    "diff": "meshlab.mesh",
    "drop_device": "meshlab.topology",
    "drop_link": "meshlab.topology",
    "drop_nic": "meshlab.topology",
    "health": "meshlab.topology",
    "launch": "meshlab.engines",
    "place": "meshlab.topology",
    "plot_bandwidth": "meshlab.plots",
    "plot_comparison": "meshlab.plots",
    "plot_host": "meshlab.plots",
    "plot_latency": "meshlab.plots",
    "plot_links": "meshlab.plots",
    "plot_membership": "meshlab.plots",
    "plot_ring": "meshlab.plots",
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
    "compare",
    "describe",
    "diff",
    "drop_device",
    "drop_link",
    "drop_nic",
    "health",
    "launch",
    "place",
    "plot_bandwidth",
    "plot_comparison",
    "plot_host",
    "plot_latency",
    "plot_links",
    "plot_membership",
    "plot_ring",
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
    return sorted({*globals(), *__all__})
