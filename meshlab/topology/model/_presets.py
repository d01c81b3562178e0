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
    nvlinks: int | None  # number of NVLinks between any two GPUs, 0 without NVLink, None for XGMI
    # PCIe switches in the order of the GPUs: NUMA node, number of GPUs, number of NICs.
    switches: tuple[tuple[int, int, int], ...]
    near: str  # link word between two endpoints of one switch
    gbits: float  # line rate of one NIC in Gb/s
    cpus: Mapping[int, str]  # CPU list of every NUMA node
    cpu_model: str | None  # model of the CPUs, None if not stated
    memory_gib: int  # main memory in GiB
    source: str  # source of these facts
    sockets: int = 2  # number of CPU sockets
    fabric: Fabric = Fabric()  # the network
    nodes: int = 1  # hosts of the smallest machine that is sold
    notes: tuple[str, ...] = ()  # remarks on what is not modelled

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
            if self.nvlinks != 0 and max(i, j) < len(of_gpu):
                return f"XGMI{product.xgmi_per_pair}" if self.nvlinks is None else f"NV{self.nvlinks}"
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
            notes=self.notes,
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

_GB200 = Preset(
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
)

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

_DGX_A100 = Preset(
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
)

_PCIE = Preset(
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
)

_NOT_PUBLIC = "network: not public"


def _facts(gpus: str, nics: str, *, cpus: str = "", network: str = _NOT_PUBLIC) -> str:
    """Return the sources of the facts of a machine. What a source does not state is named."""
    cpus = cpus or "not stated, drawn as in a similar machine"
    return f"GPUs: {gpus}; NICs: {nics}; CPUs and memory: {cpus}; {network}"


_AWS_TABLES = "stas00/ml-engineering network/README.md, aws-samples/awsome-distributed-training efa-cheatsheet.md"
_GOOGLE = "Google's page on the network bandwidth of GPU machines"
_OCI_CHECKS = "oracle-quickstart/oci-hpc check_gpu_setup.py"
_NO_MODEL_OF_AMD = (
    "xGMI links all GPUs, with a peak of 448 GB/s per GPU in one direction, of which RCCL assumes 336. meshlab has no "
    "cost model of RCCL, so that times of this machine come from published curves only",
)

_P5EN = Preset(
    title="AWS p5en.48xlarge",
    gpu="H200",
    nvlinks=18,
    switches=((0, 1, 2),) * 4 + ((1, 1, 2),) * 4,
    near="PXB",
    gbits=200,
    cpus=_TWO_SOCKETS_96,
    cpu_model=None,
    memory_gib=2048,
    fabric=Fabric(kind="EFA"),
    source=_facts(_AWS_TABLES, "16 of 200 Gb/s, EFA v3, same tables"),
)

_OCI_H100 = replace(
    _DGX_H100,
    title="OCI BM.GPU.H100.8",
    switches=((0, 1, 2),) * 4 + ((1, 1, 2),) * 4,
    gbits=200,
    cpu_model="Intel Xeon (model 143)",
    fabric=Fabric(kind="Ethernet"),
    source=_facts(
        _OCI_CHECKS,
        "16 RDMA devices, same file, of 200 Gb/s (oci-hpc's topology file of this shape, whose links have 180)",
        cpus="vendor and CPUs in the topology file; memory not stated",
    ),
)

_MI300X = Preset(
    title="8 × MI300X",
    gpu="MI300X",
    nvlinks=None,
    switches=_EACH_ITS_NIC,
    near="PXB",
    gbits=400,
    cpus=_TWO_SOCKETS_96,
    cpu_model=None,
    memory_gib=2048,
    notes=_NO_MODEL_OF_AMD,
    source=_facts(
        "AMD's ROCm blog on RCCL and xGMI (full mesh, 7 links of 64 GB/s)",
        "not stated there, drawn with the 8 of 400 Gb/s of OCI and Azure",
    ),
)

