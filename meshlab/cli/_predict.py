"""The command ``meshlab predict``: predict the time of collectives."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from meshlab.base._collectives import usual_collectives_text
from meshlab.cli._arguments import (
    Command,
    add_nodes,
    add_out,
    add_sizes,
    check_table_suffix,
    sized_cluster_of,
    split_commas,
)
from meshlab.cli._fitting import fitted
from meshlab.cli._output import OK, print_text, write_table


def _run(options: argparse.Namespace) -> int:
    """Predict the time of collectives along the axes of a mesh."""
    from meshlab.mesh._describe import wrapped
    from meshlab.plots._prediction import figure_of
    from meshlab.prediction._calibration import as_calibration
    from meshlab.prediction._predictions import predict

    check_table_suffix(options.out)
    cluster = sized_cluster_of(options.cluster, options.nodes)
    measured = Path(options.calibration) if options.calibration else None
    prediction = predict(
        options.mesh,
        cluster,
        split_commas(options.collectives) or None,
        options.sizes,
        axis=split_commas(options.axis) if options.axis else None,
        dtype=options.dtype,
        calibration=None if measured is None else as_calibration(measured, cluster, options.mode),
    )
    width = shutil.get_terminal_size().columns
    print_text(f"{fitted(prediction.summary(), keys=3)}\n\n{wrapped(prediction.explain(), width)}")
    if options.out:
        write_table(Path(options.out), prediction.frame(), lambda: figure_of(prediction))
    return OK


def _add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("mesh", help='for example "pp=8, dp=16, tp=8"; the last axis varies fastest')
    add(
        "collectives",
        nargs="*",
        metavar="COLLECTIVE",
        help=f"before the options (default: {usual_collectives_text()})",
    )
    add(
        "--cluster",
        metavar="NAME",
        help="a preset such as dgx-h100, which gets as many hosts as the mesh needs, or a file that describes hardware",
    )
    add_nodes(parser)
    add("--axis", action="append", metavar="AXIS", help="axes, separated by commas (default: all with several ranks)")
    add_sizes(parser, "8:4G")
    add("--dtype", default="float32", help="element type (default: %(default)s)")
    add(
        "--calibration",
        metavar="RUN",
        help="a saved run, results or a log of nccl-tests of this machine, to calibrate with",
    )
    add(
        "--mode", choices=["pipelined", "graph", "isolated"], help="the rows of --calibration to use, if it has several"
    )
    add_out(parser, "FILE", "write the table (.csv) or the figure (.png, .svg)")


PREDICT = Command(
    "predict",
    "predict the time of collectives on a cluster",
    "Starts nothing. NCCL's algorithms and protocols are those that its own tuner would choose. "
    "Published runs of machines of the same class correct the times, unless --calibration has measurements of the "
    "machine itself. Prints a table and an explanation.",
    _run,
    _add_options,
)
