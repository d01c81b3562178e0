"""Presets: clusters of well-known machines of any size, and the conversion of arguments to a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from meshlab.base._errors import TopologyError, did_you_mean
from meshlab.base._hints import READ_A_FILE, Hint
from meshlab.mesh._axes import short
from meshlab.topology.model._cluster import Cluster
from meshlab.topology.model._hardware import Nic, Node, Numa, count_cpus
from meshlab.topology.model._levels import MOST_NODES, MOST_RAILS, Level, check_taper, regular_levels
from meshlab.topology.model._links import FABRICS
from meshlab.topology.model._products import find_product

ClusterLike = Cluster | str
"""A cluster, or the name of a preset such as ``"dgx-h100"``."""

# Latency of one hop between hosts in µs where a machine has its own figure beside that of its kind of network. It adds
# half of what a published all_reduce of 8 bytes on two hosts takes longer than the 25 µs of NCCL's tree, which has two
# such hops in sequence: 69 on p5 and 164 on p4de.
_EFA_P5_US, _EFA_P4_US = 25.0, 72.0


@dataclass(frozen=True, slots=True)
class Fabric:
    """The network between hosts."""

    leaf: int = 0  # hosts per leaf switch or set of rail switches, 0 if unknown
    # Leaf switches per host, more than 1 if the devices of a host are connected to different leaf switches.
    rails: int = 1
    pod: int = 0  # hosts per pod, 0 if there are no pods
    taper: float = 1.0  # oversubscription between pods
    rack: int = 1  # hosts per NVLink domain, 1 if NVLink ends at the host
    kind: str = "InfiniBand"  # a key of `FABRICS`
    hop_us: float | None = None  # latency of one hop between hosts in µs, by default that of the kind

    def levels(self, nodes: int) -> tuple[Level, ...]:
        """Return the network levels for a number of hosts."""
        hop_us = FABRICS[self.kind].hop_us if self.hop_us is None else self.hop_us
        return regular_levels(nodes, self.leaf, self.rails, self.pod, self.taper, hop_us)


@dataclass(frozen=True, slots=True)
class Preset:
    """A kind of host, and the network it is usually connected to."""

    title: str  # name of the machine
    gpu: str  # name of a product in `meshlab.topology.model._products`
    nvlinks: int  # number of NVLinks between any two GPUs, 0 without NVLink
    # PCIe switches in the order of the GPUs: NUMA node, number of GPUs, number of NICs.
    switches: tuple[tuple[int, int, int], ...]
    near: str  # link word between two endpoints of one switch
    gbits: float  # line rate of one NIC in Gb/s
    cpus: Mapping[int, str]  # CPU list of every NUMA node
    cpu_model: str  # model of the CPUs
    memory_gib: int  # main memory in GiB
    source: str  # source of these facts
    sockets: int = 2  # number of CPU sockets
    fabric: Fabric = Fabric()  # the network
    nodes: int = 1  # hosts of the smallest machine that is sold

    def node(self, name: str = "node0") -> Node:
        """Return one host."""
        product = find_product(self.gpu)
        # NVLink between GPUs. Otherwise PIX or PXB below a switch, NODE between switches of a NUMA node, and SYS.
        of_gpu = [(index, numa) for index, (numa, gpus, _) in enumerate(self.switches) for _ in range(gpus)]
        of_nic = [(index, numa) for index, (numa, _, nics) in enumerate(self.switches) for _ in range(nics)]
        position = of_gpu + of_nic  # switch and NUMA node of every endpoint

        def word(i: int, j: int) -> str:
            if i == j:
                return "X"
            if self.nvlinks and max(i, j) < len(of_gpu):
                return f"NV{self.nvlinks}"
            if position[i] == position[j]:
                return self.near
            return "NODE" if position[i][1] == position[j][1] else "SYS"

        return Node(
            name,
            tuple(product.device(k, numa=str(numa), cpus=self.cpus[numa]) for k, (_, numa) in enumerate(of_gpu)),
            tuple(
                Nic(name=f"NIC{k}", gbits=self.gbits, numa=str(numa), link_layer=self.fabric.kind)
                for k, (_, numa) in enumerate(of_nic)
            ),
            words=tuple(tuple(word(i, j) for j in range(len(position))) for i in range(len(position))),
            numa=tuple(Numa(number, cpus) for number, cpus in self.cpus.items()),
            model=self.title,
            cpu_model=self.cpu_model,
            cpu_count=sum(count_cpus(cpus) for cpus in self.cpus.values()),
            sockets=self.sockets,
            memory_bytes=self.memory_gib * 2**30,
        )


_TWO_SOCKETS_112 = MappingProxyType({0: "0-55,112-167", 1: "56-111,168-223"})
_TWO_SOCKETS_96 = MappingProxyType({0: "0-47,96-143", 1: "48-95,144-191"})
_TWO_SOCKETS_48 = MappingProxyType({0: "0-23,48-71", 1: "24-47,72-95"})
_EPYC_8_NUMA = MappingProxyType({n: f"{16 * n}-{16 * n + 15},{128 + 16 * n}-{128 + 16 * n + 15}" for n in range(8)})
_TWO_GRACES = MappingProxyType({0: "0-71", 1: "72-143"})
_EACH_ITS_NIC = ((0, 1, 1),) * 4 + ((1, 1, 1),) * 4
_SUPERPOD = Fabric(leaf=32, rails=8, pod=32)
_SUPERPOD_SOURCE = (
    "NVIDIA DGX SuperPOD reference architecture (scalable units of 32 systems, 8 rails, no oversubscription) "
    "and DGX user guides"
)

_DGX_H100 = Preset(
    title="DGX H100",
    gpu="H100 80GB",
    nvlinks=18,
    switches=_EACH_ITS_NIC,
    near="PXB",
    gbits=400,
    cpus=_TWO_SOCKETS_112,
    cpu_model="Intel Xeon Platinum 8480C",
    memory_gib=2048,
    fabric=_SUPERPOD,
    source=_SUPERPOD_SOURCE,
)

_DGX_B200 = replace(_DGX_H100, title="DGX B200", gpu="B200", cpu_model="Intel Xeon Platinum 8570")

_A3_HIGH = Preset(
    title="Google A3 High",
    gpu="H100 80GB",
    nvlinks=18,
    switches=((0, 2, 1), (0, 2, 1), (1, 2, 1), (1, 2, 1)),
    near="PIX",
    gbits=200,
    cpus=MappingProxyType({0: "0-51,104-155", 1: "52-103,156-207"}),
    cpu_model="Intel Xeon Platinum 8481C",
    memory_gib=1872,
    fabric=Fabric(kind="TCPX"),
    source="Google's page on A3 machine types (4 data NICs of 200 Gb/s); the network is not public",
)

PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        "dgx-a100": Preset(
            title="DGX A100",
            gpu="A100 80GB",
            nvlinks=12,
            switches=((3, 2, 2), (1, 2, 2), (7, 2, 2), (5, 2, 2)),  # the GPUs are not attached in NUMA order
            near="PXB",
            gbits=200,
            cpus=_EPYC_8_NUMA,
            cpu_model="AMD EPYC 7742",
            memory_gib=2048,
            fabric=Fabric(leaf=20, rails=8, pod=20),
            source="NVIDIA DGX A100 user guide; SuperPOD A100 reference architecture (scalable units of 20 systems)",
        ),
        "dgx-h100": _DGX_H100,
        "dgx-h200": replace(_DGX_H100, title="DGX H200", gpu="H200"),
        "dgx-b200": _DGX_B200,
        "gb200-nvl72": Preset(
            title="GB200 NVL72",
            gpu="GB200",
            nvlinks=18,
            switches=((0, 1, 1), (0, 1, 1), (1, 1, 1), (1, 1, 1)),
            near="PHB",
            gbits=400,
            cpus=_TWO_GRACES,
            cpu_model="NVIDIA Grace",
            memory_gib=960,
            # Counted in compute trays of 4 GPUs: 18 trays are a rack, 8 racks are a pod.
            fabric=Fabric(leaf=144, rails=4, pod=144, rack=18),
            nodes=18,
            source="NVIDIA DGX GB200 user guide (18 trays of 4 GPUs, one NVLink domain), SuperPOD GB200 (8 racks)",
        ),
        "pcie-l40s": Preset(
            title="PCIe box, 8 × L40S",
            gpu="L40S",
            nvlinks=0,
            switches=((0, 2, 1), (0, 2, 0), (1, 2, 1), (1, 2, 0)),
            near="PXB",
            gbits=200,
            cpus=_TWO_SOCKETS_112,
            cpu_model="Intel Xeon Platinum 8480",
            memory_gib=1024,
            fabric=Fabric(leaf=16),
            source="a typical two-socket server with PCIe switches, two NICs and no NVLink, not a specific product",
        ),
        "aws-p4d": Preset(
            title="AWS p4d.24xlarge",
            gpu="A100 40GB",
            nvlinks=12,
            switches=((0, 2, 1), (0, 2, 1), (1, 2, 1), (1, 2, 1)),
            near="PXB",
            gbits=100,
            cpus=_TWO_SOCKETS_48,
            cpu_model="Intel Xeon Platinum 8275CL",
            memory_gib=1152,
            fabric=Fabric(kind="EFA", hop_us=_EFA_P4_US),
            source="aws/aws-ofi-nccl topology/p4d-24xl-topo.xml, AWS instance pages; the network is not public",
        ),
        "aws-p5": Preset(
            title="AWS p5.48xlarge",
            gpu="H100 80GB",
            nvlinks=18,
            switches=((0, 1, 4),) * 4 + ((1, 1, 4),) * 4,
            near="PXB",
            gbits=100,
            cpus=_TWO_SOCKETS_96,
            cpu_model="AMD EPYC 7R13",
            memory_gib=2048,
            fabric=Fabric(kind="EFA", hop_us=_EFA_P5_US),
            source="aws/aws-ofi-nccl topology/p5.48xl-topo.xml (32 NICs of 100 Gb/s); the network is not public",
        ),
        "azure-ndv5": replace(
            _DGX_H100,
            title="Azure ND H100 v5",
            cpus=MappingProxyType({0: "0-47", 1: "48-95"}),
            memory_gib=1900,
            fabric=Fabric(leaf=32, rails=8),
            source="Azure/azhpc-images topology/ndv5-topo.xml and Azure's page on the ND H100 v5 series",
        ),
        "gcp-a3-high": _A3_HIGH,
        "gcp-a3-mega": replace(
            _A3_HIGH,
            title="Google A3 Mega",
            switches=((0, 2, 2), (0, 2, 2), (1, 2, 2), (1, 2, 2)),
            fabric=Fabric(kind="TCPXO"),
            source="Google's page on A3 machine types (8 data NICs of 200 Gb/s); the network is not public",
        ),
        "alps-gh200": Preset(
            title="Alps, 4 × GH200",
            gpu="GH200 96GB",
            nvlinks=6,
            switches=((0, 1, 1), (1, 1, 1), (2, 1, 1), (3, 1, 1)),
            near="PHB",
            gbits=200,
            cpus=MappingProxyType({n: f"{72 * n}-{72 * n + 71}" for n in range(4)}),
            sockets=4,
            cpu_model="NVIDIA Grace",
            memory_gib=512,
            fabric=Fabric(kind="Slingshot"),
            source="CSCS documentation of Alps (4 × GH200 and 4 Slingshot NICs of 200 Gb/s per node); "
            "its dragonfly network is drawn as one level",
        ),
        "superpod-h100": replace(_DGX_H100, title="DGX SuperPOD H100"),
        "superpod-b200": replace(_DGX_B200, title="DGX SuperPOD B200"),
        "tapered-h100": replace(
            _DGX_H100,
            title="H100 pods, 1:7 oversubscribed",
            fabric=Fabric(leaf=2, pod=384, taper=7.0, kind="Ethernet"),
            source="Meta's 24,576 GPUs on RoCE: racks of 16, pods of 3,072, 1:7 above (Llama 3 paper, section 3.3.1)",
        ),
    }
)
"""The machines that `preset` can build, by name."""


def preset(
    name: str,
    nodes: int | None = None,
    *,
    nodes_per_leaf: int | None = None,
    nodes_per_pod: int | None = None,
    rails: int | None = None,
    taper: float | None = None,
    nodes_per_rack: int | None = None,
) -> Cluster:
    """Create a cluster of a well-known machine. Its `source` names the data sheets.

    Parameters
    ----------
    name : str
        Name of a preset, such as ``"dgx-h100"`` or ``"gb200-nvl72"``. ``list(ml.topology.PRESETS)`` lists them.
    nodes : int, optional
        Number of hosts. By default 1, or 18 (one rack) for ``"gb200-nvl72"``.
    nodes_per_leaf : int, optional
        Hosts per leaf switch, or per set of rail switches. By default as in the preset.
    nodes_per_pod : int, optional
        Hosts per pod, 0 for no pods. By default as in the preset.
    rails : int, optional
        Leaf switches per host. By default as in the preset.
    taper : float, optional
        Oversubscription between pods: 7 means 1:7. By default as in the preset.
    nodes_per_rack : int, optional
        Hosts per NVLink domain. By default as in the preset.

    Raises
    ------
    TopologyError
        If the preset is unknown.
        If a number is out of range.

    Examples
    --------
    >>> import meshlab as ml
    >>> ml.preset("dgx-h100", nodes=128)
    <Cluster DGX H100: 128 nodes, 1,024 × H100 80GB, NVLink domains of 8,
    levels device < nvlink < host < leaf < pod < cluster>
    >>> ml.preset("gb200-nvl72").summary
    '18 nodes, 72 × GB200, NVLink domains of 72'
    """
    machine = find_preset(name)
    nodes = machine.nodes if nodes is None else nodes
    numbers = {"nodes": nodes, "nodes_per_leaf": nodes_per_leaf, "rails": rails, "nodes_per_rack": nodes_per_rack}
    for argument, value in (numbers | {"nodes_per_pod": nodes_per_pod}).items():
        least, most = int(argument != "nodes_per_pod"), MOST_RAILS if argument == "rails" else MOST_NODES
        if value is not None and (not isinstance(value, int) or not least <= value <= most):
            raise TopologyError(
                f"{argument} must be an integer from {least} to {most:,}, not {short(value)}",
                hint="pass 0 for no pods" if least == 0 else "",
            )
    if taper is not None:
        check_taper(taper)
    fabric = replace(
        machine.fabric,
        leaf=nodes_per_leaf or machine.fabric.leaf,
        pod=machine.fabric.pod if nodes_per_pod is None else nodes_per_pod,
        rails=rails or machine.fabric.rails,
        taper=taper or machine.fabric.taper,
        rack=nodes_per_rack or machine.fabric.rack,
    )
    return Cluster(
        (machine.node(),),
        np.zeros(nodes, dtype=np.int32),
        tuple(f"node{number}" for number in range(nodes)),
        levels=fabric.levels(nodes),
        nvlink_of_node=np.arange(nodes, dtype=np.int32) // fabric.rack if fabric.rack > 1 else None,
        title=machine.title,
        source=machine.source,
    )


def find_preset(name: str) -> Preset:
    """Return a preset by name, or raise a `TopologyError` that lists the presets."""
    if not isinstance(name, str) or name not in PRESETS:
        raise TopologyError(
            f"unknown preset {short(name)}{did_you_mean(name, PRESETS)}",
            hint=Hint("choose one of {}, or {}", ", ".join(PRESETS), READ_A_FILE),
        )
    return PRESETS[name]


def as_cluster(value: object) -> Cluster:
    """Return a cluster from a cluster or the name of a preset.

    Parameters
    ----------
    value : Cluster or str
        A cluster, or the name of a preset.

    Raises
    ------
    TopologyError
        If `value` is neither.

    Examples
    --------
    >>> import meshlab as ml
    >>> ml.topology.as_cluster("dgx-h100").summary
    '1 node, 8 × H100 80GB, NVLink domains of 8'
    """
    if isinstance(value, Cluster):
        return value
    if isinstance(value, str):
        return preset(value)
    # ml.topology.read() also returns the graphs of NCCL. Readers import the model, so the model cannot import the class
    # of graphs. Instead the class has an attribute with the explanation.
    why = getattr(value, "why_no_cluster", None)
    if isinstance(why, str):
        raise TopologyError(why)
    raise TopologyError(
        f"a cluster must be a Cluster or the name of a preset, not {type(value).__name__}",
        hint="create one with ml.probe(), ml.preset() or ml.topology.read()",
    )


def as_node(value: ClusterLike | Node, node: int | str = 0) -> Node:
    """Return a host unchanged, or the host of a cluster or preset with the given index or name."""
    return value if isinstance(value, Node) else as_cluster(value).node(node)
