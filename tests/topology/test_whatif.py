"""What-if: the new cluster, and what follows for placement and findings."""

from __future__ import annotations

import numpy as np
import pytest

from meshlab.errors import TopologyError
from meshlab.mesh.mesh import DeviceMesh
from meshlab.topology.health import health
from meshlab.topology.model.cluster import Cluster
from meshlab.topology.model.hardware import Device, Node
from meshlab.topology.model.presets import preset
from meshlab.topology.placement.placement import place
from meshlab.topology.whatif import add_nodes, drop_device, drop_link, drop_nic, set_nvlink_domain, set_taper
from meshlab.units import THIN

CLUSTER = preset("dgx-h100", nodes=4)
MESH = DeviceMesh("dp=4, tp=8")


def test_a_dropped_device_moves_the_ranks_behind_it_over_a_border() -> None:
    smaller = drop_device(CLUSTER, 10)
    assert smaller.n_devices == 31
    assert CLUSTER.n_devices == 32
    assert health(smaller).codes == ("uneven-hosts",)
    with pytest.raises(TopologyError, match="32 ranks, but the cluster only 31"):
        place(MESH, smaller)
    moved = place(DeviceMesh("dp=3, tp=8"), smaller)
    assert moved.of("tp").domains[2].tolist() == [1, 2, 2]


def test_dropped_links_leave_a_gpu_outside_and_health_says_so() -> None:
    broken = drop_link(CLUSTER, 9)
    assert health(broken).codes == ("off-fabric",)
    assert health(broken)[0].nodes == ("node1",)
    frame = place(MESH, broken).frame("tp")
    assert frame["worst_link"].tolist() == ["NV18", "NODE", "NV18", "NV18"]
    one = drop_link(CLUSTER, 0, 1)
    assert one.link_words(0)[0, 1] == "NODE"
    assert one.link_words(1)[0, 1] == "NV18"


def test_a_dropped_nic_is_shared_and_halves_what_its_groups_get() -> None:
    fewer = drop_nic(CLUSTER, "node2", 0)
    answer = place(MESH, fewer).of("dp")
    # The group of GPU0 spreads over the three NICs that are left in its NUMA node; each serves a third of it more.
    np.testing.assert_allclose(answer.groups_per_nic, [4 / 3] * 4 + [1] * 4)
    np.testing.assert_allclose(answer.node_gbs, [36] * 4 + [48] * 4)


def test_added_nodes_fill_leaves_and_pods_and_continue_them() -> None:
    grown = add_nodes(preset("dgx-h100", nodes=63), 33)
    assert grown.levels[1].of_node.tolist() == [0] * 32 + [1] * 32 + [2] * 32
    assert grown.names[-1] == "node95"
    racks = add_nodes(preset("gb200-nvl72", nodes=37), 2)
    assert racks.nvlink_of_node is not None
    assert racks.nvlink_of_node[-3:].tolist() == [2, 2, 2]
    assert add_nodes(preset("dgx-a100"), 1).level_names[-1] == "cluster"


def test_larger_and_smaller_nvlink_domains_change_what_tp_crosses() -> None:
    wide = DeviceMesh("dp=2, tp=16")
    assert place(wide, CLUSTER).explain("tp").startswith("tp leaves the host")
    joined = place(wide, set_nvlink_domain(CLUSTER, 16))
    assert joined.explain("tp") == f"tp stays inside NVLink across 2 hosts: NV18, 371{THIN}GB/s"
    cut = place(MESH, set_nvlink_domain(CLUSTER, 4))
    assert cut.explain("tp").startswith("tp stays inside the host but leaves NVLink: its worst link is SYS")
    assert np.bincount(set_nvlink_domain(preset("gb200-nvl72", nodes=18), 4).domain("nvlink")).tolist() == [4] * 18


def test_the_taper_can_be_set_on_any_level() -> None:
    cluster = preset("dgx-h100", nodes=64)
    assert place(DeviceMesh("dp=64, tp=8"), set_taper(cluster, 7)).of("dp").taper.max() == 7
    assert set_taper(cluster, 3, "pod").levels[1].taper == 3
    assert set_taper(set_taper(cluster, 3), 1).levels[-1].taper == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda: drop_device(CLUSTER, 32), "no device 32; they go from 0 to 31"),
        (lambda: drop_device(Cluster.from_nodes([Node("a", (Device(id=0),))]), 0), "last device"),
        (lambda: drop_link(CLUSTER, 0, 8), "two hosts"),
        (lambda: drop_link(preset("pcie-l40s"), 0, 1), "no NVLink between them"),
        (lambda: drop_link(preset("pcie-l40s"), 0), "device 0 has none"),
        (lambda: drop_nic(CLUSTER, 0, "mlx5_9"), "it has NIC0, NIC1"),
        (lambda: drop_nic(CLUSTER, "x", 0), "no node 'x'"),
        (lambda: add_nodes(CLUSTER, 0), "0 hosts cannot be added"),
        (lambda: set_nvlink_domain(CLUSTER, 12), "do not fit hosts of 8"),
        (lambda: set_nvlink_domain(drop_device(CLUSTER, 0), 16), "hosts have 7 and 8 devices"),
        (lambda: set_taper(CLUSTER, 0.5), "1 means none"),
        (lambda: set_taper(CLUSTER, 2, "host"), "there are leaf, pod"),
        (lambda: set_taper(preset("dgx-h100"), 2), "there are none"),
    ],
)
def test_changes_that_cannot_be_are_refused(change: object, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        change()  # type: ignore[operator]
