"""Loads: the groups, bytes and time of every link while all groups of an axis run one collective.

The bytes are those of one algorithm, see `meshlab.topology.placement._flows`. `meshlab.prediction._axis_loads` takes
the algorithm that NCCL would choose. Links are full duplex, so the load of a link is the larger of the bytes sent and
received.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from meshlab.base._collectives import ALGORITHM_WORDS, COLLECTIVES, COUNTED, MODELLED, usual_collective
from meshlab.base._errors import TopologyError, did_you_mean
from meshlab.base._units import parse_size
from meshlab.mesh._groups import Groups
from meshlab.mesh._traffic import Traffic
from meshlab.topology.model._hardware import gpu_link_name
from meshlab.topology.model._levels import HOST, INNER_LEVELS, NVLINK, Floats, Ints
from meshlab.topology.placement._crossings import uplink_gbs
from meshlab.topology.placement._flows import Flows, TrafficSums, flows_of, traffic_flows
from meshlab.topology.placement._placement import Placement, has_unknown_links
from meshlab.topology.placement._rank_map import RankMap
from meshlab.topology.placement._scene import Scene, scene_of

if TYPE_CHECKING:
    import pandas as pd


MARKS = {
    "none": ("–", "one rank per group"),
    "nvlink": ("●", "inside NVLink"),
    "host": ("●", "inside the host"),
    "rail": ("◆", "own NICs, own rails"),
    "shared": ("▲", "shares NICs or changes rails"),
    "taper": ("■", "held back by an oversubscription"),
    "cut": ("✕", "no path, because a part has failed"),
}
"""The mark and the meaning of each `Loads.state`."""


@dataclass(frozen=True, eq=False)
class LinkLoad:
    """The load of all links of one kind."""

    name: str  # "nvlink", "host" (links inside hosts without NVLink), "nic", or a network level for its uplinks
    label: str  # in tables, such as "NVLink, per GPU"
    drawn_as: str  # array of `Layout` in the same order, empty if not drawn
    groups: Ints  # number that use each link
    bytes: Floats  # on each link, the larger of both directions
    gbs: Floats  # of each link in one direction, NaN if unknown
    taper: float  # oversubscription, 1 if there is none
    places: Ints  # number of each link in places such as `pod:2`
    tapers: Floats | None = None  # oversubscription of each link if uplinks have failed, infinite without any left

    @cached_property
    def seconds(self) -> Floats:
        """Time that each link needs for its bytes, NaN if its bandwidth is unknown, 0 without bytes."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(self.bytes > 0, self.bytes / (self.gbs * 1e9), 0.0)

    def taper_of(self, index: int) -> float:
        """Return the oversubscription of one link."""
        return self.taper if self.tapers is None else float(self.tapers[index])

    @property
    def longest(self) -> float:
        """The longest time of all links, infinite if one of them has failed. Unknown times do not count."""
        return float(np.fmax.reduce(self.seconds, initial=0.0))

    @property
    def busiest(self) -> int | None:
        """Index of the link with the longest time or, if that is unknown, with the most bytes. None without bytes."""
        if not self.bytes.any():
            return None
        is_timed = ~np.isnan(self.seconds) & (self.bytes > 0)
        return int(np.argmax(np.where(is_timed, self.seconds, -1)) if is_timed.any() else np.argmax(self.bytes))

    def place(self, index: int) -> str:
        """Return the place of a link, see `meshlab.topology.placement._layout.locate`."""
        word = {"nic": "nic", "leaf": "leaf", "unit": "leaf", "pod": "pod"}.get(self.drawn_as)
        return f"{word or 'device'}:{self.places[index]}" if self.drawn_as else "all"


