"""Cost of collectives: NCCL's choice by its own model, priced with the bandwidth that the group really has.

NCCL assumes that a communicator is alone on its NICs, and chooses the fastest algorithm and protocol by its tuner's
figures. The choice is then priced with the share of the NICs and of the network that the group has while all groups of
the axis run. Two laws replace NCCL's figures where these do not describe the hardware: the bytes of a reduction inside
NVSwitch, and point-to-point messages, for which NCCL has no model.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from meshlab.base._collectives import MODELLED
from meshlab.base._errors import MeshlabError, did_you_mean
from meshlab.comm._catalog import CATALOG
from meshlab.prediction._constants import CPUS, TunerConstants, constants_of, generation
from meshlab.prediction._group_links import GroupLinks
from meshlab.prediction._published_errors import GroupErrors, PublishedErrors, no_errors, published_errors
from meshlab.prediction._tuner import (
    LL,
    NVLS,
    NVLS_TREE,
    P2P,
    PAT,
    RING,
    SIMPLE,
    TREE,
    Graphs,
    NcclSettings,
    enabled,
    merged_nics,
    search_graphs,
    tune,
)
from meshlab.prediction._uneven import Uneven
from meshlab.topology.model._levels import Floats, Ints
from meshlab.topology.model._links import FABRICS

COLLECTIVES = MODELLED
"""The collectives that have a cost model."""

EXACT_FROM = 256 << 20
"""From this size on, in bytes, the formula alone is accurate enough to be drawn as a line."""

_DEFAULTS = NcclSettings()

# NVSwitch reduces: a GPU sends and receives S(1 + 1/n) bytes at this share of its NVLinks. The shares are from
# published all_reduce results of 4 to 8 H100 (480 GB/s) and 8 B200 (845 GB/s). Blackwell's limit in GB/s is the
# geometric mean of 72 GB200 (840) and 64 GB300 (930).
_SWITCH_SHARE = (0.0, 0.0, 0.835, 0.753)
_SWITCH_MOST = (np.inf, np.inf, np.inf, 884.0)

# How uncertain the practical rate of NICs is: NCCL assumes 0.96 of the line rate, and the fastest published runs with
# one or two GPUs per host reach 0.986 (xxrjun/nccl-tests-cluster).
_WIRE_MARGIN = 1.02

# How uncertain the shares of NVLink are: the fastest published runs exceed them by 0.3 % on Hopper. On Blackwell 8 GPUs
# show no limit but the links, so that the bound is theirs alone.
_SWITCH_MARGIN = 1.02

# Data moves through NVSwitch in waves: a chunk per head and channel (NVIDIA/nccl, NCCL_NVLS_CHUNKSIZE, and
# NVLS_NCHANNELS_SM90 and _SM100 of src/transport/nvls.cc).
_WAVE_BYTES = 128 << 10
_WAVE_CHANNELS = np.array([0, 0, 16, 32])
# Reducing and distributing overlap between waves, not within one, and so do the levels of a tree of domains. So a call
# lasts longer by this share of the smaller of its bytes and a wave, for every further stage. The share is a fit to
# published curves of 8 H100, 8 to 128 Blackwell, and 2 to 10 hosts.
_WAVE_SHARE = 0.8

# Share of the lesser of NVLink and network that a tree of NVSwitches reaches: 0.95 on 2 × 8 H200 and 2 × 8 B200. A tree
# over two hosts has it too (0.94 on A3 Mega), where NCCL's limit per channel is too low.
_TREE_SHARE = 0.95

# Shares of NCCL's link bandwidths that messages reach: over NVLink of 4 and 8 H100, 8 A100 and 64 GB300, over PCIe of
# two A100 (send_recv 0.90, all_reduce 0.83).
_NVLINK_SHARES = {"send_recv": 0.99, "all_to_all": 0.94}
_PCIE_SHARE = 0.87

# A message to a peer of the same domain uses few channels, whose number doubles while each has more than these bytes
# (NVIDIA/nccl src/enqueue.cc: 32 steps of NCCL_P2P_NVL_CHUNKSIZE).
_CHANNEL_BYTES = 16 << 20
_LINK_GBS = np.array([20.0, 20.0, 20.6, 40.1])  # of a channel, which fills one NVLink; see `NVLINK_GBS`

_CHANNEL_GBS = 14.0  # of a point-to-point message through the network (NVIDIA/nccl src/graph/paths.cc)
_PEERS_PER_BATCH = 8  # NCCL_MAX_DEV_WORK_P2P_PER_BATCH
_LL_BYTES = 16384  # per channel, the largest point-to-point message with LL (NVIDIA/nccl src/enqueue.cc)
# Of an all_to_all per peer in the domain: the host posts two messages. One process posts the 112 of 8 A100 in 87 µs,
# and those of 8 H20 in 58 µs (microsoft/superbenchmark; NVIDIA/nccl-tests).
_PEER_US = 1.2
_FAR_PEER_US = np.array([kind.peer_us for kind in FABRICS.values()])  # and per peer in others, by the network

_PLATEAU_BYTES = 64
_LOSSY = 1024.0  # what NCCL multiplies the time of long fp8 rings with, so that it prefers anything else


@dataclass(frozen=True, eq=False)
class Cost:
    """Predicted cost of a collective: k signatures by s sizes.

    Parameters
    ----------
    collective : str
        The collective.
    sizes : numpy.ndarray
        int64 of shape (s,): message sizes in bytes, as in nccl-tests.
    algorithm, protocol : numpy.ndarray
        int8 of shape (k, s): NCCL's choice, as an index into `ALGORITHMS` and `PROTOCOLS`.
    latency_us, transfer_us : numpy.ndarray
        float64 of shape (k, s): the part of the time that does not depend on the size, and the part that does.
    bus_factor : numpy.ndarray
        float64 of shape (k,): busbw / algbw.
    bound_gbs, bound_gbs_lo : numpy.ndarray
        float64 of shape (k,): the bus bandwidth that the hardware allows, at most and at least. They differ where the
        hardware's figure is uncertain. Infinite for groups of one rank.
    bound : tuple of str
        The hardware that sets the bound, such as ``"8 NICs, 1 of 8 groups"``.
    above_wire : tuple of str
        The reason why busbw may exceed the bandwidth of the wire. Empty if it cannot.
    version : str
        The NCCL version of the constants.
    errors : GroupErrors
        The errors of the formula that published runs show, which the times contain, and their spread.
    """

    collective: str
    sizes: npt.NDArray[np.int64]
    algorithm: npt.NDArray[np.int8]
    protocol: npt.NDArray[np.int8]
    latency_us: Floats
    transfer_us: Floats
    bus_factor: Floats
    bound_gbs: Floats
    bound_gbs_lo: Floats
    bound: tuple[str, ...]
    above_wire: tuple[str, ...]
    version: str
    errors: GroupErrors

    @property
    def time_us(self) -> Floats:
        """Predicted time in µs."""
        return self.latency_us + self.transfer_us

    @property
    def algbw_gbs(self) -> Floats:
        """Predicted algorithm bandwidth in GB/s, as in nccl-tests."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return self.sizes / self.time_us / 1e3

    @property
    def busbw_gbs(self) -> Floats:
        """Predicted bus bandwidth in GB/s, as in nccl-tests."""
        return self.algbw_gbs * self.bus_factor[:, None]


