"""The parser of the command line, and its entry point."""

from __future__ import annotations

import argparse
import gc
import logging
import os
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType

from meshlab.base._errors import MeshlabError
from meshlab.base._version import __version__
from meshlab.cli._acceptance import ACCEPTANCE
from meshlab.cli._app import APP
from meshlab.cli._arguments import Command
from meshlab.cli._bench import BENCH
from meshlab.cli._compare import COMPARE
from meshlab.cli._demo import DEMO
from meshlab.cli._docs import DOCS
from meshlab.cli._doctor import DOCTOR
from meshlab.cli._explain import EXPLAIN
from meshlab.cli._export import EXPORT
from meshlab.cli._judge import JUDGE
from meshlab.cli._lab import LAB
from meshlab.cli._launch import LAUNCH
from meshlab.cli._output import BAD_INPUT, BROKEN_PIPE, INTERRUPTED, error_text, print_error, report_error
from meshlab.cli._parser import CommandParser, Parser, examples_text, folded, is_first_process
from meshlab.cli._predict import PREDICT
from meshlab.cli._rehearse import REHEARSE
from meshlab.cli._report import REPORT
from meshlab.cli._search import SEARCH
from meshlab.cli._show import SHOW
from meshlab.cli._trace import TRACE
from meshlab.cli._tune import TUNE

_DESCRIPTION = (
    "Design a device mesh, verify its groups on live ranks, benchmark collectives along its axes, and write a report. "
    "Runs on GPUs. Without GPUs it runs real MPI collectives on local processes."
)

_EXAMPLES = (
    ("meshlab demo -o first-report", "from a mesh to a report"),
    ('meshlab show "pp=2, dp=2, tp=4" --axis dp', "the groups of a mesh; starts nothing"),
    ("meshlab bench all_reduce", "on all GPUs, or one rank per core"),
    ('meshlab bench --mesh "dp=2, tp=2" --axis tp --sizes 1K:16M -o run1', "along one axis"),
    ("mpiexec -n 4 meshlab bench --mesh tp=4", "on ranks of a launcher (or srun)"),
    ('meshlab rehearse llama3-8b --mesh dp=8 --mesh "dp=4, tp=2"', "layouts of a job"),
    ("meshlab tune --mesh tp=2 --axis tp -o tuned", "options faster than the defaults"),
    ("meshlab report run2 --baseline run1 --thresholds dgx-h100 -o run2.html", "and its checks"),
    ("meshlab compare run1 run2", "regressions; also of nccl-tests logs"),
    ("meshlab judge nccl-tests.log", "is this number normal?"),
    ("meshlab explain train.log", "what is wrong in a log, and what to do"),
    ('meshlab trace traces/ --mesh "dp=4, tp=2" --run run1', "what a job's collectives cost, by axis"),
    ('meshlab predict "dp=16, tp=8" --cluster dgx-h100', "expected times; starts nothing"),
    ("meshlab app", "the workbench as a web page"),
    ("meshlab search llama3-405b --cluster dgx-h100 --nodes 128", "the best layouts"),
    ("meshlab doctor", "check the installation"),
    ("meshlab acceptance --out node7", "check a machine, unattended"),
)

_EXIT_CODES = """\
  0 success, and what was checked has passed (compare: nothing is slower or wrong, even if rows are unclear)
  1 failed, wrong or slower, or not decided, because something was not checked (bench, report, acceptance)
  2 invalid arguments or files · 130 interrupted"""

COMMANDS = (
    DEMO,
    DOCTOR,
    ACCEPTANCE,
    SHOW,
    BENCH,
    REHEARSE,
    TUNE,
    REPORT,
    COMPARE,
    JUDGE,
    EXPLAIN,
    TRACE,
    PREDICT,
    APP,
    EXPORT,
    SEARCH,
    LAB,
    LAUNCH,
    DOCS,
)

_AXIS = re.compile(r"(?:--mesh=)?[A-Za-z_]\w*=-?\d+,?")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    # 0 success, 1 a benchmark failed or was wrong, 2 invalid arguments or files, 130 interrupted.
    options = make_parser().parse_args(join_axes(sys.argv[1:] if arguments is None else arguments))
    command: Command = options.command
    try:
        with _uncaught_errors_as_text():
            return command.run(options)
    except MeshlabError as error:
        if is_first_process():
            report_error(error)
        return BAD_INPUT
    except KeyboardInterrupt as error:
        # If engines were starting, asyncio would log the pending tasks of ipyparallel at exit, and Python would warn
        # about the coroutines in the frames of the traceback when they are released.
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            error.__traceback__ = None
            gc.collect()
        # If the interrupt came inside exec(), which dataclasses call when they are imported, CPython ends with the
        # signal and not with the exit code, until another exec() begins.
        exec("")
        print_error("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of the output, such as head, has closed the pipe. Python flushes standard output at exit, which
        # would raise the same error again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except OSError as error:
        reason = error.strerror or error
        print_error(
            f"reading or writing failed: {reason}"
            if error.filename is None
            else f"cannot read {error.filename}: {reason}"
        )
        return BAD_INPUT


@contextmanager
def _uncaught_errors_as_text() -> Iterator[None]:
    """Let ranks of a launcher that end all processes print the reason like the command, and not as a traceback."""
    hook = sys.excepthook

    def print_reason(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, MeshlabError):
            print_error(error_text(error))
        elif isinstance(error, KeyboardInterrupt):
            print_error("interrupted")
        else:
            hook(kind, error, trace)

    sys.excepthook = print_reason
    try:
        yield
    finally:
        sys.excepthook = hook


def join_axes(words: Sequence[str]) -> list[str]:
    """Join the words of a mesh that was not quoted, such as ``dp=2`` and ``tp=4``."""
    joined: list[str] = []
    was_axis = False
    for word in words:
        is_axis = _AXIS.fullmatch(word) is not None
        if is_axis and was_axis:
            joined[-1] += f" {word}"
        else:
            joined.append(word)
        was_axis = is_axis
    return joined


def make_parser() -> argparse.ArgumentParser:
    """Return the parser. The attribute ``command`` of its result is the command to run."""
    epilog = f"examples:\n{examples_text(_EXAMPLES)}\n\nexit codes:\n{folded(_EXIT_CODES)}"
    parser = Parser("meshlab", description=folded(_DESCRIPTION), epilog=epilog)
    parser.add_argument("--version", action="version", version=f"meshlab {__version__}")
    subparsers = parser.add_subparsers(title="commands", required=True, metavar="COMMAND", parser_class=CommandParser)
    for command in COMMANDS:
        description = folded(f"{command.summary[:1].upper()}{command.summary[1:]}.\n\n{command.details}")
        subparser = subparsers.add_parser(command.name, help=command.summary, description=description)
        subparser.command = command
        subparser.set_defaults(command=command)
    return parser
