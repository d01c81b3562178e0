"""Parts that fail by name: the cluster, and that sentences, loads and the picture agree on what is used instead."""

from __future__ import annotations

import re

import numpy as np
import pytest

import meshlab as ml
from meshlab.base._errors import TopologyError
from meshlab.base._units import THIN
from meshlab.topology.model._cluster import Cluster
from meshlab.topology.model._presets import preset
from meshlab.topology.placement._loads import find_places
from meshlab.topology.placement._marks import failed_marks
from meshlab.topology.placement._placement import Placement, place
from meshlab.topology.placement._scene import scene_of

CLUSTER = preset("dgx-h100", nodes=64)
RAIL = 5


def test_the_sentence_names_the_nics_the_leaf_switches_and_the_cost_of_a_failed_nic() -> None:
    broken = preset("dgx-h100", nodes=4).without_nic("node1", "NIC0")
    placement = place("dp=4, tp=8", broken)
    assert placement.explain("dp") == (
        f"dp leaves the host: 8 groups share 7 NICs on node1, up to 2 to a NIC, 36.0{THIN}GB/s per group; "
        "it crosses 4 leaf switches. Because of NIC0 of node1, rank 8 leaves by NIC1, NIC2 and NIC3 of node1, which "
        "ranks 9, 10 and 11 also use, instead of NIC0, and by the leaf switches of rails 1, 2 and 3 instead of rail 0: "
        f"4 of 8 groups have 36.0{THIN}GB/s instead of 48.0{THIN}GB/s."
    )
    assert placement.explain("tp") == f"tp stays inside NVLink: NV18, 371{THIN}GB/s per direction"
    text = placement.describe()
    assert "▲ dp: 2 groups on one NIC" in text
    assert "▲ dp: changes rails, so its traffic goes above the leaf switches" in text
    assert "stays inside one leaf switch" not in text
    up = placement.loads("dp").of("leaf")
    assert up is not None
    assert up.bytes.tolist() == [up.bytes[0], *[up.bytes[0] / 3] * 3, 0, 0, 0, 0]


def test_a_failed_leaf_switch_moves_the_ranks_of_its_rail() -> None:
    broken = CLUSTER.with_failed(f"leaf:{RAIL}")
    hosts = broken.kinds == broken.kinds[0]
    assert hosts.tolist() == [True] * 32 + [False] * 32
    assert broken.node(0).connected.tolist() == [rail != RAIL for rail in range(8)]
    assert len(broken.node(0).nics) == 8
    placement = place("dp=64, tp=8", broken)
    text = placement.explain("dp")
    assert "8 groups share 7 NICs on each of 32 hosts, up to 2 to a NIC" in text
    assert "ranks 5, 13, 21 and 29 more leave by NIC4, NIC6 and NIC7 of their hosts" in text
    loads = placement.loads("dp")
    up, nic = loads.of("leaf"), loads.of("nic")
    assert up is not None
    assert nic is not None
    assert up.bytes[RAIL] == 0
    assert (nic.bytes[RAIL : 32 * 8 : 8] == 0).all()
    assert (nic.bytes[32 * 8 :] > 0).all()


def test_health_lists_nics_without_a_connection() -> None:
    findings = CLUSTER.with_failed("leaf:5", "node40/NIC2/cable").health()
    assert [(finding.code, len(finding.nodes)) for finding in findings if finding.code == "nic-cut"] == [
        ("nic-cut", 32),
        ("nic-cut", 1),
    ]
    assert CLUSTER.health().codes == ()


def test_fewer_uplinks_are_an_oversubscription_of_that_switch() -> None:
    tapered = CLUSTER.with_taper(pod=2)  # 16 uplinks for 32 NICs
    broken = tapered.with_failed("leaf:5/uplink*4").with_failed("leaf:5/uplink*4")
    assert broken.failed == ("leaf:5/uplink*8",)
    loads = [place("pp=2, dp=32, tp=8", cluster).loads("pp").of("leaf") for cluster in (tapered, broken)]
    assert loads[0] is not None
    assert loads[1] is not None
    assert loads[1].gbs[5] == loads[0].gbs[5] / 2
    assert loads[1].taper_of(5) == 4
    assert loads[1].gbs[4] == loads[0].gbs[4]
    assert loads[1].taper_of(4) == 2
    answer = place("pp=2, dp=32, tp=8", broken).of("pp")
    assert np.unique(answer.taper).tolist() == [2, 4]
    assert "1 of 8 groups" not in place("pp=2, dp=32, tp=8", broken).explain("pp")
    assert f"instead of 24.0{THIN}GB/s" in place("pp=2, dp=32, tp=8", broken).explain("pp")
    with pytest.raises(TopologyError, match="leaf switch 5 has 16 uplinks, and 8 have failed: 9 cannot fail"):
        broken.with_failed("leaf:5/uplink*9")


