"""The command ``meshlab doctor``: check the installation."""

from __future__ import annotations

import argparse

from meshlab.cli._arguments import Command
from meshlab.cli._fitting import fitted
from meshlab.cli._output import FAILED, OK, print_text


def _run(options: argparse.Namespace) -> int:
    """Print the state of the installation. Return 1 if a required part is broken."""
    from meshlab.commissioning._doctor import checks_text, run_checks

    checks = run_checks()
    print_text(fitted(checks_text(checks)))
    return FAILED if any(check.verdict == "broken" for check in checks) else OK


DOCTOR = Command(
    "doctor",
    "check the installation, and suggest fixes",
    "Checks Python, the packages, the MPI library and its mpiexec, shared memory, and the parts for GPUs. Exits with "
    "1 if a required part is broken.",
    _run,
)
