"""Every rule finds its fault, and a healthy machine has no findings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from meshlab.topology._health import health
from meshlab.topology.model._cluster import Cluster
from meshlab.topology.model._hardware import Device, Nic, Node, Numa
from meshlab.topology.model._presets import PRESETS, preset
from meshlab.topology.readers._nvidia_smi import read_nvidia_smi

H100 = preset("dgx-h100").node(0)


def cluster(*nodes: Node) -> Cluster:
    return Cluster.from_nodes([replace(node, name=f"n{i}") for i, node in enumerate(nodes)])


def changed(node: Node, **fields: Any) -> Node:
    """Return the node with different facts for its first device."""
    return replace(node, devices=(replace(node.devices[0], **fields), *node.devices[1:]))


def worded(node: Node, words: dict[tuple[int, int], str], both: bool = True) -> Node:
    matrix = [list(row) for row in node.words]
    for (i, j), word in words.items():
        matrix[i][j] = word
        if both:
            matrix[j][i] = word
    return replace(node, words=tuple(map(tuple, matrix)))


def plain(count: int, word: str, nics: Sequence[tuple[int, ...]] = (), **facts: Any) -> Node:
    """Return a node with GPUs of an unknown product, and NICs that share a switch with the listed GPUs."""
    ends = count + len(nics)
    words = [["X" if i == j else word for j in range(ends)] for i in range(ends)]
    for k, near in enumerate(nics):
        for gpu in near:
            words[gpu][count + k] = words[count + k][gpu] = "PIX"
    devices = tuple(Device(id=i, **facts) for i in range(count))
    return Node("a", devices, tuple(Nic(name=f"mlx5_{k}") for k in range(len(nics))), words=tuple(map(tuple, words)))


FAR_NICS = ("pcie-l40s", "pcie-rtx-pro-6000", "gcp-g4")  # two NICs for four PCIe switches


@pytest.mark.parametrize("name", [name for name in PRESETS if name not in FAR_NICS])
def test_healthy_machine_has_no_findings(name: str) -> None:
    found = health(preset(name, nodes=3))
    assert found.codes == ()
    assert "no problems found" in found.summary
    assert preset(name, nodes=3).health() == found


NO_NVLINK = {(2, j): "NODE" for j in range(8) if j != 2}
CASES = [
    ("off-fabric", "error", worded(H100, NO_NVLINK), "GPU2 has no NVLink, but the other GPUs have NV18"),
    (
        "fewer-nvlinks",
        "error",
        worded(H100, {(2, j): "NV12" for j in range(8) if j != 2}),
        "GPU2 has NV12, but the other GPUs have NV18",
    ),
    (
        "pair-off-nvlink",
        "error",
        worded(H100, {(0, 1): "NODE"}),
        "GPU0 and GPU1 have no NVLink between them",
    ),
    (
        "pair-off-nvlink",
        "error",
        worded(H100, {(0, 1): "NODE", (2, 5): "SYS", (3, 4): "SYS"}),
        "GPU0 and GPU1 have no NVLink between them (and 2 more pairs), but the other pairs have NV18",
    ),
    ("asymmetric", "error", worded(H100, {(0, 1): "SYS"}, both=False), "GPU1 to GPU0 is NV18, GPU0 to GPU1 is SYS"),
    (
        "all-pcie",
        "error",
        worded(
            replace(H100, devices=tuple(replace(d, nvlink_count=None) for d in H100.devices)),
            {(i, j): "SYS" for i in range(8) for j in range(i)},
        ),
        "these GPUs have NVLink, but all pairs are SYS",
    ),
    (
        "nvlink-unused",
        "error",
        plain(4, "SYS", nvlink_count=18, nvlink_remotes=(("switch", "b", 18),)),
        "every GPU has active NVLinks, but all pairs are SYS",
    ),
    (
        "maybe-mp",
        "warning",
        plain(4, "PHB", [(0,), (1,), (2,), (3,)]),
        "4 GPUs with one nearby NIC each, but without NVLink: all pairs are PHB",
    ),
    ("no-near-nic", "warning", plain(3, "NODE", [(0,), (1,)]), "GPU2 has no NIC closer than NODE"),
    (
        "nic-crowded",
        "warning",
        plain(3, "NODE", [(0, 1), (2,), ()]),
        "GPU0, GPU1 share their only nearest NIC mlx5_0, but mlx5_2 in the same NUMA node",
    ),
    (
        "nic-down",
        "warning",
        replace(H100, nics=(replace(H100.nics[0], state="DOWN"), *H100.nics[1:])),
        "NIC0 is not active",
    ),
    ("affinity-spans", "warning", plain(8, "PHB", numa="0-1"), "affinity of 8 GPUs spans NUMA nodes 0-1"),
    (
        "one-affinity",
        "note",
        replace(plain(8, "PHB", numa="0", cpus="0-7"), numa=(Numa(0, "0-7"), Numa(1, "8-15"))),
        "all 8 GPUs have the affinity of NUMA node 0, but the host has 2 NUMA nodes",
    ),
    (
        "numa-without-cpus",
        "note",
        replace(plain(1, "SYS", numa="2"), numa=(Numa(0, "0-71"), Numa(2, ""))),
        "NUMA node 2 of GPU0 has no CPUs",
    ),
    ("pcie-width", "error", changed(H100, pcie_width=8), "GPU0 uses 8 of 16 PCIe lanes"),
    (
        "pcie-generation",
        "warning",
        changed(H100, pcie_generation=3, utilisation_percent=90.0),
        "GPU0 is busy, but its PCIe link runs at generation 3 of 5",
    ),
    ("mig", "warning", changed(H100, mig="7 × 1g.10gb"), "MIG mode is on for GPU0"),
    ("mixed-gpus", "warning", changed(H100, name="H200"), "the host has H100 80GB and H200"),
    ("ecc", "error", changed(H100, ecc_uncorrected=2), "GPU0 has memory errors"),
    ("lost", "error", changed(H100, unknown={"name": "GPU is lost"}), "GPU0 did not respond: GPU is lost"),
    (
        "fabric-not-ready",
        "error",
        changed(H100, unknown={"fabric": "the NVLink fabric is in progress"}),
        "GPU0: the NVLink fabric is in progress",
    ),
    (
        "no-peer-access",
        "warning",
        replace(plain(2, "NODE"), p2p=(("X", "NS"), ("NS", "X"))),
        "GPU0 and GPU1 cannot access each other's memory",
    ),
    ("no-gpu", "note", Node("a", notes=("no GPU found: no driver",)), "no GPU found: no driver"),
    ("no-gpu", "note", Node("a"), "no GPU found"),
    ("nvlink-unknown", "note", replace(plain(8, "PHB"), nvlink_known=False), "the source does not list NVLink"),
    (
        "nvlink-hidden",
        "note",
        changed(plain(2, "SYS"), bus_id="1", nvlink_remotes=(("gpu", "1", 4),)),
        "NVLinks connect a GPU to itself",
    ),
    ("incomplete", "note", replace(H100, complete=False), "the description is truncated"),
]


def test_the_memory_of_gpus_beside_grace_is_no_hidden_location() -> None:
    assert health(cluster(plain(4, "PHB", numa="0,2-9"))).codes == ()
    assert "affinity-spans" in health(cluster(plain(4, "PHB", numa="0,1"))).codes


@pytest.mark.parametrize(("code", "severity", "node", "message"), CASES, ids=[case[0] for case in CASES])
def test_rule_finds_its_fault_and_suggests_a_fix(code: str, severity: str, node: Node, message: str) -> None:
    found = health(cluster(node))
    assert found.codes == (code,)
    assert found[0].severity == severity
    assert message in found[0].message
    assert len(found[0].fix) > 10


@pytest.mark.parametrize(
    ("code", "nodes", "message"),
    [
        (
            "mixed-hosts",
            [H100, H100, preset("dgx-h200").node(0)],
            "the GPU product is H200, but on most hosts H100 80GB",
        ),
        (
            "mixed-drivers",
            [H100, H100, replace(H100, devices=tuple(replace(d, driver_version="550") for d in H100.devices))],
            "the driver version is 550, but on most hosts 570",
        ),
        (
            "mixed-nics",
            [H100, H100, replace(H100, nics=(replace(H100.nics[0], gbits=100.0), *H100.nics[1:]))],
            "the NICs are 7 × 400 Gb/s, 1 × 100 Gb/s, but on most hosts 8 × 400 Gb/s",
        ),
        (
            "mixed-nics",
            [H100, H100, replace(H100, nics=(replace(H100.nics[0], gbits=10.0), *H100.nics[1:]))],
            "the NICs are 7 × 400 Gb/s, but on most hosts 8 × 400 Gb/s",
        ),
        ("uneven-hosts", [plain(4, "PHB"), plain(4, "PHB"), plain(3, "PHB")], "the number of GPUs is 3, but on most"),
    ],
)
def test_differing_hosts_are_named(code: str, nodes: list[Node], message: str) -> None:
    if code == "mixed-drivers":
        first = replace(H100, devices=tuple(replace(d, driver_version="570") for d in H100.devices))
        nodes = [first, first, nodes[2]]
    found = health(cluster(*nodes))
    assert found.codes == (code,)
    assert found[0].nodes == ("n2",)
    assert message in found[0].message


def test_identical_hosts_share_a_finding_and_the_most_severe_is_first() -> None:
    bad = worded(H100, NO_NVLINK)
    found = health(cluster(changed(H100, mig="on"), *[bad] * 5))
    assert found.codes == ("off-fabric", "mig")
    assert found[0].where == "n1, n2 and 3 more"
    assert found.summary == "1 error, 1 warning in 48 devices of 6 nodes"


def test_bridges_and_rings_without_all_pairs_are_not_faults() -> None:
    ring = worded(plain(4, "PHB"), {(0, 1): "NV4", (1, 2): "NV4", (2, 3): "NV4", (0, 3): "NV4"})
    bridges = worded(plain(4, "PHB"), {(0, 1): "NV4", (2, 3): "NV4"})
    assert health(cluster(ring)).codes == health(cluster(bridges)).codes == ()


def test_finding_does_not_repeat_the_note_of_the_driver() -> None:
    found = health(cluster(Node("a", notes=("no GPU found: no driver",))))
    assert str(found[0]) == "note: n0: no GPU found: no driver; run nvidia-smi on that host"


def test_single_gpu_needs_no_nvlink() -> None:
    assert health(cluster(replace(plain(1, "PHB"), nvlink_known=False))).codes == ()


def test_idle_gpus_may_lower_their_pcie_generation() -> None:
    assert health(cluster(changed(H100, pcie_generation=1, utilisation_percent=0.0))).codes == ()
    assert health(cluster(changed(H100, pcie_generation=1))).codes == ()


def test_numbers_beyond_any_integer_are_no_error() -> None:
    node = replace(plain(2, "SYS", numa="0" * 5001), numa=(Numa(0, "0-71"), Numa(2, "")))
    far = replace(node, devices=tuple(replace(device, id=9706854775 + device.id) for device in node.devices))
    for one in (node, far):
        cluster = Cluster.from_nodes([one])
        health(cluster)
        cluster.plot()


def test_truncated_paste_is_not_mistaken_for_a_lost_gpu() -> None:
    text = "\tGPU0\tGPU1\tGPU2\tGPU3\nGPU0\t X \tNV18\tNV18\tNV18\nGPU1\tNV18\t X \tNV18\tNV18\nGPU2\tNV18"
    assert health(read_nvidia_smi(text)).codes == ("incomplete",)


MP = """\
\t\x1b[4mGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tPHB\t0-31\t0\t\tN/A
GPU1\tPHB\t X \t0-31\t0\t\tN/A

Legend:

  X    = Self
  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)
  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)
  PIX  = Connection traversing at most a single PCIe bridge
"""


def test_legend_distinguishes_topo_mp_from_a_fault() -> None:
    assert health(read_nvidia_smi(MP, device="H200")).codes == ("mp",)
    with_legend = MP + "  NV#  = Connection traversing a bonded set of # NVLinks\n"
    assert health(read_nvidia_smi(with_legend, device="H200")).codes == ("all-pcie",)


def test_findings_as_text_table_and_html() -> None:
    found = health(cluster(worded(H100, NO_NVLINK)))
    assert str(found).splitlines()[1].startswith("error: n0: GPU2 has no NVLink, but")
    assert found.frame()["code"].tolist() == ["off-fabric"]
    assert "fabric manager" in found._repr_html_()
    assert repr(found) == "<Findings: 1 error in 8 devices of 1 node; next: .frame()>"
    assert next(iter(found)) is found[0]
