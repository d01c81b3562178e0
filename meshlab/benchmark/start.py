"""The one call that starts a benchmark."""

from __future__ import annotations

from collections.abc import Sequence

from meshlab.benchmark.plan import Plan, Sampling
from meshlab.benchmark.run import Run
from meshlab.comm.ops import ReduceOp, find_op
from meshlab.engines.engines import Engines
from meshlab.errors import BenchError
from meshlab.mesh import DeviceMesh

__all__ = ["bench"]


def bench(
    engines: Engines,
    mesh: DeviceMesh,
    collective: str | Sequence[str] | Plan = "all_reduce",
    *,
    axis: str | Sequence[str] | None = None,
    sizes: str | int | Sequence[int | str] = "1K:16M",
    dtype: str | Sequence[str] = "float32",
    op: str | ReduceOp | Sequence[str | ReduceOp] = "sum",
    mode: str | Sequence[str] = "pipelined",
    in_place: bool | Sequence[bool] = False,
    root: int = 0,
    sampling: Sampling | None = None,
    check: bool = True,
    deadline_s: float | None = None,
) -> Run:
    """Measure collectives along axes of a mesh. Returns at once; the measuring goes on in a thread.

    Parameters
    ----------
    engines : Engines
        The ranks. They are busy until the run ends.
    mesh : DeviceMesh
        What the groups are; it has as many ranks as there are engines.
    collective : str, sequence of str, or Plan
        What to measure. A plan says everything, and the other arguments of the plan are not used then.
    axis : str or sequence of str, optional
        Where; all axes of the mesh by default. All groups of an axis run at once.
    sizes, dtype, op, mode, in_place, root, sampling, check
        As in `Plan`.
    deadline_s : float, optional
        How long one step may take before its ranks count as stuck; the engines' own deadline by default.

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
    >>> from meshlab.engines import launch
    >>> with launch(4, backend="threads") as engines:
    ...     run = bench(engines, DeviceMesh("dp=2, tp=2"), "all_reduce", axis="tp", sizes="1K, 4K")
    ...     results = run.wait()
    >>> results[["group", "n_ranks", "size_bytes", "n_wrong", "status"]]
      group  n_ranks  size_bytes  n_wrong status
    0  tp_0        2        1024        0     ok
    1  tp_1        2        1024        0     ok
    2  tp_0        2        4096        0     ok
    3  tp_1        2        4096        0     ok
    """
    if isinstance(collective, Plan):
        plan = collective
    else:
        plan = Plan(
            collective,
            mesh.axis_names if axis is None else axis,
            sizes=sizes,
            dtype=dtype,
            op=op,
            mode=mode,
            in_place=in_place,
            root=root,
            sampling=sampling,
            check=check,
        )
    _check_fit(engines, mesh, plan)
    return Run(engines, mesh, plan, deadline_s=deadline_s)


def _check_fit(engines: Engines, mesh: DeviceMesh, plan: Plan) -> None:
    engines.check_mesh(mesh)
    can = engines.facts[0].capabilities
    for what, wanted, known in (
        ("collective", plan.collective, can.collectives),
        ("dtype", plan.dtype, can.dtypes),
        ("op", [find_op(name).name for name in plan.op], can.ops),
        ("mode", plan.mode, can.modes),
    ):
        for name in wanted:
            if name not in known:
                raise BenchError(f"{can.backend} has no {what} {name!r}; it has {', '.join(known)}")