@dataclass(frozen=True, eq=False)
class Prices:
    """Latency and bandwidth of every algorithm and protocol of a collective on k signatures, to price any sizes."""

    algorithm: npt.NDArray[np.int8]  # (m,) combinations of algorithm and protocol, in the order in which NCCL compares
    protocol: npt.NDArray[np.int8]
    believed_us: Floats  # (m, k): latency by NCCL's belief
    believed_ns: Floats  # (m, k): ns per byte by NCCL's own model, infinite for algorithms that NCCL may not use
    believed_factor: Floats  # (m, k): factor of the believed time, by which NCCL avoids an algorithm
    latency_us: Floats  # (m, k): latency of the price
    transfer_ns: Floats  # (m, k): ns per byte of the price
    stretched: Floats | None  # (m, k, 25): factor of the time per byte by floor(log2(bytes / 64))
    plateau: Floats | None  # (m, k): factor of the latency for messages of `plateau_bytes` or more
    plateau_bytes: Floats  # (k,)
    ll_bytes: Floats  # (k,): the largest point-to-point message with LL, NaN for other collectives
    wave: Floats | None  # (m, k): bytes that do not overlap with others, see `_WAVE_SHARE`
    channel: Floats | None  # (2, k): channels at least, and ns per byte of one, of a message inside a domain
    least_ns: Floats  # (m, k): ns per byte that the links of the algorithm need at least, whatever published runs show
    offset_us: float  # latency that the timing mode adds
    errors: GroupErrors  # of the formula, as published runs show them
    stretch: Floats | None = None  # (k,): size of the even call that takes as long, relative to that of an uneven one

    def time_us(self, rows: npt.ArrayLike, sizes: npt.ArrayLike) -> Floats:
        """Return the time of a call of each size on the signature of each row, broadcast together."""
        _, latency, transfer = self.price(rows, sizes)
        return latency + transfer

    def price(self, rows: npt.ArrayLike, sizes: npt.ArrayLike) -> tuple[npt.NDArray[np.intp], Floats, Floats]:
        """Return NCCL's choice, as an index into `algorithm`, and the latency and transfer time in µs."""
        choice, _ = self.believe(rows, sizes)
        row, size = np.broadcast_arrays(np.asarray(rows, dtype=np.intp), np.asarray(sizes, dtype=np.float64))
        latency = self.latency_us[choice, row]
        transfer = self.transfer_ns[choice, row] * (size * 1e-3)
        if self.stretched is not None:
            transfer = transfer * self.stretched[choice, row, _octave(size)]
        if self.wave is not None:
            wave = self.wave[choice, row]
            transfer = transfer * (1 + wave / np.maximum(size + wave, 1))
        if self.channel is not None:
            least, ns = self.channel[0, row], self.channel[1, row]
            doubled = np.exp2(np.ceil(np.log2(np.maximum(size / least / _CHANNEL_BYTES, 1))))
            transfer = np.maximum(transfer, size * 1e-3 * ns / (least * doubled))
        if self.plateau is not None:
            latency = np.where(size >= self.plateau_bytes[row], latency * self.plateau[choice, row], latency)
        factor = np.exp(self.errors.log_factor(row, size if self.stretch is None else size * self.stretch[row]))
        latency, transfer = latency * factor, transfer * factor
        transfer = np.maximum(transfer, size * 1e-3 * self.least_ns[choice, row] - latency)
        # A group of one rank has no latency. No other call is faster than a part of its latency in any mode.
        latency = np.where(latency > 0, np.maximum(latency + self.offset_us, 0.25 * latency), 0.0)
        return choice, latency, transfer

    def believe(self, rows: npt.ArrayLike, sizes: npt.ArrayLike) -> tuple[npt.NDArray[np.intp], Floats]:
        """Return NCCL's choice, as an index into `algorithm`, and its expected time in µs, infinite for messages."""
        row, size = np.asarray(rows, dtype=np.intp), np.asarray(sizes, dtype=np.float64)
        shape = np.broadcast_shapes(row.shape, size.shape)
        best, choice = np.full(shape, np.inf), np.zeros(shape, dtype=np.intp)
        if self.algorithm[0] == P2P:
            return np.broadcast_to(np.where(size <= self.ll_bytes[row], 0, 1), shape), best
        stretched, plateau, kilobytes = self.stretched, self.plateau, size * 1e-3
        octave, is_late = _octave(size), size >= self.plateau_bytes[row]
        for j, (algorithm, protocol) in enumerate(zip(self.algorithm.tolist(), self.protocol.tolist(), strict=True)):
            latency, transfer = self.believed_us[j, row], self.believed_ns[j, row] * kilobytes
            if stretched is not None and algorithm in (TREE, NVLS_TREE):
                transfer = transfer * stretched[j, row, octave]
            if plateau is not None and (algorithm, protocol) == (RING, SIMPLE):
                latency = np.where(is_late, latency * plateau[j, row], latency)
            expected = (latency + transfer) * self.believed_factor[j, row]
            better = expected < best  # the first of equals, as NCCL
            best, choice = np.where(better, expected, best), np.where(better, j, choice)
        return choice, best


