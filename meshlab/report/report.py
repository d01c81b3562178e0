"""Reports: a run or any results as one HTML or Markdown file, and the results read back from it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshlab import markup
from meshlab.analysis.tunings import Tuning
from meshlab.errors import BenchError, MeshError, ParseError, TopologyError
from meshlab.files import write_file
from meshlab.folders import staged_folder
from meshlab.frames.labels import where_text
from meshlab.frames.rundata import RunData
from meshlab.frames.schema import RESULTS
from meshlab.frames.store import as_frames, frame_from_json, frame_to_json, load
from meshlab.mesh.groups import Groups
from meshlab.mesh.mesh import DeviceMesh, MeshLike, as_mesh
from meshlab.prediction.bounds import with_bounds
from meshlab.report import content
from meshlab.report.pictures import (
    Pictures,
    ReportPicture,
    draw,
    matrix_pictures,
    picture_file,
    pictures_by_axis,
    tuning_pictures,
)
from meshlab.report.tuning_section import tuning_section
from meshlab.topology.health import health
from meshlab.topology.model.presets import ClusterLike, as_cluster
from meshlab.topology.placement.placement import place
from meshlab.units import THIN

if TYPE_CHECKING:
    import jinja2
    import pandas as pd

__all__ = ["Report", "document", "page"]


_MOST_LOG_LINES = 200

_MOST_PICTURES = 8

_DATA = re.compile(r'<script type="application/json" id="meshlab-results">(.*?)</script>', re.DOTALL)

Facts = list[tuple[str, str]]
"""Pairs of term and text."""


class Report:
    """A run as one HTML or Markdown file: verdict, figures, tables, method and environment.

    The report is a snapshot. It does not change if the run continues, and its first sentence is the progress of a run
    that has not ended.

    Parameters
    ----------
    run : RunData, Tuning, DataFrame, path, object with ``.results``, or a list of these
        A run or its folder, or its results. Only a run or its folder has a mesh, an environment and a log. The results
        of a tuning are the times of its default.
    mesh : DeviceMesh or str, optional
        The mesh whose groups are shown. By default that of the run.
    cluster : Cluster or str, optional
        The machine, or the name of a preset. The report shows which links each group uses on it.
    tuning : Tuning, optional
        A tuning of the same machine, which gets a section of its own: what was gained, the chosen options, and what
        environment variables and a tuner plugin can set of them.
    title : str, optional
        The headline. By default it names the mesh.
    redact : bool, default False
        If True, write hashes instead of the names of hosts and users, addresses and the UUIDs of GPUs. Needs a run, its
        folder, or a tuning.

    Raises
    ------
    BenchError
        If `run` has no results.
        If `redact` is True, and `run` is neither a run nor a tuning.
        If `tuning` is not a Tuning.

    Examples
    --------
    >>> import meshlab as ml
    >>> report = ml.Report(ml.example(), title="Nightly")
    >>> print(report.markdown().splitlines()[0])
    # Nightly
    """

    def __init__(
        self,
        run: Any,
        *,
        mesh: MeshLike | None = None,
        cluster: ClusterLike | None = None,
        tuning: Tuning | None = None,
        title: str | None = None,
        redact: bool = False,
    ) -> None:
        given: Any = tuning
        if given is not None and not isinstance(given, Tuning):
            raise BenchError(
                f"tuning must be a Tuning, not {type(given).__name__}", hint="read a file with Tuning.load(path)"
            )
        if isinstance(run, Tuning):
            mesh, tuning = run.mesh if mesh is None else mesh, run
        self.tuning = tuning.redacted() if redact and tuning is not None else tuning
        if isinstance(run, Tuning):
            title, run, redact = title or f"Tuning of {run.mesh}", (self.tuning or run).results, False
        if isinstance(run, (str, os.PathLike)) and Path(run).is_dir():
            run = load(Path(run))
        data = run if isinstance(run, RunData) else None
        if redact:
            if data is None:
                raise BenchError(
                    f"redact=True needs a run, not {type(run).__name__}, because only runs have a list of their hosts; "
                    "pass a Run or its folder"
                )
            run = data = data.redacted()
        # Read before the results, which grow: the report may contain one more step than it claims, but not one less.
        note = "" if data is None else data.running_note
        self.progress = f"This run is still {note}." if note else ""
        results, samples, _ = as_frames(run)
        self.results = results.reset_index(drop=True)
        is_in_block = samples["block"].notna()
        # The samples of alternatives, which are compared by block. One of an older run shows that there are none.
        self._blocks = samples[is_in_block] if is_in_block.any() else samples[:1]
        own_mesh = None if data is None else data.mesh
        self.mesh: DeviceMesh | None = own_mesh if mesh is None else as_mesh(mesh)
        self.cluster = None if cluster is None else as_cluster(cluster)
        self._bounded, self._no_bounds = self._with_bounds()
        self.title = title or (f"Collectives on {self.mesh}" if self.mesh is not None else "Collectives")
        self.state = "" if data is None else data.state
        log = [] if data is None else list(data.log)
        self.log, self.more_log = log[-_MOST_LOG_LINES:], max(0, len(log) - _MOST_LOG_LINES)
        self._facts = self._describe(data, samples)
        self._environment = [] if data is None else _environment(data.environment)

    @staticmethod
    def read(path: str | Path) -> pd.DataFrame:
        """Read the results back from an HTML report, with the same rows, dtypes and `attrs`.

        Nothing in the file is executed.

        Parameters
        ----------
        path : str or pathlib.Path
            A file that `Report.save` wrote with the suffix .html.

        Returns
        -------
        pandas.DataFrame
            A results frame.

        Raises
        ------
        BenchError
            If the file cannot be read.
        ParseError
            If the file contains no meshlab results.

        Examples
        --------
        >>> import tempfile
        >>> import meshlab as ml
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = ml.Report(ml.example()).save(f"{folder}/report.html")
        ...     len(ml.Report.read(path)) == len(ml.example())
        True
        """
        try:
            text = Path(path).read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise BenchError(
                f"cannot read {path}: {error.strerror or error}; pass an HTML file that Report.save wrote"
            ) from error
        found = _DATA.search(text)
        if found is None:
            raise ParseError(
                "the file contains no meshlab results; pass an HTML file that Report.save wrote", file=str(path)
            )
        try:
            return frame_from_json(found[1], RESULTS)
        except (ValueError, KeyError, TypeError) as error:
            raise ParseError(f"the results are damaged: {error}; copy the file again", file=str(path)) from error

    def html(self) -> str:
        """Return the report as a self-contained HTML page, which loads nothing from the network."""
        return page(self._content(), self.results, self._draw())

    def markdown(self) -> str:
        """Return the report as Markdown with GitHub's tables, without figures."""
        return self._markdown()

    def save(self, path: str | Path, *, pictures: bool = False) -> Path:
        """Write the report. The suffix .html or .md selects the format.

        Readers never see an incomplete file, nor a Markdown report with the figures of an earlier one.

        Parameters
        ----------
        path : str or pathlib.Path
            The file.
        pictures : bool, default False
            If True, write the figures of a Markdown report as PNG files in the same folder, named after the report,
            such as ``report-bandwidth-tp.png``. An HTML report always contains its figures.

        Returns
        -------
        pathlib.Path
            The file.

        Raises
        ------
        BenchError
            If the suffix is neither .html nor .md.
            If a file cannot be written.
        """
        path = Path(path)
        if path.suffix not in (".html", ".md"):
            raise BenchError(f"unknown suffix {path.suffix!r} of {path.name!r}; choose .html or .md")
        if path.suffix == ".html":
            return write_file(path, self.html())
        if not pictures:
            return write_file(path, self.markdown())
        if not path.parent.is_dir():
            raise BenchError(f"cannot write {str(path)!r}: its folder does not exist", hint="create it first")
        drawn = self._draw()
        document = self._markdown(drawn, path.stem)
        with staged_folder(path.parent, pointer=path.name) as stage:
            drawn.save(stage, path.stem)
            (stage / path.name).write_text(document, encoding="utf-8")
        return path

    def __repr__(self) -> str:
        return f"<Report {self.title!r}: {len(self.results):,} results>"

    def _repr_html_(self) -> str:
        verdict = "".join(f"<div>{markup.escape(sentence)}</div>" for sentence in self._verdict())
        shown = [*matrix_pictures(self.results), *(drawn[0] for _, drawn in pictures_by_axis(self._bounded))]
        pictures = "".join(picture.svg for picture in shown)
        return markup.card(self.title, 'Report.save("report.html") writes the complete report', verdict, pictures)

    def _verdict(self) -> list[str]:
        tuned = [] if self.tuning is None else list(self.tuning.verdicts)
        return [self.progress] * bool(self.progress) + tuned + content.verdict(self._bounded, self._blocks)

    def _content(self) -> dict[str, Any]:
        """Return the content that both formats share."""
        tables, more_tables = content.tables(self._bounded, self._blocks)
        return {
            "title": self.title,
            "where": where_text(self.results),
            "verdict": self._verdict(),
            "is_bad": content.has_failed(self.results),
            "caveats": content.caveats(
                self.results,
                state=self.state,
                fingerprint=self.mesh.fingerprint if self.mesh is not None else "",
                cluster=self.cluster,
            ),
            "tuning": None if self.tuning is None else tuning_section(self.tuning),
            "machine": self._machine(),
            "tables": tables,
            "more_tables": more_tables,
            "method": [*content.method(self.results), *self._facts],
            "environment": self._environment,
            "log": self.log,
            "more_log": self.more_log,
        }

    def _describe(self, data: RunData | None, samples: pd.DataFrame) -> Facts:
        """Describe the run for the section about the method."""
        facts = []
        if data is not None:
            facts.append(("Plan", str(data.plan)))
        if self.mesh is not None:
            mesh = self.mesh
            facts.append(("Mesh", f"{mesh!r}, {mesh.world_size:,} ranks, fingerprint {mesh.fingerprint}"))
        if self.cluster is not None:
            facts.append(("Machine", self.cluster.summary))
        if len(samples):
            n_warmup = int(samples["is_warmup"].fillna(value=False).sum())
            facts.append(("Samples", f"{len(samples):,}, of which {n_warmup:,} are warm-up"))
        if self.state:
            facts.append(("Run", self.state))
        return facts

    def _with_bounds(self) -> tuple[pd.DataFrame, str]:
        """Return the results with the bounds of the machine, or the reason why they have none."""
        if self.cluster is None or self.mesh is None:
            return self.results, ""
        try:
            return with_bounds(self.results, self.cluster, mesh=self.mesh), ""
        except TopologyError as error:
            return self.results, f"Bandwidths have no bound: {error.message}."

    def _machine(self) -> list[str]:
        """Describe the machine, the links that each axis uses on it, and its faults."""
        if self.cluster is None:
            return []
        sentences = [self.cluster.summary]
        if self.mesh is not None and self.cluster.n_devices >= self.mesh.world_size:
            sentences += place(self.mesh, self.cluster).explain().splitlines()
        no_bounds = [self._no_bounds] if self._no_bounds else []
        return sentences + [str(finding) for finding in health(self.cluster)] + no_bounds

    def _shown_axes(self) -> list[str]:
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
        drawn = draw(self._bounded, self.mesh, self.cluster, self._shown_axes())
        return drawn if self.tuning is None else replace(drawn, tunings=tuning_pictures(self.tuning))

    def _markdown(self, pictures: Pictures | None = None, prefix: str = "") -> str:
        groups = [self.mesh[axis] for axis in self._shown_axes()] if self.mesh is not None else []
        return document(self._content(), groups, pictures, partial(picture_file, prefix))


