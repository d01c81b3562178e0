"""What may stand on the command line, and its help."""

from __future__ import annotations

import argparse
import logging
import re
import sys
from collections.abc import Callable, Sequence

from meshlab.cli import commands
from meshlab.cli.commands import BAD_INPUT, INTERRUPTED
from meshlab.engines.mpi_world import launched_as
from meshlab.errors import MeshlabError
from meshlab.version import __version__

__all__ = ["join_axes", "main", "make_parser"]


_DESCRIPTION = """\
Explore collectives on the ranks of a device mesh: lay a mesh over ranks, prove its groups, measure collectives along
its axes, and write a report. Works on GPUs, and without any on real MPI processes.
"""

_EXAMPLES = """\
examples:
  meshlab demo --out first-report             four ranks, from a mesh to a report, in half a minute
  meshlab show "pp=2, dp=2, tp=4" --axis dp   who is in which group; starts nothing
  meshlab bench all_reduce --mesh "dp=2, tp=2" --axis tp --sizes 1K:16M --out run1
  mpiexec -n 4 meshlab bench --mesh tp=4      on ranks that a launcher started; srun works too
  meshlab report run1 --out run1.md           the report of a run that was saved
  meshlab compare run1 run2                   what became slower; also takes logs of nccl-tests
  meshlab doctor                              what is installed, and what to do about what is missing

exit codes: 0 good · 1 a benchmark failed, is wrong, or became slower · 2 bad arguments or files · 130 interrupted
"""

_AXIS = re.compile(r"(?:--mesh=)?[A-Za-z_]\w*=-?\d+,?")