def prices(
    links: GroupLinks,
    collective: str,
    *,
    dtype: str = "float32",
    settings: NcclSettings = _DEFAULTS,
    evidence: PublishedErrors | None = None,
    uneven: Uneven | None = None,
) -> Prices:
    """Return latency and bandwidth of every algorithm and protocol of one collective, see `cost`."""
    _check_collective(collective)
    constants = constants_of(settings.version)
    # Published runs had NCCL's own choices, so that they show nothing about others.
    if evidence is None:
        evidence = published_errors() if settings.has_own_choices else no_errors()
    errors = evidence.on(links, collective)
    graphs = search_graphs(links, constants, nvls=settings.nvls)
    if collective in ("all_to_all", "send_recv"):
        return _messages(links, graphs, collective, constants, settings, errors, uneven)
    # NCCL chooses as if the group was alone on its NICs, but the time depends on the share that the group has.
    reported = settings.plugin_latency_us
    plugin = None if reported is None else np.where(links.domains > 1, reported, 0.0)
    believed = tune(links, graphs, collective, constants, network_latency_us=plugin)
    allowed = enabled(links, collective, settings, dtype)
    several = links.domains > 1
    network = np.where(several, np.minimum(links.network_gbs, links.uplink_gbs), np.inf)
    true = tune(links, _on_pcie(links, graphs.limited(network, several)), collective, constants)
    gbs = _real_gbs(links, true.gbs, collective, network)
    usable = allowed & (believed.gbs > 0)
    usable[links.n_ranks == 1] = False
    _check_choice(links, usable, settings)
    # Only combinations that some signature can use, in NCCL's order.
    algorithm, protocol = np.nonzero(usable.any(axis=0))
    if not len(algorithm):
        algorithm, protocol = np.array([RING]), np.array([SIMPLE])
    chosen = (slice(None), algorithm, protocol)
    with np.errstate(divide="ignore"):
        believed_ns = np.where(usable[chosen], 1 / believed.gbs[chosen], np.inf).T
        transfer_ns = np.where(usable[chosen], 1 / gbs[chosen], 0.0).T
    alone = links.n_ranks == 1
    factor = np.ones(believed_ns.shape)
    if dtype.startswith("float8"):
        factor[np.ix_(algorithm == RING, links.n_ranks > 8)] = _LOSSY
    plateau = None
    if collective == "all_reduce" and several.any():
        plateau = np.ones(believed_ns.shape)
        rate = np.where(links.compute_capability < 80, *constants.plateau)
        plateau[(algorithm == RING) & (protocol == SIMPLE)] = np.where(several, rate, 1.0)
    return Prices(
        algorithm=algorithm.astype(np.int8),
        protocol=protocol.astype(np.int8),
        believed_us=believed.latency_us[chosen].T,
        believed_ns=believed_ns,
        latency_us=np.where(alone, 0.0, true.latency_us[chosen].T),
        transfer_ns=transfer_ns,
        stretched=_stretched(links, constants, algorithm, protocol) if collective == "all_reduce" else None,
        plateau=plateau,
        plateau_bytes=_PLATEAU_BYTES * graphs.all_channels * links.n_ranks.astype(float),
        ll_bytes=np.full(len(links), np.nan),
        wave=_waves(links, graphs, algorithm),
        channel=None,
        least_ns=_least_ns(links, collective, network, gbs)[:, algorithm].T * usable[chosen].T,
        believed_factor=factor,
        offset_us=settings.offset_us,
        errors=errors,
    )


