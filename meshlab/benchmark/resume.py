"""Goes on with a run that stopped: what of it can be kept, and whether it may be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from meshlab.frames.rundata import columns_of_samples, rows_of_results
from meshlab.errors import BenchError

if TYPE_CHECKING:
    from meshlab.frames.plan import Plan
    from meshlab.benchmark.record import Record
    from meshlab.benchmark.run import Run
    from meshlab.benchmark.steps import Step
    from meshlab.engines.engines import Engines
    from meshlab.mesh.mesh import DeviceMesh

__all__ = ["Earlier"]

_KEPT = ("ok", "wrong")  # these were measured; what failed, was cancelled or skipped is tried again


class Earlier:
    """The part of a run that was measured before.

    Parameters
    ----------
    run : Run
        A run that has ended, or was read from disk.

    Raises
    ------
    BenchError
        If the run has not ended.
    """

    def __init__(self, run: Run) -> None:
        if run.state == "running":
            raise BenchError("the run has not ended; wait for it, or cancel() it, and resume it then")
        self.run_id: str = run.run_id
        self.elapsed_s = run.progress.elapsed_s
        self._run = run

    def check(self, engines: Engines, mesh: DeviceMesh, plan: Plan) -> None:
        """Refuse what would put two kinds of numbers into one run.

        Raises
        ------
        BenchError
            If the mesh, the machine or the way of measuring is another.
        """
        old = self._run
        for what, before, now in (
            ("mesh", old.mesh, mesh),
            ("machine", old.where, engines.where),
            ("sampling", old.plan.sampling, plan.sampling),
            ("check", old.plan.check, plan.check),
        ):
            if before != now:
                raise BenchError(
                    f"the run cannot go on with another {what}: it has {before!r}, now it would be {now!r}; "
                    "start a new run without resume"
                )

    def take_into(self, record: Record, steps: Sequence[Step]) -> set[tuple[int, int]]:
        """Put the rows and samples of all steps that were measured into a record.

        Returns
        -------
        set of (int, int)
            Launches and steps that are done.
        """
        old = self._run
        results, samples = old.results, old.samples
        numbers = _numbers(old.steps, steps)
        n_launches = record.clock.total // max(len(steps), 1)
        is_kept = results["status"].isin(_KEPT).groupby([results["launch"], results["step"]]).all()
        done = {
            (int(launch), int(step))
            for launch, step in is_kept.index[is_kept]
            if step in numbers and launch < n_launches
        }
        kept = {(launch, numbers[step]) for launch, step in done}
        for frame in (results, samples):
            frame.attrs = {}
        results, samples = (
            frame[[key in done for key in zip(frame["launch"], frame["step"], strict=True)]].assign(
                step=lambda rows: rows["step"].map(numbers).astype("Int64")
            )
            for frame in (results, samples)
        )
        record.keep(rows_of_results(results), [columns_of_samples(samples)] if len(samples) else [])
        record.started_at, record.hosts = old.started_at, old._record.hosts
        record.devices = [row for row in old._record.devices if row["when"] == "before"]
        record.log += old.log
        record.note(f"resumed with {len(kept)} of {record.clock.total} steps")
        for _, step in kept:
            record.clock.skip(step)
        return kept


def _numbers(old: Sequence[Step], new: Sequence[Step]) -> dict[int, int]:
    """From the number of a step in the old plan to its number in the new one."""

    def bare(step: Step) -> Step:
        beside = None if step.beside is None else replace(step.beside, index=0)
        return replace(step, index=0, beside=beside)

    places = {bare(step): step.index for step in new}
    return {step.index: places[bare(step)] for step in old if bare(step) in places}
