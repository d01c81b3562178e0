"""Links of groups: signatures, the table by size and stride, and what is missing."""

from __future__ import annotations

import time
from dataclasses import fields, replace

import numpy as np
import pytest

import meshlab as ml
from meshlab.prediction._group_links import GroupLinks, LinkTable, _Nested
from meshlab.topology.model._cluster import Cluster
from meshlab.topology.model._hardware import Device, Node


def one(mesh: str, preset: str, nodes: int, axis: str) -> GroupLinks:
    links, of_group = GroupLinks.of(ml.place(mesh, ml.preset(preset, nodes=nodes)), axis)
    assert len(links) == 1
    assert (of_group == 0).all()
    return links


def assert_equal(found: GroupLinks, expected: GroupLinks, name: str = "") -> None:
    for item in fields(GroupLinks):
        np.testing.assert_allclose(
            getattr(found, item.name).astype(float),
            getattr(expected, item.name).astype(float),
            err_msg=name + item.name,
        )


def test_a_group_inside_a_host() -> None:
    links = one("dp=2, tp=8", "dgx-h100", 2, "tp")
    assert (links.domains[0], links.ranks_per_domain[0], links.nics[0]) == (1, 8, 0)
    assert (links.inner_gbs[0], links.inner_is_nvlink[0], links.is_switched[0]) == (pytest.approx(370.8), True, True)
    assert np.isnan(links.network_gbs[0])


def test_a_group_sees_only_the_nics_near_its_own_devices() -> None:
    alone = one("dp=2, tp=8", "dgx-h100", 2, "dp")
    assert (alone.nics[0], alone.network_gbs[0], alone.groups_per_nic[0]) == (1, 48.0, 1.0)
    all_of_them = one("dp=16", "dgx-h100", 2, "dp")
    assert (all_of_them.nics[0], all_of_them.network_gbs[0]) == (8, 384.0)
    # On p4d two devices share a NIC, so two groups share it.
    shared = one("dp=2, tp=8", "aws-p4d", 2, "dp")
    assert (shared.nics[0], shared.nic_gbs[0], shared.network_gbs[0], shared.groups_per_nic[0]) == (1, 12.0, 6.0, 2.0)


def test_a_rack_is_one_domain() -> None:
    inside = one("dp=72", "gb200-nvl72", 18, "dp")
    assert (inside.domains[0], inside.ranks_per_domain[0]) == (1, 72)
    across = one("dp=144", "gb200-nvl72", 36, "dp")
    assert (across.domains[0], across.ranks_per_domain[0], across.nics[0]) == (2, 72, 72)
    assert across.network_gbs[0] == pytest.approx(72 * 48)


def test_gpus_with_direct_nvlinks_use_the_links_to_all_peers() -> None:
    assert one("tp=4", "alps-gh200", 1, "tp").inner_gbs[0] == pytest.approx(370.8)
    assert one("dp=2, tp=2", "alps-gh200", 1, "tp").inner_gbs[0] == pytest.approx(123.6)
    assert not one("tp=4", "alps-gh200", 1, "tp").is_switched[0]


def test_oversubscription_and_the_ranks_behind_an_uplink() -> None:
    links = one("pp=8, dp=96, tp=8", "tapered-h100", 768, "pp")
    assert links.taper[0] == 7
    assert links.uplink_gbs[0] == pytest.approx(48 * 3072 / 7 / 768)
    assert links.uplink_ranks[0] == 4


def test_latency_of_the_fabric() -> None:
    assert one("dp=16", "dgx-h100", 2, "dp").network_latency_us[0] == 0
    assert one("dp=16", "aws-p5", 2, "dp").network_latency_us[0] > 10
    assert one("tp=8", "aws-p5", 1, "tp").network_latency_us[0] == 0


def test_ll128_needs_nvlink_inside_and_near_nics_between_hosts() -> None:
    assert one("tp=8", "dgx-h100", 1, "tp").has_ll128[0]
    assert not one("tp=8", "pcie-l40s", 1, "tp").has_ll128[0]
    assert one("dp=144", "gb200-nvl72", 36, "dp").has_ll128[0]  # over NVLink-C2C
    host = ml.preset("dgx-h100").nodes[0]
    far = replace(host, words=tuple(tuple("PHB" if word == "PXB" else word for word in row) for row in host.words))
    cluster = Cluster.from_nodes([far, replace(far, name="b")])
    assert not GroupLinks.of(ml.place("dp=16", cluster), "dp")[0].has_ll128[0]
    assert GroupLinks.of(ml.place("dp=2, tp=8", cluster), "tp")[0].has_ll128[0]


def test_signatures_of_different_groups() -> None:
    """Groups of three on hosts of eight: some are inside a host, some on two."""
    links, of_group = GroupLinks.of(ml.place("a=8, b=3", ml.preset("dgx-h100", nodes=3)), "b")
    assert links.domains.tolist() == [1, 2]
    assert of_group.tolist() == [0, 0, 1, 0, 0, 1, 0, 0]