def _environment(sections: Mapping[str, Mapping[str, str]]) -> list[tuple[str, Facts]]:
    """Return the sections of the environment that are not empty."""
    return [
        (str(name), [(str(key), str(value)) for key, value in values.items()])
        for name, values in sections.items()
        if values
    ]


def page(content: dict[str, Any], results: pd.DataFrame, pictures: Pictures) -> str:
    """Render the HTML page.

    Parameters
    ----------
    content : dict
        The content of the report. The template escapes every string in it.
    results : pandas.DataFrame
        A results frame. It is embedded as JSON.
    pictures : Pictures
        The figures of the report.
    """
    # A "<" inside the JSON could end the script element or start a comment, so every one is escaped.
    data = frame_to_json(results).replace("<", "\\u003c")
    shown = {name: getattr(pictures, name) for name in ("memberships", "machines", "curves", "matrices", "tunings")}
    html = _template().render(content, data=data, **shown)
    return html.replace(THIN, "\N{NARROW NO-BREAK SPACE}")  # as narrow, but no line break between a number and its unit


@cache
def _template() -> jinja2.Template:
    import jinja2

    # StrictUndefined: a name that is misspelled in the template raises, instead of leaving a gap in the page.
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(files("meshlab.report").joinpath("template.html").read_text(encoding="utf-8"))