@dataclass(frozen=True, eq=False)
class Loads:
    """The load of all links while all groups of an axis run one collective.

    Examples
    --------
    >>> import meshlab as ml
    >>> pp = ml.place("pp=8, dp=96, tp=8", ml.preset("tapered-h100", nodes=768)).loads("pp")
    >>> pp.algorithm_words
    'messages'
    >>> pp.state, pp.limit, pp.table()[["link", "groups", "bytes"]].values.tolist()[-1]
    ('taper', 'pod', ['pod to cluster', 768, 206158430208.0])
    """

    axis: str
    collective: str
    algorithm: str  # a key of `ALGORITHM_WORDS`, or several joined by " and " if the groups differ
    is_assumed: bool  # the usual algorithm, because the one that NCCL would choose is unknown
    size_bytes: int  # as in nccl-tests
    volume_bytes: float  # sent or received by a rank, whichever is more; the most of several algorithms
    climbs: npt.NDArray[np.bool_]  # per group: a hop changes rails inside one set of leaf switches
    links: tuple[LinkLoad, ...]  # from the inside out
    state: str  # a key of `MARKS`
    limit: str  # links that need the longest time; empty if nothing is sent, or no bandwidth is known
    busiest_nic: str = ""  # the NIC with the longest time, such as "node1/NIC3"; empty if none is used
    traffic: Traffic | None = None  # the bytes between the members of each group, None if they are even

    @property
    def algorithm_words(self) -> str:
        """The algorithm in words, such as "NVLS: NVSwitch reduces"."""
        words = " and ".join(ALGORITHM_WORDS[name] for name in self.algorithm.split(" and "))
        return f"{words}, assumed" if self.is_assumed else words

    @property
    def is_conflict(self) -> bool:
        """True if the limiting link is shared by groups or oversubscribed."""
        leaf = next((link.name for link in self.links if link.drawn_as == "leaf"), "nic")
        return self.state in ("taper", "cut") or (self.state == "shared" and self.limit in ("nic", leaf))

    @property
    def seconds(self) -> float:
        """Time of the slowest link, NaN if no bandwidth is known, infinite if a link that is used has failed."""
        return max((link.longest for link in self.links), default=0.0) or (
            0.0 if not self.limit and self.state == "none" else float("nan")
        )

    def of(self, name: str) -> LinkLoad | None:
        """Return the links with a name, or None."""
        return next((link for link in self.links if link.name == name), None)

    def table(self) -> pd.DataFrame:
        """Return the busiest link of each kind.

        Returns
        -------
        pandas.DataFrame
            ``link``, ``groups`` (on it), ``bytes``, ``gbs`` (GB/s in one direction), ``time_us``, ``is_limit`` and
            ``place``, such as ``pod:2``. One row per kind of link, from the inside out. Unused kinds have no bytes.
        """
        import pandas as pd

        rows = []
        for link in self.links:
            k = link.busiest
            if k is None:
                rows.append((link.label, 0, 0.0, float("nan"), 0.0, False, ""))
                continue
            groups, bytes_, gbs = int(link.groups[k]), float(link.bytes[k]), float(link.gbs[k])
            time_us = float(link.seconds[k]) * 1e6
            rows.append((link.label, groups, bytes_, gbs, time_us, link.name == self.limit, link.place(k)))
        return pd.DataFrame(rows, columns=["link", "groups", "bytes", "gbs", "time_us", "is_limit", "place"])


class LinkFinding(NamedTuple):
    """A fact about axes that deserves attention: a mark, a sentence, the axes, and its place in the picture."""

    mark: str
    text: str
    axes: tuple[str, ...]
    place: str


def plain_algorithm(collective: str) -> str:
    """Return the algorithm of a collective on any hardware: messages, or a ring."""
    return "p2p" if "p2p" in COLLECTIVES[collective].traffic else "ring"


def check_takes_traffic(collective: str | None) -> None:
    """Raise a `TopologyError` if a collective has no traffic."""
    if collective not in (None, COUNTED):
        raise TopologyError(
            f"{collective} has no traffic, because all of its ranks have the same bytes",
            hint=f"omit the traffic, or choose {COUNTED}",
        )


def check_collective(collective: str) -> None:
    """Raise a `TopologyError` if the loads of a collective are unknown."""
    if collective not in MODELLED:
        raise TopologyError(
            f"unknown collective {collective!r}{did_you_mean(collective, MODELLED)}",
            hint=f"choose one of {', '.join(MODELLED)}",
        )


