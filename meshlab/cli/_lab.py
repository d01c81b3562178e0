"""The command ``meshlab lab``: open the first notebook in JupyterLab."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from meshlab.cli._arguments import Command
from meshlab.cli._output import BAD_INPUT, print_error

_FIRST_NOTEBOOK = "01_first_mesh.ipynb"


def _run(options: argparse.Namespace) -> int:
    """Copy the notebooks into a folder, and open the first one in JupyterLab."""
    from importlib.util import find_spec

    from meshlab.base._files import write_file

    if find_spec("jupyterlab") is None:
        print_error("JupyterLab is not installed; run pip install '.[lab]' in the folder of meshlab")
        return BAD_INPUT
    package = Path(__file__).parents[1]
    # A wheel contains the notebooks. In a checkout they are next to the package.
    source = next(folder for folder in (package / "notebooks", package.parent / "notebooks") if folder.is_dir())
    for notebook in sorted(source.glob("*.ipynb")):
        copy = Path(options.folder) / notebook.name
        if not copy.exists():
            write_file(copy, notebook.read_bytes())
    first = Path(options.folder) / _FIRST_NOTEBOOK
    return subprocess.call([sys.executable, "-m", "jupyterlab", str(first), *options.arguments])


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", nargs="?", default=".", help="working folder (default: the current folder)")
    parser.add_argument("arguments", nargs="*", help=argparse.SUPPRESS)


LAB = Command(
    "lab",
    "open the first notebook in JupyterLab",
    "Copies the notebooks into the folder unless they exist there. Arguments after -- are passed to JupyterLab:\n"
    "  meshlab lab -- --no-browser --port=8889",
    _run,
    _add_options,
)
