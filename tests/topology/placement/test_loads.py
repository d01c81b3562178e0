"""The loads of links: against a walk over every hop, and against the bandwidth that the placement reports.

That no link is busier than the predicted call is tested in `tests.prediction.test_axis_loads`.
"""

from __future__ import annotations

import collections
import itertools
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshlab as ml
from meshlab.base._collectives import COLLECTIVES, MODELLED
from meshlab.base._errors import TopologyError
from meshlab.mesh._mesh import DeviceMesh
from meshlab.prediction._axis_loads import loads
from meshlab.topology.placement._crossings import ring_hops
from meshlab.topology.placement._flows import tree_edges
from meshlab.topology.placement._layout import locate
from meshlab.topology.placement._loads import MARKS, LinkLoad, Loads, find_places, link_loads
from meshlab.topology.placement._placement import Placement, place
from meshlab.topology.placement._scene import scene_of
from tests.examples import examples

SIZE = 1 << 20
HOSTS = {"gb200-nvl72": 18, "gb300-nvl72": 18, "gcp-a4x": 18, "gcp-a4x-max": 18, "dgx-spark": 8}
MACHINES = {name: HOSTS.get(name, 4) for name in ml.topology.PRESETS if "mi300x" not in name}
MESHES = [
    "dp=-1, tp=8", "dp=-1, tp=4", "dp=-1, tp=2", "pp=4, dp=-1, tp=2", "pp=2, dp=-1, tp=4", "dp=2, cp=2, tp=-1",
    "tp=8, dp=-1", "tp=4, dp=-1", "tp=-1", "pp=4, tp=-1", "dp=-1, ep=4", "ep=2, dp=-1",
]  # fmt: skip  # a line for each mesh would hide the kinds
Sums = dict[tuple[str, int], float]
Uses = dict[tuple[str, int], set[int]]


class Walk:
    """The bytes and the groups of every link, hop by hop."""

    def __init__(self, placement: Placement) -> None:
        self.placement = placement
        self.sent: list[Sums] = [collections.defaultdict(float), collections.defaultdict(float)]
        self.uses: Uses = collections.defaultdict(set)

    def add(self, side: int, link: tuple[str, int], amount: float, group: int) -> None:
        self.sent[side][link] += amount
        self.uses[link].add(group)

    def hop(self, group: int, level: int, source: dict[int, float], target: dict[int, float], amount: float) -> None:
        """One hop: the ranks at both sides, with the share of each."""
        devices = self.placement.devices
        names = self.placement.cluster.level_names
        for side, ranks in enumerate((source, target)):
            for rank, share in ranks.items():
                if level <= 2:
                    self.add(side, (names[level], int(devices[rank])), amount, group)
                    continue
                node, local = self.placement.cluster.locate(int(devices[rank]))
                host = self.placement.cluster.node(node)
                near = np.flatnonzero(host.near_nics[local])
                speeds = np.array([host.nics[k].gbs for k in near])
                before = sum(len(self.placement.cluster.node(n).nics) for n in range(node))
                for nic, part in zip(near, speeds / speeds.sum(), strict=True):
                    self.add(side, ("nic", before + int(nic)), amount * share * part, group)
                for index in range(3, level):
                    for switch, part in switches(self.placement, index, rank).items():
                        self.add(side, (names[index], switch), amount * share * part, group)

    def check(self, found: Loads) -> None:
        seen = 0
        for link in found.links:
            order = self.order(link)
            for k, number in enumerate(order):
                key = (link.name, number)
                expected = max(side.get(key, 0.0) for side in self.sent)
                assert link.bytes[k] == pytest.approx(expected, rel=1e-9), (link.name, k)
                assert link.groups[k] == len(self.uses.get(key, ())), (link.name, k)
                seen += key in self.uses
        assert seen == len(self.uses)

    def order(self, link: LinkLoad) -> list[int]:
        """The numbers of the links in the cluster; a leaf switch has a number per rail."""
        if link.drawn_as == "leaf":
            rails = self.placement.cluster.levels[0].rails
            return [int(unit) * rails + k % rails for k, unit in enumerate(link.places)]
        return link.places.tolist()  # type: ignore[no-any-return]


