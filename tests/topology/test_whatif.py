"""What-if edits: the new cluster, and the consequences for placement and health."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import meshlab as ml
from meshlab.base._errors import TopologyError
from meshlab.base._units import THIN
from meshlab.mesh._mesh import DeviceMesh
from meshlab.topology.model._cluster import Cluster
from meshlab.topology.model._hardware import Device, Node
from meshlab.topology.model._presets import preset
from meshlab.topology.placement._placement import place

CLUSTER = preset("dgx-h100", nodes=4)
MESH = DeviceMesh("dp=4, tp=8")


def test_removed_device_moves_the_following_ranks_across_hosts() -> None:
    smaller = CLUSTER.without_device(10)
    assert smaller.n_devices == 31
    assert CLUSTER.n_devices == 32
    assert smaller.health().codes == ("uneven-hosts",)
    with pytest.raises(TopologyError, match="32 ranks, but the cluster has only 31"):
        place(MESH, smaller)
    moved = place(DeviceMesh("dp=3, tp=8"), smaller)
    assert moved.of("tp").domains[2].tolist() == [1, 2, 2]


def test_removed_links_isolate_a_gpu_and_health_reports_it() -> None:
    broken = CLUSTER.without_link(9)
    assert broken.health().codes == ("off-fabric",)
    assert broken.health()[0].nodes == ("node1",)
    frame = place(MESH, broken).frame("tp")
    assert frame["worst_link"].tolist() == ["NV18", "NODE", "NV18", "NV18"]


def test_removed_link_affects_one_pair_of_one_host() -> None:
    one = CLUSTER.without_link(0, 1)
    assert one.link_words(0)[0, 1] == "NODE"
    assert one.link_words(0)[0, 2] == "NV18"
    assert one.link_words(1)[0, 1] == "NV18"
    assert one.health().codes == ("pair-off-nvlink",)


def test_groups_of_a_removed_nic_share_the_remaining_ones() -> None:
    fewer = CLUSTER.without_nic("node2", 0)
    answer = place(MESH, fewer).of("dp")
    # The group of GPU0 now uses the three remaining NICs of its NUMA node, and adds a third of its data to each.
    np.testing.assert_allclose(answer.groups_per_nic, [4 / 3] * 4 + [1] * 4)
    np.testing.assert_allclose(answer.node_gbs, [36] * 4 + [48] * 4)


def test_added_nodes_fill_and_continue_leaves_and_pods() -> None:
    grown = preset("dgx-h100", nodes=63).with_nodes(33)
    assert grown.levels[1].of_node.tolist() == [0] * 32 + [1] * 32 + [2] * 32
    assert grown.names[-1] == "node95"
    racks = preset("gb200-nvl72", nodes=37).with_nodes(2)
    assert racks.nvlink_of_node is not None
    assert racks.nvlink_of_node[-3:].tolist() == [2, 2, 2]
    assert preset("dgx-a100").with_nodes(1).level_names[-1] == "cluster"


def test_added_nodes_copy_the_chosen_host() -> None:
    mixed = Cluster.from_nodes([Node("a", (Device(id=0),)), Node("b", (Device(id=0), Device(id=1)))])
    assert mixed.with_nodes(2, like="b").n_devices == 7
    assert mixed.with_nodes(2).names == ("a", "b", "node2", "node3")


def test_nvlink_domains_of_a_different_size_change_the_links_of_tp() -> None:
    wide = DeviceMesh("dp=2, tp=16")
    assert place(wide, CLUSTER).explain("tp").startswith("tp leaves the host")
    joined = place(wide, CLUSTER.with_nvlink_domain(16))
    assert joined.explain("tp") == f"tp stays inside NVLink across 2 hosts: NV18, 371{THIN}GB/s per direction"
    split = place(MESH, CLUSTER.with_nvlink_domain(4))
    assert split.explain("tp").startswith("tp stays inside the host but leaves NVLink: its worst link is SYS")
    assert np.bincount(preset("gb200-nvl72").with_nvlink_domain(4).domain("nvlink")).tolist() == [4] * 18


def test_oversubscription_of_any_level() -> None:
    cluster = preset("dgx-h100", nodes=64)
    assert place(DeviceMesh("dp=64, tp=8"), cluster.with_taper(7)).of("dp").taper.max() == 7
    assert cluster.with_taper(3, "pod").levels[1].taper == 3
    assert cluster.with_taper(3, level="pod") == cluster.with_taper(pod=3)
    assert cluster.with_taper(3).with_taper(1).levels[-1].taper == 1
    assert [level.taper for level in cluster.with_taper(pod=2, cluster=4).levels] == [1, 2, 4]
    assert [level.taper for level in cluster.with_taper(4, pod=2).levels] == [1, 2, 4]


def test_edits_return_new_clusters() -> None:
    before = CLUSTER.fingerprint
    changed = [
        CLUSTER.without_device(0),
        CLUSTER.without_link(0),
        CLUSTER.without_nic(0, 0),
        CLUSTER.with_nodes(1),
        CLUSTER.with_nvlink_domain(4),
        CLUSTER.with_taper(2),
    ]
    assert len({cluster.fingerprint for cluster in changed} | {before}) == 7
    assert preset("dgx-h100", nodes=4).fingerprint == CLUSTER.fingerprint == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda: CLUSTER.without_device(32), "unknown device 32; choose a number from 0 to 31"),
        (lambda: CLUSTER.without_device("GPU3"), "unknown device 'GPU3'; choose a number from 0 to 31"),  # type: ignore[arg-type]
        (lambda: Cluster.from_nodes([Node("a", (Device(id=0),))]).without_device(0), "device 0: it is the last one"),
        (lambda: Cluster.from_nodes([Node("a")]).without_device(0), "unknown device 0; use a cluster with devices"),
        (lambda: CLUSTER.without_link(0, 8), "devices 0 and 8 are on different hosts; choose two devices of one host"),
        (lambda: preset("pcie-l40s").without_link(0, 1), "devices 0 and 1 have no NVLink between them"),
        (lambda: preset("pcie-l40s").without_link(0), "device 0 has no NVLink"),
        (lambda: CLUSTER.without_nic(0, "mlx5_9"), "node0 has no NIC 'mlx5_9'; choose one of NIC0, NIC1"),
        (lambda: CLUSTER.without_nic(0, 8), "node0 has no NIC 8; choose one of NIC0, NIC1"),
        (lambda: CLUSTER.without_nic("x", 0), "unknown node 'x'; choose 0 to 3, or 'node0' to 'node3'"),
        (lambda: CLUSTER.with_nodes(0), "count must be an integer from 1 to 1,048,576, not 0"),
        (lambda: CLUSTER.with_nodes(1.5), "count must be an integer from 1 to 1,048,576, not 1.5"),  # type: ignore[arg-type]
        (lambda: CLUSTER.with_nvlink_domain(12), "size must be a divisor or a multiple of 8, .* not 12"),
        (lambda: CLUSTER.with_nvlink_domain(0), "size must be a divisor or a multiple of 8, .* not 0"),
        (lambda: CLUSTER.without_device(0).with_nvlink_domain(16), "the hosts have 7 and 8 devices"),
        (lambda: CLUSTER.with_taper(0.5), "taper must be a number of at least 1, not 0.5; pass 1 for full bandwidth"),
        (lambda: CLUSTER.with_taper("7"), "taper must be a number of at least 1, not '7'"),  # type: ignore[arg-type]
        (lambda: CLUSTER.with_taper(2, "host"), "unknown network level 'host'; choose one of leaf, pod"),
        (lambda: CLUSTER.with_taper(rack=2), "unknown network level 'rack'; choose one of leaf, pod"),
        (lambda: CLUSTER.with_taper(), r"no oversubscription given; pass a number, such as with_taper\(7\)"),
        (lambda: CLUSTER.with_taper(level="pod"), "no oversubscription given"),
        (lambda: preset("dgx-h100").with_taper(2), r"a single host has no network levels; add hosts with with_nodes\("),
    ],
)
def test_invalid_edits_are_explained(change: Callable[[], Cluster], message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        change()


@pytest.mark.parametrize(
    "name", ["drop_device", "drop_link", "drop_nic", "add_nodes", "set_nvlink_domain", "set_taper", "whatif"]
)
def test_edits_are_methods_only(name: str) -> None:
    assert name not in ml.__all__
    assert name not in ml.topology.__all__


def test_removed_hosts_leave_the_names_and_the_network_of_the_others() -> None:
    large = preset("gb200-nvl72", nodes=36)
    smaller = large.without_node(*range(18), "node20")
    assert smaller.n_nodes == 17
    assert smaller.names[:3] == ("node18", "node19", "node21")
    assert smaller.levels[0].of_node.tolist() == [0] * 17
    assert np.bincount(smaller.domain("nvlink")).tolist() == [68]
    assert CLUSTER.without_node(1, 2, 3) == preset("dgx-h100")
    with pytest.raises(TopologyError, match="cannot remove all hosts; keep at least one host"):
        CLUSTER.without_node(0, 1, 2, 3)
    with pytest.raises(TopologyError, match="unknown node 'x'"):
        CLUSTER.without_node("x")


def test_an_empty_host_keeps_its_place_in_the_network() -> None:
    broken = CLUSTER.without_node("node1", keep_place=True)
    assert (broken.n_nodes, broken.n_devices) == (4, 24)
    assert broken.node_of[8] == 2
    assert place(DeviceMesh("dp=3, tp=8"), broken).frame("tp")["worst_link"].tolist() == ["NV18"] * 3
    with pytest.raises(TopologyError, match="cannot remove the devices of all hosts"):
        preset("dgx-h100").without_node(0, keep_place=True)


@pytest.mark.parametrize("name", ["dgx-a100", "dgx-h100", "gb200-nvl72", "pcie-l40s", "gcp-a3-high", "aws-p5"])
@pytest.mark.parametrize(("devices", "nics"), [(2, None), (16, None), (None, 1), (None, 2), (None, 16), (3, 5), (4, 0)])
def test_hosts_with_other_numbers_of_devices_and_nics(name: str, devices: int | None, nics: int | None) -> None:
    old = preset(name, nodes=2)
    new = old.with_devices(devices, nics)
    had, node = old.templates[0], new.templates[0]
    n, k = devices or len(had.devices), len(had.nics) if nics is None else nics
    assert (len(node.devices), len(node.nics)) == (n, k)
    assert node.distance.tolist() == node.distance.T.tolist()
    assert (np.bincount(node.nvlink_groups).tolist() == [n]) == (had.nvlinks.max() > 0)
    assert len({nic.name for nic in node.nics}) == k
    if k:
        assert node.near_nics.any(axis=1).all()  # every device has a NIC
    if k and name == "dgx-h100" and (n, k) != (3, 5):  # each device has its own NIC, so each NIC gets the same share
        assert node.near_nics.sum(axis=0).tolist() == [max(n // k, 1)] * k
    assert old.with_devices(len(had.devices), len(had.nics)) == old


def test_numbers_of_devices_and_networks_out_of_range_are_rejected() -> None:
    for act, message in (
        (lambda: CLUSTER.with_devices(0), "devices must be an integer from 1 to 64, not 0"),
        (lambda: CLUSTER.with_devices(nics=65), "nics must be an integer from 0 to 64, not 65"),
        (lambda: Cluster.from_nodes([Node("a")]).with_devices(2), "a has no devices to copy"),
        (lambda: CLUSTER.with_network(0), "nodes_per_leaf must be an integer from 1"),
        (lambda: CLUSTER.with_network(2, rails=0), "rails must be"),
        (lambda: CLUSTER.with_network(2, taper=0.5), "taper"),
    ):
        with pytest.raises(TopologyError, match=message):
            act()


def test_a_regular_network_is_that_of_the_presets() -> None:
    bare = preset("dgx-h100", nodes=80)
    assert bare.with_network(4, rails=2, nodes_per_pod=16, taper=3) == preset(
        "dgx-h100", nodes=80, nodes_per_leaf=4, rails=2, nodes_per_pod=16, taper=3
    )
    assert preset("dgx-h100").with_network(4).levels == ()


def test_numbers_of_any_size_are_an_answer_or_an_error() -> None:
    huge = 10**30
    cluster = preset("dgx-h100", nodes=2)
    assert cluster.with_nvlink_domain(8 * huge).n_nodes == 2
    assert "ranks per node" in ml.DeviceMesh("dp=2, tp=2").explain(ranks_per_node=huge)
    for ranks in (huge, 100_000, 0, "4"):
        with pytest.raises(TopologyError, match="ranks must be an integer from 1 to 8,192 for these hosts"):
            cluster.with_cpu_slots(ranks)  # type: ignore[arg-type]
    with pytest.raises(ml.MeshlabError):
        ml.search("dgx-h100", "llama3-8b", interleave=huge, pp=2)
