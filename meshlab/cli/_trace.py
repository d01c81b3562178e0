"""The command ``meshlab trace``: the time of a job's collectives by axis, from its traces."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from meshlab.cli._arguments import Command, add_out
from meshlab.cli._output import OK, print_text

if TYPE_CHECKING:
    from meshlab.traces._trace import Trace


def _run(options: argparse.Namespace) -> int:
    """Print the time by axis, and write the report or the table of calls."""
    from meshlab.base._markup import text_table
    from meshlab.traces._sentences import axis_rows
    from meshlab.traces._trace import Trace

    trace = Trace.read([Path(name) for name in options.files])
    mesh, machine = options.mesh, _machine(trace, options)
    header, *rows = axis_rows(trace.by_axis(mesh, steps=options.steps))
    print_text(f"{trace.title}\n\n{text_table([header, *rows], right=range(1, len(header)))}\n")
    for line in trace.sentences(mesh, machine):
        print_text(line)
    if options.out:
        print_text(_write(trace, options, machine))
    return OK


def _machine(trace: Trace, options: argparse.Namespace) -> object:
    """Return the run or the published curves that the calls are compared with, None without any."""
    if options.published is not None:
        return trace.published(options.published or None)
    return None if options.run is None else Path(options.run)


def _write(trace: Trace, options: argparse.Namespace, machine: object) -> Path:
    from meshlab.base._files import write_file
    from meshlab.report._trace_page import trace_page

    path = Path(options.out)
    if path.suffix.lower() == ".csv":
        return write_file(path, trace.frame(options.mesh).to_csv(index=False))
    return write_file(path, trace_page(trace, options.mesh, machine))


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="traces of the ranks of one job, optionally compressed with gzip, or a folder with them",
    )
    parser.add_argument(
        "--mesh", help='the mesh of the job, such as "dp=2, tp=4" (default: that of its process groups)'
    )
    curve = parser.add_mutually_exclusive_group()
    curve.add_argument(
        "--run", metavar="RUN", help="a run on the same machine, whose curve the calls are compared with"
    )
    curve.add_argument(
        "--published",
        nargs="?",
        const="",
        metavar="GPU",
        help="compare the calls with the curves that others published for such GPUs (default: those of the trace)",
    )
    parser.add_argument("--steps", action="store_true", help="a row per axis and step of the profiler")
    add_out(parser, "FILE", "write a report (.html), or a row per call and rank (.csv)")


TRACE = Command(
    "trace",
    "show what a job's collectives cost, by axis of its mesh",
    "Reads traces of PyTorch's profiler, logs of NCCL Inspector, or dumps of the flight recorder. Matches the calls of "
    "all ranks, and separates the wait for late ranks from the transfer. Starts nothing.",
    _run,
    _add_options,
)
