"""The command line: `meshlab demo | doctor | show | bench | compare | report | lab`."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Sequence

from meshlab.cli.main import join_axes, make_parser
from meshlab.cli.words import BAD_INPUT, INTERRUPTED
from meshlab.engines.mpi_world import launched_as
from meshlab.errors import MeshlabError

__all__ = ["main"]


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
