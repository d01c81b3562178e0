"""Routing: the tokens of a layer with experts, the traffic of their exchange, and a better placement of the experts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from meshlab.base import _markup as markup
from meshlab.base._errors import MeshError
from meshlab.base._forwarding import implementation
from meshlab.base._hints import Argument, Hint
from meshlab.base._units import format_number, format_size
from meshlab.comm._elements import find_dtype
from meshlab.mesh._axes import as_integer
from meshlab.mesh._mesh import DeviceMesh, MeshLike, as_mesh
from meshlab.mesh._traffic import Traffic
from meshlab.prediction._expert_placement import balanced_slots, contiguous_slots, rank_loads
from meshlab.prediction._job_layout import JobLayout
from meshlab.prediction._popularity import as_skew, expert_counts, host_limit, reached, selected_hosts, shares_of
from meshlab.topology.model._levels import HOST, NVLINK, Floats, Ints
from meshlab.topology.model._presets import ClusterLike
from meshlab.topology.placement._loads import Loads, link_loads
from meshlab.topology.placement._placement import Placement, as_placement, place

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from meshlab.prediction._job import Job

Copies = Literal["expert", "rank", "host"]
"""What receives one copy of a token: every expert, every rank with some of its experts, or every host."""

Call = Literal["dispatch", "combine"]
"""The exchange of tokens before and after the experts."""

_COPIES: tuple[Copies, ...] = ("expert", "rank", "host")
_RANKS_SHOWN = 16


@dataclass(frozen=True, eq=False, repr=False)
class Routing:
    """The expected tokens of one layer and micro-batch between the ranks of an expert group. See `Job.routing`.

    Parameters
    ----------
    job : Job
        The job.
    mesh : DeviceMesh
        The mesh with the axis `axis`: the mesh of the job, or its expert layout.
    axis : str
        The axis whose groups exchange tokens.
    slots : numpy.ndarray
        int32 of shape (ranks, slots): the experts of every rank of a group. Replicas have equal parts of the tokens.
    shares : numpy.ndarray
        float64 of shape (1 or ranks, experts): the share of every expert in the routed tokens of a rank.
    tokens : numpy.ndarray
        float64 of shape (ranks,): the tokens of every rank before they are routed.
    hosts : numpy.ndarray
        int32 of shape (ranks,): the host (NVLink domain) of every rank of the first group, 0 without a cluster.
    copies : {"expert", "rank", "host"}
        What receives one copy of a token. With ``"host"``, the rank at the same place of the other host receives it,
        and sends it to the ranks with the experts.
    placement : Placement or None
        The mesh on a cluster, None without a cluster.
    """

    job: Job
    mesh: DeviceMesh
    axis: str
    slots: Ints
    shares: Floats
    tokens: Floats
    hosts: Ints
    copies: Copies
    placement: Placement | None

    @property
    def n_ranks(self) -> int:
        """Number of ranks of a group."""
        return len(self.slots)

    @property
    def replicas(self) -> int:
        """Number of replicas beyond one of each expert."""
        return int(self.slots.size) - self.job.experts

    @cached_property
    def expert_tokens(self) -> Floats:
        """Tokens of every expert from all ranks of a group: float64 of shape (experts,)."""
        weighted = self.shares * self.tokens[:, None]  # a single row is that of all ranks
        return np.asarray(self.job.top_k * weighted.sum(axis=0))

    @cached_property
    def rank_tokens(self) -> Floats:
        """Tokens that the experts of every rank process, once for each of its experts: float64 of shape (ranks,)."""
        return rank_loads(self.expert_tokens, self.slots)

    @property
    def imbalance(self) -> float:
        """Tokens of the busiest rank relative to the mean. All other ranks wait for it."""
        return float(self.rank_tokens.max() / self.rank_tokens.mean())

    @cached_property
    def dispatch(self) -> Traffic:
        """The bytes between the ranks before the experts. Bytes that a rank passes on within its host count, too."""
        width = find_dtype(str(self.job.dispatch_dtype)).itemsize
        scales = 4 / 128 if width == 1 else 0  # a float32 per 128 elements, as in DeepEP
        return self._traffic("dispatch", self._copies_between, width + scales)

    @cached_property
    def combine(self) -> Traffic:
        """The bytes between the ranks after the experts, in the opposite direction."""
        return self._traffic("combine", self._copies_between.T, find_dtype(self.job.dtype).itemsize)

    def _traffic(self, name: str, copies: Floats, width: float) -> Traffic:
        array = np.rint(copies * (self.job.hidden * width))
        return Traffic.matrix(array, alignment_bytes=1).named(name)

    @cached_property
    def _copies_between(self) -> Floats:
        """Return the copies of tokens from rank to rank in the dispatch, of shape (ranks, ranks)."""
        n, k = self.n_ranks, self.job.top_k
        counts = np.bincount(self.slots.ravel(), minlength=self.job.experts)
        chances = k * self.shares[:, self.slots] / counts[self.slots]  # (1 or ranks, ranks, slots)
        if self.copies == "expert":
            return np.asarray(np.broadcast_to(chances.sum(axis=2), (n, n)) * self.tokens[:, None])
        of_host, selected = self._host_copies(counts)
        to_rank = np.broadcast_to(reached(chances, selected[:, self.hosts], k), (n, n)) * self.tokens[:, None]
        if self.copies == "rank":
            return np.asarray(to_rank)
        return _relayed(to_rank, np.broadcast_to(of_host, (n, of_host.shape[1])) * self.tokens[:, None], self.hosts)

    def _host_copies(self, counts: npt.NDArray[np.integer]) -> tuple[Floats, Floats]:
        """Return the chances that a token has experts on each host, and that it is selected: (1 or ranks, hosts)."""
        k, hosts = self.job.top_k, int(self.hosts.max()) + 1
        chances = []
        for host in range(hosts):
            experts, replicas = np.unique(self.slots[self.hosts == host], return_counts=True)
            chances.append(k * self.shares[:, experts] * (replicas / counts[experts]))
        load = np.stack([part.sum(axis=1) for part in chances], axis=1)
        selected = np.ones_like(load)
        if self.job.expert_hosts is not None and hosts > 1:
            least = np.stack([part.max(axis=1) for part in chances], axis=1)
            limit = float(host_limit(self.job.expert_hosts, k, hosts, self.job.experts))
            selected = selected_hosts(load, least, limit)
        reach = [reached(part, selected[:, host], k) for host, part in enumerate(chances)]
        return np.stack(reach, axis=1), selected

    @cached_property
    def host_copies(self) -> float:
        """Hosts that receive a token on average, also its own one. 1 without a cluster."""
        counts = np.bincount(self.slots.ravel(), minlength=self.job.experts)
        return float(np.average(self._host_copies(counts)[0].sum(axis=1), weights=self._weights))

    @property
    def _weights(self) -> Floats | None:
        return self.tokens if len(self.shares) > 1 else None

    def balanced(self, replicas: int = 0) -> Routing:
        """Return the routing with the experts at better places, and with replicas of the most popular ones.

        The search is greedy, like that of EPLB, and improves its result by exchanges. Without replicas, before and
        after, the largest load of a rank does not grow. If the job limits the hosts of a token (``expert_hosts``),
        experts stay on their host.

        Parameters
        ----------
        replicas : int, default 0
            Number of replicas beyond one of each expert. Together they must fill the ranks evenly.

        Raises
        ------
        MeshError
            If the replicas do not fill the ranks evenly, or are more than the slots for second copies.

        Examples
        --------
        >>> import meshlab as ml
        >>> routing = ml.Job.preset("deepseek-v3", skew=0.8).routing("ep=32")
        >>> [round(part.imbalance, 2) for part in (routing, routing.balanced(), routing.balanced(replicas=32))]
        [5.4, 3.23, 1.0]
        """
        number = as_integer(replicas)
        if number is None:
            raise MeshError(f"replicas must be an integer of at least 0, not {replicas!r}")
        domains: Sequence[int] | Ints = self.hosts if self.job.expert_hosts is not None else ()
        first = contiguous_slots(self.job.experts, self.n_ranks) if self.replicas else self.slots
        slots = balanced_slots(self.expert_tokens, first, number, domains)
        if number == self.replicas and rank_loads(self.expert_tokens, slots).max() > self.rank_tokens.max():
            return self
        return replace(self, slots=slots)

    def loads(self, call: Call = "dispatch") -> Loads:
        """Return the bytes and the time of every link while all groups of the axis exchange their tokens.

        Parameters
        ----------
        call : {"dispatch", "combine"}, default "dispatch"
            The exchange.

        Raises
        ------
        MeshError
            If the routing has no cluster, or the exchange is unknown.
        """
        if call not in ("dispatch", "combine"):
            raise MeshError(f"unknown exchange {call!r}", hint="choose one of dispatch, combine")
        if self.placement is None:
            raise MeshError(
                "a routing without a cluster has no links", hint=Hint("pass {} to routing()", Argument("cluster"))
            )
        return link_loads(self.placement, self.axis, traffic=getattr(self, call))

    def frame(self) -> pd.DataFrame:
        """Return a table with one row per rank of a group.

        Returns
        -------
        pandas.DataFrame
            ``rank`` within the group, ``host``, ``experts`` (number of its slots), ``tokens`` that they process,
            ``share`` (tokens relative to the mean), and ``sent_bytes``, ``received_bytes`` and ``network_bytes`` of the
            dispatch: to and from other ranks, and the larger of both directions to other hosts.
        """
        import pandas as pd

        between = self.dispatch.array - np.diag(self.dispatch.self_bytes)
        away = np.where(self.hosts[:, None] != self.hosts, between, 0)
        columns = {
            "rank": np.arange(self.n_ranks),
            "host": self.hosts,
            "experts": np.full(self.n_ranks, self.slots.shape[1]),
            "tokens": self.rank_tokens,
            "share": self.rank_tokens / self.rank_tokens.mean(),
            "sent_bytes": between.sum(axis=1),
            "received_bytes": between.sum(axis=0),
            "network_bytes": np.maximum(away.sum(axis=1), away.sum(axis=0)),
        }
        return pd.DataFrame(columns)

    def explain(self) -> str:
        """Describe the busiest rank, the exchange, and what a better placement would give, in sentences."""
        return "\n".join(self._sentences())

    def _sentences(self) -> list[str]:
        job, busiest = self.job, int(self.rank_tokens.argmax())
        words = {"expert": "one per expert", "rank": "one per rank", "host": "one per host, passed on inside it"}
        lines = [
            f"{self.title}: {self.tokens.mean():,.0f} tokens per rank, each for {job.top_k} of {job.experts} experts. "
            f"Rank {busiest} processes {format_number(self.imbalance)} times the mean.",
        ]
        for name in ("dispatch", "combine"):
            traffic: Traffic = getattr(self, name)
            text = (
                f"{name}: {format_size(traffic.mean_bytes)} per rank on average, {format_size(traffic.size_bytes)} on "
                f"the busiest. Copies: {words[self.copies]}."
            )
            if self.placement is not None:
                loads = self.loads(name)
                link = loads.of(loads.limit)
                if link is not None and link.busiest is not None:
                    nic = f" ({loads.busiest_nic})" if link.name == "nic" else ""
                    text += f" The busiest link is {link.label}{nic}, {format_size(float(link.bytes[link.busiest]))}."
            lines.append(text)
        if int(self.hosts.max()):
            lines.append(f"A token reaches {self.host_copies:.2g} of {int(self.hosts.max()) + 1} hosts.")
        better = self.balanced(self.replicas)
        if better.imbalance < 0.999 * self.imbalance:
            lines.append(
                f"With the same experts at other places, the busiest rank has {better.imbalance:.3g} times the mean."
            )
        return lines

    @property
    def title(self) -> str:
        """The job and the group in a few words."""
        more = f", {self.replicas} replicas" if self.replicas else ""
        return f"{self.job.title}, {self.axis}={self.n_ranks}{more}"

    def plot(self, replicas: int | None = None, *, ax: Axes | None = None) -> Axes:
        """Draw the tokens of every rank and their traffic, before and after a better placement of the experts.

        See `meshlab.plots.routing`.

        Parameters
        ----------
        replicas : int, optional
            Number of replicas beyond one of each expert. By default one more slot on every rank. 0 for none.
        ax : matplotlib.axes.Axes, optional
            The axes to draw on. By default a new figure is created.
        """
        return implementation(Routing.plot)(self, replicas, ax=ax)

    def _figure_html(self) -> str:
        return implementation(Routing._figure_html)(self)

    def __repr__(self) -> str:
        busiest = f"busiest rank {self.imbalance:.3g} times the mean"
        return f"<Routing of {self.title}: {busiest}; next: .explain(), .balanced(), .plot()>"

    def _repr_html_(self) -> str:
        sentences = "".join(f"<div>{markup.escape(line)}</div>" for line in self._sentences())
        return markup.card("Routing", self.title, sentences, self._figure_html())


def _relayed(to_rank: Floats, to_host: Floats, hosts: Ints) -> Floats:
    """Return the copies from rank to rank if each host receives one, which a rank at the same place passes on."""
    # The rank at the same place of the other host receives the copies of a sender, so that all NICs are used. It sends
    # one copy to each rank of its host with some of the experts.
    n, sizes = len(hosts), np.bincount(hosts)
    between = np.where(hosts[:, None] == hosts, to_rank, 0.0)
    order = np.argsort(hosts, kind="stable")
    place = np.empty(n, dtype=np.int64)
    place[order] = np.arange(n) - np.searchsorted(hosts[order], hosts[order])
    for size in np.unique(sizes).tolist():
        relayed = np.stack([to_rank[place % size == number].sum(axis=0) for number in range(size)])
        for host in np.flatnonzero(sizes == size).tolist():
            members, senders = np.flatnonzero(hosts == host), np.flatnonzero(hosts != host)
            between[senders, members[place[senders] % size]] += to_host[senders, host]
            block = np.ix_(members, members)
            passed = relayed[:, members] - to_rank[block]  # without the copies of the host's own ranks
            np.fill_diagonal(passed, 0.0)  # the relay has these copies already
            between[block] += np.maximum(passed, 0.0)
    return between


def routing_of(
    job: Job,
    mesh: MeshLike | Placement,
    cluster: ClusterLike | None,
    experts: MeshLike | None,
    skew: Any,
    copies: Copies | None,
) -> Routing:
    """Return the routing of a job on a mesh, see `Job.routing`."""
    if not job.experts:
        raise MeshError(
            f"{job.title} has no experts, so it routes no tokens", hint=Hint("pass {}", Argument("experts", 8))
        )
    placement = as_placement(mesh, cluster) if isinstance(mesh, Placement) or cluster is not None else None
    shape = mesh.mesh if isinstance(mesh, Placement) else as_mesh(mesh) if placement is None else placement.mesh
    layout = JobLayout.of(job, shape, experts)
    (axis,) = layout.axes["ep"]
    n = layout.sizes[axis]
    if n == 1:
        raise MeshError(
            f"all experts are on each rank of {shape}, so no tokens are exchanged",
            hint=Hint("add the axis ep, or pass {} with that axis", Argument("experts")),
        )
    if experts is not None:
        shape = shape.view(str(as_mesh(experts)))
        placement = None if placement is None else place(shape, placement.cluster, placement.devices)
    hosts = np.zeros(n, dtype=np.int32) if placement is None else _hosts(placement, shape[axis].array[0])
    if copies is None:
        is_limited = job.expert_hosts is not None and int(hosts.max()) > 0
        copies = "host" if is_limited else "expert"
    if copies not in _COPIES:
        raise MeshError(f"unknown copies {copies!r}", hint=f"choose one of {', '.join(_COPIES)}")
    if copies == "host" and placement is None:
        raise MeshError("a copy per host needs a cluster", hint="pass the name of a preset, such as 'dgx-h100'")
    degrees = layout.degrees
    tokens = np.full(n, job.micro_batch * job.sequence / int(degrees.cp[0]) / int(degrees.tp[0]))
    shares, weights = _shares(job, skew, n)
    return Routing(
        job=job,
        mesh=shape,
        axis=axis,
        slots=contiguous_slots(job.experts, n),
        shares=shares,
        tokens=tokens * weights,
        hosts=hosts,
        copies=copies,
        placement=placement,
    )


def _shares(job: Job, skew: Any, n: int) -> tuple[Floats, Floats]:
    """Return the shares of the experts, of shape (1 or ranks, experts), and the tokens of every rank as factors."""
    even = np.ones(n)
    if skew is None:
        return shares_of(job.skew, job.experts, job.top_k)[None], even
    counts = skew if isinstance(skew, np.ndarray) else None
    if counts is None and isinstance(skew, Sequence) and len(skew) and isinstance(skew[0], Sequence | np.ndarray):
        counts = expert_counts(skew, job.experts)
    if counts is None or counts.ndim < 2:
        return shares_of(as_skew(skew, job.experts), job.experts, job.top_k)[None], even
    counts = expert_counts(counts, job.experts)
    if counts.ndim != 2 or len(counts) != n:
        raise MeshError(f"tokens of {len(counts)} ranks and {job.experts} experts do not match the {n} ranks of ep")
    sums = counts.sum(axis=1)
    return shares_of(counts, job.experts, job.top_k), sums / sums.mean()


def _hosts(placement: Placement, ranks: Ints) -> Ints:
    """Return the NVLink domain of every rank of a group, or its host without domains of several hosts, from 0 on."""
    rank_map = placement.rank_map
    is_rack = rank_map.cluster.nvlink_of_node is not None
    domains = rank_map.domains[NVLINK if is_rack else HOST][ranks]
    _, first, number = np.unique(domains, return_index=True, return_inverse=True)
    order = np.empty(len(first), dtype=np.int32)
    order[np.argsort(first)] = np.arange(len(first), dtype=np.int32)
    return np.asarray(order[number.ravel()])
