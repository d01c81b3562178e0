"""The physical side: hosts, devices and links, and what a mesh crosses when it is laid on them."""

from meshlab.topology.model.cluster import Cluster
from meshlab.topology.health import health
from meshlab.topology.findings import Finding, Findings
from meshlab.topology.given import ClusterLike, as_cluster
from meshlab.topology.model.hardware import Device, Link, Nic, Node, Numa
from meshlab.topology.readers.hosts import cluster_from_hosts, probe
from meshlab.topology.levels import Level
from meshlab.topology.readers.nccl_graph import NcclGraph, NcclGraphs, read_nccl_graph
from meshlab.topology.readers.nccl_xml import read_nccl_topology
from meshlab.topology.readers.nvidia_smi import read_nvidia_smi
from meshlab.topology.readers.nvml import read_host
from meshlab.topology.placement.placement.placement import Placement, place
from meshlab.topology.model.presets import PRESETS, preset
from meshlab.topology.readers.detect import read_topology
from meshlab.topology.readers.slurm import read_slurm_topology
from meshlab.topology.render import links_text, topology_text
from meshlab.topology.whatif import add_nodes, drop_device, drop_link, drop_nic, set_nvlink_domain, set_taper

__all__ = [
    "PRESETS",
    "Cluster",
    "ClusterLike",
    "Device",
    "Finding",
    "Findings",
    "Level",
    "Link",
    "NcclGraph",
    "NcclGraphs",
    "Nic",
    "Node",
    "Numa",
    "Placement",
    "add_nodes",
    "as_cluster",
    "cluster_from_hosts",
    "drop_device",
    "drop_link",
    "drop_nic",
    "health",
    "links_text",
    "place",
    "preset",
    "probe",
    "read_host",
    "read_nccl_graph",
    "read_nccl_topology",
    "read_nvidia_smi",
    "read_slurm_topology",
    "read_topology",
    "set_nvlink_domain",
    "set_taper",
    "topology_text",
]
