"""Loads: the groups, bytes and time of every link while all groups of an axis run one collective.

The model is that of `meshlab.topology.placement._crossings`. In a ring every rank sends the same bytes to the next one.
A hop that leaves a host uses the NICs of all ranks that the group has there, in proportion to the bandwidth that each
set of NICs has left for the group. Point-to-point sends and all_to_all use the sender's own NICs. Links are full
duplex, so the load of a link is the larger of the bytes sent and received.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from meshlab.base._errors import TopologyError, did_you_mean
from meshlab.base._units import format_size, format_time_us, parse_size
from meshlab.topology.model._cluster import INNER_LEVELS, Ints
from meshlab.topology.placement._crossings import all_hops, shares, uplink_gbs
from meshlab.topology.placement._placement import Placement
from meshlab.topology.placement._rank_map import Floats, RankMap
from meshlab.topology.placement._scene import Scene, scene_of

if TYPE_CHECKING:
    import pandas as pd


_NVLINK, _HOST = INNER_LEVELS.index("nvlink"), INNER_LEVELS.index("host")

# Bytes that a rank sends in units of the size (as in nccl-tests), by the number of ranks.
_VOLUME: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "reduce": lambda n: 1.0,
    "all_to_all": lambda n: (n - 1) / n,
    "send_recv": lambda n: 1.0,
}

COLLECTIVES = tuple(_VOLUME)
"""The collectives whose loads are known."""

MARKS = {
    "none": ("–", "one rank per group"),
    "nvlink": ("●", "inside NVLink"),
    "host": ("●", "inside the host"),
    "rail": ("◆", "own NICs, own rails"),
    "shared": ("▲", "shares NICs or changes rails"),
    "taper": ("■", "held back by an oversubscription"),
}
"""The mark and the meaning of each `Loads.state`."""


@dataclass(frozen=True, eq=False)
class LinkLoad:
    """The load of all links of one kind.

    Parameters
    ----------
    name : str
        ``"nvlink"``, ``"host"`` (links inside hosts without NVLink), ``"nic"``, or the name of a network level for the
        uplinks of its domains.
    label : str
        Name in tables, such as ``"NVLink, per GPU"``.
    drawn_as : str
        The array of `Layout` that the links are drawn in, which has the same order. Empty if they are not drawn.
    groups : numpy.ndarray
        int32: number of groups that use each link.
    bytes : numpy.ndarray
        float64: bytes on each link, the larger of both directions.
    gbs : numpy.ndarray
        float64: GB/s of each link in one direction, NaN if unknown.
    taper : float
        Oversubscription of the link, 1 if there is none.
    places : numpy.ndarray
        The number of each link in places such as ``pod:2``.
    """

    name: str
    label: str
    drawn_as: str
    groups: Ints
    bytes: Floats
    gbs: Floats
    taper: float
    places: Ints

    @cached_property
    def seconds(self) -> Floats:
        """Time that each link needs for its bytes, NaN if its bandwidth is unknown, 0 without bytes."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(self.bytes > 0, self.bytes / (self.gbs * 1e9), 0.0)

    @property
    def busiest(self) -> int | None:
        """Index of the link with the longest time or, if that is unknown, with the most bytes. None without bytes."""
        if not self.bytes.any():
            return None
        known = np.isfinite(self.seconds) & (self.bytes > 0)
        return int(np.argmax(np.where(known, self.seconds, -1)) if known.any() else np.argmax(self.bytes))

    def place(self, index: int) -> str:
        """Return the place of a link, see `meshlab.topology.placement._layout.locate`."""
        word = {"nic": "nic", "leaf": "leaf", "unit": "leaf", "pod": "pod"}.get(self.drawn_as)
        return f"{word or 'device'}:{self.places[index]}" if self.drawn_as else "all"


