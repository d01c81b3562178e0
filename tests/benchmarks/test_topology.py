"""How fast topology is: placement, pictures, readers. Run with pytest-benchmark; the limits are in the docstrings."""

from __future__ import annotations

import io
from typing import Any

import matplotlib as mpl
import pytest

import meshlab as ml
from meshlab.mesh._mesh import DeviceMesh
from meshlab.topology._health import health
from meshlab.topology.model._cluster import Cluster
from meshlab.topology.model._presets import preset
from meshlab.topology.placement._placement import place
from meshlab.topology.readers._nccl_graph import NcclGraphs
from meshlab.topology.readers._nccl_xml import read_nccl_topology
from meshlab.topology.readers._nvidia_smi import read_nvidia_smi
from meshlab.topology.readers._slurm import read_slurm_topology

MESH = DeviceMesh("pp=16, dp_replicate=8, dp_shard=16, cp=2, ep=4, tp=8")
TEN_MB = 10_000_000


@pytest.mark.parametrize("machine", ["tapered-h100", "dgx-h100"])
def test_placement_of_131072_ranks_on_six_axes(benchmark: Any, machine: str) -> None:
    """All levels, at best under 10 ms, and under 25 ms with oversubscribed uplinks."""
    cluster = preset(machine, nodes=16384)
    placement = benchmark(place, MESH, cluster)
    assert len(placement.cache) == 6
    assert placement.of("tp").domains[2].max() == 1


def picture(mesh: DeviceMesh, cluster: Cluster, axis: str) -> bytes:
    from matplotlib import pyplot as plt

    ax = ml.plot.topology(mesh, cluster, axis=axis)
    buffer = io.BytesIO()
    ax.figure.savefig(buffer, format="png")
    plt.close(ax.figure)  # type: ignore[arg-type]
    return buffer.getvalue()


@pytest.mark.parametrize("axis", ["tp", "dp", "pp"])
def test_the_picture_of_16384_devices(benchmark: Any, axis: str) -> None:
    """With its PNG, under 300 ms."""
    mpl.use("Agg")
    mesh, cluster = DeviceMesh("pp=16, dp=128, tp=8"), preset("tapered-h100", nodes=2048)
    assert benchmark(picture, mesh, cluster, axis)[:4] == b"\x89PNG"


def test_text_and_findings_of_16384_devices(benchmark: Any) -> None:
    mesh, cluster = DeviceMesh("pp=16, dp=128, tp=8"), preset("tapered-h100", nodes=2048)
    text = benchmark(lambda: (ml.topology.text(mesh, cluster), health(cluster).summary))
    assert "no problems found" in text[1]


def smi_matrix(gpus: int) -> str:
    header = "\t" + "\t".join(f"GPU{i}" for i in range(gpus)) + "\tCPU Affinity\tNUMA Affinity\n"
    rows = (
        f"GPU{i}\t" + "\t".join(" X " if i == j else "NV18" for j in range(gpus)) + "\t0-55,112-167\t0\n"
        for i in range(gpus)
    )
    return header + "".join(rows)


def xml_hosts(size: int) -> str:
    """A dump over many hosts, as wordy as NCCL writes it."""
    facts = 'vendor="0x10de" device="0x2330" subsystem_vendor="0x10de" subsystem_device="0x16c1"'
    speed = 'link_speed="32.0 GT/s PCIe" link_width="16"'
    links = "".join(f'            <nvlink target="0000:1{k}:00.0" count="5" tclass="0x068000"/>\n' for k in "abcd")
    parts = [
        f"""    <pci busid="0000:{g:02x}:00.0" class="0x060400" {facts} {speed}>
      <pci busid="0000:{g:02x}:01.0" class="0x060400" {facts} {speed}>
        <pci busid="0000:{g:02x}:02.0" class="0x030200" {facts} {speed}>
          <gpu dev="{g}" sm="90" rank="{g}" gdr="1">
{links}          </gpu>
        </pci>
      </pci>
      <pci busid="0000:{g:02x}:03.0" class="0x020700" {facts} {speed}>
        <nic>
          <net name="mlx5_{g}" dev="{g}" speed="400000" port="1" latency="0.000000" guid="0x1000" maxconn="131072"/>
        </nic>
      </pci>
    </pci>
"""
        for g in range(8)
    ]
    cpu = 'numaid="0" affinity="ffffffff,ffffffff" vendor="AuthenticAMD"'
    host = f'  <cpu host_hash="0x@" {cpu}>\n{"".join(parts)}  </cpu>\n'
    hosts = (host.replace("@", f"{number:x}") for number in range(size // len(host)))
    return f'<system version="1">\n{"".join(hosts)}</system>'


def slurm_conf(size: int) -> str:
    line = "SwitchName=leaf{i:05d} LinkSpeed=400 Nodes={hosts}\n"
    count = size // len(line.format(i=0, hosts=",".join(f"node{k:07d}" for k in range(16))))
    lines = (line.format(i=i, hosts=",".join(f"node{k:07d}" for k in range(16 * i, 16 * i + 16))) for i in range(count))
    return "".join(lines) + f"SwitchName=spine Switches=leaf[00000-{count - 1:05d}]\n"


def slurm_yaml(size: int) -> str:
    item = "      - switch: leaf{i:05d}\n        nodes: {hosts}\n"
    count = size // len(item.format(i=0, hosts=",".join(f"node{k:07d}" for k in range(16))))
    items = (item.format(i=i, hosts=",".join(f"node{k:07d}" for k in range(16 * i, 16 * i + 16))) for i in range(count))
    return "- topology: default\n  cluster_default: true\n  tree:\n    switches:\n" + "".join(items)


def graphs(size: int) -> str:
    """Graphs of a rack, as wordy as NCCL writes them."""
    gpus = "\n".join(f'      <gpu dev="0x{dev:x}" rank="{dev}"/>{" " * 30}' for dev in range(72))
    channel = f'    <channel>\n      <net dev="0x0"/>\n{gpus}\n      <net dev="0x1"/>\n    </channel>\n'
    graph = f'  <graph id="0" pattern="4" nchannels="64" speedintra="12" typeintra="NVL">\n{channel * 24}  </graph>\n'
    return f'<graphs version="1">\n{graph * (size // len(graph))}</graphs>'


@pytest.mark.parametrize(
    ("read", "make"),
    [
        pytest.param(read_nvidia_smi, lambda: smi_matrix(1410), id="nvidia-smi, one matrix"),
        pytest.param(
            lambda text: read_nvidia_smi(text, machine="all"),
            lambda: smi_matrix(8) * (TEN_MB // len(smi_matrix(8))),
            id="nvidia-smi, 18,000 machines",
        ),
        pytest.param(read_nccl_topology, lambda: xml_hosts(TEN_MB), id="NCCL topology"),
        pytest.param(ml.topology.read, lambda: graphs(TEN_MB), id="NCCL graphs"),
        pytest.param(read_slurm_topology, lambda: slurm_conf(TEN_MB), id="Slurm conf"),
        pytest.param(ml.topology.read, lambda: slurm_yaml(TEN_MB), id="Slurm yaml"),
    ],
)
def test_every_reader_over_ten_megabytes(benchmark: Any, read: Any, make: Any) -> None:
    """Under 1 s each."""
    text = make()
    assert len(text) > 0.95 * TEN_MB
    assert isinstance(benchmark.pedantic(read, args=(text,), rounds=2), Cluster | NcclGraphs)
