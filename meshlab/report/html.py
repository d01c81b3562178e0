"""A report as one HTML page: a template around the content, with pictures and data inside."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from meshlab.mesh import DeviceMesh
from meshlab.report.pictures import membership_pictures, pictures_by_axis, topology_pictures
from meshlab.units import THIN

if TYPE_CHECKING:
    import jinja2
    import pandas as pd

    from meshlab.topology import Cluster

__all__ = ["page"]


def page(
    content: dict[str, Any], results: pd.DataFrame, mesh: DeviceMesh | None, cluster: Cluster | None, axes: list[str]
) -> str:
    """Render the page.

    Parameters
    ----------
    content : dict
        What `Report` gathered; every string in it is escaped by the template.
    results : pandas.DataFrame
        A results frame; it is drawn, and embedded as JSON.
    mesh : DeviceMesh or None
    cluster : Cluster or None
    axes : list of str
        The groups of `mesh` to show.
    """
    from meshlab.benchmark.frame import frame_to_json

    # With every "<" escaped, no text inside the JSON can end the script element or open a comment.
    data = frame_to_json(results).replace("<", "\\u003c")
    memberships = membership_pictures(mesh, axes) if mesh is not None else []
    machines = topology_pictures(mesh, cluster, axes) if mesh is not None and cluster is not None else []
    html = _template().render(
        content, data=data, memberships=memberships, machines=machines, curves=pictures_by_axis(results)
    )
    return html.replace(THIN, "\N{NARROW NO-BREAK SPACE}")  # as thin, but a number stays with its unit


@cache
def _template() -> jinja2.Template:
    import jinja2

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(files("meshlab.report").joinpath("template.html").read_text(encoding="utf-8"))