@dataclass(frozen=True, eq=False)
class Loads:
    """The load of all links while all groups of an axis run one collective.

    Parameters
    ----------
    axis, collective : str
        The axis and the collective.
    size_bytes : int
        Message size, as in nccl-tests.
    volume_bytes : float
        Bytes that every rank sends.
    climbs : numpy.ndarray
        bool of shape (groups,): True if a hop changes rails inside one set of leaf switches.
    links : tuple of LinkLoad
        The links, from the inside out.
    state : str
        A key of `MARKS`.
    limit : str
        Name of the links that need the longest time. Empty if nothing is sent, or no bandwidth is known.

    Examples
    --------
    >>> import meshlab as ml
    >>> pp = loads(ml.place("pp=8, dp=96, tp=8", ml.preset("tapered-h100", nodes=768)), "pp")
    >>> pp.state, pp.limit, pp.table()[["link", "groups", "bytes"]].values.tolist()[-1]
    ('taper', 'pod', ['pod to cluster', 768, 206158430208.0])
    """

    axis: str
    collective: str
    size_bytes: int
    volume_bytes: float
    climbs: npt.NDArray[np.bool_]
    links: tuple[LinkLoad, ...]
    state: str
    limit: str

    @property
    def is_conflict(self) -> bool:
        """True if the limiting link is shared by groups or oversubscribed."""
        return (self.state == "taper") or (self.state == "shared" and self.limit in ("nic", self._leaf))

    @property
    def _leaf(self) -> str:
        return next((link.name for link in self.links if link.drawn_as == "leaf"), "nic")

    @property
    def seconds(self) -> float:
        """Time of the slowest link, NaN if no bandwidth is known."""
        times = [link.seconds[np.isfinite(link.seconds)].max(initial=0.0) for link in self.links]
        return float(max(times, default=0.0)) or (0.0 if not self.limit and self.state == "none" else float("nan"))

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
            rows.append(
                (link.label, int(link.groups[k]), float(link.bytes[k]), float(link.gbs[k]),
                 float(link.seconds[k]) * 1e6, link.name == self.limit, link.place(k))
            )  # fmt: skip
        return pd.DataFrame(rows, columns=["link", "groups", "bytes", "gbs", "time_us", "is_limit", "place"])


class LinkFinding(NamedTuple):
    """A fact about axes that deserves attention: a mark, a sentence, the axes, and its place in the picture."""

    mark: str
    text: str
    axes: tuple[str, ...]
    place: str


def default_collective(axis: str) -> str:
    """Return the usual collective of an axis.

    Examples
    --------
    >>> default_collective("pp"), default_collective("ep"), default_collective("dp")
    ('send_recv', 'all_to_all', 'all_reduce')
    """
    return {"pp": "send_recv", "ep": "all_to_all"}.get(axis, "all_reduce")


def loads(
    placement: Placement,
    axis: str | Sequence[str],
    *,
    collective: str | None = None,
    size: int | str = "256M",
    scene: Scene | None = None,
) -> Loads:
    """Compute the load of every link while all groups of an axis run one collective.

    Parameters
    ----------
    placement : Placement
        A mesh on a cluster.
    axis : str or sequence of str
        An axis, several axes, or the name of a group.
    collective : str, optional
        all_reduce, all_gather, reduce_scatter, broadcast, reduce, all_to_all or send_recv. By default send_recv for pp,
        all_to_all for ep, and all_reduce for all other axes.
    size : int or str, default "256M"
        Message size in bytes, as in nccl-tests.
    scene : Scene, optional
        The scene of the placement's cluster. By default it is computed.

    Returns
    -------
    Loads

    Raises
    ------
    TopologyError
        If the collective is unknown.

    Examples
    --------
    >>> import meshlab as ml
    >>> placement = ml.place("dp=2, tp=8", ml.preset("dgx-h100", nodes=2))
    >>> loads(placement, "dp").table()[["link", "groups", "gbs", "time_us"]].round(1).values.tolist()[1]
    ['NIC', 1, 48.0, 5592.4]
    """
    groups = placement.mesh[axis]
    collective = collective or default_collective(groups.name)
    if collective not in _VOLUME:
        raise TopologyError(
            f"unknown collective {collective!r}{did_you_mean(collective, _VOLUME)}",
            hint=f"choose one of {', '.join(_VOLUME)}",
        )
    bytes_ = parse_size(size)
    scene = scene or scene_of(placement.cluster)
    n = groups.size
    volume = _VOLUME[collective](n) * bytes_ if n > 1 else 0.0
    if n == 1:
        flows = _Flows.empty()
    elif collective == "all_to_all":
        flows = _all_to_all(placement.rank_map, groups.array, bytes_ / n)
    elif collective == "send_recv":
        flows = _chain(placement.rank_map, groups.array, volume)
    else:
        flows = _ring(placement.rank_map, groups.array, volume)
    links = _links(placement, scene, flows, len(groups))
    limit = _limit(links)
    climbs = np.zeros(len(groups), dtype=bool)
    climbs[flows.climbing] = True
    state = _state(links, limit, n, bool(climbs.any()))
    return Loads(groups.name, collective, bytes_, volume, climbs, links, state, limit)


