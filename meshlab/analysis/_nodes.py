"""The hosts of a run compared with each other: alone, on their paths to other hosts, and on each of their rails."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from meshlab.base._outcome import Outcome
from meshlab.base._units import format_size, format_time_us
from meshlab.frames._schema import is_pair
from meshlab.mesh._mesh import DeviceMesh

if TYPE_CHECKING:
    import pandas as pd

Floats = npt.NDArray[np.float64]

PATH = "send_recv"
"""The collective of a path between hosts: in both directions at once, so that a fault of either end delays it."""
_FEWEST = 3  # hosts: the only path of two hosts does not show which of them is slow
_MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class NodeVerdict:
    """The verdict on one host, with the times that led to it. NaN for what was not measured."""

    host: str
    ranks: tuple[int, ...]
    outcome: Outcome
    findings: tuple[str, ...]
    alone_us: float  # a collective of the ranks of this host only
    latency_us: float  # of the smallest message on the best path to another host
    transfer_us: float  # the same of the largest message


@dataclass(frozen=True, slots=True)
class NodeComparison:
    """The verdicts on all hosts, and the times between them."""

    verdicts: tuple[NodeVerdict, ...]
    hosts: tuple[str, ...] = ()
    times_us: tuple[tuple[float, ...], ...] = ()  # of the best path between every two hosts, at one size
    size_bytes: int = 0
    slow: tuple[tuple[int, int], ...] = ()  # the slow cells of the times
    text: str = ""  # the slow parts, in a few words

    def matrix(self) -> pd.DataFrame:
        """Return the times as a matrix for `meshlab.plots.matrix`, which marks the slow ones."""
        import pandas as pd

        frame = pd.DataFrame(list(self.times_us), index=list(self.hosts), columns=list(self.hosts))
        frame.index.name = frame.columns.name = "host"
        frame.attrs = {
            "value": "time_us",
            "collective": PATH,
            "size_bytes": self.size_bytes,
            "slow": list(self.slow),
            "verdict": self.text,
        }
        return frame

    def frame(self) -> pd.DataFrame:
        """Return a table with one row per host."""
        import pandas as pd

        names = ["host", "ranks", "outcome", "alone_us", "latency_us", "transfer_us", "findings"]
        return pd.DataFrame([[getattr(verdict, name) for name in names] for verdict in self.verdicts], columns=names)


@dataclass(frozen=True, slots=True)
class Limits:
    """How many times as long as on the other hosts a time may be, and the column of the times that are compared."""

    column: str
    latency: float
    transfer: float
    least_us: float  # a smaller difference of a host does not count
    least_of_paths_us: float  # the same of a rail or a path, of which there are more, so that chance has more effect
    suspicion: float = math.inf  # the factor of a first measurement, after which a second one decides, if it is smaller

    @property
    def of_first(self) -> Limits:
        """The limits of a first measurement."""
        return replace(self, latency=min(self.latency, self.suspicion), transfer=min(self.transfer, self.suspicion))

    def most(self, usual_us: float, factor: float) -> float:
        """Return the longest time of a host that is not slow if the usual one takes `usual_us`."""
        return max(factor * usual_us, usual_us + self.least_us)

    def most_of_paths(self, usual_us: float, factor: float) -> float:
        """Return the same for a rail or a path."""
        return max(factor * usual_us, usual_us + self.least_of_paths_us)


# On a CPU, ranks wait for cores for about a time slice, so that only the times of `without_waits` are comparable, and
# only large differences count.
CPU_LIMITS = Limits("min_us", 3.0, 3.0, 1000.0, 4000.0, 2.0)
# Paths through more switches take longer, but each host has a neighbour.
GPU_LIMITS = Limits("time_us", 1.5, 1.25, 5.0, 5.0)


@dataclass(frozen=True, slots=True)
class SlowPart:
    """A host, one of its rails, or a path between two hosts, which is slower than the others."""

    hosts: tuple[str, ...]  # two for a path
    rail: int | None = None  # the index of the ranks on their hosts, if only one rail is slow

    @property
    def is_host(self) -> bool:
        """Whether the whole host is slow, rather than one rail or path."""
        return len(self.hosts) == 1 and self.rail is None

    def __str__(self) -> str:
        rail = "" if self.rail is None else f"rail {self.rail} of "
        return rail + " ↔ ".join(self.hosts)


@dataclass(frozen=True)
class Paths:
    """The times between hosts at one message size: µs of shape (rails, hosts, hosts), NaN if not measured."""

    size_bytes: int
    hosts: tuple[str, ...]
    times: Floats
    factor: float
    limits: Limits

    @property
    def best(self) -> Floats:
        """The time of the best rail between every two hosts, of shape (hosts, hosts)."""
        return _least(self.times, 0)

    @property
    def of_host(self) -> Floats:
        """The time of the best path of each host: slow only if all its paths are."""
        return _least(self.best, 1)

    @property
    def reference(self) -> float:
        """The usual time of the best path of a host."""
        return _lower_median(self.of_host)

    @property
    def most(self) -> float:
        """The longest time that is not slow."""
        return self.limits.most(self.reference, self.factor)

    def fastest(self, other: Paths) -> Paths:
        """Return the shorter times of two measurements, in which waits for a core are rarer than in each of them."""
        return replace(self, times=np.fmin(self.times, other.times))

    def slow_parts(self) -> dict[SlowPart, float]:
        """Return the slow hosts, and the slow rails and paths of the others, each with its time."""
        most = self.most
        parts: dict[SlowPart, float] = {}
        is_slow = (self.of_host > most) & (len(self.hosts) >= _FEWEST)
        parts |= {SlowPart((self.hosts[h],)): float(self.of_host[h]) for h in np.flatnonzero(is_slow)}
        is_fine = ~is_slow[:, None] & ~is_slow[None, :]
        # A rail of a host is slow if it is slow to every host whose rail is fine, which the fastest path shows.
        of_rail = _least(np.where(is_fine, self.times, np.nan), 2)
        most = self.limits.most_of_paths(self.reference, self.factor)
        slow_rails = (of_rail > most) & (len(self.times) > 1) & (len(self.hosts) >= _FEWEST)
        parts |= {SlowPart((self.hosts[h],), int(rail)): float(of_rail[rail, h]) for rail, h in np.argwhere(slow_rails)}
        others = np.where(slow_rails[:, :, None] | slow_rails[:, None, :] | ~is_fine, np.nan, self.times)
        # Of many paths, some take far longer than the fastest ones by chance, so that their middle decides.
        most = self.limits.most_of_paths(_lower_median(others), self.factor)
        with np.errstate(invalid="ignore"):
            slow_paths = [(rail, a, b) for rail, a, b in np.argwhere(others > most) if a < b]
        rails = {(a, b): [rail for rail, *ends in slow_paths if tuple(ends) == (a, b)] for _, a, b in slow_paths}
        for (a, b), of_path in rails.items():
            rail = int(of_path[0]) if len(of_path) == 1 and len(self.times) > 1 else None
            parts[SlowPart((self.hosts[a], self.hosts[b]), rail)] = float(np.nanmax(others[:, a, b]))
        return parts


def without_waits(results: pd.DataFrame, samples: pd.DataFrame) -> pd.DataFrame:
    """Return results whose `min_us` is the time of the faster rank of a pair in its fastest batch."""
    # A rank that leaves the barrier late, or waits for a core, is the slower one of its pair. But messages that are
    # late make both ranks slow in every batch, because each of them sends its next one when it has received one.
    times = samples[samples["status"].eq("ok") & ~samples["is_warmup"]]
    keys = ["launch", "step", "src_rank", "dst_rank"]
    fastest = times.groupby(keys)["time_us"].min().rename("fastest_us").reset_index()
    fastest_us = results[keys].merge(fastest, on=keys, how="left")["fastest_us"].to_numpy()
    return results.assign(min_us=np.where(np.isnan(fastest_us), results["min_us"], fastest_us))


def paths_between(
    results: pd.DataFrame, hosts: Sequence[str], local_ranks: Sequence[int], limits: Limits
) -> list[Paths]:
    """Return the times between hosts that pairs of ranks measured, by size. Pairs of different rails do not count."""
    rows = results[is_pair(results) & results["status"].eq("ok") & results["collective"].eq(PATH)]
    names = tuple(dict.fromkeys(hosts))
    index = {host: number for number, host in enumerate(names)}
    n_rails = max(local_ranks) + 1
    sizes = sorted(int(size) for size in rows["size_bytes"].dropna().unique())
    by_size = []
    for size in sizes:
        times = np.full((n_rails, len(names), len(names)), np.nan)
        of_size = rows[rows["size_bytes"] == size]
        for a, b, time_us in zip(of_size["src_rank"], of_size["dst_rank"], of_size[limits.column], strict=True):
            rail, first, second = local_ranks[a], index[hosts[a]], index[hosts[b]]
            if first != second and rail == local_ranks[b]:
                time = np.fmin(times[rail, first, second], float(time_us))
                times[rail, first, second] = times[rail, second, first] = time
        factor = limits.latency if size == sizes[0] and len(sizes) > 1 else limits.transfer
        by_size.append(Paths(size, names, times, factor, limits))
    return [paths for paths in by_size if np.isfinite(paths.times).any()]


def slow_parts(paths: Sequence[Paths]) -> dict[SlowPart, list[tuple[Paths, float]]]:
    """Return the parts that are slow at any size, with the sizes and their times. Parts of a slow host are omitted."""
    parts: dict[SlowPart, list[tuple[Paths, float]]] = {}
    for of_size in paths:
        for part, time_us in of_size.slow_parts().items():
            parts.setdefault(part, []).append((of_size, time_us))
    slow_hosts = {part.hosts[0] for part in parts if part.is_host}
    return {part: times for part, times in parts.items() if part.is_host or slow_hosts.isdisjoint(part.hosts)}


def describe_slowness(part: SlowPart, times: Sequence[tuple[Paths, float]]) -> str:
    """Describe how slow a part is, at the size at which it is the slowest."""
    paths, time_us = max(times, key=lambda item: item[1] / item[0].reference)
    others = " to every other host" if part.is_host else ""
    usual = f"{time_us / paths.reference:.3g} times as long as elsewhere ({format_time_us(paths.reference)})"
    return f"{format_size(paths.size_bytes)} messages{others} take {format_time_us(time_us)}, {usual}"


def times_alone(results: pd.DataFrame, mesh: DeviceMesh, hosts: Sequence[str], limits: Limits) -> dict[str, float]:
    """Return the time of the largest collective that the ranks of each host measured among themselves."""
    times: dict[str, dict[str, float]] = {}
    rows = results[~is_pair(results) & results["status"].eq("ok")].sort_values("size_bytes")
    for axis in rows["axis"].dropna().unique():
        if any(len({hosts[rank] for rank in group}) > 1 for group in mesh[str(axis)]):
            continue
        groups = {group.name: hosts[group.ranks[0]] for group in mesh[str(axis)] if len(group) > 1}
        of_axis = rows[rows["axis"] == axis]
        alone = of_axis[of_axis["grouping"] == "alone"]
        of_axis = alone if len(alone) else of_axis
        for group, time_us in zip(of_axis["group"], of_axis[limits.column], strict=True):
            if group in groups:
                times.setdefault(str(axis), {})[groups[group]] = float(time_us)
    return next((of_axis for of_axis in times.values() if len(of_axis) == len(set(hosts))), {})


def slow_alone(times: Mapping[str, float], limits: Limits) -> dict[str, float]:
    """Return the hosts whose own ranks take longer than those of the others, each with the ratio."""
    if len(times) < 2:
        return {}
    usual = _lower_median(np.array(list(times.values())))
    return {host: time_us / usual for host, time_us in times.items() if time_us > limits.most(usual, limits.transfer)}


def node_verdicts(
    hosts: Sequence[str], paths: Sequence[Paths], alone: Mapping[str, float], findings: Mapping[str, Sequence[str]]
) -> tuple[NodeVerdict, ...]:
    """Return the verdict on each host. Those with findings failed."""
    verdicts = []
    for number, host in enumerate(dict.fromkeys(hosts)):
        ranks = tuple(rank for rank, name in enumerate(hosts) if name == host)
        of_host = [float(of_size.of_host[number]) for of_size in paths]
        is_judged = bool(alone) or (len(set(hosts)) >= _FEWEST and bool(of_host))
        outcome: Outcome = "failed" if findings.get(host) else "passed" if is_judged else "not decided"
        first, last = (of_host[0], of_host[-1]) if of_host else (np.nan, np.nan)
        verdicts.append(
            NodeVerdict(host, ranks, outcome, tuple(findings.get(host, ())), alone.get(host, np.nan), first, last)
        )
    return tuple(verdicts)


def compare_nodes(
    verdicts: Sequence[NodeVerdict], paths: Sequence[Paths], parts: Mapping[SlowPart, Sequence[tuple[Paths, float]]]
) -> NodeComparison:
    """Return the verdicts with the times between the hosts, at the size at which a part is the slowest."""
    if not paths:
        return NodeComparison(tuple(verdicts))
    drawn = paths[-1]
    if parts:
        slowest = max(
            (item for times in parts.values() for item in times), key=lambda item: item[1] / item[0].reference
        )
        drawn = slowest[0]
    names = ", ".join(map(str, list(parts)[:_MOST_NAMED])) + (" …" if len(parts) > _MOST_NAMED else "")
    usual = format_time_us(drawn.reference)
    return NodeComparison(
        tuple(verdicts),
        drawn.hosts,
        tuple(map(tuple, drawn.best.tolist())),
        drawn.size_bytes,
        tuple((int(a), int(b)) for a, b in np.argwhere(drawn.best > drawn.most)) if parts else (),
        f"Slow: {names} (others {usual})" if parts else f"No host, rail or path is slow (best path {usual})",
    )


def _least(values: Floats, axis: int) -> Floats:
    """Return the minimum along an axis, NaN if there is none."""
    least = np.where(np.isnan(values), np.inf, values).min(axis=axis)
    return np.where(np.isinf(least), np.nan, least)


def _lower_median(values: Floats) -> float:
    """Return the middle value, the smaller of two: up to half of the hosts may be slow."""
    ordered = np.sort(values[np.isfinite(values)])
    return float(ordered[(len(ordered) - 1) // 2]) if len(ordered) else np.nan