def switches(placement: Placement, index: int, rank: int) -> dict[int, float]:
    """The switches of a level that a rank uses, with their shares: its own, or those of the NICs that it has left."""
    cluster, device = placement.cluster, int(placement.devices[rank])
    whole, level = cluster.intact or cluster, cluster.levels[index - 3]
    own = int(whole.domain(level.name)[device])
    node, local = cluster.locate(device)
    before, after = whole.node(node), cluster.node(node)
    if level.rails == 1 or before.near_nics.any(axis=0).sum() < level.rails:
        return {own: 1.0}
    first = int(whole.first_device[node])
    names = [nic.name for nic in before.nics]
    shares: dict[int, float] = collections.defaultdict(float)
    near = np.flatnonzero(after.near_nics[local])
    for nic in near:
        neighbour = int(before.near_nics[:, names.index(after.nics[nic].name)].argmax())
        switch = int(whole.domain(level.name)[first + neighbour])
        shares[switch] += after.nics[nic].gbs / sum(after.nics[k].gbs for k in near)
    return {own: 1.0} if own in shares else shares


class Ring:
    """The rings of the groups of an axis, the ranks of every domain, and their shares in the bytes that leave it."""

    def __init__(self, placement: Placement, axis: str) -> None:
        rank_map, cluster = placement.rank_map, placement.cluster
        self.placement = placement
        self.hops = [ring_hops(rank_map, group) for group in placement.mesh[axis].array]
        self.domain = (rank_map.node if cluster.nvlink_of_node is None else rank_map.domains[1]).tolist()
        self.runs: list[dict[int, list[int]]] = []
        # First which sets of NICs every group uses, because their bandwidth is divided among the groups.
        users: dict[int, set[int]] = collections.defaultdict(set)
        for number, (order, level, _, _) in enumerate(self.hops):
            of_domain: dict[int, list[int]] = collections.defaultdict(list)
            for rank in order.tolist():
                of_domain[self.domain[rank]].append(rank)
            self.runs.append(of_domain)
            if (level > 2).any():
                for rank in order.tolist():
                    users[int(rank_map.nic_set[rank])].add(number)
        # A group divides its bytes evenly among the NICs of a set, and a NIC its bandwidth in proportion to the bytes.
        gbs: dict[tuple[int, int], float] = {}
        nics: dict[int, list[tuple[int, int]]] = {}
        for rank in range(placement.mesh.world_size):
            node, local = cluster.locate(int(placement.devices[rank]))
            host = cluster.node(node)
            near = np.flatnonzero(host.near_nics[local]).tolist()
            nics[int(rank_map.nic_set[rank])] = [(node, nic) for nic in near]
            gbs |= {(node, nic): host.nics[nic].gbs for nic in near}
        load: dict[tuple[int, int], float] = collections.defaultdict(float)
        for key, of_set in nics.items():
            for nic in of_set:
                load[nic] += len(users[key]) / len(of_set)
        self.left = {key: sum(gbs[nic] / len(nics[key]) / load[nic] for nic in nics[key] if load[nic]) for key in nics}

    def shares(self, number: int, rank: int) -> dict[int, float]:
        """The ranks of the domain of a rank, with their shares."""
        ranks = self.runs[number][self.domain[rank]]
        sets = collections.Counter(int(self.placement.rank_map.nic_set[other]) for other in ranks)
        total = sum(self.left[key] for key in sets)
        return {r: self.left[s] / total / sets[s] for r in ranks for s in [int(self.placement.rank_map.nic_set[r])]}

    def is_linked(self, number: int, rank: int) -> bool:
        """Whether the hops between the ranks of the domain of a rank are NVLink."""
        order, level, _, _ = self.hops[number]
        ranks = self.runs[number][self.domain[rank]]
        return len(ranks) > 1 and all(
            at == 1 for one, at in zip(order.tolist(), level.tolist(), strict=True) if one in ranks[:-1]
        )


def walk_ring(placement: Placement, axis: str, volume: float) -> Walk:
    walk, ring = Walk(placement), Ring(placement, axis)
    for number, (order, level, _, _) in enumerate(ring.hops):
        for k, at in enumerate(level.tolist()):
            a, b = int(order[k]), int(order[(k + 1) % len(order)])
            if at > 2:
                walk.hop(number, at, ring.shares(number, a), ring.shares(number, b), volume)
            if (level > 2).any() and ring.is_linked(number, a):
                # What does not leave the domain at a rank goes over its NVLinks.
                walk.hop(number, 1, {a: 1.0}, {a: 1.0}, volume * (1 - ring.shares(number, a)[a]))
            elif 0 < at <= 2:
                walk.hop(number, at, {a: 1.0}, {b: 1.0}, volume)
    return walk


