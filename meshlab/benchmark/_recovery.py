"""recovery: the time from a fault of a rank to the first right collective after it."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from meshlab.base._backends import BACKENDS
from meshlab.base._collectives import usual_collective
from meshlab.base._errors import BenchError, EngineError
from meshlab.base._hints import Argument, Hint
from meshlab.base._units import format_seconds
from meshlab.benchmark.on_ranks._faults import Fault, fail, open_communicators
from meshlab.engines._engines import Engines
from meshlab.engines._launch import launch
from meshlab.frames._statistics import median_interval
from meshlab.mesh._axes import as_integer
from meshlab.mesh._mesh import DeviceMesh, MeshLike, as_mesh

if TYPE_CHECKING:
    import pandas as pd

Way = Literal["restart", "shrink"]

_PARTS = ("detected_s", "restarted_s", "opened_s", "total_s")


def recovery(
    engines: Engines,
    mesh: MeshLike | None = None,
    *,
    faults: Fault | Sequence[Fault] = ("killed", "stuck"),
    ways: Way | Sequence[Way] = "restart",
    communicators: int | Sequence[int] = (1, 8),
    repeats: int = 6,
    deadline_s: float = 2.0,
) -> pd.DataFrame:
    """Measure what the failure of a rank costs: the time until all ranks have a right result again.

    The last rank is killed, or never enters an all_reduce in which the others wait. The engines notice it, and recover:
    by `Engines.restart`, or by `Engines.shrink` to the ranks that are left. Then the ranks open all communicators
    again, and reduce on each of them. Waits until everything is measured. At the end the engines have all ranks.

    Parameters
    ----------
    engines : Engines
        Engines of `launch` with processes.
    mesh : DeviceMesh or str, optional
        The mesh along whose axes communicators are opened, in turn. By default one axis with all ranks.
    faults : {"killed", "stuck"} or sequence of these, default both
        The faults.
    ways : {"restart", "shrink"} or sequence of these, default "restart"
        The ways to recover. ``"shrink"`` starts other engines for each repetition, outside the measured time, because
        the ranks that are left cannot become more.
    communicators : int or sequence of int, default (1, 8)
        Numbers of open communicators of a rank besides that of the world.
    repeats : int, default 6
        Number of repetitions. An interval needs 6.
    deadline_s : float, default 2
        The time after which a rank is considered stuck, in seconds. It is a part of the time to detect it.

    Returns
    -------
    pandas.DataFrame
        One row per fault, way and number of communicators: ``fault``, ``way``, ``n_communicators``, ``n_ranks`` and
        ``n_ranks_after``, ``n_repeats``, ``n_right`` (repetitions with right results), and medians in seconds with
        their 95 % intervals (``_lo``, ``_hi``): ``detected_s``, ``restarted_s``, ``opened_s`` until all communicators
        are open and have reduced, and ``total_s`` of all three. ``attrs["verdict"]`` is a sentence per row.

    Raises
    ------
    BenchError
        If the ranks are threads, or were started by another process.
        If the ranks of the backend do not survive the fault of another one, with ``"shrink"``.
        If an argument is invalid.
    EngineError
        If the engines are busy, or do not recover.

    Examples
    --------
    >>> import meshlab as ml
    >>> with ml.launch(2, backend="threads") as engines:
    ...     ml.benchmark.recovery(engines)
    Traceback (most recent call last):
    meshlab.errors.BenchError: threads cannot be killed; launch with backend='nccl', or 'mpi' or 'gloo'
    """
    import pandas as pd

    mesh = DeviceMesh(all_ranks=engines.world_size) if mesh is None else as_mesh(mesh, fill=engines.world_size)
    engines.check_mesh(mesh)
    every_fault = _checked("fault", faults, get_args(Fault))
    every_way = _checked("way", ways, get_args(Way))
    numbers = [communicators] if isinstance(communicators, int) else list(communicators)
    if (as_integer(repeats) or 0) < 1 or any((as_integer(number) or 0) < 0 for number in numbers) or not numbers:
        raise BenchError("repeats must be an integer of at least 1, and communicators of at least 0")
    _check_engines(engines, every_way)
    rows = []
    try:
        for fault, way, number in itertools.product(every_fault, every_way, numbers):
            parts = list(_repeats(engines, mesh, fault, way, number, repeats, deadline_s))
            rows.append(_row(parts, fault=fault, way=way, n_communicators=number, n_ranks=engines.world_size))
    finally:
        if engines.state == "ready":
            engines.run(open_communicators, arguments=((),))  # closes those of the last repetition
    table = pd.DataFrame(rows)
    table.attrs["where"] = engines.where
    table.attrs["verdict"] = "; ".join(map(_sentence, rows))
    return table


def _checked(name: str, values: Any, choices: tuple[str, ...]) -> list[Any]:
    chosen = [values] if isinstance(values, str) else list(values)
    for value in chosen or [None]:
        if value not in choices:
            raise BenchError(f"unknown {name} {value!r}; choose from {', '.join(choices)}")
    return chosen


def _check_engines(engines: Engines, ways: Sequence[str]) -> None:
    facts = BACKENDS[engines.backend]
    if facts.in_process:
        first, *others = [name for name, other in BACKENDS.items() if not other.in_process]
        raise BenchError(
            f"{engines.backend} cannot be killed",
            hint=Hint(f"launch with {{}}, or {' or '.join(map(repr, others))}", Argument("backend", first)),
        )
    if engines.launch_arguments is None:
        raise BenchError("another process started these ranks, so they are not killed", hint="use ml.launch()")
    if "shrink" in ways and not facts.survives:
        raise BenchError(
            f"the ranks of {engines.backend} do not survive the fault of another one, so none are left to go on",
            hint="pass ways='restart'",
        )


def _repeats(
    engines: Engines, mesh: DeviceMesh, fault: Fault, way: Way, number: int, repeats: int, deadline_s: float
) -> Iterator[tuple[float, float, float, bool, int]]:
    """Yield the times of each repetition, whether its results are right, and the number of ranks after it."""
    if way == "restart":
        for _ in range(repeats):
            yield _recover(engines, mesh, fault, way, number, deadline_s)
        return
    arguments = engines.launch_arguments
    assert arguments is not None  # see `_check_engines`
    for _ in range(repeats):
        with launch(engines.world_size, **arguments, deadline_s=engines.deadline_s) as others:
            yield _recover(others, mesh, fault, way, number, deadline_s)


def _recover(
    engines: Engines, mesh: DeviceMesh, fault: Fault, way: Way, number: int, deadline_s: float
) -> tuple[float, float, float, bool, int]:
    clock = time.monotonic
    engines.run(open_communicators, arguments=(_colors(mesh, number),))
    begin = clock()
    with suppress(EngineError):
        engines.run(fail, arguments=(engines.world_size - 1, fault), deadline_s=deadline_s)
    detected = clock()
    if way == "restart":
        engines.restart()
    else:
        engines.shrink()
    restarted = clock()
    left = mesh if engines.world_size == mesh.world_size else DeviceMesh(all_ranks=engines.world_size)
    is_right = bool(engines.run(open_communicators, arguments=(_colors(left, number),))["value"].all())
    return detected - begin, restarted - detected, clock() - restarted, is_right, engines.world_size


def _colors(mesh: DeviceMesh, number: int) -> list[Any]:
    """Return the groups of each communicator: those of the axes of the mesh, in turn."""
    names = mesh.axis_names
    return [mesh[names[index % len(names)]].color for index in range(number)]


def _row(parts: Sequence[tuple[float, float, float, bool, int]], **case: Any) -> dict[str, Any]:
    times = np.array([part[:3] for part in parts])
    columns = np.column_stack([times, times.sum(axis=1)])
    row = case | {"n_ranks_after": parts[-1][4], "n_repeats": len(parts), "n_right": sum(part[3] for part in parts)}
    for name, values in zip(_PARTS, columns.T, strict=True):
        low, high = median_interval(values)
        row |= {name: float(np.median(values)), f"{name}_lo": low, f"{name}_hi": high}
    return row


def _sentence(row: dict[str, Any]) -> str:
    number = row["n_communicators"]
    groups = f"{number} communicator{'s' * (number != 1)}"
    ranks = "" if row["n_ranks_after"] == row["n_ranks"] else f" of the {row['n_ranks_after']} ranks that are left"
    wrong = "" if row["n_right"] == row["n_repeats"] else f", right in only {row['n_right']} of {row['n_repeats']}"
    interval = ""
    if row["total_s_lo"] == row["total_s_lo"]:
        interval = f" ({format_seconds(row['total_s_lo'])} to {format_seconds(row['total_s_hi'])})"
    parts = ", ".join(
        f"{format_seconds(row[name])} to {verb}"
        for name, verb in zip(_PARTS[:3], ("detect it", row["way"], f"open {groups} and reduce"), strict=True)
    )
    return (
        f"a rank that is {row['fault']} costs {format_seconds(row['total_s'])}{interval} until the first right "
        f"{usual_collective('dp')}{ranks}{wrong}: {parts}"
    )
