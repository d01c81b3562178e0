"""The physical side: hosts, devices and links, and what a mesh crosses when it is laid on them."""

from meshlab.topology.cluster import Cluster, Level
from meshlab.topology.hardware import Device, Link, Nic, Node, Numa
from meshlab.topology.nvml import read_host
from meshlab.topology.presets import PRESETS, preset
from meshlab.topology.probe import cluster_from_hosts, probe
from meshlab.topology.text import topology_text

__all__ = [
    "PRESETS",
    "Cluster",
    "Device",
    "Level",
    "Link",
    "Nic",
    "Node",
    "Numa",
    "cluster_from_hosts",
    "preset",
    "probe",
    "read_host",
    "topology_text",
]
