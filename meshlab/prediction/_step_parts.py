"""Parts of a training step of many layouts: computation, bubble and exposed communication, as arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshlab.base._units import THIN, format_bandwidth, format_number, format_range
from meshlab.prediction._candidates import WeakestDevice
from meshlab.prediction._compute_time import ComputeTime
from meshlab.prediction._costs import prices
from meshlab.prediction._group_links import GroupLinks
from meshlab.prediction._job import Job
from meshlab.prediction._popularity import exchange_imbalance, host_limit
from meshlab.prediction._tuner import NcclSettings
from meshlab.prediction._volumes import Degrees, Exchange, Sizes, program
from meshlab.topology.model._cluster import Cluster
from meshlab.topology.model._levels import Floats

COMPONENTS = ("tp", "cp", "ep", "pp", "dp")
"""The axes into which exposed communication is split. ``dp`` includes the reductions over dp and cp."""

COMPONENT_OF: Mapping[str, str] = {name: name for name in ("tp", "cp", "ep", "pp")} | {
    "etp": "ep", "data": "dp", "expert_data": "dp", "replicas": "dp",
}  # fmt: skip
"""The component of the communication of every role."""

CAVEAT = "Step times are not validated until a rehearsal on that machine."


@dataclass(frozen=True, eq=False)
class StepParts:
    """Seconds per step of k layouts. Exposed communication has the shape (2, components, k): low and high end."""

    compute: Floats
    bubble: Floats
    exposed: Floats
    hardware: WeakestDevice

    def range(self) -> Floats:
        """Return the range of the time of a step, of shape (2, k)."""
        if self.hardware.utilisation is None:
            factor = self.hardware.range.factor
            return np.asarray(np.stack([self.expected() / factor, self.expected() * factor]))
        low, high = self.hardware.utilisation
        middle = (low + high) / 2
        work = self.compute + self.bubble
        return np.asarray(np.stack([work * middle / high, work * middle / low]) + self.exposed.sum(axis=1))

    def expected(self) -> Floats:
        """Return the expected time of a step, of shape (k,)."""
        exposed = _expected(self.exposed, self.hardware.exposed_share)
        return np.asarray(self.compute + self.bubble + exposed.sum(axis=0))

    def ends(self) -> Floats:
        """Return the time of a step if the schedule hides what it can, and nothing, of shape (2, k)."""
        return np.asarray(self.compute + self.bubble + self.exposed.sum(axis=1))


@dataclass(frozen=True, eq=False, slots=True)
class PricedExchange:
    """A communication of k layouts with its price. Its seconds per step are `hidden_end` to `open_end`."""

    exchange: Exchange
    seconds: Floats  # of one call
    calls: Any  # per step
    cover: Any  # seconds of one call that may be hidden
    rows: Sizes  # the signature of the slowest group

    @property
    def component(self) -> str:
        """The axis to which the exposed time belongs."""
        return COMPONENT_OF[self.exchange.role]

    @property
    def open_end(self) -> Floats:
        """Seconds per step if nothing is hidden."""
        return np.asarray(self.seconds * self.calls)

    @property
    def hidden_end(self) -> Floats:
        """Seconds per step if the schedule hides all that it can hide."""
        return np.asarray(np.maximum(self.seconds - self.cover, 0) * self.calls)


def priced_exchanges(
    job: Job,
    d: Degrees,
    which: Sizes,
    links: GroupLinks,
    rows: Mapping[str, Sizes],
    *,
    compute: ComputeTime,
    settings: NcclSettings,
) -> Iterator[PricedExchange]:
    """Price the communication of k layouts.

    Volumes depend on the degrees only (`which` is their index), links also on the order of the axes. `rows` has the
    signature of the groups of every role and layout, or an array of shape (signatures, k), of which the slowest counts.
    """
    m, idle = d.micro_batches(job), d.bubble(job)
    of_kind: dict[tuple[str, str], Any] = {}
    seen: dict[tuple[str, str, str, bytes], tuple[Floats, Sizes]] = {}
    for block in program(job, d):
        for call in block.items:
            if not isinstance(call, Exchange) or call.role not in rows:
                continue
            key = (call.role, call.collective, call.dtype, call.size.tobytes())
            if key not in seen:
                kind = (call.collective, call.dtype)
                if kind not in of_kind:
                    of_kind[kind] = prices(links, call.collective, dtype=call.dtype, settings=settings)
                row = rows[call.role]
                size = call.size[which]
                if call.role == "ep":
                    size = size * _sent_copies(links, row, job)
                time = of_kind[kind].time_us(row, size) * 1e-6
                if time.ndim == 2:
                    slowest = time.argmax(axis=0)
                    time, row = time.max(axis=0), row[slowest, np.arange(row.shape[1])]
                seen[key] = time, row
            time, row = seen[key]
            # Stages also communicate while the pipeline fills and drains.
            calls = block.repeats * call.times * (1.0 if call.once else m * (1 + idle))
            speed = compute.attention_speed if call.role == "cp" else compute.speed
            cover = (call.cover / speed)[which] if call.overlaps != "nothing" else 0.0
            if call.role == "tp" and call.overlaps == "nothing" and job.has_async_tp:
                cover = compute.product[which]
            if call.role == "ep" and job.overlap_experts is None:
                cover = np.maximum(compute.layer[which] / 4, cover)  # the four exchanges of a layer share it
            yield PricedExchange(call, time, calls[which], cover, row)


def _sent_copies(links: GroupLinks, row: Sizes, job: Job) -> Floats:
    """Return the share of a token's copies that are sent if every host, or rank inside NVLink, receives it once.

    With a skew, it is the part of the busiest host or rank, relative to the mean share.
    """
    domains = links.domains[row].astype(float)
    places = np.where(domains > 1, domains, links.n_ranks[row])
    if job.expert_hosts is not None:
        limit = host_limit(job.expert_hosts, job.top_k, domains, job.experts)
        places = np.where(domains > 1, np.minimum(domains, limit), places)
    # The experts of a token are spread evenly, so a place has none of them with the probability (1 - 1 / places)^k.
    copies = np.asarray(places * (1 - (1 - 1 / places) ** job.top_k) / job.top_k)
    return copies * exchange_imbalance(job, links.n_ranks[row], links.domains[row])


def step_parts(
    job: Job,
    hardware: WeakestDevice,
    d: Degrees,
    which: Sizes,
    calls: Iterator[PricedExchange],
    compute: ComputeTime,
) -> StepParts:
    """Return the parts of a step of k layouts from their computation and their priced communication."""
    exposed = np.zeros((2, len(COMPONENTS), len(which)))
    for call in calls:
        part = exposed[:, COMPONENTS.index(call.component)]
        part[0] += call.hidden_end
        part[1] += call.open_end
    seconds, launches = compute.seconds[which], compute.launches[which]
    # The host launches kernels ahead of the GPU. If it needs longer, the GPU waits for it.
    waits = np.maximum(launches - seconds - _expected(exposed, hardware.exposed_share).sum(axis=0), 0.0)
    stage = seconds + waits
    return StepParts(stage + compute.ending[which], stage * d.bubble(job)[which], exposed, hardware)


def _expected(exposed: Floats, share: float) -> Floats:
    """Return the expected communication between both ends: a schedule hides most of what it can hide."""
    return np.asarray(exposed[0] + share * (exposed[1] - exposed[0]))


def links_text(links: GroupLinks, row: int, cluster: Cluster) -> str:
    """Describe the links of the groups of a signature."""
    n, domains, per_domain = int(links.n_ranks[row]), int(links.domains[row]), int(links.ranks_per_domain[row])
    if domains == 1:
        kind = "NVLink" if links.inner_is_nvlink[row] else "PCIe"
        return f"{n} ranks inside {kind}, {format_bandwidth(float(links.inner_gbs[row]))}"
    where = "hosts" if cluster.nvlink_of_node is None else "NVLink domains"
    nics = int(links.nics[row])
    shared = float(links.groups_per_nic[row])
    share = ""
    if shared > 1 and not shared.is_integer():  # a group that uses several NICs sends a part over each
        share = f"{', each' * (nics > 1)} with the traffic of {shared:.3g} groups"
    elif shared > 1:
        share = f", shared with {shared - 1:.0f} other group{'s' * (shared != 2)}"
    text = (
        f"{n} ranks on {domains} {where}, {per_domain} each: {nics} NIC{'s' * (nics != 1)}{share}, "
        f"{format_bandwidth(float(links.network_gbs[row]))}"
    )
    if links.taper[row] > 1:
        text += f", oversubscribed 1:{links.taper[row]:g}, {format_bandwidth(float(links.uplink_gbs[row]))} per hop"
    return text


def seconds_text(value: float) -> str:
    """Return a time in s or ms."""
    return f"{format_number(value)}{THIN}s" if value >= 1 else f"{format_number(1e3 * value)}{THIN}ms"


def range_text(low: float, high: float) -> str:
    """Return a range of times."""
    return format_range(seconds_text(low), seconds_text(high))
