"""The option ``--replay`` of ``meshlab trace``: the calls of a trace on ranks that this command starts."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from meshlab.base._errors import BenchError, EngineError
from meshlab.cli._arguments import add_start
from meshlab.cli._fitting import fitted
from meshlab.cli._output import FAILED, OK, error_text, print_error, print_text, write_csv
from meshlab.cli._ranks import opened_engines, system_label
from meshlab.engines._launchers import launched_as

if TYPE_CHECKING:
    from meshlab.traces._trace import Trace


def replay_trace(trace: Trace, options: argparse.Namespace) -> int:
    """Replay a trace, print the comparison, and write its rows."""
    from meshlab.benchmark.rehearsal._replay import replay
    from meshlab.traces._call_list import list_calls

    if not options.replay:
        raise BenchError("--gaps and --buffers belong to a replay", hint="add --replay, or omit them")
    if options.steps or options.run is not None or options.published is not None:
        raise BenchError("--replay cannot be combined with --steps, --run or --published", hint="omit one of them")
    if options.out and Path(options.out).suffix != ".csv":
        raise BenchError(f"--out {options.out} must end in .csv with --replay")
    n = list_calls(trace, options.mesh).mesh.world_size  # before any process starts
    with opened_engines(n, options.backend, joins=launched_as() is not None, timeout_s=options.timeout_s) as engines:
        if engines is None:
            return OK
        print_text(fitted(f"{system_label(engines)}: {trace.title}"))
        call_options = {} if options.buffers is None else {"buffers": options.buffers}
        try:
            replayed = replay(engines, trace, options.mesh, gaps=options.gaps, **call_options)
        except EngineError as error:
            print_error(error_text(error))
            if error.measured is not None:
                print_text(fitted(error.measured))
            return FAILED
    print_text(fitted(replayed))
    if options.out:
        write_csv(Path(options.out), replayed.frame())
        print_text(f"frame: {options.out}")
    return FAILED if sum(replayed.n_wrong.values()) else OK


def add_replay(parser: argparse.ArgumentParser) -> None:
    """Add ``--replay`` and the options that belong to it."""
    add = parser.add_argument
    add("--replay", action="store_true", help="start ranks, make the calls again, and compare their times")
    add("--gaps", action="store_true", help="with --replay: also replay the step with the time between its calls")
    add("--buffers", metavar="KIND", help="with --replay: also with registered or symmetric buffers (NCCL)")
    add_start(parser)
