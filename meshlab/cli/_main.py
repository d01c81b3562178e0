"""The parser of the command line, and its entry point."""

from __future__ import annotations

import argparse
import gc
import logging
import os
import re
import sys
import textwrap
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from meshlab.base._backends import BACKENDS
from meshlab.base._collectives import usual_collectives_text
from meshlab.base._errors import MeshlabError
from meshlab.base._version import __version__
from meshlab.cli import _acceptance as acceptance_command
from meshlab.cli import _commands as commands
from meshlab.cli import _report as report_command
from meshlab.cli import _search as layout_search
from meshlab.cli import _tuning as tuning_command
from meshlab.cli._commands import BAD_INPUT, BROKEN_PIPE, INTERRUPTED, error_text, print_error
from meshlab.engines._launchers import launched_as

_WIDTH = 79

_DESCRIPTION = """\
Design a device mesh, verify its groups on live ranks, benchmark collectives
along its axes, and write a report. Runs on GPUs. Without GPUs it runs real MPI
collectives on local processes.
"""

_EXAMPLES = """\
examples:
  meshlab demo --out first-report             from a mesh to a report, in half a minute
  meshlab show "pp=2, dp=2, tp=4" --axis dp   the groups of a mesh; starts nothing
  meshlab bench all_reduce                    on all GPUs, or one rank per core
  meshlab bench --mesh "dp=2, tp=2" --axis tp --sizes 1K:16M --out run1
  mpiexec -n 4 meshlab bench --mesh tp=4      on ranks of a launcher (or srun)
  meshlab rehearse llama3-8b --mesh dp=8 --mesh "dp=4, tp=2"   layouts of a job
  meshlab tune --mesh tp=2 --axis tp --out tuned       faster than the defaults
  meshlab report run2 --baseline run1 --thresholds dgx-h100 -o run2.html
  meshlab compare run1 run2                   regressions; also of nccl-tests logs
  meshlab explain train.log                   what is wrong in a log, and what to do
  meshlab predict "dp=16, tp=8" --cluster dgx-h100    expected times; starts nothing
  meshlab app                                 the workbench as a page of its own
  meshlab search llama3-405b --cluster dgx-h100 --nodes 128   the best layouts
  meshlab doctor                              check the installation
  meshlab acceptance --out node7              check a machine, unattended

exit codes:
  0 success · 1 failed, wrong or slower · 2 invalid arguments or files · 130 interrupted
"""

