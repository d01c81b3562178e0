"""The function that rehearses training steps: it chooses the scale, checks the results, and measures in rounds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from meshlab.analysis.tuning._tuning import Tuning
from meshlab.base._backends import BACKENDS, GPU_BACKENDS
from meshlab.base._errors import BenchError, MeshError, MeshlabError, did_you_mean
from meshlab.base._hints import Argument, Hint
from meshlab.base._units import format_size
from meshlab.benchmark._executor import sharing_of
from meshlab.benchmark._overlap import can_overlap
from meshlab.benchmark._preparation import check_engines
from meshlab.benchmark._progress import progress_bar
from meshlab.benchmark.on_ranks._environment import describe_rank
from meshlab.benchmark.on_ranks._training_step import (
    CallProbe,
    RepeatedCalls,
    Schedule,
    ScheduledStep,
    StepOptions,
    TimedCall,
    Variant,
    measure_steps,
    probe_calls,
)
from meshlab.benchmark.rehearsal._rehearsal import Rehearsal, RehearsedCall, RehearsedLayout
from meshlab.benchmark.rehearsal._session import (
    StepSession,
    check_collective,
    dtypes_of,
    power_of_two,
    shared_bytes,
    step_of,
    tuned_step,
)
from meshlab.comm._backend import CallChoice
from meshlab.comm._catalog import Collective, find_collective
from meshlab.comm._elements import DTYPES, find_dtype
from meshlab.engines._engines import Engines
from meshlab.engines._lease import Lease, raise_first_error
from meshlab.engines._memory import usable_bytes
from meshlab.mesh._axes import WORLD, as_integer
from meshlab.mesh._mesh import DeviceMesh, MeshLike, as_mesh
from meshlab.plans._steps import Step
from meshlab.prediction._call_prices import price
from meshlab.prediction._compute_rates import ComputeRates
from meshlab.prediction._job import Job
from meshlab.prediction._step_calls import StepCall, check_calls
from meshlab.prediction._step_time import mean_tflops
from meshlab.topology.model._cluster import Cluster
from meshlab.topology.model._presets import ClusterLike, as_cluster
from meshlab.topology.readers._hosts import cluster_from_hosts

Floats = npt.NDArray[np.float64]

_TFLOPS = 400.0
"""The rate of the waits that replace matrix products, in TFLOP/s: about that of an H100 in bfloat16."""

_STEP_US = 1e5
"""The target duration of a rehearsed step, in µs."""

_PROBED_BYTES = 64 << 20
"""The largest message of the first probe. Larger ones are extrapolated, because they may not even fit into memory."""

_MATRIX_BYTES = 512 << 20
"""The memory of the matrix products on a GPU."""


def rehearse(
    engines: Engines,
    mesh: MeshLike | Sequence[MeshLike],
    job: Job | str | Sequence[StepCall],
    *,
    experts: MeshLike | Sequence[MeshLike | None] | None = None,
    scale: float | Literal["auto"] = "auto",
    size_scale: float | Literal["auto"] = "auto",
    compute: Literal["auto", "products", "wait"] = "auto",
    tflops: float | ComputeRates = _TFLOPS,
    rounds: int = 6,
    steps: int = 5,
    check: bool = True,
    cluster: ClusterLike | None = None,
    tuning: Tuning | Sequence[Tuning] = (),
    effect: float = 0.05,
    deadline_s: float | None = None,
    progress: bool | None = None,
) -> Rehearsal:
    """Rehearse the communication of a training step: the collectives of a job, with its volumes and in its order.

    Between the calls, GPUs multiply matrices for as many operations as the job, and other ranks wait as long as that
    would take. Calls overlap with this computation as in the job: on GPUs, each axis has its own communicator and
    stream, and events order them with the computation. Otherwise, calls that may overlap run in a thread per axis.

    The step is timed complete, without communication, and with each axis alone, in turns. Several layouts also take
    turns, in the opposite order in every second round, so that a drift of the clocks affects all of them. All results
    are checked once before that. Waits until everything is measured.

    Parameters
    ----------
    engines : Engines
        The ranks.
    mesh : DeviceMesh, str, or sequence of these
        The layout, or several layouts to compare, each with one rank per engine.
    job : Job, str, or sequence of StepCall
        The training job, the name of a preset such as ``"llama3-8b"``, or the communication of a step.
    experts : DeviceMesh, str, or sequence of these, optional
        The layout of the experts, a `DeviceMesh.view` of the mesh. For several layouts one of each, or None.
    scale : float or "auto", default "auto"
        The part of a step to run: fewer micro-batches, and if that is not enough, fewer layers. The times are
        extrapolated to a whole step. ``"auto"`` chooses it so that the step takes about 0.1 s.
    size_scale : float or "auto", default "auto"
        Size of the messages and computation per call, relative to the job. ``"auto"`` is 1 on GPUs, unless the messages
        exceed the memory. Without GPUs it limits the messages of a layer to 4 MiB with MPI and to 1 MiB with threads.
    compute : {"auto", "products", "wait"}, default "auto"
        The computation. ``"auto"`` multiplies matrices on GPUs with cuBLAS, and otherwise waits: on a CPU, products
        would take cores from the ranks that communicate.
    tflops : float or ComputeRates, default 400
        The rate at which waits replace computation, in TFLOP/s. Measured rates (`meshlab.benchmark.compute_rates`) are
        averaged over the computation of the job on its layouts.
    rounds : int, default 6
        Number of rounds. Verdicts between layouts need at least 6.
    steps : int, default 5
        Number of timed steps of each kind in a round, after one for warm-up.
    check : bool, default True
        Whether to compare the result of each different call with the expected one, outside the timed part.
    cluster : Cluster or str, optional
        The machine, for the prediction. By default that of the engines. Predictions are made for NCCL only.
    tuning : Tuning or sequence of Tuning, optional
        Tunings of axes, such as those of ``tune(beside=…)``. Their calls use the options that were chosen for their
        size. Axes without one use the default of the library.
    effect : float, default 0.05
        The smallest relevant relative difference between two layouts.
    deadline_s : float, optional
        Maximum duration of a round, in seconds, before its ranks are considered stuck. By default that of the engines,
        or more if a round is expected to take longer.
    progress : bool, optional
        Whether to draw a progress bar. By default in a notebook and on a terminal, unless the environment variable
        ``MESHLAB_PROGRESS`` is 0.

    Returns
    -------
    Rehearsal
        The times by axis, exposed and hidden.

    Raises
    ------
    MeshError
        If a mesh does not have one rank per engine.
        If a mesh lacks an axis of the job.
    BenchError
        If the job does not fit the mesh, or has no calls.
        If the backend does not support a collective or an element type of the job.
        If the messages exceed the memory at the given scale.
    EngineError
        If the engines are busy.
        If a rank fails. The attribute ``measured`` has the complete rounds as a `Rehearsal`, or None.
    KeyboardInterrupt
        If the caller is interrupted. The current round is completed first, so the engines remain usable.

    Examples
    --------
    >>> import meshlab as ml
    >>> from meshlab.prediction import StepCall
    >>> step = [
    ...     StepCall(("tp",), "all_reduce", 4096, "float32", "activations", "forward", 0, 2, 1, 4e8, "nothing", 0.0),
    ...     StepCall(("dp",), "all_reduce", 8192, "float32", "gradients", "backward", 1, 2, 1, 8e8, "pass", 8e8),
    ... ]
    >>> with ml.launch(4, backend="threads") as engines:
    ...     found = ml.rehearse(engines, "dp=2, tp=2", step, rounds=2, steps=2)
    >>> found.frame()[["part", "axis", "calls", "total_bytes", "n_wrong"]]
                part  axis  calls  total_bytes  n_wrong
    0        compute  <NA>   <NA>         <NA>     <NA>
    1       slowdown  <NA>   <NA>         <NA>     <NA>
    2  communication    tp      2         8192        0
    3  communication    dp      2        16384        0
    """
    check_engines(engines)
    rate = _TFLOPS if isinstance(tflops, ComputeRates) else tflops
    choices = _Choices(scale, size_scale, compute, rate, rounds, steps, check, effect, deadline_s)
    if compute == "products" and engines.backend not in GPU_BACKENDS:
        raise BenchError(
            f"compute='products' needs GPUs, but these engines run {engines.backend}",
            hint=Hint("pass {}", Argument("compute", "wait")),
        )
    if cluster is not None and engines.backend not in GPU_BACKENDS:
        raise BenchError(
            f"predictions are made for NCCL, but these engines run {engines.backend}",
            hint=Hint("omit {}", Argument("cluster")),
        )
    meshes = _listed(mesh, 1)
    views = _listed(experts, len(meshes))
    if not meshes:
        raise BenchError("mesh is an empty list", hint="pass at least one mesh, such as 'dp=2, tp=4'")
    if len(views) != len(meshes):
        raise BenchError(f"expected one layout of the experts per mesh, not {len(views)} for {len(meshes)}")
    if isinstance(job, str):
        job = Job.preset(job)
    tunings = [tuning] if isinstance(tuning, Tuning) else list(tuning)
    layouts = [
        replace(layout, choices=_choices_of(engines, layout, tunings))
        for layout in (_layout(engines, each, view, job) for each, view in zip(meshes, views, strict=True))
    ]
    if isinstance(tflops, ComputeRates):
        choices = replace(choices, tflops=_mean_rate(tflops, job, layouts))
    machine = None if cluster is None else as_cluster(cluster)
    session = _Session(engines, _with_unique_names(layouts), choices, machine)
    with progress_bar(progress, unit="round", total=len(layouts) * (rounds + 1)) as bar:
        session.run(bar)
    return session.result()


@dataclass(frozen=True)
class _Choices:
    """The arguments of `rehearse` that concern its measurements."""

    scale: float | Literal["auto"]
    size_scale: float | Literal["auto"]
    compute: str
    tflops: float
    rounds: int
    steps: int
    check: bool
    effect: float
    deadline_s: float | None

    def __post_init__(self) -> None:
        for name, value in (("rounds", self.rounds), ("steps", self.steps)):
            number = as_integer(value)
            if number is None or number < 1:
                raise BenchError(f"{name} must be an integer of at least 1, not {value!r}")
        for name, share in (("scale", self.scale), ("size_scale", self.size_scale)):
            if share != "auto" and not _is_positive(share, most=1):
                raise BenchError(f"{name} must be 'auto' or a number above 0 and up to 1, not {share!r}")
        for name, quantity in (("tflops", self.tflops), ("effect", self.effect), ("deadline_s", self.deadline_s)):
            if not (_is_positive(quantity) or (quantity is None and name == "deadline_s")):
                raise BenchError(f"{name} must be a positive number, not {quantity!r}")
        if self.compute not in ("auto", "products", "wait"):
            raise BenchError(f"unknown compute {self.compute!r}; choose one of auto, products, wait")


def _mean_rate(rates: ComputeRates, job: Job | Sequence[StepCall], layouts: Sequence[_Layout]) -> float:
    """Return the mean rate of the layouts, in TFLOP/s."""
    if not isinstance(job, Job):
        raise BenchError(
            "measured rates need a Job, but the job is a sequence of calls", hint="pass tflops as a number"
        )
    return float(np.mean([mean_tflops(job, layout.mesh, layout.experts, rates) for layout in layouts]))


def _listed(value: Any, n: int) -> list[Any]:
    """Return several meshes as a list, and a single one or None n times."""
    is_several = isinstance(value, Iterable) and not isinstance(value, (str, DeviceMesh))
    return list(value) if is_several else [value] * n


def _is_positive(value: object, most: float = math.inf) -> bool:
    is_number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    return is_number and 0 < float(value) <= most and float(value) < math.inf  # type: ignore[arg-type]


# -- layouts -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Layout:
    """A layout, and the communication of the job on it."""

    name: str
    mesh: DeviceMesh
    calls: tuple[StepCall, ...]
    axis_of: tuple[int, ...]
    """The index of the axis of each call."""
    sets: tuple[tuple[DeviceMesh, str], ...]
    """The mesh and the name of each axis."""
    micro_batches: int
    bubble: float
    experts: DeviceMesh | None
    choices: Mapping[str, Sequence[CallChoice]] = field(default_factory=dict)
    """The tuned options of the calls of an axis."""

    @property
    def n_ranks(self) -> tuple[int, ...]:
        """The number of ranks per group of each axis."""
        return tuple(mesh[name].size for mesh, name in self.sets)


def _layout(engines: Engines, mesh: MeshLike, experts: MeshLike | None, job: Job | Sequence[StepCall]) -> _Layout:
    """Return the communication of a job on a mesh, after all checks that need no ranks."""
    mesh = as_mesh(mesh, fill=engines.world_size)
    engines.check_mesh(mesh)
    view = None if experts is None else mesh.view(experts) if isinstance(experts, str) else as_mesh(experts)
    if view is not None:
        engines.check_mesh(view)
    if isinstance(job, Job):
        calls, micro_batches, bubble = job.step(mesh, view), job.micro_batches(mesh, view), job.bubble(mesh, view)
    else:
        if not isinstance(job, Sequence):
            raise BenchError(f"job must be a Job, a preset or a sequence of StepCall, not {type(job).__name__}")
        calls, bubble = check_calls(job), math.nan
        micro_batches = max((call.micro_batches for call in calls), default=1)
    sets: dict[str, tuple[DeviceMesh, str]] = {}
    axis_of = []
    for call in calls:
        owner, name = _find_axis(call, mesh, view)
        if owner[name].size > 1:
            _check_call(engines, call, engines.backend_of(owner, name))
            sets.setdefault(name, (owner, name))
        axis_of.append(list(sets).index(name) if name in sets else -1)
    if not sets:
        raise BenchError(
            f"the job does not communicate on {mesh}: {'no calls' if not calls else 'all of its axes have one rank'}",
            hint="choose a mesh with more than one rank along an axis of the job",
        )
    return _Layout(str(mesh), mesh, tuple(calls), tuple(axis_of), tuple(sets.values()), micro_batches, bubble, view)


def _choices_of(engines: Engines, layout: _Layout, tunings: Sequence[Tuning]) -> dict[str, Sequence[CallChoice]]:
    """Return the tuned options of the axes of a layout. Tunings of groups of another size do not apply."""
    choices: dict[str, Sequence[CallChoice]] = {}
    for tuning in tunings:
        if not isinstance(tuning, Tuning):
            raise BenchError(
                f"tuning must be a Tuning, not {type(tuning).__name__}", hint="pass the result of ml.tune()"
            )
        if (backend := tuning.system.get("backend", engines.backend)) != engines.backend:
            raise BenchError(f"the tuning was made on {backend}, but these engines run {engines.backend}")
        size = tuning.mesh[tuning.axis].size
        if any(name == tuning.axis and mesh[name].size == size for mesh, name in layout.sets):
            choices[tuning.axis] = tuning.choices()
    return choices


def _find_axis(call: StepCall, mesh: DeviceMesh, view: DeviceMesh | None) -> tuple[DeviceMesh, str]:
    """Return the mesh that has the axes of a call, and the name of their groups in it."""
    for owner in (mesh, view):
        if owner is not None and set(call.axis) <= set(owner.axis_names):
            return owner, owner[call.axis].name
    names = list(dict.fromkeys([*mesh.axis_names, *(() if view is None else view.axis_names)]))
    missing = next((axis for axis in call.axis if axis not in names), call.axis[0])
    raise MeshError(
        f"{call.collective} of the job runs along {'-'.join(call.axis)}, but {mesh} has no axis "
        f"{missing!r}{did_you_mean(missing, names)}",
        hint=f"add {missing}=1 to the mesh, or rename an axis; it has {', '.join(names)}",
    )


def _can_be_rehearsed(row: Collective) -> bool:
    """Return True if all ranks send and receive."""
    return row.is_measurable and row.only_root is None


def _check_call(engines: Engines, call: StepCall, backend: str) -> None:
    """Raise unless the backend of its axis supports a call."""
    can, axis = engines.capabilities(backend), "-".join(call.axis)
    check_collective(engines, can, call.collective, axis, "job")
    row = find_collective(call.collective)
    if not _can_be_rehearsed(row):
        rehearsed = [name for name in can.collectives if _can_be_rehearsed(find_collective(name))]
        raise BenchError(
            f"{call.collective} cannot be rehearsed, because not all ranks send and receive in it",
            hint=f"choose one of {', '.join(rehearsed)}",
        )
    dtypes, dtype = dtypes_of(can, row), find_dtype(call.dtype)
    if dtype.name not in dtypes:
        alike = [name for name in dtypes if DTYPES[name].itemsize == dtype.itemsize]
        raise BenchError(
            f"{can.backend} cannot {'reduce' if row.reduces else 'send'} {call.dtype}, the type of {call.collective} "
            f"along {axis}",
            hint=f"types of the same size, which take as long: {', '.join(alike) or 'there is none'}",
        )


def _with_unique_names(layouts: Sequence[_Layout]) -> list[_Layout]:
    """Number layouts with the same text, such as two rank maps of one mesh."""
    names = [layout.name for layout in layouts]
    return [
        replace(layout, name=f"{layout.name} (#{names[:index].count(layout.name) + 1})")
        if names.count(layout.name) > 1
        else layout
        for index, layout in enumerate(layouts)
    ]


# -- scale -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Scaled:
    """The part of a step that is rehearsed."""

    schedule: Schedule
    calls: tuple[TimedCall, ...]
    """The rehearsed form of each call of the job."""
    repeats: tuple[int, ...]
    layers: tuple[int, int]

    @property
    def distinct(self) -> list[tuple[int, Step]]:
        """The different calls, by axis."""
        return list(dict.fromkeys((call.axis, call.step) for call in self.calls if call.step is not None))

    @property
    def buffer_bytes(self) -> int:
        """The memory of a rank's buffers."""
        return shared_bytes(self.distinct)

    def n_calls(self, index: int) -> int:
        """Return how often a call runs in the rehearsed step."""
        return self.repeats[index] * (1 if self.calls[index].is_single else self.schedule.micro_batches)