def test_without_a_way_out_there_is_no_prediction_and_the_sentence_says_so() -> None:
    for names, words in (
        (["pod:1"], "a switch on its way has no uplink left. Because of pod switch 1, each group has no path."),
        ([f"leaf:{rail}" for rail in range(8)], "ranks 0, 1, 2 and 253 more have no NIC left: each group has no path."),
        ([f"node3/NIC{k}" for k in range(8)], "ranks 24, 25, 26 and 5 more have no NIC left: each group has no path."),
    ):
        placement = place("dp=64, tp=8", CLUSTER.with_failed(*names))
        assert words in placement.explain("dp")
        loads = placement.loads("dp")
        assert (loads.state, loads.seconds) in (("cut", float("inf")), ("rail", loads.seconds))
        marks = [finding.mark for finding in find_places([loads])]
        assert ("✕" in marks) == (loads.state == "cut")  # not the mark of an oversubscription
        with pytest.raises(TopologyError, match="no path joins"):
            ml.predict(placement, collectives={"dp": "all_reduce"}, sizes="1M")


@pytest.mark.parametrize(
    ("part", "text", "gbs"),
    [
        ("node1/NIC3=50%", "NIC3 of node1 at 50 %", 24.0),
        ("node1/NIC3/cable", "cable of NIC3 of node1", 36.0),
        ("leaf:3/uplink*30", "30 uplinks of leaf switch 3", 48.0),
        ("leaf:3/uplink=1%", "uplinks of leaf switch 3 at 1 %", 15.36),
    ],
)
def test_parts_have_names_texts_and_a_cost(part: str, text: str, gbs: float) -> None:
    broken = CLUSTER.with_failed(part)
    (mark,) = failed_marks(broken)
    assert (mark.name, mark.text) == (part, text)
    slowest = place("dp=64, tp=8", broken).of("dp").ring_gbs.min()
    assert slowest == pytest.approx(gbs)
    assert broken.intact == CLUSTER
    assert broken != CLUSTER
    assert broken.as_intact().failed == ()


def test_rates_are_shares_or_bandwidths_and_can_be_restored() -> None:
    half = CLUSTER.with_rate("node1/NIC3", "200 Gb/s")
    assert half.failed == CLUSTER.with_rate("node1/NIC3", 0.5).failed == ("node1/NIC3=50%",)
    assert half.with_rate("node1/NIC3", "100%") == CLUSTER
    assert half.with_rate("node1/NIC3", "25%").failed == ("node1/NIC3=25%",)
    links = CLUSTER.with_rate("node1/GPU3/NVLink", "180 GB/s")  # 9 of 18 links
    assert links.link_words("node1")[3].tolist() == ["NV9"] * 3 + ["X"] + ["NV9"] * 4
    assert links.link_words("node0")[3, 0] == "NV18"
    assert place("dp=64, tp=8", links).frame("tp")["ring_gbs"].iloc[1] == pytest.approx(185.4)
    pair = CLUSTER.with_rate("node1/GPU3-GPU5", 0.5)
    assert (pair.link_words("node1") == "NV9").sum() == 2
    for part, rate, message in (
        ("node1", 0.5, "node1 has no rate; choose a NIC, NVLink, or the uplinks of a switch"),
        ("node1/NIC3", 0, "the rate must be a share such as 0.5 or '50%', or a bandwidth up to 48 GB/s, not 0"),
        ("node1/NIC3", "fast", "the rate must be a share"),
        ("node1/NIC3", "800 Gb/s", "the rate must be a share"),
        ("cluster:0/uplink", 0.5, "cluster is the outermost level, so its switches have no uplinks"),
    ):
        with pytest.raises(TopologyError, match=re.escape(message)):
            CLUSTER.with_rate(part, rate)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ("leaf:99", "leaf has no switch 99; choose a number from 0 to 15"),
        ("leaf:x", "unknown part 'leaf:x'; write a switch such as 'leaf:0', or 'leaf:0/uplink'"),
        ("leaf:0/port", "unknown part 'leaf:0/port'"),
        ("node1/NIC9/cable", "node1 has no part 'NIC9/cable'"),
        ("node1/NIC3=0%", "the rate must be more than 0 % and less than 100 %, not 0 %"),
        ("node1=50%", "node1 has no rate"),
        ("rack:1", "unknown part 'rack:1'"),
    ],
)
def test_unknown_parts_are_explained(part: str, message: str) -> None:
    with pytest.raises(TopologyError, match=re.escape(message)):
        CLUSTER.with_failed(part)
    if part.startswith("leaf:99"):
        with pytest.raises(TopologyError, match="leaf switch 3 has failed already"):
            CLUSTER.with_failed("leaf:3", "leaf:3")
        with pytest.raises(TopologyError, match="NIC3 of node0 has no connection already"):
            CLUSTER.with_failed("leaf:3", "node0/NIC3/cable")


def test_failures_stay_with_edits_of_the_rest() -> None:
    broken = CLUSTER.with_failed("node1/NIC0", "leaf:5", "node2/GPU3")
    grown = broken.with_nodes(4).with_taper(2)
    assert grown.failed == broken.failed
    assert grown.intact == CLUSTER.with_nodes(4).with_taper(2)
    assert broken.without_node("node1").failed == ("leaf:5", "node2/GPU3")
    assert broken.with_devices(nics=4).failed == ("node1/NIC0", "node2/GPU3")  # other leaf switches
    assert broken.with_network(16, rails=8).failed == ("node1/NIC0", "node2/GPU3")
    assert CLUSTER.with_failed("node1/NIC0", "node1").failed == ("node1",)