def link_loads(
    placement: Placement,
    axis: str | Sequence[str],
    *,
    collective: str | None = None,
    size: int | str = "256M",
    algorithm: str | Sequence[str] | None = None,
    scene: Scene | None = None,
    traffic: Traffic | None = None,
) -> Loads:
    """Compute the load of every link by the algorithm of all groups, or of every group; see `Placement.loads`."""
    groups = placement.mesh[axis]
    if traffic is not None:
        return _traffic_loads(placement, groups, traffic.of(groups.size, size), scene or scene_of(placement.cluster))
    collective = collective or usual_collective(groups.name)
    check_collective(collective)
    is_assumed = algorithm is None
    algorithm = plain_algorithm(collective) if algorithm is None else algorithm
    of_group = [algorithm] * len(groups) if isinstance(algorithm, str) else list(algorithm)
    algorithms = list(dict.fromkeys(of_group))
    for name in algorithms:
        if name not in COLLECTIVES[collective].traffic:
            raise TopologyError(
                f"the algorithm {name!r} does not have the collective {collective!r}",
                hint=f"choose one of {', '.join(COLLECTIVES[collective].traffic)}",
            )
    bytes_ = parse_size(size)
    scene = scene or scene_of(placement.cluster)
    flows, volume = Flows.empty(), 0.0
    for name in algorithms:
        part = flows_of(placement.rank_map, groups.array, name, collective, bytes_)
        if len(algorithms) == 1:
            flows = part
        else:
            flows = flows.joined(part.only(np.array([other == name for other in of_group])))
        volume = max(volume, _volume(placement, groups.array, name, collective, bytes_))
    call = {"collective": collective, "algorithm": " and ".join(algorithms), "size_bytes": bytes_}
    call |= {"volume_bytes": volume, "is_assumed": is_assumed and groups.size > 1}
    return _summed(placement, groups, scene, flows, call)


def _traffic_loads(placement: Placement, groups: Groups, traffic: Traffic, scene: Scene) -> Loads:
    """Return the loads if the members of every group send the bytes of a traffic to each other."""
    rank_map = placement.rank_map
    sums = TrafficSums.of(rank_map, groups.array, traffic.array)
    volume = float(sums.by_level[:, :, 0].sum(axis=1).max())
    call = {"collective": COUNTED, "algorithm": plain_algorithm(COUNTED), "size_bytes": traffic.size_bytes}
    call |= {"volume_bytes": volume, "is_assumed": False, "traffic": traffic}
    return _summed(placement, groups, scene, traffic_flows(rank_map, groups.array, sums), call)


def _summed(placement: Placement, groups: Groups, scene: Scene, flows: Flows, call: Mapping[str, Any]) -> Loads:
    """Return the loads of the flows of all groups while they run a call."""
    links = _links(placement, scene, flows, len(groups))
    limit = _limit(links)
    climbs = np.zeros(len(groups), dtype=bool)
    climbs[flows.climbing] = True
    return Loads(
        axis=groups.name,
        climbs=climbs,
        links=links,
        state=_state(links, limit, groups.size, bool(climbs.any())),
        limit=limit,
        busiest_nic=_busiest_nic(scene, links),
        **call,
    )


def _busiest_nic(scene: Scene, links: Sequence[LinkLoad]) -> str:
    """Return the name of the NIC with the longest time, or an empty string if no NIC is used."""
    number = next((link.busiest for link in links if link.name == "nic"), None)
    if number is None:
        return ""
    # Hosts are in the order of drawing, and some may have no NICs.
    count = np.array([kind.nics for kind in scene.kinds])[scene.kind_of]
    host = int(np.flatnonzero((scene.first_nic <= number) & (number < scene.first_nic + count))[0])
    return f"{scene.names[host]}/NIC{number - int(scene.first_nic[host])}"


def _volume(placement: Placement, groups: Ints, algorithm: str, collective: str, size: int) -> float:
    """Return the bytes that a rank of the first group sends or receives."""
    n = groups.shape[1]
    if n == 1:
        return 0.0
    if algorithm.startswith("nvls"):
        n = int(np.unique(placement.rank_map.domains[NVLINK, groups[0]], return_counts=True)[1].max())
    return COLLECTIVES[collective].traffic[algorithm].busiest(n) * size


def find_places(axes: Sequence[Loads]) -> tuple[LinkFinding, ...]:
    """Return what deserves attention in the loads of several axes. Axes with the same cause share a finding."""
    causes: dict[tuple[str, str, str], list[str]] = {}
    for loads in axes:
        for cause in _causes(loads):
            causes.setdefault(cause, []).append(loads.axis)
    findings = [
        LinkFinding(mark, f"{' and '.join(names)}: {text}", tuple(names), place)
        for (mark, text, place), names in causes.items()
    ]
    findings.sort(key=lambda finding: "✕■▲".find(finding.mark) % 4)
    if not findings:
        findings = [
            LinkFinding("●", "no group shares a NIC, changes rails or crosses an oversubscribed link", (), "all")
        ]
    return tuple(findings)


