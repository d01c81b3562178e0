"""Placement, compared with a slow reference and with known machines."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshlab.base._errors import MeshError, TopologyError
from meshlab.base._units import THIN
from meshlab.mesh._mesh import DeviceMesh
from meshlab.topology.model._cluster import Cluster
from meshlab.topology.model._hardware import Device, Node
from meshlab.topology.model._presets import preset
from meshlab.topology.model._rails import rails_of
from meshlab.topology.placement._placement import Placement, as_placement, place
from meshlab.topology.readers._nccl_xml import read_nccl_topology
from tests.examples import examples


def plain(text: str) -> str:
    """Return the text with plain spaces before units."""
    return text.replace(THIN, " ")


def ring(placement: Placement, ranks: list[int]) -> list[tuple[int, int]]:
    """Return the hops of a ring that visits every host once, in the order of its first rank."""
    hosts: dict[int, list[int]] = defaultdict(list)
    for rank in ranks:
        hosts[int(placement.cluster.node_of[placement.devices[rank]])].append(rank)
    order = [rank for host in hosts.values() for rank in host]
    return list(zip(order, order[1:] + order[:1], strict=True)) if len(order) > 1 else []


def reference(placement: Placement, axis: str) -> list[dict[str, Any]]:
    """Return the fields of `Crossings`, computed one rank at a time."""
    cluster, devices = placement.cluster, placement.devices
    domains = cluster.domains[:, devices]
    groups = [list(group) for group in placement.mesh[axis]]
    network = 3

    def joined(i: int, one: int, other: int, ranks: list[int]) -> bool:
        if domains[i][one] == domains[i][other]:
            return True
        if i < network or cluster.levels[i - network].rails == 1:
            return False
        # The group needs a common rail on both hosts.
        node = cluster.node_of[devices]
        ends = [{leaf for r in ranks if node[r] == node[end] for leaf in leaves(i, r)} for end in (one, other)]
        return bool(ends[0] & ends[1])

    def leaves(i: int, rank: int) -> set[int]:
        # A device that has lost its NICs uses the rails of all NICs that are then nearest to it.
        rails = cluster.levels[i - network].rails
        template = cluster.templates[cluster.kinds[cluster.node_of[devices[rank]]]]
        share = rails_of(template, rails).share[cluster.local_of[devices[rank]]]
        return {int(domains[i][rank]) // rails * rails + rail for rail in range(rails) if share[rail]}

    def level(ranks: list[int], one: int, other: int) -> int:
        return next(i for i in range(len(domains)) if joined(i, one, other, ranks))

    def nics(rank: int) -> tuple[int, tuple[int, ...]]:
        node = int(cluster.node_of[devices[rank]])
        template = cluster.templates[cluster.kinds[node]]
        return node, tuple(np.flatnonzero(template.near_nics[cluster.local_of[devices[rank]]]).tolist())

    leaving = [max((level(ranks, *hop) for hop in ring(placement, ranks)), default=0) >= network for ranks in groups]
    users: dict[tuple[int, tuple[int, ...]], set[int]] = defaultdict(set)
    for number, ranks in enumerate(groups):
        if leaving[number]:
            for rank in ranks:
                users[nics(rank)].add(number)
    load: dict[tuple[int, int], float] = defaultdict(float)
    for (node, near), groups_there in users.items():
        for nic in near:
            load[node, nic] += len(groups_there) / len(near)
    rows = []
    for number, ranks in enumerate(groups):
        hops = ring(placement, ranks)
        per_node: dict[int, set[tuple[int, tuple[int, ...]]]] = defaultdict(set)
        counts: dict[int, int] = defaultdict(int)
        for rank in ranks:
            per_node[nics(rank)[0]].add(nics(rank))
            counts[nics(rank)[0]] += 1
        uses = leaving[number]
        known = uses and all(near for sets in per_node.values() for _, near in sets)
        rows.append(
            {
                "domains": [len(set(domain[ranks].tolist())) for domain in domains],
                "hops": [sum(level(ranks, *hop) == i for hop in hops) for i in range(len(domains))],
                "ranks_per_node": [min(counts.values()), max(counts.values())],
                "worst_level": max((level(ranks, *hop) for hop in hops), default=0),
                "nics": min(sum(len(s[1]) for s in sets) for sets in per_node.values()) if uses else 0,
                "groups_per_nic": max(
                    load[node, nic] for sets in per_node.values() for node, near in sets for nic in near
                )
                if known
                else math.nan,
            }
        )
    return rows


MACHINES = ["dgx-a100", "gb200-nvl72", "pcie-l40s", "gcp-a3-high", "tapered-h100", "aws-p5"]


@settings(deadline=None, max_examples=examples(60))
@given(
    st.sampled_from(MACHINES),
    st.sampled_from(["dp=2, tp=8", "pp=3, dp=2, tp=4", "dp=24", "pp=2, dp=2, cp=2, tp=2"]),
    st.integers(0, 2**32 - 1),
    st.sampled_from(["in order", "shuffled", "spread"]),
)
def test_arrays_agree_with_the_reference(name: str, shape: str, seed: int, order: str) -> None:
    mesh = DeviceMesh(shape)
    cluster = preset(
        name, nodes=7, nodes_per_leaf=2, nodes_per_pod=4, nodes_per_rack=3 if name == "gb200-nvl72" else None
    )
    rng = np.random.default_rng(seed)
    devices = {
        "in order": np.arange(mesh.world_size),
        "shuffled": rng.permutation(cluster.n_devices)[: mesh.world_size],
        "spread": np.sort(rng.permutation(cluster.n_devices)[: mesh.world_size]),
    }[order]
    for _ in range(seed % 3):
        cluster = cluster.without_nic(int(rng.integers(7)), 0)
    placement = place(mesh, cluster, devices)
    for axis in (*mesh.axis_names, "world"):
        answer = placement.of(axis)
        expected = reference(placement, axis)
        assert answer.domains.T.tolist() == [row["domains"] for row in expected]
        assert answer.hops.T.tolist() == [row["hops"] for row in expected]
        assert answer.ranks_per_node.T.tolist() == [row["ranks_per_node"] for row in expected]
        assert answer.worst_level.tolist() == [row["worst_level"] for row in expected]
        assert answer.nics.tolist() == [row["nics"] for row in expected]
        np.testing.assert_allclose(answer.groups_per_nic, [row["groups_per_nic"] for row in expected])


@pytest.mark.parametrize(
    ("machine", "nodes", "shape", "axis", "explanation"),
    [
        ("dgx-h100", 2, "dp=2, tp=8", "tp", "tp stays inside NVLink: NV18, 371 GB/s per direction"),
        ("dgx-h100", 2, "tp=16, dp=1", "dp", "dp has one rank per group: it crosses no link"),
        (
            "dgx-h100",
            2,
            "dp=2, tp=8",
            "dp",
            "dp leaves the host: 8 groups share 8 NICs, one each, 48.0 GB/s per group; it stays inside one leaf switch",
        ),
        (
            "dgx-h100",
            4,
            "dp=8, cp=4",
            "dp",
            "dp leaves the host: 4 groups share 8 NICs, 2 each, 96.0 GB/s per group; every hop stays on its rail",
        ),
        (
            "dgx-h100",
            2,
            "tp=16",
            "tp",
            "tp leaves the host: it has all 8 NICs of the host, 384 GB/s; every hop stays on its rail",
        ),
        (
            "pcie-l40s",
            2,
            "dp=2, tp=8",
            "dp",
            "dp leaves the host: 8 groups share 2 NICs, 4 to a NIC, 6.00 GB/s per group; it stays inside "
            "one leaf switch",
        ),
        ("pcie-l40s", 1, "tp=8", "tp", "tp stays inside the host: its worst link is SYS, 22.0 GB/s"),
        ("gb200-nvl72", 18, "tp=72", "tp", "tp stays inside NVLink across 18 hosts: NV18, 722 GB/s per direction"),
        (
            "aws-p5",
            2,
            "dp=2, tp=8",
            "dp",
            "dp leaves the host: 8 groups share 32 NICs, 4 each, 48.0 GB/s per group; it stays inside the cluster",
        ),
        (
            "aws-p5",
            4,
            "dp=16, tp=2",
            "dp",
            "dp leaves the host: 2 groups share 32 NICs, 16 each, 192 GB/s per group; it stays inside the cluster",
        ),
        (
            "dgx-a100",
            4,
            "dp=4, tp=8",
            "dp",
            "dp leaves the host: 8 groups share 8 NICs, 2 each and 2 groups to a NIC, 24.0 GB/s per group; it stays",
        ),
        (
            "tapered-h100",
            2048,
            "pp=16, dp=128, tp=8",
            "pp",
            "pp leaves the host: 8 groups share 8 NICs, one each, 48.0 GB/s per group; it crosses 6 pods with an",
        ),
        (
            "tapered-h100",
            2048,
            "pp=16, dp=128, tp=8",
            "dp",
            "dp leaves the host: 8 groups share 8 NICs, one each, 48.0 GB/s per group; it crosses 64 leaf switches",
        ),
    ],
)
def test_explanations_for_known_machines(machine: str, nodes: int, shape: str, axis: str, explanation: str) -> None:
    assert plain(place(DeviceMesh(shape), preset(machine, nodes)).explain(axis)).startswith(explanation)


def test_groups_that_do_not_divide_among_the_nics_have_at_most_as_many() -> None:
    cluster = preset("dgx-h100", nodes=2).with_devices(nics=3)
    sentence = plain(place(DeviceMesh("dp=2, tp=8"), cluster).explain("dp"))
    assert "8 groups share 3 NICs, up to 3 to a NIC, 16.0 GB/s per group" in sentence


def test_explanation_distinguishes_broken_from_unknown_nvlink() -> None:
    words = (("X", "NV18", "SYS"), ("NV18", "X", "SYS"), ("SYS", "SYS", "X"))
    devices = tuple(Device(id=i) for i in range(3))
    broken = place(DeviceMesh("tp=3"), Cluster.from_nodes([Node("a", devices, words=words)]))
    assert broken.explain("tp") == "tp stays inside the host but leaves NVLink: its worst link is SYS"
    hint = '<pci busid="1" class="0x0302"/><pci busid="2" class="0x0302"/>'
    unknown = place(DeviceMesh("tp=2"), read_nccl_topology(f'<system version="1"><cpu>{hint}</cpu></system>'))
    assert "and the source does not list NVLink" in unknown.explain("tp")


def test_host_without_gpus_places_ranks_on_cpus() -> None:
    laptop = Cluster.from_nodes([Node("laptop", cpu_model="Ryzen", cpu_count=8)])
    placement = place(DeviceMesh("dp=2, tp=2"), laptop)
    assert placement.explain("tp") == "tp stays inside the host, on CPUs: its worst link is NODE"
    assert placement.totals("tp")["backends"].tolist() == ["cpu"] * 3


def test_several_ranks_on_one_device() -> None:
    placement = place(DeviceMesh("dp=2, tp=4"), preset("dgx-h100"), devices=[0, 0, 0, 0, 1, 2, 3, 4])
    assert placement.of("tp").hops[:, 0].tolist() == [4, 0, 0]
    assert placement.frame("tp")["device_domains"].tolist() == [1, 4]
    one = place(DeviceMesh("tp=4"), preset("dgx-h100"), devices=[0] * 4)
    assert one.explain("tp") == "tp stays on one device: 4 ranks share it"
    assert one.totals("tp")["devices"].tolist() == [1, 1]


def test_all_flows_share_an_oversubscribed_uplink() -> None:
    # 2 pods of 2 hosts; all 16 dp groups send one flow out of each pod; 16 NICs of 48 GB/s behind 1:7.
    cluster = preset("tapered-h100", nodes=4, nodes_per_pod=2)
    answer = place(DeviceMesh("dp=2, tp=16"), cluster).of("dp")
    assert answer.taper.tolist() == [7.0] * 16
    np.testing.assert_allclose(answer.ring_gbs, 16 * 48 / 7 / 16)
    np.testing.assert_allclose(answer.node_gbs, 48)
    assert place(DeviceMesh("dp=4, tp=8"), cluster).of("tp").taper.tolist() == [1.0] * 4


def test_order_of_axes_determines_the_oversubscribed_axis() -> None:
    cluster = preset("tapered-h100", nodes=768)
    good, bad = (place(DeviceMesh(shape), cluster) for shape in ("pp=8, dp=96, tp=8", "dp=96, pp=8, tp=8"))
    assert (good.of("dp").taper.max(), good.of("pp").taper.max()) == (1, 7)
    assert (bad.of("dp").taper.max(), bad.of("pp").taper.max()) == (7, 1)


def test_worst_link_of_a_hybrid_cube_mesh() -> None:
    words = [["X"] * 4 for _ in range(4)]
    for i in range(4):
        for j in range(4):
            if i != j:
                words[i][j] = "PHB" if {i, j} == {1, 2} else "NV1"
    devices = tuple(Device(id=i, compute_capability=(7, 0)) for i in range(4))
    cluster = Cluster.from_nodes([Node("a", devices, words=tuple(map(tuple, words)))])
    frame = place(DeviceMesh("tp=4"), cluster).frame()
    assert frame["worst_link"].tolist() == ["PHB"]
    assert frame["ring_gbs"].tolist() == [12.0]


def test_group_is_judged_by_its_own_pairs_if_a_different_pair_lost_nvlink() -> None:
    broken = preset("dgx-h100", nodes=2).without_link(0, 1)
    placement = place(DeviceMesh("dp=8, tp=2"), broken)
    assert plain(placement.explain("tp")).startswith(
        "tp stays inside the host but leaves NVLink: its worst link is NODE"
    )
    inside = place(DeviceMesh("node=2, dp=4, tp=2"), broken)
    assert plain(inside.explain("dp")) == "dp stays inside NVLink: NV18, 371 GB/s per direction"
    frame = inside.frame("tp", "dp").set_index("group")
    assert frame["span"].tolist() == ["host", *["nvlink"] * 11]
    assert frame["nvlink_hops"].tolist() == [0, *[2] * 7, *[4] * 4]
    assert frame["nvlink_domains"].tolist() == [2, *[1] * 11]


def test_a_mesh_may_leave_pods_of_a_tapered_network_idle() -> None:
    placement = place("dp=2, pp=3, tp=16", preset("tapered-h100", nodes=16, nodes_per_leaf=2, nodes_per_pod=4))
    assert placement.of("dp").taper.max() == 7


def test_explanation_mentions_pairs_without_nvlink_off_the_ring() -> None:
    placement = place(DeviceMesh("dp=2, tp=4"), preset("dgx-h100").without_link(0, 2))
    assert plain(placement.explain("tp")) == (
        "tp stays inside NVLink: NV18, 371 GB/s per direction, but not all pairs of its devices have NVLink"
    )
    assert placement.frame("tp")["span"].tolist() == ["host", "nvlink"]


def test_frame_has_a_row_per_group_including_custom_groups() -> None:
    mesh = DeviceMesh("dp=2, tp=8").with_group("rail", [0, 8])
    frame = place(mesh, preset("dgx-h100", nodes=2)).frame()
    assert frame["group"].tolist() == ["tp_0", "tp_1", *[f"dp_{i}" for i in range(8)], "rail"]
    assert frame.set_index("group").loc["rail", "leaf_hops"] == 2
    assert frame.columns[:6].tolist() == [
        "axis",
        "group",
        "n_ranks",
        "nodes",
        "ranks_per_node_min",
        "ranks_per_node_max",
    ]


def test_groups_over_two_axes_and_the_world() -> None:
    placement = place(DeviceMesh("pp=2, dp=2, tp=4"), preset("dgx-h100", nodes=2))
    assert placement.frame("dp-tp", "world")["nodes"].tolist() == [1, 1, 2]
    with pytest.raises(MeshError, match="unknown axis or group"):
        placement.of("ep")


def test_join_adds_the_links_to_results() -> None:
    placement = place(DeviceMesh("dp=2, tp=8"), preset("dgx-h100", nodes=2))
    results = pd.DataFrame(
        {
            "axis": pd.array(["tp", "dp", "dp", "other"], dtype="string"),
            "group": pd.array(["tp_1", "dp_7", "dp_0", "other_0"], dtype="string"),
            "n_ranks": [8, 2, 2, 2],
            "busbw_gbs": [185.4, 24.0, 48.0, 1.0],
        },
        index=[10, 20, 30, 40],
    )
    joined = placement.join(results)
    assert joined.index.tolist() == [10, 20, 30, 40]
    assert joined["group"].tolist() == results["group"].tolist()
    assert joined["worst_link"].tolist()[:3] == ["NV18", "leaf", "leaf"]
    np.testing.assert_allclose(joined["of_ring"], [0.5, 0.5, 1.0, np.nan])
    assert joined["n_ranks"].tolist() == [8, 2, 2, 2]
    with pytest.raises(TopologyError, match="columns axis and group, but group is missing; pass the results"):
        placement.join(results.drop(columns="group"))
    assert placement.join(results.iloc[3:])["worst_link"].isna().all()


def test_mixed_groups_have_no_totals() -> None:
    old, new = preset("dgx-a100").node(0), preset("dgx-h100").node(0)
    cluster = Cluster.from_nodes([replace(old, name="old"), replace(new, name="new")])
    totals = place(DeviceMesh("dp=2, tp=8"), cluster).totals("dp")
    assert totals["mixed"].all()
    assert totals["models"].tolist()[0] == "1 × A100 80GB, 1 × H100 80GB"
    assert totals["memory_gib"].isna().all()
    assert totals["memory_gib_min"].tolist() == [80.0] * 9
    tp = place(DeviceMesh("dp=2, tp=8"), cluster).totals("tp")
    assert tp["mixed"].tolist() == [False, False, True]
    assert tp["sm_count"].tolist()[:2] == [864, 1056]


def test_devices_of_groups_are_in_group_order() -> None:
    mesh = DeviceMesh("dp=2, tp=2").with_group("pair", [3, 0]).with_groups("part", [[1, 0], [2, 3]])
    placement = place(mesh, preset("dgx-h100"), devices=[4, 5, 6, 7])
    assert placement.devices_of("dp").tolist() == [[4, 6], [5, 7]]
    assert placement.devices_of(["dp", "tp"]).tolist() == [[4, 5, 6, 7]]
    assert placement.devices_of("part").tolist() == [[5, 4], [6, 7]]
    for name in mesh.group_names():
        assert placement.devices_of(name).tolist() == [4 + rank for rank in mesh.group(name)]
    assert placement.devices_of("world").tolist() == [4, 5, 6, 7]
    with pytest.raises(MeshError, match="unknown group 'tp_2'; choose tp_0 to tp_1"):
        placement.devices_of("tp_2")


def test_ranks_have_coordinates_and_devices() -> None:
    ranks = place(DeviceMesh("dp=2, tp=2"), preset("dgx-h100"), devices=[4, 5, 6, 7]).ranks()
    assert ranks["local_id"].tolist() == [4, 5, 6, 7]
    assert ranks["dp"].tolist() == [0, 0, 1, 1]
    assert set(ranks["backend"]) == {"cuda"}


def test_placement_on_unequal_hosts_with_missing_nics() -> None:
    bare = Node("bare", tuple(Device(id=i) for i in range(3)))
    cluster = Cluster.from_nodes([bare, preset("dgx-h100").node(0)])
    placement = place(DeviceMesh("tp=11"), cluster)
    answer = placement.of("tp")
    assert answer.ranks_per_node[:, 0].tolist() == [3, 8]
    assert answer.nics.tolist() == [0]
    assert np.isnan(answer.ring_gbs).all()
    assert "NICs, which are unknown" in placement.explain("tp")


def test_html_has_the_explanation_and_is_escaped() -> None:
    cluster = replace(preset("dgx-h100", nodes=2), title="<b>")
    page = place(DeviceMesh("dp=2, tp=8"), cluster)._repr_html_()
    assert "tp stays inside NVLink" in page
    assert "<b>" not in page


def test_placement_accepts_text_and_the_name_of_a_preset() -> None:
    placement = place("dp=-1, tp=4", "dgx-h100")
    assert placement.mesh == DeviceMesh("dp=2, tp=4")
    assert placement.cluster == preset("dgx-h100")


def test_as_placement_accepts_a_placement_or_a_mesh_and_a_cluster() -> None:
    placement = place("tp=8", "dgx-h100")
    assert as_placement(placement) is placement
    assert as_placement("tp=8", "dgx-h100").explain() == placement.explain()
    with pytest.raises(TopologyError, match="no cluster given; pass it after the mesh"):
        as_placement("tp=8")
    with pytest.raises(TopologyError, match="a Placement has a cluster and devices already; pass its mesh instead"):
        as_placement(placement, "dgx-h100")
    with pytest.raises(TopologyError, match="the first argument is a Cluster, but a mesh is expected"):
        as_placement(preset("dgx-h100"), "tp=8")  # type: ignore[arg-type]


def test_explanation_of_the_only_nic() -> None:
    cluster = preset("dgx-h100", nodes=2)
    for host in range(2):
        for _ in range(7):
            cluster = cluster.without_nic(host, 1)
    assert plain(place("tp=16", cluster).explain("tp")).startswith(
        "tp leaves the host: it has the only NIC of the host, 48.0 GB/s; "
    )