def find_places(placement: Placement, axes: Sequence[Loads], scene: Scene | None = None) -> tuple[LinkFinding, ...]:
    """Return what deserves attention in the loads of several axes, with its place in the picture.

    Axes with the same cause share a finding.
    """
    scene = scene or scene_of(placement.cluster)
    causes: dict[tuple[str, str, str], list[str]] = {}
    for one in axes:
        for mark, text, place in _causes(one, scene):
            causes.setdefault((mark, text, place), []).append(one.axis)
    found = [
        LinkFinding(mark, f"{' and '.join(names)}: {text}", tuple(names), place)
        for (mark, text, place), names in causes.items()
    ]
    found.sort(key=lambda finding: "■▲".find(finding.mark) % 3)
    if not found:
        found = [LinkFinding("●", "no group shares a NIC, changes rails or pays an oversubscription", (), "all")]
    return tuple(found)


def describe(placement: Placement, *, size: int | str = "256M") -> str:
    """Return the placement as text, see `Placement.describe`."""
    cluster, mesh = placement.cluster, placement.mesh
    scene = scene_of(cluster)
    axes = [loads(placement, axis, size=size, scene=scene) for axis in mesh.axis_names]
    network = [level.name if level.taper == 1 else f"{level.name} (1:{level.taper:g})" for level in cluster.levels]
    lines = [
        f"machine: {cluster.title or cluster.names[0]}, {cluster.summary}"
        + (f", network {' < '.join(network)}" if scene.network == "known" else ""),
        f"mesh: {mesh}",
        *(f"{MARKS[one.state][0]} {placement.explain(one.axis)}" for one in axes),
        *(f"{found.mark} {found.text}" for found in find_places(placement, axes, scene)),
    ]
    for one in axes:
        used = [link for link in one.links if link.busiest is not None]
        if used:
            lines.append(f"busiest links for {one.axis}, {one.collective} of {format_size(one.size_bytes)}:")
        width = max((len(link.label) for link in used), default=0)
        for link in used:
            k = link.busiest or 0
            count = int(link.groups[k])
            lines.append(
                f"{'▸' if link.name == one.limit else ' '} {link.label.ljust(width)}  "
                f"{count:,} group{'s' * (count != 1)}, {format_size(float(link.bytes[k]))}, "
                + (format_time_us(float(link.seconds[k]) * 1e6) if np.isfinite(link.seconds[k]) else "time unknown")
            )
    return "\n".join([*lines, *scene.notes])


