"""Compares a measured curve with published runs of the same machine, or, failing that, with the share of the network
that published runs on other machines reach.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from meshlab.analysis._measured_machine import RACK_GPUS, MeasuredMachine
from meshlab.base._collectives import COLLECTIVES
from meshlab.prediction._predictions import BOUND_FROM
from meshlab.prediction._published import PublishedCurve, published_curves

Word = Literal["faster than published", "normal", "slow", "suspiciously slow"]
_SLOW: tuple[Word, ...] = ("slow", "suspiciously slow")
Basis = Literal["machine", "hosts", "network"]
Floats = npt.NDArray[np.float64]

_AGREEMENT = 1.4
"""Runs agree at a size if the fastest has at most this many times the bandwidth of the slowest."""

# The limits were chosen on 22 curves whose source calls them normal or slow, each without its own source: the slow ones
# reach at most 25 % of other runs, and the normal ones at least 82 %.
_NORMAL_FROM = 0.8  # share of the lowest published run
_SLOW_BELOW = {"several": 0.7, "single": 0.6, "network": 0.5, "other collectives": 0.35, "many hosts": 0.25}
_MANY_HOSTS = 32  # from here on, networks differ more than hosts
_SUSPICIOUS_BELOW = 0.1  # a tenth is what is left if traffic takes another way, such as TCP sockets
_FASTER_FROM = 1.15  # share of the highest published run

_FLAT_FROM = 256 << 20  # from here on, bandwidth grows so little that sizes within `_NEAR` are compared
_NEAR = 16
_GAP = 8  # the largest factor between two sizes of a curve between which its time is interpolated
_FEWEST = 3  # sources of other machines
_SAME_RUN = 0.7  # share of the sizes with the same time from which two curves are the same measurement

# GPUs with the same NVLink.
_KIN = ({"H100", "H200", "H20"}, {"B200", "B300"}, {"GB200", "GB300"})
_FACTOR_OF_HOSTS = 4


@dataclass(frozen=True, slots=True)
class PublishedRun:
    """A published run at the compared size."""

    curve: PublishedCurve
    size_bytes: int  # the nearest size of the run
    busbw_gbs: float
    nic_share: float  # busbw as a share of the line rate of the NICs, NaN on one host


@dataclass(frozen=True, slots=True)
class PublishedComparison:
    """A measured bandwidth beside published ones. Without a word, `reason` is the end of a sentence."""

    word: Word | None
    size_bytes: int
    busbw_gbs: float
    basis: Basis | None = None
    runs: tuple[PublishedRun, ...] = ()
    reason: str = ""
    is_missing: bool = False  # the reason is a missing fact
    assumed: str = ""  # NICs that the source does not state
    is_only_network: bool = False  # no other NICs are known for such hosts
    nic_limit_gbs: float = math.nan  # bandwidth at the line rate of the NICs, if other machines are compared

    @property
    def values(self) -> tuple[float, ...]:
        """The published bandwidths in GB/s, those of other machines at the line rate of these NICs."""
        if self.basis == "network":
            return tuple(run.nic_share * self.nic_limit_gbs for run in self.runs)
        return tuple(run.busbw_gbs for run in self.runs)

    @property
    def low(self) -> float:
        """The lowest published bandwidth in GB/s, of other machines that of the lowest quarter."""
        if self.basis == "network":
            return float(np.quantile(self.values, 0.25))
        return min(self.values, default=math.nan)

    @property
    def high(self) -> float:
        """The highest published bandwidth in GB/s."""
        return max(self.values, default=math.nan)

    @property
    def median(self) -> float:
        """The median of the published bandwidths in GB/s."""
        return float(np.median(self.values)) if self.runs else math.nan


@dataclass(frozen=True)
class MeasuredCurve:
    """Bandwidths of one collective by size."""

    collective: str
    n_ranks: int
    in_place: bool
    size_bytes: npt.NDArray[np.int64]  # ascending
    time_us: Floats
    busbw_gbs: Floats


def compare_with_published(
    measured: MeasuredCurve,
    machine: MeasuredMachine,
    *,
    leave_out: Collection[str] = (),
    curves: Iterable[PublishedCurve] | None = None,
) -> PublishedComparison:
    """Compare a measured curve with published ones at the largest size at which these agree."""
    largest = int(measured.size_bytes[-1]), float(measured.busbw_gbs[-1])
    if largest[0] < BOUND_FROM:
        return PublishedComparison(None, *largest, reason="no size is 16 MiB or more, and latencies differ too much")
    library = list(published_curves() if curves is None else curves)
    left_out = {*leave_out, *_sources_of_itself(measured, library)}
    usable = _usable(measured, left_out, library)
    undecided = None
    alike: dict[Basis, list[PublishedCurve]] = {
        "machine": [curve for curve in usable if _is_same_machine(curve, measured, machine)],
        "hosts": [curve for curve in usable if _has_other_hosts(curve, measured, machine)],
    }
    for basis, runs in alike.items():
        if runs and (comparison := _at_largest_agreeing(measured, runs, basis)) is not None:
            if comparison.word is not None:
                return comparison
            undecided = undecided or comparison
    if undecided is not None:
        return undecided
    if machine.has_network and (comparison := _by_network(measured, machine, left_out, library)) is not None:
        return comparison
    return PublishedComparison(None, *largest, reason=_why_none(measured, machine))


def compare_on_every_network(
    measured: MeasuredCurve, machine: MeasuredMachine, *, leave_out: Collection[str] = ()
) -> PublishedComparison | None:
    """Compare a measurement whose NICs are unknown with every network of such hosts. None if these do not agree."""
    networks = machine.known_networks()
    comparisons = [compare_with_published(measured, network, leave_out=leave_out) for network in networks]
    words = {comparison.word for comparison in comparisons}
    if len(comparisons) == 1:
        return replace(comparisons[0], assumed=networks[0].nics, is_only_network=True)
    if not comparisons or None in words:
        return None
    if not (words <= {"normal", "faster than published"} or words <= set(_SLOW)):
        return None
    # The fastest network shows that a fast measurement is normal, and the slowest one that a slow measurement is slow.
    chosen = 0 if words <= set(_SLOW) else -1
    return replace(comparisons[chosen], assumed=networks[chosen].nics)


def _why_none(measured: MeasuredCurve, machine: MeasuredMachine) -> str:
    return f"no published run has {measured.collective} on {machine.title}"


# -- the runs to compare with ------------------------------------------------------------------------------------------


def _usable(
    measured: MeasuredCurve, left_out: Collection[str], curves: Iterable[PublishedCurve]
) -> list[PublishedCurve]:
    """Return the runs of the collective that their source does not call slow, one placement of each."""
    by_run: dict[str, list[PublishedCurve]] = {}
    for curve in curves:
        if curve.collective == measured.collective and curve.verdict != "slow" and curve.source not in left_out:
            by_run.setdefault(curve.curve, []).append(curve)
    return [
        next((curve for curve in placements if curve.in_place == measured.in_place), placements[0])
        for placements in by_run.values()
    ]


def _sources_of_itself(measured: MeasuredCurve, curves: Iterable[PublishedCurve]) -> set[str]:
    """Return the sources that published the measurement itself, which may not confirm itself."""
    return {
        curve.source
        for curve in curves
        if curve.collective == measured.collective and _is_same_measurement(curve, measured)
    }


def _is_same_measurement(curve: PublishedCurve, measured: MeasuredCurve) -> bool:
    """Return whether a curve has the times of the measurement."""
    if curve.n_ranks != measured.n_ranks:
        return False
    _, ours, theirs = np.intersect1d(measured.size_bytes, curve.size_bytes, return_indices=True)
    if not len(ours):
        return False
    equal = np.isclose(measured.time_us[ours], curve.time_us[theirs], rtol=2e-3, atol=0.006)
    return bool(equal.mean() >= _SAME_RUN)


def _is_same_machine(curve: PublishedCurve, measured: MeasuredCurve, machine: MeasuredMachine) -> bool:
    return (
        curve.n_ranks == measured.n_ranks
        and curve.nodes == machine.nodes
        and is_kin(curve.gpu_model, machine.model)
        and (not machine.has_network or _has_same_nics(curve, machine))
    )


def _has_other_hosts(curve: PublishedCurve, measured: MeasuredCurve, machine: MeasuredMachine) -> bool:
    """Return whether a run has the same hosts in another number. Two hosts differ from more: trees have two links."""
    nodes = machine.nodes or 1
    return (
        nodes > 2
        and curve.nodes > 2
        and curve.nodes != nodes
        and max(curve.nodes, nodes) <= _FACTOR_OF_HOSTS * min(curve.nodes, nodes)
        and curve.gpus_per_node == machine.gpus_per_node
        and is_kin(curve.gpu_model, machine.model)
        and (not machine.has_network or _has_same_nics(curve, machine))
        and (not _is_exchange(measured.collective) or nodes <= curve.nodes)
    )


def _is_exchange(collective: str) -> bool:
    """Return whether all ranks send messages to all others."""
    facts = COLLECTIVES[collective]
    return set(facts.traffic) == {"p2p"} and not facts.peers and not facts.rooted


def is_kin(model: str, other: str | None) -> bool:
    """Return whether two models of GPUs have the same NVLink."""
    return model == other or any({model, other} <= kin for kin in _KIN)


def _has_same_nics(curve: PublishedCurve, machine: MeasuredMachine) -> bool:
    return math.isclose(curve.nic_gbps_per_node, machine.nic_gbps, rel_tol=0.02)


# -- the comparison ----------------------------------------------------------------------------------------------------


def busbw_near(curve: PublishedCurve, size: int) -> tuple[int, float] | None:
    """Return the size and the bandwidth of a curve at a size, interpolated between near sizes, or None."""
    sizes, times = curve.size_bytes, curve.time_us
    at = int(np.searchsorted(sizes, size))
    if at < len(sizes) and sizes[at] == size:
        return size, float(curve.busbw_gbs[at])
    if 0 < at < len(sizes) and sizes[at] <= _GAP * sizes[at - 1]:
        share = math.log(size / sizes[at - 1]) / math.log(sizes[at] / sizes[at - 1])
        time = math.exp((1 - share) * math.log(times[at - 1]) + share * math.log(times[at]))
        factor = float(curve.busbw_gbs[at] * times[at] / sizes[at])
        return size, factor * size / time
    nearest = int(np.abs(np.log(sizes / size)).argmin())
    ratio = max(sizes[nearest], size) / min(sizes[nearest], size)
    if min(size, int(sizes[nearest])) >= _FLAT_FROM and ratio <= _NEAR:
        return int(sizes[nearest]), float(curve.busbw_gbs[nearest])
    return None


def _runs_at(size: int, curves: Sequence[PublishedCurve]) -> tuple[PublishedRun, ...]:
    pairs = [(curve, near) for curve in curves if (near := busbw_near(curve, size)) is not None]
    return tuple(PublishedRun(curve, near[0], near[1], near[1] / _nic_limit(curve)) for curve, near in pairs)


def _at_largest_agreeing(
    measured: MeasuredCurve, curves: Sequence[PublishedCurve], basis: Basis
) -> PublishedComparison | None:
    """Compare at the largest size at which the runs agree. None if no run has a near size."""
    disagreeing = None
    for size, busbw in _from_largest(measured):
        if not (runs := _runs_at(size, curves)):
            continue
        values = [run.busbw_gbs for run in runs]
        if max(values) > _AGREEMENT * min(values):
            reason = f"{len(runs)} published runs disagree ({min(values):.3g} to {max(values):.3g} GB/s)"
            disagreeing = disagreeing or PublishedComparison(None, size, busbw, basis, runs, reason)
            continue
        sources = len({run.curve.source for run in runs})
        word = _word(busbw, min(values), max(values), _SLOW_BELOW["several" if sources > 1 else "single"])
        if word == "faster than published" and (sources < 2 or basis != "machine"):
            word = "normal"
        share = f"{100 * busbw / min(values):.0f} % of the lowest published run is neither normal nor clearly slow"
        return PublishedComparison(word, size, busbw, basis, runs, "" if word else share)
    return disagreeing


def _by_network(
    measured: MeasuredCurve, machine: MeasuredMachine, leave_out: Collection[str], curves: Sequence[PublishedCurve]
) -> PublishedComparison | None:
    """Compare the share of the line rate of the NICs with that of other machines, of the lowest quarter of the runs.

    If fewer than three sources have the collective on as many hosts, those of other collectives are used as well.
    """
    nodes, per_node = machine.nodes or 1, machine.gpus_per_node or 1
    limit = _limit(measured.collective, machine.nic_gbps, nodes, per_node)
    others = [curve for curve in curves if _uses_network(curve) and curve.source not in leave_out]
    alike = [
        curve for curve in others if curve.collective == measured.collective and (curve.nodes == 2) == (nodes == 2)
    ]
    if machine.is_rack_gpu:  # NVLink carries most of its traffic
        return None
    for chosen, key in ((alike, "network"), (others, "other collectives")):
        slow_below = _SLOW_BELOW["many hosts" if nodes > _MANY_HOSTS else key]
        for size, busbw in _from_largest(measured):
            runs = _best_of_sources(_runs_at(size, chosen))
            if len({run.curve.source for run in runs}) < _FEWEST:
                continue
            lowest = float(np.quantile([run.nic_share for run in runs], 0.25)) * limit
            word = _word(busbw, lowest, math.inf, slow_below)
            share = f"{100 * busbw / limit:.0f} % of the line rate of its NICs is neither normal nor clearly slow"
            return PublishedComparison(word, size, busbw, "network", runs, "" if word else share, nic_limit_gbs=limit)
    return None


def _uses_network(curve: PublishedCurve) -> bool:
    return (
        curve.nodes > 1
        and curve.verdict != "slow"
        and math.isfinite(curve.nic_gbps_per_node)
        and curve.gpu_model not in RACK_GPUS  # whose hosts are joined by NVLink
    )


def _best_of_sources(runs: Iterable[PublishedRun]) -> tuple[PublishedRun, ...]:
    """Return the best run of each source, collective and kind of machine: a long list must not outweigh others."""
    best: dict[tuple[str, str, int, float], PublishedRun] = {}
    for run in runs:
        curve = run.curve
        key = (curve.source, curve.collective, curve.gpus_per_node, curve.nic_gbps_per_node)
        if key not in best or run.nic_share > best[key].nic_share:
            best[key] = run
    return tuple(best.values())


def _from_largest(measured: MeasuredCurve) -> list[tuple[int, float]]:
    pairs = zip(measured.size_bytes.tolist(), measured.busbw_gbs.tolist(), strict=True)
    return [(size, busbw) for size, busbw in reversed(list(pairs)) if size >= BOUND_FROM]


def _word(busbw: float, lowest: float, highest: float, slow_below: float) -> Word | None:
    if busbw >= _FASTER_FROM * highest:
        return "faster than published"
    if busbw >= _NORMAL_FROM * lowest:
        return "normal"
    if busbw < slow_below * lowest:
        return "suspiciously slow" if busbw < _SUSPICIOUS_BELOW * lowest else "slow"
    return None


def _nic_limit(curve: PublishedCurve) -> float:
    return _limit(curve.collective, curve.nic_gbps_per_node, curve.nodes, curve.gpus_per_node)


def _limit(collective: str, nic_gbps: float, nodes: int, per_node: int) -> float:
    """Return the bus bandwidth at the line rate of the NICs of a host in GB/s, NaN on one host."""
    if nodes < 2:
        return math.nan
    rate, ranks = nic_gbps / 8, nodes * per_node
    if _is_exchange(collective):  # each rank sends (n - per node) / n of its bytes through its share of the NICs
        return rate / per_node * (ranks - 1) / (ranks - per_node)
    return rate / per_node if COLLECTIVES[collective].peers else rate