def join_axes(words: Sequence[str]) -> list[str]:
    """Make one word of a mesh that was not quoted.

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


def make_parser() -> argparse.ArgumentParser:
    """Everything that the command line understands; ``command`` of what it parses is the function to call."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("meshlab", description=_DESCRIPTION, epilog=_EXAMPLES, formatter_class=form)
    parser.add_argument("--version", action="version", version=f"meshlab {__version__}")
    subparsers = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    def add(name: str, function: Callable[[argparse.Namespace], int], text: str, more: str) -> argparse.ArgumentParser:
        command = subparsers.add_parser(
            name, help=text, description=f"{text[:1].upper()}{text[1:]}.\n\n{more}", formatter_class=form
        )
        command.set_defaults(command=function)
        return command

    demo = add(
        "demo",
        commands.demo,
        "go the whole way once, from a mesh to a report",
        "Starts ranks as processes, lays a mesh over them, proves its groups, measures four collectives along every\n"
        "axis over real MPI, prints a table, and writes a report with its pictures and frames.",
    )
    demo.add_argument("--out", default="meshlab-demo", metavar="DIR", help="where to write (default: %(default)s)")
    demo.add_argument("--mesh", default="dp=2, tp=2", help='the mesh (default: "%(default)s")')
    demo.add_argument("--ranks", type=int, metavar="N", help="how many ranks, where a size of the mesh is -1")
    demo.add_argument("--sizes", default="1K:16M", help="the sizes (default: %(default)s)")
    _add_force(demo)
    _add_backend(demo)

    add(
        "doctor",
        commands.doctor,
        "say what is installed, and what to do about what is missing",
        "Looks at Python, the packages, the MPI library and its mpiexec, shared memory, and the parts for GPUs.\n"
        "Exits with 1 when something that the core needs is broken.",
    )

    show = add(
        "show",
        commands.show,
        "print a mesh: its axes, its groups, and who is in which",
        "The last axis is the fastest: ranks that differ only there are neighbours. Starts nothing.",
    )
    show.add_argument("mesh", help='such as "dp=2, tp=4"; one size may be -1 if --ranks says how many there are')
    show.add_argument("--axis", help='whose groups to show in the grid: an axis, or several such as "dp-cp"')
    show.add_argument("--ranks", type=int, metavar="N", help="how many ranks there are")

    bench = add(
        "bench",
        commands.bench,
        "measure collectives along axes of a mesh",
        "All groups of an axis run at once. Prints a table; with --out, writes the run's frames (Parquet and CSV),\n"
        "its report and its pictures. Rows that were measured are written even when the run fails or is interrupted.\n"
        "Started by mpiexec or srun as several processes, it starts no ranks: the processes are the ranks.",
    )
    bench.add_argument(
        "collectives", nargs="*", default=["all_reduce"], metavar="COLLECTIVE", help="default: all_reduce"
    )
    bench.add_argument("--mesh", help='such as "dp=2, tp=2"; the last axis is the fastest')
    bench.add_argument("--ranks", type=int, metavar="N", help="how many ranks to start (default: as the mesh has)")
    bench.add_argument(
        "--axis",
        action="append",
        metavar="AXIS",
        help="along which axis; several with commas between; dp-tp is the groups that two span together (default: all)",
    )
    bench.add_argument("--sizes", default="1K:16M", help='such as 1K:16M, 8:1G*4 or "1K, 1M" (default: %(default)s)')
    bench.add_argument("--dtype", default="float32", help="element types, with commas between (default: %(default)s)")
    bench.add_argument("--op", default="sum", help="reduce operations, with commas between (default: %(default)s)")
    bench.add_argument(
        "--mode", default="pipelined", help="isolated, pipelined, graph, with commas between (default: %(default)s)"
    )
    bench.add_argument(
        "--groups",
        default="together",
        help="together, alone (one group at a time), pairs (of ranks, with send and send_recv); with commas between",
    )
    bench.add_argument(
        "--beside", action="append", default=[], metavar="AXIS=COLLECTIVE", help="what another axis does meanwhile"
    )
    bench.add_argument("--launches", type=int, default=1, metavar="N", help="repeat so often, with fresh communicators")
    bench.add_argument("--shuffle", action="store_true", help="take the steps in random order")
    bench.add_argument("--seed", type=int, default=0, help="of that order (default: %(default)s)")
    bench.add_argument("--resume", metavar="DIR", help="go on with a run that stopped; its plan and mesh count")
    bench.add_argument("--redact", action="store_true", help="write hashes for the names of hosts and users")
    bench.add_argument("--here", action="store_true", help="this process is a rank, though no launcher is recognised")
    bench.add_argument("--in-place", action="store_true", help="let input and output share memory")
    bench.add_argument("--seconds", type=float, default=0.5, help="at most so long per step (default: %(default)s)")
    bench.add_argument("--out", metavar="DIR", help="where to write the run and its report")
    _add_force(bench)
    _add_backend(bench)

    report = add(
        "report",
        commands.report,
        "write the report of a run that was saved",
        "Reads a folder that bench, demo or Run.save wrote.",
    )
    report.add_argument("folder", help="the run's folder")
    report.add_argument("--out", metavar="FILE", help="the report, .html or .md (default: report.html in the folder)")
    report.add_argument("--pictures", action="store_true", help="beside a .md, write its pictures as PNG files")
    report.add_argument("--redact", action="store_true", help="write hashes for the names of hosts and users")

    compare = add(
        "compare",
        commands.compare,
        "compare two runs row by row",
        "Takes folders of runs, results as Parquet, CSV or JSON, and logs of nccl-tests. Says first what differs\n"
        "between the two, and refuses what cannot be compared. Exits with 1 when a row became slower than the\n"
        "threshold or its results are wrong after, and with 2 when nothing could be compared.",
    )
    compare.add_argument("before", help="the run, frame or log to compare with")
    compare.add_argument("after", help="the run, frame or log to judge")
    compare.add_argument(
        "--threshold", type=_share, default=0.05, help="how much slower counts: 0.05 or 5%% (default: %(default)s)"
    )
    compare.add_argument("--anyway", action="store_true", help="compare although the machines or settings differ")

    lab = add(
        "lab",
        commands.lab,
        "open JupyterLab on the first notebook",
        "Copies the notebooks into the folder, unless they are there already, and opens the first.\n"
        "What stands behind -- goes to JupyterLab: meshlab lab -- --no-browser --port=8889",
    )
    lab.add_argument("folder", nargs="?", default=".", help="where to work (default: this folder)")
    lab.add_argument("arguments", nargs="*", help=argparse.SUPPRESS)
    return parser


def _add_force(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--force", action="store_true", help="replace another run in the folder, and its report")


def _add_backend(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--backend",
        choices=["auto", "nccl", "mpi", "threads"],
        default="auto",
        help="nccl: a GPU per rank; mpi: processes; threads: in this process, to try things out (default: %(default)s)",
    )


def _share(text: str) -> float:
    """Read a share: 0.05, or 5%."""
    number, percent, rest = text.strip().partition("%")
    try:
        share = float(number) / (100 if percent else 1)
    except ValueError:
        share = float("nan")
    if rest or not 0 < share < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no share above 0; write 0.05 or 5% for 5 % slower")
    return share


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    arguments : sequence of str, optional
        The words after ``meshlab``; those of the process by default.

    Returns
    -------
    int
        The exit code: 0 good, 1 a benchmark failed or was wrong, 2 bad arguments, 130 interrupted.
    """
    options = make_parser().parse_args(join_axes(sys.argv[1:] if arguments is None else arguments))
    command: Callable[[argparse.Namespace], int] = options.command
    try:
        return command(options)
    except MeshlabError as error:
        place = launched_as()
        if place is None or place[0] == 0:  # of several processes, one speaks
            print(f"meshlab: {error}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        # Where a start was under way, tasks of ipyparallel are left over, and asyncio would print them at the end.
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)
        print("meshlab: interrupted", file=sys.stderr)
        return INTERRUPTED