def _causes(one: Loads, scene: Scene) -> list[tuple[str, str, str]]:
    found = []
    for link in one.links:
        k = link.busiest
        if k is None:
            continue
        count = int(link.groups[k])
        if link.taper > 1:
            share = f"{count:,} groups share" if count > 1 else "one group uses"
            found.append(("■", f"{share} the 1:{link.taper:g} exit of a {link.name}", link.place(k)))
        elif link.name == "nic" and count > 1:
            found.append(("▲", f"{count:,} groups on one NIC", link.place(k)))
    if one.climbs.any():
        leaf = next(link for link in one.links if link.drawn_as == "leaf")
        k = int(leaf.busiest or 0)
        found.append(("▲", "changes rails, so it climbs above the leaf switches", leaf.place(k)))
    return found


def _limit(links: Sequence[LinkLoad]) -> str:
    """Return the name of the links that need the longest time. Ties go to the inner links."""
    most, name = 0.0, ""
    for link in links:
        time = float(link.seconds[np.isfinite(link.seconds)].max(initial=0.0))
        if time > most * (1 + 1e-9):
            most, name = time, link.name
    return name


def _state(links: Sequence[LinkLoad], limit: str, n: int, climbs: bool) -> str:
    used = {link.name: link for link in links if link.bytes.any()}
    if n == 1 or not used:
        return "none"
    if not set(used) - {"nvlink", "host"}:
        return "host" if "host" in used else "nvlink"
    if limit and used[limit].taper > 1:
        return "taper"
    nic = used.get("nic")
    return "shared" if climbs or (nic is not None and nic.groups.max() > 1) else "rail"


# -- flows -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Flows:
    """What ranks send and receive. Every entry is one rank of one group.

    Inside hosts there is an entry per hop and side; over the network an entry per rank and direction. `level` is the
    outermost level that the bytes reach, so they pass the uplinks of all network levels below it.
    """

    inside: tuple[Ints, Ints, Ints, Floats, Floats]  # rank, group, level, bytes, GB/s: sent
    inside_in: tuple[Ints, Ints, Ints, Floats, Floats]
    sent: tuple[Ints, Ints, Ints, Floats]  # rank, group, level, bytes
    received: tuple[Ints, Ints, Ints, Floats]
    climbing: Ints  # groups with a hop that changes rails

    @classmethod
    def empty(cls) -> _Flows:
        none, numbers = np.zeros(0, dtype=np.int32), np.zeros(0)
        return cls(*((none, none, none, numbers, numbers),) * 2, *((none, none, none, numbers),) * 2, none)


def _ring(rank_map: RankMap, groups: Ints, volume: float) -> _Flows:
    members, level, _, gbs = all_hops(rank_map, groups)
    size, count = members.shape
    following = np.roll(members, -1, axis=0)
    group = np.broadcast_to(np.arange(count, dtype=np.int32), members.shape)
    near = (level <= _HOST) & (level > 0)
    rates, levels = gbs[near], level[near].astype(np.int32)
    each = np.full(len(rates), volume)
    # Runs: the ranks of one group on one host, which are adjacent in the ring.
    ranks, of_group = members.T.ravel(), group.T.ravel()
    node, out = rank_map.node[ranks], level.T.ravel().astype(np.int32)
    starts = np.ones(size * count, dtype=bool)
    starts[1:] = node[1:] != node[:-1]
    starts[::size] = True
    first = np.flatnonzero(starts)
    run = np.cumsum(starts) - 1
    run_group = of_group[first]
    out_level = out[np.append(first[1:], size * count) - 1]
    previous = np.arange(len(first)) - 1
    begins = np.ones(len(first), dtype=bool)
    begins[1:] = run_group[1:] != run_group[:-1]
    previous[begins] = np.append(np.flatnonzero(begins)[1:], len(first)) - 1
    in_level = out_level[previous]
    weight = _weights(rank_map, ranks, run, (out_level > _HOST) | (in_level > _HOST))

    def flow(levels: Ints) -> tuple[Ints, Ints, Ints, Floats]:
        leaves = levels[run] > _HOST
        return ranks[leaves], of_group[leaves], levels[run][leaves], volume * weight[leaves]

    climbing = _climbing(rank_map, members, following, level)
    return _Flows(
        (members[near], group[near], levels, each, rates),
        (following[near], group[near], levels, each, rates),
        flow(out_level),
        flow(in_level),
        climbing,
    )


