"""Clusters, and the presets that create them."""

from __future__ import annotations

import math
import pickle
import sys
from dataclasses import replace

import numpy as np
import pytest

import meshlab as ml
from meshlab.base._errors import TopologyError
from meshlab.topology.model._cluster import Cluster
from meshlab.topology.model._hardware import Device, Node
from meshlab.topology.model._levels import Level
from meshlab.topology.model._presets import PRESETS, preset
from meshlab.topology.model._products import amd_product, find_product, peak_tflops, product_of_pci


def host(called: str, count: int, **facts: object) -> Node:
    words = tuple(tuple("X" if i == j else "NV12" for j in range(count)) for i in range(count))
    return Node(called, tuple(Device(id=i, **facts) for i in range(count)), words=words)  # type: ignore[arg-type]


def test_identical_hosts_share_a_template_and_keep_their_names() -> None:
    cluster = Cluster.from_nodes([host("a", 4), host("b", 4), host("c", 2)])
    assert len(cluster.templates) == 2
    assert [node.name for node in cluster.nodes] == ["a", "b", "c"]
    assert cluster.first_device.tolist() == [0, 4, 8, 10]
    assert cluster.device(9).node == "c"
    assert cluster.node_of.tolist() == [0] * 4 + [1] * 4 + [2] * 2
    assert cluster.local_of.tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]


def test_large_cluster_has_no_object_per_gpu() -> None:
    cluster = preset("dgx-h100", nodes=2048)
    assert cluster.n_devices == 16384
    assert len(cluster.templates) == 1
    assert len(cluster.devices) == 16384
    assert cluster.devices[-1].node == "node2047"
    assert [device.id for device in cluster.devices[6:9]] == [6, 7, 0]
    assert sys.getsizeof(pickle.dumps(cluster)) < 100_000


def test_domains_of_all_levels() -> None:
    cluster = preset("tapered-h100", nodes=800)
    counts = [len(np.unique(domain)) for domain in cluster.domains]
    assert dict(zip(cluster.level_names, counts, strict=True)) == {
        "device": 6400,
        "nvlink": 800,
        "host": 800,
        "leaf": 400,
        "pod": 3,
        "cluster": 1,
    }
    assert all(domain.max() + 1 == count for domain, count in zip(cluster.domains, counts, strict=True))


def test_rails_connect_device_k_of_every_host() -> None:
    cluster = preset("dgx-h100", nodes=64)
    leaf = cluster.domain("leaf").reshape(64, 8)
    assert np.array_equal(leaf[:32], np.tile(np.arange(8), (32, 1)))
    assert np.array_equal(leaf[32:], np.tile(np.arange(8, 16), (32, 1)))


def test_two_gpus_share_a_rail_if_there_are_half_as_many_rails() -> None:
    cluster = preset("gcp-a3-high", nodes=2, nodes_per_leaf=2, rails=4)
    assert cluster.domain("leaf")[:8].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_nvlink_domain_spans_a_rack() -> None:
    cluster = preset("gb200-nvl72", nodes=36)
    assert np.bincount(cluster.domain("nvlink")).tolist() == [72, 72]
    words = cluster.link_words()
    assert words[0, 1] == "NV18"
    assert words[0, 4] == "nvlink"
    assert words[0, 72] == "leaf"


def test_gpu_without_nvlink_is_outside_the_domain_of_its_rack() -> None:
    words = (("X", "NV18", "SYS"), ("NV18", "X", "SYS"), ("SYS", "SYS", "X"))
    devices = tuple(Device(id=i, fabric="f/1") for i in range(3))
    good = replace(host("b", 3), devices=devices)
    cluster = Cluster.from_nodes([Node("a", devices, words=words), good])
    assert cluster.domain("nvlink").tolist() == [0, 0, 1, 0, 0, 0]


def test_hosts_of_a_fabric_clique_share_a_domain() -> None:
    cluster = Cluster.from_nodes([host("a", 2, fabric="u/7"), host("b", 2, fabric="u/7"), host("c", 2, fabric="u/8")])
    assert cluster.domain("nvlink").tolist() == [0, 0, 0, 0, 1, 1]


def test_level_that_joins_all_hosts_is_added() -> None:
    cluster = Cluster.from_nodes([host("a", 1), host("b", 1)])
    assert cluster.level_names == ("device", "nvlink", "host", "cluster")
    assert Cluster.from_nodes([host("a", 1)]).level_names == ("device", "nvlink", "host")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kinds": np.zeros(3, dtype=np.int32)}, "kinds must have one entry for each of the 2 nodes"),
        ({"names": ()}, "at least one node"),
        ({"levels": (Level("host", np.zeros(2, dtype=np.int32)),)}, "several levels are named 'host'; give each level"),
    ],
)
def test_inconsistent_clusters_are_rejected(change: dict[str, object], message: str) -> None:
    cluster = Cluster.from_nodes([host("a", 1), host("b", 1)])
    with pytest.raises(TopologyError, match=message):
        replace(cluster, **change)  # type: ignore[arg-type]