def cost(
    links: GroupLinks,
    collective: str,
    sizes: npt.ArrayLike,
    *,
    dtype: str = "float32",
    settings: NcclSettings = _DEFAULTS,
    evidence: PublishedErrors | None = None,
    uneven: Uneven | None = None,
) -> Cost:
    """Predict the time of a collective on every signature for every size.

    Parameters
    ----------
    links : GroupLinks
        The signatures.
    collective : str
        One of `COLLECTIVES`.
    sizes : array_like of int
        Message sizes in bytes, as in nccl-tests: the total for all_gather, reduce_scatter and all_to_all.
    dtype : str, default "float32"
        Data type. NCCL avoids long rings for fp8, which would lose precision, and NVSwitch cannot reduce all types.
    settings : NcclSettings, optional
        Settings of NCCL, and the timing mode.
    evidence : PublishedErrors, optional
        The published runs to learn from. By default all, or none if the settings change NCCL's choices.
    uneven : Uneven, optional
        How much longer the links are busy, if an all_to_all has an uneven traffic.

    Raises
    ------
    MeshlabError
        If the collective has no cost model.
        If the settings allow no algorithm that the collective has.

    Examples
    --------
    >>> import meshlab as ml
    >>> links, _ = GroupLinks.of(ml.place("dp=2, tp=8", ml.preset("dgx-h100", nodes=2)), "tp")
    >>> answer = cost(links, "all_reduce", [8, 1 << 30])
    >>> answer.time_us.round(1).tolist(), answer.busbw_gbs.round().tolist(), answer.bound
    ([[13.0, 4066.1]], [[0.0, 462.0]], ('NVSwitch reduction',))
    """
    of_links = prices(links, collective, dtype=dtype, settings=settings, evidence=evidence, uneven=uneven)
    size = np.atleast_1d(np.asarray(sizes, dtype=np.int64))
    choice, latency, transfer = of_links.price(np.arange(len(links))[:, None], size[None, :])
    factor = np.where(links.n_ranks > 1, _bus_factors(links, collective), np.nan)
    most, least, bound, above = _bound(links, collective, settings, dtype, uneven)
    return Cost(
        collective=collective,
        sizes=size,
        algorithm=of_links.algorithm[choice],
        protocol=of_links.protocol[choice],
        latency_us=latency,
        transfer_us=transfer,
        bus_factor=factor,
        bound_gbs=most,
        bound_gbs_lo=least,
        bound=bound,
        above_wire=above,
        version=settings.version,
        errors=of_links.errors,
    )