def walk_tree(placement: Placement, axis: str, size: float, *, nvls: bool = False) -> Walk:
    walk, ring = Walk(placement), Ring(placement, axis)
    for number, (order, level, _, _) in enumerate(ring.hops):
        runs = list(ring.runs[number].values())
        for ranks in runs:
            h = len(ranks)
            if h > 1 and (nvls or ring.is_linked(number, ranks[0])):
                amount = size * (1 + 1 / h) if nvls else 2 * size * (h - 1) / h
                for rank in ranks:
                    walk.hop(number, 1, {rank: 1.0}, {rank: 1.0}, amount)
                continue
            at = dict(zip(order.tolist(), level.tolist(), strict=True))
            for a, b in itertools.pairwise(ranks):  # up and down
                walk.hop(number, at[a], {a: 1.0}, {b: 1.0}, size)
                walk.hop(number, at[a], {b: 1.0}, {a: 1.0}, size)
        for child, parent in tree_edges(len(runs)).T.tolist() if len(runs) > 1 else ():
            for one, other in ((child, parent), (parent, child)):
                shares = [ring.shares(number, runs[k][0]) for k in (one, other)]
                walk.hop(number, joining_runs(placement, runs[one], runs[other]), shares[0], shares[1], size / 2)
    return walk


def joining_runs(placement: Placement, some: list[int], others: list[int]) -> int:
    """The innermost network level that joins two domains, on a rail that both have."""
    domains, node = placement.rank_map.domains, placement.rank_map.node
    for index, level in enumerate(placement.cluster.levels, 3):
        joined = domains[index][some[0]] == domains[index][others[0]]
        if level.rails > 1:
            # On one set of leaf switches, equal switches are equal rails.
            used = [
                {switch % level.rails for k in ranks for switch in switches(placement, index, k)}
                for ranks in (some, others)
            ]
            on_rail = bool(used[0] & used[1])
            joined = on_rail and level.of_node[node[some[0]]] == level.of_node[node[others[0]]]
        if joined:
            return index
    raise AssertionError


def joining(placement: Placement, a: int, b: int) -> int:
    domains = placement.rank_map.domains
    return next(index for index in range(len(domains)) if domains[index][a] == domains[index][b])


def walk_pairs(placement: Placement, axis: str, volume: float, *, chain: bool) -> Walk:
    walk = Walk(placement)
    for number, group in enumerate(placement.mesh[axis].array.tolist()):
        pairs = itertools.pairwise(group) if chain else ((a, b) for a in group for b in group if a != b)
        for a, b in pairs:
            walk.hop(number, joining(placement, a, b), {a: 1.0}, {b: 1.0}, volume)
    return walk


def check_axis(placement: Placement, axis: str) -> None:
    n = placement.mesh[axis].size
    if n == 1:
        return
    ring = link_loads(placement, axis, collective="all_reduce", size=SIZE, algorithm="ring")
    walk_ring(placement, axis, 2 * (n - 1) / n * SIZE).check(ring)
    tree = link_loads(placement, axis, collective="all_reduce", size=SIZE, algorithm="tree")
    walk_tree(placement, axis, SIZE).check(tree)
    if all(template.has_nvswitch for template in placement.cluster.templates):
        on_switch = link_loads(placement, axis, collective="all_reduce", size=SIZE, algorithm="nvls_tree")
        walk_tree(placement, axis, SIZE, nvls=True).check(on_switch)
    chain = loads(placement, axis, collective="send_recv", size=SIZE)
    walk_pairs(placement, axis, SIZE, chain=True).check(chain)
    every = loads(placement, axis, collective="all_to_all", size=SIZE)
    walk_pairs(placement, axis, SIZE / n, chain=False).check(every)


@pytest.mark.parametrize("name", ["dgx-a100", "gcp-a3-high", "gb200-nvl72", "tapered-h100", "pcie-l40s", "aws-p5"])
@pytest.mark.parametrize("text", ["dp=-1, tp=4", "pp=2, dp=-1, tp=2"])
def test_bytes_and_groups_are_those_of_a_walk_over_every_hop(name: str, text: str) -> None:
    cluster = ml.preset(name, nodes=4, nodes_per_leaf=2, rails=2, nodes_per_rack=2 if name == "gb200-nvl72" else None)
    placement = place(text, cluster)
    for axis in placement.mesh.axis_names:
        check_axis(placement, axis)


