"""One run, or any results, as a document for someone else; and the way back from the document to the numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from meshlab.errors import BenchError, ParseError
from meshlab.files import write_file
from meshlab.mesh.groups import Groups
from meshlab.mesh.mesh import DeviceMesh, MeshLike, as_mesh
from meshlab.report.pictures import Pictures
from meshlab.topology.model.cluster import Cluster
from meshlab.topology.model.presets import ClusterLike, as_cluster
from meshlab.units import THIN

if TYPE_CHECKING:
    import jinja2
    import pandas as pd

    from meshlab.report.pictures import Picture

__all__ = ["Report", "document", "page", "read_report"]


_MOST_LOG_LINES = 200

_MOST_PICTURES = 8

_DATA = re.compile(r'<script type="application/json" id="meshlab-results">(.*?)</script>', re.DOTALL)


class Measured(Protocol):
    """What a report needs of a run."""

    @property
    def results(self) -> pd.DataFrame:
        """A results frame."""


class Report:
    """Verdict, pictures, tables, method and environment of a run, in one HTML or Markdown file.

    The numbers are those at the time when the report is made; a run that goes on does not change it.

    Parameters
    ----------
    run : Run or pandas.DataFrame
        A run, a results frame, or anything with ``results``. Of these, ``mesh``, ``environment`` (sections of keys and
        values), ``plan``, ``state``, ``samples`` and ``log`` are used where they exist.
    mesh : DeviceMesh or str, optional
        The mesh whose groups are shown; the run's own without it.
    cluster : Cluster or str, optional
        The machine, or the name of a preset: what every group crosses on it, in pictures and sentences.
    title : str, optional
        The headline.
    redact : bool, default False
        Whether to write hashes for the names of hosts and users, for addresses and for the UUIDs of GPUs; for a `Run`.

    Raises
    ------
    BenchError
        If there are no results, or their columns are not those of a results frame.

    Examples
    --------
    >>> from meshlab.frames.schema import empty_results
    >>> print(Report(empty_results(), title="Nightly").markdown().splitlines()[0])
    # Nightly
    """

    def __init__(
        self,
        run: Measured | pd.DataFrame,
        *,
        mesh: MeshLike | None = None,
        cluster: ClusterLike | None = None,
        title: str | None = None,
        redact: bool = False,
    ) -> None:
        import pandas as pd

        from meshlab.frames.schema import RESULTS, conform

        if redact:
            redacted: Callable[[], Measured] | None = getattr(run, "redacted", None)
            if redacted is None:
                raise BenchError(f"redact=True needs a Run, not {type(run).__name__}: only a run knows its hosts")
            run = redacted()
        results = run if isinstance(run, pd.DataFrame) else getattr(run, "results", None)
        if not isinstance(results, pd.DataFrame):
            raise BenchError(f"a report needs a run or a results frame, not {type(run).__name__}")
        self.results = conform(results.reset_index(drop=True), RESULTS)
        self.mesh: DeviceMesh | None = getattr(run, "mesh", None) if mesh is None else as_mesh(mesh)
        self.cluster = None if cluster is None else as_cluster(cluster)
        self.title = title or (f"Collectives on {self.mesh}" if self.mesh is not None else "Collectives")
        self.state = str(getattr(run, "state", None) or "")
        log = [str(line) for line in getattr(run, "log", None) or []]
        self.log, self.more_log = log[-_MOST_LOG_LINES:], max(0, len(log) - _MOST_LOG_LINES)
        self._facts = _facts(run, self.mesh, self.cluster)

    def __repr__(self) -> str:
        return f"<Report {self.title!r}: {len(self.results):,} rows>"

    def _content(self) -> dict[str, Any]:
        """What both formats show."""
        from meshlab.frames.labels import where_text
        from meshlab.report import content
        from meshlab.report import content as questions

        shown, more = content.tables(self.results)
        fingerprint = self.mesh.fingerprint if self.mesh is not None else ""
        verdict = [*content.verdict(self.results), *questions.answers(self.results)]
        return {
            "title": self.title,
            "where": where_text(self.results),
            "verdict": verdict,
            "is_bad": content.has_failed(self.results),
            "warnings": content.warnings_of(
                self.results, state=self.state, fingerprint=fingerprint, cluster=self.cluster
            ),
            "machine": self._machine(),
            "tables": [*questions.answer_tables(self.results), *shown],
            "more_tables": more,
            "method": [*content.method(self.results), *self._facts[0]],
            "environment": self._facts[1],
            "log": self.log,
            "more_log": self.more_log,
        }

    def _machine(self) -> list[str]:
        """What the machine is, what every axis crosses on it, and what looks wrong with it."""
        from meshlab.topology.health import health
        from meshlab.topology.placement.placement import place

        if self.cluster is None:
            return []
        told = [self.cluster.summary]
        if self.mesh is not None and self.cluster.n_devices >= self.mesh.world_size:
            told += place(self.mesh, self.cluster).explain().splitlines()
        return told + [str(finding) for finding in health(self.cluster)]

    def _shown_axes(self) -> list[str]:
        """The axes whose groups are shown: those of the mesh that part it, then other sets that were measured."""
        from meshlab.errors import MeshError
        from meshlab.frames.plan import along

        if self.mesh is None:
            return []
        axes = [axis.name for axis in self.mesh.axes if axis.size > 1]
        for axis in self.results["axis"].dropna().unique():
            try:
                self.mesh[along(str(axis))]
            except MeshError:  # measured on another mesh; a warning says so
                continue
            axes.append(along(str(axis)))
        return list(dict.fromkeys(axes))[:_MOST_PICTURES]

    def _draw(self) -> Pictures:
        from meshlab.report.pictures import draw

        return draw(self.results, self.mesh, self.cluster, self._shown_axes())

    def html(self) -> str:
        """The report as one HTML page that loads nothing from elsewhere."""
        return page(self._content(), self.results, self._draw())

    def markdown(self) -> str:
        """The report as Markdown with GitHub's tables, without pictures."""
        return self._markdown()

    def _markdown(self, pictures: Pictures | None = None, prefix: str = "") -> str:
        from meshlab.report.pictures import picture_file

        groups = [self.mesh[axis] for axis in self._shown_axes()] if self.mesh is not None else []
        return document(self._content(), groups, pictures, partial(picture_file, prefix))

    def save(self, path: str | Path, *, pictures: bool = False) -> Path:
        """Write the report; the suffix .html or .md decides the format.

        Every file is written beside its place and then moved there, so nobody ever reads half of it.

        Parameters
        ----------
        path : str or pathlib.Path
        pictures : bool, default False
            Whether Markdown shows pictures too. They are PNG files in the same folder, named after the report:
            ``report-bandwidth-tp.png``. HTML has its pictures inside, in any case.

        Returns
        -------
        pathlib.Path

        Raises
        ------
        BenchError
            If the suffix is neither, or a file cannot be written.
        """
        path = Path(path)
        if path.suffix not in (".html", ".md"):
            raise BenchError(f"{path.name!r} does not say how to write the report; let it end in .html or .md")
        if path.suffix == ".html":
            return write_file(path, self.html())
        if not pictures:
            return write_file(path, self.markdown())
        drawn = self._draw()
        drawn.save(path.parent, path.stem)
        return write_file(path, self._markdown(drawn, path.stem))

    def _repr_html_(self) -> str:
        from meshlab import markup
        from meshlab.report import content
        from meshlab.report import content as questions
        from meshlab.report.pictures import matrix_pictures, pictures_by_axis

        told = [*content.verdict(self.results), *questions.answers(self.results)]
        verdict = "".join(f"<div>{markup.escape(sentence)}</div>" for sentence in told)
        shown = [*matrix_pictures(self.results), *(drawn[0] for _, drawn in pictures_by_axis(self.results))]
        pictures = "".join(picture.svg for picture in shown)
        return markup.card(self.title, 'Report.save("report.html") writes all of it', verdict, pictures)