# -- parts of the prices -----------------------------------------------------------------------------------------------


def _check_collective(collective: str) -> None:
    if collective not in COLLECTIVES:
        raise MeshlabError(
            f"no cost model for the collective {collective!r}{did_you_mean(str(collective), COLLECTIVES)}",
            hint=f"choose one of {', '.join(COLLECTIVES)}",
        )


def _check_choice(links: GroupLinks, usable: npt.NDArray[np.bool_], settings: NcclSettings) -> None:
    """Raise if the settings leave a group without an algorithm."""
    left = usable.any(axis=(1, 2)) | (links.n_ranks == 1)
    if not left.all():
        asked = ", ".join(
            f"{name}={words!r}"
            for name, words in (("algorithms", settings.algorithms), ("protocols", settings.protocols))
            if words is not None
        )
        n = int(links.n_ranks[(~left).argmax()])
        raise MeshlabError(
            f"NCCL has no algorithm for groups of {n} ranks with {asked}",
            hint="allow ring and simple as well, which always work",
        )


def _real_gbs(links: GroupLinks, tuned_gbs: Floats, collective: str, network: Floats) -> Floats:
    """Return the algorithm bandwidths, with the limits of the hardware that NCCL's figures do not contain."""
    gbs, several = tuned_gbs.copy(), links.domains > 1
    if collective == "all_reduce":
        _, law = _switch_law(links)
        gbs[:, NVLS, SIMPLE] = np.where(several, np.minimum(gbs[:, NVLS, SIMPLE], law), law)
        tree = np.where(several, _TREE_SHARE * np.minimum(law, network / _tree_sends(links)), law)
        gbs[:, NVLS_TREE, SIMPLE] = np.where(gbs[:, NVLS_TREE, SIMPLE] > 0, tree, 0)
        plain = np.where(links.domains == 2, _TREE_SHARE * np.minimum(network, _chain_gbs(links)), 0.0)
        gbs[:, TREE, SIMPLE] = np.where(gbs[:, TREE, SIMPLE] > 0, np.maximum(gbs[:, TREE, SIMPLE], plain), 0.0)
        on_trees = [TREE, NVLS_TREE]
        gbs[:, on_trees] = np.minimum(gbs[:, on_trees], links.tree_uplink_gbs[:, None, None])
    elif collective in ("all_gather", "reduce_scatter"):
        gbs[:, PAT] = np.minimum(gbs[:, PAT], links.pat_uplink_gbs[:, None])
    return gbs


def _least_ns(links: GroupLinks, collective: str, network: Floats, gbs: Floats) -> Floats:
    """Return the ns per byte that the links of every algorithm need at least, of shape (k, algorithms)."""
    ppn = links.ranks_per_domain.astype(float)
    spared = np.where((links.domains > 1) & links.inner_is_nvlink, ppn / np.maximum(ppn - 1, 1), 1.0)
    ring = np.minimum(network, links.inner_gbs * spared)
    most = gbs.max(axis=2)
    most[:, RING] = ring / np.maximum(_bus_factors(links, collective), 0.5)
    if collective == "all_reduce":
        tree = np.minimum(network / _tree_sends(links), links.tree_uplink_gbs)
        law, _ = _switch_law(links)
        most[:, TREE] = np.minimum(tree, _chain_gbs(links))
        most[:, NVLS] = np.where(links.domains > 1, np.maximum(most[:, NVLS], law), law)
        most[:, NVLS_TREE] = np.minimum(tree, law)
    with np.errstate(divide="ignore"):
        return np.asarray(np.where(most > 0, 1 / most, 0.0))


def _chain_gbs(links: GroupLinks) -> Floats:
    """Return the algorithm bandwidth of a tree inside a domain, whose ranks pass the data on upwards and downwards."""
    ppn = links.ranks_per_domain.astype(float)
    return np.asarray(links.inner_gbs * ppn / np.maximum(2 * (ppn - 1), 1))


def _bus_factors(links: GroupLinks, collective: str) -> Floats:
    """Return busbw / algbw of every group."""
    sizes, number = np.unique(links.n_ranks, return_inverse=True)
    return np.array([CATALOG[collective].bus_factor(max(n, 2)) for n in sizes.tolist()])[number.ravel()]


def _tree_sends(links: GroupLinks) -> Floats:
    """Return how often a domain sends the data in both trees together: one in the middle sends them twice."""
    return np.asarray(np.array([1.0, 1.0, 1.5, 2.0])[np.minimum(links.domains, 4) - 1], dtype=np.float64)


