"""Reports: a run or any results as one file for people, and the frames read back from it."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshlab.analysis._comparison import Comparison, compare
from meshlab.analysis._expectations import expectations, runs_by_collective
from meshlab.analysis._judge import with_machine
from meshlab.analysis._measured_machine import MeasuredMachine, sized_cluster
from meshlab.analysis._stragglers import find_stragglers
from meshlab.analysis._thresholds import ThresholdCheck, Thresholds
from meshlab.analysis.tuning._tuning import Tuning
from meshlab.base import _markup as markup
from meshlab.base._errors import BenchError, MeshError, MeshlabError, TopologyError, did_you_mean
from meshlab.base._files import is_folder, text_of, write_file
from meshlab.base._folders import staged_folder
from meshlab.base._markup import visible
from meshlab.base._outcome import Outcome, overall
from meshlab.base._units import THIN
from meshlab.frames._files import frame_to_csv, frame_to_json, frame_to_parquet
from meshlab.frames._labels import where_text
from meshlab.mesh._mesh import DeviceMesh, MeshLike, as_mesh
from meshlab.nccl_tests._reader import read as read_nccl_tests
from meshlab.plots._tokens import page_tokens
from meshlab.prediction._bounds import with_bounds
from meshlab.report import _content as content
from meshlab.report import _tables as report_tables
from meshlab.report._answers import NO_MESH, Answer, ReportEvidence, answers, headline, pair_parts, without_repeated
from meshlab.report._embedding import embedded, read_embedded
from meshlab.report._hosts import host_caveat, host_facts, host_table, node_table
from meshlab.report._junit import junit_xml
from meshlab.report._markdown import markdown_page
from meshlab.report._next_step import next_step, next_step_of_acceptance
from meshlab.report._pictures import (
    Pictures,
    draw,
    matrix_pictures,
    node_pictures,
    picture_file,
    pictures_by_axis,
    traffic_pictures,
    tuning_pictures,
)
from meshlab.report._printing import page_to_pdf
from meshlab.report._repeating import repeat_command
from meshlab.report._stages import Stages
from meshlab.report._tables import ReportTable
from meshlab.report._trace import TraceSection, trace_pictures, trace_section, usable_machine, usable_mesh
from meshlab.report._tuning import TuningSection, tuning_section
from meshlab.report._words import code_parts
from meshlab.runs._certainty import uncertainty_of
from meshlab.runs._redact import redact as redact_run
from meshlab.runs._redact import redactor_of
from meshlab.runs._rundata import HOST_SECTION, RunData
from meshlab.runs._store import Frames, as_frames, load
from meshlab.topology._health import health
from meshlab.topology.model._links import explain_words
from meshlab.topology.model._presets import ClusterLike
from meshlab.topology.placement._placement import place
from meshlab.traces._trace import Trace

if TYPE_CHECKING:
    import jinja2
    import markupsafe
    import pandas as pd

_MOST_LOG_LINES = 200
_MOST_PICTURES = 8

_SUFFIXES = (".html", ".md", ".pdf", ".xml", ".csv", ".parquet", ".json")

Facts = list[tuple[str, str]]  # pairs of term and text


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """The content of a report, which all its formats share."""

    title: str
    where: str  # the measured system
    headline: Answer
    next_step: Answer
    stages: tuple[Answer, ...] = ()  # of an acceptance, otherwise empty
    answers: tuple[Answer, ...] = ()
    nodes: ReportTable | None = None  # the verdicts of an acceptance on several hosts
    caveats: list[str] = field(default_factory=list)  # reasons to distrust the numbers
    machine: list[str] = field(default_factory=list)
    pivots: list[ReportTable] = field(default_factory=list)  # one row per size
    loads: list[ReportTable] = field(default_factory=list)  # pairs, contention and interference
    loads_title: str = ""
    traffics: list[ReportTable] = field(default_factory=list)  # uneven ones next to the even one
    details: list[ReportTable] = field(default_factory=list)  # every row with its interval
    more_tables: int = 0  # number of omitted details
    expected: ReportTable | None = None  # the largest sizes, with the expected performance
    published: ReportTable | None = None  # the published runs that they were compared with
    thresholds: ReportTable | None = None
    changed: ReportTable | None = None  # the baseline next to the results
    tuning: TuningSection | None = None
    trace: TraceSection | None = None
    method: Facts
    repeat: str = ""  # the command that repeats the measurement, empty if unknown
    environment: list[tuple[str, Facts]] = field(default_factory=list)
    hosts: ReportTable | None = None  # of a run on several hosts
    log: list[str] = field(default_factory=list)  # its last lines
    more_log: int = 0  # number of lines before them


class Report:
    """A run as one file from which another person can decide: verdict, machine, figures, tables and method.

    The verdict and the next step come first. Answers follow: what was measured, whether it is correct and as fast as
    expected, what is unusual, and what changed. The report is a snapshot. It does not change if the run continues, and
    it shows if a run has not ended.

    Parameters
    ----------
    run : RunData, Tuning, DataFrame, path, object with ``.results``, or a list of these
        A run or its folder, its results, or a log of nccl-tests. Only a run or its folder has a mesh, an environment
        and a log. The results of a tuning are the times of its default.
    mesh : DeviceMesh or str, optional
        The mesh whose groups are shown. By default that of the run.
    cluster : Cluster or str, optional
        The machine, or the name of a preset. The report draws it with the links of each group, and compares the
        results with its bound and its prediction. A preset gets as many hosts as the source.
    nodes : int, optional
        Number of hosts, if the source does not contain it.
    baseline : RunData, DataFrame, path, object with ``.results``, or a list of these, optional
        Earlier results, which are compared row by row and drawn in grey.
    thresholds : Thresholds, path or str, optional
        The limits that the results must meet: a file, or the name of one of `Thresholds.presets`.
    tuning : Tuning, optional
        A tuning of the same machine, which gets its own section: what was gained, the chosen options, and what
        environment variables and a tuner plugin can set of them.
    trace : Trace, optional
        The trace of a job on the same machine, which gets its own section: its time by axis, late ranks, and its calls
        on the curves of the run.
    stages : Stages, optional
        The stages of an acceptance, which come first.
    title : str, optional
        The headline. By default it has the name of the run, if there is one, and the mesh.
    redact : bool, default False
        If True, write hashes instead of names, addresses and secrets in the whole report: in the run, the cluster, the
        tuning, the baseline, the thresholds and the title, see `RunData.redacted`. Needs a run, its folder, or a
        tuning.

    Attributes
    ----------
    results, samples : pandas.DataFrame
        The frames.

    Raises
    ------
    BenchError
        If `run` has no results.
        If `redact` is True, and `run` is neither a run nor a tuning.
        If `tuning` is not a Tuning.
    ParseError
        If the thresholds are invalid.

    Examples
    --------
    >>> import meshlab as ml
    >>> report = ml.Report(ml.example(), mesh="tp=2", cluster="dgx-h200", title="Nightly")
    >>> print(report.markdown().splitlines()[0])
    # Nightly
    >>> report.is_passed, [answer.question for answer in report.answers]
    (True, ['measured', 'correct', 'fast enough', 'unusual'])
    """

    def __init__(
        self,
        run: Any,
        *,
        mesh: MeshLike | None = None,
        cluster: ClusterLike | None = None,
        nodes: int | None = None,
        baseline: Any = None,
        thresholds: Thresholds | str | os.PathLike[str] | None = None,
        tuning: Tuning | None = None,
        trace: Trace | None = None,
        stages: Stages | None = None,
        title: str | None = None,
        redact: bool = False,
    ) -> None:
        argument: Any = tuning
        if argument is not None and not isinstance(argument, Tuning):
            raise BenchError(
                f"tuning must be a Tuning, not {type(argument).__name__}", hint="read a file with Tuning.load(path)"
            )
        if isinstance(run, Tuning):
            mesh, tuning = run.mesh if mesh is None else mesh, run
        layout = None if mesh is None else as_mesh(mesh)
        if isinstance(run, (str, os.PathLike)) and is_folder(run):
            run = load(Path(run))
        run, machine = with_machine(run)
        if nodes is not None:
            machine = replace(machine or MeasuredMachine(), nodes=nodes)
        self.cluster = None if cluster is None else sized_cluster(cluster, machine)
        limits = thresholds if isinstance(thresholds, Thresholds) or thresholds is None else Thresholds.read(thresholds)
        if isinstance(baseline, (str, os.PathLike)) and is_folder(baseline):
            baseline = load(Path(baseline))
        earlier = None if baseline is None else as_frames(baseline, read_other=read_nccl_tests)
        if redact:
            if not isinstance(run, (RunData, Tuning)):
                kind = type(run).__name__
                raise BenchError(
                    f"redact=True needs a run, not {kind}, because only runs have a list of their hosts; "
                    "pass a Run or its folder"
                )
            # One redactor for all parts, so that a host has the same hash in the title, the picture and the log.
            recorded_run = run if isinstance(run, RunData) else None
            parts = (self.cluster, tuning, title, limits, earlier, stages)
            hosts = () if self.cluster is None else self.cluster.names
            hosts += tuple(baseline.hosts) if isinstance(baseline, RunData) else ()
            redactor = redactor_of(recorded_run, *parts, hosts=hosts, mesh=layout)
            tuning = None if tuning is None else tuning.redacted(redactor)
            run = redact_run(run, redactor) if isinstance(run, RunData) else tuning
            self.cluster, layout, title, limits, earlier, stages = (
                redactor.anything(part) for part in (self.cluster, layout, title, limits, earlier, stages)
            )
        if trace is not None and not isinstance(trace, Trace):
            raise BenchError(
                f"trace must be a Trace, not {type(trace).__name__}", hint="read files with ml.read(files)"
            )
        self.tuning, self.trace = tuning, trace
        self.stages = stages
        if isinstance(run, Tuning):
            title, run = title or f"Tuning of {run.mesh}", run.results
        data = run if isinstance(run, RunData) else None
        # Read before the results, which grow: the report may contain one more step than it claims, but not one less.
        note = "" if data is None else data.running_note
        self._progress = f"This run is still {note}." if note else ""
        results, samples, _ = as_frames(run, read_other=read_nccl_tests)
        self.results, self.samples = results.reset_index(drop=True), samples
        run_mesh = None if data is None else data.mesh
        self.mesh: DeviceMesh | None = run_mesh if layout is None else layout
        self._bounded, self._no_bounds = self._with_bounds()
        self.check: ThresholdCheck | None = None if limits is None else limits.check(self._bounded)
        self._baseline: pd.DataFrame | None = None
        self.comparison: Comparison | None = None
        self._not_compared = ""
        if earlier is not None:
            self._compare(earlier)
        calibration = None if data is None else data.calibration
        self.expected = expectations(
            self.results,
            machine.cluster if self.cluster is None and machine is not None else self.cluster,
            mesh=self.mesh,
            calibration=calibration,
            machine=None if machine is None else machine.of_results(self.results),
        )
        self.title = visible(title or _title_of(data, self.mesh))
        self._state = "" if data is None else data.state
        self._steps = () if data is None else data.steps
        self._elapsed_s = 0.0 if data is None else data.progress.elapsed_s
        self._devices = None if data is None else data.devices
        self._uncertainty = uncertainty_of(self.results) if data is None else data.uncertainty
        log = [] if data is None else list(data.log)
        self._log, self._more_log = log[-_MOST_LOG_LINES:], max(0, len(log) - _MOST_LOG_LINES)
        self._facts = self._describe(data)
        self._repeat = stages.repeat if stages is not None else "" if data is None else repeat_command(data)
        sections = {} if data is None else data.environment
        self._environment, self._hosts, self._host_caveat = (
            _environment(sections),
            host_table(sections),
            host_caveat(sections),
        )

    @staticmethod
    def read(path: str | Path) -> Frames:
        """Read the frames back from an HTML report, with the same rows, dtypes and `attrs`.

        Nothing in the file is executed.

        Parameters
        ----------
        path : str or pathlib.Path
            A file that `Report.save` wrote with the suffix .html.

        Returns
        -------
        Frames
            ``results``, ``samples`` and ``name``. All functions that accept a run accept it too. There are no samples
            if the report was written without them, or they were too large.

        Raises
        ------
        BenchError
            If the file cannot be read.
        ParseError
            If the file contains no meshlab results, or they are damaged.

        Examples
        --------
        >>> import tempfile
        >>> import meshlab as ml
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = ml.Report(ml.example()).save(f"{folder}/report.html")
        ...     len(ml.Report.read(path).results) == len(ml.example())
        True
        """
        try:
            text, _ = text_of(Path(path), hint="pass an HTML file that Report.save wrote")
        except OSError as error:
            raise BenchError(
                f"cannot read {path}: {error.strerror or error}", hint="pass an HTML file that Report.save wrote"
            ) from error
        return read_embedded(text, str(path))

    @cached_property
    def answers(self) -> tuple[Answer, ...]:
        """The answers: what was measured, whether it is correct and fast enough, what is unusual, and what changed."""
        replies = answers(self._evidence)
        if self._not_compared:
            replies = (*replies, Answer("changed", "note", (self._not_compared,)))
        return replies

    @cached_property
    def _evidence(self) -> ReportEvidence:
        is_in_block = self.samples["block"].notna()
        return ReportEvidence(
            results=self._bounded,
            # Only alternatives are compared by block. A sample of an older run shows that it has no blocks.
            samples=self.samples[is_in_block] if is_in_block.any() else self.samples[:1],
            progress=self._progress,
            state=self._state,
            expected=self.expected,
            check=self.check,
            comparison=self.comparison,
            stragglers=self._stragglers(),
            devices=self._devices,
            tuned=() if self.tuning is None else tuple(self.tuning.verdicts),
            no_bounds=self._no_bounds,
            uncertainty=self._uncertainty,
        )

    @property
    def next_step(self) -> str:
        """The recommended next step, which follows from the answers."""
        return " ".join(self._next_step.sentences)

    @property
    def verdict(self) -> str:
        """The most important answer, as a sentence. For an acceptance, the verdict of its stages."""
        return self._headline.sentences[0]

    @property
    def outcome(self) -> Outcome:
        """``"failed"`` if something is wrong, impossible, below a threshold, or slower than expected or the baseline.

        Otherwise ``"not decided"`` if the run has not ended, a result was not checked, or a threshold was not measured,
        and else ``"passed"``. For an acceptance, the stages decide as well.
        """
        outcomes = [answer.outcome for answer in self.answers if answer.outcome is not None]
        return overall(outcomes if self.stages is None else [*outcomes, self.stages.outcome])

    @property
    def is_passed(self) -> bool:
        """True if the outcome is ``"passed"``. What was not checked has not passed."""
        return self.outcome == "passed"

    @property
    def _headline(self) -> Answer:
        return headline(self.answers) if self.stages is None else self.stages.headline

    @property
    def _next_step(self) -> Answer:
        return next_step(self._evidence, self.answers) if self.stages is None else next_step_of_acceptance(self.stages)

    def html(self) -> str:
        """Return the report as a self-contained HTML page, which loads nothing from the network."""
        return page(self._content(), embedded(self.results, self.samples), self._draw())

    def markdown(self) -> str:
        """Return the report as Markdown with GitHub's tables, without figures."""
        return self._markdown()

    def junit(self) -> str:
        """Return the answers and the thresholds as JUnit XML, for continuous integration."""
        return junit_xml(self.title, self.answers, self.check, self._elapsed_s, self.stages)

    def save(self, path: str | Path, *, pictures: bool = False) -> Path:
        """Write the report, or its results. The suffix selects the format.

        Readers never see an incomplete file, nor a Markdown report with the figures of an earlier one.

        Parameters
        ----------
        path : str or pathlib.Path
            The file: .html, .md, .pdf (printed by Chromium, Chrome or Edge, if one is installed), .xml (JUnit), or the
            results as .csv, .json or .parquet.
        pictures : bool, default False
            If True, write the figures of a Markdown report as PNG files in the same folder, named after the report,
            such as ``report-bandwidth-tp.png``. HTML and PDF always contain the figures.

        Returns
        -------
        pathlib.Path
            The file.

        Raises
        ------
        BenchError
            If the suffix is unknown.
            If a file cannot be written.
            If there is no browser that can print a PDF.
        """
        path = Path(path)
        self.check_suffix(path)
        makers: dict[str, Callable[[], str | bytes]] = {
            ".html": self.html,
            ".md": self.markdown,
            ".pdf": lambda: page_to_pdf(self.html()),
            ".xml": self.junit,
            ".csv": partial(frame_bytes, self.results, frame_to_csv),
            ".parquet": partial(frame_bytes, self.results, frame_to_parquet),
            ".json": lambda: frame_to_json(self.results),
        }
        if path.suffix != ".md" or not pictures:
            return write_file(path, makers[path.suffix]())
        if not path.parent.is_dir():
            raise BenchError(f"cannot write {str(path)!r}: its folder does not exist", hint="create it first")
        drawn = self._draw()
        document = self._markdown(drawn, path.stem)
        with staged_folder(path.parent, pointer=path.name) as stage:
            drawn.save(stage, path.stem)
            (stage / path.name).write_text(document, encoding="utf-8")
        return path

    @staticmethod
    def check_suffix(path: str | Path) -> None:
        """Raise if `save` has no format for the suffix of a file.

        Raises
        ------
        BenchError
            If the suffix is unknown.
        """
        path = Path(path)
        if path.suffix not in _SUFFIXES:
            raise BenchError(
                f"unknown suffix {path.suffix!r} of {path.name!r}{did_you_mean(path.suffix, _SUFFIXES)}",
                hint=f"choose one of {', '.join(_SUFFIXES)}",
            )

    def __repr__(self) -> str:
        return f"<Report {self.title!r}: {len(self.results):,} results; next: .outcome, .save('report.html')>"

    def __str__(self) -> str:
        listed = (self._next_step, *self._stage_answers, *self._other_answers)
        return "\n".join([self.verdict, *(_line(answer) for answer in listed)])

    def _repr_html_(self) -> str:
        listed = (self._next_step, *self.answers)
        rows = "".join(f"<div>{markup.escape(_line(answer))}</div>" for answer in listed)
        drawn = [*matrix_pictures(self.results), *(two[0] for _, two in pictures_by_axis(self._bounded))]
        pictures = "".join(picture.svg for picture in drawn)
        verdict = f"<div><b>{markup.escape(self.verdict)}</b></div>"
        return markup.card(self.title, 'Report.save("report.html") writes the complete report', verdict, rows, pictures)

    @property
    def _stage_answers(self) -> tuple[Answer, ...]:
        return () if self.stages is None else tuple(stage.answer for stage in self.stages.items)

    @property
    def _other_answers(self) -> tuple[Answer, ...]:
        """The answers that the stages of an acceptance do not contain already."""
        return without_repeated(self.answers, self._stage_answers)

    def _compare(self, earlier: Frames) -> None:
        """Compare the results with the baseline. Two sides that are not comparable are a warning in the report."""
        # No paths, which would name the folders of the person who wrote the report.
        sides = Frames(earlier.results, earlier.samples, "baseline"), Frames(self.results, self.samples, "this run")
        try:
            self.comparison = compare(*sides)
            self._baseline = earlier.results
        except BenchError as error:
            self._not_compared = f"The baseline was not compared: {error.message}."

    def _stragglers(self) -> pd.DataFrame | None:
        if not self.samples["start_offset_us"].notna().any():
            return None
        try:
            return find_stragglers(Frames(self.results, self.samples, ""))
        except MeshlabError:  # the samples do not belong to the results
            return None

    def _content(self) -> Content:
        details, more_tables = report_tables.detail_tables(self._bounded)
        loads = report_tables.load_tables(self._bounded, self.samples)
        n_pairs = sum(1 for _ in pair_parts(self._bounded))
        is_known = len(self.expected) and self.expected["verdict"].ne("unknown").any()
        fingerprint = self.mesh.fingerprint if self.mesh is not None else ""
        return Content(
            title=self.title,
            where=where_text(self.results),
            headline=self._headline,
            next_step=self._next_step,
            stages=self._stage_answers,
            answers=self._other_answers,
            nodes=None if self.stages is None or self.stages.nodes is None else node_table(self.stages.nodes),
            caveats=content.caveats(self.results, fingerprint=fingerprint, cluster=self.cluster)
            + [self._host_caveat] * bool(self._host_caveat),
            machine=self._machine(),
            pivots=report_tables.pivot_tables(self._bounded),
            loads=loads,
            loads_title="Contention" if not n_pairs else "Pairs" if n_pairs == len(loads) else "Pairs and contention",
            traffics=report_tables.traffic_tables(self._bounded, self.samples),
            details=details,
            more_tables=more_tables,
            expected=report_tables.expectation_table(self.expected) if is_known else None,
            published=report_tables.published_table(self.expected),
            thresholds=None if self.check is None else report_tables.threshold_table(self.check),
            changed=None if self.comparison is None else report_tables.comparison_table(self.comparison),
            tuning=None if self.tuning is None else tuning_section(self.tuning),
            trace=None if self.trace is None else trace_section(self.trace, *self._of_trace),
            method=[*content.method(self._bounded), *self._facts],
            repeat=self._repeat,
            environment=self._environment,
            hosts=self._hosts,
            log=self._log,
            more_log=self._more_log,
        )

    def _describe(self, data: RunData | None) -> Facts:
        """Describe the run for the section about the method."""
        facts = [("Notes", " ".join(data.notes.split()))] if data is not None and data.notes else []
        if data is not None and self.stages is None:  # an acceptance has several plans
            facts.append(("Plan", str(data.plan)))
        if self.mesh is not None:
            mesh = self.mesh
            facts.append(("Mesh", f"{mesh!r}, {mesh.world_size:,} ranks, fingerprint {mesh.fingerprint}"))
        if self.cluster is not None:
            facts.append(("Machine", self.cluster.summary))
        if len(self.samples):
            n_warmup = int(self.samples["is_warmup"].fillna(value=False).sum())
            facts.append(("Samples", f"{len(self.samples):,}, of which {n_warmup:,} are warm-up"))
        if self._state:
            facts.append(("Run", self._state))
        return facts

    def _with_bounds(self) -> tuple[pd.DataFrame, str]:
        """Return the results with the bounds of the machine, or the reason why they have none."""
        if self.cluster is None:
            return self.results, ""
        if self.mesh is None and self.results["axis"].notna().any():
            return self.results, NO_MESH
        try:
            return with_bounds(self.results, self.cluster, mesh=self.mesh), ""
        except TopologyError as error:
            return self.results, error.message

    def _machine(self) -> list[str]:
        """Describe the machine, the links that each axis uses on it, and its faults."""
        if self.cluster is None:
            return []
        sentences = [self.cluster.summary]
        if self.mesh is not None and self.cluster.n_devices >= self.mesh.world_size:
            lines = place(self.mesh, self.cluster).explain().splitlines()
            sentences += [*lines, *explain_words(" ".join(lines))]
        no_bounds = [f"Bandwidths have no bound: {self._no_bounds}."] if self._no_bounds else []
        return sentences + [str(finding) for finding in health(self.cluster)] + no_bounds

    def _group_axes(self) -> list[str]:
        """Return the axes and groups to show: the axes of the mesh with several ranks, then other measured ones."""
        if self.mesh is None:
            return []
        axes = [axis.name for axis in self.mesh.axes if axis.size > 1]
        for axis in self.results["axis"].dropna().unique():
            try:
                self.mesh[str(axis)]
            except MeshError:  # measured on a different mesh, which is one of the caveats
                continue
            axes.append(str(axis))
        return list(dict.fromkeys(axes))[:_MOST_PICTURES]

    def _draw(self) -> Pictures:
        drawn = draw(
            self._bounded,
            self.mesh,
            self.cluster,
            self._group_axes(),
            previous=self._baseline,
            published=runs_by_collective(self.expected),
        )
        nodes = [] if self.stages is None or self.stages.nodes is None else node_pictures(self.stages.nodes)
        tunings = [] if self.tuning is None else tuning_pictures(self.tuning)
        traces = [] if self.trace is None else trace_pictures(self.trace, *self._of_trace)
        return replace(drawn, nodes=nodes, tunings=tunings, traces=traces, traffics=traffic_pictures(self._steps))

    @cached_property
    def _of_trace(self) -> tuple[DeviceMesh | None, pd.DataFrame | None]:
        """The mesh of the trace and the times of the machine, None if they do not belong to the job."""
        if self.trace is None:
            return None, None
        mesh: Any = usable_mesh(self.trace, self.mesh)
        return mesh, usable_machine(self.trace, mesh, self.results)

    def _markdown(self, pictures: Pictures | None = None, prefix: str = "") -> str:
        groups = [self.mesh[axis] for axis in self._group_axes()] if self.mesh is not None else []
        return markdown_page(self._content(), groups, pictures, partial(picture_file, prefix))


