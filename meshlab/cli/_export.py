"""The command ``meshlab export``: write a notebook as HTML."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from meshlab.base._errors import BenchError
from meshlab.cli._arguments import Command, add_out
from meshlab.cli._output import BAD_INPUT, OK, print_error, print_text

_WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


def _run(options: argparse.Namespace) -> int:
    """Write a notebook as HTML in which widgets are figures."""
    from importlib.util import find_spec

    from meshlab.base._files import write_file

    if find_spec("nbconvert") is None:
        print_error("nbconvert is not installed; run pip install nbconvert")
        return BAD_INPUT
    import nbconvert
    import nbformat

    html: Any = nbconvert.HTMLExporter
    executor: Any = nbconvert.preprocessors.ExecutePreprocessor
    reads: Any = nbformat.reads
    path = Path(options.notebook)
    try:
        notebook = reads(path.read_text(encoding="utf-8"), as_version=4)
    except OSError as error:
        raise BenchError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise BenchError(f"{path} is not a notebook: {error}") from error
    resources = {"metadata": {"path": str(path.parent)}}
    if options.execute:
        executor(timeout=None, store_widget_state=False).preprocess(notebook, resources)
    # nbconvert prefers a widget to the HTML next to it, and the state of a widget to both.
    notebook.metadata.pop("widgets", None)
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "text/html" in data:
                data.pop(_WIDGET_VIEW, None)
    page, _ = html(embed_images=True).from_notebook_node(notebook, resources)
    print_text(write_file(options.out or path.with_suffix(".html"), page))
    return OK


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("notebook", help="the notebook")
    parser.add_argument("--execute", action="store_true", help="run all cells first; the notebook is not changed")
    add_out(parser, "FILE", "the page (default: the notebook's name with .html)")


EXPORT = Command(
    "export",
    "write a notebook as HTML in which widgets are figures",
    "A page of nbconvert shows stored widgets only with JavaScript from another host. This page shows their figures "
    "and tables instead, so that nothing is blank without a network.",
    _run,
    _add_options,
)
