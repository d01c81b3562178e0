"""StepTime: the expected time of a training step on one layout, its range, and what limits it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import numpy as np

from meshlab.base import _markup as markup
from meshlab.base._arguments import Arguments
from meshlab.base._errors import MeshError
from meshlab.base._units import THIN, format_size
from meshlab.mesh._mesh import DeviceMesh, MeshLike, as_mesh
from meshlab.prediction._candidates import _DEVICE, DeviceArguments, WeakestDevice, memory_fix, memory_state
from meshlab.prediction._compute_rates import ComputeRates
from meshlab.prediction._compute_time import compute_time
from meshlab.prediction._group_links import GroupLinks, concatenate
from meshlab.prediction._job import Job
from meshlab.prediction._job_layout import JobLayout
from meshlab.prediction._memory import Memory
from meshlab.prediction._step_parts import (
    CAVEAT,
    COMPONENTS,
    PricedExchange,
    StepParts,
    links_text,
    priced_exchanges,
    range_text,
    seconds_text,
    step_parts,
)
from meshlab.prediction._step_range import layout_error
from meshlab.prediction._step_ratio import ErrorTerm, Factor, TimeRatio, formula_factors, ratio_of
from meshlab.prediction._tuner import NcclSettings
from meshlab.prediction._volumes import Sizes, memory_of
from meshlab.topology.model._cluster import Cluster
from meshlab.topology.model._presets import ClusterLike
from meshlab.topology.placement._placement import Placement, as_placement, place

if TYPE_CHECKING:
    import pandas as pd

_ARGUMENTS = Arguments(DeviceArguments, _DEVICE)


class ExposedAxis(NamedTuple):
    """The exposed communication of an axis in a step, and the call that takes the most time."""

    name: str  # one of `COMPONENTS`
    axes: tuple[str, ...]  # of the mesh, or of its expert layout, whose union forms the groups of that call
    low_s: float  # if the schedule hides all that it can hide
    high_s: float  # if it hides nothing
    what: str
    collective: str
    size_bytes: int
    calls: float  # per step
    links: str
    n_ranks: int  # per group
    state: str  # a key of `meshlab.topology.placement._loads.MARKS`

    @property
    def seconds(self) -> float:
        """The mean of both ends."""
        return (self.low_s + self.high_s) / 2

    @property
    def limit(self) -> str:
        """What limits the call, in words."""
        return f"{self.collective} of {self.what}, {format_size(self.size_bytes)}, over {self.links}"


@dataclass(frozen=True, eq=False, repr=False)
class StepTime:
    """The expected time of a training step on one layout. Created by `step_time`.

    Parameters
    ----------
    job : Job
        The job.
    mesh : DeviceMesh
        The mesh.
    experts : DeviceMesh or None
        The expert layout.
    cluster : Cluster
        The machine.
    micro_batches : int
        Number of micro-batches per step.
    compute_s, bubble_s : float
        Seconds of computation and of the bubble of the pipeline.
    axes : tuple of ExposedAxis
        Exposed communication by axis, only axes that communicate.
    expected_s : float
        The expected time of the step, as in `search`.
    low_s, high_s : float
        The range of the step, from the errors of predictions of published steps. See `Layouts.basis`.
    memory : Memory
        Memory of a rank.
    memory_limit : float
        Bytes that a device may use.
    """

    job: Job
    mesh: DeviceMesh
    experts: DeviceMesh | None
    cluster: Cluster
    micro_batches: int
    compute_s: float
    bubble_s: float
    axes: tuple[ExposedAxis, ...]
    expected_s: float
    low_s: float
    high_s: float
    memory: Memory
    memory_limit: float
    hardware: WeakestDevice
    layout: JobLayout
    calls: tuple[PricedExchange, ...]
    links: GroupLinks

    @property
    def seconds(self) -> float:
        """The expected time of the step."""
        return self.expected_s

    @property
    def fits(self) -> bool:
        """True if the memory suffices by the estimate, or if that is too close to the limit to tell."""
        return self.memory_state != "over"

    @property
    def memory_state(self) -> str:
        """``"fits"``, ``"tight"`` if the estimate is within its error of the limit, or ``"over"``."""
        return str(memory_state(np.array(self.memory.total), self.memory_limit))

    @property
    def memory_fix(self) -> str:
        """The change with which the job fits into the memory by the estimate. Empty if it does."""
        fits = self.memory.total <= self.memory_limit
        return "" if fits else memory_fix(self.job, self.layout.degrees, self.memory_limit)

    @property
    def exposed_s(self) -> tuple[float, float]:
        """Exposed communication of all axes: low and high end."""
        return sum(axis.low_s for axis in self.axes), sum(axis.high_s for axis in self.axes)

    @property
    def mfu(self) -> tuple[float, float]:
        """Model operations relative to the peak: low and high end."""
        best = self.job.model_flops / self.mesh.world_size / self.hardware.flops
        return best / self.high_s, best / self.low_s

    def axis(self, name: str) -> ExposedAxis | None:
        """Return the exposed communication of an axis, or None."""
        return next((axis for axis in self.axes if axis.name == name), None)

    @cached_property
    def shares(self) -> dict[str, float]:
        """Seconds of every part by name: ``compute``, ``bubble``, and the exposed mean of each axis."""
        return {"compute": self.compute_s, "bubble": self.bubble_s} | {axis.name: axis.seconds for axis in self.axes}

    @property
    def limiting_axis(self) -> ExposedAxis | None:
        """The axis that exposes the most communication, None if none communicates."""
        return max(self.axes, key=lambda axis: axis.seconds, default=None)

    @property
    def limit(self) -> str:
        """What limits the step besides computation, in one sentence."""
        parts = {name: seconds for name, seconds in self.shares.items() if name != "compute"}
        name = max(parts, key=lambda name: parts[name])
        if parts[name] < 0.005 * self.seconds:
            return "computation limits the step; communication and bubble take less than 0.5 %"
        share = f"{100 * parts[name] / self.seconds:.0f}{THIN}% of the step"
        axis = self.axis(name)
        if axis is None:
            pp = int(self.layout.degrees.pp[0])
            return f"the bubble takes {share}: {pp} stages, {self.micro_batches:,} micro-batches"
        return f"{name} takes {share}: {axis.limit}"

    @property
    def verdict(self) -> str:
        """The time of a step and the memory, in one sentence."""
        memory = f"{_gib(self.memory.total)} of {_gib(self.memory_limit)} per GPU"
        state = {"fits": "", "tight": ", which is tight", "over": ", which is too much by the estimate"}
        return f"{range_text(self.low_s, self.high_s)} per step, {memory}{state[self.memory_state]}"

    def ratio(self, other: StepTime) -> TimeRatio:
        """Return the ratio of the time of this step to that of another one, with its range.

        Most errors of a prediction are the same for both: the share of the peak that computation reaches, how much of
        its communication a schedule hides, and by which factor the formula misses a collective on one kind of link. So
        the range of the ratio is much narrower than the bands, see `meshlab.prediction._step_ratio.ratio_of`. Three
        errors are shared: that of the computation on one product of GPU; for each collective, kind of link and band
        of sizes, that of the formula; and the share that the schedule hides of what it can hide. All others are not:
        the computation of steps that differ in the mesh, the micro-batch, the chunks per stage or the sequence has an
        error of its own, from pairs of published steps. Steps of different length are compared per token.

        Examples
        --------
        >>> import meshlab as ml
        >>> from meshlab.prediction import step_time
        >>> machine = ml.preset("dgx-h100", nodes=4)
        >>> a = step_time("llama3-8b", "dp=2, tp=16", machine)
        >>> b = step_time("llama3-8b", "dp=4, tp=8", machine)
        >>> ratio = b.ratio(a)
        >>> ratio.is_decided, round(ratio.low, 2) <= round(ratio.high, 2) < 1
        (True, True)
        """
        ratio = ratio_of(tuple(self._terms()), tuple(other._terms()))
        per_token = other.job.tokens / self.job.tokens
        return TimeRatio(ratio.expected * per_token, ratio.low * per_token, ratio.high * per_token, ratio.cause)

    def _terms(self) -> Iterator[ErrorTerm]:
        """Yield the parts of the step by the error that they have in common with other steps."""
        hardware = self.hardware
        key = ("compute", hardware.rates.gpu, hardware.flops, hardware.matmul, self.job.kernels)
        label = "the rate that computation reaches"
        device = Factor(key, 1 / hardware.compute_error, hardware.compute_error, label)
        label = "what computation reaches on one layout and not on another"
        error = layout_error(has_experts=self.job.moe_layers > 0)
        job = self.job
        layout = (str(self.mesh), str(self.experts), job.micro_batch, job.interleave, job.sequence)
        of_layout = Factor(("layout", *layout), 1 / error, error, label)
        yield ErrorTerm(self.compute_s + self.bubble_s, (device, of_layout))
        for call in self.calls:
            exchange = call.exchange
            factors = formula_factors(self.links, int(call.rows[0]), exchange.collective, float(exchange.size[0]))
            hidden, exposed = float(call.hidden_end[0]), float(call.open_end[0])
            yield ErrorTerm(hidden, factors)
            label = f"how much of {call.component} the schedule hides"
            schedule = Factor(("schedule", call.component, exchange.collective), 0.0, 1.0, label)
            yield ErrorTerm(exposed - hidden, (*factors, schedule))

    def frame(self) -> pd.DataFrame:
        """Return the parts of the step as a table.

        Returns
        -------
        pandas.DataFrame
            ``part`` (``compute``, ``bubble``, or an axis), ``low_s`` and ``high_s`` per step, and for axes
            ``collective``, ``what``, ``size_bytes`` and ``calls`` of the call that takes the most time, and ``links``.
        """
        import pandas as pd

        columns = ["part", "low_s", "high_s", "collective", "what", "size_bytes", "calls", "links"]
        rows: list[tuple[Any, ...]] = [
            (name, value, value, "", "", None, math.nan, "")
            for name, value in (("compute", self.compute_s), ("bubble", self.bubble_s))
        ]
        rows += [
            (axis.name, axis.low_s, axis.high_s, axis.collective, axis.what, axis.size_bytes, axis.calls, axis.links)
            for axis in self.axes
        ]
        return pd.DataFrame(rows, columns=columns).astype({"size_bytes": "Int64"})

    def explain(self) -> str:
        """Explain the step in sentences: its range, its parts, what limits every axis, and the memory."""
        exposed = range_text(*self.exposed_s)
        lines = [
            f"{self.job.title} on {self.mesh}: {self.verdict}.",
            f"It computes for {seconds_text(self.compute_s)}, idles in the bubble for {seconds_text(self.bubble_s)}, "
            f"and exposes {exposed} of communication.",
        ]
        lines += [f"  {axis.name}: {range_text(axis.low_s, axis.high_s)}, {axis.limit}" for axis in self.axes]
        lines += [f"If the memory does not suffice: {self.memory_fix}."] if self.memory_fix else []
        return "\n".join([*lines, self.hardware.basis, CAVEAT])

    def __repr__(self) -> str:
        return f"<StepTime of {self.job.title} on {self.mesh}: {self.verdict}; next: .explain(), .frame()>"

    def _repr_html_(self) -> str:
        rows = [
            [row["part"], range_text(row["low_s"], row["high_s"]), row["links"]] for _, row in self.frame().iterrows()
        ]
        sentences = "".join(f"<div>{markup.escape(line)}</div>" for line in (self.limit, self.hardware.basis, CAVEAT))
        table = markup.table(["part", "per step", "links"], rows)
        return markup.card(f"Step of {self.job.title}", f"{self.mesh}, {self.verdict}", sentences, table)


def _gib(size: float) -> str:
    return f"{size / 2**30:.0f}{THIN}GiB"


@_ARGUMENTS.shown
def step_time(
    job: Job | str,
    mesh: MeshLike | Placement,
    cluster: ClusterLike | None = None,
    *,
    experts: MeshLike | None = None,
    settings: NcclSettings | None = None,
    **arguments: Unpack[DeviceArguments],
) -> StepTime:
    """Predict the time of a training step and the memory of a rank on one layout.

    The step is priced as in `search`, but for the groups that the mesh has on this machine, also if some of them differ
    because a part has failed. The slowest group of an axis counts.

    Parameters
    ----------
    job : Job or str
        The job, or the name of a model, see `Job.preset`.
    mesh : DeviceMesh, str or Placement
        The mesh. A Placement includes the cluster.
    cluster : Cluster or str, optional
        The machine, or the name of a preset.
    experts : DeviceMesh or str, optional
        The expert layout, see `Job.step`.
    settings : NcclSettings, optional
        Settings of NCCL.
    memory_share, memory_gib, peak, utilisation, rates
        As for `search`.

    Raises
    ------
    MeshError
        If the job cannot run on the mesh. The message names the nearest number that works.
    TopologyError
        If the cluster lacks GPUs, link speeds, memory sizes or a known product.

    Examples
    --------
    >>> import meshlab as ml
    >>> step = ml.prediction.step_time("llama3-70b", "pp=8, dp=2, cp=4, tp=2", ml.preset("dgx-h100", nodes=16))
    >>> print(step.verdict)  # doctest: +ELLIPSIS
    57.1 to 92...s per step, 60...GiB of 72...GiB per GPU
    >>> [axis.name for axis in step.axes]
    ['tp', 'cp', 'pp', 'dp']
    """
    choice = _ARGUMENTS.complete("step_time", arguments)
    work = Job.preset(job) if isinstance(job, str) else job
    if not isinstance(work, Job):
        raise MeshError(f"job must be a Job or the name of a model, not {type(job).__name__}", hint="see ml.Job.preset")
    placement = as_placement(mesh, cluster)
    shape, machine = placement.mesh, placement.cluster
    layout = JobLayout.of(work, shape, experts)
    hardware = WeakestDevice.of(machine, shape.world_size, work, choice)
    view = None if experts is None else shape.view(str(as_mesh(experts)))
    links, rows = _links_of(layout, placement, view, has_experts=work.experts > 0)
    which = np.zeros(1, dtype=np.int64)
    compute = hardware.compute_time(work, layout.degrees)
    priced = priced_exchanges(
        work, layout.degrees, which, links, rows, compute=compute, settings=settings or NcclSettings()
    )
    calls = tuple(call for call in priced if call.calls[0] > 0)
    parts = step_parts(work, hardware, layout.degrees, which, iter(calls), compute)
    low, high = parts.range()[:, 0]
    memory = Memory(*(float(part[0]) for part in memory_of(work, layout.degrees)))
    return StepTime(
        job=work,
        mesh=shape,
        experts=view,
        cluster=machine,
        micro_batches=int(layout.degrees.micro_batches(work)[0]),
        compute_s=float(parts.compute[0]),
        bubble_s=float(parts.bubble[0]),
        axes=tuple(_exposed(layout, links, machine, calls, parts)),
        expected_s=float(parts.expected()[0]),
        low_s=float(low),
        high_s=float(high),
        memory=memory,
        memory_limit=hardware.memory,
        hardware=hardware,
        layout=layout,
        calls=calls,
        links=links,
    )


def mean_tflops(job: Job, mesh: DeviceMesh, experts: DeviceMesh | None, rates: ComputeRates) -> float:
    """Return the TFLOP/s that a rank of the busiest stage reaches on average in the computation of a step."""
    degrees = JobLayout.of(job, mesh, experts).degrees
    return float(compute_time(job, degrees, rates, job.matmul or job.dtype).speed[0]) / 1e12


def _links_of(
    layout: JobLayout, placement: Placement, view: DeviceMesh | None, *, has_experts: bool
) -> tuple[GroupLinks, dict[str, Sizes]]:
    """Return the links of the groups of all roles, and the rows of each role, of shape (signatures, 1)."""
    parts, rows, count = [], {}, 0
    of_view = None if view is None else place(view, placement.cluster)
    by_axes: dict[tuple[str, ...], Sizes] = {}
    for role, axes in layout.axes.items():
        is_used = has_experts or role not in ("ep", "etp", "expert_data")
        if not is_used or math.prod(layout.sizes[name] for name in axes) == 1:
            continue
        if axes not in by_axes:
            source = placement if of_view is None or set(axes) <= set(placement.mesh.axis_names) else of_view
            links, _ = GroupLinks.of(source, "-".join(axes))
            # The narrowest first: it is the one that explains a time that several signatures have.
            by_axes[axes] = count + np.argsort(links.network_gbs, kind="stable")[:, None]
            parts.append(links)
            count += len(links)
        rows[role] = by_axes[axes]
    if not parts:
        parts = [GroupLinks.by_stride(placement.cluster, placement.mesh.world_size).links.rows(slice(0, 1))]
    return concatenate(parts), rows


def _exposed(
    layout: JobLayout, links: GroupLinks, cluster: Cluster, calls: tuple[PricedExchange, ...], parts: StepParts
) -> Iterator[ExposedAxis]:
    """Yield the exposed communication of every axis that communicates."""
    for number, name in enumerate(COMPONENTS):
        of_component = [call for call in calls if call.component == name]
        if not of_component:
            continue
        call = max(of_component, key=lambda call: float(call.hidden_end[0] + call.open_end[0]))
        exchange, row = call.exchange, int(call.rows[0])
        yield ExposedAxis(
            name=name,
            axes=layout.axes[exchange.role],
            low_s=float(parts.exposed[0, number, 0]),
            high_s=float(parts.exposed[1, number, 0]),
            what=exchange.what,
            collective=exchange.collective,
            size_bytes=max(round(float(exchange.size[0])), 1),
            calls=float(np.asarray(call.calls)[0]),
            links=links_text(links, row, cluster),
            n_ranks=int(links.n_ranks[row]),
            state=_state(links, row),
        )


def _state(links: GroupLinks, row: int) -> str:
    """Return how the groups of a signature use their links, as `Loads.state`."""
    if links.n_ranks[row] == 1:
        return "none"
    if links.domains[row] == 1:
        return "nvlink" if links.inner_is_nvlink[row] else "host"
    if links.uplink_gbs[row] < links.network_gbs[row]:
        return "taper"
    return "shared" if links.groups_per_nic[row] > 1 else "rail"