_AXIS = re.compile(r"(?:--mesh=)?[A-Za-z_]\w*=-?\d+,?")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    arguments : sequence of str, optional
        The words after ``meshlab``. By default those of this process.

    Returns
    -------
    int
        The exit code: 0 success, 1 a benchmark failed or was wrong, 2 invalid arguments or files, 130 interrupted.
    """
    options = make_parser().parse_args(join_axes(sys.argv[1:] if arguments is None else arguments))
    command: Callable[[argparse.Namespace], int] = options.command
    try:
        return command(options)
    except MeshlabError as error:
        if _is_first_process():
            print_error(error_text(error))
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


def _is_first_process() -> bool:
    """Return False on all ranks but the first of mpiexec or srun, so that a message appears once."""
    process = launched_as()
    return process is None or process[0] == 0


def join_axes(words: Sequence[str]) -> list[str]:
    """Join the words of a mesh that was not quoted.

    Examples
    --------
    >>> join_axes(["bench", "broadcast", "--mesh", "dp=2", "tp=4", "--ranks", "8"])
    ['bench', 'broadcast', '--mesh', 'dp=2 tp=4', '--ranks', '8']
    """
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


class _Parser(argparse.ArgumentParser):
    """A parser that keeps the line breaks of descriptions, and reports an error on one rank only."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        options["formatter_class"] = argparse.RawDescriptionHelpFormatter
        super().__init__(*arguments, **options)

    def error(self, message: str) -> NoReturn:
        if not _is_first_process():
            self.exit(BAD_INPUT)
        super().error(message)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser. The attribute ``command`` of its result is the function to call."""
    parser = _Parser("meshlab", description=_DESCRIPTION, epilog=_EXAMPLES)
    parser.add_argument("--version", action="version", version=f"meshlab {__version__}")
    subparsers = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    def add(name: str, function: Callable[[argparse.Namespace], int], text: str, more: str) -> argparse.ArgumentParser:
        details = "\n".join(textwrap.fill(line, _WIDTH, break_on_hyphens=False) for line in more.split("\n"))
        command = subparsers.add_parser(name, help=text, description=f"{text[:1].upper()}{text[1:]}.\n\n{details}")
        command.set_defaults(command=function)
        return command

    demo = add(
        "demo",
        commands.demo,
        "run all steps once, from a mesh to a report",
        "Starts ranks as processes, verifies the groups of a mesh, benchmarks four collectives along each axis, "
        "prints a table, and writes a report with its figures and frames.",
    )
    demo.add_argument("--out", default="meshlab-demo", metavar="DIR", help="output folder (default: %(default)s)")
    demo.add_argument("--mesh", default="dp=2, tp=2", help='the mesh (default: "%(default)s")')
    demo.add_argument("--ranks", type=int, metavar="N", help="number of ranks, if the size of an axis is -1")
    demo.add_argument("--sizes", default="1K:16M", help="message sizes (default: %(default)s)")
    demo.add_argument("--redact", action="store_true", help=commands.REDACT_HELP)
    _add_force(demo)
    _add_backend(demo)

    add(
        "doctor",
        commands.doctor,
        "check the installation, and suggest fixes",
        "Checks Python, the packages, the MPI library and its mpiexec, shared memory, and the parts for GPUs. "
        "Exits with 1 if a required part is broken.",
    )

    accept = add(
        "acceptance",
        acceptance_command.acceptance,
        "check a machine unattended, from its installation to its bandwidth",
        "For a node that has just arrived. Checks the installation, the health of the hardware and the groups of a "
        "mesh. Measures every pair of ranks, collectives along every axis, and contention. Compares them with the "
        "prediction and published values of such a machine, and with thresholds. Prints a line per stage and the "
        "verdict. A stage that cannot run is skipped with its reason, and never counted as passed. Exits with 0 if the "
        "sweep passed and no stage failed, with 1 if a stage failed, and with 2 if nothing could be accepted. Under "
        "mpiexec or srun the processes are the ranks.",
    )
    acceptance_command.add_acceptance_options(accept)
    _add_force(accept)
    _add_backend(accept)

    show = add(
        "show",
        commands.show,
        "print the axes and groups of a mesh",
        "The last axis varies fastest: ranks that differ only along it are neighbours. Starts nothing.",
    )
    show.add_argument("mesh", help='for example "dp=2, tp=4"; one size may be -1 if --ranks is given')
    show.add_argument("--axis", help='the axis whose groups the grid shows; "dp-cp" for groups that span two axes')
    show.add_argument("--ranks", type=int, metavar="N", help="number of ranks")

    bench = add(
        "bench",
        commands.bench,
        "benchmark collectives along the axes of a mesh",
        "By default all groups of an axis run at the same time. Prints a table. With --out, also writes the frames "
        "(Parquet and CSV), a report and its figures. The rows are written after every step, so that --resume can "
        "continue a run that failed or was killed. Under mpiexec or srun it starts no ranks: the processes are the "
        "ranks.",
    )
    bench.add_argument(
        "collectives", nargs="*", default=["all_reduce"], metavar="COLLECTIVE", help="default: all_reduce"
    )
    bench.add_argument(
        "--mesh",
        help='for example "dp=2, tp=2"; the last axis varies fastest (default: all GPUs on one axis; without GPUs '
        "one rank per core, from 2 to 8; under a launcher its processes)",
    )
    bench.add_argument("--ranks", type=int, metavar="N", help="number of ranks to start (default: that of the mesh)")
    bench.add_argument(
        "--axis",
        action="append",
        metavar="AXIS",
        help="axes, separated by commas; dp-tp for groups that span both axes (default: all axes)",
    )
    bench.add_argument(
        "--sizes", default="1K:16M", help='message sizes: 1K:16M, 8:1G*4 or "1K, 1M" (default: %(default)s)'
    )
    bench.add_argument("--dtype", default="float32", help="element types, separated by commas (default: %(default)s)")
    bench.add_argument("--op", default="sum", help="reduce operations, separated by commas (default: %(default)s)")
    bench.add_argument(
        "--mode",
        default="pipelined",
        help="isolated, pipelined or graph, separated by commas (default: %(default)s)",
    )
    bench.add_argument(
        "--grouping",
        default="together",
        help="together (all groups of an axis), alone (one group at a time) or pairs (of ranks, with send or "
        "send_recv), separated by commas (default: %(default)s)",
    )
    bench.add_argument(
        "--concurrent",
        action="append",
        default=[],
        metavar="AXIS=COLLECTIVE",
        help="a collective that runs on another axis at the same time",
    )
    # Former names of --grouping and --concurrent.
    bench.add_argument("--groups", dest="grouping", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    bench.add_argument(
        "--beside", dest="concurrent", action="append", default=argparse.SUPPRESS, help=argparse.SUPPRESS
    )
    bench.add_argument("--launches", type=int, default=1, metavar="N", help="repeat N times, on new ranks each time")
    bench.add_argument("--shuffle", action="store_true", help="run the steps in random order")
    bench.add_argument("--seed", type=int, default=0, help="seed of the random order (default: %(default)s)")
    bench.add_argument("--resume", metavar="DIR", help="resume the run in a folder, with its plan and mesh")
    bench.add_argument(
        "--redact", action="store_true", help=f"{commands.REDACT_HELP}; the rows are then written only at the end"
    )
    bench.add_argument("--here", action="store_true", help="make this process a rank if the launcher is not recognised")
    bench.add_argument("--in-place", action="store_true", help="use the same buffer for input and output")
    bench.add_argument(
        "--sampling",
        default="default",
        choices=("quick", "default", "thorough"),
        help="how precise, and so how long (default: %(default)s)",
    )
    bench.add_argument(
        "--seconds", type=float, metavar="S", help="maximum time per step, in seconds (default: that of the sampling)"
    )
    bench.add_argument(
        "--out", metavar="DIR", help="output folder for the run and its report (default: that of --resume, if any)"
    )
    _add_force(bench)
    _add_backend(bench)

    rehearse = add(
        "rehearse",
        commands.rehearse,
        "rehearse the communication of a training step",
        "Runs the collectives of a training job with its volumes and in its order, with matrix products between them "
        "on GPUs and waits otherwise, and prints the exposed and hidden time of each axis. Several meshes take turns "
        "and are compared. Long steps are cut down to a few layers and micro-batches, and extrapolated.",
    )
    rehearse.add_argument("job", help="a preset, such as llama3-8b; an unknown name lists them")
    rehearse.add_argument("--mesh", action="append", required=True, help="a layout; repeat it to compare several")
    rehearse.add_argument("--experts", metavar="MESH", help='the layout of the experts, such as "edp=2, ep=4"')
    rehearse.add_argument(
        "--set", action="append", default=[], metavar="FIELD=VALUE", help="change the job, such as global_batch=64"
    )
    rehearse.add_argument("--ranks", type=int, metavar="N", help="number of ranks, if the size of an axis is -1")
    rehearse.add_argument("--rounds", type=int, default=6, metavar="N", help="rounds (default: %(default)s)")
    rehearse.add_argument("--steps", type=int, default=5, metavar="N", help="steps per round (default: %(default)s)")
    rehearse.add_argument(
        "--scale", type=_auto_or_number, default="auto", help="part of a step to run (default: %(default)s)"
    )
    rehearse.add_argument(
        "--size-scale", type=_auto_or_number, default="auto", help="size of the messages (default: %(default)s)"
    )
    rehearse.add_argument(
        "--compute", choices=("auto", "products", "wait"), default="auto", help="the computation (default: %(default)s)"
    )
    rehearse.add_argument(
        "--tflops", type=float, default=400.0, metavar="X", help="rate of waits, in TFLOP/s (default: %(default)g)"
    )
    rehearse.add_argument("--out", metavar="FILE", help="write the frame as CSV")
    _add_backend(rehearse)

    tune = add(
        "tune",
        tuning_command.tune,
        "find the fastest option of each message size",
        "Options of NCCL (buffers, algorithm, protocol, thread blocks) or algorithms of MPICH take turns. An option is "
        "chosen if it is clearly faster than the default, also on new ranks. Prints the choice. With --out, also "
        "writes it (tuning.json), its table (tuning.csv) and report (tuning.html), the best environment for all sizes "
        "(tuning.env), and for NCCL a module for nccl4py (tuned.py) and a file for NCCL's example tuner plugin "
        "(nccl_tuner.conf).",
    )
    tuning_command.add_tune_options(tune)
    _add_backend(tune)

    report = add(
        "report",
        report_command.report,
        "write the report of saved runs, and check them",
        "Says whether the results are correct, as fast as they should be, above the limits of --thresholds, and not "
        "slower than those of --baseline. Exits with 1 if not, or if the run did not finish.",
    )
    report_command.add_report_options(report)

    compare = add(
        "compare",
        commands.compare,
        "compare two runs row by row",
        "Accepts folders of runs, results as Parquet, CSV or JSON, and logs of nccl-tests. Lists the differences of "
        "the two systems first, and rejects runs that are not comparable. Only the variation between launches shows "
        "whether a difference is real, so measure with 'bench --launches 3', or pass several logs with --before and "
        "--after. Exits with 1 if a row clearly became slower than the threshold or its results are wrong, and with 2 "
        "if nothing can be compared. Slower rows do not count if ranks shared cores.",
    )
    compare.add_argument(
        "sides",
        nargs="*",
        metavar="run",
        help="two of them: the baseline, and the run, frame or log to compare with it",
    )
    compare.add_argument("--before", nargs="+", default=[], metavar="FILE", help="several launches of the baseline")
    compare.add_argument("--after", nargs="+", default=[], metavar="FILE", help="several launches to compare with it")
    compare.add_argument(
        "--threshold",
        type=_fraction,
        default=0.05,
        help="slowdown that counts as a regression: 0.05 or 5%% (default: %(default)s)",
    )
    compare.add_argument("--anyway", action="store_true", help="compare even if machines or settings differ")
    compare.add_argument("--redact", action="store_true", help=commands.REDACT_HELP)

    explain = add(
        "explain",
        commands.explain,
        "explain a log or any other pasted text",
        "Recognises logs of NCCL, PyTorch, nccl-tests and launchers, reports of hangs, and the output of tools for "
        "GPUs and NICs, also several of them in one text. Prints what is wrong, what to do, the lines that show it, "
        "and what only looks wrong. Starts nothing, and executes nothing. Exits with 1 if the text shows an error.",
    )
    explain.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="the text, which gzip may have compressed; - for standard input. Several files, such as the logs of all "
        "ranks, are explained together",
    )
    explain.add_argument(
        "--format",
        choices=("text", "markdown", "html", "json"),
        help="format of the output (default: that of the suffix of --out, otherwise text)",
    )
    explain.add_argument("--out", metavar="FILE", help="write the explanation to a file instead")
    explain.add_argument("--redact", action="store_true", help=commands.REDACT_HELP)

    predict = add(
        "predict",
        commands.predict,
        "predict the time of collectives on a cluster",
        "Starts nothing. NCCL's algorithms and protocols are those that its own tuner would choose. Times below "
        "256 MiB are only right within a factor of two, unless --calibration has measurements of the machine. Prints "
        "a table and an explanation.",
    )
    predict.add_argument("mesh", help='for example "pp=8, dp=16, tp=8"; the last axis varies fastest')
    predict.add_argument(
        "collectives",
        nargs="*",
        metavar="COLLECTIVE",
        help=f"before the options (default: {usual_collectives_text()})",
    )
    predict.add_argument(
        "--cluster",
        metavar="NAME",
        help="a preset such as dgx-h100, which gets as many hosts as the mesh needs, or a file that describes hardware",
    )
    predict.add_argument(
        "--axis", action="append", metavar="AXIS", help="axes, separated by commas (default: all with several ranks)"
    )
    predict.add_argument("--sizes", default="8:4G", help="message sizes (default: %(default)s)")
    predict.add_argument("--dtype", default="float32", help="element type (default: %(default)s)")
    predict.add_argument(
        "--calibration",
        metavar="RUN",
        help="a saved run, results or a log of nccl-tests of this machine, to calibrate with",
    )
    predict.add_argument(
        "--mode", choices=["pipelined", "graph", "isolated"], help="the rows of --calibration to use, if it has several"
    )
    predict.add_argument("--out", metavar="FILE", help="write the table (.csv) or the figure (.png, .svg)")

    app = add(
        "app",
        commands.app,
        "open the workbench as a page of its own",
        "Serves it on this host, with Voilà (the extra app). The address contains a secret token. Ctrl-C stops it. "
        "Each visitor has a workbench of their own. Arguments after -- are passed to Voilà:\n"
        "  meshlab app --cluster dgx-h100 -- --Voila.ip=0.0.0.0",
    )
    app.add_argument(
        "--cluster", metavar="NAME|FILE", help="a preset, or a description of a machine (default: this machine)"
    )
    app.add_argument("--mesh", help='the first mesh, for example "dp=2, tp=8"')
    app.add_argument("--port", type=int, default=8866, help="port of the server (default: %(default)s)")
    app.add_argument("--no-browser", action="store_true", help="do not open a browser")
    app.add_argument("arguments", nargs="*", help=argparse.SUPPRESS)

    export = add(
        "export",
        commands.export,
        "write a notebook as HTML in which widgets are figures",
        "A page of nbconvert shows stored widgets only with JavaScript from another host. This one shows their figures "
        "and tables instead, so that nothing is blank without a network.",
    )
    export.add_argument("notebook", help="the notebook")
    export.add_argument("--execute", action="store_true", help="run all cells first; the notebook is not changed")
    export.add_argument("--out", metavar="FILE", help="the page (default: the notebook's name with .html)")

    search = add(
        "search",
        layout_search.search,
        "find the best layouts of a training job on a cluster",
        "Starts nothing. Considers all factorisations into pp, dp, cp, tp and ep in all orders, drops those that the "
        "job or the memory rules out, and ranks the others by computation, bubble and exposed communication. Prints a "
        "table and an explanation.",
    )
    layout_search.add_search_options(search)

    lab = add(
        "lab",
        commands.lab,
        "open the first notebook in JupyterLab",
        "Copies the notebooks into the folder unless they exist there. Arguments after -- are passed to JupyterLab:\n"
        "  meshlab lab -- --no-browser --port=8889",
    )
    lab.add_argument("folder", nargs="?", default=".", help="working folder (default: the current folder)")
    lab.add_argument("arguments", nargs="*", help=argparse.SUPPRESS)
    return parser


def _add_force(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--force", action="store_true", help="replace a different run in the folder, and its report")


def _add_backend(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--backend",
        choices=["auto", *BACKENDS],
        default="auto",
        help=f"{'; '.join(f'{name}: {facts.role}' for name, facts in BACKENDS.items())} (default: %(default)s)",
    )


def _auto_or_number(text: str) -> float | str:
    """Parse a number, or the word auto."""
    if text == "auto":
        return text
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number nor auto") from None


def _fraction(text: str) -> float:
    """Parse a positive fraction: 0.05, or 5%."""
    number, percent, rest = text.strip().partition("%")
    try:
        fraction = float(number) / (100 if percent else 1)
    except ValueError:
        fraction = float("nan")
    if rest or not 0 < fraction < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive fraction; write 0.05 or 5% for 5 % slower")
    return fraction
