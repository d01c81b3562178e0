"""Figures of the gallery: SVG that follows the theme of the page, and PNG for thumbnails."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

from matplotlib import pyplot

from meshlab.plots import figure_svg


def scrape(block: Any, block_vars: dict[str, Any], gallery_conf: dict[str, Any]) -> str:
    """Return the open figures as SVG, or else the HTML of the last value. The first PNG becomes the thumbnail."""
    pages = []
    for number in pyplot.get_fignums():
        figure = pyplot.figure(number)
        figure.savefig(next(block_vars["image_path_iterator"]), dpi=150)
        title = next((text for ax in figure.axes if (text := ax.get_title() or ax.get_title(loc="left"))), "figure")
        svg = figure_svg(figure, label=title)
        pages.append(svg)
    display = getattr(block_vars["example_globals"].get("___"), "_repr_mimebundle_", None)
    if not pages and display is not None:
        bundle = display()
        pages.append((bundle[0] if isinstance(bundle, tuple) else bundle)["text/html"])
    close_figures()
    return "\n".join(_raw(f'<div class="figure">{page}</div>') for page in pages)


def _raw(html: str) -> str:
    """Return reStructuredText that inserts HTML."""
    return "\n.. raw:: html\n\n" + textwrap.indent(html, "    ") + "\n"


def close_figures(*_: Any) -> None:
    """Close all figures, so that a page shows only its own."""
    pyplot.close("all")


def copy_workbench(app: Any, error: Exception | None) -> None:
    """Move the page that the gallery saves next to the pages of the site."""
    page = Path(app.srcdir) / "gallery/5_widgets/workbench.html"
    if error is None and page.exists():
        page.replace(Path(app.outdir) / "_static/workbench.html")


def setup(app: Any) -> dict[str, bool]:
    """Publish the saved workbench with the site."""
    app.connect("build-finished", copy_workbench)
    return {"parallel_read_safe": True}
