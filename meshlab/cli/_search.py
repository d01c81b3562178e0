"""The command ``meshlab search``: find the best layouts of a training job."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from meshlab.base._errors import BenchError
from meshlab.cli._arguments import Command, add_out, add_ranks, check_table_suffix, sized_cluster_of
from meshlab.cli._fitting import fitted
from meshlab.cli._jobs import job_fields, job_hints
from meshlab.cli._output import OK, print_text, write_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from meshlab.prediction._search import Layouts

_DEGREES = ("pp", "dp", "cp", "tp", "ep", "interleave")


def _run(options: argparse.Namespace) -> int:
    """Print the layouts on which a job can run, best first."""
    from meshlab.mesh._describe import wrapped
    from meshlab.prediction._job import Job
    from meshlab.prediction._search import search
    from meshlab.topology.model._presets import as_cluster

    check_table_suffix(options.out)
    if options.rows < 1:
        raise BenchError(f"--rows {options.rows} must be positive")
    cluster, changes = as_cluster(sized_cluster_of(options.cluster, options.nodes)), job_fields(options.set)
    with job_hints(*_DEGREES, "peak"):
        layouts = search(
            cluster,
            Job.preset(options.job, **changes),
            world_size=options.ranks,
            order=options.order,
            memory_gib=options.memory,
            peak=options.peak,
            **{name: getattr(options, name) for name in _DEGREES},
        )
    width = shutil.get_terminal_size().columns
    print_text(f"{fitted(layouts.summary(options.rows), keys=2)}\n\n{wrapped(layouts.explain(), width)}")
    if options.out:
        label = layouts.verdict
        write_table(Path(options.out), layouts.frame(), lambda: _figure(layouts, options.rows), label=label)
    return OK


def _integers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of integers; write 8 or 4,8") from None


def _figure(layouts: Layouts, rows: int) -> Figure:
    from matplotlib.figure import Figure

    figure = layouts.plot(most=rows, ax=Figure((8, 1.5 + 0.4 * min(rows, len(layouts)))).add_subplot()).figure
    assert isinstance(figure, Figure)
    return figure


def _add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("job", help="a model, such as llama3-405b; an unknown name prints the list")
    add("--cluster", required=True, metavar="NAME", help="a preset such as dgx-h100, or a file that describes hardware")
    add("--nodes", type=int, metavar="N", help="number of hosts of a preset (default: its smallest)")
    add_ranks(parser, "number of ranks (default: all devices)")
    add("--set", action="append", default=[], metavar="FIELD=VALUE", help="change the job, such as recompute=full")
    for name in _DEGREES:
        values, default = (
            ("model chunks per stage", "that of the job") if name == "interleave" else (f"sizes of {name}", "all")
        )
        text = f"{values} to consider, separated by commas (default: {default})"
        add(f"--{name}", type=_integers, metavar="N", help=text)
    add("--order", metavar="AXES", help='order of the axes, such as "pp, dp, cp, tp" (default: all)')
    add("--memory", type=float, metavar="GIB", help="memory of a device (default: that of the cluster)")
    add("--peak", type=float, metavar="TFLOPS", help="peak of a device (default: that of its product)")
    add("--rows", type=int, default=10, metavar="N", help="layouts to print (default: %(default)s)")
    add_out(parser, "FILE", "write the table (.csv) or the figure (.png, .svg)")


SEARCH = Command(
    "search",
    "find the best layouts of a training job on a cluster",
    "Starts nothing. Considers all factorisations into pp, dp, cp, tp and ep in all orders, drops those that do not "
    "divide the job, and ranks the others by computation, bubble and exposed communication. Those that exceed the "
    "memory are last. Prints a table and an explanation.",
    _run,
    _add_options,
)