def _weights(rank_map: RankMap, ranks: Ints, run: npt.NDArray[np.intp], is_used: npt.NDArray[np.bool_]) -> Floats:
    """Return the share of each rank in the bytes that leave its host, in proportion to the GB/s left for its group."""
    nic_set = rank_map.nic_set[ranks]
    key = run.astype(np.int64) * (int(nic_set.max()) + 1) + nic_set
    _, first, number, same = np.unique(key, return_index=True, return_inverse=True, return_counts=True)
    used = is_used[run[first]]
    share, _, _ = shares(rank_map, nic_set[first][used])
    each = share[nic_set[first]]
    each = np.where(np.isfinite(each) & (each > 0), each, 0.0)
    total = np.bincount(run[first], weights=each, minlength=len(is_used))
    sets = np.bincount(run[first], minlength=len(is_used))
    of_pair = run[first]
    with np.errstate(divide="ignore", invalid="ignore"):
        part = np.where(total[of_pair] > 0, each / total[of_pair], 1 / sets[of_pair])
    result: Floats = (part / same)[number]
    return result


def _climbing(rank_map: RankMap, members: Ints, following: Ints, level: npt.NDArray[np.int8]) -> Ints:
    """Return the groups with a hop between rails of one set of leaf switches."""
    levels = rank_map.cluster.levels
    if not levels or levels[0].rails == 1:
        return np.zeros(0, dtype=np.int32)
    leaf = levels[0].of_node
    same = leaf[rank_map.node[members]] == leaf[rank_map.node[following]]
    return np.flatnonzero((same & (level > len(INNER_LEVELS))).any(axis=0)).astype(np.int32)


def _chain(rank_map: RankMap, groups: Ints, volume: float) -> _Flows:
    members = np.ascontiguousarray(groups.T)
    source, target = members[:-1], members[1:]
    group = np.broadcast_to(np.arange(len(groups), dtype=np.int32), source.shape)
    level = _pair_levels(rank_map, source, target)
    near = (level <= _HOST) & (level > 0)
    rates = _pair_gbs(rank_map, source[near], target[near])
    each = np.full(len(rates), volume)
    far = level > _HOST
    bytes_ = np.full(int(far.sum()), volume)
    return _Flows(
        (source[near], group[near], level[near], each, rates),
        (target[near], group[near], level[near], each, rates),
        (source[far], group[far], level[far], bytes_),
        (target[far], group[far], level[far], bytes_),
        _climbing(rank_map, source, target, level.astype(np.int8)),
    )


def _pair_levels(rank_map: RankMap, source: Ints, target: Ints) -> Ints:
    level = np.full(source.shape, len(rank_map.domains) - 1, dtype=np.int32)
    for index in range(len(rank_map.domains) - 2, -1, -1):
        domain = rank_map.domains[index]
        level[domain[source] == domain[target]] = index
    if rank_map.patchy.any():
        same = rank_map.node[source] == rank_map.node[target]
        kind, i, j = rank_map.kind[source], rank_map.local[source], np.where(same, rank_map.local[target], 0)
        level[(level == _HOST) & (rank_map.distance[kind, i, j] == 1)] = _NVLINK
    return level


def _pair_gbs(rank_map: RankMap, source: Ints, target: Ints) -> Floats:
    same = rank_map.node[source] == rank_map.node[target]
    kind, i, j = rank_map.kind[source], rank_map.local[source], np.where(same, rank_map.local[target], 0)
    fabric = np.minimum(rank_map.nvlink_gbs[source], rank_map.nvlink_gbs[target])
    return np.where(same, rank_map.gbs[kind, i, j], fabric)


