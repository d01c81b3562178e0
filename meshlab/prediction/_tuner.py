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

from meshlab.base._errors import MeshlabError, did_you_mean
from meshlab.prediction._constants import ALGORITHMS, CPUS, PROTOCOLS, TunerConstants, constants_of, generation
from meshlab.prediction._group_links import GroupLinks
from meshlab.topology.model._levels import Bools, Floats, Ints

TimingMode = Literal["graph", "pipelined", "isolated"]
"""The timing mode of the calls, as in `meshlab.bench`."""

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
    def has_own_choices(self) -> bool:
        """Whether NCCL chooses algorithm and protocol by its own tuner, without restrictions."""
        return (self.algorithms, self.protocols, self.nvls, self.sharp, self.plugin) == (None, None, True, False, None)

    @property
    def offset_us(self) -> float:
        """Latency that the timing mode adds to NCCL's figures, in µs."""
        return _OFFSETS_US[self.mode]

    def __post_init__(self) -> None:
        for field in ("algorithms", "protocols"):
            words = getattr(self, field)
            if words is not None and (isinstance(words, str) or not isinstance(words, Iterable)):
                raise MeshlabError(f"{field} must be a sequence of names, not {words!r}", hint='write ("ring",)')
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
    """Channels of a group as NCCL's graph search finds them. All fields have the shape (k,)."""

    channels: Ints  # of rings and trees
    all_channels: Ints  # of the communicator, after NCCL has duplicated those of the graph
    ring: Floats  # GB/s of one channel
    tree_inside: Floats  # GB/s of one channel
    tree_between: Floats  # GB/s of one channel
    heads: Ints  # channels of NVLS: the ranks of a domain that reduce a part through NVSwitch
    nvls_inside: Floats  # GB/s of one head
    nvls_between: Floats  # GB/s of one head
    is_plain_tree: Bools  # not a double one, because the domain has a single rank
    same_channels: Bools  # all rings visit the ranks in the same order

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
    """Latency and bandwidth of every algorithm and protocol, as in the table that NCCL logs with TUNING."""

    latency_us: Floats  # (k, algorithms, protocols)
    gbs: Floats  # (k, algorithms, protocols): algorithm bandwidth, 0 for what NCCL cannot use


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
            speeds = constants.speeds_between if between else constants.speeds_inside
            graph = _search(links.rows(rows), speeds[gen], between)
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
    """Return the NICs of a domain as NCCL and its plugins merge them, at most one per rank, and their line rate."""
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
    """Return NCCL's figures for every algorithm and protocol, also for those that `enabled` rules out."""
    plugin_us = links.network_latency_us if network_latency_us is None else network_latency_us
    tuner = _Tuner(links, graphs, collective, constants, plugin_us)
    for protocol in range(len(PROTOCOLS)):
        tuner.add_ring(protocol)
        if collective in ("broadcast", "reduce"):
            continue
        if tuner.reduces_all:
            tuner.add_tree(protocol)
        tuner.add_collnet(protocol)
    if tuner.reduces_all or tuner.is_half:
        tuner.add_nvls()
    if tuner.is_half:
        tuner.add_pat()
    return TunerTable(tuner.latency, tuner.gbs)


