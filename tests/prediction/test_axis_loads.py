"""The loads of an axis are those of the predicted call: the same algorithm, and no link that needs longer than it."""

from __future__ import annotations

import functools

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshlab as ml
from meshlab.base._errors import MeshlabError, TopologyError
from meshlab.mesh._mesh import DeviceMesh
from meshlab.prediction._axis_loads import loads
from meshlab.prediction._costs import COLLECTIVES, prices
from meshlab.prediction._group_links import GroupLinks
from meshlab.prediction._tuner import NcclSettings
from meshlab.topology.model._presets import PRESETS
from meshlab.topology.placement._loads import link_loads
from meshlab.topology.placement._placement import Placement, place
from tests.examples import examples

FAULTS = ("healthy", "NIC", "device")
MODELLED = [name for name in PRESETS if "mi300x" not in name]  # RCCL has no model


@functools.cache
def cluster_of(name: str, nodes: int, fault: str) -> ml.Cluster:
    racks = {"nodes_per_rack": 2} if PRESETS[name].fabric.rack > 1 else {}
    network = {"nodes_per_leaf": 2, "nodes_per_pod": 4, "rails": 8} if name == "tapered-h100" else {}
    cluster = ml.preset(name, nodes=nodes, **racks, **network)
    if fault == "NIC" and nodes > 1:
        return cluster.without_nic(0, 1)
    return cluster.without_device(1) if fault == "device" else cluster


def check_axis(placement: Placement, axis: str, collective: str, size: int) -> None:
    if placement.mesh[axis].size == 1:
        return
    lines = ml.predict(placement, collectives={axis: collective}, sizes=size).lines
    found = loads(placement, axis, collective=collective, size=size)
    assert set(found.algorithm.split(" and ")) == {name for line in lines for name in line.algorithm}
    assert not found.is_assumed
    time_us = max(line.time_us.max() for line in lines)
    for link in found.links:
        longest = float(link.seconds[np.isfinite(link.seconds)].max(initial=0.0))
        assert longest <= time_us * 1e-6 * (1 + 1e-6), (link.name, found.algorithm)


