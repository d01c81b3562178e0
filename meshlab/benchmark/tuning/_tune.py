"""The function that searches for the fastest option of each call, and the checks of its arguments."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from meshlab.analysis.tuning._tuning import Tuning
from meshlab.base._backends import BACKENDS, GPU_BACKENDS
from meshlab.base._errors import BenchError
from meshlab.base._hints import Argument, Hint
from meshlab.benchmark._bench import check_fit
from meshlab.benchmark._overlap import as_product
from meshlab.benchmark._preparation import check_engines
from meshlab.benchmark._progress import progress_bar
from meshlab.benchmark.tuning._environments import Setting
from meshlab.benchmark.tuning._options import TuningOption, check_options, options_for, settings_for
from meshlab.benchmark.tuning._search import SearchEffort, TuningSearch
from meshlab.comm._catalog import find_collective
from meshlab.comm._elements import ReduceOp
from meshlab.engines._engines import Engines
from meshlab.mesh._axes import as_integer
from meshlab.mesh._mesh import DeviceMesh, MeshLike, as_mesh
from meshlab.plans._plan import Plan
from meshlab.plans._steps import Step

_SIZES_ON_GPUS, _SIZES_ON_HOST = "8:1G", "8:16M"


def tune(
    engines: Engines,
    mesh: MeshLike,
    collectives: str | Sequence[str] = "all_reduce",
    *,
    axis: str,
    sizes: str | int | Sequence[int | str] | None = None,
    dtype: str = "float32",
    op: str | ReduceOp = "sum",
    in_place: bool = True,
    mode: str | None = None,
    options: str | Sequence[str] | None = None,
    beside: int | tuple[int, int, int] | None = None,
    rounds: int = 12,
    budget_s: float | None = None,
    confirm: bool = True,
    progress: bool | None = None,
    deadline_s: float | None = None,
) -> Tuning:
    """Find the fastest way to run collectives, for each message size, and confirm it on new ranks.

    With NCCL, an option is a kind of buffers (plain, registered, or a symmetric window), an algorithm, a protocol, or a
    number or policy of thread blocks. From NCCL 2.31 on, all of this can be chosen per call. For older versions, and
    for the algorithms of MPICH, environment variables choose it, and every choice gets its own ranks.

    All options of a call are prepared and checked, and then measured in rounds, each of which includes the default.
    After each of the first rounds, the slower half is dropped. An option that is not supported becomes a row with the
    reason. At the end, new ranks measure the fastest option and the default again. Waits until everything is measured.

    Parameters
    ----------
    engines : Engines
        The ranks. They are busy until the end. The confirmation starts other ranks in the same way. For engines of
        `attach` that is impossible, so it only opens new communicators.
    mesh : DeviceMesh or str
        The mesh, with one rank per engine.
    collectives : str or sequence of str, default "all_reduce"
        Collectives by name.
    axis : str
        The axis of the mesh whose groups are measured, all at the same time.
    sizes : str, int or sequence of these, optional
        Message sizes in bytes, as in `bench`. By default ``"8:1G"`` on GPUs and ``"8:16M"`` elsewhere. Sizes whose
        buffers exceed the free memory are skipped, with a row that has the reason.
    dtype, op : str, default "float32" and "sum"
        The element type and the reduce operation, as in `Plan`.
    in_place : bool, default True
        Whether input and output share memory, for collectives that can work in place.
    mode : {"graph", "pipelined"}, optional
        The way to time the calls. By default ``"graph"`` on GPUs and ``"pipelined"`` elsewhere.
    options : str or sequence of str, optional
        Options to vary: ``"buffers"``, ``"algorithm"``, ``"protocol"``, ``"min_ctas"``, ``"max_ctas"`` and
        ``"cta_policy"`` of NCCL, or algorithms by name. By default everything.
    beside : int or (int, int, int), optional
        A matrix product of this size (m, n, k) to run on each rank at the same time as every call, of float16 on GPUs
        and of float32 elsewhere. The time of an option is then that of the pair, see `overlap`.
    rounds : int, default 12
        Number of rounds. The confirmation has twice as many. An interval needs 6.
    budget_s : float, optional
        Time limit in seconds. Rounds, and finally sizes, are omitted to meet it. A call that has begun is completed.
    confirm : bool, default True
        Whether to measure the fastest options again, on new ranks. Without it nothing is confirmed.
    progress : bool, optional
        Whether to draw a progress bar, by default as in `rehearse`.
    deadline_s : float, optional
        Maximum duration of the trials of one call, in seconds, before its ranks are considered stuck. By default that
        of the engines, or more if the trials are expected to take longer.

    Returns
    -------
    Tuning
        The fastest option of each call, with all trials.

    Raises
    ------
    MeshError
        If the mesh does not have one rank per engine, or no such axis.
    BenchError
        If there is nothing to tune: threads, an axis of size 1, an MPI library other than MPICH.
        If the mode cannot distinguish options, or an argument is invalid.
        If nothing could be measured.
    EngineError
        If the engines are busy.
        If a rank fails. The message names the call, and the attribute ``measured`` has the results so far as a
        `Tuning`, or None.
    KeyboardInterrupt
        If the caller is interrupted. The current call is completed first, so the engines remain usable. The attribute
        ``measured`` of the exception has the results so far.

    Examples
    --------
    >>> import meshlab as ml
    >>> with ml.launch(2, backend="threads") as engines:
    ...     ml.tune(engines, "tp=2", axis="tp")
    Traceback (most recent call last):
    meshlab.errors.BenchError: threads have one algorithm per collective, so there is nothing to tune; use nccl or mpi
    """
    check_engines(engines)
    mesh = as_mesh(mesh, fill=engines.world_size)
    engines.check_mesh(mesh)
    names = _names(collectives)
    only = [part.strip() for part in options.split(",")] if isinstance(options, str) else options
    number = as_integer(rounds)
    if number is None or number < 1:
        raise BenchError(f"rounds must be an integer of at least 1, not {rounds!r}")
    for name, seconds in (("budget_s", budget_s), ("deadline_s", deadline_s)):
        if seconds is not None and not (isinstance(seconds, int | float) and 0 < seconds < math.inf):
            raise BenchError(f"{name} must be a positive number, not {seconds!r}")
    _check_backend(engines, mesh, axis)
    check_options(only, engines.ranks[0].capabilities, names)
    if sizes is None:
        sizes = _SIZES_ON_GPUS if engines.backend in GPU_BACKENDS else _SIZES_ON_HOST
    plans = _plans(mesh, names, axis, sizes, dtype, op, in_place=in_place, mode=_mode(engines, mode))
    steps = _steps(engines, mesh, plans)
    search = TuningSearch(
        engines,
        mesh,
        steps,
        SearchEffort(number, budget_s, confirm, deadline_s),
        options=_options(engines, only),
        settings=_settings(engines, names, only),
        beside=None
        if beside is None
        else as_product(beside, "float16" if engines.backend in GPU_BACKENDS else "float32"),
    )
    with progress_bar(progress, unit="call") as bar:
        search.run(bar)
    return search.result()


def _check_one_axis(axis: str) -> None:
    if len(axes := Plan("all_reduce", axis).axis) > 1:
        raise BenchError(f"a tuning has one axis, not {', '.join(axes)}", hint="tune one axis at a time")


def _check_backend(engines: Engines, mesh: DeviceMesh, axis: str) -> None:
    """Raise if the backend of the axis has nothing to tune."""
    _check_one_axis(axis)
    can = engines.capabilities(engines.backend_of(mesh, axis))
    if why := BACKENDS[can.backend].why_not_tuned:
        tunable = [name for name, facts in BACKENDS.items() if not facts.why_not_tuned]
        raise BenchError(f"{why}, so there is nothing to tune", hint=f"use {' or '.join(tunable)}")
    if can.backend == "mpi":
        if not can.library.startswith("MPICH"):
            raise BenchError(
                f"only MPICH's algorithms can be tuned, but these engines run {can.library}",
                hint="install mpich, or compare environment variables with ml.compare_env()",
            )
        if engines.launch_arguments is None:
            raise BenchError(
                "MPICH reads the choice of algorithms when a rank starts, but another process started these engines",
                hint="use engines of ml.launch()",
            )


def _mode(engines: Engines, mode: str | None) -> str:
    """Return the mode, after a check that it can distinguish options."""
    is_gpu = engines.backend in GPU_BACKENDS
    if mode is None:
        return "graph" if is_gpu else "pipelined"
    if mode == "isolated":
        raise BenchError(
            "options are compared with back-to-back calls, but mode 'isolated' times single calls",
            hint=f"choose {'graph or pipelined' if is_gpu else 'pipelined'}",
        )
    if mode == "graph" and not is_gpu:
        raise BenchError(
            f"{engines.backend} cannot capture calls into graphs, which need GPUs",
            hint=Hint("omit {}", Argument("mode")),
        )
    return mode


def check_calls(
    mesh: DeviceMesh,
    collectives: str | Sequence[str],
    *,
    axis: str,
    sizes: str | int | Sequence[int | str] | None = None,
    dtype: str = "float32",
    op: str | ReduceOp = "sum",
) -> None:
    """Raise if `tune` would reject the calls, on any engines."""
    _check_one_axis(axis)
    sizes = _SIZES_ON_HOST if sizes is None else sizes
    _plans(mesh, _names(collectives), axis, sizes, dtype, op, in_place=True, mode="pipelined")


def _names(collectives: str | Sequence[str]) -> list[str]:
    texts = [collectives] if isinstance(collectives, str) else list(collectives)
    return [name.strip() for text in texts for name in text.split(",")]


def _plans(
    mesh: DeviceMesh,
    names: Sequence[str],
    axis: str,
    sizes: Any,
    dtype: str,
    op: str | ReduceOp,
    *,
    in_place: bool,
    mode: str,
) -> list[Plan]:
    """Return the calls of each collective to tune."""
    if not names:
        raise BenchError("collectives is empty", hint="pass at least one, such as 'all_reduce'")
    if not isinstance(sizes, int) and not sizes:
        raise BenchError("sizes is empty", hint=Hint("pass a range such as '8:1G', or omit {}", Argument("sizes")))
    plans = []
    for name in dict.fromkeys(names):
        row = find_collective(name)
        if not row.has_size:
            raise BenchError(f"{name} moves no data, so it has nothing to tune; remove it from the collectives")
        is_in_place = in_place and row.in_place
        plan = Plan(name, axis, sizes, dtype=dtype, op=op, mode=mode, in_place=is_in_place)
        for what in ("axis", "dtype", "op", "mode"):
            if len(getattr(plan, what)) > 1:
                values = ", ".join(map(str, getattr(plan, what)))
                raise BenchError(f"a tuning has one {what}, not {values}", hint="tune each of them separately")
        plan.steps(mesh)
        plans.append(plan)
    if mesh[axis].size < 2:
        others = [other for other in mesh.axis_names if mesh[other].size > 1]
        raise BenchError(
            f"the groups of {axis} have one rank, so nothing is sent",
            hint=f"choose {' or '.join(others)}" if others else "choose a mesh with more than one rank per group",
        )
    return plans


def _steps(engines: Engines, mesh: DeviceMesh, plans: Sequence[Plan]) -> list[Step]:
    """Return the calls to tune, by collective and in the order of their sizes."""
    steps: list[Step] = []
    for plan in plans:
        check_fit(engines, mesh, plan)
        steps += sorted(plan.steps(mesh), key=lambda step: step.size_bytes or 0)
    return [replace(step, index=index) for index, step in enumerate(steps)]


def _options(engines: Engines, only: Sequence[str] | None) -> Callable[[Step], list[TuningOption]]:
    can = engines.ranks[0].capabilities
    n_hosts = len({info.host for info in engines.ranks})
    return lambda step: options_for(can, step.collective, step.size_bytes or 0, only=only, n_hosts=n_hosts)


def _settings(engines: Engines, names: Sequence[str], only: Sequence[str] | None) -> dict[str, dict[str, Setting]]:
    """Return the environments to try for each collective, by name."""
    can = engines.ranks[0].capabilities
    if engines.launch_arguments is None:
        return {}
    settings_of = {name: settings_for(can, name, only=only) for name in names}
    variables_of: dict[str, list[dict[str, str]]] = {}
    for settings in settings_of.values():
        for short, variables in settings.items():
            if variables not in variables_of.setdefault(short, []):
                variables_of[short].append(variables)
    # A name stands for one set of variables. "ring" of two collectives of MPICH are two sets.
    return {
        name: {
            short if len(variables_of[short]) == 1 else f"{name} {short}": Setting(
                variables, may_share=can.backend not in GPU_BACKENDS
            )
            for short, variables in settings.items()
        }
        for name, settings in settings_of.items()
    }