def _random_failures(cluster: Cluster, pick: np.random.Generator) -> Cluster:
    names = ["node1/NIC0", "leaf:3", "leaf:9", "node0/NIC7/cable", "node33/GPU2", "leaf:1/uplink*8", "node2/NIC1=50%"]
    names += [f"node{pick.integers(64)}/NIC{pick.integers(8)}" for _ in range(4)]
    names += [f"node{pick.integers(64)}/NIC{pick.integers(8)}/cable" for _ in range(3)]
    for name in pick.permutation(names)[: pick.integers(1, 7)].tolist():
        try:
            cluster = cluster.with_failed(name)
        except TopologyError:
            continue  # a part of it has failed already
    return cluster


def _check_agreement(placement: Placement, axis: str) -> None:
    """Compare what the sentence, the loads and the picture have to do with one another."""
    loads, text, scene = placement.loads(axis), placement.explain(axis), scene_of(placement.cluster)
    nic, up = loads.of("nic"), loads.of("leaf")
    assert nic is not None
    assert up is not None
    crowd = re.search(r"(\d+) groups on one NIC", " ".join(finding.text for finding in find_places([loads])))
    assert (int(crowd[1]) if crowd else 1) == int(nic.groups.max())
    share = re.search(r"(\d+) to a NIC", text)
    most = int(share[1]) if share else 1
    assert int(nic.groups.max()) == most, text
    assert ("changes rails" in " ".join(finding.text for finding in find_places([loads]))) == loads.climbs.any()
    assert ("every hop stays on its rail" in text or "stays inside one leaf" in text) == (not up.bytes.any()), text
    # What every rank uses: by the words, by the lines from its GPU in the picture, and by the bytes of the loads.
    host_at = np.empty(len(scene.host), dtype=int)
    host_at[scene.host] = np.arange(len(scene.host))
    used, switches = np.zeros(scene.n_nics, dtype=bool), np.zeros(len(up.bytes), dtype=bool)
    for rank in range(placement.mesh.world_size):
        host = host_at[placement.rank_map.node[rank]]
        kind = scene.kinds[scene.kind_of[host]]
        near = kind.near[kind.near[:, 0] == placement.rank_map.local[rank], 1]
        used[scene.first_nic[host] + near] = True
        unit = scene.unit_of[scene.box_of[host]]
        rails = kind.nic_rail[near]
        home = placement.cluster.domain("leaf")[placement.devices[rank]] % scene.rails
        assert home in rails
        switches[unit * scene.rails + rails] = True
    assert (used == (nic.bytes > 0)).all()
    assert (switches | (up.bytes == 0)).all()
    for detour in placement.detours:
        host = host_at[placement.rank_map.node[detour.ranks[0]]]
        kind = scene.kinds[scene.kind_of[host]]
        local = int(placement.rank_map.local[detour.ranks[0]])
        node = placement.cluster.templates[placement.rank_map.kind[detour.ranks[0]]]
        near = kind.near[kind.near[:, 0] == local, 1]
        assert tuple(node.nics[k].name for k in near) == detour.nics
        assert tuple(sorted(set(kind.nic_rail[near].tolist()))) == detour.rails
    slower = re.search(r"(\d+) of 8 groups", text)
    before = placement.before
    assert before is not None
    count = int((placement.of(axis).ring_gbs < before.of(axis).ring_gbs - 1e-9).sum())
    assert (int(slower[1]) if slower else 8 if "each group has" in text else 0) == count, text


@pytest.mark.parametrize("seed", range(12))
def test_sentences_loads_and_picture_agree_after_random_failures(seed: int) -> None:
    broken = _random_failures(CLUSTER, np.random.default_rng(seed))
    if broken.n_devices == CLUSTER.n_devices:
        _check_agreement(place("dp=64, tp=8", broken), "dp")


def test_rails_follow_the_nics_and_no_leaf_switch_is_without_a_cable() -> None:
    for nics in (4, 3, 2, 1, 16):
        cluster = CLUSTER.with_devices(nics=nics)
        scene = scene_of(cluster)
        assert cluster.levels[0].rails == scene.rails == min(nics, 8)
        assert sorted(set(scene.kinds[0].nic_rail.tolist())) == list(range(min(nics, 8)))
        leaf = cluster.domain("leaf").reshape(64, 8)[0]
        near = cluster.node(0).near_nics.argmax(axis=1)
        assert leaf.tolist() == scene.kinds[0].nic_rail[near].tolist()
        if nics == 4:
            assert leaf.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert CLUSTER.with_devices(nics=4).with_devices(nics=8).levels[0].rails == 8
    assert preset("tapered-h100", nodes=4).with_devices(nics=4).levels[0].rails == 1