def _all_to_all(rank_map: RankMap, groups: Ints, each: float) -> _Flows:
    """Every rank sends `each` bytes to every other rank, over its own NICs."""
    count, size = groups.shape
    ranks = groups.ravel()
    group = np.repeat(np.arange(count, dtype=np.int32), size)
    levels = len(rank_map.domains)
    same = [_peers(group, domain[ranks]) for domain in rank_map.domains]  # ranks of the group in the same domain
    nvlink, host = same[_NVLINK], np.maximum(same[_NVLINK], same[_HOST])
    # Either an NVLink domain is inside a host, or hosts are inside an NVLink domain.
    is_wider = nvlink > same[_HOST]
    island = np.where(is_wider, rank_map.domains[_NVLINK][ranks] + len(rank_map.cluster.names), rank_map.node[ranks])
    # A domain of a rail contains only some devices of a host, so count the ranks that are in either of them.
    reached = [
        host if k <= _HOST else host + same[k] - _peers(group, island, rank_map.domains[k][ranks])
        for k in range(levels)
    ]
    slowest = np.array([template.inner_gbs(nvlink=False) for template in rank_map.cluster.templates])
    parts = [
        (nvlink - same[0], _NVLINK, rank_map.nvlink_gbs[ranks]),
        (host - nvlink, _HOST, slowest[rank_map.kind[ranks]]),
    ]
    ins = [(ranks[n > 0], group[n > 0], np.full(int((n > 0).sum()), level, dtype=np.int32), n[n > 0] * each, g[n > 0])
           for n, level, g in parts]  # fmt: skip
    inside = tuple(np.concatenate(columns) for columns in zip(*ins, strict=True))
    outs = []
    for level in range(_HOST + 1, levels):
        n = reached[level] - reached[level - 1]
        far = n > 0
        outs.append((ranks[far], group[far], np.full(int(far.sum()), level, dtype=np.int32), n[far] * each))
    out = tuple(np.concatenate(columns) for columns in zip(*outs, strict=True)) if outs else _Flows.empty().sent
    climbing = np.zeros(0, dtype=np.int32)
    network = rank_map.cluster.levels
    if network and network[0].rails > 1:
        climbing = np.unique(group[_peers(group, network[0].of_node[rank_map.node[ranks]]) > reached[_HOST + 1]])
    return _Flows(inside, inside, out, out, climbing)  # type: ignore[arg-type]


def _peers(*columns: Ints) -> npt.NDArray[np.int64]:
    """Return for every row how many rows have the same values."""
    key = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        key = key * (int(column.max()) + 1) + column
    _, number, many = np.unique(key, return_inverse=True, return_counts=True)
    return many[number.ravel()]


# -- links -------------------------------------------------------------------------------------------------------------


def _links(placement: Placement, scene: Scene, flows: _Flows, count: int) -> tuple[LinkLoad, ...]:
    """Sum the flows on every link."""
    rank_map, cluster = placement.rank_map, placement.cluster
    found = []
    for name, label, level in (("nvlink", "NVLink, per device", _NVLINK), ("host", "PCIe, per device", _HOST)):
        one = _inside_load(placement, flows, name, label, level, count)
        if one is not None:
            found.append(one)
    if cluster.n_nodes > 1 and scene.n_nics:
        found.append(_nic_load(rank_map, scene, flows, count))
    names = cluster.level_names
    uplinks = range(_HOST + 1, len(names) - 1)
    found += [_uplink_load(rank_map, scene, flows, k, f"{names[k]} to {names[k + 1]}", count) for k in uplinks]
    return tuple(found)


