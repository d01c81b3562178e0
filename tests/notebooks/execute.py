"""Execute the notebooks and store their outputs: ``python -m tests.notebooks.execute [NAME …]``.

Each notebook runs from top to bottom in an empty folder, with this checkout of meshlab. Its outputs are stored small
and without what differs from machine to machine. A notebook is skipped, visibly, if a module that it imports is not
installed, or if its metadata asks for GPUs (``{"meshlab": {"needs": ["gpus"]}}``) and there are less than two.
``--out FOLDER`` writes the executed files elsewhere.
"""

from __future__ import annotations

import argparse
import ast
import base64
import contextlib
import hashlib
import io
import os
import re
import socket
import sys
import tempfile
import textwrap
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
VIEW = "application/vnd.jupyter.widget-view+json"

LARGEST_BYTES = 300_000
"""The limit of a notebook with its outputs. Code hosts do not show large ones."""

_LONGEST_S = 600
_WIDTH = 120  # of printed lines, in characters

# In a notebook, a figure is SVG within HTML, which follows the theme of the page. Code hosts remove SVG from HTML, and
# JupyterLab does until a notebook is trusted. So each figure also leaves a PNG behind it, which is stored instead.
_SETUP = """
import base64
from meshlab.plots import _style

def figure_svg(figure, *, label="", svg=_style.figure_svg):
    png = base64.b64encode(_style.figure_png(figure, dpi=120)).decode()
    return f"{svg(figure, label=label)}<!--png {round(figure.get_figwidth() * 96)} {png}-->"

_style.figure_svg = figure_svg
"""
_FIGURE = re.compile(r"<svg\b([^>]*)>(?:(?!<svg\b).)*?</svg><!--png (\d+) ([\w+/=]+)-->", re.DOTALL)


def digest(notebook: Any) -> str:
    """Return a digest of the code cells, which changes when the outputs become stale."""
    code = "\0".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    return hashlib.sha256(code.encode()).hexdigest()[:16]


