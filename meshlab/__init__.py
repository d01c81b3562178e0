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
    from meshlab.benchmark import Plan, Run, Sampling, bench, describe
    from meshlab.comm import Communicator
    from meshlab.engines import Engines, attach, launch
    from meshlab.errors import (
        BenchError,
        CommunicatorError,
        EngineError,
        MeshError,
        MeshlabError,
        ParseError,
        TopologyError,
    )
    from meshlab.mesh import Axis, DeviceMesh, Group, Groups, diff, read_mesh
    from meshlab.plots import plot_bandwidth, plot_latency, plot_membership
    from meshlab.report import Report, read_report

_HOMES = {
    "Axis": "meshlab.mesh",
    "BenchError": "meshlab.errors",
    "Communicator": "meshlab.comm",
    "CommunicatorError": "meshlab.errors",
    "DeviceMesh": "meshlab.mesh",
    "EngineError": "meshlab.errors",
    "Engines": "meshlab.engines",
    "Group": "meshlab.mesh",
    "Groups": "meshlab.mesh",
    "MeshError": "meshlab.errors",
    "MeshlabError": "meshlab.errors",
    "ParseError": "meshlab.errors",
    "Plan": "meshlab.benchmark",
    "Report": "meshlab.report",
    "Run": "meshlab.benchmark",
    "Sampling": "meshlab.benchmark",
    "TopologyError": "meshlab.errors",
    "attach": "meshlab.engines",
    "bench": "meshlab.benchmark",
    "describe": "meshlab.benchmark",
    "diff": "meshlab.mesh",
    "launch": "meshlab.engines",
    "plot_bandwidth": "meshlab.plots",
    "plot_latency": "meshlab.plots",
    "plot_membership": "meshlab.plots",
    "read_mesh": "meshlab.mesh",
    "read_report": "meshlab.report",
}

__all__ = [
    "Axis",
    "BenchError",
    "Communicator",
    "CommunicatorError",
    "DeviceMesh",
    "EngineError",
    "Engines",
    "Group",
    "Groups",
    "MeshError",
    "MeshlabError",
    "ParseError",
    "Plan",
    "Report",
    "Run",
    "Sampling",
    "TopologyError",
    "__version__",
    "attach",
    "bench",
    "describe",
    "diff",
    "launch",
    "plot_bandwidth",
    "plot_latency",
    "plot_membership",
    "read_mesh",
    "read_report",
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
