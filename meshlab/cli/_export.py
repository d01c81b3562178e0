"""The command ``meshlab export``: write a notebook as HTML."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

from meshlab.base._errors import BenchError
from meshlab.cli._arguments import Command, add_out
from meshlab.cli._output import BAD_INPUT, FAILED, OK, print_error, print_text

# The template of nbconvert, without the scripts that it loads from other hosts: RequireJS, which only widgets need, and
# MathJax and Mermaid. Without them, formulas and diagrams are shown as text.
_TEMPLATE = """\
{%- extends 'lab/index.html.j2' -%}
{%- block html_head_js -%}{%- endblock -%}
{%- block html_head_js_mathjax -%}{%- endblock -%}
{%- block html_head_js_mermaidjs -%}{%- endblock -%}
"""
_COLOUR = re.compile(r"\x1b\[[\d;]*m")
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
        from jupyter_client.kernelspec import NoSuchKernel
        from nbclient.exceptions import CellExecutionError, DeadKernelError

        try:
            executor(timeout=None, store_widget_state=False).preprocess(notebook, resources)
        except CellExecutionError as error:
            text = _COLOUR.sub("", str(error)).rstrip()
            print_error(f"a cell of {path} failed, so no page is written\n{text}")
            return FAILED
        except DeadKernelError as error:
            print_error(f"the kernel that ran {path} ended, so no page is written: {error}")
            return FAILED
        except NoSuchKernel as error:
            raise BenchError(
                f"{path} needs the kernel {error.name!r}, which is not installed",
                hint="install it, or choose another kernel in JupyterLab and save the notebook",
            ) from error
    # nbconvert prefers a widget to the HTML next to it, and the state of a widget to both.
    notebook.metadata.pop("widgets", None)
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "text/html" in data:
                data.pop(_WIDGET_VIEW, None)
    if not options.execute and (cells := _cells_without_outputs(notebook)):
        print_error(f"{path} has no outputs of its {cells}, so the page shows only code; add --execute to run it")
    page, _ = html(embed_images=True, raw_template=_TEMPLATE).from_notebook_node(notebook, resources)
    print_text(write_file(options.out or path.with_suffix(".html"), page))
    return OK


def _cells_without_outputs(notebook: Any) -> str:
    """Return the number of cells with code if none of them was executed, or else nothing."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]
    if not cells or any(cell.outputs or cell.execution_count for cell in cells):
        return ""
    return "cell" if len(cells) == 1 else f"{len(cells)} cells"


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("notebook", help="the notebook")
    parser.add_argument("--execute", action="store_true", help="run all cells first; the notebook is not changed")
    add_out(parser, "FILE", "the page (default: the notebook's name with .html)")


EXPORT = Command(
    "export",
    "write a notebook as HTML in which widgets are figures",
    "A page of nbconvert shows stored widgets only with JavaScript from another host. This page shows their figures "
    "and tables instead, and loads nothing, so that nothing is blank without a network. Formulas stay as TeX.",
    _run,
    _add_options,
)