def missing_modules(notebook: Any) -> list[str]:
    """Return the modules that a notebook imports and this Python does not have."""
    names: set[str] = set()
    for cell in notebook.cells:
        if cell.cell_type == "code":
            tree = ast.parse("\n".join(line for line in cell.source.splitlines() if not line.startswith(("%", "!"))))
            for node in ast.walk(tree):
                if isinstance(node, ast.Import):
                    names |= {alias.name.split(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                    names.add(node.module.split(".")[0])
    return [name for name in sorted(names) if find_spec(name) is None]


def needs_gpus(notebook: Any) -> bool:
    """Return whether the stored outputs of a notebook must be those of GPUs."""
    return "gpus" in notebook.metadata.get("meshlab", {}).get("needs", ())


def missing(notebook: Any) -> list[str]:
    """Return what this machine lacks to store the outputs of a notebook."""
    lacking = missing_modules(notebook)
    if needs_gpus(notebook):
        from meshlab.engines._launch import count_gpus

        if count_gpus() < 2:
            lacking.append("two GPUs")
    return lacking


def small_png(data: str) -> str:
    """Return a PNG with a palette, which is a third as large for a figure."""
    from PIL import Image

    image = Image.open(io.BytesIO(base64.b64decode(data))).convert("RGBA")
    sheet = Image.new("RGBA", image.size, "white")  # a transparent figure would be black on black in a dark theme
    sheet.alpha_composite(image)
    file = io.BytesIO()
    sheet.convert("RGB").quantize(128, dither=Image.Dither.NONE).save(file, "PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode()


def without_machine(text: str, folder: str) -> str:
    """Replace the folders and the name of this machine."""
    text = text.replace(f"{folder}/", "").replace(folder, ".").replace(str(ROOT), "meshlab")
    text = text.replace(str(Path(sys.prefix)), "venv").replace(str(Path.home()) + "/", "~/")
    host = socket.gethostname()
    return re.sub(rf"(?<![\w-]){re.escape(host)}(?![\w-])", "this-host", text)


def image(match: re.Match[str]) -> str:
    """Return an image for HTML in place of a figure."""
    label = re.search(r'aria-label="[^"]*"', match[1])
    alt = label[0].removeprefix("aria-label=") if label else '""'
    return f'<img alt={alt} width="{match[2]}" src="data:image/png;base64,{small_png(match[3])}"/>'


def wrapped(text: str) -> str:
    """Break the long lines of a printed text between words. Front ends break them anywhere."""
    lines = []
    for line in text.splitlines():
        indent = " " * (len(line) - len(line.lstrip()) + 2)
        options = {"subsequent_indent": indent, "break_long_words": False, "break_on_hyphens": False}
        lines += textwrap.wrap(line, _WIDTH, **options) if len(line) > _WIDTH else [line]
    return "\n".join(lines) + "\n" * text.endswith("\n")


def stored(output: Any, folder: str) -> Any | None:
    """Return an output as it is stored. None if it is not: progress, and warnings on standard error."""
    if output.output_type == "stream":
        if output.name == "stderr":
            return None
        output.text = wrapped(without_machine(output.text, folder))
        return output
    data = output.get("data", {})
    # Without a kernel, a front end shows the HTML next to a widget. A progress bar has none.
    is_widget = data.pop(VIEW, None) is not None
    html = data.get("text/html", "")
    if is_widget and not html:
        return None
    figure = _FIGURE.search(html)
    if figure is not None and data.get("text/plain", "").startswith("<ThemedFigure"):
        data.pop("text/html")
        data["image/png"] = figure[3]
        output.metadata["image/png"] = {"width": int(figure[2])}
    elif html:
        data["text/html"] = _FIGURE.sub(image, html)
        data.pop("image/png", None)
    for kind, content in list(data.items()):
        if kind == "image/png":
            data[kind] = small_png(content)
        elif isinstance(content, str):
            data[kind] = without_machine(content, folder)
    return output


def execute(path: Path, target: Path) -> str:
    """Execute a notebook and write it to `target`. Return what was done."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    if lacking := missing(notebook):
        return f"SKIPPED, it needs {' and '.join(lacking)}"
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        setup = nbformat.v4.new_code_cell(_SETUP)
        notebook.cells.insert(0, setup)
        NotebookClient(
            notebook, timeout=_LONGEST_S, record_timing=False, resources={"metadata": {"path": folder}}
        ).execute()
        notebook.cells.remove(setup)
        for number, cell in enumerate([cell for cell in notebook.cells if cell.cell_type == "code"], 1):
            cell.execution_count = number
            cell.outputs = [kept for output in cell.outputs if (kept := stored(output, folder)) is not None]
            for output in cell.outputs:
                if output.output_type == "execute_result":
                    output.execution_count = number
    elapsed = time.monotonic() - start
    notebook.metadata.pop("widgets", None)
    notebook.metadata["language_info"] = {"name": "python"}
    notebook.metadata["meshlab"] = {**notebook.metadata.get("meshlab", {}), "code": digest(notebook)}
    text = nbformat.writes(notebook, indent=1) + "\n"
    target.write_text(text, encoding="utf-8")
    return f"{elapsed:.0f} s, {len(text.encode()) / 1000:.0f} kB"


def main(arguments: Sequence[str]) -> int:
    """Execute the named notebooks, or all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="beginning of a file name, such as 03")
    parser.add_argument("--out", type=Path, help="folder for the executed notebooks (default: in place)")
    options = parser.parse_args(arguments)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    chosen = [path for path in NOTEBOOKS if not options.names or path.name.startswith(tuple(options.names))]
    failures = 0
    for path in chosen:
        target = path if options.out is None else options.out / path.name
        outcome = "failed"
        try:
            outcome = execute(path, target)
        except Exception as error:
            failures += 1
            outcome = f"FAILED: {error}"
        with contextlib.suppress(BrokenPipeError):
            print(f"{path.stem}: {outcome}", flush=True)
    return 1 if failures or not chosen else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
