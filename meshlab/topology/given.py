"""What a function that works on a cluster accepts for one: the cluster itself, or the name of a preset."""

from __future__ import annotations

from meshlab.errors import TopologyError
from meshlab.topology.model.cluster import Cluster
from meshlab.topology.readers.nccl_graph import NcclGraphs
from meshlab.topology.model.presets import PRESETS, preset

__all__ = ["ClusterLike", "as_cluster"]

ClusterLike = Cluster | str
"""A cluster, or the name of a preset such as ``"dgx-h100"``."""


def as_cluster(given: ClusterLike | NcclGraphs) -> Cluster:
    """The cluster that was given as such or as the name of a preset.

    Parameters
    ----------
    given : Cluster or str

    Raises
    ------
    TopologyError
        If it is neither.

    Examples
    --------
    >>> as_cluster("dgx-h100").summary
    '1 node, 8 × H100 80GB, NVLink domains of 8'
    """
    if isinstance(given, Cluster):
        return given
    if isinstance(given, str):
        if given in PRESETS:
            return preset(given)
        shown = given if len(given) <= 60 else f"{given[:60]}…"
        raise TopologyError(
            f"{shown!r} is the name of no preset; there are {', '.join(PRESETS)}, and read_topology() reads a file"
        )
    if isinstance(given, NcclGraphs):
        raise TopologyError(
            "this is a graph file of NCCL: it says which rings and trees NCCL chose, not what the machine is; give the "
            "topology, which NCCL writes to NCCL_TOPO_DUMP_FILE"
        )
    raise TopologyError(
        f"a cluster is a Cluster or the name of a preset, not {type(given).__name__}; probe(), preset() and "
        "read_topology() give one"
    )