def test_unknown_bandwidth_is_not_a_signature_of_its_own() -> None:
    """A NaN differs from itself: every group would be different."""
    links, of_group = GroupLinks.of(ml.place("pp=16, dp=128, tp=8", ml.preset("dgx-h100", nodes=2048)), "tp")
    assert len(links) == 1
    assert len(of_group) == 2048


def test_mixed_hosts_take_the_slowest() -> None:
    fast, slow = ml.preset("dgx-h100").nodes[0], ml.preset("dgx-a100").nodes[0]
    cluster = Cluster.from_nodes([fast, slow], names=["fast", "slow"])
    links, _ = GroupLinks.of(ml.place("dp=16", cluster), "dp")
    assert (links.compute_capability[0], links.nic_gbs[0]) == (80, 24.0)


# -- the table ---------------------------------------------------------------------------------------------------------

UNTAPERED = {"dgx-h100": 32, "dgx-a100": 20, "gb200-nvl72": 36, "aws-p5": 16, "aws-p4d": 8, "alps-gh200": 48}


def random_mesh(rng: np.random.Generator, ranks: int) -> ml.DeviceMesh:
    sizes = []
    while ranks > 1:
        divisors = [n for n in range(2, ranks + 1) if ranks % n == 0]
        sizes.append(int(rng.choice(divisors)))
        ranks //= sizes[-1]
    return ml.DeviceMesh(tuple(sizes), tuple("abcdefghijkl"[: len(sizes)]))


def worst(placement: object, axis: object) -> GroupLinks:
    """The links of the group with the slowest ring."""
    links, of_group = GroupLinks.of(placement, axis)  # type: ignore[arg-type]
    ring = np.nan_to_num(placement.of(axis).ring_gbs, nan=np.inf)  # type: ignore[attr-defined]
    return links.rows(of_group[[ring.argmin()]])


def strides_of(mesh: ml.DeviceMesh) -> dict[str, tuple[int, int]]:
    sizes = mesh.shape
    return {name: (sizes[k], int(np.prod(sizes[k + 1 :], dtype=np.int64))) for k, name in enumerate(mesh.axis_names)}


@pytest.mark.parametrize("axes_wanted", [20, pytest.param(170, marks=pytest.mark.long)])
@pytest.mark.parametrize("machine", UNTAPERED)
def test_the_closed_form_and_place_agree(machine: str, axes_wanted: int) -> None:
    """Random axes, and unions of two axes. The long form has more than 1,000 over all machines."""
    cluster = ml.preset(machine, nodes=UNTAPERED[machine])
    table = GroupLinks.by_stride(cluster)
    nested = _Nested.of(cluster, cluster.n_devices)
    assert nested is not None
    rng = np.random.default_rng(7)
    axes = 0
    while axes < axes_wanted:
        mesh = random_mesh(rng, cluster.n_devices)
        placement = ml.place(mesh, cluster)
        pairs = strides_of(mesh)
        for name, (size, stride) in pairs.items():
            expected = worst(placement, name)
            assert_equal(table.links.rows(table.index([size], [stride])), expected, f"{mesh} {name} ")
            if nested.covers(np.array([[size]]), np.array([[stride]]))[0]:
                assert_equal(nested.links(np.array([[size]]), np.array([[stride]])), expected, f"{mesh} {name} ")
                axes += 1
        if len(pairs) > 2:
            names = sorted(rng.choice(list(pairs), 2, replace=False))
            sizes, strides = zip(*(pairs[name] for name in names), strict=True)
            assert_equal(table.union([sizes], [strides]), worst(placement, names), f"{mesh} {names} ")
            axes += 1


@pytest.mark.parametrize("machine", ["tapered-h100", "pcie-l40s"])
def test_other_machines_use_the_exact_table(machine: str) -> None:
    cluster = ml.preset(machine, nodes=12, **({"nodes_per_pod": 4} if machine == "tapered-h100" else {}))
    table = GroupLinks.by_stride(cluster)
    assert _Nested.of(cluster, cluster.n_devices) is None
    rng = np.random.default_rng(3)
    for _ in range(4):
        mesh = random_mesh(rng, cluster.n_devices)
        placement = ml.place(mesh, cluster)
        pairs = strides_of(mesh)
        for name, (size, stride) in pairs.items():
            assert_equal(table.links.rows(table.index([size], [stride])), worst(placement, name), f"{mesh} {name} ")
        if len(pairs) > 2:
            first, *_, last = pairs
            sizes, strides = zip(pairs[first], pairs[last], strict=True)
            assert_equal(table.union([sizes], [strides]), worst(placement, (first, last)), f"{mesh} union ")


def test_unions_keep_their_order() -> None:
    table = GroupLinks.by_stride(ml.preset("dgx-h100", nodes=12))
    sizes = [[2, 2], [3, 4], [1, 8], [4, 3]]  # the second and the last have no closed form
    strides = [[8, 16], [1, 24], [1, 1], [24, 2]]
    together = table.union(sizes, strides)
    for row in range(4):
        assert_equal(together.rows(slice(row, row + 1)), table.union(sizes[row : row + 1], strides[row : row + 1]))
    assert together.n_ranks.tolist() == [4, 12, 8, 12]