def _scaled(layout: _Layout, scale: float, size_scale: float, most_bytes: float = math.inf) -> _Scaled:
    """Cut a step down to a part of its micro-batches and layers, and scale its messages."""
    micro_batches = min(max(round(layout.micro_batches * scale), 1), layout.micro_batches)
    most = max(call.repeats for call in layout.calls)
    left = scale * layout.micro_batches / micro_batches
    n_layers = min(max(round(most * left), 1), most)
    blocks: list[RepeatedCalls] = []
    timed: list[TimedCall] = []
    repeats: list[int] = []
    number: int | None = None
    for call, axis in zip(layout.calls, layout.axis_of, strict=True):
        n = max(round(call.repeats * n_layers / most), 1)
        # A block that cannot be repeated less often, such as the embedding, has smaller messages instead.
        rest = call.repeats * n_layers / most / n
        repeats.append(n)
        step = None
        if axis >= 0:
            size = min(call.size_bytes * size_scale * rest, most_bytes)
            step = step_of(call.collective, call.dtype, layout.sets[axis][1], layout.n_ranks[axis], int(size))
            step = tuned_step(step, layout.choices.get(step.axis, ()))
        flops = call.gap_flops * size_scale * rest
        timed.append(TimedCall(axis, step, flops, call.overlaps, call.micro_batches < layout.micro_batches))
        if number != call.block:
            blocks.append(RepeatedCalls(call.phase, (), n))
            number = call.block
        blocks[-1] = blocks[-1]._replace(calls=(*blocks[-1].calls, timed[-1]))
    return _Scaled(Schedule(tuple(blocks), micro_batches), tuple(timed), tuple(repeats), (n_layers, most))


