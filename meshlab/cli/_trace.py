"""The command ``meshlab trace``: the time of a job's collectives by axis, from its traces."""

from __future__ import annotations

import argparse
import shutil
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from meshlab.cli._arguments import Command, add_out
from meshlab.cli._output import OK, print_text
from meshlab.cli._replaying import add_replay, replay_trace

if TYPE_CHECKING:
    from meshlab.traces._live import LiveTrace
    from meshlab.traces._trace import Trace

_SUFFIXES = (".html", ".csv")


def _run(options: argparse.Namespace) -> int:
    """Print the time by axis, and write the report or the table of calls."""
    from meshlab.base._errors import BenchError
    from meshlab.base._markup import text_table
    from meshlab.traces._sentences import axis_rows
    from meshlab.traces._trace import Trace

    if options.out and Path(options.out).suffix.lower() not in _SUFFIXES:  # before a job is followed for hours
        raise BenchError(f"--out {options.out} must end in one of {', '.join(_SUFFIXES)}")
    if options.follow:
        return _follow(options)
    trace = Trace.read([Path(name) for name in options.files])
    if options.replay or options.gaps or options.buffers:
        return replay_trace(trace, options)
    mesh, machine = options.mesh, _machine(trace, options)
    header, *rows = axis_rows(trace.by_axis(mesh, steps=options.steps))
    print_text(f"{trace.title}\n\n{text_table([header, *rows], right=range(1, len(header)))}\n")
    for line in trace.sentences(mesh, machine):
        print_text(line)
    if options.out:
        print_text(_write(trace, options, machine))
    return OK


def _follow(options: argparse.Namespace) -> int:
    """Print the time by axis after each interval, until Ctrl-C, and then once more."""
    from meshlab.base._errors import BenchError
    from meshlab.traces._trace import Trace

    if len(options.files) != 1:
        raise BenchError(f"--follow needs one folder, not {len(options.files)}")
    compares = options.steps or options.run is not None or options.published is not None
    if compares or options.replay or options.gaps or options.buffers:
        raise BenchError(
            "--follow cannot be combined with --steps, --run, --published, --replay, --gaps or --buffers",
            hint="read the folder without --follow when the job has ended",
        )
    show = _redraw() if sys.stdout.isatty() else _print_changes()
    live = Trace.follow(options.files[0], options.mesh, interval_s=options.interval)
    try:
        while live.error is None:
            show(live)
            time.sleep(options.interval)
    except KeyboardInterrupt:
        pass
    finally:
        live.close()
    if live.error is not None:
        raise live.error
    print_text(f"\n{live}")
    if options.out:
        print_text(_write(live.trace(), options, None))
    return OK


def _redraw() -> Callable[[LiveTrace], None]:
    """Return a function that replaces the lines that it wrote to the terminal before."""
    n_lines = 0

    def show(live: LiveTrace) -> None:
        nonlocal n_lines
        width, height = shutil.get_terminal_size()
        texts = str(live).splitlines()
        lines = [line for text in texts for line in textwrap.wrap(text, width - 1) or [""]][: height - 1]
        if n_lines:
            sys.stdout.write(f"\033[{n_lines}F\033[J")
        n_lines = len(lines)
        print_text("\n".join(lines))

    return show


def _print_changes() -> Callable[[LiveTrace], None]:
    """Return a function that prints a line if ranks have written, or are late or lost."""
    last: tuple[object, ...] = ()
    begin = time.monotonic()

    def show(live: LiveTrace) -> None:
        nonlocal last
        if (state := (live.n_calls, live.late, live.lost)) == last:
            return
        last = state
        print_text(f"{time.monotonic() - begin:.0f} s · {_brief(live)}")

    return show


def _brief(live: LiveTrace) -> str:
    """Return the state of a job in a line."""
    from meshlab.base._units import format_time_us
    from meshlab.mesh._axes import format_ranks
    from meshlab.traces._sentences import axis_label, records

    parts = [f"{live.n_calls:,} lines"]
    for row in records(live.by_axis()):
        times = (f"{name} {format_time_us(row[f'{name}_us'])}" for name in ("transfer", "wait"))
        parts.append(f"{axis_label(row)}: {', '.join(times)}")
    parts += [f"{word}: {format_ranks(ranks)}" for word, ranks in (("late", live.late), ("lost", live.lost)) if ranks]
    return " · ".join(parts)


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
    parser.add_argument(
        "--follow",
        action="store_true",
        help="follow the logs that NCCL Inspector writes into a folder while the job runs, until Ctrl-C",
    )
    parser.add_argument(
        "--interval",
        type=float,
        default=1.0,
        metavar="S",
        help="time between two looks at the logs in seconds (default: %(default)s)",
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