def _octave(size: Floats) -> npt.NDArray[np.intp]:
    """Return floor(log2(size / 64)), between 0 and the last column of `Prices.stretched`."""
    octave: npt.NDArray[np.intp] = np.clip(np.frexp(size / 64)[1] - 1, 0, 24).astype(np.intp)
    return octave


def _stretched(
    links: GroupLinks, constants: TunerConstants, algorithm: npt.NDArray[np.intp], protocol: npt.NDArray[np.intp]
) -> Floats:
    """Return `Prices.stretched`: trees are slower than their bandwidth for medium sizes."""
    factors = np.ones((len(algorithm), len(links), 25))
    table = 1 / constants.tree_factor
    x86 = links.cpu != CPUS.index("other")
    on_switch = constants.nvls_tree_factor & x86 & (links.compute_capability >= 100)
    for j, (a, p) in enumerate(zip(algorithm.tolist(), protocol.tolist(), strict=True)):
        if a == TREE:
            factors[j, :, :23] = table[p, :23]
        elif a == NVLS_TREE:
            factors[j, :, :24] = np.where(on_switch[:, None], table[p], 1.0)
    return factors


def _waves(links: GroupLinks, graphs: Graphs, algorithm: npt.NDArray[np.intp]) -> Floats | None:
    """Return `Prices.wave`: bytes of a wave times the stages of the pipeline beyond the first."""
    on_switch = (algorithm == NVLS) | (algorithm == NVLS_TREE)
    if not on_switch.any():
        return None
    wave = _WAVE_SHARE * _WAVE_BYTES * graphs.heads * _WAVE_CHANNELS[generation(links.compute_capability)]
    # Up and down the tree of domains, and the distribution in the domain.
    stages = 1 + 2 * np.floor(np.log2(links.domains))
    return np.where(on_switch[:, None], np.where((algorithm == NVLS_TREE)[:, None], stages, 1) * wave, 0.0)


def _switch_law(links: GroupLinks) -> tuple[Floats, Floats]:
    """Return the algorithm bandwidth of an all_reduce inside NVSwitch, at most and usually."""
    gen = generation(links.compute_capability)
    n, heads = links.n_ranks.astype(float), links.ranks_per_domain.astype(float)
    with np.errstate(invalid="ignore", divide="ignore"):
        algbw = np.array(_SWITCH_SHARE)[gen] * links.inner_gbs * heads / (heads + 1)
        usual = np.minimum(algbw, np.array(_SWITCH_MOST)[gen] * n / (2 * np.maximum(n - 1, 1)))
    return np.where(links.is_switched, _SWITCH_MARGIN * algbw, 0.0), np.where(links.is_switched, usual, 0.0)


def _on_pcie(links: GroupLinks, graphs: Graphs) -> Graphs:
    """Return the channels with the practical bandwidth of PCIe where a domain has no NVLink."""
    slow = np.where((links.ranks_per_domain > 1) & ~links.inner_is_nvlink, _PCIE_SHARE, 1.0)
    is_single = links.domains == 1
    # Between domains, only a ring that is faster than PCIe is slower than believed.
    most = np.where(slow < 1, links.inner_gbs * slow / graphs.channels, np.inf)
    return replace(
        graphs,
        ring=np.where(is_single, graphs.ring * slow, np.minimum(graphs.ring, most)),
        tree_inside=graphs.tree_inside * slow,
        tree_between=graphs.tree_between * np.where(is_single, slow, 1.0),
    )


def _message_gbs(
    links: GroupLinks, collective: str, uneven: Uneven | None, *, is_bound: bool = False
) -> tuple[Floats, Floats, Floats]:
    """Return the algorithm bandwidth of an all_to_all or send_recv in GB/s: of a domain, its NICs, and an uplink."""
    n, ppn = links.n_ranks.astype(float), links.ranks_per_domain.astype(float)
    several = links.domains > 1
    share = np.where(links.inner_is_nvlink, 1.0 if is_bound else _NVLINK_SHARES[collective], _PCIE_SHARE)
    inner = np.where(ppn > 1, links.inner_gbs * share, np.inf)
    merged, _ = merged_nics(links)
    with np.errstate(divide="ignore", invalid="ignore"):
        if collective == "send_recv":
            # Without a switch, a message to one peer has the links to that peer only.
            inner = np.where(links.inner_is_nvlink & ~links.is_switched, inner / np.maximum(ppn - 1, 1), inner)
            # Only one rank of a domain sends out of it, through the NIC near it.
            out, uplink = links.network_gbs / merged, links.uplink_gbs
        else:
            inner = inner * n / (ppn - 1)
            out = links.exchange_gbs
            # Through an uplink, all ranks behind it send to all others.
            behind = links.uplink_ranks.astype(float)
            uplink = links.uplink_gbs / behind * n / np.maximum(n - behind, 1)
        if uneven is not None:
            inner, out, uplink = inner / uneven.inside, out / uneven.nics, uplink / uneven.uplinks
    return inner, np.where(several, out, np.inf), np.where(several, uplink, np.inf)