def _facts(
    run: object, mesh: DeviceMesh | None, cluster: Cluster | None
) -> tuple[list[tuple[str, str]], list[tuple[str, list[tuple[str, str]]]]]:
    """What the run says about itself: pairs for the method, and the sections of the environment."""
    method: list[tuple[str, str]] = []
    plan, samples, state = (getattr(run, name, None) for name in ("plan", "samples", "state"))
    if plan is not None:
        method.append(("Plan", str(plan)))
    if mesh is not None:
        method.append(("Mesh", f"{mesh!r}, {mesh.world_size:,} ranks, fingerprint {mesh.fingerprint}"))
    if cluster is not None:
        method.append(("Machine", cluster.summary))
    if samples is not None and len(samples):
        warm = int(samples["is_warmup"].fillna(False).sum())
        method.append(("Samples", f"{len(samples):,}, of which {warm:,} are warm-up"))
    if state:
        method.append(("Run", str(state)))
    environment = []
    loose = []
    for name, values in (getattr(run, "environment", None) or {}).items():
        if isinstance(values, Mapping) and not values:
            continue
        if isinstance(values, Mapping):
            environment.append((str(name), [(str(key), str(value)) for key, value in values.items()]))
        else:
            loose.append((str(name), str(values)))
    return method, [("", loose), *environment] if loose else environment


