"""The outcome of an acceptance, and its report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshlab.analysis._nodes import NodeComparison
from meshlab.analysis._thresholds import Thresholds
from meshlab.base import _markup as markup
from meshlab.base._outcome import Outcome
from meshlab.mesh._mesh import DeviceMesh
from meshlab.plans._plan import Plan
from meshlab.report._report import Report
from meshlab.report._stages import Stages
from meshlab.runs._rundata import RunData, State
from meshlab.runs._store import Frames, as_frames
from meshlab.topology.model._cluster import Cluster

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Acceptance:
    """The outcome of an acceptance. `meshlab.acceptance` returns it.

    Parameters
    ----------
    stages : Stages
        The stages in order, each with its outcome and findings.
    mesh : DeviceMesh
        The measured mesh.
    runs : mapping of str to RunData
        The runs of the stages that measured, by the name of the stage.
    run : RunData
        The rows and samples of all runs.
    cluster : Cluster, optional
        The machine, if it has GPUs.
    thresholds : Thresholds, optional
        The limits.
    """

    stages: Stages
    mesh: DeviceMesh
    runs: Mapping[str, RunData] = field(repr=False)
    run: RunData = field(repr=False)
    cluster: Cluster | None = field(default=None, repr=False)
    thresholds: Thresholds | None = field(default=None, repr=False)

    @property
    def outcome(self) -> Outcome:
        """``"failed"`` if a stage failed. ``"not decided"`` if too little was judged.

        That is the case if it was interrupted, if nothing or not every limit was measured, or if the speed was not
        judged, because neither thresholds nor an expectation are known.
        """
        return self.stages.outcome

    @property
    def is_passed(self) -> bool:
        """True if the outcome is ``"passed"``."""
        return self.outcome == "passed"

    @property
    def verdict(self) -> str:
        """The outcome, in a sentence or two."""
        return self.stages.headline.sentences[0]

    @property
    def nodes(self) -> pd.DataFrame:
        """One row per host, if there are several: its verdict, and the times that led to it, in µs.

        ``host``, ``ranks``, ``outcome``, ``alone_us`` (a collective of the ranks of the host), ``latency_us`` and
        ``transfer_us`` (a small and a large message on the best path to another host) and ``findings``. Times that
        were not measured are missing.
        """
        return (self.stages.nodes or NodeComparison(())).frame()

    def report(self, *, title: str | None = None, redact: bool = False) -> Report:
        """Return the report, which begins with the stages.

        Parameters
        ----------
        title : str, optional
            The headline. By default it names the mesh.
        redact : bool, default False
            If True, write hashes instead of names, addresses and secrets.
        """
        return Report(
            self.run,
            cluster=self.cluster,
            thresholds=self.thresholds,
            stages=self.stages,
            title=title or f"Acceptance of {self.mesh}",
            redact=redact,
        )

    def save(self, path: str | Path, *, redact: bool = False) -> Path:
        """Write the report. The suffix selects the format, as in `Report.save`; .xml is JUnit.

        Parameters
        ----------
        path : str or pathlib.Path
            The file.
        redact : bool, default False
            If True, write hashes instead of names, addresses and secrets.

        Returns
        -------
        pathlib.Path
            The file.

        Raises
        ------
        BenchError
            If the suffix is unknown, or the file cannot be written.
        """
        return self.report(redact=redact).save(path)

    def __str__(self) -> str:
        return "\n".join([*map(str, self.stages.items), "", self.verdict])

    def __repr__(self) -> str:
        return f"<Acceptance of {self.mesh}: {self.outcome}; next: .nodes, .save('acceptance.html')>"

    def _repr_html_(self) -> str:
        rows = [(stage.name, stage.outcome, " ".join(stage.sentences)) for stage in self.stages.items]
        return markup.card(self.verdict, str(self.mesh), markup.table(["stage", "outcome", "finding"], rows))


def joined_run(
    runs: Mapping[str, RunData], plan: Plan, mesh: DeviceMesh, *, run_id: str, source: str, where: str
) -> RunData:
    """Return the rows, samples and logs of the stages as one run."""
    parts = list(runs.values())
    if not parts:
        return RunData(plan, mesh, run_id=run_id, source=source, where=where, state="done")
    frames = _joined_frames(parts, run_id)
    first, last = parts[0], parts[-1]
    state: State = next((part.state for part in parts if part.state != "done"), "done")
    before = [row for row in first.device_rows if row["when"] == "before"]
    return RunData(
        plan,
        mesh,
        run_id=run_id,
        source=source,
        where=where,
        state=state,
        error=next((part.error for part in parts if part.error is not None), None),
        started_at=first.started_at,
        elapsed_s=sum(part.progress.elapsed_s for part in parts),
        hosts=dict.fromkeys(host for part in parts for host in part.hosts),
        ranks=last.rank_rows,
        user=first.user,
        devices=[*before, *(row for row in last.device_rows if row["when"] != "before")],
        conditions=_joined_conditions(parts),
        environment=first.environment,
        log=[f"{name}: {line}" for name, run in runs.items() for line in run.log],
        results=frames.results,
        samples=frames.samples,
    )


def _joined_conditions(parts: Sequence[RunData]) -> list[dict[str, Any]]:
    """Return the conditions of several runs, with the numbers of steps of `_joined_frames`."""
    n_before, rows = 0, []
    for part in parts:
        for row in part.condition_rows:
            step = row.get("step")
            rows.append({**row, "step": None if step is None else step + n_before})
        n_before += len(part.steps)
    return rows


def _joined_frames(parts: Sequence[RunData], run_id: str) -> Frames:
    """Return the frames of several runs with one name, and with steps that are numbered on from run to run."""
    n_before, shifted = 0, []
    for part in parts:
        results, samples = part.results, part.samples
        shifted.append(
            (results.assign(step=results["step"] + n_before), samples.assign(step=samples["step"] + n_before))
        )
        n_before += len(part.steps)
    joined = as_frames(shifted)
    return Frames(joined.results.assign(run_id=run_id), joined.samples.assign(run_id=run_id), joined.name)