def _channels_per_peer(links: GroupLinks, graphs: Graphs) -> Ints:
    """Return the channels that a point-to-point message uses (NVIDIA/nccl src/graph/paths.cc)."""
    several = links.domains > 1
    most = _power_of_two(np.minimum(graphs.all_channels, 64))
    _, line = merged_nics(links)
    near = np.ceil(links.nics / np.maximum(links.ranks_per_domain, 1))
    enough = np.maximum(np.maximum(near, np.ceil(np.floor(line) / _CHANNEL_GBS)), 2)
    per_peer = np.where(several, _power_of_two(enough), most)
    # All peers of a rank must fit into one round.
    rounds = -(-links.n_ranks // _PEERS_PER_BATCH)
    fitting = np.exp2(np.floor(np.log2(np.maximum(most / rounds, 1))))
    per_peer = np.where(several, np.minimum(per_peer, fitting), per_peer)
    return np.minimum(per_peer, most).astype(np.int32)


def _least_channels(links: GroupLinks, channels: Ints) -> Floats:
    """Return `Prices.channel`: all peers of a rank fit into one round, so many ranks leave few channels to each."""
    least = np.exp2(np.floor(np.log2(np.maximum(channels / links.n_ranks, 1))))
    is_inside = (links.domains == 1) & links.inner_is_nvlink & links.is_switched
    ns = np.where(is_inside, 1 / _LINK_GBS[generation(links.compute_capability)], 0.0)
    return np.stack([least, ns])


def _power_of_two(number: npt.NDArray[np.generic]) -> Floats:
    """Return the smallest power of two that is not smaller."""
    power: Floats = np.exp2(np.ceil(np.log2(number.astype(float))))
    return power


def _messages(
    links: GroupLinks,
    graphs: Graphs,
    collective: str,
    constants: TunerConstants,
    settings: NcclSettings,
    errors: GroupErrors,
    uneven: Uneven | None,
) -> Prices:
    """Return the prices of point-to-point messages, which NCCL's tuner does not have."""
    several, alone = links.domains > 1, links.n_ranks == 1
    inner, nics, uplink = _message_gbs(links, collective, uneven)
    out = np.minimum(nics, uplink)
    channels = _channels_per_peer(links, graphs)
    if collective == "send_recv":
        inner = np.where(several, np.minimum(inner, channels * _CHANNEL_GBS), inner)
        out = np.where(several, np.minimum(out, channels * _CHANNEL_GBS), out)
        peers_us = np.zeros(len(links))
        parts = np.ones(len(links))
    else:
        near, far = links.ranks_per_domain - 1, links.n_ranks - links.ranks_per_domain
        peers_us = _PEER_US * near + np.where(several, _FAR_PEER_US[links.fabric], 0.0) * far
        parts = links.n_ranks.astype(float)
    gbs = np.minimum(inner, out)
    hop = np.where(several, 2, np.where(links.inner_is_nvlink, 0, 1))
    ll_most = constants.ll_most[generation(links.compute_capability), 0]
    latency, per_byte = [], []
    for protocol in (LL, SIMPLE):
        flush = 2 if protocol == SIMPLE else 1
        fixed = constants.base[P2P, protocol] + constants.hop[hop, P2P, protocol]
        latency.append(np.where(alone, 0.0, fixed + peers_us + flush * links.network_latency_us))
        # LL sends as many flags as data.
        rate = np.where(several, gbs / 2, np.minimum(gbs / 2, ll_most)) if protocol == LL else gbs
        per_byte.append(np.where(alone, 0.0, 1 / rate))
    return Prices(
        algorithm=np.array([P2P, P2P], dtype=np.int8),
        protocol=np.array([LL, SIMPLE], dtype=np.int8),
        believed_us=np.array(latency),
        believed_ns=np.array(per_byte),
        latency_us=np.array(latency),
        transfer_ns=np.array(per_byte),
        stretched=None,
        plateau=None,
        plateau_bytes=np.full(len(links), np.inf),
        ll_bytes=_LL_BYTES * channels * parts,
        wave=None,
        channel=_least_channels(links, channels) if collective == "send_recv" else None,
        least_ns=np.stack([1 / np.minimum.reduce(_message_gbs(links, collective, uneven, is_bound=True))] * 2) * ~alone,
        believed_factor=np.ones((2, len(links))),
        offset_us=settings.offset_us,
        errors=errors,
        stretch=None if uneven is None else np.minimum.reduce(_message_gbs(links, collective, None)) / gbs,
    )


# -- bounds ------------------------------------------------------------------------------------------------------------


def _bound(
    links: GroupLinks, collective: str, settings: NcclSettings, dtype: str, uneven: Uneven | None
) -> tuple[Floats, Floats, tuple[str, ...], tuple[str, ...]]:
    """Return the largest and the certain bound in GB/s of busbw, the part that sets it, and why it exceeds the wire."""
    n = links.n_ranks.astype(float)
    several = links.domains > 1
    network = np.where(several, np.minimum(links.network_gbs, links.uplink_gbs), np.inf)
    tapered = several & (links.uplink_gbs < links.network_gbs)
    # A ring that leaves the domain passes over the NVLinks of all ranks of the domain but one.
    spares = several & links.inner_is_nvlink
    passed = np.where(spares, links.ranks_per_domain / np.maximum(links.ranks_per_domain - 1, 1), 1.0)
    inner = least = links.inner_gbs * passed
    switch = np.zeros(len(links), dtype=bool)
    factor = np.ones(len(links))
    if collective in ("all_to_all", "send_recv"):
        inner, nics, uplink = _message_gbs(links, collective, uneven, is_bound=True)
        tapered, network = uplink < nics, np.minimum(nics, uplink)
        if collective == "all_to_all":
            others = np.maximum(n - 1, 1) / n
            inner, network = inner * others, network * others
        least = inner
    elif collective == "all_reduce":
        allowed = enabled(links, collective, settings, dtype)
        trees = allowed[:, TREE].any(axis=1) | allowed[:, NVLS_TREE].any(axis=1)
        on_switch = allowed[:, NVLS, SIMPLE] | (allowed[:, NVLS_TREE, SIMPLE])
        both_ways = 2 * (np.maximum(n, 2) - 1) / np.maximum(n, 2)
        sharp = several & allowed[:, NVLS, SIMPLE]
        # A tree sends S in each direction through a node, a ring almost 2 S. Three nodes are in between.
        factor = np.where(trees & (links.domains == 2), both_ways, np.where(trees & (links.domains == 3), 4 / 3, 1.0))
        factor = np.where(sharp, both_ways, factor)
        # Through all links of a domain, trees send no less than rings.
        allowed_gbs, usual_gbs = (both_ways * gbs for gbs in _switch_law(links))
        switch = on_switch & (allowed_gbs > inner) & (links.ranks_per_domain > 1)
        least = np.where(switch, np.maximum(usual_gbs, inner), inner)
        inner = np.where(switch, allowed_gbs, inner)
    network = network * factor
    outside = network < inner
    most, least = np.minimum(_WIRE_MARGIN * network, inner), np.minimum(network, least)
    most, least = (np.where(n == 1, np.inf, gbs) for gbs in (most, least))
    words, above = [], []
    for k in range(len(links)):
        words.append(_words(links, k, bool(outside[k]), bool(tapered[k]), bool(switch[k])))
        above.append(_why_above(links, k, float(factor[k]), bool(switch[k]), settings))
    return most, least, tuple(words), tuple(above)


def _words(links: GroupLinks, k: int, outside: bool, tapered: bool, switch: bool) -> str:
    """Return the part of the hardware that sets the bound."""
    if links.n_ranks[k] == 1:
        return "one rank"
    if not outside:
        return "NVSwitch reduction" if switch else "NVLink" if links.inner_is_nvlink[k] else "PCIe"
    if tapered:
        return f"taper 1:{links.taper[k]:g}"
    nics = int(links.nics[k])
    groups = round(nics * links.nic_gbs[k] / links.network_gbs[k])
    return f"{nics:,} NIC{'s' * (nics > 1)}" + (f", 1 of {groups} groups" if groups > 1 else "")


def _why_above(links: GroupLinks, k: int, factor: float, switch: bool, settings: NcclSettings) -> str:
    """Return why busbw may exceed the bandwidth of the wire, or an empty string."""
    if factor > 1 and settings.sharp:
        return "switches reduce between the nodes, so each node sends its data once, whereas busbw counts almost twice"
    if factor > 1:
        nodes = "two" if links.domains[k] == 2 else "three"
        return f"with {nodes} nodes a tree sends fewer bytes per link than a ring, by which busbw is defined"
    if switch and links.n_ranks[k] > 1:
        return "NVSwitch reduces, so each GPU sends S(1 + 1/n) bytes, whereas busbw counts 2S(n - 1)/n"
    return ""
