"""Plans as data. A plan is a product of choices, and a step is one point of that product."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from meshlab.base._collectives import COUNTED
from meshlab.base._errors import BenchError, did_you_mean, printable
from meshlab.base._forwarding import implementation
from meshlab.base._hints import Argument, Hint
from meshlab.base._units import format_size, parse_sizes
from meshlab.comm._backend import BUFFERS, MODES, CallConfig, Mode
from meshlab.comm._catalog import CATALOG, find_collective
from meshlab.comm._elements import ReduceOp, find_dtype, find_op
from meshlab.comm._validate import check_config
from meshlab.mesh._axes import as_integer, short
from meshlab.mesh._mesh import MeshLike, as_mesh
from meshlab.mesh._traffic import Traffic, as_traffics
from meshlab.plans._arguments import DEFAULTS, PlanArguments, check_arguments, takes_plan_arguments
from meshlab.plans._functions import name_of
from meshlab.plans._options import CALL_OPTIONS, CONFIGURED, OPTIONS, PlannedOptions, option_value, repr_with_options
from meshlab.plans._sampling import Sampling
from meshlab.plans._steps import (
    GROUPINGS,
    PAIRED,
    Function,
    Grouping,
    PlannedCall,
    Step,
    axes_of,
    expand_steps,
    option_combinations,
)

if TYPE_CHECKING:
    import pandas as pd

    from meshlab.benchmark._estimate import Estimate
    from meshlab.traces._trace import Trace


_SEVERAL = tuple(name for name, option in CALL_OPTIONS.items() if option.takes_several and name != "traffic")


@dataclass(frozen=True, init=False, repr=False)
class Plan(PlannedOptions):
    """The choices of a benchmark: collectives, axes, sizes and the way to measure them.

    Collectives, axes, sizes, element types, operations, modes, placements and groupings take one value or several. The
    plan is the product of all values.

    Parameters
    ----------
    collective : str, callable, or sequence of these
        Collectives by name, such as ``"all_reduce"``, or functions that take a `Communicator`.
    axis : str or sequence of str
        Axes of the mesh, or group sets by name: ``"tp"``, ``"dp-cp"``, ``"world"``, or a custom group.
    sizes : str, int or sequence of these, default "1K:16M"
        Message sizes in bytes: a range of powers of two such as ``"1K:64M"``, or a list such as ``"1M, 25M, 40M"``. For
        gather-like collectives this is the total size.
    dtype : str or sequence of str, default "float32"
        Element types, by their NumPy names or short names such as ``"bf16"``.
    op : str, ReduceOp, or sequence of these, default "sum"
        Reduce operations, for example ``"max"`` or ``"pre_mul_sum(0.5)"``.
    mode : str or sequence of str, default "pipelined"
        Ways to time the calls: ``"isolated"`` (one call at a time, with aligned starts), ``"pipelined"`` (calls back to
        back) or ``"graph"`` (captured once and replayed, GPUs only).
    in_place : bool or sequence of bool, default False
        Whether input and output share memory. With both values, collectives that cannot work in place are measured out
        of place only.
    root : int, default 0
        The root, as a rank of the group, for collectives that have one.
    grouping : str or sequence of str, default "together"
        The ranks that are active at the same time: ``"together"`` (all groups of an axis), ``"alone"`` (one group at a
        time), ``"pairs"`` (every two ranks of a group, with ``"send"`` or ``"send_recv"``). With both ``"together"``
        and ``"alone"``, the two alternate in blocks of batches, so that a drift affects both of them.
    concurrent : mapping of str to str, optional
        Collectives that other axes run at the same time, such as ``{"dp": "reduce_scatter"}``, with the same size and
        mode. Both collectives are also measured in isolation, in turns with the concurrent axes. On GPUs, batches
        during which the other axis finished are excluded, and their samples have the status ``uncovered``.
    launches : int, default 1
        Number of repetitions of the plan, each on new ranks: the variation between launches is part of every
        comparison. Ranks that another process started only get new communicators.
    shuffle : bool, default False
        Whether to measure the steps in random order, so that a drift of the clocks does not bend the curves.
    seed : int, default 0
        Seed of the random order.
    buffers : str or sequence of str, default "plain"
        Kinds of buffers: ``"plain"`` (memory of NCCL), ``"registered"`` (by each rank, for transfers without a copy) or
        ``"symmetric"`` (a window that all ranks register together, NCCL 2.27 or newer), as ``-R 0``, ``-R 1`` and
        ``-R 2`` of nccl-tests. Only NCCL has others than plain ones.
    algorithm, protocol, cta_policy : str or sequence of str, optional
        The algorithm (such as ``"ring"``), the protocol (``"ll"``, ``"ll128"``, ``"simple"``) and the policy for thread
        blocks (``"default"``, ``"efficiency"``, ``"zero"``) of the calls, see `Communicator.configured`. NCCL 2.31 or
        newer. None, the default, lets NCCL choose, and can be one of several values. Messages and ``all_to_all_v``
        have no choice, and are measured once.
    min_ctas, max_ctas : int or sequence of int, optional
        Minimum and maximum number of NCCL's thread blocks. NCCL 2.31 or newer. By default NCCL chooses.
        Combinations in which the minimum is larger than the maximum are omitted.
    alignment_bytes : int, default 0
        Offset of both buffers from an aligned address, in bytes: a multiple of the element size. With ``-u N``,
        nccl-tests moves its buffers by N elements.
    n_aggregated : int, default 1
        Number of calls that are issued together as one group, each with its own buffers, as with ``-m`` of nccl-tests.
        NCCL starts them with one kernel. MPI and threads start all of them and then wait for all. The time is that of
        one call: the time of the group, divided by `n_aggregated`.
    traffic : Traffic, str, path, numpy.ndarray or sequence of these, optional
        Bytes between the ranks of ``"all_to_all_v"``: a `Traffic`, its text such as ``"zipf:1.2"``, or the file of a
        matrix. Patterns are scaled so that a rank sends a size on average, and a matrix of bytes is measured once, as
        it is. By default the chunks are equal. Several traffics take turns in blocks of batches, see
        `meshlab.analysis.traffics`.
    sampling : {"default", "quick", "thorough"} or Sampling, optional
        Number of batches of each step, and when to stop. The names are described in `Sampling.named`.
    check : bool, default True
        Whether to compare the result of each step with the expected result, outside the timed part.
    functions : mapping of str to callable, optional
        Functions by name, for names in `collective`. Functions that are passed in `collective` are added.
    calls : sequence of PlannedCall, optional
        The calls of a job. Of the product, only these are measured. `Plan.from_trace` fills it in.

    Raises
    ------
    BenchError
        If a choice has no value, or an unknown one.
        If collectives, groupings and placements are incompatible.
    CommunicatorError
        If a collective, an element type or an operation is unknown.
    ParseError
        If a size cannot be read.

    Examples
    --------
    >>> import meshlab as ml
    >>> plan = ml.Plan(["all_reduce", "broadcast"], "tp", sizes="1K:4K")
    >>> steps = plan.steps("dp=2, tp=2")
    >>> len(steps), str(steps[0]).replace(chr(0x2009), " ")
    (6, 'all_reduce 1 KiB float32 along tp, pipelined')
    """

    collective: tuple[str, ...]
    axis: tuple[str, ...]
    sizes: tuple[int, ...]
    dtype: tuple[str, ...]
    op: tuple[str, ...]
    mode: tuple[Mode, ...]
    in_place: tuple[bool, ...]
    root: int
    sampling: Sampling
    check: bool
    grouping: tuple[Grouping, ...]
    concurrent: tuple[tuple[str, str], ...]
    launches: int
    shuffle: bool
    seed: int
    functions: Mapping[str, Function | None] = field(compare=False, repr=False)
    calls: tuple[PlannedCall, ...] = field(repr=False)

    @takes_plan_arguments
    def __init__(
        self,
        collective: str | Function | Sequence[str | Function],
        axis: str | Sequence[str],
        sizes: str | int | Sequence[int | str] = "1K:16M",
        *,
        functions: Mapping[str, Function | None] | None = None,
        calls: Sequence[PlannedCall] = (),
        **arguments: Unpack[PlanArguments],
    ) -> None:
        check_arguments("Plan", arguments)
        named = dict(functions or {})
        choice: dict[str, Any] = {**DEFAULTS, **arguments}
        values: dict[str, Any] = {
            "collective": tuple(_name(name, named) for name in _several(collective)),
            "axis": _several(axis),
            "sizes": parse_sizes(list(sizes) if isinstance(sizes, Iterable) and not isinstance(sizes, str) else sizes),
            "dtype": tuple(find_dtype(name).name for name in _several(choice["dtype"])),
            "op": tuple(str(find_op(name)) for name in _several(choice["op"])),
            **{name: _several(choice[name]) for name in ("mode", "in_place", "grouping")},
            **{name: _several(choice[name]) for name in _SEVERAL},
            "traffic": as_traffics(choice["traffic"]),
        }
        for name, several in values.items():
            if not several:
                raise BenchError(f"the plan has no {name}; pass at least one")
            values[name] = tuple(dict.fromkeys(several))
        concurrent, sampling = choice["concurrent"], "default" if choice["sampling"] is None else choice["sampling"]
        pairs = list(concurrent.items() if isinstance(concurrent, Mapping) else _several(concurrent))
        if not all(isinstance(pair, (tuple, list)) and len(pair) == 2 for pair in pairs):
            raise BenchError(
                f"concurrent must map axes to collectives, not {short(concurrent)}", hint='pass {"dp": "all_reduce"}'
            )
        numbers = [name for name, option in CALL_OPTIONS.items() if not option.takes_several]
        values |= {
            **{name: _whole(name, choice[name]) for name in ("root", "launches", "seed", *numbers)},
            "sampling": sampling if isinstance(sampling, Sampling) else Sampling.named(sampling),
            "check": choice["check"],
            "concurrent": tuple((str(axis), str(name)) for axis, name in pairs),
            "shuffle": bool(choice["shuffle"]),
            "functions": MappingProxyType({name: named[name] for name in values["collective"] if name in named}),
            "calls": tuple(calls),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)  # the dataclass is frozen
        self._check()

    @classmethod
    def from_trace(cls, trace: Trace, mesh: MeshLike | None = None, **arguments: Unpack[PlanArguments]) -> Plan:
        """Return a plan of exactly the calls of a job: one step per different call.

        `calls` contains how often each of them occurs in a step of the job, or in all of the trace if it has no steps.

        Parameters
        ----------
        trace : Trace
            The recorded job.
        mesh : DeviceMesh or str, optional
            The mesh of the job. By default that of its process groups, `Trace.mesh`. Measure the plan on it.
        **arguments
            Further arguments of a plan, such as ``buffers``. Traces contain neither operations nor roots.

        Raises
        ------
        BenchError
            If no call of the trace can be measured, for example because the files do not contain sizes.
        MeshError
            If the trace contradicts the mesh.

        Warns
        -----
        UserWarning
            If some calls cannot be measured. The warning lists them.

        Examples
        --------
        >>> import meshlab as ml
        >>> plan = ml.Plan.from_trace(ml.Trace.example())
        >>> [(call.collective, call.axis, call.size_bytes, call.per_step) for call in plan.calls][:2]
        [('all_reduce', 'tp', 16777216, 4.0), ('all_reduce', 'dp', 134217728, 1.0)]
        >>> len(plan.steps(ml.Trace.example().mesh()))
        3
        """
        return implementation(Plan.from_trace)(trace, mesh, **arguments)

    __repr__ = repr_with_options

    def __getstate__(self) -> dict[str, Any]:
        # Like a saved run, a pickle has only the names of functions: they may be lambdas, which cannot be pickled.
        return {**vars(self), "functions": dict.fromkeys(self.functions)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, functions=MappingProxyType(state["functions"]))

    def _check(self) -> None:
        _check_known("mode", self.mode, MODES)
        _check_known("grouping", self.grouping, GROUPINGS)
        _check_known("buffers", self.buffers, BUFFERS)
        for name in (*self.axis, *(name for name, _ in self.concurrent)):
            if not isinstance(name, str) or name != printable(name):  # half of a surrogate pair is no text
                raise BenchError(f"axis must be the name of an axis or a group set, not {short(name)}")
        self._check_options()
        for call in self.calls:
            sized = (call.collective, call.axis) if not call.size_bytes else astuple(call)[:4]
            values = (self.collective, self.axis, self.sizes, self.dtype)
            if any(value not in choices for value, choices in zip(sized, values, strict=False)):
                raise BenchError(f"the plan lacks a value of its call {call}", hint="create it with Plan.from_trace()")
        if self.launches < 1:
            raise BenchError(f"launches must be at least 1, not {self.launches}")
        for name in (*self.collective, *(name for _, name in self.concurrent)):
            if name not in self.functions:
                self._check_collective(name)
        if self.concurrent and ("together" not in self.grouping or self.functions):
            raise BenchError(
                "functions and the groupings alone and pairs cannot run next to a concurrent axis",
                hint=Hint("measure them in a separate run, without {}", Argument("concurrent")),
            )
        for name in (*self.collective, *(name for _, name in self.concurrent)) if self.concurrent else ():
            if not find_collective(name).has_size:
                raise BenchError(
                    f"{name} moves no data, so it cannot run next to a concurrent axis",
                    hint=Hint("measure it in a separate run, without {}", Argument("concurrent")),
                )

    def _check_options(self) -> None:
        for name in CONFIGURED:
            for value in getattr(self, name):
                check_config(CallConfig(**{name: value}))
        if not option_combinations(self):
            raise BenchError(
                f"min_ctas={min(number or 1 for number in self.min_ctas)} is larger than every max_ctas of the plan"
            )
        for name, option in CALL_OPTIONS.items():
            values = getattr(self, name) if option.takes_several else (getattr(self, name),)
            for number in values:
                if option.least is not None and _whole(name, number) < option.least:
                    raise BenchError(f"{name} must be at least {option.least}, not {number}")
        measured = self._sized()
        sizes = {name: find_dtype(name).itemsize for name in self.dtype}
        for name, size in sizes.items():
            if self.alignment_bytes < 0 or self.alignment_bytes % size:
                raise BenchError(
                    f"alignment_bytes must be a multiple of the {size} bytes of a {name}, not {self.alignment_bytes}"
                )
        options = [name for name in OPTIONS if getattr(self, name) not in ((OPTIONS[name],), OPTIONS[name])]
        if options and not measured:
            raise BenchError(
                f"{' and '.join(options)} cannot be chosen for functions, which allocate and call what they need",
                hint="use comm.empty(…, symmetric=True) and comm.configured() in the function",
            )
        self._check_traffic(options, measured)
        chosen = [name for name in options if name in CONFIGURED]
        if chosen and not any(find_collective(name).is_configurable for name in measured):
            raise BenchError(
                f"{' and '.join(chosen)} cannot be chosen for {', '.join(measured)}, which NCCL runs as messages",
                hint="omit them, or measure a different collective",
            )

    def _check_traffic(self, options: Sequence[str], measured: Sequence[str]) -> None:
        names = (*measured, *(name for _, name in self.concurrent))
        if "traffic" in options and not any(find_collective(name).counted for name in names):
            raise BenchError(
                f"traffic cannot be chosen for {', '.join(measured)}, which has equal chunks",
                hint=f"measure {COUNTED}, or omit it",
            )
        labels = [str(traffic) for traffic in {traffic or Traffic.even(): None for traffic in self.traffic}]
        for label in labels:
            if labels.count(label) > 1:
                raise BenchError(
                    f"two traffics have the name {label!r}, so their rows would be ambiguous",
                    hint="name one of them with traffic.named(…)",
                )

    def _sized(self) -> list[str]:
        """Return the collectives that move data, and so have sizes, dtypes and buffers."""
        return [name for name in self.collective if name not in self.functions and find_collective(name).has_size]

    def _check_collective(self, name: str) -> None:
        row = find_collective(name)
        if name == "send" and "pairs" in self.grouping:
            return
        if row.peers and not row.is_measurable:
            raise BenchError(
                f"{name} is one side of a message",
                hint=Hint(
                    "measure send_recv, which sends around a ring, or send with {}", Argument("grouping", "pairs")
                ),
            )
        if not row.in_place and False not in self.in_place:
            raise BenchError(
                f"{name} cannot work in place",
                hint=Hint("measure it out of place, without {}", Argument("in_place", True)),
            )
        if self.grouping == ("pairs",) and name not in PAIRED:
            raise BenchError(
                f"pairs of ranks support {' and '.join(PAIRED)}, not {name}",
                hint="choose one of them, or a different grouping",
            )

    def steps(self, mesh: MeshLike) -> tuple[Step, ...]:
        """Expand the plan into its steps on a mesh.

        Sizes that round to the same count on the mesh's groups become one step. Every round of pairs is a step.

        Parameters
        ----------
        mesh : DeviceMesh or str
            The mesh whose groups are measured.

        Returns
        -------
        tuple of Step
            The steps in the order of the plan, with consecutive indices.

        Raises
        ------
        MeshError
            If the mesh has no such axis or group.
        BenchError
            If the root is outside a group.
            If a group has only one rank, and therefore no pairs.
            If two concurrent axes are the same, or have different ranks.

        Examples
        --------
        >>> import meshlab as ml
        >>> [step.size_bytes for step in ml.Plan("all_gather", "tp", sizes="1, 8, 1K").steps("tp=4")]
        [16, 1024]
        """
        mesh = as_mesh(mesh)
        for axis, name in self.concurrent:
            if set(self.axis) == {axis}:
                others = ", ".join(other for other in mesh.axis_names if other != axis)
                raise BenchError(
                    f"{name} along {axis} cannot run next to {axis} itself, the only axis that is measured",
                    hint=f"choose another axis: {others}" if others else Hint("omit {}", Argument("concurrent")),
                )
        return expand_steps(self, {axis: mesh[axis] for axis in axes_of(self)})

    def order(self, n: int, launch: int) -> list[int]:
        """Return the indices of the steps of the plan in the order in which a launch measures them.

        Parameters
        ----------
        n : int
            Number of steps.
        launch : int
            Index of the launch, from 0. With ``shuffle=True`` every launch has a different order.

        Examples
        --------
        >>> import meshlab as ml
        >>> ml.Plan("all_reduce", "tp").order(3, launch=0)
        [0, 1, 2]
        """
        if not self.shuffle:
            return list(range(n))
        order: list[int] = np.random.default_rng([self.seed, launch]).permutation(n).tolist()
        return order

    def estimate(self, mesh: MeshLike, *, backend: str = "mpi", results: pd.DataFrame | None = None) -> Estimate:
        """Estimate the duration and the memory of the plan on a mesh, without starting anything.

        Parameters
        ----------
        mesh : DeviceMesh or str
            The mesh whose groups are measured.
        backend : {"mpi", "nccl", "gloo", "threads"}, default "mpi"
            The backend whose typical latency and bandwidth are assumed, for axes for which the mesh names none.
        results : pandas.DataFrame, optional
            Results of an earlier run. Times that it contains replace the assumptions.

        Returns
        -------
        Estimate
            The number of steps, the duration in seconds, and the memory in bytes.

        Examples
        --------
        >>> import meshlab as ml
        >>> estimate = ml.Plan("all_reduce", "tp", sizes="1M").estimate("tp=2")
        >>> estimate.n_steps, estimate.memory_bytes
        (1, 2097152)
        """
        return implementation(Plan.estimate)(self, as_mesh(mesh), backend=backend, results=results)

    def __str__(self) -> str:
        sizes = self.sizes
        span = format_size(sizes[0]) + (f" to {format_size(sizes[-1])}" if len(sizes) > 1 else "")
        text = f"{', '.join(self.collective)} along {', '.join(self.axis)}, "
        if self.calls:
            text = f"{len(self.calls)} call{'s' * (len(self.calls) != 1)} of a job: {text}"
        if self._sized():
            text += f"{span} ({len(sizes)} sizes), {', '.join(self.dtype)}, "
        text += ", ".join(self.mode)
        if self.grouping != ("together",):
            text += f", groups {' and '.join(self.grouping)}"
        for name, default in OPTIONS.items():
            value = getattr(self, name)
            several = value if isinstance(value, tuple) else (value,)
            if several != (default,):
                text += f", {' and '.join(option_value(name, choice) for choice in several)}"
        text += "".join(f", while {name} runs along {axis}" for axis, name in self.concurrent)
        return text + (f", {self.launches} launches" if self.launches > 1 else "")


def _check_known(what: str, names: Iterable[str], choices: Iterable[str]) -> None:
    for name in names:
        if name not in choices:
            raise BenchError(
                f"unknown {what} {name!r}{did_you_mean(name, choices)}; choose one of {', '.join(choices)}"
            )


def _whole(name: str, value: object) -> int:
    number = as_integer(value)
    if number is None or not -(1 << 63) <= number < 1 << 63:
        raise BenchError(f"{name} must be an integer of at most 64 bits, not {short(value)}")
    return number


def _several(value: Any) -> tuple[Any, ...]:
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    if value is None or isinstance(value, (int, ReduceOp)) or callable(value):
        return (value,)
    if not isinstance(value, Iterable):
        raise BenchError(f"the plan cannot use {short(value)}; pass one value or a list")
    return tuple(value)


def _name(collective: str | Function, named: dict[str, Function | None]) -> str:
    """Return the name of a collective or of a function. Add a function to `named`."""
    if isinstance(collective, str):
        return collective
    if not callable(collective):
        raise BenchError(
            f"collective must be the name of a collective or a function that takes a communicator, not {collective!r}"
        )
    name = name_of(collective)
    if name in CATALOG:
        raise BenchError(
            f"function {name!r} has the name of a collective, so its rows would be ambiguous; rename the function"
        )
    if named.get(name) not in (None, collective):
        raise BenchError(f"two functions have the name {name!r}, so their rows would be ambiguous; rename one of them")
    named[name] = collective
    return name
