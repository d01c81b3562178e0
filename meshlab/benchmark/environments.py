"""Compares settings of the environment: fresh engines for each, in turn, so that a drift of clocks hits all alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from meshlab import markup
from meshlab.analysis.comparison import Comparison, compare
from meshlab.benchmark.api import bench
from meshlab.benchmark.run import Run
from meshlab.engines.launcher import launch
from meshlab.errors import BenchError, CommunicatorError, EngineError, MeshlabError
from meshlab.mesh.mesh import MeshLike, as_mesh

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["EnvComparison", "compare_env"]


@dataclass(frozen=True, slots=True)
class EnvComparison:
    """What came out for each setting, and how each compares with the first.

    Parameters
    ----------
    runs : mapping of str to tuple of Run
        By the setting's name, one run per round.
    comparisons : mapping of str to Comparison
        By the setting's name, for all but the first, which stands "before" in each.
    """

    runs: Mapping[str, tuple[Run, ...]]
    comparisons: Mapping[str, Comparison]

    @property
    def results(self) -> pd.DataFrame:
        """The rows of all runs, with the setting's name in the first column, ``setting``."""
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
        """For every setting but the first, the comparison in a sentence."""
        first = next(iter(self.runs))
        return {name: f"{name} against {first}: {found.headline}" for name, found in self.comparisons.items()}

    def __str__(self) -> str:
        return "\n".join(self.headlines.values())

    def _repr_html_(self) -> str:
        cards = "".join(
            f"<div><b>{markup.escape(self.headlines[name])}</b></div>{found._repr_html_()}"
            for name, found in self.comparisons.items()
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
    **arguments: Any,
) -> EnvComparison:
    """Compare settings of the environment, such as NCCL's, on fresh engines each time.

    Libraries read their environment when they start, so every setting needs processes of its own. They take turns, and
    every second round goes backwards. Waits until all is measured.

    Parameters
    ----------
    mesh : DeviceMesh or str
        Where; as many engines are started as it has ranks.
    settings : mapping of str to mapping
        Environment variables by the setting's name; the first is what the others are compared with.
    collective, **arguments
        As in `bench`.
    rounds : int, default 3
        How often each setting is measured; below 3 there is little to say about chance.
    backend, devices
        As in `launch`; threads share one environment and cannot be compared.
    effect : float, default 0.05
        The relative difference that matters, as in `compare`.

    Returns
    -------
    EnvComparison

    Raises
    ------
    BenchError
        If there are fewer than two settings, or fewer than one round.
    EngineError
        If engines do not start, or a run fails; the message names the setting and the round. What was measured until
        then is in the error's ``measured``, an `EnvComparison`; it is None while there is nothing.

    Examples
    --------
    >>> from meshlab.mesh.mesh import DeviceMesh
    >>> mesh = DeviceMesh("tp=2")
    >>> compare_env(mesh, {"ring": {"NCCL_ALGO": "Ring"}}, "all_reduce")
    Traceback (most recent call last):
    meshlab.errors.BenchError: compare_env() needs at least two settings, not ring
    """
    mesh = as_mesh(mesh)
    if len(settings) < 2:
        raise BenchError(f"compare_env() needs at least two settings, not {', '.join(settings) or 'none'}")
    if rounds < 1:
        raise BenchError(f"rounds={rounds} must be at least 1")
    runs: dict[str, list[Run]] = {name: [] for name in settings}
    for number in range(rounds):
        for name in list(settings)[:: -1 if number % 2 else 1]:
            try:
                with launch(mesh.world_size, backend=backend, devices=devices, env=settings[name]) as engines:
                    run = bench(engines, mesh, collective, **arguments)
                    runs[name].append(run)
                    run.wait()
            except (EngineError, CommunicatorError) as error:
                raise _failed(name, f"round {number + 1} of {rounds}", error, runs, effect) from error
    return _compared(runs, effect)


def _failed(name: str, turn: str, error: MeshlabError, runs: Mapping[str, Sequence[Run]], effect: float) -> EngineError:
    """The error of one setting, with what was measured of all."""
    measured = {name: [run for run in found if (run.results["status"] == "ok").any()] for name, found in runs.items()}
    measured = {name: found for name, found in measured.items() if found}
    kept = _compared(measured, effect) if measured else None
    summary = error.summary if isinstance(error, EngineError) else str(error)
    n_runs = sum(map(len, measured.values()))
    told = (
        f"; what {n_runs} {'run' if n_runs == 1 else 'runs'} measured is in this error's .measured" if measured else ""
    )
    return EngineError(
        f"the setting {name!r} failed in {turn}: {summary}{told}",
        rank=error.rank if isinstance(error, (EngineError, CommunicatorError)) else None,
        host=error.host if isinstance(error, EngineError) else None,
        log=error.log if isinstance(error, EngineError) else "",
        measured=kept,
    )


def _compared(runs: Mapping[str, Sequence[Run]], effect: float) -> EnvComparison:
    """Compare all with the first; of runs that stopped early, what both have."""
    first, *others = runs
    comparisons = {}
    for name in others:
        both = [list(found) for found in (runs[first], runs[name])]
        try:
            comparisons[name] = compare(*both, effect=effect)
        except BenchError:
            if all(run.state == "done" for side in both for run in side):
                raise
    return EnvComparison({name: tuple(found) for name, found in runs.items()}, comparisons)
