"""Costs: laws of the hardware, shares, bounds and their reasons, and bad input."""

from __future__ import annotations

import time
from dataclasses import fields, replace

import numpy as np
import pytest

import meshlab as ml
from meshlab.comm._catalog import CATALOG
from meshlab.prediction._constants import ALGORITHMS, PROTOCOLS
from meshlab.prediction._costs import COLLECTIVES, Cost, cost
from meshlab.prediction._group_links import GroupLinks
from meshlab.prediction._published_errors import no_errors
from meshlab.prediction._tuner import NcclSettings
from meshlab.topology.model._cluster import Cluster

SIZES = 1 << np.arange(3, 41)
MACHINES = {
    "inside a host": ("tp=8", "dgx-h100", 1, "tp"),
    "over PCIe": ("tp=8", "pcie-l40s", 1, "tp"),
    "two hosts": ("dp=16", "dgx-h100", 2, "dp"),
    "three hosts": ("dp=24", "dgx-h100", 3, "dp"),
    "one rank per host": ("dp=16, tp=8", "dgx-a100", 16, "dp"),
    "a rack": ("dp=72", "gb200-nvl72", 18, "dp"),
    "racks": ("dp=144", "gb200-nvl72", 36, "dp"),
    "oversubscribed": ("pp=8, dp=96, tp=8", "tapered-h100", 768, "pp"),
    "shared NICs": ("dp=2, tp=8", "gcp-a3-high", 2, "dp"),
}


def links_of(mesh: str, preset: str, nodes: int, axis: str) -> GroupLinks:
    return GroupLinks.of(ml.place(mesh, ml.preset(preset, nodes=nodes)), axis)[0]


@pytest.fixture(scope="module")
def machines() -> dict[str, GroupLinks]:
    return {name: links_of(*machine) for name, machine in MACHINES.items()}


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_collective_has_a_cost_on_every_machine(machines: dict[str, GroupLinks], collective: str) -> None:
    for name, links in machines.items():
        answer = cost(links, collective, SIZES)
        assert np.isfinite(answer.time_us).all(), name
        assert (answer.latency_us > 0).all()
        assert answer.time_us[0, -1] == pytest.approx(2 * answer.time_us[0, -2], rel=0.02), name  # by bandwidth alone
        n = int(links.n_ranks[0])
        assert answer.busbw_gbs[0, -1] == pytest.approx(
            SIZES[-1] / answer.time_us[0, -1] / 1e3 * CATALOG[collective].bus_factor(n)
        )
        # PCIe reaches less than its bound, and NCCL's channels may be a little faster than the practical rate.
        assert 0.5 < answer.busbw_gbs[0, -1] / answer.bound_gbs[0] < 1.01 or collective == "send_recv", name


@pytest.mark.parametrize(
    ("name", "collective", "gbs", "bound"),
    [
        ("inside a host", "all_gather", 370.8, "NVLink"),
        ("inside a host", "all_reduce", 14 / 9 * 1.02 * 0.835 * 370.8, "NVSwitch reduction"),
        ("over PCIe", "all_reduce", 22.0, "PCIe"),
        ("two hosts", "all_gather", 384.0, "8 NICs"),
        ("one rank per host", "all_reduce", 24.0, "2 NICs, 1 of 2 groups"),
        ("a rack", "all_reduce", 142 / 73 * 1.02 * 0.753 * 721.8, "NVSwitch reduction"),
        ("oversubscribed", "all_reduce", 48 * 3072 / 7 / 768, "taper 1:7"),
        ("shared NICs", "all_reduce", 12.0, "1 NIC, 1 of 2 groups"),
        ("two hosts", "all_to_all", 384 / 8 * 15 / 8, "8 NICs"),
    ],
)
def test_bounds_and_their_reasons(
    machines: dict[str, GroupLinks], name: str, collective: str, gbs: float, bound: str
) -> None:
    answer = cost(machines[name], collective, [1 << 30])
    is_network = bound not in ("NVLink", "NVSwitch reduction", "PCIe")
    assert (answer.bound_gbs[0], answer.bound[0]) == (pytest.approx(gbs * (1.02 if is_network else 1.0)), bound)
    assert answer.bound_gbs_lo[0] <= answer.bound_gbs[0]


