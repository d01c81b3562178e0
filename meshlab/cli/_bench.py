"""The command ``meshlab bench``: measure collectives along the axes of a mesh."""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshlab.base._errors import BenchError
from meshlab.base._hints import Argument
from meshlab.cli._arguments import (
    Command,
    add_collectives,
    add_force,
    add_out,
    add_ranks,
    add_redact,
    add_sizes,
    add_start,
    split_commas,
)
from meshlab.cli._measuring import measure
from meshlab.cli._output import option_text
from meshlab.cli._ranks import check_choice, default_ranks
from meshlab.engines._launchers import launched_as
from meshlab.plans._options import CALL_OPTIONS, OPTIONS, Option

if TYPE_CHECKING:
    from meshlab.mesh._mesh import DeviceMesh
    from meshlab.plans._plan import Plan


def _run(options: argparse.Namespace) -> int:
    """Measure collectives along the axes of a mesh."""
    from meshlab.benchmark._run import Run
    from meshlab.mesh._mesh import DeviceMesh, as_mesh
    from meshlab.runs._store import check_ended

    process = launched_as()
    if process is not None:
        check_choice(process[1], options.ranks)
    n = options.ranks if process is None else process[1]
    if options.resume:
        check_ended(options.resume)
    earlier = Run.load(options.resume) if options.resume else None
    if earlier is not None:
        mesh, plan = earlier.mesh, earlier.plan
    else:
        if options.mesh is not None:
            mesh = as_mesh(options.mesh, fill=n)
        elif options.here and process is None:
            raise BenchError(
                "--here needs a mesh, because the launcher is unknown, and so is the number of ranks",
                hint="pass --mesh 'dp=2, tp=2'",
            )
        else:
            mesh = DeviceMesh(all_ranks=default_ranks(options.backend) if n is None else n)
        plan = _plan(options, mesh)
    return measure(
        mesh,
        mesh.world_size if n is None else n,
        plan,
        options.backend,
        Path(options.out or options.resume) if options.out or options.resume else None,
        joins=options.here or process is not None,
        timeout_s=options.timeout_s,
        resume=earlier,
        redact=options.redact,
        force=options.force,
    )


def _plan(options: argparse.Namespace, mesh: DeviceMesh) -> Plan:
    from meshlab.plans._plan import Plan
    from meshlab.plans._sampling import Sampling

    if options.seconds is not None and options.seconds <= 0:
        raise BenchError(
            f"--seconds {options.seconds:g} must be positive", hint="pass the maximum time of a step in seconds"
        )
    sampling = Sampling.named(options.sampling)
    if options.seconds is not None:
        sampling = replace(sampling, max_s=options.seconds)
    concurrent = {}
    for text in options.concurrent:
        axis, equals, collective = (part.strip() for part in text.partition("="))
        if not equals:
            raise BenchError(f"--concurrent {text} has no collective", hint=f"write --concurrent {text}=reduce_scatter")
        concurrent[axis] = collective
    return Plan(
        split_commas(options.collectives),
        split_commas(options.axis or mesh.axis_names),
        sizes=options.sizes,
        dtype=options.dtype,
        op=options.op,
        mode=options.mode,
        in_place=options.in_place,
        grouping=options.grouping,
        concurrent=concurrent,
        launches=options.launches,
        shuffle=options.shuffle,
        seed=options.seed,
        sampling=sampling,
        **{name: value for name in OPTIONS if (value := getattr(options, name)) is not None},
    )


def _option_values(option: Option, text: str) -> Any:
    """Read the values of an option of the calls."""
    try:
        values = [None if word.strip() == "auto" else option.kind(word.strip()) for word in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer") from None
    return values if option.takes_several else values[0]


def _add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add_collectives(parser)
    add(
        "--mesh",
        help='for example "dp=2, tp=2"; the last axis varies fastest (default: all GPUs on one axis; without GPUs '
        "one rank per core, from 2 to 8; under a launcher its processes)",
    )
    add_ranks(parser, "number of ranks to start (default: that of the mesh)")
    add(
        "--axis",
        action="append",
        metavar="AXIS",
        help="axes, separated by commas; dp-tp for groups that span both axes (default: all axes)",
    )
    add_sizes(parser, "1K:16M")
    add("--dtype", default="float32", help="element types, separated by commas (default: %(default)s)")
    add("--op", default="sum", help="reduce operations, separated by commas (default: %(default)s)")
    add("--mode", default="pipelined", help="isolated, pipelined or graph, separated by commas (default: %(default)s)")
    add(
        "--grouping",
        default="together",
        help="together (all groups of an axis), alone (one group at a time) or pairs (of ranks, with send or "
        "send_recv), separated by commas (default: %(default)s)",
    )
    add(
        "--concurrent",
        action="append",
        default=[],
        metavar="AXIS=COLLECTIVE",
        help="a collective that runs on another axis at the same time",
    )
    # Former names of --grouping and --concurrent.
    add("--groups", dest="grouping", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    add("--beside", dest="concurrent", action="append", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    add("--launches", type=int, default=1, metavar="N", help="repeat N times, on new ranks each time")
    add("--shuffle", action="store_true", help="run the steps in random order")
    add("--seed", type=int, default=0, help="seed of the random order (default: %(default)s)")
    add("--resume", metavar="DIR", help="resume the run in a folder, with its plan and mesh")
    add_redact(parser, "; the rows are then written only at the end")
    add("--here", action="store_true", help="make this process a rank if the launcher is not recognised")
    add("--in-place", action="store_true", help="use the same buffer for input and output")
    for name, option in CALL_OPTIONS.items():
        add(
            option_text(Argument(name)),
            type=partial(_option_values, option),
            metavar="N" if option.kind is int else "NAME",
            help=option.help
            + ", separated by commas" * option.takes_several
            + "; auto: the library chooses" * (option.takes_several and option.is_tuned),
        )
    add(
        "--sampling",
        default="default",
        choices=("quick", "default", "thorough"),
        help="precision, and thereby duration (default: %(default)s)",
    )
    add("--seconds", type=float, metavar="S", help="maximum time per step, in seconds (default: that of the sampling)")
    add_out(parser, "DIR", "output folder for the run and its report (default: that of --resume, if any)")
    add_force(parser)
    add_start(parser)


BENCH = Command(
    "bench",
    "benchmark collectives along the axes of a mesh",
    "By default all groups of an axis run at the same time. Prints a table. With --out, also writes the frames "
    "(Parquet and CSV), a report and its figures. The rows are written after every step, so that --resume can "
    "continue a run that failed or was killed. Under mpiexec or srun it starts no ranks: the processes are the ranks.",
    _run,
    _add_options,
)