class _Tuner:
    """The table of one collective, and the quantities of shape (k,) that several algorithms use."""

    # The formulas are those of ncclTopoTuneModel, in its order and with its numbers. They are separate by algorithm,
    # because NCCL's terms for a hop, a step and a share of the bandwidth differ between them.

    def __init__(
        self, links: GroupLinks, graphs: Graphs, collective: str, constants: TunerConstants, plugin_us: Floats
    ) -> None:
        self.links, self.graphs, self.collective, self.constants = links, graphs, collective, constants
        self.plugin_us = plugin_us
        self.reduces_all, self.is_half = collective == "all_reduce", collective in ("all_gather", "reduce_scatter")
        self.n, self.nodes = links.n_ranks.astype(float), links.domains.astype(float)
        self.ppn = self.n / self.nodes
        self.several = links.domains > 1
        self.steps = np.maximum(2 * (self.n - 1) if self.reduces_all else self.n - 1 if self.is_half else self.n, 1)
        self.depth = np.floor(np.log2(self.nodes))  # of a tree between nodes
        self.channels = graphs.channels.astype(float)
        self.tree_gbs = np.where(self.nodes <= 2, graphs.tree_inside, graphs.tree_between)
        # NCCL's arrays have a row per generation of GPUs, and a column for one, two, or more nodes.
        self.cell = generation(links.compute_capability), np.minimum(links.domains, 3) - 1
        self.is_amd = links.cpu == CPUS.index("amd")
        # Between nodes the limit of LL depends on the vendor of the CPU instead.
        ll_row = np.where(self.several, self.is_amd, self.cell[0]).astype(np.intp)
        self.ll_most = constants.ll_most[ll_row, self.cell[1]]
        self.inner = np.where(links.inner_is_nvlink & (links.ranks_per_domain > 1), 0, 1)
        self.latency = np.zeros((len(links), len(ALGORITHMS) - 1, len(PROTOCOLS)))
        self.gbs = np.zeros_like(self.latency)

    def hops(self, algorithm: int, protocol: int) -> tuple[Floats, Floats]:
        """Return the latency of a hop inside a domain, and of one between domains with the plugin's latency."""
        hop, flush = self.constants.hop, 2 if protocol == SIMPLE else 1
        # With one rank per domain nothing hides the latency of the network, so NCCL takes the tree's.
        between = np.where(self.ppn == 1, hop[2, TREE, protocol], hop[2, algorithm, protocol])
        return hop[self.inner, algorithm, protocol], between + flush * self.plugin_us

    def add_ring(self, protocol: int) -> None:
        """Add the ring. A broadcast or reduce is a chain, whose chunks follow each other through all ranks."""
        constants, several = self.constants, self.several
        bus = self.channels * self.graphs.ring
        if protocol == LL:
            bus = np.minimum(self.ll_most, bus * 0.5)
        elif protocol == LL128:
            bus = np.minimum(bus * 0.92, self.channels * constants.ring_ll128_most[self.cell])
        self.gbs[:, RING, protocol] = bus * self.n / self.steps
        base, (inside, between) = constants.base[RING, protocol], self.hops(RING, protocol)
        if self.collective in ("broadcast", "reduce"):
            hop = np.where(several, constants.hop[2, RING, protocol], inside)
            chunk = np.where(several, constants.hop[2, TREE, protocol], constants.hop[self.inner, TREE, protocol])
            rotated = self.steps * (chunk if protocol == SIMPLE else hop)
            self.latency[:, RING, protocol] = base + np.where(self.graphs.same_channels, hop, rotated)
            return
        # Between nodes, the CPU posts every step to the network, which also limits the steps inside a domain.
        posting = np.where(several, np.where(self.is_amd, 2.0, 1.0), 0.0)
        inside = np.maximum(inside, posting * (3 if protocol == SIMPLE else 1))
        crossings = np.where(several, (2 if self.reduces_all else 1) * (self.nodes - 1), 0)
        self.latency[:, RING, protocol] = base + (self.steps - crossings) * inside + crossings * between

    def add_tree(self, protocol: int) -> None:
        """Add the tree of an all_reduce."""
        constants = self.constants
        bus = np.minimum(self.channels * self.tree_gbs * 0.92, self.channels * constants.tree_most[self.cell])
        if protocol == LL:
            bus = np.minimum(bus / 3.8, self.ll_most)
        elif protocol == LL128:
            share = np.where(self.several, 120 / 128, 7 / 9)
            bus = np.minimum(bus * share, self.channels * constants.tree_ll128_most[self.cell])
        bus = np.where(self.graphs.is_plain_tree, bus * 0.85, bus)
        self.gbs[:, TREE, protocol] = bus / 2
        inside, between = self.hops(TREE, protocol)
        chain = self.links.n_ranks // self.links.domains - 1
        self.latency[:, TREE, protocol] = constants.base[TREE, protocol] + 2 * (chain * inside + self.depth * between)

    def add_collnet(self, protocol: int) -> None:
        """Add both kinds of CollNet, on the channels of the tree."""
        graphs = self.graphs
        others = self.links.n_ranks // self.links.domains - 1
        inside, between = self.hops(COLLNET_DIRECT, protocol)
        self.latency[:, COLLNET_DIRECT, protocol] = 2 * (np.minimum(1, others) * inside + others * 0.4) + between
        if protocol == SIMPLE and self.reduces_all:
            # All ranks need a NIC nearby to work at full speed.
            scarce = self.ppn / graphs.channels
            bus = graphs.channels * graphs.tree_inside / ((scarce + 1) / 2)
            self.gbs[:, COLLNET_DIRECT, SIMPLE] = bus * np.where(self.links.compute_capability >= 90, 0.85, 1) / 2
        elif protocol == SIMPLE:
            slower = np.minimum(graphs.tree_inside, 0.9 * graphs.tree_between)
            self.gbs[:, COLLNET_DIRECT, SIMPLE] = self.ppn * slower
        if self.reduces_all:
            inside, between = self.hops(COLLNET_CHAIN, protocol)
            self.latency[:, COLLNET_CHAIN, protocol] = 2 * others * inside + between
            if protocol == SIMPLE:
                self.gbs[:, COLLNET_CHAIN, SIMPLE] = graphs.channels * graphs.tree_inside / 2

    def add_nvls(self) -> None:
        """Add the reductions inside NVSwitch, and for an all_reduce the tree of them."""
        graphs, heads = self.graphs, self.graphs.heads.astype(float)
        # One head holds a part of the data, and needs no link for its own part.
        head = graphs.nvls_inside * self.constants.nvls_efficiency[self.cell[0]] * (heads - 1) / np.maximum(heads, 1)
        head = head * 2 if self.reduces_all else head * (self.ppn - 1) / self.ppn
        factor = self.n / self.steps if self.reduces_all else np.ones(len(self.links))
        usable = heads >= 2
        inside, between = self.hops(NVLS, SIMPLE)
        bus = heads * np.where(self.several, np.minimum(head, graphs.nvls_between), head)
        self.gbs[:, NVLS, SIMPLE] = np.where(usable, bus * factor, 0)
        self.latency[:, NVLS, SIMPLE] = np.where(usable, inside + np.where(self.several, between, 0), 0)
        if self.reduces_all:
            inside, between = self.hops(NVLS_TREE, SIMPLE)
            outside = graphs.nvls_between * np.where(self.nodes <= 2, 2, 1)
            bus = heads * np.minimum(np.minimum(head, outside), self.constants.nvls_tree_most[self.cell])
            usable = usable & self.several
            self.gbs[:, NVLS_TREE, SIMPLE] = np.where(usable, bus * factor, 0)
            self.latency[:, NVLS_TREE, SIMPLE] = np.where(usable, inside + 2 * self.depth * between, 0)

    def add_pat(self) -> None:
        """Add PAT, which needs one rank per domain."""
        _, between = self.hops(PAT, SIMPLE)
        alone = self.several & (self.ppn == 1)
        self.gbs[:, PAT, SIMPLE] = np.where(alone, self.channels * self.tree_gbs * 0.75, 0)
        rounds = self.constants.base[PAT, SIMPLE] + self.depth * between / 3.5 + 2.8 * self.n
        self.latency[:, PAT, SIMPLE] = np.where(alone, rounds, 0)


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
