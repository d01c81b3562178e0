"""NCCL's tuner as array functions: channels, latency and bandwidth of every algorithm and protocol.

The functions follow NCCL's graph search (src/graph/search.cc, simplified to counts of links and NICs) and its tuner
(src/graph/tuning.cc). They return what NCCL believes, from which it chooses. `meshlab.prediction._costs` prices the
choice.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from meshlab.base._errors import MeshlabError, did_you_mean
from meshlab.prediction._constants import (
    ALGORITHMS,
    CPUS,
    PROTOCOLS,
    TunerConstants,
    constants_of,
    generation,
    link_speeds,
)
from meshlab.prediction._group_links import GroupLinks
from meshlab.topology.model._cluster import Ints
from meshlab.topology.placement._rank_map import Floats

Bools = npt.NDArray[np.bool_]

TimingMode = Literal["graph", "pipelined", "isolated"]
"""How calls are timed, as in `meshlab.bench`."""

TREE, RING, COLLNET_DIRECT, COLLNET_CHAIN, NVLS, NVLS_TREE, PAT, P2P = range(len(ALGORITHMS))
LL, LL128, SIMPLE = range(len(PROTOCOLS))

_MOST_CHANNELS = 64
_MOST_HEADS = 32  # ranks that reduce through NVSwitch (NCCL_MAX_NVLS_ARITY)
_MOST_COLLNET_RANKS = 8  # of one node (NCCL_MAX_DIRECT_ARITY + 1)
_WIRE = 0.96  # practical bandwidth of a NIC divided by its line rate, see `meshlab.topology.model._links.nic_gbs`

# NCCL's figures are those of nccl-tests, which issues calls back to back. The offsets are medians over the collectives
# of messages below 1 KiB on two H200: a graph saves the launch, and an isolated call shows all of it.
_OFFSETS_US = {"graph": -2.2, "pipelined": 0.0, "isolated": 3.0}

_NVLS_TYPES = ("int32", "uint32", "int64", "uint64", "float16", "bfloat16", "float32", "float64")


@dataclass(frozen=True)
class NcclSettings:
    """Settings of NCCL that change its choice, and how the calls are timed.

    Parameters
    ----------
    algorithms : tuple of str, optional
        The allowed algorithms, as in NCCL_ALGO. By default all.
    protocols : tuple of str, optional
        The allowed protocols, as in NCCL_PROTO. By default all that NCCL enables on the hardware.
    nvls : bool, default True
        False if NVLS is disabled or not available (NCCL_NVLS_ENABLE=0).
    sharp : bool, default False
        True if switches reduce between nodes (NCCL_COLLNET_ENABLE=1 and the SHARP plugin).
    plugin : str, optional
        Name of a tuner plugin. Its choice is unknown, so it is only reported.
    plugin_latency_us : float, optional
        Latency that the network plugin reports to NCCL. By default the network latency of the cluster.
    mode : {"pipelined", "graph", "isolated"}
        How calls are timed. It shifts the latency of all calls.
    version : str, default "2.30.7"
        The NCCL version of the tuner's constants.

    Raises
    ------
    MeshlabError
        If an algorithm, protocol, mode or version is unknown.

    Examples
    --------
    >>> NcclSettings(algorithms=("ring",), nvls=False).algorithms
    ('ring',)
    """

    algorithms: tuple[str, ...] | None = None
    protocols: tuple[str, ...] | None = None
    nvls: bool = True
    sharp: bool = False
    plugin: str | None = None
    plugin_latency_us: float | None = None
    mode: TimingMode = "pipelined"
    version: str = "2.30.7"

    @classmethod
    def of_environment(
        cls, environment: Mapping[str, str], *, mode: TimingMode = "pipelined", collective: str | None = None
    ) -> NcclSettings:
        """Return the settings of environment variables, as recorded with a run.

        Parameters
        ----------
        environment : mapping of str to str
            The variables. Read are NCCL_ALGO, NCCL_PROTO, NCCL_NVLS_ENABLE, NCCL_COLLNET_ENABLE and
            NCCL_TUNER_PLUGIN.
        mode : {"pipelined", "graph", "isolated"}
            How calls are timed.
        collective : str, optional
            The collective whose part of NCCL_ALGO and NCCL_PROTO to use. By default the part for all collectives.

        Raises
        ------
        MeshlabError
            If NCCL_ALGO or NCCL_PROTO contains an unknown name.

        Examples
        --------
        >>> NcclSettings.of_environment({"NCCL_ALGO": "^NVLS;broadcast:ring", "NCCL_PROTO": "Simple"}).protocols
        ('simple',)
        """
        return cls(
            algorithms=_chosen(environment.get("NCCL_ALGO"), collective, ALGORITHMS[:P2P]),
            protocols=_chosen(environment.get("NCCL_PROTO"), collective, PROTOCOLS),
            nvls=environment.get("NCCL_NVLS_ENABLE", "2") != "0",
            sharp=environment.get("NCCL_COLLNET_ENABLE", "0") == "1",
            plugin=environment.get("NCCL_TUNER_PLUGIN") or None,
            mode=mode,
        )

    @property
    def offset_us(self) -> float:
        """Latency that the timing mode adds to NCCL's figures, in µs."""
        return _OFFSETS_US[self.mode]

    def __post_init__(self) -> None:
        for field in ("algorithms", "protocols"):
            words = getattr(self, field)
            if words is not None and (isinstance(words, str) or not isinstance(words, Iterable)):
                raise MeshlabError(f"{field} must be several names, not {words!r}", hint='write ("ring",)')
            object.__setattr__(self, field, None if words is None else tuple(words))
        for field in ("nvls", "sharp"):
            if not isinstance(getattr(self, field), bool):
                raise MeshlabError(f"{field} must be True or False, not {getattr(self, field)!r}")
        latency = self.plugin_latency_us
        if latency is not None and not (isinstance(latency, int | float) and 0 <= latency < float("inf")):
            raise MeshlabError(f"plugin_latency_us must be a number of microseconds, not {latency!r}")
        for what, names, choices in (
            ("algorithm", self.algorithms or (), ALGORITHMS[:P2P]),
            ("protocol", self.protocols or (), PROTOCOLS),
            ("timing mode", (self.mode,), get_args(TimingMode)),
        ):
            for word in names:
                if word not in choices:
                    raise MeshlabError(
                        f"unknown {what} {word!r}{did_you_mean(str(word), choices)}",
                        hint=f"choose one of {', '.join(choices)}",
                    )
        constants_of(self.version)


