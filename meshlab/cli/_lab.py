"""The command ``meshlab lab``: open a notebook in JupyterLab."""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from meshlab.cli._arguments import Command
from meshlab.cli._output import BAD_INPUT, print_error

_FIRST_NOTEBOOK = "01_first_mesh"


def _run(options: argparse.Namespace) -> int:
    """Copy the notebooks into a folder, and open one of them in JupyterLab."""
    from importlib.util import find_spec

    from meshlab.base._files import packaged_folder, write_file

    if find_spec("jupyterlab") is None:
        print_error("JupyterLab is not installed; run pip install '.[lab]' in the folder of meshlab")
        return BAD_INPUT
    notebooks = {path.stem: path for path in sorted(packaged_folder("notebooks").glob("*.ipynb"))}
    words = list(itertools.takewhile(lambda word: not word.startswith("-"), options.words))
    has_name = bool(words) and not Path(words[0]).is_dir()
    chosen = _matching(words[0], notebooks) if has_name else _FIRST_NOTEBOOK
    if chosen is None:
        print_error(f"{words[0]!r} is neither a folder nor a notebook; the notebooks are {', '.join(notebooks)}")
        return BAD_INPUT
    folder = Path(next(iter(words[has_name:]), "."))
    for notebook in notebooks.values():
        copy = folder / notebook.name
        if not copy.exists():
            write_file(copy, notebook.read_bytes())
    command = [sys.executable, "-m", "jupyterlab", str(folder / f"{chosen}.ipynb")]
    return subprocess.call([*command, *options.words[len(words) :]])


def _matching(word: str, names: Iterable[str]) -> str | None:
    """Return the notebook that a word names: its number, its name, or the beginning of either."""
    word = word.removesuffix(".ipynb")
    matches = [name for name in names if name.startswith(word) or name.partition("_")[2].startswith(word)]
    return matches[0] if len(matches) == 1 or word in matches else None


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "words",
        nargs="*",
        metavar="NAME or FOLDER",
        help="the notebook to open, such as 03 or predictions (default: the first one), and the working folder "
        "(default: the current folder)",
    )


LAB = Command(
    "lab",
    "open a notebook in JupyterLab",
    "Copies the notebooks into the folder unless they exist there. Arguments after -- are passed to JupyterLab:\n"
    "  meshlab lab predictions\n"
    "  meshlab lab -- --no-browser --port=8889",
    _run,
    _add_options,
)