@settings(max_examples=examples(120), deadline=None)
@given(data=st.data())
def test_no_link_is_busier_than_the_predicted_call(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(MODELLED))
    nodes = data.draw(st.sampled_from([1, 2, 3, 4, 6, 16]))
    cluster = cluster_of(name, nodes, data.draw(st.sampled_from(FAULTS)))
    n = cluster.n_devices
    inner = data.draw(st.sampled_from([size for size in (1, 2, 3, 4, 7, 8, 16, n) if size <= n]))
    middle = data.draw(st.sampled_from([size for size in (1, 2, 3, 4) if size * inner <= n]))
    placement = place(DeviceMesh((n // inner // middle, middle, inner), ("dp", "pp", "tp")), cluster)
    collective = data.draw(st.sampled_from(COLLECTIVES))
    size = data.draw(st.sampled_from([8, 1 << 16, 1 << 22, 1 << 28, 1 << 33]))
    for axis in placement.mesh.axis_names:
        check_axis(placement, axis, collective, size)


@pytest.mark.full
@pytest.mark.parametrize("name", MODELLED)
def test_no_link_of_a_preset_is_busier_than_the_predicted_call(name: str) -> None:
    for fault in FAULTS:
        try:
            cluster = cluster_of(name, 4, fault)
        except TopologyError:  # a host with one NIC has no second one to lose
            continue
        for text in ("dp=-1, tp=4", "tp=-1", "tp=4, dp=-1"):
            try:
                placement = place(text, cluster)
            except MeshlabError:  # 4 does not divide what a failure leaves
                continue
            for axis in placement.mesh.axis_names:
                for collective in COLLECTIVES:
                    check_axis(placement, axis, collective, 1 << 33)


def test_racks_may_differ_in_size() -> None:
    placement = place("dp=12", cluster_of("gb200-nvl72", 3, "healthy"))
    for collective in COLLECTIVES:
        check_axis(placement, "dp", collective, 1 << 28)


TAPERED = [
    {"nodes": 32, "nodes_per_leaf": 4, "nodes_per_pod": 8, "rails": 8},
    {"nodes": 24, "nodes_per_leaf": 2, "nodes_per_pod": 6, "rails": 8},
]


@pytest.mark.parametrize("network", TAPERED)
@pytest.mark.parametrize(
    ("algorithm", "collective"),
    [("ring", "all_reduce"), ("tree", "all_reduce"), ("nvls_tree", "all_reduce"), ("pat", "all_gather")],
)
def test_each_algorithm_takes_as_long_as_an_oversubscribed_exit(
    network: dict[str, int], algorithm: str, collective: str
) -> None:
    """Also where NCCL would choose another one. The edges of trees and PAT leave a pod more often than a ring."""
    cluster, compared = ml.preset("tapered-h100", **network), 0
    chosen = NcclSettings(algorithms=(algorithm,))
    for text in ("tp=-1", "dp=-1, tp=8", "pp=2, dp=-1, tp=4", "dp=-1, tp=16", "tp=8, dp=-1"):
        placement = place(text, cluster)
        for axis in placement.mesh.axis_names:
            links, _ = GroupLinks.of(placement, axis)
            try:
                priced = prices(links, collective, settings=chosen)
            except MeshlabError:  # the algorithm needs several domains, or one rank in each
                continue
            time = float(priced.time_us(np.arange(len(links)), 1 << 33).max()) * 1e-6
            found = link_loads(placement, axis, collective=collective, size=1 << 33, algorithm=algorithm)
            assert found.seconds <= time * (1 + 1e-6), (text, axis)
            compared += 1
    assert compared


def test_the_bus_bandwidth_of_nvls_is_above_the_wire_and_its_bytes_are_not() -> None:
    placement = place("dp=2, tp=8", ml.preset("dgx-h100", nodes=2))
    found = loads(placement, "tp", size="1G")
    row = ml.predict(placement, collectives={"tp": "all_reduce"}, sizes="1G").frame().iloc[0]
    assert (found.algorithm, row["algorithm"]) == ("nvls", "nvls")
    assert row["busbw_gbs"] > 370.8 > found.volume_bytes / row["time_us"] / 1e3
    assert found.algorithm_words == "NVLS: NVSwitch reduces"


def test_without_a_cost_model_a_ring_is_assumed() -> None:
    placement = place("dp=2, tp=2", ml.preset("dgx-h100").with_cpu_slots(4))
    for axis in ("dp", "tp"):
        found = loads(placement, axis, collective="all_reduce")
        assert (found.algorithm, found.is_assumed) == ("ring", True)


# -- uneven traffic ----------------------------------------------------------------------------------------------------


def drawn_cluster(data: st.DataObject, nodes: int) -> ml.Cluster:
    name, fault = data.draw(st.sampled_from(MODELLED)), data.draw(st.sampled_from(FAULTS))
    try:
        return cluster_of(name, nodes, fault)
    except TopologyError:  # a host with one NIC has no second one to lose
        return cluster_of(name, nodes, "healthy")


def random_traffic(rng: np.random.Generator, n: int) -> ml.Traffic:
    """A matrix with ranks that send or receive nothing, and with a hot pair."""
    matrix = rng.exponential(size=(n, n)) ** rng.choice([1.0, 3.0]) * (1 << 24)
    matrix[rng.random((n, n)) < rng.choice([0.0, 0.5, 0.9])] = 0
    if rng.random() < 0.5:
        matrix[rng.integers(n)] = 0
        matrix[:, rng.integers(n)] = 0
    if rng.random() < 0.5:
        matrix[rng.integers(n), rng.integers(n)] = 1 << 30
    return ml.Traffic.matrix(matrix)


@settings(max_examples=examples(120), deadline=None)
@given(data=st.data())
def test_no_link_is_busier_than_the_predicted_call_with_any_traffic(data: st.DataObject) -> None:
    nodes = data.draw(st.sampled_from([1, 2, 3, 4, 6, 16]))
    cluster = drawn_cluster(data, nodes)
    n = cluster.n_devices
    inner = data.draw(st.sampled_from([size for size in (1, 2, 3, 4, 7, 8, 16, n) if size <= n]))
    size = data.draw(
        st.sampled_from([size for size in (2, 3, 4, 8, 16, 32, n // inner) if 1 < size * inner <= n] or [1])
    )
    placement = place(DeviceMesh((max(n // inner // size, 1), size, inner), ("dp", "ep", "tp")), cluster)
    traffic = random_traffic(np.random.default_rng(data.draw(st.integers(0, 1 << 20))), size)
    if size == 1 or not (traffic.total_bytes - int(traffic.self_bytes.sum())):
        return
    frame = ml.predict(placement, axis="ep", traffic=traffic).frame()
    of_links = loads(placement, "ep", traffic=traffic)
    for link in of_links.links:
        longest = float(link.seconds[np.isfinite(link.seconds)].max(initial=0.0))
        assert longest <= frame["time_us"].max() * 1e-6 * (1 + 1e-6), link.name
    assert (frame["time_us"] * 1e-6 * (1 + 1e-6) >= of_links.volume_bytes / 1e12).all()


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_an_even_traffic_has_exactly_the_figures_of_an_all_to_all(data: st.DataObject) -> None:
    nodes = data.draw(st.sampled_from([1, 2, 3, 4]))
    cluster = drawn_cluster(data, nodes)
    n = cluster.n_devices
    inner = data.draw(st.sampled_from([size for size in (1, 2, 3, 8) if 2 * size <= n] or [1]))
    size = n // inner
    if size == 1:
        return
    placement = place(DeviceMesh((size, inner), ("ep", "tp")), cluster)
    sizes = [64 * size, size << 20, size << 28]
    without = ml.predict(placement, collectives={"ep": "all_to_all"}, sizes=sizes).frame()
    even = ml.predict(placement, axis="ep", traffic=ml.Traffic.even(), sizes=sizes).frame()
    columns = [name for name in without if name != "collective"]
    pd.testing.assert_frame_equal(without[columns], even[columns], check_exact=True)
    before = loads(placement, "ep", collective="all_to_all", size=size << 20)
    after = loads(placement, "ep", traffic=ml.Traffic.even(), size=size << 20)
    assert (before.state, before.limit, before.size_bytes) == (after.state, after.limit, after.size_bytes)
    for link, same in zip(before.links, after.links, strict=True):
        assert np.array_equal(link.groups, same.groups)
        assert np.array_equal(link.bytes, same.bytes)
        assert np.array_equal(link.gbs, same.gbs, equal_nan=True)