def test_unknown_names_and_indices_are_explained() -> None:
    cluster = preset("dgx-h100", nodes=2)
    with pytest.raises(TopologyError, match="unknown node 'node7'; choose 0 to 1, or 'node0' to 'node1'"):
        cluster.node("node7")
    with pytest.raises(TopologyError, match="unknown node None"):
        cluster.node(None)  # type: ignore[arg-type]
    with pytest.raises(TopologyError, match="unknown level 'rack'; choose one of device, nvlink, host, leaf, pod"):
        cluster.domain("rack")
    with pytest.raises(TopologyError, match="unknown device 16; choose a number from 0 to 15"):
        cluster.device(16)
    with pytest.raises(
        TopologyError, match="8,192 devices is too large: at most 2,048 are supported; pass a node, such as 'node0'"
    ):
        preset("dgx-h100", nodes=1024).link_words()


def test_frame_has_a_row_per_device() -> None:
    frame = preset("dgx-h100", nodes=3).frame()
    assert frame.shape[0] == 24
    assert frame["node"].tolist() == ["node0"] * 8 + ["node1"] * 8 + ["node2"] * 8
    assert frame["leaf"].tolist() == list(range(8)) * 3
    assert set(frame["supports_int8"]) == {True}


def test_level_frame_has_sizes_and_bandwidths() -> None:
    levels = preset("gb200-nvl72", nodes=36).level_frame().set_index("level")
    assert levels["devices_max"].tolist() == [1, 72, 4, 36, 144]
    assert levels.loc["nvlink", "gbs"] == pytest.approx(721.8)
    assert levels.loc["leaf", "latency_us"] == 2.7
    tapered = preset("tapered-h100", nodes=768).level_frame().set_index("level")
    assert tapered.loc["cluster", "gbs"] == pytest.approx(48 / 7)
    assert preset("pcie-l40s").level_frame().set_index("level").loc["host", "gbs"] == 22.0
    assert Cluster.from_nodes([Node("laptop")]).level_frame()["domains"].tolist() == [0, 0, 0]


def test_fingerprint_depends_on_links_and_network_but_not_on_readings() -> None:
    warm, cold = (Cluster.from_nodes([host("a", 2, temperature_c=t)]) for t in (30.0, 80.0))
    assert warm == cold
    assert hash(warm) == hash(cold)
    assert preset("dgx-h100", nodes=64) != preset("dgx-h100", nodes=64, taper=2)
    assert preset("dgx-h100", nodes=64) != preset("dgx-h100", nodes=64, rails=1)


def test_html_is_escaped() -> None:
    page = Cluster.from_nodes([host("<script>", 1, name="<b>")])._repr_html_()
    assert "<script>" not in page
    assert "<b>" not in page


def test_preset_has_the_size_of_the_machine() -> None:
    assert (preset("gb200-nvl72").n_nodes, preset("gb200-nvl72").n_devices) == (18, 72)
    assert np.ptp(preset("gb200-nvl72").domain("nvlink")) == 0
    assert preset("gb200-nvl72", nodes=1).n_devices == 4
    racks = {"gb200-nvl72", "gb300-nvl72", "gcp-a4x", "gcp-a4x-max"}
    assert {preset(name).n_nodes for name in racks} == {18}
    assert {preset(name).n_nodes for name in PRESETS if name not in racks} == {1}


@pytest.mark.parametrize("name", list(PRESETS)[list(PRESETS).index("dgx-b300") : list(PRESETS).index("superpod-h100")])
def test_sources_name_the_facts_of_gpus_nics_cpus_and_network(name: str) -> None:
    source = PRESETS[name].source
    if name.startswith("hgx"):
        assert "not a specific product" in source
    else:
        assert all(word in source for word in ("GPUs: ", "NICs: ", "CPUs and memory: ", "network"))


