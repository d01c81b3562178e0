"""Exports of a workbench: a report, a picture, tables, and code of frameworks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from meshlab.base._errors import BenchError, MeshlabError
from meshlab.base._markup import escape, table
from meshlab.base._units import format_size, format_time_us
from meshlab.frames._files import without_formulas
from meshlab.mesh._mesh import DeviceMesh
from meshlab.mesh.interop._frameworks import FRAMEWORKS
from meshlab.prediction._step_parts import CAVEAT, range_text, seconds_text
from meshlab.widgets._edits import Design
from meshlab.widgets._jobs import job_code
from meshlab.widgets._picture import COLORS, PAGE_NOTE
from meshlab.widgets._source import python

if TYPE_CHECKING:
    import pandas as pd

    from meshlab.widgets._workbench import Workbench


def export(workbench: Workbench, what: str) -> dict[str, Any]:
    """Return a file of `FILES` as ``name``, ``kind`` (its media type) and ``text``, or the code of all frameworks."""
    try:
        if what == "frameworks":
            return {"what": what, "frameworks": [_recipe(workbench, name) for name in FRAMEWORKS]}
        name, kind, text = FILES[what](workbench)
    except (MeshlabError, KeyError) as error:
        return {"what": what, "problem": str(error)}
    return {"what": what, "name": name, "kind": kind, "text": text}


def _recipe(workbench: Workbench, framework: str) -> dict[str, Any]:
    """Return the code of one framework, or why it cannot express the mesh."""
    try:
        recipe = workbench.mesh.to(framework)
    except MeshlabError as error:
        return {"name": framework, "text": "", "problem": str(error)}
    return {"name": framework, "text": repr(recipe), "problem": ""}


def _csv(name: str, frame: pd.DataFrame) -> tuple[str, str, str]:
    return name, "text/csv", without_formulas(frame).to_csv(index=False)


def _groups(workbench: Workbench) -> tuple[str, str, str]:
    placement = workbench.placement
    return _csv("groups.csv", workbench.mesh.stats() if placement is None else placement.frame())


def _page(workbench: Workbench) -> tuple[str, str, str]:
    from meshlab.widgets._page import page_of

    note = f"{workbench.summary}. {PAGE_NOTE} Show code has the program."
    return "page.html", "text/html", page_of(workbench, title=str(workbench.mesh), note=note)


def _run_report(workbench: Workbench) -> tuple[str, str, str]:
    from meshlab.report._report import Report

    run = workbench.run
    if run is None:
        raise BenchError("no run is shown", hint="start one, or open one in the tab Runs")
    return "report.html", "text/html", Report(run).html()


_STYLE = """
:root { color-scheme: light dark; background: Canvas; color: CanvasText; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1000px; margin: 32px auto; padding: 0 16px; }
h1 { font-size: 22px; } h2 { font-size: 17px; margin: 28px 0 8px; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: 4px 16px 4px 0; border-bottom: 1px solid #8886; }
pre { overflow-x: auto; padding: 12px; border: 1px solid #8886; border-radius: 6px; font-size: 13px; }
svg { max-width: 100%; height: auto; }
body:has(.pair) { max-width: 1360px; }
figure { margin: 0; } figcaption { margin-bottom: 4px; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(480px, 100%), 1fr)); gap: 16px; }
"""


def _report(workbench: Workbench) -> tuple[str, str, str]:
    """Return the design as one HTML page: its headline, the pictures, A and B, the step, the axes, and the code."""
    rows: list[Any] = workbench.table().to_dict("records")
    headline, axis = _headline(workbench, rows)
    columns = ["axis", "ranks", "links of its groups", "collective", "busbw (GB/s)", "time", "basis"]
    body = [
        [
            row["axis"],
            row["size"],
            row["placement"],
            f"{row['collective']} of {format_size(row['size_bytes'])}",
            f"{row['gbs']:,.1f}" if row["gbs"] > 0 else "–",
            format_time_us(row["time_us"]) if row["time_us"] > 0 else "–",
            row["basis"],
        ]
        for row in rows
    ]
    findings = "".join(f"<li>{escape(finding.mark)} {escape(finding.text)}</li>" for finding in workbench.findings)
    failed = "".join(f"<li>failed: {escape(part)}</li>" for part in workbench.failed)
    cluster = workbench.cluster
    machine = "" if cluster is None else f"{cluster.title or cluster.names[0]}: {cluster.summary}"
    parts = [
        f"<h1>{escape(workbench.mesh)}</h1>",
        f"<p>{escape(machine)}</p>",
        f"<p><b>{escape(headline)}</b></p>" if headline else "",
        _figures(workbench, axis),
        _comparison(workbench),
        _step(workbench),
        f"<h2>Axes</h2>{table(columns, body)}" if body else "",
        f"<h2>Findings</h2><ul>{findings}{failed}</ul>" if findings or failed else "",
        f"<h2>As text</h2><pre>{escape(workbench.describe())}</pre>",
        f"<h2>Code</h2><pre>{escape(workbench.code)}</pre>",
    ]
    page = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(workbench.mesh)}</title><style>{_STYLE}</style><body>{''.join(parts)}</body></html>"
    )
    return "design.html", "text/html", page


def _headline(workbench: Workbench, rows: list[Any]) -> tuple[str, str]:
    """Return the headline of the report, and the axis that its picture shows."""
    slowest = max((row for row in rows if row["time_us"] > 0), key=lambda row: float(row["time_us"]), default=None)
    step = workbench.step_time
    if step is not None:
        limit = step.limiting_axis
        names = [] if limit is None else [name for name in limit.axes if name in workbench.mesh.axis_names]
        axis = names[0] if names else workbench.axis
        return f"{step.job.title}: {step.verdict}; {step.limit}.", axis
    if slowest is None:
        return "", workbench.axis
    return f"The slowest axis is {slowest['axis']}: it {slowest['placement']}.", slowest["axis"]


def _figures(workbench: Workbench, axis: str) -> str:
    """Return the picture, beside that of candidate A if there is one."""
    pictures = workbench.pictures(axis)
    if len(pictures) == 1:
        return f"<figure>{pictures['B']}</figure>"
    titles = {"A": workbench.pinned_summary, "B": workbench.summary}
    figures = "".join(
        f"<figure><figcaption><b>{name}</b> {escape(titles[name])}</figcaption>{svg}</figure>"
        for name, svg in pictures.items()
    )
    return f'<div class="pair">{figures}</div>'


def _comparison(workbench: Workbench) -> str:
    """Return the decision between A and B, its table, and the differences."""
    decision = workbench.comparison
    if decision is None:
        return ""
    rows = table(["", "A", "B", "B to A"], [list(row) for row in decision.rows])
    differences = "".join(f"<li>{escape(line)}</li>" for line in workbench.differences)
    return f"<h2>A and B</h2><p><b>{escape(decision.sentence)}</b></p>{rows}<ul>{differences}</ul>"


def _step(workbench: Workbench) -> str:
    """Return the parts of the step of the job."""
    job, step = workbench.job, workbench.step_time
    if job is None:
        return ""
    if step is None:
        return f"<h2>Step</h2><p>{escape(workbench.step_problem)}</p>"
    rows = [
        ["computation", seconds_text(step.compute_s), ""],
        ["bubble", seconds_text(step.bubble_s), f"{step.micro_batches:,} micro-batches"],
        *([axis.name, range_text(axis.low_s, axis.high_s), axis.limit] for axis in step.axes),
    ]
    fix = "" if step.fits else f"<p>It does not fit: {escape(step.memory_fix)}.</p>"
    return (
        f"<h2>Step</h2><p>{escape(repr(job).strip('<>'))}</p><p>{escape(step.verdict)}.</p>{fix}"
        f"{table(['part', 'per step', 'limit'], rows)}<p>{escape(CAVEAT)}</p>"
    )


# The files by the name that the front end uses. Each function returns the name of a file, its media type and text.
FILES: Mapping[str, Callable[[Workbench], tuple[str, str, str]]] = MappingProxyType(
    {
        "svg": lambda workbench: ("topology.svg", "image/svg+xml", workbench.figure_svg()),
        "csv": lambda workbench: _csv("axes.csv", workbench.table()),
        "groups": _groups,
        "text": lambda workbench: ("workbench.txt", "text/plain", workbench.describe()),
        "report": _report,
        "run": _run_report,
        "page": _page,
    }
)


# -- code --------------------------------------------------------------------------------------------------------------


# The attributes of the picture that are in the program, if they do not have their defaults.
_CODED = ("axis", "pick", "size", "collective", "color", "focus", "selected", "tab", "panels", "height")


def _options(workbench: Workbench, design: Design) -> dict[str, Any]:
    """Return the attributes that do not have their defaults."""
    options = {name: getattr(workbench, name) for name in _CODED}
    ranks = workbench.selected
    if len(ranks) > 2 and ranks[-1] - ranks[0] == len(ranks) - 1:
        options["selected"] = range(ranks[0], ranks[-1] + 1)
    if workbench.color not in COLORS:  # the program does not have the measured values
        del options["color"]
    # Of the design, because the constructor sends the code before it sets these attributes.
    failed = () if design.machine is None else design.machine.failed
    options |= {name: getattr(design, name) for name in ("rest", "per_axis", "experts")} | {"failed": failed}
    return {name: value for name, value in options.items() if value != getattr(type(workbench), name).default_value}


def program(workbench: Workbench, design: Design) -> str:
    """Return the program that creates a workbench with its design and attributes, and assigns it to ``wb``."""
    machine, lines, arguments = design.machine, [], []
    if machine is not None:
        lines.append(f"cluster = {machine.code}")
        arguments.append("cluster")
    lines.append(f"mesh = {_mesh_code(design.mesh)}")
    arguments.append("mesh" if machine is not None else "mesh=mesh")
    if design.job is not None:
        lines.append(f"job = {job_code(design.job)}")
        arguments.append("job=job")
    arguments += [f"{name}={python(value)}" for name, value in _options(workbench, design).items()]
    if design.pinned is not None:
        machine, mesh, job, experts = design.pinned
        if machine is not None:
            lines.append(f"cluster_a = {machine.code_without_failed}")
        lines.append(f"mesh_a = {_mesh_code(mesh)}")
        parts = ["None" if machine is None else "cluster_a", "mesh_a"]
        if job is not None:
            parts.append("job" if job == design.job else "job_a")
            lines += [] if job == design.job else [f"job_a = {job_code(job)}"]
            parts += [python(experts)] if experts else []
        arguments.append(f"pinned=({', '.join(parts)})")
    head = "import meshlab as ml\n"
    if any("np." in line for line in lines):
        head += "import numpy as np\n"
    return "\n".join([head, *lines, f"wb = ml.Workbench({', '.join(arguments)})", "wb"])


def _mesh_code(mesh: DeviceMesh) -> str:
    return "ml." + repr(mesh).replace("'", '"')
