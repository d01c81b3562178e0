"""The command ``meshlab show``: print the groups of a mesh."""

from __future__ import annotations

import argparse
import shutil

from meshlab.base._errors import BenchError
from meshlab.cli._arguments import Command, add_ranks
from meshlab.cli._output import OK, print_text


def _run(options: argparse.Namespace) -> int:
    """Print the groups of a mesh."""
    from meshlab.mesh._describe import mesh_text, wrapped
    from meshlab.mesh._mesh import DeviceMesh

    if options.axis and "," in options.axis:
        names = [name.strip() for name in options.axis.split(",")]
        raise BenchError(
            f"--axis {options.axis} names {len(names)} axes, but the grid shows one set of groups",
            hint=f"for the groups that span these axes, pass --axis {'-'.join(names)}",
        )
    mesh = DeviceMesh(options.mesh, world_size=options.ranks)
    width = shutil.get_terminal_size().columns
    print_text(f"{mesh_text(mesh, options.axis, width)}\n\n{wrapped(mesh.explain(), width)}")
    return OK


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("mesh", help='for example "dp=2, tp=4"; one size may be -1 if --ranks is given')
    parser.add_argument("--axis", help='the axis whose groups the grid shows; "dp-cp" for groups that span two axes')
    add_ranks(parser, "number of ranks")


SHOW = Command(
    "show",
    "print the axes and groups of a mesh",
    "The last axis varies fastest: ranks that differ only along it are neighbours. Starts nothing.",
    _run,
    _add_options,
)
