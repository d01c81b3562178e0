"""The physical side: hosts, devices and links, and what a mesh crosses when it is laid on them."""

from meshlab.topology.cluster import Cluster, Level
from meshlab.topology.hardware import Device, Link, Nic, Node, Numa
from meshlab.topology.nccl_graph import NcclGraph, NcclGraphs, read_nccl_graph
from meshlab.topology.nccl_xml import read_nccl_topology
from meshlab.topology.nvidia_smi import read_nvidia_smi
from meshlab.topology.nvml import read_host
from meshlab.topology.placement import Placement, place
from meshlab.topology.presets import PRESETS, preset
from meshlab.topology.probe import cluster_from_hosts, probe
from meshlab.topology.read import read_topology
from meshlab.topology.slurm import read_slurm_topology
from meshlab.topology.text import topology_text

__all__ = [
    "PRESETS",
    "Cluster",
    "Device",
    "Level",
    "Link",
    "NcclGraph",
    "NcclGraphs",
    "Nic",
    "Node",
    "Numa",
    "Placement",
    "cluster_from_hosts",
    "place",
    "preset",
    "probe",
    "read_host",
    "read_nccl_graph",
    "read_nccl_topology",
    "read_nvidia_smi",
    "read_slurm_topology",
    "read_topology",
    "topology_text",
]
