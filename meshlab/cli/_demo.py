"""The command ``meshlab demo``: run all steps once."""

from __future__ import annotations

import argparse
from pathlib import Path

from meshlab.base._errors import BenchError
from meshlab.cli._arguments import Command, add_force, add_out, add_ranks, add_redact, add_sizes, add_start
from meshlab.cli._measuring import measure
from meshlab.cli._output import print_text
from meshlab.engines._launchers import launched_as


def _run(options: argparse.Namespace) -> int:
    """Run all steps once, from a mesh to a report."""
    from meshlab.mesh._describe import mesh_text
    from meshlab.mesh._mesh import DeviceMesh
    from meshlab.plans._plan import Plan
    from meshlab.plans._sampling import Sampling

    process = launched_as()
    if process is not None:
        n = process[1]
        raise BenchError(
            f"demo starts its own ranks, but a launcher started {n} processes",
            hint=f"run it without the launcher, or measure on these ranks: mpiexec -n {n} meshlab bench --mesh dp={n}",
        )
    mesh = DeviceMesh(options.mesh, world_size=options.ranks)
    plan = Plan(
        ["all_reduce", "all_gather", "reduce_scatter", "broadcast"],
        mesh.axis_names,
        sizes=options.sizes,
        sampling=Sampling(max_s=0.05),
    )
    print_text(f"{mesh_text(mesh)}\n")
    n, out = mesh.world_size, Path(options.out)
    return measure(
        mesh,
        n,
        plan,
        options.backend,
        out,
        timeout_s=options.timeout_s,
        redact=options.redact,
        force=options.force,
    )


def _add_options(parser: argparse.ArgumentParser) -> None:
    add_out(parser, "DIR", "output folder (default: %(default)s)", default="meshlab-demo")
    parser.add_argument("--mesh", default="dp=2, tp=2", help='the mesh (default: "%(default)s")')
    add_ranks(parser)
    add_sizes(parser, "1K:16M")
    add_redact(parser)
    add_force(parser)
    add_start(parser)


DEMO = Command(
    "demo",
    "run all steps once, from a mesh to a report",
    "Starts ranks as processes, verifies the groups of a mesh, benchmarks four collectives along each axis, prints a "
    "table, and writes a report with its figures and frames.",
    _run,
    _add_options,
)