# -- measurement -------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Measurement:
    """A layout, and its measurements so far."""

    layout: _Layout
    scaled: _Scaled
    variants: tuple[Variant, ...]
    probes: Mapping[tuple[int, Step], CallProbe]
    predicted: Floats
    """The predicted time of each call of the job at the rehearsed size in µs, with its bounds: shape (calls, 3)."""
    seconds: float
    rounds: list[Floats] = field(default_factory=list)


class _Session(StepSession):
    """A rehearsal under way."""

    title = "rehearsal"

    def __init__(
        self, engines: Engines, layouts: Sequence[_Layout], choices: _Choices, cluster: Cluster | None
    ) -> None:
        super().__init__([engines], f"rehearsing {len(layouts)} layout{'s' * (len(layouts) != 1)}", choices.deadline_s)
        self._engines = engines
        self._layouts = layouts
        self._choices = choices
        self._cluster = cluster
        self._size_scale = None if choices.size_scale == "auto" else float(choices.size_scale)
        self._why_unpredicted = (
            "" if engines.backend in GPU_BACKENDS else f"NCCL's formulas do not apply to {engines.backend}"
        )
        self._flops_per_us = choices.tflops * 1e6
        self._options = StepOptions("wait", self._flops_per_us, can_overlap(engines))
        self._why_wait = ""
        self._measurements: list[_Measurement] = []

    def _is_complete(self) -> bool:
        return bool(self._measurements) and all(measurement.rounds for measurement in self._measurements)

    def _call(self, lease: Lease, function: Any, layout: _Layout, *arguments: Any, deadline_s: float | None) -> Any:
        """Run a function with the communicators of all axes of a layout, and return the values of the ranks."""
        task = f"rehearsing {layout.name}"
        return self._on_axes(lease, function, layout.mesh, layout.sets, arguments, task, deadline_s)

    def _prepare(self, leases: Sequence[Lease]) -> None:
        """Choose the scale from short measurements, and check the results at that scale."""
        (lease,) = leases
        self._task = "choosing the scale"
        ranks = self._probed_ranks(lease)
        self._why_wait = next((rank.no_products for rank in ranks if rank.no_products), "")
        if self._choices.compute == "products" and self._why_wait:
            raise BenchError(
                f"cannot multiply matrices: {self._why_wait}", hint=Hint("or pass {}", Argument("compute", "wait"))
            )
        if self._choices.compute == "wait":
            self._why_wait = ""
        elif not self._why_wait:
            self._options = self._options._replace(compute="products")
        memory = int(usable_bytes([rank.free for rank in ranks], [info.host for info in self._engines.ranks]).min())
        if self._options.compute == "products":
            memory -= _MATRIX_BYTES
        size_scale = self._size_scale or self._host_scale()
        scale = self._choices.scale
        scale = self._find_scale(lease, size_scale) if scale == "auto" else float(scale)
        size_scale = self._fit(scale, size_scale, memory)
        self._size_scale = size_scale
        if self._cluster is None and not self._why_unpredicted:
            self._cluster = self._read_cluster(lease)
        for layout in self._layouts:
            if self._thread.is_stopped:
                return
            self._task = (
                f"{layout.name}: checking the results" if self._choices.check else f"{layout.name}: first calls"
            )
            scaled = _scaled(layout, scale, size_scale)
            probes, seconds = self._probe(lease, layout, scaled, self._choices.check)
            predicted = self._predict(layout, scaled)
            self._measurements.append(
                _Measurement(layout, scaled, _variants(layout, scaled), probes, predicted, seconds)
            )
            self._n_done += 1

    def _host_scale(self) -> float:
        """Return the scale that limits the messages of a layer without GPUs."""
        most = BACKENDS[self._engines.backend].rehearsed_bytes
        if most is None:
            return 1.0
        # Calls that do not repeat, such as all gradients at once, get smaller with the number of layers.
        sizes = [
            (call.repeats > 1 or call.micro_batches > 1, call.size_bytes)
            for layout in self._layouts
            for call, axis in zip(layout.calls, layout.axis_of, strict=True)
            if axis >= 0
        ]
        return power_of_two(most / max(sizes)[1])

    def _find_scale(self, lease: Lease, size_scale: float) -> float:
        """Return the part of a step that takes about `_STEP_US` on the slowest layout."""
        longest = 0.0
        for layout in self._layouts:
            if self._thread.is_stopped:
                break
            self._task = f"{layout.name}: choosing the scale"
            whole = _scaled(layout, 1.0, size_scale)
            probed = _scaled(layout, 1.0, size_scale, most_bytes=_PROBED_BYTES)
            probes, _ = self._probe(lease, layout, probed, check=False)
            step_us = _flops(whole) / self._flops_per_us
            for index, (call, small) in enumerate(zip(whole.calls, probed.calls, strict=True)):
                if call.step is not None and small.step is not None:
                    ratio = (call.step.size_bytes or 1) / (small.step.size_bytes or 1)
                    step_us += whole.n_calls(index) * probes[small.axis, small.step].time_us * ratio
            longest = max(longest, step_us)
        return min(1.0, _STEP_US / max(longest, 1.0))

    def _fit(self, scale: float, size_scale: float, memory: int) -> float:
        """Return the size scale at which the buffers of all layouts fit into the memory."""
        for _ in range(64):
            needed = max(_scaled(layout, scale, size_scale).buffer_bytes for layout in self._layouts)
            if needed <= memory:
                return size_scale
            if self._size_scale is not None:
                fits = power_of_two(size_scale * memory / needed)
                raise BenchError(
                    f"the messages of a step take {format_size(needed)} per rank, but {format_size(max(memory, 0))} "
                    "may be used",
                    hint=Hint("pass {}", Argument("size_scale", float(f"{fits:g}"))),
                )
            size_scale /= 2
        raise BenchError(f"the ranks have no memory for messages: {format_size(max(memory, 0))} may be used")

    def _read_cluster(self, lease: Lease) -> Cluster:
        """Return the machine of the engines."""
        hosts = [info.host for info in self._engines.ranks]
        firsts = [hosts.index(host) for host in dict.fromkeys(hosts)]
        replies = lease.round(describe_rank, None, WORLD, (firsts,)).run()
        raise_first_error(replies, "describing the hosts", self._engines.ranks)
        return cluster_from_hosts([replies[rank].value["host"] for rank in firsts])

    def _predict(self, layout: _Layout, scaled: _Scaled) -> Floats:
        """Predict the time of each call at the rehearsed size."""
        predicted = np.full((len(layout.calls), 3), math.nan)
        if self._why_unpredicted or self._cluster is None:
            return predicted
        numbers = [number for number, call in enumerate(scaled.calls) if call.step is not None]
        sizes = np.array([scaled.calls[number].step.size_bytes for number in numbers])  # type: ignore[union-attr]
        calls = [
            replace(layout.calls[number], size_bytes=max(int(size), 1))
            for number, size in zip(numbers, sizes, strict=True)
        ]
        try:
            frame = price(calls, layout.mesh, self._cluster, experts=layout.experts)
        except MeshlabError as error:
            self._why_unpredicted = error.summary
            return predicted
        predicted[numbers] = frame[["time_us", "time_us_lo", "time_us_hi"]].to_numpy()
        return predicted

    def _probe(
        self, lease: Lease, layout: _Layout, scaled: _Scaled, check: bool
    ) -> tuple[dict[tuple[int, Step], CallProbe], float]:
        """Measure each different call briefly. Return the times by call, and the expected duration of a step."""
        distinct = scaled.distinct
        flops = max((call.flops for block in scaled.schedule.blocks for call in block.calls), default=0.0)
        values = self._call(lease, probe_calls, layout, distinct, self._options, flops, check, deadline_s=None)
        probes, self._flops_per_us = values[0]
        wrong = [[probe.n_wrong for probe in rank_probes] for rank_probes, _ in values]
        by_call = {
            key: CallProbe(probe.time_us, None if probe.n_wrong is None else sum(counts))
            for key, probe, *counts in zip(distinct, probes, *wrong, strict=True)
        }
        step_us = _flops(scaled) / self._flops_per_us + sum(
            scaled.n_calls(index) * by_call[call.axis, call.step].time_us
            for index, call in enumerate(scaled.calls)
            if call.step is not None
        )
        return by_call, step_us / 1e6

    def _measure(self, leases: Sequence[Lease]) -> None:
        (lease,) = leases
        for number in range(self._choices.rounds):
            # A B, B A, A B, …: over two rounds, a linear drift of the clocks adds the same time to every layout.
            for measurement in self._measurements[:: -1 if number % 2 else 1]:
                if self._thread.is_stopped:
                    return
                self._task = lease.task = f"{measurement.layout.name}, round {number + 1} of {self._choices.rounds}"
                expected_s = measurement.seconds * (self._choices.steps + 1) * len(measurement.variants)
                values = self._call(
                    lease,
                    measure_steps,
                    measurement.layout,
                    tuple(ScheduledStep(measurement.scaled.schedule, variant) for variant in measurement.variants),
                    self._options,
                    self._choices.steps,
                    0,
                    deadline_s=max(self._engines.deadline_s, 5 * expected_s),
                )
                measurement.rounds.append(
                    np.stack([times.steps for times in values], axis=2)
                )  # variants, repetitions, ranks, columns
                self._n_done += 1

    def result(self) -> Rehearsal:
        """Return the rounds that all layouts have completed."""
        n = min(len(measurement.rounds) for measurement in self._measurements)
        sharing = sharing_of(self._engines)
        return Rehearsal(
            layouts=tuple(_rehearsed_layout(measurement, n) for measurement in self._measurements),
            where=self._engines.where,
            backend=self._engines.backend,
            sharing=sharing,
            size_scale=self._size_scale or 1.0,
            compute=self._options.compute,
            flops_per_us=self._flops_per_us,
            why_wait=self._why_wait,
            overlaps=self._options.overlaps,
            why_unpredicted=self._why_unpredicted,
            effect=self._choices.effect,
        )