def test_the_table_has_every_pair_and_is_cached() -> None:
    cluster = ml.preset("dgx-h100", nodes=8)
    table = GroupLinks.by_stride(cluster)
    assert isinstance(table, LinkTable)
    assert len(table.links) == 1 + sum(64 % (n * s) == 0 for n in (2, 4, 8, 16, 32, 64) for s in (1, 2, 4, 8, 16, 32))
    assert GroupLinks.by_stride(cluster) is table
    assert table.index(1, 4) == table.index(1, 1)
    with pytest.raises(ml.MeshlabError, match="no axis of 64 ranks has the size 3 and the stride 1"):
        table.index([2, 3], [1, 1])
    with pytest.raises(ml.MeshlabError, match="world_size must be an integer from 1 to the 64 devices"):
        GroupLinks.by_stride(cluster, 65)


@pytest.mark.parametrize("machine", ["dgx-h100", "tapered-h100"])
def test_the_cache_distinguishes_latencies(machine: str) -> None:
    """Clusters are equal if only their latencies differ, because fingerprints do not contain them."""
    cluster = ml.preset(machine, nodes=8)
    slower = replace(cluster, levels=tuple(replace(level, latency_us=20.0) for level in cluster.levels))
    assert slower == cluster
    tables = [GroupLinks.by_stride(one) for one in (cluster, slower)]
    of_all = [table.links.network_latency_us[table.index([64], [1])][0] for table in tables]
    of_unions = [table.union([[4, 4]], [[2, 16]]).network_latency_us[0] for table in tables]
    of_preset = cluster.levels[0].latency_us - 2.7  # 2.7 is a hop of InfiniBand
    assert of_all == of_unions == [pytest.approx(of_preset), pytest.approx(17.3)]


def test_a_part_of_the_cluster() -> None:
    cluster = ml.preset("dgx-h100", nodes=4)
    for ranks in (4, 12, 16):
        table = GroupLinks.by_stride(cluster, ranks)
        mesh = ml.DeviceMesh(a=ranks // 2, b=2)
        placement = ml.place(mesh, cluster)
        for name, (size, stride) in strides_of(mesh).items():
            assert_equal(table.links.rows(table.index([size], [stride])), worst(placement, name), f"{ranks} {name} ")


def test_the_exact_table_of_16384_ranks_takes_less_than_a_second() -> None:
    times = []
    for taper in (5, 6):  # not in the cache
        began = time.process_time()
        table = GroupLinks.by_stride(ml.preset("tapered-h100", nodes=2048).with_taper(taper))
        times.append(time.process_time() - began)
        if times[-1] < 1:
            break
    assert min(times) < 1
    assert len(table.links) == 106


# -- what is missing ---------------------------------------------------------------------------------------------------


def test_cpus_are_predicted_by_calibration_only() -> None:
    laptop = Cluster.from_nodes([Node("laptop", cpu_model="Ryzen")])
    with pytest.raises(ml.MeshlabError, match="no cost model for collectives on CPUs") as caught:
        GroupLinks.of(ml.place("tp=4", laptop), "tp")
    assert "calibrate" in str(caught.value.hint)  # type: ignore[attr-defined]
    with pytest.raises(ml.MeshlabError, match="world_size must be an integer from 1 to the 0 devices"):
        GroupLinks.by_stride(laptop)


def test_unknown_links_are_named() -> None:
    gpu = Device(id=0, compute_capability=(9, 0))
    unknown = Node("host7", (gpu, replace(gpu, id=1)))
    with pytest.raises(ml.MeshlabError, match="tp: the bandwidth between the devices of host7 is unknown"):
        GroupLinks.of(ml.place("tp=2", Cluster.from_nodes([unknown])), "tp")
    linked = replace(unknown, words=(("X", "NV18"), ("NV18", "X")))
    two = Cluster.from_nodes([linked, replace(linked, name="host8")])
    assert len(GroupLinks.of(ml.place("dp=2, tp=2", two), "tp")[0]) == 1
    with pytest.raises(ml.MeshlabError, match="dp: the bandwidth of the NICs of host7 is unknown"):
        GroupLinks.of(ml.place("dp=2, tp=2", two), "dp")
    nameless = Cluster.from_nodes([replace(linked, devices=(Device(id=0), Device(id=1)))])
    with pytest.raises(ml.MeshlabError, match="the compute capability of the GPUs of host7 is unknown"):
        GroupLinks.of(ml.place("tp=2", nameless), "tp")


def test_ranks_that_share_a_device_are_rejected() -> None:
    placement = ml.place("tp=4", ml.preset("dgx-h100"), devices=[0, 0, 1, 1])
    with pytest.raises(ml.MeshlabError, match="several ranks of a group share a device"):
        GroupLinks.of(placement, "tp")