def _causes(loads: Loads) -> list[tuple[str, str, str]]:
    """Return the mark, the text and the place of what deserves attention in the loads of one axis."""
    causes = []
    for link in loads.links:
        k = link.busiest
        if k is None:
            continue
        count = int(link.groups[k])
        taper = link.taper_of(k)
        if link.seconds[k] == np.inf:
            dead = "a NIC without a connection" if link.name == "nic" else f"a {link.name} that has no uplink left"
            causes.append(("✕", f"has no path, because its traffic needs {dead}", link.place(k)))
        elif taper > 1:
            share = f"{count:,} groups share" if count > 1 else "one group uses"
            causes.append(("■", f"{share} the 1:{taper:.3g} exit of a {link.name}", link.place(k)))
        elif link.name == "nic" and int(link.groups.max()) > 1:
            # A NIC with more groups may have fewer bytes, if some of them use other NICs, too.
            k = k if link.groups[k] == link.groups.max() else int(link.groups.argmax())
            causes.append(("▲", f"{int(link.groups[k]):,} groups on one NIC", link.place(k)))
    if loads.climbs.any():
        leaf = next(link for link in loads.links if link.drawn_as == "leaf")
        k = int(leaf.busiest or 0)
        causes.append(("▲", "changes rails, so its traffic goes above the leaf switches", leaf.place(k)))
    return causes


def _limit(links: Sequence[LinkLoad]) -> str:
    """Return the name of the links that need the longest time. Ties go to the inner links."""
    most, name = 0.0, ""
    for link in links:
        if link.longest > most * (1 + 1e-9):
            most, name = link.longest, link.name
    return name


def _state(links: Sequence[LinkLoad], limit: str, n: int, climbs: bool) -> str:
    """Return the state of groups of n ranks: the worst of what their links show, see `MARKS`."""
    busy = {link.name: link for link in links if link.bytes.any()}
    if n == 1 or not busy:
        return "none"
    if not set(busy) - {"nvlink", "host"}:
        return "host" if "host" in busy else "nvlink"
    if limit and busy[limit].longest == np.inf:
        return "cut"
    if limit and busy[limit].taper_of(busy[limit].busiest or 0) > 1:
        return "taper"
    nic = busy.get("nic")
    return "shared" if climbs or (nic is not None and nic.groups.max() > 1) else "rail"


# -- links -------------------------------------------------------------------------------------------------------------


def _links(placement: Placement, scene: Scene, flows: Flows, count: int) -> tuple[LinkLoad, ...]:
    """Sum the flows on every link."""
    rank_map, cluster = placement.rank_map, placement.cluster
    links = []
    is_cut = any(map(has_unknown_links, cluster.templates))
    inside = "PCIe or unknown links, per device" if is_cut else "PCIe, per device"
    nvlink = f"{gpu_link_name(cluster.templates)}, per device"
    for name, label, level in (("nvlink", nvlink, NVLINK), ("host", inside, HOST)):
        link = _inside_load(placement, flows, name, label, level, count)
        if link is not None:
            links.append(link)
    if cluster.n_nodes > 1 and scene.n_nics:
        links.append(_nic_load(rank_map, scene, flows, count))
    names = cluster.level_names
    uplinks = range(HOST + 1, len(names) - 1)
    links += [_uplink_load(rank_map, scene, flows, k, f"{names[k]} to {names[k + 1]}", count) for k in uplinks]
    return tuple(links)


def _inside_load(placement: Placement, flows: Flows, name: str, label: str, level: int, count: int) -> LinkLoad | None:
    """Return the load of the links inside hosts at one level, or None if the picture has no row for them."""
    devices = placement.devices
    size = placement.cluster.n_devices
    sums, keys = [], []
    gbs = np.full(size, np.inf)
    for rank, group, levels, bytes_, rates in flows.within:
        inner = levels == level
        device = devices[rank[inner]]
        sums.append(np.bincount(device, weights=bytes_[inner], minlength=size))
        keys.append(device.astype(np.int64) * count + group[inner])
        np.fmin.at(gbs, device, rates[inner])
    templates = placement.cluster.templates
    # Hosts with NVLink show a row even if it is idle. PCIe has no row where it is not used.
    is_shown = level == NVLINK and any(template.nvlinks.any() for template in templates)
    if not is_shown and not np.concatenate(keys).size:
        return None
    gbs[np.isinf(gbs)] = np.nan
    groups = _count_groups(np.concatenate(keys), count, size)
    return LinkLoad(name, label, "device", groups, np.maximum.reduce(sums), gbs, 1.0, np.arange(size, dtype=np.int32))