@pytest.mark.parametrize(
    ("name", "gpu", "devices", "nics", "gbits"),
    [
        ("aws-p5en", "H200", 8, 16, 200),
        ("aws-p6-b200", "B200", 8, 8, 400),
        ("aws-p6-b300", "B300", 8, 16, 400),
        ("dgx-b300", "B300", 8, 8, 800),
        ("gb300-nvl72", "GB300", 4, 4, 800),
        ("dgx-spark", "GB10", 1, 2, 100),
        ("mi300x", "MI300X", 8, 8, 400),
        ("azure-nd-a100-v4", "A100 40GB", 8, 8, 200),
        ("gcp-a3-ultra", "H200", 8, 8, 400),
        ("gcp-a4", "B200", 8, 8, 400),
        ("gcp-a4x", "GB200", 4, 4, 400),
        ("gcp-a4x-max", "GB300", 4, 4, 800),
        ("oci-h100", "H100 80GB", 8, 16, 200),
        ("oci-b4", "A100 40GB", 8, 16, 100),
        ("hgx-h100-4nic", "H100 80GB", 8, 4, 400),
        ("polaris", "A100 40GB", 4, 2, 200),
    ],
)
def test_presets_have_the_stated_parts(name: str, gpu: str, devices: int, nics: int, gbits: int) -> None:
    node = preset(name, nodes=1).templates[0]
    assert [device.name for device in node.devices] == [gpu] * devices
    assert [nic.gbits for nic in node.nics] == [gbits] * nics


def test_the_links_of_amd_have_no_model() -> None:
    cluster = preset("mi300x", nodes=2)
    assert cluster.templates[0].devices[0].backend == "rocm"
    assert "xGMI" in cluster.templates[0].notes[0]
    assert cluster.link_words()[0, :8].tolist() == ["X", *["XGMI1"] * 7]
    assert cluster.templates[0].device_nvlink_gbs == 336
    assert cluster.summary == "2 nodes, 16 × MI300X, XGMI domains of 8"
    with pytest.raises(TopologyError, match="no cost model of RCCL"):
        ml.predict("dp=16", cluster, "all_reduce").frame()


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_consistent_and_has_a_source(name: str) -> None:
    cluster = preset(name, nodes=5)
    words = cluster.link_words(0)
    assert np.array_equal(words, words.T)
    assert cluster.source
    assert cluster.templates[0].near_nics.any()
    assert cluster.templates[0].cpu_count
    assert all(device.cpus and device.numa for device in cluster.templates[0].devices)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "dgx"}, "^unknown preset 'dgx'; choose one of dgx-a100, dgx-h100"),
        ({"name": 8}, "^unknown preset 8; choose one of dgx-a100, dgx-h100"),
        ({"name": "dgx-h100", "nodes": 0}, "nodes must be an integer from 1 to 1,048,576, not 0"),
        ({"name": "dgx-h100", "nodes": 600_000_000}, "nodes must be an integer from 1 to 1,048,576, not 600000000"),
        ({"name": "dgx-h100", "nodes": 10**5000}, "not a number of 16,610 bits"),
        ({"name": "dgx-h100", "nodes": 4, "rails": 1025}, "rails must be an integer from 1 to 1,024, not 1025"),
        ({"name": "dgx-h100", "nodes": "2"}, "nodes must be an integer from 1 to 1,048,576, not '2'"),
        (
            {"name": "dgx-h100", "taper": 0.5},
            "taper must be a number of at least 1, not 0.5; pass 1 for full bandwidth",
        ),
        ({"name": "dgx-h100", "nodes_per_pod": -1}, "nodes_per_pod must be .* 0 .*, not -1; pass 0 for no pods"),
    ],
)
def test_invalid_presets_are_explained(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        preset(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H100 PCIe", 756), ("NVIDIA H100 NVL", 835), ("NVIDIA GH200 480GB", 989), ("NVIDIA H20", 148),
        ("NVIDIA A100-SXM4-80GB", 312), ("NVIDIA RTX A1000", None), ("Tesla V100-PCIE-16GB", 112), ("V100 SXM2", 125),
        ("NVIDIA GB200", 2500), ("NVIDIA B200", 2250), ("NVIDIA L40S", 362), ("NVIDIA L4", 121), ("NVIDIA L40", None),
    ],
)  # fmt: skip  # a table
def test_the_peak_follows_from_the_name_that_a_driver_prints(name: str, peak: float | None) -> None:
    found = peak_tflops(name)
    assert math.isnan(found) if peak is None else found == peak