def read_report(path: str | Path) -> pd.DataFrame:
    """Read the results out of an HTML report; rows, dtypes and `attrs` are as they were.

    Nothing in the file is executed.

    Parameters
    ----------
    path : str or pathlib.Path
        What `Report.save` wrote with the suffix .html.

    Returns
    -------
    pandas.DataFrame
        A results frame.

    Raises
    ------
    ParseError
        If the file holds no results of meshlab.

    Examples
    --------
    >>> import tempfile
    >>> from meshlab.frames.example_data import example
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Report(example()).save(f"{folder}/report.html")
    ...     len(read_report(path)) == len(example())
    True
    """
    from meshlab.frames.schema import RESULTS
    from meshlab.frames.store import frame_from_json

    found = _DATA.search(Path(path).read_text(encoding="utf-8"))
    if found is None:
        raise ParseError("no results of meshlab are inside; give an HTML file that Report.save wrote", file=str(path))
    try:
        return frame_from_json(found[1], RESULTS)
    except (ValueError, KeyError, TypeError) as error:
        raise ParseError(f"the results inside are damaged: {error}", file=str(path)) from error


def page(content: dict[str, Any], results: pd.DataFrame, pictures: Pictures) -> str:
    """Render the page.

    Parameters
    ----------
    content : dict
        What `Report` gathered; every string in it is escaped by the template.
    results : pandas.DataFrame
        A results frame; it is embedded as JSON.
    pictures : Pictures
        Those of the report.
    """
    from meshlab.frames.store import frame_to_json

    # With every "<" escaped, no text inside the JSON can end the script element or open a comment.
    data = frame_to_json(results).replace("<", "\\u003c")
    shown = {name: getattr(pictures, name) for name in ("memberships", "machines", "curves", "matrices")}
    html = _template().render(content, data=data, **shown)
    return html.replace(THIN, "\N{NARROW NO-BREAK SPACE}")  # as thin, but a number stays with its unit


@cache
def _template() -> jinja2.Template:
    import jinja2

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(files("meshlab.report").joinpath("template.html").read_text(encoding="utf-8"))


def document(
    content: dict[str, Any],
    groups: Sequence[Groups],
    pictures: Pictures | None = None,
    file_of: Callable[[Picture], str] | None = None,
) -> str:
    """Render the document; its order is that of the HTML page.

    Parameters
    ----------
    content : dict
        What `Report` gathered.
    groups : sequence of Groups
        What stands in the table of groups.
    pictures : Pictures, optional
        What to show as well.
    file_of : callable, optional
        From a picture to the name of its file.
    """

    def gallery(shown: Iterable[Picture]) -> Iterable[str]:
        for picture in shown:
            name = picture.name if file_of is None else file_of(picture)
            yield from (f"![{_escape(picture.text)}](<{name}>)", "")

    lines = [f"# {_escape(content['title'])}", "", _escape(content["where"]), ""]
    for number, sentence in enumerate(content["verdict"]):
        lines += [f"**{_escape(sentence)}**" if number == 0 else _escape(sentence), ""]
    if content["warnings"]:
        lines += ["Read with care:", "", *(f"- {_escape(warning)}" for warning in content["warnings"]), ""]
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
    r"""Make any text safe to stand in a line or a cell: no markup, no HTML, no line breaks.

    Examples
    --------
    >>> print(_escape("a|b <script> all_reduce"))
    a\|b &lt;script&gt; all_reduce
    """
    text = re.sub(r"\s*[\r\n]+\s*", " ", text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    # An underscore between letters is no emphasis on GitHub, and collectives are full of them.
    return re.sub(r"([\\`*|\[\]~])|(?<!\w)(_)|(_)(?!\w)", lambda match: "\\" + match[0], text)