@settings(max_examples=examples(25), deadline=None)
@given(data=st.data())
def test_bytes_and_groups_are_those_of_a_walk_on_any_machine(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["dgx-h100", "gcp-a3-high", "gb200-nvl72", "pcie-l40s"]))
    nodes = data.draw(st.integers(1, 5))
    leaf, rails = data.draw(st.sampled_from([(1, 1), (2, 4), (3, 8)]))
    pod = data.draw(st.sampled_from([0, 2 * leaf]))
    cluster = ml.preset(name, nodes=nodes, nodes_per_leaf=leaf, rails=rails, nodes_per_pod=pod)
    if data.draw(st.booleans()):
        cluster = cluster.without_nic(0, 1)
    n = cluster.n_devices
    sizes = data.draw(st.sampled_from([(a, b) for a in range(1, n + 1) for b in range(1, n + 1) if a * b <= n]))
    devices = None
    if data.draw(st.booleans()):
        devices = data.draw(st.permutations(range(n)))[: sizes[0] * sizes[1]]
    placement = place(DeviceMesh(sizes, ("dp", "tp")), cluster, devices)
    for axis in ("dp", "tp"):
        check_axis(placement, axis)


@pytest.mark.parametrize("name", MACHINES)
def test_the_slowest_link_of_a_ring_is_that_of_the_placement(name: str) -> None:
    """All presets × 12 meshes × 3 sizes of machine: ring_gbs is the volume divided by the time of the slowest link.

    Over the NVLinks of a rank a ring may have more: without a switch it uses the links to all other ranks, and what
    leaves the domain at the rank does not need them.
    """
    compared = 0
    for nodes in (MACHINES[name], MACHINES[name] * 2, MACHINES[name] * 16):
        cluster = ml.preset(name, nodes=nodes)
        scene = scene_of(cluster)
        for text in MESHES:
            placement = place(text, cluster)
            for axis in placement.mesh.axis_names:
                found = link_loads(placement, axis, collective="all_reduce", algorithm="ring", scene=scene)
                if placement.mesh[axis].size == 1:
                    continue
                compared += 1
                slowest = float(np.nanmin(placement.of(axis).ring_gbs))
                gbs = found.volume_bytes / found.seconds / 1e9
                if found.limit == "nvlink" or slowest == np.nanmin(placement.of(axis).inner_gbs):
                    assert slowest * (1 - 1e-9) <= gbs <= 3 * slowest, (nodes, text, axis)
                else:
                    assert gbs == pytest.approx(slowest), (nodes, text, axis)
    assert compared > 40


def bytes_of(algorithm: str, collective: str, text: str, axis: str, nodes: int) -> dict[str, float]:
    """The most bytes of each kind of link on DGX H100, in units of the size, without uplinks."""
    placement = place(text, ml.preset("dgx-h100", nodes=nodes))
    found = link_loads(placement, axis, collective=collective, size=SIZE, algorithm=algorithm)
    used = [link for link in found.links if link.name in ("nvlink", "nic") and link.bytes.any()]
    return {link.name: round(float(link.bytes.max()) / SIZE, 4) for link in used}


@pytest.mark.parametrize(
    ("algorithm", "collective", "text", "axis", "nodes", "expected"),
    [
        # Each of 8 ranks reduces an eighth: it sends all its data and its part of the sum.
        ("nvls", "all_reduce", "tp=8", "tp", 1, {"nvlink": 1.125}),
        ("nvls", "all_gather", "tp=8", "tp", 1, {"nvlink": 1.0}),
        ("nvls", "reduce_scatter", "tp=8", "tp", 1, {"nvlink": 1.0}),
        ("ring", "all_reduce", "tp=8", "tp", 1, {"nvlink": 1.75}),
        # 15/8 through each rank, of which an eighth leaves the host over its NIC.
        ("ring", "all_reduce", "tp=16", "tp", 2, {"nvlink": 1.6406, "nic": 0.2344}),
        # With two hosts, each half of the data goes up one tree and down again: once in every direction.
        ("tree", "all_reduce", "tp=16", "tp", 2, {"nvlink": 1.75, "nic": 0.125}),
        ("nvls_tree", "all_reduce", "tp=16", "tp", 2, {"nvlink": 1.125, "nic": 0.125}),
        # The host in the middle of one of the chains 0-2-1 and 1-0-2, and at the end of the other.
        ("tree", "all_reduce", "tp=24", "tp", 3, {"nvlink": 1.75, "nic": 0.1875}),
        # Three edges in one tree and one in the other, with half of the data each.
        ("tree", "all_reduce", "dp=4, tp=8", "dp", 4, {"nic": 2.0}),
        ("nvls_tree", "all_reduce", "tp=32", "tp", 4, {"nvlink": 1.125, "nic": 0.25}),
        ("pat", "all_gather", "dp=4, tp=8", "dp", 4, {"nic": 0.75}),
        ("pat", "reduce_scatter", "dp=3, tp=8", "dp", 3, {"nic": 0.6667}),
        ("p2p", "all_to_all", "ep=16", "ep", 2, {"nvlink": 0.4375, "nic": 0.5}),
        ("p2p", "send_recv", "pp=2, tp=8", "pp", 2, {"nic": 1.0}),
    ],
)
def test_bytes_of_each_algorithm(
    algorithm: str, collective: str, text: str, axis: str, nodes: int, expected: dict[str, float]
) -> None:
    assert bytes_of(algorithm, collective, text, axis, nodes) == expected