def document(
    content: dict[str, Any],
    groups: Sequence[Groups],
    pictures: Pictures | None = None,
    file_of: Callable[[ReportPicture], str] | None = None,
) -> str:
    """Render the Markdown document, in the order of the HTML page.

    Parameters
    ----------
    content : dict
        The content of the report.
    groups : sequence of Groups
        The rows of the table of groups.
    pictures : Pictures, optional
        The figures. By default there are none.
    file_of : callable, optional
        Maps a figure to the name of its file.
    """

    def gallery(shown: Iterable[ReportPicture]) -> Iterable[str]:
        for picture in shown:
            name = picture.name if file_of is None else file_of(picture)
            yield from (f"![{_escape(picture.text)}](<{name}>)", "")

    lines = [f"# {_escape(content['title'])}", "", _escape(content["where"]), ""]
    for number, sentence in enumerate(content["verdict"]):
        lines += [f"**{_escape(sentence)}**" if number == 0 else _escape(sentence), ""]
    if content["caveats"]:
        lines += ["## Caveats", "", *(f"- {_escape(caveat)}" for caveat in content["caveats"]), ""]
    if content["tuning"] is not None:
        tuned = content["tuning"]
        lines += ["## Tuning", "", _escape(tuned.title), ""]
        lines += [] if pictures is None else gallery(pictures.tunings)
        lines += [*_table(tuned.header, [[cell.text for cell in row] for row in tuned.rows], numbers=False), ""]
        lines += [f"{tuned.more:,} more rows are not shown.", ""] if tuned.more else []
        lines += [*(f"- **{_escape(term)}**: {_escape(text)}" for term, text in tuned.facts), ""]
    if groups:
        rows = [[group.name, f"{len(group):,}", f"{group.size:,}", repr(group[0])] for group in groups]
        lines += ["## Groups", "", *_table(["axis", "groups", "ranks each", "first group"], rows, numbers=False), ""]
    if pictures is not None:
        lines += gallery(pictures.memberships)
    if content["machine"]:
        lines += ["## Machine", "", *(f"- {_escape(sentence)}" for sentence in content["machine"]), ""]
    if pictures is not None:
        lines += gallery(pictures.machines)
        lines += ["## Pairs", "", *gallery(pictures.matrices)] if pictures.matrices else []
        lines += ["## Curves", ""] if pictures.curves else []
        for name, drawn in pictures.curves:
            lines += [f"### {_escape(name)}", "", *gallery(drawn)]
    if content["tables"]:
        lines += ["## Results", ""]
    for table in content["tables"]:
        rows = [[cell.text for cell in row] for row in table.rows]
        lines += [f"### {_escape(table.title)}", "", *_table(table.header, rows, numbers=True), ""]
        if table.more:
            lines += [f"{table.more:,} more rows are not shown.", ""]
    if content["more_tables"]:
        lines += [f"{content['more_tables']:,} more tables are not shown.", ""]
    lines += ["## Method", "", *(f"- **{_escape(term)}**: {_escape(text)}" for term, text in content["method"]), ""]
    if content["environment"]:
        lines += ["## Environment", ""]
    for name, pairs in content["environment"]:
        lines += [f"### {_escape(name)}", ""] if name else []
        lines += [*_table(["key", "value"], pairs, numbers=False), ""]
    return "\n".join(lines).rstrip() + "\n"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: bool) -> list[str]:
    rule = "|" + ("---:" if numbers else "---") + ("|---:" if numbers else "|---") * (len(header) - 1) + "|"
    return [_row(header), rule, *(_row(row) for row in rows)]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(_escape(cell) for cell in cells)} |"


def _escape(text: str) -> str:
    r"""Escape a string for a line or a cell of Markdown: no markup, no HTML, no line breaks.

    Examples
    --------
    >>> print(_escape("a|b <script> all_reduce"))
    a\|b &lt;script&gt; all_reduce
    """
    text = re.sub(r"\s*[\r\n]+\s*", " ", text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    # GitHub does not treat an underscore between letters as emphasis, so all_reduce stays readable.
    return re.sub(r"([\\`*|\[\]~])|(?<!\w)(_)|(_)(?!\w)", lambda match: "\\" + match[0], text)
