"""A report as one HTML page: a template around the content, with pictures and data inside."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from meshlab.report.pictures import Pictures
from meshlab.units import THIN

if TYPE_CHECKING:
    import jinja2
    import pandas as pd

__all__ = ["page"]


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
    from meshlab.frames.schema import frame_to_json

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