def _flops(scaled: _Scaled) -> float:
    """Return the floating-point operations of the rehearsed step."""
    blocks = scaled.schedule.blocks
    return scaled.schedule.micro_batches * sum(
        block.repeats * sum(call.flops for call in block.calls) for block in blocks
    )


def _variants(layout: _Layout, scaled: _Scaled) -> tuple[Variant, ...]:
    """Return the parts of a step to time: everything, computation alone, and each axis alone."""
    every = tuple(range(len(layout.sets)))
    variants = [Variant(True, every), Variant(True, ()), *(Variant(False, (axis,)) for axis in every)]
    if scaled.schedule.micro_batches < layout.micro_batches:
        calls = [call for call in scaled.calls if call.step is not None]
        singles = {call.axis for call in calls if call.is_single}
        repeated = {call.axis for call in calls if not call.is_single}
        if singles:
            variants.append(Variant(True, every, is_steady=True))
        variants += [Variant(False, (axis,), is_steady=True) for axis in sorted(singles & repeated)]
    return tuple(variants)


def _rehearsed_layout(measurement: _Measurement, n: int) -> RehearsedLayout:
    layout, scaled = measurement.layout, measurement.scaled
    calls = []
    for index, (job_call, call) in enumerate(zip(layout.calls, scaled.calls, strict=True)):
        if call.step is not None:
            probe = measurement.probes[call.axis, call.step]
            calls.append(
                RehearsedCall(
                    job_call,
                    call.axis,
                    call.step.size_bytes or 0,
                    scaled.n_calls(index),
                    probe.time_us,
                    probe.n_wrong,
                    tuple(measurement.predicted[index].tolist()),
                )
            )
    return RehearsedLayout(
        name=layout.name,
        mesh=layout.mesh,
        axes=tuple(name for _, name in layout.sets),
        axis_ranks=layout.n_ranks,
        calls=tuple(calls),
        micro_batches=(scaled.schedule.micro_batches, layout.micro_batches),
        layers=scaled.layers,
        bubble=layout.bubble,
        variants=measurement.variants,
        times=np.stack(measurement.rounds[:n]),
    )
