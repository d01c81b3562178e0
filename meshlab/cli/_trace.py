"""The command ``meshlab trace``: the time of a job's collectives by axis, from its traces."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from meshlab.cli._arguments import Command, add_out
from meshlab.cli._output import OK, print_text
from meshlab.cli._replaying import add_replay, replay_trace

if TYPE_CHECKING:
    from meshlab.traces._trace import Trace


def _run(options: argparse.Namespace) -> int:
    """Print the time by axis, and write the report or the table of calls."""
    from meshlab.base._markup import text_table
    from meshlab.traces._sentences import axis_rows
    from meshlab.traces._trace import Trace

    trace = Trace.read([Path(name) for name in options.files])
    if options.replay or options.gaps or options.buffers:
        return replay_trace(trace, options)
    mesh = options.mesh
    header, *rows = axis_rows(trace.by_axis(mesh, steps=options.steps))
    print_text(f"{trace.title}\n\n{text_table([header, *rows], right=range(1, len(header)))}\n")
    for line in trace.sentences(mesh, _machine(options.run)):
        print_text(line)
    if options.out:
        print_text(_write(trace, options))
    return OK


def _machine(name: str | None) -> object:
    """Return the run, its folder or its file that `Trace.against` accepts."""
    return None if name is None else Path(name)


def _write(trace: Trace, options: argparse.Namespace) -> Path:
    from meshlab.base._files import write_file
    from meshlab.report._trace_page import trace_page

    path = Path(options.out)
    if path.suffix.lower() == ".csv":
        return write_file(path, trace.frame(options.mesh).to_csv(index=False))
    return write_file(path, trace_page(trace, options.mesh, _machine(options.run)))


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
    parser.add_argument(
        "--run", metavar="RUN", help="a run on the same machine, whose curve the calls are compared with"
    )
    parser.add_argument("--steps", action="store_true", help="a row per axis and step of the profiler")
    add_out(parser, "FILE", "write a report (.html), or a row per call and rank (.csv)")
    add_replay(parser)


TRACE = Command(
    "trace",
    "show what a job's collectives cost, by axis of its mesh",
    "Reads traces of PyTorch's profiler, logs of NCCL Inspector, or dumps of the flight recorder. Matches the calls of "
    "all ranks, and separates the wait for late ranks from the transfer. Starts ranks only with --replay, which makes "
    "the calls again.",
    _run,
    _add_options,
)
