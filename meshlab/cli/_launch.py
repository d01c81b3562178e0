"""The command ``meshlab launch``: the script that starts ranks on several hosts."""

from __future__ import annotations

import argparse
import sys

from meshlab.cli._arguments import Command
from meshlab.cli._output import OK, print_error

_KINDS = ("slurm", "ssh")


def _run(options: argparse.Namespace) -> int:
    """Print the script of a kind of hosts."""
    from meshlab.engines._host_choice import FOLDER_OF_TEMPLATES, read_template

    template, file = read_template(options.kind)
    sys.stdout.write(template)
    place = f"{options.kind}.sh in the folder of {FOLDER_OF_TEMPLATES}, or in ~/.config/meshlab"
    print_error(f"this is {file}" if file else f"this is meshlab's own script; {place}, replaces it")
    return OK


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--print", dest="kind", required=True, choices=_KINDS, help="the script of Slurm or of ssh")


LAUNCH = Command(
    "launch",
    "print the script that starts ranks on several hosts",
    'ml.launch(n, hosts="slurm") submits the script to Slurm, and hosts=[…] or "ssh:node0[1-4]" runs that of ssh. '
    "A site can replace it with its own file, with the same fields in braces. This command starts nothing.\n"
    "  meshlab launch --print slurm >~/.config/meshlab/slurm.sh",
    _run,
    _add_options,
)