def test_groups_share_nics_in_words() -> None:
    node = replace(ml.preset("dgx-h100").nodes[0])
    # All devices at the same distance from all NICs.
    count = len(node.devices)
    words = tuple(
        tuple("X" if i == j else "NV18" if i < count and j < count else "PXB" for j in range(2 * count))
        for i in range(2 * count)
    )
    host = replace(node, words=words)
    cluster = Cluster.from_nodes([host, replace(host, name="b")])
    links, _ = GroupLinks.of(ml.place("dp=2, tp=8", cluster), "dp")
    answer = cost(links, "all_reduce", [1 << 30])
    assert answer.bound == ("8 NICs, 1 of 8 groups",)
    assert answer.bound_gbs[0] == pytest.approx(1.02 * 48)


def test_why_busbw_may_exceed_the_wire(machines: dict[str, GroupLinks]) -> None:
    def why(name: str, **settings: bool) -> str:
        return cost(machines[name], "all_reduce", [1 << 30], settings=NcclSettings(**settings)).above_wire[0]  # type: ignore[arg-type]

    assert "S(1 + 1/n)" in why("inside a host")
    assert why("inside a host", nvls=False) == ""
    assert "two nodes a tree" in why("two hosts")
    assert "three nodes a tree" in why("three hosts")
    assert "switches reduce between the nodes" in why("two hosts", sharp=True)
    assert cost(machines["two hosts"], "all_gather", [1 << 30]).above_wire == ("",)


@pytest.mark.parametrize(("n", "published"), [(4, 367), (5, 420), (6, 440), (7, 460), (8, 480)])
def test_the_law_of_the_reduction_in_nvswitch(n: int, published: float) -> None:
    """NVIDIA/nccl#1455: bus bandwidth of 4 to 8 H100."""
    answer = cost(
        links_of(f"tp={n}", "dgx-h100", 1, "tp"), "all_reduce", [4 << 30], settings=NcclSettings(algorithms=("nvls",))
    )
    assert answer.busbw_gbs[0, 0] == pytest.approx(published, rel=0.03)


def test_sharp_reduces_between_nodes() -> None:
    """coreweave/nccl-tests: 96 H100 reach 383 GB/s."""
    links = links_of("dp=96", "dgx-h100", 12, "dp")
    answer = cost(links, "all_reduce", [4 << 30], settings=NcclSettings(sharp=True))
    assert ALGORITHMS[answer.algorithm[0, 0]] == "nvls"
    assert answer.busbw_gbs[0, 0] == pytest.approx(383.2, rel=0.01)


def test_the_choice_is_nccls_belief_and_the_price_the_true_share() -> None:
    """Two groups on one NIC: NCCL chooses as if each were alone, and takes twice as long."""
    shared = links_of("dp=2, tp=8", "gcp-a3-high", 2, "dp")
    twice = {"network_gbs": 2 * shared.network_gbs, "exchange_gbs": 2 * shared.exchange_gbs}
    alone = replace(shared, **twice, groups_per_nic=np.ones(1))
    for collective in COLLECTIVES:
        one, two = cost(alone, collective, SIZES), cost(shared, collective, SIZES)
        assert np.array_equal(one.algorithm, two.algorithm)
        assert np.array_equal(one.protocol, two.protocol)
        assert two.time_us[0, -1] == pytest.approx(2 * one.time_us[0, -1], rel=1e-3)
        assert np.allclose(one.latency_us, two.latency_us)


def test_send_recv_in_a_large_communicator_has_few_channels() -> None:
    """H100 in xxrjun/nccl-tests-cluster: 43 GB/s between two ranks, 15 GB/s among 80."""
    two = cost(links_of("dp=2, tp=8", "dgx-h100", 2, "dp"), "send_recv", [1 << 29])
    eighty = cost(links_of("dp=80", "dgx-h100", 10, "dp"), "send_recv", [1 << 29])
    assert two.busbw_gbs[0, 0] == pytest.approx(43.5, rel=0.12)
    assert eighty.busbw_gbs[0, 0] == pytest.approx(15.2, rel=0.12)


@pytest.mark.parametrize("preset", ["dgx-a100", "gb200-nvl72", "pcie-l40s", "gcp-a3-high", "alps-gh200"])
def test_no_axis_exceeds_its_bound(preset: str) -> None:
    axes = GroupLinks.by_stride(ml.preset(preset, nodes=16)).links
    several = axes.rows(np.flatnonzero(axes.n_ranks > 1))
    for collective in COLLECTIVES:
        answer = cost(several, collective, SIZES)
        assert (answer.busbw_gbs <= answer.bound_gbs[:, None] * (1 + 1e-9)).all(), collective