_B300 = replace(
    _DGX_B200,
    title="DGX B300",
    gpu="B300",
    gbits=800,
    cpu_model="Intel Xeon 6776P",
    fabric=Fabric(),
    source=_facts(
        "stas00/ml-engineering network/README.md (NVLink 5)",
        "8 ConnectX-8 of 800 Gb/s on the GPU board, same page",
        cpus="aiwiki.ai nvidia_dgx_b300 (model); CPU numbers and memory not stated",
        network="network: not stated",
    ),
)

_GB300 = replace(
    _GB200,
    title="GB300 NVL72",
    gpu="GB300",
    gbits=800,
    source=_facts(
        "NVIDIA's enterprise reference architecture of NVL72 (18 trays of 4 GPUs, 130 TB/s)",
        "4 ConnectX-8 of 800 Gb/s per tray, same page",
        cpus="2 Grace per tray, same page; memory not stated",
        network="network: drawn as that of GB200",
    ),
)

# Machines whose facts are a source's own words. What no source states is drawn like a similar machine, and named.
_MORE: Mapping[str, Preset] = {
    "dgx-b300": _B300,
    "gb300-nvl72": _GB300,
    "dgx-spark": Preset(
        title="DGX Spark",
        gpu="GB10",
        nvlinks=0,
        switches=((0, 1, 2),),
        near="PHB",
        gbits=100,
        cpus=MappingProxyType({0: "0-19"}),
        sockets=1,
        cpu_model="NVIDIA Grace (GB10)",
        memory_gib=128,
        fabric=Fabric(kind="Ethernet"),
        source=_facts(
            "NVIDIA dgx-spark-playbooks",
            "one ConnectX-7 of 200 Gb/s on two Gen5 x4 links, seen as two interfaces of about 100 Gb/s each, without "
            "GPUDirect RDMA (servethehome.com on GB10's ConnectX-7, dgx-spark-playbooks issue 102)",
            cpus="NVIDIA's DGX Spark user guide",
            network="network: a cable between two",
        ),
    ),
    "hgx-h100-4nic": replace(
        _DGX_H100,
        title="HGX H100, 4 NICs",
        switches=((0, 2, 1), (0, 2, 1), (1, 2, 1), (1, 2, 1)),
        fabric=Fabric(leaf=16, rails=4),
        source="an HGX board with a NIC for every two GPUs, not a specific product; otherwise as DGX H100",
    ),
    "hgx-h200-4nic": replace(
        _DGX_H100,
        title="HGX H200, 4 NICs",
        gpu="H200",
        switches=((0, 2, 1), (0, 2, 1), (1, 2, 1), (1, 2, 1)),
        fabric=Fabric(leaf=16, rails=4),
        source="an HGX board with a NIC for every two GPUs, not a specific product; otherwise as DGX H200",
    ),
    "pcie-rtx-pro-6000": replace(
        _PCIE,
        title="PCIe box, 8 × RTX PRO 6000",
        gpu="RTX PRO 6000",
        gbits=400,
        source=_facts(
            "no NVLink, PCIe Gen5 x16 (store.sourcecode.com, ai-infrastructure.net); their number is free",
            "not stated, drawn as two of 400 Gb/s",
            network="network: not stated",
        ),
    ),
    "pcie-rtx-4090": replace(
        _PCIE,
        title="PCIe box, 8 × RTX 4090",
        gpu="RTX 4090",
        near="PHB",
        switches=((0, 4, 1), (1, 4, 0)),
        gbits=100,
        source=_facts(
            "no NVLink, PCIe Gen4 x16, and no peer access between GeForce cards (NVIDIA/nccl-tests issue 287)",
            "not stated, drawn as one of 100 Gb/s",
            network="network: not stated",
        ),
    ),
    "pcie-rtx-5090": replace(
        _PCIE,
        title="PCIe box, 8 × RTX 5090",
        gpu="RTX 5090",
        near="PHB",
        switches=((0, 4, 1), (1, 4, 0)),
        gbits=100,
        source=_facts(
            "no NVLink, PCIe Gen5 x16 (ai-infrastructure.net, NVIDIA/nccl issue 1639)",
            "not stated, drawn as one of 100 Gb/s",
            network="network: not stated",
        ),
    ),
    "mi300x": _MI300X,
    "aws-p5en": _P5EN,
    "aws-p6-b200": replace(
        _P5EN,
        title="AWS p6-b200.48xlarge",
        gpu="B200",
        switches=_EACH_ITS_NIC,
        gbits=400,
        source=_facts(_AWS_TABLES, "8 of 400 Gb/s, EFA v4, same tables"),
    ),
    "aws-p6-b300": replace(
        _P5EN,
        title="AWS p6-b300.48xlarge",
        gpu="B300",
        gbits=400,
        source=_facts("stas00/ml-engineering network/README.md", "16 of 400 Gb/s, EFA v4, same page"),
    ),
    "azure-nd-a100-v4": replace(
        _DGX_A100,
        title="Azure ND A100 v4",
        gpu="A100 40GB",
        switches=((0, 2, 2), (1, 2, 2), (2, 2, 2), (3, 2, 2)),
        cpus=MappingProxyType({n: f"{24 * n}-{24 * n + 23}" for n in range(4)}),
        cpu_model="AMD EPYC 7V12",
        memory_gib=900,
        fabric=Fabric(leaf=20, rails=8),
        source=_facts(
            "Azure's page on the NDasrA100_v4 series",
            "8 of 200 Gb/s, same page",
            cpus="same page, and Azure/azhpc-images topology/ndv4-topo.xml (4 NUMA nodes)",
            network="network: rails; their size is not stated",
        ),
    ),
    "azure-nd-h200-v5": replace(
        _DGX_H100,
        title="Azure ND H200 v5",
        gpu="H200",
        cpus=MappingProxyType({0: "0-47", 1: "48-95"}),
        memory_gib=1850,
        fabric=Fabric(leaf=32, rails=8),
        source=_facts(
            "a public page on Azure's H200 machines",
            "not stated, drawn as the 8 of 400 Gb/s of ND H100 v5",
            cpus="96 CPUs and 1,850 GB (Aspire.Hosting.Azure.Kubernetes); model not stated",
            network="network: drawn as that of ND H100 v5",
        ),
    ),
    "azure-nd-mi300x-v5": replace(
        _MI300X,
        title="Azure ND MI300X v5",
        cpus=MappingProxyType({0: "0-47", 1: "48-95"}),
        memory_gib=1850,
        source=_facts(
            "MicrosoftDocs/azure-docs nd-mi300x-v5-series.md",
            "8 of 400 Gb/s (NDR), same page",
            cpus="96 CPUs and 1,850 GiB, same page; model not stated",
        ),
    ),
    "gcp-a3-ultra": replace(
        _DGX_H100,
        title="Google A3 Ultra",
        gpu="H200",
        cpu_model=None,
        fabric=Fabric(kind="Ethernet"),
        source=_facts(_GOOGLE, "8 ConnectX-7 of 400 Gb/s, RDMA over RoCE, same page"),
    ),
    "gcp-a4": replace(
        _DGX_B200,
        title="Google A4",
        cpu_model=None,
        fabric=Fabric(kind="Ethernet"),
        source=_facts(_GOOGLE, "8 ConnectX-7 of 400 Gb/s, RDMA over RoCE, same page"),
    ),
    "gcp-a4x": replace(
        _GB200,
        title="Google A4X",
        source=_facts(
            _GOOGLE,
            "4 ConnectX-7, 1,600 Gb/s in all, same page",
            cpus="not stated, drawn as in GB200 NVL72",
            network="network: drawn as that of GB200 NVL72",
        ),
    ),
    "gcp-a4x-max": replace(
        _GB300,
        title="Google A4X Max",
        source=_facts(
            _GOOGLE,
            "4 ConnectX-8, 3,200 Gb/s in all, same page",
            cpus="not stated, drawn as in GB300 NVL72",
            network="network: drawn as that of GB200 NVL72",
        ),
    ),
    "gcp-g4": replace(
        _PCIE,
        title="Google G4",
        gpu="RTX PRO 6000",
        fabric=Fabric(kind="Ethernet"),
        source=_facts(_GOOGLE, "400 Gb/s in all, same page; their number is not stated, drawn as two"),
    ),
    "oci-b4": replace(
        _DGX_A100,
        title="OCI BM.GPU.B4.8",
        gpu="A100 40GB",
        switches=((3, 2, 4), (1, 2, 4), (7, 2, 4), (5, 2, 4)),
        gbits=100,
        cpu_model="AMD EPYC",
        fabric=Fabric(kind="Ethernet"),
        source=_facts(
            "oracle-quickstart/oci-hpc topology file of the shape",
            "16 of 100 Gb/s (oci-hpc-oke docs), 1.6 Tb/s in all (Oracle's blog on Supercluster)",
            cpus="vendor and NUMA nodes in the topology file; model and memory not stated",
        ),
    ),
    "oci-h100": _OCI_H100,
    "oci-h200": replace(
        _OCI_H100,
        title="OCI BM.GPU.H200.8",
        gpu="H200",
        switches=_EACH_ITS_NIC,
        gbits=400,
        cpu_model=None,
        source=_facts(_OCI_CHECKS, "8 RDMA devices, same file; rate not stated, drawn as 400 Gb/s"),
    ),
    "oci-b200": replace(
        _OCI_H100,
        title="OCI BM.GPU.B200.8",
        gpu="B200",
        switches=_EACH_ITS_NIC,
        gbits=400,
        cpu_model=None,
        source=_facts(_OCI_CHECKS, "8 RDMA devices, same file; rate not stated, drawn as 400 Gb/s"),
    ),
    "oci-b300": replace(
        _OCI_H100,
        title="OCI BM.GPU.B300.8",
        gpu="B300",
        gbits=400,
        cpu_model=None,
        source=_facts(_OCI_CHECKS, "16 RDMA devices, same file; rate not stated, drawn as 400 Gb/s"),
    ),
    "oci-mi300x": replace(
        _MI300X,
        title="OCI BM.GPU.MI300X.8",
        fabric=Fabric(kind="Ethernet"),
        source=_facts(_OCI_CHECKS, "8 RDMA devices, same file, of 400 Gb/s (oracle-quickstart/oci-hpc-oke docs)"),
    ),
    "polaris": Preset(
        title="Polaris, 4 × A100",
        gpu="A100 40GB",
        nvlinks=4,
        switches=((0, 2, 1), (1, 2, 1)),
        near="PHB",
        gbits=200,
        cpus=MappingProxyType({0: "0-15,32-47", 1: "16-31,48-63"}),
        sockets=1,
        cpu_model="AMD EPYC 7543P",
        memory_gib=512,
        fabric=Fabric(kind="Slingshot"),
        source=_facts(
            "argonne-lcf/alcf-nccl-tests",
            "2 Slingshot NICs of 200 Gb/s, ALCF's pages on Polaris; where they are attached is not stated",
            cpus="ALCF's pages on Polaris; the NUMA nodes of the GPUs are not stated",
            network="its dragonfly network is drawn as one level",
        ),
    ),
}

PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        "dgx-a100": _DGX_A100,
        "dgx-h100": _DGX_H100,
        "dgx-h200": replace(_DGX_H100, title="DGX H200", gpu="H200"),
        "dgx-b200": _DGX_B200,
        "gb200-nvl72": _GB200,
        "pcie-l40s": _PCIE,
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
        **_MORE,
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
    levels device < nvlink < host < leaf < pod < cluster; next: .health(), .plot()>
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