@pytest.mark.parametrize("n", range(2, 40))
def test_each_tree_joins_all_domains(n: int) -> None:
    """Both trees have one root, from which all domains are near, and no domain has two children in both."""
    child, parent = tree_edges(n)
    inner = []
    for part in (slice(None, n - 1), slice(n - 1, None)):
        up = dict(zip(child[part].tolist(), parent[part].tolist(), strict=True))
        assert len(up) == n - 1
        (root,) = set(range(n)) - set(up)
        for start in up:
            at, steps = start, 0
            while at != root:
                at, steps = up[at], steps + 1
                assert steps <= n.bit_length()
        inner.append({node for node, count in collections.Counter(up.values()).items() if count == 2})
    assert not inner[0] & inner[1]


def test_every_algorithm_has_flows_for_its_collectives() -> None:
    for collective in MODELLED:
        for algorithm in COLLECTIVES[collective].traffic:
            assert bytes_of(algorithm, collective, "dp=4, tp=8", "tp" if algorithm == "nvls" else "dp", 4)


def test_nvswitch_reduces_the_bytes_of_a_rank() -> None:
    placement = place("dp=2, tp=8", ml.preset("dgx-h100", nodes=2))
    volumes = [link_loads(placement, "tp", algorithm=name).volume_bytes / 2**20 for name in ("ring", "nvls")]
    assert volumes == [2 * 7 / 8 * 256, 9 / 8 * 256]


def test_a_chunk_of_pat_goes_farther_than_in_a_ring() -> None:
    """Through the exit of two of four hosts: a ring sends 3 of 4 chunks, PAT 2 for one host and 1 for both."""
    cluster = ml.preset("tapered-h100", nodes=4, nodes_per_leaf=2, rails=8)
    placement = place("dp=4, tp=8", cluster)
    exits = [
        link_loads(placement, "dp", collective="all_gather", size=SIZE, algorithm=name).of("leaf")
        for name in ("ring", "pat")
    ]
    assert [float(link.bytes.max()) / SIZE for link in exits if link is not None] == [0.75, 1.0]


def test_an_algorithm_without_the_collective_is_an_error() -> None:
    with pytest.raises(TopologyError, match=r"'nvls' does not have .* 'send_recv'.*choose one of p2p"):
        link_loads(place("tp=8", "dgx-h100"), "tp", collective="send_recv", algorithm="nvls")


def test_groups_may_differ_in_their_algorithm() -> None:
    placement = place("dp=2, tp=8", ml.preset("dgx-h100", nodes=2))
    both = link_loads(placement, "tp", size=SIZE, algorithm=["ring", "nvls"])
    assert (both.algorithm, both.algorithm_words) == ("ring and nvls", "ring and NVLS: NVSwitch reduces")
    nvlink = both.of("nvlink")
    assert nvlink is not None
    assert (nvlink.bytes / SIZE).tolist() == [1.75] * 8 + [1.125] * 8


def findings_of(text: str, cluster: ml.Cluster) -> list[tuple[str, str, str]]:
    placement = place(text, cluster)
    found = find_places([loads(placement, axis) for axis in placement.mesh.axis_names])
    scene = scene_of(cluster)
    for finding in found:
        assert finding.place == "all" or locate(scene, finding.place)
    return [(finding.mark, finding.text, finding.place) for finding in found]