def _count_groups(keys: npt.NDArray[np.int64], count: int, size: int) -> Ints:
    """Return the number of distinct groups of every link, from keys link × count + group."""
    ordered = np.sort(keys)  # np.unique takes several times as long for integers that are nearly sorted
    is_first = np.ones(len(ordered), dtype=bool)
    is_first[1:] = ordered[1:] != ordered[:-1]
    return np.bincount(ordered[is_first] // count, minlength=size).astype(np.int32)


def _nic_load(rank_map: RankMap, scene: Scene, flows: Flows, count: int) -> LinkLoad:
    """Return the load of all NICs. Every rank sends over the NICs that are near to its device."""
    cluster = rank_map.cluster
    size = scene.n_nics
    gbs = np.full(size, np.nan)
    sums = [np.zeros(size), np.zeros(size)]
    keys = []
    host_of = np.empty(cluster.n_nodes, dtype=np.int32)
    host_of[scene.host] = np.arange(len(scene.host), dtype=np.int32)
    for k, template in enumerate(cluster.templates):
        speeds = np.array([nic.gbs for nic in template.nics], dtype=np.float64)
        # Without any connected NIC, the bytes stay before those that carried them.
        near_nics = template.near_ports if template.is_cut_off else template.near_nics
        where = scene.first_nic[scene.kind_of == k][:, None] + np.arange(len(speeds))
        gbs[where] = speeds
        if not len(speeds):
            continue
        # A set divides its bytes among its NICs in proportion to their speed.
        near = near_nics * (speeds if np.isfinite(speeds).all() and speeds.any() else 1.0)
        part = near / np.maximum(near.sum(axis=1, keepdims=True), 1e-300)
        device, nic = np.nonzero(part)
        nics = np.bincount(device, minlength=len(part))
        first_pair = np.cumsum(nics) - nics
        for side, (rank, group, _, bytes_) in enumerate(flows.outside):
            if len(cluster.templates) > 1:
                of_kind = rank_map.kind[rank] == k
                rank, group, bytes_ = rank[of_kind], group[of_kind], bytes_[of_kind]
            local = rank_map.local[rank]
            # One entry per NIC that is near to the rank.
            entry = np.repeat(np.arange(len(rank)), nics[local])
            ends = np.cumsum(nics[local])
            pair = first_pair[local][entry] + np.arange(len(entry)) - (ends - nics[local])[entry]
            number = scene.first_nic[host_of[rank_map.node[rank]]][entry] + nic[pair]
            sums[side] += np.bincount(number, weights=part[device[pair], nic[pair]] * bytes_[entry], minlength=size)
            keys.append(number.astype(np.int64) * count + group[entry])
    groups = _count_groups(np.concatenate(keys) if keys else np.zeros(0, dtype=np.int64), count, size)
    return LinkLoad("nic", "NIC", "nic", groups, np.maximum.reduce(sums), gbs, 1.0, np.arange(size, dtype=np.int32))


def _uplink_load(rank_map: RankMap, scene: Scene, flows: Flows, index: int, label: str, count: int) -> LinkLoad:
    """Return the load of the uplinks of all domains of a network level."""
    cluster = rank_map.cluster
    number = index - len(INNER_LEVELS)
    network = cluster.levels[number]
    size = network.n_switches  # some rails may have no device
    sums, keys = [], []
    for rank, group, level, bytes_ in flows.outside:
        leaves = level > index
        link, place, part = rank_map.switches_of(index, rank[leaves])
        sums.append(np.bincount(link, weights=bytes_[leaves][place] * part, minlength=size))
        keys.append(link.astype(np.int64) * count + group[leaves][place])
    groups = _count_groups(np.concatenate(keys), count, size)
    rates = uplink_gbs(rank_map, index, always=True)
    assert rates is not None  # always
    drawn_as, order, places = _drawn(scene, number, size)
    return LinkLoad(
        network.name, label, drawn_as, groups[order], np.maximum.reduce(sums)[order], rates.gbs[order],
        cluster.levels[number + 1].taper, places, None if network.uplink_share is None else rates.taper[order],
    )  # fmt: skip


def _drawn(scene: Scene, number: int, size: int) -> tuple[str, npt.NDArray[np.integer], Ints]:
    """Return how a network level is drawn, its domains in the order of drawing, and their numbers in places."""
    if number == 0 and scene.rails:
        order = (scene.unit_id[:, None] * scene.rails + np.arange(scene.rails)).ravel()
        return "leaf", order, np.repeat(scene.unit_id, scene.rails)
    if number == scene.unit_level:
        return "unit", scene.unit_id, scene.unit_id
    if number == scene.pod_level:
        return "pod", scene.pod_id, scene.pod_id
    return "", np.arange(size), np.arange(size, dtype=np.int32)
