"""The command ``meshlab doctor``: check the installation."""

from __future__ import annotations

import argparse

from meshlab.cli._arguments import Command
from meshlab.cli._fitting import fitted
from meshlab.cli._output import FAILED, OK, print_text


def _run(options: argparse.Namespace) -> int:
    """Print the state of the installation, or of hosts. Return 1 if a required part is broken."""
    from meshlab.commissioning._doctor import checks_text, run_checks

    if options.hosts is None:
        checks = run_checks()
    else:
        from meshlab.commissioning._host_checks import check_hosts

        checks = check_hosts(options.hosts, options.folder)
    print_text(fitted(checks_text(checks)))
    return FAILED if any(check.verdict == "broken" for check in checks) else OK


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--hosts",
        metavar="HOSTS",
        help="check hosts instead, such as 'ssh:node0[1-4]', node01,node02 or 'slurm --nodes=4': names, routes, ports, "
        "MTU, network interfaces, clocks, a shared folder and versions",
    )
    parser.add_argument(
        "--folder", metavar="DIR", help="a folder that all hosts should see (default: ~/.cache/meshlab)"
    )


DOCTOR = Command(
    "doctor",
    "check the installation, and suggest fixes",
    "Checks Python, the packages, the MPI library and its mpiexec, shared memory, and the parts for GPUs. Exits with "
    "1 if a required part is broken. With --hosts, it checks whether several hosts can work together.",
    _run,
    _add_options,
)