def test_a_cluster_of_many_hosts_is_shown_without_sorting_its_devices_by_np_unique(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It takes seconds for a million devices."""
    sizes: list[int] = []

    def count(numbers: np.ndarray, **options: object) -> object:
        sizes.append(np.size(numbers))
        return unique(numbers, **options)

    unique = np.unique
    monkeypatch.setattr(np, "unique", count)
    for name in ("dgx-h100", "gb200-nvl72", "tapered-h100"):
        cluster = preset(name, nodes=9000)
        assert "9,000 nodes" in repr(cluster)
        assert "<table" in cluster._repr_html_()
    assert max(sizes, default=0) < 1000


def test_the_largest_cluster_has_a_number_for_each_switch() -> None:
    cluster = preset("pcie-l40s", nodes=1 << 12, nodes_per_leaf=1, rails=1024)
    leaf = cluster.domain("leaf").reshape(cluster.n_nodes, -1)
    assert (leaf // 1024 == np.arange(cluster.n_nodes)[:, None]).all()
    assert (leaf % 1024 == np.arange(8)).all()


def test_products_are_found_by_name_prefix_and_pci_id() -> None:
    assert find_product("a100 80").sm_count == 108
    assert product_of_pci("0x10de", "0x2335") is find_product("H200")
    assert product_of_pci("0x1002", "0x2335") is None
    assert (find_product("MI250").name, find_product("MI250X").xgmi_gbs) == ("MI250", 36.0)
    assert amd_product("AMD Instinct MI300X VF") is find_product("MI300X")
    assert amd_product("NVIDIA H200") is amd_product("AMD Radeon RX 7900 XTX") is None
    with pytest.raises(TopologyError, match="unknown GPU product 'K80'; choose one of V100"):
        find_product("K80")


def test_hosts_without_gpus_get_cpu_slots() -> None:
    cluster = Cluster.from_nodes([Node("a", cpu_model="EPYC"), Node("b", cpu_model="EPYC")]).with_cpu_slots(5)
    assert cluster.node_of.tolist() == [0, 0, 0, 1, 1]
    assert {device.backend for device in cluster.devices} == {"cpu"}


def test_totals_by_backend_appear_in_the_summary_if_there_are_several() -> None:
    nodes = [host("a", 4), host("b", 4, name="MI300X", backend="rocm"), host("c", 2, name="EPYC", backend="cpu")]
    cluster = Cluster.from_nodes(nodes)
    assert cluster.backend_counts == {"cuda": 4, "rocm": 4, "cpu": 2}
    assert "4 cuda and 4 rocm and 2 cpu devices" in cluster.summary
    assert "devices" not in Cluster.from_nodes(nodes[:1]).summary
    assert preset("dgx-h100", nodes=2048).backend_counts == {"cuda": 16384}
    assert cluster.with_cpu_slots(6).backend_counts == {"cpu": 6}
    assert cluster.frame()["backend"].value_counts().to_dict() == cluster.backend_counts


def test_devices_by_backend_are_indices_into_the_cluster() -> None:
    nodes = [host("a", 2), host("b", 2, name="EPYC", backend="cpu"), Node("c"), host("d", 1)]
    devices = Cluster.from_nodes(nodes).devices_by_backend
    assert {name: numbers.tolist() for name, numbers in devices.items()} == {"cuda": [0, 1, 4], "cpu": [2, 3]}
    assert {numbers.dtype for numbers in devices.values()} == {np.dtype(np.int32)}
    assert Cluster.from_nodes([Node("a")]).devices_by_backend == {}


def test_totals_count_only_the_devices_that_are_left() -> None:
    cluster = preset("dgx-h100", nodes=2)
    assert (cluster.total_memory_bytes, cluster.total_compute_units) == (16 * 80 << 30, 16 * 132)
    fewer = cluster.without_device(0).without_node(1, keep_place=True)
    assert (fewer.total_memory_bytes, fewer.total_compute_units) == (7 * 80 << 30, 7 * 132)
    mixed = Cluster.from_nodes([preset("dgx-h100").node(0), preset("dgx-a100").node(0)])
    assert mixed.total_compute_units == 8 * (132 + 108)


def test_totals_are_unknown_if_those_of_a_device_are() -> None:
    described, undescribed = host("a", 2, memory_bytes=80 << 30, sm_count=132), host("b", 1, memory_bytes=80 << 30)
    cluster = Cluster.from_nodes([described, undescribed])
    assert (cluster.total_memory_bytes, cluster.total_compute_units) == (240 << 30, None)
    assert cluster.without_node("b").total_compute_units == 264
    assert cluster.without_device(2).total_compute_units == 264
    assert Cluster.from_nodes([Node("a")]).total_memory_bytes == 0


@pytest.mark.parametrize(
    ("name", "units"),
    [
        ("dgx-h100", 132),
        ("dgx-h200", 132),
        ("dgx-a100", 108),
        ("dgx-b200", 148),
        ("alps-gh200", 132),
        ("pcie-l40s", 142),
    ],
)
def test_presets_have_the_published_compute_units(name: str, units: int) -> None:
    cluster = preset(name)
    assert cluster.total_compute_units == units * cluster.n_devices


@pytest.mark.parametrize("name", PRESETS)
def test_presets_have_all_totals(name: str) -> None:
    cluster = preset(name)
    assert cluster.total_memory_bytes is not None
    assert cluster.total_compute_units is not None
