"""Comparison of environment settings: new engines for each setting, in interleaved rounds."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from meshlab.analysis._comparison import Comparison, compare
from meshlab.base import _markup as markup
from meshlab.base._backends import BACKENDS, automatic_backend
from meshlab.base._errors import BenchError, CommunicatorError, EngineError, MeshlabError
from meshlab.base._hints import Argument, Hint
from meshlab.benchmark._bench import bench
from meshlab.benchmark._run import Run, progress_bar
from meshlab.engines._launch import count_gpus, launch
from meshlab.mesh._mesh import MeshLike, as_mesh
from meshlab.plans._plan import Plan

if TYPE_CHECKING:
    import pandas as pd

READS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {name: facts.variables for name, facts in BACKENDS.items() if facts.variables}
)
"""Prefixes of the environment variables that a backend, or a library below it, reads.

From the documentation of NCCL (Environment Variables), MPICH (its control variables and Hydra), Open MPI (MCA
parameters), Intel MPI and MVAPICH, and of the libraries below them: UCX, UCC,
libfabric, rdma-core, PSM, HCOLL, SHARP, CUDA, hwloc and glibc.
"""


@dataclass(frozen=True, slots=True)
class EnvComparison:
    """The runs of each environment setting, and the comparison of each setting with the first.

    Parameters
    ----------
    runs : mapping of str to tuple of Run
        The runs of each setting by its name, one per round.
    comparisons : mapping of str to Comparison
        The comparison of each setting except the first, by its name. The first setting is "before" in all of them.
    """

    runs: Mapping[str, tuple[Run, ...]]
    comparisons: Mapping[str, Comparison]

    @property
    def results(self) -> pd.DataFrame:
        """The rows of all runs. The first column, ``setting``, has the name of the setting."""
        import pandas as pd

        frames = []
        for name, runs in self.runs.items():
            for number, run in enumerate(runs):
                frame = run.results
                frame.attrs = {}
                frame["launch"] = number
                frame.insert(0, "setting", name)
                frames.append(frame)
        return pd.concat(frames, ignore_index=True)

    @property
    def headlines(self) -> dict[str, str]:
        """Summary of each comparison, by the name of the setting."""
        first = next(iter(self.runs))
        return {name: f"{name} against {first}: {comparison.headline}" for name, comparison in self.comparisons.items()}

    def __str__(self) -> str:
        return "\n".join(self.headlines.values())

    def _repr_html_(self) -> str:
        cards = "".join(
            f"<div><b>{markup.escape(self.headlines[name])}</b></div>{comparison._repr_html_()}"
            for name, comparison in self.comparisons.items()
        )
        return markup.card(f"Settings: {', '.join(self.runs)}", f"{len(next(iter(self.runs.values())))} rounds", cards)


def compare_env(
    mesh: MeshLike,
    settings: Mapping[str, Mapping[str, str]],
    collective: Any = "all_reduce",
    *,
    rounds: int = 3,
    backend: str = "auto",
    devices: Sequence[int] | None = None,
    effect: float = 0.05,
    progress: bool | None = None,
    **arguments: Any,
) -> EnvComparison:
    """Compare environment settings, for example of NCCL, on new engines for each run.

    Libraries read the environment when they start, so every run gets its own processes. The settings alternate, in the
    opposite order in every second round, so that a drift of the clocks affects all of them. Waits until everything is
    measured.

    Parameters
    ----------
    mesh : DeviceMesh or str
        The mesh whose groups are measured. One engine is started per rank.
    settings : mapping of str to mapping of str to str
        The environment variables of each setting, by the setting's name. All settings are compared with the first.
    collective : str, callable, sequence of these, or Plan, default "all_reduce"
        Collectives by name, functions that take a `Communicator`, or a complete plan.
    rounds : int, default 3
        Number of runs of each setting. With fewer than 3, the variation between runs cannot be estimated well.
    backend : {"auto", "nccl", "mpi"}, default "auto"
        The backend of the engines: ``"auto"`` selects nccl if there are enough GPUs, else mpi. Threads share one
        environment, so they are not supported.
    devices : sequence of int, optional
        CUDA device index of each rank. By default rank r uses device r.
    effect : float, default 0.05
        The smallest relevant relative difference, for the verdicts of `compare`.
    progress : bool, optional
        Whether to draw a progress bar, by default as in `rehearse`.
    **arguments
        Further arguments of `bench`, such as ``axis`` and ``sizes``.

    Returns
    -------
    EnvComparison
        The runs of each setting, and the comparisons with the first setting.

    Raises
    ------
    BenchError
        If there are fewer than two settings, or no rounds.
        If the backend reads none of the variables that start like one of the settings' variables. Functions may read
        any variable.
    EngineError
        If engines do not start, or a run fails. The message names the setting and the round. The attribute ``measured``
        contains the results so far as an `EnvComparison`, or None if there are none.

    Examples
    --------
    >>> import meshlab as ml
    >>> ml.compare_env("tp=2", {"ring": {"NCCL_ALGO": "Ring"}}, "all_reduce")
    Traceback (most recent call last):
    meshlab.errors.BenchError: compare_env() needs at least two settings, not 1 (ring)
    """
    mesh = as_mesh(mesh)
    if len(settings) < 2:
        names = f" ({', '.join(settings)})" if settings else ""
        raise BenchError(f"compare_env() needs at least two settings, not {len(settings)}{names}")
    if rounds < 1:
        raise BenchError(f"rounds must be at least 1, not {rounds}")
    if not _has_functions(collective):
        has_gpus = backend == "auto" and count_gpus() >= mesh.world_size
        _check_read(settings, automatic_backend(has_gpus=has_gpus) if backend == "auto" else backend)
    runs: dict[str, list[Run]] = {name: [] for name in settings}
    with progress_bar(progress, unit="step") as bar:
        for number in range(rounds):
            # A B, B A, A B, …: over two rounds, a linear drift of the clocks adds the same time to every setting.
            for name in list(settings)[:: -1 if number % 2 else 1]:
                turn = f"round {number + 1} of {rounds}"
                bar.set_description(f"{name}, {turn}: starting {mesh.world_size} ranks")
                try:
                    with launch(mesh.world_size, backend=backend, devices=devices, env=settings[name]) as engines:
                        run = bench(engines, mesh, collective, **arguments)
                        runs[name].append(run)
                        bar.total = rounds * len(settings) * run.progress.total
                        _follow(run, bar, f"{name}, {turn}")
                        run.wait(progress=False)
                except (EngineError, CommunicatorError) as error:
                    raise _failed(name, turn, error, runs, effect) from error
    return _compared(runs, effect)


def _has_functions(collective: Any) -> bool:
    if isinstance(collective, Plan):
        return bool(collective.functions)
    return callable(collective) or (
        not isinstance(collective, str) and isinstance(collective, Iterable) and any(map(callable, collective))
    )


def _check_read(settings: Mapping[str, Mapping[str, str]], backend: str) -> None:
    """Raise if a variable has no effect: its comparison would take minutes, and compare noise with noise."""
    prefixes = READS.get(backend)
    unread = [name for values in settings.values() for name in values if prefixes and not name.startswith(prefixes)]
    if unread:
        names = ", ".join(dict.fromkeys(unread))
        others = [other for other, prefixes in READS.items() if other != backend and unread[0].startswith(prefixes)]
        remove = Hint("pass {}, or remove", Argument("backend", others[0])) if others else "remove"
        raise BenchError(
            f"{backend} does not read {names}, so the settings would not differ",
            hint=Hint(
                "{} {}; {} reads variables that start with {} and others in meshlab.benchmark.READS",
                remove,
                "it" if len(set(unread)) == 1 else "them",
                backend,
                ", ".join((prefixes or ())[:4]),
            ),
        )


def _follow(run: Run, bar: Any, what: str) -> None:
    """Move the bar until the run is over."""
    before = bar.n
    while True:
        is_over, progress = run.has_ended, run.progress
        bar.set_description(f"{what}{f', {progress.step}' if progress.step else ''}")
        bar.update(before + progress.done - bar.n)
        if is_over:
            return
        time.sleep(0.1)


def _failed(name: str, turn: str, error: MeshlabError, runs: Mapping[str, Sequence[Run]], effect: float) -> EngineError:
    """Return the error of one setting, with the results of all settings so far."""
    measured = {
        name: [run for run in of_name if (run.results["status"] == "ok").any()] for name, of_name in runs.items()
    }
    measured = {name: of_name for name, of_name in measured.items() if of_name}
    comparison = _compared(measured, effect) if measured else None
    summary = error.summary if isinstance(error, EngineError) else str(error)
    n_runs = sum(map(len, measured.values()))
    results = f"the results of {n_runs} run{'s' * (n_runs != 1)}"
    return EngineError(
        f"setting {name!r} failed in {turn}: {summary}",
        hint=f"{results} are in the attribute .measured of this error" if measured else "",
        rank=error.rank if isinstance(error, (EngineError, CommunicatorError)) else None,
        host=error.host if isinstance(error, EngineError) else None,
        log=error.log if isinstance(error, EngineError) else "",
        measured=comparison,
    )


def _compared(runs: Mapping[str, Sequence[Run]], effect: float) -> EnvComparison:
    """Compare all settings with the first."""
    first, *others = runs
    comparisons = {}
    for name in others:
        pair = [list(of_name) for of_name in (runs[first], runs[name])]
        try:
            comparisons[name] = compare(*pair, effect=effect)
        except BenchError:  # no common rows, which is expected only if a run stopped early
            if all(run.state == "done" for side in pair for run in side):
                raise
    return EnvComparison({name: tuple(of_name) for name, of_name in runs.items()}, comparisons)