def test_without_a_switch_a_message_has_the_links_to_one_peer() -> None:
    four, pair = links_of("pp=4", "alps-gh200", 1, "pp"), links_of("pp=2, dp=2", "alps-gh200", 1, "pp")
    sizes = [1 << 30]
    assert cost(four, "send_recv", sizes).time_us == pytest.approx(cost(pair, "send_recv", sizes).time_us, rel=0.01)
    # Rings and exchanges between all ranks use the links to all peers.
    assert cost(four, "all_gather", sizes).busbw_gbs[0, 0] > 2.5 * cost(pair, "all_gather", sizes).busbw_gbs[0, 0]


def test_two_hosts_do_not_make_pcie_faster() -> None:
    for collective in ("all_reduce", "all_gather", "broadcast"):
        one, two = (cost(links_of(f"dp={8 * k}", "pcie-l40s", k, "dp"), collective, [1 << 33]) for k in (1, 2))
        # NCCL's list of channel speeds for hosts in a network is finer.
        assert two.busbw_gbs[0, 0] < 1.15 * one.busbw_gbs[0, 0]


def test_all_to_all_behind_an_uplink() -> None:
    """All ranks of a pod send through it, not only those at the ends of a ring."""
    links = links_of("dp=768, tp=8", "tapered-h100", 768, "dp")
    answer = cost(links, "all_to_all", [1 << 37], evidence=no_errors())
    # 384 hosts with one rank of every group: half of all bytes leave the pod over 1/7 of its NICs.
    assert answer.bound == ("taper 1:7",)
    assert answer.busbw_gbs[0, 0] == pytest.approx(2 * 48 / 7, rel=0.01)


def test_a_group_of_one_rank_costs_nothing() -> None:
    table = GroupLinks.by_stride(ml.preset("dgx-h100", nodes=2))
    alone = table.links.rows(table.index([1], [1]))
    for collective in COLLECTIVES:
        for mode in ("pipelined", "isolated"):
            answer = cost(alone, collective, SIZES, settings=NcclSettings(mode=mode))  # type: ignore[arg-type]
            assert (answer.time_us == 0).all()
            assert (answer.bound_gbs[0], answer.bound[0]) == (np.inf, "one rank")


def test_times_never_decrease_much_with_the_size(machines: dict[str, GroupLinks]) -> None:
    """NCCL's choice is not ideal, so a switch may save time, but the shape must hold."""
    sizes = np.unique(np.geomspace(8, 1 << 34, 400).astype(np.int64))
    for links in machines.values():
        for collective in COLLECTIVES:
            times = cost(links, collective, sizes).time_us[0]
            assert (times[1:] > 0.45 * times[:-1]).all(), collective


def test_rows_are_independent(machines: dict[str, GroupLinks]) -> None:
    together = GroupLinks(
        *(np.concatenate([getattr(links, item.name) for links in machines.values()]) for item in fields(GroupLinks))
    )
    for collective in COLLECTIVES:
        answer = cost(together, collective, SIZES)
        for row, links in enumerate(machines.values()):
            single = cost(links, collective, SIZES)
            np.testing.assert_allclose(answer.time_us[row], single.time_us[0])
            assert np.array_equal(answer.algorithm[row], single.algorithm[0])
            assert answer.bound[row] == single.bound[0]


@pytest.mark.parametrize("collective", ["scatter", "all_reduced", "barrier"])
def test_collectives_without_a_model_are_rejected(machines: dict[str, GroupLinks], collective: str) -> None:
    with pytest.raises(ml.MeshlabError, match=f"no cost model for the collective '{collective}'") as caught:
        cost(machines["a rack"], collective, [8])
    assert "all_reduce, all_gather" in str(caught.value.hint)  # type: ignore[attr-defined]


def test_codes_have_names(machines: dict[str, GroupLinks]) -> None:
    answer = cost(machines["a rack"], "send_recv", SIZES)
    assert isinstance(answer, Cost)
    assert {ALGORITHMS[a] for a in answer.algorithm.ravel()} == {"p2p"}
    assert {PROTOCOLS[p] for p in answer.protocol.ravel()} == {"ll", "simple"}


def test_costs_of_16384_ranks_take_milliseconds() -> None:
    placement = ml.place("pp=16, dp=128, tp=8", ml.preset("dgx-h100", nodes=2048))
    sizes = np.geomspace(8, 1 << 32, 30).astype(np.int64)
    usual = {"pp": "send_recv", "dp": "all_reduce", "tp": "all_gather"}

    def all_axes() -> None:
        for axis, collective in usual.items():
            cost(GroupLinks.of(placement, axis)[0], collective, sizes)

    all_axes()
    times = []
    for _ in range(3):  # a busy machine takes longer, also of the time of the processor
        began = time.process_time()
        all_axes()
        times.append(time.process_time() - began)
    assert min(times) < 0.05
