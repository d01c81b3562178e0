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
from meshlab.widgets._edits import Design
from meshlab.widgets._jobs import job_code
from meshlab.widgets._picture import PAGE_NOTE
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
"""


def _report(workbench: Workbench) -> tuple[str, str, str]:
    """Return the design as one HTML page: its limit, the picture, the axes, the findings, and the code."""
    rows: list[Any] = workbench.table().to_dict("records")
    worst = max((row for row in rows if row["time_us"] > 0), key=lambda row: float(row["time_us"]), default=None)
    verdict = ""
    if worst is not None:
        verdict = f"<p><b>The slowest axis is {escape(worst['axis'])}: it {escape(worst['placement'])}.</b></p>"
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
        verdict,
        f"<figure style='margin:0'>{workbench.figure_svg()}</figure>",
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


def program(design: Design, options: Mapping[str, Any]) -> str:
    """Return the program that creates a workbench with a design and further arguments, and assigns it to ``wb``."""
    machine, lines, arguments = design.machine, [], []
    if machine is not None:
        lines.append(f"cluster = {machine.code}")
        arguments.append("cluster")
    lines.append(f"mesh = {_mesh_code(design.mesh)}")
    arguments.append("mesh" if machine is not None else "mesh=mesh")
    if design.job is not None:
        lines.append(f"job = {job_code(design.job)}")
        arguments.append("job=job")
    arguments += [f"{name}={python(value)}" for name, value in options.items()]
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