def test_findings_name_the_cause_once_and_lead_to_the_place() -> None:
    tapered = ml.preset("tapered-h100", nodes=2048, nodes_per_leaf=32, nodes_per_pod=512, rails=8)
    assert findings_of("pp=16, dp=128, tp=8", tapered) == [
        ("■", "pp: 1,024 groups share the 1:7 exit of a pod", "pod:0")
    ]
    a3 = ml.preset("gcp-a3-high", nodes=4, nodes_per_leaf=4, rails=4)
    assert findings_of("dp=4, tp=8", a3) == [("▲", "dp: 2 groups on one NIC", "nic:0")]
    assert findings_of("pp=2, dp=2, tp=8", a3) == [("▲", "pp and dp: 2 groups on one NIC", "nic:0")]
    fine = ("●", "no group shares a NIC, changes rails or crosses an oversubscribed link", "all")
    assert findings_of("dp=4, tp=8", ml.preset("dgx-h100", nodes=4)) == [fine]
    broken = ml.preset("dgx-h100", nodes=4).without_nic(2, 5)
    marks = findings_of("dp=4, tp=8", broken)
    assert {mark for mark, _, _ in marks} == {"▲"}
    assert locate(scene_of(broken), marks[0][2])[0] == "nic"


def test_a_group_that_changes_rails_climbs_above_the_leaf_switches() -> None:
    cluster = ml.preset("dgx-h100", nodes=4)
    placement = place("dp=2, tp=2", cluster, [0, 9, 2, 11])  # each tp group is on two rails of two hosts
    found = loads(placement, "tp")
    assert found.climbs.all()
    assert found.state == "shared"
    leaf = found.of("leaf")
    assert leaf is not None
    assert leaf.bytes.any()
    assert ("▲", "changes rails, so its traffic goes above the leaf switches") in [
        (finding.mark, finding.text.removeprefix("tp: ")) for finding in find_places([found])
    ]
    assert not loads(placement, "dp").climbs.any()


@pytest.mark.parametrize(
    ("text", "axis", "state", "limit", "is_conflict"),
    [
        ("dp=4, tp=8", "tp", "nvlink", "nvlink", False),
        ("dp=4, tp=8", "dp", "shared", "nic", True),
        ("dp=32, tp=1", "tp", "none", "", False),
        ("dp=2, tp=16", "tp", "rail", "nvlink", False),
    ],
)
def test_states(text: str, axis: str, state: str, limit: str, is_conflict: bool) -> None:
    machine = "gcp-a3-high" if state == "shared" else "dgx-h100"
    found = loads(place(text, ml.preset(machine, nodes=4)), axis)
    assert (found.state, found.limit, found.is_conflict) == (state, limit, is_conflict)
    assert found.state in MARKS


def test_a_network_without_bandwidth_has_bytes_and_no_time() -> None:
    smi = "\tGPU0\tGPU1\tNIC0\nGPU0\t X \tNV4\tPIX\nGPU1\tNV4\t X \tPIX\nNIC0\tPIX\tPIX\t X \n"
    node = ml.topology.read_nvidia_smi(smi).node(0)
    cluster = ml.Cluster.from_nodes([node, node], names=["a", "b"])
    found = loads(place("dp=2, tp=2", cluster), "dp")
    nic = found.of("nic")
    assert nic is not None
    assert nic.bytes.tolist() == [2 * (1 << 28)] * 2
    assert (found.algorithm, found.algorithm_words) == ("ring", "ring, assumed")
    assert np.isnan(nic.seconds).all()
    assert nic.busiest == 0
    assert np.isnan(found.seconds)
    assert found.limit == ""
    assert found.state == "shared"


def test_an_unknown_collective_is_an_error_that_names_the_known_ones() -> None:
    with pytest.raises(TopologyError, match=r"did you mean 'all_reduce'.*choose one of all_reduce"):
        loads(place("tp=8", "dgx-h100"), "tp", collective="allreduce")


def test_the_loads_of_16384_devices_take_a_fraction_of_a_redraw() -> None:
    cluster = ml.preset("tapered-h100", nodes=2048, nodes_per_leaf=32, nodes_per_pod=512, rails=8)
    scene = scene_of(cluster)
    placement = place("pp=16, dp=128, tp=8", cluster)
    times = []
    for _ in range(3):
        start = time.process_time()
        for axis in placement.mesh.axis_names:
            loads(placement, axis, scene=scene)
        times.append(time.process_time() - start)
    assert min(times) < 0.4  # 0.1 s on an idle machine; a kernel may use 0.15 s for a new size
