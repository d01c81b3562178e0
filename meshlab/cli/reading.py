"""The commands that start no ranks: show, report, compare, doctor and lab."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

from meshlab.cli.words import BAD_INPUT, GOOD, WRONG, lay, say, warnings_as_sentences
from meshlab.errors import BenchError

__all__ = ["compare", "doctor", "lab", "report", "show"]

_FIRST_NOTEBOOK = "01_first_mesh.ipynb"


def report(options: argparse.Namespace) -> int:
    """Write the report of a run that was saved."""
    from meshlab.benchmark.run import Run
    from meshlab.report.report import Report

    path = Path(options.out) if options.out else Path(options.folder) / "report.html"
    with warnings_as_sentences():
        run = Run.load(options.folder)
    Report(run.redacted() if options.redact else run).save(path, pictures=options.pictures)
    say(path)
    return GOOD


def compare(options: argparse.Namespace) -> int:
    """Compare two runs or logs; 1 when something became slower or wrong."""
    from meshlab.analysis.comparison import print_comparison

    with warnings_as_sentences():
        return print_comparison(options.before, options.after, threshold=options.threshold, anyway=options.anyway)


def show(options: argparse.Namespace) -> int:
    """Print who is in which group."""
    from meshlab.mesh.text import mesh_text, wrapped

    if options.axis and "," in options.axis:
        parts = [part.strip() for part in options.axis.split(",")]
        raise BenchError(
            f"--axis {options.axis} names {len(parts)} axes, and the grid shows the groups of one; for the groups "
            f"that they span together, write {'-'.join(parts)}"
        )
    mesh = lay(options.mesh, options.ranks)
    width = shutil.get_terminal_size().columns
    say(f"{mesh_text(mesh, options.axis, width)}\n\n{wrapped(mesh.explain(), width)}")
    return GOOD


def doctor(options: argparse.Namespace) -> int:
    """Print what is installed; 1 when something that is needed is broken."""
    from meshlab.cli.doctor import examine, findings_text

    findings = examine()
    say(findings_text(findings))
    return WRONG if any(finding.verdict == "broken" for finding in findings) else GOOD


def lab(options: argparse.Namespace) -> int:
    """Open JupyterLab on the first notebook, with the others beside it."""
    from importlib.util import find_spec

    from meshlab.files import write_file

    if find_spec("jupyterlab") is None:
        print("meshlab: JupyterLab is not installed; pip install '.[lab]' in meshlab's folder", file=sys.stderr)
        return BAD_INPUT
    package = Path(__file__).parents[1]
    shipped = next(folder for folder in (package / "notebooks", package.parent / "notebooks") if folder.is_dir())
    for notebook in sorted(shipped.glob("*.ipynb")):
        copy = Path(options.folder) / notebook.name
        if not copy.exists():
            write_file(copy, notebook.read_bytes())
    first = Path(options.folder) / _FIRST_NOTEBOOK
    return subprocess.call([sys.executable, "-m", "jupyterlab", str(first), *options.arguments])