def _chosen(text: str | None, collective: str | None, names: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return what NCCL_ALGO or NCCL_PROTO allows, such as ``ring,tree`` or ``^nvls;allreduce:tree``."""
    if not text:
        return None
    chosen: tuple[str, ...] | None = None
    of_word = {word.replace("_", ""): word for word in names}
    for part in text.lower().split(";"):
        prefix, _, listed = part.rpartition(":")
        if prefix and prefix.strip() != (collective or "").replace("_", ""):
            continue
        words = [of_word.get(word.strip(), word.strip()) for word in listed.removeprefix("^").split(",")]
        unknown = next((word for word in words if word not in names), None)
        if unknown is not None:
            raise MeshlabError(
                f"unknown name {unknown!r} in the NCCL setting {text!r}{did_you_mean(unknown, names)}",
                hint=f"NCCL's names are {', '.join(of_word)}",
            )
        excluded = listed.startswith("^")
        chosen = tuple(word for word in names if (word in words) != excluded)
    return chosen


@dataclass(frozen=True, eq=False)
class Graphs:
    """Channels of a group as NCCL's graph search finds them. All fields have the shape (k,).

    Parameters
    ----------
    channels : numpy.ndarray
        Channels of rings and trees.
    all_channels : numpy.ndarray
        Channels of the communicator, after NCCL has duplicated those of the graph.
    ring, tree_inside, tree_between : numpy.ndarray
        GB/s of one channel.
    heads : numpy.ndarray
        Channels of the NVLS graph: the ranks of a domain that reduce a part through NVSwitch.
    nvls_inside, nvls_between : numpy.ndarray
        GB/s of one head.
    is_plain_tree : numpy.ndarray
        Whether the tree is a plain one, because the domain has a single rank.
    same_channels : numpy.ndarray
        Whether all rings visit the ranks in the same order.
    """

    channels: Ints
    all_channels: Ints
    ring: Floats
    tree_inside: Floats
    tree_between: Floats
    heads: Ints
    nvls_inside: Floats
    nvls_between: Floats
    is_plain_tree: Bools
    same_channels: Bools

    def limited(self, network_gbs: Floats, several: Bools) -> Graphs:
        """Return the channels of groups of several domains if all of them together have `network_gbs`."""
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.where(several, np.minimum(network_gbs / (self.channels * self.ring), 1), 1)
            of_heads = np.where(several, np.minimum(network_gbs / (self.heads * self.nvls_between), 1), 1)
        between = self.tree_between * share
        # With two domains NCCL uses the inner bandwidth of the tree, because each direction carries half of a ring's.
        inside = np.where(several, np.minimum(self.tree_inside, 2 * between), self.tree_inside)
        return replace(
            self,
            ring=self.ring * share,
            tree_inside=inside,
            tree_between=between,
            nvls_between=self.nvls_between * np.nan_to_num(of_heads, nan=1),
        )


@dataclass(frozen=True, eq=False)
class TunerTable:
    """Latency and bandwidth of every algorithm and protocol, as in the table that NCCL logs with TUNING.

    Parameters
    ----------
    latency_us, gbs : numpy.ndarray
        Shape (k, algorithms, protocols): latency in µs and algorithm bandwidth in GB/s, 0 for what NCCL cannot use.
    """

    latency_us: Floats
    gbs: Floats


@functools.lru_cache(maxsize=64)  # all collectives of an axis use the same graphs
def search_graphs(links: GroupLinks, constants: TunerConstants, *, nvls: bool = True) -> Graphs:
    """Return the channels that NCCL's graph search finds for every signature, without heads if NVLS is off."""
    k = len(links)
    parts = {name: np.zeros(k) for name in ("channels", "ring", "inside", "between", "heads", "nvls", "nvls_between")}
    gens = generation(links.compute_capability)
    several = links.domains > 1
    for gen in np.unique(gens).tolist():
        for between in np.unique(several[gens == gen]).tolist():
            rows = np.flatnonzero((gens == gen) & (several == between))
            graph = _search(links.rows(rows), link_speeds(constants, gen, between), between)
            for name, values in graph.items():
                parts[name][rows] = values
    channels = parts["channels"].astype(np.int32)
    total = np.minimum(2 * channels, _MOST_CHANNELS)
    few = several & (links.compute_capability >= 90) & (parts["ring"] > 45) & (total < 16)
    return Graphs(
        channels=channels,
        all_channels=np.where(few, 2 * total, total).astype(np.int32),
        ring=parts["ring"],
        tree_inside=parts["inside"],
        tree_between=parts["between"],
        heads=parts["heads"].astype(np.int32) if nvls else np.zeros(k, dtype=np.int32),
        nvls_inside=parts["nvls"],
        nvls_between=parts["nvls_between"],
        is_plain_tree=several & (links.ranks_per_domain == 1),
        same_channels=~several | (links.ranks_per_domain == 1),
    )


def _search(links: GroupLinks, speeds: tuple[float, ...], between: bool) -> dict[str, Floats]:
    """Return the channels for signatures that try the same speeds."""
    ppn = links.ranks_per_domain
    with np.errstate(divide="ignore", invalid="ignore"):
        # A path that ends at a NIC or at the tree's root does not need the NVLinks of its last rank. PCIe leads to the
        # NICs as well, so there every path uses the links of all ranks.
        spared = np.where(links.inner_is_nvlink, ppn / np.maximum(ppn - 1, 1), 1.0)
        roomy = np.where(ppn > 1, links.inner_gbs * spared, np.inf)
    if between:
        merged, line = merged_nics(links)
        channels, ring = _best(speeds, lambda v: np.minimum(merged * np.floor(line / v), np.floor(roomy / v)))
    else:
        merged, line = np.zeros(len(links)), np.zeros(len(links))
        channels, ring = _best(speeds, lambda v: np.floor(links.inner_gbs / v))
    # NCCL splits fast channels, so that more thread blocks can fill the links.
    split = (ring >= 25) & ~((links.compute_capability > 80) & (ring < 50) & (channels > 4))
    doubled = np.minimum(2 * channels, _MOST_CHANNELS // 2)
    ring = np.where(split, ring / np.ceil(doubled / np.maximum(channels, 1)), ring)
    channels = np.where(split, doubled, channels)
    ascending = np.array(speeds[::-1])
    if between:
        inside = ring.copy()
        for speed in ascending:  # the tree may be faster inside a domain, up to twice the speed of the network
            faster = (speed > inside) & (inside < 2 * ring) & (channels * speed <= roomy)
            inside = np.where(faster, speed, inside)
    else:
        fits = channels[:, None] * ascending <= roomy[:, None]
        inside = np.where(fits.any(axis=1), ascending[np.maximum(fits.sum(axis=1) - 1, 0)], ascending[0])
    heads, nvls, nvls_between = _nvls_graph(links, speeds, between, merged, line)
    return {
        "channels": channels,
        "ring": ring,
        "inside": inside,
        "between": ring if between else inside,
        "heads": heads,
        "nvls": nvls,
        "nvls_between": nvls_between,
    }


def _best(speeds: tuple[float, ...], count: Callable[[float], Floats]) -> tuple[Floats, Floats]:
    """Return number and speed of the channels with the largest total bandwidth, over descending speeds."""
    best = speed = np.zeros(1)
    for v in speeds:
        number = np.minimum(count(v), _MOST_CHANNELS // 2)
        # The search goes on to slower channels only while they are at least half as fast as the best ones.
        tried = (best == 0) | (v > 0.49 * speed)
        better = tried & (number * v > best * speed + 1e-6)
        best, speed = np.where(better, number, best), np.where(better, v, speed)
    # Without any solution NCCL falls back to a single slow channel.
    return np.maximum(best, 1), np.where(best == 0, 0.1, speed)


def merged_nics(links: GroupLinks) -> tuple[Floats, Floats]:
    """Return the NICs of a domain as NCCL and its plugins merge them, at most one per rank, and their line rate.

    The PCIe link of a rank limits the rate of its NICs.
    """
    merged = np.minimum(links.nics, links.ranks_per_domain)
    line = links.nics * links.nic_gbs / _WIRE / np.maximum(merged, 1)
    return merged.astype(float), np.minimum(line, links.pcie_gbs / _WIRE)


def _nvls_graph(
    links: GroupLinks, speeds: tuple[float, ...], between: bool, merged: Floats, line: Floats
) -> tuple[Floats, Floats, Floats]:
    """Return heads, GB/s of a head inside the domain, and GB/s of a head between domains."""
    ppn = links.ranks_per_domain
    heads, speed = np.zeros(len(links)), np.zeros(len(links))
    for v in speeds:
        # Every rank sends to each head once, and a head once more.
        possible = np.minimum(np.floor(links.inner_gbs / v) - 1, np.minimum(ppn, _MOST_HEADS))
        if between:
            possible = np.minimum(possible, merged * np.floor(line / v))
            better = ((heads == 0) | (v > 0.49 * speed)) & (possible > heads)
        else:
            better = (heads == 0) & (possible == np.minimum(ppn, _MOST_HEADS))
        heads, speed = np.where(better, possible, heads), np.where(better, v, speed)
    usable = links.is_switched & (links.compute_capability >= 90) & (heads >= 2)
    heads, speed = np.where(usable, heads, 0), np.where(usable, speed, 0.0)
    outside = speed.copy()
    if between:
        for v in sorted(speeds):
            faster = (v > outside) & (outside < 2 * speed) & (np.ceil(heads / np.maximum(merged, 1)) * v <= line)
            outside = np.where(faster, v, outside)
    return heads, speed, outside


def tune(
    links: GroupLinks,
    graphs: Graphs,
    collective: str,
    constants: TunerConstants,
    *,
    network_latency_us: Floats | None = None,
) -> TunerTable:
    """Return latency and bandwidth of every algorithm and protocol of a collective, as NCCL's tuner computes them.

    What a setting or the hardware disables is removed by `enabled`, not here.
    """
    k = len(links)
    n, nodes = links.n_ranks.astype(float), links.domains.astype(float)
    gen = generation(links.compute_capability)
    column = np.minimum(links.domains, 3) - 1
    reduces_all, half = collective == "all_reduce", collective in ("all_gather", "reduce_scatter")
    steps = np.maximum(2 * (n - 1) if reduces_all else n - 1 if half else n, 1)
    several = links.domains > 1
    ppn, whole_ppn = n / nodes, links.n_ranks // links.domains
    trees = np.floor(np.log2(nodes))
    plugin = links.network_latency_us if network_latency_us is None else network_latency_us

    row = np.where(several, links.cpu == CPUS.index("amd"), gen).astype(np.intp)
    ll_most = constants.ll_most[row, column]
    channels, heads = graphs.channels.astype(float), graphs.heads.astype(float)
    inner = np.where(links.inner_is_nvlink & (links.ranks_per_domain > 1), 0, 1)
    latency = np.zeros((k, len(ALGORITHMS) - 1, len(PROTOCOLS)))
    gbs = np.zeros_like(latency)

    def hops(algorithm: int, protocol: int) -> tuple[Floats, Floats]:
        """Latency of a hop inside a domain, and of one between domains with the plugin's latency."""
        flush = 2 if protocol == SIMPLE else 1
        # With one rank per domain nothing hides the latency of the network, so NCCL takes the tree's.
        between = np.where(ppn == 1, constants.hop[2, TREE, protocol], constants.hop[2, algorithm, protocol])
        return constants.hop[inner, algorithm, protocol], between + flush * plugin

    for protocol in range(len(PROTOCOLS)):
        # Ring
        bus = channels * graphs.ring
        if protocol == LL:
            bus = np.minimum(ll_most, bus * 0.5)
        elif protocol == LL128:
            bus = np.minimum(bus * 0.92, channels * constants.ring_ll128_most[gen, column])
        gbs[:, RING, protocol] = bus * n / steps
        inside, between = hops(RING, protocol)
        if collective in ("broadcast", "reduce"):
            hop = np.where(several, constants.hop[2, RING, protocol], inside)
            chunk = np.where(several, constants.hop[2, TREE, protocol], constants.hop[inner, TREE, protocol])
            rotated = steps * (chunk if protocol == SIMPLE else hop)
            latency[:, RING, protocol] = constants.base[RING, protocol] + np.where(graphs.same_channels, hop, rotated)
            continue
        posting = np.where(several, np.where(links.cpu == CPUS.index("amd"), 2.0, 1.0), 0.0)
        inside = np.maximum(inside, posting * (3 if protocol == SIMPLE else 1))
        crossings = np.where(several, (2 if reduces_all else 1) * (nodes - 1), 0)
        latency[:, RING, protocol] = constants.base[RING, protocol] + (steps - crossings) * inside + crossings * between
        # Tree
        if reduces_all:
            bus = channels * np.where(nodes <= 2, graphs.tree_inside, graphs.tree_between)
            bus = np.minimum(bus * 0.92, channels * constants.tree_most[gen, column])
            if protocol == LL:
                bus = np.minimum(bus / 3.8, ll_most)
            elif protocol == LL128:
                share = np.where(several, 120 / 128, 7 / 9)
                bus = np.minimum(bus * share, channels * constants.tree_ll128_most[gen, column])
            bus = np.where(graphs.is_plain_tree, bus * 0.85, bus)
            gbs[:, TREE, protocol] = bus / 2
            inside, between = hops(TREE, protocol)
            latency[:, TREE, protocol] = constants.base[TREE, protocol] + 2 * (
                (whole_ppn - 1) * inside + trees * between
            )
        _add_collnet(latency, gbs, protocol, reduces_all, links, graphs, hops)

    if not (reduces_all or half):
        return TunerTable(latency, gbs)
    # NVLS and NVLSTree
    head = graphs.nvls_inside * constants.nvls_efficiency[gen] * (heads - 1) / np.maximum(heads, 1)
    head = head * 2 if reduces_all else head * (ppn - 1) / ppn
    factor = n / steps if reduces_all else np.ones(k)
    usable = heads >= 2
    inside, between = hops(NVLS, SIMPLE)
    bus = heads * np.where(several, np.minimum(head, graphs.nvls_between), head)
    gbs[:, NVLS, SIMPLE] = np.where(usable, bus * factor, 0)
    latency[:, NVLS, SIMPLE] = np.where(usable, inside + np.where(several, between, 0), 0)
    if reduces_all:
        inside, between = hops(NVLS_TREE, SIMPLE)
        outside = graphs.nvls_between * np.where(nodes <= 2, 2, 1)
        most = constants.nvls_tree_most[gen, column]
        bus = heads * np.minimum(np.minimum(head, outside), most)
        gbs[:, NVLS_TREE, SIMPLE] = np.where(usable & several, bus * factor, 0)
        latency[:, NVLS_TREE, SIMPLE] = np.where(usable & several, inside + 2 * trees * between, 0)
    else:
        # PAT, which needs one rank per domain
        _, between = hops(PAT, SIMPLE)
        alone = several & (ppn == 1)
        bus = channels * np.where(nodes <= 2, graphs.tree_inside, graphs.tree_between) * 0.75
        gbs[:, PAT, SIMPLE] = np.where(alone, bus, 0)
        rounds = constants.base[PAT, SIMPLE] + trees * between / 3.5 + 2.8 * n
        latency[:, PAT, SIMPLE] = np.where(alone, rounds, 0)
    return TunerTable(latency, gbs)


def _add_collnet(
    latency: Floats,
    gbs: Floats,
    protocol: int,
    reduces_all: bool,
    links: GroupLinks,
    graphs: Graphs,
    hops: Callable[[int, int], tuple[Floats, Floats]],
) -> None:
    """Add CollNet, on the channels of the tree."""
    others = links.n_ranks // links.domains - 1
    inside, between = hops(COLLNET_DIRECT, protocol)
    latency[:, COLLNET_DIRECT, protocol] = 2 * (np.minimum(1, others) * inside + others * 0.4) + between
    if protocol == SIMPLE:
        if reduces_all:
            # All ranks need a NIC nearby to work at full speed.
            scarce = (links.n_ranks / links.domains) / graphs.channels
            bus = graphs.channels * graphs.tree_inside / ((scarce + 1) / 2)
            gbs[:, COLLNET_DIRECT, SIMPLE] = bus * np.where(links.compute_capability >= 90, 0.85, 1) / 2
        else:
            slower = np.minimum(graphs.tree_inside, 0.9 * graphs.tree_between)
            gbs[:, COLLNET_DIRECT, SIMPLE] = links.n_ranks / links.domains * slower
    if reduces_all:
        inside, between = hops(COLLNET_CHAIN, protocol)
        latency[:, COLLNET_CHAIN, protocol] = 2 * others * inside + between
        if protocol == SIMPLE:
            gbs[:, COLLNET_CHAIN, SIMPLE] = graphs.channels * graphs.tree_inside / 2


def enabled(links: GroupLinks, collective: str, settings: NcclSettings, dtype: str = "float32") -> Bools:
    """Return what NCCL may use, of shape (k, algorithms, protocols)."""
    allowed = np.ones((len(links), len(ALGORITHMS) - 1, len(PROTOCOLS)), dtype=bool)
    several = links.domains > 1
    reduces = collective != "all_gather"
    nvls = settings.nvls and (not reduces or dtype in _NVLS_TYPES)
    small = links.ranks_per_domain <= _MOST_COLLNET_RANKS
    sharp = several & settings.sharp & (collective == "all_reduce")
    one_domain = ~several & ((collective == "all_reduce") | (links.ranks_per_domain <= _MOST_HEADS))
    allowed[:, NVLS] &= (nvls & (one_domain | sharp))[:, None]
    allowed[:, NVLS_TREE] &= (nvls & several)[:, None]
    allowed[:, COLLNET_DIRECT] &= (sharp & small & links.is_switched)[:, None]
    allowed[:, COLLNET_CHAIN] &= (sharp & small)[:, None]
    if settings.algorithms is not None:
        allowed &= np.isin(ALGORITHMS[:P2P], settings.algorithms)[:, None]
    if settings.protocols is None:
        allowed[:, :, LL128] &= links.has_ll128[:, None]
    else:
        allowed &= np.isin(PROTOCOLS, settings.protocols)
    return allowed
