"""Comparison of environment settings: new engines for each setting, in interleaved rounds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from meshlab.analysis._comparison import Comparison, compare
from meshlab.analysis._turns import compare_blocks
from meshlab.base import _markup as markup
from meshlab.base._backends import BACKENDS, automatic_backend
from meshlab.base._errors import BenchError, CommunicatorError, EngineError, MeshlabError
from meshlab.base._hints import Argument, Hint
from meshlab.benchmark._baton import Baton
from meshlab.benchmark._bench import bench
from meshlab.benchmark._progress import move_bar, progress_bar
from meshlab.benchmark._run import Run
from meshlab.benchmark.on_ranks._host_counters import host_cores, load_average
from meshlab.engines._launch import count_gpus, launch
from meshlab.engines._lease import Lease
from meshlab.engines._memory import check_host_memory, free_bytes, usable_bytes
from meshlab.mesh._mesh import MeshLike, as_mesh
from meshlab.plans._plan import Plan

if TYPE_CHECKING:
    import pandas as pd

    from meshlab.engines._engines import Engines

READS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {name: facts.variables for name, facts in BACKENDS.items() if facts.variables}
)
"""Prefixes of the environment variables that a backend, or a library below it, reads.

From the documentation of NCCL (Environment Variables), MPICH (its control variables and Hydra), Open MPI (MCA
parameters), Intel MPI and MVAPICH, and of the libraries below them: UCX, UCC,
libfabric, rdma-core, PSM, HCOLL, SHARP, CUDA, hwloc and glibc.
"""

_MOST_SETS = 4
"""The number of settings whose engines exist at the same time."""

_POLL_S = 0.05


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

    def __repr__(self) -> str:
        return f"<EnvComparison of {', '.join(self.runs)}; next: .comparisons, .results>\n{self}"

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

    Libraries read the environment when they start, so every run gets its own processes. In each round, the engines of
    up to four settings exist at the same time and take turns: a block of batches with each of them, in the opposite
    order in every second turn. So a drift of the clocks, or another program on the host, affects all of them within the
    same seconds, and their times are compared block by block, as in `compare_now`. Idle ranks use no core. If the
    memory does not suffice for the ranks and the buffers of all settings, one run follows the other instead. Waits
    until everything is measured.

    Parameters
    ----------
    mesh : DeviceMesh or str
        The mesh whose groups are measured. One engine is started per rank.
    settings : mapping of str to mapping of str to str
        The environment variables of each setting, by the setting's name. All settings are compared with the first.
    collective : str, callable, sequence of these, or Plan, default "all_reduce"
        Collectives by name, functions that take a `Communicator`, or a complete plan.
    rounds : int, default 3
        Number of runs of each setting. With fewer than 3, the variation between runs cannot be estimated well, and
        with 7 or more, single rounds that were disturbed matter less.
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
    in_turns, n = [], rounds * len(settings)
    start = partial(launch, mesh.world_size, backend=backend, devices=devices)
    measure = partial(bench, mesh=mesh, collective=collective, **arguments)
    with progress_bar(progress, unit="step") as bar:
        for number in range(rounds):
            # A B, B A, A B, …: over two rounds, a linear drift of the clocks adds the same time to every setting.
            order = list(settings)[:: -1 if number % 2 else 1]
            lap = _Lap(
                {name: settings[name] for name in order},
                f"round {number + 1} of {rounds}",
                start,
                measure,
                runs,
                effect,
                n,
            )
            in_turns.append(lap.run(bar))
    return _compared(runs, effect, in_turns=all(in_turns))


@dataclass(eq=False)
class _Lap:
    """One run of each setting: in turns, if the engines of all settings have room, or one after the other."""

    settings: Mapping[str, Mapping[str, str]]
    turn: str
    start: Callable[..., Engines]
    measure: Callable[[Engines], Run]
    runs: Mapping[str, list[Run]]
    effect: float
    n_runs: int

    def run(self, bar: Any) -> bool:
        """Start engines with each setting, and measure on them. Return True if all of them took turns."""
        waiting, took_turns = list(self.settings), False
        while waiting:
            baton = Baton(waiting)
            current: dict[str, Run] = {}
            with ExitStack() as stack:
                try:
                    name = waiting.pop(0)
                    engines, current[name] = self._begin(stack, name, baton, bar)
                    together = [engines]
                    if waiting and self._have_room(engines, current[name]):
                        for other in waiting:
                            engines, current[other] = self._begin(stack, other, baton, bar)
                            together.append(engines)
                        waiting = []
                    took_turns = len(together) == len(self.settings)
                    for engines in together:
                        engines.takes_turns_with = [other for other in together if other is not engines]
                    if len(together) == 1:
                        baton.release()
                    baton.start()
                    self._wait(current, baton, bar)
                finally:
                    baton.release()  # a run that waits for it could not be cancelled
        return took_turns

    def _begin(self, stack: ExitStack, name: str, baton: Baton, bar: Any) -> tuple[Engines, Run]:
        """Start the engines of a setting, and a run on them that waits for the baton."""
        bar.set_description(f"{name}, {self.turn}: starting ranks")
        with self._explained(name):
            engines = stack.enter_context(self.start(env=self.settings[name]))
            with Lease(engines, "reading the free memory") as lease:
                self._free = lease.round(free_bytes).run()
            engines.between_tasks = lambda _: baton.take(name)
            run = self.measure(engines)
        self.runs[name].append(run)
        bar.total = bar.total or self.n_runs * run.progress.total
        return engines, run

    def _have_room(self, engines: Engines, run: Run) -> bool:
        """Return True if the ranks and the buffers of all settings fit into the memory at the same time."""
        n = len(self.settings)
        # Threads share one environment, and runs that are written to one folder must not be written at the same time.
        if (
            n > _MOST_SETS
            or run.out is not None
            or BACKENDS[engines.backend].in_process
            or any(reply.error for reply in self._free)
        ):
            return False
        try:
            check_host_memory((n - 1) * engines.world_size)
        except EngineError:
            return False
        usable = usable_bytes([reply.value for reply in self._free], [info.host for info in engines.ranks])
        return n * max(step.buffer_bytes for step in run.steps) <= int(usable.min())

    def _wait(self, current: Mapping[str, Run], baton: Baton, bar: Any) -> None:
        """Move the bar until all runs are over, and raise if one of them failed."""
        running = dict(current)
        before = bar.n
        while running:
            for name, run in list(running.items()):
                if not run.has_ended:
                    continue
                del running[name]
                baton.leave(name)
                if run.error is not None:
                    baton.release()
                    for other in running.values():
                        other.cancel()
                    while not all(other.has_ended for other in running.values()):
                        time.sleep(_POLL_S)
                with self._explained(name):
                    run.wait(progress=False)
            name, run = next(iter(running.items()), (name, run))
            step = run.progress.step
            done = before + sum(run.progress.done for run in current.values())
            move_bar(bar, done, f"{name}, {self.turn}{f', {step}' if step else ''}")
            if running:
                time.sleep(_POLL_S)

    @contextmanager
    def _explained(self, name: str) -> Iterator[None]:
        """Name the setting and the round in an error, which has the results so far."""
        try:
            yield
        except (EngineError, CommunicatorError) as error:
            raise _failed(name, self.turn, error, self.runs, self.effect) from error


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


def _compared(runs: Mapping[str, Sequence[Run]], effect: float, *, in_turns: bool = False) -> EnvComparison:
    """Compare all settings with the first. If their runs took turns, compare block by block."""
    first, *others = runs
    comparisons: dict[str, Comparison] = {}
    for name in others:
        sides = [list(of_name) for of_name in (runs[first], runs[name])]
        try:
            comparisons[name] = compare(*sides, effect=effect)
        except BenchError:  # no common rows, which is expected only if a run stopped early
            if all(run.state == "done" for side in sides for run in side):
                raise
        else:
            if in_turns:
                comparisons[name] = compare_blocks(comparisons[name], *sides, names=(first, name), busy=_load())
    return EnvComparison({name: tuple(of_name) for name, of_name in runs.items()}, comparisons)


def _load() -> str:
    """Return a clause about the load of this host in the last minute, if it has more than its cores can run."""
    cores, load = host_cores(), load_average()
    return f"a load of {load:.0f} on {cores} core{'s' * (cores != 1)}" if load > cores + 1 else ""
