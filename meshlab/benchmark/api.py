"""The calls that start a benchmark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from meshlab.benchmark.run import Run, check_resumable
from meshlab.comm.catalog import find_collective
from meshlab.comm.elements import ReduceOp, find_op
from meshlab.engines.engines import Engines
from meshlab.errors import BenchError, EngineError
from meshlab.frames.plan import Function, Plan, Sampling
from meshlab.frames.rundata import RunData
from meshlab.mesh.axes import WORLD
from meshlab.mesh.mesh import DeviceMesh, MeshLike, as_mesh
from meshlab.units import parse_sizes

if TYPE_CHECKING:
    import pandas as pd

    from meshlab.comm.communicator import Communicator

__all__ = ["bench", "bench_pairs", "overlap"]


def bench(
    engines: Engines,
    mesh: MeshLike | None = None,
    collective: str | Function | Sequence[str | Function] | Plan | None = None,
    *,
    axis: str | Sequence[str] | None = None,
    sizes: str | int | Sequence[int | str] = "1K:16M",
    dtype: str | Sequence[str] = "float32",
    op: str | ReduceOp | Sequence[str | ReduceOp] = "sum",
    mode: str | Sequence[str] = "pipelined",
    in_place: bool | Sequence[bool] = False,
    root: int = 0,
    grouping: str | Sequence[str] = "together",
    concurrent: Mapping[str, str] | Sequence[tuple[str, str]] = (),
    launches: int = 1,
    shuffle: bool = False,
    seed: int = 0,
    sampling: Sampling | None = None,
    check: bool = True,
    deadline_s: float | None = None,
    resume: RunData | None = None,
) -> Run:
    """Measure collectives, or functions of your own, along axes of a mesh.

    Returns at once; the measuring goes on in a thread. ``print(run.estimate)`` says how long it should take. A step
    whose buffers do not fit into the memory of its ranks is left out: its rows have the status ``skipped``.

    Parameters
    ----------
    engines : Engines
        The ranks. They are busy until the run ends.
    mesh : DeviceMesh or str, optional
        What the groups are; it has as many ranks as there are engines. Left out, that of `resume`, else all ranks.
    collective : str, callable, sequence of these, or Plan, optional
        What to measure; ``"all_reduce"`` by default. A function takes the rank's `Communicator`; where it returns
        something that can be called, that is timed, else the function itself. Its rows carry its name, and no size. A
        plan says everything, and the other arguments of the plan are not used then.
    axis : str or sequence of str, optional
        Where; all axes of the mesh by default.
    sizes, dtype, op, mode, in_place, root, grouping, concurrent, launches, shuffle, seed, sampling, check
        As in `Plan`.
    deadline_s : float, optional
        How long one step may take before its ranks count as stuck; the engines' own deadline by default.
    resume : RunData, optional
        A run that was cancelled or failed, or that `Run.load` has read: go on where it stopped. Its plan is used unless
        a `Plan` is given; what was measured there is not measured again, and its rows are in the new run.

    Returns
    -------
    Run
        As the last line of a notebook's cell it shows itself; in a script, call ``wait()``.

    Raises
    ------
    MeshlabError
        If the plan does not fit the mesh, the mesh does not fit the engines, the backend cannot do what is asked, or
        the engines are busy. Nothing has been started then.

    Examples
    --------
    >>> from meshlab.engines.launcher import launch
    >>> with launch(4, backend="threads") as engines:
    ...     run = bench(engines, DeviceMesh("dp=2, tp=2"), "all_reduce", axis="tp", sizes="1K, 4K")
    ...     results = run.wait()
    >>> results[["group", "n_ranks", "size_bytes", "n_wrong", "status"]]
      group  n_ranks  size_bytes  n_wrong status
    0  tp_0        2        1024        0     ok
    1  tp_1        2        1024        0     ok
    2  tp_0        2        4096        0     ok
    3  tp_1        2        4096        0     ok

    A function of your own, such as the gradient buckets of a model, one behind the other:

    >>> def buckets(comm):
    ...     calls = [comm.prepare("all_reduce", x, x) for x in map(comm.xp.zeros, (1000, 250, 250))]
    ...     return lambda: [call() for call in calls]
    >>> with launch(4, backend="threads") as engines:
    ...     results = bench(engines, DeviceMesh("dp=2, tp=2"), buckets, axis="dp", mode="isolated").wait()
    >>> results[["collective", "group", "size_bytes", "n_wrong", "status"]]
      collective group  size_bytes  n_wrong status
    0    buckets  dp_0        <NA>     <NA>     ok
    1    buckets  dp_1        <NA>     <NA>     ok
    """
    if mesh is None:
        mesh = DeviceMesh(all_ranks=engines.world_size) if resume is None else resume.mesh
    mesh = as_mesh(mesh, fill=engines.world_size)
    if resume is not None:
        plan = _resumed_plan(resume, collective)
    elif isinstance(collective, Plan):
        plan = collective
    else:
        plan = Plan(
            "all_reduce" if collective is None else collective,
            mesh.axis_names if axis is None else axis,
            sizes=sizes,
            dtype=dtype,
            op=op,
            mode=mode,
            in_place=in_place,
            root=root,
            grouping=grouping,
            concurrent=concurrent,
            launches=launches,
            shuffle=shuffle,
            seed=seed,
            sampling=sampling,
            check=check,
        )
    _check_fit(engines, mesh, plan)
    if resume is not None:
        check_resumable(resume, engines, mesh, plan)
    return Run(engines, mesh, plan, deadline_s=deadline_s, resume=resume)


def bench_pairs(
    engines: Engines, mesh: MeshLike | None = None, *, axis: str = WORLD, sizes: str = "64M", **arguments: Any
) -> Run:
    """Measure messages between every two ranks, one way and both ways at once: ``run.matrix()`` is the result.

    The pairs of one round share no rank, and run at the same time. A slow link stands out in `plot_matrix` and in
    ``run.pairs()``.

    Parameters
    ----------
    engines, mesh, axis, sizes, **arguments
        As in `bench`.

    Returns
    -------
    Run

    Examples
    --------
    >>> from meshlab.engines.launcher import launch
    >>> with launch(3, backend="threads") as engines:
    ...     run = bench_pairs(engines, sizes="1K")
    ...     results = run.wait()
    >>> sends = results[results["collective"] == "send"]
    >>> sorted(zip(sends["src_rank"], sends["dst_rank"]))
    [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]
    """
    return bench(engines, mesh, ["send", "send_recv"], axis=axis, sizes=sizes, grouping="pairs", **arguments)


def _resumed_plan(run: RunData, given: Any) -> Plan:
    """The plan to go on with; functions of a run that was read from disk must be given again."""
    if isinstance(given, Plan):
        return given
    plan = run.plan
    if given is not None:
        functions = [given] if callable(given) else list(given)
        names = {getattr(function, "__name__", type(function).__name__): function for function in functions}
        if not all(callable(function) for function in functions) or set(names) - set(plan.functions):
            raise BenchError(
                "with resume=, give nothing else, a Plan, or the functions of the run again: "
                f"{', '.join(plan.functions) or 'it has none'}"
            )
        plan = replace(plan, functions={**plan.functions, **names})
    return plan


def _check_fit(engines: Engines, mesh: DeviceMesh, plan: Plan) -> None:
    engines.check_mesh(mesh)
    can = engines.facts[0].capabilities
    collectives = [name for name in plan.collective if name not in plan.functions] + [
        name for _, name in plan.concurrent
    ]
    for what, wanted, known in (
        ("collective", collectives, can.collectives),
        ("dtype", plan.dtype, can.dtypes),
        ("op", [find_op(name).name for name in plan.op], can.ops),
        ("mode", plan.mode, can.modes),
    ):
        for name in wanted:
            if name not in known:
                raise BenchError(f"{can.backend} has no {what} {name!r}; it has {', '.join(known)}")
    can_reduce = can.dtypes if can.reduce_dtypes is None else can.reduce_dtypes
    if any(find_collective(name).reduces for name in collectives):
        for name in plan.dtype:
            if name not in can_reduce:
                raise BenchError(f"{can.backend} cannot reduce {name!r}; it reduces {', '.join(can_reduce)}")
    if plan.concurrent and can.backend == "nccl":
        raise BenchError(
            "concurrent= is not supported with nccl: each rank has one communication stream, so the two axes would be "
            "serialised; omit concurrent="
        )
    for name, function in plan.functions.items():
        if function is None:
            raise BenchError(f"the function {name!r} does not come back from disk; give it again as collective")


_REPEATS = 12


def overlap(
    engines: Engines,
    mesh: MeshLike,
    *,
    axis: str | Sequence[str],
    sizes: str | int | Sequence[int | str] = "1M:256M*4",
    matrix: int = 8192,
    dtype: str = "float16",
) -> pd.DataFrame:
    """Measure an all_reduce, a matrix product, and both at once.

    Parameters
    ----------
    engines : Engines
        Ranks with GPUs.
    mesh : DeviceMesh or str
        What the groups are.
    axis : str or sequence of str
        Where to reduce; all groups at once.
    sizes : str, int or sequence
        Sizes of the all_reduce, in float32.
    matrix : int, default 8192
        The product is of two square matrices of this size.
    dtype : str, default "float16"
        The element type of the matrices.

    Returns
    -------
    pandas.DataFrame
        One row per size: ``axis``, ``size_bytes``, ``compute_us``, ``communication_us``, ``both_us`` (medians of the
        slowest rank, in µs), ``overlap`` (what was saved, as a share of the shorter of the two: 1 is all of it), and
        ``compute_slowdown`` (how much longer the product took while the collective ran beside it).

    Raises
    ------
    BenchError
        If the ranks have no GPUs.
    EngineError
        If a rank failed.

    Examples
    --------
    On GPUs it gives a frame; elsewhere it says what it needs:

    >>> from meshlab.engines.launcher import launch
    >>> from meshlab.mesh.mesh import DeviceMesh
    >>> with launch(2, backend="threads") as engines:
    ...     overlap(engines, DeviceMesh("tp=2"), axis="tp")
    Traceback (most recent call last):
    meshlab.errors.BenchError: overlap needs streams of a GPU; these engines run threads
    """
    import pandas as pd

    if engines.backend != "nccl":
        raise BenchError(f"overlap needs streams of a GPU; these engines run {engines.backend}")
    rows = []
    for size in parse_sizes(sizes if isinstance(sizes, (str, int)) else list(sizes)):
        frame = engines.run(_measure, mesh, axis=axis, arguments=(size, matrix, dtype))
        failed = frame["error"].dropna()
        if len(failed):
            raise EngineError(f"rank {frame['rank'][failed.index[0]]} failed: {failed.iloc[0]}")
        compute, communication, both, beside = np.max(np.stack(frame["value"].to_list()), axis=0)
        rows.append(
            {
                "axis": axis if isinstance(axis, str) else "-".join(axis),
                "size_bytes": size,
                "compute_us": compute,
                "communication_us": communication,
                "both_us": both,
                "overlap": (compute + communication - both) / min(compute, communication),
                "compute_slowdown": beside / compute,
            }
        )
    return pd.DataFrame(rows)


def _measure(comm: Communicator, size: int, matrix: int, dtype: str) -> tuple[float, float, float, float]:
    """Runs on every rank: the times of the product, the collective, both, and the product within both, in µs."""
    cupy: Any = comm.xp
    backend: Any = comm.backend
    communication, compute = backend.stream, cupy.cuda.Stream(non_blocking=True)
    a, b, product = (cupy.zeros((matrix, matrix), dtype) for _ in range(3))
    buffer = cupy.zeros(max(size // 4, 1), cupy.float32)
    call = comm.prepare("all_reduce", buffer, buffer)
    start, computed, done = (cupy.cuda.Event() for _ in range(3))
    reduced = cupy.cuda.Event(disable_timing=True)

    def once(computes: bool, communicates: bool) -> tuple[float, float]:
        comm.barrier()
        start.record(compute)
        communication.wait_event(start)
        if communicates:
            call.enqueue()
        if computes:
            with compute:
                cupy.matmul(a, b, out=product)
        computed.record(compute)
        reduced.record(communication)
        compute.wait_event(reduced)
        done.record(compute)
        backend.wait(done)
        return cupy.cuda.get_elapsed_time(start, done) * 1e3, cupy.cuda.get_elapsed_time(start, computed) * 1e3

    times = {}
    for name, choice in (("compute", (True, False)), ("communication", (False, True)), ("both", (True, True))):
        once(*choice)  # connects, and lets the library choose its kernels
        times[name] = np.median([once(*choice) for _ in range(_REPEATS)], axis=0)
    return (
        float(times["compute"][0]),
        float(times["communication"][0]),
        float(times["both"][0]),
        float(times["both"][1]),
    )