def _inside_load(placement: Placement, flows: _Flows, name: str, label: str, level: int, count: int) -> LinkLoad | None:
    devices = placement.devices
    size = placement.cluster.n_devices
    sums, keys = [], []
    gbs = np.full(size, np.inf)
    for rank, group, levels, bytes_, rates in (flows.inside, flows.inside_in):
        mine = levels == level
        device = devices[rank[mine]]
        sums.append(np.bincount(device, weights=bytes_[mine], minlength=size))
        keys.append(device.astype(np.int64) * count + group[mine])
        np.fmin.at(gbs, device, rates[mine])
    templates = placement.cluster.templates
    # Hosts with NVLink show a row even if it is idle. PCIe has no row of its own where it is not used.
    is_shown = level == _NVLINK and any(template.nvlinks.any() for template in templates)
    if not is_shown and not np.concatenate(keys).size:
        return None
    gbs[np.isinf(gbs)] = np.nan
    groups = _count_groups(np.concatenate(keys), count, size)
    return LinkLoad(name, label, "device", groups, np.maximum(*sums), gbs, 1.0, np.arange(size, dtype=np.int32))


def _count_groups(keys: npt.NDArray[np.int64], count: int, size: int) -> Ints:
    """Return the number of distinct groups of every link, from keys link × count + group."""
    return np.bincount(np.unique(keys) // count, minlength=size).astype(np.int32)


def _nic_load(rank_map: RankMap, scene: Scene, flows: _Flows, count: int) -> LinkLoad:
    cluster = rank_map.cluster
    size = scene.n_nics
    gbs = np.full(size, np.nan)
    sums = [np.zeros(size), np.zeros(size)]
    keys = []
    host_of = np.empty(cluster.n_nodes, dtype=np.int32)
    host_of[scene.host] = np.arange(len(scene.host), dtype=np.int32)
    for k, template in enumerate(cluster.templates):
        speeds = np.array([nic.gbs for nic in template.nics], dtype=np.float64)
        where = scene.first_nic[scene.kind_of == k][:, None] + np.arange(len(speeds))
        gbs[where] = speeds
        if not len(speeds):
            continue
        # A set divides its bytes among its NICs in proportion to their speed.
        near = template.near_nics * (speeds if np.isfinite(speeds).all() else 1.0)
        part = near / np.maximum(near.sum(axis=1, keepdims=True), 1e-300)
        for side, (rank, group, _, bytes_) in enumerate((flows.sent, flows.received)):
            mine = rank_map.kind[rank] == k
            first = scene.first_nic[host_of[rank_map.node[rank[mine]]]]
            shares_ = part[rank_map.local[rank[mine]]]
            number = first[:, None] + np.arange(len(speeds))
            is_used = shares_ > 0
            sums[side] += np.bincount(
                number[is_used], weights=(shares_ * bytes_[mine][:, None])[is_used], minlength=size
            )
            all_groups = np.broadcast_to(group[mine][:, None], number.shape)
            keys.append(number[is_used].astype(np.int64) * count + all_groups[is_used])
    groups = _count_groups(np.concatenate(keys) if keys else np.zeros(0, dtype=np.int64), count, size)
    return LinkLoad("nic", "NIC", "nic", groups, np.maximum(*sums), gbs, 1.0, np.arange(size, dtype=np.int32))


def _uplink_load(rank_map: RankMap, scene: Scene, flows: _Flows, index: int, label: str, count: int) -> LinkLoad:
    cluster = rank_map.cluster
    number = index - len(INNER_LEVELS)
    domain = rank_map.domains[index]
    network = cluster.levels[number]
    size = (int(network.of_node.max()) + 1) * network.rails  # some rails may have no device
    sums, keys = [], []
    for rank, group, level, bytes_ in (flows.sent, flows.received):
        leaves = level > index
        link = domain[rank[leaves]]
        sums.append(np.bincount(link, weights=bytes_[leaves], minlength=size))
        keys.append(link.astype(np.int64) * count + group[leaves])
    taper = cluster.levels[number + 1].taper
    groups = _count_groups(np.concatenate(keys), count, size)
    gbs = np.full(size, np.nan)
    of_domain = uplink_gbs(rank_map, index) / taper
    gbs[: len(of_domain)] = of_domain
    drawn_as, order, places = _drawn(scene, number, size)
    return LinkLoad(network.name, label, drawn_as, groups[order], np.maximum(*sums)[order], gbs[order], taper, places)


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
