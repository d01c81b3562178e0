"""The functions that start a benchmark."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from meshlab.base._backends import BACKENDS, GPU_BACKENDS
from meshlab.base._errors import BenchError
from meshlab.base._hints import Argument, Hint
from meshlab.benchmark._preparation import check_engines, check_matrices, free_memory, has_matrix
from meshlab.benchmark._run import Run, check_resumable
from meshlab.comm._catalog import find_collective
from meshlab.comm._elements import find_op
from meshlab.comm._windows import why_not_symmetric
from meshlab.engines._engines import Engines
from meshlab.engines._lease import Lease
from meshlab.mesh._axes import WORLD
from meshlab.mesh._mesh import DeviceMesh, MeshLike, as_mesh
from meshlab.plans._arguments import PlanArguments, add_documentation, check_arguments, takes_plan_arguments
from meshlab.plans._functions import name_of, with_expected
from meshlab.plans._options import CALL_OPTIONS, OPTIONS
from meshlab.plans._plan import Plan
from meshlab.plans._steps import PAIRED, Function, axes_of
from meshlab.runs._rundata import RunData
from meshlab.runs._store import check_ended, load

if TYPE_CHECKING:
    from meshlab.comm._backend import Capabilities

DEFAULT_COLLECTIVE = "all_reduce"


@takes_plan_arguments
def bench(
    engines: Engines,
    mesh: MeshLike | None = None,
    collective: str | Function | Sequence[str | Function] | Plan | None = None,
    *,
    axis: str | Sequence[str] | None = None,
    sizes: str | int | Sequence[int | str] = "1K:16M",
    expected: Function | Mapping[str, Function] | None = None,
    deadline_s: float | None = None,
    resume: RunData | str | Path | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    **arguments: Unpack[PlanArguments],
) -> Run:
    """Measure collectives, or user-defined functions, along the axes of a mesh.

    Returns immediately and measures in a background thread. ``run.estimate`` predicts the range of the duration and the
    smallest visible change, and ``run.conditions`` records what else the hosts do. Steps whose buffers exceed the free
    memory are skipped, and their rows have the status ``skipped``. A matrix of bytes as `traffic`, which has only one
    size, raises before the run starts.

    Parameters
    ----------
    engines : Engines
        The ranks. They are busy until the run ends.
    mesh : DeviceMesh or str, optional
        The mesh whose groups are measured, with one rank per engine. By default the mesh of `resume`, or else a mesh
        with all ranks on one axis.
    collective : str, callable, sequence of these, or Plan, default "all_reduce"
        Collectives by name, or functions that take a `Communicator`. If a function returns a callable, that is timed
        instead of the function itself. The rows of a function have its name, but no size. If a `Plan` is passed, all
        other plan arguments are ignored.
    axis : str or sequence of str, optional
        Axes of the mesh, or group sets by name: ``"tp"``, ``"dp-cp"``, ``"world"``, or a custom group. By default all
        axes.
    sizes, **arguments
        The arguments of `Plan`.
    expected : callable or mapping of str to callable, optional
        The expected result of a function in `collective`, or of several by name: a function that takes a `Communicator`
        and returns the array that the timed call has to return on that rank. It is compared once, outside the timed
        part, and ``n_wrong`` counts the elements that differ. Floating-point numbers may differ by as much as the order
        of additions changes. Without it, the results of a function are not checked, so they do not pass.
    deadline_s : float, optional
        Time limit of a step beyond the `max_s` of its sampling, in seconds, after which its ranks are considered stuck.
        By default that of the engines.
    resume : RunData or path, optional
        A cancelled or failed run, or the folder of a saved one, to continue. The new run has its plan, unless a `Plan`
        is passed, and takes over its rows. Only steps that were not measured before are measured.
    out : path, optional
        A folder to which the run is written while it is measured, after every step. If this process is killed, only the
        current step is lost, with the steps that take turns with it, because they are compared within the same seconds:
        `Run.load` reads the folder, and ``resume=`` continues the run, also in the same folder.
        At the end the folder is the same as after `Run.save`. If the folder can no longer be written, for example
        because the disk is full, the run continues in memory, with a warning.
    overwrite : bool, default False
        If True, replace a different run in `out`, as soon as a step has been measured.

    Returns
    -------
    Run
        The run. As the last expression of a notebook cell it is displayed live. In a script, call ``run.wait()`` for
        its results.

    Raises
    ------
    MeshlabError
        If the plan does not match the mesh, or the mesh does not match the engines.
        If the backend does not support a collective, an element type, an operation, a mode, or an option.
        If the engines are busy.
        If the buffers of a matrix of bytes exceed the memory.
        If `resume` has a different mesh, system or sampling, or is still being measured.
        If `out` holds a different run, or cannot be written.

    Examples
    --------
    >>> import meshlab as ml
    >>> with ml.launch(4, backend="threads") as engines:
    ...     run = ml.bench(engines, "dp=2, tp=2", "all_reduce", axis="tp", sizes="1K, 4K")
    ...     results = run.wait()
    >>> results[["group", "n_ranks", "size_bytes", "n_wrong", "status"]]
      group  n_ranks  size_bytes  n_wrong status
    0  tp_0        2        1024        0     ok
    1  tp_1        2        1024        0     ok
    2  tp_0        2        4096        0     ok
    3  tp_1        2        4096        0     ok

    A run that is written to a folder while it is measured:

    >>> import tempfile
    >>> with ml.launch(2, backend="threads") as engines, tempfile.TemporaryDirectory() as folder:
    ...     run = ml.bench(engines, sizes="1K, 4K", out=f"{folder}/run1")
    ...     results = run.wait()
    ...     again = ml.bench(engines, resume=f"{folder}/run1")  # after a crash, this measures the missing steps
    ...     len(again.wait()), ml.Run.load(f"{folder}/run1").state
    (2, 'done')

    A user-defined function, for example the all_reduce calls of a model's gradient buckets in sequence:

    >>> def buckets(comm):
    ...     calls = [comm.prepare("all_reduce", x, x) for x in map(comm.xp.zeros, (1000, 250, 250))]
    ...     return lambda: [call() for call in calls]
    >>> with ml.launch(4, backend="threads") as engines:
    ...     results = ml.bench(engines, "dp=2, tp=2", buckets, axis="dp", mode="isolated").wait()
    >>> results[["collective", "group", "size_bytes", "n_wrong", "status"]]
      collective group  size_bytes  n_wrong status
    0    buckets  dp_0        <NA>     <NA>     ok
    1    buckets  dp_1        <NA>     <NA>     ok
    """
    check_engines(engines)
    check_arguments("bench", arguments)
    if isinstance(resume, (str, Path)):
        check_ended(resume)
    earlier = load(resume) if isinstance(resume, (str, Path)) else resume
    if earlier is not None and not isinstance(earlier, RunData):
        raise BenchError(f"resume must be a run or the folder of a saved run, not {type(earlier).__name__}")
    if mesh is None:
        mesh = DeviceMesh(all_ranks=engines.world_size) if earlier is None else earlier.mesh
    mesh = as_mesh(mesh, fill=engines.world_size)
    if expected is not None and isinstance(collective, Plan):
        raise BenchError(
            "expected belongs to functions in collective, not to a Plan", hint="pass the functions themselves"
        )
    collective = with_expected(collective, expected)
    if earlier is not None:
        plan = _resumed_plan(earlier, collective)
    elif isinstance(collective, Plan):
        plan = collective
    else:
        plan = Plan(
            DEFAULT_COLLECTIVE if collective is None else collective,
            mesh.axis_names if axis is None else axis,
            sizes=sizes,
            **arguments,
        )
    check_fit(engines, mesh, plan)
    if earlier is not None:
        check_resumable(earlier, engines, mesh, plan)
    if plan.launches > 1 and engines._rank_set.is_attached:
        warnings.warn(
            f"the {plan.launches} launches are new communicators on the same processes, which meshlab has not started "
            "and cannot start again, so they do not show how much launches differ; repeat the run with new engines "
            "for that",
            stacklevel=2,
        )
    return Run(engines, mesh, plan, deadline_s=deadline_s, resume=earlier, out=out, overwrite=overwrite)


add_documentation(Plan, bench)


def bench_pairs(
    engines: Engines,
    mesh: MeshLike | None = None,
    *,
    axis: str = WORLD,
    sizes: str | int | Sequence[int | str] = "64M",
    **arguments: Any,
) -> Run:
    """Measure messages between every two ranks, in one direction and in both directions simultaneously.

    The pairs of one round share no rank and run at the same time. ``run.matrix()`` and ``run.pairs()`` show slow links.

    Parameters
    ----------
    engines, mesh
        As in `bench`.
    axis : str, default "world"
        The axis or group set. Every two ranks of a group are a pair. By default all ranks are one group.
    sizes : str, int or sequence of these, default "64M"
        Message sizes in bytes.
    **arguments
        Further arguments of `bench`.

    Returns
    -------
    Run
        The run. Its rows have the collectives ``send`` and ``send_recv``, and the ranks ``src_rank`` and ``dst_rank``.

    Raises
    ------
    MeshlabError
        If the mesh does not match the engines, or its groups have only one rank.
        If the engines are busy.

    Examples
    --------
    >>> import meshlab as ml
    >>> with ml.launch(3, backend="threads") as engines:
    ...     results = ml.bench_pairs(engines, sizes="1K").wait()
    >>> sends = results[results["collective"] == "send"]
    >>> sorted(zip(sends["src_rank"].tolist(), sends["dst_rank"].tolist()))
    [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]
    """
    return bench(engines, mesh, PAIRED, axis=axis, sizes=sizes, grouping="pairs", **arguments)


def _resumed_plan(run: RunData, collective: Any) -> Plan:
    """Return the plan of a resumed run. Functions are not saved, so they must be passed again after loading a run."""
    if isinstance(collective, Plan):
        return collective
    plan = run.plan
    if collective is not None:
        functions = [collective] if callable(collective) else list(collective)
        names = {name_of(function): function for function in functions}
        if not all(callable(function) for function in functions) or set(names) - set(plan.functions):
            raise BenchError(
                "collective must be omitted to resume a run, or be a Plan or the functions of the run "
                f"({', '.join(plan.functions) or 'it has none'}), not {collective!r}"
            )
        plan = replace(plan, functions={**plan.functions, **names})
    return plan


def check_fit(engines: Engines, mesh: DeviceMesh, plan: Plan) -> None:
    """Raise unless the engines can measure the plan on the mesh."""
    engines.check_mesh(mesh)
    axes = axes_of(plan)
    backends = dict.fromkeys(engines.backend_of(mesh, axis) for axis in axes)
    if plan.concurrent and len({name in GPU_BACKENDS for name in backends}) > 1:
        raise BenchError(
            "two axes cannot run at the same time on a GPU and a CPU: "
            + " and ".join(f"{axis} uses {engines.backend_of(mesh, axis)}" for axis in axes),
            hint="measure them one after the other, or choose axes with the same backend",
        )
    for backend in backends:
        _check_backend(engines.capabilities(backend), plan)
    if has_matrix(plan):
        with Lease(engines, "reading the free memory", is_query=True) as lease:
            free = free_memory(lease, "reading the free memory")
        check_matrices(plan, mesh, free, [info.host for info in engines.ranks])
    for name, function in plan.functions.items():
        if function is None:
            raise BenchError(f"function {name!r} is not saved with its run; pass it again as collective")


def _check_backend(can: Capabilities, plan: Plan) -> None:
    """Raise unless a backend supports the calls of a plan."""
    collectives = [name for name in plan.collective if name not in plan.functions] + [
        name for _, name in plan.concurrent
    ]
    for what, names, supported in (
        ("collective", collectives, can.collectives),
        ("dtype", plan.dtype, can.dtypes),
        ("op", [find_op(name).name for name in plan.op], can.ops),
        ("mode", plan.mode, can.modes),
    ):
        for name in names:
            if name not in supported:
                raise BenchError(
                    f"{can.backend} does not support {what} {name!r}; choose one of {', '.join(supported)}"
                )
    can_reduce = can.dtypes if can.reduce_dtypes is None else can.reduce_dtypes
    if any(find_collective(name).reduces for name in collectives):
        for name in plan.dtype:
            if name not in can_reduce:
                raise BenchError(f"{can.backend} cannot reduce {name!r}; choose one of {', '.join(can_reduce)}")
    check_options(can, plan)
    if plan.concurrent and BACKENDS[can.backend].enqueues and "isolated" in plan.mode:
        raise BenchError(
            f"two axes cannot run at the same time in isolated mode with {can.backend}: the host waits before each "
            "call, which would also block the other axis",
            hint=Hint("choose {} or 'pipelined'", Argument("mode", "graph")),
        )


def check_options(can: Capabilities, plan: Plan) -> None:
    """Raise unless the backend has the buffers and the choices per call of a plan."""
    facts = BACKENDS[can.backend]
    if others := [name for name in plan.buffers if name not in facts.buffers]:
        having = next(facts for facts in BACKENDS.values() if set(others) <= set(facts.buffers))
        raise BenchError(
            f"{can.backend} has only {' and '.join(facts.buffers)} buffers, not {' and '.join(others)}: only "
            f"{having.where} has them, on GPUs",
            hint=Hint("omit {}, or launch with {}", Argument("buffers"), Argument("backend", having.name)),
        )
    if "symmetric" in plan.buffers and (reason := why_not_symmetric(can)):
        raise BenchError(
            f"these engines have no symmetric buffers: {reason}",
            hint=Hint("omit {}", Argument("buffers", "symmetric")),
        )
    for fact in dict.fromkeys(option.requires for option in CALL_OPTIONS.values() if option.requires):
        names = [name for name, option in CALL_OPTIONS.items() if option.requires == fact]
        chosen = [name for name in names if getattr(plan, name) not in (OPTIONS[name], (OPTIONS[name],))]
        reason = can.facts.get(fact, "no: only NCCL has it, on GPUs")
        if chosen and reason != "yes":
            example = facts.example_variable
            by_environment = f", or choose for all calls, as with {example}" if example else ""
            raise BenchError(
                f"{can.backend} cannot choose {' and '.join(chosen)} per call: {reason.removeprefix('no: ')}",
                hint=Hint(f"omit {' and '.join('{}' for _ in chosen)}{by_environment}", *map(Argument, chosen)),
            )