def frame_bytes(frame: pd.DataFrame, write: Callable[[pd.DataFrame, Path], None]) -> bytes:
    """Return what a function writes to a file."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="meshlab-") as folder:
        path = Path(folder) / "frame"
        write(frame, path)
        return path.read_bytes()


def _title_of(data: RunData | None, mesh: DeviceMesh | None) -> str:
    """Return the default title of a report."""
    text = "Collectives" if mesh is None else f"Collectives on {mesh}"
    return text if data is None or not data.name else f"{data.name}: {text[0].lower()}{text[1:]}"


def _line(answer: Answer) -> str:
    sign = f"{answer.sign} " if answer.sign else ""
    return f"{sign}{answer.question}: {' '.join(answer.sentences)}"


def _environment(sections: Mapping[str, Mapping[str, str]]) -> list[tuple[str, Facts]]:
    """Return the sections of the environment that are not empty, and not in the table of hosts."""
    hosts = host_facts(sections)
    return [
        ("Client" if name == "Host" and hosts else str(name), [(str(key), str(value)) for key, value in values.items()])
        for name, values in sections.items()
        if values and not name.startswith(HOST_SECTION)
    ]


def page(content: Content, frames: Mapping[str, str], pictures: Pictures) -> str:
    """Render the HTML page."""
    script = _part("report.js")
    # The page may run this script and no other one, whatever a string in it contains.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    html = _template().render(
        c=content,
        p=pictures,
        frames=frames,
        script=script,
        digest=digest,
        style=page_tokens() + _part("report.css"),
        table_rows=_table_rows,
    )
    return html.replace(THIN, "\N{NARROW NO-BREAK SPACE}")  # as narrow, but no line break between a number and its unit


def _table_rows(table: ReportTable | TuningSection) -> markupsafe.Markup:
    """Return the rows of a table as HTML. The template could do it, but takes seconds for thousands of rows."""
    import markupsafe

    lines = []
    for row in table.rows:
        cells = []
        for number, cell in enumerate(row):
            kinds = " ".join(name for name, is_so in (("bad", cell.is_bad), ("text", number in table.texts)) if is_so)
            name = "td" if number else "th"
            start = name if number else 'th scope="row"'
            start += f' class="{kinds}"' if kinds else ""
            start += "" if cell.value is None else f' data-v="{cell.value:.9g}"'
            cells.append(f"<{start}>{markup.escape(cell.text)}</{name}>")
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return markupsafe.Markup("\n".join(lines))


@cache
def _part(name: str) -> str:
    return files("meshlab.report").joinpath(name).read_text(encoding="utf-8")


@cache
def _template() -> jinja2.Template:
    import jinja2

    # StrictUndefined: a name that is misspelled in the template raises, instead of leaving a gap in the page.
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["advice"] = _advice
    return environment.from_string(_part("template.html"))


def _advice(sentence: str) -> markupsafe.Markup:
    """Return a sentence as HTML, with code at its backticks. Lines are not broken within a word such as --baseline."""
    import markupsafe

    parts = []
    for is_code, part in code_parts(sentence):
        words = [f"<span>{markup.escape(word)}</span>" for word in part.split()]
        parts.append(f"<code>{' '.join(words)}</code>" if is_code else markup.escape(part))
    return markupsafe.Markup("".join(parts))
